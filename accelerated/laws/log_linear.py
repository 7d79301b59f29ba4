"""Three laws in which log10 L is a straight line in log10 E: per-size, separable and bilinear.

Step by step, with sources and examples: `routelaws.reference.laws.log_linear`.

    per-size    log10 L = b(N) log10 E + d(N)                 one line for each size that was trained
    separable   log10 L = a log10 N + b log10 E + d           one slope in E for all sizes
    bilinear    log10 L = a log10 N + b log10 E + c log10 N log10 E + d

with L the loss in nats per token, N the dense parameters and E the experts (1 for a dense model).

What differs here: all per-size lines are found at once from sums over the rows of each size, and the planes by a QR
step. NumPy float64, whatever the arguments are.
"""

import math
from typing import NamedTuple

import numpy as np

from ._columns import CRITERION, INDEPENDENT, check_columns, check_range, crossing, need_rows, reach, triangle

_LOG_10 = math.log(10)


class PerSizeCoefficients(NamedTuple):
    """The lines of the per-size law.

    Attributes:
        sizes: [m] N, parameters, rising
        b: [m] d log10 L / d log10 E at each size
        d: [m] log10 L of a dense model at each size
    """

    sizes: np.ndarray
    b: np.ndarray
    d: np.ndarray


class SeparableCoefficients(NamedTuple):
    """The three coefficients of the separable law.

    Attributes:
        a: d log10 L / d log10 N
        b: d log10 L / d log10 E
        d: log10 L at N = 1, E = 1
    """

    a: float
    b: float
    d: float


class BilinearCoefficients(NamedTuple):
    """The four coefficients of the bilinear law.

    Attributes:
        a: d log10 L / d log10 N at E = 1
        b: d log10 L / d log10 E at N = 1
        c: how much the slope in log10 E changes per decade of N
        d: log10 L at N = 1, E = 1
    """

    a: float
    b: float
    c: float
    d: float


LogLinearCoefficients = PerSizeCoefficients | SeparableCoefficients | BilinearCoefficients


class LogLinearFit(NamedTuple):
    """The best fit of one of the three laws to a table.

    Attributes:
        coefficients: those of the law that was fitted
        objective: mean squared difference of log10 losses
        rmsle: its square root
        status: "interior"; a per-size fit also says how many sizes have no line
        covariance: [p, p], order of the coefficients; per-size: [m, 2, 2], (b, d) at each size
        rows: rows used: all that were given, but for those of sizes without a line
        criterion: what was minimised
    """

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
    """Return the loss L of one of the three laws.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law, of any of the three forms.

    Returns:
        L, nats per token, the broadcast shape; NaN at a size for which per-size lines have none.

    Raises:
        ValueError: an entry is out of its range.
    """
    level, slope = _at_size(dense_parameters, coefficients)
    return np.exp(_LOG_10 * level + slope * _log_experts(num_experts))


def slope_in_experts(dense_parameters: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 E at size N: b(N), b, or b + c log10 N. Negative where routing helps.

    It has the shape of `dense_parameters`, and is NaN at a size for which per-size lines have none.

    Raises:
        ValueError: a size is not finite or not above 0.
    """
    return _at_size(dense_parameters, coefficients)[1]


def slope_in_parameters(num_experts: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 N at E experts: a, or a + c log10 E.

    Raises:
        ValueError: an entry is not finite or below 1, or the coefficients are per-size lines, which have no slope in N.
    """
    a, _, c, _ = _plane(coefficients)
    return a + c / _LOG_10 * _log_experts(num_experts)


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: LogLinearCoefficients
) -> np.ndarray:
    """Return N̄, the size of the dense model that the law gives the same loss as (N, E).

    Setting L(N̄, 1) = L(N, E) in the bilinear law leaves a log10 N̄ = a log10 N + (b + c log10 N) log10 E.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law, separable or bilinear; a must not be 0.

    Returns:
        N̄, parameters, the broadcast shape; N itself at E = 1; inf or 0 beyond the range of float64.

    Raises:
        ValueError: an entry is out of its range, a is 0 (size does not change the dense loss), or per-size lines.

    Differs from the reference: computed as N̄ = N · E^((b + c log10 N)/a).
    """
    a, b, c, _ = _plane(coefficients)
    if a == 0:
        raise ValueError("a is 0: no dense size is equivalent, since size does not change the loss")
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_size + (b + c / _LOG_10 * log_size) / a * _log_experts(num_experts))


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the least E at which size N reaches a loss; where 1 < E < inf, the inverse of `predict_loss`.

    Args:
        dense_parameters: N, parameters, above 0.
        loss: the target, nats per token, above 0; broadcast against `dense_parameters`.
        coefficients: the law, of any of the three forms.

    Returns:
        E, a real number, the broadcast shape. 1 where the dense model reaches the loss already; math.inf where no E
        does, because routing does not help at that size (slope 0 or above) or E is beyond the largest float64; NaN at a
        size for which per-size lines have none.

    Raises:
        ValueError: an entry is out of its range.
    """
    level, slope = _at_size(dense_parameters, coefficients)
    short = np.log(check_range("loss", loss, above=0.0)) - _LOG_10 * level
    experts = np.where(short >= 0, 1.0, reach(short, slope, never=math.inf))
    return np.where(np.isnan(level), np.nan, experts)


def size_for_loss(num_experts: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the N at which E experts reach a loss: over many E, a level curve of the loss. Inverse of `predict_loss`.

    Args:
        num_experts: E, at least 1.
        loss: the target, nats per token, above 0; broadcast against `num_experts`.
        coefficients: the law, separable or bilinear.

    Returns:
        N, parameters, the broadcast shape; NaN where the loss does not fall with size, a + c log10 E >= 0; inf or 0
        beyond the range of float64.

    Raises:
        ValueError: an entry is out of its range, or the coefficients are per-size lines.
    """
    a, b, c, d = _plane(coefficients)
    log_experts = _log_experts(num_experts)
    short = np.log(check_range("loss", loss, above=0.0)) - (_LOG_10 * d + b * log_experts)
    return reach(short, a + c / _LOG_10 * log_experts, never=math.nan)


def cutoff(coefficients: LogLinearCoefficients) -> float:
    """Return N_cutoff = 10^(-b/c), the size at which b + c log10 N reaches 0 and more experts stop helping.

    Very ill-conditioned, as in `routed.py`. A separable law has c = 0.

    Returns:
        N_cutoff in parameters if c > 0; math.inf if c <= 0 or if it is above the largest float64; NaN if b or c is.

    Raises:
        ValueError: the coefficients are per-size lines.
    """
    _, b, c, _ = _plane(coefficients)
    return crossing(b, c)


def fit_per_size(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """Fit the per-size law: a straight line of log10 L in log10 E at each size.

    Args:
        dense_parameters: [n], N, parameters, above 0. Rows belong to one line if their N are equal.
        num_experts: [n], E, at least 1.
        loss: [n], L, nats per token, above 0.

    Returns:
        The fit. A size with fewer than two different E has no line: its rows are left out and the status counts it.
        The covariances share one residual variance, with n - 2m degrees of freedom for m lines (our choice).

    Raises:
        ValueError: lengths differ, an entry is out of its range, no size has two different E, or no row is left over
            once every line has taken two.
    """
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
    """Fit the separable law to a table.

    Arguments as `fit_per_size`. The covariance has n - 3 degrees of freedom.

    Raises:
        ValueError: lengths differ, an entry is out of its range, fewer than 4 rows, or size and num_experts cannot be
            told apart (one size, one E, or one growing exactly with the other).
    """
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
    """Fit the bilinear law to a table.

    Arguments as `fit_per_size`. The covariance has n - 4 degrees of freedom.

    Raises:
        ValueError: lengths differ, an entry is out of its range, fewer than 5 rows, or size, num_experts and their
            product cannot be told apart.

    Differs from the reference: only log10 N is measured from its mean, but for the test whether the rows determine the
    law.
    """
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
