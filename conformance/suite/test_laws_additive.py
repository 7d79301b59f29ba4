import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from routelaws.conformance.bounds import check
from routelaws.conformance.plain.laws import Student
from routelaws.conformance.suite.strategies_additive import CASES, WIDE, huber_sum
from routelaws.reference import laws as reference
from routelaws.reference.laws import additive, fine_grained, hoffmann, joint

QUICK = ("hoffmann",)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES]
DELTAS = st.sampled_from([None, 1e-3, 1e-2])


def noisy(case, law, seed: int, noise: float = 5e-3) -> tuple[list[np.ndarray], np.ndarray]:
    columns = case.columns()
    exact = case.of(reference)[1](*columns, law)
    return columns, exact * np.exp(np.random.default_rng(seed).normal(0, noise, exact.size))


def loss_of(case, laws, coefficients, columns) -> np.ndarray:
    return case.of(laws)[1](*columns, case.kind(*coefficients))


def exact(backend, name, law, repeat: int = 1):
    case = CASES[name]
    columns = case.columns()
    loss = case.of(reference)[1](*columns, law)
    for laws in [backend.laws, *[reference] * repeat]:
        fit = case.of(laws)[0](*columns, loss)
        assert fit.status == "interior" and fit.rows == loss.size
        check("laws.additive.exact_sum", fit.objective, scale=loss.size)
        error = np.log(loss_of(case, laws, fit.coefficients, columns) / loss)
        check("laws.additive.exact_loss", float(np.abs(error).max()), message=name)
        for field, found, wanted in zip(case.kind._fields, fit.coefficients, law, strict=True):
            check("laws.additive.exact_coefficient", abs(found / wanted - 1), message=f"{name}: {field}")


@pytest.mark.asks(
    "laws.fine_grained.fit_fine_grained",
    "laws.hoffmann.fit_hoffmann",
    "laws.hoffmann.fit_kaplan",
    "laws.joint.fit_joint",
)
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_exact_tables_give_their_law_back(backend, name):
    @settings(max_examples=2)
    @given(law=CASES[name].laws)
    def judged(law):
        exact(backend, name, law)

    judged()


@pytest.mark.asks("laws.fine_grained.fit_fine_grained", "laws.hoffmann.fit_hoffmann")
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_exact_tables_of_laws_far_from_the_printed_ones(backend, name):
    @given(law=WIDE[name])
    def judged(law):
        exact(backend, name, law, repeat=0)

    judged()


def least(case, laws, columns, loss, fit, delta, random) -> None:
    """Fail if a small change of the coefficients lowers the sum, or if a reported value does not match them."""
    log_loss = np.log(loss)

    def total(coefficients) -> float:
        return huber_sum(np.log(loss_of(case, reference, coefficients, columns)) - log_loss, delta)

    best, values = total(fit.coefficients), np.array(fit.coefficients)
    check("laws.additive.sum", abs(best / fit.objective - 1))
    residual = np.log10(loss_of(case, laws, fit.coefficients, columns) / loss)
    check("laws.additive.sum", abs(math.sqrt(np.mean(residual**2)) / fit.rmsle - 1))
    nudges = [*np.eye(values.size), *random.normal(size=(20, values.size))]
    free = np.isfinite(values) & (values != 0)
    for nudge in nudges:
        for size in (1e-2, 1e-4, 1e-6):
            for sign in (1, -1):
                moved = np.where(free, values * (1 + sign * size * nudge), values)
                check("laws.additive.least", max(1 - total(moved) / best, 0.0), message=f"{nudge} {size}")


@pytest.mark.asks(
    "laws.fine_grained.fit_fine_grained",
    "laws.hoffmann.fit_hoffmann",
    "laws.hoffmann.fit_kaplan",
    "laws.joint.fit_joint",
)
@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_the_least_and_the_same_in_both_twins(backend, name):
    case = CASES[name]

    @settings(max_examples=1)
    @given(law=case.laws, seed=st.integers(0, 2**32 - 1), delta=DELTAS)
    def judged(law, seed, delta):
        columns, loss = noisy(case, law, seed)
        found, wanted = (case.of(laws)[0](*columns, loss, delta) for laws in (backend.laws, reference))
        check("laws.additive.objective", abs(found.objective / wanted.objective - 1))
        assert (found.status, found.rows, found.criterion) == (wanted.status, loss.size, wanted.criterion)
        predicted = [np.log(loss_of(case, reference, fit.coefficients, columns)) for fit in (found, wanted)]
        check("laws.additive.prediction", float(np.abs(predicted[0] - predicted[1]).max()), scale=found.rmsle)
        random = np.random.default_rng(seed)
        for laws, fit in ((backend.laws, found), (reference, wanted)):
            least(case, laws, columns, loss, fit, delta, random)
        error = np.sqrt(np.diag(wanted.covariance))
        assert np.array_equal(np.isnan(found.covariance), np.isnan(wanted.covariance))
        share = np.abs(found.covariance - wanted.covariance) / (error * error[:, None])
        check("laws.additive.covariance", float(np.nanmax(share)))

    judged()


LAW = hoffmann.HoffmannCoefficients(400.0, 0.34, 2000.0, 0.37, 1.8)


@pytest.mark.asks("laws.hoffmann.fit_hoffmann")
def test_every_row_twice_is_twice_the_sum_and_the_same_law(backend):
    """The criterion is the sum of Huber terms, not their mean."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 5)
    fit = backend.laws.hoffmann.fit_hoffmann
    once, twice = fit(*columns, loss), fit(*(np.tile(v, 2) for v in columns), np.tile(loss, 2))
    check("laws.additive.objective", abs(twice.objective / once.objective - 2))
    for found, wanted in zip(twice.coefficients, once.coefficients, strict=True):
        check("laws.additive.same_law", abs(found / wanted - 1))


@pytest.mark.asks("laws.hoffmann.fit_hoffmann")
def test_another_unit_is_the_same_law(backend):
    """Parameters are in thousands and losses in bits, but starts and fit do not depend on units."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 6)
    fit = backend.laws.hoffmann.fit_hoffmann
    plain, other = fit(*columns, loss), fit(columns[0] / 1e3, columns[1], loss / math.log(2))
    check("laws.additive.objective", abs(other.objective / plain.objective - 1))
    a, alpha, b, beta, c = plain.coefficients
    wanted = (a / 1e3**alpha / math.log(2), alpha, b / math.log(2), beta, c / math.log(2))
    for found, value in zip(other.coefficients, wanted, strict=True):
        check("laws.additive.same_law", abs(found / value - 1))


@pytest.mark.asks("laws.hoffmann.predict_hoffmann", "laws.hoffmann.fit_hoffmann")
@pytest.mark.long
def test_a_law_without_a_floor_has_none(backend):
    """c = 0 is an edge of the law: the status reports it, and c is exactly 0."""
    for laws in (backend.laws, reference):
        columns, loss = noisy(CASES["hoffmann"], LAW._replace(a=60.0, alpha=0.1, b=60.0, beta=0.1, c=0.0), 3, 1e-4)
        fit = laws.hoffmann.fit_hoffmann(*columns, loss / 1.02 - 0.05)  # lower than any law with a floor
        assert (fit.status, fit.coefficients.c) == ("c at the limit", 0.0)
        assert np.isnan(fit.covariance[4]).all() and np.isfinite(fit.covariance[:4, :4]).all()
        residual = np.log(laws.hoffmann.predict_hoffmann(*columns, fit.coefficients) / (loss / 1.02 - 0.05))
        check("laws.additive.sum", abs(huber_sum(residual, 1e-3) / fit.objective - 1))


@pytest.mark.asks("laws.joint.predict_joint", "laws.joint.fit_joint")
@pytest.mark.slow
def test_experts_that_never_stop_counting(backend):
    """E_max = ∞ is an edge, too."""
    law = joint.JointCoefficients(36, -0.19, -0.23, 0.01, 36, -0.18, 0.55, -0.026, 2.0, math.inf, 1.36)
    for laws in (backend.laws, reference):
        columns, loss = noisy(CASES["joint"], law, 1, 0.0)
        fit = laws.joint.fit_joint(*columns, loss)
        assert (fit.status, fit.coefficients.E_max) == ("E_max at the limit", math.inf)
        error = np.log(laws.joint.predict_joint(*columns, fit.coefficients) / loss)
        check("laws.additive.exact_loss", float(np.abs(error).max()))


@pytest.mark.asks("laws.hoffmann.fit_hoffmann")
@pytest.mark.long
def test_one_wrong_row_moves_least_squares_and_not_huber(backend):
    columns, loss = noisy(CASES["hoffmann"], LAW, 7, 0.0)
    wrong = loss * np.where(np.arange(loss.size) == 5, 1.2, 1.0)
    for laws in (backend.laws, reference):
        square, huber = (laws.hoffmann.fit_hoffmann(*columns, wrong, delta) for delta in (None, 1e-4))
        assert abs(huber.coefficients.c / LAW.c - 1) < 0.01 < abs(square.coefficients.c / LAW.c - 1)
        # Every row but one has half its square; that row counts linearly beyond delta.
        assert huber.objective < 1e-4 * math.log(1.2) * 1.01 and square.rmsle < huber.rmsle


@pytest.mark.asks("laws.hoffmann.fit_hoffmann")
@pytest.mark.slow
def test_starts_of_one_s_own(backend):
    columns, loss = noisy(CASES["hoffmann"], LAW, 8)
    for laws in (backend.laws, reference):
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


@pytest.mark.asks("laws.hoffmann.predict_hoffmann", "laws.hoffmann.fit_hoffmann", "laws.hoffmann.hoffmann_intervals")
@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 4e-3])
def test_the_ends_of_an_interval_are_where_the_sum_reaches_its_limit(backend, delta):
    """With one coefficient fixed at the end, SciPy's best sum over the other four is the limit."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 9, 4e-3)
    fit = reference.hoffmann.fit_hoffmann(*columns, loss, delta)
    limit = profile_limit(fit, hoffmann.predict_hoffmann(*columns, fit.coefficients), loss, delta, 0.9)
    found = backend.laws.hoffmann.hoffmann_intervals(*columns, loss, delta, 0.9)
    assert [each.name for each in found] == list(LAW._fields)
    for i, each in enumerate(found):
        assert each.low < each.value < each.high and each.level == 0.9
        check("laws.additive.same_law", abs(each.value / fit.coefficients[i] - 1))
        if each.name not in ("alpha", "c"):
            continue
        for end in (each.low, each.high):

            def held(x, i=i, end=end):
                values = np.insert(np.exp(x), i, end)
                return huber_sum(np.log(hoffmann.predict_hoffmann(*columns, LAW._make(values)) / loss), delta)

            start = np.log(np.delete(np.array(fit.coefficients), i))
            tight = {"maxiter": 20000, "maxfev": 20000, "xatol": 1e-10, "fatol": 1e-14 * limit}
            best = min(
                optimize.minimize(held, at, method="Nelder-Mead", options=tight).fun
                for at in (start, optimize.minimize(held, start, method="Powell").x)
            )
            check("laws.additive.profile", abs(best / limit - 1), message=f"{each.name} {end}")


@pytest.mark.asks("laws.hoffmann.hoffmann_intervals")
@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 1e-3])
def test_intervals_agree(backend, delta):
    columns, loss = noisy(CASES["hoffmann"], LAW, 10)
    at = [[2e9, 1e8], [3e11, 5e9]]
    for points in (None, at):
        both = [
            laws.hoffmann.hoffmann_intervals(*columns, loss, delta, at=points) for laws in (backend.laws, reference)
        ]
        for found, wanted in zip(*both, strict=True):
            assert found.name == wanted.name
            length = wanted.high - wanted.low
            for ours, theirs in zip(found[1:4], wanted[1:4], strict=True):
                check("laws.additive.end", abs(ours - theirs), scale=length, message=f"{found} {wanted}")
    assert found.low < found.value < found.high  # a prediction


@pytest.mark.asks("laws.hoffmann.hoffmann_intervals")
@pytest.mark.slow
def test_a_coefficient_that_the_rows_leave_open(backend):
    """Noise hides the floor: its interval includes 0."""
    columns, loss = noisy(CASES["hoffmann"], LAW._replace(alpha=0.1, a=8.0, beta=0.1, b=10.0, c=0.5), 2, 2e-2)
    for laws in (backend.laws, reference):
        floor = laws.hoffmann.hoffmann_intervals(*columns, loss, None)[4]
        assert (floor.name, floor.low) == ("c", 0.0) and floor.high > floor.value


@pytest.mark.asks("*.predict_interval", "laws.smooth_intervals.words")
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_record_of_the_catalogue_does_what_the_law_does(backend, name):
    case = CASES[name]
    law = {
        "hoffmann": LAW,
        "kaplan": hoffmann.PUBLISHED["kaplan"].coefficients,
        "fine-grained": fine_grained.PUBLISHED["E=64"].coefficients,
        "joint": joint.PUBLISHED["joint"].coefficients,
    }[name]
    columns, loss = noisy(case, law, 11)
    for laws in (backend.laws, reference) if name == "hoffmann" else (backend.laws,):
        record = laws.catalogue.LAWS[name]
        fit, huber = record.fit(*columns, loss), record.fit(*columns, loss, huber=1e-3)
        assert fit.coefficients._fields == tuple(parameter.name for parameter in record.parameters)
        for found, delta in ((fit, None), (huber, 1e-3)):
            residual = np.log10(record.predict(found, *columns) / loss)
            wanted = np.mean(residual**2) if delta is None else huber_sum(residual, delta)
            check("laws.additive.sum", abs(found.objective / wanted - 1))
            check("laws.additive.sum", abs(found.rmsle / math.sqrt(np.mean(residual**2)) - 1))
        assert fit.criterion == "mean squared difference of log10 losses" and "delta = 0.001" in huber.criterion
        assert fit.objective <= np.mean(np.log10(record.predict(huber, *columns) / loss) ** 2)
        at = [float(column[-1]) for column in columns]
        found = record.predict_interval(fit, columns, loss, at)
        assert found.run[0] < found.law[0] < found.value < found.law[1] < found.run[1]
        scatter = math.log(10) * fit.rmsle * math.sqrt(loss.size / (loss.size - len(law)))
        reach = stats.t.ppf(0.975, loss.size - len(law)) * scatter
        for run, own in zip(found.run, found.law, strict=True):  # the two errors add in squares
            wanted = math.hypot(math.log(own / found.value), reach)
            check("laws.additive.end", abs(abs(math.log(run / found.value)) - wanted))
    ranges = record.intervals(fit, columns, loss)
    assert [each.name for each in ranges] == list(law._fields)
    assert all(each.low <= each.value <= each.high and each.words for each in ranges)


class Tokens(NamedTuple):
    b: float
    beta: float
    c: float


@pytest.mark.asks("laws.additive.predict_additive", "laws.additive.fit_additive")
@pytest.mark.slow
def test_a_law_of_one_s_own(backend):
    tokens = np.array([1e9, 3e9, 1e10, 3e10, 1e11])
    for module in (backend.laws.additive, additive):
        law = module.AdditiveLaw("tokens alone", Tokens, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
        loss = module.predict_additive(law, Tokens(400.0, 0.3, 1.7), [tokens])
        for found, wanted in zip(module.fit_additive(law, [tokens], loss).coefficients, (400, 0.3, 1.7), strict=True):
            check("laws.additive.exact_coefficient", abs(found / wanted - 1))


class Power(NamedTuple):
    b: float
    beta: float


@pytest.mark.asks("laws.additive.predict_additive", "laws.additive.fit_additive", "laws.additive.additive_intervals")
def test_the_intervals_of_a_single_power(backend):
    """ln L = ln b - β ln D is a line, so least squares gives Student's intervals.

    At both ends of Huber's interval of β the least sum over b is the limit.
    """
    tokens, delta = np.geomspace(1e9, 1e12, 8), 5e-3
    lines = np.stack([np.ones(9), -np.log([*tokens, 1e13])], axis=1)
    for module in (backend.laws.additive, additive):
        law = module.AdditiveLaw("one power", Power, ("tokens",), (("b", {"beta": "tokens"}),))
        loss = module.predict_additive(law, Power(30.0, 0.1), [tokens])
        loss = loss * np.exp(np.random.default_rng(3).normal(0, 1e-2, 8))
        student = Student(lines[:8], np.log(loss), 0.9)
        for at, weights in ((None, np.eye(2)), ([[1e13]], lines[8:])):
            intervals = module.additive_intervals(law, [tokens], loss, None, 0.9, at)
            for found, line in zip(intervals, weights, strict=True):
                ends, wanted = np.array(found[1:4]), np.array(student.interval(line))
                error = np.abs((ends if found.name == "beta" else np.log(ends)) - wanted).max()
                check("laws.additive.end", float(error), scale=wanted[2] - wanted[1], message=found.name)
        fit = module.fit_additive(law, [tokens], loss, delta)
        limit = profile_limit(fit, module.predict_additive(law, fit.coefficients, [tokens]), loss, delta, 0.9)
        _, beta = module.additive_intervals(law, [tokens], loss, delta, 0.9)
        for end in (beta.low, beta.high):
            levels = np.log(loss) + end * np.log(tokens)
            tight = {"bounds": (levels.min(), levels.max()), "options": {"xatol": 1e-12}}
            least = optimize.minimize_scalar(lambda x, at=levels: huber_sum(x - at, delta), **tight).fun
            check("laws.additive.profile", abs(least / limit - 1), message=f"{beta} {end}")
        floored = module.AdditiveLaw("power and floor", Tokens, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
        *_, floor = module.additive_intervals(floored, [tokens], np.exp(1 - lines[:8, 1] ** 2 / 1e3), None, 0.9)
        assert (floor.value, floor.low) == (0.0, 0.0), "ln L falls ever faster"
