"""BASE: assign tokens to experts exactly, the same number to each expert.

Step by step, with sources and examples: `routelaws.reference.routers.base`.

Differences from the reference: there are two methods (`METHODS`). "host" is exact, ties included. Under jit it calls
the host, where compiled loops (`kernels/assignment.py`) need a few milliseconds for thousands of tokens. "auction"
stays on the device and is exact up to an increment. In an auction, a token with d missing slots bids for d new experts:
the best ones at the current prices. Its bid is the price at which the expert would be only as good as the next best
expert, plus the increment epsilon. An expert keeps its highest bids. The lowest bid that a full expert keeps is its
price. When all tokens have their slots, no token would gain more than epsilon by an exchange of one expert, so

    objective ≥ optimum − (T min(k, E − k) + E − T k mod E) ε        (− T min(k, E − k) ε where E divides T k),

up to rounding. The actual loss is far smaller, and `gap` bounds it. With integer scores the auction is exact if the
term that is subtracted is below 1. The increment starts large and shrinks. After each change, the bidding restarts from
the current prices. If E does not divide T k, every expert offers ⌈T k/E⌉ slots. One additional bidder, with equal
scores at all experts, takes one slot at each of the E − T k mod E cheapest experts. If several assignments are equally
good, the auction may return any of them.

Proof: let the value of an expert to a token be its score minus its price. For an expert that the token has, subtract
the token's bid instead. Then at all times each expert that a token has is worth at least as much as the (d + 1)-th best
of the other experts, minus epsilon. A bid satisfies this by its definition. This stays true when a token loses an
expert, because d and the number of other experts both rise by one. It stays true when prices change, because prices
only rise. When all tokens have their slots, d = 0. A token then has at most min(k, E − k) experts for which a better
expert exists.

A score of NaN or +∞ raises no error. It makes the objective, the prices, the gap, the residual and the gates of its
token NaN. If no token is real, these values are NaN, except the gates.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.notation import _check_k

from .._docstrings import describe_twins
from ..errors import InputError
from ..notation import (
    Routing,
    _among,
    _check_group,
    _gathered,
    _imbalance,
    _masked_rows,
    _or_nan,
    _own_rows,
    _padded_experts,
    _prepared,
    _real_gates,
    _real_tokens,
    _total,
    one_hot,
    top_k_indices,
)
from .sinkhorn import _count_real, gate_values

METHODS = ("host", "auction")
"""Methods for the balanced assignment."""

EPSILON = 2.0**-8
"""Default increment of the auction, as a share of the largest score difference within a token (our choice)."""

_SLICE = 2**16
"""Bytes passed to the host in one piece. JAX copies larger pieces in another thread, and the callback may then wait for
this copy without end."""

_SHRINK = 4.0  # the factor by which the increment shrinks each time


class Assignment(NamedTuple):
    """A balanced assignment and the proof of its quality.

    Attributes:
        expert: [T, k] integers, the experts of each token, largest score first; distinct within a row
        objective: sum of the scores of the chosen experts
        prices: [E] in units of the scores, the smallest is 0
        gap: dual_bound of the prices minus the objective: at least 0 up to rounding, 0 at an optimum

    Differs from the reference: expert is int32. With method "auction" the assignment is only nearly optimal, so the gap
    may be above 0.
    """

    expert: jax.Array
    objective: jax.Array
    prices: jax.Array
    gap: jax.Array


def balanced_assignment(
    scores: jax.Array,
    k: int = 1,
    *,
    mask: jax.Array | None = None,
    method: str = "host",
    epsilon: float | None = None,
) -> Assignment:
    """Return the best of all assignments in which every expert has floor(T k / E) or ceil(T k / E) tokens.

    Args:
        method: one of `METHODS`. "host" is exact, ties included: jit calls back to compiled loops on the host.
            "auction" stays on the device and is exact up to a stated increment; among equally good assignments it may
            return any.
        epsilon: the increment of the auction in units of the scores, by default `EPSILON` times their spread. The
            program raises it to the resolution of the prices if needed: 4 E times the spread times the precision of the
            scores.

    Raises:
        ValueError: the scores are not [T, E], k is out of range, the method is unknown, or a mask has the wrong shape.

    Differs from the reference: scores below float32 are converted to float32. Objective, prices and gap are NaN if a
    score is NaN or +∞, no token is real, or no balanced assignment avoids all entries of −∞.
    """
    _check_group("scores", scores)
    if method not in METHODS:
        raise InputError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    _check_k(k, scores.shape[1])
    scores, valid, available = _prepared(jax.lax.stop_gradient(scores), k, mask)
    mask, known = mask if mask is None else _real_tokens(mask, len(scores)), ~jnp.isneginf(scores)
    clean, spread = _with_penalties(scores, known, available, mask)
    if method == "host":
        assignment = _by_host(_or_nan(clean, valid), k, mask, available)
        possible = jnp.take_along_axis(known, assignment.expert, axis=1).all(where=_column(mask))
        return Assignment(assignment.expert, *(jnp.where(possible, number, jnp.nan) for number in assignment[1:]))
    finite = valid.all()
    if mask is not None:
        finite &= mask.any()
    clean = _among(jnp.where(finite, clean, 0), available, -jnp.inf)
    expert, prices = _auction(clean, k, mask, EPSILON * spread if epsilon is None else epsilon, available)
    finite &= jnp.take_along_axis(known, expert, axis=1).all(where=_column(mask))
    if k > 1:
        expert = jnp.sort(expert, axis=1)
        order = top_k_indices(jnp.take_along_axis(clean, expert, axis=1), k)
        expert = jnp.take_along_axis(expert, order, axis=1)
    chosen = jnp.take_along_axis(clean, expert, axis=1)
    expert = _padded_experts(expert, mask)
    numbers = chosen.sum(where=_column(mask)), prices, _gap(clean, expert, prices, mask, available)
    return Assignment(expert, *(jnp.where(finite, number, jnp.nan) for number in numbers))


def _with_penalties(scores: jax.Array, known: jax.Array, available: jax.Array, mask: jax.Array | None):
    """Return scores [T, E] with a penalty at each expert that is not available, and the largest range of a token.

    To replace one such assignment, at most E tokens move, and each loses at most the range. So the best assignment of
    these scores has a penalty only if every assignment has one. A column that is −∞ for every token stays −∞.
    """
    finite = jnp.where(_column(mask) & known, scores, jnp.nan)
    top, low = (extreme(finite, axis=1, keepdims=True) for extreme in (jnp.nanmax, jnp.nanmin))
    spread = jnp.nan_to_num((top - low).max(where=_column(mask), initial=0))
    penalty = low - 2 * (scores.shape[1] + 1) * spread - 1
    return jnp.where(known | ~available, scores, penalty), spread


def dual_bound(scores: jax.Array, prices: jax.Array, k: int = 1) -> jax.Array:
    """Return an upper bound on the objective of every balanced assignment with k experts per token, for any prices.

    Raises:
        ValueError: k is out of range.

    Differs from the reference: non-finite values propagate to the bound.
    """
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    everyone, more = divmod(num_tokens * k, num_experts)
    value = scores - prices
    best = value.max(axis=1) if k == 1 else jax.lax.top_k(value, k)[0]
    return best.sum() + everyone * prices.sum() + jax.lax.top_k(prices, more)[0].sum()


def base_router(
    logits: jax.Array,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "sigmoid",
    held: Routing | None = None,
    mask: jax.Array | None = None,
    method: str = "host",
    epsilon: float | None = None,
    axis_name=None,
) -> Routing:
    """Route a group of tokens by BASE.

    Args:
        method, epsilon: see `balanced_assignment`.
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`), or a tuple of them, over which the tokens of the group
            are sharded; None without sharding. Each member gathers all scores and solves the same problem. T and load
            cover all members. Each member returns its own rows.

    Raises:
        ValueError: the logits are not [T, E], k is out of range, the gate or the method is unknown, or a mask has the
            wrong shape.

    Differs from the reference: a logit of NaN or +∞ makes the gate of its token NaN, and in training the residual too.
    """
    _check_group("logits", logits)
    num_tokens, num_experts = logits.shape
    _check_k(k, num_experts)
    logits, valid, available = _prepared(logits, k, mask, held=held, axis_name=axis_name)
    # SELECT
    if held is None:
        if training:
            options = {"method": method, "epsilon": epsilon}
            expert, solved = _balanced(logits, k, mask, axis_name, **options)  # [T, k]
        else:
            expert, solved = top_k_indices(jax.lax.stop_gradient(logits), k), True
        num_real = _count_real(num_tokens, mask, axis_name)
        plan = _masked_rows(one_hot(expert, num_experts).sum(axis=1) / (num_real * k), mask)  # [T, E]
        load = _total(plan.sum(axis=0), axis_name)  # [E]
        residual = jnp.where(solved, _imbalance(load, available), jnp.nan)
        held = Routing(expert, expert, load, plan, residual)
    held = held._replace(expert=_padded_experts(held.expert, mask), plan=_masked_rows(held.plan, mask))
    # COMBINE
    gates = gate_values(logits, held.expert, gate)
    return held._replace(gate=_real_gates(gates, valid, mask))


def _balanced(logits: jax.Array, k: int, mask: jax.Array | None, axis_name, **options):
    """Return the experts [T, k] of these tokens in the whole group's balanced assignment, and whether it is valid."""
    if axis_name is None:
        assignment = balanced_assignment(logits, k, mask=mask, **options)
        return assignment.expert, jnp.isfinite(assignment.gap)
    scores = _gathered(jax.lax.stop_gradient(logits), axis_name)
    everyone = mask if mask is None else _gathered(_real_tokens(mask, len(logits)), axis_name)
    assignment = balanced_assignment(scores, k, mask=everyone, **options)
    return _own_rows(assignment.expert, len(logits), axis_name), jnp.isfinite(assignment.gap)


def _column(mask: jax.Array | None):
    return True if mask is None else mask[:, None]


def _by_host(scores: jax.Array, k: int, mask: jax.Array | None, available: jax.Array) -> Assignment:
    from ..kernels.assignment import assign  # imports numba, which takes a fifth of a second

    num_tokens, num_experts = scores.shape
    words = scores.dtype.itemsize // 4
    whole = jax.lax.bitcast_convert_type(scores, jnp.int32).reshape(num_tokens, num_experts * words)
    if mask is not None:
        whole = jnp.concatenate([whole, mask[:, None].astype(jnp.int32)], axis=1)
    rows = max(1, _SLICE // (num_experts * scores.dtype.itemsize))
    slices = [whole[start : start + rows] for start in range(0, num_tokens, rows)]
    sizes = (num_tokens, k), (words,), (num_experts * words,), (words,)
    shapes = [jax.ShapeDtypeStruct(size, jnp.int32) for size in sizes]
    host = functools.partial(_on_host, assign, k=k, words=words, masked=mask is not None)
    expert, *numbers = jax.pure_callback(host, shapes, available, *slices, vmap_method="sequential")
    shape = (-1, 2) if words == 2 else (-1,)
    numbers = [jax.lax.bitcast_convert_type(number.reshape(shape), scores.dtype) for number in numbers]
    return Assignment(expert, numbers[0][0], numbers[1], numbers[2][0])


def _on_host(assign, available, *slices, k: int, words: int, masked: bool) -> list[np.ndarray]:
    """Return the result of `assign` for all rows of the slices and the columns of the available experts.

    Numbers are passed and returned as 32-bit words. JAX may run this function in another thread, and support for 64-bit
    numbers is a setting of the thread. If this support is off, JAX truncates the numbers.
    """
    dtype = (np.float32, np.float64)[words - 1]
    rows = np.concatenate([np.ascontiguousarray(part) for part in slices])
    if masked:
        real = rows[:, -1] != 0
        rows = np.ascontiguousarray(rows[real, :-1])
    scores = rows.view(dtype)
    columns = np.flatnonzero(available).astype(np.int32)
    if len(columns) < scores.shape[1]:
        scores = np.ascontiguousarray(scores[:, columns])
    expert, *numbers = assign(scores, k)
    expert = columns[expert]
    if masked:
        of_real, expert = expert, np.tile(np.arange(k, dtype=np.int32), (len(real), 1))
        expert[real] = of_real
    prices = np.zeros(len(available), dtype)
    prices[columns] = numbers[1]
    numbers[1] = prices
    return [expert, *(np.atleast_1d(np.asarray(number, dtype)).view(np.int32) for number in numbers)]


def _gap(scores: jax.Array, expert: jax.Array, prices: jax.Array, mask, available) -> jax.Array:
    """Return dual_bound minus the objective, as a sum of nonnegative terms."""
    k, num_experts = expert.shape[1], len(prices)
    num_real = len(scores) if mask is None else mask.sum()
    everyone, more = divmod(num_real * k, available.sum(dtype=jnp.int32))
    value = scores - prices
    best, chosen = (jax.lax.top_k(v, k)[0] for v in (value, jnp.take_along_axis(value, expert, axis=1)))
    one_each = jnp.broadcast_to(jnp.asarray(_column(mask), prices.dtype), expert.shape)
    surplus = jnp.zeros_like(prices).at[expert].add(one_each) - everyone
    dearest = jnp.where(jnp.arange(num_experts) < more, jax.lax.top_k(prices, num_experts)[0], 0)
    return (best - chosen).sum(where=_column(mask)) + dearest.sum() - (surplus * prices).sum()


def _auction(scores: jax.Array, k: int, mask: jax.Array | None, epsilon: float | None, available: jax.Array):
    """Return the experts [T, k] and prices [E] of an auction. Scores [T, E] are finite, or −∞ in whole columns."""
    num_tokens, num_experts = scores.shape
    if num_experts == k:
        return jnp.tile(jnp.arange(k, dtype=jnp.int32), (num_tokens, 1)), jnp.zeros(num_experts, scores.dtype)
    scores = scores - scores.max(axis=1, keepdims=True)  # so that a common offset costs no digits
    spread = -_among(scores, available, 0).min()
    expert, price = _bidding(scores, k, mask, spread / 4, _increment(epsilon, spread, num_experts), available)
    lowest = _among(price, available, jnp.inf).min()
    return expert, _among(jnp.where(spread > 0, price - lowest, 0), available, 0)


def _bidding(scores: jax.Array, k: int, mask: jax.Array | None, first: jax.Array, last: jax.Array, available):
    """Return the experts [T, k] and prices [E] after the bidding; increments fall from `first` to `last`."""
    num_tokens, num_experts = scores.shape
    sold = k * (num_tokens if mask is None else mask.sum().astype(jnp.int32))
    num_sellers = available.sum(dtype=jnp.int32)
    places = -(-sold // num_sellers)
    idle = places * num_sellers - sold  # number of places for the additional bidder, at most one at an expert
    slots = num_tokens * k  # row t k + i: a place of token t
    rows = slots + num_experts  # row T k + e: the additional bidder's place at e
    nowhere = num_experts

    def one_round(state):
        price, expert, level, step = state
        choice, offer = _all_bids(scores, price, expert, k, mask, idle, step, available)
        expert, level = (jnp.where(expert == nowhere, new, old) for new, old in ((choice, expert), (offer, level)))
        expert, price, full = _keep_highest(expert, level, price, places)
        again = _among(full, available, True).all() & (step > last)
        step = jnp.where(again, jnp.maximum(step / _SHRINK, last), step)
        return price, jnp.where(again, nowhere, expert), level, step

    def unfinished(state):
        return (state[1] != nowhere).sum() < places * num_sellers

    state = jnp.zeros(num_experts, scores.dtype), jnp.full(rows, nowhere, jnp.int32), jnp.zeros(rows, scores.dtype)
    state = *state, jnp.maximum(first, last)
    price, expert, _, _ = jax.lax.while_loop(unfinished, one_round, state)
    return expert[:slots].reshape(num_tokens, k), price


def _increment(epsilon: float | None, spread: jax.Array, num_experts: int) -> jax.Array:
    wanted = EPSILON * spread if epsilon is None else jnp.asarray(epsilon, spread.dtype)
    epsilon = jnp.maximum(wanted, 4 * num_experts * spread * jnp.finfo(spread.dtype).eps)
    return jnp.where(spread > 0, epsilon, 1)


def _keep_highest(expert: jax.Array, level: jax.Array, price: jax.Array, places: int | jax.Array):
    """Return the expert of each row (E if its bid is rejected), the prices, and which experts are full."""
    num_experts = len(price)
    index = jnp.arange(len(expert), dtype=jnp.int32)
    # The bids are sorted by expert, then by bid, so an expert keeps the first bids of its stretch.
    by_expert, by_bid, row = jax.lax.sort((expert, -level, index), num_keys=2)
    start = jnp.searchsorted(by_expert, jnp.arange(num_experts + 1, dtype=jnp.int32)).astype(jnp.int32)
    kept = index - start[by_expert] < places
    expert = jnp.zeros_like(index).at[row].set(jnp.where(kept, by_expert, num_experts), unique_indices=True)
    last = start[:-1] + places - 1
    full = last < start[1:]
    return expert, jnp.where(full, -by_bid[jnp.minimum(last, len(index) - 1)], price), full


def _all_bids(scores, price, expert, k: int, mask: jax.Array | None, idle, step, available: jax.Array):
    """Return expert and amount of each row's bid: first the tokens' places, then the additional bidder's."""
    slots, nowhere = len(scores) * k, len(price)
    choice, offer = _bids(scores, price, expert[:slots].reshape(len(scores), k), step)
    choice, offer = jnp.where(_column(mask), choice, nowhere).ravel(), offer.ravel()
    its_choice, its_offer = _additional_bids(price, expert[slots:] != nowhere, idle, step, available)
    return jnp.concatenate([choice, its_choice]), jnp.concatenate([offer, its_offer])


def _bids(scores: jax.Array, price: jax.Array, expert: jax.Array, step: jax.Array):
    """Return the expert and the amount of a bid, [T, k], for each empty slot of a token (E in `expert`)."""
    num_experts = len(price)
    k = expert.shape[1]
    value = scores - price
    if k == 1:  # faster than top_k; a bidding token has no expert
        choice = jnp.argmax(value, axis=1, keepdims=True).astype(jnp.int32)
        bid_value = value.max(axis=1, keepdims=True)
        others = jnp.where(jnp.arange(num_experts, dtype=jnp.int32) == choice, -jnp.inf, value)
        return choice, price[choice] + _lead(bid_value, others.max(axis=1, keepdims=True)) + step
    missing = expert == num_experts
    holds = (expert[:, :, None] == jnp.arange(num_experts)).any(axis=1)
    best, order = jax.lax.top_k(jnp.where(holds, -jnp.inf, value), k + 1)
    rank = jnp.maximum(jnp.cumsum(missing, axis=1) - 1, 0)
    choice = jnp.take_along_axis(order, rank, axis=1)
    bid_value = jnp.take_along_axis(best, rank, axis=1)
    rest = jnp.take_along_axis(best, missing.sum(axis=1, keepdims=True), axis=1)
    return choice, price[choice] + _lead(bid_value, rest) + step


def _lead(own: jax.Array, rest: jax.Array) -> jax.Array:
    """Return the margin of a token's experts over the best other expert; 0 if there is no other expert."""
    return jnp.where(rest > -jnp.inf, own - rest, 0)


def _additional_bids(price: jax.Array, held: jax.Array, idle: int | jax.Array, step: jax.Array, available):
    """Return the experts [E] at which the additional bidder bids (E for no bid), and the amounts.

    It bids for the cheapest experts that it does not have, and offers the price of the next one.
    """
    num_experts = len(price)
    index = jnp.arange(num_experts, dtype=jnp.int32)
    others = _among(jnp.where(held, jnp.inf, price), available, jnp.inf)
    order = jnp.argsort(others)
    missing = idle - held.sum()
    takes = jnp.zeros(num_experts, bool).at[order].set(index < missing)
    offer = jnp.broadcast_to(others[order[missing]] + step, (num_experts,))
    return jnp.where(takes, index, num_experts), offer


describe_twins(__name__)
