import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference.laws import sparsity as reference

OPTIMA = {
    0.0: ("0.64", "2.5885"), 0.5: ("1.07", "2.5054"), 0.75: ("1.84", "2.4368"),
    0.9: ("3.97", "2.3638"), 0.95: ("7.34", "2.3191"), 0.98: ("17.07", "2.2708"),
}  # fmt: skip
"""Billions of parameters and loss of the best model for 1e20 FLOPs."""

LAWS = st.builds(
    lambda alpha, beta, lam, delta, gamma, e: reference.PUBLISHED._replace(
        a=0.06 * 1e9**alpha, alpha=alpha, b=0.4 * 2e10**beta, beta=beta, lam=lam, delta=delta, gamma=gamma,
        d=0.6 * 1e9**gamma, e=e,
    ),
    st.floats(0.5, 0.7), st.floats(0.3, 0.5), st.floats(-0.3, -0.15), st.floats(0.1, 0.25), st.floats(0.1, 0.2),
    st.floats(0.8, 1.2),
)  # fmt: skip

STUDENT_50 = 2.008559112100761
"""Two-sided 95 % quantile of Student's t with 50 degrees of freedom."""

GRID = [v.ravel() for v in np.meshgrid([1e8, 5e8, 2e9, 1e10], [1e9, 1e10, 1e11], [0.0, 0.5, 0.75, 0.9, 0.95])]


@pytest.mark.asks("*.predict_loss", "laws.sparsity.sparsity_active", "laws.sparsity.sparsity_optimum")
def test_the_published_optima(backend):
    for sparsity, (billions, loss) in OPTIMA.items():
        for module in (backend.laws.sparsity, reference):
            best = module.sparsity_optimum(1e20, sparsity)
            assert (f"{best.total_parameters / 1e9:.2f}", f"{best.loss:.4f}") == (billions, loss)
            spent = 6 * float(module.sparsity_active(best.total_parameters, sparsity)) * best.tokens
            check("laws.sparsity.budget", abs(spent / 1e20 - 1))
    for module in (backend.laws.sparsity, reference):
        found = [
            f"{float(module.predict_loss(*at)):.4f}" for at in ((1e9, 2e10, 0), (1e10, 1e11, 0.9), (1e11, 1e12, 0.98))
        ]
        assert found == ["2.5657", "2.1498", "1.8511"]


@pytest.mark.asks("laws.sparsity.sparsity_optimum")
def test_the_best_sparsity_rests_on_how_active_parameters_are_counted(backend):
    """With N_a = N (1 - S) the loss still falls at 0.98. With 5 per cent always active the best S is 0.94."""
    for module in (backend.laws.sparsity, reference):
        sparsities = np.round(np.arange(0.80, 0.995, 0.01), 2)
        free, held = (
            [module.sparsity_optimum(1e20, float(s), always_active=a).loss for s in sparsities] for a in (0.0, 0.05)
        )
        assert np.all(np.diff(free) < 0)
        assert sparsities[np.argmin(held)] == 0.94


@pytest.mark.asks("*.predict_loss", "laws.sparsity.sparsity_active", "laws.sparsity.sparsity_optimum")
@given(law=LAWS, flops=st.floats(1e18, 1e23), sparsity=st.floats(0.0, 0.97), always_active=st.sampled_from([0.0, 0.05]))
def test_optima_agree_and_are_least(backend, law, flops, sparsity, always_active):
    """The reference scans and the twin finds a root. Both are better than their neighbours."""
    ours = backend.laws.sparsity.SparsityCoefficients(*law)
    found = backend.laws.sparsity.sparsity_optimum(flops, sparsity, ours, always_active)
    wanted = reference.sparsity_optimum(flops, sparsity, law, always_active)
    check("laws.sparsity.optimum_loss", abs(found.loss / wanted.loss - 1))
    check("laws.sparsity.optimum", abs(found.total_parameters / wanted.total_parameters - 1))
    for factor in (0.9, 1.1):
        size = found.total_parameters * factor
        tokens = flops / (6 * reference.sparsity_active(size, sparsity, always_active))
        assert float(backend.laws.sparsity.predict_loss(size, tokens, sparsity, ours)) > found.loss


@pytest.mark.asks("laws.sparsity.sparsity_prediction")
@pytest.mark.slow
def test_one_more_run_scatters_as_the_rows_do(backend):
    """The variance of a row, the sum of squares over n - 10, adds to the variance of the law."""
    module = backend.laws.sparsity
    loss = reference.predict_loss(*GRID) * np.exp(np.random.default_rng(4).normal(0, 2e-3, GRID[0].size))
    fit = module.fit_sparsity(*GRID, loss, None)
    misses = np.log(loss) - np.log(reference.predict_loss(*GRID, reference.SparsityCoefficients(*fit.coefficients)))
    wanted = STUDENT_50**2 * float(misses @ misses) / (GRID[0].size - 10)
    said = module.sparsity_prediction(fit, GRID, loss, (1e10, 1e11, 0.9))
    for law, run in zip(said.law, said.run, strict=True):
        found = np.log(run / said.value) ** 2 - np.log(law / said.value) ** 2
        check("laws.additive.end", abs(found / wanted - 1))


@pytest.mark.asks("*.predict_loss", "laws.sparsity.fit_sparsity")
@pytest.mark.slow
@pytest.mark.parametrize("huber", [None, 1e-3])
def test_fits_agree_on_a_noisy_table(backend, huber):
    noise = np.random.default_rng(3).normal(0, 2e-3, GRID[0].size)
    loss = reference.predict_loss(*GRID) * np.exp(noise)
    found, wanted = (module.fit_sparsity(*GRID, loss, huber) for module in (backend.laws.sparsity, reference))
    assert found.criterion == wanted.criterion
    check("laws.sparsity.objective", abs(found.objective / wanted.objective - 1))
    check("laws.sparsity.rmsle", abs(found.rmsle / wanted.rmsle - 1))
    losses = [reference.predict_loss(*GRID, fit.coefficients) for fit in (found, wanted)]
    error = float(np.abs(np.log(losses[0] / losses[1])).max())
    check("laws.additive.prediction", error, scale=wanted.rmsle, message="predictions of the fit")
    assert found.status == wanted.status == "e at the limit"  # the truth has a floor of 0.94
    assert np.isnan(found.covariance[9]).all() and np.isnan(wanted.covariance[9]).all()
    free = np.s_[:9, :9]
    scale = np.outer(*[np.sqrt(np.diag(wanted.covariance))[:9]] * 2)
    covariances = [fit.covariance[free] for fit in (found, wanted)]
    assert_close_bounded("laws.additive.covariance", *covariances, scale, what="covariance")


@pytest.mark.asks("laws.sparsity.fit_sparsity", "laws.sparsity.sparsity_intervals", "laws.sparsity.sparsity_prediction")
@pytest.mark.slow
def test_profiles_agree(backend):
    """In this table the floor is 0 in the best fit, although a floor of 1 is still allowed."""
    loss = reference.predict_loss(*GRID) * np.exp(np.random.default_rng(2).normal(0, 2e-3, 60))
    found, wanted = (
        module.sparsity_prediction(module.fit_sparsity(*GRID, loss, None), GRID, loss, (3e10, 3e11, 0.97))
        for module in (backend.laws.sparsity, reference)
    )
    length = wanted.law[1] - wanted.law[0]
    for ours, theirs in zip((*found.law, *found.run), (*wanted.law, *wanted.run), strict=True):
        check("laws.additive.end", abs(ours - theirs), length, message=f"{found} {wanted}")
    ranges = {each.name: each for each in backend.laws.sparsity.sparsity_intervals(
        backend.laws.sparsity.fit_sparsity(*GRID, loss, None), GRID, loss)}  # fmt: skip
    assert (ranges["e"].low, ranges["e"].words) == (0.0, "bounded from above only") and ranges["e"].high > 1


@pytest.mark.asks("*.predict_loss", "laws.sparsity.fit_sparsity")
def test_a_table_that_does_not_determine_the_law_says_so(backend):
    """Two sizes and two numbers of tokens cannot separate the floor from a term with two coefficients."""
    size, tokens, idle = (v.ravel() for v in np.meshgrid([1e9, 1e10], [1e10, 1e11], [0.0, 0.5, 0.75, 0.9]))
    loss = reference.predict_loss(size, tokens, idle)
    for module in (backend.laws.sparsity, reference):
        fit = module.fit_sparsity(size, tokens, idle, loss, None)
        assert fit.status == "not determined"
        again = module.predict_loss(size, tokens, idle, fit.coefficients)
        assert np.all(np.abs(np.log(again / loss)) < 1e-3)
