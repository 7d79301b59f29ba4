"""Do the constants hold? The same law on other rows, by another criterion, and with other intervals.

The profile interval assumes independent residuals. If the law is slightly wrong at a size, all runs of this size share
a residual. Intervals from whole sizes, left out or resampled, include this error. With few sizes these methods are
rough. Some resamples give no value. The result has their number.
"""

from collections.abc import Callable

import numpy as np
import pandas

from routelaws.reference.laws.routed import cutoff

from ...laws.resampling import bootstrap, bootstrap_weights, group_bootstrap_weights, jackknife
from ...laws.uncertainty import Quantity
from ...results.blocks import Block, constant, counts_span, figure, rough_span
from ...results.fit import Fit
from ...results.rows import BOUNDED
from ...wording import by_reason
from ..finding import CONSTANTS, Finding, Report, main_gains, names, router_name, table
from ..runs import LEVEL

ONE_SEED = "routing_frequency == 0.5 and k == 1 and (seed == 42 or (router_type == 'Dense' and seed == 1))"
"""A condition: the paper's rows, and a run of the one dense size that has no run with the paper's seed."""

CHOICES = {
    "own": "as above",
    "one dense seed more": "with one more dense run: 130M, seed 1",
    "all seeds": "every seed",
    "Huber": "as above, by Huber's sum",
}
SEED = 0
RESAMPLES = 1000
METHODS = ("profile", "jackknife", "runs", "sizes")


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Return the law of each router by other rows and by Huber's criterion, and intervals by other methods.

    Returns:
        "refits": router, choice (of `CHOICES`; first the law itself), rows, status, rmsle, objective and a column for
        each constant; no rows of a router without another fit. "other_intervals": router, name, N, E, value, low and
        high of each method (`profile_low` and so on; NaN for a missing end), and the resamples without a value. The
        quantities are c, E_start, E_max, N_cutoff, and slope and gain at the end sizes. "resamples": router, seed,
        resamples, and how many do not determine the law, or have no finite E_max (some are in its linear limit).
    """
    intervals, resamples = [], []
    for (rows, fit), law in zip(source.fits(), results.laws, strict=True):
        if law.missing is None and len(law.sizes) > 1:
            of_router, counts = _resampled(fit, _quantities(law, results))
            intervals += [(rows.router, *row) for row in of_router]
            resamples.append((rows.router, SEED, RESAMPLES, *counts))
    ends = [f"{method}_{end}" for method in METHODS for end in ("low", "high")]
    names = ["router", "name", "N", "E", "value", *ends, "undefined_runs", "undefined_sizes"]
    counts = [f"{what}_{how}" for what in ("undetermined", "unbounded") for how in ("runs", "sizes")]
    return {
        "refits": _refits(source),
        "other_intervals": pandas.DataFrame(intervals, columns=names),
        "resamples": pandas.DataFrame(resamples, columns=["router", "seed", "resamples", *counts]),
    }


def _refits(source) -> pandas.DataFrame:
    choices = {"own": None} | ({"one dense seed more": ONE_SEED} if source.released else {}) | {"all seeds": "all"}
    fits = [(choice, *each) for choice, where in choices.items() for each in source.fits(rows=where)]
    fits = [(choice, rows, fit) for choice, rows, fit in fits if isinstance(fit, Fit)]
    if source.huber is not None:
        own = [(rows, fit) for choice, rows, fit in fits if choice == "own"]
        fits += [("Huber", rows, Fit(fit.rows, BOUNDED, huber=source.huber)) for rows, fit in own]
    rows = [
        (rows.router, choice, len(rows.frame), fit.status, fit.rmsle, fit.best.objective, *fit.best.coefficients)
        + (cutoff(fit.best.coefficients), (choice == "Huber", *rows.frame["hyper_id"]))
        for choice, rows, fit in fits
    ]
    frame = pandas.DataFrame(
        rows, columns=["router", "choice", "rows", "status", "rmsle", "objective", *CONSTANTS, "fit"]
    )
    frame = frame.drop_duplicates(["router", "fit"]).drop(columns="fit")  # other rows may be the same runs
    return frame[frame.duplicated("router", keep=False)].sort_values("router", kind="stable")


def _quantities(law, results: dict) -> list[tuple[Quantity, list[float]]]:
    """Return the quantities, each with its value and the ends of its profile interval."""
    ends, sizes, top = ["value", "low", "high"], (law.sizes[0], law.sizes[-1]), law.experts[-1]
    slopes, gains = results.slopes, main_gains(results)
    slopes, gains = (rows[rows["router"] == law.router].set_index("N") for rows in (slopes, gains))
    by_law = ["effective", "effective_low", "effective_high"]
    return [
        *((Quantity(name), [*law.constants[name][:3]]) for name in CONSTANTS[2:] if name != "d"),
        *((Quantity("slope", N=float(n)), slopes.loc[n, by_law].tolist()) for n in sizes),
        *((Quantity("gain", N=float(n), E=float(top)), gains.loc[n, ends].tolist()) for n in sizes),
    ]


def _resampled(fit: Fit, wanted: list[tuple[Quantity, list[float]]]) -> tuple[list[tuple], list[int]]:
    (size, experts), loss, quantities = fit.rows.columns, fit.rows.measured, [quantity for quantity, _ in wanted]
    random, sizes = np.random.default_rng(SEED), np.unique(size).size
    by_run = bootstrap_weights(random.random((RESAMPLES, size.size)))
    by_size = group_bootstrap_weights(random.random((RESAMPLES, sizes)), size)
    draws = [bootstrap(size, experts, loss, weights, quantities, LEVEL) for weights in (by_run, by_size)]
    means = [jackknife(size, experts, loss, size, quantities, LEVEL), *draws]
    rows = [
        (quantity.name, quantity.N, quantity.E, *profile)
        + tuple(end for each in means for end in (each.intervals[i].low, each.intervals[i].high))
        + tuple(each.undefined[i] for each in draws)
        for i, (quantity, profile) in enumerate(wanted)
    ]
    return rows, [each.undetermined for each in draws] + [unbounded(each.statuses) for each in draws]


def unbounded(statuses: dict[str, int]) -> int:
    """Return the number of resamples without a finite E_max. Some are in the law's linear limit."""
    return sum(count for status, count in statuses.items() if "unbounded" in status or "linear" in status)


def section(report: Report) -> list[Block]:
    def ends(method: str) -> Callable:
        return lambda row: rough_span([getattr(row, f"{method}_{end}") for end in ("low", "high")], row.name)

    methods = {
        "router": lambda row: router_name(row.router),
        "quantity": lambda row: row.name if row.N != row.N else f"{row.name} at N = {report.size(row.N)}",
        "profile likelihood (independent residuals)": ends("profile"),
        "jackknife: one size left out at a time": ends("jackknife"),
        "bootstrap of runs": ends("runs"),
        "bootstrap of sizes": ends("sizes"),
    }
    return [
        *_refits_table(report),
        "Profile likelihood assumes independent residuals. If the law is slightly wrong at some sizes, the residuals "
        "of one size are correlated. The jackknife's Student interval includes the effect of this correlation.",
        table(report.results["other_intervals"], methods, keys=2),
        _of_the_draws(report.results["resamples"]),
    ]


def extrapolated(report: Report) -> str:
    """Return a sentence on N_cutoff, with those intervals of the jackknife that have two finite ends."""
    cutoffs = report.results["other_intervals"].query("name == 'N_cutoff'")
    cutoffs = cutoffs[np.isfinite(cutoffs[["jackknife_low", "jackknife_high"]].astype(float)).all(axis=1)]
    ends = {row.router: counts_span((row.jackknife_low, row.jackknife_high)) for row in cutoffs.itertuples()}
    knife = ", ".join(f"{ends} for {names(routers)}" for ends, routers in by_reason(ends).items())
    allowed = "; the jackknife also includes small errors of the law at each size; by this, N_cutoff is"
    return f" This is an extrapolation{f'{allowed} {knife}' if knife else ''}."


def _refits_table(report: Report) -> list[Block]:
    refits = report.results["refits"]
    columns = {
        "router": lambda row: router_name(row.router),
        "fit": lambda row: CHOICES[row.choice],
        "runs": lambda row: str(row.rows),
        **{name: lambda row, name=name: constant(getattr(row, name), name) for name in CONSTANTS},
        "RMSLE": lambda row: figure(row.rmsle, ".5f"),
    }
    words = "The same law, fitted to other rows or by another criterion."
    if report.results["huber"] is not None:
        words += f" Huber's sum (delta = {report.results['huber']:.3g} in log10 L) gives outliers less weight."
    return [words, table(refits, columns, keys=2)] if len(refits) else []


def _of_the_draws(resamples: pandas.DataFrame) -> str:
    first = resamples.iloc[0]
    sentence = f"Each bootstrap has {first['resamples']:,} resamples (seed {first['seed']})."
    lost = [
        f"{router_name(row.router)} {row.undetermined_runs} resamples of runs and {row.undetermined_sizes} of sizes"
        for row in resamples.query("undetermined_runs + undetermined_sizes > 0").itertuples()
    ]
    if lost:
        sentence += f" Resamples that do not determine the law are excluded: {'; '.join(lost)}."
    endless = resamples.query("unbounded_runs > 0")
    endless = [f"{row.unbounded_runs} for {router_name(row.router)}" for row in endless.itertuples()]
    return f"{sentence} E_max is infinite in some resamples of runs: {'; '.join(endless)}." if endless else sentence


FINDING = Finding("other_intervals", "Other fits and intervals", find, section)
