"""Units of columns of sizes and of losses: stated by the user, as in dense_parameter_count=M.

A header that looks like a unit, such as "params (M)", "tokens in billions" or "PFLOP/s", is an error until the user
states the unit of its numbers. Cells with units of their own, such as 20M, need no statement.
"""

import re

import numpy as np

from ...errors import InputError
from ..cells import Cells, in_rows
from ..schema import shorten, to_numbers
from ..units import SIZES, UNITS_OF, amount, written_out
from .log import PARTS

_SCALE = (
    r"(?!^.$)(^|[ _./\-(\[{])[kmbgtpez](?![a-z])"  # params (M), params_b, tokens in M, M params
    r"|(?<![a-z])[kmbgt](?=tok|param)"  # Mparams
    r"|(?<![a-z])(thousand|million|mln|billion|bn|trillion)s?(?![a-z])"
    r"|(\d|(?<![a-z]))e\+?\d|(\^|\*\*)\+?\d|10[⁰¹²³⁴-⁹]"  # tokens / 1e9, N (10^6)
    r"|(kilo|mega|giga|tera|peta|exa|zetta|(?<![a-z])[kmgtpez])[ _-]?flop"
    r"|(?<![a-z])pf((?![a-z])|days)|(?<![a-z])(day|hour)s?(?![a-z])|flops?[ _]*(/|per)[ _]*s(ec(ond)?s?)?(?![a-z])"
    r"|(tok(en)?s?|(?<![a-z])d)[ _]*(/|per)[ _]*(n|param\w*)(?![a-z])|(?<![a-z])tpp(?![a-z])"  # tokens per parameter
    r"|(?<![a-z])[kmgt]i?b(ytes)?(?![a-z])|(?<![a-z])macs?(?![a-z])|flops?[ _-]*(/|per)[ _-]*tok"
)
_COUNTED = (
    r"(?P<counted>^(?!.*(tok|flop|param)).*(sample|sequence|example|iteration|step|batch))"  # 2048 is a unit, too
)
_UNIT = re.compile(f"{_SCALE}|{_COUNTED}", re.IGNORECASE)

_OTHER_LOSS = r"bpb|bpc|(?<![a-z])((per)?(byte|char(acter)?|word)s?|sum|total)(?![a-z])"
_LOSS_UNIT = (
    _OTHER_LOSS + r"|(?<![a-z])(bits?|bp[td]|ppl?x?|perp(lexity)?|exp|(log|base)[ _-]?(2|10)(?!\d)"  # units
    r"|acc(uracy)?|bleu\d?|rouge[\dl]?|score|f1|em|mse|percent(age)?|pct"  # other quantities
    r"|std(dev|err)?|stderr|var(iance)?|delta|diff(erence)?|gain|relative|aux(iliary)?|balanc(e|ing)|z|lr|vs)(?![a-z])|%"
)


_RATIO = r"sparsity|ratio|fraction|e ?/ ?(k|top_?k)"
_PART = r"per[ _-]?(device|gpu|rank|worker|node|tok(en)?)|log\d*"
_EMBEDDED = "(with|incl(uding|uded|usive|\\.)?|plus|w/)[ _-]*(the[ _-])?emb\\w*"
_WITHOUT = "without the embedding, or counted_embeddings"
_MEANINGS = {
    "loss_validation": (PARTS[0], "the loss on held-out text"),
    "dense_parameter_count": (f"total|all|log\\d*|{_EMBEDDED}", f"parameters with one expert, {_WITHOUT}"),
    "total_parameter_count": (f"active|log\\d*|{_EMBEDDED}", f"parameters with all experts, {_WITHOUT}"),
    "num_experts": (f"{_PART}|total|active|shared|{_RATIO}", "the experts of a layer on all devices"),
    "k": (f"{_RATIO}|total", "the experts of a token"),
    "batch_size": (f"{_PART}|micro|local|tok(en)?s?|{_SCALE}", "the sequences of a step on all devices"),
    "step": (_SCALE, "single steps"),
    **dict.fromkeys(("sequence_length", "vocab_size"), (_SCALE, "single tokens")),
}
"""{column: (texts of headers of other quantities, what the column has)}."""


PER_PARAMETER, N_COLUMN = "N", "dense_parameter_count"
"""The unit of tokens per parameter, and the column that holds the parameters."""


def check_headers(path, headers: dict[str, str], others: list[str], unit: str | None) -> list[str]:
    """Return remarks on headers that seem to name another loss or another count.

    Args:
        headers: {column of the table: column of the file}.
        others: the columns of the file without a place in the table.
        unit: the stated unit of losses; None if not stated.

    Raises:
        InputError: a header looks like a unit that is not stated.
    """
    words = {  # evalPPL has the words eval and PPL
        name: re.sub("(?<=[a-z])(?=[A-Z])", " ", header) for name, header in headers.items() if name.startswith("loss_")
    }
    for name, header in words.items():
        if unit is None and re.search(_LOSS_UNIT, header, re.IGNORECASE):
            raise InputError(
                f"{path}: {shorten(headers[name])}: the header seems to name a unit or another quantity; state "
                "--loss-unit nats, bits or perplexity (per token) if it is a loss; a sum, or a loss per byte or word, "
                "cannot be compared, and an accuracy is named acc_TASK (docs/downstream.md)"
            )
    marked = {name: bool(re.search("pp[lx]|perp", header, re.IGNORECASE)) for name, header in words.items()}
    if unit == "perplexity" and len({*marked.values()}) > 1:
        plain = shorten(headers[next(name for name in marked if not marked[name])])
        raise InputError(f"{path}: --loss-unit perplexity is for all losses, but {plain} names none; convert it apart")
    other = [name for name, header in words.items() if re.search(_OTHER_LOSS, header, re.IGNORECASE)]
    remarks = [f"{name}: a sum, or a loss per byte or word, cannot be compared with losses per token" for name in other]
    for name, (quantity, meaning) in _MEANINGS.items():
        if _has_words(quantity, headers.get(name, "")):
            remarks.append(f"{name}: {shorten(headers[name])} seems to be another quantity; needed: {meaning}")
    held_out = [name for name in others if re.search("loss", name, re.IGNORECASE) and _has_words(PARTS[1], name)]
    if held_out and "loss_validation" in headers and not _has_words(PARTS[1], headers["loss_validation"]):
        used = shorten(headers["loss_validation"])
        remarks.append(f"loss_validation: is the column {used}, although there is also {shorten(held_out[0])}")
    return remarks


def _has_words(words: str, header: str) -> bool:
    return bool(re.search(rf"(?<![a-z])({words})(?![a-z])", header, re.IGNORECASE))


def apply_units(table: Cells, units: dict[str, str]) -> None:
    """Multiply the plain numbers of columns of sizes by their units, and 5M samples by the tokens of a sample.

    Args:
        units: {column of the table: unit of its numbers, or a number}; 1 leaves the numbers unchanged.

    Raises:
        InputError: a unit is not known, or headers look like units that are not stated.
    """
    scales, plain, letters, headers = {name: _scale(name, unit) for name, unit in units.items()}, {}, {}, {}
    for name in (name for name in SIZES if name in table.cells):
        header = table.headers.get(name, name)
        match, letters[name] = _UNIT.search(header), {"": 1.0}
        if match and match["counted"]:  # 5M samples are 5M times the unit, but 20B stay 20B under "tokens (B)"
            letters[name] = {letter: size for letter, size in UNITS_OF[name].items() if len(letter) < 2}
        numbers, _ = to_numbers(table.cells[name], letters[name])
        plain[name] = np.flatnonzero(np.isfinite(numbers) & (numbers > 0))
        if match and plain[name].size and name not in units:
            headers[name] = shorten(header)
    if headers:
        raise InputError(
            f"{table.runs}: {' and '.join(headers.values())}: the header seems to name a unit; state it with "
            f"--unit {' '.join(f'{name}=UNIT' for name in headers)}: a unit, such as M, the tokens of a "
            "sample, N for tokens per parameter, or 1 for whole counts (a rate, a time or bytes is no count)"
        )
    for name, rows in plain.items():
        cells, by = table.cells[name], scales.get(name, 1.0)
        scale = table.number(N_COLUMN) if by == N_COLUMN else np.full(table.rows, by)
        if (blank := np.flatnonzero(~np.isfinite(scale[rows]))).size:
            raise InputError(
                f"{table.runs}: row {rows[blank[0]] + 1}: {N_COLUMN} is blank; --unit {name}={PER_PARAMETER} needs it"
            )
        if by != 1 and rows.size:
            first = cells[rows[0]].strip()
            for i in rows:
                scaled = {letter: size * float(scale[i]) for letter, size in letters[name].items()}
                cells[i] = written_out(amount(cells[i].strip().removeprefix("+"), scaled))
            example = f"such as {first} as {cells[rows[0]]}{in_rows(len(rows), table.rows)}"
            by = by if by == N_COLUMN else f"{by:g}"
            table.remarks.append(f"{name}: multiplied by {by}, the stated unit, {example}")


def _scale(name: str, unit: str) -> float | str:
    """Return the number that a unit stands for, or the name of the column of parameters."""
    if (name, unit) == ("tokens", PER_PARAMETER):
        return N_COLUMN
    try:
        return amount(unit if unit[0].isdigit() else f"1{unit}", UNITS_OF[name])
    except ValueError as error:
        raise InputError(f"--unit {name}={unit}: {error}; give a unit, such as M, or a number, such as 1e6") from None
