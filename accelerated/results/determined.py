"""Whether the rows of a fit determine its law, and each of its coefficients. The rules are our choice."""

import math

import numpy as np

from routelaws.reference.laws.intervals import Range

LOGARITHMIC = ("E_start", "E_max", "B_start", "B_max", "N_cutoff", "F_cutoff")
"""Sizes and numbers of experts, which are known well if they are known to a factor."""

OUTLIER = 4.0
"""Beyond how many robust standard deviations of the fit a row is left out in `_steepness`."""

FAR = 10.0
"""How many times the nearer end of a slope's interval the farther one may be in a law that counts as determined."""


def is_determined(slopes: list[Range]) -> bool:
    """Return whether the rows determine a bounded law: the slope b + c log10 N is known at every size given.

    Known means to a factor of FAR: no end of its interval is infinite, and the farther one is at most so many times the
    nearer one away from 0, or so many times the best value where 0 lies between them. If it is not, the rows cannot
    tell the law from a limit in which its coefficients run away together, and no coefficient should be read. Our
    choice.
    """
    for slope in slopes:
        far = max(abs(slope.low), abs(slope.high))
        near = abs(slope.value) if slope.low <= 0 <= slope.high else min(abs(slope.low), abs(slope.high))
        if not far <= FAR * near:
            return False
    return True


def is_known(name: str, value: float, words: str) -> bool:
    """Return whether a coefficient, or a number derived from them, is determined by its own interval.

    Both ends have to be there and, but for sizes and numbers of experts, at most a factor of ten apart: beyond that the
    best value is one of many that run away together. A law that is not determined as a whole can have coefficients
    that are: their intervals hold for every law that the rows allow. Our choice.

    Args:
        name: of the coefficient.
        value: the best value.
        words: of `laws.uncertainty.verdict`; "" where the interval is exact.
    """
    open_ended = ("bounded", "not") if name in LOGARITHMIC else ("bounded", "not", "loose")
    return math.isfinite(value) and not words.startswith(open_ended)


def steepness(law, columns, loss: np.ndarray, fit, level: float) -> list[Range]:
    """Return the slopes by which a law is judged to be determined; none of a law that always is.

    They are those of least squares on the rows within OUTLIER robust standard deviations of the fit. Not asked where
    the fit's own slopes are there already (the law in (N, E) by least squares).
    """
    if law.slopes is None:
        return []
    residual = np.abs(np.log10(law.predict(fit, *columns) / loss))
    near = residual <= max(OUTLIER * 1.4826 * float(np.median(residual)), 1e-9)
    return law.slopes(fit, [column[near] for column in columns], loss[near], level)
