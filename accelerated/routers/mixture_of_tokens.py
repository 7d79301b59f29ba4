"""Mixture of Tokens: each expert processes a weighted mean of a group's tokens and divides the output among them.

Step by step, with sources and examples: `routelaws.reference.routers.mixture_of_tokens`.

Differences from the reference: controller and weights use at least float32; the rest uses the dtype of x. Under `vmap`
over n groups the experts process all groups in one batched matrix product `[E, n, d] x [E, d, f]`. A non-finite value,
or a traced temperature that is not above 0, raises no error. The weights that depend on this value are NaN. The output
of a group without a real token is 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.routers.mixture_of_tokens import (  # noqa: F401 - for users
    EMITS,
    group_within_sequence,
    ungroup_within_sequence,
)

from .._docstrings import describe_twins
from ..errors import InputError
from ..experts import _activated, _matrices
from ..notation import (
    _at_least_float32,
    _check_group,
    _masked_rows,
    _or_nan,
    _real_tokens,
    top_k_indices,
)
from ..operations.shapes import sizes_of
from ..parallel import run_experts


class MixtureOutput(NamedTuple):
    """The result of a Mixture-of-Tokens layer for one group.

    Attributes:
        output: [g, d]
        weights: [g, E], share of each token in each expert's mixture; columns sum to 1 over the real tokens
    """

    output: jax.Array
    weights: jax.Array


def mixing_weights(
    logits: jax.Array,
    temperature: float = 1.0,
    *,
    one_hot: bool = False,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Return the weight of each token in the mixture of each expert.

    Raises:
        ValueError: the logits are not [g, E], the temperature is not a number above 0, or a mask has the wrong shape.

    Differs from the reference: the weights have at least float32. The weights of an expert with a logit of NaN or +∞
    are NaN. All weights are NaN if a traced temperature is not above 0. If no token is real, the weights are 0.
    """
    logits, real, taking = _entering(logits, temperature, mask, axis=0)
    if one_hot:
        weights = _largest(jnp.where(real, logits, -jnp.inf))
    else:
        inside = taking | ~taking.any(axis=0)
        weights = jax.nn.softmax(jnp.where(inside, _divided(logits, temperature, taking), -jnp.inf), axis=0)
    return jnp.where(taking, weights, 0)  # a softmax without an available token is NaN


def emit_weights(
    logits: jax.Array,
    temperature: float = 1.0,
    *,
    emit: str = "mixing",
    one_hot: bool = False,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Return the share of each expert's output that each token gets.

    Differs from the reference: see `mixing_weights`; with "experts", the weights of a token with a logit of NaN or +∞
    are NaN.
    """
    if emit not in EMITS:
        raise InputError(f"emit is {emit!r}; allowed: {', '.join(EMITS)}")
    if emit == "mixing" or one_hot:
        return mixing_weights(logits, temperature, one_hot=one_hot, mask=mask)
    logits, real, taking = _entering(logits, temperature, mask, axis=1)
    divided = _divided(logits.T, temperature, taking.T).T  # up to a constant in each row
    divided = jnp.where(taking | ~real, divided, -jnp.inf)
    return jnp.where(real, jax.nn.softmax(divided, axis=1), 0)


def _entering(logits, temperature, mask, axis):
    """Return the logits [g, E] of at least float32, the real tokens [g, 1] bool, and where an expert is available.

    If the logit of a real token is NaN or +∞, all logits of its column (axis 0) or of its row (axis 1) are NaN. So are
    the logits of a row (axis 1) without an available expert.
    """
    _check_group("logits", logits)
    _check_temperature(temperature)
    logits = _at_least_float32(logits)
    real = jnp.ones((len(logits), 1), bool) if mask is None else _real_tokens(mask, len(logits))[:, None]
    valid = ((logits < jnp.inf) | ~real).all(axis=axis, keepdims=True)
    if axis == 1:
        valid &= (~jnp.isneginf(logits)).any(axis=1, keepdims=True) | ~real
    logits = _or_nan(logits, valid)
    return logits, real, real & ~jnp.isneginf(logits)


def _check_temperature(temperature):
    traced = isinstance(temperature, jax.core.Tracer)
    if jnp.shape(temperature) != () or (not traced and not temperature > 0):
        raise InputError(f"temperature is {temperature}; one number above 0 is needed (for the limit 0, use one_hot)")


def _divided(logits, temperature, real):
    """Return logits / temperature up to a constant in each column, 0 in the padding.

    The shift comes before the division. If it came after, a compiler might fuse both, and then subtract a rounded value
    of the largest quotient. For a quotient of 1e10 the difference overflows in the exponential.
    """
    top = jax.lax.stop_gradient(logits).max(axis=0, where=real, initial=-jnp.inf)
    temperature = jnp.asarray(temperature, logits.dtype)
    return jnp.where(real, logits - top, 0) / _or_nan(temperature, temperature > 0)


def _largest(logits):
    """Return [g, E], 1 at the largest logit of each expert, NaN for an expert whose logits are NaN."""
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
    emit: str = "mixing",
    emit_temperature: float | None = None,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> MixtureOutput:
    """Mix the tokens of a group for each expert, and give every token its share of the experts' outputs.

    Args:
        axis_name: a mapped axis over which the experts are sharded: up, down and linear have this member's experts. The
            members exchange mixtures (see `parallel.run_experts`). None without sharding.

    Raises:
        ValueError: the activation is unknown, the shapes are inconsistent, or `mixing_weights` raises this error.

    Differs from the reference: controller and weights use at least float32; other arrays use the dtype of x. The output
    of a group without a real token is 0.
    """
    x = jnp.asarray(x)
    _check_matrices(params, x, axis_name)
    if mask is not None:
        x = _masked_rows(x, mask)  # 0 times a padded value may be NaN
    wide = jnp.promote_types(x.dtype, jnp.float32)
    matrices = {name: matrix.astype(x.dtype) for name, matrix in _matrices(params).items()}
    # SCORE and WEIGH
    logits = jnp.matmul(x.astype(wide), params["router"].astype(wide), precision="highest")
    weights = mixing_weights(logits, temperature, one_hot=one_hot, mask=mask)  # [g, E]
    shares = weights
    if emit != "mixing" or emit_temperature is not None:
        emission = temperature if emit_temperature is None else emit_temperature
        shares = emit_weights(logits, emission, emit=emit, one_hot=one_hot, mask=mask)
    mixtures = jnp.einsum("ge,gd->ed", weights.astype(x.dtype), x)  # MIX
    if axis_name is None:  # RUN
        into = {name: jnp.einsum("ed,edf->ef", mixtures, matrices[name]) for name in matrices if name != "down"}
        results = jnp.einsum("ef,efd->ed", _activated(into["up"], activation, into.get("linear")), matrices["down"])
    else:
        results = run_experts(matrices, mixtures[:, None], activation=activation, axis_name=axis_name)[:, 0]
    return MixtureOutput(shares.astype(x.dtype) @ results, weights)  # COMBINE


def _check_matrices(params, x, axis_name):
    own = "E" if axis_name is None else "M"  # experts of this member
    arrays = {"x [g, d]": x, "params: router [d, E]": params["router"], f"params: up [{own}, d, f]": params["up"]}
    arrays[f"params: down [{own}, f, d]"] = params["down"]
    if "linear" in params:
        arrays[f"params: linear [{own}, d, f]"] = params["linear"]
    sizes_of("mixture_of_tokens", arrays, ())


describe_twins(__name__)
