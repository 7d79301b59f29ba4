"""Minimise a sum of Huber terms for a law of `law_terms.py`, in compiled loops: under a millisecond per start.

`routelaws.reference.laws._descent` explains the objective and the steps. This code is fast for two reasons. No start
waits for slower starts. A rejected step costs one evaluation, because the next damping reuses its linear system.
"""

import math

import numpy as np

from .compile import jit, jit_free, jit_sum, jit_within
from .law_fit import _dot
from .law_terms import coefficient, predict

OUTER_SHARE = (1.0, 1e-3)
WORTH = (1e-6, 1e-14)
LONGEST = 3.0
FAINT = 1e-12
ROUNDING = 1e-16

NOTHING, POINT = -2, -1  # targets besides the number of a coefficient

# Lines of the array `vectors`, each [p].
STEP, TRIAL, SCALE, PULL, BY = range(5)


@jit_free
def follow(law, centres, table, asked, points, wanted, stiffness, starts, most, theta, value, said):
    """Run all starts to convergence. If a start has a target, an extra row holds it near a value.

    Args:
        law: see `law_terms.predict`.
        centres: [columns], the centres of the table.
        table: logs [columns, n], centred; log losses [n]; weights [n]; delta [n], inf for least squares. With targets,
            the last row is the extra row of each start.
        asked: [starts]: NOTHING, or POINT for ln L̂ at a point, or the number of a coefficient.
        points: [starts, columns], logs, centred.
        wanted: [starts], the target value of the extra row.
        stiffness: [starts], the weight of the extra row.
        starts: [starts, p].
        most: [2], largest number of steps of each half.
        theta: [starts, p], written: the final points.
        value: [starts], written: the final sums, without the extra row.
        said: [starts], written: the final values of the targets.
    """
    logs, log_loss, weight, delta = table[0].copy(), table[1].copy(), table[2].copy(), table[3]
    unknowns, rows = starts.shape[1], log_loss.size
    if logs.shape != (centres.size, rows) or not (rows == weight.size == delta.size) or most.size != 2:
        raise ValueError("logs have to be [columns, n], centres [columns], log losses, weights and delta [n], most [2]")
    if theta.shape != starts.shape or points.shape != (starts.shape[0], centres.size):
        raise ValueError("theta and starts have to be [starts, p], and points [starts, columns]")
    if not (starts.shape[0] == asked.size == wanted.size == stiffness.size == value.size == said.size):
        raise ValueError("asked, wanted, stiffness, value and said have to be [starts]")
    if rows == 0 and (asked != NOTHING).any():
        raise ValueError("a target needs an additional last row in the table")
    vectors, squares = np.empty((5, unknowns)), np.empty((2, unknowns, unknowns))
    work = np.empty(rows), np.empty((unknowns, rows)), vectors, squares, np.empty((2, rows))
    for s in range(starts.shape[0]):
        if asked[s] != NOTHING:
            log_loss[rows - 1], weight[rows - 1] = wanted[s], stiffness[s]
            for c in range(centres.size):
                logs[c, rows - 1] = points[s, c]
        _copy(starts[s], theta[s])
        own = logs, log_loss, weight, delta
        value[s] = _descend(law, centres, own, asked[s], most, theta[s], work)
        if asked[s] != NOTHING:
            _look(law, centres, logs, asked[s], theta[s], work)
            value[s] = huber_sum(work[0][:-1], log_loss[:-1], weight[:-1], delta[:-1])
            said[s] = work[0][rows - 1]


@jit
def _copy(source, target):  # a slice takes ten times as long to compile
    for j in range(source.size):
        target[j] = source[j]


@jit_within
def _descend(law, centres, table, asked, most, theta, work):
    """Move θ to the end of the search. Return the sum at the end."""
    logs, log_loss, weight, delta = table
    predicted, turn, vectors, squares, _ = work
    step, trial = vectors[STEP], vectors[TRIAL]
    least = math.inf
    for half in range(2):
        damping, more, promise = 1e-4, 2.0, 1.0
        _copy(theta, trial)
        for count in range(most[half] + 1):
            _look(law, centres, logs, asked, trial, work)
            total = huber_sum(predicted, log_loss, weight, delta)
            if count == 0 or total < least:
                gain = 2.0 * (least - total) / promise
                if count:
                    damping, more = max(damping * max(1.0 / 3.0, 1.0 - (2.0 * gain - 1.0) ** 3), 1e-12), 2.0
                least = total
                _copy(trial, theta)
                _system(table, OUTER_SHARE[half], work)
            else:
                damping, more = damping * more, 2.0 * more
            promise = _step(damping, vectors, squares)
            if (damping <= 1.0 and not promise > WORTH[half] * least + ROUNDING**2) or damping > 1e6:
                break
            for j in range(theta.size):
                trial[j] = theta[j] - min(max(step[j] / vectors[SCALE, j], -LONGEST), LONGEST)
    return least


@jit_within
def _look(law, centres, logs, asked, theta, work):
    """Write the law's prediction for every row, and the target into the last row."""
    predicted, turn, by = work[0], work[1], work[2][BY]
    predict(law, theta, logs, predicted, turn, work[4])
    if asked >= 0:
        predicted[predicted.size - 1] = coefficient(law, centres, asked, theta, by)
        for j in range(theta.size):
            turn[j, predicted.size - 1] = by[j]


@jit
def huber_sum(predicted, log_loss, weight, delta):
    """Return the sum of Huber terms; infinite instead of NaN."""
    if not (log_loss.size == weight.size == delta.size == predicted.size):
        raise ValueError("predicted, log_loss, weight and delta have to be [n]")
    total = 0.0
    for i in range(predicted.size):
        size = abs(predicted[i] - log_loss[i])
        line = delta[i] * (size - 0.5 * delta[i]) if size > delta[i] else 0.5 * size * size
        total += weight[i] * line
    return total if math.isfinite(total) else math.inf


@jit
def _system(table, outer, work):
    """Write Jᵀ diag(v) J and Jᵀ(w h') with columns of length 1, and these lengths. `predicted` becomes w h'."""
    _, log_loss, weight, delta = table
    pulls, turn, vectors, squares, scratch = work
    v, system = scratch[0], squares[0]
    for i in range(log_loss.size):
        residual = pulls[i] - log_loss[i]
        size = abs(residual)
        v[i] = weight[i] * (1.0 if size <= delta[i] else outer * delta[i] / size)
        pulls[i] = weight[i] * min(max(residual, -delta[i]), delta[i])
    for j in range(turn.shape[0]):
        vectors[SCALE, j] = math.sqrt(_sum_of_three(weight, turn[j], turn[j])) + FAINT
        vectors[PULL, j] = _dot(pulls, turn[j]) / vectors[SCALE, j]
        for k in range(j + 1):
            system[j, k] = _sum_of_three(v, turn[j], turn[k]) / (vectors[SCALE, j] * vectors[SCALE, k])


@jit_sum
def _sum_of_three(weight, first, second):
    total = 0.0
    for i in range(weight.size):
        total += weight[i] * first[i] * second[i]
    return total


@jit
def _step(damping, vectors, squares):
    """Write the solution of (system + damping) step = pull by Cholesky's triangle. Return pull · step, or NaN."""
    step, pull, system, triangle = vectors[STEP], vectors[PULL], squares[0], squares[1]
    promise = 0.0
    for j in range(pull.size):
        for k in range(j + 1):
            rest = system[j, k] + (damping if j == k else 0.0)
            for m in range(k):
                rest -= triangle[j, m] * triangle[k, m]
            triangle[j, k] = math.sqrt(rest) if j == k else rest / triangle[k, k]
        rest = pull[j]
        for m in range(j):
            rest -= triangle[j, m] * step[m]
        step[j] = rest / triangle[j, j]
        promise += step[j] * step[j]
    for j in range(pull.size - 1, -1, -1):
        rest = step[j]
        for m in range(j + 1, pull.size):
            rest -= triangle[m, j] * step[m]
        step[j] = rest / triangle[j, j]
    return promise
