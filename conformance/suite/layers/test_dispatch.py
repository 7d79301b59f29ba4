"""Dispatch with options. In tests with a mask, padding holds NaN, so reading it fails."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_derivative, assert_same
from routelaws.conformance.engine.harness import gradient, precisions_of, random_direction, run, run_varied
from routelaws.conformance.suite.layers.test_experts import D, ffn_scale, layer, weighted_output
from routelaws.conformance.suite.strategies import Selection, selections
from routelaws.reference import experts as reference

BFLOAT16 = "bfloat16"

orders = st.sampled_from(reference.DROP_ORDERS)


def draw_mask(seed: int, *shape: int) -> np.ndarray:
    """Return a mask with about a third of its entries False, and at least one of each value."""
    random = np.random.default_rng(seed)
    mask = random.random(shape) < 2 / 3
    first, second = random.choice(mask.size, 2, replace=False)
    mask.flat[first], mask.flat[second] = True, False
    return mask


PRIORITY = np.array([[0.1, 0.9], [0.5, 0.5], [0.5, -0.0], [0.9, 0.0]])

BY_HAND = {
    # order, mask: slots. Of four tokens, the first chooses experts 1 and 0, the others 0 and 1; C = 3
    ("token", None): [[0, 0], [1, 1], [2, 2], [3, 3]],
    # Expert 0: 0.9 of token 3, 0.9 of token 0 (its second choice), then 0.5 twice. Expert 1: both zeros are equal.
    ("priority", None): [[1, 1], [2, 0], [3, 2], [0, 3]],
    ("choice", "tokens"): [[0, 2], [3, 3], [0, 1], [1, 2]],  # token 1 asks for no slot
    ("token", "tokens"): [[0, 0], [3, 3], [1, 1], [2, 2]],
    ("priority", "choices"): [[0, 3], [1, 3], [2, 1], [0, 2]],  # token 0 has one choice, token 1 its first
}


@pytest.mark.asks("experts.dispatch")
def test_orders_by_hand(backend):
    expert = np.array([[1, 0], [0, 1], [0, 1], [0, 1]])
    masks = {"tokens": [1, 0, 1, 1], "choices": [[1, 0], [1, 0], [1, 1], [1, 1]]}
    for (order, masked), slots in BY_HAND.items():
        priority = {"priority": PRIORITY} if order == "priority" else {}
        mask = {"mask": np.array(masks[masked], bool)} if masked else {}
        options = dict(num_experts=2, capacity=3, order=order)
        found = run_varied(backend, "experts.dispatch", "float32", expert, traced=priority | mask, **options)
        for name, placement in (
            ("dispatch", found),
            ("reference", reference.dispatch(expert, **options, **priority, **mask)),
        ):
            what = f"{name}, order {order}, mask {masked}"
            assert_same(placement.slot, slots, what=f"{what}: slot")
            assert_same(placement.kept, np.array(slots) < 3, what=f"{what}: kept")
            tokens = np.full((2, 3), 4)
            for (t, choice), slot in np.ndenumerate(slots):
                if slot < 3:
                    tokens[expert[t, choice], slot] = t
            assert_same(placement.token, tokens, what=f"{what}: token")


@pytest.mark.asks("experts.dispatch")
@given(
    selection=selections(shapes=((9, 4),)),
    capacity=st.sampled_from([1, 3]),
    order=orders,
    masked=st.sampled_from(["nothing", "tokens", "choices"]),
)
def test_dispatch_options(backend, selection, capacity, order, masked):
    expert, random = selection.expert, np.random.default_rng(selection.seed)
    traced = {}
    if order == "priority":
        traced["priority"] = random.choice([-1.0, -0.0, 0.0, 0.5, 2.0], expert.shape)
    if masked != "nothing":
        traced["mask"] = draw_mask(selection.seed, *expert.shape[: 1 if masked == "tokens" else 2])
    what = f"dispatch, {expert.shape}, {selection.loads}, C {capacity}, order {order}, {masked} masked"
    options = dict(num_experts=selection.num_experts, capacity=capacity, order=order)
    found = run_varied(backend, "experts.dispatch", "float32", expert, traced=traced, **options)
    wanted = reference.dispatch(expert, **options, **traced)
    for name in wanted._fields:
        assert_same(getattr(found, name), getattr(wanted, name), what=f"{what}: {name}")


def fate(backend, expert, order: str, priority) -> np.ndarray:
    """Return [T, k] bool, the assignments that get one of three slots of one of four experts."""
    traced = {"priority": priority} if order == "priority" else {}
    options = dict(num_experts=4, capacity=3, order=order)
    found = run_varied(backend, "experts.dispatch", "float32", expert, traced=traced, **options)
    assert_same(found.kept, reference.dispatch(expert, **options, **traced).kept, what=f"kept, order {order}")
    return np.asarray(found.kept)


@pytest.mark.asks("experts.dispatch")
def test_what_later_tokens_change(backend):
    depends = {("choice", 1): False, ("choice", 2): True, ("token", 2): False, ("priority", 1): True}
    for (order, k), wanted in depends.items():
        changed = False
        for seed in range(4):
            random = np.random.default_rng(seed)
            crowded = [0.5, 0.3, 0.1, 0.1]
            expert = np.array([random.choice(4, k, replace=False, p=crowded) for _ in range(9)])
            priority = random.random((9, k)).astype(np.float32)
            other = expert.copy()
            other[5:] = (expert[5:] + 1) % 4
            changed |= bool((fate(backend, expert, order, priority) != fate(backend, other, order, priority))[:5].any())
        assert changed == wanted, f"order {order}, k {k}: earlier tokens depend on later ones: {changed}"


@pytest.mark.asks("experts.routed_ffn")
def test_order_of_drops(backend):
    """The priority is the gate by default; its negative reverses the order."""
    random = np.random.default_rng(6)
    expert = np.array([random.permutation(4)[:2] for _ in range(9)])
    inputs = layer(Selection(expert, 4, "random", 6), "float32")
    arrays = (inputs["params"], inputs["x"], expert, inputs["gate"])
    scale = UNIT["float32"] * ffn_scale(inputs, expert)
    for priority in ({}, {"priority": -inputs["gate"]}):
        options = dict(capacity_factor=0.6, order="priority")
        found = run(backend, "experts.routed_ffn", "float32", *arrays, traced=priority, **options)
        wanted = reference.routed_ffn(*arrays, **options, **priority)
        what = f"routed_ffn, order by {'the negative gate' if priority else 'the gate'}"
        assert_close_bounded("experts.routed_ffn", found.output, wanted.output, scale, what=what)


@pytest.mark.asks("experts.routed_ffn")
@given(selection=selections(shapes=((9, 4),)), factor=st.sampled_from([math.inf, 1.0]), order=orders)
def test_padding(backend, selection, factor, order):
    """In both twins, six real tokens of nine get the same result as without padding. Padded tokens get 0."""
    precision = "float32"
    order = order if factor < math.inf else "choice"  # the order matters only with a capacity
    inputs = layer(selection, precision)
    mask = np.zeros(9, bool)
    mask[np.random.default_rng(selection.seed).choice(9, 6, replace=False)] = True
    padded = {name: np.where(mask[:, None], inputs[name], np.nan) for name in ("x", "gate")}
    expert = np.where(mask[:, None], selection.expert, np.arange(selection.expert.shape[1]))
    alone = (inputs["params"], inputs["x"][mask], expert[mask], inputs["gate"][mask])
    options = dict(capacity_factor=factor, order=order)
    wanted = reference.routed_ffn(*alone, **options)
    scale = UNIT[precision] * ffn_scale(inputs, expert)[mask]
    arrays = (inputs["params"], padded["x"], expert, padded["gate"])
    choices = np.broadcast_to(mask[:, None], expert.shape)
    for name, found in (
        ("routed_ffn", run(backend, "experts.routed_ffn", precision, *arrays, traced={"mask": mask}, **options)),
        ("reference", reference.routed_ffn(*arrays, mask=mask, **options)),
        ("reference, mask of choices", reference.routed_ffn(*arrays, mask=choices, **options)),
    ):
        what = f"{name}, 6 of 9 real, {selection.expert.shape}, {selection.loads}, c {factor}, order {order}"
        output, fraction = np.asarray(found.output, float), wanted.dropped_fraction
        assert_same(output[~mask], np.zeros((3, D)), what=f"{what}: output in the padding")
        assert_close_bounded("experts.routed_ffn", output[mask], wanted.output, scale, what=what)
        assert_close_bounded("experts.dropped", found.dropped_fraction, fraction, UNIT[precision] * fraction, what=what)


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.parametrize("num_experts, hundredths", [(3, 110), (2, 120)])
def test_capacity_of_real(backend, num_experts, hundredths):
    """All tokens choose one expert. Exactly as many as the capacity for real tokens get a slot."""
    params = {"up": np.ones((num_experts, 1, 1)), "down": np.ones((num_experts, 1, 1))}
    x, expert = np.ones((40, 1)), np.full((40, 1), num_experts - 1)
    for num_real in range(1, 41):
        mask = np.zeros(40, bool)
        mask[np.random.default_rng(num_real).choice(40, num_real, replace=False)] = True
        options = dict(traced={"mask": mask}, capacity_factor=hundredths / 100)
        found = np.asarray(run(backend, "experts.routed_ffn", "float32", params, x, expert, x, **options).output)
        wanted = min(num_real, -(-hundredths * num_real // (100 * num_experts)))  # in integers
        assert (found != 0).sum() == wanted, f"c {hundredths}/100, E {num_experts}: {num_real} real tokens"


@pytest.mark.asks("experts.routed_ffn", "routers.top_k.gshard_router")
def test_a_choice_that_is_left_out_frees_its_slot(backend):
    """GShard's router drops second experts. With its gates as the mask another token gets the slot."""
    z = np.log([[4.0, 3.0, 1.0], [3.0, 4.0, 1.0], [3.0, 1.0, 4.0]])
    params = {"up": np.ones((3, 1, 1)), "down": np.ones((3, 1, 1))}
    uniforms = np.array([0.0, 0.99, 0.0])
    routing = run(backend, "routers.top_k.gshard_router", "float32", z, uniforms)
    assert np.asarray(routing.expert).tolist() == [[0, 1], [1, 0], [2, 0]]
    gate = np.asarray(routing.gate, float)
    arrays = params, np.ones((3, 1)), np.asarray(routing.expert), gate
    outputs = []
    for traced in ({}, {"mask": gate != 0}):
        found = run(backend, "experts.routed_ffn", "float32", *arrays, traced=traced, capacity_factor=1.0)
        wanted = reference.routed_ffn(*arrays, 1.0, **traced)
        scale = UNIT["float32"] * np.ones((3, 1))
        assert_close_bounded("experts.routed_ffn", found.output, wanted.output, scale, what="routed_ffn after GShard")
        outputs.append(np.asarray(found.output).ravel())
    # Expert 0 has two slots: one for token 0, one for token 1 (which drops it) or token 2.
    assert outputs[0][2] < outputs[1][2] and outputs[0][0] == outputs[1][0], outputs


CROWDS = (300, 70_000)
"""Numbers of tokens that nearly all choose one expert: more than 8 and 16 bits can count, and than 16-bit floats
resolve.
"""


def crowd(num_tokens: int, k: int) -> np.ndarray:
    """Return experts [T, k] of three. The first choice is 1, or 0 for every hundredth token. The second is 2."""
    first = np.where(np.arange(num_tokens) % 100 == 7, 0, 1)
    return np.stack([first, np.full(num_tokens, 2)], axis=1)[:, :k]


def counted(expert: np.ndarray, turns) -> np.ndarray:
    """Return [T, k], the number of earlier assignments to the same expert, by counting."""
    before, slot = [0] * 3, np.zeros(expert.shape, int)
    for t, choice in turns:
        slot[t, choice] = before[expert[t, choice]]
        before[expert[t, choice]] += 1
    return slot


@pytest.mark.asks("experts.dispatch")
@pytest.mark.parametrize("num_tokens, k, order", [(300, 2, "choice"), (70_000, 1, "choice"), (70_000, 1, "priority")])
def test_a_crowd_queues(backend, num_tokens, k, order):
    expert, capacity = crowd(num_tokens, k), num_tokens - num_tokens // 20
    turns = [(t, choice) for choice in range(k) for t in range(num_tokens)]
    traced = {}
    if order == "priority":  # the last token first
        traced["priority"] = np.repeat(np.arange(num_tokens)[:, None], k, axis=1) / num_tokens
        turns = [(t, choice) for t in reversed(range(num_tokens)) for choice in range(k)]
    slot = counted(expert, turns)
    token = np.full((3, capacity), num_tokens)
    for t, choice in turns:
        if slot[t, choice] < capacity:
            token[expert[t, choice], slot[t, choice]] = t
    options = dict(num_experts=3, capacity=capacity, order=order)
    found = run(backend, "experts.dispatch", "float32", expert, traced=traced, **options)
    what = f"dispatch of {num_tokens} tokens that crowd an expert, k {k}, order {order}"
    for name, placement in (("dispatch", found), ("reference", reference.dispatch(expert, **options, **traced))):
        assert_same(placement.slot, slot, what=f"{name}, {what}: slot")
        assert_same(placement.kept, slot < capacity, what=f"{name}, {what}: kept")
        assert_same(placement.token, token, what=f"{name}, {what}: token")


def check_crowded_layer(backend, expert: np.ndarray, factor: float, precision: str) -> None:
    """Each token has its own output, or exactly 0 without a slot. The dropped fraction is exact."""
    num_tokens = len(expert)
    x = 1 + np.arange(num_tokens)[:, None] % 97 / 128
    up, down = np.array([1.0, 2.0, 4.0]), np.array([1.0, -1.0, 8.0])
    params = {"up": up[:, None, None], "down": down[:, None, None]}
    gate = np.ones((num_tokens, 1))
    capacity = num_tokens if factor == math.inf else -(-num_tokens // 3)
    kept = counted(expert, [(t, 0) for t in range(num_tokens)]) < capacity
    wanted = kept * reference.gelu(x * up[expert]) * down[expert]
    found = run(backend, "experts.routed_ffn", precision, params, x, expert, gate, capacity_factor=factor)
    what = f"routed_ffn of {num_tokens} tokens that crowd an expert, c {factor}, {precision}"
    scale = UNIT[precision] * kept * np.abs(x * up[expert] * down[expert])
    output = np.asarray(found.output, float)
    assert_close_bounded(bound_in("experts.routed_ffn", precision), output, wanted, scale, what=what)
    dropped = np.mean(~kept)
    scale = UNIT[precision] * dropped
    assert_close_bounded("experts.dropped", float(found.dropped_fraction), dropped, scale, what=f"{what}: dropped")


@pytest.mark.asks("experts.gelu", "experts.routed_ffn")
@pytest.mark.parametrize("factor", [math.inf, 1.0])
def test_a_crowd_is_served(backend, factor):
    """In bfloat16, 257 tokens for an expert exceed two blocks and the range of exact sums."""
    check_crowded_layer(backend, crowd(70_000, 1), factor, "float32")
    if BFLOAT16 in precisions_of(backend, ("float32", BFLOAT16)):
        check_crowded_layer(backend, (np.arange(384) < 257).astype(int)[:, None], factor, BFLOAT16)


@pytest.mark.asks("balance.expert_counts")
@pytest.mark.parametrize("num_tokens", CROWDS)
def test_a_crowd_is_counted(backend, num_tokens):
    expert, mask = crowd(num_tokens, 2), np.arange(num_tokens) < num_tokens - 10
    for traced, number in (({}, num_tokens), ({"mask": mask}, num_tokens - 10)):
        wanted = [sum(1 for e in expert[:number].ravel().tolist() if e == wanted) for wanted in range(3)]
        found = run_varied(backend, "balance.expert_counts", "float32", expert, traced=traced, num_experts=3)
        assert_same(found, wanted, what=f"expert_counts of {number} tokens that crowd an expert")


def cut(params: dict, granularity: int) -> dict:
    """Return E G experts of width f / G: number e G + g is part g of expert e."""
    up, down = params["up"], params["down"]
    return {
        "up": np.concatenate([np.split(expert, granularity, axis=1) for expert in up]),
        "down": np.concatenate([np.split(expert, granularity, axis=0) for expert in down]),
    }


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.parametrize("granularity, factor", [(1, 0.6), (2, 0.6), pytest.param(3, math.inf, marks=pytest.mark.slow)])
def test_fine_grained(backend, granularity, factor):
    """Experts cut into G parts give the coarse layer, with its drops and derivatives.

    The same tokens queue for each part (for k = 1 in the order "choice", in general in the order "token"), so the same
    tokens are dropped.
    """
    selection = Selection(np.arange(18).reshape(9, 2) % 5 % 3, 3, "random", 3)
    inputs = layer(selection)
    weights = np.random.default_rng(selection.seed).standard_normal(inputs["x"].shape)
    parts = selection.expert[..., None] * granularity + np.arange(granularity)
    fine = inputs | {"params": cut(inputs["params"], granularity), "gate": np.repeat(inputs["gate"], granularity, 1)}
    expert = parts.reshape(len(parts), -1)
    options = dict(routed_ffn=backend.experts.routed_ffn, factor=factor, order="token")
    coarse = gradient(weighted_output, inputs, selection.expert, weights, **options)
    found = gradient(weighted_output, fine, expert, weights, **options)
    arrays = fine["params"], fine["x"], expert, fine["gate"]
    drops = dict(capacity_factor=factor, order="token")
    output = run(backend, "experts.routed_ffn", "float64", *arrays, **drops).output
    wanted = reference.routed_ffn(inputs["params"], inputs["x"], selection.expert, inputs["gate"], **drops).output
    scale = UNIT["float64"] * ffn_scale(inputs, selection.expert)
    what = f"G = {granularity}, {selection.expert.shape}, {selection.loads}, c {factor}"
    assert_close_bounded("experts.routed_ffn", output, wanted, scale, what=f"routed_ffn, {what}")
    whole = np.sum(ffn_scale(inputs, selection.expert) * np.abs(weights))
    found["gate"] = found["gate"].reshape(*selection.expert.shape, granularity).sum(axis=2)
    coarse["params"] = cut(coarse["params"], granularity)
    for part, (ours, theirs) in enumerate(zip(jax.tree.leaves(found), jax.tree.leaves(coarse), strict=True)):
        assert_close_bounded("experts.fine_grained", ours, theirs, UNIT["float64"] * whole, what=f"{what}, leaf {part}")


def check_gradient_of_real(backend, selection: Selection, factor: float) -> None:
    """Gates differ by more than the steps of the differences, so the queue order stays the same."""
    inputs, random = layer(selection), np.random.default_rng(selection.seed)
    inputs["gate"] = (1 + random.permutation(selection.expert.size).reshape(selection.expert.shape)) / 8
    weights, mask = random.standard_normal(inputs["x"].shape), draw_mask(selection.seed, len(selection.expert))
    padded = inputs | {name: np.where(mask[:, None], inputs[name], np.nan) for name in ("x", "gate")}
    options = dict(factor=factor, order="priority")
    arrays = selection.expert, weights, mask
    found = gradient(weighted_output, padded, *arrays, routed_ffn=backend.experts.routed_ffn, **options)
    scale = np.sum(ffn_scale(inputs, selection.expert) * np.abs(weights))
    what = f"gradient of routed_ffn with padding, {selection.expert.shape}, c {factor}, in "
    for name in ("x", "gate"):
        assert_same(found[name][~mask], np.zeros(found[name][~mask].shape), what=f"{what}the padding of {name}")
    for name in inputs:
        direction = random_direction(inputs[name], selection.seed)

        def value(moved, name=name):
            return float(weighted_output(inputs | {name: moved}, *arrays, routed_ffn=reference.routed_ffn, **options))

        point = value, inputs[name], direction
        assert_derivative("experts.gradient", found[name], *point, scale, what=what + name, step=2.0**-13)


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.parametrize("factor", [math.inf, 0.6])
def test_gradient_of_real(backend, factor):
    for seed in range(3):
        random = np.random.default_rng(seed)
        expert = np.array([random.permutation(4)[:2] for _ in range(9)])
        check_gradient_of_real(backend, Selection(expert, 4, "random", seed), factor)


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.twin
def test_a_gate_that_is_not_a_number_is_not_lost(backend):
    """A NaN gate makes the output NaN, even without a slot."""
    inputs = layer(Selection(np.zeros((9, 1), int), 4, "one expert", 1))
    inputs["gate"][7] = np.nan
    arrays = inputs["params"], inputs["x"], np.zeros((9, 1), int), inputs["gate"]
    found = np.asarray(run(backend, "experts.routed_ffn", "float32", *arrays, capacity_factor=0.4).output)
    assert np.isnan(found[7]).all() and np.isfinite(np.delete(found, 7, axis=0)).all(), found
    with pytest.raises(ValueError, match=r"priority: entry \(7, 0\) is nan"):
        reference.routed_ffn(*arrays, 0.4, order="priority")
