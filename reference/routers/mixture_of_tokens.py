"""Mixture of Tokens: each expert processes a weighted mean of a group's tokens and divides the output among them.

Antoniak et al. 2023, "Mixture of Tokens: Continuous MoE through Cross-Example Aggregation" (arXiv 2310.15961).

A group has g tokens; for other routers this number is T.

    1. SCORE    zᵢₑ = xᵢ · cₑ, with the controller c                                  params["router"]
    2. WEIGH    wᵢₑ = exp(zᵢₑ / τ) / Σⱼ exp(zⱼₑ / τ), over the tokens of the group    `mixing_weights`
    3. MIX      mₑ = Σᵢ wᵢₑ xᵢ, one mixture for each expert
    4. RUN      yₑ = φ(mₑ · upₑ) · downₑ
    5. COMBINE  hᵢ = Σₑ vᵢₑ yₑ, with the same weights v = w or others                 `mixture_of_tokens`

There is no SELECT and no PLACE: the layer drops no token, has no capacity and needs no balance LOSS. The output is a
continuous function of all inputs, except with `one_hot`.

The redistribution weights v equal w by default (`emit_weights`). They can have a separate temperature. They can also be
a softmax over the experts for each token. Then the shares of a token sum to 1, not the shares of an expert.

Cost: an FFN without biases of width f takes 4 d f FLOPs per row. A group of g tokens gives E rows, one per expert: 4 d
f E / g per token. With f = 4 d g / E this is 16 d², the cost of a dense FFN of width 4 d. Controller, mixing and
redistribution add 2 d E per token each, 6 d E in all.

The grouping decides which tokens affect each other, in training and in evaluation:
- one position of g sequences (`expert_choice.group_by_position`): causal. The layer mixes a token with tokens at the
  same position of other sequences. So no position sees a later position of any sequence. Do not put two pieces of one
  document in a group: the start of the second piece is the future of the first piece.
- neighbouring positions of one sequence (`group_within_sequence`): NOT CAUSAL, the future leaks into the past. For
  masked objectives only.
The output for a sequence depends on the other sequences of its batch if you group by position with g > 1. The exception
is transition tuning (last point below) with a capacity that drops nothing.

Switching the mixing off:
- g = 1: every weight is 1, and a token gets Σₑ FFNₑ(x). Experts trained with groups of g then cost g times as much.
- τ → 0: each expert takes the token that it scores highest, with weight 1 (`one_hot`). This is expert choice with one
  slot per expert and gate 1; it still depends on the group.
- transition tuning: use the layer as a Switch layer and train it for some more steps. The controller becomes the
  router, and the experts stay. The parameter tree is the same: with z = x @ params["router"] and
  routing = `top_k.switch_router`(z), the layer is `experts.routed_ffn`(params, x, routing.expert, routing.gate). Tokens
  then do not affect each other.

Our choices: the tanh form of GELU, so that models differ only in routing (the paper's ReLU is an option); by default
the same weights for mixing and redistribution, at any temperature; one-hot weights for both; a `mask` for padding.
"""

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..experts import _matrices, expert_ffn
from ..notation import (
    _as_bool,
    _check_group,
    _check_logits,
    _real_tokens,
    check_finite,
    softmax,
    top_k_indices,
)

EMITS = ("mixing", "experts")
"""The axis of the softmax for the redistribution weights: the group (as in mixing) or the experts."""


class MixtureOutput(NamedTuple):
    """The result of a Mixture-of-Tokens layer for one group."""

    output: np.ndarray  # [g, d]
    weights: np.ndarray  # [g, E], share of each token in each expert's mixture; columns sum to 1 over the real tokens


def mixing_weights(
    logits: np.ndarray,
    temperature: float = 1.0,
    *,
    one_hot: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return the weight of each token in the mixture of each expert.

    Args:
        logits: [g, E], finite, or −∞ for an expert that is not available; the controller's score of each token of the
            group for each expert.
        temperature: τ > 0, a number or an array of shape []; infinity for equal shares.
        one_hot: whether each expert takes only the token with its largest logit, with weight 1. This is the limit τ →
            0. It has no gradient and ignores the temperature.
        mask: [g] bool, True for a real token; a padded token has weight 0, and the function ignores its logits.

    Returns:
        [g, E]; each column sums to 1.

    Raises:
        ValueError: a logit is NaN or +∞, a finite logit divided by τ is not finite, τ <= 0, or a mask has the wrong
            shape or is all False.

    Discontinuity: `one_hot` jumps where two tokens have the largest logit of an expert; ties go to the lower index.

    Source: Antoniak et al. 2023, the controller, which divides by τ before it subtracts the maximum.

    Example:
        >>> z = np.log([[1.0, 2.0], [3.0, 2.0]])
        >>> np.round(mixing_weights(z), 4).tolist(), np.round(mixing_weights(z, 0.5), 4).tolist()
        ([[0.25, 0.5], [0.75, 0.5]], [[0.1, 0.5], [0.9, 0.5]])
        >>> mixing_weights(z, one_hot=True).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    _check_group("logits", logits)
    _check_temperature(temperature)
    if mask is not None:
        mask = _real_tokens(mask, len(logits))
        weights = np.zeros(np.shape(logits))
        weights[mask] = mixing_weights(np.asarray(logits)[mask], temperature, one_hot=one_hot)
        return weights
    logits = _check_logits("logits", logits, 0)
    if one_hot:
        weights = np.zeros(logits.shape)
        for e, token in enumerate(top_k_indices(logits.T, 1)[:, 0]):
            weights[token, e] = logits[token, e] > -np.inf
        return weights
    with np.errstate(over="ignore"):
        divided = logits / float(temperature)
    check_finite("logits / temperature", np.where(np.isneginf(logits), 0, divided))
    some = (logits > -np.inf).any(axis=0)
    return np.where(some, softmax(np.where(some, divided, 0).T).T, 0)  # 0 for an expert that is available for no token


def emit_weights(
    logits: np.ndarray,
    temperature: float = 1.0,
    *,
    emit: str = "mixing",
    one_hot: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return the share of each expert's output that each token gets.

    Args:
        logits, temperature: see `mixing_weights`.
        emit: one of `EMITS`: "mixing" for the weights of the mixing at this temperature; "experts" for a softmax over
            the experts, vᵢₑ = exp(zᵢₑ / τ) / Σₑ′ exp(zᵢₑ′ / τ).
        one_hot: use the one-hot mixing weights and ignore `emit`.
        mask: see `mixing_weights`.

    Returns:
        [g, E]; each column sums to 1. With "experts" each row of a real token sums to 1.

    Raises:
        ValueError: `emit` is unknown, or `mixing_weights` raises this error.

    Source: Antoniak et al. 2023, the authors' code, which has separate weights for merging and emitting.

    Example:
        >>> np.round(emit_weights(np.log([[1.0, 3.0], [3.0, 2.0]]), emit="experts"), 4).tolist()
        [[0.25, 0.75], [0.6, 0.4]]
    """
    if emit not in EMITS:
        raise InputError(f"emit is {emit!r}; allowed: {', '.join(EMITS)}")
    _check_group("logits", logits)
    mixing = mixing_weights(logits, temperature, one_hot=one_hot, mask=mask)
    if emit == "mixing" or one_hot:
        return mixing
    real = np.ones(len(logits), bool) if mask is None else _as_bool(mask)
    weights = np.zeros(mixing.shape)
    weights[real] = softmax(_check_logits("logits", np.asarray(logits)[real]) / float(temperature))
    return weights


def _check_temperature(temperature):
    if np.shape(temperature) != () or not temperature > 0:
        raise InputError(f"temperature is {temperature}; one number above 0 is needed (for the limit 0, use one_hot)")


def mixture_of_tokens(
    params: dict,
    x: np.ndarray,
    temperature: float = 1.0,
    *,
    one_hot: bool = False,
    activation: str = "gelu",
    emit: str = "mixing",
    emit_temperature: float | None = None,
    mask: np.ndarray | None = None,
) -> MixtureOutput:
    """Mix the tokens of a group for each expert, and give every token its share of the experts' outputs.

    Only groups of one position of several sequences are causal (`expert_choice.group_by_position`).

    Args:
        params: {"router": [d, E], "up": [E, d, f], "down": [E, f, d]}, and for SwiGLU "linear" [E, d, f].
        x: [g, d], one group.
        temperature, one_hot: see `mixing_weights`.
        activation: one of `accounting.ACTIVATIONS`.
        emit: see `emit_weights`.
        emit_temperature: the temperature of `emit_weights`; the temperature of the mixing if None.
        mask: [g] bool, True for a real token; a padded token gets 0 and does not change the other outputs.

    Returns:
        `MixtureOutput`.

    Raises:
        ValueError: the activation is unknown, or `mixing_weights` raises this error.

    Source: Antoniak et al. 2023, "Mixture of Tokens", the layer; without the residual connection.

    Example:
        One expert, two tokens with logits 0 and log 3. The mixture is 0.25 · 0 + 0.75 · 1, the expert returns 4 · 0.75
        = 3, and the tokens get 0.25 · 3 and 0.75 · 3:

        >>> params = {"router": np.log([[3.0]]), "up": np.array([[[4.0]]]), "down": np.array([[[1.0]]])}
        >>> np.round(mixture_of_tokens(params, np.array([[0.0], [1.0]]), activation="relu").output, 4).tolist()
        [[0.75], [2.25]]
    """
    options = dict(one_hot=one_hot, activation=activation, emit=emit, emit_temperature=emit_temperature)
    if mask is not None:
        mask = _real_tokens(mask, len(x))
        alone = mixture_of_tokens(params, x[mask], temperature, **options)
        output, weights = np.zeros(x.shape), np.zeros((len(x), params["router"].shape[1]))
        output[mask], weights[mask] = alone.output, alone.weights
        return MixtureOutput(output, weights)
    # SCORE and WEIGH
    logits = x @ params["router"]
    weights = mixing_weights(logits, temperature, one_hot=one_hot)  # [g, E]
    shares = emit_weights(
        logits, temperature if emit_temperature is None else emit_temperature, emit=emit, one_hot=one_hot
    )  # [g, E]
    output = np.zeros(x.shape)
    for e in range(logits.shape[1]):
        mixture = weights[:, e] @ x  # MIX: [d]
        result = expert_ffn(**_matrices(params, e), x=mixture, activation=activation)  # RUN: [d]
        output += shares[:, e, None] * result  # COMBINE
    return MixtureOutput(output, weights)


def group_within_sequence(x: np.ndarray, group_size: int) -> np.ndarray:
    """Rearrange a batch so that each group holds `group_size` neighbouring positions of one sequence.

    NOT CAUSAL: a position sees later positions of its group. For masked objectives only. A language model that predicts
    the next token needs `expert_choice.group_by_position`.

    Args:
        x: [b, S, ...].
        group_size: positions per group; divides S.

    Returns:
        [b S / group_size, group_size, ...], sequence after sequence.

    Raises:
        ValueError: the group size does not divide S.

    Example:
        >>> group_within_sequence(np.array([["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]]), 2).tolist()
        [['a0', 'a1'], ['a2', 'a3'], ['b0', 'b1'], ['b2', 'b3']]
    """
    length = x.shape[1]
    if group_size < 1 or length % group_size:
        raise InputError(f"group_size is {group_size}; it has to divide the {length} positions of a sequence")
    return x.reshape(len(x) * length // group_size, group_size, *x.shape[2:])


def ungroup_within_sequence(grouped: np.ndarray, sequence_length: int) -> np.ndarray:
    """Undo `group_within_sequence`.

    Args:
        grouped: [b S / group_size, group_size, ...].
        sequence_length: S.

    Returns:
        [b, S, ...].

    Raises:
        ValueError: the groups do not make up whole sequences.
    """
    groups, group_size = grouped.shape[:2]
    if min(sequence_length, group_size) < 1 or sequence_length % group_size or groups * group_size % sequence_length:
        raise InputError(
            f"sequence_length is {sequence_length}; {group_size} has to divide it, and it has to divide "
            f"the {groups * group_size} tokens of the groups"
        )
    return grouped.reshape(groups * group_size // sequence_length, sequence_length, *grouped.shape[2:])
