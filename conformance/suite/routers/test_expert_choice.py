"""Expert choice: tokens up to rounding, gates and outputs by formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import BOUNDS, UNIT, bound_in
from routelaws.conformance.compare import (
    assert_admissible_top_k,
    assert_close_bounded,
    assert_derivative,
    assert_held,
    assert_nearly_same,
    assert_same,
)
from routelaws.conformance.engine.backends import Broken
from routelaws.conformance.engine.harness import gradient, run, run_varied
from routelaws.conformance.suite.routers.test_top_k import unit_of
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference.experts import expert_ffn
from routelaws.reference.notation import ExpertChoice
from routelaws.reference.routers import expert_choice as reference

ROUTER, FFN = "routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn"
SHAPE = (7, 4)
"""(T, E); E does not divide T."""

FACTORS = (0.5, 2.0)

scores = st.sampled_from(reference.SCORES)


def check_choice(backend, drawn: Logits, precision: str, factor: float, score: str, jit: bool = False) -> None:
    """Check the tokens up to rounding, and the counts. Then hold the reference's choice and check the gates."""
    z, options = drawn.values, dict(capacity_factor=factor, score=score)
    what = f"expert_choice_router, {drawn.family} {z.shape}, {options}, {precision}"
    found = run_varied(backend, ROUTER, precision, z, jit=jit, **options)
    wanted = reference.expert_choice_router(z, **options)
    capacity = min(len(z), -int(-factor * len(z) // z.shape[1])) if np.isfinite(factor) else len(z)
    assert found.token.shape == wanted.token.shape == (z.shape[1], capacity), f"{what}: shape {found.token.shape}"
    compared = reference.selection_scores(z, score).T
    # The router compares logits instead of sigmoids, so both twins order the same floats, ties included.
    if score == "sigmoid":
        assert_same(found.token, wanted.token, what=f"{what}: token")
    margin = BOUNDS["expert_choice.score"].limit * unit_of(z, precision).max()
    assert_admissible_top_k(found.token, compared, margin, what=what)
    counts = np.bincount(np.asarray(found.token).ravel(), minlength=len(z))
    assert_same(found.experts_per_token, counts, what=f"{what}: experts_per_token")
    counts = np.bincount(wanted.token.ravel(), minlength=len(z))
    assert_same(wanted.experts_per_token, counts, what=f"reference, {what}: experts_per_token")
    own = wanted._replace(token=np.asarray(found.token))
    check_gates(found, reference.expert_choice_router(z, held=own, **options), z, precision, what)

    held = backend.notation.ExpertChoice(*wanted)
    found = run_varied(backend, ROUTER, precision, z, traced={"held": held}, jit=jit, **options)
    assert_held(found, wanted, precision, fields=("token", "experts_per_token"), what=what)
    check_gates(found, wanted, z, precision, f"held, {what}")


def check_gates(found, wanted: ExpertChoice, z, precision: str, what: str) -> None:
    scale = unit_of(z, precision)[:, 0][wanted.token] * wanted.gate + np.finfo(precision).tiny
    assert_close_bounded("expert_choice.gate", found.gate, wanted.gate, scale, what=f"{what}: gate")


@pytest.mark.asks("routers.expert_choice.expert_choice_router", "routers.expert_choice.selection_scores")
@given(drawn=logits(shapes=(SHAPE,)), precision=precisions, factor=st.sampled_from(FACTORS), score=scores)
def test_choice(backend, drawn, precision, factor, score):
    check_choice(backend, drawn, precision, factor, score)


@pytest.mark.asks("routers.expert_choice.expert_choice_router", "routers.expert_choice.selection_scores")
@pytest.mark.parametrize("num_tokens, num_experts", [(1, 4), (5, 1)])
def test_choice_of_other_shapes(backend, num_tokens, num_experts):
    z = np.random.default_rng(num_experts).standard_normal((num_tokens, num_experts)).astype(np.float32)
    check_choice(backend, Logits(z.astype(float), "free", 1), "float32", 1.0, "softmax", True)


@pytest.mark.asks("routers.expert_choice.expert_choice_router")
def test_ties(backend):
    """Equal logits go to the lower token indices, also for zeros of both signs."""
    z = np.zeros(SHAPE)
    z[::2] = -0.0
    for score in reference.SCORES:
        wanted = np.tile(np.arange(4), (4, 1))
        assert_same(reference.expert_choice_router(z, 2.0, score=score).token, wanted, what="reference, ties")
        found = run_varied(backend, ROUTER, "float32", z, capacity_factor=2.0, score=score)
        assert_same(found.token, wanted, what=f"expert_choice_router, ties, {score}")


@pytest.mark.asks("routers.expert_choice.expert_choice_router")
@given(
    drawn=logits(families=("lattice", "tied"), shapes=(SHAPE,)),
    precision=precisions,
    factor=st.sampled_from([2.0, float("inf")]),
    seed=seeds,
)
def test_padding(backend, drawn, precision, factor, seed):
    """Four real tokens of seven give the choice without padding. Empty slots repeat the first token with gate 0.

    The sigmoid makes ties and order follow the logits.
    """
    mask, z = np.random.default_rng(seed).permutation(7) < 4, drawn.values
    real, padded = np.flatnonzero(mask), np.where(mask[:, None], z, np.nan)
    options = dict(capacity_factor=factor, score="sigmoid")
    alone = reference.expert_choice_router(z[mask], **options)
    taken, columns = alone.token.shape[1], reference.expert_choice_router(z, **options).token.shape[1]
    token = np.repeat(real[alone.token[:, :1]], columns, axis=1)
    token[:, :taken] = real[alone.token]
    counts = np.zeros(7, int)
    counts[mask] = alone.experts_per_token
    ours = reference.expert_choice_router(padded, mask=mask, **options)
    again = reference.expert_choice_router(padded, mask=mask, held=ours, **options)
    held = {"held": backend.notation.ExpertChoice(*ours)}
    found, kept = (
        run_varied(backend, ROUTER, precision, padded, traced={"mask": mask} | more, **options) for more in ({}, held)
    )
    what = f"expert_choice_router with 4 of 7 real, {drawn.family}, c {factor}, {precision}"
    scale = unit_of(z, precision)[mask, 0][alone.token] * alone.gate + np.finfo(precision).tiny
    for name, choice in (("", found), ("held, ", kept), ("reference, ", ours), ("reference, held, ", again)):
        assert_same(choice.token, token, what=f"{name}{what}: token")
        assert_same(choice.experts_per_token, counts, what=f"{name}{what}: experts_per_token")
        gate = np.asarray(choice.gate)
        assert_same(gate[:, taken:], np.zeros((4, columns - taken)), what=f"{name}{what}: gates of empty places")
        assert_close_bounded("expert_choice.gate", gate[:, :taken], alone.gate, scale, what=f"{name}{what}: gate")


def padded_output(point, mask, router, ffn):
    return ffn(point["params"], point["x"], router(point["logits"], 1.0, mask=mask)).sum()


@pytest.mark.asks("routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn")
def test_padding_gradient(backend):
    """NaN in the padding changes neither outputs nor gradients."""
    params, x = weights(3, 4)
    z, mask = np.random.default_rng(1).standard_normal(SHAPE), np.array([0, 1, 1, 0, 1, 0, 1])
    module = backend.routers.expert_choice
    found = []
    for fill in (0.0, np.nan):
        padded = {"logits": np.where(mask[:, None] > 0, z, fill), "x": np.where(mask[:, None] > 0, x, fill)}
        options = dict(router=module.expert_choice_router, ffn=module.expert_choice_ffn)
        found.append(gradient(padded_output, padded | {"params": params}, mask, **options))
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        assert_nearly_same(theirs, ours, what="gradient of expert choice beside padding")
    assert_same(found[1]["logits"][mask == 0], np.zeros((3, 4)), what="gradient of the logits in the padding")


@pytest.mark.asks("routers.expert_choice.expert_choice_router")
def test_tiny_probabilities_are_told_apart(backend):
    """Probabilities exp(-200) and exp(-201) are both 0 in 32 bits. Their logarithms are not."""
    z = np.zeros(SHAPE)
    z[:, 0] = [-200, -300, -201, -250, -400, -199, -500]
    found = run_varied(backend, ROUTER, "float32", z, capacity_factor=2.0, score="softmax")
    assert_same(found.token[0], [5, 0, 2, 3], what="expert_choice_router of tiny probabilities")


def weights(seed: int, num_experts: int, precision: str = "float64"):
    """Return experts with d = 3 and f = 5, and x [7, 3], exact in the precision."""
    random = np.random.default_rng(seed)
    shapes = {"up": (num_experts, 3, 5), "down": (num_experts, 5, 3)}
    params = {name: random.standard_normal(shape).astype(precision).astype(float) for name, shape in shapes.items()}
    return params, random.standard_normal((7, 3)).astype(precision).astype(float)


def size_of(params, x):
    """Return [E, T], the sum of the absolute terms of each expert's output, largest over d."""
    return np.array(
        [
            (np.abs(x) @ np.abs(up) @ np.abs(down)).max(axis=1)
            for up, down in zip(params["up"], params["down"], strict=True)
        ]
    )


def check_ffn(backend, factor: float, precision: str, seed: int) -> None:
    params, x = weights(seed, 4, precision)
    z = np.random.default_rng(seed + 1).standard_normal(SHAPE).astype(precision).astype(float)
    choice = reference.expert_choice_router(z, factor)
    choice = choice._replace(gate=choice.gate.astype(precision).astype(float))
    mask = np.zeros((4, 7))
    for e in range(4):
        mask[e, choice.token[e]] = choice.gate[e]
    outputs = np.array([expert_ffn(params["up"][e], params["down"][e], x) for e in range(4)])  # [E, T, d]
    wanted = np.einsum("et,etd->td", mask, outputs)
    scale = UNIT[precision] * (mask * size_of(params, x)).sum(axis=0)[:, None]
    what = f"expert_choice_ffn, factor {factor}, {precision}"
    exact = scale * UNIT["float64"] / UNIT[precision]
    ours = reference.expert_choice_ffn(params, x, choice)
    assert_close_bounded("expert_choice.ffn", ours, wanted, exact, what=f"reference, {what}")
    found = run(backend, FFN, precision, params, x, backend.notation.ExpertChoice(*choice))
    assert_close_bounded(bound_in("expert_choice.ffn", precision), found, wanted, scale, what=what)
    idle = choice.experts_per_token == 0
    assert_same(np.asarray(found)[idle], np.zeros((idle.sum(), 3)), what=f"{what}: tokens that nobody took")


@pytest.mark.asks(
    "experts.expert_ffn", "routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn"
)
@given(factor=st.sampled_from([0.5, 2.0]), precision=precisions, seed=st.integers(0, 99))
def test_ffn(backend, factor, precision, seed):
    check_ffn(backend, factor, precision, seed)


@pytest.mark.asks(
    "experts.expert_ffn", "routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn"
)
def test_one_expert_is_the_dense_layer(backend):
    params, x = weights(2, 1, "float32")
    dense = run(backend, "experts.expert_ffn", "float32", params["up"][0], params["down"][0], x)
    choice = run(backend, ROUTER, "float32", x[:, :1], capacity_factor=1.0)
    assert_same(choice.gate, np.ones((1, 7)), what="gates of one expert")
    found = run(backend, FFN, "float32", params, x, choice)
    scale = UNIT["float32"] * size_of(params, x)[0][:, None]
    assert_close_bounded("expert_choice.ffn", found, np.asarray(dense, float), scale, what="E = 1 and the dense layer")


def weighted_gates(point, weights, router, score):
    """Return Σ weights · gate, with a weight for each token and expert, so the order of the tokens does not matter."""
    choice = router(point["logits"], 1.0, score=score)
    return (choice.gate * weights[choice.token, np.arange(len(choice.token))[:, None]]).sum()


@pytest.mark.asks("routers.expert_choice.expert_choice_router")
@pytest.mark.parametrize("score", reference.SCORES)
def test_gradient_of_gates(backend, score):
    z, weights, direction = np.random.default_rng(0).standard_normal((3, *SHAPE))
    held = reference.expert_choice_router(z, 1.0, score=score)

    def value(at):
        return weighted_gates(at, weights, functools.partial(reference.expert_choice_router, held=held), score)

    router = backend.routers.expert_choice.expert_choice_router
    found = gradient(weighted_gates, {"logits": z}, weights, router=router, score=score)
    if not np.any(found["logits"]):
        raise Broken(ROUTER, "no gradient", f"gives the logits the gradient 0 through its gates, score {score}")
    what, scale = f"expert_choice_router, gradient of the gates, {score}", np.abs(weights).sum()
    along = {"logits": direction}
    assert_derivative("expert_choice.gradient", found, value, {"logits": z}, along, scale, what=what)


def weighted_output(point, weights, x, router, ffn, score):
    """Return Σ weights · output as a function of logits and experts, with the router's own choice."""
    return (ffn(point["params"], x, router(point["logits"], 1.0, score=score)) * weights).sum()


def check_gradient(backend, score: str, seed: int) -> None:
    params, x = weights(seed, 4)
    random = np.random.default_rng(seed)
    point = {"logits": random.standard_normal(SHAPE), "params": params}
    direction = {"logits": random.standard_normal(SHAPE), "params": weights(seed + 1, 4)[0]}
    outward = random.standard_normal(x.shape)
    held = reference.expert_choice_router(point["logits"], 1.0, score=score)

    def value(at):
        choice = reference.expert_choice_router(at["logits"], 1.0, score=score, held=held)
        return float((reference.expert_choice_ffn(at["params"], x, choice) * outward).sum())

    module = backend.routers.expert_choice
    options = dict(router=module.expert_choice_router, ffn=module.expert_choice_ffn, score=score)
    found = gradient(weighted_output, point, outward, x, **options)
    what, scale = f"gradient of expert choice, {score}", np.abs(outward).max() * size_of(params, x).sum()
    assert_derivative("expert_choice.gradient", found, value, point, direction, scale, what=what)


@pytest.mark.asks("routers.expert_choice.expert_choice_router", "routers.expert_choice.expert_choice_ffn")
@pytest.mark.parametrize("score", reference.SCORES)
def test_gradient(backend, score):
    for seed in range(3):
        check_gradient(backend, score, seed)


@pytest.mark.asks("routers.expert_choice.group_by_position", "routers.expert_choice.ungroup_by_position")
def test_groups(backend):
    x = np.arange(6 * 2 * 3).reshape(6, 2, 3)
    for module in (backend.routers.expert_choice, reference):
        groups = module.group_by_position(jnp.asarray(x) if module is not reference else x, 3)
        wanted = [x[[0, 1, 2], 0], x[[0, 1, 2], 1], x[[3, 4, 5], 0], x[[3, 4, 5], 1]]
        assert_same(groups, wanted, what="group_by_position")
        assert_same(module.ungroup_by_position(groups, 2), x, what="ungroup_by_position")
