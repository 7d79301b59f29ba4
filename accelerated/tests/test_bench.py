"""`routelaws bench`: its figures, its processes, what it writes and what it says."""

import io
import json
import os
import platform
import sys

import numpy as np
import pytest
from rich.console import Console

from routelaws.accelerated import cli
from routelaws.accelerated.benchmarks import memory, sinkhorn, torch_peers, train_step, worker
from routelaws.accelerated.benchmarks.catalogue import FIGURES, chosen
from routelaws.accelerated.benchmarks.figure import Figure, Goal, Outcome
from routelaws.accelerated.benchmarks.record import entry, markdown, measured, plain
from routelaws.accelerated.commands import bench as command
from routelaws.accelerated.errors import InputError

EVERY = {"name", "what", "unit", "goal", "status", "value", "holds", "spread", "took_seconds"}
MEASURED = {
    "seconds", "threads", "rounds", "repeated_rounds", "disturbed_rounds", "floor_seconds", "over_floor", "facts",
}  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Return bench.json of a run in which OR-tools is not installed."""
    folder = tmp_path_factory.mktemp("bench")
    absent = folder / "absent" / "ortools"
    absent.mkdir(parents=True)
    absent.joinpath("__init__.py").write_text("raise ModuleNotFoundError('No ortools', name='ortools')\n", "utf-8")
    out, names = folder / "bench.json", ("assignment-65536x128", "assignment-ortools", "gpu-utilisation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(absent.parent), os.environ.get("PYTHONPATH", "")]))
        only = [part for name in names for part in ("--only", name)]
        assert cli.main(["bench", "--quick", "--out", str(out), *only]) == 0
    return out.read_text(encoding="utf-8")


def test_bench_json_has_what_a_reader_needs(record):
    found = json.loads(record)
    assert {"figures", "ceilings", "handover_seconds", "machine", "settings"} <= found.keys()
    by_name = {each["name"]: each for each in found["figures"]}
    assert [*by_name] == ["gpu-utilisation", "assignment-ortools", "assignment-65536x128"]  # in the list's order
    assert all(EVERY <= each.keys() for each in found["figures"])
    timed = by_name["assignment-65536x128"]
    assert MEASURED <= timed.keys() and timed["status"] == "measured" and timed["goal"] == {"at_most": 1.0}
    assert timed["value"] > 0 and timed["holds"] is None  # small sizes: nothing is judged
    assert timed["over_floor"] > 0 and timed["facts"]["skew"]["balanced"] is True
    [ceiling] = found["ceilings"]
    assert ceiling["gflops"] > 0 and ceiling["gbytes"] > 0 and ceiling["threads"] == timed["threads"]
    assert found["machine"]["cores"] == os.cpu_count() and found["machine"]["versions"]["jax"]


def test_a_peer_that_is_not_installed_is_no_number(record):
    [found] = [each for each in json.loads(record)["figures"] if each["name"] == "assignment-ortools"]
    assert found["value"] is found["holds"] is found["spread"] is None
    assert found["status"] == "peer not installed: pip install 'routelaws[bench]' (ortools is missing)"


def test_a_figure_of_another_backend_says_so(record):
    [found] = [each for each in json.loads(record)["figures"] if each["name"] == "gpu-utilisation"]
    assert found["value"] is None and found["status"].startswith("not on this backend (cpu)")


def test_no_name_of_a_machine_and_no_path_is_written(record):
    assert platform.node() not in record and sys.prefix not in record and os.path.expanduser("~/") not in record


def test_the_list_has_every_figure_with_its_goal(capsys):
    assert cli.main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*FIGURES]
    [line] = [line for line in lines if line.startswith("dense-step-d64-t2 ")]
    assert "at most 1.15" in line and "torch" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "speed"], "--only speed: there is no such figure"),
        (["--only", "dense-sted"], "--only dense-sted: there is no such figure"),
        (["--rounds", "0"], "--rounds 0: has to be at least 1"),
        (["--out", "."], "--out .: has to be a file in a folder that is there"),
        (["--out", "nowhere/bench.json"], "--out nowhere/bench.json: has to be a file"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(("name", "goes_on"), [("bench", False), ("train", True)])
def test_only_training_goes_on_where_it_was_interrupted(name, goes_on, monkeypatch, capsys):
    def interrupted(command, arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    monkeypatch.setattr(cli, "keep_programs", lambda: None)
    assert cli.main([name]) == 130
    assert ("checkpoint" in capsys.readouterr().err) == goes_on


def test_a_name_stands_for_all_that_begin_so():
    assert [figure.name for figure in chosen(["memory", "compile-depth"])] == [
        "memory-d64",
        "memory-d256",
        "memory-d256-l8",
        "memory-d256-l8-rematerialised",
        "compile-depth",
    ]
    assert len(chosen(["dense-step"])) == 6 and len(chosen([])) == len(FIGURES)
    assert [figure.name for figure in chosen(["routed-layer-4096x8"])] == [
        "routed-layer-4096x8-default",
        "routed-layer-4096x8-dropless",
    ]
    with pytest.raises(InputError, match="--only step: "):
        chosen(["step"])


def test_a_goal_holds_up_to_its_limit_and_never_for_what_is_no_number():
    assert Goal(1.15).holds(1.15) and not Goal(1.15).holds(1.16) and not Goal(1.15).holds(float("nan"))
    assert Goal(12, least=True).holds(12) and not Goal(12, least=True).holds(11.9)
    assert not Goal(12, least=True).holds(float("nan"))


def _said(*entries, quick=False) -> str:
    """Return what the command prints of some entries."""
    machine = {"processor": "P", "cores": 2, "backend": "cpu", "versions": {"jax": "1", "torch": None}}
    console = Console(file=io.StringIO(), width=200)
    record = {"figures": entries, "ceilings": [], "machine": machine, "settings": {"quick": quick}}
    command.print_record(record, console)
    return console.file.getvalue()


def test_the_table_says_what_holds_what_does_not_and_what_was_disturbed():
    slow = Figure("slow", "words", Goal(1.15), lambda bench: None)
    fast = Figure("fast", "words", Goal(12, least=True), lambda bench: None)
    sides = {"routed": {"dropped_fraction": 0.0123}}
    entries = [
        entry(slow, Outcome(2.0, [1.9, 2.1], rounds=7, disturbed=3, facts=sides)),
        entry(fast, Outcome(13.0, [12.5, 14.0], rounds=7, repeated=2, disturbed=0, over_floor=3.0)),
        entry(slow, None, "peer not installed: pip install 'routelaws[bench]' (torch is missing)"),
    ]
    text = _said(*entries)
    rows = markdown({"figures": entries}).splitlines()
    assert rows[2] == "| `slow` | 2 | 1.9 to 2.1 | at most 1.15 | NO |  |" and len(rows) == 5
    first, second, third = (line for line in text.splitlines() if line.strip().startswith(("slow", "fast")))
    assert "NO" in first and "1.9 to 2.1" in first and "disturbed: 3 of 7 rounds; dropped 1.2 %" in first
    assert "yes" in second and "3 x" in second and "2 disturbed rounds taken again" in second
    assert "routelaws[bench]" in third and "NO" not in third
    assert "goals that hold: 1 of 2" in text and "or its cores were apart: 1;" in text


def test_what_is_mostly_disturbed_is_not_judged():
    figure = Figure("slow", "words", Goal(1.15), lambda bench: None)
    found = entry(figure, Outcome(0.1, [0.1, 0.1], rounds=5, disturbed=3))
    assert found["holds"] is None and "goals that hold: 0 of 0" in _said(found)
    [line] = [line for line in _said(found).splitlines() if line.strip().startswith("slow")]
    assert " disturbed " in line.partition("at most 1.15")[2] and "yes" not in line


def test_small_sizes_are_not_judged():
    figure = Figure("slow", "words", Goal(1.15), lambda bench: None)
    assert entry(figure, Outcome(2.0, [2.0, 2.0]), quick=True)["holds"] is None
    assert "no goal is judged" in _said(entry(figure, Outcome(2.0, [2.0, 2.0]), quick=True), quick=True)


def test_a_figure_that_fails_says_why_and_the_rest_goes_on():
    class Somewhere:
        settings = command.Settings()
        threads = staticmethod(lambda wanted: wanted)
        need_backend = staticmethod(lambda *backends: None)

    def fails(bench):
        raise worker.WorkerError("no memory")

    found = measured(Figure("a", "words", None, fails), Somewhere())
    assert found["status"] == "failed: no memory" and found["value"] is None


def test_numbers_that_json_has_not_become_none():
    assert plain({"a": [float("inf"), float("nan"), 1.23456789]}) == {"a": [None, None, 1.23457]}


def _answers(*orders) -> list[dict]:
    answers = io.StringIO()
    worker.serve([json.dumps(order) for order in orders], answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


ORDER = {"do": "build", "key": "a", "job": "assignment:solve"}
SOLVE = {"method": "scipy", "kind": "skew", "num_tokens": 32, "num_experts": 4}


def test_a_process_builds_runs_and_forgets():
    orders = {"do": "run", "key": "a", "calls": 3}, {"do": "facts", "key": "a"}, {"do": "drop", "key": "a"}
    built, run, facts, dropped, gone = _answers(ORDER | {"options": SOLVE}, *orders, orders[0])
    assert built["took"] > 0 and len(run["seconds"]) == 3 and min(run["seconds"]) > 0
    assert facts["facts"]["balanced"] and dropped == {} and gone.keys() == {"failed"}


def test_what_is_missing_and_what_fails_are_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    missing, failed = _answers(ORDER | {"options": SOLVE}, ORDER | {"options": SOLVE | {"method": "none"}})
    assert missing == {"missing": "scipy"} and failed["failed"].startswith("KeyError")


def test_a_process_that_dies_says_its_last_line():
    process = worker.Worker(1)
    process.process.kill()
    process.process.wait()
    with pytest.raises(worker.WorkerError, match="the process that measures ended"):
        process.run("a", 1)
    process.close()


def test_one_thread_is_one_thread():
    one, two = worker.environment(1), worker.environment(2)
    assert one["OMP_NUM_THREADS"] == one["NPROC"] == "1" and two["NPROC"] == "2"
    assert "multi_thread_eigen=false" in one["XLA_FLAGS"] and "multi_thread_eigen" not in two["XLA_FLAGS"]


def test_floors_are_those_of_a_count_by_hand():
    sizes = {"d_model": 2, "length": 4, "blocks": 1, "vocab_size": 3, "batch": 1}
    products = 4 * (24 * 4 + 3 * 2 * 2 * 2 + 2 * 2 * 3) + 2 * 4 * 4  # tokens; the projection of four distances
    assert train_step.step_flops(sizes) == 3 * products
    assert memory.counted_bytes(sizes, 10) == 4 * (40 + 4 * 2 * 18 + 5)


def test_the_load_error_is_the_largest_distance_from_a_fair_share():
    assert sinkhorn.load_error(np.array([[0.3, 0.1], [0.3, 0.3]])) == pytest.approx(0.2)


@pytest.mark.library("torch")
def test_the_plain_attention_of_torch_is_ours():
    torch = pytest.importorskip("torch")

    from routelaws.accelerated.transformer import attention, sinusoids

    random = np.random.default_rng(0)
    d, heads, length = 8, 2, 6
    names = ("query", "key", "value", "relative_key")
    weights = {name: random.standard_normal((d, heads, d // heads)).astype(np.float32) for name in names}
    x = random.standard_normal((1, length, d)).astype(np.float32)
    q, k, v = (torch.as_tensor(np.einsum("bsd,dhc->bhsc", x, weights[name])) for name in names[:3])
    distances = sinusoids(length, d)[::-1].astype(np.float32)
    relative = torch.as_tensor(np.einsum("sd,dhc->shc", distances, weights["relative_key"]).reshape(length, d))
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    theirs = torch_peers.plain_relative_attention(torch, q, k, v, relative, seen)
    ours = attention(weights | {"output": np.eye(d, dtype=np.float32).reshape(heads, d // heads, d)}, x)
    mixed = theirs.transpose(1, 2).reshape(1, length, d).numpy()
    np.testing.assert_allclose(mixed, ours, atol=2e-5)


@pytest.mark.library("torch")
@pytest.mark.parametrize("relative", [False, True])
def test_the_gpt_of_torch_learns(relative):
    pytest.importorskip("torch")
    sizes = {"d_model": 16, "heads": 2, "blocks": 2, "vocab_size": 32, "length": 8, "batch": 2}
    job = torch_peers.gpt_step(**sizes, relative=relative)
    job.run()
    first = job.facts()["loss"]
    for _ in range(30):
        job.run()
    assert job.facts()["loss"] < first - 0.3


@pytest.mark.library("transformers")
@pytest.mark.parametrize("kind", ["dense", "switch", "loop"])
def test_the_layers_of_torch_run(kind):
    pytest.importorskip("transformers")
    torch_peers.layer(kind, 64, 4, 8, 32, sequence=16).run()


@pytest.mark.parametrize("kind", ["POT", "ott-jax", "ott-jax lse"])
def test_a_peer_reaches_the_load_error_that_it_is_asked_for(kind):
    pytest.importorskip("ot" if kind == "POT" else "ott")
    job = sinkhorn.peer_plan(kind, 128, 8)
    job.run()
    assert job.facts()["load_error"] <= sinkhorn.ERROR and job.facts()["sweeps"] < sinkhorn.MOST_SWEEPS
