"""Diagnostics of the routers of a trained model, measured when a run ends.

Part of the validation text is routed twice with the last weights: as in evaluation, and as in training.
`routelaws.reference.diagnostics` defines the measures. Each routed block has one value.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.configuration import ModelConfig
from routelaws.reference.diagnostics import agreement, entropy, exchange_experts, information, not_learned

from ..transformer import draw_noise, loss
from .configuration import TrainConfig
from .step import EVALUATION_SEED, attention_of, compute_dtype, task_of

TOKENS = 16384
"""Largest number of tokens to route twice; a batch with more tokens is still used whole."""

SHUFFLES = 4
"""Number of shuffles of the labels. The information about shuffled labels is the baseline."""

QUICK_COMPILE = {"xla_backend_optimization_level": 0}
"""XLA options for a program that takes longer to compile than to run."""


class RouterReport(NamedTuple):
    """Diagnostics of the routers of a model. Lists have an entry for each routed block."""

    experts: int  # E G, the experts of a block
    chance: float  # k/E, the agreement of two routings at random
    agreement: list[float]  # share of the training experts that evaluation also chooses; empty if experts choose
    information: list[float]  # bits about the token's id, minus the bits for shuffled ids; empty if experts choose
    entropy: list[float]  # entropy of RL-R's policy, nats; empty for other routers
    exchange: float  # loss with randomly exchanged experts divided by the loss

    def columns(self) -> dict[str, float]:
        """Return the cells of the results table: means of the measures over the blocks."""
        cells = {"router_agreement": self.agreement, "router_information": self.information}
        cells["router_entropy"] = [nats / math.log(self.experts) for nats in self.entropy]
        measured = {name: sum(values) / len(values) for name, values in cells.items() if values}
        return measured | {"expert_exchange": self.exchange}

    def verdict(self) -> str | None:
        """Return a sentence on routers that have not learned; None if they have learned."""
        reasons = not_learned(self.chance, self.columns().get("router_agreement"), self.exchange)
        if reasons and self.entropy:
            reasons.append("start the policy of RL-R sharper, by a larger --router-scale of routelaws train")
        return f"the router has not learned: {'; '.join(reasons)}" if reasons else None


def report_routing(
    config: TrainConfig,
    params: dict,
    table: np.ndarray | None,
    windows: np.ndarray,
    loss_ratio: Callable[[dict], float],
) -> RouterReport:
    """Return the diagnostics of the routers of a model.

    Args:
        config: the run, on one device, with routed blocks.
        table: the hash table; None for other routers.
        windows: [n, b, S + 1], batches of the validation text.
        loss_ratio: a function that takes changed weights, and returns their validation loss divided by the model's
            loss.
    """
    model = config.model
    batches = windows[: max(1, TOKENS // (config.batch_size * config.sequence_length))]
    draw = np.random.default_rng(config.seed)
    routed, experts = model.num_routed, model.expert_count
    order = np.stack([draw.permutation(experts) for _ in range(routed)])
    exchange = loss_ratio(exchange_experts(params, order))
    report = RouterReport(model.choosable, model.choices / model.choosable, [], [], [], exchange)
    if model.record.grouped:  # experts choose, or there is no choice
        return report
    routings = _compiled(model, compute_dtype(config), attention_of(config).kernel)(params, batches, table)
    token, evaluated, trained, policy = (None if leaf is None else np.asarray(leaf) for leaf in routings)
    shuffles = np.stack([draw.permutation(token.size) for _ in range(SHUFFLES)])
    for block in range(routed):
        chosen = evaluated[:, block].reshape(token.size, -1)
        report.agreement.append(agreement(chosen, trained[:, block].reshape(token.size, -1)))
        told = information(token.ravel(), chosen, model.choosable, shuffles)
        report.information.append(told.bits - told.baseline)
        if policy is not None:
            report.entropy.append(entropy(policy[:, block].reshape(token.size, -1).astype(np.float64)))
    return report


@functools.lru_cache(maxsize=64)
def _compiled(model: ModelConfig, dtype, attention: str):
    """Return a jitted function (params, batches, table) -> (tokens, evaluation experts, training experts, policy).

    All are stacked over batches: tokens [n, T], experts [n, n_r, T, k], policy [n, n_r, T, E G]. Only RL-R has a
    policy. It is None for other routers.
    """
    key = jax.random.key(EVALUATION_SEED)
    options = {"compute_dtype": dtype, "attention": attention}

    def route(params, windows, number, table):
        tokens, hidden = task_of(windows, model, jax.random.fold_in(key, number))
        inputs = windows[:, :-1]
        noise = draw_noise(jax.random.fold_in(key, number + (1 << 20)), model, *inputs.shape)
        arguments = {"table": table, "hidden": hidden, **options}
        evaluated = loss(params, tokens, model, training=False, **arguments).output
        trained = loss(params, tokens, model, training=True, noise=noise, **arguments).output
        policy = None if evaluated.policy is None else jax.nn.softmax(evaluated.policy.logits)
        return inputs.reshape(-1), evaluated.routing.expert, trained.routing.expert, policy

    @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)  # it runs once
    def over_batches(params, batches, table):
        def one(_, now):
            return None, route(params, *now, table)

        return jax.lax.scan(one, None, (batches, jnp.arange(len(batches))))[1]

    return over_batches
