"""Intervals that hold if runs share errors, or if some runs scatter more than others.

The intervals of a law (`catalogue.Law.intervals`) assume independent errors of one variance. Tables break this
assumption in two ways, and each has a remedy:

    profile    independent errors of one variance            the law's own interval
    size       the runs of one size share an error           a variance for the sizes, another for the runs
    hc3        the variance differs from run to run          each residual counts for its own run

Both remedies stretch the law's own interval: they multiply the distance from the value to each end by a factor
(positive numbers: the logarithm of the ratio). So open ends stay open, and an interval keeps its asymmetry.

The factor. Let J [n, p] be the derivatives of the fitted log10 L by the coefficients, e the residuals, and g [p] the
derivatives of the quantity. To first order a fit moves the quantity by w·(errors), with w = g J⁺ (J⁺ is the
pseudo-inverse). With s² = e·e/(n - p) and Student's quantile q, the usual half-width is q s |w|.

1. hc3 (MacKinnon and White 1985): the variance is Σ wᵢ² eᵢ²/(1 - hᵢ)², with the leverages hᵢ, the diagonal of J J⁺.
   It is close to the jackknife over rows. If a few rows carry most of this sum V, V itself scatters, and Student's
   quantile has fewer degrees of freedom: 3V²/Σ(terms)² - 2 (Lipsitz, Ibrahim and Parzen 1999). This is 1 for a single
   row, and near m for m equal terms of normal errors.
2. size: the errors have the covariance s²(I + λZZᵀ), where ZZᵀ is 1 for two runs of one size, else 0. So λ is the
   variance of the sizes over the variance of the runs, and ρ = λ/(1 + λ) is the share of the variance that the runs of
   a size share. Then the quantity has the variance s²_λ (w·w + λ Σ (sum of w over a size)²).
   Few sizes do not determine λ, and a single estimate gives intervals that are much too narrow. So all λ count, each by
   its probability given the residuals (restricted likelihood; Patterson and Thompson 1971), and the half-width is the
   quantile of the mixture of Student's distributions. The prior of ρ has the density 1/(2√(1 - ρ)): a little heavier
   than uniform near 1, because an interval that is too wide harms less than one that is too narrow (our choice).

The rule (`row_errors`, our choice) reads the residuals:

    hc3       at least 30 rows; and the variance changes along a column (test of Breusch and Pagan 1979 in the form of
              Koenker 1981, p < 0.01), or a single row moves the fit far (Cook's distance above 0.5); and no clear share
    size      several runs at some size, and the sizes have a degree of freedom left beside the coefficients
    profile   everything else

`docs/coverage.md` has the coverage of the rule. It does not repair a wrong form of the law.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..tokens.additive import Published
from .intervals import Range
from .uncertainty import _HALF, _TWOFOLD, _gauss_legendre, _words, student_quantile

METHODS = ("profile", "size", "hc3")

_ROWS = 30  # hc3 needs at least this many rows
_UNEVEN, _COOK = 0.01, 0.5  # hc3 below this p-value, or above this distance of a row
_CLEAR = 0.5  # with a larger share that sizes share, uneven variances do not matter
_SEEN = 0.1  # of a size's rows: the least S² of a direction that shows what sizes share
_SHARES = 1 - (1 - (np.arange(60) + 0.5) / 60) ** 2  # ρ: quantiles of its prior, so each has the same probability
_STEP = 1e-6  # relative step of a derivative
_SIGNED = ("1", "log10 nats", "per nat")  # units of coefficients that may be below 0


class Errors(NamedTuple):
    """The errors of the rows about a fit, for `factor`.

    Attributes:
        method: "profile", "size" or "hc3": the method that the rule chooses
        reason: why, as text
        share: ρ, mean over the mixture; NaN if the sizes cannot show it
        root: [p, n], the pseudo-inverse of the derivatives of the rows
        residual: [n], measured minus fitted log10 L
        leverage: [n]
        member: [n], the number of each row's size
        mixture: λ, s²_λ and probability, [60] each; None if the sizes cannot show λ
    """

    method: str
    reason: str
    share: float
    root: np.ndarray
    residual: np.ndarray
    leverage: np.ndarray
    member: np.ndarray
    mixture: tuple[np.ndarray, np.ndarray, np.ndarray] | None


def row_errors(law, fit, columns: Sequence[np.ndarray], measured: np.ndarray, sizes: np.ndarray) -> Errors | None:
    """Return the errors of the rows about a least-squares fit, and the method that suits them.

    Args:
        law: of the loss or of the leverage, such as `catalogue.LAWS["bilinear"]`.
        fit: the result of `law.fit(*columns, measured)`.
        columns, measured: the rows of the fit, [n] each.
        sizes: [n]; rows with equal entries can share an error.

    Returns:
        None if the law does not minimise squares of log10 residuals, or has its own line for each size.

    Raises:
        ValueError: `law.predict` raises this error.

    Example:
        Three sizes with two runs each. Residuals are nearly equal within a size, so sizes share most of the variance.

        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> size, experts = np.array([1e7, 1e7, 1e8, 1e8, 1e9, 1e9]), np.array([1.0, 4.0] * 3)
        >>> loss = 10 ** (0.6 - 0.05 * np.log10(experts) + np.array([0.01, 0.011, -0.02, -0.021, 0.01, 0.01]))
        >>> columns, law = (size, experts), LAWS["separable"]
        >>> found = row_errors(law, law.fit(*columns, loss), columns, loss, size)
        >>> found.method, round(found.share, 2)
        ('size', 0.97)
    """
    if law.measured == "accuracy" or law.own_intervals is None or np.ndim(fit.coefficients[0]):
        return None
    J = tangent(law, fit, columns)
    residual = -law.miss(law.predict(fit, *columns), measured)
    if floor := getattr(fit.coefficients, "floor", 0.0):  # a given floor: the fit is of ln(L - floor)
        weight = measured / (measured - floor)
        J, residual = J * weight[:, None], residual * weight
    scale = np.linalg.norm(J, axis=0)
    scale[scale == 0] = 1.0
    root = np.linalg.pinv(J / scale, rcond=1e-10) / scale[:, None]
    leverage = np.clip(np.einsum("np,pn->n", J, root), 0.0, 1 - 1e-9)
    _, member = np.unique(sizes, return_inverse=True)
    mixture = _mixture(J / scale, residual, member.ravel())
    share = math.nan if mixture is None else float(mixture[2] @ _SHARES)
    errors = Errors("profile", "", share, root, residual, leverage, member.ravel(), mixture)
    logs = [np.log(column) if column.min() > 0 else column for column in columns]  # dense runs have a sparsity of 0
    method, reason = _chosen(errors, logs)
    return errors._replace(method=method, reason=reason)


def tangent(law, fit, columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the derivatives [n, p] of log10 L by the fitted coefficients, at points; 0 for a coefficient held fixed.

    They are differences of `law.predict`, one-sided at an edge of the domain. If coefficients have no value, as in the
    linear limit (`fitting.py`), the columns are those of `law.design`.
    """
    if _in_limit(law, fit):
        return law.design(fit, *columns)
    values = fit.coefficients._asdict()
    without = {name for name, value in values.items() if not math.isfinite(value)}
    held = {*law.options, *law.given(*columns), *without}

    def shifted(name: str, step: float) -> np.ndarray:
        coefficients = fit.coefficients._replace(**{name: values[name] + step})
        return np.log10(law.predict(Published(coefficients, "", ""), *columns))

    turns = []
    for name, value in values.items():
        step, ends = _STEP * (abs(value) or 1.0), []
        for sign in (1, -1) if name not in held else ():
            try:
                ends.append((sign * step, shifted(name, sign * step)))
            except InputError:  # beyond the edge
                ends.append((0.0, shifted(name, 0.0)))
        turns.append((ends[0][1] - ends[1][1]) / (ends[0][0] - ends[1][0]) if ends else np.zeros(columns[0].shape))
    return np.stack(turns, axis=1)


def factor(errors: Errors, gradient: np.ndarray, level: float, method: str | None = None, run: bool = False) -> float:
    """Return the half-width of an interval over the half-width of the interval for independent errors of one variance.

    It is at least 1. A shared error cancels in a slope, but a fit that is not quite linear has no use for this.

    Args:
        errors: the result of `row_errors`.
        gradient: [p], the derivatives of the quantity by the coefficients, up to a common factor.
        level: confidence level, between 0 and 1.
        method: one of METHODS; None for the method of the rule.
        run: whether the interval is for one more run, of a new size. The gradient is then that of log10 L.

    Example:
        A quantity is the mean of four rows with residuals ± 1, so s² = 4/3. Each leverage is 1/4, so hc3 divides each
        residual by 3/4 and has the variance 4 (1/4 · 4/3)² = 4/9, instead of 1/3. Its degrees of freedom are those of
        s², because 3 · 4² / 4 - 2 = 10 is more.

        >>> ones, member = np.ones((1, 4)) / 4, np.arange(4)
        >>> errors = Errors("hc3", "", math.nan, ones, np.array([1.0, -1, 1, -1]), np.full(4, 0.25), member, None)
        >>> round(factor(errors, np.ones(1), 0.95) ** 2 / 3, 6), round(4 / 9, 6)
        (0.444444, 0.444444)
    """
    weights, method = gradient @ errors.root, method or errors.method
    if not run:  # the factor does not count, but the fourth power of 1e-90 is 0
        weights = weights / (np.abs(weights).max() or 1.0)
    freedom = errors.residual.size - np.linalg.matrix_rank(errors.root)
    s2, own, more = float(errors.residual @ errors.residual) / freedom, float(weights @ weights), float(run)
    usual = s2 * (own + more)
    if not (usual > 0 and math.isfinite(usual)):
        return 1.0
    if method == "hc3":
        terms = (weights * errors.residual / (1 - errors.leverage)) ** 2
        of_law, of_run = float(terms.sum()), s2 * more
        if of_law == 0:
            return 1.0
        degrees = min(3 * of_law**2 / float(terms @ terms) - 2, freedom)
        degrees = (of_law + of_run) ** 2 / (of_law**2 / degrees + of_run**2 / freedom)
        wider = student_quantile(level, degrees) / student_quantile(level, freedom)
        return max(1.0, wider * math.sqrt((of_law + of_run) / usual))
    if method == "profile" or errors.mixture is None:
        return 1.0
    ratio, variance, probability = errors.mixture
    shared = float(np.sum(np.bincount(errors.member, weights) ** 2))
    half = _quantile(np.sqrt(variance * (own + more + ratio * (shared + more))), probability, freedom, level)
    return max(1.0, half / (student_quantile(level, freedom) * math.sqrt(usual)))


def stretched(law, item: Range, factor: float, least_loss: float = math.inf) -> Range:
    """Return an interval whose ends are `factor` times as far from its value, with the verdict on it.

    Args:
        law: the law.
        item: its own interval. An open end stays.
        factor: the result of `factor`.
        least_loss: the smallest measured loss; a floor is below it.

    Example:
        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> stretched(LAWS["hoffmann"], Range("b", None, 400.0, 200.0, 800.0, "soft"), 2.0)[3:]
        (100.0, 1600.0, 'loose')
    """
    parameter = next((each for each in law.parameters if each.name == item.name), None)
    signed = parameter is not None and parameter.unit in _SIGNED or item.name == "slope"
    if not math.isfinite(item.value):
        return item
    floor = parameter is not None and "irreducible" in parameter.meaning
    if signed or floor or item.value <= 0:
        low, high = (item.value + factor * (end - item.value) for end in (item.low, item.high))
    else:
        with np.errstate(over="ignore", divide="ignore"):
            low, high = (float(item.value * (np.float64(end) / item.value) ** factor) for end in (item.low, item.high))
    open_below = item.words.startswith(("not identified", "bounded from above only"))
    edge = item.low if open_below else -math.inf if signed else 0.0
    if parameter is not None and parameter.unit == "experts" and not law.has_floor:
        edge = 1.0
    low, high = max(low, edge), max(item.high, min(high, least_loss)) if floor else high
    verdict = item.words
    if verdict:
        narrow = high - low <= _HALF * abs(item.value) if signed else high <= _TWOFOLD * low
        verdict = _words(low, high, edge, narrow) + ", extrapolated" * verdict.endswith(", extrapolated")
    return Range(item.name, item.at, item.value, low, high, verdict)


def direction(law, fit, item: Range) -> np.ndarray | None:
    """Return the derivatives [p] of a coefficient, a slope or a cut-off by the coefficients, up to a common factor.

    A cut-off is where the slope b + c log10 N is 0, so it moves as the slope there. None for any other number, or if
    coefficients have no value.
    """
    if _in_limit(law, fit):
        return None
    names = list(fit.coefficients._fields)
    place = item.value if item.name.endswith("_cutoff") else item.at
    if item.name in names and item.at is None:
        return np.eye(len(names))[names.index(item.name)]
    if place is None or not (0 < place < math.inf and {"b", "c"} <= set(names)):
        return None
    gradient = np.zeros(len(names))
    gradient[[names.index("b"), names.index("c")]] = 1.0, math.log10(place)
    return gradient


def _in_limit(law, fit) -> bool:
    """Return whether coefficients have no value, or none that rows determine, apart from an infinite limit as E_max."""
    values = fit.coefficients._asdict().items()
    without = [name for name, value in values if not math.isfinite(value) and not name.endswith("_max")]
    unlimited = law.has_floor and "E_start" in getattr(fit, "status", "")  # the linear limit of `floored.py`
    return law.design is not None and (bool(without) or unlimited)


def _chosen(errors: Errors, logs: Sequence[np.ndarray]) -> tuple[str, str]:
    """Return the method of the rule, and its reason. `logs` are the columns or their logarithms, [n] each."""
    rows, unknowns = errors.residual.size, np.linalg.matrix_rank(errors.root)
    sizes = int(errors.member.max()) + 1
    if rows >= _ROWS and not errors.share >= _CLEAR:
        p = _breusch_pagan(errors.residual, logs)
        if p < _UNEVEN:
            return "hc3", f"the runs scatter unevenly (Breusch-Pagan test, p = {p:.1g})"
        squares = errors.residual**2 / (float(errors.residual @ errors.residual) / (rows - unknowns))
        cook = float(np.max(squares * errors.leverage / (unknowns * (1 - errors.leverage) ** 2)))
        if cook > _COOK:
            return "hc3", f"one run moves the fit far (Cook's distance {cook:.2g})"
    if math.isnan(errors.share):
        few = f"{sizes} sizes are too few to show what the runs of one size share"
        return "profile", "each size has one run" if sizes == rows else few
    share = f"the runs of one size share about {100 * errors.share:.0f} % of the variance about the law"
    return "size", f"{share} ({sizes} sizes)"


def _breusch_pagan(residual: np.ndarray, logs: Sequence[np.ndarray]) -> float:
    """Return the p-value of the test that the squares of the residuals do not change along the columns (up to three).

    The statistic n R² of their regression has the χ² distribution with one degree of freedom for each column.

    Example:
        >>> round(_breusch_pagan(np.array([1.0, -1, 1, -3, 3, -3]), [np.arange(6.0)]), 3)
        0.031
    """
    squares = residual**2
    about = squares - squares.mean()
    design = np.stack([np.ones_like(squares), *logs], axis=1)
    fitted = design @ (np.linalg.pinv(design) @ about)
    total, degrees = float(about @ about), np.linalg.matrix_rank(design) - 1
    x = squares.size * float(fitted @ fitted) / total if total > 0 else 0.0
    if degrees == 2:
        return math.exp(-x / 2)
    return math.erfc(math.sqrt(x / 2)) + (math.sqrt(2 * x / math.pi) * math.exp(-x / 2) if degrees == 3 else 0.0)


def _mixture(
    J: np.ndarray, residual: np.ndarray, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return λ, s²_λ and the probability of each ρ of _SHARES; None if the sizes leave no degree of freedom.

    Let M = I - JJ⁺ and MZ = U S Vᵀ. The entries of Uᵀe have the variances s²(1 + λS²), and what U leaves of e has the
    variance s² in each of its directions. A direction that the coefficients fit almost fully (small S) is left out: a
    law that is slightly wrong shows there first.
    """
    counts = np.bincount(member)
    groups = np.eye(counts.size)[member]
    fitted, lengths, _ = np.linalg.svd(J, full_matrices=False)
    fitted = fitted[:, lengths > 1e-10 * lengths[0]]
    U, S, _ = np.linalg.svd(groups - fitted @ (fitted.T @ groups), full_matrices=False)
    U, S = U[:, S > 1e-6 * S[0]], S[S > 1e-6 * S[0]]
    seen = S**2 > _SEEN * counts.mean()
    parts = U.T @ residual
    rest = float(residual @ residual - parts @ parts)
    freedom = residual.size - fitted.shape[1] - S.size
    if counts.max() == 1 or not seen.any() or freedom < 1 or not rest > 0:
        return None
    ratios = _SHARES / (1 - _SHARES)
    growth = 1 + ratios[:, None] * S[seen] ** 2
    squares, freedom = rest + np.sum(parts[seen] ** 2 / growth, axis=1), freedom + int(seen.sum())
    logs = -(np.log(growth).sum(axis=1) + freedom * np.log(squares)) / 2
    weight = np.exp(logs - logs.max())
    return ratios, squares / freedom, weight / weight.sum()


def _quantile(scales: np.ndarray, probability: np.ndarray, degrees: int, level: float) -> float:
    """Return the quantile of a mixture of scaled Student variables: |t| is below it with probability `level`.

    `student_quantile` has the integral for one of them. Newton's steps start at the quantile for the mean of the
    squared scales. The area is concave in its end, so the steps rise towards the quantile after the first of them.
    """
    nodes, weights = _gauss_legendre()

    def area(ends: np.ndarray) -> np.ndarray:
        return ends / 2 * (np.cos(ends[:, None] / 2 * (nodes + 1)) ** (degrees - 1) @ weights)

    whole, spread = float(area(np.array([math.pi / 2]))[0]), scales * math.sqrt(degrees)
    quantile = student_quantile(level, degrees) * math.sqrt(probability @ scales**2)
    for _ in range(100):  # about five suffice
        ends = np.arctan(quantile / spread)
        missing = level * whole - float(probability @ area(ends))
        step = max(missing / float(probability @ (np.cos(ends) ** (degrees + 1) / spread)), -quantile / 2)
        quantile += step
        if not abs(step) > 1e-9 * quantile:  # the next step is the square of it
            break
    return quantile


# What this file does not do: the intervals for independent errors (`catalogue.Law.intervals`).
