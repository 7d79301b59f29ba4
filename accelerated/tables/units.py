"""Amounts with units: 370M parameters, 1.5T tokens, 1e21 FLOPs, 80GB, 24GiB, bf16.

    parameters  370000000, 3.7e8, 370M, 370m, "370M parameters"; K M B T, or k m b t, are thousands, millions, billions,
    and tokens  trillions (1e3, 1e6, 1e9, 1e12), as in the names of models: pythia-70m, llama-7b
    FLOPs       1e21, "1e21 FLOPs", 3ZFLOPs, PF-days (8.64e19); the letters above, and G (1e9), P E Z Y (1e15 to 1e24)
    bytes       kB MB GB TB PB are powers of 1000, KiB MiB GiB TiB PiB powers of 1024; a unit is required
    numbers     fp32 4 bytes, bf16 and fp16 2, fp8 and int8 1, int4 half a byte; or a number of bytes

A number has ASCII digits, a decimal point and an exponent. A comma, an underscore, a sign, infinity and numbers outside
the limits below are errors. The message is a line with the allowed forms. Results are the float64 nearest to the
decimal number: 4.6M is 4600000.
"""

import decimal
import math
import re
from typing import NamedTuple

from ..errors import InputError

_AMOUNT = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*(.*)", re.ASCII | re.DOTALL)

_LETTERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_PREFIXES = _LETTERS | {"G": 1e9, "P": 1e15, "E": 1e18, "Z": 1e21, "Y": 1e24}


def _with_words(letters: dict[str, float], *words: str) -> dict[str, float]:
    """Return {unit: scale}. A unit is a letter, or a letter and a word, with or without a space between them."""
    endings = ("", *(space + word for space in ("", " ") for word in words))
    return {letter + ending: scale for letter, scale in letters.items() for ending in endings}


PARAMETERS = _with_words(_LETTERS, "parameters", "params")
TOKENS = _with_words(_LETTERS, "tokens")
FLOPS = _with_words(_PREFIXES, "FLOP", "FLOPs", "flop", "flops") | {"PF-day": 8.64e19, "PF-days": 8.64e19}
BYTES = {
    "B": 1.0,
    **{spelled: 1000.0 ** (i + 1) for i, p in enumerate("KMGTP") for spelled in (f"{p}B", f"{p}B".lower())},
    "kB": 1000.0,
    **{spelled: 1024.0 ** (i + 1) for i, p in enumerate("KMGTP") for spelled in (f"{p}iB", f"{p}iB".lower())},
}
NUMBERS = {
    "fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "float8": 1.0,
    "int8": 1.0, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
"""Bytes of one number."""

MOST_PARAMETERS = 1e18
MOST_TOKENS = 1e18
MOST_FLOPS = 1e35
MOST_BYTES = 1e18
"""Largest allowed amounts; larger numbers are probably errors."""


class Size(NamedTuple):
    """The units of a column of sizes."""

    units: dict[str, float]
    most: float  # larger numbers count as errors


_PARAMETERS = Size(PARAMETERS, MOST_PARAMETERS)
_TOKENS = Size(TOKENS, MOST_TOKENS)
_FLOPS = Size(FLOPS, MOST_FLOPS)

SIZES = {
    **dict.fromkeys(("dense_parameter_count", "total_parameter_count", "params"), _PARAMETERS),
    **dict.fromkeys(("dense_parameters", "total_parameters", "active_parameters", "parameters"), _PARAMETERS),
    **dict.fromkeys(("tokens", "evaluation_tokens", "unique_tokens"), _TOKENS),
    **dict.fromkeys(("flops_per_step", "training_flops", "flops"), _FLOPS),
}
"""The columns that hold sizes, in results tables, tables of accuracies and laws."""

UNITS_OF = {name: size.units for name, size in SIZES.items()}
"""The units of these columns."""


def amount(text: str, units: dict[str, float]) -> float:
    """Return a number times its unit; infinite if too large for float64.

    Raises:
        ValueError: the text is not a number with one of the units.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is not None and "," in match[3]:
        raise ValueError("has a comma")
    if match is None:
        raise ValueError("is not an amount")
    number, unit = match[1] + (match[2] or ""), match[3]
    if unit not in units:
        raise ValueError(f"unit {_shown(unit)} is not known")
    if not 1e-300 < float(number) < 1e300:
        return float(number) * units[unit]
    return float(decimal.Decimal(number) * decimal.Decimal(repr(units[unit])))


def written_out(value: float) -> str:
    """Return a number as the cell of a table: 4600000, 2.5, 1e+21."""
    return repr(int(value)) if value % 1 == 0 and value < 1e16 else repr(value)


def size_label(parameters: int) -> str:
    """Return a parameter count in the form of the column model_size_label: 7K, 1.3B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if parameters >= 0.9995 * size:
            value = parameters / size
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return str(parameters)


def flops_of(text: str, flag: str = "--flops") -> float:
    """Return a number of FLOPs. Raise `InputError` unless the number is from 1 to `MOST_FLOPS`."""
    return _amount(text, flag, FLOPS, "FLOPs, such as 1e21 or 3ZFLOPs", 1.0, MOST_FLOPS)


def bytes_of(text: str, flag: str = "--memory") -> float:
    """Return a number of bytes. Raise `InputError` unless the text has a unit and a number from 1 B to `MOST_BYTES`."""
    if _AMOUNT.fullmatch(text.strip()) and not _AMOUNT.fullmatch(text.strip())[3]:
        raise InputError(f"{flag} {text}: the unit is missing; give memory, such as 80GB or 24GiB")
    return _amount(text, flag, BYTES, "memory, such as 80GB or 24GiB", 1.0, MOST_BYTES)


def parameters_of(text: str, flag: str = "--n") -> float:
    """Return a number of parameters. Raise `InputError` unless the number is from 1 to `MOST_PARAMETERS`."""
    return _amount(text, flag, PARAMETERS, "parameters, such as 1e9, 370M or 4.6B", 1.0, MOST_PARAMETERS)


def tokens_of(text: str, flag: str, least: float = 1.0) -> float:
    """Return a number of tokens. Raise `InputError` unless the number is from `least` to `MOST_TOKENS`."""
    return _amount(text, flag, TOKENS, "tokens, such as 2e10, 300B or 1.5T", least, MOST_TOKENS)


def number_bytes_of(text: str, flag: str = "--dtype") -> float:
    """Return the bytes of a number, from the name of a type or a number of bytes up to 8."""
    if text in NUMBERS:
        return NUMBERS[text]
    needed = f"a type of numbers ({', '.join(NUMBERS)}), or bytes per number, such as 2"
    return _amount(text, flag, {"": 1.0}, needed, 1e-3, 8.0)


def _amount(text: str, flag: str, units: dict[str, float], needed: str, low: float, high: float) -> float:
    try:
        value = amount(text, units)
    except ValueError as error:
        raise InputError(f"{flag} {_shown(text)}: {error}; give {needed}") from None
    if not math.isfinite(value) or value > high:
        raise InputError(f"{flag} {_shown(text)} is more than {high:g}; give {needed}")
    if value < low:
        raise InputError(f"{flag} {_shown(text)} is less than {low:g}; give {needed}")
    return value


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:37] + "...") if line != text or not line else line[:40]
