"""`python -m benchmarks`: its output, and the sides without other libraries, at small sizes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coverage, fits, memory, plans, steps, torch_peers, worker
from benchmarks.__main__ import FIGURES, Bench, chosen, line
from routelaws.accelerated.training.sweeps.workers import available_cores

ROOT = Path(__file__).parents[2]


def run(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_a_record_has_what_a_reader_needs(tmp_path):
    """One figure is measured, one needs another backend, and one needs a missing library."""
    out = tmp_path / "bench.json"
    done = run("--quick", "--only", "assignment", "--only", "gpu-util", "--out", out)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    by_name = {entry["name"]: entry for entry in record["figures"]}
    scipy = by_name["assignment-scipy"]
    assert scipy["status"] == "measured" and scipy["value"] == pytest.approx(
        scipy["seconds"]["scipy"] / scipy["seconds"]["ours"]
    )
    assert scipy["holds"] is None, "no goal is judged at small sizes"
    ours, theirs = scipy["facts"]["ours"], scipy["facts"]["scipy"]
    assert ours["balanced"] and theirs["balanced"] and ours["objective"] == pytest.approx(theirs["objective"])
    assert by_name["assignment-or-tools"]["status"].startswith(("measured", "ortools is not installed"))
    assert by_name["gpu-utilisation"]["status"].startswith(("measured", "needs the backend gpu"))
    assert record["machine"]["cores"] >= 1 and all(line(entry) in done.stdout for entry in record["figures"])


@pytest.mark.slow
def test_a_killed_process_fails_one_figure():
    with Bench(1, quick=True) as bench:
        killed = FIGURES["assignment-scipy"]
        os.kill(bench.process("jax", available_cores()).pid, signal.SIGKILL)
        assert [bench.measure(killed)["status"].partition(":")[0] for _ in range(2)] == ["failed", "measured"]


@pytest.mark.parametrize("flags", [("--only", "nothing"), ("--rounds", "0")])
def test_a_wrong_flag_is_an_error(flags):
    done = run(*flags)
    assert done.returncode == 2 and flags[0] in done.stderr


def test_names_are_chosen_by_how_they_begin():
    assert [figure.name for figure in chosen(["sbase-step-d64", "product"])] == [
        "product", "sbase-step-d64-e8", "sbase-step-d64-e32",
    ]  # fmt: skip
    assert len(chosen([])) == len(FIGURES)


def test_every_side_is_a_function_of_this_folder():
    modules = {"steps": steps, "memory": memory, "plans": plans, "fits": fits, "torch_peers": torch_peers}
    for figure in FIGURES.values():
        for side in figure.sides.values():
            file, function = side.job.split(":")
            assert file == "layers" or callable(getattr(modules[file], function)), side
            assert side.library in worker.LIBRARIES


@pytest.mark.parametrize("job", ["our_plan", "assign"])
def test_our_plans_and_assignments_run(job):
    made = getattr(plans, job)(quick=True, **({"solver": "ours"} if job == "assign" else {}))
    made.run()
    facts = made.facts()
    assert facts["balanced"] if job == "assign" else facts["load_error"] <= plans.ERROR


@pytest.mark.slow
@pytest.mark.parametrize("huber", [0.0, fits.DELTA])
def test_a_first_fit_reaches_the_optimum_of_scipy(huber):
    ours, theirs = (fits.first_fit(program, huber) for program in fits.PROGRAMS.values())
    assert ours.run() > 0 and theirs.run() > 0
    assert ours.facts()["objective"] == pytest.approx(theirs.facts()["objective"], rel=1e-9)


def test_both_sides_of_the_fits_reach_the_same_optimum():
    ours, theirs = fits.starts_at_once(quick=True), fits.scipy_starts()
    ours.run()
    theirs.run()
    assert ours.facts()["least"] <= theirs.facts()["least"] * (1 + fits.REACHED)
    restarts = fits.restarts(quick=True)
    restarts.run()
    assert 0 < restarts.facts()["least"] < 1
    fits.bootstrap(quick=True).run()


def test_flops_are_those_of_a_count_by_hand():
    products = 4 * (24 * 4 + 3 * 2 * 2 * 2 + 2 * 2 * 3) + 2 * 4 * 4  # tokens; the projection of four distances
    assert steps.step_flops(d_model=2, length=4, blocks=1, vocab_size=3, batch=1) == 3 * products


def test_the_load_error_is_the_largest_distance_from_a_fair_share():
    assert plans.load_error(np.array([[0.3, 0.1], [0.3, 0.3]])) == pytest.approx(0.2)


def test_one_thread_means_one_core():
    one, two = worker.environment("jax", 1), worker.environment("jax without loops", 2)
    assert one["OMP_NUM_THREADS"] == "1" and "multi_thread_eigen=false" in one["XLA_FLAGS"]
    assert two["NPROC"] == "2" and two["ROUTELAWS_CPU_LOOPS"] == "0" and "multi_thread_eigen" not in two["XLA_FLAGS"]


@pytest.mark.library("torch")
def test_the_gpt_of_torch_learns():
    pytest.importorskip("torch")
    job = torch_peers.gpt_step(16, 2, 32, 8, 2)
    job.run()
    first = job.facts()["loss"]
    for _ in range(30):
        job.run()
    assert job.facts()["loss"] < first - 0.3


@pytest.mark.library("transformers")
def test_the_switch_layer_runs():
    pytest.importorskip("transformers")
    torch_peers.switch_layer(4, quick=True).run()


@pytest.mark.parametrize("peer", ["POT", "ott-jax"])
def test_a_peer_reaches_the_load_error(peer):
    pytest.importorskip("ot" if peer == "POT" else "ott")
    job = plans.peer_plan(peer, quick=True)
    job.run()
    assert job.facts()["load_error"] <= plans.ERROR and job.facts()["sweeps"] < plans.MOST_SWEEPS


def test_a_table_that_differs_is_printed_with_its_form_and_whether_its_interval_holds(capsys, monkeypatch):
    [design] = coverage.mixed(1, 0)
    [(name, (point, truth))] = design.asked.items()
    other = design._replace(asked={name: (point, truth + 1)})
    monkeypatch.setattr(coverage, "mixed", lambda number, seed: [design, other])
    coverage.print_mixed(2, 0)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("no floor, 6 sizes") and f"{truth:.4f} in 1." in first
    assert second.endswith(": no") and last == "1 of 2 intervals cover; the form is right in 2"
