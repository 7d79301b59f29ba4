"""Two laws that predict the loss of a dense model from its size N and its training tokens D.

Shared with `routelaws.reference.laws.hoffmann`. The search differs (`additive.py`).
"""

import numpy as np

from . import _descent
from ._searches import share


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


KAPLAN = _descent.Fast(_predict_kaplan, _coefficients_kaplan, far_minima=True)

share(__name__)
