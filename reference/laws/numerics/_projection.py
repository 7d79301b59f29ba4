"""Shared functions of `fitting.py` and `uncertainty.py`: the law, linear in four unknowns, and a safe search.

Private to the reference: the accelerated package has its own kernel. In the order of use: `check_rows` takes
logarithms. `shape` maps the unit square onto all (rise, bend), the two nonlinear coefficients. `expert_curve` is ψ.
`columns` are the factors of the four linear coefficients, and `residual_sum` is the residual sum of the best four.
`minimise` searches the square. The equations are in `fitting.py`.

`minimise` searches the square line by line. For each t it finds the least value over w. Then it finds the t with the
least of these values. It scans each line from end to end and refines the lowest points, because a line often has two
minima. A descent through the square would fail in the narrow slanted valley of E_start and E_max. The search can miss
only a minimum that lies wholly between two points of a scan, 1/48 apart. Tests compare the fit with much denser scans.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...notation import check_finite

SCAN = 49  # points of the scan of a line
CANDIDATES = 3  # low points of a scan to refine
GOLDEN = (math.sqrt(5) - 1) / 2  # 0.618, the share of an interval that a golden-section step keeps
STEPS = 37  # golden-section steps; they leave 2/48 · 0.618³⁷ = 8e-10 of the interval around a scan point
STRAIGHT = 1e-14  # below these rise·top and bend·top, rounding of the losses hides the curvature of ψ
RESOLUTION = 1e-10  # log10; the search itself moves predictions by this much (root mean square)
LEAST_EXPERT_COUNTS = 4  # ψ is 0 at E = 1 and 1 at the top; two more E fix rise and bend
LEAST_CELLS = 6  # different (N, E): one for each coefficient
INDEPENDENT = 1e-8  # columns of length 1 are dependent if a singular value is below this


class Words(NamedTuple):
    """The names of the columns and of the two nonlinear coefficients in error messages."""

    size: str = "size"
    sizes: str = "sizes"
    experts: str = "num_experts"
    expert_count: str = "num_experts"  # one of them
    expert_counts: str = "num_experts"  # several
    searched: str = "E_start and E_max"
    instead: str = "; the laws bilinear and separable need 2"


ROUTED_WORDS = Words()


class Logs(NamedTuple):
    """A checked table, in the units of the fit."""

    log_size: np.ndarray  # [n] log10 N
    extra_experts: np.ndarray  # [n] x = E - 1
    log_loss: np.ndarray  # [n] log10 L


def check_range(name: str, values: np.ndarray, above: float = -math.inf, least: float = -math.inf) -> np.ndarray:
    """Return `values` as float64. Raise ValueError unless all are finite, above `above` and at least `least`."""
    # Give a lone number an axis, so that a message can name its entry.
    listed = check_finite(name, np.atleast_1d(values))
    good = (listed > above) & (listed >= least)
    if not good.all():
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        allowed = f"above {above:g}" if math.isfinite(above) else f"at least {least:g}"
        raise InputError(f"{name}: entry {where} is {listed[where]}; every entry has to be {allowed}")
    return listed.reshape(np.shape(values))


def plural(number: int, noun: str) -> str:
    """Return a count with its noun, for messages: 1 row, 2 rows."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def check_lengths(**columns: np.ndarray) -> None:
    """Raise InputError unless the columns have one axis and equal lengths."""
    shapes = [column.shape for column in columns.values()]
    if len(shapes[0]) != 1 or len(set(shapes)) > 1:
        *names, last = columns
        raise InputError(
            f"{', '.join(names)} and {last} have shapes {', '.join(map(str, shapes[:-1]))} and {shapes[-1]}; "
            "pass one-dimensional arrays of the same length"
        )


def need_rows(rows: int, coefficients: int, law: str) -> None:
    """Raise InputError unless the table has more rows than the law has coefficients."""
    if rows <= coefficients:
        raise InputError(
            f"{plural(rows, 'row')}; the {law} law has {coefficients} coefficients and needs at least "
            f"{coefficients + 1} rows"
        )


def independent(design: np.ndarray) -> bool:
    """Return whether the columns of `design` are linearly independent, up to rounding."""
    length = np.linalg.norm(design, axis=0)
    return bool(np.all(length > 0)) and np.linalg.matrix_rank(design / length, tol=INDEPENDENT) == design.shape[1]


def check_rows(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, words: Words = ROUTED_WORDS
) -> Logs:
    """Return the table in logarithms. Raise ValueError as `fit_routed` does, with these words."""
    size = np.atleast_1d(check_range("dense_parameters", dense_parameters, above=0.0))
    experts = np.atleast_1d(check_range("num_experts", num_experts, least=1.0))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    check_lengths(dense_parameters=size, num_experts=experts, loss=loss)
    need_rows(size.size, 6, "bounded")
    _check_told_apart(size, experts, words)
    return Logs(np.log10(size), experts - 1.0, np.log10(loss))


def _check_told_apart(size: np.ndarray, experts: np.ndarray, words: Words) -> None:
    levels = np.unique(experts).size
    if levels < LEAST_EXPERT_COUNTS:
        raise InputError(
            f"{levels} different {words.expert_counts}; {words.searched} cannot be determined with fewer than "
            f"{LEAST_EXPERT_COUNTS}{words.instead}"
        )
    cells = np.unique(np.stack([size, experts]), axis=1).shape[1]
    if cells < LEAST_CELLS:
        raise InputError(
            f"{cells} different pairs of {words.size} and {words.experts}; 6 coefficients need at least {LEAST_CELLS}"
        )
    if not _independent(np.log10(size), experts - 1.0):
        raise InputError(
            f"the effects of {words.size}, {words.experts} and their product cannot be distinguished in these rows; "
            f"needed: at least two {words.sizes}, with more than one {words.expert_count} at two of them"
        )


def _independent(log_size: np.ndarray, extra_experts: np.ndarray) -> bool:
    """Return whether the four columns (`fitting.py`, step 2) are independent at both extremes of ψ."""
    offset = log_size - log_size.mean()
    return all(
        independent(np.stack([np.ones_like(psi), offset, psi, psi * offset], axis=1))
        for psi in (np.log1p(extra_experts), extra_experts)
    )


def shape(t: float, w: float, top: float) -> tuple[float, float]:
    """Map a point of the unit square onto (rise, bend). The map covers the whole domain (`fitting.py`, step 1).

    t represents 1/E_start and w represents E_start/E_max; both run from 0 to 1. Let g(v) = (1 + top)^v - 1. Then equal
    steps of t and w change E_start and E_max by nearly equal factors, within the range of the table:

        1/E_start = g(t)/top        E_start/E_max = g(w)/(g(w) + g(1 - w))

    The sides of the square are special cases: E_start = 1 at t = 1, E_max = ∞ at w = 0, and the linear limit at t = 0
    and at w = 1.
    """

    def stretch(v: float) -> float:
        return math.expm1(v * math.log1p(top))

    inverse_start = min(stretch(t) / top, 1.0)
    both = stretch(w) + stretch(1 - w)
    ratio, rest = stretch(w) / both, stretch(1 - w) / both  # rest = 1 - ratio, without cancellation
    rise, bend = inverse_start * rest**2, inverse_start * rest * ratio
    # So close to the linear limit, losses cannot distinguish it from the limit itself.
    return (0.0, 0.0) if max(rise, bend) * top < STRAIGHT else (rise, bend)


def expert_curve(extra_experts: np.ndarray, rise: float, bend: float, top: float) -> np.ndarray:
    """Return ψ(x) = log(1 + rise·x/(1 + bend·x)), divided by its value at x = top; x/top where rise = 0."""
    # The linear limit has its own formula, because the quotient would be 0/0.
    if rise == 0:
        return extra_experts / top
    return np.log1p(rise * extra_experts / (1 + bend * extra_experts)) / math.log1p(rise * top / (1 + bend * top))


def columns(rows: Logs, rise: float, bend: float) -> np.ndarray:
    """Return the factors of the four linear unknowns (`fitting.py`, step 2): 1, n, ψ and ψ·n, [rows, 4].

    n is log10 N minus its mean over the table. This prevents nearly collinear columns.
    """
    offset = rows.log_size - rows.log_size.mean()
    psi = expert_curve(rows.extra_experts, rise, bend, rows.extra_experts.max())
    return np.array([np.ones(offset.size), offset, psi, psi * offset]).T


def residual_sum(rows: Logs, rise: float, bend: float) -> float:
    """Return the smallest sum of squared residuals at one (rise, bend), log10 units squared.

    Example:
        The losses alternate from row to row, so the law cannot fit them.

        >>> size, experts = np.repeat([7.0, 8.0], 4), np.tile([0.0, 1.0, 2.0, 3.0], 2)
        >>> rows = Logs(size, experts, np.tile([0.01, -0.01], 4))
        >>> round(residual_sum(rows, 0.0, 0.0), 6)  # a straight line through four points takes a fifth of 8e-4
        0.00064
    """
    design = columns(rows, rise, bend)
    target = rows.log_loss - rows.log_loss.mean()  # subtracting the mean loses fewer digits than the first column
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(np.sum((target - design @ solution) ** 2))


def minimise(
    function: Callable[[float, float], float], t_range: tuple[float, float], w_range: tuple[float, float]
) -> tuple[float, float, float]:
    """Return (t, w, value) at the least value of `function` over a rectangle; see the top of this file.

    Only the order of the values matters, so they may be infinite or tuples.

    Example:
        A narrow slanted valley.

        >>> t, w, value = minimise(lambda t, w: 1e4 * (t - w) ** 2 + (t + w - 1.3) ** 2, (0.0, 1.0), (0.0, 1.0))
        >>> round(t, 6), round(w, 6)
        (0.65, 0.65)
    """

    def least_over_w(t: float) -> tuple[float, float]:
        return least_on_line(lambda w: function(t, w), *w_range)

    value, t = least_on_line(lambda t: least_over_w(t)[0], *t_range)
    return t, least_over_w(t)[1], value


def least_on_line(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return (value, point) at the least value of a function from `low` to `high`: scan, then refine the low points.

    Example:
        >>> value, point = least_on_line(lambda x: min((x - 0.2) ** 2 + 0.01, (x - 0.8) ** 2), 0.0, 1.0)
        >>> round(value, 9), round(point, 6)
        (0.0, 0.8)
    """
    if low == high:
        return function(low), low
    points = np.linspace(low, high, SCAN).tolist()
    values = [function(point) for point in points]
    # A point is low if no neighbour is lower.
    left, right = [max(k - 1, 0) for k in range(SCAN)], [min(k + 1, SCAN - 1) for k in range(SCAN)]
    lows = [k for k in range(SCAN) if values[k] <= min(values[left[k]], values[right[k]])]
    minima = []
    for k in sorted(lows, key=lambda k: values[k])[:CANDIDATES]:
        minima += [(values[k], points[k]), _narrow_down(function, points[left[k]], points[right[k]])]
    return min(minima)


def _narrow_down(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return (value, point) at the only minimum between `low` and `high`, by golden-section search.

    Each of two inner points divides the interval by the golden ratio. Each step drops the part beyond the inner point
    with the higher value. The other inner point divides the new interval by the golden ratio, so each step needs only
    one new value.
    """
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return min((at_left, left), (at_right, right))
