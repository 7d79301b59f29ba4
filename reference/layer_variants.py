"""A variant of `experts.routed_ffn`: hₜ = Σⱼ y of gate(t, j) · xₜ at its j-th expert. `transformer` does not use it."""

import numpy as np

from .experts import _check_ffn, _matrices, expert_ffn


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

        >>> from routelaws.reference.experts import routed_ffn
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
