"""What the laws share: checked columns, plain least squares, and two questions about a law that is a line."""

import math
from typing import NamedTuple

import numpy as np

from ..notation import check_finite
from ..wording import plural

CRITERION = "mean squared difference of log10 losses"
INDEPENDENT = 1e-8
RESOLUTION = 1e-10  # log10; a fall of the loss below this is none


class Words(NamedTuple):
    """What a complaint about a table calls its columns and the two coefficients that are searched."""

    size: str = "size"
    sizes: str = "sizes"
    experts: str = "num_experts"
    expert_count: str = "num_experts"
    expert_counts: str = "num_experts"
    searched: str = "E_start and E_max"


ROUTED_WORDS = Words()


def check_range(name: str, values: np.ndarray, above: float = -math.inf, least: float = -math.inf) -> np.ndarray:
    """Return `values` as float64; ValueError unless every entry is finite, > `above` and >= `least`."""
    listed = check_finite(name, np.atleast_1d(np.asarray(values, dtype=np.float64)))
    bad = np.argwhere((listed <= above) | (listed < least))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        allowed = f"above {above:g}" if math.isfinite(above) else f"at least {least:g}"
        raise ValueError(f"{name}: entry {where} is {listed[where]}; every entry has to be {allowed}")
    return listed.reshape(np.shape(values))


def check_delta(huber: float, unit: str) -> float:
    """Return the delta of Huber's terms as a float; ValueError, which names its unit, unless it is above 0."""
    if not (isinstance(huber, int | float | np.number) and 0 < huber < math.inf):
        raise ValueError(f"huber is {huber!r}; needed: a finite number above 0, {unit}, or None")
    return float(huber)


def check_columns(**columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the columns as float64; ValueError unless they are in range, of one axis and of one length."""
    checked = []
    for name, values in columns.items():
        limits = {"least": 1.0} if name == "num_experts" else {"above": 0.0}
        checked.append(np.atleast_1d(check_range(name, values, **limits)))
    shapes = [str(column.shape) for column in checked]
    if checked[0].ndim != 1 or any(column.shape != checked[0].shape for column in checked):
        *names, last = columns
        raise ValueError(
            f"{', '.join(names)} and {last} have shapes {', '.join(shapes[:-1])} and {shapes[-1]}; "
            "needed: one axis, the same length"
        )
    return tuple(checked)


def need_rows(rows: int, coefficients: int, law: str) -> None:
    """Raise ValueError unless there is one row more than coefficients."""
    if rows <= coefficients:
        raise ValueError(
            f"{plural(rows, 'row')}; the {law} law has {coefficients} coefficients and needs at least "
            f"{coefficients + 1} rows"
        )


def triangle(design: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the QR factors of `design` with columns of length 1, or None if the columns depend on each other."""
    length = np.linalg.norm(design, axis=0)
    if not np.all(length > 0):
        return None
    unit, upper = np.linalg.qr(design / length)
    if np.linalg.svd(upper, compute_uv=False)[-1] <= INDEPENDENT:
        return None
    return unit, upper * length


def rise_and_bend(start: float, limit: float) -> tuple[float, float]:
    """Return rise and bend, step 1 of the reference's `fitting.py`; the limit may be inf."""
    gap = 1.0 if math.isinf(limit) else (limit - start) / limit
    return gap * gap / start, gap / limit


def log_growth(extra: np.ndarray, start: float, limit: float) -> np.ndarray:
    """Return the natural log of Ê/E_start at E = 1 + extra, or of B̂/B_start at B = B_min + extra."""
    rise, bend = rise_and_bend(start, limit)
    return np.log1p(rise * extra / (1.0 + bend * extra))


def reach(short: np.ndarray, slope: np.ndarray, never: float) -> np.ndarray:
    """Return exp(short/slope), at which a line of natural logs has changed by `short`; `never` where it does not fall.

    Args:
        short: ln of the loss wanted, less the ln at 0 of the line.
        slope: change of ln L per ln of what is sought.
        never: the answer where `slope` is not below 0.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return np.where(slope < 0, np.exp(short / slope), never)


def crossing(b: float, c: float) -> float:
    """Return 10^(-b/c), at which b + c log10 N rises to 0; inf if it never does (c <= 0) or beyond float64."""
    if math.isnan(b) or math.isnan(c):
        return math.nan
    if c <= 0:
        return math.inf
    try:
        return float(10.0 ** (-b / c))
    except (OverflowError, ZeroDivisionError):
        return math.inf
