"""Flags of a command from the parameters of a function."""

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Sequence

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    Token,
    UnusedCliTokensError,
    convert,
)

from ..errors import InputError
from ..tables.reading import LIMITS
from ..tables.schema import BLANK, RANGES, bounds_of, shorten, to_numbers
from ..tables.units import BYTES, UNITS_OF
from ..wording import SHOWN, in_short


def fields(kind: type) -> Parameter:
    """Return the mark of a parameter that is a dataclass: its fields are flags, below the first line of its text."""
    return Parameter(name="*", group=Group.create_ordered(kind.__doc__.partition("\n")[0].rstrip(".")))


HIDDEN = Parameter(parse=False)
"""Marks a field of such a dataclass that is no flag."""


def run(function, command: str, arguments: list[str]):
    """Call a function with parameters from the flags; wrong flags raise `InputError`."""
    app = App(
        name=f"routelaws {command}",
        default_parameter=Parameter(
            allow_repeating=True,  # the last value of a flag counts; a flag of several values takes all of them
            consume_multiple=True,
            converter=_value,
            json_dict=False,
            json_list=False,
            negative_iterable=(),
            show_default=_shown,
        ),
        help_flags=(),
        help_format="markdown",
        version_flags=(),
    )
    app.default(function)
    if {"-h", "--help"} & set(arguments):
        app.help_print()
        return None
    try:
        _, bound, _ = app.parse_args(_positional_first(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise InputError(_line(error)) from None
    return function(*bound.args, **bound.kwargs)


def _positional_first(arguments: list[str]) -> list[str]:
    """Put the words after --flag=value first, because the parser would take them as more values of this flag."""
    first, others = [], []
    into = first
    for word in arguments:
        if word.startswith("--"):
            into = first if "=" in word else others
            others.append(word)
        else:
            into.append(word)
    return first + others


def _shown(default) -> str | None:
    """Return the text of a default in --help; None for no text."""
    if default is None or default is False or default in ((), ""):
        return None
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _value(kind: type, tokens: Sequence[Token]):
    """Return the value of a flag. Numbers are read as in tables: 1_0 and other digits than ASCII are none."""
    numbers = [_NUMBERS[each] for each in (kind, *typing.get_args(kind)) if each in _NUMBERS]
    if not numbers:
        return convert(kind, tokens)
    values = tuple(numbers[0](token.value) for token in tokens)
    return values if typing.get_origin(kind) is tuple else values[-1]


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise ValueError(f"{text} is not a whole number; use a number such as 3")
    if len(text) > 30 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text} is out of range; use a whole number from -2^63 to 2^63 - 1")
    return int(text)


def _real_number(text: str) -> float:
    [number], [wrong] = to_numbers([text])
    if wrong or (text in BLANK and text.lower() != "nan"):
        raise ValueError(f"{text} is not a number; use a number such as 7e9")
    return float(number)


_NUMBERS = {int: _whole_number, float: _real_number}


def _line(error: CycloptsError) -> str:
    """Return the parser's error as one line: our words for numbers, missing values and words without a flag."""
    if isinstance(error, CoercionError) and error.msg is not None:
        return f"{error.argument.name} {error.msg}"
    if isinstance(error, MissingArgumentError):
        count, _ = error.argument.token_count()
        needed = f"{error.keyword} needs {'a value' if count == 1 else f'{count} values'}"
        return needed if error.keyword else f"{error.argument.name} is missing"
    if isinstance(error, UnusedCliTokensError):
        quoted = "; if the shell expanded a pattern, put the pattern in quotes, as in '*.txt'"
        return f"no flag takes {in_short(error.unused_tokens)}{quoted * (len(error.unused_tokens) > SHOWN)}"
    return str(error).rstrip(".")


def in_flags(message: str, names: list[str]) -> str:
    """Return a message with field names as flags: "d_model is 7" becomes "--d-model is 7".

    A one-word name, such as experts, is replaced only if a value follows; otherwise it may be an English word.
    """
    longest_first = "|".join(sorted(names, key=len, reverse=True))
    field = rf"(?<![\w'-])({longest_first})(?![\w'-])"
    value_follows = r"(?= is | = | has to | [-\d'])"

    def flag(found: re.Match) -> str:
        return "--" + found[1].replace("_", "-")

    message = re.sub(field + value_follows, flag, message)
    return re.sub(field, lambda found: flag(found) if "_" in found[1] else found[0], message)


def given(flags, *needed: str) -> dict:
    """Return {name: value} of the flags of a dataclass that differ from their defaults, except the needed ones."""
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags) if field.name not in needed}
    return {name.replace("_", "-"): value for name, value in values.items() if value != getattr(type(flags), name)}


def refuse(flags: dict, why: str) -> None:
    """Raise `InputError` for a flag that another flag makes meaningless.

    Args:
        flags: names without dashes, and values; None for absent flags, and True for flags without a value.
        why: the end of the message.
    """
    for name, value in flags.items():
        if value is not None:
            values = value if isinstance(value, tuple) else (value,)
            shown = (f" {each:g}" if isinstance(each, float) else f" {each}" for each in values if each is not True)
            raise InputError(f"--{name}{''.join(shown)}: {why}")


def check_counts(flags: dict) -> None:
    """Raise `InputError` for a number below 1. `flags` has names without dashes, and values; None for absent flags."""
    for name, number in flags.items():
        if number is not None and number < 1:
            raise InputError(f"--{name} {number} is out of range; use 1 or more")


def check_level(level: float) -> None:
    """Raise `InputError` unless --level is a confidence level, between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"--level {level:g} is out of range; use a number between 0 and 1")


def value_of(flag: str, arguments: list[str]) -> str | None:
    """Return the value of a flag before the parser reads the flags: the last one, as the parser does."""
    value = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        name, equals, text = argument.partition("=")
        if name.startswith("--") and name.replace("_", "-") == flag:
            value = text if equals else following
    return value


FLAG = "--limit"


def take_limits(arguments: list[str]) -> tuple[dict[str, float], list[str]]:
    """Split the arguments: return the limits (--limit) before the command, and the command with its flags.

    Raises:
        InputError: the form or the name of a limit is wrong.
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
    allowed = bounds_of(name)
    if name not in LIMITS and (allowed is None or math.isinf(allowed.limit)):
        columns = ", ".join(column for column in RANGES if math.isfinite(RANGES[column].limit))
        raise InputError(
            f"{FLAG} {shorten(name)}: no such limit; needed: NAME=NUMBER, NAME one of {', '.join(LIMITS)}, {columns}"
        )
    [number], [wrong] = to_numbers([text], BYTES if name in LIMITS else UNITS_OF.get(name))
    if wrong or not number > 0:
        raise InputError(f"{FLAG} {name}={shorten(text)} is out of range; use a number above 0")
    return float(number)
