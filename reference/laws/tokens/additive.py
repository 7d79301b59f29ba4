"""Laws that add terms: an irreducible loss, and powers of size, tokens and other columns.

    L = Σₜ termₜ,     ln termₜ = ln multiplierₜ - Σ exponent · ln column

The best known example is the law of Hoffmann et al. 2022, L = a/N^α + b/D^β + c. Its terms have the multipliers a (with
column N and exponent α), b (with D and β) and c (with no column). `hoffmann.py` and `fine_grained.py` are laws of this
form; for your own law, write another record (`AdditiveLaw`). Logarithms are natural, as in the papers that fit such
laws. Only `rmsle` uses log10, as for all laws.

The fit
1. Multipliers are above 0, so the unknowns are their logarithms. With θ = (ln multipliers, exponents) each ln term is
   linear in θ, ln termₜ = Xₜ·θ, and

       ln L̂ = ln Σₜ exp(Xₜ·θ)                                                      (log-sum-exp)

   To avoid overflow, subtract the largest ln term before exp and add it after ln (`_columns.log_sum`).
2. Its derivatives are means of X over the terms. With pₜ = termₜ / L̂ the share of a term in the loss,

       ∂ ln L̂/∂θⱼ = Σₜ exp(Xₜ·θ) Xₜⱼ / Σₜ exp(Xₜ·θ) = Σₜ pₜ Xₜⱼ

3. The fit minimises the sum of Huber terms of ln L̂ - ln L from many starts (`_descent.py`). The sum has several local
   minima: two terms can exchange roles, or one term can vanish.
4. The fit divides each column by its geometric mean over the table: ln column - centre. A multiplier is then the term
   in the middle of the table. Without this step, a multiplier would be the term at N = 1 or D = 1. These are decades
   away from every row, so a small change of an exponent would change the multiplier a lot. At the end the fit converts
   back: ln multiplier + Σ exponent · centre.
5. Each start divides the mean loss between the terms in the middle of the table (`_smooth.share_out`). So the starts do
   not depend on the units of the table.

Do not compare single multipliers. They are ill-conditioned, because each is the value of a term at N = 1 (or D = 1).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..numerics import _smooth
from ..numerics._columns import log_sum
from ..numerics._descent import Form
from ..numerics._projection import check_range


class AdditiveLaw(NamedTuple):
    """A law whose loss is a sum of terms: products of powers of the columns, and a floor.

    Attributes:
        name: the name of the law, for messages
        coefficients: the NamedTuple of its coefficients: the multipliers, and the exponents, in any order
        columns: the columns of `fit_additive` and `predict_additive`, in this order; each above 0
        terms: (multiplier, {exponent: column}); {} for a floor
        guesses: exponents of the starts

    Example:
        A law that uses only the training tokens D: L = b/D^β + c.

        >>> class Coefficients(NamedTuple):
        ...     b: float
        ...     beta: float
        ...     c: float
        >>> law = AdditiveLaw("tokens alone", Coefficients, ("tokens",), (("b", {"beta": "tokens"}), ("c", {})))
        >>> tokens = np.array([1e9, 3e9, 1e10, 3e10, 1e11])
        >>> loss = predict_additive(law, Coefficients(400.0, 0.3, 1.7), [tokens])
        >>> [round(float(value), 6) for value in fit_additive(law, [tokens], loss).coefficients]
        [400.0, 0.3, 1.7]
    """

    name: str
    coefficients: type
    columns: tuple[str, ...]
    terms: tuple[tuple[str, dict[str, str]], ...]
    guesses: tuple[float, ...] = (0.15, 0.5)


class AdditiveFit(NamedTuple):
    """The best fit of a law to a table by the sum of Huber terms.

    Attributes:
        coefficients: the law's own NamedTuple; if a term vanishes, its multiplier is 0 and its exponents are NaN
        objective: the best objective found
        rmsle: root mean squared difference of log10 losses, for every criterion
        status: "interior", "not determined", a list of vanished coefficients, or a note that the search did not end
        covariance: [p, p], of the coefficients in their order; see `_descent.covariance`
        rows: number of rows
        criterion: a description of the minimised quantity
        starts: number of starts
        reached: number of starts that ended within a millionth of the best objective
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
    """Coefficients printed in a paper.

    Attributes:
        coefficients: a law's own NamedTuple
        source: the place in the paper
        attested: the text of the source that we checked
    """

    coefficients: tuple
    source: str
    attested: str


class AdditiveInterval(NamedTuple):
    """A value of the best fit and its interval: the values that the data do not reject.

    Attributes:
        name: a coefficient, or "prediction"
        value: the value of the best fit
        low: 0 (a multiplier) or -inf (an exponent) if the data give no lower end
        high: inf if the data give no upper end
        level: confidence level
    """

    name: str
    value: float
    low: float
    high: float
    level: float


def predict_additive(law: AdditiveLaw, coefficients: tuple, columns: Sequence) -> np.ndarray:
    """Return the loss L that a law predicts, as the sum of its terms.

    Args:
        law: the law.
        coefficients: the coefficients of this law. If a multiplier is 0, its exponents have no effect.
        columns: the columns in the order of `law.columns`, each above 0. They broadcast against each other.

    Returns:
        L in the unit of the multipliers, with the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    named = {name: check_range(name, values, above=0.0) for name, values in zip(law.columns, columns, strict=True)}
    value = coefficients._asdict()
    total = np.zeros(np.broadcast_shapes(*(np.shape(v) for v in named.values())))
    for multiplier, exponents in law.terms:
        if value[multiplier] > 0:
            powers = [named[column] ** -value[exponent] for exponent, column in exponents.items()]
            total = total + value[multiplier] * math.prod(powers)
    return total


def fit_additive(
    law: AdditiveLaw,
    columns: Sequence,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit an additive law to a table of runs.

    Args:
        law: the law.
        columns: [n] each, in the order of `law.columns`, above 0.
        loss: [n], L, above 0.
        huber: δ, in natural logarithms of the loss (1e-3 in Hoffmann et al. 2022); None for least squares (the
            objective is then half the sum of squares).
        starts: [s, p], starting coefficients, in the order of `law.coefficients`; None for the default starts.
        search: how to search; the accelerated package passes its own.

    Returns:
        The fit. Its status is "interior" if the search has ended and the rows determine every coefficient.

    Raises:
        ValueError: lengths differ, an entry or `huber` is not finite or not above 0, or the rows cannot determine the
            law. They need more rows than coefficients, 3 different values in each column, and columns with linearly
            independent logarithms.
    """
    columns, loss = _checked(law, columns, loss)
    return AdditiveFit(*search(_form(law), columns, loss, huber, starts))


def additive_intervals(
    law: AdditiveLaw,
    columns: Sequence,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return the profile intervals of the coefficients of a law, or of its predictions at some points.

    Args:
        law, columns, loss, huber: as in `fit_additive`.
        level: confidence level, between 0 and 1.
        at: None for the coefficients; else the columns of the law, [m] each, for predictions at m points.
        search: how to search; the accelerated package passes its own.

    Returns:
        One interval for each coefficient, in their order, or for each point. Student's quantile has n - p degrees of
        freedom.

    Raises:
        ValueError: `fit_additive` raises this error, or `level` is out of its range.
    """
    columns, loss = _checked(law, columns, loss)
    points = None if at is None else _smooth.points_of(law.columns, at)
    return [AdditiveInterval(*each) for each in search(_form(law), columns, loss, huber, level, points)]


class _Unknowns:
    """A law in the unknowns θ of the search: exponents, and for each multiplier its centred logarithm.

    Its methods are the interface of `_descent.py`. `columns` is a tuple of arrays [n], one for each column
    of the law; `centres` [columns] holds the mean natural logarithm of each column; θ is [p].
    """

    def __init__(self, law: AdditiveLaw):
        self.law, self.names = law, law.coefficients._fields
        self.place = {name: j for j, name in enumerate(self.names)}
        self.multipliers = [multiplier for multiplier, _ in law.terms]
        self.levels = [self.place[name] for name in self.multipliers]  # where θ holds the multipliers' logarithms
        self.exponents = [self.place[name] for name in self.names if name not in self.multipliers]

    def design(self, logs: list[np.ndarray]) -> np.ndarray:
        """Return X of step 1, [n, terms, p], from the centred logarithms of each column [n]."""
        by_name = dict(zip(self.law.columns, logs, strict=True))
        X = np.zeros((len(logs[0]), len(self.law.terms), len(self.names)))
        for t, (multiplier, exponents) in enumerate(self.law.terms):
            X[:, t, self.place[multiplier]] = 1.0
            for exponent, column in exponents.items():
                X[:, t, self.place[exponent]] = -by_name[column]
        return X

    def bind(self, columns: tuple, centres: np.ndarray):
        """Return the function of θ that gives ln L [n] and its derivatives [n, p] (step 2) at these runs."""
        X = self.design([np.log(values) - centre for values, centre in zip(columns, centres, strict=True)])

        def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            predicted, shares = log_sum(X @ theta)
            return predicted, np.sum(shares[:, :, None] * X, axis=1)

        return model

    def at_one(self, centres: np.ndarray) -> np.ndarray:
        """Return X [terms, p] at columns of 1, where X·θ is ln of the multipliers (step 4)."""
        return self.design([np.array([-centre]) for centre in centres])[0]

    def natural(self, theta: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return the coefficients [p] of the law from θ."""
        values = np.array(theta, dtype=np.float64)
        values[self.levels] = np.exp(self.at_one(centres) @ theta)
        return values

    def internal(self, coefficients: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return θ from the coefficients [p] of the law, the inverse of `natural`."""
        theta = np.array(coefficients, dtype=np.float64)
        theta[self.levels] = np.log(theta[self.levels])
        # Without the ones of the multipliers, X · θ has only the contribution of the exponents.
        by_exponents = self.at_one(centres)
        by_exponents[np.arange(len(self.levels)), self.levels] = 0.0
        theta[self.levels] -= by_exponents @ theta
        return theta

    def starts(self, columns: tuple, centres: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
        """Return θ [s, p]: every way to share the loss between the terms, with every guess of the exponents."""
        _, exponents = self.law.terms[-1]
        floor, values = not exponents, []  # a last term without exponents is a floor
        for shares in _smooth.share_out(len(self.law.terms), floor, log_loss):
            for guess in itertools.product(self.law.guesses, repeat=len(self.exponents)):
                theta = np.zeros(len(self.names))
                theta[self.levels], theta[self.exponents] = shares, guess
                values.append(theta)
        return np.array(values)


def _form(law: AdditiveLaw) -> Form:
    """Return the law in the interface of `_descent.py`."""
    unknowns = _Unknowns(law)
    positive = [name in unknowns.multipliers for name in unknowns.names]
    return Form(
        kind=law.coefficients,
        positive=tuple(positive),
        limits=tuple(0.0 if each else math.nan for each in positive),
        bind=unknowns.bind,
        natural=unknowns.natural,
        internal=unknowns.internal,
        centres=lambda columns: np.array([np.log(column).mean() for column in columns]),
        starts=unknowns.starts,
        law=law,
    )


def _checked(law: AdditiveLaw, columns: Sequence, loss: np.ndarray) -> tuple[tuple, np.ndarray]:
    """Return the table. Raise ValueError unless it can determine the law, as in `fit_additive`."""
    return _smooth.check_table(
        law.name, dict(zip(law.columns, columns, strict=True)), loss, len(law.coefficients._fields)
    )


# What this file does not do: the search itself (`_descent.py`), intervals (`_profile.py`).
