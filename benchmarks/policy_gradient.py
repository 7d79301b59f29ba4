"""The bias and variance of REINFORCE, by enumeration of all draws of experts.

    python -m benchmarks.policy_gradient [--layouts r ra raa raaa] [--steps 0 300] [--tokens 4] [--experts 3]

A small model can run all E^T sequences of choices. The expected loss, its gradient, and the mean and variance of an
estimator are then finite sums without sampling error, in float64.

    h = x                                            T tokens, one sequence
    for each letter of the layout:
        "r": h ← h + expert(norm(h))                 routed, gate 1, policy softmax(norm(h) W)
        "a": h ← h + causal attention(norm(h))
    reward of token t = log softmax(norm(h) readout)[its target];  loss = −mean reward

norm divides by the root mean square. Two gradients are compared:

    the truth        ∇ Σ over draws of π(draw) loss(draw)
    an estimator     Σ over draws of π(draw) ∇ (loss(draw) + `policy_terms` with weight 1)

with the reward of each token (per-token credit) or the sum of rewards from the token to the end (`reward_to_go`).

First table: |estimator − truth| / |truth|, for the routers' weights (median, minimum and maximum over the seeds) and
for all weights of the model. It also has the cosine of the angle between the two gradients of the routers. "draws" is
variance / bias²: the mean of this many draws has as much noise as bias.

Second table: the variance of the routers' gradient from one draw, in units of |truth|². The baselines are none, the
mean reward of all tokens, and the mean reward of each token over the draws (the limit of a trained baseline for one
routed layer).

`--steps` first trains by gradient descent on the expected loss.
"""

import argparse
import itertools
import math
import statistics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.accelerated.routers import reinforce

CREDITS = {"per token": lambda reward: reward, "reward-to-go": reinforce.reward_to_go}
"""The credit of each choice, from the rewards of a sequence."""

BASELINES = {
    "none": jnp.zeros_like,
    "mean": lambda state: jnp.full_like(state, state.mean()),
    "state": lambda state: state,
}
"""The baseline to subtract from the credit, as a function of the mean credit of each token: 0, a number, or a number
for each token."""

ESTIMATORS = tuple(itertools.product(CREDITS, BASELINES))

D_MODEL, HIDDEN, VOCAB_SIZE = 8, 16, 6
SEEDS = 5  # number of models; results are medians over them
MOST_DRAWS = 5000  # largest number of draws to enumerate
UNBIASED = 1e-9  # a smaller bias is a rounding error
LEARNING_RATE = 0.5  # learning rate for `--steps`


class Problem(NamedTuple):
    """A model and its sequence."""

    params: dict  # "readout" and, for each letter of the layout, a dict of weights
    x: jax.Array  # [T, d]
    target: jax.Array  # [T]
    layout: str


class Run(NamedTuple):
    """The results of the model for one draw of experts."""

    reward: jax.Array  # [T], log-probability of each target
    logits: jax.Array  # [n_r, T, E], logits of the routers
    log_probability: jax.Array  # [], log-probability of the whole draw


class Estimate(NamedTuple):
    """The comparison of an estimator with the true gradient, for the routers' weights."""

    bias: float  # |mean − truth| / |truth|
    bias_of_all: float  # bias over all weights of the model
    cosine: float  # cosine between mean and truth
    variance: float  # E |estimate − mean|² / |truth|²


def problem(layout: str, num_tokens: int, num_experts: int, seed: int) -> Problem:
    """Draw a model and a sequence: weights with standard deviation 1/√fan_in, tokens and targets at random."""
    random = np.random.default_rng(seed)

    def normal(*shape, fan_in):
        return jnp.asarray(random.standard_normal(shape) / math.sqrt(fan_in))

    def weights(letter):
        if letter == "a":
            return {name: normal(D_MODEL, D_MODEL, fan_in=D_MODEL) for name in ("query", "key", "value", "output")}
        return {
            "router": normal(D_MODEL, num_experts, fan_in=D_MODEL),
            "up": normal(num_experts, D_MODEL, HIDDEN, fan_in=D_MODEL),
            "down": normal(num_experts, HIDDEN, D_MODEL, fan_in=HIDDEN),
        }

    params = {str(i): weights(letter) for i, letter in enumerate(layout)}
    params["readout"] = normal(D_MODEL, VOCAB_SIZE, fan_in=D_MODEL)
    target = jnp.asarray(random.integers(0, VOCAB_SIZE, num_tokens))
    return Problem(params, normal(num_tokens, D_MODEL, fan_in=1), target, layout)


def all_draws(num_routed: int, num_tokens: int, num_experts: int, k: int = 1) -> np.ndarray:
    """Return [n, n_r, T, k]: all ordered choices of k experts for each token in each routed layer."""
    choices = list(itertools.permutations(range(num_experts), k))
    draws = list(itertools.product(choices, repeat=num_routed * num_tokens))
    return np.array(draws, dtype=np.int32).reshape(-1, num_routed, num_tokens, k)


def run(params: dict, given: Problem, draw: jax.Array, nucleus: float = 1.0) -> Run:
    """Run the model with the experts of a draw [n_r, T, k]."""
    h, logits, log_probability = given.x, [], 0.0
    for i, letter in enumerate(given.layout):
        weights, x = params[str(i)], _norm(h)
        if letter == "a":
            h = h + _attention(weights, x)
        else:
            expert = draw[len(logits)]
            logits.append(x @ weights["router"])
            log_probability += reinforce.log_probability(logits[-1], expert, nucleus).sum()
            hidden = jax.nn.relu(jnp.einsum("td,tkdf->tkf", x, weights["up"][expert]))
            h = h + jnp.einsum("tkf,tkfd->td", hidden, weights["down"][expert]) / expert.shape[1]
    log_p = jax.nn.log_softmax(_norm(h) @ params["readout"])
    reward = jnp.take_along_axis(log_p, given.target[:, None], axis=1)[:, 0]
    return Run(reward, jnp.stack(logits), log_probability)


def _norm(h):
    return h / jnp.sqrt((h**2).mean(axis=-1, keepdims=True) + 1e-6)


def _attention(weights, x):
    scores = (x @ weights["query"]) @ (x @ weights["key"]).T / math.sqrt(D_MODEL)
    seen = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ x @ weights["value"] @ weights["output"]


def expected_loss(params: dict, given: Problem, draws: jax.Array) -> jax.Array:
    """Return Σ over draws of π(draw) loss(draw): a differentiable function of the weights, routers included."""
    runs = jax.vmap(lambda draw: run(params, given, draw))(draws)
    return -(jnp.exp(runs.log_probability) * runs.reward.mean(axis=1)).sum()


def estimator(params: dict, given: Problem, draw: jax.Array, credited: jax.Array, value: jax.Array) -> dict:
    """Return the training gradient of one draw: the gradient of its loss plus each routed layer's policy term.

    Args:
        draw: [n_r, T, k].
        credited: [T], the reward of each choice of this draw, in every routed layer.
    """

    def training_loss(params):
        routing = run(params, given, draw)
        loss = -routing.reward.mean()
        for logits, expert in zip(routing.logits, draw, strict=True):
            weights = {"policy_weight": 1.0, "baseline_weight": 0.0, "balance_weight": 0.0}
            loss += reinforce.policy_terms(logits, expert, value, credited, **weights).loss
        return loss

    return jax.grad(training_loss)(params)


def trained(given: Problem, draws: jax.Array, steps: int) -> Problem:
    gradient = jax.grad(expected_loss)

    def step(_, params):
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient(params, given, draws))

    return given._replace(params=jax.lax.fori_loop(0, steps, step, given.params))


def routers_of(tree: dict) -> list:
    """Return the router leaves of a tree with the structure of the parameters."""
    return [weights["router"] for weights in tree.values() if isinstance(weights, dict) and "router" in weights]


def estimate(given: Problem, draws: jax.Array) -> Estimate:
    """Compare the estimators with the truth by enumeration.

    Returns:
        `Estimate`, each field [len(ESTIMATORS)].
    """
    runs = jax.vmap(lambda draw: run(given.params, given, draw))(draws)
    probability = jnp.exp(runs.log_probability)  # [n]
    truth = jax.grad(expected_loss)(given.params, given, draws)
    credits = {credit: function(runs.reward) for credit, function in CREDITS.items()}
    credited = jnp.stack([credits[credit] for credit, _ in ESTIMATORS])  # [estimators, n, T]
    value = jnp.stack([BASELINES[kind](probability @ credits[credit]) for credit, kind in ESTIMATORS])

    def compare(credited, value):
        each = jax.vmap(lambda draw, r: estimator(given.params, given, draw, r, value))(draws, credited)
        mean = jax.tree.map(lambda leaf: jnp.tensordot(probability, leaf, 1), each)
        routers, wanted = (_flat(routers_of(tree)) for tree in (mean, truth))
        spread = jnp.concatenate([leaf.reshape(len(draws), -1) for leaf in routers_of(each)], axis=1) - routers
        norm = jnp.linalg.norm
        everything = _flat(jax.tree.leaves(mean)), _flat(jax.tree.leaves(truth))
        return Estimate(
            norm(routers - wanted) / norm(wanted),
            norm(everything[0] - everything[1]) / norm(everything[1]),
            routers @ wanted / (norm(routers) * norm(wanted)),
            probability @ (spread**2).sum(axis=1) / norm(wanted) ** 2,
        )

    return jax.vmap(compare)(credited, value)


def _flat(leaves):
    return jnp.concatenate([leaf.ravel() for leaf in leaves])


def measure(layout: str, seeds: int, steps: list[int], num_tokens: int, num_experts: int) -> dict:
    """Return {(steps, layout): {(credit, baseline): list of `Estimate`, one for each seed}}."""
    with jax.enable_x64(True):
        draws = jnp.asarray(all_draws(layout.count("r"), num_tokens, num_experts))

        @jax.jit
        def everything(params, x, target, steps):
            return estimate(trained(Problem(params, x, target, layout), draws, steps), draws)

        problems = [problem(layout, num_tokens, num_experts, seed)[:3] for seed in range(seeds)]
        fields = {n: [np.array(everything(*each, n)) for each in problems] for n in steps}  # [fields, estimators]
    return {
        (n, layout): {key: [Estimate(*estimates[:, i]) for estimates in fields[n]] for i, key in enumerate(ESTIMATORS)}
        for n in steps
    }


def report(measured: dict) -> str:
    """Return both tables as text; medians over the seeds, with the range of the bias."""

    def median(results, field):
        return statistics.median(getattr(result, field) for result in results)

    head = f"{'steps':>6}  {'layout':8}{'credit':14}"
    columns = ("bias", "least", "most", "all", "cosine", "draws")
    text = [head + "".join(f"{column:>9}" for column in columns)]
    for (steps, layout), estimates in measured.items():
        for credit in CREDITS:
            results = estimates[credit, "state"]
            bias = sorted(result.bias for result in results)
            needed = statistics.median(r.variance / r.bias**2 if r.bias > UNBIASED else math.inf for r in results)
            line = f"{steps:>6}  {layout:8}{credit:14}"
            line += "".join(f"{value:>9.1e}" for value in (median(results, "bias"), bias[0], bias[-1]))
            line += f"{median(results, 'bias_of_all'):>9.1e}{median(results, 'cosine'):>9.3f}{needed:>9.2g}"
            text.append(line)
    text += ["", head + "".join(f"{kind:>9}" for kind in BASELINES)]
    for (steps, layout), estimates in measured.items():
        for credit in CREDITS:
            variances = (median(estimates[credit, kind], "variance") for kind in BASELINES)
            text.append(f"{steps:>6}  {layout:8}{credit:14}" + "".join(f"{variance:>9.3g}" for variance in variances))
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Bias and variance of REINFORCE over all draws.")
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=["r", "ra", "raa", "raaa"],
        help="layers of each model, from input to output: r for routed, a for attention",
    )
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 300], help="training steps before the measurement")
    parser.add_argument("--tokens", type=int, default=4, help="T, the number of tokens")
    parser.add_argument("--experts", type=int, default=3, help="E, the number of experts")
    flags = parser.parse_args(arguments)
    measured = {}
    for layout in flags.layouts:
        if flags.experts ** (flags.tokens * layout.count("r")) > MOST_DRAWS:
            parser.error(f"--layouts {layout} has more than {MOST_DRAWS} draws; use fewer tokens or experts")
        measured |= measure(layout, SEEDS, flags.steps, flags.tokens, flags.experts)
    print(report(dict(sorted(measured.items(), key=lambda item: flags.steps.index(item[0][0])))))


if __name__ == "__main__":
    main()
