"""The laws that the data do not reject, and the ends of what they say: the engine of `uncertainty.py`.

Private to the reference (the fast twin has its own kernel). A `quantity` is a `Quantity` of that file, and step 1 is
there: the value v is allowed if some law that says v has a residual sum of squares of at most `limit`.

2. At one shape (rise, bend) the law is linear in β = (intercept, size, gain, interaction), with the columns of
   `_projection.columns`; sizes are counted from n̄, the mean log10 N of the table: n₀ = log10 N - n̄. That a law says v
   is one linear condition h·β = s on it. Let X be the columns, β̂ the least-squares solution and RSS its residual sum.
   The least residual sum of all β that meet the condition is (by a Lagrange multiplier)

       RSS + (h·β̂ - s)² / (hᵀ (XᵀX)⁻¹ h),

   which grows with the square of what β̂ misses the condition by. The condition is allowed if this is at most `limit`.
   The denominator is the variance of h·β̂ where the errors have variance 1.

3. Most quantities are linear in β at a given shape, v = h·β, so that s = v: the values allowed are those of a parabola
   below a line, h·β̂ ± √(room · hᵀ(XᵀX)⁻¹h) with room = limit - RSS (`_linear_ends`). A new run is one more row, whose
   error may take a share of the room: for an observation 1 is added to the variance. With ψ₀ = ψ(E - 1),
   span = log10(1 + rise·top/(1 + bend·top)), the decades of Ê from E = 1 to the largest E of the table, and
   K = log10(E_start/Ê₀)/span with Ê₀ = 1, unless the quantity names another, the h of each is

       prediction, observation   (1, n₀, ψ₀, ψ₀n₀)        slope, b   (0, 0, 1, n₀)/span, of which b at N = 1
       gain                      (0, 0, ψ₀, ψ₀n₀)         c          (0, 0, 0, 1)/span
                                                          a          (0, 1, 0, -K)
                                                          d          (1, n₀, -K, -K n₀) at N = 1

4. Two are ratios, v = (y·β)/(x·β), so that the condition is (y - v x)·β = 0, linear as well: h = y - v x and s = 0.

       log10 N̄ - log10 N      = ψ₀ (gain + interaction n₀) / size        (effective_parameters)
       log10 N_cutoff - n̄     = -gain / interaction                      (N_cutoff)

   h is of first degree in v, so that step 2 is an inequality of second degree in v (`_ratio`). As long as x·β = 0
   is rejected, the values allowed lie between its two roots. Else they run to infinity.
5. The interval is the union over all shapes: its ends are the least lower end and the greatest upper end of the shapes
   that are allowed, found as the optimum of the fit is, by `minimise`. Were the union in pieces, this would be the
   shortest interval that holds them. E_start and E_max belong to the shape itself (`_own_ends`).
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from ._projection import Rows, columns, expert_curve, minimise, shape
from .fitting import _FACES, RoutedFit

PLACE = {
    "a": (), "b": (), "c": (), "d": (), "E_start": (), "E_max": (), "N_cutoff": (), "slope": ("N",),
    "gain": ("N", "E"), "prediction": ("N", "E"), "observation": ("N", "E"), "effective_parameters": ("N", "E"),
}  # fmt: skip
"""The names of quantities, and which of N and E each is taken at."""

_POWERS = ("N_cutoff", "effective_parameters", "prediction", "observation")
"""What this file has as log10."""


class Solved(NamedTuple):
    """The least-squares problem of one shape (step 2)."""

    residual: float  # RSS
    room: float  # limit - RSS, or 0 where the shape is rejected
    solution: np.ndarray  # [4] β̂
    root: np.ndarray  # [4, 4], with root rootᵀ = (XᵀX)⁻¹, so that hᵀ(XᵀX)⁻¹h = |rootᵀh|²


def union(rows: Rows, quantity, fit: RoutedFit, limit: float) -> tuple[float, float, float]:
    """Return (best value, low end, high end) in the units of the quantity (step 5)."""
    _, value, low, high = at_shape(rows, quantity, limit, fit.curve.rise, fit.curve.bend)

    @functools.cache  # the searches for both ends go over much the same shapes
    def at(t: float, w: float) -> tuple[float, float, float, float]:
        return at_shape(rows, quantity, limit, *shape(t, w, rows.extra_experts.max()))

    # Shapes that are rejected come behind all others (False < True), the worse the further: so the search is led to
    # those that are allowed.
    def low_end(t: float, w: float) -> tuple[bool, float]:
        residual, _, end, _ = at(t, w)
        return (True, residual) if residual > limit or math.isnan(end) else (False, end)

    def high_end(t: float, w: float) -> tuple[bool, float]:  # less its sign, since `minimise` finds the least
        residual, _, _, end = at(t, w)
        return (True, residual) if residual > limit or math.isnan(end) else (False, -end)

    for _, t_range, w_range in _FACES:  # the edges of the domain by themselves too: an end often lies on one
        _, _, (rejected, end) = minimise(low_end, t_range, w_range)
        low = low if rejected else np.fmin(low, end)  # fmin and fmax take the number where the other one is NaN
        _, _, (rejected, end) = minimise(high_end, t_range, w_range)
        high = high if rejected else np.fmax(high, -end)
    if quantity.name in _POWERS:
        with np.errstate(over="ignore", under="ignore"):
            value, low, high = 10.0 ** np.array([value, low, high])
    return float(value), float(low), float(high)


def at_shape(rows: Rows, quantity, limit: float, rise: float, bend: float) -> tuple[float, float, float, float]:
    """Return the residual sum of one shape, and the best value, the low end and the high end of what is allowed there.

    Values are in the units of the quantity, but for those of `_POWERS`. Where the shape is rejected (a residual sum
    above the limit) both ends are the best value.
    """
    solved = _solve(rows, limit, rise, bend)
    if quantity.name in ("E_start", "E_max"):
        ends = _own_ends(quantity.name, rise, bend)
    elif quantity.name == "N_cutoff":
        ends = _cutoff_ends(rows, solved)
    elif quantity.name == "effective_parameters":
        ends = _worth_ends(rows, quantity, solved, rise, bend)
    elif quantity.name in ("a", "d"):
        ends = _dense_ends(rows, quantity, solved, rise, bend)
    else:
        ends = _routed_ends(rows, quantity, solved, rise, bend)
    return solved.residual, *(float(end) for end in ends)


def _solve(rows: Rows, limit: float, rise: float, bend: float) -> Solved:
    """Return the least-squares solution at one shape, with columns X = Q · triangle."""
    unit, triangle = np.linalg.qr(columns(rows, rise, bend))
    mean = rows.log_loss.mean()  # taken off, and put on the intercept at the end, so that fewer digits cancel
    scores = unit.T @ (rows.log_loss - mean)
    residual = float(np.sum((rows.log_loss - mean - unit @ scores) ** 2))
    root = np.linalg.inv(triangle)
    return Solved(residual, max(limit - residual, 0.0), root @ scores + [mean, 0, 0, 0], root)


def _linear_ends(solved: Solved, h: tuple, noise: float = 0.0) -> np.ndarray:
    """Return the best value, the low end and the high end of h·β (step 3); noise is 1 for an observation."""
    value, variance = h @ solved.solution, np.sum((h @ solved.root) ** 2)  # |rootᵀh|²
    return value + np.array([0, -1, 1]) * math.sqrt(solved.room * (variance + noise))


def _routed_ends(rows: Rows, quantity, solved: Solved, rise: float, bend: float) -> np.ndarray:
    """Return the best value and both ends of prediction, observation, gain, slope, b or c (the table of step 3)."""
    name, top = quantity.name, rows.extra_experts.max()
    n = (math.log10(quantity.N) if PLACE[name] else 0.0) - rows.log_size.mean()  # of b at N = 1
    if "E" in PLACE[name]:
        psi = float(expert_curve(quantity.E - 1.0, rise, bend, top))
        dense = (0, 0) if name == "gain" else (1, n)
        return _linear_ends(solved, (*dense, psi, psi * n), noise=float(name == "observation"))
    ends = _linear_ends(solved, (0, 0, 0, 1) if name == "c" else (0, 0, 1, n))
    with np.errstate(divide="ignore", invalid="ignore"):  # in the linear limit, where the span is 0, the sign is left
        return ends / _span(rows, rise, bend)


def _dense_ends(rows: Rows, quantity, solved: Solved, rise: float, bend: float) -> np.ndarray:
    """Return the best value and both ends of a or d: h = dense - K · routed (the table of step 3)."""
    n = -rows.log_size.mean()  # N = 1
    dense, routed = np.array([[0, 1, 0, 0], [0, 0, 0, 1]] if quantity.name == "a" else [[1, n, 0, 0], [0, 0, 1, n]])
    taken_at = math.log10(quantity.effective)  # log10 Ê₀
    if rise > 0:
        K = (max(math.log10(rise / (rise + bend) ** 2), 0.0) - taken_at) / _span(rows, rise, bend)
        return _linear_ends(solved, dense - K * routed)
    # The linear limit is reached in many ways: with E_start = 1 and Ê₀ = 1 K is 0, and it grows without end as E_start
    # does. Where Ê₀ is above 1, E_start may be smaller, and K runs to infinity on that side too.
    with np.errstate(invalid="ignore"):  # ∞ times 0 is NaN, which fmin and fmax below pass over
        value, *ends = math.inf * _linear_ends(solved, -routed)  # the sign of each is what counts
    if taken_at == 0:
        ends += list(_linear_ends(solved, dense))
    elif taken_at > 0:
        ends += [-end for end in ends]
    return np.array([value, np.fmin.reduce(ends), np.fmax.reduce(ends)])


def _span(rows: Rows, rise: float, bend: float) -> np.float64:
    """Return how many decades Ê grows from E = 1 to the largest E of the table."""
    top = rows.extra_experts.max()
    return np.log1p(rise * top / (1 + bend * top)) / math.log(10)


def _worth_ends(rows: Rows, quantity, solved: Solved, rise: float, bend: float) -> tuple[float, float, float]:
    """Return log10 of the best effective_parameters and of their ends at one shape."""
    at = math.log10(quantity.N)
    psi = float(expert_curve(quantity.E - 1.0, rise, bend, rows.extra_experts.max()))
    one_sign, best, low, high = _ratio(solved, (0, 0, psi, psi * (at - rows.log_size.mean())), (0, 1, 0, 0))
    if not one_sign:  # a size slope of 0 is allowed: no dense size, or any, is as good
        return at + best, -math.inf, math.inf
    return at + best, at + low, at + high


def _cutoff_ends(rows: Rows, solved: Solved) -> tuple[float, float, float]:
    """Return log10 of the best N_cutoff and of its ends at one shape, where log10 N is counted from its mean."""
    return tuple(rows.log_size.mean() + end for end in cutoff_ends(solved, (0, 0, 1, 0), (0, 0, 0, 1)))


def cutoff_ends(solved: Solved, gain: tuple, interaction: tuple) -> tuple[float, float, float]:
    """Return the best n at which gain·β + n interaction·β rises to 0, and its ends.

    Only with an interaction above 0 does the sum rise with n; the best n is infinite where the best interaction is not.
    Three cases, by the sign that the interaction may have:

    - above 0 alone: the ends are the two roots of step 2;
    - below 0 alone: nothing rises to 0, and both ends are infinite;
    - both signs, and 0 between them: the ratios -gain/interaction that are allowed are those below the lower root and
      those above the higher one. As the interaction falls to 0 the ratio runs to ∞ if the best gain there is below
      0: then the cut-offs are the sizes above the higher root. If it is above 0, the ratio runs to -∞, and there is no
      low end. The high end is infinite either way.
    """
    y, x = np.array(gain, dtype=np.float64), np.array(interaction, dtype=np.float64)
    one_sign, best, low, high = _ratio(solved, -y, x)
    if one_sign and x @ solved.solution < 0:
        return math.inf, math.inf, math.inf
    if not one_sign:
        u, u_x = y @ solved.root, x @ solved.root
        # The best gain of all laws with an interaction of 0.
        gain_at_0 = y @ solved.solution - (x @ solved.solution) * (u @ u_x) / (u_x @ u_x)
        low, high = (high if gain_at_0 < 0 else -math.inf), math.inf
    return (best if x @ solved.solution > 0 else math.inf), low, high


def _ratio(solved: Solved, y: tuple, x: tuple) -> tuple[bool, float, float, float]:
    """Return whether x·β has one sign, the best v = (y·β)/(x·β), and the two roots of step 2 for h = y - v x, s = 0.

    With v = v̂ + δ, v̂ the best one, that condition is missed by h·β̂ = -δ (x·β̂), and step 2 reads

        δ² (x·β̂)² <= room |u - δ u_x|²,     u = rootᵀ(y - v̂ x),  u_x = rootᵀx,     or, multiplied out,
        steep δ² + 2 lean δ - room |u|² <= 0,     steep = (x·β̂)² - room |u_x|²,  lean = room u·u_x.

    steep > 0 says that x·β = 0 is rejected: the values allowed lie between the roots. Else they lie outside them, or,
    without roots, everywhere; then the higher root is given as -∞, so that every value is above it.
    """
    y, x = np.array(y, dtype=np.float64), np.array(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = (y @ solved.solution) / (x @ solved.solution)
        u, u_x = (y - best * x) @ solved.root, x @ solved.root
        steep, lean = (x @ solved.solution) ** 2 - solved.room * (u_x @ u_x), solved.room * (u @ u_x)
        inner = lean**2 + steep * solved.room * (u @ u)
        if not inner >= 0:
            return False, best, math.inf, -math.inf
        roots = best + (np.array([-1.0, 1.0]) * math.sqrt(inner) - lean) / steep
    return bool(steep > 0), best, roots.min(), roots.max()


def _own_ends(name: str, rise: float, bend: float) -> tuple[float, float, float]:
    """Return E_start or E_max of a shape, as best value and both ends; in the linear limit NaN, 1 and ∞."""
    if rise == 0:
        return math.nan, 1.0, math.inf
    both = rise + bend  # 1/E_start - 1/E_max
    if name == "E_start":
        own = max(rise / both**2, 1.0)  # 1 but for rounding, on that edge
    else:
        own = rise / (both * bend) if bend > 0 else math.inf
    return own, own, own
