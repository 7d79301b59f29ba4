"""Find the next run that narrows the interval of one number most, by exhaustive search.

For every candidate run:

1. Predict its loss by the law; this is the best estimate from the table.
2. Fit the law again to the table with this run added.
3. Compute the interval of the number again.

The result lists the run with the narrowest interval first. The added row fits perfectly, so the widths are slightly too
small, by the same factor for every candidate. Compare candidates; do not rely on the width itself. The method ignores
cost: a run that is nearly as good may cost a tenth.

The method assumes that the law is correct. It often chooses runs at the edges of the trainable range. Such runs do not
show how the law bends between the edges.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError

ON_LOG_SCALE = ("N_cutoff", "F_cutoff", "E_start", "E_max", "B_start", "B_max", "N_c")
"""Numbers whose width is in log10, because their errors are relative: sizes and numbers of experts."""


class Asked(NamedTuple):
    """The number whose interval the new run should narrow.

    Attributes:
        name: "prediction", "slope", or the name of a coefficient or derived number of `Law.intervals`
        at: the columns of the law for a prediction; (N,) for a slope; () otherwise
    """

    name: str
    at: tuple[float, ...] = ()


class NextRun(NamedTuple):
    """A candidate run, and the interval after this run is added to the table.

    Attributes:
        at: the columns of the law
        low: lower end of the interval
        high: upper end of the interval
        width: high - low, in log10 for the names in `ON_LOG_SCALE`; inf if an end is open
    """

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
    """Return the candidate runs by the width of the interval after each run, narrowest first; ties keep their order.

    Candidates at which the law has no loss are left out.

    Args:
        law: a record of the catalogue.
        columns: [n] each, in the order of `law.columns`.
        loss: [n], nats per token.
        candidates: possible runs, one number for each column of the law.
        asked: the number.
        level: confidence level of the interval, between 0 and 1.

    Raises:
        ValueError: the rows do not determine the law, the law has no number of this name, or `level` is out of its
            range.

    Example:
        The runs of the table have sizes near 1e8. A run at 1e9 narrows the prediction at 1e10 most.

        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> size = np.array([1e8, 1.1e8, 1.2e8, 1.3e8])
        >>> loss = np.array([3.02, 2.98, 2.97, 2.94])
        >>> found = next_runs(LAWS["dense"], [size], loss, [(1.2e8,), (1e9,)], Asked("prediction", (1e10,)))
        >>> [run.at for run in found]
        [(1000000000.0,), (120000000.0,)]
    """
    columns, loss = [np.asarray(column, dtype=np.float64) for column in columns], np.asarray(loss, dtype=np.float64)
    fit = law.fit(*columns, loss, **law.given(*columns))
    runs = []
    for candidate in candidates:
        point = [np.array([value], dtype=np.float64) for value in candidate]
        more = [np.append(column, value) for column, value in zip(columns, point, strict=True)]
        predicted = law.predict(fit, *point)
        if np.isnan(predicted).any():  # such as the law per-size at a new size
            continue
        with_it = np.append(loss, predicted)
        refit = law.fit(*more, with_it, **law.given(*more))
        runs.append(NextRun(tuple(map(float, candidate)), *interval_of(law, refit, more, with_it, asked, level)))
    return sorted(runs, key=lambda run: run.width)


def interval_of(
    law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, asked: Asked, level: float = 0.95
) -> tuple[float, float, float]:
    """Return both ends of the interval of a number, and its width as in `NextRun`.

    Args:
        law, columns, loss, asked, level: as in `next_runs`.
        fit: the result of `law.fit(*columns, loss)`.

    Raises:
        ValueError: `next_runs` raises this error.
    """
    if asked.name == "prediction":
        low, high = law.predict_interval(fit, columns, loss, asked.at, level).law
    elif asked.name == "slope":
        if law.slopes is None:
            raise InputError(f"the law {law.name} has no slopes; ask for another number")
        slopes = {item.at: (item.low, item.high) for item in law.slopes(fit, columns, loss, level)}
        if asked.at[0] not in slopes:
            sizes = ", ".join(f"{size:.6g}" for size in slopes)
            raise InputError(f"slope at {asked.at[0]:.6g}: the law {law.name} has slopes only at the sizes {sizes}")
        low, high = slopes[asked.at[0]]
    else:
        ranges = {item.name: item for item in law.intervals(fit, columns, loss, level) if item.at is None}
        if asked.name not in ranges:
            raise InputError(f"{asked.name}: the law {law.name} has no such number; allowed: {', '.join(ranges)}")
        low, high = ranges[asked.name].low, ranges[asked.name].high
    return low, high, _width(asked.name, low, high)


def _width(name: str, low: float, high: float) -> float:
    """Return the width as in `NextRun`; inf if an end is unknown, or if it is not above 0 on a log scale."""
    if math.isnan(low) or math.isnan(high):
        return math.inf
    if name not in ON_LOG_SCALE:
        return high - low
    return math.log10(high / low) if low > 0 else math.inf
