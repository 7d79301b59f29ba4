"""Check row by row that columns agree: tokens with steps, FLOPs with N, and N and P with the model's shape.

Each `Identity` gives the range of a column from other columns. A remark names rows that are outside the range by more
than the identity's factor, with both numbers and what the column needs. A factor of `THOUSANDFOLD` or more is an error,
because no way of counting explains it.

`count_of` counts N, P and the FLOPs of a step from the shape of a row's model.

All factors are our choice. They are wide for FLOPs, which papers count in several ways: norms, biases, router weights,
attention, the output layer and narrow experts.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import ACTIVATIONS, NORMS, POSITIONS, ROUTER_TYPES, count
from routelaws.reference.experts import ZERO_KINDS

from ..errors import InputError
from .schema import DENSE, Problems, cell_text, column_or_nan, groups_of

THOUSANDFOLD = 900.0
"""A deviation by this factor is an error. A wrong unit gives 1000 or more, and the range may be wrong by 10 %."""

LARGEST_VOCABULARY, LONGEST_CONTEXT = 262_144, 8192
"""The vocabulary and the sequence length for the highest possible cost of a token, if the table does not have them."""

SIZES, TOKENS, RATIOS, BATCHES, FLOPS = (1e4, 1e13), (1e3, 1e15), (1e-2, 1e5), (1, 3e8), (6e7, 6e28)
"""Plausible N; tokens, and tokens per parameter, at the end of a run; tokens per step; and training FLOPs, 6 N tokens.
The largest language models have an N of about 1e12 and about 5e13 tokens."""

COUNTED = "routelaws convert --set counted_embeddings={} states it"
"""How to state what N and P count."""

UNITS = "routelaws convert --unit {} states another unit"


class Identity(NamedTuple):
    """A column, and the range of its values that other columns imply."""

    column: str
    by: str  # source of the range, for messages
    expected: Callable  # `Numbers` -> smallest and largest values [n], NaN if unknown
    factor: float  # tolerated factor outside the range
    advice: str  # what the column counts


class Numbers:
    """The columns of a table as numbers (NaN for blank), and quantities derived from several columns."""

    def __init__(self, frame):
        self.frame = frame
        self.by_shape = functools.cache(self._by_shape)
        self.dense = (frame["router_type"] == DENSE).to_numpy()

    def __call__(self, name: str) -> np.ndarray:
        """Return a column, [n] float64; all NaN if missing."""
        return column_or_nan(self.frame, name)

    def shared(self) -> np.ndarray:
        """Return the number of shared experts of each row; 0 if routing_options does not name any."""
        if "routing_options" not in self.frame:
            return np.zeros(len(self.frame))
        texts = self.frame["routing_options"].fillna("").astype(str)
        return texts.map({text: routing_options_of(text)["shared_experts"] for text in texts.unique()}).to_numpy(float)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest forward FLOPs per token.

        The smallest is 2 N. The largest counts k experts, the shared experts, the output layer and attention. A missing
        width is estimated from N.
        """
        size, width = self("dense_parameter_count"), self("d_model")
        experts = (or_one(self.frame, "k") + self.shared()) * or_one(self.frame, "flop_increase")
        active = np.fmin(size * experts, self("total_parameter_count"))
        width = np.where(np.isnan(width), np.cbrt(20 * size), width)
        vocabulary = np.nan_to_num(self("vocab_size"), nan=LARGEST_VOCABULARY)
        attention = np.nan_to_num(self("sequence_length"), nan=LONGEST_CONTEXT) * size / (2 * width)
        return 2 * size, 2 * np.fmax(active, size) + 2 * vocabulary * width + attention

    def _by_shape(self, name: str) -> np.ndarray:
        """Return N, P or the FLOPs of a step, counted from the shape of the model in the first row of each run."""
        there = [column for column in (*INPUTS, "router_type", *WORDS) if column in self.frame]
        if "d_model" not in there:
            return np.full(len(self.frame), np.nan)
        run, first = groups_of(self.frame["hyper_id"].to_numpy())
        runs = self.frame[there].iloc[first]
        counts = np.array([_counted(name, row) for row in runs.drop_duplicates().to_dict("records")])
        return counts[runs.groupby(there, dropna=False, sort=False).ngroup().to_numpy()][run]


def or_one(frame, name: str) -> np.ndarray:
    """Return a column such as k or G, [n]; 1 if missing."""
    return frame[name].fillna(1).to_numpy(dtype=np.float64) if name in frame else np.ones(len(frame))


def counted_embeddings(frame) -> np.ndarray:
    """Return how many matrices of vocab_size * d_model the rows count in N and P, [n]; 0 if not stated."""
    return np.nan_to_num(column_or_nan(frame, "counted_embeddings"))


def seems_counted(frame) -> np.ndarray:
    """Return whether N exceeds the count for the shape, [n], by no more than an embedding and an output layer."""
    numbers = Numbers(frame)
    size, shape = numbers("dense_parameter_count"), numbers.by_shape("dense_parameter_count")
    return (size > 1.1 * shape) & (size < 1.1 * (shape + 2 * numbers("vocab_size") * numbers("d_model")))


def recounted(frame, matrices: int):
    """Return a table whose N and P count this many matrices of vocab_size * d_model.

    Raises:
        InputError: the number is not 0, 1 or 2; or a row lacks the vocabulary or the width.
    """
    if matrices not in (0, 1, 2):
        raise InputError(f"--count-embeddings {matrices} is out of range; use 0, 1 or 2")
    embedding = column_or_nan(frame, "vocab_size") * column_or_nan(frame, "d_model")
    more = (matrices - counted_embeddings(frame)) * embedding
    if blank := int(np.isnan(more).sum()):
        raise InputError(
            f"--count-embeddings {matrices} needs vocab_size and d_model, which are blank in {blank} of {len(frame)} "
            "rows; add these columns"
        )
    if large := int(seems_counted(frame).sum()):
        raise InputError(
            f"--count-embeddings {matrices}: N is larger than the shape of the model in {large} of {len(frame)} rows; "
            f"if it counts the embedding already, {COUNTED.format(1)}"
        )
    sizes = {name: frame[name] + more for name in ("dense_parameter_count", "total_parameter_count") if name in frame}
    changed = frame.assign(**sizes, counted_embeddings=float(matrices))
    changed.attrs = frame.attrs
    return changed


def training_steps(frame) -> np.ndarray:
    """Return the training steps of each row, [n].

    Steps of 0, 1 or the number of tokens mean "unknown", and give NaN.
    """
    steps, tokens = column_or_nan(frame, "step"), column_or_nan(frame, "tokens")
    return np.where((steps > 1) & (steps != np.round(tokens)), steps, np.nan)


def training_tokens(frame) -> np.ndarray:
    """Return the training tokens of each row, [n] float64, NaN if unknown."""
    tokens = column_or_nan(frame, "tokens")
    return np.where(np.isnan(tokens), training_steps(frame) * tokens_per_step(frame), tokens)


def tokens_per_step(frame) -> np.ndarray:
    """Return the tokens of a step for each row, [n] float64: from the batch, else tokens / step; NaN if unknown."""
    batch = column_or_nan(frame, "batch_size") * column_or_nan(frame, "sequence_length")
    return np.where(np.isnan(batch), column_or_nan(frame, "tokens") / training_steps(frame), batch)


def _counted(name: str, row: dict) -> float:
    """Return a count for a shape; NaN if unknown or not a model of this package."""
    known = {column: None if math.isnan(row.get(column, math.nan)) else row[column] for column in INPUTS}
    if known["kqv_size"] is None and known["d_model"] and known["num_heads"]:
        known["kqv_size"] = known["d_model"] / known["num_heads"]
    try:
        value = count_of(name, row["router_type"], known | {column: row.get(column) for column in WORDS})
    except InputError:
        return math.nan
    return math.nan if value is None else value


def compare(frame, rows: np.ndarray, problems: Problems) -> list[str]:
    """Return remarks on redundant columns that disagree.

    Args:
        rows: [n] the number of each row in the file.
        problems: collects thousandfold differences; after a problem, the comparison stops.
    """
    numbers, remarks = Numbers(frame), []
    with np.errstate(all="ignore"):  # some columns are blank or 0
        for identity in (identity for identity in IDENTITIES if identity.column in frame):
            remarks += _judged(identity, numbers, rows, problems)
            if problems.count:
                return []
        return remarks + _implausible(numbers) + _growing(numbers)


def _judged(identity: Identity, numbers: Numbers, rows: np.ndarray, problems: Problems) -> list[str]:
    values, (least, most) = numbers(identity.column), identity.expected(numbers)
    apart = np.fmax(values / most, least / values)
    outside = apart > identity.factor
    if not outside.any():
        return []
    refused = outside & (apart >= THOUSANDFOLD)
    at = int(np.argmax(refused if refused.any() else outside))
    needed = f"{' to '.join(dict.fromkeys(map(_shown, (least[at], most[at]))))} by {identity.by}"
    rest = f"in {outside.sum():,} of {len(rows):,} rows"
    if refused.any():
        text, unit = cell_text(numbers.frame, identity.column, at), _unit(identity.column, values[at])
        problems.add(int(rows[at]), identity.column, text, f"{needed} (so {rest}); {identity.advice}; {unit}")
    return [
        f"{identity.column}: differs {rest} (row {rows[at]}: {_shown(values[at])}, but {needed}); {identity.advice}"
    ]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e12 else f"{value:.4g}"


def _implausible(numbers: Numbers) -> list[str]:
    """Return remarks on sizes that no language model has."""
    import pandas

    size, tokens = numbers("dense_parameter_count"), training_tokens(numbers.frame)
    ends = pandas.DataFrame({"tokens": tokens, "ratio": tokens / size, "flops": numbers("training_flops")})
    ends = ends.groupby(numbers.frame["hyper_id"].to_numpy()).max()
    in_tokens = "if batch_size counts tokens, name tokens instead of batch_size"
    for name, values, (least, most) in (
        ("dense_parameter_count", size, SIZES),
        ("tokens", ends["tokens"], TOKENS),
        ("tokens per step", numbers("batch_size") * numbers("sequence_length"), BATCHES),
        ("tokens per parameter", ends["ratio"], RATIOS),
        ("training_flops", ends["flops"], FLOPS),
    ):
        for value in (each for each in values if 0 < each < least or each > most):
            remedy = in_tokens if name == "tokens per step" else _unit(name, value)
            return [f"{name}: {value:.4g} is implausible; needed: {least:g} to {most:g}; {remedy}"]
    return []


def _unit(name: str, value: float) -> str:
    """Return how to state the unit of a column, or of a quantity such as tokens per parameter."""
    is_ratio = bool(name == "tokens" and value < TOKENS[0])
    return UNITS.format(f"{name.partition(' ')[0]}=UNIT") + ", and tokens=N tokens per parameter" * is_ratio


def _growing(numbers: Numbers) -> list[str]:
    """Return a remark on a table in which the smallest and the largest N grow with E, to twice the N or more.

    Then N probably counts all experts. Fewer than three numbers of experts tell nothing.
    """
    size, experts = numbers("dense_parameter_count"), numbers("num_experts")
    counts = np.unique(experts)
    ends = np.array([(each.min(), each.max()) for each in (size[experts == E] for E in counts)])
    if len(counts) < 3 or not (np.diff(ends, axis=0) > 0).all() or not (ends[-1] >= 2 * ends[0]).all():
        return []
    least = ", ".join(f"{_shown(low)} for E = {E:.0f}" for E, (low, _) in zip(counts, ends, strict=True))
    return [
        f"dense_parameter_count: grows with num_experts (smallest N: {least}); N counts one expert, and "
        "total_parameter_count all experts"
    ]


def _shape(name: str) -> Callable:
    return lambda numbers: (numbers.by_shape(name),) * 2


def _step(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the FLOPs of a step by the shape or, where the shape is not known, their range from N.

    If the FLOPs of all rows are 6 N per token within 1 %, they were computed from N, and the range is 2 N.
    """
    shape, tokens = numbers.by_shape("flops_per_step"), tokens_per_step(numbers.frame)
    least, most = (np.where(np.isnan(shape), each * tokens, shape) for each in numbers.forward())
    made = np.abs(numbers("flops_per_step") / (3 * least) - 1) < 0.01
    return least, least if made.all() else most


def _total(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of P from N, E and the shared experts, if the shape does not give P."""
    size = np.where(np.isnan(numbers.by_shape("total_parameter_count")), numbers("dense_parameter_count"), np.nan)
    return size, size * (numbers("num_experts") + numbers.shared()) * or_one(numbers.frame, "flop_increase")


IDENTITIES = (
    Identity(
        "tokens", "step * batch_size * sequence_length",
        lambda numbers: (training_steps(numbers.frame) * numbers("batch_size") * numbers("sequence_length"),) * 2, 1.1,
        "batch_size counts the sequences of all devices",
    ),
    Identity(
        "dense_parameter_count", "the shape of the model", _shape("dense_parameter_count"), 1.1,
        f"N excludes the embedding and counts one expert ({COUNTED.format(1)})",
    ),
    Identity(
        "total_parameter_count", "the shape of the model", _shape("total_parameter_count"), 1.1,
        f"P excludes the embedding, as N does ({COUNTED.format(1)}), and num_experts and k count experts of the dense "
        "width (convert --columns narrow_experts=... narrow_k=... counts narrow ones)",
    ),
    Identity(
        "total_parameter_count", "dense_parameter_count times num_experts", _total, 1.5,
        "P counts every expert and no embedding",
    ),
    Identity(
        "flops_per_step", "the model and the tokens of a step", _step, 2.0,
        "the column has the forward FLOPs of one step; those of the whole training belong in training_flops",
    ),
    Identity(
        "training_flops", "6 N tokens",
        lambda numbers: tuple(3 * each * training_tokens(numbers.frame) for each in numbers.forward()), 2.0,
        "the column has the FLOPs of the whole training up to this row, forward and backward",
    ),
)  # fmt: skip
"""Two identities of one column are about different rows."""


SHAPE = ("d_model", "num_blocks", "num_heads", "kqv_size")
_OF_STEP = ("batch_size", "sequence_length", "vocab_size")
INPUTS = (
    *SHAPE,
    "num_experts",
    "k",
    "routing_frequency",
    "flop_increase",
    "granularity",
    *_OF_STEP,
    "counted_embeddings",
)
"""The numeric columns from which counts are computed."""

WORDS = ("model_options", "routing_options")
"""The text columns that affect counts."""


def _needed(name: str, router: str, wide: float) -> tuple[str, ...]:
    if name == "dense_parameter_count":
        return SHAPE
    routed = () if router == DENSE else ("num_experts", "k")
    share = () if router == DENSE and wide == 1 else ("routing_frequency",)
    return (*SHAPE, *share, *routed, *(_OF_STEP if name == "flops_per_step" else ()))


def lacking(name: str, router: str, known: dict[str, float | None]) -> str:
    """Return why `count_of` cannot count a row."""
    needed = (*_needed(name, router, known["flop_increase"] or 1), *["vocab_size"] * bool(known["counted_embeddings"]))
    absent = [column for column in needed if known[column] is None]
    if absent:
        return f"not known: {', '.join(absent)}"
    if router not in ROUTER_TYPES.values():
        return f"parameters of router_type {router!r} cannot be counted; supported: {', '.join(ROUTER_TYPES.values())}"
    return "a number of the shape is not whole"


def count_of(name: str, router: str, known: dict) -> float | None:
    """Return N, P or FLOPs of a row; None if an input is unknown.

    N does not depend on the router: it is always the N of the dense model.

    Args:
        name: dense_parameter_count, total_parameter_count or flops_per_step.
        known: the numbers of the columns INPUTS (None for blank), and the texts of WORDS.

    Raises:
        InputError: there is no model of this shape.
    """
    values = {n: int(known[n]) if known[n] is not None and known[n] % 1 == 0 else None for n in INPUTS}
    values["k"] = known["k"]
    shape = [values[n] for n in SHAPE]
    matrices = 0 if name == "flops_per_step" else values["counted_embeddings"] or 0
    if any(size is None or size < 1 for size in shape) or (matrices and values["vocab_size"] is None):
        return None
    options, embedding = _options(known["model_options"]), matrices * (values["vocab_size"] or 0) * shape[0]
    if name == "dense_parameter_count":
        return float(count(*shape, **options).dense_parameters) + embedding
    wide, (batch, length, vocabulary) = known["flop_increase"] or 1, (values[n] for n in _OF_STEP)
    needed = [(known if column == "routing_frequency" else values)[column] for column in _needed(name, router, wide)]
    if router not in ROUTER_TYPES.values() or None in needed or wide % 1:
        return None
    counted = count(
        *shape,
        router,
        values["num_experts"] or 1,
        values["k"] or 1,
        known["routing_frequency"] or 0.5,
        int(wide),
        granularity=1 if router == DENSE else values["granularity"] or 1,
        vocab_size=vocabulary or 1,
        sequence_length=length or 1,
        **options,
        **({} if router == DENSE else routing_options_of(known["routing_options"])),
    )
    per_step = batch * length if name == "flops_per_step" else 0
    try:
        return float(counted.flops_per_token * per_step or counted.total_parameters + embedding)
    except OverflowError:  # `read_table` rejects these numbers
        return None


def routing_options_of(text: str | None) -> dict:
    """Return the options of `accounting.count` in routing_options."""
    words = (text or "").split()
    numbers = dict(re.findall(r"(?:^| )(shared|latent|zero)-([0-9]{1,9})(?= |$)", text or ""))
    real = re.search(r"(?:^| )real-([0-9]{1,9}(?:\.[0-9]{1,20})?)(?: |$)", text or "")
    return {
        "shared_experts": int(numbers.get("shared", 0)),
        "latent_width": int(numbers.get("latent", 0)),
        "zero_experts": int(numbers.get("zero", 0)),
        "zero_kind": next((word for word in words if word in ZERO_KINDS), ZERO_KINDS[0]),
        "real_experts": float(real[1]) if real else None,
        "router_bias": "router-bias" in words,
    }


def _options(text: str | None) -> dict[str, str]:
    kinds = {"activation": ACTIVATIONS, "positions": POSITIONS, "norm": NORMS}
    return {kind: word for word in (text or "").casefold().split() for kind, words in kinds.items() if word in words}
