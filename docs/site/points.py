"""The runs for the lab's pages about laws: the last loss of each run that the paper used for its fits."""

import csv
import json
from pathlib import Path

from routelaws.accelerated.tables.released import released_runs

ROUTERS = ("S-Base", "RL-R", "Hash")
SOURCE = "Runs of Clark et al. 2022, released by DeepMind under CC BY 4.0: validation loss at the last evaluation."


def points(path: Path) -> dict[str, list]:
    """Return {router: [[N, E, loss], ...]} of the runs with k = 1, every other layer routed, and seed 42.

    The points of each router include the dense runs, with E = 1.
    """
    names = ("dense_parameter_count", "num_experts", "loss_validation")
    with open(path, newline="") as lines:
        rows = [r for r in csv.DictReader(lines) if (r["routing_frequency"], r["k"], r["seed"]) == ("0.5", "1", "42")]
    return {
        router: sorted([float(row[name]) for name in names] for row in rows if row["router_type"] in (router, "Dense"))
        for router in ROUTERS
    }


def script() -> str:
    """Return the script that defines the points."""
    return f"globalThis.labPoints = {json.dumps({'source': SOURCE, 'tables': points(released_runs())})};\n"
