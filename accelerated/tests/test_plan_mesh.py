"""Plans of meshes: bytes counted by hand, the compiler's count, and the output for the paper's model."""

import dataclasses
import json
import math
import re

import jax
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.devices import slices
from routelaws.accelerated.training.devices.mesh import check_mesh
from routelaws.accelerated.training.devices.mesh_plan import (
    AXES,
    SPARE,
    DevicePlan,
    MeshShape,
    _processed_rows,
    best_plan,
    feasible_meshes,
    parameter_axes,
    parse_mesh,
    plan_device,
    sent_rows,
    smallest_that_fits,
    why_not,
)
from routelaws.accelerated.transformer import parameter_shapes
from routelaws.reference.configuration import ModelConfig

SMALL = ModelConfig(vocab_size=10, d_model=8, blocks=2, heads=2, kqv_size=4, router="base", experts=4)
LARGEST = ["--size", "1.3B", "--router", "sinkhorn", "--experts", "512", "--dtype", "bfloat16"]
MODELS = {
    "dense": {},
    "wide": {"flop_increase": 2},
    "swiglu": {"activation": "swiglu", "positions": "rotary"},
    "granular": {"router": "top_k", "experts": 8, "k": 2, "granularity": 2, "bias_rate": 0.01, "output_norm": True},
    "latent": {"router": "top_k", "experts": 8, "latent_width": 6, "granularity": 2, "shared_experts": 1},
    "shared": {"router": "top_k", "experts": 8, "shared_experts": 1, "router_bias": True, "granularity": 2},
    "reinforce": {"router": "reinforce", "experts": 8, "routing_frequency": 0.25, "layout": "upper"},
    "mixture": {"router": "mixture_of_tokens", "experts": 8, "group_size": 2, "learned_temperature": True},
}


def model(name: str) -> ModelConfig:
    return ModelConfig(vocab_size=300, d_model=16, blocks=4, heads=4, **MODELS[name])


def said(capsys, *arguments) -> str:
    assert cli.main(["plan-mesh", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def backward(plan, vocabulary: int, width: int, groups: int) -> float:
    """Return the bytes of a backward pass without large arrays: the embedding's gradient, the parts of sums that the
    optimizer (8 bytes) uses, and the gradients of one group of blocks."""
    return 4 * vocabulary * width + plan.optimizer / 2 + plan.parameters / groups


def test_a_small_model_on_eight_devices_counted_by_hand():
    """The model has two blocks, one with four experts.

    The batch has 8 sequences of 4 tokens, so each of 2 x 2 replicas has 8 tokens.
    """
    plan = plan_device(SMALL, MeshShape(2, 2, 2), batch_size=8, sequence_length=4)
    experts = 4 * 2 * 8 * 32 // (2 * 2)  # over expert and model
    shared = 2 * 5 * 8 * 2 * 4 // 2 + 2 * 8 * 32 // 2  # two attentions and one FFN, over model
    everywhere = 10 * 8 + 2 * 4 * 8 + 2 * 8 + 8 * 4  # embedding, norms of blocks, last norm, router
    assert plan.parameters == plan.gradients == 4 * (experts + shared + everywhere) == 5120
    assert plan.optimizer == 8 * (experts // 2 + (shared + everywhere) // 4), (
        "moments: experts over data, others over both"
    )
    assert plan.all_to_all == 4 * (8 * 8 * 4) // 2, "there and back, twice; half of the rows stay"
    assert plan.model_reduction == 4 * 2 * (8 * 8 * 4), "four sums a block; a ring of two sends what there is once"
    scattered = 4 * (experts // 2 + (shared + everywhere) * 3 // 4)
    assert plan.gradient_reduction == scattered + 4 * everywhere // 4, "and what model does not cut, once more over it"
    assert plan.parameter_gather == scattered
    attention = 4 * 4 * (8 + 4) + 4 * 4  # one head: its four weights per token
    dense, routed = 16 * 4, (2 * 8 + 16) * 4 + 8 * 4
    of_tokens, of_weights = 8 * (2 * attention + dense + routed + 4 * 10) + 4 * 10 * 8 + 5120, 2 * 5120
    assert plan.activations == SPARE * max(of_tokens, of_weights) - 5120
    assert plan.activations_recomputed == 8 * 2 * 8 * 4 + backward(plan, 10, 8, groups=1)
    assert plan.memory() == 5120 + 5120 + 3584 + plan.activations
    assert plan.traffic() == 512 + 2048 + 3520 + 3328


def test_options_at_other_values_than_1_counted_by_hand():
    """Four blocks, one routed: 12 narrow experts of width 6, 3 shared, 6 per token, capacity 3 of 8 tokens; SwiGLU.

    d = 6 is divisible by 2 but not by 4: so the embedding, single norms and dense FFNs keep their moments whole.
    """
    config = ModelConfig(
        vocab_size=10, d_model=6, blocks=4, heads=2, kqv_size=4, router="top_k", experts=4, k=2, granularity=3,
        routing_frequency=0.25, capacity_factor=0.75, shared_experts=3, activation="swiglu", output_norm=True,
        router_bias=True, bias_rate=0.01,
    )  # fmt: skip
    plan = plan_device(config, MeshShape(2, 2, 2), 8, 4, "bfloat16")
    attention, dense, shared = 4 * 5 * 6 * 2 * 4 // 2, 3 * 3 * 6 * 18 // 2, 3 * 6 * 18 // 2
    experts, cut, whole = 3 * 12 * 6 * 6 // 4, 4 * 4 * 6 + 6 * 12 + 12 + 12, 2 * 6 + 2 * 6 + 10 * 6
    assert plan.parameters == plan.gradients == 4 * (attention + dense + shared + experts + cut + whole) == 6912
    assert plan.optimizer == 8 * ((attention + cut) // 4 + experts // 2 + dense + shared + whole) == 8496
    rows, sums = 12 * 3 * 6 * 2, 4 * 8 * 6 * 2
    assert (plan.all_to_all, plan.all_to_all_recomputed) == (4 * rows // 2, 6 * rows // 2)
    assert (plan.model_reduction, plan.model_reduction_recomputed) == (4 * sums, 6 * sums)
    assert plan.parameter_gather == 3 * (attention + cut) + 2 * experts
    over_batch = plan.parameter_gather + 6 * (dense + shared + whole)
    assert plan.gradient_reduction == over_batch + 4 * (cut // 4 + whole)
    of_attention, of_dense = 4 * 2 * (6 + 4) + 4 * 2, 2 * 9 * 2
    of_experts = 12 * 3 / 8 * (2 * 6 + 2 * 3) * 2 + 8 * 12 + 2 * 9 * 2
    of_tokens = 8 * (4 * of_attention + 3 * of_dense + of_experts + 4 * 10) + 6912 + 4 * 10 * 6
    assert plan.activations == SPARE * max(of_tokens, 2 * 6912) - 6912
    assert plan.activations_recomputed == 8 * 4 * 6 * 2 + 6912 / 2 + backward(plan, 10, 6, groups=1)


def test_a_latent_width_narrows_the_experts_and_the_rows_between_devices():
    """Counted by hand: one block of 4 experts, d = 8, l = 2, 8 tokens per device of 2 slots per expert."""
    fields = dict(vocab_size=10, d_model=8, blocks=1, heads=2, kqv_size=4, router="top_k", experts=4, capacity_factor=1)
    plans = [
        plan_device(ModelConfig(**fields, routing_frequency=1.0, latent_width=width), MeshShape(expert=2), 4, 4)
        for width in (0, 2)
    ]
    full, narrow = plans
    assert full.parameters - narrow.parameters == 4 * (2 * 2 * (8 - 2) * 32 - 2 * 8 * 2)
    assert (full.all_to_all, narrow.all_to_all) == (4 * 4 * 2 * 8 * 4 // 2, 4 * 4 * 2 * 2 * 4 // 2)
    assert narrow.activations < full.activations


def test_a_wide_model_recomputes_a_wide_block():
    """Two of four blocks have an FFN of three times the width."""
    config = ModelConfig(vocab_size=10, d_model=8, blocks=4, heads=2, kqv_size=4, flop_increase=3, activation="relu")
    plan = plan_device(config, MeshShape(2, 1, 2), 4, 4)
    attention, dense = 4 * 4 * (8 + 4) + 4 * 4, 16 * 4
    of_tokens = 8 * (4 * attention + 2 * dense + 2 * 3 * dense + 4 * 10) + 4 * 10 * 8 + plan.parameters
    assert plan.activations == SPARE * max(of_tokens, 2 * plan.parameters) - plan.parameters
    assert plan.activations_recomputed == 8 * 4 * 8 * 4 + backward(plan, 10, 8, groups=2)


@pytest.mark.parametrize("blocks", [4, 5])
def test_a_loop_over_blocks_needs_the_largest_of_its_phases(blocks):
    """A chunk has 2^26 / V of 640 tokens. With S = 160 and 64 numbers in a head, a loop keeps the weights of attention,
    too. The logits of a chunk, their gradient and the embedding's gradient are larger than the weights."""
    config = ModelConfig(vocab_size=2**19, d_model=128, blocks=blocks, heads=2)
    plan = plan_device(config, MeshShape(), 4, 160, "bfloat16")
    kept = 640 * blocks * (4 * 256 * 2 + 0.75 * 160 * 2 * 2 + 512 * 2)
    loss = plan.parameters / 2 + 4 * 2**26 + 4 * 2**19 * 128 + (2 * 2**26 if blocks > 4 else plan.parameters / 2)
    assert plan.activations == round(SPARE * (kept + loss)) - plan.parameters
    assert plan.activations_recomputed == 640 * blocks * 128 * 2 + plan.parameters / 2 + 6 * 2**26 + 4 * 2**19 * 128


@pytest.mark.parametrize(("blocks", "sequences"), [(4, 2), (5, 2), (5, 1)])
def test_long_sequences_need_memory_for_the_attention_of_one_block(blocks, sequences, length=16384):
    """Attention runs in 64 parts of 256 queries. The part before the last needs 63/64 of the keys."""
    config = ModelConfig(vocab_size=10, d_model=8, blocks=blocks, heads=2, kqv_size=4)
    plan, tokens = plan_device(config, MeshShape(), sequences, length, "bfloat16"), sequences * length
    kept, weights = 4 * 16 * 2 + 32 * 2, sum(256 * 256 * k for k in range(1, 65)) / length * 2 * 2
    two = (256 * length + 256 * 63 * 256) / length * 2 * (2 if sequences > 1 else 8)
    block = tokens * (2.5 * 4 * 16 * 2 + 3.5 * two + 1.5 * 32 * 2)
    sums = plan.parameters / 2 + backward(plan, 10, 8, groups=blocks)
    live = tokens * blocks * kept + block
    live += sums if blocks > 4 else tokens * blocks * weights + plan.parameters + 320
    assert plan.activations == round(SPARE * live) - plan.parameters
    assert plan.activations_recomputed == round(tokens * blocks * 8 * 2 + block + sums)


@pytest.mark.parametrize(("experts", "axis", "rows"), [(8, 4, 2 * 4 * 32), (4, 4, 4 * 32), (8, 1, 32)])
def test_a_device_processes_the_rows_that_it_can_receive(experts, axis, rows):
    """Each expert of several processes whole blocks of rows, unless the device has all experts."""
    hashed = ModelConfig(vocab_size=10, d_model=8, blocks=2, heads=2, router="hash", experts=experts)
    assert _processed_rows(hashed, MeshShape(1, axis), 32) == rows
    limited = dataclasses.replace(hashed, router="top_k", capacity_factor=1.0)
    assert _processed_rows(limited, MeshShape(1, axis), 32) == 32


SENT = ("all_to_all", "all_to_all_recomputed", "model_reduction", "model_reduction_recomputed")
OF_TOKENS = ("activations", "activations_recomputed", *SENT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_that_hold_for_every_model(name, dtype):
    config = model(name)

    def planned(data, expert, parts, batch_size, dtype=dtype):
        return plan_device(config, MeshShape(data, expert, parts), batch_size, 8, dtype)

    small, expert = planned(2, 1, 2, 16), 2 if config.num_routed else 1
    twice = planned(4, 1, 2, 32)
    for field in ("parameters", "gradients", "activations", *SENT):
        assert getattr(twice, field) == getattr(small, field), f"{field}: twice the replicas, twice the batch"
    assert twice.activations_recomputed <= small.activations_recomputed, "a part of the sums is smaller"
    alone = planned(1, 1, 1, 16)
    assert alone.traffic() == alone.traffic(True) == 0 and alone.optimizer == 2 * alone.parameters
    steps = [planned(2, expert, 2, batch) for batch in (16, 32, 48)]
    for field in OF_TOKENS:
        first, second, third = (getattr(plan, field) for plan in steps)
        assert third - second >= second - first >= 0, f"{field} grows by equal parts, or another phase becomes larger"
        assert third - second == second - first or field not in SENT
    for plan in steps:
        assert 2 * plan.all_to_all_recomputed == 3 * plan.all_to_all
        assert 2 * plan.model_reduction_recomputed == 3 * plan.model_reduction
        assert plan.optimizer * plan.mesh.devices() >= 2 * alone.parameters, "no moment is missing"
    if config.num_routed:
        two, four = planned(4, 2, 1, 16), planned(2, 4, 1, 16)  # equal tokens per device
        assert two.all_to_all * 3 == four.all_to_all * 2 > 0, "half of the rows leave, or three quarters"
        if config.capacity_factor < math.inf:  # otherwise a device of four can receive more tokens
            assert two.activations >= four.activations
    wide, narrow = (planned(2, expert, 2, 16, dtype) for dtype in ("float32", "bfloat16"))
    assert [getattr(wide, field) for field in SENT] == [2 * getattr(narrow, field) for field in SENT]
    kept = ("parameters", "gradients", "optimizer", "gradient_reduction", "parameter_gather")
    assert [getattr(wide, field) for field in kept] == [getattr(narrow, field) for field in kept]


@pytest.mark.parametrize("changes, times", [
    ({"k": 4}, 2), ({"granularity": 4}, 2), ({"routing_frequency": 1.0}, 2), ({"routing_frequency": 0.25}, 0.5),
    ({"capacity_factor": 0.5}, 0.5), ({"capacity_factor": 1.5}, 1.5), ({"shared_experts": 3}, 1), ({"experts": 16}, 1),
])  # fmt: skip
def test_rows_follow_the_options_of_the_router(changes, times):
    """Eight experts, two per token and each in two parts; a capacity factor of 1 sends one row for each assignment."""
    fields = {"router": "top_k", "experts": 8, "k": 2, "granularity": 2, "capacity_factor": 1.0}
    plain, other = (
        plan_device(ModelConfig(vocab_size=300, d_model=16, blocks=4, heads=4, **fields | more), MeshShape(2, 2), 16, 8)
        for more in ({}, changes)
    )
    assert other.all_to_all == times * plain.all_to_all > 0


DROPLESS = {
    "hash": ["--router", "hash"],
    "without a limit": ["--router", "top_k", "--capacity-factor", "inf"],
    "slots for all": ["--router", "top_k"],  # twice the fair share of four of eight experts is every token
}
"""Routers without drops, each with four of eight narrow experts per token."""


@pytest.mark.parametrize("name", DROPLESS)
def test_a_model_that_drops_nothing_counted_by_hand(capsys, name):
    """As in the test above, but in bfloat16, with G = 2 and k = 2.

    A token goes to four experts, and no row is empty.
    """
    shape = ["--d-model", 8, "--blocks", 2, "--heads", 2, "--kqv-size", 4, "--vocab-size", 10, "--batch-size", 8]
    routed = ["--sequence-length", 4, "--experts", 4, "--k", 2, "--granularity", 2, "--dtype", "bfloat16"]
    asked = ["--devices", 4, "--mesh", "data=2,expert=2", "--memory", "1GB", "--json"]
    report = json.loads(said(capsys, *shape, *routed, *DROPLESS[name], *asked))
    [found] = report["meshes"]
    rows = 4 * 8 * 8 * 2  # four for each of 8 tokens, d = 8, two bytes
    assert (found["all_to_all"], found["all_to_all_recomputed"]) == (4 * rows // 2, 6 * rows // 2)
    assert found["all_to_all_per_token"] == 4 * (4 * 8 * 2) / 2, "whatever the number of devices"
    assert found["model_reduction"] == found["model_reduction_recomputed"] == 0
    attention = 4 * 2 * (8 + 8) + 4 * 2 * 2
    dense, routed = 32 * 2, 2 * 2 * 4 * (2 * 8 + 16) * 2 + 8 * 8  # twice the rows of both devices
    experts, others = 8 * 2 * 8 * 16 // 2, 2 * 5 * 8 * 2 * 4 + 2 * 8 * 32  # of two blocks: attention, and one FFN
    router = 0 if name == "hash" else 8 * 8
    of_tokens = 8 * (2 * attention + dense + routed + 4 * 10) + found["parameters"] + 4 * 10 * 8
    assert found["activations"] == SPARE * max(of_tokens, 2 * found["parameters"]) - found["parameters"]
    sums = 1.5 * found["parameters"] + found["optimizer"] / 2  # copies, one group of blocks, and parts of sums
    assert found["activations_recomputed"] == 8 * 2 * 8 * 2 + sums + 4 * 10 * 8
    assert found["parameters"] == 4 * (experts + others + router + 10 * 8 + 2 * 4 * 8 + 2 * 8)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, 0),
        ({"router": "mixture_of_tokens", "experts": 8, "group_size": 4}, 8 * 32 // 4),
        ({"router": "top_k", "experts": 8, "k": 2, "capacity_factor": 1.25}, 8 * 10),  # slots
        ({"router": "top_k", "experts": 8, "k": 2, "granularity": 2, "capacity_factor": math.inf}, 4 * 32),
    ],
)
def test_the_rows_that_a_device_sends_to_the_experts(fields, rows):
    assert sent_rows(ModelConfig(vocab_size=10, d_model=8, blocks=2, heads=2, **fields), 32) == rows


def test_the_best_of_plans_made_up():
    """A plan that fits comes first. Then traffic, the model axis and memory decide, in this order."""

    def made(model, memory, sent, more=0):
        """Return a plan. Rematerialisation takes a tenth of the memory, and sends `more` bytes."""
        plan = DevicePlan(MeshShape(1, 1, model), memory, 0, 0, 0, -9 * memory // 10, 0, 0, sent, sent + more, 0, 0)
        assert (plan.memory(), plan.memory(recomputed=True)) == (memory, memory // 10)
        assert (plan.traffic(), plan.traffic(recomputed=True)) == (sent, sent + more)
        return plan

    large, busy, idle = made(1, 1000, 1), made(1, 100, 9), made(4, 100, 5)
    assert best_plan([large, busy, idle], 100) == (idle, False)
    narrow, roomy = made(2, 100, 5), made(4, 90, 5)
    assert best_plan([idle, roomy, narrow], 100) == (narrow, False)
    assert best_plan([idle, roomy], 100) == (roomy, False)
    once_more, twice = made(1, 1000, 5, 1), made(2, 1000, 4, 4)
    assert best_plan([once_more, twice], 1000) == (twice, False)
    assert best_plan([once_more, twice], 100) == (once_more, True)
    assert best_plan([once_more, twice], 99) is None


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_accounting_on_one_device_and_of_their_partition_on_many(name):
    config = model(name)
    shapes = jax.tree.leaves(parameter_shapes(config), is_leaf=lambda node: isinstance(node, tuple))
    bias = config.num_routed * config.expert_count * config.has_bias
    aside = 300 * 16 + 2 * 16 + bias  # P excludes the embedding, the last norm and the bias
    router = 16 * 2 * config.num_wide  # the released table counts a router in a wide block, but the model has none
    alone = plan_device(config, MeshShape(), 16, 8)
    assert alone.parameters == 4 * (config.accounting(128).total_parameters - router + aside)
    axes = jax.tree.leaves(parameter_axes(config), is_leaf=lambda node: isinstance(node, tuple))
    for mesh in feasible_meshes(config, 8, batch_size=16):
        abstract = jax.sharding.AbstractMesh(tuple(mesh), AXES)
        parts = [
            jax.NamedSharding(abstract, jax.P(*names)).shard_shape(shape)
            for (shape, _), names in zip(shapes, axes, strict=True)
        ]
        assert plan_device(config, mesh, 16, 8).parameters == 4 * sum(map(math.prod, parts))


LAID = {
    **MODELS,
    "expert choice": {"router": "expert_choice", "experts": 4},
    "within sequences": {"router": "expert_choice", "experts": 4, "grouping": "sequence"},  # evaluated by position
    "neighbours": {"router": "mixture_of_tokens", "experts": 4, "grouping": "sequence", "objective": "masked"},
    "narrow": {"router": "hash", "experts": 6, "granularity": 32},
}


@pytest.mark.filterwarnings("ignore:grouping is 'sequence'")
@pytest.mark.parametrize("name", LAID)
def test_the_meshes_that_are_planned_are_those_that_train(name):
    config = ModelConfig(vocab_size=300, d_model=16, blocks=4, heads=4, **LAID[name])
    sizes, taken = (1, 2, 3, 4, 8), set()
    for mesh in (MeshShape(d, e, m) for d in sizes for e in sizes for m in sizes if d * e * m <= 16):
        said = why_not(config, mesh, 8)
        taken.add(said is None)
        if said is None:
            check_mesh(config, str(mesh), "shard", 8)
        else:
            with pytest.raises(InputError):
                check_mesh(config, str(mesh), "shard", 8)
    assert taken == {True, False}


def test_the_largest_model_of_the_paper(capsys):
    """About 200 billion parameters exceed 128 devices of 16 GB. The advised devices are large enough."""
    report = json.loads(said(capsys, *LARGEST, "--devices", 128, "--memory", "16GB", "--json"))
    d, routed = 2048, 12
    assert report["dense_parameters"] == 1_308_819_456
    assert report["total_parameters"] == 1_308_819_456 + routed * (511 * 8 * d * d + 512 * d) == 207_077_179_392
    assert report["embedding_and_norm"] == 32_000 * d + 2 * d
    assert report["best"] is None and not any(entry["fits_recomputed"] for entry in report["meshes"])
    text = said(capsys, *LARGEST, "--devices", 128, "--memory", "16GB")
    assert "1.309B dense parameters, 207.1B in all" in text
    assert "No mesh of 128 devices of 16 GB is large enough." in text
    devices, mesh = re.search(r"(\d+) devices of this kind also suffice, with --mesh (\S+)\.\n", text).groups()
    assert "Best: --mesh " + mesh in said(capsys, *LARGEST, "--devices", devices, "--memory", "16GB", "--mesh", mesh)
    memory, mesh = re.search(r"Devices of ([\d.]+ GB) suffice, with --mesh (\S+) and", text).groups()
    least = min(entry["memory_recomputed"] for entry in report["meshes"])
    assert math.isclose(float(memory[:-3]), least / 1e9, rel_tol=1e-2)
    assert "Best" in said(capsys, *LARGEST, "--devices", 128, "--mesh", mesh, "--memory", f"{least}B")


def test_the_smallest_number_of_devices_is_that_of_the_type_that_is_asked_for():
    config, sizes = model("granular"), (16, 32)

    def least(devices, dtype):
        plans = [plan_device(config, mesh, *sizes, dtype) for mesh in feasible_meshes(config, devices, sizes[0])]
        return min(plan.memory(recomputed=True) for plan in plans)

    memory = least(8, "bfloat16")
    assert memory < min(least(8, "float32"), least(4, "bfloat16"))
    found = smallest_that_fits(config, memory, 2, *sizes, "bfloat16")
    assert found.plan.mesh.devices() == 8 and found.plan == plan_device(config, found.plan.mesh, *sizes, "bfloat16")
    assert smallest_that_fits(config, memory, 2, *sizes).plan.mesh.devices() > 8
    most = plan_device(SMALL, MeshShape(2, 1, 2), 2, 4)  # two sequences and two heads allow no fifth part
    found = smallest_that_fits(SMALL, most.memory(), 1, 2, 4)
    assert found.plan.mesh.devices() == 4
    assert smallest_that_fits(SMALL, 1.0, 1, 2, 4) is None


def test_a_mesh_is_read_in_one_way():
    """`test_wrong_commands.py` has other texts."""
    with pytest.raises(InputError, match="is not AXIS=SIZE; AXIS is one of data, expert, model, each once"):
        parse_mesh("data=" + "9" * 5000)
    assert parse_mesh("expert=4, data=2") == MeshShape(2, 4, 1) == parse_mesh(str(MeshShape(2, 4, 1)))
    assert parse_mesh("model=3, data=1,expert=2") == MeshShape(1, 2, 3)


def test_the_compiler_refuses_a_mesh_that_the_plan_calls_large_enough(capsys, monkeypatch):
    """Meshes without rematerialisation do not fit here, by the compiler's answer."""
    asked = []

    def answer(config, name):
        asked.append((config.mesh, config.rematerialise, name))
        return {"fits": config.rematerialise, "memory": {"sum": 2e9}}

    monkeypatch.setattr(slices, "compile_training", answer)
    flags = ["--slice", "v5e:2x2", "--router", "top_k", "--experts", 4, "--batch-size", 8]
    text = said(capsys, *flags, "--compile")
    planned = json.loads(said(capsys, *flags, "--json"))
    assert planned["devices"] == 4 and planned["memory_bytes"] == 15.75 * 2**30
    plain = [each for each in planned["meshes"] if each["fits"]]
    assert [again for _, again, _ in asked] == [False] * len(plain) + [True] and asked[0][2] == "v5e:2x2"
    assert text.count("too large") == len(plain) and "2 GB, fits" in text
    assert f"Best: --mesh {asked[-1][0]}, with --rematerialise" in text and "Each device needs 2 GB" in text
