"""Held-out errors against plain refits and hand-computed values, and comparisons of forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import catalogue
from routelaws.reference.laws import held_out as reference
from routelaws.reference.tests.strategies_laws import NO_SHRINKING, SIZES, noisy_tables, released_runs
from routelaws.reference.tests.test_laws_held_out import (  # noqa: F401
    columns_of,
    table,
    test_a_law_of_the_users_own_is_refitted,
    test_lines_without_a_row_to_spare_predict_nothing,
    test_what_cannot_be_predicted_is_counted,
)

FORMS = ("dense", "per-size", "separable", "bilinear", "routed-bounded", "routed-utilisation")
LINEAR = FORMS[:4]


@pytest.fixture
def laws():
    return fast


def agree(found, wanted, bound: str, what: str) -> None:
    scale = 1.0 + float(np.nanmax(np.abs(wanted.errors), initial=0.0))
    assert (found.predicted, found.folds) == (wanted.predicted, wanted.folds), what
    assert np.array_equal(np.isnan(found.errors), np.isnan(wanted.errors)), what
    for ours, theirs in zip((*found.errors, found.rmsle), (*wanted.errors, wanted.rmsle), strict=True):
        if not math.isnan(theirs):
            check(bound, abs(ours - theirs), scale, message=what)
    assert math.isnan(found.rmsle) == (found.predicted == 0)


@given(runs=noisy_tables(), by_size=st.booleans())
@pytest.mark.parametrize("name", LINEAR)
def test_closed_forms_are_refits(name, runs, by_size):
    """The hat matrix replaces refits. Errors grow with 1/(1 - h), which is large for folds with few rows."""
    groups = runs.dense_parameters if by_size else np.arange(runs.loss.size)
    columns = columns_of(name, runs)
    try:
        wanted = reference.leave_one_group_out(catalogue.LAWS[name], columns, runs.loss, groups)
    except ValueError as error:
        with pytest.raises(ValueError) as caught:
            fast.held_out.leave_one_group_out(fast.catalogue.LAWS[name], columns, runs.loss, groups)
        assert str(caught.value) == str(error)
        return
    found = fast.held_out.leave_one_group_out(fast.catalogue.LAWS[name], columns, runs.loss, groups)
    agree(found, wanted, "laws.held_out.closed", f"{name} {by_size}")


@pytest.mark.slow
@settings(phases=NO_SHRINKING, max_examples=settings.default.max_examples // 4)
@given(runs=noisy_tables(), name=st.sampled_from(FORMS[4:]))
def test_bounded_laws_are_refits(runs, name):
    """Three folds across sizes are enough: the reference takes half a second or more for each."""
    groups, columns = np.arange(runs.loss.size) % 3, columns_of(name, runs)
    wanted = reference.leave_one_group_out(catalogue.LAWS[name], columns, runs.loss, groups)
    found = fast.held_out.leave_one_group_out(fast.catalogue.LAWS[name], columns, runs.loss, groups)
    agree(found, wanted, "laws.held_out.searched", name)


@pytest.mark.parametrize("name", FORMS)
def test_each_error_is_that_of_a_fit_without_the_row(name):
    """The three rows are the least B, the largest E, and one inside."""
    law, runs = fast.catalogue.LAWS[name], table()
    columns = columns_of(name, runs)
    found = fast.held_out.leave_one_out(law, columns, runs.loss)
    assert found.folds == runs.loss.size == found.predicted
    more = {"B_min": float(columns[1].min())} if name == "routed-utilisation" else {}
    for row in (int(np.argmin(columns[-1])), int(np.argmax(columns[-1])), 7):
        rest = np.arange(runs.loss.size) != row
        fit = law.fit(*(column[rest] for column in columns), runs.loss[rest], **more)
        error = math.log10(float(law.predict(fit, *(column[row] for column in columns))) / runs.loss[row])
        check("laws.held_out.searched", abs(found.errors[row] - error), message=f"{name} {row}")
    check("laws.held_out.closed", abs(found.rmsle - math.sqrt(np.mean(found.errors**2))))


@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-7])
def test_a_line_whose_other_rows_have_nearly_one_E(step):
    """A row at E = 64 follows from three rows near E = 4, and their rounding is divided by their small step."""
    experts = np.array([4.0, 4 * (1 + step), 4 * (1 + 2 * step), 64.0, 1.0, 4.0, 16.0])
    size = np.array([1e7] * 4 + [1e8] * 3)
    exact = 0.6 - 0.1 * np.log10(experts) * (1 + (size > 1e7))
    for noise in (0.0, 0.01 * step):
        loss, columns = 10.0 ** (exact + noise * np.array([1, 0, -1, 0, 0, 0, 0])), [size, experts]
        found = fast.held_out.leave_one_out(fast.catalogue.LAWS["per-size"], columns, loss)
        wanted = reference.leave_one_out(catalogue.LAWS["per-size"], columns, loss).errors if noise else np.zeros(7)
        assert found.predicted == 7
        for error in found.errors - wanted:
            check("laws.held_out.closed", abs(float(error)), 1 / step, message=f"E {step:g} apart, noise {noise:g}")


@pytest.mark.parametrize("step", [1e-2, 1e-4])
def test_a_plane_whose_other_rows_have_nearly_one_N(step):
    """The row at 1e8 follows from three near 1e7. A shortcut must not lose digits or the row."""
    size = np.array([1e7, 1e7 * (1 + step), 1e7 * (1 + 2 * step), 1e8])
    loss = 10.0 ** (1.2 - 0.08 * np.log10(size))
    found = fast.held_out.leave_one_out(fast.catalogue.LAWS["dense"], [size], loss)
    assert found.predicted == 4
    for error in found.errors:
        check("laws.held_out.closed", abs(float(error)), 1 / step, message=f"an exact line, N {step:g} apart")


def test_comparison_of_forms():
    """The law that made the rows wins. The test computes the paired standard error again row by row."""
    runs = table(1e-3, SIZES)
    columns = {"dense_parameters": runs.dense_parameters, "num_experts": runs.num_experts}
    names = ("per-size", "separable", "bilinear", "routed-bounded")
    found = fast.held_out.compare_forms(
        [fast.catalogue.LAWS[name] for name in names], columns, runs.loss, runs.dense_parameters
    )
    for scores, groups in (
        (found.leave_one_out, np.arange(runs.loss.size)),
        (found.leave_one_group_out, runs.dense_parameters),
    ):
        by_name = {score.name: score for score in scores}
        assert tuple(by_name) == names
        best = by_name["routed-bounded"]
        assert (best.verdict, best.excess, best.standard_error) == ("best", 0.0, 0.0)
        for name in ("separable", "bilinear"):
            score = by_name[name]
            difference = score.held_out.errors**2 - best.held_out.errors**2
            sums = [
                difference[groups == group].sum() - difference.mean() * (groups == group).sum()
                for group in np.unique(groups)
            ]
            error = math.sqrt(len(sums) * np.var(sums, ddof=1)) / difference.size
            check("laws.held_out.paired", abs(score.excess - difference.mean()), best.held_out.rmsle**2)
            check("laws.held_out.paired", abs(score.standard_error - error), best.held_out.rmsle**2)
            assert score.verdict == ("worse" if difference.mean() > error else "as good as the best")
        assert by_name["separable"].verdict == "worse"
    assert found.leave_one_group_out[0].verdict == "predicts nothing"
    check(
        "laws.held_out.paired",
        abs(found.leave_one_out[1].standard_error - standard_error_of_a_mean(found)),
        found.leave_one_out[3].held_out.rmsle ** 2,
    )


def standard_error_of_a_mean(found) -> float:
    """Return the textbook's standard error. The paired error equals it for groups of one row."""
    first, best = found.leave_one_out[1].held_out.errors, found.leave_one_out[3].held_out.errors
    return float(np.std(first**2 - best**2, ddof=1) / math.sqrt(first.size))


@given(seed=st.integers(0, 2**32 - 1))
def test_comparisons_agree(seed):
    random = np.random.default_rng(seed)
    runs = table()
    runs = runs._replace(loss=runs.loss * 10 ** random.normal(0, 5e-3, runs.loss.size))
    columns = {"dense_parameters": runs.dense_parameters, "num_experts": runs.num_experts}
    for groups in (runs.dense_parameters, np.arange(runs.loss.size) % 2):  # two groups are enough
        both = [
            module.compare_forms([laws[name] for name in LINEAR], columns, runs.loss, groups)
            for module, laws in ((fast.held_out, fast.catalogue.LAWS), (reference, catalogue.LAWS))
        ]
        for ours, theirs in zip(both[0][0] + both[0][1], both[1][0] + both[1][1], strict=True):
            assert (ours.name, ours.verdict) == (theirs.name, theirs.verdict)
            for one, other in ((ours.excess, theirs.excess), (ours.standard_error, theirs.standard_error)):
                assert math.isnan(one) == math.isnan(other)
                if not math.isnan(other):
                    check("laws.held_out.paired", abs(one - other))


PAPER = {"S-Base": (0.0029, 0.0061, 0.0042), "RL-R": (0.0022, 0.0068, 0.0037), "Hash": (0.0033, 0.0068, 0.0040)}
"""Leave-one-out RMSLE of per-size lines (dense runs of all seeds), separable and bilinear (seed 42), to four digits."""


@pytest.mark.released
@pytest.mark.parametrize("router", PAPER)
def test_released_errors(router):
    runs = released_runs(router)
    laws, module = fast.catalogue.LAWS, fast.held_out
    rows = {name: module.leave_one_out(laws[name], runs[:2], runs.loss).rmsle for name in FORMS[1:5]}
    every = released_runs(router, seeds=("1", "2", "3", "42"))
    lines = module.leave_one_out(laws["per-size"], every[:2], every.loss).rmsle
    assert tuple(round(error, 4) for error in (lines, rows["separable"], rows["bilinear"])) == PAPER[router]
    assert rows["routed-bounded"] < rows["bilinear"] and rows["per-size"] < rows["routed-bounded"]
    sizes = {
        name: module.leave_one_group_out(laws[name], runs[:2], runs.loss, runs.dense_parameters).rmsle
        for name in FORMS[2:5]
    }
    assert rows["routed-bounded"] < sizes["routed-bounded"] < sizes["bilinear"] < sizes["separable"]
