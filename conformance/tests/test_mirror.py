"""Rules of the code, read from the source: twins have the same interface, and only slow functions have a twin."""

import ast
import doctest
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import routelaws
from routelaws import accelerated, reference

ROOMS = {
    name: Path(importlib.import_module(f"routelaws.{name}").__file__).parent
    for name in ("reference", "accelerated", "conformance")
}


def sources(room: str, tests: bool = False) -> list[str]:
    paths = (path.relative_to(ROOMS[room]) for path in ROOMS[room].rglob("*.py"))
    return sorted(path.as_posix() for path in paths if tests == (path.parts[0] == "tests") or room == "conformance")


def flat(path: str) -> str:
    """Return the path of a file as if `laws` had no folders: so users import it, and so the twins are ordered."""
    return re.sub(r"^laws/\w+/", "laws/", path)


@functools.cache
def parse(room: str, path: str) -> ast.Module:
    """Return the tree of a file or of its twin, which callers must not change."""
    return ast.parse((ROOMS[room] / (flat(path) if room == "accelerated" else path)).read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> set[str]:
    """Return the absolute names of all imported modules; "." stands for a relative import."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else node.module)
    return names


def parameters(function: ast.FunctionDef) -> tuple[list, dict]:
    """Return ([(name, default)] of the positional parameters, {name: default} of the keyword-only ones)."""
    a = function.args
    positional = a.posonlyargs + a.args
    defaults = [None] * (len(positional) - len(a.defaults)) + [ast.unparse(d) for d in a.defaults]
    keyword_only = {
        arg.arg: None if default is None else ast.unparse(default)
        for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)
    }
    positional = [(arg.arg, default) for arg, default in zip(positional, defaults, strict=True)]
    if a.vararg:
        positional.append(("*" + a.vararg.arg, None))
    return positional, keyword_only


def public_names(tree: ast.Module) -> dict:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return {name: node for name, node in found.items() if not name.startswith("_")}


def differences(reference: ast.Module, accelerated: ast.Module) -> list[str]:
    problems = []
    theirs = public_names(accelerated)
    for name, node in public_names(reference).items():
        if name not in theirs:
            continue
        if type(node) is not type(theirs[name]):
            problems.append(f"{name} is another kind of thing")
        elif isinstance(node, ast.FunctionDef):
            problems += function_differences(name, node, theirs[name])
        elif isinstance(node, ast.ClassDef):
            problems += class_differences(name, node, theirs[name])
    return problems


def function_differences(name: str, ours: ast.FunctionDef, theirs: ast.FunctionDef) -> list[str]:
    positional, keyword_only = parameters(ours)
    their_positional, their_keyword_only = parameters(theirs)
    problems = []
    if positional != their_positional:
        problems.append(f"{name}: parameters {positional}, accelerated {their_positional}")
    for key, default in keyword_only.items():
        if key not in their_keyword_only or their_keyword_only[key] != default:
            problems.append(f"{name}: {key}={default}, accelerated {their_keyword_only.get(key, 'lacks it')}")
    for key, default in their_keyword_only.items():
        if key not in keyword_only and default is None:
            problems.append(f"{name}: accelerated adds {key} without a default")
    return problems


def class_differences(name: str, ours: ast.ClassDef, theirs: ast.ClassDef) -> list[str]:
    def fields(node):
        return [
            (item.target.id, item.value and ast.unparse(item.value))
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]

    def methods(node):
        return {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}

    problems = []
    if fields(ours) != fields(theirs):
        problems.append(f"{name}: fields {fields(ours)}, accelerated {fields(theirs)}")
    if [ast.unparse(base) for base in ours.bases] != [ast.unparse(base) for base in theirs.bases]:
        problems.append(f"{name}: other bases")
    for key, method in methods(ours).items():
        if not key.startswith("_"):
            if key not in methods(theirs):
                problems.append(f"{name}.{key} is missing")
            else:
                problems += function_differences(f"{name}.{key}", method, methods(theirs)[key])
    return problems


MODULES = [path for path in sources("reference") if not Path(path).name.startswith("_") and path != "errors.py"]
MIRRORED = [path for path in MODULES if (ROOMS["accelerated"] / flat(path)).is_file()]


def test_mirror():
    found = {path: differences(parse("reference", path), parse("accelerated", path)) for path in MIRRORED}
    assert not any(found.values()), {path: problems for path, problems in found.items() if problems}


def find(room: str, path: str):
    """Return a module of a room by its file, as a user names it: by attributes of the room."""
    return functools.reduce(
        getattr, Path(flat(path)).with_suffix("").parts, importlib.import_module(f"routelaws.{room}")
    )


def same(ours, theirs) -> bool:
    """Return whether our object is the reference's, or its function with fast searches."""
    return ours is theirs or getattr(ours, "__wrapped__", None) is theirs


def test_a_name_without_a_twin_is_the_references():
    """`routelaws.accelerated` has every public name, and both sides share one record class."""
    for path in (path for path in MODULES if not path.endswith("__init__.py")):
        twins = public_names(parse("accelerated", path)) if path in MIRRORED else {}
        ours, theirs = find("reference", path), find("accelerated", path)
        for name in public_names(parse("reference", path)).keys() - twins.keys():
            assert same(getattr(theirs, name, None), getattr(ours, name)), f"{path}: accelerated has no {name}"


def slow_calls(function, seen: set) -> list[str]:
    """Return the functions with a fast twin that a function of the reference uses, directly or within its file.

    A call that passes its search on is fast.
    """
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    nodes = [node for statement in tree.body for node in ast.walk(statement)]  # not the defaults
    passed = [node.func for node in nodes if isinstance(node, ast.Call) and {"search"} & {k.arg for k in node.keywords}]
    found, scope = [], function.__globals__
    for node in nodes:
        value = scope.get(getattr(node, "id", None))
        if isinstance(node, ast.Attribute):
            value = getattr(scope.get(getattr(node.value, "id", None)), node.attr, None)
        if not inspect.isfunction(value) or not value.__module__.startswith("routelaws.reference.laws"):
            continue
        if twin_of(value):
            found += [twin_of(value)] * (node not in passed)
        elif value.__module__ == function.__module__ and value.__name__ not in seen:
            found += slow_calls(value, seen | {value.__name__})
    return found


def twin_of(function) -> str | None:
    if not inspect.isfunction(function) or not function.__module__.startswith("routelaws.reference.laws."):
        return None
    file = function.__module__.rpartition(".")[2]
    if file.startswith("_"):
        return None
    twin = getattr(getattr(accelerated.laws, file), function.__name__, function)
    return None if twin is function else f"{file}.{function.__name__}"


@pytest.mark.parametrize("name", reference.laws._MODULES)
def test_what_is_taken_from_the_reference_calls_nothing_that_has_a_twin(name):
    """A function that calls a slow function takes it, or its search, as an argument."""
    slow_file, fast_file = getattr(reference.laws, name), getattr(accelerated.laws, name)
    for public, value in vars(slow_file).items():
        own = inspect.isfunction(value) and value.__module__ == slow_file.__name__ and public[0] != "_"
        if own and same(getattr(fast_file, public), value):
            slow = slow_calls(value, {public})
            assert not slow, f"laws.{name}.{public} calls {', '.join(slow)} of the reference, which have twins"


def imported(tree: ast.Module) -> list[tuple[str, str]]:
    """Return (path of the module, name) of each import from the reference; a folder stands for the module it takes."""
    homes = {
        (folder, name): f"{folder}/{module}"
        for folder in ("laws", "routers")
        for module, names in getattr(reference, folder)._NAMES.items()
        for name in names
    }
    found = [
        (node.module.removeprefix("routelaws.reference").lstrip(".").replace(".", "/"), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("routelaws.reference")
        for alias in node.names
    ]
    return [(homes.get(pair, flat(pair[0])), pair[1]) for pair in found]


def test_what_has_a_twin_is_not_taken_from_the_reference():
    """Otherwise a command is slow, or a twin is compared with itself."""
    for path in sources("accelerated"):
        for module, name in imported(parse("accelerated", path)):
            twin = f"{module}.py"
            taken = (ROOMS["accelerated"] / twin).is_file() and name in public_names(parse("accelerated", twin))
            assert not taken, f"accelerated/{path} takes {module}.{name} from the reference; it has a twin"


def test_there_is_something_to_mirror():
    assert {"transformer.py", "experts.py", "routers/sinkhorn.py", "laws/fitting.py"} <= set(MIRRORED)


DRIFTED = {
    "def f(a, b=1): pass": "def f(a, b=2): pass",
    "def f(a, b): pass": "def f(b, a): pass",
    "def f(a, *, c=1): pass": "def f(a, c=1): pass",
    "def f(x): pass": "def f(x, dtype=None): pass",
    "def f(y): pass": "def f(y, *, dtype): pass",
    "X = 1": "def X(): pass",
    "class A(NamedTuple):\n    x: int\n    y: int": "class A(NamedTuple):\n    y: int\n    x: int",
    "class A(NamedTuple):\n    x: int = 1": "class A(NamedTuple):\n    x: int = 2",
    "class A:\n    def m(self, k): pass": "class A:\n    def m(self): pass",
}


@pytest.mark.parametrize("reference", DRIFTED)
def test_drift_is_seen(reference):
    assert differences(ast.parse(reference), ast.parse(DRIFTED[reference]))
    assert not differences(ast.parse(reference), ast.parse(reference))


def test_a_keyword_of_its_own_is_allowed():
    pair = "def f(a, *, c=1): pass", "def f(a, *, c=1, dtype=None): pass"
    assert not differences(*map(ast.parse, pair))


def test_the_reference_imports_numpy_alone():
    for path in sources("reference"):
        for name in imports(parse("reference", path)) - {"."}:
            top = name.partition(".")[0]
            assert top == "numpy" or top in sys.stdlib_module_names, f"reference/{path} imports {name}"


def test_relative_imports_stay_inside():
    """Each folder must work without the others."""
    for room in ("reference", "accelerated"):
        for path in sources(room):
            for node in ast.walk(parse(room, path)):
                if isinstance(node, ast.ImportFrom):
                    assert node.level <= path.count("/") + 1, f"{room}/{path}: from {'.' * node.level}{node.module}"


TOLERANCE_WORDS = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "decimal", "nulp", "maxulp"}
SMALL = 1e-5
"""A comparison with a number between 0 and this counts as a tolerance."""

CLOSE_CALLS = {"assert_allclose", "assert_almost_equal", "assert_array_almost_equal", "allclose", "isclose", "approx"}
"""Calls with a hidden default tolerance."""


def tolerance_literals(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            words = {k.arg for k in node.keywords if isinstance(k.value, ast.Constant)} & TOLERANCE_WORDS
            if words or name in CLOSE_CALLS:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.Lt | ast.LtE):
            limit = getattr(node.comparators[-1], "value", None)  # the value of a constant
            if isinstance(limit, float) and abs(limit - SMALL / 2) <= SMALL / 2:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_tolerances_live_in_bounds_alone():
    for path in (path for path in sources("conformance") if path != "bounds.py"):
        assert not tolerance_literals(parse("conformance", path)), path
    for path in sources("reference", tests=True):
        assert not tolerance_literals(parse("reference", path)), path


@pytest.mark.parametrize(
    "line", ["np.testing.assert_allclose(a, b)", "a == approx(b, rel=1e-3)", "approx(b, 1e-3)", "abs(a - b) < 1e-6",
             "jnp.allclose(a, b)", "f(a, b, atol=0.1)", "a == pytest.approx(b)", "a == approx(b)", "isclose(a, b)"]
)  # fmt: skip
def test_a_hidden_tolerance_is_seen(line):
    assert tolerance_literals(ast.parse(line))


def test_examples_of_the_reference():
    attempted = {}
    for path in sources("reference"):
        name = ".".join(["routelaws", "reference", *Path(path).with_suffix("").parts]).removesuffix(".__init__")
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        attempted[name.removeprefix("routelaws.reference.")] = result.attempted
    for name in (
        "notation",
        "accounting",
        "balance",
        "experts",
        "laws.fitting",
        "laws.routed",
        "laws.confidence.uncertainty",
        "routers.base",
        "routers.expert_choice",
        "routers.hash_layer",
        "routers.quantile",
        "routers.sinkhorn",
        "routers.top_k",
    ):
        assert attempted[name] > 0, f"{name} has no example"


@pytest.mark.parametrize("folder", ["laws", "routers"])
@pytest.mark.parametrize("room", ["reference", "accelerated"])
def test_a_name_of_one_file_alone_is_found_in_the_folder(room, folder):
    package = importlib.import_module(f"routelaws.{room}.{folder}")
    homes, paths = {}, {Path(path).stem: path for path in sources("reference") if path.startswith(f"{folder}/")}
    for name in package._MODULES:
        for public, node in public_names(parse("reference", paths[name])).items():
            if isinstance(node, ast.FunctionDef | ast.ClassDef) or public == "LAWS":
                homes.setdefault(public, []).append(name)
    listed = {public: module for module, names in package._NAMES.items() for public in names}
    alone = {public: modules[0] for public, modules in homes.items() if len(modules) == 1}
    assert listed == {public: module for public, module in alone.items() if public not in package._MODULES}
    for public, module in listed.items():
        assert getattr(package, public) is getattr(getattr(package, module), public)


def test_the_names_at_the_top_are_those_of_their_packages():
    for home, names in routelaws._HOMES.items():
        package = importlib.import_module(f"routelaws.{home}")
        for name in names:
            assert getattr(routelaws, name) is getattr(package, name) and name in dir(routelaws)
    with pytest.raises(AttributeError, match="has no attribute 'softmax_router'"):
        routelaws.softmax_router  # noqa: B018
    routers = {name for name in dir(importlib.import_module("routelaws.accelerated.routers")) if "_router" in name}
    assert routers - {*routelaws.__all__} == {"fixed_router", "table_router"}, "steps of a hash layer"


IMPORT_EVERYTHING = """
import os, sys, threading
import routelaws
assert not {"jax", "numpy"} & set(sys.modules), "import routelaws imports a room"
import routelaws.reference, routelaws.accelerated
assert "jax" not in sys.modules, "the rooms are not lazy"
import jax  # which changes the environment by itself
before = dict(os.environ)
import routelaws.accelerated.cli
for room in (routelaws.reference, routelaws.accelerated):
    for name in room.__all__:
        module = getattr(room, name)
        for inner in getattr(module, "__all__", []):
            getattr(module, inner)
    try:
        room.no_such_name
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("a name that is not there was found")
assert not jax.config.jax_enable_x64
assert jax.config.jax_default_matmul_precision is None
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
assert threading.active_count() == 1, threading.enumerate()
assert "routelaws.reference" in sys.modules and "routelaws.conformance" not in sys.modules
"""


def test_importing_changes_nothing():
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_ENABLE")}
    done = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
