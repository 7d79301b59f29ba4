"""A variant of `experts.routed_ffn`: hₜ = Σⱼ y of gate(t, j) · xₜ at its j-th expert. `transformer` does not use it.

Step by step, with sources and examples: `routelaws.reference.layer_variants`.

Differences from the reference: the function calls `experts.routed_ffn` and has its differences.
"""

import jax
import jax.numpy as jnp

from ._docstrings import describe_twins
from .experts import _check_ffn, routed_ffn


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


describe_twins(__name__)
