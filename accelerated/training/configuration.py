"""The configuration of one training run: model and training. Its fields are the flags of `routelaws train`.

Two runs with the same configuration, on the same machine with the same number of threads, have the same losses bit for
bit. Files (config.json, sweep.json, TOML) hold the fields of the model and of the run in one mapping.
"""

import dataclasses
import difflib
import json
import math
import tomllib
from pathlib import Path

from routelaws.reference.accounting import Accounting
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.recipes import RECIPES, Setting
from routelaws.reference.schedules import SCHEDULES, SHAPES, decay_start

from ..errors import InputError
from ..files import exists, read_bytes
from ..json_files import shown
from ..wording import LONGEST_NAME
from .devices.mesh import check_mesh

CHANGEABLE = ("mesh", "rematerialise", "attention", "keep_last", "keep_every", "skip_bad_batches")
"""Fields that may change when a run resumes, because existing rows do not depend on them."""

PLACES = ("corpus", "eval", "hash_embeddings", "init_from")
"""Fields that are paths. Another path with the same content gives the same run."""

EVALUATION_SETS = ("c4", "curation_corpus", "lambada", "pile", "wikitext103")
"""Names that `--eval NAME=PATH` may use, each with a column loss_NAME in the results table."""

DTYPES = ("float32", "bfloat16")
"""The types of matrix products. Parameters, norms, routing and the loss are always float32."""

ATTENTION = ("auto", "own", "tokamax")
"""Implementations of attention (see `attention_kernels`)."""


LARGEST = 2**31 - 1
"""The largest whole number in any field except seed, because compiled programs use 32 bits for steps and shapes."""

MOST_PARAMETERS = 2**53
"""The largest allowed number of parameters. The largest existing models have a thousandth of it or less."""

LARGEST_SEED = 2**32 - 1
"""The largest seed. JAX uses only the last 32 bits of a seed, so a larger seed would repeat a smaller seed."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    model: ModelConfig = ModelConfig(vocab_size=1024, d_model=64, blocks=2, heads=2)
    """The model."""
    hash_embeddings: str | None = None
    """Token embeddings for the clustered and dispersed hash: a .npy file [V, d], or a run with the same tokens."""
    sequence_length: int = 128
    """S, tokens per sequence."""
    batch_size: int = 16
    """b, sequences per step. On one device, a router balances over the tokens of all b sequences together."""
    steps: int = 1000
    """Training steps."""
    learning_rate: float | None = None
    """Peak learning rate. If not given: the rate of a recipe. In Python and in files: 0.011 (N / 60,000)^-0.37, for N dense parameters."""  # noqa: E501
    router_rate: float = 0.2
    """Learning rate of router weights, as a multiple of the rate of other weights. dense and hash have no router weights."""  # noqa: E501
    schedule: str = "cosine"
    """Learning rate after the warm-up. cosine: falls to a tenth of the peak. wsd: stays at the peak, then decays to 0. constant: stays at the peak. With wsd and constant, a resumed run may have more --steps as long as the decay has not started."""  # noqa: E501
    warmup: float = 0.05
    """With schedule cosine: share of the steps in which the learning rate rises from 0."""
    warmup_steps: int = 50
    """With schedule wsd or constant: steps in which the learning rate rises from 0."""
    decay: float = 0.2
    """With schedule wsd: share of the steps, at the end, in which the learning rate decays."""
    decay_shape: str = "linear"
    """With schedule wsd: shape of the decay, where x goes from 0 to 1: linear (1 - x) or sqrt (1 - sqrt(x))."""
    weight_decay: float = 0.1
    """Weight decay of AdamW, applied to matrices only."""
    gradient_clip: float = 1.0
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""
    seed: int = 42
    """Seed of all random choices: initial weights, order of the training text, random routers, hidden tokens."""  # noqa: E501
    dtype: str = "float32"
    """Type of the matrix products: float32 or bfloat16."""
    rematerialise: bool = False
    """Store only the input of each block and recompute the block in the backward pass: less memory, more time."""
    attention: str = "auto"
    """Code for attention. auto: cuDNN on an NVIDIA GPU in bfloat16, else own. own: code of routelaws. tokamax: kernels of the library Tokamax."""  # noqa: E501
    evaluations: int = 5
    """Number of evaluations, evenly spaced; the last one is after the last step."""
    evaluation_tokens: int = 131_072
    """Validation tokens per evaluation, in evenly spaced windows of the validation text. A shorter text is used whole."""  # noqa: E501
    steps_per_call: int = 8
    """Steps in one compiled call."""
    checkpoint_every: int | None = None
    """Steps between checkpoints. If not given: one checkpoint at each evaluation."""
    keep_last: int = 2
    """Number of newest checkpoints to keep; older ones are removed."""
    keep_every: int | None = None
    """Also keep each checkpoint whose step is a multiple of this number."""
    skip_bad_batches: int = 0
    """Number of bad batches that the run may skip; the next bad batch stops the run. A batch is bad if its loss or gradient is not finite, or its loss exploded (see --loss-limit)."""  # noqa: E501
    loss_limit: float = 10.0
    """A training loss above this many times ln V has exploded. ln V is the loss if all tokens are equally likely."""
    corpus: tuple[str, ...] = ()
    """Files, folders and globs of text (.txt, .gz, .jsonl, ...). If not given: the source of the Python standard library."""  # noqa: E501
    eval: tuple[str, ...] = ()
    """More evaluation texts; c4=PATH fills the column loss_c4."""
    init_from: str | None = None
    """Folder of a run. Its last checkpoint gives the initial weights. If that run is dense and this model is routed, each expert starts as a copy of its block's FFN (of a part of it with --granularity)."""  # noqa: E501
    init_noise: float = 0.0
    """With a dense --init-from: size of the noise added to the experts, as a multiple of new initial weights."""
    init_redraw: float = 0.0
    """With a dense --init-from: share of the hidden units of each expert that get new random weights."""
    init_optimizer: bool = False
    """Also copy the optimizer state of --init-from."""
    mesh: str | None = None
    """Train on all devices, arranged in this mesh: data=2,expert=4,model=1. The size of an omitted axis is 1."""
    balancing_group: str = "shard"
    """On a mesh: tokens that a router balances together. shard: the tokens of one device. global: the whole batch."""  # noqa: E501

    def fields(self) -> dict:
        """Return the given fields of the model and the fields of the run in one mapping; see `from_mapping`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return self.model.given() | {name: value for name, value in fields.items() if name != "model"}

    def accounting(self) -> Accounting:
        """Return N, P, F and B of the model at this run's sequence length."""
        return self.model.accounting(self.sequence_length)

    def cost(self) -> float:
        """Return the FLOPs of the run, an estimate of its time."""
        overhead = 2e5  # per token: the cost of a tiny model, where FLOPs do not matter
        per_token = 3 * self.accounting().flops_per_token + overhead
        return per_token * self.steps * self.batch_size * self.sequence_length

    def peak_learning_rate(self) -> float:
        """Return the learning rate of the configuration or, if there is none, of the recipe `ours`."""
        return RECIPES["ours"].rate(self.setting()) if self.learning_rate is None else self.learning_rate

    def setting(self) -> Setting:
        """Return what a recipe of the learning rate needs to know of this run."""
        counts, model = self.accounting(), self.model
        tokens = self.steps * self.batch_size * self.sequence_length
        experts = 1 if model.router == "dense" else model.experts
        embeddings = 2 * model.vocab_size * model.d_model
        return Setting(counts.total_parameters, counts.dense_parameters, tokens, experts, model.d_model, embeddings)

    def stable_steps(self) -> int:
        """Return the step at which the learning rate begins to fall after the warm-up."""
        if self.schedule == "constant":
            return self.steps
        return decay_start(self.steps, self.decay) if self.schedule == "wsd" else 0

    def name(self) -> str:
        """Return a short name, unique within most sweeps."""
        model = self.model
        parts = [model.router.replace(":", "").replace(",", "-")]
        parts += [model.hash] if model.hash != "modulo" else []
        if model.router != "dense":
            parts.append(f"E{model.experts}")
        for letter, value, usual in (
            ("k", model.k, 1),
            ("G", model.granularity, 1),
            ("X", model.flop_increase, 1),
            ("R", model.routing_frequency, 0.5),
        ):
            if value != usual:
                parts.append(f"{letter}{value:.3g}")
        for option in ("grouping", "objective", "activation", "positions", "norm", "layout", "emit"):
            value = getattr(model, option)
            parts += [value] if value != getattr(ModelConfig, option) else []
        parts += ["normed"] if model.output_norm else []
        parts += ["learned"] if model.learned_temperature else []
        parts += [f"shared{model.shared_experts}"] if model.shared_experts else []
        parts += [f"zero{model.zero_experts}"] if model.zero_experts else []
        parts += [f"latent{model.latent_width}"] if model.latent_width else []
        parts += [f"groups{model.groups_per_token}of{model.expert_groups}"] if model.expert_groups > 1 else []
        return "-".join([*parts, f"d{model.d_model}", f"L{model.blocks}", f"s{self.seed}"])

    def check(self) -> None:
        """Raise `InputError` if a field or a combination of fields is invalid."""
        model = self.model
        check_sizes(self.fields())
        self.check_parameters()
        if model.router != "dense" and model.experts == 1:
            raise InputError(f"experts is 1; router {model.router!r} needs at least 2, such as experts 8")
        self._check_groups()
        by_sequence = model.router == "expert_choice" and model.grouping == "sequence"
        if by_sequence and model.k * self.sequence_length % model.experts:
            raise InputError(
                f"k {model.k} times sequence_length {self.sequence_length} divided by experts {model.experts} is the "
                "number of tokens per expert; it has to be whole"
            )
        if "router_scale" not in model.record.options and self.router_rate != TrainConfig.router_rate:
            raise InputError(f"router_rate is {self.router_rate}; {model.router} has no router weights; leave it out")
        wants_embeddings = model.has_table and model.hash in ("clustered", "dispersed")
        if wants_embeddings and self.hash_embeddings is None:
            raise InputError(f"hash is {model.hash!r}, but hash_embeddings is missing; add it")
        if self.hash_embeddings is not None and not wants_embeddings:
            raise InputError(
                "hash_embeddings is only for router 'hash' with hash 'clustered' or 'dispersed'; leave it out"
            )
        self._check_counts()
        self._check_rates()
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype!r}; allowed: {', '.join(DTYPES)}")
        if self.attention not in ATTENTION:
            raise InputError(f"attention is {self.attention!r}; allowed: {', '.join(ATTENTION)}")
        if self.attention == "tokamax" and self.mesh is not None:
            raise InputError(f"attention is 'tokamax', which runs on one device; leave out mesh {self.mesh}")
        check_mesh(model, self.mesh, self.balancing_group, self.batch_size)
        self.evaluation_sets()

    def check_parameters(self) -> None:
        parameters = self.accounting().total_parameters
        if parameters > MOST_PARAMETERS:
            raise InputError(f"the model has {parameters:.3g} parameters; allowed: at most {MOST_PARAMETERS:.3g}")

    def _check_counts(self) -> None:
        counts = ("sequence_length", "batch_size", "steps", "evaluations", "evaluation_tokens", "steps_per_call")
        limits = [name for name in ("checkpoint_every", "keep_every") if getattr(self, name) is not None]
        for name in (*counts, "keep_last", *limits):
            _check_whole(name, getattr(self, name), 1)
        for name in ("seed", "skip_bad_batches"):
            _check_whole(name, getattr(self, name), 0)
        if self.batch_size * self.sequence_length > LARGEST:
            tokens = f"batch_size {self.batch_size} times sequence_length {self.sequence_length}"
            raise InputError(f"{tokens} is {self.batch_size * self.sequence_length}; it has to be at most {LARGEST}")

    def _check_rates(self) -> None:
        if not 1 < self.loss_limit:
            raise InputError(f"loss_limit is {self.loss_limit}; it has to be above 1")
        for name in ("learning_rate", "router_rate", "gradient_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}; it has to be above 0 and finite")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay is {self.weight_decay}; it has to be at least 0 and finite")
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it has to be between 0 and 1")
        self._check_schedule()
        self._check_init()

    def _check_init(self) -> None:
        if not 0 <= self.init_noise < math.inf:
            raise InputError(f"init_noise is {self.init_noise}; it has to be at least 0 and finite")
        if not 0 <= self.init_redraw <= 1:
            raise InputError(f"init_redraw is {self.init_redraw}; it has to be between 0 and 1")
        for name in ("init_noise", "init_redraw", "init_optimizer"):
            if getattr(self, name) and self.init_from is None:
                raise InputError(f"{name} is {getattr(self, name)}, but init_from is missing; add it")

    def _check_schedule(self) -> None:
        for name, allowed in (("schedule", SCHEDULES), ("decay_shape", SHAPES)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        meant = {"cosine": ("warmup",), "wsd": ("warmup_steps", "decay", "decay_shape"), "constant": ("warmup_steps",)}
        for name in ("warmup", "warmup_steps", "decay", "decay_shape"):
            if name not in meant[self.schedule] and getattr(self, name) != getattr(TrainConfig, name):
                value = getattr(self, name)
                raise InputError(f"{name} is {value}; the schedule {self.schedule} does not use it; leave it out")
        _check_whole("warmup_steps", self.warmup_steps, 0)
        if self.schedule == "wsd" and self.warmup_steps > self.stable_steps():
            raise InputError(
                f"warmup_steps is {self.warmup_steps}, but wsd decays from step {self.stable_steps()} on; use "
                "fewer warm-up steps"
            )

    def _check_groups(self) -> None:
        model = self.model
        if not model.record.grouped:
            return
        if model.groups_by_position(training=False) and self.batch_size % model.group_size:
            raise InputError(
                f"batch_size is {self.batch_size}; {model.router} groups {model.group_size} sequences; use a "
                f"multiple of {model.group_size}, or set group_size"
            )
        neighbours = model.router == "mixture_of_tokens" and model.grouping == "sequence"
        if neighbours and self.sequence_length % model.group_size:
            raise InputError(
                f"sequence_length is {self.sequence_length}; {model.router} groups {model.group_size} neighbours; use "
                f"a multiple of {model.group_size}, or set group_size"
            )

    def evaluation_batches(self) -> int:
        """Return the number of batches of an evaluation."""
        return max(1, self.evaluation_tokens // (self.batch_size * self.sequence_length))

    def evaluation_sets(self) -> dict[str, str]:
        """Return {name: path} of the texts in `eval`.

        Raises:
            InputError: an entry of `eval` does not have the form NAME=PATH, or its name is unknown.
        """
        sets = {}
        for item in self.eval:
            name, equals, path = item.partition("=")
            if not equals or not path or name not in EVALUATION_SETS:
                raise InputError(f"eval {item!r}: NAME=PATH is needed, with NAME one of {', '.join(EVALUATION_SETS)}")
            sets[name] = path
        return sets

    def changeable(self, before: "TrainConfig") -> tuple[str, ...]:
        """Return the fields that may change when a run resumes. `steps` may grow, except with the schedule cosine."""
        grows = self.schedule != "cosine" and self.steps > before.steps
        return (*CHANGEABLE, "steps") if grows else CHANGEABLE

    def difference(self, other: "TrainConfig", besides: tuple[str, ...] = CHANGEABLE) -> tuple | None:
        """Return (name, own value, other value) of the first field that differs and is not in `besides`, or None."""
        theirs = other.fields()
        pairs = ((name, value, theirs[name]) for name, value in self.fields().items() if name not in besides)
        return next((pair for pair in pairs if pair[1] != pair[2]), None)

    def plain(self) -> dict:
        """Return the fields as JSON values, infinity as "inf". `from_mapping` reads them back."""
        return {name: "inf" if value == math.inf else value for name, value in self.fields().items()}

    def to_json(self) -> str:
        return json.dumps(self.plain(), indent=2) + "\n"


MODEL_FIELDS = {field.name: field.type for field in dataclasses.fields(ModelConfig)}
"""Names and types of the fields of a model."""

RUN_FIELDS = {field.name: field.type for field in dataclasses.fields(TrainConfig) if field.name != "model"}
"""Names and types of the other fields of a run."""


def check_sizes(values: dict) -> None:
    """Raise `InputError` if a whole number is too large."""
    for name, value in values.items():
        largest = LARGEST_SEED if name == "seed" else LARGEST
        if isinstance(value, int) and value > largest:
            raise InputError(f"{name} is {shown(value)}; it has to be at most {largest}")


def _check_whole(name: str, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}; it has to be a whole number of at least {least}")


def from_mapping(values: dict, where: str = "configuration") -> TrainConfig:
    """Return the configuration with these fields. Other fields have their default values.

    Args:
        values: {field: value} for fields of the model or of the run, as read from TOML or JSON.
        where: the source of the values, such as a file, for error messages.

    Raises:
        InputError: `values` is not a mapping, a field is unknown, a value has the wrong kind, or the model is
            impossible.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where}: its content is {shown(values)}; an object with the fields of a run is needed")
    values = TrainConfig().fields() | read_fields(values, where)
    try:
        config = TrainConfig(ModelConfig(**{name: values.pop(name) for name in MODEL_FIELDS}), **values)
        config.check_parameters()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return config


def read_fields(values: dict, where: str) -> dict:
    """Return the fields of a model and of a run, converted to their types; see `from_mapping`."""
    kinds = RUN_FIELDS | MODEL_FIELDS
    if "model_type" in values:
        taken = "use routelaws inspect --transformers, or convert-weights --to run"
        raise InputError(f"{where}: holds a model of transformers; {taken}")
    for name in values:
        if name not in kinds:
            near = difflib.get_close_matches(name[:LONGEST_NAME], kinds)
            hint = f"did you mean {' or '.join(near)}?" if near else "the fields are the flags of routelaws train"
            raise InputError(f"{where}: unknown field {shown(name)}; {hint}")
    fields = {name: _convert(name, value, kinds[name], where) for name, value in values.items()}
    try:
        check_sizes(fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return fields


def _convert(name: str, value, kind: type, where: str):
    kind = kind.__name__ if isinstance(kind, type) else str(kind)
    if value is None and "None" in kind:
        return None
    if "tuple" in kind and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if "float" in kind and value == "inf":
        return math.inf
    if "float" in kind and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise InputError(f"{where}: {name} is {shown(value)}; it has to be below 2^63")
        return float(value)
    wanted = bool if kind == "bool" else int if "int" in kind else str
    if "float" not in kind and "tuple" not in kind and type(value) is wanted:
        return value
    words = next(words for type_name, words in NEEDED.items() if type_name in kind)
    raise InputError(f"{where}: {name} is {shown(value)}; {words} is needed")


NEEDED = {
    "bool": "true or false", "tuple": "a list of texts in quotes", "str": "a text in quotes", "float": "a number",
    "int": "a whole number",
}  # fmt: skip
"""What a field of each type needs, for messages."""


def designs() -> dict[str, Path]:
    """Return {name: file} of the designs. A file has the fields of a small model of a public design."""
    return {path.stem: path for path in (Path(__file__).parent / "designs").glob("*.toml")}


def read_config_file(design_or_file: str) -> dict:
    """Return the fields of a TOML file or, if there is no file of this name, of a design in `designs`.

    Raises:
        InputError: there is no such design or file, the file is not TOML, or a field is unknown.
    """
    path, known = Path(design_or_file), designs()
    if not path.suffix and not exists(path):
        if design_or_file not in known:
            names = ", ".join(sorted(known))
            raise InputError(f"config {design_or_file}: no such file, and no such design; the designs are {names}")
        path = known[design_or_file]
    return read_fields(read_toml(path), design_or_file)


def read_toml(path: Path) -> dict:
    """Return the content of a TOML file.

    Raises:
        InputError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(read_bytes(path).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a TOML file: {error}") from error
    except RecursionError:
        raise InputError(f"{path}: not a TOML file: it is nested too deeply") from None
