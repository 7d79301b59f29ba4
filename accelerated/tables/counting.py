"""Count N, P and the FLOPs of a step from the shape of a row's model."""

import re

from routelaws.reference.accounting import ACTIVATIONS, NORMS, POSITIONS, ROUTER_TYPES, count
from routelaws.reference.experts import ZERO_KINDS
from routelaws.reference.routers.records import DENSE

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
