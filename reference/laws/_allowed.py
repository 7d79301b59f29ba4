"""The laws that the data do not reject, and the ends of what they say: the engine of `uncertainty.py`.

Private to the reference (the fast twin has its own kernel). Step 1 is in `uncertainty.py`: a law is allowed if its
residual sum of squares is at most `limit`. A `quantity` is a `Quantity` of that file.

2. At a fixed shape (rise, bend) the law is linear in β = (intercept, size, gain, interaction), step 2 of `fitting.py`.
   With the four columns = Q·Δ, Q orthonormal and Δ a triangle (`_solve`), and z = Qᵀ log10 L, the laws allowed at this
   shape are an ellipsoid: |Δβ - z|² <= room = limit - RSS_shape. All sizes are counted from n̄, the mean log10 N of the
   table: n₀ = log10 N - n̄.
3. Most quantities are linear there, v = h·β (`_linear`). With u = Δ⁻ᵀh, v̂ = u·z, and the values allowed are

       v̂ ± √(room · |u|²),      for an observation      v̂ ± √(room · (1 + |u|²)).

   With ψ₀ = ψ(E - 1), span = log10(1 + rise·top/(1 + bend·top)), the decades of Ê from E = 1 to the largest E of the
   table, and K = log10(E_start)/span:

       prediction (1, n₀, ψ₀, ψ₀n₀)    slope (0, 0, 1, n₀)/span          a (0, 1, 0, -K)
       gain       (0, 0, ψ₀, ψ₀n₀)     b     (0, 0, 1, -n̄)/span          d (1, -n̄, -K, K n̄)
                                       c     (0, 0, 0, 1)/span

4. Two are ratios v = y/x of linear ones (`_sight`):

       log10 N̄ - log10 N    = ψ₀ (gain + interaction n₀) / size          (effective_parameters)
       log10 N_cutoff - n̄   = -gain / interaction                        (N_cutoff)

   The pairs (x, y) allowed are an ellipse, and the ratios allowed are the slopes of the lines through the origin that
   meet it: the ends are the two tangents (Fieller's theorem; exact). In coordinates where the ellipse is a circle of
   radius √room around w, a tangent is off the direction of w by the angle with sine √room/|w|. No tangent: any ratio
   is allowed. For N_cutoff x > 0 is asked for, since c <= 0 means that no cut-off exists: lines of sight are ranked by
   their angle from -90° (N_cutoff = 0) to 90° (infinite) and beyond, where they stand for c <= 0.
5. The interval is the union over all shapes: its ends are the least lower end and the greatest upper end, found by
   the same scan and zoom as the fit. Were the union in pieces, this would be the shortest interval that holds them.
   E_start and E_max belong to the shape itself: their ends are those of the allowed shapes. The linear limit is one
   shape that is reached in many ways: span tends to 0, while log10 E_start, and with it K, tends to anything from 0 on.
"""

import math

import numpy as np

from ._projection import Rows, expert_curve, minimise, shape
from .fitting import _FACES, RoutedFit

_OUTSIDE = 1e200  # above every end of an interval: ranks the shapes that the data reject behind all others

PLACE = {
    "a": (), "b": (), "c": (), "d": (), "E_start": (), "E_max": (), "N_cutoff": (), "slope": ("N",),
    "gain": ("N", "E"), "prediction": ("N", "E"), "observation": ("N", "E"), "effective_parameters": ("N", "E"),
}  # fmt: skip
"""The names of quantities, and which of N and E each is taken at."""


def union(rows: Rows, quantity, fit: RoutedFit, limit: float) -> tuple[float, float, float]:
    """Return (best value, low end, high end) on the scale of `_at_shape` (step 5)."""
    _, best, *ends = _at_shape(rows, quantity, limit, np.asarray(fit.curve.rise), np.asarray(fit.curve.bend))
    for side, sign in enumerate((1.0, -1.0)):  # the high end is minus the low end of minus the value

        def signed_end(t, w, side=side, sign=sign):
            residual, _, *both = _at_shape(rows, quantity, limit, *shape(t, w, rows.extra_experts.max()))
            # Shapes that are rejected are ranked by their residual, which leads the zoom to those that are not.
            return np.where((residual <= limit) & ~np.isnan(both[side]), sign * both[side], _OUTSIDE * (1 + residual))

        # The edges of the domain are searched by themselves too: an end often lies on one.
        reached = min(minimise(signed_end, t_range, w_range)[2] for _, t_range, w_range in _FACES)
        if reached < _OUTSIDE:  # else no shape of any scan is allowed, as where only the best one is
            ends[side] = sign * min(sign * ends[side], reached)
    return float(best), float(ends[0]), float(ends[1])


def _at_shape(
    rows: Rows, quantity, limit: float, rise: np.ndarray, bend: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each shape: its residual sum, the best value, the low end and the high end (steps 2 to 4).

    Values are on a scale that rises with the quantity and on which the search is safe, undone by `natural`: -1/E for
    E_start and E_max, the angle of the line of sight for N_cutoff, decades above N for effective_parameters, log10 L
    for losses.
    """
    residual, scores, triangle = _solve(rows, rise, bend)
    if quantity.name in ("E_start", "E_max"):
        return residual, *_own_ends(quantity.name, rise, bend)
    room = np.maximum(limit - residual, 0.0)
    if quantity.name in ("N_cutoff", "effective_parameters"):
        return residual, *_ratio_ends(rows, quantity, room, scores, triangle, rise, bend)
    fixed, moving, factor = _linear(rows, quantity, rise, bend)
    endless = np.isinf(factor)  # the linear limit: what the infinite factor multiplies outweighs the rest
    direction = np.where(endless, moving, np.where(endless, 0.0, factor) * moving + fixed)
    noise = float(quantity.name == "observation")
    ends = _linear_ends(room, scores, triangle, direction, noise)
    with np.errstate(invalid="ignore"):
        value, low, high = (end * np.where(endless, math.inf, 1.0) for end in ends)
    if quantity.name in ("a", "d"):  # E_start = 1 leads to the linear limit with K = 0, so that any K belongs to it
        _, least, most = _linear_ends(room, scores, triangle, fixed, noise)
        low, high = np.where(endless, np.fmin(low, least), low), np.where(endless, np.fmax(high, most), high)
    return residual, value, low, high


def _linear_ends(room, scores, triangle, direction, noise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best value, the low end and the high end of h·β (step 3); noise is 1 for an observation."""
    solved = _across(triangle, direction)
    value = (solved * scores).sum(0)
    reach = np.sqrt(room * ((solved**2).sum(0) + noise))
    return value, value - reach, value + reach


def _solve(rows: Rows, rise: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each shape, the residual sum [...], z [4, ...] and Δ [4, 4, ...] of step 2, by Gram-Schmidt."""
    offset = rows.log_size - rows.log_size.mean()
    psi = _psi(rows, rows.extra_experts, rise[..., None], bend[..., None])
    scores, triangle, units = np.zeros((4, *rise.shape)), np.zeros((4, 4, *rise.shape)), []
    rest = rows.log_loss - rows.log_loss.mean()
    for k, column in enumerate([np.ones_like(offset), offset, psi, psi * offset]):
        for j, unit in enumerate(units):
            triangle[j, k] = share = (column * unit).sum(-1)
            column = column - share[..., None] * unit
        triangle[k, k] = length = np.linalg.norm(column, axis=-1)
        units.append(column / length[..., None])
        scores[k] = share = (rest * units[k]).sum(-1)
        rest = rest - share[..., None] * units[k]
    scores[0] += rows.log_loss.mean() * triangle[0, 0]  # taken off above, so that little cancels
    return (rest**2).sum(-1), scores, triangle


def _across(triangle: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return u = Δ⁻ᵀh [4, ...] for h [4, ...], one line after the other."""
    solved = np.zeros(triangle.shape[1:])
    for k in range(4):
        solved[k] = (direction[k] - (triangle[:k, k] * solved[:k]).sum(0)) / triangle[k, k]
    return solved


def _linear(
    rows: Rows, quantity, rise: np.ndarray, bend: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (fixed, moving, factor) such that h = fixed + factor · moving, the table of step 3.

    fixed and moving do not depend on the shape: [4, 1, ...]. factor [...] does: ψ₀, 1/span or K, the last two infinite
    in the linear limit.
    """
    mean = rows.log_size.mean()
    at = (math.log10(quantity.N) if PLACE[quantity.name] else 0.0) - mean
    fixed, moving = {
        "prediction": ((1, at, 0, 0), (0, 0, 1, at)), "observation": ((1, at, 0, 0), (0, 0, 1, at)),
        "gain": ((0, 0, 0, 0), (0, 0, 1, at)), "slope": ((0, 0, 0, 0), (0, 0, 1, at)),
        "b": ((0, 0, 0, 0), (0, 0, 1, at)), "c": ((0, 0, 0, 0), (0, 0, 0, 1)),
        "a": ((0, 1, 0, 0), (0, 0, 0, -1)), "d": ((1, at, 0, 0), (0, 0, -1, -at)),
    }[quantity.name]  # fmt: skip
    fixed, moving = (np.array(h, dtype=np.float64).reshape(4, *[1] * rise.ndim) for h in (fixed, moving))
    if "E" in PLACE[quantity.name]:
        return fixed, moving, _psi(rows, quantity.E - 1.0, rise, bend)
    top = rows.extra_experts.max()
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = math.log(10) / np.log1p(rise * top / (1 + bend * top))
        if quantity.name in ("a", "d"):
            factor = np.where(rise == 0, math.inf, factor * np.maximum(np.log10(rise / (rise + bend) ** 2), 0.0))
    return fixed, moving, factor


def _ratio_ends(rows, quantity, room, scores, triangle, rise, bend) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best value, the low end and the high end of a ratio for each shape (step 4)."""
    if quantity.name == "N_cutoff":
        (x, y), unseen, *tangents = _sight(room, scores, _across(triangle, np.array([0.0, 0, 0, 1])),
                                           _across(triangle, np.array([0.0, 0, -1, 0])))  # fmt: skip
        best, low, high = (_angle(*direction) for direction in ((x, y), *tangents))
        unseen = unseen | (low > high)  # the lines that are allowed pass through -90 degrees
        return best, np.where(unseen, -math.pi / 2, low), np.where(unseen, 3 * math.pi / 2, high)
    at = math.log10(quantity.N) - rows.log_size.mean()
    psi = _psi(rows, quantity.E - 1.0, rise, bend)
    (x, y), unseen, (x_low, y_low), (x_high, y_high) = _sight(
        room, scores, _across(triangle, np.array([0.0, 1, 0, 0])), psi * _across(triangle, np.array([0.0, 0, 1, at]))
    )
    unseen = unseen | (x_low * x_high <= 0)  # a size slope of 0 is allowed: no dense size, or any, is as good
    with np.errstate(divide="ignore", invalid="ignore"):
        return y / x, np.where(unseen, -math.inf, y_low / x_low), np.where(unseen, math.inf, y_high / x_high)


def _sight(room: np.ndarray, scores: np.ndarray, u_x: np.ndarray, u_y: np.ndarray):
    """Return where (x, y) is, whether the origin is one of the pairs allowed, and the lines of sight to the others.

    Args:
        room: [...], step 2.
        scores: [4, ...], z.
        u_x, u_y: [4, ...], Δ⁻ᵀh of x and of y.

    Returns:
        The best pair (x, y); a mask; the directions (x, y) of the clockwise and of the counter-clockwise tangent.
    """
    length = np.linalg.norm(u_x, axis=0)
    lean = (u_x * u_y).sum(0) / length
    upright = u_y - lean * u_x / length
    height = np.linalg.norm(upright, axis=0)
    circle_x, circle_y = (u_x * scores).sum(0) / length, (upright * scores).sum(0) / height  # w
    distance = np.hypot(circle_x, circle_y)
    sine = np.minimum(np.sqrt(room) / np.maximum(distance, np.finfo(np.float64).tiny), 1.0)
    cosine = np.sqrt(1 - sine**2)

    def back(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return length * x, lean * x + height * y

    clockwise = back(circle_x * cosine + circle_y * sine, circle_y * cosine - circle_x * sine)
    counter = back(circle_x * cosine - circle_y * sine, circle_y * cosine + circle_x * sine)
    return back(circle_x, circle_y), sine >= 1, clockwise, counter


def _angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the angle of a direction, between -90 and 270 degrees, in radians."""
    angle = np.arctan2(y, x)
    return np.where(angle < -math.pi / 2, angle + 2 * math.pi, angle)


def _own_ends(name: str, rise: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return -1/E_start or -1/E_max of each shape, as best value and both ends; in the linear limit NaN, -1 and 0."""
    linear = rise == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        both = rise + bend
        own = -(both**2) / rise if name == "E_start" else -both * bend / rise
    own = np.maximum(own, -1.0)  # rounding
    return np.where(linear, math.nan, own), np.where(linear, -1.0, own), np.where(linear, 0.0, own)


def natural(rows: Rows, quantity, value: float) -> float:
    """Return a value of `_at_shape` in the units of the quantity; both rise together."""
    if quantity.name in ("E_start", "E_max"):
        return math.inf if value == 0 else -1.0 / value
    if quantity.name == "N_cutoff":
        value = math.inf if value >= math.pi / 2 else rows.log_size.mean() + math.tan(value)
    elif quantity.name == "effective_parameters":
        value = math.log10(quantity.N) + value
    elif quantity.name not in ("prediction", "observation"):
        return value
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(10.0) ** value)


def _psi(rows: Rows, extra_experts: np.ndarray, rise: np.ndarray, bend: np.ndarray) -> np.ndarray:
    return expert_curve(np.asarray(extra_experts), rise, bend, rows.extra_experts.max())
