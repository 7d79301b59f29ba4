"""Variants of `experts.routed_ffn`: gates on the experts' inputs, and experts without weights.

Step by step, with sources and examples: `routelaws.reference.layer_variants`.

Differences from the reference: both functions call `experts.routed_ffn` and have its differences.
"""

import math

import jax
import jax.numpy as jnp

from ._docstrings import describe_twins
from .experts import RoutedOutput, _check_ffn, routed_ffn


def input_gated_ffn(
    params: dict, x: jax.Array, expert: jax.Array, gate: jax.Array, *, activation: str = "gelu"
) -> jax.Array:
    """Return Σⱼ expert_j(gate(t, j) · xₜ): the gate scales the expert's input, as in Llama 4.

    Differs from the reference: the function passes T k rows with one expert each to `routed_ffn`.
    """
    _check_ffn(params, x, expert, gate)
    x, gate = jnp.asarray(x), jnp.asarray(gate)
    rows = (gate[:, :, None] * x[:, None, :]).astype(x.dtype).reshape(-1, x.shape[1])
    ones = jnp.ones((len(rows), 1), gate.dtype)
    output = routed_ffn(params, rows, expert.reshape(-1, 1), ones, activation=activation).output
    return output.reshape(*expert.shape, x.shape[1]).sum(axis=1)


def null_expert_ffn(
    params: dict,
    x: jax.Array,
    expert: jax.Array,
    gate: jax.Array,
    capacity_factor: float = math.inf,
    *,
    identity: bool = False,
    order: str = "choice",
    activation: str = "gelu",
) -> RoutedOutput:
    """Send each token through its experts. Experts E and above are null experts, without weights.

    Differs from the reference: see `routed_ffn`.
    """
    null = expert >= len(params["up"])
    options = {"order": order, "mask": ~null, "activation": activation}
    output, dropped = routed_ffn(params, x, jnp.where(null, 0, expert), gate, capacity_factor, **options)
    if identity:
        output = output + (jnp.where(null, gate, 0).sum(axis=1)[:, None] * x).astype(output.dtype)
    return RoutedOutput(output, jnp.where(null.all(), 0, dropped))


describe_twins(__name__)
