"""Failing calls as small files: written by `--export-failing FOLDER`, run again by `--replay`, opened by `load`.

    python -m routelaws.conformance --backend my_moe --export-failing failing
    python -m routelaws.conformance --replay failing --backend my_moe

or, in a debugger of one's own:

    >>> from routelaws.conformance.replay import load                         # doctest: +SKIP
    >>> case = load("failing/my_moe--notation.softmax--test_notation.test_softmax.json")  # doctest: +SKIP
    >>> my_moe.softmax(*case.arguments, **case.keywords)                      # doctest: +SKIP

A file holds one failed test: its smallest example as Hypothesis found it, or, where a function raised, hung, changed
its inputs or returned the wrong shape, the call that did. It is JSON in the encoding of `vectors` (floats in
hexadecimal), with the dtype of each array, and with records and configurations by the name of their class.

    "verdict", "detail", "test", "example"   what was found, by which test, on which example
    "bound", "share"                         the bound that was exceeded, and by how many times; null where none was
    "calls", "call"                          the calls of the example in their order, and which of them is at fault
    "precision"                              of a call: that of its floats, but for an array that is bfloat16 by itself
    "expected", "found"                      what was compared, or what that call should have returned and did
    "compared"                               the comparison that failed, where it is of one output of that call
    "call_differs"                           whether the call shows by itself that something is wrong
    "again"                                  the command with which the suite judges again

With "compared", a replay judges as the test did. What was expected is the reference's answer, computed anew, where it
was that then ("live"); else it is what stands in the file, which may have come from another function of the backend.

Without it ("note" says so) the test asked for more than one call can show, such as a gradient or the same result in
two ways: a replay then runs the calls, compares their floats with the reference's to half of the digits, and leaves the
judgement to the suite. So it does where only whole numbers differ, since near a tie either choice can be right.
"""

import dataclasses
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import routelaws
from routelaws.accelerated.json_files import parse_json
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.engine import backends
from routelaws.conformance.engine.harness import UNIT
from routelaws.conformance.engine.ledger import Call, Ledger
from routelaws.conformance.engine.names import public_functions, reference_names, reference_part
from routelaws.conformance.engine.values import arrays_of, as_numpy, fields_of
from routelaws.conformance.vectors import files as vectors

FORMAT = 1
"""Version of the format. It rises when a reader written for the one before would misread a file."""

COMPARISONS = {
    "assert_close_bounded": ("found", "expected", ("name", "scale")),
    "assert_same": ("found", "expected", ()),
    "assert_admissible_top_k": ("chosen", "scores", ("margin",)),
}
"""Functions of `compare` that a replay calls again: what they judge, what they hold it to, and what else they need."""

_LAWS = "laws.catalogue.LAWS"


class ReplayError(backends.BackendError):
    """A file cannot be read or its call cannot be made; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Unwritten:
    """Stands where a value could not be written, such as a function that the test made."""

    text: str


# Values as JSON and back.


def encode(value, find: Callable[[str], Any] = lambda path: None) -> Any:
    """Return what stands in a file for a value; the inverse of `decode`.

    Args:
        value: arrays of any library, numbers, texts, and nested dicts, lists, tuples, records and configurations.
        find: returns what the backend has under a path, None where it has nothing.

    Example:
        >>> encode(np.array([0.5, -0.0], np.float32))
        {'dtype': 'float32', 'shape': [2], 'values': ['0x1p-1', '-0x0p+0']}
        >>> encode((1, 2.0, len))
        {'tuple': [1, {'float': '0x1p+1'}, {'unwritten': '<built-in function len>'}]}
    """
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"tree": {key: encode(part, find) for key, part in value.items()}}
    kind = type(value).__name__
    if kind == "Law" and any(value is laws.get(value.name) for laws in _catalogues(find)):
        return {"law": value.name}
    path = _path_of_class(kind)
    if path and fields_of(value):
        fields = {name: encode(getattr(value, name), find) for name in fields_of(value)}
        return {"record": fields, "of": path}
    if type(value) in (list, tuple):
        parts = [encode(part, find) for part in value]
        return parts if type(value) is list else {"tuple": parts}
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return {"generator": value.bit_generator.state}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _encode_array(value)
    return vectors.encode(value) if isinstance(value, bool | int | float | str | None) else {"unwritten": _text(value)}


def _encode_array(value) -> dict:
    try:
        array = np.asarray(as_numpy(value))
        wide = {"f": np.float64, "V": np.float64, "i": np.int64, "u": np.int64, "b": bool}[array.dtype.kind]
        entry = vectors.encode(array.astype(wide)) | {"dtype": array.dtype.name}
    except Exception:  # what JAX traces, keys, and whatever else calls itself an array
        return {"unwritten": _text(value)}
    return entry | ({"scalar": True} if isinstance(value, np.generic) else {})


def decode(value, find: Callable[[str], Any] = lambda path: None) -> Any:
    """Return the value that stands in a file: NumPy's arrays in their dtype, classes of the backend or the reference.

    Example:
        >>> decode({"dtype": "float32", "shape": [1, 2], "values": ["0x1.8p+0", "-inf"]})
        array([[ 1.5, -inf]], dtype=float32)
    """
    if isinstance(value, list):
        return [decode(part, find) for part in value]
    if not isinstance(value, dict):
        return value
    if "record" in value:
        fields = {name: decode(part, find) for name, part in value["record"].items()}
        return _class(value["of"], find)(**fields)
    if "tree" in value:
        return {name: decode(part, find) for name, part in value["tree"].items()}
    if "tuple" in value:
        return tuple(decode(part, find) for part in value["tuple"])
    if "law" in value:
        return next(laws[value["law"]] for laws in _catalogues(find) if value["law"] in laws)
    if "generator" in value:
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = value["generator"]
        return generator
    if "unwritten" in value:
        return Unwritten(value["unwritten"])
    if "values" not in value:
        return float.fromhex(value["float"])
    dtype = backends.jax.numpy.dtype(value["dtype"])  # it knows bfloat16
    kind = {"b": "bool", "i": "int", "u": "int"}.get(dtype.kind, "float")
    array = np.asarray(vectors.decode(value | {"dtype": kind})).astype(dtype)
    return array[()] if value.get("scalar") else array


def _text(value) -> str:
    return " ".join(repr(value).split())[:200]


def _catalogues(find) -> list[dict]:
    """Return the laws by name of the backend, if it has them, and of the reference."""
    own = find(_LAWS)
    return [*([own] if isinstance(own, dict) else []), reference_part("laws.catalogue").LAWS]


def _path_of_class(name: str) -> str | None:
    """Return the path of the reference's class of this name, None if there is none."""
    return next((path for path in reference_names()[1] if path.rpartition(".")[2] == name), None)


def _class(path: str, find):
    """Return a class: a record of the reference, or the backend's configuration where it has one."""
    own = reference_names()[1][path]
    if hasattr(own, "_replace"):  # `Backend` makes the backend's own of it
        return own
    name = path.rpartition(".")[2]
    rooms = [room for room in sorted(reference_names()[2]) if hasattr(reference_part(room), name)]
    return next(filter(None, map(find, [path, *(f"{room}.{name}" for room in rooms), name])), own)


def encode_call(call: Call, find: Callable[[str], Any] = lambda path: None) -> dict:
    """Return the entry of a call."""
    return {
        "function": call.function,
        "precision": precision_of(call),
        "static": None if call.static is None else list(call.static),
        "arguments": [encode(part, find) for part in call.arguments],
        "keywords": {name: encode(part, find) for name, part in call.keywords.items()},
    }


def call_of(entry: dict, find: Callable[[str], Any] = lambda path: None) -> Call:
    """Return the call of an entry; without `find` with the reference's classes, as `reference_of` needs it."""
    static = None if entry["static"] is None else tuple(entry["static"])
    arguments, keywords = tuple(decode(entry["arguments"], find)), decode({"tree": entry["keywords"]}, find)
    if entry["precision"] not in (None, *UNIT) or not set(static or ()) <= set(keywords):
        raise ValueError(f"precision {entry['precision']!r}, static {static}")
    return Call(entry["function"], arguments, keywords, entry["precision"], static)


def precision_of(call: Call) -> str | None:
    """Return the precision of a call: that asked for, or that of the arrays of JAX that it was given."""
    if call.precision:
        return call.precision
    arrays = [leaf for leaf in arrays_of((call.arguments, call.keywords)) if not isinstance(leaf, np.ndarray)]
    names = {getattr(leaf.dtype, "name", None) for leaf in arrays}
    return next((name for name in UNIT if name in names), None)  # the widest: an array in bfloat16 stays in it


def map_arrays(tree, change):
    """Return a tree with its arrays changed."""
    if isinstance(tree, dict):
        return {key: map_arrays(part, change) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [map_arrays(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_replace") else type(tree)(parts)
    return change(tree) if hasattr(tree, "shape") and hasattr(tree, "dtype") else tree


def in_precision(tree, precision: str | None):
    """Return a tree of NumPy's arrays with its floats in a precision; as they are where it is None, or in bfloat16."""

    def leaf(value):
        known = precision and value.dtype.kind == "f"
        return value.astype(backends.jax.numpy.dtype(precision)) if known else value

    return map_arrays(tree, leaf)


def unwritten(tree) -> str:
    """Return the first thing in a decoded tree that could not be written, "" if there is none."""
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    if isinstance(tree, Unwritten):
        return tree.text
    return next(filter(None, map(unwritten, parts)), "")


# What a case is.


@dataclasses.dataclass(frozen=True)
class Case:
    """A failed test, as it stands in a file."""

    file: str
    function: str  # path of the reference's function, such as "routers.top_k.top_k_router"
    backend: str
    verdict: str  # one of `report.VERDICTS`
    detail: str
    test: str
    example: str  # as Hypothesis prints it; "" where the test has fixed inputs
    bound: str | None
    share: float | None
    time_limit: float  # seconds for one call
    note: str  # what a replay cannot show; "" where it judges as the test did
    again: str  # the command with which the suite judges again
    calls: tuple[Call, ...]
    call: int | None  # which of them is at fault; None where the test made none with numbers
    call_differs: bool  # its result is not the reference's in half of the digits
    compared: dict | None  # the comparison that failed: "by", "output", "live" and its "arguments"
    expected: Any
    found: Any
    namespace: Any = None

    @property
    def main(self) -> Call:
        """The call at fault."""
        if self.call is None:
            raise ReplayError(f"{self.file}: it holds no call; {self.note}")
        return self.calls[self.call]

    @property
    def arguments(self) -> tuple:
        """The positional arguments of the call at fault: copies, as the backend wants them."""
        return self._given(self.main.arguments)

    @property
    def keywords(self) -> dict:
        """The keyword arguments of the call at fault."""
        return self._given(self.main.keywords)

    def _given(self, value):
        if unwritten(value):
            raise ReplayError(f"{self.file}: a value of this call could not be written: {unwritten(value)}")
        backend = backends.Backend(
            "replay", types.SimpleNamespace() if self.namespace is None else self.namespace, Ledger()
        )
        backend.dtypes = tuple(UNIT)  # what the file holds, whatever is offered
        return backend._given(in_precision(value, self.main.precision), None)


def load(path, namespace=None) -> Case:
    """Return the case of a file.

    Args:
        path: of the file.
        namespace: a backend, for arrays, records and configurations of its own; without it they are NumPy's (in the
            precision of the call) and the reference's.

    Raises:
        ReplayError: the file cannot be read, is damaged, of another version, or names a function that the reference
            does not have.

    Example:
        >>> case = load("failing/my_moe--notation.softmax--test_softmax.json")   # doctest: +SKIP
        >>> my_moe.softmax(*case.arguments, **case.keywords), case.expected      # doctest: +SKIP
    """
    try:
        document = parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReplayError(f"{path}: it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ReplayError(f"{path}: it is damaged, no JSON ({' '.join(str(error).split())})") from error
    if not isinstance(document, dict) or "format" not in document:
        raise ReplayError(f"{path}: it is no file of --export-failing: it names no format")
    for name, known in (("format", FORMAT), ("suite", routelaws.__version__)):
        if document.get(name) != known:
            raise ReplayError(f"{path}: {name} is {document.get(name)!r}, this is {known!r}; export the failure anew")
    find = (lambda path: None) if namespace is None else backends.Backend("replay", namespace, Ledger())._find
    try:
        case = _case(str(path), document, find, namespace)
        unknown = {case.function, *(call.function for call in case.calls)} - set(public_functions())
    except Exception as error:  # an entry that is not there, or holds something else
        raise ReplayError(f"{path}: it is damaged ({type(error).__name__}: {' '.join(str(error).split())})") from error
    if unknown:
        raise ReplayError(f"{path}: {', '.join(sorted(unknown))} is no function of the reference; --list shows them")
    return case


def _case(path: str, document: dict, find, namespace) -> Case:
    other = ("file", "calls", "compared", "expected", "found", "namespace", "share", "time_limit")
    plain = {field.name: document[field.name] for field in dataclasses.fields(Case) if field.name not in other}
    compared = document["compared"]
    if compared:
        given, (_, held_to, more) = decode(compared["arguments"]), COMPARISONS[compared["by"]]
        if set(given) != {held_to, *more, "what"} or given.get("name", "") not in ("", *BOUNDS):
            raise ValueError(f"compared by {compared['by']} with {', '.join(given)}")
        compared = {"by": compared["by"], "output": compared["output"], "live": compared["live"], "arguments": given}
    calls = tuple(call_of(entry, find) for entry in document["calls"])
    if plain["call"] is not None:
        _ = calls[plain["call"]]
    share = None if document["share"] is None else float(document["share"])
    values = {name: decode(document[name]) for name in ("expected", "found")} | {
        "share": share,
        "time_limit": float(document["time_limit"]),
    }
    return Case(file=path, calls=calls, compared=compared, namespace=namespace, **plain, **values)
