"""The next run: add every candidate, refit and measure."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.reference import laws
from routelaws.reference.laws import Asked, Range

SIZE, EXPERTS = (v.ravel() for v in np.meshgrid([3e7, 1e8, 4e8], [1.0, 4.0, 16.0, 64.0]))
CANDIDATES = [(n, e) for n in (1e7, 1e8, 2e9) for e in (1.0, 8.0, 256.0)]


def losses(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 3e-3, SIZE.size)
    return 10 ** (
        1.1 - 0.08 * np.log10(SIZE) - 0.06 * np.log10(EXPERTS) + 0.004 * np.log10(SIZE) * np.log10(EXPERTS) + noise
    )


@given(seed=st.integers(0, 2**32 - 1))
def test_the_width_is_that_of_student_with_the_row_added(seed):
    """The separable law is linear: width = 2 t(n + 1 - p) s' √(g (X'ᵀX')⁻¹ g), s'² = SSE/(n + 1 - p), old SSE."""
    loss, at = losses(seed), (2e9, 64.0)
    law = laws.catalogue.LAWS["separable"]
    found = laws.next_run.next_runs(law, [SIZE, EXPERTS], loss, CANDIDATES, Asked("prediction", at))
    design, target = np.stack([np.log10(SIZE), np.log10(EXPERTS), np.ones(SIZE.size)], axis=1), np.log10(loss)
    solution, squares, *_ = np.linalg.lstsq(design, target, rcond=None)
    g = np.array([math.log10(at[0]), math.log10(at[1]), 1.0])
    quantile = laws.student_quantile(0.95, SIZE.size + 1 - 3)
    for run in found:
        row = np.array([math.log10(run.at[0]), math.log10(run.at[1]), 1.0])
        inverse = np.linalg.inv(design.T @ design + np.outer(row, row))
        reach = quantile * math.sqrt(float(squares[0]) / (SIZE.size + 1 - 3) * float(g @ inverse @ g))
        centre = float(g @ solution)
        check("laws.next_run.width", abs(run.width / (10 ** (centre + reach) - 10 ** (centre - reach)) - 1))


def test_far_runs_narrow_more_than_near_ones():
    law = laws.catalogue.LAWS["separable"]
    asked = Asked("prediction", (2e9, 64.0))
    found = laws.next_run.next_runs(law, [SIZE, EXPERTS], losses(0), CANDIDATES, asked)
    assert found[0].at[0] == 2e9
    near = next(run for run in found if run.at == (1e8, 8.0))
    assert near is found[-1] or near.width > 1.2 * found[0].width


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, 2.0) for name in ("N_cutoff", "F_cutoff", "E_start", "E_max", "B_start", "B_max", "N_c")] + [("b", 99.0)],
)
def test_what_is_known_to_a_factor_is_as_wide_as_its_logarithm(name, width):
    """An interval from 1 to 100 has a width of two decades for a size or a count, and of 99 for a slope.

    The width is infinite for an open end.
    """
    for low, wanted in ((1.0, width), (0.0, 100.0 if name == "b" else math.inf), (math.nan, math.inf)):
        law = SimpleNamespace(intervals=lambda *_, low=low: [Range(name, None, 10.0, low, 100.0, "")])
        assert laws.next_run.interval_of(law, None, [], np.array([]), Asked(name))[2] == wanted
