"""Rows that are far from a law: the robust fit by its definition, published stars, and planted runs."""

import math

import numpy as np
import pytest

from routelaws.reference.laws.catalogue import LAWS
from routelaws.reference.laws.confidence.far_rows import bisquare, far_rows

TEMPERATURE = """
    4.37 4.56 4.26 4.56 4.30 4.46 3.84 4.57 4.26 4.37 3.49 4.43 4.48 4.01 4.29 4.42 4.23 4.42 4.23 3.49 4.29 4.29 4.42
    4.49 4.38 4.42 4.29 4.38 4.22 3.48 4.38 4.56 4.45 3.49 4.23 4.62 4.53 4.45 4.53 4.43 4.38 4.45 4.50 4.45 4.55 4.45
    4.42"""
LIGHT = """
    5.23 5.74 4.93 5.74 5.19 5.46 4.65 5.27 5.57 5.12 5.73 5.45 5.42 4.05 4.26 4.58 3.94 4.18 4.18 5.89 4.38 4.22 4.42
    4.85 5.02 4.66 4.66 4.90 4.39 6.05 4.42 5.10 5.22 6.29 4.34 5.62 5.10 5.22 5.18 5.57 4.62 5.06 5.34 5.34 5.54 4.98
    4.50"""
"""Logarithms of the 47 stars of the cluster CYG OB1 (Rousseeuw and Leroy 1987, Robust Regression and Outlier Detection,
table 3 of chapter 2)."""

GIANTS = [10, 19, 29, 33]
"""The stars 11, 20, 30 and 34 are giants, far to the left of the others."""

SIZE, EXPERTS = (v.ravel() for v in np.meshgrid(np.logspace(7, 9, 4), [1.0, 4.0, 16.0, 64.0], indexing="ij"))


def line(seed: int, noise: float = 2e-3) -> np.ndarray:
    n, e = np.log10(SIZE), np.log10(EXPERTS)
    return 10 ** (1.07 - 0.08 * n - 0.09 * e + 0.007 * n * e + np.random.default_rng(seed).normal(0, noise, n.size))


def test_four_giants_that_turn_the_line_of_least_squares_have_no_weight():
    temperature, light = (np.array(text.split(), dtype=float) for text in (TEMPERATURE, LIGHT))
    design = np.stack([np.ones(47), temperature], axis=1)
    assert np.linalg.lstsq(design, light)[0] == pytest.approx([6.793, -0.413], abs=1e-3)  # of the book
    robust = bisquare(design, light)
    assert np.flatnonzero(robust.weight == 0).tolist() == GIANTS and robust.freedom == 41
    assert np.linalg.lstsq(design, light - robust.residual)[0][1] == pytest.approx(2.3, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_robust_fit_solves_its_equations(seed):
    """Scale and leverage by loops. The derivatives of the sum of Tukey's terms are 0."""
    draw = np.random.default_rng(seed)
    design, values = draw.normal(size=(14, 3)), draw.normal(size=14)
    values[:3] += 30
    robust = bisquare(design, values)
    hat = design @ np.linalg.inv(design.T @ design) @ design.T
    scale = np.median(sorted(abs(robust.residual))[2:]) / 0.6745
    weights = [max(0.0, 1 - (r / scale / math.sqrt(1 - h) / 4.685) ** 2) ** 2
               for r, h in zip(robust.residual, np.diag(hat), strict=True)]  # fmt: skip
    assert robust.weight == pytest.approx(weights, abs=1e-6) and max(robust.weight[:3]) == 0
    assert design.T @ (robust.weight * robust.residual) == pytest.approx(np.zeros(3), abs=1e-6)
    inverse = np.linalg.inv(design.T @ (design * robust.weight[:, None]))
    for i, x in enumerate(design):
        h = x @ inverse @ x
        variance = 1 + h if weights[i] == 0 else 1 - weights[i] * h
        assert robust.distance[i] == pytest.approx(robust.residual[i] / scale / math.sqrt(variance), rel=1e-5)


def test_wrong_runs_that_hide_each_other_are_named_and_no_other():
    """By least squares, the four wrong runs are within four standard deviations, and right runs look as bad."""
    law, loss, wrong = LAWS["bilinear"], line(0), [3, 7, 10, 12]
    loss[wrong] *= 1.25, 1.2, 0.85, 1.15
    fit = law.fit(SIZE, EXPERTS, loss)
    miss = np.abs(np.log10(loss / law.predict(fit, SIZE, EXPERTS)))
    assert miss.max() < 4 * 1.4826 * np.median(miss) and set(np.argsort(miss)[-4:]) != set(wrong)
    found = far_rows(law, fit, (SIZE, EXPERTS), loss, SIZE)
    assert np.flatnonzero(found.far).tolist() == wrong
    assert loss[wrong] / found.predicted[wrong] == pytest.approx([1.25, 1.2, 0.85, 1.15], abs=0.02)


def test_few_tables_without_a_wrong_run_have_a_far_one():
    law, named, draw = LAWS["bilinear"], 0, np.random.default_rng(2)
    for table in range(100):
        loss = line(0, 0.0) * 10 ** (0.004 * (draw.standard_t(3, 16) if table % 2 else draw.standard_normal(16)))
        named += far_rows(law, law.fit(SIZE, EXPERTS, loss), (SIZE, EXPERTS), loss, SIZE).far.any()
    assert named <= 5


@pytest.mark.parametrize("name", ["separable", "bilinear"])
def test_a_missing_floor_makes_no_run_a_far_one(name):
    law, draw = LAWS[name], np.random.default_rng(3)
    for floor in (1.3, 1.7, 2.1):
        loss = (floor + 3 * (SIZE / 1e7) ** -0.35 * EXPERTS**-0.12) * 10 ** draw.normal(0, 3e-4, 16)
        assert not far_rows(law, law.fit(SIZE, EXPERTS, loss), (SIZE, EXPERTS), loss, SIZE).far.any()


def test_runs_of_a_size_that_miss_the_law_together_are_not_named_but_one_run_of_them_is():
    law, sizes = LAWS["bilinear"], np.logspace(7, 9, 8)
    size, experts = (v.ravel() for v in np.meshgrid(sizes, [1.0, 4.0, 16.0], indexing="ij"))
    exact = 10 ** (1.07 - 0.08 * np.log10(size) - 0.03 * np.log10(experts))
    loss = exact * 10 ** np.random.default_rng(4).normal(0, 1e-3, 24)
    slope, two = 1 + 0.002 * np.log2(experts), (size == sizes[3]) & (experts > 1)
    for wrong, factor, named in (
        (size == sizes[3], 1.3, []), (size == sizes[3], 1.035 * slope, []), (np.arange(24) == 9, 1.3, [9]),
        (two, np.where(experts == 4, 1.1, 0.9), [10, 11]), (size == sizes[3], np.where(experts == 4, 1.5, 1.1), [10]),
    ):  # fmt: skip
        table = np.where(wrong, factor * loss, loss)
        found = far_rows(law, law.fit(size, experts, table), (size, experts), table, size)
        assert np.flatnonzero(found.far).tolist() == named
        assert np.abs(found.distance[wrong]).max() > 10


def test_too_few_rows_judge_no_row():
    law, size = LAWS["dense"], np.array([1e7, 1e8, 1e9])
    loss = np.array([4.0, 3.0, 9.0])
    found = far_rows(law, law.fit(size, loss), (size,), loss, size)
    assert not found.far.any() and found.predicted == pytest.approx(law.predict(law.fit(size, loss), size))
