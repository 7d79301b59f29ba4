"""Planted bugs in the Mixture of Tokens; see `test_planted_bugs`."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws import reference as oracle
from routelaws.accelerated.routers import mixture_of_tokens as mixture
from routelaws.conformance.engine.harness import altered
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_mixture_of_tokens as suite
from routelaws.conformance.suite.strategies import Logits

RANDOM = np.random.default_rng(0)
FREE = Logits(np.round(RANDOM.standard_normal((7, 4)), 2).astype(np.float32).astype(float), "free", 1)
TIED = RANDOM.choice([-0.5, -0.0, 0.0], (7, 4))

WEIGHTS, LAYER = "routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.mixture_of_tokens"


def over_experts(logits, temperature=1.0, **options):
    return jax.nn.softmax(logits / temperature, axis=1)


def temperature_times(logits, temperature=1.0, **options):
    return mixture.mixing_weights(logits * temperature, **options)


def not_shifted(logits, temperature=1.0, **options):
    raised = jnp.exp(logits / temperature)
    return raised / raised.sum(axis=0)


def padding_counts(logits, temperature=1.0, *, one_hot=False, mask=None):
    weights = mixture.mixing_weights(jnp.nan_to_num(logits), temperature, one_hot=one_hot)
    return weights if mask is None else jnp.where(mask[:, None], weights, 0)


def shared_by_ties(logits, temperature=1.0, *, one_hot=False, mask=None):
    largest = (logits == logits.max(axis=0)).astype(logits.dtype)
    return largest / largest.sum(axis=0)


def later_of_equals(logits, temperature=1.0, *, one_hot=False, mask=None):
    return mixture.mixing_weights(logits[::-1], one_hot=one_hot)[::-1]


def own_layer(params, x, temperature=1.0, *, one_hot=False, activation="gelu", mask=None, weigh=None, emit=None):
    """The layer, with other weights for mixing, for redistribution, or both."""
    logits = x @ params["router"]
    weights = mixture.mixing_weights(logits, temperature, one_hot=one_hot)
    weights = weights if weigh is None else weigh(weights)
    hidden = jnp.einsum("ge,gd,edf->ef", weights, x, params["up"])
    hidden = mixture.gelu(hidden) if activation == "gelu" else jax.nn.relu(hidden)
    shares = weights if emit is None else emit(logits, weights)
    return mixture.MixtureOutput(jnp.einsum("ge,ef,efd->gd", shares, hidden, params["down"]), weights)


def first_expert_left_out(shares):
    return shares.at[:, 0].set(0)


def softmax_over_experts(logits, weights):
    return jax.nn.softmax(logits, axis=1)


def the_mean(logits, weights):
    return jnp.full_like(weights, 1 / len(weights))


def row_shares(logits, weights):
    return weights / weights.sum(axis=1, keepdims=True)


def gates_of_a_group_of_one(logits, weights):
    return weights * (jax.nn.softmax(logits, axis=1) if len(weights) == 1 else 1)


def strided(x, group_size):
    turned = jnp.swapaxes(x.reshape(len(x), group_size, -1, *x.shape[2:]), 1, 2)
    return turned.reshape(-1, group_size, *x.shape[2:])


def by_sequence(x, group_size):
    return x.reshape(-1, group_size, *x.shape[2:])


def copies(params, x, temperature=1.0, **options):
    """Each group with its own copy of the experts, as a gather by group would make them."""
    copied = params | {name: params[name] * (1 + 0 * x.sum()) for name in ("up", "down")}
    return mixture.mixture_of_tokens(copied, x, temperature, **options)


def weigh_layer(check, **how):
    return LAYER, functools.partial(own_layer, **how), check


PUBLIC = {
    # what is wrong: (where, how, the check that has to see it)
    "softmax over experts": (WEIGHTS, over_experts, lambda b: suite.check_weights(b, FREE, 1.0, "float32", False)),
    "times the temperature": (
        WEIGHTS, temperature_times, lambda b: suite.check_weights(b, FREE, 0.25, "float32", False)),
    "weights that overflow": (WEIGHTS, not_shifted, suite.check_extreme),
    "padding counts in the sum": (
        WEIGHTS, padding_counts, lambda b: suite.check_weights(b, FREE, 1.0, "float32", True)),
    "padding can be the largest": (
        WEIGHTS, padding_counts, lambda b: suite.check_one_hot(b, FREE.values, "float32", True)),
    "equal tokens share": (WEIGHTS, shared_by_ties, suite.check_ties),
    "the later of equal tokens": (
        WEIGHTS, later_of_equals, lambda b: suite.check_one_hot(b, TIED, "float32", False)),
    "redistribution by softmax over experts": weigh_layer(
        lambda b: suite.check_layer(b, 0, "float32", 1.0, "gelu", False, False), emit=softmax_over_experts),
    "redistribution in equal parts": weigh_layer(
        lambda b: suite.check_layer(b, 0, "float32", 1.0, "relu", False, False), emit=the_mean),
    "redistribution normalised for each token": weigh_layer(
        lambda b: suite.check_layer(b, 0, "float32", 3.0, "gelu", False, False), emit=row_shares),
    "an expert left out": weigh_layer(suite.check_expert_choice, weigh=first_expert_left_out),
    "a token alone with gates": weigh_layer(
        lambda b: suite.check_group_of_one(b, 4), emit=gates_of_a_group_of_one),
    "experts copied for each group": (LAYER, copies, suite.check_no_copies),
    "every other position": ("routers.mixture_of_tokens.group_within_sequence", strided, suite.check_groups),
    "groups by position that are not": (
        "routers.expert_choice.group_by_position", by_sequence,
        lambda b: suite.check_who_sees_whom(b, "position", 2, 2)),
}  # fmt: skip


def erf(x):
    return jax.nn.gelu(x, approximate=False)


def frozen(*arguments, mixing_weights=mixture.mixing_weights, **options):
    return jax.lax.stop_gradient(mixing_weights(*arguments, **options))


def frozen_temperature(logits, temperature, real, divided=mixture._divided):
    return divided(logits, jax.lax.stop_gradient(temperature), real)


def straight_through(logits, largest=mixture._largest):
    soft = jax.nn.softmax(logits, axis=0)
    return largest(logits) + soft - jax.lax.stop_gradient(soft)


def in_half_precision(logits, temperature=1.0, mixing_weights=mixture.mixing_weights, **options):
    return mixing_weights(logits.astype(jnp.bfloat16), temperature, **options)


def kept_padding(condition, x, other):
    """`jnp.where` of the layer, but what stands in the padding stays."""
    return x if jnp.ndim(x) == 2 and x.shape[1] == suite.D else jnp.where(condition, x, other)


PRIVATE = {
    # what is wrong: (name, replacement, the check that has to see it)
    "GELU with erf": ("gelu", erf, lambda b: suite.check_layer(b, 0, "float32", 1.0, "gelu", False, False)),
    "weights without gradient": ("mixing_weights", frozen, lambda b: suite.check_gradient(b, 1, "gelu", False)),
    "temperature without gradient": (
        "_divided", frozen_temperature, lambda b: suite.check_gradient(b, 1, "gelu", False)),
    "gradient through one_hot": ("_largest", straight_through, lambda b: suite.check_gradient(b, 1, "gelu", True)),
    "weights in half precision": ("mixing_weights", in_half_precision, suite.check_low_precision),
    "0 times the padding": (
        "jnp", SimpleNamespace(**(vars(jnp) | {"where": kept_padding})),
        lambda b: suite.check_layer(b, 0, "float32", 1.0, "gelu", False, True)),
}  # fmt: skip


@pytest.mark.parametrize("bug", PUBLIC)
def test_public(bug):
    catch_public(*PUBLIC[bug])


@pytest.mark.parametrize("bug", PRIVATE)
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, mixture, *PRIVATE[bug])


def test_in_a_backend_without_jit():
    """Planted into a copy of the reference, which the suite also accepts as a backend."""
    honest = altered(oracle, LAYER, oracle.routers.mixture_of_tokens.mixture_of_tokens, capabilities=())

    def no_redistribution(params, x, *arguments, **options):
        found = honest.routers.mixture_of_tokens.mixture_of_tokens(params, x, *arguments, **options)
        return found._replace(output=np.tile(found.output.mean(axis=0), (len(x), 1)))

    suite.check_layer(honest, 0, "float64", 1.0, "relu", False, True)
    with pytest.raises(AssertionError):
        suite.check_layer(altered(honest, LAYER, no_redistribution), 0, "float64", 1.0, "relu", False, True)
