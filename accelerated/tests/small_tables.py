"""Results tables and runs of a few rows, for tests of several commands."""

import json
from pathlib import Path

import numpy as np
import pandas

from routelaws.accelerated.findings.runs import TableRun
from routelaws.conformance.plain.laws import Bounded

LAW = Bounded(-0.083, -0.118, 0.0099, 1.1136, 2.075, 238.7)
SIZES, EXPERTS = (12_000_000, 40_000_000, 130_000_000, 400_000_000), (2, 8, 32, 128)
BATCH, LENGTH, STEPS = 64, 512, 1000
"""A law, and the sizes, experts and steps of runs on it."""


def frame_of(size, experts, loss, router="Top-K", **columns) -> pandas.DataFrame:
    """Return a table with one row per entry; rows of one expert are dense."""
    return pandas.DataFrame(
        {
            "hyper_id": range(len(size)),
            "step": 1000,
            "router_type": np.where(experts == 1, "Dense", router),
            "num_experts": experts,
            "dense_parameter_count": size,
            "loss_validation": loss,
            **columns,
        }
    )


def write(frame: pandas.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def save(path, rows: list[dict]) -> None:
    pandas.DataFrame(rows).to_csv(path, index=False)


def pair(found: dict, name: str) -> list[float]:
    """Return the ends of an interval of a prediction."""
    return [found["intervals"][name]["low"], found["intervals"][name]["high"]]


def strict_json(path: Path) -> dict:
    """Return the content of a file, after a check that it is strict JSON."""

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def run(router, size, experts, loss, **fields) -> TableRun:
    usual = {
        "hyper_id": 0,
        "k": 1,
        "frequency": None if router == "Dense" else 0.5,
        "flop_increase": 1.0,
        "seed": 42,
        "tokens": None,
        "total_parameters": 1.0,
        "flops": 1.0,
        "suspect": "",
        "losses": {"loss_validation": loss},
    }
    return TableRun(router=router, size=size, experts=experts, loss=loss, **usual | fields)
