"""Laws that add terms: an irreducible loss, and powers of size, tokens and other columns.

Imported from `routelaws.reference.laws.additive`. The search differs. Compiled loops on several threads follow all
starts of a fit. They find both ends of all intervals by false position (`_descent.py`). They take some seconds to
compile, once per machine.
"""

import math

import numpy as np

from routelaws.reference.laws import additive as reference
from routelaws.reference.laws.additive import *  # noqa: F403 - what follows replaces its name
from routelaws.reference.laws.additive import AdditiveLaw

from .._calling import calling
from . import _smooth


def _form(law: AdditiveLaw):
    """Return the law in the interface of `_descent.py`.

    The loops do not need the design X of the reference. They get the indices, in θ, of each term's multiplier and
    exponents.
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
