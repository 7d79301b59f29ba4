"""Routed laws with a floor: the loss falls towards an irreducible loss L0, and not towards 0.

Shared with `routelaws.reference.laws.floored`. The search differs (`additive.py`).
"""

import math

import numpy as np

from routelaws.reference.laws.floored import LEAST_RISE, NAMES, UNIT

from . import _descent
from ._searches import share


def _fast(kind: type) -> _descent.Fast:
    """Return the functions of the search for a law, with the unknowns of the reference."""
    bends, turns, count = "E_start" in kind._fields, "c" in kind._fields, len(kind._fields)

    def predict(theta, logs):
        """See `_descent.Fast`. The second column is E - 1, not centred."""
        n, x, t = logs[..., 0, :], logs[..., 1, :], theta.T[:, :, None]
        psi, by_shape = np.log1p(x), []
        if bends:
            (psi, *by_shape), (unit, *by_unit) = _log_bracket(t, x), _log_bracket(t, UNIT)
            psi = psi / unit
            by_shape = [(each - psi * of_unit) / unit for each, of_unit in zip(by_shape, by_unit, strict=True)]
        by_psi = t[2] + t[3] * n if turns else t[2]
        above = t[0] + t[1] * n + by_psi * psi
        top = np.maximum(above, t[-1])
        share, floor = np.exp(above - top), np.exp(t[-1] - top)
        share, floor, total = share / (share + floor), floor / (share + floor), share + floor
        turn = [share, share * n, share * psi, *([share * n * psi] if turns else [])]
        turn += [share * by_psi * each for each in by_shape] + [floor]
        return top + np.log(total), np.stack(turn, axis=1)

    def coefficients(theta, centres):
        """Return the coefficients, ln of positive ones, and their derivatives."""
        t, turn, centre = theta.T, np.zeros((len(theta), count, count)), centres[0]
        unit, *by_unit = _log_bracket(t, UNIT) if bends else (1.0,)
        gain, slope = t[2] / unit, t[3] / unit if turns else np.zeros(len(theta))
        s, by_s, shape = np.zeros(len(theta)), np.zeros((2, len(theta))), []
        if bends:
            log_rise = np.logaddexp(t[-3], math.log(LEAST_RISE))
            share, moved = 1 / (1 + np.exp(t[-2] - log_rise)), np.exp(t[-3] - log_rise)  # rise / (rise + bend)
            log_both = log_rise - np.log(share)
            s, by_s = log_rise - 2 * log_both, np.stack([(1 - 2 * share) * moved, -2 * (1 - share)])
            shape = [s, log_rise - log_both - t[-2]]
            turn[:, -3, -3], turn[:, -3, -2], turn[:, -2, -3], turn[:, -2, -2] = *by_s, (1 - share) * moved, share - 2
        ln_10, last = math.log(10), 3 if turns else 2  # the place of d
        plane = [t[1] - slope * s, gain - slope * centre, slope * ln_10]
        level = t[0] - gain * s - t[1] * centre + slope * s * centre
        turn[:, 0, 1], turn[:, 1, 2], turn[:, -1, -1] = 1.0, 1.0, 1.0
        turn[:, last, 0], turn[:, last, 1], turn[:, last, 2] = 1 / ln_10, -centre / ln_10, -s / ln_10
        if turns:
            turn[:, 0, 3], turn[:, 1, 3], turn[:, 2, 3], turn[:, 3, 3] = -s, -centre, ln_10, s * centre / ln_10
        if bends:
            turn[:, 0, -3:-1] = -slope[:, None] * by_s.T
            turn[:, last, -3:-1] = ((slope * centre - gain) * by_s / ln_10).T
            # So far the derivatives are by gain and slope. Both are unknowns divided by the unit, which has a shape.
            for column, value in ((2, gain), (3, slope))[: 1 + turns]:
                turn[:, :, column] /= unit[:, None]
                for j, of_unit in zip((-3, -2), by_unit, strict=True):
                    turn[:, :, j] -= turn[:, :, column] * (value * of_unit)[:, None]
        return np.stack([*plane[:last], level / ln_10, *shape, t[-1]], axis=1), turn

    return _descent.Fast(predict, coefficients, lambda values: np.stack([np.log(values[0]), values[1] - 1.0]))


def _log_bracket(t, x) -> tuple:
    """Return ln(Ê/E_start) at x = E - 1, and its derivatives by both unknowns of the shape; t is θ, [p, ...]."""
    above, bent = np.exp(t[-3]), np.exp(t[-2]) * x
    grown = (LEAST_RISE + above) * x / (1 + bent)
    part = grown / (1 + grown)
    return np.log1p(grown), part * (above / (LEAST_RISE + above)), -part * (bent / (1 + bent))


FAST = {kind: _fast(kind) for kind in NAMES}

share(__name__)
