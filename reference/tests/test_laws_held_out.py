"""Held-out errors against plain refits and hand-computed values, and comparisons of forms."""

import math

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.reference import laws as reference_laws
from routelaws.reference.laws import catalogue
from routelaws.reference.laws import held_out as reference
from routelaws.reference.tests.strategies_laws import (
    EXPERTS,
    SIZES,
    Runs,
    grid,
)


def columns_of(name: str, runs: Runs) -> list[np.ndarray]:
    """Return the columns of a law. Every row has another B, the least first."""
    if name == "dense":
        return [runs.dense_parameters]
    if name == "routed-utilisation":
        return [runs.dense_parameters / 1e9, 0.2 + runs.num_experts / 8 * (1 + np.arange(runs.loss.size) / 90)]
    return [runs.dense_parameters, runs.num_experts]


def table(noise: float = 3e-3, sizes=SIZES[:4]) -> Runs:
    return grid(noise, 8, sizes=sizes, experts=EXPERTS[::2])


@pytest.fixture
def laws():
    """Return the laws of this room. The tests of the fast twin repeat three tests with its laws."""
    return reference_laws


@pytest.mark.parametrize("name", ["mean", "dense"])
def test_a_law_of_the_users_own_is_refitted(laws, name):
    """The law is the mean of log10 L. Without row i the error is n/(n - 1) times the row's distance from the mean.

    A known name must not lead to a shortcut of the catalogue.
    """
    law = laws.catalogue.LAWS["dense"]._replace(
        name=name,
        fit=lambda size, loss: np.log10(loss).mean(),
        predict=lambda fit, size: np.full(size.shape, 10.0**fit),
    )
    loss = 10.0 ** np.array([0.1, 0.2, 0.6, 0.3])
    found = laws.held_out.leave_one_out(law, [np.array([1e6, 1e7, 1e8, 1e9])], loss)
    for error, by_hand in zip(found.errors, [4 / 15, 2 / 15, -0.4, 0.0], strict=True):
        check("laws.held_out.closed", abs(error - by_hand))


def test_what_cannot_be_predicted_is_counted(laws):
    """The largest size has two rows.

    Without one of them, the line of this size is missing. Without all rows of a size, its line is missing, too.
    """
    runs = table(sizes=SIZES[:3])
    keep = (runs.dense_parameters < SIZES[2]) | (runs.num_experts < 5)
    runs = Runs(*(column[keep] for column in runs))
    lonely = runs.dense_parameters == SIZES[2]
    assert lonely.sum() == 2
    rows = laws.held_out.leave_one_out(laws.catalogue.LAWS["per-size"], runs[:2], runs.loss)
    assert np.array_equal(np.isnan(rows.errors), lonely) and rows.predicted == runs.loss.size - 2
    sizes = laws.held_out.leave_one_group_out(
        laws.catalogue.LAWS["per-size"], runs[:2], runs.loss, runs.dense_parameters
    )
    assert sizes.predicted == 0 and math.isnan(sizes.rmsle) and sizes.folds == 3


def test_lines_without_a_row_to_spare_predict_nothing(laws):
    """With five rows for two lines, leaving one out loses a line or the residual's degree of freedom."""
    size, experts = np.array([1e7, 1e7, 1e7, 1e8, 1e8]), np.array([1.0, 8.0, 64.0, 1.0, 8.0])
    loss = np.array([3.0, 2.8, 2.7, 2.5, 2.4])
    assert laws.held_out.leave_one_out(laws.catalogue.LAWS["per-size"], [size, experts], loss).predicted == 0
    columns = [np.append(size, 1e7), np.append(experts, 512.0)]
    assert laws.held_out.leave_one_out(laws.catalogue.LAWS["per-size"], columns, np.append(loss, 2.6)).predicted == 4


def test_a_fold_that_does_not_determine_the_law_is_nan():
    """Without one of two sizes, no law has a slope in N."""
    runs = table(sizes=SIZES[:2])
    for name in ("dense", "separable", "bilinear", "routed-bounded"):
        columns = columns_of(name, runs)
        found = reference.leave_one_group_out(catalogue.LAWS[name], columns, runs.loss, runs.dense_parameters)
        assert (found.predicted, found.folds) == (0, 2), name


@pytest.mark.parametrize(
    ("errors", "best", "verdict"),
    [
        ((0.0, 0.0, 0.1, 0.1), (0.0, 0.0, 0.0, 0.0), "worse"),  # d is 0.5 e² ± 0.29 e²
        ((0.0, 0.0, 0.0, 0.2), (0.1, 0.1, 0.1, 0.0), "as good as the best"),  # 0.25 e² ± 1.25 e²
    ],
)
def test_a_form_is_worse_from_one_standard_error_on(errors, best, verdict):
    assert verdicts(errors, best) == [verdict, "best"]


@pytest.mark.parametrize("more", [1e-9, -1e-9])
def test_forms_that_differ_by_rounding_are_equally_good(more):
    """A law with a floor of 0 is the law without one. The order of the forms decides, not the rounding."""
    assert verdicts((0.1, 0.1, 0.1, 0.1), (0.1 + more, 0.1 + more, 0.1 + more, 0.1)) == ["best", "as good as the best"]


def verdicts(errors, best) -> list[str]:
    """Return the verdicts on two forms with these errors of four rows, each its own group."""
    sizes, loss = np.array([1e6, 2e6, 3e6, 4e6]), np.array([3.0, 2.9, 2.8, 2.7])

    def form(name, errors):
        return catalogue.LAWS["dense"]._replace(
            name=name,
            fit=lambda size, loss: None,
            predict=lambda _, size: 10.0 ** (np.log10(loss) + errors)[np.searchsorted(sizes, size)],
        )

    forms = [form("other", np.array(errors)), form("best", np.array(best))]
    found = reference.compare_forms(forms, {"dense_parameters": sizes}, loss, sizes)
    return [score.verdict for score in found.leave_one_group_out]


def test_a_form_that_predicts_fewer_rows_is_never_best():
    runs = table(1e-4, SIZES)
    keep = (runs.dense_parameters < SIZES[5]) | (runs.num_experts < 5)
    runs = Runs(*(column[keep] for column in runs))
    columns = {"dense_parameters": runs.dense_parameters, "num_experts": runs.num_experts}
    found = reference.compare_forms(
        [catalogue.LAWS["per-size"], catalogue.LAWS["separable"]], columns, runs.loss, runs.dense_parameters
    )
    lines, plane = found.leave_one_out
    assert lines.held_out.rmsle < plane.held_out.rmsle and lines.held_out.predicted < plane.held_out.predicted
    assert (lines.verdict, plane.verdict) == ("predicts fewer rows", "best")
