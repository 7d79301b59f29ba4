"""Collectives and the routed layer over devices of `jax.vmap`. `test_mesh.py` tests devices of a process."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import parallel, routed_block
from routelaws.accelerated.operations.target import traced_for
from routelaws.accelerated.tests.test_grouped import agree_on_a_tpu
from routelaws.conformance.bounds import check
from routelaws.reference import balance, configuration, experts
from routelaws.reference import parallel as reference
from routelaws.reference import routed_block as reference_block

COLLECTIVES = ("psum", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name):
    x = np.random.default_rng(0).integers(-9, 9, (3, 6, 2))
    found = getattr(parallel, name)(jnp.asarray(x))
    np.testing.assert_array_equal(found, getattr(reference, name)(x), strict=False)


def test_what_the_collectives_are_to_each_other():
    x = np.random.default_rng(1).integers(-9, 9, (4, 8, 3))
    np.testing.assert_array_equal(reference.all_gather(reference.reduce_scatter(x)), reference.psum(x))
    np.testing.assert_array_equal(reference.all_to_all(reference.all_to_all(x)), x)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_ragged_all_to_all(seed):
    """The sizes are arbitrary, also 0, with gaps on both sides. For equal sizes, `all_to_all` is tested, too."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 4, (3, 3))
    x, output = random.integers(1, 99, (3, 12, 2)), -random.integers(1, 99, (3, 14, 2))
    begin, into = (np.cumsum(s, axis=1) - s for s in (sizes, sizes.T))
    begin, into = begin + random.integers(0, 12 - sizes.sum(axis=1) + 1)[:, None], (into + random.integers(0, 3)).T
    arrays = x, output, begin, sizes, into, sizes.T
    wanted = reference.ragged_all_to_all(*arrays)
    np.testing.assert_array_equal(_ragged(*(jnp.asarray(a, jnp.int32) for a in arrays)), wanted)
    even, places = np.full((3, 3), 4), np.tile(np.arange(0, 12, 4), (3, 1))
    found = reference.ragged_all_to_all(x, np.zeros_like(x), places, even, places.T, even)
    np.testing.assert_array_equal(found, reference.all_to_all(x))


_ragged = jax.jit(parallel.ragged_all_to_all)


def test_bad_sizes_are_named():
    x, sizes, zero = np.zeros((2, 3)), np.array([[1, 2], [0, 1]]), np.zeros((2, 2), int)
    with pytest.raises(ValueError, match="would wait for rows that no device sends"):
        reference.ragged_all_to_all(x, x, zero, sizes, zero, sizes)
    with pytest.raises(ValueError, match="a device reads rows beyond the 3 of x"):
        reference.ragged_all_to_all(x, x, zero + 2, sizes, zero, sizes.T)
    for twin in (reference, parallel):
        with pytest.raises(ValueError, match="divided into 2 equal parts"):
            twin.part(np.zeros((3, 1)), 0, 2)
        with pytest.raises(ValueError, match="group is 'all'"):
            twin.routed_ffn_on_devices(**layer(0, 1), group="all")


DEVICES, TOKENS, EXPERTS, D, F = 2, 6, 4, 3, 5


def layer(seed: int, k: int) -> dict:
    """Return the inputs of a layer whose loads differ between devices."""
    random = np.random.default_rng(seed)
    popularity = 2 * random.standard_normal((DEVICES, 1, EXPERTS))
    scores = popularity + random.gumbel(size=(DEVICES, TOKENS, EXPERTS))
    own = EXPERTS // DEVICES
    return {
        "params": {
            "up": random.standard_normal((DEVICES, own, D, F)),
            "down": random.standard_normal((DEVICES, own, F, D)),
        },
        "x": random.standard_normal((DEVICES, TOKENS, D)),
        "expert": np.argsort(-scores, axis=2)[..., :k].astype(np.int32),
        "gate": random.uniform(0.2, 1, (DEVICES, TOKENS, k)),
    }


@functools.cache
def _compiled(capacity_factor, options):
    def layer(params, x, expert, gate, mask):
        return parallel.routed_ffn_on_devices(params, x, expert, gate, capacity_factor, mask=mask, **dict(options))

    return jax.jit(jax.vmap(layer, axis_name="devices") if "axis_name" in dict(options) else layer)


MAPPED = {"axis_name": "devices", "group_axes": "devices"}
"""Arguments of a block's call of the layer; "shard" ignores the axes of "global"."""

CASES = [
    ({"group": "shard", "order": "choice", **MAPPED}, 1.0),
    ({"group": "shard", "order": "priority"}, 0.7),
    ({"group": "global", "order": "choice"}, 1.0),
    ({"group": "global", "order": "priority"}, 0.7),
    ({"group": "global", "order": "token"}, math.inf),
    ({"group": "shard", "order": "token", "ragged": True}, math.inf),
    ({"group": "global", "order": "choice", "ragged": True}, 1.0),
]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(CASES), st.sampled_from([0.7, 1.0]))
def test_routed_layer(seed, case, real):
    options, factor = case
    given = layer(seed, 2)
    mask = np.random.default_rng(seed).random((DEVICES, TOKENS, 2)) < real
    mask[:, 0] = True
    known = {name: value for name, value in options.items() if name not in {"ragged", *MAPPED}}
    wanted = reference.routed_ffn_on_devices(**given, capacity_factor=factor, mask=mask, **known)
    with jax.enable_x64(True):
        found = _compiled(factor, tuple(options.items()))(*jax.tree.map(jnp.asarray, list(given.values())), mask)
    check("parallel.ffn", abs(np.asarray(found.output) - wanted.output).max(), abs(wanted.output).max() or 1.0)
    check("parallel.dropped", abs(np.asarray(found.dropped_fraction) - wanted.dropped_fraction).max())
    params = {name: matrices.reshape(EXPERTS, *matrices.shape[2:]) for name, matrices in given["params"].items()}
    whole = [given["x"], given["expert"], given["gate"], mask]
    if options["group"] == "global":  # one device with all tokens
        whole = [a.reshape(1, -1, a.shape[2]) for a in whole]
    alone = [
        experts.routed_ffn(params, x, expert, gate, factor, order=options["order"], mask=mask)
        for x, expert, gate, mask in zip(*whole, strict=True)
    ]
    output = np.stack([part.output for part in alone]).reshape(wanted.output.shape)
    check("parallel.ffn", abs(output - wanted.output).max(), abs(wanted.output).max() or 1.0)
    np.testing.assert_array_equal(
        np.broadcast_to([part.dropped_fraction for part in alone], DEVICES), wanted.dropped_fraction
    )


def test_all_experts_of_all_tokens_may_live_on_one_device():
    """Two rows for each token arrive, and without drops no row is lost."""
    given, everyone = layer(5, 2), np.ones((DEVICES, TOKENS, 2), bool)
    given["expert"] = np.broadcast_to(np.array([3, 2], np.int32), everyone.shape)
    options = {"group": "global", "order": "token"}
    wanted = reference.routed_ffn_on_devices(**given, **options)
    with jax.enable_x64(True):
        found = _compiled(math.inf, tuple(options.items()))(*jax.tree.map(jnp.asarray, list(given.values())), everyone)
    assert abs(wanted.output).min() > 0
    check("parallel.ffn", abs(np.asarray(found.output) - wanted.output).max(), abs(wanted.output).max())


DECIDED = {
    "sinkhorn": {"router": "sinkhorn"},
    "base": {"router": "base", "k": 2},
    "quantile": {"router": "quantile", "k": 2},
    "top_k with a bias": {"router": "top_k", "k": 2, "bias_rate": 0.125, "balance_weight": 0.5, "z_weight": 0.25},
    "GShard": {"router": "top_k", "k": 2, "sample_second": True, "balance_weight": 0.5},
}
"""Routers that depend on other tokens of their group, or return a bias for the next batch."""

LATER = (("base", "shard"), ("sinkhorn", "global"))
"""Cases only for `make test-all`, because they take seconds to compile."""


def decided(name: str, group: str):
    return pytest.param(name, group, marks=[pytest.mark.slow] * ((name, group) in LATER))


@pytest.mark.parametrize(("name", "group"), [decided(name, group) for name in DECIDED for group in parallel.GROUPS])
def test_what_routers_decide_on_devices(name, group):
    """ "shard" equals the reference on each device, and "global" equals the reference on all tokens.

    In both, devices share a bias. For top_k it follows from all loads, and for quantile it is the mean over the
    devices. In "shard" the tokens lie on two axes of devices; JAX maps no gather over two axes.
    """
    fields = dict(vocab_size=9, d_model=D + 1, blocks=2, heads=1, experts=EXPERTS, **DECIDED[name])
    random, mean = np.random.default_rng(7), np.array([2.0, -2, 3, -1])  # devices prefer different experts
    devices, axes, shape = 4, ("data", "expert"), (2, 2)
    if group == "global":
        axes, shape = ("expert",), (1, 4)
    params = {"router": random.standard_normal((D + 1, EXPERTS)), "bias": random.standard_normal(EXPERTS) / 8}
    x = random.standard_normal((devices, TOKENS, D + 1)) + mean[:, None, None]
    tokens, noise = np.zeros((devices, 1, TOKENS), np.int32), random.random((devices, TOKENS))
    spread = parallel.Spread(axes, "expert", None, group)
    with jax.enable_x64(True):
        config = configuration.ModelConfig(**fields)
        given = jax.tree.map(jnp.asarray, params)
        decide = functools.partial(routed_block.decide, given, config=config, training=True, spread=spread)
        on_device = jax.vmap(lambda x, tokens, noise: decide(x, tokens, noise=noise), axis_name="expert")
        mesh = (given.reshape(*shape, *given.shape[1:]) for given in (x, tokens, noise))
        found = jax.jit(jax.vmap(on_device, axis_name="data"))(*mesh)
    found = jax.tree.map(lambda values: np.asarray(values).reshape(devices, *values.shape[2:]), found)

    config = configuration.ModelConfig(**fields)
    decide = functools.partial(reference_block.decide, params, config=config, training=True)
    if group == "global":
        whole = decide(x.reshape(-1, D + 1), tokens.reshape(devices, TOKENS), noise=noise.ravel())
        wanted, rows = [whole] * devices, whole.routing.expert.reshape(devices, TOKENS, -1)
    else:
        wanted = [decide(*each, noise=u) for *each, u in zip(x, tokens, noise, strict=True)]
        rows = np.stack([each.routing.expert for each in wanted])
    np.testing.assert_array_equal(found.routing.expert, rows)
    bias = wanted[0].bias if wanted[0].bias is None else np.mean([each.bias for each in wanted], axis=0)
    if config.router == "top_k" and bias is not None:
        counts = balance.expert_counts(rows.reshape(-1, 2), EXPERTS)
        bias = balance.update_bias(params["bias"], counts, rate=0.125)
    load = np.mean([each.routing.load for each in wanted], axis=0)
    if not config.sample_second:  # each device drops another number of second experts of GShard
        check("mesh.load", abs(found.routing.load.mean(axis=0) - load).max(), 1.0, message=f"{name}, load")
    for device, each in enumerate(wanted):
        check("mesh.loss", abs(found.auxiliary[device] - each.auxiliary), 1.0, message=f"{name}, loss of {device}")
        if bias is not None:
            check("mesh.bias", abs(found.bias[device] - bias).max(), 1.0, message=f"{name}, bias on device {device}")


LIMITS = [("shard", math.inf), ("shard", 1.0), ("global", 1.0)]


@pytest.mark.parametrize(
    ("devices", "group", "factor"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in ((4, *LIMITS[0]), (4, *LIMITS[1]))), (2, *LIMITS[0])],
)
def test_experts_on_tpus_run_only_on_their_rows(devices, group, factor):
    """A device has one of four experts, or two. The program runs on CPU, with XLA's own products."""
    inputs = jax.tree.map(lambda leaf: leaf.reshape(devices, -1, *leaf.shape[2:]), layer(0, 2))

    def share(params, x, gate):
        done = parallel.routed_ffn_on_devices(params, x, inputs["expert"], gate, factor, group=group, ragged=True)
        return jnp.sin(done.output).sum(), done

    agree_on_a_tpu(share, *(inputs[name] for name in ("params", "x", "gate")))


def lowered(platform: str, devices: int, factor: float, group: str) -> str:
    """Return the program of a layer with gradients for a platform, with one expert and T tokens per device."""
    mesh = jax.sharding.AbstractMesh((devices,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    shapes = {"params": {"up": (devices, D, F), "down": (devices, F, D)}, "x": (devices * TOKENS, D)}
    of = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.float32), shapes, is_leaf=lambda node: isinstance(node, tuple)
    )
    choices = [jax.ShapeDtypeStruct((devices * TOKENS, 1), dtype) for dtype in (np.int32, np.float32)]

    def share(params, x, expert, gate):
        options = {"axis_name": "expert", "ragged": True, "native": True, "activation": "relu", "group": group}
        return (parallel.routed_ffn_on_devices(params, x, expert, gate, factor, **options).output ** 2).sum()

    rows = jax.P("expert")
    spread = jax.shard_map(jax.grad(share, argnums=(0, 1)), mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return jax.jit(spread).trace(of["params"], of["x"], *choices).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("platform", "group", "factor"), [
    ("cuda", "shard", math.inf), ("cuda", "global", 1.0),
    *(pytest.param("tpu", *case, marks=pytest.mark.slow) for case in LIMITS),
])  # fmt: skip
def test_rows_travel_by_the_collective_of_the_platform(platform, group, factor):
    """JAX lowers the program for each platform, so the test needs no such device."""
    sends = {}
    for devices in (2, 16):
        with traced_for(platform):
            text = lowered(platform, devices, factor, group)
        calls = re.findall(r"@ragged_all_to_all\(.*?: \(tensor<([\dx]*)xf32>, tensor<([\dx]*)xf32>", text)
        assert text.count("@ragged_all_to_all") >= 4, "tokens there, outputs back, and their gradients"
        sends[devices] = [there for there, _ in calls][0]
        if group == "global":  # an expert has T slots for tokens of all devices
            assert {shape for call in calls for shape in call} == {f"{TOKENS}x{D}"}
        assert not re.search(r'"stablehlo.all_to_all".*xf32', text), "beside them counts of rows alone"
    assert sends[2] == sends[16] == f"{TOKENS}x{D}", "a row for each token, however many devices there are"
