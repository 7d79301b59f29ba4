"""Attention by compiled loops, and models with and without loops, compared with the definition."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import cpu
from routelaws.accelerated.cpu import calls
from routelaws.accelerated.operations import attention
from routelaws.accelerated.transformer import init, loss
from routelaws.reference.configuration import ModelConfig

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the loops are for CPUs")


def layer(b, length, heads, width, causal, relative, scale=1.0):
    """Return projected [b, S, 3 H c], the keys of distances [D, H c] or None, and weights for the output."""
    random = np.random.default_rng(b + 10 * length + 1000 * width)
    projected = random.standard_normal((b, length, 3, heads, width))
    projected[:, :, 0] *= scale
    distances = (length if causal else 2 * length - 1) if relative else 0
    keys, weights = (
        random.standard_normal((distances, heads * width)),
        random.standard_normal((b, length, heads * width)),
    )
    arrays = projected.reshape(b, length, -1), keys if relative else None, weights
    return [array if array is None else np.float32(array) for array in arrays]


def by_definition(projected, relative, heads, causal):
    """Return [b, S, H c]: for each query, the weighted mean of the values that it sees."""
    b, length, width = projected.shape[0], projected.shape[1], projected.shape[2] // (3 * heads)
    query, key, value = jnp.moveaxis(projected.reshape(b, length, 3, heads, width), 2, 0)
    logits = jnp.einsum("bihc,bjhc->bhij", query, key)
    distance = np.arange(length)[:, None] - np.arange(length)
    if relative is not None:
        by_distance = relative.reshape(-1, heads, width)[np.minimum(length - 1 - distance, len(relative) - 1)]
        logits += jnp.einsum("bihc,ijhc->bhij", query, by_distance)
    seen = distance >= 0 if causal else distance > -length
    weights = jax.nn.softmax(jnp.where(seen, logits / math.sqrt(width), -jnp.inf))
    return jnp.einsum("bhij,bjhc->bihc", weights, value).reshape(b, length, -1)


def in_loops(projected, relative, heads, causal):
    return cpu.attention(attention.attend_rows, projected, relative, heads, causal)


def with_gradients(attention, projected, relative, weights, heads, causal):
    given = [array for array in (projected, relative) if array is not None]

    def total(*given):
        output = attention(*given, *[None] * (2 - len(given)), heads, causal)
        return (output * weights).sum(), output

    (_, output), gradients = jax.jit(jax.value_and_grad(total, range(len(given)), has_aux=True))(*given)
    return output, *gradients


def test_weights_of_one_and_of_equal_parts():
    """Logits of some thousands give one key the whole weight. Logits of 0 give equal weights."""
    heads, width, length = 2, 8, 40
    for scale in (3e3, -3e3):
        projected, relative, _ = layer(2, length, heads, width, True, True, scale)
        output = jax.jit(in_loops, static_argnums=(2, 3))(projected, relative, heads, True)
        with jax.enable_x64(True):
            definition = jax.jit(by_definition, static_argnums=(2, 3))
            right = definition(np.float64(projected), np.float64(relative), heads, True)
        assert np.abs(np.asarray(output) - np.asarray(right)).max() < 0.01
    projected, _, _ = layer(2, length, heads, width, True, False, 0.0)
    values = projected.reshape(2, length, 3, heads * width)[:, :, 2]
    means = np.cumsum(values, axis=1) / np.arange(1, length + 1)[:, None]
    np.testing.assert_allclose(in_loops(jnp.asarray(projected), None, heads, True), means, rtol=1e-5, atol=1e-6)


def test_what_is_no_number_stays_where_it_is():
    """A NaN stays within its head and sequence.

    A NaN query changes only its own output. A NaN key changes the outputs of queries that see it. Gradients are also
    NaN, so that a training step detects them.
    """
    b, length, heads, width = 2, 50, 2, 8
    projected, relative, weights = layer(b, length, heads, width, True, True)
    each = projected.reshape(b, length, 3, heads, width)
    for kind, spoilt in ((0, lambda i: i == 33), (1, lambda i: i >= 33)):
        bad = each.copy()
        bad[1, 33, kind, 1, 3] = np.nan
        bad = jnp.asarray(bad.reshape(projected.shape))
        output, gradient, _ = with_gradients(in_loops, bad, relative, weights, heads, True)
        nothing = np.isnan(np.asarray(output).reshape(b, length, heads, width)).all(axis=-1)
        wanted = np.zeros_like(nothing)
        wanted[1, spoilt(np.arange(length)), 1] = True
        assert (nothing == wanted).all() and (
            np.isnan(output).reshape(b, length, heads, width).any(axis=-1) == wanted
        ).all()
        by_head = np.isnan(np.asarray(gradient).reshape(each.shape)).any(axis=(1, 2, 4))
        assert by_head.tolist() == [[False, False], [False, True]]


CALLS = {calls.ATTENTION, calls.EXPERTS}


def both_ways(run):
    program = jax.jit(run).lower()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(calls.SWITCH, "0")
        plain = jax.jit(lambda: run()).lower()
    assert calls.SWITCH == "ROUTELAWS_CPU_LOOPS" and not any(call in plain.as_text() for call in CALLS)
    return program.compile()(), plain.compile()(), {call for call in CALLS if call in program.as_text()}


MODELS = {
    "relative": {},
    "rotary": {"positions": "rotary"},
    "masked": {"objective": "masked"},
    "S-BASE": {"router": "sinkhorn", "experts": 4, "capacity_factor": math.inf},
    "a loop over ten blocks": {"router": "sinkhorn", "experts": 4, "capacity_factor": math.inf, "blocks": 10},
    "upper, k = 2, swiglu": {"router": "top_k", "experts": 4, "k": 2, "layout": "upper", "activation": "swiglu"},
}


QUICK = (("upper, k = 2, swiglu", "float32"),)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *QUICK,
        *(pytest.param(name, "float32", marks=pytest.mark.slow) for name in MODELS if (name, "float32") not in QUICK),
        pytest.param("relative", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_models(name, dtype):
    fields = {"vocab_size": 40, "d_model": 16, "blocks": 4, "heads": 2} | MODELS[name]
    config = ModelConfig(**fields)
    params = init(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (3, 33), 0, 40)
    hidden = None if config.objective == "causal" else np.arange(33) % 5 == np.arange(3)[:, None]

    def run():
        def total(params):
            return loss(params, tokens, config, hidden=hidden, compute_dtype=jnp.dtype(dtype)).total

        return jax.value_and_grad(total)(params)

    found, wanted, called = both_ways(run)
    assert called == (CALLS if config.num_routed else {calls.ATTENTION})
    limit = {"float32": 1e-5, "bfloat16": 0.1}[dtype]
    for this, that in zip(*(jax.tree.leaves(jax.device_get(each)) for each in (found, wanted)), strict=True):
        assert np.abs(this - that).max() <= limit * max(np.abs(that).max(), 1e-2), (name, that.shape)


def test_parameters_in_bfloat16_are_raised_before_loops_read_them():
    config = ModelConfig(vocab_size=40, d_model=16, blocks=2, heads=2, router="hash", experts=4)
    tokens = jax.random.randint(jax.random.key(1), (3, 33), 0, 40)
    table = np.arange(40)[:, None] % 4
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.bfloat16), init(jax.random.key(0), config))
    wide = jax.tree.map(np.float32, narrow)

    def run(params, dtype):
        total = functools.partial(loss, tokens=tokens, config=config, table=table, compute_dtype=dtype)
        value, gradient = jax.jit(jax.value_and_grad(lambda params: total(params).total))(params)
        return value, np.float32(gradient["routed_ffn"]["up"])

    (value, gradient), (wanted, right) = run(narrow, jnp.bfloat16), run(wide, jnp.float32)
    assert abs(value - wanted) < 0.02
    assert np.linalg.norm(gradient - right) < 0.05 * np.linalg.norm(right)
