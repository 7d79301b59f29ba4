"""Three laws whose plot of log10 L against log10 E is a straight line at each size: per-size, separable and bilinear.

Clark et al. 2022 (arXiv 2202.01169) derive their law in steps. Logarithms are decimal. L is the loss in nats per token
and N the dense parameters. E is the number of experts of a routed layer. A dense model has E = 1.

    per-size    log10 L = b(N) log10 E + d(N)                 one line for each trained size
    separable   log10 L = a log10 N + b log10 E + d           one slope against log10 E for all sizes
    bilinear    log10 L = a log10 N + b log10 E + c log10 N log10 E + d

The per-size lines get flatter as N grows. The bilinear law can describe this change, but the separable law (c = 0)
cannot. The measured losses depart from the bilinear law at few and at many experts. The bounded law (`routed.py`)
models this by an effective number of experts Ê instead of E. At E = 1, the separable and the bilinear law are a dense
power law (`dense.py`).

The functions below read the bilinear law as a straight line in two ways:

    at a size N     log10 L = level + slope · log10 E    level = a log10 N + d      slope = b + c log10 N
    at E experts    log10 L = level + slope · log10 N    level = b log10 E + d      slope = a + c log10 E

The fits are linear least squares in log10 L, so the solution is unique and needs no search. The coefficients b and d
are values at N = 1, seven decades below any trained model. So a small change of c changes them much. Print b + c log10
N at trained sizes instead (`slope_in_experts`). The per-size law is defined only at trained sizes. Elsewhere the
functions return NaN.
"""

import math
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .numerics._columns import CRITERION, check_columns, crossing, least_squares, reach, worth
from .numerics._projection import INDEPENDENT, check_range, independent, need_rows


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
        c: change of the slope against log10 E per decade of N
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
        coefficients: the coefficients of the fitted law
        objective: mean squared difference of log10 losses
        rmsle: its square root
        status: "interior", or the number of sizes without a line in a per-size fit
        covariance: [p, p], of the coefficients in their order; in a per-size fit [m, 2, 2], of (b, d) at each size
        rows: number of used rows; a per-size fit does not use rows of sizes without a line
        criterion: the minimised quantity
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
        L in nats per token, with the broadcast shape; NaN at a size without a per-size line.

    Raises:
        ValueError: an entry is out of its range.

    Example:
        log10 L = -0.1 * 8 - 0.2 * 1 + 0.01 * 8 * 1 + 1.12 = 0.2.

        >>> law = BilinearCoefficients(-0.1, -0.2, 0.01, 1.12)
        >>> print(round(float(predict_loss(1e8, 10, law)), 6), round(10**0.2, 6))
        1.584893 1.584893
        >>> lines = PerSizeCoefficients(np.array([1e8]), np.array([-0.1]), np.array([0.3]))
        >>> print(predict_loss(np.array([1e8, 1e9]), 10, lines).round(6))
        [1.584893      nan]
    """
    level, slope = _line_at_size(dense_parameters, coefficients)
    log_experts = np.log10(check_range("num_experts", num_experts, least=1.0))
    return 10.0 ** (level + slope * log_experts)


def slope_in_experts(dense_parameters: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the slope of log10 L against log10 E at size N: b(N), b, or b + c log10 N.

    The slope is negative where routing helps, and NaN at a size without a per-size line.

    Raises:
        ValueError: a size is not finite or not above 0.

    Example:
        >>> print(round(float(slope_in_experts(1e10, BilinearCoefficients(-0.1, -0.5, 0.04, 1.0))), 6))
        -0.1
    """
    return _line_at_size(dense_parameters, coefficients)[1]


def slope_in_parameters(num_experts: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the slope of log10 L against log10 N at E experts: a, or a + c log10 E.

    Raises:
        ValueError: an entry is not finite or below 1, or the coefficients are per-size lines, which do not connect
            sizes.

    Example:
        >>> print(round(float(slope_in_parameters(10, BilinearCoefficients(-0.08, -0.1, 0.01, 1.0))), 6))
        -0.07
    """
    return _line_at_experts(num_experts, coefficients)[1]


def effective_parameter_count(
    dense_parameters: np.ndarray, num_experts: np.ndarray, coefficients: LogLinearCoefficients
) -> np.ndarray:
    """Return N̄, the size of the dense model with the same predicted loss as (N, E).

    In the bilinear law, L(N̄, 1) = L(N, E) gives a log10 N̄ = a log10 N + (b + c log10 N) log10 E.

    Args:
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.
        coefficients: the law, separable or bilinear; a must not be 0.

    Returns:
        N̄ in parameters, with the broadcast shape; N itself at E = 1; inf or 0 where N̄ is out of the range of float64.

    Raises:
        ValueError: an entry is out of its range, a is 0 (size does not change the dense loss), or the coefficients are
            per-size lines.

    Example:
        With a = -0.1 and b = -0.05, a hundred experts are worth 100^0.5 times the parameters.

        >>> print(round(float(effective_parameter_count(1e6, 100, SeparableCoefficients(-0.1, -0.05, 1.0)))))
        10000000
    """
    law = _interacting(coefficients)
    if law.a == 0:
        raise InputError("a is 0: size does not change the dense loss, so no dense model has the loss of (N, E)")
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    return worth(law, log_size, np.log10(check_range("num_experts", num_experts, least=1.0)), start=0.0)


def experts_for_loss(dense_parameters: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the least E at which a model of size N reaches a loss.

    Args:
        dense_parameters: N, parameters, above 0.
        loss: the target, nats per token, above 0; broadcast against `dense_parameters`.
        coefficients: the law, of any of the three forms.

    Returns:
        E, a real number, with the broadcast shape: 1 where the dense model already reaches the loss; math.inf where the
        slope is at least 0 or E exceeds float64; NaN at a size without a per-size line.

    Raises:
        ValueError: an entry is out of its range.

    Example:
        With a slope of -0.1, ten experts lower the loss from 10^0.3 (at E = 1) to 10^0.2.

        >>> law = SeparableCoefficients(0.0, -0.1, 0.3)
        >>> print(experts_for_loss(1e8, np.array([10**0.31, 10**0.2]), law).round(6))
        [ 1. 10.]
    """
    level, slope = _line_at_size(dense_parameters, coefficients)
    log_loss = np.log10(check_range("loss", loss, above=0.0))
    experts = np.where(log_loss >= level, 1.0, reach(log_loss, level, slope, never=math.inf))
    return np.where(np.isnan(level), np.nan, experts)


def size_for_loss(num_experts: np.ndarray, loss: np.ndarray, coefficients: LogLinearCoefficients) -> np.ndarray:
    """Return the N at which a model with E experts reaches a loss.

    Args:
        num_experts: E, at least 1.
        loss: the target, nats per token, above 0; broadcast against `num_experts`.
        coefficients: the law, separable or bilinear.

    Returns:
        N in parameters, with the broadcast shape; NaN where a + c log10 E >= 0 (the loss does not fall with size); inf
        or 0 where N is out of the range of float64.

    Raises:
        ValueError: an entry is out of its range, or the coefficients are per-size lines.

    Example:
        log10 N = (0.2 - 1.12 + 0.2) / (-0.1 + 0.01) = 8.

        >>> law = BilinearCoefficients(-0.1, -0.2, 0.01, 1.12)
        >>> print(round(float(size_for_loss(10, 10**0.2, law))))
        100000000
    """
    level, slope = _line_at_experts(num_experts, coefficients)
    return reach(np.log10(check_range("loss", loss, above=0.0)), level, slope, never=math.nan)


def cutoff(coefficients: LogLinearCoefficients) -> float:
    """Return N_cutoff = 10^(-b/c), the size at which b + c log10 N reaches 0 and more experts stop helping.

    N_cutoff is very ill-conditioned (see `routed.py`). N_cutoff is infinite for a separable law, because c = 0.

    Returns:
        N_cutoff in parameters if c > 0; math.inf if c <= 0 or if the value is above the largest float64; NaN if b or
        c is NaN.

    Raises:
        ValueError: the coefficients are per-size lines.

    Example:
        >>> cutoff(BilinearCoefficients(-0.08, -0.12, 0.01, 1.1)), cutoff(SeparableCoefficients(-0.08, -0.03, 1.1))
        (1000000000000.0, inf)
    """
    law = _interacting(coefficients)
    return crossing(float(law.b), float(law.c))


def fit_per_size(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """Fit the per-size law: a straight line of log10 L against log10 E at each size.

    Args:
        dense_parameters: [n], N, parameters, above 0. Rows of equal N share one line.
        num_experts: [n], E, at least 1.
        loss: [n], L, nats per token, above 0.

    Returns:
        The fit. A size with fewer than two different E has no line. The fit skips the rows of such sizes, and the
        status gives the number of these sizes. The covariances share one residual variance, with n - 2m degrees of
        freedom for m lines (our choice).

    Raises:
        ValueError: lengths differ, an entry is out of its range, no size has two different E, or m lines have 2m rows
            or fewer.

    Example:
        >>> size, experts = np.repeat([1e7, 1e8], 3), np.tile([1.0, 10.0, 100.0], 2)
        >>> fit = fit_per_size(size, experts, 10 ** (0.5 - size / 1e9 * np.log10(experts)))
        >>> fit.status, fit.coefficients.b.round(9).tolist(), fit.coefficients.d.round(9).tolist()
        ('interior', [-0.01, -0.1], [0.5, 0.5])
    """
    _, log_experts, log_loss = check_columns(dense_parameters=dense_parameters, num_experts=num_experts, loss=loss)
    size = np.atleast_1d(np.asarray(dense_parameters, dtype=np.float64))
    groups = {float(each): size == each for each in np.unique(size)}
    lined = {each: rows for each, rows in groups.items() if _spread(log_experts[rows])}
    if not lined:
        raise InputError(
            "every size has only one num_experts; the law per-size needs two or more at one size, so add such runs"
        )
    used = sum(int(rows.sum()) for rows in lined.values())
    need_rows(used, 2 * len(lined), "per-size")
    solutions, covariances, squares = [], [], 0.0
    for rows in lined.values():
        x, y = log_experts[rows], log_loss[rows]
        (b, d), covariance = _line(x, y)
        squares += float(np.sum((y - b * x - d) ** 2))
        solutions.append((b, d))
        covariances.append(covariance)
    coefficients = PerSizeCoefficients(np.array(list(lined)), *np.array(solutions).T)
    status = "interior"
    if len(lined) < len(groups):
        status = f"no line at {len(groups) - len(lined)} of {len(groups)} sizes"
    covariance = squares / (used - 2 * len(lined)) * np.array(covariances)
    return LogLinearFit(coefficients, squares / used, math.sqrt(squares / used), status, covariance, used, CRITERION)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[tuple[float, float], list[list[float]]]:
    """Return b and d of the line y = b x + d by least squares, and their covariance for a residual variance of 1."""
    offset = x - x.mean()
    spread = float(offset @ offset)
    b = float(offset @ (y - y.mean())) / spread
    d = float(y.mean() - b * x.mean())
    # b and the mean of y are uncorrelated, and d = (mean of y) - b (mean of x).
    covariance = [[1 / spread, -x.mean() / spread], [-x.mean() / spread, 1 / x.size + x.mean() ** 2 / spread]]
    return (b, d), covariance


def fit_separable(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """Fit the separable law to a table.

    `fit_per_size` describes the arguments. The covariance has n - 3 degrees of freedom.

    Raises:
        ValueError: lengths differ, an entry is out of its range, there are fewer than 4 rows, or the rows cannot
            separate the effects of N and E. This happens if log10 E is a linear function of log10 N, or if all rows
            have the same N or the same E.

    Example:
        >>> law = SeparableCoefficients(-0.08, -0.03, 1.1)
        >>> size, experts = np.repeat([1e7, 1e9], 3), np.tile([1.0, 8.0, 64.0], 2)
        >>> [round(v, 9) for v in fit_separable(size, experts, predict_loss(size, experts, law)).coefficients]
        [-0.08, -0.03, 1.1]
    """
    return _fit_plane(dense_parameters, num_experts, loss, interaction=False)


def fit_bilinear(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LogLinearFit:
    """Fit the bilinear law to a table.

    `fit_per_size` describes the arguments. The covariance has n - 4 degrees of freedom.

    Raises:
        ValueError: lengths differ, an entry is out of its range, there are fewer than 5 rows, or log10 N, log10 E and
            their product are linearly dependent.

    Example:
        >>> law = BilinearCoefficients(-0.08, -0.1, 0.008, 1.1)
        >>> size, experts = np.repeat([1e7, 1e9], 3), np.tile([1.0, 8.0, 64.0], 2)
        >>> [round(v, 9) for v in fit_bilinear(size, experts, predict_loss(size, experts, law)).coefficients]
        [-0.08, -0.1, 0.008, 1.1]
    """
    return _fit_plane(dense_parameters, num_experts, loss, interaction=True)


def _fit_plane(dense_parameters, num_experts, loss, interaction: bool) -> LogLinearFit:
    """Fit the separable or the bilinear law with centred log10 N and log10 E, and convert back to N = E = 1.

    With n = log10 N - n̄ and e = log10 E - ē the law is level + size·n + gain·e + interaction·n·e. Its columns are far
    better conditioned. In terms of log10 N and log10 E: a = size - interaction·ē, b = gain - interaction·n̄, c =
    interaction, d = level - size·n̄ - gain·ē + interaction·n̄·ē. The matrix `back` converts (size, gain, interaction,
    level) to (a, b, c, d). It also converts the covariance. The separable law has no interaction and no c.
    """
    log_size, log_experts, log_loss = check_columns(
        dense_parameters=dense_parameters, num_experts=num_experts, loss=loss
    )
    need_rows(log_size.size, 4 if interaction else 3, "bilinear" if interaction else "separable")
    mean_n, mean_e = log_size.mean(), log_experts.mean()
    n, e = log_size - mean_n, log_experts - mean_e
    columns = [n, e, n * e, np.ones_like(n)]
    back = np.array([[1, 0, -mean_e, 0], [0, 1, -mean_n, 0], [0, 0, 1, 0], [-mean_n, -mean_e, mean_n * mean_e, 1]])
    kept = [0, 1, 2, 3] if interaction else [0, 1, 3]  # the coefficients that the law has
    design, back = np.stack(columns, axis=1)[:, kept], back[np.ix_(kept, kept)]
    if not (_spread(log_size) and _spread(log_experts) and independent(design)):
        raise InputError(
            "the effects of size, num_experts and their product cannot be distinguished in these rows; needed: "
            "several num_experts at more than one size"
            if interaction
            else "the effects of size and num_experts cannot be distinguished in these rows; needed: two sizes and two "
            "num_experts that do not rise together"
        )
    solution, covariance, objective = least_squares(design, log_loss)
    form = BilinearCoefficients if interaction else SeparableCoefficients
    coefficients = form(*(float(value) for value in back @ solution))
    covariance = back @ covariance @ back.T
    return LogLinearFit(coefficients, objective, math.sqrt(objective), "interior", covariance, log_size.size, CRITERION)


def _spread(values: np.ndarray) -> bool:
    """Return whether two of the values differ by more than rounding."""
    return bool(np.ptp(values) > INDEPENDENT)


def _line_at_size(dense_parameters: np.ndarray, coefficients: LogLinearCoefficients) -> tuple[np.ndarray, np.ndarray]:
    """Return (level, slope) of the bilinear law at a size N."""
    size = check_range("dense_parameters", dense_parameters, above=0.0)
    if isinstance(coefficients, PerSizeCoefficients):
        # At most one line has this size. The result stays NaN if no line has it.
        level, slope = np.full(size.shape, np.nan), np.full(size.shape, np.nan)
        for each, b, d in zip(*coefficients, strict=True):
            level, slope = np.where(size == each, d, level), np.where(size == each, b, slope)
        return level, slope
    a, b, c, d = _interacting(coefficients)
    return a * np.log10(size) + d, b + c * np.log10(size)


def _line_at_experts(num_experts: np.ndarray, coefficients: LogLinearCoefficients) -> tuple[np.ndarray, np.ndarray]:
    """Return (level, slope) of the bilinear law at E experts."""
    a, b, c, d = _interacting(coefficients)
    log_experts = np.log10(check_range("num_experts", num_experts, least=1.0))
    return b * log_experts + d, a + c * log_experts


def _interacting(coefficients: LogLinearCoefficients) -> BilinearCoefficients:
    """Return the coefficients in bilinear form. A separable law has c = 0."""
    if isinstance(coefficients, PerSizeCoefficients):
        raise InputError("per-size lines do not predict other sizes; needed: separable or bilinear coefficients")
    if isinstance(coefficients, SeparableCoefficients):
        a, b, d = coefficients
        return BilinearCoefficients(a, b, 0.0, d)
    return coefficients


# What this file does not do: the bend at few and at many experts (`routed.py`).
