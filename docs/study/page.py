"""Write the tables of the study's pages from its rows: `python docs/study/page.py`, or with --check to compare only.

The script writes each part of README.md and details.md between `<!-- NAME -->` and `<!-- end -->`. It reads these
files of the same folder: results.csv, budgets.csv, demo.csv, english.csv, copying.csv (see copying.py), and
prediction.json or score.json. Losses are nats per token on the validation text, after the last step.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas
from predict import COPYING, FITS, HERE, LAWS, LOSS, SMALLEST, law_runs
from scipy import stats

from routelaws.accelerated import results
from routelaws.accelerated.results.blocks import Table, markdown
from routelaws.accelerated.results.floor import form_of
from routelaws.accelerated.results.misfit import how_far_off
from routelaws.accelerated.tables.schema import DENSE
from routelaws.accelerated.tables.units import size_label
from routelaws.accelerated.training.sweeps.grid import read_grid

SIZE = "dense_parameter_count"
MODEL = [SIZE, "router_type", "num_experts"]
ROUTERS = ("Hash", "S-Base", "Top-K", "RL-R")
SEEDED = 16
"""The E for which routed models have three seeds."""

GRID = read_grid("study")

PART = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_rule(frame):
    """Return the rows with the default learning rate of the study, k = 1 and R = 1/2."""
    return frame[frame["hyper_id"].isin(law_runs(GRID))]


def progress(frame) -> str:
    """Return the number of finished runs of each size, and their device."""
    rows, sizes = [], [run.accounting().dense_parameters for run in GRID.runs]
    for size in sorted(set(sizes)):
        finished = frame[frame[SIZE] == size]
        devices = finished["device"].value_counts()
        ran_on = ", ".join(f"{device} ({count})" for device, count in devices.items()) or "-"
        rows.append([size_label(size), f"{len(finished)} of {sizes.count(size)}", ran_on])
    return markdown([Table(["N", "finished runs", "on"], rows)])


def losses(frame) -> str:
    """Return the loss of seed 42 for each size, router and E."""
    chosen = with_rule(frame)
    chosen = chosen[chosen["seed"] == 42]
    counts = sorted(chosen["num_experts"].unique())
    rows = []
    for (size, router), runs in chosen.groupby([SIZE, "router_type"]):
        by_count = dict(zip(runs["num_experts"], runs[LOSS], strict=True))
        rows.append([size_label(size), router, *(f"{by_count[e]:.3f}" if e in by_count else "" for e in counts)])
    return markdown([Table(["N", "router", *(f"E = {e:.0f}" for e in counts)], rows)])


def order(frame) -> str:
    """Return, for each size, the loss of each router at E = 16 minus the dense loss, with a 95 % interval over seeds.

    The standard deviation of one run is pooled over the dense and the routed runs of a size. With too few seeds, there
    is no interval. The slope is d log10 L / d log10 N of the dense loss from the size before.
    """
    rows, chosen = [], with_rule(frame)
    slope = slopes(chosen[chosen["router_type"] == DENSE].groupby(SIZE)[LOSS].mean())
    for size, runs in chosen.groupby(SIZE):
        dense = runs[runs["router_type"] == DENSE][LOSS].to_numpy()
        seeded = {
            r: runs[(runs["router_type"] == r) & (runs["num_experts"] == SEEDED)][LOSS].to_numpy() for r in ROUTERS
        }
        if len(dense) and any(len(each) for each in seeded.values()):
            deviation, freedom = pooled_deviation([dense, *seeded.values()])
            cells = [_difference(each, dense, deviation, freedom) for each in seeded.values()]
            change = "" if np.isnan(slope[size]) else f"{slope[size]:.3f}"
            rows.append([size_label(size), f"{dense.mean():.3f}", change, *cells])
    table = Table(["N", "dense", "slope", *ROUTERS], rows)
    return markdown([table if rows else "No size has its dense runs and routed ones yet."])


def slopes(losses):
    """Return d log10 L / d log10 N from the size before, for losses with N as index; NaN at the first size."""
    return np.log10(losses).diff().div(np.diff(np.log10(losses.index), prepend=np.nan), axis=0)


def pooled_deviation(groups: list[np.ndarray]) -> tuple[float, int]:
    """Return the standard deviation of a run within groups of seeds, and its degrees of freedom; (nan, 0) if there are
    none.
    """
    groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (np.nan, 0)


def _difference(routed: np.ndarray, dense: np.ndarray, deviation: float, freedom: int) -> str:
    """Return the difference between two mean losses as text, with its interval."""
    if not len(routed):
        return ""
    difference = routed.mean() - dense.mean()
    if not freedom:
        return f"{difference:+.3f}"
    half = stats.t.ppf(0.975, freedom) * deviation * np.sqrt(1 / len(routed) + 1 / len(dense))
    return f"{difference:+.3f} ± {half:.3f}"


def copying(frame) -> str:
    """Return the loss and, in brackets, the copy gain of each seed, for dense models and those with SEEDED experts."""
    frame = with_rule(frame)
    seeds = sorted(frame["seed"].unique())
    rows = []
    for (size, router, e), runs in frame[frame["num_experts"].isin((1, SEEDED))].groupby(MODEL):
        cell = {r.seed: f"{r.loss_validation:.3f} ({r.copy_gain:.2f})" for r in runs.itertuples()}
        rows.append([size_label(size), router, f"{e:.0f}", *(cell.get(seed, "") for seed in seeds)])
    return markdown([Table(["N", "router", "E", *(f"seed {seed}" for seed in seeds)], rows)])


def rates(frame) -> str:
    """Return the loss of seed 42 at 0.5, 1 and 2 times the default learning rate."""
    runs = frame[(frame["seed"] == 42) & (frame["k"] == 1) & (frame["routing_frequency"] == 0.5)]
    rows = []
    for (size, router, e), cell in runs.groupby(MODEL):
        rule = with_rule(cell)["learning_rate"]
        if len(cell) > 1 and len(rule) == 1:
            loss = {
                round(float(rate / rule.iloc[0]), 2): f"{each:.3f}"
                for rate, each in zip(cell["learning_rate"], cell[LOSS], strict=True)
            }
            rows.append([size_label(size), router, f"{e:.0f}", *(loss.get(ratio, "") for ratio in (0.5, 1.0, 2.0))])
    table = Table(["N", "router", "E", "half the rate", "the rule", "twice"], rows)
    return markdown([table if rows else "No run at another rate is finished."])


def budgets(long, short) -> str:
    """Return the dense loss for each size and number of training tokens.

    The number in brackets is d log10 L / d log10 N from the size before.

    Args:
        long: last rows of the study.
        short: last rows of shorter dense runs.
    """
    long = with_rule(long)
    long = long[(long["router_type"] == DENSE) & (long["seed"] == 42)]
    losses = pandas.concat([short, long]).pivot_table(LOSS, SIZE, "tokens")
    slope = slopes(losses)
    rows = [
        [size_label(size), *(_loss_and_slope(*cell) for cell in zip(losses.loc[size], slope.loc[size], strict=True))]
        for size in losses.index
    ]
    return markdown([Table(["N", *(f"{tokens / 1e6:.1f}M tokens" for tokens in losses.columns)], rows)])


def _loss_and_slope(loss: float, slope: float) -> str:
    return f"{loss:.3f}" if np.isnan(slope) else f"{loss:.3f} ({slope:.3f})"


def utilisation(runs) -> str:
    """Return S-BASE runs with other k and R: their losses, and the predictions of the law in (F, B) of the other runs.

    F is the FLOPs of a token, and B the parameters per FLOP.
    """
    fits = [_utilisation_fit(runs, ids) for ids in ([*law_runs(GRID)], [*law_runs(GRID), *OTHER_K_R])]
    if None in fits or not (other := _other_rows(*fits)):
        return markdown(["No run with another k or R is finished."])
    table = Table(
        ["E", "k", "R", "loss", "predicted without these runs", "error"], [_loss_and_error(*row) for row in other]
    )
    errors = np.log10([predicted / loss for *_, loss, predicted in other])
    words = (
        f"Root mean square error in log10 (RMSLE): {np.sqrt(np.mean(errors**2)):.4f} for these predictions, "
        f"{fits[1].rmsle:.4f} for the fit to all runs, and {fits[1].held_out.rmsle:.4f} with one run left out at a "
        "time."
    )
    return markdown([table, words])


OTHER_K_R = tuple(i for i, run in enumerate(GRID.runs) if (run.model.k, run.model.routing_frequency) != (1, 0.5))
"""Runs whose k is not 1, or whose R is not 1/2. Dense runs have k = 1 and R = 1/2."""


def _utilisation_fit(runs, ids: list[int]):
    """Return the (F, B) law of S-BASE and dense runs among hyper_ids, for sizes that copy; None without a fit."""
    try:
        chosen = f"hyper_id in {tuple(ids)} and {SIZE} > {COPYING}"
        return runs.where(chosen).fit("routed-utilisation", router="S-Base")[0]
    except ValueError:
        return None


def _other_rows(rule, fit) -> list[tuple]:
    """Return (E, k, R, loss, predicted loss) of the runs of `fit` with another k or R, predicted by `rule`."""
    rows = []
    for (_, run), teraflops, b in zip(fit.rows.runs.frame.iterrows(), *fit.rows.columns, strict=True):
        if run["hyper_id"] in OTHER_K_R:
            predicted = rule.predict(teraflops=float(teraflops), utilisation=float(b)).value
            rows.append((run["num_experts"], run["k"], run["routing_frequency"], run[LOSS], predicted))
    return sorted(rows)


def _loss_and_error(e, k, frequency, loss, predicted) -> list[str]:
    error = 100 * (loss / predicted - 1)
    return [f"{e:.0f}", f"{k:.0f}", f"{frequency:g}", f"{loss:.3f}", f"{predicted:.3f}", f"{error:+.1f} %"]


def texts(folder: Path) -> str:
    """Return the loss of each router minus the dense loss, as means over the sizes of the demo, on two texts."""
    rows = []
    for text, table in TEXTS.items():
        runs = results.read(folder / table).last
        runs = runs[runs["seed"] == 42]
        dense = runs[runs["router_type"] == DENSE].set_index(SIZE)[LOSS]
        gains = runs.assign(gain=runs[LOSS] - runs[SIZE].map(dense)).pivot_table("gain", "router_type", "num_experts")
        rows += [[text, r, *(f"{gains.loc[r, e]:+.3f}" for e in DEMO_EXPERTS)] for r in gains.index if r != DENSE]
    return markdown([Table(["text", "router", *(f"E = {e}" for e in DEMO_EXPERTS)], rows)])


TEXTS = {"Python": "demo.csv", "English": "english.csv"}
"""The results of the demo's grid on each text."""

DEMO_EXPERTS = (4, 16, 32)


def laws(runs) -> str:
    """Return the bounded law of each router without and with a floor, fitted to all sizes and to the sizes that copy.

    A row has the error of the law, its error on held-out sizes, how far a fit to the smaller sizes misses the largest,
    and the floor.
    """
    rows, reasons = [], {}
    for words, smallest in SMALLEST.items():
        chosen = f"hyper_id in {tuple(law_runs(GRID))} and {SIZE} > {smallest}"
        try:
            fits = [fit for law in ("routed-bounded", "routed-bounded-floor") for fit in runs.where(chosen).fit(law)]
        except ValueError as error:
            reasons[words or "all sizes"] = str(error)
            continue
        rows += [_law_row(fit, words.strip() or "all") for fit in sorted(fits, key=lambda fit: fit.name)]
    table = Table(["router", "sizes", "law", "runs", "RMSLE", "size left out", "largest size", "L0"], rows)
    return markdown([*([table] if rows else []), *(f"{fit}: {reason}." for fit, reason in reasons.items())])


def _law_row(fit, sizes: str) -> list[str]:
    form = form_of(fit)
    held_out = f"{form.size_out:.4f}" if np.isfinite(form.size_out) else ""
    miss = how_far_off(form.largest.miss) if form.largest else ""
    floor = f"{form.L0.value:.2f}" if form.L0 else ""
    return [fit.name, sizes, form.law, str(len(fit.rows.measured)), f"{form.rmsle:.4f}", held_out, miss, floor]


def prediction(folder: Path) -> str:
    """Return the registered prediction, with the measured losses and the errors if there is a score."""
    points = json.loads((folder / "prediction.json").read_text())["points"]
    if not (folder / "score.json").exists():
        return markdown(["The largest size is not trained yet. Predicted losses:", _losses_of(points)])
    score = json.loads((folder / "score.json").read_text())
    rows = [
        [law, str(entry["points"]), f"{entry['mean_percent']:.2f} %", f"{entry['inside']:.0%}"]
        for law, entry in score["laws"].items()
        if entry["points"]
    ]
    errors = Table(["law", "points", "mean of measured / predicted - 1", "runs in their 95 % interval"], rows)
    return markdown([_losses_of(points, score["points"]), errors])


BOUNDED = [name for name, (law, _) in FITS.items() if law == LAWS[0]]
"""The fits of the bounded law, to all sizes and to the sizes that copy."""


def _losses_of(points: list[dict], scored: Sequence[dict] = ()) -> Table:
    """Return the losses of each router and E: measured, and predicted by the bounded laws."""
    counts = sorted({point["E"] for point in points if point["E"] > 1})
    losses = {(p["router"], p["E"], law): said.get("loss") for p in points for law, said in p["laws"].items()}
    losses |= {(p["router"], p["E"], MEASURED): float(np.mean(p["measured"])) for p in scored}
    rows = []
    for router in dict.fromkeys(point["router"] for point in points if point["E"] > 1):
        for name in (MEASURED, *BOUNDED):
            cells = [losses.get((router, e, name)) for e in counts]
            rows += [[router, name, *("" if loss is None else f"{loss:.3f}" for loss in cells)]] if any(cells) else []
    return Table(["router", "loss", *(f"E = {e:.0f}" for e in counts)], rows)


MEASURED = "measured"


def parts(folder: Path) -> dict[str, Callable[[], str]]:
    """Return {part of the page: function that writes it from the files of a folder}."""
    runs = results.read(folder / "results.csv")
    made = {each.__name__: lambda each=each: each(runs.last) for each in (progress, losses, order)}
    made["copying"] = lambda: copying(pandas.read_csv(folder / "copying.csv"))
    made["rates"] = lambda: rates(runs.last)
    made |= {"laws": lambda: laws(runs), "prediction": lambda: prediction(folder)}
    made["budgets"] = lambda: budgets(runs.last, results.read(folder / "budgets.csv").last)
    return made | {"utilisation": lambda: utilisation(runs), "texts": lambda: texts(folder)}


def renew(path: Path, made: dict[str, Callable[[], str]], check: bool, remedy: str) -> bool:
    """Write the page with the new text of its parts. With `check`, print the remedy instead, and return whether they
    differ.
    """
    page = path.read_text()
    new = PART.sub(lambda part: part[1] + made[part[2]]() + part[3], page)
    if check and new != page:
        print(f"{path}: differs from {remedy}", file=sys.stderr)
    elif new != page:
        path.write_text(new)
    return check and new != page


PAGES = ("README.md", "details.md")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=HERE, help="folder of the pages and results.csv (default: docs/study)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the table")
    flags = parser.parse_args(arguments)
    made, remedy = parts(flags.folder), "results.csv; run python docs/study/page.py"
    return int(any([renew(flags.folder / name, made, flags.check, remedy) for name in PAGES]))


if __name__ == "__main__":
    sys.exit(main())
