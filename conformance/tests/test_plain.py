"""Compare the reference with the plain model and the examples by hand. The imported tests take it as their
`backend`."""

import math

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.compare import assert_same
from routelaws.conformance.engine import backends
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.suite.models import test_plain_model
from routelaws.conformance.suite.models.test_plain_model import MODELS, test_weights_have_the_shapes_and_deviations  # noqa: F401
from routelaws.conformance.suite.test_by_hand import (  # noqa: F401
    TestAttention,
    TestDecide,
    TestLayerNorm,
    assert_digits,
    test_deviations_of_initial_weights,
    test_sinusoids,
)
from routelaws.conformance.tests.planting import own_shares  # noqa: F401


def oracle() -> backends.Backend:
    return backends.Backend("routelaws.reference", reference, Ledger())


REFERENCE = oracle()


@pytest.fixture
def backend():
    return REFERENCE


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_plain_model(name, training):
    test_plain_model.check_model(REFERENCE, name, training, "float64")


def fast() -> backends.Backend:
    return backends.Backend("routelaws.accelerated", backends.load("routelaws.accelerated"), Ledger())


TWO_OF_FOUR = {
    "S-BASE": (
        dict(router="sinkhorn", training=False), [[math.log(4), math.log(4), 0, 0], [0, 0, 0, 0]], None,
        [[0, 1], [0, 1]], [[0.4, 0.4], [0.25, 0.25]],
    ),
    "BASE": (
        dict(router="base"), [[4, 3, 1, 0], [4, 2, 3, 1]], None,
        [[0, 1], [2, 3]], [[0.98201, 0.95257], [0.95257, 0.73106]],
    ),
    "RL-R": (
        dict(router="reinforce", d_model=8), [[4, 3, 1, 0, 0, 0, 0, 0]], [[0, 0, 4, 0]],
        [[2, 0]], [[1, 1]],
    ),
    "a bias": (
        dict(router="top_k", gate="sigmoid", bias_rate=0.1), [[4, 3, 1, 0], [4, 2, 3, 1]], None,
        [[0, 1], [0, 2]], [[0.50761, 0.49239], [0.50761, 0.49239]],
    ),
}  # fmt: skip
"""Fields, states, noise, and by hand the experts and gates of a token, which has two of the four narrow experts. S-BASE
in evaluation: 4/10 and 1/4 by softmax. BASE: each narrow expert has one token; 4 + 3 + 3 + 1 is the largest sum, and
the gates are σ(4) = 0.98201, σ(3) = 0.95257 and σ(1). RL-R: 4, 3 and 1 + 4, the largest first; gate 1/k. Bias: σ(4) and
σ(3) divided by their sum; expert 0 has two tokens, expert 3 none, and the mean is one.
"""


@pytest.mark.parametrize(
    ("name", "twin"), [*((name, oracle) for name in TWO_OF_FOUR), ("S-BASE", fast), ("a bias", fast)]
)
def test_a_token_has_k_g_narrow_experts(name, twin):
    """A twin could use k for k G, or E for E G. Two experts cut in two show this."""
    fields, states, noise, expert, gate = TWO_OF_FOUR[name]
    params = {"router": np.eye(len(states[0]), 4)}
    if name == "a bias":
        params["bias"] = np.zeros(4)
    if name == "RL-R":
        params["baseline"] = {"hidden": np.ones((8, 1)), "out": np.ones(1)}
    fields = dict(d_model=4) | fields | dict(experts=2, granularity=2)
    found = TestDecide().decide(twin(), states, params, noise=noise, **fields)
    assert_same(found.routing.expert, expert, what=f"two of four halves by {name}")
    assert_digits(found.routing.gate, gate, f"gates of {name}")
    if name == "a bias":
        assert_digits(found.bias, [-0.1, 0, 0, 0.1], "bias of four halves")


SHAKE = 2.0**-10
"""Ten thousand times the rounding of float32, and the tolerance of a Sinkhorn plan."""


def shaken(tree, random: np.random.Generator):
    """Return weights that each differ by about a thousandth."""
    if isinstance(tree, dict):
        return {name: shaken(node, random) for name, node in tree.items()}
    return tree * (1 + SHAKE * random.standard_normal(tree.shape))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_no_case_stands_on_an_edge(name, training):
    """Slightly different weights choose the same experts, drop the same tokens and give nearly the same loss."""
    drawn, config = test_plain_model.batch(name), reference.configuration.ModelConfig(**MODELS[name])

    def outcome(params):
        found = reference.transformer.loss(
            params, drawn.tokens, config, training=training, **test_plain_model.taken(drawn, training)
        )
        routing, dropped = found.output.routing, found.output.dropped_fraction.tolist()
        return ([] if routing is None else np.asarray(routing[0]).tolist(), dropped), found.total

    wanted, loss = outcome(drawn.params)
    for seed in range(2):
        found, moved = outcome(shaken(drawn.params, np.random.default_rng(seed)))
        assert found == wanted, f"{name}, training {training}"
        assert abs(moved - loss) < 100 * SHAKE, f"{name}, training {training}: loss {loss}, then {moved}"
    dropped = max(wanted[1], default=0.0)
    assert dropped > 0 or not training or "drops" not in name, f"{name} drops nothing"
    assert dropped == 0 or training or name in ("expert choice", "fine-grained"), f"{name} drops in evaluation"
