import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import (
    assert_close_bounded,
    assert_derivative,
    assert_nearly_same,
    assert_same,
    differs,
)
from routelaws.conformance.engine.harness import gradient, jitted, random_direction, rounded, run
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference.experts import expert_ffn, gelu
from routelaws.reference.routers import expert_choice
from routelaws.reference.routers import mixture_of_tokens as reference

WEIGHTS, LAYER = (f"routers.mixture_of_tokens.{name}" for name in ("mixing_weights", "mixture_of_tokens"))
SHAPE = (7, 4)
"""g and E: more tokens than experts; E does not divide g."""

D, F = 3, 5
"""d and f of every expert here."""

PADDING = np.array([True, False, True, True, False, False, True])

EQUAL = Logits(np.tile([[-0.0], [0.0]], (4, 4))[:7], "tied", 1)
"""Equal logits, zeros of both signs."""

FORMS = (("gelu", False), ("relu", False), ("gelu", True))
"""Activation and one_hot."""

temperatures = st.sampled_from([0.25, 1.0, 3.0])


def weights_by_formula(z: np.ndarray, temperature: float, one_hot: bool = False) -> np.ndarray:
    """Return [g, E], 1 / (sum over tokens j of exp((z_j - z_i) / temperature)), or 1 at the first largest token."""
    if one_hot:
        return (np.arange(len(z))[:, None] == np.argmax(z, axis=0)).astype(float)
    with np.errstate(over="ignore"):
        return 1 / np.exp((z[None] - z[:, None]) / temperature).sum(axis=1)


def unit_of(z: np.ndarray, temperature: float, precision: str) -> np.ndarray:
    """Return [g, E], the relative error of the weights: u per unit of the exponent."""
    divided = z / temperature
    return UNIT[precision] * (4 + np.abs(divided - divided.max(axis=0)) + np.abs(divided).max(axis=0))


def check_weights(backend, drawn: Logits, temperature: float, precision: str, masked: bool) -> None:
    """The formula sums over the real tokens. Logits of padded tokens are random."""
    z = drawn.values
    mask = PADDING if masked else np.ones(len(z), bool)
    what = f"mixing_weights, {drawn.family} {z.shape}, temperature {temperature}, masked {masked}, {precision}"
    wanted, scale = np.zeros(z.shape), np.zeros(z.shape)
    wanted[mask] = weights_by_formula(z[mask], temperature)
    scale[mask] = unit_of(z[mask], temperature, "float64") * wanted[mask] + np.finfo("float64").tiny
    options = {"mask": mask} if masked else {}
    given_to_both = np.where(mask[:, None], z, np.nan)
    ours = reference.mixing_weights(given_to_both, temperature, **options)
    assert_close_bounded("mixture.weights", ours, wanted, scale, what=f"reference, {what}")
    scale[mask] = unit_of(z[mask], temperature, precision) * wanted[mask] + np.finfo(precision).tiny
    found = run(backend, WEIGHTS, precision, given_to_both, temperature, traced=options)
    assert_close_bounded("mixture.weights", found, wanted, scale, what=what)


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights")
@given(drawn=logits(shapes=(SHAPE,)), temperature=temperatures, precision=precisions, masked=st.booleans())
def test_weights(backend, drawn, temperature, precision, masked):
    check_weights(backend, drawn, temperature, precision, masked)


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights")
@pytest.mark.parametrize("num_tokens, num_experts", [(1, 4), (5, 1)])
def test_weights_of_other_shapes(backend, num_tokens, num_experts):
    z = np.random.default_rng(num_experts).standard_normal((num_tokens, num_experts)).astype(np.float32)
    check_weights(backend, Logits(z.astype(float), "free", 1), 1.0, "float32", False)


@pytest.mark.asks("notation.one_hot", "routers.mixture_of_tokens.mixing_weights")
@given(drawn=logits(shapes=(SHAPE,)), precision=precisions, masked=st.booleans())
@example(drawn=EQUAL, precision="float32", masked=False)
def test_one_hot(backend, drawn, precision, masked):
    """The first largest token has weight 1, exactly, for ties and both signs of zero."""
    z = drawn.values
    mask = PADDING if masked else np.ones(len(z), bool)
    wanted = np.zeros(z.shape)
    wanted[mask] = weights_by_formula(z[mask], 1.0, one_hot=True)
    given_to_both = np.where(mask[:, None], z, 1e9)
    traced = {"mask": mask} if masked else {}
    ours = reference.mixing_weights(given_to_both, one_hot=True, **traced)
    assert_same(ours, wanted, what="reference, one_hot")
    found = run(backend, WEIGHTS, precision, given_to_both, traced=traced, one_hot=True)
    assert_same(found, wanted, what=f"mixing_weights, one_hot, masked {masked}, {precision}")


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights")
def test_extreme_logits(backend):
    """For gaps of 1e4 and more the weights are exactly one-hot, without overflow."""
    random = np.random.default_rng(0)
    order = np.stack([random.permutation(7) for _ in range(4)], axis=1).astype(float) - 3
    wanted = (order == 3).astype(float)
    for size, temperature in ((1e4, 1.0), (1e30, 1.0), (1.0, 1e-6), (1.0, 1e-30)):
        z = rounded(order * size, "float32")
        assert_same(reference.mixing_weights(z, temperature), wanted, what="reference, extreme logits")
        found = run(backend, WEIGHTS, "float32", z, temperature)
        assert_same(found, wanted, what=f"mixing_weights of logits of size {size}, temperature {temperature}")


@pytest.mark.asks("routers.mixture_of_tokens.mixture_of_tokens")
def test_giving_back_by_hand(backend):
    """Two tokens, logits log 3 0 and 0 0. Mixing: 3/4 and 1/4 for expert 0, halves for expert 1.

    So the tokens 4 and 8 mix to 5 and 6. The experts multiply these by 1 and 10: 5 and 60. With weights over experts,
    token 0 gets 3/4 and 1/4 of these, token 1 halves. At an emit temperature of 1/2, token 0 gets 9/10 and 1/10 of
    them. One temperature of 1/2 for both gives 9/10 and 1/10 of the mixture of expert 0 too, which is 4.4. With mixing
    weights and an emit temperature of 1/2: 9/10 and 1/10 of 5, and half of 60.
    """
    params = {"router": np.array([[0.25 * np.log(3), 0.0], [-0.125 * np.log(3), 0.0]])}
    x = np.array([[4.0, 0.0], [8.0, 16.0]])
    params |= {"up": np.array([[[1.0], [0.0]], [[10.0], [0.0]]]), "down": np.array([[[1.0, 0.0]], [[1.0, 0.0]]])}
    cases = (
        (1.0, None, [18.75, 32.5], "experts"),
        (1.0, 0.5, [10.5, 32.5], "experts"),
        (1.0, 2.0, None, "experts"),
        (0.5, None, [9.96, 32.2], "experts"),
        (1.0, 0.5, [34.5, 30.5], "mixing"),
    )
    for temperature, own, wanted, emit in cases:
        options = dict(temperature=temperature, activation="relu", emit=emit, emit_temperature=own)
        ours = reference.mixture_of_tokens(params, x, **options).output
        found = run(backend, LAYER, "float64", params, x, **options).output
        assert_close_bounded("mixture.output", found, ours, UNIT["float64"] * 100, what=f"giving back, {options}")
        if wanted is not None:
            expected = np.array(wanted)[:, None] * [1, 0]
            assert_close_bounded("mixture.output", ours, expected, UNIT["float64"] * 100, what="giving back by hand")


@pytest.mark.asks(
    "notation.one_hot", "routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.emit_weights"
)
@given(seed=seeds, precision=precisions, temperature=temperatures, masked=st.booleans())
def test_weights_of_giving_back(backend, seed, precision, temperature, masked):
    """Rows of real tokens sum to 1 over the experts, and padding gets 0. Mixing weights are unchanged."""
    z = rounded(np.random.default_rng(seed).standard_normal(SHAPE) * 3, precision)
    traced, real = ({"mask": PADDING}, PADDING) if masked else ({}, np.ones(len(z), bool))
    path, unit = "routers.mixture_of_tokens.emit_weights", UNIT[precision] * (4 + 2 * np.abs(z).max() / temperature)
    found = np.asarray(run(backend, path, precision, z, temperature, traced=traced, emit="experts"))
    wanted = reference.emit_weights(z, temperature, emit="experts", **traced)
    what = f"emit_weights, temperature {temperature}, masked {masked}, {precision}"
    assert_close_bounded("mixture.weights", found, wanted, unit * wanted + unit * 2.0**-60, what=what)
    assert_close_bounded("mixture.weights", wanted.sum(axis=1), real, UNIT["float64"] * 4, what=f"rows of {what}")
    for options in (dict(emit="mixing"), dict(emit="experts", one_hot=True)):
        same = run(backend, path, precision, z, temperature, traced=traced, **options)
        one_hot = {"one_hot": options.get("one_hot", False)}
        mixing = run(backend, WEIGHTS, precision, z, temperature, traced=traced, **one_hot)
        assert_same(np.asarray(same), np.asarray(mixing), what=f"{what}, {options}")


@pytest.mark.asks(
    "experts.expert_ffn", "routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.mixture_of_tokens"
)
def test_infinite_temperature_mixes_uniformly(backend):
    z = np.random.default_rng(1).standard_normal(SHAPE) * 10
    wanted = np.full(SHAPE, 1 / 7)
    for found in (reference.mixing_weights(z, np.inf), run(backend, WEIGHTS, "float64", z, np.inf)):
        assert_close_bounded("mixture.weights", found, wanted, UNIT["float64"], what="weights at temperature infinity")
    params, x = layer(1)
    found = run(backend, LAYER, "float64", params, x, np.inf).output
    # Every token gets the sum of the experts' outputs for the mean token, divided by g.
    one = sum(expert_ffn(up, down, x.mean(axis=0)) for up, down in zip(params["up"], params["down"], strict=True)) / 7
    scale = size_of(params, x, np.inf, "float64", wanted)
    assert_close_bounded("mixture.output", found, np.tile(one, (7, 1)), scale, what="uniform mixing")


def layer(seed: int, precision: str = "float64", shape=SHAPE, lattice: bool = False):
    """Return weights and x [g, d], exact in the precision. On a lattice the logits are exact too, with ties."""
    random = np.random.default_rng(seed)
    g, num_experts = shape
    router, x = random.standard_normal((D, num_experts)), random.standard_normal((g, D))
    if lattice:
        router, x = np.round(4 * router) / 4, np.round(4 * x) / 4
    up, down = random.standard_normal((num_experts, D, F)), random.standard_normal((num_experts, F, D))
    return rounded(({"router": router, "up": up, "down": down}, x), precision)


def output_by_formula(params, x, temperature, activation, one_hot):
    """Return the weights and the output for one group, as three products."""
    weights = weights_by_formula(x @ params["router"], temperature, one_hot)
    hidden = np.einsum("ge,gd,edf->ef", weights, x, params["up"])
    hidden = gelu(hidden) if activation == "gelu" else hidden * (hidden > 0)
    return weights, np.einsum("ge,ef,efd->gd", weights, hidden, params["down"])


def size_of(params, x, temperature, precision, weights):
    """Return [g, 1], the error of an output: u times its absolute terms, and times the size of the exponents."""
    z = np.abs(x) @ np.abs(params["router"]) / temperature
    mixed = np.einsum("ge,gd->ed", weights, np.abs(x))
    terms = np.einsum("ge,ed,edf,efc->gc", weights, mixed, np.abs(params["up"]), np.abs(params["down"]))
    return UNIT[precision] * (1 + z.max()) * terms.max(axis=1, keepdims=True)


@pytest.mark.asks("experts.gelu", "routers.mixture_of_tokens.mixture_of_tokens")
@given(seed=seeds, precision=precisions, temperature=temperatures, form=st.sampled_from(FORMS), masked=st.booleans())
def test_layer(backend, seed, precision, temperature, form, masked):
    """Compare both twins with three products. Padding holds random numbers and changes nothing."""
    activation, one_hot = form
    params, x = layer(seed, precision, lattice=one_hot)
    mask = PADDING if masked else np.ones(len(x), bool)
    options = dict(one_hot=one_hot, activation=activation)
    what = f"mixture_of_tokens, {options}, temperature {temperature}, masked {masked}, {precision}"
    weights, wanted, exact = np.zeros(SHAPE), np.zeros(x.shape), np.zeros((len(x), 1))
    weights[mask], wanted[mask] = output_by_formula(params, x[mask], temperature, **options)
    exact[mask] = size_of(params, x[mask], temperature, "float64", weights[mask])
    given_to_both = np.where(mask[:, None], x, np.nan)
    traced = {"mask": mask} if masked else {}
    ours = reference.mixture_of_tokens(params, given_to_both, temperature, **options, **traced)
    assert_close_bounded("mixture.output", ours.output, wanted, exact, what=f"reference, {what}")
    found = run(backend, LAYER, precision, params, given_to_both, temperature, traced=traced, **options)
    factor = UNIT[precision] / UNIT["float64"]
    assert_close_bounded("mixture.output", found.output, wanted, exact * factor, what=what)
    if one_hot:
        assert_same(found.weights, ours.weights, what=f"{what}: weights")
    else:
        size = 4 + np.abs(x) @ np.abs(params["router"]) / temperature
        unit = UNIT[precision] * (size + size.max(axis=0)) * weights
        assert_close_bounded("mixture.logits", found.weights, ours.weights, unit, what=f"{what}: weights")


def weighted_output(point, outward, mask, function, **options):
    """Return Σ outward · output as a function of weights, tokens and temperature."""
    output = function(point["params"], point["x"], point["temperature"], mask=mask, **options).output
    return (output * outward).sum()


def check_gradient(backend, seed: int, activation: str, one_hot: bool, precision: str = "float64") -> None:
    params, x = layer(seed, precision)
    random = np.random.default_rng(seed)
    point = {"params": params, "x": x, "temperature": np.array(0.75)}
    direction, outward = random_direction(point, seed + 1), rounded(random.standard_normal(x.shape), precision)
    options = dict(activation=activation, one_hot=one_hot)

    def value(at):
        return float(weighted_output(at, outward, PADDING, reference.mixture_of_tokens, **options))

    function = backend.routers.mixture_of_tokens.mixture_of_tokens
    found = gradient(weighted_output, point, outward, PADDING, precision=precision, function=function, **options)
    assert_same(found["x"][~PADDING], np.zeros((3, D)), what="gradient of padded tokens")
    if one_hot:
        assert_same(found["params"]["router"], np.zeros((D, 4)), what="gradient of the controller under one_hot")
        assert_same(found["temperature"], 0.0, what="gradient of the temperature under one_hot")
    real = x[PADDING]
    weights = reference.mixture_of_tokens(params, real, 0.75, **options).weights
    scale = np.abs(outward).max() * size_of(params, real, 0.75, precision, weights).sum()
    name, unit = ("mixture.gradient", UNIT[precision]) if precision == "float64" else ("mixture.gradient_float32", 1)
    what = f"gradient of mixture_of_tokens, {options}, {precision}"
    assert_derivative(name, found, value, point, direction, scale / unit, what=what)


@pytest.mark.asks("routers.mixture_of_tokens.mixture_of_tokens")
@pytest.mark.parametrize("activation, one_hot", [FORMS[0], pytest.param(*FORMS[1], marks=pytest.mark.slow), FORMS[2]])
def test_gradient(backend, activation, one_hot):
    for seed in range(3):
        check_gradient(backend, seed, activation, one_hot)


@pytest.mark.asks("routers.mixture_of_tokens.mixture_of_tokens")
def test_gradient_in_32_bits(backend):
    for seed in range(3):
        check_gradient(backend, seed, "gelu", False, "float32")


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.mixture_of_tokens")
@pytest.mark.twin
def test_a_group_without_a_real_token(backend):
    """The reference raises. Under jit the output is 0 with gradient 0."""
    params, x = layer(0)
    nobody = np.zeros(7, bool)
    for arguments in ((reference.mixture_of_tokens, params, x), (reference.mixing_weights, x)):
        with pytest.raises(ValueError, match=r"0 real tokens; \[7\] with at least one"):
            arguments[0](*arguments[1:], mask=nobody)
    if jitted(backend):
        found = run(backend, LAYER, "float64", params, x, traced={"mask": nobody}, one_hot=False, activation="gelu")
        assert_same(found.output, np.zeros((7, D)), what="output of a group of padding")
        options = dict(function=backend.routers.mixture_of_tokens.mixture_of_tokens, activation="gelu", one_hot=False)
        point = {"params": params, "x": x, "temperature": np.array(0.75)}
        for leaf in jax.tree.leaves(gradient(weighted_output, point, np.ones((7, D)), nobody, **options)):
            assert_same(leaf, np.zeros(leaf.shape), what="gradient of a group of padding")


def weighted_weights(point, outward, mask, function):
    """Return Σ outward · weights as a function of logits and temperature."""
    return (function(point["logits"], point["temperature"], mask=mask) * outward).sum()


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.mixture_of_tokens")
def test_padding_has_no_gradient(backend):
    """The derivative ignores NaN in the padding, too."""
    z, outward = np.random.default_rng(2).standard_normal((2, *SHAPE))
    function = backend.routers.mixture_of_tokens.mixing_weights
    found = [
        gradient(
            weighted_weights,
            {"logits": np.where(PADDING[:, None], z, padded), "temperature": np.array(0.75)},
            outward,
            PADDING,
            function=function,
        )
        for padded in (np.nan, 0.0)
    ]
    for name in ("logits", "temperature"):
        assert_nearly_same(found[0][name], found[1][name], what=f"gradient of {name}, garbage in the padding")
    assert_same(found[0]["logits"][~PADDING], np.zeros((3, 4)), what="gradient of padded logits")


# Special cases.


@pytest.mark.asks("experts.expert_ffn", "routers.mixture_of_tokens.mixture_of_tokens")
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("num_experts", [1, 4])
def test_a_group_of_one(backend, num_experts, one_hot):
    """One token alone has weights 1 and the sum over all experts. One expert is the dense layer."""
    params, x = layer(3, "float32", (1, num_experts))
    ours = reference.mixture_of_tokens(params, x, one_hot=one_hot)
    for found in (ours, run(backend, LAYER, "float32", params, x, one_hot=one_hot)):
        assert_same(found.weights, np.ones((1, num_experts)), what="weights of a group of one")
        wanted = sum(expert_ffn(up, down, x) for up, down in zip(params["up"], params["down"], strict=True))
        scale = size_of(params, x, np.inf, "float32", np.ones((1, num_experts)))
        assert_close_bounded("mixture.output", found.output, wanted, scale, what=f"group of one, {num_experts} experts")


# Causality.


def output_of_batch(params, x, routers, grouping: str, group_size: int):
    """Return [b, S, d], the layer over groups of one position in several sequences, or over one sequence."""
    group, ungroup = routers.mixture_of_tokens.group_within_sequence, routers.mixture_of_tokens.ungroup_within_sequence
    if grouping == "position":
        group, ungroup = routers.expert_choice.group_by_position, routers.expert_choice.ungroup_by_position
    groups = group(x, group_size)
    function = routers.mixture_of_tokens.mixture_of_tokens
    if isinstance(x, np.ndarray):
        found = np.array([function(params, group).output for group in groups])
    else:
        found = jax.vmap(lambda group: function(params, group).output)(groups)
    return ungroup(found, x.shape[1])


def change(routers, grouping: str, group_size: int, position: int, compiled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return [b, S] bool, the outputs that change with one position of sequence 1, and the old outputs."""
    params, x = layer(6, "float32", (16, 4))
    x = x.reshape(4, 4, D)
    moved = x.copy()
    moved[1, position] += 1
    compute = functools.partial(output_of_batch, routers=routers, grouping=grouping, group_size=group_size)
    if compiled:
        compute = jax.jit(compute)
        params, x, moved = jax.tree.map(jnp.float32, (params, x, moved))
    before, after = np.asarray(compute(params, x)), np.asarray(compute(params, moved))
    return differs(after, before).any(axis=2), before


@pytest.mark.asks(
    "routers.expert_choice.group_by_position",
    "routers.expert_choice.ungroup_by_position",
    "routers.mixture_of_tokens.mixture_of_tokens",
    "routers.mixture_of_tokens.group_within_sequence",
    "routers.mixture_of_tokens.ungroup_within_sequence",
)
@pytest.mark.parametrize(
    "grouping, group_size, position",
    [
        pytest.param("position", 2, 2, id="one position: causal"),  # changes in two sequences
        pytest.param("sequence", 2, 3, id="within a sequence: the future leaks"),
        pytest.param("position", 1, 2, id="one token: independent of the batch"),
    ],
)
def test_who_sees_whom(backend, grouping, group_size, position):
    """Exactly the group of the changed token changes. Groups under vmap equal a loop over them."""
    wanted = np.zeros((4, 4), bool)
    if grouping == "position":
        start = 1 // group_size * group_size
        wanted[start : start + group_size, position] = True
    else:
        start = position // group_size * group_size
        wanted[1, start : start + group_size] = True
    what = f"outputs, groups of {group_size} by {grouping}"
    oracle = SimpleNamespace(expert_choice=expert_choice, mixture_of_tokens=reference)
    moved, ours = change(oracle, grouping, group_size, position, False)
    assert_same(moved, wanted, what=f"reference, which {what} change")
    if jitted(backend):
        moved, found = change(backend.routers, grouping, group_size, position, True)
        assert_same(moved, wanted, what=f"which {what} change")
        params, x = layer(6, "float32", (16, 4))
        scale = size_of(params, x, 1.0, "float32", np.ones((16, 4))).max()
        assert_close_bounded("mixture.output", found, ours, scale, what=what)


@pytest.mark.asks(
    "routers.mixture_of_tokens.mixture_of_tokens",
    "routers.mixture_of_tokens.group_within_sequence",
    "routers.mixture_of_tokens.ungroup_within_sequence",
)
def test_groups(backend):
    x = np.arange(2 * 6 * 3).reshape(2, 6, 3)
    for module in (backend.routers.mixture_of_tokens, reference):
        groups = module.group_within_sequence(jnp.asarray(x) if module is not reference else x, 3)
        assert_same(groups, [x[0, :3], x[0, 3:], x[1, :3], x[1, 3:]], what="group_within_sequence")
        assert_same(module.ungroup_within_sequence(groups, 6), x, what="ungroup_within_sequence")


def check_low_precision(backend) -> None:
    """For 16-bit tokens, controller and weights compute in 32 bits, and the output is in 16 bits."""
    params, x = layer(9, "bfloat16")
    params["router"] *= 4
    found = run(backend, LAYER, "bfloat16", params, x, jit=False)  # a compiled function may omit a rounding to 16 bits
    wanted = reference.mixture_of_tokens(params, x)
    assert found.output.dtype == jnp.bfloat16 and found.weights.dtype == jnp.float32
    size = 4 + np.abs(x) @ np.abs(params["router"])
    scale = UNIT["float32"] * (size + size.max(axis=0)) * wanted.weights
    assert_close_bounded("mixture.logits", found.weights, wanted.weights, scale, what="weights of tokens of 16 bits")
    scale = size_of(params, x, np.inf, "bfloat16", wanted.weights)
    found = np.asarray(found.output, float)
    assert_close_bounded("mixture.output", found, wanted.output, scale, what="output for tokens of 16 bits")
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    low = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
    module = backend.routers.mixture_of_tokens
    assert jax.eval_shape(module.mixing_weights, low).dtype == jnp.float32
    found = jax.eval_shape(module.mixture_of_tokens, shapes, low)
    assert found.output.dtype == jnp.bfloat16 and found.weights.dtype == jnp.float32, f"parameters of 32 bits: {found}"


@pytest.mark.asks("routers.mixture_of_tokens.mixing_weights", "routers.mixture_of_tokens.mixture_of_tokens")
def test_low_precision(backend):
    if jitted(backend):
        check_low_precision(backend)
