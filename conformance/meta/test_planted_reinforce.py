"""Planted bugs in RL-R: each is a mistake that somebody has made or could make, and a check has to see it."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import notation
from routelaws.accelerated.routers import reinforce
from routelaws.conformance.meta.planting import catch_private, catch_public, own_shares  # noqa: F401
from routelaws.conformance.suite import test_reinforce
from routelaws.conformance.suite.strategies import Logits

SEVEN = Logits(np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32).astype(float), "free", 2)
ONE_OF_FOUR = SEVEN._replace(k=1)


def scaled_by_the_probability(logits, k=1, **options):
    found = reinforce.reinforce_router(logits, k, **options)
    return found._replace(gate=jnp.take_along_axis(found.plan * len(found.plan), found.expert, axis=1))


def sum_of_the_experts(logits, k=1, **options):
    found = reinforce.reinforce_router(logits, k, **options)
    return found._replace(gate=found.gate * k)


def greedy_in_training(logits, k=1, *, gumbel=None, **options):
    return reinforce.reinforce_router(logits, k, **options)


def smallest_noise(logits, k=1, *, gumbel=None, **options):
    return reinforce.reinforce_router(logits, k, gumbel=None if gumbel is None else -gumbel, **options)


def noise_on_probabilities(logits, k=1, *, gumbel=None, nucleus=1.0, **options):
    found = reinforce.reinforce_router(logits, k, gumbel=gumbel, nucleus=nucleus, **options)
    if gumbel is None:
        return found
    return found._replace(expert=notation.top_k_indices(jnp.exp(reinforce.log_policy(logits, k, nucleus)) + gumbel, k))


def drawn_from_all(logits, k=1, *, nucleus=1.0, **options):
    return reinforce.reinforce_router(logits, k, **options)


def load_of_padding(logits, k=1, *, mask=None, **options):
    found = reinforce.reinforce_router(logits, k, mask=mask, **options)
    return found._replace(load=notation.one_hot(found.expert, logits.shape[1]).mean(axis=(0, 1)))


def crossing_expert_left_out(logits, k=1, nucleus=1.0):
    log_pi = reinforce.log_policy(logits, k, nucleus)
    inside = log_pi > -jnp.inf
    last = inside & (log_pi == jnp.where(inside, log_pi, jnp.inf).min(axis=1, keepdims=True))
    last &= (inside.sum(axis=1, keepdims=True) > k) & (nucleus < 1)
    return jax.nn.log_softmax(jnp.where(inside & ~last, log_pi, -jnp.inf), axis=1)


def probabilities_not_renormalised(logits, k=1, nucleus=1.0):
    found = reinforce.log_policy(logits, k, nucleus)
    return jnp.where(found > -jnp.inf, jax.nn.log_softmax(logits), -jnp.inf)


def nucleus_of_one(logits, k=1, nucleus=1.0):
    return reinforce.log_policy(logits, 1, nucleus)


def with_replacement(logits, expert, nucleus=1.0):
    log_pi = reinforce.log_policy(logits, expert.shape[1], nucleus)
    return jnp.take_along_axis(log_pi, expert, axis=1).sum(axis=1)


def in_the_other_order(logits, expert, nucleus=1.0):
    return reinforce.log_probability(logits, expert[:, ::-1], nucleus)


def in_bits(logits, k=1, nucleus=1.0):
    return reinforce.policy_entropy(logits, k, nucleus) / jnp.log(2)


def sum_so_far(reward):
    return jnp.cumsum(reward, axis=-1)


def without_its_own(reward):
    return reinforce.reward_to_go(reward) - reward


def value_without_relu(params, x):
    return jax.lax.stop_gradient(x) @ params["hidden"] @ params["out"]


def value_into_the_states(params, x):
    return jax.nn.relu(x @ params["hidden"]) @ params["out"]


def terms_of(change):
    """Return `policy_terms` with its result or its arguments changed."""

    def wrong(logits, expert, value, reward, **options):
        return change(SimpleNamespace(**locals()))

    return wrong


def call(given, **changes):
    return reinforce.policy_terms(given.logits, given.expert, given.value, given.reward, **given.options | changes)


def policy_uphill(given):
    found = call(given)
    return found._replace(loss=found.loss - 2 * given.options.get("policy_weight", 1e-2) * found.policy)


def entropy_punished(given):
    return call(given, entropy_weight=-given.options.get("entropy_weight", 0.0))


def summed_over_tokens(given):
    found = call(given)
    return found._replace(policy=found.policy * len(given.value))


def all_tokens_in_the_mean(given):
    found, mask = call(given), given.options.get("mask")
    return found if mask is None else found._replace(baseline=found.baseline * mask.mean())


def whole_policy_at_a_nucleus(given):
    return call(given, nucleus=1.0)


def half_the_square(given):
    found = call(given)
    return found._replace(baseline=found.baseline / 2)


def held_advantage_forgotten(given):
    return call(given, held_advantage=None)


def second_choice_ignored(given):
    given.expert = given.expert[:, :1]
    return call(given)


VALUES = functools.partial(test_reinforce.check_terms, drawn=SEVEN, precision="float32", nucleus=0.5, seed=1)
OWN = "the paper's credit, no token sees another"
TO_GO = "reward-to-go, later tokens see the choice"
PATH = "routers.reinforce."
ROUTED = functools.partial(test_reinforce.check_router, drawn=SEVEN, precision="float32", nucleus=1.0, seed=1)

PUBLIC = {
    # what is wrong: (public name, replacement, the check that has to see it)
    "output scaled by the probability": ("reinforce_router", scaled_by_the_probability, ROUTED),
    "sum of the experts": ("reinforce_router", sum_of_the_experts, ROUTED),
    "greedy in training": ("reinforce_router", greedy_in_training, ROUTED),
    "noise with the wrong sign": ("reinforce_router", smallest_noise, ROUTED),
    "noise on probabilities": ("reinforce_router", noise_on_probabilities,
                               lambda b: test_reinforce.check_sampling(b, 2, 0.8, 2)),
    "drawn from outside of the nucleus": ("reinforce_router", drawn_from_all,
                                          functools.partial(ROUTED, nucleus=0.5)),
    "load of padding": ("reinforce_router", load_of_padding,
                        lambda b: test_reinforce.check_padding(b, SEVEN, "float32", 0.5, 1)),
    "the expert that crosses the mass left out": (
        "log_policy", crossing_expert_left_out,
        lambda b: test_reinforce.check_policy(b, ONE_OF_FOUR, "float32", 0.5)),
    "nucleus not renormalised": ("log_policy", probabilities_not_renormalised,
                                 lambda b: test_reinforce.check_policy(b, ONE_OF_FOUR, "float32", 0.5)),
    "fewer than k in the nucleus": ("log_policy", nucleus_of_one, test_reinforce.check_nucleus_of_ties),
    "drawn with replacement": ("log_probability", with_replacement,
                               lambda b: test_reinforce.check_log_probability(b, SEVEN, "float32", 1.0, 1)),
    "order of the draw": ("log_probability", in_the_other_order,
                          lambda b: test_reinforce.check_log_probability(b, SEVEN, "float32", 1.0, 1)),
    "entropy in bits": ("policy_entropy", in_bits,
                        lambda b: test_reinforce.check_policy(b, ONE_OF_FOUR, "float32", 0.5)),
    "rewards so far": ("reward_to_go", sum_so_far, test_reinforce.check_reward_to_go),
    "rewards after the token": ("reward_to_go", without_its_own, lambda b: test_reinforce.check_unbiased(b, TO_GO)),
    "baseline without ReLU": ("state_value", value_without_relu, lambda b: test_reinforce.check_state_value(b, 0)),
    "baseline changes the states": ("state_value", value_into_the_states,
                                    lambda b: test_reinforce.check_state_value(b, 0)),
    "policy uphill": ("policy_terms", terms_of(policy_uphill), lambda b: test_reinforce.check_unbiased(b, OWN)),
    "entropy punished": ("policy_terms", terms_of(entropy_punished), VALUES),
    "sum over tokens": ("policy_terms", terms_of(summed_over_tokens), VALUES),
    "padding in the mean": ("policy_terms", terms_of(all_tokens_in_the_mean),
                            lambda b: test_reinforce.check_padding(b, SEVEN, "float32", 0.5, 1)),
    "log-probability of the whole policy": ("policy_terms", terms_of(whole_policy_at_a_nucleus), VALUES),
    "half the square": ("policy_terms", terms_of(half_the_square), test_reinforce.check_hand_made_terms),
    "held advantage forgotten": ("policy_terms", terms_of(held_advantage_forgotten),
                                 functools.partial(VALUES, held_advantage=np.arange(7) / 4)),
    "second choice ignored": ("policy_terms", terms_of(second_choice_ignored), VALUES),
}  # fmt: skip


def no_stop():
    """Return a stand-in for `jax` in which nothing stops a gradient."""
    lax = SimpleNamespace(**vars(jax.lax) | {"stop_gradient": lambda x: x})
    return SimpleNamespace(**vars(jax) | {"lax": lax})


def zeros_as_they_are(values):
    return values


PRIVATE = {
    # what is wrong: (name in the module, replacement, the check that has to see it)
    "gradient through reward, advantage and plan": ("jax", no_stop(), test_reinforce.check_no_gradient),
    "gradient through the advantage": ("jax", no_stop(), lambda b: test_reinforce.check_gradient(b, 2, 0.7, 1)),
    "-0.0 below +0.0": ("canonical_zero", zeros_as_they_are, test_reinforce.check_nucleus_of_ties),
    "padding not cleared": ("_prepared", lambda logits, mask=None: logits.astype(jnp.result_type(float)),
                            lambda b: test_reinforce.check_gradient(b, 2, 0.7, 1)),
}  # fmt: skip

SLOW = {
    "noise on probabilities",
    "load of padding",
    "padding in the mean",
    "padding not cleared",
    "rewards after the token",
    "-0.0 below +0.0",
    "fewer than k in the nucleus",
    "gradient through reward, advantage and plan",
    "baseline without ReLU",
    "baseline changes the states",
    "half the square",
}
"""Bugs whose check compiles what no other check of this file needs, or whose like is among the others."""


def marked(bugs):
    return [pytest.param(bug, marks=pytest.mark.slow) if bug in SLOW else bug for bug in bugs]


@pytest.mark.parametrize("bug", marked(PUBLIC))
def test_public(bug):
    name, wrong, check = PUBLIC[bug]
    catch_public(PATH + name, wrong, check)


@pytest.mark.parametrize("bug", marked(PRIVATE))
def test_private(bug, monkeypatch):
    catch_private(monkeypatch, reinforce, *PRIVATE[bug])
