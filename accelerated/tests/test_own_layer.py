"""The layers of docs/own_layer.md run unchanged, and agree with the reference."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import routelaws.accelerated as accelerated
from routelaws.accelerated import experts, routers
from routelaws.reference.experts import routed_ffn
from routelaws.reference.routers.sinkhorn import sinkhorn_router

PAGE = (Path(accelerated.__file__).parents[1] / "docs" / "own_layer.md").read_text(encoding="utf-8")
PLAIN, PRUNED, FLAX, EQUINOX = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

WEIGHTS = ("router", "up", "down")


@pytest.fixture(scope="module")
def plain() -> dict:
    names: dict = {}
    exec(compile(PLAIN, "own_layer.md", "exec"), names)
    return names


def by_the_reference(params, x, training, mask=None):
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    tokens = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
    real = None if mask is None else np.asarray(mask).reshape(-1)
    routing = sinkhorn_router(tokens @ weights["router"], training=training, mask=real)
    slots = 1.25 if training else float("inf")
    return routed_ffn(weights, tokens, routing.expert, routing.gate, slots, mask=real)


def close(found, wanted) -> bool:
    """Return whether all but a few tokens agree. A token near a tie may have another expert in float32."""
    rows = np.abs(np.asarray(found).reshape(wanted.shape) - wanted).max(axis=1) < 1e-4
    return rows.mean() > 0.97


@pytest.mark.parametrize(("training", "padded"), [(True, True), (False, False)])
def test_the_plain_layer_is_that_of_the_reference(plain, training, padded):
    mask = jnp.arange(32) < jnp.array([[32], [20]] * 4) if padded else None
    layer = jax.jit(plain["layer"], static_argnames="training")
    output, dropped = layer(plain["params"], plain["x"], training=training, mask=mask)
    wanted = by_the_reference(plain["params"], plain["x"], training, mask)
    assert close(output, wanted.output)
    assert abs(float(dropped) - wanted.dropped_fraction) < 0.02 and (training or float(dropped) == 0)
    if padded:
        assert not np.asarray(output)[~np.asarray(mask)].any()


def test_the_gradient_reaches_router_and_experts(plain):
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(plain["gradient"]))


def test_nan_in_padding_reaches_neither_output_nor_gradient(plain):
    mask = jnp.arange(32) < jnp.array([[32], [20]] * 4)
    x = jnp.where(mask[:, :, None], plain["x"], jnp.nan)

    def mean_square(params, x):
        return jnp.mean(plain["layer"](params, x, training=True, mask=mask)[0] ** 2)

    found, wanted = (jax.jit(jax.grad(mean_square))(plain["params"], each) for each in (x, jnp.nan_to_num(x)))
    for name, leaf in found.items():
        assert np.isfinite(leaf).all() and np.array_equal(leaf, wanted[name]), name


def test_a_pruned_layer_is_one_of_the_other_experts(plain):
    names = dict(plain)
    exec(compile(PRUNED, "own_layer.md", "exec"), names)
    others = {name: plain["params"][name][:, :3] if name == "router" else plain["params"][name][:3] for name in WEIGHTS}
    wanted = by_the_reference(others, plain["x"], training=True)
    assert close(names["pruned"].output, wanted.output)
    assert np.allclose(names["routing"].load, [1 / 3, 1 / 3, 1 / 3, 0], atol=0.02)


@pytest.mark.library("flax")
def test_the_flax_layer_is_the_plain_one(plain):
    pytest.importorskip("flax")
    names = dict(plain)
    exec(compile(FLAX, "own_layer.md", "exec"), names)
    weights = {name: getattr(names["module"], name)[...] for name in WEIGHTS}
    output, dropped = plain["layer"](weights, plain["x"], training=True)
    assert np.allclose(names["flax_output"], output, atol=1e-6) and names["flax_dropped"] == dropped
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(names["flax_gradient"]))


@pytest.mark.library("equinox")
def test_the_equinox_layer_is_the_plain_one(plain):
    pytest.importorskip("equinox")
    names = dict(plain)
    exec(compile(EQUINOX, "own_layer.md", "exec"), names)
    assert np.allclose(names["equinox_output"], plain["output"], atol=1e-6)
    assert names["equinox_dropped"] == plain["dropped"]
    for name in WEIGHTS:
        assert np.allclose(getattr(names["equinox_gradient"], name), plain["gradient"][name], atol=1e-6)


ROUTERS_WITH_A_MASK = {
    "sinkhorn": lambda logits, mask: routers.sinkhorn_router(logits, num_sweeps=2, mask=mask),
    "quantile": lambda logits, mask: routers.quantile_router(logits, jnp.zeros(2), mask=mask),
    "reinforce": lambda logits, mask: routers.reinforce_router(logits, mask=mask),
}


@pytest.mark.parametrize("name", ROUTERS_WITH_A_MASK)
def test_a_mask_of_integers_is_one_of_real_tokens_whatever_number_stands_for_them(name):
    """Any nonzero number, such as a sequence number or 255, marks a real token."""
    logits = jnp.array([[3.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
    wanted, found = (ROUTERS_WITH_A_MASK[name](logits, jnp.array(mask)) for mask in ([1, 1, 1, 0], [2, 255, 3, 0]))
    for field in ("expert", "gate", "load", "plan"):
        np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field))
    assert float(found.load.sum()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["emit_weights", "log_policy"])
def test_a_token_without_experts_gives_nan_in_an_optimised_program(name):
    """The quick profile of the suite does not optimise machine code, so it misses an exponential of a known NaN."""
    logits = (jnp.arange(30.0).reshape(5, 6) % 7).at[2].set(-jnp.inf)
    options = {"emit": "experts"} if name == "emit_weights" else {}
    function = jax.jit(lambda logits: getattr(routers, name)(logits, **options))
    program = function.lower(logits).compile({"xla_backend_optimization_level": 3})
    assert np.isnan(program(logits)[2]).all()


def test_what_a_layer_gets_wrong_is_one_line():
    params, x = {"up": jnp.ones((2, 3, 4)), "down": jnp.ones((2, 4, 3))}, jnp.ones((2, 3))
    wrong = {
        "expert is float32; integers are needed": lambda: experts.routed_ffn(params, x, x[:, :1], x[:, :1]),
        "capacity_factor is None; it has to be above 0": lambda: experts.expert_capacity(4, 2, 1, None),
        "logits is a list; an array": lambda: routers.sinkhorn_router([[1.0, 0.0]]),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=re.escape(words)):
            call()
