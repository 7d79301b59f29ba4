"""Read the weights and the other files of a finished or stopped run."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from routelaws.reference.configuration import ModelConfig
from routelaws.reference.upcycling import upcycle

from ...errors import InputError
from ..configuration import TrainConfig
from ..devices.mesh import Layout
from ..step import TrainState, initial_state, state_shapes
from ..text.tokenizer import Tokenizer
from ..watch import Watch, silent
from .checkpoints import Checkpoints
from .record import record_in
from .run_folder import check_files, read_config, read_hash_table, read_tokenizer

UPCYCLING_STREAM = 3
"""Number folded into the seed for the choice of hidden units to redraw."""

DENSE_FIELDS = ("vocab_size", "d_model", "blocks", "heads", "kqv_size", "activation", "positions", "norm")
"""Fields that must be equal in a dense source run and the routed model."""


class SavedRun(NamedTuple):
    """The last complete checkpoint of a run, with the other files of the run."""

    config: TrainConfig
    params: dict
    table: np.ndarray | None  # the hash table; None for other routers
    tokenizer: Tokenizer
    texts: dict[str, str]  # known digests of the texts, see `record`
    optimizer: optax.OptState | None  # None unless requested
    tokens: int  # training tokens of the weights, including earlier runs
    step: int

    def load_tokenizer(self) -> Tokenizer:
        return self.tokenizer


def load_run(folder: str | Path, watch: Watch = silent, *, moments: bool = False) -> SavedRun:
    """Return the run in a folder, after checking each file against its last complete checkpoint.

    Raises:
        InputError: the folder has no run or no checkpoint, or a file is damaged or belongs to another run.
    """
    folder = Path(folder)
    config = read_config(folder)
    shapes = state_shapes(config)
    checkpoints = Checkpoints(folder / "checkpoints", lambda line: watch("say", line=line))
    parts = {}

    def check(step: int, extra: dict) -> None:
        record = record_in(extra)
        parts["files"] = check_files(folder, config, record, f"the checkpoint of step {step:,}")
        parts["texts"], parts["before"] = record.texts, extra["initial_tokens"]

    try:
        restored = checkpoints.restore(shapes._asdict(), check)
    finally:
        checkpoints.close()
    if restored is None:
        raise InputError(f"{folder}: has no checkpoint yet")
    tokens = parts["before"] + restored.step * config.batch_size * config.sequence_length
    optimizer = restored.state["optimizer"] if moments else None
    return SavedRun(config, restored.state["params"], *parts["files"], parts["texts"], optimizer, tokens, restored.step)


def lent(config: TrainConfig, layout: Layout | None, watch: Watch = silent) -> tuple[TrainState, int]:
    """Return the initial state with the weights of the run `init_from`, and the number of tokens that trained them.

    With `init_optimizer` the state also has the optimizer state of that run. Weights that are upcycled are on one
    device, also with a layout.
    """
    saved = load_run(config.init_from, watch, moments=config.init_optimizer)
    if upcycles(config.model, saved.config.model):
        state, take = initial_state(config), _upcycling(config)
    else:
        state, take = initial_state(config, layout), lambda theirs, _: theirs
    moments = state.optimizer
    if config.init_optimizer:
        pairs = saved.optimizer, state.optimizer
        moments = jax.tree.map(lambda a, b: take(a, b) if _is_params(b) else a, *pairs, is_leaf=_is_params)
    return TrainState(take(saved.params, state.params), moments), saved.tokens


def upcycles(model: ModelConfig, lender: ModelConfig) -> bool:
    """Return whether the FFNs of the source run become experts: the source is dense, and the model is not."""
    return lender.router == "dense" and model.router != "dense"


def _upcycling(config: TrainConfig) -> Callable[[dict, dict], dict]:
    """Return a function that upcycles weights or moments from a dense tree (see `reference.upcycling`)."""
    model, random = config.model, np.random.default_rng([config.seed, UPCYCLING_STREAM])
    uniforms = random.random((model.num_routed, model.expert_count, model.ffn_width // model.granularity))
    options = {"noise": config.init_noise, "redrawn": config.init_redraw, "uniforms": uniforms}
    return lambda dense, fresh: jax.tree.map(jnp.asarray, upcycle(dense, fresh, model, **options))


def _is_params(node) -> bool:
    return isinstance(node, dict) and "embedding" in node


def check_params(config: TrainConfig) -> None:
    """Raise `InputError` if the run of `init_from` has no checkpoints, or its weights do not fit the model."""
    folder, model = config.init_from, config.model
    lender = read_config(folder)
    if upcycles(model, lender.model):
        shape = {name: getattr(model, name) for name in DENSE_FIELDS}
        check_shapes(folder, dataclasses.replace(config, model=ModelConfig(**shape)))
        return
    for name in ("init_noise", "init_redraw"):
        if getattr(config, name):
            raise InputError(
                f"{name} is {getattr(config, name)}, but {folder} has no dense FFNs to copy as experts; leave it out"
            )
    check_shapes(folder, config)


def check_shapes(folder: str | Path, wanted: TrainConfig) -> None:
    """Raise `InputError` if the run in `folder` has no checkpoints, or its weights have other shapes than `wanted`."""
    config, params = read_config(folder), state_shapes(wanted).params
    if not os.path.isdir(Path(folder) / "checkpoints"):
        raise InputError(f"{folder}: has no checkpoints")
    shapes = state_shapes(config)
    ours, theirs = (jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (params, shapes.params))
    if ours != theirs:
        ours, theirs = (
            dict(jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, tuple)))
            for tree in (ours, theirs)
        )
        path = next(path for path in [*ours, *theirs] if ours.get(path) != theirs.get(path))
        raise InputError(
            f"{folder}: its model ({config.name()}, vocabulary {config.model.vocab_size}) has different shapes; the "
            f"first: {'/'.join(part.key for part in path)} {theirs.get(path, 'is not there')}, needed: "
            f"{ours.get(path, 'none')}"
        )


def check_lender(folder: Path, tokenizer: Path, table: np.ndarray | None) -> None:
    """Raise `InputError` if the run `init_from` has another tokenizer or another hash table."""
    read_tokenizer(folder)
    if (folder / "tokenizer.model").read_bytes() != Path(tokenizer).read_bytes():
        raise InputError(f"{folder}: that run has another tokenizer, so its weights cannot be used")
    theirs = read_hash_table(folder, read_config(folder).model)
    if table is not None and theirs is not None and not np.array_equal(table, theirs):
        raise InputError(f"{folder}: that run has another hash table, so its experts cannot be used")
