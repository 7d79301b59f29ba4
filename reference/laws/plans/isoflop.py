"""The best size at one budget: by a parabola through runs of equal FLOPs, and by a law.

This is the second approach of Hoffmann et al. 2022 (arXiv 2203.15556). Runs of several sizes N spend the same training
FLOPs C, so a larger model sees fewer tokens. The losses of one budget are its isoFLOP profile. Fit a parabola in x = ln
N to them:

    L ≈ p x² + q x + r   by least squares;   x* = -q/(2p),   L* = r - q²/(4p)

Only p > 0 has a minimum. A law that uses N and D gives the whole profile without a parabola: with D = C/(κ N), where κ
is the FLOPs for each parameter and token (usually 6),

    L(x) = a e^(-αx) + b (κ/C)^β e^(βx) + c

The two minima differ for two reasons. The two parts of the difference add up in ln N (`minimum_difference`):

    shape   the law's profile is no parabola: it is steeper on one side unless α = β. So the minimum of a parabola
            through the law's own losses, at the sizes of the runs, differs from the law's minimum. The difference is
            larger if the sizes lie on one side of the minimum, and smaller if they are close to the minimum (arXiv
            2603.22339 calls it a bias).
    runs    the other part: the runs' losses differ from the law's losses, by chance or because the law is wrong here.

The FLOPs of two runs are rarely exactly equal. `isoflop_budgets` collects runs whose FLOPs differ by at most a given
factor.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..numerics._projection import check_range

WINDOW = 1.25
"""The largest allowed ratio between the FLOPs of two runs of one budget. Our choice."""

LEAST_SIZES = 4
"""Fewest different sizes of a profile: a parabola has three unknowns, and a fourth size shows its error. Our choice."""

REACH = 100.0
"""Factor by which the search for the minimum of a law extends beyond the sizes of the runs. Our choice."""


class Minimum(NamedTuple):
    """The size with the least loss at one budget.

    Attributes:
        size: N; NaN if there is no minimum
        loss: nats per token; NaN if there is no minimum
        curvature: p, nats per unit of (ln N)²
        error: standard error of ln size from the residuals; NaN for a law, and for a parabola through three runs
    """

    size: float
    loss: float
    curvature: float
    error: float = math.nan


class MinimumDifference(NamedTuple):
    """ln N at the minimum of the parabola, minus ln N at the minimum of the law."""

    shape: float  # the part due to the parabola: it misses the minimum even on the law's own losses
    runs: float  # the part due to the runs: their losses differ from the law's losses


def isoflop_budgets(flops: np.ndarray, sizes: np.ndarray, window: float = WINDOW) -> list[np.ndarray]:
    """Return the indices of the runs of each budget, the smallest budget first.

    The window with the most runs is the first budget. The search repeats with the remaining runs until no window has
    `LEAST_SIZES` different sizes.

    Args:
        flops: [n], training FLOPs.
        sizes: [n], N.
        window: the largest allowed ratio between the FLOPs of two runs of one budget.

    Example:
        >>> flops = np.array([1e18, 1.1e18, 0.9e18, 1e18, 5e18, 1e19])
        >>> [found.tolist() for found in isoflop_budgets(flops, np.array([1.0, 2.0, 4.0, 8.0, 1.0, 2.0]))]
        [[0, 1, 2, 3]]
    """
    flops, sizes = check_range("flops", flops, above=0.0), check_range("sizes", sizes, above=0.0)
    left, budgets = np.ones(len(flops), bool), []
    while left.any():
        inside = left & (flops >= flops[:, None]) & (flops <= window * flops[:, None])  # [start, run]
        best = inside[np.argmax(np.where(left, inside.sum(axis=1), 0))]
        if len(np.unique(sizes[best])) < LEAST_SIZES:
            break
        budgets.append(np.flatnonzero(best))
        left &= ~best
    return sorted(budgets, key=lambda runs: flops[runs].min())


def parabola(sizes: np.ndarray, losses: np.ndarray) -> Minimum:
    """Fit a parabola of the loss as a function of ln N to the runs of one budget, and return its minimum.

    Args:
        sizes: [n], N, at least three different sizes.
        losses: [n], nats per token.

    Raises:
        ValueError: there are fewer than three different sizes, or an entry is out of range.

    Example:
        The losses are 3 + 0.1 (ln N - ln 2e8)².

        >>> sizes = 2e8 * np.exp([-1.0, 0.0, 2.0, 3.0])
        >>> found = parabola(sizes, np.array([3.1, 3.0, 3.4, 3.9]))
        >>> f"{found.size:.4g} {found.loss:.4f} {found.curvature:.4f}"
        '2e+08 3.0000 0.1000'
    """
    sizes, losses = check_range("sizes", sizes, above=0.0), check_range("losses", losses)
    if len(np.unique(sizes)) < 3:
        raise InputError(f"sizes has {len(np.unique(sizes))} different values; a parabola needs at least 3")
    centre = np.log(sizes).mean()
    x = np.log(sizes) - centre
    design = np.stack([x**2, x, np.ones_like(x)], axis=1)
    p, q, r = np.linalg.lstsq(design, losses, rcond=None)[0]
    if not p > 0:
        return Minimum(math.nan, math.nan, float(p))
    lowest = -q / (2 * p)
    residual, free = losses - design @ [p, q, r], len(x) - 3
    error = math.nan
    if free:
        slope = np.array([q / (2 * p**2), -1 / (2 * p), 0.0])  # derivatives of the minimum's x by p, q and r
        covariance = residual @ residual / free * np.linalg.inv(design.T @ design)
        error = math.sqrt(slope @ covariance @ slope)
    return Minimum(math.exp(centre + lowest), float(r - q**2 / (4 * p)), float(p), error)


def law_minimum(profile: Callable, sizes: np.ndarray) -> Minimum:
    """Return the minimum of a law's profile: scan ln N, then scan more finely around the lowest point.

    Args:
        profile: function of N [n] that returns losses [n] at the budget.
        sizes: [n], N of the runs; the scan extends beyond the smallest and the largest by the factor `REACH`.

    Returns:
        `Minimum`; size and loss are NaN if the lowest point is at an end of the scan.
    """
    low, high = math.log(sizes.min() / REACH), math.log(sizes.max() * REACH)
    for _ in range(3):  # a fourth would be below the rounding of the losses
        x = np.linspace(low, high, 1001)
        losses = profile(np.exp(x))
        best = int(np.argmin(losses))
        if best in (0, len(x) - 1):
            return Minimum(math.nan, math.nan, math.nan)
        low, high = x[best - 1], x[best + 1]
    step = 0.01
    around = profile(np.exp(x[best] + step * np.array([-1.0, 0.0, 1.0])))
    return Minimum(math.exp(x[best]), float(losses[best]), float((around[0] - 2 * around[1] + around[2]) / 2 / step**2))


def minimum_difference(measured: Minimum, law: Minimum, sizes: np.ndarray, profile: Callable) -> MinimumDifference:
    """Return the difference of ln N between the minima of parabola and law, in two parts; NaN if a minimum is missing.

    Args:
        measured: the minimum of `parabola` through the runs of one budget.
        law: the minimum of `law_minimum`.
        sizes: [n], N of the runs.
        profile: as in `law_minimum`.
    """
    shape = parabola(sizes, profile(sizes)).size
    return MinimumDifference(math.log(shape / law.size), math.log(measured.size / shape))
