"""Compile the training steps of the rows of docs/pods.csv for a slice of TPUs: `python -m benchmarks.pods` (an hour).

Each row has a slice, a mesh and the fields of a run, and the bytes of a device by the compiler. The script compiles the
rows that have no bytes, one after the other, and writes each result at once. It needs libtpu
(`pip install 'routelaws[train,tpu]'`).
"""

import csv
import json
from pathlib import Path

from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.slices import KINDS, lower_run

TABLE = Path(__file__).resolve().parents[1] / "docs/pods.csv"

SHARED = {
    "d_model": 512, "heads": 8, "blocks": 4, "vocab_size": 4096, "batch_size": 64, "sequence_length": 512,
    "dtype": "bfloat16", "steps_per_call": 2,
}  # fmt: skip
"""Fields of a row that does not name them."""


def read() -> list[dict[str, str]]:
    """Return the rows of the table; the column `run` has fields such as "router=top_k experts=16"."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def config_of(row: dict[str, str]) -> TrainConfig:
    """Return the run of a row."""
    fields = dict(item.split("=") for item in row["run"].split())
    words = ("router", "dtype", "activation", "positions")
    fields = {name: value if name in words else json.loads(value) for name, value in fields.items()}
    return from_mapping({**SHARED, **fields, "mesh": row["mesh"]}, f"{TABLE.name}: {row['run']}")


def main() -> None:
    rows = read()
    for row in rows:
        if row["temporaries"]:
            continue
        memory = lower_run(config_of(row), row["slice"])[0].compile().memory_analysis()
        row |= {kind: getattr(memory, f"{name}_size_in_bytes") for kind, name in KINDS.items() if kind in row}
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
