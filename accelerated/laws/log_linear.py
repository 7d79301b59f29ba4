"""See `routelaws.reference.laws.log_linear`.

What differs here: all per-size lines are found at once from sums over the rows of each size, and the planes by a QR
step. NumPy float64, whatever the arguments are.
"""

import math
from typing import NamedTuple

import numpy as np

from ._columns import CRITERION, INDEPENDENT, check_columns, check_range, crossing, need_rows, reach, triangle

_LOG_10 = math.log(10)


class PerSizeCoefficients(NamedTuple):
    """See reference."""

    sizes: np.ndarray
    b: np.ndarray
    d: np.ndarray


class SeparableCoefficients(NamedTuple):
    """See reference."""

    a: float
    b: float
    d: float


class BilinearCoefficients(NamedTuple):
    """See reference."""

    a: float
    b: float
    c: float
    d: float


LogLinearCoefficients = PerSizeCoefficients | SeparableCoefficients | BilinearCoefficients


class LogLinearFit(NamedTuple):
    """See reference."""

    coefficients: LogLinearCoefficients
    objective: float
    rmsle: float
    status: str
    covariance: np.ndarray
    rows: int
    criterion: str


def predict_loss(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: LogLinearCoefficients
) -> np.ndarray:
    """See reference."""
    level, slope = _at_size(dense_parameters, coefficients)
    return np.exp(_LOG_10 * level + slope * _log_experts(num_experts))


def slope_in_experts(dense_parameters: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """See reference."""
    return _at_size(dense_parameters, coefficients)[1]


def slope_in_parameters(num_experts: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """See reference."""
    a, _, c, _ = _plane(coefficients)
    return a + c / _LOG_10 * _log_experts(num_experts)


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: LogLinearCoefficients
) -> np.ndarray:
    """See reference. N̄ = N · E^((b + c log10 N)/a)."""
    a, b, c, _ = _plane(coefficients)
    if a == 0:
        raise ValueError("a is 0: no dense size is equivalent, since size does not change the loss")
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_size + (b + c / _LOG_10 * log_size) / a * _log_experts(num_experts))


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """See reference."""
    level, slope = _at_size(dense_parameters, coefficients)
    short = np.log(check_range("loss", loss, above=0.0)) - _LOG_10 * level
    experts = np.where(short >= 0, 1.0, reach(short, slope, never=math.inf))
    return np.where(np.isnan(level), np.nan, experts)


def size_for_loss(num_experts: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """See reference."""
    a, b, c, d = _plane(coefficients)
    log_experts = _log_experts(num_experts)
    short = np.log(check_range("loss", loss, above=0.0)) - (_LOG_10 * d + b * log_experts)
    return reach(short, a + c / _LOG_10 * log_experts, never=math.nan)


def cutoff(coefficients: LogLinearCoefficients) -> float:
    """See reference."""
    _, b, c, _ = _plane(coefficients)
    return crossing(b, c)


def fit_per_size(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """See reference."""
    size, experts, loss = check_columns(dense_parameters=dense_parameters, num_experts=num_experts, loss=loss)
    x, y = np.log(experts) / _LOG_10, np.log(loss) / _LOG_10
    sizes, line = np.unique(size, return_inverse=True)
    highest, lowest = np.full(sizes.size, -np.inf), np.full(sizes.size, np.inf)
    np.maximum.at(highest, line, x)
    np.minimum.at(lowest, line, x)
    lined = highest - lowest > INDEPENDENT
    if not lined.any():
        raise ValueError("no size has two different num_experts; a line in num_experts needs them")
    used = lined[line]
    x, y, line = x[used], y[used], (np.cumsum(lined) - 1)[line[used]]
    need_rows(x.size, 2 * int(lined.sum()), "per-size")
    count = np.bincount(line)
    at, level = np.bincount(line, x) / count, np.bincount(line, y) / count
    spread = np.bincount(line, (x - at[line]) ** 2)
    b = np.bincount(line, (x - at[line]) * (y - level[line])) / spread
    squares = float(np.sum((y - level[line] - b[line] * (x - at[line])) ** 2))
    coefficients = PerSizeCoefficients(sizes[lined], b, level - b * at)
    shared = squares / (x.size - 2 * count.size)
    covariance = shared * np.array([[1 / spread, -at / spread], [-at / spread, 1 / count + at**2 / spread]])
    status = "interior" if lined.all() else f"no line at {int((~lined).sum())} of {lined.size} sizes"
    objective = squares / x.size
    return LogLinearFit(
        coefficients, objective, math.sqrt(objective), status, np.moveaxis(covariance, 2, 0), x.size, CRITERION
    )


def fit_separable(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """See reference."""
    x, e, y = _centred(dense_parameters, num_experts, loss, 3, "separable")
    factors = triangle(np.stack([np.ones_like(y), x.offset, e.offset], axis=1)) if x.spread and e.spread else None
    if factors is None:
        raise ValueError(
            "size and num_experts cannot be told apart in these rows; needed: at least two sizes and two num_experts "
            "that do not rise in step"
        )
    # d = level - a·(mean of log10 N) - b·(mean of log10 E)
    back = np.array([[0, 1, 0], [0, 0, 1], [1, -x.mean, -e.mean]])
    return _solved(factors, y, back, SeparableCoefficients)


def fit_bilinear(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """See reference. Only log10 N is measured from its mean, but for the test whether the rows determine the law."""
    x, e, y = _centred(dense_parameters, num_experts, loss, 4, "bilinear")
    one = np.ones_like(y)
    centred = np.stack([one, x.offset, e.offset, x.offset * e.offset], axis=1)
    if not (x.spread and e.spread) or triangle(centred) is None:
        raise ValueError(
            "size, num_experts and their product cannot be told apart in these rows; needed: several num_experts at "
            "more than one size"
        )
    log_experts = e.offset + e.mean
    factors = np.linalg.qr(np.stack([one, x.offset, log_experts, x.offset * log_experts], axis=1))
    back = np.array([[0, 1, 0, 0], [0, 0, 1, -x.mean], [0, 0, 0, 1], [1, -x.mean, 0, 0]])
    return _solved(factors, y, back, BilinearCoefficients)


class _Centred(NamedTuple):
    """log10 of a column: what is left when its mean is taken off, the mean, and whether it varies at all."""

    offset: np.ndarray
    mean: float
    spread: bool


def _centred(dense_parameters, num_experts, loss, coefficients: int, law: str) -> tuple[_Centred, _Centred, np.ndarray]:
    size, experts, loss = check_columns(dense_parameters=dense_parameters, num_experts=num_experts, loss=loss)
    need_rows(size.size, coefficients, law)
    both = []
    for values in (np.log10(size), np.log10(experts)):
        mean = float(values.mean())
        both.append(_Centred(values - mean, mean, bool(values.max() - values.min() > INDEPENDENT)))
    return *both, np.log10(loss)


def _solved(factors: tuple[np.ndarray, np.ndarray], target: np.ndarray, back: np.ndarray, form: type) -> LogLinearFit:
    """Solve from QR factors and multiply by `back`, which gives the coefficients in the order of `form`."""
    unit, upper = factors
    inverse = back @ np.linalg.inv(upper)
    solution = unit.T @ target
    residual = target - unit @ solution
    squares = float(residual @ residual)
    rows, unknowns = unit.shape
    covariance = squares / (rows - unknowns) * inverse @ inverse.T
    coefficients = form(*map(float, inverse @ solution))
    objective = squares / rows
    return LogLinearFit(coefficients, objective, math.sqrt(objective), "interior", covariance, rows, CRITERION)


def _log_experts(num_experts: np.ndarray) -> np.ndarray:
    """Return the natural log of E."""
    return np.log(check_range("num_experts", num_experts, least=1.0))


def _at_size(dense_parameters: np.ndarray, coefficients: LogLinearCoefficients) -> tuple[np.ndarray, np.ndarray]:
    """Return log10 of the dense loss at each size, and the slope in log10 E."""
    size = check_range("dense_parameters", dense_parameters, above=0.0)
    if isinstance(coefficients, PerSizeCoefficients):
        sizes, b, d = (np.append(values, np.nan) for values in coefficients)
        same = size[..., None] == sizes[:-1]
        line = np.where(same.any(axis=-1), same.argmax(axis=-1), sizes.size - 1)
        return d[line], b[line]
    a, b, c, d = _plane(coefficients)
    log_size = np.log(size) / _LOG_10
    return d + a * log_size, b + c * log_size


def _plane(coefficients: LogLinearCoefficients) -> BilinearCoefficients:
    """See the reference's `_interacting`."""
    if isinstance(coefficients, PerSizeCoefficients):
        raise ValueError("per-size lines say nothing between sizes; needed: separable or bilinear coefficients")
    if isinstance(coefficients, SeparableCoefficients):
        return BilinearCoefficients(coefficients.a, coefficients.b, 0.0, coefficients.d)
    return coefficients
