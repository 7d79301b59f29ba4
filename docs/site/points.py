"""The runs for the lab's page about the law, read from the released table at build time.

The table (Clark et al. 2022, CC-BY 4.0) is not part of the project. If the folder ROUTELAWS_DATA has the table, the
page shows the last loss of each fitted run and names the source. Otherwise the page computes points from the printed
law.
"""

import csv
import gzip
import hashlib
import json
import os
from pathlib import Path

NAME = "curves.csv.gz"
SHA256 = "c03e7531add85e594f368d33bac4a0220280be858a7ed12d147cf73af6a3819f"
ROUTERS = ("S-Base", "RL-R", "Hash")
SOURCE = "Runs of Clark et al. 2022, released under CC-BY 4.0: validation loss at the last evaluation."


def table() -> Path | None:
    """Return the path of the released table, or None if the file is missing or has another checksum."""
    path = Path(os.environ.get("ROUTELAWS_DATA", "")) / NAME
    if "ROUTELAWS_DATA" not in os.environ or not path.is_file():
        return None
    return path if hashlib.sha256(path.read_bytes()).hexdigest() == SHA256 else None


def last_rows(path: Path) -> list[dict]:
    """Return the last evaluation of each run that the paper used for its fits: k = 1, every other layer, seed 42."""
    with gzip.open(path, "rt", newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: int(row["step"]))
    grid = ("0.5", "1", "42")
    return list(
        {row["hyper_id"]: row for row in rows if (row["routing_frequency"], row["k"], row["seed"]) == grid}.values()
    )


def points(path: Path) -> dict[str, list]:
    """Return {router: [[N, E, loss], ...]}. The points of each router include the dense runs, with E = 1."""
    names = ("dense_parameter_count", "num_experts", "loss_validation")
    rows = last_rows(path)
    return {
        router: sorted([float(row[name]) for name in names] for row in rows if row["router_type"] in (router, "Dense"))
        for router in ROUTERS
    }


def script() -> str:
    """Return the script that defines the points. They are null without the table."""
    path = table()
    content = None if path is None else {"source": SOURCE, "tables": points(path)}
    return f"globalThis.labPoints = {json.dumps(content)};\n"
