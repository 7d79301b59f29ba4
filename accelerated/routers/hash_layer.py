"""See `routelaws.reference.routers.hash_layer`. Negative ids cannot raise under jit; they wrap like any remainder."""

import jax
import jax.numpy as jnp

from ..errors import InputError
from ..notation import Routing, one_hot


def hash_layer(token_ids: jax.Array, num_experts: int) -> Routing:
    """See reference."""
    if num_experts < 1:
        raise InputError(f"num_experts is {num_experts}; at least 1 is needed")
    if not jnp.issubdtype(token_ids.dtype, jnp.integer):
        raise InputError(f"token_ids have dtype {token_ids.dtype}; integers are needed")
    # SELECT
    expert = (token_ids % num_experts).astype(jnp.int32)  # [T]
    plan = one_hot(expert, num_experts) / len(token_ids)  # [T, E]
    load = plan.sum(axis=0)  # [E]
    # COMBINE
    gate = jnp.ones((len(token_ids), 1), plan.dtype)
    return Routing(expert[:, None], gate, load, plan, jnp.abs(load * num_experts - 1).max())
