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


@pytest.fixture
def laws():
    return fast


@pytest.mark.slow
@settings(phases=NO_SHRINKING, max_examples=settings.default.max_examples // 4)
@given(runs=noisy_tables(), name=st.sampled_from(FORMS[4:]))
def test_bounded_laws_are_refits(runs, name):
    """Three folds across sizes are enough: the reference takes half a second or more for each."""
    groups, columns = np.arange(runs.loss.size) % 3, columns_of(name, runs)
    wanted = reference.leave_one_group_out(catalogue.LAWS[name], columns, runs.loss, groups)
    found = fast.held_out.leave_one_group_out(fast.catalogue.LAWS[name], columns, runs.loss, groups)
    scale = 1.0 + float(np.nanmax(np.abs(wanted.errors), initial=0.0))
    assert (found.predicted, found.folds) == (wanted.predicted, wanted.folds)
    assert np.array_equal(np.isnan(found.errors), np.isnan(wanted.errors))
    for ours, theirs in zip((*found.errors, found.rmsle), (*wanted.errors, wanted.rmsle), strict=True):
        if not math.isnan(theirs):
            check("laws.held_out.searched", abs(ours - theirs), scale, message=name)
    assert math.isnan(found.rmsle) == (found.predicted == 0)


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
