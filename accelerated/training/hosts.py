"""One run on many hosts: processes that join, what each reads, and which one writes.

    process 0   devices 0 1 2 3   rows 0-3 of every batch    writes the log, the table and the other files
    process 1   devices 4 5 6 7   rows 4-7                   checkpoints: every process its own part of the arrays

JAX's own runtime does the work (`jax.distributed`): one process for each host (for each GPU under SLURM and Open MPI,
as JAX decides there), all of which run the same program on one mesh of all devices. Here is how a run is started on
them, and the few places where a process has to know that it is not alone. A batch is the same one whatever the number
of processes: each process reads those of its rows that its devices hold.

How processes find each other:

    --distributed auto                         SLURM, Open MPI and TPU pods: JAX reads what their launchers have set
    --coordinator HOST:PORT --processes N --process-id I      anywhere else, the same HOST:PORT for all
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from ..errors import InputError

TIMEOUT = 300
"""Seconds that a process waits for the others when it joins."""


class Hosts(NamedTuple):
    """How the processes of a run find each other.

    Attributes:
        coordinator: HOST:PORT of process 0; None where a launcher says it
        processes: how many there are; None where a launcher says it
        process_id: which of them this is, from 0; None where a launcher says it
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None


def launcher(environment: Mapping[str, str]) -> str | None:
    """Return who has started this process as one of several, by what it left in the environment; None for nobody.

    These are the launchers that `jax.distributed.initialize()` asks by itself.
    """
    if {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"} <= set(environment):
        return "SLURM"
    if "OMPI_MCA_orte_hnp_uri" in environment:
        return "Open MPI"
    workers = environment.get("TPU_WORKER_HOSTNAMES") or environment.get("MEGASCALE_COORDINATOR_ADDRESS")
    return "TPU pod" if workers or "TPU_WORKER_ID" in environment else None


def hosts_of(
    distributed: str | None,
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Hosts | None:
    """Return how the processes find each other, by the flags of a command; None for a process alone.

    Args:
        distributed: "auto" or None.
        coordinator: HOST:PORT.
        processes: N.
        process_id: I.
        environment: of the process.

    Raises:
        InputError: flags that do not go together, that are out of range, or no launcher where one is needed.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if distributed not in (None, "auto"):
        raise InputError(f"--distributed is {distributed!r}; allowed: auto")
    if distributed == "auto":
        if len(missing) < 3:
            raise InputError("--distributed auto finds the other processes by itself; leave out " + _rest(given))
        if launcher(environment) is None:
            raise InputError(
                "--distributed auto: neither SLURM, Open MPI nor a TPU pod has started this process; give --coordinator "
                "HOST:PORT, --processes N and --process-id I"
            )
        return Hosts()
    if len(missing) == 3:
        return None
    if missing:
        raise InputError(f"{', '.join(missing)}: missing beside {_rest(given)}; all three are needed")
    host, colon, port = coordinator.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator {coordinator}: HOST:PORT of process 0 is needed, such as 10.0.0.1:1234")
    if processes < 1:
        raise InputError(f"--processes is {processes}; at least 1")
    if not 0 <= process_id < processes:
        raise InputError(f"--process-id is {process_id}; allowed with --processes {processes}: 0 to {processes - 1}")
    return Hosts(coordinator, processes, process_id)


def _rest(given: dict) -> str:
    return ", ".join(name for name, value in given.items() if value is not None)


@contextlib.contextmanager
def joined(hosts: Hosts | None) -> Iterator[None]:
    """Be one of the processes of a run, from before JAX is first asked for a device until the end.

    A process that ends with an error does not wait for the others, so that they learn of it: their next collective
    fails, or the launcher ends them.

    Args:
        hosts: from `hosts_of`; nothing happens for None.

    Raises:
        InputError: the others could not be reached.
    """
    if hosts is None:
        yield
        return
    if jax.config.read("jax_platforms") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(*hosts, initialization_timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the other processes could not be joined within {TIMEOUT} s: {reason}") from error
    yield
    jax.distributed.shutdown()  # waits for the others


def is_writer() -> bool:
    """Return whether this process writes what one process alone writes: log, table, configuration, tokenizer."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Return when every process has come here.

    Args:
        what: a name of the place, the same for all.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def from_writer(value: bytes) -> bytes:
    """Return what process 0 gave, in every process."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    length = int(multihost_utils.broadcast_one_to_all(np.int64(len(value))))
    padded = np.zeros(length, np.uint8)
    if is_writer():
        padded[:] = np.frombuffer(value, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()


def rows_of(sharding: jax.sharding.Sharding, shape: tuple[int, ...], axis: int) -> list[slice]:
    """Return the parts of one axis of a global array that the devices of this process hold, each once, in order.

    Args:
        sharding: of the array.
        shape: of the array.
        axis: which one.
    """
    indices = sharding.addressable_devices_indices_map(shape).values()
    parts = {index[axis].indices(shape[axis])[:2] for index in indices}
    return [slice(first, last) for first, last in sorted(parts)]


def batch_of_all(
    read: Callable[[slice], np.ndarray], sharding: jax.sharding.Sharding, shape: tuple[int, ...], axis: int = 1
) -> jax.Array:
    """Return batches of all processes, of which this one reads what its devices hold.

    Args:
        read: from a slice of the sequences of a batch to these sequences of all batches.
        sharding: of the batches.
        shape: of the batches, [n, b, S + 1].
        axis: that of the sequences.
    """
    parts = {(rows.start, rows.stop): read(rows) for rows in rows_of(sharding, shape, axis)}

    def piece(index):
        own = parts[index[axis].indices(shape[axis])[:2]]
        return own[tuple(slice(None) if i == axis else part for i, part in enumerate(index))]

    return jax.make_array_from_callback(shape, sharding, piece)


def whole(tree):
    """Return arrays as NumPy arrays, whole, in every process; all processes have to ask for the same."""

    def one(leaf):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            from jax.experimental import multihost_utils

            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
