"""Experts from a dense model: at step 0 the routed model equals the dense model if gates sum to 1."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.runs.checkpoints import Checkpoints
from routelaws.accelerated.training.runs.weights import _is_params, load_run
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference import transformer
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.upcycling import upcycle

from .small_runs import make_run, saved_run

SHAPE = {"vocab_size": 12, "d_model": 8, "blocks": 4, "heads": 1}
EXACT = {
    "sum": {"router": "top_k", "experts": 4, "k": 2, "normalisation": "sum", "capacity_factor": float("inf")},
    "k = E": {"router": "top_k", "experts": 4, "k": 4, "normalisation": "softmax", "layout": "upper"},
    "hash": {"router": "hash", "experts": 4, "k": 1, "routing_frequency": 1.0},
    "two of a hash": {"router": "hash", "experts": 4, "k": 2},
    "equal gates of slices": {"router": "top_k", "experts": 2, "k": 2, "granularity": 2, "normalisation": "sum"},
    "slices of a hash": {"router": "hash", "experts": 2, "k": 2, "granularity": 2},
    "SwiGLU": {"router": "top_k", "experts": 4, "k": 3, "activation": "swiglu"},
}
"""Models whose gates sum to 1."""


def models(fields: dict) -> tuple[ModelConfig, ModelConfig]:
    """Return the routed model and the dense model of the same shape."""
    routed = ModelConfig(**SHAPE, **fields)
    same = {name: getattr(routed, name) for name in ("activation", "positions")}
    return routed, ModelConfig(**SHAPE, **same)


def check_same_loss(tokens: np.ndarray, *models: tuple[dict, ModelConfig]) -> None:
    found, wanted = (transformer.loss(params, tokens, config, training=False) for params, config in models)
    scale = 2.0**-53 * np.abs(wanted.output.logits).max()
    assert_close_bounded("transformer.loss", found.cross_entropy, wanted.cross_entropy, scale, what="loss")


@pytest.mark.parametrize("name", EXACT)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_loss_is_the_dense_one_where_gates_sum_to_1(name, seed):
    """The router is new; for slices it is a router of zeros (equal gates). No dense weight is an initial one."""
    random = np.random.default_rng(seed)
    routed, dense = models(EXACT[name])
    before, fresh = (transformer.init(random, config) for config in (dense, routed))
    before = jax.tree.map(lambda leaf: leaf + random.normal(0, 0.1, leaf.shape), before)
    if routed.granularity > 1 and routed.router != "hash":
        fresh["routed_ffn"]["router"] = 0 * fresh["routed_ffn"]["router"]
    params, tokens = upcycle(before, fresh, routed), random.integers(0, 12, (2, 6))
    check_same_loss(tokens, (params, routed), (before, dense))


def test_copies_differ_by_noise_and_by_redrawn_units():
    """Two experts in two slices of width 16. Noise redraws the quarter of units with the smallest uniforms."""
    random = np.random.default_rng(0)
    routed, dense = models({"router": "top_k", "experts": 2, "granularity": 2})
    before, fresh = (transformer.init(random, config) for config in (dense, routed))
    uniforms = random.random((2, 4, 16))
    changed = upcycle(before, fresh, routed, noise=0.5, redrawn=0.25, uniforms=uniforms)["routed_ffn"]
    for block, expert, unit in np.ndindex(2, 4, 16):
        new = (uniforms[block, expert] < uniforms[block, expert, unit]).sum() < 4
        column, layer = 16 * (expert % 2) + unit, 2 * block + 1  # the second and the fourth block are routed
        for name, factor in (("up", 1), ("down", 2)):
            ours, drawn = (tree[name][block, expert].T if name == "up" else tree[name][block, expert]
                           for tree in (changed, fresh["routed_ffn"]))  # fmt: skip
            old = before["dense_ffn"][name][layer]
            old = factor * (old.T if name == "up" else old)[column]
            assert np.allclose(ours[unit], drawn[unit] if new else old + 0.5 * drawn[unit])
    assert changed["router"] is fresh["routed_ffn"]["router"]


def test_the_dense_blocks_are_those_that_stay_dense():
    routed, dense = models({"router": "hash", "experts": 2, "layout": "upper"})
    before, fresh = (transformer.init(np.random.default_rng(s), c) for s, c in enumerate((dense, routed)))
    params = upcycle(before, fresh, routed)
    assert np.array_equal(params["dense_ffn"]["up"], before["dense_ffn"]["up"][:2])
    assert np.array_equal(params["routed_ffn"]["up"][1, 1], before["dense_ffn"]["up"][3])
    with pytest.raises(InputError, match="redrawn is 0.5; .*needs uniforms"):
        upcycle(before, fresh, routed, redrawn=0.5)
    wider = transformer.init(np.random.default_rng(0), dataclasses.replace(dense, d_model=16))
    with pytest.raises(InputError, match="the experts need down of shape .* the dense model gives"):
        upcycle(wider, fresh, routed)


def begun(fields: dict, folder, **changes):
    """Return a new run, its checkpoints, and its initial step and state."""
    run = make_run(fields, folder, **changes)
    kept = Checkpoints(run.checkpoints, print)
    return run, kept, *run._start(kept)


@pytest.fixture(scope="module")
def lender(small_fields, tmp_path_factory):
    """Return the folder of a dense run with a checkpoint at step 4 and moments of 2."""
    moments_of_2 = lambda state: state._replace(  # noqa: E731
        optimizer=jax.tree.map(lambda leaf: np.full_like(leaf, 2), state.optimizer)
    )
    return saved_run(small_fields, tmp_path_factory.mktemp("lender") / "dense", moments_of_2, at=4)


def test_a_run_begins_with_the_experts_of_a_dense_run(small_fields, lender, tmp_path):
    fields = small_fields | EXACT["k = E"] | {"init_from": str(lender)}
    run, kept, first, state = begun(fields, tmp_path / "run", init_optimizer=True)
    kept.save(2, state._asdict(), run._extra())
    kept.close()
    assert (first, run.initial_tokens, load_run(tmp_path / "run").tokens) == (0, 4 * 4 * 16, (4 + 2) * 4 * 16)
    tokens = np.random.default_rng(0).integers(0, 300, (2, 17))
    dense, routed = load_run(lender), load_run(tmp_path / "run")
    check_same_loss(tokens, *((_wide(saved.params), saved.config.model) for saved in (routed, dense)))
    moments = next(leaf for leaf in jax.tree.leaves(state.optimizer, is_leaf=_is_params) if _is_params(leaf))
    assert set(np.unique(moments["routed_ffn"]["up"])) == set(np.unique(moments["embedding"])) == {2}
    assert set(np.unique(moments["routed_ffn"]["router"])) == {0}
    fresh = begun(fields, tmp_path / "other", init_redraw=1.0)[3]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(fresh.optimizer))
    assert not np.any(fresh.params["routed_ffn"]["up"] == state.params["routed_ffn"]["up"])


def _wide(params: dict) -> dict:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 16}, r"vocabulary 300\) has different shapes; the first: blocks/.* \(2, 8.*, needed: \(2, 16"),
        (
            {"router": "dense", "experts": 1, "init_noise": 0.5},
            "init_noise is 0.5, but .*dense has no dense FFNs to copy",
        ),
        ({"router": "dense", "experts": 1, "init_redraw": 0.5}, "init_redraw is 0.5, but .*dense has no dense FFNs"),
    ],
)
def test_a_lender_that_does_not_fit_is_one_clear_line(small_fields, lender, tmp_path, changes, message):
    fields = {"router": "top_k", "experts": 2, "init_from": str(lender)} | changes
    with pytest.raises(InputError, match=message):
        begun(small_fields, tmp_path / "run", **fields)
