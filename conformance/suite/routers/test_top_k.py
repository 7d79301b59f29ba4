"""Top-k: exact choices if both twins compare the same floats, gates by formula, gradients with `held`."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import BOUNDS, UNIT
from routelaws.conformance.compare import (
    assert_admissible_top_k,
    assert_close_bounded,
    assert_derivative,
    assert_held,
    assert_nearly_same,
    assert_same,
)
from routelaws.conformance.engine.harness import gradient, precisions_of, run_varied
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference.notation import Routing
from routelaws.reference.routers import top_k as reference

TOP_K, SWITCH, GSHARD = (f"routers.top_k.{name}_router" for name in ("top_k", "switch", "gshard"))
SHAPES = ((7, 4),)
"""(T, E); E does not divide T."""

FORMS = [(score, normalisation) for score in reference.SCORES for normalisation in reference.NORMALISATIONS]

forms = st.just(FORMS[0]) | st.sampled_from(FORMS)
"""Half of the draws are the reference's defaults, for routers without options."""


def options_of(k: int, score: str, normalisation: str) -> dict:
    """Return the options of a call, with `allow_constant_gate` only for constant gates."""
    options = dict(k=k, score=score, normalisation=normalisation)
    return options | ({"allow_constant_gate": True} if k == 1 and normalisation != "none" else {})


def unit_of(z: np.ndarray, precision: str) -> np.ndarray:
    """Return [T, 1], the relative error of the scores of each token: u per unit of the exponent."""
    spread = np.abs(z - z.max(axis=1, keepdims=True)).max(axis=1, keepdims=True)
    return UNIT[precision] * (4 + spread + np.abs(z).max(axis=1, keepdims=True))


def check_mass(found, expert, kept, num_experts: int, precision: str, what: str) -> None:
    """Check plan, load and residual of a selection: each kept assignment has equal mass."""
    plan = np.zeros((len(expert), num_experts))
    for t, e in np.argwhere(kept):
        plan[t, expert[t, e]] += 1 / np.sum(kept)
    unit = UNIT[precision] * expert.size
    residual = np.abs(num_experts * plan.sum(axis=0) - 1).max()
    assert_close_bounded("top_k.load", found.plan, plan, UNIT[precision] * plan, what=f"{what}: plan")
    assert_close_bounded("top_k.load", found.load, plan.sum(axis=0), unit * plan.sum(axis=0), what=f"{what}: load")
    assert_close_bounded("top_k.load", found.residual, residual, unit * (1 + residual), what=f"{what}: residual")


def check_held(
    backend, path, drawn: Logits, wanted: Routing, precision: str, options: dict, what: str, **traced
) -> None:
    z = drawn.values
    traced["held"] = backend.notation.Routing(*wanted)
    found = run_varied(backend, path, precision, z, traced=traced, **options)
    assert_held(found, wanted, precision, what=what)
    scale = unit_of(z, precision) * wanted.gate + np.finfo(precision).tiny * (wanted.gate > 0)
    assert_close_bounded("top_k.gate", found.gate, wanted.gate, scale, what=f"{what}: gate")


def check_top_k(
    backend, drawn: Logits, precision: str, k: int, score: str, normalisation: str, jit: bool = False
) -> None:
    """Without a bias both twins order the same floats, also ties, -0.0 and saturated scores."""
    z = drawn.values
    options = options_of(k, score, normalisation)
    what = f"top_k_router, {drawn.family} {z.shape}, {options}, {precision}"
    found = run_varied(backend, TOP_K, precision, z, jit=jit, **options)
    wanted = reference.top_k_router(z, **options)
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")
    scale = unit_of(z, precision) * wanted.gate + np.finfo(precision).tiny
    assert_close_bounded("top_k.gate", found.gate, wanted.gate, scale, what=f"{what}: gate")
    check_mass(found, wanted.expert, np.ones(wanted.expert.shape), z.shape[1], precision, what)


@pytest.mark.asks("routers.top_k.top_k_router")
@given(drawn=logits(shapes=SHAPES), precision=precisions, form=forms)
def test_top_k(backend, drawn, precision, form):
    check_top_k(backend, drawn, precision, drawn.k, *form)


@pytest.mark.asks("routers.top_k.top_k_router")
@pytest.mark.parametrize("num_tokens, num_experts", [(1, 4), (5, 1), (2, 8)])
def test_top_k_of_other_shapes(backend, num_tokens, num_experts):
    """One token, one expert, more experts than tokens, and all experts chosen."""
    z = np.random.default_rng(num_experts).standard_normal((num_tokens, num_experts)).astype(np.float32)
    check_top_k(backend, Logits(z.astype(float), "free", 1), "float32", num_experts, "softmax", "none", True)


def check_bias(backend, drawn: Logits, bias, precision: str, score: str, normalisation: str) -> None:
    """Check choices by score + bias up to rounding, and gates without the bias."""
    z, k = drawn.values, drawn.k
    options = options_of(k, score, normalisation)
    what = f"top_k_router with a bias, {drawn.family} {z.shape}, {options}, {precision}"
    found = run_varied(backend, TOP_K, precision, z, traced={"bias": bias}, **options)
    plain = reference.top_k_router(z, z.shape[1], score=score)  # the gates of all experts are the scores
    scores = np.take_along_axis(plain.gate, np.argsort(plain.expert, axis=1), axis=1)
    error = unit_of(z, precision) * scores + UNIT[precision] * np.abs(scores + bias) + np.finfo(precision).tiny
    margin = BOUNDS["top_k.score"].limit * error.max(axis=1)
    assert_admissible_top_k(found.expert, scores + bias, margin, what=what)
    gates = reference.chosen_gates(z, np.asarray(found.expert), score, normalisation)
    scale = unit_of(z, precision) * gates + np.finfo(precision).tiny
    assert_close_bounded("top_k.gate", found.gate, gates, scale, what=f"{what}: gate")
    check_mass(found, found.expert, np.ones(found.expert.shape), z.shape[1], precision, what)
    wanted = reference.top_k_router(z, bias=bias, **options)
    check_held(backend, TOP_K, drawn, wanted, precision, options, what, bias=bias)


@pytest.mark.asks("routers.top_k.top_k_router")
@given(drawn=logits(shapes=SHAPES), precision=precisions, form=forms, seed=seeds)
def test_bias(backend, drawn, precision, form, seed):
    bias = np.random.default_rng(seed).standard_normal(drawn.values.shape[1])
    check_bias(backend, drawn, bias.astype(np.float32).astype(float), precision, *form)


TINY = -np.array([[18, 19, 18.5, 20], [60, 62, 61, 60.5], [95, 97, 94, 96], [900, 901, 903, 902], [3, 18, 60, 95.0]])
"""Logits whose sigmoids are 1e-8, 1e-26, and 0 in float32: their sums are below a typical epsilon."""
SATURATED = [20.0, 30.0, 25.0, 0.0]
"""In 32 bits σ(20) = σ(30) = 1, but the logits differ."""


@pytest.mark.asks("routers.top_k.top_k_router")
@pytest.mark.parametrize("normalisation", ["none", "sum"])
def test_tiny_and_saturated_sigmoids(backend, normalisation):
    """The bias is so large that score + bias equals the bias, so the gate needs the score itself."""
    drawn = Logits(np.vstack([TINY, SATURATED, SATURATED]), "tiny", 3)
    for precision in precisions_of(backend):
        check_top_k(backend, drawn, precision, 3, "sigmoid", normalisation)
        check_bias(backend, drawn, np.array([12.0, 14.0, -16.0, 13.0]), precision, "sigmoid", normalisation)


@pytest.mark.asks("routers.top_k.top_k_router")
def test_bias_ties(backend):
    """Scores 1/2 plus equal biases are exact in every precision, so the lower index wins."""
    z = np.tile([0.0, -0.0, 0.0, -0.0], (7, 1))
    for bias, wanted in (
        ([0, 0, 0, 0], [0, 1]),
        ([-0.0, 0, 0, 0], [0, 1]),
        ([-0.5, -0.5, -0.5, -0.5], [0, 1]),
        ([0, 0.25, 0, 0.25], [1, 3]),
        ([-0.25, 0, 0.5, 0], [2, 1]),
    ):
        for precision in precisions_of(backend):
            found = run_varied(
                backend, TOP_K, precision, z, k=2, score="sigmoid", traced={"bias": np.array(bias, float)}
            )
            assert_same(found.expert, [wanted] * 7, what=f"top_k_router of ties, bias {bias}, {precision}")
            assert_same(found.gate, np.full((7, 2), 0.5), what=f"gates of ties, bias {bias}, {precision}")
        assert reference.top_k_router(z, 2, score="sigmoid", bias=np.array(bias, float)).expert.tolist() == [wanted] * 7


def check_switch(backend, drawn: Logits, precision: str, path: str) -> None:
    """Check Switch or the default top-k, so the report blames the right one."""
    z = drawn.values
    wanted, same = reference.switch_router(z), reference.top_k_router(z)
    for name, field in wanted._asdict().items():
        assert_same(field, getattr(same, name), what=f"reference, switch_router and top_k_router: {name}")
    probability = np.exp(z - z.max(axis=1, keepdims=True))
    probability = probability.max(axis=1) / probability.sum(axis=1)
    scale = unit_of(z, precision) * probability[:, None]
    found, what = run_varied(backend, path, precision, z), f"{path}, {drawn.family} {z.shape}, {precision}"
    dtype = np.asarray(found.gate).dtype
    assert dtype.itemsize >= np.dtype(precision).itemsize, f"{what}: gates are {dtype}"
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")
    assert_close_bounded("top_k.gate", found.gate, probability[:, None], scale, what=f"{what}: gate")
    check_mass(found, wanted.expert, np.ones(wanted.expert.shape), z.shape[1], precision, what)
    if path == SWITCH:
        check_held(backend, SWITCH, drawn, wanted, precision, {}, "switch_router")


@pytest.mark.asks("routers.top_k.switch_router", "routers.top_k.top_k_router")
@pytest.mark.parametrize("path", [SWITCH, TOP_K])
@given(drawn=logits(shapes=SHAPES), precision=precisions)
def test_switch_and_the_default_top_k(backend, path, drawn, precision):
    check_switch(backend, drawn, precision, path)


@pytest.mark.asks("routers.top_k.gshard_router")
@given(drawn=logits(shapes=SHAPES), precision=precisions, seed=seeds, evaluation=st.booleans())
def test_gshard(backend, drawn, precision, seed, evaluation):
    """The router keeps a second expert if its uniform is below twice its gate."""
    z, uniforms = drawn.values, None
    if not evaluation:
        uniforms = np.random.default_rng(seed).random(len(z)).astype(np.float32).astype(float)
    what = f"gshard_router, {drawn.family} {z.shape}, {precision}"
    everyone = reference.gshard_router(z)
    kept = np.ones((len(z), 2), bool)
    if uniforms is None:
        found = run_varied(backend, GSHARD, precision, z)
    else:
        threshold = 2 * everyone.gate[:, 1]
        error = BOUNDS["top_k.gate"].limit * unit_of(z, precision)[:, 0] * threshold
        near = np.abs(uniforms - threshold) <= 2 * error  # both answers may be right: use a clear case
        uniforms = np.where(near, np.where(threshold > 0.5, 0.0, 0.75), uniforms)
        found = run_varied(backend, GSHARD, precision, z, uniforms)
        kept[:, 1] = uniforms < threshold
    wanted = reference.gshard_router(z, uniforms)
    assert_same(wanted.gate > 0, kept & (wanted.gate > 0), what=f"reference, {what}: who is kept")
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")
    scale = unit_of(z, precision) * wanted.gate + np.finfo(precision).tiny * kept
    assert_close_bounded("top_k.gate", found.gate, wanted.gate, scale, what=f"{what}: gate")
    check_mass(found, wanted.expert, kept, z.shape[1], precision, what)
    check_held(backend, GSHARD, drawn, wanted, precision, {}, what)


@pytest.mark.asks("routers.top_k.gshard_router")
def test_how_often_gshard_keeps_the_second(backend):
    """With gates 4/5 and 1/5, three of seven even uniforms are below 2/5. Equal gates are always kept."""
    uniforms = (np.arange(7) + 0.5) / 7
    for weight, wanted in ((4.0, 3), (1.0, 7)):
        z = np.tile(np.log([[weight, 1.0, 1e-3, 1e-3]]), (7, 1))
        gate = np.asarray(run_varied(backend, GSHARD, "float32", z, uniforms).gate)
        assert (gate[:, 1] > 0).sum() == wanted, f"gshard_router keeps {(gate[:, 1] > 0).sum()} of 7, gate {weight}"


@pytest.mark.asks("routers.top_k.gshard_router")
def test_gshard_drops_a_second_whose_gate_is_0(backend):
    """A uniform of 0 is not below 0."""
    z, uniforms = np.tile([[0.0, -1000.0, -2000.0]], (12, 1)), np.zeros(12)
    found = run_varied(backend, GSHARD, "float32", z, uniforms)
    for name, load in (("backend", found.load), ("reference", reference.gshard_router(z, uniforms).load)):
        assert np.count_nonzero(np.asarray(load)) == 1, f"gshard_router, the gate of the second underflows: {name}"


def gate_sum(point, weights, router, **options):
    return (router(point["logits"], bias=point["bias"], **options).gate * weights).sum()


def check_gate_gradient(backend, drawn: Logits, score: str, normalisation: str, seed: int) -> None:
    z = drawn.values
    random = np.random.default_rng(seed)
    weights, direction = random.standard_normal((len(z), 2)), random.standard_normal(z.shape)
    bias = np.array([0.25, -0.5, 0.125, 0.0])
    options = dict(k=2, score=score, normalisation=normalisation)
    held = reference.top_k_router(z, bias=bias, **options)

    def value(point):
        return float((reference.top_k_router(point, held=held, **options).gate * weights).sum())

    point = {"logits": z, "bias": bias}
    found = gradient(gate_sum, point, weights, router=backend.routers.top_k.top_k_router, **options)
    what = f"gradient of top_k gates, {options}"
    assert_same(found["bias"], np.zeros(4), what=f"{what}, with respect to the bias")
    assert_derivative("top_k.gradient", found["logits"], value, z, direction, np.abs(weights).sum(), what=what)


@pytest.mark.asks("routers.top_k.top_k_router")
@pytest.mark.parametrize("score, normalisation", [form for form in FORMS if form[1] != "softmax"])
def test_gate_gradient(backend, score, normalisation):
    for seed in range(3):
        z = np.random.default_rng(seed).standard_normal((7, 4)) * 2
        check_gate_gradient(backend, Logits(z, "free", 2), score, normalisation, seed)


def gshard_sum(point, weights, uniforms, router):
    return (router(point["logits"], uniforms).gate * weights).sum()


@pytest.mark.asks("routers.top_k.gshard_router")
def test_gshard_gradient(backend):
    random = np.random.default_rng(1)
    z, weights, direction = (random.standard_normal(shape) for shape in ((7, 4), (7, 2), (7, 4)))
    uniforms = np.array([0.0, 0.999, 0.25, 0.0, 0.999, 0.5, 0.0])
    held = reference.gshard_router(z, uniforms)

    def value(point):
        return float((reference.gshard_router(point, held=held).gate * weights).sum())

    router = backend.routers.top_k.gshard_router
    found = gradient(gshard_sum, {"logits": z}, weights, uniforms, router=router)["logits"]
    scale = np.abs(weights).sum()
    assert_derivative("top_k.gradient", found, value, z, direction, scale, what="gradient of gshard gates")


def constant_gate_sum(point, router, normalisation, allow):
    return router(point["logits"], normalisation=normalisation, allow_constant_gate=allow).gate.sum()


@pytest.mark.asks("routers.top_k.top_k_router")
def test_constant_gate(backend):
    z = np.random.default_rng(0).standard_normal((7, 4))
    route = functools.partial(run_varied, backend, "routers.top_k.top_k_router", "float32")
    for top_k_router in (route, reference.top_k_router):
        for normalisation in ("sum", "softmax"):
            found = top_k_router(z, k=1, normalisation=normalisation, allow_constant_gate=True)
            assert_same(found.gate, np.ones((7, 1)), what="constant gate")
    router = backend.routers.top_k.top_k_router
    for normalisation, allow in (("softmax", True), ("none", False)):
        found = gradient(constant_gate_sum, {"logits": z}, router=router, normalisation=normalisation, allow=allow)
        lively = (found["logits"] != 0).all(axis=1)
        assert_same(lively, np.full(7, not allow), what=f"gradient at k = 1, normalisation {normalisation}")


def padded_sum(point, mask, router, **options):
    return (router(point["logits"], mask=mask, **options).gate * (1 + jnp.arange(14).reshape(7, 2))).sum()


@pytest.mark.asks("routers.top_k.top_k_router", "routers.top_k.gshard_router")
def test_padding_gradient(backend):
    """NaN in the padding gets no gradient and changes none."""
    z, mask = np.random.default_rng(1).standard_normal((7, 4)), np.array([1, 0, 1, 1, 0, 1, 1])
    module = backend.routers.top_k
    for router, options in ((module.top_k_router, dict(k=2, normalisation="sum")), (module.gshard_router, {})):
        pair = [
            gradient(padded_sum, {"logits": np.where(mask[:, None] > 0, z, fill)}, mask, router=router, **options)
            for fill in (0.5, np.nan)
        ]
        assert_nearly_same(pair[1]["logits"], pair[0]["logits"], what=f"gradient of {router.__name__} beside padding")
        lively = (pair[0]["logits"] != 0).any(axis=1)
        assert_same(lively, mask > 0, what=f"gradient of {router.__name__}: rows")
