import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import PRECISIONS, gradient, precisions_of, run_varied
from routelaws.conformance.suite.routers.test_top_k import TOP_K, unit_of
from routelaws.reference.routers import top_k as reference

FORMS = (
    dict(k=3, score="sigmoid", normalisation="sum", expert_groups=4, groups_per_token=2, gate_scale=2.5),
    dict(k=2, expert_groups=4, groups_per_token=1),
    dict(k=3, normalisation="softmax", expert_groups=2, groups_per_token=1, group_score="best"),
    dict(k=2, score="sigmoid", expert_groups=2, groups_per_token=1),
    dict(k=2, expert_groups=4, groups_per_token=2, group_score="best"),
)
"""DeepSeek-V3's options; as many experts as the group has; groups of four by their best expert, by their two best;
DeepSeek-V2's options."""
CLEAR = np.array([0.5, -3.0, 2.0, -1.5, -2.25, 1.25, -0.25, -4.0])
"""Logits with well-separated scores, sums of two scores, and sums with a bias in eighths."""
BIASES = (None, np.array([0.25, -0.5, 0.0, 0.125, -0.25, 0.375, 0.0, -0.125]), -np.arange(1.0, 9.0) / 4)
"""The last bias makes every sum negative."""


def by_definition(scores, k, expert_groups, groups_per_token, group_score) -> tuple[list, float]:
    """Return the experts of one token and their margin, by trying every choice of groups."""
    groups = np.split(np.arange(len(scores)), expert_groups)
    worth = [sorted(scores[group])[::-1][: 2 if group_score == "two_best" else 1] for group in groups]
    options = itertools.combinations(range(expert_groups), groups_per_token)
    totals = sorted(((sum(sum(worth[g]) for g in option), option) for option in options), reverse=True)
    inside = sorted((e for g in totals[0][1] for e in groups[g]), key=lambda e: -scores[e])
    margins = [scores[a] - scores[b] for a, b in itertools.pairwise(inside[: k + 1])]
    return inside[:k], min([totals[0][0] - totals[1][0], *margins])


def chosen_by_definition(z, bias, options) -> tuple[np.ndarray, np.ndarray]:
    """Return the experts [T, k] of logits [T, E], and the margin of each token."""
    groups = {name: options[name] for name in ("k", "expert_groups", "groups_per_token")}
    groups["group_score"] = options.get("group_score", "two_best")
    scores = 1 / (1 + np.exp(-z)) if options.get("score") == "sigmoid" else reference.softmax(z)
    rows = [by_definition(row, **groups) for row in (scores if bias is None else scores + bias)]
    return np.array([experts for experts, _ in rows]), np.array([margin for _, margin in rows])


@pytest.mark.asks("routers.top_k.top_k_router")
@given(
    form=st.sampled_from(FORMS),
    bias=st.sampled_from(range(len(BIASES))),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 2**32 - 1),
)
@example(form=FORMS[1], bias=0, precision=PRECISIONS[1], seed=1)  # the best experts would choose other groups
@example(form=FORMS[4], bias=0, precision=PRECISIONS[1], seed=1)
@example(form=FORMS[3], bias=0, precision=PRECISIONS[1], seed=1)  # the sum of four experts would choose other groups
def test_groups(backend, form, bias, precision, seed):
    """Tokens close to a tie get clear logits instead."""
    z, bias = 2 * np.random.default_rng(seed).standard_normal((7, 8)).astype(np.float32).astype(float), BIASES[bias]
    _, margin = chosen_by_definition(z, bias, form)
    z = np.where(margin[:, None] > 64 * unit_of(z, precision), z, CLEAR)
    wanted, _ = chosen_by_definition(z, bias, form)
    what = f"top_k_router, {form}, bias {bias is not None}, {precision}"
    ours = reference.top_k_router(z, bias=bias, **form)
    assert_same(ours.expert, wanted, what=f"reference, {what}: expert")
    gates = reference.chosen_gates(z, wanted, form.get("score", "softmax"), form.get("normalisation", "none"))
    gates = form.get("gate_scale", 1) * gates
    traced = {} if bias is None else {"bias": bias}
    held = {"held": backend.notation.Routing(*ours)}
    for more in ({}, held):
        found = run_varied(backend, TOP_K, precision, z, traced=traced | more, **form)
        assert_same(found.expert, wanted, what=f"{what}, held {bool(more)}: expert")
        scale = unit_of(z, precision) * gates + np.finfo(precision).tiny
        assert_close_bounded("top_k.gate", found.gate, gates, scale, what=f"{what}, held {bool(more)}: gate")


@pytest.mark.asks("routers.top_k.top_k_router")
def test_ties_of_groups(backend):
    """Scores of 1/2 are exact in every precision: the lower groups and experts win, and gates are scaled."""
    z, bias = np.tile([0.0, -0.0, 0, 0, -0.0, 0], (7, 1)), np.array([0, 0, 0.25, 0, 0.25, 0])
    for precision in precisions_of(backend):
        for more, wanted in (({}, [0, 1, 2]), ({"bias": bias}, [2, 4, 3])):
            options = dict(k=3, score="sigmoid", expert_groups=3, groups_per_token=2, gate_scale=2.5)
            found = run_varied(backend, TOP_K, precision, z, traced=more, **options)
            assert_same(found.expert, [wanted] * 7, what=f"top_k_router of tied groups, bias {bool(more)}")
            assert_same(found.gate, np.full((7, 3), 1.25), what="gates of tied groups")


AVAILABLE = np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)
"""Of four groups of two, one lacks an expert and another lacks both."""


@pytest.mark.asks("routers.top_k.top_k_router")
def test_groups_of_unavailable_experts(backend):
    """Groups stay those of the whole layer: {2, 3} is a group, although expert 1 is not available."""
    z = np.tile([9.0, 50.0, 8.0, 7.0, 50.0, 50.0, 8.5, 1.0], (7, 1))  # scores of nearly 1, or of 1
    z[3:] = np.array([-9.0, 50.0, -1.0, -2.0, 50.0, 50.0, -3.0, -0.5])
    z[5:, 0] = 9.0  # the only available expert of its group scores more than two others
    options = dict(k=2, score="sigmoid", expert_groups=4, groups_per_token=2)
    rest = [[7, 2]] * 2 + [[0, 7]] * 2
    for group_score, wanted in (("best", [[0, 6]] * 3 + rest), ("two_best", [[6, 2]] * 3 + rest)):
        options["group_score"], padded = group_score, np.where(AVAILABLE, z, -np.inf)
        what, ours = (
            f"groups of unavailable experts, {options}",
            reference.top_k_router(padded, **options),
        )
        assert_same(ours.expert, wanted, what=f"reference, {what}")
        for precision in precisions_of(backend):
            found = run_varied(backend, TOP_K, precision, padded, **options)
            assert_same(found.expert, wanted, what=f"{what}, {precision}")
            scale = unit_of(z, precision) * ours.gate
            assert_close_bounded("top_k.gate", found.gate, ours.gate, scale, what=f"{what}, {precision}")


@pytest.mark.asks("routers.top_k.top_k_router")
@pytest.mark.twin
def test_groups_that_hold_too_few(backend):
    """DeepSeek-V3's code takes unavailable experts here. The reference raises, and the fast twin returns NaN."""
    z = np.where(AVAILABLE, np.zeros((3, 8)), -np.inf)
    z[:, 0] = 9, -np.inf, 9
    with pytest.raises(ValueError, match="logits of the chosen groups: token 0 has 1 available experts"):
        reference.top_k_router(z, 2, expert_groups=4)
    found = run_varied(backend, TOP_K, "float32", z, k=2, expert_groups=4)
    assert_same(np.isnan(found.gate), [[True] * 2, [False] * 2, [True] * 2], what="gates of groups that hold too few")


def scaled_sum(point, weights, router, **options):
    return (router(point["logits"], **options).gate * weights).sum()


@pytest.mark.asks("routers.top_k.top_k_router")
def test_gradient_of_scaled_gates(backend):
    """The scale is an exact factor of the gradient if it is a power of two."""
    random = np.random.default_rng(5)
    z, weights = random.standard_normal((7, 8)), random.standard_normal((7, 3))
    router, options = backend.routers.top_k.top_k_router, FORMS[0]
    plain, scaled = (
        gradient(scaled_sum, {"logits": z}, weights, router=router, **options | dict(gate_scale=scale))["logits"]
        for scale in (1.0, 4.0)
    )
    assert_same(scaled, 4 * np.asarray(plain), what="gradient of gates times 4")
    assert (np.asarray(plain) != 0).sum() == 21
