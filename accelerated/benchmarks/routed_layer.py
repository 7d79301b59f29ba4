"""Figures of the routed FFN, alone: scores, assignment, dispatch, experts, combine, forward and backward.

Ours is `routed_block` in training (S-BASE, Sinkhorn with its defaults), with the gradients of router, experts and
input; dense is `expert_ffn` with those of its two matrices and its input. d = 256, f = 1024, float32.
"""

import math

from .figure import Figure, Goal, Side
from .worker import Job

D_MODEL = 256
SHAPES = ((4096, 8), (4096, 64), (2048, 16), (16384, 64))
"""T and E of the comparisons with the dense FFN."""

PEER_SHAPES = ((4096, 8), (4096, 64))
GROWTH = (8, 512)


def our_layer(num_tokens, num_experts, d_model, capacity_factor=None) -> Job:
    """Return a job that runs the routed FFN forward and backward; its facts say what was dropped."""
    import jax
    import jax.numpy as jnp

    from routelaws.reference.configuration import ModelConfig

    from ..routed_block import routed_block

    factor = math.inf if capacity_factor == "inf" else capacity_factor
    fields = {"vocab_size": 64, "d_model": d_model, "heads": d_model // 32 or 1, "router": "sinkhorn"}
    config = ModelConfig(**fields, experts=num_experts, capacity_factor=factor)
    shapes = {
        "up": (num_experts, d_model, 4 * d_model),
        "down": (num_experts, 4 * d_model, d_model),
        "router": (d_model, num_experts),
    }
    params = {
        name: jax.random.normal(jax.random.key(i), shape) * shape[-2] ** -0.5
        for i, (name, shape) in enumerate(shapes.items())
    }
    x, pull = _inputs(num_tokens, d_model)
    tokens = jnp.zeros((1, num_tokens), jnp.int32)

    def value(params, x):
        done = routed_block(params, x[None], tokens, config, training=True)
        return (done.output[0] * pull).sum() + done.auxiliary, done.dropped_fraction

    step = _in_place(jax.value_and_grad(value, argnums=(0, 1), has_aux=True))
    held = {"gradients": jax.tree.map(jnp.zeros_like, (params, x))}

    def run():
        (_, held["dropped"]), held["gradients"] = jax.block_until_ready(step(held["gradients"], params, x))

    return Job(run, lambda: {"dropped_fraction": round(float(held["dropped"]), 5)})


def dense_layer(num_tokens, d_model) -> Job:
    """Return a job that runs the dense FFN forward and backward."""
    import jax

    from ..experts import expert_ffn

    up = jax.random.normal(jax.random.key(0), (d_model, 4 * d_model)) * d_model**-0.5
    down = jax.random.normal(jax.random.key(1), (4 * d_model, d_model)) * (4 * d_model) ** -0.5
    x, pull = _inputs(num_tokens, d_model)
    step = _in_place(jax.value_and_grad(lambda up, down, x: (expert_ffn(up, down, x) * pull).sum(), argnums=(0, 1, 2)))
    held = {"gradients": jax.tree.map(jax.numpy.zeros_like, (up, down, x))}

    def run():
        _, held["gradients"] = jax.block_until_ready(step(held["gradients"], up, down, x))

    return Job(run)


def _in_place(value_and_grad):
    """Compile a function so that its gradients are written where those of the call before it were.

    A train step does the same: its gradients stay inside one program. What a call takes from the system and gives back
    would be measured otherwise, 1 GB of it with 512 experts.
    """
    import jax

    return jax.jit(lambda _, *values: value_and_grad(*values), donate_argnums=0, keep_unused=True)


def _inputs(num_tokens, d_model):
    """Return tokens with a direction that they share, so that loads are uneven, and the gradient of the output."""
    import jax

    x, pull = (jax.random.normal(jax.random.key(10 + i), (num_tokens, d_model)) for i in range(2))
    return x + 0.3 * jax.random.normal(jax.random.key(12), (d_model,)), pull


def ffn_flops(num_tokens: int, d_model: int) -> float:
    """Return the FLOPs of an FFN forward and backward: three times two products with d x 4d numbers."""
    return 3 * 2 * 2 * num_tokens * d_model * 4 * d_model


def weight_traffic(num_experts: int, d_model: int) -> float:
    """Return the bytes of all expert weights, read forward and backward, and of their gradients, written once."""
    return 3 * 4 * num_experts * 2 * d_model * 4 * d_model


def _shape(bench, num_tokens: int, num_experts: int) -> tuple[int, int, int]:
    return (256, min(num_experts, 8), 32) if bench.settings.quick else (num_tokens, num_experts, D_MODEL)


def over_dense(bench, num_tokens: int, num_experts: int, capacity_factor):
    """Measure the routed layer over the dense one."""
    tokens, experts, d_model = _shape(bench, num_tokens, num_experts)
    threads, sizes = bench.threads(), {"num_tokens": tokens, "d_model": d_model}
    ours = sizes | {"num_experts": experts, "capacity_factor": capacity_factor}
    sides = {"routed": Side("routed_layer:our_layer", ours), "dense": Side("routed_layer:dense_layer", sizes)}
    floor = bench.floor(threads, ffn_flops(tokens, d_model), weight_traffic(experts, d_model))
    return bench.compare(sides, lambda s: s["routed"] / s["dense"], threads, ("routed", floor))


def against_torch(bench, kind: str, num_experts: int, own_ratio: bool):
    """Measure the tokens per second of our layer over those of a layer in torch, or our ratio to dense over theirs."""
    tokens, experts, d_model = _shape(bench, 4096, num_experts)
    sizes = {"num_tokens": tokens, "d_model": d_model}
    theirs = sizes | {"num_experts": experts, "f": 4 * d_model, "gpu": bench.machine()["backend"] == "gpu"}
    sides = {
        "ours": Side("routed_layer:our_layer", sizes | {"num_experts": experts}),
        "theirs": Side("torch_peers:layer", theirs | {"kind": kind}, "torch"),
    }
    if not own_ratio:
        return bench.compare(sides, lambda s: s["theirs"] / s["ours"], bench.threads())
    sides |= {
        "our dense": Side("routed_layer:dense_layer", sizes),
        "their dense": Side("torch_peers:layer", theirs | {"kind": "dense"}, "torch"),
    }

    def ratio(s):
        return (s["ours"] / s["our dense"]) / (s["theirs"] / s["their dense"])

    return bench.compare(sides, ratio, bench.threads())


def growth(bench):
    """Measure the layer with many experts over (dense time + expert-weight bytes / bandwidth)."""
    few, many = GROWTH
    tokens, experts, d_model = _shape(bench, 4096, many)
    threads, sizes = bench.threads(), {"num_tokens": tokens, "d_model": d_model}
    sides = {
        "few experts": Side("routed_layer:our_layer", sizes | {"num_experts": min(few, experts)}),
        "many experts": Side("routed_layer:our_layer", sizes | {"num_experts": experts}),
        "dense": Side("routed_layer:dense_layer", sizes),
    }
    traffic = bench.floor(threads, traffic=weight_traffic(experts, d_model))
    found = bench.compare(sides, lambda s: s["many experts"] / (s["dense"] + traffic), threads)
    found.floor_seconds = found.seconds["dense"] + traffic
    found.over_floor = found.seconds["many experts"] / found.floor_seconds
    found.facts |= {"experts": [few, experts], "growth": found.seconds["many experts"] / found.seconds["few experts"]}
    return found


def _dense_figure(num_tokens: int, num_experts: int, capacity_factor) -> Figure:
    slots = "nothing dropped" if capacity_factor == "inf" else "default capacity"
    what = f"routed FFN over the dense FFN, T = {num_tokens}, E = {num_experts}, {slots}"
    name = f"routed-layer-{num_tokens}x{num_experts}-{'dropless' if capacity_factor == 'inf' else 'default'}"
    goal = Goal(1.15 if num_experts == 8 else 1.55)
    return Figure(name, what, goal, lambda b: over_dense(b, num_tokens, num_experts, capacity_factor))


PEER_NAMES = {"switch": "the Switch layer of transformers", "loop": "a torch loop with index_select"}


def _peer_figure(kind: str, num_experts: int, own_ratio: bool) -> Figure:
    if own_ratio:
        what = f"our ratio to our dense FFN over the same of {PEER_NAMES[kind]}, T = 4096, E = {num_experts}"
        goal, name = Goal(1.0), f"{kind}-layer-e{num_experts}-ratio"
    else:
        what = f"tokens per second of our routed FFN over those of {PEER_NAMES[kind]}, T = 4096, E = {num_experts}"
        goal, name = Goal(1.8, least=True), f"{kind}-layer-e{num_experts}-speed"
    return Figure(name, what, goal, lambda b: against_torch(b, kind, num_experts, own_ratio))


FIGURES = (
    *(_dense_figure(*shape, factor) for shape in SHAPES for factor in (None, "inf")),
    *(
        _peer_figure(kind, experts, own_ratio)
        for kind in PEER_NAMES
        for _, experts in PEER_SHAPES
        for own_ratio in (False, True)
    ),
    Figure(
        "expert-growth",
        "routed FFN with 512 experts over (dense time + expert-weight bytes / bandwidth)",
        Goal(1.3),
        growth,
    ),
)
