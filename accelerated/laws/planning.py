"""The best model for a budget by one law, by exhaustive search.

Shared with `routelaws.reference.laws.planning`. Two searches differ: Hoffmann's optimum is a closed form, and
SciPy's bounded search finds the width of fine-grained experts.
"""

import math
from collections.abc import Sequence

from routelaws.reference.laws import fine_grained, hoffmann
from routelaws.reference.laws._projection import check_range
from routelaws.reference.laws.fine_grained import FineGrainedCoefficients
from routelaws.reference.laws.hoffmann import HoffmannCoefficients
from routelaws.reference.laws.planning import GRANULARITIES, LEAST_WIDTH, FineGrainedOptimum, HoffmannOptimum

from ..errors import InputError
from ._searches import share


def hoffmann_optimum(flops: float, coefficients: HoffmannCoefficients) -> HoffmannOptimum:
    """Return the N and D = FLOPs/6N with the lowest loss.

    Args:
        flops: FLOPs of training, above 6.
        coefficients: the law; a, b and both exponents above 0, else no best N exists.

    Raises:
        ValueError: an argument is out of its range.

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
    """Return the width, tokens and granularity with the lowest loss.

    Args:
        flops: FLOPs of training, above 0.
        expansion: the E of the runs to which the law was fitted.
        coefficients: the law.
        granularities: the G to try.

    Raises:
        ValueError: an argument is out of its range, or the FLOPs do not train the narrowest model on one token.

    Differs from the reference: bisection finds the width at each G.
    """
    flops = float(check_range("flops", flops, above=0.0))
    least = float(fine_grained.fine_grained_flops(LEAST_WIDTH, expansion, min(granularities)))
    if flops < least:
        raise InputError(
            f"flops is {flops:g}; use {least:g} or more, the FLOPs to train a model of width {LEAST_WIDTH:g} on "
            "one token"
        )
    a, alpha, b, beta, g, gamma, c = coefficients
    N_0 = float(fine_grained.fine_grained_parameters(1.0, expansion))
    F_0 = 12 * fine_grained.FLOPS_PER_PARAMETER / fine_grained.WIDTH_PER_BLOCK  # of d³
    optima = []
    for granularity in granularities:
        router = fine_grained.ROUTER_FLOPS * expansion * granularity / fine_grained.WIDTH_PER_BLOCK
        first = (g * granularity**-gamma + a) * N_0**-alpha

        low, high = math.log(LEAST_WIDTH), max(math.log(flops) / 3, math.log(LEAST_WIDTH))
        for _ in range(60):  # both terms of the loss are convex in t
            t = (low + high) / 2
            layers, by_size = F_0 * math.exp(t), first * math.exp(-3 * alpha * t)
            by_tokens = b * (math.exp(2 * t) * (layers + router) / flops) ** beta
            rising = beta * by_tokens * (2 + layers / (layers + router)) > 3 * alpha * by_size
            low, high = (low, t) if rising else (t, high)
        optima.append((by_size + by_tokens + c, t, granularity))
    least_loss, t, granularity = min(optima)
    d = math.exp(t)
    tokens = flops / float(fine_grained.fine_grained_flops(d, expansion, granularity))
    size, active = fine_grained.fine_grained_parameters(d, expansion), fine_grained.fine_grained_active(d)
    return FineGrainedOptimum(d, float(size), float(active), tokens, granularity, flops, least_loss)


share(__name__)
