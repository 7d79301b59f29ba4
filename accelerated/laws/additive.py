"""Laws that add terms: a floor that no model gets below, and powers of what a run is made of.

Step by step, with sources and examples: `routelaws.reference.laws.additive`.

    L = Σₜ termₜ,     ln termₜ = ln multiplierₜ - Σ exponent · ln column

What differs here: compiled loops, which threads share out, follow all starts of a fit and look for both ends of all
intervals (`_descent.py`). To compile them takes some seconds, once on a machine.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import _smooth
from ._columns import check_range


class AdditiveLaw(NamedTuple):
    """One law of the form above.

    Attributes:
        name: of the law, for messages
        coefficients: the NamedTuple of its coefficients: the multipliers, and the exponents, in any order
        columns: what `fit_additive` and `predict_additive` take, in this order; each above 0
        terms: (multiplier, {exponent: column}); of a floor {}
        guesses: exponents to begin from
    """

    name: str
    coefficients: type
    columns: tuple[str, ...]
    terms: tuple[tuple[str, dict[str, str]], ...]
    guesses: tuple[float, ...] = (0.15, 0.5)


class AdditiveFit(NamedTuple):
    """The best fit of a law to a table by the sum of Huber terms.

    Attributes:
        coefficients: the law's own NamedTuple; a multiplier whose term has left the law is 0, its exponents NaN
        objective: the least sum
        rmsle: root mean squared difference of log10 losses, whatever was minimised
        status: "interior"; "not determined"; which coefficients have left the law; that the search did not end
        covariance: [p, p], order of the coefficients; see `_descent.covariance`
        rows: rows used, all that were given
        criterion: what was minimised, in words
        starts: how many starts there were
        reached: how many of them ended within a millionth of the least sum
    """

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
    """Coefficients that somebody printed.

    Attributes:
        coefficients: a law's own NamedTuple
        source: where they are printed
        attested: how well: what was seen of the source
    """

    coefficients: tuple
    source: str
    attested: str


class AdditiveInterval(NamedTuple):
    """A value of the best fit, and the values that the data do not reject.

    Attributes:
        name: a coefficient, or "prediction"
        value: of the best fit
        low: 0 (a multiplier) or -inf (an exponent) where the data give no lower end
        high: inf where they give no upper end
        level: confidence level
    """

    name: str
    value: float
    low: float
    high: float
    level: float


def predict_additive(law: AdditiveLaw, coefficients: tuple, columns: Sequence) -> np.ndarray:
    """Return the loss L of a law, term by term.

    Args:
        law: the law.
        coefficients: of that law; a multiplier may be 0, and its exponents are then not looked at.
        columns: in the order of `law.columns`, each above 0, broadcast against each other.

    Returns:
        L, in the unit of the multipliers, the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Differs from the reference: the powers are taken by logarithms.
    """
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
    """Fit a law to a table.

    Args:
        law: the law.
        columns: [n] each, in the order of `law.columns`, above 0.
        loss: [n], L, above 0.
        huber: δ, in natural logarithms of the loss (1e-3 in Hoffmann et al. 2022); None for least squares, whose
            objective is then half the sum of squares.
        starts: [s, p], coefficients to begin from, in the order of `law.coefficients`; None for our own.

    Returns:
        The fit; status "interior" if the search has ended and every coefficient is determined by some row.

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, there are not more rows than coefficients,
            a column has fewer than 3 different values (a power and a floor cannot be told apart by two), columns rise
            in step (their powers cannot be told apart), or `huber` is not a finite number above 0.

    Differs from the reference: compiled loops, which threads share out; the first fit on a machine compiles them.
    """
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
    """Return the profile interval of each coefficient, or of the prediction at each of some points.

    Args:
        law, columns, loss, huber: as `fit_additive`.
        level: confidence level, between 0 and 1.
        at: None for the coefficients; or the columns [m] of points, for the loss of the law there.

    Returns:
        One interval for each coefficient, in their order, or for each point. Student's quantile has n - p degrees of
        freedom.

    Raises:
        ValueError: as `fit_additive`, or `level` is out of its range.

    Differs from the reference: compiled loops look for both ends of all intervals together, by false position.
    """
    columns, loss = _checked(law, columns, loss)
    points = None if at is None else _smooth.points_of(law.columns, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_form(law), columns, loss, huber, level, points)]


def _form(law: AdditiveLaw):
    """Return what `_descent.py` wants to know of a law.

    The design X of the reference, rows by terms by unknowns, is never made: the loops are told which unknown is the
    multiplier of a term, and which its exponents.
    """
    from ..kernels.law_terms import ADDITIVE
    from . import _descent

    rows, powers = _places(law)

    def internal(values, centres):
        theta = np.array(values, dtype=np.float64)
        theta[rows] = np.log(theta[rows]) - np.where(powers >= 0, theta[powers], 0.0) @ centres
        return theta

    positive = tuple(j in rows for j in range(len(law.coefficients._fields)))
    return _descent.Form(
        law.coefficients._fields,
        positive,
        tuple(0.0 if above else math.nan for above in positive),
        _descent.law_of(ADDITIVE, tuple(rows), powers),
        internal,
        lambda values: np.log(np.stack(values)),
        lambda logs: logs.mean(axis=1),
        lambda logs, log_loss: _starts(law, rows, log_loss),
    )


def _places(law: AdditiveLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return where θ has the logarithm of each multiplier, [terms], and the exponent of each column in each term,
    [terms, columns], -1 where a term has none."""
    place = {name: j for j, name in enumerate(law.coefficients._fields)}
    powers = np.full((len(law.terms), len(law.columns)), -1)
    for t, (_, exponents) in enumerate(law.terms):
        for exponent, column in exponents.items():
            powers[t, law.columns.index(column)] = place[exponent]
    return np.array([place[multiplier] for multiplier, _ in law.terms]), powers


def _starts(law: AdditiveLaw, rows: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return θ [s, p]: every way to share the loss out over the terms, with every guess of the exponents.

    Args:
        law: the law.
        rows: [terms], where θ has the logarithms of the multipliers.
        log_loss: [n].
    """
    unknowns = len(law.coefficients._fields)
    exponents = np.setdiff1d(np.arange(unknowns), rows)
    shares = np.array(_smooth.share_out(len(law.terms), not law.terms[-1][1], log_loss))
    grid = np.stack([v.ravel() for v in np.meshgrid(*[law.guesses] * exponents.size, indexing="ij")], axis=1)
    found = np.zeros((len(shares), len(grid), unknowns))
    found[:, :, rows], found[:, :, exponents] = shares[:, None], grid[None]
    return found.reshape(-1, unknowns)


def _checked(law: AdditiveLaw, columns: Sequence, loss: np.ndarray) -> tuple[tuple, np.ndarray]:
    return _smooth.check_table(
        law.name, dict(zip(law.columns, columns, strict=True)), loss, len(law.coefficients._fields)
    )
