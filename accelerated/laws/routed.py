"""The bounded law of a routed language model's loss: how it falls with model size N and with the number of experts E.

Step by step, with sources and examples: `routelaws.reference.laws.routed`.

    log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
    1/Ê = 1 / (E - 1 + (1/E_start - 1/E_max)⁻¹) + 1/E_max

with L the loss in nats per token, N the dense parameters, E the experts (1 for a dense model) and Ê the effective ones.

What differs here: everything is evaluated through log10 Ê = log10 E_start + log10(1 + rise·x / (1 + bend·x)) with
x = E - 1, which has no reciprocal of a reciprocal and stays exact for E near 1, for E_max near E_start and for infinite
E_max. Always NumPy float64, whatever the arguments are (JAX arrays included): a law is a handful of numbers, and
float32 would cost it four digits.
"""

import math
from typing import NamedTuple

import numpy as np

from ._columns import check_range, crossing, log_growth, reach, rise_and_bend

_LOG_10 = math.log(10)


class RoutedCoefficients(NamedTuple):
    """The six coefficients of the law.

    Attributes:
        a: d log10 L / d log10 N at Ê = 1
        b: d log10 L / d log10 Ê at N = 1
        c: how much the slope in log10 Ê changes per decade of N
        d: log10 L at N = 1, Ê = 1
        E_start: Ê of a dense model, 1 <= E_start < E_max (that it is at least 1 is our choice)
        E_max: the limit of Ê for many experts; may be math.inf
    """

    a: float
    b: float
    c: float
    d: float
    E_start: float
    E_max: float


PRINTED = {
    "S-Base": RoutedCoefficients(-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "RL-R": RoutedCoefficients(-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    "Hash": RoutedCoefficients(-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
}
"""Table 3 of Clark et al. 2022, by router_type."""


def effective_experts(num_experts: np.ndarray, E_start: float, E_max: float) -> np.ndarray:
    """Return Ê, the effective number of experts.

    Args:
        num_experts: E, any shape, finite, at least 1.
        E_start: Ê at E = 1, at least 1 (our choice).
        E_max: limit of Ê for large E, above E_start; may be math.inf.

    Returns:
        Ê, the shape of `num_experts`, in [E_start, E_max).

    Raises:
        ValueError: an entry is not finite or below 1, or not 1 <= E_start < E_max.
    """
    return E_start * np.exp(_log_ratio(num_experts, E_start, E_max))


def predict_loss(dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the loss L that the law predicts.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law.

    Returns:
        L, nats per token, the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.
    """
    a, b, c, d, E_start, E_max = coefficients
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0)) / _LOG_10
    log_experts = (_log_ratio(num_experts, E_start, E_max) + math.log(E_start)) / _LOG_10
    return np.exp(_LOG_10 * (d + a * log_size + (b + c * log_size) * log_experts))


def slope_in_experts(dense_parameters: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 Ê = b + c log10 N: what ten times the effective experts do to log10 L at size N.

    Negative where routing helps. It multiplies log10 Ê, not log10 E: far above E_max more experts hardly change Ê.

    Raises:
        ValueError: a size is not finite or not above 0.
    """
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    return coefficients.b + coefficients.c / _LOG_10 * log_size


def slope_in_parameters(num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 N = a + c log10 Ê: what ten times the parameters do to log10 L at E experts.

    Raises:
        ValueError: as `effective_experts`.
    """
    log_ratio = _log_ratio(num_experts, coefficients.E_start, coefficients.E_max)
    return coefficients.a + coefficients.c / _LOG_10 * (log_ratio + math.log(coefficients.E_start))


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients
) -> np.ndarray:
    """Return N̄, the size of the dense model that the law gives the same loss as (N, E).

    Setting L(N̄, 1) = L(N, E) in the law and writing α(x) = a + c log10 x,

        N̄ = N^(α(Ê)/α(E_start)) · (Ê/E_start)^(b/α(E_start))

    Ill-conditioned far from the data: the exponents divide by the dense slope α(E_start), about -0.08.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law; α(E_start) must not be 0.

    Returns:
        N̄, parameters, the broadcast shape; N itself at E = 1.

    Raises:
        ValueError: an entry is out of its range, or α(E_start) is 0 (then size does not change the dense loss).

    Differs from the reference: computed as log N̄ = log N + log(Ê/E_start) · (b + c log10 N) / α(E_start).
    """
    a, b, c, _, E_start, E_max = coefficients
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    dense_slope = a + c * math.log10(E_start)
    if dense_slope == 0:
        raise ValueError("a + c log10 E_start is 0: no dense size is equivalent, since size does not change the loss")
    slope = b + c / _LOG_10 * log_size
    return np.exp(log_size + slope / dense_slope * _log_ratio(num_experts, E_start, E_max))


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the least E at which size N reaches a loss; where 1 < E < inf, the inverse of `predict_loss`.

    The law gives log10 Ê = (log10 L - a log10 N - d) / (b + c log10 N), and the equation of Ê, turned around,
    E = 1 + (1/Ê - 1/E_max)⁻¹ - (1/E_start - 1/E_max)⁻¹.

    Args:
        dense_parameters: N, parameters, above 0.
        loss: the target, nats per token, above 0; broadcast against `dense_parameters`.
        coefficients: the law.

    Returns:
        E, a real number, the broadcast shape. 1 where the dense model reaches the loss already. math.inf where no E
        does: Ê would have to be E_max or more, or routing does not help at that size (b + c log10 N >= 0).

    Raises:
        ValueError: an entry is out of its range, or not 1 <= E_start < E_max (as where a fit found no coefficients).

    Differs from the reference: with r = Ê/E_start - 1 = rise·x / (1 + bend·x), x is r / (rise - bend·r).
    """
    a, b, c, d, E_start, E_max = coefficients
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0)) / _LOG_10
    log_loss = np.log(check_range("loss", loss, above=0.0)) / _LOG_10
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
    """Return the N at which E experts reach a loss: over many E, a level curve of the loss. Inverse of `predict_loss`.

    The law gives log10 N = (log10 L - b log10 Ê - d) / (a + c log10 Ê).

    Args:
        num_experts: E, at least 1.
        loss: the target, nats per token, above 0; broadcast against `num_experts`.
        coefficients: the law.

    Returns:
        N, parameters, the broadcast shape; NaN where the loss does not fall with size (a + c log10 Ê >= 0); inf or 0
        beyond the range of float64.

    Raises:
        ValueError: as `experts_for_loss`.
    """
    a, b, c, d, E_start, E_max = coefficients
    log_experts = (_log_ratio(num_experts, E_start, E_max) + math.log(E_start)) / _LOG_10
    short = np.log(check_range("loss", loss, above=0.0)) - _LOG_10 * (d + b * log_experts)
    return reach(short, a + c * log_experts, never=math.nan)


def cutoff(coefficients: RoutedCoefficients) -> float:
    """Return N_cutoff = 10^(-b/c), the size at which b + c log10 N reaches 0 and more experts stop helping.

    Very ill-conditioned: one unit in the third decimal of c moves it by an order of magnitude. It lies orders of
    magnitude outside the data.

    Returns:
        N_cutoff in parameters if c > 0. If c <= 0 the slope never rises to 0 as N grows: math.inf. If b or c is NaN
        (a fit that found no coefficients): NaN. 10^(-b/c) above the largest float64 is math.inf as well.
    """
    return crossing(coefficients.b, coefficients.c)


def _log_ratio(num_experts: np.ndarray, E_start: float, E_max: float) -> np.ndarray:
    """Return the natural log of Ê/E_start."""
    _check_limits(E_start, E_max)
    extra = check_range("num_experts", num_experts, least=1.0) - 1.0
    return log_growth(extra, E_start, E_max)


def _check_limits(E_start: float, E_max: float) -> None:
    if not (1 <= E_start < E_max):
        raise ValueError(f"E_start is {E_start} and E_max is {E_max}; needed: 1 <= E_start < E_max")
