"""One run on many hosts: how processes join, which rows each reads, and which process writes.

    process 0   devices 0 1 2 3   rows 0-3 of every batch    writes the log, the table and the other files
    process 1   devices 4 5 6 7   rows 4-7                   checkpoints: every process its own part of the arrays

JAX's runtime (`jax.distributed`) does the work. Each host has one process; under SLURM and Open MPI, each GPU has one
process. All processes run the same program on one mesh of all devices. This file joins the processes and has the few
functions that all processes must call. Each process reads the rows of a batch that its devices need, so a batch does
not depend on the number of processes.

How processes find each other:

    --distributed auto                         SLURM, Open MPI and TPU pods: JAX reads the variables of their launchers
    --coordinator HOST:PORT --processes N --process-id I      elsewhere, with the same HOST:PORT for all processes
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ...errors import InputError
from ..stopping import Resumable

TIMEOUT = 300
"""Seconds that a process waits for the other processes when it joins."""


TPU_NAMES = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "MEGASCALE_COORDINATOR_ADDRESS", "TPU_ML_PLATFORM")
"""Environment variables of a process on a TPU VM; at least one is set."""


class Hosts(NamedTuple):
    """The address and the index by which the processes of a run find each other.

    Attributes:
        coordinator: HOST:PORT of process 0; None if a launcher provides it
        processes: number of processes; None if a launcher provides it
        process_id: index of this process, from 0; None if a launcher provides it
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None


def launcher(environment: Mapping[str, str]) -> str | None:
    """Return the launcher of this process, by its environment variables; None without a launcher.

    `jax.distributed.initialize()` supports these launchers. If JAX finds TPU chips at import, it sets TPU_ML_PLATFORM.
    If ssh starts a command on a TPU VM, only this variable is set, and JAX asks the VM for all other facts. Only
    versions of Open MPI up to 4 give the address of process 0.
    """
    if {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"} <= set(environment):
        return "SLURM"
    if "OMPI_MCA_orte_hnp_uri" in environment:
        return "Open MPI"
    return "TPU pod" if any(environment.get(name) for name in TPU_NAMES) else None


def hosts_of(
    distributed: str | None,
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Hosts | None:
    """Return the address and index of this process, from the flags of a command; None for a single process.

    Raises:
        InputError: the flags contradict each other or are out of range, or no launcher started this process.
    """
    flags = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    missing = [name for name, value in flags.items() if value is None]
    if distributed not in (None, "auto"):
        raise InputError(f"--distributed is {distributed!r}; allowed: auto")
    if distributed == "auto":
        if extra := ", ".join(name for name in flags if name not in missing):
            raise InputError("--distributed auto finds the other processes itself; leave out " + extra)
        _check_launcher(environment)
        return Hosts()
    if len(missing) == 3:
        return None
    if missing:
        raise InputError(f"{', '.join(missing)}: missing; give all three: {', '.join(flags)}")
    _check_place(coordinator, processes, process_id)
    return Hosts(coordinator, processes, process_id)


def _check_launcher(environment: Mapping[str, str]) -> None:
    if launcher(environment) is None:
        who = "SLURM, Open MPI or a TPU pod did not start this process"
        if "OMPI_COMM_WORLD_SIZE" in environment:
            who = "Open MPI 5 does not report the address of process 0"
        raise InputError(f"--distributed auto: {who}; give --coordinator HOST:PORT, --processes N and --process-id I")


def _check_place(coordinator: str, processes: int, process_id: int) -> None:
    host, colon, port = coordinator.rpartition(":")
    if not host or not colon or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator {coordinator}: HOST:PORT of process 0 is needed, such as 10.0.0.1:1234")
    if processes < 1:
        raise InputError(f"--processes {processes} is out of range; use 1 or more")
    if not 0 <= process_id < processes:
        raise InputError(f"--process-id {process_id} is out of range; use 0 to {processes - 1}")


@contextlib.contextmanager
def joined(hosts: Hosts | None) -> Iterator[None]:
    """Join the processes of a run for a `with` block; enter the block before JAX first looks for devices.

    A process that ends with an error does not wait for the other processes. The other processes then stop too: their
    next collective fails, or the launcher ends them.

    Raises:
        InputError: the other processes could not be reached.
    """
    if hosts is None:
        yield
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # for CPU devices
    jax.config.update("jax_enable_preemption_service", False)  # this service would take SIGTERM from `stopping`
    try:
        jax.distributed.initialize(*hosts, initialization_timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the other processes could not be joined within {TIMEOUT} s: {reason}") from error
    try:
        yield
    except Resumable:  # all stop together
        jax.distributed.shutdown()
        raise
    jax.distributed.shutdown()  # this waits for the other processes


def is_writer() -> bool:
    """Return whether this process writes the log, table, configuration and tokenizer of the run."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Wait until every process has called this with the same name `what`."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


@contextlib.contextmanager
def writer_first(what: str) -> Iterator[None]:
    """Let process 0 run the body first, so that the other processes find its files on disk."""
    if not is_writer():
        wait_for_all(what)
    yield
    if is_writer():
        wait_for_all(what)


def own_rows(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> np.ndarray:
    """Return the sorted indices of the sequences of batches [n, b, S + 1] on this process's devices."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    return np.unique(np.concatenate([np.arange(shape[1])[index[1]] for index in indices]))


def batch_of_all(
    own: np.ndarray, rows: np.ndarray, sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> jax.Array:
    """Return the global batches [n, b, S + 1], made of the sequences that each process has read.

    Args:
        rows: indices of these rows, from `own_rows`.
    """

    def piece(index):
        wanted = np.searchsorted(rows, np.arange(shape[1])[index[1]])
        return own.take(wanted, 1)

    return jax.make_array_from_callback(shape, sharding, piece)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder of a run in process 0, and a folder with copies of its files in each other process.

    The copies are deleted at the end. Checkpoints are not copied, because all processes write them together.

    Args:
        folder: folder of the run, in a file system that all processes see.
    """
    if jax.process_count() == 1:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="routelaws-") as scratch:
        if not is_writer() and folder.is_dir():
            for file in folder.iterdir():
                if file.is_file() and not file.name.startswith("."):
                    shutil.copyfile(file, Path(scratch) / file.name)
        wait_for_all("copies of the folder")
        yield folder if is_writer() else Path(scratch)


def asked_anywhere(here: bool) -> bool:
    """Return whether `here` is true in at least one process. All processes must call this function."""
    if jax.process_count() == 1:
        return here
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(here))))


def whole(tree):
    """Return whole NumPy arrays in every process. All processes must call this with the same arrays."""

    def one(leaf):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            from jax.experimental import multihost_utils

            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
