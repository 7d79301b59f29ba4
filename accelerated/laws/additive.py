"""Laws that add terms: an irreducible loss, and powers of size, tokens and other columns.

Imported from `routelaws.reference.laws.additive`. The search differs: it follows all starts of a fit at once, and both
ends of all intervals by false position (`_descent.py`).
"""

import math

import numpy as np

from routelaws.reference.laws import additive as reference
from routelaws.reference.laws.additive import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.additive import AdditiveLaw

from .._calling import calling
from . import _descent, _smooth


def _form(law: AdditiveLaw):
    """Return the law in the interface of `_descent.py`."""
    rows, powers = _places(law)

    def predict(theta, logs):
        """See `_descent.Form`. Each term is divided by the largest, so no power overflows."""
        log_terms = np.repeat(theta[:, rows, None], logs.shape[-1], axis=2)  # [s, terms, n]
        factors = [(t, c, powers[t, c]) for t, c in np.argwhere(powers >= 0)]  # term, column, place of the exponent
        for t, c, power in factors:
            log_terms[:, t] -= theta[:, power, None] * logs[..., c, :]
        top = log_terms.max(axis=1, keepdims=True)
        shares = np.exp(log_terms - top)
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        turn = np.zeros((*theta.shape, logs.shape[-1]))
        turn[:, rows] = shares
        for t, c, power in factors:
            turn[:, power] -= shares[:, t] * logs[..., c, :]
        return (top + np.log(total))[:, 0], turn

    def coefficients(theta, centres):
        turn = np.eye(theta.shape[1])
        for t, c in np.argwhere(powers >= 0):
            turn[rows[t], powers[t, c]] += centres[c]
        return theta @ turn.T, np.broadcast_to(turn, (len(theta), *turn.shape))

    def internal(values, centres):
        theta = np.array(values, dtype=np.float64)
        theta[rows] = np.log(theta[rows]) - np.where(powers >= 0, theta[powers], 0.0) @ centres
        return theta

    positive = tuple(j in rows for j in range(len(law.coefficients._fields)))
    return _descent.Form(
        law.coefficients._fields,
        positive,
        tuple(0.0 if above else math.nan for above in positive),
        predict,
        coefficients,
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
    """Return θ [s, p]: every way to share the loss between the terms, with every guess of the exponents.

    Args:
        rows: [terms], indices of the multipliers' logarithms in θ.
        log_loss: [n].
    """
    unknowns = len(law.coefficients._fields)
    exponents = np.setdiff1d(np.arange(unknowns), rows)
    shares = np.array(_smooth.share_out(len(law.terms), not law.terms[-1][1], log_loss))
    grid = np.stack([v.ravel() for v in np.meshgrid(*[law.guesses] * exponents.size, indexing="ij")], axis=1)
    starts = np.zeros((len(shares), len(grid), unknowns))
    starts[:, :, rows], starts[:, :, exponents] = shares[:, None], grid[None]
    return starts.reshape(-1, unknowns)


fit_additive = calling(reference.fit_additive, _smooth=_smooth, _form=_form)
additive_intervals = calling(reference.additive_intervals, _smooth=_smooth, _form=_form)
