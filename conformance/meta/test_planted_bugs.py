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
from routelaws.accelerated import attention, balance, experts, notation, routed_block, transformer
from routelaws.accelerated.kernels import assignment
from routelaws.accelerated.routers import base, expert_choice, hash_layer, quantile, sinkhorn, top_k
from routelaws.conformance.engine.harness import altered
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import (
    test_accounting,
    test_balance,
    test_base,
    test_expert_choice,
    test_experts,
    test_hash_family,
    test_hash_layer,
    test_hash_loads,
    test_notation,
    test_quantile,
    test_sinkhorn,
    test_top_k,
    test_transformer,
)
from routelaws.conformance.suite.strategies import Logits, Selection, case, lattice, tied

pytestmark = pytest.mark.slow
"""They try the suite, not the library; the automatic mutants do so in the large."""

RANDOM = np.random.default_rng(0)
TIED = Logits(tied(RANDOM, 16, 4), "tied", 2)
FREE = Logits(np.round(RANDOM.standard_normal((12, 3)) * 2, 2).astype(np.float32).astype(float), "free", 2)
LATTICE = Logits(lattice(RANDOM, 12, 3), "lattice", 1)
HARD = Logits((RANDOM.standard_normal((16, 4)) * 100).round(), "extreme", 1)
SEVEN = Logits(np.round(RANDOM.standard_normal((7, 4)), 2).astype(np.float32).astype(float), "free", 2)
LOW = Logits(np.tile([-150.0, -151.0, -130.0, -152.0], (7, 1)), "extreme", 2)
CROWDED = Selection(np.array([[0, 1], [0, 2], [1, 0], [0, 1], [2, 1], [0, 1]]), 3, "random", 1)

UNEVEN = test_base.draw_scores("anisotropic", (13, 3), 1.0, 1)
ALIKE = test_base.draw_scores("all alike", (13, 3), 1.0, 0)


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


def loss_without_balance(*arguments, **options):
    found = transformer.loss(*arguments, **options)
    return found._replace(total=found.cross_entropy)


def counts_no_router(*arguments, **options):
    found = accelerated.accounting.count(*arguments, **options)
    experts_, routed = arguments[5], round(arguments[1] * arguments[7])
    return found._replace(total_parameters=found.total_parameters - routed * arguments[0] * experts_)


def times_k(logits, expert, **options):
    found = balance.auxiliary_loss(logits, expert, **options)
    return found._replace(loss=found.loss * expert.shape[1], share=found.share)


def probability_of_the_chosen(logits, expert, **options):
    chosen = notation.one_hot(expert, logits.shape[1]).sum(axis=1)
    probability = (notation.softmax(logits) * chosen).mean(axis=0)
    found = balance.auxiliary_loss(logits, expert, **options)
    return found._replace(probability=probability, loss=len(probability) * (found.share * probability).sum())


def sigmoids_over_a_padded_sum(logits, expert, *, score="softmax", **options):
    scores = jax.nn.sigmoid(logits)
    probability = (scores / (scores.sum(axis=1, keepdims=True) + 1e-20)).mean(axis=0)
    found = balance.auxiliary_loss(logits, expert, **options)
    return found._replace(loss=len(probability) * (found.share * probability).sum())


def square_of_the_mean(logits):
    return notation.log_sum_exp(logits, axis=1).mean() ** 2


def bias_by_shares(bias, counts, *, rate=1e-3, recentre="none"):
    share = counts / counts.sum()
    return bias + rate * jnp.sign(share.mean() - share)


def bias_by_products(bias, counts, *, rate=1e-3, recentre="none"):
    return bias + rate * jnp.sign(counts.sum() - len(counts) * counts)


def bias_downhill(bias, counts, *, rate=1e-3, **options):
    return 2 * bias - balance.update_bias(bias, counts, rate=rate, **options)


def biased_gate(logits, k=1, *, bias=None, **options):
    found = top_k.top_k_router(logits, k, bias=bias, **options)
    return found._replace(gate=found.gate + (0 if bias is None else bias[found.expert]))


def bias_subtracted(logits, k=1, *, bias=None, **options):
    return top_k.top_k_router(logits, k, bias=None if bias is None else -bias, **options)


def chosen_by_scores(logits, k=1, *, bias=None, **options):
    return top_k.top_k_router(logits, k, bias=jnp.zeros(logits.shape[1]) if bias is None else bias, **options)


def softmax_first_and_last(logits, k=1, *, normalisation="none", allow_constant_gate=False, **options):
    return top_k.top_k_router(logits, k, normalisation="softmax", allow_constant_gate=True, **options)


def constant_gate_by_default(logits, k=1, *, allow_constant_gate=True, **options):
    return top_k.top_k_router(logits, k, allow_constant_gate=True, **options)


def sum_that_can_vanish(logits, k=1, *, normalisation="none", **options):
    found = top_k.top_k_router(logits, k, normalisation="none", **options)
    return found._replace(gate=found.gate / (found.gate.sum(axis=1, keepdims=True) + 1e-20))


def sampled_in_evaluation(logits, uniforms=None, *, held=None):
    return top_k.gshard_router(logits, jnp.full(len(logits), 0.9) if uniforms is None else uniforms, held=held)


def kept_below_the_gate(logits, uniforms=None, *, held=None):
    return top_k.gshard_router(logits, None if uniforms is None else jnp.minimum(2 * uniforms, 0.999), held=held)


def normalised_once_more(logits, uniforms=None, *, held=None):
    found = top_k.gshard_router(logits, uniforms, held=held)
    return found._replace(gate=found.gate / found.gate.sum(axis=1, keepdims=True))


def softmax_over_tokens(logits, capacity_factor=2.0, *, score="softmax", held=None):
    found = expert_choice.expert_choice_router(logits, capacity_factor, score=score, held=held)
    return found._replace(gate=jnp.take_along_axis(jax.nn.softmax(logits, axis=0).T, found.token, axis=1))


def last_expert_wins(params, x, choice):
    outputs = experts.expert_ffn(params["up"], params["down"], x[choice.token])
    return jnp.zeros_like(x).at[choice.token].set(choice.gate[..., None] * outputs)


def sequence_by_sequence(x, group_size):
    return x.reshape(-1, group_size, *x.shape[2:])


def table_with_repeats(uniforms, num_experts):
    return (uniforms * num_experts).astype(np.int32)


def emptiest_by_tokens(counts, num_experts, k=1):
    return hash_layer.balanced_table(np.ones_like(counts), num_experts, k)


def unseen_tokens_together(counts, num_experts, k=1):
    found = hash_layer.balanced_table(counts, num_experts, k)
    found[counts == 0] = np.arange(k)
    return found


def later_digits(vocab_size, num_experts, k=1):
    """Choice j is digit j of the id, counted among the experts not yet taken: 0 for the most frequent tokens."""
    table = np.zeros((vocab_size, k), np.int32)
    for token in range(vocab_size):
        rest, left = token, list(range(num_experts))
        for choice in range(k):
            rest, digit = divmod(rest, num_experts - choice)
            table[token, choice] = left.pop(digit)
    return table


def one_step(vocab_size, num_experts, k=1):
    return ((np.arange(vocab_size)[:, None] + np.arange(k)) % num_experts).astype(np.int32)


def every_step(vocab_size, num_experts, k=1):
    ids = np.arange(vocab_size)
    step = 1 + ids // num_experts % (num_experts - 1)
    return ((ids[:, None] + step[:, None] * np.arange(k)) % num_experts).astype(np.int32)


def always_the_emptiest(counts, num_experts, k=1):
    table, load, held = np.zeros((len(counts), k), np.int32), np.zeros(num_experts), np.zeros(num_experts)
    for token in np.argsort(-counts, kind="stable"):
        table[token] = np.lexsort((held, load))[:k]
        load[table[token]] += counts[token]
        held[table[token]] += 1
    return table


def emptiest_and_any_others(counts, num_experts, k=1):
    first = hash_layer.balanced_table(counts, num_experts, 1)
    return ((first + np.arange(k)) % num_experts).astype(np.int32)


def dealt_by_digits(cluster, num_experts, k=1):
    return later_digits(len(cluster), num_experts, k)[np.argsort(np.argsort(cluster, kind="stable"))]


def clusters_kept_together(cluster, num_experts, k=1):
    return hash_layer.modulo_table(max(cluster) + 1, num_experts, k)[cluster]


def experts_before_segments(table, num_experts):
    return (table * table.shape[1] + np.arange(table.shape[1])).astype(np.int32)


def across_sequences(token_ids, start=0):
    return jnp.roll(token_ids.reshape(-1), 1).at[0].set(start).reshape(token_ids.shape)


def mean_for_sum(token_ids, table, num_experts, *, gate="mean"):
    return hash_layer.table_router(token_ids, table, num_experts)


def empty_centres_lost(embeddings, centres, *, max_rounds=100):
    found = hash_layer.cluster_tokens(embeddings, centres, max_rounds=max_rounds)
    empty = np.bincount(found.cluster, minlength=len(centres)) == 0
    return found._replace(centres=np.where(empty[:, None], 0, found.centres))


def next_for_previous(token_ids, previous, tables, num_experts):
    return hash_layer.bigram_experts(previous, token_ids, tables, num_experts)


ROUTERS = {
    # as PUBLIC: balance, top-k, expert choice and the hash family
    "auxiliary loss k times too large": (
        "balance.auxiliary_loss", times_k, lambda b: test_balance.check_value_at_balance(b, 2, "assignments", 0)),
    "auxiliary loss of the chosen probabilities": (
        "balance.auxiliary_loss", probability_of_the_chosen,
        lambda b: test_balance.check_auxiliary_loss(b, FREE, "float32", "assignments", "softmax")),
    "a small number under the sum of sigmoids": (
        "balance.auxiliary_loss", sigmoids_over_a_padded_sum, test_balance.check_tiny_sigmoids),
    "z-loss of the mean": (
        "balance.z_loss", square_of_the_mean, lambda b: test_balance.check_z_loss(b, FREE, "float32")),
    "bias by rounded shares": (
        "balance.update_bias", bias_by_shares,
        lambda b: test_balance.check_update_bias(b, np.zeros(12), np.full(12, 11), "float32", 0.5, "none")),
    "bias by products that overflow": (
        "balance.update_bias", bias_by_products,
        lambda b: test_balance.check_update_bias(b, np.zeros(8), np.array([2**29] + [9] * 7), "float32", 0.5, "none")),
    "bias towards the full experts": (
        "balance.update_bias", bias_downhill,
        lambda b: test_balance.check_update_bias(b, np.zeros(7), np.arange(7), "float32", 0.5, "none")),
    "gate with the bias in it": (
        "routers.top_k.top_k_router", biased_gate,
        lambda b: test_top_k.check_bias(b, SEVEN, np.arange(4) / 8, "float32", "sigmoid", "none")),
    "bias subtracted": (
        "routers.top_k.top_k_router", bias_subtracted,
        lambda b: test_top_k.check_bias(b, SEVEN, np.arange(4) / 2, "float32", "sigmoid", "none")),
    "choice by scores that saturate": (
        "routers.top_k.top_k_router", chosen_by_scores, test_top_k.check_saturated_scores),
    "top-k, then softmax": (
        "routers.top_k.top_k_router", softmax_first_and_last,
        lambda b: test_top_k.check_top_k(b, SEVEN, "float32", 2, "softmax", "none")),
    "a constant gate without being asked": (
        "routers.top_k.top_k_router", constant_gate_by_default, test_top_k.check_constant_gate_is_refused),
    "a sum of gates that can vanish": (
        "routers.top_k.top_k_router", sum_that_can_vanish,
        lambda b: test_top_k.check_top_k(b, LOW, "float32", 2, "sigmoid", "sum")),
    "Switch with a gate of 1": (
        "routers.top_k.switch_router", functools.partial(top_k.top_k_router, k=1, normalisation="sum",
                                                         allow_constant_gate=True),
        lambda b: test_top_k.check_switch(b, SEVEN, "float32")),
    "second expert sampled in evaluation": (
        "routers.top_k.gshard_router", sampled_in_evaluation,
        lambda b: test_top_k.check_gshard(b, SEVEN, None, "float32")),
    "second expert kept half as often": (
        "routers.top_k.gshard_router", kept_below_the_gate,
        lambda b: test_top_k.check_gshard(b, SEVEN, np.arange(7) / 8, "float32")),
    "gates normalised after the second is left out": (
        "routers.top_k.gshard_router", normalised_once_more,
        lambda b: test_top_k.check_gshard(b, SEVEN, np.arange(7) / 8, "float32")),
    "softmax over tokens": (
        "routers.expert_choice.expert_choice_router", softmax_over_tokens,
        lambda b: test_expert_choice.check_choice(b, SEVEN, "float32", 2.0, "softmax")),
    "the last expert of a token wins": (
        "routers.expert_choice.expert_choice_ffn", last_expert_wins,
        lambda b: test_expert_choice.check_ffn(b, 2.0, "float32", 0)),
    "groups of neighbouring positions": (
        "routers.expert_choice.group_by_position", sequence_by_sequence, test_expert_choice.check_groups),
    "groups that are not causal": (
        "routers.expert_choice.group_by_position", sequence_by_sequence, test_expert_choice.check_causality),
    "an expert twice in a row": (
        "routers.hash_layer.random_table", table_with_repeats,
        lambda b: test_hash_family.check_random_table(b, (24, 5, 3), 0)),
    "emptiest by number of tokens": (
        "routers.hash_layer.balanced_table", emptiest_by_tokens,
        lambda b: test_hash_family.check_balanced_table(b, np.array([9, 1, 1, 9, 4, 1, 9]), 3, 1)),
    "unseen tokens to one expert": (
        "routers.hash_layer.balanced_table", unseen_tokens_together,
        lambda b: test_hash_family.check_balanced_table(b, np.zeros(9, int), 3, 1)),
    "dispersed like clustered": (
        "routers.hash_layer.dispersed_table", clusters_kept_together,
        lambda b: test_hash_family.check_dispersed_table(b, np.arange(24) % 3, 5, 2)),
    "later choices by later digits": (
        "routers.hash_layer.modulo_table", later_digits, lambda b: test_hash_loads.check_remainder(b, 1024, 64, 4)),
    "one step for all runs": ("routers.hash_layer.modulo_table", one_step, test_hash_loads.check_sets),
    "neighbours for the most frequent": (
        "routers.hash_layer.modulo_table", one_step, lambda b: test_hash_loads.check_remainder(b, 1024, 64, 8)),
    "steps that come round": (
        "routers.hash_layer.modulo_table", every_step, lambda b: test_hash_loads.check_remainder(b, 300, 16, 9)),
    "always the k emptiest": (
        "routers.hash_layer.balanced_table", always_the_emptiest,
        lambda b: test_hash_loads.check_balanced(b, 1024, 64, 4)),
    "neighbours of the emptiest": (
        "routers.hash_layer.balanced_table", emptiest_and_any_others,
        lambda b: test_hash_loads.check_balanced(b, 1000, 12, 4)),
    "clusters dealt out by digits": (
        "routers.hash_layer.dispersed_table", dealt_by_digits,
        lambda b: test_hash_loads.check_dispersed(b, (1024, 64, 4), 64)),
    "segments of one expert side by side": (
        "routers.hash_layer.multi_hash", experts_before_segments,
        lambda b: test_hash_family.check_multi_hash(b, "float32", 0)),
    "previous token of another sequence": (
        "routers.hash_layer.previous_tokens", across_sequences, test_hash_family.check_neighbours),
    "a mean where a sum is asked for": (
        "routers.hash_layer.table_router", mean_for_sum,
        lambda b: test_hash_family.check_table_router(b, "float32", "sum", 2, 0)),
    "empty clusters lose their centre": (
        "routers.hash_layer.cluster_tokens", empty_centres_lost, test_hash_family.check_cluster_ties),
    "bigram the wrong way round": (
        "routers.hash_layer.bigram_experts", next_for_previous, lambda b: test_hash_family.check_bigram(b, 0)),
}  # fmt: skip


def assigned(scores, expert, prices=None):
    """An assignment with another expert and its own numbers, as a wrong solver would report them."""
    prices = base.balanced_assignment(scores).prices if prices is None else prices
    objective = jnp.take_along_axis(scores, expert, axis=1).sum()
    return base.Assignment(expert, objective, prices, base._gap(scores, expert, prices))


def everyone_at_the_best(scores, k):
    return assigned(scores, jnp.argmax(scores, axis=1, keepdims=True).astype(jnp.int32))


def in_order_of_tokens(scores, k):
    """Each token in turn takes the best expert that has room: what a capacity does."""

    def take(room, row):
        e = jnp.argmax(jnp.where(room > 0, row, -jnp.inf)).astype(jnp.int32)
        return room.at[e].add(-1), e

    num_tokens, num_experts = scores.shape
    room = num_tokens // num_experts + (jnp.arange(num_experts) < num_tokens % num_experts)
    return assigned(scores, jax.lax.scan(take, room, scores)[1][:, None])


def last_experts_first(scores, k):
    found = base.balanced_assignment(scores[:, ::-1])
    return assigned(scores, scores.shape[1] - 1 - found.expert)


def one_swap_from_the_optimum(scores, k):
    expert = base.balanced_assignment(scores).expert
    other = jnp.argmax(expert[:, 0] != expert[0, 0])
    return assigned(scores, expert.at[0].set(expert[other]).at[other].set(expert[0]))


def free_places(scores, k):
    return assigned(scores, base.balanced_assignment(scores).expert, jnp.zeros(scores.shape[1], scores.dtype))


def no_price_for_one_more(scores, prices, k=1):
    num_tokens, num_experts = scores.shape
    best = jnp.sort(scores - prices, axis=1)[:, num_experts - k :]
    return best.sum() + num_tokens * k // num_experts * prices.sum()


def balanced_in_evaluation(logits, k=1, *, training=True, **options):
    return base.base_router(logits, k, training=True, **options)


def greedy_in_training(logits, k=1, *, training=True, **options):
    return base.base_router(logits, k, training=False, **options)


def gate_of_the_best(logits, k=1, **options):
    found = base.base_router(logits, **options)
    return found._replace(gate=jax.nn.sigmoid(logits).max(axis=1, keepdims=True))


def upper_end(values, rank):
    return jax.lax.top_k(values, rank + 1)[0][..., -1]


def bias_from_nothing(scores, bias, k=1, **options):
    return quantile.quantile_bias(scores, 0 * bias, k, **options)


def half_a_step(scores, bias, k=1, *, num_steps=1):
    return quantile.quantile_bias(scores, bias, k, num_steps=num_steps) / 2 + bias / 2 - bias.mean() / 2


def bias_added(logits, bias, k=1, **options):
    return quantile.quantile_router(logits, -bias, k, **options)


def gate_with_the_bias(logits, bias, k=1, **options):
    return quantile.quantile_router(logits - bias, 0 * bias, k, **options)


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
    "BASE without balance": (
        "routers.base.balanced_assignment", everyone_at_the_best,
        lambda b: test_base.check_assignment(b, UNEVEN, "float32")),
    "BASE in order of the tokens": (
        "routers.base.balanced_assignment", in_order_of_tokens, lambda b: test_base.check_optimum(b, UNEVEN)),
    "one swap from the optimum": (
        "routers.base.balanced_assignment", one_swap_from_the_optimum,
        lambda b: test_base.check_optimum(b, UNEVEN)),
    "another of several optima": (
        "routers.base.balanced_assignment", last_experts_first,
        lambda b: test_base.check_tie_rule(b, TIED.values[:6, :3])),
    "the last experts get one more": (
        "routers.base.balanced_assignment", last_experts_first,
        lambda b: test_base.check_assignment(b, ALIKE, "float32")),
    "prices that prove nothing": (
        "routers.base.balanced_assignment", free_places,
        lambda b: test_base.check_assignment(b, UNEVEN, "float32")),
    "a bound that forgets the additional tokens": (
        "routers.base.dual_bound", no_price_for_one_more,
        lambda b: test_base.check_dual_bound(b, UNEVEN, 0, "float32")),
    "BASE balanced in evaluation": (
        "routers.base.base_router", balanced_in_evaluation, lambda b: test_base.check_evaluation(b, UNEVEN)),
    "BASE greedy in training": (
        "routers.base.base_router", greedy_in_training,
        lambda b: test_base.check_router(b, UNEVEN, "float32", "sigmoid", True)),
    "gate of the best expert, not of the chosen one": (
        "routers.base.base_router", gate_of_the_best,
        lambda b: test_base.check_router(b, UNEVEN, "float32", "sigmoid", True)),
    "a bias that starts anew": (
        "routers.quantile.quantile_bias", bias_from_nothing,
        lambda b: test_quantile.check_bias(b, UNEVEN, 1, 0, "float32", 1)),
    "half a step": (
        "routers.quantile.quantile_bias", half_a_step,
        lambda b: test_quantile.check_bias(b, UNEVEN, 1, 0, "float32", 1)),
    "bias added": (
        "routers.quantile.quantile_router", bias_added,
        lambda b: test_quantile.check_router(b, UNEVEN, 1, 0, "float32", "sigmoid")),
    "gate with the bias": (
        "routers.quantile.quantile_router", gate_with_the_bias,
        lambda b: test_quantile.check_router(b, UNEVEN, 1, 0, "float32", "sigmoid")),
    "capacity rounded down": (
        "experts.expert_capacity", capacity_rounded_down,
        lambda b: test_experts.check_expert_capacity(b, 10, 4, 1, 1.0)),
    "token before choice": (
        "experts.dispatch", token_before_choice, test_experts.check_order_of_dispatch),
    "later token first": (
        "experts.dispatch", later_token_first, lambda b: test_experts.check_dispatch(b, CROWDED, 2)),
    "GELU with erf": (
        "experts.gelu", lambda x: jax.nn.gelu(x, approximate=False),
        lambda b: test_experts.check_gelu(b, CROWDED, "float32")),
    "gate twice": (
        "experts.routed_ffn", gate_twice, lambda b: test_experts.check_routed_ffn(b, CROWDED, 1.0, "float32")),
    "loss in bits": (
        "transformer.loss", loss_in_bits,
        lambda b: test_transformer.check_forward(b, case("dense", 0), "float32", True)),
    "balance loss left out": (
        "transformer.loss", loss_without_balance,
        lambda b: test_transformer.check_forward(b, case("top_k", 0), "float32", True)),
    "router weights not counted": (
        "accounting.count", counts_no_router,
        lambda b: test_accounting.check_row(b, *test_accounting.TABLE[-3])),
}  # fmt: skip
PUBLIC |= ROUTERS


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


def frozen_chosen_gate(*arguments, chosen_gates=top_k.chosen_gates):
    return jax.lax.stop_gradient(chosen_gates(*arguments))


def late_distances(length, d_model, first=0, *, sinusoids=transformer.sinusoids):
    return sinusoids(length + 1, d_model, first + 1)


def shifted_by_one(logits, keys, shift=attention._shift):
    return jnp.roll(shift(logits, keys), 1, axis=-1)


def always_training(*arguments, training, block=routed_block.routed_block, **options):
    return block(*arguments, training=True, **options)


def balanced_in_evaluation(*arguments, training, decide=routed_block.decide, **options):
    return decide(*arguments, training=True, **options)


def greedy_in_training(*arguments, training, decide=routed_block.decide, **options):
    return decide(*arguments, training=False, **options)


def no_stop(module):
    return proxy(jax, lax=proxy(jax.lax, stop_gradient=lambda x: x))


PRIVATE = {
    # what is wrong: (module, name, replacement, the check that has to see it)
    "gradient through the plan": (sinkhorn, "jax", no_stop(jax), test_sinkhorn.check_no_gradient_through_the_plan),
    "gate without gradient": (
        sinkhorn, "gate_values", frozen_gate,
        lambda b: test_sinkhorn.check_gate_gradient(b, FREE, "softmax", False, 1)),
    "gradient through the share": (
        balance, "jax", no_stop(jax),
        lambda b: test_balance.check_auxiliary_gradient(b, FREE, "assignments", "softmax", 1)),
    "top-k gate without gradient": (
        top_k, "chosen_gates", frozen_chosen_gate,
        lambda b: test_top_k.check_gate_gradient(b, SEVEN, "softmax", "none", 1)),
    "the later of equal tokens": (expert_choice, "top_k_indices", higher_index_wins, test_expert_choice.check_ties),
    "expert choice by probabilities that vanish": (
        expert_choice, "selection_scores", lambda z, score: notation.softmax(z),
        test_expert_choice.check_tiny_probabilities),
    "expert capacity rounded down": (
        expert_choice, "expert_capacity", capacity_rounded_down,
        lambda b: test_expert_choice.check_choice(b, SEVEN, "float32", 2.0, "softmax")),
    "BASE: gate without gradient": (
        base, "gate_values", frozen_gate, lambda b: test_base.check_gate_gradient(b, "sigmoid", False, 1)),
    "scores assigned in half precision": (
        base, "assign", lambda scores, k: assignment.assign(scores.astype(np.float16).astype(scores.dtype), k),
        lambda b: test_base.check_optimum(b, UNEVEN)),
    "upper ends of the intervals": (
        quantile, "_middle", upper_end, lambda b: test_quantile.check_convergence(b, 0, (64, 8))),
    "gradient through the bias": (
        quantile, "jax", no_stop(jax), test_quantile.check_no_gradient_through_the_step),
    "gradient of the first choice only": (
        experts, "_permute_rows", first_choice_only, lambda b: test_experts.check_gradient(b, CROWDED, float("inf"))),
    "no causal mask": (
        attention, "np", proxy(np, tri=lambda rows, columns, *_, dtype: np.ones((rows, columns), dtype)),
        lambda b: test_transformer.check_causality(b, case("dense", 0), 1)),
    "distance off by one": (
        transformer, "sinusoids", late_distances,
        lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "shift off by one": (
        attention, "_shift", shifted_by_one,
        lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "another epsilon in the norm": (
        transformer, "NORM_EPSILON", 1e-6, lambda b: test_transformer.check_own_routing(b, case("dense", 0), False)),
    "evaluation routed as in training": (
        transformer, "routed_block", always_training,
        lambda b: test_transformer.check_causality(b, case("sinkhorn", 11), 1)),
    "balance loss in evaluation": (
        routed_block, "decide", balanced_in_evaluation,
        lambda b: test_transformer.check_forward(b, case("top_k", 0), "float32", False)),
    "BASE greedy in training": (
        routed_block, "decide", greedy_in_training,
        lambda b: test_transformer.check_own_routing(b, case("base", 0), True)),
    "evaluation that depends on the batch": (
        transformer, "routed_block", always_training,
        lambda b: test_transformer.check_batch_independence(b, case("sinkhorn", 11))),
}  # fmt: skip


@pytest.mark.parametrize("bug", PUBLIC)
def test_public(bug):
    catch_public(*PUBLIC[bug])


@pytest.mark.parametrize("bug", PRIVATE)
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, *PRIVATE[bug])


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
