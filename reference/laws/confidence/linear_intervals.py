"""Intervals of the linear laws: dense, per-size, separable and bilinear.

Each law is log10 L = X β, fitted by least squares. The data determine the columns X (`dense_design` and the other
designs, [n, p]). The textbook intervals are exact if errors are independent and normal with one variance. Let β̂ be the
solution, RSS its residual sum, s² = RSS/(n - p) and q Student's two-sided quantile with n - p degrees of freedom.

1. A linear function h·β has the interval h·β̂ ± q s √(hᵀ(XᵀX)⁻¹h). A coefficient is one entry of β. The loss at a point
   is 10 to the power of x·β, with x its row of X; hᵀ(XᵀX)⁻¹h is then the *leverage* of the point. For one more run at
   this point, add 1 to the leverage, for the error of the run.
2. The interval of a ratio r = (y·β)/(x·β) contains all r for which step 1 does not reject (y - r x)·β = 0, that is

       ((y - r x)·β̂)² <= q² s² (y - r x)ᵀ(XᵀX)⁻¹(y - r x)            (Fieller 1954)

   The interval has no end on either side if step 1 does not reject x·β = 0.

   Two numbers are such ratios. In the dense law, log10 N_c is (α log10 N_c)/α, a ratio of two entries of β. In the
   bilinear law, log10 N_cutoff is -b/c.

Step 1 allows v if the least residual sum of all β with h·β = v is at most RSS + q² s². Step 2 allows r under the same
condition for (y - r x)·β = 0. A bounded law has this problem at each shape, so the functions of `_allowed.py` find the
ends. All lines of a per-size fit share one residual sum. Every design has the fit as its first argument. Only
`per_size_design` uses it.

Source: the intervals are our choice; the paper's main text prints none (docs/choices.md).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import InputError
from ..dense import DenseFit
from ..log_linear import LogLinearFit, cutoff
from ..numerics._allowed import Solved, cutoff_ends, linear_ends, ratio_ends
from .intervals import Predicted, Range
from .uncertainty import student_quantile


def dense_design(fit: DenseFit, dense_parameters: np.ndarray) -> np.ndarray:
    """Return [n, 2], the columns of α and of α log10 N_c."""
    log_size = np.log10(dense_parameters)
    return np.stack([-log_size, np.ones_like(log_size)], axis=1)


def per_size_design(fit: LogLinearFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return [n, 2m]: two columns, for b and d, for each of the m sizes with a line; 0 at other sizes."""
    columns = []
    for size in fit.coefficients.sizes:
        here = (dense_parameters == size).astype(np.float64)
        columns += [here * np.log10(num_experts), here]
    return np.stack(columns, axis=1)


def separable_design(fit: LogLinearFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return [n, 3], the columns of a, b and d."""
    n, e = np.log10(dense_parameters), np.log10(num_experts)
    return np.stack([n, e, np.ones_like(n)], axis=1)


def bilinear_design(fit: LogLinearFit, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return [n, 4], the columns of a, b, c and d."""
    n, e = np.log10(dense_parameters), np.log10(num_experts)
    return np.stack([n, e, n * e, np.ones_like(n)], axis=1)


def dense_intervals(fit: DenseFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
    """Return α and N_c with their intervals.

    Args:
        fit: the result of `fit_dense`.
        columns: (dense_parameters,), [n], the rows of the fit.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.

    Returns:
        Two Ranges, all NaN if the fitted loss does not fall with size. The interval of N_c contains all sizes at which
        the data allow a loss of 1 nat. This interval is 0 to inf if the data allow a slope of 0.

    Raises:
        ValueError: `level` is out of its range.

    Example:
        Three sizes, one decade apart, have errors of ± 0.01 about log10 L = 0.5 - 0.1 (log10 N - 8). So
        s² = 6 · 0.01² / 1, the variance of the slope is s²/2, and q is 1 at 50 %: α = 0.1 ± √(0.0003).

        >>> from routelaws.reference.laws.dense import fit_dense
        >>> size, loss = np.array([1e7, 1e8, 1e9]), 10 ** np.array([0.61, 0.48, 0.41])
        >>> alpha, N_c = dense_intervals(fit_dense(size, loss), [size], loss, 0.5)
        >>> print([round(number, 6) for number in (alpha.low, alpha.value, alpha.high, 0.1 - 0.0003**0.5)])
        [0.082679, 0.1, 0.117321, 0.082679]
    """
    solved = _solve(dense_design(fit, *columns), loss, level)
    if math.isnan(fit.coefficients.alpha):
        return [Range(name, None, math.nan, math.nan, math.nan, "") for name in fit.coefficients._fields]
    _, *ends = ratio_ends(solved, (0, 1), (1, 0))  # log10 N_c is a ratio of the entries of β = (α, α log10 N_c)
    return [
        _coefficient("alpha", None, fit.coefficients.alpha, solved, 0),
        Range("N_c", None, float(fit.coefficients.N_c), *_powers(ends), ""),
    ]


def per_size_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return b of each line, then d of each line, with their intervals. `at` is the size.

    The fit is by `fit_per_size`. `dense_intervals` describes the arguments.
    """
    used = np.isin(columns[0], fit.coefficients.sizes)
    solved = _solve(per_size_design(fit, *(column[used] for column in columns)), loss[used], level)
    sizes, b, d = fit.coefficients
    slopes = [_coefficient("b", float(size), b[i], solved, 2 * i) for i, size in enumerate(sizes)]
    levels = [_coefficient("d", float(size), d[i], solved, 2 * i + 1) for i, size in enumerate(sizes)]
    return slopes + levels


def separable_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return a, b and d of a fit by `fit_separable` with their intervals. `dense_intervals` describes the arguments."""
    solved = _solve(separable_design(fit, *columns), loss, level)
    named = fit.coefficients._asdict().items()
    return [_coefficient(name, None, value, solved, i) for i, (name, value) in enumerate(named)]


def bilinear_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return a, b, c, d and N_cutoff of a fit by `fit_bilinear`, with their intervals.

    `dense_intervals` describes the arguments. `uncertainty.profile_intervals` describes the interval of N_cutoff.
    """
    solved = _solve(bilinear_design(fit, *columns), loss, level)
    named = fit.coefficients._asdict().items()
    ranges = [_coefficient(name, None, value, solved, i) for i, (name, value) in enumerate(named)]
    _, low, high = cutoff_ends(solved, (0, 1, 0, 0), (0, 0, 1, 0))  # b + c n, in the order (a, b, c, d)
    ranges.append(Range("N_cutoff", None, cutoff(fit.coefficients), *_powers((low, high)), ""))
    return ranges


def linear_prediction(
    design: Callable, fit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the loss of a linear law at one point, with two intervals: for the law's value, and for one more run.

    Args:
        design: (fit, *columns) -> [n, p], one of the four designs of this file.
        fit, columns, loss, level: as in `dense_intervals`, for that law.
        at: the columns of the law at the point.

    Returns:
        A Predicted.

    Raises:
        ValueError: `level` is out of its range, or the law has no prediction at the point (a per-size law at a size
            without a line).

    Example:
        For the rows of `dense_intervals`, the leverage at their mean size is 1/3, and s² is 0.0006.

        >>> from routelaws.reference.laws.dense import fit_dense
        >>> size, loss = np.array([1e7, 1e8, 1e9]), 10 ** np.array([0.61, 0.48, 0.41])
        >>> found = linear_prediction(dense_design, fit_dense(size, loss), [size], loss, [1e8], 0.5)
        >>> print(np.log10([found.value, found.law[1], found.run[1]]).round(6), round(0.5 + 0.0008**0.5, 6))
        [0.5      0.514142 0.528284] 0.528284
    """
    lines, point = design(fit, *columns), design(fit, *(np.array([value], dtype=np.float64) for value in at))[0]
    if not point.any():
        sizes = ", ".join(f"{size:.0f}" for size in fit.coefficients.sizes)
        raise InputError(f"the per-size law has no line at N = {at[0]:g}; available: {sizes}")
    used = lines.any(axis=1)  # a per-size fit leaves out the rows of sizes without a line
    solved = _solve(lines[used], loss[used], level)
    value, *law = _powers(linear_ends(solved, point))
    _, *run = _powers(linear_ends(solved, point, noise=1.0))
    return Predicted(value, tuple(law), tuple(run))


def _solve(design: np.ndarray, loss: np.ndarray, level: float) -> Solved:
    """Return the least-squares problem of log10 L on the columns of `design`, [n, p]; RSS + q² s² is allowed.

    (XᵀX)⁻¹ = X⁺X⁺ᵀ, so the pseudo-inverse X⁺ [p, n] serves as its root.
    """
    root, log_loss = np.linalg.pinv(design), np.log10(loss)
    solution = root @ log_loss
    solution = solution + root @ (log_loss - design @ solution)  # removes the rounding of the first step
    squares = float(np.sum((log_loss - design @ solution) ** 2))
    freedom = log_loss.size - design.shape[1]
    return Solved(squares, squares * (1 + student_quantile(level, freedom) ** 2 / freedom), solution, root)


def _coefficient(name: str, at: float | None, value: float, solved: Solved, place: int) -> Range:
    """Return the interval of entry `place` of β, with the value of the fit."""
    _, low, high = linear_ends(solved, np.eye(solved.solution.size)[place])
    return Range(name, at, float(value), float(low), float(high), "")


def _powers(ends: Sequence[float]) -> list[float]:
    """Return 10 to the power of each number; inf if the result exceeds float64."""
    with np.errstate(over="ignore", under="ignore"):
        return [float(np.float64(10.0) ** end) for end in ends]


# What this file does not do: the laws themselves (`dense.py`, `log_linear.py`); bounded laws (`bounded_intervals.py`).
