"""Planted bugs in BASE with several experts per token and with padding; see `test_planted_bugs` for the others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.kernels import assignment
from routelaws.accelerated.routers import base
from routelaws.conformance import bounds
from routelaws.conformance.engine import harness
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_base

UNEVEN = test_base.draw_scores("anisotropic", (13, 3), 1.0, 1)
WIDE = test_base.draw_scores("anisotropic", (6, 8), 1.0, 2)
TIED = np.random.default_rng(5).integers(0, 3, (4, 4)) / 2.0


def assigned(scores, expert):
    """An assignment with other experts and its own numbers, as a wrong solver would report them."""
    prices = base.balanced_assignment(scores, expert.shape[1]).prices
    objective = jnp.take_along_axis(scores, expert, axis=1).sum()
    return base.Assignment(expert, objective, prices, base._gap(scores, expert, prices))


def in_order(scores, expert):
    order = jnp.argsort(-jnp.take_along_axis(scores, expert, axis=1), axis=1, stable=True)
    return jnp.take_along_axis(expert, order, axis=1)


def one_choice_after_the_other(scores, k):
    """First choices are assigned best, then the second ones among what is left: balanced, but no optimum."""
    first = base.balanced_assignment(scores).expert
    left = jnp.where(jnp.arange(scores.shape[1]) == first, -1e3, scores)
    return assigned(scores, in_order(scores, jnp.concatenate([first, base.balanced_assignment(left).expert], axis=1)))


def every_token_k_times(scores, k):
    """Copies of a token that may sit at one expert."""
    expert = base.balanced_assignment(jnp.repeat(scores, k, axis=0)).expert
    return assigned(scores, in_order(scores, expert.reshape(len(scores), k)))


def best_k_of_the_balanced_prices(scores, k):
    """The k best at the prices of k = 1, whose loads are others."""
    return assigned(scores, jax.lax.top_k(scores - base.balanced_assignment(scores).prices, k)[1])


def by_index(scores, k):
    found = base.balanced_assignment(scores, k)
    return found._replace(expert=jnp.sort(found.expert, axis=1))


def last_sets_first(scores, k):
    return assigned(scores, in_order(scores, scores.shape[1] - 1 - base.balanced_assignment(scores[:, ::-1], k).expert))


def prices_of_one_choice(scores, k):
    prices = base.balanced_assignment(scores).prices
    found = base.balanced_assignment(scores, k)
    return found._replace(prices=prices, gap=base._gap(scores, found.expert, prices))


def padding_takes_places(scores, k, *, mask):
    """Balanced over all rows, those without a token as well."""
    clean = jnp.where(mask[:, None] != 0, scores, 0)
    found = base.balanced_assignment(clean, k)
    return found._replace(expert=jnp.where(mask[:, None] != 0, found.expert, jnp.arange(k)))


def padding_at_the_last_experts(scores, k, *, mask):
    found = base.balanced_assignment(scores, k, mask=mask)
    return found._replace(expert=jnp.where(mask[:, None] != 0, found.expert, scores.shape[1] - 1 - jnp.arange(k)))


def last_row_is_never_padding(scores, k, *, mask):
    return base.balanced_assignment(scores, k, mask=mask.at[-1].set(1))


def shares_of_all_rows(logits, k, *, mask, **options):
    found = base.base_router(logits, k, mask=mask, **options)
    share = (mask != 0).mean()
    return found._replace(plan=found.plan * share, load=found.load * share)


def gate_of_padding(logits, k, *, mask, **options):
    found = base.base_router(logits, k, mask=mask, **options)
    return found._replace(gate=jnp.where(mask[:, None] != 0, found.gate, 0.5))


def held_without_mask(logits, k, *, mask, held=None, **options):
    return base.base_router(logits, k, mask=mask if held is None else None, held=held, **options)


def gates_that_sum_to_one(logits, k=1, **options):
    found = base.base_router(logits, k, **options)
    return found._replace(gate=found.gate / found.gate.sum(axis=1, keepdims=True))


def plan_of_the_first_choice(logits, k=1, **options):
    found = base.base_router(logits, k, **options)
    plan = jax.nn.one_hot(found.expert[:, 0], logits.shape[1]) / len(logits)
    return found._replace(plan=plan, load=plan.sum(axis=0))


def check_auction(backend) -> None:
    """Two of eight experts for each of six tokens, and no more missing than an increment for each place."""
    solve = functools.partial(backend.routers.base.balanced_assignment, k=2, method="auction", epsilon=1e-3)
    values = WIDE.values
    found = jax.jit(solve)(jnp.asarray(values, jnp.float32))
    expert = np.asarray(found.expert)
    load = np.bincount(expert.ravel(), minlength=8)
    assert load.max() - load.min() <= 1 and (expert[:, 0] != expert[:, 1]).all(), (load, expert)
    lost = test_base.scipy_optimum(values, 2) - np.take_along_axis(values, expert, axis=1).sum()
    rounding = harness.UNIT["float32"] * 12 * (np.abs(values).max() + float(found.prices.max()))
    bounds.check("base.auction", max(lost - 16 * 1e-3, 0.0), rounding)


PUBLIC = {
    # what is wrong: (where, how, the check that has to see it)
    "one choice after the other": (
        "balanced_assignment", one_choice_after_the_other, lambda b: test_base.check_optimum(b, WIDE, 2)),
    "an expert twice": (
        "balanced_assignment", every_token_k_times, lambda b: test_base.check_assignment(b, WIDE, "float32", 2)),
    "the k best at the prices of one": (
        "balanced_assignment", best_k_of_the_balanced_prices,
        lambda b: test_base.check_assignment(b, UNEVEN, "float32", 2)),
    "choices in the order of the experts": (
        "balanced_assignment", by_index, lambda b: test_base.check_assignment(b, UNEVEN, "float32", 2)),
    "another of several best sets": (
        "balanced_assignment", last_sets_first, lambda b: test_base.check_tie_rule(b, TIED, 2)),
    "prices of one choice": (
        "balanced_assignment", prices_of_one_choice, lambda b: test_base.check_assignment(b, WIDE, "float32", 2)),
    "padding takes places": (
        "balanced_assignment", padding_takes_places, lambda b: test_base.check_padding(b, UNEVEN, 2, 0, "float32")),
    "padding at the last experts": (
        "balanced_assignment", padding_at_the_last_experts,
        lambda b: test_base.check_padding(b, UNEVEN, 1, 0, "float32")),
    "the last row is never padding": (
        "balanced_assignment", last_row_is_never_padding,
        lambda b: test_base.check_padding(b, UNEVEN, 2, 0, "float32")),
    "shares of all rows": (
        "base_router", shares_of_all_rows, lambda b: test_base.check_padded_router(b, UNEVEN, 2, 0, True)),
    "padding with a gate": (
        "base_router", gate_of_padding, lambda b: test_base.check_padded_router(b, UNEVEN, 2, 0, False)),
    "what is held has no padding": (
        "base_router", held_without_mask, lambda b: test_base.check_padded_router(b, UNEVEN, 2, 0, True)),
    "gates that sum to one": (
        "base_router", gates_that_sum_to_one,
        lambda b: test_base.check_router(b, UNEVEN, "float32", "sigmoid", True, 2)),
    "plan of the first choice": (
        "base_router", plan_of_the_first_choice,
        lambda b: test_base.check_router(b, UNEVEN, "float32", "sigmoid", True, 2)),
}  # fmt: skip


def every_place_for_itself(scores, price, expert, step, bids=base._bids):
    return tuple(jnp.broadcast_to(bid, expert.shape) for bid in bids(scores, price, expert[:, :1], step))


def bids_of_one_size(scores, price, expert, step, bids=base._bids):
    choice, _ = bids(scores, price, expert, step)
    return choice, price[choice] - scores.min()


def slots_as_they_come(scores, slots):
    return np.ascontiguousarray(slots.reshape(-1, len(scores)).T)


def for_one_place(whole, price, k, everyone, more, solve=assignment.solve):
    """Prices, and with them the proof, of a problem with another number of additional tokens."""
    price[:] = 0
    return solve(whole, price.copy(), k, everyone, more)


PRIVATE = {
    # what is wrong: (module, name, replacement, the check that has to see it)
    "two places of a token at one expert": (base, "_bids", every_place_for_itself, check_auction),
    "bids of one size": (base, "_bids", bids_of_one_size, check_auction),
    "choices as the slots stand": (
        assignment, "in_order", slots_as_they_come, lambda b: test_base.check_assignment(b, WIDE, "float32", 2)),
    "prices forgotten": (
        assignment, "solve", for_one_place, lambda b: test_base.check_assignment(b, UNEVEN, "float32", 2)),
    "mask the wrong way round": (
        base, "_real_tokens", lambda mask, num_tokens: mask == 0,
        lambda b: test_base.check_padding(b, UNEVEN, 1, 0, "float32")),
}  # fmt: skip


@pytest.mark.parametrize("bug", PUBLIC)
def test_public(bug):
    name, wrong, check = PUBLIC[bug]
    catch_public(f"routers.base.{name}", wrong, check)


COMPILES = ("two places of a token at one expert", "bids of one size")  # the auction, twice each


@pytest.mark.parametrize("bug", [pytest.param(x, marks=[pytest.mark.slow] * (x in COMPILES)) for x in PRIVATE])
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, *PRIVATE[bug])
