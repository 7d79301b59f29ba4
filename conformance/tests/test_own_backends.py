"""Faults in bfloat16 or in one kernel alone are found, and the reference compared with itself is exact."""

import numpy as np
import pytest

from routelaws import accelerated
from routelaws.accelerated.kernels import assignment
from routelaws.conformance import bounds
from routelaws.conformance.engine import backends
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.suite import strategies
from routelaws.conformance.suite.layers import test_balance, test_experts
from routelaws.conformance.suite.models import test_transformer
from routelaws.conformance.suite.routers import (
    test_base,
    test_expert_choice,
    test_mixture_of_tokens,
    test_quantile,
    test_reinforce,
)
from routelaws.conformance.suite.strategies import Logits, Selection
from routelaws.conformance.tests.planting import own_shares  # noqa: F401

SELECTION = Selection(np.array([[0, 1], [1, 2], [2, 0], [0, 2], [0, 1]]), 3, "random", 1)
DRAWN = Logits(np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32).astype(float), "free", 2)


def own(name: str) -> backends.Backend:
    name = name if "." in name else f"routelaws.conformance.engine.own_backends:{name}"
    return backends.Backend(name, backends.load(name), Ledger())


class TestKernels:
    scores = test_base.draw_scores("anisotropic", (13, 3), 1.0, 1)

    @pytest.mark.parametrize("precision", ["float64", "float32"])
    def test_assignments_and_bounds(self, precision):
        backend = own("kernels")
        for k in (1, 2):
            test_base.check_assignment(backend, self.scores, precision, k)
            test_base.check_dual_bound(backend, self.scores, k, precision)

    @pytest.mark.parametrize("name, wrong, verdict", [
        ("in_order", lambda scores, slots: scores.sort() or slots[: len(scores), None], "mutates"),
        ("solve", lambda whole, price, k, *rest: np.zeros(len(whole) * k, np.int32), "loads"),
        ("measure_gap", lambda scores, expert, prices: 1.0, "gap"),
    ])  # fmt: skip
    def test_what_is_wrong_in_a_kernel_is_seen(self, monkeypatch, name, wrong, verdict):
        test_base.check_assignment(own("kernels"), self.scores, "float64")
        monkeypatch.setattr(assignment, name, wrong)
        with pytest.raises(AssertionError, match="changed an input array" if verdict == "mutates" else verdict):
            test_base.check_assignment(own("kernels"), self.scores, "float64")


def reference_checks(backend):
    """Compare values with the reference, for folders that return floats."""
    test_experts.check_expert_ffn(backend, SELECTION, "float64")
    test_experts.check_combine(backend, SELECTION, 3, "float64")
    test_experts.check_routed_ffn(backend, SELECTION, 0.6, "float64")
    test_expert_choice.check_choice(backend, DRAWN, "float64", 2.0, "softmax")
    test_balance.check_auxiliary_loss(backend, DRAWN, "float64", "tokens", "softmax")
    test_balance.check_z_loss(backend, DRAWN, "float64")
    test_quantile.check_bias(backend, test_base.draw_scores("random", (13, 3), 1.0, 2), 2, 3, "float64", 2)
    test_reinforce.check_policy(backend, DRAWN, "float64", 0.8)
    test_reinforce.check_entropy(backend, DRAWN, "float64", 0.8)
    test_transformer.check_parts(backend, strategies.case("dense", 0), "float64")


def test_the_reference_compared_with_itself_uses_no_share():
    backend = own("routelaws.reference")
    reference_checks(backend)
    test_transformer.check_forward(backend, strategies.case("top_k, k = 2, sigmoid, drops", 0), "float64")
    used = {name: share for name, share in bounds.worst_share.items() if share}
    assert len(bounds.worst_share) > 12 and not used, used
    test_balance.check_z_loss(accelerated, DRAWN, "float64")
    assert bounds.worst_share["balance.z_loss"] > 0, "nothing is compared"


def test_where_the_reference_is_judged_by_a_formula_it_uses_some():
    test_mixture_of_tokens.check_weights(own("routelaws.reference"), DRAWN, 1.0, "float64", False)
    assert bounds.worst_share["mixture.weights"] > 0
