"""Experts: assign slots, run the experts, and combine their outputs for each token.

    1. PLACE    give each assignment (token, expert) a slot in the expert's buffer     `dispatch`
    2. RUN      each expert is an FFN without biases: y = φ(x · upₑ) · downₑ            `expert_ffn`
    3. COMBINE  hₜ = Σⱼ gate(t, j) · y of token t at its j-th expert                    `combine`
    all three                                                                          `routed_ffn`

Capacity: with a capacity factor c an expert has C = ceil(c k T / E) slots, at most T. A token without a slot gets 0
from that expert: the block's residual connection passes it on unchanged. An infinite factor drops nothing. The drop
order (`DROP_ORDERS`) decides which assignments get the slots:

    order         first in the queue                                     a token's slots depend on
    "choice"      all first choices before any second; earlier tokens    earlier tokens; at k > 1 later tokens too
    "token"       earlier tokens; the choices of a token in turn         earlier tokens
    "priority"    the largest priority, such as the gate; ties as in     later tokens too
                  the order "choice"

With a capacity, later tokens of a sequence can affect earlier tokens in training. This holds for the order "priority",
and for "choice" at k > 1. Evaluation drops nothing, so it is causal if the router is causal.

Gates after a drop: the other gates of the token do not change. `kept_gates` can divide the kept gates by their sum, as
top-2 routing in DeepSpeed and fairscale does.

Padding: an assignment that a `mask` excludes takes no slot and adds nothing to the output. The capacity and the dropped
fraction do not count it. A mask can exclude padded tokens, or single choices, such as the second experts that GShard's
router drops.

The nonlinearity φ of experts and dense FFNs is GELU, ReLU or, with a third matrix, SwiGLU (`accounting.ACTIVATIONS`).

Experts can have any width f. A layer of granularity G has G times as many experts, each of width f / G. It sends each
token to G times as many experts. An expert of width f equals the sum of G narrow experts. Each narrow expert has f / G
of the columns of `up` and the same rows of `down`.

The formula, the order and the default are our choice: the main text of Clark et al. 2022 gives no capacity
(docs/choices.md).
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .accounting import ACTIVATIONS
from .errors import InputError
from .notation import _as_bool, _check_k, check_finite, softmax

ZERO_KINDS = ("identity", "zero", "constant")
"""What a zero-computation expert returns: its input, nothing, or a learned mixture of its input and an offset."""

DROP_ORDERS = ("choice", "token", "priority")
"""Orders in which assignments queue for the slots of their expert."""


class Placement(NamedTuple):
    """The slot of each assignment in the experts' buffers."""

    slot: (
        np.ndarray
    )  # [T, k] integers, position in the queue of its expert, from 0; C for an assignment that the mask excludes
    kept: np.ndarray  # [T, k] bool, slot < C
    token: np.ndarray  # [E, C] integers, the token in each slot; T where the slot is empty


def expert_capacity(num_tokens: int, num_experts: int, k: int, capacity_factor: float) -> int:
    """Return C = min(T, ceil(c k T / E)), the number of slots of each expert.

    The function uses the decimal value of c: c = 1.1 with k T / E = 10 gives 11 slots. The binary value of 1.1 is
    slightly larger and would give 12.

    Args:
        num_tokens: T.
        num_experts: E.
        k: experts per token.
        capacity_factor: c > 0; infinity gives T slots.

    Raises:
        ValueError: c <= 0 or NaN, or there is no expert.

    Example:
        >>> expert_capacity(10, 4, 1, 1.25), expert_capacity(10, 1, 1, 1.1), expert_capacity(10, 4, 1, math.inf)
        (4, 10, 10)
    """
    _check_k(1, num_experts)
    if not capacity_factor > 0:
        raise InputError(f"capacity_factor is {capacity_factor}; it has to be above 0 (inf drops no token)")
    if math.isinf(capacity_factor):
        return num_tokens
    return min(num_tokens, math.ceil(Fraction(str(float(capacity_factor))) * k * num_tokens / num_experts))


def dispatch(
    expert: np.ndarray,
    num_experts: int,
    capacity: int,
    *,
    order: str = "choice",
    priority: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> Placement:
    """Give each assignment a slot of its expert, while slots are free.

    Args:
        expert: [T, k] integers in [0, E).
        num_experts: E.
        capacity: C >= 0.
        order: which assignments come first in the queue. "choice": first choices before second choices, then earlier
            before later tokens. "token": earlier before later tokens, then first before second choices. "priority":
            larger priorities; equal priorities as in "choice".
        priority: [T, k], finite for the assignments to place; only for the order "priority".
        mask: [T] or [T, k] bool, the assignments to place (at least one); None for all.

    Returns:
        `Placement`.

    Raises:
        ValueError: an argument is out of its range, the priority does not fit the order, or the mask has the wrong
            shape or is all False.

    Example:
        Three tokens want expert 0, which has two slots:

        >>> expert = np.array([[0], [1], [0], [0]])
        >>> dispatch(expert, 2, 2)
        Placement(slot=array([[0],
               [0],
               [1],
               [2]]), kept=array([[ True],
               [ True],
               [ True],
               [False]]), token=array([[0, 2],
               [1, 4]]))
        >>> dispatch(expert, 2, 2, order="priority", priority=np.array([[0.6], [0.9], [0.7], [0.8]])).token.tolist()
        [[3, 2], [1, 4]]
        >>> dispatch(expert, 2, 2, mask=np.array([False, True, True, True])).token.tolist()
        [[2, 3], [1, 4]]
    """
    num_tokens, k = expert.shape
    if expert.size and not (0 <= expert.min() and expert.max() < num_experts):
        raise InputError(f"expert indices range from {expert.min()} to {expert.max()}; allowed: 0 to {num_experts - 1}")
    requests = _asked(mask, expert.shape)
    slot = np.full((num_tokens, k), capacity)
    token = np.full((num_experts, capacity), num_tokens)
    asked_before = np.zeros(num_experts, dtype=np.int64)  # number of earlier assignments to each expert
    for t, choice in _queue(requests, order, priority):
        e = expert[t, choice]
        slot[t, choice] = asked_before[e]
        if asked_before[e] < capacity:
            token[e, asked_before[e]] = t
        asked_before[e] += 1
    return Placement(slot, slot < capacity, token)


def _asked(mask, shape):
    """Return [T, k] bool, the assignments to place, from a mask [T], a mask [T, k] or None."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    mask = _as_bool(mask)
    if mask.shape not in (shape, shape[:1]) or not mask.any():
        raise InputError(
            f"mask has shape {mask.shape} and {mask.sum()} entries that are true; {list(shape[:1])} or {list(shape)} "
            f"with at least one true entry is needed"
        )
    return np.broadcast_to(mask[:, None] if mask.ndim == 1 else mask, shape)


def _queue(requests, order, priority):
    """Return the pairs (token, choice) to place, in the order of the queue."""
    if order not in DROP_ORDERS:
        raise InputError(f"order is {order!r}; allowed: {', '.join(DROP_ORDERS)}")
    if (priority is None) == (order == "priority"):
        state = "missing" if priority is None else "given"
        raise InputError(f"order is {order!r} and priority is {state}; only the order 'priority' takes a priority")
    num_tokens, k = requests.shape
    pairs = [(t, choice) for choice in range(k) for t in range(num_tokens) if requests[t, choice]]
    if order == "choice":
        return pairs
    if order == "token":
        return sorted(pairs)
    if priority.shape != requests.shape:
        raise InputError(f"priority has shape {priority.shape}; {requests.shape} is needed")
    priority = check_finite("priority", np.where(requests, priority, 0))
    return sorted(pairs, key=lambda pair: -priority[pair])  # stable sort: ties stay in the order "choice"


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))), the tanh form of GELU (our choice: NumPy has no erf)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x σ(x) = x / (1 + exp(−x)), in a form that cannot overflow."""
    return x * np.exp(-np.logaddexp(0, -x))


def expert_ffn(
    up: np.ndarray, down: np.ndarray, x: np.ndarray, *, activation: str = "gelu", linear: np.ndarray | None = None
) -> np.ndarray:
    """Return the output of one expert: φ(x · up) · down, or for SwiGLU (silu(x · up) ⊙ (x · linear)) · down.

    Args:
        up: [d, f].
        down: [f, d].
        x: [..., d].
        activation: one of `accounting.ACTIVATIONS`.
        linear: [d, f], only for SwiGLU.

    Returns:
        [..., d].

    Raises:
        ValueError: the activation is unknown, or `linear` is missing or unexpected.

    Example:
        For x = 2 and x = -2, ReLU gives 2 and 0, and SwiGLU with linear = 3 gives x σ(x) · 3x:

        >>> one, x = np.array([[1.0]]), np.array([[2.0], [-2.0]])
        >>> expert_ffn(one, one, x, activation="relu").ravel().tolist()
        [2.0, 0.0]
        >>> np.round(expert_ffn(one, one, x, activation="swiglu", linear=3 * one), 3).ravel().tolist()
        [10.57, 1.43]
    """
    _check_activation(activation, linear)
    hidden = x @ up
    if activation == "gelu":
        hidden = gelu(hidden)
    elif activation == "relu":
        hidden = np.maximum(hidden, 0)
    else:
        hidden = silu(hidden) * (x @ linear)
    return hidden @ down


def _check_activation(activation, linear):
    """Raise InputError if the activation is unknown, or `linear` is missing for SwiGLU or passed for another one."""
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; allowed: {', '.join(ACTIVATIONS)}")
    if (linear is None) == (activation == "swiglu"):
        state = "missing" if linear is None else "given"
        raise InputError(f"activation is {activation!r} and the matrix linear is {state}; only swiglu takes linear")


def _matrices(params: dict, e: int | np.ndarray) -> dict:
    """Return the matrices of expert e, or of several experts: up [d, f], down [f, d] and, for SwiGLU, linear [d, f]."""
    return {name: params[name][e] for name in ("up", "down", "linear") if name in params}


def combine(outputs: np.ndarray, expert: np.ndarray, placement: Placement, gate: np.ndarray) -> np.ndarray:
    """Return [T, d]: for each token, the sum of its experts' outputs, each times its gate.

    Args:
        outputs: [E, C, d], the output of each expert in each slot.
        expert: [T, k].
        placement: the slots of the assignments.
        gate: [T, k].
    """
    num_tokens, k = expert.shape
    result = np.zeros((num_tokens, outputs.shape[-1]))
    for t in range(num_tokens):
        for choice in range(k):
            if placement.kept[t, choice]:
                result[t] += gate[t, choice] * outputs[expert[t, choice], placement.slot[t, choice]]
    return result


def kept_gates(gate: np.ndarray, kept: np.ndarray, *, renormalise: bool = False) -> np.ndarray:
    """Return the gates, with 0 for dropped assignments.

    Args:
        gate: [T, k], at least 0.
        kept: [T, k] bool, the assignments that have a slot (`Placement.kept`).
        renormalise: divide the gates of a token by the sum of its kept gates; a token with no kept gate keeps 0.

    Returns:
        [T, k].

    Example:
        >>> gate, kept = np.array([[0.5, 0.25], [0.75, 0.25], [0.5, 0.5]]), np.array([[1, 1], [0, 1], [0, 0]], bool)
        >>> kept_gates(gate, kept).tolist()
        [[0.5, 0.25], [0.0, 0.25], [0.0, 0.0]]
        >>> np.round(kept_gates(gate, kept, renormalise=True), 3).tolist()
        [[0.667, 0.333], [0.0, 1.0], [0.0, 0.0]]
    """
    gate = np.where(kept, gate, 0.0)
    if not renormalise:
        return gate
    total = gate.sum(axis=1, keepdims=True)
    return gate / np.where(total > 0, total, 1.0)


def zero_computation(
    x: np.ndarray,
    expert: np.ndarray,
    gate: np.ndarray,
    num_experts: int,
    *,
    kind: str = "identity",
    constants: dict | None = None,
) -> np.ndarray:
    """Return the sum over a token's zero-computation experts of gate times output.

    The experts numbered `num_experts` and above compute no FFN. Expert num_experts + j returns x ("identity"), 0
    ("zero"), or α x + β offset_j with (α, β) = softmax(x · mix_j) ("constant").

    Sources: Jin et al. 2024, "MoE++" (arXiv 2410.07348), with the names copy, zero and constant; LongCat-Flash (arXiv
    2509.01322) has the identity.

    Args:
        x: [T, d].
        expert: [T, k] integers of at least 0. This function ignores the real experts, below `num_experts`.
        gate: [T, k].
        num_experts: E, the number of real experts.
        kind: one of `ZERO_KINDS`.
        constants: {"mix": [Z, d, 2], "offset": [Z, d]}, only for "constant".

    Returns:
        [T, d].

    Raises:
        ValueError: the kind is unknown, or `constants` is missing or unexpected.

    Example:
        Expert 0 is real, experts 1 and 2 are not:

        >>> x, expert, gate = np.array([[8.0], [4.0]]), np.array([[0, 1], [2, 1]]), np.array([[0.5, 0.5], [0.25, 0.5]])
        >>> zero_computation(x, expert, gate, 1).ravel().tolist()
        [4.0, 3.0]
        >>> even = {"mix": np.zeros((2, 1, 2)), "offset": np.array([[2.0], [0.0]])}
        >>> zero_computation(x, expert, gate, 1, kind="constant", constants=even).ravel().tolist()
        [2.5, 2.0]
    """
    _check_zero_kind(kind, constants)
    result = np.zeros(x.shape)
    if kind == "zero":
        return result
    for t, choice in zip(*np.nonzero(expert >= num_experts), strict=True):
        output = x[t]
        if kind == "constant":
            j = expert[t, choice] - num_experts
            alpha, beta = softmax(x[t] @ constants["mix"][j])
            output = alpha * x[t] + beta * constants["offset"][j]
        result[t] += gate[t, choice] * output
    return result


def _check_zero_kind(kind, constants):
    if kind not in ZERO_KINDS:
        raise InputError(f"kind is {kind!r}; allowed: {', '.join(ZERO_KINDS)}")
    if (constants is None) == (kind == "constant"):
        state = "missing" if constants is None else "given"
        raise InputError(f"kind is {kind!r} and constants is {state}; only the kind 'constant' takes constants")


class RoutedOutput(NamedTuple):
    """The result of a routed FFN."""

    output: np.ndarray  # [T, d]
    dropped_fraction: float  # share of the assignments to place that found no slot


def routed_ffn(
    params: dict,
    x: np.ndarray,
    expert: np.ndarray,
    gate: np.ndarray,
    capacity_factor: float = math.inf,
    *,
    order: str = "choice",
    priority: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    activation: str = "gelu",
) -> RoutedOutput:
    """Send each token through its experts.

    Args:
        params: {"up": [E, d, f], "down": [E, f, d]}, and for SwiGLU "linear" [E, d, f].
        x: [T, d]; the program ignores a token if the mask excludes all its assignments.
        expert: [T, k] integers in [0, E).
        gate: [T, k]; the program ignores the gates of assignments that the mask excludes.
        capacity_factor: c > 0; infinity (the default) drops nothing.
        order: which assignments get the slots if slots are too few: "choice", "token" or "priority" (see `dispatch`).
        priority: see `dispatch`; a constant for the gradient. With the order "priority", None means the gate.
        mask: [T] or [T, k] bool, the assignments to place; None for all. In the capacity, T counts the tokens with at
            least one assignment to place. If a gate of 0 means "no expert", pass the mask `gate != 0`.
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        `RoutedOutput`.

    Raises:
        ValueError: c <= 0, or `dispatch` or `expert_ffn` raises this error.

    Example:
        >>> params = {"up": np.ones((2, 1, 1)), "down": np.ones((2, 1, 1))}
        >>> x, expert, gate = np.array([[9.0], [10.0], [11.0], [12.0]]), np.array([[0], [0], [0], [1]]), np.ones((4, 1))
        >>> found = routed_ffn(params, x, expert, gate, 1.0)
        >>> found.output.ravel().tolist(), found.dropped_fraction
        ([9.0, 10.0, 0.0, 12.0], 0.25)
        >>> found = routed_ffn(params, x, expert, gate, 1.0, mask=np.array([True, False, True, False]))
        >>> found.output.ravel().tolist(), found.dropped_fraction
        ([9.0, 0.0, 0.0, 0.0], 0.5)
    """
    _check_ffn(params, x, expert, gate)
    if not expert.size:
        return RoutedOutput(np.zeros(x.shape), 0.0)
    num_experts = len(params["up"])
    requests = _asked(mask, expert.shape)
    # PLACE
    num_real = int(requests.any(axis=1).sum())
    capacity = expert_capacity(num_real, num_experts, expert.shape[1], capacity_factor)
    if order == "priority" and priority is None:
        priority = gate
    placement = dispatch(expert, num_experts, capacity, order=order, priority=priority, mask=requests)
    padded = np.concatenate([x, np.zeros((1, x.shape[1]))])  # row T is the empty slot
    # RUN
    each = range(num_experts)
    outputs = [expert_ffn(**_matrices(params, e), x=padded[placement.token[e]], activation=activation) for e in each]
    # COMBINE
    return RoutedOutput(combine(np.stack(outputs), expert, placement, gate), float((~placement.kept)[requests].mean()))


def input_gated_ffn(
    params: dict, x: np.ndarray, expert: np.ndarray, gate: np.ndarray, *, activation: str = "gelu"
) -> np.ndarray:
    """Return Σⱼ expert_j(gate(t, j) · xₜ): the gate scales the expert's input, as in Llama 4.

    `transformer` does not use this variant of `routed_ffn`. With ReLU and gates of at least 0 the result equals
    `routed_ffn`. With other activations it differs, because experts are not linear. Nothing is dropped. Llama 4 has
    k = 1, the sigmoid of the logit as gate, and a shared expert.

    Args:
        params: see `routed_ffn`.
        x: [T, d].
        expert: [T, k] integers in [0, E).
        gate: [T, k].
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [T, d].

    Raises:
        ValueError: `routed_ffn` raises this error.

    Example:
        With GELU and gate 1/2, the expert returns 1.95 for 4/2; half of its output for 4 is 2:

        >>> params = {"up": np.ones((1, 1, 1)), "down": np.ones((1, 1, 1))}
        >>> x, expert, gate = np.array([[4.0]]), np.array([[0]]), np.array([[0.5]])
        >>> found = input_gated_ffn(params, x, expert, gate), routed_ffn(params, x, expert, gate).output
        >>> [round(output.item(), 2) for output in found]
        [1.95, 2.0]
    """
    _check_ffn(params, x, expert, gate)
    result = np.zeros(x.shape)
    for t, choice in np.ndindex(expert.shape):
        matrices = _matrices(params, expert[t, choice])
        result[t] += expert_ffn(**matrices, x=gate[t, choice] * x[t], activation=activation)
    return result


def _check_ffn(params: dict, x: np.ndarray, expert: np.ndarray, gate: np.ndarray) -> None:
    missing = [name for name in ("up", "down") if name not in params]
    if missing:
        raise InputError(f"params has the keys {', '.join(params)}; up [E, d, f] and down [E, f, d] are needed")
    up, down, tokens = np.shape(params["up"]), np.shape(params["down"]), np.shape(x)
    if len(up) != 3 or not up[0] or down != (up[0], up[2], up[1]):
        raise InputError(f"params: up has shape {up} and down {down}; [E, d, f] and [E, f, d] are needed, E >= 1")
    if "linear" in params and np.shape(params["linear"]) != up:
        raise InputError(f"params: linear has shape {np.shape(params['linear'])}; {up} is needed, the shape of up")
    if len(tokens) != 2 or tokens[1] != up[1]:
        raise InputError(f"x has shape {tokens}; [T, d] with d = {up[1]} is needed")
    if np.ndim(expert) != 2 or len(expert) != tokens[0]:
        raise InputError(f"expert has shape {np.shape(expert)}; [T, k] with T = {tokens[0]} is needed")
    if np.shape(gate) != np.shape(expert):
        raise InputError(f"gate has shape {np.shape(gate)}; {np.shape(expert)} is needed, the shape of expert")
