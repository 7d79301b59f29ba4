"""Find the ends of profile intervals of the bounded law, for `uncertainty.py`.

Private to the reference: the accelerated package has its own kernel. Step 1 is in `uncertainty.py`: a value v of a
`Quantity` is allowed if some law with this value has a residual sum of at most `limit`.

2. At one shape (rise, bend) the law is linear in β = (intercept, size, gain, interaction), with the columns of
   `_projection.columns`. Sizes are relative to n̄, the mean log10 N of the table: n₀ = log10 N - n̄. A law has value v
   if it meets one linear condition h·β = s. Let X be the columns, β̂ the least-squares solution and RSS its residual
   sum. The least residual sum of all β that meet the condition is (by a Lagrange multiplier)

       RSS + (h·β̂ - s)² / (hᵀ (XᵀX)⁻¹ h)                                                       (`least_sum`)

   An observation is a new run: one more row with its own error, so add 1 to the denominator.
3. Most quantities are linear in β at a given shape, so v is allowed if the condition h·β = v is allowed. Let ψ₀ = ψ(E -
   1). Let span = log10(1 + rise·top/(1 + bend·top)). Ê grows by this many decades from E = 1 to the largest E of the
   table. Let K = log10(E_start/Ê₀)/span, where Ê₀ is `Quantity.effective` (1 by default). Each quantity has this h:

       prediction, observation   (1, n₀, ψ₀, ψ₀n₀)        slope, b   (0, 0, 1, n₀)/span; b is the slope at N = 1
       gain                      (0, 0, ψ₀, ψ₀n₀)         c          (0, 0, 0, 1)/span
                                                          a          (0, 1, 0, -K)
                                                          d          (1, n₀, -K, -K n₀) at N = 1

   Two quantities are ratios, v = (y·β)/(x·β), so the condition is (y - v x)·β = 0:

       log10 N̄ - log10 N      = ψ₀ (gain + interaction n₀) / size        (effective_parameters)
       log10 N_cutoff - n̄     = -gain / interaction                      (N_cutoff)

4. β̂ gives the best value. The least residual sum grows on both sides of the best value. So no value beyond an end is
   allowed, and bisection finds each end (`_last_allowed`). A ratio has no end if x·β = 0 is allowed.
5. The interval is the union over all shapes: `minimise` finds the least lower end and the greatest upper end of the
   allowed shapes. E_start and E_max are properties of the shape itself (`_own_ends`).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..fitting import _FACES, RoutedFit
from ._projection import Logs, columns, expert_curve, minimise, shape

PLACE = {
    "a": (), "b": (), "c": (), "d": (), "E_start": (), "E_max": (), "N_cutoff": (), "slope": ("N",),
    "gain": ("N", "E"), "prediction": ("N", "E"), "observation": ("N", "E"), "effective_parameters": ("N", "E"),
}  # fmt: skip
"""The names of the quantities. Each lists which of N and E it needs."""

_POWERS = ("N_cutoff", "effective_parameters", "prediction", "observation")
"""The quantities that are log10 in this file."""


class Solved(NamedTuple):
    """The least-squares problem of one shape (step 2)."""

    residual: float  # RSS
    limit: float  # the allowed residual sum, or RSS if the shape is rejected
    solution: np.ndarray  # [4] β̂
    root: np.ndarray  # [4, 4], with root rootᵀ = (XᵀX)⁻¹, so hᵀ(XᵀX)⁻¹h = |rootᵀh|²


def union(rows: Logs, quantity, fit: RoutedFit, limit: float) -> tuple[float, float, float]:
    """Return (best value, low end, high end) in the units of the quantity (step 5)."""
    _, value, low, high = at_shape(rows, quantity, limit, fit.curve.rise, fit.curve.bend)

    @functools.cache  # the searches for both ends try many of the same shapes
    def at(t: float, w: float) -> tuple[float, float, float, float]:
        return at_shape(rows, quantity, limit, *shape(t, w, rows.extra_experts.max()))

    # Rejected shapes sort after all others (False < True), the worst last. This leads the search to allowed shapes.
    def low_end(t: float, w: float) -> tuple[bool, float]:
        residual, _, end, _ = at(t, w)
        return (True, residual) if residual > limit or math.isnan(end) else (False, end)

    def high_end(t: float, w: float) -> tuple[bool, float]:  # with a minus sign, since `minimise` finds the least
        residual, _, _, end = at(t, w)
        return (True, residual) if residual > limit or math.isnan(end) else (False, -end)

    for _, t_range, w_range in _FACES:  # also search each edge of the domain: an end often lies on one
        _, _, (rejected, end) = minimise(low_end, t_range, w_range)
        low = low if rejected else np.fmin(low, end)  # fmin and fmax return the number if the other is NaN
        _, _, (rejected, end) = minimise(high_end, t_range, w_range)
        high = high if rejected else np.fmax(high, -end)
    if quantity.name in _POWERS:
        with np.errstate(over="ignore", under="ignore"):
            value, low, high = 10.0 ** np.array([value, low, high])
    return float(value), float(low), float(high)


def at_shape(rows: Logs, quantity, limit: float, rise: float, bend: float) -> tuple[float, float, float, float]:
    """Return the residual sum of one shape, and the best value, the low end and the high end of its allowed values.

    Values are in the units of the quantity, or in log10 for the names in `_POWERS`. If the residual sum of the shape is
    above the limit, both ends equal the best value.
    """
    solved = _solve(rows, limit, rise, bend)
    if quantity.name in ("E_start", "E_max"):
        ends = _own_ends(quantity.name, rise, bend)
    elif quantity.name == "N_cutoff":
        ends = rows.log_size.mean() + np.array(cutoff_ends(solved, (0, 0, 1, 0), (0, 0, 0, 1)))
    elif quantity.name == "effective_parameters":
        ends = _worth_ends(rows, quantity, solved, rise, bend)
    elif quantity.name in ("a", "d"):
        ends = _dense_ends(rows, quantity, solved, rise, bend)
    else:
        ends = _routed_ends(rows, quantity, solved, rise, bend)
    return solved.residual, *(float(end) for end in ends)


def _solve(rows: Logs, limit: float, rise: float, bend: float) -> Solved:
    """Return the least-squares problem of one shape, with columns X = Q · triangle."""
    unit, triangle = np.linalg.qr(columns(rows, rise, bend))
    mean = rows.log_loss.mean()  # subtracted here, added to the intercept at the end: fewer digits cancel
    scores = unit.T @ (rows.log_loss - mean)
    residual = float(np.sum((rows.log_loss - mean - unit @ scores) ** 2))
    root = np.linalg.inv(triangle)
    return Solved(residual, max(limit, residual), root @ scores + [mean, 0, 0, 0], root)


def least_sum(solved: Solved, missed: float, variance: float) -> float:
    """Return the least residual sum of all β with h·β = s (step 2).

    `missed` is h·β̂ - s, and `variance` is hᵀ(XᵀX)⁻¹h.

    Example:
        Two rows measure β = (1, 3). Among all β whose entries sum to 2, (0, 2) is the nearest to (1, 3). Each entry
        differs by 1, so the residual sum is 2.

        >>> two = Solved(residual=0.0, limit=2.0, solution=np.array([1.0, 3.0]), root=np.eye(2))
        >>> least_sum(two, missed=1 + 3 - 2, variance=_variance(two, np.array([1.0, 1.0])))
        2.0
    """
    if missed == 0:
        return solved.residual
    return float(solved.residual + missed * missed / variance) if variance > 0 else math.inf  # h = 0: s is impossible


def _variance(solved: Solved, h: np.ndarray) -> float:
    """Return hᵀ(XᵀX)⁻¹h = |rootᵀh|²."""
    return float(np.sum((h @ solved.root) ** 2))


def _last_allowed(solved: Solved, least: Callable[[float], float], best: float, step: float) -> float:
    """Return the allowed value that is furthest from `best` in the direction of `step`.

    The steps double until a value is rejected. Then bisection runs until no float64 number lies between the last
    allowed and the first rejected value.
    """
    if solved.limit == solved.residual:  # only the least-squares solution is allowed
        return best
    inside, outside = best, best + step
    while least(outside) <= solved.limit:
        inside, outside = outside, outside + 2 * (outside - inside)
    middle = (inside + outside) / 2
    while min(inside, outside) < middle < max(inside, outside):
        if least(middle) <= solved.limit:
            inside = middle
        else:
            outside = middle
        middle = (inside + outside) / 2
    return inside


def _both_ends(solved: Solved, least: Callable[[float], float], best: float) -> tuple[float, float]:
    step = 1 + abs(best)  # near the linear limit a best value may be 1e20, which a step of 1 would not change
    return _last_allowed(solved, least, best, -step), _last_allowed(solved, least, best, step)


def linear_ends(solved: Solved, h: tuple, noise: float = 0.0) -> np.ndarray:
    """Return the best value of h·β and both ends; noise is 1 for an observation.

    Example:
        In the example of `least_sum`, the entries of β̂ sum to 4. A sum of 4 ± 2 has a residual sum of 2, the limit.

        >>> two = Solved(residual=0.0, limit=2.0, solution=np.array([1.0, 3.0]), root=np.eye(2))
        >>> print(linear_ends(two, (1.0, 1.0)).round(12))
        [4. 2. 6.]
    """
    h = np.array(h, dtype=np.float64)
    best, variance = float(h @ solved.solution), _variance(solved, h) + noise

    def least(v: float) -> float:
        return least_sum(solved, best - v, variance)

    return np.array([best, *_both_ends(solved, least, best)])


def ratio_ends(solved: Solved, y: tuple, x: tuple) -> tuple[float, float, float]:
    """Return the best value of (y·β)/(x·β) and both ends. The ends are infinite if x·β = 0 is allowed.

    Example:
        In the example of `least_sum`, the second entry of β̂ divided by the first is 3. With a limit of 0.1, a ratio v
        is allowed if (3 - v)² <= 0.1 (1 + v²).

        >>> two = Solved(residual=0.0, limit=0.1, solution=np.array([1.0, 3.0]), root=np.eye(2))
        >>> best, low, high = ratio_ends(two, (0.0, 1.0), (1.0, 0.0))
        >>> print(best, [round((3 - v) ** 2 / (1 + v**2), 12) for v in (low, high)])
        3.0 [0.1, 0.1]
    """
    y, x = np.array(y, dtype=np.float64), np.array(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = float((y @ solved.solution) / (x @ solved.solution))
    if least_sum(solved, x @ solved.solution, _variance(solved, x)) <= solved.limit:
        return best, -math.inf, math.inf

    def least(v: float) -> float:
        h = y - v * x
        return least_sum(solved, h @ solved.solution, _variance(solved, h))

    return best, *_both_ends(solved, least, best)


def _routed_ends(rows: Logs, quantity, solved: Solved, rise: float, bend: float) -> np.ndarray:
    """Return the best value and both ends of prediction, observation, gain, slope, b or c (see the table of step 3)."""
    name, top = quantity.name, rows.extra_experts.max()
    n = (math.log10(quantity.N) if PLACE[name] else 0.0) - rows.log_size.mean()  # b is the slope at N = 1
    if "E" in PLACE[name]:
        psi = float(expert_curve(quantity.E - 1.0, rise, bend, top))
        dense = (0, 0) if name == "gain" else (1, n)
        return linear_ends(solved, (*dense, psi, psi * n), noise=float(name == "observation"))
    ends = linear_ends(solved, (0, 0, 0, 1) if name == "c" else (0, 0, 1, n))
    with np.errstate(divide="ignore", invalid="ignore"):  # in the linear limit the span is 0 and only the sign remains
        return ends / _span(rows, rise, bend)


def _dense_ends(rows: Logs, quantity, solved: Solved, rise: float, bend: float) -> np.ndarray:
    """Return the best value and both ends of a or d, with h = dense - K · routed (see the table of step 3)."""
    n = -rows.log_size.mean()  # N = 1
    dense, routed = np.array([[0, 1, 0, 0], [0, 0, 0, 1]] if quantity.name == "a" else [[1, n, 0, 0], [0, 0, 1, n]])
    taken_at = math.log10(quantity.effective)  # log10 Ê₀
    if rise > 0:
        K = (max(math.log10(rise / (rise + bend) ** 2), 0.0) - taken_at) / _span(rows, rise, bend)
        return linear_ends(solved, dense - K * routed)
    # K has no unique value in the linear limit: it is 0 for E_start = 1 and Ê₀ = 1, and grows without limit with
    # E_start. It also goes to -∞ if Ê₀ is above E_start.
    with np.errstate(invalid="ignore"):  # ∞ times 0 is NaN, which fmin and fmax ignore
        value, *ends = math.inf * linear_ends(solved, -routed)  # only the signs matter
    if taken_at == 0:
        ends += list(linear_ends(solved, dense))
    elif taken_at > 0:
        ends += [-end for end in ends]
    return np.array([value, np.fmin.reduce(ends), np.fmax.reduce(ends)])


def _span(rows: Logs, rise: float, bend: float) -> np.float64:
    """Return the decades by which Ê grows from E = 1 to the largest E of the table."""
    top = rows.extra_experts.max()
    return np.log1p(rise * top / (1 + bend * top)) / math.log(10)


def _worth_ends(rows: Logs, quantity, solved: Solved, rise: float, bend: float) -> tuple[float, float, float]:
    """Return log10 of effective_parameters at one shape: the best value and both ends."""
    at = math.log10(quantity.N)
    psi = float(expert_curve(quantity.E - 1.0, rise, bend, rows.extra_experts.max()))
    ends = ratio_ends(solved, (0, 0, psi, psi * (at - rows.log_size.mean())), (0, 1, 0, 0))
    return tuple(at + end for end in ends)


def cutoff_ends(solved: Solved, gain: tuple, interaction: tuple) -> tuple[float, float, float]:
    """Return the n at which gain·β + n interaction·β rises to 0: the best value and both ends.

    The sum rises with n only if interaction·β is above 0. Then n is -(gain·β)/(interaction·β). Draw each law as a point
    with the coordinates x = interaction·β and y = -gain·β. Then n is the slope of the line from the origin to the
    point, and the search finds the lowest and the highest allowed angle of this line. At 90° n is ∞, and at -90° it is
    -∞. If 90° is allowed, the high end is ∞. If -90° is allowed, there is no end on either side. If no angle from -90°
    to 90° is allowed, the result is (∞, ∞, ∞), because no allowed law rises to 0.
    """
    y, x = np.array(gain, dtype=np.float64), np.array(interaction, dtype=np.float64)
    right, up = float(x @ solved.solution), float(-(y @ solved.solution))
    least = functools.partial(_least_in_direction, solved, y, x)
    straight_up, straight_down = (least(angle) <= solved.limit for angle in (math.pi / 2, -math.pi / 2))
    if right <= 0 and not straight_up and not straight_down:
        return math.inf, math.inf, math.inf
    best = math.atan2(up, right) if right > 0 else math.pi / 2
    low = math.tan(_last_allowed(solved, least, best, -math.pi)) if not straight_down else -math.inf
    high = math.tan(_last_allowed(solved, least, best, math.pi)) if not (straight_up or straight_down) else math.inf
    return (up / right if right > 0 else math.inf), low, high


def _least_in_direction(solved: Solved, y: np.ndarray, x: np.ndarray, angle: float) -> float:
    """Return the least residual sum of all β with (x·β, -y·β) = r (cos(angle), sin(angle)) and r >= 0."""
    h = y * math.cos(angle) + x * math.sin(angle)  # h·β = 0 is the whole line; the direction is half of it
    spread = solved.root @ (h @ solved.root)
    nearest = solved.solution - spread * (h @ solved.solution) / (h @ spread)  # on the line; its sum is `least_sum`
    if math.cos(angle) * (x @ nearest) - math.sin(angle) * (y @ nearest) >= 0:
        return least_sum(solved, h @ solved.solution, _variance(solved, h))
    pair = np.stack([y, x])  # else the origin is the nearest: y·β = x·β = 0
    missed, across = pair @ solved.solution, pair @ solved.root
    return solved.residual + float(missed @ np.linalg.solve(across @ across.T, missed))


def _own_ends(name: str, rise: float, bend: float) -> tuple[float, float, float]:
    """Return E_start or E_max of a shape: best value, low end and high end; NaN, 1 and ∞ in the linear limit."""
    if rise == 0:
        return math.nan, 1.0, math.inf
    both = rise + bend  # 1/E_start - 1/E_max
    if name == "E_start":
        effective = max(rise / both**2, 1.0)  # 1 up to rounding, on that edge
    else:
        effective = rise / (both * bend) if bend > 0 else math.inf
    return effective, effective, effective
