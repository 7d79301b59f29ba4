"""The laws of downstream accuracy that are sums: across ratios of tokens to parameters, and with a ceiling.

Step by step, with sources and examples: `routelaws.reference.laws.downstream_sums`.

What differs here: all starts of a fit run in one compiled loop (`_levenberg.py`).
"""

import itertools
import math

import numpy as np

from ._columns import check_delta
from ._levenberg import Minimum, covariance, power_terms, search
from .downstream import LEAST_GAIN, AccuracyFit, CeilingCoefficients, RatioCoefficients, chosen_rows, report

_UNIT = "in units of ln(-ln Q')"
_EXPONENTS = (0.1, 0.3, 0.6, 1.2)
_SHARES = (0.1, 0.5, 0.9)
_VANISHED, _AS_GOOD, _ROUNDING = 1e-6, 1e-9, 1e-20


def fit_ratio(
    parameters: np.ndarray,
    tokens: np.ndarray,
    accuracy: np.ndarray,
    guess_rate: float = 0.0,
    least_gain: float = LEAST_GAIN,
    huber: float | None = None,
) -> AccuracyFit:
    """Fit -ln Q' = A/N^α + B/D^β from 48 starts; arguments as `fit_direct`, huber the delta of Huber's terms.

    Differs from the reference: all starts run in one compiled loop, which takes some seconds to compile the first time.
    """
    delta = math.inf if huber is None else check_delta(huber, _UNIT)
    columns = {"parameters": parameters, "tokens": tokens}
    logs, target, used = chosen_rows(columns, accuracy, guess_rate, least_gain, 4)
    centre = _centres(logs, columns)
    features = np.zeros((target.size, 2, 4))
    features[:, 0, 0] = features[:, 1, 2] = 1.0
    features[:, 0, 1], features[:, 1, 3] = centre[0] - logs[0], centre[1] - logs[1]
    level = float(target.mean())
    starts = [
        [level + math.log(1 - share), alpha, level + math.log(share), beta]
        for share, alpha, beta in itertools.product(_SHARES, _EXPONENTS, _EXPONENTS)
    ]
    found = search(power_terms, features, target, np.array(starts), delta)
    values, spread = _from_the_middle(found, centre, delta)
    with np.errstate(over="ignore"):
        values[[0, 2]] = np.exp(values[[0, 2]])
    coefficients = RatioCoefficients(*values.tolist())
    status = _status(features, found.parameters)
    return report(coefficients, found.objective, found.residual, target, status, spread, used, delta, guess_rate)


def fit_ceiling(
    flops: np.ndarray,
    accuracy: np.ndarray,
    guess_rate: float = 0.0,
    least_gain: float = LEAST_GAIN,
    huber: float | None = None,
) -> AccuracyFit:
    """Fit -ln Q' = A/C^α + E from 12 starts; arguments as `fit_ratio`.

    Differs from the reference: all starts run in one compiled loop, which takes some seconds to compile the first time.
    """
    delta = math.inf if huber is None else check_delta(huber, _UNIT)
    columns = {"flops": flops}
    (log_flops,), target, used = chosen_rows(columns, accuracy, guess_rate, least_gain, 3)
    (centre,) = _centres([log_flops], columns)
    features = np.zeros((target.size, 2, 3))
    features[:, 0, 0] = features[:, 1, 2] = 1.0
    features[:, 0, 1] = centre - log_flops
    level = float(target.mean())
    starts = [[level + math.log(1 - share), a, level + math.log(share)] for share in _SHARES for a in _EXPONENTS]
    found = search(power_terms, features, target, np.array(starts), delta)
    # Without a ceiling: its term is e^-1000, which is 0 and stays where it is; the compiled loop is the same.
    line = search(power_terms, features, target, np.array([[level, 0.1, -1000.0]] * len(starts)), delta)
    status, ceiling, spread = _status(features, found.parameters), 0.0, np.full((3, 3), np.nan)
    if line.objective <= found.objective * (1 + _AS_GOOD) + _ROUNDING * target.size:
        found, status = line, "no ceiling is seen"
        known = found._replace(jacobian=found.jacobian[:, :2])
    else:
        known, ceiling = found, math.exp(found.parameters[2])
    values, own = _from_the_middle(known, [centre], delta)
    spread[: len(own), : len(own)] = own
    level, alpha = values[:2].tolist()
    with np.errstate(over="ignore"):
        coefficients = CeilingCoefficients(float(np.exp(level)), alpha, ceiling)
    return report(coefficients, found.objective, found.residual, target, status, spread, used, delta, guess_rate)


def _centres(logs: list[np.ndarray], columns: dict) -> list[float]:
    if not all(np.ptp(log) > 0 for log in logs):
        raise ValueError(f"the rows that count have one value of a column; needed: two of each of {', '.join(columns)}")
    return [float(log.mean()) for log in logs]


def _from_the_middle(found: Minimum, centres: list[float], delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the unknowns [p], with levels where a column is 1, and their covariance [p, p]; p as in the jacobian."""
    unknowns = found.jacobian.shape[1]
    move = np.eye(unknowns)
    for i, centre in enumerate(centres):
        move[2 * i, 2 * i + 1] = centre
    return move @ found.parameters[:unknowns], move @ covariance(found, delta) @ move.T


def _status(features: np.ndarray, parameters: np.ndarray) -> str:
    terms = features @ parameters
    if np.exp(terms - terms.max(axis=1, keepdims=True)).max(axis=0).min() < _VANISHED:
        return "one term vanishes"
    return "interior" if parameters[1] > 0 else "accuracy does not rise"
