"""Coverage of the intervals of the additive laws, on noisy tables of stated laws with stated seeds.

Intervals that are open on a side are counted separately. A coefficient with mostly open intervals is not identified by
such a table, so its few closed intervals are not tested.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.conformance.plain.laws import held
from routelaws.reference.laws import fine_grained, hoffmann, joint, sparsity
from routelaws.reference.tests.strategies_additive import SIZES

TABLES = 200
NOISE = 3e-3
"""Error of ln L, as in the released points."""


class Design(NamedTuple):
    """A law of the catalogue, a table like its paper's, and two points: inside the table and beyond it."""

    axes: tuple
    truth: NamedTuple
    predict: Callable  # of the reference
    inside: tuple
    beyond: tuple
    error: float  # of ln L
    open_ones: tuple  # the coefficients that such a table does not identify
    tables: int = TABLES  # fewer if one table takes seconds; `held` allows for chance


DESIGNS = {
    "kaplan": Design(
        ((*SIZES, 3e9), np.geomspace(5e8, 2e11, 8)),
        hoffmann.PUBLISHED["kaplan"].coefficients,
        hoffmann.predict_kaplan,
        (1e9, 1e10),
        (1e10, 1e12),
        NOISE,
        (),
    ),
    "fine-grained": Design(
        (
            fine_grained.fine_grained_parameters(np.array([256.0, 384, 512, 640, 768]), 64),
            (1.6e10, 3.3e10, 6.6e10, 1.3e11),
            (1.0, 2.0, 4.0, 8.0, 16.0),
        ),
        fine_grained.PUBLISHED["E=64"].coefficients,
        fine_grained.predict_fine_grained,
        (1e9, 3e10, 4.0),
        (5e10, 5e11, 16.0),
        1e-3,  # with twice this, c has no lower end in two of five tables
        (),
    ),
    "joint": Design(
        ((3e7, 1e8, 3e8, 1e9, 2.7e9), (2e9, 8e9, 3.2e10, 1.28e11), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
        joint.PUBLISHED["joint"].coefficients,
        joint.predict_joint,
        (5e8, 2e10, 4.0),
        (2e10, 1e12, 16.0),
        2e-3,
        ("E_max",),
    ),
    "sparsity": Design(
        ((1e8, 5e8, 2e9, 1e10), (1e9, 1e10, 1e11), (0.0, 0.5, 0.75, 0.9, 0.95)),
        sparsity.PUBLISHED,
        sparsity.predict_loss,
        (1e9, 2e10, 0.8),
        (3e10, 3e11, 0.97),
        2e-3,
        ("e",),
        60,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_intervals_of_later_laws_hold_the_truth_as_often_as_they_say(name):
    """The nominal coverage is 95 %. Intervals of unidentified coefficients are often open; other intervals rarely are.

    Measured coverage with the seeds from 0 on: Kaplan's law 0.915 to 0.955, fine-grained 0.945 to 0.975, joint 0.950 to
    0.980 of 200 tables, sparsity 0.933 to 0.983 of 60. Predictions of the fine-grained law beyond the table are as wide
    as Student's t with the true error, 0.0041 of ln L: 195 of 200 intervals contain the truth.
    """
    design, law = DESIGNS[name], fast.catalogue.LAWS[name]
    columns = [axis.ravel() for axis in np.meshgrid(*design.axes)]
    exact = design.predict(*columns, design.truth)
    truth = design.truth._asdict()
    for place in ("inside", "beyond"):
        truth[place] = float(design.predict(*getattr(design, place), design.truth))
    counts, open_ones = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for seed in range(design.tables):
        loss = exact * np.exp(np.random.default_rng(seed).normal(0, design.error, exact.size))
        fit = law.fit(*columns, loss)
        ends = {each.name: (each.low, each.high) for each in law.intervals(fit, columns, loss)}
        for place in ("inside", "beyond"):
            ends[place] = law.predict_interval(fit, columns, loss, getattr(design, place)).law
        for each, (low, high) in ends.items():
            counts[each] += low <= truth[each] <= high
            open_ones[each] += low in (0.0, -np.inf) or high == np.inf
    for each in design.open_ones:
        assert open_ones.pop(each) > design.tables / 4 and counts.pop(each) >= 0.9 * design.tables
    assert max(open_ones.values()) <= 0.05 * design.tables, open_ones
    held(counts, design.tables, 0.95, wrong=0.8 if design.tables == TABLES else 0.6)
