"""Laws that add terms: an irreducible loss, and powers of size, tokens and other columns.

Shared with `routelaws.reference.laws.additive`. The search differs: it follows all starts of a fit at once, and both
ends of all intervals by false position (`_descent.py`).
"""

import numpy as np

from routelaws.reference.laws.additive import AdditiveLaw

from . import _descent
from ._searches import share


def fast_additive(law: AdditiveLaw) -> _descent.Fast:
    """Return the functions of the search for a law."""
    rows, powers = _places(law)

    def predict(theta, logs):
        """See `_descent.Fast`. Each term is divided by the largest, so no power overflows."""
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

    return _descent.Fast(predict, coefficients)


def _places(law: AdditiveLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return where θ has the logarithm of each multiplier, [terms], and the exponent of each column in each term,
    [terms, columns], -1 where a term has none."""
    place = {name: j for j, name in enumerate(law.coefficients._fields)}
    powers = np.full((len(law.terms), len(law.columns)), -1)
    for t, (_, exponents) in enumerate(law.terms):
        for exponent, column in exponents.items():
            powers[t, law.columns.index(column)] = place[exponent]
    return np.array([place[multiplier] for multiplier, _ in law.terms]), powers


share(__name__)
