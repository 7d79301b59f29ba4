"""Predictions for the largest models, made before training, and their score.

    1. HOLD OUT  `held_out`  the runs of the largest size, which `routelaws sweep --hold-out largest` trains last
    2. REGISTER  `register`  predictions.json in the folder of the sweep: losses with intervals, and their
                             time; written once
    3. SCORE     `score`     compares the measured losses

Each router has a law, fitted to its smaller sizes. This is the bounded law. If the runs do not determine it, the
bilinear or the separable law replaces it. Dense runs have a power law. Each measured loss is compared with the interval
of one more run.
"""

import datetime
import math
from pathlib import Path
from typing import NamedTuple

import pandas

from ...errors import InputError
from ...files import locked, write_once
from ...json_files import NULL, NUMBER, read_json
from ...laws.catalogue import LAWS as KNOWN
from ...results.blocks import Block, figure, percent, span
from ...results.encoding import dumps
from ...results.fit import LEVEL, Fit
from ...results.rows import rows_of_runs
from ...tables.schema import DENSE
from ...tables.selection import select_rows
from ...training.runs.result_rows import read_rows
from ...training.sweeps.sweep_folder import folder_of_run, read_had, read_plan
from ...wording import plural
from ..finding import Finding, Report, router_name, table
from .folder import Sweep, read_sweep

FILE = "predictions.json"

FORM = {
    "written": str,
    "held_out": [int],
    "predictions": [
        {
            "router": str,
            "N": NUMBER,
            "E": NUMBER,
            "runs?": [int],
            "law": (str, NULL),
            "loss": (*NUMBER, NULL),
            "run_interval?": [(*NUMBER, NULL, str)],  # "inf" or "-inf" is an open end
        }
    ],
}
"""The form of those entries of predictions.json that this file reads."""

LAWS = ("routed-bounded", "bilinear", "separable")
"""The laws to try for a router, in this order."""

LOSS = "loss_validation"

ROUTED_KIND, DENSE_KIND = ("k", "routing_frequency", "granularity"), ("flop_increase",)
"""Columns in which models of the same N and E differ; a law needs equal values in them (see `select_rows`)."""


def held_out(planned) -> list[int]:
    """Return the hyper_ids of the runs of the largest size.

    Raises:
        InputError: there are fewer than two smaller sizes.
    """
    sizes = [config.accounting().dense_parameters for config in planned]
    if len(set(sizes)) < 3:
        raise InputError(
            f"--hold-out largest: the grid has {plural(len(set(sizes)), 'size')}; needed: at least 3, two to fit and "
            "one "
            "to predict"
        )
    return [i for i, size in enumerate(sizes) if size == max(sizes)]


def check_untouched(folder: Path) -> None:
    """Raise `InputError` if a run of the largest size has results, but the sweep has no predictions."""
    folder = Path(folder)
    if (folder / FILE).exists() or not (folder / "sweep.json").exists():
        return
    planned, had = read_plan(folder).runs, read_had(folder)
    for i in held_out(planned):
        if i in had or read_rows(folder_of_run(folder, i, planned[i]) / "results.csv"):
            raise InputError(
                f"--hold-out largest: {folder_of_run(folder, i, planned[i])} already has results, so its "
                "loss can no longer be predicted; choose another --out, or leave out --hold-out"
            )


def register(folder: Path) -> Path:
    """Write predictions for the largest size from a sweep's smaller runs. Keep an existing file.

    Returns:
        The path of predictions.json.

    Raises:
        InputError: a run of the largest size already has results, or no law fits the smaller runs.
    """
    folder = Path(folder)
    with locked(folder, wait=True, holder="another sweep"):
        if (folder / FILE).exists():
            return folder / FILE
        check_untouched(folder)
        sweep = read_sweep(folder)
        held = held_out(sweep.planned)
        entries = predictions(sweep, held)
        if not any(entry["loss"] is not None for entry in entries):
            raise InputError(f"--hold-out largest: nothing can be predicted; the first reason: {entries[0]['reason']}")
        content = {
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "held_out": held,
            "fitted_to": [run.hyper_id for run in sweep.runs if run.hyper_id not in held and not run.not_learned],
            "loss_column": LOSS,
            "level": LEVEL,
            "predictions": entries,
        }
        write_once(folder / FILE, dumps(content, indent=1) + "\n")
    return folder / FILE


def predictions(sweep: Sweep, held: list[int]) -> list[dict]:
    """Return predictions for some runs from the other runs of a sweep, an entry for each router, E and kind.

    Returns:
        [{"router", "N", "E", "runs": [hyper_id], "law", "loss", "law_interval", "run_interval", "reason"}]; `loss` is
        None if no law of this kind can be fitted; `reason` explains why.
    """
    frame = sweep.frame[~sweep.frame["hyper_id"].isin(held)]
    fits, entries = {}, {}
    for i in held:
        config = sweep.planned[i]
        router, size = config.model.record.router_type, float(config.accounting().dense_parameters)
        experts = 1.0 if router == DENSE else float(config.model.experts)
        if router not in fits:
            fits[router] = _fit(frame, router)
        kind = {name: float(getattr(config.model, name)) for name in (DENSE_KIND if router == DENSE else ROUTED_KIND)}
        key = (router, experts, *kind.values())
        if key in entries:
            entries[key]["runs"].append(i)
            continue
        fit, reason = fits[router]
        reason = reason or _of_another_kind(fit, router, kind)
        entry = {"router": router, "N": size, "E": experts, "runs": [i], "law": None, "loss": None, "reason": reason}
        if not reason:
            known = fit.best, fit.rows.columns, fit.rows.measured
            intervals = fit.law.predict_interval(*known, (size, experts)[: len(fit.law.columns)], LEVEL)
            entry |= {
                "law": fit.law.name,
                "loss": intervals.value,
                "law_interval": intervals.law,
                "run_interval": intervals.run,
            }
        entries[key] = entry
    return list(entries.values())


def _of_another_kind(fit, router: str, kind: dict[str, float]) -> str:
    frame = fit.rows.runs.frame
    for name, value in kind.items():
        there = set(frame[name][frame["router_type"] == router].dropna()) if name in frame else set()
        if there and value not in there:
            return f"{name} is {value:g}, but the law was fitted with {', '.join(f'{n:g}' for n in sorted(there))}"
    return ""


def _fit(frame, router: str):
    reason = "no run of this router is smaller"
    for name in ("dense",) if router == DENSE else LAWS:
        try:
            chosen = select_rows(frame, None, LOSS, axes="dense" if router == DENSE else "experts")
            rows = next(rows for rows in chosen if rows.router == router)
            fit = Fit(rows_of_runs(rows, KNOWN[name], LOSS), name)
        except StopIteration:
            return None, reason
        except ValueError as error:
            reason = str(error)
            continue
        if fit.determined:
            return fit, ""
        reason = f"the runs do not determine the law {name}"
    return None, reason


COLUMNS = ["router", "N", "E", "runs", "law", "loss", "law_interval", "run_interval", "reason"]
COLUMNS += ["measured", "error", "inside"]


class RegisteredScore(NamedTuple):
    """The content of predictions.json, with the measured losses.

    Attributes:
        predictions: a frame of the predictions with measured (the losses of the finished runs), error (the mean of
            these losses divided by the prediction, minus 1; NaN without runs) and inside (the number of losses within
            `run_interval`)
        scored, hits: number of measured losses of all predictions, and of those inside
    """

    written: str
    held_out: list[int]
    fitted_to: list[int]
    loss_column: str
    level: float
    predictions: pandas.DataFrame
    scored: int
    hits: int


def score(sweep: Sweep) -> RegisteredScore | None:
    """Return the predictions of a sweep with the measured losses; None without predictions.

    Raises:
        InputError: the file is damaged.
    """
    path = sweep.folder / FILE
    if not path.exists():
        return None
    content = read_json(path, FORM)
    runs = [run for run in sweep.runs if run.hyper_id in content["held_out"]]
    try:
        entries = [entry | _against(entry, runs) for entry in content["predictions"]]
    except (ValueError, KeyError, ZeroDivisionError) as error:
        raise InputError(f"{path}: is not a file of predictions ({type(error).__name__}: {error})") from None
    known = [entry for entry in entries if entry["loss"] is not None]
    counts = sum(len(entry["measured"]) for entry in known), sum(entry["inside"] for entry in known)
    made = content["written"], content["held_out"], content.get("fitted_to", []), content.get("loss_column", LOSS)
    frame = pandas.DataFrame(entries, columns=COLUMNS).astype({"loss": float, "error": float})
    return RegisteredScore(*made, content.get("level", LEVEL), frame, *counts)


def _against(entry: dict, runs) -> dict:
    hyper_ids = entry.get("runs")  # files of version 0.1.0 lack this entry
    if hyper_ids is None:
        hyper_ids = [run.hyper_id for run in runs if (run.router, float(run.experts)) == (entry["router"], entry["E"])]
    losses = [run.loss for run in runs if run.hyper_id in hyper_ids]
    if entry["loss"] is None or not losses:
        return {"measured": losses, "error": None, "inside": 0}
    low, high = (math.nan if end is None else float(end) for end in entry["run_interval"])
    inside = sum(low <= loss <= high for loss in losses)
    return {"measured": losses, "error": sum(losses) / len(losses) / entry["loss"] - 1, "inside": inside}


def section(report: Report) -> list[Block]:
    """Return the predictions for the largest model, made before its training, and the measured losses."""
    registered = report.sweep.registered
    if not registered:
        return []
    outcome = "None of these runs is finished yet."
    if registered.scored:
        outcome = (
            f"{registered.hits} of {registered.scored} measured losses lie within the "
            f"{percent(registered.level)} prediction interval."
        )

    def is_known(row) -> bool:
        return row.loss == row.loss

    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: f"{int(row.N):,}",
        "E": lambda row: str(int(row.E)),
        "law": lambda row: row.law if is_known(row) else f"none: {row.reason}",
        "predicted": lambda row: figure(row.loss, ".4f", ""),
        "prediction interval": lambda row: (
            span([None if end is None else float(end) for end in row.run_interval], ".4f") if is_known(row) else ""
        ),
        "measured": lambda row: " ".join(figure(loss, ".4f") for loss in row.measured) or "not yet" * is_known(row),
        "error": lambda row: f"{figure(100 * row.error, '+.1f')} %" * (row.error == row.error),
    }
    return [
        f"The laws were fitted to the {len(registered.fitted_to)} smaller runs, before any model of the largest "
        f"size was trained. Their predictions are in `predictions.json`, written once at {registered.written}. "
        f"{outcome}",
        table(registered.predictions, columns, keys=3),
    ]


FINDING = Finding(
    None, "Predictions for the largest model", lambda results, sweep: {"registered": score(sweep)}, section, short=True
)
