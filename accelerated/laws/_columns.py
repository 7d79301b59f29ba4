"""What the fits of `dense.py`, `log_linear.py` and `utilisation.py` share: checked columns and plain least squares."""

import math

import numpy as np

from ..notation import check_finite

CRITERION = "mean squared difference of log10 losses"
INDEPENDENT = 1e-8
RESOLUTION = 1e-10  # log10; a fall of the loss below this is none


def check_range(name: str, values: np.ndarray, above: float = -math.inf, least: float = -math.inf) -> np.ndarray:
    """Return `values` as float64; ValueError unless every entry is finite, > `above` and >= `least`."""
    listed = check_finite(name, np.atleast_1d(np.asarray(values, dtype=np.float64)))
    bad = np.argwhere((listed <= above) | (listed < least))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        allowed = f"above {above:g}" if math.isfinite(above) else f"at least {least:g}"
        raise ValueError(f"{name}: entry {where} is {listed[where]}; every entry has to be {allowed}")
    return listed.reshape(np.shape(values))


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
            f"{rows} rows; the {law} law has {coefficients} coefficients and needs at least {coefficients + 1} rows"
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
