"""What `routelaws predict` does: fit a law to a table, predict at one point, and say how far to trust that."""

import math
from json import dumps as dump_json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from ..errors import InputError
from ..findings.hull import beyond, extrapolation, inside_hull
from ..findings.law_columns import column_remarks
from ..findings.law_fits import LEVEL, LawFit, check_huber, fit_law, fit_some, predict_law
from ..laws.catalogue import Law
from ..report.cautions import CLEAR, NO_FLOOR, has_no_floor, how_far_off, left_out_lines
from ..report.words import span
from ..tables.released import released_table
from ..tables.schema import to_numbers
from ..tables.several import naming, read_tables
from ..tables.table import RouterRows, of_router, select_rows
from ..tables.units import UNITS_OF, parameters_of
from ..wording import once
from . import measured
from .fit import only_for_accuracy, warnings_of, with_options
from .flags import check_level, refuse
from .laws import law_of, rows_of_released
from .shown import plain
from .terminal import Terminal
from .working import Working

INPUTS = {
    "dense_parameters": ("--n", "N, dense parameters", 0.0), "num_experts": ("--experts", "E, experts", 1.0),
    "teraflops": ("--teraflops", "F, TeraFLOPs of a forward pass of 2,048 tokens", 0.0),
    "utilisation": ("--utilisation", "B, parameters per forward FLOP of one token", 0.0),
}  # fmt: skip
"""The flag, the meaning and the least value of each column of a law; see `_input` for others."""


class Prediction(NamedTuple):
    """What one router's law predicts at one point; losses in nats per token."""

    router: str
    fitted: LawFit
    loss: float
    law: tuple[float, float]  # interval of the law's own value there
    run: tuple[float, float]  # interval of the loss of one more run
    by_size: tuple[float, float] | None  # of the law, by leaving out one size at a time; bounded law, 3 sizes or more
    dense: tuple[float, float, float] | None  # size of the dense model of equal loss, with its interval; bounded law
    warnings: list[str]
    least_squares: float | None = None  # the loss by least squares, beside one by Huber's sum, which has no intervals


class PredictReport(NamedTuple):
    """The predictions of one law at one point."""

    law: str
    loss_column: str
    at: dict[str, float]  # the columns of the law
    level: float
    predictions: list[Prediction]
    remarks: list[str]
    not_fitted: dict[str, str] = {}  # routers that the law cannot be fitted to, and why


def predict_report(
    paths,
    at: dict[str, float | None],
    law: str = "routed-bounded",
    loss_column: str = "loss_validation",
    rows: str | None = None,
    router: str | None = None,
    level: float = LEVEL,
    huber: float | None = None,
    tell=None,
    options: dict | None = None,
) -> PredictReport:
    """Fit a law to a table and predict a loss.

    Args:
        paths: a table or several, see `read_tables`; none for the released table and its rows clark.
        at: the point: the name of a column of the law to its value; None where not given.
        law: as `laws.law_of`.
        loss_column: which loss.
        rows: which rows, see `select_rows`.
        router: one router alone (its router_type); all of the table if None.
        level: of the intervals, between 0 and 1.
        huber: delta in log10 units for the sum of Huber terms instead of least squares; for laws with `takes_huber`;
            then there are no intervals.
        tell: is called with a line on what is being done, if given.
        options: keyword arguments of the fit of the law, such as the floor of `compute`.

    Raises:
        InputError: one line that says what is wrong with the point, the level, the table, or the choice of rows; or why
            no router could be fitted. A router that cannot be does not stop the others.
    """
    asked = with_options(law_of(law, "this table"), options)
    point = _checked(asked, at, level, huber)
    if not paths:
        paths, rows = (released_table(),), rows_of_released(asked, rows)
    frame = read_tables(paths)
    selections = of_router(select_rows(frame, rows, loss_column, axes=asked.axes), router)

    def predicted(selection: RouterRows) -> Prediction:
        return _predict(fit_law(selection, asked, loss_column, huber, level), point, level)

    with naming(paths):
        predictions, not_fitted = fit_some(selections, loss_column, predicted, tell)
    remarks = frame.attrs.get("remarks", []) + column_remarks([each.fitted.selection for each in predictions], asked)
    return PredictReport(asked.name, loss_column, point, level, predictions, remarks, not_fitted)


def _checked(law: Law, at: dict[str, float | None], level: float, huber: float | None) -> dict[str, float]:
    """Return the columns of the law; InputError where a flag is wrong whatever a table says."""
    check_level(level)
    check_huber(law, huber)
    return _point(law, at)


def _input(name: str) -> tuple[str, str, float]:
    """Return what INPUTS holds; of a column that only a registered law has, what follows from its name."""
    return INPUTS.get(name, (f"--at {name}=", name, 0.0))


def _point(law: Law, at: dict[str, float | None]) -> dict[str, float]:
    """Return the columns of the law; InputError where one is missing, out of range, or of another law."""
    wanted = law.columns
    for name in dict.fromkeys([*INPUTS, *at, *wanted]):
        (flag, meaning, least), value = _input(name), at.get(name)
        if value is None and name in wanted:
            raise InputError(f"{flag} is missing: the law {law.name} needs {meaning}")
        if value is not None and name not in wanted:
            flags = ", ".join(_input(column)[0] for column in wanted)
            given = f"{flag}{'' if flag.endswith('=') else ' '}{value:g}"
            raise InputError(f"{given}: the law {law.name} does not take it; needed: {flags}")
        if value is not None and not (math.isfinite(value) and (value > 0 and value >= least)):
            allowed = f"at least {least:g}" if least else "above 0"
            raise InputError(f"{flag} {value:g}: needed: a finite number {allowed}")
        if value is not None and name == "num_experts" and value % 1:
            raise InputError(f"{flag} {value:g}: needed: a whole number")
    return {name: float(at[name]) for name in wanted}


def _predict(fitted: LawFit, point: dict[str, float], level: float) -> Prediction:
    at = tuple(point.values())
    if fitted.least_squares is not None:
        return _predict_without_intervals(fitted, point)
    said, law, known = predict_law(fitted, at, level), fitted.law, (fitted.fit, fitted.columns, fitted.loss)
    by_size = None if law.by_size is None else law.by_size(*known, at, level)
    worth = None
    if law.dense_equivalent is not None and fitted.misfit.rise is None:  # else no dense size stands for a loss
        worth = law.dense_equivalent(*known, at, level)
    dense = None if worth is None else (worth.value, worth.low, worth.high)
    return Prediction(fitted.selection.router, fitted, *said, by_size, dense, _warnings(fitted, point))


def _predict_without_intervals(fitted: LawFit, point: dict[str, float]) -> Prediction:
    """Return what a fit by Huber's sum predicts, and least squares beside it."""
    at, unknown = [np.array([value]) for value in point.values()], (math.nan, math.nan)
    loss, plain_loss = (float(fitted.law.predict(fit, *at)[0]) for fit in (fitted.fit, fitted.least_squares))
    warnings = _warnings(fitted, point)
    return Prediction(fitted.selection.router, fitted, loss, unknown, unknown, None, None, warnings, plain_loss)


def _warnings(fitted: LawFit, point: dict[str, float]) -> list[str]:
    """Return in words why a prediction leans on the form of the law, and not on runs near it."""
    at = tuple(point.values())
    warnings = extrapolation(beyond(list(point), fitted.columns, at), inside_hull(fitted.columns, at))
    warnings += warnings_of(fitted) + _bends(fitted, point)
    if not fitted.determined:
        warnings.append("the runs do not determine the law's coefficients; inside the data it predicts all the same")
    return warnings


def _bends(fitted: LawFit, point: dict[str, float]) -> list[str]:
    """Return a warning where the misses of the law bend with N and the point lies outside the sizes of the rows."""
    found, sizes = fitted.misfit, [entry.size for entry in fitted.misfit.sizes]
    size = point.get("dense_parameters")
    if found.bend is None or found.bend.test.p >= CLEAR or size is None or sizes[0] <= size <= sizes[-1]:
        return []
    said = "the misses of the law bend with log N"
    if found.largest is not None:
        said += f"; fitted to the smaller sizes it predicts the largest, N = {found.largest.size:,.0f},"
        said += f" {how_far_off(found.largest)}"
    return [f"{said}: the intervals, which take the law as right, are too narrow here"]


def as_dict(report: PredictReport) -> dict:
    """Return what `routelaws predict --json` prints.

    Returns:
        {"law", "loss_column", "at": {column: number}, "level", "remarks", "not_fitted": [{"router", "reason"}],
        "predictions": [{"router", "rows", "left_out": [{"hyper_id", "reason", "run"}], "loss",
        "law_interval": [low, high], "by_size_interval": [low, high] or None, "run_interval": [low, high],
        "dense_equivalent": {"N", "low", "high"} or None, "status", "determined", "warnings"}]}. An infinite end is
        None. By Huber's sum there are no intervals, and "least_squares_loss" besides.
    """
    return {
        "law": report.law,
        "loss_column": report.loss_column,
        "at": report.at,
        "level": report.level,
        "remarks": report.remarks,
        "not_fitted": [{"router": router, "reason": reason} for router, reason in report.not_fitted.items()],
        "predictions": [_as_dict(prediction) for prediction in report.predictions],
    }


def _as_dict(prediction: Prediction) -> dict:
    """Return the prediction for one router as the entry of the JSON object."""
    fitted, dense, by_size = prediction.fitted, prediction.dense, prediction.by_size
    found = {
        "router": prediction.router,
        "rows": fitted.fit.rows,
        "left_out": fitted.selection.left_out,
        "loss": plain(prediction.loss),
        "law_interval": [plain(end) for end in prediction.law],
        "by_size_interval": None if by_size is None else [plain(end) for end in by_size],
        "run_interval": [plain(end) for end in prediction.run],
        "dense_equivalent": None if dense is None else dict(zip(("N", "low", "high"), map(plain, dense), strict=True)),
        "status": fitted.fit.status,
        "determined": fitted.determined,
        "warnings": prediction.warnings,
    }
    if prediction.least_squares is not None:
        found["least_squares_loss"] = plain(prediction.least_squares)
    return found


def print_prediction(report: PredictReport, console=None) -> None:
    """Print the predictions for a reader.

    Args:
        report: of `predict_report`.
        console: a rich Console; a new one on standard output if None.
    """

    console = console or Terminal()
    level = f"{100 * report.level:g} %"
    where = ", ".join(f"{_input(name)[1].partition(',')[0]} = {value:,.6g}" for name, value in report.at.items())
    console.print(f"law {report.law}, {report.loss_column}, at {where}", markup=False)
    for remark in report.remarks:
        console.print(remark, markup=False)
    console.print(_table(report, level))
    if any(p.by_size for p in report.predictions):
        console.print("By size allows for errors that runs of one size share; the others take errors as independent.")
    for p in report.predictions:
        if p.dense:
            value, low, high = (f"{size:.3g}" for size in p.dense)
            console.print(f"{p.router}: worth a dense model of N = {value} ({low} to {high})", markup=False)
    if has_no_floor(report.predictions[0].fitted.law, [p.fitted.misfit for p in report.predictions]):
        console.print(NO_FLOOR, markup=False)
    left_out = once((p.router, left_out_lines(p.fitted.selection.left_out)) for p in report.predictions)
    for line, routers in left_out.items():
        console.print(f"{', '.join(routers)}: {line}", markup=False)
    for router, reason in report.not_fitted.items():
        console.print(f"warning ({router}): not fitted, and left out here: {reason}", markup=False)
    for warning, routers in once((p.router, p.warnings) for p in report.predictions).items():
        console.print(f"warning ({', '.join(routers)}): {warning}", markup=False)


def _table(report: PredictReport, level: str):
    """Return the predictions as a table; those by Huber's sum have no intervals, and least squares beside them."""
    from rich.table import Table

    if any(p.least_squares is not None for p in report.predictions):
        table = Table("router", "rows", "loss by Huber's sum", "by least squares")
        for p in report.predictions:
            table.add_row(p.router, str(p.fitted.fit.rows), f"{p.loss:.4f}", f"{p.least_squares:.4f}")
        return table
    sizes = any(p.by_size for p in report.predictions)
    table = Table(
        "router",
        "rows",
        "loss",
        f"{level}, the law",
        *([f"{level}, by size"] if sizes else []),
        f"{level}, one more run",
    )
    for p in report.predictions:
        ends = [p.law, *([p.by_size] if sizes else []), p.run]
        shown = ["" if end is None else span(end, ".4f") for end in ends]
        table.add_row(p.router, str(p.fitted.fit.rows), f"{p.loss:.4f}", *shown)
    return table


def predict(
    tables: tyro.conf.Positional[tuple[Path, ...]] = (),
    law: str = "routed-bounded",
    n: str | None = None,
    experts: int | None = None,
    teraflops: float | None = None,
    utilisation: float | None = None,
    at: tuple[str, ...] = (),
    router: str | None = None,
    published: str | None = None,
    loss: str | None = None,
    rows: str | None = None,
    level: float = LEVEL,
    huber: float | None = None,
    task: tuple[str, ...] = (),
    guess_rate: float | None = None,
    tasks: Path | None = None,
    floor: float | None = None,
    json: bool = False,
) -> None:
    """Predict a loss, an accuracy or a leverage with a law fitted to a table, or with printed coefficients.

    Args:
        tables: A results table, or the folder of a run or sweep, or several; if none is given, the table that the
            paper's authors released, and of it the rows clark. Laws of accuracy take a table of accuracies, or the 104
            released runs of `routelaws downstream`.
        law: Of the loss: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation; compute; with the
            training tokens D, hoffmann or kaplan (dense runs), joint (experts), sparsity or fine-grained (runs of one
            num_experts, the commonest or chosen by --rows). Of accuracy, from a table of accuracies: direct, ratio,
            ceiling, broken, repeated (tasks named TASK pass@K), two-stage-linear, two-stage-logistic or
            two-stage-ratio. Of efficiency leverage: leverage. Or FILE.py:NAME, a law of your own that the file
            registers.
        n: N, dense parameters, such as 1e9, 370M or 4.6B.
        experts: E, experts per routed layer; 1 is a dense model.
        teraflops: F, TeraFLOPs of a forward pass of 2,048 tokens, for routed-utilisation.
        utilisation: B, parameters per forward FLOP of one token, for routed-utilisation.
        at: Other columns of a law, each as NAME=VALUE: tokens, granularity, sparsity, total_parameters,
            active_parameters (with embedding and unembedding), flops, parameters, attempts, activation,
            tian_granularity, or those of a law that was registered. Tokens, parameters and FLOPs may be sizes, such as
            tokens=300B.
        published: Instead of a table, printed coefficients by this name: routed-bounded S-Base, RL-R or Hash; compute
            marin, sparsity abnar, kaplan kaplan, hoffmann besiroglu or hoffmann, fine-grained E=64, "E=64, validation"
            or E=16, joint joint, leverage tian.
        router: One router_type alone; all of the table if not given.
        loss: Column of the loss; loss_validation if not given. Two-stage laws of accuracy: the text whose loss they go
            through, loss_validation or else the first of the table.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
            "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
            if not given, those with k = 1 and the commonest routing frequency, of every seed.
        level: Confidence level of the intervals.
        huber: Fit by the sum of Huber terms with this delta, which a few wrong runs cannot pull away, as in `routelaws
            fit`; the prediction then has no interval, and of laws of the loss that by least squares stands beside it.
        task: Laws of accuracy: these tasks alone, as the table names them behind acc_; all if not given.
        guess_rate: Laws of log accuracy: the share of right answers by guessing. If not given, that of --tasks, of a
            column guess_TASK of the table, or of well-known tasks.
        tasks: A table with the columns task and random_accuracy.
        floor: The loss that no compute goes below, for the law compute; 0 if not given.
        json: Print one JSON object and nothing else.
    """
    asked, options = law_of(law), {} if floor is None else {"floor": floor}
    only_for_accuracy(asked, task=task, guess_rate=guess_rate, tasks=tasks)
    size = None if n is None else parameters_of(n)
    point = {"dense_parameters": size, "num_experts": experts, "teraflops": teraflops, "utilisation": utilisation}
    point = _with_named(point, at)
    if published is not None:
        idle = {"router": router, "loss": loss, "rows": rows, "huber": huber, "task": task or None, "floor": floor}
        idle |= {"guess-rate": guess_rate, "tasks": tasks, "level": None if level == LEVEL else level}
        return _predict_published(asked, published, point, tables, idle, json)
    if asked.measured != "loss":
        refuse({"router": router}, f"it is for laws of the loss; {asked.name} is of {asked.measured}")
        wanted = measured.Asked(tables, loss, rows, huber, task, tasks, guess_rate, options)
        return _predict_measured(asked, wanted, level, point, json)
    loss = loss or "loss_validation"
    with Working("reading the table") as tell:
        report = predict_report(tables, point, law, loss, rows, router, level, huber, tell, options)
    if json:
        print(dump_json(as_dict(report), allow_nan=False))
    else:
        print_prediction(report)


def _predict_published(law: Law, published: str, point: dict, tables: tuple[Path, ...], idle: dict, json: bool) -> None:
    if tables:
        raise InputError("--published stands in the place of a table; give one of both")
    refuse(idle, "printed coefficients have no runs, and no interval")
    found = measured.print_published(law, published, _point(law, point), json)
    if json:
        print(dump_json(found, allow_nan=False))


def _measured_tables(law: Law, tables: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the table of a law of accuracy or leverage; the released runs where none is given."""
    if tables:
        return tables
    if law.measured == "accuracy":
        return (released_table("overtraining_runs.csv"),)
    there = ", ".join(law.published)
    raise InputError(f"the law {law.name} needs a table, or --published with one of: {there}")


def _predict_measured(law: Law, asked: measured.Asked, level: float, at: dict, json: bool) -> None:
    with_options(law, asked.options)
    point = _checked(law, at, level, asked.huber)
    asked = asked._replace(tables=_measured_tables(law, asked.tables))
    with Working("reading the table") as tell:
        report = measured.measured_report(law, asked, level, point, tell)
    if json:
        print(dump_json(measured.as_dict(report), allow_nan=False))
    else:
        measured.print_report(report)


def _with_named(point: dict[str, float | None], texts: tuple[str, ...]) -> dict[str, float | None]:
    """Return a point with the values of texts such as tokens=1e9; InputError where one has its value already."""
    point = dict(point)
    for text in texts:
        name, _, value = text.partition("=")
        if point.get(name) is not None:
            other = _input(name)[0].removesuffix("=")
            raise InputError(f"--at {text}: {other} {point[name]:g} says the same column; give one of both")
        [number], [wrong] = to_numbers([value], UNITS_OF.get(name))
        if wrong or math.isnan(number):
            raise InputError(f"--at {text}: needed: the name of a column and a number, as tokens=1e9")
        point[name] = float(number)
    return point
