"""The parts of the model, held values, initial weights, and bfloat16. `test_models.py` tests it with every router."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from routelaws.conformance.bounds import UNIT, bound_in
from routelaws.conformance.compare import assert_close_bounded, assert_same, differs
from routelaws.conformance.engine.harness import PRECISIONS, cast, gradient, inner, precisions_of, rounded, run
from routelaws.conformance.suite.strategies import LENGTH, MODELS, Case, case, cases, precisions, seeds
from routelaws.reference import transformer as reference
from routelaws.reference.notation import Routing

ROUTED = tuple(name for name in MODELS if name != "dense")
DROPPING = ("hash that drops", "sinkhorn, k = 3, sigmoid, drops", "top_k", "top_k, k = 2, sigmoid, drops")


def config_for(backend, drawn: Case):
    return backend.transformer.ModelConfig(**MODELS[drawn.name])


def routing_for(backend, routing):
    """Return a routing of the reference as the backend's type; None stays None."""
    return None if routing is None else backend.notation.Routing(*routing)


def run_apply(backend, drawn: Case):
    config = config_for(backend, drawn)
    return run(backend, "transformer.apply", "float64", drawn.params, drawn.tokens[:, :-1], config=config)


def logit_scale(wanted) -> float:
    """Return the largest logit. Final norms give all positions of a model the same size."""
    return float(np.abs(wanted.logits).max())


def check_forward(backend, drawn: Case, precision: str) -> None:
    drawn = drawn._replace(params=rounded(drawn.params, precision))
    wanted = reference.loss(drawn.params, drawn.tokens, drawn.config)
    output = wanted.output
    what = f"loss of {drawn.name}, {precision}"
    traced = {"held": routing_for(backend, output.routing)} if output.routing else {}
    found = run(
        backend,
        "transformer.loss",
        precision,
        drawn.params,
        drawn.tokens,
        traced=traced,
        config=config_for(backend, drawn),
    )
    scale = UNIT[precision] * logit_scale(output)
    assert_close_bounded("transformer.logits", found.output.logits, output.logits, scale, what=f"{what}: logits")
    for name in ("total", "cross_entropy"):
        assert_close_bounded("transformer.loss", getattr(found, name), getattr(wanted, name), scale, what=what)
    assert_close_bounded(
        "transformer.loss",
        found.output.auxiliary,
        output.auxiliary,
        UNIT[precision] * (1 + output.auxiliary),
        what=f"{what}: auxiliary",
    )
    fractions = output.dropped_fraction
    assert_close_bounded(
        "experts.dropped",
        found.output.dropped_fraction,
        fractions,
        UNIT[precision] * fractions,
        what=f"{what}: dropped",
    )
    if output.routing:
        scale = UNIT[precision] * np.ones_like(output.routing.gate)
        assert_close_bounded("transformer.gate", found.output.routing.gate, output.routing.gate, scale, what=what)
        assert_same(found.output.routing.expert, output.routing.expert, what=f"{what}: held experts")


def check_own_routing(backend, drawn: Case) -> None:
    """In float64 evaluation the backend's own selection is the reference's in every routed block."""
    wanted = reference.apply(drawn.params, drawn.tokens[:, :-1], drawn.config)
    found, what = run_apply(backend, drawn), f"apply of {drawn.name}"
    scale = UNIT["float64"] * logit_scale(wanted)
    assert_close_bounded("transformer.logits", found.logits, wanted.logits, scale, what=what)
    assert_same(found.routing.expert, wanted.routing.expert, what=f"{what}: experts")
    for field in ("gate", "load", "plan", "residual"):
        pair = getattr(found.routing, field), getattr(wanted.routing, field)
        assert_close_bounded("transformer.routing", *pair, UNIT["float64"], what=f"{what}: {field}")


@pytest.mark.asks("transformer.apply")
@pytest.mark.parametrize("name", ["sinkhorn, k = 3, sigmoid, drops", "base"])
@given(seed=seeds)
def test_own_routing_in_evaluation(backend, name, seed):
    check_own_routing(backend, case(name, seed))


@pytest.mark.asks("transformer.apply")
def test_the_menu_drops_and_keeps(backend):
    """Some models drop assignments in training, as other tests assume. Evaluation drops nothing."""
    for name in ROUTED:
        drawn = case(name, 0)
        for training in (True, False):
            tokens = drawn.tokens[:, :-1]
            share = reference.apply(drawn.params, tokens, drawn.config, training=training).dropped_fraction
            assert (share.max() > 0) == (training and name in DROPPING), (name, training, share)
            assert len(share) == drawn.config.num_routed


def training_loss(params, held, tokens, loss, config, held_type):
    """Return the total loss with a held routing, or (None) with the backend's own."""
    return loss(params, tokens, config, training=True, held=None if held is None else held_type(*held)).total


def moved_routing(held: Routing, num_experts: int) -> Routing:
    """Return the routing with every token at the next expert and every float changed."""
    experts = (held.expert + 1) % num_experts
    return Routing(experts, held.gate + 0.25, held.load + 0.5, held.plan * 3, held.residual + 1)


def loss_gradient(backend, drawn: Case, held, precision: str = "float64"):
    options = dict(
        precision=precision,
        loss=backend.transformer.loss,
        config=config_for(backend, drawn),
        held_type=backend.notation.Routing,
    )
    held = None if held is None else tuple(held)
    return gradient(training_loss, drawn.params, held, drawn.tokens, **options)


def held_loss(floats, params, expert, tokens, loss, config, held_type):
    held = held_type(expert, floats["gate"], floats["load"], floats["plan"], floats["residual"])
    return loss(params, tokens, config, training=True, held=held).total


HELD_MODELS = ("hash that drops", "sinkhorn, k = 3, sigmoid, drops")


@pytest.mark.asks("transformer.loss")
@pytest.mark.parametrize(
    "name", [name if name in HELD_MODELS else pytest.param(name, marks=pytest.mark.slow) for name in ROUTED]
)
def test_held_carries_no_gradient(backend, name):
    """A change of the held values changes the loss, but their gradient is 0."""
    drawn = case(name, 3)
    held = reference.loss(drawn.params, drawn.tokens, drawn.config).output.routing
    moved = moved_routing(held, drawn.config.experts)
    here, there = (reference.loss(drawn.params, drawn.tokens, drawn.config, held=h).total for h in (held, moved))
    if drawn.config.experts > drawn.config.k:  # otherwise every selection is the same
        assert abs(here - there) > 1e-4, f"{drawn.name}: the loss does not depend on what is held, so nothing is tested"
    config = config_for(backend, drawn)
    for routing, wanted in ((held, here), (moved, there)):
        found = run(
            backend,
            "transformer.loss",
            "float64",
            drawn.params,
            drawn.tokens,
            config=config,
            traced={"held": routing_for(backend, routing)},
        ).total
        assert_close_bounded("transformer.loss", found, wanted, UNIT["float64"] * 10, what=f"held loss, {drawn.name}")
    floats = {name: getattr(held, name) for name in ("gate", "load", "plan", "residual")}
    options = dict(loss=backend.transformer.loss, config=config, held_type=backend.notation.Routing)
    found = gradient(held_loss, floats, drawn.params, held.expert, drawn.tokens, **options)
    for name, value in found.items():
        assert_same(value, np.zeros_like(value), what=f"gradient of the loss of {drawn.name} in held {name}")


@pytest.mark.asks("experts.routed_ffn", "transformer.apply")
@pytest.mark.parametrize(
    "name",
    ["sinkhorn", "sinkhorn, k = 3, sigmoid, drops", pytest.param("sinkhorn, k = 2, no limit", marks=pytest.mark.slow)],
)
def test_which_blocks_are_routed(backend, name):
    """Block i is routed iff (i + 1) mod 1/R = 0.

    The gates of routed block r depend only on the dense FFNs before it. This shows the order of the tree and the places
    of the routed blocks.
    """
    drawn = case(name, 2)
    config = drawn.config
    assert config.router == "sinkhorn"
    gates = np.asarray(run_apply(backend, drawn).routing.gate)  # [n_r, T, k]
    dense = [i for i in range(config.blocks) if (i + 1) * config.routing_frequency % 1 != 0]
    routed = [i for i in range(config.blocks) if i not in dense]
    for name, blocks in (("dense_ffn", dense), ("routed_ffn", routed)):
        for index, block in enumerate(blocks):
            up = drawn.params[name]["up"].copy()
            up[index] *= 0.5
            params = drawn.params | {name: drawn.params[name] | {"up": up}}
            found = np.asarray(run_apply(backend, drawn._replace(params=params)).routing.gate)
            moved = [bool(differs(found[r], gates[r]).any()) for r in range(len(routed))]
            wanted = [place > block for place in routed]
            assert moved == wanted, f"{drawn.name}: {name} {index} changed, as block {block}; gates moved: {moved}"


def flat(tree: dict, path=()) -> dict:
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: leaf for name, node in tree.items() for key, leaf in flat(node, (*path, name)).items()}


@pytest.mark.asks("transformer.parameter_shapes", "transformer.init")
def test_initial_weights(backend):
    """A normal distribution truncated at two deviations has 0.8796 of the original deviation."""
    fields = MODELS["sinkhorn"] | dict(vocab_size=400, d_model=32)
    kept = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    config = backend.transformer.ModelConfig(**fields)
    init = jax.jit(backend.transformer.init, static_argnums=1)
    trees = (init(jax.random.key(0), config), reference.init(np.random.default_rng(0), reference.ModelConfig(**fields)))
    shapes = flat(reference.parameter_shapes(reference.ModelConfig(**fields)))
    for tree in map(flat, trees):
        assert tree.keys() == shapes.keys()
        for path, (shape, deviation) in shapes.items():
            leaf = np.asarray(tree[path], np.float64)
            assert leaf.shape == shape
            if deviation == 0:
                assert np.all(leaf == (path[-1] == "scale")), path
                continue
            assert np.abs(leaf).max() <= 2 * deviation * (1 + 2 * UNIT["float32"]), path
            scale = kept * deviation / math.sqrt(leaf.size)
            assert_close_bounded("transformer.init_mean", leaf.mean(), 0.0, scale, what=str(path))
            assert_close_bounded("transformer.init_deviation", leaf.std(), kept * deviation, scale, what=str(path))
        # No two leaves, blocks or experts start with the same draws, in units of the deviation.
        firsts = [
            tuple(np.round(row[:3] / deviation, 3))
            for path, (_, deviation) in shapes.items()
            if deviation
            for row in np.asarray(tree[path], np.float64).reshape(len(tree[path]), -1)[:4]
        ]
        assert len(set(firsts)) == len(firsts), "two parts of the weights were drawn alike"
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in flat(trees[0]).values())
    again = flat(init(jax.random.key(1), config))
    assert np.any(np.asarray(again["embedding",]) != np.asarray(flat(trees[0])["embedding",]))


@pytest.mark.asks("transformer.init", "transformer.apply", "transformer.loss")
def test_weights_of_the_backend_run_in_the_reference(backend):
    drawn = case("sinkhorn", 1)
    params = jax.jit(backend.transformer.init, static_argnums=1)(jax.random.key(3), config_for(backend, drawn))
    drawn = drawn._replace(params=rounded(params, "float32"))
    check_forward(backend, drawn, "float32")
    check_own_routing(backend, drawn)
    assert vars(config_for(backend, drawn)) == vars(drawn.config)


def norm_scale(params: dict, x: np.ndarray, precision: str) -> np.ndarray:
    """Return u (|scale| max |x| / deviation + |offset|).

    In bfloat16 this is the unit of float32, and one rounding of the result adds its own u.
    """
    deviation = np.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True) + reference.NORM_EPSILON)
    inner = np.abs(params["scale"]) * np.abs(x).max(-1, keepdims=True) / deviation + np.abs(params["offset"])
    if precision == "bfloat16":
        return UNIT["float32"] * inner + UNIT[precision] * np.abs(reference.layer_norm(params, x))
    return UNIT[precision] * inner


@pytest.mark.asks("transformer.layer_norm")
@pytest.mark.parametrize("precision", [*PRECISIONS, "bfloat16"])
def test_norm_of_far_mean(backend, precision):
    """Rows have mean 300 and spread 1: the mean is not rounded to the storage precision."""
    precisions_of(backend, (precision,))
    random = np.random.default_rng(8)
    x = rounded(300 + 1.5 * random.standard_normal((6, 16)), precision)
    params = rounded({"scale": random.uniform(0.5, 2, 16), "offset": random.standard_normal(16)}, precision)
    found, wanted = run(backend, "transformer.layer_norm", precision, params, x), reference.layer_norm(params, x)
    name, scale = bound_in("transformer.layer_norm", precision), norm_scale(params, x, precision)
    assert_close_bounded(name, found, wanted, scale, what=f"layer_norm of rows of mean 300, {precision}")
    assert np.abs(wanted).max() > 1, "there is something to lose"


def check_parts(backend, drawn: Case, precision: str) -> None:
    params = rounded(drawn.params, precision)
    block = reference._at(params["blocks"], 0)
    x = rounded(np.random.default_rng(drawn.seed).standard_normal((2, LENGTH, drawn.config.d_model)), precision)
    unit = UNIT[precision]
    found = run(backend, "transformer.layer_norm", precision, block["ffn_norm"], x)
    wanted = reference.layer_norm(block["ffn_norm"], x)
    name = bound_in("transformer.layer_norm", precision)
    scale = norm_scale(block["ffn_norm"], x, precision)
    assert_close_bounded(name, found, wanted, scale, what=f"layer_norm {precision}")
    found = run(backend, "transformer.attention", precision, block["attention"], x)
    wanted = reference.attention(block["attention"], x)
    # Values and weights are products over d, and an error of a logit is a relative error of its weight.
    size = np.abs(x).max() * max(np.abs(w).sum(axis=0).max() for w in block["attention"].values())
    scale = unit * (1 + size**2) * np.abs(wanted).max()
    name = bound_in("transformer.attention", precision)
    assert_close_bounded(name, found, wanted, scale, what=f"attention {precision}")


@pytest.mark.asks("transformer.layer_norm", "transformer.attention")
@given(drawn=cases(), precision=precisions)
def test_parts(backend, drawn, precision):
    check_parts(backend, drawn, precision)


@pytest.mark.asks("transformer.sinusoids")
@pytest.mark.parametrize(("length", "d_model"), [(1, 2), (5, 8), (64, 6)])
def test_sinusoids(backend, length, d_model):
    found, wanted = (module.sinusoids(length, d_model) for module in (backend.transformer, reference))
    assert_same(found, wanted, what=f"sinusoids {length, d_model}")
    assert np.all(wanted[0] == [0.0] * (d_model // 2) + [1.0] * (d_model // 2))
    both, wide = (module.sinusoids(length, d_model, 1 - length) for module in (backend.transformer, reference))
    assert_same(both, wide, what=f"sinusoids {length, d_model}, on both sides")
    assert_same(wide[length - 1 :], wanted, what="the side of the past")


@pytest.mark.asks("transformer.rotary")
@given(seed=seeds, precision=precisions)
def test_rotary_products_know_distances_only(backend, seed, precision):
    """The product of a query and a key 3 positions apart is the same everywhere, and lengths do not change."""
    query, key = rounded(np.random.default_rng(seed).standard_normal((2, 6)), precision)
    turned = [np.asarray(run(backend, "transformer.rotary", precision, np.tile(one, (7, 1)))) for one in (query, key)]
    scale = UNIT[precision] * np.linalg.norm(query) * np.linalg.norm(key)
    products = (turned[0][3:].astype(float) * turned[1][:-3].astype(float)).sum(axis=1)
    wanted = np.full(4, reference.rotary(np.tile(query, (7, 1)))[3] @ key)
    assert_close_bounded("transformer.rotary", products, wanted, scale, what=f"rotary products, {precision}")
    lengths = np.linalg.norm(turned[0].astype(float), axis=1)
    scale, wanted = UNIT[precision] * query @ query, np.full(7, query @ query)
    assert_close_bounded("transformer.rotary", lengths**2, wanted, scale, what=f"rotary lengths, {precision}")


@pytest.mark.asks("transformer.loss")
@pytest.mark.twin
@pytest.mark.parametrize("name", MODELS)
def test_types(backend, name):
    drawn = case(name, 0)
    config, (b, length) = drawn.config, (len(drawn.tokens), drawn.tokens.shape[1] - 1)
    loss = functools.partial(backend.transformer.loss, config=config_for(backend, drawn))
    found = jax.eval_shape(loss, cast(drawn.params, "float32"), cast(drawn.tokens, "float32"))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    assert found.total.shape == found.cross_entropy.shape == ()
    assert found.output.logits.shape == (b, length, config.vocab_size)
    assert found.output.dropped_fraction.shape == (config.num_routed,)
    if name == "dense":
        assert found.output.routing is None
        return
    head, experts = (config.num_routed, b * length), config.experts
    wanted = [(*head, config.k), (*head, config.k), (config.num_routed, experts), (*head, experts), head[:1]]
    assert [field.shape for field in found.output.routing] == wanted
    assert found.output.routing.expert.dtype == jnp.int32


@pytest.mark.asks("experts.routed_ffn", "notation.log_sum_exp", "transformer.loss")
@pytest.mark.twin
@pytest.mark.parametrize("name", [pytest.param("dense", marks=pytest.mark.slow), "sinkhorn"])
@given(seed=seeds)
def test_bfloat16(backend, name, seed):
    """Matrix products are in bfloat16. The loss stays in float32."""
    drawn = case(name, seed)
    params = rounded(drawn.params, "float32")
    wanted = reference.loss(params, drawn.tokens, drawn.config)
    held = wanted.output.routing
    traced = {} if held is None else {"held": routing_for(backend, held)}
    found = run(
        backend,
        "transformer.loss",
        "float32",
        params,
        drawn.tokens,
        traced=traced,
        config=config_for(backend, drawn),
        compute_dtype=jnp.bfloat16,
    )
    assert found.output.logits.dtype == jnp.bfloat16 and found.total.dtype == jnp.float32
    scale = UNIT["bfloat16"] * logit_scale(wanted.output)
    what = f"{drawn.name} in bfloat16"
    logits = np.asarray(found.output.logits, np.float64)
    assert_close_bounded("transformer.bfloat16", logits, wanted.output.logits, scale, what=what)
    assert np.abs(logits - wanted.output.logits).max() > 0.1 * scale, f"{what}: nothing was rounded to bfloat16"
    check_loss_of_logits(found, drawn, logits, what)
    if drawn.name == "sinkhorn":
        check_router_is_not_rounded(backend, drawn, params, traced, what)


def check_loss_of_logits(found, drawn: Case, logits: np.ndarray, what: str) -> None:
    """The loss is computed in float32 from logits in 16 bits."""
    log_z = reference.log_sum_exp(logits, axis=-1)
    cross_entropy = np.mean(log_z - np.take_along_axis(logits, drawn.tokens[:, 1:, None], axis=-1)[..., 0])
    scale = UNIT["float32"] * np.abs(logits).max()
    assert_close_bounded("transformer.loss", found.cross_entropy, cross_entropy, scale, what=f"{what}: loss of logits")
    total = cross_entropy + np.sum(np.asarray(found.output.auxiliary, np.float64))
    assert_close_bounded("transformer.loss", found.total, total, scale, what=f"{what}: total")


def check_router_is_not_rounded(backend, drawn: Case, params: dict, traced: dict, what: str) -> None:
    """A change of the router weights by 2^-12, which bfloat16 cannot resolve, moves the gates linearly."""
    gates = []
    for step in range(3):
        routed = params["routed_ffn"] | {"router": params["routed_ffn"]["router"] * (1 + step * 2.0**-12)}
        found = run(
            backend,
            "transformer.loss",
            "float32",
            params | {"routed_ffn": routed},
            drawn.tokens,
            traced=traced,
            config=config_for(backend, drawn),
            compute_dtype=jnp.bfloat16,
        )
        gates.append(np.asarray(found.output.routing.gate, np.float64)[0])  # later blocks have another x
    once, twice = gates[1] - gates[0], gates[2] - gates[0]
    moved = np.abs(once).max()
    assert moved > 2.0**-16, f"{what}: the gates do not move"
    assert_close_bounded("transformer.router_step", twice, 2 * once, moved, what=f"{what}: gates, router moved")


@pytest.mark.asks("transformer.loss")
@pytest.mark.slow
def test_gradient_in_float32(backend):
    drawn = case("sinkhorn", 6)
    drawn = drawn._replace(params=rounded(drawn.params, "float32"))
    held = reference.loss(drawn.params, drawn.tokens, drawn.config).output.routing
    exact = loss_gradient(backend, drawn, held)
    found = loss_gradient(backend, drawn, held, "float32")
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(found))
    difference = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, found, exact)
    error, scale = (math.sqrt(inner(tree, tree)) for tree in (difference, exact))
    assert_close_bounded("transformer.gradient_float32", error, 0.0, UNIT["float32"] * scale, what="float32 gradient")


def test_a_token_out_of_range_is_an_error_in_the_reference():
    drawn = case("dense", 0)
    with pytest.raises(ValueError, match="tokens range from 0 to 13; allowed: 0 to 12"):
        reference.apply(drawn.params, np.array([[0, 13]]), drawn.config)
