"""Read a sweep's folder for its report: the plan, the finished runs with their logs, and the sessions.

A run is finished if it has an evaluation of its last step. A report gives only the number of unfinished runs. A session
writes `results.csv` only at its end. So this file reads the tables of the runs, which killed and running sessions have
too.
"""

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

from routelaws.reference.diagnostics import not_learned

from ...errors import InputError
from ...tables.schema import DENSE
from ...tables.selection import RouterRows, last_evaluations, select_rows
from ...tables.table import read_table
from ...training.configuration import TrainConfig
from ...training.runs.result_rows import read_rows
from ...training.runs.run_folder import read_own_log, read_results
from ...training.sweeps.sweep_folder import check_plan, folder_of_run, read_plan, read_sessions
from ...training.window_losses import WindowLosses, few_documents


class SweepRun(NamedTuple):
    """A finished run."""

    hyper_id: int
    config: TrainConfig
    row: dict  # the last evaluation, a row of `read_table`
    log: list[dict]  # the lines of log.jsonl
    windows: WindowLosses | None  # window losses of the last evaluation; None if the run has none

    @property
    def router(self) -> str:
        """router_type: Dense, Hash, S-Base."""
        return self.row["router_type"]

    @property
    def size(self) -> int:
        """N, dense parameters."""
        return int(self.row["dense_parameter_count"])

    @property
    def experts(self) -> int:
        """E, 1 if dense."""
        return int(self.row["num_experts"])

    @property
    def loss(self) -> float:
        """Validation loss at the end, nats per token."""
        return float(self.row["loss_validation"])

    @property
    def standard_error(self) -> float:
        """Standard error of the loss over documents, nats per token; NaN if unknown, or with too few documents."""
        return math.nan if few_documents(self.documents) else float(self.row.get("standard_error", math.nan))

    @property
    def documents(self) -> float:
        """Number of validation documents; NaN if unknown."""
        return float(self.row.get("evaluation_documents", math.nan))

    @property
    def not_learned(self) -> list[str]:
        """The signs that the router of a routed run has not learned (see `diagnostics.not_learned`); [] if none."""
        model = self.config.model
        if not model.num_routed:
            return []
        cells = (float(self.row.get(name, math.nan)) for name in ("router_agreement", "expert_exchange"))
        return not_learned(model.choices / model.choosable, *(None if math.isnan(cell) else cell for cell in cells))

    @property
    def load(self) -> list[list[float]]:
        """[blocks, E G] share of the validation tokens of each expert at the last evaluation; [] if dense."""
        evaluations = [line for line in self.log if line.get("kind") == "evaluation"]
        return evaluations[-1].get("load", []) if evaluations else []


class Sweep(NamedTuple):
    folder: Path
    name: str
    planned: tuple[TrainConfig, ...]  # by hyper_id
    runs: list[SweepRun]  # the finished runs, by hyper_id
    selections: list[RouterRows]  # the rows of `frame` for the law of each router, with dense runs as E = 1
    sessions: list[dict]  # see `training.sweeps.sweep_folder.read_sessions`
    frame: "pandas.DataFrame"  # noqa: F821  # every evaluation of the finished runs, without `not_learned`

    def of(self, selection: RouterRows) -> list[SweepRun]:
        """Return the runs for the law of a router: its runs, and the dense runs."""
        used = set(selection.frame["hyper_id"])
        return [run for run in self.runs if run.hyper_id in used]

    def dense(self) -> list[SweepRun]:
        return [run for run in self.runs if run.router == DENSE]

    def seconds(self) -> float:
        return sum(session["last"] - session["started"] for session in self.sessions)


def read_sweep(folder: Path) -> Sweep:
    """Read the folder of a sweep.

    Raises:
        InputError: the folder has no sweep or no finished run, or one of its files is damaged.
    """
    folder = Path(folder)
    name, planned = read_plan(folder)
    check_plan(folder)
    frame = _finished_rows(folder, planned)
    runs = []
    for row in last_evaluations(frame).to_dict("records"):
        config = planned[row["hyper_id"]]
        where = folder_of_run(folder, row["hyper_id"], config)
        runs.append(SweepRun(row["hyper_id"], config, row, read_own_log(where), read_results(where)[1]))
    learned = [run for run in runs if not run.not_learned]
    if not learned:
        raise InputError(f"{folder}: no router of the finished runs has learned; nothing to report; train longer")
    frame = frame[frame["hyper_id"].isin([run.hyper_id for run in learned])]
    routed = any(run.router != DENSE for run in learned)
    return Sweep(folder, name, planned, runs, select_rows(frame) if routed else [], read_sessions(folder), frame)


def _finished_rows(folder: Path, planned: tuple[TrainConfig, ...]):
    import pandas

    path = folder / "results.csv"
    tables = [read_table(path)] if read_rows(path) else []
    if tables and not tables[0]["hyper_id"].between(0, len(planned) - 1).all():
        raise InputError(f"{path}: has a hyper_id that is not one of the {len(planned)} runs of sweep.json")
    collected = set(tables[0]["hyper_id"]) if tables else set()
    for hyper_id, config in enumerate(planned):
        path = folder_of_run(folder, hyper_id, config) / "results.csv"
        if hyper_id not in collected and read_results(path.parent)[0]:
            tables.append(read_table(path))
    if tables:
        frame = pandas.concat([table.dropna(axis=1, how="all") for table in tables], ignore_index=True)
        wanted = frame["hyper_id"].map(lambda hyper_id: planned[hyper_id].steps)
        frame = frame[frame.groupby("hyper_id")["step"].transform("max") == wanted]
    if not tables or not len(frame):
        raise InputError(f"{folder}: none of the {len(planned)} runs of this sweep is finished; nothing to report")
    return frame


def same_but_seed(config: TrainConfig) -> TrainConfig:
    """Return a key that is equal for two runs that differ only in their seed."""
    return dataclasses.replace(config, seed=0)
