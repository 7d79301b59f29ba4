"""What one training run is: a frozen dataclass whose fields are the flags of `routelaws train`.

A run is fixed by its configuration, the machine and its thread count: the same three give the same losses bit for bit.
"""

import dataclasses
import json
import math
import tomllib
from pathlib import Path
from typing import Annotated

import tyro

from ..accounting import Accounting
from ..configuration import GROUPED, ModelConfig
from ..errors import InputError

EVALUATION_SETS = ("c4", "curation_corpus", "lambada", "pile", "wikitext103")
"""Names that `--eval NAME=PATH` may use, each with a column loss_NAME in the results table."""

DTYPES = ("float32", "bfloat16")
"""What matrix products may be computed in; parameters, norms, routing and the loss are float32 always."""


def learning_rate_rule(dense_parameters: int, num_experts: int) -> float:
    """Return the peak learning rate for a model of N dense parameters and E experts: 0.011 (N / 60,000)^-0.37.

    Our choice, tuned at two sizes (N of 6.8 and 42 thousand, 1.6 million tokens of Python source, batches of 1,024
    tokens), dense and with 16 experts by HASH and by S-BASE: in each of the six cases the loss at this rate was below
    that at half of it and at twice, in two of them (dense and HASH at the larger size) by no more than the error over
    documents. So the rule does not depend on E. Far above these sizes it is a guess; it gives 3e-4 at 1.3 billion. The
    preset `rates` repeats the tuning.
    """
    del num_experts
    return 0.011 * (dense_parameters / 60_000) ** -0.37


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    router: str = "dense"
    """dense, hash, sinkhorn (S-BASE), base, quantile, top_k, reinforce (RL-R), expert_choice or mixture_of_tokens."""
    experts: int = 1
    """E, the number of experts, each as large as a dense FFN; 1 for a dense model."""
    k: int = 1
    """Experts per token; for expert_choice their mean number."""
    routing_frequency: float = 0.5
    """R, the share of blocks that are routed; R times the number of blocks has to be whole."""
    granularity: int = 1
    """G, into how many narrower ones each expert is cut: E G experts, k G of them for each token."""
    flop_increase: int = 1
    """How many times wider the FFN of a dense model is in R of its blocks."""
    d_model: int = 64
    """Width of the model."""
    blocks: int = 2
    """L, the number of blocks."""
    heads: int = 2
    """H, the number of attention heads."""
    kqv_size: int | None = None
    """Width of one head; d_model / heads if not given."""
    vocab_size: int = 1024
    """Pieces of the SentencePiece tokenizer that is trained on the corpus."""
    capacity_factor: float | None = None
    """Slots of an expert in training in units of its fair share; inf drops nothing. Default: 1 for base, 2 for sinkhorn, quantile, top_k and reinforce, inf for the others."""  # noqa: E501
    drop_order: str = "choice"
    """Who keeps a slot where there are too few: first choices before second ones (choice), earlier tokens first whatever the choice (token), or the largest gate (priority; not for hash and reinforce)."""  # noqa: E501
    gate: str | None = None
    """softmax or sigmoid. Default: sigmoid for base and quantile, softmax for the others; hash, reinforce and mixture_of_tokens have none."""  # noqa: E501
    normalisation: str | None = None
    """Of the gates of top_k: none, sum or softmax (over the chosen). Default: none for one expert per token, else sum."""  # noqa: E501
    sample_second: bool = False
    """Of top_k with two experts per token, as GShard: keep the second with probability min(1, 2 gate)."""
    balance_weight: float | None = None
    """Of the balance loss of top_k and reinforce, 1 where all experts have the same load. Default: 0.01, or 0 with a bias."""  # noqa: E501
    z_weight: float = 0.0
    """Of the z-loss of top_k."""
    bias_rate: float = 0.0
    """Of top_k: how far each step moves the bias of an expert against its load; 0 for no bias."""
    policy_weight: float = 0.01
    """Of the policy gradient of reinforce."""
    baseline_weight: float = 0.01
    """Of the squared error of reinforce's baseline."""
    entropy_weight: float = 0.0
    """Of the entropy bonus of reinforce."""
    nucleus: float = 1.0
    """Reinforce draws from the most probable experts that together have this probability."""
    reward_to_go: bool = False
    """Reinforce rewards a choice by the log-probabilities of all tokens from its own on; then a policy_weight about 1/S and a baseline_weight about 1/S^2 as large keep the size of the terms."""  # noqa: E501
    hash: str = "modulo"
    """Of hash: modulo, random, balanced, clustered, dispersed, multi, previous, position or bigram."""
    hash_embeddings: str | None = None
    """Token embeddings for the hashes clustered and dispersed: a .npy file [V, d], or a run with the same tokens."""
    grouping: str = "position"
    """How expert_choice and mixture_of_tokens group tokens: by position across sequences, or by sequence (not causal: expert_choice in training alone, mixture_of_tokens for the masked objective)."""  # noqa: E501
    group_size: int | None = None
    """Tokens in a group of expert_choice by position and of mixture_of_tokens; divides the batch size, or the sequence length where neighbours are grouped. Default: E."""  # noqa: E501
    temperature: float = 1.0
    """Of the mixing weights of mixture_of_tokens."""
    objective: str = "causal"
    """What is predicted: the next token (causal), or hidden tokens from all the others (masked; not for reinforce)."""
    mask_rate: float = 0.15
    """Of the masked objective: the share of each sequence that is hidden; a fixed number of tokens, drawn at random."""
    sequence_length: int = 128
    """S, tokens per sequence."""
    batch_size: int = 16
    """b, sequences per step; all their tokens are the group over which a router balances."""
    steps: int = 1000
    """Training steps."""
    learning_rate: float | None = None
    """Peak learning rate; by a rule of size and expert count if not given."""
    router_rate: float = 0.2
    """Learning rate of router weights, in units of that of the other weights; dense and hash have none."""
    warmup: float = 0.05
    """Share of the steps over which the rate rises from 0; then it falls along a cosine to a tenth of the peak."""
    weight_decay: float = 0.1
    """Of AdamW, on matrices only."""
    gradient_clip: float = 1.0
    """Largest global norm of the gradient."""
    seed: int = 42
    """Of the initial weights and the order of the training text."""
    dtype: str = "float32"
    """Of the matrix products: float32 or bfloat16."""
    evaluations: int = 5
    """How often to evaluate, evenly spaced; the last time is at the end."""
    evaluation_tokens: int = 131_072
    """Validation tokens per evaluation, in windows at equal steps through the validation text (all of it if it has fewer)."""  # noqa: E501
    steps_per_call: int = 8
    """Steps that run in one compiled call."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; at every evaluation if not given."""
    corpus: tuple[str, ...] = ()
    """Files, folders and globs of text (.txt, .gz, .jsonl, ...); the Python standard library's source if not given."""
    eval: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=PATH ...")] = ()
    """More evaluation texts: c4=PATH fills the column loss_c4, and so on."""
    init_from: str | None = None
    """Folder of a run whose last checkpoint gives the initial weights."""

    def model(self) -> ModelConfig:
        """Return the model of this run.

        Raises:
            InputError: the configuration means no model.
        """
        names = {"blocks": "num_blocks", "heads": "num_heads", "experts": "num_experts"}
        fields = {field.name for field in dataclasses.fields(ModelConfig)}
        values = {names.get(name, name): value for name, value in vars(self).items()}
        return ModelConfig(**{name: value for name, value in values.items() if name in fields})

    def accounting(self) -> Accounting:
        """Return N, P, F and B of the model at this run's sequence length."""
        return self.model().accounting(self.sequence_length)

    def peak_learning_rate(self) -> float:
        """Return the learning rate that was given, or that of the rule."""
        if self.learning_rate is not None:
            return self.learning_rate
        return learning_rate_rule(self.accounting().dense_parameters, self.experts)

    def name(self) -> str:
        """Return a short name, unique within most sweeps."""
        parts = [self.router if self.router != "hash" or self.hash == "modulo" else f"hash-{self.hash}"]
        if self.router != "dense":
            parts.append(f"E{self.experts}")
        for letter, value, usual in (
            ("k", self.k, 1),
            ("G", self.granularity, 1),
            ("X", self.flop_increase, 1),
            ("R", self.routing_frequency, 0.5),
        ):
            if value != usual:
                parts.append(f"{letter}{value:.3g}")
        parts += [value for value, usual in ((self.grouping, "position"), (self.objective, "causal")) if value != usual]
        return "-".join([*parts, f"d{self.d_model}", f"L{self.blocks}", f"s{self.seed}"])

    def check(self) -> None:
        """Raise `InputError` where a field, or a combination of fields, cannot be used."""
        model = self.model()
        if self.router != "dense" and self.experts == 1:
            raise InputError(f"experts is 1; --router {self.router} needs at least 2, such as --experts 8")
        self._check_groups(model)
        by_sequence = model.router == "expert_choice" and model.grouping == "sequence"
        if by_sequence and model.k * self.sequence_length % self.experts:
            raise InputError(
                f"k {model.k} times sequence_length {self.sequence_length} over experts {self.experts} is the number "
                "of tokens of an expert; it has to be whole"
            )
        if self.router in ("dense", "hash") and self.router_rate != TrainConfig.router_rate:
            raise InputError(f"router_rate is {self.router_rate}; {self.router} has no router weights")
        wants_embeddings = self.router == "hash" and self.hash in ("clustered", "dispersed")
        if wants_embeddings != (self.hash_embeddings is not None):
            raise InputError(
                "hash_embeddings are needed by --router hash with --hash clustered or dispersed, and by nothing else"
            )
        for name in ("sequence_length", "batch_size", "steps", "evaluations", "evaluation_tokens", "steps_per_call"):
            _check_whole(name, getattr(self, name), 1)
        _check_whole("seed", self.seed, 0)
        if self.checkpoint_every is not None:
            _check_whole("checkpoint_every", self.checkpoint_every, 1)
        for name in ("learning_rate", "router_rate", "gradient_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}; it has to be above 0 and finite")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay is {self.weight_decay}; it has to be at least 0 and finite")
        if not 0 <= self.warmup <= 1:
            raise InputError(f"warmup is {self.warmup}; it has to be between 0 and 1")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype!r}; allowed: {', '.join(DTYPES)}")
        self.evaluation_sets()

    def _check_groups(self, model: ModelConfig) -> None:
        """Raise `InputError` where the groups of the router do not make up a batch, in training or in evaluation."""
        if model.router not in GROUPED:
            return
        if model.groups_by_position(training=False) and self.batch_size % model.group_size:
            raise InputError(
                f"batch_size is {self.batch_size}; {self.router} groups {model.group_size} sequences, so it has to be "
                "a multiple of that, or give group_size"
            )
        neighbours = model.router == "mixture_of_tokens" and model.grouping == "sequence"
        if neighbours and self.sequence_length % model.group_size:
            raise InputError(
                f"sequence_length is {self.sequence_length}; {self.router} groups {model.group_size} neighbours, so it "
                "has to be a multiple of that, or give group_size"
            )

    def evaluation_sets(self) -> dict[str, str]:
        """Return {name: path} of the texts given by `--eval`.

        Raises:
            InputError: not of the form NAME=PATH, or an unknown name.
        """
        sets = {}
        for item in self.eval:
            name, equals, path = item.partition("=")
            if not equals or not path or name not in EVALUATION_SETS:
                raise InputError(f"--eval {item}: NAME=PATH is needed, with NAME one of {', '.join(EVALUATION_SETS)}")
            sets[name] = path
        return sets

    def to_json(self) -> str:
        """Return the configuration as JSON that `from_mapping` reads back, infinity as the text "inf"."""
        values = dataclasses.asdict(self)
        return json.dumps({k: "inf" if v == math.inf else v for k, v in values.items()}, indent=2) + "\n"


def _check_whole(name: str, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}; it has to be a whole number of at least {least}")


def from_mapping(values: dict, where: str) -> TrainConfig:
    """Return the configuration with these fields, the rest at their defaults.

    Args:
        values: field names to values, as read from TOML or JSON.
        where: named in the error message, such as the file the values came from.

    Raises:
        InputError: an unknown field or a value of the wrong kind.
    """
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    clean = {}
    for name, value in values.items():
        if name not in fields:
            raise InputError(f"{where}: unknown field {name!r}; allowed: {', '.join(fields)}")
        clean[name] = _convert(name, value, fields[name], where)
    return TrainConfig(**clean)


def _convert(name: str, value, field: dataclasses.Field, where: str):
    """Return `value` as the type of its field: whole numbers become floats where floats are meant, lists tuples."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    if value is None and "None" in kind:
        return None
    if "tuple" in kind and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if "float" in kind and value == "inf":
        return math.inf
    if "float" in kind and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    wanted = bool if kind == "bool" else int if "int" in kind else str
    if "float" not in kind and "tuple" not in kind and type(value) is wanted:
        return value
    raise InputError(f"{where}: {name} is {value!r}; {kind} is needed")


def read_toml(path: Path) -> dict:
    """Return the content of a TOML file.

    Raises:
        InputError: no such file, or not TOML; the message names the line.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}") from error
