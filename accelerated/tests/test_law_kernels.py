"""The loops behind the fit of the bounded law, where a fault costs steps or a few resamples and not yet the optimum.

The quick fits of many weightings beside the careful ones; the scan and the derivatives of the search beside plain sums.
"""

import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_huber
from routelaws.accelerated.laws import fitting
from routelaws.conformance.bounds import check
from routelaws.conformance.harness import central_difference
from routelaws.conformance.strategies_laws import EXPERTS, SIZES
from routelaws.reference.laws import routed

LAWS = {
    "inside": (2.0, 300.0),
    "nearly unbounded": (1.5, 3e4),
    "nearly at 1": (1.05, 200.0),
    "at the corner": (1.0, np.inf),
}
"""E_start and E_max: with noise, resamples of each end in several pieces of the domain."""


def resampled(name: str, count: int = 60):
    """Return a noisy table of the law and `count` bootstrap weightings of it."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    random = np.random.default_rng(len(name))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, *LAWS[name])
    loss = routed.predict_loss(size, experts, law) * 10 ** random.normal(0, 3e-3, size.size)
    return (size, experts, loss), random.multinomial(size.size, np.full(size.size, 1 / size.size), count).astype(float)


@pytest.mark.parametrize("name", LAWS)
def test_quick_fits_are_the_careful_ones(name):
    table, weights = resampled(name)
    quick = fitting.fit_weighted(*table, weights)
    careful = fitting.fit_weighted(*table, weights, scan=24, starts=8, careful=True)
    assert len(set(quick.status)) > 1, np.bincount(quick.status)  # where pieces tie, either is right
    for b, (found, wanted) in enumerate(zip(quick.objective, careful.objective, strict=True)):
        check("laws.fitting.quick", abs(found / wanted - 1), message=f"{name}, weighting {b}")


def test_a_weight_counts_a_row_so_often():
    """A weighting is the table with each row repeated."""
    table, weights = resampled("inside", 8)
    found = fitting.fit_weighted(*table, weights)
    for b, weight in enumerate(weights.astype(int)):
        plain = fitting.fit_routed(*(np.repeat(column, weight) for column in table))
        assert fitting.STATUSES[found.status[b]] == plain.status
        check("laws.fitting.quick", abs(found.objective[b] / plain.objective - 1), message=f"weighting {b}")


def reduced(name: str = "inside"):
    """Return a table's two rows per E, and E - 1."""
    table = fitting.level_table(*resampled(name)[0])
    problem, _ = law_fit.reduce_rows(table.log_size, table.log_loss, table.level, np.ones(table.log_loss.size),
                                     table.extra.size)  # fmt: skip
    return problem, table.extra


def residual_sum(problem, psi: np.ndarray) -> float:
    """Return what is left of log10 L on 1, log10 N, psi and psi log10 N: rows of the reduced table, psi [levels]."""
    one, size, psi = problem[law_fit.ONE], problem[law_fit.SIZE], np.repeat(psi, 2)
    design = np.stack([one, size, psi * one, psi * size], axis=1)
    answer = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0]
    return float(np.sum((problem[law_fit.LOSS] - design @ answer) ** 2))


def shape_of(extra, alpha: float, ratio: float) -> np.ndarray:
    """Return psi at every E, 1 at the last."""
    rise, bend = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
    psi = np.log1p(rise * extra / (1 + bend * extra))
    return psi / psi[-1]


def test_the_scan_is_least_squares_at_each_point():
    """alpha and E_start/E_max at equal steps of about equal ratios; the sums by the normal equations."""
    problem, extra = reduced()
    scan, top = 6, float(extra[-1])
    values = np.empty(scan * scan)
    law_fit.scan_values(problem, law_fit.scan_table(extra, scan), values)
    for i in range(scan):
        for j in range(scan):
            alpha = math.expm1((i + 1) / scan * math.log1p(top)) / top
            low, high = ((1 + top) ** share - 1 for share in (j / scan, 1 - j / scan))
            wanted = residual_sum(problem, shape_of(extra, alpha, low / (low + high)))
            check("laws.fitting.scan", abs(values[i * scan + j] / wanted - 1), message=f"point {i}, {j}")


@pytest.mark.parametrize("alpha, ratio", [(0.5, 0.01), (0.05, 0.2), (0.9, 1e-4)])
def test_derivatives_of_the_search(alpha, ratio):
    """Of the residual sum, by log alpha and logit ratio: the loops' turn of the prediction, and central differences."""
    problem, extra = reduced("nearly at 1")
    at, work = np.array([math.log(alpha), math.log(ratio / (1 - ratio))]), np.empty((6, 2 * extra.size))

    def value(point):
        return residual_sum(problem, shape_of(extra, math.exp(point[0]), 1 / (1 + math.exp(-point[1]))))

    whole = law_fit._value(problem, extra, *at, work)
    check("laws.fitting.scan", abs(whole / value(at) - 1), message="the residual sum")
    law_fit._gradient(problem, extra, alpha, at[1], work)
    for turn, direction in ((law_fit.TURN_0, np.array([1, 0])), (law_fit.TURN_1, np.array([0, 1]))):
        found = -2 * float(work[turn] @ work[law_fit.RESIDUAL])
        size = 2 * float(np.linalg.norm(work[turn]) * np.linalg.norm(work[law_fit.RESIDUAL]))
        wanted = central_difference(value, at, direction)
        check("laws.fitting.derivative", abs(found - wanted), size, message=f"by {direction}")


@pytest.mark.parametrize("delta", [1.0, 3e-3])
def test_derivatives_of_the_search_under_huber(delta):
    """The slope is that of the criterion; the matrix is a weighted projection, here by least squares."""
    table, alpha, at = fitting.level_table(*resampled("nearly at 1")[0]), 0.6, np.array([math.log(0.6), -3.0])
    problem, rows = (table.log_size, table.log_loss, table.level, table.extra), table.log_loss.size
    linear = np.array([1.0, -0.1, -0.1, 0.0])
    work = (np.empty((4, rows)), np.zeros((4, 4)), np.empty((4, 4)), np.empty(rows), np.empty(rows))

    def value(point):
        ratio = 1 / (1 + math.exp(-point[1]))
        return law_huber.solve(problem, delta, math.exp(point[0]), ratio, 1 - ratio, linear, work)

    def curve(point):
        rest, ratio = 1 / (1 + math.exp(point[1])), 1 / (1 + math.exp(-point[1]))
        rise, bend = math.exp(point[0]) * rest**2, math.exp(point[0]) * rest * ratio
        return np.log1p(rise * table.extra / (1 + bend * table.extra))

    directions = (np.array([1, 0]), np.array([0, 1]))
    wanted = [central_difference(value, at, direction) for direction in directions]
    value(at)
    slope, inner, scales = law_huber._slopes(problem, delta, alpha, at[1], linear, work)
    size, residual = np.abs(work[3]), work[3]
    assert np.any(size > delta) == (delta < 0.1) and np.any(size <= delta)
    routed = (linear[2] + linear[3] * table.log_size) / curve(at)[-1]
    turns = np.stack([routed * central_difference(curve, at, direction)[table.level] for direction in directions])
    psi = curve(at)[table.level]
    design = np.stack([np.ones(rows), table.log_size, psi, psi * table.log_size], axis=1)
    weight = np.where(size <= delta, 1, law_huber.OUTER_SHARE * delta / size)
    for weights, found in ((weight, inner), (np.ones(rows), np.diag(scales))):
        root = np.sqrt(weights)[:, None]
        left = turns.T * root - design * root @ np.linalg.lstsq(design * root, turns.T * root, rcond=None)[0]
        whole = left.T @ left if found is inner else np.diag(np.diag(left.T @ left))
        check("laws.fitting.turns", float(np.abs(found - whole).max()), float(np.abs(whole).max()))
    for f in range(2):
        scale = float(np.abs(turns[f]) @ np.minimum(size, delta))
        if delta > 0.1:  # else a row may cross delta within the step of the difference
            check("laws.fitting.turns", abs(-slope[f] - wanted[f]), scale, message=f"slope {f}")
        clipped = np.clip(residual, -delta, delta)
        check("laws.fitting.turns", abs(slope[f] - float(turns[f] @ clipped)), scale, message=f"slope {f}, by hand")


def test_the_gain_at_a_size_and_its_variance():
    """The coefficient of psi where log10 N is counted from that size, and its entry of the inverse normal matrix."""
    problem, extra = reduced()
    psi, at, work = shape_of(extra, 0.4, 0.02), 0.7, np.empty((6, 2 * extra.size))
    work[law_fit.PSI] = np.repeat(psi, 2)
    residual, gain, variance = law_fit.evaluate(problem, at, work)
    one, size, both = problem[law_fit.ONE], problem[law_fit.SIZE] - at * problem[law_fit.ONE], np.repeat(psi, 2)
    design = np.stack([one, size, both * one, both * size], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    wanted = inverse @ design.T @ problem[law_fit.LOSS]
    check("laws.fitting.turns", abs(residual / residual_sum(problem, psi) - 1), message="residual sum")
    check("laws.fitting.turns", abs(gain / wanted[2] - 1), message="gain")
    check("laws.fitting.turns", abs(variance / inverse[2, 2] - 1), message="variance")
