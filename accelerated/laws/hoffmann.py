"""Two laws that predict the loss of a dense model from its size N and its training tokens D.

Imported from `routelaws.reference.laws.hoffmann`. The fits and their intervals are compiled (`additive.py`).
"""

import functools
import math

import numpy as np

from routelaws.reference.laws import hoffmann as reference
from routelaws.reference.laws.hoffmann import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.hoffmann import KaplanCoefficients

from .._calling import calling
from . import _smooth, additive


@functools.cache
def _kaplan():
    """Return the form of the law, with θ = (α_N, u, α_D, v) as in the reference."""
    from ..kernels.law_terms import KAPLAN
    from . import _descent

    return _descent.Form(
        KaplanCoefficients._fields,
        (False, True, False, True),
        (math.nan, 0.0, math.nan, 0.0),
        _descent.law_of(KAPLAN),
        _internal_kaplan,
        lambda values: np.log(np.stack(values)),
        lambda logs: logs.mean(axis=1),
        _starts_kaplan,
    )


def _internal_kaplan(values, centres: np.ndarray) -> np.ndarray:
    alpha_N, N_c, alpha_D, D_c = values
    return np.array([alpha_N, alpha_N * (math.log(N_c) - centres[0]), alpha_D, alpha_D * (math.log(D_c) - centres[1])])


def _starts_kaplan(logs: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    return np.array(
        [
            (ratio * alpha_D, alpha_D * first, alpha_D, alpha_D * second)
            for alpha_D in (0.05, 0.1, 0.2, 0.4)
            for ratio in (0.3, 0.7, 1.5)
            for first, second in _smooth.share_out(2, False, log_loss / alpha_D)
        ]
    )


fit_hoffmann = calling(reference.fit_hoffmann, additive=additive)
hoffmann_intervals = calling(reference.hoffmann_intervals, additive=additive)
fit_kaplan = calling(reference.fit_kaplan, _smooth=_smooth, _KAPLAN=_kaplan)
kaplan_intervals = calling(reference.kaplan_intervals, _smooth=_smooth, _KAPLAN=_kaplan)
