"""Models of transformers from their config.json: parameters as transformers counts them, and meshes by brute force."""

import itertools
import json
import random

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.conversion.families import EXTRA, FAMILIES, PARTS, ForeignModel, read_model
from routelaws.accelerated.conversion.foreign_mesh import (
    TENSOR_LETTERS,
    ForeignMesh,
    feasible_meshes,
    plan_device,
    stage_tensors,
    why_not,
    zipf_loads,
)
from routelaws.accelerated.errors import InputError

SIZES = {
    "hidden_size": 64, "vocab_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts_per_tok": 3, "moe_k": 3, "moe_topk": 3,
    "n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "moe_num_experts": 8, "kv_lora_rank": 16,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 20, "index_n_heads": 2, "index_head_dim": 12,
    "pad_token_id": 0, "n_group": 1, "topk_group": 1, "prefix_dense_intermediate_size": 80, "intermediate_size_mlp": 72,
}  # fmt: skip
CHOICES = {
    "q_lora_rank": [None, 24], "head_dim": [32, 16], "tie_word_embeddings": [False, True],
    "first_k_dense_replace": [0, 2], "num_dense_layers": [0, 2], "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [1]], "interleave_moe_layer_step": [1, 2], "moe_layer_interval": [1, 2],
    "moe_layer_start_index": [0, 1], "moe_layer_end_index": [-1, 3], "n_shared_experts": [1, 2],
    "num_shared_experts": [1, 2], "moe_num_shared_experts": [0, 2], "shared_intermediate_size": [0, 40],
    "shared_expert_intermediate_size": [32, 56],
} | dict.fromkeys(
    ("attention_bias", "qkv_bias", "mlp_bias", "use_bias", "use_qk_norm", "lm_head_bias"), [False, True]
)  # fmt: skip
NO_DEFAULT = {
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 64, "moe_topk": 8},
    "deepseek_v2": {"num_experts_per_tok": 6},
}
"""Values of the published models for keys that have no default in their class."""


def configuration(kind: str, seed: int, **more):
    """Return a small configuration with random options."""
    configurations = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    known = {*configurations[kind]().to_dict(), "num_experts", "first_k_dense_replace"}
    draw = random.Random(seed)
    values = SIZES | {key: draw.choice(of) for key, of in CHOICES.items()} | more
    if FAMILIES[kind].attention == "latent":
        del values["head_dim"]
    if kind == "deepseek_v32":
        values["q_lora_rank"] = 24
    return configurations[kind](**{key: value for key, value in values.items() if key in known})


def shapes_of(config) -> list[tuple[str, tuple[int, ...]]]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return [(name, tuple(value.shape)) for name, value in model.named_parameters()]


def count(shapes) -> int:
    return sum(int(np.prod(shape, dtype=object)) for _, shape in shapes)


def plain(config) -> dict:
    return json.loads(config.to_json_string(use_diff=False))


def sums(model: ForeignModel) -> tuple[int, int]:
    return tuple(sum(of) for of in zip(*model.parts().values(), strict=True))


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_counts_are_those_of_transformers(kind):
    """Active parameters: with only k experts, transformers builds the same model with a smaller router."""
    for seed in range(3):
        config = configuration(kind, seed)
        shapes = shapes_of(config)
        total, active = sums(read_model(plain(config)))
        assert total == count(shapes), seed
        few = {key: 3 for key in SIZES if SIZES[key] == 8}
        routers = [shape for name, shape in shapes if 8 in shape and "experts." not in name]
        rest = 5 * sum(count([("", shape)]) for shape in routers) // 8
        assert active == count(shapes_of(configuration(kind, seed, **few))) + rest, seed


@pytest.mark.parametrize(("kind", "changes"), [
    ("llama4_text", {"moe_layers": []}), ("qwen2_moe", {"shared_expert_intermediate_size": 0}),
    ("glm4_moe_lite", {"qk_rope_head_dim": None, "head_dim": 6}), ("glm4_moe_lite", {"first_k_dense_replace": 3}),
    ("hy_v3", {"first_k_dense_replace": 0}),
    ("hunyuan_v1_moe", {"moe_topk": [3] * 5}),
    ("deepseek_v2", {"n_routed_experts": None, "num_experts": 4}),
    ("ernie4_5_moe", {"moe_num_experts": None, "num_experts": 4, "moe_k": None, "num_experts_per_tok": 2}),
])  # fmt: skip
def test_unusual_values_count_as_in_transformers(kind, changes):
    configurations = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    values = {key: value for key, value in (plain(configuration(kind, 0)) | changes).items() if value is not None}
    config = configurations[kind].from_dict({key: value for key, value in values.items() if key != "model_type"})
    assert sums(read_model(values | {"model_type": kind}))[0] == count(shapes_of(config))


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_counts_of_the_default_configuration_are_those_of_transformers(kind):
    configurations = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    config = configurations[kind](pad_token_id=0, **NO_DEFAULT.get(kind, {}))
    assert sums(read_model(plain(config)))[0] == count(shapes_of(config)) > 1e9


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_missing_key_has_the_value_of_its_class(kind):
    configurations = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    family = FAMILIES[kind]
    keys = [key for key in family if isinstance(key, str)] + [*family.extra.values()]
    optional = {name for key in " ".join(keys).split() if "=" in key for name in key.partition("=")[0].split("|")}
    full = plain(configuration(kind, 0))
    kept = {key for key in full if key in SIZES or "shared" in key} | {"num_dense_layers", "q_lora_rank", "head_dim"}
    kept = (kept | {"mlp_only_layers"}) - (optional - {family.dense.partition("=")[0]})
    values = {key: full[key] for key in kept if key in full}
    if family.attention == "latent":
        values.pop("head_dim", None)
    config = configurations[kind](**values)
    assert sums(read_model(values | {"model_type": kind}))[0] == count(shapes_of(config))


MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "vocab_size": 32000, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
SMALL = {
    "model_type": "qwen2_moe", "hidden_size": 8, "vocab_size": 10, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 12, "moe_intermediate_size": 6, "num_experts": 4,
    "num_experts_per_tok": 2, "shared_expert_intermediate_size": 4, "mlp_only_layers": [0],
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "kv_lora_rank": 6, "q_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
    "v_head_dim": 3, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip


def test_mixtral_has_the_published_numbers_of_parameters():
    """46.7 billion, 12.9 billion active (Jiang et al. 2024, section 2.1: 47B and 13B)."""
    assert sums(read_model(MIXTRAL)) == (46_702_792_704, 12_879_925_248)


def test_a_model_that_names_a_known_class_is_counted():
    """Kimi K2 has the class of DeepSeek-V3. Count it by hand: 61 blocks, the first dense, with 384 experts each."""
    kimi = {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "vocab_size": 163_840,
        "num_hidden_layers": 61, "num_attention_heads": 64, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    attention = 7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * (512 + 64) + 512 + 512 * 64 * 256 + 64 * 128 * 7168
    expert, ends = 3 * 7168 * 2048, 2 * 163_840 * 7168 + 7168
    blocks = 61 * (attention + 2 * 7168) + 3 * 7168 * 18_432 + 60 * (7168 * 384 + expert)
    found = read_model(kimi)
    assert sums(found) == (ends + blocks + 60 * 384 * expert, ends + blocks + 60 * 8 * expert)
    assert sums(read_model(MIXTRAL | {"model_type": "x", "architectures": ["MixtralForCausalLM"]})) == sums(
        read_model(MIXTRAL)
    )
    with pytest.raises(InputError, match="save text_config as a config.json"):
        read_model({"model_type": "kimi_k25", "text_config": kimi})


# MESHES


def placed(model: ForeignModel, mesh: ForeignMesh) -> list[dict]:
    """Place the parts of every tensor on every device: {(tensor, its number, its slices): count} for each device."""
    blocks = [part.tolist() for part in np.array_split(np.arange(len(model.routed)), mesh.pipeline)]
    devices = []
    for stage, number in itertools.product(range(mesh.pipeline), range(mesh.data * mesh.tensor)):
        at = {"tensor": number % mesh.tensor, "expert_tensor": number % mesh.expert_tensor}
        at["expert"] = number // mesh.expert_tensor % mesh.expert
        held = {}
        for i, (tensor, times) in enumerate(stage_tensors(model, mesh.pipeline, stage, blocks[stage])):
            slices = []
            for letter, size in zip(tensor.letters, tensor.shape, strict=True):
                axis = "tensor" if letter in TENSOR_LETTERS else None
                if tensor.part == "experts":
                    axis = {"E": "expert", "f": "expert_tensor"}.get(letter)
                parts = getattr(mesh, axis) if axis else 1
                slices.append(tuple(np.array_split(np.arange(size), parts)[at[axis] if axis else 0].tolist()))
            rank = None if tensor.part == "experts" else at["tensor"]  # each has an optimizer of its own
            for copy in range(times):
                held[stage, i, copy, rank, tuple(slices)] = int(np.prod([len(part) for part in slices]))
        devices.append(held)
    return devices


def rows_moved(model: ForeignModel, mesh: ForeignMesh, tokens: float, loads: np.ndarray) -> float:
    """Return the rows that the busiest device moves in one all-to-all, with `tokens` on each device."""
    per_device = model.sizes["E"] // mesh.expert
    moved = np.zeros((mesh.expert, mesh.expert))
    for source, expert in itertools.product(range(mesh.expert), range(model.sizes["E"])):
        moved[source, expert // per_device] += tokens * model.sizes["k"] * loads[expert]
    leaving = moved - np.diag(np.diag(moved))
    return max(leaving.sum(axis=0).max(), leaving.sum(axis=1).max())


def test_forty_meshes_by_placing_every_tensor_on_every_device():
    cases = []
    for values in (SMALL, SMALL | {"tie_word_embeddings": True, "qkv_bias": False}, SMALL | DEEPSEEK):
        model = read_model(values)
        cases += [(model, mesh) for devices in (1, 2, 3, 4, 8, 16) for mesh in feasible_meshes(model, devices, 8)]
    cases = random.Random(0).sample(cases, 120)
    assert len({mesh for _, mesh in cases}) >= 40 and {mesh.pipeline for _, mesh in cases} == {1, 2, 3}
    for n, (model, mesh) in enumerate(cases):
        loads = zipf_loads(model.sizes["E"], 2, 1.5 * (n % 3))
        plan = plan_device(model, mesh, 8, 4, "bfloat16", loads)
        devices = placed(model, mesh)
        copies = {}
        for key in itertools.chain(*devices):
            copies[key] = copies.get(key, 0) + 1
        counts = [sum(held.values()) for held in devices]
        state = [sum(12 * number / copies[key] for key, number in held.items()) for held in devices]
        assert plan.gradients == 2 * plan.parameters
        pairs = {(2 * number, int(np.ceil(round(moments, 6)))) for number, moments in zip(counts, state, strict=True)}
        assert (plan.parameters, plan.optimizer) in pairs
        assert mesh.pipeline > 1 or plan.parameters == 2 * max(counts)
        sent = [sum(number * (1 - 1 / copies[key]) for key, number in held.items()) for held in devices]
        assert plan.parameter_gather == round(2 * max(sent))
        assert mesh.tensor > 1 or plan.gradient_reduction == round(4 * max(sent))
        tokens = 8 * 4 / (mesh.data * mesh.tensor)
        moved = rows_moved(model, mesh, tokens, loads)
        parts = np.array_split(np.array(model.routed), mesh.pipeline)
        assert plan.all_to_all == round(4 * moved * 8 * 2 * max(part.sum() for part in parts))


def test_a_mesh_counted_by_hand():
    """One dense and two routed blocks on 8 devices; a replica has 2 sequences of 4 tokens, so 4 tokens a device."""
    model, mesh = read_model(SMALL), ForeignMesh(data=4, tensor=2, pipeline=1, expert=2, expert_tensor=2)
    plan = plan_device(model, mesh, 8, 4, "bfloat16")
    attention = 3 * (2 * 8 * 8 + 2 * 8 * 4) // 2 + 3 * (8 + 4 + 4) // 2
    split = attention + 2 * 10 * 8 // 2 + 3 * 8 * 12 // 2 + 2 * 3 * 8 * 4 // 2
    whole = 3 * 2 * 8 + 8 + 2 * 4 * 8 + 2 * 8  # norms, routers, gates of the shared experts
    experts = 2 * 3 * 4 * 8 * 6 // 4
    assert plan.parameters == 2 * (split + whole + experts)
    assert plan.optimizer == 12 * (split + whole) / 4 + 12 * experts / 2
    rows = 4 * 2 * 8 * 2  # 4 tokens, 2 experts, d = 8, two bytes
    assert plan.all_to_all == 2 * 4 * rows / 2, "two blocks, four times; half of the rows leave"
    gathers, within = (2 + 2 + 2) * 8 * 8 * 2 / 2, 2 * rows
    assert plan.model_reduction == 4 * (gathers + within)
    assert plan.gradient_reduction == 4 * (split + whole) * 3 / 4 + 4 * experts / 2 + 2 * 4 * whole / 4 / 2
    block = 4 * 8 / 2 + (8 + 4 + 4 + 8) / 2  # residual and norms; queries, keys, values, mixture
    dense, shared = 3 * 12 / 2, 3 * 4 / 2
    of_experts = 4 / 2 * 4 / 2 + 2 * (2 * 8 + 3 * 6 / 2)  # scores; a row for each of two experts
    arrays = 3 * block + dense + 2 * (shared + of_experts)
    assert plan.activations == 4 * arrays * 2 + 8 * 4 * 10 / 2, "one sequence of 4 tokens, and its logits"
    assert plan.activations_recomputed == 4 * 3 * 8 / 2 * 2 + 4 * (block + shared + of_experts) * 2 + 8 * 4 * 10 / 2
    skewed = plan_device(model, mesh, 8, 4, "bfloat16", np.array([[0.5, 0.2, 0.2, 0.1], [0.25] * 4]))
    assert skewed.all_to_all == round(4 * rows * (0.7 + 0.5)), "device 0 receives 0.7 of the other device's rows"
    more = (1.4 - 1) * 2 * (2 * 8 + 3 * 6 / 2)
    assert skewed.activations == round(plan.activations + 4 * more * 2)


def test_a_model_without_routed_blocks_sends_nothing_to_experts():
    model = read_model(SMALL | {"mlp_only_layers": [0, 1, 2]})
    plan = plan_device(model, ForeignMesh(data=4, expert=4), 8, 4, "bfloat16", zipf_loads(4, 2, 1.0))
    assert plan.all_to_all == 0 and plan.parameters == 2 * sums(model)[0]


def test_a_pipeline_holds_the_micro_batches_that_are_in_flight():
    model = read_model(MIXTRAL)
    plans = [plan_device(model, ForeignMesh(1, 1, 4), batch, 4, "bfloat16") for batch in (1, 2, 4, 8)]
    kept = [plan.activations for plan in plans]
    first = kept[1] - kept[0]
    assert kept[2] > kept[1] > kept[0] and kept[3] == kept[2] and kept[2] - kept[1] >= first > 0
    assert plan_device(model, ForeignMesh(1, 1, 1), 8, 4, "bfloat16").model_reduction == 0
    assert plans[0].model_reduction == 2 * 4 * 4096 * 2, "a middle stage sends rows on and their gradients back"
    assert ForeignMesh(2, 1, 4).idle(8) == 3 / 7


@pytest.mark.parametrize(("mesh", "reason"), [
    (ForeignMesh(4, 1, 1, 8), "expert x expert_tensor does not divide data x tensor = 4"),
    (ForeignMesh(1, 4), "tensor 4 does not divide the 2 heads of keys"),
    (ForeignMesh(3), "data 3 does not divide the 8 sequences of the batch"),
    (ForeignMesh(8, 1, 1, 8), "expert 8 does not divide the 4 experts"),
    (ForeignMesh(4, 1, 1, 1, 4), "expert_tensor 4 does not divide the 6 hidden units of an expert"),
    (ForeignMesh(1, 1, 4), "pipeline 4 exceeds the 3 blocks"),
])  # fmt: skip
def test_a_mesh_that_does_not_fit_is_refused(mesh, reason):
    assert why_not(read_model(SMALL), mesh, 8) == reason
    with pytest.raises(InputError, match=reason):
        plan_device(read_model(SMALL), mesh, 8, 4, "float32")


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 2, 8])
@pytest.mark.parametrize(("experts", "chosen"), [(8, 1), (8, 2), (8, 8), (128, 8)])
def test_zipf_loads_are_shares_that_a_router_can_give(experts, chosen, exponent):
    loads = zipf_loads(experts, chosen, exponent)
    assert loads.shape == (experts,) and loads.sum() == pytest.approx(1) and loads.max() <= 1 / chosen + 1e-12
    assert (np.diff(loads) <= 1e-15).all()
    below = loads[loads < 1 / chosen - 1e-9]
    ranks = np.arange(experts - len(below) + 1, experts + 1)
    assert below * ranks**exponent == pytest.approx((below * ranks**exponent).mean() if len(below) else 0)


# THE COMMAND


@pytest.fixture
def mixtral(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    return tmp_path


def said(capsys, folder, *more: str, code: int = 0) -> str:
    words = ("plan-mesh", "--model", str(folder), "--devices", "8", "--memory", "80GB", *more)
    assert cli.main([*words]) == code
    output = capsys.readouterr()
    return output.err if code else output.out


def test_the_command_plans_what_its_flags_say(mixtral, capsys):
    text = said(capsys, mixtral, "--top", "1")
    assert "(mixtral): 46.7B parameters, 12.88B active for a token" in text and "experts  45,097,156,608" in text
    assert "No mesh of 8 devices of 80 GB is large enough" in text and "more meshes" in text
    flags = ("--mesh", "data=8,expert=4,expert_tensor=2", "--batch-size", "32", "--sequence-length", "128", "--json")
    report = json.loads(said(capsys, mixtral / "config.json", *flags))
    plan = plan_device(read_model(MIXTRAL), ForeignMesh(8, 1, 1, 4, 2), 32, 128, "bfloat16")
    [entry] = report["meshes"]
    assert {name: entry[name] for name in plan._fields[1:]} == dict(zip(plan._fields[1:], plan[1:], strict=True))
    assert report["parameters"]["experts"] == {"total": 45_097_156_608, "active": 11_274_289_152}
    [wide] = json.loads(said(capsys, mixtral, *flags, "--dtype", "float32"))["meshes"]
    assert wide["parameters"] == 2 * entry["parameters"] and wide["optimizer"] < entry["optimizer"]


def test_loads_of_a_law_and_of_a_trace(mixtral, capsys):
    flags = ("--mesh", "data=8,expert=4", "--batch-size", "32", "--json")
    even, skewed = (json.loads(said(capsys, mixtral, *flags, "--loads", of))["meshes"][0] for of in ("0", "1"))
    share = zipf_loads(8, 2, 1.0)[:2].sum()
    assert skewed["all_to_all"] == pytest.approx(even["all_to_all"] * 4 * share)
    assert skewed["activations"] > even["activations"]
    draw = np.random.default_rng(0)
    expert = draw.integers(2, size=(32, 50, 1)) * [1, 0] + [0, 7]  # experts 0 and 1, and always expert 7
    np.savez(mixtral / "trace.npz", token=np.arange(50), expert=expert)
    [traced] = json.loads(said(capsys, mixtral, *flags, "--loads", str(mixtral / "trace.npz")))["meshes"]
    assert traced["all_to_all"] == pytest.approx(even["all_to_all"] * 4 * 0.5)
    np.save(mixtral / "vllm.npy", expert.swapaxes(0, 1))
    [array] = json.loads(said(capsys, mixtral, *flags, "--loads", str(mixtral / "vllm.npy")))["meshes"]
    assert array == traced
    padded = np.concatenate([expert, np.zeros((32, 30, 2), int)], axis=1)
    np.savez(mixtral / "padded.npz", token=np.arange(80), expert=padded)
    assert cli.main(["plan-mesh", "--model", str(mixtral), "--devices", "8", "--memory", "80GB", *flags, "--loads",
                     str(mixtral / "padded.npz")]) == 0  # fmt: skip
    output = capsys.readouterr()
    assert json.loads(output.out)["meshes"] == [traced], "padding is in no load"
    assert "padded.npz: 30 tokens (38%) have only expert 0: padding" in output.err
    np.savez(mixtral / "other.npz", token=np.arange(50), expert=expert[1:])
    line = said(capsys, mixtral, *flags, "--loads", str(mixtral / "other.npz"), code=2)
    assert "other.npz: it has 31 layers; the model has 32 routed blocks; use a trace of this model" in line
    np.savez(mixtral / "empty.npz", token=np.arange(50), expert=expert * np.arange(32)[:, None, None].clip(max=1) - 1)
    line = said(capsys, mixtral, *flags, "--loads", str(mixtral / "empty.npz"), code=2)
    assert "no expert chose them; use a trace of this model, with an expert in each routed block" in line


def test_every_entry_of_the_tables_is_used():
    assert {part for part, *_ in EXTRA.values()} <= {*PARTS}
    assert {*EXTRA} == {extra for family in FAMILIES.values() for extra in family.extra}
