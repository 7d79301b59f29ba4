"""The best model for a budget by one law, by exhaustive search.

Each function returns the model with the lowest loss among all models that the budget allows. The search varies the
width d or the size N. It scans a thousand values, and then again between the neighbours of the best value (`_lowest`).
The model gets as many tokens D as the FLOPs allow.

    Hoffmann       6 N D = FLOPs
    fine-grained   training FLOPs of `fine_grained.py`, for each granularity G, then the best G
    joint          6 N D + 2 N D_inference = FLOPs    a token of inference costs a third of a training token
                   bytes · (P + 2 T d · d/64) <= memory    all parameters, and a cache of T tokens

Widths and numbers of tokens are real numbers here, as in the papers. The width of a trained model is a multiple of 64.

ERRATUM of Ludziejewski et al. 2025, our finding. They print for the law m N^μ + n D^ν + c, with μ and ν below 0,

    N* = G (FLOPs/6)^(ν/(μ+ν)),   D* = G⁻¹ (FLOPs/6)^(μ/(μ+ν)),   G = (μm/(νn))^(1/(μ+ν))

At the minimum, with D = FLOPs/6N, the derivative μ m N^μ - ν n D^ν is 0. With D* and N* inserted, the powers of FLOPs/6
cancel: μ m G^μ = ν n G^(-ν). So G = (μm/(νn))^(-1/(μ+ν)), the inverse of the printed G. The corrected G reproduces
their table of optima. `printed_joint_optimum` uses the printed G. Its model has a higher loss.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..numerics._projection import check_range
from ..tokens import fine_grained, hoffmann, joint
from ..tokens.fine_grained import FineGrainedCoefficients
from ..tokens.hoffmann import HoffmannCoefficients
from ..tokens.joint import VOCABULARY, JointCoefficients

GRANULARITIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The G that `fine_grained_optimum` tries, as in the paper."""

EXPERT_COUNTS = (1, 2, 4, 8, 16, 32)
"""The E that `joint_optima` tries, as in the paper's runs."""

LEAST_WIDTH = 64.0
"""The narrowest model of the search: one block."""


class HoffmannOptimum(NamedTuple):
    """The best N and D for a number of FLOPs.

    Attributes:
        parameters: N
        tokens: D
        flops: 6 N D
        loss: nats per token
    """

    parameters: float
    tokens: float
    flops: float
    loss: float


class FineGrainedOptimum(NamedTuple):
    """The best model of one expansion for a number of FLOPs.

    Attributes:
        d_model: d, the width
        total_parameters: N, without embeddings and routers
        active_parameters: 12 d² · d/64, without embeddings and routers
        tokens: D
        granularity: G
        flops: FLOPs of training
        loss: nats per token
    """

    d_model: float
    total_parameters: float
    active_parameters: float
    tokens: float
    granularity: float
    flops: float
    loss: float


class Budget(NamedTuple):
    """The limits on the cost of a model.

    Attributes:
        flops: FLOPs of training, plus FLOPs of inference if there are inference tokens
        memory: bytes, for all parameters and the cache
        cached_tokens: T, the tokens of the key-value cache
        inference_tokens: tokens of inference over the life of the model
        bytes_per_number: 2 for bfloat16
    """

    flops: float
    memory: float = math.inf
    cached_tokens: float = 0.0
    inference_tokens: float = 0.0
    bytes_per_number: float = 2.0


class JointOptimum(NamedTuple):
    """The best model of one number of experts for a budget.

    Attributes:
        num_experts: E
        d_model: d, the width
        active_parameters: N, with embeddings
        total_parameters: all parameters, with embeddings
        tokens: D, training tokens
        memory: used bytes
        loss: nats per token
    """

    num_experts: float
    d_model: float
    active_parameters: float
    total_parameters: float
    tokens: float
    memory: float
    loss: float


def hoffmann_optimum(flops: float, coefficients: HoffmannCoefficients) -> HoffmannOptimum:
    """Return the N and D = FLOPs/6N with the lowest loss.

    Args:
        flops: FLOPs of training, above 6.
        coefficients: the law; a, b and both exponents above 0, else no best N exists.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        With a = b and equal exponents, N and D are equal.

        >>> best = hoffmann_optimum(6e20, HoffmannCoefficients(400.0, 0.3, 400.0, 0.3, 1.7))
        >>> f"{best.parameters:.4g} {best.tokens:.4g}"
        '1e+10 1e+10'
    """
    flops = float(check_range("flops", flops, above=6.0))
    for name in ("a", "alpha", "b", "beta"):
        check_range(name, getattr(coefficients, name), above=0.0)

    def loss(size: np.ndarray) -> np.ndarray:
        return hoffmann.predict_hoffmann(size, flops / (6 * size), coefficients)

    size, least = _lowest(loss, 1.0, flops / 6)
    return HoffmannOptimum(size, flops / (6 * size), flops, least)


def fine_grained_optimum(
    flops: float,
    expansion: float,
    coefficients: FineGrainedCoefficients,
    granularities: Sequence[float] = GRANULARITIES,
) -> FineGrainedOptimum:
    """Return the width, tokens and granularity with the lowest loss.

    Args:
        flops: FLOPs of training, above 0.
        expansion: the E of the runs to which the law was fitted.
        coefficients: the law.
        granularities: the G to try.

    Raises:
        ValueError: an argument is out of its range, or the FLOPs do not train the narrowest model on one token.
    """
    flops = float(check_range("flops", flops, above=0.0))
    least = float(fine_grained.fine_grained_flops(LEAST_WIDTH, expansion, min(granularities)))
    if flops < least:
        raise InputError(
            f"flops is {flops:g}; use {least:g} or more, the FLOPs to train a model of width {LEAST_WIDTH:g} on one "
            "token"
        )
    optima = [_best_width(flops, expansion, coefficients, granularity) for granularity in granularities]
    return min(optima, key=lambda best: best.loss)


def _best_width(
    flops: float, expansion: float, coefficients: FineGrainedCoefficients, granularity: float
) -> FineGrainedOptimum:
    """Return the best model of one granularity."""

    def tokens(d: np.ndarray) -> np.ndarray:
        return flops / fine_grained.fine_grained_flops(d, expansion, granularity)

    def loss(d: np.ndarray) -> np.ndarray:
        size = fine_grained.fine_grained_parameters(d, expansion)
        return fine_grained.predict_fine_grained(size, tokens(d), granularity, coefficients)

    # Training costs at least 72 d³/64 FLOPs per token for any G, so d is at most the cube root of the FLOPs.
    d, least_loss = _lowest(loss, LEAST_WIDTH, max(flops ** (1 / 3), LEAST_WIDTH))
    size, active = fine_grained.fine_grained_parameters(d, expansion), fine_grained.fine_grained_active(d)
    return FineGrainedOptimum(d, float(size), float(active), float(tokens(d)), granularity, flops, least_loss)


def fine_grained_for_active(
    active_parameters: float,
    expansion: float,
    coefficients: FineGrainedCoefficients,
    granularities: Sequence[float] = GRANULARITIES,
) -> FineGrainedOptimum:
    """Return the optimum with a given number of active parameters; bisection of log FLOPs finds its budget.

    The best size jumps at FLOPs where the best G changes. For a size inside such a jump, the result is the model at its
    upper end.

    Args:
        active_parameters: active parameters of the model, 12 d² · d/64.
        expansion, coefficients, granularities: as in `fine_grained_optimum`.
    """
    active = float(check_range("active_parameters", active_parameters, above=0.0))
    low, high = math.log(1e9), math.log(1e35)
    while high - low > 1e-7:
        middle = (low + high) / 2
        optimum = fine_grained_optimum(math.exp(middle), expansion, coefficients, granularities)
        if optimum.active_parameters < active:
            low = middle
        else:
            high = middle
    return fine_grained_optimum(math.exp(high), expansion, coefficients, granularities)


def joint_optimum(
    budget: Budget, num_experts: float, coefficients: JointCoefficients, vocab_size: int = VOCABULARY
) -> JointOptimum:
    """Return the width and tokens with the lowest loss among models with E experts.

    Args:
        budget: the limits on cost.
        num_experts: E, at least 1.
        coefficients: the law.
        vocab_size: V, for the embeddings.

    Raises:
        ValueError: the budget is out of its range, or too small for the narrowest model.
    """
    check_budget(budget)
    _check_powers(num_experts, coefficients)

    def memory(d: np.ndarray) -> np.ndarray:
        numbers = joint.joint_total(d, num_experts, vocab_size) + joint.joint_cache(d, budget.cached_tokens)
        return budget.bytes_per_number * numbers

    def tokens(d: np.ndarray) -> np.ndarray:
        return (budget.flops / joint.joint_active(d, vocab_size) - 2 * budget.inference_tokens) / 6

    def loss(d: np.ndarray) -> np.ndarray:
        fits = (memory(d) <= budget.memory) & (tokens(d) >= 1)
        active = joint.joint_active(d, vocab_size)
        return np.where(fits, joint.predict_joint(active, np.maximum(tokens(d), 1), num_experts, coefficients), np.inf)

    # Training costs 6 FLOPs per token for each of 13 d³/64 parameters, so d is at most the cube root of the FLOPs.
    d, least = _lowest(loss, LEAST_WIDTH, max(budget.flops ** (1 / 3), LEAST_WIDTH))
    if math.isinf(least):
        raise InputError(
            f"no model of {num_experts:g} experts fits: even width {LEAST_WIDTH:g} exceeds the FLOPs or the "
            "memory of the budget"
        )
    active, total = joint.joint_active(d, vocab_size), joint.joint_total(d, num_experts, vocab_size)
    return JointOptimum(num_experts, d, float(active), float(total), float(tokens(d)), float(memory(d)), least)


def joint_optima(
    budget: Budget,
    coefficients: JointCoefficients,
    expert_counts: Sequence[float] = EXPERT_COUNTS,
    vocab_size: int = VOCABULARY,
) -> list[JointOptimum]:
    """Return the optimum of each number of experts that fits the budget, sorted by loss.

    Compare the losses, not only the best E: several E near the best have nearly the same loss.

    Args:
        budget, coefficients, vocab_size: as in `joint_optimum`.
        expert_counts: the E to try.

    Raises:
        ValueError: the budget is out of its range, or no model fits it.
    """
    optima, complaint = [], None
    for count in expert_counts:
        try:
            optima.append(joint_optimum(budget, count, coefficients, vocab_size))
        except ValueError as error:
            complaint = error
    if not optima:
        raise complaint or ValueError("expert_counts is empty; needed: at least one")
    return sorted(optima, key=lambda best: best.loss)


def printed_joint_optimum(flops: float, num_experts: float, coefficients: JointCoefficients) -> tuple[float, float]:
    """Return N and D by the paper's printed formula, whose G is inverted (see the top of this file)."""
    m, mu, n, nu, _ = joint.at_experts(num_experts, coefficients)
    printed = (mu * m / (nu * n)) ** (1 / (mu + nu))
    return printed * (flops / 6) ** (nu / (mu + nu)), (flops / 6) ** (mu / (mu + nu)) / printed


def _check_powers(num_experts: float, coefficients: JointCoefficients) -> None:
    """Raise InputError unless the loss falls with N and with D: else there is no best size."""
    law = joint.at_experts(num_experts, coefficients)
    if not (law.mu < 0 and law.nu < 0):
        raise InputError(
            f"at {num_experts:g} experts the powers of N and D are {law.mu:.4g} and {law.nu:.4g}; needed: both below 0"
        )


def _lowest(function: Callable, low: float, high: float) -> tuple[float, float]:
    """Return the point between `low` and `high` where a function has its least value, and this value.

    The search tries a thousand values at equal ratios. It then repeats this between the two neighbours of the best
    value, until only rounding separates the neighbours. Here, `function` has a single minimum, and is infinite above
    the budget.

    Example:
        >>> x, value = _lowest(lambda x: (np.log(x) - 3.0) ** 2, 1.0, 1e9)
        >>> round(float(np.log(x)), 6), round(value, 9)
        (3.0, 0.0)
    """
    for _ in range(5):
        points = np.geomspace(low, high, 1001)
        values = function(points)
        k = int(np.argmin(values))
        low, high = points[max(k - 1, 0)], points[min(k + 1, 1000)]
    return float(points[k]), float(values[k])


def check_budget(budget: Budget) -> Budget:
    """Return the budget. Raise ValueError unless FLOPs, memory and bytes are above 0 and the tokens at least 0."""
    check_range("flops", budget.flops, above=0.0)
    check_range("bytes_per_number", budget.bytes_per_number, above=0.0)
    for name in ("cached_tokens", "inference_tokens"):
        check_range(name, getattr(budget, name), least=0.0)
    if not budget.memory > 0:
        raise InputError(f"memory is {budget.memory}; needed: a number of bytes above 0, or inf")
    return budget


# What this file does not do: rank laws and routers, or give the uncertainty of an optimum.
