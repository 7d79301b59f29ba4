"""See `routelaws.reference.routers.base`.

What differs: there are two methods (`METHODS`). "host" is exact, ties included: jit calls back to the host, where
compiled loops (`kernels/assignment.py`) need a few milliseconds for thousands of tokens. "auction" stays on the device
and is exact up to a stated increment. In it, tokens without a place bid for the expert that is best for them at the
current prices, as much as makes the second best equally good, plus the increment epsilon; an expert keeps its highest
bids, and the lowest of them is its price. When all have a place, none could gain more than epsilon elsewhere, so

    objective ≥ optimum − (T + E − T mod E) ε        (− T ε where E divides T), rounding aside,

and `gap` bounds what is really missing, which is far less. With whole scores and ε below 1 / (T + E) it is exact. The
increment starts large and shrinks; each time the bidding starts anew, from the prices reached. Where E does not divide
T, every expert offers ⌈T/E⌉ places, and one more bidder, to whom all experts are worth the same, takes one place at
each of the E − T mod E cheapest. Of equally good assignments the auction finds any.

A score that is not finite does not raise: the objective, the prices, the gap and the residual are NaN then, and so is
the gate of each token that has such a score.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InputError
from ..kernels.assignment import assign
from ..notation import Routing, one_hot, top_k_indices
from .sinkhorn import gate_values

METHODS = ("host", "auction")
"""How a balanced assignment can be found."""

EPSILON = 2.0**-8
"""Default increment of the auction, as a share of the largest difference of two scores of a token (our choice)."""

_SLICE = 2**16
"""Bytes that are handed to the host in one piece. What is larger (from 100 kB in JAX 0.10) is copied by another thread
of the pool that also runs the callback: with one core, or as many callbacks at once as threads, both wait for ever."""

_SHRINK = 4.0  # how much smaller the increment gets each time


class Assignment(NamedTuple):
    """See reference. With method "auction" the gap is that of an approximate optimum."""

    expert: jax.Array  # [T] int32
    objective: jax.Array  # []
    prices: jax.Array  # [E]
    gap: jax.Array  # []


def balanced_assignment(scores: jax.Array, *, method: str = "host", epsilon: float | None = None) -> Assignment:
    """See reference. Scores below float32 are raised to float32.

    Args:
        scores: [T, E].
        method: one of `METHODS`.
        epsilon: the increment of the auction in units of the scores, by default `EPSILON` times their spread. It is
            raised to what can be told apart from the prices: 4 E times the spread times the precision of the scores.
    """
    if method not in METHODS:
        raise InputError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    scores = jax.lax.stop_gradient(scores)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    num_tokens, num_experts = scores.shape
    if method == "host":
        words = scores.dtype.itemsize // 4
        rows = max(1, _SLICE // (num_experts * scores.dtype.itemsize))
        whole = jax.lax.bitcast_convert_type(scores, jnp.int32).reshape(num_tokens, num_experts * words)
        slices = [whole[start : start + rows] for start in range(0, num_tokens, rows)]
        shapes = [jax.ShapeDtypeStruct((size,), jnp.int32) for size in (num_tokens, words, num_experts * words, words)]
        host = _on_host_in_64_bits if words == 2 else _on_host
        expert, *numbers = jax.pure_callback(host, shapes, *slices, vmap_method="sequential")
        shape = (-1, 2) if words == 2 else (-1,)
        numbers = [jax.lax.bitcast_convert_type(number.reshape(shape), scores.dtype) for number in numbers]
        return Assignment(expert, numbers[0][0], numbers[1], numbers[2][0])
    finite = jnp.isfinite(scores).all()
    clean = jnp.where(finite, scores, 0)
    expert, prices = _auction(clean, epsilon)
    objective = jnp.take_along_axis(clean, expert[:, None], axis=1).sum()
    numbers = objective, prices, _gap(clean, expert, prices)
    return Assignment(expert, *(jnp.where(finite, number, jnp.nan) for number in numbers))


def dual_bound(scores: jax.Array, prices: jax.Array, k: int = 1) -> jax.Array:
    """See reference."""
    num_tokens, num_experts = scores.shape
    if not 1 <= k <= num_experts:
        raise InputError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")
    everyone, more = divmod(num_tokens * k, num_experts)
    value = scores - prices
    best = value.max(axis=1) if k == 1 else jax.lax.top_k(value, k)[0]
    return best.sum() + everyone * prices.sum() + jax.lax.top_k(prices, more)[0].sum()


def base_router(
    logits: jax.Array,
    *,
    training: bool = True,
    gate: str = "sigmoid",
    held: Routing | None = None,
    method: str = "host",
    epsilon: float | None = None,
) -> Routing:
    """See reference; `method` and `epsilon` are those of `balanced_assignment`."""
    num_tokens, num_experts = logits.shape
    # SELECT
    if held is None:
        valid = True
        if training:
            found = balanced_assignment(logits, method=method, epsilon=epsilon)
            expert, valid = found.expert[:, None], jnp.isfinite(found.gap)
        else:
            expert = top_k_indices(jax.lax.stop_gradient(logits), 1)  # [T, 1]
        plan = one_hot(expert[:, 0], num_experts) / num_tokens  # [T, E]
        load = plan.sum(axis=0)  # [E]
        residual = jnp.where(valid, jnp.abs(load * num_experts - 1).max(), jnp.nan)
        held = Routing(expert, expert, load, plan, residual)
    # COMBINE
    values = gate_values(logits, held.expert, gate)
    return held._replace(gate=jnp.where(jnp.isfinite(logits).all(axis=1, keepdims=True), values, jnp.nan))


def _on_host(*slices, dtype=np.float32) -> list[np.ndarray]:
    """Return the assignment of all rows of the slices; numbers come and go as the 32-bit words that they consist of.

    JAX may run this in another thread than the one that asked. Whether 64-bit numbers are allowed is a setting of the
    thread, and where it is off they would be cut to 32 bits on their way in or out.
    """
    scores = np.concatenate([np.ascontiguousarray(rows) for rows in slices]).view(dtype)
    expert, *numbers = assign(scores)
    return [expert, *(np.atleast_1d(np.asarray(number, dtype)).view(np.int32) for number in numbers)]


def _on_host_in_64_bits(*slices) -> list[np.ndarray]:
    return _on_host(*slices, dtype=np.float64)


def _gap(scores: jax.Array, expert: jax.Array, prices: jax.Array) -> jax.Array:
    """Return dual_bound less the objective, as a sum of terms of which none is negative."""
    everyone, more = divmod(*scores.shape)
    value = scores - prices
    own = jnp.take_along_axis(value, expert[:, None], axis=1)[:, 0]
    surplus = jnp.zeros_like(prices).at[expert].add(1) - everyone
    return (value.max(axis=1) - own).sum() + jax.lax.top_k(prices, more)[0].sum() - (surplus * prices).sum()


def _auction(scores: jax.Array, epsilon: float | None) -> tuple[jax.Array, jax.Array]:
    """Return the experts [T] and prices [E] of an auction of finite scores [T, E]."""
    num_tokens, num_experts = scores.shape
    if num_experts == 1:
        return jnp.zeros(num_tokens, jnp.int32), jnp.zeros(1, scores.dtype)
    scores = scores - scores.max(axis=1, keepdims=True)  # so that a common offset costs no digits
    spread = -scores.min()
    wanted = EPSILON * spread if epsilon is None else jnp.asarray(epsilon, scores.dtype)
    epsilon = jnp.maximum(wanted, 4 * num_experts * spread * jnp.finfo(scores.dtype).eps)
    epsilon = jnp.where(spread > 0, epsilon, 1)
    places = -(-num_tokens // num_experts)
    idle = places * num_experts - num_tokens  # places that the additional bidder takes, one at each expert
    rows = num_tokens + (num_experts if idle else 0)  # row T + e: the additional bidder's place at expert e
    nowhere = num_experts

    def one_round(state):
        price, expert, level, step = state
        choice, offer = _bids(scores, price, expert[num_tokens:] != nowhere, idle, step)
        expert, level = (jnp.where(expert == nowhere, new, old) for new, old in ((choice, expert), (offer, level)))
        expert, price, full = _keep_highest(expert, level, price, places)
        again = full.all() & (step > epsilon)
        step = jnp.where(again, jnp.maximum(step / _SHRINK, epsilon), step)
        return price, jnp.where(again, nowhere, expert), level, step

    def unfinished(state):
        return (state[1] != nowhere).sum() < places * num_experts

    state = jnp.zeros(num_experts, scores.dtype), jnp.full(rows, nowhere, jnp.int32), jnp.zeros(rows, scores.dtype)
    state = *state, jnp.maximum(spread / 4, epsilon)
    price, expert, _, _ = jax.lax.while_loop(unfinished, one_round, state)
    return expert[:num_tokens], jnp.where(spread > 0, price - price.min(), 0)


def _keep_highest(expert: jax.Array, level: jax.Array, price: jax.Array, places: int):
    """Return the rows' experts with all but the highest bids at each turned away (E), prices, and who is full."""
    num_experts = len(price)
    index = jnp.arange(len(expert), dtype=jnp.int32)
    # Sorted by expert, then bid, the bids that an expert keeps are the first of its stretch.
    by_expert, by_bid, row = jax.lax.sort((expert, -level, index), num_keys=2)
    start = jnp.searchsorted(by_expert, jnp.arange(num_experts + 1, dtype=jnp.int32)).astype(jnp.int32)
    kept = index - start[by_expert] < places
    expert = jnp.zeros_like(index).at[row].set(jnp.where(kept, by_expert, num_experts), unique_indices=True)
    last = start[:-1] + places - 1
    full = last < start[1:]
    return expert, jnp.where(full, -by_bid[jnp.minimum(last, len(index) - 1)], price), full


def _bids(scores: jax.Array, price: jax.Array, held: jax.Array, idle: int, step: jax.Array):
    """Return where each row would bid (E: nowhere) and how much, as if none of the tokens had a place."""
    num_experts = len(price)
    index = jnp.arange(num_experts, dtype=jnp.int32)
    value = scores - price
    choice = jnp.argmax(value, axis=1).astype(jnp.int32)
    second = jnp.where(index == choice[:, None], -jnp.inf, value).max(axis=1)
    offer = price[choice] + (value.max(axis=1) - second) + step
    if not idle:
        return choice, offer
    # The additional bidder takes the cheapest of those that it does not hold, and would pay what the next one costs.
    others = jnp.where(held, jnp.inf, price)
    order = jnp.argsort(others)
    missing = idle - held.sum()
    takes = jnp.zeros(num_experts, bool).at[order].set(index < missing)
    its_choice = jnp.where(takes, index, num_experts)
    its_offer = jnp.broadcast_to(others[order[missing]] + step, (num_experts,))
    return jnp.concatenate([choice, its_choice]), jnp.concatenate([offer, its_offer])
