"""The optimizer compared with AdamW in NumPy, at nonzero parameters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training import optimizer, step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.transformer import Loss, Output
from routelaws.conformance.bounds import check
from routelaws.reference.schedules import learning_rates

CONFIG = from_mapping(
    dict(
        steps=12, warmup=0.25, learning_rate=0.5, weight_decay=0.3, gradient_clip=2.0, router_rate=0.25, vocab_size=300
    )
)

SHAPES = {
    "embedding": (3, 2),
    "blocks": {"attention_norm": {"scale": (2, 2), "offset": (2, 2)}, "attention": {"query": (2, 2, 1, 2)}},
    "routed_ffn": {"up": (1, 2, 2, 3), "down": (1, 2, 3, 2), "router": (1, 2, 2), "bias": (1, 2),
                   "router_bias": (1, 2), "log_temperature": (1, 1),
                   "baseline": {"hidden": (1, 2, 2), "out": (1, 2)}},
    "final_norm": {"scale": (2,), "offset": (2,)},
}  # fmt: skip

DECAYED = {"embedding", "query", "up", "down", "router", "hidden"}
"""Matrices; others are scales, offsets, biases and the last layer of a baseline, a vector in each block."""

RATES = [1 / 6, 1 / 3, 1 / 2] + [0.05 + 0.225 * (1 + math.cos(math.pi * i / 9)) for i in range(9)]
"""Rates of 12 steps by hand: a quarter warms up by thirds of the peak 0.5, then half a cosine falls to 0.05."""


def draw(random, shape):
    if isinstance(shape, dict):
        return {name: draw(random, inner) for name, inner in shape.items()}
    return random.uniform(0.5, 2, shape) * random.choice([-1, 1], shape)


def flat(tree: dict) -> dict:
    return {tuple(part.key for part in path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def adamw(params: dict, gradients: list) -> list[dict]:
    """Return the parameters after each step: clipping by the norm over all leaves, Adam (0.9, 0.95, 1e-8), decay."""
    first, second = ({path: np.zeros(leaf.shape) for path, leaf in params.items()} for _ in range(2))
    after = []
    for t, gradient in enumerate(gradients, 1):
        norm = math.sqrt(sum((leaf**2).sum() for leaf in gradient.values()))
        share = min(1, CONFIG.gradient_clip / norm)
        moved = {}
        for path, leaf in params.items():
            g = gradient[path] * share
            first[path] = 0.9 * first[path] + 0.1 * g
            second[path] = 0.95 * second[path] + 0.05 * g**2
            direction = first[path] / (1 - 0.9**t) / (np.sqrt(second[path] / (1 - 0.95**t)) + 1e-8)
            decay = CONFIG.weight_decay * leaf * (path[-1] in DECAYED)
            rate = RATES[t - 1] * (CONFIG.router_rate if path[-1] in ("router", "router_bias") else 1)
            moved[path] = leaf - rate * (direction + decay)
        params = moved
        after.append(moved)
    return after


@pytest.fixture(scope="module")
def update():
    transformation = optimizer.optimizer(CONFIG)

    @jax.jit
    def update(gradient, state, params):
        updates, state = transformation.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    return transformation.init, update


def draw_gradients(random, shapes) -> list[dict]:
    """Return four gradients.

    Their leaves differ by a factor of a thousand, so clipping by entry or by leaf would change the direction. The third
    gradient is below the limit and is not clipped.
    """
    gradients = [draw(random, shapes) for _ in range(4)]
    for i, gradient in enumerate(gradients):
        sizes = iter(10.0 ** random.uniform(-3, 0, 14))
        gradient = jax.tree.map(lambda leaf, sizes=sizes: leaf * next(sizes), gradient)
        factor = CONFIG.gradient_clip * (0.5 if i == 2 else 10) / norm_of(gradient)
        gradients[i] = jax.tree.map(lambda leaf, factor=factor: leaf * factor, gradient)
    assert [norm_of(gradient) > CONFIG.gradient_clip for gradient in gradients] == [True, True, False, True]
    return gradients


def norm_of(gradient: dict):
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)) ** 0.5


def test_every_leaf_moves_as_by_adamw(update):
    init, update = update
    random = np.random.default_rng(5)
    with jax.enable_x64(True):
        params, gradients = jax.tree.map(jnp.asarray, draw(random, SHAPES)), draw_gradients(random, SHAPES)
        wanted, state = adamw(flat(params), [flat(gradient) for gradient in gradients]), init(params)
        for t, gradient in enumerate(gradients):
            params, state = update(gradient, state, params)
            found = flat(params)
            assert found.keys() == wanted[t].keys()
            for path, leaf in wanted[t].items():
                error = np.abs(found[path] - leaf).max()
                check("training.optimizer", error, np.abs(leaf).max(), message=f"{'/'.join(path)} after step {t + 1}")


def test_decay_is_of_matrices_alone(update):
    init, update = update
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, draw(np.random.default_rng(6), SHAPES))
        moved = flat(update(jax.tree.map(jnp.zeros_like, params), init(params), params)[0])
    for path, leaf in flat(params).items():
        rate = RATES[0] * CONFIG.weight_decay * (path[-1] in DECAYED) * (0.25 if path[-1] == "router" else 1)
        error = np.abs(moved[path] - leaf * (1 - rate)).max()
        check("training.optimizer", error, np.abs(leaf).max(), message="/".join(path))


def test_every_parameter_of_a_model_is_known_to_be_decayed_or_not():
    fields = dict(vocab_size=300, d_model=8, heads=1)
    for routed in ({"router": "reinforce"}, {"router": "quantile"}, {"router": "hash"}):
        config = from_mapping(dict(**fields, experts=2, **routed))
        shapes = jax.tree.leaves_with_path(jax.eval_shape(lambda config=config: step.initial_state(config)).params)
        for path, leaf in shapes:
            vectors = 1 + (path[0].key != "final_norm")  # stacked over blocks
            undecayed = leaf.ndim <= vectors and path[0].key != "embedding"
            assert (path[-1].key in optimizer.NOT_DECAYED) == undecayed, path


def test_a_model_that_exceeds_the_memory_is_named_with_both_sizes(monkeypatch):
    """Weights and two moments: 12 bytes for each parameter."""
    config = from_mapping({"d_model": 2**11, "blocks": 64, "heads": 16})
    needed = 12 * config.accounting().total_parameters
    memory = {"SC_PHYS_PAGES": needed, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(optimizer.os, "sysconf", memory.get)
    optimizer.check_memory(config)
    memory["SC_PHYS_PAGES"] //= 2
    with pytest.raises(InputError) as error:
        optimizer.check_memory(config)
    assert str(error.value) == (
        "the model has 3.49e+09 parameters, with the optimizer's moments 42 GB; this machine has 21 GB; choose a "
        "smaller model"
    )


def test_every_schedule_is_that_of_the_reference():
    """20 steps by hand: 4 up, 12 at the peak of 0.5, 4 down. The cosine uses optax in float32."""
    plans = {
        "cosine": {"warmup": 0.25}, "constant": {"warmup_steps": 4}, "wsd": {"warmup_steps": 4},
        "wsd by a root": {"warmup_steps": 4, "decay": 0.45, "decay_shape": "sqrt"},
    }  # fmt: skip
    found = {}
    for name, plan in plans.items():
        config = from_mapping({"steps": 20, "learning_rate": 0.5, "schedule": name.split()[0], **plan})
        config.check()
        warmup_steps = 5 if name == "cosine" else 4
        wanted = 0.5 * learning_rates(config.schedule, 20, warmup_steps, config.decay, config.decay_shape)
        found[name] = np.asarray(optimizer.rates_of_steps(config))
        check("training.rate", np.abs(found[name] / wanted - 1).max(), message=name)
        assert optimizer.rates_of_steps(config).dtype == np.float32
    flat = [0.125, 0.25, 0.375, *[0.5] * 17]
    assert np.allclose(found["constant"], flat) and np.allclose(found["wsd"], flat[:16] + [0.5, 0.375, 0.25, 0.125])
    root = [0.5 * (1 - math.sqrt(i / 9)) for i in range(9)]
    assert np.allclose(found["wsd by a root"], flat[:11] + root, atol=1e-7)


def test_the_peak_of_the_learning_rate_follows_from_the_dense_size():
    sizes = dict(vocab_size=300, heads=1)
    dense, few, many = (
        from_mapping(dict(**sizes, d_model=8, **routed))
        for routed in ({}, {"router": "hash", "experts": 2}, {"router": "hash", "experts": 64})
    )
    assert dense.peak_learning_rate() == few.peak_learning_rate() == many.peak_learning_rate()
    dense_parameters = many.accounting().dense_parameters
    assert many.peak_learning_rate() == 0.011 * (dense_parameters / 60_000) ** -0.37
    assert many.accounting().total_parameters > 2 * dense_parameters
    assert from_mapping(dict(**sizes, d_model=16)).peak_learning_rate() < dense.peak_learning_rate()
    assert from_mapping(dict(**sizes, d_model=16, learning_rate=0.25)).peak_learning_rate() == 0.25


def test_weights_and_moments_stay_in_float32(monkeypatch):
    """Steps of 2^-14 of a weight add up, although bfloat16 cannot resolve them."""
    model = dict(vocab_size=300, d_model=8, heads=1, router="quantile", experts=2, dtype="bfloat16")
    rates = dict(learning_rate=2.0**-14, steps=1000, warmup=0.0, weight_decay=0.0, router_rate=1.0)
    config = from_mapping(model | rates | dict(sequence_length=4, batch_size=2))
    left = jnp.array([[0.125, -0.25]])

    def told_loss(params, tokens, model, *, compute_dtype, **options):
        assert compute_dtype == jnp.bfloat16
        total = sum(leaf.sum() for leaf in jax.tree.leaves(params))
        output = Output(None, None, jnp.zeros(1), jnp.zeros(1), params["routed_ffn"]["bias"] + left, None)
        return Loss(total, total, output, None)

    monkeypatch.setattr(step, "loss", told_loss)
    monkeypatch.setattr(step, "_shared_steps", step._shared_steps.__wrapped__)
    state = step.initial_state(config)
    before = flat(state.params)
    after, _ = step.make_train_steps(config)(state, np.zeros((8, 2, 5), np.int32), 0)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(after)} == {"float32", "int32"}
    for path, leaf in flat(after.params).items():
        if path[-1] == "bias":
            assert np.array_equal(leaf, 8 * left)
            continue
        # The gradient is 1 at every step, so Adam moves by the rate, minus a small effect of the cosine.
        check("training.small_steps", np.abs(before[path] - leaf - 8 * 2.0**-14).max(), 2.0**-14, message=str(path))
