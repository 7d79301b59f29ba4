"""Weights in the form of transformers: written, read and, where transformers is installed, run there."""

import ast
import json
import urllib.request

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from routelaws.accelerated import transformer as twin
from routelaws.accelerated.conversion import card, classes, gguf_file
from routelaws.accelerated.conversion.tokenizer_json import tokenizer_files
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.runs.weights import load_run
from routelaws.accelerated.training.text.tokenizer import Tokenizer, train_tokenizer
from routelaws.reference import transformer
from routelaws.reference.configuration import ModelConfig

from .small_runs import ran, tokens_of, words_of

FIELDS = classes.NEEDED | {"vocab_size": 300, "d_model": 16, "blocks": 4, "heads": 2}
TOP_K, DEEPSEEK = {"router": "top_k", "experts": 4}, {"experts": 2, "granularity": 4, "gate": "sigmoid"}
DESIGNS = {
    "dense": ("Llama", {"kqv_size": 6}),
    "Mixtral": ("Mixtral", TOP_K | {"k": 2, "routing_frequency": 1.0}),
    "over all": ("Qwen2Moe", TOP_K | {"k": 2, "normalisation": "none", "d_model": 32}),
    "Switch, upper blocks": ("Qwen2Moe", TOP_K | {"layout": "upper", "blocks": 3, "routing_frequency": 1 / 3}),
    "shared": ("Qwen2Moe", TOP_K | {"granularity": 2, "shared_experts": 3, "normalisation": "softmax"}),
    "S-BASE": ("Qwen2Moe", {"router": "sinkhorn", "experts": 4, "k": 2}),
    "BASE": ("Glm4Moe", {"router": "base", "experts": 4, "routing_frequency": 1.0}),
    "sigmoid": ("Glm4Moe", TOP_K | {"gate": "sigmoid", "layout": "upper", "k": 3, "gate_scale": 0.5}),
    "DeepSeek-V3": ("Glm4Moe", TOP_K | DEEPSEEK | {"bias_rate": 0.1, "gate_scale": 2.5, "expert_groups": 4, "k": 1,
                    "groups_per_token": 2, "shared_experts": 2, "layout": "upper", "routing_frequency": 0.75}),
}  # fmt: skip
"""{design: (name of its class, its fields)}."""

LIMIT = 1e-5
"""Allowed difference of logits, float32 against float64; measured 3e-6 for logits up to 7."""


def model_for(name: str) -> ModelConfig:
    return ModelConfig(**FIELDS | DESIGNS[name][1])


def weights_of(model: ModelConfig, seed: int = 0) -> dict:
    """Return float32 weights; norms and biases are not at their initial values."""
    random = np.random.default_rng(seed)
    params = transformer.init(random, model)
    return jax.tree.map(lambda leaf: (leaf + 0.1 * random.standard_normal(leaf.shape)).astype(np.float32), params)


def write(folder, params: dict, model: ModelConfig, **more) -> None:
    folder.mkdir(exist_ok=True)
    save_file(classes.tensors(params, model), folder / "model.safetensors", {"format": "pt"})
    values = classes.settings(model) | {"architectures": [classes.CLASSES[classes.kind_of(model)]]} | more
    (folder / "config.json").write_text(json.dumps(values))


def equal(first: dict, second: dict) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), first, second))


@pytest.fixture(scope="module")
def tokenizer(text_file):
    return train_tokenizer([text_file.read_text()], FIELDS["vocab_size"])


# WITHOUT TORCH


@pytest.mark.parametrize("name", DESIGNS)
def test_files_give_the_same_weights_back(name, tmp_path):
    model = model_for(name)
    params = weights_of(model)
    write(tmp_path, params, model)
    values, stored = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    assert values["architectures"] == [f"{DESIGNS[name][0]}ForCausalLM"]
    assert equal(classes.params_of(stored, model), params)
    read = classes.model_of(values)
    classes.check_settings(values, read)
    again = classes.tensors(classes.params_of(stored, read), read)
    assert {key: value.tobytes() for key, value in again.items()} == {k: v.tobytes() for k, v in stored.items()}


def test_tensors_have_the_names_and_the_order_of_the_classes():
    """Compare by hand: matrices are [out, in]; √16 = 4; 1/2 for the shared experts, so they are twice as large."""
    params = weights_of(model_for("shared"))
    found = classes.tensors(params, model_for("shared"))
    attention, routed = params["blocks"]["attention"], params["routed_ffn"]
    wanted = {
        "embed_tokens": 4 * params["embedding"], "norm": params["final_norm"]["scale"] / 4,
        "layers.3.input_layernorm": params["blocks"]["attention_norm"]["scale"][3],
        "layers.3.post_attention_layernorm": params["blocks"]["ffn_norm"]["scale"][3],
        "layers.2.self_attn.q_proj": attention["query"][2].reshape(16, 16).T,
        "layers.2.self_attn.v_proj": attention["value"][2].reshape(16, 16).T,
        "layers.2.self_attn.o_proj": attention["output"][2].reshape(16, 16).T,
        "layers.2.mlp.gate_proj": params["dense_ffn"]["up"][1].T,
        "layers.2.mlp.up_proj": params["dense_ffn"]["linear"][1].T,
        "layers.3.mlp.gate": routed["router"][1].T,
        "layers.3.mlp.experts.5.gate_proj": routed["up"][1, 5].T,
        "layers.3.mlp.experts.5.up_proj": routed["linear"][1, 5].T,
        "layers.3.mlp.experts.5.down_proj": routed["down"][1, 5].T,
        "layers.3.mlp.shared_expert.gate_proj": routed["shared"]["up"][1].T,
        "layers.3.mlp.shared_expert.down_proj": 2 * routed["shared"]["down"][1].T,
    }  # fmt: skip
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[f"model.{name}.weight"], value, err_msg=name)


def test_a_folder_becomes_a_run_and_the_run_the_same_folder(tokenizer, tmp_path, text_file, monkeypatch):
    model = model_for("shared")
    params = weights_of(model)
    write(tmp_path / "foreign", params, model)
    code, _, err = ran("convert-weights", tmp_path / "foreign", "--to", "run", "--out", tmp_path / "run")
    assert code == 2 and "tokenizer.model: no such file; copy" in err
    (tmp_path / "foreign" / "tokenizer.model").write_bytes(tokenizer)
    for source, to, out in (("foreign", "run", "run"), ("run", "transformers", "out"), ("out", "run", "again")):
        assert ran("convert-weights", tmp_path / source, "--to", to, "--out", tmp_path / out)[0] == 0
    run = load_run(tmp_path / "again")
    assert equal(run.params, params) and run.config == load_run(tmp_path / "run").config
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("foreign", "out")]
    assert files[0] == files[1]
    assert "Qwen2MoeForCausalLM" in (tmp_path / "out" / "README.md").read_text()
    code, _, err = ran("convert-weights", tmp_path / "run", "--to", "transformers", "--out", tmp_path / "out")
    assert code == 2 and "is not an empty folder" in err
    monkeypatch.setattr(card, "read_results", lambda folder: ([{"step": "4"}], None))
    assert "Weights without an evaluation" in card.model_card(tmp_path / "run", run, "X"), "the weights are of step 0"


def test_a_converted_folder_has_no_training_to_resume(tmp_path, text_file):
    model, run = model_for("dense"), tmp_path / "run"
    config = TrainConfig(model, corpus=(str(text_file),))
    write(tmp_path / "foreign", weights_of(model), model, routelaws={"run": config.plain()})
    (tmp_path / "foreign" / "tokenizer.model").write_bytes(tokens_of(config).tokenizer.read_bytes())
    assert ran("convert-weights", tmp_path / "foreign", "--to", "run", "--out", run)[0] == 0
    flags = words_of(FIELDS | DESIGNS["dense"][1])
    code, _, err = ran("train", *flags, "--corpus", text_file, "--out", run)
    assert code == 2 and f"no training to resume; use --init-from {run} and another --out" in err.splitlines()[-1]


def test_a_model_without_a_class_has_its_approved_message(approved):
    def message(fields: str) -> str:
        with pytest.raises(InputError) as error:
            classes.kind_of(ModelConfig(**FIELDS | ast.literal_eval(fields)))
        return str(error.value)

    approved.cases("models-without-a-class.txt", message)


def test_a_configuration_that_cannot_be_expressed_has_its_approved_message(approved):
    def message(changes: str) -> str:
        values = classes.settings(model_for("shared")) | ast.literal_eval(changes)
        with pytest.raises(InputError) as error:
            classes.check_settings(values, classes.model_of(values))
        return str(error.value)

    approved.cases("wrong-classes.txt", message)


def test_positions_by_the_key_of_older_files_are_refused():
    """transformers reads rope_theta if there are no rope_parameters, and its default for Mixtral is 1,000,000."""
    values = classes.settings(model_for("shared")) | {"rope_theta": 5e5}
    del values["rope_parameters"]
    with pytest.raises(InputError, match="rope_parameters is 'missing'; needed: "):
        classes.check_settings(values, classes.model_of(values))


def test_tensors_that_the_model_cannot_have_are_refused():
    model = model_for("shared")
    stored = classes.tensors(weights_of(model), model)
    gate, query = "model.layers.1.mlp.shared_expert_gate.weight", "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(InputError, match=f"{gate}.*cannot have"):
        classes.params_of(stored | {gate: stored[gate] + 0.1}, model)
    with pytest.raises(InputError, match="q_norm"):
        classes.params_of(stored | {"model.layers.0.self_attn.q_norm.weight": np.ones(8)}, model)
    with pytest.raises(InputError, match="lm_head"):
        classes.params_of(stored | {"lm_head.weight": stored["model.embed_tokens.weight"] + 1}, model)
    with pytest.raises(InputError, match="shape"):
        classes.params_of(stored | {query: stored[query][:4]}, model)


def test_the_twin_has_the_norm_of_the_reference():
    model = model_for("DeepSeek-V3")
    params, tokens = weights_of(model), np.random.default_rng(1).integers(0, 300, (2, 12))
    wanted = transformer.apply(params, tokens, model).logits
    found = jax.jit(lambda params: twin.apply(params, tokens, model).logits)(params)
    np.testing.assert_allclose(found, wanted, atol=LIMIT)


WHOLE = TOP_K | {"routing_frequency": 1.0, "normalisation": "none"}
IN_GGUF = {
    "dense": ("llama", DESIGNS["dense"][1]),
    "fine Mixtral": ("llama", TOP_K | {"k": 3, "granularity": 2, "routing_frequency": 1.0, "kqv_size": 6}),
    "Switch": ("qwen2moe", WHOLE),
    "S-BASE": ("qwen2moe", DESIGNS["S-BASE"][1] | {"routing_frequency": 1.0, "heads": 4}),
    "shared experts": ("qwen2moe", WHOLE | {"k": 2, "granularity": 2, "shared_experts": 3}),
}
"""{design: (its architecture in llama.cpp, its fields)}."""


def test_tensors_have_the_names_and_the_order_of_llama_cpp():
    """Compare by hand: h = 6, so the rows of a head are 0, 3, 1, 4, 2, 5; experts are [E, out, in]."""
    model = ModelConfig(**FIELDS | IN_GGUF["fine Mixtral"][1])
    params = weights_of(model)
    found, routed = gguf_file.gguf_tensors(params, model), params["routed_ffn"]
    names = "attn_k attn_norm attn_output attn_q attn_v ffn_down_exps ffn_gate_exps ffn_gate_inp ffn_norm ffn_up_exps"
    assert {name for name in found if ".3." in name} == {f"blk.3.{name}.weight" for name in names.split()}
    key = params["blocks"]["attention"]["key"][3].reshape(16, 12).T
    np.testing.assert_array_equal(found["blk.3.attn_k.weight"][6:], key[[6, 9, 7, 10, 8, 11]])
    np.testing.assert_array_equal(found["blk.3.ffn_down_exps.weight"], routed["down"][3].swapaxes(1, 2))
    np.testing.assert_array_equal(found["blk.3.ffn_gate_exps.weight"], routed["up"][3].swapaxes(1, 2))
    model = ModelConfig(**FIELDS | IN_GGUF["Switch"][1])
    found = gguf_file.gguf_tensors(weights_of(model), model)
    assert found["blk.0.ffn_down_shexp.weight"].shape == (16, 1) and found["blk.0.ffn_gate_inp_shexp.weight"].all()
    np.testing.assert_array_equal(found["output.weight"], found["token_embd.weight"])


NOT_IN_GGUF = {
    "Glm4Moe.*--gate softmax": DESIGNS["sigmoid"][1],
    "dense and routed blocks.*--routing-frequency 1": DESIGNS["over all"][1],
    "divided by their sum.*--normalisation none": WHOLE | {"k": 2, "shared_experts": 1, "normalisation": "sum"},
    "heads.*--kqv-size": WHOLE | {"kqv_size": 6},
}


@pytest.mark.parametrize("what", NOT_IN_GGUF)
def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused(what):
    with pytest.raises(InputError, match=what):
        gguf_file.architecture_of(ModelConfig(**FIELDS | NOT_IN_GGUF[what]))


# WITH TRANSFORMERS


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    library = pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def logits_there(library, folder, tokens, **options):
    import torch

    with torch.inference_mode():
        return library.AutoModelForCausalLM.from_pretrained(folder, **options)(torch.from_numpy(tokens)).logits.numpy()


def check_logits(library, folder, model: ModelConfig, seed: int = 0) -> None:
    params = weights_of(model, seed)
    write(folder, params, model)
    tokens = np.random.default_rng(seed).integers(0, model.vocab_size, (2, 24))
    found, wanted = logits_there(library, folder, tokens), transformer.apply(params, tokens, model).logits
    np.testing.assert_allclose(found, wanted, atol=LIMIT, err_msg=str(model))


@pytest.mark.parametrize("name", DESIGNS)
def test_logits_are_those_of_transformers(name, library, tmp_path):
    check_logits(library, tmp_path, model_for(name))


def random_model(random) -> ModelConfig:
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    fields = FIELDS | {"d_model": pick(16, 32, 48), "blocks": pick(2, 4), "heads": pick(1, 2, 4)}
    router = pick("dense", "top_k", "top_k", "top_k", "sinkhorn", "base")
    if router != "dense":
        fields |= {"router": router, "gate": pick("softmax", "sigmoid"), "layout": pick("upper", "spread")}
        fields |= {
            "experts": pick(4, 8),
            "k": pick(1, 2, 3),
            "granularity": pick(1, 2, 4),
            "routing_frequency": pick(0.5, 1.0),
        }
        fields |= {"shared_experts": pick(0, 1, 3)}
    if router == "top_k" and fields["gate"] == "sigmoid":
        fields |= {
            "bias_rate": pick(0.0, 0.1),
            "gate_scale": pick(1.0, 2.5),
            "expert_groups": 2,
            "groups_per_token": pick(1, 2),
        }
    if router == "top_k" and fields["k"] * fields["granularity"] > 1:
        fields["normalisation"] = pick("none", "sum")
    return ModelConfig(**fields)


@pytest.mark.slow
def test_logits_of_a_hundred_random_models(library, tmp_path):
    random, done = np.random.default_rng(7), 0
    while done < 100:
        try:
            model = random_model(random)
            classes.kind_of(model)
        except InputError:
            continue
        check_logits(library, tmp_path, model, seed=done)
        done += 1


def test_a_model_trained_there_comes_back(library, tmp_path):
    import torch

    model = model_for("Mixtral")
    write(tmp_path, weights_of(model), model)
    tokens = np.random.default_rng(0).integers(0, 300, (2, 24))
    there = library.AutoModelForCausalLM.from_pretrained(tmp_path)
    optimizer = torch.optim.SGD(there.parameters(), 0.5)
    there(torch.from_numpy(tokens), labels=torch.from_numpy(tokens)).loss.backward()
    optimizer.step()
    there.save_pretrained(tmp_path / "tuned")
    values = json.loads((tmp_path / "tuned" / "config.json").read_text())
    read = classes.model_of(values)
    classes.check_settings(values, read)
    params = classes.params_of(load_file(tmp_path / "tuned" / "model.safetensors"), read)
    assert not equal(params, weights_of(model))
    found = logits_there(library, tmp_path / "tuned", tokens)
    np.testing.assert_allclose(found, transformer.apply(params, tokens, read).logits, atol=LIMIT)


def test_the_tokenizer_gives_the_same_tokens(tokenizer, text_file, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed", exc_type=ImportError)
    ours = Tokenizer(tokenizer)
    content = json.dumps(tokenizer_files(ours, 16)["tokenizer.json"])
    theirs = tokenizers.Tokenizer.from_str(content)
    theirs.encode_special_tokens = True
    for text in (text_file.read_text()[:20_000], "a\u2581b  c\n\n\t\u00fc \u6f22 </s> <0x41>", "", "\n ba\n"):
        ids = theirs.encode(text).ids
        assert ids == [1, *ours.encode(text)] and theirs.decode(ids) == text


@pytest.mark.slow
def test_after_fifty_steps_it_evaluates_generates_and_comes_back(library, small_fields, tmp_path):
    design = classes.NEEDED | {"router": "sinkhorn", "experts": 4, "d_model": 32, "heads": 2}
    assert ran("train", *words_of(small_fields | design | {"steps": 50, "out": str(tmp_path / "run")}))[0] == 0
    for source, to, out in (("run", "transformers", "out"), ("out", "run", "back")):
        assert ran("convert-weights", tmp_path / source, "--to", to, "--out", tmp_path / out)[0] == 0
    run, back = load_run(tmp_path / "run"), load_run(tmp_path / "back")
    assert equal(run.params, back.params) and run.config == back.config and run.tokens == back.tokens
    tokens = np.random.default_rng(0).integers(0, 300, (2, 16))
    found = logits_there(library, tmp_path / "out", tokens)
    np.testing.assert_allclose(found, transformer.apply(run.params, tokens, run.config.model).logits, atol=LIMIT)
    model, tokenizer = (
        of.from_pretrained(tmp_path / "out") for of in (library.AutoModelForCausalLM, library.AutoTokenizer)
    )
    ids = tokenizer("ba", return_tensors="pt")["input_ids"]
    text = tokenizer.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0], skip_special_tokens=True)
    _, ours, _ = ran("generate", tmp_path / "back", "--prompt", "ba", "--tokens", 8, "--temperature", 0)
    assert text == ours[:-1]
    text = (tmp_path / "out" / "README.md").read_text()
    assert "routelaws train" in text and "Validation loss" in text and "plan of `sinkhorn`" in text
    upcycled = {"init_from": str(tmp_path / "back"), "out": str(tmp_path / "more"), "steps": 2}
    assert ran("train", *words_of(small_fields | design | upcycled))[0] == 0


# WITH LLAMA.CPP


def log_probabilities_there(library, file, tokens) -> tuple:
    """Return the log-probabilities [V] of llama.cpp after the tokens, and its server."""
    params = library.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = str(file), 64, 1, False, -1
    params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.port, params.fit_params, params.cpuparams.n_threads = 0, False, 1
    server = library.Server(params)
    bias = [[3 + ord("a"), 1e4]]  # the next token is "a", because the server is silent about a part of a character
    asked = {"prompt": tokens.tolist(), "n_predict": 1, "n_probs": 300, "logit_bias": bias, "temperature": 0}
    (first,) = server.handle_completions(asked)["choices"][0]["logprobs"]["content"]
    found = {each["id"]: each["logprob"] for each in first["top_logprobs"]}
    return np.array([found[i] for i in range(300)], float), server


@pytest.mark.parametrize("name", IN_GGUF)
def test_results_are_those_of_llama_cpp_and_of_transformers(name, library, tokenizer, tmp_path):
    for package in ("accelerate", "gguf"):  # transformers needs accelerate here
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    there = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed", exc_type=ImportError)
    model = ModelConfig(**FIELDS | IN_GGUF[name][1])
    params, folder, file = weights_of(model), tmp_path / "foreign", "foreign/model.gguf"
    write(folder, params, model)
    (folder / "tokenizer.model").write_bytes(tokenizer)
    for source, to, out in (("foreign", "run", "run"), ("run", "gguf", file)):
        code, said, _ = ran("convert-weights", tmp_path / source, "--to", to, "--out", tmp_path / out)
        assert code == 0
    assert f"architecture {IN_GGUF[name][0]} for llama.cpp" in said
    tokens = np.random.default_rng(0).integers(3, 300, (1, 24))
    found, server = log_probabilities_there(there, tmp_path / file, tokens[0])
    logits = transformer.apply(params, tokens, model).logits
    np.testing.assert_allclose(found, logits[0, -1] - np.logaddexp.reduce(logits[0, -1]), atol=LIMIT)
    text = " ba  vu\n\n\t\u00fc \u6f22 </s> <0x41>"
    asked = json.dumps({"content": text, "add_special": True, "parse_special": False}).encode()
    with urllib.request.urlopen(f"{server.listening_address}/tokenize", asked) as answer:
        assert json.load(answer)["tokens"] == [1, *Tokenizer(tokenizer).encode(text)]
    if name in ("dense", "shared experts"):  # transformers drops or refuses the experts of the others
        told = {"config": library.AutoConfig.from_pretrained(folder)} if name != "dense" else {}
        found = logits_there(library, folder, tokens, gguf_file="model.gguf", dtype="float32", **told)
        np.testing.assert_allclose(found, logits, atol=LIMIT)
