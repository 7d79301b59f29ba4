"""Several devices: collectives, and a routed layer with experts on several devices.

Step by step, with examples: `routelaws.reference.parallel`.

Differences from the reference: with `axis_name` you call a function inside `jax.shard_map` (or `jax.vmap`). It then
takes the data of one device, without the leading axis. Without `axis_name` all devices are on the leading axis, as in
the reference.

Gradients. Inside `jax.shard_map(check_vma=False)`, JAX differentiates the sum of a number over all devices with respect
to the data of one device. So let each device differentiate its share of the loss. The shares of all devices must add up
to the loss. The gradient of a replicated weight is the sum over its copies.

Without a capacity, a buffer would need T slots for each expert. Instead the program sends each row to the device of its
expert, and this device runs `experts.routed_ffn`. With `ragged` it uses `ragged_all_to_all`, which sends no empty rows.
CPUs lack this collective, so the program emulates it with an all_gather. The group "global" works in the same way,
because one device may have all slots of an expert there. With buffers, the data sent per token would grow with the
number of devices. On TPU the group "shard" works in the same way, too: buffers would send their empty slots.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.parallel import GROUPS

from ._docstrings import describe_twins
from .errors import InputError
from .experts import (
    RoutedOutput,
    _asked,
    _capacity_of_real,
    _gated_sum,
    _matrices,
    _permute_rows,
    combine,
    dispatch,
    expert_capacity,
    expert_ffn,
    grouped_ffn,
    routed_ffn,
)
from .notation import _gathered, _own_rows, _total
from .operations.grouped import groups_run
from .operations.target import platform

_DEVICES = "devices"  # the axis of a vmap over all devices


class Spread(NamedTuple):
    """The sharding of a model over the axes of a mesh, for code inside `jax.shard_map` with all axes manual.

    Each device has whole sequences and computes means over its own tokens. The mean of the devices' means is the mean
    of the whole batch. So a device's share of the loss is its own loss divided by the number of devices. A mask is an
    error: with padding, the devices would need different weights.

    Attributes:
        batch: the axes over which sequences are sharded, the slowest first
        experts: the axis over which experts are sharded; one of `batch`
        model: the axis over which attention heads and hidden units are sharded; None if there is none
        group: one of `GROUPS`: the tokens that a router balances
        ragged: use `ragged_all_to_all` (see `routed_ffn_on_devices`)
    """

    batch: tuple[str, ...]
    experts: str
    model: str | None = None
    group: str = "shard"
    ragged: bool = False

    def balanced_over(self) -> tuple[str, ...] | None:
        """Return the axes over which the tokens of a balancing group are sharded; None if one device has all tokens."""
        return self.batch if self.group == "global" else None


@functools.partial(jax.tree_util.register_dataclass, data_fields=("whole", "part"), meta_fields=("total",))
@dataclass(frozen=True)
class SummedWeight:
    """A weight of all blocks whose gradient is summed over devices in the backward pass of each block.

    So a device stores its part of the sum for all blocks, but the whole gradient of only one block. Differentiate with
    respect to `part`.

    Attributes:
        whole: [L, ...], the weight on this device
        part: [L, ...], zeros in the shape of this device's part of the sum
        total: (gradient of one block) -> this device's part of the sum
    """

    whole: jax.Array
    part: jax.Array
    total: Callable


def is_summed(node) -> bool:
    """Return whether a node of a parameter tree is a `SummedWeight`."""
    return isinstance(node, SummedWeight)


def in_block(tree):
    """Return the weights of one block as arrays; here, a `SummedWeight` has no axis L."""
    return jax.tree.map(lambda node: _weight(node) if is_summed(node) else node, tree, is_leaf=is_summed)


def _weight(node: SummedWeight) -> jax.Array:
    @jax.custom_vjp
    def weight(whole, part):
        return whole

    weight.defvjp(lambda whole, part: (whole, None), lambda _, gradient: (None, node.total(gradient)))
    return weight(node.whole, node.part)


def psum(x: jax.Array, *, axis_name=None) -> jax.Array:
    """Give every device the sum over all devices.

    Args:
        axis_name: the mapped axis of the devices, or a tuple of axes; x is then [...], the data of one device.
    """
    return _on_all(lambda x, axis: jax.lax.psum(x, axis), axis_name, x)


def all_gather(x: jax.Array, *, axis_name=None) -> jax.Array:
    """Give every device the rows of all devices, the rows of device 0 first.

    Args:
        axis_name: see `psum`.
    """
    return _on_all(lambda x, axis: jax.lax.all_gather(x, axis, tiled=True), axis_name, x)


def reduce_scatter(x: jax.Array, *, axis_name=None) -> jax.Array:
    """Give every device its part of the sum over all devices.

    Args:
        axis_name: see `psum`.
    """
    return _on_all(lambda x, axis: jax.lax.psum_scatter(x, axis, tiled=True), axis_name, x)


def all_to_all(x: jax.Array, *, axis_name=None) -> jax.Array:
    """Send part i of every device to device i, which stores the parts in the order of the senders.

    Args:
        axis_name: see `psum`.
    """
    return _on_all(lambda x, axis: jax.lax.all_to_all(x, axis, 0, 0, tiled=True), axis_name, x)


def part(rows: jax.Array, i: int, n: int) -> jax.Array:
    """Return part i of n of the rows of one device."""
    if len(rows) % n:
        raise InputError(f"{len(rows)} rows cannot be divided into {n} equal parts, one for each device")
    m = len(rows) // n
    return jax.lax.dynamic_slice_in_dim(rows, i * m, m)


def ragged_all_to_all(
    x: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name=None,
    native: bool = False,
) -> jax.Array:
    """Send any number of contiguous rows from each device to each device.

    Args:
        axis_name: the mapped axis of the devices; pass the arrays of one device, without the leading axis.
        native: use the collective of the platform, which CPUs do not have; otherwise emulate it.

    Raises: nothing; inconsistent sizes and offsets are not checked.
    """

    def exchange(x, output, input_offsets, send_sizes, output_offsets, recv_sizes, axis):
        if native:
            sizes = input_offsets, send_sizes, output_offsets, recv_sizes
            return jax.lax.ragged_all_to_all(x, output, *sizes, axis_name=axis)
        i = jax.lax.axis_index(axis)
        everything = jax.lax.all_gather(x, axis)  # [n, rows, ...]
        begin, size, into = (
            jax.lax.all_gather(v, axis)[:, i, None] for v in (input_offsets, send_sizes, output_offsets)
        )
        behind = jnp.arange(len(output)) - into  # [n, rows'], offset from the first row of each sender
        ours = (behind >= 0) & (behind < size)
        sender = ours.argmax(axis=0)
        row = jnp.take_along_axis(begin + behind, sender[None], axis=0)[0]
        arrived = ours.any(axis=0).reshape(-1, *[1] * (output.ndim - 1))
        return jnp.where(arrived, everything[sender, row], output)

    arrays = x, output, input_offsets, send_sizes, output_offsets, recv_sizes
    return _on_all(exchange, axis_name, *arrays)


def _on_all(collective, axis_name, *arrays):
    if axis_name is not None:
        return collective(*arrays, axis_name)
    return jax.vmap(lambda *arrays: collective(*arrays, _DEVICES), axis_name=_DEVICES)(*arrays)


def run_experts(params: dict, buffers: jax.Array, *, activation: str = "gelu", axis_name=None) -> jax.Array:
    """Send each buffer to its expert's device, run the experts, and send the outputs back.

    Args:
        axis_name: the mapped axis of the devices; pass the arrays of one device, without the leading axis.
    """
    if axis_name is None:
        run = functools.partial(run_experts, activation=activation, axis_name=_DEVICES)
        return jax.vmap(run, axis_name=_DEVICES)(params, buffers)
    n = jax.lax.axis_size(axis_name)
    num_experts, capacity, d = buffers.shape
    per_device = num_experts // n
    arrived = all_to_all(buffers, axis_name=axis_name).reshape(n, per_device, capacity, d)
    of_expert = jnp.swapaxes(arrived, 0, 1).reshape(per_device, n * capacity, d)
    outputs = expert_ffn(**_matrices(params), x=of_expert, activation=activation)
    of_sender = jnp.swapaxes(outputs.reshape(per_device, n, capacity, d), 0, 1)
    return all_to_all(of_sender.reshape(num_experts, capacity, d), axis_name=axis_name)


def routed_ffn_on_devices(
    params: dict,
    x: jax.Array,
    expert: jax.Array,
    gate: jax.Array,
    capacity_factor: float = math.inf,
    *,
    group: str = "shard",
    order: str = "choice",
    priority: jax.Array | None = None,
    mask: jax.Array | None = None,
    activation: str = "gelu",
    axis_name=None,
    group_axes=None,
    ragged: bool = False,
    native: bool = False,
) -> RoutedOutput:
    """Send each token through its experts, which may be on other devices.

    Args:
        axis_name: the mapped axis of the devices; pass the arrays of one device, without the leading axis.
        group_axes: the axes of the group "global", `axis_name` if None.
        ragged: use `ragged_all_to_all` without a capacity, in the group "global", and on TPU.
        native: see `ragged_all_to_all`.

    Differs from the reference: see `experts.routed_ffn`. To assign slots in the group "global", each device gathers the
    experts of all tokens. For this, a device sends T k numbers.
    """
    if group not in GROUPS:
        raise InputError(f"group is {group!r}; allowed: {', '.join(GROUPS)}")
    if not expert.size:
        return RoutedOutput(jnp.zeros_like(x), jnp.zeros(expert.shape[: axis_name is None], gate.dtype))
    devices = _DEVICES if axis_name is None else axis_name
    ways = _Ways(order, activation, devices, group_axes or devices if group == "global" else None, ragged, native)

    def run(params, x, expert, gate, priority, mask):
        return _on_one_device(params, x, expert, gate, capacity_factor, priority, mask, ways)

    if axis_name is None:
        run = jax.vmap(run, axis_name=_DEVICES)
    return run(params, x, expert, gate, priority, mask)


class _Ways(NamedTuple):
    """The options of `routed_ffn_on_devices` that are no arrays."""

    order: str
    activation: str
    axis_name: str | tuple
    over: str | tuple | None  # the axes of the group; None if each device is a group
    ragged: bool
    native: bool


def _on_one_device(params, x, expert, gate, capacity_factor, priority, mask, ways: _Ways) -> RoutedOutput:
    """Return the result of one device for its tokens."""
    order, activation, axis_name, over, ragged, _ = ways
    n = jax.lax.axis_size(axis_name)
    if n == 1 and over is None:
        options = {"order": order, "priority": priority, "mask": mask, "activation": activation}
        return routed_ffn(params, x, expert, gate, capacity_factor, **options)
    num_experts, (num_tokens, k) = n * len(params["up"]), expert.shape
    requests = _asked(mask, expert.shape)
    if requests is not None:
        gate = jnp.where(requests, gate, 0)
    if order == "priority" and priority is None:
        priority = gate
    # PLACE
    in_group = num_tokens * (1 if over is None else jax.lax.axis_size(over))
    slots = expert_capacity(in_group, num_experts, k, capacity_factor)
    if slots == in_group:
        kept = jnp.ones(expert.shape, bool) if requests is None else requests
    else:
        kept = _kept(expert, num_experts, slots, capacity_factor, order, priority, requests, over)
    if slots == in_group or (ragged and (over is not None or platform() == "tpu")):
        per_device = len(params["up"])  # `most`: largest number of rows that a device can receive
        most = min(n * num_tokens * min(k, per_device), per_device * slots * (n if over is None else 1))
        output = _by_device(params, x, expert, gate, kept, ways, most)
    else:
        placement = dispatch(expert, num_experts, min(slots, num_tokens), mask=kept)
        buffers = jnp.take(x, placement.token, axis=0, mode="fill", fill_value=0)
        outputs = run_experts(params, buffers, activation=activation, axis_name=axis_name)
        output = combine(outputs, expert, placement, gate.astype(outputs.dtype))
    lost = ~kept if requests is None else requests & ~kept
    whole = lost.size if requests is None else requests.sum()
    return RoutedOutput(output, (_total(lost.sum(), over) / _total(whole, over)).astype(gate.dtype))


def _kept(expert, num_experts, slots, capacity_factor, order, priority, asked, over):
    """Return [T, k] bool, the assignments that get one of the `slots` slots of their expert in the group."""
    num_tokens, k = expert.shape
    expert, priority, asked = (
        value if value is None or over is None else _gathered(value, over)
        for value in (expert, None if priority is None else jax.lax.stop_gradient(priority), asked)
    )
    placement = dispatch(expert, num_experts, slots, order=order, priority=priority, mask=asked)
    kept = placement.kept
    if asked is not None:
        real = asked.any(axis=1).sum()
        kept &= placement.slot < _capacity_of_real(real, len(expert), num_experts, k, capacity_factor)
    return kept if over is None else _own_rows(kept, num_tokens, over)


def _by_device(params, x, expert, gate, kept, ways: _Ways, most):
    per_device = len(params["up"])
    run = functools.partial(_run_received, params, ways.activation)
    if ways.ragged:
        return _send_ragged(run, x, expert, gate, kept, ways.axis_name, per_device, ways.native, most)
    return _send_padded(run, x, expert // per_device, expert % per_device, gate, kept, ways.axis_name, per_device)


def _run_received(params, activation, rows, ids, number=None):
    """Return the outputs of this device's experts `ids` for the received rows; 0 for rows without an expert.

    Args:
        number: only the first rows have an expert; None if unknown. Outputs of the other rows are then arbitrary.
    """
    per_device = len(params["up"])
    if number is not None and per_device == 1 and groups_run(rows):
        return grouped_ffn(_matrices(params), rows, number[None], activation)
    ids, gate = ids[:, None], jnp.ones((len(rows), 1), rows.dtype)
    return routed_ffn(
        params, rows, jnp.minimum(ids, per_device - 1), gate, mask=ids < per_device, activation=activation
    ).output


def _send_padded(run, x, device, ids, gate, kept, axis_name, own):
    """Send each device as many rows as it could need: T times the number of experts that a token can have there."""
    n = jax.lax.axis_size(axis_name)
    num_tokens, k = device.shape
    places = dispatch(device, n, num_tokens * min(k, own), mask=kept)
    rows = jnp.take(x, places.token, axis=0, mode="fill", fill_value=0)  # [n, places, d]
    marks = jnp.full(rows.shape[:2], own, ids.dtype)
    marks = marks.at[device, jnp.where(places.kept, places.slot, rows.shape[1])].set(ids, mode="drop")
    arrived, marks = (all_to_all(v, axis_name=axis_name) for v in (rows, marks))
    outputs = run(arrived.reshape(marks.size, x.shape[1]), marks.reshape(-1)).reshape(rows.shape)
    outputs = all_to_all(outputs, axis_name=axis_name)
    return combine(outputs, device, places, gate.astype(outputs.dtype))


def _send_ragged(run, x, expert, gate, kept, axis_name, own, native, most):
    """Send only the kept rows, sorted by expert. Their numbers tell a device the experts of the rows that it receives.

    The receive buffer has `most` rows, enough for any decision of the router.
    """
    n = jax.lax.axis_size(axis_name)
    num_tokens, k = expert.shape
    to = jnp.where(kept, expert, n * own).reshape(-1)
    order = jnp.argsort(to, stable=True)
    place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)), unique_indices=True).reshape(expert.shape)
    of_experts = (to == jnp.arange(n * own)[:, None]).sum(axis=1, dtype=jnp.int32).reshape(n, own)
    here = all_to_all(of_experts, axis_name=axis_name)  # [n, own], from each device for each expert
    sizes, expected = of_experts.sum(axis=1), here.sum(axis=1)
    begin, into = (jnp.cumsum(v) - v for v in (sizes, expected))
    there = all_to_all(into, axis_name=axis_name)  # the start of our rows on each device
    back = all_to_all(begin, axis_name=axis_name)  # the start of each device's rows here, also sent

    def swap(rows, output, *sizes):
        return ragged_all_to_all(rows, output, *sizes, axis_name=axis_name, native=native)

    rows = _permute_rows(x, order // k, place, "clip", "clip")
    arrived = swap(rows, jnp.zeros((most, x.shape[1]), x.dtype), begin, sizes, there, expected)
    part = jnp.searchsorted(jnp.cumsum(here.reshape(-1)), jnp.arange(most), side="right", method="compare_all")
    outputs = run(arrived, jnp.where(part < n * own, part % own, own), expected.sum())
    outputs = swap(outputs, jnp.zeros(rows.shape, x.dtype), into, expected, back, sizes)
    token = jnp.where(to[order] < n * own, order // k, num_tokens)
    return _gated_sum(outputs, jnp.where(kept, place, len(rows)), token, gate.astype(outputs.dtype))


describe_twins(__name__)
