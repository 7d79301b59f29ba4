"""Run a model of the library transformers from a local folder, with one layer's weights in memory at a time.

The model is built on the meta device, without memory. Before a layer runs, its weights are read from the safetensors
files and converted as in `from_pretrained`. The whole text passes through the layer, and then its weights are freed.

All classes are from transformers. No code of the folder runs, and no pickle is read.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from safetensors import safe_open
from torch import nn
from torch.utils._pytree import tree_map
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from ..errors import InputError, in_line
from ..wording import in_short
from .trace import at_most
from .transformers_files import weight_files
from .transformers_routers import ROUTERS, read_router

_NO_ROUTER = re.compile(r"attn|attention|vision|visual|audio")
"""Parts of a model whose routers do not choose FFNs for text tokens."""


class RoutedLayer(NamedTuple):
    """The results of one layer's router for T tokens."""

    block: int  # number of the layer, from 1
    logits: np.ndarray  # [T, E]
    gate: np.ndarray  # [T, k], largest first
    expert: np.ndarray  # [T, k]; -1 for none


class _LastRouterDone(Exception): ...


class StreamedModel:
    """A Mixture-of-Experts in a folder.

    Raises:
        InputError: the folder has no such model, or reading it needs its own code, a pickle or dequantisation.
    """

    def __init__(self, folder: Path):
        self.folder, self.config = folder, _configuration(folder)
        self._model = _without_memory(folder, self.config)
        self._layers = {name: layer for name, layer in _layers(self._model) if any(True for _ in layer.parameters())}
        self._routers = {
            name: module
            for name, module in self._model.named_modules()
            if re.fullmatch(ROUTERS, type(module).__name__) and not _NO_ROUTER.search(name)
        }
        if not self._routers:
            raise InputError(
                f"{folder}: {type(self._model).__name__} has no router that can be read; inspect another model"
            )
        self._mapping = get_model_conversion_mapping(self._model)
        self._stored = self._weights_of_layers()

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return self.config.get_text_config().vocab_size

    @property
    def longest(self) -> int | None:
        """Largest number of positions of the model; None if unknown."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    def route(self, tokens: np.ndarray) -> list[RoutedLayer]:
        """Return the choices of every router for windows of tokens [b, S], T = b S.

        Raises:
            InputError: weights are missing or have other shapes, or the model does not run on text alone.
        """
        self._answers = {name: [] for name in self._routers}
        hooks = [module.register_forward_hook(self._keeping(name)) for name, module in self._routers.items()]
        try:
            self._run(torch.from_numpy(tokens.astype(np.int64)))
        finally:
            for hook in hooks:
                hook.remove()
        routed = [_routed_layer(name, parts) for name, parts in self._answers.items() if parts]
        self._check(routed, tokens.size)
        return sorted(routed, key=lambda layer: layer.block)

    def _check(self, routed: list[RoutedLayer], tokens: int) -> None:
        """Raise `InputError` if layers cannot be compared."""
        sizes = {(*layer.logits.shape, len(layer.expert)) for layer in routed}
        if len({layer.block for layer in routed}) < len(routed) or sizes != {
            (tokens, routed[0].logits.shape[1], tokens)
        }:
            raise InputError(
                f"{self.folder}: the routers of {type(self._model).__name__} differ in their experts or tokens; inspect"
                " a model with one router in each routed layer"
            )
        if any(np.isnan(values).any() for layer in routed for values in (layer.logits, layer.gate)):
            raise InputError(
                f"{self.folder}: its routers return values that are not numbers; inspect another checkpoint"
            )

    def _keeping(self, name: str):
        def keep(module, _, answer):
            try:
                parts = read_router(type(module).__name__, answer)
            except LookupError as error:
                raise InputError(f"{self.folder}: {error}; inspect another model") from error
            flat = (None if part is None else part.reshape(-1, part.shape[-1]) for part in parts)
            self._answers[name].append([None if part is None else _as_numpy(part) for part in flat])

        return keep

    def _run(self, tokens: torch.Tensor) -> None:
        last = [layer for layer in self._layers if any(name.startswith(f"{layer}.") for name in self._routers)][-1]
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_quiet())
                stack.enter_context(torch.inference_mode())
                self._load("")
                for name, layer in self._layers.items():
                    stack.enter_context(self._streamed(name, layer, len(tokens), name == last))
                self._model(input_ids=tokens, use_cache=False)
        except _LastRouterDone:
            pass
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.folder}: {type(self._model).__name__} does not run on text alone"
                f" ({type(error).__name__}: {in_line(str(error))[:200]}); inspect another model"
            ) from error

    @contextlib.contextmanager
    def _streamed(self, name: str, layer: nn.Module, windows: int, last: bool) -> Iterator[None]:
        forward = layer.forward

        def window(values, i: int):
            """Return the arguments of window i: a tensor with one row per window is replaced by its row i."""
            own = lambda value: isinstance(value, torch.Tensor) and value.ndim > 1 and len(value) == windows  # noqa: E731
            return tree_map(lambda value: value[i : i + 1] if own(value) else value, values)

        def run(*arguments, **options):
            self._load(name)
            outputs = [forward(*window(arguments, i), **window(options, i)) for i in range(windows)]
            _free(layer)
            if last:
                raise _LastRouterDone
            return _joined(outputs)

        layer.forward = run
        try:
            yield
        finally:
            del layer.forward

    def _weights_of_layers(self) -> dict[str, dict[str, Path]]:
        """Return {layer: {stored name: file}}. The layer "" has all other weights."""
        renamings = [rule for rule in self._mapping if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in self._mapping if isinstance(rule, WeightConverter)]
        known, prefix = self._model.state_dict(), self._model.base_model_prefix
        stored: dict[str, dict[str, Path]] = {}
        for path in weight_files(self.folder):
            with _opened(path) as file:
                names = list(file.keys())
            for name in names:
                rules = ((renamings, converters), ([], []))  # known names need no rule
                targets = (rename_source_key(name, *of, prefix, known)[0] for of in rules)
                target = next((target for target in targets if target in known), None)
                if target is not None:
                    stored.setdefault(self._layer_of(target), {})[name] = path
        return stored

    def _layer_of(self, weight: str) -> str:
        parts = weight.split(".")
        heads = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
        return next((head for head in heads if head in self._layers), "")

    def _load(self, name: str) -> None:
        places = self._stored.get(name, {})
        with contextlib.ExitStack() as stack:
            files = {path: stack.enter_context(_opened(path)) for path in set(places.values())}
            weights = {key: files[path].get_slice(key) for key, path in places.items()}
            options = LoadStateDictConfig(weight_mapping=self._mapping, dtype=torch.float32)
            info, _ = convert_and_load_state_dict_in_model(self._model, weights, options)
        wrong = [key for key in info.missing_keys if self._layer_of(key) == name]
        wrong += [key for key, _, _ in info.mismatched_keys]
        if wrong or info.conversion_errors:
            raise InputError(
                f"{self.folder}: the weights do not fit config.json: {in_short(sorted(wrong))} missing or of another"
                " shape; save the model again with save_pretrained"
            )


def _configuration(folder: Path):
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder}: has no config.json; name a folder that save_pretrained of transformers wrote")
    try:
        with _quiet():
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # invalid JSON, a wrong type, or a model that this version lacks
        raise InputError(
            f"{path}: transformers {transformers.__version__} does not know this model, and code in the folder is not "
            f"run ({in_line(str(error))[:200]}); update transformers, or inspect another model"
        ) from error
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"{path}: the weights are quantised; inspect a copy in bfloat16 or float32")
    if config.is_encoder_decoder:
        raise InputError(f"{path}: the model has an encoder and a decoder; inspect a decoder-only model")
    return config


def _without_memory(folder: Path, config) -> nn.Module:
    """Return the model without weights. Buffers have values if no file stores them."""
    try:
        with _quiet(), torch.device("meta"):
            model = transformers.AutoModel.from_config(
                config, trust_remote_code=False, dtype=torch.float32, experts_implementation="eager"
            )
    except Exception as error:
        raise InputError(f"{folder}: transformers cannot build it ({in_line(str(error))[:200]})") from error
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            if module._buffers[name] is not None:
                module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
    model.initialize_weights()
    _free(model)
    return model.eval()


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules to load one at a time: each layer of the top-level lists, and every other module."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield from ((f"{prefix}{name}.{i}", layer) for i, layer in enumerate(child))
        elif any(isinstance(below, nn.ModuleList) for below in child.modules()):
            yield from _layers(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


@contextlib.contextmanager
def _opened(path: Path):
    try:
        file = safe_open(path, framework="pt")
    except Exception as error:  # the Rust reader raises its own types
        raise InputError(
            f"{path}: is not a complete safetensors file ({in_line(str(error))[:100]}); copy it again"
        ) from error
    with file as opened:
        yield opened


def _free(layer: nn.Module) -> None:
    """Replace weights by CPU arrays of the same shape that use no memory. Some models check the device."""
    for module in layer.modules():
        for name, value in module._parameters.items():
            if value is not None:
                hollow = torch.zeros((), dtype=value.dtype).expand(value.shape)
                module._parameters[name] = nn.Parameter(hollow, requires_grad=False)


def _joined(outputs: list):
    if isinstance(outputs[0], torch.Tensor):
        return torch.cat(outputs)
    if isinstance(outputs[0], tuple):
        return tuple(_joined(list(parts)) for parts in zip(*outputs, strict=True))
    return outputs[0]


def _routed_layer(name: str, windows: list) -> RoutedLayer:
    logits, gate, expert = (None if part[0] is None else np.concatenate(part) for part in zip(*windows, strict=True))
    number = next(int(part) for part in name.split(".") if part.isdigit()) + 1
    if expert is None:
        return RoutedLayer(number, logits, *reversed(at_most(gate != 0, gate)))
    order = np.argsort(-gate, axis=1, kind="stable")
    return RoutedLayer(number, logits, *(np.take_along_axis(part, order, axis=1) for part in (gate, expert)))


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int32).numpy().copy()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
