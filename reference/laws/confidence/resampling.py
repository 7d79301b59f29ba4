"""Bootstrap and jackknife intervals: how much the law changes if the runs of the table change.

`uncertainty.py` assumes that the errors of the runs are independent and normal with one variance. This file resamples
the table instead:

    bootstrap            draw n of the n rows with replacement, and fit; repeat many times
    bootstrap by size    draw whole sizes instead (`group_bootstrap_weights`)
    jackknife by size    leave out one size at a time, and fit

Resampling by size matters because the runs of one size can share an error (the learning rate of that size, the seed of
its data). A resample is a vector of weights: how often it has each row. The caller supplies the uniform random numbers.
Each fit gives all quantities of `uncertainty.py` except "observation": resampling does not show the scatter of a new
run.

Coverage. The following shares of nominal 95 % intervals contain the true value. They are from 1,000 simulated tables
with the design of the released table (six sizes, E up to 512, scatter 0.003 in log10). Each range goes from the
quantity with the lowest share to the quantity with the highest share. In the right column, all runs of a size also
share an error (0.002). `make coverage` measures the profile intervals of this design and others.

                                            independent runs      a shared error at each size
    profile likelihood                         94.4 - 96.4 %      77.4 (predictions) - 97.8 %
    bootstrap of rows                          93.0 - 96.3 %      76.4 (predictions) - 97.0 %
    bootstrap by size                          86.3 - 93.2 %      85.2 - 93.2 %
    jackknife by size                          91.0 - 97.3 %      92.3 - 96.7 %

Six sizes are too few to estimate the spread between sizes, so a bootstrap by size is too narrow. The jackknife corrects
this with Student's t. Its intervals are a third longer than necessary if the runs are independent. Suppose that the
runs of a size share an error. Intervals that assume independence are then too narrow for predictions, most of all
beyond the largest size. In slopes and gains, a shared error cancels.

Infinite and undefined values. E_max is inf in a fit with unbounded E_max, and N_cutoff is inf if c <= 0. The bootstrap
sorts infinite values as the largest or the smallest. In the linear limit, slopes and other coefficients are infinite,
too, and E_start and E_max have no value. The bootstrap counts a resample without a value as undefined and ignores it. A
resample whose rows do not determine the law counts as undetermined. The jackknife gives an interval only if every fold
has a finite value.

Sources: bootstrap percentiles, Efron 1979; pseudo-values with Student's t, Tukey 1958. The methods, resampling by size,
and the scales are our choice. The paper's main text has no resampling (docs/choices.md).
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...notation import check_finite
from ..fitting import RoutedFit, fit_routed
from ..numerics._projection import check_rows, expert_curve
from .intervals import jackknife_ends
from .uncertainty import Interval, Quantity, _check_level, _extrapolated, check_quantity

_LOG_SCALE = ("E_start", "E_max", "N_cutoff", "effective_parameters", "prediction")
"""Quantities that the jackknife handles in log10: they are positive, and their errors are relative."""

_FLOOR = {"E_start": 1.0, "E_max": 1.0}


class Bootstrap(NamedTuple):
    """Percentile intervals and a summary of the resamples.

    Attributes:
        intervals: value from the whole table; low and high are percentiles, NaN if no resample has a value
        undefined: for each quantity, the number of resamples that determine the law but give no value
        statuses: number of resamples with each status of `fit_routed`
        undetermined: number of resamples whose rows do not determine the law
    """

    intervals: list[Interval]
    undefined: list[int]
    statuses: dict[str, int]
    undetermined: int


class Jackknife(NamedTuple):
    """Intervals from leaving one group out at a time.

    Attributes:
        intervals: value from the whole table; low and high are NaN if a fold has no value
        missing: for each quantity, the left-out groups whose folds give no finite value
    """

    intervals: list[Interval]
    missing: list[tuple[float, ...]]


def bootstrap_weights(uniforms: np.ndarray) -> np.ndarray:
    """Draw n rows with replacement and return how often each row is drawn.

    Args:
        uniforms: [resamples, n], in [0, 1): one row for each resample; u draws row floor(u n).

    Returns:
        [resamples, n] whole numbers as float64; every row sums to n.

    Raises:
        ValueError: `uniforms` does not have two axes, or has an entry outside [0, 1).

    Example:
        >>> bootstrap_weights(np.array([[0.1, 0.9, 0.2, 0.3]]))
        array([[2., 1., 0., 1.]])
    """
    uniforms = _check_uniforms(uniforms)
    count = uniforms.shape[1]
    # u n can round up to n itself.
    drawn = np.minimum((uniforms * count).astype(np.int64), count - 1)
    return np.array([np.bincount(line, minlength=count) for line in drawn], dtype=np.float64).reshape(-1, count)


def group_bootstrap_weights(uniforms: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Draw whole groups with replacement and return how often each row is drawn.

    Args:
        uniforms: [resamples, m], in [0, 1), for m different groups; u draws group floor(u m), where groups are sorted
            in rising order.
        groups: [n]; rows with equal entries form one group.

    Returns:
        [resamples, n] whole numbers as float64: how often the group of each row is drawn.

    Raises:
        ValueError: `bootstrap_weights` raises this error, or `uniforms` does not have one column for each group.

    Example:
        >>> group_bootstrap_weights(np.array([[0.1, 0.2, 0.9]]), np.array([1e7, 1e8, 1e8, 1e9]))
        array([[2., 0., 0., 1.]])
    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    if np.shape(uniforms)[1:] != names.shape:
        raise InputError(
            f"uniforms has shape {np.shape(uniforms)}; needed: [resamples, {names.size}], one for each group"
        )
    return bootstrap_weights(uniforms)[:, member.reshape(-1)]  # each row gets the weight of its group


def bootstrap(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray,
    quantities: Iterable[Quantity],
    level: float = 0.95,
) -> Bootstrap:
    """Return bootstrap percentile intervals of quantities of the bounded law.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as in `fit_routed`.
        weights: [resamples, n], whole numbers of at least 0: how often each resample has each row.
        quantities: as in `profile_intervals`, without "observation".
        level: the share of the resamples between low and high, between 0 and 1.

    Returns:
        A Bootstrap. Sort the m values of a quantity in rising order, and number them from 0. Let p be (m - 1)(1 -
        level)/2, rounded down. low is value number p, and high is value number m - 1 - p.

    Raises:
        ValueError: the table, a quantity, `level` or `weights` is invalid (see above, `fit_routed` and
            `check_quantity`).
    """
    columns = _columns(dense_parameters, num_experts, loss)
    quantities, fit = _check_asked(quantities, level), fit_routed(*columns)
    weights = _check_weights(weights, columns[0].size).astype(np.int64)
    fits = [_fit_or_none(*(np.repeat(column, line) for column in columns)) for line in weights]
    determined = [each for each in fits if each is not None]
    intervals, undefined = [], []
    for quantity in quantities:
        values = np.array([_value(each, quantity) for each in determined])
        known = np.sort(values[~np.isnan(values)])
        low, high = math.nan, math.nan
        if known.size:
            skipped = math.floor((known.size - 1) * (1 - level) / 2)
            low, high = float(known[skipped]), float(known[known.size - 1 - skipped])
        intervals.append(_interval(columns, quantity, _value(fit, quantity), low, high, level))
        undefined.append(values.size - known.size)
    return Bootstrap(
        intervals, undefined, dict(Counter(each.status for each in determined)), len(fits) - len(determined)
    )


def _fit_or_none(*columns: np.ndarray) -> RoutedFit | None:
    """Return the fit of some of the rows, or None if they do not determine the law."""
    try:
        return fit_routed(*columns)
    except ValueError:
        return None


def jackknife(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    groups: np.ndarray,
    quantities: Iterable[Quantity],
    level: float = 0.95,
) -> Jackknife:
    """Return jackknife intervals of quantities of the bounded law: each fold leaves out one group of rows.

    Let v be the value from the whole table and vᵢ the value without group i. The pseudo-values m v - (m - 1) vᵢ of the
    m groups have the standard error s = √((m - 1)/m · Σ (vᵢ - mean)²). The interval is v ± q s, with q Student's
    quantile with m - 1 degrees of freedom. E_start, E_max, N_cutoff, effective parameters and losses enter as log10.
    Ends of E_start and E_max below 1 are set to 1.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as in `fit_routed`.
        groups: [n]; rows with equal entries form one group. Pass the sizes N to leave one size out.
        quantities: as in `profile_intervals`, without "observation".
        level: confidence level, between 0 and 1.

    Returns:
        A Jackknife.

    Raises:
        ValueError: the table, a quantity or `level` is invalid (see above, `fit_routed` and `check_quantity`), or there
            are fewer than two groups.
    """
    columns = _columns(dense_parameters, num_experts, loss)
    quantities, fit = _check_asked(quantities, level), fit_routed(*columns)
    groups = _check_groups(groups, columns[0].size)
    names = np.unique(groups)
    folds = [_fit_or_none(*(column[groups != name] for column in columns)) for name in names]
    intervals, missing = [], []
    for quantity in quantities:
        value = _value(fit, quantity)
        values = np.array([math.nan if fold is None else _value(fold, quantity) for fold in folds])
        low, high = _student_ends(quantity.name, value, values, level)
        intervals.append(_interval(columns, quantity, value, low, high, level))
        usable = np.isfinite(_scaled(quantity.name, values))
        missing.append(tuple(float(name) for name in names[~usable]))
    return Jackknife(intervals, missing)


def _student_ends(name: str, value: float, values: np.ndarray, level: float) -> tuple[float, float]:
    """Return the ends of a jackknife interval, NaN if the table or a fold has no finite value."""
    low, high = jackknife_ends(float(_scaled(name, np.array(value))), _scaled(name, values), level)
    if name not in _LOG_SCALE:
        return low, high
    with np.errstate(over="ignore", under="ignore"):
        low, high = (float(np.float64(10.0) ** end) for end in (low, high))
    return max(low, _FLOOR.get(name, 0.0)), high


def _scaled(name: str, values: np.ndarray) -> np.ndarray:
    if name not in _LOG_SCALE:
        return values
    with np.errstate(divide="ignore"):
        return np.log10(values)


def _value(fit: RoutedFit, quantity: Quantity) -> float:
    """Return a quantity of a fitted law in its units. The top of this file explains infinite and undefined values."""
    curve, E_start, E_max = fit.curve, fit.coefficients.E_start, fit.coefficients.E_max
    log_size = math.log10(quantity.N) if quantity.N > 0 else 0.0
    dense = curve.intercept + curve.size * log_size  # log10 L at E = 1
    routed = curve.gain + curve.interaction * log_size  # change of log10 L from E = 1 to the largest E, at N
    psi = float(expert_curve(np.array(quantity.E - 1), curve.rise, curve.bend, curve.top))
    with np.errstate(all="ignore"):
        # This is infinite in the linear limit, like K of `_allowed.py`.
        per_decade = np.float64(math.log(10)) / np.log1p(curve.rise * curve.top / (1 + curve.bend * curve.top))
        start = math.inf if fit.status == "linear limit" else per_decade * math.log10(E_start)
        cutoff = 10.0 ** np.float64(-curve.gain / curve.interaction) if curve.interaction > 0 else math.inf
        return float(
            {
                "a": curve.size - curve.interaction * start,
                "b": curve.gain * per_decade,
                "c": curve.interaction * per_decade,
                "d": curve.intercept - curve.gain * start,
                "E_start": E_start,
                "E_max": E_max,
                "N_cutoff": cutoff,
                "slope": routed * per_decade,
                "gain": routed * psi,
                "prediction": 10.0 ** np.float64(dense + routed * psi),
                "effective_parameters": 10.0 ** (log_size + psi * routed / np.float64(curve.size)),
            }[quantity.name]
        )


def _interval(columns, quantity: Quantity, value: float, low: float, high: float, level: float) -> Interval:
    """Return the interval. `extrapolated` marks a quantity outside the table."""
    return Interval(quantity, value, low, high, level, _extrapolated(*columns[:2], quantity, value))


def _columns(dense_parameters, num_experts, loss) -> list[np.ndarray]:
    """Return the table as three arrays [n] of float64."""
    check_rows(dense_parameters, num_experts, loss)
    return [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in (dense_parameters, num_experts, loss)]


def _check_asked(quantities: Iterable[Quantity], level: float) -> list[Quantity]:
    _check_level(level)
    checked = [check_quantity(quantity) for quantity in quantities]
    if any(quantity.name == "observation" for quantity in checked):
        raise InputError(
            "quantity observation: resampling shows the scatter of the law, not of a new run; "
            "needed: prediction, or profile_intervals"
        )
    return checked


def _check_uniforms(uniforms: np.ndarray) -> np.ndarray:
    uniforms = check_finite("uniforms", uniforms)
    if uniforms.ndim != 2:
        raise InputError(f"uniforms has shape {uniforms.shape}; needed: two axes, resamples and draws")
    if np.any((uniforms < 0) | (uniforms >= 1)):
        raise InputError("uniforms: every entry has to be at least 0 and below 1")
    return uniforms


def _check_weights(weights: np.ndarray, rows: int) -> np.ndarray:
    weights = check_finite("weights", weights)
    if weights.ndim != 2 or weights.shape[1] != rows:
        raise InputError(f"weights has shape {weights.shape}; needed: [resamples, {rows}]")
    if np.any((weights < 0) | (weights != np.floor(weights))):
        raise InputError("weights: every entry has to be a whole number of at least 0")
    return weights


def _check_groups(groups: np.ndarray, rows: int) -> np.ndarray:
    groups = np.atleast_1d(groups)
    if groups.shape != (rows,):
        raise InputError(f"groups has shape {groups.shape}; needed: [{rows}], one for each row")
    if np.unique(groups).size < 2:
        raise InputError("groups: all rows are one group; needed: at least two")
    return groups


# What this file does not do: laws other than the bounded one in (N, E); held-out errors (`held_out.py`).
