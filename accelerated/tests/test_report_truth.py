"""A sweep's report on runs from a known law: its numbers, and approved figures.

Losses follow a law without noise, except for two seeds at a point, equally far above and below the law. The expected
numbers come from the law's formula in plain Python.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from routelaws.accelerated.findings.report import FIGURES
from routelaws.accelerated.findings.sweeps import chance, curves
from routelaws.accelerated.findings.sweeps import loads as expert_loads
from routelaws.accelerated.findings.sweeps.folder import Sweep, SweepRun
from routelaws.accelerated.findings.sweeps.report import SweepFacts, find, gather_sweep
from routelaws.accelerated.results.encoding import plain
from routelaws.accelerated.tables.selection import RouterRows
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.conformance.plain.laws import Bounded

SIZES, COUNTS = (10_000, 120_000, 2_000_000), (2, 4, 8, 16, 32)
LAWS = {"Hash": Bounded(-0.06, -0.05, 0.004, 0.78, 1.5, 60.0), "S-Base": Bounded(-0.06, -0.08, 0.006, 0.78, 1.5, 90.0)}
# The dense models equal those of HASH.
LAWS["S-Base"] = LAWS["S-Base"]._replace(
    a=LAWS["Hash"].a - 0.002 * math.log10(1.5), d=LAWS["Hash"].d + 0.03 * math.log10(1.5)
)
SEEDED, APART = ("Hash", SIZES[1], 8), 0.002  # the point with two seeds, and their distance from the law in log10 L
ROUTERS = {"Dense": "dense", "Hash": "hash", "S-Base": "sinkhorn"}
NAMES = {"Hash": "HASH", "S-Base": "S-BASE"}
STEPS = (100, 200, 300, 400)


def made_run(hyper_id: int, router: str, size: int, experts: int, loss: float, seed: int) -> SweepRun:
    """Return a run of 400 steps of 16 sequences of 128 tokens. Its log has 400 training losses and 4 evaluations."""
    fields = {"blocks": 4, "heads": 2, "vocab_size": 512, "steps": 400, "batch_size": 16, "sequence_length": 128}
    fields |= {"router": ROUTERS[router], "experts": experts, "d_model": 16 * 2 ** SIZES.index(size), "seed": seed}
    config = from_mapping(fields)
    row = {
        "router_type": router, "dense_parameter_count": float(size), "num_experts": float(experts), "k": 1,
        "seed": seed, "loss_validation": loss, "dropped_fraction": 0.25, "hyper_id": hyper_id, "step": 400,
        "tokens": 819_200.0,
        "total_parameter_count": size * (1.0 + 0.5 * experts), "learning_rate": 0.01, "wall_seconds": 61.0,
        "device": "cpu", "commit": "abc",
    }  # fmt: skip
    log = [{"kind": "train", "step": i, "loss": loss + 40 / (i + 9) + 0.05 * (i % 2)} for i in range(1, 401)]
    for step in STEPS:
        shares = [[(i + 1 + step) ** 2 for i in range(experts)], [i + 1 + step for i in range(experts)]]
        shares = [] if router == "Dense" else [[x / sum(block) for x in block] for block in shares]
        log.append({"kind": "evaluation", "step": step, "loss_validation": loss + 1 / step - 1 / 400, "load": shares})
    return SweepRun(hyper_id, config, row, log, None)


@pytest.fixture(scope="module")
def sweep():
    runs = []
    for size in SIZES:
        runs.append(("Dense", size, 1, LAWS["Hash"].loss(size, 1), 42))
    for router, law in LAWS.items():
        for size in SIZES:
            for experts in COUNTS:
                loss, seeded = law.loss(size, experts), (router, size, experts) == SEEDED
                runs.append((router, size, experts, loss * 10 ** (APART if seeded else 0), 42))
                if seeded:
                    runs.append((router, size, experts, loss * 10**-APART, 43))
    runs = [made_run(i, *fields) for i, fields in enumerate(runs)]
    frame = pandas.DataFrame([run.row for run in runs])
    selections = [RouterRows(router, frame[frame["router_type"].isin([router, "Dense"])], []) for router in LAWS]
    return Sweep(Path("nowhere"), "made up", [run.config for run in runs], runs, selections, [], frame)


@pytest.fixture(scope="module")
def gathered(sweep, few_resamples):
    return gather_sweep(sweep)


@pytest.fixture(scope="module")
def results(gathered):
    return gathered[0]


@pytest.fixture(scope="module")
def found(sweep, results):
    return find(results, sweep)


@pytest.fixture(scope="module")
def pictures(sweep, gathered, found):
    results, runs = gathered
    drawings = {name: draw for each in SweepFacts.findings for name, draw in each.figures.items()}
    drawn = {name: drawings[name](results, sweep, found) for name in ("training", "load")}
    return {"loss": FIGURES["loss"](results, runs)} | drawn


def losses_at(router: str, size: int, experts: int) -> list[float]:
    exact = LAWS.get(router, LAWS["Hash"]).loss(size, experts)
    return [exact * 10**APART, exact * 10**-APART] if (router, size, experts) == SEEDED else [exact]


def drawn(panel, marker: str) -> list[tuple[float, float]]:
    return sorted(
        (float(x), float(y))
        for line in panel.lines
        if line.get_marker() == marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    )


def close(points, wanted, rel=1e-6) -> bool:
    return np.shape(points) == np.shape(wanted) and np.allclose(points, wanted, rtol=rel, atol=0)


def test_all_that_is_drawn(pictures, approved):
    approved.figures("sweep-figures.txt", pictures)


def test_of_several_seeds_and_counts_the_first_seed_of_the_largest_is_shown(sweep):
    runs = [run for run in sweep.runs if run.router == "Hash" and run.size == SIZES[1] and run.experts <= 8]
    less = sweep._replace(runs=runs, selections=sweep.selections[:1])
    [(size, [chosen])] = curves._shown_runs(less)
    assert (size, chosen.experts, chosen.config.seed) == (SIZES[1], 8, 42)
    [load] = expert_loads.loads(less)
    assert (load.size, load.experts, load.seed) == (SIZES[1], 8, 42)


def test_a_fair_share_is_one_of_all_narrow_experts(sweep, results):
    """Eight experts with G = 4 are 32 narrow experts. A quarter of the tokens is eight times a fair share."""
    run = next(run for run in sweep.runs if (run.router, run.size, run.experts) == ("Hash", SIZES[1], 8))
    config = from_mapping(run.config.fields() | {"granularity": 4})
    shares = [0.25, *[0.75 / 30] * 30, 0.0]
    run = run._replace(config=config, log=[{"kind": "evaluation", "step": 400, "load": [shares]}])
    fine = sweep._replace(runs=[run], selections=sweep.selections[:1])
    (load,) = expert_loads.loads(fine)
    assert (load.busiest, load.idle) == (8.0, 1) and np.allclose(load.shares, [[8, *[0.8] * 30, 0]])
    figure = expert_loads.load_figure(results, fine, SimpleNamespace(loads=pandas.DataFrame([load])))
    assert figure.axes[0].get_xlim() == (0.5, 32.5)


# The text of the report.


@pytest.fixture(scope="module")
def said(sweep, results, found):
    return plain({"does_routing_help": found.comparisons, "scatter": results["seed_scatter"], "load": found.loads})


def test_comparison_spread_and_scatter(said):
    high, low = losses_at(*SEEDED)
    [spread] = said["scatter"]["points"]
    assert (spread["router"], spread["N"], spread["E"], spread["seeds"]) == (*SEEDED, [42, 43])
    assert close([spread["range"], spread["deviation"]], [high - low, (high - low) / math.sqrt(2)])
    assert close(said["scatter"]["deviation"], APART * math.sqrt(2))
    for entry in said["does_routing_help"]:
        law = LAWS[entry["router"]]
        dense, routed = law.loss(entry["size"], 1), law.loss(entry["size"], 32)
        assert close([entry["dense_loss"], entry["routed_loss"]], [dense, routed])
        assert close([entry["difference"], entry["percent"]], [routed - dense, 100 * (routed / dense - 1)])
        assert entry["borrowed"] == (entry["router"] == "S-Base") and close(entry["spread"], high - low)
        assert entry["verdict"] == ("yes" if dense - routed > high - low else "no, within the spread")


def test_the_mean_of_the_seeds_is_compared_and_each_seed_is_fitted(sweep):
    """The largest E of these runs is the point with two seeds."""
    runs = [run for run in sweep.runs if run.router == "Dense" or run.router == "Hash" and run.experts <= 8]
    frame = pandas.DataFrame([run.row for run in runs])
    less = sweep._replace(runs=runs, selections=[RouterRows("Hash", frame, [])], frame=frame)
    entries = chance.compare(less, less.selections[0], [])
    wanted = [np.mean(losses_at("Hash", size, 8)) for size in SIZES]
    assert close([entry.routed_loss for entry in entries], wanted) and {entry.experts for entry in entries} == {8}
    [law] = gather_sweep(less)[0]["laws"]
    assert (law.rows, law.experts) == (13, [1, 2, 4, 8])
