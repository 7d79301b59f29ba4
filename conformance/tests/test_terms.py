"""Which weights each term of the training loss reaches, and by how much, in both twins.

In the reference a term is the loss with its weight minus the loss without it, and its gradient a central difference, so
a term that misses some weights shows, even if both twins miss them. The twin has its whole gradient, group by group.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from routelaws import accelerated, reference
from routelaws.conformance.compare import assert_close_bounded, central_difference
from routelaws.conformance.engine.harness import gradient, inner
from routelaws.reference import transformer
from routelaws.reference.notation import softmax

OFF = {"balance_weight": 0.0}
ROUTERS = {
    "top_k": dict(router="top_k", k=2, normalisation="sum", router_bias=True, bias_rate=0.01, shared_experts=1,
                  output_norm=True, **OFF),
    "top_k by sequence": dict(router="top_k", k=2, gate="sigmoid", balance_scope="sequence", **OFF),
    "reinforce": dict(router="reinforce", k=2, policy_weight=0.0, baseline_weight=0.0, **OFF),
    "quantile": dict(router="quantile"),
    "base": dict(router="base"),
    "sinkhorn": dict(router="sinkhorn"),
    "hash": dict(router="hash"),
    "expert_choice": dict(router="expert_choice", experts=2, group_size=2),
    "mixture": dict(router="mixture_of_tokens", group_size=2, learned_temperature=True, emit="experts"),
}  # fmt: skip
TERMS = {
    "top_k": {"balance_weight": 0.7, "z_weight": 0.3}, "top_k by sequence": {"balance_weight": 0.7},
    "reinforce": {"policy_weight": 0.9, "baseline_weight": 0.6, "entropy_weight": 0.4, "balance_weight": 0.7},
}  # fmt: skip
"""{router: {weight of a term: a value}}; other routers add no term."""

UNTRAINED = {"bias"}
"""The bias of a choice follows from the loads, never from a gradient."""

NOT_BY_TASK = {"reinforce": {"router", "baseline"}}
"""Weights that the cross-entropy does not reach, because the gates are constants."""

BLOCKS, STEP, LEAST = 2, 2.0**-12, 1e-7
"""A slope above LEAST is no rounding of a difference, which is about 2^-53 / STEP."""


def config_of(name: str, module=reference, **weights):
    shape = dict(vocab_size=7, d_model=8, blocks=BLOCKS, heads=2, kqv_size=3, experts=3, routing_frequency=1.0)
    return module.configuration.ModelConfig(**shape | ROUTERS[name] | weights)


class Model:
    """A small model at random weights, with its selections and credit held."""

    def __init__(self, name: str):
        random, self.name = np.random.default_rng(8), name
        self.config = config_of(name)
        self.params = jax.tree.map(lambda one: random.normal(0, 0.4, one[0]), transformer.parameter_shapes(self.config),
                                   is_leaf=lambda node: isinstance(node, tuple))  # fmt: skip
        self.tokens = random.integers(0, 7, (2, 5))
        self.noise = transformer.draw_noise(random, self.config, 2, 4)
        found = transformer.loss(self.params, self.tokens, self.config, noise=self.noise)
        self.held = {"held": found.output.routing, "held_credit": found.credit}
        of_blocks = [name for room in ("blocks", "routed_ffn") for name in self.params[room]]
        groups = [("embedding", None), ("final_norm", None), *itertools.product(of_blocks, range(BLOCKS))]
        self.groups = {group: self.direction(*group, random) for group in groups}

    def direction(self, name, block, random) -> dict:
        """Return a random direction in the weights of a name, in one block; with block None in all."""

        def one(path, leaf):
            here = np.ones(len(leaf)) if block is None else np.arange(len(leaf)) == block
            here = here * (name in [part.key for part in path])
            return random.standard_normal(leaf.shape) * here.reshape(-1, *[1] * (leaf.ndim - 1))

        return jax.tree.map_with_path(one, self.params)

    def loss(self, params, weights):
        config = dataclasses.replace(self.config, **weights)
        return transformer.loss(params, self.tokens, config, noise=self.noise, **self.held).total


@functools.cache
def model(name: str) -> Model:
    return Model(name)


@functools.cache
def _slopes(name: str) -> dict:
    """Return {group: derivatives along its direction, [1 + terms], of the cross-entropy and of each term}."""
    here, terms = model(name), TERMS.get(name, {})

    def values(params):
        alone = here.loss(params, {})
        return np.array([alone, *(here.loss(params, {term: terms[term]}) - alone for term in terms)])

    return {group: central_difference(values, here.params, each, STEP) for group, each in here.groups.items()}


def slopes(name: str, term: str | None = None) -> dict:
    """Return {group: derivative of a term, along its direction}; of the cross-entropy without a term."""
    i = 0 if term is None else 1 + list(TERMS[name]).index(term)
    return {group: values[i] for group, values in _slopes(name).items()}


def reached(found: dict) -> set:
    return {group for group, slope in found.items() if abs(slope) > LEAST}


@pytest.mark.parametrize("name", ROUTERS)
def test_the_cross_entropy_reaches_all_that_is_trained_by_it(name):
    missing = UNTRAINED | NOT_BY_TASK.get(name, set())
    assert reached(slopes(name)) == {group for group in model(name).groups if group[0] not in missing}


@pytest.mark.parametrize("name, term", [(name, term) for name in TERMS for term in TERMS[name]])
def test_a_term_reaches_the_router_and_all_before_it(name, term):
    """The term of the last block does not depend on its experts, nor any term on the last norm.

    The error of a baseline trains the baseline alone: its input is a constant, which a difference cannot show.
    """
    ours, other = ({"baseline"}, {"router"}) if term == "baseline_weight" else ({"router", "router_bias"}, {"baseline"})
    last = {(each, BLOCKS - 1) for each in model(name).params["routed_ffn"] if each not in ours}
    never = UNTRAINED | {"final_norm"} | other
    wanted = {group for group in model(name).groups if group[0] not in never and group not in last}
    assert reached(slopes(name, term)) == wanted


def inputs_of(name: str, monkeypatch) -> list:
    """Return the inputs of the routers, [T, d] for each block, and what each block decides."""
    seen, block = [], transformer.routed_block

    def recorded(params, x, *given, **more):
        done = block(params, x, *given, **more)
        seen.append((params, x.reshape(-1, x.shape[-1]), done))
        return done

    monkeypatch.setattr(transformer, "routed_block", recorded)
    model(name).loss(model(name).params, {})
    return seen


def by_logits(term: str, z, expert, credit, groups) -> np.ndarray:
    """Return the derivative of a term by the logits [T, E] of the last block."""
    (T, E), p = z.shape, softmax(z)
    if term == "z_weight":
        return 2 * np.log(np.exp(z).sum(axis=1, keepdims=True)) * p / T
    if term == "entropy_weight":  # it is subtracted
        return p * (np.log(p) - (p * np.log(p)).sum(axis=1, keepdims=True)) / T
    g = np.zeros_like(z)
    if term == "balance_weight":
        for rows in groups:
            share = np.bincount(expert[rows].ravel(), minlength=E) / expert[rows].size
            scores, slope = (p[rows], p[rows]) if len(groups) == 1 else sigmoids(z[rows])
            total = scores.sum(axis=1, keepdims=True)
            g[rows] = E / T * (share - scores @ share[:, None] / total) / total * slope
        return g
    for t, drawn in enumerate(expert):  # the policy, without replacement
        left = np.ones(E, bool)
        for e in drawn:
            rest = np.exp(z[t]) * left
            g[t] -= credit.advantage[-1, t] / T * ((np.arange(E) == e) - rest / rest.sum())
            left[e] = False
    return g


def sigmoids(z) -> tuple[np.ndarray, np.ndarray]:
    score = 1 / (1 + np.exp(-z))
    return score, score * (1 - score)


def by_baseline(params, x, reward) -> dict:
    hidden = x @ params["hidden"]
    miss = 2 / len(x) * (np.maximum(hidden, 0) @ params["out"] - reward.reshape(-1))
    return {"out": np.maximum(hidden, 0).T @ miss, "hidden": x.T @ (miss[:, None] * (hidden > 0) * params["out"])}


@pytest.mark.parametrize("name, term", [(name, term) for name in TERMS for term in TERMS[name]])
def test_a_term_has_its_derivative_by_hand(name, term, monkeypatch):
    """By the last block's own router it is xᵀ g, with g its derivative by the logits."""
    params, x, done = inputs_of(name, monkeypatch)[-1]
    z, credit = x @ params["router"] + params.get("router_bias", 0), model(name).held["held_credit"]
    groups = np.split(np.arange(len(z)), 2 if name == "top_k by sequence" else 1)
    if term == "baseline_weight":
        trained, wanted = "baseline", by_baseline(params["baseline"], x, credit.reward)
    else:
        trained, wanted = "router", x.T @ by_logits(term, z, done.routing.expert, credit, groups)
    direction = jax.tree.map(lambda leaf: leaf[-1], model(name).groups[trained, BLOCKS - 1]["routed_ffn"][trained])
    slope = TERMS[name][term] * inner(wanted, direction)
    assert_close_bounded("transformer.gradient", slopes(name, term)[trained, BLOCKS - 1], slope, 1.0, what=term)


def total(params, tokens, noise, loss, config):
    return loss(params, tokens, config, noise=noise).total


@pytest.mark.parametrize("name", ["top_k", "reinforce"])
def test_the_twin_reaches_the_same_weights_by_the_same_amounts(name):
    """Its one gradient is the sum of the terms; that of the baseline counts for the baseline alone."""
    options = dict(loss=accelerated.transformer.loss, config=config_of(name, accelerated, **TERMS[name]))
    found = gradient(total, model(name).params, model(name).tokens, model(name).noise, **options)
    for group, direction in model(name).groups.items():
        parts = [slopes(name)[group]]
        parts += [slopes(name, term)[group] for term in TERMS[name]
                  if term != "baseline_weight" or group[0] == "baseline"]  # fmt: skip
        ours, scale = inner(found, direction), 1 + sum(map(abs, parts))
        assert_close_bounded("transformer.gradient", ours, sum(parts), scale, what=f"{name}: {group}")
        assert (ours == 0) == (sum(map(abs, parts)) < LEAST), group
