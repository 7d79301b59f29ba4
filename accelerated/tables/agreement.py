"""Check row by row that columns agree: tokens with steps, FLOPs with N, and N and P with the model's shape.

Each `Identity` gives the range of a column from other columns. A remark names rows that are outside the range by more
than the identity's factor. A factor of `THOUSANDFOLD` or more is an error, because no way of counting explains it. An
identity lists slips: usual mistakes, each with the factor that it causes. The message names the slip with the nearest
factor.

All factors are our choice. They are wide for quantities that papers count in several ways, such as norms, biases,
router weights, attention, the output layer and narrow experts.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .counting import INPUTS, WORDS, count_of, routing_options_of
from .schema import DENSE, Problems, cell_text, column_or_nan, groups_of

THOUSANDFOLD = 900.0
"""A deviation by this factor is an error. A wrong unit gives 1000 or more, and the range may be wrong by 10 %."""

NEAR = 2.5
"""A slip explains a number if the number is within this factor of the number that the slip would give."""

SCALES = {"thousands": 1e3, "millions": 1e6, "billions": 1e9, "trillions": 1e12}

LARGEST_VOCABULARY, LONGEST_CONTEXT = 262_144, 8192
"""The vocabulary and the sequence length for the highest possible cost of a token, if the table does not have them."""

SMALLEST = 1000.0
"""Smallest plausible N; a smaller N is in millions or billions."""

LARGEST, LARGEST_OF_ALL = 1e12, 1e13
"""Largest plausible median of N, and largest plausible N. The largest language models have about 1e12 parameters."""

MOST_TOKENS = 1e15
"""Largest plausible number of training tokens, about 20 times the largest known one."""

FEWEST, MOST = 1e-4, 1e6
"""Plausible range of training tokens per parameter. Outside this range, N or the tokens have a wrong unit."""

COUNTED = "routelaws convert --set counted_embeddings={} states it"
"""How to state what N and P count."""

SIZES = "cells may hold sizes, such as 20M or 1.5B, and routelaws convert --unit states the unit of a column"


class Identity(NamedTuple):
    """A column, and the range of its values that other columns imply."""

    column: str
    by: str  # source of the range, for messages
    expected: Callable  # `Numbers` -> smallest and largest values [n], NaN if unknown
    factor: float  # tolerated factor outside the range
    slips: Callable  # `Numbers` -> {cause: the resulting factor, [n] or float}
    advice: str  # advice if no slip explains a number


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
    numbers, remarks = Numbers(frame), {}
    with np.errstate(all="ignore"):  # some columns are blank or 0
        for identity in (identity for identity in IDENTITIES if identity.column in frame):
            if identity.column not in remarks and (remark := _judge(identity, numbers, rows, problems)):
                remarks[identity.column] = remark
            if problems.count:
                return []
        return [*remarks.values(), *_implausible(numbers)]


def _judge(identity: Identity, numbers: Numbers, rows: np.ndarray, problems: Problems) -> str | None:
    values, (least, most) = numbers(identity.column), identity.expected(numbers)
    off = np.where(values > most, values / most, np.where(values < least, values / least, 1.0))
    apart = np.maximum(off, 1 / off)
    outside = apart > identity.factor
    if not outside.any():
        return None
    refused = apart.max() >= THOUSANDFOLD
    at = int(np.argmax(apart >= THOUSANDFOLD if refused else outside))
    count = f"{int(outside.sum()):,} of {len(rows):,} rows"
    ends = least[at], most[at]
    needed = f"{' to '.join(dict.fromkeys(map(_shown, ends)))} by {identity.by}"
    cause = _cause(identity, numbers, at, values[at], *ends)
    if refused and cause == identity.advice:
        cause = "is one of them in another unit, or of another model?"
    if refused:
        text = cell_text(numbers.frame, identity.column, at)
        problems.add(int(rows[at]), identity.column, text, f"{needed} (so in {count}); {cause}")
    far = "differs" if "counted_embeddings" in cause else "far off"
    return f"{identity.column}: {far} in {count} (row {rows[at]}: {_shown(values[at])}, but {needed}); {cause}"


def _cause(identity: Identity, numbers: Numbers, at: int, value: float, least: float, most: float) -> str:
    factors = {cause: float(np.broadcast_to(f, len(numbers.frame))[at]) for cause, f in identity.slips(numbers).items()}
    fitting = [cause for cause, f in factors.items() if least * f / NEAR <= value <= most * f * NEAR]
    nearest = min(fitting, key=lambda cause: abs(math.log(value / (least * factors[cause]))), default=None)
    return identity.advice if nearest is None else f"{nearest}?"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e12 else f"{value:.4g}"


def _implausible(numbers: Numbers) -> list[str]:
    size, tokens = numbers("dense_parameter_count"), training_tokens(numbers.frame)
    remarks = [*_implausible_sizes(size), *_implausible_tokens(tokens, size)]
    experts, total = numbers("num_experts"), numbers("total_parameter_count")
    if count := int((~numbers.dense & (experts > 1) & (size >= total)).sum()):
        remarks.append(
            f"dense_parameter_count: as large as total_parameter_count in {count:,} of {len(size):,} rows with several"
            " experts; N counts one FFN in each layer for any num_experts and k"
        )
    return remarks


def _implausible_sizes(size: np.ndarray) -> list[str]:
    middle = float(np.median(size))
    if middle < SMALLEST:
        return [f"dense_parameter_count: the median is {middle:.4g}; is it in millions? {SIZES}"]
    if (size < SMALLEST).any():
        ends = f"the median is {middle:.4g} and the smallest {size.min():.4g}"
        return [f"dense_parameter_count: {ends}; are some rows in another unit? {SIZES}"]
    if middle >= LARGEST or (size > LARGEST_OF_ALL).any():
        ends = f"the median is {middle:.4g} and the largest {size.max():.4g}"
        return [f"dense_parameter_count: {ends}; was it multiplied by its unit twice? Known models have up to 1e12"]
    return []


def _implausible_tokens(tokens: np.ndarray, size: np.ndarray) -> list[str]:
    if (tokens > MOST_TOKENS).any():
        return [f"tokens: the largest is {np.nanmax(tokens):.4g}; was it multiplied by its unit twice? {SIZES}"]
    ratio = tokens / size
    ratio = ratio[ratio > 0]
    if not ratio.size or ratio.max() > FEWEST and np.median(ratio) < MOST:
        return []
    few = ratio.max() <= FEWEST
    text = f"at most {ratio.max():.3g}" if few else f"a median of {np.median(ratio):.3g}"
    column = "are tokens" if few else "is dense_parameter_count"
    return [f"tokens: {text} for each parameter; {column} in millions or billions? {SIZES}"]


def _units(column: str, numerator: bool = True) -> dict[str, float]:
    return {f"is {column} in {unit}": 1 / scale if numerator else scale for unit, scale in SCALES.items()}


def _tokens(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    product = training_steps(numbers.frame) * numbers("batch_size") * numbers("sequence_length")
    return product, product


def _slips_of_tokens(numbers: Numbers) -> dict:
    return {
        **_units("tokens"),
        "does tokens count one step only": 1 / numbers("step"),
        "does batch_size count tokens": 1 / numbers("sequence_length"),
        "does tokens count sequences": 1 / numbers("sequence_length"),
    }


def _shape(name: str) -> Callable:
    return lambda numbers: (numbers.by_shape(name),) * 2


def _with_embedding(name: str) -> Callable:
    whats = (
        "exclude the embedding",
        "count the embedding, vocab_size * d_model",
        "count the embedding and the output layer",
    )

    def slips(numbers: Numbers) -> dict:
        stated, size = counted_embeddings(numbers.frame), numbers.by_shape("dense_parameter_count")
        share = numbers("vocab_size") * numbers("d_model") / numbers.by_shape(name)
        only = (name != "dense_parameter_count") & (np.abs(numbers("dense_parameter_count") / size - 1) < 0.1)
        factors = {}
        for matrices, what in enumerate(whats):
            factor = np.where(stated != matrices, 1 + (matrices - stated) * share, np.nan)
            factors[f"does it {what} ({COUNTED.format(matrices)})"] = np.where(only, np.nan, factor)
            factors[f"does it {what}, unlike N (let both count alike; {COUNTED.format(matrices)})"] = np.where(
                only, factor, np.nan
            )
        more = _narrow if name == "total_parameter_count" else _all_used
        return factors | more(numbers) | _units(name)

    return slips


def _narrow(numbers: Numbers) -> dict:
    cause = "do num_experts and k count narrow experts (use convert --columns narrow_experts=... narrow_k=...)"
    granularity = numbers("granularity")
    return {cause: np.where(granularity == 1, np.nan, 1 / granularity)}


def _all_used(numbers: Numbers) -> dict:
    size, total, k = (
        numbers.by_shape("dense_parameter_count"), numbers.by_shape("total_parameter_count"), or_one(numbers.frame, "k")
    )  # fmt: skip
    active = size + (k - 1) * (total - size) / (numbers("num_experts") - 1)
    return {"does it count all k experts of a token (N counts one)": np.where(k > 1, active / size, np.nan)}


def _total(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of P from N, E and the shared experts, if the shape does not give P."""
    size = np.where(np.isnan(numbers.by_shape("total_parameter_count")), numbers("dense_parameter_count"), np.nan)
    return size, size * (numbers("num_experts") + numbers.shared()) * or_one(numbers.frame, "flop_increase")


def _step(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of the FLOPs of a step from N, if the shape does not give the FLOPs.

    If the FLOPs of all rows are 6 N per token within 1 %, they were computed from N, and the range is 2 N.
    """
    tokens = np.where(np.isnan(numbers.by_shape("flops_per_step")), tokens_per_step(numbers.frame), np.nan)
    least, most = (each * tokens for each in numbers.forward())
    made = _all_near(numbers("flops_per_step"), 3 * least)
    return least, least if made else most


IDLE = "does it count the experts that a token does not use (6 P tokens; 6 N tokens counts the used ones)"


def _all_near(values: np.ndarray, others: np.ndarray) -> bool:
    ratio = values / others
    ratio = ratio[np.isfinite(ratio)]
    return bool(ratio.size and (np.abs(ratio - 1) < 0.01).all())


def _idle(numbers: Numbers, name: str) -> np.ndarray:
    """Return how many times the FLOPs of N a routed row has, if it seems to count idle experts, else NaN, [n].

    It does if the FLOPs of all routed rows were computed from P (without P, from E N), or if its FLOPs for a token are
    far above k times those of the dense run of its N. Rows whose tokens use almost all experts do not count.
    """
    total, size = numbers("total_parameter_count"), numbers("dense_parameter_count")
    total = np.where(np.isnan(total), size * numbers("num_experts"), total)
    active = size + (or_one(numbers.frame, "k") - 1) * (total - size) / (numbers("num_experts") - 1)
    flops = np.where(numbers.dense | (total < 1.5 * active), np.nan, numbers(name))
    tokens = training_tokens(numbers.frame) if name == "training_flops" else tokens_per_step(numbers.frame)
    of_dense = dict(zip(size[numbers.dense], (numbers(name) / tokens)[numbers.dense], strict=True))
    times = flops / tokens / np.array([of_dense.get(n, np.nan) for n in size])
    times = np.where(times > 1.4 * (or_one(numbers.frame, "k") + numbers.shared()), times, np.nan)
    passes = (3,) if name == "training_flops" else (1, 3)  # a backward pass is twice a forward pass
    made = any(_all_near(flops, 2 * times * total * tokens) for times in passes)
    return np.where(made & np.isfinite(flops), total / size, times)


def _used_only(name: str, passes: int) -> Callable:
    """Return the range of FLOPs for the rows whose FLOPs count idle experts: at most k times those of N."""

    def expected(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
        tokens = training_tokens(numbers.frame) if name == "training_flops" else tokens_per_step(numbers.frame)
        least = 2 * passes * numbers("dense_parameter_count") * tokens
        least = np.where(np.isnan(_idle(numbers, name)), np.nan, least)
        return least, least * or_one(numbers.frame, "k")

    return expected


def _slips_of_step(numbers: Numbers) -> dict:
    steps, tokens = numbers("step"), tokens_per_step(numbers.frame)
    return {
        "is it the training FLOPs of the whole run, which belong in the column training_flops": 3 * steps,
        "is it the forward FLOPs of the whole run (a third of training_flops)": steps,
        "does it include the backward pass": 3.0,
        IDLE: _idle(numbers, "flops_per_step"),
        "is it the FLOPs of one token": 1 / tokens,
        "is it the FLOPs of one sequence": numbers("sequence_length") / tokens,
        **_units("flops_per_step"),
        "is flops_per_step in PFLOPs": 1e-15,
        **_units("dense_parameter_count", numerator=False),
    }


def _training(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    least, most = (3 * each * training_tokens(numbers.frame) for each in numbers.forward())
    return least, most


def _slips_of_training(numbers: Numbers) -> dict:
    return {
        "is it the forward pass alone": 1 / 3,
        IDLE: _idle(numbers, "training_flops"),
        "is it the FLOPs of one step": 1 / numbers("step"),
        "is it in PF-days": 1 / 8.64e19,
        "is it in EFLOPs": 1e-18,
        "is it in PFLOPs": 1e-15,
        **_units("training_flops"),
        **_units("tokens", numerator=False),
        **_units("dense_parameter_count", numerator=False),
    }


BY_SHAPE = "the shape of the model"

IDENTITIES = (
    Identity(
        "tokens", "step * batch_size * sequence_length", _tokens, 1.1, _slips_of_tokens,
        "is batch_size the size on one device, or is step counted in another way?",
    ),
    Identity(
        "dense_parameter_count", BY_SHAPE, _shape("dense_parameter_count"), 1.1,
        _with_embedding("dense_parameter_count"), f"does it count the embedding ({COUNTED.format(1)})?",
    ),
    Identity(
        "total_parameter_count", BY_SHAPE, _shape("total_parameter_count"), 1.1,
        _with_embedding("total_parameter_count"),
        f"does it count the embedding ({COUNTED.format(1)}), or is num_experts not the number of experts of a layer?",
    ),
    Identity(
        "total_parameter_count", "dense_parameter_count times num_experts", _total, 1.5,
        lambda numbers: _units("total_parameter_count") | _units("dense_parameter_count", numerator=False),
        "does it count the embedding, or does num_experts count only some experts?",
    ),
    Identity(
        "flops_per_step", BY_SHAPE, _shape("flops_per_step"), 2.0, _slips_of_step,
        "needed: forward FLOPs of one step, or a blank cell",
    ),
    Identity("flops_per_step", "2 N tokens", _used_only("flops_per_step", 1), 1.4, _slips_of_step, f"{IDLE}?"),
    Identity(
        "flops_per_step", "N and the tokens of a step", _step, 2.0, _slips_of_step,
        "needed: forward FLOPs of one step, or a blank cell",
    ),
    Identity("training_flops", "6 N tokens", _used_only("training_flops", 3), 1.4, _slips_of_training, f"{IDLE}?"),
    Identity(
        "training_flops", "6 N tokens", _training, 2.0, _slips_of_training,
        "needed: FLOPs of the whole training up to this row, forward and backward",
    ),
)  # fmt: skip
"""Exact identities come first, because an error that violates them also violates other identities. Only the first
remark on a column is reported."""
