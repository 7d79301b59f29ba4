"""See `routelaws.reference.laws.routed`.

What differs here: everything is evaluated through log10 Ê = log10 E_start + log10(1 + rise·x / (1 + bend·x)) with
x = E - 1, which has no reciprocal of a reciprocal and stays exact for E near 1, for E_max near E_start and for infinite
E_max. Always NumPy float64, whatever the arguments are (JAX arrays included): a law is a handful of numbers, and
float32 would cost it four digits.
"""

import math
from typing import NamedTuple

import numpy as np

from ..notation import check_finite
from ._columns import crossing, log_growth, reach, rise_and_bend

_LOG_10 = math.log(10)


class RoutedCoefficients(NamedTuple):
    """See reference."""

    a: float
    b: float
    c: float
    d: float
    E_start: float
    E_max: float


def effective_experts(num_experts: np.ndarray, E_start: float, E_max: float) -> np.ndarray:
    """See reference."""
    return E_start * np.exp(_log_ratio(num_experts, E_start, E_max))


def predict_loss(dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """See reference."""
    a, b, c, d, E_start, E_max = coefficients
    log_size = _log_positive("dense_parameters", dense_parameters) / _LOG_10
    log_experts = (_log_ratio(num_experts, E_start, E_max) + math.log(E_start)) / _LOG_10
    return np.exp(_LOG_10 * (d + a * log_size + (b + c * log_size) * log_experts))


def slope_in_experts(dense_parameters: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """See reference."""
    return coefficients.b + coefficients.c / _LOG_10 * _log_positive("dense_parameters", dense_parameters)


def slope_in_parameters(num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """See reference."""
    log_ratio = _log_ratio(num_experts, coefficients.E_start, coefficients.E_max)
    return coefficients.a + coefficients.c / _LOG_10 * (log_ratio + math.log(coefficients.E_start))


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients
) -> np.ndarray:
    """See reference. log N̄ = log N + log(Ê/E_start) · (b + c log10 N) / α(E_start)."""
    a, b, c, _, E_start, E_max = coefficients
    log_size = _log_positive("dense_parameters", dense_parameters)
    dense_slope = a + c * math.log10(E_start)
    if dense_slope == 0:
        raise ValueError("a + c log10 E_start is 0: no dense size is equivalent, since size does not change the loss")
    slope = b + c / _LOG_10 * log_size
    return np.exp(log_size + slope / dense_slope * _log_ratio(num_experts, E_start, E_max))


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """See reference. With r = Ê/E_start - 1 = rise·x / (1 + bend·x), x is r / (rise - bend·r)."""
    a, b, c, d, E_start, E_max = coefficients
    log_size = _log_positive("dense_parameters", dense_parameters) / _LOG_10
    log_loss = _log_positive("loss", loss) / _LOG_10
    _check_limits(E_start, E_max)
    rise, bend = rise_and_bend(E_start, E_max)
    slope = b + c * log_size
    short = log_loss - (d + a * log_size + slope * (math.log(E_start) / _LOG_10))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.expm1(_LOG_10 * short / slope)
        left = rise - bend * ratio
        extra = np.where((slope < 0) & (left > 0), ratio / left, math.inf)
    return np.where(short >= 0, 1.0, 1.0 + extra)


def size_for_loss(num_experts: np.ndarray, loss: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """See reference."""
    a, b, c, d, E_start, E_max = coefficients
    log_experts = (_log_ratio(num_experts, E_start, E_max) + math.log(E_start)) / _LOG_10
    short = _log_positive("loss", loss) - _LOG_10 * (d + b * log_experts)
    return reach(short, a + c * log_experts, never=math.nan)


def cutoff(coefficients: RoutedCoefficients) -> float:
    """See reference."""
    return crossing(coefficients.b, coefficients.c)


def _log_ratio(num_experts: np.ndarray, E_start: float, E_max: float) -> np.ndarray:
    """Return the natural log of Ê/E_start."""
    _check_limits(E_start, E_max)
    extra = np.asarray(num_experts, dtype=np.float64) - 1.0
    check_finite("num_experts", np.atleast_1d(extra))
    if np.any(extra < 0):
        raise ValueError(f"num_experts: {extra.min() + 1.0} is not allowed; every entry has to be at least 1")
    return log_growth(extra, E_start, E_max)


def _check_limits(E_start: float, E_max: float) -> None:
    if not (1 <= E_start < E_max):
        raise ValueError(f"E_start is {E_start} and E_max is {E_max}; needed: 1 <= E_start < E_max")


def _log_positive(name: str, values: np.ndarray) -> np.ndarray:
    """Return the natural log of `values`; ValueError unless every entry is finite and above 0."""
    values = np.asarray(values, dtype=np.float64)
    check_finite(name, np.atleast_1d(values))
    if np.any(values <= 0):
        raise ValueError(f"{name}: {values.min()} is not allowed; every entry has to be above 0")
    return np.log(values)
