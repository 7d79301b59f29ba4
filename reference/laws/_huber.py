"""A fit that a few bad rows cannot pull away: Huber's criterion, at one shape of the bounded law or at many.

Private to the reference. A squared residual grows without end, so that one row that went wrong can outweigh fifty that
did not. Huber's term of a residual r is the square up to delta and a straight line beyond,

    r²/2  where |r| <= delta,        delta (|r| - delta/2)  elsewhere,

which meet with the same value and the same slope. Its derivative is r cut off at ±delta (`clipped`): what a row can
pull with is limited. The criterion is the *sum* of the terms over the rows, never their mean, so that its scale does
not depend on the number of rows.

At a given shape the prediction is linear in four unknowns (`fitting.py`, step 2), and the sum is convex in them:
there is one least value, and a point is a minimum exactly when the derivatives are 0. With the four columns made
orthonormal, Q (n rows, 4 columns), and r the residuals, that reads

    Qᵀ clipped(r) = 0

`solve` gets there by Newton's method. Within delta a row has curvature 1 and beyond it 0, so with W the diagonal
matrix that has 1 for a row within delta the step is the solution of (Qᵀ W Q) step = Qᵀ clipped(r). It would be exact if
no row crossed delta on the way. Some do, so that only the direction is used, and the minimum along it is found exactly
(`_best_length`). Once the right rows are within delta one step ends at the minimum (Madsen and Nielsen 1990 show that
this is so after finitely many).
Too few rows may be within delta for QᵀWQ to have an inverse; the others are given a millionth of what would make the
step safe by itself, delta/|r|, which changes the path and not the end.

Gives up: speed, and the unknowns where several are as good (the sum is then flat between them; its value is unique).
"""

import math

import numpy as np

from ._projection import Rows, expert_curve

ROUNDS = 200  # of Newton steps; between 5 and 20 are used
SETTLED = 1e-15  # relative decrease of the sum that ends them
_OUTER_SHARE = 1e-6  # of the safe weight, for a row beyond delta


def check_delta(delta: float) -> float:
    """Return delta as a float; ValueError unless it is a finite number above 0."""
    if not (isinstance(delta, int | float | np.number) and 0 < delta < math.inf):
        raise ValueError(f"huber is {delta!r}; needed: a finite number above 0, in log10 units, or None")
    return float(delta)


def clipped(residual: np.ndarray, delta: float) -> np.ndarray:
    """Return the derivative of Huber's term: the residual, cut off at -delta and delta."""
    return np.clip(residual, -delta, delta)


def terms(residual: np.ndarray, delta: float) -> np.ndarray:
    """Return Huber's term of each residual.

    Example:
        >>> terms(np.array([0.0, 0.5, 1.0, -3.0]), 1.0).tolist()
        [0.0, 0.125, 0.5, 2.5]
    """
    size = np.abs(residual)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def solve(rows: Rows, rise: np.ndarray, bend: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Find the least sum of Huber terms at each shape.

    Args:
        rows: the table, n rows.
        rise, bend: any shape, of step 1 of `fitting.py`.
        delta: log10 units, above 0.

    Returns:
        Two arrays: the least sums, of the shape of `rise`, and the residuals there, with one more axis of n.

    Example:
        Two sizes and E of 1 and 2: four groups of five rows, which four unknowns can follow one by one. The first row
        is wrong by 1. The mean of its group moves by 1/5; here the row pulls with delta = 0.1 against the four others,
        so that the group moves by 0.1/4.

        >>> rows = Rows(np.tile([7.0, 8.0], 10), np.repeat([0.0, 1.0], 10), np.array([1.0, *[0.0] * 19]))
        >>> least, residual = solve(rows, np.array(1.0), np.array(0.0), 0.1)
        >>> residual[[0, 2]].round(6).tolist(), bool(abs(residual[1]) < 1e-9)  # the second row is of another group
        ([0.975, -0.025], True)
    """
    psi = expert_curve(rows.extra_experts, np.asarray(rise)[..., None], np.asarray(bend)[..., None],
                       rows.extra_experts.max())  # fmt: skip  # (..., n)
    shapes, psi = psi.shape, psi.reshape(-1, psi.shape[-1])
    offset = rows.log_size - rows.log_size.mean()
    columns = np.stack([np.ones_like(psi), np.broadcast_to(offset, psi.shape), psi * offset, psi], axis=-1)
    unit, _ = np.linalg.qr(columns)  # (shapes, n, 4)
    target = rows.log_loss - rows.log_loss.mean()
    residual = target - np.einsum("snk,sk->sn", unit, np.einsum("snk,n->sk", unit, target))  # least squares to begin
    least = terms(residual, delta).sum(axis=-1)
    going = np.arange(least.size)
    for _ in range(ROUNDS):
        trial = _newton(unit[going], residual[going], delta)
        value = terms(trial, delta).sum(axis=-1)
        # A shape is done when a step lowers the sum by no more than rounding.
        better, done = value < least[going], ~(value < least[going] * (1 - SETTLED))
        residual[going[better]], least[going[better]] = trial[better], value[better]
        going = going[~done]
        if not going.size:
            break
    return least.reshape(shapes[:-1]), residual.reshape(shapes)


def _newton(unit: np.ndarray, residual: np.ndarray, delta: float) -> np.ndarray:
    """Return the residuals [s, n] after one Newton step with the best length; unit [s, n, 4]."""
    size = np.abs(residual)
    weight = np.where(size <= delta, 1.0, _OUTER_SHARE * delta / np.maximum(size, delta))
    gradient = np.einsum("snk,sn->sk", unit, clipped(residual, delta))
    matrix = np.swapaxes(unit * weight[..., None], 1, 2) @ unit
    step = np.linalg.solve(matrix, gradient[..., None])[..., 0]
    change = np.einsum("snk,sk->sn", unit, step)
    decline = (gradient * step).sum(axis=-1)
    return residual - _best_length(residual, change, delta, decline)[:, None] * change


def _best_length(residual: np.ndarray, change: np.ndarray, delta: float, decline: np.ndarray) -> np.ndarray:
    """Return, for each line, the length >= 0 at which the terms of residual - length · change have their least sum.

    Along a line the slope of the sum starts at -decline and never falls. It rises at the rate Σ change² over the rows
    that are within delta, so it is a broken straight line; its corners are where a row enters or leaves, at
    residual/change ∓ delta/|change|. The corners are sorted, the slope is added up from one to the next, and the
    length wanted is where it reaches 0.
    """
    moves = change != 0
    speed = np.where(moves, change, 1.0)
    enters = np.where(moves, np.maximum(residual / speed - delta / np.abs(speed), 0.0), 0.0)
    leaves = np.where(moves, np.maximum(residual / speed + delta / np.abs(speed), 0.0), 0.0)
    corners = np.concatenate([enters, leaves], axis=1)
    order = np.argsort(corners, axis=1)
    corners = np.take_along_axis(corners, order, axis=1)
    rate = np.cumsum(np.take_along_axis(np.concatenate([change**2, -(change**2)], axis=1), order, axis=1), axis=1)
    # The slope at every corner but the first, where it is -decline.
    slope = np.cumsum(rate[:, :-1] * np.diff(corners, axis=1), axis=1) - decline[:, None]
    lines = np.arange(len(slope))
    after = np.argmax(slope >= 0, axis=1)  # an index of `slope`, and of the corner just before
    start = np.where(after > 0, slope[lines, after - 1], -decline)
    pace = rate[lines, after]
    return corners[lines, after] + np.where(pace > 0, -start / np.where(pace > 0, pace, 1.0), 0.0)


# What this file does not do: say which part of the domain to search (`fitting.py`).
