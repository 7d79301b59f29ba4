"""The models that have a class in transformers: their config.json and the names of their tensors, without torch.

    design                                                                  class
    dense                                                                   LlamaForCausalLM
    softmax scores, divided by their sum; every block routed; none shared   MixtralForCausalLM
    other softmax scores                                                    Qwen2MoeForCausalLM
    sigmoid scores, with or without bias, groups and a factor               Glm4MoeForCausalLM

All four have RMSNorm, rotary positions and SwiGLU. BASE and S-BASE choose the largest scores in evaluation, as top_k
does, so they have a class, too. Glm4Moe has the router of DeepSeek-V3 with plain attention. Qwen2Moe multiplies its
shared experts by a sigmoid, which weights of 0 make 1/2, so `down` is stored twice as large.
"""

import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.configuration import ModelConfig
from routelaws.reference.transformer import NORM_EPSILON, embedding_factor, parameter_shapes

from ..errors import InputError
from ..json_files import shown
from ..wording import in_short

CLASSES = {
    "llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}  # fmt: skip
"""The class of each `model_type`."""

NEEDED = {"norm": "rms", "positions": "rotary", "activation": "swiglu", "objective": "causal"}
"""Options of every model that has a class."""

OLDER = {"rope_scaling": None, "partial_rotary_factor": 1.0}
"""Keys of older files that transformers merges into `rope_parameters`, and their needed values."""

MAY_LACK = ("head_dim", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", *OLDER)
"""Keys that config.json may lack, because the default of the class is the needed value."""

MATRICES = {"up": "gate_proj", "linear": "up_proj", "down": "down_proj"}
"""The names of the matrices of an FFN."""


class Place(NamedTuple):
    """The place of a tensor in the tree of parameters."""

    path: tuple[str, ...]
    index: tuple[int, ...] = ()
    factor: float = 1.0  # a power of two, so the factor loses no bit


def kind_of(model: ModelConfig) -> str:
    """Return the `model_type` of a model.

    Raises:
        InputError: transformers has no class for the model; the message names the flags that make one.
    """
    if wrong := [name for name, value in NEEDED.items() if getattr(model, name) != value]:
        flags = " ".join(f"--{name} {NEEDED[name]}" for name in wrong)
        has = in_short([f"{name} {getattr(model, name)}" for name in wrong])
        raise InputError(f"the model has {has}, which no class of transformers has; train with {flags}")
    sigmoid, groups = model.gate == "sigmoid", model.expert_groups
    dense = _dense(model)
    for wrong, what, remedy in (
        (model.router not in ("dense", "top_k", "sinkhorn", "base"), f"router {model.router}", "--router top_k"),
        (model.num_wide, "flop-increase", "--flop-increase 1"),
        (model.output_norm, "output-norm", "--no-output-norm"),
        (model.latent_width, "latent-width", "--latent-width 0"),
        (model.zero_experts, "zero-experts", "--zero-experts 0"),
        (model.router_bias, "router-bias", "--no-router-bias"),
        (model.bias_rate and not sigmoid, "bias-rate with softmax scores", "--gate sigmoid"),
        (groups > 1 and not sigmoid, "expert-groups with softmax scores", "--gate sigmoid"),
        (model.gate_scale != 1 and not sigmoid, "gate-scale with softmax scores", "--gate sigmoid"),
        (model.normalisation == "softmax" and sigmoid, "a softmax of sigmoid scores", "--normalisation sum"),
        (model.group_score == "best" and groups > 1, "group-score best", "--group-score two_best"),
        (sigmoid and model.expert_count < 2 * groups, "groups of one expert", "fewer --expert-groups"),
        (sigmoid and dense != [*range(len(dense))], "sigmoid scores and dense upper blocks", "--layout upper"),
    ):
        if wrong:
            raise InputError(f"the model has {what}, which no class of transformers has; train with {remedy}")
    if model.router == "dense":
        return "llama"
    if sigmoid:
        return "glm4_moe"
    return "mixtral" if _normalised(model) and not dense and not model.shared_experts else "qwen2_moe"


def _normalised(model: ModelConfig) -> bool:
    return model.router == "top_k" and model.normalisation != "none"


def _dense(model: ModelConfig) -> list[int]:
    return [block for block in range(model.blocks) if not model.is_routed(block)]


def settings(model: ModelConfig) -> dict:
    """Return the values of config.json that fix the function of a model."""
    kind, narrow = kind_of(model), model.ffn_width // model.granularity
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    values = {
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.blocks,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.kqv_size,
        "intermediate_size": narrow if kind == "mixtral" else model.ffn_width,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPSILON,
        "tie_word_embeddings": True,
        "rope_parameters": rope | ({"partial_rotary_factor": 1.0} if kind == "glm4_moe" else {}),
    }
    if kind != "llama":
        values["num_experts_per_tok"] = model.choices
    if kind in ("qwen2_moe", "glm4_moe"):
        values |= {"moe_intermediate_size": narrow, "norm_topk_prob": _normalised(model)}
    return values | {
        "llama": {"attention_bias": False, "mlp_bias": False},
        "mixtral": {"num_local_experts": model.expert_count, "sliding_window": None},
        "qwen2_moe": {
            "num_experts": model.expert_count,
            "shared_expert_intermediate_size": model.shared_experts * narrow,
            "decoder_sparse_step": 1,
            "mlp_only_layers": _dense(model),
            "qkv_bias": False,
            "use_sliding_window": False,
        },
        "glm4_moe": {
            "n_routed_experts": model.expert_count,
            "n_shared_experts": model.shared_experts,
            "first_k_dense_replace": len(_dense(model)),
            "routed_scaling_factor": model.gate_scale,
            "n_group": model.expert_groups,
            "topk_group": model.groups_per_token,
            "attention_bias": False,
            "use_qk_norm": False,
        },
    }[kind]  # fmt: skip


def model_of(values: dict) -> ModelConfig:
    """Return the model of a config.json.

    Raises:
        InputError: the model cannot be expressed; the message names the key and the value that is needed.
    """
    kind = values.get("model_type")
    if kind not in CLASSES:
        raise InputError(f"model_type is {shown(kind)}; allowed: {', '.join(CLASSES)}")
    try:
        d, blocks, heads = (values[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        sizes = {"vocab_size": values["vocab_size"], "d_model": d, "blocks": blocks, "heads": heads}
        sizes |= NEEDED | {"kqv_size": values.get("head_dim") or d // heads}
        return ModelConfig(**sizes, **({} if kind == "llama" else _routing(kind, values)))
    except KeyError as error:
        raise InputError(f"{error.args[0]} is missing") from None
    except (TypeError, ZeroDivisionError) as error:
        raise InputError(f"a size is not a whole number of at least 1 ({error})") from None


def _routing(kind: str, values: dict) -> dict:
    """Return the fields of the routed blocks of a config.json."""
    blocks = values["num_hidden_layers"]
    width = values["intermediate_size" if kind == "mixtral" else "moe_intermediate_size"]
    experts = values[{"mixtral": "num_local_experts", "qwen2_moe": "num_experts"}.get(kind, "n_routed_experts")]
    chosen, granularity, left = values["num_experts_per_tok"], *divmod(3 * values["hidden_size"], width)
    if left or experts % granularity or chosen % granularity:
        raise InputError(
            f"its {experts} experts, {chosen} per token, have width {width}; needed: width 3 hidden_size / G, with"
            " numbers of experts that G divides"
        )
    dense, shared = [], 0
    if kind == "qwen2_moe":
        step, only = values.get("decoder_sparse_step", 1), values.get("mlp_only_layers") or ()
        dense = [block for block in range(blocks) if block in only or (block + 1) % step]
        shared = values["shared_expert_intermediate_size"] // width
    elif kind == "glm4_moe":
        dense, shared = [*range(values["first_k_dense_replace"])], values["n_shared_experts"]
    fields = {
        "router": "top_k", "experts": experts // granularity, "k": chosen // granularity, "granularity": granularity,
        "normalisation": "sum" if kind == "mixtral" or values.get("norm_topk_prob") else "none",
        "routing_frequency": (blocks - len(dense)) / blocks, "shared_experts": shared, "capacity_factor": math.inf,
        "layout": "upper" if dense == [*range(len(dense))] else "spread",
    }  # fmt: skip
    if kind == "glm4_moe":
        fields |= {"gate": "sigmoid", "bias_rate": 0.001, "gate_scale": float(values["routed_scaling_factor"])}
        fields |= {"expert_groups": values["n_group"], "groups_per_token": values["topk_group"]}
    return fields


def check_settings(values: dict, model: ModelConfig) -> None:
    """Raise `InputError` if config.json describes another function than the model."""
    for key, needed in (OLDER | settings(model)).items():
        if key not in values and key in MAY_LACK:
            continue
        if values.get(key, "missing") != needed:
            raise InputError(f"{key} is {shown(values.get(key, 'missing'))}; needed: {shown(needed)}")
    if "quantization_config" in values:
        raise InputError("the weights are quantised; convert a copy in float32 or bfloat16")


# TENSORS


def places(model: ModelConfig) -> dict[str, Place | tuple[int, ...]]:
    """Return {name of a tensor: its place in the tree of parameters, or the shape of a tensor of zeros}."""
    factor, kind, found = embedding_factor(model), kind_of(model), {}
    found["model.embed_tokens.weight"] = Place(("embedding",), (), factor)
    found["model.norm.weight"] = Place(("final_norm", "scale"), (), 1 / factor)
    dense = routed = 0
    for block in range(model.blocks):
        layer, here = f"model.layers.{block}.", (block,)
        found[f"{layer}input_layernorm.weight"] = Place(("blocks", "attention_norm", "scale"), here)
        found[f"{layer}post_attention_layernorm.weight"] = Place(("blocks", "ffn_norm", "scale"), here)
        for name in ("query", "key", "value", "output"):
            found[f"{layer}self_attn.{name[0]}_proj.weight"] = Place(("blocks", "attention", name), here)
        if model.is_routed(block):
            found |= _routed_places(model, kind, layer, routed)
            routed += 1
        else:
            found |= _ffn(f"{layer}mlp.", ("dense_ffn",), (dense,))
            dense += 1
    return found


def _ffn(prefix: str, path: tuple, index: tuple, names: dict = MATRICES, **factors) -> dict:
    return {
        f"{prefix}{name}.weight": Place((*path, ours), index, factors.get(ours, 1.0)) for ours, name in names.items()
    }


def _routed_places(model: ModelConfig, kind: str, layer: str, at: int) -> dict:
    layer += "block_sparse_moe." if kind == "mixtral" else "mlp."
    names = {"up": "w1", "linear": "w3", "down": "w2"} if kind == "mixtral" else MATRICES
    found = {f"{layer}gate.weight": Place(("routed_ffn", "router"), (at,))}
    for expert in range(model.expert_count):
        found |= _ffn(f"{layer}experts.{expert}.", ("routed_ffn",), (at, expert), names)
    if kind == "glm4_moe":
        bias = Place(("routed_ffn", "bias"), (at,)) if model.has_bias else (model.expert_count,)
        found[f"{layer}gate.e_score_correction_bias"] = bias
    if kind == "mixtral":
        return found
    prefix = f"{layer}shared_expert{'s' if kind == 'glm4_moe' else ''}."
    if kind == "qwen2_moe":
        found[f"{layer}shared_expert_gate.weight"] = (1, model.d_model)
    if model.shared_experts:
        return found | _ffn(prefix, ("routed_ffn", "shared"), (at,), down=2.0 if kind == "qwen2_moe" else 1.0)
    return found | {
        f"{prefix}{name}.weight": (model.d_model, 0) if ours == "down" else (0, model.d_model)
        for ours, name in MATRICES.items()
    }


def tensors(params: dict, model: ModelConfig) -> dict[str, np.ndarray]:
    """Return {name: tensor}, float32, of the parameters of a model."""
    leaves, found = {}, {}
    for name, place in places(model).items():
        if not isinstance(place, Place):
            found[name] = np.zeros(place, np.float32)
            continue
        if place.path not in leaves:
            leaves[place.path] = np.asarray(_node(params, place.path), np.float32)
        part = leaves[place.path][place.index] * np.float32(place.factor)
        if part.ndim > 1 and place.path != ("embedding",):
            part = part.reshape((-1, model.d_model) if place.path[-1] == "output" else (len(part), -1)).T
        found[name] = np.ascontiguousarray(part)
    return found


def params_of(stored: dict[str, np.ndarray], model: ModelConfig) -> dict:
    """Return the parameters of a model from {name: tensor}. `tensors` gives the same tensors back, bit by bit.

    Raises:
        InputError: a tensor is missing, unexpected, of another shape, or has values that the model cannot have.
    """
    stored = dict(stored)
    output, embedding = (stored.get(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    if output is not None and embedding is not None and np.array_equal(output, embedding):
        del stored["lm_head.weight"]
    params, wanted = _zeros(parameter_shapes(model)), places(model)
    if unlike := sorted(stored.keys() ^ wanted.keys()):
        raise InputError(f"tensors are missing, or the model has none of these names: {in_short(unlike)}")
    for name, place in wanted.items():
        if isinstance(place, Place):
            part = _node(params, place.path)[place.index]
            value = stored[name].astype(np.float32) / np.float32(place.factor)
            if value.size != part.size:
                raise InputError(f"{name} has shape {list(value.shape)}; {part.size} values are needed")
            part[...] = (value if place.path == ("embedding",) else value.T).reshape(part.shape)
    for name, value in tensors(params, model).items():
        theirs = stored[name].astype(np.float32)
        if theirs.shape != value.shape or theirs.tobytes() != value.tobytes():
            raise InputError(f"{name} has shape {list(theirs.shape)} and values that the model cannot have")
    return params


def _zeros(tree):
    if isinstance(tree, dict):
        return {name: _zeros(node) for name, node in tree.items()}
    return np.zeros(tree[0], np.float32)


def _node(tree: dict, path: tuple[str, ...]):
    for name in path:
        tree = tree[name]
    return tree
