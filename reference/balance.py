"""Balance: losses and a bias that keep the experts equally loaded, and statistics of the load.

A learned router tends to send all tokens to a few experts. There are three remedies for top-k token choice
(`routers.top_k`): a balance loss, a loss that keeps logits small, and a bias.

    1. SHARE      shareₑ = share of the assignments that expert e received              no gradient
    2. SCORE      probₑ = mean over tokens of the probability of expert e               carries the gradient
    3. LOSS       E Σₑ shareₑ · probₑ                                                   `auxiliary_loss`
                  the same loss of each sequence, mean over sequences                   `sequence_loss`
                  the loss of a batch that is computed in micro-batches                 `merge_micro_batches`
                  mean over tokens of (log Σₑ exp zₜₑ)²                                 `z_loss`
    or, instead of a loss, a bias that affects only the choice:
                  bₑ ← bₑ + u · sign(mean count − countₑ)                               `update_bias`
                  with a target for the number of real experts per token              `update_budget_bias`

The balance loss comes from the Switch Transformer (Fedus et al. 2021), with weight 0.01. The router z-loss usually has
weight 0.001. The bias comes from Wang et al. 2024 (arXiv 2408.15664), with u = 0.001. The functions return the losses
without their weights; the caller multiplies by the weight.

The auxiliary loss is 1 when the shares are equal, for any probabilities (E Σ (1/E) probₑ = Σ probₑ = 1). It is also 1
when the mean probabilities are equal, for any shares. Its derivative with respect to probₑ is E shareₑ. So training
lowers the probability of an expert in proportion to its share.

Libraries scale the auxiliary loss differently. `DIALECTS` names four definitions, `auxiliary_loss` lists their
formulas, and `value_at_balance` returns the value of each at balance. At k = 1 the first three equal the loss of
Switch, which writes f and P for share and prob. The dialect "gshard" is the printed loss of Lepikhin et al. 2020
(Algorithm 1, line 13). Their code, in mesh-tensorflow and lingvo, multiplies it by E² and so computes "first_choice".
The default is our choice, because one weight then fits every k.

The shares may count more tokens than the probabilities, such as the tokens of all devices. Pass such shares as `held`.
The loss balances the tokens of one group. A loss per sequence is stricter than a loss per batch. For a loss over the
global batch (Qwen3), call `auxiliary_loss` with the shares of that batch, or `merge_micro_batches`.

Padding: a function with a `mask` [T] bool, True for a real token, returns the result for the real tokens alone. It
ignores the other rows, even NaN. `update_bias` and `load_statistics` take counts, which contain no padding.

An expert with only logits of −∞ has share and probability 0, and E counts the other experts: pass this E to
`value_at_balance`. A function with the argument `expert` rejects experts that are not available. For `update_bias`, a
bias of −∞ says the same; to `load_statistics`, pass the loads of the available experts.

Not in this file: noise on the logits. These functions do not route, so they leak no later token. The counts of one
batch update the bias for the next batch.
"""

import math
from typing import NamedTuple

import numpy as np

from .errors import InputError
from .notation import (
    _available_experts,
    _check_group,
    _check_k,
    _check_logits,
    _real_tokens,
    check_finite,
    log_sum_exp,
    softmax,
)
from .routers.top_k import SCORES, _log_scores

DIALECTS = ("assignments", "tokens", "first_choice", "gshard")
"""Ways to count shareₑ and to scale the loss."""

RECENTRE = ("none", "step", "bias")
"""Options of `update_bias`: subtract no mean, the mean of the signs of one step, or the mean of the new bias."""


class AuxiliaryLoss(NamedTuple):
    """The auxiliary loss and its two factors. Pass the tuple to a later call as `held` to reuse its `share`."""

    loss: float  # [], without its weight
    share: np.ndarray  # [E], shareₑ, counted as in the dialect; a constant for the gradient
    probability: np.ndarray  # [E], probₑ, the mean over tokens of the probability of each expert


class LoadStatistics(NamedTuple):
    """Statistics of how evenly the tokens load the experts."""

    max_over_mean: float  # [], largest load divided by mean load: 1 at balance, E if one expert has all tokens
    entropy: float  # [], entropy of the shares in nats: log E at balance, 0 if one expert has all tokens
    idle: float  # [], share of the experts that received nothing


def _real_rows(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the rows of [T, ...] that are real tokens; all of them without a mask."""
    return values if mask is None else values[_real_tokens(mask, len(values))]


def expert_counts(expert: np.ndarray, num_experts: int, *, mask: np.ndarray | None = None) -> np.ndarray:
    """Return [E] integers, the number of assignments to each expert.

    Args:
        expert: [T, k] integers in [0, E).
        num_experts: E.
        mask: [T] bool, the real tokens; None for all.

    Raises:
        ValueError: an expert index is out of range, or the mask has the wrong shape or no real token.

    Example:
        >>> expert_counts(np.array([[0, 2], [0, 1]]), 4).tolist()
        [2, 1, 1, 0]
        >>> expert_counts(np.array([[0, 2], [0, 1]]), 4, mask=np.array([False, True])).tolist()
        [1, 1, 0, 0]
    """
    expert = _real_rows(expert, mask)
    if expert.size and not (0 <= expert.min() and expert.max() < num_experts):
        raise InputError(f"expert indices range from {expert.min()} to {expert.max()}; allowed: 0 to {num_experts - 1}")
    counts = np.zeros(num_experts, dtype=np.int64)
    for e in expert.ravel():
        counts[e] += 1
    return counts


def mean_probability(
    logits: np.ndarray,
    score: str = "softmax",
    *,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return [E], the mean over tokens of the probability of each expert. The entries sum to 1.

    Other scores than the softmax are divided by their sum in log space, such as softmax(log σ(z)). The sum has no added
    epsilon, so training cannot lower the loss by making all scores tiny.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        score: the function that turns logits into probabilities, one of `SCORES`.
        mask: [T] bool, the real tokens; None for all.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, the score is unknown, or a mask has the
            wrong shape or is all False.

    Example:
        >>> mean_probability(np.log([[0.5, 0.5], [0.25, 0.75]])).tolist()
        [0.375, 0.625]
    """
    _check_group("logits", logits)
    logits = _check_logits("logits", _real_rows(logits, mask))
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    return softmax(_log_scores(logits, score)).mean(axis=0)


def auxiliary_loss(
    logits: np.ndarray,
    expert: np.ndarray,
    *,
    dialect: str = "assignments",
    score: str = "softmax",
    held: AuxiliaryLoss | None = None,
    mask: np.ndarray | None = None,
) -> AuxiliaryLoss:
    """Return the balance loss, which is large when experts with many tokens also have a high probability.

    Only probₑ, not shareₑ, has a gradient by the logits (Fedus et al. 2021). probₑ is the mean over tokens of the
    probability of expert e (`mean_probability`):

        dialect           shareₑ counts                divided by    loss                    at balance
        "assignments"     all k choices                T k           E Σ shareₑ probₑ        1
        "tokens"          all k choices                T             E Σ shareₑ probₑ        k
        "first_choice"    the first choice only        T             E Σ shareₑ probₑ        1
        "gshard"          the first choice only        T             Σ shareₑ probₑ / E      1 / E²

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        expert: [T, k] integers, the chosen experts, first choice first; dropped choices are included.
        dialect: how to count shareₑ and scale the loss, see the table.
        score: the function that turns logits into probabilities, "softmax" or "sigmoid" (divided by their sum).
        held: an earlier result; the loss uses its `share` instead of the share of `expert`.
        mask: [T] bool, the real tokens; None for all.

    Returns:
        `AuxiliaryLoss`.

    Raises:
        ValueError: an argument is out of its range, an expert is not available, or a mask has the wrong shape or is all
            False.

    Example:
        Two tokens in balance, then three tokens out of balance with a loss below 1:

        >>> round(auxiliary_loss(np.log([[0.9, 0.1], [0.2, 0.8]]), np.array([[0], [1]])).loss, 4)
        1.0
        >>> z = np.log([[0.51, 0.49], [0.51, 0.49], [0.01, 0.99]])
        >>> round(auxiliary_loss(z, np.array([[0], [0], [1]])).loss, 4)
        0.8956
    """
    _check_dialect(dialect)
    logits, expert = _real_rows(logits, mask), _real_rows(expert, mask)
    probability = mean_probability(logits, score)
    available = _available_experts(logits)
    num_experts = len(probability) if available is None else len(available)
    if held is None:
        share = _share(expert, len(probability), dialect)
        if np.isneginf(np.take_along_axis(np.asarray(logits, float), expert, axis=1)).any():
            raise InputError("expert: an expert is chosen whose logit is -inf; choose only available experts")
    else:
        share = held.share
    scale = 1 / num_experts if dialect == "gshard" else num_experts
    return AuxiliaryLoss(float(scale * (share * probability).sum()), share, probability)


def merge_micro_batches(parts: AuxiliaryLoss, tokens: np.ndarray, *, dialect: str = "assignments") -> AuxiliaryLoss:
    """Return the `auxiliary_loss` of a whole batch from those of its micro-batches.

    A mean of the losses of micro-batches balances each micro-batch. The loss of the batch multiplies the mean shares by
    the mean probabilities. Only these [E] numbers cross from one micro-batch to the next. So it is exact to merge first
    and to differentiate then, with recomputation of each micro-batch, too: the shares carry no gradient. A counter that
    a forward pass adds to would count a recomputed micro-batch twice.

    If a framework differentiates one micro-batch at a time, run all of them without a gradient first. Then pass the
    merged result as `held` to the `auxiliary_loss` of each, and take the mean weighted by tokens.

    Args:
        parts: `share` and `probability` [m, E] of m micro-batches, with all experts available. `loss` is not used.
        tokens: [m], the real tokens of each micro-batch. A micro-batch without one is ignored.
        dialect: see `auxiliary_loss`.

    Returns:
        `AuxiliaryLoss`.

    Raises:
        ValueError: the dialect is unknown, a number of tokens is negative, or all are 0.

    Example:
        Each micro-batch uses one expert, with probability 0.9, so the mean of the losses is 2 · 0.9. The batch is even:

        >>> z = np.log([[[0.9, 0.1]], [[0.1, 0.9]]])
        >>> losses = [auxiliary_loss(z[i], np.array([[i]])) for i in range(2)]
        >>> parts = AuxiliaryLoss(*(np.stack(field) for field in zip(*losses)))
        >>> round(float(parts.loss.mean()), 4), round(merge_micro_batches(parts, np.array([1, 1])).loss, 4)
        (1.8, 1.0)

    Source: the loss over the global batch of Qwen3 (Qiu et al. 2025, arXiv 2501.11873).
    """
    _check_dialect(dialect)
    tokens = np.asarray(tokens)
    if not (tokens >= 0).all() or not tokens.any():
        raise InputError(f"tokens are {tokens.tolist()}; needed: at least 0, not all 0")
    real, weights = tokens > 0, tokens[tokens > 0] / tokens.sum()
    share, probability = (weights @ np.asarray(field)[real] for field in (parts.share, parts.probability))
    scale = 1 / len(share) if dialect == "gshard" else len(share)
    return AuxiliaryLoss(float(scale * (share * probability).sum()), share, probability)


def sequence_loss(
    logits: np.ndarray,
    expert: np.ndarray,
    sequence_length: int,
    *,
    dialect: str = "assignments",
    score: str = "softmax",
    held: AuxiliaryLoss | None = None,
    mask: np.ndarray | None = None,
) -> AuxiliaryLoss:
    """Return the mean over sequences of the `auxiliary_loss` of each sequence.

    With sigmoid scores this is the complementary loss of DeepSeek-V3 (arXiv 2412.19437, equations 17 to 20; weight
    1e-4). DeepSeek-V3 chooses experts with a bias and groups, but its shareₑ counts the k largest scores without bias
    and groups. To get that loss, pass the experts with the k largest scores as `expert`. The loss can be large for a
    batch that is balanced as a whole (see the example of the reference).

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z, sequence by
            sequence.
        expert: [T, k] integers, the chosen experts, first choice first; dropped choices are included.
        sequence_length: S, which divides T.
        dialect, score: see `auxiliary_loss`.
        held: an earlier result; the loss uses its `share` instead of the share of `expert`.
        mask: [T] bool, the real tokens; None for all. The mean excludes sequences without a real token.

    Returns:
        `AuxiliaryLoss` with the share and the probability of each sequence, [T / S, E]; both are 0 for a sequence
        without a real token.

    Raises:
        ValueError: S does not divide T, or `auxiliary_loss` raises this error.

    Example:
        Two sequences of two tokens. Each sequence uses only one expert, so both losses are 2 · 0.9 = 1.8. All four
        tokens together are in balance:

        >>> z, expert = np.log([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]), np.array([[0], [0], [1], [1]])
        >>> round(sequence_loss(z, expert, 2).loss, 4), round(auxiliary_loss(z, expert).loss, 4)
        (1.8, 1.0)
    """
    _check_group("logits", logits)
    num_tokens, num_experts = logits.shape
    number = _number_of_sequences(num_tokens, sequence_length)
    real = np.ones(num_tokens, bool) if mask is None else _real_tokens(mask, num_tokens)
    losses, share, probability = [], np.zeros((number, num_experts)), np.zeros((number, num_experts))
    for i in range(number):
        rows = slice(i * sequence_length, (i + 1) * sequence_length)
        if real[rows].any():
            held_here = None if held is None else held._replace(share=held.share[i])
            options = {"held": held_here, "mask": real[rows]}
            balance = auxiliary_loss(logits[rows], expert[rows], dialect=dialect, score=score, **options)
            losses.append(balance.loss)
            share[i], probability[i] = balance.share, balance.probability
    return AuxiliaryLoss(sum(losses) / len(losses), share, probability)


def _number_of_sequences(num_tokens, sequence_length):
    """Return T / S, which must be whole."""
    if sequence_length < 1 or num_tokens % sequence_length:
        raise InputError(f"sequence_length is {sequence_length}; it has to divide the number of tokens, {num_tokens}")
    return num_tokens // sequence_length


def _share(expert, num_experts, dialect):
    """Return shareₑ of the dialect, [E]."""
    _check_choices(expert)
    num_tokens, k = expert.shape
    if dialect == "assignments":
        return expert_counts(expert, num_experts) / (num_tokens * k)
    if dialect == "tokens":
        return expert_counts(expert, num_experts) / num_tokens
    return expert_counts(expert[:, :1], num_experts) / num_tokens


def _check_choices(expert):
    if not expert.size:
        raise InputError(f"expert has shape {expert.shape}; [T, k] with at least one choice is needed")


def _check_dialect(dialect):
    if dialect not in DIALECTS:
        raise InputError(f"dialect is {dialect!r}; allowed: {', '.join(DIALECTS)}")


def value_at_balance(num_experts: int, k: int, dialect: str = "assignments") -> float:
    """Return the value of `auxiliary_loss` when every expert has the same share.

    Args:
        num_experts: E.
        k: experts per token.
        dialect: "assignments", "tokens", "first_choice" or "gshard" (see `auxiliary_loss`).

    Raises:
        ValueError: the dialect is unknown, or there is no expert.

    Example:
        >>> [value_at_balance(4, 2, dialect) for dialect in DIALECTS]
        [1.0, 2.0, 1.0, 0.0625]
    """
    _check_dialect(dialect)
    _check_k(1, num_experts)
    if dialect == "tokens":
        return float(k)
    if dialect == "gshard":
        return 1 / num_experts**2
    return 1.0


def z_loss(logits: np.ndarray, *, mask: np.ndarray | None = None) -> float:
    """Return the mean over tokens of (log Σₑ exp zₜₑ)², which keeps the logits small.

    A constant added to a row changes this loss but not the softmax. The usual weight is 0.001.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        mask: [T] bool, the real tokens; None for all.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, or a mask has the wrong shape or is all
            False.

    Example:
        >>> z_loss(np.log([[0.5, 0.5], [1.0, 3.0]])) == math.log(4) ** 2 / 2
        True
    """
    _check_group("logits", logits)
    logits = _check_logits("logits", _real_rows(logits, mask))
    return float((log_sum_exp(logits, axis=1) ** 2).mean())


def update_bias(
    bias: np.ndarray,
    counts: np.ndarray,
    *,
    rate: float = 1e-3,
    recentre: str = "none",
) -> np.ndarray:
    """Return the bias of the next step: higher for experts below the mean load, lower for experts above it.

    The function compares the integers E countₑ and Σ count, so it recognises balance exactly. With rounded shares the
    bias would never stop moving. The bias affects only the choice, never a gate, and has no gradient. Start it at 0,
    save it with the weights, and do not update it in evaluation.

    Wang et al. 2024 (arXiv 2408.15664). A constant added to the bias changes no choice. With the plain rule the mean of
    the bias drifts, because the signs of a step need not sum to 0. `recentre` stops the drift.

    Args:
        bias: [E]; −∞ for an expert that is not available: it stays −∞, and E counts the other experts.
        counts: [E] integers >= 0, assignments over the whole batch (all devices).
        rate: u >= 0; with 0 only recentring changes the bias.
        recentre: subtract no mean ("none"), the mean of the signs of this step ("step"), or the mean of the new bias
            ("bias").

    Returns:
        [E].

    Raises:
        ValueError: the counts are not integers >= 0, the rate is negative or NaN, or `recentre` is unknown.

    Example:
        >>> update_bias(np.zeros(4), np.array([5, 3, 0, 4]), rate=1.0).tolist()
        [-1.0, 0.0, 1.0, -1.0]
        >>> update_bias(np.zeros(4), np.array([5, 3, 0, 4]), rate=1.0, recentre="step").tolist()
        [-0.75, 0.25, 1.25, -0.75]
    """
    bias, counts = np.array(bias, dtype=np.float64), np.asarray(counts)
    available = ~np.isneginf(bias)
    if not available.all():
        bias[available] = update_bias(bias[available], counts[available], rate=rate, recentre=recentre)
        return bias
    check_finite("bias", bias)
    if not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise InputError("counts have to be integers of at least 0")
    if not rate >= 0:
        raise InputError(f"rate is {rate}; it has to be at least 0")
    if recentre not in RECENTRE:
        raise InputError(f"recentre is {recentre!r}; allowed: {', '.join(RECENTRE)}")
    total = sum(int(count) for count in counts)
    step = np.array([np.sign(total - len(counts) * int(count)) for count in counts], dtype=np.float64)
    if recentre == "step":
        step = step - step.mean()
    bias = bias + rate * step
    return bias - bias.mean() if recentre == "bias" else bias


def update_budget_bias(
    bias: np.ndarray, counts: np.ndarray, num_real: int, real_share: float, *, rate: float = 1e-3
) -> np.ndarray:
    """Return the bias of the next step for a router with zero-computation experts (`experts.zero_computation`).

    The bias of a real expert changes by u (s / E − countₑ / Σ count), for the target s of the share of real choices and
    E real experts. The bias of the other experts stays. So the real experts together approach their share s, and each
    approaches s / E.

    Source: LongCat-Flash (arXiv 2509.01322), section 2.1.1; s is their K_e / K.

    Args:
        bias: [E + Z]; −∞ for an expert that is not available: it stays −∞, and E counts the other real experts.
        counts: [E + Z] integers >= 0, assignments over the whole batch, at least one.
        num_real: the number of real experts, which come first.
        real_share: s, 0 to 1.
        rate: u >= 0.

    Returns:
        [E + Z].

    Raises:
        ValueError: the share is not between 0 and 1, or the rate is negative or NaN.

    Example:
        Half of the choices should go to the two real experts. Expert 0 has its quarter, expert 1 has nothing:

        >>> update_budget_bias(np.zeros(3), np.array([2, 0, 6]), 2, 0.5, rate=1.0).tolist()
        [0.0, 0.25, 0.0]
    """
    _check_budget(real_share, rate)
    bias = np.array(bias, dtype=np.float64)
    real = np.arange(len(bias)) < num_real
    number = np.sum(real & ~np.isneginf(bias))
    return np.where(real, bias + rate * (real_share / max(number, 1) - counts / np.sum(counts)), bias)


def _check_budget(real_share, rate):
    if not 0 <= real_share <= 1:
        raise InputError(f"real_share is {real_share}; it has to be between 0 and 1")
    if isinstance(rate, int | float) and not rate >= 0:
        raise InputError(f"rate is {rate}; it has to be at least 0")


def load_statistics(load: np.ndarray) -> LoadStatistics:
    """Return statistics of how evenly the tokens load the experts.

    Args:
        load: [E], counts or shares, at least 0, not all 0.

    Returns:
        `LoadStatistics`.

    Raises:
        ValueError: the loads are not [E], a load is negative or not finite, or all are 0.

    Example:
        >>> found = load_statistics(np.array([2, 2, 0, 0]))
        >>> found.max_over_mean, found.entropy == math.log(2), found.idle
        (2.0, True, 0.5)
    """
    load = check_finite("load", load)
    if load.ndim != 1 or not load.size:
        raise InputError(f"load has shape {load.shape}; [E] with at least one expert is needed")
    if load.min() < 0 or load.sum() == 0:
        raise InputError(f"the loads are at least {load.min():g}, with sum {load.sum():g}; needed: >= 0, not all 0")
    share = load / load.sum()
    entropy = sum(s * math.log(1 / s) for s in share if s > 0)
    return LoadStatistics(float(share.max() * len(share)), float(entropy), float((load == 0).mean()))
