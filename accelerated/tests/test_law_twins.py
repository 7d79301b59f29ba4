"""Functions of `accelerated.laws` that differ from the reference: choices and next runs."""

import importlib
import math
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference import laws as reference
from routelaws.reference.laws import catalogue, downstream
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import EXPERTS, LAW, SIZES, near_linear
from routelaws.reference.tests.test_laws_downstream import SIZES as PARAMETERS
from routelaws.reference.tests.test_laws_downstream import TOKENS
from routelaws.reference.tests.test_laws_next_run import EXPERTS as COUNTS
from routelaws.reference.tests.test_laws_next_run import SIZE, losses

Floored = namedtuple("Floored", "b beta c")


def test_the_twins_have_the_same_laws():
    ours = fast.catalogue.LAWS
    assert tuple(ours) == tuple(catalogue.LAWS)
    for name, law in ours.items():
        for field, theirs in catalogue.LAWS[name]._asdict().items():
            own = getattr(law, field)
            assert callable(own) if callable(theirs) else own == theirs, f"{name}: {field}"
    assert fast.utilisation.FLOOR == importlib.import_module("routelaws.reference.laws.utilisation").FLOOR


@pytest.mark.parametrize("name", ["dense", "separable", "routed-bounded"])
def test_a_row_drawn_three_times_is_three_rows(name):
    law = fast.catalogue.LAWS[name]
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:5]))
    times = np.random.default_rng(2).integers(0, 4, size.size)
    loss = predict_loss(size, experts, LAW) * 1.01**times
    columns = [{"dense_parameters": size, "num_experts": experts}[column] for column in law.columns]
    at = [np.array([place]) for place in (2e9, 30.0)][: len(columns)]
    fit = law.fit(*(np.repeat(column, times) for column in columns), np.repeat(loss, times))
    [[found]] = fast.choosing.resampled_losses(law, columns, loss, times[None, :].astype(float), at)
    check("laws.choosing.resampled", abs(math.log10(found / law.predict(fit, *at)[0])), message=name)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
def test_resampled_losses_are_those_of_the_drawn_rows(seed):
    random = np.random.default_rng(seed)
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:5]))
    loss = predict_loss(size, experts, LAW)
    loss = loss * 10 ** random.normal(0, 2e-3, size.size)
    weights = reference.bootstrap_weights(random.random((4, size.size)))
    weights[0] = np.where(size == SIZES[0], 3.0, 0.0)  # one size does not determine the law
    at, name = [np.array([1e8, 2e9]), np.array([4.0, 30.0])], "routed-bounded"
    found = [
        laws.choosing.resampled_losses(laws.catalogue.LAWS[name], [size, experts], loss, weights, at)
        for laws in (fast, reference)
    ]
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(found[1]))
    assert np.isnan(found[0][0]).all()
    known = np.isfinite(found[0])
    assume(known.any())
    check("laws.choosing.resampled", float(np.abs(np.log10(found[0][known] / found[1][known])).max()))


@pytest.mark.slow
def test_the_twins_agree_on_the_bounded_law():
    (ours,), (theirs,) = (
        laws.next_run.next_runs(
            laws.catalogue.LAWS["routed-bounded"], [SIZE, COUNTS], losses(0), [(2e9, 256.0)],
            laws.next_run.Asked("prediction", (2e9, 64.0)),
        )
        for laws in (fast, reference)
    )  # fmt: skip
    check("laws.next_run.width", abs(ours.width / theirs.width - 1))


def test_predictions_of_a_resample_in_the_linear_limit():
    """With E_start and E_max unknown, ψ is (E - 1)/511: half of the gain at E = 256.5."""
    size, experts, loss = near_linear(1e-5)
    fits = fast.fitting.fit_weighted(size, experts, loss, np.ones((1, size.size)))
    [[first, middle, last]] = np.log10(
        fast.fitting.predict_curves(fits, np.full(3, 1e8), np.array([1.0, 256.5, 512.0]))
    )
    assert fast.fitting.STATUSES[fits.status[0]] == "linear limit"
    check("laws.fitting.same_law", abs(first + last - 2 * middle))
    wanted = math.log10(fast.fitting.predict_curve(fast.fitting.fit_routed(size, experts, loss).curve, 1e8, 512.0))
    check("laws.fitting.prediction", abs(last - wanted))


@pytest.mark.parametrize("delta", [pytest.param(None, marks=pytest.mark.slow), 5e-3])
def test_intervals_of_a_power_and_a_floor_agree(delta):
    """In the second table ln L falls ever faster, so the best floor is 0."""
    tokens = np.geomspace(1e9, 1e12, 8)
    noisy = 30 * tokens**-0.1 * np.exp(np.random.default_rng(3).normal(0, 1e-2, 8))
    for loss in (noisy, np.exp(1 - np.log(tokens) ** 2 / 1e3)):
        found = []
        for laws in (fast, reference):
            law = laws.additive.AdditiveLaw("own", Floored, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
            found.append([each[1:4] for each in laws.additive.additive_intervals(law, [tokens], loss, delta, 0.9)])
        for ours, theirs in zip(*found, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                check("laws.additive.end", 0.0 if one == other else abs(one - other), max(abs(other), 1.0))
    assert found[0][2][:2] == (0.0, 0.0)


def test_fits_of_accuracies_agree():
    """One of 16 rows is wrong by 0.2."""
    law = downstream.RatioCoefficients(200.0, 0.3, 1000.0, 0.35)
    accuracy = downstream.predict_accuracy(law, PARAMETERS, TOKENS) - 0.2 * (np.arange(16) == 5)
    flops, loss = 6 * PARAMETERS * TOKENS, 400 / PARAMETERS**0.34 + 2000 / TOKENS**0.37
    found = [
        (
            laws.downstream_sums.fit_ratio(PARAMETERS, TOKENS, accuracy, huber=1e-3).objective,
            laws.broken.fit_broken(flops, accuracy).objective,
            laws.two_stage.fit_two_stage(flops, loss, accuracy).rmse ** 2,
        )
        for laws in (fast, reference)
    ]
    for ours, theirs in zip(*found, strict=True):
        check("laws.downstream.objective", abs(ours / theirs - 1))
