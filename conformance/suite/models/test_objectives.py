"""The masked objective and padding in the whole model."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_nearly_same, assert_same
from routelaws.conformance.engine.harness import run
from routelaws.conformance.suite.models import test_models as models
from routelaws.reference import routed_block
from routelaws.reference import transformer as reference

MASKED = dict(objective="masked", mask_rate=0.4, mask_token=2)

IN_SEQUENCES = {
    "mixture of neighbours": ("mixture", dict(grouping="sequence", experts=5)),
    "mixture of one token": ("mixture", dict(grouping="sequence", group_size=1)),
    "expert_choice in sequences": ("expert_choice in sequences", {}),
}
"""Groups within one sequence: models of the menu and their changed fields."""

PLAIN = {name: (name, {}) for name in ("dense", *models.MODELS)}
MENU = PLAIN | IN_SEQUENCES
LIKE_ANOTHER = (
    "wide", "hash of the position", "bigram hash", "quantile, G = 4", "reinforce", "mixture of one", "joint",
    "mixture with two temperatures",
)  # fmt: skip
"""Models that treat padding like another model of the menu."""

IN_GROUPS = ("expert_choice", "mixture")
WITH_MASKED = (
    "dense", "wide above", "hash of the token before, k = 2, G = 2", "sinkhorn above, normed",
    "top_k with a bias, token order", "expert_choice", "mixture", *IN_SEQUENCES,
)  # fmt: skip
"""One model for each way in which tokens of a batch interact."""


def hidden_of(seed: int):
    """Return the hidden tokens of a small batch, [b, S]."""
    uniforms = np.random.default_rng([seed, 1]).random((models.BATCH, models.LENGTH))
    return reference.hidden_positions(uniforms, MASKED["mask_rate"])


@pytest.mark.asks("transformer.hidden_positions")
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 8)])
@given(data=st.data(), rate=st.sampled_from([0.01, 0.15, 0.5, 0.9, 1.0]))
def test_hidden_positions(backend, shape, data, rate):
    """Compare with the reference and the definition. Few different values make ties likely: the lower index wins."""
    cells = st.integers(0, 3).map(lambda quarter: quarter / 4)
    size = math.prod(shape)
    uniforms = np.array(data.draw(st.lists(cells, min_size=size, max_size=size))).reshape(shape)
    found = np.asarray(run(backend, "transformer.hidden_positions", "float32", uniforms, mask_rate=rate))
    assert_same(found, reference.hidden_positions(uniforms, rate), what=f"hidden of {uniforms}, rate {rate}")
    number = max(1, math.floor(rate * uniforms.shape[1] + 0.5))
    for row, values in zip(found, uniforms.tolist(), strict=True):
        order = sorted(range(len(values)), key=values.__getitem__)  # stable
        assert sorted(order[:number]) == np.flatnonzero(row).tolist(), f"hidden of {values}, rate {rate}"


@pytest.mark.asks("transformer.attention")
@pytest.mark.parametrize("length", [1, 2, 5])
def test_attention_in_both_directions(backend, length):
    """Compare with the reference, and with a reversed sequence with negative distances.

    The sine of a distance changes its sign with the distance and the cosine does not. Sines are the first half of a
    sinusoid.
    """
    random = np.random.default_rng(length)
    d, heads, kqv = 8, 2, 3
    params = {name: random.standard_normal((d, heads, kqv)) for name in ("query", "key", "value", "relative_key")}
    params["output"] = random.standard_normal((heads, kqv, d))
    x = random.standard_normal((2, length, d))
    turned = params | {"relative_key": params["relative_key"] * np.repeat([-1, 1], d // 2)[:, None, None]}
    found = np.asarray(run(backend, "transformer.attention", "float64", params, x, causal=False))
    back = np.asarray(run(backend, "transformer.attention", "float64", turned, x[:, ::-1], causal=False))
    wanted = reference.attention(params, x, causal=False)
    scale = UNIT["float64"] * np.abs(wanted).max()
    assert_close_bounded("transformer.logits", found, wanted, scale, what=f"attention, S = {length}")
    assert_close_bounded("transformer.logits", back[:, ::-1], wanted, scale, what=f"backwards, S = {length}")


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.hidden_positions", "transformer.loss")
@models.each_of(("mixture of neighbours",), WITH_MASKED)
def test_the_masked_objective(backend, name):
    base, own = MENU[name]
    models.check_model(backend, base, 11, hidden=hidden_of(11), **own, **MASKED)


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "transformer.hidden_positions", "transformer.loss")
@models.each_of(
    ("hash of the token before, k = 2, G = 2",),
    ["hash of the token before, k = 2, G = 2", "bigram hash", "MultiHash", "mixture", "mixture of neighbours",
     "sinkhorn, k = 4, G = 2"],
)  # fmt: skip
def test_hidden_tokens_are_not_seen(backend, name):
    """Other tokens at the hidden positions give the same logits and another loss."""
    base, own = MENU[name]
    changes = own | MASKED
    config = models.build(reference, base, **changes)
    params, tokens, noise, table = models.draw(config, 12)
    tokens, hidden = tokens[:, :-1], hidden_of(12)
    others = np.where(hidden, (tokens + 1) % config.vocab_size, tokens)
    traced = {key: value for key, value in (("noise", noise), ("table", table)) if value is not None}
    before, after = (
        run(
            backend,
            "transformer.loss",
            "float64",
            params,
            rows,
            traced=traced | {"hidden": hidden},
            config=models.build(backend.transformer, base, **changes),
        )
        for rows in (tokens, others)
    )
    assert_nearly_same(after.output.logits, before.output.logits, what=f"logits of {name}, hidden tokens changed")
    assert abs(float(after.cross_entropy) - float(before.cross_entropy)) > 1e-6, "the targets did not change"


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "transformer.apply")
@models.each_of(("mixture of neighbours",), IN_SEQUENCES)
def test_groups_within_a_sequence_do_not_depend_on_the_batch(backend, name):
    base, own = MENU[name]
    models.check_batch(backend, base, True, **own, **MASKED)


RAGGED = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)
"""Real tokens of a small batch: padding on the right, on the left, and a single token. The groups of positions 1 to 4
mix real and padded tokens."""

ONE_EMPTY = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
"""One sequence is all padding, and so are the last two positions of every sequence."""


def check_padded_model(backend, name: str, mask, masked: bool) -> None:
    base, own = MENU[name]
    more = dict(MASKED, hidden=hidden_of(13)) if masked else {}
    models.check_model(backend, base, 13, mask=mask, **own, **more)


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.hidden_positions", "transformer.loss")
@models.each_of(("expert_choice",), [name for name in PLAIN if name not in LIKE_ANOTHER])
def test_padding(backend, name):
    check_padded_model(backend, name, RAGGED, masked=False)


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.hidden_positions", "transformer.loss")
@pytest.mark.slow
@pytest.mark.parametrize("name", IN_GROUPS)
def test_padding_of_whole_groups(backend, name):
    check_padded_model(backend, name, ONE_EMPTY, masked=False)


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.hidden_positions", "transformer.loss")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", *IN_GROUPS, *IN_SEQUENCES])
def test_padding_of_the_masked_objective(backend, name):
    check_padded_model(backend, name, RAGGED, masked=True)


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "routed_block.decide")
@pytest.mark.parametrize("name", ["GShard", "top_k with a bias, token order"])
def test_padding_counts_for_nothing_in_the_auxiliary_losses(backend, name):
    more = dict(balance_weight=1.0, z_weight=0.5)
    config = models.build(reference, name, **more)
    params, tokens, noise, _ = models.draw(config, 15)
    random, mask = np.random.default_rng(15), RAGGED.reshape(-1)
    ffn = {"router": random.standard_normal((config.d_model, config.experts))}
    ffn |= {"bias": random.standard_normal(config.experts)} if config.has_bias else {}
    group = random.standard_normal((mask.size, config.d_model))
    given = dict(noise=None if noise is None else noise[0], mask=mask)
    found = run(
        backend,
        "routed_block.decide",
        "float64",
        ffn,
        group,
        tokens[:, :-1],
        traced=given,
        config=models.build(backend.transformer, name, **more),
        training=True,
    )
    wanted = routed_block.decide(ffn, group, tokens[:, :-1], config, training=True, **given)
    whole = routed_block.decide(ffn, group, tokens[:, :-1], config, training=True, noise=given["noise"])
    assert abs(wanted.auxiliary - whole.auxiliary) > 0.01, "the padding has to matter where it is not left out"
    unit = UNIT["float64"] * max(1.0, abs(wanted.auxiliary))
    assert_close_bounded("transformer.model", found.auxiliary, wanted.auxiliary, unit, what=f"{name}: auxiliary")
    assert (found.bias is None) == (wanted.bias is None)
    if wanted.bias is not None:
        assert_close_bounded("transformer.model", found.bias, wanted.bias, unit, what=f"{name}: bias")


ADDED = 3
"""Number of padded positions added to a batch."""


def with_padding(values, side: str, fill, axis: int = 1):
    """Return values [.., S, ...] with `ADDED` more positions along an axis."""
    ends = [(0, 0)] * np.ndim(values)
    ends[axis] = (ADDED, 0) if side == "left" else (0, ADDED)
    return np.pad(values, ends, constant_values=fill)


FROM_THE_START = ("hash of the token before, k = 2, G = 2", "hash of the position", "bigram hash")
"""Hashes that count from the start of a row, which padding on the left moves."""

ROUTERS = (
    "sinkhorn above, normed", "base, k = 2, G = 2", "quantile, drops", "GShard", "top_k with a bias, token order",
    "expert_choice", "mixture",
)  # fmt: skip
PADDED = [("reinforce with everything", side, True) for side in ("left", "right")] + [
    pytest.param(name, side, training, marks=pytest.mark.slow)
    for names, side, training in (
        (FROM_THE_START, "right", True),
        (ROUTERS, "left", True),
        (("base, k = 2, G = 2", "expert_choice in sequences", "GShard"), "right", False),  # evaluation differs
    )
    for name in names
]
"""Model, side of the padding, and training. Rewards that sum later rewards exclude padding, too."""


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "transformer.loss")
@pytest.mark.parametrize(("name", "side", "training"), PADDED)
def test_padding_changes_nothing(backend, name, side, training):
    """Compare a batch with padded positions with the reference on the batch without them."""
    base, own = MENU[name]
    config = models.build(reference, base, **own)
    params, tokens, noise, table = models.draw(config, 14)
    wanted = reference.loss(params, tokens, config, training=training, noise=noise, table=table)
    mask = with_padding(np.ones(tokens[:, :-1].shape, bool), side, False)
    traced = {"mask": mask} | ({} if table is None else {"table": table})
    if noise is not None:
        apart = noise.reshape(len(noise), *wanted.output.logits.shape[:2], *noise.shape[2:])
        padded = with_padding(apart, side, 0.5, axis=2)
        traced["noise"] = padded.reshape(len(noise), mask.size, *noise.shape[2:])
    found = run(
        backend,
        "transformer.loss",
        "float64",
        params,
        with_padding(tokens, side, 7),
        traced=traced,
        config=models.build(backend.transformer, base, **own),
        training=training,
    )
    what = f"loss of {name}, training {training}, with padding on the {side}"
    real = np.asarray(found.output.logits)[mask].reshape(wanted.output.logits.shape)
    pairs = [(real, wanted.output.logits, "logits")]
    pairs += [(getattr(found, field), getattr(wanted, field), field) for field in ("cross_entropy", "total")]
    pairs += [
        (getattr(found.output, field), getattr(wanted.output, field), field)
        for field in ("dropped_fraction", "auxiliary", "bias")
    ]
    for ours, theirs, field in pairs:
        if theirs is not None and np.size(theirs):
            scale = UNIT["float64"] * max(1.0, np.abs(theirs).max())
            assert_close_bounded("transformer.model", ours, theirs, scale, what=f"{what}: {field}")


@pytest.mark.asks(*models.MODEL_FUNCTIONS, "transformer.loss")
@pytest.mark.twin
def test_what_belongs_together_is_asked_for(backend):
    for module in (backend.transformer, reference):
        causal, masked = (models.build(module, "dense", **changes) for changes in ({}, MASKED))
        params, tokens, _, _ = models.draw(models.build(reference, "dense"), 0)
        with pytest.raises(ValueError, match="hidden is missing and the objective is masked"):
            module.loss(params, tokens, masked)
        with pytest.raises(ValueError, match="hidden is given and the objective is causal"):
            module.loss(params, tokens, causal, hidden=hidden_of(0))
    with pytest.raises(ValueError, match="no token has a target"):
        reference.loss(params, tokens, causal, mask=np.zeros(tokens[:, :-1].shape, bool))
