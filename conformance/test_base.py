"""BASE: an assignment is an optimum when prices prove it; which of several optima is a matter of the tie rule.

Three judges that share nothing: the certificate, worked out here from the prices; SciPy's assignment solver on one
column per place; and, for a handful of tokens, all balanced assignments one after the other.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.harness import PRECISIONS, UNIT, central_difference, gradient, run
from routelaws.conformance.strategies import lattice, tied
from routelaws.reference.notation import Routing
from routelaws.reference.routers import base as reference

ASSIGNMENT, BOUND, ROUTER = (f"routers.base.{name}" for name in ("balanced_assignment", "dual_bound", "base_router"))

SHAPES = ((1, 1), (5, 1), (1, 4), (6, 8), (13, 3), (16, 4))
"""(T, E): one token, one expert, fewer tokens than experts, E that divides T and E that does not."""

FAMILIES = ("random", "lattice", "tied", "integer", "anisotropic", "all alike", "one token decides")
SCALES = (0.1, 1.0, 100.0, 1e4)

precisions = st.sampled_from(PRECISIONS)


class Scores(NamedTuple):
    """Scores and how they were made."""

    values: np.ndarray  # [T, E], exact in float32
    family: str


def draw_scores(family: str, shape: tuple[int, int], scale: float, seed: int) -> Scores:
    """Return scores of a family; what is tied or whole before it is scaled stays so."""
    random = np.random.default_rng(seed)
    values = {
        "random": lambda: random.standard_normal(shape),
        "lattice": lambda: lattice(random, *shape),
        "tied": lambda: tied(random, *shape),
        "integer": lambda: random.integers(-3, 4, shape).astype(float),
        "anisotropic": lambda: (random.standard_normal((shape[0], 6)) + 2) @ random.standard_normal((6, shape[1])),
        "all alike": lambda: np.full(shape, random.choice([0.0, -0.0, 0.1, -1.0])),
        "one token decides": lambda: np.vstack([[1e4], np.ones((shape[0] - 1, 1))]) * random.standard_normal(shape),
    }[family]()
    return Scores((values * scale).astype(np.float32).astype(np.float64), family)


def scores(families=FAMILIES, shapes=SHAPES, scales=SCALES) -> st.SearchStrategy[Scores]:
    """Scores of every family, shape and scale."""
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(draw_scores, *(st.sampled_from(menu) for menu in (families, shapes, scales)), seeds)


def bound_of(values: np.ndarray, prices: np.ndarray, k: int = 1) -> float:
    """Return what these prices prove that no balanced assignment exceeds, term by term."""
    num_tokens, num_experts = values.shape
    everyone, more = divmod(num_tokens * k, num_experts)
    total = sum(sum(sorted(row - prices)[-k:]) for row in values)
    total += sum(everyone * price for price in prices)
    return total + sum(sorted(prices, reverse=True)[:more])


def scipy_optimum(values: np.ndarray) -> float:
    """Return the best objective by an assignment of tokens to places, one column each.

    Every expert has floor(T/E) places and one more; E - T mod E rows that stand for nobody fill up the latter.
    """
    num_tokens, num_experts = values.shape
    everyone, more = divmod(num_tokens, num_experts)
    columns = np.repeat(np.arange(num_experts), everyone)
    worth = values[:, columns]
    if more:
        additional = np.zeros((num_experts - more, num_experts))
        worth = np.block([[worth, values], [np.full((len(additional), len(columns)), -np.inf), additional]])
        columns = np.append(columns, np.arange(num_experts))
    row, column = linear_sum_assignment(worth, maximize=True)
    return values[row[:num_tokens], columns[column[:num_tokens]]].sum()


def first_optimum(values: np.ndarray) -> list[int]:
    """Return the first of the best balanced assignments in the order of a dictionary, by looking at all of them."""
    num_tokens, num_experts = values.shape
    best, found = -np.inf, None
    for expert in itertools.product(range(num_experts), repeat=num_tokens):
        load = np.bincount(expert, minlength=num_experts)
        total = values[np.arange(num_tokens), expert].sum()
        if load.max() - load.min() <= 1 and total > best:
            best, found = total, list(expert)
    return found


def check_certificate(values: np.ndarray, found, precision: str, what: str) -> None:
    """Loads, objective, and the prices' proof, by the test's own sums."""
    expert, prices = np.asarray(found.expert), np.asarray(found.prices, np.float64)
    num_tokens, num_experts = values.shape
    load = np.bincount(expert, minlength=num_experts)
    assert load.max() - load.min() <= 1 and len(load) == num_experts, f"{what}: loads {load.tolist()}"
    assert prices.min() == 0 and prices.shape == (num_experts,), f"{what}: prices {prices.tolist()}"
    chosen = values[np.arange(num_tokens), expert]
    scale = UNIT[precision] * np.abs(chosen).sum() + np.finfo(precision).tiny
    assert_close_bounded("base.objective", found.objective, chosen.sum(), scale, what=f"{what}: objective")
    scale = UNIT[precision] * num_tokens * (np.abs(values).max() + prices.max()) + np.finfo(precision).tiny
    bound = bound_of(values, prices)
    assert_close_bounded("base.certificate", bound, chosen.sum(), scale, what=f"{what}: bound less objective")
    assert_close_bounded("base.certificate", found.gap, 0.0, scale, what=f"{what}: gap")


def check_assignment(backend, drawn: Scores, precision: str) -> None:
    """An optimum with its proof, and the one that the tie rule picks."""
    found = run(backend, ASSIGNMENT, precision, drawn.values)
    wanted = reference.balanced_assignment(drawn.values)
    what = f"balanced_assignment, {drawn.family} {drawn.values.shape}, {precision}"
    check_certificate(drawn.values, found, precision, what)
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")


def check_optimum(backend, drawn: Scores) -> None:
    """The objective is SciPy's, of the backend and of the reference."""
    wanted = scipy_optimum(drawn.values)
    scale = UNIT["float64"] * len(drawn.values) * np.abs(drawn.values).max()
    for found in (run(backend, ASSIGNMENT, "float64", drawn.values), reference.balanced_assignment(drawn.values)):
        what = f"balanced_assignment, {drawn.family} {drawn.values.shape}: objective"
        assert_close_bounded("base.optimum", found.objective, wanted, scale, what=what)


def check_tie_rule(backend, values: np.ndarray) -> None:
    """Of all the best, the first in the order of a dictionary."""
    wanted = first_optimum(values)
    for found in (run(backend, ASSIGNMENT, "float32", values), reference.balanced_assignment(values)):
        assert_same(found.expert, wanted, what=f"balanced_assignment of {values.tolist()}")


def check_dual_bound(backend, drawn: Scores, seed: int, precision: str) -> None:
    """Any prices prove a bound: the stated one, and it holds."""
    values, num_experts = drawn.values, drawn.values.shape[1]
    prices = np.random.default_rng(seed).standard_normal(num_experts) * max(1.0, np.abs(values).max())
    prices = prices.astype(np.float32).astype(np.float64)
    for k in (1, min(2, num_experts)):
        wanted = bound_of(values, prices, k)
        scale = UNIT[precision] * values.size * (np.abs(values).max() + np.abs(prices).max())
        for found in (run(backend, BOUND, precision, values, prices, k=k), reference.dual_bound(values, prices, k)):
            what = f"dual_bound, {drawn.family} {values.shape}, k {k}, {precision}"
            assert_close_bounded("base.bound", found, wanted, scale, what=what)
    assert bound_of(values, prices) >= scipy_optimum(values) - scale, f"{drawn}: a bound that does not hold"


def check_router(backend, drawn: Scores, precision: str, gate: str, training: bool) -> None:
    """Selection by the assignment or the logits; gates, loads and residual by the selection."""
    values = drawn.values
    num_tokens, num_experts = values.shape
    options = dict(training=training, gate=gate)
    found = run(backend, ROUTER, precision, values, **options)
    with np.errstate(over="ignore"):  # exp of a large logit, whose sigmoid is 0
        wanted = reference.base_router(values, **options)
    what = f"base_router, {drawn.family} {values.shape}, {options}, {precision}"
    best = reference.balanced_assignment(values).expert if training else np.argmax(values, axis=1)
    assert_same(found.expert, best[:, None], what=f"{what}: expert")
    assert_same(wanted.expert, best[:, None], what=f"{what}: expert of the reference")
    load = np.bincount(best, minlength=num_experts) / num_tokens
    unit = UNIT[precision] * num_tokens
    assert_close_bounded("base.load", found.load, load, unit * load, what=f"{what}: load")
    plan = np.eye(num_experts)[best] / num_tokens
    assert_close_bounded("base.load", found.plan, plan, unit * plan, what=f"{what}: plan")
    residual = np.abs(load * num_experts - 1).max()
    assert_close_bounded("base.load", found.residual, residual, unit * (1 + residual), what=f"{what}: residual")
    with np.errstate(over="ignore"):
        e = np.exp(values - values.max(axis=1, keepdims=True))
        activated = e / e.sum(axis=1, keepdims=True) if gate == "softmax" else 1 / (1 + np.exp(-values))
    gates = np.take_along_axis(activated, best[:, None], axis=1)
    spread = 2 + np.ptp(values, axis=1, keepdims=True) + np.abs(values).max()
    scale = UNIT[precision] * spread * gates + np.finfo(precision).tiny
    for routing in (found, wanted):
        assert_close_bounded("base.gate", routing.gate, gates, scale, what=f"{what}: gate")


@given(drawn=scores(), precision=precisions)
def test_assignment(backend, drawn, precision):
    check_assignment(backend, drawn, precision)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_assigned(backend, family):
    for seed, shape in enumerate(SHAPES):
        drawn = draw_scores(family, shape, SCALES[seed % len(SCALES)], seed)
        check_certificate(drawn.values, reference.balanced_assignment(drawn.values), "float64", "the reference")
        check_assignment(backend, drawn, "float32")
        check_optimum(backend, drawn)


@given(drawn=scores())
def test_optimum(backend, drawn):
    check_optimum(backend, drawn)


def test_larger_groups(backend):
    """Enough tokens and experts that chains of many links occur, with ties and without."""
    for family in ("anisotropic", "integer", "tied"):
        drawn = draw_scores(family, (101, 16), 1.0, 1)
        check_assignment(backend, drawn, "float32")
        check_optimum(backend, drawn)


@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from([(5, 3), (6, 3), (7, 2), (3, 4)]))
def test_tie_rule(backend, seed, shape):
    check_tie_rule(backend, np.random.default_rng(seed).integers(0, 3, shape) / 2.0)


@given(drawn=scores(), seed=st.integers(0, 2**32 - 1), precision=precisions)
def test_dual_bound(backend, drawn, seed, precision):
    check_dual_bound(backend, drawn, seed, precision)


@given(drawn=scores(families=("lattice", "integer", "tied"), scales=(1.0,)), seed=st.integers(0, 2**32 - 1))
def test_symmetries(backend, drawn, seed):
    """Shifted rows and permuted experts change no optimum; scores of either sign of zero are the same."""
    random = np.random.default_rng(seed)
    values = drawn.values
    shift = random.integers(-8, 8, (len(values), 1)) / 4
    found = run(backend, ASSIGNMENT, "float32", values)
    for name, moved in (("shifted rows", values + shift), ("other zeros", np.where(values == 0, -values, values))):
        assert_same(run(backend, ASSIGNMENT, "float32", moved).expert, found.expert, what=name)
    rows, columns = random.permutation(len(values)), random.permutation(values.shape[1])
    for name, moved in (("permuted tokens", values[rows]), ("permuted experts", values[:, columns])):
        assert_same(run(backend, ASSIGNMENT, "float32", moved).objective, found.objective, what=name)


@given(drawn=scores(), precision=precisions, gate=st.sampled_from(("sigmoid", "softmax")), training=st.booleans())
def test_router(backend, drawn, precision, gate, training):
    check_router(backend, drawn, precision, gate, training)


@given(drawn=scores(families=("random", "tied")))
def test_held(backend, drawn):
    """What is held is kept, and only the gate is new."""
    with np.errstate(over="ignore"):
        held = reference.base_router(drawn.values)
        fresh = reference.base_router(-drawn.values, held=held)
    traced = {"held": backend.notation.Routing(*held)}
    found = run(backend, ROUTER, "float64", -drawn.values, traced=traced)
    for name in ("expert", "load", "plan", "residual"):
        assert_same(getattr(found, name), getattr(held, name), what=f"base_router: held {name}")
    scale = UNIT["float64"] * (2 + np.abs(drawn.values).max()) * fresh.gate + np.finfo("float64").tiny
    assert_close_bounded("base.gate", found.gate, fresh.gate, scale, what="base_router: gate of what is held")


def gate_sum(point, weights, router, gate, training):
    """Return Σ weights · gate, with the router's own selection."""
    return (router(point["logits"], gate=gate, training=training).gate * weights).sum()


def check_gate_gradient(backend, gate: str, training: bool, seed: int) -> None:
    """Gradient of the gates through autodiff = central difference of the reference with its selection held."""
    values = draw_scores("random", (13, 3), 1.0, seed).values
    random = np.random.default_rng(seed)
    weights, direction = random.standard_normal((len(values), 1)), {"logits": random.standard_normal(values.shape)}
    held = reference.base_router(values, training=training)

    def value(point):
        return float((reference.base_router(point["logits"], gate=gate, held=held).gate * weights).sum())

    options = dict(router=backend.routers.base.base_router, gate=gate, training=training)
    found = gradient(gate_sum, {"logits": values}, weights, **options)["logits"]
    wanted = central_difference(value, {"logits": values}, direction)
    found = float((found * direction["logits"]).sum())
    what = f"gradient of gates, {values.shape}, {gate}"
    assert_close_bounded("base.gradient", found, wanted, np.abs(weights).sum(), what=what)


@pytest.mark.parametrize("training", [True, False])
@given(seed=st.integers(0, 2**32 - 1), gate=st.sampled_from(("sigmoid", "softmax")))
def test_gate_gradient(backend, training, seed, gate):
    check_gate_gradient(backend, gate, training, seed)


def assignment_sum(point, weights, assignment):
    found = assignment(point["scores"])
    return found.objective + (found.prices * weights).sum() + found.gap


def test_no_gradient_through_the_assignment(backend):
    """Objective and prices depend on the scores, and autodiff must not know it."""
    values = draw_scores("random", (8, 2), 1.0, 0).values
    options = dict(assignment=backend.routers.base.balanced_assignment)
    found = gradient(assignment_sum, {"scores": values}, np.ones(2), **options)
    assert_same(found["scores"], np.zeros((8, 2)), what="gradient through balanced_assignment")


def check_evaluation(backend, drawn: Scores) -> None:
    """In evaluation a token's expert and gate are its own affair: no other token changes them."""
    values = drawn.values
    together = run(backend, ROUTER, "float32", values, training=False)
    alone = run(backend, ROUTER, "float32", values[::-1].copy(), training=False)
    for name in ("expert", "gate"):
        assert_same(getattr(alone, name)[::-1], getattr(together, name), what=f"evaluation in another order: {name}")
    assert_same(together.expert[:, 0], np.argmax(values, axis=1), what="evaluation takes the largest logit")


@given(drawn=scores(shapes=((1, 4), (13, 3))))
def test_evaluation(backend, drawn):
    check_evaluation(backend, drawn)


def test_the_papers_residual_form(backend):
    """α f(h) + (1 - α) h with f(h) = h + FFN(h) is what a residual block adds with this gate: h + α FFN(h)."""
    random = np.random.default_rng(0)
    h, values = random.standard_normal((12, 4)), random.standard_normal((12, 3))
    params = {"up": random.standard_normal((3, 4, 5)), "down": random.standard_normal((3, 5, 4))}
    routing = run(backend, ROUTER, "float64", values)
    expert, gate = np.asarray(routing.expert), np.asarray(routing.gate)
    added = run(backend, "experts.routed_ffn", "float64", params, h, expert, gate).output
    outputs = run(backend, "experts.routed_ffn", "float64", params, h, expert, np.ones_like(gate)).output
    wanted = gate * (h + np.asarray(outputs)) + (1 - gate) * h
    scale = UNIT["float64"] * (np.abs(h) + np.abs(outputs))
    assert_close_bounded("base.residual", h + np.asarray(added), wanted, scale, what="the residual form")


def test_groups_under_vmap_and_without_jit(backend):
    values = np.stack([draw_scores("tied", (13, 3), 1.0, seed).values for seed in range(3)])
    with jax.enable_x64(False):
        router = backend.routers.base.base_router
        together = jax.jit(jax.vmap(router))(jnp.asarray(values, jnp.float32))
    for group, routing in zip(values, zip(*together, strict=True), strict=True):
        found = run(backend, ROUTER, "float32", group, jit=False)
        for name, ours, theirs in zip(found._fields, routing, found, strict=True):
            error = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).max()
            check("base.load", error, UNIT["float32"] * len(group), message=f"vmap and a loop: {name}")


def test_types(backend):
    found = run(backend, ROUTER, "float32", np.zeros((5, 3)))
    assert [field.dtype for field in found] == [jnp.int32] + [jnp.float32] * 4
    assert [field.shape for field in found] == [(5, 1), (5, 1), (3,), (5, 3), ()]
    found = run(backend, ASSIGNMENT, "float32", np.zeros((5, 3)))
    assert [field.dtype for field in found] == [jnp.int32] + [jnp.float32] * 3
    assert [field.shape for field in found] == [(5,), (), (3,), ()]
    assert backend.routers.base.balanced_assignment(jnp.zeros((5, 3), jnp.bfloat16)).prices.dtype == jnp.float32


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_a_number_is_not_lost(backend, training, wrong):
    values = np.ones((13, 3))
    values[1, 2] = wrong
    found = run(backend, ROUTER, "float32", values, training=training)
    assert np.isnan(found.gate[1, 0]) and np.isfinite(found.gate[2, 0])
    assert np.isnan(found.residual) == training and np.asarray(found.expert).max() < 3
    with pytest.raises(ValueError, match=r"logits: entry \(1, 2\) is"):
        reference.base_router(values, training=training)
    with pytest.raises(ValueError, match=r"scores: entry \(1, 2\) is"):
        reference.balanced_assignment(values)


def test_what_is_not_allowed_is_named(backend):
    for module, array in ((backend.routers.base, jnp.asarray), (reference, np.asarray)):
        with pytest.raises(ValueError, match="gate is 'tanh'; allowed: softmax, sigmoid"):
            module.base_router(array(np.zeros((4, 2))), gate="tanh")
        for k in (0, 3):
            with pytest.raises(ValueError, match=f"k is {k}"):
                module.dual_bound(array(np.zeros((4, 2))), array(np.zeros(2)), k)
    assert isinstance(reference.base_router(np.zeros((4, 2))), Routing)
