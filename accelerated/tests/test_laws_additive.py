import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference import laws as reference
from routelaws.reference.laws import fine_grained, hoffmann, joint
from routelaws.reference.tests.strategies_additive import CASES, WIDE, huber_sum
from routelaws.reference.tests.test_laws_additive import DELTAS, LAW, NAMES, noisy, profile_limit


def loss_of(case, laws, coefficients, columns) -> np.ndarray:
    return case.of(laws)[1](*columns, case.kind(*coefficients))


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_exact_tables_of_laws_far_from_the_printed_ones(name):
    case = CASES[name]
    columns = case.columns()

    @given(law=WIDE[name])
    def judged(law):
        loss = loss_of(case, reference, law, columns)
        fit = case.of(fast)[0](*columns, loss)
        assert fit.status == "interior" and fit.rows == loss.size
        check("laws.additive.exact_sum", fit.objective, scale=loss.size)
        error = np.log(loss_of(case, fast, fit.coefficients, columns) / loss)
        check("laws.additive.exact_loss", float(np.abs(error).max()), message=name)
        for field, found, wanted in zip(case.kind._fields, fit.coefficients, law, strict=True):
            check("laws.additive.exact_coefficient", abs(found / wanted - 1), message=f"{name}: {field}")

    judged()


@pytest.mark.value
@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_the_same_in_both_twins(name):
    case = CASES[name]

    @settings(max_examples=1)
    @given(law=case.laws, seed=st.integers(0, 2**32 - 1), delta=DELTAS)
    def judged(law, seed, delta):
        columns, loss = noisy(case, law, seed)
        found, wanted = (case.of(laws)[0](*columns, loss, delta) for laws in (fast, reference))
        check("laws.additive.objective", abs(found.objective / wanted.objective - 1))
        assert (found.status, found.rows, found.criterion) == (wanted.status, loss.size, wanted.criterion)
        predicted = [np.log(loss_of(case, reference, fit.coefficients, columns)) for fit in (found, wanted)]
        check("laws.additive.prediction", float(np.abs(predicted[0] - predicted[1]).max()), scale=found.rmsle)
        error = np.sqrt(np.diag(wanted.covariance))
        assert np.array_equal(np.isnan(found.covariance), np.isnan(wanted.covariance))
        share = np.abs(found.covariance - wanted.covariance) / (error * error[:, None])
        check("laws.additive.covariance", float(np.nanmax(share)))

    judged()


@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 4e-3])
def test_the_ends_of_an_interval_are_where_the_sum_reaches_its_limit(delta):
    """With one coefficient fixed at the end, SciPy's best sum over the other four is the limit."""
    columns, loss = noisy(CASES["hoffmann"], LAW, 9, 4e-3)
    fit = reference.hoffmann.fit_hoffmann(*columns, loss, delta)
    limit = profile_limit(fit, hoffmann.predict_hoffmann(*columns, fit.coefficients), loss, delta, 0.9)
    found = fast.hoffmann.hoffmann_intervals(*columns, loss, delta, 0.9)
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


@pytest.mark.slow
@pytest.mark.parametrize("delta", [pytest.param(None, marks=pytest.mark.value), 1e-3])
def test_intervals_agree(delta):
    columns, loss = noisy(CASES["hoffmann"], LAW, 10)
    at = [[2e9, 1e8], [3e11, 5e9]]
    for points in (None, at):
        both = [laws.hoffmann.hoffmann_intervals(*columns, loss, delta, at=points) for laws in (fast, reference)]
        for found, wanted in zip(*both, strict=True):
            assert found.name == wanted.name
            length = wanted.high - wanted.low
            for ours, theirs in zip(found[1:4], wanted[1:4], strict=True):
                check("laws.additive.end", abs(ours - theirs), scale=length, message=f"{found} {wanted}")
    assert found.low < found.value < found.high  # a prediction


@pytest.mark.value
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_record_of_the_catalogue_does_what_the_law_does(name):
    case = CASES[name]
    law = {
        "hoffmann": LAW,
        "kaplan": hoffmann.PUBLISHED["kaplan"].coefficients,
        "fine-grained": fine_grained.PUBLISHED["E=64"].coefficients,
        "joint": joint.PUBLISHED["joint"].coefficients,
    }[name]
    columns, loss = noisy(case, law, 11)
    for laws in (fast, reference) if name == "hoffmann" else (fast,):
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


def test_terms_without_effect_are_left_out():
    """A loss of N alone: the sparsity law has no term of tokens, and E changes nothing in the joint law."""
    size, tokens, experts = (v.ravel() for v in np.meshgrid([2e7, 2e8, 2e9], [5e9, 2e10, 8e10], [2.0, 4.0, 16.0, 64.0]))
    total, idle, loss = size * (0.4 + 0.6 * experts), 1 - 1 / experts, 1.5 + 300 * size**-0.34
    fit = fast.sparsity.fit_sparsity(total, tokens, idle, loss, None)
    assert fit.coefficients.b == 0
    assert fast.sparsity.predict_loss(total, tokens, idle, fit.coefficients) == pytest.approx(loss, rel=2e-3)
    fit = fast.joint.fit_joint(size, tokens, experts, loss, None)
    assert joint.predict_joint(size, tokens, 8.0, fit.coefficients) == pytest.approx(loss, rel=1e-6)


def test_a_joint_law_whose_first_experts_give_the_whole_gain():
    """E_max is 1.1 E_start at least. At less, a and b of the first rows would be 0 and inf at N = D = 1."""
    columns = tuple(v.ravel() for v in np.meshgrid([5e7, 2e8, 8e8], [2e9, 1e10, 5e10], [1.0, 4.0, 16.0, 32.0]))
    law, noise = joint.PUBLISHED["joint"].coefficients, np.random.default_rng(0).normal(0, 0.01, columns[0].size)
    loss = joint.predict_joint(*columns, law) * np.exp(noise)
    fit, own = (laws.fit_joint(*columns, loss, None) for laws in (fast.joint, joint))
    assert fit.status == "E_start at the limit"
    assert fit.coefficients.E_max == pytest.approx(1.1 * fit.coefficients.E_start)
    check("laws.additive.objective", abs(fit.objective / own.objective - 1))
    rmsle = np.sqrt(np.mean(np.log10(joint.predict_joint(*columns, fit.coefficients) / loss) ** 2))
    assert fit.rmsle == pytest.approx(rmsle) and rmsle < np.sqrt(np.mean(noise**2)) / np.log(10)
    with pytest.raises(ValueError, match="at 8 experts the terms of N and D are .* and inf; needed: finite numbers"):
        reference.planning.joint_optimum(reference.planning.Budget(1e22), 8, law._replace(omega=1e5))


def test_a_jump_at_the_first_experts_is_no_joint_law():
    """In the limit of an endless bend, E_start and E_max have no values."""
    axes = [1e5, 1.6e5, 2.4e5, 3.3e5], [3.3e6, 4.8e6, 6.8e6], [1.0, 4.0, 16.0, 64.0]
    size, tokens, experts = columns = tuple(v.ravel() for v in np.meshgrid(*axes))
    loss = 1.3 + (30 * size**-0.3 + 900 * tokens**-0.45) * np.where(experts > 1, 0.9, 1.0)
    loss *= np.exp(np.random.default_rng(4).normal(0, 0.002, loss.size))
    with pytest.raises(ValueError, match="do not determine the law: its best fit is the same for any E_start, E_max"):
        fast.joint.fit_joint(*columns, loss, None)


def test_coefficients_beyond_float64_are_an_error():
    size, tokens = (v.ravel() for v in np.meshgrid(np.geomspace(1e8, 1.1e8, 4), [2e9, 1e10, 5e10]))
    loss = 2 + (size / 1e8) ** -60 + (tokens / 1e10) ** -0.3
    with pytest.raises(ValueError, match="do not determine the law: its best fit has a beyond the range of float64"):
        fast.hoffmann.fit_hoffmann(size, tokens, loss, None)
