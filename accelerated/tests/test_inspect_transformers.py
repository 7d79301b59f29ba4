"""Inspection of models of transformers: small random models, and routers with known properties."""

import json
import re

import numpy as np
import pytest
import scipy.stats

REASON = "torch and transformers are not installed, whose models this inspects"
torch = pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
transformers = pytest.importorskip("transformers", reason=REASON, exc_type=ImportError)
tokenizers = pytest.importorskip("tokenizers", reason=REASON, exc_type=ImportError)

from routelaws.accelerated.errors import InputError  # noqa: E402
from routelaws.accelerated.inspection import statistics as told  # noqa: E402
from routelaws.accelerated.inspection import streamed, transformers_folder  # noqa: E402
from routelaws.accelerated.inspection.page import page  # noqa: E402
from routelaws.accelerated.inspection.transformers_folder import trace_transformers  # noqa: E402
from routelaws.accelerated.inspection.transformers_routers import ROUTERS, read_router  # noqa: E402
from routelaws.reference import diagnostics  # noqa: E402

from .test_inspect import html_is_whole  # noqa: E402

EXPERTS, VOCABULARY, TOKENS = 8, 48, 600
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 20,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": EXPERTS,
    "num_experts": EXPERTS, "n_routed_experts": EXPERTS, "moe_num_experts": EXPERTS, "num_experts_per_tok": 2,
    "head_dim": 8, "max_position_embeddings": 256, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
ARCHITECTURES = {
    "mixtral": {}, "qwen2_moe": {"shared_expert_intermediate_size": 12}, "qwen3_moe": {}, "olmoe": {},
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "gpt_oss": {}, "granitemoe": {}, "phimoe": {}, "jamba": {},
    "llama4_text": {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 24},
    "glm4_moe": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}, "hunyuan_v1_moe": {}, "minimax": {},
    "jetmoe": {"kv_channels": 8},
}  # fmt: skip
"""Options of each architecture, in addition to `SIZES`."""


def routers_of(model) -> dict:
    modules = model.named_modules()
    return {n: m for n, m in modules if re.fullmatch(ROUTERS, type(m).__name__) and "attention" not in n}


@pytest.fixture(scope="module")
def model_of():
    """Return a function from the name of an architecture to a small model with random weights."""

    def make(name: str):
        kind = transformers.CONFIG_MAPPING[name]
        known = kind()
        sizes = {key: value for key, value in SIZES.items() if hasattr(known, key)}
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(kind(**{**sizes, **ARCHITECTURES[name]}))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.2)
        return model.eval()

    return make


@pytest.fixture
def saved(tmp_path):
    """Return a function that writes a model in shards, with a tokenizer and a text, and returns the two paths."""

    def save(model):
        folder, text = tmp_path / "model", tmp_path / "text.txt"
        model.save_pretrained(folder, max_shard_size="40KB")
        vocabulary = {f"t{i}": i for i in range(VOCABULARY)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "t0"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(folder / "tokenizer.json"))
        ids = np.random.default_rng(0).integers(1, VOCABULARY, TOKENS)
        text.write_text(" ".join(f"t{i}" for i in ids))
        return folder, text

    return save


@pytest.fixture
def traced(saved):
    return lambda model: trace_transformers(*saved(model), tokens=TOKENS)


def plant(model, router) -> None:
    """Set all weights except the embedding and the routers to 0, so that each router reads the embedding.

    Token i is 2 at i mod E, 1 at i + 1 mod E, and 1 at a constant. `router` changes the weights [E, d] of each router.
    """
    ids, routers = np.arange(VOCABULARY), list(routers_of(model).values())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.zero_()
        embedding = model.get_input_embeddings().weight
        embedding[ids, ids % EXPERTS], embedding[ids, (ids + 1) % EXPERTS], embedding[:, EXPERTS] = 2, 1, 1
        for module in routers:
            (weight,) = (value for value in module.parameters() if value.ndim == 2)
            router(weight)


def diagonal(weight) -> None:
    """Let expert e read coordinate e."""
    weight[range(EXPERTS), range(EXPERTS)] = 3


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_a_file_route_as_the_whole_model(name, model_of, traced, monkeypatch):
    """Logits, gates and experts equal those of the whole model in transformers, window by window.

    A window has `WINDOW` tokens, or as many as the model supports.
    """
    length = 256 if name == "mixtral" else 250
    if name != "mixtral":
        monkeypatch.setattr(transformers_folder, "WINDOW", length)
    model = model_of(name)
    trace = traced(model)
    wanted: dict[str, list] = {router: [] for router in routers_of(model)}
    for router, module in routers_of(model).items():
        module.register_forward_hook(
            lambda module, _, answer, router=router: wanted[router].append(read_router(type(module).__name__, answer))
        )
    with torch.inference_mode():
        for start in range(0, TOKENS, length):
            model(input_ids=torch.from_numpy(trace.token[start : start + length].astype(int))[None], use_cache=False)
    assert len(trace.block) == len(wanted) and trace.sequence.max() == 2 and trace.position.max() == length - 1
    for i, answers in enumerate(wanted.values()):
        logits = torch.cat([answer[0].reshape(-1, EXPERTS) for answer in answers]).float().numpy()
        assert np.abs(trace.logits[i] - logits).max() <= 1e-5 * np.abs(logits).max()
        gates = torch.cat([answer[1].reshape(-1, answer[1].shape[-1]) for answer in answers]).float().numpy()
        largest = -np.sort(-gates, axis=1)[:, : trace.choices]
        assert np.abs(trace.gate[i] - largest).max() <= 1e-4 and len(np.unique(trace.expert[i])) > 2


@pytest.mark.parametrize("name", ARCHITECTURES)
class TestPlanted:
    def test_the_expert_follows_the_token(self, name, model_of, traced):
        model = model_of(name)
        plant(model, diagonal)
        trace = traced(model)
        found = told.block_statistics(trace)
        for j in range(trace.choices):
            assert (trace.expert[:, :, j] == (trace.token + j) % EXPERTS).all(), j
        loads = np.bincount(trace.expert[0].ravel(), minlength=EXPERTS)
        bits = scipy.stats.entropy(loads, base=2) - np.log2(trace.choices)
        for block in found:
            assert block.load == pytest.approx(loads * EXPERTS / loads.sum()) and block.unchosen == 0
            assert block.most == pytest.approx(bits, abs=1e-9)
            assert block.information["token"].bits == pytest.approx(bits, abs=0.02)
            assert block.information["position"].bits == pytest.approx(block.information["position"].baseline, abs=0.1)
            assert 0 < block.entropy < 0.95 and block.faults == diagnostics.Faults([], [], False)
            assert block.words[3] and all(word.taken == word.of for word in block.words[3])
        (line,) = told.sentences(trace, found)
        assert (
            line.endswith(": the token itself fully decides the expert.") and told.fault_sentences(trace, found) == []
        )


def test_one_layer_is_in_memory_at_a_time(model_of, saved, monkeypatch):
    in_memory = []

    def memory_of(module) -> bool:
        return any(parameter.untyped_storage().nbytes() > 4 for parameter in module.parameters())

    def free(layer, free=streamed._free):
        stream = opened[0]
        in_memory.append([name for name, layer in stream._layers.items() if memory_of(layer)])
        free(layer)

    opened = [streamed.StreamedModel(saved(model_of("mixtral"))[0])]
    monkeypatch.setattr(streamed, "_free", free)
    opened[0].route(np.ones((2, 5), int))
    assert in_memory == [["embed_tokens"], *([f"layers.{i}"] for i in range(4))]
    assert not memory_of(opened[0]._model)


def test_file_page_and_pieces_are_those_of_a_run(model_of, traced, tmp_path):
    trace = traced(model_of("olmoe"))
    assert trace.trained is None and trace.dropped is None and trace.piece[0] == f" t{trace.token[0]}"
    found = told.block_statistics(trace)
    shown = page(trace, found)
    assert html_is_whole(shown) and "olmoe, 8 experts" in shown and "training agrees" not in shown
    assert "dropped" not in told.table(found).heads and json.dumps(told.as_json(trace, found))


class TestFolder:
    @pytest.fixture
    def folder(self, model_of, saved):
        self.folder, self.text = saved(model_of("mixtral"))
        return self.folder

    def fails(self, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            trace_transformers(self.folder, self.text, tokens=20)
        assert "\n" not in str(caught.value) and ("; " in str(caught.value) or "; " in words)

    def change(self, **values) -> None:
        path = self.folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def test_code_of_the_folder_does_not_run(self, folder, tmp_path):
        (folder / "code.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
        )
        self.change(auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
        trace_transformers(folder, self.text, tokens=20)
        self.change(model_type="unknown")
        self.fails("does not know this model, and code in the folder is not run .*; update transformers")
        assert not (tmp_path / "ran").exists()

    def test_pickled_weights(self, folder):
        for path in folder.glob("model*"):
            path.unlink()
        self.fails("has no safetensors file; save the model")
        (folder / "pytorch_model.bin").write_bytes(b"")
        self.fails("has only pickled weights, which can run code and are not read; save the model")

    def test_quantised_weights(self, folder):
        self.change(quantization_config={"quant_method": "fp8"})
        self.fails("the weights are quantised; inspect a copy in bfloat16")

    def test_an_index_that_leaves_the_folder(self, folder):
        index = folder / "model.safetensors.index.json"
        names = json.loads(index.read_text())
        names["weight_map"]["other"] = "../other.safetensors"
        index.write_text(json.dumps(names))
        self.fails(r"lists files that are not in the folder: \.\./other.safetensors; copy them there")
        index.write_text("[]")
        self.fails("is not an index of safetensors files; save the model again")

    def test_a_file_that_is_cut(self, folder):
        path = sorted(folder.glob("*.safetensors"))[1]
        path.write_bytes(path.read_bytes()[:-9])
        self.fails("is not a complete safetensors file .*; copy it again")

    def test_weights_of_another_size(self, folder):
        self.change(intermediate_size=32)
        self.fails("the weights do not fit config.json: .*layers.0.mlp.experts.* missing or of another shape; save")

    def test_other_models(self, folder):
        self.change(model_type="llama")
        self.fails("LlamaModel has no router that can be read; inspect another model")
        self.change(model_type="t5")
        self.fails("has an encoder and a decoder; inspect a decoder-only model")
        (folder / "config.json").unlink()
        self.fails("has no config.json; name a folder")

    def test_tokenizers(self, folder):
        path = folder / "tokenizer.json"
        word = self.text.read_text().split()[0]
        path.write_text(re.sub(rf'"{word}": ?\d+', f'"{word}": 700', path.read_text()))
        self.fails("gives id 700, and the model has 48; use the tokenizer of the model")
        path.write_text("{}")
        self.fails("is not a tokenizer .*; save a fast tokenizer")
        path.unlink()
        self.fails("has no tokenizer.json; save a fast tokenizer")

    def test_a_text_is_needed(self, folder):
        self.text = None
        self.fails("--transformers needs a text; add --text FILE")
