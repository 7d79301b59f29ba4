"""Vectors: inputs and right answers as JSON files, written by the reference for implementations in any language.

    python -m routelaws.conformance.vectors --out DIR

This command writes one file for each family of functions. It also made the files in this folder, and a test writes
them again and compares. docs/vectors.md explains the format. In Python, use these functions:

    read_vectors(folder)              the functions of all files, with NumPy arrays
    check_vectors(folder, namespace)  the failures of a backend; empty if all is right

A check applies a rule of `rules.py`. If several answers are right, such as with equal scores, the check lists all of
them or states a condition. A second check with a mark then tests the reference's tie rule. A library with another tie
rule fails only this second check.

The cases are in `cases.py`.
"""

import argparse
import collections
import dataclasses
import inspect
import json
import math
import operator
import pathlib
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.vectors.rules import RULES

FORMAT = 3
"""Version of the format. It increases if a reader of the previous version would misread a file."""

FOLDER = pathlib.Path(__file__).parent
"""The folder with the package's files."""

PRECISIONS = {"float64": 2.0**-53, "float32": 2.0**-24}
"""{precision: u}. u is half the distance from 1 to the next number, and bounds are multiples of u."""

_NO_DECIMALS = ("inf", "-inf", "nan")
_WIDTH = 118


class Failure(NamedTuple):
    """One wrong or missing result of a backend."""

    function: str  # such as "routers.sinkhorn.sinkhorn_plan"
    case: str  # name of the case; "" if the function is missing
    kind: str  # "missing", "raises", "tie rule" (the backend has another tie rule, perhaps on purpose) or "wrong"
    message: str  # the expected and the actual value, or the exception


def encode(value) -> Any:
    """Encode a value for a file: arrays as nested lists, records and dicts as objects.

    Example:
        >>> encode(np.array([[0.5, -0.0, np.inf]])), encode({"up": np.array([True])})
        ([[0.5, -0.0, 'inf']], {'up': [True]})
    """
    if hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        fields = value._asdict() if hasattr(value, "_fields") else vars(value)
        module = re.sub(r"^laws\.\w+\.", "laws.", type(value).__module__.partition("reference.")[2])  # without a folder
        return {"class": f"{module}.{type(value).__name__}"} | {name: encode(child) for name, child in fields.items()}
    if isinstance(value, dict):
        return {name: encode(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(child) for child in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return encode(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def decode(value) -> Any:
    """Decode a value from a file: lists of numbers as arrays in float64, int64 or bool, records as named tuples.

    Example:
        >>> decode([[1.5], ["-inf"]]).tolist(), decode({"class": "laws.dense.DenseLine", "slope": -0.5}).slope
        ([[1.5], [-inf]], -0.5)
    """
    if isinstance(value, list):
        parts = [decode(child) for child in value]
        is_array = all(isinstance(part, (bool, int, float, np.ndarray)) for part in parts)
        return np.asarray(parts) if is_array else parts
    if isinstance(value, dict):
        fields = {name: decode(child) for name, child in value.items() if name != "class"}
        if "class" not in value:
            return fields
        kind = collections.namedtuple("Record", fields)
        kind.of = value["class"]
        return kind(**fields)
    return float(value) if value in _NO_DECIMALS else value


def write_vectors(folder: pathlib.Path) -> None:
    """Write all files, the same bytes each time."""
    from routelaws.conformance.vectors import cases

    folder.mkdir(parents=True, exist_ok=True)
    for name in cases.FAMILIES:
        document = {"format": FORMAT, "functions": list(cases.documents(name))}
        write_atomically(folder / f"{name}.json", text_of(encode(document)) + "\n")


def text_of(value, indent: str = "") -> str:
    """Return a value as JSON. A list or object has one line if it fits, or else one line for each entry."""
    short = json.dumps(value, allow_nan=False)
    if len(short) + len(indent) <= _WIDTH or not isinstance(value, (dict, list)):
        return short
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + text_of(item, inner) for item in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(key)}: {text_of(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def read_vectors(folder: pathlib.Path | str = FOLDER, only: Collection[str] | None = None) -> dict[str, dict]:
    """Return {function: decoded entry} of some or all functions.

    Raises:
        ValueError: a file has another format version, or the folder has none of the functions.
    """
    entries = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") != FORMAT:
            raise ValueError(f"{path.name}: format is {document.get('format')!r}; this reader knows {FORMAT}")
        for entry in document["functions"]:
            if only is None or entry["function"] in only:
                entries[entry["function"]] = entry | {"cases": decode(entry["cases"])}
    if not entries:
        raise ValueError(f"{folder}: no vectors (*.json) there" + (f" of {', '.join(only)}" if only else ""))
    return entries


def check_vectors(
    folder: pathlib.Path | str,
    namespace: Any,
    *,
    precision: str = "float64",
    only: Collection[str] | None = None,
    convert: Callable[[np.ndarray], Any] = np.copy,
) -> list[Failure]:
    """Return the failures of a backend.

    Args:
        folder: the folder of the files; `FOLDER` has the package's files.
        namespace: the backend, a module or any object with the reference's public names, such as
            `routers.sinkhorn.sinkhorn_plan`. A function may return a record as an object with the fields as attributes,
            as a dict, or as a tuple in the order of the fields.
        precision: "float64" or "float32", the precision of float inputs and of u. With "float32", functions whose
            vectors need float64 are skipped.
        only: names of functions; None for all.
        convert: a function from a NumPy array to the backend's array.

    Returns:
        The failures; [] if all is right.

    Raises:
        ValueError: the precision is unknown, a file has another format version, or the folder has none of the
            functions.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}")
    failures = []
    for name, document in read_vectors(folder, only).items():
        if precision not in document["precisions"]:
            continue
        try:
            function = operator.attrgetter(name)(namespace)
        except AttributeError:
            failures.append(Failure(name, "", "missing", f"{name} is not there"))
            continue
        for case in document["cases"]:
            failures += _check_case(namespace, function, document, case, precision, convert)
    return failures


def _check_case(namespace, function, document, case, precision, convert) -> list[Failure]:
    name = document["function"]
    try:
        inputs = {key: own(value, namespace) for key, value in case["inputs"].items()}
        result = _call(function, document["parameters"], inputs, precision, convert)
    except Exception as problem:  # an exception is a failure of this case only
        return [Failure(name, case["name"], "raises", f"{type(problem).__name__}: {problem}")]
    failures = []
    for check in case["checks"]:
        if isinstance(check.get("of"), str):
            check = check | {"of": case["inputs"][check["of"]]}
        try:
            message = RULES[check["rule"]](check, _field(result, document["fields"]), PRECISIONS[precision], precision)
        except Exception as problem:  # for example, a field is missing or has a wrong shape
            message = f"{type(problem).__name__}: {problem}"
        if message:
            kind = "tie rule" if check.get("tie_rule") else "wrong"
            failures.append(Failure(name, case["name"], kind, f"{check['output'] or 'result'}: {message}"))
    return failures


def parameter_names(function: Callable) -> list[str]:
    """Return the names of the positional parameters. The name of a variadic parameter begins with *."""
    kinds = inspect.signature(function).parameters.values()
    stars = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "", inspect.Parameter.VAR_POSITIONAL: "*"}
    return [stars[p.kind] + p.name for p in kinds if p.kind in stars]


def apply(function: Callable, parameters: list[str], values: dict[str, Any]):
    """Call a function with the leading parameters by position and the other parameters by name."""
    values, leading = dict(values), []
    for name in parameters:
        if name not in values:
            break
        value = values.pop(name)
        leading += list(value) if name.startswith("*") else [value]
    return function(*leading, **values)


def own(value, namespace):
    """Return a decoded input with records of the backend's classes. Without a class, a record stays a named tuple."""
    if isinstance(value, list):
        return [own(child, namespace) for child in value]
    if not hasattr(type(value), "of"):
        return value
    fields = {name: own(child, namespace) for name, child in value._asdict().items()}
    try:
        kind = operator.attrgetter(value.of)(namespace)
    except AttributeError:
        kind = type(value)
    return kind(**fields)


def _call(function, parameters, inputs, precision, convert):
    """Call a function with inputs converted to the backend's arrays, and return its answer."""

    def prepared(value):
        if isinstance(value, np.ndarray):
            return convert(value.astype(precision) if value.dtype.kind == "f" else value)
        if isinstance(value, dict):
            return {name: prepared(child) for name, child in value.items()}
        if isinstance(value, list):
            return [prepared(child) for child in value]
        return value

    return apply(function, parameters, prepared(inputs))


def _field(result, fields: list[str]) -> Callable[[str], np.ndarray]:
    """Return a function from the name of an output, such as "gate" or "coefficients.a", to the array of the output."""

    def inside(value, step: str, known: list[str]):
        if isinstance(value, dict):
            return value[step]
        return getattr(value, step) if hasattr(value, step) else value[known.index(step)]

    def output(path: str) -> np.ndarray:
        value, known = result, fields
        for step in path.split(".") if path else []:
            value, known = inside(value, step, known), []
        return np.asarray(value)

    return output


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m routelaws.conformance.vectors", description=write_vectors.__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="output folder; created if it is missing")
    write_vectors(parser.parse_args(arguments).out)
