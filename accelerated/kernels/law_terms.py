"""Predictions of the additive laws in compiled loops: ln L̂, its derivatives, and the coefficients.

Three laws, by number (`ADDITIVE`, `KAPLAN`, `JOINT`). `additive.py`, `hoffmann.py` and `joint.py` of the reference
derive their formulas; the same files here choose the starts. A table is `logs` [columns, n], centred. The unknowns θ
[p] are the same as in the reference.

Loops run along the rows, column by column, so the compiler can vectorise them.
"""

import math

from . import vector
from .compile import jit, jit_within

ADDITIVE, KAPLAN, JOINT = range(3)


@jit
def predict(law, theta, logs, predicted, turn, scratch):
    """Write ln L̂ [n] and its derivatives [p, n].

    Args:
        law: the number of the law; for the additive law also `multiplier` [terms] and `powers` [terms, columns]. These
            are the indices of the unknowns for each term's log multiplier and each column's exponent (-1 for none).
        theta: [p], the unknowns.
        logs: [columns, n], the table.
        predicted: [n], written.
        turn: [p, n], written.
        scratch: [2, n], overwritten. The caller allocates it, because threads that allocate in a loop wait for each
            other.
    """
    _need_unknowns(law, theta.size, logs.shape[0])
    rows = logs.shape[1]
    if turn.shape != (theta.size, rows) or predicted.size != rows or scratch.shape != (2, rows):
        raise ValueError("logs [columns, n] need predicted [n], turn [p, n] and scratch [2, n]")
    number, multiplier, powers = law
    if number == ADDITIVE:
        _additive(multiplier, powers, theta, logs, predicted, turn, scratch)
    elif number == KAPLAN:
        _kaplan(theta, logs, predicted, turn)
    else:
        _joint(theta, logs, predicted, turn)


@jit
def _need_unknowns(law, unknowns, columns):
    number, multiplier, powers = law
    if number == ADDITIVE:
        if multiplier.size == 0 or powers.shape != (multiplier.size, columns):
            raise ValueError("multiplier has to be [terms], one at least, and powers [terms, columns]")
        if multiplier.min() < 0 or multiplier.max() >= unknowns or (powers >= unknowns).any():
            raise ValueError("multiplier and powers name more unknowns than theta has")
    elif unknowns != (4 if number == KAPLAN else 11) or columns != (2 if number == KAPLAN else 3):
        raise ValueError("theta has to be [4] with two columns, and [11] with three for the joint law")


@jit
def _additive(multiplier, powers, theta, logs, predicted, turn, scratch):
    """Write the prediction of a sum of powers. The multipliers' rows of `turn` hold log terms, then shares."""
    turn[:] = 0.0
    for t in range(multiplier.size):
        log = turn[multiplier[t]]
        log[:] = theta[multiplier[t]]
        for c in range(powers.shape[1]):
            if powers[t, c] >= 0:
                power, column = theta[powers[t, c]], logs[c]
                for i in range(log.size):
                    log[i] -= power * column[i]
    first = multiplier[0]
    for line in multiplier:
        first = line if theta[line] > theta[first] else first
    _shares(multiplier, first, predicted, turn, scratch)
    for t in range(multiplier.size):
        for c in range(powers.shape[1]):
            if powers[t, c] >= 0:
                share, by, column = turn[multiplier[t]], turn[powers[t, c]], logs[c]
                for i in range(by.size):
                    by[i] -= share[i] * column[i]


@jit
def _shares(lines, first, predicted, turn, scratch):
    """Write the logarithm of the sum of the terms, and replace the terms' logarithms by the terms' shares.

    All terms are divided by the term `first`, the largest one in the middle of the table. These ratios are clipped to
    e^700, which no realistic law reaches.
    """
    rows = predicted.size
    total, whole = scratch[0], scratch[1]
    total[:] = 1.0
    for line in lines:
        if line != first:
            for i in range(rows):
                turn[line, i] -= turn[first, i]
            vector.exp(turn[line], whole)
            for i in range(rows):
                total[i] += turn[line, i]
    for i in range(rows):
        predicted[i], turn[first, i] = turn[first, i], 1.0
    for line in lines:
        for i in range(rows):
            turn[line, i] /= total[i]
    vector.log(total, whole)
    for i in range(rows):
        predicted[i] += total[i]


@jit_within
def _kaplan(theta, logs, predicted, turn):
    """Write the prediction α_D ln(exp((u - α_N n)/α_D) + exp(v/α_D - d)); θ = (α_N, u, α_D, v)."""
    alpha_N, u, alpha_D, v = theta[0], theta[1], theta[2], theta[3]
    for i in range(predicted.size):
        n, d = logs[0, i], logs[1, i]
        first, second = (u - alpha_N * n) / alpha_D, v / alpha_D - d
        top = max(first, second)
        total = top + math.log(math.exp(first - top) + math.exp(second - top))
        of_first, of_second = math.exp(first - total), math.exp(second - total)
        entropy = of_first * (total - first) + of_second * (total - second)
        predicted[i] = alpha_D * total
        turn[0, i], turn[1, i] = -of_first * n, of_first
        turn[2, i], turn[3, i] = entropy - of_second * d, of_second


@jit_within
def _joint(theta, logs, predicted, turn):
    """Write the prediction of the joint law. The third column is E - 1, and θ[8:10] = ln p and ln q of ψ."""
    rise, bend = math.exp(theta[8]), math.exp(theta[9])
    for i in range(predicted.size):
        n, d, x = logs[0, i], logs[1, i], logs[2, i]
        within = 1.0 + bend * x
        psi = math.log1p(rise * x / within)
        part = 1.0 - 1.0 / (1.0 + rise * x / within)
        log_size = theta[0] + theta[1] * n + (theta[2] + theta[3] * n) * psi
        log_data = theta[4] + theta[5] * d + (theta[6] + theta[7] * d) * psi
        top = max(log_size, log_data, theta[10])
        of_size, of_data, floor = math.exp(log_size - top), math.exp(log_data - top), math.exp(theta[10] - top)
        total = of_size + of_data + floor
        predicted[i] = top + math.log(total)
        of_size, of_data, floor = of_size / total, of_data / total, floor / total
        turn[0, i], turn[1, i], turn[2, i], turn[3, i] = of_size, of_size * n, of_size * psi, of_size * n * psi
        turn[4, i], turn[5, i], turn[6, i], turn[7, i] = of_data, of_data * d, of_data * psi, of_data * d * psi
        by_psi = of_size * (theta[2] + theta[3] * n) + of_data * (theta[6] + theta[7] * d)
        turn[8, i] = by_psi * part
        turn[9, i] = -by_psi * part * (1.0 - 1.0 / within)
        turn[10, i] = floor


@jit
def coefficient(law, centres, which, theta, turn):
    """Return a coefficient in the unit of the columns (its logarithm if positive), and write its derivatives.

    Args:
        law, theta: see `predict`.
        centres: [columns], subtracted from the logs of the table.
        which: number of the coefficient.
        turn: [p], written.
    """
    _need_unknowns(law, theta.size, centres.size)
    if not 0 <= which < theta.size or turn.size != theta.size:
        raise ValueError("theta and turn have to be [p], and which at least 0 and below p")
    number, multiplier, powers = law
    turn[:] = 0.0
    if number == ADDITIVE:
        return _of_additive(multiplier, powers, centres, which, theta, turn)
    if number == KAPLAN:
        return _of_kaplan(centres, which, theta, turn)
    return _of_joint(centres, which, theta, turn)


@jit_within
def _of_additive(multiplier, powers, centres, which, theta, turn):
    turn[which] = 1.0
    value = theta[which]
    for t in range(multiplier.size):
        if multiplier[t] == which:
            for c in range(powers.shape[1]):
                if powers[t, c] >= 0:
                    value += theta[powers[t, c]] * centres[c]
                    turn[powers[t, c]] += centres[c]
    return value


@jit_within
def _of_kaplan(centres, which, theta, turn):
    """ln N_c = u/α_N + centre, ln D_c = v/α_D + centre; θ = (α_N, u, α_D, v)."""
    if which % 2 == 0:
        turn[which] = 1.0
        return theta[which]
    power, top = theta[which - 1], theta[which]
    turn[which], turn[which - 1] = 1.0 / power, -top / (power * power)
    return top / power + centres[which // 2]


@jit_within
def _of_joint(centres, which, theta, turn):
    """Return a coefficient of the joint law: the inverse of `_internal` in `joint.py`."""
    rise, bend = math.exp(theta[8]), math.exp(theta[9])
    share = rise / (rise + bend)
    if not share >= 0.0:  # both unknowns diverged
        share = 1.0 / (1.0 + math.exp(theta[9] - theta[8]))
    log_both = theta[8] - math.log(share)
    s, by_rise, by_bend = theta[8] - 2.0 * log_both, 1.0 - 2.0 * share, -2.0 * (1.0 - share)
    if which == 10:
        turn[10] = 1.0
        return theta[10]
    if which == 9:
        turn[8], turn[9] = 1.0 - share, share - 2.0
        return theta[8] - log_both - theta[9]
    if which == 8:
        turn[8], turn[9] = by_rise, by_bend
        return s
    first, centre = which - which % 4, centres[which // 4]
    power, gain, slope = theta[first + 1], theta[first + 2], theta[first + 3]
    turn[which] = 1.0
    if which % 4 == 0:
        by_s = slope * centre - gain
        turn[first + 1], turn[first + 2], turn[first + 3] = -centre, -s, s * centre
        turn[8], turn[9] = by_s * by_rise, by_s * by_bend
        return theta[first] - gain * s - (power - slope * s) * centre
    if which % 4 == 1:
        turn[first + 3] = -s
        turn[8], turn[9] = -slope * by_rise, -slope * by_bend
        return power - slope * s
    if which % 4 == 2:
        turn[first + 3] = -centre
        return gain - slope * centre
    return slope
