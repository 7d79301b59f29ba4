"""See `routelaws.reference.laws.additive`.

What differs here: all starts of a fit, and both ends of all intervals, are found at once by a compiled JAX program in
float64 (`_descent.py`). The first fit of a law compiles it, which takes some seconds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import _smooth
from ._columns import check_range


class AdditiveLaw(NamedTuple):
    """See reference."""

    name: str
    coefficients: type
    columns: tuple[str, ...]
    terms: tuple[tuple[str, dict[str, str]], ...]
    guesses: tuple[float, ...] = (0.15, 0.5)


class AdditiveFit(NamedTuple):
    """See reference."""

    coefficients: tuple
    objective: float
    rmsle: float
    status: str
    covariance: np.ndarray
    rows: int
    criterion: str
    starts: int
    reached: int


class Published(NamedTuple):
    """See reference."""

    coefficients: tuple
    source: str
    attested: str


class AdditiveInterval(NamedTuple):
    """See reference."""

    name: str
    value: float
    low: float
    high: float
    level: float


def predict_additive(law: AdditiveLaw, coefficients: tuple, columns: Sequence) -> np.ndarray:
    """See reference. The powers are taken by logarithms."""
    logs = {
        name: np.log(check_range(name, values, above=0.0)) for name, values in zip(law.columns, columns, strict=True)
    }
    value = coefficients._asdict()
    shape = np.broadcast_shapes(*(np.shape(log) for log in logs.values()))
    total = np.zeros(shape)
    for multiplier, exponents in law.terms:
        if value[multiplier] > 0:
            power = sum((-value[name] * logs[column] for name, column in exponents.items()), np.zeros(shape))
            total = total + np.exp(math.log(value[multiplier]) + power)
    return total


def fit_additive(
    law: AdditiveLaw,
    columns: Sequence,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """See reference."""
    columns, loss = _checked(law, columns, loss)
    return AdditiveFit(*_smooth.fitted(_form(law), law.coefficients, columns, loss, huber, starts))


def additive_intervals(
    law: AdditiveLaw,
    columns: Sequence,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """See reference."""
    columns, loss = _checked(law, columns, loss)
    points = None if at is None else _smooth.points_of(law.columns, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_form(law), columns, loss, huber, level, points)]


def _form(law: AdditiveLaw):
    from ._terms import additive_form

    terms = tuple((multiplier, tuple(exponents.items())) for multiplier, exponents in law.terms)
    return additive_form(law.coefficients._fields, tuple(law.columns), terms, tuple(law.guesses))


def _checked(law: AdditiveLaw, columns: Sequence, loss: np.ndarray) -> tuple[tuple, np.ndarray]:
    return _smooth.check_table(
        law.name, dict(zip(law.columns, columns, strict=True)), loss, len(law.coefficients._fields)
    )
