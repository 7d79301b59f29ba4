"""Write the tables of the page from its rows: `python docs/study2/tables.py`, or with --check to compare only.

The script writes each part of README.md between `<!-- NAME -->` and `<!-- end -->` from results.csv and copying.csv,
and from prediction.json and score.json once they exist. Losses are nats per token on the validation text, after the
last step: means over the seeds that copy or, in brackets, over all seeds if none copies.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas
from forecast import HERE, LAWS, LEAST_GAIN, RUNS, summary
from page import renew

from routelaws.accelerated import results
from routelaws.accelerated.results.blocks import Table, markdown
from routelaws.accelerated.tables.schema import DENSE
from routelaws.accelerated.tables.units import size_label

SIZES, BUDGETS = (sorted(set(values)) for values in zip(*RUNS, strict=True))
ROUTERS, COUNTS = ("Hash", "S-Base", "Top-K"), (4, 16, 64)
MODELS = [(DENSE, 1), *((router, E) for router in ROUTERS for E in COUNTS)]
HEADS = [f"{router}, E = {E}" if E > 1 else "dense" for router, E in MODELS]


def losses_of(folder: Path):
    """Return the losses of all runs and of those that copy, as frames: (N, tokens) by (router, E)."""
    gain = pandas.read_csv(folder / "copying.csv").set_index("hyper_id")["copy_gain"]
    runs = results.read(folder / "results.csv").last
    chosen = (runs, runs[runs["hyper_id"].map(gain) >= LEAST_GAIN])
    keys = ["dense_parameter_count", "tokens"], ["router_type", "num_experts"]
    frames = [each.pivot_table("loss_validation", *keys).reindex(columns=MODELS) for each in chosen]
    return frames[0], frames[1].reindex(frames[0].index)


def losses(every, copying) -> str:
    """Return the loss of each size, number of tokens and model."""
    rows = []
    for N, tokens in every.index:
        pairs = zip(every.loc[N, tokens], copying.loc[N, tokens], strict=True)
        cells = (
            "" if np.isnan(one) else f"({one:.3f})" if np.isnan(copied) else f"{copied:.3f}" for one, copied in pairs
        )
        rows.append([size_label(N), f"{tokens / 1e6:.1f}M", *cells])
    return markdown([Table(["N", "tokens", *HEADS], rows)])


def gains(copying) -> str:
    """Return by how many percent each routed loss differs from the dense loss, for similar numbers of tokens per N.

    Budgets grow about as fast as sizes. So the shortest budget of a size, the next budget of the next size, and so on,
    have about the same number of tokens per parameter.
    """
    percents = 100 * (copying.div(copying[DENSE, 1], axis=0) - 1)
    rows = []
    for first in range(len(SIZES) - 1):
        for N, tokens in zip(SIZES[first:], BUDGETS, strict=False):
            if (N, tokens) in percents.index:
                cells = ("" if np.isnan(each) else f"{each:.1f}" for each in percents.loc[N, tokens].iloc[1:])
                rows.append([f"{tokens / N:.0f}", size_label(N), f"{tokens / 1e6:.1f}M", *cells])
    return markdown([Table(["tokens per N", "N", "tokens", *HEADS[1:]], rows)])


def prediction(folder: Path) -> str:
    """Return the registered losses of the joint law, their intervals and, if there is a score, the measured losses."""
    if not (folder / "prediction.json").exists():
        return markdown(["No prediction is registered yet."])
    file = folder / ("score.json" if (folder / "score.json").exists() else "prediction.json")
    points = [point for point in json.loads(file.read_text())["points"] if point["law"] == "joint"]
    rows = []
    for point in points:
        low, high = point["run"]
        measured = ", ".join(f"{loss:.3f}" for loss in point.get("measured", ()))
        errors = ", ".join(f"{error:+.1f} %" for error in point.get("percent", ()))
        name, tokens, E = point["router"], f"{point['D'] / 1e6:.1f}M", str(point["E"])
        rows.append([name, E, tokens, f"{point['loss']:.3f}", f"{low:.3f} to {high:.3f}", measured, errors])
    return markdown([Table(["router", "E", "tokens", "predicted", "95 % of runs", "measured", "error"], rows)])


def score(points: list[dict]) -> str:
    """Return the errors of both laws: of all models, and of the dense and routed models of each router's law."""
    chosen = [("all", points), ("all but routed Hash", [p for p in points if p["router"] != "Hash" or p["E"] == 1])]
    chosen += [("dense", [p for p in points if p["E"] == 1])]
    chosen += [(f"routed {name}", [p for p in points if p["router"] == name and p["E"] > 1]) for name in ROUTERS]
    rows = []
    for name, some in chosen:
        cells = []
        for law in LAWS:
            errors = summary([point for point in some if point["law"] == law])
            cells += [
                str(errors["runs"]),
                f"{errors['mean_percent']:.2f} %",
                f"{errors['rmsle']:.4f}",
                f"{errors['inside']:.0%}",
            ]
        rows.append([name, *cells])
    heads = ["runs", "mean error", "RMSLE", "within 95 %"]
    return markdown([Table(["models", *heads, *(f"floor: {head}" for head in heads)], rows)])


def copying_errors(entries: list[dict]) -> str:
    """Return the errors of laws fitted to all smaller runs, without and with the copy gain (`forecast.explained`)."""
    rows = []
    for entry in entries:
        errors = {(point["E"], point["D"]): point["percent"] for point in entry["points"]}
        fit = [entry["router"], f"{entry['weight']:.2f}", "{:.4f}, {:.4f}".format(*entry["rmsle"])]
        for E in sorted({E for E, _ in errors}):
            cells = ("{:+.1f}, {:+.1f}".format(*errors[E, D]) if (E, D) in errors else "" for D in BUDGETS)
            rows.append([*fit, f"{E:.0f}", *cells])
    return markdown([Table(["router", "weight", "RMSLE", "E", *(f"{D / 1e6:.1f}M" for D in BUDGETS)], rows)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=HERE, help="folder of the page and its tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs from the tables")
    flags = parser.parse_args(arguments)
    every, copying = losses_of(flags.folder)
    parts = {"losses": lambda: losses(every, copying), "gains": lambda: gains(copying)}
    parts["prediction"] = lambda: prediction(flags.folder)
    if (flags.folder / "score.json").exists():
        scored = json.loads((flags.folder / "score.json").read_text())
        parts |= {"score": lambda: score(scored["points"]), "copying": lambda: copying_errors(scored["copying"])}
    else:
        parts |= dict.fromkeys(("score", "copying"), lambda: markdown(["The largest size is not scored yet."]))
    remedy = "its tables; run python docs/study2/tables.py"
    return int(renew(flags.folder / "README.md", parts, flags.check, remedy))


if __name__ == "__main__":
    sys.exit(main())
