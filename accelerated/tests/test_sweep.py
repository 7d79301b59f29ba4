"""A grid of runs: its file, its folder, and kills at any moment."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from routelaws.accelerated.commands.laws import report
from routelaws.accelerated.commands.models import sweep as sweep_command
from routelaws.accelerated.errors import InputError, WorkerDiedError
from routelaws.accelerated.files import locked
from routelaws.accelerated.training import stopping
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import read_rows, result_row, write_rows
from routelaws.accelerated.training.sweeps import sweep, sweep_folder
from routelaws.accelerated.training.sweeps.grid import Grid, presets, read_grid
from routelaws.accelerated.training.sweeps.workers import thread_environment
from routelaws.accelerated.training.text.corpus import read_corpus
from routelaws.accelerated.training.window_losses import WindowLosses

from .small_runs import untimed_rows

GRID = """
name = "tiny"
[base]
corpus = ["{corpus}"]
vocab_size = 300
sequence_length = 16
batch_size = 4
steps = 40
steps_per_call = 4
checkpoint_every = 8
evaluations = 2
evaluation_tokens = 256
heads = 1
[sizes.a]
d_model = 8
[sizes.b]
d_model = 12
[[runs]]
router = "dense"
size = ["a", "b"]
[[runs]]
router = "sinkhorn"
experts = 4
size = "a"
"""


SMALL = GRID.replace('["a", "b"]', '"a"').replace("[sizes.b]\nd_model = 12\n", "")
"""Two runs."""


def write_grid(folder: Path, corpus: Path, text: str = GRID) -> Path:
    path = folder / "grid.toml"
    path.write_text(text.replace("{corpus}", str(corpus)), encoding="utf-8")
    return path


@pytest.fixture
def three(text_file, tmp_path) -> Grid:
    return read_grid(str(write_grid(tmp_path, text_file)))


@pytest.fixture
def trained_by(monkeypatch):
    """Replace training, in workers and here, by a function of the tasks, and the texts of all runs by some files."""

    def replace(train, files=None):
        for name in ("_train_in_workers", "_train_here"):
            monkeypatch.setattr(sweep, name, lambda todo, *_: train(todo))
        monkeypatch.setattr(sweep, "_prepare_tokens", lambda grid, watch: [files] * len(grid.runs))

    return replace


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "routelaws.accelerated", *map(str, arguments)]


def test_long_runs_are_started_first_and_then_those_that_share_their_programs(text_file, tmp_path):
    seeds = '[[runs]]\nrouter = "dense"\nsize = ["a", "b"]\nseed = [1, 2]\nlearning_rate = [0.01, 0.02]\n'
    hashed = '[[runs]]\nrouter = "hash"\nexperts = [4, 8]\nsize = "b"\n'
    text = GRID[: GRID.index("[[runs]]")].replace("d_model = 12", "d_model = 48") + seeds + hashed
    grid = read_grid(str(write_grid(tmp_path, text_file, text)))
    tasks = [sweep.Task(i, run, tmp_path, None) for i, run in enumerate(grid.runs)]
    found = [(task.config.model.d_model, task.config.model.router) for task in sweep.in_order(tasks)]
    assert sorted(found[:3]) == [(48, "dense"), (48, "hash"), (48, "hash")]
    assert found[3:] == [*[(48, "dense")] * 3, *[(8, "dense")] * 4]


def test_the_lists_of_a_grid_are_multiplied(text_file, tmp_path):
    texts = 'eval = ["c4=x.txt", "pile=y.txt"]\ncorpus = ["x.txt", "y.txt"]\nsize = "a"'
    [run] = read_grid(str(write_grid(tmp_path, text_file, SMALL.replace('size = "a"', texts, 1)))).runs[:1]
    assert (run.eval, run.corpus) == (("c4=x.txt", "pile=y.txt"), ("x.txt", "y.txt")), "a list of texts is one value"
    grid = read_grid(str(write_grid(tmp_path, text_file)))
    assert grid.name == "tiny"
    assert [(run.model.router, run.model.experts, run.model.d_model) for run in grid.runs] == [
        ("dense", 1, 8),
        ("dense", 1, 12),
        ("sinkhorn", 4, 8),
    ]
    assert all(run.steps == 40 and run.corpus == (str(text_file),) for run in grid.runs)
    assert read_grid(str(tmp_path / "grid.toml"), {"steps": 8}).runs[0].steps == 8


def test_runs_go_before_sizes_and_sizes_before_the_base(text_file, tmp_path):
    text = GRID.replace("[sizes.a]", "[sizes.a]\nseed = 2\nsteps = 41").replace("[base]", "[base]\nseed = 1")
    grid = read_grid(str(write_grid(tmp_path, text_file, text.replace("experts = 4", "experts = 4\nseed = 3"))))
    assert [(run.seed, run.steps) for run in grid.runs] == [(2, 41), (1, 40), (3, 41)]


def test_the_presets_are_possible_and_the_demo_is_what_it_says():
    named = {"demo", "fine_grained", "joint", "mixture", "rates", "recipes", "routers", "smoke", "study"}
    assert set(presets()) == named
    runs = read_grid("demo").runs
    sizes = {run.model.d_model for run in runs}
    assert len(sizes) >= 3
    assert {(run.model.router, run.model.d_model) for run in runs} == {
        (r, d) for r in ("dense", "hash", "sinkhorn", "reinforce") for d in sizes
    }
    assert len({run.steps * run.batch_size * run.sequence_length for run in runs}) == 1
    assert all(read_grid(name).runs for name in presets())


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_a_bad_grid_is_one_clear_line(tmp_path, value):
    """`test_wrong_inputs.py` has others."""
    (tmp_path / "grid.toml").write_text(f"[[runs]]\nsteps = {value}")
    with pytest.raises(InputError, match="not a TOML file") as error:
        read_grid(str(tmp_path / "grid.toml"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("runs", "said"),
    [("experts = [2, 4]", "6 rows; the bounded law has 6 coefficients and needs at least 7 rows"),
     ("experts = [2, 4, 8]", ""), ("experts = [2, 4, 8]\nk = 2", "2 rows; the bounded law"),
     ("experts = 2\nseed = [1, 2, 3]", "2 different num_experts; E_start and E_max cannot be determined")],
)  # fmt: skip
def test_a_grid_that_cannot_give_a_law_says_so_before_training(tmp_path, monkeypatch, capsys, runs, said):
    """Two sizes, dense and by HASH. Runs with k = 2 do not count. The presets demo and smoke give a law."""
    path, lines = tmp_path / "grid.toml", []
    path.write_text(
        f'[[runs]]\nrouter = "dense"\nd_model = [8, 16]\n[[runs]]\nrouter = "hash"\nd_model = [8, 16]\n{runs}'
    )
    monkeypatch.setattr(sweep_command, "run_sweep", lambda *_, **__: lines.append("".join(capsys.readouterr())))
    monkeypatch.setattr(sweep_command, "write_report", lambda out: out)
    monkeypatch.setattr(sweep_command, "read_sweep", lambda out: SimpleNamespace(runs=[]))
    sweep_command.sweep(str(path), out=tmp_path / "out")
    assert (f"there will be no law for hash: {said}" in lines[0] and "add sizes or values" in lines[0]) == bool(said)
    assert not any(sweep_command.without_law(read_grid(name)) for name in ("demo", "smoke"))


def test_a_grid_that_is_not_there():
    with pytest.raises(InputError, match="No such file"):
        read_grid("nothing.toml")


def test_a_folder_in_use_is_refused_and_left_alone(three, tmp_path):
    other = read_grid(str(tmp_path / "grid.toml"), {"steps": 8})
    sweep_folder.claim_sweep_folder(tmp_path / "out", three)
    sweep_folder.check_sweep_folder(tmp_path / "out", three)
    with pytest.raises(InputError, match="another sweep"):
        sweep.run_sweep(other, tmp_path / "out", watch=lambda *_, **__: None)
    with pytest.raises(InputError, match="holds no sweep"):
        sweep.run_sweep(three, tmp_path, watch=lambda *_, **__: None)


@pytest.mark.parametrize("kept", ["sweep.json", "runs", None])
def test_a_table_is_collected_from_a_whole_sweep_alone(three, tmp_path, kept):
    """A copy may have only the table and the plan."""
    out = tmp_path / "out"
    sweep_folder.claim_sweep_folder(out, three)
    (out / "results.csv").write_text("hyper_id,step,loss_validation\n0,20,3.0\n")
    before = (out / "results.csv").read_bytes()
    if kept == "sweep.json":
        (out / "runs").rmdir()
    elif kept == "runs":
        (out / "sweep.json").unlink()
    report._collect(out)
    assert ((out / "results.csv").read_bytes() == before) == (kept is not None)


def test_a_run_is_finished_at_its_last_step_and_not_before(three, tmp_path):
    config = three.runs[0]
    assert not sweep_folder.is_finished(tmp_path, config)
    for step, finished in ((20, False), (40, True)):
        windows = WindowLosses(np.arange(2), np.arange(2), np.full(2, 16), np.full(2, 48.0))
        row = result_row(config, 0, step, {"validation": 3.0}, windows, 0.0, np.ones((1, 4)) / 4, 1.0)
        write_rows(tmp_path / "results.csv", [row])
        assert sweep_folder.is_finished(tmp_path, config) == finished


def write_run(folder: Path, grid: Grid, i: int, steps: int) -> None:
    """Write the table of one run of a sweep, evaluated every 20 steps up to `steps`."""
    windows = WindowLosses(np.arange(2), np.arange(2), np.full(2, 16), np.full(2, 48.0))
    rows = [
        result_row(grid.runs[i], i, step, {"validation": 3.0}, windows, 0.0, np.ones((1, 4)) / 4, 1.0)
        for step in range(20, steps + 1, 20)
    ]
    own = sweep_folder.folder_of_run(folder, i, grid.runs[i])
    own.mkdir()
    write_rows(own / "results.csv", rows)


def test_the_table_of_a_sweep_holds_finished_runs_alone(three, tmp_path):
    """One run has its last evaluation; another stopped after its first."""
    sweep_folder.claim_sweep_folder(tmp_path / "out", three)
    for i, steps in enumerate((40, 20)):
        write_run(tmp_path / "out", three, i, steps)
    collected = sweep_folder.collect_rows(tmp_path / "out")
    assert [(row["hyper_id"], row["step"]) for row in collected] == [("0", "20"), ("0", "40")]
    assert [(row["hyper_id"], row["step"]) for row in untimed_rows(tmp_path / "out")] == [("0", "20"), ("0", "40")]


def test_a_task_collects_after_another_one_and_then_all_that_is_finished(text_file, tmp_path):
    """If two tasks write a table at once, the last table has the newly finished run of the other task.

    The rows of a run without a table of its own stay.
    """
    grid, out = read_grid(str(write_grid(tmp_path, text_file))), tmp_path / "out"
    sweep_folder.claim_sweep_folder(out, grid)
    write_run(out, grid, 0, 40)
    task = threading.Thread(target=sweep_folder.collect_rows, args=(out,), daemon=True)
    with locked(out / "runs", wait=False, holder="another task"):
        task.start()
        task.join(0.3)
        assert task.is_alive() and not (out / "results.csv").exists(), "it did not wait"
        write_run(out, grid, 1, 40)
    task.join(30)
    assert [row["hyper_id"] for row in untimed_rows(out)] == ["0", "0", "1", "1"]
    write_run(out, grid, 2, 40)
    write_rows(sweep_folder.folder_of_run(out, 0, grid.runs[0]) / "results.csv", [])  # a run that is trained again
    (sweep_folder.folder_of_run(out, 1, grid.runs[1]) / "results.csv").unlink()
    sweep_folder.collect_rows(out)
    assert [row["hyper_id"] for row in untimed_rows(out)] == ["0", "0", "1", "1", "2", "2"]


def test_a_sweep_that_goes_on_counts_all_of_its_runs(three, trained_by, tmp_path):
    """Two of three runs are finished, and the third is stopped. The number of kept checkpoints may have changed."""
    sweep_folder.claim_sweep_folder(tmp_path / "out", three)
    for i, steps in enumerate((40, 20, 40)):
        write_run(tmp_path / "out", three, i, steps)
    told, trained = [], []

    def stop(todo):
        trained.extend(task.hyper_id for task in todo)
        raise stopping.Resumable("a training process got a signal to stop")

    trained_by(stop)
    again = read_grid(str(tmp_path / "grid.toml"), {"keep_last": 9})
    with pytest.raises(
        stopping.Resumable, match="stopped with 2 of 3 runs finished and the others saved; repeat the command"
    ):
        sweep.run_sweep(again, tmp_path / "out", watch=lambda kind, **fields: told.append((kind, fields["run"])))
    assert told == [("finished", 0), ("finished", 2)] and trained == [1]
    trained_by(lambda todo: {task.hyper_id: f"run {task.hyper_id} diverged" for task in todo})
    with pytest.raises(InputError, match="^1 of 1 runs failed; the first failure: run 1 diverged$"):
        sweep.run_sweep(again, tmp_path / "out", watch=lambda *_, **__: None, part=sweep.Part(1, 2))


def test_runs_of_another_table_are_not_trained_again(three, trained_by, tmp_path):
    """A sweep takes only the finished run of a table, and keeps it when it runs later without the flag.

    A run that is trained here overrides its rows in the table. A table of another grid or text changes nothing.
    """
    tokens, trained = 4000, []
    sweep_folder.claim_sweep_folder(tmp_path / "there", three)
    for i, steps in ((0, 40), (1, 20)):
        write_run(tmp_path / "there", three, i, steps)
    rows = [row for i in (0, 1) for row in read_rows(next((tmp_path / "there/runs").glob(f"00{i}-*")) / "results.csv")]
    write_rows(tmp_path / "table.csv", [row | {"unique_tokens": tokens, "schedule": ""} for row in rows])

    def train(todo):
        trained.append(sorted(task.hyper_id for task in todo))
        return {}

    trained_by(train, SimpleNamespace(train_tokens=tokens))
    run = functools.partial(sweep.run_sweep, three, tmp_path / "out", watch=lambda *_, **__: None)
    assert [row["step"] for row in run(have=tmp_path / "table.csv")] == ["20", "40"]
    assert run() == read_rows(tmp_path / "out/results.csv") == read_rows(tmp_path / "out/have.csv")
    assert trained == [[1, 2], [1, 2]]
    sweep_folder.claim_sweep_folder(tmp_path / "both", three)
    write_run(tmp_path / "both", three, 0, 40)
    both = sweep.run_sweep(three, tmp_path / "both", watch=lambda *_, **__: None, have=tmp_path / "table.csv")
    assert not any(row["unique_tokens"] for row in both), "rows of the run in the folder go first"
    for change, said in (({"seed": 9}, "seed is '9', and 42 in the grid"), ({"hyper_id": 3}, "the grid has 3 runs"),
                         ({"unique_tokens": 5}, "unique_tokens is '5', and 4000 in the grid")):  # fmt: skip
        write_rows(tmp_path / "other.csv", [rows[0] | change])
        with pytest.raises(InputError, match=f"other.csv, row 1: .*{said}"):
            run(have=tmp_path / "other.csv")
    with pytest.raises(InputError, match="table.csv: has run 0, whose loss --hold-out predicts; leave out one flag"):
        run(have=tmp_path / "table.csv", later=[0, 2])
    with pytest.raises(InputError, match="nothing.csv: no such table"):
        run(have=tmp_path / "nothing.csv")


@pytest.mark.parametrize("order", [1, -1])
def test_rows_of_a_later_table_replace_those_of_the_same_runs(tmp_path, order):
    tables = [("first", (0, 1)), ("second", (1, 2))][::order]
    for name, runs in tables:
        rows = [{"hyper_id": i, "step": 40, "loss_validation": 3.5, "commit": name} for i in runs]
        sweep_folder.keep_had(tmp_path, rows)
    had = sweep_folder.read_had(tmp_path)
    kept = {i: [row["commit"] for row in rows] for i, rows in had.items()}
    assert kept == {0: ["first"], 1: [tables[-1][0]], 2: ["second"]}


BUDGETS = (
    GRID[: GRID.index("[[runs]]")].replace("steps = 40", 'schedule = "wsd"\nwarmup_steps = 4')
    + """
[[runs]]
router = "dense"
size = ["a", "b"]
steps = [20, 80, 40]
[[runs]]
router = "dense"
size = "a"
steps = 20
seed = 1
[[runs]]
router = "dense"
size = "a"
steps = [20, 40]
schedule = "constant"
"""
)
"""Two trunks with two decays each; runs of wsd with a single budget, and of other schedules, have no trunk."""


def test_budgets_of_wsd_have_one_trunk(text_file, trained_by, tmp_path, monkeypatch):
    """The longest run keeps the checkpoints where the others begin. The same task trains it first."""
    grid, stages, told, begun = read_grid(str(write_grid(tmp_path, text_file, BUDGETS))), [], [], []
    assert sweep.trunks_of(grid) == {0: 1, 2: 1, 3: 4, 5: 4} and sweep.trunks_of(Grid("one", grid.runs[:1])) == {}
    parts = [sweep.runs_of_part(grid, sweep.Part(i, 3)) for i in range(3)]
    assert parts == [[6], [0, 1, 2, 3, 4, 5, 7], [8]] and sweep.runs_of_part(grid, None) == list(range(9))

    def train(todo):
        stages.append(sorted(task.hyper_id for task in todo))
        for task in todo:
            sweep._train(task, lambda *_, **__: None)
        return {}

    trained_by(train)

    def run(config, folder, tokens, hyper_id, watch, trunk, keep):
        begun.append((hyper_id, trunk and str(trunk), keep))
        if hyper_id == 1:  # the checkpoint of 4 is missing, for example removed by another task
            (folder / "checkpoints" / "16").mkdir(parents=True)
        return SimpleNamespace(train=lambda: None)

    monkeypatch.setattr(sweep, "Run", run)
    monkeypatch.setattr(sweep, "gc", SimpleNamespace(collect=lambda: None))  # collections of this process take seconds
    monkeypatch.setattr(sweep, "RUNS_KEPT", 99)
    sweep.run_sweep(grid, tmp_path / "out", watch=lambda kind, **fields: told.append(fields.get("line")))
    assert stages == [[1, 4, 6, 7, 8], [0, 2, 3, 5]]
    assert {i: keep for i, _, keep in begun if keep} == {1: (16, 32), 4: (16, 32)}
    assert {i: trunk for i, trunk, _ in begun if trunk} == {0: "001-dense-d8-L2-s42@16"}
    steps = 2 * (20 + 80 + 40) + 20 + 20 + 40
    assert told == [
        "4 of 9 runs train only their decay, from checkpoints of the longer runs: "
        f"{steps - 96} steps instead of {steps}, {96 / steps:.0%} fewer"
    ]


def test_each_run_has_the_tokens_of_its_own_text(text_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text(encoding="utf-8").replace("ba", "zu"), encoding="utf-8")
    runs = [
        from_mapping(dict(vocab_size=300, sequence_length=16, batch_size=4, evaluation_tokens=64, corpus=(str(path),)))
        for path in (text_file, other, text_file)
    ]
    found = sweep._prepare_tokens(Grid("two texts", tuple(runs)), lambda *_, **__: None)
    wanted = [read_corpus(run.corpus).content_hash for run in runs]
    assert [files.folder.name.split("-")[0] for files in found] == wanted
    assert found[0] == found[2] != found[1]


def test_a_session_counts_from_when_the_command_began(tmp_path):
    """A session includes reading and encoding the text."""
    begun = time.time() - 100
    with sweep_folder.session(tmp_path, begun, jobs=2):
        pass
    [session] = sweep_folder.read_sessions(tmp_path)
    assert session["started"] == begun and 100 <= session["last"] - begun <= time.time() - begun


def test_a_session_goes_on_after_a_full_disk(tmp_path, monkeypatch):
    """The disk is full at the second and the third note."""
    notes, full = [], threading.Event()

    def write(path, content):
        notes.append(json.loads(content)[0]["last"])
        if len(notes) == 4:
            full.set()
        if len(notes) in (2, 3):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep_folder, "HEARTBEAT", 0.01)
    monkeypatch.setattr(sweep_folder, "write_atomically", write)
    with sweep_folder.session(tmp_path, time.time(), jobs=2):
        assert full.wait(30)
    assert notes == sorted(notes) and notes[-1] > notes[0]


def test_the_sessions_of_a_sweep_are_those_of_all_its_tasks(tmp_path):
    for i, task in enumerate((None, "0-of-2", "1-of-2", "0-of-2")):  # the first task resumes
        with sweep_folder.session(tmp_path, 100.0 + i, jobs=i, task=task):
            pass
    found = sorted((session["started"], session["jobs"]) for session in sweep_folder.read_sessions(tmp_path))
    assert found == [(100.0, 0), (101.0, 1), (102.0, 2), (103.0, 3)]


@pytest.mark.parametrize("by", ["this process", "workers"])
def test_a_run_that_fails_is_named_and_the_others_go_on(text_file, tmp_path, monkeypatch, by):
    """The sweep runs in one process, as on an accelerator, and with workers (here a thread)."""
    grid, told = read_grid(str(write_grid(tmp_path, text_file))), []

    def train(task, watch):
        if task.hyper_id == 1:
            raise InputError("it diverged")
        watch("step", step=8)

    monkeypatch.setattr(sweep, "_train", train)
    tasks = [sweep.Task(i, run, tmp_path, None) for i, run in enumerate(grid.runs)]
    if by == "workers":
        sender = SimpleNamespace(send=lambda event: told.append((event[0], event[1]["run"])))
        monkeypatch.setattr(sweep, "_sender", sender, raising=False)
        monkeypatch.setattr(sweep, "_lock", contextlib.nullcontext(), raising=False)
        with ThreadPoolExecutor(1) as pool:
            failures = sweep._failures(pool, tasks)
    else:
        failures = sweep._train_here(tasks, lambda kind, run, **fields: told.append((kind, run)))
    assert failures == {1: "it diverged"}
    ends = ("finished", "failed", "finished")
    assert told == [(k, i) for i, end in enumerate(ends) for k in ("start", "step", end) if (k, i) != ("step", 1)]


@pytest.mark.parametrize(
    ("fault", "ends", "calls"),
    [
        (BrokenProcessPool("killed"), (WorkerDiedError, "repeat the command to resume the sweep"), []),
        (stopping.Resumable("told to stop"), (stopping.Resumable, "told to stop"), ["stopped"]),
        (ZeroDivisionError("ours"), (ZeroDivisionError, "ours"), ["killed"]),
    ],
    ids=["killed", "told to stop", "a fault of ours"],
)
def test_workers_end_with_the_sweep(monkeypatch, fault, ends, calls):
    """At a request to stop, workers save first; after other faults they are killed. The error names a killed worker."""
    ended = []
    monkeypatch.setattr(sweep, "_failures", lambda *_: (_ for _ in ()).throw(fault))
    monkeypatch.setattr(sweep, "_stop_workers", lambda pool: ended.append("stopped"))
    monkeypatch.setattr(sweep, "_kill_workers", lambda pool: ended.append("killed"))
    with pytest.raises(ends[0], match=ends[1]):
        sweep._train_in_workers([], 1, lambda *_, **__: None)
    assert ended == calls


def test_text_that_is_too_small_leaves_no_folder(tmp_path):
    small = tmp_path / "small.txt"
    small.write_text("a few words only, " * 60)
    grid = read_grid(str(write_grid(tmp_path, small)), {"sequence_length": 4096})
    with pytest.raises(InputError):
        sweep.run_sweep(grid, tmp_path / "out", watch=lambda *_, **__: None)
    assert not (tmp_path / "out").exists()


def test_the_environment_of_the_workers_is_put_back(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    before = dict(os.environ)
    with sweep._environment(thread_environment(1)):
        assert os.environ["NPROC"] == "1" and os.environ["XLA_FLAGS"].startswith("--xla_a=1 --xla_")
    assert os.environ == before


@pytest.fixture(scope="module")
def undisturbed(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    kill_and_finish(write_grid(folder, text_file, SMALL), folder / "out", [])
    return untimed_rows(folder / "out")


def kill_and_finish(path: Path, out: Path, kills: list) -> None:
    """Start the sweep, kill the parent of its workers when a condition holds, and finally let a sweep end."""
    for condition in kills:
        process = subprocess.Popen(
            command("sweep", path, "--out", out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.time() + 120
        while not condition() and time.time() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)  # only the parent, so its workers must notice
        process.wait()
    done = subprocess.run(command("sweep", path, "--out", out), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_sweep_that_is_told_to_stop_saves_its_runs(text_file, tmp_path, undisturbed):
    path, out = write_grid(tmp_path, text_file, SMALL), tmp_path / "out"
    process = subprocess.Popen(command("sweep", path, "--out", out), stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 300
    while not any(out.glob("runs/*/checkpoints/8/commit_success.txt")) and time.time() < deadline:
        time.sleep(0.02)
    process.terminate()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in said
    assert re.fullmatch(
        r"routelaws: .*stopped with [01] of 2 runs .* repeat the command to resume", said.splitlines()[-1]
    )
    kill_and_finish(path, out, [])
    assert untimed_rows(out) == undisturbed
