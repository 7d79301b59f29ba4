"""The train step as a program in a file, lowered for tpu, cuda or cpu on any machine.

    content = export_train_step(config, ("tpu", "cuda"))     bytes; this machine needs no TPU and no GPU
    steps = load_train_step(content)                         on the other machine, with JAX and this package
    state, metrics = steps(state, batches, first_step, inputs, left=1)

The format is StableHLO of `jax.export`, which promises six months of compatibility. The program equals the program of a
live run, with two exceptions. In training, BASE assigns tokens by the auction on the device, because a file cannot
contain loops on the host. On CPU, attention and experts run as plain JAX, because the module `cpu` would tie the file
to one version of this package. Shapes are fixed: the model's shapes, b sequences of S + 1 tokens, and `steps_per_call`
steps per call. Learning rates, random keys and the table of a hash are inputs (`step.run_inputs`), so one file serves
all runs of the same shapes. The number of bad batches that may still be skipped is another input; `--skip-bad-batches`
has no effect. The program is for one device.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import export

from ... import cpu
from ...errors import InputError
from ..configuration import TrainConfig
from ..step import RunInputs, StepMetrics, TrainState, compiled_steps, run_inputs, state_shapes
from .run_folder import table_shape

PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms for which a train step can be exported."""


def export_train_step(config: TrainConfig, platforms: Sequence[str] = ("tpu",)) -> bytes:
    """Return the train step of a run as the content of a file for `load_train_step`.

    Args:
        platforms: some of `PLATFORMS`; this machine needs none of them.

    Raises:
        InputError: a platform is unknown or missing, or the run cannot be exported, for example because it has a mesh.
        ModuleNotFoundError: the package flatbuffers is missing.
    """
    return bytes(lower_train_step(config, platforms).serialize())


def lower_train_step(config: TrainConfig, platforms: Sequence[str] = ("tpu",)) -> export.Exported:
    """Return the train step as JAX's `Exported` object; `mlir_module()` gives the text of the program.

    Raises:
        InputError: a platform is unknown or missing, or the run cannot be exported, for example because it has a mesh.
    """
    unknown = [name for name in platforms if name not in PLATFORMS]
    if unknown or not platforms:
        platform = repr(unknown[0]) if unknown else "empty"
        raise InputError(f"platforms is {platform}; allowed: one or more of {', '.join(PLATFORMS)}")
    config.check()
    if config.mesh is not None:
        raise InputError(f"mesh is {config.mesh!r}; an exported step runs on one device; leave mesh out")
    if config.attention == "tokamax":
        raise InputError("attention is 'tokamax'; an exported step runs on every platform; use auto or own")
    config = dataclasses.replace(config, attention="own")
    state = state_shapes(config)
    structure = jax.tree.structure(state)
    steps = compiled_steps(config, base_method="auction")

    def program(leaves, batches, first_step, left, inputs):
        new_state, metrics = steps(jax.tree.unflatten(structure, leaves), batches, first_step, left, RunInputs(*inputs))
        return tuple(jax.tree.leaves(new_state)), tuple(metrics)

    table = table_shape(config.model)
    inputs = jax.eval_shape(lambda: run_inputs(config, None))
    inputs = inputs._replace(table=None if table is None else jax.ShapeDtypeStruct(table, np.int32))
    batches = jax.ShapeDtypeStruct((config.steps_per_call, config.batch_size, config.sequence_length + 1), np.int32)
    number = jax.ShapeDtypeStruct((), np.int32)
    jitted = jax.jit(program, donate_argnames="leaves")
    with cpu.portable():
        return export.export(jitted, platforms=tuple(dict.fromkeys(platforms)))(
            tuple(jax.tree.leaves(state)), batches, number, number, tuple(inputs)
        )


class LoadedTrainStep(NamedTuple):
    """A train step from a file. Call it as (state, batches, first_step, inputs, left=0) -> (state, `StepMetrics`).

    The input state is donated, as in a live run.

    Attributes:
        exported: JAX's own object
        run: the compiled call; it takes the state as a tuple of leaves
    """

    exported: export.Exported
    run: object

    def __call__(
        self, state: TrainState, batches: jax.Array, first_step: int, inputs: RunInputs, left: int = 0
    ) -> tuple[TrainState, StepMetrics]:
        """Take n steps.

        Args:
            state: weights and optimizer state, from `step.initial_state` or a checkpoint.
            batches: [n, b, S + 1] int32, with the exported n, b and S.
            first_step: number of the first of the n steps, from 0.
            inputs: result of `step.run_inputs` for the run.
            left: number of bad batches that may still be skipped (see `step.make_train_steps`).

        Raises:
            ValueError: the shapes or the platform differ from the exported shapes or platforms.
        """
        leaves, structure = jax.tree.flatten(state)
        new_leaves, metrics = self.run(tuple(leaves), batches, np.int32(first_step), np.int32(left), tuple(inputs))
        return jax.tree.unflatten(structure, new_leaves), StepMetrics(*metrics)


def load_train_step(content: bytes) -> LoadedTrainStep:
    """Return the train step that `export_train_step` made.

    Raises:
        InputError: this version of JAX cannot read the content as an exported program.
    """
    try:
        exported = export.deserialize(bytearray(content))
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise InputError(f"JAX {jax.__version__} cannot read this as an exported train step: {error}") from error
    return LoadedTrainStep(exported, jax.jit(exported.call, donate_argnums=0))
