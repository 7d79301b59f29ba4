"""Compile a run for a slice of a TPU pod that this machine does not have.

The package libtpu contains the compiler of TPUs, which answers with the memory of a device and the text of the program.
A slice is written KIND:SHAPE in chips, such as v5e:4x4. A chip has one device, and of the kind tpu7x two.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re

import jax
import numpy as np
from jax.experimental import topologies

from ...caches import cache_folder, private_folder
from ...errors import InputError, in_line
from ...files import write_atomically
from ...operations.target import traced_for
from ..configuration import TrainConfig
from ..runs.run_folder import table_shape
from ..step import (
    compiled_evaluate,
    compiled_steps,
    compute_dtype,
    open_layout,
    run_inputs,
    state_shapes,
)
from .hlo import Program
from .mesh import Layout
from .mesh_plan import parse_mesh

GIB = 2**30
MEMORY = {"v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25, "tpu7x": 94.75}
"""GiB of memory (HBM) that a program can use on a device, by kind of chip: the limit in the messages of libtpu
0.0.42.1."""

KINDS = {
    "arguments": "argument", "outputs": "output", "aliased": "alias", "temporaries": "temp", "code": "generated_code",
}  # fmt: skip
"""The parts of a program's memory, and XLA's names. Aliased outputs use the memory of arguments."""

OF_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
"""Environment variables. With the first three, libtpu does not look for a TPU of this machine, and prints no warnings
about it. With the last one, several processes can compile at the same time."""

LARGEST = 5
"""Number of tensors in a report."""

FORM = 3
"""Number of the form of cached reports; change it together with `_numbers`."""


def slice_devices(name: str) -> list[jax.Device]:
    """Return the devices of a slice, for which programs can be compiled.

    Raises:
        InputError: there is no such slice, or libtpu is missing.
    """
    size_of_slice(name)
    os.environ |= {**OF_LIBTPU, **os.environ}
    if importlib.util.find_spec("libtpu") is None:
        raise InputError("libtpu is missing; install it with: pip install 'routelaws[train,tpu]'")
    kind, _, shape = name.partition(":")
    options = {"chip_config_name": "megacore"} if kind == "v4" else {}
    options |= {"chips_per_host_bounds": [1, 1, 1]} if set(shape.split("x")) == {"1"} else {}
    try:
        return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise InputError(f"slice {name} does not exist for libtpu: {in_line(str(error))}") from error


def size_of_slice(name: str) -> int:
    """Return the number of devices of a slice.

    Raises:
        InputError: the name has another form.
    """
    kind, _, shape = name.partition(":")
    if kind not in MEMORY or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", shape, re.ASCII):
        raise InputError(f"slice {name!r} is not KIND:SHAPE, such as v5e:4x4; KIND is one of {', '.join(MEMORY)}")
    return math.prod(map(int, shape.split("x"))) * (2 if kind == "tpu7x" else 1)


def memory_of_slice(name: str) -> int:
    """Return the bytes that a program can use on a device of a slice."""
    return round(MEMORY[name.partition(":")[0]] * GIB)


def compile_training(config: TrainConfig, name: str) -> dict:
    """Return the numbers of the training steps alone, see `compile_run`."""
    return _compiled(lower_run(config, name, training_alone=True)[0], name, config.steps_per_call)


def compile_run(config: TrainConfig, name: str) -> dict:
    """Compile the training steps and the evaluation of a run for a slice, and return a report as JSON.

    The run uses its mesh, or the first device of the slice if it has no mesh. Numbers are for one device. Results are
    cached.

    Raises:
        InputError: there is no such slice, libtpu is missing or cannot compile the run, the mesh does not fit the
            slice, or the text of the program has an unknown form.
    """
    training, evaluation = lower_run(config, name)
    return {
        "slice": name,
        "mesh": config.mesh,
        "devices": size_of_slice(name) if config.mesh else 1,
        "available": memory_of_slice(name),
        "training": _compiled(training, name, config.steps_per_call),
        "evaluation": _compiled(evaluation, name, config.evaluation_batches()),
    }


def lower_run(config: TrainConfig, name: str, training_alone: bool = False) -> list[jax.stages.Lowered]:
    """Return the programs of the training steps and of the evaluation of a run, traced for a slice.

    Args:
        training_alone: return only the first one.

    Raises:
        InputError: there is no such slice, libtpu is missing, or the mesh does not fit the slice.
    """
    size = size_of_slice(name)
    if config.mesh is not None and parse_mesh(config.mesh).devices() != size:
        raise InputError(
            f"mesh {config.mesh} has {parse_mesh(config.mesh).devices()} devices, but slice {name} has {size}; "
            "make both equal"
        )
    devices, config = slice_devices(name), dataclasses.replace(config, attention="own")
    try:
        layout = open_layout(config, devices)
    except NotImplementedError as error:  # of JAX, for a mesh that does not follow the links of the slice
        raise InputError(f"slice {name} has no mesh {config.mesh}: {in_line(str(error))}") from error
    with traced_for("tpu"):
        return _lowered(config, layout, devices[0], training_alone)


def _lowered(config: TrainConfig, layout: Layout | None, device: jax.Device, training_alone: bool = False):
    """Return `lower_run` for a layout, or for one device."""
    everywhere = (
        jax.sharding.SingleDeviceSharding(device) if layout is None else jax.NamedSharding(layout.mesh, jax.P())
    )
    rows, table = everywhere if layout is None else layout.rows(), table_shape(config.model)

    def placed(shape, dtype=np.int32, sharding=everywhere):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    state = state_shapes(config, layout)
    state = jax.tree.map(lambda leaf: placed(leaf.shape, leaf.dtype, leaf.sharding or everywhere), state)
    table = None if table is None else placed(table)
    inputs = jax.eval_shape(lambda: run_inputs(config, None))
    inputs = jax.tree.map(lambda leaf: placed(leaf.shape, leaf.dtype), inputs)._replace(table=table)
    windows = config.batch_size, config.sequence_length + 1
    batches = placed((config.steps_per_call, *windows), sharding=rows)
    training = compiled_steps(config, "auction", layout).lower(state, batches, placed(()), placed(()), inputs)
    if training_alone:
        return [training]
    evaluate = compiled_evaluate.__wrapped__(config.model, compute_dtype(config), "own", layout)  # see `target`
    batches = placed((config.evaluation_batches(), *windows), sharding=rows)
    return [training, evaluate.lower(state.params, batches, table)]


def _compiled(lowered: jax.stages.Lowered, name: str, rounds: int) -> dict:
    """Return the numbers of a program, from the cache if it holds them.

    Args:
        rounds: steps or batches of a call; FLOPs and collectives are for one.
    """
    versions = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "libtpu")}
    key = hashlib.sha256(json.dumps([lowered.as_text(), name, versions, FORM]).encode()).hexdigest()
    path = private_folder(cache_folder(), "compiled") / f"{key}.json"
    if not path.exists():
        write_atomically(path, json.dumps(_numbers(lowered, rounds) | {"versions": versions}))
    return json.loads(path.read_bytes())


def _numbers(lowered: jax.stages.Lowered, rounds: int) -> dict:
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise InputError(f"libtpu cannot compile this run: {in_line(str(error))}") from error
        return {"fits": False, "message": str(error).splitlines()}
    program, memory, cost = Program(compiled.as_text()), compiled.memory_analysis(), compiled.cost_analysis()
    parts = {kind: getattr(memory, f"{field}_size_in_bytes") for kind, field in KINDS.items()}
    sent = {}
    for kind, _, times, size in program.collectives():
        count, total = sent.get(kind, (0, 0))
        sent[kind] = count + times / rounds, total + times * size / rounds
    return {
        "fits": True,
        "memory": parts | {"sum": sum(parts.values()) - 2 * parts["aliased"]},
        "product_flops": program.product_flops() / rounds,
        "moved_bytes": program.moved_bytes() / rounds,
        "compiler": {"flops": cost["flops"], "bytes": cost["bytes accessed"]},
        "collectives": {kind: {"count": count, "bytes": total} for kind, (count, total) in sent.items()},
        "uncounted_loops": program.uncounted,
        "largest": [tensor._asdict() for tensor in program.largest_tensors(LARGEST)],
    }
