"""Experts that run in pieces (`grouped`): values and gradients are those of the definition, whatever the loads."""

import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from routelaws.accelerated import experts, grouped
from routelaws.conformance.bounds import check
from routelaws.conformance.engine.harness import UNIT

T, D, F = 203, 5, 7  # a mean load of 50.75 with four experts: pieces of 32, 56, 64 and 72 rows
WIDE = 256, 272  # d and f so large that an expert has larger matrices than vectors, with its 128 rows at k = 2 too
EVEN, SKEW, ONE, FEW = (0.25,) * 4, (0.5, 0.3, 0.15, 0.05), (1, 0, 0, 0), (0, 0.75, 0.25, 0)
# Ten experts, in groups of four, which do not come out even: four are idle, and one has whole pieces.
MANY = (0, 0.4, 0.02, 0.1, 0, 0, 0.15, 0.13, 0.2, 0)


def layer(loads, k=1, activation="gelu", seed=0, widths=(D, F)):
    (d, f), num_experts = widths, len(loads)
    random = np.random.default_rng(seed)
    first = (
        random.choice(num_experts, T, p=loads)
        if sum(share > 0 for share in loads) > 1
        else np.full(T, np.argmax(loads))
    )
    expert = (first[:, None] + np.arange(k)) % num_experts
    params = {
        "up": random.standard_normal((num_experts, d, f)),
        "down": random.standard_normal((num_experts, f, d)),
    }
    if activation == "swiglu":
        params["linear"] = random.standard_normal((num_experts, d, f))
    point = {"params": params, "x": random.standard_normal((T, d)), "gate": random.uniform(0.2, 1, (T, k))}
    return jax.tree.map(jnp.asarray, point), jnp.asarray(expert, jnp.int32), random.standard_normal((T, d))


def by_definition(point, expert, kept, activation):
    """Return the output of the layer with the matrices of its own experts in the hand of each token."""

    def one(x, expert, gate, kept):
        own = {name: matrix[expert] for name, matrix in point["params"].items()}
        output = jax.vmap(lambda matrices: experts.expert_ffn(**matrices, x=x, activation=activation))(own)
        return (jnp.where(kept, gate, 0)[:, None] * output).sum(axis=0)

    return jax.vmap(one)(point["x"], expert, point["gate"], kept)


def in_pieces(monkeypatch):
    monkeypatch.setattr(experts, "_LEAST_PRODUCT", 0)
    sizes = []
    run = grouped.place_rows
    monkeypatch.setattr(experts, "place_rows", lambda *arguments: sizes.append(1) or run(*arguments))
    return sizes


CASES = {
    "skewed, two experts, swiglu": (SKEW, 2, "swiglu", math.inf, None),
    "one expert": (ONE, 1, "gelu", math.inf, None),
    # Of two experts for each of some 190 tokens: one idle, one full, and two with a whole piece of 128 rows and a rest.
    "idle experts, a capacity, two experts, padding": (FEW, 2, "relu", 1.6, 0.95),
    "wide, idle experts, a capacity, two experts, padding": (FEW, 2, "relu", 1.6, 0.95),
    "wide, skewed, swiglu": (SKEW, 1, "swiglu", math.inf, None),
    "only padding": (EVEN, 1, "gelu", 2.0, 0.0),
    "in groups": (MANY, 1, "relu", math.inf, None),
    "in groups, wide, two experts, a capacity, padding": (MANY, 2, "swiglu", 1.6, 0.95),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith(("wide, idle", "in groups")) else pytest.mark.slow)
        for name in CASES
    ],
)
def test_definition(monkeypatch, name):
    loads, k, activation, factor, real = CASES[name]
    used = in_pieces(monkeypatch)
    if name.startswith("in groups"):
        monkeypatch.setattr(grouped, "_MANY", len(loads))
    with jax.enable_x64(True):
        widths = WIDE if "wide" in name else (D, F)
        point, expert, weights = layer(loads, k, activation, widths=widths)
        mask = None if real is None else jnp.asarray(np.random.default_rng(1).random(T) < real)
        num_real = T if mask is None else int(mask.sum())
        capacity = experts.expert_capacity(num_real, len(loads), k, factor)
        kept = experts.dispatch(expert, len(loads), capacity, mask=mask).kept

        def found(point):
            arrays = point["params"], point["x"], expert, point["gate"]
            output, dropped = experts.routed_ffn(*arrays, factor, mask=mask, activation=activation)
            return (output * weights).sum(), (output, dropped)

        def wanted(point):
            output = by_definition(point, expert, kept, activation)
            return (output * weights).sum(), output

        (_, (output, dropped)), gradient = jax.jit(jax.value_and_grad(found, has_aux=True))(point)
        (_, right), slope = jax.jit(jax.value_and_grad(wanted, has_aux=True))(point)
        output, gradient, right, slope, dropped, kept = jax.device_get((output, gradient, right, slope, dropped, kept))
    assert used, "the experts did not run in pieces"
    for this, that in zip(jax.tree.leaves((output, gradient)), jax.tree.leaves((right, slope)), strict=True):
        error = np.abs(this - that).max()
        check("experts.pieces", error, UNIT["float64"] * max(np.abs(that).max(), 1.0), message=name)
    assert (
        np.isnan(dropped)
        if num_real == 0
        else math.isclose(dropped, 1 - kept.sum() / (num_real * k), abs_tol=UNIT["float32"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(D, F), WIDE])
def test_groups_and_devices(monkeypatch, widths):
    """Under vmap over groups, and inside shard_map with its check of what varies over the devices."""
    used = in_pieces(monkeypatch)
    points, experts_of, weights = zip(
        *(layer(loads, seed=seed, widths=widths) for seed, loads in enumerate((EVEN, ONE))), strict=True
    )
    params = points[0]["params"]
    x, gate = (jnp.stack([point[name] for point in points]) for name in ("x", "gate"))
    expert, weights = jnp.stack(experts_of), jnp.stack(weights).astype(x.dtype)

    def loss(params, x, gate, expert, weights):
        return (experts.routed_ffn(params, x, expert, gate, 1.0).output * weights).sum()

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    both = [jax.jit(gradient)(params, *arrays) for arrays in zip(x, gate, expert, weights, strict=True)]
    mapped = jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0, 0, 0)))(params, x, gate, expert, weights)
    for group, alone in enumerate(both):
        for this, that in zip(jax.tree.leaves(mapped), jax.tree.leaves(alone), strict=True):
            scale = UNIT["float32"] * float(jnp.abs(that).max())
            check("experts.pieces", float(jnp.abs(this[group] - that).max()), scale, message=f"group {group}")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.P("data"), jax.P()
    spread = jax.shard_map(
        lambda *arrays: jax.lax.psum(loss(*arrays), "data"),
        mesh=mesh,
        in_specs=(whole, rows, rows, rows, rows),
        out_specs=whole,
    )
    found = jax.jit(jax.grad(spread, argnums=(0, 1, 2)))(params, x[0], gate[0], expert[0], weights[0])
    for this, that in zip(jax.tree.leaves(found), jax.tree.leaves(both[0]), strict=True):
        scale = UNIT["float32"] * float(jnp.abs(that).max())
        check("experts.pieces", float(jnp.abs(this - that).max()), scale, message="shard_map")
    assert used


@pytest.mark.parametrize(("num_assignments", "num_experts"), [(1, 1), (7, 3), (64, 4), (333, 5)])
def test_positions(num_assignments, num_experts):
    queue = np.random.default_rng(num_assignments).integers(0, num_experts, num_assignments)
    wanted = [int((queue[:i] == e).sum()) for i, e in enumerate(queue)]
    assert grouped.position_in_queue(jnp.asarray(queue), num_experts).tolist() == wanted


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.sampled_from((8, 9)), st.lists(st.integers(0, 256), min_size=9, max_size=9), st.sampled_from((1, 1000))
)
@hypothesis.example(8, [1, 1, 1, 48, 48, 48, 48, 48, 0], 1)  # one expert sets the size of three small ones
def test_every_assignment_has_a_row(num_experts, loads, many):
    """Whatever the loads, each has a row of its own, and the pieces of its expert cover these; in groups or not."""
    queue = [e for e, load in enumerate(loads[:num_experts]) for _ in range(load)][:256]
    queue = np.random.default_rng(0).permutation(queue + [num_experts] * (256 - len(queue)))
    loads = [int((queue == e).sum()) for e in range(num_experts)]
    slot = grouped.position_in_queue(jnp.asarray(queue), len(loads))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "_MANY", many)
        placed = jax.device_get(grouped.place_rows(jnp.asarray(queue)[:, None], slot[:, None], len(loads)))
    sizes = grouped.piece_sizes(len(queue), len(loads))
    size = np.zeros(len(loads), int)
    for number, last_size in enumerate(sizes):
        size[placed.by_size[placed.bound[number] : placed.bound[number + 1]]] = last_size
    for e, load in enumerate(loads):
        rows = placed.row[queue == e, 0]
        run = range(placed.first[e], placed.first[e] + placed.whole[e] * sizes[-1] + size[e])
        assert len(rows) == load <= len(run) and run.stop <= len(placed.pair)
        assert set(rows) == set(run[:load])
    asked = queue < len(loads)
    assert (placed.pair[placed.row[asked, 0]] == np.flatnonzero(asked)).all()
    assert (placed.pair < len(queue)).sum() == asked.sum(), "a row without an assignment"
