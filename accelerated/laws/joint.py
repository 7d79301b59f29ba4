"""The joint law of dense and routed models: the loss as a function of active parameters, training tokens and experts
per layer.

Imported from `routelaws.reference.laws.joint`. The search differs (`additive.py`).
"""

import math

import numpy as np

from routelaws.reference.laws import joint as reference
from routelaws.reference.laws.joint import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.joint import JointCoefficients

from .._calling import calling
from . import _descent, _smooth


def _predict(theta, logs):
    """See `_descent.Form`. The third column is E - 1, not centred, and θ[8:10] = ln p and ln q of ψ."""
    n, d, x = (logs[..., c, :] for c in range(3))
    t = theta.T[:, :, None]
    rise, bend = np.exp(t[8]), np.exp(t[9])
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
    turn += [of_data * d * psi, by_psi * part, -by_psi * part * (1 - 1 / within), floor]
    return top + np.log(total), np.stack(turn, axis=1)


def _coefficients(theta, centres):
    """Return the inverse of `_internal`, and its derivatives. ln E_start, ln E_max and ln c are in this order."""
    t, turn = theta.T, np.zeros((len(theta), 11, 11))
    share = 1 / (1 + np.exp(t[9] - t[8]))  # rise / (rise + bend)
    log_both = t[8] - np.log(share)
    s, by_rise, by_bend = t[8] - 2 * log_both, 1 - 2 * share, -2 * (1 - share)
    values = [None] * 8 + [s, t[8] - log_both - t[9], t[10]]
    turn[:, 8, 8], turn[:, 8, 9], turn[:, 9, 8], turn[:, 9, 9], turn[:, 10, 10] = (
        by_rise, by_bend, 1 - share, share - 2, 1.0
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


def _internal(values, centres: np.ndarray) -> np.ndarray:
    """Return θ from the coefficients; see `_natural` of the reference."""
    E_start, E_max, c = values[8:]
    rest = 1 - E_start / E_max
    s, theta = math.log(E_start), []
    for first in (0, 4):
        multiplier, power, gain, turn = values[first : first + 4]
        centre = centres[first // 4]
        log = math.log(multiplier) + power * centre + (gain + turn * centre) * s
        theta += [log, power + turn * s, gain + turn * centre, turn]
    return np.array([*theta, math.log(rest**2 / E_start), math.log(rest / E_max), math.log(c)])


def _starts(logs: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return the 48 starts of the reference, [48, 11]."""
    low = math.log(1.0 / logs[2].max())
    return np.array(
        [
            [shares[0], power, -0.2, 0.0, shares[1], power, 0.0, 0.0, math.log(0.5), bend, shares[2]]
            for shares in _smooth.share_out(3, True, log_loss)
            for power in (-0.15, -0.4)
            for bend in (low, _descent.ABSENT)
        ]
    )


_JOINT = _descent.Form(
    JointCoefficients._fields,
    (True, False, False, False, True, False, False, False, True, True, True),
    (0.0, *[math.nan] * 3, 0.0, *[math.nan] * 4, math.inf, 0.0),
    _predict,
    _coefficients,
    _internal,
    lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0]),
    lambda logs: np.array([*logs[:2].mean(axis=1), 0.0]),
    _starts,
)

fit_joint = calling(reference.fit_joint, _smooth=_smooth, _JOINT=_JOINT)
joint_intervals = calling(reference.joint_intervals, _smooth=_smooth, _JOINT=_JOINT)
