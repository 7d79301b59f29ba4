"""Units in the header of a column: "params (M)", "tokens in billions", "train PFLOPs", "tokens_B".

A word, a power of ten and a capital letter are certain units. They are applied if the resulting numbers are plausible.
A small letter (`params_b`), 10e6, and T in a header of tokens (T may be a symbol) are uncertain units. The program
applies such a unit if the numbers are plausible only with it, and ignores it if they are plausible only without it.
Everything else is an error. These rules are our choice.
"""

import re

import numpy as np

from ..errors import InputError
from .cells import Cells, in_rows
from .schema import shorten, to_numbers
from .units import FLOPS, SIZES, TOKENS, amount, written_out

_LETTERS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21}
_WORDS = {"thousand": 1e3, "million": 1e6, "mln": 1e6, "billion": 1e9, "bn": 1e9, "trillion": 1e12}
_SI = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12, "peta": 1e15, "exa": 1e18, "zetta": 1e21}

_LETTER = (
    r"[(\[{]\s*(?:in )?([kmbgt])\s*(?:tok\w*|param\w*)?\s*[)\]}]",  # params (M), tokens [in B], (M tokens)
    r"(?<![a-z])in[ _]([kmbgt])(?![a-z])",  # params in M
    r"[ _./-]([kmbgt])$",  # params_M
    r"(?<![a-z])([kmbgt])(?=tok|param)",  # Mparams
)
_LETTER_OF_FLOPS = r"[(\[{]\s*(?:in )?([pez])\s*[)\]}]"
_PREFIX_OF_FLOPS = rf"(?<![a-z])({'|'.join(_SI)}|[kmgtpez])[ _-]?flop"
_WORD = rf"(?<![a-z])({'|'.join(_WORDS)})s?(?![a-z])"
_POWER = r"(?:[(\[{/x×*]|(?<![a-z])in )\s*[x×*/]?\s*(10?)?(e|\^|\*\*)\+?(\d{1,2})(?!\d)"  # tokens / 1e9, N (10^6)
_PF_DAYS = r"(?<![a-z])p(?:f|flops?|eta[ _-]?flops?)(?:/s)?[ _-]*days?(?![a-z])"
_NO_COUNT = (
    r"flops?[ _]*(?:/|per)[ _]*s(?:ec(?:ond)?s?)?(?![a-z])|flop.*(?:day|hour)|(?<![a-z])[kmgt]i?b(?:ytes)?(?![a-z])"
)


def apply_headers(table: Cells, columns: dict[str, str]) -> None:
    """Multiply the numbers of columns by the units in their headers. Sizes such as 20M have units in the cells.

    Args:
        columns: {column of the table: header in the user's file}.

    Raises:
        InputError: the unit of a header is not clear.
    """
    for name in (name for name in columns if name in SIZES):
        cells, header = table.cells[name], shorten(columns[name])
        numbers, _ = to_numbers(cells)
        rows = np.flatnonzero(np.isfinite(numbers) & (numbers > 0))
        if not rows.size:
            continue
        scale = _scale(f"{table.runs}: column {header}", name, columns[name], float(numbers[rows].max()))
        if scale != 1:
            first = cells[rows[0]].strip()
            for i in rows:
                cells[i] = written_out(amount(cells[i].strip().removeprefix("+"), {"": scale}))
            example = f"such as {first} as {cells[rows[0]]}{in_rows(len(rows), table.rows)}"
            table.remarks.append(f"{name}: multiplied by {scale:g}, because of the header {header}, {example}")


def _scale(where: str, name: str, header: str, largest: float) -> float:
    """Return the factor for the numbers of a column. Their largest number decides which units are plausible."""
    size = SIZES[name]
    certain, uncertain = _units_in(header, size.units is FLOPS, size.units is TOKENS)
    scales = sorted(certain or {1.0} | uncertain)
    low = size.low if len(scales) > 1 else 0.0
    possible = [scale for scale in scales if low <= largest * scale <= size.high] if len(certain) < 2 else scales
    remedy = f"needed: another header, such as {name}, or cells such as {size.example}"
    if _is_no_count(header):
        raise InputError(f"{where}: is a rate, a time or bytes, but {name} is a count; {remedy}")
    if scales != [1.0] and len(possible) != 1:
        numbers = " or ".join(f"{largest * scale:g}" for scale in scales)
        raise InputError(f"{where}: its unit is not clear: would {largest:g} be {numbers}? {remedy}")
    return possible[0] if scales != [1.0] else 1.0


def _is_no_count(header: str) -> bool:
    return not re.search(_PF_DAYS, header, re.IGNORECASE) and bool(re.search(_NO_COUNT, header, re.IGNORECASE))


def _units_in(header: str, of_flops: bool, of_tokens: bool) -> tuple[set[float], set[float]]:
    if of_flops and re.search(_PF_DAYS, header, re.IGNORECASE):
        return {8.64e19}, set()
    certain = {_WORDS[word.lower()] for word in re.findall(_WORD, header, re.IGNORECASE)}
    uncertain: set[float] = set()
    for base, sign, power in re.findall(_POWER, header, re.IGNORECASE):
        if base == "10" and sign in "eE":  # 1e7, or 1e6
            uncertain |= {10.0 ** int(power), 10.0 ** (int(power) + 1)}
        else:
            certain.add(10.0 ** int(power))
    for pattern in (*_LETTER, *[_LETTER_OF_FLOPS] * of_flops):
        for letter in re.findall(pattern, header, re.IGNORECASE):
            clear = letter.isupper() and not (letter == "T" and of_tokens)
            (certain if clear else uncertain).add(_LETTERS[letter.lower()])
    if of_flops:
        scales = _LETTERS | _SI
        certain |= {scales[prefix.lower()] for prefix in re.findall(_PREFIX_OF_FLOPS, header, re.IGNORECASE)}
    return certain, uncertain
