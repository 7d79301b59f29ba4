"""Rows that are far from a law, found together.

A wrong run pulls a least-squares fit towards itself. Several wrong runs hide each other: without one of them, the fit
still follows the rest (masking), and right runs look wrong (swamping). So all rows are judged at once, by a fit that a
quarter of wrong rows cannot move.

    1. START    fits through a few rows each, at random, and least squares; the start has the least median |residual|
                (least median of squares; Rousseeuw 1984)
    2. WEIGHTS  `bisquare`: weighted least squares, again and again. A weight falls to 0 at 4.685 standard deviations
                (Beaton and Tukey 1974; scale and leverages as in DuMouchel and O'Brien 1989)
    3. LAW      both steps are linear, so they use the derivatives of the law at its fit. The law is then fitted again
                without the rows of weight 0, until these rows stay the same (to 1 % of all)
    4. RULE     a row is far if its distance exceeds both 10 standard deviations and Student's quantile at
                1 - 0.0001/rows (Bonferroni), and its residual exceeds 1 % of the loss

The rule is our choice. Of simulated tables without a wrong run, at most 4 % have a far row if errors are normal, uneven
or shared by a size. If errors have Student's distribution with 3 degrees of freedom, 0 to 8 % of tables of 12 to 48
rows have one, and a third of tables of 200 rows: single rows do lie more than 10 standard deviations away. The rule
also misses runs: among 16 runs with errors of 0.4 %, it names a run that is 5 % too high in half of the tables, and one
that is 10 % too high in nearly all.

A law without a floor misses whole sizes. To name no right run for it, the linear fit of such a law also has curvature
in log N. If the runs of a size miss the law together, then the law is wrong at this size. So a row must also be as far
from the median of the other runs of its size.

On the 245 points of Hoffmann et al. that Besiroglu et al. (2024) read from a figure, these are the five points that
Besiroglu et al. left out. The margin is small, and we chose the number 10 with these points in view: the fifth row is
at 11.3 standard deviations and the sixth at 9.7. Ten rows have no weight.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .robust_intervals import tangent
from .uncertainty import student_quantile

FAR, LEAST = 10.0, 0.01
"""A far row exceeds this number of robust standard deviations, and this share of the loss."""

_PROBABILITY = 1e-4  # of a far row in a table with normal errors, at most
_TUNING = 4.685  # 95 % of the precision of least squares, with normal errors
_NORMAL = 0.6745  # median |error| of a standard normal distribution
_TRIALS, _ENTRIES = 500, 2_000_000  # starts, fewer for large tables; entries of their residuals
_STEPS, _ROUNDS = 100, 10  # changes of the weights; fits of the law
_CHANGED = 0.01  # a smaller share of rows that gain or lose all weight needs no new fit of the law
_SPARE = 12  # with more rows beyond the coefficients, curvature has a cubic term


class Robust(NamedTuple):
    """A robust linear fit.

    Attributes:
        residual: [n]
        weight: [n], from 0 to 1
        distance: [n], residuals in standard deviations; those of rows with weight 0 are of the prediction of a new row
        freedom: rows with a weight, less the coefficients
    """

    residual: np.ndarray
    weight: np.ndarray
    distance: np.ndarray
    freedom: int


class FarRows(NamedTuple):
    """The far rows of a table.

    Attributes:
        far: [n], booleans
        distance: [n], robust standard deviations, above 0 where the loss is above the law
        predicted: [n], losses of the law, fitted to the rows with a weight
    """

    far: np.ndarray
    distance: np.ndarray
    predicted: np.ndarray


def far_rows(law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, sizes: np.ndarray) -> FarRows:
    """Return the rows that are far from a law.

    Args:
        law: of the loss, such as `catalogue.LAWS["bilinear"]`.
        fit: a fit of the law to these rows, by any criterion.
        columns, loss: the rows of the fit, [n] each; the law has a value at each of them.
        sizes: [n], N.

    Raises:
        ValueError: `law.predict` raises this error.

    Example:
        Two of twelve losses are too high by 10 and 20 %:

        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> size = np.logspace(6, 10, 12)
        >>> loss = 10 ** (1.2 - 0.1 * np.log10(size) + 1e-3 * np.array([1, -1, 1, 2, -1, 0, -2, 1, 0, 1, -1, 1]))
        >>> loss[[3, 5]] *= 1.1, 1.2
        >>> found = far_rows(LAWS["dense"], LAWS["dense"].fit(size, loss), (size,), loss, size)
        >>> np.flatnonzero(found.far).tolist(), (loss / found.predicted).round(2)[2:6].tolist()
        ([3, 5], [1.0, 1.11, 1.0, 1.2])
    """
    refit = partial(law.fit, **law.given(*columns))
    kept, before, robust = np.ones(loss.size, dtype=bool), [], _unjudged(loss.size)
    predicted = np.asarray(law.predict(fit, *columns))
    for _ in range(_ROUNDS):
        robust = bisquare(_directions(law, fit, columns, sizes), np.log10(loss) - np.log10(predicted))
        before.append(kept)
        kept = robust.weight > 0
        if any(np.count_nonzero(kept != rows) <= _CHANGED * kept.size for rows in before):
            break
        try:
            fit = refit(*(column[kept] for column in columns), loss[kept])
        except ValueError:  # the other rows do not determine the law
            break
        again = np.asarray(law.predict(fit, *columns))
        if not np.isfinite(again).all():  # a size has lost its line
            break
        predicted = again
    far = np.zeros(loss.size, dtype=bool)
    if robust.freedom > 0:
        least = max(FAR, student_quantile(1 - _PROBABILITY / loss.size, robust.freedom))
        far = (np.abs(robust.distance) > least) & (np.abs(robust.residual) > np.log10(1 + LEAST))
    for row in np.flatnonzero(far):
        others = robust.distance[(sizes == sizes[row]) & (np.arange(far.size) != row)]
        if others.size:
            middle = others[np.argsort(np.abs(others))[(others.size - 1) // 2]]
            far[row] = abs(robust.distance[row] - middle) > least
    return FarRows(far, robust.distance, predicted)


def bisquare(design: np.ndarray, values: np.ndarray) -> Robust:
    """Fit values [n] as a sum of the columns of `design` [n, p], by Tukey's bisquare weights.

    The standard deviation is the median |residual|, over 0.6745; the p - 1 smallest residuals do not count.

    Example:
        The mean of six values, one of them wrong:

        >>> found = bisquare(np.ones((6, 1)), np.array([1.0, 2.0, 3.0, 4.0, 5.0, 100.0]))
        >>> found.weight.round(2).tolist(), found.freedom
        ([0.91, 0.98, 1.0, 0.98, 0.91, 0.0], 4)
    """
    design = design / np.maximum(np.abs(design).max(axis=0), 1e-300)  # else squares of 1e200 overflow
    unit, lengths, _ = np.linalg.svd(design / np.maximum(np.linalg.norm(design, axis=0), 1e-300), full_matrices=False)
    unit = unit[:, lengths > 1e-10 * lengths[0]]
    rows, rank = unit.shape
    if rows <= rank:
        return _unjudged(rows)
    stretch = 1 / np.sqrt(np.maximum(1 - np.sum(unit**2, axis=1), 1e-9))
    solution = _start(unit, values)
    for _ in range(_STEPS):
        residual = values - unit @ solution
        scale = max(float(np.median(np.sort(np.abs(residual))[rank - 1 :])) / _NORMAL, 1e-12)
        weight = np.maximum(1 - (residual * stretch / scale / _TUNING) ** 2, 0.0) ** 2
        if np.linalg.matrix_rank(unit[weight > 0]) < rank:  # too few rows are left
            return _unjudged(rows)
        inverse = np.linalg.pinv(unit.T @ (unit * weight[:, None]))
        step = inverse @ (unit.T @ (weight * residual))
        solution = solution + step
        if np.abs(step).max() < 1e-9 * scale:
            break
    leverage = np.einsum("np,pq,nq->n", unit, inverse, unit)
    variance = np.where(weight > 0, np.maximum(1 - weight * leverage, 1e-9), 1 + leverage)
    return Robust(residual, weight, residual / scale / np.sqrt(variance), int((weight > 0).sum()) - rank)


def _unjudged(rows: int) -> Robust:
    return Robust(np.zeros(rows), np.ones(rows), np.zeros(rows), 0)


def _start(unit: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the linear unknowns [p] with the least median |residual|, among fits through p random rows each."""
    rows, rank = unit.shape
    draw = np.random.default_rng(0)
    trials = np.stack([draw.permutation(rows)[:rank] for _ in range(min(_TRIALS, 1 + _ENTRIES // rows))])
    exact = np.einsum("tpq,tq->tp", np.linalg.pinv(unit[trials], rcond=1e-6), values[trials])
    solutions = np.vstack([unit.T @ values, exact])
    middle = (rows + rank + 1) // 2 - 1
    return solutions[np.argmin(np.partition(np.abs(values - solutions @ unit.T), middle, axis=1)[:, middle])]


def _directions(law, fit, columns: Sequence[np.ndarray], sizes: np.ndarray) -> np.ndarray:
    """Return the derivatives [n, p] of log10 L by the coefficients and, for a law without a floor, curvature in log N.

    A law of your own may have derivatives that are not known; then only its level can change.
    """
    if law.design is not None and not law.has_floor:
        design = law.design(fit, *columns)
    else:
        design = np.ones((sizes.size, 1)) if law.own_intervals is None else tangent(law, fit, columns)
    if law.has_floor:
        return design
    offset = np.log10(sizes) - np.log10(sizes).mean()
    powers = (2, 3) if sizes.size - design.shape[1] >= _SPARE else (2,)
    return np.column_stack([design, *(offset**power for power in powers)])


# What this file does not do: fits by a sum of Huber terms (`_huber.py`).
