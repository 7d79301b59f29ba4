"""The loss of each smooth law, its coefficients, and their derivatives, for the search (`_descent.py`).

Private to the accelerated package. A sum of powers needs no code of its own (`fast_additive`).
"""

import math

import numpy as np

from routelaws.reference.laws import AdditiveLaw, KaplanCoefficients, floored, joint

from . import _descent


def fast_additive(law: AdditiveLaw) -> _descent.Fast:
    """Return the functions of the search for a law."""
    rows, powers = _places(law)

    def predict(theta, logs):
        """See `_descent.Fast`. Each term is divided by the largest, so no power overflows."""
        log_terms = np.repeat(theta[:, rows, None], logs.shape[-1], axis=2)  # [s, terms, n]
        factors = [(t, c, powers[t, c]) for t, c in np.argwhere(powers >= 0)]  # term, column, place of the exponent
        for t, c, power in factors:
            log_terms[:, t] -= theta[:, power, None] * logs[..., c, :]
        top = log_terms.max(axis=1, keepdims=True)
        shares = np.exp(log_terms - top)
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        turn = np.zeros((*theta.shape, logs.shape[-1]))
        turn[:, rows] = shares
        for t, c, power in factors:
            turn[:, power] -= shares[:, t] * logs[..., c, :]
        return (top + np.log(total))[:, 0], turn

    def coefficients(theta, centres):
        turn = np.eye(theta.shape[1])
        for t, c in np.argwhere(powers >= 0):
            turn[rows[t], powers[t, c]] += centres[c]
        return theta @ turn.T, np.broadcast_to(turn, (len(theta), *turn.shape))

    return _descent.Fast(predict, coefficients)


def _places(law: AdditiveLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return where θ has the logarithm of each multiplier, [terms], and the exponent of each column in each term,
    [terms, columns], -1 where a term has none."""
    place = {name: j for j, name in enumerate(law.coefficients._fields)}
    powers = np.full((len(law.terms), len(law.columns)), -1)
    for t, (_, exponents) in enumerate(law.terms):
        for exponent, column in exponents.items():
            powers[t, law.columns.index(column)] = place[exponent]
    return np.array([place[multiplier] for multiplier, _ in law.terms]), powers


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


def _predict_joint(theta, logs):
    """See `_descent.Fast`. The third column is E - 1, not centred, and θ[8:10] = ln u and ln bend of ψ."""
    n, d, x = (logs[..., c, :] for c in range(3))
    t = theta.T[:, :, None]
    bend = np.exp(t[9])
    rise = np.exp(t[8]) + joint.LEAST_RISE * bend
    fixed = joint.LEAST_RISE * bend / rise  # the share of rise that grows with bend
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


def _coefficients_joint(theta, centres):
    """Return the coefficients, ln of positive ones, and their derivatives; see `_natural` of the reference."""
    t, turn = theta.T, np.zeros((len(theta), 11, 11))
    log_rise = np.logaddexp(t[8], math.log(joint.LEAST_RISE) + t[9])
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
    _predict_joint,
    _coefficients_joint,
    lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0]),
)


def _fast_floored(kind: type) -> _descent.Fast:
    """Return the functions of the search for a law, with the unknowns of the reference."""
    bends, turns, count = "E_start" in kind._fields, "c" in kind._fields, len(kind._fields)

    def predict(theta, logs):
        """See `_descent.Fast`. The second column is E - 1, not centred."""
        n, x, t = logs[..., 0, :], logs[..., 1, :], theta.T[:, :, None]
        psi, by_shape = np.log1p(x), []
        if bends:
            (psi, *by_shape), (unit, *by_unit) = _log_bracket(t, x), _log_bracket(t, floored.UNIT)
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
        unit, *by_unit = _log_bracket(t, floored.UNIT) if bends else (1.0,)
        gain, slope = t[2] / unit, t[3] / unit if turns else np.zeros(len(theta))
        s, by_s, shape = np.zeros(len(theta)), np.zeros((2, len(theta))), []
        if bends:
            log_rise = np.logaddexp(t[-3], math.log(floored.LEAST_RISE))
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
    grown = (floored.LEAST_RISE + above) * x / (1 + bent)
    part = grown / (1 + grown)
    return np.log1p(grown), part * (above / (floored.LEAST_RISE + above)), -part * (bent / (1 + bent))


FAST = {
    KaplanCoefficients: KAPLAN,
    joint.JointCoefficients: JOINT,
    **{kind: _fast_floored(kind) for kind in floored.NAMES},
}
"""The fast functions of laws that are not additive, by their coefficients."""
