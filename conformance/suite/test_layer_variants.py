"""Variants of `routed_ffn`: gates after drops, gates on the input, null experts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import PRECISIONS, precisions_of, run
from routelaws.conformance.suite.strategies import selections
from routelaws.conformance.suite.test_experts import ffn_scale, layer
from routelaws.reference import experts as reference
from routelaws.reference import layer_variants

KEPT, INPUT, NULL = "experts.kept_gates", "layer_variants.input_gated_ffn", "layer_variants.null_expert_ffn"
precisions = st.sampled_from(PRECISIONS)


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


@pytest.mark.asks("layer_variants.input_gated_ffn")
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
    ours = layer_variants.input_gated_ffn(inputs["params"], inputs["x"], expert, inputs["gate"])
    for name, output in (("backend", found), ("reference", ours)):
        assert_close_bounded(bound_in("experts.routed_ffn", precision), output, wanted, scale, what=f"{INPUT}, {name}")


@pytest.mark.asks("layer_variants.null_expert_ffn")
@given(selection=selections(), precision=precisions, identity=st.booleans(), limited=st.booleans())
def test_null_experts(backend, selection, precision, identity, limited):
    """The upper half of the experts is null: the result is a layer with a mask on their assignments."""
    inputs, expert, factor = layer(selection, precision), selection.expert, 1.0 if limited else math.inf
    real = max(1, selection.num_experts // 2)
    params, null = {name: matrix[:real] for name, matrix in inputs["params"].items()}, expert >= real
    output, dropped = np.zeros(inputs["x"].shape), 0.0
    if not null.all():
        given = np.where(null, 0, expert), inputs["gate"], factor
        output, dropped = reference.routed_ffn(params, inputs["x"], *given, mask=~null)
    scale = UNIT[precision] * ffn_scale(inputs | {"params": params}, np.where(null, 0, expert))
    if identity:
        for t, choice in np.argwhere(null):
            output[t] += inputs["gate"][t, choice] * inputs["x"][t]
        scale = scale + UNIT[precision] * np.abs(inputs["x"]) * np.abs(inputs["gate"]).sum(axis=1, keepdims=True)
    given = params, inputs["x"], expert, inputs["gate"]
    options = dict(capacity_factor=factor, identity=identity)
    for name, found in (
        ("backend", run(backend, NULL, precision, *given, **options)),
        ("reference", layer_variants.null_expert_ffn(*given, **options)),
    ):
        what = f"null_expert_ffn of the {name}, {options}, {selection.loads}"
        assert_close_bounded(bound_in("experts.routed_ffn", precision), found.output, output, scale, what=what)
        assert_close_bounded(
            "experts.dropped", found.dropped_fraction, dropped, UNIT[precision], what=f"{what}: dropped"
        )


@pytest.mark.asks("layer_variants.null_expert_ffn")
def test_a_layer_where_everything_is_null(backend):
    params = {"up": np.ones((2, 3, 4)), "down": np.ones((2, 4, 3))}
    x, expert, gate = np.eye(3), np.full((3, 1), 2), np.array([[0.5], [0.25], [2.0]])
    for precision in precisions_of(backend):
        for identity in (False, True):
            found = run(backend, NULL, precision, params, x, expert, gate, identity=identity)
            assert_same(found.output, identity * gate * x, what=f"all null, identity {identity}")
            assert float(found.dropped_fraction) == 0
