"""The best model for a budget, by one law at a time: brute force.

Step by step, with sources and examples: `routelaws.reference.laws.planning`.

Ludziejewski et al. 2025 print for the law m N^μ + n D^ν + c the best N* = G (FLOPs/6)^(ν/(μ+ν)), with
G = (μm/(νn))^(1/(μ+ν)). The right G is the inverse of that; `printed_joint_optimum` is what the printed one gives.

What differs here: closed forms where there are any. Hoffmann's optimum is one, and so is that of the joint law under
FLOPs alone; memory then cuts the width off, since the loss falls up to the optimum. With inference tokens, and for
fine-grained experts, SciPy's bounded search finds the width.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import fine_grained, hoffmann, joint
from ._columns import check_range
from .fine_grained import FineGrainedCoefficients
from .hoffmann import HoffmannCoefficients
from .joint import VOCABULARY, JointCoefficients

GRANULARITIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The G that `fine_grained_optimum` tries, those of the paper."""

EXPERT_COUNTS = (1, 2, 4, 8, 16, 32)
"""The E that `joint_optima` tries, those of the paper's runs."""

LEAST_WIDTH = 64.0
"""The narrowest model that is looked at: one block."""


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
        flops: of training
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
    """What a model of the joint law may cost.

    Attributes:
        flops: of training, and of inference where there are inference tokens
        memory: bytes, for all parameters and the cache
        cached_tokens: T, of the key-value cache
        inference_tokens: over the life of the model
        bytes_per_number: bfloat16
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
        tokens: D, of training
        memory: bytes that are used
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
    """Return the N and D = FLOPs/6N with the least loss.

    Args:
        flops: of training, above 6.
        coefficients: the law; a, b and both exponents above 0, or there is no best N.

    Raises:
        ValueError: one of these is out of its range.

    Differs from the reference: N is a closed form.
    """
    flops = float(check_range("flops", flops, above=6.0))
    for name in ("a", "alpha", "b", "beta"):
        check_range(name, getattr(coefficients, name), above=0.0)
    a, alpha, b, beta, _ = coefficients
    log_size = (math.log(alpha * a) - math.log(beta * b) + beta * math.log(flops / 6)) / (alpha + beta)
    size = math.exp(min(max(log_size, 0.0), math.log(flops / 6)))
    tokens = flops / (6 * size)
    return HoffmannOptimum(size, tokens, flops, float(hoffmann.predict_hoffmann(size, tokens, coefficients)))


def fine_grained_optimum(
    flops: float,
    expansion: float,
    coefficients: FineGrainedCoefficients,
    granularities: Sequence[float] = GRANULARITIES,
) -> FineGrainedOptimum:
    """Return the width, tokens and granularity with the least loss.

    Args:
        flops: of training, above 0.
        expansion: E, that of the runs that the coefficients were fitted to.
        coefficients: the law.
        granularities: the G to try.

    Raises:
        ValueError: an argument is out of its range, or the FLOPs do not train the narrowest model on one token.

    Differs from the reference: SciPy's bounded search finds the width at each G.
    """
    flops = float(check_range("flops", flops, above=0.0))
    least = float(fine_grained.fine_grained_flops(LEAST_WIDTH, expansion, min(granularities)))
    if flops < least:
        raise ValueError(
            f"flops is {flops:g}; one token of a model of width {LEAST_WIDTH:g} takes {least:g} in training"
        )
    a, alpha, b, beta, g, gamma, c = coefficients
    N_0 = float(fine_grained.fine_grained_parameters(1.0, expansion))
    F_0 = 12 * fine_grained.FLOPS_PER_PARAMETER / fine_grained.WIDTH_PER_BLOCK  # of d³
    found = []
    for granularity in granularities:
        router = fine_grained.ROUTER_FLOPS * expansion * granularity / fine_grained.WIDTH_PER_BLOCK
        first = (g * granularity**-gamma + a) * N_0**-alpha

        def loss(t: float, router: float = router, first: float = first) -> float:
            log_tokens = math.log(flops) - 2 * t - math.log(F_0 * math.exp(t) + router)
            return first * math.exp(-3 * alpha * t) + b * math.exp(-beta * log_tokens) + c

        t = _lowest(loss, math.log(LEAST_WIDTH), max(math.log(flops) / 3, math.log(LEAST_WIDTH)))
        found.append((loss(t), t, granularity))
    least_loss, t, granularity = min(found)
    d = math.exp(t)
    tokens = flops / float(fine_grained.fine_grained_flops(d, expansion, granularity))
    size, active = fine_grained.fine_grained_parameters(d, expansion), fine_grained.fine_grained_active(d)
    return FineGrainedOptimum(d, float(size), float(active), tokens, granularity, flops, least_loss)


def fine_grained_for_active(
    active_parameters: float,
    expansion: float,
    coefficients: FineGrainedCoefficients,
    granularities: Sequence[float] = GRANULARITIES,
) -> FineGrainedOptimum:
    """Return the optimum that has so many active parameters: bisection on the logarithm of the FLOPs.

    Where the best G changes with the FLOPs, the best size jumps; inside such a jump the upper side is given.

    Args:
        active_parameters: 12 d² · d/64 of the model that is asked for.
        expansion, coefficients, granularities: as `fine_grained_optimum`.
    """
    active = float(check_range("active_parameters", active_parameters, above=0.0))
    low, high = math.log(1e9), math.log(1e35)
    while high - low > 1e-7:
        middle = (low + high) / 2
        found = fine_grained_optimum(math.exp(middle), expansion, coefficients, granularities)
        low, high = (middle, high) if found.active_parameters < active else (low, middle)
    return fine_grained_optimum(math.exp(high), expansion, coefficients, granularities)


def joint_optimum(
    budget: Budget, num_experts: float, coefficients: JointCoefficients, vocab_size: int = VOCABULARY
) -> JointOptimum:
    """Return the width and tokens with the least loss, of models with E experts.

    Args:
        budget: what may be spent.
        num_experts: E, at least 1.
        coefficients: the law.
        vocab_size: V, for the embeddings.

    Raises:
        ValueError: the budget is out of its range, or the narrowest model is too much for it.

    Differs from the reference: without inference tokens N is a closed form, which the memory may cut off; with them,
    SciPy's bounded search finds the width.
    """
    check_budget(budget)
    m, mu, n, nu, c = joint.at_experts(num_experts, coefficients)
    if not (mu < 0 and nu < 0):
        raise ValueError(
            f"at {num_experts:g} experts the powers of N and D are {mu:.4g} and {nu:.4g}; needed: both below 0"
        )

    widest = _widest(budget, num_experts, vocab_size)

    def active(d: float) -> float:
        return float(joint.joint_active(d, vocab_size))

    if budget.inference_tokens == 0:
        log_size = (nu * math.log(budget.flops / 6) - math.log(mu * m / (nu * n))) / (mu + nu)
        d = min(max(_width(active, math.exp(log_size)), LEAST_WIDTH), widest)
    else:

        def loss(t: float) -> float:
            size = active(math.exp(t))
            return m * size**mu + n * max(_tokens(budget, size), 1.0) ** nu + c

        d = math.exp(_lowest(loss, math.log(LEAST_WIDTH), math.log(widest)))
    size, memory, tokens = active(d), _memory(budget, d, num_experts, vocab_size), _tokens(budget, active(d))
    total = float(joint.joint_total(d, num_experts, vocab_size))
    return JointOptimum(num_experts, d, size, total, tokens, memory, m * size**mu + n * tokens**nu + c)


def _tokens(budget: Budget, active_parameters: float) -> float:
    """Return the training tokens that the FLOPs of a budget leave to a model."""
    return (budget.flops / active_parameters - 2 * budget.inference_tokens) / 6


def _memory(budget: Budget, d: float, num_experts: float, vocab_size: int) -> float:
    """Return the bytes of all parameters and of the cache, at width d."""
    numbers = float(joint.joint_total(d, num_experts, vocab_size)) + float(joint.joint_cache(d, budget.cached_tokens))
    return budget.bytes_per_number * numbers


def _widest(budget: Budget, num_experts: float, vocab_size: int) -> float:
    """Return the greatest width that the FLOPs, at one token, and the memory allow; ValueError below `LEAST_WIDTH`."""

    def active(d: float) -> float:
        return float(joint.joint_active(d, vocab_size))

    def memory(d: float) -> float:
        return _memory(budget, d, num_experts, vocab_size)

    most = budget.flops / (6 + 2 * budget.inference_tokens)  # parameters, at one token
    if active(LEAST_WIDTH) > most or memory(LEAST_WIDTH) > budget.memory:
        raise ValueError(
            f"no model of {num_experts:g} experts fits: one of width {LEAST_WIDTH:g} is too much for the FLOPs or the "
            "memory of the budget"
        )
    widest = _width(active, most)
    return min(widest, _width(memory, budget.memory)) if math.isfinite(budget.memory) else widest


def joint_optima(
    budget: Budget,
    coefficients: JointCoefficients,
    expert_counts: Sequence[float] = EXPERT_COUNTS,
    vocab_size: int = VOCABULARY,
) -> list[JointOptimum]:
    """Return the optimum of each number of experts that fits the budget, the least loss first.

    The loss is nearly the same for several E next to the best one, so that the losses say more than the best E does.

    Args:
        budget, coefficients, vocab_size: as `joint_optimum`.
        expert_counts: the E to try.

    Raises:
        ValueError: the budget is out of its range, or no model fits it.
    """
    found, complaint = [], None
    for count in expert_counts:
        try:
            found.append(joint_optimum(budget, count, coefficients, vocab_size))
        except ValueError as error:
            complaint = error
    if not found:
        raise complaint or ValueError("expert_counts is empty; needed: at least one")
    return sorted(found, key=lambda best: best.loss)


def printed_joint_optimum(flops: float, num_experts: float, coefficients: JointCoefficients) -> tuple[float, float]:
    """Return the N and D that the paper's printed formula gives: with the inverse of the right G (see the top)."""
    m, mu, n, nu, _ = joint.at_experts(num_experts, coefficients)
    log_printed, log = math.log(mu * m / (nu * n)) / (mu + nu), math.log(flops / 6)
    return math.exp(log_printed + nu / (mu + nu) * log), math.exp(mu / (mu + nu) * log - log_printed)


def check_budget(budget: Budget) -> Budget:
    """Return the budget; ValueError unless FLOPs, memory and bytes are above 0 and the tokens at least 0."""
    check_range("flops", budget.flops, above=0.0)
    check_range("bytes_per_number", budget.bytes_per_number, above=0.0)
    for name in ("cached_tokens", "inference_tokens"):
        check_range(name, getattr(budget, name), least=0.0)
    if not budget.memory > 0:
        raise ValueError(f"memory is {budget.memory}; needed: a number of bytes above 0, or inf")
    return budget


def _lowest(function: Callable, low: float, high: float) -> float:
    """Return where a function with one low point has it, between `low` and `high`; an end where it is there."""
    from scipy.optimize import minimize_scalar

    if not low < high:
        return low
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return min((found.fun, found.x), (function(low), low), (function(high), high))[1]


def _width(amount: Callable, limit: float) -> float:
    """Return the width at which an amount that grows with it reaches a limit; 1 if it is above the limit there."""
    from scipy.optimize import brentq

    if amount(1.0) >= limit:
        return 1.0
    high = 2.0
    while amount(high) < limit:
        high *= 2
    return float(brentq(lambda d: amount(d) / limit - 1, high / 2, high, xtol=1e-12, rtol=1e-14))
