"""Checkpoints of a run: atomic, checked against a digest when they are read, the last two kept.

Orbax writes each checkpoint into a temporary folder and renames it, so a kill leaves either a whole checkpoint or none.
What Orbax does not notice is a file that changed afterwards. Each checkpoint therefore carries a digest of its arrays;
one that cannot be read, or whose arrays do not match, is passed over in favour of the one before, and that is said.
"""

import contextlib
import gc
import hashlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from ..errors import InputError

KEPT = 2
"""Checkpoints kept per run: the last one, and one to fall back to."""


class Restored(NamedTuple):
    """A checkpoint that was read and found whole."""

    step: int  # training steps done
    state: dict  # tree of arrays, as saved
    extra: dict  # what was saved beside it, as JSON


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are; made if missing.
        say: called with one line whenever a damaged checkpoint is passed over.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self.folder, self._say = Path(folder), say
        self._checkpointer = ocp.training.Checkpointer(
            self.folder.absolute(),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=ocp.training.preservation_policies.LatestN(KEPT),
            cleanup_tmp_directories=True,
        )

    def save(self, step: int, state: dict, extra: dict) -> None:
        """Write a checkpoint; one that exists for the same step is replaced."""
        metadata = {"digest": _digest(state), "extra": extra}
        with _quiet():
            self._checkpointer.save_checkpointables(step, {"state": state}, custom_metadata=metadata, overwrite=True)

    def restore(self, like: dict) -> Restored | None:
        """Return the newest checkpoint that is whole, or None if there is none at all.

        Args:
            like: a tree of arrays with the shapes and dtypes that are expected, and where they are wanted: arrays of a
                mesh are restored onto it, whatever mesh they were saved from, all others onto one device.

        Raises:
            InputError: there are checkpoints, and every one is damaged.
        """
        steps = sorted((checkpoint.step for checkpoint in self._checkpointer.checkpoints), reverse=True)
        for step in steps:
            with _quiet():
                try:
                    return self._read(step, like)
                except Exception as error:  # whatever a damaged file makes the reader do
                    reason = _first_cause(error)
                gc.collect()  # abandoned reads complain when they are collected; let them do so unheard
            self._say(f"{self.folder}: checkpoint at step {step} is damaged and passed over ({reason})")
        if steps:
            raise InputError(f"{self.folder}: every checkpoint is damaged; delete the folder to train this run anew")
        return None

    def _read(self, step: int, like: dict) -> Restored:
        metadata = self._checkpointer.metadata(step).custom_metadata
        abstract = jax.tree.map(_wanted, like)
        state = self._checkpointer.load_checkpointables(step, {"state": abstract})["state"]
        if _digest(state) != metadata["digest"]:
            raise ValueError("its arrays do not match their digest")
        return Restored(step, state, metadata["extra"])

    def close(self) -> None:
        """Wait for writes that are under way."""
        self._checkpointer.close()


def _wanted(leaf) -> jax.ShapeDtypeStruct:
    """Return what to read into; without a sharding Orbax wants the devices that the array was saved from."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _first_cause(error: BaseException) -> str:
    """Return one line on what went wrong first."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax from printing what is said here in one line, or is no news."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("absl", "asyncio"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # reads that were given up, when they are collected
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        for logger, level in levels.items():
            logger.setLevel(level)


def _digest(tree: dict) -> str:
    """Return a hash of every array of a tree, with its path, dtype and shape."""
    result = hashlib.blake2b(digest_size=16)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        result.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        result.update(array.tobytes())
    return result.hexdigest()
