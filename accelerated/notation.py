"""Letters, router results, the tie rule and input checks, shared by every file here.

Letters (docstrings, shape strings, einsum subscripts and prose use the same letters):

    T  tokens in a group            d  model width                    N  dense (active) parameters
    E  experts                      f  hidden width of an expert      P  total parameters
    k  experts per token            L  blocks                         F  forward FLOPs per token
    C  capacity: slots per expert   H  attention heads                B  P / F, the parameter utilisation ratio
    R  routing frequency            S  sequence length                D  training tokens
    b  sequences in a batch         V  vocabulary size                G  granularity

Four exceptions. In `laws/`, L is the loss. The vector of a token in the residual stream is h. In einsums h runs over
heads, c over the width of one head, and m over distances. Coefficients of laws keep their names from the papers (a, b,
c, d, E_start, B_max, …). The (F, B) law measures F in TeraFLOPs per sequence of 2048 tokens (`laws/utilisation.py`).

Groups, masks, logits of −∞ and ties follow the rules of `routelaws.reference.notation`.

Differences from the reference: under jit, wrong values raise no error. They reach the loss as NaN, and the training
loop stops at a NaN loss. The gates of a token are NaN if a logit is NaN or +∞, if fewer than k experts are available,
or if a `held` choice has an expert that is not available.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.notation import check_finite  # noqa: F401 - for the other files here

from ._docstrings import describe_twins
from .errors import InputError


class Routing(NamedTuple):
    """The decision of a router for one group of tokens.

    Attributes:
        expert: [T, k] integers, the experts of each token, first choice first; distinct within a row
        gate: [T, k], the factor of each chosen expert's output
        load: [E], share of the T*k assignments that each expert received; sums to 1
        plan: [T, E], the share of each token at each expert; sums to 1. S-BASE in training: the transport plan; RL-R:
            the policy divided by T; others: equal shares of the chosen experts
        residual: [], max over e of |E * (column sum e of plan) - 1|: the distance of the plan from balance

    Differs from the reference: integers are int32, and other numbers have at least float32.
    """

    expert: jax.Array
    gate: jax.Array
    load: jax.Array
    plan: jax.Array
    residual: jax.Array


class ExpertChoice(NamedTuple):
    """The decision of a router for one group in which the experts choose their tokens.

    Attributes:
        token: [E, C] integers, the tokens of each expert, highest score first; distinct except for padding
        gate: [E, C], the factor of the expert's output for each of its tokens
        experts_per_token: [T] integers, the number of experts that took each token

    Differs from the reference: integers are int32, and the gate has at least float32.
    """

    token: jax.Array
    gate: jax.Array
    experts_per_token: jax.Array


def _check_group(name: str, values: jax.Array) -> None:
    """Raise InputError unless values are one group of tokens, [T, E], with T and E at least 1."""
    if not hasattr(values, "astype"):
        raise InputError(f"{name} is a {type(values).__name__}; an array [T, E] is needed, such as jnp.asarray({name})")
    if jnp.ndim(values) != 2:
        raise InputError(
            f"{name} has shape {jnp.shape(values)}; [T, E] is needed, one group of tokens: reshape a batch to "
            "[b S, E], or use vmap over its groups"
        )
    if 0 in jnp.shape(values):
        raise InputError(
            f"{name} has shape {jnp.shape(values)}; [T, E] with at least one token and one expert is needed"
        )


def _check_bias(bias: jax.Array, num_experts: int) -> None:
    if jnp.shape(bias) != (num_experts,):
        raise InputError(f"bias has shape {jnp.shape(bias)}; {(num_experts,)} is needed")


def _at_least_float32(values: jax.Array) -> jax.Array:
    """Return values as a JAX array of at least float32, the lowest precision of routers and losses."""
    values = jnp.asarray(values)  # NumPy's float64 becomes float32 without a warning, unless jax_enable_x64 is set
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _as_bool(mask: jax.Array) -> jax.Array:
    """Return a mask as bool. A mask of floats is an error: it may be one to add to logits, with 0 for True."""
    mask = jnp.asarray(mask)
    if mask.dtype != bool and not jnp.issubdtype(mask.dtype, jnp.integer):
        raise InputError(f"mask is {mask.dtype}; bool is needed, True for a real token")
    return mask.astype(bool)


def _real_tokens(mask: jax.Array, num_tokens: int) -> jax.Array:
    if jnp.shape(mask) != (num_tokens,):
        raise InputError(f"mask has shape {jnp.shape(mask)}; {(num_tokens,)} is needed")
    return _as_bool(mask)


def _masked_rows(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return [T, n] with zeros in the rows of padding, so that padded values cannot reach a gradient."""
    return values if mask is None else jnp.where(_real_tokens(mask, len(values))[:, None], values, 0)


def _padded_experts(expert: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return [T, k] with the first k experts in the rows of padding."""
    if mask is None:
        return expert
    first = jnp.arange(expert.shape[1], dtype=expert.dtype)
    return jnp.where(_real_tokens(mask, len(expert))[:, None], expert, first)


def _prepared(
    logits: jax.Array,
    k: int = 1,
    mask: jax.Array | None = None,
    *,
    held: Routing | None = None,
    axis_name=None,
):
    """Return the router's logits, the valid rows, and the available experts.

    Returns:
        logits: [T, E], at least float32, with zeros in padding.
        valid: [T, 1] bool, whether the logits of a row are finite or −∞, at least k experts are available, and the
            held experts are available.
        available: [E] bool, the experts that are available for a real token of any member of the axis; all experts if
            there are none.
    """
    logits = _masked_rows(_at_least_float32(logits), mask)
    known = ~jnp.isneginf(logits)
    valid = (logits < jnp.inf).all(axis=1, keepdims=True) & (known.sum(axis=1, keepdims=True) >= k)
    if held is not None:
        valid &= jnp.take_along_axis(known, held.expert, axis=1).all(axis=1, keepdims=True)
    available = (known if mask is None else known & _as_bool(mask)[:, None]).any(axis=0)
    available = _total(available.astype(jnp.int32), axis_name) > 0
    return logits, valid, available | ~available.any()


def _number_available(available: jax.Array | None, num_experts: int):
    return num_experts if available is None else available.sum(dtype=jnp.int32)


def _among(values: jax.Array, available: jax.Array | None, rest) -> jax.Array:
    """Return [..., E] with `rest` in the columns of unavailable experts."""
    return values if available is None else jnp.where(available, values, rest)


def _imbalance(load: jax.Array, available: jax.Array | None = None) -> jax.Array:
    """Return max |E loadₑ − 1| over the experts that may be chosen."""
    return jnp.abs(_among(_number_available(available, len(load)) * load - 1, available, 0)).max()


def _real_gates(gate: jax.Array, valid: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return [T, k] gates with 0 in padding, and NaN in invalid rows."""
    return _masked_rows(_or_nan(gate, valid), mask)


def _or_nan(values: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the values, with NaN instead of the invalid ones.

    The NaN is computed from the values. A NaN that XLA on CPU (jaxlib 0.10) knows when it compiles gives arbitrary
    numbers in an exponential.
    """
    number = jax.lax.stop_gradient(values)
    return values + jnp.where(valid, 0, (number - number) * jnp.inf)


def _total(values, axis_name):
    return values if axis_name is None else jax.lax.psum(values, axis_name)


def _gathered(values: jax.Array, axis_name) -> jax.Array:
    return jax.lax.all_gather(values, axis_name, tiled=True)


def _own_rows(values: jax.Array, number: int, axis_name) -> jax.Array:
    """Return the rows of this member from the result of `_gathered`; each member has `number` rows."""
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(axis_name) * number, number)


def canonical_zero(values: jax.Array) -> jax.Array:
    """Return `values` with every -0.0 replaced by +0.0, so that no sort can tell them apart.

    Differs from the reference: jit would remove an addition of 0.0, and `lax.top_k` ranks +0.0 above -0.0.
    """
    return jnp.where(values == 0, 0, values)


_LONG = 32
"""For rows of at least this length, two maxima are faster than an argmax; measured."""


def top_k_indices(scores: jax.Array, k: int) -> jax.Array:
    """Return the indices of the k largest entries of each row, largest first, ties to the lower index.

    Differs from the reference: the indices are int32. At k = 1 an argmax (lowest index on ties) is faster than
    `lax.top_k`. For long rows two maxima are faster still, since XLA on CPU vectorises them. A NaN raises no error.
    """
    num_columns = scores.shape[-1]
    if k == 1 and _LONG <= num_columns < 1 << 24:  # a float32 cannot hold every larger index
        less = scores < scores.max(axis=-1, keepdims=True)
        first = jnp.where(less, -num_columns, -jnp.arange(num_columns, dtype=jnp.float32)).max(axis=-1, keepdims=True)
        return (-first).astype(jnp.int32)
    scores = canonical_zero(scores)
    if k == 1:
        return jnp.argmax(scores, axis=-1, keepdims=True).astype(jnp.int32)
    return jax.lax.top_k(scores, k)[1]


def softmax(logits: jax.Array) -> jax.Array:
    """Return exp(z) / Σ exp(z) over the last axis, shifted by the maximum to avoid overflow."""
    return jax.nn.softmax(logits, axis=-1)


def log_sum_exp(logits: jax.Array, axis: int) -> jax.Array:
    """Return log Σ exp(z) over `axis`, shifted by the maximum to avoid overflow."""
    return jax.nn.logsumexp(logits, axis=axis)


def one_hot(indices: jax.Array, size: int) -> jax.Array:
    """Return [..., size] float32, or float64 where x64 is on, with a 1 at each index."""
    return jax.nn.one_hot(indices, size, dtype=jnp.result_type(float))


describe_twins(__name__)
