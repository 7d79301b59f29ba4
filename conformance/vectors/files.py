"""Vectors: inputs and right answers as JSON files, written by the reference for implementations in any language.

    python -m routelaws.conformance.vectors --out DIR

writes one file for each function. The files in `vectors/` beside this module were written so, and a test writes them
again and compares. docs/vectors.md explains the format to somebody who reads it in another language; in Python:

    read_vectors(folder)              the files, with arrays for arrays
    check_vectors(folder, namespace)  a list of what a backend gets wrong; empty if it is right

What a check asks for is one of the rules of `rules.py`. Where several answers are right (equal scores, equally good
assignments) the check lists them or states a condition. Where the reference has a rule for ties, a second check of that
rule is marked, so that a library with another rule fails that one alone and knows why.

The cases themselves are in `cases.py`.
"""

import argparse
import collections
import inspect
import json
import operator
import pathlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.vectors.rules import RULES

FORMAT, NESTED = 1, 2
"""Versions of the format. It rises when a reader written for the one before would misread a file: 2 has what stands
within results and inputs (records in records, lists, laws by name, text, NaN)."""

FOLDER = pathlib.Path(__file__).parent
"""The files that come with the package."""

PRECISIONS = {"float64": 2.0**-53, "float32": 2.0**-24}
"""Half the distance from 1 to the next number: the u in which bounds are stated."""


class Failure(NamedTuple):
    """One thing that a backend gets wrong, or does not have."""

    function: str  # such as "routers.sinkhorn.sinkhorn_plan"
    case: str  # name of the case; "" where the function is missing
    kind: str  # "missing", "raises", "tie rule" (another rule than ours, which may be meant) or "wrong"
    message: str  # what was expected and what was found


class Named(NamedTuple):
    """What a backend is given of its own, by name: a law, or a public function."""

    kind: str  # "law" or "public"
    name: str  # such as "bilinear", or "laws.linear_intervals.bilinear_design"


def encode(value, nested: bool = False) -> Any:
    """Return what stands in the file for a value; the inverse of `decode`.

    Args:
        value: to be written.
        nested: for files of format 2: records name their class, and a list may be a value.

    Example:
        >>> encode(np.array([[0.5, -0.0]]))
        {'dtype': 'float', 'shape': [1, 2], 'values': ['0x1p-1', '-0x0p+0']}
        >>> encode(3), encode(1.5), encode({"up": True})
        (3, {'float': '0x1.8p+0'}, {'tree': {'up': True}})
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and not isinstance(value, np.floating):
        return {"float": _hexadecimal(value)}
    if isinstance(value, dict):
        return {"tree": {name: encode(child, nested) for name, child in value.items()}}
    if isinstance(value, Named):
        return {value.kind: value.name}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        record = {"record": {name: encode(child, nested) for name, child in zip(value._fields, value, strict=True)}}
        return record | ({"of": _path(type(value))} if nested else {})
    if nested and isinstance(value, (list, tuple)):
        return [encode(child, nested) for child in value]
    value = np.asarray(value)
    flat = value.ravel().tolist()
    kind = {"b": "bool", "i": "int", "f": "float", "U": "text"}[value.dtype.kind]
    values = [_hexadecimal(v) for v in flat] if kind == "float" else flat
    return {"dtype": kind, "shape": list(value.shape), "values": values}


def _path(kind: type) -> str:
    """Return the name of a record's class in the library, such as "laws.dense.DenseFit"."""
    return f"{kind.__module__.partition('reference.')[2]}.{kind.__name__}"


def _hexadecimal(value: float) -> str:
    """Return the number as C's %a prints it, without the zeros at the end."""
    return re.sub(r"\.?0+p", "p", value.hex())


def decode(value) -> Any:
    """Return the value that stands in a file: arrays in float64, int64 and bool, records as named tuples.

    Example:
        >>> decode({"dtype": "float", "shape": [2, 1], "values": ["0x1.8p+0", "-inf"]}).tolist()
        [[1.5], [-inf]]
    """
    if isinstance(value, list):
        return [decode(child) for child in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float.fromhex(value["float"])
    if "tree" in value:
        return {name: decode(child) for name, child in value["tree"].items()}
    if "record" in value:
        fields = {name: decode(child) for name, child in value["record"].items()}
        kind = collections.namedtuple("Record", fields)
        kind.of = value.get("of", "")
        return kind(**fields)
    if len(value) == 1:
        [(kind, name)] = value.items()
        if kind in ("law", "public") and isinstance(name, str):
            return Named(kind, name)
    if "values" not in value:
        return {name: decode(child) for name, child in value.items()}
    kind = value["dtype"]
    flat = [float.fromhex(v) for v in value["values"]] if kind == "float" else value["values"]
    return np.array(flat, dtype={"float": np.float64, "int": np.int64, "bool": bool, "text": str}[kind]).reshape(
        value["shape"]
    )


def write_vectors(folder: pathlib.Path, leave: Collection[str] = ()) -> None:
    """Write all files but those of some functions, the same bytes each time."""
    from routelaws.conformance.vectors import cases

    folder.mkdir(parents=True, exist_ok=True)
    for document in cases.documents(leave):
        write_atomically(folder / f"{document['function']}.json", _text(document))


def _text(document: dict) -> str:
    """Return the JSON of a file: a line for each of its entries, and for each input and check of a case."""

    def block(items):
        if isinstance(items, dict):
            return "{" + ",\n    ".join(f"{json.dumps(name)}: {json.dumps(item)}" for name, item in items.items()) + "}"
        return "[" + ",\n    ".join(json.dumps(item) for item in items) + "]"

    cases = [
        f'  {{"name": {json.dumps(case["name"])},\n   "inputs": {block(case["inputs"])},\n   '
        f'"checks": {block(case["checks"])}}}'
        for case in document["cases"]
    ]
    head = [f' "{name}": {json.dumps(value)}' for name, value in document.items() if name != "cases"]
    return "{\n" + ",\n".join(head) + ',\n "cases": [\n' + ",\n".join(cases) + "\n ]\n}\n"


def read_vectors(folder: pathlib.Path | str = FOLDER, only: Collection[str] | None = None) -> dict[str, dict]:
    """Return the documents of a folder by the name of their function, decoded; those of some functions, or all.

    Raises:
        ValueError: a file is of another version of the format, or there is none.
    """
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        if only is not None and path.stem not in only:
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") not in (FORMAT, NESTED):
            raise ValueError(
                f"{path.name}: format is {document.get('format')!r}; this reader knows {FORMAT} and {NESTED}"
            )
        document["cases"] = decode(document["cases"])
        found[document["function"]] = document
    if not found:
        raise ValueError(f"{folder}: no vectors (*.json) there" + (f" of {', '.join(only)}" if only else ""))
    return found


def check_vectors(
    folder: pathlib.Path | str,
    namespace: Any,
    *,
    precision: str = "float64",
    only: Collection[str] | None = None,
    convert: Callable[[np.ndarray], Any] = np.copy,
) -> list[Failure]:
    """Return what a backend gets wrong.

    Args:
        folder: of the files; `FOLDER` for those that come with the package.
        namespace: the backend: a module or any object with the reference's public names, such as
            `routers.sinkhorn.sinkhorn_plan`. Records may be returned as objects with the fields as attributes, as
            dicts, or as tuples in the order of the fields.
        precision: "float64", or "float32" for a backend that computes in it: arrays of floats go in as that, bounds
            are in units of it, and files that ask for more are left out.
        only: names of functions; None for all.
        convert: makes the backend's own array of one of NumPy's.

    Returns:
        The failures; none if all is right.

    Raises:
        ValueError: the precision is unknown, or see `read_vectors`.
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
    """Return the failures of one case."""
    name = document["function"]
    try:
        inputs = {key: own(value, namespace) for key, value in case["inputs"].items()}
        result = _call(function, document["parameters"], inputs, precision, convert)
    except Exception as problem:  # whatever a stranger's function does, the next case has its turn
        return [Failure(name, case["name"], "raises", f"{type(problem).__name__}: {problem}")]
    failures = []
    for check in case["checks"]:
        if isinstance(check.get("of"), str):
            check = check | {"of": case["inputs"][check["of"]]}
        try:
            message = RULES[check["rule"]](check, _field(result, document["fields"]), PRECISIONS[precision], precision)
        except Exception as problem:  # a missing field, another shape or kind
            message = f"{type(problem).__name__}: {problem}"
        if message:
            kind = "tie rule" if check.get("tie_rule") else "wrong"
            failures.append(Failure(name, case["name"], kind, f"{check['output'] or 'result'}: {message}"))
    return failures


def parameter_names(function: Callable) -> list[str]:
    """Return the names of the arguments that may be given by position; of those that are gathered with their star."""
    kinds = inspect.signature(function).parameters.values()
    stars = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "", inspect.Parameter.VAR_POSITIONAL: "*"}
    return [stars[p.kind] + p.name for p in kinds if p.kind in stars]


def apply(function: Callable, parameters: list[str], values: dict[str, Any]):
    """Return function(...): the leading parameters by position, the others by name."""
    values, leading = dict(values), []
    for name in parameters:
        if name not in values:
            break
        value = values.pop(name)
        leading += value if name.startswith("*") else [value]
    return function(*leading, **values)


def own(value, namespace):
    """Return a decoded input with what it names taken from the backend: laws, functions, and classes of records."""
    if isinstance(value, Named):
        if value.kind == "law":
            return namespace.laws.catalogue.LAWS[value.name]
        return operator.attrgetter(value.name)(namespace)
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        return [own(child, namespace) for child in value]
    if isinstance(value, tuple):
        fields = [own(child, namespace) for child in value]
        try:
            kind = operator.attrgetter(value.of)(namespace) if value.of else type(value)
        except AttributeError:  # a backend with no class of its own
            kind = type(value)
        return kind(*fields)
    return value


def _call(function, parameters, inputs, precision, convert):
    """Return what a backend answers to inputs in its own arrays."""

    def prepared(value):
        if isinstance(value, np.ndarray):
            return convert(value.astype(precision) if value.dtype.kind == "f" else value)
        if isinstance(value, dict):
            return {name: prepared(child) for name, child in value.items()}
        if isinstance(value, list):
            return [prepared(child) for child in value]
        return value

    values = {name: prepared(value) for name, value in inputs.items()}
    return apply(function, parameters, values)


def _field(result, fields: list[str]) -> Callable[[str], np.ndarray]:
    """Return a function from an output, such as "gate" or "intervals.*.low", to what was returned there, as an array.

    A step of a path is a field, a place in a list, or * for all of its places.
    """

    def inside(value, steps: list[str], known: Sequence[str]):
        if not steps:
            return value
        step, *rest = steps
        if step == "*":
            return [inside(child, rest, ()) for child in value]
        if isinstance(value, dict):
            return inside(value[step], rest, ())
        if hasattr(value, step):
            return inside(getattr(value, step), rest, ())
        return inside(value[int(step) if step.isdecimal() else list(known).index(step)], rest, ())

    return lambda name: np.asarray(inside(result, name.split(".") if name else [], fields))


def main(arguments: list[str] | None = None) -> None:
    """Write the files to a folder."""
    parser = argparse.ArgumentParser(prog="python -m routelaws.conformance.vectors", description=write_vectors.__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder, made where it is not there")
    write_vectors(parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
