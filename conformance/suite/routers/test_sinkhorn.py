"""S-BASE: plans by their marginals, choices by the plan, gates by the logits.

Tests that compare plans fix the number of sweeps, because a data-dependent stop may differ by one sweep. Plans that
need Newton's method are compared at a tight tolerance.
"""

import functools
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import BOUNDS, UNIT, check
from routelaws.conformance.compare import (
    assert_admissible_top_k,
    assert_close_bounded,
    assert_derivative,
    assert_held,
    assert_plan,
    assert_same,
)
from routelaws.conformance.engine.harness import PRECISIONS, gradient, jitted, precisions_of, run
from routelaws.conformance.suite.routers.strategies_base import draw_scores
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference.notation import Routing
from routelaws.reference.routers import sinkhorn as reference

PLAN, ROUTER = "routers.sinkhorn.sinkhorn_plan", "routers.sinkhorn.sinkhorn_router"
SWEEPS = (0, 1, 30)
TIGHT = 1e-9  # tolerance in comparisons of plans by Newton's method
SCALES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
HARD_FAMILIES = ("random", "lattice", "tied", "integer", "anisotropic", "all alike")


def plan_unit(values: np.ndarray, precision: str) -> float:
    """Return the relative error of a plan entry: u per unit of its log, with terms up to 2 max |z| + log T + log E.

    A shift of a row changes nothing except by its rounding, so only the spread of each row counts.
    """
    return UNIT[precision] * (4 + 2 * np.abs(values).max() + np.log(values.size))


def swept_unit(values: np.ndarray, precision: str, num_sweeps: int) -> float:
    """Return the relative error of a plan entry after a number of sweeps.

    Each sweep rounds the potentials by one more unit. Errors add up along experts that share hardly any token. For
    entries of several hundred they add up over 30 sweeps.
    """
    return (1 + num_sweeps) * plan_unit(values, precision)


def check_plan(backend, drawn: Logits, precision: str, num_sweeps: int) -> None:
    found = run(backend, PLAN, precision, drawn.values, num_sweeps=num_sweeps)
    wanted = reference.sinkhorn_plan(drawn.values, num_sweeps=num_sweeps)
    what = f"sinkhorn_plan, {drawn.family} {drawn.values.shape}, {num_sweeps} sweeps, {precision}"
    unit = plan_unit(drawn.values, precision)
    assert_plan("sinkhorn.marginals", found.plan, found.residual, unit, what=what)
    swept = swept_unit(drawn.values, precision, num_sweeps)
    scale = swept * wanted.plan + np.finfo(precision).tiny
    assert_close_bounded("sinkhorn.plan", found.plan, wanted.plan, scale, what=f"{what}: plan")
    potentials = [p - p[0] for p in (np.asarray(found.column_potential, np.float64), wanted.column_potential)]
    assert_close_bounded("sinkhorn.potential", *potentials, swept, what=f"{what}: column_potential")
    assert int(found.sweeps) == wanted.sweeps == num_sweeps, what
    assert int(found.newton_steps) == wanted.newton_steps == 0, f"{what}: a fixed number of sweeps is sweeps alone"
    if abs(wanted.residual - 1e-3) > unit * BOUNDS["sinkhorn.marginals"].limit * len(drawn.values):
        assert bool(found.converged) == wanted.converged == (wanted.residual <= 1e-3), what


def check_stopping(backend, drawn: Logits, precision: str, **options) -> None:
    """`converged` matches the residual. No sweep follows convergence, and the last sweep is needed."""
    found = run(backend, PLAN, precision, drawn.values, **options)
    wanted = reference.sinkhorn_plan(drawn.values, **options)
    tolerance, most = options.get("tolerance", 1e-3), options.get("max_sweeps", 100)
    what = f"sinkhorn_plan, {drawn.family} {drawn.values.shape}, {options}, {precision}"
    unit = plan_unit(drawn.values, precision)
    assert_plan("sinkhorn.marginals", found.plan, found.residual, unit, what=what)
    assert bool(found.converged) == (float(found.residual) <= np.asarray(tolerance, precision)), what
    sweeps, steps = int(found.sweeps), int(found.newton_steps)
    assert sweeps <= most and (bool(found.converged) or sweeps == most), what
    assert steps <= options.get("max_newton", 200) and (steps == 0 or sweeps == most), f"{what}: {steps} steps"
    if sweeps:
        before = reference.sinkhorn_plan(drawn.values, num_sweeps=sweeps - 1)
        slack = unit * BOUNDS["sinkhorn.marginals"].limit * len(drawn.values)
        assert before.residual > tolerance - slack, f"{what}: went on after residual {before.residual}"
    if precision == "float64":
        assert sweeps == wanted.sweeps and bool(found.converged) == wanted.converged, what
        assert (steps > 0) == (wanted.newton_steps > 0), f"{what}: {steps} steps, expected {wanted.newton_steps}"
    if sweeps == most and not options:
        check_stopping(backend, drawn, precision, max_newton=0)


def check_router(backend, drawn: Logits, precision: str, gate: str, training: bool) -> None:
    """Check that the reference's scores admit the selection, and check its gates.

    Then check all fields at a held selection.
    """
    z, k = drawn.values, drawn.k
    options = dict(k=k, training=training, gate=gate, num_sweeps=30)
    found = run(backend, ROUTER, precision, z, **options)
    wanted = reference.sinkhorn_router(z, **options)
    what = f"sinkhorn_router, {drawn.family} {z.shape}, {options}, {precision}"
    check_selection(found, wanted, drawn, precision, training, what)
    check_gates(found, z, gate, precision, what)

    held = Routing(*wanted)
    found = run(backend, ROUTER, precision, z, traced={"held": backend.notation.Routing(*held)}, **options)
    assert_held(found, held, precision, what=what)
    check_gates(found, z, gate, precision, f"{what}, held")


def check_gates(found, z: np.ndarray, gate: str, precision: str, what: str) -> None:
    wanted = reference.gate_values(z, np.asarray(found.expert), gate)
    spread = 2 + np.ptp(z, axis=1, keepdims=True) + np.abs(z).max()
    scale = UNIT[precision] * spread * wanted + np.finfo(precision).tiny
    assert_close_bounded("sinkhorn.gate", found.gate, wanted, scale, what=f"{what}: gate")


def check_selection(found, wanted, drawn, precision, training, what):
    """Check all fields except gates. The plan of 30 sweeps gives the experts in training; the logits in evaluation."""
    z, k = drawn.values, drawn.k
    load = np.bincount(np.asarray(found.expert).ravel(), minlength=z.shape[1]) / found.expert.size
    assert_close_bounded("sinkhorn.load", found.load, load, UNIT[precision] * len(z) * load, what=f"{what}: load")
    if not training:  # the same floats in both twins
        assert_same(found.expert, wanted.expert, what=f"{what}: expert")
        unit = UNIT[precision] * len(z)
        assert_close_bounded("sinkhorn.load", found.plan, wanted.plan, unit * wanted.plan, what=f"{what}: plan")
        scale = unit * (1 + wanted.residual)
        assert_close_bounded("sinkhorn.load", found.residual, wanted.residual, scale, what=f"{what}: residual")
        return
    # Scores are logarithms, so their margin is the relative error of the plan; entries that underflow are equal.
    with np.errstate(divide="ignore"):
        scores = np.maximum(np.log(wanted.plan), np.log(np.finfo(precision).tiny))
    margin = BOUNDS["sinkhorn.plan"].limit * swept_unit(z, precision, 30)
    undecided = assert_admissible_top_k(found.expert, scores, margin, what=what)
    assert_plan("sinkhorn.marginals", found.plan, found.residual, plan_unit(z, precision), what=what)
    scale = swept_unit(z, precision, 30) * wanted.plan + np.finfo(precision).tiny
    assert_close_bounded("sinkhorn.plan", found.plan, wanted.plan, scale, what=f"{what}: plan")
    if drawn.family == "skewed" and k == 1:
        assert undecided <= BOUNDS["sinkhorn.undecided"].limit, f"{what}: {undecided:.2f} of the rows are undecided"


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@given(drawn=logits(), precision=precisions, num_sweeps=st.sampled_from(SWEEPS))
def test_plan(backend, drawn, precision, num_sweeps):
    check_plan(backend, drawn, precision, num_sweeps)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_sweep_where_a_mass_underflows(backend, precision):
    """One expert is far below the others: its mass is 0 as a float but not as a logarithm."""
    values = draw_scores("random", (16, 4), 3.0, 5).values - 1000 * (np.arange(4) == 2)
    check_plan(backend, Logits(values.astype(np.float32).astype(np.float64), "extreme", 1), precision, 1)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@given(drawn=logits(shapes=((5, 1), (13, 3), (14, 4))), precision=precisions)
def test_stopping(backend, drawn, precision):
    check_stopping(backend, drawn, precision)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@pytest.mark.slow
@given(
    drawn=logits(("skewed", "extreme"), ((6, 8),)), options=st.sampled_from([{"tolerance": 0.05}, {"max_sweeps": 3}])
)
def test_stopping_options(backend, drawn, options):
    check_stopping(backend, drawn, "float64", **options)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
def test_a_hard_plan_says_that_it_did_not_converge(backend):
    drawn = Logits(np.random.default_rng(0).standard_normal((16, 4)) * 100, "extreme", 1)
    for plan in (functools.partial(run, backend, PLAN, "float32"), reference.sinkhorn_plan):
        alone = plan(drawn.values, max_newton=0)
        assert not bool(alone.converged) and int(alone.sweeps) == 100 and float(alone.residual) > 1e-3
        for most in (1, 2):
            given_up = plan(drawn.values, max_newton=most)
            assert not bool(given_up.converged) and int(given_up.newton_steps) == most
            assert 1e-3 < float(given_up.residual) <= float(alone.residual)
        actual = np.abs(4 * np.asarray(given_up.plan, np.float64).sum(axis=0) - 1).max()
        scale = plan_unit(drawn.values, "float32")
        assert_close_bounded("sinkhorn.marginals", float(given_up.residual), actual, scale, what="given up: residual")


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
def test_a_residual_that_is_the_tolerance_is_converged(backend):
    """Repeat the call with the reached residual as tolerance."""
    values = draw_scores("random", (16, 4), 1.0, 5).values
    for solve in (
        lambda **options: run(backend, PLAN, "float32", values, num_sweeps=1, **options),
        lambda **options: reference.sinkhorn_plan(values, num_sweeps=1, **options),
    ):
        left = float(solve().residual)
        assert left > 0 and bool(solve(tolerance=left).converged)


def dual_gap(values: np.ndarray, plan: np.ndarray, potential: np.ndarray) -> float:
    """Return the dual of the potentials minus <plan, values> + H(plan): 0 for an optimal balanced plan."""
    z = values - values.max(axis=1, keepdims=True)
    shifted = z + potential
    top = shifted.max(axis=1)
    dual = np.log(len(z)) + (top + np.log(np.exp(shifted - top[:, None]).sum(axis=1))).mean() - potential.mean()
    return dual - (plan * (z - np.log(np.where(plan > 0, plan, 1)))).sum()


def check_hard(backend, family: str, shape, scale: float, seed: int, precision: str, tolerance: float = 1e-3) -> None:
    """At any scale the plan is balanced within the tolerance, rows are exact, and the gap is 0."""
    values = draw_scores(family, shape, scale, seed).values
    found = run(backend, PLAN, precision, values, tolerance=tolerance)
    what = f"sinkhorn_plan, {family} {shape} times {scale:g}, seed {seed}, {precision}"
    plan, potential = (np.asarray(leaf, np.float64) for leaf in (found.plan, found.column_potential))
    is_ours = getattr(backend, "is_ours", True)
    if is_ours:  # the last step divides each row by its sum
        assert_plan("sinkhorn.rows", plan, found.residual, UNIT[precision] * shape[1], what=what)
    of_sums = UNIT[precision] * shape[0] / 2  # adding T equal numbers one by one rounds in one direction
    assert_plan("sinkhorn.marginals", plan, found.residual, plan_unit(values, precision) + of_sums, what=what)
    steps = f" after {int(found.newton_steps)} steps" if is_ours else ""  # a bare plan does not show them
    assert bool(found.converged), f"{what}: residual {float(found.residual)}{steps}"
    # gap = Σ g (m - 1/E) for a plan of the form exp(z + f + g) whose rows are exact
    sums = np.abs(values).max() + np.abs(potential).max() + np.log(values.size)
    uneven = (potential * (plan.sum(axis=0) - 1 / shape[1])).sum()
    gap = dual_gap(values, plan, potential)
    unit = UNIT[precision] if is_ours else plan_unit(values, precision)
    assert_close_bounded("sinkhorn.gap", gap, uneven, unit * sums, what=f"{what}: duality gap")
    if precision == "float64" and tolerance == TIGHT and is_ours:  # Newton's last step is below the tolerance
        wanted = reference.sinkhorn_plan(values, tolerance=tolerance)
        assert wanted.converged, f"{what}: the reference did not converge"
        scale = tolerance + UNIT[precision] * sums
        assert_close_bounded("sinkhorn.tight", shape[0] * plan, shape[0] * wanted.plan, scale, what=f"{what}: T * plan")


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@given(family=st.sampled_from(HARD_FAMILIES), scale=st.sampled_from(SCALES), seed=seeds)
def test_every_scale_is_balanced(backend, family, scale, seed):
    check_hard(backend, family, (13, 3), scale, seed, "float32")
    check_hard(backend, family, (13, 3), scale, seed, "float64", tolerance=TIGHT)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64, 8), (1024, 32)])
def test_every_scale_and_family(backend, shape):
    for family in HARD_FAMILIES:
        for scale in SCALES:
            check_hard(backend, family, shape, scale, 1, "float32")
            if shape[0] < 100:
                check_hard(backend, family, shape, scale, 1, "float64", tolerance=TIGHT)


def padded(drawn: Logits, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask with at least one real token, and the logits with other values in padded rows."""
    random = np.random.default_rng(seed)
    mask = random.random(len(drawn.values)) < 0.6
    mask[random.integers(len(mask))] = True
    return mask, np.where(mask[:, None], drawn.values, random.choice([np.nan, 1e4, 0.0]))


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
def test_mask_of_a_hard_plan(backend):
    """Newton's method excludes padding: the plan of the real rows is unchanged, and padded rows are 0."""
    drawn = Logits(draw_scores("random", (13, 3), 1e3, 5).values, "random", 1)
    mask, values = padded(drawn, 1)
    wanted = reference.sinkhorn_plan(drawn.values[mask], tolerance=TIGHT)
    assert wanted.converged and wanted.newton_steps > 0
    ours = reference.sinkhorn_plan(values, tolerance=TIGHT, mask=mask)
    assert_same(ours.plan[mask], wanted.plan, what="sinkhorn_plan of the reference with a mask")
    found = run(backend, PLAN, "float64", values, traced={"mask": mask}, tolerance=TIGHT)
    scale = TIGHT + plan_unit(drawn.values, "float64")
    for plan in (ours.plan, np.asarray(found.plan)):
        assert_same(plan[~mask], np.zeros((sum(~mask), 3)), what="sinkhorn_plan of padded tokens")
        assert_close_bounded("sinkhorn.tight", 13 * plan[mask], 13 * wanted.plan, scale, what="sinkhorn_plan, mask")
    assert bool(found.converged)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
def test_mask_where_a_mass_underflows(backend):
    values = draw_scores("random", (16, 4), 3.0, 5).values - 1000 * (np.arange(4) == 2)
    mask = np.arange(16) % 3 != 1
    alone = reference.sinkhorn_plan(values[mask], num_sweeps=1)
    found = run(backend, PLAN, "float64", np.where(mask[:, None], values, 1e4), traced={"mask": mask}, num_sweeps=1)
    scale = swept_unit(values, "float64", 1)
    ours, tiny = np.asarray(found.plan)[mask], np.finfo("float64").tiny
    assert_close_bounded(
        "sinkhorn.plan",
        ours,
        alone.plan,
        scale * alone.plan + tiny,
        what="sinkhorn_plan, mask, a mass that underflows: plan",
    )
    assert_close_bounded(
        "sinkhorn.plan",
        found.column_potential,
        alone.column_potential,
        scale * np.abs(alone.column_potential).max(),
        what="sinkhorn_plan, mask, a mass that underflows: potential",
    )


def masked_gate_sum(point, weights, mask, router):
    return (router(point["logits"], 1, mask=mask, num_sweeps=3).gate * weights).sum()


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
def test_no_gradient_into_padding(backend):
    drawn = Logits(draw_scores("random", (13, 3), 1.0, 5).values, "random", 1)
    mask, values = padded(drawn, 2)
    values[~mask] = np.nan
    found = gradient(
        masked_gate_sum, {"logits": values}, np.ones((13, 1)), mask, router=backend.routers.sinkhorn.sinkhorn_router
    )["logits"]
    assert_same(found[~mask], np.zeros(found[~mask].shape), what="gradient into padded rows")
    assert np.abs(found[mask]).min() > 0


def check_shards(backend, values: np.ndarray, mask: np.ndarray | None, precision: str, training: bool = True) -> None:
    """Four devices with a quarter of the tokens each return the routing of the whole group."""
    shards = values.reshape(4, -1, values.shape[1])
    masks = None if mask is None else mask.reshape(4, -1)
    with jax.enable_x64(precision == "float64"):
        shards = jnp.asarray(shards, precision)

        def route(logits, mask):
            return backend.routers.sinkhorn.sinkhorn_router(logits, mask=mask, training=training, axis_name="shard")

        axes = 0, None if mask is None else 0
        found = jax.jit(jax.vmap(route, in_axes=axes, axis_name="shard"))(shards, masks)
    whole = reference.sinkhorn_router(values, mask=mask, training=training)
    what = f"sinkhorn_router over 4 shards, {values.shape}, training {training}"
    unit = plan_unit(values, precision)
    assert_same(np.asarray(found.expert).reshape(-1, 1), whole.expert, what=f"{what}: expert")
    joined = len(values) * np.asarray(found.plan).reshape(values.shape)
    assert_close_bounded("sinkhorn.shards", joined, len(values) * whole.plan, unit, what=f"{what}: plan")
    for name in ("load", "residual"):
        same = np.asarray(getattr(found, name))
        assert_same(same, np.broadcast_to(same[:1], same.shape), what=f"{what}: {name} on all shards")
        assert_close_bounded("sinkhorn.shards", same[0], getattr(whole, name), unit, what=f"{what}: {name}")


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@pytest.mark.parametrize("scale, masked", [pytest.param(1.0, False, marks=pytest.mark.slow), (1e3, True)])
def test_shards(backend, scale, masked):
    """Sweeps, and Newton's method with underflowing masses and a shard of padding."""
    if not jitted(backend):
        pytest.skip("axis_name is of JAX")
    values = draw_scores("random", (64, 8), scale, 2).values
    mask = (np.random.default_rng(0).random(64) < 0.8) & (np.arange(64) < 48) if masked else None
    check_shards(backend, values, mask, "float64")


MESH = """
import jax, jax.numpy as jnp, numpy as np
from routelaws.accelerated.routers.sinkhorn import sinkhorn_plan, sinkhorn_router
from routelaws.accelerated.routers.quantile import quantile_bias
random = np.random.default_rng(0)
mesh, P = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P
kept = []
for scale in (1.0, 30.0, 1e3, 1e4):
    z = jnp.asarray(scale * (random.standard_normal((64, 8)) + random.standard_normal(8)), jnp.float32)
    out = {"plan": P("data"), "residual": P(), "newton_steps": P(), "expert": P("data"), "load": P(), "bias": P()}

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("data"), P()), out_specs=out)
    def shards(z, bias):
        solved = sinkhorn_plan(z, axis_name="data")
        routed = sinkhorn_router(z, axis_name="data")
        return dict(plan=solved.plan, residual=solved.residual, newton_steps=solved.newton_steps,
                    expert=routed.expert, load=routed.load, bias=quantile_bias(z, bias, axis_name="data"))

    found, whole, routed = shards(z, jnp.zeros(8)), sinkhorn_plan(z), sinkhorn_router(z)
    own = np.mean([quantile_bias(part, jnp.zeros(8)) for part in z.reshape(4, 16, 8)], axis=0)
    kept.append([float(found["residual"]), float(64 * abs(found["plan"] - whole.plan).max()),
                 int((found["expert"] != routed.expert).sum()), int(found["newton_steps"]), int(whole.newton_steps),
                 float(abs(found["load"] - routed.load).max()), float(abs(found["bias"] - own).max() / scale)])
import json
print(json.dumps([len(jax.devices()), kept]))
"""


@pytest.mark.slow
def test_devices():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", MESH], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    devices, kept = json.loads(done.stdout)
    assert devices == 4
    for scale, (residual, plan, moved, steps, alone, load, bias) in zip((1.0, 30.0, 1e3, 1e4), kept, strict=True):
        assert residual <= 1e-3 and (steps > 0) == (alone > 0) == (scale > 1) and moved <= 1, (scale, kept)
        check("sinkhorn.devices", plan, 1e-3 + UNIT["float32"] * scale, message=f"plan at scale {scale}")
        check("sinkhorn.shards", load, moved + UNIT["float32"], message=f"load at scale {scale}")
        check("quantile.bias", bias, UNIT["float32"] * 16, message=f"bias at scale {scale}")


def test_gates_of_extreme_logits_without_a_warning():
    """exp(-z) overflows below -709. The gate is 0 there, without a warning."""
    z = np.array([[-1e4, -800.0, 0.0, 800.0]])
    with np.errstate(all="raise", under="ignore"):
        found = reference.gate_values(z, np.array([[0, 1, 2, 3]]), "sigmoid")
    assert_same(found, np.array([[0.0, 0.0, 0.5, 1.0]]), what="gate_values")


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@given(drawn=logits(), precision=precisions, gate=st.sampled_from(reference.GATES), training=st.booleans())
def test_router(backend, drawn, precision, gate, training):
    check_router(backend, drawn, precision, gate, training)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "shape, k, shift, spread", [((24, 4), 1, 0, 1), ((40, 8), 2, 100, 1), ((6, 8), 3, -100, 1), ((40, 8), 2, 0, 5)]
)
def test_a_router_without_a_number_of_sweeps(backend, shape, k, shift, spread, training):
    """Any solver is right whose plan is as close to balance as the default tolerance. A shift of all logits changes no
    plan. Logits with a spread of 5 need about 30 sweeps; after 8, some tokens have other experts."""
    for seed, precision in itertools.product(range(2), precisions_of(backend)):
        values = draw_scores("random", shape, spread, seed).values + np.arange(shape[1]) / 4 + shift
        values = np.float32(values).astype(float)
        found = run(backend, ROUTER, precision, values, k=k, training=training)
        what = f"sinkhorn_router, default, {shape}, k {k}, logits about {shift}, training {training}, {precision}"
        scores = np.log(reference.sinkhorn_plan(values, tolerance=1e-9).plan) if training else values
        margin = spread * BOUNDS["sinkhorn.converged"].limit if training else 0.0
        assert_admissible_top_k(found.expert, scores, margin, what=what)
        check_gates(found, values, "softmax", precision, what)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@pytest.mark.slow
@given(drawn=logits(families=("tied", "lattice"), shapes=((13, 3),)), k=st.integers(1, 2))
def test_equal_logits_go_to_the_lowest_experts(backend, drawn, k):
    """Both twins compute equal entries exactly, so the tie rule decides."""
    shape = drawn.values.shape
    k = min(k, shape[1])
    for value, training in ((0.0, True), (-0.0, True), (0.25, True), (0.25, False), (-0.0, False)):
        found = run(backend, ROUTER, "float32", np.full(shape, value), k=k, training=training)
        assert_same(found.expert, np.tile(np.arange(k), (shape[0], 1)), what=f"sinkhorn_router of {value}, k {k}")


def gate_sum(point, weights, router, k, gate, training):
    return (router(point["logits"], k, gate=gate, training=training, num_sweeps=7).gate * weights).sum()


def plan_sum(point, weights, plan, num_sweeps):
    """Return Σ weights · plan, which must have gradient 0."""
    return (plan(point["logits"], num_sweeps=num_sweeps).plan * weights).sum()


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@given(
    # Use few shapes and distant logits: plan entries of a row are not close, so both twins select the same experts.
    drawn=logits(families=("skewed",), shapes=((13, 3), (6, 8))),
    gate=st.sampled_from(reference.GATES),
    training=st.booleans(),
    seed=seeds,
)
def test_gate_gradient(backend, drawn, gate, training, seed):
    z, k = drawn.values, drawn.k
    random = np.random.default_rng(seed)
    weights, direction = random.standard_normal((len(z), k)), {"logits": random.standard_normal(z.shape)}
    held = reference.sinkhorn_router(z, k, training=training, num_sweeps=7)

    def value(point):
        routing = reference.sinkhorn_router(point["logits"], k, gate=gate, training=training, held=held)
        return float((routing.gate * weights).sum())

    options = dict(router=backend.routers.sinkhorn.sinkhorn_router, k=k, gate=gate, training=training)
    found = gradient(gate_sum, {"logits": z}, weights, **options)
    what, scale = f"gradient of gates, {z.shape}, {gate}", np.abs(weights).sum()
    assert_derivative("sinkhorn.gradient", found, value, {"logits": z}, direction, scale, what=what)


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
def test_no_gradient_through_the_plan(backend):
    z = np.array([[3.0, 0.0, 0.5], [2.0, 0.0, 1.0], [1.0, 0.0, -1.0]])
    weights = np.array([[1.0, -2.0, 0.5], [0.3, 1.5, -1.0], [-0.7, 0.2, 2.0]])
    value = [np.sum(reference.sinkhorn_plan(moved).plan * weights) for moved in (z, z + np.eye(3))]
    assert abs(value[0] - value[1]) > 0.1  # the plan must change for the test to be meaningful
    for num_sweeps in (4, None):
        found = gradient(
            plan_sum, {"logits": z}, weights, plan=backend.routers.sinkhorn.sinkhorn_plan, num_sweeps=num_sweeps
        )
        assert_same(found["logits"], np.zeros((3, 3)), what="gradient through sinkhorn_plan")


@pytest.mark.asks("routers.sinkhorn.sinkhorn_plan")
@pytest.mark.twin
def test_what_a_row_has_in_common_costs_no_digits(backend):
    """Row maxima differ widely and are subtracted exactly, so results are equal to the last bit."""
    values = np.round(draw_scores("random", (16, 4), 1.0, 5).values * 64) / 64
    shift = 2.0**12 * np.arange(16)[:, None]
    near, far = (run(backend, PLAN, "float32", z, num_sweeps=1) for z in (values, values + shift))
    for field in ("plan", "column_potential", "residual"):
        assert_same(getattr(far, field), getattr(near, field), what=f"sinkhorn_plan, shifted rows: {field}")
