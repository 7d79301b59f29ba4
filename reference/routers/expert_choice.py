"""Expert choice: each expert takes the C tokens it scores highest. Balance is perfect, but some tokens get no expert.

Zhou et al. 2022, "Mixture-of-Experts with Expert Choice Routing" (arXiv 2202.09368).

    1. SCORE    sₜₑ = softmax(zₜ)ₑ over the experts, or σ(zₜₑ)
    2. SELECT   expert e takes the C = ceil(c T / E) tokens with the largest sₜₑ       `expert_choice_router`
    3. PLACE    nothing to do: every expert has exactly C tokens
    4. COMBINE  hₜ = Σ over the experts e that took t of sₜₑ · FFNₑ(xₜ)                `expert_choice_ffn`

A token has from 0 to E experts. A token without an expert passes only through the residual connection. Training needs
no balance loss.

Leaks, in training and in evaluation: NOT CAUSAL within a sequence. The experts of a token depend on all tokens of its
group. In a group with several positions of one sequence, a later token can displace an earlier token. The evaluation
loss is then lower than in generation. In a group with one position of several sequences (`group_by_position`) no
position sees a later position, in training and in evaluation. The output for a sequence then depends on the other
sequences of its batch, up to the same position.

Padding: a `mask` [T] marks n real tokens. An expert takes C(n) real tokens, the capacity for n tokens. The arrays have
C(T) columns, as for a full group. Columns past C(n) repeat the expert's first token with gate 0, and count nowhere.

Our choices: C is rounded up and is at most T (as in `experts.expert_capacity` at k = 1); the sigmoid is an option.
Experts compare the logarithms of the scores, which do not underflow. Ties go to the lower token index.
"""

import numpy as np

from ..errors import InputError
from ..experts import _matrices, expert_capacity, expert_ffn
from ..notation import (
    ExpertChoice,
    _check_group,
    _check_logits,
    _real_tokens,
    log_sum_exp,
    softmax,
    top_k_indices,
)

SCORES = ("softmax", "sigmoid")
"""Ways to turn logits into scores."""


def expert_choice_router(
    logits: np.ndarray,
    capacity_factor: float = 2.0,
    *,
    score: str = "softmax",
    held: ExpertChoice | None = None,
    mask: np.ndarray | None = None,
) -> ExpertChoice:
    """Give each expert the C tokens of the group that it scores highest.

    A causal model needs groups that hold one position of several sequences (see `group_by_position`).

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z of one group.
        capacity_factor: c > 0, the mean number of experts per token; infinity sends all tokens to all experts.
        score: "softmax" over the experts, or "sigmoid".
        held: an earlier choice for the same tokens; the router reuses its tokens and computes new gates.
        mask: [T] bool, the real tokens; None for all. C follows from the number of real tokens.

    Returns:
        `ExpertChoice`.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, c <= 0, the score is unknown, or a mask
            has the wrong shape or is all False.

    Discontinuity: the selection jumps where the C-th and the next score of an expert are equal.

    Example:
        Three tokens, two experts with two slots each (1.0 · 3 / 2, rounded up). Both experts take token 0:

        >>> found = expert_choice_router(np.log([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]]), 1.0)
        >>> found.token.tolist(), np.round(found.gate, 4).tolist(), found.experts_per_token.tolist()
        ([[1, 0], [2, 0]], [[0.9, 0.6], [0.8, 0.4]], [2, 1, 1])

        Only two tokens are real, so each expert has one slot, and the second column is padding:

        >>> mask = np.array([True, False, True])
        >>> found = expert_choice_router(np.log([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]]), 1.0, mask=mask)
        >>> found.token.tolist(), np.round(found.gate, 4).tolist(), found.experts_per_token.tolist()
        ([[0, 0], [2, 2]], [[0.6, 0.0], [0.8, 0.0]], [1, 0, 1])
    """
    _check_group("logits", logits)
    if mask is not None:
        return _choice_of_real(logits, capacity_factor, score, held, _real_tokens(mask, len(logits)))
    logits = _check_logits("logits", logits)
    num_tokens, num_experts = logits.shape
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    # SELECT
    if held is None:
        capacity = expert_capacity(num_tokens, num_experts, 1, capacity_factor)
        token = top_k_indices(selection_scores(logits, score).T, capacity)  # [E, C]
        experts_per_token = np.zeros(num_tokens, dtype=np.int64)
        for e, row in enumerate(token):
            available = np.isfinite(logits[row, e])
            row[~available] = row[0] if available.any() else 0  # an empty slot, with gate 0
            for t in row[available]:
                experts_per_token[t] += 1
        held = ExpertChoice(token, None, experts_per_token)
    # COMBINE
    scores = softmax(logits) if score == "softmax" else np.exp(-np.logaddexp(0, -logits))  # or σ(z)
    taken = np.arange(held.token.shape[1]) < np.isfinite(logits).sum(axis=0)[:, None]  # the others are empty
    return held._replace(gate=np.where(taken, np.take_along_axis(scores.T, held.token, axis=1), 0))


def _choice_of_real(logits, capacity_factor, score, held, mask):
    """Return the choice for a padded group: the experts choose only among the real tokens."""
    num_tokens, num_experts = logits.shape
    real = np.flatnonzero(mask)  # number i of the real tokens is token real[i] of the group
    taken = expert_capacity(len(real), num_experts, 1, capacity_factor)
    columns = expert_capacity(num_tokens, num_experts, 1, capacity_factor)
    if held is not None:
        number = np.cumsum(mask) - 1  # [T], from token real[i] to i
        held = ExpertChoice(number[held.token[:, :taken]], None, held.experts_per_token[mask])
    choice = expert_choice_router(logits[mask], capacity_factor, score=score, held=held)
    chosen = real[choice.token]  # [E, taken]
    token = np.repeat(chosen[:, :1], columns, axis=1)  # the columns past `taken` repeat the first token, with gate 0
    token[:, :taken] = chosen
    gate = np.zeros((num_experts, columns))
    gate[:, :taken] = choice.gate
    experts_per_token = np.zeros(num_tokens, dtype=np.int64)
    experts_per_token[mask] = choice.experts_per_token
    return ExpertChoice(token, gate, experts_per_token)


def selection_scores(logits: np.ndarray, score: str) -> np.ndarray:
    """Return [T, E], the values that an expert compares: log softmax(z), or z for the sigmoid (same order)."""
    if score == "sigmoid":
        return logits
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - log_sum_exp(shifted, axis=1)[:, None]


def expert_choice_ffn(
    params: dict,
    x: np.ndarray,
    choice: ExpertChoice,
    *,
    activation: str = "gelu",
) -> np.ndarray:
    """Run each expert on the tokens that it chose, and add up the outputs of each token.

    Args:
        params: {"up": [E, d, f], "down": [E, f, d]}, and for SwiGLU "linear" [E, d, f].
        x: [T, d].
        choice: the choice for the same group.
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [T, d]; 0 for a token that no expert took.
    """
    result = np.zeros_like(x)
    for e in range(len(choice.token)):
        outputs = expert_ffn(**_matrices(params, e), x=x[choice.token[e]], activation=activation)  # [C, d]
        for t, gate, output in zip(choice.token[e], choice.gate[e], outputs, strict=True):
            result[t] += gate * output
    return result


def group_by_position(x: np.ndarray, group_size: int) -> np.ndarray:
    """Rearrange a batch so that each group holds one position of `group_size` sequences.

    Loop or `vmap` over the first axis, one group at a time. With group_size 1 each token is alone in its group, and
    every expert takes it.

    Args:
        x: [b, S, ...].
        group_size: sequences per group; divides b.

    Returns:
        [b S / group_size, group_size, ...]: for each set of neighbouring sequences, position after position.

    Raises:
        ValueError: the group size does not divide b.

    Example:
        Four sequences of two positions, in groups of two:

        >>> group_by_position(np.array([["a0", "a1"], ["b0", "b1"], ["c0", "c1"], ["d0", "d1"]]), 2).tolist()
        [['a0', 'b0'], ['a1', 'b1'], ['c0', 'd0'], ['c1', 'd1']]
    """
    batch, length = x.shape[:2]
    if group_size < 1 or batch % group_size:
        raise InputError(f"group_size is {group_size}; it has to divide the {batch} sequences of the batch")
    sets = x.reshape(batch // group_size, group_size, length, *x.shape[2:])  # [sets of sequences, g, S, ...]
    return sets.swapaxes(1, 2).reshape(batch * length // group_size, group_size, *x.shape[2:])


def ungroup_by_position(grouped: np.ndarray, sequence_length: int) -> np.ndarray:
    """Undo `group_by_position`.

    Args:
        grouped: [b S / group_size, group_size, ...].
        sequence_length: S.

    Returns:
        [b, S, ...].

    Raises:
        ValueError: the sequence length does not divide the number of groups.
    """
    groups, group_size = grouped.shape[:2]
    if sequence_length < 1 or groups % sequence_length:
        raise InputError(f"sequence_length is {sequence_length}; it has to divide the number of groups, {groups}")
    sets = grouped.reshape(groups // sequence_length, sequence_length, group_size, *grouped.shape[2:])  # [sets, S, g]
    return sets.swapaxes(1, 2).reshape(groups * group_size // sequence_length, sequence_length, *grouped.shape[2:])
