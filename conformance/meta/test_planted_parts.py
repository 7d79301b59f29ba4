"""Planted bugs in parts that are called by their name, in activations and in plans after many sweeps.

As in `test_planted_bugs`: a check passes on what is right and has to fail on each mistake.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import accounting, configuration, routed_block, transformer
from routelaws.accelerated.laws import uncertainty
from routelaws.accelerated.routers import expert_choice, sinkhorn, top_k
from routelaws.conformance.meta.planting import catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_base, test_experts, test_parts, test_sinkhorn
from routelaws.conformance.suite.strategies import Logits, Selection

SEVEN = Logits(test_base.draw_scores("random", (7, 4), 2.0, 0).values, "free", 2)
FREE = Logits(test_base.draw_scores("random", (13, 3), 3.0, 0).values, "free", 2)
CHOSEN = Selection(np.array([[0, 1], [1, 2], [2, 0]]), 3, "random", 0)
BLOCK = "top_k with a bias, token order"


def block(b):
    test_parts.check_block(b, BLOCK, True)


def plan(b):
    test_sinkhorn.check_plan(b, FREE, "float32", 30)


def rounded_down(num_blocks, frequency):
    accounting.routed_blocks(num_blocks, frequency)
    return int(num_blocks * frequency)


def without_experts(quantity):
    return uncertainty.check_quantity(quantity)._replace(E=float("nan"))


def capacity_left_out(params, x, tokens, config, *, training=False, **more):
    return routed_block.routed_block(params, x, tokens, config, training=False, **more)


def old_bias(params, group, tokens, config, **options):
    return routed_block.decide(params, group, tokens, config, **options)._replace(bias=params["bias"])


def padding_that_asks(params, x, tokens, config, *, mask=None, **more):
    return routed_block.routed_block(params, x, tokens, config, **more)


def own_selection(params, group, tokens, config, *, held=None, **more):
    return routed_block.decide(params, group, tokens, config, **more)


def balanced_in_evaluation(params, group, tokens, config, *, training=False, **more):
    found = routed_block.decide(params, group, tokens, config, training=training, **more)
    return found if training else found._replace(auxiliary=jnp.asarray(1e-2))


def narrow_heads(**fields):
    return configuration.ModelConfig(**{"kqv_size": 8} | fields)


def own_credit(params, tokens, config, *, held_credit=None, **more):
    return transformer.loss(params, tokens, config, **more)


def a_little_warmer(logits, **options):
    return sinkhorn.sinkhorn_plan(logits / 1.001, **options)


def low_potentials(logits, **options):
    """The potentials of 30 sweeps in 16 bits."""
    found = sinkhorn.sinkhorn_plan(logits, **options)
    g = found.column_potential.astype(jnp.bfloat16).astype(logits.dtype)
    return found._replace(plan=jax.nn.softmax(logits + g, axis=1) / len(logits))


BUGS = {
    # what is wrong: (where, how, the check that has to see it)
    "a third of six is one": ("accounting.routed_blocks", rounded_down, test_parts.check_routed_blocks),
    "a quantity without its E": (
        "laws.uncertainty.check_quantity", without_experts, test_parts.check_good_quantities),
    "a table read flat": (
        "notation.check_finite", lambda name, values: np.ravel(values), test_parts.check_finite_values),
    "gates of the first experts": (
        "routers.sinkhorn.gate_values", lambda z, e, gate: sinkhorn.gate_values(z, 0 * e, gate),
        lambda b: test_parts.check_gate_values(b, SEVEN, "float32")),
    "gates that are not divided": (
        "routers.top_k.chosen_gates", lambda z, e, score, normalisation: top_k.chosen_gates(z, e, score, "none"),
        lambda b: test_parts.check_chosen_gates(b, SEVEN, "float32", "softmax", "sum")),
    "scores over the tokens": (
        "routers.expert_choice.selection_scores",
        lambda z, score: expert_choice.selection_scores(z.T, score).T,
        lambda b: test_parts.check_selection_scores(b, SEVEN, "float32")),
    "a block without a capacity": ("routed_block.routed_block", capacity_left_out, block),
    "a bias that stays": ("routed_block.decide", old_bias, block),
    "padding that asks for experts": (
        "routed_block.routed_block", padding_that_asks, lambda b: test_parts.check_padded_block(b, "GShard")),
    "a selection that is not held": (
        "routed_block.decide", own_selection, lambda b: test_parts.check_held(b, "quantile, G = 4")),
    "a balance loss in evaluation": (
        "routed_block.decide", balanced_in_evaluation, lambda b: test_parts.check_evaluation(b, "GShard")),
    "heads of a fixed width": (
        "configuration.ModelConfig", narrow_heads, lambda b: test_parts.check_filled_in(b, {})),
    "a credit that is not held": ("transformer.loss", own_credit, test_parts.check_held_credit),
    "exact GELU": (
        "experts.gelu", lambda x: jax.nn.gelu(x, approximate=False),
        lambda b: test_experts.check_gelu(b, CHOSEN, "float32")),
    "a temperature a thousandth off": ("routers.sinkhorn.sinkhorn_plan", a_little_warmer, plan),
    "potentials in 16 bits": ("routers.sinkhorn.sinkhorn_plan", low_potentials, plan),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug(bug):
    where, how, check = BUGS[bug]
    catch_public(where, how, check)
