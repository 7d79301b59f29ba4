"""The compiled loops of the experts (`cpu.experts`): values and gradients, compared with the definition."""

import functools
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from routelaws.accelerated import experts
from routelaws.accelerated.cpu import expert_layer, tiles, xla
from routelaws.conformance.bounds import UNIT, check

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the loops are for CPUs")

EVEN, SKEW, ONE, FEW = (0.25,) * 4, (0.5, 0.3, 0.15, 0.05), (1, 0, 0, 0), (0, 0.75, 0.25, 0)
MANY = (0, 0.15, 0.03, 0.1, 0.1, 0.1, 0.1, 0.08, 0.12, 0.1, 0.07, 0.05)
"""Loads below a third of the work of each of two threads, so that no expert is split."""

ODD, WIDE = (5, 7), (64, 160)
"""Values of d and f: not multiples of a vector, and multiples."""


def layer(loads, k=1, activation="gelu", seed=0, widths=ODD, num_tokens=203):
    (d, f), num_experts = widths, len(loads)
    random = np.random.default_rng(seed)
    first = random.choice(num_experts, num_tokens, p=loads)
    expert = (first[:, None] + np.arange(k)) % num_experts
    params = {
        "up": random.standard_normal((num_experts, d, f)) / d**0.5,
        "down": random.standard_normal((num_experts, f, d)) / f**0.5,
    }
    if activation == "swiglu":
        params["linear"] = random.standard_normal((num_experts, d, f)) / d**0.5
    x, gate = random.standard_normal((num_tokens, d)), random.uniform(0.2, 1, (num_tokens, k))
    point = jax.tree.map(np.float32, {"params": params, "x": x, "gate": gate})
    return point, np.int32(expert), np.float32(random.standard_normal((num_tokens, d)))


def by_definition(point, expert, kept, activation):
    def one(given):
        x, expert, gate, kept = given
        own = {name: matrix[expert] for name, matrix in point["params"].items()}
        output = jax.vmap(lambda matrices: experts.expert_ffn(**matrices, x=x, activation=activation))(own)
        return (jnp.where(kept, gate, 0)[:, None] * output).sum(axis=0)

    return jax.lax.map(one, (point["x"], expert, point["gate"], kept))


@pytest.fixture
def used(monkeypatch):
    calls, run = [], expert_layer.call_loops
    monkeypatch.setattr(expert_layer, "call_loops", lambda *given, **sizes: calls.append(1) or run(*given, **sizes))
    return calls


# Matrices past the cache and more shapes are in `test_cpu_shapes.py`.
CASES = {
    "skewed, two experts, swiglu": (SKEW, 2, "swiglu", math.inf, None, ODD, 203),
    "idle experts, a capacity, two experts, padding": (FEW, 2, "relu", 1.6, 0.95, ODD, 203),
    "only padding": (EVEN, 1, "gelu", 2.0, 0.0, ODD, 203),
    # About 750 rows of an expert: pieces of 256 rows, with gradients summed over pieces.
    "several pieces, two experts, swiglu, odd": (SKEW, 2, "swiglu", 1.5, 0.9, (33, 50), 800),
    "a thread an expert, odd": (MANY, 1, "swiglu", math.inf, 0.9, ODD, 203),
    "a thread an expert, several pieces": (MANY, 1, "gelu", math.inf, None, (33, 50), 2000),
    "one token": (EVEN, 2, "gelu", math.inf, None, WIDE, 1),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("a thread")) for name in CASES]
)
def test_definition(used, name):
    loads, k, activation, factor, real, widths, num_tokens = CASES[name]
    point, expert, weights = layer(loads, k, activation, widths=widths, num_tokens=num_tokens)
    mask = None if real is None else np.random.default_rng(1).random(num_tokens) < real
    num_real = num_tokens if mask is None else int(mask.sum())
    capacity = experts.expert_capacity(num_real, len(loads), k, factor)
    kept = jax.jit(experts.dispatch, static_argnums=(1, 2))(expert, len(loads), capacity, mask=mask).kept

    def found(point):
        arrays = point["params"], point["x"], expert, point["gate"]
        output, dropped = experts.routed_ffn(*arrays, factor, mask=mask, activation=activation)
        return (output * weights).sum(), (output, dropped)

    def wanted(point):
        output = by_definition(point, expert, kept, activation)
        return (output * weights).sum(), output

    (_, (output, dropped)), gradient = jax.jit(jax.value_and_grad(found, has_aux=True))(point)
    assert used and output.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = jax.tree.map(np.float64, point)
        (_, right), slope = jax.jit(jax.value_and_grad(wanted, has_aux=True))(wide)
    for this, that in zip(jax.tree.leaves((output, gradient)), jax.tree.leaves((right, slope)), strict=True):
        this, that = np.asarray(this, float), np.asarray(that)
        error = np.abs(this - that).max()
        check("experts.loops", error, UNIT["float32"] * max(np.abs(that).max(), 1.0), message=name)
    expected = np.nan if num_real == 0 else 1 - np.asarray(kept).sum() / (num_real * k)
    check("experts.dropped", abs(float(dropped) - expected) if num_real else 0.0, UNIT["float32"])
    assert math.isnan(dropped) == (num_real == 0)


POINTS = np.float32([0, 1e-30, 1e-6, 0.1, 0.5, 1, 2, 3, 5, 9, 14, 30, 88, 100, 1e4])


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_the_nonlinearity_over_its_whole_range(used, activation):
    """An expert with one hidden unit and weights of 1 is the nonlinearity."""
    x = np.concatenate([POINTS, -POINTS[1:], [np.nan]])[:, None].astype(np.float32)
    one, both = np.ones((2, 1, 1), np.float32), np.zeros((len(x), 1), np.int32)
    params = {"up": one, "down": one} | ({"linear": one} if activation == "swiglu" else {})

    def run(x, where):
        return experts.routed_ffn(params, x, both, np.ones(x.shape, np.float32), activation=activation).output[where, 0]

    def exact(x):
        linear = x if activation == "swiglu" else None
        return experts._activated(x, activation, linear)

    value = np.asarray(jax.jit(lambda x: run(x, slice(None)))(x))
    slope = np.asarray(jax.jit(jax.grad(lambda x: run(x, slice(None)).sum()))(x))[:, 0]
    with jax.enable_x64(True):
        right, grown = jax.device_get(jax.jit(jax.vmap(jax.value_and_grad(exact)))(np.float64(x[:-1, 0])))
    assert used and np.isnan(value[-1])
    for this, that in ((value, right), (slope, grown)):
        for v, ours, theirs in zip(x[:-1, 0], this, that, strict=False):
            scale = UNIT["float32"] * max(1.0, abs(theirs))
            check("experts.nonlinearity", abs(float(ours) - theirs), scale, message=f"{activation} at {v}")


def test_a_gate_that_is_not_a_number(used):
    """A NaN gate makes only the output of its token NaN, also if the token is dropped."""
    point, expert, _ = layer(ONE, num_tokens=8)
    gate = point["gate"].copy()
    gate[[0, 7]] = np.nan
    output, dropped = jax.jit(lambda gate: experts.routed_ffn(point["params"], point["x"], expert, gate, 2.0))(gate)
    assert used and dropped == 0.5
    assert np.isnan(output).all(axis=1).tolist() == [True, *[False] * 6, True]
    assert not np.asarray(output)[4:7].any()


DIGEST = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
import hashlib, jax, numpy as np
from routelaws.accelerated import cpu, experts
from routelaws.accelerated.operations import attention
random = np.random.default_rng(0)

def say(function, *arrays):
    gradient = jax.jit(jax.grad(function, argnums=range(len(arrays)), has_aux=True))
    for _ in range(4):
        found = gradient(*arrays)
        print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found))).hexdigest())

def attend(projected, relative):
    output = cpu.attention(attention.attend_rows, projected, relative, 4, True)
    return (output ** 2).sum(), output

say(attend, *(np.float32(random.standard_normal(shape)) for shape in ((40, 70, 3 * 4 * 20), (70, 80))))
for loads in ((0.6, 0.2, 0.1, 0.1), (1 / 16,) * 16):
    shapes = {"up": (len(loads), 48, 96), "down": (len(loads), 96, 48)}
    params = {name: np.float32(random.standard_normal(shape) / 8) for name, shape in shapes.items()}
    x, gate = np.float32(random.standard_normal((1700, 48))), np.float32(random.uniform(0, 1, (1700, 2)))
    expert = np.int32(random.choice(len(loads), (1700, 2), p=loads))
    def loss(params, x, gate):
        output = experts.routed_ffn(params, x, expert, gate, 1.3).output
        return (output ** 2).sum(), output
    say(loss, params, x, gate)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or os.cpu_count() < 2, reason="needs two cores, and Linux")
def test_any_number_of_threads_gives_the_same_bits():
    one, two = (
        subprocess.run([sys.executable, "-c", DIGEST, cores], capture_output=True, text=True, check=True).stdout.split()
        for cores in ("1", "2")
    )
    assert one == two and len(set(one)) == 3


def test_two_programs_at_the_same_time():
    """Two programs share XLA's threads. Results are right, and neither program hangs."""
    layers = [layer(loads, k=2, widths=WIDE, num_tokens=900, seed=seed) for seed, loads in enumerate((SKEW, MANY))]

    def loss(point, expert, weights):
        output = experts.routed_ffn(point["params"], point["x"], expert, point["gate"], 1.5).output
        return (output * weights).sum()

    gradient = jax.jit(jax.grad(loss))
    alone = [jax.device_get(gradient(*given)) for given in layers]

    def run(number):
        return [jax.device_get(gradient(*layers[number])) for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for once, often in zip(alone, pool.map(run, (0, 1)), strict=True):
            for again in often:
                jax.tree.map(np.testing.assert_array_equal, once, again)


SIZES = st.integers(1, 70) | st.sampled_from((96, 128, 530))


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(SIZES, SIZES, SIZES, st.booleans(), st.booleans(), st.sampled_from((tiles.WRITE, tiles.ADD)))
@hypothesis.example(530, 64, 600, False, True, tiles.WRITE)
@hypothesis.example(100, 64, 20, True, False, tiles.PAST_CACHE)
def test_product(rows, columns, depth, a_turned, b_turned, how):
    """For both layouts of the factors. Memory next to the result stays unchanged."""
    random = np.random.default_rng(rows + 100 * columns + 10_000 * depth)
    a, b = random.standard_normal((rows, depth)), random.standard_normal((depth, columns))
    a, b = np.float32(a), np.float32(b)
    edge = tiles.PANEL
    room = np.zeros((rows + 2) * (columns + edge) + 16, np.float32)
    skip = -room.ctypes.data // 4 % 16  # advance to an address that is a multiple of 64
    whole = room[skip : skip + (rows + 2) * (columns + edge)].reshape(rows + 2, columns + edge)
    whole[:] = random.standard_normal(whole.shape)
    before, c = whole.copy(), whole[1:-1, :columns]
    stored_a, stored_b = (np.ascontiguousarray(m.T if turned else m) for m, turned in ((a, a_turned), (b, b_turned)))
    steps = (1, rows) if a_turned else (depth, 1)
    scratch = np.empty(tiles.SCRATCH, np.float32)
    product = tiles.compile_product().ctypes
    b_at = stored_b.ctypes.data
    given = stored_a.ctypes.data, *steps, b_at, stored_b.shape[1], int(b_turned), c.ctypes.data, columns + edge
    product(*given, rows, columns, depth, how, b_at, scratch.ctypes.data)
    kept = before[1:-1, :columns] if how == tiles.ADD else 0 * c
    scale = UNIT["float32"] * (np.abs(a).astype(float) @ np.abs(b) + np.abs(kept))
    error = np.abs(a.astype(float) @ b + kept - c)
    check("tiles.product", float((error / scale).max()), 1.0)
    before[1:-1, :columns] = whole[1:-1, :columns]
    assert (whole == before).all(), "written beside the result"


def test_an_interface_that_is_another_is_not_taken():
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    assert xla.known(header)
    assert not xla.known(re.sub(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_Stream_Get\);", "", header))
    assert not xla.known(header.replace("  void* data;\n  int64_t rank;", "  int64_t rank;\n  void* data;"))


def test_an_unknown_interface_is_one_warning_and_no_loop(monkeypatch):
    monkeypatch.setattr(xla, "_interface_is_known", functools.cache(xla._interface_is_known.__wrapped__))
    monkeypatch.setattr(xla, "_registered", functools.cache(xla._registered.__wrapped__))
    monkeypatch.setattr(xla, "known", lambda header: False)
    with pytest.warns(RuntimeWarning) as warned:
        assert not xla.registered("routelaws_attention") and not xla.registered("routelaws_experts")
    assert [str(warning.message) for warning in warned] == [xla.UNKNOWN]
