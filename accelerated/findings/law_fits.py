"""One law fitted to one router's rows, with everything that `fit` and `predict` say about it.

    1. ROWS       `law_columns`     a choice of rows as the columns of a law
    2. FIT        `fit_law`         the law, its intervals, and its errors on rows that were left out
    3. DOUBT      `misfit_of`       where the law misses its own rows, and what these differ in beside N and E
    4. PREDICT    `predict_law`     a loss with two intervals: of the law, and of one more run

Where intervals come from: of the bounded laws from the profile likelihood (`laws/uncertainty.py`), of the linear ones
from Student's t, which is exact for them. A fit with Huber's criterion has none here, since it assumes no distribution.
"""

import math
from typing import NamedTuple

import numpy as np

from ..laws.catalogue import LAWS, Law
from ..laws.fitting import expert_curve
from ..laws.held_out import HeldOut, leave_one_group_out, leave_one_out
from ..laws.uncertainty import Interval, Quantity, profile_intervals, student_quantile, verdict
from ..laws.utilisation import TABLE_TOKENS_PER_STEP, UtilisationCurve, compute_columns
from ..tables.table import RouterRows
from .alike import Difference, Shorter, differences, shorter_runs
from .misfit import Misfit, bend_in_size, beyond_seeds, by_size, largest_size, outliers

LEVEL = 0.95
"""Confidence level of every interval, unless another is asked for."""

AXES = {"dense": "dense", "routed-utilisation": "compute"}
"""What `select_rows` is to choose for a law; "experts" for the others."""

LOGARITHMIC = ("E_start", "E_max", "B_start", "B_max", "N_cutoff", "F_cutoff")
"""Sizes and numbers of experts, which are known well if they are known to a factor."""

OUTLIER = 4.0
"""Beyond how many robust standard deviations of the fit a row is left out in `_steepness`."""

FAR = 10.0
"""How many times the nearer end of a slope's interval the farther one may be in a law that counts as determined."""


class Range(NamedTuple):
    """A number with its interval, as JSON and text show it."""

    name: str  # of the coefficient; or slope
    at: float | None  # the size (N, or F in TeraFLOPs) of a slope
    value: float
    low: float
    high: float
    words: str  # see `laws.uncertainty.verdict`; "" where the interval is exact and needs none


class LawFit(NamedTuple):
    """A law, fitted."""

    selection: RouterRows
    law: Law
    columns: tuple[np.ndarray, ...]  # of the law, [n] each
    loss: np.ndarray  # [n]
    fit: NamedTuple  # of `law.fit`
    ranges: list[Range]  # of the coefficients and of N_cutoff (F_cutoff); empty with Huber's criterion
    slopes: list[Range]  # at each size; for the bounded law in (N, E) only
    held_out: HeldOut | None  # leave one out; None with Huber's criterion, or where the fit fails
    held_out_size: HeldOut | None  # leave one size out
    determined: bool  # the law as a whole, see `is_determined`; a single coefficient by its own interval, `is_known`
    misfit: Misfit
    differences: list[Difference]  # what the rows differ in that the law does not know of
    shorter: list[Shorter]  # runs that end before most others of their size
    least_squares: tuple | None = None  # with Huber's criterion the fit by least squares, to stand beside it


def law_columns(selection: RouterRows, law: Law, loss_column: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return the columns of a law and the loss, [n] each.

    Raises:
        ValueError: as `compute_columns`, for the law in (F, B).
    """
    frame = selection.frame
    loss = frame[loss_column].to_numpy(dtype=np.float64)
    if law.name == "routed-utilisation":
        names = ("flops_per_step", "total_parameter_count")
        flops, total = (frame[name].to_numpy(dtype=np.float64) for name in names)
        return tuple(compute_columns(flops, total, _tokens_per_step(frame))), loss
    names = {"dense_parameters": "dense_parameter_count", "num_experts": "num_experts"}
    return tuple(frame[names[name]].to_numpy(dtype=np.float64) for name in law.columns), loss


def _tokens_per_step(frame) -> np.ndarray:
    """Return [n]: row by row, since a table of released and of own runs says it for its own runs alone."""
    if not {"batch_size", "sequence_length"} <= set(frame.columns):
        return np.full(len(frame), float(TABLE_TOKENS_PER_STEP))
    tokens = frame["batch_size"] * frame["sequence_length"]
    return tokens.fillna(TABLE_TOKENS_PER_STEP).to_numpy(dtype=np.float64)


def fit_law(
    selection: RouterRows, name: str, loss_column: str, huber: float | None = None, level: float = LEVEL
) -> LawFit:
    """Fit a law to the rows of one router.

    Args:
        selection: of `select_rows`.
        name: of the law, a key of LAWS.
        loss_column: which loss.
        huber: delta in log10 units for the sum of Huber terms; bounded laws only.
        level: of the intervals.

    Raises:
        ValueError: the rows do not determine the law, or `huber` is given to a law without that option.
    """
    law = LAWS[name]
    if selection.frame.empty:
        reasons = sorted({run["reason"] for run in selection.left_out})
        raise ValueError(f"no rows are left ({'; '.join(reasons)})")
    columns, loss = law_columns(selection, law, loss_column)
    if huber is not None and not name.startswith("routed-"):
        raise ValueError(
            f"huber: the law {name} is fitted by least squares alone; with huber: routed-bounded and routed-utilisation"
        )
    fit = _fit(law, columns, loss, huber)
    ranges, slopes = ([], []) if huber is not None else _ranges(law, columns, loss, fit, level)
    steepness = slopes or _steepness(law, columns, loss, fit)
    held_out = held_out_size = None
    if huber is None:
        held_out = leave_one_out(law, columns, loss)
        sizes = selection.frame["dense_parameter_count"].to_numpy(dtype=np.float64)
        held_out_size = leave_one_group_out(law, columns, loss, sizes)
    return LawFit(
        selection,
        law,
        columns,
        loss,
        fit,
        ranges,
        slopes,
        held_out,
        held_out_size,
        is_determined(steepness),
        misfit_of(selection, law, columns, loss, fit, held_out_size, huber),
        differences(selection.frame, AXES.get(name) == "compute"),
        shorter_runs(selection.frame),
        None if huber is None else law.fit(*columns, loss),
    )


def _fit(law: Law, columns, loss, huber: float | None):
    return law.fit(*columns, loss) if huber is None else law.fit(*columns, loss, huber=huber)


def misfit_of(selection: RouterRows, law: Law, columns, loss, fit, held_out_size, huber: float | None) -> Misfit:
    """Return how a law misses its own rows; the F tests are those of least squares and are None with Huber's sum."""
    frame, found = selection.frame, np.asarray(law.predict(fit, *columns))
    size = frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    miss = np.log10(loss) - np.log10(found)
    bend = seeds = None
    if huber is None:
        coefficients = _count(law, columns)
        bend = bend_in_size(size, miss, _design(law, columns, fit), coefficients)
        seeds = beyond_seeds(columns, miss, coefficients)
    far = outliers(frame["hyper_id"].to_numpy(), loss, found)
    near = ~np.isin(frame["hyper_id"].to_numpy(), [run.hyper_id for run in far])
    return Misfit(
        by_size(size, miss),
        bend,
        seeds,
        largest_size(size, None if held_out_size is None else held_out_size.errors),
        far,
        _rmsle_of(law, [column[near] for column in columns], loss[near], huber) if far else None,
    )


def _rmsle_of(law: Law, columns, loss, huber: float | None) -> float | None:
    """Return the RMSLE of a fit to some rows; None where they do not determine the law."""
    try:
        return _fit(law, columns, loss, huber).rmsle
    except ValueError:
        return None


def _count(law: Law, columns) -> int:
    """Return how many coefficients a law has on these rows: the per-size law has two for each size."""
    return 2 * np.unique(columns[0]).size if law.name == "per-size" else len(law.parameters)


def _steepness(law: Law, columns, loss, fit) -> list[Range]:
    """Return the slopes by which a bounded law is judged to be determined; none of a linear law.

    They are those of least squares on the rows within OUTLIER robust standard deviations of the fit. Not asked where
    the fit's own slopes are there already (the law in (N, E) by least squares).
    """
    if not law.name.startswith("routed-"):
        return []
    residual = np.abs(np.log10(law.predict(fit, *columns) / loss))
    near = residual <= max(OUTLIER * 1.4826 * float(np.median(residual)), 1e-9)
    columns, loss = tuple(column[near] for column in columns), loss[near]
    if law.name == "routed-utilisation":
        columns = _in_units(fit.curve, columns)
        at = np.quantile(columns[0], [0.0, 0.5, 1.0])
    else:
        at = np.unique(columns[0])
    quantities = [Quantity("slope", N=float(size)) for size in at]
    return [_range(interval) for interval in profile_intervals(*columns, loss, quantities, LEVEL)]


def is_determined(slopes: list[Range]) -> bool:
    """Return whether the rows determine a bounded law: the slope b + c log10 N is known at every size given.

    Known means to a factor of FAR: no end of its interval is infinite, and the farther one is at most so many times the
    nearer one away from 0, or so many times the best value where 0 lies between them. If it is not, the rows cannot
    tell the law from a limit in which its coefficients run away together, and no coefficient should be read. Our
    choice.
    """
    for slope in slopes:
        far = max(abs(slope.low), abs(slope.high))
        near = abs(slope.value) if slope.low <= 0 <= slope.high else min(abs(slope.low), abs(slope.high))
        if not far <= FAR * near:
            return False
    return True


def is_known(name: str, value: float, words: str) -> bool:
    """Return whether a coefficient, or a number derived from them, is determined by its own interval.

    Both ends have to be there and, but for sizes and numbers of experts, at most a factor of ten apart: beyond that the
    best value is one of many that run away together. A law that is not determined as a whole can have coefficients
    that are: their intervals hold for every law that the rows allow. Our choice.

    Args:
        name: of the coefficient.
        value: the best value.
        words: of `laws.uncertainty.verdict`; "" where the interval is exact.
    """
    open_ended = ("bounded", "not") if name in LOGARITHMIC else ("bounded", "not", "loose")
    return math.isfinite(value) and not words.startswith(open_ended)


def predict_law(
    fitted: LawFit, at: tuple[float, ...], level: float = LEVEL
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Return the loss at one point, the interval of the law there, and that of one more run, nats per token.

    Args:
        fitted: of `fit_law`, by least squares.
        at: the columns of the law.
        level: of the intervals.

    Raises:
        ValueError: the law says nothing there (per-size lines at a size without one), or a number is out of its range.
    """
    if fitted.law.name in ("routed-bounded", "routed-utilisation"):
        columns, point = fitted.columns, at
        if fitted.law.name == "routed-utilisation":
            columns, point = (_in_units(fitted.fit.curve, c) for c in (fitted.columns, at))
        quantities = [Quantity(name, N=float(point[0]), E=float(point[1])) for name in ("prediction", "observation")]
        law, run = profile_intervals(*columns, fitted.loss, quantities, level)
        return law.value, (law.low, law.high), (run.low, run.high)
    return _predict_linear(fitted, at, level)


def _in_units(curve: UtilisationCurve, columns) -> tuple:
    """Return (F, 1 + (B - B_min)/unit): the columns that the law in (F, B) is fitted as.

    Raises:
        ValueError: a B is below B_min.
    """
    if np.min(columns[1]) < curve.B_min:
        raise ValueError(
            f"utilisation is {np.min(columns[1]):g}; needed: at least the least B of the rows, {curve.B_min:g}"
        )
    return columns[0], 1.0 + (columns[1] - curve.B_min) / curve.unit


def _design(law: Law, columns, fit=None) -> np.ndarray:
    """Return the columns, [n, p], in which the logarithm of a law is linear; of a bounded law given its shape in E."""
    if law.name == "routed-utilisation":
        columns, curve = _in_units(fit.curve, columns), fit.curve.curve
    elif law.name == "routed-bounded":
        curve = fit.curve
    logs = [np.log10(np.asarray(column, dtype=np.float64)) for column in columns]
    if law.name == "dense":
        return np.stack([logs[0], np.ones_like(logs[0])], axis=-1)
    if law.name == "per-size":
        lines = (columns[0][:, None] == np.unique(columns[0])).astype(np.float64)
        return np.concatenate([lines, lines * logs[1][:, None]], axis=-1)
    if law.name.startswith("routed-"):
        logs[1] = expert_curve(np.asarray(columns[1], dtype=np.float64) - 1, curve.rise, curve.bend, curve.top)
    both = [logs[0] * logs[1]] if law.name != "separable" else []
    return np.stack([*logs, *both, np.ones_like(logs[0])], axis=-1)


def _predict_linear(fitted: LawFit, at, level: float):
    law, columns, loss = fitted.law, fitted.columns, fitted.loss
    if law.name == "per-size":
        here = columns[0] == at[0]
        if not here.any():
            sizes = ", ".join(f"{size:.0f}" for size in np.unique(columns[0]))
            raise ValueError(f"the per-size law has no line at N = {at[0]:g}; there: {sizes}")
        design, point = (
            np.stack([np.log10(e), np.ones_like(e)], axis=-1) for e in (columns[1][here], np.array([at[1]]))
        )
        freedom = fitted.fit.rows - 2 * len(np.asarray(fitted.fit.coefficients.sizes))
    else:
        design, point = _design(law, columns), _design(law, [np.array([value]) for value in at])
        freedom = loss.size - design.shape[1]
    centre, spread = design.mean(axis=0), np.maximum(design.std(axis=0), 1.0 * (design.std(axis=0) == 0))
    centre[-1] = 0.0  # the column of ones stays
    triangle = np.linalg.qr((design - centre) / spread, mode="r")
    leverage = float(np.sum(np.linalg.solve(triangle.T, ((point - centre) / spread)[0]) ** 2))
    variance = fitted.fit.objective * fitted.fit.rows / freedom
    value = float(np.log10(np.asarray(law.predict(fitted.fit, *(np.array([v]) for v in at))).ravel()[0]))
    ends = []
    for more in (0.0, 1.0):
        reach = student_quantile(level, freedom) * math.sqrt(variance * (leverage + more))
        ends.append((10 ** (value - reach), 10 ** (value + reach)))
    return 10**value, *ends


def _ranges(law: Law, columns, loss, fit, level: float) -> tuple[list[Range], list[Range]]:
    """Return the intervals of the coefficients, and those of the slope at each size."""
    if law.name == "routed-bounded":
        sizes = [Quantity("slope", N=float(size)) for size in np.unique(columns[0])]
        names = [Quantity(name) for name in (*fit.coefficients._fields, "N_cutoff")]
        found = [_range(interval) for interval in profile_intervals(*columns, loss, [*names, *sizes], level)]
        return found[: len(names)], found[len(names) :]
    if law.name == "routed-utilisation":
        return _utilisation_ranges(columns, loss, fit, level), []
    if law.name == "per-size":
        return _per_size_ranges(fit, level), []
    quantile = student_quantile(level, fit.rows - len(fit.coefficients))
    ranges = [
        Range(name, None, float(value), float(value - quantile * error), float(value + quantile * error), "")
        for name, value, error in zip(
            fit.coefficients._fields, fit.coefficients, np.sqrt(np.diag(fit.covariance)), strict=True
        )
    ]
    if law.name == "dense":
        ranges[1] = _crossing(columns[0], loss, fit, quantile)
    return ranges, []


def _crossing(size: np.ndarray, loss: np.ndarray, fit, quantile: float) -> Range:
    """Return N_c with the sizes at which a loss of 1 nat is not rejected: the tangents of Fieller's theorem.

    With log10 L = level + slope·u, u = log10 N - its mean, those u for which (level + slope·u)² is at most
    q² s² (1/n + u²/spread).
    """
    log_size, log_loss = np.log10(size), np.log10(loss)
    offset = log_size - log_size.mean()
    spread, level = float(offset @ offset), float(log_loss.mean())
    slope = float(offset @ log_loss) / spread
    limit = quantile**2 * fit.objective * fit.rows / (fit.rows - 2)
    square, half, rest = slope**2 - limit / spread, level * slope, level**2 - limit / fit.rows
    low, high = -math.inf, math.inf
    if square > 0:
        low, high = ((-half + sign * math.sqrt(max(half**2 - square * rest, 0.0))) / square for sign in (-1, 1))
    low, high = (10.0 ** np.float64(min(end + log_size.mean(), 400.0)) for end in (low, high))
    return Range("N_c", None, float(fit.coefficients.N_c), float(low), float(high), "")


def _per_size_ranges(fit, level: float) -> list[Range]:
    sizes, slopes, _ = (np.asarray(column) for column in fit.coefficients)
    quantile = student_quantile(level, fit.rows - 2 * sizes.size)
    errors = np.sqrt(fit.covariance[:, 0, 0])
    return [
        Range("b", float(size), float(b), float(b - quantile * error), float(b + quantile * error), "")
        for size, b, error in zip(sizes, slopes, errors, strict=True)
    ]


def _utilisation_ranges(columns, loss, fit, level: float) -> list[Range]:
    """Return the intervals of what does not depend on the unit of B, and of B_start and B_max.

    The fit is that of (F, 1 + (B - B_min)/unit): b and c are the same there, B_start and B_max are E_start and E_max
    times the unit, and the F at which more B stops helping is its N_cutoff. a and d move with the unit, along with c
    and b, and have no interval here.
    """
    names = {"b": "b", "c": "c", "E_start": "B_start", "E_max": "B_max", "N_cutoff": "F_cutoff"}
    scaled = _in_units(fit.curve, columns)
    found = profile_intervals(*scaled, loss, [Quantity(name) for name in names], level)
    ranges = []
    for interval in found:
        times = fit.curve.unit if interval.quantity.name in ("E_start", "E_max") else 1.0
        own = _range(interval)
        ranges.append(
            own._replace(name=names[own.name], value=own.value * times, low=own.low * times, high=own.high * times)
        )
    return ranges


def _range(interval: Interval) -> Range:
    quantity = interval.quantity
    at = None if math.isnan(quantity.N) else quantity.N
    return Range(quantity.name, at, interval.value, interval.low, interval.high, verdict(interval))
