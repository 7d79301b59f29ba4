"""Capacity, dispatch, experts and combine, with variants of `routed_ffn`.

`test_dispatch` has drop orders, padding and narrow experts.
"""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_derivative, assert_same
from routelaws.conformance.engine.harness import gradient, random_direction, rounded, run
from routelaws.conformance.suite.strategies import Selection, precisions, selections
from routelaws.reference import experts as reference

FACTORS = (math.inf, 2.0, 1.0, 0.6)
D, F = 4, 6
"""d and f of every expert here."""
KEPT, INPUT = "experts.kept_gates", "experts.input_gated_ffn"


def layer(selection: Selection, precision: str = "float64") -> dict:
    random = np.random.default_rng(selection.seed)
    num_tokens, k = selection.expert.shape
    num_experts = selection.num_experts
    return rounded(
        {
            "params": {
                "up": random.standard_normal((num_experts, D, F)) / 2,
                "down": random.standard_normal((num_experts, F, D)) / 2,
            },
            "x": random.standard_normal((num_tokens, D)),
            "gate": random.uniform(0.2, 1, (num_tokens, k)) * random.choice([-1, 1], (num_tokens, k)),
        },
        precision,
    )


def check_expert_capacity(backend, num_tokens, num_experts, k, factor) -> None:
    found = backend.experts.expert_capacity(num_tokens, num_experts, k, factor)
    wanted = reference.expert_capacity(num_tokens, num_experts, k, factor)
    assert found == wanted and isinstance(found, int), f"capacity of {num_tokens, num_experts, k, factor}"


@pytest.mark.asks("experts.expert_capacity")
@given(st.integers(0, 5000), st.integers(1, 600), st.integers(1, 8), st.integers(1, 500))
def test_expert_capacity(backend, num_tokens, num_experts, k, hundredths):
    check_expert_capacity(backend, num_tokens, num_experts, k, hundredths / 100)
    found = backend.experts.expert_capacity(num_tokens, num_experts, k, hundredths / 100)
    exact = -(-hundredths * k * num_tokens // (100 * num_experts))  # the same in integers
    assert found == min(num_tokens, exact)
    check_expert_capacity(backend, num_tokens, num_experts, k, math.inf)


@pytest.mark.asks("experts.expert_capacity")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [((10, 4, 1, 1.25), 4), ((10, 1, 1, 1.1), 10), ((100, 10, 1, 1.1), 11), ((10, 4, 2, 1.0), 5), ((3, 8, 1, 0.1), 1),
     ((10, 4, 1, math.inf), 10), ((10, 2, 2, 5.0), 10)],
)  # fmt: skip
def test_expert_capacity_of_known_cases(backend, arguments, wanted):
    for module in (backend.experts, reference):
        assert module.expert_capacity(*arguments) == wanted


def check_dispatch(backend, selection: Selection, capacity: int) -> None:
    what = f"dispatch, {selection.expert.shape}, E {selection.num_experts}, C {capacity}, {selection.loads}"
    options = dict(num_experts=selection.num_experts, capacity=capacity)
    found = run(backend, "experts.dispatch", "float32", selection.expert, **options)
    wanted = reference.dispatch(selection.expert, **options)
    for name in wanted._fields:
        assert_same(getattr(found, name), getattr(wanted, name), what=f"{what}: {name}")


@pytest.mark.asks("experts.dispatch")
@given(selection=selections(), capacity=st.sampled_from([0, 1, 3, 16]))
def test_dispatch(backend, selection, capacity):
    check_dispatch(backend, selection, min(capacity, len(selection.expert)))


def check_gelu(backend, selection: Selection, precision: str) -> None:
    x = layer(selection, precision)["x"] * 3
    found, scale = run(backend, "experts.gelu", precision, x), UNIT[precision] * (np.abs(x) + np.abs(x) ** 3)
    assert_close_bounded(bound_in("experts.gelu", precision), found, reference.gelu(x), scale, what="gelu")


@pytest.mark.asks("experts.gelu")
@given(selection=selections(), precision=precisions)
def test_gelu(backend, selection, precision):
    check_gelu(backend, selection, precision)


def check_expert_ffn(backend, selection: Selection, precision: str) -> None:
    inputs = layer(selection, precision)
    x, up, down = inputs["x"] * 3, inputs["params"]["up"][0], inputs["params"]["down"][0]
    found = run(backend, "experts.expert_ffn", precision, up, down, x)
    assert_close_bounded(
        bound_in("experts.ffn", precision),
        found,
        reference.expert_ffn(up, down, x),
        UNIT[precision] * (np.abs(x) @ np.abs(up) @ np.abs(down)),
        what="expert_ffn",
    )


@pytest.mark.asks("experts.expert_ffn")
@given(selection=selections(), precision=precisions)
def test_expert_ffn(backend, selection, precision):
    check_expert_ffn(backend, selection, precision)


def check_combine(backend, selection: Selection, capacity: int, precision: str) -> None:
    """The reference's placement is given, so that only the sum over choices can differ."""
    capacity = min(capacity, len(selection.expert))
    gate = layer(selection, precision)["gate"]
    outputs = np.random.default_rng(selection.seed + 1).standard_normal((selection.num_experts, capacity, D))
    outputs = rounded(outputs, precision)
    placement = reference.dispatch(selection.expert, selection.num_experts, capacity)
    found = run(
        backend, "experts.combine", precision, outputs, selection.expert, backend.experts.Placement(*placement), gate
    )
    wanted = reference.combine(outputs, selection.expert, placement, gate)
    scale = UNIT[precision] * reference.combine(np.abs(outputs), selection.expert, placement, np.abs(gate))
    name = bound_in("experts.combine", precision)
    assert_close_bounded(name, found, wanted, scale, what=f"combine, C {capacity}, {selection.loads}")


@pytest.mark.asks("experts.dispatch", "experts.combine")
@given(selection=selections(), capacity=st.sampled_from([1, 3, 16]), precision=precisions)
def test_combine(backend, selection, capacity, precision):
    check_combine(backend, selection, capacity, precision)


def ffn_scale(inputs: dict, expert: np.ndarray) -> np.ndarray:
    """Return Σⱼ |gate| (|x| |U|) |D| of each token. The rounding error of a routed FFN is u times this."""
    up, down = np.abs(inputs["params"]["up"])[expert], np.abs(inputs["params"]["down"])[expert]  # [T, k, d, f]
    return np.einsum("tk,td,tkdf,tkfe->te", np.abs(inputs["gate"]), np.abs(inputs["x"]), up, down)


def check_routed_ffn(backend, selection: Selection, factor: float, precision: str) -> None:
    inputs = layer(selection, precision)
    arrays = (inputs["params"], inputs["x"], selection.expert, inputs["gate"])
    found = run(backend, "experts.routed_ffn", precision, *arrays, capacity_factor=factor)
    wanted = reference.routed_ffn(*arrays, factor)
    what = f"routed_ffn, {selection.expert.shape}, E {selection.num_experts}, {selection.loads}, c {factor}"
    scale = UNIT[precision] * ffn_scale(inputs, selection.expert)
    assert_close_bounded(bound_in("experts.routed_ffn", precision), found.output, wanted.output, scale, what=what)
    nothing = np.all(wanted.output == 0, axis=1)
    assert np.all(np.asarray(found.output)[nothing] == 0), f"{what}: a token without a slot gets exactly 0"
    fraction = wanted.dropped_fraction
    assert_close_bounded("experts.dropped", found.dropped_fraction, fraction, UNIT[precision] * fraction, what=what)


@pytest.mark.asks("experts.routed_ffn")
@given(selection=selections(), factor=st.sampled_from(FACTORS), precision=precisions)
def test_routed_ffn(backend, selection, factor, precision):
    check_routed_ffn(backend, selection, factor, precision)


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.parametrize("loads", ["one expert", "all but one expert", "balanced"])
@pytest.mark.parametrize("k", [1, 2])
def test_dropless_whatever_the_loads(backend, loads, k):
    """The path sorts tokens into blocks. These loads have the most and fewest blocks."""
    num_tokens, num_experts = 16, 5
    base = np.arange(num_tokens)[:, None] * (loads != "one expert") + np.arange(k)
    expert = base % (num_experts - (loads == "all but one expert"))
    check_routed_ffn(backend, Selection(expert, num_experts, loads, 5), math.inf, "float64")


def weighted_output(point, expert, weights, mask=None, *, routed_ffn, factor, order="choice"):
    """Return Σ weights · output of a routed FFN, a scalar to differentiate."""
    arrays = point["params"], point["x"], expert, point["gate"]
    return (routed_ffn(*arrays, factor, order=order, mask=mask).output * weights).sum()


@pytest.mark.asks("experts.routed_ffn")
@given(selection=selections(shapes=((9, 4), (16, 3))), factor=st.sampled_from([math.inf, 1.0, 0.6]))
def test_gradient(backend, selection, factor):
    """Compare the backend's autodiff with differences of the reference, one input at a time in a random direction."""
    inputs = layer(selection)
    weights = np.random.default_rng(selection.seed + 2).standard_normal(inputs["x"].shape)
    options = dict(routed_ffn=backend.experts.routed_ffn, factor=factor)
    found = gradient(weighted_output, inputs, selection.expert, weights, **options)
    scale = np.sum(ffn_scale(inputs, selection.expert) * np.abs(weights))
    for name in inputs:
        direction = random_direction(inputs[name], selection.seed)

        def value(moved, name=name):
            changed = inputs | {name: moved}
            options = dict(routed_ffn=reference.routed_ffn, factor=factor)
            return float(weighted_output(changed, selection.expert, weights, **options))

        what = f"gradient of routed_ffn, {selection.expert.shape}, {selection.loads}, c {factor}, in {name}"
        arrays = found[name], value, inputs[name], direction
        assert_derivative("experts.gradient", *arrays, scale, what=what, step=2.0**-13)


@pytest.mark.asks("experts.routed_ffn")
def test_dropped_tokens_get_no_gradient(backend):
    selection = Selection(np.zeros((8, 1), int), 2, "one expert", 1)
    options = dict(routed_ffn=backend.experts.routed_ffn, factor=1.0)
    found = gradient(weighted_output, layer(selection), selection.expert, np.ones((8, D)), **options)
    assert np.all(found["x"][4:] == 0) and np.all(found["gate"][4:] == 0), "tokens 4 to 7 have no slot"
    assert np.all(found["x"][:4] != 0) and np.all(found["gate"][:4] != 0)
    assert np.all(found["params"]["up"][1] == 0) and np.any(found["params"]["up"][0] != 0)


@pytest.mark.asks("experts.dispatch", "experts.routed_ffn")
@pytest.mark.twin
def test_types(backend):
    selection = Selection(np.array([[0, 1], [1, 2], [2, 0]]), 3, "random", 0)
    inputs = layer(selection)
    placement = run(backend, "experts.dispatch", "float32", selection.expert, num_experts=3, capacity=2)
    assert [field.dtype for field in placement] == [jnp.int32, jnp.bool_, jnp.int32]
    for factor in FACTORS:
        found = run(
            backend,
            "experts.routed_ffn",
            "float32",
            inputs["params"],
            inputs["x"],
            selection.expert,
            inputs["gate"],
            capacity_factor=factor,
        )
        assert all(isinstance(field, jax.Array) and field.dtype == jnp.float32 for field in found)


@pytest.mark.slow
@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.twin
def test_64_bits_without_a_warning(backend):
    """JAX warns if 64-bit numbers are written among 32-bit numbers, and will raise in the future."""
    inputs = layer(Selection(np.array([[0], [1], [0]]), 2, "random", 1))
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        for factor in (1.0, math.inf):
            expert = np.array([[0], [1], [0]])
            arrays = jax.tree.map(jnp.asarray, (inputs["params"], inputs["x"], expert, inputs["gate"]))
            assert backend.experts.routed_ffn(*arrays, factor).output.dtype == jnp.float64


@pytest.mark.asks("experts.dispatch", "experts.routed_ffn")
@pytest.mark.twin
def test_an_expert_out_of_range(backend):
    """The reference raises. Under jit the assignment gets no slot and takes no slot from others."""
    with pytest.raises(ValueError, match="range from 0 to 2; allowed: 0 to 1"):
        reference.dispatch(np.array([[0], [2]]), 2, 2)
    inputs = layer(Selection(np.zeros((4, 1), int), 2, "one expert", 1), "float32")
    alone = reference.routed_ffn(inputs["params"], inputs["x"][1:2], np.array([[1]]), inputs["gate"][1:2]).output
    for factor in (1.0, math.inf):
        arrays = inputs["params"], inputs["x"], np.array([[-1], [1], [2], [-2]]), inputs["gate"]
        found = np.asarray(run(backend, "experts.routed_ffn", "float32", *arrays, capacity_factor=factor).output)
        assert_same(found[[0, 2, 3]], np.zeros((3, D)), what=f"experts out of range, c {factor}")
        scale = UNIT["float32"] * ffn_scale(inputs, np.ones((4, 1), int))[1:2]
        assert_close_bounded("experts.routed_ffn", found[1:2], alone, scale, what=f"the one in range, c {factor}")


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
