"""Flags of a command from the parameters of a function."""

import contextlib
import dataclasses
import functools
import inspect
import io
import math
import os
import re
import typing

import tyro

from ..errors import InputError
from ..tables.reading import LIMITS
from ..tables.schema import BLANK, RANGES, bounds_of, shorten, to_numbers
from ..tables.units import BYTES, UNITS_OF
from ..wording import SHOWN, in_short

_NO_NUMBER = r"Error parsing (--[\w.-]+): (?:.*<class '(?:int|float)'>: )?(.* is (?:not a|out of).*; use a .*)"
"""A pattern for the parser's message on a value that is not a number: the flag, and the message of `_number`."""

_NUMBERS = tyro.constructors.ConstructorRegistry()


@_NUMBERS.primitive_rule
def _number(of: tyro.constructors.PrimitiveTypeInfo):
    """Return the reader of a number flag. It rejects 1_0 and non-ASCII digits, as in tables."""
    if of.type not in (int, float):
        return None
    kind, read = ("INT", _whole_number) if of.type is int else ("FLOAT", _real_number)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind,
        instance_from_str=lambda texts: read(texts[0]),
        is_instance=lambda value: isinstance(value, of.type),
        str_from_instance=lambda value: [str(value)],
    )


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


def run(function, command: str, arguments: list[str]):
    """Call a function with parameters from the flags; wrong flags raise `InputError`."""
    stream = io.StringIO()
    try:
        with contextlib.redirect_stderr(stream), _wide(not {"-h", "--help"} & set(arguments)), _NUMBERS:
            call = tyro.cli(
                _deferred(function),
                args=_joined(arguments, function),
                prog=f"routelaws {command}",
                description=function.__doc__.partition("\n")[0],
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise InputError(_one_line(stream.getvalue())) from None
    return call()


def _joined(arguments: list[str], function) -> list[str]:
    """Merge repeated flags with several values: put the flag at the end, with all its values.

    The parser would keep only the values of the last flag.
    """
    flags = [word.partition("=")[0].replace("_", "-") if word.startswith("-") else None for word in arguments]
    repeated = {flag for flag in flags if flag and flags.count(flag) > 1}
    if not repeated or "--" in flags:
        return arguments
    values = {flag: [] for flag in sorted(repeated & _with_several_values(function))}
    into = others = []
    for word, flag in zip(arguments, flags, strict=True):
        if flag is not None:
            into = others
        if flag not in values:
            into.append(word)
        elif "=" in word:
            values[flag].append(word.partition("=")[2])
        else:
            into = values[flag]
    return others + [word for flag, words in values.items() for word in (flag, *words)]


def _with_several_values(function) -> set[str]:
    """Return the flags of a function or dataclass with any number of values: type tuple[X, ...]."""
    flags = set()
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        extras = getattr(hint, "__metadata__", ())
        hint = typing.get_args(hint)[0] if extras else hint
        if dataclasses.is_dataclass(hint):
            flags |= _with_several_values(hint)
        elif (
            typing.get_origin(hint) is tuple
            and ... in typing.get_args(hint)
            and tyro.conf.UseAppendAction not in extras
        ):
            flags.add("--" + name.replace("_", "-"))
    return flags


@contextlib.contextmanager
def _wide(wanted: bool):
    """Let the parser print errors on one line, without broken paths. Help keeps its width."""
    before = os.environ.get("COLUMNS")
    if wanted:
        os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


def _deferred(function):
    """Return a function with the same flags. It returns a deferred call, so that parsing ends before work begins."""

    @functools.wraps(function)
    def later(*args, **kwargs):
        return functools.partial(function, *args, **kwargs)

    del later.__wrapped__  # otherwise the parser reads its docstring
    later.__signature__, later.__doc__ = inspect.signature(function), _unfolded(function.__doc__)
    return later


def _unfolded(doc: str) -> str:
    """Return a docstring with the text of each parameter on one line, because the parser wraps lines itself."""
    head, marker, flags = inspect.cleandoc(doc).partition("Args:\n")
    return head + marker + re.sub(r"\n {5,}", " ", flags)


def _one_line(box: str) -> str:
    """Return the parser's boxed message as one line. Keep only the flags of the advice at the end of the box.

    The text is read from the box, because tyro gives errors as data only in a private module.
    """
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    rules = [i for i, line in enumerate(lines) if line and not line.strip("─-")]
    start = 2 if 1 in rules else 1
    until = next((i for i in rules if i >= start), len(lines))
    message = _shortened(" ".join(line for line in lines[start:until] if line)) or "the flags cannot be read"
    close = [line.split()[0] for line in lines[until:] if re.match("--[a-z]", line)]
    return f"{message}; did you mean {' or '.join(close)}?" if message.startswith("Unrecognized") and close else message


def _shortened(line: str) -> str:
    """Shorten a line with many unknown words, such as the files of a pattern that a shell has expanded."""
    if number := re.fullmatch(_NO_NUMBER, line):
        return f"{number[1]} {number[2]}"
    match = re.fullmatch(r"(Unrecognized options: )(.+)", line)
    words = match[2].split(", ") if match else []
    if len(words) <= SHOWN or any(word.startswith("-") for word in words):
        return line
    return f"{match[1]}{in_short(words)}; if the shell expanded a pattern, put the pattern in quotes, as in '*.txt'"


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
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
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
