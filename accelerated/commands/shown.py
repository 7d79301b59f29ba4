"""Numbers and intervals as the commands print them: as strict JSON holds them, and for a reader."""

import math

import numpy as np

from ..laws.intervals import Range


def plain(value):
    """Return a number, or a list of numbers, as strict JSON holds it."""
    if np.ndim(value):
        return [plain(item) for item in np.asarray(value).tolist()]
    return float(value) if math.isfinite(value) else None


def range_dict(item: Range) -> dict:
    """Return an interval as strict JSON holds it, with its verdict where there is one."""
    ends = {"value": plain(item.value), "low": plain(item.low), "high": plain(item.high)}
    return ends | ({"verdict": item.words} if item.words else {})


def shown(value: float, form: str = ".4g", missing: str = "not found") -> str:
    """Return a number for a reader; `missing` where it is NaN."""
    if math.isnan(value):
        return missing
    return format(value, form) if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def shown_ends(low: float, high: float, form: str = ".4g", missing: str = "not found") -> str:
    """Return the ends of an interval for a reader."""
    return f"{shown(low, form, missing)} to {shown(high, form, missing)}"
