"""A third implementation of the laws and their intervals, independent of both twins.

It has the formulas of Clark et al. 2022 (arXiv 2202.01169, section 4) in Python floats, and textbook least squares in
NumPy. It imports nothing from `routelaws.reference` or `routelaws.accelerated`, so tests also find errors that both
twins share.

    1. LAWS        `Bounded`, `Compute`      losses and other quantities from coefficients
    2. LINES       `Student`                 a linear law: coefficients, predictions, intervals
    3. QUIET ROWS  `quiet_interval`          the interval of any quantity of a law if the errors of the losses are tiny
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats


class Bounded(NamedTuple):
    """The (N, E) law: log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d."""

    a: float
    b: float
    c: float
    d: float
    E_start: float
    E_max: float

    def effective(self, experts: float) -> float:
        """Return Ê, with 1/Ê = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max."""
        return 1 / (1 / (experts - 1 + 1 / (1 / self.E_start - 1 / self.E_max)) + 1 / self.E_max)

    def log_loss(self, size: float, experts: float) -> float:
        log_size, log_experts = math.log10(size), math.log10(self.effective(experts))
        return self.a * log_size + self.b * log_experts + self.c * log_size * log_experts + self.d

    def loss(self, size: float, experts: float) -> float:
        """Return L, nats per token."""
        return 10 ** self.log_loss(size, experts)

    def slope(self, size: float) -> float:
        """Return the change of log10 L at size N if Ê is multiplied by 10."""
        return self.b + self.c * math.log10(size)

    def gain(self, size: float, experts: float) -> float:
        """Return the change of log10 L from the dense model to E experts."""
        return self.log_loss(size, experts) - self.log_loss(size, 1)

    def cutoff(self) -> float:
        """Return the size at which the slope is 0."""
        return 10 ** (-self.b / self.c)

    def worth(self, size: float, experts: float) -> float:
        """Return the size of the dense model with the loss of (N, E), by bisection of log10 N."""
        low, high, wanted = 0.0, 30.0, self.log_loss(size, experts)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if self.log_loss(10**middle, 1) > wanted else (low, middle)
        return 10**low


class Compute(NamedTuple):
    """The (F, B) law for B >= B_min: log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d."""

    a: float
    b: float
    c: float
    d: float
    B_start: float
    B_max: float
    B_min: float

    def log_loss(self, flops: float, utilisation: float) -> float:
        """Return log10 L at F teraFLOPs and B parameters per FLOP."""
        start = 1 / (1 / self.B_start - 1 / self.B_max)
        used = math.log10(1 / (1 / (utilisation - self.B_min + start) + 1 / self.B_max))
        return self.a * math.log10(flops) + self.b * used + self.c * math.log10(flops) * used + self.d

    def loss(self, flops: float, utilisation: float) -> float:
        """Return L, nats per token."""
        return 10 ** self.log_loss(flops, utilisation)

    def cutoff(self) -> float:
        """Return the F above which a larger B no longer reduces the loss."""
        return 10 ** (-self.b / self.c)


class Student:
    """Least squares of y on the columns of X, with Student's intervals.

    Args:
        design: [n, p], the matrix X.
        target: [n], the values y.
    """

    def __init__(self, design: np.ndarray, target: np.ndarray, level: float):
        rows, unknowns = design.shape
        length = np.linalg.norm(design, axis=0)  # columns may differ by many orders of magnitude
        self.solution = np.linalg.lstsq(design / length, target, rcond=None)[0] / length
        self.squares = float(np.sum((target - design @ self.solution) ** 2))
        self.variance = self.squares / (rows - unknowns)
        self.covariance = self.variance * np.linalg.inv((design / length).T @ (design / length))
        self.covariance /= length * length[:, None]
        self.quantile = float(stats.t.ppf((1 + level) / 2, rows - unknowns))

    def interval(self, weights: np.ndarray, more: float = 0.0) -> tuple[float, float, float]:
        """Return weights · solution and the ends of its interval.

        The interval includes the variance of `more` new rows.
        """
        value = float(weights @ self.solution)
        reach = self.quantile * math.sqrt(float(weights @ self.covariance @ weights) + more * self.variance)
        return value, value - reach, value + reach


def derivatives(function: Callable, at: np.ndarray) -> np.ndarray:
    """Return the derivatives of a function [p] -> number as [p], or of [p] -> [n] as [n, p], by central differences."""
    columns = []
    for i in range(at.size):
        step = 1e-5 * abs(at[i]) * np.eye(at.size)[i]
        columns.append((np.asarray(function(at + step)) - np.asarray(function(at - step))) / (2 * step[i]))
    return np.stack(columns, axis=-1)


def quiet_interval(
    law: Callable, quantity: Callable, truth: np.ndarray, log_loss: np.ndarray, level: float, more: float = 0.0
) -> tuple[float, float, float]:
    """Return a quantity of a law and the ends of its interval, for rows with tiny errors.

    With tiny errors, the law and the quantity are linear in the coefficients.

    Args:
        law: a function from coefficients [p] to log10 losses [n].
        quantity: a function from coefficients [p] to a number.
        truth: [p], the coefficients that generated the rows.
        log_loss: [n], measured log10 losses.
        level: confidence level of the interval.
        more: number of new rows whose variance the interval includes.
    """
    line = Student(derivatives(law, truth), log_loss - np.asarray(law(truth)), level)
    value, low, high = line.interval(derivatives(quantity, truth), more)
    return tuple(float(quantity(truth)) + end for end in (value, low, high))
