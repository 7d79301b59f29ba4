"""Predict the losses of the second study's largest models before they are trained, and score the prediction afterwards.

    python docs/study2/forecast.py register docs/study2/results.csv    writes prediction.json next to this file, once
    python docs/study2/forecast.py score docs/study2/results.csv       writes score.json, and prints the errors

Each router has two laws, fitted to all smaller sizes: the joint law of all budgets, which is the prediction, and the
bounded law with a floor of the runs with the longest budget. Runs that do not copy are left out; copying.csv, in the
folder of the table, has their copy gains. The score also says how much of the errors the copy gain explains.
"""

import collections
import csv
import sys
from pathlib import Path

import numpy as np

from routelaws.accelerated import results
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.schema import DENSE
from routelaws.accelerated.training.sweeps.grid import read_grid

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "study"))
from predict import command  # noqa: E402

GRID = read_grid(str(HERE / "study2.toml"))
BOTH_EMBEDDINGS = 2
RUNS = [(run.accounting().dense_parameters, run.steps * run.batch_size * run.sequence_length) for run in GRID.runs]
LARGEST, LONGEST = max(RUNS)
ACTIVE = LARGEST + BOTH_EMBEDDINGS * GRID.runs[0].model.vocab_size * max(run.model.d_model for run in GRID.runs)
LAWS = {"joint": None, "routed-bounded-floor": f"tokens == {LONGEST}"}
"""The law of the prediction, and the law of the longest budget, with the runs of each law."""

LEAST_GAIN = 0.5
"""Least copy gain of a run that copies, in nats per token (see docs/study/copying.py)."""

WEIGHTS = np.arange(0, 0.21, 0.02)
"""Weights of the copy gain that `explained` compares."""


def copy_gains(table: Path) -> dict[int, float]:
    """Return the copy gain of each run, by hyper_id, from copying.csv in the folder of the results table."""
    with table.with_name("copying.csv").open() as file:
        return {int(row["hyper_id"]): float(row["copy_gain"]) for row in csv.DictReader(file)}


def predictions(runs: results.Runs) -> list[dict]:
    """Return the predictions of each law for the largest size at each budget, router and E.

    Returns:
        [{"law", "router", "E", "D", "loss", "run": ends of the interval of one more run}].

    Raises:
        InputError: the runs of a router do not determine a law.
    """
    points = []
    for law, rows in LAWS.items():
        fits = runs.where(rows).fit(law)
        for router, reason in fits.not_fitted.items():
            raise InputError(f"{router}, {law}: {reason}")
        for D in sorted({D for _, D in RUNS} if rows is None else {LONGEST}):
            for E in sorted({run.model.experts for run in GRID.runs}):
                at = {"active_parameters": ACTIVE, "tokens": D} if rows is None else {"n": LARGEST}
                for prediction in fits.predict(experts=E, **at).predictions:
                    point = {"law": law, "router": prediction.fit.name, "E": E, "D": D, "loss": prediction.value}
                    points.append(point | {"run": [prediction.run.low, prediction.run.high]})
    return points


def register(table: Path) -> dict:
    """Return the prediction of the largest size from the runs of the smaller sizes.

    Raises:
        InputError: a smaller run is missing, or the table has a run of the largest size.
    """
    runs = results.read(table)
    trained = set(runs.last["hyper_id"])
    smaller = {i for i, (size, _) in enumerate(RUNS) if size < LARGEST}
    if trained != smaller:
        wrong, odd = ("is missing", smaller - trained) if smaller - trained else ("came too early", trained - smaller)
        raise InputError(f"{table}: run {min(odd)} {wrong}; needed: all runs of the smaller sizes, none of the largest")
    left_out = [i for i, gain in copy_gains(table).items() if gain < LEAST_GAIN]
    chosen = runs.where(f"hyper_id not in ({', '.join(map(str, [-1, *left_out]))})")
    return {"left_out": left_out, "N": LARGEST, "points": predictions(chosen)}


def score(table: Path, prediction: dict) -> dict:
    """Return the prediction with the measured losses, and the errors of each law.

    Returns:
        {"points": with "measured" (one loss for each seed), "percent" and "inside"; "laws": {law: {"runs",
        "mean_percent": mean absolute error, "rmsle", "inside": share of runs within their interval}}}.
    """
    last = results.read(table).last
    last = last[last["dense_parameter_count"] == prediction["N"]]
    points = []
    for point in prediction["points"]:
        same = last["router_type"] == (DENSE if point["E"] == 1 else point["router"])
        chosen = last[same & (last["num_experts"] == point["E"]) & (last["tokens"] == point["D"])]
        measured = chosen["loss_validation"].to_numpy()
        inside = ((point["run"][0] <= measured) & (measured <= point["run"][1])).tolist()
        percents = (100 * (measured / point["loss"] - 1)).tolist()
        points.append(point | {"measured": measured.tolist(), "percent": percents, "inside": inside})
    laws = {}
    for law in LAWS:
        scored = [point for point in points if point["law"] == law and point["measured"]]
        if scored:
            laws[law] = summary(scored)
    return {"written": prediction["written"], "points": points, "laws": laws, "copying": explained(table)}


def summary(points: list[dict]) -> dict[str, float]:
    """Return the errors of measured points: {"runs", "mean_percent", "rmsle", "inside"} (see `score`)."""
    percents, inside = (np.concatenate([point[name] for point in points]) for name in ("percent", "inside"))
    rmsle = float(np.sqrt(np.mean(np.log10(1 + percents / 100) ** 2)))
    mean = float(np.mean(np.abs(percents)))
    return {"runs": len(percents), "mean_percent": mean, "rmsle": rmsle, "inside": float(np.mean(inside))}


def explained(table: Path) -> list[dict]:
    """Return how much of the errors the copy gain explains: an experiment after the score, not a prediction.

    The joint law of each router is fitted to loss + weight * copy gain of all smaller runs, with the weight that suits
    these runs best. The predicted losses of the largest size then use the copy gains measured there.

    Returns:
        [{"router", "weight", "rmsle": of the fits without and with the weight, "points": [{"E", "D", "percent": errors
        of the mean over seeds, without and with the weight}]}].
    """
    runs, size, fits = results.read(table), "dense_parameter_count", collections.defaultdict(dict)
    frame = runs.frame.assign(copy_gain=runs.frame["hyper_id"].map(copy_gains(table)))
    measured = results.Runs(frame[frame[size] == LARGEST], table).last
    for weight in WEIGHTS:
        adjusted = frame.assign(adjusted=frame["loss_validation"] + weight * frame["copy_gain"])
        for fit in results.Runs(adjusted, table, f"{size} < {LARGEST}", "adjusted").fit("joint"):
            fits[fit.name][weight] = fit
    entries = []
    for router, of_weight in fits.items():
        weights, points = (0, min(of_weight, key=lambda weight: of_weight[weight].rmsle)), []
        rows = measured[measured["router_type"].isin([router, DENSE])].groupby(["num_experts", "tokens"])
        for (E, D), seeds in rows[["loss_validation", "copy_gain"]].mean().iterrows():
            at = {"experts": E, "active_parameters": ACTIVE, "tokens": D}
            losses = [of_weight[weight].predict(**at).value - weight * seeds["copy_gain"] for weight in weights]
            points.append({"E": E, "D": D, "percent": [100 * (seeds["loss_validation"] / loss - 1) for loss in losses]})
        rmsle = [of_weight[weight].rmsle for weight in weights]
        entries.append({"router": router, "weight": weights[1], "rmsle": rmsle, "points": points})
    return entries


def lines(laws: dict) -> list[str]:
    return [
        f"{law}: {entry['runs']} runs, mean error {entry['mean_percent']:.2f} %, RMSLE {entry['rmsle']:.4f}, "
        f"{entry['inside']:.0%} within their intervals"
        for law, entry in laws.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    return command(HERE, register, score, lines, arguments)


if __name__ == "__main__":
    sys.exit(main())
