"""See `routelaws.reference.routers.mixture_of_tokens`, above all for which groups are causal.

What differs: controller and weights are computed in float32 at least, the rest in the type of x. Under `vmap` over n
groups the experts see all groups at once, one batched matrix product `[E, n, d] x [E, d, f]`. What is not a number
does not raise: it is carried into the weights, and so is a traced temperature that is not above 0. A group without a
real token gets 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InputError
from ..experts import gelu
from ..notation import _at_least_float32, _check_group, top_k_indices

ACTIVATIONS = ("gelu", "relu")
"""See reference."""


class MixtureOutput(NamedTuple):
    """See reference."""

    output: jax.Array  # [g, d]
    weights: jax.Array  # [g, E]


def mixing_weights(
    logits: jax.Array, temperature: float = 1.0, *, one_hot: bool = False, mask: jax.Array | None = None
) -> jax.Array:
    """See reference."""
    _check_group("logits", logits)
    _check_temperature(temperature)
    logits = _at_least_float32(logits)
    real = jnp.ones((len(logits), 1), bool) if mask is None else jnp.asarray(mask, bool)[:, None]
    if one_hot:
        weights = _largest(jnp.where(real, logits, -jnp.inf))
    else:
        weights = jax.nn.softmax(jnp.where(real, _divided(logits, temperature, real), -jnp.inf), axis=0)
    return jnp.where(real, weights, 0)  # where no token is real the weights were NaN


def _check_temperature(temperature):
    traced = isinstance(temperature, jax.core.Tracer)
    if jnp.shape(temperature) != () or (not traced and not temperature > 0):
        raise InputError(f"temperature is {temperature}; one number above 0 is needed (one_hot is the limit 0)")


def _divided(logits, temperature, real):
    """Return logits / temperature but for a constant in each column, 0 in the padding.

    Shifted before the division too: a compiler may fuse division and shift, so that the largest quotient is shifted by
    a rounding of itself, and what is left of 1e10 then overflows in the exponential.
    """
    top = jax.lax.stop_gradient(logits).max(axis=0, where=real, initial=-jnp.inf)
    temperature = jnp.asarray(temperature, logits.dtype)
    return jnp.where(real, logits - top, 0) / jnp.where(temperature > 0, temperature, jnp.nan)


def _largest(logits):
    """Return [g, E], 1 at the largest logit of each expert, NaN for an expert with a logit that is NaN."""
    logits = jax.lax.stop_gradient(logits)
    token = top_k_indices(logits.T, 1)[:, 0]  # [E]
    chosen = jnp.arange(len(logits))[:, None] == token
    return jnp.where(jnp.isnan(logits).any(axis=0), jnp.nan, chosen.astype(logits.dtype))


def mixture_of_tokens(
    params: dict,
    x: jax.Array,
    temperature: float = 1.0,
    *,
    one_hot: bool = False,
    activation: str = "gelu",
    mask: jax.Array | None = None,
) -> MixtureOutput:
    """See reference."""
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; allowed: {', '.join(ACTIVATIONS)}")
    if mask is not None:
        x = jnp.where(jnp.asarray(mask, bool)[:, None], x, 0)  # 0 times what stands in the padding need not be 0
    wide = jnp.promote_types(x.dtype, jnp.float32)
    router, up, down = params["router"].astype(wide), params["up"].astype(x.dtype), params["down"].astype(x.dtype)
    # SCORE and WEIGH
    weights = mixing_weights(x.astype(wide) @ router, temperature, one_hot=one_hot, mask=mask)  # [g, E]
    shares = weights.astype(x.dtype)
    mixtures = jnp.einsum("ge,gd->ed", shares, x)  # MIX
    hidden = _activate(jnp.einsum("ed,edf->ef", mixtures, up), activation)  # RUN
    results = jnp.einsum("ef,efd->ed", hidden, down)
    return MixtureOutput(shares @ results, weights)  # COMBINE


def _activate(x, activation):
    return gelu(x) if activation == "gelu" else jax.nn.relu(x)


def group_within_sequence(x: jax.Array, group_size: int) -> jax.Array:
    """See reference."""
    length = x.shape[1]
    if group_size < 1 or length % group_size:
        raise InputError(f"group_size is {group_size}; it has to divide the {length} positions of a sequence")
    return x.reshape(-1, group_size, *x.shape[2:])


def ungroup_within_sequence(grouped: jax.Array, sequence_length: int) -> jax.Array:
    """See reference."""
    groups, group_size = grouped.shape[:2]
    if sequence_length < 1 or sequence_length % group_size or groups * group_size % sequence_length:
        raise InputError(
            f"sequence_length is {sequence_length}; {groups} groups of {group_size} have to make up whole sequences"
        )
    return grouped.reshape(-1, sequence_length, *grouped.shape[2:])
