"""The fit of the bounded law in compiled loops: a few microseconds per weighting of a table.

Three facts make the fit fast.

(i) A table has few different E. For a fixed E the law is a straight line in log10 N, so two rows of a QR factorisation
hold all its information for any shape. The n rows become 2 rows per E, plus a constant residual (`laws/_shapes.py`).

(ii) The scan over shapes is the same for every weighting, so its logarithms are computed once (`scan_table`). Its
residuals come from the normal equations, which consist of nine independent sums (`scan_values`).

(iii) A Levenberg-Marquardt search varies log(1/E_start) and logit(E_start/E_max). It starts at the best points of the
scan. With the variable-projection Jacobian of Kaufman 1975 it needs about ten steps. The same code searches the edges
of the domain with one variable fixed.

All numbers are float64. The compiler may reorder sums (`_dot`), but must follow all other rules of floating point.
Letters as in `laws/fitting.py`: alpha = 1/E_start, ratio = E_start/E_max, p = alpha (1 - ratio), q = p · ratio, and
psi(x) = log((1 + p x)/(1 + q x)), x = E - 1.
"""

import math

import numpy as np

from routelaws.reference.laws._projection import RESOLUTION

from ..laws._shapes import CORNER, INTERIOR, LINEAR, START_AT_1, TIE, UNBOUNDED
from .compile import jit, jit_sum, jit_within

# Lines of the array `problem`, each [2 levels]: columns of the reduced table, its target, and the target's remainder.
ONE, SIZE, FIXED_0, FIXED_1, TARGET, LOSS = range(6)
# Lines of the array `work`, each [2 levels].
PSI, TILT, LEVEL, RESIDUAL, TURN_0, TURN_1 = range(6)

STEPS = 300  # largest number of steps of the search; about ten are used
SETTLED = 1e-14  # relative decrease of the residual that ends the search
NEWTON_STEPS, NUDGE = 40, 1e-5  # largest number of steps of `polish`, and the step of its finite differences


@jit_sum
def _dot(first, second):
    total = 0.0
    for i in range(first.size):
        total += first[i] * second[i]
    return total


@jit
def _remove(vector, unit):
    share = _dot(vector, unit)
    for i in range(vector.size):
        vector[i] -= share * unit[i]


@jit
def _normalise(vector):
    length = math.sqrt(_dot(vector, vector))
    for i in range(vector.size):
        vector[i] /= length
    return length


@jit
def fill_psi(psi, extra, alpha, ratio, rest):
    """Write psi at every level, divided by psi at the last (largest) level; rest = 1 - ratio, exact if small."""
    if extra.size == 0 or psi.size != 2 * extra.size:
        raise ValueError("extra has to be [levels], one at least, and psi [2 levels]")
    rise, bend, top = alpha * rest * rest, alpha * rest * ratio, extra[-1]
    if rise == 0.0:
        for j in range(extra.size):
            psi[2 * j] = psi[2 * j + 1] = extra[j] / top
        return
    scale = math.log1p(rise * top / (1.0 + bend * top))
    for j in range(extra.size):
        psi[2 * j] = psi[2 * j + 1] = math.log1p(rise * extra[j] / (1.0 + bend * extra[j])) / scale


@jit
def evaluate(problem, work):
    """Solve for the four linear unknowns at the psi in `work`, by Gram-Schmidt.

    Args:
        problem: result of `reduce_rows`.
        work: [6, 2 levels]; the function reads line PSI and writes lines TILT, LEVEL (unit vectors) and RESIDUAL.

    Returns:
        The residual sum without the constant part.
    """
    if problem.shape[0] != 6 or problem.shape != work.shape:
        raise ValueError("problem and work have to be [6, 2 levels]")
    psi, tilt, level, residual = work[PSI], work[TILT], work[LEVEL], work[RESIDUAL]
    for i in range(psi.size):
        tilt[i] = psi[i] * problem[SIZE, i]
        level[i] = psi[i] * problem[ONE, i]
        residual[i] = problem[TARGET, i]
    for column in (tilt, level):
        _remove(column, problem[FIXED_0])
        _remove(column, problem[FIXED_1])
    _normalise(tilt)
    _remove(level, tilt)
    _normalise(level)
    _remove(residual, tilt)
    _remove(residual, level)
    return _dot(residual, residual)


@jit
def _shape(t, w, log_top):
    low, high = math.expm1(w * log_top), math.expm1((1.0 - w) * log_top)
    alpha = math.expm1(t * log_top) / math.expm1(log_top)
    return alpha, low / (low + high), high / (low + high)


@jit
def scan_table(extra, scan):
    """Return psi at each point of the scan: [scan * scan, levels], for t = 1/scan ... 1 and w = 0 ... 1 - 1/scan."""
    if scan < 1 or extra.size == 0:
        raise ValueError("scan has to be at least 1, and extra must not be empty")
    table, psi = np.empty((scan * scan, extra.size)), np.empty(2 * extra.size)
    for i in range(scan):
        for j in range(scan):
            alpha, ratio, rest = _shape((i + 1) / scan, j / scan, math.log1p(extra[-1]))
            fill_psi(psi, extra, alpha, ratio, rest)
            for k in range(extra.size):
                table[i * scan + j, k] = psi[2 * k]
    return table


@jit
def scan_values(problem, table, values):
    """Write the residual sum at every point of the scan into `values` [points].

    The normal equations are less accurate than `evaluate`, but suffice for a scan and are faster.
    """
    levels = table.shape[1]
    if problem.shape != (6, 2 * levels) or values.size > table.shape[0]:
        raise ValueError("problem has to be [6, 2 levels], and table [points, levels]")
    moments = np.empty((levels, 9))
    one, size, target = problem[ONE], problem[SIZE], problem[TARGET]
    fixed_0, fixed_1 = problem[FIXED_0], problem[FIXED_1]
    for j in range(levels):
        i, k = 2 * j, 2 * j + 1
        moments[j, 0], moments[j, 1] = one[i] * one[i], one[i] * size[i]
        moments[j, 2] = size[i] * size[i] + size[k] * size[k]
        moments[j, 3], moments[j, 4] = one[i] * fixed_0[i], one[i] * fixed_1[i]
        moments[j, 5] = size[i] * fixed_0[i]
        moments[j, 6] = size[i] * fixed_1[i] + size[k] * fixed_1[k]
        moments[j, 7], moments[j, 8] = one[i] * target[i], size[i] * target[i] + size[k] * target[k]
    total = _dot(target, target)
    for s in range(values.size):
        uu = uv = vv = u0 = u1 = v0 = v1 = uy = vy = 0.0
        for j in range(levels):
            psi = table[s, j]
            square = psi * psi
            uu += square * moments[j, 0]
            uv += square * moments[j, 1]
            vv += square * moments[j, 2]
            u0 += psi * moments[j, 3]
            u1 += psi * moments[j, 4]
            v0 += psi * moments[j, 5]
            v1 += psi * moments[j, 6]
            uy += psi * moments[j, 7]
            vy += psi * moments[j, 8]
        a = uu - u0 * u0 - u1 * u1
        b = uv - u0 * v0 - u1 * v1
        c = vv - v0 * v0 - v1 * v1
        value = total - (uy * uy * c - 2.0 * uy * vy * b + vy * vy * a) / (a * c - b * b)
        values[s] = value if value >= 0.0 else np.inf


@jit
def _routed_part(problem, work):
    """Return gain and interaction at centred size 0 by back-substitution, after `evaluate`."""
    tilt, level, psi = work[TILT], work[LEVEL], work[PSI]
    length_tilt = length_level = overlap = 0.0
    for i in range(psi.size):
        length_tilt += tilt[i] * psi[i] * problem[SIZE, i]
        overlap += tilt[i] * psi[i] * problem[ONE, i]
        length_level += level[i] * psi[i] * problem[ONE, i]
    gain = _dot(level, problem[TARGET]) / length_level
    return gain, (_dot(tilt, problem[TARGET]) - overlap * gain) / length_tilt


@jit
def _gradient(problem, extra, alpha, logit, work):
    """Write the derivatives of the prediction by log alpha and logit ratio, orthogonal to the linear columns."""
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    p, q, top = alpha * rest, alpha * rest * ratio, extra[-1]
    rise = p * rest
    scale = math.log1p(rise * top / (1.0 + q * top))
    tilt, level = work[TILT], work[LEVEL]
    gain, interaction = _routed_part(problem, work)
    for j in range(extra.size):
        x = extra[j]
        by_alpha = rise * x / ((1.0 + p * x) * (1.0 + q * x)) / scale
        by_logit = -q * x * (1.0 / (1.0 + p * x) + (rest - ratio) / (1.0 + q * x)) / scale
        for i in (2 * j, 2 * j + 1):
            routed = gain * problem[ONE, i] + interaction * problem[SIZE, i]
            work[TURN_0, i], work[TURN_1, i] = by_alpha * routed, by_logit * routed
    for turn in (TURN_0, TURN_1):
        _remove(work[turn], problem[FIXED_0])
        _remove(work[turn], problem[FIXED_1])
        _remove(work[turn], tilt)
        _remove(work[turn], level)


@jit
def _value(problem, extra, log_alpha, logit, work):
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    fill_psi(work[PSI], extra, math.exp(log_alpha), ratio, rest)
    return evaluate(problem, work)


@jit
def _solve_two(a00, a01, a11, g0, g1, free_0, free_1):
    """Solve two linear equations for the free unknowns. A fixed unknown is 0. Also return if the matrix is positive."""
    if free_0 and free_1:
        determinant = a00 * a11 - a01 * a01
        if a00 > 0.0 and determinant > 0.0:
            return (a11 * g0 - a01 * g1) / determinant, (a00 * g1 - a01 * g0) / determinant, True
    elif free_0 and a00 > 0.0:
        return g0 / a00, 0.0, True
    elif free_1 and a11 > 0.0:
        return 0.0, g1 / a11, True
    return 0.0, 0.0, False


@jit
def _step(work, free_alpha, free_logit, damping):
    """Return the damped Gauss-Newton step of the free variables, and the predicted decrease."""
    first, second, residual = work[TURN_0], work[TURN_1], work[RESIDUAL]
    g0, g1 = _dot(first, residual), _dot(second, residual)
    a00, a11 = _dot(first, first) * (1.0 + damping), _dot(second, second) * (1.0 + damping)
    d0, d1, _ = _solve_two(a00, _dot(first, second), a11, g0, g1, free_alpha, free_logit)
    return d0, d1, g0 * d0 + g1 * d1


@jit
def search(problem, extra, constant, log_alpha, logit, free_alpha, free_logit, work):
    """Search by Levenberg-Marquardt from a start, with log alpha <= 0. Return (log alpha, logit, residual sum)."""
    value = _value(problem, extra, log_alpha, logit, work)
    damping = 1e-3
    for _ in range(STEPS):
        _gradient(problem, extra, math.exp(log_alpha), logit, work)
        # At the edge E_start = 1, a step along the edge replaces a step outwards.
        held = log_alpha >= 0.0 and free_alpha and _step(work, free_alpha, free_logit, damping)[0] > 0.0
        moved = False
        while damping < 1e12:
            d0, d1, predicted = _step(work, free_alpha and not held, free_logit, damping)
            if not predicted > SETTLED * (value + constant):
                break
            trial_alpha = min(log_alpha + max(min(d0, 4.0), -4.0), 0.0)
            trial_logit = max(min(logit + max(min(d1, 4.0), -4.0), 40.0), -40.0) if free_logit else logit
            trial = _value(problem, extra, trial_alpha, trial_logit, work)
            if trial < value:
                moved = True
                damping = max(damping * 0.1, 1e-9)
                break
            damping *= 10.0
            _value(problem, extra, log_alpha, logit, work)
        if not moved:
            break
        log_alpha, logit, value = trial_alpha, trial_logit, trial
    return log_alpha, logit, value


@jit
def _slopes(problem, extra, log_alpha, logit, work):
    value = _value(problem, extra, log_alpha, logit, work)
    _gradient(problem, extra, math.exp(log_alpha), logit, work)
    return value, _dot(work[TURN_0], work[RESIDUAL]), _dot(work[TURN_1], work[RESIDUAL])


@jit
def _newton(problem, extra, log_alpha, logit, free_alpha, free_logit, fall_0, fall_1, work):
    """Return Newton's step with a finite-difference Hessian; (0, 0) if the sum is not convex."""
    a00 = a01 = a11 = math.nan
    if free_alpha:
        _, low_0, low_1 = _slopes(problem, extra, log_alpha - NUDGE, logit, work)
        _, high_0, high_1 = _slopes(problem, extra, log_alpha + NUDGE, logit, work)
        a00, a01 = (low_0 - high_0) / (2.0 * NUDGE), (low_1 - high_1) / (2.0 * NUDGE)
    if free_logit:
        _, _, low_1 = _slopes(problem, extra, log_alpha, logit - NUDGE, work)
        _, _, high_1 = _slopes(problem, extra, log_alpha, logit + NUDGE, work)
        a11 = (low_1 - high_1) / (2.0 * NUDGE)
    return _solve_two(a00, a01, a11, fall_0, fall_1, free_alpha, free_logit)[:2]


@jit
def polish(problem, extra, log_alpha, logit, free_alpha, free_logit, work):
    """Refine the end of `search` by Newton's method. Return (log alpha, logit, residual sum).

    If the residuals are much larger than the effect of the shape, Gauss-Newton steps have the wrong length. `search`
    can then end up to 1e-6 above the optimum.
    """
    for _ in range(NEWTON_STEPS):
        value, fall_0, fall_1 = _slopes(problem, extra, log_alpha, logit, work)
        held = not free_alpha or (log_alpha >= 0.0 and fall_0 > 0.0)  # the edge E_start = 1 blocks a step in alpha
        d0, d1 = _newton(problem, extra, log_alpha, logit, not held, free_logit, fall_0, fall_1, work)
        length, moved = 1.0, False
        while length > 1e-3 and (d0 != 0.0 or d1 != 0.0):
            trial_alpha = min(log_alpha + length * d0, 0.0)
            trial_logit = max(min(logit + length * d1, 40.0), -40.0) if free_logit else logit
            trial = _value(problem, extra, trial_alpha, trial_logit, work)
            if trial < value:
                moved = True
                break
            length *= 0.25
        if not moved:
            break
        log_alpha, logit = trial_alpha, trial_logit
    return log_alpha, logit, _value(problem, extra, log_alpha, logit, work)


@jit
def _best_starts(values, starts):
    """Return the `starts` lowest local minima of the scan as flat indices, -1 for missing minima."""
    rows, columns = values.shape
    found = np.full(starts, -1)
    for i in range(rows):
        for j in range(columns):
            here, lowest = values[i, j], values[i, j] < np.inf
            for k in range(max(i - 1, 0), min(i + 2, rows)):
                for m in range(max(j - 1, 0), min(j + 2, columns)):
                    lowest &= here <= values[k, m]
            if not lowest:
                continue
            place = i * columns + j
            for s in range(starts):
                if found[s] < 0:
                    found[s] = place
                    break
                if here < values[found[s] // columns, found[s] % columns]:
                    place, found[s] = found[s], place
                    here = values[place // columns, place % columns]
    return found


@jit
def _search_piece(problem, extra, constant, values, free_alpha, free_logit, starts, work):
    scan, log_top = len(values), math.log1p(extra[-1])
    # The last line of the scan is the edge E_start = 1; its first column is the edge of unbounded E_max.
    first = 0 if free_alpha else scan - 1
    part = values[first:, 1:] if free_logit else values[first:, :1]
    best = (np.nan, np.nan, np.nan, np.inf)
    for place in _best_starts(part, starts):
        if place < 0:
            continue
        t, w = (place // part.shape[1] + first + 1) / scan, (place % part.shape[1] + free_logit) / scan
        alpha, ratio, rest = _shape(t, w, log_top)
        logit = math.log(ratio / rest) if free_logit else -np.inf
        log_alpha, logit, _ = search(problem, extra, constant, math.log(alpha), logit, free_alpha, free_logit, work)
        log_alpha, logit, value = polish(problem, extra, log_alpha, logit, free_alpha, free_logit, work)
        if value < best[3]:
            best = (math.exp(log_alpha), 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit)), value)
    return best


@jit
def _smallest_piece(found, total, constant):
    lowest = np.inf
    for piece in range(len(found)):
        lowest = min(lowest, found[piece, 3] + constant)
    # Differences below RESOLUTION do not decide between pieces; this matters only for tables without noise.
    limit = lowest * (1.0 + TIE) + total * RESOLUTION * RESOLUTION
    piece = 0
    while piece < INTERIOR and not found[piece, 3] + constant <= limit:
        piece += 1
    return piece


@jit_within
def fit_one(problem, constant, total, extra, table, starts):
    """Fit a weighting of the table over the whole domain.

    Args:
        problem: [6, 2 levels], its reduced rows.
        constant: the part of its residual sum that does not depend on the shape.
        total: the sum of its weights.
        extra: [levels], E - 1 of each level, rising.
        table: result of `scan_table`.
        starts: number of searches from the lowest points of the scan, in each piece of the domain.

    Returns:
        [9]: piece, alpha, ratio, 1 - ratio, residual sum, and at centred size 0: intercept, size, gain, interaction.
    """
    result, work = np.empty(9), np.empty((6, 2 * extra.size))
    scan = int(math.sqrt(table.shape[0]) + 0.5)
    flat = np.empty(table.shape[0])
    scan_values(problem, table, flat)
    values = flat.reshape((scan, scan))
    found = np.full((5, 4), np.inf)
    for piece in (LINEAR, CORNER):
        found[piece, 0], found[piece, 1], found[piece, 2] = piece, 0.0, 1.0  # alpha = 0, and alpha = 1
        fill_psi(work[PSI], extra, found[piece, 0], 0.0, 1.0)
        found[piece, 3] = evaluate(problem, work)
    for piece in (INTERIOR, UNBOUNDED, START_AT_1):
        alpha, ratio, rest, value = _search_piece(
            problem, extra, constant, values, piece != START_AT_1, piece != UNBOUNDED, starts, work
        )
        found[piece, 0], found[piece, 1], found[piece, 2], found[piece, 3] = alpha, ratio, rest, value
    piece = _smallest_piece(found, total, constant)
    result[0] = piece
    for i in range(4):
        result[1 + i] = found[piece, i]
    result[4] += constant
    fill_psi(work[PSI], extra, result[1], result[2], result[3])
    evaluate(problem, work)
    result[7], result[8] = _routed_part(problem, work)
    result[5], result[6] = _fixed_part(problem, work[PSI], result[7], result[8])
    return result


@jit
def _fixed_part(problem, psi, gain, interaction):
    along_0 = along_1 = 0.0
    for i in range(psi.size):
        left = problem[LOSS, i] - psi[i] * (gain * problem[ONE, i] + interaction * problem[SIZE, i])
        along_0 += problem[FIXED_0, i] * left
        along_1 += problem[FIXED_1, i] * left
    size = along_1 / _dot(problem[FIXED_1], problem[SIZE])
    overlap = _dot(problem[FIXED_0], problem[SIZE])
    return (along_0 - overlap * size) / _dot(problem[FIXED_0], problem[ONE]), size


@jit
def fit_batch(problems, constants, totals, extra, scan, starts):
    """Fit weightings of a table from `starts` points of a scan x scan grid: [m, 9] (see `fit_one`).

    Args:
        problems: [m, 6, 2 levels], `laws._shapes.Reduced` of each weighting, in the order of the lines above.
        constants: [m], `Reduced.constant`.
        totals: [m], sums of the weights.
        extra: [levels], E - 1, rising.
    """
    if not problems.shape[0] == constants.size == totals.size:
        raise ValueError("problems, constants and totals have to be [m, ...]")
    table = scan_table(extra, scan)
    results = np.empty((constants.size, 9))
    for b in range(constants.size):
        result = fit_one(problems[b], constants[b], totals[b], extra, table, starts)
        for i in range(result.size):  # numba compiles the copy of a whole row for 2 s
            results[b, i] = result[i]
    return results
