"""Fill in N, P and the FLOPs of a step from the shape of a row's model."""

import math
import re

import numpy as np

from routelaws.reference.accounting import ACTIVATIONS, NORMS, POSITIONS, ROUTER_TYPES, count
from routelaws.reference.experts import ZERO_KINDS

from ..errors import InputError
from .cells import Cells, in_rows
from .schema import DENSE
from .units import written_out

_SHAPE = ("d_model", "num_blocks", "num_heads", "kqv_size")
_COUNTED = ("dense_parameter_count", "total_parameter_count", "flops_per_step")
_OF_STEP = ("batch_size", "sequence_length", "vocab_size")
INPUTS = (
    *_SHAPE,
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


def widen_experts(table: Cells) -> None:
    """Replace narrow_experts and narrow_k by num_experts and k, which count experts of the dense width.

    Raises:
        InputError: the number of experts of the dense width is not whole, or a token uses less than one.
    """
    narrow, granularity = table.number("narrow_experts"), table.number("granularity")
    for name, source in (("num_experts", "narrow_experts"), ("k", "narrow_k")):
        if source not in table.cells:
            continue
        wide = np.where(narrow == 1, 1, table.number(source) / granularity)
        if (bad := np.flatnonzero((wide % 1 > 0) if name == "num_experts" else wide < 1)).size:
            row, cell = bad[0], table.cells[source][bad[0]]
            needed = f"{'a multiple of' if name == 'num_experts' else 'at least'} granularity ({granularity[row]:g})"
            raise InputError(f"{table.runs}: row {row + 1}, column {source}: {cell}; needed: {needed}")
        values = {int(i): written_out(float(wide[i])) for i in np.flatnonzero(np.isfinite(wide))}
        table.fill(name, values, f"{source} / granularity")


def fill_counts(table: Cells) -> None:
    """Fill in N, P and the FLOPs of a step if the shape of the model gives them."""
    narrow = [table.cells.pop(name, None) for name in ("narrow_experts", "narrow_k")]
    width, heads = table.number("d_model"), table.number("num_heads")
    split = [i for i in table.blank("kqv_size") if width[i] % heads[i] == 0]
    table.fill("kqv_size", {i: str(int(width[i] / heads[i])) for i in split}, "d_model / num_heads")
    numbers = {name: [None if math.isnan(x) else x for x in table.number(name).tolist()] for name in INPUTS}
    for name in WORDS:
        numbers[name] = table.cells.get(name, [""] * table.rows)
    _fill_sizes_of_dense(table, numbers)
    sizes = table.number("dense_parameter_count").tolist()
    for name in _COUNTED:
        blank = table.blank(name)
        counted = {i: _counted(table, name, i, numbers, sizes[i]) for i in blank}
        values = {i: repr(value) for i, value in counted.items() if value is not None}
        how = "counted from the shape of the model, with FFNs of width 4 d_model (3 d_model with swiglu)"
        table.fill(name, values, how)
        # `read_table` reports a missing N; a table without shapes cannot be counted
        told = name == "dense_parameter_count" or "d_model" not in table.cells
        if len(values) < len(blank) and not told:
            row = next(i for i in blank if i not in values)
            causes = _lacking(name, table.cells["router_type"][row], {n: v[row] for n, v in numbers.items()})
            missing = in_rows(len(blank) - len(values), table.rows)
            table.remarks.append(
                f"{name}: cannot be counted from the shape{missing}, so it is blank; {causes} (row {row + 1})"
            )
    if narrow == [None, None]:
        _tell_of_narrow(table, numbers)


def _fill_sizes_of_dense(table: Cells, numbers: dict[str, list]) -> None:
    """Fill in N with the P of a dense model of the same shape, since both counts have to agree.

    P counts as N only up to 1.1 times the count of the shape: a larger P may count the embedding.
    """
    total, sizes = table.number("total_parameter_count"), {}
    columns = [numbers[name] for name in (*_SHAPE, *WORDS[:1], "counted_embeddings")]
    shapes = [shape if None not in shape[: len(_SHAPE)] else None for shape in zip(*columns, strict=True)]
    for i, shape in enumerate(shapes):
        if shape and table.cells["router_type"][i] == DENSE and numbers["flop_increase"][i] in (None, 1):
            counted = count_of("dense_parameter_count", DENSE, {name: cells[i] for name, cells in numbers.items()})
            if counted is not None and total[i] <= 1.1 * counted:
                sizes[shape] = table.cells["total_parameter_count"][i]
    blank = {i: sizes[shapes[i]] for i in table.blank("dense_parameter_count") if shapes[i] in sizes}
    table.fill("dense_parameter_count", blank, "total_parameter_count of the dense model of this shape")


def _tell_of_narrow(table: Cells, numbers: dict[str, list]) -> None:
    routed = [
        i
        for i, G in enumerate(numbers["granularity"])
        if G not in (None, 1) and table.cells["router_type"][i] != DENSE and numbers["num_experts"][i]
    ]
    if routed:
        row, G = routed[0], numbers["granularity"][routed[0]]
        experts, k = G * numbers["num_experts"][row], G * (numbers["k"][row] or 1)
        table.remarks.append(
            f"granularity: num_experts and k count experts of the dense width, so a block of row {row + 1} has "
            f"{experts:g} experts of 1/{G:g} of the width, and {k:g} for each token; if your columns count narrow "
            "experts, use --columns narrow_experts=YOURS narrow_k=YOURS"
        )


def _counted(table: Cells, name: str, i: int, numbers: dict[str, list], given: float) -> float | None:
    """Return a count of a row from the shape of its model; None if the shape is unknown.

    `given` is the user's N of the row, or NaN. For a dense model, N is also P.
    """
    router = table.cells["router_type"][i]
    try:
        value = count_of(name, router, {n: v[i] for n, v in numbers.items()})
    except InputError as error:
        raise InputError(f"{table.runs}: row {i + 1}: {error}") from None
    if value is None or name != "total_parameter_count" or router != DENSE:
        return value
    return given if numbers["flop_increase"][i] in (None, 1) and math.isfinite(given) else value


def _needed(name: str, router: str, wide: float) -> tuple[str, ...]:
    if name == "dense_parameter_count":
        return _SHAPE
    routed = () if router == DENSE else ("num_experts", "k")
    share = () if router == DENSE and wide == 1 else ("routing_frequency",)
    return (*_SHAPE, *share, *routed, *(_OF_STEP if name == "flops_per_step" else ()))


def _lacking(name: str, router: str, known: dict[str, float | None]) -> str:
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
    shape = [values[n] for n in _SHAPE]
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
    return {kind: word for word in (text or "").split() for kind, words in kinds.items() if word in words}
