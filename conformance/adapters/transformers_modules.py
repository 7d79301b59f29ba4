"""Every router of transformers as a backend, by the name of its class: `--backend transformers:Qwen3MoeTopKRouter`.

One adapter serves all classes. It creates a module from the model's default configuration with small sizes. It sets the
weight to the identity, so that the logits are the input. `accelerated.inspection.transformers_routers` reads the
result.

A router with a table of token ids (`DeepseekV4HashRouter`) gets a table with the k best experts of each token, so the
suite tests its gates.

By default, all experts form one group, because the suite uses too few experts for eight groups. Set other options in
the name: `transformers:Qwen3MoeTopKRouter,norm_topk_prob=True`. The suite tests normalisation, scale, groups and
selection bias if the router has them. It also tests the balance loss, z-loss and stacked experts of the model's file.

A folder of a saved model, such as `transformers:models/v3`, is the routed layer of its class with the options of its
config.json. The suite chooses the sizes and the weights.

For a routed layer, such as `transformers:NllbMoeSparseMLP`, `blocks.layer` sets weights with which expert e returns
unit vector e. A layer runs the experts that a model of its file runs, such as grouped_mm; a block built alone would run
eager ones. Ask for others with `transformers:Qwen3MoeSparseMoeBlock,_experts_implementation=eager`.
"""

import ast
import contextlib
import copy
import functools
import importlib
import inspect
import re
from pathlib import Path

import torch
import transformers

from routelaws.accelerated.inspection.transformers_routers import ROUTERS, read_router
from routelaws.conformance.adapters import blocks, torch_modules
from routelaws.conformance.adapters.torch_modules import from_numpy, identity, plant, put

VERSION = f"transformers {transformers.__version__}, torch {torch.__version__}"
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_selected_experts")
WIDTHS = ("hidden_size", "d_model", "dim")
INNER = ("intermediate_size", "moe_intermediate_size", "d_ff", "encoder_ffn_dim", "expert_ffn_dim", "ffn_dim")
WHOLE = {"n_group": 1, "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1, "zero_expert_num": 0}
"""Values of options that would need more experts."""
WHOLE_ROWS = 8
"""Widths are multiples of this number, because grouped_mm on a CPU needs rows of whole 16 bytes, also in bfloat16."""
QUIET = {
    "router_bias": False,
    "hidden_act": "silu",
    "mlp_hidden_act": "silu",
    "swiglu_limit": 1e9,
    "output_multiplier": 1.0,
}
"""Values of options with which the logits equal the input and planted experts return unit vectors."""
OPTIONS = {
    "normalisation": ("norm_topk_prob", "norm_topk_prob"),
    "gate_scale": ("routed_scaling_factor", "routed_scaling_factor"),
    "expert_groups": ("num_group", "n_group"),
    "groups_per_token": ("topk_group", "topk_group"),
}
"""{option of the reference: (attribute of a router with this option, name in the configuration)}."""
_SELECTION = "correction_bias|expert_bias"
"""Names of biases that change only the choice, not the gates. GPT-OSS's `bias` is part of the logits."""
_NOT_ASKABLE = {
    "DbrxRouter": "it returns only logits; DbrxFFN chooses the experts",
    "Dots3NoteVisionTopKRouter": "its configuration has a different number of experts in each layer",
    "GraniteDoclingDensityRouter": "it returns one number, not a choice of experts",
    "ZayaRouter": "its logits come from a network of three layers, not from one matrix",
}


def _files() -> list[Path]:
    return sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))


def names(pattern: str = ROUTERS) -> dict[str, str]:
    """Return {class: module} of the transformers classes whose name matches a pattern. Read only source files."""
    classes = {}
    for path in _files():
        text = path.read_text(encoding="utf-8")
        if "outer" in text or "Gat" in text or "MLP" in text:
            for name in re.findall(rf"^class ({pattern})\(", text, re.M):
                classes[name] = f"transformers.models.{path.parent.name}.{path.stem}"
    return classes


def _layer_of(folder: Path) -> tuple[str, dict]:
    """Return the class of the routed layers of a saved model, and its options: the values of config.json but sizes.

    Raises:
        LookupError: transformers cannot read the folder, or its model has no routed layer.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError) as error:
        raise LookupError(f"{folder}: {error}") from error
    kinds = {type(module).__name__ for module in model.modules() if hasattr(module, "experts")}
    if len(kinds) != 1:
        raise LookupError(f"{folder}: has {len(kinds)} classes of routed layers; one is needed")
    sizes = {*EXPERTS, *CHOSEN, *WIDTHS, *INNER}
    return kinds.pop(), {key: value for key, value in config.to_dict().items() if key not in sizes}


def find(text: str):
    """Return the backend of "Class" or "Class,option=value,...". A folder of a saved model stands for its class.

    Raises:
        LookupError: transformers has no class of this name, or the suite cannot test the class.
    """
    name, *options = text.split(",")
    name, settings = _layer_of(Path(name)) if (Path(name) / "config.json").is_file() else (name, {})
    known = names(re.escape(name))
    if name not in known:
        raise LookupError(f"transformers {transformers.__version__} has no class {name}")
    if name in _NOT_ASKABLE:
        raise LookupError(f"{name} is not askable: {_NOT_ASKABLE[name]}")
    library = importlib.import_module(known[name])
    overrides = settings | {key: _value(value) for key, _, value in (option.partition("=") for option in options)}
    is_router = re.fullmatch(r"\w*(?:Router|Gating|Gate)", name)
    implementation = "" if is_router else overrides.setdefault("_experts_implementation", _experts_of_a_model(library))
    try:
        route = (_router if is_router else _layer)(library, getattr(library, name), overrides)
        _probe(route)
    except Exception as error:
        raise LookupError(f"{name} is not askable: {type(error).__name__}: {error}") from error
    return blocks.backend(
        route,
        name=f"{text} of {VERSION}" + f", experts {implementation}" * bool(implementation),
        convert=from_numpy,
        dispatch=_dispatch(library, name, overrides),
        loss=_loss(library, getattr(library, name)) if is_router else None,
        z_loss=_z_loss(library) if is_router and hasattr(library, "router_z_loss_func") else None,
        **_experts(library, overrides),
    )


def _experts_of_a_model(library) -> str:
    """Return the implementation of the experts that a model of this file runs by default."""
    models = [
        value for value in vars(library).values() if inspect.isclass(value) and value.__module__ == library.__name__
    ]
    can_set = (getattr(model, "_can_set_experts_implementation", lambda: False)() for model in models)
    return "grouped_mm" if any(can_set) else "eager"


def _probe(route) -> None:
    """Raise an error if a route fails, or returns only gates of 0, for three tokens and eight experts."""
    logits = torch.arange(8.0).roll(3)[None].repeat(3, 1) / 4
    for k in (1, 2):
        with contextlib.suppress(NotImplementedError):
            if not blocks.read(route(logits, k), k)[1].any():
                raise LookupError("the suite reads only gates of 0 from the output")


def _value(text: str):
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


@functools.cache
def _configurations(library, kind) -> tuple:
    """Return the default configurations with experts of a model's file, the best candidates first."""
    package = library.__name__.rpartition(".")[0]
    name = library.__name__.rpartition(".")[2].replace("modeling", "configuration")
    module = importlib.import_module(f"{package}.{name}")
    classes = [
        value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    wanted = str(inspect.signature(kind).parameters.get("config"))
    configurations = []
    for one in sorted(classes, key=lambda one: (one.__name__ not in wanted, "Text" not in one.__name__)):
        with contextlib.suppress(Exception):
            config = one()
            configurations += [config] if any(hasattr(config, key) for key in EXPERTS) else []
    return tuple(configurations)


def _build(library, kind, num_experts: int, k: int, width: int, overrides: dict, d_ff: int = 3):
    """Return a module of a class, made from the first configuration that works."""
    error = LookupError(f"{kind.__name__} has no configuration with experts")
    for config in map(copy.deepcopy, _configurations(library, kind)):
        sizes = dict.fromkeys(EXPERTS, num_experts) | dict.fromkeys(CHOSEN, k) | dict.fromkeys(WIDTHS, width)
        sizes |= dict.fromkeys(INNER, d_ff) | WHOLE | QUIET
        for key, value in {**{key: value for key, value in sizes.items() if hasattr(config, key)}, **overrides}.items():
            with contextlib.suppress(Exception):  # some configurations require a list with a value for each layer
                setattr(config, key, value)
        known = {"config": config, "layer_idx": 0, "input_size": width, "num_experts": num_experts, "top_k": k}
        known |= {"hidden_size": width, **dict.fromkeys(INNER, d_ff)}
        try:
            return kind(**{name: known[name] for name in inspect.signature(kind).parameters if name in known})
        except (AttributeError, TypeError, KeyError) as problem:
            error = problem
    raise error


def _router(library, kind, overrides: dict):
    """Return the route of a router class. Its signature has the options that the router has."""
    built = _build(library, kind, 4, 2, 5, overrides)
    normed = hasattr(built, "norm")

    def route(logits, k, *, bias=None, **options):
        _check_k(kind, k)
        size = logits.shape[1]
        chosen = {OPTIONS[name][1]: _option(value) for name, value in options.items() if value is not None}
        router = _build(library, kind, size, k, size + normed, overrides | chosen).eval()
        _check_groups(router, size)
        _set_identity(router, size + normed, bias)
        x = _constant_norm(router, logits) if normed else logits
        extra = [name for name in list(inspect.signature(router.forward).parameters)[1:] if "bias" in name]
        extra = {name: torch.zeros(size) if bias is None else bias.float() for name in extra}
        extra |= _token_ids(router, logits, k)
        with torch.no_grad():
            return _read(router.to(logits.dtype), x, extra)

    names_of = [*built.state_dict(), *inspect.signature(built.forward).parameters]
    named = ["bias"] if re.search(_SELECTION, " ".join(names_of)) else []
    named += [name for name, (attribute, _) in OPTIONS.items() if hasattr(built, attribute)]
    parameter = inspect.Parameter
    places = [parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in ("logits", "k")]
    route.__signature__ = inspect.Signature(
        places + [parameter(name, parameter.KEYWORD_ONLY, default=None) for name in named]
    )
    return route


def _token_ids(router, logits, k: int) -> dict:
    """Fill the table of a router that looks up token ids with the k best experts of each token; return the ids."""
    if "input_ids" not in inspect.signature(router.forward).parameters:
        return {}
    ids, best = torch.arange(len(logits)).flip(0), (-logits.double()).argsort(dim=1, stable=True)[:, :k]
    if len(ids) > len(router.tid2eid):
        raise NotImplementedError(f"{len(ids)} tokens, only {len(router.tid2eid)}")
    router.tid2eid[ids] = best.to(router.tid2eid.dtype)
    return {"input_ids": ids}


def _option(value):
    if value == "softmax":
        raise NotImplementedError("normalisation 'softmax'")
    return {"none": False, "sum": True}.get(value, value)


def _check_groups(router, num_experts: int) -> None:
    """Raise NotImplementedError unless the groups have equal sizes of two or more experts."""
    groups = getattr(router, "num_group", 1) or 1
    if num_experts % groups or groups > 1 and num_experts // groups < 2:
        raise NotImplementedError(f"{num_experts} experts in {groups} groups")


def _set_identity(router, width: int, bias) -> None:
    with torch.no_grad():
        for name, value in [*router.named_parameters(), *router.named_buffers()]:
            if value.ndim == 2 and value.shape[1] == width and "weight" in name:
                value.copy_(identity(*value.shape))
            elif "bias" in name:
                is_selection_bias = bias is not None and re.search(_SELECTION, name)
                value.copy_(bias.to(value.dtype).expand_as(value) if is_selection_bias else torch.zeros_like(value))


def _constant_norm(router, logits):
    """Return an input [T, E + 1] with which a router with an input norm returns the given logits.

    An added coordinate gives all rows the same norm, and the router's matrix is multiplied by this norm.
    """
    radius = 2 * logits.norm(dim=1).max().clamp(min=1.0)
    rest = (radius**2 - (logits**2).sum(1, keepdim=True)).sqrt()
    with torch.no_grad():
        router.proj.weight.mul_(radius)
    return torch.cat([logits, rest], dim=1)


def _check_k(kind, k: int) -> None:
    only = next((value for name, value in {"Switch": 1, "Nllb": 2}.items() if kind.__name__.startswith(name)), k)
    if k != only:
        raise NotImplementedError(f"k {k}, only {only}")


def _read(router, x, options: dict):
    """Call a router, with a sequence axis if it needs one, and return a result for `blocks.read`."""
    name = type(router).__name__
    if re.search("Switch|Afmoe", name):
        x = x[None]
    _, gates, experts = read_router(name, router(x, **options))
    if experts is not None:
        return gates, experts
    return gates[0] if "Switch" in name else gates


def _layer(library, kind, overrides: dict):
    def run(planted, k, weights=None):
        _check_k(kind, k)
        d_model, num_experts = planted.router.shape
        if num_experts > 64:
            raise NotImplementedError(f"{num_experts} experts: planted weights need a gigabyte")
        d_ff = weights.up.shape[2] if weights else 2 * d_model
        layer = _build(library, kind, num_experts, k, d_model, overrides, d_ff)
        plant(layer, num_experts, d_model, d_ff, weights)
        with torch.no_grad():
            output = layer(torch.from_numpy(planted.x)[None])
        return max((one for one in output if one.shape[-1] == d_model), key=lambda one: one.ndim) if isinstance(
            output, tuple) else output  # fmt: skip

    route = blocks.layer(run, multiple=WHOLE_ROWS)
    route.run = lambda planted, k: run(planted, k, planted)
    return route


def experts_with_gradient(name: str, num_experts: int = 8) -> int:
    """Count the experts of a layer class that get a gradient from 64 E random tokens, with random weights."""
    library = importlib.import_module(names(re.escape(name))[name])
    torch.manual_seed(0)
    layer = _build(library, getattr(library, name), num_experts, 2, 16, {}, 5).eval()
    with torch.no_grad():
        for path, value in layer.state_dict().items():
            value.zero_() if "bias" in path else value.normal_(std=0.5)
    output = layer(torch.randn(1, 64 * num_experts, 16))
    output = output[0] if isinstance(output, tuple) else output
    output.square().sum().backward()
    return torch_modules.experts_with_gradient(layer, num_experts)


def _experts(library, overrides: dict) -> dict:
    """Return {"routed_ffn": function} with the stacked experts [E, 2 f, d] of a model's file; {} if it has none.

    These experts compute act(x V) (x W). To get GELU(x U), the input has an extra coordinate 1, and x W = 1. Zeros fill
    both widths up to a multiple of `WHOLE_ROWS`.
    """
    kinds = [value for name, value in vars(library).items() if re.fullmatch(r"\w*Experts", name)]
    kind = next(
        (candidate for candidate in kinds if "top_k_index" in inspect.signature(candidate.forward).parameters), None
    )

    @torch.no_grad()
    def routed_ffn(params, x, expert, gate):
        num_experts, d_model, d_ff = params["up"].shape
        width, hidden = (-(-size // WHOLE_ROWS) * WHOLE_ROWS for size in (d_model + 1, d_ff))
        gelu = {**overrides, "hidden_act": "gelu_new"}
        experts = _build(library, kind, num_experts, 1, width, gelu, hidden)
        gated = torch.zeros(num_experts, 2 * hidden, width)
        gated[:, :d_ff, :d_model], gated[:, hidden : hidden + d_ff, d_model] = params["up"].transpose(1, 2), 1
        down = torch.zeros(num_experts, width, hidden)
        down[:, :d_model, :d_ff] = params["down"].transpose(1, 2)  # no extra output
        put(experts, gate_up_proj=gated, down_proj=down)
        inputs = torch.nn.functional.pad(x, (0, 1), value=1.0)
        output = experts(torch.nn.functional.pad(inputs, (0, width - d_model - 1)), expert, gate)[:, :d_model]
        return {"output": output, "dropped_fraction": torch.zeros((), dtype=x.dtype)}

    with contextlib.suppress(Exception):
        if _build(library, kind, 2, 1, 4, overrides, 3).gate_up_proj.shape == (2, 6, 4):
            return {"routed_ffn": routed_ffn}
    return {}


def _dispatch(library, name: str, overrides: dict):
    """Return a dispatch for the Switch router, which drops tokens itself. Return None for other routers."""
    if name != "SwitchTransformersTop1Router":
        return None

    def dispatch(logits, k, capacity):
        route = _router(library, getattr(library, name), {**overrides, "expert_capacity": capacity})
        return route(logits, k)

    return dispatch


def _loss(library, kind):
    """Return the balance loss of a model's file, (logits, experts, mask) -> number; None if the file has none."""
    function = getattr(library, "load_balancing_loss_func", None)
    if function is None:
        return None

    def loss(logits, experts, *, mask=None):
        _check_k(kind, experts.shape[1])
        if "top_k" not in inspect.signature(function).parameters:  # Switch: the arguments are probabilities and experts
            blocks.decline(mask=mask)
            return function(logits.softmax(1)[None], experts[None])
        k, largest = experts.shape[1], logits.softmax(1).topk(experts.shape[1]).indices
        real = slice(None) if mask is None else mask
        if not torch.equal(largest.sort().values[real], experts.sort().values[real]):
            raise NotImplementedError("given experts instead of its own choice")
        padding = None if mask is None else mask[None].long()
        return function((logits,), logits.shape[1], k, padding)

    return loss


def _z_loss(library):
    def z_loss(logits):
        with torch.no_grad():
            return library.router_z_loss_func(logits[None])

    return z_loss
