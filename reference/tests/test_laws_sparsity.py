import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
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


def test_the_published_optima():
    for sparsity, (billions, loss) in OPTIMA.items():
        best = reference.sparsity_optimum(1e20, sparsity)
        assert (f"{best.total_parameters / 1e9:.2f}", f"{best.loss:.4f}") == (billions, loss)
        spent = 6 * float(reference.sparsity_active(best.total_parameters, sparsity)) * best.tokens
        check("laws.sparsity.budget", abs(spent / 1e20 - 1))
    found = [
        f"{float(reference.predict_loss(*at)):.4f}" for at in ((1e9, 2e10, 0), (1e10, 1e11, 0.9), (1e11, 1e12, 0.98))
    ]
    assert found == ["2.5657", "2.1498", "1.8511"]


def test_the_best_sparsity_rests_on_how_active_parameters_are_counted():
    """With N_a = N (1 - S) the loss still falls at 0.98. With 5 per cent always active the best S is 0.94."""
    sparsities = np.round(np.arange(0.80, 0.995, 0.01), 2)
    free, held = (
        [reference.sparsity_optimum(1e20, float(s), always_active=a).loss for s in sparsities] for a in (0.0, 0.05)
    )
    assert np.all(np.diff(free) < 0)
    assert sparsities[np.argmin(held)] == 0.94


@given(law=LAWS, flops=st.floats(1e18, 1e23), sparsity=st.floats(0.0, 0.97), always_active=st.sampled_from([0.0, 0.05]))
def test_optima_are_least(law, flops, sparsity, always_active):
    found = reference.sparsity_optimum(flops, sparsity, law, always_active)
    for factor in (0.9, 1.1):
        size = found.total_parameters * factor
        tokens = flops / (6 * reference.sparsity_active(size, sparsity, always_active))
        assert float(reference.predict_loss(size, tokens, sparsity, law)) > found.loss


def test_the_best_law_is_found_if_both_terms_of_the_sparsity_fall():
    size, tokens, idle = (
        v.ravel() for v in np.meshgrid([1e8, 4e8, 1.6e9, 6.4e9], [1e9, 1e10, 1e11], [0, 0.5, 0.75, 0.875, 0.96875])
    )
    law = reference.PUBLISHED._replace(lam=-0.0385, delta=-0.1666)
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(0, 1e-3, size.size)
        fit = reference.fit_sparsity(
            size, tokens, idle, reference.predict_loss(size, tokens, idle, law) * np.exp(noise), None
        )
        assert fit.rmsle < np.sqrt(np.mean(noise**2)) / np.log(10), "the planted law is no better"


def test_a_table_that_does_not_determine_the_law_says_so():
    """Two sizes and two numbers of tokens cannot separate the floor from a term with two coefficients."""
    size, tokens, idle = (v.ravel() for v in np.meshgrid([1e9, 1e10], [1e10, 1e11], [0.0, 0.5, 0.75, 0.9]))
    loss = reference.predict_loss(size, tokens, idle)
    fit = reference.fit_sparsity(size, tokens, idle, loss, None)
    assert fit.status == "not determined"
    again = reference.predict_loss(size, tokens, idle, fit.coefficients)
    assert np.all(np.abs(np.log(again / loss)) < 1e-3)


def test_a_twentieth_of_the_parameters_is_always_active():
    """100 parameters at a sparsity of 0.9: 5 are always active, and a tenth of the other 95."""
    check("laws.sparsity.budget", abs(float(reference.sparsity_active(100.0, 0.9, 0.05)) / 14.5 - 1))
