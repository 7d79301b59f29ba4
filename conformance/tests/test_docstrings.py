"""`help()` of each fast twin is complete: shapes, errors and what differs. Its source repeats nothing of the reference.

`accelerated/_docstrings.py` joins the docstring of a twin with the docstring of the reference.
"""

import ast
import functools
import inspect
import sys
import types

import jax
import pytest

from routelaws.accelerated import _docstrings
from routelaws.accelerated._docstrings import _entries, _parts
from routelaws.conformance.tests.test_mirror import MIRRORED, find, parse, public_names

OWN_SUMMARY = {"check_finite", "one_hot"}
"""Twins whose first line names another dtype."""


def described(path: str, room: str) -> dict[str, ast.AST]:
    """Return {name: node} of the public functions, classes and methods of a file."""
    found = {}
    for name, node in public_names(parse(room, path)).items():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            methods = [item for item in getattr(node, "body", []) if isinstance(item, ast.FunctionDef)]
            found |= {f"{name}.{item.name}": item for item in methods * isinstance(node, ast.ClassDef)} | {name: node}
    return {name: node for name, node in found.items() if "._" not in name and ast.get_docstring(node)}


def parameters(function: ast.FunctionDef) -> set[str]:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs, function.args.vararg]
    return {each.arg for each in every if each} - {"self"}


def faults(name: str, node: ast.AST, text: str, reference: str) -> list[str]:
    """Return what the help of a twin lacks, from its node and text and from the text of the reference."""
    parts, needed = _parts(text), _parts(reference)
    found = [f"{name}: no {heading}" for heading in needed.keys() - parts.keys() - {"Example"}]
    if parts["summary"] != needed["summary"] and name not in OWN_SUMMARY:
        found.append(f"{name}: the first line is not {needed['summary']!r}")
    listed = {each for names in _entries(parts.get("Args", "")) for each in names.split(", ")} - {"Args", ""}
    if listed and isinstance(node, ast.FunctionDef):
        found += [f"{name}: {each} is not described or no argument" for each in listed ^ parameters(node)]
    if isinstance(node, ast.ClassDef):
        fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
        lines = {line.split(":")[0].strip() for line in parts.get("Attributes", "").splitlines()}
        found += [f"{name}: the field {each} is not described" for each in fields - lines]
    return found


def repeated(name: str, text: str, reference: str) -> list[str]:
    """Return the parts of a twin's docstring in its source that the reference already has."""
    parts, known = _parts(text), _parts(reference)
    again = [key for key, part in parts.items() if part and key != "summary" and part == known.get(key)]
    arguments = _entries(parts.get("Args", "")).items() & _entries(known.get("Args", "")).items()
    return [
        f"{name}: repeats {each}" for each in again + sorted(key for key, text in arguments if key not in ("Args", ""))
    ]


@pytest.mark.parametrize("path", [path for path in MIRRORED if not path.endswith("__init__.py")])
def test_the_help_of_a_twin_is_complete(path):
    module, twins = find("accelerated", path), described(path, "accelerated")
    joins = hasattr(module, "describe_twins")
    for name, original in described(path, "reference").items():
        if name in twins:
            text, reference = functools.reduce(getattr, name.split("."), module).__doc__, ast.get_docstring(original)
            problems = faults(name, twins[name], text, reference)
            problems += repeated(name, ast.get_docstring(twins[name]), reference) if joins else []
            assert not problems, "\n".join([path, *problems])


REFERENCE = '''"""Return the load.

It counts tokens.

Args:
    expert: [T, k] integers,
        in [0, E).
    number: E.

Returns:
    [E].

Raises:
    ValueError: an index is out of range.

Example:
    >>> 1
    1
"""'''
TWIN = '''"""Return the load.

Args:
    number: E, static.
    axis: a mapped axis.

Raises: nothing.

Differs from the reference: an index out of range is not counted.
"""'''
JOINED = """Return the load.

It counts tokens.

Args:
    expert: [T, k] integers,
        in [0, E).
    number: E, static.
    axis: a mapped axis.

Returns:
    [E].

Raises: nothing.

Differs from the reference: an index out of range is not counted."""


def test_a_compiled_function_and_a_method_get_the_whole_text(monkeypatch):
    source = "def load(expert, number):\n    {0}\nclass Bias:\n    {0}\n    def load(self):\n        {0}\n"
    rooms = {}
    for room, text in (("reference", REFERENCE), ("accelerated", TWIN)):
        rooms[room] = module = types.ModuleType(f"routelaws.{room}.example")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source.format(text), vars(module))
    twins, rooms["reference"].kept = rooms["accelerated"], None
    twins.load, twins._load, twins.kept = jax.jit(twins.load), twins.load, rooms["reference"].load
    _docstrings.describe_twins(twins.__name__)
    assert twins.load.__doc__ == twins.Bias.__doc__ == twins.Bias.load.__doc__ == JOINED
    assert list(inspect.signature(twins.load).parameters) == ["expert", "number"]
    assert twins._load.__doc__ == ast.literal_eval(TWIN) and twins.kept.__doc__ == ast.literal_eval(REFERENCE)
    assert not faults("load", ast.parse("def load(expert, number, axis): pass").body[0], JOINED, REFERENCE.strip('"'))


@pytest.mark.parametrize(
    ("code", "old", "new", "fault"),
    [("def load(expert, number, axis, new): pass", "", "", "new is not described"),
     ("def load(expert, number): pass", "", "", "axis is not described or no argument"),
     ("def load(expert, number, axis): pass", "Raises: nothing.", "", "no Raises"),
     ("def load(expert, number, axis): pass", "the load", "a load", "first line"),
     ("class load:\n    loss: int", "", "", "the field loss")],
)  # fmt: skip
def test_incomplete_help_is_seen(code, old, new, fault):
    found = faults("load", ast.parse(code).body[0], JOINED.replace(old, new), REFERENCE.strip('"'))
    assert len(found) == 1 and fault in found[0]


def test_repeated_text_is_seen():
    twin = TWIN.strip('"').replace("E, static", "E") + "\nReturns:\n    [E].\n"
    assert repeated("load", twin, REFERENCE.strip('"')) == ["load: repeats Returns", "load: repeats number"]
