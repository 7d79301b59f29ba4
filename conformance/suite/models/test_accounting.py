"""Compare N, P and F with the released table and with built models. All are exact integers."""

import csv
import gzip
import math
from fractions import Fraction

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.suite.strategies import released_file
from routelaws.reference import accounting as reference
from routelaws.reference import configuration, transformer

TABLE = [
    # size, router_type, E, k, R, flop_increase, P, FLOPs per step; copied from the released table
    ("15M", "Dense", 1, 1, 1 / 2, 1, 16_527_360, 44_563_506_921_472),
    ("25M", "Dense", 1, 1, 1 / 2, 1, 27_279_360, 72_383_083_839_488),
    ("55M", "Dense", 1, 1, 1 / 2, 1, 57_369_600, 131_502_503_362_560),
    ("130M", "Dense", 1, 1, 1 / 2, 1, 132_163_584, 248_442_920_108_032),
    ("370M", "Dense", 1, 1, 1 / 2, 1, 368_123_904, 556_775_937_933_312),
    ("1.3B", "Dense", 1, 1, 1 / 2, 1, 1_308_819_456, 1_759_063_985_618_944),
    ("55M", "Dense", 1, 1, 1 / 2, 4, 106_534_400, 183_055_532_687_360),
    ("370M", "Dense", 1, 1, 1 / 2, 2, 481_388_544, 675_542_521_085_952),
    ("15M", "Hash", 64, 1, 1 / 2, 1, 412_987_392, 44_666_586_136_576),
    ("25M", "Hash", 64, 1, 1 / 8, 1, 159_432_704, 72_417_443_577_856),
    ("370M", "Hash", 64, 1, 1 / 12, 1, 1_557_307_392, 556_879_017_148_416),
    ("1.3B", "Hash", 64, 1, 1 / 2, 1, 26_677_542_912, 1_760_713_253_060_608),
    ("55M", "S-Base", 8, 1, 1 / 2, 1, 172_083_200, 131_529_346_908_160),
    ("130M", "S-Base", 8, 1, 1 / 2, 1, 401_952_768, 248_488_017_264_640),
    ("370M", "S-Base", 8, 4, 1 / 2, 1, 1_160_921_088, 913_095_014_744_064),
    ("25M", "S-Base", 256, 1, 1, 1, 4_306_518_016, 73_482_595_467_264),
    ("15M", "RL-R", 512, 1, 1 / 2, 1, 3_232_346_304, 45_491_421_184_000),
    ("55M", "RL-R", 512, 1, 1 / 2, 1, 8_431_488_400, 133_489_345_167_360),
    ("1.3B", "RL-R", 512, 1, 1 / 2, 1, 207_083_473_920, 1_778_858_416_144_384),
]


@pytest.mark.asks("accounting.count")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(map(str, row[:4])))
def test_known_rows(backend, row):
    size, router_type, num_experts, k, frequency, increase, total, flops_per_step = row
    for module in (backend.accounting, reference):
        shape = module.SIZES[size]
        found = module.count(*shape[:4], router_type, num_experts, k, frequency, increase)
        assert found.dense_parameters == shape.dense_parameters, f"N of {size}: {found}"
        assert found.total_parameters == total, f"P of {size} {router_type} {num_experts}: {found}"
        assert found.flops_per_token * module.TABLE_TOKENS_PER_STEP == flops_per_step, f"F of {size}: {found}"
        assert found.utilisation == found.total_parameters / found.flops_per_token


@pytest.mark.asks("accounting.count")
@pytest.mark.released
def test_every_run_of_the_released_table(backend):
    with gzip.open(released_file("curves.csv.gz"), "rt", newline="") as lines:
        runs = {row["hyper_id"]: row for row in csv.DictReader(lines)}
    assert len(runs) == 223
    for run in runs.values():
        size, sizes = [int(run[name]) for name in ("d_model", "num_blocks", "num_heads", "kqv_size")], {}
        for module in (backend.accounting, reference):
            sizes = {shape[:4]: shape.dense_parameters for shape in module.SIZES.values()}
            found = module.count(
                *size,
                run["router_type"],
                1 if run["router_type"] == "Dense" else int(run["num_experts"]),
                1 if run["router_type"] == "Dense" else int(run["k"]),
                float(run["routing_frequency"]),
                int(float(run["flop_increase"])),
            )
            message = f"run {run['hyper_id']}: {found}"
            assert found.dense_parameters == float(run["dense_parameter_count"]) == sizes[tuple(size)], message
            assert found.total_parameters == float(run["total_parameter_count"]), message
            assert found.flops_per_token * module.TABLE_TOKENS_PER_STEP == float(run["flops_per_step"]), message


@st.composite
def models(draw) -> dict:
    """Draw arguments of `count`, within and far beyond the range of the table."""
    period = draw(st.sampled_from([1, 2, 3, 4, 12]))
    router_type = draw(st.sampled_from(sorted(reference.ROUTER_TYPES.values())))
    num_experts = 1 if router_type == "Dense" else draw(st.integers(1, 4096))
    return dict(
        d_model=8 * draw(st.integers(1, 2000)),
        num_blocks=period * draw(st.integers(1, 20)),
        num_heads=draw(st.integers(1, 128)),
        kqv_size=draw(st.integers(1, 256)),
        router_type=router_type,
        num_experts=num_experts,
        k=draw(st.integers(1, min(num_experts, 8))),
        routing_frequency=1 / period,
        flop_increase=draw(st.integers(1, 8)) if router_type == "Dense" else 1,
        granularity=1 if router_type == "Dense" else draw(st.integers(1, 64)),
        vocab_size=draw(st.integers(1, 10**6)),
        sequence_length=draw(st.integers(1, 10**6)),
    )


@pytest.mark.asks("accounting.count")
@given(arguments=models())
def test_any_model(backend, arguments):
    found, wanted = backend.accounting.count(**arguments), reference.count(**arguments)
    assert tuple(found) == tuple(wanted), arguments
    assert all(isinstance(value, int) for value in found[:3])
    # One more expert adds an FFN of 8 d² and a column of the router in each routed block.
    if arguments["router_type"] != "Dense":
        more = backend.accounting.count(**(arguments | {"num_experts": arguments["num_experts"] + 1}))
        routed, d = round(arguments["num_blocks"] * arguments["routing_frequency"]), arguments["d_model"]
        columns = d * arguments["granularity"]
        assert more.total_parameters - found.total_parameters == routed * (8 * d * d + columns)
        products = 6 if arguments["router_type"] == "MoT" else 2  # the controller, and mixing and redistribution
        assert more.flops_per_token - found.flops_per_token == products * routed * columns


def number_of_weights(tree, shape_of) -> int:
    """Return the number of weights, without embedding, final norm and router bias."""

    def total(node):
        if isinstance(node, dict):
            return sum(total(child) for name, child in node.items() if name != "bias")
        return math.prod(shape_of(node))

    return total({name: node for name, node in tree.items() if name not in ("embedding", "final_norm")})


def check_built_model(
    backend, size: str, router: str, num_experts: int, frequency: Fraction, *, k=1, granularity=1, flop_increase=1
) -> None:
    shape = reference.SIZES[size]
    fields = dict(
        d_model=shape.d_model,
        blocks=shape.num_blocks,
        heads=shape.num_heads,
        kqv_size=shape.kqv_size,
        router=router,
        experts=num_experts,
        k=k,
        granularity=granularity,
        flop_increase=flop_increase,
        routing_frequency=float(frequency),
    )
    config = backend.transformer.ModelConfig(**fields)
    counted = reference.count(
        *shape[:4],
        reference.ROUTER_TYPES[router],
        num_experts,
        k,
        float(frequency),
        flop_increase,
        granularity=granularity,
    )
    expected = counted.total_parameters
    if router == "hash" or flop_increase > 1:  # the table counts router weights that Hash and wide models do not have
        columns = num_experts * granularity if router == "hash" else flop_increase
        expected -= int(frequency * shape.num_blocks) * shape.d_model * columns
    what = f"{size} {router} E {num_experts} R {frequency}"
    assert counted.dense_parameters == shape.dense_parameters, what
    assert tuple(config.accounting(2048)) == tuple(counted), what

    built = jax.eval_shape(lambda key: backend.transformer.init(key, config), jax.random.key(0))
    assert number_of_weights(built, lambda leaf: leaf.shape) == expected, f"{what}: init of the backend"
    for module, its_config in ((backend.transformer, config), (transformer, transformer.ModelConfig(**fields))):
        tree = module.parameter_shapes(its_config)
        assert number_of_weights(tree, lambda leaf: leaf[0]) == expected, f"{what}: {module.__name__}"
    assert jax.tree.map(lambda leaf: leaf.shape, built) == jax.tree.map(
        lambda leaf: leaf[0], tree, is_leaf=lambda node: isinstance(node, tuple)
    ), what


@pytest.mark.asks("accounting.count", "transformer.parameter_shapes", "transformer.init")
@pytest.mark.parametrize("size", reference.SIZES)
def test_built_models(backend, size):
    blocks = reference.SIZES[size].num_blocks
    for router in configuration.ROUTERS:
        if router == "dense":
            check_built_model(backend, size, router, 1, Fraction(1, 2))
            continue
        for num_experts, frequency in ((2, Fraction(1, 2)), (512, Fraction(1)), (64, Fraction(1, blocks))):
            check_built_model(backend, size, router, num_experts, frequency)


@pytest.mark.asks(
    "accounting.count",
    "routers.mixture_of_tokens.mixture_of_tokens",
    "transformer.parameter_shapes",
    "transformer.init",
)
@pytest.mark.parametrize("router", configuration.ROUTERS)
def test_built_models_of_narrow_experts_and_wide_ffns(backend, router):
    if router == "dense":
        for flop_increase in (2, 4):
            check_built_model(backend, "55M", router, 1, Fraction(1, 2), flop_increase=flop_increase)
        return
    k = 1 if router == "mixture_of_tokens" else 2
    check_built_model(backend, "15M", router, 8, Fraction(1, 2), k=k, granularity=4)
    check_built_model(backend, "25M", router, 4, Fraction(1, 8), granularity=16)


LATER = {
    "fine-grained": dict(router="expert_choice", routing_frequency=1.0, granularity=4, activation="relu",
                         positions="rotary", output_norm=True),
    "joint": dict(router="top_k", routing_frequency=1.0, activation="swiglu", positions="rotary"),
    "joint, dense": dict(experts=1, activation="swiglu", positions="rotary"),
    "mixture": dict(router="mixture_of_tokens", granularity=8, layout="upper", learned_temperature=True, emit="experts",
                    activation="swiglu", output_norm=True),
    "DeepSeek-V3": dict(router="top_k", granularity=8, shared_experts=3, activation="swiglu", positions="rotary",
                        bias_rate=0.001),
    "LatentMoE": dict(router="top_k", k=4, granularity=2, latent_width=24, shared_experts=1, activation="swiglu"),
    "MoE++": dict(router="top_k", k=2, granularity=2, zero_experts=5, zero_kind="constant", router_bias=True),
    "GPT-OSS": dict(router="top_k", k=4, router_bias=True, activation="swiglu", positions="rotary"),
    "HASH, then TOP-K": dict(router="hash:1,top_k:2", granularity=2, router_bias=True, shared_experts=1),
    "shared experts of hash": dict(router="hash", granularity=2, shared_experts=1, output_norm=True),
    "RMSNorm": dict(router="top_k", activation="swiglu", positions="rotary", norm="rms", output_norm=True),
}  # fmt: skip
"""Options that later papers add to the model."""


@pytest.mark.asks("transformer.parameter_shapes")
@pytest.mark.parametrize("name", LATER)
def test_built_models_of_later_papers(backend, name):
    fields = dict(vocab_size=97, d_model=64, blocks=6, heads=4, experts=8) | LATER[name]
    for module, options in ((backend.transformer, backend.configuration), (transformer, configuration)):
        config = options.ModelConfig(**fields)
        found = number_of_weights(module.parameter_shapes(config), lambda leaf: leaf[0])
        counted = config.accounting(32)
        found += 3 * 64 * 16 if config.router == "hash" else 0  # the table counts a router that Hash does not have
        assert found == counted.total_parameters, f"{name}: {found}, counted {counted}"
        assert counted == configuration.ModelConfig(**fields).accounting(32), name


@pytest.mark.asks("accounting.count")
def test_what_the_options_cost_by_hand(backend):
    """Compute by hand: d = 8, a = 2 · 4, S = 3, three blocks, two of them routed among 4 experts, V = 10.

    Attention: 4 · 64 weights instead of 5 · 64; 2 · 256 FLOPs, 4 · 3 · 8 for scores and values, 6 · 8 to rotate,
    3 · 3 · 2 for the softmax. SwiGLU: 9 · 64 weights. Norms: 4 · 8 weights, 10 · 8 FLOPs; on an output 2 · 8 and 5 · 8.
    """
    shape, sizes = (8, 3, 2, 4), dict(routing_frequency=2 / 3, vocab_size=10, sequence_length=3)
    options = dict(activation="swiglu", positions="rotary", output_norm=True)
    for count in (backend.accounting.count, reference.count):
        found = count(*shape, "Top-K", 4, **sizes, **options)
        dense = 3 * (4 * 64 + 9 * 64 + 4 * 8)
        assert found.dense_parameters == dense == 2592
        assert found.total_parameters == dense + 2 * (3 * 9 * 64 + 8 * 4 + 16) == 6144
        block = 2 * 256 + 4 * 3 * 8 + 6 * 8 + 3 * 3 * 2 + 2 * 9 * 64 + 10 * 8
        assert found.flops_per_token == 3 * block + 2 * 10 * 8 + 2 * (2 * 8 * 4 + 5 * 8) == 6086
        plain = count(*shape, "MoT", 4, **sizes)
        learned = count(*shape, "MoT", 4, **sizes, learned_temperature=True)
        assert learned.total_parameters == plain.total_parameters + 2 * 2
        assert learned.flops_per_token == plain.flops_per_token
        # Shared experts of G = 2 have three matrices of 8 x 12; the bias has a number for each of 4 · 2 experts.
        narrow = dict(sizes, granularity=2, activation="swiglu")
        plain, more = (count(*shape, "Top-K", 4, **narrow, shared_experts=s, router_bias=s > 0) for s in (0, 3))
        assert more.total_parameters - plain.total_parameters == 2 * (3 * 3 * 8 * 12 + 8)
        assert more.flops_per_token - plain.flops_per_token == 2 * 2 * 3 * 3 * 8 * 12
        assert more.dense_parameters == plain.dense_parameters
        # Five constant experts: a router column, two vectors to mix and an offset each; 2.5 of 6 choices are real.
        zero = dict(zero_experts=5, zero_kind="constant", real_experts=2.5)
        plain, more = (count(*shape, "Top-K", 4, 3, **narrow, **options) for options in ({}, zero))
        assert more.total_parameters - plain.total_parameters == 2 * 5 * (8 + 3 * 8)
        assert more.flops_per_token - plain.flops_per_token == 2 * 2 * (5 * 8 - (6 - 2.5) * 3 * 8 * 12)
        # Experts of width 2: 4 · 2 have three matrices of 2 x 12 instead of 8 x 12; two projections have 8 x 2.
        plain, narrower = (count(*shape, "Top-K", 4, 3, **narrow, latent_width=width) for width in (0, 2))
        assert plain.total_parameters - narrower.total_parameters == 2 * (8 * 3 * (8 - 2) * 12 - 2 * 8 * 2)
        assert plain.flops_per_token - narrower.flops_per_token == 2 * 2 * (6 * 3 * (8 - 2) * 12 - 2 * 8 * 2)


@pytest.mark.asks("accounting.count")
def test_the_counts_of_later_papers(backend):
    """Compare our counts with those of each paper, without routers and norms, which the papers omit.

    Fine-grained (Krajewski et al. 2024): N = d² (8E + 4) L in all and 12 d² L active; 64 x 3M has d = 256 and 4 blocks.
    Joint (Ludziejewski et al. 2025): (4 + 9E) L d² in all and 13 L d² active. Both have 2 d V more. Mixture of Tokens
    (Antoniak et al. 2023): 512 experts of width 64, d = 256, in groups of 32 have 32 times the parameters of the dense
    FFNs and the same FLOPs.
    """
    for count in (backend.accounting.count, reference.count):
        for d, blocks, label in ((256, 4, 3), (384, 4, 7), (512, 4, 13), (512, 8, 25), (640, 10, 49), (768, 12, 85)):
            heads, norms = d // 64, 4 * d * blocks
            fine = dict(routing_frequency=1.0, activation="relu", positions="rotary", output_norm=True)
            found = count(d, blocks, heads, 64, "Expert-Choice", 64, granularity=8, **fine)
            left_out = norms + blocks * (d * 64 * 8 + 2 * d)
            assert found.total_parameters - left_out == d * d * (8 * 64 + 4) * blocks
            assert found.dense_parameters - norms == 12 * d * d * blocks
            assert round((found.dense_parameters - norms) / 1e6) == label
            for experts in (2, 32):
                joint = dict(routing_frequency=1.0, activation="swiglu", positions="rotary")
                found = count(d, blocks, heads, 64, "Top-K", experts, **joint)
                assert found.total_parameters - norms - blocks * d * experts == (4 + 9 * experts) * blocks * d * d
                assert found.dense_parameters - norms == 13 * blocks * d * d
        mixture = count(256, 4, 4, 64, "MoT", 32, routing_frequency=1.0, granularity=16, group_size=32)
        dense = count(256, 4, 4, 64)
        ffns, controllers = 4 * 8 * 256**2, 4 * 256 * 512
        assert mixture.total_parameters - dense.total_parameters == 31 * ffns + controllers
        assert mixture.flops_per_token - dense.flops_per_token == 6 * controllers


@pytest.mark.asks("accounting.count")
def test_granularity_and_mixtures_cost_what_they_do(backend):
    """Compute by hand: d = 64, f = 256, two routed blocks of four; the FFN's products are 2 · 2 · 64 · 256 FLOPs."""
    shape, ffn = (64, 4, 2, 32), 2 * 2 * 64 * 256
    for count in (backend.accounting.count, reference.count):
        coarse, fine = (count(*shape, "Top-K", 8, 2, granularity=g) for g in (1, 4))
        assert fine.total_parameters - coarse.total_parameters == 2 * 64 * 8 * 3
        assert fine.flops_per_token - coarse.flops_per_token == 2 * 2 * 64 * 8 * 3
        alike, half = (count(*shape, "MoT", 8, group_size=g) for g in (None, 16))
        one = count(*shape, "Top-K", 8, 1)
        assert alike.flops_per_token - one.flops_per_token == 2 * 2 * (2 * 64 * 8), "mixing and redistribution"
        assert alike.flops_per_token - half.flops_per_token == 2 * ffn // 2, "one mixture per 16 tokens for 8 experts"
        assert count(*shape, "MoT", 8, group_size=3).flops_per_token == alike.flops_per_token + 2 * ffn * 5 / 3


@pytest.mark.asks("accounting.count", "routers.mixture_of_tokens.mixture_of_tokens")
def test_a_configuration_counts_with_all_of_its_fields(backend):
    size = dict(vocab_size=300, d_model=64, blocks=4, heads=2, kqv_size=24)
    routed = dict(size, experts=8, routing_frequency=0.25)
    for router_type, fields in (
        ("Top-K", dict(routed, router="top_k", k=2, granularity=4)),
        ("MoT", dict(routed, router="mixture_of_tokens", group_size=32, granularity=2)),
        ("Expert-Choice", dict(routed, router="expert_choice", k=3, group_size=16)),
        ("Dense", dict(size, flop_increase=3, routing_frequency=0.25)),
    ):
        found = backend.configuration.ModelConfig(**fields).accounting(48)
        told = {"vocab_size": 300, "sequence_length": 48, "router_type": router_type, "routing_frequency": 0.25}
        told |= {name: fields[name] for name in ("k", "granularity", "flop_increase") if name in fields}
        told |= {"num_experts": fields["experts"]} if "experts" in fields else {}
        if router_type == "MoT":  # only the cost of a mixture depends on the group
            told["group_size"] = 32
        assert found == reference.count(64, 4, 2, 24, **told), router_type
