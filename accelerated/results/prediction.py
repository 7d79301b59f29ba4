"""`Prediction`: the value of a fit at a point, with intervals and warnings of extrapolation."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range
from routelaws.reference.laws.confidence.robust_intervals import METHODS

from ..errors import InputError
from ..laws.catalogue import Law
from ..wording import by_reason, in_short, once
from .blocks import NOT_DETERMINED, Block, Table, figure, percent, shown_as, span, times
from .encoding import head_of, method_of, named, plain, unknown
from .floor import choice_words
from .misfit import CLEAR, NAMES, floor_lines, how_far_off, rise, warning_lines
from .row_differences import left_out_lines
from .rows import law_lines

INPUTS = {
    "dense_parameters": ("--n", "N, dense parameters", 0.0), "num_experts": ("--experts", "E, experts", 1.0),
    "teraflops": ("--teraflops", "F, TeraFLOPs of a forward pass of 2,048 tokens", 0.0),
    "utilisation": ("--utilisation", "B, parameters per forward FLOP of one token", 0.0),
}  # fmt: skip
"""{column of a law: (flag, meaning, smallest value)}; `input_of` has a default for other columns."""

LETTERS = {
    "dense_parameters": "N", "active_parameters": "N", "total_parameters": "N", "num_experts": "E", "tokens": "D",
    "granularity": "G", "teraflops": "F", "utilisation": "B",
}  # fmt: skip
"""Printed names of columns of laws; other columns are printed under their own names."""

NOT_SURROUNDED = "no runs surround this point, although each coordinate is in the runs' range: an extrapolation"


class Prediction(NamedTuple):
    """The prediction of one fit at one point: a loss in nats per token, an accuracy or a leverage.

    Attributes:
        value: the value of the fit
        law: interval of the law's value
        run: interval of one more run
        dense: size of the dense model of equal loss; only for the bounded law
        least_squares: the loss by least squares, for a fit by Huber's sum (without intervals)
        other: the law's value by the other form, with or without a floor; its name is the law
        cautions: warnings of extrapolation, and possible errors of the fit
    """

    fit: object
    value: float
    law: Range
    run: Range
    dense: Range | None
    least_squares: float | None
    other: Range | None
    cautions: list[str]

    def to_dict(self) -> dict:
        """Return the prediction as JSON values.

        Returns:
            {"router", or "task" and "training_set"; "rows", "left_out", "status", "determined", "value", "intervals":
            {"law", "run", "dense_equivalent"}; "method": {"name", "reason"} of the intervals; "least_squares",
            "other_form": {"law", "value", "low", "high"}, "cautions"}. "dense_equivalent", "method" and "other_form"
            may be null.
        """
        fit, other = self.fit, self.other
        other = other and {"law": other.name, "value": other.value, "low": other.low, "high": other.high}
        return plain(
            named(fit)
            | {"status": fit.status, "determined": fit.determined, "value": self.value}
            | {"intervals": {"law": self.law, "run": self.run, "dense_equivalent": self.dense}}
            | {"method": method_of(fit), "least_squares": self.least_squares, "other_form": other}
            | {"cautions": self.cautions}
        )


@shown_as(lambda found: prediction_blocks(found))
class Predictions(NamedTuple):
    """The predictions of every fit of a table at one point."""

    fits: Sequence
    at: dict[str, float]  # the columns of the law
    level: float
    predictions: list[Prediction]
    not_fitted: dict[str, str]  # {router or task: reason for no fit or no prediction}

    @property
    def where(self) -> str:
        """The point as text."""
        letters = {name: input_of(name)[1].partition(",")[0] for name in self.at}
        return ", ".join(f"{letters[name]} = {value:,.6g}" for name, value in self.at.items())

    def to_dict(self) -> dict:
        """Return the output of `routelaws predict --json`.

        Returns:
            {"law", "measured", "loss_column", "remarks", "not_fitted", "at": {column: number}, "level", "predictions":
            [of `Prediction.to_dict`]}.
        """
        entries = {"at": self.at, "level": self.level, "predictions": [each.to_dict() for each in self.predictions]}
        return plain(head_of(self.fits, self.not_fitted) | entries)


class Beyond(NamedTuple):
    """A coordinate of a point outside the range of the runs."""

    column: str  # column of the law
    value: float
    end: float  # the nearer end of the range

    @property
    def letter(self) -> str:
        return LETTERS.get(self.column, self.column)

    @property
    def times(self) -> float:
        """The ratio of the value to the nearer end: above 1 for large values, below 1 for small values."""
        return self.value / self.end


@shown_as(lambda found: published_blocks(found))
class PublishedPrediction(NamedTuple):
    """The prediction of printed coefficients at a point, without an interval, because their runs are not available."""

    law: Law
    name: str  # name of the coefficients
    at: dict[str, float]
    value: float

    def to_dict(self) -> dict:
        """Return the output of `routelaws predict --published --json`."""
        printed, law = self.law.published[self.name], self.law
        entries = {"law": law.name, "measured": law.measured, "published": self.name, "source": printed.source}
        return plain(entries | {"attested": printed.attested, "at": self.at, "value": self.value})


def predict_published(law: Law, name: str, at: dict[str, float | None]) -> PublishedPrediction:
    """Return the prediction of printed coefficients. Raise `InputError` if the name or a column is wrong."""
    point = point_of(law, at)
    if name not in law.published:
        there = ", ".join(law.published) or "none"
        raise InputError(
            f"--published {name}: the law {law.name} has no printed coefficients of that name; available: {there}"
        )
    columns = [np.array([value]) for value in point.values()]
    value = float(np.asarray(law.predict(law.published[name], *columns))[0])
    return PublishedPrediction(law, name, point, value)


def input_of(name: str) -> tuple[str, str, float]:
    """Return the entry of INPUTS, or a default derived from the name of the column."""
    return INPUTS.get(name, (f"--at {name}=", name, 0.0))


def point_of(law: Law, at: dict[str, float | None]) -> dict[str, float]:
    """Return the columns of a law. Raise `InputError` if a column is missing, out of range, or not of this law."""
    wanted = law.columns
    for name in dict.fromkeys([*INPUTS, *at, *wanted]):
        (flag, meaning, least), value = input_of(name), at.get(name)
        gap = "" if flag.endswith("=") else " "
        if value is None and name in wanted:
            raise InputError(f"{flag} is missing: the law {law.name} needs {meaning}")
        if value is not None and name not in wanted:
            flags = ", ".join(input_of(column)[0] for column in wanted)
            text = f"{flag}{gap}{value:g}"
            raise InputError(f"{text}: the law {law.name} does not use it; leave it out (the law uses {flags})")
        zero = name == "sparsity"  # of a dense model
        most = 1.0 if name in ("activation", "sparsity") else math.inf
        if value is not None and not (math.isfinite(value) and least <= value <= most and (value or zero)):
            allowed = f"of at least {least:g}" if least or zero else "above 0"
            allowed += ", at most 1" * (most == 1)
            raise InputError(f"{flag}{gap}{value:g} is out of range; use a finite number {allowed}")
        if value is not None and name == "num_experts" and value % 1:
            raise InputError(f"{flag} {value:g} is not whole; use a whole number")
    return {name: float(at[name]) for name in wanted}


def predict(fit, point: dict[str, float], level: float) -> Prediction:
    """Return the prediction of a fit at one point.

    Args:
        level: confidence level of the intervals, between 0 and 1.

    Raises:
        ValueError: the law is undefined at the point, or a value is out of range. For example, the law `per-size` is
            defined only at the sizes of its table.
    """
    at, law = tuple(point.values()), fit.law
    if fit.huber is not None:
        return _predict_without_intervals(fit, point)
    [(value, of_law, of_run)] = intervals_at(fit, [at], level)
    dense = None
    if (
        law.dense_equivalents is not None and at[1] > 1 and rise(law, fit.best, fit.rows.columns) is None
    ):  # else no loss has a dense size
        [dense] = fit.dense_equivalents([at], level)
    cautions = [*_extrapolation(fit, point), *fit.cautions, *_doubts(fit, point)]
    cautions += _impossible(fit, of_law, of_run)
    other = None if fit.other is None else intervals_at(fit.other, [at], level)[0][1]._replace(name=fit.other.law.name)
    return Prediction(fit, value, of_law, of_run, dense, None, other, cautions)


def intervals_at(fit, points: Sequence, level: float, method: str | None = None) -> list[tuple[float, Range, Range]]:
    """Return the value of a fit at each point, and two intervals: for the law, and for one more run.

    `method` is one of `METHODS`; None for the method of the fit.
    """
    predicted = fit.law.predict_intervals(fit.best, fit.rows.columns, fit.rows.measured, points, level)
    rows, method = [], method or fit.method
    turns = [None] * len(points) if fit.errors is None else fit.turns(points)
    for turn, (value, *ends) in zip(turns, predicted, strict=True):
        law, run = (Range(name, None, value, *each, "") for name, each in zip(("law", "run"), ends, strict=True))
        if turn is not None:
            law, run = fit.stretched(law, turn, method, level), fit.stretched(run, turn, method, level, run=True)
        rows.append((value, law, run))
    return rows


def predict_all(fits: Sequence, point: dict[str, float], level: float) -> Predictions:
    """Return the predictions of every fit of a table at a point. Undefined predictions are in `not_fitted`.

    Raises:
        InputError: every prediction is undefined; the message gives each reason.
    """
    predictions, reasons = [], dict(fits.not_fitted)
    for fit in fits:
        try:
            predictions.append(predict(fit, point, level))
        except ValueError as error:
            reasons[fit.name] = str(error)
    if not predictions:
        of = "" if fits.law.measured == "accuracy" else "router "
        lines = by_reason(reasons).items()
        raise InputError(*(f"{fits.where}: {of}{in_short(names, 7)}: {reason}" for reason, names in lines))
    return Predictions(fits, point, level, predictions, reasons)


def _predict_without_intervals(fit, point: dict[str, float]) -> Prediction:
    at = [np.array([value]) for value in point.values()]
    value = float(fit.law.predict(fit.best, *at)[0])
    beside = None if fit.least_squares is None else float(fit.law.predict(fit.least_squares, *at)[0])
    sentences = ["with Huber's sum there are no intervals"] if fit.rows.runs is None else []
    cautions = [*_extrapolation(fit, point), *fit.cautions, *_doubts(fit, point), *sentences]
    return Prediction(fit, value, unknown("law", value), unknown("run", value), None, beside, None, cautions)


def _extrapolation(fit, point: dict[str, float]) -> list[str]:
    at, columns = tuple(point.values()), fit.rows.columns[: len(point)]
    return extrapolation(beyond(list(point), columns, at), inside_hull(columns, at))


def _doubts(fit, point: dict[str, float]) -> list[str]:
    cautions = _bends(fit, point)
    if not fit.determined:
        cautions.append(
            "the runs do not determine the law's coefficients; its predictions within the data are still valid"
        )
    return cautions


def _bends(fit, point: dict[str, float]) -> list[str]:
    misfit, size = fit.misfit, point.get("dense_parameters")
    if None in (misfit, size) or misfit.sizes[0].size <= size <= misfit.sizes[-1].size:
        return []
    if misfit.bend is None or misfit.bend.test.p >= CLEAR:
        return []
    sentence = "the residuals of the law are curved in log N"
    if misfit.largest is not None:
        sentence += f"; the law fitted without the largest size (N = {misfit.largest.size:,.0f}) predicts the loss "
        sentence += f"there {how_far_off(misfit.largest.miss)}"
    return [f"{sentence}; the intervals assume that the law is right, so they are too narrow here"]


def _impossible(fit, *intervals: Range) -> list[str]:
    if fit.law.measured != "accuracy":
        return []
    value = intervals[0].value
    if not 0 <= value <= 1:
        return [f"the law gives {value:.4f}, which is not between 0 and 1, so the law does not hold there"]
    if not all(0 <= end <= 1 for item in intervals for end in (item.low, item.high) if np.isfinite(end)):
        return ["an interval extends below 0 or above 1; read that end as 0 or 1"]
    return []


def beyond(names: Sequence[str], columns: Sequence[np.ndarray], at: Sequence[float]) -> list[Beyond]:
    """Return the coordinates of a point outside the range of the runs, in the order of the columns.

    Args:
        columns: columns of the runs, [n] each.
        at: the point, a number for each column.
    """
    outside = []
    for name, column, value in zip(names, columns, at, strict=True):
        low, high = float(np.min(column)), float(np.max(column))
        if value > high * (1 + 1e-9) or value < low * (1 - 1e-9):
            outside.append(Beyond(name, float(value), high if value > high else low))
    return outside


def extrapolation(outside: Sequence[Beyond], surrounded: bool | None) -> list[str]:
    """Return sentences on the extrapolation of a prediction at a point.

    Args:
        surrounded: result of `inside_hull`; None if the runs are not available.
    """
    sentences = []
    for each in outside:
        which = "largest" if each.value > each.end else "smallest"
        far = f"{times(each.times, 3)} times the {which} {each.letter} of the runs ({each.end:g})"
        sentences.append(f"{each.letter} = {each.value:g} is {far}, an extrapolation")
    return sentences or [NOT_SURROUNDED] * (surrounded is False)


_TOUCHING = 1e-7
"""A distance, in standard deviations of the data, or an angle, within which a point lies on the edge of the hull."""


def inside_hull(columns: tuple[np.ndarray, ...], at: tuple[float, ...]) -> bool:
    """Return whether a point lies in the convex hull of the data, in logarithms of the columns that are above 0.

    A linear program tests whether the point is a weighted mean of data points with nonnegative weights. Unlike a
    triangulation, this also works if all points lie on a line. In a plane, the directions to the data decide: they
    leave no gap above 180 degrees.
    """
    points, target = np.array(columns, dtype=np.float64), np.array(at, dtype=np.float64)
    above = np.minimum(points.min(axis=1), target) > 0  # the sparsity of dense runs is 0
    points[above], target[above] = np.log10(points[above]), np.log10(target[above])
    points = np.unique(points, axis=1)
    spread = points.std(axis=1, keepdims=True)
    spread[spread == 0] = 1.0
    away = (points - target[:, None]) / spread
    if len(away) == 2:
        turns = np.sort(np.arctan2(*away))
        gap = float(np.diff(turns, append=turns[0] + 2 * math.pi).max())
        return gap <= math.pi + _TOUCHING or bool((np.hypot(*away) <= _TOUCHING).any())
    from scipy.optimize import linprog  # its import takes longer than a fit

    equal = np.vstack([away, np.ones(points.shape[1])])
    ends = np.append(np.zeros(len(away)), 1.0)
    solution = linprog(np.zeros(points.shape[1]), A_eq=equal, b_eq=ends, bounds=(0, None), method="highs")
    return bool(solution.status == 0)


def prediction_blocks(found) -> list[Block]:
    fits, predictions = found.fits, found.predictions
    if fits.loss:
        blocks: list[Block] = [f"law {fits.law.name}, {fits.loss}, at {found.where}", *fits.remarks]
    else:
        blocks = [*law_lines(fits), *fits.remarks, f"at {found.where}"]
    blocks.append(_predictions_table(found))
    methods = once((each.fit.name, each.fit.method_words) for each in predictions)
    blocks += [f"{in_short(names, NAMES)}: {line}" for line, names in methods.items()]
    for each in predictions:
        if each.dense:
            ends = span(each.dense, ".3g")
            worth = ends if ends == NOT_DETERMINED else f"{figure(each.dense.value, '.3g')} ({ends})"
            blocks.append(f"{each.fit.name}: same loss as a dense model of N = {worth}")
    blocks += _other_lines(predictions) + floor_lines(fits.law, [each.fit for each in predictions])
    left_out = once((each.fit.name, left_out_lines(each.fit.rows.left_out)) for each in predictions)
    blocks += [f"{in_short(names, NAMES)}: {line}" for line, names in left_out.items()]
    return blocks + warning_lines(found.not_fitted, once((each.fit.name, each.cautions) for each in predictions))


def _other_lines(predictions: list[Prediction]) -> list[str]:
    """Return a line on the better form of the law, with the values of the other form."""
    others = [each for each in predictions if each.other is not None]
    if not (others and (words := choice_words([each.fit for each in others]))):
        return []
    values = (
        f"{each.fit.name} {figure(each.other.value, '.4f')} ({span(each.other, '.4f')}{_outside(each)})"
        for each in others
    )
    return [f"{words}; {others[0].other.name} gives {', '.join(values)}; --law forces one form"]


def _outside(prediction: Prediction) -> str:
    """Return text on how far the value of the other form lies outside the interval of the law; "" inside."""
    value, (low, high) = prediction.other.value, prediction.law[3:5]
    if low <= value <= high or math.isnan(low):
        return ""
    side, end = ("below", low) if value < low else ("above", high)
    return f"; {percent(abs(value / end - 1), '.1f')} {side} the interval in the table"


def _predictions_table(found) -> Table:
    fits, predictions = found.fits, found.predictions
    first, measured = ("router", "loss") if fits.loss else ("fit of", fits.law.measured)
    if any(each.least_squares is not None for each in predictions):
        heads = [first, "rows", f"{measured} by Huber's sum", "by least squares"]
        rows = [
            [each.fit.name, str(each.fit.best.rows), f"{each.value:.4f}", figure(each.least_squares, ".4f")]
            for each in predictions
        ]
        return Table(heads, rows)
    level = f"{100 * found.level:g} %"
    others = METHODS if any(each.fit.method == "all" for each in predictions) else ()
    heads = [first, "rows", measured, f"{level}, the law", f"{level}, one more run", *others]
    rows = []
    for each in predictions:
        ends = [each.law, each.run]
        at = [tuple(found.at.values())]
        ends += [intervals_at(each.fit, at, found.level, method)[0][1] for method in others]
        cells = [span(item, ".4f") for item in ends]
        rows.append([each.fit.name, str(each.fit.best.rows), f"{each.value:.4f}", *cells])
    return Table(heads, rows)


def published_blocks(found) -> list[Block]:
    """Return the output of `routelaws predict` for a `PublishedPrediction`."""
    law, printed = found.law, found.law.published[found.name]
    where = ", ".join(f"{column} = {value:,.6g}" for column, value in found.at.items())
    return [
        f"law {law.name}: {law.formula}",
        f"printed coefficients {found.name}: {printed.source}; where the numbers are from: {printed.attested}",
        f"{law.measured} {found.value:.4f} at {where}; no interval, because the runs behind the coefficients are not "
        "available",
    ]
