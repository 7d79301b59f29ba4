"""What `_descent.py` wants to know of a law that adds terms.

Private to the fast twin; `routelaws.reference.laws.additive` derives it. The design X of the reference, rows by terms
by unknowns, is never made: the loops are told which unknown is the multiplier of a term, and which its exponents.
"""

import functools
import math

import numpy as np

from ..kernels.law_terms import ADDITIVE
from ._descent import Form, law_of
from ._smooth import share_out


@functools.cache
def additive_form(names: tuple, columns: tuple, terms: tuple, guesses: tuple) -> Form:
    """Return the form of an additive law, `terms` as ((multiplier, ((exponent, column), ...)), ...)."""
    place = {name: j for j, name in enumerate(names)}
    rows = np.array([place[multiplier] for multiplier, _ in terms])
    powers = np.full((len(terms), len(columns)), -1)  # the exponent of each column in each term
    for t, (_, exponents) in enumerate(terms):
        for exponent, column in exponents:
            powers[t, columns.index(column)] = place[exponent]

    def internal(values, centres):
        theta = np.array(values, dtype=np.float64)
        theta[rows] = np.log(theta[rows]) - np.where(powers >= 0, theta[powers], 0.0) @ centres
        return theta

    def starts(logs, log_loss):
        exponents = [place[name] for name in names if place[name] not in rows]
        shares = np.array(share_out(len(terms), not terms[-1][1], log_loss))
        grid = np.stack([v.ravel() for v in np.meshgrid(*[guesses] * len(exponents), indexing="ij")], axis=1)
        found = np.zeros((len(shares), len(grid), len(names)))
        found[:, :, rows], found[:, :, exponents] = shares[:, None], grid[None]
        return found.reshape(-1, len(names))

    positive = tuple(place[name] in rows for name in names)
    return Form(
        names,
        positive,
        tuple(0.0 if above else math.nan for above in positive),
        law_of(ADDITIVE, tuple(rows), powers),
        internal,
        lambda values: np.log(np.stack(values)),
        lambda logs: logs.mean(axis=1),
        starts,
    )
