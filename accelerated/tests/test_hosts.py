"""A run on many hosts: the flags, the rows of each process, and equal results of two processes and one."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.schema import TIME_COLUMNS
from routelaws.accelerated.training import loop
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.devices import hosts
from routelaws.accelerated.training.devices.hosts import Hosts, batch_of_all, hosts_of, launcher, own_rows
from routelaws.accelerated.training.runs.result_rows import read_rows
from routelaws.accelerated.training.stopping import Resumable
from routelaws.accelerated.training.text.batches import training_batches

from .small_runs import tokens_of, words_of

SLURM = {name: "1" for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")}
SLURM["SLURM_STEP_NODELIST"] = "node[1-2]"
OPEN_MPI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2"}
OPEN_MPI_5 = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PRTE_LAUNCHED": "1"}
POD = {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2", "TPU_WORKER_ID": "0"}
BY_SSH = {"TPU_ML_PLATFORM": "JAX"}


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (SLURM, "SLURM"),
        (OPEN_MPI, "Open MPI"),
        (POD, "TPU pod"),
        (BY_SSH, "TPU pod"),
        ({"SLURM_JOB_ID": "7"}, None),
        (OPEN_MPI_5, None),
    ],
)
def test_who_started_this_process(environment, name):
    """An allocation without a step (`salloc` without `srun`) starts a single process."""
    assert launcher(environment) == name
    if name is None:
        reason = "SLURM, Open MPI or a TPU pod did not start this process"
        if environment is OPEN_MPI_5:
            reason = "Open MPI 5 does not report the address of process 0"
        with pytest.raises(InputError, match=f"--distributed auto: {reason}.*; give --coordinator HOST:PORT"):
            hosts_of("auto", None, None, None, environment)
    else:
        assert hosts_of("auto", None, None, None, environment) == Hosts(None, None, None)
        assert hosts_of(None, None, None, None, environment) is None, "only where it is asked for"


class Cut:
    """The sharding of batches of eight sequences over two processes with two devices each, as one process sees it.

    `places` are (first, last) of the sequences on each device of the process.
    """

    def __init__(self, *places):
        self.places = places

    def addressable_devices_indices_map(self, shape):
        assert shape[1] == 8
        return {i: (slice(None), slice(*place), slice(None)) for i, place in enumerate(self.places)}


@pytest.mark.parametrize(
    ("places", "rows"),
    [
        ([(4, 6), (6, 8)], [4, 5, 6, 7]),
        ([(0, 2), (4, 6)], [0, 1, 4, 5]),  # a mesh with neighbours on other hosts
        ([(0, 4), (0, 4)], [0, 1, 2, 3]),  # two parts of a model, with the same sequences
        ([(None, None)], list(range(8))),
    ],
)
def test_a_process_reads_the_rows_of_its_devices_alone(small_fields, places, rows):
    tokens = tokens_of(from_mapping(small_fields))
    sizes = {"sequence_length": 16, "batch_size": 8, "seed": 1}
    everything = training_batches(tokens, **sizes).stacked(3)
    mine = own_rows(Cut(*places), (3, 8, 17))
    assert mine.tolist() == rows
    own = training_batches(tokens, **sizes, rows=mine)
    assert np.array_equal(own.stacked(3), everything[:, rows])
    alone = training_batches(tokens, **sizes)
    alone.set_state(own.get_state())
    assert alone.get_state()["next_batch"] == 3, "the position is one for any number of processes"


def test_rows_of_one_process_are_put_where_they_belong():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding, batch = jax.NamedSharding(mesh, jax.P(None, "data")), np.arange(2 * 4 * 3).reshape(2, 4, 3)
    rows = own_rows(sharding, batch.shape)
    assert np.array_equal(batch_of_all(batch[:, rows], rows, sharding, batch.shape), batch)


@pytest.mark.parametrize("index", [0, 1])
def test_process_0_prepares_and_writes_and_others_read_copies(tmp_path, monkeypatch, index):
    """A body that process 0 runs first, and the folder in which each process works."""
    seen = []
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "wait_for_all", seen.append)
    with hosts.writer_first("tokens"):
        seen.append("body")
    assert seen == [["body", "tokens"], ["tokens", "body"]][index] and hosts.is_writer() == (index == 0)
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.json", ".lock"):
        (tmp_path / name).write_text(name)
    with hosts.own_folder(tmp_path) as folder:
        assert (folder == tmp_path) == (index == 0)
        assert index == 0 or [path.name for path in folder.iterdir()] == ["config.json"]
        (folder / "config.json").write_text("changed")
    assert (tmp_path / "config.json").read_text() == ["changed", "config.json"][index] and folder.exists() == (
        index == 0
    )


@pytest.mark.parametrize(
    ("error", "ends"),
    [(None, ["shutdown"]), (Resumable("stopped"), ["shutdown"]), (ValueError("a fault"), [])],
    ids=["done", "stopped", "a fault"],
)
def test_processes_part_together_unless_one_fails(monkeypatch, error, ends):
    """A process that fails does not wait for the others."""
    seen = []
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *place, **_: seen.append(place))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: seen.append("shutdown"))
    with pytest.raises(type(error)) if error else contextlib.nullcontext(), hosts.joined(Hosts("a:1", 2, 1)):
        if error:
            raise error
    assert seen == [("a:1", 2, 1), *ends]


def test_others_that_cannot_be_reached_are_one_line(monkeypatch):
    def initialize(*_, **__):
        raise RuntimeError("\nDEADLINE_EXCEEDED: 1 of 2 tasks\nmore lines")

    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(InputError) as caught, hosts.joined(Hosts("a:1", 2, 1)):
        pass
    line = "the other processes could not be joined within 300 s: DEADLINE_EXCEEDED: 1 of 2 tasks"
    assert str(caught.value) == line


def test_several_processes_need_a_mesh(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with pytest.raises(InputError, match="^mesh is not given; 2 processes need one, such as data=8$"):
        loop.Run._own_rows(SimpleNamespace(layout=None))


def free_port(*wanted: int) -> int:
    """Return a free port of this machine, preferably one of `wanted`."""
    for port in wanted or (0,):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    pytest.skip("no port is free")


ROUTELAWS = ("-m", "routelaws.accelerated")


def start(
    folder, fields, processes: int, devices: int, *more, corpus_cache, launched=None, program=ROUTELAWS
) -> list[subprocess.Popen]:
    """Start the processes of a run, with `devices` in total. `launched` gives the environment of each."""
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices // processes)}
    words = [sys.executable, *program, "train", "--out", str(folder), *words_of(fields), *more]
    join = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes), "--process-id"]
    joins = [[*join, str(i)] if processes > 1 else [] for i in range(processes)]
    if launched is not None:
        joins = [["--distributed", "auto"]] * processes
    return [
        subprocess.Popen(
            [*words, *joins[i]],
            env=os.environ | settings | {"ROUTELAWS_CACHE": str(corpus_cache)} | (launched(i) if launched else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def ended(started: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    done = [process.communicate(timeout=600) for process in started]
    return [(process.returncode, *said) for process, said in zip(started, done, strict=True)]


def losses(folder) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row["loss_validation"])) for row in table(folder)]


def table(folder) -> list[dict]:
    return read_rows(folder / "results.csv")


def check_same_table(found, wanted) -> None:
    """Fail unless two tables have the same rows and columns: equal texts, and numbers up to the order of sums."""
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for a, b in zip(found, wanted, strict=True):
        for name in a.keys() - {*TIME_COLUMNS, "commit"}:
            assert a[name] == b[name] or np.isclose(float(a[name]), float(b[name]), rtol=CLOSE, atol=CLOSE), name


CLOSE = 1e-5
"""Allowed difference of runs with another order of sums, after 16 steps in float32; measured: 1e-8 of the loss."""

SPREAD = {
    "dense": (["--mesh", "data=4"], {}),
    "experts": (["--mesh", "data=2,expert=2"], {"router": "sinkhorn", "experts": 4, "balancing_group": "global"}),
    "heads": (["--mesh", "expert=2,model=2"], {"router": "base", "experts": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [("dense", 2), ("experts", 4), ("heads", 2)])
def test_several_processes_train_what_one_does(small_fields, tmp_path, name, processes):
    """A stopped run of one process resumes with several, and only one process writes."""
    mesh, model = SPREAD[name]
    fields = {**small_fields, **model, "heads": 2, "batch_size": 8, "steps": 16, "evaluations": 2}
    cache = {"corpus_cache": tmp_path / "cache"}
    [(code, _, stderr)] = ended(start(tmp_path / "one", fields, 1, 4, *mesh, **cache))
    assert code == 0, stderr
    done = ended(start(tmp_path / "many", fields, processes, 4, *mesh, **cache))
    assert [code for code, *_ in done] == [0] * processes, done
    reports = ["validation loss" in stdout for _, stdout, _ in done]  # without output of the CPU collectives
    assert reports == [True] + [False] * (processes - 1)
    wanted, found = losses(tmp_path / "one"), losses(tmp_path / "many")
    assert [step for step, _ in found] == [step for step, _ in wanted] == [8, 16]
    assert np.allclose([loss for _, loss in found], [loss for _, loss in wanted], rtol=CLOSE, atol=0)
    check_same_table(table(tmp_path / "many"), table(tmp_path / "one"))
    assert sorted(os.listdir(tmp_path / "many")) == sorted(os.listdir(tmp_path / "one"))
    shutil.rmtree(tmp_path / "one" / "checkpoints" / "16")
    done = ended(start(tmp_path / "one", fields, processes, 4, *mesh, **cache))
    assert [code for code, *_ in done] == [0] * processes, done
    assert "resumes at step 8 of 16" in done[0][2]
    assert np.allclose([loss for _, loss in losses(tmp_path / "one")], [loss for _, loss in found], rtol=CLOSE, atol=0)


DAMAGE = """
import sys
from routelaws.accelerated import cli
from routelaws.accelerated.training.runs import checkpoints

read = checkpoints.ocp.load_checkpointables


def load(path, *given):
    found = read(path, *given)
    if path.name == "16" and checkpoints.jax.process_index() == 1:
        raise ValueError("a chunk is damaged")
    return found


checkpoints.ocp.load_checkpointables = load
sys.exit(cli.main(sys.argv[1:]))
"""
"""A program that runs `routelaws`; only process 1 finds damage in the checkpoint of step 16."""


@pytest.mark.slow
def test_what_one_process_cannot_read_is_damaged_for_all(small_fields, tmp_path):
    """If one process cannot read its part of the newest checkpoint, all resume from the previous one."""
    fields = {**small_fields, "batch_size": 8, "steps": 24, "evaluations": 3, "keep_last": 3}
    cache, mesh = {"corpus_cache": tmp_path / "cache"}, ("--mesh", "data=2")
    [(code, _, stderr)] = ended(start(tmp_path / "run", fields, 1, 2, *mesh, **cache))
    assert code == 0, stderr
    wanted = table(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "24")
    (tmp_path / "damage.py").write_text(DAMAGE)
    done = ended(start(tmp_path / "run", fields, 2, 2, *mesh, **cache, program=[str(tmp_path / "damage.py")]))
    assert [code for code, *_ in done] == [0, 0], done
    said = done[0][2]
    assert "checkpoint at step 16 is damaged and skipped (ValueError: another process cannot" in said, said
    assert "every checkpoint" not in said and "resumes at step" not in said.split("skipped")[0]
    check_same_table(table(tmp_path / "run"), wanted)
    assert (tmp_path / "run" / "checkpoints" / "damaged-16").is_dir()


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_with_a_checkpoint(small_fields, tmp_path):
    fields = {**small_fields, "batch_size": 8, "steps": 4000, "evaluations": 1}
    started = start(tmp_path / "run", fields, 2, 2, "--mesh", "data=2", corpus_cache=tmp_path / "cache")
    log = tmp_path / "run" / "log.jsonl"
    until = time.monotonic() + 300
    while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
        time.sleep(0.2)
    started[1].send_signal(signal.SIGTERM)
    done = ended(started)
    assert [code for code, *_ in done] == [0, 0] and "to resume" in done[0][2], done
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) == 1
