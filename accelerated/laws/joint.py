"""The joint law of dense and routed models: the loss as a function of active parameters, training tokens and experts
per layer.

Shared with `routelaws.reference.laws.joint`. The search differs (`additive.py`).
"""

import math

import numpy as np

from routelaws.reference.laws.joint import LEAST_RISE

from . import _descent
from ._searches import share


def _predict(theta, logs):
    """See `_descent.Fast`. The third column is E - 1, not centred, and θ[8:10] = ln u and ln bend of ψ."""
    n, d, x = (logs[..., c, :] for c in range(3))
    t = theta.T[:, :, None]
    bend = np.exp(t[9])
    rise = np.exp(t[8]) + LEAST_RISE * bend
    fixed = LEAST_RISE * bend / rise  # the share of rise that grows with bend
    within = 1 + bend * x
    psi, part = np.log1p(rise * x / within), 1 - 1 / (1 + rise * x / within)
    log_terms = np.stack(np.broadcast_arrays(
        t[0] + t[1] * n + (t[2] + t[3] * n) * psi, t[4] + t[5] * d + (t[6] + t[7] * d) * psi, t[10]
    ))  # fmt: skip
    top = log_terms.max(axis=0)
    shares = np.exp(log_terms - top)
    total = shares.sum(axis=0)
    of_size, of_data, floor = shares / total
    by_psi = of_size * (t[2] + t[3] * n) + of_data * (t[6] + t[7] * d)
    turn = [of_size, of_size * n, of_size * psi, of_size * n * psi, of_data, of_data * d, of_data * psi]
    turn += [of_data * d * psi, by_psi * part * (1 - fixed), by_psi * part * (fixed - 1 + 1 / within), floor]
    return top + np.log(total), np.stack(turn, axis=1)


def _coefficients(theta, centres):
    """Return the coefficients, ln of positive ones, and their derivatives; see `_natural` of the reference."""
    t, turn = theta.T, np.zeros((len(theta), 11, 11))
    log_rise = np.logaddexp(t[8], math.log(LEAST_RISE) + t[9])
    own = np.exp(t[8] - log_rise)  # u / rise, the share that grows with u; the rest grows with bend
    share = 1 / (1 + np.exp(t[9] - log_rise))  # rise / (rise + bend)
    log_both = log_rise - np.log(share)
    s, by_rise = log_rise - 2 * log_both, (1 - 2 * share) * own
    by_bend = (1 - 2 * share) * (1 - own) - 2 * (1 - share)
    values = [None] * 8 + [s, log_rise - log_both - t[9], t[10]]
    turn[:, 8, 8], turn[:, 8, 9], turn[:, 9, 8], turn[:, 9, 9], turn[:, 10, 10] = (
        by_rise, by_bend, (1 - share) * own, (1 - share) * (1 - own) + share - 2, 1.0
    )  # fmt: skip
    for first, centre in ((0, centres[0]), (4, centres[1])):
        log, power, gain, slope = t[first : first + 4]
        by_s = slope * centre - gain
        values[first : first + 4] = (
            log - gain * s - (power - slope * s) * centre,
            power - slope * s,
            (gain - slope * centre),
            slope,
        )
        block = turn[:, first : first + 4, first : first + 4]
        block[:] = np.eye(4)
        block[:, 0, 1], block[:, 0, 2], block[:, 0, 3] = -centre, -s, s * centre
        block[:, 1, 3], block[:, 2, 3] = -s, -centre
        turn[:, first, 8], turn[:, first, 9] = by_s * by_rise, by_s * by_bend
        turn[:, first + 1, 8], turn[:, first + 1, 9] = -slope * by_rise, -slope * by_bend
    return np.stack(values, axis=1), turn


JOINT = _descent.Fast(
    _predict, _coefficients, lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0])
)

share(__name__)
