"""Figures of a routed FFN, forward and backward, compared with a dense FFN and with a Switch layer in torch.

Our side is `routed_block` in training (Sinkhorn with its defaults), with the gradients of router, experts and input. T
= 4096, d = 256, f = 1024, float32.
"""

from .figure import Figure, Job, Side, over

T, D = 4096, 256
QUICK = 256, 32


def our_layer(num_experts: int, quick: bool = False) -> Job:
    """Return a job that runs the routed FFN forward and backward. Its fact is the dropped fraction."""
    import jax
    import jax.numpy as jnp

    from routelaws.accelerated.routed_block import routed_block
    from routelaws.reference.configuration import ModelConfig

    tokens, d = QUICK if quick else (T, D)
    config = ModelConfig(64, d, heads=d // 32, router="sinkhorn", experts=num_experts)
    shapes = {"up": (num_experts, d, 4 * d), "down": (num_experts, 4 * d, d), "router": (d, num_experts)}
    params = {name: _normal(i, shape) * shape[-2] ** -0.5 for i, (name, shape) in enumerate(shapes.items())}
    x, pull = _inputs(tokens, d)

    def value(params, x):
        done = routed_block(params, x[None], jnp.zeros((1, tokens), jnp.int32), config, training=True)
        return (done.output[0] * pull).sum() + done.auxiliary, done.dropped_fraction

    run, held = _in_place(jax.value_and_grad(value, argnums=(0, 1), has_aux=True), params, x)
    return Job(run, lambda: {"dropped_fraction": round(float(held["value"][1]), 5)})


def dense_layer(quick: bool = False) -> Job:
    import jax

    from routelaws.accelerated.experts import expert_ffn

    tokens, d = QUICK if quick else (T, D)
    up, down = _normal(0, (d, 4 * d)) * d**-0.5, _normal(1, (4 * d, d)) * (4 * d) ** -0.5
    x, pull = _inputs(tokens, d)
    value = jax.value_and_grad(lambda up, down, x: (expert_ffn(up, down, x) * pull).sum(), argnums=(0, 1, 2))
    return Job(_in_place(value, up, down, x)[0])


def _in_place(value_and_grad, *arguments):
    """Return a function that runs a compiled call, and the result of the last call.

    Gradients overwrite the gradients of the previous call, as in a train step. Otherwise the time would include memory
    allocation.
    """
    import jax

    step = jax.jit(lambda _, *values: value_and_grad(*values), donate_argnums=0, keep_unused=True)
    held = {"gradients": jax.tree.map(jax.numpy.zeros_like, arguments)}

    def run():
        held["value"], held["gradients"] = jax.block_until_ready(step(held["gradients"], *arguments))

    return run, held


def _normal(seed: int, shape: tuple[int, ...]):
    import jax

    return jax.random.normal(jax.random.key(seed), shape)


def _inputs(tokens: int, d: int):
    """Return tokens with a common direction, for uneven loads, and the gradient of the output."""
    return _normal(10, (tokens, d)) + 0.3 * _normal(12, (d,)), _normal(11, (tokens, d))


def _figures(experts: int) -> tuple[Figure, Figure]:
    ours, dense = Side("layers:our_layer", {"num_experts": experts}), Side("layers:dense_layer", {})
    switch = Side("torch_peers:switch_layer", {"num_experts": experts}, "torch")
    return (
        Figure(
            f"routed-layer-e{experts}", f"time of the routed FFN divided by the dense FFN, T = {T}, E = {experts}",
            {"routed": ours, "dense": dense}, over("routed", "dense"), ("at most", {8: 1.15, 64: 1.55}[experts]),
        ),
        Figure(
            f"switch-layer-e{experts}",
            f"time of the Switch layer of transformers divided by our routed FFN, E = {experts}",
            {"ours": ours, "switch": switch}, over("switch", "ours"), ("at least", 1.0),
        ),
    )  # fmt: skip


FIGURES = (*_figures(8), *_figures(64))
