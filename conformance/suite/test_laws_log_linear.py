"""Per-size, separable and bilinear: values, inverses, fits, and the slopes and held-out errors of the released runs."""

import doctest
import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.suite.strategies_laws import EXPERTS, SIZES, Runs, noisy_tables, released_runs
from routelaws.reference.laws import log_linear as reference

KINDS = ("PerSize", "Separable", "Bilinear")
PLANES = KINDS[1:]
COUNTS = st.lists(st.floats(1.0, 4096.0), min_size=1, max_size=4).map(np.array)


@st.composite
def laws(draw, kinds=KINDS) -> tuple[str, tuple]:
    """The kind of a law and its coefficients, for `law_in`."""
    a, b, c = draw(st.floats(-0.12, -0.06)), draw(st.floats(-0.2, -0.05)), draw(st.floats(-0.004, 0.013))
    kind, d = draw(st.sampled_from(kinds)), draw(st.floats(0.9, 1.3))
    if kind == "Separable":
        return kind, (a, b / 5, d)
    if kind == "Bilinear":
        return kind, (a, b, c, d)
    sizes = np.array(SIZES[: draw(st.integers(1, 6))])
    return kind, (sizes, b / 5 + c / 5 * np.log10(sizes), d + a * np.log10(sizes))


def law_in(module, law: tuple[str, tuple]):
    """Return the law in the classes of one twin."""
    return getattr(module, f"{law[0]}Coefficients")(*law[1])


def terms(size, experts) -> np.ndarray:
    """Return the size of the terms that a log10 loss is a sum of: the unit of its rounding."""
    return 2 + 0.2 * np.abs(np.log10(size)) * (1 + np.log10(experts))


@pytest.mark.asks(
    "*.predict_loss", "*.slope_in_experts", "*.slope_in_parameters", "*.effective_parameter_count", "*.cutoff"
)
@given(law=laws(), experts=COUNTS)
def test_values_agree_with_the_reference(backend, law, experts):
    fast, ours, theirs = backend.laws.log_linear, law_in(backend.laws.log_linear, law), law_in(reference, law)
    size = np.array([SIZES[0], SIZES[5], 3e10])[:, None]
    loss = reference.predict_loss(size, experts, theirs)
    found, scale = fast.predict_loss(size, experts, ours), np.nan_to_num(loss, nan=1.0) * terms(size, experts)
    assert np.array_equal(np.isnan(found), np.isnan(loss))
    assert_close_bounded("laws.log_linear.value", np.nan_to_num(found), np.nan_to_num(loss), scale, what=f"loss {law}")
    found, wanted = fast.slope_in_experts(size, ours), reference.slope_in_experts(size, theirs)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) and found.shape == size.shape
    assert_close_bounded("laws.log_linear.value", np.nan_to_num(found), np.nan_to_num(wanted), what="slope_in_experts")
    if law[0] == "PerSize":
        assert np.array_equal(np.isnan(loss).all(axis=1), ~np.isin(size[:, 0], law[1][0]))
        return
    found, wanted = fast.slope_in_parameters(experts, ours), reference.slope_in_parameters(experts, theirs)
    assert_close_bounded("laws.log_linear.value", found, wanted, what="slope_in_parameters")
    found = fast.effective_parameter_count(size, experts, ours)
    wanted = reference.effective_parameter_count(size, experts, theirs)
    assert_close_bounded("laws.log_linear.count", found, wanted, wanted, what="effective_parameter_count")
    if np.all((wanted > 1e-200) & (wanted < 1e200)):
        dense = reference.predict_loss(found, 1.0, theirs)
        assert_close_bounded("laws.log_linear.count", dense, loss, loss, what="the dense loss at the effective size")
    found, wanted = fast.cutoff(ours), reference.cutoff(theirs)
    assert found == wanted or math.isfinite(wanted), f"cutoff {found}, expected {wanted}"
    check("laws.log_linear.cutoff", abs(found / wanted - 1) if math.isfinite(wanted) and wanted else 0.0)


@pytest.mark.asks("*.predict_loss", "*.slope_in_experts", "*.experts_for_loss")
@given(law=laws(), experts=COUNTS)
def test_the_experts_that_reach_a_loss(backend, law, experts):
    ours, theirs = law_in(backend.laws.log_linear, law), law_in(reference, law)
    size = law[1][0][-1] if law[0] == "PerSize" else SIZES[2]
    slope = float(reference.slope_in_experts(size, theirs))
    if slope > -1e-3:  # the E of a loss is then not determined
        return
    loss = reference.predict_loss(size, experts, theirs)
    found = backend.laws.log_linear.experts_for_loss(size, loss, ours)
    what = f"experts_for_loss {law}"
    assert_close_bounded("laws.log_linear.experts", found, experts, experts / -slope, what=what)
    found, dense = (backend.laws.log_linear.experts_for_loss(size, loss * f, ours) for f in (0.9, 2.0))
    wanted = reference.experts_for_loss(size, loss * 0.9, theirs)
    assert_close_bounded("laws.log_linear.experts", found, wanted, wanted / -slope, what=what)
    assert np.all(found > experts)
    assert np.all(dense[loss * 2.0 >= reference.predict_loss(size, 1.0, theirs)] == 1.0)


@pytest.mark.asks("*.predict_loss", "*.size_for_loss", "*.slope_in_parameters")
@given(law=laws(PLANES), experts=COUNTS, size=st.floats(1e6, 1e11))
def test_the_size_that_reaches_a_loss(backend, law, experts, size):
    ours, theirs = law_in(backend.laws.log_linear, law), law_in(reference, law)
    loss = reference.predict_loss(size, experts, theirs)
    found = backend.laws.log_linear.size_for_loss(experts, loss, ours)
    what = f"size_for_loss {law}"
    assert np.all(reference.slope_in_parameters(experts, theirs) < -0.01)
    assert_close_bounded("laws.log_linear.size", found, np.full(experts.shape, size), size, what=what)
    assert_close_bounded("laws.log_linear.size", found, reference.size_for_loss(experts, loss, theirs), size, what=what)


@pytest.mark.asks("*.predict_loss", "*.slope_in_experts", "*.slope_in_parameters")
@given(law=laws(PLANES), size=st.floats(1e6, 1e12), experts=st.floats(1.0, 600.0))
def test_slopes_are_derivatives(backend, law, size, experts):
    fast, ours = backend.laws.log_linear, law_in(backend.laws.log_linear, law)
    here = math.log10(fast.predict_loss(size, experts, ours))
    step = math.log10(fast.predict_loss(size, 10 * experts, ours)) - here
    check("laws.log_linear.derivative", abs(step - float(fast.slope_in_experts(size, ours))))
    step = math.log10(fast.predict_loss(10 * size, experts, ours)) - here
    check("laws.log_linear.derivative", abs(step - float(fast.slope_in_parameters(experts, ours))))


@pytest.mark.asks("*.predict_loss", "*.size_for_loss", "*.experts_for_loss", "*.cutoff")
def test_what_no_number_of_experts_reaches(backend):
    """Beyond the cutoff, at 1e12, experts do not help: any loss below the dense one is out of reach."""
    for module in (backend.laws.log_linear, reference):
        law = module.BilinearCoefficients(-0.08, -0.12, 0.01, 1.1)
        check("laws.log_linear.cutoff", abs(module.cutoff(law) / 1e12 - 1))
        dense = float(module.predict_loss(1e13, 1.0, law))
        assert module.experts_for_loss(1e13, [dense * 1.01, dense * 0.99], law).tolist() == [1.0, math.inf]
        lines = module.PerSizeCoefficients(np.array([1e7]), np.array([-0.03]), np.array([0.5]))
        assert np.isnan(module.experts_for_loss(1e8, 2.0, lines)) and module.experts_for_loss(1e7, 4.0, lines) == 1
        rising = module.BilinearCoefficients(-0.08, -0.12, 0.1, 1.1)
        assert np.isnan(module.size_for_loss([1.0, 10.0], 2.0, rising)).tolist() == [False, True]
        assert module.cutoff(module.SeparableCoefficients(-0.08, -0.03, 1.1)) == math.inf
        assert module.cutoff(module.BilinearCoefficients(-0.08, -1.0, 1e-3, 1.1)) == math.inf
        assert math.isnan(module.cutoff(module.BilinearCoefficients(-0.08, math.nan, 0.01, 1.1)))
        assert math.isnan(module.cutoff(module.BilinearCoefficients(-0.08, math.nan, -0.01, 1.1)))


@pytest.mark.asks("laws.log_linear.fit_per_size", "laws.log_linear.fit_separable", "laws.log_linear.fit_bilinear")
@given(runs=noisy_tables(), kind=st.sampled_from(KINDS))
def test_fits_agree_with_the_reference(backend, runs, kind):
    name = {"PerSize": "fit_per_size", "Separable": "fit_separable", "Bilinear": "fit_bilinear"}[kind]
    found, wanted = getattr(backend.laws.log_linear, name)(*runs), getattr(reference, name)(*runs)
    assert (found.status, found.rows, found.criterion) == (wanted.status, wanted.rows, wanted.criterion)
    rounding = max(1.0, 1e-3 / wanted.rmsle)  # of the residuals that the objective is made of
    check("laws.log_linear.objective", abs(found.objective / wanted.objective - 1), scale=rounding)
    check("laws.rmsle", abs(found.rmsle - math.sqrt(found.objective)), scale=found.rmsle)
    error = np.sqrt(np.diagonal(wanted.covariance, axis1=-2, axis2=-1))
    # A coefficient's rounding is its standard error per unit of residual, times that of a log10 loss.
    unit = (error / wanted.rmsle).T
    for ours, theirs, each in zip(
        found.coefficients[kind == "PerSize" :], wanted.coefficients[kind == "PerSize" :], unit, strict=True
    ):
        assert_close_bounded("laws.log_linear.coefficient", ours, theirs, each, what=f"{name} {wanted.coefficients}")
    unit = rounding * error[..., :, None] * error[..., None, :]
    assert_close_bounded("laws.log_linear.covariance", found.covariance, wanted.covariance, unit, what=name)
    if kind == "PerSize":
        assert np.array_equal(found.coefficients.sizes, np.unique(runs.dense_parameters))


@pytest.mark.asks("*.predict_loss", "laws.log_linear.fit_per_size")
@given(runs=noisy_tables())
def test_no_coefficients_are_better(backend, runs):
    """Residuals of least squares are orthogonal to each term of the law, written here as the paper does."""
    n, e = np.log10(runs.dense_parameters), np.log10(runs.num_experts)
    fast = backend.laws.log_linear
    fits = {"fit_separable": (n, e), "fit_bilinear": (n, e, n * e)}
    fits["fit_per_size"] = [
        column * (runs.dense_parameters == size)
        for size in np.unique(runs.dense_parameters)
        for column in (np.ones_like(n), e)
    ]
    for name, columns in fits.items():
        found = getattr(fast, name)(*runs)
        predicted = fast.predict_loss(runs.dense_parameters, runs.num_experts, found.coefficients)
        residual = np.log10(runs.loss / predicted)
        for column in (np.ones_like(n), *columns):
            check("laws.log_linear.orthogonal", abs(float(residual @ column)), np.abs(column).max(), message=name)
        rounding = max(1.0, 1e-3 / found.rmsle)
        check("laws.log_linear.objective", abs(np.mean(residual**2) / found.objective - 1), scale=rounding)


@pytest.mark.asks(
    "*.predict_loss", "laws.log_linear.fit_per_size", "laws.log_linear.fit_separable", "laws.log_linear.fit_bilinear"
)
@given(law=laws(), repeats=st.integers(1, 2))
def test_exact_tables_give_their_law_back(backend, law, repeats):
    sizes = law[1][0] if law[0] == "PerSize" else SIZES[::2]
    size, count = (np.tile(v.ravel(), repeats) for v in np.meshgrid(sizes, EXPERTS[::3]))
    loss = reference.predict_loss(size, count, law_in(reference, law))
    name = {"PerSize": "fit_per_size", "Separable": "fit_separable", "Bilinear": "fit_bilinear"}[law[0]]
    for module in (backend.laws.log_linear, reference):
        found = getattr(module, name)(size, count, loss)
        assert (found.status, found.rows) == ("interior", size.size)
        for ours, theirs in zip(found.coefficients, law[1], strict=True):
            assert_close_bounded("laws.log_linear.exact", ours, theirs, np.maximum(1, np.abs(theirs)), what=name)
        check("laws.log_linear.exact", found.rmsle)


@pytest.mark.asks("laws.log_linear.fit_per_size", "laws.log_linear.fit_separable", "laws.log_linear.fit_bilinear")
def test_fits_by_hand(backend):
    """N = 10, 100 and E = 1, 10, 100. The line of 0, 1, 1 has slope 1/2 and starts at 1/6; that of 0, 0, 0 is flat."""
    size, count = np.repeat([10.0, 100.0], 3), np.tile([1.0, 10.0, 100.0], 2)
    loss = 10.0 ** np.array([0, 1, 1, 0, 0, 0])
    for module in (backend.laws.log_linear, reference):
        lines = module.fit_per_size(size, count, loss)
        assert_close_bounded("laws.log_linear.hand", lines.coefficients.b, [0.5, 0.0], what="b")
        assert_close_bounded("laws.log_linear.hand", lines.coefficients.d, [1 / 6, 0.0], what="d")
        check("laws.log_linear.hand", abs(lines.objective - 1 / 36))  # residuals 1/6, 1/3, 1/6: sum 1/6
        # 1/6 over 6 - 4 degrees; b: / 2; d: · (1/3 + 1/2)
        wanted = np.array([[1 / 24, -1 / 24], [-1 / 24, 5 / 72]])
        assert_close_bounded("laws.log_linear.hand", lines.covariance, [wanted, wanted], what="covariance")
        plane = module.fit_separable(size, count, loss)  # means 2/3 and 0 by size; 0, 1/2, 1/2 by experts
        assert_close_bounded("laws.log_linear.hand", plane.coefficients, (-2 / 3, 1 / 4, 13 / 12), what="separable")
        both = module.fit_bilinear(size, count, loss)  # slopes 1/2 and 0 in E, so c = -1/2; the same fit as the lines
        assert_close_bounded("laws.log_linear.hand", both.coefficients, (-1 / 6, 1.0, -0.5, 1 / 3), what="bilinear")
        check("laws.log_linear.hand", abs(both.objective - lines.objective))


@pytest.mark.asks("*.predict_loss", "laws.log_linear.fit_per_size")
def test_a_size_with_one_count_has_no_line(backend):
    size, count = np.append(np.repeat([1e7, 1e8], 4), 3e7), np.append(np.tile([1.0, 2.0, 4.0, 8.0], 2), 1.0)
    loss = 3.0 - 0.1 * np.log2(count) + 0.01 * np.arange(9)
    for module in (backend.laws.log_linear, reference):
        found = module.fit_per_size(size, count, loss)
        assert (found.status, found.rows) == ("no line at 1 of 3 sizes", 8)
        assert found.coefficients.sizes.tolist() == [1e7, 1e8] and found.covariance.shape == (2, 2, 2)
        without = module.fit_per_size(size[:8], count[:8], loss[:8])
        assert found.rmsle == without.rmsle < 0.01 and without.status == "interior"
        for ours, theirs in zip(found.coefficients, without.coefficients, strict=True):
            assert np.array_equal(ours, theirs)
        assert np.array_equal(found.covariance, without.covariance), "a size without a line takes no freedom"
        predicted = module.predict_loss(size, count, found.coefficients)
        assert np.isnan(predicted).tolist() == [False] * 8 + [True]


@pytest.mark.asks("*.predict_loss", "laws.log_linear.fit_bilinear")
@pytest.mark.parametrize("name", ["fit_separable", "fit_bilinear"])
def test_covariance_is_that_of_repeated_noise(backend, name):
    size, count = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS[::2]))
    law = reference.BilinearCoefficients(-0.08, -0.1, 0.008 * (name == "fit_bilinear"), 1.1)
    exact, random = reference.predict_loss(size, count, law), np.random.default_rng(5)
    fit = getattr(backend.laws.log_linear, name)
    fits = [fit(size, count, exact * 10 ** random.normal(0, 1e-3, size.size)) for _ in range(400)]
    spread = np.cov(np.array([each.coefficients for each in fits]).T)
    stated = np.mean([each.covariance for each in fits], axis=0)
    error = np.sqrt(np.diag(stated))
    assert np.all(np.abs(spread - stated) < 0.25 * error * error[:, None]), spread / stated


SLOPES = {
    "S-Base": (-0.0328, -0.0336, -0.0316, -0.0290, -0.0245, -0.0197),
    "RL-R": (-0.0338, -0.0331, -0.0314, -0.0274, -0.0223, -0.0166),
    "Hash": (-0.0308, -0.0309, -0.0289, -0.0241, -0.0209, -0.0151),
}
"""Change of log10 L per tenfold E at each size; dense runs of all seeds included."""

HELD_OUT = {"S-Base": (0.0029, 0.0061, 0.0042), "RL-R": (0.0022, 0.0068, 0.0037), "Hash": (0.0033, 0.0068, 0.0040)}
"""Leave-one-out RMSLE of per-size lines (dense runs of all seeds), separable and bilinear (seed 42), to four digits."""

ALL_SEEDS = ("1", "2", "3", "42")


def leave_one_out(module, fit, runs: Runs) -> float:
    """Return the root mean square of log10 predicted - log10 measured, each row predicted without it."""
    errors = []
    for i in range(runs.loss.size):
        kept = Runs(*(np.delete(column, i) for column in runs))
        predicted = module.predict_loss(runs.dense_parameters[i], runs.num_experts[i], fit(*kept).coefficients)
        errors.append(math.log10(predicted / runs.loss[i]))
    return math.sqrt(np.mean(np.square(errors)))


@pytest.mark.asks(
    "*.predict_loss",
    "laws.held_out.leave_one_out",
    "laws.log_linear.fit_per_size",
    "laws.log_linear.fit_separable",
    "laws.log_linear.fit_bilinear",
)
@pytest.mark.released
@pytest.mark.parametrize("router", SLOPES)
def test_released_runs(backend, router):
    every, one = released_runs(router, seeds=ALL_SEEDS), released_runs(router)
    for module in (backend.laws.log_linear, reference):
        slopes = module.fit_per_size(*every).coefficients.b
        assert_close_bounded("laws.log_linear.printed", slopes, SLOPES[router], what="slopes per size")
        found = [
            leave_one_out(module, module.fit_per_size, every),
            *(leave_one_out(module, fit, one) for fit in (module.fit_separable, module.fit_bilinear)),
        ]
        assert_close_bounded("laws.log_linear.printed", found, HELD_OUT[router], what="leave-one-out")


GRID = tuple(v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:4]))
LOSS = np.linspace(3.0, 2.0, 12)
BAD = {
    "NaN loss": ("fit_bilinear", (*GRID, np.where(LOSS == 2.0, np.nan, LOSS)), r"loss: entry \(11,\) is nan"),
    "loss below 0": ("fit_separable", (*GRID, -LOSS), r"loss: entry \(0,\) is -3.0.*above 0"),
    "E below 1": ("fit_per_size", (GRID[0], GRID[1] / 2, LOSS), r"num_experts: entry \(0,\) is 0.5.*at least 1"),
    "size of 0": ("fit_per_size", (GRID[0] * 0, GRID[1], LOSS), r"dense_parameters: entry \(0,\) is 0.0.*above 0"),
    "lengths": ("fit_bilinear", (*GRID, LOSS[:5]), r"num_experts and loss have shapes \(12,\), \(12,\) and \(5,\)"),
    "few rows, bilinear": ("fit_bilinear", tuple(v[:4] for v in (*GRID, LOSS)), "4 rows; the bilinear .* at least 5"),
    "few rows, separable": ("fit_separable", tuple(v[:3] for v in (*GRID, LOSS)), "3 rows; .* at least 4"),
    "no row to spare": ("fit_per_size", ([1e7, 1e7, 1e8], [1, 2, 1], [3, 2, 1]), "2 rows; the per-size .* at least 3"),
    "one E each": ("fit_per_size", (GRID[0], GRID[0], LOSS), "no size has two different num_experts"),
    "one size": ("fit_bilinear", (np.full(12, 1e8), GRID[1], LOSS), "cannot be told apart.*at more than one size"),
    "one E": ("fit_separable", (GRID[0], np.full(12, 4.0), LOSS), "cannot be told apart.*do not rise in step"),
    "in step": ("fit_separable", (GRID[0], GRID[0] ** 0.5, LOSS), "cannot be told apart.*do not rise in step"),
    "a cross": ("fit_bilinear", ([1e7, 1e9, 1e8, 1e8, 1e8], [10, 10, 1, 100, 10], [5, 3, 4, 2, 3.5]), "told apart"),
    "one size with two": ("fit_bilinear", ([1e7, 1e7, 1e7, 1e8, 1e8], [1, 2, 4, 1, 1], [5, 4, 3, 2, 1]), "told apart"),
}  # fmt: skip


LEAST = {"fit_bilinear": 5, "fit_separable": 4, "fit_per_size": 5}
"""Rows that are enough: one more than there are coefficients; two sizes with two E each, and one of them twice."""


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("name", LEAST)
def test_the_least_number_of_rows_is_enough(backend, name):
    rows = tuple(
        np.array(column)[: LEAST[name]]
        for column in ([1e7, 1e8, 1e7, 1e8, 1e8], [1, 1, 4, 4, 4], [3.0, 2.5, 2.75, 2.4, 2.35])
    )
    found, wanted = (getattr(module, name)(*rows) for module in (backend.laws.log_linear, reference))
    assert found.rows == wanted.rows == LEAST[name]
    for ours, theirs in zip(found.coefficients, wanted.coefficients, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        assert_close_bounded("laws.log_linear.exact", ours, theirs, scale, what=f"{name} from {LEAST[name]} rows")


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("name", ["fit_bilinear", "fit_separable", "fit_per_size"])
def test_two_sizes_that_nearly_agree_are_two(backend, name):
    """The length of a column does not count: 3e-8 apart, and as independent as a decade apart."""
    size, experts = np.repeat([1e8, 1e8 * (1 + 3e-8)], 3), np.tile([1.0, 4.0, 16.0], 2)
    for module in (backend.laws.log_linear, reference):
        found = getattr(module, name)(size, experts, 10 ** (0.5 - 0.02 * np.log10(experts)))
        assert found.status == "interior" and found.rows == 6, f"{name}: {found}"


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.twin
@pytest.mark.parametrize(("name", "columns", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_fitted_is_named(backend, name, columns, message):
    for module in (backend.laws.log_linear, reference):
        with pytest.raises(ValueError, match=message) as caught:
            getattr(module, name)(*columns)
        assert "\n" not in str(caught.value)


@pytest.mark.asks("*.predict_loss", "*.effective_parameter_count", "*.experts_for_loss")
def test_what_per_size_lines_cannot_say_is_named(backend):
    for module in (backend.laws.log_linear, reference):
        lines = module.PerSizeCoefficients(np.array([1e7]), np.array([-0.03]), np.array([0.5]))
        for name, arguments in {
            "slope_in_parameters": (2.0,),
            "size_for_loss": (2.0, 2.0),
            "cutoff": (),
            "effective_parameter_count": (1e7, 2.0),
        }.items():
            with pytest.raises(ValueError, match="per-size lines say nothing between sizes"):
                getattr(module, name)(*arguments, lines)
        with pytest.raises(ValueError, match="a is 0"):
            module.effective_parameter_count(1e7, 2.0, module.SeparableCoefficients(0.0, -0.03, 1.1))
        with pytest.raises(ValueError, match="num_experts"):
            module.predict_loss(1e7, 0.5, lines)
        with pytest.raises(ValueError, match="loss"):
            module.experts_for_loss(1e7, 0.0, lines)


def test_examples_of_the_reference():
    result = doctest.testmod(importlib.import_module("routelaws.reference.laws.log_linear"))
    assert result.attempted > 0 and result.failed == 0
