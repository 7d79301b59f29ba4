"""The optimum of a budget, its interval, and the choices that are about as good."""

import math

import numpy as np
import pytest
from scipy.optimize import least_squares

from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.planning.optima import other_tables
from routelaws.accelerated.results.planning.rankings import published_rankings
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tests.small_tables import frame_of, write
from routelaws.accelerated.tests.test_intervals import EXPERTS, SIZE

FLOPS = 1e22


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Dense runs of Hoffmann's law at many sizes. The scatter is five times larger where tokens are few."""
    random = np.random.default_rng(3)
    N, ratio = 10 ** random.uniform(7.5, 9.5, 48), 10 ** random.uniform(0.3, 2.3, 48)
    noise = 0.01 * random.standard_normal(48) * np.interp(np.log10(ratio), [0.3, 2.3], [1.5, 0.3])
    loss = (400 / N**0.35 + 2000 / (N * ratio) ** 0.36 + 1.8) * np.exp(noise)
    frame = frame_of(N, np.ones(48), loss).assign(router_type="Dense", tokens=N * ratio)
    frame.to_csv(path := tmp_path_factory.mktemp("points") / "points.csv", index=False)
    return path, N, N * ratio, loss


def test_the_interval_of_the_best_size_is_that_of_a_paired_bootstrap(points):
    """By SciPy from the optimum, with other draws. The ends of 120 resamples scatter by some per cent."""
    path, N, D, loss = points
    [ranking] = read(path).plan(Budget(FLOPS), law="hoffmann", resamples=120, published=False).rankings
    [fit] = ranking.fits
    assert fit.errors.method == "hc3"

    def residual(theta, rows):
        terms = theta[0] - theta[1] * np.log(N[rows]), theta[2] - theta[3] * np.log(D[rows]), theta[4]
        return np.logaddexp(np.logaddexp(*terms[:2]), terms[2]) - np.log(loss[rows])

    def best(theta) -> float:
        a, alpha, b, beta, _ = theta
        return math.exp((a - b + math.log(alpha / beta) + beta * math.log(FLOPS / 6)) / (alpha + beta))

    a, alpha, b, beta, c = fit.best.coefficients
    start = np.array([math.log(a), alpha, math.log(b), beta, math.log(c)])
    random = np.random.default_rng(0)
    found = [best(least_squares(residual, start, args=(random.integers(0, 48, 48),)).x) for _ in range(120)]
    low, high = np.quantile(found, [0.025, 0.975])
    optimum = ranking.optimum
    assert optimum.N.value == pytest.approx(best(start), rel=0.02) and optimum.resamples > 110
    assert optimum.N.low == pytest.approx(low, rel=0.25) and optimum.N.high == pytest.approx(high, rel=0.25)
    assert optimum.N.low * optimum.tokens.high == pytest.approx(FLOPS / 6, rel=1e-3)


def test_sizes_within_some_nats_are_those_of_the_law(points):
    path = points[0]
    [ranking] = read(path).plan(Budget(FLOPS), law="hoffmann", resamples=0, published=False, within=0.004).rankings
    optimum, [fit], best = ranking.optimum, ranking.fits, ranking.lines[0].choice.loss
    assert math.isnan(optimum.N.low) and optimum.resamples == 0
    for size, outward in zip(optimum.sizes, (0.97, 1.03), strict=True):
        inside, outside = (fit.predict(size * x, tokens=FLOPS / 6 / size / x).value - best for x in (1, outward))
        assert inside <= 0.004 < outside
    [words] = [line for line in ranking.optimum.sentences(0.95) if "nats" in line]
    assert words.startswith("within 0.004 nats of the lowest loss: any N from ")


def refits(fit, number: int) -> list:
    """Return the fits of a law to other tables."""
    tables = zip(*other_tables(fit, number, np.random.default_rng(2)), strict=True)
    columns = fit.rows.columns
    return [
        fit.refitted.fit(*(np.repeat(column, drawn.astype(int)) for column in (*columns, loss)))
        for loss, drawn in tables
    ]


def test_a_fit_by_hubers_sum_is_resampled_by_the_same_criterion(points):
    [ranking] = read(points[0]).plan(Budget(FLOPS), law="hoffmann", resamples=3, published=False, huber=1e-3).rankings
    assert ranking.lines[0].law_interval is None and ranking.optimum.resamples == 3
    assert ranking.optimum.N.low < ranking.optimum.N.high
    [fit] = ranking.fits
    assert all("Huber" in each.criterion for each in refits(fit, 2))


def test_refits_scatter_as_the_interval_by_size(tmp_path):
    """The standard deviation of a slope over the refits is about a quarter of its interval's width."""
    random = np.random.default_rng(1)
    noise = 0.004 * np.repeat(random.standard_normal(5), 5) + 0.0005 * random.standard_normal(25)
    loss = 10 ** (1.07 - 0.08 * np.log10(SIZE) - 0.03 * np.log10(EXPERTS) + noise)
    [fit] = read(write(frame_of(SIZE, EXPERTS, loss), tmp_path)).fit("separable")
    assert fit.errors.method == "size"
    found = np.array([each.coefficients.a for each in refits(fit, 400)])
    item = fit.interval("a")
    assert np.quantile(found, 0.025) == pytest.approx(item.low, abs=0.3 * (item.value - item.low))
    assert np.quantile(found, 0.975) == pytest.approx(item.high, abs=0.3 * (item.high - item.value))


def test_options_that_are_about_as_good_are_listed(tmp_path):
    """The loss does not depend on the number of experts, so the best number differs between resamples."""
    frame = frame_of(SIZE, EXPERTS, 10 ** (1.0 - 0.08 * np.log10(SIZE)))
    frame["loss_validation"] *= np.exp(1e-3 * np.random.default_rng(0).standard_normal(len(frame)))
    plan = read(write(frame.assign(tokens=1e9), tmp_path)).plan(
        Budget(1e20), law="separable", resamples=40, published=False, within=0.01
    )
    optimum = plan.rankings[0].optimum
    assert 2 <= len(optimum.options) <= 5 and optimum.num_experts.low < optimum.num_experts.high
    assert optimum.experts == (2, 256) and "other options at their best N: " in " ".join(repr(plan).split())
    assert plan.to_dict()["rankings"][0]["optimum"]["within"] == 0.01


def test_the_printed_joint_law_is_flat_in_experts():
    """At 1e22 FLOPs in 80 GB, E from 10 to 24 is within 0.002 nats, and E = 8 and 32 are not."""
    [ranking] = [each for each in published_rankings(Budget(1e22, 80e9)) if each.law == "joint"]
    assert ranking.optimum.num_experts.value == 16 and ranking.optimum.experts == (10, 24)
    assert len(ranking.optimum.options) == 1 and math.isnan(ranking.optimum.N.low)
