"""Every tolerance of the suite, with its reason. No other file holds a tolerance literal.

A bound is a number times a scale that the test supplies (a condition number, a sum of absolute values, 1 for a
relative error). `check` raises when the error exceeds the bound and records the share of it that was used, which
pytest prints at the end of a run: a share far below one means that the bound is too slack to find anything.
"""

from typing import NamedTuple


class Bound(NamedTuple):
    """An upper limit on an error, in units of the scale named in `reason`."""

    limit: float
    reason: str


BOUNDS: dict[str, Bound] = {}

# Laws.
BOUNDS["laws.routed.value"] = Bound(2e-14, "relative; a sum of four terms below 10 in a power of ten: about 100 u")
BOUNDS["laws.routed.parameter_count"] = Bound(2e-13, "relative; as above, divided by a dense slope of 0.05 or more")
BOUNDS["laws.routed.derivative"] = Bound(1e-10, "absolute; straight lines, so only rounding over a step of 1e-4: 1e-12")
BOUNDS["laws.routed.paper"] = Bound(5e-3, "relative; the paper's figures have three digits")
BOUNDS["laws.routed.cutoff"] = Bound(6e-3, "relative; our refits are printed to two or three digits")
BOUNDS["laws.fitting.objective"] = Bound(2e-11, "relative; 1e-10 is promised: a tie of pieces 1e-11, the search 1e-12")
BOUNDS["laws.fitting.prediction"] = Bound(1e-9, "difference of log10 losses per unit of rmsle / 1e-3; measured 3e-10")
BOUNDS["laws.fitting.exact_rmsle"] = Bound(2e-10, "log10; noise-free: twice the resolution that decides between pieces")
BOUNDS["laws.fitting.exact_coefficient"] = Bound(1e-6, "relative; noise-free: resolution over an effect of 1e-3")
BOUNDS["laws.fitting.same_law"] = Bound(1e-14, "log10 per unit of |b|; one law in two forms: 50 u")
BOUNDS["laws.fitting.covariance"] = Bound(1e-6, "share of the two standard errors; parameters agree to 1e-7 of theirs")
BOUNDS["laws.fitting.released_objective"] = Bound(1e-9, "relative; the stored optima have ten digits")
BOUNDS["laws.uncertainty.quantile"] = Bound(1e-10, "relative; 200-point Gauss-Legendre and bisection to the last bit")
BOUNDS["laws.uncertainty.end"] = Bound(1e-9, "share of the interval's length; two searches of one end, 1e-9 in t, w")
BOUNDS["laws.uncertainty.attained"] = Bound(5e-3, "relative residual sum, least over 321 x 321 shapes: spacing squared")

# Routers and experts. "u" is half the distance from 1 to the next number in the precision of the run.
BOUNDS["notation.softmax"] = Bound(1e3, "X")
BOUNDS["notation.log_sum_exp"] = Bound(1e3, "X")
BOUNDS["hash.plan"] = Bound(1e3, "X")
BOUNDS["hash.load"] = Bound(1e3, "X")
BOUNDS["hash.residual"] = Bound(1e3, "X")
BOUNDS["sinkhorn.marginals"] = Bound(1e3, "X")
BOUNDS["sinkhorn.plan"] = Bound(1e3, "X")
BOUNDS["sinkhorn.potential"] = Bound(1e3, "X")
BOUNDS["sinkhorn.load"] = Bound(1e3, "X")
BOUNDS["sinkhorn.gate"] = Bound(1e3, "X")
BOUNDS["sinkhorn.undecided"] = Bound(0.5, "X")
BOUNDS["sinkhorn.symmetry"] = Bound(1e3, "X")
BOUNDS["sinkhorn.gradient"] = Bound(1e-6, "X")
BOUNDS["sinkhorn.jit"] = Bound(1e3, "X")
BOUNDS["experts.gelu"] = Bound(1e3, "X")
BOUNDS["experts.ffn"] = Bound(1e3, "X")
BOUNDS["experts.combine"] = Bound(1e3, "X")
BOUNDS["experts.routed_ffn"] = Bound(1e3, "X")
BOUNDS["experts.dropped"] = Bound(1e3, "X")
BOUNDS["experts.gradient"] = Bound(1e-6, "X")
BOUNDS["experts.renumbered"] = Bound(1e3, "X")

worst_share: dict[str, float] = {}


def check(name: str, error: float, scale: float = 1.0, *, message: str = "") -> None:
    """Fail unless error <= BOUNDS[name].limit * scale; record the share used.

    Args:
        name: key of `BOUNDS`.
        error: the measured error, at least 0; NaN fails.
        scale: the unit of the bound, above 0 (or 0, when the error has to be exactly 0).
        message: what was compared, with shapes; shown on failure.

    Raises:
        AssertionError: the error is above the bound or is NaN.
    """
    bound = BOUNDS[name]
    allowed = bound.limit * scale
    share = error / allowed if allowed > 0 else (0.0 if error == 0 else float("inf"))
    if not share <= 1:
        raise AssertionError(f"{name}: error {error:.3e}, allowed {allowed:.3e} ({bound.reason}). {message}")
    worst_share[name] = max(worst_share.get(name, 0.0), share)
