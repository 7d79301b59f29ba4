"""Write a run as one file in GGUF, the format of llama.cpp.

    class                  architecture of llama.cpp
    LlamaForCausalLM       llama
    MixtralForCausalLM     llama, with experts
    Qwen2MoeForCausalLM    qwen2moe, if every block is routed and gates are not divided by their sum

Other designs are refused. The weights are float32; the tools of llama.cpp quantise the file.

llama.cpp needs shared experts in qwen2moe and computes their gate as silu(x) / x, which is not a number for x = 0. So
the weights of the gate are tiny instead of 0: the gate is 1/2 in float32.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from routelaws.reference.configuration import ModelConfig

from ..errors import InputError
from ..files import read_bytes, write_atomically
from ..training.runs.run_folder import read_config
from ..training.runs.weights import load_run
from ..training.text.tokenizer import END_OF_DOCUMENT, LINE_END, UNKNOWN, Tokenizer
from ..training.watch import telling
from .classes import CLASSES, kind_of, settings, tensors

NAMES = {
    r"model\.embed_tokens": "token_embd", r"model\.norm": "output_norm", r"model\.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", r"self_attn\.o_proj": "attn_output",
    r"self_attn\.(.)_proj": r"attn_\1", "block_sparse_moe": "mlp", r"mlp\.gate\.": "ffn_gate_inp.",
    "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", r"mlp\.shared_expert_gate": "ffn_gate_inp_shexp",
    r"mlp\.experts\.\d+\.(\w+)_proj": r"ffn_\1_exps", r"mlp\.shared_expert\.(\w+)_proj": r"ffn_\1_shexp",
    r"mlp\.(\w+)_proj": r"ffn_\1",
}  # fmt: skip
"""{pattern in the names of transformers: its replacement in GGUF}, in this order."""


def architecture_of(model: ModelConfig) -> str:
    """Return the architecture of a model in llama.cpp.

    Raises:
        InputError: llama.cpp has no such architecture; the message names flags that give one.
    """
    kind = kind_of(model)
    if kind in ("llama", "mixtral"):
        return "llama"
    values = settings(model)
    for wrong, what, remedy in (
        (kind != "qwen2_moe", f"the class {CLASSES[kind]}", "--gate softmax"),
        (values.get("mlp_only_layers"), "dense and routed blocks", "--routing-frequency 1"),
        (values["norm_topk_prob"], "shared experts and gates divided by their sum", "--normalisation none"),
        (model.heads * model.kqv_size != model.d_model, "heads that are not d_model wide", "another --kqv-size"),
    ):
        if wrong:
            raise InputError(f"the model has {what}, which --to gguf cannot write; train with {remedy}")
    return "qwen2moe"


def interleaved(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of the queries' or keys' matrix [heads * h, d] for rotary pairs (0, 1), (2, 3) and so on.

    In transformers, the pairs of a head are (0, h/2), (1, h/2 + 1) and so on.

    Example:
        >>> interleaved(np.arange(8)[:, None], 2).ravel().tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return matrix.reshape(heads, 2, -1, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def gguf_tensors(params: dict, model: ModelConfig) -> dict[str, np.ndarray]:
    """Return {name: tensor}, float32. The matrices of the experts of a block are one tensor [E, out, in]."""
    groups = {}
    for name, value in tensors(params, model).items():
        for theirs, ours in NAMES.items():
            name = re.sub(theirs, ours, name)
        groups.setdefault(name, []).append(value)
    found = {name: np.stack(parts) if "_exps." in name else parts[0] for name, parts in groups.items()}
    if architecture_of(model) == "llama":
        turned = {name: interleaved(found[name], model.heads) for name in found if re.search(r"attn_[qk]\.", name)}
        return found | turned
    for name, value in found.items():
        if "_inp_shexp" in name:
            found[name] = np.full(model.d_model, 2.0**-40, np.float32)
        elif not value.size:  # no shared experts are one of width 1 with weights of 0
            found[name] = np.zeros([size or 1 for size in value.shape], np.float32)
    return found | {"output.weight": found["token_embd.weight"]}  # needed there, although it is the embedding


def write_gguf(run_folder: Path, out: Path, tell=print) -> str:
    """Write the last checkpoint of a run as the file `out`, and return the name of the architecture.

    Raises:
        InputError: the folder has no run, llama.cpp has no architecture for its model, or `out` exists.
    """
    from gguf import GGUFWriter

    model = read_config(run_folder).model
    architecture = architecture_of(model)
    if out.exists():
        raise InputError(f"--out {out}: exists; name a new file")
    run = load_run(run_folder, telling(tell))
    fields = {"name": run.config.name(), "context_length": run.config.sequence_length}
    with TemporaryDirectory() as folder:
        writer = GGUFWriter(Path(folder) / "model.gguf", architecture)
        for key, value in (fields | sizes(model) | vocabulary(run.tokenizer)).items():
            getattr(writer, f"add_{key}")(value)
        for name, value in gguf_tensors(run.params, model).items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        write_atomically(out, read_bytes(Path(folder) / "model.gguf"))
    return architecture


def sizes(model: ModelConfig) -> dict:
    """Return {field of the format: value} of a model."""
    values = settings(model)
    found = {
        "block_count": model.blocks, "embedding_length": model.d_model, "vocab_size": model.vocab_size,
        "feed_forward_length": values["intermediate_size"], "head_count": model.heads, "head_count_kv": model.heads,
        "key_length": model.kqv_size, "value_length": model.kqv_size, "rope_dimension_count": model.kqv_size,
        "rope_freq_base": values["rope_parameters"]["rope_theta"], "layer_norm_rms_eps": values["rms_norm_eps"],
        "file_type": 0,
    }  # fmt: skip
    if model.num_routed:
        found |= {"expert_count": model.expert_count, "expert_used_count": model.choices}
    if values["model_type"] == "qwen2_moe":
        found["expert_feed_forward_length"] = values["moe_intermediate_size"]
        found["expert_shared_feed_forward_length"] = values["shared_expert_intermediate_size"] or 1
    return found


def vocabulary(tokenizer: Tokenizer) -> dict:
    """Return {field of the format: value} of a tokenizer; a text begins with the end of a document, as in training."""
    processor, ids = tokenizer._processor, range(tokenizer.vocab_size)
    types = {UNKNOWN: 2, END_OF_DOCUMENT: 3, LINE_END: 4}  # unknown, control, user-defined: a piece before all others
    return {
        "tokenizer_model": "llama", "token_list": [processor.id_to_piece(i) for i in ids],
        "token_scores": [processor.get_score(i) for i in ids],
        "token_types": [types.get(i, 6 if processor.is_byte(i) else 1) for i in ids],
        "bos_token_id": END_OF_DOCUMENT, "eos_token_id": END_OF_DOCUMENT, "unk_token_id": UNKNOWN,
        "add_bos_token": True, "add_eos_token": False, "add_space_prefix": False, "remove_extra_whitespaces": False,
    }  # fmt: skip
