"""Efficiency leverage: how many times more compute a dense model needs than a mixture of experts of equal loss.

Shared with `routelaws.reference.laws.leverage`. The search for A_start differs: SciPy refines the best
point of a coarse scan.
"""

import math

import numpy as np

from routelaws.reference.laws import leverage as reference

from ._searches import share

_GRID = 49


def _best_start(columns: list[np.ndarray], limit: float) -> tuple[float, str]:
    from scipy.optimize import minimize_scalar

    def squares(log_start: float) -> float:
        return reference._squares(columns, math.exp(log_start), limit)

    low, high = math.log(reference._LEAST_START), math.log(reference._LARGEST_START)
    grid = np.linspace(low, high, _GRID)
    best = int(np.argmin([squares(t) for t in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    at = float(minimize_scalar(squares, bounds=ends, method="bounded", options={"xatol": 1e-10}).x)
    if at <= low + 0.01:
        return math.exp(at), "A_start at its lower end"
    return math.exp(at), "A_start at its upper end" if at >= high - 0.01 else "interior"


share(__name__)
