"""The parameters of Mixture-of-Experts models that transformers builds, counted from config.json without torch.

`FAMILIES` states for each `model_type` which keys of config.json hold its sizes, and which tensors it has. A tensor is
a product of sizes, each a letter:

    d width     V vocabulary         H heads           K heads of keys and values     h width of a head
    E experts   k experts per token  f width of an expert   g width of a dense FFN    s width of the shared experts
    q, c rank of queries, of keys and values (latent attention); n, r widths of a head without and with positions
    v width of a value; u = n + r, w = n + v, a = c + r; i, j heads and width of the indexer

The total counts each parameter once: tied embeddings are one tensor, and a bias that transformers stores as a buffer is
no parameter. The active parameters are all but the E - k experts that a token does not choose; the embedding counts.
The paper's N and P leave out the embedding.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..inspection.foreign_traces import Design
from ..json_files import read_json, shown

PARTS = ("embedding", "attention", "norms", "dense FFN", "router", "shared experts", "experts")
"""Kinds of tensors, in the order of tables."""

FFN = {"dense FFN": ("d g", "d g", "g d"), "shared experts": ("d s", "d s", "s d")}
EXPERTS = {"router": ("d E",), "experts": ("E d f", "E d f", "E f d")}
ATTENTION = {
    "grouped": ("d H h", "d K h", "d K h", "H h d"),
    "latent": ("d a", "c", "c H w", "H v d"),  # and the queries, by `q_lora_rank`
}
QUERIES = {True: ("d q", "q", "q H u"), False: ("d H u",)}
"""Tensors of the queries of latent attention, with and without a low rank."""

EXTRA = {
    "norm_heads": ("attention", "h", "h"),
    "norm_all": ("attention", "H h", "K h"),
    "bias": ("attention", "H h", "K h", "K h", "d"),
    "qkv_bias": ("attention", "H h", "K h", "K h"),
    "latent_bias": ("attention", "a", "d"),
    "sinks": ("attention", "H"),
    "gate": ("attention", "d H h"),
    "indexer": ("attention", "q i j", "d j", "j", "j", "d i"),
    "ffn_bias": ("dense FFN", "g", "g", "d"),
    "shared_bias": ("shared experts", "s", "s", "d"),
    "shared_gate": ("shared experts", "d"),
    "router_bias": ("router", "E"),
    "expert_bias": ("experts", "E f", "E f", "E d"),
    "head_bias": ("embedding", "V"),
}
"""Further tensors, by name: their part and their sizes. `head_bias` belongs to the head, others to each block."""


class Family(NamedTuple):
    """The keys of config.json that hold the sizes of a model, and its tensors.

    "a|b" is a key or its other name. "a=1" has a value for a missing key: the default of the class. "=1" is a value.

    Attributes:
        experts, chosen, width, dense, head: keys of E, k, f, g, and h (of r in latent attention)
        shared: keys whose product is s; "" for no shared experts
        first, last, step, only, listed, types: keys that say which blocks are routed: from `first` to `last`, every
            `step`-th, without the blocks `only`; else the list `listed`, or "sparse" in the list `types`
        attention: a key of `ATTENTION`
        norms: vectors of d in the norms of a block
        final: vectors of d in the last norm
        tied: the key that says whether the output matrix is the embedding
        extra: {name of `EXTRA`: the key that adds it, or "" if it is always there}
    """

    experts: str = "n_routed_experts|num_local_experts"
    chosen: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    dense: str = "intermediate_size=0"
    head: str = "head_dim=0"
    shared: str = ""
    first: str = "=0"
    last: str = "=-1"
    step: str = "=1"
    only: str = "=0"
    listed: str = "=0"
    types: str = "=0"
    attention: str = "grouped"
    norms: int = 2
    final: int = 1
    tied: str = "tie_word_embeddings=0"
    extra: dict[str, str] = {}  # noqa: RUF012


_N, _SHARED = "num_experts|num_local_experts", "n_shared_experts moe_intermediate_size"
_WIDE = {"width": "intermediate_size"}
_STEP = {"step": "decoder_sparse_step=1", "only": "mlp_only_layers=0"}
_BIAS, _LATENT_BIAS = {"bias": "attention_bias=0"}, {"latent_bias": "attention_bias=0"}
_LATENT = {"attention": "latent", "head": "qk_rope_head_dim"}
_MLP = {"ffn_bias": "mlp_bias=0", "shared_bias": "mlp_bias=0"}
_TYPES = "mlp_layer_types=0"

FAMILIES = {
    "afmoe": Family(
        _N, shared="num_shared_experts moe_intermediate_size", first="num_dense_layers", norms=4, head="head_dim=128",
        extra={"norm_heads": "", "gate": "", "router_bias": "", **_BIAS},
    ),
    "cohere2_moe": Family(
        _N, **_WIDE, dense="prefix_dense_intermediate_size=0", norms=1, types=_TYPES, extra=_BIAS,
        shared="num_shared_experts=0 intermediate_size", first="first_k_dense_replace=0", head="head_dim=128",
        tied="tie_word_embeddings=1",
    ),
    "deepseek_v2": Family(
        shared=_SHARED, first="first_k_dense_replace=0", experts="n_routed_experts|num_experts", **_LATENT,
        extra={**_LATENT_BIAS, **_MLP},
    ),
    "deepseek_v3": Family(shared=_SHARED, first="first_k_dense_replace=3", extra=_LATENT_BIAS, **_LATENT),
    "deepseek_v32": Family(
        "n_routed_experts|num_local_experts|num_experts", shared=_SHARED, first="first_k_dense_replace=3",
        types=_TYPES, extra={**_LATENT_BIAS, "indexer": ""}, **_LATENT,
    ),
    "dots1": Family(shared=_SHARED, first="first_k_dense_replace=0", extra={"norm_heads": "", **_BIAS}),
    "ernie4_5_moe": Family(
        "moe_num_experts|num_experts", "moe_k|num_experts_per_tok",
        shared="moe_num_shared_experts=2 moe_intermediate_size", tied="tie_word_embeddings=1",
        first="moe_layer_start_index=1", last="moe_layer_end_index=-1", step="moe_layer_interval=1",
        extra={
            "bias": "use_bias=0", "ffn_bias": "use_bias=0", "shared_bias": "use_bias=0", "head_bias": "use_bias=0",
            "router_bias": "",
        },
    ),
    "exaone_moe": Family(
        _N, shared="num_shared_experts moe_intermediate_size", first="first_k_dense_replace=1", types=_TYPES,
        extra={"norm_heads": ""},
    ),
    "flex_olmo": Family(_N, **_WIDE, extra={"norm_all": "", **_BIAS}),
    "flint": Family(
        _N, shared="shared_expert_intermediate_size", step="decoder_sparse_step=1", only="mlp_only_layers",
        head="head_dim=128", extra={"norm_heads": "", "sinks": "", **_BIAS},
    ),
    "glm4_moe": Family(
        shared=_SHARED, first="first_k_dense_replace=1",
        extra={"norm_heads": "use_qk_norm=0", "qkv_bias": "attention_bias=0"},
    ),
    "glm4_moe_lite": Family(
        shared=_SHARED, first="=1", types=_TYPES, attention="latent", head="qk_rope_head_dim|head_dim",
        extra=_LATENT_BIAS,
    ),
    "gpt_oss": Family(
        _N, **_WIDE, head="head_dim=64",
        extra={"bias": "attention_bias=1", "sinks": "", "router_bias": "", "expert_bias": ""},
    ),
    "granitemoe": Family(_N, **_WIDE, extra=_BIAS),
    "granitemoeshared": Family(_N, **_WIDE, shared="shared_intermediate_size=0", extra=_BIAS),
    "granitemoe_swa": Family(_N, **_WIDE, shared="shared_intermediate_size=0", extra={"sinks": "", **_BIAS}),
    "hunyuan_v1_moe": Family(
        _N, "moe_topk|num_experts_per_tok", **_WIDE, shared="intermediate_size", head="head_dim",
        extra={"norm_heads": "", **_BIAS},
    ),
    "hy_v3": Family(
        _N, shared="num_shared_experts moe_intermediate_size", first="=1", types=_TYPES, head="head_dim=128",
        extra={"norm_heads": "", **_BIAS, **_MLP},
    ),
    "kolibri1": Family(
        _N, shared="shared_expert_intermediate_size", norms=4, head="head_dim=128", extra={"norm_heads": ""},
    ),
    "llama4_text": Family(
        _N, width="intermediate_size", dense="intermediate_size_mlp=16384", shared="intermediate_size",
        step="interleave_moe_layer_step=1", listed="moe_layers=0", head="head_dim=128", extra=_BIAS,
    ),
    "mellum": Family(_N, types=_TYPES, head="head_dim=128", extra={"norm_heads": "", **_BIAS}),
    "minimax_m2": Family(_N, **_WIDE, head="head_dim=128", extra={"norm_all": ""}),
    "mixtral": Family(_N, **_WIDE),
    "olmoe": Family(_N, **_WIDE, extra={"norm_all": "", **_BIAS}),
    "phimoe": Family(_N, **_WIDE, norms=4, final=2, extra={"head_bias": "lm_head_bias=0", **_BIAS}),
    "qwen2_moe": Family(
        _N, shared="shared_expert_intermediate_size", **_STEP,
        extra={"qkv_bias": "qkv_bias=1", "shared_gate": ""},
    ),
    "qwen3_moe": Family(_N, **_STEP, extra={"norm_heads": "", **_BIAS}),
    "solar_open": Family(shared=_SHARED, head="head_dim=128", extra={"qkv_bias": "attention_bias=0"}),
}  # fmt: skip
"""The families of transformers 5.24 that this file counts, by `model_type`."""


EVERY = ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
"""Keys that route only every n-th block."""


MOST_EXPERTS = 2**24
"""Largest number of experts of all blocks. Our choice: a plan has arrays of this size."""


NORMALISED = ("gpt_oss", "granitemoe", "granitemoeshared", "granitemoe_swa", "minimax_m2", "mixtral")
"""Families whose gates sum to 1; others say so by `norm_topk_prob`."""


FACTORS = {"deepseek_v3": 2.5, "deepseek_v32": 2.5, "exaone_moe": 2.5, "glm4_moe_lite": 1.8}
"""Factors of the gates if config.json has no `routed_scaling_factor`; 1 in other families."""


BIASED = ("afmoe", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite",
          "hy_v3", "kolibri1", "minimax_m2", "solar_open")  # fmt: skip
"""Families whose routers choose by the logits and a bias, which is a buffer."""


class Tensor(NamedTuple):
    part: str  # one of PARTS
    letters: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class ForeignModel(NamedTuple):
    """The tensors of a model.

    Attributes:
        kind: `model_type`
        sizes: {letter: number}
        routed: whether each block is routed
        embedding: tensors before the blocks
        block: {whether a block is routed: its tensors}
        head: tensors after the blocks; with tied embeddings only the last norm
        gate_sum: sum of the gates of a token; None if unknown
        largest: whether the experts of a token are those with the largest logits
    """

    kind: str
    sizes: dict[str, int]
    routed: tuple[bool, ...]
    embedding: list[Tensor]
    block: dict[bool, list[Tensor]]
    head: list[Tensor]
    gate_sum: float | None
    largest: bool

    def design(self) -> Design:
        """Return what the model says about its routing."""
        blocks = np.flatnonzero(self.routed) + 1
        return Design(self.sizes["E"], self.sizes["k"], blocks, len(self.routed), self.gate_sum, self.largest)

    def parts(self) -> dict[str, tuple[int, int]]:
        """Return {part: (total, active parameters)}, without empty parts."""
        tensors = [*self.embedding, *self.head, *(tensor for routed in self.routed for tensor in self.block[routed])]
        total = {part: sum(tensor.count for tensor in tensors if tensor.part == part) for part in PARTS}
        experts, chosen = self.sizes["E"], self.sizes["k"]
        return {
            part: (count, count // experts * chosen if part == "experts" else count)
            for part, count in total.items()
            if count
        }


def read_model(values: dict) -> ForeignModel:
    """Return the tensors of the model of a config.json.

    Raises:
        InputError: the family is unknown, a key is missing or not a whole number, or the sizes do not fit each other.
    """
    kind = _family(values)
    if kind is None:
        text = values.get("text_config")
        known = isinstance(text, dict) and _family(text)
        hint = "; to count the text model, save text_config as a config.json" * bool(known)
        raise InputError(f"model_type is {shown(values.get('model_type'))}; allowed: {', '.join(FAMILIES)}{hint}")
    family = FAMILIES[kind]
    keys = {"d": "hidden_size", "V": "vocab_size", "L": "num_hidden_layers", "H": "num_attention_heads"}
    keys |= {"E": family.experts, "k": family.chosen, "f": family.width, "g": family.dense}
    may_be_null = "q_lora_rank" if family.attention == "latent" else "num_key_value_heads"
    if may_be_null not in values:
        raise InputError(f"{may_be_null} is missing; null is allowed")
    if family.attention == "latent":
        keys |= {"c": "kv_lora_rank", "q": "q_lora_rank=0", "n": "qk_nope_head_dim", "r": family.head}
        keys["v"] = "v_head_dim"
        keys |= {"i": "index_n_heads", "j": "index_head_dim"} if "indexer" in family.extra else {}
    else:
        keys |= {"K": "num_key_value_heads=0", "h": family.head}
    sizes = {letter: _number(values, key, 0 if "=" in key else 1) for letter, key in keys.items()}
    sizes["s"] = math.prod(_number(values, key, 0) for key in family.shared.split()) if family.shared else 0
    if sizes["L"] * sizes["E"] > MOST_EXPERTS:
        raise InputError(f"{sizes['L']} blocks of {sizes['E']} experts exceed {MOST_EXPERTS:,} experts in all")
    if sizes["k"] > sizes["E"]:
        raise InputError(f"{sizes['k']} experts per token exceed its {sizes['E']} experts")
    if family.attention == "latent":
        n, r, v, c = (sizes[letter] for letter in "nrvc")
        sizes |= {"u": n + r, "w": n + v, "a": c + r}
    else:
        sizes["K"] = sizes["K"] or sizes["H"]
        sizes["h"] = sizes["h"] or sizes["d"] // sizes["H"]
        if sizes["H"] % sizes["K"]:
            raise InputError(f"{sizes['H']} heads cannot share {sizes['K']} heads of keys and values; K must divide H")
        if kind == "olmoe" and sizes["H"] * sizes["h"] != sizes["d"]:
            raise InputError(f"{sizes['H']} heads of width {sizes['h']} are not hidden_size {sizes['d']}")
    routed = _routed(values, family, sizes["L"])
    if not all(routed) and not sizes["g"]:
        raise InputError(f"{_named(family.dense)} is missing; the dense blocks need it")
    tied = _truth(values, family.tied)
    head = [_tensor(sizes, "norms", "d")] * family.final + [_tensor(sizes, "embedding", "V d")] * (not tied)
    if "head_bias" in family.extra and _truth(values, family.extra["head_bias"]):
        head.append(_tensor(sizes, *EXTRA["head_bias"]))
    block = {each: _block(values, family, sizes, each) for each in (False, True)}
    normalised = values.get("norm_topk_prob") is True or kind in NORMALISED
    factor = values.get("routed_scaling_factor") or FACTORS.get(kind, 1)
    gate_sum = 1.0 if normalised and factor == 1 else None
    largest = kind not in BIASED and values.get("topk_method") != "group_limited_greedy"
    return ForeignModel(kind, sizes, routed, [_tensor(sizes, "embedding", "V d")], block, head, gate_sum, largest)


def _family(values: dict) -> str | None:
    """Return the family of a config.json: its model_type, or else the family of its class, as for Kimi K2."""
    classes = values["architectures"] if isinstance(values.get("architectures"), list) else []
    names = [str(name).removesuffix("ForCausalLM").replace("_", "").lower() for name in classes]
    own = str(values.get("model_type"))
    return own if own in FAMILIES else next((kind for kind in FAMILIES if kind.replace("_", "") in names), None)


def model_in(path: Path) -> ForeignModel:
    """Return the model of a config.json, given as a file or its folder. Every error begins with the file."""
    file = path / "config.json" if path.is_dir() else path
    try:
        values = read_json(file, dict)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"--model {file}: no such file; name the config.json of a model of transformers") from None
    try:
        return read_model(values)
    except InputError as error:
        raise InputError(f"--model {path}: {error}; name the config.json of another model") from error


def _block(values: dict, family: Family, sizes: dict, routed: bool) -> list[Tensor]:
    names = {"attention": ATTENTION[family.attention], "norms": ("d",) * family.norms}
    if family.attention == "latent":
        names["attention"] += QUERIES[sizes["q"] > 0]
    names |= EXPERTS if routed else {"dense FFN": FFN["dense FFN"]}
    if routed and (sizes["s"] or "shared_gate" in family.extra):
        names["shared experts"] = FFN["shared experts"]
    for extra, key in family.extra.items():
        part, *more = EXTRA[extra]
        if part in names and _truth(values, key or "=1"):
            names[part] += tuple(more)
            if extra == "latent_bias" and sizes["q"]:
                names[part] += ("q",)
    return [_tensor(sizes, part, letters) for part, of in names.items() for letters in of]


def _tensor(sizes: dict, part: str, letters: str) -> Tensor:
    letters = tuple(letters.split())
    return Tensor(part, letters, tuple(sizes[letter] for letter in letters))


def _routed(values: dict, family: Family, blocks: int) -> tuple[bool, ...]:
    """Return whether each block is routed."""
    listed, only = (_list(values, key, int) for key in (family.listed, family.only))
    types = _list(values, family.types, str)
    if types is not None:
        if len(types) != blocks or not {*types} <= {"dense", "sparse"}:
            raise InputError(f"mlp_layer_types is {shown(types)}; use a list of {blocks} entries, dense or sparse")
        return tuple(each == "sparse" for each in types)
    if listed is not None:
        return tuple(i in listed for i in range(blocks))
    for key in EVERY:
        if key != family.step.partition("=")[0] and values.get(key, 1) not in (1, None):
            raise InputError(f"{key} is {shown(values[key])}, but this class of transformers ignores it; needed: 1")
    first, last = (_number(values, key, -1) for key in (family.first, family.last))
    last, step = blocks - 1 if last == -1 else last, _number(values, family.step, 1)
    return tuple(first <= i <= last and (i + 1) % step == 0 and i not in (only or ()) for i in range(blocks))


def _value(values: dict, key: str):
    """Return the value of "name|other name=default"; null means the default."""
    names, _, default = key.partition("=")
    found = {name: values[name] for name in names.split("|") if values.get(name) is not None}
    if not found and not default:
        raise InputError(f"{_named(key)} is missing")
    first = next(iter(found.values()), default)
    if any(value != first for value in found.values()):
        listed = " and ".join(f"{name} is {shown(value)}" for name, value in found.items())
        raise InputError(f"{listed}, but they are names of one number; keep one of them")
    return first if found else int(default)


def _named(key: str) -> str:
    return key.partition("=")[0].replace("|", " or ")


def _number(values: dict, key: str, least: int) -> int:
    number = _value(values, key)
    if isinstance(number, list) and number and all(each == number[0] for each in number):
        number = number[0]  # an entry for each block
    if type(number) is not int or not least <= number < 2**40:
        raise InputError(f"{_named(key)} is {shown(number)}; use a whole number of at least {least}")
    return number


def _list(values: dict, key: str, kind: type) -> list | None:
    entries = _value(values, key)
    if entries == 0:
        return None
    if not isinstance(entries, list) or any(type(each) is not kind for each in entries):
        needed = "blocks, from 0" if kind is int else "texts"
        raise InputError(f"{_named(key)} is {shown(entries)}; use a list of {needed}")
    return entries


def _truth(values: dict, key: str) -> bool:
    value = _value(values, key)
    if value not in (False, True):
        raise InputError(f"{_named(key)} is {shown(value)}; use true or false")
    return bool(value)
