"""Predict the losses of the study's largest models before they are trained, and score the prediction afterwards.

    python docs/study/predict.py register docs/study/results.csv    writes prediction.json next to this file, once
    python docs/study/predict.py score docs/study/results.csv       writes score.json, and prints the errors

Each law is fitted to all smaller sizes, and to the smaller sizes from 164K, at which models copy (see copying.py). The
bounded law of all sizes is the prediction. The bilinear law, the separable law and the power law of the dense runs are
alternatives.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.files import write_atomically, write_once
from routelaws.accelerated.laws.catalogue import LAWS as KNOWN
from routelaws.accelerated.results.encoding import dumps
from routelaws.accelerated.results.fit import LEVEL, Fit
from routelaws.accelerated.results.rows import rows_of_runs
from routelaws.accelerated.tables.schema import DENSE
from routelaws.accelerated.tables.selection import select_rows
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.training.sweeps.grid import read_grid

HERE = Path(__file__).parent

LAWS = ("routed-bounded", "bilinear", "separable", "dense")
"""The law of the prediction, followed by the alternatives."""

COPYING = 1e5
"""Models with more parameters N than this number copy."""

SMALLEST = {"": 0, " from 164K": COPYING}
"""The smallest N of each choice of sizes, by the words that follow the name of the law."""

FITS = {law + words: (law, smallest) for words, smallest in SMALLEST.items() for law in LAWS}
"""The law and the smallest N of each fit."""

LOSS = "loss_validation"


def law_runs(grid) -> dict[int, tuple[str, float, float]]:
    """Return {hyper_id: (router, N, E)} of the runs with the default learning rate, k = 1 and R = 1/2."""
    runs = {}
    for i, run in enumerate(grid.runs):
        model = run.model
        if run.learning_rate is None and (model.k, model.routing_frequency) == (1, 0.5):
            runs[i] = model.record.router_type, float(run.accounting().dense_parameters), float(model.experts)
    return runs


def predictions(frame, runs: dict[int, tuple[str, float, float]]) -> list[dict]:
    """Return the prediction of each fit for each (router, E) of the largest size, from the smaller sizes.

    Returns:
        [{"router", "N", "E", "runs": hyper_ids, "laws": {fit: {"loss", "run_interval", "rmsle", "determined"}}}], with
        the names of `FITS`. A law without a fit has {"reason"} instead. The interval is for the loss of one new run.
    """
    largest = max(size for _, size, _ in runs.values())
    smaller = frame[frame["hyper_id"].isin([i for i, (_, size, _) in runs.items() if size < largest])]
    points: dict[tuple, list[int]] = {}
    for i, point in runs.items():
        if point[1] == largest:
            points.setdefault(point, []).append(i)
    size_of = smaller["hyper_id"].map({i: size for i, (_, size, _) in runs.items()})
    fits = {
        (router, name): _fit(smaller[size_of > smallest], router, law)
        for router in {router for router, _, _ in points}
        for name, (law, smallest) in FITS.items()
    }
    return [
        {"router": router, "N": size, "E": experts, "runs": ids}
        | {"laws": {name: _said(fits[router, name], size, experts) for name in FITS}}
        for (router, size, experts), ids in points.items()
    ]


def _fit(frame, router: str, law: str):
    """Return the fit of a law to the rows of a router, or the reason why there is no fit.

    The law "dense" is fitted to dense rows only.
    """
    if router == DENSE and law != "dense":
        return "dense runs have one law"
    try:
        chosen = select_rows(frame, None, LOSS, axes="dense" if law == "dense" else "experts")
        wanted = DENSE if law == "dense" else router
        rows = next((rows for rows in chosen if rows.router == wanted), None)
        return "no run of this router is smaller" if rows is None else Fit(rows_of_runs(rows, KNOWN[law], LOSS), law)
    except ValueError as error:
        return str(error)


def _said(fit, size: float, experts: float) -> dict:
    """Return the prediction of a fit for a new run at (size, experts)."""
    if isinstance(fit, str):
        return {"reason": fit}
    known = fit.best, fit.rows.columns, fit.rows.measured
    intervals = fit.law.predict_interval(*known, (size, experts)[: len(fit.law.columns)], LEVEL)
    return {
        "loss": intervals.value,
        "run_interval": intervals.run,
        "rmsle": fit.rmsle,
        "determined": bool(fit.determined),
    }


def register(table: Path) -> dict:
    """Return the prediction of the largest size from the rows of the smaller sizes.

    Raises:
        InputError: the table has rows of a run of the largest size.
    """
    grid, frame = read_grid("study"), read_table(table)
    runs = law_runs(grid)
    largest = max(size for _, size, _ in runs.values())
    sizes = np.array([run.accounting().dense_parameters for run in grid.runs], float)
    trained = [int(i) for i in frame["hyper_id"].unique() if sizes[i] == largest]
    if trained:
        raise InputError(f"{table}: has rows of run {trained[0]}, of the largest size: too late to predict it")
    fitted = sorted(int(i) for i in frame["hyper_id"].unique() if i in runs)
    return {"fitted_to": fitted, "level": LEVEL, "points": predictions(frame, runs)}


def score(table: Path, prediction: dict) -> dict:
    """Return the prediction with the measured losses, and the error of each law.

    Returns:
        {"written", "points", "laws"}. A point also has "measured", and each of its laws with a prediction has "percent"
        and "inside". Points without a finished run are excluded. "laws" is {fit: {"points": number of points,
        "mean_percent": mean absolute error, "inside": share of the runs inside their interval}}.
    """
    frame = read_table(table)
    last = frame.sort_values("step").groupby("hyper_id").tail(1).set_index("hyper_id")[LOSS]
    points = [_scored(point, last) for point in prediction["points"] if any(i in last.index for i in point["runs"])]
    laws = {}
    for name in FITS:
        known = [point["laws"][name] for point in points if "percent" in point["laws"][name]]
        inside = [hit for entry in known for hit in entry["inside"]]
        laws[name] = {
            "points": len(known),
            "mean_percent": float(np.mean([abs(entry["percent"]) for entry in known])) if known else None,
            "inside": float(np.mean(inside)) if inside else None,
        }
    return {"written": prediction["written"], "points": points, "laws": laws}


def _scored(point: dict, last) -> dict:
    measured = [float(last[i]) for i in point["runs"] if i in last.index]
    laws = {}
    for law, prediction in point["laws"].items():
        if "loss" in prediction:
            low, high = map(float, prediction["run_interval"])
            prediction = prediction | {"percent": 100 * (float(np.mean(measured)) / prediction["loss"] - 1)}
            prediction["inside"] = [low <= loss <= high for loss in measured]
        laws[law] = prediction
    return point | {"measured": measured, "laws": laws}


def lines(laws: dict) -> list[str]:
    return [
        f"{law:25} {entry['points']:>3} points, off by {entry['mean_percent']:.2f} % in the mean, "
        f"{entry['inside']:.0%} of the runs inside their interval"
        for law, entry in laws.items()
        if entry["points"]
    ]


def command(folder: Path, register: Callable, score: Callable, lines: Callable, arguments: list[str] | None) -> int:
    """Register a prediction once, or score it: the command of both studies.

    Args:
        folder: the usual folder of prediction.json and score.json.
        register: returns the prediction from the path of a table.
        score: returns the score from the path of a table and the prediction.
        lines: returns the printed lines from the laws of the score.
    """
    parser = argparse.ArgumentParser(description="Predict the losses of a study's largest models, or score them.")
    parser.add_argument("what", choices=("register", "score"), help="predict the losses, or compare them with a table")
    parser.add_argument("table", type=Path, help="results table of the study, such as results.csv")
    parser.add_argument("--out", type=Path, default=folder, help="folder of prediction.json and score.json")
    flags = parser.parse_args(arguments)
    path = flags.out / "prediction.json"
    try:
        if flags.what == "register":
            if path.exists():
                raise InputError(f"{path}: is written already, and a prediction is written once")
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            head = {"written": now, "table_sha256": sha256(flags.table.read_bytes()).hexdigest()}
            write_once(path, dumps(head | register(flags.table), indent=1) + "\n")
            print(path)
            return 0
        scored = score(flags.table, json.loads(path.read_text()))
    except (InputError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    write_atomically(flags.out / "score.json", dumps(scored, indent=1) + "\n")
    print(*lines(scored["laws"]), sep="\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    return command(HERE, register, score, lines, arguments)


if __name__ == "__main__":
    sys.exit(main())
