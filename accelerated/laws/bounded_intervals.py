"""See `routelaws.reference.laws.bounded_intervals`: the same, through the compiled profile intervals."""

from collections.abc import Sequence

import numpy as np

from .fitting import RoutedFit, expert_curve
from .intervals import Predicted, Range, range_of
from .resampling import jackknife
from .routed import cutoff
from .uncertainty import Quantity, profile_intervals
from .utilisation import UtilisationCurve, UtilisationFit

_OWN_NAMES = {"b": "b", "c": "c", "E_start": "B_start", "E_max": "B_max", "N_cutoff": "F_cutoff"}
"""What the coefficients of the law in (F, E') are called in that in (F, B)."""


def routed_design(fit: RoutedFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """See reference."""
    log_size = np.log10(dense_parameters)
    psi = expert_curve(np.asarray(num_experts, dtype=np.float64) - 1.0, fit.curve.rise, fit.curve.bend, fit.curve.top)
    return np.stack([log_size, psi, log_size * psi, np.ones_like(log_size)], axis=1)


def routed_intervals(
    fit: RoutedFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """See reference."""
    asked = [Quantity(name) for name in (*fit.coefficients._fields, "N_cutoff")]
    return [range_of(interval) for interval in profile_intervals(*columns, loss, asked, level)]


def routed_slopes(fit: RoutedFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
    """See reference."""
    asked = [Quantity("slope", N=float(size)) for size in np.unique(columns[0])]
    return [range_of(interval) for interval in profile_intervals(*columns, loss, asked, level)]


def routed_prediction(
    fit: RoutedFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """See reference."""
    asked = [Quantity(name, N=float(at[0]), E=float(at[1])) for name in ("prediction", "observation")]
    law, run = profile_intervals(*columns, loss, asked, level)
    return Predicted(law.value, (law.low, law.high), (run.low, run.high))


def routed_by_size(
    fit: RoutedFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> tuple[float, float] | None:
    """See reference."""
    if np.unique(columns[0]).size < 3:
        return None
    asked = [Quantity("prediction", N=float(at[0]), E=float(at[1]))]
    [found] = jackknife(*columns, loss, columns[0], asked, level).intervals
    return found.low, found.high


def routed_dense_equivalent(
    fit: RoutedFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Range | None:
    """See reference."""
    if not at[1] > 1:
        return None
    asked = [Quantity("effective_parameters", N=float(at[0]), E=float(at[1]))]
    return range_of(*profile_intervals(*columns, loss, asked, level))


def utilisation_design(fit: UtilisationFit, teraflops: np.ndarray, utilisation: np.ndarray) -> np.ndarray:
    """See reference."""
    return routed_design(fit.curve, *scaled_columns(fit.curve, teraflops, utilisation))


def utilisation_intervals(
    fit: UtilisationFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """See reference."""
    asked = [Quantity(name) for name in _OWN_NAMES]
    ranges = []
    for interval in profile_intervals(*scaled_columns(fit.curve, *columns), loss, asked, level):
        found, unit = range_of(interval), fit.curve.unit if interval.quantity.name in ("E_start", "E_max") else 1.0
        ends = (found.value * unit, found.low * unit, found.high * unit)
        ranges.append(Range(_OWN_NAMES[found.name], None, *ends, found.words))
    return ranges


def utilisation_slopes(
    fit: UtilisationFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """See reference."""
    asked = [Quantity("slope", N=float(flops)) for flops in np.quantile(columns[0], [0.0, 0.5, 1.0])]
    scaled = scaled_columns(fit.curve, *columns)
    return [range_of(interval) for interval in profile_intervals(*scaled, loss, asked, level)]


def utilisation_prediction(
    fit: UtilisationFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """See reference."""
    point = [float(value) for value in scaled_columns(fit.curve, *at)]
    return routed_prediction(fit, scaled_columns(fit.curve, *columns), loss, point, level)


def utilisation_cutoff(fit: UtilisationFit) -> float:
    """See reference."""
    return cutoff(fit.coefficients)


def scaled_columns(
    curve: UtilisationCurve, teraflops: np.ndarray, utilisation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """See reference."""
    least = float(np.min(utilisation))
    if least < curve.B_min:
        raise ValueError(f"utilisation is {least:g}; needed: at least the least B of the rows, {curve.B_min:g}")
    return np.asarray(teraflops), 1.0 + (np.asarray(utilisation) - curve.B_min) / curve.unit
