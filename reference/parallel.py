"""Several devices: collectives, and a routed layer with experts on several devices.

A device is an index of the leading axis here: device i of n devices holds x[i]. All devices take part in a collective,
and each gets its own result:

    collective           what device i holds afterwards                              rows on each device
    psum                 Σⱼ x[j]                                                     m   ->  m
    all_gather           x[0], x[1], …, x[n−1], one below the other                  m   ->  n m
    reduce_scatter       part i of Σⱼ x[j]                                           n m ->  m
    all_to_all           part i of x[0], part i of x[1], …, one below the other      n m ->  n m
    ragged_all_to_all    all_to_all with parts of any length, at positions that the sender chooses

A part is one n-th of the rows: part i has the rows i m … (i + 1) m − 1.

The routed layer (`routed_ffn_on_devices`). Tokens and experts are sharded over the devices: device i holds experts i
E/n … (i + 1) E/n − 1. Most tokens are on another device than their expert. Experts do not move. The layer sends tokens
to their experts and back:

    PLACE    every device fills a buffer [E, C, d] with its own tokens, C slots for each expert; here C is T, the
             number of tokens of a device, and a dropped assignment takes no slot
    SEND     all_to_all: part i of the buffer has the slots of the experts of device i
    RUN      each device runs its E/n experts, each on the n C slots that it received
    RETURN   all_to_all again sends each slot back to its device
    COMBINE  as on one device

The number of slots is fixed, so a device always sends the same amount of data, empty slots included.
`ragged_all_to_all` sends only the tokens.

The group (`GROUPS`) decides which tokens get a slot. With "shard" each device has its own C = ceil(c k T / E) slots at
each expert, for its T tokens. With "global" the tokens of all devices share C = ceil(c k n T / E) slots, in the order
of the devices. The two differ if an expert is popular on only some devices.

Source: Lepikhin et al. 2020 (arXiv 2006.16668) for the sharded layer, with one group per device. The order by device in
"global" is our choice.
"""

import math

import numpy as np

from .errors import InputError
from .experts import RoutedOutput, combine, dispatch, expert_capacity, expert_ffn

GROUPS = ("shard", "global")
"""The group of tokens that share slots: the tokens of one device, or of all devices."""


def psum(x: np.ndarray) -> np.ndarray:
    """Give every device the sum over all devices.

    Args:
        x: [n, ...].

    Returns:
        [n, ...].

    Example:
        >>> psum(np.array([[1, 2], [10, 20]])).tolist()
        [[11, 22], [11, 22]]
    """
    return np.stack([x.sum(axis=0)] * len(x))


def all_gather(x: np.ndarray) -> np.ndarray:
    """Give every device the rows of all devices, the rows of device 0 first.

    Args:
        x: [n, m, ...].

    Returns:
        [n, n m, ...].

    Example:
        >>> all_gather(np.array([[1, 2], [10, 20]])).tolist()
        [[1, 2, 10, 20], [1, 2, 10, 20]]
    """
    return np.stack([np.concatenate(list(x))] * len(x))


def reduce_scatter(x: np.ndarray) -> np.ndarray:
    """Give every device its part of the sum over all devices.

    Args:
        x: [n, n m, ...].

    Returns:
        [n, m, ...].

    Raises:
        ValueError: the rows cannot be cut into n parts.

    Example:
        >>> reduce_scatter(np.array([[1, 2], [10, 20]])).tolist()
        [[11], [22]]
    """
    total = x.sum(axis=0)
    return np.stack([part(total, i, len(x)) for i in range(len(x))])


def all_to_all(x: np.ndarray) -> np.ndarray:
    """Send part i of every device to device i, which stores the parts in the order of the senders.

    Args:
        x: [n, n m, ...].

    Returns:
        [n, n m, ...].

    Raises:
        ValueError: the rows cannot be cut into n parts.

    Example:
        With one row in each part this is a transpose:

        >>> all_to_all(np.array([[1, 2, 3], [10, 20, 30], [100, 200, 300]])).tolist()
        [[1, 10, 100], [2, 20, 200], [3, 30, 300]]
    """
    n = len(x)
    return np.stack([np.concatenate([part(x[j], i, n) for j in range(n)]) for i in range(n)])


def part(rows: np.ndarray, i: int, n: int) -> np.ndarray:
    """Return part i of n of the rows of one device.

    Args:
        rows: [n m, ...].
        i: from 0.
        n: the number of parts.

    Returns:
        [m, ...], rows i m … (i + 1) m − 1.

    Raises:
        ValueError: the rows cannot be cut into n parts.
    """
    if len(rows) % n:
        raise InputError(f"{len(rows)} rows cannot be divided into {n} equal parts, one for each device")
    m = len(rows) // n
    return rows[i * m : (i + 1) * m]


def ragged_all_to_all(
    x: np.ndarray,
    output: np.ndarray,
    input_offsets: np.ndarray,
    send_sizes: np.ndarray,
    output_offsets: np.ndarray,
    recv_sizes: np.ndarray,
) -> np.ndarray:
    """Send any number of contiguous rows from each device to each device.

    Device i sends device j the `send_sizes[i, j]` rows of x[i] that begin at `input_offsets[i, j]`. On device j these
    rows begin at `output_offsets[i, j]`. So the sender chooses the position of its rows.

    Args:
        x: [n, rows, ...], the rows to send.
        output: [n, rows', ...], the initial values; rows that receive nothing keep them.
        input_offsets: [n, n] integers.
        send_sizes: [n, n] integers.
        output_offsets: [n, n] integers.
        recv_sizes: [n, n] integers, the transpose of `send_sizes`. Entry [j, i] is the number of rows that device j
            gets from device i. Device j needs row j to know how many rows arrive.

    Returns:
        [n, rows', ...].

    Raises:
        ValueError: `recv_sizes` is not `send_sizes` transposed, or rows would be read or written past the end.

    Source: the collective of XLA and its arguments, `jax.lax.ragged_all_to_all`.

    Example:
        Device 0 sends one row to itself and two to device 1; device 1 sends one to each:

        >>> x, output = np.array([[1, 2, 2], [3, 4, 0]]), np.zeros((2, 4), int)
        >>> sizes = np.array([[1, 2], [1, 1]])
        >>> begin, into = np.array([[0, 1], [0, 1]]), np.array([[0, 0], [1, 2]])
        >>> ragged_all_to_all(x, output, begin, sizes, into, sizes.T).tolist()
        [[1, 3, 0, 0], [2, 2, 4, 0]]
    """
    if not np.array_equal(recv_sizes, send_sizes.T):
        raise InputError(
            "recv_sizes is not send_sizes transposed: some device would wait for rows that no device sends"
        )
    if (input_offsets + send_sizes > x.shape[1]).any() or (output_offsets + send_sizes > output.shape[1]).any():
        raise InputError(
            f"a device reads rows beyond the {x.shape[1]} of x, or writes beyond the {output.shape[1]} of output"
        )
    output = output.copy()
    n = len(x)
    for i in range(n):
        for j in range(n):
            rows = x[i, input_offsets[i, j] : input_offsets[i, j] + send_sizes[i, j]]
            output[j, output_offsets[i, j] : output_offsets[i, j] + send_sizes[i, j]] = rows
    return output


def run_experts(params: dict, buffers: np.ndarray, *, activation: str = "gelu") -> np.ndarray:
    """Send each buffer to its expert's device, run the experts, and send the outputs back.

    Args:
        params: {"up": [n, E/n, d, f], "down": [n, E/n, f, d]}, and for SwiGLU "linear" [n, E/n, d, f].
        buffers: [n, E, C, d], the inputs from each device for each expert.
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [n, E, C, d], the outputs for each device.
    """
    n, num_experts = buffers.shape[:2]
    per_device = num_experts // n
    arrived = all_to_all(buffers)  # [n, E, C, d]: row j E/n + e came from device j for the e-th expert of this device
    outputs = np.zeros(buffers.shape)
    for i in range(n):
        for row in range(num_experts):
            matrices = {name: params[name][i, row % per_device] for name in ("up", "down", "linear") if name in params}
            outputs[i, row] = expert_ffn(**matrices, x=arrived[i, row], activation=activation)
    return all_to_all(outputs)


def routed_ffn_on_devices(
    params: dict,
    x: np.ndarray,
    expert: np.ndarray,
    gate: np.ndarray,
    capacity_factor: float = math.inf,
    *,
    group: str = "shard",
    order: str = "choice",
    priority: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    activation: str = "gelu",
) -> RoutedOutput:
    """Send each token through its experts, which may be on other devices.

    Args:
        params: {"up": [n, E/n, d, f], "down": [n, E/n, f, d]}, and for SwiGLU "linear" [n, E/n, d, f].
        x: [n, T, d].
        expert: [n, T, k] integers in [0, E).
        gate: [n, T, k].
        capacity_factor: c > 0; infinity (the default) drops nothing.
        group: one of `GROUPS`.
        order: which assignments get the slots if slots are too few (see `experts.dispatch`).
        priority: [n, T, k] (see `experts.routed_ffn`).
        mask: [n, T, k] bool, the assignments to place, at least one on each device; None for all.
        activation: one of `accounting.ACTIVATIONS`.

    Returns: `RoutedOutput` with output [n, T, d] and, for each device, the dropped fraction of its group, [n].

    Raises:
        ValueError: the group is unknown, or `experts.dispatch` raises this error.

    Example:
        Two devices with two tokens and one expert each. Expert 0 doubles, expert 1 negates. The first three tokens
        choose expert 0. With "shard" each device has one slot at expert 0. With "global" the devices share two slots,
        and device 0 takes both:

        >>> params = {"up": np.array([2.0, 1.0]).reshape(2, 1, 1, 1), "down": np.array([1.0, -1]).reshape(2, 1, 1, 1)}
        >>> x, expert, gate = np.arange(1.0, 5).reshape(2, 2, 1), np.array([[[0], [0]], [[0], [1]]]), np.ones((2, 2, 1))
        >>> own = routed_ffn_on_devices(params, x, expert, gate, 1.0, activation="relu")
        >>> own.output.ravel().tolist(), own.dropped_fraction.tolist()
        ([2.0, 0.0, 6.0, -4.0], [0.5, 0.0])
        >>> together = routed_ffn_on_devices(params, x, expert, gate, 1.0, group="global", activation="relu")
        >>> together.output.ravel().tolist(), together.dropped_fraction.tolist()
        ([2.0, 4.0, 0.0, -4.0], [0.25, 0.25])
    """
    n, num_tokens, k = expert.shape
    num_experts = n * params["up"].shape[1]
    if not expert.size:
        return RoutedOutput(np.zeros(x.shape), np.zeros(n))
    requests = np.ones(expert.shape, dtype=bool) if mask is None else mask
    if order == "priority" and priority is None:
        priority = gate
    # PLACE
    kept = _kept(expert, num_experts, capacity_factor, group, order, priority, requests).reshape(expert.shape)
    busy = [i for i in range(n) if kept[i].any()]  # `dispatch` needs at least one assignment
    placements = {i: dispatch(expert[i], num_experts, num_tokens, mask=kept[i]) for i in busy}  # T slots are enough
    x_or_zero = np.concatenate([x, np.zeros((n, 1, x.shape[2]))], axis=1)  # row T of zeros is an empty slot
    buffers = np.zeros((n, num_experts, num_tokens, x.shape[2]))
    for i in busy:
        buffers[i] = x_or_zero[i][placements[i].token]
    # SEND, RUN, RETURN
    outputs = run_experts(params, buffers, activation=activation)
    # COMBINE
    output = np.zeros(x.shape)
    for i in busy:
        output[i] = combine(outputs[i], expert[i], placements[i], gate[i])
    dropped = requests & ~kept
    if group == "global":
        return RoutedOutput(output, np.full(n, dropped.sum() / requests.sum()))
    return RoutedOutput(output, dropped.sum(axis=(1, 2)) / requests.sum(axis=(1, 2)))


def _kept(expert, num_experts, capacity_factor, group, order, priority, requests):
    """Return [n, T, k] bool, which assignments have a slot. Each group has its own slots."""
    if group not in GROUPS:
        raise InputError(f"group is {group!r}; allowed: {', '.join(GROUPS)}")
    if group == "global":  # one device that holds everything
        expert, requests = (values.reshape(1, -1, values.shape[2]) for values in (expert, requests))
        priority = None if priority is None else priority.reshape(expert.shape)
    shape, kept = expert.shape, []
    for i in range(len(expert)):
        num_real = int(requests[i].any(axis=1).sum())
        capacity = expert_capacity(num_real, num_experts, shape[2], capacity_factor)
        priorities = None if priority is None else priority[i]
        placement = dispatch(expert[i], num_experts, capacity, order=order, priority=priorities, mask=requests[i])
        kept.append(placement.kept & requests[i])
    return np.stack(kept)
