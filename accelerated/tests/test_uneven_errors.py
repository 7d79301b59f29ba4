"""Standard errors where designs are uneven: other numbers of runs per point, other distances, other groups.

In an even design many mistakes cancel. Each formula is compared with SciPy or a plain fit by least squares, and the
share of simulated tables whose interval holds the truth with its level. `conformance/suite` does this for the laws.
"""

import math

import numpy as np
import pandas
import pytest
import scipy.stats

from routelaws.accelerated.findings.laws.slopes import line
from routelaws.accelerated.findings.routers.pairs import compare
from routelaws.accelerated.findings.runs import means, seed_scatter
from routelaws.accelerated.results.misfit import bend_in_size, beyond_seeds, by_size
from routelaws.accelerated.training.window_losses import WindowLosses, loss_difference, mean_loss, standard_error
from routelaws.reference.laws import parabola

from .small_tables import run

TABLES = 2000
ROOM = 4 * math.sqrt(0.95 * 0.05 / TABLES)
"""Four binomial standard deviations of the share of TABLES tables."""

X = np.array([0.0, 0.1, 0.1, 0.4, 1.5, 1.5, 1.5, 4.0])
"""Uneven distances, with repeated values."""


def held(intervals, truth: float) -> float:
    return np.mean([low <= truth <= high for low, high in intervals])


def ends(interval: dict) -> tuple[float, float]:
    return interval["low"], interval["high"]


def test_a_slope_at_uneven_distances_has_the_interval_of_scipy():
    draw = np.random.default_rng(0)
    tables = 2 - 0.3 * X + draw.normal(0, 0.1, (TABLES, X.size))
    wanted = scipy.stats.linregress(X, tables[0])
    reach = scipy.stats.t.ppf(0.975, X.size - 2) * wanted.stderr
    found = line(X, tables[0])
    assert (found["slope"], *ends(found)) == pytest.approx(
        (wanted.slope, wanted.slope - reach, wanted.slope + reach), rel=1e-9
    )
    assert held([ends(line(X, y)) for y in tables], -0.3) == pytest.approx(0.95, abs=ROOM)
    equal, two = line(np.ones(3), X[:3]), line(X[:2], X[:2])
    assert np.isnan([equal["slope"], equal["low"], two["low"]]).all() and two["slope"] == pytest.approx(1)


def test_a_mean_of_uneven_groups_has_the_interval_of_their_means():
    """Values of a group share an error, and groups have one to six values."""
    groups, draw = np.repeat(list("abcde"), [1, 6, 2, 4, 3]), np.random.default_rng(1)
    where = np.unique(groups, return_inverse=True)[1]
    tables = 1 + draw.normal(0, 0.2, (TABLES, 5))[:, where] + draw.normal(0, 0.01, (TABLES, groups.size))
    of_groups = [tables[0][groups == group].mean() for group in "abcde"]
    wanted = scipy.stats.ttest_1samp(of_groups, 0).confidence_interval(0.95)
    rows = pandas.DataFrame({"change": tables.ravel(), "group": np.tile(groups, TABLES), "cells": 1})
    rows["table"] = np.repeat(np.arange(TABLES), groups.size)
    found = means(means(rows, ["table", "group"]), ["table"])
    intervals = np.transpose([found["change"] - found["reach"], found["change"] + found["reach"]])
    assert found["change"][0] == pytest.approx(np.mean(of_groups)) and tuple(intervals[0]) == pytest.approx(
        tuple(wanted)
    )
    assert (found["cells"] == groups.size).all() and held(intervals, 1) == pytest.approx(0.95, abs=ROOM)
    assert np.isnan(means(rows[:1], ["table"])["reach"][0]) and means(rows[:0], ["table"]).empty


def seeded(draw, counts: dict) -> list:
    """Return runs with a scatter of 0.01 in log10 L: {(router, N, E): number of seeds}."""
    return [
        run(*place, 10 ** (0.4 + 0.01 * draw.standard_normal()), seed=seed)
        for place, count in counts.items()
        for seed in range(count)
    ]


COUNTS = {("A", 100, 4): 2, ("B", 100, 4): 9, ("A", 1000, 4): 4, ("B", 1000, 4): 1, ("A", 1000, 8): 3}


def test_the_scatter_of_seeds_is_pooled_by_degrees_of_freedom():
    runs = seeded(np.random.default_rng(2), COUNTS)
    found = seed_scatter(runs)
    logs = {place: [math.log10(each.loss) for each in runs if (each.router, each.size, each.experts) == place]
            for place in COUNTS}  # fmt: skip
    for size, wanted in ((100, 1 + 8), (1000, 3 + 2)):
        squares = sum(np.var(values) * len(values) for (_, n, _), values in logs.items() if n == size)
        [entry] = [each for each in found.sizes if each.N == size]
        assert (entry.deviation, entry.degrees) == (pytest.approx(math.sqrt(squares / wanted)), wanted)
    squares = sum(np.var(values) * len(values) for values in logs.values())
    assert (found.deviation, found.degrees) == (pytest.approx(math.sqrt(squares / 14)), 14)
    assert found.runs == 18 and len(found.points) == 4


@pytest.mark.slow
def test_the_reach_of_uneven_seeds_holds_no_difference_in_95_of_100_pairs():
    """A pair of two and nine runs: the variance of the difference is s² (1/2 + 1/9)."""
    draw, inside = np.random.default_rng(3), []
    for _ in range(TABLES // 4):
        runs = seeded(draw, COUNTS)
        scatter = seed_scatter(runs)._replace(equal_p=1.0)
        cells = compare(runs, 0.1, scatter).dropna(subset=["N", "E"])
        inside.append(cells["verdict"] == "open")
    assert np.mean(inside, axis=0) == pytest.approx([0.95, 0.95], abs=2 * ROOM)
    wanted = scipy.stats.t.ppf(0.975, 14) * scatter.deviation
    reaches = np.log10((1 + cells["high"] / 100) / (1 + cells["percent"] / 100))
    assert reaches.tolist() == pytest.approx(wanted * np.sqrt([1 / 2 + 1 / 9, 1 / 4 + 1]))


SIZE = np.repeat([1e7, 1.5e7, 2e8, 3e9, 4e9], [1, 5, 2, 3, 1])


def left_after(design, values) -> float:
    return float(np.sum((values - design @ np.linalg.lstsq(design, values, rcond=None)[0]) ** 2))


def test_a_bend_at_uneven_sizes_is_tested_as_a_nested_fit():
    n, draw = np.log10(SIZE), np.random.default_rng(4)
    plain, bent = (np.stack([n**power for power in range(top)], axis=1) for top in (2, 3))
    values = 0.02 * n**2 + draw.normal(0, 0.02, n.size)
    found = bend_in_size(SIZE, values - plain @ np.linalg.lstsq(plain, values, rcond=None)[0], plain, 2)
    least = left_after(bent, values)
    statistic = (left_after(plain, values) - least) / (least / 9)
    assert found.test.freedom == (1, 9) and found.test.statistic == pytest.approx(statistic, rel=1e-6)
    assert found.value == pytest.approx(np.linalg.lstsq(bent, values, rcond=None)[0][2], rel=1e-6)
    assert found.test.p == pytest.approx(scipy.stats.f.sf(statistic, 1, 9), rel=1e-6)


def test_lack_of_fit_with_uneven_repeats():
    """Between points: the means times their numbers of runs. The p-values of correct laws are uniform."""
    n, draw, p = np.log10(SIZE), np.random.default_rng(5), []
    design = np.stack([np.ones_like(n), n], axis=1)
    means = (SIZE[:, None] == np.unique(SIZE)).astype(float)
    for _ in range(300):
        values = draw.normal(0, 0.02, n.size)
        miss = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
        found = beyond_seeds(SIZE, [SIZE], miss, 2)
        p.append(found.p if found.size is None else 0.5)
    assert beyond_seeds(np.arange(8.0), [np.arange(8.0)], np.ones(8), 2) is None
    within = left_after(means, values)
    assert found.freedom == (3, 7)
    assert found.statistic == pytest.approx((left_after(design, values) - within) / 3 / (within / 7), rel=1e-6)
    assert [each.miss for each in by_size(SIZE, miss)] == pytest.approx(np.linalg.lstsq(means, miss, rcond=None)[0])
    assert np.mean(np.array(p) < 0.25) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 300))


def test_the_error_of_a_minimum_at_uneven_sizes():
    """The minimum lies far from the mean size, so the errors of both coefficients count."""
    x, draw = np.array([-1.0, -0.9, -0.8, 0.5, 0.6, 3.0, 3.1]), np.random.default_rng(6)
    tables = [parabola(np.exp(x), 3 + 0.2 * x**2 + draw.normal(0, 0.02, x.size)) for _ in range(TABLES)]
    spread = np.std([math.log(each.size) for each in tables])
    assert np.sqrt(np.mean([each.error**2 for each in tables])) == pytest.approx(spread, rel=0.07)


def test_a_difference_over_documents_of_uneven_length():
    """Documents have 1 to 40 windows. Both models share their difficulty, and the second one has less noise."""
    draw, windows = np.random.default_rng(7), np.array([1, 40, 2, 3, 17, 8, 5, 1, 30, 2, 6, 11] * 4)
    document = np.repeat(np.arange(windows.size), windows)
    tokens, inside = np.where(np.arange(document.size) % 3 == 0, 16, 64), []
    for _ in range(TABLES // 4):
        hard = np.repeat(draw.normal(3, 0.5, windows.size), windows)
        better = hard + np.repeat(draw.normal(0.1, 0.05, windows.size), windows)
        losses = [WindowLosses(np.arange(document.size), document, tokens, tokens * each) for each in (better, hard)]
        apart = loss_difference(losses[:1], losses[1:])
        inside.append(abs(mean_loss(apart) - 0.1) <= 1.96 * standard_error(apart))
    assert np.mean(inside) == pytest.approx(0.935, abs=2 * ROOM), "the number of documents is finite"
