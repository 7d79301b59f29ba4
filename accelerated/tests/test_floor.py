"""What `fit`, `predict` and `plan` say of a floor, on tables with a planted law with and without one."""

import numpy as np
import pytest

from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.encoding import plain
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tests.small_tables import frame_of, write
from routelaws.accelerated.tests.test_plan import log_loss, table
from routelaws.reference.laws.floored import BoundedFloorCoefficients, predict_floored

FLOORED = BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 2.5, 300.0, 1.5)
FAR = {"n": 1e12, "experts": 64.0}


def fit_of(law, folder):
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9, 5e9], [1.0, 2.0, 8.0, 32.0, 128.0, 512.0]))
    noise = np.exp(np.random.default_rng(4).normal(0, 1e-3, size.size))
    [fit] = read(write(frame_of(size, experts, predict_floored(size, experts, law) * noise), folder)).fit()
    return fit


def test_a_planted_floor_is_found_and_preferred_beyond_the_sizes(tmp_path):
    fit = fit_of(FLOORED, tmp_path)
    assert fit.floor_helps and "It predicts left-out sizes better" in repr(fit)
    said = plain(fit.to_dict()["with_floor"])
    assert said["better"] and said["L0"]["low"] < 1.5 < said["L0"]["high"] and said["L0"]["determined"]
    assert said["leave_one_size_out"] < fit.held_out_size.rmsle / 3
    truth, far = float(predict_floored(1e12, 64.0, FLOORED)), fit.predict(**FAR)
    assert far.run.high < truth  # without a floor, the loss is too low
    beyond = fit.floored.predict(**FAR)
    assert beyond.law.low < truth < beyond.law.high and beyond.by_size.low < truth < beyond.by_size.high
    [sentence] = [each for each in far.cautions if "with a floor" in each]
    assert "--law routed-bounded-floor" in sentence and f"{beyond.value:.4g}" in sentence
    assert not any("with a floor" in each for each in fit.predict(n=3e8, experts=64.0).cautions)


def test_without_a_floor_the_law_of_the_paper_is_kept(tmp_path):
    fit = fit_of(FLOORED._replace(a=-0.08, d=1.1, L0=0.0), tmp_path)
    assert not fit.floor_helps and "does not predict left-out sizes better" in repr(fit)
    assert plain(fit.to_dict()["with_floor"])["L0"]["low"] == 0
    assert not any("with a floor" in each for each in fit.predict(**FAR).cautions)


def test_a_plan_takes_dense_and_routed_models_from_one_law_with_a_floor(tmp_path):
    """The law `dense` has no floor, so far beyond the runs it would win against every routed model."""
    frame, law = table(), "separable-floor"
    columns = frame["router_type"], frame["dense_parameter_count"], frame["num_experts"]
    frame["loss_validation"] = [1.5 + 10 ** (3 * log_loss(*row) - 2.6) for row in zip(*columns, strict=True)]
    frame["loss_validation"] *= np.exp(np.random.default_rng(2).normal(0, 1e-4, len(frame)))
    frame.to_csv(tmp_path / "runs.csv", index=False)
    plan = read(tmp_path / "runs.csv").plan(Budget(flops=1e22), law=law, resamples=0, published=False)
    [ranking] = plan.rankings
    fits = {fit.name: fit for fit in ranking.fits}
    dense = [line for line in ranking.lines if line.model.num_experts == 1]
    assert {line.model.law for line in ranking.lines} == {law} and len(dense) == len(fits) == 2
    for line in dense:
        found = fits[line.model.fit.name].predict(n=line.dense_parameters, experts=1.0)
        assert line.choice.loss == pytest.approx(found.value) and line.choice.loss > 1.5
    assert ranking.lines[0].model.num_experts > 1
