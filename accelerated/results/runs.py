"""`Runs`: a checked results table, a choice of rows, and fits of a law to each router.

read              files and folders -> `Runs`
Runs.counting_embeddings  N and P with or without the embedding
Runs.where        a condition on the columns, or the preset clark
Runs.fit          a law of the loss, one `Fit` for each router -> `Fits`
Runs.plan         the models within a budget -> `Plan`
Runs.next_run     the possible next runs -> `NextRuns`
fit_table         any law, to tables of runs, accuracies or leverages -> `Fits`
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..laws.catalogue import Law
from ..tables.agreement import recounted
from ..tables.selection import CLARK, RouterRows, last_evaluations, of_router, remarks_of_blanks, select_rows
from ..tables.table import named, naming, read_tables
from ..wording import by_reason, in_short, once, plural
from .blocks import Block, Table, figure, shown_as
from .encoding import head_of, plain
from .fit import LEVEL, Fit, check_huber, errors_of, fit_blocks, fit_some
from .floor import choice_words, left_out_errors
from .misfit import floor_lines, warning_lines
from .plotting import plot_fits
from .prediction import Predictions, point_of, predict_all
from .rows import BOUNDED, RowChoice, column_remarks, law_lines, law_of, rows_of_runs

if TYPE_CHECKING:  # a fit does not need the code of a plan
    from .planning.hours import Clock
    from .planning.next_run import NextRuns
    from .planning.plan import Budget, Plan

LOSS = "loss_validation"
"""Default column of the loss."""


def read(paths) -> "Runs":
    """Read a results table, or several tables as one table.

    Args:
        paths: a file (.csv, .jsonl, also .gz) or the folder of a run or sweep; or a list of these.

    Raises:
        InputError: a file is missing or not a table, or a value is wrong; the message gives row and column.
    """
    return Runs(read_tables(paths), paths)


class Runs:
    """The runs of a results table.

    Args:
        frame: result of `tables.read_tables`: every evaluation, a pandas DataFrame.
        paths: paths of the table's files, for messages.
        rows: the preset clark, or a condition on the columns; None for the default of `select_rows`.
        loss: column of the loss.
    """

    def __init__(self, frame, paths, rows: str | None = None, loss: str = LOSS):
        self.frame, self.paths, self.rows, self.loss = frame, paths, rows, loss
        self._selections: dict[str, list[RouterRows]] = {}

    def where(self, rows: str | None) -> "Runs":
        """Return the runs that match a condition such as "k == 1 and seed == 42", or the preset clark.

        A second condition narrows the first. None changes nothing.
        """
        if rows is None:
            return self
        if self.rows is not None:
            rows = " and ".join(f"({CLARK if each == 'clark' else each})" for each in (self.rows, rows))
        return Runs(self.frame, self.paths, rows, self.loss)

    def of_loss(self, column: str | None) -> "Runs":
        """Return the same runs, with the losses of `column`; None changes nothing."""
        return self if column is None else Runs(self.frame, self.paths, self.rows, column)

    def counting_embeddings(self, matrices: int | None) -> "Runs":
        """Return the runs with N and P that count the embedding as often as given; None changes nothing.

        Args:
            matrices: number of matrices of vocab_size * d_model: 0, 1 (the embedding), or 2 (with an output layer).
        """
        return self if matrices is None else Runs(recounted(self.frame, matrices), self.paths, self.rows, self.loss)

    @cached_property
    def last(self):
        """The last evaluation of every run, by hyper_id: a pandas DataFrame."""
        return last_evaluations(self.frame, None, self.loss)

    @property
    def remarks(self) -> list[str]:
        """Sentences on the excluded rows of the table, and on rows without the loss."""
        return self.frame.attrs.get("remarks", []) + remarks_of_blanks(self.frame, self.loss)

    def selections(self, axes: str = "experts") -> list[RouterRows]:
        """Return the last evaluation of each chosen run, by router (see `tables.selection`)."""
        if axes not in self._selections:
            self._selections[axes] = select_rows(self.frame, self.rows, self.loss, axes=axes)
        return self._selections[axes]

    def fit(
        self,
        law: str | Law = "routed-bounded",
        router: str | None = None,
        level: float = LEVEL,
        huber: float | None = None,
        tell: Callable | None = None,
        intervals: str | None = None,
        **options,
    ) -> "Fits":
        """Fit a law of the loss to each router.

        Args:
            law: name of the law, or FILE.py:NAME for a file that registers a law.
            router: a router_type; None for all.
            level: confidence level of the intervals, between 0 and 1.
            huber: delta in log10 units, for a fit by a sum of Huber terms instead of least squares.
            intervals: method of the intervals, as for `Fit`.
            options: options of the fit of the law, such as the floor of `compute`.

        Raises:
            InputError: the law is unknown or not of the loss, no row matches, or no router has a fit. `Fits.not_fitted`
                has the reasons if only some routers have no fit.
        """
        law = with_options(law_of(law, "this table") if isinstance(law, str) else law, options)
        check_huber(law, huber)
        selections = of_router(self.selections(law.axes), router)

        def fitted(selection: RouterRows) -> Fit:
            return Fit(rows_of_runs(selection, law, self.loss), law, level, huber, intervals)

        with naming(self.paths):
            fits, not_fitted = fit_some(selections, self.loss, fitted, tell)
        remarks = self.remarks + column_remarks([fit.rows.runs for fit in fits], law)
        return Fits(law, fits, not_fitted, remarks, named(self.paths), self.loss)

    def plan(
        self,
        budget: "Budget",
        tokens: float | None = None,
        law: str | Law | None = None,
        level: float = LEVEL,
        resamples: int | None = None,
        published: bool = True,
        huber: float | None = None,
        within: float | None = None,
        clock: "Clock | None" = None,
    ) -> "Plan":
        """Rank the models within a budget, by a law fitted to each router together with the dense runs.

        Args:
            tokens: D of every model; None for all tokens that the FLOPs allow or, if the law ignores tokens, the runs'
                tokens.
            law: a law of the loss, as for `fit`; None for routed-bounded, with a floor if this predicts left-out sizes
                better.
            level: confidence level of the intervals, between 0 and 1.
            resamples: number of resamples for the share of wins; 0 for none; None for 500, or for 200 with a slow law.
            published: whether to add separate rankings by the printed coefficients of later papers.
            huber: delta in log10 units, as for `fit`.
            within: nats; the plan lists the choices whose loss is at most this much above the lowest. None for 0.002.
            clock: result of `read_clock`; the FLOPs of the budget are then seconds of training, and there are no
                rankings by printed coefficients.

        Raises:
            InputError: `fit` raises this error; no model fits the budget, or the table lacks data that the budget
                needs.
        """
        from .planning.optima import WITHIN
        from .planning.options import check_planned
        from .planning.plan import plan_of
        from .planning.rankings import check_resamples, published_rankings, table_ranking

        first = law if isinstance(law, Law) else law_of(law, "plan")
        check_planned(first, budget.flops)
        check_resamples(resamples)
        within = WITHIN if within is None else within
        fits = self.fit(first, level=level, huber=huber)
        fits = fits.better_form() if law is None else fits
        found = fits.law, fits.fits, fits.not_fitted
        with naming(self.paths):
            rankings = [table_ranking(*found, budget, tokens, level, resamples, within, clock)]
        rankings += published_rankings(budget, tokens, within) if published and clock is None else []
        return plan_of(budget, tokens, level, rankings, named(self.paths), self.loss, self.remarks)

    def next_run(
        self,
        number: str,
        n: float | None = None,
        experts: float | None = None,
        router: str | None = None,
        law: str | Law = "routed-bounded",
        level: float = LEVEL,
        flops: float = math.inf,
        tokens: float | None = None,
    ) -> "NextRuns":
        """Return the possible next runs, sorted by the interval of a number after each run, narrowest first.

        Args:
            number: "prediction", which takes n, and experts and tokens if the law uses them; "slope", which takes n
                (default: the largest size); or a coefficient or derived number of the law.
            n, experts: N and E.
            router: router_type; not needed if the table has only one.
            law: a law of the loss that uses N, and perhaps E and tokens, as for `fit`.
            level: confidence level of the interval, between 0 and 1.
            flops: largest cost of a run.
            tokens: D.

        Raises:
            InputError: `fit` raises this error; the law has no such number, or every run costs more than `flops`.
        """
        from .planning.next_run import FLAGS, propose

        law = law_of(law, "plan --next") if isinstance(law, str) else law
        selections = of_router(self.selections(law.axes), router)
        if len(selections) != 1:
            there = ", ".join(selection.router for selection in selections)
            raise InputError(f"--router is missing; the table has several: {there}")
        [fit] = self.fit(law, selections[0].router, level)
        at = dict(zip(FLAGS, (n, experts, tokens), strict=True))
        try:
            return propose(fit, named(self.paths), number, at, flops, level)
        except ValueError as error:
            raise InputError(f"{named(self.paths)}: router {fit.name}: {error}") from None

    def __len__(self) -> int:
        return self.frame["hyper_id"].nunique()

    def __repr__(self) -> str:
        routers = ", ".join(sorted(set(self.frame["router_type"])))
        chosen = "" if self.rows is None else f", rows {self.rows}"
        return f"Runs: {plural(len(self), 'run')} of {named(self.paths)} ({routers}){chosen}, {self.loss}"


WORDS = (
    "pinned down: the interval is narrower than half the value (for E_start, E_max and cut-offs: its ends differ by a"
    " factor of 2 at most); soft: the interval is wider; loose: its ends differ by a factor of more than 10;"
    " not determined: the ends for a coefficient differ by such a factor (for E_start, E_max and cut-offs: by a factor"
    " of a million); extrapolated: the value is for sizes or experts outside the table."
)

AT_ONE = "b and d are values at N = 1, far below every model; judge routing by its slopes at trained sizes"

WHOLE = 3
"""Up to this many tasks are printed with all intervals; with more tasks, each has one line."""


@shown_as(lambda fits: fits_blocks(fits))
class Fits(Sequence):
    """The fits of a law to the routers or the tasks of a table.

    Attributes:
        law: the law, with the options of its fit
        fits: one for each router or task
        not_fitted: {router or task: reason}
        remarks: excluded rows of the table, and estimated columns
        where: name of the table in messages
        loss: column of the loss; "" for laws that are not of the loss
    """

    def __init__(self, law: Law, fits: list[Fit], not_fitted: dict[str, str], remarks, where: str, loss: str = ""):
        self.law, self.fits, self.not_fitted = law, fits, not_fitted
        self.remarks, self.where, self.loss = list(remarks), where, loss

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, key: int | str) -> Fit:
        if isinstance(key, str):
            matches = [fit for fit in self.fits if fit.name == key]
            if not matches:
                raise KeyError(f"{key}: not fitted; available: {', '.join(fit.name for fit in self.fits)}")
            return matches[0]
        return self.fits[key]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def better_form(self) -> "Fits":
        """Return the fits of the same law with a floor if they predict left-out sizes better, else these fits."""
        without, with_floor = left_out_errors(self.fits) or (0.0, 0.0)
        if not with_floor < without:
            return self
        fits = [fit.floored for fit in self.fits]
        return Fits(fits[0].law, fits, self.not_fitted, self.remarks, self.where, self.loss)

    @cached_property
    def cautions(self) -> dict[str, list[str]]:
        """Possible hidden errors of the fits, each with its routers."""
        return once((fit.name, fit.cautions) for fit in self.fits)

    def predict(
        self, n: float | None = None, experts: float | None = None, level: float | None = None, **at: float
    ) -> Predictions:
        """Return the prediction of each fit at one point; arguments as `Fit.predict`."""
        point = point_of(self.law, {"dense_parameters": n, "num_experts": experts} | at)
        return predict_all(self, point, self.fits[0].level if level is None else level)

    def plot(self):
        """Draw each fit in its own panel. Return the matplotlib figure."""
        return plot_fits(self)

    def to_dict(self) -> dict:
        """Return the output of `routelaws fit --json`.

        Returns:
            {"law", "measured", "loss_column", "remarks", "not_fitted": [{"router" or "task", "reason"}], "fits": [of
            `Fit.to_dict`]}.
        """
        return plain(head_of(self, self.not_fitted)) | {"fits": [fit.to_dict() for fit in self.fits]}


def fits_blocks(fits) -> list[Block]:
    law = fits.law
    blocks = [*law_lines(fits), *fits.remarks]
    if words := choice_words(fits):
        takes = "give predict and plan the better one by --law"
        if law.name == BOUNDED:
            form = "better form" if len({*left_out_errors(fits.fits)}) > 1 else "form without a floor"
            takes = f"predict and plan take the {form}, and --law forces one"
        blocks.append(f"{words}; {takes}")
    if law.measured == "accuracy" and len(fits) > WHOLE:
        heads = ["fit of", "rows", *fits[0].best.coefficients._fields, *errors_of(fits[0])]
        rows = [
            [fit.name, str(fit.best.rows), *(figure(value, ".3g") for value in fit.best.coefficients)]
            + [*errors_of(fit).values()]
            for fit in fits
        ]
        blocks += [Table(heads, rows, "best fits"), "for intervals, use --json, or --task with one task"]
    else:
        blocks += [block for fit in fits for block in fit_blocks(fit)]
    blocks += warning_lines(fits.not_fitted, fits.cautions)
    if any(item.words for fit in fits for item in fit.intervals) and fits.loss:
        blocks.append(WORDS)
    if any(fit.errors is not None and fit.method is None for fit in fits):
        blocks.append("--intervals all prints every kind of interval")
    if any(fit.huber is not None for fit in fits):
        blocks.append("with --huber there are no intervals; without it there are")
    if any(fit.slopes for fit in fits):
        blocks.append(AT_ONE)
    return blocks + floor_lines(law, fits)


def fit_table(
    law: Law,
    paths: Sequence[Path],
    choice: RowChoice,
    level: float = LEVEL,
    huber: float | None = None,
    router: str | None = None,
    tell: Callable | None = None,
) -> Fits:
    """Fit a law of the loss, of accuracy or of leverage to tables.

    Args:
        paths: paths of tables; for laws that are not of the loss, a single path.
        choice: loss, rows and tasks.
        level, huber, router, tell: as in `Runs.fit`.

    Raises:
        InputError: `Runs.fit` raises this error; there is no table or there are too many; no task or router has a fit.
    """
    if not paths:
        raise InputError("no table is given; give a results table, or the folder of a run or sweep")
    if law.measured == "loss":
        runs = read(paths).counting_embeddings(choice.embeddings).where(choice.rows).of_loss(choice.loss)
        return runs.fit(law, router, level, huber, tell, choice.intervals, **choice.options)
    if len(paths) > 1:
        raise InputError(f"{len(paths)} tables are given; a law of {law.measured} takes one; give one table")
    from .accuracy_rows import read_groups

    check_huber(law, huber)
    groups, reasons, remarks = read_groups(law, paths[0], choice)
    fits, where = [], named(paths)
    for number, rows in enumerate(groups, 1):
        if tell is not None:
            tell(f"fitting {rows.label}, {number} of {len(groups)}")
        try:
            fits.append(Fit(rows, law, level, huber, choice.intervals))
        except ValueError as error:
            reasons[rows.label] = str(error)
    if not fits:
        raise InputError(*(f"{where}: {in_short(of, 7)}: {reason}" for reason, of in by_reason(reasons).items()))
    return Fits(law, fits, reasons, remarks, where)


def with_options(law: Law, options: dict | None) -> Law:
    """Return a law with options of its fit. Raise `InputError` for an unknown option."""
    try:
        return law.with_options(**(options or {}))
    except ValueError as error:
        raise InputError(*str(error).split("\n")) from None
