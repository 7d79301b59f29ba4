"""What the direct law of accuracy is compared with: two stages through a loss, and a broken power law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference.laws import broken as reference_broken
from routelaws.reference.laws import two_stage as reference

FLOPS = np.geomspace(1e18, 1e21, 14)
SIZES, TOKENS = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 1e10, 5e10, 2e11]))
SEEDS = st.integers(0, 99)
NOISES = st.sampled_from([0.0, 0.01])
LOGISTICS = st.builds(
    reference.LogisticCoefficients,
    st.floats(0.4, 0.75),
    st.floats(-4.0, -1.5),
    st.floats(3.0, 3.4),
    st.floats(0.0, 0.25),
)
BREAKS = st.builds(
    lambda a, level, c0, d1, f1, c1: reference_broken.BrokenCoefficients(a, -level * 1e19**c0, c0, d1, f1, c1),
    st.floats(0.7, 0.95), st.floats(0.2, 0.4), st.floats(0.1, 0.25), st.sampled_from([1e19, 1e20]), st.floats(0.3, 1.0),
    st.floats(0.05, 0.3),
)  # fmt: skip


def mirrored(module, record):
    return getattr(module, type(record).__name__)(*record)


@pytest.mark.asks("laws.two_stage.fit_two_stage", "laws.two_stage.predict_second", "laws.two_stage.predict_two_stage")
@pytest.mark.parametrize("link", ["linear", "logistic"])
@settings(max_examples=4)
@given(second=LOGISTICS, slope=st.floats(0.03, 0.06), noise=NOISES, seed=SEEDS)
def test_two_stages_from_compute(backend, second, slope, link, noise, seed):
    """Exact tables give their curve back, far from the rows too; noisy ones the same fit in both twins."""
    random = np.random.default_rng(seed)
    loss = 3.2 * (FLOPS / 3e19) ** -slope
    second = second if link == "logistic" else reference.LinearCoefficients(-0.3, 1.5)
    exact = reference.predict_second(second, loss)
    accuracy, module = exact + noise * random.normal(size=14), backend.laws.two_stage
    assert_close_bounded("laws.two_stage.value", module.predict_second(mirrored(module, second), loss), exact, what="Q")
    found, wanted = (m.fit_two_stage(FLOPS, loss, accuracy, link) for m in (module, reference))
    predicted = [m.predict_two_stage(f, [1e17, 1e22]) for m, f in ((module, found), (reference, wanted))]
    assert found.rows == 14 and type(found.stage_2).__name__ == type(second).__name__
    if noise:
        check("laws.two_stage.rmse", abs(found.rmse / wanted.rmse - 1))
        check("laws.two_stage.rmse", abs(found.chained_rmse / wanted.chained_rmse - 1))
        assert_close_bounded("laws.two_stage.agree", *predicted, what="predict_two_stage")
        return
    truth = reference.predict_second(second, 3.2 * (np.array([1e17, 1e22]) / 3e19) ** -slope)
    for values in predicted:
        assert_close_bounded("laws.two_stage.exact", values, truth, what="predict_two_stage")


@pytest.mark.asks("laws.two_stage.fit_two_stage", "laws.two_stage.predict_two_stage")
def test_the_chained_error_is_that_of_both_stages(backend):
    """At the losses that the first stage predicts, where the other error is at those that were measured."""
    random = np.random.default_rng(0)
    loss = 3.2 * (FLOPS / 3e19) ** -0.05 * np.exp(0.02 * random.normal(size=14))
    accuracy = 1.5 - 0.3 * loss
    for module in (backend.laws.two_stage, reference):
        fit = module.fit_two_stage(FLOPS, loss, accuracy, "linear")
        root = float(np.sqrt(np.mean((module.predict_two_stage(fit, FLOPS) - accuracy) ** 2)))
        assert root > 0.01
        check("laws.two_stage.exact", fit.rmse)
        check("laws.two_stage.rmse", abs(fit.chained_rmse / root - 1))


@pytest.mark.asks(
    "laws.two_stage.fit_two_stage_ratio",
    "laws.two_stage.predict_first",
    "laws.two_stage.predict_second",
    "laws.two_stage.predict_two_stage",
)
@pytest.mark.slow
@settings(max_examples=4)
@given(second=LOGISTICS, alpha=st.floats(0.25, 0.45), beta=st.floats(0.2, 0.4), floor=st.floats(1.5, 2.2), seed=SEEDS)
def test_two_stages_from_parameters_and_tokens(backend, second, alpha, beta, floor, seed):
    first = reference.LossCoefficients(0.5 * 5e8**alpha, alpha, 0.6 * 2e10**beta, beta, floor)
    loss = reference.predict_first(first, SIZES, TOKENS)
    accuracy = reference.predict_second(second, loss)
    truth = reference.predict_second(second, reference.predict_first(first, 1e10, 1e12))
    for module in (backend.laws.two_stage, reference):
        again = module.predict_first(mirrored(module, first), SIZES, TOKENS)
        assert_close_bounded("laws.two_stage.value", again, loss, loss, what="predict_first")
        fit = module.fit_two_stage_ratio(SIZES, TOKENS, loss, accuracy)
        check("laws.two_stage.first", float(np.abs(np.array(fit.stage_1) / first - 1).max()))
        assert_close_bounded("laws.two_stage.exact", module.predict_two_stage(fit, 1e10, 1e12), truth, what="far")


@pytest.mark.asks("laws.broken.predict_broken")
@given(law=BREAKS)
def test_values_of_the_broken_law(backend, law):
    ours = mirrored(backend.laws.broken, law)
    found, wanted = backend.laws.broken.predict_broken(FLOPS, ours), reference_broken.predict_broken(FLOPS, law)
    assert_close_bounded("laws.broken.value", found, wanted, what="predict_broken")
    # Far from the break, on either side, the curve is the power law that its docstring names.
    below, above = (reference_broken.predict_broken(law.d1 * f, law) - law.a for f in (1e-9, 1e9))
    check("laws.broken.limit", abs(float(below) / (law.b * (law.d1 * 1e-9) ** -law.c0) - 1))
    wanted = law.b * (law.d1 * 1e9) ** -law.c0 * (1e9) ** -law.c1
    check("laws.broken.limit", abs(float(above) / wanted - 1))


@pytest.mark.asks("laws.broken.predict_broken", "laws.broken.fit_broken")
@pytest.mark.slow
@settings(max_examples=6)
@given(law=BREAKS, huber=st.sampled_from([None, 1e-3]))
def test_the_broken_law_follows_exact_tables(backend, law, huber):
    """Not its coefficients, which trade against each other, but the rows; and the twins' predictions beyond these."""
    accuracy = reference_broken.predict_broken(FLOPS, law)
    for module in (backend.laws.broken, reference_broken):
        fit = module.fit_broken(FLOPS, accuracy, huber)
        assert fit.rows == 14
        check("laws.broken.exact", fit.rmse)
        beyond = float(module.predict_broken(3e21, fit.coefficients) - reference_broken.predict_broken(3e21, law))
        check("laws.broken.beyond", abs(beyond))


BAD = {
    "link": ((FLOPS, FLOPS**-0.05, np.full(14, 0.5), "cubic"), "link 'cubic' is not known; allowed: linear, logistic"),
    "lengths": ((FLOPS, FLOPS**-0.05, np.full(13, 0.5)), r"loss and accuracy have shapes \(14,\) and \(13,\)"),
    "few": ((FLOPS[:4], FLOPS[:4] ** -0.05, np.full(4, 0.5)), "4 rows; the logistic stage needs at least 5"),
}


@pytest.mark.asks("laws.broken.fit_broken", "laws.two_stage.fit_two_stage", "laws.two_stage.fit_two_stage_ratio")
@pytest.mark.twin
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fitted_is_named(backend, case):
    arguments, message = BAD[case]
    for module, broken in ((backend.laws.two_stage, backend.laws.broken), (reference, reference_broken)):
        with pytest.raises(ValueError, match=message):
            module.fit_two_stage(*arguments)
        with pytest.raises(ValueError, match="at least 6 rows"):
            module.fit_two_stage_ratio(SIZES[:5], TOKENS[:5], SIZES[:5], np.full(5, 0.5))
        with pytest.raises(ValueError, match="one number of parameters or of tokens; needed: two of each"):
            module.fit_two_stage_ratio(SIZES, np.full(16, 1e10), SIZES, np.full(16, 0.5))
        with pytest.raises(ValueError, match="7 rows of 4 budgets"):
            broken.fit_broken(FLOPS[:6], np.full(6, 0.5))
