"""The dense power law: its values, its fit, and the figures of the released runs."""

import doctest
import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.suite.strategies_laws import SIZES, released_last_rows
from routelaws.reference.laws import dense as reference

LAWS = st.builds(reference.DenseCoefficients, st.floats(0.03, 0.15), st.sampled_from([1e9, 3.4e13, 1e16]))
SOME_SIZES = st.lists(st.floats(1e5, 1e13), min_size=1, max_size=4).map(np.array)


@st.composite
def tables(draw) -> tuple[np.ndarray, np.ndarray]:
    """Sizes, some repeated, and losses of a law with noise; sometimes an outlier or losses that follow no law."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=6, unique=True))
    size = np.array(sizes + sizes[:1] * draw(st.integers(1, 3)))
    kind = draw(st.sampled_from(["quiet", "loud", "outlier", "lawless"]))
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=size.size)
    law = draw(LAWS)._replace(N_c=3.4e13)
    log_loss = np.log10(reference.predict_loss(size, law)) * (kind != "lawless") + 0.3 * (kind == "lawless")
    log_loss = log_loss + noise * {"quiet": 3e-4, "loud": 1e-2, "outlier": 3e-3, "lawless": 3e-2}[kind]
    log_loss[-1] += 0.1 * (kind == "outlier")
    return size, 10.0**log_loss


@pytest.mark.asks("*.predict_loss", "*.size_for_loss")
@given(law=LAWS, sizes=SOME_SIZES)
def test_values_agree_and_are_inverse(backend, law, sizes):
    ours = backend.laws.dense.DenseCoefficients(*law)
    loss = backend.laws.dense.predict_loss(sizes, ours)
    assert np.asarray(loss).dtype == np.float64
    assert_close_bounded("laws.dense.value", loss, reference.predict_loss(sizes, law), loss, what="predict_loss")
    again = backend.laws.dense.size_for_loss(loss, ours)
    what = f"size_for_loss, {law}"
    assert_close_bounded("laws.dense.size", again, reference.size_for_loss(loss, law), sizes / law.alpha, what=what)
    assert_close_bounded("laws.dense.size", again, sizes, sizes / law.alpha, what=what)


@pytest.mark.asks("*.predict_loss", "*.size_for_loss")
def test_values_by_hand(backend):
    law = backend.laws.dense.DenseCoefficients(0.1, 1e13)
    for module in (backend.laws.dense, reference):
        assert_close_bounded("laws.dense.value", module.predict_loss(1e10, law), 10**0.3, 2.0, what="predict_loss")
        assert_close_bounded("laws.dense.size", module.size_for_loss(10**0.3, law), 1e10, 1e11, what="size_for_loss")
        assert module.size_for_loss(1e-300, law) == math.inf  # beyond float64, and said so


@pytest.mark.asks("laws.dense.fit_dense")
def test_a_critical_size_below_one(backend):
    """Losses far below 1 nat, as of a compressor: N_c = 1/4, and its variance is a number."""
    size = 10.0 ** np.array([6.0, 7.0, 8.0, 9.0])
    loss = reference.predict_loss(size, reference.DenseCoefficients(0.1, 0.25)) * [1.001, 0.999, 1.0, 1.001]
    found, wanted = backend.laws.dense.fit_dense(size, loss), reference.fit_dense(size, loss)
    assert 0 < wanted.coefficients.N_c < 1
    scale = abs(wanted.covariance)
    assert_close_bounded("laws.dense.covariance", found.covariance, wanted.covariance, scale, what="covariance")


@pytest.mark.asks("*.predict_loss", "laws.dense.fit_dense", "laws.dense.predict_line")
@given(table=tables())
def test_fits_agree_with_the_reference(backend, table):
    size, loss = table
    found, wanted = backend.laws.dense.fit_dense(size, loss), reference.fit_dense(size, loss)
    assert (found.status, found.rows, found.criterion) == (wanted.status, size.size, wanted.criterion)
    check("laws.dense.objective", abs(found.objective / wanted.objective - 1), scale=max(1.0, 1e-3 / wanted.rmsle))
    predicted = [np.log10(m.predict_line(f.line, SIZES)) for m, f in ((backend.laws.dense, found), (reference, wanted))]
    assert_close_bounded("laws.dense.prediction", *predicted, what="predict_line")
    assert np.array_equal(np.isnan(found.coefficients), np.isnan(wanted.coefficients))
    if wanted.status != "interior":
        assert np.all(np.isnan(found.covariance)) and np.all(np.isnan(found.coefficients))
        return
    error = np.sqrt(wanted.covariance[0, 0])
    rounding = max(1.0, 1e-3 / wanted.rmsle)  # of the residuals that the variance is made of
    check("laws.dense.covariance", abs(found.covariance[0, 0] - error**2), scale=rounding * error**2)
    if 1e-100 < wanted.coefficients.N_c < 1e100:  # beyond, its variance is not a number of float64
        log_critical = math.log10(found.coefficients.N_c)
        assert_close_bounded(
            "laws.dense.prediction",
            np.log10(reference.predict_loss(SIZES, found.coefficients)),
            predicted[0],
            1 + abs(log_critical),
            what="one law",
        )
        error = np.sqrt(np.diag(wanted.covariance))
        scale = rounding * error * error[:, None] * (1 + abs(log_critical))
        assert_close_bounded("laws.dense.covariance", found.covariance, wanted.covariance, scale, what="covariance")


@pytest.mark.asks("laws.dense.fit_dense", "laws.dense.predict_line")
@given(table=tables())
def test_no_line_is_better(backend, table):
    """The residuals of a least-squares line are orthogonal to 1 and to log10 N; rmsle is theirs."""
    size, loss = table
    found = backend.laws.dense.fit_dense(size, loss)
    residual = np.log10(backend.laws.dense.predict_line(found.line, size) / loss)
    check("laws.dense.orthogonal", abs(float(residual.sum())))
    check("laws.dense.orthogonal", abs(float(residual @ np.log10(size))), scale=8.0)
    check("laws.dense.rmsle", abs(math.sqrt(np.mean(residual**2)) - found.rmsle))
    check("laws.rmsle", abs(found.rmsle - math.sqrt(found.objective)), scale=found.rmsle)


@pytest.mark.asks("*.predict_loss", "laws.dense.fit_dense")
@given(law=LAWS, repeats=st.integers(1, 3))
def test_exact_tables_give_their_law_back(backend, law, repeats):
    size = np.repeat(SIZES[:3], repeats)
    for module in (backend.laws.dense, reference):
        found = module.fit_dense(size, reference.predict_loss(size, law))
        assert found.status == "interior"
        check("laws.dense.exact", abs(found.coefficients.alpha / law.alpha - 1))
        check("laws.dense.exact", abs(math.log10(found.coefficients.N_c / law.N_c)), scale=10.0)


@pytest.mark.asks("laws.dense.fit_dense")
def test_fit_by_hand(backend):
    """x = 1, 2, 3 and y = .3, .2, .13: slope -.085, mean .21, residuals .005, -.01, .005."""
    for module in (backend.laws.dense, reference):
        found = module.fit_dense([10.0, 100.0, 1000.0], 10 ** np.array([0.3, 0.2, 0.13]))
        check("laws.dense.hand", abs(found.coefficients.alpha - 0.085))
        check("laws.dense.hand", abs(math.log10(found.coefficients.N_c) - (2 + 0.21 / 0.085)), scale=100.0)
        check("laws.dense.hand", abs(found.objective - 1.5e-4 / 3))
        check("laws.dense.hand", abs(found.covariance[0, 0] - 1.5e-4 / 2))
        # log10 N_c = 2 + y/alpha, with variance (1.5e-4/3 + .21² 7.5e-5/.085²)/.085²; N_c ln 10 to one unit of it
        factor = found.coefficients.N_c * math.log(10)
        variance = (1.5e-4 / 3 + (0.21 / 0.085) ** 2 * 7.5e-5) / 0.085**2
        check("laws.dense.hand", abs(found.covariance[1, 1] / factor**2 - variance), scale=100.0)
        check("laws.dense.hand", abs(found.covariance[0, 1] / factor + 0.21 / 0.085**2 * 7.5e-5), scale=100.0)


@pytest.mark.asks("*.predict_loss", "laws.dense.fit_dense")
def test_covariance_is_that_of_repeated_noise(backend):
    size, random = np.repeat(SIZES, 2), np.random.default_rng(3)
    exact = reference.predict_loss(size, reference.DenseCoefficients(0.08, 3e13))
    fits = [backend.laws.dense.fit_dense(size, exact * 10 ** random.normal(0, 1e-4, size.size)) for _ in range(400)]
    spread = np.cov(np.array([fit.coefficients for fit in fits]).T)
    ratio = spread / np.mean([fit.covariance for fit in fits], axis=0)
    assert np.all((ratio > 0.8) & (ratio < 1.25)), ratio


@pytest.mark.asks("laws.dense.fit_dense", "laws.dense.predict_line")
@pytest.mark.parametrize("losses", [[2.0, 2.0, 2.1], [2.0, 2.0, 2.0]])
def test_a_loss_that_does_not_fall_is_no_law(backend, losses):
    size = np.array([1e7, 1e8, 1e9])
    for module in (backend.laws.dense, reference):
        found = module.fit_dense(size, losses)
        assert found.status == "loss does not fall with size"
        assert np.all(np.isnan(found.coefficients)) and np.isnan(found.covariance).tolist() == [[True, True]] * 2
        residual = np.log10(module.predict_line(found.line, size) / losses)
        check("laws.dense.rmsle", abs(math.sqrt(np.mean(residual**2)) - found.rmsle))


@pytest.mark.asks("laws.dense.fit_dense", "laws.dense.predict_line")
@pytest.mark.parametrize(("level", "wanted"), [(2.0, math.inf), (0.5, 0.0)])
def test_a_loss_that_hardly_falls(backend, level, wanted):
    """By 2e-7 a decade: N_c is then no number of float64, and the line still predicts."""
    size = np.array([1e7, 1e8, 1e9, 1e10])
    loss = level * 10 ** np.array([2e-7, 0, -1e-7, -4e-7])
    for module in (backend.laws.dense, reference):
        found = module.fit_dense(size, loss)
        assert (found.status, found.coefficients.N_c) == ("interior", wanted)
        assert np.isnan(found.covariance).tolist() == [[False, True], [True, True]]
        assert np.all(np.abs(module.predict_line(found.line, size) / loss - 1) < 1e-3)


@pytest.mark.asks("laws.dense.fit_dense")
@pytest.mark.released
def test_released_dense_runs(backend):
    """All eight dense runs give 3.42e13; the mean of the three at 130M gives the paper's 3.568e13."""
    rows = [row for row in released_last_rows() if row["router_type"] == "Dense" and float(row["flop_increase"]) == 1]
    size, loss = (np.array([float(row[name]) for row in rows]) for name in ("dense_parameter_count", "loss_validation"))
    sizes = np.unique(size)
    means = np.array([loss[size == each].mean() for each in sizes])
    for module in (backend.laws.dense, reference):
        found = module.fit_dense(size, loss)
        assert (found.rows, found.status, round(found.coefficients.alpha, 4)) == (8, "interior", 0.0788)
        assert f"{found.coefficients.N_c:.2e}" == "3.42e+13"
        averaged = module.fit_dense(sizes, means)
        assert (averaged.rows, f"{averaged.coefficients.N_c:.3e}") == (6, "3.568e+13")


BAD = {
    "lengths": (([1e7, 1e8, 1e9], [3.0, 2.0]), r"dense_parameters and loss have shapes \(3,\) and \(2,\)"),
    "two rows": (([1e7, 1e8], [3.0, 2.0]), "2 rows; the dense law has 2 coefficients and needs at least 3"),
    "one size": (([1e7] * 3, [3.0, 2.9, 3.1]), "all rows have one size"),
    "loss of 0": (([1e7, 1e8, 1e9], [3.0, 0.0, 2.0]), r"loss: entry \(1,\) is 0.0.*above 0"),
    "size is NaN": (([1e7, 1e8, math.nan], [3.0, 2.0, 1.0]), r"dense_parameters: entry \(2,\) is nan"),
    "two axes": ((np.ones((3, 3)), np.ones((3, 3))), "one axis"),
}


@pytest.mark.asks("laws.dense.fit_dense")
@pytest.mark.twin
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fitted_is_named(backend, case):
    columns, message = BAD[case]
    for module in (backend.laws.dense, reference):
        with pytest.raises(ValueError, match=message) as caught:
            module.fit_dense(*columns)
        assert "\n" not in str(caught.value)


@pytest.mark.asks("*.predict_loss", "*.size_for_loss")
@pytest.mark.twin
def test_bad_coefficients_are_named(backend):
    for module in (backend.laws.dense, reference):
        with pytest.raises(ValueError, match="N_c"):
            module.predict_loss(1e8, module.DenseCoefficients(0.08, math.nan))
        with pytest.raises(ValueError, match="alpha.*above 0"):
            module.size_for_loss(2.0, module.DenseCoefficients(-0.08, 1e13))


def test_examples_of_the_reference():
    result = doctest.testmod(importlib.import_module("routelaws.reference.laws.dense"))
    assert result.attempted > 0 and result.failed == 0
