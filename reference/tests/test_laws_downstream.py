import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import Student
from routelaws.reference import laws
from routelaws.reference.laws import downstream as reference
from routelaws.reference.laws import downstream_sums as reference_sums

FLOPS = np.geomspace(1e18, 1e21, 12)
SIZES, TOKENS = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 1e10, 5e10, 2e11]))
GUESSES = st.sampled_from([0.0, 0.25, 0.5])
SEEDS = st.integers(0, 99)


@st.composite
def direct_laws(draw) -> reference.DirectCoefficients:
    """Draw laws with a surprise of 0.3 to 0.9 in the middle of the budgets."""
    alpha = draw(st.floats(0.08, 0.3))
    return reference.DirectCoefficients(draw(st.floats(0.3, 0.9)) * 10 ** (19.5 * alpha), alpha)


@st.composite
def ratio_laws(draw) -> reference.RatioCoefficients:
    """Draw laws with two terms of comparable size in the middle of the sizes and tokens."""
    alpha, beta = draw(st.floats(0.15, 0.5)), draw(st.floats(0.15, 0.5))
    first, second = draw(st.floats(0.15, 0.5)), draw(st.floats(0.15, 0.5))
    return reference.RatioCoefficients(first * 5e8**alpha, alpha, second * 2e10**beta, beta)


def noisy(accuracy: np.ndarray, guess_rate: float, noise: float, seed: int) -> np.ndarray:
    """Return accuracies with noise in ln(-ln Q')."""
    surprise = -np.log(reference.normalise(accuracy, guess_rate))
    surprise = surprise * np.exp(noise * np.random.default_rng(seed).normal(size=accuracy.size))
    return np.exp(-surprise) * (1 - guess_rate) + guess_rate


def in_logs(coefficients) -> np.ndarray:
    return np.array([math.log(x) if n in "ABE" else x for n, x in coefficients._asdict().items()])


@given(law=direct_laws(), guess_rate=GUESSES, noise=st.sampled_from([0.0, 0.02]), seed=SEEDS)
@settings(max_examples=4)
def test_a_ceiling_that_is_not_there_is_not_seen(law, guess_rate, noise, seed):
    """Without noise E is 0 and the law is the direct one. With noise the sum is at most that of the direct law."""
    accuracy = noisy(reference.predict_accuracy(law, FLOPS, guess_rate=guess_rate), guess_rate, noise, seed)
    direct = reference.fit_direct(FLOPS, accuracy, guess_rate, 0.0)
    fit = reference_sums.fit_ceiling(FLOPS, accuracy, guess_rate, 0.0)
    if not noise:
        assert (fit.status, fit.coefficients.E) == ("no ceiling is seen", 0.0)
        check(
            "laws.downstream.exact_line",
            float(np.abs(in_logs(reference.DirectCoefficients(*fit.coefficients[:2])) - in_logs(law)).max()),
        )
    elif fit.status == "no ceiling is seen":
        check("laws.downstream.objective", abs(fit.objective / direct.objective - 1))
    else:
        assert fit.objective < direct.objective


def test_hubers_sum_is_not_pulled_by_one_row():
    """One of 16 rows is wrong by 0.2: it changes the least-squares fit but not Huber's."""
    law = reference.RatioCoefficients(200.0, 0.3, 1000.0, 0.35)
    accuracy = reference.predict_accuracy(law, SIZES, TOKENS)
    accuracy[5] -= 0.2
    misses = []
    for huber in (None, 1e-3):
        fit = reference_sums.fit_ratio(SIZES, TOKENS, accuracy, huber=huber)
        again = reference.predict_accuracy(fit.coefficients, 1e10, 1e12)
        misses.append(abs(float(again - reference.predict_accuracy(law, 1e10, 1e12))))
    assert np.isnan(fit.covariance).all()
    assert misses[1] < misses[0] / 20, misses


@given(samples=st.integers(1, 200), correct=st.integers(0, 200), attempts=st.integers(1, 200))
def test_pass_at_k_is_the_share_of_draws(samples, correct, attempts):
    correct, attempts = min(correct, samples), min(attempts, samples)
    none = Fraction(math.comb(samples - correct, attempts), math.comb(samples, attempts))
    check("laws.downstream.pass_at_k", abs(reference.pass_at_k(samples, correct, attempts) - float(1 - none)))


def test_rows_at_the_guess_rate_are_left_out():
    accuracy = np.array([0.24, 0.25, 0.29, 0.31, 0.4, 0.5, 0.6, 1.0])
    fit = reference.fit_direct(FLOPS[:8], accuracy, 0.25)
    assert fit.used.tolist() == [False, False, False, True, True, True, True, False] and fit.rows == 4
    falling = reference.fit_direct(FLOPS[:4], [0.6, 0.5, 0.4, 0.35], 0.25)
    assert falling.status == "accuracy does not rise"


@pytest.mark.parametrize(
    "name, guess_rate, at", [("direct", 0.25, (1e22,)), ("ceiling", 0.25, (1e22,)), ("repeated", 0.0, (1e22, 20.0))]
)
def test_intervals_of_lines_are_students(name, guess_rate, at):
    """ln(-ln Q') is a line in ln C. For pass@k it is linear in ln C, ln k and their product. No ceiling is seen."""
    random, attempts = np.random.default_rng(2), np.tile([1.0, 4.0, 16.0], 4)
    columns = [FLOPS, attempts] if name == "repeated" else [FLOPS]

    def design(*columns):
        logs = np.log(columns)
        return np.stack([np.ones_like(logs[0]), *logs, *([logs[0] * logs[1]] if len(logs) > 1 else [])], axis=1)

    target = 0.4 - 0.2 * np.log(FLOPS / 1e19) - (0.1 * np.log(attempts) if name == "repeated" else 0)
    target = target + 0.02 * random.normal(size=12)
    accuracy = guess_rate + (1 - guess_rate) * np.exp(-np.exp(target))
    student, weights = Student(design(*columns), target, 0.9), design(*np.array(at)[:, None])[0]
    module, rate = laws.downstream, {} if name == "repeated" else {"guess_rate": guess_rate}
    file = laws.downstream_sums if name == "ceiling" else module
    fit = getattr(file, f"fit_{name}")(*columns, accuracy, least_gain=0.0, **rate)
    assert fit.status == ("no ceiling is seen" if name == "ceiling" else "interior")
    for observation in (False, True):
        _, low, high = student.interval(weights, more=float(observation))
        wanted = guess_rate + (1 - guess_rate) * np.exp(-np.exp([high, low]))
        found = module.predict_interval(fit, *at, level=0.9, observation=observation)
        assert_close_bounded("laws.downstream.prediction", found, wanted, what="predict_interval")
    if name != "repeated":  # the slope is -alpha
        _, alpha, *_ = laws.accuracy.accuracy_ranges(fit, columns, accuracy, 0.9)
        wanted = student.interval(np.array([0.0, -1.0]))
        assert_close_bounded("laws.downstream.prediction", alpha[2:5], wanted, what="accuracy_ranges")


@settings(max_examples=4)
@given(law=ratio_laws(), guess_rate=GUESSES, seed=SEEDS)
def test_a_new_run_is_less_certain_than_the_law(law, guess_rate, seed):
    accuracy = noisy(reference.predict_accuracy(law, SIZES, TOKENS, guess_rate=guess_rate), guess_rate, 0.02, seed)
    pairs = (
        (reference.fit_direct(6 * SIZES * TOKENS, accuracy, guess_rate, 0.0), (1e23,)),
        (reference_sums.fit_ratio(SIZES, TOKENS, accuracy, guess_rate, 0.0), (1e10, 1e12)),
        (reference_sums.fit_ceiling(6 * SIZES * TOKENS, accuracy, guess_rate, 0.0), (1e23,)),
    )
    for fit, columns in pairs:
        centre = float(reference.predict_accuracy(fit.coefficients, *columns, guess_rate=guess_rate))
        of_law, of_run = (reference.predict_interval(fit, *columns, level=0.9, observation=o) for o in (False, True))
        assert of_run[0] < of_law[0] < centre < of_law[1] < of_run[1]
