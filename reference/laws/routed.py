"""The bounded law: how the loss of a routed language model falls with model size N and number of experts E.

The law is from Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169). Logarithms are
decimal, as in the paper. The law and the equation of Ê:

    log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d

    1/Ê = 1 / (E - 1 + (1/E_start - 1/E_max)⁻¹) + 1/E_max

where  L  loss of the last evaluation, nats per token, above 0
       N  dense (active) parameters, above 0; experts do not count
       E  experts per routed layer, 1 (a dense model) or more; any real number is allowed
       Ê  *effective* experts: E_start at E = 1, rising with E and never above E_max.

a is the slope of log10 L against log10 N at Ê = 1, and b is the slope against log10 Ê at N = 1. Routing helps less as N
grows if c > 0. More experts hardly change the loss if E is far below E_start or far above E_max. E_max may be infinite:
then Ê = E - 1 + E_start. The domain is 1 <= E_start < E_max <= ∞. The bound E_start >= 1 is our choice: a dense model
then counts as at least one expert. The paper's three values are above 1.8.

Single coefficients are ill-conditioned. The coefficients b and d are values at N = 1, seven decades below any trained
model. So a small change of c changes them much. Print b + c log10 N at trained sizes instead (`slope_in_experts`). One
unit in the third decimal of c changes `cutoff` (10 to the power -b/c) by an order of magnitude. So the rounded numbers
of the paper's Table 3 do not reproduce its cut-offs.

`slope_in_experts` and `slope_in_parameters` are derivatives, so they are negative while routing and size help. Other
authors print them with the opposite sign, as a gain.
"""

import math
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .numerics._columns import bilinear, crossing, effective, reach, worth
from .numerics._projection import check_range


class RoutedCoefficients(NamedTuple):
    """The six coefficients of the bounded law.

    Attributes:
        a: d log10 L / d log10 N at Ê = 1
        b: d log10 L / d log10 Ê at N = 1
        c: change of the slope against log10 Ê per decade of N
        d: log10 L at N = 1, Ê = 1
        E_start: Ê of a dense model, 1 <= E_start < E_max (the bound 1 is our choice)
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
        Ê with the shape of `num_experts`, at least E_start and below E_max.

    Raises:
        ValueError: an entry is not finite or below 1, or not 1 <= E_start < E_max.

    Example:
        With E_start = 2 and E_max = 4, the inner term is 1 / (1/2 - 1/4) = 4. Then Ê is 1 / (1/4 + 1/4) = 2 = E_start
        at E = 1, and 1 / (1/12 + 1/4) = 3 at E = 9.

        >>> effective_experts(np.array([1.0, 9.0]), 2.0, 4.0)
        array([2., 3.])
        >>> effective_experts(np.array([1.0, 9.0]), 2.0, math.inf)
        array([ 2., 10.])
    """
    num_experts = check_range("num_experts", num_experts, least=1.0)
    if not (1 <= E_start < E_max):
        raise InputError(f"E_start is {E_start} and E_max is {E_max}; needed: 1 <= E_start < E_max")
    return effective(num_experts - 1.0, E_start, E_max)


def predict_loss(dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the loss L that the law predicts.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.

    Example:
        log10 L = -0.1 * 8 - 0.2 * log10 10 + 0.01 * 8 * log10 10 + 1.12 = 0.2, so L = 10^0.2.

        >>> law = RoutedCoefficients(-0.1, -0.2, 0.01, 1.12, 2.0, math.inf)
        >>> print(round(float(predict_loss(1e8, 9, law)), 6), round(10**0.2, 6))
        1.584893 1.584893
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    log_experts = np.log10(effective_experts(num_experts, coefficients.E_start, coefficients.E_max))
    return bilinear(coefficients[:4], log_size, log_experts)


def slope_in_experts(dense_parameters: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 Ê = b + c log10 N, the change of log10 L per decade of effective experts at size N.

    The slope is negative where routing helps. It is a slope against log10 Ê, not log10 E: where E is far above E_max,
    it hardly changes Ê.

    Raises:
        ValueError: a size is not finite or not above 0.

    Example:
        >>> float(slope_in_experts(1e10, RoutedCoefficients(-0.1, -0.5, 0.04, 1.0, 2.0, 300.0)))
        -0.09999999999999998
    """
    return coefficients.b + coefficients.c * np.log10(check_range("dense_parameters", dense_parameters, above=0.0))


def slope_in_parameters(num_experts: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 N = a + c log10 Ê, the change of log10 L per decade of parameters at E experts.

    Raises:
        ValueError: `effective_experts` raises this error.

    Example:
        >>> float(slope_in_parameters(9, RoutedCoefficients(-0.08, -0.1, 0.01, 1.0, 2.0, math.inf)))
        -0.07
    """
    log_experts = np.log10(effective_experts(num_experts, coefficients.E_start, coefficients.E_max))
    return coefficients.a + coefficients.c * log_experts


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: RoutedCoefficients
) -> np.ndarray:
    """Return N̄, the size of the dense model with the same predicted loss as (N, E).

    With α(x) = a + c log10 x, L(N̄, 1) = L(N, E) gives

        N̄ = N^(α(Ê)/α(E_start)) · (Ê/E_start)^(b/α(E_start))

    N̄ is ill-conditioned far from the data, because its exponents are divided by the small dense slope α(E_start),
    about -0.08.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law; α(E_start) must not be 0.

    Returns:
        N̄ in parameters, with the broadcast shape; N itself at E = 1.

    Raises:
        ValueError: an entry is out of its range, or α(E_start) is 0 (then size does not change the dense loss).

    Example:
        With c = 0, a = -0.1 and b = -0.2, twice the Ê is worth 2² times the parameters.

        >>> law = RoutedCoefficients(-0.1, -0.2, 0.0, 1.0, 2.0, math.inf)
        >>> print(round(float(effective_parameter_count(1e6, 3, law))))
        4000000
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    log_experts = np.log10(effective_experts(num_experts, coefficients.E_start, coefficients.E_max))
    log_start = math.log10(coefficients.E_start)
    if coefficients.a + coefficients.c * log_start == 0:
        raise InputError(
            "a + c log10 E_start is 0: size does not change the dense loss, so no dense model has the loss of (N, E)"
        )
    return worth(coefficients[:4], log_size, log_experts, log_start)


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the least E at which a model of size N reaches a loss.

    The law gives log10 Ê = (log10 L - a log10 N - d) / (b + c log10 N). The equation of Ê then gives E = 1 + (1/Ê -
    1/E_max)⁻¹ - (1/E_start - 1/E_max)⁻¹.

    Args:
        dense_parameters: N, parameters, above 0.
        loss: the target, nats per token, above 0; broadcast against `dense_parameters`.
        coefficients: the law.

    Returns:
        E, a real number, with the broadcast shape: 1 where the dense model already reaches the loss; math.inf where no
        E reaches the loss (Ê would be E_max or more, or b + c log10 N >= 0).

    Raises:
        ValueError: an entry is out of its range, or not 1 <= E_start < E_max.

    Example:
        The example of `effective_experts` has Ê = 2 at E = 1, 3 at E = 9 and less than 4 everywhere. With L = 1/Ê:

        >>> law = RoutedCoefficients(0.0, -1.0, 0.0, 0.0, 2.0, 4.0)
        >>> experts_for_loss(1e8, np.array([0.6, 1 / 3, 0.25, 0.2]), law).round(6)
        array([ 1.,  9., inf, inf])
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    log_loss = np.log10(check_range("loss", loss, above=0.0))
    # Ê of a dense model is E_start; the call also checks the domain.
    log_start = np.log10(effective_experts(1.0, coefficients.E_start, coefficients.E_max))
    saturation = 1.0 / coefficients.E_max  # 0 if E_max is infinite
    slope = coefficients.b + coefficients.c * log_size
    level = coefficients.a * log_size + coefficients.d
    with np.errstate(divide="ignore", invalid="ignore"):
        left = 1.0 / reach(log_loss, level, slope, never=math.inf) - saturation  # 1/Ê - 1/E_max
        experts = 1.0 + 1.0 / left - 1.0 / (1.0 / coefficients.E_start - saturation)
        experts = np.where((slope < 0) & (left > 0), np.maximum(experts, 1.0), math.inf)
    return np.where(log_loss - level >= slope * log_start, 1.0, experts)


def size_for_loss(num_experts: np.ndarray, loss: np.ndarray, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the N at which a model with E experts reaches a loss.

    The law gives log10 N = (log10 L - b log10 Ê - d) / (a + c log10 Ê).

    Args:
        num_experts: E, at least 1.
        loss: the target, nats per token, above 0; broadcast against `num_experts`.
        coefficients: the law.

    Returns:
        N in parameters, with the broadcast shape; NaN where a + c log10 Ê >= 0 (the loss does not fall with size); inf
        or 0 where N is out of the range of float64.

    Raises:
        ValueError: `experts_for_loss` raises this error.

    Example:
        The example of `predict_loss`, inverted.

        >>> law = RoutedCoefficients(-0.1, -0.2, 0.01, 1.12, 2.0, math.inf)
        >>> print(round(float(size_for_loss(9, 10**0.2, law))))
        100000000
    """
    log_experts = np.log10(effective_experts(num_experts, coefficients.E_start, coefficients.E_max))
    log_loss = np.log10(check_range("loss", loss, above=0.0))
    level, slope = coefficients.b * log_experts + coefficients.d, coefficients.a + coefficients.c * log_experts
    return reach(log_loss, level, slope, never=math.nan)


def cutoff(coefficients: RoutedCoefficients) -> float:
    """Return N_cutoff = 10^(-b/c), the size at which b + c log10 N reaches 0 and more experts stop helping.

    N_cutoff is very ill-conditioned: one unit in the third decimal of c changes it by an order of magnitude.

    Returns:
        N_cutoff in parameters if c > 0; math.inf if c <= 0 or if the value is above the largest float64; NaN if b or c
        is NaN.

    Example:
        >>> cutoff(RoutedCoefficients(-0.08, -0.12, 0.01, 1.1, 2.0, 300.0))
        1000000000000.0
        >>> cutoff(RoutedCoefficients(-0.08, -0.12, 0.0, 1.1, 2.0, 300.0))
        inf
    """
    return crossing(float(coefficients.b), float(coefficients.c))


# What this file does not do: find the coefficients (`fitting.py`), or give their uncertainty
# (`uncertainty.py`).
