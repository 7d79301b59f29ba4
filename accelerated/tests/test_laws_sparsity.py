import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference.laws import sparsity as reference
from routelaws.reference.laws.catalogue import LAWS
from routelaws.reference.laws.confidence.robust_intervals import METHODS, row_errors

STUDENT_50 = 2.008559112100761
"""Two-sided 95 % quantile of Student's t with 50 degrees of freedom."""

GRID = [v.ravel() for v in np.meshgrid([1e8, 5e8, 2e9, 1e10], [1e9, 1e10, 1e11], [0.0, 0.5, 0.75, 0.9, 0.95])]

AXES = [1e8, 4e8, 1.6e9, 6.4e9], [1e9, 1e10, 1e11], [0.0, 0.5, 0.75, 0.875, 0.96875]
PLANTED = {
    "published": reference.PUBLISHED,
    "a weak third term": reference.SparsityCoefficients(500.0, 0.35, 1500.0, 0.35, 0.2, -0.5, 5.0, 0.05, 0.12, 1.4),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_fit_is_as_good_as_the_planted_law_and_has_intervals_with_dense_runs(planted):
    columns = size, tokens, idle = [v.ravel() for v in np.meshgrid(*AXES, indexing="ij")]
    law = reference.predict_loss(size, tokens, idle, PLANTED[planted])
    loss = law * np.exp(np.random.default_rng(0).normal(0, 1e-3, size.size))
    fit = fast.sparsity.fit_sparsity(size, tokens, idle, loss, None)
    assert fit.rmsle < np.sqrt(np.mean(np.log10(law / loss) ** 2))
    with np.errstate(divide="raise"):  # the sparsity of dense runs has no logarithm
        assert row_errors(LAWS["sparsity"], fit, columns, loss, size).method in METHODS


@pytest.mark.slow
def test_one_more_run_scatters_as_the_rows_do():
    """The variance of a row, the sum of squares over n - 10, adds to the variance of the law."""
    module = fast.sparsity
    loss = reference.predict_loss(*GRID) * np.exp(np.random.default_rng(4).normal(0, 2e-3, GRID[0].size))
    fit = module.fit_sparsity(*GRID, loss, None)
    misses = np.log(loss) - np.log(reference.predict_loss(*GRID, reference.SparsityCoefficients(*fit.coefficients)))
    wanted = STUDENT_50**2 * float(misses @ misses) / (GRID[0].size - 10)
    [said] = module.sparsity_predictions(fit, GRID, loss, [(1e10, 1e11, 0.9)])
    for law, run in zip(said.law, said.run, strict=True):
        found = np.log(run / said.value) ** 2 - np.log(law / said.value) ** 2
        check("laws.additive.end", abs(found / wanted - 1))


@pytest.mark.slow
@pytest.mark.parametrize("huber", [None, 1e-3])
def test_fits_agree_on_a_noisy_table(huber):
    noise = np.random.default_rng(3).normal(0, 2e-3, GRID[0].size)
    loss = reference.predict_loss(*GRID) * np.exp(noise)
    found, wanted = (module.fit_sparsity(*GRID, loss, huber) for module in (fast.sparsity, reference))
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


@pytest.mark.slow
def test_profiles_agree():
    """In this table the floor is 0 in the best fit, although a floor of 1 is still allowed."""
    loss = reference.predict_loss(*GRID) * np.exp(np.random.default_rng(2).normal(0, 2e-3, 60))
    found, wanted = (
        module.sparsity_predictions(module.fit_sparsity(*GRID, loss, None), GRID, loss, [(3e10, 3e11, 0.97)])[0]
        for module in (fast.sparsity, reference)
    )
    length = wanted.law[1] - wanted.law[0]
    for ours, theirs in zip((*found.law, *found.run), (*wanted.law, *wanted.run), strict=True):
        check("laws.additive.end", abs(ours - theirs), length, message=f"{found} {wanted}")
    ranges = {each.name: each for each in fast.sparsity.sparsity_intervals(
        fast.sparsity.fit_sparsity(*GRID, loss, None), GRID, loss)}  # fmt: skip
    assert (ranges["e"].low, ranges["e"].words) == (0.0, "bounded from above only") and ranges["e"].high > 1
