"""Experts: assign slots, run the experts, and combine their outputs for each token.

Step by step, with sources and examples: `routelaws.reference.experts`.

The layout of the work differs. On CPU, in float32 and bfloat16, each expert runs only on its own rows (`cpu.experts`),
and unused capacity costs nothing.

On TPU, the program sorts the assignments by expert, and each expert runs only on its rows, too (`grouped_product`).

On GPU, and in float64, all experts run as one batched matrix product `[E, C, d] x [E, d, f]` with the same number of
slots for each. Without a capacity one expert can get all tokens, so this would need E·T slots. Instead the program
sorts the assignments by expert and cuts them into blocks of equal length. All rows of a block belong to one expert. The
batch axis of the product is the axis of the blocks. For any loads, the blocks have at most about twice as many rows as
there are assignments.

A mask does not change shapes: buffers have room for all tokens, and slots past the capacity of the real tokens stay
empty. If the mask excludes all assignments, the dropped fraction is NaN. A NaN gate makes the output of its token NaN,
even if the assignment has no slot. A NaN priority comes last.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.experts import (
    DROP_ORDERS,
    ZERO_KINDS,  # noqa: F401
    _check_activation,
    _check_zero_kind,
)
from routelaws.reference.notation import _check_k

from . import cpu
from ._docstrings import describe_twins
from .errors import InputError
from .notation import _as_bool, canonical_zero, one_hot
from .operations.grouped import grouped_product, groups_run
from .operations.shapes import sizes_of


class Placement(NamedTuple):
    """The slot of each assignment in the experts' buffers.

    Attributes:
        slot: [T, k] integers, position in the queue of its expert, from 0; C for an assignment that the mask excludes
        kept: [T, k] bool, slot < C
        token: [E, C] integers, the token in each slot; T where the slot is empty

    Differs from the reference: integers are int32.
    """

    slot: jax.Array
    kept: jax.Array
    token: jax.Array


def expert_capacity(num_tokens: int, num_experts: int, k: int, capacity_factor: float) -> int:
    """Return C = min(T, ceil(c k T / E)), the number of slots of each expert."""
    _check_k(1, num_experts)
    if capacity_factor is None or not capacity_factor > 0:
        raise InputError(f"capacity_factor is {capacity_factor}; it has to be above 0 (inf drops no token)")
    if math.isinf(capacity_factor):
        return num_tokens
    return min(num_tokens, math.ceil(Fraction(str(float(capacity_factor))) * k * num_tokens / num_experts))


def _capacity_of_real(num_real, num_tokens: int, num_experts: int, k: int, capacity_factor: float):
    """Return `expert_capacity` for n <= T real tokens; n may be traced.

    An expert has ceil(c k n / E) = ceil(ceil(c k n) / E) slots. With c k = p / q and n = a q + b, ceil(c k n) is a p +
    ceil(b p / q). c k counts as at most E, because more than E n slots are not needed.
    """
    if math.isinf(capacity_factor):
        return jnp.asarray(num_real)
    p, q = min(Fraction(str(float(capacity_factor))) * k, Fraction(num_experts)).as_integer_ratio()
    rest = np.array([-(-b * p // q) for b in range(min(q, num_tokens + 1))], np.int32)
    whole, b = (0, num_real) if q > num_tokens else jnp.divmod(num_real, q)
    slots = whole * p + jnp.asarray(rest)[b]
    return jnp.minimum(num_real, -(-slots // num_experts))


def dispatch(
    expert: jax.Array,
    num_experts: int,
    capacity: int,
    *,
    order: str = "choice",
    priority: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> Placement:
    """Give each assignment a slot of its expert, while slots are free.

    Raises:
        ValueError: the order is unknown, the priority is missing, unexpected or of the wrong shape, the mask has the
            wrong shape, `expert` is not [T, k] integers, or C < 0.

    Differs from the reference: under jit, an index out of range raises no error, and its assignment gets no slot. A NaN
    priority comes last.
    """
    _check_assignments("dispatch", expert)
    _check_order(order, priority, expert.shape)
    if capacity < 0:
        raise InputError(f"capacity is {capacity}; 0 or more is needed")
    return _place(expert, num_experts, capacity, capacity, order, priority, _asked(mask, expert.shape))


def _check_assignments(where: str, expert: jax.Array, **sizes: int) -> dict:
    """Return the sizes with k and, if unknown, T."""
    sizes = sizes_of(where, {"expert [T, k]": expert}, (), **sizes)
    if not jnp.issubdtype(jnp.result_type(expert), jnp.integer):
        raise InputError(f"expert is {jnp.result_type(expert)}; integers are needed, the indices of experts")
    return sizes


def _check_order(order: str, priority: jax.Array | None, shape: tuple[int, int]) -> None:
    if order not in DROP_ORDERS:
        raise InputError(f"order is {order!r}; allowed: {', '.join(DROP_ORDERS)}")
    if (priority is None) == (order == "priority"):
        state = "missing" if priority is None else "given"
        raise InputError(f"order is {order!r} and priority is {state}; only the order 'priority' takes a priority")
    if priority is not None and priority.shape != shape:
        raise InputError(f"priority has shape {priority.shape}; {shape} is needed")


def _asked(mask: jax.Array | None, shape: tuple[int, int]) -> jax.Array | None:
    if mask is None:
        return None
    if mask.shape not in (shape, shape[:1]):
        raise InputError(f"mask has shape {mask.shape}; {list(shape[:1])} or {list(shape)} is needed")
    return jnp.broadcast_to(_as_bool(mask).reshape(len(mask), -1), shape)


def _queue(expert: jax.Array, num_experts: int, asked: jax.Array | None) -> jax.Array:
    """Return [T, k], the expert of each assignment; E for an assignment that needs no slot."""
    wanted = (expert >= 0) & (expert < num_experts)
    return jnp.where(wanted if asked is None else wanted & asked, expert, num_experts)


def _place(expert, num_experts, slots, capacity, order, priority, asked) -> Placement:
    """Return the placement in buffers of `slots` slots, of which only the first `capacity` may be used."""
    num_tokens, k = expert.shape
    queue = _queue(expert, num_experts, asked)
    slot, kept = _slots(queue, num_experts, slots, capacity, order, priority)
    token = jnp.full((num_experts, slots), num_tokens, jnp.int32)
    ids = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32)[:, None], (num_tokens, k))
    token = token.at[queue, jnp.where(kept, slot, slots)].set(ids, mode="drop")
    return Placement(slot, kept, token)


def _slots(queue, num_experts, slots, capacity, order, priority):
    """Return each assignment's position in its queue (`slots` if it is in no queue), and whether it has a slot."""
    slot = jnp.where(queue < num_experts, _queue_position(queue, num_experts, order, priority), slots)
    return slot, slot < capacity


def _queue_position(expert, num_experts, order="choice", priority=None) -> jax.Array:
    """Return [T, k], the number of earlier assignments in the same queue; queue E does not count."""
    num_tokens, k = expert.shape
    if order == "priority":
        return _rank(expert, num_experts, jax.lax.stop_gradient(priority))
    turned = order == "choice"
    position = _position_in_queue((expert.T if turned else expert).reshape(-1), num_experts)
    return position.reshape(k, num_tokens).T if turned else position.reshape(num_tokens, k)


def _position_in_queue(queue: jax.Array, num_experts: int) -> jax.Array:
    """Return [n] int32, the number of earlier equal entries of `queue` [n]; arbitrary for an entry E.

    The function compares entries pairwise within blocks, and keeps running counts of earlier blocks.
    """
    block = 32
    num_blocks = -(-len(queue) // block)
    entries = jnp.pad(queue, (0, num_blocks * block - len(queue)), constant_values=num_experts)
    entries = entries.reshape(num_blocks, block)
    earlier = np.tril(np.ones((block, block), bool), -1)
    within = ((entries[:, :, None] == entries[:, None, :]) & earlier).sum(axis=2, dtype=jnp.int32)
    counts = (entries[:, :, None] == jnp.arange(num_experts)).sum(axis=1, dtype=jnp.int32)  # [blocks, E]
    before = jnp.cumsum(counts, axis=0) - counts
    position = within + jnp.take_along_axis(before, jnp.minimum(entries, num_experts - 1), axis=1)
    return position.reshape(-1)[: len(queue)]


def _rank(expert: jax.Array, num_experts: int, priority: jax.Array) -> jax.Array:
    """Return [T, k], the rank of each assignment among the assignments of its expert, the largest priority first."""
    num_tokens, k = expert.shape
    index = jnp.arange(num_tokens * k, dtype=jnp.int32)  # the order "choice"; the stable sort keeps it for ties
    keys = expert.T.reshape(-1), -canonical_zero(priority).T.reshape(-1)
    by_expert, _, source = jax.lax.sort((*keys, index), num_keys=2)
    start = jnp.searchsorted(by_expert, jnp.arange(num_experts + 1, dtype=expert.dtype)).astype(jnp.int32)
    rank = jnp.zeros_like(index).at[source].set(index - start[by_expert], unique_indices=True)
    return rank.reshape(k, num_tokens).T


def gelu(x: jax.Array) -> jax.Array:
    """Return x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))), the tanh form of GELU (our choice: NumPy has no erf)."""
    return jax.nn.gelu(x, approximate=True)


def silu(x: jax.Array) -> jax.Array:
    """Return x σ(x) = x / (1 + exp(−x)), in a form that cannot overflow."""
    return jax.nn.silu(x)


def expert_ffn(
    up: jax.Array, down: jax.Array, x: jax.Array, *, activation: str = "gelu", linear: jax.Array | None = None
) -> jax.Array:
    """Return the output of one expert: φ(x · up) · down, or for SwiGLU (silu(x · up) ⊙ (x · linear)) · down.

    Raises:
        ValueError: the activation is unknown, `linear` is missing or unexpected, or the shapes are inconsistent.

    Differs from the reference: the function also takes a batch of experts: up and linear [E, d, f], down [E, f, d], x
    [E, C, d].
    """
    of_each, rows = ("", "...") if jnp.ndim(up) == 2 else ("E, ", "E, C")
    arrays = {f"up [{of_each}d, f]": up, f"down [{of_each}f, d]": down, f"x [{rows}, d]": x}
    sizes_of("expert_ffn", arrays if linear is None else arrays | {f"linear [{of_each}d, f]": linear}, ())
    return _activated(x @ up, activation, None if linear is None else x @ linear) @ down


def grouped_ffn(matrices: dict, rows, sizes, activation: str, gates: jax.Array | None = None) -> jax.Array:
    """Return the outputs [n, d] of the experts: sizes[e] rows of [n, d] for expert e, the rows of expert 0 first.

    Each output is multiplied by its gate, [n, 1]. Outputs of rows without an expert are arbitrary.
    """

    @jax.checkpoint  # keeps only the hidden layer
    def activate(hidden, gates):
        activated = _activated(hidden["up"], activation, hidden.get("linear"))
        return activated if gates is None else activated * gates

    hidden = {name: grouped_product(rows, matrices[name], sizes) for name in matrices if name != "down"}
    return grouped_product(activate(hidden, gates), matrices["down"], sizes)


def _activated(hidden, activation, linear):
    _check_activation(activation, linear)
    return _PHI[activation](hidden) if linear is None else _PHI[activation](hidden, linear)


def _swiglu(hidden, linear):
    return silu(hidden) * linear


_PHI = {"gelu": gelu, "relu": jax.nn.relu, "swiglu": _swiglu}
"""The nonlinearities by name."""


def _matrices(params: dict) -> dict:
    return {name: jnp.asarray(params[name]) for name in ("up", "down", "linear") if name in params}


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _permute_rows(x, source, target, mode: str = "fill", mode_back: str = "fill") -> jax.Array:
    """Return x[source] for x [T, d]. An index T gives zeros. Row r of x is at rows `target`[r], [k], of the result.

    The gradient of a gather is a scatter-add, which is slow on CPU. With `target`, the gradient is a gather, too.
    Indices of `target` past the end give zeros. With the mode "clip", an index past the end gives any row.
    """
    return jnp.take(x, source, axis=0, mode=mode, fill_value=0)


def _permute_rows_forward(x, source, target, mode, mode_back):
    return _permute_rows(x, source, target, mode, mode_back), (source, target)


def _permute_rows_backward(mode, mode_back, indices, gradient):
    source, target = indices
    rows = gradient.reshape(source.size, gradient.shape[-1])
    back = jnp.take(rows, target, axis=0, mode=mode_back, fill_value=0).sum(axis=1)
    return back, None, None


_permute_rows.defvjp(_permute_rows_forward, _permute_rows_backward)


def combine(outputs: jax.Array, expert: jax.Array, placement: Placement, gate: jax.Array) -> jax.Array:
    """Return [T, d]: for each token, the sum of its experts' outputs, each times its gate.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    slots = {"slot [T, k]": placement.slot, "kept [T, k]": placement.kept, "token [E, C]": placement.token}
    sizes = _check_assignments("combine", expert)
    sizes_of("combine", {"gate [T, k]": gate, **slots, "outputs [E, C, d]": outputs}, (), **sizes)
    num_experts, capacity, _ = outputs.shape
    num_tokens, k = expert.shape
    row = jnp.where(placement.kept, expert * capacity + placement.slot, num_experts * capacity)  # [T, k]
    return _gated_sum(outputs.reshape(num_experts * capacity, outputs.shape[2]), row, placement.token.reshape(-1), gate)


def _gated_sum(rows: jax.Array, row: jax.Array, token: jax.Array, gate: jax.Array) -> jax.Array:
    """Return Σⱼ gate[t, j] rows[row[t, j]]. `token` has the token of each row, T for an empty row.

    At k = 1 each row goes to at most one token, so the result and its gradient are both gathers. For k > 1 a row goes
    to at most one pair (t, j) of token and choice. Pairs have the numbers t * k + j.
    """
    num_tokens, k = row.shape
    pair_of_row = token
    if k > 1:
        pair_of_row = jnp.full(len(rows) + 1, num_tokens * k, jnp.int32)
        pair_of_row = pair_of_row.at[row.reshape(-1)].set(jnp.arange(num_tokens * k, dtype=jnp.int32))[:-1]
    picked = _permute_rows(rows, row.reshape(-1), pair_of_row[:, None])  # [T k, d]
    return (picked.reshape(num_tokens, k, rows.shape[1]) * gate[:, :, None]).sum(axis=1)


def kept_gates(gate: jax.Array, kept: jax.Array, *, renormalise: bool = False) -> jax.Array:
    """Return the gates, with 0 for dropped assignments.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    sizes_of("kept_gates", {"gate [T, k]": gate, "kept [T, k]": kept}, ())
    gate = jnp.where(kept, gate, 0)
    if not renormalise:
        return gate
    total = gate.sum(axis=1, keepdims=True)
    return gate / jnp.where(total > 0, total, 1)


class RoutedOutput(NamedTuple):
    """The result of a routed FFN.

    Attributes:
        output: [T, d]
        dropped_fraction: share of the assignments to place that found no slot
    """

    output: jax.Array
    dropped_fraction: jax.Array


def routed_ffn(
    params: dict,
    x: jax.Array,
    expert: jax.Array,
    gate: jax.Array,
    capacity_factor: float = math.inf,
    *,
    order: str = "choice",
    priority: jax.Array | None = None,
    mask: jax.Array | None = None,
    activation: str = "gelu",
) -> RoutedOutput:
    """Send each token through its experts.

    Raises:
        ValueError: c <= 0; `params` lacks up or down, or the shapes of `params`, x, expert and gate are inconsistent;
            or `dispatch` or `expert_ffn` raises this error.

    Differs from the reference: if the mask excludes all assignments, the dropped fraction is NaN. A NaN gate makes the
    output of its token NaN, even if the assignment has no slot. An assignment to an expert out of range gets no slot
    and counts as dropped.
    """
    _check_ffn(params, x, expert, gate)
    x, expert, gate = map(jnp.asarray, (x, expert, gate))
    if not expert.size:
        return RoutedOutput(jnp.zeros_like(x), jnp.zeros((), gate.dtype))
    num_experts = len(params["up"])
    num_tokens, k = expert.shape
    if order == "priority" and priority is None:
        priority = gate
    _check_order(order, priority, expert.shape)
    requests = _asked(mask, expert.shape)
    if requests is not None:
        gate = jnp.where(requests, gate, 0)
    slots = expert_capacity(num_tokens, num_experts, k, capacity_factor)
    by_rows = num_experts > 1 and (groups_run(x) or cpu.experts_run(_matrices(params), x))
    if slots == num_tokens and num_experts > 1:  # if so, fewer tokens drop nothing either
        none = (
            jnp.zeros((), gate.dtype) if requests is None else jnp.where(requests.any(), 0, jnp.nan).astype(gate.dtype)
        )
        return RoutedOutput(_run_by_rows(params, x, expert, gate, requests, activation), none)
    capacity = slots
    if requests is not None:
        num_real = requests.any(axis=1).sum()
        capacity = _capacity_of_real(num_real, num_tokens, num_experts, k, capacity_factor)
    if by_rows:
        _, kept = _slots(_queue(expert, num_experts, requests), num_experts, slots, capacity, order, priority)
        output = _run_by_rows(params, x, expert, gate, kept, activation)
    else:
        placement = _place(expert, num_experts, slots, capacity, order, priority, requests)
        kept = placement.kept
        output = _run_in_slots(params, x, expert, gate, placement, activation)
    if requests is None:
        return RoutedOutput(output, (~kept).mean(dtype=gate.dtype))
    return RoutedOutput(output, ((requests & ~kept).sum() / requests.sum()).astype(gate.dtype))


def zero_computation(
    x: jax.Array,
    expert: jax.Array,
    gate: jax.Array,
    num_experts: int,
    *,
    kind: str = "identity",
    constants: dict | None = None,
) -> jax.Array:
    """Return the sum over a token's zero-computation experts of gate times output."""
    _check_zero_kind(kind, constants)
    x, gate = jnp.asarray(x), jnp.where(expert >= num_experts, jnp.asarray(gate), 0)
    if kind == "zero":
        return jnp.zeros_like(x)
    if kind == "identity":
        return gate.sum(axis=1, keepdims=True).astype(x.dtype) * x
    chosen = jax.nn.one_hot(expert - num_experts, len(constants["mix"]), dtype=gate.dtype)  # real experts: all 0
    mixed = jnp.einsum("td,zdc->tzc", x, constants["mix"], precision="highest").astype(gate.dtype)
    shares = jnp.einsum("tk,tkz->tz", gate, chosen)[..., None] * jax.nn.softmax(mixed)
    of_input, of_offset = jnp.moveaxis(shares, -1, 0).astype(x.dtype)
    return of_input.sum(axis=1, keepdims=True) * x + of_offset @ constants["offset"]


def _run_in_slots(params, x, expert, gate, placement: Placement, activation) -> jax.Array:
    num_experts, slots = placement.token.shape
    # PLACE
    row = jnp.where(placement.kept, expert * slots + placement.slot, num_experts * slots)
    buffers = _permute_rows(x, placement.token.reshape(-1), row)
    # RUN
    buffers = buffers.reshape(num_experts, slots, x.shape[1])
    outputs = expert_ffn(**_matrices(params), x=buffers, activation=activation)
    # COMBINE
    return combine(outputs, expert, placement, gate.astype(outputs.dtype))


def _run_by_rows(params, x, expert, gate, kept, activation) -> jax.Array:
    """Run the kept assignments (None: all). Each expert runs only on about as many rows as it has."""
    queue = _queue(expert, len(params["up"]), kept).astype(jnp.int32)
    matrices = _matrices(params)
    _check_activation(activation, matrices.get("linear"))
    if groups_run(x):
        return _run_grouped(activation, matrices, x, gate, queue)
    return cpu.experts(_run_in_blocks, activation, matrices, x, gate, queue)


def _check_ffn(params: dict, x: jax.Array, expert: jax.Array, gate: jax.Array) -> None:
    missing = [name for name in ("up", "down") if name not in params]
    if missing:
        raise InputError(f"params has the keys {', '.join(params)}; up [E, d, f] and down [E, f, d] are needed")
    up, down, tokens = jnp.shape(params["up"]), jnp.shape(params["down"]), jnp.shape(x)
    if len(up) != 3 or not up[0] or down != (up[0], up[2], up[1]):
        raise InputError(f"params: up has shape {up} and down {down}; [E, d, f] and [E, f, d] are needed, E >= 1")
    if "linear" in params and jnp.shape(params["linear"]) != up:
        raise InputError(f"params: linear has shape {jnp.shape(params['linear'])}; {up} is needed, the shape of up")
    if len(tokens) != 2 or tokens[1] != up[1]:
        raise InputError(f"x has shape {tokens}; [T, d] with d = {up[1]} is needed")
    _check_assignments("routed_ffn", expert, T=tokens[0])
    if jnp.shape(gate) != jnp.shape(expert):
        raise InputError(f"gate has shape {jnp.shape(gate)}; {jnp.shape(expert)} is needed, the shape of expert")


def _run_in_blocks(activation, matrices, x, gate, queue) -> jax.Array:
    """Run the assignments in the experts' queues [T, k], in blocks of rows with the same expert."""
    num_experts = len(matrices["up"])
    num_tokens, k = queue.shape
    # PLACE
    rows_per_block = -(-num_tokens * k // num_experts)
    num_blocks = num_experts + num_tokens * k // rows_per_block  # enough for any loads
    queue = _queue(queue, num_experts, None)
    slot = _queue_position(queue, num_experts)
    load = one_hot(queue, num_experts).sum(axis=(0, 1)).astype(jnp.int32)  # [E]
    last_block = jnp.cumsum(-(-load // rows_per_block))  # [E], one past the last block of each expert
    # The extra entry is for assignments without a slot: their row is past the end.
    first_block = jnp.append(last_block - (-(-load // rows_per_block)), num_blocks)  # [E + 1]
    row = first_block[queue] * rows_per_block + slot  # [T, k]
    expert_of_block = jnp.searchsorted(last_block, jnp.arange(num_blocks), side="right", method="compare_all")
    expert_of_block = jnp.minimum(expert_of_block, num_experts - 1)  # blocks past the end are empty
    token = jnp.full(num_blocks * rows_per_block, num_tokens, jnp.int32)
    ids = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32)[:, None], row.shape)
    token = token.at[row].set(ids, mode="drop")
    buffers = _permute_rows(x, token, row).reshape(num_blocks, rows_per_block, x.shape[1])
    # RUN
    matrices = {name: matrix[expert_of_block] for name, matrix in matrices.items()}
    outputs = expert_ffn(**matrices, x=buffers, activation=activation)
    # COMBINE
    return _gated_sum(outputs.reshape(num_blocks * rows_per_block, x.shape[1]), row, token, gate.astype(outputs.dtype))


def _run_grouped(activation, matrices, x, gate, queue) -> jax.Array:
    """Run the assignments in the experts' queues [T, k], sorted by expert.

    The gates multiply the hidden layer, because this needs no further pass over memory.
    """
    num_experts, (num_tokens, k) = len(matrices["up"]), queue.shape
    number, gate = num_tokens * k, gate.astype(x.dtype)
    # PLACE
    load = one_hot(queue, num_experts).sum(axis=(0, 1)).astype(jnp.int32)  # [E]
    first = jnp.append(jnp.cumsum(load) - load, number)  # without an expert, the row is past the end
    row = first[queue] + _queue_position(queue, num_experts)  # [T, k]
    ids = jnp.arange(number, dtype=jnp.int32)
    pair = jnp.full(number, number, jnp.int32).at[row.reshape(-1)].set(ids, mode="drop")  # [T k], t k + j
    rows = _permute_rows(x, pair // k, row, "clip")
    gates = _permute_rows(gate.reshape(-1, 1), pair, row.reshape(-1, 1), "clip")
    # RUN
    outputs = grouped_ffn(matrices, rows, load, activation, gates)
    # COMBINE
    picked = _permute_rows(outputs, row.reshape(-1), pair[:, None], "clip", "clip").reshape(num_tokens, k, -1)
    return jnp.where((queue < num_experts)[..., None], picked, 0 * gate[..., None]).sum(axis=1)  # NaN of a NaN gate


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
