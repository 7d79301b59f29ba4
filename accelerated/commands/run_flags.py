"""The flags of a training run, and their defaults. Several commands take them."""

import dataclasses
from typing import Annotated

from routelaws.reference.accounting import SIZES, TABLE_SEQUENCE_LENGTH, TABLE_TOKENS_PER_STEP, TABLE_VOCAB_SIZE
from routelaws.reference.configuration import ModelConfig

from ..errors import InputError
from ..training.configuration import MODEL_FIELDS, RUN_FIELDS, TrainConfig, check_sizes, read_config_file
from . import flags
from .flags import HIDDEN, fields


@dataclasses.dataclass(frozen=True)
class ModelFlags(ModelConfig):
    """The model."""

    one_hot: Annotated[bool, HIDDEN] = False  # only `routelaws evaluate` changes this
    mask_token: Annotated[int, HIDDEN] = 0  # the tokenizer's unknown piece

    def __post_init__(self):
        """Skip the check of the fields, because the check of the whole run includes it."""


@dataclasses.dataclass(frozen=True)
class RunFlags(TrainConfig):
    """The training of the model."""

    model: Annotated[ModelFlags, fields(ModelFlags)] = ModelFlags()
    eval: tuple[str, ...] = ()
    """More evaluation texts; c4=PATH fills the column loss_c4."""

    def run(self) -> TrainConfig:
        """Return the run of the flags.

        Raises:
            InputError: the run is invalid; the message names the flags.
        """
        try:
            check_sizes(vars(self) | vars(self.model))
            config = TrainConfig(**(vars(self) | {"model": ModelConfig(**vars(self.model))}))
            config.check()
        except InputError as error:
            raise InputError(flags.in_flags(str(error), [*MODEL_FIELDS, *RUN_FIELDS])) from error
        return config


def run_flags(arguments: list[str], before: dict | None = None) -> type[RunFlags]:
    """Return `RunFlags` with other defaults: `before`, then a --config file, override the general ones."""
    file = flags.value_of("--config", arguments)
    values = TrainConfig().fields() | (before or {})
    values |= {} if file is None else read_config_file(file)
    model = _with_defaults(ModelFlags, {name: values.pop(name) for name in MODEL_FIELDS})
    return _with_defaults(RunFlags, values | {"model": model()}, model=Annotated[model, fields(ModelFlags)])


def _with_defaults(kind: type, defaults: dict, **types) -> type:
    """Return a dataclass with other defaults, and other types of some fields."""
    named = [
        (each.name, types.get(each.name, each.type), defaults.get(each.name, each.default))
        for each in dataclasses.fields(kind)
    ]
    own = {"__doc__": kind.__doc__, "__module__": __name__}
    return dataclasses.make_dataclass(kind.__name__, named, bases=(kind,), namespace=own, frozen=True)


def fields_of_size(size: str | None) -> dict:
    """Return the fields of a run of the paper, except for its routing.

    Raises:
        InputError: the paper has no such size.
    """
    if size is None:
        return {}
    if size not in SIZES:
        raise InputError(f"--size {size}: the paper has no such size; allowed: {', '.join(SIZES)}")
    d_model, blocks, heads, kqv_size, _ = SIZES[size]
    shape = {"d_model": d_model, "blocks": blocks, "heads": heads, "kqv_size": kqv_size}
    batch = {"sequence_length": TABLE_SEQUENCE_LENGTH, "batch_size": TABLE_TOKENS_PER_STEP // TABLE_SEQUENCE_LENGTH}
    return shape | batch | {"vocab_size": TABLE_VOCAB_SIZE}
