"""What `routelaws --limit NAME=NUMBER COMMAND ...` says: limits on the tables that the command reads."""

import math

from ..errors import InputError
from ..tables.reading import LIMITS
from ..tables.schema import RANGES, range_of, shorten, to_numbers
from ..tables.units import BYTES, UNITS_OF

FLAG = "--limit"


def take_limits(arguments: list[str]) -> tuple[dict[str, float], list[str]]:
    """Return the limits that stand before the command, and the command with its flags.

    Raises:
        InputError: one has no such form, or no such name.
    """
    limits = {}
    while arguments and arguments[0].partition("=")[0] == FLAG:
        word, *arguments = arguments
        if word == FLAG:
            word, arguments = f"{FLAG}={arguments[0] if arguments else ''}", arguments[1:]
        name, _, text = word.removeprefix(f"{FLAG}=").partition("=")
        limits[name] = _limit(name, text)
    return limits, arguments


def _limit(name: str, text: str) -> float:
    """Return one limit; InputError where it is none."""
    allowed = range_of(name)
    if name not in LIMITS and (allowed is None or math.isinf(allowed.limit)):
        columns = ", ".join(column for column in RANGES if math.isfinite(RANGES[column].limit))
        raise InputError(
            f"{FLAG} {shorten(name)}: no such limit; needed: NAME=NUMBER, of {', '.join(LIMITS)}, {columns}"
        )
    [number], [wrong] = to_numbers([text], BYTES if name in LIMITS else UNITS_OF.get(name))
    if wrong or not number > 0:
        raise InputError(f"{FLAG} {name}={shorten(text)}: needed: a number above 0")
    return float(number)
