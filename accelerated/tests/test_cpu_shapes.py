"""Compiled loops on many shapes, in processes that a fault in a loop may end.

The sizes lie below and above each threshold of the loops (blocks, vectors, pieces, matrices larger than the cache).
"""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from routelaws.accelerated import cpu
from routelaws.accelerated.errors import InputError

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the loops are for CPUs")

CHILD = Path(__file__).parent / "cpu_shapes_child.py"
FILLED = {"MALLOC_PERTURB_": "1"}
"""Makes the C library of Linux fill allocated and freed memory, so that reading it by mistake gives large numbers."""


def ends_of(cases: list[dict]) -> list[tuple[dict, dict]]:
    """Return each case with its result. A new process continues after a crash."""
    done = []
    while len(done) < len(cases):
        lines = "".join(json.dumps(case) + "\n" for case in cases[len(done) :])
        # Each case has a limit of CPU time. Threads that wait for each other use none, so a minute per case ends them.
        options = {"input": lines, "env": os.environ | FILLED, "timeout": 600 + 60 * len(cases)}
        child = subprocess.run([sys.executable, CHILD], capture_output=True, text=True, **options)
        said = [json.loads(line) for line in child.stdout.splitlines()]
        done += list(zip(said[::2], said[1::2], strict=False))
        if len(said) % 2:
            done.append((said[-1], {"end": "crash", "why": f"{child.returncode}: {child.stderr.strip()[-200:]}"}))
        elif child.returncode:
            pytest.fail(child.stderr[-2000:])
    return done


def assert_all_right(cases: list[dict]) -> Counter:
    done = ends_of(cases)
    wrong = [f"{case}: {end}" for case, end in done if end["end"] not in ("right", "refused")]
    misplaced = [f"{case}: {end}" for case, end in done if (end["end"] == "refused") != case["misfit"]]
    assert not wrong + misplaced, "\n".join((wrong + misplaced)[:10])
    return Counter(end["end"] for _, end in done)


ATTENTION = [
    {"b": b, "S": S, "H": H, "c": c, "causal": causal, "relative": True}
    for b, S, H, c, causal in [
        (1, 1, 1, 1, True),
        (2, 89, 3, 33, False),  # three blocks of queries and a part
        (71, 9, 2, 8, True),  # two sequences per piece, and one in the last
        (1, 530, 1, 5, False),  # more keys than a product sums per pass
        (1, 533, 2, 3, True),
    ]
]  # fmt: skip
FIELDS = ("T", "E", "k", "d", "f", "activation", "even", "wild")
EXPERTS = [
    dict(zip(FIELDS, fields, strict=True)) | {"by": "experts"}
    for fields in [
        (300, 8, 1, 256, 1030, "gelu", True, False),  # past the cache, columns not in whole vectors
        (150, 8, 1, 256, 1030, "relu", True, False),
        (150, 9, 1, 250, 1024, "relu", True, False),  # the same for rows
        (500, 8, 1, 256, 1024, "relu", False, True),  # past the cache, summed over two pieces
        (50, 3, 2, 530, 545, "gelu", True, True),  # more columns than a product sums per pass
        (2100, 7, 1, 9, 20, "gelu", True, False),  # several pieces of an expert in one thread
        (7, 2, 1, 45, 77, "swiglu", True, False),  # few rows, so matrices are read in memory order
        (701, 3, 2, 33, 50, "swiglu", False, True),  # several pieces of rows
        (333, 20, 3, 17, 71, "swiglu", True, True),
    ]
]  # fmt: skip
OTHERWISE = [{"how": "vmap"}, {"how": "shard_map"}, {"relative": False}]
LISTED = [{"kind": "attention"} | case for case in (*ATTENTION, *(ATTENTION[1] | other for other in OTHERWISE))]
LISTED += [{"kind": "experts"} | case for case in (*EXPERTS, *(EXPERTS[7] | other for other in OTHERWISE[:2]))]


@pytest.mark.slow
def test_shapes_past_every_threshold_and_some_at_random():
    assert_all_right(LISTED + [{"seed": seed} for seed in range(12)])


@pytest.mark.slow
def test_four_hundred_shapes():
    counts = assert_all_right([{"seed": seed} for seed in range(100, 500)])
    assert counts["right"] > 200 and counts["refused"] > 100


def floats(*shape):
    return np.zeros(shape, np.float32)


def experts(activation="gelu", queue=np.int32, gate_dtype=np.float32, **shapes):
    matrices = {"up": shapes.get("up", (3, 4, 6)), "down": shapes.get("down", (3, 6, 4))}
    matrices = {name: floats(*shape) for name, shape in matrices.items()}
    gate = np.zeros(shapes.get("gate", (5, 2)), gate_dtype)
    arrays = floats(*shapes.get("x", (5, 4))), gate, np.zeros((5, 2), queue)
    return functools.partial(cpu.experts, None, activation, matrices, *arrays)


REFUSED = {
    "distances": (
        functools.partial(cpu.attention, None, floats(2, 64, 96), floats(65, 32), 2, False),
        "attention: relative has shape [65, 32]; [D, H c] with D = 127, H = 2, c = 16 is needed",
    ),
    "heads": (
        functools.partial(cpu.attention, None, floats(2, 64, 96), None, 5, True),
        "attention: projected has shape [2, 64, 96]; [b, S, 3 H c] with H = 5 is needed",
    ),
    "down": (
        experts(down=(2, 6, 4)),
        "experts: down has shape [2, 6, 4]; [E, f, d] with E = 3, f = 6, d = 4 is needed",
    ),
    "gate": (experts(gate=(5, 1)), "experts: queue has shape [5, 2]; [T, k] with T = 5, k = 1 is needed"),
    "queue": (experts(queue=np.float32), "experts: queue is float32; int32 is needed"),
    "gate's dtype": (
        experts(gate_dtype=np.int32),
        "experts: gate is int32; float32 or bfloat16 or float64 or float16 is needed",
    ),
    "linear": (experts(activation="swiglu"), "experts: the matrices are up, down; up, down, linear are needed"),
    "activation": (experts(activation="tanh"), "activation is 'tanh'; allowed: gelu, relu, swiglu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_line(name):
    call, line = REFUSED[name]
    with pytest.raises(InputError) as raised:
        jax.eval_shape(call)
    assert str(raised.value) == line


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_loops_take_no_other_dtypes(dtype):
    """If an array has another dtype, the twin gets all arrays unchanged."""
    x, gate, queue = floats(5, 4), floats(5, 2), np.zeros((5, 2), np.int32)
    matrices, projected, keys = {"up": floats(3, 4, 6), "down": floats(3, 6, 4)}, floats(2, 64, 96), floats(64, 32)
    for name in matrices:
        odd = matrices | {name: matrices[name].astype(dtype)}
        assert cpu.experts(lambda *given: given, "gelu", odd, x, gate, queue)[1] is odd
    odd = x.astype(dtype)
    assert cpu.experts(lambda *given: given, "gelu", matrices, odd, gate, queue)[2] is odd
    for given in ((projected.astype(dtype), keys), (projected, keys.astype(dtype))):
        assert cpu.attention(lambda *given: given, *given, 2, True)[:2] == given
