"""Training on a mesh of eight virtual devices is training on one, whatever the router: losses, gradients, steps.

The devices belong to a process of their own (`mesh_child.py`), which compares many cases to share its start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.conformance.bounds import check

ROUTERS = {
    "dense": {"flop_increase": 2, "activation": "swiglu"},
    "hash": {"capacity_factor": 1.0, "granularity": 2},
    "sinkhorn": {"activation": "swiglu"},
    "reinforce": {"entropy_weight": 0.1, "balance_weight": 0.1, "capacity_factor": 1.0},
    "base": {"k": 2},
    "quantile": {"k": 2, "capacity_factor": 1.0, "drop_order": "token"},
    "top_k": {
        "k": 2, "bias_rate": 0.01, "balance_weight": 0.1, "z_weight": 0.1, "capacity_factor": 1.0,
        "drop_order": "priority",
    },
    "expert_choice": {},
    "mixture_of_tokens": {"learned_temperature": True, "emit": "experts"},
}  # fmt: skip
"""Each router with options that make its gradients differ where a group, a capacity or a weight is wrong."""

UNGROUPED = ("dense", "expert_choice", "mixture_of_tokens")
"""Routers for which whose tokens are balanced makes no difference."""

MESHES = ("data=8", "data=2,expert=4", "expert=8", "data=2,expert=2,model=2")

QUICK = [
    {"router": "top_k", "mesh": "data=2,expert=2,model=2", "group": "global", **ROUTERS["top_k"]},
    {"router": "hash", "mesh": "data=2,expert=4", "group": "shard", "capacity_factor": "inf"},
]


def run_child(cases: list[dict], what: str) -> list[dict]:
    """Return what a process with eight devices finds for the cases."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    if what == "gradients":  # which compile faster than they run
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    child = Path(__file__).with_name("mesh_child.py")
    given = json.dumps([case | {"what": what} for case in cases])
    done = subprocess.run(
        [sys.executable, child], input=given, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def matrix(mesh: str) -> list[dict]:
    """Return all cases of a mesh: each router, and both groups where they differ."""
    return [
        {"router": router, "mesh": mesh, "group": group, **fields}
        for router, fields in ROUTERS.items()
        for group in ("shard", "global")
        if group == "shard" or router not in UNGROUPED
    ]


def check_gradients(cases: list[dict]) -> None:
    for case, found in zip(cases, run_child(cases, "gradients"), strict=True):
        for name in ("loss", "gradient", "bias"):
            check(f"mesh.{name}", found[name], 1.0, message=f"{name} {found['where']} of {case}")


def test_gradients_of_a_handful():
    check_gradients(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_gradients(mesh):
    check_gradients(matrix(mesh))
