"""Intervals of both bounded laws, the (N, E) law and the (F, B) law, in the format of `catalogue.py`.

All are profile intervals (`uncertainty.py`) of least-squares fits. The (F, B) law is the law of `routed.py` for the
columns F and E' with E' = 1 + (B - B_min)/u (`utilisation.py`, `scaled_columns` below). So

    b and c      are the same in both laws,
    a and d      are values at B̂ = 1, which is Ê' = 1/u,
    B_start      is u times E_start, and B_max u times E_max,
    F_cutoff     (where more parameters per FLOP stop helping) is N_cutoff, in units of F,
    losses       are the same.

Every function has the fit as its first argument. The functions of the (N, E) law compute their intervals from the
rows alone. The functions of the (F, B) law read B_min and u from the fit.
"""

from collections.abc import Sequence

import numpy as np

from ...errors import InputError
from ..fitting import RoutedFit
from ..numerics._projection import expert_curve
from ..routed import cutoff
from ..utilisation import UtilisationCurve, UtilisationFit
from .intervals import Predicted, Range, range_of
from .uncertainty import Quantity, profile_intervals

_OWN_NAMES = {
    "a": "a", "b": "b", "c": "c", "d": "d", "E_start": "B_start", "E_max": "B_max", "N_cutoff": "F_cutoff"
}  # fmt: skip
"""The name in (F, B) for each coefficient in (F, E')."""


def routed_design(fit: RoutedFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return [n, 4], the columns in which log10 L is linear at the fitted E_start and E_max: n, ψ, nψ and 1."""
    log_size = np.log10(dense_parameters)
    psi = expert_curve(np.asarray(num_experts, dtype=np.float64) - 1.0, fit.curve.rise, fit.curve.bend, fit.curve.top)
    return np.stack([log_size, psi, log_size * psi, np.ones_like(log_size)], axis=1)


def routed_intervals(
    fit: RoutedFit, columns: Sequence, loss: np.ndarray, level: float = 0.95, *, search=profile_intervals
) -> list[Range]:
    """Return the six coefficients and N_cutoff with their intervals.

    Args:
        fit: a least-squares fit by `fit_routed`.
        columns: (dense_parameters, num_experts), [n] each, the rows of the fit.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: `profile_intervals` raises this error.
    """
    quantities = [Quantity(name) for name in (*fit.coefficients._fields, "N_cutoff")]
    return [range_of(interval) for interval in search(*columns, loss, quantities, level)]


def routed_slopes(
    fit: RoutedFit, columns: Sequence, loss: np.ndarray, level: float = 0.95, *, search=profile_intervals
) -> list[Range]:
    """Return the slope b + c log10 N, with its interval, at each size of the rows; arguments as `routed_intervals`."""
    quantities = [Quantity("slope", N=float(size)) for size in np.unique(columns[0])]
    return [range_of(interval) for interval in search(*columns, loss, quantities, level)]


def routed_predictions(
    fit: RoutedFit,
    columns: Sequence,
    loss: np.ndarray,
    points: Sequence,
    level: float = 0.95,
    *,
    search=profile_intervals,
) -> list[Predicted]:
    """Return the predicted loss at each point (N, E), with two intervals; other arguments as `routed_intervals`."""
    names = ("prediction", "observation")
    quantities = [Quantity(name, N=float(N), E=float(E)) for name in names for N, E in points]
    found = search(*columns, loss, quantities, level)
    pairs = zip(found[: len(points)], found[len(points) :], strict=True)
    return [Predicted(law.value, (law.low, law.high), (run.low, run.high)) for law, run in pairs]


def routed_dense_equivalents(
    fit: RoutedFit,
    columns: Sequence,
    loss: np.ndarray,
    points: Sequence,
    level: float = 0.95,
    *,
    search=profile_intervals,
) -> list[Range]:
    """Return the sizes of the dense models with the same loss as each point (N, E), E > 1. See `routed_intervals`."""
    quantities = [Quantity("effective_parameters", N=float(N), E=float(E)) for N, E in points]
    return [range_of(interval) for interval in search(*columns, loss, quantities, level)]


def utilisation_design(fit: UtilisationFit, teraflops: np.ndarray, utilisation: np.ndarray) -> np.ndarray:
    """Return [n, 4], the columns of `routed_design` with F and E' for N and E, at the fitted B_start and B_max."""
    return routed_design(fit.curve, *scaled_columns(fit.curve, teraflops, utilisation))


def utilisation_intervals(
    fit: UtilisationFit, columns: Sequence, loss: np.ndarray, level: float = 0.95, *, search=profile_intervals
) -> list[Range]:
    """Return the six coefficients and F_cutoff with their intervals.

    Args:
        fit: a least-squares fit by `fit_utilisation`.
        columns: (teraflops, utilisation), [n] each, the rows of the fit.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: `profile_intervals` or `scaled_columns` raises this error.
    """
    quantities = [Quantity(name, effective=1 / fit.curve.unit) for name in _OWN_NAMES]
    ranges = []
    for interval in search(*scaled_columns(fit.curve, *columns), loss, quantities, level):
        interval_ends = range_of(interval)
        unit = fit.curve.unit if interval_ends.name in ("E_start", "E_max") else 1.0
        ends = (interval_ends.value * unit, interval_ends.low * unit, interval_ends.high * unit)
        ranges.append(Range(_OWN_NAMES[interval_ends.name], None, *ends, interval_ends.words))
    return ranges


def utilisation_slopes(
    fit: UtilisationFit, columns: Sequence, loss: np.ndarray, level: float = 0.95, *, search=profile_intervals
) -> list[Range]:
    """Return the slope b + c log10 F at the least, median and largest F; arguments as `utilisation_intervals`."""
    quantities = [Quantity("slope", N=float(flops)) for flops in np.quantile(columns[0], [0.0, 0.5, 1.0])]
    scaled = scaled_columns(fit.curve, *columns)
    return [range_of(interval) for interval in search(*scaled, loss, quantities, level)]


def utilisation_predictions(
    fit: UtilisationFit,
    columns: Sequence,
    loss: np.ndarray,
    points: Sequence,
    level: float = 0.95,
    *,
    search=profile_intervals,
) -> list[Predicted]:
    """Return the predicted loss at each point (F, B), B >= B_min; other arguments as `utilisation_intervals`."""
    points = np.stack(scaled_columns(fit.curve, *np.transpose(points)), axis=1)
    return routed_predictions(fit, scaled_columns(fit.curve, *columns), loss, points, level, search=search)


def utilisation_cutoff(fit: UtilisationFit) -> float:
    """Return F_cutoff = 10^(-b/c) TeraFLOPs, above which more parameters per FLOP stop helping; inf if none."""
    return cutoff(fit.coefficients)


def scaled_columns(
    curve: UtilisationCurve, teraflops: np.ndarray, utilisation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return F and E' = 1 + (B - B_min)/u, the columns for the fit of the (F, B) law.

    Raises:
        ValueError: a B is below B_min.

    Example:
        >>> curve = UtilisationCurve(None, B_min=0.2, unit=0.02)
        >>> scaled_columns(curve, np.array([1.0]), np.array([0.4]))[1].round(6)
        array([11.])
    """
    least = float(np.min(utilisation))
    if least < curve.B_min:
        raise InputError(f"utilisation is {least:g}; needed: at least the smallest B of the rows, {curve.B_min:g}")
    return np.asarray(teraflops), 1.0 + (np.asarray(utilisation) - curve.B_min) / curve.unit


# What this file does not do: the search for an end (`uncertainty.py`, `_allowed.py`).
