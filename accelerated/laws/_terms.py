"""What `_descent.py` wants to know of a law that adds terms, and its derivatives by hand.

Private to the fast twin; `routelaws.reference.laws.additive` derives them. The design X of the reference, rows by terms
by unknowns, is never made: an unknown is one and the same thing times the share of each term that it is in.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np

from ._descent import Form
from ._smooth import share_out


@functools.cache
def additive_form(names: tuple, columns: tuple, terms: tuple, guesses: tuple) -> Form:
    """Return the form of an additive law, `terms` as ((multiplier, ((exponent, column), ...)), ...)."""
    place = {name: j for j, name in enumerate(names)}
    rows = np.array([place[multiplier] for multiplier, _ in terms])
    powers = np.zeros((len(terms), len(columns), len(names)))  # minus the exponent of each column in each term
    for t, (_, exponents) in enumerate(terms):
        for exponent, column in exponents:
            powers[t, columns.index(column), place[exponent]] = -1.0

    member = np.abs(powers).sum(axis=1)  # [terms, p]: whether an unknown is in a term
    member[np.arange(len(terms)), rows] = 1.0
    of_column = -powers.max(axis=0, initial=0.0) + powers.min(axis=0)  # [columns, p]: what an exponent multiplies
    constant = np.zeros(len(names))
    constant[rows] = 1.0

    def model(theta, logs, centres):
        logs = logs - centres
        log_terms = theta[rows] + logs @ (powers @ theta).T  # [n, terms]
        largest = log_terms.max(axis=1, keepdims=True)
        parts = jnp.exp(log_terms - largest)
        total = parts.sum(axis=1, keepdims=True)
        return (largest + jnp.log(total))[:, 0], (parts / total @ member) * (logs @ of_column + constant)

    def natural(theta, centres):
        return theta.at[rows].set(jnp.exp(theta[rows] - (powers @ theta) @ centres))

    def internal(values, centres):
        theta = np.array(values, dtype=np.float64)
        theta[rows] = np.log(theta[rows]) + (powers @ theta) @ centres
        return theta

    def starts(logs, centres, log_loss):
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
        model,
        natural,
        internal,
        lambda values: np.log(np.stack(values, axis=1)),
        starts,
    )
