"""Small statistics that several sections share: a mean with its interval, a straight line with that of its slope."""

import math

import numpy as np

from ..laws.uncertainty import student_quantile

LEVEL = 0.95
"""Confidence level of every interval of the report."""

REACH = 1e9
"""How many times the largest model, or below the smallest, the size of equal loss may be that a figure shows (our
choice). Where size hardly changes the loss, it can be beyond every float."""


def mean_interval(values: list[float], groups: list | None = None) -> dict | None:
    """Return a mean and its Student interval; of the group means, each counted once, where groups are given.

    Args:
        values: [n]; those of one group are taken to share their chance and count as one value, their mean.
        groups: [n] or None, which takes every value as independent.

    Returns:
        {"mean", "low", "high", "values": n, "groups": m}; the ends are None with fewer than two groups. None without
        values.
    """
    if not len(values):
        return None
    values = np.asarray(values, dtype=np.float64)
    groups = range(values.size) if groups is None else groups
    means = np.array([values[[g == group for g in groups]].mean() for group in dict.fromkeys(groups)])
    result = {"mean": float(means.mean()), "low": None, "high": None, "values": values.size, "groups": means.size}
    if means.size > 1:
        reach = student_quantile(LEVEL, means.size - 1) * float(means.std(ddof=1)) / math.sqrt(means.size)
        result |= {"low": result["mean"] - reach, "high": result["mean"] + reach}
    return result


def line(x: np.ndarray, y: np.ndarray) -> dict | None:
    """Return the least-squares slope of y on x with its Student interval; None with fewer than two different x.

    Returns:
        {"slope", "low", "high", "rows"}; the ends are None with fewer than three rows.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if np.unique(x).size < 2:
        return None
    spread = x - x.mean()
    square = float(spread @ spread)
    slope = float(spread @ y) / square
    result = {"slope": slope, "low": None, "high": None, "rows": x.size}
    if x.size > 2:
        residual = y - y.mean() - slope * spread
        error = math.sqrt(float(residual @ residual) / (x.size - 2) / square)
        reach = student_quantile(LEVEL, x.size - 2) * error
        result |= {"low": slope - reach, "high": slope + reach}
    return result


def percent(log_change: float | None) -> float | None:
    """Return what a change of log10 L means in percent of L."""
    return None if log_change is None else 100 * (ten_to(log_change) - 1)


def ten_to(exponent: float) -> float:
    """Return 10 to the power of a number; inf beyond the largest float, where Python's own power raises."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.power(10.0, exponent))


def other_way(interval: dict) -> dict:
    """Return an interval of a difference of two losses, in percent of the one, in percent of the other.

    Where one is 25 above, the other is 20 below: the sign turns, and the low end is made of the high one.
    """

    def turned(change: float | None) -> float | None:
        return None if change is None else 100 * (1 / (1 + change / 100) - 1)

    return {name: turned(interval[of]) for name, of in (("mean", "mean"), ("low", "high"), ("high", "low"))}


def as_percent(interval: dict | None) -> dict | None:
    """Return an interval of a change of log10 L in percent of L."""
    if interval is None:
        return None
    return interval | {name: percent(interval[name]) for name in ("mean", "low", "high")}
