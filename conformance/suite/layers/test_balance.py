import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_derivative, assert_same
from routelaws.conformance.engine.harness import gradient, precisions_of, run, run_varied
from routelaws.conformance.suite.strategies import Logits, logits, precisions, seeds
from routelaws.reference import balance as reference
from routelaws.reference.notation import top_k_indices

AUXILIARY, Z_LOSS, BIAS = "balance.auxiliary_loss", "balance.z_loss", "balance.update_bias"
SHAPES = ((12, 4),)

dialects = st.sampled_from(reference.DIALECTS)
scores = st.sampled_from(reference.SCORES)


def unit_of(z: np.ndarray, precision: str) -> float:
    """Return the relative error of a probability: u per unit of the exponent."""
    return UNIT[precision] * (4 + np.abs(z - z.max(axis=1, keepdims=True)).max() + np.abs(z).max())


def check_auxiliary_loss(backend, drawn: Logits, precision: str, dialect: str, score: str) -> None:
    z, expert = drawn.values, top_k_indices(drawn.values, drawn.k)
    options = dict(dialect=dialect, score=score)
    what = f"auxiliary_loss, {drawn.family} {z.shape}, k {drawn.k}, {options}, {precision}"
    unit, tiny = unit_of(z, precision), np.finfo(precision).tiny
    share = np.roll(reference.auxiliary_loss(z, expert, dialect=dialect).share, 1).astype(precision).astype(float)
    for held in (None, (0.0, share, np.zeros_like(share))):
        theirs = {} if held is None else {"held": backend.balance.AuxiliaryLoss(*held)}
        ours = None if held is None else reference.AuxiliaryLoss(*held)
        found = run_varied(backend, AUXILIARY, precision, z, expert, traced=theirs, **options)
        wanted = reference.auxiliary_loss(z, expert, held=ours, **options)
        scale = UNIT[precision] * wanted.share
        assert_close_bounded("balance.share", found.share, wanted.share, scale, what=f"{what}: share")
        scale = unit * wanted.probability + tiny
        assert_close_bounded(
            "balance.probability", found.probability, wanted.probability, scale, what=f"{what}: probability"
        )
        scale = unit * wanted.loss + z.shape[1] * tiny
        assert_close_bounded("balance.loss", found.loss, wanted.loss, scale, what=f"{what}: loss, held {held}")


@pytest.mark.asks("balance.auxiliary_loss", "notation.top_k_indices", "transformer.loss")
@given(drawn=logits(shapes=SHAPES), precision=precisions, dialect=dialects, score=scores)
def test_auxiliary_loss(backend, drawn, precision, dialect, score):
    check_auxiliary_loss(backend, drawn, precision, dialect, score)


@pytest.mark.asks("balance.value_at_balance")
@pytest.mark.parametrize("dialect", reference.DIALECTS)
@pytest.mark.parametrize("k", [1, 2])
def test_stated_value_at_balance(backend, k, dialect):
    wanted = {"assignments": 1, "tokens": k, "first_choice": 1, "gshard": 1 / 4**2}[dialect]
    assert backend.balance.value_at_balance(4, k, dialect) == wanted, f"value_at_balance, {dialect}, k {k}"


@pytest.mark.asks("balance.auxiliary_loss", "transformer.loss")
@pytest.mark.parametrize("k", [1, 2])
@given(dialect=dialects, seed=seeds)
def test_value_at_balance(backend, k, dialect, seed):
    """Equal shares give the stated value for any probabilities. Equal probabilities give it for any shares."""
    num_experts, num_tokens = 4, 12
    random = np.random.default_rng(seed)
    wanted = reference.value_at_balance(num_experts, k, dialect)
    equal = (np.arange(num_tokens)[:, None] + np.arange(k)) % num_experts
    anywhere = np.array([random.permutation(num_experts)[:k] for _ in range(num_tokens)])
    uneven = random.standard_normal((num_tokens, num_experts)).astype(np.float32)
    for z, expert in ((uneven, equal), (np.full(uneven.shape, -1.5), anywhere)):
        found = run_varied(backend, AUXILIARY, "float32", z, expert, dialect=dialect).loss
        scale = unit_of(z, "float32") * wanted
        assert_close_bounded("balance.loss", found, wanted, scale, what=f"auxiliary_loss at balance, {dialect}, k {k}")


@pytest.mark.asks("balance.auxiliary_loss", "transformer.loss")
def test_switch_and_gshard_by_hand(backend):
    """For E = 2 and T = 4, the shares are 3/4 and 1/4, and the mean probabilities 5/8 and 3/8.

    The losses are 2 (15 + 3) / 32 and half of 18/32.
    """
    z = np.log(np.array([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0], [1.0, 3.0]]))
    expert = np.array([[0], [0], [0], [1]])
    for dialect, wanted in (("assignments", 1.125), ("tokens", 1.125), ("first_choice", 1.125), ("gshard", 0.28125)):
        found = run_varied(backend, AUXILIARY, "float64", z, expert, dialect=dialect)
        assert np.asarray(found.share).tolist() == [0.75, 0.25]
        assert_close_bounded("balance.loss", found.loss, wanted, unit_of(z, "float64"), what=f"{dialect} by hand")


@pytest.mark.asks("balance.auxiliary_loss", "transformer.loss")
def test_one_expert_is_always_balanced(backend):
    found = run(backend, AUXILIARY, "float32", np.array([[-30.0]]), np.zeros((1, 1), int))
    assert (float(found.loss), found.share.tolist(), found.probability.tolist()) == (1, [1], [1])


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("path", [AUXILIARY, Z_LOSS])
def test_a_loss_with_a_mask_is_that_of_the_real_tokens(backend, path):
    """This holds for every design. The eight real tokens are not like the others."""
    z = np.random.default_rng(0).standard_normal((12, 4)) + 3 * (np.arange(12)[:, None] // 8) * np.arange(4)
    real, expert = np.arange(12) < 8, top_k_indices(z, 2)
    first, second = ((z, expert), (z[real], expert[real])) if path == AUXILIARY else ((z,), (z[real],))
    for precision in precisions_of(backend):
        found = run_varied(backend, path, precision, *first, traced={"mask": real})
        wanted = run_varied(backend, path, precision, *second)
        found, wanted = (each.loss if path == AUXILIARY else each for each in (found, wanted))
        scale = UNIT[precision] * 12 * np.abs(z).max() ** 2
        what = f"{path} with a mask, 8 of 12 tokens, against the real tokens alone"
        assert_close_bounded("balance.loss", found, float(wanted), scale, what=what)


@pytest.mark.asks("balance.auxiliary_loss", "transformer.loss")
def test_tiny_sigmoids_are_not_balance(backend):
    z = np.full((12, 4), -100.0)
    z[:, 0] += 20
    expert = np.zeros((12, 1), int)
    for precision in precisions_of(backend):
        found = run_varied(backend, AUXILIARY, precision, z, expert, score="sigmoid")
        wanted = 4 / (1 + 3 * math.exp(-20))
        assert_close_bounded("balance.loss", found.loss, wanted, unit_of(z, precision) * 4, what="tiny sigmoids")


def auxiliary_sum(point, expert, loss, record, dialect, score):
    """Return the loss of "own" logits with their share plus the loss of "held" logits with a given share."""
    held = record(0.0, point["share"], point["share"])
    own = loss(point["own"], expert, dialect=dialect, score=score).loss
    return own + loss(point["held"], expert, dialect=dialect, score=score, held=held).loss


def merged_sum(weights, inputs, expert, masks, balance, dialect, score, recompute):
    """Return the merged loss of micro-batches with the logits inputs · weights, one at a time."""

    def part(micro):
        x, chosen, mask = micro
        return balance.auxiliary_loss(x @ weights, chosen, dialect=dialect, score=score, mask=mask)

    part = jax.checkpoint(part) if recompute else part
    _, parts = jax.lax.scan(lambda carry, micro: (carry, part(micro)), 0, (inputs, expert, masks))
    return balance.merge_micro_batches(parts, masks.sum(axis=1), dialect=dialect).loss


@pytest.mark.asks("balance.merge_micro_batches", "balance.auxiliary_loss", "transformer.loss")
@pytest.mark.twin
@pytest.mark.parametrize("recompute", [False, True])
def test_micro_batches_have_the_loss_of_the_batch(backend, recompute):
    """Compare value and gradient with the batch at once, for 200 batches of three micro-batches of unequal padding."""
    random, options = np.random.default_rng(7), dict(dialect="tokens", score="sigmoid")
    inputs, weights = random.standard_normal((200, 3, 6, 5)), random.standard_normal((200, 5, 4))
    masks = random.random((200, 3, 6)) < random.random((200, 3, 1))
    masks[:, 0, 0] = True
    expert = top_k_indices((inputs @ weights[:, None]).reshape(-1, 4), 2).reshape(200, 3, 6, 2)

    def of_batch(weights, inputs, expert, masks):
        flat = [each.reshape(18, *each.shape[2:]) for each in (inputs, expert, masks)]
        return backend.balance.auxiliary_loss(flat[0] @ weights, flat[1], mask=flat[2], **options).loss

    merged = functools.partial(merged_sum, balance=backend.balance, recompute=recompute, **options)
    with jax.enable_x64(True):
        functions = [jax.jit(jax.vmap(jax.value_and_grad(each))) for each in (merged, of_batch)]
        (found, slopes), (wanted, steep) = (
            [np.asarray(leaf) for leaf in each(weights, inputs, expert, masks)] for each in functions
        )
    unit = 64 * UNIT["float64"]
    assert_close_bounded("balance.loss", found, wanted, unit * wanted, what="merged losses")
    assert_close_bounded("balance.loss", slopes, steep, unit * np.abs(steep).max(), what="their gradients")
    parts = [reference.auxiliary_loss(x @ weights[3], e, mask=m, **options)
             for x, e, m in zip(inputs[3], expert[3], masks[3], strict=True) if m.any()]  # fmt: skip
    stacked = reference.AuxiliaryLoss(*(np.stack(field) for field in zip(*parts, strict=True)))
    counts = masks[3].sum(axis=1)
    ours = reference.merge_micro_batches(stacked, counts[counts > 0], dialect="tokens")
    assert_close_bounded("balance.loss", ours.loss, wanted[3], unit * wanted[3], what="the reference")


def z_of(point, loss):
    return loss(point["logits"])


@pytest.mark.asks("balance.auxiliary_loss", "notation.top_k_indices", "transformer.loss")
@given(
    drawn=logits(families=("free", "tied"), shapes=SHAPES),
    score=scores,
    seed=seeds,
)
def test_auxiliary_gradient(backend, drawn, score, seed):
    """The other dialects scale this one or count fewer choices."""
    z, expert = drawn.values, top_k_indices(drawn.values, drawn.k)
    direction = np.random.default_rng(seed).standard_normal(z.shape)
    held = reference.auxiliary_loss(z, expert, dialect="gshard")

    def value(point):
        return reference.auxiliary_loss(point, expert, dialect="gshard", score=score, held=held).loss

    point = {"own": z, "held": z, "share": held.share}
    options = dict(loss=backend.balance.auxiliary_loss, record=backend.balance.AuxiliaryLoss, dialect="gshard")
    found = gradient(auxiliary_sum, point, expert, score=score, **options)
    what = f"gradient of auxiliary_loss, {z.shape}, {score}"
    assert_same(found["share"], np.zeros_like(held.share), what=f"{what}, with respect to the share")
    for name in ("own", "held"):
        scale = (1 + np.abs(z).max()) ** 2
        assert_derivative("balance.gradient", found[name], value, z, direction, scale, what=f"{what}, {name} share")


def check_z_loss(backend, drawn: Logits, precision: str) -> None:
    z = drawn.values
    found, wanted = run(backend, Z_LOSS, precision, z), reference.z_loss(z)
    scale = UNIT[precision] * (1 + np.abs(z).max()) ** 2
    assert_close_bounded("balance.z_loss", found, wanted, scale, what=f"z_loss, {drawn.family} {z.shape}, {precision}")


@pytest.mark.asks("balance.z_loss")
def test_z_loss_where_exp_overflows(backend):
    """The logs of the sums are 1000 and 0."""
    for precision in precisions_of(backend):
        found = run(backend, Z_LOSS, precision, np.array([[1000.0, 0.0], [0.0, -1000.0]]))
        assert_close_bounded("balance.z_loss", found, 5e5, UNIT[precision] * 5e5, what=f"z_loss of 1000, {precision}")


@pytest.mark.asks("balance.z_loss")
@given(drawn=logits(shapes=SHAPES), precision=precisions)
def test_z_loss(backend, drawn, precision):
    check_z_loss(backend, drawn, precision)


@pytest.mark.asks("balance.z_loss")
@given(drawn=logits(families=("free",), shapes=SHAPES), seed=seeds)
def test_z_loss_gradient(backend, drawn, seed):
    z, direction = drawn.values, np.random.default_rng(seed).standard_normal(drawn.values.shape)
    found = gradient(z_of, {"logits": z}, loss=backend.balance.z_loss)["logits"]
    scale = (1 + np.abs(z).max()) ** 2
    assert_derivative("balance.gradient", found, reference.z_loss, z, direction, scale, what="gradient of z_loss")


@st.composite
def biases(draw):
    """Draw bias and counts of E experts: random, balanced, off by one, and too large for 32 bits."""
    num_experts, seed = draw(st.sampled_from([1, 8])), draw(seeds)
    kind = draw(st.sampled_from(["random", "balanced", "off by one", "large"]))
    random = np.random.default_rng(seed)
    bias = (random.standard_normal(num_experts) / 8).astype(np.float32).astype(float)
    counts = random.integers(0, 9, num_experts)
    if kind != "random":
        counts = np.full(num_experts, 2**20 if kind == "large" else 7)
    if kind == "off by one":
        counts[random.integers(num_experts)] += 1
    if kind == "large":
        counts[random.integers(num_experts)] = 2**29
    return bias, counts


TWELVE = np.linspace(-0.5, 0.5, 12).astype(np.float32).astype(float), np.full(12, 11)
"""A balanced load for which floating-point shares fail: twelve twelfths do not sum to 1 in every order."""
SEVEN = np.zeros(7), np.ones(7, int)
"""Another one: in float64 the mean of seven sevenths is no seventh."""


@pytest.mark.asks("balance.update_bias")
@given(drawn=biases(), precision=precisions, recentre=st.sampled_from(reference.RECENTRE))
@example(drawn=TWELVE, precision="float32", recentre="none")
@example(drawn=SEVEN, precision="float64", recentre="none")
def test_update_bias(backend, drawn, precision, recentre):
    """Compare with the sign of Σ count - E count in Python's integers."""
    (bias, counts), rate = drawn, 0.25
    found = run(backend, BIAS, precision, bias, counts, rate=rate, recentre=recentre)
    wanted = reference.update_bias(bias, counts, rate=rate, recentre=recentre)
    what = f"update_bias, counts {counts.tolist()}, rate {rate}, recentre {recentre}, {precision}"
    scale = UNIT[precision] * (np.abs(bias).max() + rate)
    assert_close_bounded("balance.bias", found, wanted, scale, what=what)
    if recentre == "none":
        signs = [
            (sum(counts.tolist()) > len(counts) * c) - (sum(counts.tolist()) < len(counts) * c) for c in counts.tolist()
        ]
        moved = np.sign(np.asarray(found, np.float64) - bias.astype(precision))
        assert_same(moved, signs, what=f"{what}: which way")


@pytest.mark.asks("balance.update_budget_bias")
@given(drawn=biases(), precision=precisions, share=st.sampled_from([0.0, 0.3, 1.0]), real=st.integers(1, 4))
def test_update_budget_bias(backend, drawn, precision, share, real):
    """Real experts move towards their part of the share; the mean step is 0 where the target is met."""
    (bias, counts), rate, real = drawn, 0.25, min(real, len(drawn[0]))
    counts = counts + (counts.sum() == 0)
    wanted = bias.copy()
    for e in range(real):
        wanted[e] += rate * (share / real - counts[e] / counts.sum())
    scale = UNIT[precision] * (np.abs(bias).max() + rate)
    options = {"num_real": real, "real_share": share, "rate": rate}
    for name, found in (
        ("backend", run(backend, "balance.update_budget_bias", precision, bias, counts, **options)),
        ("reference", reference.update_budget_bias(bias, counts, **options)),
    ):
        assert_close_bounded("balance.bias", found, wanted, scale, what=f"update_budget_bias of the {name}, {counts}")
        assert_same(np.asarray(found)[real:], bias.astype(precision)[real:], what=f"{name}: the other experts")


@pytest.mark.asks("balance.update_budget_bias")
def test_a_budget_counts_the_available_experts_and_is_reached(backend):
    """Expert 1 is not available. A token takes a real expert if its bias exceeds the token's own threshold."""
    for module in (backend.balance, reference):
        bias, counts = np.array([0.0, -np.inf, 0.5]), np.array([1, 0, 3])
        found = np.asarray(module.update_budget_bias(bias, counts, 2, 0.5, rate=1.0))
        assert_same(found, np.array([0.25, -np.inf, 0.5]), what="available experts")
    bias, thresholds = np.zeros(2), np.linspace(-1, 1, 101)
    for _ in range(200):
        taken = int((bias[0] > thresholds).sum())
        bias = reference.update_budget_bias(bias, np.array([taken, 101 - taken]), 1, 0.25, rate=0.5)
    assert abs(taken / 101 - 0.25) < 0.02


@pytest.mark.asks("balance.load_statistics")
@given(
    loads=st.sampled_from([1, 4]).flatmap(lambda n: st.lists(st.integers(0, 50), min_size=n, max_size=n)),
    precision=precisions,
)
def test_load_statistics(backend, loads, precision):
    load = np.array(loads)
    load[0] += not load.any()
    found = run(backend, "balance.load_statistics", precision, load)
    wanted = reference.load_statistics(load)
    scale = (1 + math.log(len(load))) * UNIT[precision]
    scale = scale * np.array([len(load), 1, 1])
    assert_close_bounded("balance.statistics", np.array(found), np.array(wanted), scale, what=f"load_statistics {load}")


@pytest.mark.asks("balance.load_statistics")
@pytest.mark.parametrize("load, wanted", [
    ([5, 0, 0, 0], (4, 0, 0.75)), ([2, 2, 2, 2], (1, math.log(4), 0)),
    ([8191, 1], (8191 / 4096, 0.0012220278698290234, 0)),
])  # fmt: skip
def test_load_statistics_by_hand(backend, load, wanted):
    for scaled in (np.array(load), np.array(load) / 8):
        found = np.array(run(backend, "balance.load_statistics", "float64", scaled))
        scale = UNIT["float64"] * np.array([4, 4, 1])
        assert_close_bounded("balance.statistics", found, np.array(wanted), scale, what=f"load_statistics {load}")


@pytest.mark.asks("balance.expert_counts")
@given(seed=seeds)
def test_expert_counts(backend, seed):
    expert = np.random.default_rng(seed).integers(0, 4, (12, 2))
    found = run_varied(backend, "balance.expert_counts", "float32", expert, num_experts=4)
    assert_same(found, reference.expert_counts(expert, 4), what="expert_counts")
    assert_same(found, [(expert == e).sum() for e in range(4)], what="expert_counts")
    mask = np.random.default_rng(seed).permutation(12) < 8
    found = run_varied(backend, "balance.expert_counts", "float32", expert, num_experts=4, traced={"mask": mask})
    assert_same(found, [(expert[mask] == e).sum() for e in range(4)], what="expert_counts with 8 of 12 real")


def pad(mask, values, fill):
    """Return [T, n] with `fill` where the mask is false."""
    return np.where(mask[:, None], values, fill)


def losses(point, expert, mask, auxiliary_loss, z_loss, axis_name=None):
    """Return the sum of both losses, of one group or of the mean over groups that share an axis."""
    options = {} if axis_name is None else {"axis_name": axis_name}

    def both(z, expert, mask):
        return auxiliary_loss(z, expert, mask=mask, **options).loss + z_loss(z, mask=mask, **options)

    if axis_name is None:
        return both(point["logits"], expert, mask)
    return jax.vmap(both, axis_name=axis_name)(point["logits"], expert, mask).mean()


@pytest.mark.asks(
    "balance.expert_counts", "balance.auxiliary_loss", "balance.z_loss", "notation.top_k_indices", "transformer.loss"
)
@pytest.mark.parametrize("masked", [False, True])
def test_axis(backend, masked):
    """Four groups of three tokens along an axis give the values and gradients of one group.

    The groups have different numbers of real tokens, so a mean of their means would differ.
    """
    if "axis_name" not in inspect.signature(backend.balance.z_loss).parameters:
        pytest.skip("the backend has no axis_name")
    random = np.random.default_rng(0)
    z = random.standard_normal((12, 4)) + np.repeat(3 * random.standard_normal((4, 4)), 3, axis=0)
    z = z.astype(np.float32).astype(float)
    expert = top_k_indices(z, 2)
    mask = np.array([1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1], bool) if masked else None
    module, unit = backend.balance, unit_of(z, "float32")
    wanted = reference.auxiliary_loss(z, expert, mask=mask)
    parts = [jnp.asarray(z, jnp.float32), jnp.asarray(expert)] + ([jnp.asarray(mask)] if masked else [])
    parts = [part.reshape(4, 3, *part.shape[1:]) for part in parts]

    def of_all(z, expert, mask=None):
        options = dict(mask=mask, axis_name="group")
        return (
            *module.auxiliary_loss(z, expert, **options),
            module.z_loss(z, **options),
            module.expert_counts(expert, 4, **options),
        )

    everyone = jax.jit(jax.vmap(of_all, axis_name="group"))(*parts)
    loss, share, probability, square, counts = map(np.asarray, everyone)
    what = f"over an axis, mask {masked}"
    for member in range(4):
        scale = UNIT["float32"] * wanted.share
        assert_close_bounded("balance.share", share[member], wanted.share, scale, what=f"share {what}")
        scale = unit * wanted.probability
        assert_close_bounded("balance.probability", probability[member], wanted.probability, scale, what=what)
        assert_close_bounded("balance.loss", loss[member], wanted.loss, unit * wanted.loss, what=f"loss {what}")
        scale = UNIT["float32"] * (1 + np.abs(z).max()) ** 2
        assert_close_bounded("balance.z_loss", square[member], reference.z_loss(z, mask=mask), scale, what=what)
        assert_same(counts[member], reference.expert_counts(expert, 4, mask=mask), what=f"expert_counts {what}")


@pytest.mark.asks("balance.auxiliary_loss", "balance.z_loss", "notation.top_k_indices", "transformer.loss")
def test_axis_gradient(backend):
    """The mean over devices of the common loss has the gradient of one group. Padding has gradient 0."""
    if "axis_name" not in inspect.signature(backend.balance.z_loss).parameters:
        pytest.skip("the backend has no axis_name")
    random = np.random.default_rng(2)
    z, mask = random.standard_normal((12, 4)), np.array([1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1])
    expert = top_k_indices(z, 2)
    padded = pad(mask > 0, z, np.nan)
    functions = dict(auxiliary_loss=backend.balance.auxiliary_loss, z_loss=backend.balance.z_loss)
    one = gradient(losses, {"logits": padded}, expert, mask, **functions)["logits"]
    groups = [values.reshape(4, 3, *values.shape[1:]) for values in (padded, expert, mask)]
    found = gradient(losses, {"logits": groups[0]}, *groups[1:], axis_name="group", **functions)["logits"]
    found = found.reshape(12, 4)
    for name, values in (("of one group", one), ("over an axis", found)):
        assert_same(values[mask == 0], np.zeros((4, 4)), what=f"gradient {name}, in the padding")
        direction = random.standard_normal(z.shape)

        def value(point):
            held = reference.auxiliary_loss(z, expert, mask=mask)
            return reference.auxiliary_loss(point, expert, held=held, mask=mask).loss + reference.z_loss(
                point, mask=mask
            )

        scale = (1 + np.abs(z).max()) ** 2
        assert_derivative("balance.gradient", values, value, z, direction, scale, what=f"gradient {name}")
