"""The baselines for the direct law of accuracy: two stages through a loss, and a broken power law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import derivatives
from routelaws.reference.laws import two_stage as reference
from routelaws.reference.tests.test_laws_downstream import SEEDS, SIZES, TOKENS

FLOPS = np.geomspace(1e18, 1e21, 14)
LOGISTICS = st.builds(
    reference.LogisticCoefficients,
    st.floats(0.4, 0.75),
    st.floats(-4.0, -1.5),
    st.floats(3.0, 3.4),
    st.floats(0.0, 0.25),
)


def test_the_chained_error_is_that_of_both_stages():
    """The chained error uses the losses that stage 1 predicts. The other error uses measured losses."""
    random = np.random.default_rng(0)
    loss = 3.2 * (FLOPS / 3e19) ** -0.05 * np.exp(0.02 * random.normal(size=14))
    accuracy = 1.5 - 0.3 * loss
    fit = reference.fit_two_stage(FLOPS, loss, accuracy, "linear")
    root = float(np.sqrt(np.mean((reference.predict_two_stage(fit, FLOPS) - accuracy) ** 2)))
    assert root > 0.01
    check("laws.two_stage.exact", fit.rmse)
    check("laws.two_stage.rmse", abs(fit.chained_rmse / root - 1))


@pytest.mark.slow
@settings(max_examples=4)
@given(second=LOGISTICS, alpha=st.floats(0.25, 0.45), beta=st.floats(0.2, 0.4), floor=st.floats(1.5, 2.2), seed=SEEDS)
def test_two_stages_from_parameters_and_tokens(second, alpha, beta, floor, seed):
    first = reference.LossCoefficients(0.5 * 5e8**alpha, alpha, 0.6 * 2e10**beta, beta, floor)
    loss = reference.predict_first(first, SIZES, TOKENS)
    accuracy = reference.predict_second(second, loss)
    truth = reference.predict_second(second, reference.predict_first(first, 1e10, 1e12))
    fit = reference.fit_two_stage_ratio(SIZES, TOKENS, loss, accuracy)
    check("laws.two_stage.first", float(np.abs(np.array(fit.stage_1) / first - 1).max()))
    assert_close_bounded("laws.two_stage.exact", reference.predict_two_stage(fit, 1e10, 1e12), truth, what="far")


def test_the_search_has_the_derivatives_of_the_logistic():
    loss, theta = np.array([2.5, 3.0, 3.6]), np.array([0.6, -3.0, 3.1, 0.2])
    wanted = derivatives(lambda theta: reference._model(loss, theta)[0], theta)
    check("laws.leverage.covariance", float(np.abs(reference._model(loss, theta)[1] - wanted).max()))
