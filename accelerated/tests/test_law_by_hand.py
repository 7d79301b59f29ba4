"""Small answers by hand, for both twins: cases that the suite rarely or slowly reaches."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.accelerated.laws import _descent as fast_descent
from routelaws.conformance.bounds import check
from routelaws.reference import laws as oracle
from routelaws.reference.laws.numerics import _huber as oracle_huber

twins = pytest.mark.parametrize("laws", [fast, oracle], ids=["accelerated", "reference"])


@twins
def test_a_first_stage_in_size_and_tokens(laws):
    """8/√16 + 27/∛27 + 1 = 12."""
    stage = laws.two_stage.LossCoefficients(A=8.0, alpha=0.5, B=27.0, beta=1 / 3, E=1.0)
    found = laws.two_stage.predict_first(stage, np.array([16.0]), np.array([27.0]))
    check("laws.two_stage.value", abs(float(found[0]) / 12 - 1))


@twins
def test_losses_ten_times_too_high_and_too_low(laws):
    found = laws.catalogue.fitted(laws.dense.DenseCoefficients(0.1, 1e13), np.array([20.0, 0.2]), np.array([2.0, 2.0]))
    assert (found.objective, found.rmsle, found.rows) == (1.0, 1.0, 2)


@twins
def test_a_delta_in_log10_units(laws):
    """The objective sums Huber terms of log10 losses: r²/2 up to delta, and delta (|r| - delta/2) beyond."""
    size, tokens = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9], [2e9, 1e10, 5e10]))
    loss = 1.8 + 400 / size**0.34 + 2000 / tokens**0.37
    loss = loss * np.where(np.arange(9) == 4, 1.01, 1.0)
    fit = laws.smooth_intervals.fit_in_log10(laws.hoffmann.fit_hoffmann, size, tokens, loss, huber=1e-3)
    miss = np.abs(np.log10(laws.hoffmann.predict_hoffmann(size, tokens, fit.coefficients) / loss))
    terms = np.where(miss <= 1e-3, miss**2 / 2, 1e-3 * (miss - 5e-4))
    assert miss.max() > 1e-3
    check("laws.additive.objective", abs(fit.objective / terms.sum() - 1))


@twins
def test_one_more_run_has_the_scatter_of_the_rows_too(laws):
    """With six rows and two coefficients, there are 4 degrees of freedom.

    The quantile at 50 % is 0.7407, and s² = RSS/4.
    """
    interval = laws.additive.AdditiveInterval(*[None] * len(laws.additive.AdditiveInterval._fields))
    interval = interval._replace(value=2.0, low=2.0 / 1.1, high=2.0 * 1.1)
    fit = laws.additive.AdditiveFit(*[None] * len(laws.additive.AdditiveFit._fields))
    fit = fit._replace(coefficients=(1.0, 2.0), rmsle=0.02)
    [found] = laws.smooth_intervals.smooth_predictions(lambda *given: [interval], fit, [], np.ones(6), [[]], 0.5)
    half = math.hypot(math.log(1.1), laws.uncertainty.student_quantile(0.5, 4) * 0.02 * math.log(10) * math.sqrt(6 / 4))
    assert found.law == (interval.low, interval.high)
    for end, wanted in zip(found.run, (2.0 * math.exp(-half), 2.0 * math.exp(half)), strict=True):
        check("laws.intervals.value", abs(end / wanted - 1))


@pytest.mark.parametrize("of", [
    fast.fitting._error_variance,
    lambda residual, delta: fast_descent.error_variance(SimpleNamespace(delta=delta), residual, 6)[0],
    lambda residual, delta: oracle_huber.error_variance(residual, delta, 6)[0],
])  # fmt: skip
def test_rows_beyond_delta_widen_the_error_of_a_huber_fit(of):
    """8 of 10 rows are within delta: Σ clipped²/(10 - 6) = (8 + 2 · 4)/4, and K/m = (1 + 6/10 · 0.2/0.8)/0.8."""
    found = of(np.array([1.0, -1.0] * 4 + [3.0, -3.0]), 2.0)
    check("laws.intervals.value", abs(found / (4 * (1.15 / 0.8) ** 2) - 1))


WORDS = {
    (True, 3.0, 1.0, 10.0): "soft",
    (True, 3.0, 1.0, 10.5): "loose",
    (False, 3.0, 1.0, 10.0): "soft",
    (False, 3.0, 1.0, 10.5): "loose",
    (False, -3.0, -10.5, -1.0): "loose",
    (False, -3.0, -3.5, -2.5): "pinned down",
}


@twins
def test_an_end_more_than_ten_times_the_other_is_loose(laws):
    assert {given: laws.smooth_intervals.words(*given) for given in WORDS} == WORDS


@twins
@pytest.mark.parametrize(
    ("start", "status"),
    [(2e-6, "interior"), (2e-7, "A_start at its lower end"), (0.5, "interior"), (5.0, "A_start at its upper end")],
)
def test_an_activation_at_the_ends_of_its_range(laws, start, status):
    """The search for A_start goes from 1e-6 to 1; twice or half these numbers are still coefficients."""
    truth = laws.leverage.PUBLISHED._replace(A_start=start, A_max=math.inf)
    A, G, C = (v.ravel() for v in np.meshgrid(start * 10 ** np.arange(-1, 1, 0.5), [2.0, 4.0, 8.0], [1e18, 1e20]))
    found = laws.leverage.fit_leverage(A, G, C, laws.leverage.leverage(A, G, C, truth))
    assert found.status == status
    assert round(found.coefficients.A_start / min(max(start, 1e-6), 1.0), 2) == 1


@twins
@pytest.mark.parametrize(("factor", "size"), [(1e-9, 1.0), (1e12, 10.0)])
def test_the_best_size_is_at_least_a_parameter_and_leaves_a_token(laws, factor, size):
    best = laws.planning.hoffmann_optimum(60.0, laws.hoffmann.HoffmannCoefficients(factor, 0.3, 1.0, 0.3, 1.7))
    assert (round(best.parameters, 9), round(best.tokens, 9)) == (size, 10 / size)


@twins
def test_a_logistic_stage_needs_a_row_more_than_its_coefficients(laws):
    flops = 10.0 ** np.arange(18, 22)
    with pytest.raises(ValueError, match="4 rows; the logistic stage needs at least 5"):
        laws.two_stage.fit_two_stage(flops, flops**-0.07, np.arange(4) / 4)


@twins
def test_both_powers_of_a_joint_law_have_to_fall(laws):
    law = laws.joint.JointCoefficients(35.0, -0.2, 0, 0, 35.0, 0.1, 0, 0, 2.0, math.inf, 1.7)
    with pytest.raises(ValueError, match="powers of N and D are -0.2 and 0.1; needed: both below 0"):
        laws.planning.joint_optimum(laws.planning.Budget(1e20), 4, law)


@twins
def test_the_first_term_of_a_law_with_a_ceiling_may_be_below_1(laws):
    flops = 2.0 ** np.arange(8)
    assert laws.downstream_sums.fit_ceiling(flops, np.exp(-0.5 * flops**-0.3 - 0.1)).status == "interior"


@twins
def test_columns_of_a_fit_are_in_their_range(laws):
    with pytest.raises(ValueError, match="num_experts: entry"):
        laws.log_linear.fit_separable(np.ones(4), np.array([0.5, 1, 2, 4]), np.ones(4))
    with pytest.raises(ValueError, match="7 rows of 3 budgets"):
        laws.broken.fit_broken(np.array([1.0, 1, 1, 2, 2, 3, 3]), np.full(7, 0.5))


@pytest.mark.parametrize(("huber", "criterion"), [(1e-3, "sum of Huber"), (None, "half the sum of squared")])
def test_the_criterion_of_a_broken_law(huber, criterion):
    best = SimpleNamespace(parameters=np.zeros(6), residual=np.zeros(7), objective=0.0)
    fit = oracle.broken.fit_broken(np.arange(1.0, 8), np.full(7, 0.5), huber, search=lambda *given: best)
    assert fit.criterion.startswith(criterion)


def test_slopes_are_at_the_median_of_the_rows(monkeypatch):
    module = oracle.bounded_intervals
    monkeypatch.setattr(module, "range_of", lambda N: N)
    fit = SimpleNamespace(curve=oracle.utilisation.UtilisationCurve(None, B_min=0.2, unit=0.02))
    slopes = module.utilisation_slopes(
        fit,
        (np.array([1.0, 1, 1, 4, 9]), np.full(5, 0.3)),
        np.ones(5),
        search=lambda *given: [quantity.N for quantity in given[3]],
    )
    assert slopes == [1, 1, 9]


@twins
def test_a_law_of_utilisation_whose_power_depends_on_it(laws):
    law = laws.utilisation.UtilisationCoefficients(0.0, -0.05, 0.01, 0.4, 0.1, math.inf, 0.25)
    assert laws.utilisation.effective_teraflops(3.0, 0.25, law) == pytest.approx(3)
    assert np.isnan(laws.utilisation.teraflops_for_loss([0.25, 9.0], 2.0, law)).tolist() == [False, True]


def test_a_change_of_unit_leaves_the_law():
    """B̂ = u Ê', with u = 0.02."""
    old = np.array([-0.08, -0.11, 0.01, 1.1, 2.0, 300.0])
    new = oracle.utilisation.UtilisationCoefficients(*(oracle.utilisation._change_of_unit(0.02) @ old), 0.2)
    wanted = oracle.routed.predict_loss(3.0, 1 + (0.7 - 0.2) / 0.02, oracle.routed.RoutedCoefficients(*old))
    check("laws.intervals.value", abs(float(oracle.utilisation.predict_loss(3.0, 0.7, new) / wanted) - 1))


def test_counts_of_experts_may_differ_by_any_factor():
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1.0, 1e3, 1e6, 1e10]))
    loss = 2.0 * size**-0.01 * experts**-0.02
    assert fast.fitting.level_table(size, experts, loss).extra.size == 4
    assert oracle.numerics._projection.check_rows(size, experts, loss).log_loss.size == 12


@twins
def test_each_law_of_the_catalogue_has_a_fit_of_its_own(laws):
    used = Counter(id(law.fit) for law in laws.catalogue.LAWS.values())
    assert [name for name, law in laws.catalogue.LAWS.items() if used[id(law.fit)] > 1] == []


def test_ends_of_a_value_beyond_any_step_are_found():
    """Near the linear limit coefficients are unbounded. The next float64 after 1e20 is 16,384 larger."""
    allowed = oracle.numerics._allowed
    far = allowed.Solved(residual=0.0, limit=1.0, solution=np.array([1e20, 3.0]), root=np.eye(2))
    assert allowed.linear_ends(far, (1.0, 0.0)).tolist() == [1e20, 1e20, 1e20]
    assert allowed.linear_ends(far, (0.0, 1.0)).tolist() == [3.0, 2.0, 4.0]
