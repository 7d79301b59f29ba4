"""Diagnostics: measure what a router has learned, from its choices.

The loss of a routed model does not show whether its router learned anything. A model whose experts all compute the same
function can have a good loss. Four measurements answer this question. The last column is the answer for a router that
learned nothing:

    AGREEMENT     does evaluation choose the experts that training chooses?       by chance: k/E
    ENTROPY       how undecided is the router between its experts?                undecided: log E nats
    INFORMATION   how much does the expert say about the token?                   nothing: 0 bits
    EXCHANGE      how much worse is the loss when experts change places?          no worse: a ratio of 1

MATCHED AGREEMENT measures whether the experts of two models (such as two seeds) take the same tokens. The order of the
experts does not matter. `balance.load_statistics` measures how even the loads are. `excess` shows which labels an
expert gets more often than expected, and `faults` detects dead experts, collapse and uniform routing.

No single measurement is enough, so read them together. HASH has agreement 1 and much information, but learned nothing.
A random router that never changes has agreement 1 too. A router whose experts all compute the same function can still
have low entropy.

These diagnostics are our choice. The paper has none of them. Nothing here routes or carries a gradient.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np

from .balance import _real_rows, expert_counts
from .notation import check_finite
from .routers.base import balanced_assignment

CHANCE = 0.05
"""An agreement counts as random if it exceeds k/E by less than CHANCE · (1 − k/E). Our choice."""

SAME = 1.001
"""Experts are interchangeable if exchanging them multiplies the loss by less than this. Our choice."""


ALL = 0.99
"""A router is collapsed if k experts take at least this share of the choices, and uniform if its entropy is at least
this share of log E. Our choice."""

ENOUGH = 10
"""An expert without a token counts as dead only if the mean number of choices per expert is at least this. With a mean
of 10, a random router leaves an expert empty with probability e^-10. Our choice."""


class Information(NamedTuple):
    """The information that the expert of a token gives about a label of the token, such as its id or its position."""

    bits: float  # estimated mutual information of label and expert; too large for few tokens
    baseline: float  # the same estimate with shuffled labels, mean over the shuffles
    spread: float  # standard deviation of the estimate over the shuffles, in bits


class Matched(NamedTuple):
    """The agreement of two routers after the best matching of their experts."""

    agreement: float  # share of the choices in common after the best matching of experts, 0 to 1
    baseline: float  # mean agreement after shuffling the tokens of the second routing
    spread: float  # standard deviation over the shuffles
    partner: np.ndarray  # [E], for each expert of the first routing, the matched expert of the second
    common: np.ndarray  # [E], the number of tokens that an expert and its partner have in common


class Faults(NamedTuple):
    """The faults of a routing."""

    dead: list[int]  # experts that no token chose, although there were enough tokens
    collapsed: list[int]  # the k experts that take nearly all choices; empty without a collapse
    uniform: bool  # all experts are about equally likely for every token


def agreement(first: np.ndarray, second: np.ndarray, *, mask: np.ndarray | None = None) -> float:
    """Return the mean over tokens of the share of experts that two routings have in common.

    Args:
        first: [T, k] integers, the experts of each token, distinct within a row.
        second: [T, k] integers, the experts of the same tokens in another routing, such as in evaluation or of another
            checkpoint.
        mask: [T] bool, the real tokens; None for all.

    Returns:
        From 0 to 1. The expected value for two random routings with k of E experts is k/E.

    Raises:
        ValueError: the shapes differ, or there is no token or no choice.

    Example:
        >>> agreement(np.array([[0, 1], [2, 3]]), np.array([[1, 0], [2, 0]]))
        0.75
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"the routings have shapes {first.shape} and {second.shape}; needed: equal shapes [T, k]")
    first, second = _real_rows(first, mask), _real_rows(second, mask)
    if not first.size:
        raise ValueError(f"the routings have shape {first.shape}; needed: at least one token with one expert")
    common = [len(set(a) & set(b)) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    return sum(common) / first.size


def best_matching(count: np.ndarray) -> np.ndarray:
    """Return the permutation π [E] with the largest Σ count(e, π(e)), for integer counts [E, E].

    This is the balanced assignment of BASE, with experts instead of tokens.

    Example:
        The largest count is not part of the best matching: 9 + 0 < 8 + 7.

        >>> best_matching(np.array([[9, 8], [7, 0]])).tolist()
        [1, 0]
    """
    return balanced_assignment(np.asarray(count, float)).expert[:, 0]


def matched_agreement(
    first: np.ndarray,
    second: np.ndarray,
    num_experts: int,
    shuffles: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    search=best_matching,
) -> Matched:
    """Return the share of the choices that two routers have in common after the best matching of their experts.

    Runs with different seeds can have the same experts under other numbers. Let J(e, e') be the number of tokens with
    expert e in the first routing and e' in the second. The best matching is the permutation π with the largest Σ J(e,
    π(e)). The result is this sum divided by the mean number of choices of the two routings.

    Even for unrelated routings, the best of many permutations agrees in more than k/E of the choices, above all with
    few tokens or uneven loads. The best matchings of shuffled tokens estimate this agreement by chance.

    Args:
        first: [T, k] integers in [0, E), the experts of each token, distinct within a row; -1 for none.
        second: [T, k'] integers, the experts that another model chooses for the same tokens.
        num_experts: E of both.
        shuffles: [n, T] integers, each row a permutation of 0 to T - 1, drawn by the caller; n at least 1.
        mask: [T] bool, the real tokens; None for all. Only real tokens are then shuffled.
        search: how to find the best matching; the accelerated package passes its own.

    Returns:
        `Matched`; the agreement is 1 if the routings differ only in the numbers of the experts.

    Raises:
        ValueError: shapes do not fit, there is no choice, an expert is out of range, or a shuffle is not a permutation.

    Example:
        Experts 0, 1, 2 have become 2, 0, 1, and the last token has moved.

        >>> first, second = np.array([[0], [0], [1], [2], [2]]), np.array([[2], [2], [0], [1], [0]])
        >>> found = matched_agreement(first, second, 3, np.array([[4, 0, 1, 2, 3]]))
        >>> found.agreement, found.baseline, found.partner.tolist(), found.common.tolist()
        (0.8, 0.6, [2, 0, 1], [2, 1, 1])
    """
    first, second = _real_rows(first, mask), _real_rows(second, mask)
    if first.ndim != 2 or second.ndim != 2 or len(first) != len(second):
        raise ValueError(f"the routings have shapes {first.shape} and {second.shape}; needed: [T, k] and [T, k']")
    choices = ((first >= 0).sum() + (second >= 0).sum()) / 2
    experts = np.concatenate([first.ravel(), second.ravel()])
    if not choices or experts.max() >= num_experts or experts.min() < -1:
        raise ValueError(
            f"experts are {np.unique(experts)[:9]} in {choices:g} choices; needed: 0 to {num_experts - 1}, or -1"
        )
    _check_shuffles(shuffles, len(first))

    def best(second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = joint_counts(first, second, num_experts)
        partner = search(count)
        return partner, count[np.arange(num_experts), partner]

    shuffled = [best(second[order])[1].sum() / choices for order in np.asarray(shuffles)]
    partner, common = best(second)
    return Matched(float(common.sum() / choices), float(np.mean(shuffled)), float(np.std(shuffled)), partner, common)


def joint_counts(first: np.ndarray, second: np.ndarray, num_experts: int) -> np.ndarray:
    """Return [E, E], the number of tokens with expert e in the first routing [T, k] and e' in the second (-1 is none).

    Example:
        >>> joint_counts(np.array([[0], [1]]), np.array([[1, 0], [0, -1]]), 2).tolist()
        [[1, 1], [1, 0]]
    """
    count = np.zeros((num_experts, num_experts), int)
    for experts, partners in product(first.T, second.T):
        both = (experts >= 0) & (partners >= 0)
        np.add.at(count, (experts[both], partners[both]), 1)
    return count


def entropy(probability: np.ndarray, *, mask: np.ndarray | None = None) -> float:
    """Return the mean over tokens of the entropy of the router's probabilities, in nats.

    Args:
        probability: [T, E], at least 0; each row sums to 1.
        mask: [T] bool, the real tokens; None for all.

    Returns:
        From 0 (each token has one expert) to log E (all experts are equally likely for each token).

    Raises:
        ValueError: there is no token, or a row is not a distribution.

    Example:
        >>> entropy(np.array([[1.0, 0.0], [0.5, 0.5]])) == math.log(2) / 2
        True
    """
    probability = check_finite("probability", _real_rows(probability, mask))
    if probability.ndim != 2 or not probability.size:
        raise ValueError(f"probability has shape {probability.shape}; needed: [T, E] with at least one token")
    sums = probability.sum(axis=1)
    if probability.min() < 0 or np.abs(sums - 1).max() > 1e-3:
        raise ValueError(
            f"the smallest probability is {probability.min():g}, and the sums of rows range from {sums.min():g} to "
            f"{sums.max():g}; needed: at least 0, and sums of 1"
        )
    rows = [sum(p * math.log(1 / p) for p in row if p > 0) for row in probability.tolist()]
    return sum(rows) / len(rows)


def information(
    label: np.ndarray, expert: np.ndarray, num_experts: int, shuffles: np.ndarray, *, mask: np.ndarray | None = None
) -> Information:
    """Return the information that the expert of a token gives about a label of the token.

    This is the mutual information of a label l and an expert e over all T k choices:

        Σ p(l, e) log₂ (p(l, e) / (p(l) p(e)))

    With few tokens this estimate is too large: even a random router gets more than 0 bits. Shuffled labels estimate
    this bias; use `bits - baseline`.

    Args:
        label: [T] integers, at least 0: the id of the token, the id of the previous token, or the position.
        expert: [T, k] integers in [0, E).
        num_experts: E.
        shuffles: [n, T] integers, each row a permutation of 0 to T - 1, drawn by the caller; n at least 1.
        mask: [T] bool, the real tokens; None for all. Only real tokens are then shuffled.

    Returns:
        `Information`; `bits` is at most log₂ E.

    Raises:
        ValueError: shapes do not fit, there is no token, a number is out of range, or a shuffle is not a permutation.

    Example:
        The expert is the label modulo 2, and the label is 0, 1, 2 or 3 equally often: one bit.

        >>> label = np.array([0, 1, 2, 3])
        >>> information(label, (label % 2)[:, None], 2, np.array([[0, 1, 2, 3], [0, 2, 1, 3]])).bits
        1.0
    """
    label, expert = _real_rows(label, mask), _real_rows(expert, mask)
    if expert.ndim != 2 or not expert.size or label.shape != expert.shape[:1]:
        raise ValueError(f"labels have shape {label.shape} and experts {expert.shape}; needed: [T] and [T, k], T >= 1")
    expert_counts(expert, num_experts)  # raises if an expert is out of range
    _check_shuffles(shuffles, len(label))
    shuffled = [_mutual_information(label[order], expert, num_experts) for order in np.asarray(shuffles)]
    return Information(
        _mutual_information(label, expert, num_experts), float(np.mean(shuffled)), float(np.std(shuffled))
    )


def _check_shuffles(shuffles: np.ndarray, tokens: int) -> None:
    shuffles = np.asarray(shuffles)
    if shuffles.ndim != 2 or not len(shuffles) or (np.sort(shuffles, axis=1) != np.arange(tokens)).any():
        raise ValueError(
            f"shuffles have shape {shuffles.shape}; needed: permutations of 0 to {tokens - 1}, one per row"
        )


def _mutual_information(label: np.ndarray, expert: np.ndarray, num_experts: int) -> float:
    """Return the mutual information of labels [T] and experts [T, k] in bits, counted over the T k choices."""
    p = _counted(label, expert, num_experts)[1] / expert.size
    independent = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
    seen = p > 0
    return float(np.sum(p[seen] * np.log2(p[seen] / independent[seen])))


def _counted(label: np.ndarray, expert: np.ndarray, num_experts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the n distinct labels in order, and [n, E], the number of choices with each label and expert."""
    values, row = np.unique(label, return_inverse=True)
    count = np.zeros((len(values), num_experts))
    for choice in expert.T:
        np.add.at(count, (row, choice), 1)
    return values, count


def excess(label: np.ndarray, expert: np.ndarray, num_experts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tokens of each label at each expert, minus the number expected from the expert's load.

        excess(l, e) = count(l, e) − count(l) · count(e) / (T k)

    The labels with the largest excess characterise an expert. A ratio would favour labels that occur once.

    Args:
        label: [T] integers, such as token ids.
        expert: [T, k] integers in [0, E).
        num_experts: E.

    Returns:
        The n distinct labels in order, and [n, E]; rows and columns sum to 0.

    Raises:
        ValueError: shapes do not fit, or an expert is out of range.

    Example:
        Both tokens with label 7 go to expert 1, which has half of the choices. One was expected, so the excess is 1:

        >>> labels, more = excess(np.array([5, 5, 7, 7]), np.array([[0], [0], [1], [1]]), 2)
        >>> labels.tolist(), more.tolist()
        ([5, 7], [[1.0, -1.0], [-1.0, 1.0]])
    """
    if expert.ndim != 2 or label.shape != expert.shape[:1]:
        raise ValueError(f"labels have shape {label.shape} and experts {expert.shape}; needed: [T] and [T, k]")
    share = expert_counts(expert, num_experts) / max(1, expert.size)
    labels, count = _counted(label, expert, num_experts)
    return labels, count - count.sum(axis=1, keepdims=True) * share


def most_information(counts: np.ndarray, k: int) -> float:
    """Return the largest information, in bits, that experts with these loads can give about a label.

    The result is the entropy of the loads minus log₂ k, because a label does not decide the order of the k experts.
    HASH reaches this maximum if its choice depends only on the label.

    Args:
        counts: [E], the choices of each expert.
        k: experts per token.

    Example:
        >>> most_information(np.array([2, 2, 2, 2]), 1), most_information(np.array([2, 2, 2, 2]), 2)
        (2.0, 1.0)
    """
    share = counts[counts > 0] / counts.sum()
    return max(0.0, float(np.sum(share * np.log2(1 / share))) - math.log2(k))


def faults(counts: np.ndarray, k: int, entropy: float | None = None) -> Faults:
    """Return the faults of a routing: dead experts, a collapse, or a router that prefers no expert.

    Args:
        counts: [E], the choices of each expert.
        k: experts per token.
        entropy: the mean over tokens of the entropy of the router's probabilities, in nats; None without probabilities.

    Returns:
        `Faults`. With k = E there is no choice, so no expert is dead and there is no collapse.

    Example:
        >>> faults(np.array([60, 0, 40]), 1)
        Faults(dead=[1], collapsed=[], uniform=False)
        >>> faults(np.array([0, 100, 0]), 1, entropy=math.log(3))
        Faults(dead=[0, 2], collapsed=[1], uniform=True)
    """
    total, num_experts = int(counts.sum()), len(counts)
    busiest = sorted(range(num_experts), key=lambda e: (-counts[e], e))[:k]
    collapsed = k < num_experts and total > 0 and counts[busiest].sum() >= ALL * total
    dead = [e for e in range(num_experts) if counts[e] == 0] if total >= ENOUGH * num_experts else []
    uniform = entropy is not None and num_experts > 1 and entropy >= ALL * math.log(num_experts)
    return Faults(dead, sorted(busiest) if collapsed else [], uniform)


def exchange_experts(params: dict, order: np.ndarray) -> dict:
    """Return the parameters with permuted experts and unchanged routers.

    Divide the loss with these parameters by the original loss: the ratio measures how different the experts are. At a
    ratio of 1 all experts are interchangeable.

    Args:
        params: the tree of `transformer.parameter_shapes`, with routed blocks.
        order: [n_r, E G] integers, for each routed block a permutation: the expert to put in each place.

    Returns:
        A new tree; arrays that did not change are shared with `params`.

    Raises:
        ValueError: there is no routed block, or `order` has the wrong shape or a row that is not a permutation.

    Example:
        >>> params = {"routed_ffn": {"up": np.array([[[[1.0]], [[2.0]]]]), "down": np.array([[[[3.0]], [[4.0]]]])}}
        >>> exchange_experts(params, np.array([[1, 0]]))["routed_ffn"]["up"].ravel().tolist()
        [2.0, 1.0]
    """
    if "routed_ffn" not in params:
        raise ValueError("the model has no routed block; needed: parameters with routed_ffn")
    routed, order = dict(params["routed_ffn"]), np.asarray(order)
    shape = routed["up"].shape[:2]
    if order.shape != shape or (np.sort(order, axis=1) != np.arange(shape[1])).any():
        raise ValueError(
            f"order has shape {order.shape}; needed: a permutation of 0 to {shape[1] - 1} in {shape[0]} rows"
        )
    for name in {"up", "linear", "down"} & set(routed):
        routed[name] = routed[name][np.arange(len(order))[:, None], order]
    return {**params, "routed_ffn": routed}


def not_learned(chance: float, agreement: float | None, exchange: float | None) -> list[str]:
    """Return the signs that a router has not learned; an empty list if there are none.

    Args:
        chance: k/E, the agreement of two routings at random.
        agreement: the agreement of training and evaluation, averaged over blocks; None if not measured.
        exchange: the loss with randomly exchanged experts, divided by the original loss; None if not measured.

    Example:
        >>> not_learned(chance=1 / 16, agreement=0.064, exchange=1.2)
        ['training and evaluation choose the same expert for 6.4% of the tokens (by chance 6.2%)']
    """
    reasons = []
    if agreement is not None and agreement - chance < CHANCE * (1 - chance):
        reasons.append(
            f"training and evaluation choose the same expert for {agreement:.1%} of the tokens (by chance {chance:.1%})"
        )
    if exchange is not None and exchange < SAME:
        reasons.append(f"exchanging its experts multiplies the loss by {exchange:.4f}")
    return reasons
