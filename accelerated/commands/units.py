"""Amounts as people write them: 1e21 FLOPs, 80GB, 24GiB, 1.5T tokens, bf16.

    FLOPs     1e21, "1e21 FLOPs", 3ZFLOPs; K M G T P E Z Y are thousands, millions and so on; PF-days are 8.64e19 each
    bytes     kB MB GB TB PB are powers of 1000, KiB MiB GiB TiB PiB powers of 1024; a unit has to be there
    tokens    2e10, 300B, 1.5T; K M B T are thousands, millions, billions, trillions; "300B tokens" too
    numbers   fp32 4 bytes, bf16 and fp16 2, fp8 and int8 1, int4 half a byte; or a number of bytes

Numbers are those of a CSV file: digits, a decimal point, an exponent. A comma, an underscore, a sign, infinity and what
is beyond the limits below is refused, in one line that says what is allowed.
"""

import math
import re

from ..errors import InputError

_AMOUNT = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*(.*)", re.ASCII | re.DOTALL)

_PREFIXES = {"": 1.0} | {letter: 1000.0 ** (i + 1) for i, letter in enumerate("KMGTPEZY")}
FLOPS = {
    **{prefix + name: scale for prefix, scale in _PREFIXES.items() for name in ("", "FLOP", "FLOPs", "flop", "flops")},
    "PF-day": 8.64e19, "PF-days": 8.64e19,
}  # fmt: skip
BYTES = {
    "B": 1.0,
    **{spelled: 1000.0 ** (i + 1) for i, p in enumerate("KMGTP") for spelled in (f"{p}B", f"{p}B".lower())},
    "kB": 1000.0,
    **{spelled: 1024.0 ** (i + 1) for i, p in enumerate("KMGTP") for spelled in (f"{p}iB", f"{p}iB".lower())},
}
TOKENS = {
    prefix + name: scale
    for prefix, scale in {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.items()
    for name in ("", " tokens", "tokens")
}
NUMBERS = {
    "fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "float8": 1.0,
    "int8": 1.0, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
"""Bytes of one number."""

MOST_FLOPS = 1e35
MOST_BYTES = 1e18
MOST_TOKENS = 1e18
"""Beyond these a number is taken for a slip."""


def flops_of(text: str, flag: str = "--flops") -> float:
    """Return a number of FLOPs; InputError unless it is one from 1 to `MOST_FLOPS`."""
    return _amount(text, flag, FLOPS, "FLOPs, such as 1e21 or 3ZFLOPs", 1.0, MOST_FLOPS)


def bytes_of(text: str, flag: str = "--memory") -> float:
    """Return a number of bytes; InputError unless it has a unit and is from 1 B to `MOST_BYTES`."""
    if _AMOUNT.fullmatch(text.strip()) and not _AMOUNT.fullmatch(text.strip())[3]:
        raise InputError(f"{flag} {text}: the unit is missing; needed: memory, such as 80GB or 24GiB")
    return _amount(text, flag, BYTES, "memory, such as 80GB or 24GiB", 1.0, MOST_BYTES)


def tokens_of(text: str, flag: str, least: float = 1.0) -> float:
    """Return a number of tokens; InputError unless it is one from `least` to `MOST_TOKENS`."""
    return _amount(text, flag, TOKENS, "tokens, such as 2e10, 300B or 1.5T", least, MOST_TOKENS)


def number_bytes_of(text: str, flag: str = "--dtype") -> float:
    """Return the bytes of one number, by the name of its type or as a number of bytes up to 8."""
    if text in NUMBERS:
        return NUMBERS[text]
    needed = f"a type of numbers ({', '.join(NUMBERS)}), or bytes for each, such as 2"
    return _amount(text, flag, {"": 1.0}, needed, 1e-3, 8.0)


def _amount(text: str, flag: str, units: dict[str, float], needed: str, low: float, high: float) -> float:
    """Return a number times its unit; InputError, in one line, unless it is between two limits."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{flag} {_shown(text)}: is not an amount; needed: {needed}")
    number, unit = float(found[1] + (found[2] or "")), found[3]
    if unit not in units:
        raise InputError(f"{flag} {_shown(text)}: unit {_shown(unit)} is not known; needed: {needed}")
    value = number * units[unit]
    if not math.isfinite(value) or value > high:
        raise InputError(f"{flag} {_shown(text)}: is more than {high:g}; needed: {needed}")
    if value < low:
        raise InputError(f"{flag} {_shown(text)}: is less than {low:g}; needed: {needed}")
    return value


def _shown(text: str) -> str:
    """Return what was typed, on one line and of a length that can be read."""
    said = " ".join(text.split())
    return repr(said if len(said) <= 40 else said[:37] + "...") if said != text or not said else said[:40]
