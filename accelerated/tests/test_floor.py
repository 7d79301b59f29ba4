"""The form that `fit`, `predict` and `plan` take, on tables with a planted law with and without one."""

import numpy as np
import pytest

from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.encoding import plain
from routelaws.accelerated.results.floor import left_out_errors
from routelaws.accelerated.results.prediction import _outside
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tests.small_tables import frame_of, write
from routelaws.accelerated.tests.test_plan import log_loss, table
from routelaws.reference.laws.floored import (
    BoundedFloorCoefficients,
    floored_cutoff,
    floored_dense_equivalent,
    predict_floored,
)

FLOORED = BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 2.5, 300.0, 1.5)
FAR = {"n": 1e12, "experts": 64.0}


def fits_of(law, folder):
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9, 5e9], [1.0, 2.0, 8.0, 32.0, 128.0, 512.0]))
    noise = np.exp(np.random.default_rng(4).normal(0, 1e-3, size.size))
    return read(write(frame_of(size, experts, predict_floored(size, experts, law) * noise), folder)).fit()


def test_a_planted_floor_is_found_and_preferred(tmp_path):
    fits = fits_of(FLOORED, tmp_path)
    [fit] = fits
    assert fit.floor_helps and "routed-bounded-floor predicts left-out sizes better than routed-bounded" in repr(fits)
    without, with_floor = fit.forms
    assert plain(fit.to_dict()["with_floor"])["forms"][1]["law"] == with_floor.law == "routed-bounded-floor"
    assert with_floor.L0.low < 1.5 < with_floor.L0.high and without.L0 is None
    assert with_floor.size_out < without.size_out / 3 and with_floor.aicc < without.aicc - 50
    assert with_floor.experts_out < without.experts_out and abs(with_floor.largest.miss) < without.largest.miss
    assert [gain.N for gain in with_floor.gains] == [1e9, 1e10, 1e11] and with_floor.gains[0].E == 64
    for gain, paper in zip(with_floor.gains, without.gains, strict=True):
        true = predict_floored(gain.N, np.array([1.0, 64.0]), FLOORED)
        assert gain.nats == pytest.approx(true[0] - true[1], rel=0.05)
        assert gain.dense.low < floored_dense_equivalent(gain.N, 64.0, FLOORED) < gain.dense.high
        assert paper.dense.value < gain.dense.value / 1.2  # the law of the paper promises too little
    assert with_floor.cutoff.low < floored_cutoff(FLOORED) < with_floor.cutoff.high
    truth, forced, better = float(predict_floored(1e12, 64.0, FLOORED)), fits.predict(**FAR), fits.better_form()
    [chosen] = better.predict(**FAR).predictions
    assert better.law.name == chosen.fit.law.name == "routed-bounded-floor"
    assert chosen.law.low < truth < chosen.law.high
    [paper] = forced.predictions
    assert paper.run.high < truth  # without a floor, the loss is too low
    assert (paper.other.value, chosen.other.value) == (chosen.value, paper.value)
    printed = " ".join(repr(better.predict(**FAR)).split())
    below = 100 * (1 - paper.value / chosen.law.low)
    assert f"routed-bounded gives Top-K {paper.value:.4f}" in printed
    assert below > 1 and f"; {below:.1f} % below the interval in the table); --law forces one form" in printed
    inside = chosen._replace(other=chosen.other._replace(value=truth))
    assert _outside(inside) == ""


def test_without_a_floor_the_law_of_the_paper_is_kept(tmp_path):
    fits = fits_of(FLOORED._replace(a=-0.08, d=1.1, L0=0.0), tmp_path)
    [fit] = fits
    assert not fit.floor_helps and fits.better_form() is fits
    assert "routed-bounded predicts left-out sizes as well as routed-bounded-floor" in repr(fits)
    assert fit.forms[1].L0.low == 0


def test_three_sizes_cannot_test_a_floor(tmp_path):
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1.0, 2.0, 8.0, 32.0]))
    fits = read(write(frame_of(size, experts, predict_floored(size, experts, FLOORED)), tmp_path)).fit()
    assert fits[0].floored is None and left_out_errors(fits) is None and fits.better_form() is fits
    assert "predicts left-out" not in repr(fits)


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


def test_the_smallest_size_does_not_choose_the_form(tmp_path):
    """The smallest models deviate from the planted law. With them, the law without a floor has the smaller error."""
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9, 5e9], [1.0, 2.0, 8.0, 32.0, 128.0, 512.0]))
    loss = predict_floored(size, experts, FLOORED) * np.where(size == 1e7, 0.97, 1.0)
    [fit] = read(write(frame_of(size, experts, loss), tmp_path)).fit()
    assert fit.held_out_size.rmsle < fit.floored.held_out_size.rmsle and fit.floor_helps


def test_runs_far_from_the_law_do_not_choose_the_form(tmp_path):
    """With three wrong runs, the law without a floor has the smaller error of left-out sizes."""
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9, 5e9], [1.0, 4.0, 16.0, 64.0]))
    log_rest = 1.6 - 0.18 * np.log10(size) - 0.08 * np.log10(experts)
    loss = (1.5 + 10**log_rest) * np.exp(np.random.default_rng(4).normal(0, 1e-3, size.size))
    wrong = [5, 14, 18]
    loss[wrong] *= 1.35, 0.8, 1.3
    fits = read(write(frame_of(size, experts, loss), tmp_path)).fit("separable")
    [fit] = fits
    assert np.flatnonzero(fit.far).tolist() == wrong
    above = size > size.min()
    errors = [np.mean(form.held_out_size.errors[above] ** 2) for form in (fit, fit.floored)]
    assert errors[0] < errors[1] and fit.floor_helps
    assert "without the smallest, and without runs far from the law)" in " ".join(repr(fits).split())


def test_a_fit_with_too_few_runs_near_the_law_has_no_better_form(tmp_path):
    """The dense runs are in bits. Without these runs there are three numbers of experts, too few for a fit."""
    size, experts = (v.ravel() for v in np.meshgrid([2e7, 6e7, 2e8, 6e8], [1.0, 4.0, 16.0, 64.0]))
    loss = 12 * size**-0.08 * (1 + experts) ** -0.05 * np.exp(np.random.default_rng(1).normal(0, 2e-3, size.size))
    fits = read(write(frame_of(size, experts, loss * np.where(experts == 1, 1 / np.log(2), 1)), tmp_path)).fit()
    text = " ".join(repr(fits).split())
    assert fits[0].far.any() and "4 runs are far from the law" in text and "predicts left-out sizes" not in text
