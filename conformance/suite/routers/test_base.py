"""BASE: prices prove that an assignment is optimal. The tie rule selects one of several optima.

Independent checks are the certificate of the prices, SciPy's solver with one column for each place, and an exhaustive
search for a few tokens.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import (
    assert_close_bounded,
    assert_derivative,
    assert_held,
    assert_nearly_same,
    assert_same,
)
from routelaws.conformance.engine.comparable import is_other_optimum
from routelaws.conformance.engine.harness import PRECISIONS, gradient, run
from routelaws.conformance.suite.routers.strategies_base import (
    FAMILIES,
    SCALES,
    SHAPES,
    Scores,
    bound_of,
    check_gates,
    draw_scores,
    first_optimum,
    scipy_optimum,
    scores,
    seeds,
)
from routelaws.reference.routers import base as reference

ASSIGNMENT, BOUND, ROUTER = (f"routers.base.{name}" for name in ("balanced_assignment", "dual_bound", "base_router"))

KS = (1, 2, 3)
"""Experts per token, at most E."""

precisions, ks = st.sampled_from(PRECISIONS), st.sampled_from(KS)


def check_certificate(values: np.ndarray, found, precision: str, what: str, k: int = 1) -> None:
    expert, prices = np.asarray(found.expert), np.asarray(found.prices, np.float64)
    num_tokens, num_experts = values.shape
    assert expert.shape == (num_tokens, k), f"{what}: shape {expert.shape}, expected {(num_tokens, k)}"
    assert all(len(set(row)) == k for row in expert.tolist()), f"{what}: an expert twice in {expert.tolist()}"
    load = np.bincount(expert.ravel(), minlength=num_experts)
    assert load.max() - load.min() <= 1 and len(load) == num_experts, f"{what}: loads {load.tolist()}"
    assert prices.min() == 0 and prices.shape == (num_experts,), f"{what}: prices {prices.tolist()}"
    chosen = np.take_along_axis(values, expert, axis=1)
    for row, their in zip(expert.tolist(), chosen.tolist(), strict=True):
        assert row == sorted(row, key=lambda e: (-their[row.index(e)], e)), f"{what}: order of {row}, scores {their}"
    scale = UNIT[precision] * np.abs(chosen).sum() + np.finfo(precision).tiny
    assert_close_bounded("base.objective", found.objective, chosen.sum(), scale, what=f"{what}: objective")
    scale = UNIT[precision] * expert.size * (np.abs(values).max() + prices.max()) + np.finfo(precision).tiny
    bound = bound_of(values, prices, k)
    assert_close_bounded("base.certificate", bound, chosen.sum(), scale, what=f"{what}: bound less objective")
    assert_close_bounded("base.certificate", found.gap, 0.0, scale, what=f"{what}: gap")


def check_assignment(backend, drawn: Scores, precision: str, k: int = 1) -> None:
    k = min(k, drawn.values.shape[1])
    found = run(backend, ASSIGNMENT, precision, drawn.values, k=k)
    wanted = reference.balanced_assignment(drawn.values, k)
    what = f"balanced_assignment, {drawn.family} {drawn.values.shape}, k {k}, {precision}"
    check_certificate(drawn.values, found, precision, what, k)
    assert_same(found.expert, wanted.expert, what=f"{what}: expert")


def check_optimum(backend, drawn: Scores, k: int = 1) -> None:
    k = min(k, drawn.values.shape[1])
    wanted = scipy_optimum(drawn.values, k)
    scale = UNIT["float64"] * len(drawn.values) * k * np.abs(drawn.values).max()
    for found in (
        run(backend, ASSIGNMENT, "float64", drawn.values, k=k),
        reference.balanced_assignment(drawn.values, k),
    ):
        what = f"balanced_assignment, {drawn.family} {drawn.values.shape}, k {k}: objective"
        assert_close_bounded("base.optimum", found.objective, wanted, scale, what=what)


def check_tie_rule(backend, values: np.ndarray, k: int = 1) -> None:
    wanted = first_optimum(values, k)
    for found in (run(backend, ASSIGNMENT, "float32", values, k=k), reference.balanced_assignment(values, k)):
        assert_same(np.sort(found.expert, axis=1), wanted, what=f"balanced_assignment, k {k}, of {values.tolist()}")


def check_dual_bound(backend, drawn: Scores, seed: int, precision: str) -> None:
    values, num_experts = drawn.values, drawn.values.shape[1]
    prices = np.random.default_rng(seed).standard_normal(num_experts) * max(1.0, np.abs(values).max())
    prices = prices.astype(np.float32).astype(np.float64)
    for k in (1, min(2, num_experts)):
        wanted = bound_of(values, prices, k)
        scale = UNIT[precision] * values.size * (np.abs(values).max() + np.abs(prices).max())
        for found in (run(backend, BOUND, precision, values, prices, k=k), reference.dual_bound(values, prices, k)):
            what = f"dual_bound, {drawn.family} {values.shape}, k {k}, {precision}"
            assert_close_bounded("base.bound", found, wanted, scale, what=what)
        assert wanted >= scipy_optimum(values, k) - scale, f"{drawn}, k {k}: a bound that does not hold"


def check_router(backend, drawn: Scores, precision: str, gate: str, training: bool, k: int = 1) -> None:
    """Check the selection by assignment or logits. Then check gates, loads and residual for this selection."""
    values = drawn.values
    num_tokens, num_experts = values.shape
    k = min(k, num_experts)
    options = dict(training=training, gate=gate)
    found = run(backend, ROUTER, precision, values, k=k, **options)
    with np.errstate(over="ignore"):
        wanted = reference.base_router(values, k, **options)
    what = f"base_router, {drawn.family} {values.shape}, k {k}, {options}, {precision}"
    best = reference.balanced_assignment(values, k).expert if training else largest(values, k)
    assert_same(wanted.expert, best, what=f"{what}: expert of the reference")
    if training and is_other_optimum(found.expert, best, values):
        check_gates("base.gate", found, values, gate, precision, what)
        return
    assert_same(found.expert, best, what=f"{what}: expert")
    load = np.bincount(best.ravel(), minlength=num_experts) / (num_tokens * k)
    unit = UNIT[precision] * num_tokens * k
    assert_close_bounded("base.load", found.load, load, unit * load, what=f"{what}: load")
    plan = np.eye(num_experts)[best].sum(axis=1) / (num_tokens * k)
    assert_close_bounded("base.load", found.plan, plan, unit * plan, what=f"{what}: plan")
    residual = np.abs(load * num_experts - 1).max()
    assert_close_bounded("base.load", found.residual, residual, unit * (1 + residual), what=f"{what}: residual")
    for routing in (found, wanted):
        check_gates("base.gate", routing, values, gate, precision, what)


def largest(values: np.ndarray, k: int) -> np.ndarray:
    return np.array([sorted(range(len(row)), key=lambda e, row=row: (-row[e], e))[:k] for row in values])


def padded(drawn: Scores, seed: int, padding: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores with other numbers in some rows, and the mask of the unchanged rows."""
    random = np.random.default_rng(seed)
    mask = random.random(len(drawn.values)) < random.choice([0.3, 0.8])
    mask[random.integers(len(mask))] = True
    return np.where(mask[:, None], drawn.values, padding), mask


@pytest.mark.asks("routers.base.balanced_assignment")
@given(drawn=scores(), precision=precisions, k=ks)
def test_assignment(backend, drawn, precision, k):
    check_assignment(backend, drawn, precision, k)


@pytest.mark.asks("routers.base.balanced_assignment")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_assigned(backend, family):
    for seed, shape in enumerate(SHAPES):
        drawn = draw_scores(family, shape, SCALES[seed % len(SCALES)], seed)
        for k in {1, min(2, shape[1])}:
            check_certificate(drawn.values, reference.balanced_assignment(drawn.values, k), "float64", "reference", k)
            check_assignment(backend, drawn, "float32", k)
            check_optimum(backend, drawn, k)


@pytest.mark.asks("routers.base.balanced_assignment")
@given(drawn=scores(), k=ks)
def test_optimum(backend, drawn, k):
    check_optimum(backend, drawn, k)


@pytest.mark.asks("routers.base.balanced_assignment")
def test_larger_groups(backend):
    for family in ("anisotropic", "integer", "tied"):
        drawn = draw_scores(family, (61, 16), 1.0, 1)
        check_assignment(backend, drawn, "float32")
        check_optimum(backend, drawn)
    check_assignment(backend, draw_scores("integer", (33, 16), 1.0, 1), "float32", 3)


@pytest.mark.asks("routers.base.balanced_assignment")
def test_scores_that_differ_little(backend):
    """They are equal in float16, and if they are rounded to hundredths."""
    near = Scores(8 + draw_scores("integer", (13, 3), 2.0**-12, 0).values, "near")
    check_assignment(backend, near, "float32")
    check_optimum(backend, near)


@pytest.mark.asks("routers.base.balanced_assignment")
@given(seed=seeds, shape=st.sampled_from([(5, 3), (6, 3), (7, 2), (3, 4)]))
def test_tie_rule(backend, seed, shape):
    check_tie_rule(backend, np.random.default_rng(seed).integers(0, 3, shape) / 2.0)


@pytest.mark.asks("routers.base.balanced_assignment")
@given(seed=seeds, shape=st.sampled_from([(5, 3, 2), (3, 4, 2), (4, 4, 3), (2, 5, 3)]))
def test_tie_rule_of_sets(backend, seed, shape):
    check_tie_rule(backend, np.random.default_rng(seed).integers(0, 3, shape[:2]) / 2.0, shape[2])


@pytest.mark.asks("routers.base.balanced_assignment")
@given(drawn=scores(shapes=((13, 3), (6, 8))), k=ks, seed=seeds, precision=precisions)
def test_padding(backend, drawn, k, seed, precision):
    """Real tokens get the result without padding. Padded tokens get experts 0, 1, ... and count nowhere."""
    k = min(k, drawn.values.shape[1])
    values, mask = padded(drawn, seed, 1e6)
    alone = reference.balanced_assignment(values[mask], k)
    what = f"balanced_assignment, {drawn.family} {values.shape}, k {k}, {precision}, mask {mask.astype(int).tolist()}"
    expert = np.tile(np.arange(k), (len(mask), 1))
    expert[mask] = alone.expert
    for found in (
        run(backend, ASSIGNMENT, precision, values, traced={"mask": mask}, k=k),
        reference.balanced_assignment(values, k, mask=mask),
    ):
        assert_same(found.expert, expert, what=f"{what}: expert")
        found = found._replace(expert=np.asarray(found.expert)[mask])
        check_certificate(values[mask], found, precision, what, k)


@pytest.mark.asks("routers.base.balanced_assignment")
def test_everybody_everywhere(backend):
    """At k = E there is no choice, and prices are 0."""
    drawn = draw_scores("random", (13, 3), 1.0, 0)
    values = drawn.values
    for found in (run(backend, ASSIGNMENT, "float32", values, k=3), reference.balanced_assignment(values, 3)):
        assert_same(found.expert, largest(drawn.values, 3), what="k = E: expert")
        assert_same(found.prices, np.zeros(3), what="k = E: prices")


@pytest.mark.asks("routers.base.dual_bound")
@given(drawn=scores(), seed=seeds, precision=precisions)
def test_dual_bound(backend, drawn, seed, precision):
    check_dual_bound(backend, drawn, seed, precision)


@pytest.mark.asks("routers.base.balanced_assignment")
@given(drawn=scores(families=("lattice", "integer", "tied"), scales=(1.0,)), seed=seeds, k=st.integers(1, 2))
def test_symmetries(backend, drawn, seed, k):
    """Shifted rows and permuted experts change no optimum. Both signs of zero are equal."""
    random = np.random.default_rng(seed)
    values = drawn.values
    k = min(k, values.shape[1])
    shift = random.integers(-8, 8, (len(values), 1)) / 4
    found = run(backend, ASSIGNMENT, "float32", values, k=k)
    for name, moved in (("shifted rows", values + shift), ("other zeros", np.where(values == 0, -values, values))):
        assert_same(run(backend, ASSIGNMENT, "float32", moved, k=k).expert, found.expert, what=name)
    rows, columns = random.permutation(len(values)), random.permutation(values.shape[1])
    for name, moved in (("permuted tokens", values[rows]), ("permuted experts", values[:, columns])):
        assert_same(run(backend, ASSIGNMENT, "float32", moved, k=k).objective, found.objective, what=name)


@pytest.mark.asks("routers.base.balanced_assignment", "routers.base.base_router")
@given(
    drawn=scores(shapes=((1, 1), (6, 8), (13, 3))),
    precision=precisions,
    gate=st.sampled_from(("sigmoid", "softmax")),
    training=st.booleans(),
    k=st.integers(1, 2),
)
def test_router(backend, drawn, precision, gate, training, k):
    check_router(backend, drawn, precision, gate, training, k)


@pytest.mark.asks("routers.base.base_router")
@pytest.mark.parametrize("k", [1, 2])  # many solvers are for k = 1 alone
def test_tokens_that_prefer_one_expert(backend, k):
    """The number of experts does not divide that of tokens, so capacities and least loads differ. The last scores are
    equal in float16."""
    for seed, shape in enumerate([(13, 3)] * 6 + [(62, 3)] * 2):  # many tokens, whose small differences count
        drawn = draw_scores("random", shape, 1.0, seed)
        drawn = drawn._replace(values=drawn.values + np.array([2.0, 0.0, -1.0]))
        check_router(backend, drawn, "float32", "sigmoid", True, k)
    near = 8 + draw_scores("integer", (13, 3), 2.0**-12, 0).values
    check_router(backend, Scores(near, "near"), "float32", "sigmoid", True, k)


@pytest.mark.asks("routers.base.base_router")
@given(drawn=scores(families=("random", "tied")), k=st.integers(1, 2))
def test_held(backend, drawn, k):
    k = min(k, drawn.values.shape[1])
    with np.errstate(over="ignore"):
        held = reference.base_router(drawn.values, k)
        fresh = reference.base_router(-drawn.values, k, held=held)
    traced = {"held": backend.notation.Routing(*held)}
    found = run(backend, ROUTER, "float64", -drawn.values, traced=traced, k=k)
    assert_held(found, held, "float64", what="base_router")
    scale = UNIT["float64"] * (2 + np.abs(drawn.values).max()) * fresh.gate + np.finfo("float64").tiny
    assert_close_bounded("base.gate", found.gate, fresh.gate, scale, what="base_router: gate of what is held")


def gate_sum(point, weights, mask, router, gate, training, k):
    """Return Σ weights · gate, with the router's own selection."""
    return (router(point["logits"], k, gate=gate, training=training, mask=mask).gate * weights).sum()


def check_gate_gradient(backend, gate: str, training: bool, seed: int, k: int = 1, padding: float = 0.0) -> None:
    values, mask = padded(draw_scores("random", (13, 3), 1.0, seed), seed, padding)
    random = np.random.default_rng(seed)
    weights, direction = random.standard_normal((len(values), k)), {"logits": random.standard_normal(values.shape)}
    held = reference.base_router(values, k, training=training, mask=mask)

    def value(point):
        return float((reference.base_router(point["logits"], k, gate=gate, held=held, mask=mask).gate * weights).sum())

    options = dict(router=backend.routers.base.base_router, gate=gate, training=training, k=k)
    found = gradient(gate_sum, {"logits": values}, weights, mask, **options)
    padding = found["logits"][~mask]
    assert_same(padding, np.zeros_like(padding), what="gradient into padding")
    what, scale = f"gradient of gates, {values.shape}, k {k}, {gate}", np.abs(weights).sum()
    assert_derivative("base.gradient", found, value, {"logits": values}, direction, scale, what=what)


@pytest.mark.asks("routers.base.base_router")
@pytest.mark.parametrize("training", [True, False])
@given(seed=seeds, gate=st.sampled_from(("sigmoid", "softmax")))
def test_gate_gradient(backend, training, seed, gate):
    check_gate_gradient(backend, gate, training, seed, k=1 + training)


@pytest.mark.asks("routers.base.base_router")
def test_no_gradient_into_padding_that_is_not_a_number(backend):
    check_gate_gradient(backend, "softmax", True, 0, k=2, padding=np.nan)


def assignment_sum(point, weights, assignment):
    found = assignment(point["scores"])
    return found.objective + (found.prices * weights).sum() + found.gap


@pytest.mark.asks("routers.base.balanced_assignment")
def test_no_gradient_through_the_assignment(backend):
    values = draw_scores("random", (8, 2), 1.0, 0).values
    options = dict(assignment=backend.routers.base.balanced_assignment)
    found = gradient(assignment_sum, {"scores": values}, np.ones(2), **options)
    assert_same(found["scores"], np.zeros((8, 2)), what="gradient through balanced_assignment")


@pytest.mark.asks("routers.base.base_router")
@given(drawn=scores(shapes=((1, 4), (13, 3))), k=st.integers(1, 2))
def test_evaluation(backend, drawn, k):
    """In evaluation, other tokens do not change the experts and gates of a token."""
    values = drawn.values
    together = run(backend, ROUTER, "float32", values, training=False, k=k)
    alone = run(backend, ROUTER, "float32", values[::-1].copy(), training=False, k=k)
    assert_same(alone.expert[::-1], together.expert, what="evaluation in another order: expert")
    assert_nearly_same(alone.gate[::-1], together.gate, what="evaluation in another order: gate")
    assert_same(together.expert, largest(values, k), what="evaluation takes the largest logits")


@pytest.mark.asks("routers.base.base_router")
@pytest.mark.twin
def test_a_group_of_padding(backend):
    found = run(backend, ROUTER, "float32", np.zeros((4, 2)), traced={"mask": np.zeros(4, bool)})
    assert np.isnan(found.residual) and not found.gate.any() and not found.plan.any()
