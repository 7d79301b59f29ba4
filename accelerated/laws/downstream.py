"""Laws of downstream accuracy: how the share of right answers rises with compute.

Step by step, with sources and examples: `routelaws.reference.laws.downstream`.

    Q' = (Q - Q_rand) / (1 - Q_rand)

with Q the accuracy and Q_rand that of a guess; C stands for training FLOPs, N for parameters, D for training tokens,
and k for attempts, of which one has to be right.

What differs here: the lines by a QR step with columns of length 1, and intervals by the same factor.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ._columns import check_range, triangle
from .uncertainty import student_quantile

Status = Literal["interior", "accuracy does not rise", "no ceiling is seen", "one term vanishes"]

LEAST_GAIN = 0.05
LEAST_SQUARES = "half the sum of squared differences of ln(-ln Q')"
HUBER = "sum of Huber terms of ln(-ln Q'), delta"


class DirectCoefficients(NamedTuple):
    """-ln Q' = A / C^α.

    Attributes:
        A: -ln Q' at C = 1
        alpha: power of C, above 0 where accuracy rises
    """

    A: float
    alpha: float


class RatioCoefficients(NamedTuple):
    """-ln Q' = A / N^α + B / D^β.

    Attributes:
        A: the first term at N = 1
        alpha: power of N
        B: the second term at D = 1
        beta: power of D
    """

    A: float
    alpha: float
    B: float
    beta: float


class CeilingCoefficients(NamedTuple):
    """-ln Q' = A / C^α + E.

    Attributes:
        A: the first term at C = 1
        alpha: power of C
        E: -ln Q' with endless compute; 0 where no ceiling is seen
    """

    A: float
    alpha: float
    E: float


class RepeatedCoefficients(NamedTuple):
    """ln(-ln Q) = c + α ln C + β ln k + δ ln C ln k; α is below 0 where accuracy rises.

    Attributes:
        c: ln(-ln Q) at C = 1 and k = 1
        alpha: factor of ln C
        beta: factor of ln k
        delta: factor of ln C ln k
    """

    c: float
    alpha: float
    beta: float
    delta: float


Coefficients = DirectCoefficients | RatioCoefficients | CeilingCoefficients | RepeatedCoefficients
_COLUMNS = {DirectCoefficients: 1, RatioCoefficients: 2, CeilingCoefficients: 1, RepeatedCoefficients: 2}


class AccuracyFit(NamedTuple):
    """The best fit of one of the laws to a table.

    Attributes:
        coefficients: the law, in the record of its own
        objective: what the criterion says
        rmsle: root mean squared difference of log10(-ln Q')
        rmse: root mean squared difference of the accuracies
        status: "interior", "accuracy does not rise", "no ceiling is seen" or "one term vanishes"
        covariance: of the coefficients, with ln A, ln B and ln E in place of A, B and E; NaN where not known
        rows: that counted
        used: [n] bool, which these were
        criterion: what was minimised, in words
        guess_rate: Q_rand of the fit
    """

    coefficients: Coefficients
    objective: float
    rmsle: float
    rmse: float
    status: Status
    covariance: np.ndarray
    rows: int
    used: np.ndarray
    criterion: str
    guess_rate: float


def normalise(accuracy: np.ndarray, guess_rate: float = 0.0) -> np.ndarray:
    """Return Q' = (Q - Q_rand)/(1 - Q_rand), below 0 for accuracies below the guess rate.

    Raises:
        ValueError: an accuracy is not between 0 and 1, or the guess rate is not at least 0 and below 1.
    """
    return (check_accuracy(accuracy) - guess_rate) / (1 - _check_guess_rate(guess_rate))


def pass_at_k(samples: int, correct: int, attempts: int) -> float:
    """Return the probability that one of k answers, drawn without replacement from n of which c are right, is right.

    1 - (n - c choose k)/(n choose k), the unbiased estimate of pass@k from n samples (Chen et al. 2021).

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= attempts <= samples.
    """
    if not (0 <= correct <= samples and 1 <= attempts <= samples):
        raise ValueError(
            f"{correct} right of {samples} samples in {attempts} attempts; needed: 0 <= right <= samples and "
            "1 <= attempts <= samples"
        )
    wrong = samples - correct
    if attempts > wrong:
        return 1.0
    return float(-np.expm1(np.log1p(-attempts / np.arange(wrong + 1, samples + 1)).sum()))


def predict_accuracy(coefficients: Coefficients, *columns: np.ndarray, guess_rate: float = 0.0) -> np.ndarray:
    """Return the accuracy Q that a law predicts.

    Args:
        coefficients: which law, and its numbers.
        columns: flops for the direct law and the one with a ceiling; parameters and tokens for the ratio law; flops and
            attempts for repeated sampling; above 0.
        guess_rate: Q_rand, at least 0 and below 1.

    Raises:
        ValueError: a column is missing, or an entry is not finite or out of its range.
    """
    terms, _ = _terms(coefficients, columns)
    surprise = np.exp(terms).sum(axis=0)
    return np.exp(-surprise) * (1 - _check_guess_rate(guess_rate)) + guess_rate


def predict_interval(
    fit: AccuracyFit, *columns: np.ndarray, level: float = 0.95, observation: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the interval of a predicted accuracy.

    ln(-ln Q') is taken as Gaussian about the law, with the covariance of the fit carried through to first order and
    Student's t for its n - p degrees of freedom; the direct and the repeated law are lines, for which that is exact.

    Args:
        fit: of one of the fits by least squares; Huber's criterion gives no interval, and both ends are NaN.
        columns: as for `predict_accuracy`.
        level: between 0 and 1.
        observation: True for the accuracy of one new run, False for the law.

    Raises:
        ValueError: as `predict_accuracy`, or no degree of freedom is left.
    """
    coefficients, spread = fit.coefficients, fit.covariance
    if fit.status == "no ceiling is seen":
        coefficients, spread = DirectCoefficients(*coefficients[:2]), spread[:2, :2]
    terms, gradients = _terms(coefficients, columns)
    log_surprise = np.logaddexp.reduce(terms, axis=0)
    gradient = sum(np.exp(term - log_surprise) * change for term, change in zip(terms, gradients, strict=True))
    variance = np.einsum("p...,pq,q...->...", gradient, spread, gradient)
    freedom = fit.rows - len(coefficients)
    reach = student_quantile(level, freedom) * np.sqrt(variance + 2 * fit.objective / freedom * observation)
    share = 1 - fit.guess_rate
    low = np.exp(-np.exp(log_surprise + reach)) * share + fit.guess_rate
    return low, np.exp(-np.exp(log_surprise - reach)) * share + fit.guess_rate


def fit_direct(
    flops: np.ndarray, accuracy: np.ndarray, guess_rate: float = 0.0, least_gain: float = LEAST_GAIN
) -> AccuracyFit:
    """Fit -ln Q' = A/C^α by ordinary least squares of ln(-ln Q').

    Args:
        flops: [n], C, above 0.
        accuracy: [n], Q, between 0 and 1.
        guess_rate: Q_rand, at least 0 and below 1.
        least_gain: rows count where Q > Q_rand + least_gain, and Q < 1.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or too few rows count to tell the coefficients apart.

    Differs from the reference: the line is found by a QR step with columns of length 1.
    """
    return _fit_line(DirectCoefficients, {"flops": flops}, accuracy, guess_rate, least_gain)


def fit_repeated(flops: np.ndarray, attempts: np.ndarray, accuracy: np.ndarray, least_gain: float = 0.0) -> AccuracyFit:
    """Fit the law of pass@k by ordinary least squares of ln(-ln Q); arguments as `fit_direct`, k at least 1.

    There is no guess rate: a program that is written at random does not pass.

    Differs from the reference: the line is found by a QR step with columns of length 1.
    """
    attempts = check_range("attempts", attempts, least=1.0)
    return _fit_line(RepeatedCoefficients, {"flops": flops, "attempts": attempts}, accuracy, 0.0, least_gain)


def check_accuracy(accuracy: np.ndarray) -> np.ndarray:
    """Return accuracies as float64; ValueError unless every one is between 0 and 1."""
    checked = check_range("accuracy", accuracy, least=0.0)
    check_range("1 - accuracy", 1 - checked, least=0.0)
    return checked


def chosen_rows(columns: dict, accuracy: np.ndarray, guess_rate: float, least_gain: float, unknowns: int):
    """Return the logarithms of the columns and ln(-ln Q') of the rows that count, and which these are."""
    checked = [np.atleast_1d(check_range(name, column, above=0.0)) for name, column in columns.items()]
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    if accuracy.ndim != 1 or any(column.shape != accuracy.shape for column in checked):
        shapes = [str(column.shape) for column in (*checked, accuracy)]
        raise ValueError(
            f"{', '.join(columns)} and accuracy have shapes {', '.join(shapes[:-1])} and {shapes[-1]}; "
            "needed: one axis, the same length"
        )
    floor = _check_guess_rate(guess_rate) + float(check_range("least_gain", least_gain, least=0.0))
    used = (accuracy > floor) & (accuracy < 1)
    if used.sum() <= unknowns:
        raise ValueError(
            f"{used.sum()} of {used.size} rows have an accuracy above {floor:g} and below 1; the law has "
            f"{unknowns} coefficients and needs at least {unknowns + 1} rows"
        )
    target = np.log(-np.log(normalise(accuracy[used], guess_rate)))
    return [np.log(column[used]) for column in checked], target, used


def report(coefficients, objective, residual, target, status, spread, used, delta, guess_rate) -> AccuracyFit:
    """Return the record of a fit; residuals are of ln(-ln Q')."""
    misses = (1 - guess_rate) * (np.exp(-np.exp(target)) - np.exp(-np.exp(target - residual)))
    roots = [float(np.linalg.norm(errors)) / math.sqrt(errors.size) for errors in (residual, misses)]
    criterion = LEAST_SQUARES if math.isinf(delta) else f"{HUBER} {delta:g}"
    return AccuracyFit(
        coefficients, objective, roots[0] / math.log(10), roots[1], status, spread, residual.size, used, criterion,
        guess_rate,
    )  # fmt: skip


def _check_guess_rate(guess_rate: float) -> float:
    if not 0 <= guess_rate < 1:
        raise ValueError(f"guess_rate is {guess_rate}; needed: at least 0 and below 1")
    return guess_rate


def _terms(coefficients: Coefficients, columns: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of a law's terms [terms, ...] and their derivatives [terms, p, ...]."""
    form = type(coefficients)
    if len(columns) != _COLUMNS[form]:
        raise ValueError(f"{len(columns)} columns are given; {form.__name__} needs {_COLUMNS[form]}")
    logs = np.broadcast_arrays(*(np.log(check_range("column", column, above=0.0)) for column in columns))
    one, zero, (x, *more) = np.ones_like(logs[0]), np.zeros_like(logs[0]), logs
    if form is RepeatedCoefficients:
        (y,) = more
        c, alpha, beta, delta = coefficients
        return np.stack([c + alpha * x + beta * y + delta * x * y]), np.stack([np.stack([one, x, y, x * y])])
    A, alpha, *rest = coefficients
    first = math.log(A) - alpha * x
    if form is DirectCoefficients or (form is CeilingCoefficients and rest[0] == 0):
        return np.stack([first]), np.stack([np.stack([one, -x])])
    if form is CeilingCoefficients:
        second = math.log(rest[0]) * one
        return np.stack([first, second]), np.stack([np.stack([one, -x, zero]), np.stack([zero, zero, one])])
    (B, beta), (y,) = rest, more
    gradients = np.stack([one, -x, zero, zero]), np.stack([zero, zero, one, -y])
    return np.stack([first, math.log(B) - beta * y]), np.stack(gradients)


def _fit_line(form: type, columns: dict, accuracy, guess_rate: float, least_gain: float) -> AccuracyFit:
    """Fit a law whose ln(-ln Q') is linear in the coefficients."""
    logs, target, used = chosen_rows(columns, accuracy, guess_rate, least_gain, len(form._fields))
    one = np.ones_like(target)
    design = [one, -logs[0]] if form is DirectCoefficients else [one, *logs, logs[0] * logs[1]]
    factors = triangle(np.stack(design, axis=1))
    if factors is None:
        raise ValueError(f"the rows that count cannot tell the coefficients apart; needed: two {', '.join(columns)}")
    unit, upper = factors
    scores = unit.T @ target
    residual = target - unit @ scores
    scores = scores + unit.T @ residual  # the rounding of the first step
    residual = target - unit @ scores
    root = np.linalg.inv(upper)
    values = (root @ scores).tolist()
    squares = float(residual @ residual)
    spread = squares / (target.size - len(values)) * (root @ root.T)
    rises = values[1] > 0 if form is DirectCoefficients else values[1] < 0
    if form is DirectCoefficients:
        values[0] = float(np.exp(values[0]))
    status = "interior" if rises else "accuracy does not rise"
    return report(form(*values), squares / 2, residual, target, status, spread, used, math.inf, guess_rate)
