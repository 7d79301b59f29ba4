import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, check
from routelaws.conformance.compare import (
    assert_admissible_top_k,
    assert_close_bounded,
    assert_derivative,
    assert_held,
    assert_same,
)
from routelaws.conformance.engine.harness import gradient, jitted, run
from routelaws.conformance.suite.routers.strategies_base import (
    FAMILIES,
    Scores,
    bound_of,
    check_gates,
    draw_scores,
    scores,
)
from routelaws.conformance.suite.strategies import precisions, seeds
from routelaws.reference.routers import base
from routelaws.reference.routers import quantile as reference
from routelaws.reference.routers.hash_layer import fixed_router

BIAS, ROUTER = "routers.quantile.quantile_bias", "routers.quantile.quantile_router"
BOUND = "routers.base.dual_bound"

SHAPES = ((5, 1), (1, 4), (13, 3), (14, 4))
KS = (1, 2, 3)


def draw_bias(drawn: Scores, seed: int) -> np.ndarray:
    """Return a bias of the size of the scores, exact in float32."""
    values = np.random.default_rng(seed).standard_normal(drawn.values.shape[1]) * np.abs(drawn.values).max()
    return values.astype(np.float32).astype(np.float64)


def check_bias(backend, drawn: Scores, k: int, seed: int, precision: str, num_steps: int) -> None:
    """Order statistics move at most as much as their inputs, so errors add up without jumps."""
    k = min(k, drawn.values.shape[1])
    bias = draw_bias(drawn, seed)
    found = run(backend, BIAS, precision, drawn.values, bias, k=k, num_steps=num_steps)
    wanted = reference.quantile_bias(drawn.values, bias, k, num_steps=num_steps)
    scale = UNIT[precision] * max(1, num_steps) * (np.abs(drawn.values).max() + np.abs(bias).max())
    what = f"quantile_bias, {drawn.family} {drawn.values.shape}, k {k}, {num_steps} steps, {precision}"
    assert_close_bounded("quantile.bias", found, wanted, scale, what=what)


@pytest.mark.asks("routers.quantile.quantile_bias")
@given(
    drawn=scores(shapes=SHAPES),
    k=st.sampled_from(KS),
    seed=seeds,
    precision=precisions,
    num_steps=st.sampled_from([0, 1, 4]),
)
def test_bias(backend, drawn, k, seed, precision, num_steps):
    check_bias(backend, drawn, k, seed, precision, num_steps)


@pytest.mark.asks("routers.quantile.quantile_bias")
def test_two_steps_of_every_family(backend):
    for seed, family in enumerate(FAMILIES):
        for shape in ((13, 3), (14, 4)):
            check_bias(backend, draw_scores(family, shape, 1.0, seed), 1 + seed % 2, seed, "float32", 2)


@pytest.mark.asks("routers.base.balanced_assignment", "routers.base.dual_bound", "routers.quantile.quantile_bias")
@given(drawn=scores(shapes=SHAPES), k=st.sampled_from(KS))
def test_descent(backend, drawn, k):
    """No step raises the bound. At k = 1, the bound is at least the optimum of BASE."""
    values, num_experts = drawn.values, drawn.values.shape[1]
    k = min(k, num_experts)
    bias, before = np.zeros(num_experts), np.inf
    optimum = base.balanced_assignment(values).objective if k == 1 else -np.inf
    scale = UNIT["float64"] * values.size * np.abs(values).max()
    for step in range(6):
        bound = bound_of(values, bias, k)
        theirs = float(run(backend, BOUND, "float64", values, bias, k=k))
        what = f"{drawn.family} {values.shape}, k {k}, step {step}"
        for excess, message in (
            (abs(theirs - bound), f"dual_bound, {what}: {theirs}, here {bound}"),
            (optimum - bound, f"quantile_bias, {what}: {bound} is no bound on {optimum}"),
            (bound - before, f"quantile_bias, {what}: from {before} up to {bound}"),
        ):
            check("quantile.descent", max(excess, 0.0), scale, message=message)
        before = bound
        bias = np.asarray(run(backend, BIAS, "float64", values, bias, k=k), np.float64)


def check_router(backend, drawn: Scores, k: int, seed: int, precision: str, gate: str) -> None:
    """Check the selection by logits minus bias.

    Then check all other fields for this selection, with gates from the logits alone.
    """
    values, bias = drawn.values, draw_bias(drawn, seed)
    k = min(k, values.shape[1])
    found = run(backend, ROUTER, precision, values, bias, k=k, gate=gate)
    what = f"quantile_router, {drawn.family} {values.shape}, k {k}, {gate}, {precision}"
    check_routing(found, values, bias, gate, precision, what)
    held = reference.quantile_router(values, bias, k)
    wanted = reference.quantile_router(values, bias, k, gate=gate, held=held)
    traced = {"held": backend.notation.Routing(*held)}
    found = run(backend, ROUTER, precision, values, bias, traced=traced, k=k, gate=gate)
    assert_held(found, held, precision, what=what)
    for routing in (found, wanted):
        check_gates("quantile.gate", routing, values, gate, precision, f"{what}, held")


def check_routing(found, values: np.ndarray, bias: np.ndarray, gate: str, precision: str, what: str) -> None:
    """Check an admissible choice and each other field for it."""
    margin = UNIT[precision] * (np.abs(values).max() + np.abs(bias).max())
    assert_admissible_top_k(found.expert, values - bias, margin, what=what)
    own, unit = fixed_router(np.asarray(found.expert), values.shape[1]), UNIT[precision] * len(values)
    for name in ("plan", "load", "residual"):
        wanted = getattr(own, name)
        scale = unit * (wanted + (name == "residual"))
        assert_close_bounded("quantile.load", getattr(found, name), wanted, scale, what=f"{what}: {name}")
    check_gates("quantile.gate", found, values, gate, precision, what)


@pytest.mark.asks("routers.quantile.quantile_router")
@given(
    drawn=scores(shapes=SHAPES),
    k=st.sampled_from(KS),
    seed=seeds,
    precision=precisions,
    gate=st.sampled_from(("sigmoid", "softmax")),
)
def test_router(backend, drawn, k, seed, precision, gate):
    check_router(backend, drawn, k, seed, precision, gate)


@pytest.mark.asks("routers.quantile.quantile_router")
def test_equal_scores_go_to_the_lowest_experts(backend):
    for bias in (np.zeros(4), -np.zeros(4)):
        found = run(backend, ROUTER, "float32", -np.zeros((16, 4)), bias, k=2)
        assert_same(found.expert, np.tile([0, 1], (16, 1)), what="quantile_router of zeros")


@pytest.mark.asks("routers.quantile.quantile_bias")
def test_nothing_to_choose_leaves_the_bias(backend):
    bias = np.array([0.5, -0.25, 0.0])
    values = draw_scores("random", (13, 3), 1.0, 0).values
    assert_same(run(backend, BIAS, "float64", values, bias, k=3), bias, what="quantile_bias at k = E")
    assert_same(run(backend, BIAS, "float64", values[:, :1], bias[:1]), bias[:1], what="quantile_bias at E = 1")


def gate_sum(point, weights, router, k, gate):
    """Return Σ weights · gate, with the router's own selection."""
    return (router(point["logits"], point["bias"], k, gate=gate).gate * weights).sum()


@pytest.mark.asks("routers.quantile.quantile_router")
@given(seed=seeds, gate=st.sampled_from(("sigmoid", "softmax")), k=st.sampled_from(KS))
def test_gate_gradient(backend, seed, gate, k):
    drawn = draw_scores("random", (13, 3), 1.0, seed)
    random = np.random.default_rng(seed)
    point = {"logits": drawn.values, "bias": draw_bias(drawn, seed)}
    weights = random.standard_normal((13, k))
    direction = {"logits": random.standard_normal((13, 3)), "bias": np.zeros(3)}
    held = reference.quantile_router(point["logits"], point["bias"], k)

    def value(moved):
        routing = reference.quantile_router(moved["logits"], moved["bias"], k, gate=gate, held=held)
        return float((routing.gate * weights).sum())

    options = dict(router=backend.routers.quantile.quantile_router, k=k, gate=gate)
    found = gradient(gate_sum, point, weights, **options)
    assert_same(found["bias"], np.zeros(3), what="gradient through the bias")
    what, scale = f"gradient of gates, {gate}, k {k}", np.abs(weights).sum()
    assert_derivative("quantile.gradient", found, value, point, direction, scale, what=what)


def bias_sum(point, weights, step):
    return (step(point["scores"], point["bias"]) * weights).sum()


@pytest.mark.asks("routers.quantile.quantile_bias")
def test_no_gradient_through_the_step(backend):
    drawn = draw_scores("random", (8, 2), 1.0, 0)
    point = {"scores": drawn.values, "bias": draw_bias(drawn, 1)}
    found = gradient(bias_sum, point, np.array([1.0, 2.0]), step=backend.routers.quantile.quantile_bias)
    for name, leaf in found.items():
        assert_same(leaf, np.zeros(point[name].shape), what=f"gradient through quantile_bias to {name}")


def check_shards(backend) -> None:
    """Across devices, the bias is the mean of the parts' biases after each step, and the load is common."""
    values, bias = draw_scores("random", (16, 4), 1.0, 3).values, np.zeros(4)
    module, parts = backend.routers.quantile, jnp.asarray(values.reshape(4, 4, 4), jnp.float32)

    def both(part):
        moved = module.quantile_bias(part, jnp.zeros(4), num_steps=2, axis_name="shard")
        return moved, module.quantile_router(part, jnp.zeros(4), axis_name="shard")

    found, routing = jax.jit(jax.vmap(both, axis_name="shard"))(parts)
    for _ in range(2):
        bias = np.mean([reference.quantile_bias(part, bias) for part in values.reshape(4, 4, 4)], axis=0)
    whole = reference.quantile_router(values, np.zeros(4))
    for shard in range(4):
        scale = UNIT["float32"] * 4 * np.abs(values).max()
        assert_close_bounded("quantile.bias", found[shard], bias, scale, what="quantile_bias over 4 shards")
        assert_same(routing.load[shard], whole.load, what="quantile_router over 4 shards: load")
        assert_same(routing.residual[shard], whole.residual, what="quantile_router over 4 shards: residual")
    assert_same(np.asarray(routing.plan).reshape(16, 4), whole.plan, what="quantile_router over 4 shards: plan")


@pytest.mark.asks("routers.quantile.quantile_bias", "routers.quantile.quantile_router")
def test_shards(backend):
    if not jitted(backend):
        pytest.skip("axis_name is of JAX")
    check_shards(backend)
