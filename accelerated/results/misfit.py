"""The residuals of a fitted law, and whether they exceed chance.

    SIZES      `by_size`       the mean residual at each size: a wrong law shows a pattern across N
    BEND       `bend_in_size`  whether the residuals are curved in log N: a test of one more term, (log N)²
    SEEDS      `beyond_seeds`  whether the residuals exceed the scatter of runs that differ only in their seed
               `equal_variances` whether this scatter is the same at each size (Bartlett's test)
    LARGEST    `largest_size`  the largest size, predicted by a fit to all smaller sizes
    OUTLIERS   `outliers`      runs that are far from the law, found together (`far_rows.py` of the reference)
    ALL        `misfit_of`     all these results for a `Fit`
    KNOWN      `is_determined` whether the rows determine the law; `is_known`: each of its coefficients
    RISE       `rise`          whether larger models are worse by the law; then no dense size corresponds to a loss
    WORDS      `misfit_lines`  the printed lines; `warnings`: possible hidden errors of a fit

A residual is log10 of the measured loss minus log10 of the law's loss. If it is above 0, the law is too low. The
methods are our choice; BEND and SEEDS use the usual F tests of nested least-squares fits.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range
from routelaws.reference.laws.confidence.far_rows import far_rows

from ..laws.catalogue import Law
from ..tables.schema import called, run_names
from ..wording import by_reason, in_short, plural
from .blocks import count, figure, log_percent
from .row_differences import Difference, Shorter, first_words, row_differences

LOGARITHMIC = ("E_start", "E_max", "B_start", "B_max", "N_cutoff", "F_cutoff")
"""Sizes and numbers of experts. The ends of their intervals may have any ratio."""

OUTLIER = 4.0
"""`steepness` excludes rows with residuals above this number of robust standard deviations."""

UNCERTAIN = 10.0
"""In a determined law, the far end of a slope's interval is at most this factor times the near end."""


CLEAR = 0.05
"""A caution reports a bend or a misfit if p is below this number."""

NAMES = 7
"""A line names up to this many routers or tasks; if the list is longer, the line names six and counts the others."""

NO_FLOOR = (
    "This law has no irreducible loss: far above the fitted sizes its loss falls towards 0, so its predictions there "
    "are too low."
)
"""This sentence is true of a law that falls with N and is a sum of logarithms (no `Law.has_floor`)."""


FLOOR_MOVES = (
    "L0 is not the entropy of the text: longer training lowers it, and a few sizes do not determine it. Its interval "
    "assumes that this law is right; fits without the largest size (--rows) show how far it moves."
)
"""This sentence is true of a law in N and E with a floor: tokens are not in it."""


MOST_SIZES, BINS = 12, 8
"""With more different N than the first number, residuals are printed for this number of bins of N."""


class SizeMiss(NamedTuple):
    """The residuals of the runs of one size."""

    size: float  # N
    rows: int
    miss: float  # mean, log10


class Test(NamedTuple):
    """An F test."""

    statistic: float
    freedom: tuple[int, int]
    p: float  # p-value
    size: float | None = None  # N, if the test is of the rows of one size


class Bend(NamedTuple):
    """The test of a further term of the law, (log10 N)²."""

    value: float  # the coefficient; if positive, the smallest and the largest sizes have losses above the law
    test: Test


class Outlier(NamedTuple):
    hyper_id: int
    loss: float
    law: float  # the loss by the law, fitted without far runs
    times: float  # its distance from the law in robust standard deviations
    run: str = ""  # name of the run, if the table names runs


class Rise(NamedTuple):
    """The rise of a law's loss from the smallest to the largest N."""

    experts: float | None  # the smallest E of the rows; None for a law of N alone
    sizes: tuple[float, float]  # the smallest and the largest N of the rows
    losses: tuple[float, float]  # losses of the law at these sizes, nats per token


class Misfit(NamedTuple):
    """The residuals of a law."""

    sizes: list[SizeMiss]
    bend: Bend | None  # None with fewer than three sizes, or no spare row
    seeds: Test | None  # None without repeated runs at a point
    largest: SizeMiss | None  # None if the smaller sizes give no law
    outliers: list[Outlier]
    without: float | None  # RMSLE of the same law fitted without the outliers; None without outliers, or without a fit
    rise: Rise | None = None  # None if the law's loss falls with N


def rise(law, fit, columns: Sequence[np.ndarray]) -> Rise | None:
    """Return the rise of a law's loss from the smallest to the largest size, or None if the loss falls.

    The losses are at the smallest E of the rows (1 with dense models). Return None also for a law with other columns
    than N or (N, E), for a single size, and for an undefined law.

    Args:
        columns: columns of the fitted rows, [n] each.
    """
    if tuple(law.columns) not in (("dense_parameters",), ("dense_parameters", "num_experts")):
        return None
    ends = np.array([columns[0].min(), columns[0].max()])
    least = [np.full(2, column.min()) for column in columns[1:]]
    losses = np.asarray(law.predict(fit, ends, *least))
    if not (ends[0] < ends[1] and losses[0] <= losses[1] < math.inf):
        return None
    return Rise(float(least[0][0]) if least else None, tuple(map(float, ends)), tuple(map(float, losses)))


def by_size(size: np.ndarray, miss: np.ndarray) -> list[SizeMiss]:
    """Return the mean residual of each size, smallest first."""
    return [SizeMiss(float(n), int((size == n).sum()), float(miss[size == n].mean())) for n in np.unique(size)]


def bend_in_size(size: np.ndarray, miss: np.ndarray, design: np.ndarray, coefficients: int) -> Bend | None:
    """Return the coefficient of (log10 N)² in the residuals, and a test of whether it exceeds chance.

    Args:
        size, miss: [n].
        design: [n, p] columns in which the law is linear.
        coefficients: number of the law's coefficients, including nonlinear ones.

    Returns:
        None with fewer than three sizes, without a spare row, or if the design already contains (log10 N)².
    """
    freedom = miss.size - coefficients - 1
    if np.unique(size).size < 3 or freedom < 1:
        return None
    offset = np.log10(size) - np.log10(size).mean()
    unit, _ = np.linalg.qr(design / np.maximum(np.linalg.norm(design, axis=0), 1e-300))
    term = offset**2 - unit @ (unit.T @ offset**2)
    if term @ term <= 1e-12 * (offset**4).sum():
        return None
    rest = miss - unit @ (unit.T @ miss)
    value = float(term @ rest / (term @ term))
    explained, left = value**2 * float(term @ term), float(((rest - value * term) ** 2).sum())
    return Bend(value, _test(explained, 1, left, freedom))


def beyond_seeds(size: np.ndarray, columns: Sequence[np.ndarray], miss: np.ndarray, coefficients: int) -> Test | None:
    """Return the lack-of-fit test: it compares the residuals of mean losses with the scatter of repeated runs.

    If the scatter is not the same at each size, a common value is wrong at most sizes. Then each size is tested with
    its own scatter, and the result is the test with the least p, times the number of tests (Bonferroni). The tests of
    single sizes do not subtract the coefficients of the law, so they find a wrong law less often.
    """
    _, point = np.unique(np.stack(columns), axis=1, return_inverse=True)
    point = np.ravel(point)
    mean = (np.bincount(point, miss) / np.bincount(point))[point]
    between, points, scatter, within = _sums(point, mean, miss)
    if within < 1 or points <= coefficients:
        return None
    parts = [(float(n), *_sums(point[size == n], mean[size == n], miss[size == n])) for n in np.unique(size)]
    parts = [part for part in parts if part[-1]]
    if equal_variances([left for *_, left, _ in parts], [freedom for *_, freedom in parts]) >= CLEAR:
        return _test(between, points - coefficients, scatter, within)
    tests = [_test(*part)._replace(size=n) for n, *part in parts]
    worst = min(tests, key=lambda test: test.p)
    return worst._replace(p=min(1.0, len(tests) * worst.p))


def _sums(point: np.ndarray, mean: np.ndarray, miss: np.ndarray) -> tuple[float, int, float, int]:
    """Return sum of squares and count of the means, and sum of squares and degrees of freedom of the scatter."""
    points = np.unique(point).size
    return float(mean @ mean), points, float(((miss - mean) ** 2).sum()), miss.size - points


def equal_variances(squares: Sequence[float], degrees: Sequence[int]) -> float:
    """Return the p-value of Bartlett's test: is the variance the same in each group?

    Args:
        squares: sums of squared deviations, one for each group.
        degrees: their degrees of freedom, at least 1 each.

    Returns:
        1 for fewer than two groups, and if no value of any group deviates.

    Example:
        Three groups with 4 degrees of freedom each. `scipy.stats.bartlett` gives the same for three samples of five:

        >>> [round(equal_variances([4, 4, last], [4, 4, 4]), 3) for last in (4, 40, 400)]
        [1.0, 0.035, 0.0]
    """
    squares, degrees = np.asarray(squares, dtype=np.float64), np.asarray(degrees, dtype=np.float64)
    if squares.size < 2 or not squares.sum():
        return 1.0
    if not squares.all():
        return 0.0
    common = math.log(squares.sum() / degrees.sum())
    statistic = degrees.sum() * common - float(degrees @ np.log(squares / degrees))
    correction = 1 + (float((1 / degrees).sum()) - 1 / degrees.sum()) / (3 * (squares.size - 1))
    return _chi_squared_above(statistic / correction, squares.size - 1)


def largest_size(size: np.ndarray, errors: np.ndarray | None) -> SizeMiss | None:
    """Return the residual of the largest size by a fit to all smaller sizes, from the errors [n] of `held_out`."""
    if errors is None or np.unique(size).size < 3:
        return None
    misses = -np.asarray(errors)[size == size.max()]  # errors are predicted minus measured
    return SizeMiss(float(size.max()), misses.size, float(misses.mean())) if np.isfinite(misses).all() else None


def _test(explained: float, terms: int, left: float, freedom: int) -> Test:
    statistic = explained / terms / (left / freedom) if left > 0 else math.inf
    return Test(statistic, (terms, freedom), _f_above(statistic, terms, freedom))


def _chi_squared_above(statistic: float, degrees: int) -> float:
    """Return the probability that a chi-squared variable is above a statistic, by the sum over degrees - 2, and so on.

    These sums need no SciPy, whose import takes longer than a fit.
    """
    half, odd = max(statistic, 1e-300) / 2, degrees % 2
    powers = np.arange(0.5 if odd else 1.0, degrees / 2)
    first = math.erfc(math.sqrt(half)) if odd else math.exp(-half)
    return first + sum(math.exp(power * math.log(half) - half - math.lgamma(power + 1)) for power in powers)


def _f_above(statistic: float, terms: int, freedom: int) -> float:
    """Return the probability that an F variable is above a statistic.

    It is the regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) from the end.
    """
    a, b, x = freedom / 2, terms / 2, 1 / (1 + terms / freedom * statistic)
    above = x <= (a + 1) / (a + b + 2)
    if not above:  # here the fraction of I_(1-x)(b, a) = 1 - I_x(a, b) converges faster
        a, b, x = b, a, 1 - x
    if not x > 0:
        return float(not above)
    value, depth = 1.0, 200 + int(4 * math.sqrt(max(a, b)))
    for m in range(depth, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + even / (1 - (a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1) * value))
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    share = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / (a - a * (a + b) * x / (a + 1) / value)
    return share if above else 1 - share


def sizes_of(selection) -> np.ndarray:
    """Return N of the rows, [n], for any law."""
    return selection.frame["dense_parameter_count"].to_numpy(dtype=np.float64)


def misfit_of(fit) -> Misfit:
    """Return the misfit of a `Fit`. The F tests are None with Huber's criterion."""
    law, (_, columns, loss, *_), size = fit.law, fit.rows, sizes_of(fit.rows.runs)
    predicted = np.asarray(law.predict(fit.best, *columns))
    miss = np.log10(loss) - np.log10(predicted)
    bend = seeds = None
    if fit.huber is None:
        coefficients = law.coefficient_count(columns)
        if law.design is not None:
            has_value = np.isfinite(miss)  # false at a size that has no line
            design = law.design(fit.best, *(column[has_value] for column in columns))
            bend = bend_in_size(size[has_value], miss[has_value], design, coefficients)
        differing = row_differences(law, fit.rows)
        if all(entry.where == "sizes" for entry in differing):  # else other columns differ within a point
            seeds = beyond_seeds(size, columns, miss, coefficients)
    far = outliers(fit, size, np.isfinite(miss))
    near = ~np.isin(fit.rows.runs.frame["hyper_id"], [run.hyper_id for run in far])
    largest = largest_size(size, None if fit.held_out_size is None else fit.held_out_size.errors)
    without = _rmsle_of(law, [column[near] for column in columns], loss[near], fit.huber) if far else None
    return Misfit(by_size(size, miss), bend, seeds, largest, far, without, rise(law, fit.best, columns))


def outliers(fit, size: np.ndarray, known: np.ndarray) -> list[Outlier]:
    """Return the runs of a `Fit` that are far from its law, farthest first.

    Args:
        size: [n], N.
        known: [n], the rows for which the law has a value.
    """
    law, (_, columns, loss, runs, *_), names = fit.law, fit.rows, run_names(fit.rows.runs.frame) or {}
    found = far_rows(law, fit.best, [column[known] for column in columns], loss[known], size[known])
    ids, times = runs.frame["hyper_id"].to_numpy()[known].tolist(), np.abs(found.distance)
    numbers = np.stack([loss[known], found.predicted, times], axis=1).tolist()
    ranked = sorted(np.flatnonzero(found.far), key=lambda i: -times[i])
    return [Outlier(ids[i], *numbers[i], names.get(ids[i], "")) for i in ranked]


def _rmsle_of(law, columns, loss: np.ndarray, huber: float | None) -> float | None:
    try:
        return law.fit(*columns, loss, **({} if huber is None else {"huber": huber})).rmsle
    except ValueError:
        return None


def is_determined(slopes: list[Range]) -> bool:
    """Return whether the rows determine a bounded law: whether b + c log10 N is known at every given size.

    A slope is known if both ends of its interval are finite, and the far end is at most UNCERTAIN times the near end.
    If the interval includes 0, the best value counts as the near end. If a slope is not known, the rows cannot
    distinguish the law from a limit with infinite coefficients, and no coefficient is meaningful. (Our choice.)
    """
    for slope in slopes:
        far = max(abs(slope.low), abs(slope.high))
        near = abs(slope.value) if slope.low <= 0 <= slope.high else min(abs(slope.low), abs(slope.high))
        if not far <= UNCERTAIN * near:
            return False
    return True


def is_known(name: str, value: float, words: str) -> bool:
    """Return whether a coefficient or a derived number is determined, by its interval.

    Both ends must be finite. Except for sizes and numbers of experts, they must also be at most a factor of ten apart.
    A wider interval contains many equally good values. A coefficient can be determined although its law is not: its
    interval covers its values in all laws that the rows allow. Our choice.

    Args:
        words: result of `laws.uncertainty.verdict`; "" if the interval is exact.
    """
    open_ended = ("bounded", "not") if name in LOGARITHMIC else ("bounded", "not", "loose")
    return math.isfinite(value) and not words.startswith(open_ended)


def steepness(law, columns, loss: np.ndarray, fit, level: float) -> list[Range]:
    """Return the slopes for `is_determined`; [] for a law that is always determined.

    The slopes are from least squares on the rows within OUTLIER robust standard deviations of the fit. The
    least-squares fit of the (N, E) law already has slopes, and does not need this function.
    """
    if law.slopes is None:
        return []
    residual = np.abs(np.log10(law.predict(fit, *columns) / loss))
    near = residual <= max(OUTLIER * 1.4826 * float(np.median(residual)), 1e-9)
    return law.slopes(fit, [column[near] for column in columns], loss[near], level)


def warnings(
    differences: Sequence[Difference],
    shorter: Sequence[Shorter],
    misfit: Misfit | None,
    rmsle: float | None,
    huber: bool = False,
    takes_huber: bool = True,
) -> list[str]:
    """Return a sentence for each possible hidden error of the fit or, without a fit, of the rows.

    `huber`: the fit is by a sum of Huber terms, so single runs cannot dominate it. `takes_huber`: the law can be fitted
    in this way; otherwise no sentence recommends it.
    """
    sentences = [entry.words for entry in differences]
    if shorter:
        runs = first_words(
            [f"{called(run.hyper_id, run.run)} (step {run.step:,} of {run.commonest:,})" for run in shorter], ", "
        )
        ends = "1 run ends" if len(shorter) == 1 else f"{len(shorter)} runs end"
        sentences.append(f"{ends} before most others of the same size: hyper_id {runs}; check for unfinished runs")
    if misfit is not None and misfit.rise is not None:
        sentences.append(_rise_words(misfit.rise))
    if misfit is not None and misfit.outliers:
        sentences.append(_outlier_words(misfit.outliers, misfit.without, rmsle, huber, takes_huber))
    return sentences


def misfit_lines(misfit: Misfit, with_largest: bool = True) -> list[str]:
    """Return lines on the misfit: by size, bend, comparison with seeds, and the largest size."""
    lines = [f"measured loss minus the loss by the law, {_sizes_words(misfit.sizes)}"]
    if misfit.bend is not None:
        test = misfit.bend.test
        way = "above" if misfit.bend.value > 0 else "below"
        lines.append(
            f"the residuals are curved in log N (p = {test.p:.1g}): the losses of the smallest and the largest sizes "
            f"lie {way} the law; if this continues, larger models lie further {way} it"
            if test.p < CLEAR
            else f"the residuals show no curvature in log N (p = {test.p:.2g})"
        )
    if misfit.seeds is not None:
        lines.append(_seeds_words(misfit.seeds))
    if misfit.largest is not None and with_largest:
        lines.append(
            f"fitted without the largest size, N = {misfit.largest.size:,.0f}, the law predicts the loss at this size "
            f"{how_far_off(misfit.largest.miss)}"
        )
    return lines


def _sizes_words(sizes: Sequence[SizeMiss]) -> str:
    """Return the mean residual at each N or, with many different N, of bins of N of equal ratios."""
    if len(sizes) <= MOST_SIZES:
        shown = (f"{each.size:,.0f}: {figure(log_percent(each.miss), '+.1f')} %" for each in sizes)
        return f"mean at each N: {', '.join(shown)}"
    edges, shown = np.geomspace(sizes[0].size, sizes[-1].size, BINS + 1)[1:-1], []
    places = np.searchsorted(edges, [each.size for each in sizes])
    for place in np.unique(places):
        bin_sizes = [each for each, own in zip(sizes, places, strict=True) if own == place]
        rows = sum(each.rows for each in bin_sizes)
        mean = sum(each.rows * each.miss for each in bin_sizes) / rows
        ends = " to ".join(dict.fromkeys(count(bin_sizes[end].size) for end in (0, -1)))
        shown.append(f"{ends} ({plural(rows, 'run')}): {figure(log_percent(mean), '+.1f')} %")
    return f"mean in bins of N: {', '.join(shown)}"


def _seeds_words(test: Test) -> str:
    chance, clear = f"(F = {test.statistic:.3g}, p = {test.p:.1g})", test.p < CLEAR
    cause = ": the form of the law causes part of the error" * clear
    if test.size is None:
        size = "larger" if clear else "no larger"
        return f"the residuals are {size} than the scatter of repeated runs {chance}{cause}"
    start = "the scatter of repeated runs is not the same at each N; "
    if clear:
        return f"{start}at N = {test.size:,.0f}, the residuals are larger than this scatter {chance}{cause}"
    return f"{start}at each N, the residuals are no larger than this scatter (smallest p = {test.p:.1g})"


def how_far_off(miss: float) -> str:
    """Return text on the size and direction of a residual, a difference of log10."""
    off = log_percent(miss)
    if abs(off) < 0.05:
        return "to within 0.05 %"
    return f"{abs(off):.1f} % too {'low' if off > 0 else 'high'}"


def has_no_floor(law: Law, misfits: Sequence[Misfit]) -> bool:
    """Return whether `NO_FLOOR` is true for at least one fit of a law."""
    return not law.has_floor and any(misfit.rise is None for misfit in misfits)


def _rise_words(rise: Rise) -> str:
    at = "" if rise.experts is None else f"at E = {rise.experts:g} "
    small, large = (f"{loss:.5g} (N = {size:,.0f})" for size, loss in zip(rise.sizes, rise.losses, strict=True))
    return (
        f"this law predicts no gain from larger models ({at}its loss goes from {small} to {large}); check that the"
        " larger models were trained long enough and at a good learning rate"
    )


def _outlier_words(far: Sequence[Outlier], without: float | None, rmsle: float, huber: bool, takes_huber: bool) -> str:
    runs = [f"hyper_id {called(run.hyper_id, run.run)}: loss {run.loss:.4g}, predicted {run.law:.4g}" for run in far]
    text = f"{len(far)} {'run is' if len(far) == 1 else 'runs are'} far from the law ({first_words(runs)})"
    if without is not None:
        text += f"; without {'this run' if len(far) == 1 else 'them'} the RMSLE is {without:.2g} instead of {rmsle:.2g}"
        if without < rmsle / 2 and not huber:
            advice = "see routelaws fit --huber" if takes_huber else "filter with --rows"
            text += f", so {'one run determines' if len(far) == 1 else 'a few runs determine'} this fit; {advice}"
    return text


def warning_lines(not_fitted: dict[str, str], cautions: dict[str, list[str]]) -> list[str]:
    lines = [
        f"warning ({in_short(names, NAMES)}): not fitted: {reason}" for reason, names in by_reason(not_fitted).items()
    ]
    return lines + [f"warning ({in_short(names, NAMES)}): {caution}" for caution, names in cautions.items()]


def floor_lines(law, fits) -> list[str]:
    """Return `NO_FLOOR` or `FLOOR_MOVES` if it is true of at least one fit of a law."""
    misfits = [fit.misfit for fit in fits if fit.misfit is not None]
    if misfits and any(parameter.name == "L0" for parameter in law.parameters):
        return [FLOOR_MOVES]
    return [NO_FLOOR] if misfits and has_no_floor(law, misfits) else []
