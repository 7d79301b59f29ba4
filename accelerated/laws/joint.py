"""The joint law of dense and routed models: the loss as a function of active parameters, training tokens and experts
per layer.

Imported from `routelaws.reference.laws.joint`. The fit and its intervals are compiled (`additive.py`).
"""

import functools
import math

import numpy as np

from routelaws.reference.laws import joint as reference
from routelaws.reference.laws.joint import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.joint import JointCoefficients

from .._calling import calling
from . import _smooth


@functools.cache
def _joint():
    """Return the form of the law. The third column of the logs holds E - 1 itself, not centred."""
    from ..kernels.law_terms import JOINT
    from . import _descent

    return _descent.Form(
        JointCoefficients._fields,
        (True, False, False, False, True, False, False, False, True, True, True),
        (0.0, *[math.nan] * 3, 0.0, *[math.nan] * 4, math.inf, 0.0),
        _descent.law_of(JOINT),
        _internal,
        lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0]),
        lambda logs: np.array([*logs[:2].mean(axis=1), 0.0]),
        _starts,
    )


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
    from ._descent import ABSENT

    low = math.log(1.0 / logs[2].max())
    return np.array(
        [
            [shares[0], power, -0.2, 0.0, shares[1], power, 0.0, 0.0, math.log(0.5), bend, shares[2]]
            for shares in _smooth.share_out(3, True, log_loss)
            for power in (-0.15, -0.4)
            for bend in (low, ABSENT)
        ]
    )


fit_joint = calling(reference.fit_joint, _smooth=_smooth, _JOINT=_joint)
joint_intervals = calling(reference.joint_intervals, _smooth=_smooth, _JOINT=_joint)
