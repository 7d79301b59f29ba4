"""Runs compiled for slices of TPUs; the tests need libtpu (pip install 'routelaws[tpu]')."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from routelaws.accelerated.commands.models.compile import words
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.operations import own_backward
from routelaws.accelerated.operations.target import platform, traced_for
from routelaws.accelerated.parallel import in_block
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.devices import slices
from routelaws.accelerated.training.devices.hlo import Program
from routelaws.accelerated.training.devices.mesh import OF_BLOCKS
from routelaws.accelerated.training.devices.mesh_plan import parse_mesh, plan_device
from routelaws.accelerated.training.devices.slices import compile_run, size_of_slice, slice_devices
from routelaws.accelerated.training.step import open_layout, state_shapes

RUN = {
    "d_model": 256, "heads": 2, "blocks": 2, "vocab_size": 1024, "batch_size": 8, "sequence_length": 256,
    "dtype": "bfloat16", "router": "top_k", "experts": 4, "mesh": "data=2,expert=2", "capacity_factor": 1.0,
    "steps_per_call": 2,
}  # fmt: skip
"""A run with rows of 256 numbers. XLA on TPU pads shorter rows of bfloat16 to this width before it exchanges them."""


@pytest.fixture
def libtpu(monkeypatch):
    pytest.importorskip("libtpu")
    for name, value in slices.OF_LIBTPU.items():
        monkeypatch.setenv(name, value)


def test_a_program_is_traced_for_its_target():
    here = platform()
    small, wide = own_backward._chunk_length(4, 4096, 1024), None
    with traced_for("tpu"):
        assert platform() == "tpu"
        wide = own_backward._chunk_length(4, 4096, 1024)
    assert platform() == here and (wide > small or here != "cpu")


def test_without_libtpu_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(slices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"libtpu is missing; install it with: pip install 'routelaws\[train,tpu\]'"):
        compile_run(from_mapping(RUN), "v5e:2x2")


def test_the_devices_of_a_slice(libtpu):
    for name in ("v5e:1x1", "v4:2x2x1", "tpu7x:2x2x1", "v6e:4x4"):
        assert len(slice_devices(name)) == size_of_slice(name)
    with pytest.raises(InputError, match="slice v5e:3x3 does not exist for libtpu: .*not divisible"):
        slice_devices("v5e:3x3")


@pytest.mark.parametrize(("name", "mesh", "ragged"), [
    ("v5e:4x4", "expert=16", True), ("v5e:4x8", "expert=32", False), ("v6e:16x16", "data=4,expert=64", True),
])  # fmt: skip
def test_a_layout_follows_its_devices(libtpu, name, mesh, ragged):
    """JAX's own mesh for v6e cannot have an axis of 64 on 16 x 16 chips."""
    config = from_mapping(RUN | {"mesh": mesh, "experts": 64, "batch_size": 256})
    assert open_layout(config, slice_devices(name)).spread.ragged == ragged


def squares(params, tokens, *_):
    """Return the sum of the squares of all weights, as a loss that runs block by block, and no numbers."""

    def add(total, weights):
        return total + sum((leaf**2).sum() for leaf in jax.tree.leaves(in_block(weights))), None

    total = tokens.sum() * 0.0
    for name, weights in params.items():
        total = (jax.lax.scan(add, total, weights) if name in OF_BLOCKS else add(total, weights))[0]
    return total, {}


@pytest.mark.parametrize("mesh", ["data=16", "data=4,expert=4", "data=2,expert=4,model=2"])
def test_each_device_gets_only_its_part_of_a_sum(libtpu, mesh):
    """An all-reduce would store the whole sums in float32, and send twice as much. XLA still makes some for narrower
    models, whose parts do not fill the 128 lanes of a tile; `docs/pods.csv` has their bytes.
    """
    config = from_mapping(RUN | {"mesh": mesh, "batch_size": 16, "blocks": 4, "d_model": 2048, "heads": 16})
    layout, shapes = open_layout(config, slice_devices("v5e:4x4")), state_shapes(config).params
    weights, parts = (
        jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, places)
        for places in (layout.sharding(layout.params), layout.sharding(layout.moments))
    )
    tokens = jax.ShapeDtypeStruct((16, 256), jnp.int32)

    def step(params, parts, tokens):
        return layout.differentiate(squares)(params, tokens, None, None, None)[1], layout.join(parts, params)

    sent = Counter()
    for each in Program(jax.jit(step).lower(weights, parts, tokens).compile().as_text()).collectives():
        sent[each.kind] += each.times * each.sent
    plan = plan_device(config.model, parse_mesh(mesh), 16, 256, "bfloat16")
    assert sent["reduce-scatter"] + sent["all-reduce"] == pytest.approx(plan.gradient_reduction, rel=0.1)
    assert sent["all-gather"] == pytest.approx(plan.parameter_gather, rel=0.1)
    assert sent["all-reduce"] < 0.02 * sent["reduce-scatter"]


@pytest.mark.slow
def test_a_small_run_is_compiled(libtpu, tmp_path, monkeypatch):
    """Two minutes on two cores."""
    monkeypatch.setenv("ROUTELAWS_CACHE", str(tmp_path))
    config = from_mapping(RUN)
    report = compile_run(config, "v5e:2x2")
    training, evaluation = report["training"], report["evaluation"]
    assert training["fits"] and evaluation["fits"] and training["memory"]["sum"] < report["available"]
    plan = plan_device(config.model, parse_mesh(config.mesh), 8, 256, "bfloat16")
    state = plan.parameters + plan.optimizer
    assert state < training["memory"]["arguments"] < 1.1 * state
    sent = training["collectives"]
    assert sent["ragged-all-to-all"] == {"count": 4, "bytes": plan.all_to_all}, "there and back, and their gradients"
    assert sent["all-gather"]["bytes"] == pytest.approx(plan.parameter_gather, rel=1e-3)
    # Without rematerialisation the blocks are unrolled, so XLA counts each product once too, and all other operations.
    assert 0.9 < training["product_flops"] / training["compiler"]["flops"] < 1
    assert compile_run(config, "v5e:2x2") == report and len([*tmp_path.rglob("*.json")]) == 2, "the second is cached"
    rows = [line.split() for line in words({"run": "small", **report})]
    assert [row[0] for row in rows if len(row) == 7] == ["training", "evaluation"]
    assert rows[3][-1] == f"{training['memory']['sum'] / 1e9:.3g}"


def test_an_evaluation_stores_a_part_of_the_logits():
    config = from_mapping({"d_model": 8, "heads": 1, "vocab_size": 8192, "batch_size": 4, "sequence_length": 256})
    device = jax.devices()[0]
    compiled = slices._lowered(config, None, device)[1].compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 256 * 8192 * 4 / 2
