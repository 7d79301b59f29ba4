"""Laws of downstream accuracy: how the share of correct answers rises with compute.

The laws are from Krajewski et al. 2025 (arXiv 2512.08894). In a multiple-choice task, guessing reaches the accuracy
Q_rand, so the laws use the accuracy above it,

    Q' = (Q - Q_rand) / (1 - Q_rand)                                    0 for guesses, 1 for all answers correct

The laws predict the surprise -ln Q'. It falls to 0 as the accuracy rises to 1:

    direct      -ln Q' = A / C^α                                        equation 2, one ratio of tokens to parameters
    ratio       -ln Q' = A / N^α + B / D^β                              equation 4, across ratios
    ceiling     -ln Q' = A / C^α + E,      Q'_max = exp(-E)             equation 10 (appendix L)
    repeated    ln(-ln Q) = c + α ln C + β ln k + δ ln C ln k           equation 5, pass@k

where  C  training FLOPs       N  parameters       D  training tokens       k  attempts; one has to be correct.

The fit uses only rows with Q > Q_rand + least_gain. Rows at or below the guess rate have no Q' above 0, and rows just
above it are mostly noise. The paper's threshold is "more than 5 % above random"; we read this as 0.05 of accuracy
(`least_gain`). The fit also skips rows with Q = 1, because their surprise is 0. The fit keeps lucky rows near the
threshold and skips unlucky rows, so the fitted law is too flat (our remark).

This file fits the direct and the repeated law by ordinary least squares, as in the paper. `downstream_sums.py` fits the
other two laws, which are sums.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ...errors import InputError
from ..confidence.uncertainty import student_quantile
from ..numerics._columns import check_accuracy, least_squares
from ..numerics._levenberg import power_terms
from ..numerics._projection import check_lengths, check_range, independent

Status = Literal["interior", "accuracy does not rise", "no ceiling is seen", "one term vanishes"]

LEAST_GAIN = 0.05  # least accuracy above the guess rate; the fit skips other rows
LEAST_SQUARES = "half the sum of squared differences of ln(-ln Q')"
HUBER = "sum of Huber terms of ln(-ln Q'), delta"


_LARGEST_LOG = 1e6
"""Replaces the logarithm of a factor that is 0 or infinite in float64, because infinity times a feature of 0 is NaN."""


class DirectCoefficients(NamedTuple):
    """Coefficients of the direct law: -ln Q' = A / C^α.

    Attributes:
        A: -ln Q' at C = 1
        alpha: power of C, above 0 if accuracy rises
    """

    A: float
    alpha: float


class RatioCoefficients(NamedTuple):
    """Coefficients of the law across ratios of tokens to parameters: -ln Q' = A / N^α + B / D^β.

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
    """Coefficients of the law with a ceiling: -ln Q' = A / C^α + E.

    Attributes:
        A: the first term at C = 1
        alpha: power of C
        E: -ln Q' with infinite compute; 0 if the rows show no ceiling
    """

    A: float
    alpha: float
    E: float


class RepeatedCoefficients(NamedTuple):
    """Coefficients of the law of pass@k: ln(-ln Q) = c + α ln C + β ln k + δ ln C ln k; α is below 0 if accuracy rises.

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


class AccuracyFit(NamedTuple):
    """The best fit of a law of accuracy to a table.

    Attributes:
        coefficients: the coefficients of the law, in its own record
        objective: the least value of `criterion`
        rmsle: root mean squared difference of log10(-ln Q')
        rmse: root mean squared difference of the accuracies
        status: "interior", "accuracy does not rise", "no ceiling is seen" or "one term vanishes"
        covariance: of the coefficients, with ln A, ln B and ln E instead of A, B and E; NaN if unknown
        rows: number of used rows
        used: [n] bool, the used rows
        criterion: a description of the minimised quantity
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
    """Return Q' = (Q - Q_rand)/(1 - Q_rand). Q' is below 0 if Q is below the guess rate.

    Raises:
        ValueError: an accuracy is outside [0, 1], or the guess rate is outside [0, 1).

    Example:
        >>> normalise([0.25, 0.625, 1.0], 0.25).tolist()
        [0.0, 0.5, 1.0]
    """
    return (check_accuracy(accuracy) - guess_rate) / (1 - _check_guess_rate(guess_rate))


def pass_at_k(samples: int, correct: int, attempts: int) -> float:
    """Return the probability that at least one of k answers is correct, for k of n answers drawn without replacement.

    With c correct answers, 1 - (n - c choose k)/(n choose k) is the unbiased estimate of pass@k (Chen et al. 2021).

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= attempts <= samples.

    Example:
        Two of four answers are right, so one pair of six has no right answer.

        >>> round(pass_at_k(4, 2, 2), 6)
        0.833333
    """
    if not (0 <= correct <= samples and 1 <= attempts <= samples):
        raise InputError(
            f"{correct} right of {samples} samples in {attempts} attempts; needed: 0 <= right <= samples and "
            "1 <= attempts <= samples"
        )
    return 1 - math.comb(samples - correct, attempts) / math.comb(samples, attempts)


def predict_accuracy(coefficients: Coefficients, *columns: np.ndarray, guess_rate: float = 0.0) -> np.ndarray:
    """Return the accuracy Q that a law predicts.

    Args:
        coefficients: which law, and its numbers.
        columns: flops for the direct law and the law with a ceiling; parameters and tokens for the ratio law; flops and
            attempts for repeated sampling; above 0.
        guess_rate: Q_rand, at least 0 and below 1.

    Raises:
        ValueError: a column is missing, or an entry is not finite or out of its range.

    Example:
        -ln Q' = 10/100^0.5 = 1, with a guess rate of 0.5.

        >>> round(float(predict_accuracy(DirectCoefficients(10.0, 0.5), 100.0, guess_rate=0.5)), 6)
        0.68394
    """
    with np.errstate(over="ignore"):  # an infinite factor: accuracy is the guess rate
        surprise = np.exp(_log_surprise(coefficients, columns)[0])
    return np.exp(-surprise) * (1 - _check_guess_rate(guess_rate)) + guess_rate


def predict_interval(
    fit: AccuracyFit, *columns: np.ndarray, level: float = 0.95, observation: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the interval of a predicted accuracy.

    The interval assumes normal errors of ln(-ln Q'). It uses the covariance of the fit to first order, and Student's t
    with n - p degrees of freedom. It is exact for the direct and the repeated law.

    Args:
        fit: a least-squares fit. Huber's criterion gives no interval. Both ends are then NaN.
        columns: as for `predict_accuracy`.
        level: between 0 and 1.
        observation: True for the interval of a new run's accuracy, False for the interval of the law.

    Raises:
        ValueError: `predict_accuracy` raises this error, or the fit has no more rows than coefficients.
    """
    coefficients, spread = fit.coefficients, fit.covariance
    if fit.status == "no ceiling is seen":
        coefficients, spread = DirectCoefficients(*coefficients[:2]), spread[:2, :2]
    log_surprise, gradient = _log_surprise(coefficients, columns)
    variance = np.einsum("...p,pq,...q->...", gradient, spread, gradient)  # gᵀ spread g at each point
    unknowns = len(coefficients)
    if observation:
        variance = variance + 2 * fit.objective / (fit.rows - unknowns)  # per row; the objective is half the sum
    reach = student_quantile(level, fit.rows - unknowns) * np.sqrt(variance)
    share = 1 - fit.guess_rate
    low = np.exp(-np.exp(log_surprise + reach)) * share + fit.guess_rate  # the larger surprise
    high = np.exp(-np.exp(log_surprise - reach)) * share + fit.guess_rate
    return low, high


def fit_direct(
    flops: np.ndarray, accuracy: np.ndarray, guess_rate: float = 0.0, least_gain: float = LEAST_GAIN
) -> AccuracyFit:
    """Fit the direct law, -ln Q' = A/C^α, by ordinary least squares of ln(-ln Q').

    Args:
        flops: [n], C, above 0.
        accuracy: [n], Q, between 0 and 1.
        guess_rate: Q_rand, at least 0 and below 1.
        least_gain: the fit uses rows with Q > Q_rand + least_gain and Q < 1.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or the used rows cannot determine the
            coefficients.

    Example:
        >>> C = np.array([1e19, 1e20, 1e21])
        >>> fit = fit_direct(C, predict_accuracy(DirectCoefficients(1e5, 0.25), C, guess_rate=0.25), 0.25)
        >>> fit.status, round(fit.coefficients.alpha, 9)
        ('interior', 0.25)
    """
    return _fit_line(DirectCoefficients, {"flops": flops}, accuracy, guess_rate, least_gain)


def fit_repeated(flops: np.ndarray, attempts: np.ndarray, accuracy: np.ndarray, least_gain: float = 0.0) -> AccuracyFit:
    """Fit the law of repeated sampling (pass@k) by ordinary least squares of ln(-ln Q).

    `fit_direct` describes the arguments; attempts are k, at least 1. There is no guess rate, because a random program
    does not pass.
    """
    attempts = check_range("attempts", attempts, least=1.0)
    return _fit_line(RepeatedCoefficients, {"flops": flops, "attempts": attempts}, accuracy, 0.0, least_gain)


def _check_guess_rate(guess_rate: float) -> float:
    if not 0 <= guess_rate < 1:
        raise InputError(f"guess_rate is {guess_rate}; needed: at least 0 and below 1")
    return guess_rate


def _features(form: type, logs: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the features X [..., terms, p] of a law: ln of a term is X · its coefficients (with ln A, ln B and ln E).

    The other laws have one "term": the right side of their equation in ln(-ln Q').
    """
    ones, zero = np.ones_like(logs[0]), np.zeros_like(logs[0])
    if form is DirectCoefficients:
        terms = [[ones, -logs[0]]]
    elif form is RatioCoefficients:
        terms = [[ones, -logs[0], zero, zero], [zero, zero, ones, -logs[1]]]
    elif form is CeilingCoefficients:
        terms = [[ones, -logs[0], zero], [zero, zero, ones]]
    else:
        terms = [[ones, logs[0], logs[1], logs[0] * logs[1]]]
    return np.stack([np.stack(term, axis=-1) for term in terms], axis=-2)


def _log_surprise(coefficients: Coefficients, columns: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Return ln(-ln Q') of a law and its derivatives [..., p], in the coefficients with ln A, ln B and ln E."""
    form = type(coefficients)
    needed = 2 if form in (RatioCoefficients, RepeatedCoefficients) else 1
    if len(columns) != needed:
        raise InputError(f"got {len(columns)} columns; {form.__name__} needs {needed}")
    logs = np.broadcast_arrays(*(np.log(check_range("column", column, above=0.0)) for column in columns))
    if form is CeilingCoefficients and coefficients.E == 0:
        form, coefficients = DirectCoefficients, DirectCoefficients(*coefficients[:2])
    features = _features(form, tuple(logs))
    theta = _in_logs(np.array(coefficients, dtype=np.float64), form)
    flat = features.reshape(-1, *features.shape[-2:])
    value, gradient = power_terms(flat, theta)
    return value.reshape(features.shape[:-2]), gradient.reshape(*features.shape[:-2], theta.size)


def _in_logs(values: np.ndarray, form: type) -> np.ndarray:
    """Return the coefficients with ln A, ln B and ln E instead of A, B and E."""
    factors = [name in ("A", "B", "E") for name in form._fields]
    with np.errstate(divide="ignore"):  # a vanished term has the factor 0
        logs = np.log(np.where(factors, values, 1.0))
    return np.where(factors, np.clip(logs, -_LARGEST_LOG, _LARGEST_LOG), values)


def _rows(columns: dict, accuracy: np.ndarray, guess_rate: float, least_gain: float, unknowns: int):
    """Return the logarithms of the columns and ln(-ln Q') of the used rows, and the mask of these rows."""
    checked = {name: np.atleast_1d(check_range(name, column, above=0.0)) for name, column in columns.items()}
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    check_lengths(**checked, accuracy=accuracy)
    gain = float(check_range("least_gain", least_gain, least=0.0))
    used = (accuracy > _check_guess_rate(guess_rate) + gain) & (accuracy < 1)
    if used.sum() <= unknowns:
        raise InputError(
            f"{used.sum()} of {used.size} rows have an accuracy above {guess_rate + gain:g} (guess rate plus "
            f"least_gain) and below 1; the law has {unknowns} coefficients and needs at least {unknowns + 1} rows; add "
            "rows, or check the guess rate"
        )
    target = np.log(-np.log(normalise(accuracy[used], guess_rate)))
    return [np.log(column[used]) for column in checked.values()], target, used


def _fit_line(form: type, columns: dict, accuracy, guess_rate: float, least_gain: float) -> AccuracyFit:
    """Fit a law whose ln(-ln Q') is linear in the coefficients."""
    logs, target, used = _rows(columns, accuracy, guess_rate, least_gain, len(form._fields))
    design = _features(form, tuple(logs))[:, 0]
    if not independent(design):
        raise InputError(
            "the rows used do not determine the coefficients; "
            f"needed: at least two values of each of {', '.join(columns)}"
        )
    theta, spread, mean_square = least_squares(design, target)
    rises = theta[1] > 0 if form is DirectCoefficients else theta[1] < 0
    values = np.where(np.array(form._fields) == "A", np.exp(theta), theta)
    coefficients = form(*(float(v) for v in values))
    status: Status = "interior" if rises else "accuracy does not rise"
    objective = mean_square * target.size / 2
    return _report(coefficients, objective, target - design @ theta, target, status, spread, used, math.inf, guess_rate)


def _report(coefficients, objective, residual, target, status, spread, used, delta, guess_rate) -> AccuracyFit:
    """Return the record of a fit. Residuals are of ln(-ln Q')."""
    share = 1 - guess_rate
    misses = np.exp(-np.exp(target)) * share - np.exp(-np.exp(target - residual)) * share
    return AccuracyFit(
        coefficients,
        float(objective),
        float(np.sqrt(np.mean(residual**2))) / math.log(10),
        float(np.sqrt(np.mean(misses**2))),
        status,
        spread,
        residual.size,
        used,
        LEAST_SQUARES if math.isinf(delta) else f"{HUBER} {delta:g}",
        guess_rate,
    )


# What this file does not do: fit the sums (`downstream_sums.py`), go through a loss (`two_stage.py`), or follow a curve
# that breaks (`broken.py`).
