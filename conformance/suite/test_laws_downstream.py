"""Laws of downstream accuracy: values, recovery of known coefficients, agreement of the twins, intervals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import Student
from routelaws.reference.laws import downstream as reference
from routelaws.reference.laws import downstream_sums as reference_sums

FLOPS = np.geomspace(1e18, 1e21, 12)
SIZES, TOKENS = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 1e10, 5e10, 2e11]))
GUESSES = st.sampled_from([0.0, 0.25, 0.5])
SEEDS = st.integers(0, 99)
NOISES = st.sampled_from([0.0, 0.02])


@st.composite
def direct_laws(draw) -> reference.DirectCoefficients:
    """Surprises of 0.3 to 0.9 in the middle of the budgets."""
    alpha = draw(st.floats(0.08, 0.3))
    return reference.DirectCoefficients(draw(st.floats(0.3, 0.9)) * 10 ** (19.5 * alpha), alpha)


@st.composite
def ratio_laws(draw) -> reference.RatioCoefficients:
    """Two terms of comparable size in the middle of the sizes and tokens."""
    alpha, beta = draw(st.floats(0.15, 0.5)), draw(st.floats(0.15, 0.5))
    first, second = draw(st.floats(0.15, 0.5)), draw(st.floats(0.15, 0.5))
    return reference.RatioCoefficients(first * 5e8**alpha, alpha, second * 2e10**beta, beta)


def noisy(accuracy: np.ndarray, guess_rate: float, noise: float, seed: int) -> np.ndarray:
    """Return accuracies with noise in ln(-ln Q')."""
    surprise = -np.log(reference.normalise(accuracy, guess_rate))
    surprise = surprise * np.exp(noise * np.random.default_rng(seed).normal(size=accuracy.size))
    return np.exp(-surprise) * (1 - guess_rate) + guess_rate


def mirrored(module, law):
    """Return a law in the records of another module."""
    return getattr(module, type(law).__name__)(*law)


def in_logs(coefficients) -> np.ndarray:
    return np.array([math.log(x) if n in "ABE" else x for n, x in coefficients._asdict().items()])


def check_alike(found, wanted, columns: tuple) -> None:
    """Compare two fits of one noisy table."""
    assert (found.status, found.rows, found.criterion) == (wanted.status, wanted.rows, wanted.criterion)
    assert np.array_equal(found.used, wanted.used) and found.guess_rate == wanted.guess_rate
    check("laws.downstream.objective", abs(found.objective / wanted.objective - 1))
    check("laws.downstream.rmse", abs(found.rmsle / wanted.rmsle - 1))
    check("laws.downstream.rmse", abs(found.rmse / wanted.rmse - 1))
    values = [
        reference.predict_accuracy(mirrored(reference, fit.coefficients), *columns, guess_rate=fit.guess_rate)
        for fit in (found, wanted)
    ]
    assert_close_bounded("laws.downstream.prediction", *values, what="predictions of the fit")
    known = np.isfinite(wanted.covariance)
    assert np.array_equal(np.isfinite(found.covariance), known)
    error = np.sqrt(np.nan_to_num(np.diag(wanted.covariance)))
    scale = np.outer(error, error)[known]
    assert_close_bounded(
        "laws.downstream.covariance", found.covariance[known], wanted.covariance[known], scale, what="covariance"
    )


@pytest.mark.asks("laws.downstream.normalise", "laws.downstream.predict_accuracy", "laws.downstream.fit_direct")
@given(law=direct_laws(), guess_rate=GUESSES, noise=NOISES, seed=SEEDS)
def test_the_direct_law(backend, law, guess_rate, noise, seed):
    accuracy = noisy(reference.predict_accuracy(law, FLOPS, guess_rate=guess_rate), guess_rate, noise, seed)
    module = backend.laws.downstream
    value = module.predict_accuracy(mirrored(module, law), FLOPS, guess_rate=guess_rate)
    wanted = reference.predict_accuracy(law, FLOPS, guess_rate=guess_rate)
    assert_close_bounded("laws.downstream.value", value, wanted, what="predict_accuracy")
    found, wanted = (m.fit_direct(FLOPS, accuracy, guess_rate, 0.0) for m in (module, reference))
    if noise:
        return check_alike(found, wanted, (FLOPS,))
    for fit in (found, wanted):
        assert fit.status == "interior" and fit.rows == 12
        check("laws.downstream.exact_line", float(np.abs(in_logs(fit.coefficients) - in_logs(law)).max()))


@pytest.mark.slow
@pytest.mark.asks("laws.downstream.normalise", "laws.downstream.predict_accuracy", "laws.downstream_sums.fit_ratio")
@settings(max_examples=6)
@given(law=ratio_laws(), guess_rate=GUESSES, noise=NOISES, seed=SEEDS)
def test_the_ratio_law(backend, law, guess_rate, noise, seed):
    accuracy = noisy(reference.predict_accuracy(law, SIZES, TOKENS, guess_rate=guess_rate), guess_rate, noise, seed)
    module = backend.laws.downstream
    value = module.predict_accuracy(mirrored(module, law), SIZES, TOKENS, guess_rate=guess_rate)
    wanted = reference.predict_accuracy(law, SIZES, TOKENS, guess_rate=guess_rate)
    assert_close_bounded("laws.downstream.value", value, wanted, what="predict_accuracy")
    sums = backend.laws.downstream_sums
    found, wanted = (m.fit_ratio(SIZES, TOKENS, accuracy, guess_rate, 0.0) for m in (sums, reference_sums))
    if noise:
        return check_alike(found, wanted, (SIZES, TOKENS))
    for fit in (found, wanted):
        assert fit.status == "interior" and fit.rows == 16
        check("laws.downstream.exact_sum", float(np.abs(in_logs(fit.coefficients) - in_logs(law)).max()))


@pytest.mark.asks("laws.downstream.normalise", "laws.downstream.predict_accuracy", "laws.downstream_sums.fit_ceiling")
@settings(max_examples=6)
@given(law=direct_laws(), ceiling=st.floats(0.05, 0.3), guess_rate=GUESSES, noise=NOISES, seed=SEEDS)
def test_the_law_with_a_ceiling(backend, law, ceiling, guess_rate, noise, seed):
    law = reference.CeilingCoefficients(*law, ceiling)
    accuracy = noisy(reference.predict_accuracy(law, FLOPS, guess_rate=guess_rate), guess_rate, noise, seed)
    sums = backend.laws.downstream_sums
    found, wanted = (m.fit_ceiling(FLOPS, accuracy, guess_rate, 0.0) for m in (sums, reference_sums))
    if noise:
        return check_alike(found, wanted, (FLOPS,))
    for fit in (found, wanted):
        assert fit.status == "interior"
        check("laws.downstream.exact_sum", float(np.abs(in_logs(fit.coefficients) - in_logs(law)).max()))


@pytest.mark.asks(
    "laws.downstream.normalise",
    "laws.downstream.predict_accuracy",
    "laws.downstream.fit_direct",
    "laws.downstream_sums.fit_ceiling",
)
@given(law=direct_laws(), guess_rate=GUESSES, noise=st.sampled_from([0.0, 0.02]), seed=SEEDS)
@settings(max_examples=4)
def test_a_ceiling_that_is_not_there_is_not_seen(backend, law, guess_rate, noise, seed):
    """Without noise E is 0 and the law is the direct one; with noise the sum is never above that of the direct law."""
    accuracy = noisy(reference.predict_accuracy(law, FLOPS, guess_rate=guess_rate), guess_rate, noise, seed)
    direct = reference.fit_direct(FLOPS, accuracy, guess_rate, 0.0)
    for sums in (backend.laws.downstream_sums, reference_sums):
        fit = sums.fit_ceiling(FLOPS, accuracy, guess_rate, 0.0)
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


@pytest.mark.asks("laws.downstream.normalise", "laws.downstream.predict_accuracy", "laws.downstream.fit_repeated")
@given(alpha=st.floats(-0.4, -0.1), beta=st.floats(-1.0, -0.3), delta=st.floats(-0.01, 0.02), noise=NOISES, seed=SEEDS)
def test_the_law_of_repeated_sampling(backend, alpha, beta, delta, noise, seed):
    law = reference.RepeatedCoefficients(-19.5 * alpha * math.log(10), alpha, beta, delta)
    flops, attempts = (v.ravel() for v in np.meshgrid(FLOPS[::2], [1.0, 4.0, 16.0, 64.0]))
    accuracy = noisy(reference.predict_accuracy(law, flops, attempts), 0.0, noise, seed)
    module = backend.laws.downstream
    value = module.predict_accuracy(mirrored(module, law), flops, attempts)
    assert_close_bounded("laws.downstream.value", value, reference.predict_accuracy(law, flops, attempts), what="value")
    found, wanted = (m.fit_repeated(flops, attempts, accuracy) for m in (module, reference))
    if noise:
        return check_alike(found, wanted, (flops, attempts))
    for fit in (found, wanted):
        assert fit.status == "interior"
        check("laws.downstream.exact_repeated", float(np.abs(np.array(fit.coefficients) - law).max()))


@pytest.mark.asks("laws.downstream.predict_accuracy", "laws.downstream_sums.fit_ratio")
def test_hubers_sum_is_not_pulled_by_one_row(backend):
    """One of 16 rows is wrong by 0.2; Huber's sum leaves the law alone, least squares does not."""
    law = reference.RatioCoefficients(200.0, 0.3, 1000.0, 0.35)
    accuracy = reference.predict_accuracy(law, SIZES, TOKENS)
    accuracy[5] -= 0.2
    for sums in (backend.laws.downstream_sums, reference_sums):
        misses = []
        for huber in (None, 1e-3):
            fit = sums.fit_ratio(SIZES, TOKENS, accuracy, huber=huber)
            again = reference.predict_accuracy(mirrored(reference, fit.coefficients), 1e10, 1e12)
            misses.append(abs(float(again - reference.predict_accuracy(law, 1e10, 1e12))))
        assert np.isnan(fit.covariance).all()
        assert misses[1] < misses[0] / 20, misses


@pytest.mark.asks("laws.downstream.normalise", "laws.downstream.pass_at_k", "laws.downstream.predict_accuracy")
def test_by_hand(backend):
    for module in (backend.laws.downstream, reference):
        assert np.asarray(module.normalise([0.25, 0.625, 1.0], 0.25)).tolist() == [0.0, 0.5, 1.0]
        law = module.DirectCoefficients(10.0, 0.5)
        value = module.predict_accuracy(law, 100.0, guess_rate=0.5)
        assert_close_bounded("laws.downstream.value", value, 0.5 + 0.5 / math.e, what="predict_accuracy")
        # Two right of three samples, one attempt: 2/3; two attempts always meet one of these.
        check("laws.downstream.value", abs(module.pass_at_k(3, 2, 1) - 2 / 3))
        assert module.pass_at_k(3, 2, 2) == 1.0 and module.pass_at_k(5, 0, 5) == 0.0


@pytest.mark.asks("laws.downstream.fit_direct")
def test_the_error_of_a_fit_is_that_of_the_accuracies(backend):
    """With a guess rate too: the predictions of the fit, less what was measured."""
    flops, accuracy = np.array([1e18, 1e19, 1e20, 1e21]), np.array([0.35, 0.5, 0.53, 0.7])
    for module in (backend.laws.downstream, reference):
        fit = module.fit_direct(flops, accuracy, 0.25)
        misses = module.predict_accuracy(fit.coefficients, flops, guess_rate=0.25) - accuracy
        root = math.sqrt(float(np.mean(misses**2)))
        assert_close_bounded("laws.downstream.rmse", fit.rmse, root, root, what="rmse")


@pytest.mark.asks("laws.downstream.pass_at_k")
@given(samples=st.integers(1, 200), correct=st.integers(0, 200), attempts=st.integers(1, 200))
def test_pass_at_k_is_the_share_of_draws(backend, samples, correct, attempts):
    correct, attempts = min(correct, samples), min(attempts, samples)
    none = Fraction(math.comb(samples - correct, attempts), math.comb(samples, attempts))
    for module in (backend.laws.downstream, reference):
        check("laws.downstream.pass_at_k", abs(module.pass_at_k(samples, correct, attempts) - float(1 - none)))


@pytest.mark.asks("laws.downstream.fit_direct")
def test_rows_at_the_guess_rate_are_left_out(backend):
    accuracy = np.array([0.24, 0.25, 0.29, 0.31, 0.4, 0.5, 0.6, 1.0])
    for module in (backend.laws.downstream, reference):
        fit = module.fit_direct(FLOPS[:8], accuracy, 0.25)
        assert fit.used.tolist() == [False, False, False, True, True, True, True, False] and fit.rows == 4
        falling = module.fit_direct(FLOPS[:4], [0.6, 0.5, 0.4, 0.35], 0.25)
        assert falling.status == "accuracy does not rise"


@pytest.mark.asks("*.predict_interval", "laws.downstream.fit_direct", "laws.downstream.fit_repeated")
@pytest.mark.parametrize("name, guess_rate, at", [("direct", 0.25, (1e22,)), ("repeated", 0.0, (1e22, 20.0))])
def test_intervals_of_lines_are_students(backend, name, guess_rate, at):
    """ln(-ln Q') is a line in ln C; of pass@k it is linear in ln C, ln k and their product."""
    random, attempts = np.random.default_rng(1), np.tile([1.0, 4.0, 16.0], 4)
    columns = [FLOPS] if name == "direct" else [FLOPS, attempts]

    def design(*columns):
        logs = np.log(columns)
        return np.stack([np.ones_like(logs[0]), *logs, *([logs[0] * logs[1]] if len(logs) > 1 else [])], axis=1)

    target = 0.4 - 0.2 * np.log(FLOPS / 1e19) - (0.1 * np.log(attempts) if name == "repeated" else 0)
    target = target + 0.02 * random.normal(size=12)
    accuracy = guess_rate + (1 - guess_rate) * np.exp(-np.exp(target))
    student, weights = Student(design(*columns), target, 0.9), design(*np.array(at)[:, None])[0]
    for module in (backend.laws.downstream, reference):
        rate = {"guess_rate": guess_rate} if name == "direct" else {}
        fit = getattr(module, f"fit_{name}")(*columns, accuracy, least_gain=0.0, **rate)
        for observation in (False, True):
            _, low, high = student.interval(weights, more=float(observation))
            wanted = guess_rate + (1 - guess_rate) * np.exp(-np.exp([high, low]))
            found = module.predict_interval(fit, *at, level=0.9, observation=observation)
            assert_close_bounded("laws.downstream.prediction", found, wanted, what="predict_interval")


@pytest.mark.asks(
    "*.predict_interval",
    "laws.downstream.normalise",
    "laws.downstream.predict_accuracy",
    "laws.downstream.fit_direct",
    "laws.downstream_sums.fit_ratio",
    "laws.downstream_sums.fit_ceiling",
)
@settings(max_examples=4)
@given(law=ratio_laws(), guess_rate=GUESSES, seed=SEEDS)
def test_intervals_agree(backend, law, guess_rate, seed):
    accuracy = noisy(reference.predict_accuracy(law, SIZES, TOKENS, guess_rate=guess_rate), guess_rate, 0.02, seed)
    module, sums = backend.laws.downstream, backend.laws.downstream_sums
    pairs = (
        (module.fit_direct(6 * SIZES * TOKENS, accuracy, guess_rate, 0.0), (1e23,)),
        (sums.fit_ratio(SIZES, TOKENS, accuracy, guess_rate, 0.0), (1e10, 1e12)),
        (sums.fit_ceiling(6 * SIZES * TOKENS, accuracy, guess_rate, 0.0), (1e23,)),
    )
    for fit, columns in pairs:
        same = reference.AccuracyFit(*fit)._replace(coefficients=mirrored(reference, fit.coefficients))
        centre = float(module.predict_accuracy(fit.coefficients, *columns, guess_rate=guess_rate))
        widths = []
        for observation in (False, True):
            found = module.predict_interval(fit, *columns, level=0.9, observation=observation)
            wanted = reference.predict_interval(same, *columns, level=0.9, observation=observation)
            assert_close_bounded("laws.downstream.interval", found, wanted, what="predict_interval")
            assert found[0] < centre < found[1]
            widths.append(float(found[1] - found[0]))
        assert widths[0] < widths[1]


@pytest.mark.asks(
    "*.predict_interval",
    "laws.downstream.normalise",
    "laws.downstream.predict_accuracy",
    "laws.downstream.fit_direct",
    "laws.downstream_sums.fit_ratio",
    "laws.downstream_sums.fit_ceiling",
)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["direct", "ratio", "ceiling"])
def test_intervals_hold_what_they_say(backend, name):
    """400 tables with noise of 0.03 in ln(-ln Q'): the truth beyond the table is inside 90 to 98 % of the time."""
    random, inside = np.random.default_rng(1), {"law": 0, "run": 0, "alpha": 0}
    module, sums = backend.laws.downstream, backend.laws.downstream_sums
    law, columns, far, fit_of = {
        "direct": (module.DirectCoefficients(1e5, 0.26), (FLOPS,), (1e22,), module.fit_direct),
        "ratio": (module.RatioCoefficients(200.0, 0.3, 1e3, 0.35), (SIZES, TOKENS), (1e10, 1e12), sums.fit_ratio),
        "ceiling": (
            module.CeilingCoefficients(1e7, 0.36, 0.25), (np.geomspace(1e18, 1e22, 24),), (1e23,), sums.fit_ceiling
        ),
    }[name]  # fmt: skip
    quantile = {12: 2.228, 16: 2.179, 24: 2.080}[columns[0].size]  # Student's t at 95 %, n less the coefficients
    for _ in range(400):
        columns_and_far = [np.append(column, value) for column, value in zip(columns, far, strict=True)]
        exact = module.predict_accuracy(law, *columns_and_far)
        accuracy = noisy(exact, 0.0, 0.03, int(random.integers(2**32)))
        fit = fit_of(*columns, accuracy[:-1], 0.0, 0.0)
        for key, observation, truth in (("law", False, exact[-1]), ("run", True, accuracy[-1])):
            low, high = module.predict_interval(fit, *far, observation=observation)
            inside[key] += bool(low <= truth <= high)
        error = math.sqrt(fit.covariance[1, 1])
        inside["alpha"] += abs(fit.coefficients.alpha - law.alpha) < quantile * error
    assert all(0.90 < count / 400 < 0.98 for count in inside.values()), inside


BAD = {
    "above 1": (([1e18, 1e19, 1e20], [0.5, 0.6, 1.1]), "1 - accuracy: entry"),
    "lengths": (([1e18, 1e19], [0.5, 0.6, 0.7]), r"flops and accuracy have shapes \(2,\) and \(3,\)"),
    "at the guess rate": (([1e18, 1e19, 1e20], [0.26, 0.25, 0.5], 0.25), "1 of 3 rows have an accuracy above 0.3 and"),
    "guess rate": (([1e18, 1e19, 1e20], [0.5, 0.6, 0.7], 1.0), "guess_rate is 1.0; needed: at least 0 and below 1"),
    "one budget": (([1e18] * 3, [0.5, 0.6, 0.7]), "cannot tell the coefficients apart"),
}


@pytest.mark.asks(
    "laws.downstream.pass_at_k",
    "laws.downstream.predict_accuracy",
    "laws.downstream.fit_direct",
    "laws.downstream_sums.fit_ratio",
)
@pytest.mark.twin
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fitted_is_named(backend, case):
    arguments, message = BAD[case]
    for module, sums in ((backend.laws.downstream, backend.laws.downstream_sums), (reference, reference_sums)):
        with pytest.raises(ValueError, match=message):
            module.fit_direct(*arguments)
        with pytest.raises(ValueError, match="1 columns are given; RatioCoefficients needs 2"):
            module.predict_accuracy(module.RatioCoefficients(1.0, 0.1, 1.0, 0.1), 1e9)
        with pytest.raises(ValueError, match="huber is 0"):
            sums.fit_ratio(SIZES, TOKENS, np.full(16, 0.5), huber=0)
        with pytest.raises(ValueError, match="4 right of 3 samples"):
            module.pass_at_k(3, 4, 1)
