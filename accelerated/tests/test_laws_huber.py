"""The fit by Huber's criterion: the same minimum in both twins, proof of optimality, and robustness."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import fitting as reference
from routelaws.reference.laws import routed
from routelaws.reference.tests.strategies_additive import huber_sum, huber_terms
from routelaws.reference.tests.strategies_laws import EXPERTS, LAW, SIZES, Runs, grid, noisy_tables, released_runs

from .test_laws_fitting import check_covariance

SHARES = st.sampled_from([0.1, 0.3, 1.0, 30.0])
"""delta divided by the rmsle of the least-squares fit: from nearly all rows beyond delta to none."""

RELEASED = {
    "S-Base": (58, 1.2597242588e-04),
    "RL-R": (59, 1.3223891715e-04),
    "Hash": (56, 1.1269309466e-04),
}
"""Rows, and the least sum of Huber terms at delta = 1e-3. Both twins find it, and so does a scan of 96 x 96 shapes with
searches from its 60 lowest points."""


def delta_of(runs: Runs, share: float) -> float:
    return share * fast.fitting.fit_routed(*runs).rmsle


def residuals(fit, runs: Runs, module) -> np.ndarray:
    return np.log10(runs.loss) - np.log10(module.predict_curve(fit.curve, runs.dense_parameters, runs.num_experts))


def design(runs: Runs, E_start: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Return the four orthonormal columns of equation (1) at each E_start and E_max = E_start (1 + beyond).

    The column is log Ê - log E_start, computed as one logarithm. Their difference would lose four digits where beyond
    is 1e-4.
    """
    log_size = np.log10(runs.dense_parameters / 1e8)
    extra, over = runs.num_experts - 1, 1 / beyond[:, None]
    log_experts = np.log1p(extra / (over * extra + E_start[:, None] * (1 + over) ** 2))
    log_experts -= log_experts.mean(axis=1, keepdims=True)
    columns = [np.ones_like(log_experts), 0 * log_experts + log_size, log_experts, log_size * log_experts]
    return np.linalg.qr(np.stack(columns, axis=-1))[0]


def reweighted(runs: Runs, delta: float, unit: np.ndarray) -> np.ndarray:
    """Return a sum of Huber terms that the law attains at each design [pairs, n, 4], by reweighted least squares."""
    target, residual = np.log10(runs.loss), np.zeros(unit.shape[:2])
    for _ in range(60):
        weighted = unit * np.minimum(1.0, delta / np.maximum(np.abs(residual), delta))[..., None]
        normal = np.swapaxes(weighted, 1, 2) @ unit
        solution = np.linalg.solve(normal, np.swapaxes(weighted, 1, 2) @ target[:, None])
        residual = target - (unit @ solution)[..., 0]
    return huber_terms(residual, delta).sum(axis=1)


def lower_bound(fit, runs: Runs, delta: float, module) -> float:
    """Return a lower bound on every sum of Huber terms at the fit's shape, by duality.

    For any u with |u| <= delta that is orthogonal to the columns, and any residual r of target y, Huber's term is at
    least u r - u²/2, and u · r = u · y. For the best fit, the best u is the residual clipped at delta.
    """
    extra, log_size = runs.num_experts - 1, np.log10(runs.dense_parameters / 1e8)
    rise, bend = fit.curve.rise, fit.curve.bend
    psi = extra / extra.max() if rise == 0 else np.log1p(rise * extra / (1 + bend * extra))
    psi /= psi.max()
    unit = np.linalg.qr(np.stack([np.ones_like(psi), log_size, psi, psi * log_size], axis=1))[0]
    dual = np.clip(residuals(fit, runs, module), -delta, delta)
    dual -= unit @ (unit.T @ dual)
    dual *= min(1.0, delta / np.abs(dual).max())
    return float(dual @ np.log10(runs.loss) - dual @ dual / 2)


def check_same(found, wanted, runs: Runs):
    check("laws.huber.objective", abs(found.objective / wanted.objective - 1), message=wanted.criterion)
    assert (found.status, found.rows, found.criterion) == (wanted.status, wanted.rows, wanted.criterion)
    error = np.abs(residuals(found, runs, fast.fitting) - residuals(wanted, runs, reference)).max()
    check("laws.huber.prediction", float(error), scale=wanted.rmsle)
    if wanted.status == "linear limit":
        assert np.all(np.isnan(found.covariance)) and np.all(np.isnan(wanted.covariance))
        return
    check_covariance("laws.huber.covariance", found, wanted)


# Use a quarter of the examples, because the reference takes seconds for each.
@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 4)
@given(runs=noisy_tables(), share=SHARES)
def test_noisy_tables_agree_with_the_reference(runs, share):
    delta = delta_of(runs, share)
    found, wanted = fast.fitting.fit_routed(*runs, delta), reference.fit_routed(*runs, delta)
    check_same(found, wanted, runs)
    for fit, module in ((found, fast.fitting), (wanted, reference)):
        residual = residuals(fit, runs, module)
        check("laws.huber.sum", abs(huber_sum(residual, delta) / fit.objective - 1))
        check("laws.huber.rmsle", abs(fit.rmsle / math.sqrt(float(np.mean(residual**2))) - 1))
        check("laws.huber.certificate", max(fit.objective / lower_bound(fit, runs, delta, module) - 1, 0.0))


@given(runs=noisy_tables(), share=SHARES)
def test_no_point_of_a_dense_scan_is_better(runs, share):
    delta = delta_of(runs, share)
    found = fast.fitting.fit_routed(*runs, delta)
    assert found.criterion == f"sum of Huber terms of log10 losses, delta = {delta:g}"
    step = np.linspace(0, 1, 25)
    start, beyond = (v.ravel() for v in np.meshgrid(10 ** (3 * step), np.append(10 ** (8 * step - 3), np.inf)))
    if math.isfinite(found.coefficients.E_start):  # and around the optimum
        near = 10 ** (np.linspace(-0.05, 0.05, 9))
        close, far = (v.ravel() for v in np.meshgrid(near, near))
        start = np.append(start, np.maximum(found.coefficients.E_start * close, 1.0))
        gap = found.coefficients.E_max / found.coefficients.E_start - 1
        beyond = np.append(beyond, gap * far)
    least = reweighted(runs, delta, design(runs, start, beyond))
    check("laws.huber.scan", max(found.objective / least.min() - 1, 0.0), message=str(found.coefficients))


@pytest.mark.slow
@given(runs=noisy_tables(), share=st.sampled_from([0.01, 0.03, 0.1, 0.3, 1.0]))
def test_a_wider_search_finds_nothing_lower(runs, share):
    delta = delta_of(runs, share)
    found = fast.fitting.fit_routed(*runs, delta)
    wider = fast.fitting.fit_routed(*runs, delta, scan=64, starts=30)
    check("laws.huber.objective", max(found.objective / wider.objective - 1, 0.0))


@given(runs=noisy_tables())
def test_above_every_residual_it_is_least_squares(runs):
    found, squares = fast.fitting.fit_routed(*runs, 5.0), fast.fitting.fit_routed(*runs)
    assert squares.criterion == "mean squared difference of log10 losses"
    check_same(
        found,
        squares._replace(objective=squares.objective * squares.rows / 2, criterion=found.criterion),
        runs,
    )


@settings(max_examples=settings.default.max_examples // 2)
@given(runs=noisy_tables(), share=SHARES)
def test_rows_given_twice_count_twice_and_units_cancel(runs, share):
    """The criterion is a sum. Doubled log10 losses and delta give terms that are four times as large."""
    fit, delta = fast.fitting.fit_routed, delta_of(runs, share)
    once, twice = fit(*runs, delta), fit(*(np.repeat(column, 2) for column in runs), delta)
    check("laws.huber.objective", abs(twice.objective / once.objective / 2 - 1))
    scaled = fit(runs.dense_parameters, runs.num_experts, runs.loss**2, 2 * delta)
    check("laws.huber.objective", abs(scaled.objective / once.objective / 4 - 1))
    assert once.status == twice.status == scaled.status and twice.rows == 2 * once.rows


def with_one_wrong(runs: Runs, by: float, row: int = 33) -> Runs:
    """Multiply one loss by 10^by."""
    return runs._replace(loss=runs.loss * 10.0 ** (by * (np.arange(runs.loss.size) == row)))


def test_a_wrong_row_pulls_with_delta_however_wrong_it_is():
    clean, delta = grid(1e-3, 5), 1e-3
    module, moved = fast.fitting, {None: [], delta: []}
    for huber, shifts in moved.items():
        fit = module.fit_routed(*clean, huber)
        for by in (0.02, 0.2):
            other = module.fit_routed(*with_one_wrong(clean, by), huber)
            shifts.append(residuals(other, clean, module) - residuals(fit, clean, module))
        near, far = moved[huber]
        if huber is None:
            assert np.abs(far).max() > 3 * np.abs(near).max() and np.abs(far).max() > 0.005
            continue
        # An error ten times as large changes no digit of Huber's fit, but it changes least squares.
        check("laws.huber.prediction", float(np.abs(far - near).max()), scale=1e-3)
        assert np.abs(far).max() < 1e-3


@pytest.mark.slow
def test_linear_limit_is_a_status():
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    bulge = 1e-3 * ((experts - 1) / 511) ** 2  # bends the wrong way, so no finite E_max is better
    loss = 10 ** (1.1 - 0.08 * np.log10(size) - 0.1 * (experts - 1) / 511 - bulge)
    runs = with_one_wrong(Runs(size, experts, loss), 0.05, row=7)
    found, wanted = fast.fitting.fit_routed(*runs, 1e-4), reference.fit_routed(*runs, 1e-4)
    assert found.status == "linear limit" and np.all(np.isnan(found.coefficients))
    check_same(found, wanted, runs)


@pytest.mark.slow
def test_no_error_is_stated_where_no_row_is_within_delta():
    """With two values at each point and delta far below their distance, every law between them is equally good."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:5]))
    loss, delta = routed.predict_loss(size, experts, LAW), 1e-9
    runs = Runs(np.tile(size, 2), np.tile(experts, 2), np.append(loss * 1.01, loss / 1.01))
    for module in (fast.fitting, reference):
        fit = module.fit_routed(*runs, delta)
        wanted = 30 * delta * (math.log10(1.01) - delta / 2)
        check("laws.huber.sum", abs(fit.objective / wanted - 1), message="all rows beyond delta")
        assert np.isnan(fit.covariance).any() and not np.any(fit.covariance > 0)


@pytest.mark.released
@pytest.mark.parametrize("with_reference", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("router", ["S-Base", "RL-R", "Hash"])
def test_released_table(router, with_reference):
    runs, (rows, objective) = released_runs(router), RELEASED[router]
    found = fast.fitting.fit_routed(*runs, 1e-3)
    assert (found.rows, found.status) == (rows, "interior")
    check("laws.fitting.released_objective", abs(found.objective / objective - 1))
    if with_reference:
        wanted = reference.fit_routed(*runs, 1e-3)
        check("laws.fitting.released_objective", abs(wanted.objective / objective - 1))
        check_same(found, wanted, runs)
