"""What was predicted of the largest model before it was trained, and how that came out.

    1. HOLD OUT  `held_out`  the runs of the largest size, which `routelaws sweep --hold-out largest` trains last
    2. REGISTER  `register`  predictions.json in the folder of the sweep: losses with intervals, and when they were
                             made; written once, and never again
    3. SCORE     `score`     the measured losses beside them

A law is fitted to the smaller sizes of each router: the bounded one, or, where they do not determine it, the bilinear
or the separable one; the dense runs have their power law. A run is compared with the interval of one more run.
"""

import datetime
import math
from pathlib import Path

from ...errors import InputError
from ...files import locked, write_once
from ...json_files import NULL, NUMBER, read_json
from ...laws.catalogue import LAWS as KNOWN
from ...tables.schema import DENSE
from ...tables.selection import select_rows
from ...training.runs.result_rows import read_rows
from ...training.sweeps.sweep_folder import folder_of_run, read_had, read_plan
from ...wording import plural
from ..encoding import dumps
from ..fit import LEVEL, Fit
from ..rows import rows_of_runs
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
"""The form of what is registered, as far as it is read again."""

LAWS = ("routed-bounded", "bilinear", "separable")
"""The laws that are tried for a router, in this order."""

LOSS = "loss_validation"

ROUTED_KIND, DENSE_KIND = ("k", "routing_frequency", "granularity"), ("flop_increase",)
"""Columns in which models of one N and E differ; the law of a router is that of one kind, see `select_rows`."""


def held_out(planned) -> list[int]:
    """Return the hyper_ids of the runs of the largest size.

    Args:
        planned: configurations, by hyper_id.

    Raises:
        InputError: fewer than two smaller sizes, from which no law follows.
    """
    sizes = [config.accounting().dense_parameters for config in planned]
    if len(set(sizes)) < 3:
        raise InputError(
            f"--hold-out largest: the grid has {plural(len(set(sizes)), 'size')}; needed: at least 3, two to fit, one "
            "to predict"
        )
    return [i for i, size in enumerate(sizes) if size == max(sizes)]


def check_untouched(folder: Path) -> None:
    """Raise InputError where a run that is to be predicted has results already, and no prediction was written."""
    folder = Path(folder)
    if (folder / FILE).exists() or not (folder / "sweep.json").exists():
        return
    planned, had = read_plan(folder).runs, read_had(folder)
    for i in held_out(planned):
        if i in had or read_rows(folder_of_run(folder, i, planned[i]) / "results.csv"):
            raise InputError(
                f"--hold-out largest: {folder_of_run(folder, i, planned[i])} has results already, so that nothing said "
                "of it now would be a prediction; choose another --out, or leave --hold-out away"
            )


def register(folder: Path) -> Path:
    """Write down what the smaller runs of a sweep predict of the largest; what is written already stays as it is.

    Args:
        folder: of a sweep whose smaller runs are finished.

    Returns:
        The path of predictions.json.

    Raises:
        InputError: a run of the largest size has results already, or no law can be fitted to the smaller ones.
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
        said = {
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "held_out": held,
            "fitted_to": [run.hyper_id for run in sweep.runs if run.hyper_id not in held],
            "loss_column": LOSS,
            "level": LEVEL,
            "predictions": entries,
        }
        write_once(folder / FILE, dumps(said, indent=1) + "\n")
    return folder / FILE


def predictions(sweep: Sweep, held: list[int]) -> list[dict]:
    """Return what the other runs of a sweep say of some runs, one entry for each router, E and kind of these.

    Returns:
        [{"router", "N", "E", "runs": [hyper_id], "law", "loss", "law_interval", "run_interval", "reason"}]; `loss` is
        None where no law can be fitted, or it is that of another kind, and `reason` says why.
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
            said = fit.law.predict_interval(*known, (size, experts)[: len(fit.law.columns)], LEVEL)
            entry |= {"law": fit.law.name, "loss": said.value, "law_interval": said.law, "run_interval": said.run}
        entries[key] = entry
    return list(entries.values())


def _of_another_kind(fit, router: str, kind: dict[str, float]) -> str:
    """Return in which column a run of a router differs from those that its law was fitted to; "" where in none."""
    frame = fit.rows.runs.frame
    for name, value in kind.items():
        there = set(frame[name][frame["router_type"] == router].dropna()) if name in frame else set()
        if there and value not in there:
            return f"{name} is {value:g}, and the law is of runs with {', '.join(f'{own:g}' for own in sorted(there))}"
    return ""


def _fit(frame, router: str):
    """Return the first law that the rows of a router determine, or why none does."""
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


def score(sweep: Sweep) -> dict | None:
    """Return the predictions of a sweep with what was measured; None where none was written.

    Returns:
        The content of predictions.json; each prediction has besides "measured", [losses of those of its runs that are
        finished], "error", the mean of them over the prediction less 1 (None before that), and "inside", how many
        are within `run_interval`. "scored" and "hits" count runs over all.

    Raises:
        InputError: the file is damaged.
    """
    path = sweep.folder / FILE
    if not path.exists():
        return None
    said = read_json(path, FORM)
    runs = [run for run in sweep.runs if run.hyper_id in said["held_out"]]
    try:
        entries = [entry | _against(entry, runs) for entry in said["predictions"]]
    except (ValueError, KeyError, ZeroDivisionError) as error:
        raise InputError(f"{path}: is not a file of predictions ({type(error).__name__}: {error})") from None
    known = [entry for entry in entries if entry["loss"] is not None]
    counts = {"scored": sum(len(entry["measured"]) for entry in known), "hits": sum(entry["inside"] for entry in known)}
    return said | {"predictions": entries} | counts


def _against(entry: dict, runs) -> dict:
    """Return the measured losses beside one prediction."""
    own = entry.get("runs")  # not in files of version 0.1.0
    if own is None:
        own = [run.hyper_id for run in runs if (run.router, float(run.experts)) == (entry["router"], entry["E"])]
    losses = [run.loss for run in runs if run.hyper_id in own]
    if entry["loss"] is None or not losses:
        return {"measured": losses, "error": None, "inside": 0}
    low, high = (math.nan if end is None else float(end) for end in entry["run_interval"])
    inside = sum(low <= loss <= high for loss in losses)
    return {"measured": losses, "error": sum(losses) / len(losses) / entry["loss"] - 1, "inside": inside}
