"""One law on the rows of one router or task: coefficients, intervals, held-out errors, misfit, cautions.

    1. ROWS       `Rows`        the columns of a law (`rows.py`, `accuracy_rows.py`)
    2. FIT        `Fit`         the law; other results are computed on first use and cached
    3. KNOWN      `is_known`    whether the rows determine the law (`is_determined`) and each of its coefficients
    4. DOUBT      `misfit_of`   the residuals; `Fit.cautions`: possible hidden errors
    5. ROUTERS    `fit_each`    the fit of each router, or the reason why it has none

Each law has its own intervals for independent errors (`Law.intervals`). `Fit.errors` tells from the residuals whether
they need to be wider (`robust_intervals.py` of the reference). A fit with Huber's criterion has no intervals, because
it assumes no distribution. `Fit.least_squares` is a fit by least squares for comparison.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from routelaws.reference.laws import Range
from routelaws.reference.laws.confidence.robust_intervals import (
    METHODS,
    Errors,
    direction,
    factor,
    row_errors,
    stretched,
    tangent,
)
from routelaws.reference.laws.confidence.uncertainty import _check_level

from ..errors import InputError
from ..laws.catalogue import LAWS, Law
from ..laws.catalogue import Fit as LawFit
from ..laws.held_out import HeldOut, leave_groups_out, leave_one_group_out, leave_one_out
from ..tables.schema import DENSE
from ..tables.selection import RouterRows
from ..wording import by_reason, plural
from .blocks import NOT_DETERMINED, Block, Notes, Table, figure, shown_as, span, verdict
from .encoding import fit_dict, plain
from .floor import FormErrors, form_of, forms_left_out, forms_table, left_out_errors
from .misfit import Misfit, is_determined, is_known, misfit_lines, misfit_of, sizes_of, steepness, warnings
from .plotting import plot_fit
from .prediction import Prediction, point_of, predict
from .row_differences import (
    embedding_doubts,
    left_out_lines,
    proportional_tokens,
    row_differences,
    row_doubts,
    shorter_runs,
)
from .rows import Rows, rows_of_runs

LEVEL = 0.95
"""Default confidence level of every interval."""

SIZE = "dense_parameters"
"""The column of sizes N, for laws with slopes."""

NOT_WHOLE = (
    "these rows do not determine the whole law: some coefficients can grow together without limit, and the law still "
    "fits equally well (see the intervals of the slopes). A best fit is printed only if both ends of its "
    "interval are finite, and close enough. Predictions within the range of the data remain valid"
)

IN_DOUBT = "N in doubt"
"""The precision of a coefficient if a caution doubts what N counts; an interval by a wrong N can be wrong."""

KINDS = {"profile": "for independent errors", "size": "by size", "hc3": "for uneven errors (HC3)"}
"""Printed names of `robust_intervals.METHODS`."""

MOST_HUBER = 1e6
"""The largest delta of Huber's terms, in log10 units; a smaller delta already gives least squares."""


class Coefficient(float):
    """A fitted number that prints "(not determined)" if the rows do not determine it (see `Fit.is_found`)."""

    def __new__(cls, value: float, determined: bool):
        number = super().__new__(cls, value)
        number.determined = determined
        return number

    def __repr__(self) -> str:
        return super().__repr__() + f" ({NOT_DETERMINED})" * (not self.determined)


@shown_as(lambda fit: fit_blocks(fit))
class Fit:
    """A law, fitted to the rows of one router or of one task.

    Args:
        rows: result of `rows_of_runs`, or rows from `accuracy_rows`.
        law: a law of the catalogue, or its name.
        level: confidence level of the intervals, between 0 and 1.
        huber: delta of Huber's terms, in log10 units or the units of the fitted quantity; None for the law's own
            criterion, with intervals.
        method: method of the intervals (`robust_intervals.METHODS`), or "all" to print each; None for the method that
            suits the residuals.

    Raises:
        ValueError: the rows do not determine the law, the law has no Huber fit, or the fit of a registered law lacks a
            field.
    """

    def __init__(
        self, rows: Rows, law: str | Law, level: float = LEVEL, huber: float | None = None, method: str | None = None
    ):
        law = LAWS[law] if isinstance(law, str) else law
        self.rows, self.law = rows, law.with_options(**rows.options)
        self.level, self.huber, self.method, self.unfloored = level, huber, method, None
        check_huber(self.law, huber)
        _check_level(level)
        self.best = fitted(self.law, rows.columns, rows.measured, huber)

    @property
    def name(self) -> str:
        """The printed name of the router or task."""
        return self.rows.label

    @property
    def status(self) -> str:
        """The status of the optimum: interior, or the edge at which it lies."""
        return self.best.status

    @property
    def refitted(self) -> Law:
        """The law, whose fits to other rows have the criterion of this one."""
        return self.law if self.huber is None else self.law._replace(fit=partial(self.law.fit, huber=self.huber))

    @property
    def rmsle(self) -> float:
        """The root mean squared difference of log10 losses; for accuracies, of the fitted quantity."""
        return self.best.rmsle

    @property
    def coefficients(self) -> dict:
        """The fitted coefficients by name, each a `Coefficient`; an array for a law with one line per size."""
        values = self.best.coefficients._asdict()
        return {
            name: value if np.ndim(value) else Coefficient(value, self.is_found(name, float(value)))
            for name, value in values.items()
        }

    @cached_property
    def intervals(self) -> list[Range]:
        """Coefficients and derived numbers with their intervals; [] with Huber's criterion."""
        doubtful = self.rows.runs is not None and bool(embedding_doubts(self.law, self.rows.runs.frame))
        return [item._replace(words=self._words(item, doubtful)) for item in self.intervals_by(self.method)]

    @cached_property
    def _profiles(self) -> list[Range]:
        if self.huber is not None:
            return []
        return self.law.intervals(self.best, self.rows.columns, self.rows.measured, self.level)

    def intervals_by(self, method: str | None) -> list[Range]:
        """Return the intervals of one of `METHODS`; None for the method that suits the residuals."""
        if self.errors is None:
            return self._profiles
        items = [self.stretched(item, direction(self.law, self.best, item), method) for item in self._profiles]
        slope = next((item for item in items if item.name == "c"), None)
        crossed = slope is not None and slope.low <= 0  # then there may be no cut-off
        return [item._replace(high=math.inf) if crossed and item.name.endswith("_cutoff") else item for item in items]

    @cached_property
    def errors(self) -> Errors | None:
        """The errors of the rows; None with Huber's criterion, or for a law with intervals of its own kind."""
        if self.huber is not None:
            return None
        sizes = self.rows.columns[0] if self.rows.runs is None else sizes_of(self.rows.runs)
        return row_errors(self.law, self.best, self.rows.columns, self.rows.measured, sizes)

    def stretched(
        self, item: Range, gradient, method: str | None = None, level: float | None = None, run: bool = False
    ) -> Range:
        """Return an interval of the law for the errors of the rows; arguments as in `robust_intervals.factor`."""
        if gradient is None:
            return item
        method = method if method in METHODS else None
        wider = factor(self.errors, gradient, level or self.level, method, run)
        return stretched(self.law, item, wider, float(self.rows.measured.min()))

    def turns(self, points: Sequence) -> np.ndarray:
        """Return the derivatives [points, p] of log10 L at points by the coefficients."""
        return tangent(self.law, self.best, np.array(points, dtype=np.float64).T)

    def dense_equivalents(self, points: Sequence[tuple[float, float]], level: float) -> list[Range]:
        """Return the size of the dense model with the loss of each point (N, E), E > 1, with its interval."""
        items = self.law.dense_equivalents(self.best, self.rows.columns, self.rows.measured, points, level)
        known = [i for i, item in enumerate(items) if self.errors is not None and 0 < item.value < math.inf]
        if known:
            turns = self.turns([*(points[i] for i in known), *((items[i].value, 1.0) for i in known)])
            equal = turns[: len(known)] - turns[len(known) :]  # equal losses move together
            for i, turn in zip(known, equal, strict=True):
                items[i] = self.stretched(items[i], turn, self.method, level)
        return items

    @property
    def method_words(self) -> list[str]:
        """A sentence on the method of the intervals, and the reason for it."""
        if self.errors is None:
            return []
        chosen = f"{KINDS[self.errors.method]}, because {self.errors.reason}"
        if self.method in METHODS:
            return [f"intervals: {KINDS[self.method]}, as chosen by --intervals; by default they are {chosen}"]
        return [f"intervals: {chosen}"]

    def _words(self, item: Range, doubtful: bool) -> str:
        """Return the words of an interval: one rule for `is_found`, commands, reports and JSON."""
        words = verdict(item)
        if item.at is not None or is_known(item.name, item.value, words):
            return IN_DOUBT if doubtful else words
        return words.replace("loose", NOT_DETERMINED) + f", {IN_DOUBT}" * doubtful

    @cached_property
    def slopes(self) -> list[Range]:
        """The slopes of log10 L against log10 E, one for each size; [] with Huber's criterion or without E."""
        if self.huber is not None or self.law.slopes is None or self.law.columns[0] != SIZE:
            return []
        items = self.law.slopes(self.best, self.rows.columns, self.rows.measured, self.level)
        return [self.stretched(item, direction(self.law, self.best, item), self.method) for item in items]

    @property
    def cutoff(self) -> tuple[str, float] | None:
        """The name and value of the size above which routing stops helping, for laws that have one."""
        return None if self.law.cutoff is None else self.law.cutoff(self.best)

    @cached_property
    def least_squares(self) -> LawFit | None:
        """With Huber's criterion, the fit by least squares for comparison."""
        if self.huber is None or self.rows.runs is None:
            return None
        return self.law.fit(*self.rows.columns, self.rows.measured)

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The held-out error of each row; for a task, of each value of the first column."""
        if self.huber is not None:
            return None
        if self.rows.runs is not None:
            return leave_one_out(self.law, self.rows.columns, self.rows.measured)
        return leave_one_group_out(self.law, self.rows.columns, self.rows.measured, self.rows.columns[0])

    @cached_property
    def held_out_size(self) -> HeldOut | None:
        """The held-out errors of the runs of each size N; None for laws that are not for the loss."""
        if self.huber is not None or self.rows.runs is None:
            return None
        return self._left_out[0]

    @cached_property
    def _left_out(self) -> list[HeldOut]:
        """The held-out errors of each size and, for a law in N and E, of the rows with the largest E."""
        columns, loss = self.rows.columns, self.rows.measured
        divisions = [sizes_of(self.rows.runs)]
        if self.law.columns[1:2] == ("num_experts",):
            divisions.append(np.where(columns[1] == columns[1].max(), 1.0, np.nan))
        return leave_groups_out(self.law, columns, loss, divisions)

    @property
    def experts_out(self) -> float:
        """The RMSLE of the rows with the largest E by the law fitted to all other rows; NaN for a law without E."""
        return self._left_out[1].rmsle if len(self._left_out) > 1 else math.nan

    @cached_property
    def floored(self) -> "Fit | None":
        """The fit of the same law with a floor; None if there is no such law, or the rows do not determine it.

        Three sizes cannot test a floor: a level, a power and a floor fit any three falling losses.
        """
        if not self.law.floored or self.huber is not None or self.rows.runs is None:
            return None
        if np.unique(sizes_of(self.rows.runs)).size < 4:
            return None
        try:
            floored = Fit(self.rows, LAWS[self.law.floored], self.level, None, self.method)
        except ValueError:
            return None
        floored.unfloored = self
        return floored

    @property
    def other(self) -> "Fit | None":
        """The same law with a floor or, for a fit from `floored`, without one."""
        return self.unfloored or self.floored

    @cached_property
    def forms_left_out(self) -> list[np.ndarray]:
        """The errors [n] of left-out sizes without and with a floor (see `floor.forms_left_out`)."""
        return forms_left_out(self)

    @property
    def floor_helps(self) -> bool:
        """Whether the same law with a floor predicts left-out sizes better. It needs four sizes to be tested."""
        without, with_floor = left_out_errors([self]) or (0.0, 0.0)
        return with_floor < without

    @cached_property
    def forms(self) -> list[FormErrors]:
        """The law without and with a floor; [] if `floored` is None."""
        return [] if self.floored is None else [form_of(self), form_of(self.floored)]

    @cached_property
    def determined(self) -> bool:
        """Whether the rows determine the whole law (see `is_determined`). `is_found` tests one coefficient."""
        if self.rows.runs is None:
            return True
        known = self.rows.columns, self.rows.measured, self.best
        return is_determined(self.slopes or steepness(self.law, *known, LEVEL))

    @cached_property
    def misfit(self) -> Misfit | None:
        """The misfit of the law; None for laws that are not for the loss."""
        return None if self.rows.runs is None else misfit_of(self)

    @cached_property
    def far(self) -> np.ndarray:
        """The rows that are runs far from the law, [n] booleans."""
        return np.isin(self.rows.runs.frame["hyper_id"], [run.hyper_id for run in self.misfit.outliers])

    @cached_property
    def cautions(self) -> list[str]:
        """Sentences on possible hidden errors of the fit."""
        design = proportional_tokens(self.law.columns, self.rows.columns, self.best.coefficients)
        if self.rows.runs is None:
            return [*self.rows.remarks, *(entry.words for entry in design), *_optimum_words(self)]
        differing = row_differences(self.law, self.rows) + row_doubts(self.rows.runs, self.rows.loss) + design
        differing += embedding_doubts(self.law, self.rows.runs.frame)
        shorter = [] if "tokens" in self.law.columns else shorter_runs(self.rows.runs.frame)
        huber = {"huber": self.huber is not None, "takes_huber": self.law.takes_huber}
        return [*self.rows.remarks, *warnings(differing, shorter, self.misfit, self.rmsle, **huber)]

    def is_found(self, name: str, value: float) -> bool:
        """Return whether the rows determine a coefficient or a cut-off, away from the edges.

        The interval of the coefficient decides. With Huber's criterion there are no intervals, and `determined`
        decides.
        """
        if f"{name} at" in self.status or math.isnan(value):
            return False
        if math.isinf(value) and not name.endswith("_cutoff"):
            return True  # the best fit has no limit E_max
        interval = self.interval(name)
        return self.determined if interval is None else is_known(name, value, interval.words)

    def is_known(self, name: str, value: float) -> bool:
        """Return whether a coefficient or a cut-off is finite, with a narrow enough interval."""
        interval = self.interval(name)
        if interval is None:
            return self.is_found(name, value) and math.isfinite(value)
        return f"{name} at" not in self.status and is_known(name, value, interval.words)

    def interval(self, name: str) -> Range | None:
        """Return the interval of a coefficient or derived number; None without an interval."""
        return next((item for item in self.intervals if item.name == name and item.at is None), None)

    def predict(
        self, n: float | None = None, experts: float | None = None, level: float | None = None, **at: float
    ) -> Prediction:
        """Return the prediction at one point.

        Args:
            n: N, dense parameters.
            experts: E, experts of a routed layer; 1 is a dense model.
            level: confidence level of the intervals; None for the fit's level.
            at: other columns of the law by name, such as tokens=3e11.

        Raises:
            InputError: a column is missing, out of range, or not of this law; or the law is undefined at the point.
        """
        point = point_of(self.law, {"dense_parameters": n, "num_experts": experts} | at)
        return predict(self, point, self.level if level is None else level)

    def plot(self, panel=None):
        """Draw the rows and the law, loss against the first column. Return the matplotlib axes."""
        return plot_fit(self, panel)

    def to_dict(self) -> dict:
        """Return the fit as JSON values (see `encoding`).

        Returns:
            {"router", or "task" and "training_set"; "rows", "left_out": [{"hyper_id", "reason", "run"}], "status",
            "criterion", "objective", "rmsle", "determined", "coefficients": {name: coefficient, or a list with an entry
            for each "N"}, "derived": {"N_cutoff": coefficient, "slopes": [{"N", ...}]}, "method": {"name", "reason"} of
            the intervals or null, "held_out": {kind of left-out rows: RMSLE}, "with_floor": {"better": whether it
            predicts left-out sizes better, "forms": [`floor.FormErrors` without and with it]} or null, "misfit",
            "cautions"}, and "least_squares": {"coefficients", "rmsle"} with Huber's criterion. Residuals in "misfit"
            are log10 of the measured loss minus log10 of the law's loss.
        """
        return plain(fit_dict(self))


def fit_blocks(fit) -> list[Block]:
    """Return the blocks of one `Fit`: coefficients, slopes, residuals and excluded runs."""
    (kind, error), *others = errors_of(fit).items()
    error += "" if fit.least_squares is None else f" (by least squares {figure(fit.least_squares.rmsle, '.5f')})"
    errors = f"{kind} {error}" + "".join(f"; {name} {cell}" for name, cell in others)
    blocks: list[Block] = [_coefficients_table(fit), Notes([*fit.method_words, errors])]
    changed = fit.floored is not None and fit.floored.best.coefficients.L0 > 0
    if changed:
        blocks.append(forms_table(fit.forms, fit.name))
    elif fit.floored is not None:
        blocks.append(f"{fit.name}: the best floor L0 is 0 nats ({span(fit.floored.interval('L0'))})")
    if not fit.determined:
        blocks.append(f"{fit.name}: {NOT_WHOLE}.")
    if fit.slopes:
        rows = [[f"{item.at:,.0f}", figure(item.value, ".4f"), span(item, ".4f"), item.words] for item in fit.slopes]
        heads = ["N", "b + c log10 N", f"{100 * fit.level:g} % interval", "precision"]
        above = "(L - L0)" if fit.law.has_floor else " L"
        title = f"{fit.name}: change of log10{above} per tenfold effective experts"
        blocks.append(Table(heads, rows, title, words=(3,)))
    lines = [] if fit.misfit is None else misfit_lines(fit.misfit, with_largest=not changed)
    lines += left_out_lines(fit.rows.left_out)
    return [*blocks, Notes(lines)] if lines else blocks


def _title(fit) -> str:
    title, rows = f"{fit.name}: {fit.best.rows} rows", fit.rows
    if missing := rows.measured.size - fit.best.rows:
        title += f" ({plural(missing, 'more row')} not used: the accuracy is too close to guessing or to 1)"
    if rows.blank:
        title += f" ({plural(rows.blank, 'more row')} not used: a cell is blank)"
    if "guess_rate" in rows.options:
        title += f", guess rate {rows.options['guess_rate']:g}"
    return f"{title}, optimum: {fit.status}"


def _coefficients_table(fit) -> Table:
    worded = any(item.words for item in fit.intervals)
    heads = ["", "best fit"] + [f"{100 * fit.level:g} % interval"] * bool(fit.intervals) + ["precision"] * worded
    heads += ["by least squares"] * (fit.least_squares is not None)
    others = {name: fit.intervals_by(name) for name in METHODS if fit.method == "all" and fit.errors is not None}
    heads += [KINDS[name] for name in others]
    rows = [
        [f"{item.name} at N = {item.at:,.0f}", figure(item.value), span(item)]
        for item in fit.intervals
        if item.at is not None
    ]
    values = {name: float(value) for name, value in fit.coefficients.items() if np.ndim(value) == 0}
    for name, value in (values | dict([fit.cutoff] if fit.cutoff else [])).items():
        interval = fit.interval(name)
        infinite = interval is not None and interval.low == math.inf
        row = [name, figure(value) if infinite or fit.is_found(name, value) else NOT_DETERMINED]
        if fit.intervals:
            row.append("" if interval is None else span(interval))
        if worded:
            row.append("" if interval is None else interval.words)
        if fit.least_squares is not None and name in values:
            row.append(figure(float(getattr(fit.least_squares.coefficients, name))))
        row += [span(item) for items in others.values() for item in items if item.name == name]
        rows.append(row)
    return Table(heads, rows, _title(fit), words=(heads.index("precision"),) if worded else ())


def errors_of(fit) -> dict[str, str]:
    """Return the errors of a fit on its rows and on held-out rows, with their printed names."""
    kind = "RMSE" if fit.law.measured == "accuracy" else "RMSLE"
    digits = ".4f" if fit.rows.runs is None else ".5f"
    errors = {kind: figure(fit.best.rmse if kind == "RMSE" else fit.rmsle, digits)}
    if fit.rows.runs is None:
        kinds = {f"each value of {fit.law.columns[0]} left out": fit.held_out}
    else:
        kinds = {"leave one out": fit.held_out, "leave one size out": fit.held_out_size}
    return errors | {name: _held_out_cell(each, digits) for name, each in kinds.items() if each is not None}


def _held_out_cell(held_out: HeldOut, digits: str) -> str:
    missing = held_out.errors.size - held_out.predicted
    note = f" ({missing} of {held_out.errors.size} rows could not be predicted)" if missing else ""
    return figure(held_out.rmsle, digits) + note


def check_huber(law: Law, huber: float | None) -> None:
    """Raise `InputError` if --huber is out of range, or if the law has no fit with Huber's criterion."""
    if huber is None:
        return
    if not law.takes_huber:
        able = ", ".join(each.name for each in LAWS.values() if each.takes_huber and each.measured == law.measured)
        raise InputError(
            f"--huber {huber:g}: the law {law.name} is fitted only by least squares"
            + (f"; use --huber with one of: {able}" if able else "")
        )
    if not 0 < huber <= MOST_HUBER:
        raise InputError(f"--huber {huber:g} is out of range; use a number above 0 and at most {MOST_HUBER:g}")


def fitted(law: Law, columns, measured: np.ndarray, huber: float | None = None) -> LawFit:
    """Return the fit of a law. Raise ValueError if the fit of a registered law lacks a field."""
    fit = law.fit(*columns, measured) if huber is None else law.fit(*columns, measured, huber=huber)
    missing = [name for name in LawFit._fields if not hasattr(fit, name)]
    if missing:
        raise ValueError(f"the fit of the law {law.name} has no {missing[0]}; needed: {', '.join(LawFit._fields)}")
    return fit


def _optimum_words(fit: Fit) -> list[str]:
    sentences = [] if fit.status == "interior" else [f"the optimum: {fit.status}"]
    if fit.intervals and all(math.isnan(item.low) for item in fit.intervals):
        first = fit.law.columns[0]
        sentences.append(
            f"no intervals: if one value of {first} is left out, too few rows remain to fit the law; add rows"
        )
    return sentences


def fit_some(
    selections: list[RouterRows], loss_column: str, fit: Callable, tell: Callable | None = None
) -> tuple[list, dict[str, str]]:
    """Return the result of `fit_each`. Raise an error if no router has a fit.

    Raises:
        InputError: no router has a fit; the message has a line for each reason, with its routers.
    """
    fits, reasons = fit_each(selections, loss_column, fit, tell)
    if not fits:
        lines = [f"router {', '.join(routers)}: {reason}" for reason, routers in by_reason(reasons).items()]
        raise InputError(*lines)
    return fits, reasons


def fit_each(
    selections: list[RouterRows], loss_column: str, fit: Callable, tell: Callable | None = None
) -> tuple[list, dict[str, str]]:
    """Return the fit of each router, and by router the reasons for no fit."""
    fits, reasons = [], {}
    for number, selection in enumerate(selections, 1):
        if tell is not None:
            tell(f"fitting {selection.router}, {number} of {len(selections)}: the law, intervals, rows left out")
        try:
            losses = selection.frame[loss_column]
            if len(losses) > 1 and losses.nunique() == 1:
                what = f"{loss_column} is {losses.iloc[0]:g} in all {len(losses)} rows"
                raise InputError(f"{what}; a law needs rows with different losses")
            fits.append(fit(selection))
        except ValueError as error:
            left_out = "".join(f"; {line}" for line in left_out_lines(selection.left_out))
            reasons[selection.router] = f"{error}{_perhaps_dense(selection)}{left_out}"
    return fits, reasons


def fit_form(law: str, selection: RouterRows, loss_column: str) -> Fit | str:
    """Return the fit of a law, or the reason for no fit."""
    try:
        return Fit(rows_of_runs(selection, LAWS[law], loss_column), law)
    except ValueError as error:
        return str(error)


def _perhaps_dense(selection: RouterRows) -> str:
    rows = selection.frame[selection.frame["router_type"] == selection.router]
    if selection.router == DENSE or rows.empty or (rows["num_experts"] != 1).any():
        return ""
    found = "row has num_experts 1: if it is" if len(rows) == 1 else "rows have num_experts 1: if they are"
    return (
        f"; its {len(rows)} {found} dense, router_type has to be {DENSE}"
        f" (routelaws convert --map router_type:{selection.router}={DENSE})"
    )
