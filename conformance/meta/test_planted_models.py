"""Planted bugs in what joins routers and model: each is a mistake somebody could make, and a check has to see it."""

from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import routed_block, transformer
from routelaws.accelerated.routers import hash_layer
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_accounting, test_models, test_objectives

HASH, POLICY = "hash of the token before, k = 2, G = 2", "reinforce with everything"


def proxy(module, **changes):
    """Return a stand-in for a module with some names changed."""
    return SimpleNamespace(**(vars(module) | changes))


class CoarseExperts(transformer.ModelConfig):
    """A model that forgets the granularity when it counts experts."""

    @property
    def expert_count(self):
        return self.experts


def normal_noise(key, config, batch_size, sequence_length):
    drawn = transformer.draw_noise(key, config, batch_size, sequence_length)
    return None if drawn is None else jax.random.normal(key, drawn.shape)


def segments_overlap(config, **given):
    table = routed_block.hash_table(config, **given)
    return table % config.experts if config.hash == "multi" else table


def bias_forgotten(params, output):
    return params


def gate_over_all_choices(routing, config, mask):
    return routing._replace(gate=jnp.full_like(routing.gate, 1 / config.choices))


def in_sequences_always(params, x, config, training, held, mask, block=routed_block._expert_choice_block):
    return block(params, x, config, True, held, mask)


def bias_with_the_wrong_sign(logits, bias, *arguments, router=routed_block.quantile_router, **options):
    return router(logits, -bias, *arguments, **options)


def every_choice_asks(*arguments, mask=None, ffn=routed_block.routed_ffn, **options):
    return ffn(*arguments, **options)


def frozen_baseline(*arguments, value=routed_block.state_value):
    return jax.lax.stop_gradient(value(*arguments))


def value_in_place_of_advantage(*arguments, terms=transformer.policy_terms, **options):
    found = terms(*arguments, **options)
    return found._replace(advantage=-found.advantage)


def largest_hidden(uniforms, mask_rate):
    return transformer.hidden_positions(1 - uniforms, mask_rate)


def halves_to_even(uniforms, mask_rate):
    length = uniforms.shape[1]
    return transformer.hidden_positions(uniforms, max(1, round(mask_rate * length)) / length)


def distances_without_sign(params, x, *, causal=True, mask=None, attention=transformer.attention):
    """Attention in both directions that knows how far a token is, but not on which side."""
    even = params["relative_key"].at[: x.shape[-1] // 2].set(0) if not causal else params["relative_key"]
    return attention(params | {"relative_key": even}, x, causal=causal, mask=mask)


def shifted_by_one(logits, shift=transformer._shift_both):
    return jnp.roll(shift(logits), 1, axis=-1)


def what_is_hidden_is_read(tokens, config, hidden, mask, task=transformer._task):
    _, targets, counted = task(tokens, config, hidden, mask)
    return tokens, targets, counted


def every_token_predicted(tokens, config, hidden, mask, task=transformer._task):
    inputs, targets, _ = task(tokens, config, hidden, mask)
    return inputs, targets, mask


def padding_is_seen(params, x, *, causal=True, mask=None, attention=transformer.attention):
    return attention(params, x, causal=causal)


def by_position_always(x, mask, config, training, groups=routed_block._groups):
    return groups(x, mask, proxy(config, groups_by_position=lambda training: True), training)


def padding_takes_slots(*arguments, mask=None, ffn=routed_block.routed_ffn, **options):
    return ffn(*arguments, **options)


UNIFORMS = np.array([[0.5, 0.1, 0.9, 0.3, 0.7]])
PADDED = "top_k with a bias, token order"

PUBLIC = {
    "the largest uniforms hidden": (
        "transformer.hidden_positions", largest_hidden,
        lambda b: test_objectives.check_hidden_positions(b, UNIFORMS, 0.5)),
    "halves rounded to even": (
        "transformer.hidden_positions", halves_to_even,
        lambda b: test_objectives.check_hidden_positions(b, UNIFORMS, 0.5)),
    "distances without a sign": (
        "transformer.attention", distances_without_sign, lambda b: test_objectives.check_both_directions(b, 5)),
    "experts counted without granularity": (
        "transformer.ModelConfig", CoarseExperts,
        lambda b: test_accounting.check_built_model(b, "15M", "top_k", 8, Fraction(1, 2), k=2, granularity=4)),
    "bias not carried over": (
        "transformer.carry_bias", bias_forgotten, lambda b: test_models.check_bias(b, "quantile, drops")),
    "normal noise for Gumbel's": ("transformer.draw_noise", normal_noise, test_models.test_noise),
    "segments of MultiHash overlap": (
        "routed_block.hash_table", segments_overlap, lambda b: test_models.test_tables(b, "multi")),
}  # fmt: skip

PRIVATE = {
    "distances shifted by one": (
        transformer, "_shift_both", shifted_by_one, lambda b: test_objectives.check_both_directions(b, 5)),
    "hidden tokens are read": (
        transformer, "_task", what_is_hidden_is_read,
        lambda b: test_objectives.check_hidden_is_not_seen(b, "mixture of neighbours")),
    "a loss on every token": (
        transformer, "_task", every_token_predicted,
        lambda b: test_objectives.check_masked(b, "mixture of neighbours", 11)),
    "groups by position always": (
        routed_block, "_groups", by_position_always,
        lambda b: test_objectives.check_masked(b, "expert_choice in sequences", 11)),
    "padding is seen": (
        transformer, "attention", padding_is_seen,
        lambda b: test_objectives.check_padding_changes_nothing(b, "dense", True, True)),
    "padding takes slots": (
        routed_block, "routed_ffn", padding_takes_slots,
        lambda b: test_objectives.check_padding_changes_nothing(b, PADDED, True, True)),
    "narrow experts averaged": (
        routed_block, "_mean_of_choices", gate_over_all_choices, lambda b: test_models.check_model(b, HASH, 1)),
    "the token itself for the one before": (
        routed_block, "hashes", proxy(hash_layer, previous_tokens=lambda ids: ids),
        lambda b: test_models.check_model(b, HASH, 1)),
    "reward of one token for reward-to-go": (
        transformer, "reward_to_go", lambda reward: reward, lambda b: test_models.check_model(b, POLICY, 1)),
    "baseline without gradient": (
        routed_block, "state_value", frozen_baseline, lambda b: test_models.check_model(b, "reinforce", 1)),
    "advantage with the wrong sign": (
        transformer, "policy_terms", value_in_place_of_advantage, lambda b: test_models.check_model(b, POLICY, 1)),
    "evaluation grouped by sequence": (
        routed_block, "_expert_choice_block", in_sequences_always,
        lambda b: test_models.check_future(b, "expert_choice in sequences", training=False, leaks=False)),
    "bias added": (
        routed_block, "quantile_router", bias_with_the_wrong_sign,
        lambda b: test_models.check_model(b, "quantile, drops", 1)),
    "a second expert left out asks for a slot": (
        routed_block, "routed_ffn", every_choice_asks,
        lambda b: test_models.check_model(b, "GShard", 1, capacity_factor=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("bug", PUBLIC)
def test_public(bug):
    catch_public(*PUBLIC[bug])


@pytest.mark.slow  # each compiles a whole model
@pytest.mark.parametrize("bug", PRIVATE)
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, *PRIVATE[bug])


def test_the_planted_noise_is_noise():
    """The bug has to be the distribution, not a shape."""
    config = test_models.build(transformer, "reinforce")
    drawn = [np.asarray(draw(jax.random.key(0), config, 2, 3)) for draw in (normal_noise, transformer.draw_noise)]
    assert drawn[0].shape == drawn[1].shape and np.isfinite(drawn).all()
