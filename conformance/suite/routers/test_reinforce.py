"""RL-R: policy, draw and log-probability by formula, the loss with `held_advantage`, and unbiased estimates.

The expectation of the estimator is a sum over all draws of experts, with rewards from a table, without sampling.
"""

import functools
import itertools

import jax
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
    assert_same,
)
from routelaws.conformance.engine.harness import (
    gradient,
    precisions_of,
    random_direction,
    run,
    run_varied,
)
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference.notation import Routing
from routelaws.reference.routers import reinforce as reference

ROUTER, POLICY, LOG_PROBABILITY, ENTROPY, TERMS, VALUE, TO_GO = (
    f"routers.reinforce.{name}"
    for name in (
        "reinforce_router",
        "log_policy",
        "log_probability",
        "policy_entropy",
        "policy_terms",
        "state_value",
        "reward_to_go",
    )
)
SHAPES = ((7, 4),)
"""(T, E); E does not divide T."""

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

OTHERS = ((1, 4), (5, 1), slow((2, 8)))
"""One token, one expert, more experts than tokens."""

nuclei = st.sampled_from([1.0, 0.9, 0.5, 0.2])


def unit_of(z: np.ndarray, precision: str) -> np.ndarray:
    """Return [T], the error of the logarithm of a probability of each token: u per unit of its terms."""
    spread = np.abs(z - z.max(axis=1, keepdims=True)).max(axis=1)
    return UNIT[precision] * (4 + spread + np.abs(z).max(axis=1))


def clear_nucleus(z: np.ndarray, nucleus: float) -> float:
    """Return a nucleus near the given one that is far from every partial sum of probabilities."""
    sums = np.cumsum(np.sort(np.exp(reference.log_policy(z)), axis=1)[:, ::-1], axis=1)
    near = 2 * BOUNDS["reinforce.policy"].limit * unit_of(z, "float32").max()
    while nucleus < 1 and np.abs(sums - nucleus).min() <= near:
        nucleus -= near
    return nucleus


def noise(shape: tuple, seed: int) -> np.ndarray:
    """Return standard Gumbel noise, exact in float32."""
    return np.random.default_rng(seed).gumbel(size=shape).astype(np.float32).astype(float)


def random_experts(z: np.ndarray, k: int, nucleus: float, seed: int) -> np.ndarray:
    """Return experts [T, k] drawn by the reference."""
    return reference.reinforce_router(z, k, gumbel=noise(z.shape, seed), nucleus=nucleus).expert


def check_policy(backend, drawn: Logits, precision: str, nucleus: float) -> None:
    z, k = drawn.values, drawn.k
    nucleus = clear_nucleus(z, nucleus)
    what = f"log_policy, {drawn.family} {z.shape}, k {k}, nucleus {nucleus}, {precision}"
    found = np.asarray(run_varied(backend, POLICY, precision, z, k=k, nucleus=nucleus), float)
    wanted = reference.log_policy(z, k, nucleus)
    assert_same(found > -np.inf, wanted > -np.inf, what=f"{what}: nucleus")
    inside, unit = wanted > -np.inf, unit_of(z, precision)
    values = (np.where(inside, x, 0) for x in (found, wanted))
    assert_close_bounded("reinforce.policy", *values, unit[:, None], what=what)


def check_entropy(backend, drawn: Logits, precision: str, nucleus: float) -> None:
    z, k = drawn.values, drawn.k
    nucleus = clear_nucleus(z, nucleus)
    what = f"policy_entropy, {drawn.family} {z.shape}, k {k}, nucleus {nucleus}, {precision}"
    found = run_varied(backend, ENTROPY, precision, z, k=k, nucleus=nucleus)
    scale = unit_of(z, precision) * (1 + np.log(z.shape[1]))
    assert_close_bounded("reinforce.entropy", found, reference.policy_entropy(z, k, nucleus), scale, what=what)


@pytest.mark.asks("routers.reinforce.log_policy")
@given(drawn=logits(shapes=SHAPES), precision=precisions, nucleus=nuclei)
def test_policy(backend, drawn, precision, nucleus):
    check_policy(backend, drawn, precision, nucleus)


@pytest.mark.asks("routers.reinforce.policy_entropy")
@given(drawn=logits(shapes=SHAPES), precision=precisions, nucleus=nuclei)
def test_entropy(backend, drawn, precision, nucleus):
    check_entropy(backend, drawn, precision, nucleus)


@pytest.mark.asks("routers.reinforce.log_policy")
def test_nucleus_of_ties(backend):
    """Equal probabilities are exact in every precision: lower indices are in the nucleus, and the last one at 1."""
    z = np.array([[0.0, -0.0, 0.0, -0.0], [-0.0, 2.0, 0.0, 2.0], [-0.0, 0.0, -900.0, -900.0]])[[0, 1, 2, 2, 1, 0, 0]]
    for k, nucleus, wanted in (
        (1, 0.5, [[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]]),
        (1, 0.4375, [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]),
        (3, 0.5, [[1, 1, 1, 0], [1, 1, 0, 1], [1, 1, 1, 0]]),
        (1, 0.75, [[1, 1, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]),
        (1, 1.0, np.ones((3, 4))),
    ):
        wanted = np.array(wanted, bool)[[0, 1, 2, 2, 1, 0, 0]]
        for precision in precisions_of(backend):
            found = np.asarray(run_varied(backend, POLICY, precision, z, k=k, nucleus=nucleus)) > -np.inf
            assert_same(found, wanted, what=f"nucleus {nucleus} of ties, k {k}, {precision}")
        assert_same(reference.log_policy(z, k, nucleus) > -np.inf, wanted, what="reference, nucleus of ties")


def check_router(
    backend, drawn: Logits, precision: str, nucleus: float, seed: int, *, greedy: bool = False, jit: bool = False
) -> None:
    """Check the draw up to rounding, the constant gate, the policy in the plan, and the held selection."""
    z, k = drawn.values, drawn.k
    nucleus = clear_nucleus(z, nucleus)
    gumbel = None if greedy else noise(z.shape, seed)
    options, traced = dict(k=k, nucleus=nucleus), {} if greedy else {"gumbel": gumbel}
    what = f"reinforce_router, {drawn.family} {z.shape}, {options}, {'greedy' if greedy else 'drawn'}, {precision}"
    wanted = reference.reinforce_router(z, gumbel=gumbel, **options)
    found = run_varied(backend, ROUTER, precision, z, traced=traced, jit=jit, **options)
    if greedy:
        assert_same(found.expert, wanted.expert, what=f"{what}: expert")
    else:
        scores = reference.log_policy(z, k, nucleus) + gumbel
        margin = BOUNDS["reinforce.policy"].limit * (unit_of(z, precision) + UNIT[precision] * np.abs(gumbel).max())
        assert_admissible_top_k(found.expert, scores, margin, what=what)
    assert_close_bounded("reinforce.load", found.gate, wanted.gate, 4 * UNIT[precision] / k, what=f"{what}: gate")
    load = np.bincount(np.asarray(found.expert).ravel(), minlength=z.shape[1]) / found.expert.size
    assert_close_bounded("reinforce.load", found.load, load, UNIT[precision] * load * z.size, what=f"{what}: load")
    check_plan(found, wanted, z, precision, what)
    traced = {"held": backend.notation.Routing(*wanted)}
    held = run_varied(backend, ROUTER, precision, z, traced=traced, jit=jit, **options)
    assert_held(held, wanted, precision, fields=Routing._fields, what=what)


def check_plan(found, wanted, z, precision, what):
    unit = unit_of(z, precision)
    scale = unit[:, None] * wanted.plan + np.finfo(precision).tiny
    assert_close_bounded("reinforce.policy", found.plan, wanted.plan, scale, what=f"{what}: plan")
    scale = len(z) * unit.max() * (1 + wanted.residual)
    assert_close_bounded("reinforce.load", found.residual, wanted.residual, scale, what=f"{what}: residual")


@pytest.mark.asks("routers.reinforce.reinforce_router", "routers.reinforce.log_policy")
@given(drawn=logits(shapes=SHAPES), nucleus=nuclei, seed=seeds, greedy=st.booleans())
def test_router(backend, drawn, nucleus, seed, greedy):
    check_router(backend, drawn, precisions_of(backend)[-1], nucleus, seed, greedy=greedy)


@pytest.mark.asks("routers.reinforce.reinforce_router", "routers.reinforce.log_policy")
@pytest.mark.slow
@given(drawn=logits(shapes=SHAPES), nucleus=nuclei, seed=seeds, greedy=st.booleans())
def test_router_in_float64(backend, drawn, nucleus, seed, greedy):
    check_router(backend, drawn, "float64", nucleus, seed, greedy=greedy)


@pytest.mark.asks(
    "routers.reinforce.reinforce_router",
    "routers.reinforce.log_policy",
    "routers.reinforce.policy_terms",
    "transformer.loss",
)
@pytest.mark.parametrize("shape", OTHERS)
def test_other_shapes(backend, shape):
    """With all experts chosen, every order is a draw."""
    z = np.random.default_rng(0).standard_normal(shape).astype(np.float32).astype(float)
    check_router(backend, Logits(z, "free", shape[1]), "float32", 1.0, 1, jit=True)
    check_terms(backend, Logits(z, "free", shape[1]), "float32", 1.0, 1, jit=True)


@pytest.mark.asks("routers.reinforce.log_probability")
@given(drawn=logits(shapes=SHAPES), precision=precisions, nucleus=nuclei, seed=seeds)
def test_log_probability(backend, drawn, precision, nucleus, seed):
    """Compare step by step without replacement; −∞ for an expert outside the nucleus."""
    z, k = drawn.values, drawn.k
    nucleus = clear_nucleus(z, nucleus)
    what = f"log_probability, {drawn.family} {z.shape}, k {k}, nucleus {nucleus}, {precision}"
    expert = random_experts(z, k, nucleus, seed)
    found = run_varied(backend, LOG_PROBABILITY, precision, z, expert, nucleus=nucleus)
    wanted = reference.log_probability(z, expert, nucleus)
    assert_close_bounded("reinforce.log_probability", found, wanted, k * unit_of(z, precision), what=what)
    last = reference.log_policy(z, 1, nucleus).argmin(axis=1)[:, None]  # the first expert outside, if any
    outside = reference.log_probability(z, last, nucleus) == -np.inf
    found = run_varied(backend, LOG_PROBABILITY, precision, z, last, nucleus=nucleus)
    assert_same(np.asarray(found) == -np.inf, outside, what=f"{what}: outside")


@pytest.mark.asks("routers.reinforce.log_probability", "routers.reinforce.policy_terms", "transformer.loss")
def test_one_expert(backend):
    """With one expert the log-probability is log 1 and has no gradient."""
    z, expert, reward = np.array([[3.0], [-0.0], [-80.0]]), np.zeros((3, 1), int), np.array([-1.0, -2.0, -0.5])
    assert_same(run(backend, LOG_PROBABILITY, "float32", z, expert), np.zeros(3), what="log_probability, one expert")
    assert_same(reference.log_probability(z, expert), np.zeros(3), what="reference, log_probability, one expert")
    arrays = {"logits": z, "value": np.zeros(3)}, expert, reward, np.ones(3, bool)
    found = gradient(terms_loss, *arrays, precision="float32", terms=backend.routers.reinforce.policy_terms)
    assert_same(found["logits"], np.zeros((3, 1)), what="gradient with one expert")


def share_of(row: np.ndarray, chosen: tuple) -> float:
    """Return the probability of drawing these experts in order, by the definition."""
    weights, share = np.exp(row), 1.0
    for e in chosen:
        share *= weights[e] / weights.sum()
        weights[e] = 0
    return share


@pytest.mark.asks(
    "routers.reinforce.reinforce_router", "routers.reinforce.log_policy", "routers.reinforce.log_probability"
)
@pytest.mark.parametrize("k, nucleus", [(1, 1.0), (2, 0.8), slow(2, 1.0), slow(1, 0.8)])
def test_sampling(backend, k, nucleus):
    """Compare the count of each ordered choice, and the sum of squares, with the probabilities."""
    seed = k
    row, num_draws = np.log([1.0, 3.0, 2.0, 0.5]), 30_000
    z = np.tile(row, (num_draws, 1)).astype(np.float32).astype(float)
    found = run_varied(backend, ROUTER, "float32", z, traced={"gumbel": noise(z.shape, seed)}, k=k, nucleus=nucleus)
    inside = reference.log_policy(z[:1], k, nucleus)[0] > -np.inf
    outcomes = list(itertools.permutations(np.flatnonzero(inside).tolist(), k))
    drawn, times = np.unique(np.asarray(found.expert), axis=0, return_counts=True)
    counts = dict.fromkeys(outcomes, 0) | dict(zip(map(tuple, drawn.tolist()), times.tolist(), strict=True))
    assert len(counts) == len(outcomes), f"drawn from outside of the nucleus {outcomes}: {counts}"
    log_probability = reference.log_probability(z[: len(outcomes)], np.array(outcomes), nucleus)
    squares = 0.0
    for chosen, logarithm in zip(outcomes, log_probability, strict=True):
        share = share_of(np.where(inside, row, -np.inf), chosen)
        check("reinforce.log_probability", abs(np.exp(logarithm) - share), 10 * UNIT["float32"])  # z is rounded
        expected = num_draws * share
        message = f"{chosen} was drawn {counts[chosen]} times of {num_draws}, expected {expected:.0f}"
        check("reinforce.sampling", abs(counts[chosen] - expected), (expected * (1 - share)) ** 0.5, message=message)
        squares += (counts[chosen] - expected) ** 2 / expected
    freedom = len(outcomes) - 1
    check("reinforce.sampling", max(0.0, squares - freedom), (2 * freedom) ** 0.5, message="sum of squares")


def draw_terms(z: np.ndarray, seed: int) -> dict:
    """Return value and reward of each token, exact in float32."""
    random = np.random.default_rng(seed)
    drawn = {"value": random.standard_normal(len(z)) - 2, "reward": -random.exponential(2, len(z))}
    return {name: array.astype(np.float32).astype(float) for name, array in drawn.items()}


WEIGHTS = dict(policy_weight=1.5, baseline_weight=0.25, entropy_weight=0.5, balance_weight=2.0)
"""All different, so an exchange shows."""


def check_terms(
    backend, drawn: Logits, precision: str, nucleus: float, seed: int, *, jit: bool = False, **traced
) -> None:
    z, k = drawn.values, drawn.k
    nucleus = clear_nucleus(z, nucleus)
    expert, more = random_experts(z, k, nucleus, seed), draw_terms(z, seed)
    what = f"policy_terms, {drawn.family} {z.shape}, k {k}, nucleus {nucleus}, {precision}"
    arrays = z, expert, more["value"], more["reward"]
    found = run_varied(backend, TERMS, precision, *arrays, traced=traced, jit=jit, nucleus=nucleus, **WEIGHTS)
    compare_terms(found, reference.policy_terms(*arrays, nucleus=nucleus, **WEIGHTS, **traced), z, k, precision, what)


def compare_terms(found, wanted, z, k, precision, what):
    u, unit = UNIT[precision], unit_of(z, precision).max()
    size = np.abs(wanted.advantage).max() + 8  # values and rewards are a few nats
    log_probability = k * (np.abs(z).max() * 2 + np.log(z.shape[1]))
    scale = {
        "policy": size * (k * unit + 8 * u * log_probability),
        "baseline": 8 * u * size**2,
        "entropy": unit * (1 + np.log(z.shape[1])),
        "balance": unit * z.shape[1],
        "advantage": u * size,
    }
    for name, unit in scale.items():
        args = getattr(found, name), getattr(wanted, name), unit
        assert_close_bounded("reinforce.terms", *args, what=f"{what}: {name}")
    total = sum(WEIGHTS[f"{name}_weight"] * unit for name, unit in scale.items() if name != "advantage")
    assert_close_bounded("reinforce.terms", found.loss, wanted.loss, total, what=f"{what}: loss")


@pytest.mark.asks(
    "routers.reinforce.reinforce_router",
    "routers.reinforce.log_policy",
    "routers.reinforce.policy_terms",
    "transformer.loss",
)
@given(drawn=logits(shapes=SHAPES), precision=precisions, nucleus=nuclei, seed=seeds, held=st.booleans())
def test_terms(backend, drawn, precision, nucleus, seed, held):
    traced = {"held_advantage": np.arange(len(drawn.values)) / 4} if held else {}
    check_terms(backend, drawn, precision, nucleus, seed, **traced)


@pytest.mark.asks("routers.reinforce.policy_terms")
def test_hand_made_terms(backend):
    """Four tokens, two experts, π = 1/4 and 3/4, and default weights. All numbers are by hand."""
    z, expert = np.tile(np.log([[1.0, 3.0]]), (4, 1)), np.array([[0], [1], [1], [1]])
    value, reward = np.full(4, -2.0), np.array([-1.0, -2.0, -4.0, -2.0])
    log = np.log([1 / 4, 3 / 4])
    policy, baseline, balance = -(log[0] - 2 * log[1]) / 4, 5 / 4, 2 * (1 / 16 + 9 / 16)
    entropy = -(log[0] / 4 + 3 * log[1] / 4)
    wanted = (0.01 * (policy + baseline + balance), policy, baseline, entropy, balance)
    arrays = z, expert, value, reward
    found = {"float32": run(backend, TERMS, "float32", *arrays), "float64": reference.policy_terms(*arrays)}
    for precision, terms in found.items():
        what = f"policy_terms by hand, {precision}"
        assert_close_bounded("reinforce.terms", terms[:5], wanted, 16 * UNIT[precision], what=what)
        assert_same(terms.advantage, [1, 0, -2, 0], what=f"{what}: advantage")


def terms_loss(point, expert, reward, mask, terms, **options):
    return terms(point["logits"], expert, point["value"], reward, mask=mask, **options).loss


def check_gradient(backend, k: int, nucleus: float, seed: int) -> None:
    """Compare autodiff of the loss with central differences of the reference at a held advantage.

    The advantage holds the value and the reward, so a gradient through either of them shows.
    """
    random = np.random.default_rng(seed)
    z, mask = random.standard_normal((7, 4)) * 2, np.arange(7) != 3
    nucleus, more = clear_nucleus(z, nucleus), draw_terms(z, seed)
    advantage = more["reward"] - more["value"]
    expert, point = random_experts(z, k, nucleus, seed), {"logits": z, "value": more["value"]}
    direction, options = random_direction(point, seed), WEIGHTS | {"nucleus": nucleus}
    z[3], more["value"][3], more["reward"][3] = np.nan, np.inf, -np.inf  # arbitrary values in the padding
    arrays = point, expert, more["reward"], mask
    found = gradient(terms_loss, *arrays, terms=backend.routers.reinforce.policy_terms, **options)

    def value(moved):
        return terms_loss(
            moved, expert, more["reward"], mask, reference.policy_terms, held_advantage=advantage, **options
        )

    terms = reference.policy_terms(z, expert, more["value"], more["reward"], mask=mask, **options)
    scale = sum(WEIGHTS[f"{name}_weight"] * abs(getattr(terms, name)) for name in reference.PolicyTerms._fields[1:5])
    what = f"gradient of policy_terms, k {k}, nucleus {nucleus}"
    assert_derivative("reinforce.gradient", found, value, point, direction, 1 + scale, what=what)
    assert not np.any(found["logits"][3]) and found["value"][3] == 0, f"{what}: padding has a gradient"
    if seed or k == 1:  # one more compilation is enough
        return
    single = gradient(terms_loss, *arrays, terms=backend.routers.reinforce.policy_terms, precision="float32", **options)
    for name in ("logits", "value"):
        scale = unit_of(z[mask], "float32").max() * np.abs(found[name]).max()
        assert_close_bounded("reinforce.gradient_float32", single[name], found[name], scale, what=f"{what}: {name}")


@pytest.mark.asks(
    "routers.reinforce.reinforce_router",
    "routers.reinforce.log_policy",
    "routers.reinforce.policy_terms",
    "transformer.loss",
)
@pytest.mark.parametrize("k, nucleus", [slow(1, 1.0), (2, 0.7)])
def test_gradient(backend, k, nucleus):
    for seed in range(2):
        check_gradient(backend, k, nucleus, seed)


def reward_sum(point, expert, value, terms):
    return (
        terms(point["logits"], expert, value, point["reward"]).loss
        + terms(point["logits"], expert, value, value, held_advantage=point["advantage"]).loss
    )


def routing_sum(point, router, k, nucleus):
    found = router(point["logits"], k, gumbel=point["gumbel"], nucleus=nucleus)
    return found.gate.sum() + (found.plan**2).sum() + found.residual


@pytest.mark.asks("routers.reinforce.reinforce_router", "routers.reinforce.policy_terms", "transformer.loss")
def test_what_has_no_gradient(backend):
    """A reward and a held advantage have gradient 0. So has a held routing, because the gate is constant."""
    z = np.random.default_rng(0).standard_normal((7, 4))
    expert, more = random_experts(z, 1, 1.0, 0), draw_terms(z, 0)
    module = backend.routers.reinforce
    point = {"logits": z, "reward": more["reward"], "advantage": np.arange(7.0)}
    found = gradient(reward_sum, point, expert, more["value"], terms=module.policy_terms)
    for name in ("reward", "advantage"):
        assert_same(found[name], np.zeros(7), what=f"gradient into the {name}")
    found = gradient(
        routing_sum, {"logits": z, "gumbel": noise(z.shape, 0)}, router=module.reinforce_router, k=2, nucleus=0.9
    )
    for name in ("logits", "gumbel"):
        assert_same(found[name], np.zeros((7, 4)), what=f"gradient of a routing with respect to the {name}")


def value_sum(point, weights, state_value):
    return (state_value(point["params"], point["x"]) * weights).sum()


def check_state_value(backend, seed: int) -> None:
    """Compare the network with loops, its gradient by the weights, and gradient 0 by x."""
    random = np.random.default_rng(seed)
    params = {"hidden": random.standard_normal((4, 3)), "out": random.standard_normal(3)}
    x, weights = random.standard_normal((5, 4)), random.standard_normal(5)
    params, x = jax.tree.map(lambda leaf: leaf.astype(np.float32).astype(float), (params, x))
    wanted = [sum(max(0.0, float(row @ params["hidden"][:, j])) * params["out"][j] for j in range(3)) for row in x]
    scale = np.abs(x) @ np.abs(params["hidden"]) @ np.abs(params["out"])
    assert_close_bounded(
        "reinforce.value",
        reference.state_value(params, x),
        wanted,
        UNIT["float64"] * scale,
        what="reference, state_value",
    )
    for precision in precisions_of(backend):
        found = run(backend, VALUE, precision, params, x)
        assert_close_bounded("reinforce.value", found, wanted, UNIT[precision] * scale, what="state_value")
    found = gradient(value_sum, {"params": params, "x": x}, weights, state_value=backend.routers.reinforce.state_value)
    assert_same(found["x"], np.zeros((5, 4)), what="gradient of the baseline into the states")
    direction = random_direction(params, seed)

    def value(moved):
        return value_sum({"params": moved, "x": x}, weights, reference.state_value)

    options = dict(what="state_value", step=2.0**-14)
    scale = np.abs(weights) @ scale
    assert_derivative("reinforce.gradient", found["params"], value, params, direction, scale, **options)


@pytest.mark.asks("routers.reinforce.state_value")
def test_state_value(backend):
    for seed in range(3):
        check_state_value(backend, seed)


@pytest.mark.asks("routers.reinforce.reward_to_go")
def test_reward_to_go(backend):
    """Sums of integers are exact."""
    reward = np.array([[[1, 2, 4, 8, 0, -1], [0, 0, 5, 0, 0, 3]]] * 3, float)
    wanted = np.array([[[14, 13, 11, 7, -1, -1], [8, 8, 8, 3, 3, 3]]] * 3, float)
    rough = np.random.default_rng(0).standard_normal(reward.shape)
    for precision in precisions_of(backend):
        assert_same(run(backend, TO_GO, precision, reward), wanted, what=f"reward_to_go, {precision}")
        given = rough.astype(precision).astype(float)
        scale = UNIT[precision] * np.abs(given).sum(axis=-1, keepdims=True)
        found = run(backend, TO_GO, precision, given)
        assert_close_bounded("reinforce.to_go", found, reference.reward_to_go(given), scale, what="reward_to_go")
    assert_same(reference.reward_to_go(reward), wanted, what="reference, reward_to_go")
