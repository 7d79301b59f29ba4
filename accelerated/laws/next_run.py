"""See `routelaws.reference.laws.next_run`.

What differs here: fits and intervals are the compiled ones of the law.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ON_LOG_SCALE = ("N_cutoff", "F_cutoff", "E_start", "E_max", "B_start", "B_max", "N_c")


class Asked(NamedTuple):
    """See reference."""

    name: str
    at: tuple[float, ...] = ()


class NextRun(NamedTuple):
    """See reference."""

    at: tuple[float, ...]
    low: float
    high: float
    width: float


def next_runs(
    law,
    columns: Sequence[np.ndarray],
    loss: np.ndarray,
    candidates: Sequence[Sequence[float]],
    asked: Asked,
    level: float = 0.95,
) -> list[NextRun]:
    """See reference."""
    columns, loss = [np.asarray(column, dtype=np.float64) for column in columns], np.asarray(loss, dtype=np.float64)
    at = [np.array(values, dtype=np.float64) for values in zip(*candidates, strict=True)]
    fit = law.fit(*columns, loss, **law.given(*columns))
    predicted = np.asarray(law.predict(fit, *at)) if at else np.zeros(0)
    found = []
    for i, candidate in enumerate(candidates):
        more = [np.append(column, values[i]) for column, values in zip(columns, at, strict=True)]
        with_it = np.append(loss, predicted[i])
        refit = law.fit(*more, with_it, **law.given(*more))
        found.append(NextRun(tuple(map(float, candidate)), *interval_of(law, refit, more, with_it, asked, level)))
    return sorted(found, key=lambda run: run.width)


def interval_of(
    law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, asked: Asked, level: float = 0.95
) -> tuple[float, float, float]:
    """See reference."""
    if asked.name == "prediction":
        low, high = law.predict_interval(fit, columns, loss, asked.at, level).law
    elif asked.name == "slope":
        if law.slopes is None:
            raise ValueError(f"the law {law.name} has no slopes; needed: another number")
        slopes = {item.at: (item.low, item.high) for item in law.slopes(fit, columns, loss, level)}
        if asked.at[0] not in slopes:
            sizes = ", ".join(f"{size:.6g}" for size in slopes)
            raise ValueError(f"slope at {asked.at[0]:.6g}: the law {law.name} has slopes at the sizes {sizes}")
        low, high = slopes[asked.at[0]]
    else:
        ranges = {item.name: item for item in law.intervals(fit, columns, loss, level) if item.at is None}
        if asked.name not in ranges:
            raise ValueError(f"{asked.name}: the law {law.name} has intervals of {', '.join(ranges)}")
        low, high = ranges[asked.name].low, ranges[asked.name].high
    if math.isnan(low) or math.isnan(high):
        return low, high, math.inf
    if asked.name not in ON_LOG_SCALE:
        return low, high, high - low
    return low, high, math.log10(high / low) if low > 0 else math.inf
