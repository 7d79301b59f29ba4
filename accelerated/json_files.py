"""Read JSON that a user may have changed: parse it strictly, and compare its structure with a form.

    read_json(path, {"name": str, "runs": [dict]})      an object with a text and a list of objects
    NUMBER, {"jobs?": int}, {"*": str}                  an int or a float; a key that may be missing; any keys

An object may have more keys than its form, because a later version may have written it.
"""

import json
import math
from pathlib import Path

from .errors import InputError
from .files import read_bytes

NUMBER = (int, float)
"""The form of any number."""

NULL = type(None)
"""The form of null. (*NUMBER, NULL) is the form of a number or null."""

LONGEST = 40
"""A message shows up to this many characters of a wrong value."""

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    NUMBER: "a number",
    (*NUMBER, NULL): "a number or null",
    (str, NULL): "text or null",
}


def parse_json(text: str, *, infinite: bool = False):
    """Parse a JSON text.

    Args:
        text: the JSON.
        infinite: whether to allow NaN and Infinity, which Python writes but JSON lacks.

    Raises:
        ValueError: the text is invalid JSON, is nested too deeply, or has a repeated key or a non-finite number.
    """
    finite = {} if infinite else {"parse_constant": _finite, "parse_float": _finite}
    try:
        return json.loads(text, object_pairs_hook=_each_once, **finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, form):
    """Read a JSON file and check its form (see `misfit`).

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the file cannot be read, is not JSON, or has another form; the message gives the place and the form.
    """
    try:
        value = parse_json(read_bytes(path).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from None
    if wrong := misfit(value, form):
        raise InputError(f"{path}: {wrong}")
    return value


def misfit(value, form, place: str = "") -> str | None:
    """Return the first difference between a JSON value and its form; None if there is none.

    Args:
        value: the parsed JSON.
        form: a type, or several types such as `NUMBER`; [form] for a list of such values; {"key": form, "key?": form}
            for an object; {"*": form} for an object with any keys.
        place: place of the value in the file, such as runs[3].steps.
    """
    kind = type(form) if isinstance(form, dict | list) else form
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return f"{place or 'its content'} is {shown(value)}; {_NAMES[kind]} is needed"
    if isinstance(form, list):
        inner = ((item, form[0], f"{place}[{i}]") for i, item in enumerate(value))
    elif isinstance(form, dict):
        before = f"{place}." if place else ""
        keys = dict.fromkeys(value, "*") if "*" in form else {key.rstrip("?"): key for key in form}
        missing = [name for name, key in keys.items() if name == key and name not in value]
        if missing:
            return f"{before}{missing[0]} is missing"
        inner = ((value[name], form[key], before + name) for name, key in keys.items() if name in value)
    else:
        return None
    return next(filter(None, (misfit(*each) for each in inner)), None)


def shown(value) -> str:
    """Return a value for a message: one line, truncated."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _each_once(pairs: list[tuple]) -> dict:
    entries = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"the key {shown(name)} appears twice")
        entries[name] = value
    return entries
