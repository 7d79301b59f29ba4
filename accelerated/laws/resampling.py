"""Bootstrap and jackknife intervals: how much the law changes if the runs of the table change.

Step by step, with sources and examples: `routelaws.reference.laws.resampling`.

Here one call fits all resamples or all folds (`fit_weighted`), and each quantity is computed for all fits at
once. A thousand resamples of the released table take some tens of milliseconds (`make bench BENCH="--only law-fits"`).
"""

import math
from collections.abc import Iterable

import numpy as np

from routelaws.reference.laws import Bootstrap, Jackknife
from routelaws.reference.laws import resampling as reference
from routelaws.reference.laws.confidence.uncertainty import Interval, Quantity, _extrapolated, student_quantile

from ..errors import InputError
from ._searches import share
from .fitting import STATUSES, WeightedFits, fit_weighted, level_table


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
    columns = dense_parameters, num_experts, loss
    table = level_table(*columns)
    quantities = reference._check_asked(quantities, level)
    weights = reference._check_weights(weights, table.log_loss.size)
    fits = _fits(columns, weights)
    determined = fits.status[1:] >= 0
    intervals, undefined = [], []
    for quantity in quantities:
        values = _values(fits, quantity)
        known = np.sort(values[1:][determined & ~np.isnan(values[1:])])
        low = high = math.nan
        if known.size:
            skipped = math.floor((known.size - 1) * (1 - level) / 2)
            low, high = float(known[skipped]), float(known[known.size - 1 - skipped])
        value = float(values[0])
        intervals.append(Interval(quantity, value, low, high, level, _extrapolated(*columns[:2], quantity, value)))
        undefined.append(int(determined.sum()) - known.size)
    counts = np.bincount(fits.status[1:][determined], minlength=len(STATUSES))
    statuses = {name: int(count) for name, count in zip(STATUSES, counts, strict=True) if count}
    return Bootstrap(intervals, undefined, statuses, int((~determined).sum()))


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
    columns = dense_parameters, num_experts, loss
    table = level_table(*columns)
    quantities = reference._check_asked(quantities, level)
    groups = np.atleast_1d(groups)
    if groups.shape != table.log_loss.shape:
        raise InputError(f"groups has shape {groups.shape}; needed: [{table.log_loss.size}], one for each row")
    names, member = np.unique(groups, return_inverse=True)
    if names.size < 2:
        raise InputError("groups: all rows are one group; needed: at least two")
    fits = _fits(columns, (member.ravel() != np.arange(names.size)[:, None]).astype(np.float64))
    quantile = student_quantile(level, names.size - 1)
    intervals, missing = [], []
    for quantity in quantities:
        values = _values(fits, quantity)
        value, (low, high, usable) = float(values[0]), _student_ends(quantity.name, values, quantile)
        intervals.append(Interval(quantity, value, low, high, level, _extrapolated(*columns[:2], quantity, value)))
        missing.append(tuple(float(name) for name in names[~usable]))
    return Jackknife(intervals, missing)


def _fits(columns, weights: np.ndarray) -> WeightedFits:
    # Search the table first, with more starts than a resample needs.
    whole = fit_weighted(*columns, np.ones((1, weights.shape[1])), scan=16, starts=4)
    more = {} if len(weights) > 100 else {"scan": 16, "starts": 4}
    rest = fit_weighted(*columns, weights, **more)
    return WeightedFits(
        *(np.concatenate([getattr(whole, name), getattr(rest, name)]) for name in ("status", "coefficients", "curves")),
        whole.top,
        np.concatenate([whole.objective, rest.objective]),
    )


def _values(fits: WeightedFits, quantity: Quantity) -> np.ndarray:
    """Return a quantity of each fit, in its units: [resamples]; NaN where the fit has no value."""
    name = quantity.name
    intercept, size, gain, interaction, rise, bend = fits.curves.T
    linear = rise == 0
    with np.errstate(all="ignore"):
        if name in ("E_start", "E_max"):
            return fits.coefficients[:, 4 if name == "E_start" else 5]
        if name == "N_cutoff":
            return np.where(interaction > 0, 10.0 ** (-gain / interaction), np.where(np.isnan(gain), np.nan, np.inf))
        log_size = math.log10(quantity.N) if quantity.N > 0 else 0.0
        routed = gain + interaction * log_size
        span = np.log1p(rise * fits.top / (1 + bend * fits.top)) / math.log(10)
        if name in ("slope", "b", "c"):
            return {"slope": routed, "b": gain, "c": interaction}[name] / span
        if name in ("a", "d"):
            start = np.where(linear, np.inf, np.log10(fits.coefficients[:, 4]) / span)
            return size - interaction * start if name == "a" else intercept - gain * start
        extra = quantity.E - 1
        psi = np.where(linear, extra / fits.top, np.log1p(rise * extra / (1 + bend * extra)) / span / math.log(10))
        if name == "gain":
            return routed * psi
        if name == "effective_parameters":
            return 10.0 ** (log_size + psi * routed / size)
        return 10.0 ** (intercept + size * log_size + routed * psi)


def _student_ends(name: str, values: np.ndarray, quantile: float) -> tuple[float, float, np.ndarray]:
    """Return the ends of a jackknife interval and which folds are finite; values[0] is from the whole table."""
    if name in reference._LOG_SCALE:
        with np.errstate(divide="ignore"):
            values = np.log10(values)
    best, folds = values[0], values[1:]
    usable = np.isfinite(folds)
    if not (np.isfinite(best) and usable.all()):
        return math.nan, math.nan, usable
    reach = quantile * math.sqrt((folds.size - 1) * float(np.var(folds)))
    ends = np.array([best - reach, best + reach])
    if name in reference._LOG_SCALE:
        with np.errstate(over="ignore", under="ignore"):
            ends = np.maximum(10.0**ends, [reference._FLOOR.get(name, 0.0), 0.0])
    return float(ends[0]), float(ends[1]), usable


share(__name__)
