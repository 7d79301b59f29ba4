"""Two laws that predict the loss of a dense model from its size N and its training tokens D.

Imported from `routelaws.reference.laws.hoffmann`. The search differs (`additive.py`).
"""

import math

import numpy as np

from routelaws.reference.laws import hoffmann as reference
from routelaws.reference.laws.hoffmann import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.hoffmann import KaplanCoefficients

from .._calling import calling
from . import _descent, _smooth, additive


def _predict_kaplan(theta, logs):
    """ln L̂ = α_D ln(exp((u - α_N n)/α_D) + exp(v/α_D - d)); θ = (α_N, u, α_D, v) as in the reference."""
    n, d = logs[..., 0, :], logs[..., 1, :]
    alpha_N, u, alpha_D, v = theta.T[:, :, None]
    first, second = (u - alpha_N * n) / alpha_D, v / alpha_D - d
    total = np.logaddexp(first, second)
    of_first, of_second = np.exp(first - total), np.exp(second - total)
    entropy = of_first * (total - first) + of_second * (total - second)
    return alpha_D * total, np.stack([-of_first * n, of_first, entropy - of_second * d, of_second], axis=1)


def _coefficients_kaplan(theta, centres):
    """ln N_c = u/α_N + centre, ln D_c = v/α_D + centre."""
    values, turn = np.array(theta), np.tile(np.eye(4), (len(theta), 1, 1))
    for j in (1, 3):
        values[:, j] = theta[:, j] / theta[:, j - 1] + centres[j // 2]
        turn[:, j, j], turn[:, j, j - 1] = 1 / theta[:, j - 1], -theta[:, j] / theta[:, j - 1] ** 2
    return values, turn


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


_KAPLAN = _descent.Form(
    KaplanCoefficients._fields,
    (False, True, False, True),
    (math.nan, 0.0, math.nan, 0.0),
    _predict_kaplan,
    _coefficients_kaplan,
    _internal_kaplan,
    lambda values: np.log(np.stack(values)),
    lambda logs: logs.mean(axis=1),
    _starts_kaplan,
)

fit_hoffmann = calling(reference.fit_hoffmann, additive=additive)
hoffmann_intervals = calling(reference.hoffmann_intervals, additive=additive)
fit_kaplan = calling(reference.fit_kaplan, _smooth=_smooth, _KAPLAN=_KAPLAN)
kaplan_intervals = calling(reference.kaplan_intervals, _smooth=_smooth, _KAPLAN=_KAPLAN)
