"""Train RL-R by the exact gradient of its expected reward, to measure the cost of one noisy draw per token.

    python docs/study/exact_policy.py             d = 24, E = 16, 800 steps: the run of `routelaws sweep recipes`
    python docs/study/exact_policy.py --sampled   the same by REINFORCE, the policy gradient of the program

The routed block is the last block, so the reward of a token depends only on its own expert. Each token tries every
expert. The rewards are constants for the gradient. The policy loss is minus the expected reward.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.optimizer import optimizer
from routelaws.accelerated.training.step import drawn, initial_state, make_evaluate, run_inputs
from routelaws.accelerated.training.text.corpus import read_corpus
from routelaws.accelerated.training.text.texts import open_text
from routelaws.accelerated.training.text.tokens import prepare_tokens
from routelaws.accelerated.transformer import loss

POLICY_WEIGHT = 0.1
"""Weight of the expected reward. AdamW normalises the gradient, so only its ratio to other weights matters."""

RUN = {
    "blocks": 2, "vocab_size": 512, "sequence_length": 64, "batch_size": 16, "steps": 800, "d_model": 24, "heads": 2,
    "router": "reinforce", "experts": 16, "router_scale": 8.0, "evaluation_tokens": 131072,
}  # fmt: skip


def rewards(params: dict, tokens: jax.Array, config: TrainConfig, routing) -> jax.Array:
    """Return [T, E], the log-probability of the right next token if expert e processes token t."""

    def forced(expert):
        held = routing._replace(expert=jnp.full_like(routing.expert, expert), gate=jnp.ones_like(routing.gate))
        logits = loss(params, tokens, config.model, training=False, held=held).output.logits
        return -optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).reshape(-1)

    return jax.lax.map(forced, jnp.arange(config.model.experts)).T


def objective(params: dict, tokens: jax.Array, noise: jax.Array, config: TrainConfig, exact: bool) -> jax.Array:
    """Return the training loss. With `exact`, it has the exact expected reward instead of REINFORCE's term."""
    result = loss(params, tokens, config.model, noise=noise)
    if not exact:
        return result.total
    fixed, routing = jax.lax.stop_gradient((params, result.output.routing))
    reward = rewards(fixed, tokens, config, routing)
    policy = jax.nn.softmax(result.output.policy.logits[0])
    advantage = jax.lax.stop_gradient(reward - (policy * reward).sum(axis=1, keepdims=True))
    return result.total - POLICY_WEIGHT * (policy * advantage).sum(axis=1).mean()


def train(config: TrainConfig, exact: bool) -> float:
    tokens = prepare_tokens(read_corpus(None), config.model.vocab_size)
    batches, sets = open_text(config, tokens)
    inputs, params = run_inputs(config, None), initial_state(config).params
    moments = optimizer(config).init(params)

    @jax.jit
    def step(params, moments, windows, number):
        windows, noise, _ = drawn(config, windows, number, inputs)
        gradient = jax.grad(objective)(params, windows, noise, config, exact)
        updates, moments = optimizer(config).update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments

    for number in range(config.steps):
        params, moments = step(params, moments, jnp.asarray(next(batches)), number)
    return float(np.mean(make_evaluate(config)(params, sets["validation"].tokens).loss))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sampled", action="store_true", help="use REINFORCE, with one draw per token, instead of the exact gradient"
    )
    parser.add_argument("--steps", type=int, default=RUN["steps"], help="training steps (default: %(default)s)")
    flags = parser.parse_args()
    usual = {} if flags.sampled else {"policy_weight": 0.0}
    loss = train(from_mapping(RUN | {"steps": flags.steps} | usual), not flags.sampled)
    print(f"validation loss {loss:.4f} nats per token")


if __name__ == "__main__":
    main()
