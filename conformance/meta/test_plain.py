"""The reference held to the plain model and to the examples by hand, as a backend is; and the cases themselves.

The tests that are imported here are run with the reference as their `backend`.
"""

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance import backends, report, test_plain_model
from routelaws.conformance.meta.planting import own_shares  # noqa: F401
from routelaws.conformance.test_by_hand import (  # noqa: F401
    TestAttention,
    TestCarryBias,
    TestDecide,
    TestHashTable,
    TestLayerNorm,
    test_deviations_of_initial_weights,
    test_gelu,
    test_sinusoids,
)
from routelaws.conformance.test_plain_model import MODELS, test_weights_have_the_shapes_and_deviations  # noqa: F401

REFERENCE = backends.Backend("routelaws.reference", reference, report.Ledger())


@pytest.fixture
def backend():
    return REFERENCE


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_plain_model(name, training):
    test_plain_model.check_model(REFERENCE, name, training, "float64")


SHAKE = 2.0**-10
"""Ten thousand times the rounding of float32, and as much as a Sinkhorn plan may be off where it stops."""


def shaken(tree, random: np.random.Generator):
    """Return weights that are each off by about a thousandth."""
    if isinstance(tree, dict):
        return {name: shaken(node, random) for name, node in tree.items()}
    return tree * (1 + SHAKE * random.standard_normal(tree.shape))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_no_case_stands_on_an_edge(name, training):
    """Weights that are a little off choose the same experts, drop the same tokens and give nearly the same loss."""
    drawn, config = test_plain_model.batch(name), reference.configuration.ModelConfig(**MODELS[name])

    def outcome(params):
        found = reference.transformer.loss(params, drawn.tokens, config, training=training,
                                           **test_plain_model.taken(drawn, training))  # fmt: skip
        routing, dropped = found.output.routing, found.output.dropped_fraction.tolist()
        return ([] if routing is None else np.asarray(routing[0]).tolist(), dropped), found.total

    wanted, loss = outcome(drawn.params)
    for seed in range(2):
        found, moved = outcome(shaken(drawn.params, np.random.default_rng(seed)))
        assert found == wanted, f"{name}, training {training}"
        assert abs(moved - loss) < 100 * SHAKE, f"{name}, training {training}: loss {loss}, then {moved}"
    dropped = max(wanted[1], default=0.0)
    assert dropped > 0 or not training or "drops" not in name, f"{name} drops nothing"
    assert dropped == 0 or training or name == "expert choice", f"{name} drops in evaluation"
