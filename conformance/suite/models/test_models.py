"""Every router inside the whole model: its loss, gradient and causality. With one expert it equals the dense model.

In float64 the backend routes for itself. Random weights put no token near a tie.
"""

import dataclasses
import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws import reference as oracle
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_derivative, assert_same
from routelaws.conformance.engine.harness import cast, gradient, inner, random_direction, rounded, run
from routelaws.conformance.suite import strategies
from routelaws.conformance.suite.strategies import BATCH, LENGTH, missing_routers
from routelaws.reference import configuration, routed_block
from routelaws.reference import transformer as reference
from routelaws.reference.routers.records import EXAMPLES, RECORDS

MODEL_FUNCTIONS = (
    "routed_block.routed_block",
    "routed_block.hash_table",
    "transformer.parameter_shapes",
    "transformer.draw_noise",
)
"""The functions that every test of a whole model needs."""

SMALL = strategies.SMALL | dict(blocks=2)

MODELS = strategies.MODELS | {
    "wide": dict(flop_increase=3),
    "hash of the token before, k = 2, G = 2": dict(router="hash", experts=4, k=2, granularity=2, hash="previous"),
    "hash of the position": dict(router="hash", experts=3, hash="position"),
    "bigram hash": dict(router="hash", experts=3, hash="bigram"),
    "MultiHash": dict(router="hash", experts=3, granularity=2, hash="multi"),
    "sinkhorn, k = 4, G = 2": dict(router="sinkhorn", experts=5, k=4, granularity=2),
    "base, k = 2, G = 2": dict(router="base", experts=4, k=2, granularity=2),
    "quantile, drops": dict(router="quantile", experts=4, capacity_factor=0.7),
    "quantile, G = 4": dict(router="quantile", experts=2, granularity=4, gate="softmax"),
    "top_k with a bias, token order": dict(router="top_k", experts=4, k=2, bias_rate=0.01, drop_order="token",
                                           capacity_factor=0.7),
    "top_k, G = 2, largest gate first": dict(router="top_k", experts=4, granularity=2, drop_order="priority",
                                             capacity_factor=0.6, normalisation="softmax", gate="sigmoid"),
    "DeepSeek-V3": dict(router="top_k", experts=4, granularity=2, gate="sigmoid", bias_rate=0.01, gate_scale=2.5,
                        expert_groups=4, groups_per_token=2, shared_experts=1, balance_scope="sequence", kqv_size=4,
                        balance_weight=0.1, activation="swiglu", positions="rotary", capacity_factor=math.inf),
    "GPT-OSS": dict(router="top_k", experts=4, k=2, normalisation="softmax", router_bias=True, kqv_size=4,
                    activation="swiglu", positions="rotary", capacity_factor=math.inf, routing_frequency=1.0),
    "LatentMoE": dict(router="top_k", experts=4, k=2, latent_width=6, shared_experts=1, capacity_factor=0.7,
                      activation="swiglu"),
    "LatentMoE of a list": dict(router="hash,top_k", experts=4, granularity=2, latent_width=4, blocks=2,
                                routing_frequency=1.0, activation="relu"),
    "zero-computation experts": dict(router="top_k", experts=3, k=2, zero_experts=4, bias_rate=0.1, real_experts=0.75,
                                     capacity_factor=0.6, latent_width=6),
    "constant experts": dict(router="top_k", experts=4, k=2, zero_experts=3, zero_kind="constant", router_bias=True,
                             shared_experts=1, balance_weight=0.2, drop_order="priority", capacity_factor=0.7),
    "experts that return 0": dict(router="top_k", experts=3, zero_experts=1, zero_kind="zero"),
    "mixture, shared experts": dict(router="mixture_of_tokens", experts=3, shared_experts=2),
    "GShard": dict(router="top_k", experts=4, k=2, sample_second=True),
    "reinforce": dict(router="reinforce", experts=4),
    "reinforce with everything": dict(router="reinforce", experts=4, k=2, granularity=2, nucleus=0.9,
                                      entropy_weight=0.1, policy_weight=1.0, baseline_weight=0.0, reward_to_go=True,
                                      capacity_factor=0.8),
    "expert_choice": dict(router="expert_choice", experts=3, k=2, granularity=2),
    "expert_choice in sequences": dict(router="expert_choice", experts=3, grouping="sequence", gate="sigmoid"),
    "mixture": dict(router="mixture_of_tokens", experts=3, granularity=2, temperature=0.5),
    "mixture of one": dict(router="mixture_of_tokens", experts=2, group_size=1),
    "fine-grained": dict(router="expert_choice", experts=3, granularity=2, routing_frequency=1.0, kqv_size=4,
                         positions="rotary", output_norm=True),
    "joint": dict(router="top_k", experts=4, routing_frequency=1.0, kqv_size=4, activation="swiglu",
                  positions="rotary", capacity_factor=1.0, z_weight=0.001),
    "mixture in the upper blocks": dict(router="mixture_of_tokens", experts=3, blocks=3, routing_frequency=2 / 3,
                                        layout="upper", emit="experts", learned_temperature=True, temperature=0.5,
                                        activation="swiglu"),
    "mixture with two temperatures": dict(router="mixture_of_tokens", experts=3, learned_temperature=True),
    "sinkhorn above, normed": dict(router="sinkhorn", experts=4, k=2, blocks=5, routing_frequency=0.4, layout="upper",
                                   granularity=2, activation="swiglu", output_norm=True, capacity_factor=0.8),
    "hash, then two routers with biases": dict(router="hash,quantile,top_k", experts=4, blocks=3, bias_rate=0.1,
                                               routing_frequency=1.0),
    "wide above": dict(flop_increase=2, blocks=3, routing_frequency=1 / 3, layout="upper", activation="relu"),
}  # fmt: skip
MISSING = missing_routers(MODELS)
MODELS |= MISSING
"""Small models; b is 3 and S is 5."""

QUICK = (
    "sinkhorn, k = 3, sigmoid, drops", "base", "top_k, k = 2, sigmoid, drops",
    "hash of the token before, k = 2, G = 2", "quantile, drops", "top_k with a bias, token order", "DeepSeek-V3",
    "reinforce with everything", "expert_choice", "mixture in the upper blocks", *MISSING,
)  # fmt: skip
"""Models that the quick tests of `test_plain_model.py` cover least; the others are slow."""

SEEING = (
    "sinkhorn, k = 3, sigmoid, drops", "top_k, k = 2, sigmoid, drops",
    "hash of the token before, k = 2, G = 2", "quantile, drops", "expert_choice", "expert_choice in sequences",
    "mixture",
)  # fmt: skip
"""Models whose routers depend on other tokens."""


def each_of(quick, names=MODELS):
    """Return a mark that runs a test for every name. Names outside `quick` run only in `make test-all`."""
    some = [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", some)


def build(module, name: str, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # groups within sequences are intended here
        return module.ModelConfig(**(SMALL | MODELS.get(name, {}) | changes))


def draw(config, seed: int):
    """Return (weights, tokens [b, S + 1], noise, table)."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, config.vocab_size, (BATCH, LENGTH + 1))
    # A router cannot distinguish equal tokens with equal predecessors, and rounding would decide between them.
    tokens[:, 0] = np.arange(BATCH)
    tokens[:, 1] = (tokens[:, 0] + 1 + tokens[:, 1] % (config.vocab_size - 1)) % config.vocab_size
    noise, table = reference.draw_noise(random, config, BATCH, LENGTH), None
    if config.router == "hash" and config.hash in ("multi", "bigram"):
        shape = (2, config.vocab_size) if config.hash == "bigram" else (config.vocab_size, config.choices)
        table = routed_block.hash_table(config, uniforms=random.random(shape))
    return strategies.weights(random, reference.parameter_shapes(config)), tokens, noise, table


def total_loss(params, tokens, noise, table, more, loss, config, training=True):
    found = loss(params, tokens, config, training=training, noise=noise, table=table, **more)
    return found.total, found


def assert_tree(name: str, found, wanted, unit: float, *, what: str) -> None:
    """Compare two records field by field: integers exactly, floats to the bound in units of the largest entry."""
    for field in wanted._fields:
        ours, theirs = getattr(found, field), getattr(wanted, field)
        if theirs is None:
            assert ours is None, f"{what}: {field} is there"
        elif hasattr(theirs, "_fields"):
            assert_tree(name, ours, theirs, unit, what=f"{what}: {field}")
        elif np.issubdtype(np.asarray(theirs).dtype, np.integer):
            assert_same(ours, theirs, what=f"{what}: {field}")
        elif np.size(theirs):
            scale = unit * max(1.0, float(np.abs(theirs).max()))
            assert_close_bounded(name, ours, theirs, scale, what=f"{what}: {field}")


def check_model(backend, name: str, seed: int, *, hidden=None, mask=None, **changes) -> None:
    """Compare the loss for the backend's own routing, and its gradient with differences at a held routing."""
    config = build(reference, name, **changes)
    params, tokens, noise, table = draw(config, seed)
    tokens = tokens[:, :-1] if config.objective == "masked" else tokens
    more = {key: value for key, value in (("hidden", hidden), ("mask", mask)) if value is not None}
    options = dict(loss=backend.transformer.loss, config=build(backend.transformer, name, **changes))
    slope, found = gradient(total_loss, params, tokens, noise, table, more, has_aux=True, **options)
    wanted = reference.loss(params, tokens, config, noise=noise, table=table, **more)
    if mask is not None:  # values in the padding may differ
        found, wanted = (without_padding(one, mask) for one in (found, wanted))
    assert_tree("transformer.model", found, wanted, UNIT["float64"], what=f"loss of {name}, seed {seed}")

    def value(params):
        held = dict(held=wanted.output.routing, held_credit=wanted.credit)
        return reference.loss(params, tokens, config, noise=noise, table=table, **held, **more).total

    assert abs(value(params) - wanted.total) <= 4 * UNIT["float64"] * abs(wanted.total), (
        "another loss with all of it held"
    )
    scale = math.sqrt(inner(slope, slope))
    for i in range(3):
        direction = random_direction(params, seed + i)
        if config.router == "reinforce" and config.baseline_weight:
            direction = only_baseline(direction)
        what = f"gradient of the training loss of {name}, seed {seed}"
        step = 2.0 ** (-18 if config.activation == "relu" else -16)  # a smaller step crosses fewer kinks
        assert_derivative("transformer.gradient", slope, value, params, direction, scale, what=what, step=step)


def without_padding(found, mask):
    """Return a loss with zeros for the logits, and RL-R's logits and values, of padded tokens."""
    flat, output = mask.reshape(-1), found.output
    output = output._replace(logits=np.where(mask[..., None], output.logits, 0))
    if output.policy is not None:
        logits, value = output.policy
        policy = output.policy._replace(logits=np.where(flat[:, None], logits, 0), value=np.where(flat, value, 0))
        output = output._replace(policy=policy)
    return found._replace(output=output)


def only_baseline(direction: dict) -> dict:
    """Return a direction in the weights of RL-R's baselines.

    The baseline's error has no gradient in its input, but differences along other weights would include it.
    """
    still = jax.tree.map(np.zeros_like, direction)
    return still | {"routed_ffn": still["routed_ffn"] | {"baseline": direction["routed_ffn"]["baseline"]}}


@pytest.mark.asks(*MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.loss")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@each_of(QUICK)
def test_model(backend, name, seed):
    check_model(backend, name, seed)


def type_of(backend, routing):
    return getattr(backend.notation, type(routing).__name__)(*routing)


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.loss")
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_float32(backend, name):
    config = build(reference, name)
    params, tokens, noise, table = rounded(draw(config, 4), "float32")
    wanted = reference.loss(params, tokens, config, training=True, noise=noise, table=table)
    held = None if wanted.output.routing is None else type_of(backend, wanted.output.routing)
    traced = {key: value for key, value in (("noise", noise), ("table", table), ("held", held)) if value is not None}
    found = run(
        backend,
        "transformer.loss",
        "float32",
        params,
        tokens,
        config=build(backend.transformer, name),
        traced=traced,
        training=True,
    )
    scale = UNIT["float32"] * np.abs(wanted.output.logits).max()
    what = f"loss of {name}, float32"
    assert_close_bounded("transformer.logits", found.output.logits, wanted.output.logits, scale, what=what)
    assert_close_bounded("transformer.loss", found.cross_entropy, wanted.cross_entropy, scale, what=what)
    assert_close_bounded(
        "transformer.loss", found.total, wanted.total, (1 + len(found.output.auxiliary)) * scale, what=what
    )


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.loss")
@pytest.mark.twin
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_types_in_bfloat16(backend, name, training):
    """The test checks only types. Matrix products are lowered; losses, biases and gradients stay in float32."""
    drawn = cast(draw(build(reference, name), 1), "float32")
    params, *rest = drawn

    def both(params):
        tokens, noise, table = rest
        found = backend.transformer.loss(
            params,
            tokens,
            build(backend.transformer, name),
            training=training,
            noise=noise,
            table=table,
            compute_dtype=jnp.bfloat16,
        )
        return found.total, found

    (total, found), gradient = jax.eval_shape(jax.value_and_grad(both, has_aux=True), params)
    output = found.output
    wide = (total, found.cross_entropy, output.auxiliary, output.dropped_fraction, output.bias, gradient)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype("float32")}
    assert output.logits.dtype == jnp.bfloat16


def logits_of(backend, name, params, tokens, training=False, noise=None, table=None, **changes):
    traced = {key: value for key, value in (("noise", noise), ("table", table)) if value is not None}
    config = build(backend.transformer, name, **changes)
    found = run(
        backend, "transformer.apply", "float64", params, tokens, config=config, training=training, traced=traced
    )
    return np.asarray(found.logits)


def later_changed(tokens: np.ndarray, t: int) -> np.ndarray:
    """Return tokens [b, S] with other tokens after position t, in every sequence."""
    changed = tokens.copy()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + 1 + np.arange(tokens.shape[1] - t - 1)) % SMALL["vocab_size"]
    return changed


def check_future(backend, name: str, *, training: bool, leaks: bool, **changes) -> None:
    """Check whether tokens after t change an output up to t."""
    config = build(reference, name, **changes)
    params, tokens, noise, table = draw(config, 5)
    tokens, t = tokens[:, :-1], 2
    compute = functools.partial(
        logits_of, backend, name, params, training=training, noise=noise, table=table, **changes
    )
    before, after = compute(tokens), compute(later_changed(tokens, t))
    moved = np.abs(after - before)
    scale = np.abs(before).max()
    assert moved[:, t + 1 :].max() > 1e-3 * scale, "nothing was changed"
    if leaks:
        assert moved[:, : t + 1].max() > 1e-6 * scale, f"{name} was said to leak in training, and does not"
        return
    what = f"{name}, training {training}, up to token {t}, later tokens changed"
    assert_close_bounded(
        "transformer.logits", after[:, : t + 1], before[:, : t + 1], 2 * UNIT["float64"] * scale, what=what
    )


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.apply")
@each_of(SEEING)
def test_evaluation_is_causal(backend, name):
    check_future(backend, name, training=False, leaks=False)


LEAKS = {
    "sinkhorn, k = 4, G = 2": True,
    "base, k = 2, G = 2": True,
    "expert_choice in sequences": True,
    "quantile, drops": False,
    "GShard": False,
    "reinforce": False,
    "hash of the position": False,
    "expert_choice": False,
    "mixture": False,
}
"""Whether later tokens change earlier outputs in training, without drops."""


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.apply")
@pytest.mark.parametrize(
    "name", [n if n == "base, k = 2, G = 2" else pytest.param(n, marks=pytest.mark.slow) for n in LEAKS]
)
def test_what_leaks_in_training(backend, name):
    check_future(backend, name, training=True, leaks=LEAKS[name], capacity_factor=math.inf)


def check_batch(backend, name: str, independent: bool, **changes) -> None:
    """Check whether the evaluation of a sequence depends on the other sequences."""
    config = build(reference, name, **changes)
    params, tokens, _, table = draw(config, 6)
    tokens = tokens[:, :-1]
    others = np.concatenate([tokens[:1], (tokens[1:] + 3) % SMALL["vocab_size"]])
    before, after = (logits_of(backend, name, params, rows, table=table, **changes) for rows in (tokens, others))
    scale = np.abs(before).max()
    if independent:
        assert_close_bounded(
            "transformer.logits",
            after[0],
            before[0],
            2 * UNIT["float64"] * scale,
            what=f"evaluation of {name}, other sequences changed",
        )
    else:
        assert np.abs(after[0] - before[0]).max() > 1e-6 * scale, f"{name} does not depend on the batch"


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.apply")
@each_of(SEEING)
def test_what_depends_on_the_batch(backend, name):
    check_batch(backend, name, independent=build(reference, name).group_size == 1)


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.apply")
def test_a_mixture_alone_and_after_the_transition_does_not(backend):
    """Test a group of one, and the same weights under token choice, as after transition tuning."""
    check_batch(backend, "mixture", True, group_size=1)
    mixture, choice = (build(reference, "mixture", **changes) for changes in ({}, TUNED))
    assert reference.parameter_shapes(mixture) == reference.parameter_shapes(choice)
    check_batch(backend, "mixture", True, **TUNED)


TUNED = dict(router="top_k", temperature=1.0)
"""Options that turn the mixture of the menu into token choice."""

ONE_EXPERT = {
    "hash": dict(router="hash"),
    "sinkhorn": dict(router="sinkhorn"),
    "top_k": dict(router="top_k"),
    "base, softmax": dict(router="base", gate="softmax"),
    "reinforce": dict(router="reinforce"),
    "expert_choice": dict(router="expert_choice"),
    "mixture, g = 1": dict(router="mixture_of_tokens"),
    "quantile": dict(router="quantile"),  # a sigmoid gate
}


@pytest.mark.asks(*MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.apply")
@pytest.mark.parametrize(
    "name", [n if n in ("top_k", "quantile") else pytest.param(n, marks=pytest.mark.slow) for n in ONE_EXPERT]
)
def test_one_expert_is_the_dense_model(backend, name):
    """With one expert the routed model is the dense model. With a sigmoid gate it is gate times the dense FFN."""
    config = build(reference, "", **ONE_EXPERT[name])
    params, tokens, _, _ = draw(config, 7)
    tokens = tokens[:, :-1]
    if config.gate == "sigmoid":
        params["routed_ffn"]["router"] = params["routed_ffn"]["router"] * 0  # a gate of 1/2 for every token
    dense = {key: value for key, value in params.items() if key != "routed_ffn"}
    both = {key: np.concatenate([params["dense_ffn"][key], params["routed_ffn"][key][:, 0]]) for key in ("up", "down")}
    if config.gate == "sigmoid":
        both["down"][1] /= 2
    routed = logits_of(backend, "", params, tokens, **ONE_EXPERT[name])
    plain = reference.apply(dense | {"dense_ffn": both}, tokens, build(reference, "")).logits
    scale = UNIT["float64"] * np.abs(plain).max()
    assert_close_bounded("transformer.logits", routed, plain, scale, what=f"{name} with one expert against dense")


@pytest.mark.asks(
    *MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.apply", "transformer.carry_bias", "transformer.loss"
)
@pytest.mark.parametrize("name", ["quantile, drops", "top_k with a bias, token order", "reinforce"])
def test_bias(backend, name):
    """The carried bias routes the next batch. Without a bias the weights do not change."""
    config = build(backend.transformer, name)
    params, tokens, noise, table = draw(build(reference, name), 8)
    found = reference.loss(params, tokens, build(reference, name), noise=noise, table=table).output
    carried = backend.transformer.carry_bias(params, found)
    if not config.has_bias:
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, carried, params))) and found.bias is None
        return
    assert_same(carried["routed_ffn"]["bias"], found.bias, what=f"carry_bias of {name}")
    assert np.abs(found.bias - params["routed_ffn"]["bias"]).max() > 1e-4, "the batch left no trace"
    still = reference.apply(params, tokens[:, :-1], build(reference, name)).bias
    assert_same(still, params["routed_ffn"]["bias"], what=f"bias of {name} in evaluation")


@pytest.mark.asks("transformer.parameter_shapes")
@pytest.mark.parametrize("name", [name for name in MODELS if "," not in MODELS[name].get("router", "")])
def test_parameter_shapes(backend, name):
    for fields in ({}, dict(d_model=48, blocks=15 if "layout" in MODELS[name] else 12)):  # R L is whole
        found = backend.transformer.parameter_shapes(build(backend.configuration, name, **fields))
        assert found == reference.parameter_shapes(build(configuration, name, **fields)), f"{name}, {fields}"


@pytest.mark.asks("experts.routed_ffn", "routed_block.routed_block", "transformer.parameter_shapes")
def test_second_experts_that_are_left_out_take_no_slot(backend):
    """Dropped second experts take no slot.

    Half of 30 tokens choose expert 0 and then 1, and the other half 1 and then 0. The gates are 0.88 and 0.12. Each
    expert has 20 slots. With uniforms of 0.5 no second expert is kept and all first choices find a slot. With uniforms
    of 0 all second experts are kept, and at each expert 10 of 30 assignments find no slot.
    """
    config = build(configuration, "GShard", experts=3, blocks=1, capacity_factor=1.0, routing_frequency=1.0)
    shapes = reference.parameter_shapes(config)["routed_ffn"]
    params = {name: np.ones(shape[1:]) for name, (shape, _) in shapes.items()}
    params["router"] = np.zeros((8, 3))
    params["router"][:2] = [[1, -1, 0], [0, 0, -5]]
    x = np.zeros((2, 15, 8))
    x[0, :, 0], x[1, :, 0], x[..., 1] = 1, -1, 1
    arrays, block = (params, x, np.zeros((2, 15), int)), routed_block.routed_block
    for uniform, wanted in ((0.5, 0.0), (0.0, 20 / 60)):
        traced = {"noise": np.full(30, uniform)}
        found = run(
            backend,
            "routed_block.routed_block",
            "float64",
            *arrays,
            traced=traced,
            training=True,
            config=backend.configuration.ModelConfig(**vars(config)),
        )
        for module, output in (("backend", found), ("reference", block(*arrays, config, training=True, **traced))):
            share, what = output.dropped_fraction, f"{module}: share dropped with uniforms of {uniform}"
            assert_close_bounded("experts.dropped", share, wanted, UNIT["float64"] * wanted, what=what)


@pytest.mark.asks("routed_block.routed_block", "routed_block.decide")
def test_added_losses(backend):
    """Compute the additions of top_k to the loss in loops.

    The loss has twice the balance loss and a quarter of the z-loss. The bias moves by a half towards experts whose
    choices have fewer than 3.5 of the 14 assignments.
    """
    config = build(
        configuration, "top_k", router="top_k", experts=4, k=2, balance_weight=2.0, z_weight=0.25, bias_rate=0.5
    )
    random = np.random.default_rng(31)
    params, x = {"router": random.standard_normal((8, 4)), "bias": np.zeros(4)}, random.standard_normal((7, 8))
    counts, probability, z = [0] * 4, [0.0] * 4, 0.0
    for logits in (x @ params["router"]).tolist():
        for expert in sorted(range(4), key=lambda e, row=logits: -row[e])[:2]:
            counts[expert] += 1
        total = math.fsum(math.exp(logit) for logit in logits)
        probability = [p + math.exp(logit) / total / 7 for p, logit in zip(probability, logits, strict=True)]
        z += math.log(total) ** 2 / 7
    wanted = 2 * 4 * sum(count / 14 * p for count, p in zip(counts, probability, strict=True)) + z / 4
    arrays, scale = (params, x, np.zeros((1, 7), int)), UNIT["float64"] * 4 * (4 + np.abs(x @ params["router"]).max())
    theirs = backend.configuration.ModelConfig(**vars(config))
    found = run(backend, "routed_block.decide", "float64", *arrays, config=theirs, training=True)
    for decided in (found, routed_block.decide(*arrays, config, training=True)):
        assert_close_bounded("balance.loss", decided.auxiliary, wanted, scale * wanted, what="what top_k adds")
        assert_same(decided.bias, [0.5 if count < 3.5 else -0.5 for count in counts], what="bias after a step")


@pytest.mark.asks("routed_block.routed_block", "routed_block.decide")
@pytest.mark.parametrize("router", ["hash", "reinforce"])
def test_parts_are_added_and_experts_averaged(backend, router):
    """For two experts of three parts each, the gate of every part is 1/2."""
    config = build(configuration, router, router=router, experts=4, k=2, granularity=3, d_model=12)
    params = {"router": np.eye(12), "baseline": {"hidden": np.ones((12, 1)), "out": np.ones(1)}}
    arrays = params, np.arange(60.0).reshape(5, 12), np.arange(5)[None]
    theirs = backend.configuration.ModelConfig(**vars(config))
    found = run(backend, "routed_block.decide", "float64", *arrays, config=theirs)
    for decided in (found, routed_block.decide(*arrays, config)):
        assert_same(decided.routing.gate, np.full((5, 6), 0.5), what=f"gates of {router}")


@pytest.mark.asks("transformer.draw_noise")
@pytest.mark.twin
def test_noise(backend):
    """The mean of Gumbel noise is Euler's constant, and of uniforms 1/2.

    Each of the two routed blocks has its own noise for each token and each expert. Few float32 numbers are equal by
    chance.
    """
    for name, mean, deviation in (("reinforce", 0.5772, math.pi / math.sqrt(6)), ("GShard", 0.5, math.sqrt(1 / 12))):
        config = build(backend.transformer, name, blocks=4)
        drawn = (
            backend.transformer.draw_noise(jax.random.key(0), config, 32, 64),
            reference.draw_noise(np.random.default_rng(0), build(reference, name, blocks=4), 32, 64),
        )
        assert np.shape(drawn[0]) == np.shape(drawn[1]) == (2, 32 * 64, 4)[: np.ndim(drawn[0])]
        for noise in drawn:
            assert len(np.unique(noise)) > 0.95 * np.size(noise), f"noise of {name}: numbers come again"
            noise = np.asarray(noise, np.float64)
            scale = deviation / math.sqrt(noise.size)
            assert_close_bounded("transformer.noise_mean", noise.mean(), mean, scale, what=f"noise of {name}")
            assert_close_bounded("transformer.noise_deviation", noise.std(), deviation, scale, what=f"noise of {name}")
    assert (
        backend.transformer.draw_noise(jax.random.key(0), build(backend.transformer, "quantile, drops"), 2, 3) is None
    )


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.loss")
@pytest.mark.twin
def test_a_draw_without_noise_is_an_error(backend):
    for name in ("reinforce", "GShard"):
        params, tokens, _, _ = draw(build(reference, name), 0)
        for module in (backend.transformer, reference):
            with pytest.raises(ValueError, match="is random in training: pass noise"):
                module.loss(params, tokens, build(module, name))


TABLES = {
    "modulo": {}, "previous": {}, "random": dict(uniforms=(13, 4)), "balanced": dict(counts=(13,)),
    "clustered": dict(embeddings=(13, 3)), "dispersed": dict(embeddings=(13, 3)), "multi": dict(uniforms=(13, 2)),
    "bigram": dict(uniforms=(2, 13)),
}  # fmt: skip


@pytest.mark.asks("routed_block.routed_block", "routed_block.hash_table")
@pytest.mark.twin
@pytest.mark.parametrize("kind", TABLES)
def test_tables(backend, kind):
    """Both twins build the same table, in range and distinct within a row. Without its data it is an error."""
    fields = {"multi": dict(k=1), "bigram": dict(k=1, granularity=1)}.get(kind, {})
    fields = dict(router="hash", experts=3, k=2, granularity=2, hash=kind) | fields
    random, given = np.random.default_rng(3), {}
    for name, shape in TABLES[kind].items():
        given[name] = random.integers(0, 9, shape) if name == "counts" else random.random(shape)
    ours, theirs = (
        module.routed_block.hash_table(module.configuration.ModelConfig(**SMALL, **fields), **given)
        for module in (backend, oracle)
    )
    assert_same(ours, theirs, what=f"table of {kind}")
    assert np.asarray(ours).dtype == np.int32 and 0 <= theirs.min() and theirs.max() < 3 * fields["granularity"]
    if kind != "bigram":
        assert theirs.shape == (13, fields["k"] * fields["granularity"])
        assert all(len(set(row)) == len(row) for row in theirs.tolist())
    if given:
        with pytest.raises(ValueError, match=f"the {kind} hash needs numbers of shape"):
            backend.routed_block.hash_table(backend.configuration.ModelConfig(**SMALL, **fields))


OTHERS = dict(
    capacity_factor=3.0,
    drop_order="token",
    gate=("softmax", "sigmoid"),
    normalisation="softmax",
    sample_second=True,
    balance_weight=0.3,
    z_weight=0.1,
    bias_rate=0.1,
    router_scale=2.0,
    policy_weight=0.5,
    baseline_weight=0.5,
    entropy_weight=0.5,
    nucleus=0.5,
    reward_to_go=True,
    hash="random",
    grouping="sequence",
    group_size=6,
    temperature=0.5,
    one_hot=True,
    emit="experts",
    learned_temperature=True,
    output_norm=True,
    balance_scope="sequence",
    gate_scale=2.5,
    expert_groups=3,
    group_score="best",
    router_bias=True,
    shared_experts=1,
    latent_width=6,
    zero_experts=3,
    layout="upper",
    flop_increase=2,
    routing_frequency=0.25,
    k=2,
    granularity=2,
    experts=6,
)
"""Every option of a router at a value that is not its default, except for two."""

TAKEN = {
    "dense": {"flop_increase"},
    "hash": {"capacity_factor", "drop_order", "latent_width", "hash", "k"},
    "hash_gated": {"capacity_factor", "drop_order", "latent_width", "gate", "gate_scale", "hash", "k"},
    "sinkhorn": {"capacity_factor", "drop_order", "latent_width", "gate", "k"},
    "base": {"capacity_factor", "drop_order", "latent_width", "gate", "k"},
    "quantile": {"capacity_factor", "drop_order", "latent_width", "gate", "k"},
    "top_k": {"capacity_factor", "drop_order", "latent_width", "gate", "k", "balance_weight", "z_weight", "bias_rate",
              "balance_scope", "gate_scale", "expert_groups", "group_score", "router_bias", "zero_experts"},
    "reinforce": {"capacity_factor", "drop_order", "latent_width", "k", "balance_weight", "policy_weight",
                  "baseline_weight", "entropy_weight", "nucleus", "reward_to_go"},
    "expert_choice": {"gate", "grouping", "group_size", "k"},
    "mixture_of_tokens": {"group_size", "temperature", "one_hot", "emit", "learned_temperature"},
}  # fmt: skip
"""Options of each router with one expert per token, by hand. Options that need another option are not listed:
normalisation and sample_second of top_k (k = 2), zero_kind and real_experts (zero_experts), groups_per_token
(expert_groups), and groups in sequences of mixture_of_tokens (the masked objective)."""


@pytest.mark.asks(because="a configuration is no function")
@pytest.mark.twin
@pytest.mark.filterwarnings("ignore:grouping is 'sequence'")
@pytest.mark.parametrize("router", TAKEN)
def test_an_option_that_a_router_does_not_have_is_named(router):
    routed = {} if router == "dense" else dict(routing_frequency=0.5, experts=3)
    shared = set(routed) | ({"granularity", "layout", "output_norm", "shared_experts"} if routed else set())
    shared |= set() if router in ("dense", "hash") else {"router_scale"}
    usual = SMALL | dict(blocks=4, router=router) | routed
    gate = configuration.ModelConfig(**usual).gate
    for option, value in OTHERS.items():
        (value,) = (set(value) - {gate}) if option == "gate" else (value,)
        fields = usual | {option: value}
        if option in TAKEN[router] | shared:
            assert getattr(configuration.ModelConfig(**fields), option) == value
            continue
        with pytest.raises(ValueError, match=rf"\b{option}\b"):
            configuration.ModelConfig(**fields)


@pytest.mark.asks(because="a configuration is no function")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_fits_a_model(record):
    fields = {field.name for field in dataclasses.fields(configuration.ModelConfig)}
    assert set(record.options) <= fields and len(set(record.options)) == len(record.options)
    model = configuration.ModelConfig(**SMALL | EXAMPLES[record.name])
    for name in ("capacity_factor", "gate", "router_scale"):
        assert getattr(model, name) == getattr(record, name)


@pytest.mark.asks(because="a configuration is no function")
def test_a_list_of_routers():
    """Spellings of one list are one configuration. Each block has the defaults of its own router."""
    make = functools.partial(configuration.ModelConfig, **SMALL | dict(blocks=4, routing_frequency=1.0, experts=4, k=2))
    one, other = (make(router=text) for text in ("hash,hash, top_k:2", "hash:2,top_k:2"))
    assert one == other and one.router == "hash:2,top_k:2" and dataclasses.replace(one, heads=4).router == one.router
    assert make(router="top_k:4") == make(router="top_k")
    assert [one.of_block(i).router for i in range(4)] == ["hash", "hash", "top_k", "top_k"]
    assert [one.of_block(i).capacity_factor for i in (0, 2)] == [math.inf, 2.0] and one.capacity_factor is None
    assert make(router="hash:2,top_k:2", capacity_factor=3.0).of_block(0).capacity_factor == 3
    assert one.record.router_type == "Hash + Top-K"


@pytest.mark.asks(because="a configuration is no function")
def test_what_a_default_stands_for():
    """A bias replaces the balance loss. A rounded frequency is the fraction. Filled-in values are accepted again."""
    made = [configuration.ModelConfig(**SMALL, router="top_k", experts=4, bias_rate=rate) for rate in (0.0, 0.1)]
    assert [config.balance_weight for config in made] == [0.01, 0.0]
    twelfth = configuration.ModelConfig(**(SMALL | dict(blocks=12)), router="hash", routing_frequency=0.0833)
    assert (twelfth.num_routed, twelfth.period, twelfth.routing_frequency) == (1, 12, 1 / 12)
    assert dataclasses.replace(twelfth, experts=2).num_routed == 1
    upper = configuration.ModelConfig(**(SMALL | dict(blocks=5)), router="hash", routing_frequency=0.6, layout="upper")
    assert [upper.is_routed(i) for i in range(5)] == [False, False, True, True, True]
    assert dataclasses.replace(upper, experts=2).num_routed == 3


@pytest.mark.asks(*MODEL_FUNCTIONS, "experts.routed_ffn", "transformer.loss")
@pytest.mark.slow
def test_the_baseline_does_not_change_the_model(backend):
    """In the default configuration, the baseline's error does not change the gradient of other weights."""
    gradients = []
    for weight in (0.01, 0.0):
        config = build(reference, "reinforce", baseline_weight=weight)
        params, tokens, noise, table = draw(config, 9)
        theirs = build(backend.transformer, "reinforce", baseline_weight=weight)
        options = dict(loss=backend.transformer.loss, config=theirs)
        found, _ = gradient(total_loss, params, tokens, noise, table, {}, has_aux=True, **options)
        gradients.append(found | {"routed_ffn": {k: v for k, v in found["routed_ffn"].items() if k != "baseline"}})
        assert bool(np.any(found["routed_ffn"]["baseline"]["out"])) == (weight > 0)
    scale = math.sqrt(inner(gradients[0], gradients[0]))
    difference = jax.tree.map(np.subtract, *gradients)
    error = math.sqrt(inner(difference, difference))
    assert_close_bounded("transformer.gradient", error, 0.0, scale, what="gradient with and without the baseline")


@pytest.mark.asks(because="a configuration is no function")
def test_groups_within_sequences_warn():
    with pytest.warns(UserWarning, match="depend on later tokens"):
        configuration.ModelConfig(**SMALL, router="expert_choice", experts=3, grouping="sequence")


@pytest.mark.asks(*MODEL_FUNCTIONS, "transformer.apply")
@pytest.mark.twin
def test_a_group_that_does_not_divide_the_batch_is_an_error(backend):
    params, tokens, _, _ = draw(build(reference, "mixture"), 0)
    for module in (backend.transformer, reference):
        with pytest.raises(ValueError, match="group_size is 2; it has to divide the 3 sequences"):
            module.apply(params, tokens[:, :-1], build(module, "mixture", group_size=2))
