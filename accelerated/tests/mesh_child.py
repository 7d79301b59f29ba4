"""Compare training on meshes with training on one device, in a process with up to eight virtual devices.

Standard input has a list of cases as JSON, {"router", "mesh", "group", "what", ...fields}. The output has one result
for each case. If the router balances each shard, one device takes the mean of the losses of the shards.
"""

import dataclasses
import functools
import json
import math
import re
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.devices.mesh import BATCH_AXES, parse_mesh
from routelaws.accelerated.training.devices.mesh_plan import plan_device
from routelaws.accelerated.training.optimizer import optimizer
from routelaws.accelerated.training.step import (
    NOISE_STREAM,
    TrainState,
    initial_state,
    make_evaluate,
    make_train_steps,
    open_layout,
)
from routelaws.accelerated.training.text.hashing import hash_table_of
from routelaws.accelerated.transformer import draw_noise, loss, parameter_shapes
from routelaws.conformance.bounds import BOUNDS
from routelaws.reference.routers.records import RECORD_OF

SMALL = {
    "vocab_size": 32, "d_model": 16, "blocks": 2, "heads": 2, "experts": 8, "sequence_length": 8, "batch_size": 8,
    "steps": 20, "evaluations": 1, "learning_rate": 0.01, "warmup": 0.1,
}  # fmt: skip


NOT_FIELDS = ("what", "group", "name", "evaluate")
"""Entries of a case other than the fields of its run."""


def config_of(case: dict):
    fields = {name: value for name, value in case.items() if name not in NOT_FIELDS}
    if case["router"] == "dense":
        fields["experts"] = 1
    if RECORD_OF[case["router"]].grouped:
        fields = {"batch_size": 16, "group_size": 2, "k": 4 if case["router"] == "expert_choice" else 1} | fields
    config = from_mapping({**SMALL, **fields, "balancing_group": case.get("group", "shard")}, "case")
    config.check()
    return config


def shards_of(config) -> int:
    return 1 if config.balancing_group == "global" else parse_mesh(config.mesh).shards()


def on_one_device(config, shards: int):
    model, table = config.model, table_of(config)

    def of_shard(params, tokens, noise):
        result = loss(params, tokens, model, training=True, noise=noise, table=table)
        return result.total, result.output.bias

    def whole(params, tokens, noise):
        tokens = tokens.reshape(shards, -1, tokens.shape[1])
        if noise is not None:
            noise = jnp.moveaxis(noise.reshape(len(noise), shards, -1, *noise.shape[2:]), 1, 0)
        totals, bias = jax.lax.map(lambda given: of_shard(params, *given), (tokens, noise))
        if model.router == "top_k" and model.has_bias:  # the bias follows from the loads of all tokens, for any groups
            return totals.mean(), of_shard(params, tokens.reshape(-1, tokens.shape[2]), None)[1]
        return totals.mean(), None if bias is None else bias.mean(axis=0)

    return whole


def table_of(config):
    return hash_table_of(config, None, None)


def windows(config, steps: int):
    """Return batches [steps, b, S + 1] whose sequences have different beginnings.

    Otherwise two tokens with the same past have the same vector, and rounding decides which of them gets a slot.
    """
    random = np.random.default_rng(5)
    size, vocabulary = config.batch_size, config.model.vocab_size
    text = random.zipf(1.3, (steps, size, config.sequence_length + 1)) % vocabulary
    text[:, :, 0] = [random.permutation(vocabulary)[:size] for _ in range(steps)]
    return jnp.asarray(text, jnp.int32)


def furthest(found, wanted) -> tuple[float, str]:
    """Return the largest difference, in units of the largest entry of its leaf, and the path of this leaf."""

    def error(a, b):
        a, b = np.asarray(a), np.asarray(b)
        return (
            float(abs(a - b).max() / max(abs(b).max(), np.finfo(b.dtype).tiny))
            if abs(b).max() > 0
            else float(abs(a).max())
        )

    errors = jax.tree.map(error, found, wanted)
    path, worst = max(jax.tree_util.tree_leaves_with_path(errors), key=lambda item: item[1])
    return worst, jax.tree_util.keystr(path)


def away_from_start(config) -> dict:
    random = np.random.default_rng(3)

    def drawn(path, node):
        shape, deviation = node
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return centre + (deviation or 0.1) * random.standard_normal(shape)

    shapes = parameter_shapes(config.model)
    return jax.tree_util.tree_map_with_path(drawn, shapes, is_leaf=lambda node: isinstance(node, tuple))


@functools.cache
def _on_one_device(config, shards: int):
    params, tokens, noise = given(config)
    (value, bias), gradient = jax.jit(jax.value_and_grad(on_one_device(config, shards), has_aux=True))(
        params, tokens, noise
    )
    return value, bias, gradient


def given(config):
    noise = draw_noise(jax.random.key(4), config.model, config.batch_size, config.sequence_length)
    return away_from_start(config), windows(config, 1)[0], noise


def compare_gradients(case: dict) -> dict:
    """Return the differences of loss, gradients and bias from one device, in float64."""
    with jax.enable_x64(True):
        config = config_of(case)
        layout, table = open_layout(config), table_of(config)
        wanted = dataclasses.replace(config, mesh=None)
        value, bias, gradient = _on_one_device(wanted, shards_of(config))

        def objective(params, tokens, noise, hidden, table, spread):
            result = loss(params, tokens, config.model, training=True, noise=noise, table=table, spread=spread)
            return result.total, (result.total, result.output.bias)

        params, tokens, noise = given(config)
        placed = jax.device_put(params, layout.sharding(layout.params))
        (total, new), found = jax.jit(layout.differentiate(objective))(placed, tokens, noise, None, table)
        worst, where = furthest(found, gradient)
        moved = 0.0 if bias is None else float(np.abs(np.asarray(new) - np.asarray(bias)).max())
        return {
            "loss": abs(float(total) - float(value)),
            "gradient": worst,
            "where": where,
            "bias": moved,
            "load": compare_means(layout, placed, tokens),
            "joined": is_joined(layout, params),
        }


def is_joined(layout, params) -> bool:
    """Return whether the parts of the weights, joined, are the weights."""
    parts = jax.device_put(params, layout.sharding(layout.moments))
    old = jax.device_put(jax.tree.map(jnp.zeros_like, params), layout.sharding(layout.params))
    new = jax.jit(layout.join)(parts, old)
    return all(np.array_equal(leaf, whole) for leaf, whole in zip(*map(jax.tree.leaves, (new, params)), strict=True))


def compare_means(layout, params, tokens) -> float:
    def of_batch(params, tokens, hidden, table, spread):
        return tokens[:, 1:], (tokens.astype(jnp.float64) / len(params["embedding"])).mean(keepdims=True)

    losses, load = jax.jit(layout.evaluate(of_batch))(params, tokens, None, None)
    whole = (np.asarray(tokens, np.float64) / len(params["embedding"])).mean()
    return float(abs(losses - tokens[:, 1:]).max() + abs(load - whole).max())


DRAWS = 16
"""Number of trainings with perturbed gradients on one device, to find the effect of near ties."""


@functools.cache
def steps_on_one_device(config, shards: int):
    """Return the result of 20 steps on one device, and its sensitivity to rounding of gradients.

    Another order of sums changes a gradient by a few units in the last place of the largest entry of its leaf
    ("mesh.gradient_float32"). A second run has random changes of this size in every entry.

    Returns:
        The weights; the losses [steps]; the largest change of a loss, and the rounding of a loss; for each leaf the
        mean change of its entries, and the rounding of each step.
    """
    steps, objective, adam = config.steps, on_one_device(config, shards), optimizer(config)
    batches = windows(config, steps)
    noise_key = jax.random.fold_in(jax.random.key(config.seed), NOISE_STREAM)

    def off(gradient, size, key):
        leaves, tree = jax.tree.flatten(gradient)
        signs = [jax.random.rademacher(jax.random.fold_in(key, i), leaf.shape) for i, leaf in enumerate(leaves)]
        moved = [leaf + size * abs(leaf).max() * sign for leaf, sign in zip(leaves, signs, strict=True)]
        return jax.tree.unflatten(tree, moved)

    def step(state, now, size, key):
        tokens, number = now
        noise = draw_noise(
            jax.random.fold_in(noise_key, number), config.model, config.batch_size, config.sequence_length
        )
        (value, bias), gradient = jax.value_and_grad(objective, has_aux=True)(state.params, tokens, noise)
        gradient = off(gradient, size, jax.random.fold_in(key, number))
        updates, inner = adam.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        if bias is not None:
            params = params | {"routed_ffn": params["routed_ffn"] | {"bias": bias}}
        return TrainState(params, inner), value

    @jax.jit
    def run(state, size, key):
        return jax.lax.scan(lambda carry, now: step(carry, now, size, key), state, (batches, jnp.arange(steps)))

    start, size = initial_state(config), BOUNDS["mesh.gradient_float32"].limit
    state, losses = run(start, 0.0, jax.random.key(0))
    others = [run(start, size, jax.random.key(i)) for i in range(DRAWS)]
    unit, nothing = np.finfo(np.float32).eps / 2, jax.tree.map(np.zeros_like, state.params)
    moved = np.max([apart(other.params, state.params) for other, _ in others], axis=0)
    moved += unit * steps * apart(state.params, nothing)
    lost = max(float(abs(other - losses).max()) for _, other in others)
    lost += BOUNDS["transformer.loss"].limit * float(unit * abs(losses).max())
    return state.params, losses, lost, moved


def apart(found, wanted) -> np.ndarray:
    pairs = zip(*map(jax.tree.leaves, (found, wanted)), strict=True)
    return np.array([float(abs(np.asarray(a) - np.asarray(b)).mean()) for a, b in pairs])


@functools.cache
def steps_on_mesh(config):
    layout, table = open_layout(config), table_of(config)
    state = initial_state(config, layout)
    state, metrics = make_train_steps(config, table, layout)(state, windows(config, config.steps), 0)
    return state.params, metrics.loss + metrics.auxiliary


def compare_steps(case: dict) -> dict:
    """Return the differences from one device after 20 steps in float32, and the allowed differences."""
    config = config_of(case)
    wanted = dataclasses.replace(config, mesh=None, balancing_group="shard")
    params, losses, loss_may, weights_may = steps_on_one_device(wanted, shards_of(config))
    found, total = steps_on_mesh(config)
    result = {
        "loss": float(abs(total - losses).max()),
        "loss_may": loss_may,
        "weights": apart(found, params).tolist(),
        "weights_may": weights_may.tolist(),
        "names": [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)],
    }
    if case.get("evaluate"):
        layout, table, batches = open_layout(config), table_of(config), windows(config, 2)
        evaluation = make_evaluate(config, table, layout=layout)(found, batches)
        alone = make_evaluate(config, table)(jax.tree.map(np.asarray, found), batches)
        result["evaluation"] = float(abs(evaluation.loss - np.asarray(alone.loss)).max())
        result["load"] = float(abs(evaluation.load - np.asarray(alone.load)).max(initial=0.0))
    return result


COLLECTIVES = ("all-gather", "all-to-all", "reduce-scatter", "all-reduce", "collective-permute")


def count_bytes(text: str) -> dict[str, int]:
    """Return, for each collective of a compiled program, the bytes of its results on one device."""
    found = dict.fromkeys(COLLECTIVES, 0)
    for shapes, name in re.findall(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", text):
        for kind, size in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", shapes):
            found[name] += int(re.sub(r"\D", "", kind)) // 8 * math.prod(int(n) for n in size.split(",") if n)
    return found


def program(case: dict) -> dict:
    """Return the bytes that a device sends in a step, and the bytes of its weights and moments."""
    config = config_of(case)
    layout = open_layout(config)
    steps, state = make_train_steps(config, table_of(config), layout), initial_state(config, layout)
    batches = jax.device_put(windows(config, 1), jax.NamedSharding(layout.mesh, jax.P(None, BATCH_AXES)))
    compiled = jax.jit(lambda state, batches: steps(state, batches, 0)).lower(state, batches).compile()

    def held(tree):
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree) if leaf.ndim)

    def whole(tree):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if leaf.ndim)

    tokens = config.batch_size * config.sequence_length // layout.shape.shards()
    return {
        "sent": count_bytes(compiled.as_text()),
        "tokens": tokens,
        "planned": plan_device(config.model, layout.shape, config.batch_size, config.sequence_length).all_to_all,
        "weights": held(state.params),
        "moments": held(state.optimizer),
        "all_moments": whole(state.optimizer),
    }


WHAT = {"gradients": compare_gradients, "steps": compare_steps, "program": program}

if __name__ == "__main__":
    results = []
    for case in json.load(sys.stdin):
        begun = time.perf_counter()
        results.append(WHAT[case.pop("what")](case))
        print(case, results[-1], round(time.perf_counter() - begun, 1), file=sys.stderr, flush=True)
    print(json.dumps(results))
