"""RL-R: the router is a policy over the experts and learns with REINFORCE.

Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169). The input of the block is the
state, the expert is the action, and the reward is the log-probability of the next token.

    1. SCORE    zₜₑ = xₜ · wₑ                                                            (the caller)
                π = softmax(z), with a nucleus only over the most probable experts               `log_policy`
    2. SELECT   training:   an expert drawn from π: the largest log πₜₑ + noise         `reinforce_router`
                evaluation: the expert with the largest zₜₑ
    3. PLACE    with a capacity, if the caller sets one                                 (`experts`)
    4. COMBINE  gate = 1: the output is not scaled by the probability
    5. LOSS     terms added to the cross-entropy of the model                            `policy_terms`

The gate is a constant, so the cross-entropy gives the router no gradient. REINFORCE gives the gradient of an
expectation over drawn experts: ∇ mean(r) = mean(r ∇ log π(e)), where means are over draws. For any baseline value(x)
that does not depend on the drawn expert, mean(value(x) ∇ log π(e)) = 0. With the reward rₜ = log p(next token) and the
advantage aₜ = rₜ − value(xₜ),

    policy    −mean aₜ log π(eₜ | xₜ)        a is a constant: the gradient goes through log π
    baseline   mean (rₜ − value(xₜ))²        a small network (`state_value`); r is a constant
    entropy    mean of −Σₑ πₜₑ log πₜₑ       it is subtracted: more entropy, less loss
    balance    the loss of `balance.auxiliary_loss`, 1 when all experts have the same load

Credit assignment. In the usual reading of the paper, each choice gets the reward of its own token. This gives the true
gradient if no choice affects other tokens. A choice also changes the rewards of later tokens if attention follows the
routed layer. The gradient is then biased. The sum of the rewards from t to the end of the sequence (`reward_to_go`) is
unbiased in both cases, but has more variance.

For several experts per token the program draws without replacement, in order. The k largest of log π + Gumbel noise are
exactly such a draw. The probability of a draw follows the Plackett-Luce model: each step draws from the policy over the
remaining experts.

By design, training draws the experts, and evaluation takes the most probable experts. Both are causal: the experts of a
token depend on that token alone (a capacity and the balance loss also depend on other tokens). The reward uses the next
token, but only in the loss.

From the paper: the reward, the constant gate and one expert per token. The parameter counts of the released table show
the baseline: d → d/8 → 1 without biases, in every routed block. The rest is our choice (docs/choices.md): the balance
loss, and the weights of policy, baseline, entropy and balance (1e-2, 1e-2, 0, 1e-2); ReLU in the baseline; the same
reward for all routed blocks, and the sum of their terms; greedy evaluation; k > 1 with gate 1/k, the mean of the
experts; the options nucleus and reward-to-go.
"""

from typing import NamedTuple

import numpy as np

from ..balance import auxiliary_loss, expert_counts
from ..errors import InputError
from ..notation import (
    Routing,
    _available_experts,
    _check_group,
    _check_k,
    _check_logits,
    _real_tokens,
    _route_available,
    _route_real_tokens,
    check_finite,
    log_sum_exp,
    softmax,
    top_k_indices,
)


class PolicyTerms(NamedTuple):
    """The term that a routed block adds to the training loss, and its parts, each without its weight."""

    loss: float  # [], policy_weight policy + baseline_weight baseline − entropy_weight entropy + balance_weight balance
    policy: float  # [], −mean of advantage times log-probability
    baseline: float  # [], mean squared difference of reward and value
    entropy: float  # [], mean over tokens, in nats
    balance: float  # [], 1 when all experts have the same load
    advantage: np.ndarray  # [T], the advantage in the policy term; a constant for the gradient; 0 for padding


def reinforce_router(
    logits: np.ndarray,
    k: int = 1,
    *,
    gumbel: np.ndarray | None = None,
    nucleus: float = 1.0,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Draw the experts of each token from its policy, or take its most probable experts.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        gumbel: [T, E], finite, standard Gumbel noise (−log(−log u) of uniforms u); None chooses greedily.
        nucleus: see `log_policy`.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.
        mask: [T] bool, True for a real token; None for all.

    Returns:
        `Routing`; `gate` is 1/k, and `plan` is π / T. In training π is the distribution of the first choice.

    Raises:
        ValueError: an argument is out of its range or has the wrong shape, no token is real, or fewer than k experts
            may be chosen.

    Discontinuity: the selection jumps where two sums of log-probability and noise are equal (without noise: two
    logits); ties go to the lower index.

    Source: Clark et al. 2022 for k = 1 in training; the rest is our choice.

    Example:
        The policy prefers expert 0; the noise of the second token favours expert 1.

        >>> z = np.log([[3.0, 1.0], [3.0, 1.0]])
        >>> found = reinforce_router(z, gumbel=np.array([[0.0, 0.0], [0.0, 2.0]]))
        >>> found.expert.ravel().tolist(), found.gate.ravel().tolist(), np.round(found.plan, 4).tolist()
        ([0, 1], [1.0, 1.0], [[0.375, 0.125], [0.375, 0.125]])
        >>> reinforce_router(z).expert.ravel().tolist()
        [0, 0]
    """
    _check_group("logits", logits)
    options = dict(k=k, nucleus=nucleus)
    if mask is not None:
        per_token = {"gumbel": gumbel}
        return _route_real_tokens(reinforce_router, mask, logits, held=held, per_token=per_token, **options)
    _check_k(k, np.shape(logits)[1])
    logits = _check_logits("logits", logits, k, held=held)
    available = _available_experts(logits)
    if available is not None:
        options |= dict(per_expert={"gumbel": gumbel})
        return _route_available(reinforce_router, available, logits, held=held, **options)
    # SELECT
    log_pi = log_policy(logits, k, nucleus)  # [T, E]
    num_tokens, num_experts = log_pi.shape
    if held is None:
        if gumbel is None:
            expert = top_k_indices(logits, k)  # [T, k]
        else:
            _check_shape("gumbel", gumbel, log_pi.shape)
            expert = top_k_indices(log_pi + check_finite("gumbel", gumbel), k)
        load = expert_counts(expert, num_experts) / (num_tokens * k)
        plan = np.exp(log_pi) / num_tokens
        held = Routing(expert, None, load, plan, np.abs(num_experts * plan.sum(axis=0) - 1).max())
    # COMBINE
    return held._replace(gate=np.full((num_tokens, k), 1 / k))


def log_policy(logits: np.ndarray, k: int = 1, nucleus: float = 1.0) -> np.ndarray:
    """Return the logarithm of the policy: log softmax over the nucleus of each token, −∞ outside.

    The nucleus is the smallest set of most probable experts with mass at least `nucleus` and at least k members. The
    set is a constant for the gradient; at nucleus = 1 it contains all experts.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        k: experts per token, 1 <= k <= E.
        nucleus: the probability mass to keep, 0 < nucleus <= 1.

    Returns:
        [T, E]; exp of a row sums to 1.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, k or the nucleus is out of range, or
            fewer than k experts are available.

    Discontinuity: an expert enters or leaves the nucleus where the mass of the more probable experts passes `nucleus`.
    Ties go to the lower index.

    Example:
        A nucleus of 0.5 needs experts 0 and 2, which get 4/7 and 3/7. With k = 3 it also has expert 1:

        >>> z = np.log([[4.0, 2.0, 3.0, 1.0]])
        >>> np.round(np.exp(log_policy(z, nucleus=0.5)), 4).tolist()
        [[0.5714, 0.0, 0.4286, 0.0]]
        >>> np.round(np.exp(log_policy(z, k=3, nucleus=0.5)), 4).tolist()
        [[0.4444, 0.2222, 0.3333, 0.0]]
    """
    _check_group("logits", logits)
    _check_k(k, logits.shape[1])
    logits = _check_logits("logits", logits, k)
    inside = _nucleus(logits, k, nucleus)
    log_pi = np.full(logits.shape, -np.inf)
    for t, members in enumerate(inside):
        log_pi[t, members] = logits[t, members] - log_sum_exp(logits[t, members], axis=0)
    return log_pi


def _nucleus(logits, k, nucleus):
    """Return [T, E] bool, which experts belong to the nucleus."""
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    if not 0 < nucleus <= 1:
        raise InputError(f"nucleus is {nucleus}; it has to be above 0 and at most 1")
    inside = np.ones(logits.shape, dtype=bool)
    if nucleus == 1:  # the cumulative sum may round to 1 before the last expert
        return inside
    order = top_k_indices(logits, num_experts)
    for t, probability in enumerate(softmax(logits)):
        mass = 0.0
        for rank, e in enumerate(order[t]):
            inside[t, e] = rank < k or mass < nucleus
            mass += probability[e]
    return inside


def log_probability(logits: np.ndarray, expert: np.ndarray, nucleus: float = 1.0) -> np.ndarray:
    """Return the log-probability of drawing these experts in this order, without replacement.

        Σⱼ log ( exp zₜ,ₑⱼ / Σ over the experts of the nucleus that are left at step j of exp zₜₑ )

    With `expert` fixed the result is a differentiable function of the logits.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        expert: [T, k] integers in [0, E), distinct within a row.
        nucleus: see `log_policy`.

    Returns:
        [T]; −∞ where an expert is outside the nucleus or not available.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, an expert is out of range or repeated,
            or the nucleus is out of range.

    Source: REINFORCE for k = 1; Plackett and Luce for k > 1 (our choice).

    Example:
        3/6 times 2/(2 + 1):

        >>> np.round(np.exp(log_probability(np.log([[1.0, 2.0, 3.0]]), np.array([[2, 1]]))), 4).tolist()
        [0.3333]
    """
    logits, expert = np.asarray(logits), np.asarray(expert)
    _check_shape("expert", expert, (len(logits), expert.shape[-1]))
    expert_counts(expert, logits.shape[1])  # raises if an index is out of range
    logits = _check_logits("logits", logits, min(expert.shape[1], logits.shape[1]))
    inside = _nucleus(logits, expert.shape[1], nucleus)
    total = np.zeros(len(logits))
    for t, row in enumerate(logits):
        if len(set(expert[t].tolist())) < expert.shape[1]:
            raise InputError(f"expert: row {t} is {expert[t].tolist()}; its entries have to be distinct")
        left = inside[t].copy()
        for e in expert[t]:
            if left[e]:
                total[t] += row[e] - log_sum_exp(row[left], axis=0)
            else:
                total[t] = -np.inf
            left[e] = False
    return total


def policy_entropy(logits: np.ndarray, k: int = 1, nucleus: float = 1.0) -> np.ndarray:
    """Return −Σₑ πₜₑ log πₜₑ of each token, in nats: the entropy of one draw from the policy.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        k: experts per token; the nucleus has at least k experts.
        nucleus: see `log_policy`.

    Returns:
        [T], between 0 and log E.

    Raises:
        ValueError: `log_policy` raises this error.

    Example:
        >>> (policy_entropy(np.zeros((1, 4))) / np.log(2)).tolist()
        [2.0]
    """
    log_pi = log_policy(logits, k, nucleus)
    return np.array([-sum(np.exp(entry) * entry for entry in row if entry > -np.inf) for row in log_pi])


def state_value(params: dict, x: np.ndarray) -> np.ndarray:
    """Return the baseline, value(x): an estimate of the expected reward in this state.

    The network has one hidden layer with ReLU, and no biases. No gradient flows into x, so the baseline does not change
    the rest of the model.

    Args:
        params: "hidden" [d, width] and "out" [width]; parameter counts show that the released runs have width d/8.
        x: [T, d], the input of the block.

    Returns:
        [T].

    Raises:
        ValueError: an entry of x is not finite.

    Source: Clark et al. 2022, from the released parameter counts; ReLU is our choice.

    Example:
        >>> params = {"hidden": np.array([[1.0, -1.0], [0.0, 2.0]]), "out": np.array([1.0, 10.0])}
        >>> state_value(params, np.array([[3.0, 2.0], [1.0, 0.0]])).tolist()
        [13.0, 1.0]
    """
    return np.maximum(check_finite("x", x) @ params["hidden"], 0) @ params["out"]


def reward_to_go(reward: np.ndarray) -> np.ndarray:
    """Return the sum of the rewards from each position to the end of its sequence.

    Args:
        reward: [..., S], finite, one sequence along the last axis; 0 at padding.

    Returns:
        The same shape.

    Raises:
        ValueError: a reward is not finite.

    Example:
        >>> reward_to_go(np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 0.0]])).tolist()
        [[7.0, 6.0, 4.0], [1.0, 1.0, 0.0]]
    """
    reward = check_finite("reward", reward)
    to_go = np.zeros_like(reward)
    for s in range(reward.shape[-1]):
        to_go[..., s] = reward[..., s:].sum(axis=-1)
    return to_go


def policy_terms(
    logits: np.ndarray,
    expert: np.ndarray,
    value: np.ndarray,
    reward: np.ndarray,
    *,
    policy_weight: float = 1e-2,
    baseline_weight: float = 1e-2,
    entropy_weight: float = 0.0,
    balance_weight: float = 1e-2,
    nucleus: float = 1.0,
    held_advantage: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> PolicyTerms:
    """Return the term that one routed block adds to the training loss.

    The reward and the advantage are constants for the gradient. The gradient reaches the logits through the
    log-probability, the entropy and the balance loss. It reaches the value through the squared difference. With
    `held_advantage` and the reward fixed, the loss is a differentiable function of logits and value.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the logits of the draw.
        expert: [T, k] integers in [0, E), the drawn experts in their order; dropped choices are included.
        value: [T], finite, the baseline of each token (`state_value`), or zeros.
        reward: [T], finite, the log-probability of each true next token in nats, or its `reward_to_go`.
        policy_weight: weight of the policy term.
        baseline_weight: weight of the squared difference.
        entropy_weight: weight of the entropy, which is subtracted.
        balance_weight: weight of the balance loss, whose probabilities cover all experts for any nucleus.
        nucleus: the nucleus of the draw; see `log_policy`.
        held_advantage: [T], finite, used by the policy term instead of reward − value.
        mask: [T] bool, True for a real token; means are over the real tokens.

    Returns:
        `PolicyTerms`.

    Raises:
        ValueError: an argument is out of its range or has the wrong shape, no token is real, or an expert is not
            available.

    Source: Clark et al. 2022 for the policy and the baseline; the balance loss, the entropy and all weights are our
    choice.

    Example:
        Two tokens, two experts, π = 1/2 each; the reward of one token is above its baseline, the other below.

        >>> z, expert = np.zeros((2, 2)), np.array([[0], [1]])
        >>> found = policy_terms(z, expert, value=np.array([-2.0, -2.0]), reward=np.array([-1.0, -5.0]))
        >>> found.advantage.tolist(), found.baseline, found.balance
        ([1.0, -3.0], 5.0, 1.0)
        >>> np.round([found.policy / np.log(2), found.entropy / np.log(2)], 4).tolist()  # −mean(1, −3) log₂ ½ = −1
        [-1.0, 1.0]
        >>> round(found.loss, 4)  # 0.01 (−log 2 + 5 + 1)
        0.0531
    """
    _check_group("logits", logits)
    _check_shape("value", value, logits.shape[:1])
    _check_shape("reward", reward, logits.shape[:1])
    if held_advantage is not None:
        _check_shape("held_advantage", held_advantage, logits.shape[:1])
    if mask is not None:
        mask = _real_tokens(mask, len(logits))
        logits, expert, value, reward = logits[mask], expert[mask], value[mask], reward[mask]
        held_advantage = None if held_advantage is None else held_advantage[mask]
    value, reward = check_finite("value", value), check_finite("reward", reward)
    advantage = reward - value if held_advantage is None else check_finite("held_advantage", held_advantage)
    policy = float(-(advantage * log_probability(logits, expert, nucleus)).mean())
    baseline = float(((reward - value) ** 2).mean())
    entropy = float(policy_entropy(logits, expert.shape[1], nucleus).mean())
    balance = auxiliary_loss(logits, expert).loss
    loss = policy_weight * policy + baseline_weight * baseline - entropy_weight * entropy + balance_weight * balance
    if mask is not None:
        restored = np.zeros(len(mask))
        restored[mask] = advantage
        advantage = restored
    return PolicyTerms(loss, policy, baseline, entropy, balance, advantage)


def _check_shape(name, values, shape):
    if np.shape(values) != tuple(shape):
        raise InputError(f"{name} has shape {np.shape(values)}; needed: {tuple(shape)}")
