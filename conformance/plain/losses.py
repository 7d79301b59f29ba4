from typing import NamedTuple

from routelaws.conformance.plain.arithmetic import log_sum_exp, mean
from routelaws.conformance.plain.model import forward


class Loss(NamedTuple):
    """The loss of a batch, in nats per predicted token."""

    total: float
    cross_entropy: float
    logits: list  # [b][S][V]
    decisions: list  # one for each routed block


def training_loss(params: dict, tokens: list, config, training=True, noise=None, table=None, hidden=None, real=None):
    """Return the loss of [b][S + 1] tokens: the first S are inputs, the last S are targets.

    The masked objective takes [b][S] tokens. The model reads `mask_token` at the positions with `hidden` True, and the
    loss is the mean over these positions. `real` [b][S] is False at padding. The model neither reads nor predicts
    padding.
    """
    if config.objective == "masked":
        read = [
            [config.mask_token if h else t for t, h in zip(*pair, strict=True)]
            for pair in zip(tokens, hidden, strict=True)
        ]
        targets = tokens
    else:
        read, targets = [sequence[:-1] for sequence in tokens], [sequence[1:] for sequence in tokens]
        hidden = [[True] * len(row) for row in read]
    real = real if real is not None else [[True] * len(row) for row in read]
    logits, decisions = forward(params, read, config, training, noise, table, real)
    likelihood = [
        [row[target] - log_sum_exp(row) for row, target in zip(*pair, strict=True)]
        for pair in zip(logits, targets, strict=True)
    ]
    cross_entropy = -mean(
        [
            value
            for rows in zip(likelihood, hidden, real, strict=True)
            for value, predicted, here in zip(*rows, strict=True)
            if predicted and here
        ]
    )
    total = cross_entropy
    if training:
        total += sum(decision.auxiliary for decision in decisions)
        if config.router == "reinforce":
            total += sum(policy_loss(decision, likelihood, real, config) for decision in decisions)
    return Loss(total, cross_entropy, logits, decisions)


def policy_loss(decision, likelihood: list, real: list, config) -> float:
    """Return the sum of RL-R's terms for one block, with their weights. Each term is a mean over tokens.

    The reward of a choice is the log-probability of the token's target. With `reward_to_go`, it is the sum of these
    log-probabilities from the token to the end of the sequence. The policy term is -(reward - value) log π(expert), and
    the baseline term is (reward - value)². The entropy of the policy is subtracted.
    """
    rewards = []
    for row, here in zip(likelihood, real, strict=True):
        rewards_of_sequence = [reward if exists else 0.0 for reward, exists in zip(row, here, strict=True)]
        to_the_end = config.reward_to_go
        rewards += [
            sum(rewards_of_sequence[i:]) if to_the_end else rewards_of_sequence[i]
            for i in range(len(rewards_of_sequence))
            if here[i]
        ]
    advantages = [reward - value for reward, value in zip(rewards, decision.value, strict=True)]
    policy = -mean([a * chance for a, chance in zip(advantages, decision.log_probability, strict=True)])
    baseline = mean([a**2 for a in advantages])
    return config.policy_weight * policy + config.baseline_weight * baseline - config.entropy_weight * decision.entropy
