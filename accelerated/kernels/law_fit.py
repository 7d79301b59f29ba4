"""The bounded law's fit as compiled loops: a few microseconds for each weighting of a table.

Three facts make it fast. (i) A table has few different E. Within one E the law is a straight line in log10 N, so two
rows of a QR factorisation hold all that the rows at that E can say, whatever the shape: n rows become 2 per E
(`reduce_rows`), the rest of the residual is a constant. (ii) The scan over shapes is the same for every weighting of
the table, so its logarithms are taken once (`scan_table`). (iii) From the best points of the scan a
Levenberg-Marquardt search in (log 1/E_start, logit E_start/E_max) with the variable-projection Jacobian of Kaufman
1975 needs about ten steps; the edges of the domain are searched by the same code with one variable held.

Everything is float64 and strictly evaluated (no fastmath). Letters as in `laws/fitting.py`: alpha = 1/E_start,
ratio = E_start/E_max, p = alpha (1 - ratio), q = p · ratio, and psi(x) = log((1 + p x)/(1 + q x)), x = E - 1.
"""

import math

import numpy as np
from numba import njit

LINEAR, CORNER, START_AT_1, UNBOUNDED, INTERIOR = range(5)  # pieces of the domain, from the smallest set to the largest

# Lines of the array `problem`, each [2 levels]: columns of the reduced table, and what is left of its target.
ONE, SIZE, FIXED_0, FIXED_1, TARGET = range(5)
# Lines of the array `work`, each [2 levels].
PSI, TILT, LEVEL, RESIDUAL, TURN_0, TURN_1 = range(6)

STEPS = 300  # of the search; about ten are used
SETTLED = 1e-14  # relative decrease of the residual that ends the search
TIE = 1e-11  # relative difference of residuals below which the smaller piece of the domain is taken

# The search for the end of an interval: points of its first scan and of the later ones, and how many later ones.
FIRST, LATER, TIMES = 33, 9, 13
OUTSIDE = 1e200  # above every end: ranks the shapes that the data reject behind all others


def _jit(function):
    """Compile, and keep the machine code on disk where there is a place to keep it (compiling takes seconds)."""
    try:
        return njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder it may write to
        return njit(error_model="numpy")(function)


@_jit
def reduce_rows(log_size, log_loss, level, weights, levels):
    """Replace the rows of each level by two rows of a QR factorisation.

    Args:
        log_size: [n], centred.
        log_loss: [n].
        level: [n] integers, which E a row has.
        weights: [n], at least 0.
        levels: how many different E.

    Returns:
        `problem` [5, 2 levels], and the part of the weighted residual sum that no shape can change.
    """
    problem = np.zeros((5, 2 * levels))
    total, mean_size, mean_loss = np.zeros(levels), np.zeros(levels), np.zeros(levels)
    for i in range(log_size.size):
        total[level[i]] += weights[i]
        mean_size[level[i]] += weights[i] * log_size[i]
        mean_loss[level[i]] += weights[i] * log_loss[i]
    for j in range(levels):
        if total[j] > 0:
            mean_size[j] /= total[j]
            mean_loss[j] /= total[j]
    spread, slope = np.zeros(levels), np.zeros(levels)
    for i in range(log_size.size):
        offset = log_size[i] - mean_size[level[i]]
        spread[level[i]] += weights[i] * offset * offset
        slope[level[i]] += weights[i] * offset * (log_loss[i] - mean_loss[level[i]])
    for j in range(levels):
        slope[j] = slope[j] / spread[j] if spread[j] > 0 else 0.0
        root, lean = math.sqrt(total[j]), math.sqrt(spread[j])
        problem[ONE, 2 * j] = root
        problem[SIZE, 2 * j], problem[SIZE, 2 * j + 1] = root * mean_size[j], lean
        problem[TARGET, 2 * j], problem[TARGET, 2 * j + 1] = root * mean_loss[j], lean * slope[j]
    constant = 0.0
    for i in range(log_size.size):
        j = level[i]
        miss = log_loss[i] - mean_loss[j] - slope[j] * (log_size[i] - mean_size[j])
        constant += weights[i] * miss * miss
    problem[FIXED_0] = problem[ONE]
    _normalise(problem[FIXED_0])
    problem[FIXED_1] = problem[SIZE]
    _remove(problem[FIXED_1], problem[FIXED_0])
    _normalise(problem[FIXED_1])
    _remove(problem[TARGET], problem[FIXED_0])
    _remove(problem[TARGET], problem[FIXED_1])
    return problem, constant


@_jit
def _dot(first, second):
    total = 0.0
    for i in range(first.size):
        total += first[i] * second[i]
    return total


@_jit
def _remove(vector, unit):
    share = _dot(vector, unit)
    for i in range(vector.size):
        vector[i] -= share * unit[i]


@_jit
def _normalise(vector):
    length = math.sqrt(_dot(vector, vector))
    for i in range(vector.size):
        vector[i] /= length
    return length


@_jit
def fill_psi(psi, extra, alpha, ratio, rest):
    """Write psi at every level, divided by its value at the last (largest) one; rest = 1 - ratio, exact where small."""
    rise, bend, top = alpha * rest * rest, alpha * rest * ratio, extra[-1]
    if rise == 0.0:
        for j in range(extra.size):
            psi[2 * j] = psi[2 * j + 1] = extra[j] / top
        return
    scale = math.log1p(rise * top / (1.0 + bend * top))
    for j in range(extra.size):
        psi[2 * j] = psi[2 * j + 1] = math.log1p(rise * extra[j] / (1.0 + bend * extra[j])) / scale


@_jit
def evaluate(problem, at, work):
    """Solve the four linear unknowns at the psi in `work`, by Gram-Schmidt.

    Args:
        problem: of `reduce_rows`.
        at: centred log10 size at which the gain is wanted.
        work: [6, 2 levels]; PSI is read; TILT, LEVEL (unit vectors) and RESIDUAL are written.

    Returns:
        The residual sum without its constant, the gain at that size, its variance over the residual variance.
    """
    psi, tilt, level, residual = work[PSI], work[TILT], work[LEVEL], work[RESIDUAL]
    for i in range(psi.size):
        tilt[i] = psi[i] * (problem[SIZE, i] - at * problem[ONE, i])
        level[i] = psi[i] * problem[ONE, i]
        residual[i] = problem[TARGET, i]
    _remove(tilt, problem[FIXED_0])
    _remove(tilt, problem[FIXED_1])
    _normalise(tilt)
    _remove(level, problem[FIXED_0])
    _remove(level, problem[FIXED_1])
    _remove(level, tilt)
    length = _normalise(level)
    gain = _dot(level, residual) / length
    _remove(residual, tilt)
    _remove(residual, level)
    return _dot(residual, residual), gain, 1.0 / (length * length)


@_jit
def _shape(t, w, log_top):
    """Return (alpha, ratio, 1 - ratio) at a point of the unit square; equal steps are about equal ratios."""
    low, high = math.expm1(w * log_top), math.expm1((1.0 - w) * log_top)
    alpha = min(math.expm1(t * log_top) / math.expm1(log_top), 1.0)
    return alpha, low / (low + high), high / (low + high)


@_jit
def scan_table(extra, scan):
    """Return psi at each point of the scan: [scan, scan, 2 levels] for t = 1/scan ... 1 and w = 0 ... 1 - 1/scan."""
    table = np.empty((scan, scan, 2 * extra.size))
    for i in range(scan):
        for j in range(scan):
            alpha, ratio, rest = _shape((i + 1) / scan, j / scan, math.log1p(extra[-1]))
            fill_psi(table[i, j], extra, alpha, ratio, rest)
    return table


@_jit
def _routed_part(problem, work):
    """Return gain and interaction at centred size 0 by back-substitution, after `evaluate` at that size."""
    tilt, level, psi = work[TILT], work[LEVEL], work[PSI]
    length_tilt = length_level = overlap = 0.0
    for i in range(psi.size):
        length_tilt += tilt[i] * psi[i] * problem[SIZE, i]
        overlap += tilt[i] * psi[i] * problem[ONE, i]
        length_level += level[i] * psi[i] * problem[ONE, i]
    gain = _dot(level, problem[TARGET]) / length_level
    return gain, (_dot(tilt, problem[TARGET]) - overlap * gain) / length_tilt


@_jit
def _gradient(problem, extra, alpha, logit, work):
    """Write the derivatives of the prediction by log alpha and logit ratio, less what the linear part can follow."""
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    p, q, top = alpha * rest, alpha * rest * ratio, extra[-1]
    rise = p * rest
    scale = math.log1p(rise * top / (1.0 + q * top)) if rise > 0 else 1.0
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


@_jit
def _value(problem, extra, log_alpha, logit, work):
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    fill_psi(work[PSI], extra, math.exp(log_alpha), ratio, rest)
    return evaluate(problem, 0.0, work)[0]


@_jit
def _step(work, free_alpha, free_logit, damping):
    """Return the damped Gauss-Newton step of the free variables, and the decrease it predicts."""
    first, second, residual = work[TURN_0], work[TURN_1], work[RESIDUAL]
    g0 = _dot(first, residual) if free_alpha else 0.0
    g1 = _dot(second, residual) if free_logit else 0.0
    a00, a11 = _dot(first, first) * (1.0 + damping), _dot(second, second) * (1.0 + damping)
    a01 = _dot(first, second) if free_alpha and free_logit else 0.0
    if not free_alpha:
        a00 = 1.0
    if not free_logit:
        a11 = 1.0
    determinant = a00 * a11 - a01 * a01
    if not determinant > 0.0:
        return 0.0, 0.0, 0.0
    d0, d1 = (a11 * g0 - a01 * g1) / determinant, (a00 * g1 - a01 * g0) / determinant
    return d0, d1, g0 * d0 + g1 * d1


@_jit
def search(problem, extra, constant, log_alpha, logit, free_alpha, free_logit, work):
    """Levenberg-Marquardt from one start, with log alpha <= 0; returns (log alpha, logit, residual sum)."""
    value = _value(problem, extra, log_alpha, logit, work)
    damping = 1e-3
    for _ in range(STEPS):
        _gradient(problem, extra, math.exp(log_alpha), logit, work)
        # At the edge E_start = 1 a step outwards is replaced by one along the edge.
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


@_jit
def _best_starts(values, starts):
    """Return the `starts` lowest local minima of the scan as flat indices, -1 where there are fewer."""
    found = np.full(starts, -1)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            here, lowest = values[i, j], True
            for k in range(max(i - 1, 0), min(i + 2, values.shape[0])):
                for m in range(max(j - 1, 0), min(j + 2, values.shape[1])):
                    if values[k, m] < here:
                        lowest = False
            if not lowest:
                continue
            place = i * values.shape[1] + j
            for s in range(starts):
                if found[s] < 0 or here < values.flat[found[s]]:
                    place, found[s] = found[s], place
                    if place < 0:
                        break
                    here = values.flat[place]
    return found


@_jit
def _search_piece(problem, extra, constant, values, free_alpha, free_logit, starts, work):
    """Search one piece of the domain from the lowest points of its scan; returns (alpha, ratio, rest, residual sum)."""
    scan, log_top = values.shape[0], math.log1p(extra[-1])
    # The scan's last line is the edge E_start = 1, its first column the edge of unbounded E_max.
    first = 0 if free_alpha else scan - 1
    part = values[first:, 1:] if free_logit else values[first:, :1]
    best = (1.0, 0.0, 1.0, np.inf)
    for place in _best_starts(part, starts):
        if place < 0:
            continue
        t, w = (place // part.shape[1] + first + 1) / scan, (place % part.shape[1] + free_logit) / scan
        alpha, ratio, rest = _shape(t, w, log_top)
        logit = math.log(ratio / rest) if free_logit else -np.inf
        log_alpha, logit, value = search(problem, extra, constant, math.log(alpha), logit, free_alpha, free_logit, work)
        if value < best[3]:
            best = (math.exp(log_alpha), 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit)), value)
    return best


@_jit
def fit_one(log_size, log_loss, level, extra, weights, table, starts, floor):
    """Fit one weighting of the table over the whole domain.

    Args:
        log_size, log_loss, level, weights: [n], as `reduce_rows`.
        extra: [levels], E - 1 of each level, rising.
        table: of `scan_table`.
        starts: searches from the lowest points of the scan, in each piece of the domain.
        floor: a difference of residual sums that is rounding.

    Returns:
        [7]: piece, alpha, ratio, 1 - ratio, residual sum, gain and interaction at centred size 0.
    """
    problem, constant = reduce_rows(log_size, log_loss, level, weights, extra.size)
    work = np.empty((6, 2 * extra.size))
    values = np.empty(table.shape[:2])
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            work[PSI] = table[i, j]
            value = evaluate(problem, 0.0, work)[0]
            values[i, j] = value if value >= 0 else np.inf
    found = np.empty((5, 4))
    fill_psi(work[PSI], extra, 0.0, 0.0, 1.0)
    found[LINEAR] = 0.0, 0.0, 1.0, evaluate(problem, 0.0, work)[0]
    found[CORNER] = 1.0, 0.0, 1.0, values[-1, 0]
    for piece in range(START_AT_1, INTERIOR + 1):
        found[piece] = _search_piece(problem, extra, constant, values, piece != START_AT_1, piece != UNBOUNDED, starts,
                                     work)  # fmt: skip
    lowest = found[:, 3].min() + constant
    piece = 0
    while piece < INTERIOR and not found[piece, 3] + constant <= lowest * (1.0 + TIE) + floor:
        piece += 1
    result = np.empty(7)
    result[0], result[1:5] = piece, found[piece]
    result[4] += constant
    fill_psi(work[PSI], extra, result[1], result[2], result[3])
    evaluate(problem, 0.0, work)
    result[5], result[6] = _routed_part(problem, work)
    return result


@_jit
def fit_batch(log_size, log_loss, level, extra, weights, scan, starts, floor):
    """Fit each row of `weights` [B, n] from `starts` points of a scan x scan grid; returns [B, 7], see `fit_one`."""
    table = scan_table(extra, scan)
    results = np.empty((weights.shape[0], 7))
    for b in range(weights.shape[0]):
        results[b] = fit_one(log_size, log_loss, level, extra, weights[b], table, starts, floor)
    return results


@_jit
def _signed_end(problem, extra, constant, t, w, at, limit, beyond, sign, work):
    """Return the low end (sign 1) or minus the high end (sign -1) at one shape; OUTSIDE or more if it is rejected.

    beyond: E - 1 up to which the gain counts; below 0 for the slope.
    """
    alpha, ratio, rest = _shape(t, w, math.log1p(extra[-1]))
    fill_psi(work[PSI], extra, alpha, ratio, rest)
    residual, gain, variance = evaluate(problem, at, work)
    room = limit - residual - constant
    rise, bend = alpha * rest * rest, alpha * rest * ratio
    scale = math.log1p(rise * extra[-1] / (1.0 + bend * extra[-1])) / math.log(10.0)
    if not room >= 0.0 or (scale == 0.0 and beyond < 0.0):
        return OUTSIDE * (1.0 + residual)
    end = sign * gain - math.sqrt(variance * room)
    if beyond < 0.0:
        return end / scale
    if rise == 0.0:
        return end * beyond / extra[-1]
    return end * math.log1p(rise * beyond / (1.0 + bend * beyond)) / math.log(10.0) / scale


@_jit
def _least_over_w(problem, extra, constant, t, at, limit, beyond, sign, work):
    low, high, best_w, best = 0.0, 1.0, 0.0, np.inf
    for time in range(TIMES + 1):
        count = FIRST if time == 0 else LATER
        step = (high - low) / (count - 1)
        for i in range(count):
            w = min(low + step * i, high)
            value = _signed_end(problem, extra, constant, t, w, at, limit, beyond, sign, work)
            if value < best:
                best_w, best = w, value
        low, high = max(best_w - step, low), min(best_w + step, high)
    return best


@_jit
def interval_end(problem, extra, constant, at, limit, beyond, sign):
    """Return the least `_signed_end` over the domain: a scan and zoom over t, for each t one over w.

    Nested, because E_start and E_max form a narrow slanted valley, which a search along the axes can lose.
    """
    work = np.empty((6, 2 * extra.size))
    low, high, best_t, best = 0.0, 1.0, 0.0, np.inf
    for time in range(TIMES + 1):
        count = FIRST if time == 0 else LATER
        step = (high - low) / (count - 1)
        for i in range(count):
            t = min(low + step * i, high)
            value = _least_over_w(problem, extra, constant, t, at, limit, beyond, sign, work)
            if value < best:
                best_t, best = t, value
        low, high = max(best_t - step, low), min(best_t + step, high)
    return best
