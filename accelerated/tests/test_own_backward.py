"""Backward passes written by hand, compared with autodiff: in float64, and in bfloat16 against float32."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import experts
from routelaws.accelerated.operations import own_backward
from routelaws.accelerated.operations.attention import attend
from routelaws.accelerated.operations.own_backward import dense_ffn, normalise, product, summed_log_probability
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.step import initial_state, make_train_steps
from routelaws.accelerated.transformer import init, loss
from routelaws.reference.configuration import ModelConfig

LIMIT = 1e-12
"""Allowed error, relative to the largest entry (at least 1): sums of up to 130 products in float64; measured 1e-14."""

LIMIT_LARGE = 1e-8
"""The same for logits of 1e4, whose rounding changes a weight 1e4 times as much."""

LIMIT_BFLOAT16 = 0.05
"""The same in bfloat16, with about twelve roundings of 2^-9; measured 0.015."""

RESERVED = 1.05
"""Allowed memory of a step, relative to a count by hand; measured 0.96 for four blocks. Attention that keeps its
weights needs 1.18, and norms that keep more need 1.37."""


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def joined_attend(*given):
    return jnp.concatenate(attend(*given), axis=2)


def plain_attend(query, key, value, relative, mask, causal):
    length, width = query.shape[2:]
    distance = np.arange(length)[:, None] - np.arange(length)
    logits = jnp.einsum("hbic,hbjc->hbij", query, key)
    if relative is not None:
        of_distance = relative[:, np.maximum(length - distance, 0) if not causal else length - np.maximum(distance, 0)]
        logits = logits + jnp.einsum("hbic,hijc->hbij", query, of_distance)
    seen = distance >= 0 if causal else distance > -length
    if mask is not None:
        seen = seen & (mask[:, None, :] | (distance == 0))
    weights = jax.nn.softmax(jnp.where(seen, logits / math.sqrt(width), -jnp.inf))
    return jnp.einsum("hbij,hbjc->hbic", weights, value)


def inputs(length, width, causal, with_relative, with_mask, scale=1.0, heads=2, b=3):
    random = np.random.default_rng(length + width)
    query, key, value = random.standard_normal((3, heads, b, length, width))
    distances = length if causal else 2 * length - 1
    relative = np.append(np.zeros((heads, 1, width)), random.standard_normal((heads, distances, width)), axis=1)
    mask = random.random((b, length)) < 0.7 if with_mask else None
    return query * scale, key, value, relative if with_relative else None, mask


def with_gradient(attention, query, key, value, relative, mask, causal):
    """Return the result and the gradients of its product with fixed numbers."""
    arrays = [jnp.asarray(array) for array in (query, key, value, relative) if array is not None]
    weights = np.random.default_rng(0).standard_normal(query.shape)

    def total(*arrays):
        found = attention(*arrays, *[None] * (4 - len(arrays)), mask, causal)
        return (found * weights).sum(), found

    (_, found), gradients = jax.jit(jax.value_and_grad(total, range(len(arrays)), has_aux=True))(*arrays)
    return [found, *gradients]


def assert_same(found, wanted, limit, what):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert one.shape == other.shape, what
        error, size = np.abs(one - other).max(), np.abs(other).max()
        assert error <= limit * max(size, 1), f"{what}: off by {error}, the largest entry is {size}"


@pytest.mark.parametrize(
    ("length", "width", "causal", "relative", "mask"),
    # two parts from 128 on, three from 768 on; with width 40, the weights are kept
    [(1, 2, True, True, True), (5, 1, False, True, True), (131, 2, True, True, True), (130, 40, True, True, False),
     pytest.param(130, 40, True, False, True, marks=pytest.mark.slow), (770, 2, True, True, True),
     (9, 4, False, False, True)],
)  # fmt: skip
def test_attention(length, width, causal, relative, mask):
    given = inputs(length, width, causal, relative, mask)
    found, wanted = (with_gradient(attention, *given, causal) for attention in (joined_attend, plain_attend))
    assert_same(found, wanted, LIMIT, f"attention, S {length}, c {width}, causal {causal}, mask {mask}")


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_large_and_of_equal_logits(causal):
    for scale, limit in ((1e4, LIMIT_LARGE), (0.0, LIMIT)):
        given = inputs(7, 4, causal, True, False, scale)
        found, wanted = (with_gradient(attention, *given, causal) for attention in (joined_attend, plain_attend))
        assert all(np.isfinite(array).all() for array in found)
        assert_same(found, wanted, limit, f"attention of queries times {scale}")


def test_attention_in_bfloat16():
    given = [
        array if array is None else jnp.asarray(array, jnp.bfloat16) for array in inputs(130, 40, True, True, False)
    ]
    found = with_gradient(joined_attend, *given, True)
    wide = [array if array is None else array.astype(jnp.float32) for array in given]
    assert all(array.dtype == jnp.bfloat16 for array in found[1:])
    assert_same(found, with_gradient(plain_attend, *wide, True), LIMIT_BFLOAT16, "attention in bfloat16")


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_dense_ffn(activation, narrow=3):
    random = np.random.default_rng(narrow)
    shapes = {"up": (narrow, 12), "down": (12, narrow)} | ({"linear": (narrow, 12)} if activation == "swiglu" else {})
    matrices = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    x = random.standard_normal((9, narrow))

    def plain(matrices, x):
        return experts.expert_ffn(**matrices, x=x, activation=activation)

    found, wanted = (
        jax.jit(jax.value_and_grad(lambda *given, run=run: (run(*given) ** 2).sum(), (0, 1)))(matrices, x)
        for run in (lambda matrices, x: dense_ffn(matrices, x, activation), plain)
    )
    assert_same(found, wanted, LIMIT, f"dense FFN, {activation}")


def plain_norm(scale, offset, x):
    centred = x if offset is None else x - x.mean(axis=-1, keepdims=True)
    normed = scale * centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return normed if offset is None else normed + offset


def norm_gradients(norm, scale, offset, x):
    weights = np.random.default_rng(1).standard_normal(x.shape)
    arrays = scale, offset, x
    pulled = jax.jit(jax.grad(lambda *given: (norm(*given) * weights).sum(), (0, 1, 2)))(*arrays)
    return jax.jit(norm)(*arrays), pulled


@pytest.mark.parametrize(("spread", "rms"), [(1.0, False), (1e-2, False), (1e-2, True)])
def test_norm(spread, rms):
    """Some rows have a variance (without an offset: a mean square) near epsilon, and one has 0."""
    random = np.random.default_rng(0)
    scale, offset, x = (
        random.standard_normal(5),
        random.standard_normal(5),
        3 + spread * random.standard_normal((2, 3, 5)),
    )
    x[1, 2] = 4.0
    if rms:
        offset, x = None, x - x.mean(axis=-1, keepdims=True)
        x[1, 1] += 3.0
    found = norm_gradients(lambda *given: normalise(*given, 1e-5), scale, offset, x)
    assert_same(found, norm_gradients(plain_norm, scale, offset, x), LIMIT, "norm")


def test_norm_in_bfloat16():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((64, 8)), jnp.bfloat16)
    arrays = [random.standard_normal(8).astype(np.float32) for _ in range(2)]
    found = norm_gradients(lambda *given: normalise(*given, 1e-5).astype(float), *arrays, x)
    wanted = norm_gradients(plain_norm, *arrays, x.astype(float))
    assert found[1][2].dtype == jnp.bfloat16 and found[1][0].dtype == jnp.float32
    assert_same(found, wanted, LIMIT_BFLOAT16, "norm in bfloat16")


def plain_log_probability(x, embedding, target, counted):
    found = jax.nn.log_softmax((x @ embedding.T).astype(jnp.promote_types(x.dtype, jnp.float32)))
    found = jnp.where(counted, jnp.take_along_axis(found, target[..., None], axis=-1)[..., 0], 0)
    return found.sum(), found


def cross_entropy_case(scale, dtype=float):
    random = np.random.default_rng(2)
    x, embedding = (jnp.asarray(random.standard_normal(shape), dtype) for shape in ((3, 10, 4), (11, 4)))
    return x * scale, embedding, random.integers(0, 11, (3, 10)), random.random((3, 10)) < 0.8


@pytest.mark.parametrize(
    ("tokens", "scale", "limit"),  # chunks of 3 and 4 positions, with one or two in the last; and a single chunk
    [(9, 1.0, LIMIT), (12, 1e4, LIMIT_LARGE), (1000, 0.0, LIMIT)],
)
def test_cross_entropy(monkeypatch, tokens, scale, limit):
    monkeypatch.setattr(own_backward, "CHUNK_LOGITS", 1)
    monkeypatch.setattr(own_backward, "CHUNK_TOKENS", tokens)
    x, embedding, target, counted = cross_entropy_case(scale)
    found, wanted = (
        jax.jit(jax.value_and_grad(lambda *given, of=of: of(*given, target, counted), (0, 1), has_aux=True))(
            x, embedding
        )
        for of in (summed_log_probability, plain_log_probability)
    )
    assert_same(found, wanted, limit, f"log-probabilities in chunks of {tokens} tokens")
    alone = jax.jit(lambda *given: summed_log_probability(*given, target, counted))(x, embedding)
    assert_same(alone, wanted[0], limit, "without a gradient")


def test_cross_entropy_in_bfloat16():
    x, embedding, target, counted = cross_entropy_case(1.0, jnp.bfloat16)
    found = jax.jit(jax.grad(lambda x: summed_log_probability(x, embedding, target, counted)[0]))(x)
    plain = jax.grad(lambda x: plain_log_probability(x, embedding.astype(x.dtype), target, counted)[0])
    wanted = jax.jit(plain)(x.astype(jnp.float32))
    assert found.dtype == jnp.bfloat16
    assert_same(found, wanted, LIMIT_BFLOAT16, "gradient of log-probabilities in bfloat16")


def test_chunks_in_bfloat16_are_added_up_in_float32(monkeypatch):
    """600 chunks of one token each add 2/3 for the right class of three; in bfloat16 the sum would stop at 256."""
    monkeypatch.setattr(own_backward, "CHUNK_LOGITS", 1)
    monkeypatch.setattr(own_backward, "CHUNK_TOKENS", 1)
    x, target = jnp.ones((1, 600, 2), jnp.bfloat16), np.zeros((1, 600), int)
    of = jax.grad(lambda embedding: summed_log_probability(x, embedding, target, target == 0)[0])
    wanted = np.outer([400, -200, -200], [1, 1])
    assert_same(jax.jit(of)(jnp.zeros((3, 2), jnp.bfloat16)), wanted, LIMIT_BFLOAT16, "gradient of the embedding")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"router": "sinkhorn", "experts": 4},
        {"router": "base", "experts": 4, "routing_frequency": 1.0},
        {"flop_increase": 2},
    ],
)
def test_rematerialised_blocks_give_the_same_gradient_from_less_memory(fields):
    config = ModelConfig(vocab_size=32, d_model=16, blocks=4, heads=2, **fields)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), init(jax.random.key(0), config))
    tokens = np.random.default_rng(0).integers(0, 32, (4, 65))
    found, memory = [], []
    for again in (False, True):
        step = jax.value_and_grad(lambda params, again=again: loss(params, tokens, config, rematerialise=again).total)
        compiled = jax.jit(step).lower(params).compile()
        found.append(jax.tree.leaves(compiled(params)))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    assert_same(found[1], found[0], LIMIT, "gradient with blocks computed again")
    assert memory[1] < 0.75 * memory[0]  # one of four blocks, both ends and the gradients remain


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [4, 8])
def test_a_step_reserves_little_more_than_has_to_be_there(blocks):
    model = ModelConfig(1024, 64, blocks=blocks, heads=2)
    config = TrainConfig(model, sequence_length=128, batch_size=16, steps_per_call=8)
    with jax.enable_x64(False):
        shapes = jax.eval_shape(lambda: initial_state(config))
        steps = jax.jit(make_train_steps(config), donate_argnums=0)
        memory = steps.lower(shapes, np.zeros((2, 16, 129), np.int32), 0).compile().memory_analysis()
    own = memory.output_size_in_bytes - memory.alias_size_in_bytes
    reserved = memory.argument_size_in_bytes + own + memory.temp_size_in_bytes
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes.params))
    assert reserved < RESERVED * counted_bytes(64, blocks, 16 * 128, parameters)


def counted_bytes(d, blocks, tokens, parameters):
    """Return the necessary bytes of a dense step.

    These are parameters, gradients and two moments. Each token needs 16 d numbers per block for the backward pass, and
    2 d for the embedding and the last norm. The residual stream, its norm, query, key, value, the attention output, the
    next stream and its norm have d each. The FFN has 8 d.
    """
    return 4.0 * (4 * parameters + tokens * (d * (16 * blocks + 2) + 1))


@pytest.mark.parametrize(("none", "dtype"), [("tokens", "float32"), ("width", "float64"), ("hidden", "float32")])
def test_of_nothing_the_gradient_is_zeros(none, dtype):
    tokens, d, f = (0 if none == name else 3 for name in ("tokens", "width", "hidden"))
    up, down, x = (jnp.ones(shape, dtype) for shape in ((d, f), (f, d), (tokens, d)))
    ids, one = jnp.zeros((1, tokens), int), jnp.ones((1, d), dtype)
    of = {
        "dense_ffn": lambda up, down, x: dense_ffn({"up": up, "down": down}, x, "gelu").sum(),
        "product": lambda up, down, x: product(x, up).sum() + down.sum(),
        "normalise": lambda up, down, x: normalise(up.sum(axis=1), down.sum(axis=0), x, 1e-5).sum(),
        "attend": lambda up, down, x: attend(*[x[None, None]] * 3, None, None, True)[0].sum(),
        "loss": lambda up, down, x: summed_log_probability(x[None], jnp.concatenate([one, down]), ids, ids == 0)[0],
    }
    for name, function in of.items():
        gradients = jax.jit(jax.grad(function, (0, 1, 2)))(up, down, x)
        assert [leaf.shape for leaf in gradients] == [up.shape, down.shape, x.shape], name
        assert not any(np.isnan(leaf).any() for leaf in gradients), name
