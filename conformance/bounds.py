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
