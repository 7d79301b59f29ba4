"""Faults in training: one line, an exit code, and a folder that can resume."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import cli, files
from routelaws.accelerated.commands.models import sweep as sweep_command
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training import diagnosis, loop, step, stopping
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs import checkpoints
from routelaws.accelerated.training.runs.run_folder import check_untrained, read_log
from routelaws.accelerated.training.runs.trunk import check_growth
from routelaws.accelerated.training.sweeps import sweep_folder
from routelaws.accelerated.training.sweeps.sweep_folder import read_sessions
from routelaws.accelerated.transformer import Loss, Output
from routelaws.reference import configuration

from .small_runs import untimed_rows, words_of


@pytest.fixture(scope="module")
def flags(small_fields):
    """Return the flags of a run of 24 steps, with evaluations and checkpoints at 8, 16 and 24."""
    return ["train", *words_of(small_fields)]


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert cli.main([*flags, "--out", str(out)]) == 0
    return out


@pytest.fixture
def train(flags, capsys):
    """Run `routelaws train` with more flags. Return its exit code and the lines of its standard error."""

    def run(out: Path, *more) -> tuple[int, list[str]]:
        code = cli.main([*flags, "--out", str(out), *map(str, more)])
        said = capsys.readouterr().err.splitlines()
        usual = re.compile("recipe |step |.*chunks to train on")
        return code, [line for line in said if not usual.match(line)]

    return run


def at_step(monkeypatch, number: int, happen) -> None:
    """Call a function in the run just after the call that ends with a step."""
    before = loop.Run._record_steps

    def record(self, at, *given):
        before(self, at, *given)
        if at == number:
            happen()

    monkeypatch.setattr(loop.Run, "_record_steps", record)


# DIVERGENCE


def test_a_loss_that_is_not_finite_is_one_line_with_step_layer_and_checkpoint(train, tmp_path):
    code, said = train(tmp_path / "run", "--learning-rate", "1e20", "--gradient-clip", "1e20")
    line = (
        f"routelaws: {tmp_path / 'run'}: the training loss is nan at step 2; the first non-finite activations "
        "are in the embedding; there is no checkpoint yet; the learning rate 1e+20 may be too high: use a "
        "lower one and another --out, or skip the batch with --skip-bad-batches 1 of routelaws train"
    )
    assert code == 2 and [each for each in said if each.startswith("routelaws: ")] == [line]


@pytest.mark.slow
def test_bad_batches_are_passed_over_as_often_as_allowed(train, flags, tmp_path, monkeypatch):
    """With a tiny learning rate each batch keeps its initial loss, and the limit makes one batch bad."""
    still = ("--learning-rate", "1e-12", "--steps", "8", "--evaluations", "1", "--checkpoint-every", "4")
    assert train(tmp_path / "plain", *still, "--steps-per-call", "1")[0] == 0
    losses = [line["loss"] for line in read_log(tmp_path / "plain" / "log.jsonl") if line["kind"] == "train"]
    last_but_one, highest = sorted(losses)[-2:]
    bad = losses.index(highest) + 1
    limit = ("--loss-limit", (last_but_one + highest) / 2 / np.log(300))

    code, said = train(tmp_path / "run", *still, *limit)
    saved = f"the last good checkpoint is at step {4 * ((bad - 1) // 4)}" if bad > 4 else "no checkpoint yet"
    assert code == 2 and len(said) == 1 and saved in said[0]
    assert f"the training loss is {highest:.4g} at step {bad}, above {limit[1] * np.log(300):.4g}, " in said[0]
    assert "ln V; everything is finite; " in said[0]
    assert "the largest gradient is in" in said[0] and said[0].endswith("with --skip-bad-batches 1 of routelaws train")

    at_step(monkeypatch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    code, said = train(tmp_path / "run", *still, *limit, "--skip-bad-batches", "1")
    code, more = train(tmp_path / "run", *still, *limit, "--skip-bad-batches", "1")
    assert code == 0 and [line for line in said + more if "the batch is skipped, 1 of at most 1" in line]
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert [line["step"] for line in log if line["kind"] == "skipped"] == [bad]
    mean = np.mean([loss for loss in losses[4 * ((bad - 1) // 4) :][:4] if loss != highest])
    of_call = [line["loss"] for line in log if line["kind"] == "train" and line["step"] >= bad][0]
    assert np.isclose(of_call, mean, rtol=1e-5)


def test_a_skipped_batch_leaves_weights_and_moments_as_they_were(small_fields):
    config = from_mapping({**small_fields, "loss_limit": 1.0001, "learning_rate": 0.01}, "test")
    state = step.initial_state(config)
    before = [np.array(leaf) for leaf in jax.tree.leaves(state)]
    batches = np.random.default_rng(0).integers(0, 300, (3, 4, 17)).astype(np.int32)
    after, metrics = step.make_train_steps(config)(state, batches, 0, 2)
    assert metrics.bad.all()
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(after), before, strict=True))


def test_a_checkpoint_whose_counts_were_changed_is_damaged(tmp_path):
    """The digest is checked first; otherwise the error would name other files of the run."""
    state, said = {"x": np.arange(3.0, dtype=np.float32)}, []

    def check(step, extra):
        assert extra == {"skipped": 3}

    written = checkpoints.Checkpoints(tmp_path, said.append)
    written.save(4, state, {"skipped": 3})
    written.close()
    assert checkpoints.Checkpoints(tmp_path, said.append).restore(state).extra == {"skipped": 3} and not said
    holding = [path for path in (tmp_path / "4").rglob("*") if path.is_file() and b'"skipped": 3' in path.read_bytes()]
    assert holding
    for path in holding:
        path.write_bytes(path.read_bytes().replace(b'"skipped": 3', b'"skipped": 0'))
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        checkpoints.Checkpoints(tmp_path, said.append).restore(state, check)
    assert "checkpoint at step 4 is damaged and skipped" in said[0] and "does not match its digest" in said[0]


def test_a_line_of_the_log_is_of_the_steps_that_were_taken(small_fields, monkeypatch):
    """The second of four batches of 4 x 16 tokens was skipped. The call took two seconds for all four."""
    config, log, seen = from_mapping(small_fields, "test"), [], []
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: 12.0))
    run = SimpleNamespace(config=config, dropped=(0.5, 2), log=SimpleNamespace(write=lambda **line: log.append(line)))
    run.watch = lambda kind, **fields: seen.append((kind, fields))
    leaves = [np.array([1.0, 99.0, 2.0, 6.0]) * share for share in (1, 0.5, 2, 0.125)]
    loop.Run._record_steps(run, 8, 4, step.StepMetrics(*leaves, np.array([False, True, False, False])), 10.0)
    line = {"kind": "train", "step": 8, "loss": 3.0, "auxiliary": 1.5, "gradient_norm": 6.0, "dropped_fraction": 0.375}
    assert log == [line | {"tokens_per_second": 128}] and run.dropped == (0.5 + 9 / 8, 5)
    assert seen == [("step", {"step": 8, "loss": 6.0, "tokens_per_second": 128.0})]
    loop.Run._record_steps(run, 12, 4, step.StepMetrics(*leaves, np.ones(4, bool)), 10.0)
    assert len(log) == len(seen) == 1 and run.dropped[1] == 5, "no step was taken"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("layout", "block"),
    [("spread", 3), *(pytest.param("spread", i, marks=SLOW) for i in (0, 1, 2)),
     *(pytest.param("upper", i, marks=SLOW) for i in range(4))],
)  # fmt: skip
def test_the_layer_that_overflows_is_named(small_fields, layout, block):
    model = dict(router="sinkhorn", experts=4, blocks=4, layout=layout)
    config = from_mapping({**small_fields, **model}, "test")
    params = step.initial_state(config).params
    attention = params["blocks"]["attention"]
    for name in ("value", "output"):  # finite factors with an infinite product
        attention[name] = attention[name].at[block].set(1e30)
    windows = np.random.default_rng(0).integers(0, 300, (4, 17)).astype(np.int32)
    said = diagnosis.failing_layer(config, None, params, windows, 0)
    assert said == f"the first non-finite activations are in block {block + 1} of 4"


@pytest.mark.parametrize(
    "fields",
    [
        {"router": "hash", "experts": 4},
        {"router": "hash", "experts": 4, "routing_frequency": 0.25},
        {"router": "hash", "experts": 4, "layout": "upper"},
        {"flop_increase": 2, "layout": "upper", "routing_frequency": 0.25},
    ],
)
def test_the_blocks_that_are_routed_or_wide_are_those_of_the_model(fields):
    model = {"vocab_size": 300, "d_model": 16, "blocks": 8, "heads": 2, **fields}
    oracle = configuration.ModelConfig(**model)
    special = [i for i in range(8) if oracle.is_routed(i) or oracle.is_wide(i)]
    assert special and diagnosis.special_blocks(configuration.ModelConfig(**model)).tolist() == special


@pytest.mark.slow
def test_a_gradient_that_overflows_alone_is_named_too(small_fields):
    """With a huge `up` and a tiny `down` matrix, the output is finite, but the gradient overflows."""
    config = from_mapping({**small_fields, "blocks": 3}, "test")
    params = step.initial_state(config).params
    up, down = params["dense_ffn"]["up"], params["dense_ffn"]["down"]
    params["dense_ffn"] = {"up": up.at[1].multiply(1e37), "down": down.at[1].multiply(1e-37)}
    windows = np.random.default_rng(0).integers(0, 300, (4, 17)).astype(np.int32)
    said = diagnosis.failing_layer(config, None, params, windows, 0)
    assert said.endswith("the first non-finite gradient is in block 2 of 3")


GRADIENT = {
    "embedding": [3.0, 4.0],
    "blocks": {"scale": [[1.0], [2.0], [2.0], [1.0]]},
    "dense_ffn": {"up": [[0.0], [4.0]]},  # of blocks 1 and 3
    "routed_ffn": {"up": [[2.0], [0.0]]},  # of blocks 2 and 4
    "final_norm": {"scale": [0.0]},
}
NAN, NO_SHARE = float("nan"), (1.0, 1.0)
BACKWARD = "in the backward pass, the first non-finite gradient is in "
FAULTS = {
    "the router loss of block 4 is not finite": ({}, (1.0, np.inf)),
    BACKWARD + "block 3 of 4": ({"dense_ffn": {"up": [[NAN], [NAN]]}}, NO_SHARE),
    BACKWARD + "block 2 of 4": ({"routed_ffn": {"up": [[NAN], [0.0]]}}, NO_SHARE),
    BACKWARD + "the embedding": ({"embedding": [NAN, 0.0]}, NO_SHARE),
    "everything is finite; the largest gradient is in the embedding, norm 5": ({}, NO_SHARE),
    "everything is finite; the largest gradient is in block 3 of 4, norm 4.47": ({"embedding": [3.0, 1.0]}, NO_SHARE),
}  # fmt: skip


@pytest.mark.parametrize("wanted", FAULTS)
def test_a_fault_without_bad_activations_is_named(small_fields, monkeypatch, wanted):
    """A loss with a planted gradient: blocks 2 and 4 of four are routed."""
    changes, shares = FAULTS[wanted]
    gradient = jax.tree.map(np.float32, GRADIENT | changes, is_leaf=lambda node: isinstance(node, list))

    def told(params, tokens, model, **options):
        total = sum(jax.tree.leaves(jax.tree.map(lambda leaf, slope: (leaf * slope).sum(), params, gradient)))
        output = Output(params["embedding"], None, jnp.array(shares), jnp.array(shares), None, None)
        return Loss(total, total, output, None)

    monkeypatch.setattr(diagnosis, "loss", told)
    config = from_mapping({**small_fields, "router": "sinkhorn", "experts": 4, "blocks": 4}, "test")
    params = jax.tree.map(np.zeros_like, gradient)
    assert diagnosis.failing_layer(config, None, params, np.zeros((4, 17), np.int32), 0) == wanted


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((NAN, 1.0, 1.0), "the training loss is nan at step 6"),
        ((1.0, np.inf, NAN), "the router loss is inf at step 6"),
        ((1.0, 1.0, np.inf), "the norm of the gradient is inf at step 6"),
        ((70.0, 1.0, 2.0), "the training loss is 70 at step 6, above 57.04, 10 ln V"),
    ],
)
def test_a_bad_batch_is_told_logged_and_counted(small_fields, tmp_path, numbers, wrong):
    """The second of three batches after step 4. The run may skip two batches, and has skipped one."""
    config, told, log = from_mapping({**small_fields, "skip_bad_batches": 2}, "test"), [], []
    run = SimpleNamespace(
        config=config, folder="run", skipped=1, log=SimpleNamespace(write=lambda **line: log.append(line))
    )
    run._tell, run._failing_layer = told.append, lambda params, windows, number: f"{windows} of step {number}"
    run._diverged = lambda what, checkpoints: what
    leaves = [np.array([1.0, number, 1.0]) for number in (*numbers, 0.0)]
    metrics = step.StepMetrics(*leaves, np.array([False, True, False]))
    loop.Run._look_for_bad(run, 4, ["a", "b", "c"], metrics, {}, None)
    assert told == [f"run: {wrong}; the batch is skipped, 2 of at most 2"] and run.skipped == 2
    assert log == [{"kind": "skipped", "step": 6, "reason": wrong}]
    with pytest.raises(loop.DivergedError, match=re.escape(f"{wrong}; b of step 5")):
        loop.Run._look_for_bad(run, 4, ["a", "b", "c"], metrics, {}, None)


# SIGNALS, LOCKS, FILES


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW)])
def test_a_signal_saves_and_ends_well_and_the_same_command_goes_on(train, whole, tmp_path, monkeypatch, number):
    at_step(monkeypatch, 12, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)  # shells make background commands ignore SIGINT
    code, said = train(tmp_path / "run")
    line = f"{tmp_path / 'run'}: stopped after step 12 of 24; repeat the command to resume"
    assert (code, said) == (0, [f"routelaws: {line}"])
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    code, said = train(tmp_path / "run")
    assert code == 0 and said[0] == f"{tmp_path / 'run'}: resumes at step 12 of 24"
    assert untimed_rows(tmp_path / "run") == untimed_rows(whole)


def test_a_second_interrupt_ends_at_once_and_a_second_termination_changes_nothing():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stopping.stoppable():
        assert not stopping.asked()
        with stopping.held():
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert stopping.asked()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        with pytest.raises(stopping.Resumable, match="nothing new to save"):
            signal.raise_signal(signal.SIGTERM)
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    with stopping.stoppable():
        assert not stopping.asked()


def test_a_run_that_another_process_trains_is_refused(train, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "GRACE", 0.05)
    (tmp_path / "run").mkdir()
    with files.locked(tmp_path / "run", wait=False, holder="test"):
        code, said = train(tmp_path / "run")
    line = "another training of this run is running there; wait until it ends or choose another --out"
    assert (code, said) == (2, [f"routelaws: {tmp_path / 'run'}: {line}"])


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        pytest.param(errno.EROFS, "choose another --out, or make it writable", marks=SLOW),
    ],
)
def test_a_disk_that_refuses_is_one_line_and_what_is_there_stays(train, whole, tmp_path, monkeypatch, number, remedy):
    """The disk fails at the second row of the table, after the checkpoint of the step."""
    before, out = files.write_atomically, tmp_path / "run"

    def write(path, content):
        if path.name == "results.csv" and content.count("\n") > 2:
            raise OSError(number, os.strerror(number), str(path))
        before(path, content)

    monkeypatch.setattr("routelaws.accelerated.training.runs.result_rows.write_atomically", write)
    code, said = train(out)
    line = f"{out}/results.csv: {os.strerror(number)}; {remedy} and repeat the command (complete files are kept)"
    assert (code, said) == (2, [f"routelaws: {line}"])
    assert len(untimed_rows(out)) == 1
    monkeypatch.undo()
    assert train(out)[0] == 0 and untimed_rows(out) == untimed_rows(whole)
    assert read_log(out / "log.jsonl")[-1]["load"] == [] and len(read_log(out / "log.jsonl")) == 9


def test_stopped_before_the_first_checkpoint_it_says_that_it_starts_anew(train, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("checkpoints"))
    (out / "checkpoints" / "8.orbax-checkpoint-tmp").mkdir(parents=True)  # an incomplete checkpoint
    for name, lines in (("results.csv", 2), ("log.jsonl", 3)):
        (out / name).write_text("".join((out / name).read_text().splitlines(keepends=True)[:lines]))
    code, said = train(out)
    assert code == 0 and said[0] == f"{out}: the run stopped before its first checkpoint; it starts from step 0"
    assert untimed_rows(out) == untimed_rows(whole)


@pytest.mark.parametrize(
    ("reached", "saved", "proves"),
    [(8, (8, 16, 24), False), (16, (8, 16, 24), False), (17, (8, 16, 24), True), (24, (24,), False), (0, (24,), False)],
)
def test_a_log_past_the_second_checkpoint_proves_that_there_was_one(tmp_path, reached, saved, proves):
    """The second checkpoint begins only after the first is complete."""
    (tmp_path / "log.jsonl").write_text(json.dumps({"kind": "train", "step": reached}) + "\n")
    with pytest.raises(InputError, match="was trained up to step 17 but") if proves else contextlib.nullcontext():
        check_untrained(tmp_path, 24, set(saved))


def test_a_run_may_grow_up_to_the_first_step_of_its_decay(small_fields):
    before = from_mapping({**small_fields, "schedule": "wsd", "warmup_steps": 0, "decay": 0.25}, "test")
    after = dataclasses.replace(before, steps=48)
    check_growth("run", before, after, [18, 8])
    check_growth("run", before, after, [])
    for saved, there in (([24, 18, 16], "16, 18"), ([24, 19], "none")):
        with pytest.raises(InputError) as error:
            check_growth("run", before, after, saved)
        assert str(error.value) == (
            "run: cannot go on from 24 to 48 steps, because its learning rate decays from step 18 on; "
            "start a new run with another --out, --decay-from run and "
            f"--at STEP; possible steps: {there}"
        )


# JOB ARRAYS


def test_a_task_says_how_many_runs_are_finished(grid, tmp_path, capsys, monkeypatch):
    for done, more in ((1, ""), (2, "; routelaws report OUT writes the report")):
        rows = [{"hyper_id": i} for i in range(done) for _ in range(4)]
        monkeypatch.setattr(sweep_command, "run_sweep", lambda *_, rows=rows, **__: rows)
        assert cli.main(["sweep", str(grid), "--out", str(tmp_path / "out"), "--index", "0"]) == 0
        said = capsys.readouterr().out.replace(str(tmp_path / "out"), "OUT")
        assert said == f"OUT: {done} of 2 runs are finished{more}\n"


def test_the_time_of_a_session_survives_a_clock_that_jumps_back(tmp_path, monkeypatch):
    now = sweep_folder.time.time()
    with sweep_folder.session(tmp_path, now, jobs=1):
        monkeypatch.setattr(sweep_folder.time, "time", lambda: now - 3600)
    [noted] = read_sessions(tmp_path)
    assert 0 <= noted["last"] - noted["started"] < 60


@pytest.mark.slow
def test_every_kind_of_kill_leaves_the_table_as_it_is(tmp_path):
    campaign, counts = Path(__file__).parents[2] / "tools/campaign.py", tmp_path / "counts.json"
    kinds = ["kill at a moment", "kill in the text", "job array", "kill at a file"]
    words = ["--runs", str(len(kinds)), "--models", "dense", "--kinds", *kinds, "--json", str(counts)]
    done = subprocess.run([sys.executable, str(campaign), *words], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(counts.read_text())["by_kind"] == dict.fromkeys(kinds, 1)
