"""S-BASE: plans by their marginals, choices by what the plan admits, gates by the logits.

The sweeps are fixed in both twins wherever plans are compared: a stop that depends on data may come one sweep earlier.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.compare import assert_admissible_top_k, assert_close_bounded, assert_plan, assert_same
from routelaws.conformance.harness import PRECISIONS, UNIT, central_difference, gradient, run
from routelaws.conformance.strategies import Logits, logits
from routelaws.reference.notation import Routing
from routelaws.reference.routers import sinkhorn as reference

PLAN, ROUTER = "routers.sinkhorn.sinkhorn_plan", "routers.sinkhorn.sinkhorn_router"
SWEEPS = (0, 1, 30)

precisions = st.sampled_from(PRECISIONS)


def plan_unit(values: np.ndarray, precision: str) -> float:
    """Return the relative error of a plan entry: u per unit of log-plan, whose terms reach 2 max |z| + log T + log E.

    Shifting a row changes nothing, so what counts is the spread of each row; but the shift itself is rounded.
    """
    return UNIT[precision] * (4 + 2 * np.abs(values).max() + np.log(values.size))


def check_plan(backend, drawn: Logits, precision: str, num_sweeps: int) -> None:
    """Plan, potentials and residual after a fixed number of sweeps."""
    found = run(backend, PLAN, precision, drawn.values, num_sweeps=num_sweeps)
    wanted = reference.sinkhorn_plan(drawn.values, num_sweeps=num_sweeps)
    what = f"sinkhorn_plan, {drawn.family} {drawn.values.shape}, {num_sweeps} sweeps, {precision}"
    unit = plan_unit(drawn.values, precision)
    assert_plan("sinkhorn.marginals", found.plan, found.residual, unit, what=what)
    scale = unit * wanted.plan + np.finfo(precision).tiny
    assert_close_bounded("sinkhorn.plan", found.plan, wanted.plan, scale, what=f"{what}: plan")
    potentials = [p - p[0] for p in (np.asarray(found.column_potential, np.float64), wanted.column_potential)]
    assert_close_bounded("sinkhorn.potential", *potentials, unit, what=f"{what}: column_potential")
    assert int(found.sweeps) == wanted.sweeps == num_sweeps, what
    if abs(wanted.residual - 1e-3) > unit * BOUNDS["sinkhorn.marginals"].limit * len(drawn.values):
        assert bool(found.converged) == wanted.converged == (wanted.residual <= 1e-3), what


def check_stopping(backend, drawn: Logits, precision: str, **options) -> None:
    """The stopping rule: converged says what the residual says, and no sweep is taken after it."""
    found = run(backend, PLAN, precision, drawn.values, **options)
    wanted = reference.sinkhorn_plan(drawn.values, **options)
    tolerance, most = options.get("tolerance", 1e-3), options.get("max_sweeps", 100)
    what = f"sinkhorn_plan, {drawn.family} {drawn.values.shape}, {options}, {precision}"
    unit = plan_unit(drawn.values, precision)
    assert_plan("sinkhorn.marginals", found.plan, found.residual, unit, what=what)
    assert bool(found.converged) == (float(found.residual) <= np.asarray(tolerance, precision)), what
    assert int(found.sweeps) <= most and (bool(found.converged) or int(found.sweeps) == most), what
    sweeps = int(found.sweeps)
    if sweeps:
        before = reference.sinkhorn_plan(drawn.values, num_sweeps=sweeps - 1)
        slack = unit * BOUNDS["sinkhorn.marginals"].limit * len(drawn.values)
        assert before.residual > tolerance - slack, f"{what}: went on after residual {before.residual}"
    if precision == "float64":
        assert sweeps == wanted.sweeps and bool(found.converged) == wanted.converged, what


def check_router(backend, drawn: Logits, precision: str, gate: str, training: bool) -> None:
    """Selection by what the reference's scores admit; then everything else with the reference's selection."""
    z, k = drawn.values, drawn.k
    options = dict(k=k, training=training, gate=gate, num_sweeps=30)
    found = run(backend, ROUTER, precision, z, **options)
    wanted = reference.sinkhorn_router(z, **options)
    what = f"sinkhorn_router, {drawn.family} {z.shape}, {options}, {precision}"
    check_selection(found, wanted, drawn, precision, training, what)
    counts = np.bincount(np.asarray(found.expert).ravel(), minlength=z.shape[1])
    load = counts / found.expert.size
    assert_close_bounded("sinkhorn.load", found.load, load, UNIT[precision] * load, what=f"{what}: load")

    held = Routing(*wanted)
    found = run(backend, ROUTER, precision, z, traced={"held": backend.notation.Routing(*held)}, **options)
    assert_same(found.expert, held.expert, what=f"{what}: held expert")
    for name in ("load", "plan", "residual"):
        kept = np.asarray(getattr(held, name)).astype(precision)
        assert_same(getattr(found, name), kept, what=f"{what}: held {name}")
    spread = 2 + np.abs(z - z.max(axis=1, keepdims=True)).max(axis=1, keepdims=True) + np.abs(z).max()
    scale = UNIT[precision] * spread * wanted.gate + np.finfo(precision).tiny
    assert_close_bounded("sinkhorn.gate", found.gate, wanted.gate, scale, what=f"{what}: gate")


def check_selection(found, wanted, drawn, precision, training, what):
    """The experts of a routing, by the plan in training and by the logits in evaluation."""
    z, k = drawn.values, drawn.k
    if not training:  # the same floats in both twins
        assert_same(found.expert, wanted.expert, what=f"{what}: expert")
        unit = UNIT[precision] * len(z)
        assert_close_bounded("sinkhorn.load", found.plan, wanted.plan, unit * wanted.plan, what=f"{what}: plan")
        scale = unit * (1 + wanted.residual)
        assert_close_bounded("sinkhorn.load", found.residual, wanted.residual, scale, what=f"{what}: residual")
        return
    # Scores are logarithms, so the relative error of the plan is their margin; what underflows is all the same.
    with np.errstate(divide="ignore"):
        scores = np.maximum(np.log(wanted.plan), np.log(np.finfo(precision).tiny))
    margin = BOUNDS["sinkhorn.plan"].limit * plan_unit(z, precision)
    undecided = assert_admissible_top_k(found.expert, scores, margin, what=what)
    if drawn.family == "skewed" and k == 1:
        assert undecided <= BOUNDS["sinkhorn.undecided"].limit, f"{what}: {undecided:.2f} of the rows are undecided"


@given(drawn=logits(), precision=precisions, num_sweeps=st.sampled_from(SWEEPS))
def test_plan(backend, drawn, precision, num_sweeps):
    check_plan(backend, drawn, precision, num_sweeps)


@given(drawn=logits(), precision=precisions)
def test_stopping(backend, drawn, precision):
    check_stopping(backend, drawn, precision)


@given(drawn=logits(families=("skewed", "extreme")), options=st.sampled_from([{"tolerance": 0.05}, {"max_sweeps": 3}]))
def test_stopping_options(backend, drawn, options):
    check_stopping(backend, drawn, "float64", **options)


def test_a_hard_plan_says_that_it_did_not_converge(backend):
    drawn = Logits(np.random.default_rng(0).standard_normal((16, 4)) * 100, "extreme", 1)
    for module in (backend.routers.sinkhorn, reference):
        found = module.sinkhorn_plan(drawn.values if module is reference else jnp.asarray(drawn.values))
        assert not bool(found.converged) and int(found.sweeps) == 100 and float(found.residual) > 1e-3


@given(drawn=logits(), precision=precisions, gate=st.sampled_from(reference.GATES), training=st.booleans())
def test_router(backend, drawn, precision, gate, training):
    check_router(backend, drawn, precision, gate, training)


@given(drawn=logits(families=("tied", "lattice")), k=st.integers(1, 2))
def test_equal_logits_go_to_the_lowest_experts(backend, drawn, k):
    """A plan with all entries equal is what both twins compute exactly, so the tie rule decides."""
    shape = drawn.values.shape
    k = min(k, shape[1])
    for value, training in ((0.0, True), (-0.0, True), (0.25, True), (0.25, False), (-0.0, False)):
        found = run(backend, ROUTER, "float32", np.full(shape, value), k=k, training=training)
        assert_same(found.expert, np.tile(np.arange(k), (shape[0], 1)), what=f"sinkhorn_router of {value}, k {k}")


@given(drawn=logits(families=("lattice", "free", "skewed")), seed=st.integers(0, 2**32 - 1), precision=precisions)
def test_symmetries(backend, drawn, seed, precision):
    """Shifted rows change nothing; permuted tokens and experts permute the plan."""
    random = np.random.default_rng(seed)
    z = np.round(drawn.values * 64) / 64  # so that z + shift is exact
    num_tokens, num_experts = z.shape
    shift = random.integers(-8, 8, (num_tokens, 1)) / 4
    rows, columns = random.permutation(num_tokens), random.permutation(num_experts)
    plan = np.asarray(run(backend, PLAN, precision, z, num_sweeps=30).plan)
    unit = plan_unit(np.abs(z) + 2, precision)
    for name, moved, wanted in (
        ("shifted rows", z + shift, plan),
        ("permuted tokens", z[rows], plan[rows]),
        ("permuted experts", z[:, columns], plan[:, columns]),
    ):
        found = run(backend, PLAN, precision, moved, num_sweeps=30).plan
        scale = 2 * unit * wanted + np.finfo(precision).tiny  # both sides are rounded
        assert_close_bounded("sinkhorn.plan", found, wanted, scale, what=f"sinkhorn_plan, {name}")


def gate_sum(point, weights, router, k, gate, training):
    """Return Σ weights · gate, with the router's own selection."""
    return (router(point["logits"], k, gate=gate, training=training, num_sweeps=7).gate * weights).sum()


def plan_sum(point, weights, plan, num_sweeps):
    """Return Σ weights · plan, of which no gradient may be left."""
    return (plan(point["logits"], num_sweeps=num_sweeps).plan * weights).sum()


def check_gate_gradient(backend, drawn: Logits, gate: str, training: bool, seed: int) -> None:
    """Gradient of the gates through autodiff = central difference of the reference with its selection held."""
    z, k = drawn.values, drawn.k
    random = np.random.default_rng(seed)
    weights, direction = random.standard_normal((len(z), k)), {"logits": random.standard_normal(z.shape)}
    held = reference.sinkhorn_router(z, k, training=training, num_sweeps=7)

    def value(point):
        routing = reference.sinkhorn_router(point["logits"], k, gate=gate, training=training, held=held)
        return float((routing.gate * weights).sum())

    options = dict(router=backend.routers.sinkhorn.sinkhorn_router, k=k, gate=gate, training=training)
    found = gradient(gate_sum, {"logits": z}, weights, **options)["logits"]
    wanted = central_difference(value, {"logits": z}, direction)
    scale = np.abs(weights).sum()
    found = float((found * direction["logits"]).sum())
    assert_close_bounded("sinkhorn.gradient", found, wanted, scale, what=f"gradient of gates, {z.shape}, {gate}")


@given(
    # Few shapes, and logits far apart: no plan entry of a row is near another, so both twins select the same.
    drawn=logits(families=("skewed",), shapes=((12, 3), (6, 8))),
    gate=st.sampled_from(reference.GATES),
    training=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gate_gradient(backend, drawn, gate, training, seed):
    check_gate_gradient(backend, drawn, gate, training, seed)


def check_no_gradient_through_the_plan(backend) -> None:
    """The plan depends on the logits, and autodiff must not know it."""
    z = np.array([[3.0, 0.0, 0.5], [2.0, 0.0, 1.0], [1.0, 0.0, -1.0]])
    weights = np.array([[1.0, -2.0, 0.5], [0.3, 1.5, -1.0], [-0.7, 0.2, 2.0]])
    value = [np.sum(reference.sinkhorn_plan(moved).plan * weights) for moved in (z, z + np.eye(3))]
    assert abs(value[0] - value[1]) > 0.1  # so that a gradient of 0 says something
    for num_sweeps in (4, None):
        found = gradient(plan_sum, {"logits": z}, weights, plan=backend.routers.sinkhorn.sinkhorn_plan,
                         num_sweeps=num_sweeps)  # fmt: skip
        assert_same(found["logits"], np.zeros((3, 3)), what="gradient through sinkhorn_plan")


def test_no_gradient_through_the_plan(backend):
    check_no_gradient_through_the_plan(backend)


def test_jit_changes_nothing(backend):
    drawn = Logits(np.random.default_rng(3).standard_normal((12, 3)), "free", 2)
    for training in (True, False):
        ours, theirs = (run(backend, ROUTER, "float32", drawn.values, k=2, training=training, jit=jit)
                        for jit in (True, False))  # fmt: skip
        assert_same(ours.expert, theirs.expert, what="sinkhorn_router with and without jit")
        unit = plan_unit(drawn.values, "float32")
        for name in ("gate", "load", "plan"):
            pair = getattr(ours, name), np.asarray(getattr(theirs, name))
            assert_close_bounded("sinkhorn.plan", *pair, unit * np.abs(pair[1]), what=f"jit and no jit: {name}")


def test_types(backend):
    z = np.zeros((5, 3))
    found = run(backend, ROUTER, "float32", z, k=2)
    assert all(isinstance(field, jax.Array) for field in found)
    assert [field.dtype for field in found] == [jnp.int32] + [jnp.float32] * 4
    assert [field.shape for field in found] == [(5, 2), (5, 2), (3,), (5, 3), ()]
    plan = run(backend, PLAN, "float32", z)
    assert plan.converged.dtype == jnp.bool_ and plan.sweeps.dtype == jnp.int32 and plan.plan.dtype == jnp.float32
    raised = backend.routers.sinkhorn.sinkhorn_plan(jnp.zeros((5, 3), jnp.bfloat16))
    assert raised.plan.dtype == jnp.float32


@pytest.mark.parametrize("training", [True, False])
def test_a_logit_that_is_not_a_number_is_not_lost(backend, training):
    z = np.zeros((4, 2))
    z[1, 0] = np.nan
    found = run(backend, ROUTER, "float32", z, training=training)
    assert np.isnan(found.gate[1, 0]) and (np.isnan(found.residual) or not training)
    with pytest.raises(ValueError, match=r"logits: entry \(1, 0\) is nan"):
        reference.sinkhorn_router(z, training=training)


def test_what_is_not_allowed_is_named(backend):
    for module, array in ((backend.routers.sinkhorn, jnp.asarray), (reference, np.asarray)):
        for k in (0, 3):
            with pytest.raises(ValueError, match=f"k is {k}"):
                module.sinkhorn_router(array(np.zeros((4, 2))), k)
        with pytest.raises(ValueError, match="gate is 'tanh'; allowed: softmax, sigmoid"):
            module.sinkhorn_router(array(np.zeros((4, 2))), gate="tanh")
        assert module.GATES == ("softmax", "sigmoid")
