"""The bounded law under a Huber criterion, in compiled loops: a few milliseconds per table.

At a given shape the criterion is convex in the four linear unknowns. It is quadratic as long as no residual crosses
delta. `solve` takes a Newton step for the rows within delta, and minimises exactly along this step. It needs only a few
steps, because a step is exact if the right rows are within delta (Madsen and Nielsen 1990).

As in `law_fit.py`, the search begins with a scan over shapes. Each point starts from the solution of its neighbour. A
Levenberg-Marquardt search in (log 1/E_start, logit E_start/E_max) starts at the lowest points. Its gradient is the
criterion's gradient with the linear unknowns fixed at their optimum. Its matrix uses the rows within delta.

Rows cannot be merged as in `law_fit.py`, because each Huber term depends on the residual of its row. Letters as in
`law_fit.py`.
"""

import math

import numpy as np

from .compile import jit, jit_within
from .law_fit import (
    CORNER,
    INTERIOR,
    LINEAR,
    RESOLUTION,
    START_AT_1,
    TIE,
    UNBOUNDED,
    _best_starts,
    _shape,
    _solve_two,
)

ROUNDS = 200  # largest number of Newton steps at a shape; about five are used
STEPS = 300  # largest number of steps of the search over shapes
SETTLED = 1e-15  # relative decrease that ends a search
OUTER_SHARE = 1e-6  # weight of rows beyond delta in a Newton matrix, to keep the matrix regular


@jit
def criterion(residual, delta):
    """Return the sum of Huber terms."""
    total = 0.0
    for r in residual:
        size = abs(r)
        total += 0.5 * size * size if size <= delta else delta * (size - 0.5 * delta)
    return total


@jit
def _weight(residual, delta):
    """Return the share of a row in a Newton matrix: 1 within delta, almost 0 beyond."""
    size = abs(residual)
    return 1.0 if size <= delta else OUTER_SHARE * delta / size


@jit
def _fill(basis, triangle, log_size, level, extra, alpha, ratio, rest):
    """Write the orthonormal columns of 1, log10 N, psi and psi log10 N, and their triangular factor."""
    rise, bend, top = alpha * rest * rest, alpha * rest * ratio, extra[-1]
    psi = extra / top
    if rise > 0.0:
        for j in range(extra.size):
            psi[j] = math.log1p(rise * extra[j] / (1.0 + bend * extra[j]))
        psi /= psi[-1]
    for i in range(log_size.size):
        if not 0 <= level[i] < extra.size:
            raise ValueError("level has to be at least 0 and below the number of levels")
        here = psi[level[i]]
        basis[0, i], basis[1, i], basis[2, i], basis[3, i] = 1.0, log_size[i], here, here * log_size[i]
    for k in range(4):
        for m in range(k):
            triangle[m, k] = share = np.dot(basis[m], basis[k])
            for i in range(log_size.size):
                basis[k, i] -= share * basis[m, i]
        triangle[k, k] = length = math.sqrt(np.dot(basis[k], basis[k]))
        for i in range(log_size.size):
            basis[k, i] /= length


@jit
def _factor(matrix):
    """Replace the lower half of a symmetric positive matrix by its Cholesky factor."""
    for j in range(len(matrix)):
        for k in range(j):
            for i in range(j, len(matrix)):
                matrix[i, j] -= matrix[i, k] * matrix[j, k]
        root = math.sqrt(max(matrix[j, j], 1e-300))
        for i in range(j, len(matrix)):
            matrix[i, j] /= root


@jit
def _back(factor, vector):
    """Replace `vector` by the solution of factor factorᵀ x = vector."""
    for i in range(vector.size):
        for k in range(i):
            vector[i] -= factor[i, k] * vector[k]
        vector[i] /= factor[i, i]
    for i in range(vector.size - 1, -1, -1):
        for k in range(i + 1, vector.size):
            vector[i] -= factor[k, i] * vector[k]
        vector[i] /= factor[i, i]


@jit
def _newton_matrix(basis, residual, delta, matrix):
    """Write the lower half of basis · diag(weight) · basisᵀ."""
    matrix[:] = 0.0
    for i in range(residual.size):
        weight = _weight(residual[i], delta)
        for j in range(4):
            for k in range(j + 1):
                matrix[j, k] += weight * basis[j, i] * basis[k, i]


@jit
def _best_length(residual, change, delta, decline):
    """Return the s >= 0 that minimises the sum of terms of residual - s · change. `decline` is minus its slope at 0.

    The slope in s is increasing and piecewise linear, so Newton's method with a bracket needs finitely many steps.
    """
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(ROUNDS):
        slope = curvature = 0.0
        for r, z in zip(residual, change):  # noqa: B905  (numba's zip takes no keyword)
            left = r - length * z
            slope -= min(max(left, -delta), delta) * z
            if abs(left) <= delta:
                curvature += z * z
        if abs(slope) <= SETTLED * decline:
            break
        if slope < 0.0:
            low = length
        else:
            high = length
        trial = length - slope / curvature
        if not low < trial < high:
            trial = 0.5 * (low + high) if high < np.inf else 2.0 * length
            if not low < trial < high:
                break
        length = trial
    return length


@jit
def solve(problem, delta, alpha, ratio, rest, linear, work):
    """Minimise the sum of Huber terms over the four linear unknowns at a shape.

    Args:
        problem: (log_size [n] centred, log_loss [n], level [n], extra [levels]).
        delta: log10 units, above 0.
        alpha, ratio, rest: the shape.
        linear: [4], a start, replaced by the solution: intercept, size, gain, interaction, at centred size 0.
        work: (basis [4, n], triangle [4, 4], matrix [4, 4], residual [n], change [n]); at the end, it holds the values
            of the solution.

    Returns:
        The sum of Huber terms.
    """
    log_size, log_loss, level, extra = problem
    basis, triangle, matrix, residual, change = work
    if not (log_loss.size == level.size == log_size.size == residual.size == change.size == basis.shape[1]):
        raise ValueError("log_size, log_loss, level and the scratch arrays have to have equal numbers of rows")
    if not (basis.shape[0] == triangle.size // 4 == matrix.size // 4 == linear.size == 4 and extra.size > 0):
        raise ValueError("a law has four linear unknowns, and extra has to be [levels], one at least")
    _fill(basis, triangle, log_size, level, extra, alpha, ratio, rest)
    moved, step = np.zeros(4), np.empty(4)
    for k in range(moved.size):
        for m in range(k, moved.size):
            moved[k] += triangle[k, m] * linear[m]
    for i in range(log_loss.size):
        residual[i] = log_loss[i]
        for k in range(4):
            residual[i] -= moved[k] * basis[k, i]
    value = criterion(residual, delta)
    for _ in range(ROUNDS):
        step[:] = 0.0
        for i in range(log_loss.size):
            clipped = min(max(residual[i], -delta), delta)
            for k in range(4):
                step[k] += basis[k, i] * clipped
        _newton_matrix(basis, residual, delta, matrix)
        _factor(matrix)
        slope = step.copy()
        _back(matrix, step)
        for i in range(log_loss.size):
            change[i] = step[0] * basis[0, i] + step[1] * basis[1, i] + step[2] * basis[2, i] + step[3] * basis[3, i]
        decline = np.dot(slope, step)
        if not decline > SETTLED * value:
            break
        length = _best_length(residual, change, delta, decline)
        for i in range(log_loss.size):
            change[i] = residual[i] - length * change[i]
        trial = criterion(change, delta)
        if not trial < value:
            break
        residual[:], value = change, trial
        moved += length * step
    for k in range(3, -1, -1):
        for m in range(k + 1, 4):
            moved[k] -= triangle[k, m] * moved[m]
        moved[k] /= triangle[k, k]
    linear[:] = moved
    return value


@jit
def _slopes(problem, delta, alpha, logit, linear, work):
    """Return minus the criterion's gradient in (log alpha, logit ratio), its matrix, and the scale for damping.

    With basis Q and weights V, the matrix is J'VJ - J'VQ (Q'VQ)⁻¹ Q'VJ: the second term accounts for the linear
    unknowns. The scale is the same expression with all weights 1.
    """
    log_size, log_loss, level, extra = problem
    basis, triangle, matrix, residual, change = work
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    p, q = alpha * rest, alpha * rest * ratio
    rise = p * rest
    scale = math.log1p(rise * extra[-1] / (1.0 + q * extra[-1]))
    turn, whole, shared, slope = np.empty(2), np.zeros((2, 4)), np.zeros((2, 4)), np.zeros(2)
    inner, scales = np.zeros((2, 2)), np.zeros(2)
    for i in range(log_loss.size):
        x = extra[level[i]]
        routed = (linear[2] + linear[3] * log_size[i]) / scale
        turn[0] = routed * rise * x / ((1.0 + p * x) * (1.0 + q * x))
        turn[1] = -routed * q * x * (1.0 / (1.0 + p * x) + (rest - ratio) / (1.0 + q * x))
        weight, clipped = _weight(residual[i], delta), min(max(residual[i], -delta), delta)
        for f in range(2):
            slope[f] += clipped * turn[f]
            scales[f] += turn[f] * turn[f]
            for g in range(2):
                inner[f, g] += weight * turn[f] * turn[g]
            for k in range(4):
                whole[f, k] += turn[f] * basis[k, i]
                shared[f, k] += weight * turn[f] * basis[k, i]
    _newton_matrix(basis, residual, delta, matrix)
    _factor(matrix)
    for f in range(2):
        scales[f] -= np.dot(whole[f], whole[f])
        followed = shared[f].copy()
        _back(matrix, followed)
        for g in range(2):
            inner[f, g] -= np.dot(followed, shared[g])
    return slope, inner, scales


@jit
def _step(slope, inner, scales, free_alpha, free_logit, damping):
    a00, a11 = inner[0, 0] + damping * scales[0], inner[1, 1] + damping * scales[1]
    d0, d1, descends = _solve_two(a00, inner[0, 1], a11, slope[0], slope[1], free_alpha, free_logit)
    # A matrix that is not positive needs more damping. Infinity causes a trial step that fails and raises the damping.
    return d0, d1, slope[0] * d0 + slope[1] * d1 if descends else np.inf


@jit
def search(problem, delta, log_alpha, logit, free_alpha, free_logit, linear, work):
    """Search by Levenberg-Marquardt from a start, with log alpha <= 0.

    Return (log alpha, logit, value) and update `linear`.
    """
    value = _at(problem, delta, log_alpha, logit, linear, work)
    trial_linear = linear.copy()
    damping = 1e-3
    for _ in range(STEPS):
        slope, inner, scales = _slopes(problem, delta, math.exp(log_alpha), logit, linear, work)
        held = log_alpha >= 0.0 and free_alpha and _step(slope, inner, scales, free_alpha, free_logit, damping)[0] > 0.0
        moved = False
        while damping < 1e12:
            d0, d1, predicted = _step(slope, inner, scales, free_alpha and not held, free_logit, damping)
            if not predicted > SETTLED * value:
                break
            trial_alpha = min(log_alpha + max(min(d0, 4.0), -4.0), 0.0)
            trial_logit = max(min(logit + max(min(d1, 4.0), -4.0), 40.0), -40.0) if free_logit else logit
            trial_linear[:] = linear
            trial = _at(problem, delta, trial_alpha, trial_logit, trial_linear, work)
            if trial < value:
                moved = True
                damping = max(damping * 0.1, 1e-12)
                break
            damping *= 10.0
        if not moved:
            break
        log_alpha, logit, value = trial_alpha, trial_logit, trial
        linear[:] = trial_linear
    return log_alpha, logit, value


@jit_within
def _at(problem, delta, log_alpha, logit, linear, work):
    ratio, rest = 1.0 / (1.0 + math.exp(-logit)), 1.0 / (1.0 + math.exp(logit))
    return solve(problem, delta, math.exp(log_alpha), ratio, rest, linear, work)


@jit_within
def scan_shapes(problem, delta, scan, work):
    """Solve at t = 1/scan ... 1, w = 0 ... 1 - 1/scan: the values [scan, scan] and the unknowns [scan, scan, 4].

    Every second line of the grid runs backwards, so each point starts from the solution of its neighbour.
    """
    extra = problem[3]
    values, solutions, linear = np.empty((scan, scan)), np.empty((scan, scan, 4)), np.zeros(4)
    for i in range(scan):
        for k in range(scan):
            j = k if i % 2 == 0 else scan - 1 - k
            alpha, ratio, rest = _shape((i + 1) / scan, j / scan, math.log1p(extra[-1]))
            value = solve(problem, delta, alpha, ratio, rest, linear, work)
            if math.isnan(value):  # rounding errors dominate at this shape
                value, linear[:] = np.inf, 0.0
            values[i, j] = value
            solutions[i, j] = linear
    return values, solutions


@jit_within
def _search_piece(problem, delta, values, solutions, free_alpha, free_logit, starts, work):
    """Search a piece of the domain from its scan. Return [8]: alpha, ratio, rest, value, unknowns."""
    scan, log_top = len(values), math.log1p(problem[3][-1])
    # The scan's last line is the edge E_start = 1, its first column the edge of unbounded E_max.
    first, left = (0 if free_alpha else scan - 1), (1 if free_logit else 0)
    part = values[first:, left:] if free_logit else values[first:, :1]
    best = np.full(8, np.inf)
    for place in _best_starts(part, starts):
        if place < 0:
            continue
        i, j = place // part.shape[1] + first, place % part.shape[1] + left
        alpha, ratio, rest = _shape((i + 1) / scan, j / scan, log_top)
        logit = math.log(ratio / rest) if free_logit else -np.inf
        linear = solutions[i, j].copy()
        log_alpha, logit, value = search(problem, delta, math.log(alpha), logit, free_alpha, free_logit, linear, work)
        if value < best[3]:
            best[0], best[1] = math.exp(log_alpha), 1.0 / (1.0 + math.exp(-logit))
            best[2], best[3], best[4:] = 1.0 / (1.0 + math.exp(logit)), value, linear
    return best


@jit
def fit(log_size, log_loss, level, extra, delta, scan, starts):
    """Fit a table over the whole domain.

    Args:
        log_size, log_loss, level: [n]; log_size centred, level an index into `extra`.
        extra: [levels], E - 1 of each level, rising.
        delta: log10 units, above 0.
        scan: points of the scan along each axis.
        starts: searches from the lowest points of the scan, in each piece of the domain.

    Returns:
        [9]: piece, alpha, ratio, 1 - ratio, the sum of Huber terms, and intercept, size, gain and interaction at
        centred size 0.
    """
    if scan < 1 or extra.size == 0:
        raise ValueError("scan has to be at least 1, and extra [levels], one at least")
    rows = log_size.size
    problem = (log_size, log_loss, level, extra)
    work = (np.empty((4, rows)), np.empty((4, 4)), np.empty((4, 4)), np.empty(rows), np.empty(rows))
    values, solutions = scan_shapes(problem, delta, scan, work)
    found = np.zeros((5, 8))
    found[LINEAR, 2] = found[CORNER, 0] = found[CORNER, 2] = 1.0
    for piece in (LINEAR, CORNER):
        found[piece, 3] = solve(problem, delta, found[piece, 0], 0.0, 1.0, found[piece, 4:], work)
    for piece in range(START_AT_1, INTERIOR + 1):
        found[piece] = _search_piece(
            problem, delta, values, solutions, piece != START_AT_1, piece != UNBOUNDED, starts, work
        )
    # A search that ends on the edge E_start = 1 has found a point of this edge.
    for inside, edge in ((INTERIOR, START_AT_1), (UNBOUNDED, CORNER)):
        if found[inside, 0] == 1.0 and found[inside, 3] < found[edge, 3]:
            found[edge] = found[inside]
    # For tables without noise, the resolution of the search decides between pieces.
    limit = found[:, 3].min() * (1.0 + TIE) + rows * criterion(np.array([RESOLUTION]), delta)
    piece = 0
    while piece < INTERIOR and not found[piece, 3] <= limit:
        piece += 1
    result = np.empty(9)
    result[0], result[1:] = piece, found[piece]
    return result
