import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import Student
from routelaws.reference.laws import dense as reference
from routelaws.reference.tests.strategies_laws import SIZES, released_last_rows

LAWS = st.builds(reference.DenseCoefficients, st.floats(0.03, 0.15), st.sampled_from([1e9, 3.4e13, 1e16]))


@st.composite
def tables(draw) -> tuple[np.ndarray, np.ndarray]:
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=6, unique=True))
    size = np.array(sizes + sizes[:1] * draw(st.integers(1, 3)))
    kind = draw(st.sampled_from(["quiet", "loud", "outlier", "lawless"]))
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=size.size)
    law = draw(LAWS)._replace(N_c=3.4e13)
    log_loss = np.log10(reference.predict_loss(size, law)) * (kind != "lawless") + 0.3 * (kind == "lawless")
    log_loss = log_loss + noise * {"quiet": 3e-4, "loud": 1e-2, "outlier": 3e-3, "lawless": 3e-2}[kind]
    log_loss[-1] += 0.1 * (kind == "outlier")
    return size, 10.0**log_loss


@given(table=tables())
def test_the_line_is_that_of_least_squares(table):
    size, loss = table
    fit = reference.fit_dense(size, loss)
    slope, level = np.polyfit(np.log10(size) - 8, np.log10(loss), 1)
    wanted = level + slope * (np.log10(SIZES) - 8)
    assert_close_bounded(
        "laws.dense.prediction", np.log10(reference.predict_line(fit.line, SIZES)), wanted, what="line"
    )
    residual = level + slope * (np.log10(size) - 8) - np.log10(loss)
    scale = max(1.0, 1e-3 / fit.rmsle)
    check("laws.dense.objective", abs(fit.objective / float(np.mean(residual**2)) - 1), scale=scale)
    check("laws.dense.rmsle", abs(fit.rmsle - math.sqrt(fit.objective)))
    assert fit.rows == size.size and (fit.status == "interior") == (slope < 0)
    if fit.status != "interior":
        assert np.all(np.isnan(fit.covariance)) and np.all(np.isnan(fit.coefficients))
    elif 1e-100 < fit.coefficients.N_c < 1e100:
        law = np.log10(reference.predict_loss(SIZES, fit.coefficients))
        assert_close_bounded(
            "laws.dense.prediction", law, wanted, 1 + abs(math.log10(fit.coefficients.N_c)), what="law"
        )


def test_a_critical_size_below_one():
    """Losses far below 1 nat, as of a compressor, give N_c = 1/4. Its error turns with that of the slope."""
    size = 10.0 ** np.array([6.0, 7.0, 8.0, 9.0])
    loss = reference.predict_loss(size, reference.DenseCoefficients(0.1, 0.25)) * [1.001, 0.999, 1.0, 1.001]
    fit = reference.fit_dense(size, loss)
    assert 0 < fit.coefficients.N_c < 1
    line = Student(np.stack([np.log10(size), np.ones(4)], axis=1), np.log10(loss), 0.95)
    (slope, level), critical = line.solution, math.log(10) * fit.coefficients.N_c
    turn = np.array([[-1.0, 0.0], [critical * level / slope**2, -critical / slope]])  # of (alpha, N_c)
    wanted = turn @ line.covariance @ turn.T
    assert_close_bounded("laws.dense.covariance", fit.covariance, wanted, abs(wanted), what="covariance")


@pytest.mark.parametrize("losses", [[2.0, 2.0, 2.1], [2.0, 2.0, 2.0]])
def test_a_loss_that_does_not_fall_is_no_law(losses):
    size = np.array([1e7, 1e8, 1e9])
    found = reference.fit_dense(size, losses)
    assert found.status == "loss does not fall with size"
    assert np.all(np.isnan(found.coefficients)) and np.isnan(found.covariance).tolist() == [[True, True]] * 2
    residual = np.log10(reference.predict_line(found.line, size) / losses)
    check("laws.dense.rmsle", abs(math.sqrt(np.mean(residual**2)) - found.rmsle))


@pytest.mark.parametrize(("level", "wanted"), [(2.0, math.inf), (0.5, 0.0)])
def test_a_loss_that_hardly_falls(level, wanted):
    """A fall of 2e-7 for each decade puts N_c out of the range of float64. The line still predicts."""
    size = np.array([1e7, 1e8, 1e9, 1e10])
    loss = level * 10 ** np.array([2e-7, 0, -1e-7, -4e-7])
    found = reference.fit_dense(size, loss)
    assert (found.status, found.coefficients.N_c) == ("interior", wanted)
    assert np.isnan(found.covariance).tolist() == [[False, True], [True, True]]
    assert np.all(np.abs(reference.predict_line(found.line, size) / loss - 1) < 1e-3)


@pytest.mark.released
def test_released_dense_runs():
    """All eight dense runs give 3.42e13. The mean of the three at 130M gives the paper's 3.568e13."""
    rows = [row for row in released_last_rows() if row["router_type"] == "Dense" and float(row["flop_increase"]) == 1]
    size, loss = (np.array([float(row[name]) for row in rows]) for name in ("dense_parameter_count", "loss_validation"))
    sizes = np.unique(size)
    means = np.array([loss[size == each].mean() for each in sizes])
    found = reference.fit_dense(size, loss)
    assert (found.rows, found.status, round(found.coefficients.alpha, 4)) == (8, "interior", 0.0788)
    assert f"{found.coefficients.N_c:.2e}" == "3.42e+13"
    averaged = reference.fit_dense(sizes, means)
    assert (averaged.rows, f"{averaged.coefficients.N_c:.3e}") == (6, "3.568e+13")
