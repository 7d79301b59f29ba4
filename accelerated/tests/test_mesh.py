"""Training on a mesh of eight virtual devices equals training on one. `mesh_child.py` has the devices."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.accelerated.commands.models.train import run_of
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.conformance.bounds import check
from routelaws.reference.routers.records import RECORDS

ROUTERS = {
    "dense": {"flop_increase": 2, "activation": "swiglu"},
    "hash": {"capacity_factor": 1.0, "granularity": 2},
    "hash_gated": {"capacity_factor": 1.0},
    "sinkhorn": {"activation": "swiglu"},
    "reinforce": {"entropy_weight": 0.1, "balance_weight": 0.1, "capacity_factor": 1.0},
    "base": {"k": 2},
    "quantile": {"k": 2, "capacity_factor": 1.0, "drop_order": "token"},
    "top_k": {
        "k": 2, "bias_rate": 0.01, "balance_weight": 0.1, "z_weight": 0.1, "capacity_factor": 1.0,
        "drop_order": "priority", "shared_experts": 1, "router_bias": True, "gate_scale": 2.5,
        "latent_width": 6, "zero_experts": 2, "zero_kind": "constant", "real_experts": 1.25,
    },
    "expert_choice": {},
    "mixture_of_tokens": {"learned_temperature": True, "emit": "experts"},
}  # fmt: skip
"""Each router with options for which a wrong group, capacity or weight changes the gradients."""

ROUTERS |= {record.name: {} for record in RECORDS if record.name not in ROUTERS}

UNGROUPED = tuple(record.name for record in RECORDS if "capacity_factor" not in record.options)
"""Routers that do not depend on the balancing group."""

MESHES = ("data=8", "data=2,expert=4", "expert=8", "data=2,expert=2,model=2")

DROPLESS = {"capacity_factor": "inf", "balance_scope": "sequence", "balance_weight": 0.1, "expert_groups": 2}

QUICK = [{"router": "top_k", "mesh": "data=2,expert=2,model=2", "group": "global", **ROUTERS["top_k"]}]


def run_child(cases: list[dict], what: str, devices: int = 8) -> list[dict]:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    if what != "program":  # these programs take longer to compile than to run
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    child = Path(__file__).with_name("mesh_child.py")
    given = json.dumps([case | {"what": what} for case in cases])
    done = subprocess.run(
        [sys.executable, child], input=given, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def matrix(mesh: str) -> list[dict]:
    return [
        {"router": router, "mesh": mesh, "group": group, **fields}
        for router, fields in ROUTERS.items()
        for group in ("shard", "global")
        if group == "shard" or router not in UNGROUPED
    ] + [{"router": "top_k", "mesh": mesh, "k": 2, **DROPLESS}]


def check_gradients(cases: list[dict]) -> None:
    for case, found in zip(cases, run_child(cases, "gradients"), strict=True):
        for name in ("loss", "gradient", "bias"):
            check(f"mesh.{name}", found[name], 1.0, message=f"{name} {found['where']} of {case}")
        check("mesh.load", found["load"], 1.0, message=f"load of {case}")
        assert found["joined"], case


def test_gradients_on_all_axes():
    """The model axis splits attention, dense FFNs and experts. Experts, bias and capacity span all devices."""
    check_gradients(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_gradients(mesh):
    check_gradients(matrix(mesh))


def runs_of(router: str) -> list[dict]:
    """Return the runs of 20 steps of a router: on one of the other meshes in turn, and with both groups on all axes."""
    meshes = (MESHES[[*ROUTERS].index(router) % 3], MESHES[-1])
    runs = [{"router": router, "mesh": mesh, "group": "shard", **ROUTERS[router]} for mesh in meshes]
    if router not in UNGROUPED:
        runs.append(runs[-1] | {"group": "global", "evaluate": True})
    if router == "top_k":
        runs.append({"router": router, "mesh": "data=2,expert=4", "group": "shard", "k": 2, **DROPLESS})
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("router", ROUTERS)
def test_twenty_steps_stay_together(router):
    runs = runs_of(router)
    runs[1]["evaluate"] = True
    for run, found in zip(runs, run_child(runs, "steps"), strict=True):
        check("mesh.steps.loss", found["loss"], found["loss_may"], message=f"loss of {run}")
        for name, apart, may in zip(found["names"], found["weights"], found["weights_may"], strict=True):
            check("mesh.steps.weights", apart, may, message=f"{name} of {run}")
        for name in ("evaluation", "load") if "evaluate" in run else ():
            check(f"mesh.steps.{name}", found[name], message=f"{name} of {run}")


@pytest.mark.slow
def test_what_a_step_sends():
    """The compiled program shows the bytes. Four and eight devices have equal tokens per device."""
    four, eight = run_child(
        [{"router": "sinkhorn", "mesh": mesh} for mesh in ("data=2,expert=4", "expert=8")], "program"
    )
    buffers = 4 * 8 * 2 * 16 * 4  # to the experts and back, in both passes; E, C = 2 T / E, d, bytes
    assert four["tokens"] == eight["tokens"] == 8
    assert four["sent"]["all-to-all"] == eight["sent"]["all-to-all"] == buffers
    assert four["sent"]["all-gather"] == four["weights"], "over data each weight is gathered once a step"
    experts = 2 * 16 * 64 * 4  # up and down of the expert of a device
    assert eight["sent"]["all-gather"] == eight["weights"] - experts, "no expert is gathered over the expert axis"
    for found in (four, eight):
        assert found["moments"] == found["all_moments"] / 8
        assert found["sent"]["collective-permute"] == 0


@pytest.mark.slow
def test_the_plan_of_a_mesh_counts_what_the_program_sends():
    routers = [router for router in ROUTERS if router != "dense"]
    runs = [{"router": router, "mesh": "data=2,expert=2", **ROUTERS[router]} for router in routers]
    for run, found in zip(runs, run_child(runs, "program", 4), strict=True):
        assert found["sent"]["all-to-all"] / 2 == found["planned"] > 0, run


SPREAD = {"experts": 8, "router": "top_k", "d_model": 16, "heads": 2, "batch_size": 8}


def test_a_mesh_of_other_devices_is_refused():
    """The error comes before the text is read: the corpus does not exist."""
    config = from_mapping(SPREAD | {"mesh": "data=4", "corpus": ["nowhere.txt"]}, "test")
    with pytest.raises(InputError) as error:
        run_of(config, Path("out"))
    assert str(error.value) == (
        "mesh data=4 needs 4 devices, but JAX sees 1 (cpu); change the mesh, or set JAX_NUM_CPU_DEVICES=4 on a CPU"
    )


def train(small_fields, folder, devices: int, **fields) -> list[dict]:
    values = small_fields | {"steps": 8, "steps_per_call": 4, "evaluations": 2, "batch_size": 8} | fields
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if name != "corpus"]
    command = [sys.executable, "-m", "routelaws.accelerated", "train", *flags, "--corpus", *values["corpus"]]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*command, "--out", str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def check_goes_on(small_fields, whole: Path, folder: Path, devices: int, **fields) -> None:
    """Cut a run back to its middle, and let other devices finish it. Losses equal those of the whole run."""
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "8")
    undisturbed = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    lines = train(small_fields, folder, devices, **fields)
    lines, undisturbed = ([line for line in log if line["kind"] != "routing"] for log in (lines, undisturbed))
    assert [line["step"] for line in lines] == [line["step"] for line in undisturbed]
    assert lines[:2] == undisturbed[:2], "what was there stays"
    for line, wanted in zip(lines, undisturbed, strict=True):
        name = "loss" if line["kind"] == "train" else "loss_validation"
        check("mesh.resumed", abs(line[name] - wanted[name]), message=f"{folder.name}, step {line['step']}")


GLOBAL = {"router": "sinkhorn", "experts": 4, "balancing_group": "global"}


@pytest.mark.slow
def test_a_run_goes_on_on_another_mesh(small_fields, tmp_path):
    whole = tmp_path / "whole"
    train(small_fields, whole, 4, mesh="data=2,expert=2", **GLOBAL)
    check_goes_on(small_fields, whole, tmp_path / "two", 2, mesh="expert=2", **GLOBAL)
    check_goes_on(small_fields, whole, tmp_path / "one", 1, mesh="data=1", **GLOBAL)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, "data=2,expert=2"), ("expert=2", None)])
def test_a_run_goes_on_with_a_mesh_or_without_one(small_fields, tmp_path, before, after):
    """A run without a mesh packs its arrays. A run with a mesh does not."""
    fields = {"router": "hash", "experts": 4}
    on = {None: (1, {}), "expert=2": (2, {"mesh": "expert=2"}), "data=2,expert=2": (4, {"mesh": "data=2,expert=2"})}
    train(small_fields, tmp_path / "whole", on[before][0], **fields, **on[before][1])
    assert (tmp_path / "whole" / "checkpoints" / "4" / "packed").is_dir() == (before is None)
    check_goes_on(small_fields, tmp_path / "whole", tmp_path / "other", on[after][0], **fields, **on[after][1])
