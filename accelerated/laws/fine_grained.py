"""See `routelaws.reference.laws.fine_grained`.

What differs here: the fit, as `additive.py` says.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import additive
from ._columns import check_range
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw, Published
from .hoffmann import HoffmannCoefficients

WIDTH_PER_BLOCK = 64

FLOPS_PER_PARAMETER = 6

ROUTER_FLOPS = 14


class FineGrainedCoefficients(NamedTuple):
    """See reference."""

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

_SOURCE = "Krajewski, Ludziejewski et al. 2024, arXiv 2402.07871, table 1"
_SEEN = "read in the paper, two or three digits"

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


def predict_fine_grained(
    total_parameters: np.ndarray, tokens: np.ndarray, granularity: np.ndarray, coefficients: FineGrainedCoefficients
) -> np.ndarray:
    """See reference."""
    return additive.predict_additive(FINE_GRAINED, coefficients, [total_parameters, tokens, granularity])


def fit_fine_grained(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    granularity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """See reference."""
    return additive.fit_additive(FINE_GRAINED, [total_parameters, tokens, granularity], loss, huber, starts)


def fine_grained_intervals(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    granularity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """See reference."""
    columns = [total_parameters, tokens, granularity]
    return additive.additive_intervals(FINE_GRAINED, columns, loss, huber, level, at)


def fine_grained_parameters(d_model: np.ndarray, expansion: float) -> np.ndarray:
    """See reference."""
    d = check_range("d_model", d_model, above=0.0)
    return (8 * check_range("expansion", expansion, least=1.0) + 4) / WIDTH_PER_BLOCK * d * d * d


def fine_grained_active(d_model: np.ndarray) -> np.ndarray:
    """See reference."""
    d = check_range("d_model", d_model, above=0.0)
    return 12 / WIDTH_PER_BLOCK * d * d * d


def fine_grained_flops(
    d_model: np.ndarray, expansion: float, granularity: np.ndarray, router_flops: float = ROUTER_FLOPS
) -> np.ndarray:
    """See reference."""
    d = check_range("d_model", d_model, above=0.0)
    experts = check_range("expansion", expansion, least=1.0) * check_range("granularity", granularity, above=0.0)
    return d * d / WIDTH_PER_BLOCK * (12 * FLOPS_PER_PARAMETER * d + router_flops * experts)
