"""Planted bugs in drop orders, padding and balance across devices; as `test_planted_bugs`, which has the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import balance, experts
from routelaws.accelerated.routers import expert_choice, hash_layer, top_k
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_balance, test_dispatch, test_expert_choice, test_hash_family, test_top_k
from routelaws.conformance.suite.strategies import Logits, Selection

RANDOM = np.random.default_rng(0)
FREE = Logits(np.round(RANDOM.standard_normal((12, 4)), 2).astype(np.float32).astype(float), "free", 2)
SEVEN = Logits(np.round(RANDOM.standard_normal((7, 4)), 2).astype(np.float32).astype(float), "free", 2)
PAIRS = Selection(np.array([RANDOM.permutation(4)[:2] for _ in range(9)]), 4, "random", 1)

# Experts.


def always_by_choice(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    return experts.dispatch(expert, num_experts, capacity, mask=mask)


def smallest_first(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    priority = None if priority is None else -priority
    return experts.dispatch(expert, num_experts, capacity, order=order, priority=priority, mask=mask)


def later_of_equals_first(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    if order == "priority":
        number = jnp.arange(expert.size).reshape(expert.shape[::-1]).T
        priority = jnp.where(priority == 0, 0, priority) + 1e-4 * number
    return experts.dispatch(expert, num_experts, capacity, order=order, priority=priority, mask=mask)


def everyone_asks(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    return experts.dispatch(expert, num_experts, capacity, order=order, priority=priority)


def tokens_ask_not_choices(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    mask = mask if mask is None or mask.ndim == 1 else mask.any(axis=1)
    return experts.dispatch(expert, num_experts, capacity, order=order, priority=priority, mask=mask)


def slots_that_nobody_uses(params, x, expert, gate, capacity_factor=float("inf"), *, order="choice", mask=None):
    """Padding gets slots and gate 0."""
    real = None if mask is None else jnp.asarray(mask, bool).reshape(len(mask), -1)
    if real is not None:
        x, gate = jnp.where(real, x, 0), jnp.where(real, gate, 0)
    return experts.routed_ffn(params, x, expert, gate, capacity_factor, order=order)


def size_of_the_gate(params, x, expert, gate, capacity_factor=float("inf"), *, order="choice", priority=None):
    priority = jnp.abs(gate) if order == "priority" and priority is None else priority
    return experts.routed_ffn(params, x, expert, gate, capacity_factor, order=order, priority=priority)


def share_of_all(params, x, expert, gate, capacity_factor=float("inf"), *, mask=None, **options):
    found = experts.routed_ffn(params, x, expert, gate, capacity_factor, mask=mask, **options)
    asked = 1 if mask is None else jnp.asarray(mask, bool).mean()
    return found._replace(dropped_fraction=found.dropped_fraction * asked)


def capacity_of_all(num_real, num_tokens, num_experts, k, capacity_factor):
    return jnp.minimum(num_real, experts.expert_capacity(num_tokens, num_experts, k, capacity_factor))


def capacity_in_floats(num_real, num_tokens, num_experts, k, capacity_factor):
    return jnp.minimum(num_real, jnp.ceil(jnp.float32(capacity_factor) * num_real * k / num_experts).astype(jnp.int32))


def runs_padding(params, x, expert, gate, asked, dropless=experts._dropless):
    return dropless(params, x, expert, gate, None)


# Balance.


def mask_forgotten(function):
    def wrong(*arrays, mask=None, **options):
        return function(*arrays, **options)

    return wrong


def mean_over_all_tokens(logits, *, mask=None, **options):
    share = 1 if mask is None else jnp.asarray(mask, bool).mean()
    return balance.z_loss(logits, mask=mask, **options) * share


def share_of_all_tokens(logits, expert, *, mask=None, dialect="assignments", **options):
    found = balance.auxiliary_loss(logits, expert, mask=mask, dialect=dialect, **options)
    share = balance.auxiliary_loss(jnp.zeros(logits.shape), expert, dialect=dialect).share
    return found._replace(share=share)


def mean_of_means(logits, *, mask=None, axis_name=None):
    found = balance.z_loss(logits, mask=mask)
    return found if axis_name is None else jax.lax.pmean(found, axis_name)


def mean_of_losses(logits, expert, *, axis_name=None, **options):
    found = balance.auxiliary_loss(logits, expert, **options)
    return found if axis_name is None else jax.lax.pmean(found, axis_name)


def counts_of_one_device(expert, num_experts, *, mask=None, axis_name=None):
    return balance.expert_counts(expert, num_experts, mask=mask)


def mask_after_the_logarithm(logits, *, mask=None, axis_name=None):
    """The value is right, and the gradient is not a number beside padding that is none."""
    squares, mask = balance.log_sum_exp(logits, axis=1) ** 2, jnp.asarray(mask, bool)
    total, number = jnp.where(mask, squares, 0).sum(), mask.sum()
    if axis_name is not None:
        total, number = jax.lax.psum((total, number), axis_name)
    return total / number


# Routers.


def unmasked_top_k(logits, k=1, *, mask=None, **options):
    """Padding counts in the loads; its gates are 0."""
    real = jnp.ones(len(logits), bool) if mask is None else jnp.asarray(mask, bool)
    found = top_k.top_k_router(jnp.where(real[:, None], logits, 0), k, **options)
    return found._replace(gate=jnp.where(real[:, None], found.gate, 0))


def gates_in_padding(logits, k=1, *, mask=None, **options):
    found = top_k.top_k_router(logits, k, mask=mask, **options)
    return found._replace(gate=jnp.where(found.gate == 0, 1 / k, found.gate))


def experts_of_padding(logits, k=1, *, bias=None, mask=None, **options):
    found = top_k.top_k_router(logits, k, bias=bias, mask=mask, **options)
    if bias is None or mask is None:
        return found
    other = top_k.top_k_indices(jnp.broadcast_to(bias, logits.shape), k)
    return found._replace(expert=jnp.where(jnp.asarray(mask, bool)[:, None], found.expert, other))


def shared_by_all_tokens(logits, uniforms=None, *, mask=None, **options):
    found = top_k.gshard_router(logits, uniforms, mask=mask, **options)
    share = 1 if mask is None else jnp.asarray(mask, bool).mean()
    return found._replace(plan=found.plan * share, load=found.load * share)


def cleaned_at_the_end(logits, uniforms=None, *, mask=None, **options):
    found = top_k.gshard_router(logits, uniforms, **options)
    return found if mask is None else found._replace(gate=jnp.where(jnp.asarray(mask, bool)[:, None], found.gate, 0))


def switch_without_a_mask(logits, *, held=None, mask=None):
    return top_k.switch_router(jnp.nan_to_num(logits), held=held)


def capacity_of_the_whole_group(num_real, *arguments):
    return jnp.minimum(num_real, experts.expert_capacity(*arguments))


def gates_of_empty_places(logits, capacity_factor=2.0, *, mask=None, **options):
    found = expert_choice.expert_choice_router(logits, capacity_factor, mask=mask, **options)
    return found._replace(gate=jnp.where(found.gate == 0, found.gate[:, :1], found.gate))


def empty_places_counted(logits, capacity_factor=2.0, *, mask=None, held=None, **options):
    found = expert_choice.expert_choice_router(logits, capacity_factor, mask=mask, held=held, **options)
    counts = jnp.zeros(len(logits), jnp.int32).at[found.token].add(1)
    return found._replace(experts_per_token=counts)


def next_in_line(logits, capacity_factor=2.0, *, mask=None, **options):
    """Empty places hold the tokens that come next, padding at last."""
    found = expert_choice.expert_choice_router(logits, capacity_factor, mask=mask, **options)
    if mask is None:
        return found
    scores = jnp.where(jnp.asarray(mask, bool)[:, None], logits, -jnp.inf)
    token = jax.lax.top_k(scores.T, found.token.shape[1])[1]
    return found._replace(token=jnp.where(found.gate == 0, token, found.token))


def padding_in_empty_places(logits, capacity_factor=2.0, *, mask=None, **options):
    found = expert_choice.expert_choice_router(logits, capacity_factor, mask=mask, **options)
    return found._replace(token=jnp.where(found.gate == 0, jnp.argmin(mask), found.token))


def padding_chosen(logits, capacity_factor=2.0, *, mask=None, **options):
    return expert_choice.expert_choice_router(jnp.nan_to_num(logits), capacity_factor, **options)


def selection_forgotten(logits, capacity_factor=2.0, *, mask=None, held=None, **options):
    """A choice that is held is used without the mask."""
    held_mask = mask if held is None else None
    return expert_choice.expert_choice_router(
        jnp.nan_to_num(logits), capacity_factor, mask=held_mask, held=held, **options
    )


def padding_by_its_id(token_ids, num_experts, *, mask=None):
    found = hash_layer.hash_layer(token_ids, num_experts, mask=mask)
    return found._replace(expert=(token_ids % num_experts)[:, None].astype(jnp.int32))


def padding_at_expert_0(token_ids, num_experts, *, mask=None):
    ids = token_ids if mask is None else jnp.where(jnp.asarray(mask, bool), token_ids, 0)
    found = hash_layer.hash_layer(ids, num_experts)
    return found._replace(gate=found.gate if mask is None else found.gate * jnp.asarray(mask, bool)[:, None])


def ids_that_are_none(token_ids, table, num_experts, *, gate="mean", mask=None):
    """Looked up first, and a gate that is not a number times 0 is none either."""
    found = hash_layer.table_router(token_ids, table, num_experts, gate=gate, mask=mask)
    outside = (token_ids < 0) | (token_ids >= len(table))
    return found._replace(gate=jnp.where(outside[:, None], jnp.nan, found.gate))


def gate_in_padding(expert, num_experts, *, gate="mean", mask=None):
    found = hash_layer.fixed_router(expert, num_experts, gate=gate, mask=mask)
    return found._replace(gate=jnp.where(found.gate == 0, 1, found.gate))


def divided_by_all(expert, num_experts, *, gate="mean", mask=None):
    found = hash_layer.fixed_router(expert, num_experts, gate=gate, mask=mask)
    share = 1 if mask is None else jnp.asarray(mask, bool).mean()
    return found._replace(plan=found.plan * share)


def residual_of_all(expert, num_experts, *, gate="mean", mask=None):
    found = hash_layer.fixed_router(expert, num_experts, gate=gate, mask=mask)
    load = balance.expert_counts(jnp.clip(expert, 0), num_experts) / expert.size
    return found._replace(residual=jnp.abs(num_experts * load - 1).max())


def padding_check(factor, order):
    return lambda b: test_dispatch.check_padding(b, PAIRS, factor, order, "float32")


def choice_check(b):
    test_expert_choice.check_padding(b, SEVEN, "float32", 2.0, 0)


def top_k_check(b):
    test_top_k.check_padding(b, SEVEN, "float32", 0)


def hash_check(b):
    test_hash_family.check_padding(b, "float32", "mean", 0)


def balance_check(b):
    test_balance.check_padding(b, FREE, "float32", "tokens", "softmax", 0)


def axis_check(b):
    test_balance.check_axis(b, True, 0)


PUBLIC = {
    # what is wrong: (where, how, the check that has to see it)
    "every order by choice": ("experts.dispatch", always_by_choice, test_dispatch.check_orders_by_hand),
    "an order that looks at later tokens": (
        "experts.dispatch", lambda *a, order, **options: always_by_choice(*a, **options),
        test_dispatch.check_what_later_tokens_change),
    "the smallest priority first": (
        "experts.dispatch", smallest_first,
        lambda b: test_dispatch.check_dispatch_options(b, PAIRS, 3, "priority", "nothing")),
    "the later of equal priorities first": (
        "experts.dispatch", later_of_equals_first, test_dispatch.check_orders_by_hand),
    "a mask without effect": (
        "experts.dispatch", everyone_asks,
        lambda b: test_dispatch.check_dispatch_options(b, PAIRS, 3, "choice", "tokens")),
    "a mask of tokens for one of choices": (
        "experts.dispatch", tokens_ask_not_choices,
        lambda b: test_dispatch.check_dispatch_options(b, PAIRS, 3, "choice", "choices")),
    "padding that takes slots": ("experts.routed_ffn", slots_that_nobody_uses, padding_check(1.0, "choice")),
    "dropped fraction of all": ("experts.routed_ffn", share_of_all, padding_check(1.0, "choice")),
    "the absolute gate for a priority": (
        "experts.routed_ffn", size_of_the_gate,
        lambda b: test_dispatch.check_order_of_drops(b, PAIRS, 0.6, "priority")),
    "z-loss with padding": ("balance.z_loss", mask_forgotten(balance.z_loss), balance_check),
    "z-loss divided by all tokens": ("balance.z_loss", mean_over_all_tokens, balance_check),
    "auxiliary loss with padding": (
        "balance.auxiliary_loss", mask_forgotten(balance.auxiliary_loss), balance_check),
    "share of padding": ("balance.auxiliary_loss", share_of_all_tokens, balance_check),
    "probabilities of padding": (
        "balance.mean_probability", mask_forgotten(balance.mean_probability), balance_check),
    "padding counted": ("balance.expert_counts", mask_forgotten(balance.expert_counts), balance_check),
    "a mean of the means of devices": ("balance.z_loss", mean_of_means, axis_check),
    "a mean of the losses of devices": ("balance.auxiliary_loss", mean_of_losses, axis_check),
    "counts of one device": ("balance.expert_counts", counts_of_one_device, axis_check),
    "z-loss masked too late": ("balance.z_loss", mask_after_the_logarithm, test_balance.check_axis_gradient),
    "top-k with padding in its loads": ("routers.top_k.top_k_router", unmasked_top_k, top_k_check),
    "gates in the padding": ("routers.top_k.top_k_router", gates_in_padding, top_k_check),
    "padding sent by the bias": ("routers.top_k.top_k_router", experts_of_padding, top_k_check),
    "GShard's mass shared by all tokens": ("routers.top_k.gshard_router", shared_by_all_tokens, top_k_check),
    "GShard masked too late": (
        "routers.top_k.gshard_router", cleaned_at_the_end, test_top_k.check_padding_gradient),
    "Switch without a mask": ("routers.top_k.switch_router", switch_without_a_mask, top_k_check),
    "gates of empty places": (
        "routers.expert_choice.expert_choice_router", gates_of_empty_places, choice_check),
    "empty places counted": ("routers.expert_choice.expert_choice_router", empty_places_counted, choice_check),
    "the next in line in empty places": ("routers.expert_choice.expert_choice_router", next_in_line, choice_check),
    "padding beside gradients": (
        "routers.expert_choice.expert_choice_router", padding_in_empty_places,
        test_expert_choice.check_padding_gradient),
    "padding chosen": ("routers.expert_choice.expert_choice_router", padding_chosen, choice_check),
    "a held choice without its mask": (
        "routers.expert_choice.expert_choice_router", selection_forgotten, choice_check),
    "padding hashed": ("routers.hash_layer.hash_layer", padding_by_its_id, hash_check),
    "padding in the load of expert 0": ("routers.hash_layer.hash_layer", padding_at_expert_0, hash_check),
    "ids of padding looked up": ("routers.hash_layer.table_router", ids_that_are_none, hash_check),
    "padding with a gate": ("routers.hash_layer.fixed_router", gate_in_padding, hash_check),
    "mass divided by all tokens": ("routers.hash_layer.fixed_router", divided_by_all, hash_check),
    "residual of all tokens": ("routers.hash_layer.fixed_router", residual_of_all, hash_check),
}  # fmt: skip

PRIVATE = {
    # what is wrong: (module, name, replacement, the check that has to see it)
    "capacity of padding too": (
        experts, "_capacity_of_real", capacity_of_all, padding_check(1.0, "choice")),
    "capacity by rounded numbers": (
        experts, "_capacity_of_real", capacity_in_floats,
        lambda b: test_dispatch.check_capacity_of_real(b, 2, 120)),
    "padding run where nothing is dropped": (
        experts, "_dropless", runs_padding, padding_check(float("inf"), "choice")),
    "expert choice: capacity of padding too": (
        expert_choice, "_capacity_of_real", capacity_of_the_whole_group, choice_check),
}  # fmt: skip


SLOW = ("an order that looks at later tokens", "the absolute gate for a priority", "z-loss masked too late",
        "padding beside gradients", "top-k with padding in its loads", "z-loss with padding",
        "the smallest priority first", "every order by choice")  # fmt: skip
"""What takes a second or more to compile, where a cheaper bug is like it."""


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=pytest.mark.slow) if bug in SLOW else bug for bug in PUBLIC])
def test_public(bug):
    catch_public(*PUBLIC[bug])


@pytest.mark.parametrize("bug", PRIVATE)
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, *PRIVATE[bug])
