"""The numbers of a sweep's report: does routing help, by how much more than chance, and what law do the runs follow.

    1. SPREAD   `seed_spreads`      how far runs lie apart that differ in their seed alone
    2. COMPARE  `compare`           dense against the largest E, at every size of every router, in units of that spread
    3. FIT      `fit_law`           the bounded law, slopes and gains with their intervals
    4. LOAD     `loads`             how evenly the experts are used at the largest E

Nothing here is a word of the report: `sections.py` says it, `figures.py` draws it and `as_json` writes it down.
"""

import math
from typing import NamedTuple

import numpy as np

from ..laws.fitting import RoutedFit, expert_curve, fit_routed
from ..laws.routed import cutoff
from ..laws.uncertainty import GainInterval, SlopeInterval, gain_interval, slope_interval, student_quantile
from ..tables.table import DENSE, RouterRows
from ..training.window_losses import loss_difference, standard_error
from .estimates import percent
from .sweep_data import Sweep, SweepRun, same_but_seed

CHANCE = 1.96
"""Standard errors over documents up to which a difference of losses can be chance: a 95 % interval."""


class SeedSpread(NamedTuple):
    """One point of the grid that was trained with more than one seed."""

    router: str
    size: int
    experts: int
    seeds: list[int]
    losses: list[float]  # nats per token, in the order of `seeds`
    range: float  # largest less smallest
    deviation: float  # standard deviation, n - 1 below


class Comparison(NamedTuple):
    """One router at one size: its largest E against dense. Losses are means over the seeds."""

    router: str
    size: int
    experts: int
    dense_loss: float
    routed_loss: float
    difference: float  # routed less dense, nats per token: negative where routing helps
    percent: float  # the same in percent of the dense loss
    spread: float | None  # range over seeds that the difference is held against; None if not measured
    borrowed: bool  # the spread is that of other routers, since this one has one seed per point
    error: float | None  # standard error of the difference over documents; None if not on the same windows
    verdict: str  # "yes", "no, within the spread", "no, routing hurts", "lower, spread not measured", ...


class RouterLaw(NamedTuple):
    """The law of one router, or why there is none."""

    router: str
    rows: int
    sizes: list[int]
    expert_counts: list[int]
    left_out: list[dict]
    missing: str | None  # why there is no law; then what follows is None
    fit: RoutedFit | None = None
    slope: SlopeInterval | None = None
    gain: GainInterval | None = None
    reach: dict | None = None  # {coefficient: half of its rough 95 % interval, from the covariance}

    def verdict(self, i: int) -> str:
        """Return whether the slope at the i-th size is negative with the whole of its interval."""
        if self.slope.high[i] < 0:
            return "yes" if math.isfinite(self.slope.slope[i]) else "yes in sign, no finite value"
        return "no, it is positive" if self.slope.low[i] > 0 else "no, the interval reaches past 0"


class Load(NamedTuple):
    """How evenly the experts of one run are used."""

    router: str
    size: int
    experts: int
    seed: int
    shares: list[list[float]]  # [blocks, E G] share times E G, falling: 1 everywhere is balance
    busiest: float  # largest of them
    idle: int  # experts that no validation token went to, all routed blocks together
    dropped_fraction: float  # of the assignments in training, since the evaluation before the last


class Findings(NamedTuple):
    """Everything a report states."""

    spreads: list[SeedSpread]
    comparisons: list[Comparison]
    laws: list[RouterLaw]
    loads: list[Load]


def find(sweep: Sweep) -> Findings:
    """Return the numbers of a sweep's report."""
    spreads = seed_spreads(sweep.runs)
    comparisons = [entry for selection in sweep.selections for entry in compare(sweep, selection, spreads)]
    laws = [fit_law(selection) for selection in sweep.selections]
    return Findings(spreads, comparisons, laws, loads(sweep))


def seed_spreads(runs: list[SweepRun]) -> list[SeedSpread]:
    """Return every point with more than one seed, the runs of which differ in nothing else."""
    points: dict = {}
    for run in runs:
        points.setdefault(same_but_seed(run.config), []).append(run)
    spreads = []
    for group in points.values():
        if len(group) > 1:
            losses, first = [run.loss for run in group], group[0]
            spreads.append(
                SeedSpread(
                    first.router,
                    first.size,
                    first.experts,
                    [run.config.seed for run in group],
                    losses,
                    max(losses) - min(losses),
                    float(np.std(losses, ddof=1)),
                )
            )
    return sorted(spreads, key=lambda spread: (spread.router, spread.size, spread.experts))


def spread_for(router: str, spreads: list[SeedSpread]) -> tuple[float | None, bool]:
    """Return the range over seeds that a router is held against, and whether it is borrowed from other routers.

    It is the largest range among the points of the router itself and of dense, since a difference of the two has the
    chance of both in it; without a point of its own, the largest of the whole sweep.
    """
    own = [spread for spread in spreads if spread.router == router]
    candidates = own + [s for s in spreads if s.router == DENSE] if own else spreads
    return (max(s.range for s in candidates) if candidates else None), bool(candidates) and not own


def compare(sweep: Sweep, selection: RouterRows, spreads: list[SeedSpread]) -> list[Comparison]:
    """Hold the largest E of a router against dense, at each size that has both."""
    runs, comparisons = sweep.of(selection), []
    spread, borrowed = spread_for(selection.router, spreads)
    for size in sorted({run.size for run in runs}):
        dense = [run for run in runs if run.size == size and run.router == DENSE]
        routed = [run for run in runs if run.size == size and run.router != DENSE]
        if not dense or not routed:
            continue
        experts = max(run.experts for run in routed)
        largest = [run for run in routed if run.experts == experts]
        before, after = (float(np.mean([run.loss for run in group])) for group in (dense, largest))
        error = difference_error(largest, dense)
        comparisons.append(
            Comparison(
                selection.router,
                size,
                experts,
                before,
                after,
                after - before,
                100 * (after - before) / before,
                spread,
                borrowed,
                error,
                verdict(after - before, spread, error),
            )
        )
    return comparisons


def difference_error(first: list[SweepRun], second: list[SweepRun]) -> float | None:
    """Return the standard error, over documents, of how far the mean losses of two groups of runs lie apart.

    It is taken window by window on the same windows; None where some of the runs kept no windows, have others, or have
    a single document.
    """
    if any(run.windows is None for run in (*first, *second)):
        return None
    apart = loss_difference([run.windows for run in first], [run.windows for run in second])
    error = math.nan if apart is None else standard_error(apart)
    return None if math.isnan(error) else error


def verdict(difference: float, spread: float | None, error: float | None) -> str:
    """Return whether a loss that differs from dense by `difference` is lower by more than chance.

    Two kinds of chance count: that of the seed, by the range over seeds, and that of the documents which the losses
    were measured on, by a 95 % interval of CHANCE standard errors.
    """
    if spread is None:
        return ("lower" if difference < 0 else "not lower") + ", spread not measured"
    if abs(difference) <= spread:
        return "no, within the spread"
    if error is not None and abs(difference) <= CHANCE * error:
        return "no, other documents could turn it round"
    return "yes" if difference < 0 else "no, routing hurts"


def fit_law(selection: RouterRows) -> RouterLaw:
    """Fit the bounded law to all runs of a router, all seeds; the entry says why where that is impossible."""
    names = ("dense_parameter_count", "num_experts", "loss_validation")
    columns = [selection.frame[name].to_numpy(dtype=np.float64) for name in names]
    at = np.unique(columns[0])
    head = (
        selection.router,
        columns[0].size,
        [int(n) for n in at],
        [int(e) for e in np.unique(columns[1])],
        selection.left_out,
    )
    try:
        fit = fit_routed(*columns)
    except ValueError as error:
        return RouterLaw(*head, missing=str(error))
    half = student_quantile(0.95, fit.rows - 6) * np.sqrt(np.diag(fit.covariance))
    reach = dict(zip(fit.coefficients._fields, map(float, half), strict=True))
    return RouterLaw(*head, None, fit, slope_interval(*columns, at), gain_interval(*columns, at), reach)


def effective_size(fit: RoutedFit, size: np.ndarray, experts: np.ndarray) -> np.ndarray | None:
    """Return the size of the dense model to which the law gives the same loss; None if size does not matter to it.

    The same as `effective_parameter_count`, from the form of the law that the linear limit has too.
    """
    curve = fit.curve
    if curve.size == 0:
        return None
    extra, log_size = np.asarray(experts, dtype=np.float64) - 1, np.log10(size)
    psi = expert_curve(extra, curve.rise, curve.bend, curve.top)
    return 10 ** (log_size + (curve.gain + curve.interaction * log_size) / curve.size * psi)


def seed_scatter(spreads: list[SeedSpread]) -> float | None:
    """Return the standard deviation of log10 L over seeds, pooled over the points; None if not measured."""
    if not spreads:
        return None
    squares = sum(float(np.sum((np.log10(s.losses) - np.mean(np.log10(s.losses))) ** 2)) for s in spreads)
    return math.sqrt(squares / sum(len(s.losses) - 1 for s in spreads))


def loads(sweep: Sweep) -> list[Load]:
    """Return the load of the run with the largest E, at each size of each router; of several seeds the first."""
    found = []
    for selection in sweep.selections:
        runs = [run for run in sweep.of(selection) if run.router != DENSE and run.load]
        for size in sorted({run.size for run in runs}):
            run = max((run for run in runs if run.size == size), key=lambda run: (run.experts, -run.hyper_id))
            shares = [sorted((len(block) * share for share in block), reverse=True) for block in run.load]
            found.append(
                Load(
                    run.router,
                    size,
                    run.experts,
                    run.config.seed,
                    shares,
                    max(max(block) for block in shares),
                    sum(share == 0 for block in shares for share in block),
                    float(run.row["dropped_fraction"]),
                )
            )
    return found


def as_json(findings: Findings) -> dict:
    """Return the findings as strict JSON can hold them: null where a number is infinite or was not found."""
    return {
        "seed_spread": [spread._asdict() for spread in findings.spreads],
        "seed_scatter_log10": seed_scatter(findings.spreads),
        "does_routing_help": [entry._asdict() for entry in findings.comparisons],
        "laws": [_law_as_json(law) for law in findings.laws],
        "load": [load._asdict() for load in findings.loads],
    }


def _law_as_json(law: RouterLaw) -> dict:
    result = {name: getattr(law, name) for name in ("router", "rows", "sizes", "expert_counts", "left_out", "missing")}
    if law.missing is not None:
        return result
    fit, slope, gain = law.fit, law.slope, law.gain
    coefficients = {name: finite(value) for name, value in fit.coefficients._asdict().items()}
    return result | {
        "status": fit.status,
        "coefficients": coefficients,
        "coefficients_95_rough": {name: finite(value) for name, value in law.reach.items()},
        "rmsle": fit.rmsle,
        "N_cutoff": finite(cutoff(fit.coefficients)),
        "slopes": [
            {"N": int(n), "slope": finite(s), "low": finite(low), "high": finite(high), "negative": law.verdict(i)}
            for i, (n, s, low, high) in enumerate(zip(*slope[:4], strict=True))
        ],
        "gains": [
            {
                "N": int(n),
                "experts": int(gain.experts),
                "log10": finite(g),
                "low": finite(low),
                "high": finite(high),
                "percent": finite(percent(g)),
                "percent_low": finite(percent(low)),
                "percent_high": finite(percent(high)),
            }
            for n, g, low, high in zip(gain.at, gain.gain, gain.low, gain.high, strict=True)
        ],
    }


def finite(value: float) -> float | None:
    """Return a number that JSON can hold, or None."""
    return float(value) if math.isfinite(value) else None
