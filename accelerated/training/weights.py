"""The weights of a finished or stopped run, for another run or another use."""

from pathlib import Path

import jax
import numpy as np

from ..errors import InputError
from .checkpoints import Checkpoints
from .run_folder import read_config, read_hash_table
from .step import TrainState, initial_state
from .watch import Watch, silent


def load_params(folder: str | Path, like: dict, watch: Watch = silent) -> dict:
    """Return the weights of the last whole checkpoint of the run in `folder`.

    Args:
        folder: a run folder.
        like: a tree with the shapes that are expected.
        watch: told of damaged checkpoints.

    Raises:
        InputError: no run, no checkpoint, or weights of another shape.
    """
    shapes = check_params(folder, like)
    checkpoints = Checkpoints(Path(folder) / "checkpoints", lambda line: watch("say", line=line))
    try:
        restored = checkpoints.restore(shapes._asdict())
    finally:
        checkpoints.close()
    if restored is None:
        raise InputError(f"{folder}: has no checkpoint yet")
    return restored.state["params"]


def load_own_params(folder: str | Path, watch: Watch = silent) -> dict:
    """Return the weights of the last whole checkpoint of the run in `folder`, in the shapes of its own model."""
    config = read_config(Path(folder))
    return load_params(folder, jax.eval_shape(lambda: initial_state(config)).params, watch)


def check_params(folder: str | Path, like: dict) -> TrainState:
    """Return the shapes of the state of the run in `folder`; `InputError` where `load_params` could not use it."""
    config = read_config(folder)
    if not (Path(folder) / "checkpoints").is_dir():
        raise InputError(f"{folder}: has no checkpoints")
    shapes = jax.eval_shape(lambda: initial_state(config))
    ours, theirs = (jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (like, shapes.params))
    if ours != theirs:
        ours, theirs = (dict(jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_shape)) for tree in (ours, theirs))
        path = next(path for path in [*ours, *theirs] if ours.get(path) != theirs.get(path))
        raise InputError(
            f"{folder}: its model ({config.name()}, vocabulary {config.model.vocab_size}) has other shapes; the first: "
            f"{'/'.join(part.key for part in path)} {theirs.get(path, 'is not there')}, needed: "
            f"{ours.get(path, 'none')}"
        )
    return shapes


def _is_shape(node) -> bool:
    return isinstance(node, tuple)


def check_lender(folder: Path, tokenizer: Path, table: np.ndarray | None) -> None:
    """Raise `InputError` where the weights of a run mean something else here: other tokens, or another hash table."""
    if (folder / "tokenizer.model").read_bytes() != Path(tokenizer).read_bytes():
        raise InputError(f"{folder}: that run has another tokenizer, so its weights are for other tokens")
    theirs = read_hash_table(folder)
    if table is not None and theirs is not None and not np.array_equal(table, theirs):
        raise InputError(f"{folder}: that run has another hash table, so its experts are for other tokens")
