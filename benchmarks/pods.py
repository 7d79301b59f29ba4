"""Compile the training steps of the rows of docs/pods.csv for slices of TPUs: `python -m benchmarks.pods` (an hour).

Each row has a slice, a mesh and the fields of a run, and for a device in a step: bytes, FLOPs and sent bytes. The
script compiles the rows that have none of these numbers, one after the other, and writes each result at once. If a row
has only the kind of a slice, the script takes the smallest slice on which the run fits, by `plan-mesh` and by the
compiler. It prints the table of docs/scale.md. It needs libtpu (`pip install 'routelaws[train,tpu]'`).

XLA first assigns memory to all arrays. Then libtpu generates code, which takes most of the time and needs more memory.
The script stops in between. The column `final` has the temporaries of complete compilations, by `routelaws compile`.
"""

import csv
import json
import multiprocessing
import re
import tempfile
import time
from pathlib import Path

from routelaws.accelerated.commands.run_flags import fields_of_size
from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.devices.hlo import Program
from routelaws.accelerated.training.devices.mesh_plan import feasible_meshes, parse_mesh, plan_device
from routelaws.accelerated.training.devices.slices import lower_run, memory_of_slice, size_of_slice
from routelaws.reference.accounting import SIZES

TABLE = Path(__file__).resolve().parents[1] / "docs/pods.csv"

SHARED = {
    "d_model": 512, "heads": 8, "blocks": 4, "vocab_size": 4096, "batch_size": 64, "sequence_length": 512,
    "dtype": "bfloat16", "steps_per_call": 2,
}  # fmt: skip
"""Fields of a row that does not name them. A row with the name of a size of the paper has the fields of this size."""

FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SHAPES = {"v5e": FLAT, "v6e": FLAT, "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")}
"""Shapes of slices by kind, smallest first."""

LAST = "*train_steps*after_buffer_assignment.txt"
"""The last file that XLA writes before it generates code."""

COLLECTIVES = {
    "to_experts": ("all-to-all", "ragged-all-to-all"), "sums": ("all-reduce", "reduce-scatter"), "new": ("all-gather",),
}  # fmt: skip
"""Columns of bytes that a device sends, and their collectives."""


def read() -> list[dict[str, str]]:
    """Return the rows of the table; the column `run` has fields such as "router=top_k experts=16"."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def config_of(row: dict[str, str]) -> TrainConfig:
    """Return the run of a row."""
    fields = dict(item.split("=") for item in row["run"].split())
    size, words = fields.pop("size", None), ("router", "dtype", "activation", "positions")
    fields = {name: value if name in words else json.loads(value) for name, value in fields.items()}
    fields = {**SHARED, **fields_of_size(size), **fields, "mesh": row["mesh"] or None}
    return from_mapping(fields, f"{TABLE.name}: {row['run']}")


def places(row: dict[str, str]):
    """Yield the slice and the mesh of a row. If the row has no mesh: by `plan-mesh`, the mesh with the least traffic of
    each slice that the run fits on, smallest slice first."""
    if row["mesh"]:
        yield row["slice"], row["mesh"]
        return
    config = config_of(row)
    shape, again = (config.batch_size, config.sequence_length, config.dtype), config.rematerialise
    for name in (f"{row['slice']}:{size}" for size in SHAPES[row["slice"]]):
        meshes = feasible_meshes(config.model, size_of_slice(name), config.batch_size)
        plans = [plan_device(config.model, mesh, *shape) for mesh in meshes]
        fitting = [plan for plan in plans if plan.memory(again) <= memory_of_slice(name)]
        if fitting:
            yield name, str(min(fitting, key=lambda plan: plan.traffic(again)).mesh)


def _compile(row: dict[str, str], folder: str) -> None:
    lowered = lower_run(config_of(row), row["slice"], training_alone=True)[0]
    lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})


def assigned(row: dict[str, str]) -> dict[str, int] | None:
    """Return the numbers of a row after the assignment of memory; None if the compilation fails."""
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(target=_compile, args=(row, folder))
        process.start()
        size, files = -1, []
        while process.is_alive() and not (files and size == (size := files[0].stat().st_size)):
            time.sleep(5)  # XLA writes the file in parts
            files = list(Path(folder).glob(LAST))
        process.kill()
        process.join()
        files = list(Path(folder).glob(LAST))
        if not files:
            return None
        program, steps = Program(files[0].read_text()), config_of(row).steps_per_call
        [allocations] = Path(folder).glob("*train_steps*after_optimizations-buffer-assignment.txt")
        sizes = {"arguments": 0, "temporaries": 0}
        for number, kind in re.findall(
            r"^allocation \d+: size (\d+), (parameter|preallocated-temp)", allocations.read_text(), re.M
        ):
            sizes["arguments" if kind == "parameter" else "temporaries"] += int(number)
    work = {"flops": program.product_flops(), "moved": program.moved_bytes()}
    for name, kinds in COLLECTIVES.items():
        work[name] = sum(each.times * each.sent for each in program.collectives() if each.kind in kinds)
    return sizes | {name: round(value / steps) for name, value in work.items()}


def ratio(row: dict[str, str]) -> float:
    """Return the planned memory, relative to the memory by the compiler.

    Before code is generated there are no buffers of collectives, which the plan counts as gradients.
    """
    config = config_of(row)
    plan = plan_device(config.model, parse_mesh(row["mesh"]), config.batch_size, config.sequence_length, config.dtype)
    planned = plan.memory(config.rematerialise) - (0 if row["final"] else plan.gradients)
    return planned / (int(row["arguments"]) + int(row["final"] or row["temporaries"]))


def page(rows: list[dict[str, str]]) -> list[str]:
    """Return the lines of the table of docs/scale.md: for each size, E and kind of slice, its smallest slice."""
    lines, chosen = {}, [row for row in rows if row["run"].startswith("size=")]
    for row in sorted(chosen, key=lambda row: -size_of_slice(row["slice"])):
        config, mesh = config_of(row), parse_mesh(row["mesh"])
        model, tokens = config.model, config.batch_size * config.sequence_length
        size, experts = row["run"].split()[0].removeprefix("size="), model.experts if model.num_routed else 0
        memory = int(row["arguments"]) + int(row["temporaries"])
        flops = int(row["flops"]) * mesh.devices() / tokens / config.accounting().flops_per_token
        sent = [int(row[name]) for name in COLLECTIVES]
        share = sum(sent) / (int(row["moved"]) + sum(sent))
        axes = ",".join(axis for axis in row["mesh"].split(",") if not axis.endswith("=1"))
        numbers = [f"{memory / 1e9:.3g}", f"{ratio(row):.2f}", f"{flops:.2f}", *(f"{each / 1e9:.3g}" for each in sent)]
        key = list(SIZES).index(size), experts, list(SHAPES).index(row["slice"].partition(":")[0])
        cells = [size, str(experts or "dense"), row["slice"], axes, *numbers, f"{share:.2%}"]
        lines[key] = f"| {' | '.join(cells)} |"
    return [lines[key] for key in sorted(lines)]


def main() -> None:
    rows = read()
    for row in rows:
        if row["flops"]:
            continue
        for name, mesh in places(row):
            if numbers := assigned(row | {"slice": name, "mesh": mesh}):
                row |= {"slice": name, "mesh": mesh, **numbers}
                break
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(*row.values(), flush=True)
    print(*page(rows), sep="\n")


if __name__ == "__main__":
    main()
