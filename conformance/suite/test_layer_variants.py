"""Variants of `routed_ffn`: gates after drops, gates on the input, zero-computation experts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import run
from routelaws.conformance.suite.strategies import precisions, selections
from routelaws.conformance.suite.test_experts import ffn_scale, layer
from routelaws.reference import experts as reference

KEPT, INPUT = "experts.kept_gates", "experts.input_gated_ffn"


@pytest.mark.asks("experts.kept_gates")
@given(selection=selections(), precision=precisions, renormalise=st.booleans())
def test_kept_gates(backend, selection, precision, renormalise):
    """Gates are unchanged or 0 after a dispatch. If renormalised, they sum to 1 for tokens with a kept gate."""
    placement = reference.dispatch(selection.expert, selection.num_experts, 2)
    gate = np.abs(layer(selection, precision)["gate"])
    found = run(backend, KEPT, precision, gate, placement.kept, renormalise=renormalise)
    wanted = gate * placement.kept
    if renormalise:
        wanted = np.array([row / sum(row) if sum(row) else row for row in wanted])
    assert_same(np.asarray(found) == 0, ~placement.kept, what="kept_gates: who is kept")
    scale = UNIT[precision] * wanted * (1 + selection.expert.shape[1])
    for name, values in (
        ("backend", found),
        ("reference", reference.kept_gates(gate, placement.kept, renormalise=renormalise)),
    ):
        assert_close_bounded("top_k.gate", values, wanted, scale, what=f"kept_gates of the {name}, {renormalise}")


@pytest.mark.asks("experts.input_gated_ffn")
@given(selection=selections(), precision=precisions)
def test_input_gated_ffn(backend, selection, precision):
    """Each choice has gate 1 on the input times its gate. Signs matter, because GELU is not odd."""
    inputs, expert = layer(selection, precision), selection.expert
    wanted = np.zeros(inputs["x"].shape)
    for choice in range(expert.shape[1]):
        x, one = inputs["x"] * inputs["gate"][:, choice, None], np.ones((len(expert), 1))
        wanted += reference.routed_ffn(inputs["params"], x, expert[:, [choice]], one).output
    scale = UNIT[precision] * ffn_scale(inputs, expert)
    found = run(backend, INPUT, precision, inputs["params"], inputs["x"], expert, inputs["gate"])
    ours = reference.input_gated_ffn(inputs["params"], inputs["x"], expert, inputs["gate"])
    for name, output in (("backend", found), ("reference", ours)):
        assert_close_bounded(bound_in("experts.routed_ffn", precision), output, wanted, scale, what=f"{INPUT}, {name}")


@pytest.mark.asks("experts.zero_computation")
@given(selection=selections(), precision=precisions, kind=st.sampled_from(reference.ZERO_KINDS))
def test_zero_computation_experts(backend, selection, precision, kind):
    """The upper half of the experts computes no FFN. A real expert adds nothing, whatever its gate."""
    inputs, expert = layer(selection, precision), selection.expert
    x, gate, real = inputs["x"], inputs["gate"], max(1, selection.num_experts // 2)
    random = np.random.default_rng(len(x))
    constants = {
        "mix": random.standard_normal((selection.num_experts - real, x.shape[1], 2)),
        "offset": random.standard_normal((selection.num_experts - real, x.shape[1])),
    }
    constants = {name: np.asarray(leaf.astype(precision), np.float64) for name, leaf in constants.items()}
    wanted, scale = np.zeros(x.shape), np.zeros(x.shape)
    for t, choice in np.argwhere(expert >= real):
        output, size = {"identity": x[t], "zero": 0 * x[t]}.get(kind), np.abs(x[t])
        if kind == "constant":
            mix, offset = (leaf[expert[t, choice] - real] for leaf in constants.values())
            alpha = 1 / (1 + np.exp(x[t] @ (mix[:, 1] - mix[:, 0])))
            output = alpha * x[t] + (1 - alpha) * offset
            size = (np.abs(x[t]) + np.abs(offset)) * (1 + len(mix) * np.abs(x[t]) @ np.abs(mix).sum(axis=1))
        wanted[t] += gate[t, choice] * output
        scale[t] += np.abs(gate[t, choice]) * size
    traced, static = {"constants": constants} if kind == "constant" else {}, {"num_experts": real, "kind": kind}
    for name, found in (
        ("backend", run(backend, "experts.zero_computation", precision, x, expert, gate, traced=traced, **static)),
        ("reference", reference.zero_computation(x, expert, gate, **traced, **static)),
    ):
        what = f"zero_computation of the {name}, {kind}, {selection.loads}"
        assert_close_bounded(bound_in("experts.combine", precision), found, wanted, UNIT[precision] * scale, what=what)
