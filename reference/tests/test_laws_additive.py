import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from routelaws.conformance.bounds import check
from routelaws.conformance.plain.laws import Student
from routelaws.reference import laws
from routelaws.reference.laws import additive, hoffmann, joint
from routelaws.reference.tests.strategies_additive import CASES, huber_sum

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name != "hoffmann")) for name in CASES]
DELTAS = st.sampled_from([None, 1e-3, 1e-2])


def noisy(case, law, seed: int, noise: float = 5e-3) -> tuple[list[np.ndarray], np.ndarray]:
    columns = case.columns()
    exact = case.of(laws)[1](*columns, law)
    return columns, exact * np.exp(np.random.default_rng(seed).normal(0, noise, exact.size))


def loss_of(case, coefficients, columns) -> np.ndarray:
    return case.of(laws)[1](*columns, case.kind(*coefficients))


@pytest.mark.value
@pytest.mark.parametrize("name", NAMES)
def test_exact_tables_give_their_law_back(name):
    case = CASES[name]
    columns = case.columns()

    @settings(max_examples=2)
    @given(law=case.laws)
    def judged(law):
        loss = loss_of(case, law, columns)
        fit = case.of(laws)[0](*columns, loss)
        assert fit.status == "interior" and fit.rows == loss.size
        check("laws.additive.exact_sum", fit.objective, scale=loss.size)
        error = np.log(loss_of(case, fit.coefficients, columns) / loss)
        check("laws.additive.exact_loss", float(np.abs(error).max()), message=name)
        for field, found, wanted in zip(case.kind._fields, fit.coefficients, law, strict=True):
            check("laws.additive.exact_coefficient", abs(found / wanted - 1), message=f"{name}: {field}")

    judged()


@pytest.mark.value
@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_the_least(name):
    """No small change of the coefficients lowers the sum, and the reported values match the coefficients."""
    case = CASES[name]

    @settings(max_examples=1)
    @given(law=case.laws, seed=st.integers(0, 2**32 - 1), delta=DELTAS)
    def judged(law, seed, delta):
        columns, loss = noisy(case, law, seed)
        fit, random = case.of(laws)[0](*columns, loss, delta), np.random.default_rng(seed)

        def residual(coefficients) -> np.ndarray:
            return np.log(loss_of(case, coefficients, columns) / loss)

        best, values = huber_sum(residual(fit.coefficients), delta), np.array(fit.coefficients)
        check("laws.additive.sum", abs(best / fit.objective - 1))
        rmsle = math.sqrt(np.mean(residual(fit.coefficients) ** 2)) / math.log(10)
        check("laws.additive.sum", abs(rmsle / fit.rmsle - 1))
        free = np.isfinite(values) & (values != 0)
        for nudge in (*np.eye(values.size), *random.normal(size=(20, values.size))):
            for size in (1e-2, -1e-2, 1e-4, -1e-4, 1e-6, -1e-6):
                moved = huber_sum(residual(np.where(free, values * (1 + size * nudge), values)), delta)
                check("laws.additive.least", max(1 - moved / best, 0.0), message=f"{nudge} {size}")

    judged()


LAW = hoffmann.HoffmannCoefficients(400.0, 0.34, 2000.0, 0.37, 1.8)


def test_every_row_twice_is_twice_the_sum_and_the_same_law():
    """The criterion is the sum of Huber terms, not their mean."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 5)
    fit = laws.hoffmann.fit_hoffmann
    once, twice = fit(*columns, loss), fit(*(np.tile(v, 2) for v in columns), np.tile(loss, 2))
    check("laws.additive.objective", abs(twice.objective / once.objective - 2))
    for found, wanted in zip(twice.coefficients, once.coefficients, strict=True):
        check("laws.additive.same_law", abs(found / wanted - 1))


def test_another_unit_is_the_same_law():
    """Parameters are in thousands and losses in bits, but starts and fit do not depend on units."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 6)
    fit = laws.hoffmann.fit_hoffmann
    plain, other = fit(*columns, loss), fit(columns[0] / 1e3, columns[1], loss / math.log(2))
    check("laws.additive.objective", abs(other.objective / plain.objective - 1))
    a, alpha, b, beta, c = plain.coefficients
    wanted = (a / 1e3**alpha / math.log(2), alpha, b / math.log(2), beta, c / math.log(2))
    for found, value in zip(other.coefficients, wanted, strict=True):
        check("laws.additive.same_law", abs(found / value - 1))


def test_a_law_without_a_floor_has_none():
    """c = 0 is an edge of the law: the status reports it, and c is exactly 0."""
    columns, loss = noisy(CASES["hoffmann"], LAW._replace(a=60.0, alpha=0.1, b=60.0, beta=0.1, c=0.0), 3, 1e-4)
    fit = laws.hoffmann.fit_hoffmann(*columns, loss / 1.02 - 0.05)  # lower than any law with a floor
    assert (fit.status, fit.coefficients.c) == ("c at the limit", 0.0)
    assert np.isnan(fit.covariance[4]).all() and np.isfinite(fit.covariance[:4, :4]).all()
    residual = np.log(laws.hoffmann.predict_hoffmann(*columns, fit.coefficients) / (loss / 1.02 - 0.05))
    check("laws.additive.sum", abs(huber_sum(residual, 1e-3) / fit.objective - 1))


@pytest.mark.slow
def test_experts_that_never_stop_counting():
    """E_max = ∞ is an edge, too."""
    law = joint.JointCoefficients(36, -0.19, -0.23, 0.01, 36, -0.18, 0.55, -0.026, 2.0, math.inf, 1.36)
    columns, loss = noisy(CASES["joint"], law, 1, 0.0)
    fit = laws.joint.fit_joint(*columns, loss)
    assert (fit.status, fit.coefficients.E_max) == ("E_max at the limit", math.inf)
    error = np.log(laws.joint.predict_joint(*columns, fit.coefficients) / loss)
    check("laws.additive.exact_loss", float(np.abs(error).max()))


def test_one_wrong_row_moves_least_squares_and_not_huber():
    columns, loss = noisy(CASES["hoffmann"], LAW, 7, 0.0)
    wrong = loss * np.where(np.arange(loss.size) == 5, 1.2, 1.0)
    square, huber = (laws.hoffmann.fit_hoffmann(*columns, wrong, delta) for delta in (None, 1e-4))
    assert abs(huber.coefficients.c / LAW.c - 1) < 0.01 < abs(square.coefficients.c / LAW.c - 1)
    # Every row but one has half its square; that row counts linearly beyond delta.
    assert huber.objective < 1e-4 * math.log(1.2) * 1.01 and square.rmsle < huber.rmsle


@pytest.mark.slow
def test_starts_of_one_s_own():
    columns, loss = noisy(CASES["hoffmann"], LAW, 8)
    mine = laws.hoffmann.fit_hoffmann(*columns, loss, starts=[LAW])
    usual = laws.hoffmann.fit_hoffmann(*columns, loss)
    assert (mine.starts, mine.reached) == (1, 1) and 1 <= usual.reached <= usual.starts
    check("laws.additive.objective", abs(mine.objective / usual.objective - 1))


def profile_limit(fit, predicted, loss, delta, level: float) -> float:
    """Return the limit of the sum, from the definition at the top of `_profile.py`."""
    residual = np.log(predicted / loss)
    rows, unknowns = residual.size, len(fit.coefficients)
    inside = np.ones(rows) if delta is None else np.abs(residual) <= delta
    share = inside.mean()
    pull = residual if delta is None else np.clip(residual, -delta, delta)
    variance = np.sum(pull**2) / (rows - unknowns) * ((1 + unknowns / rows * (1 - share) / share) / share) ** 2
    return fit.objective + stats.t.ppf((1 + level) / 2, rows - unknowns) ** 2 / 2 * variance * share


@pytest.mark.slow
def test_a_coefficient_that_the_rows_leave_open():
    """Noise hides the floor: its interval includes 0."""
    columns, loss = noisy(CASES["hoffmann"], LAW._replace(alpha=0.1, a=8.0, beta=0.1, b=10.0, c=0.5), 2, 2e-2)
    floor = laws.hoffmann.hoffmann_intervals(*columns, loss, None)[4]
    assert (floor.name, floor.low) == ("c", 0.0) and floor.high > floor.value


class Tokens(NamedTuple):
    b: float
    beta: float
    c: float


@pytest.mark.slow
def test_a_law_of_one_s_own():
    tokens = np.array([1e9, 3e9, 1e10, 3e10, 1e11])
    law = additive.AdditiveLaw("tokens alone", Tokens, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
    loss = additive.predict_additive(law, Tokens(400.0, 0.3, 1.7), [tokens])
    for found, wanted in zip(additive.fit_additive(law, [tokens], loss).coefficients, (400, 0.3, 1.7), strict=True):
        check("laws.additive.exact_coefficient", abs(found / wanted - 1))


class Power(NamedTuple):
    b: float
    beta: float


def test_the_intervals_of_a_single_power():
    """ln L = ln b - β ln D is a line, so least squares gives Student's intervals.

    At both ends of Huber's interval of β the least sum over b is the limit.
    """
    tokens, delta = np.geomspace(1e9, 1e12, 8), 5e-3
    lines = np.stack([np.ones(9), -np.log([*tokens, 1e13])], axis=1)
    law = additive.AdditiveLaw("one power", Power, ("tokens",), (("b", {"beta": "tokens"}),))
    loss = additive.predict_additive(law, Power(30.0, 0.1), [tokens])
    loss = loss * np.exp(np.random.default_rng(3).normal(0, 1e-2, 8))
    student = Student(lines[:8], np.log(loss), 0.9)
    for at, weights in ((None, np.eye(2)), ([[1e13]], lines[8:])):
        intervals = additive.additive_intervals(law, [tokens], loss, None, 0.9, at)
        for found, line in zip(intervals, weights, strict=True):
            ends, wanted = np.array(found[1:4]), np.array(student.interval(line))
            error = np.abs((ends if found.name == "beta" else np.log(ends)) - wanted).max()
            check("laws.additive.end", float(error), scale=wanted[2] - wanted[1], message=found.name)
    fit = additive.fit_additive(law, [tokens], loss, delta)
    limit = profile_limit(fit, additive.predict_additive(law, fit.coefficients, [tokens]), loss, delta, 0.9)
    _, beta = additive.additive_intervals(law, [tokens], loss, delta, 0.9)
    for end in (beta.low, beta.high):
        levels = np.log(loss) + end * np.log(tokens)
        tight = {"bounds": (levels.min(), levels.max()), "options": {"xatol": 1e-12}}
        least = optimize.minimize_scalar(lambda x, at=levels: huber_sum(x - at, delta), **tight).fun
        check("laws.additive.profile", abs(least / limit - 1), message=f"{beta} {end}")
    floored = additive.AdditiveLaw("power and floor", Tokens, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
    *_, floor = additive.additive_intervals(floored, [tokens], np.exp(1 - lines[:8, 1] ** 2 / 1e3), None, 0.9)
    assert (floor.value, floor.low) == (0.0, 0.0), "ln L falls ever faster"
