"""Two laws of downstream accuracy that are sums: the ratio law and the law with a ceiling.

`downstream.py` explains the laws, the letters and the selection of rows. The logarithm of a sum of power laws is
nonlinear:

    ratio      ln(-ln Q') = ln(A/N^α + B/D^β)
    ceiling    ln(-ln Q') = ln(A/C^α + E)

The fit therefore uses many starts (`_levenberg.py`). It minimises squares, or the sum of Huber terms with the paper's
delta of 1e-3. The paper's starts for the ratio law are α, β in {0.5, 1, 1.5} and ln A, ln B in {5, 10, 15}. For the
ceiling it has a similar grid. In our starts, the two terms share the mean of the rows in the middle of the table, in
three ways (our choice). So the starts do not depend on units.

The data determine E only if some rows are near the ceiling. If the law without a ceiling fits equally well, E is 0 and
the status is "no ceiling is seen". The status is "one term vanishes" if one term is below a millionth of the other in
every row.
"""

import itertools
import math
from functools import partial

import numpy as np

from ...errors import InputError
from ..numerics import _levenberg
from ..numerics._huber import check_delta
from ..numerics._levenberg import LocalMinimum, covariance, power_terms
from .downstream import (
    LEAST_GAIN,
    AccuracyFit,
    CeilingCoefficients,
    RatioCoefficients,
    Status,
    _features,
    _report,
    _rows,
)

_EXPONENTS = (0.1, 0.3, 0.6, 1.2)  # of the starts
_SHARES = (0.1, 0.5, 0.9)  # shares of the second term in the middle of the table
_VANISHED = 1e-6  # a term with a smaller share in every row counts as absent
_AS_GOOD = 1e-9  # relative; a ceiling must lower the sum by at least this
_ROUNDING = 1e-20  # rounding of the sum per row, from residuals of 1e-10


def fit_ratio(
    parameters: np.ndarray,
    tokens: np.ndarray,
    accuracy: np.ndarray,
    guess_rate: float = 0.0,
    least_gain: float = LEAST_GAIN,
    huber: float | None = None,
    *,
    search=_levenberg.search,
) -> AccuracyFit:
    """Fit the law across ratios of tokens to parameters, -ln Q' = A/N^α + B/D^β, from 48 starts.

    `fit_direct` describes the arguments; huber is the delta of the Huber terms, or None for least squares.
    search is how to search; the accelerated package passes its own.
    """
    columns = {"parameters": parameters, "tokens": tokens}
    return _fit_sum(RatioCoefficients, columns, accuracy, guess_rate, least_gain, huber, search)


def fit_ceiling(
    flops: np.ndarray,
    accuracy: np.ndarray,
    guess_rate: float = 0.0,
    least_gain: float = LEAST_GAIN,
    huber: float | None = None,
    *,
    search=_levenberg.search,
) -> AccuracyFit:
    """Fit the law with a ceiling, -ln Q' = A/C^α + E, from 12 starts. `fit_ratio` describes the arguments."""
    return _fit_sum(CeilingCoefficients, {"flops": flops}, accuracy, guess_rate, least_gain, huber, search)


def _fit_sum(form: type, columns: dict, accuracy, guess_rate, least_gain, huber: float | None, search) -> AccuracyFit:
    """Fit a law that is a sum of two terms, with centred logarithms of the columns."""
    delta = math.inf if huber is None else check_delta(huber, "in units of ln(-ln Q')")
    logs, target, used = _rows(columns, accuracy, guess_rate, least_gain, len(form._fields))
    if not all(np.ptp(log) > 0 for log in logs):
        raise InputError(
            f"the rows used have only one value of a column; needed: two values of each of {', '.join(columns)}"
        )
    centre = np.array([log.mean() for log in logs])
    features = _features(form, tuple(log - c for log, c in zip(logs, centre, strict=True)))
    best = search(partial(power_terms, features), target, _starts(form, float(target.mean())), delta)
    move = _from_the_middle(form, centre)
    values, spread = move @ best.parameters, move @ covariance(best, delta) @ move.T
    status: Status = "interior" if values[1] > 0 else "accuracy does not rise"
    if _least_share(features, best) < _VANISHED:
        status = "one term vanishes"
    if form is CeilingCoefficients:
        line = search(partial(power_terms, features[:, :1, :2]), target, np.array([[target.mean(), 0.1]]), delta)
        if line.objective <= best.objective * (1 + _AS_GOOD) + _ROUNDING * target.size:
            best, status = line, "no ceiling is seen"
            values = np.append(move[:2, :2] @ line.parameters, -np.inf)
            spread = np.full((3, 3), np.nan)
            spread[:2, :2] = move[:2, :2] @ covariance(line, delta) @ move[:2, :2].T
    factors = [name in ("A", "B", "E") for name in form._fields]
    with np.errstate(over="ignore"):
        coefficients = form(*(float(v) for v in np.where(factors, np.exp(values), values)))
    return _report(coefficients, best.objective, best.residual, target, status, spread, used, delta, guess_rate)


def _from_the_middle(form: type, centre: np.ndarray) -> np.ndarray:
    """Return the matrix that converts centred coefficients: ln A = level + α · mean logarithm; ln B likewise."""
    move = np.eye(len(form._fields))
    move[0, 1] = centre[0]
    if form is RatioCoefficients:
        move[2, 3] = centre[1]
    return move


def _least_share(features: np.ndarray, best: LocalMinimum) -> float:
    """Return the largest ratio, over the rows, of the smaller term to the larger term."""
    log_terms = features @ best.parameters  # [n, 2]
    ratios = np.exp(log_terms - log_terms.max(axis=1, keepdims=True))  # 1 for the larger term of a row
    return float(ratios.max(axis=0).min())


def _starts(form: type, level: float) -> np.ndarray:
    """Return starts in which the two terms add up to the mean of the table, with several shares of the second term."""
    rows = []
    for share in _SHARES:
        first, second = level + math.log(1 - share), level + math.log(share)
        if form is CeilingCoefficients:
            rows += [[first, alpha, second] for alpha in _EXPONENTS]
        else:
            rows += [[first, alpha, second, beta] for alpha, beta in itertools.product(_EXPONENTS, repeat=2)]
    return np.array(rows)
