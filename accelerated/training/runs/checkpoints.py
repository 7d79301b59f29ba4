"""Checkpoints of a run: written during training, atomic, and checked against a digest when they are read.

A checkpoint holds the arrays (weights and optimizer state) and the number of completed steps. It also holds the
position in the text, the time, and counts since the last evaluation. It needs no random keys, because they follow from
the seed of the run and the number of the step.

Orbax writes each checkpoint into a temporary folder and renames the folder, so a kill leaves no partial checkpoint.
Orbax does not detect later changes of a file, so each checkpoint has a digest of its whole content. A run skips a
damaged checkpoint with a message, and uses the previous checkpoint. The next save renames the damaged folder to
damaged-STEP. Arrays are read as numbers in Zarr's format and other fields as JSON, so reading a file never executes
code.

A run on one CPU packs a small state into a few long arrays (see `packing`), and writes a large state array by array.
Every run can read both formats.
"""

import contextlib
import gc
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from ...errors import InputError, StorageError
from ...files import REMEDIES, storage_errors, storage_line
from ...transformer import owned
from ..devices import hosts
from ..text import packing
from .record import digest_of_json

PACKED = "packed"
"""Name of the packed arrays in a checkpoint, and of the field that marks a packed checkpoint."""

LEAST = 19
"""The lowest priority of a thread on Linux."""

LARGE = 2**27
"""Bytes from which a state is written in place, without a copy: the next step then waits for the files."""

KEPT = 2
"""Default number of checkpoints kept per run: the last, and a spare."""


class Restored(NamedTuple):
    step: int  # training steps done
    state: dict  # tree of arrays, as saved
    extra: dict  # the other saved fields, as JSON


class Checkpoints:
    """The checkpoints of one run. Nothing is written, moved or deleted before the first `save`.

    Args:
        folder: folder of the checkpoints; the first `save` makes it if missing.
        tell: called with a line for each damaged checkpoint.
        keep_last: number of newest checkpoints to keep.
        keep_every: also keep checkpoints whose step is a multiple of this number.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        *,
        keep_last: int = KEPT,
        keep_every: int | None = None,
        keep: Sequence[int] = (),
    ):
        self.folder, self._tell = Path(folder), tell
        policies = ocp.training.preservation_policies
        rules = [policies.LatestN(keep_last), *([policies.EveryNSteps(keep_every)] if keep_every else [])]
        rules += [policies.CustomSteps(list(keep))] if keep else []
        self._rules = policies.AnyPreservationPolicy(rules)
        self._damaged: list[int] = []
        self._writer: ocp.training.Checkpointer | None = None
        self._thread = ThreadPoolExecutor(1, initializer=_give_way)
        self._begun: Future | None = None
        self._silence = contextlib.ExitStack()

    def save(self, step: int, state: dict, extra: dict) -> None:
        """Begin to write a checkpoint; it replaces an existing checkpoint of the same step.

        A state below `LARGE` is copied first, so the next step may free its memory. Its files are written while
        training continues. `wait` returns when they are complete. A larger state on one CPU is complete on return.

        Raises:
            StorageError: this checkpoint or the previous checkpoint could not be written.
        """
        self.wait()
        if self._writer is None:  # the writer's threads print errors; `wait` reports one line
            self._silence.enter_context(_silent_loggers())
            _ignore_closed_loops()
        shapes, held = jax.tree.map(wanted_of, state), _copy(state)
        if PACKED in held:  # Orbax takes some milliseconds before it starts its threads
            self._begun = self._thread.submit(self._write, step, shapes, held, extra)
            return
        with _quiet(), self._written():
            self._write(step, shapes, held, extra)
        if held["state"] is state:
            self.wait()

    def _write(self, step: int, shapes: dict, held: dict, extra: dict) -> None:
        state = packing.unpacked(held[PACKED], shapes) if PACKED in held else held["state"]
        metadata = {"whole": _digest(state, step, extra), "extra": extra, "beside": digest_of_json(extra)}
        metadata[PACKED] = PACKED in held
        self._writer = self._writer or self._open()
        with _uncompressed():
            self._writer.save_checkpointables_async(step, held, custom_metadata=metadata, overwrite=True)

    def _open(self) -> ocp.training.Checkpointer:
        """Return the writer of the folder, after removing partial files of a kill and renaming damaged checkpoints."""
        if hosts.is_writer():
            self._set_aside()
        hosts.wait_for_all("damaged checkpoints are set aside")
        return ocp.training.Checkpointer(
            self.folder.absolute(),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=self._rules,
            cleanup_tmp_directories=True,
        )

    def _set_aside(self) -> None:
        for step in self.steps():
            try:
                ocp.checkpointables_metadata(self._path(step))
            except Exception:  # Orbax would not open the folder
                self._damaged.append(step)
        for step in set(self._damaged):
            aside = self.folder / f"damaged-{step}"
            shutil.rmtree(aside, ignore_errors=True)
            self._path(step).rename(aside)

    def wait(self) -> None:
        """Wait until every checkpoint is complete on disk.

        Raises:
            StorageError: a checkpoint could not be written; earlier checkpoints are kept.
        """
        with _quiet(), self._written():
            begun, self._begun = self._begun, None
            if begun is not None:
                begun.result()
            if self._writer is not None:
                self._writer.wait()

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Raise `StorageError` with a one-line message if the body cannot write a checkpoint."""
        try:
            yield
        except Exception as error:
            number = next((n for n in REMEDIES if os.strerror(n) in _whole_text(error)), None)
            if number is None and not isinstance(error, OSError):
                raise
            reason = _first_cause(error) if number is None else os.strerror(number)
            raise StorageError(storage_line(self.folder, reason, number)) from error

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first.

        Raises:
            StorageError: the folder cannot be read.
        """
        if not os.path.isdir(self.folder):
            return []
        with storage_errors(self.folder):
            names = os.listdir(self.folder)
        # An incomplete checkpoint has another name; only the final rename gives it a number.
        return sorted((int(name) for name in names if name.isascii() and name.isdecimal()), reverse=True)

    def check_has(self, step: int) -> None:
        """Raise `InputError` if a step has no checkpoint. The message lists the steps with checkpoints."""
        steps = sorted(self.steps())
        if step not in steps:
            there = ", ".join(f"{saved:,}" for saved in steps) or "none"
            raise InputError(
                f"{self.folder}: has no checkpoint at step {step:,}; available: {there}; train with a different "
                "--checkpoint-every or "
                "--keep-every to keep more"
            )

    def _path(self, step: int) -> Path:
        return self.folder.absolute() / str(step)

    def beside(self) -> dict | None:
        """Return the fields (without arrays) of the newest readable checkpoint, None if no checkpoint is readable."""
        for step in self.steps():
            with _quiet(), _alone(), contextlib.suppress(Exception):  # `restore` reports the damage
                return _whole_metadata(self._path(step))["extra"]
        return None

    def restore(self, like: dict, check: Callable[[int, dict], None] | None = None) -> Restored | None:
        """Return the newest complete checkpoint, or None if the run has no checkpoints.

        Args:
            like: a tree of arrays with the expected shapes, dtypes and placement. Arrays on a mesh are restored onto
                this mesh, from a checkpoint of any mesh. Other arrays are restored onto one device.
            check: a function of the step and the other fields, called before the arrays are read. It raises
                `InputError` if the files of the run do not match the checkpoint.

        Raises:
            InputError: every checkpoint is damaged or belongs to another model, or `check` raises an error.
        """
        steps, misfits = self.steps(), 0
        for step in steps:
            with _quiet():
                try:
                    return self._read(step, like, check)
                except InputError:
                    raise
                except Exception as error:  # a damaged file can raise anything
                    reason, fits = _first_cause(error), not isinstance(error, packing.MisfitError)
                gc.collect()  # abandoned reads print warnings when they are collected; silence them
            _ignore_closed_loops()
            if fits:
                self._damaged.append(step)
            misfits += not fits
            what = "is damaged and skipped" if fits else "does not match the model in config.json"
            self._tell(f"{self.folder}: checkpoint at step {step:,} {what} ({reason})")
        if misfits:
            raise InputError(f"{self.folder}: no checkpoint matches the model in config.json; restore config.json")
        if steps:
            raise InputError(f"{self.folder}: every checkpoint is damaged; delete the folder to train this run again")
        return None

    def restore_at(self, step: int, like: dict, check: Callable[[int, dict], None] | None = None) -> Restored:
        """Return the checkpoint of one step; see `restore` for `like` and `check`.

        Raises:
            InputError: the step has no checkpoint, the checkpoint is damaged, or `check` raises an error.
        """
        self.check_has(step)
        with _quiet():
            try:
                return self._read(step, like, check)
            except InputError:
                raise
            except Exception as error:  # as in `restore`
                reason = _first_cause(error)
        raise InputError(f"{self.folder}: checkpoint at step {step:,} is damaged ({reason}); use another one")

    def _read(self, step: int, like: dict, check: Callable[[int, dict], None] | None) -> Restored:
        state, wrong = None, None
        try:
            with _alone():
                metadata = _whole_metadata(self._path(step))
                extra = metadata["extra"]
                if check is not None:
                    check(step, extra)
                state = self._load(step, like, packed=metadata[PACKED])
        except Exception as error:
            wrong = error
        if hosts.asked_anywhere(wrong is not None):
            raise wrong or ValueError("another process cannot read its part")
        if _digest(state, step, extra) != metadata["whole"]:
            raise ValueError("its content does not match its digest")
        return Restored(step, state, extra)

    def _load(self, step: int, like: dict, *, packed: bool) -> dict:
        """Return the arrays of a checkpoint on their target devices.

        Raises:
            ValueError: the content does not match `like`; other errors come from Orbax.
        """
        wanted = jax.tree.map(wanted_of, like)
        if not packed:
            return ocp.load_checkpointables(self._path(step), {"state": wanted})["state"]
        pieces = ocp.load_checkpointables(self._path(step), {PACKED: None})[PACKED]
        return jax.tree.map(_placed, packing.unpacked(pieces, wanted), wanted)

    def close(self) -> None:
        """Wait for pending writes and release the folder.

        Raises:
            StorageError: the last checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            with self._silence, _quiet(), contextlib.suppress(Exception):  # the error has been reported
                if self._writer is not None:
                    self._writer.close()


def _whole_metadata(path: Path) -> dict:
    metadata = ocp.checkpointables_metadata(path).custom_metadata
    if metadata["beside"] != digest_of_json(metadata["extra"]):
        raise ValueError("its content does not match its digest")
    return metadata


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let Orbax read without waiting for other processes."""
    if jax.process_count() == 1:
        yield
        return
    me = jax.process_index()
    with _context(primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process_{me}"):
        yield


def _context(**options) -> ocp.Context:
    context = ocp.Context()
    if not hasattr(context, "multiprocessing"):  # versions before 0.12 take all options at once
        return ocp.Context(multiprocessing_options=ocp.options.MultiprocessingOptions(**options))
    for name, value in options.items():
        setattr(context.multiprocessing, name, value)
    return context


def _uncompressed() -> ocp.Context:
    """Return the options of a write without compression. Compressed weights need 8 % less disk, but memory and time."""
    context = ocp.Context()
    if hasattr(context, "array"):  # versions before 0.12 always compress
        context.array.saving.use_compression = False
    return context


def _give_way() -> None:
    """Give this thread and the threads that it starts the lowest priority, so that they do not slow training.

    Threads of a training step wait for each other at every operation, so a delay of one thread delays all threads. The
    function does nothing outside Linux.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST)


def _copy(state: dict) -> dict:
    """Return the arrays for Orbax to write, copied into separate memory; large arrays of one CPU are not copied.

    Arrays of a single CPU device are packed, because Orbax writes one long array faster than many short arrays.
    """
    leaves = jax.tree.leaves(state)
    if not all(_on_one_cpu(getattr(leaf, "sharding", None)) for leaf in leaves):
        return {"state": _copy_in_place(state)}
    large = sum(leaf.nbytes for leaf in leaves) >= LARGE
    return {"state": state} if large else {PACKED: packing.packed(state)}


def _on_one_cpu(sharding) -> bool:
    """Return whether an array is in host memory. A copy from an accelerator would block."""
    single = isinstance(sharding, jax.sharding.SingleDeviceSharding)
    return single and all(device.platform == "cpu" for device in sharding.device_set)


@jax.jit
def _copy_in_place(tree: dict) -> dict:
    return jax.tree.map(jnp.copy, tree)


def wanted_of(leaf) -> jax.ShapeDtypeStruct:
    """Return the shape, dtype and placement of an array, or of such a description of it."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _placed(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    return owned(jax.make_array_from_callback(array.shape, wanted.sharding, lambda place: array[place]))


def _whole_text(error: BaseException | None) -> str:
    return "" if error is None else f"{error}\n{_whole_text(error.__cause__ or error.__context__)}"


def _first_cause(error: BaseException) -> str:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]


@contextlib.contextmanager
def _silent_loggers() -> Iterator[None]:
    """Silence Orbax for errors that our messages report, and for false alarms."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("absl", "asyncio"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _ignore_closed_loops() -> None:
    """Silence the threads of abandoned reads and writes until the process ends. Their event loops are closed."""
    before = sys.unraisablehook
    if getattr(before, "ignores_closed_loops", False):
        return

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    hook.ignores_closed_loops = True
    sys.unraisablehook = hook


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of Orbax and messages of the interpreter about abandoned reads."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with _silent_loggers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


def _digest(tree: dict, step: int, extra: dict) -> str:
    """Return one hash of the step, the other fields, and the arrays of a tree with their paths, dtypes and shapes."""
    result = hashlib.blake2b(digest_size=16)
    result.update(f"{step} {json.dumps(extra, sort_keys=True)}\n".encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(hosts.whole(leaf))
        result.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        result.update(array.reshape(-1).view(np.uint8).data)
    return result.hexdigest()
