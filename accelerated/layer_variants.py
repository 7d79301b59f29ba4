"""Variants of `experts.routed_ffn`: gates on the experts' inputs, and experts without weights.

Step by step, with sources and examples: `routelaws.reference.layer_variants`.

Differences from the reference: both functions call `experts.routed_ffn` and have its differences.
"""

import math

import jax
import jax.numpy as jnp

from .experts import RoutedOutput, _check_ffn, routed_ffn


def input_gated_ffn(
    params: dict, x: jax.Array, expert: jax.Array, gate: jax.Array, *, activation: str = "gelu"
) -> jax.Array:
    """Return Σⱼ expert_j(gate(t, j) · xₜ): the gate scales the expert's input, as in Llama 4.

    With ReLU and gates of at least 0 the result equals `routed_ffn`. With other activations it differs, because experts
    are not linear. Nothing is dropped. Llama 4 has k = 1, the sigmoid of the logit as gate, and a shared expert.

    Args:
        params: see `routed_ffn`.
        x: [T, d].
        expert: [T, k] integers in [0, E).
        gate: [T, k].
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [T, d].

    Raises:
        ValueError: `routed_ffn` raises this error.

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

    A null expert takes no slot. It returns 0 or, with `identity`, the token itself. So tokens use different numbers of
    real experts. MoE++ (Jin et al. 2024, arXiv 2410.07348) calls these zero experts and copy experts. LongCat-Flash
    (arXiv 2509.01322) has zero-computation experts that return the token.

    Args:
        params: the weights of the E real experts (see `routed_ffn`).
        x: [T, d].
        expert: [T, k] integers >= 0; experts E and above are null experts.
        gate: [T, k].
        capacity_factor: the factor of the real experts (see `routed_ffn`). In the capacity, T counts the tokens with at
            least one real expert.
        identity: whether null experts return the token instead of 0.
        order: see `routed_ffn`.
        activation: see `routed_ffn`.

    Returns:
        `RoutedOutput`. `dropped_fraction` counts only assignments to real experts. It is 0 if there are none.

    Raises:
        ValueError: `routed_ffn` raises this error.

    Differs from the reference: see `routed_ffn`.
    """
    null = expert >= len(params["up"])
    options = {"order": order, "mask": ~null, "activation": activation}
    output, dropped = routed_ffn(params, x, jnp.where(null, 0, expert), gate, capacity_factor, **options)
    if identity:
        output = output + (jnp.where(null, gate, 0).sum(axis=1)[:, None] * x).astype(output.dtype)
    return RoutedOutput(output, jnp.where(null.all(), 0, dropped))
