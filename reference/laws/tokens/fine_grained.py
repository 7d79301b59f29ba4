"""The law of fine-grained experts: how the loss of a routed model depends on size, tokens and granularity.

After Krajewski, Ludziejewski et al. 2024 (arXiv 2402.07871):

    L = c + (g/G^γ + a)/N^α + b/D^β

where  L  training loss at the end, nats per token
       N  all parameters except embeddings and routers
       D  training tokens
       G  granularity, d_ff/d_expert: an expert is G times narrower than the dense feed-forward layer. A token uses G
          experts, so the compute stays the same

The law holds at a fixed *expansion* E: together, the experts of a layer are E times as large as the dense layer. There
are G·E experts, so this E equals the E of `routed.py` only if G = 1. A dense model has no term g/G^γ: its law is
`hoffmann.py`.

`additive.py` fits the law as four terms; g/(G^γ N^α) and a/N^α share the exponent α.

The price of granularity is the router: its FLOPs grow with the number of experts. With model width d, d_ff = 4d and all
blocks routed,

    training FLOPs = (12 d² · 6 + d · E · G · 14) · D · blocks

Per token, forward and backward, the paper counts 6 FLOPs for each active parameter of a block (12 d²). It counts 14 for
each parameter of the router: 6 for its matrix product and 8 for dispatch and combination. Attention scores and
embeddings do not count. The models of the paper have d = 64 · blocks (our `WIDTH_PER_BLOCK`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..numerics import _smooth
from ..numerics._projection import check_range
from . import additive
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw, Published
from .hoffmann import HoffmannCoefficients

WIDTH_PER_BLOCK = 64
"""The width d divided by the number of blocks, in the models of the paper."""

FLOPS_PER_PARAMETER = 6
"""Training FLOPs for each active parameter and token."""

ROUTER_FLOPS = 14
"""Training FLOPs of the router for each unit of width, expert and token. In the paper, values from 6 to 20 give nearly
the same results.
"""


class FineGrainedCoefficients(NamedTuple):
    """Coefficients of the fine-grained law: L = c + (g/G^gamma + a)/N^alpha + b/D^beta.

    Attributes:
        a: nats at N = 1, for infinite G
        alpha: power of N
        b: nats at D = 1
        beta: power of D
        g: nats at N = 1; the addition to a at G = 1
        gamma: power of G
        c: nats, the floor
    """

    a: float
    alpha: float
    b: float
    beta: float
    g: float
    gamma: float
    c: float


FINE_GRAINED = AdditiveLaw(
    "fine-grained",
    FineGrainedCoefficients,
    ("total_parameters", "tokens", "granularity"),
    (
        ("a", {"alpha": "total_parameters"}),
        ("b", {"beta": "tokens"}),
        ("g", {"alpha": "total_parameters", "gamma": "granularity"}),
        ("c", {}),
    ),
)
"""The law, for the functions of `additive.py`."""

_SOURCE = "Krajewski, Ludziejewski et al. 2024, arXiv 2402.07871, table 1"
_SEEN = "read in the paper (two or three digits)"

PUBLISHED = {
    "E=64": Published(FineGrainedCoefficients(18.1, 0.115, 30.8, 0.147, 2.1, 0.58, 0.472), _SOURCE, _SEEN),
    "E=64, validation": Published(
        FineGrainedCoefficients(17.6, 0.114, 26.7, 0.140, 2.07, 0.570, 0.472),
        _SOURCE + ", without the fifth of the runs with the lowest perplexity",
        _SEEN,
    ),
    "E=16": Published(FineGrainedCoefficients(19.64, 0.124, 57.07, 0.169, 1.18, 0.986, 0.472), _SOURCE, _SEEN),
    "dense": Published(HoffmannCoefficients(16.3, 0.126, 26.7, 0.127, 0.47), _SOURCE, _SEEN),
}
"""Printed coefficients, by the expansion E of the runs. c is 0.47 in the table and 0.472 before rounding."""


def predict_fine_grained(
    total_parameters: np.ndarray, tokens: np.ndarray, granularity: np.ndarray, coefficients: FineGrainedCoefficients
) -> np.ndarray:
    """Return the loss that the fine-grained law predicts, L = c + (g/G^gamma + a)/N^alpha + b/D^beta.

    Args:
        total_parameters: N, without embeddings and routers, above 0.
        tokens: D, above 0.
        granularity: G, above 0; the three broadcast against each other.
        coefficients: the law.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        0.5 + (4/2 + 1)/10 + 20/100:

        >>> law = FineGrainedCoefficients(1.0, 1.0, 20.0, 1.0, 4.0, 1.0, 0.5)
        >>> float(predict_fine_grained(10.0, 100.0, 2.0, law))
        1.0
    """
    return additive.predict_additive(FINE_GRAINED, coefficients, [total_parameters, tokens, granularity])


def fit_fine_grained(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    granularity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit the fine-grained law to runs with one expansion E; see `additive.fit_additive`.

    The paper's own fit uses δ = 0.1, a small weight decay on the unknowns and one start.

    Args:
        total_parameters, tokens, granularity, loss: [n] each: N, D, G and L, above 0; at least three different G.
        huber: δ in natural logarithms, or None for least squares.
        starts: [s, 7], starting coefficients; None for the default starts.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: `additive.fit_additive` raises this error.
    """
    columns = [total_parameters, tokens, granularity]
    return additive.fit_additive(FINE_GRAINED, columns, loss, huber, starts, search=search)


def fine_grained_intervals(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    granularity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, or of L at the points `at` = (N [m], D [m], G [m]).

    See `additive.additive_intervals`.
    """
    columns = [total_parameters, tokens, granularity]
    return additive.additive_intervals(FINE_GRAINED, columns, loss, huber, level, at, search=search)


def fine_grained_parameters(d_model: np.ndarray, expansion: float) -> np.ndarray:
    """Return N = d² (8E + 4) d/64: attention (4 d²) and experts (8 d² E) of each of d/64 blocks.

    Example:
        >>> float(fine_grained_parameters(512, 64))  # "64 x 25M" in the paper
        1082130432.0
    """
    d = check_range("d_model", d_model, above=0.0)
    return d**2 * (8 * check_range("expansion", expansion, least=1.0) + 4) * d / WIDTH_PER_BLOCK


def fine_grained_active(d_model: np.ndarray) -> np.ndarray:
    """Return the active parameters, 12 d² · d/64: attention and G experts, each 1/G of the dense layer.

    Example:
        >>> float(fine_grained_active(512))
        25165824.0
    """
    return 12 * check_range("d_model", d_model, above=0.0) ** 3 / WIDTH_PER_BLOCK


def fine_grained_flops(
    d_model: np.ndarray, expansion: float, granularity: np.ndarray, router_flops: float = ROUTER_FLOPS
) -> np.ndarray:
    """Return the FLOPs of training on one token, (12 d² · 6 + d E G · 14) d/64.

    Args:
        d_model: d, above 0; it need not be a multiple of 64.
        expansion: E, at least 1.
        granularity: G, above 0; broadcast against `d_model`.
        router_flops: the factor 14.

    Example:
        One block of width 64: 72 · 64² for the model and 14 · 64 · 4 · 8 for the router.

        >>> float(fine_grained_flops(64, 4, 8))
        323584.0
    """
    d = check_range("d_model", d_model, above=0.0)
    experts = check_range("expansion", expansion, least=1.0) * check_range("granularity", granularity, above=0.0)
    return (12 * d**2 * FLOPS_PER_PARAMETER + d * experts * router_flops) * d / WIDTH_PER_BLOCK


# What this file does not do: the best (N, D, G) for a budget (`planning.py`).
