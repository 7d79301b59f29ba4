"""Parts that other tests reach only indirectly: each is called by name and compared by value."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws import reference
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import precisions_of, rounded, run, run_varied
from routelaws.conformance.suite.models import test_models as models
from routelaws.conformance.suite.models.test_objectives import RAGGED
from routelaws.conformance.suite.routers.test_top_k import FORMS, unit_of
from routelaws.conformance.suite.strategies import Logits, logits, precisions

SHAPES = ((7, 4),)


ROUTED_BLOCKS = {
    (6, 0.5): 3, (8, 1): 8, (12, 0.25): 3, (6, 1 / 3): 2, (6, 0.3333333333333333): 2, (6, 0.3333): 2, (24, 0.1667): 4,
    (12, 0.0833): 1, (1, 1.0): 1,
}  # fmt: skip
"""By hand: R is 1/2, 1, 1/4, 1/3 (three times, with fewer digits), 1/6, 1/12, 1."""


@pytest.mark.asks("accounting.routed_blocks")
def test_routed_blocks(backend):
    """The result is an integer, also for a rounded R."""
    for (num_blocks, frequency), wanted in ROUTED_BLOCKS.items():
        found = backend.accounting.routed_blocks(num_blocks, frequency)
        assert reference.accounting.routed_blocks(num_blocks, frequency) == wanted
        assert found == wanted, f"routed_blocks({num_blocks}, {frequency}): expected {wanted}, found {found}"


@pytest.mark.asks("notation.check_finite")
def test_check_finite(backend):
    precision = precisions_of(backend)[0]
    largest = np.finfo(precision).max
    for values in (np.arange(6.0).reshape(2, 3), np.zeros((0, 2)), np.array(2.5), np.array([-0.0, largest, -largest])):
        values = values.astype(precision)
        found = backend.notation.check_finite("values", values)
        assert_same(found, values, what=f"check_finite of shape {values.shape}")


def chosen(drawn: Logits) -> np.ndarray:
    """Return experts [T, 2], the second choice and the last."""
    return np.argsort(-drawn.values, axis=1, kind="stable")[:, [1, -1]]


@pytest.mark.asks("routers.sinkhorn.gate_values")
@given(drawn=logits(shapes=SHAPES), precision=precisions)
def test_gate_values(backend, drawn, precision):
    z, expert = drawn.values, chosen(drawn)
    spread = 2 + np.ptp(z, axis=1, keepdims=True) + np.abs(z).max()
    for gate in reference.routers.sinkhorn.GATES:
        wanted = reference.routers.sinkhorn.gate_values(z, expert, gate)
        found = run(backend, "routers.sinkhorn.gate_values", precision, z, expert, gate=gate)
        scale = UNIT[precision] * spread * wanted + np.finfo(precision).tiny
        what = f"gate_values, {drawn.family} {z.shape}, {gate}, {precision}"
        assert_close_bounded("sinkhorn.gate", found, wanted, scale, what=what)


@pytest.mark.asks("routers.top_k.chosen_gates")
@given(drawn=logits(shapes=SHAPES), precision=precisions, form=st.sampled_from(FORMS))
def test_chosen_gates(backend, drawn, precision, form):
    score, normalisation = form
    z, expert, options = drawn.values, chosen(drawn), dict(score=score, normalisation=normalisation)
    wanted = reference.routers.top_k.chosen_gates(z, expert, **options)
    found = run_varied(backend, "routers.top_k.chosen_gates", precision, z, expert, **options)
    scale = unit_of(z, precision) * wanted + np.finfo(precision).tiny
    what = f"chosen_gates, {drawn.family} {z.shape}, {options}, {precision}"
    assert_close_bounded("top_k.gate", found, wanted, scale, what=what)


@pytest.mark.asks("routers.expert_choice.selection_scores")
@given(drawn=logits(shapes=SHAPES), precision=precisions)
def test_selection_scores(backend, drawn, precision):
    """Log-probabilities agree up to rounding. For the sigmoid they are the logits."""
    z, path = drawn.values, "routers.expert_choice.selection_scores"
    what = f"selection_scores, {drawn.family} {z.shape}, {precision}"
    assert_same(run_varied(backend, path, precision, z, score="sigmoid"), z, what=f"{what}, sigmoid")
    wanted = reference.routers.expert_choice.selection_scores(z, "softmax")
    found = run_varied(backend, path, precision, z, score="softmax")
    assert_close_bounded("expert_choice.score", found, wanted, unit_of(z, precision), what=f"{what}, softmax")


def both(backend, name: str, **changes):
    """Return the configuration of a small model in the reference and in the backend."""
    return (models.build(room, name, **changes) for room in (reference.transformer, backend.transformer))


def given_besides(noise, table, **more) -> dict:
    more |= {"noise": None if noise is None else noise[0], "table": table}
    return {key: value for key, value in more.items() if value is not None}


def one_router(params: dict) -> dict:
    routed = params["routed_ffn"]
    found = {key: np.asarray(value)[0] for key, value in routed.items() if key in ("router", "router_bias", "bias")}
    if "baseline" in routed:
        found["baseline"] = {key: np.asarray(value)[0] for key, value in routed["baseline"].items()}
    return found


ROUTED_BLOCK = (
    "experts.routed_ffn",
    "routed_block.routed_block",
    "routed_block.decide",
    "routed_block.hash_table",
    "transformer.parameter_shapes",
    "transformer.draw_noise",
)
"""The functions that a test of a whole routed block asks for."""


@pytest.mark.asks(*ROUTED_BLOCK)
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_block(backend, training):
    name = "top_k with a bias, token order"
    precision = precisions_of(backend)[0]
    config, own = both(backend, name)
    params, tokens, noise, _ = models.draw(config, 16)
    ffn = {key: np.asarray(value)[0] for key, value in params["routed_ffn"].items()}
    x = np.random.default_rng(16).standard_normal((*tokens[:, :-1].shape, config.d_model))
    ffn, x = rounded((ffn, x), precision)
    given, options = (ffn, x, tokens[:, :-1]), dict(training=training)
    wanted = reference.routed_block.routed_block(*given, config, **options)
    found = run(backend, "routed_block.routed_block", precision, *given, config=own, **options)
    what = f"routed_block of {name}, training {training}, {precision}"
    models.assert_tree("transformer.block", found, wanted, UNIT[precision], what=what)
    assert not training or wanted.dropped_fraction > 0, "somebody has to be dropped for the capacity to matter"
    group = x.reshape(-1, config.d_model)
    wanted = reference.routed_block.decide(ffn, group, given[2], config, **options)
    found = run(backend, "routed_block.decide", precision, ffn, group, given[2], config=own, **options)
    what = f"decide of {name}, training {training}, {precision}"
    models.assert_tree("transformer.block", found, wanted, UNIT[precision], what=what)


TIGHT = {
    "GShard": dict(capacity_factor=0.4), "MultiHash": dict(capacity_factor=0.6),
    "base, k = 2, G = 2": dict(capacity_factor=0.7), "sinkhorn, k = 4, G = 2": dict(capacity_factor=0.7),
    "quantile, G = 4": dict(capacity_factor=0.7), "reinforce": dict(capacity_factor=0.7),
}  # fmt: skip
"""Capacities below the number of assignments, so the order matters."""

BLOCKS = [
    name for name, fields in models.MODELS.items()
    if "router" in fields and "sequences" not in name and "," not in fields["router"]  # a list is no single block
]  # fmt: skip
SLOWLY = ("mixture with two temperatures", "sinkhorn above, normed", "fine-grained")


@pytest.mark.asks(
    "experts.routed_ffn",
    "routed_block.routed_block",
    "routed_block.hash_table",
    "transformer.parameter_shapes",
    "transformer.draw_noise",
)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOWLY else n for n in BLOCKS])
def test_padded_block(backend, name):
    precision, mask = precisions_of(backend)[0], RAGGED
    config, own = both(backend, name, **TIGHT.get(name, {}))
    params, tokens, noise, table = models.draw(config, 16)
    ffn = reference.transformer._at(params["routed_ffn"], 0)
    x = np.random.default_rng(16).standard_normal((*mask.shape, config.d_model))
    ffn, x, more = rounded((ffn, x, given_besides(noise, table, mask=mask)), precision)
    given = (ffn, x, tokens[:, :-1])
    wanted = reference.routed_block.routed_block(*given, config, training=True, **more)
    found = run(backend, "routed_block.routed_block", precision, *given, traced=more, config=own, training=True)
    assert name not in TIGHT or wanted.dropped_fraction > 0, "somebody has to be dropped"
    if config.router == "expert_choice":
        real = reference.routers.expert_choice.group_by_position(mask, config.group_size)
        share = (wanted.routing.experts_per_token[real] == 0).mean()
        assert wanted.dropped_fraction == share, "of the real tokens, those that no expert took"
    pairs = {"output": (np.asarray(found.output)[mask], wanted.output[mask])}
    pairs |= {
        field: (getattr(found, field), getattr(wanted, field))
        for field in ("dropped_fraction", "auxiliary", "bias")
        if getattr(wanted, field) is not None
    }
    for field, (ours, theirs) in pairs.items():
        scale = UNIT[precision] * max(1.0, float(np.abs(theirs).max(initial=0)))
        assert_close_bounded("transformer.block", ours, theirs, scale, what=f"routed_block of {name}, padded: {field}")


HOLDING = [name for name in BLOCKS if name in TIGHT or name in ("top_k with a bias, token order", "bigram hash")]


def check_held(backend, name: str) -> None:
    precision = precisions_of(backend)[0]
    config, own = both(backend, name)
    params, tokens, noise, table = models.draw(config, 17)
    ffn = one_router(params)
    group, other = np.random.default_rng(17).standard_normal((2, tokens[:, :-1].size, config.d_model))
    ffn, group, more = rounded((ffn, group, given_besides(noise, table)), precision)
    decide = functools.partial(reference.routed_block.decide, config=config, training=True, **more)
    held = rounded(decide(ffn, other, tokens[::-1, :-1]).routing, precision)
    free, wanted = (decide(ffn, group, tokens[:, :-1], **options).routing for options in ({}, {"held": held}))
    assert not np.array_equal(free.expert, held.expert), "another selection has to be held for it to matter"
    found = run(
        backend,
        "routed_block.decide",
        precision,
        ffn,
        group,
        tokens[:, :-1],
        traced=more | {"held": held},
        config=own,
        training=True,
    ).routing
    assert_same(found.expert, held.expert, what=f"decide of {name}: held expert")
    for field in ("gate", "plan", "load"):
        ours, theirs = getattr(found, field), getattr(wanted, field)
        assert_close_bounded(
            "transformer.block",
            ours,
            theirs,
            UNIT[precision] * max(1.0, np.abs(theirs).max()),
            what=f"decide of {name} with another selection: {field}",
        )


@pytest.mark.asks(*ROUTED_BLOCK)
@pytest.mark.parametrize("name", HOLDING)
def test_a_selection_is_held(backend, name):
    check_held(backend, name)


@pytest.mark.asks(*ROUTED_BLOCK)
@pytest.mark.parametrize("name", HOLDING)
def test_decisions_in_evaluation(backend, name):
    """In evaluation a router has no noise, adds nothing to the loss, and keeps its bias."""
    precision = precisions_of(backend)[0]
    config, own = both(backend, name)
    params, tokens, _, table = models.draw(config, 18)
    ffn = one_router(params)
    group = np.random.default_rng(18).standard_normal((tokens[:, :-1].size, config.d_model))
    ffn, group, more = rounded((ffn, group, given_besides(None, table)), precision)
    wanted = reference.routed_block.decide(ffn, group, tokens[:, :-1], config, **more)
    found = run(backend, "routed_block.decide", precision, ffn, group, tokens[:, :-1], traced=more, config=own)
    assert float(found.auxiliary) == 0, f"decide of {name} in evaluation: auxiliary {found.auxiliary}, expected 0"
    models.assert_tree("transformer.block", found, wanted, UNIT[precision], what=f"decide of {name} in evaluation")


@pytest.mark.asks(
    "routed_block.routed_block",
    "routed_block.hash_table",
    "transformer.parameter_shapes",
    "transformer.draw_noise",
    "transformer.loss",
)
def test_the_credit_of_a_policy_is_held(backend):
    """The loss uses the given rewards and advantages, which are from other weights."""
    precision, name = precisions_of(backend)[0], "reinforce"
    config, own = both(backend, name, policy_weight=1.0, routing_frequency=1.0)
    (params, tokens, noise, _), (others, *_) = (models.draw(config, seed) for seed in (19, 20))
    params, others, noise = rounded((params, others, noise), precision)
    loss = functools.partial(reference.transformer.loss, tokens=tokens, config=config, noise=noise)
    credit = rounded(loss(others).credit, precision)
    free, wanted = loss(params), loss(params, held_credit=credit)
    found = run(
        backend,
        "transformer.loss",
        precision,
        params,
        tokens,
        traced={"noise": noise, "held_credit": credit},
        config=own,
    )
    assert abs(free.total - wanted.total) > 1e-3, "another credit has to matter"
    scale = UNIT[precision] * max(1.0, abs(wanted.total))
    assert_close_bounded("transformer.model", found.total, wanted.total, scale, what="loss with a credit that is held")


FILLED = [
    {}, *(fields for fields in models.MODELS.values() if "grouping" not in fields), dict(router="top_k", experts=4),
    dict(router="top_k", experts=4, bias_rate=0.1), dict(router="hash", experts=4, granularity=2),
]  # fmt: skip


def check_filled_in(backend, fields: dict) -> None:
    given = dict(vocab_size=13, d_model=24, heads=2, blocks=4) | fields
    wanted, found = (room.configuration.ModelConfig(**given) for room in (reference, backend))
    for field in dataclasses.fields(wanted):
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        assert ours == theirs, f"ModelConfig({fields}): {field.name}: expected {theirs!r}, found {ours!r}"


@pytest.mark.asks(because="a configuration is no function")
def test_what_a_configuration_fills_in(backend):
    for fields in FILLED:
        check_filled_in(backend, fields)
