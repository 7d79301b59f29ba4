"""Variants of `experts.routed_ffn`: gates on the experts' inputs, and experts without weights.

    input gates     hₜ = Σⱼ y of gate(t, j) · xₜ at its j-th expert                     `input_gated_ffn`
    null experts    hₜ = Σ over real choices of gate(t, j) · y, and 0 or xₜ for others  `null_expert_ffn`

Both functions take the experts and gates of any router. `transformer` uses neither function.
"""

import math

import numpy as np

from .experts import RoutedOutput, _check_ffn, _matrices, expert_ffn, routed_ffn


def input_gated_ffn(
    params: dict, x: np.ndarray, expert: np.ndarray, gate: np.ndarray, *, activation: str = "gelu"
) -> np.ndarray:
    """Return Σⱼ expert_j(gate(t, j) · xₜ): the gate scales the expert's input, as in Llama 4.

    With ReLU and gates of at least 0 the result equals `routed_ffn`. With other activations it differs, because experts
    are not linear. Nothing is dropped. Llama 4 has k = 1, the sigmoid of the logit as gate, and a shared expert.

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


def null_expert_ffn(
    params: dict,
    x: np.ndarray,
    expert: np.ndarray,
    gate: np.ndarray,
    capacity_factor: float = math.inf,
    *,
    identity: bool = False,
    order: str = "choice",
    activation: str = "gelu",
) -> RoutedOutput:
    """Send each token through its experts. Experts E and above are null experts, without weights.

    A null expert takes no slot. It returns 0 or, with `identity`, the token itself. So tokens use different numbers of
    real experts. MoE++ (Jin et al. 2024, arXiv 2410.07348) calls these zero experts and copy experts. LongCat-Flash
    (arXiv 2509.01322) has zero-computation experts that return the token.

    Args:
        params: the weights of the E real experts (see `routed_ffn`).
        x: [T, d].
        expert: [T, k] integers >= 0; experts E and above are null experts.
        gate: [T, k].
        capacity_factor: the factor of the real experts (see `routed_ffn`). In the capacity, T counts the tokens with at
            least one real expert.
        identity: whether null experts return the token instead of 0.
        order: see `routed_ffn`.
        activation: see `routed_ffn`.

    Returns:
        `RoutedOutput`. `dropped_fraction` counts only assignments to real experts. It is 0 if there are none.

    Raises:
        ValueError: `routed_ffn` raises this error.

    Example:
        Expert 0 returns the positive part of its input. Experts 1 and 2 are null experts:

        >>> params = {"up": np.ones((1, 1, 1)), "down": np.ones((1, 1, 1))}
        >>> x, expert, gate = np.array([[9.0], [10.0]]), np.array([[0, 1], [1, 2]]), np.array([[0.5, 0.25], [0.5, 0.5]])
        >>> null_expert_ffn(params, x, expert, gate, activation="relu").output.ravel().tolist()
        [4.5, 0.0]
        >>> null_expert_ffn(params, x, expert, gate, identity=True, activation="relu").output.ravel().tolist()
        [6.75, 10.0]
    """
    null = expert >= len(params["up"])
    routed = RoutedOutput(np.zeros(x.shape), 0.0)
    if not null.all():
        real, options = np.where(null, 0, expert), {"order": order, "mask": ~null, "activation": activation}
        routed = routed_ffn(params, x, real, gate, capacity_factor, **options)
    if not identity:
        return routed
    share = np.where(null, gate, 0).sum(axis=1)  # [T]
    return routed._replace(output=routed.output + share[:, None] * x)
