"""Whether a point is among the runs that a law was fitted to, or beyond them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LETTERS = {
    "dense_parameters": "N", "active_parameters": "N", "total_parameters": "N", "num_experts": "E", "tokens": "D",
    "granularity": "G", "teraflops": "F", "utilisation": "B",
}  # fmt: skip
"""What a column of a law is called in words; its own name if it is not here."""

NOT_SURROUNDED = "no runs surround this point, although each of its numbers is within their range: an extrapolation"


class Beyond(NamedTuple):
    """A number of a point that is outside the range of the runs."""

    column: str  # of the law
    value: float
    end: float  # the nearer end of the range

    @property
    def letter(self) -> str:
        return LETTERS.get(self.column, self.column)

    @property
    def times(self) -> float:
        """How many times the nearer end the number is: above 1 beyond the largest, below 1 before the smallest."""
        return self.value / self.end


def beyond(names: Sequence[str], columns: Sequence[np.ndarray], at: Sequence[float]) -> list[Beyond]:
    """Return the numbers of a point that no run reaches, in the order of the columns.

    Args:
        names: of the columns.
        columns: [n] each, of the runs.
        at: the point, a number for each column.
    """
    found = []
    for name, column, value in zip(names, columns, at, strict=True):
        low, high = float(np.min(column)), float(np.max(column))
        if value > high * (1 + 1e-9) or value < low * (1 - 1e-9):
            found.append(Beyond(name, float(value), high if value > high else low))
    return found


def extrapolation(outside: Sequence[Beyond], surrounded: bool | None) -> list[str]:
    """Return in sentences why a prediction at a point leans on the form of the law, and not on runs near the point.

    Args:
        outside: of `beyond`.
        surrounded: of `inside_hull`; None where the runs are not at hand.
    """
    said = []
    for each in outside:
        which = "largest" if each.value > each.end else "smallest"
        times = f"{each.times:.3g} times the {which} of the runs ({each.end:g})"
        said.append(f"{each.letter} = {each.value:g} is {times}: an extrapolation")
    return said or [NOT_SURROUNDED] * (surrounded is False)


def inside_hull(columns: tuple[np.ndarray, ...], at: tuple[float, ...]) -> bool:
    """Return whether a point lies in the convex hull of the data, in logarithms.

    It does if it is a mean of data points with weights that are at least 0: a linear program, which, unlike a
    triangulation, also takes points that lie on one line.
    """
    from scipy.optimize import linprog

    points = np.unique(np.log10(np.stack(columns)), axis=1)
    centre, spread = points.mean(axis=1, keepdims=True), points.std(axis=1, keepdims=True)
    spread[spread == 0] = 1.0
    equal = np.vstack([(points - centre) / spread, np.ones(points.shape[1])])
    target = np.append((np.log10(np.array(at)) - centre[:, 0]) / spread[:, 0], 1.0)
    found = linprog(np.zeros(points.shape[1]), A_eq=equal, b_eq=target, bounds=(0, None), method="highs")
    return bool(found.status == 0)
