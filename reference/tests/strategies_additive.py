"""Generated tables of runs for the tests of the additive laws.

`CASES` lists the differences between the laws, so that one test covers all of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from routelaws.reference.laws import fine_grained, hoffmann, joint

SIZES = (3e7, 1e8, 3e8, 1e9)
TOKENS = (1e9, 5e9, 2.5e10, 1.2e11)


class Case(NamedTuple):
    """One law: its file, the functions of both twins, the axes of a table, and coefficients to draw."""

    file: str
    fit: str
    predict: str
    intervals: str
    axes: tuple[tuple[float, ...], ...]  # of a full grid, in the order of the columns
    laws: st.SearchStrategy
    kind: type  # of the coefficients

    def of(self, laws) -> tuple[Callable, Callable, Callable]:
        """Return (fit, predict, intervals) of a twin."""
        module = getattr(laws, self.file)
        return getattr(module, self.fit), getattr(module, self.predict), getattr(module, self.intervals)

    def columns(self, scale: float = 1.0) -> list[np.ndarray]:
        """Return the columns of the full grid. `scale` multiplies the first one."""
        first, *rest = (axis.ravel() for axis in np.meshgrid(*self.axes))
        return [scale * first, *rest]


def _of(kind: type, **ranges) -> st.SearchStrategy:
    return st.builds(kind, **{name: st.floats(low, high) for name, (low, high) in ranges.items()})


CASES = {
    "hoffmann": Case(
        "hoffmann", "fit_hoffmann", "predict_hoffmann", "hoffmann_intervals", (SIZES, TOKENS),
        _of(
            hoffmann.HoffmannCoefficients,
            a=(100, 900), alpha=(0.25, 0.45), b=(300, 3000), beta=(0.25, 0.45), c=(1, 2),
        ),
        hoffmann.HoffmannCoefficients,
    ),
    "kaplan": Case(
        "hoffmann", "fit_kaplan", "predict_kaplan", "kaplan_intervals", (SIZES, TOKENS),
        _of(
            hoffmann.KaplanCoefficients,
            alpha_N=(0.065, 0.085), N_c=(4e13, 1e14), alpha_D=(0.09, 0.12), D_c=(1e13, 4e13),
        ),
        hoffmann.KaplanCoefficients,
    ),
    "fine-grained": Case(
        "fine_grained", "fit_fine_grained", "predict_fine_grained", "fine_grained_intervals",
        ((1e8, 4e8, 2e9), (8e9, 3.3e10, 1.3e11), (1.0, 4.0, 16.0)),
        _of(
            fine_grained.FineGrainedCoefficients,
            a=(15, 25), alpha=(0.1, 0.14), b=(25, 60), beta=(0.13, 0.17), g=(1, 3), gamma=(0.5, 1.0), c=(0.4, 0.8),
        ),
        fine_grained.FineGrainedCoefficients,
    ),
    "joint": Case(
        "joint", "fit_joint", "predict_joint", "joint_intervals",
        (SIZES, (1e9, 1e10, 1e11), (1.0, 2.0, 4.0, 16.0, 64.0)),
        _of(
            joint.JointCoefficients,
            a=(25, 45), alpha=(-0.21, -0.17), delta=(-0.3, -0.15), gamma=(0.005, 0.015),
            b=(25, 45), beta=(-0.2, -0.16), omega=(0.3, 0.6), zeta=(-0.03, -0.01), E_start=(1.5, 3.0), E_max=(60, 300),
            c=(1.2, 1.6),
        ),
        joint.JointCoefficients,
    ),
}  # fmt: skip
"""The laws by name."""


def _power(least: float, most: float) -> st.SearchStrategy:
    return st.floats(np.log(least), np.log(most)).map(lambda log: float(np.exp(log)))


WIDE = {
    "hoffmann": st.builds(
        lambda x, alpha, y, beta, c: hoffmann.HoffmannCoefficients(x * 3e8**alpha, alpha, y * 1e10**beta, beta, c),
        _power(0.05, 3), st.floats(0.05, 0.8), _power(0.05, 3), st.floats(0.05, 0.8), _power(0.1, 5),
    ),
    "fine-grained": st.builds(
        lambda x, alpha, y, beta, z, gamma, c: fine_grained.FineGrainedCoefficients(
            x * 5e8**alpha, alpha, y * 3e10**beta, beta, z * 5e8**alpha, gamma, c
        ),
        _power(0.1, 3), st.floats(0.05, 0.5), _power(0.05, 2), st.floats(0.05, 0.5), _power(0.02, 1),
        st.floats(0.2, 1.5), _power(0.1, 2),
    ),
}  # fmt: skip
"""Laws far beyond the printed ones. Terms in the middle of a table are drawn from 0.02 to 5 nats."""


def huber_terms(residual: np.ndarray, delta: float | None) -> np.ndarray:
    """Return Huber's terms by another formula than the twins; half the squares without delta."""
    inner = np.abs(residual) if delta is None else np.minimum(np.abs(residual), delta)
    return inner * (np.abs(residual) - inner / 2)


def huber_sum(residual: np.ndarray, delta: float | None) -> float:
    return float(huber_terms(residual, delta).sum())
