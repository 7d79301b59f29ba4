"""bfloat16 for backends that list it: functions that compute in float32, and functions that compute in 16 bits.

All inputs are exact in bfloat16, so both twins compute from the same numbers.

    float32    routers, policies, losses    logits in bfloat16 give the results of the same logits in float32
    16 bits    experts, attention           results within bounds in units of 2⁻⁸
    both       norm                         computed in float32, rounded once at the end
               routed blocks                scores, gates, loads, drops and losses in float32
    exact      indices, placement           equal to the last bit

Routed blocks get 301 tokens, nearly all for one expert; bfloat16 cannot represent 301. Gradients are not tested:
difference quotients are too inaccurate at this precision.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import CAPABILITIES, cast, compiled, precisions_of, rounded, run
from routelaws.conformance.engine.values import arrays_of
from routelaws.conformance.suite import test_notation
from routelaws.conformance.suite.layers import test_balance, test_experts
from routelaws.conformance.suite.models import test_transformer
from routelaws.conformance.suite.routers import (
    test_base,
    test_expert_choice,
    test_mixture_of_tokens,
    test_quantile,
    test_reinforce,
    test_sinkhorn,
    test_top_k,
)
from routelaws.conformance.suite.strategies import Logits, cases, logits, seeds, selections
from routelaws.reference import configuration, notation, routed_block, transformer

BFLOAT16 = "bfloat16"
SHAPE = (7, 4)


class _Raised(str):
    """A float32 whose messages state that the input was bfloat16."""

    def __format__(self, specification: str) -> str:
        return BFLOAT16


RAISED = _Raised("float32")
"""The precision of the checks for functions of `Lowered`."""


class Lowered:
    """A backend whose functions get their first array in bfloat16 and must return float32."""

    def __init__(self, backend, room=None):
        self._backend, self._room = backend, backend if room is None else room
        self.capabilities = getattr(backend, "capabilities", CAPABILITIES)

    def __getattr__(self, name: str):
        found = getattr(self._room, name)
        if inspect.isclass(found):
            return found
        return lowered_function(found) if callable(found) else Lowered(self._backend, found)


@functools.cache
def lowered_function(function):
    """Return a function that passes its first array in bfloat16. It is cached, because it is compiled."""
    backend = getattr(function, "routelaws_backend", None)

    def raised(found):
        leaves = [leaf for leaf in arrays_of(found) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        low = {str(leaf.dtype) for leaf in leaves if leaf.dtype.itemsize < np.dtype("float32").itemsize}
        assert not low, f"{function.__name__}: logits in bfloat16 give {', '.join(low)}; they are raised to float32"
        return found

    def guarded(arguments, keywords, precision=None, through=None, static=()):
        arguments = jnp.asarray(arguments[0], BFLOAT16), *arguments[1:]
        call = through and compiled(function, tuple(sorted(dict(static).items())))
        return raised(function.guarded(arguments, keywords, "float32", call, static))

    def lowered(first, *arrays, **keywords):
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in arrays_of((first, arrays, keywords)))
        if backend is not None and not traced:
            return guarded((first, *arrays), keywords)
        return raised(function(jnp.asarray(first, BFLOAT16), *arrays, **keywords))

    if backend is not None:
        lowered.guarded = guarded
    return lowered


def lowered(backend) -> Lowered:
    """Return the backend in bfloat16, or skip the test if it lacks this precision."""
    precisions_of(backend, (BFLOAT16,))
    return Lowered(backend)


def low(drawn):
    return drawn._replace(values=rounded(drawn.values, BFLOAT16))


@pytest.mark.asks("routers.top_k.switch_router", "routers.top_k.top_k_router")
@given(drawn=logits(shapes=(SHAPE,)), form=test_top_k.forms)
def test_top_k_router(backend, drawn, form):
    test_top_k.check_top_k(lowered(backend), low(drawn), RAISED, drawn.k, *form)
    for path in (test_top_k.SWITCH, test_top_k.TOP_K):
        test_top_k.check_switch(lowered(backend), low(drawn), RAISED, path)


@pytest.mark.asks(
    "routers.base.balanced_assignment",
    "routers.base.base_router",
    "routers.sinkhorn.sinkhorn_plan",
    "routers.sinkhorn.sinkhorn_router",
)
def test_sinkhorn_routing(backend):
    for seed in range(3):
        z = test_base.draw_scores("random", (12, 3), 4.0, seed).values
        test_sinkhorn.check_plan(lowered(backend), low(Logits(z, "random", 1)), RAISED, 30)
        test_sinkhorn.check_router(lowered(backend), low(Logits(z, "random", 2)), RAISED, "softmax", seed < 2)


@pytest.mark.asks("routers.base.balanced_assignment", "routers.base.base_router")
@pytest.mark.parametrize("family", ["random", "tied", "lattice"])
def test_base_layers(backend, family):
    drawn = low(test_base.draw_scores(family, (13, 3), 1.0, 1))
    test_base.check_assignment(lowered(backend), drawn, RAISED, 2)
    test_base.check_router(lowered(backend), drawn, RAISED, "sigmoid", True)


@pytest.mark.asks(
    "routers.base.balanced_assignment",
    "routers.base.base_router",
    "routers.quantile.quantile_bias",
    "routers.quantile.quantile_router",
)
@pytest.mark.parametrize("family", ["random", "anisotropic"])
def test_quantile_router(backend, family):
    drawn = low(test_base.draw_scores(family, (13, 3), 1.0, 2))
    test_quantile.check_bias(lowered(backend), drawn, 2, 3, RAISED, 2)
    test_quantile.check_router(lowered(backend), drawn, 2, 3, RAISED, "softmax")


@pytest.mark.asks("routers.expert_choice.expert_choice_router", "routers.expert_choice.selection_scores")
@given(drawn=logits(shapes=(SHAPE,)), score=st.sampled_from(("softmax", "sigmoid")))
def test_expert_choice_router(backend, drawn, score):
    test_expert_choice.check_choice(lowered(backend), low(drawn), RAISED, 2.0, score)


@pytest.mark.asks(
    "routers.reinforce.reinforce_router", "routers.reinforce.log_policy", "routers.reinforce.policy_entropy"
)
@given(drawn=logits(shapes=(SHAPE,)), seed=seeds)
def test_reinforce_router(backend, drawn, seed):
    test_reinforce.check_policy(lowered(backend), low(drawn), RAISED, 0.8)
    test_reinforce.check_entropy(lowered(backend), low(drawn), RAISED, 0.8)
    test_reinforce.check_router(lowered(backend), low(drawn), RAISED, 0.8, seed)


@pytest.mark.asks("balance.auxiliary_loss", "balance.z_loss", "notation.top_k_indices", "transformer.loss")
@given(drawn=logits(shapes=(SHAPE,)))
def test_losses(backend, drawn):
    test_balance.check_auxiliary_loss(lowered(backend), low(drawn), RAISED, "assignments", "softmax")
    test_balance.check_z_loss(lowered(backend), low(drawn), RAISED)


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights")
@given(drawn=logits(shapes=(test_mixture_of_tokens.SHAPE,)))
def test_mixing_weights(backend, drawn):
    test_mixture_of_tokens.check_weights(lowered(backend), low(drawn), 1.0, RAISED, False)


def check_softmax(backend, z: np.ndarray) -> None:
    found = np.asarray(run(backend, "notation.softmax", BFLOAT16, z), float)
    wanted, size = notation.softmax(z), 1 + np.abs(z - z.max(axis=1, keepdims=True))
    scale = UNIT[BFLOAT16] * size * wanted + np.finfo("float32").tiny
    assert_close_bounded(bound_in("notation.softmax", BFLOAT16), found, wanted, scale, what="softmax in bfloat16")


def check_log_sum_exp(backend, z: np.ndarray) -> None:
    found = run(backend, "notation.log_sum_exp", BFLOAT16, z, axis=1)
    scale = UNIT[BFLOAT16] * (1 + np.abs(z).max(axis=1))
    name, wanted = bound_in("notation.log_sum_exp", BFLOAT16), notation.log_sum_exp(z, 1)
    assert_close_bounded(name, found, wanted, scale, what="log_sum_exp in bfloat16")


@pytest.mark.asks("notation.top_k_indices")
@given(drawn=logits(shapes=(SHAPE,)))
def test_top_k_indices_in_16_bits(backend, drawn):
    precisions_of(backend, (BFLOAT16,))
    test_notation.check_top_k_indices(backend, low(drawn), BFLOAT16, jit=False)


@pytest.mark.asks("notation.softmax", "notation.log_sum_exp")
@pytest.mark.parametrize("checked", [check_softmax, check_log_sum_exp])
@given(drawn=logits(shapes=(SHAPE,)))
def test_softmax_and_log_sum_exp_in_16_bits(backend, checked, drawn):
    precisions_of(backend, (BFLOAT16,))
    checked(backend, low(drawn).values)


@pytest.mark.asks("experts.dispatch", "experts.gelu", "experts.expert_ffn", "experts.combine", "experts.routed_ffn")
@given(selection=selections(shapes=((9, 4),)), factor=st.sampled_from([float("inf"), 0.6]))
def test_experts_in_16_bits(backend, selection, factor):
    precisions_of(backend, (BFLOAT16,))
    test_experts.check_gelu(backend, selection, BFLOAT16)
    test_experts.check_expert_ffn(backend, selection, BFLOAT16)
    test_experts.check_combine(backend, selection, 3, BFLOAT16)
    test_experts.check_routed_ffn(backend, selection, factor, BFLOAT16)


@pytest.mark.asks(
    "experts.expert_ffn", "routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn"
)
@given(seed=st.integers(0, 99))
def test_expert_choice_ffn_in_16_bits(backend, seed):
    precisions_of(backend, (BFLOAT16,))
    test_expert_choice.check_ffn(backend, 2.0, BFLOAT16, seed)


@pytest.mark.asks("transformer.layer_norm", "transformer.attention")
@given(drawn=cases(("dense",)))
def test_parts_of_the_model_in_16_bits(backend, drawn):
    precisions_of(backend, (BFLOAT16,))
    test_transformer.check_parts(backend, drawn, BFLOAT16)


CROWDED = {
    "top_k": dict(router="top_k", k=1, z_weight=0.02, balance_weight=1.0),
    "sinkhorn": dict(router="sinkhorn", k=1),
    "quantile": dict(router="quantile", k=1, capacity_factor=0.9),
    "reinforce": dict(router="reinforce", k=2),
}
"""Routed blocks with three experts and 301 tokens; two experts get few tokens."""


def crowded_block(name: str):
    """Return (configuration, weights, x, tokens, noise) of a routed block that sends nearly all tokens to one expert.

    x is exact in bfloat16 and the weights are not. Column 0 of x is 1, so row 0 of the router is a base score for each
    expert. The other scores are a few tenths, and their last bits matter.
    """
    config = configuration.ModelConfig(
        vocab_size=13, d_model=8, heads=2, blocks=1, routing_frequency=1.0, experts=3, **CROWDED[name]
    )
    random = np.random.default_rng(17)

    def draw(node):
        if isinstance(node, dict):
            return {key: draw(node[key]) for key in sorted(node)}
        return random.standard_normal(node[0][1:]) / 4

    params = rounded(draw(transformer.parameter_shapes(config)["routed_ffn"]), "float32")
    params["router"][0] = [3.001, -1.003, -2.007]
    x = rounded(random.standard_normal((7, 43, 8)), BFLOAT16)
    x[..., 0] = 1
    noise = rounded(random.gumbel(size=(301, 3)), "float32") if name == "reinforce" else None
    return config, rounded(params, "float32"), x, random.integers(0, 13, (7, 43)), noise


@pytest.mark.asks("experts.routed_ffn", "routed_block.routed_block", "transformer.parameter_shapes")
@pytest.mark.twin
@pytest.mark.parametrize(
    "name, training", [("top_k", True), ("sinkhorn", False), ("quantile", True), ("reinforce", True)]
)
def test_crowded_blocks(backend, name, training):
    """From the same x in bfloat16 and weights in float32, everything except products of experts is in float32."""
    precisions_of(backend, (BFLOAT16,))
    config, params, x, tokens, noise = crowded_block(name)
    wanted = routed_block.routed_block(params, x, tokens, config, training=training, noise=noise)
    config = backend.transformer.ModelConfig(**vars(config))
    traced = {} if noise is None else {"noise": jnp.asarray(noise, "float32")}
    call = compiled(backend.routed_block.routed_block, (("config", config), ("training", training)))
    found = call(cast(params, "float32"), jnp.asarray(x, BFLOAT16), jnp.asarray(tokens), **traced)
    z = x.reshape(-1, 8) @ params["router"]
    size = np.abs(x.reshape(-1, 8)) @ np.abs(params["router"])
    unit = UNIT["float32"] * (4 + np.ptp(z) + 2 * size.max())
    what = f"routed block of {name} in bfloat16, 301 tokens, training {training}"
    assert found.output.dtype == BFLOAT16, what
    assert wanted.routing.load.max() * wanted.routing.expert.size > 256, f"{what}: no expert is crowded"
    assert_same(found.routing.expert, wanted.routing.expert, what=f"{what}: experts")
    for field in ("gate", "load", "plan"):
        value = getattr(wanted.routing, field)
        assert_close_bounded(
            "routed_block.raised", getattr(found.routing, field), value, unit * np.abs(value), what=f"{what}: {field}"
        )
    for field in ("dropped_fraction", "auxiliary"):
        value = getattr(wanted, field)
        assert_close_bounded(
            "routed_block.raised", getattr(found, field), value, unit * np.abs(value), what=f"{what}: {field}"
        )
    if wanted.policy is not None:
        assert_close_bounded("routed_block.raised", found.policy.logits, z, UNIT["float32"] * size, what=what)
