"""Routing that other programs recorded: every planted fault is named, clean routing has none, and files are read."""

import base64
import io
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import softmax

from routelaws.accelerated import cli
from routelaws.accelerated.conversion.families import model_in, read_model
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.inspection import foreign_traces
from routelaws.accelerated.inspection.foreign_traces import Design, Recorded, as_trace, problems, read_recorded
from routelaws.accelerated.inspection.statistics import block_statistics

SHAPES = [(4, 1, 3), (4, 2, 1), (8, 2, 4), (8, 2, 1), (16, 4, 6), (64, 8, 3), (64, 1, 4), (300, 8, 4), (512, 4, 2)]
"""(experts, experts per token, routed blocks)."""


class Case(NamedTuple):
    of: Recorded
    design: Design


def clean(seed: int, shape=None) -> Case:
    """Return a routing by scores of tokens with uneven loads, in sequences of 20 to 60 tokens."""
    random = np.random.default_rng(seed)
    experts, choices, blocks = shape or SHAPES[seed % len(SHAPES)]
    length, sequences = int(random.integers(20, 60)), int(random.integers(1, 5))
    token = random.zipf(1.3, length * sequences) % 500
    scores = random.normal(size=(blocks, 500, experts)) + random.normal(size=(blocks, 1, experts))
    logits = scores[:, token] + 0.5 * random.normal(size=(blocks, len(token), experts))
    expert = np.argsort(-logits, axis=2)[:, :, :choices].astype(np.int32)
    gate = softmax(np.take_along_axis(logits, expert, axis=2), axis=2)
    design = Design(experts, choices, np.arange(blocks) + 1, blocks, 1.0)
    return Case(Recorded(expert, gate, logits, token, np.arange(len(token)) % length == 0), design)


@pytest.mark.parametrize("seed", range(50))
def test_clean_routing_has_no_problem(seed):
    case = clean(seed)
    for of in (case.of, case.of._replace(logits=None), case.of._replace(logits=None, gate=None, token=None)):
        assert problems(of, case.design) == {}
        assert problems(of) == {}


@pytest.mark.parametrize("seed", range(20))
def test_runs_by_chance_are_no_problem(seed):
    """Expert 0 takes 60 % of the choices in two blocks, so a third of the tokens have only expert 0."""
    expert = np.random.default_rng(seed).choice(4, size=(2, 200, 1), p=[0.6, 0.2, 0.1, 0.1])
    of = Recorded(expert, None, None, None, np.arange(200) == 0)
    assert problems(of, Design(4, 1, np.arange(2) + 1, 2, 1.0)) == {}


def changed(part: str, change):
    """Return a fault that changes a copy of an array."""

    def fault(case: Case) -> Case:
        values = getattr(case.of, part).copy()
        result = change(values, case)
        return case._replace(of=case.of._replace(**{part: values if result is None else result}))

    return fault


def put(places, value):
    def change(values, case):
        values[places] = value

    return change


def shifted(by: int, axis: int):
    return lambda values, case: np.roll(values, by, axis=axis)


def of_a_view(values, case):
    """Return what a flat copy of the first k of each row of a sort reads."""
    order = np.argsort(-case.of.logits, axis=2).astype(np.int32)
    return np.stack([block.ravel()[: values[0].size].reshape(values[0].shape) for block in order])


def without(count: int):
    def fault(case: Case) -> Case:
        parts = {name: getattr(case.of, name)[:, count:] for name in ("expert", "gate", "logits")}
        return case._replace(of=case.of._replace(**parts, start=case.of.start[count:]))

    return fault


def last_tokens(values, case):
    values[:, np.append(case.of.start[1:], True)] = 0


def in_bfloat16(values, case):
    return np.where(values > 256, values // 2 * 2, values)


def with_shared(values, case):
    return np.concatenate([values, np.full((*values.shape[:2], 1), case.design.experts, np.int32)], axis=2)


def unlogged(fault):
    """Return a fault in a routing without logits and gates."""
    return lambda case: fault(case._replace(of=case.of._replace(logits=None, gate=None)))


def without_last(case: Case) -> Case:
    parts = {name: getattr(case.of, name)[:, :-1] for name in ("expert", "gate", "logits")}
    return case._replace(of=case.of._replace(**parts, start=case.of.start[:-1]))


ALL = slice(None)
WIDE = (300, 8, 4)
FAULTS = {
    "padding": (changed("expert", put((ALL, slice(10, 15)), 0)), (8, 2, 4)),
    "padding, one choice": (unlogged(changed("expert", put((ALL, slice(-8, None)), 0))), (64, 1, 4)),
    "last token": (changed("expert", last_tokens), (8, 2, 4)),
    "last token, no row": (without_last, (8, 2, 4)),
    "length": (without(7), (8, 2, 4)),
    "dense block": (changed("expert", put(0, 0)), (16, 4, 6)),
    "blocks": (lambda case: case._replace(design=case.design._replace(blocks=np.arange(9), layers=9)), (8, 2, 4)),
    "choices": (lambda case: case._replace(design=case.design._replace(choices=3)), (8, 2, 4)),
    "axes": (unlogged(changed("expert", lambda values, case: values.swapaxes(0, 1))), (8, 2, 4)),
    "experts": (lambda case: case._replace(design=case.design._replace(experts=9)), (8, 2, 4)),
    "missing": (changed("expert", put((ALL, 3), -1)), (8, 2, 4)),
    "counted from 1": (changed("expert", lambda values, case: values + 1), (8, 2, 4)),
    "shared expert": (unlogged(changed("expert", with_shared)), (8, 2, 4)),
    "out of range": (changed("expert", put((0, 5, 1), 11)), (8, 2, 4)),
    "8 bits": (changed("expert", lambda values, case: values.astype(np.uint8)), WIDE),
    "rounded": (unlogged(changed("expert", in_bfloat16)), (512, 4, 2)),
    "local numbers": (unlogged(changed("expert", lambda values, case: values % 4)), (8, 2, 4)),
    "strided copy": (changed("expert", of_a_view), (64, 8, 3)),
    "repeated": (unlogged(changed("expert", lambda values, case: values[:, :, [0, 0]])), (8, 2, 4)),
    "constant": (unlogged(changed("expert", lambda values, case: np.broadcast_to(values[:, :1], values.shape))),
                 (8, 2, 4)),
    "repeated rows": (unlogged(changed("expert", lambda values, case: put((ALL, slice(5, 13)), values[:, 5:6])(
        values, case))), (16, 4, 6)),
    "equal blocks": (unlogged(changed("expert", lambda values, case: put(2, values[1])(values, case))), (16, 4, 6)),
    "logits": (changed("logits", put((0, 3, 1), np.nan)), (8, 2, 4)),
    "probabilities": (changed("logits", lambda values, case: softmax(values, axis=2)), (8, 2, 4)),
    "layer shifted": (changed("expert", shifted(1, 0)), (8, 2, 8)),
    "token shifted": (changed("expert", shifted(-1, 1)), (8, 2, 4)),
    "order of layers": (changed("expert", lambda values, case: values[::-1]), (8, 2, 4)),
    "not the largest": (changed("expert", lambda values, case: np.argsort(case.of.logits, axis=2)[:, :, :2]),
                        (8, 2, 4)),
    "gates": (changed("gate", put((0, 1, 0), -0.1)), (8, 2, 4)),
    "zero gates": (changed("gate", put((0, slice(4, 9)), 0)), (8, 2, 4)),
    "sums of gates": (changed("gate", lambda values, case: 2.5 * values), (8, 2, 4)),
    "gates of others": (changed("gate", lambda values, case: values[:, :, ::-1]), (8, 2, 4)),
}  # fmt: skip
"""{name of a problem: (the fault, the shape of the routing)}; the words after a comma are no part of the name."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name, seed):
    fault, shape = FAULTS[name]
    case = fault(clean(seed, shape))
    assert [*problems(case.of, case.design)] == [name.partition(",")[0]]


def test_every_problem_is_documented_and_planted():
    source = Path(foreign_traces.__file__).read_text(encoding="utf-8")
    names = {*re.findall(r'yield \(?\s*"([^"]+)",\s+f?"', source)}
    assert names == {name.partition(",")[0] for name in FAULTS}
    rows = (Path(__file__).parents[2] / "docs/inspect.md").read_text(encoding="utf-8").splitlines()
    documented = {name for row in rows if row.startswith("| ") for name in row.split(" | ")[0][2:].split(", ")}
    assert names <= documented


# FILES

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 32, "vocab_size": 500, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "moe_intermediate_size": 20, "num_experts": 8, "head_dim": 8,
    "num_experts_per_tok": 2, "mlp_only_layers": [0], "norm_topk_prob": True,
}  # fmt: skip
DEEPSEEK = CONFIG | {
    "model_type": "deepseek_v3", "n_routed_experts": 8, "n_shared_experts": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_nope_head_dim": 4, "qk_rope_head_dim": 8, "v_head_dim": 4,
}  # fmt: skip


@pytest.fixture
def design(tmp_path) -> Design:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return model_in(tmp_path).design()


def test_a_configuration_gives_the_design(design, tmp_path):
    assert (design.experts, design.choices, design.layers, design.gate_sum) == (8, 2, 5, 1.0)
    assert design.blocks.tolist() == [2, 3, 4, 5]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"norm_topk_prob": False}))
    assert model_in(tmp_path / "config.json").gate_sum is None
    glm = CONFIG | {"model_type": "glm4_moe", "n_routed_experts": 8, "n_shared_experts": 1, "head_dim": 8}
    lite = DEEPSEEK | {"model_type": "glm4_moe_lite"}  # transformers multiplies its gates by 1.8
    for values, gate_sum in ((glm, 1.0), (glm | {"routed_scaling_factor": 2.5}, None), (DEEPSEEK, None), (lite, None),
                             (DEEPSEEK | {"routed_scaling_factor": 1.0}, 1.0)):  # fmt: skip
        assert read_model(values).gate_sum == gate_sum
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "minimax_m2"}))
    assert design.largest and not model_in(tmp_path).design().largest


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def test_files_of_other_programs_are_read(design, tmp_path):
    """The same routing in the forms of vLLM (array, response), SGLang, Megatron and llama.cpp."""
    case = clean(3, (8, 2, 4))
    expert, tokens = case.of.expert, case.of.expert.shape[1]
    by_token = np.ascontiguousarray(expert.swapaxes(0, 1))
    np.save(tmp_path / "vllm.npy", by_token)
    ids = case.of.token.tolist()
    response = {"prompt_token_ids": ids[:9], "choices": [{"token_ids": ids[9:],
                "routed_experts": encoded(npy(by_token))}]}  # fmt: skip
    (tmp_path / "vllm.json").write_text(json.dumps(response))
    sglang = {"output_ids": [1], "meta_info": {"routed_experts": encoded(by_token.astype("<i4").tobytes())}}
    (tmp_path / "sglang.json").write_text(json.dumps(sglang))
    np.savez(tmp_path / "megatron.npz", *expert.astype(np.int64))
    np.savez(
        tmp_path / "llama.npz", **{f"ffn_moe_topk-{i}": part for i, part in zip((1, 2, 3, 10), expert, strict=True)}
    )
    parts = [encoded(npy(part)) for part in (by_token[:9], by_token[9:])]
    response = {"prompt_token_ids": ids[:9], "prompt_routed_experts": parts[0], "choices": [{"token_ids": ids[9:],
                "routed_experts": parts[1]}]}  # fmt: skip
    (tmp_path / "split.jsonl").write_text(json.dumps(response))
    np.savez(tmp_path / "names.npz", **{f"layer_{i + 8}_top2": part for i, part in enumerate(expert)})
    for name in ("vllm.npy", "vllm.json", "split.jsonl", "sglang.json", "megatron.npz", "names.npz", "llama.npz"):
        of = read_recorded(tmp_path / name, design)
        assert np.array_equal(of.expert, expert), name
        assert (problems(of, design) == {}) == (name != "sglang.json"), name
    assert read_recorded(tmp_path / "vllm.json", None).token.tolist() == ids
    assert as_trace(of, "", design).block.tolist() == [2, 3, 4, 5]
    dense = np.concatenate([np.zeros((tokens, 1, 2), int), by_token], axis=1)  # SGLang has all layers
    np.save(tmp_path / "all.npy", dense)
    of = read_recorded(tmp_path / "all.npy", design)
    assert [*problems(of, design)] == ["dense block"]
    trace = as_trace(of, "", design)
    assert trace.block.tolist() == [2, 3, 4, 5] and np.array_equal(trace.expert, expert)


@pytest.mark.parametrize(("arrays", "message"), [
    ({"a": np.zeros((2, 3)), "b": np.zeros((2, 4))}, "needed: arrays of one shape"),
    ({"a": np.zeros((0, 8))}, "needed: arrays of one shape"),
    ({"expert": np.zeros((1, 2, 2), int), "logits": np.full((1, 2, 8), "a")}, "needed: numbers [n, T, E], with"),
    ({"expert": np.zeros((1, 2, 2), int), "gate": np.zeros((1, 2, 3))}, "has gate of type float64 and shape [1, 2, 3]"),
    ({"expert": np.zeros((1, 2, 2), int), "position": np.zeros(3)}, "has positions of shape [3]"),
    ({"expert": np.zeros((1, 2, 2), int), "token": np.zeros(2)}, "has tokens of type float64"),
    ({"expert": np.zeros((2, 2, 2), int), "block": np.zeros(2, int)}, "has block 0, 0; needed: [n] numbers from 1"),
    ({"expert": np.zeros((2, 2, 2), int), "experts": np.array([4])}, "has experts 4; needed: one from 1 to 65535"),
    ({"a": np.zeros((9, 8))}, "has logits, but a bias or groups of experts also decide in this model; record the"),
    ({"a": np.zeros((1, 9, 2, 2), int)}, "needed: integers [T, n, k] of one sequence, or an array [T, k]"),
    ({"a": np.full((9, 2), -1)}, "has only numbers out of range, and no expert of a routed block"),
])  # fmt: skip
def test_arrays_that_do_not_fit_are_one_line(arrays, message, design, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError) as error:
        as_trace(read_recorded(tmp_path / "a.npz", design._replace(largest=False)), "", design)
    assert message in str(error.value)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int64])
def test_the_largest_number_of_a_type_is_an_expert(dtype, tmp_path):
    experts = min(np.iinfo(dtype).max, 300) + 1
    expert = np.arange(3 * experts).reshape(1, experts, 3) % experts
    np.savez(tmp_path / "a.npz", *expert.astype(dtype))
    of = read_recorded(tmp_path / "a.npz", None)
    trace = as_trace(of, "", None)
    assert trace.experts == experts and np.array_equal(trace.expert, expert) and problems(of) == {}


@pytest.mark.parametrize(("dtype", "experts"), [(np.uint8, 64), (np.uint8, None), (np.uint16, None), (np.uint8, 256)])
def test_minus_one_in_an_array_without_signs_is_no_expert(dtype, experts, tmp_path):
    """With 256 experts, 255 is an expert, but no token chooses an expert three times."""
    expert = np.arange(3 * 64).reshape(64, 3) % 64
    expert[-5:] = -1
    np.savez(tmp_path / "a.npz", *[expert.astype(dtype)] * 2)
    design = experts and Design(experts, 3, np.array([1, 2]), 2, None)
    of = read_recorded(tmp_path / "a.npz", design)
    assert list(problems(of, design)) in (["missing"], ["missing", "equal blocks"], ["missing", "local numbers"])
    assert problems(of, design)["missing"].startswith("the experts of 5 tokens are")
    trace = as_trace(of, "", design)
    assert (trace.expert[:, -5:] == -1).all() and trace.experts == (experts or 64)


def test_a_router_with_a_bias_need_not_choose_the_largest_logits():
    case = FAULTS["not the largest"][0](clean(0, (8, 2, 4)))
    of = case.of._replace(gate=None)
    assert problems(of, case.design) and problems(of, case.design._replace(largest=False)) == {}


def test_tokens_and_choices_that_are_exchanged(tmp_path):
    """llama.cpp prints ffn_moe_topk as [k, tokens]."""
    expert = clean(3, (8, 2, 4)).of.expert.swapaxes(1, 2)
    np.savez(tmp_path / "a.npz", *expert)
    design = Design(8, 2, np.arange(len(expert)) + 1, len(expert), None)
    tokens = expert.shape[2]
    words = f"tokens and choices are exchanged: it has 2 tokens with {tokens} experts each"
    assert problems(read_recorded(tmp_path / "a.npz", design), design) == {"axes": words}


def test_tokens_of_other_rows_are_unknown(design, tmp_path):
    """A prefix cache leaves out the rows of the first tokens, so the rows are not those of the first tokens."""
    case = clean(3, (8, 2, 4))
    of = case.of._replace(token=np.append(np.arange(1, 4), case.of.token))
    assert problems(of)["length"].endswith("perhaps one of them lacks the prompt")
    assert not as_trace(of, "", design).token.any()


def test_blocks_without_a_choice_have_no_loads(design):
    of = clean(3, (8, 2, 4)).of
    trace = as_trace(of._replace(expert=np.where(np.arange(4)[:, None, None] == 1, -1, of.expert)), "", design)
    assert trace.block.tolist() == [2, 4, 5] and len(block_statistics(trace)) == 3


@pytest.mark.parametrize("kind", ["mixtral", "olmoe", "qwen3_moe"])
def test_router_logits_of_transformers(kind, tmp_path):
    """Routers of a small model, recorded by hooks, choose the experts that are read from its logits."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {**CONFIG, "num_local_experts": 8} | ({"mlp_only_layers": []} if kind == "qwen3_moe" else {})
    configuration = transformers.CONFIG_MAPPING[kind](**{key: sizes[key] for key in sizes if key != "model_type"})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configuration).eval()
    chosen = []
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(lambda _, __, answer: chosen.append(answer[2].numpy()))
    with torch.no_grad():
        logits = model(torch.randint(500, (2, 40)), output_router_logits=True).router_logits
    np.savez(tmp_path / "logits.npz", *(part.numpy() for part in logits))
    configuration.save_pretrained(tmp_path)
    design = model_in(tmp_path).design()
    of = read_recorded(tmp_path / "logits.npz", design)
    assert problems(of, design) == {} and len(of.expert) == 5
    assert np.array_equal(np.sort(of.expert, axis=2), np.sort(np.stack(chosen), axis=2))


# THE COMMAND


def said(capsys, *words, code: int = 0) -> str:
    assert cli.main(["inspect", *map(str, words)]) == code
    output = capsys.readouterr()
    return output.err if code else output.out


def test_the_command_names_problems_and_shows_loads(design, tmp_path, capsys):
    case = clean(4, (8, 2, 4))
    ids, expert = case.of.token.tolist(), case.of.expert.copy()
    path = tmp_path / "response.json"
    for fault in (False, True):
        if fault:
            expert[:, 10:20] = 0
        response = {"token_ids": ids, "routed_experts": expert.swapaxes(0, 1).tolist()}
        path.write_text(json.dumps(response))
        text = said(capsys, "--trace", path, "--model", tmp_path, "--out", tmp_path / "ours.npz")
        assert ("No problem found." in text) != fault
        assert (f"padding: 10 tokens ({10 / len(ids):.0%}) have only expert 0" in text) == fault
        assert "busiest expert" in text and "bits: token" in text
    kept = np.delete(expert, np.arange(10, 20), axis=1)
    with np.load(tmp_path / "ours.npz") as stored:
        assert stored["block"].tolist() == [2, 3, 4, 5] and (stored["expert"][:, 10:20] == -1).all()
        assert np.array_equal(np.delete(stored["expert"], np.arange(10, 20), axis=1), kept)
    report = json.loads(said(capsys, "--trace", path, "--model", tmp_path, "--json", "--page", tmp_path / "page.html"))
    for block, choices in zip(report["blocks"], kept, strict=True):
        assert block["load"] == pytest.approx(np.bincount(choices.ravel(), minlength=8) / choices.size * 8)
    np.savez(tmp_path / "few.npz", expert=expert % 4, block=np.arange(1, 9, 2), experts=np.array(8))
    [first, second, *_] = json.loads(said(capsys, "--trace", tmp_path / "few.npz", "--json"))["blocks"]
    assert (first["block"], second["block"], len(first["load"])) == (1, 3, 8)
    shown = (tmp_path / "page.html").read_text()
    assert '<li class="bad">padding: 10 tokens' in shown and "tokens were routed, in 4 routed blocks" in shown
    counts = re.findall(r"<small>(\d+)/(\d+)</small>", shown)
    assert counts and all(int(taken) <= int(of) for taken, of in counts)
    assert report["problems"].keys() == {"padding"} and report["tokens_known"]
    np.save(tmp_path / "array.npy", case.of.expert.swapaxes(0, 1))
    text = said(capsys, "--trace", tmp_path / "array.npy")
    assert "No problem found." in text and "busiest expert" in text and "bits" not in text
    np.save(tmp_path / "exchanged.npy", case.of.expert)
    exchanged = f"axes: tokens and layers are exchanged: it has {len(ids)} layers of 4 tokens."
    assert exchanged in said(capsys, "--trace", tmp_path / "exchanged.npy", "--model", tmp_path)
    assert "axes: its axes may be exchanged" in said(capsys, "--trace", tmp_path / "exchanged.npy")
    np.savez(tmp_path / "exchanged.npz", expert=case.of.expert.swapaxes(0, 1), token=np.array(ids))
    assert exchanged in said(capsys, "--trace", tmp_path / "exchanged.npz")
    two = tmp_path / "two.json"
    two.write_text(json.dumps([response, {"choices": [response | {"prompt": {"routed_experts": None}}]}]))
    for words, line in (
        (["--trace", two], "two.json: has 2 answers with routed_experts; save each answer in a file of its own"),
        (["--trace", path, "--text", path], "it cannot be used with --trace"),
        ([tmp_path, "--trace", path], "name the folder of a run, or --trace FILE"),
        ([tmp_path, "--model", tmp_path], "name the folder of a run, or --trace FILE"),
        (["--trace", tmp_path / "array.npy", "--page", tmp_path / "a.html"], "the trace has no tokens"),
        (["--trace", path, "--model", path], "model_type is null; allowed: afmoe"),
    ):
        assert line in said(capsys, *words, code=2)
