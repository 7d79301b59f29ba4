"""SparseMixer in evaluation: two experts per token, each with a softmax gate over the experts near it (Phi-3.5-MoE).

Step by step, with sources and examples: `routelaws.reference.routers.sparsemixer`.

Differences from the reference: logits of lower precision than float32 are converted to float32. A logit of NaN or +∞
raises no error: the gates of its token are NaN. Selections pass through `stop_gradient`. With a mask without real
tokens, plan and loads are NaN.
"""

import jax
import jax.numpy as jnp

from .._docstrings import describe_twins
from ..errors import InputError
from ..notation import Routing, _check_group, _padded_experts, _prepared, _real_gates, one_hot, softmax, top_k_indices
from .top_k import _kept, _routing


def sparsemixer_router(
    logits: jax.Array,
    *,
    jitter: float = 0.01,
    held: Routing | None = None,
    mask: jax.Array | None = None,
) -> Routing:
    """Give each token its two best experts, with the gates of SparseMixer in evaluation.

    Raises:
        ValueError: the logits are not [T, E], E < 2, the jitter is negative, or a mask has the wrong shape.

    Differs from the reference: see `top_k_router`.
    """
    _check_group("logits", logits)
    if not jitter >= 0:
        raise InputError(f"jitter is {jitter}; it has to be at least 0")
    if logits.shape[1] < 2:
        raise InputError(f"num_experts is {logits.shape[1]}; two experts per token need at least 2")
    logits, valid, available = _prepared(logits, 2, mask, held=held)
    # SELECT
    if held is None:
        expert = _padded_experts(top_k_indices(jax.lax.stop_gradient(logits), 2), mask)
        held = _routing(expert, _kept(expert, mask), logits, available)
    # COMBINE
    first = one_hot(held.expert[:, 0], logits.shape[1]) > 0
    left = jnp.where(first, -jnp.inf, logits)
    gates = [_gates_among_near(*pair, jitter) for pair in zip((logits, left), held.expert.T, strict=True)]
    return held._replace(gate=_real_gates(jnp.stack(gates, axis=1), valid, mask))


def _gates_among_near(left, chosen, jitter):
    """Return [T], the chosen expert's softmax probability among the near experts. `left` has −∞ at taken experts."""
    there, fixed = jnp.isfinite(left), jax.lax.stop_gradient(left)
    best, known = fixed.max(axis=1, keepdims=True), jnp.where(there, fixed, 0)
    near = there & (best - known <= 2 * jitter * jnp.maximum(jnp.abs(known), best))
    gates = softmax(jnp.where(near, left, -jnp.inf))
    return jnp.take_along_axis(gates, chosen[:, None], axis=1)[:, 0]


describe_twins(__name__)
