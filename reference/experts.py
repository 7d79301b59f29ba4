"""Experts: who gets a place, what an expert computes, and how the outputs come back to the tokens.

    1. PLACE    give each assignment (token, expert) a slot in the expert's buffer     `dispatch`
    2. RUN      each expert is an FFN without biases: y = GELU(x Uₑ) Dₑ                 `expert_ffn`
    3. COMBINE  hₜ = Σⱼ gate(t, j) · y of token t at its j-th expert                    `combine`
    all three                                                                          `routed_ffn`

Capacity: with a capacity factor c an expert has C = ceil(c k T / E) slots, at most T. When more tokens want an expert
than it has slots, the earlier token keeps its place, and all first choices come before any second choice. A token
that finds no slot gets 0 from that expert: the block's residual connection carries it on unchanged. An infinite
factor drops nothing.

Clark et al. 2022 give no capacity figures; the formula, the order and the default are our choice. Other libraries
differ in the formula (without k, rounded down, rounded up to a multiple of 4) and in the order (by probability, by
token before choice).
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Placement(NamedTuple):
    """Where each assignment sits in the experts' buffers."""

    slot: np.ndarray  # [T, k] integers, place in the queue of the chosen expert, from 0; C or more means dropped
    kept: np.ndarray  # [T, k] bool, slot < C
    token: np.ndarray  # [E, C] integers, the token in each slot; T where the slot is empty


def expert_capacity(num_tokens: int, num_experts: int, k: int, capacity_factor: float) -> int:
    """Return C = min(T, ceil(c k T / E)), the number of slots of each expert.

    The factor is taken as the decimal it prints as, so that 1.1 of 10 is 11 and not 12.

    Args:
        num_tokens: T.
        num_experts: E.
        k: experts per token.
        capacity_factor: c > 0; infinity for as many slots as tokens.

    Raises:
        ValueError: c <= 0 or NaN.

    Example:
        >>> expert_capacity(10, 4, 1, 1.25), expert_capacity(10, 1, 1, 1.1), expert_capacity(10, 4, 1, math.inf)
        (4, 10, 10)
    """
    if not capacity_factor > 0:
        raise ValueError(f"capacity_factor is {capacity_factor}; it has to be above 0 (inf drops nothing)")
    if math.isinf(capacity_factor):
        return num_tokens
    return min(num_tokens, math.ceil(Fraction(str(float(capacity_factor))) * k * num_tokens / num_experts))


def dispatch(expert: np.ndarray, num_experts: int, capacity: int) -> Placement:
    """Give each assignment a slot, in the order first choices before second choices, earlier tokens first.

    Args:
        expert: [T, k] integers in [0, E).
        num_experts: E.
        capacity: C >= 0.

    Returns:
        `Placement`.

    Raises:
        ValueError: an expert index is out of range.

    Example:
        Three tokens want expert 0, which has two slots:

        >>> dispatch(np.array([[0], [1], [0], [0]]), 2, 2)
        Placement(slot=array([[0],
               [0],
               [1],
               [2]]), kept=array([[ True],
               [ True],
               [ True],
               [False]]), token=array([[0, 2],
               [1, 4]]))
    """
    num_tokens, k = expert.shape
    if expert.size and not (0 <= expert.min() and expert.max() < num_experts):
        raise ValueError(f"expert indices reach from {expert.min()} to {expert.max()}; allowed: 0 to {num_experts - 1}")
    slot = np.zeros((num_tokens, k), dtype=np.int64)
    token = np.full((num_experts, capacity), num_tokens)
    waiting = np.zeros(num_experts, dtype=np.int64)
    for choice in range(k):
        for t in range(num_tokens):
            e = expert[t, choice]
            slot[t, choice] = waiting[e]
            if waiting[e] < capacity:
                token[e, waiting[e]] = t
            waiting[e] += 1
    return Placement(slot, slot < capacity, token)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))), the tanh form of GELU (our choice: NumPy has no erf)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def expert_ffn(up: np.ndarray, down: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return GELU(x U) D: up [d, f], down [f, d], x [..., d] -> [..., d]."""
    return gelu(x @ up) @ down


def combine(outputs: np.ndarray, expert: np.ndarray, placement: Placement, gate: np.ndarray) -> np.ndarray:
    """Return [T, d], the gated sum of the outputs that each token's experts computed for it.

    Args:
        outputs: [E, C, d], what each expert computed in each slot.
        expert: [T, k].
        placement: where the assignments sit.
        gate: [T, k].
    """
    num_tokens, k = expert.shape
    result = np.zeros((num_tokens, outputs.shape[-1]))
    for t in range(num_tokens):
        for choice in range(k):
            if placement.kept[t, choice]:
                result[t] += gate[t, choice] * outputs[expert[t, choice], placement.slot[t, choice]]
    return result


class RoutedOutput(NamedTuple):
    """What a routed FFN returns."""

    output: np.ndarray  # [T, d]
    dropped_fraction: float  # share of the T*k assignments that found no slot


def routed_ffn(
    params: dict, x: np.ndarray, expert: np.ndarray, gate: np.ndarray, capacity_factor: float = math.inf
) -> RoutedOutput:
    """Send each token through its experts.

    Args:
        params: {"up": [E, d, f], "down": [E, f, d]}.
        x: [T, d].
        expert: [T, k] integers in [0, E).
        gate: [T, k].
        capacity_factor: c > 0; infinity (the default) drops nothing.

    Returns:
        `RoutedOutput`.

    Raises:
        ValueError: c <= 0, or an expert index out of range.
    """
    num_experts = len(params["up"])
    num_tokens, k = expert.shape
    # PLACE
    capacity = expert_capacity(num_tokens, num_experts, k, capacity_factor)
    placement = dispatch(expert, num_experts, capacity)
    padded = np.concatenate([x, np.zeros((1, x.shape[1]))])  # row T is the empty slot
    # RUN
    outputs = np.stack([
        expert_ffn(params["up"][e], params["down"][e], padded[placement.token[e]]) for e in range(num_experts)
    ])  # [E, C, d]
    # COMBINE
    return RoutedOutput(combine(outputs, expert, placement, gate), (~placement.kept).mean())
