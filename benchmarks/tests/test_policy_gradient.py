import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import policy_gradient
from routelaws.conformance.bounds import BOUNDS, check


@functools.cache
def measured(layout, num_tokens=3, num_experts=2):
    """Return {(credit, baseline): `Estimate`} of one small model, in float64."""
    with jax.enable_x64(True):
        draws = jnp.asarray(policy_gradient.all_draws(layout.count("r"), num_tokens, num_experts))
        params, *rest, _ = policy_gradient.problem(layout, num_tokens, num_experts, seed=0)

        @jax.jit
        def both(params):
            return policy_gradient.estimate(policy_gradient.Problem(params, *rest, layout), draws)

        found = np.array(both(params))  # [fields, estimators]
    return {key: policy_gradient.Estimate(*found[:, i]) for i, key in enumerate(policy_gradient.ESTIMATORS)}


def check_unbiased(layout, credits):
    for (credit, kind), result in measured(layout).items():
        what = f"{layout}, {credit}, {kind}"
        if credit in credits:
            for name in ("bias", "bias_of_all"):
                check("reinforce.estimator", getattr(result, name), message=f"{what}: {name}")
        else:
            assert result.bias > BOUNDS["reinforce.credit"].limit, f"{what}: bias {result.bias}"


@pytest.mark.slow
def test_with_attention_only_reward_to_go_is_unbiased():
    check_unbiased("ra", ["reward-to-go"])


@pytest.mark.slow
def test_other_layouts():
    """Without attention both credits are unbiased. A second routed layer sees states that depend on the first draw."""
    check_unbiased("r", policy_gradient.CREDITS)
    check_unbiased("rr", policy_gradient.CREDITS)
    check_unbiased("rara", ["reward-to-go"])


@pytest.mark.slow
def test_a_baseline_changes_the_variance_and_not_the_mean():
    for credit in policy_gradient.CREDITS:
        none, state = (measured("ra")[credit, kind] for kind in ("none", "state"))
        check("reinforce.estimator", abs(none.cosine - state.cosine), message=f"{credit}: cosine")
        assert state.variance < none.variance / 4, (credit, state.variance, none.variance)


@pytest.mark.parametrize("k, nucleus, num_draws", [(2, 1.0, 216), (1, 0.6, 27)])
def test_the_draws_are_all_there_are(k, nucleus, num_draws):
    """The probabilities of all draws sum to 1, also with a nucleus."""
    given = policy_gradient.problem("r", 3, 3, seed=1)
    draws = policy_gradient.all_draws(1, 3, 3, k)
    assert draws.shape == (num_draws, 1, 3, k) and len(np.unique(draws.reshape(num_draws, -1), axis=0)) == num_draws
    runs = jax.jit(jax.vmap(lambda draw: policy_gradient.run(given.params, given, draw, nucleus)))(jnp.asarray(draws))
    probability = np.exp(np.asarray(runs.log_probability, float))
    assert (probability == 0).any() == (nucleus < 1)
    check("reinforce.policy", abs(probability.sum() - 1), 27 * 2.0**-24, message="sum of the probabilities")


@pytest.mark.slow
def test_the_command(capsys):
    policy_gradient.main(["--layouts", "r", "--steps", "0", "2", "--tokens", "2", "--experts", "2"])
    first, second = capsys.readouterr().out.split("\n\n")
    head, *lines = first.splitlines()
    assert head.split() == ["steps", "layout", "credit", "bias", "least", "most", "all", "cosine", "draws"]
    assert [line.split()[0] for line in lines] == ["0", "0", "2", "2"]
    assert all(float(line.split()[-6]) < policy_gradient.UNBIASED and line.endswith("inf") for line in lines)
    assert second.splitlines()[0].split() == ["steps", "layout", "credit", *policy_gradient.BASELINES]


@pytest.mark.slow
def test_training_lowers_the_expected_loss():
    given, draws = policy_gradient.problem("ra", 2, 2, seed=0), jnp.asarray(policy_gradient.all_draws(1, 2, 2))

    @jax.jit
    def losses(params):
        after = policy_gradient.trained(given._replace(params=params), draws, 20).params
        return [policy_gradient.expected_loss(one, given, draws) for one in (params, after)]

    before, after = losses(given.params)
    assert after < 0.7 * before
