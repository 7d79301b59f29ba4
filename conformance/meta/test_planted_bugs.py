"""Planted bugs: each is a mistake that somebody has made or could make, and a check has to see it.

Where a bug can be planted by replacing a public function, the backend is copied with that one function wrong. Where
it sits inside, the private function is replaced for the length of the test.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws import accelerated
from routelaws import reference as oracle
from routelaws.accelerated import experts, notation, transformer
from routelaws.accelerated.routers import sinkhorn
from routelaws.conformance import (
    bounds,
    harness,
    test_accounting,
    test_experts,
    test_hash_layer,
    test_notation,
    test_sinkhorn,
    test_transformer,
)
from routelaws.conformance.harness import altered
from routelaws.conformance.strategies import Logits, Selection, case, lattice, tied

RANDOM = np.random.default_rng(0)
TIED = Logits(tied(RANDOM, 16, 4), "tied", 2)
FREE = Logits(np.round(RANDOM.standard_normal((12, 3)) * 2, 2).astype(np.float32).astype(float), "free", 2)
LATTICE = Logits(lattice(RANDOM, 12, 3), "lattice", 1)
HARD = Logits((RANDOM.standard_normal((16, 4)) * 100).round(), "extreme", 1)
CROWDED = Selection(np.array([[0, 1], [0, 2], [1, 0], [0, 1], [2, 1], [0, 1]]), 3, "random", 1)


def proxy(module, **changes):
    """Return a stand-in for a module with some names changed."""
    return SimpleNamespace(**(vars(module) | changes))


def higher_index_wins(scores, k):
    scores = notation.canonical_zero(scores)[:, ::-1]
    return scores.shape[1] - 1 - jax.lax.top_k(scores, k)[1]


def token_before_choice(expert, num_experts, capacity):
    num_tokens, k = expert.shape
    flat = experts.dispatch(expert.reshape(-1, 1), num_experts, capacity)
    slot = flat.slot.reshape(num_tokens, k)
    return experts.Placement(slot, slot < capacity, jnp.where(flat.token < num_tokens * k, flat.token // k, num_tokens))


def later_token_first(expert, num_experts, capacity):
    turned = experts.dispatch(expert[::-1], num_experts, capacity)
    token = jnp.where(turned.token < len(expert), len(expert) - 1 - turned.token, len(expert))
    return experts.Placement(turned.slot[::-1], turned.kept[::-1], token)


def columns_exact(logits, **options):
    found = sinkhorn.sinkhorn_plan(logits, **options)
    return found._replace(plan=found.plan / found.plan.sum(axis=0) / found.plan.shape[1], residual=0 * found.residual)


def one_sweep_less(logits, *, num_sweeps=None, **options):
    found = sinkhorn.sinkhorn_plan(logits, num_sweeps=None if num_sweeps is None else max(num_sweeps - 1, 0), **options)
    return found if num_sweeps is None else found._replace(sweeps=found.sweeps + 1)


def always_converged(logits, **options):
    return sinkhorn.sinkhorn_plan(logits, **options)._replace(converged=jnp.bool_(True))


def gate_from_the_plan(logits, k=1, **options):
    found = sinkhorn.sinkhorn_router(logits, k, **options)
    plan = sinkhorn.sinkhorn_plan(logits, num_sweeps=options.get("num_sweeps")).plan
    return found._replace(gate=jnp.take_along_axis(plan * len(plan), found.expert, axis=1))


def gates_swapped(logits, k=1, *, gate="softmax", **options):
    return sinkhorn.sinkhorn_router(logits, k, gate={"softmax": "sigmoid", "sigmoid": "softmax"}[gate], **options)


def evaluation_by_the_plan(logits, k=1, *, training=True, **options):
    return sinkhorn.sinkhorn_router(logits, k, training=True, **options)


def hash_by_division(token_ids, num_experts):
    return accelerated.routers.hash_layer.hash_layer(token_ids // num_experts, num_experts)


def gate_twice(params, x, expert, gate, capacity_factor=float("inf")):
    return experts.routed_ffn(params, x, expert, gate * gate, capacity_factor)


def capacity_rounded_down(num_tokens, num_experts, k, capacity_factor):
    return num_tokens if capacity_factor == float("inf") else int(capacity_factor * k * num_tokens / num_experts)


def loss_in_bits(*arguments, **options):
    found = transformer.loss(*arguments, **options)
    return found._replace(total=found.total / jnp.log(2.0), cross_entropy=found.cross_entropy / jnp.log(2.0))


def counts_no_router(*arguments, **options):
    found = accelerated.accounting.count(*arguments, **options)
    experts_, routed = arguments[5], round(arguments[1] * arguments[7])
    return found._replace(total_parameters=found.total_parameters - routed * arguments[0] * experts_)


PUBLIC = {
    # what is wrong: (where, how, the check that has to see it)
    "ties to the higher index": (
        "notation.top_k_indices", higher_index_wins,
        lambda b: test_notation.check_top_k_indices(b, TIED, "float32")),
    "-0.0 below 0.0": (
        "notation.top_k_indices", lambda scores, k: jax.lax.top_k(scores, k)[1],
        lambda b: test_notation.check_top_k_indices(b, TIED, "float32")),
    "hash by division": (
        "routers.hash_layer.hash_layer", hash_by_division,
        lambda b: test_hash_layer.check_hash_layer(b, np.arange(24), 5, "float32")),
    "plan with exact columns": (
        "routers.sinkhorn.sinkhorn_plan", columns_exact,
        lambda b: test_sinkhorn.check_plan(b, FREE, "float32", 1)),
    "one sweep less": (
        "routers.sinkhorn.sinkhorn_plan", one_sweep_less,
        lambda b: test_sinkhorn.check_plan(b, FREE, "float32", 1)),
    "a plan that always converged": (
        "routers.sinkhorn.sinkhorn_plan", always_converged,
        lambda b: test_sinkhorn.check_stopping(b, HARD, "float32")),
    "stops too late": (
        "routers.sinkhorn.sinkhorn_plan", lambda z: sinkhorn.sinkhorn_plan(z, num_sweeps=100),
        lambda b: test_sinkhorn.check_stopping(b, FREE, "float32")),
    "gate from the plan": (
        "routers.sinkhorn.sinkhorn_router", gate_from_the_plan,
        lambda b: test_sinkhorn.check_router(b, FREE, "float32", "softmax", True)),
    "sigmoid for softmax": (
        "routers.sinkhorn.sinkhorn_router", gates_swapped,
        lambda b: test_sinkhorn.check_router(b, LATTICE, "float32", "softmax", True)),
    "evaluation by the plan": (
        "routers.sinkhorn.sinkhorn_router", evaluation_by_the_plan,
        lambda b: test_sinkhorn.check_router(b, FREE, "float32", "softmax", False)),
    "capacity rounded down": (
        "experts.expert_capacity", capacity_rounded_down,
        lambda b: test_experts.check_expert_capacity(b, 10, 4, 1, 1.0)),
    "token before choice": (
        "experts.dispatch", token_before_choice, test_experts.check_order_of_dispatch),
    "later token first": (
        "experts.dispatch", later_token_first, lambda b: test_experts.check_dispatch(b, CROWDED, 2)),
    "GELU with erf": (
        "experts.gelu", lambda x: jax.nn.gelu(x, approximate=False),
        lambda b: test_experts.check_expert_ffn(b, CROWDED, "float32")),
    "gate twice": (
        "experts.routed_ffn", gate_twice, lambda b: test_experts.check_routed_ffn(b, CROWDED, 1.0, "float32")),
    "loss in bits": (
        "transformer.loss", loss_in_bits,
        lambda b: test_transformer.check_forward(b, case("dense", 0), "float32", True)),
    "router weights not counted": (
        "accounting.count", counts_no_router,
        lambda b: test_accounting.check_row(b, *test_accounting.TABLE[-3])),
}  # fmt: skip


@jax.custom_vjp
def first_choice_only(x, source, target):
    """`experts._permute_rows`, but its gradient forgets that a token can have more than one row."""
    return jnp.take(x, source, axis=0, mode="fill", fill_value=0)


first_choice_only.defvjp(
    lambda x, source, target: (first_choice_only(x, source, target), target),
    lambda target, g: (jnp.take(g, target[:, 0], axis=0, mode="fill", fill_value=0), None, None),
)


def frozen_gate(logits, expert, gate, gate_values=sinkhorn.gate_values):
    return jax.lax.stop_gradient(gate_values(logits, expert, gate))


def late_distances(length, d_model, sinusoids=transformer.sinusoids):
    return sinusoids(length + 1, d_model)[1:]


def shifted_by_one(logits, shift=transformer._shift):
    return jnp.roll(shift(logits), 1, axis=-1)


def always_training(params, x, tokens, config, training, held, block=transformer._routed_block):
    return block(params, x, tokens, config, True, held)


def no_stop(module):
    return proxy(jax, lax=proxy(jax.lax, stop_gradient=lambda x: x))


PRIVATE = {
    # what is wrong: (module, name, replacement, the check that has to see it)
    "gradient through the plan": (sinkhorn, "jax", no_stop(jax), test_sinkhorn.check_no_gradient_through_the_plan),
    "gate without gradient": (
        sinkhorn, "gate_values", frozen_gate,
        lambda b: test_sinkhorn.check_gate_gradient(b, FREE, "softmax", False, 1)),
    "gradient of the first choice only": (
        experts, "_permute_rows", first_choice_only, lambda b: test_experts.check_gradient(b, CROWDED, float("inf"))),
    "no causal mask": (
        transformer, "np", proxy(np, tril=lambda m: m),
        lambda b: test_transformer.check_causality(b, case("dense", 0), 1)),
    "distance off by one": (
        transformer, "sinusoids", late_distances,
        lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "shift off by one": (
        transformer, "_shift", shifted_by_one,
        lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "another epsilon in the norm": (
        transformer, "NORM_EPSILON", 1e-6, lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "evaluation routed as in training": (
        transformer, "_routed_block", always_training,
        lambda b: test_transformer.check_causality(b, case("sinkhorn", 11), 1)),
    "evaluation that depends on the batch": (
        transformer, "_routed_block", always_training,
        lambda b: test_transformer.check_batch_independence(b, case("sinkhorn", 11))),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_shares(monkeypatch):
    """What a wrong backend uses of a bound is nobody's business."""
    monkeypatch.setattr(bounds, "worst_share", {})


@pytest.mark.parametrize("bug", PUBLIC)
def test_public(bug):
    path, wrong, check = PUBLIC[bug]
    check(accelerated)
    with pytest.raises(AssertionError):
        check(altered(accelerated, path, wrong))


@pytest.mark.parametrize("bug", PRIVATE)
def test_private(bug, monkeypatch):
    module, name, wrong, check = PRIVATE[bug]
    check(accelerated)
    for cache in ("_compiled", "_gradient"):  # what is compiled already would not see the bug
        monkeypatch.setattr(harness, cache, functools.cache(getattr(harness, cache).__wrapped__))
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        check(accelerated)


class FirstOfEachGroup(oracle.transformer.ModelConfig):
    """A model that routes the first block of each group of 1/R and not the last."""

    def is_routed(self, block):
        return self.router != "dense" and block % self.period == 0


def test_other_blocks_routed():
    """Planted into a copy of the reference, which the suite also accepts as a backend."""
    drawn = case("sinkhorn", 2)
    honest = altered(oracle, "transformer.ModelConfig", oracle.transformer.ModelConfig, capabilities=())
    test_transformer.check_which_blocks_are_routed(honest, drawn)
    with pytest.raises(AssertionError, match="gates moved"):
        wrong = altered(oracle, "transformer.ModelConfig", FirstOfEachGroup, capabilities=())
        test_transformer.check_which_blocks_are_routed(wrong, drawn)
