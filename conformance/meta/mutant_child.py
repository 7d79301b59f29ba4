"""What a child of `mutant_runs.py` does: it becomes a mutant, runs tests and says through a pipe what comes of them."""

import ast
import functools
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from routelaws.conformance.meta import mutants
from routelaws.conformance.meta.mutants import Mutant

TESTS = "routelaws.conformance.suite.test_"
"""How the names of the files of tests begin."""


class Planted:
    """An import hook that finds one module of `accelerated` changed."""

    def __init__(self, mutant: Mutant):
        self.module = "routelaws.accelerated." + mutant.file.removesuffix(".py").replace("/", ".")
        self.mutant = mutant

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader.get_code = lambda _: compile(mutants.tree_of(self.mutant), spec.origin, "exec")
        return spec


def plant(mutant: Mutant) -> None:
    """Make this process import the mutant; nothing of `accelerated` may have been imported."""
    early = [name for name in sys.modules if name.startswith("routelaws.accelerated")]
    if early:
        raise RuntimeError(f"{early[0]} is imported already; a mutant has to come first")
    sys.meta_path.insert(0, Planted(mutant))


class Watch:
    """Tells the parent through a pipe which test begins and how it ends; puts tests in order."""

    def __init__(self, pipe: int, order: list[str] | None):
        self.pipe, self.order = pipe, order

    def tell(self, *words) -> None:
        os.write(self.pipe, (json.dumps(words) + "\n").encode())

    def pytest_collection_modifyitems(self, session, config, items):
        if self.order is None:
            for item in items:
                names, texts = words_of(item)
                words = names | {part for text in texts if len(text) < 100 for part in text.split(".")[-1:]}
                words = words.union(*(used for name, used in _constants(item.path).items() if name in words))
                slow = item.get_closest_marker("slow") is not None
                self.tell("words", _short(item.nodeid), sorted(words), slow)
            return
        rank = {test: i for i, test in enumerate(self.order)}
        kept = {_short(one.nodeid): one for one in items if _short(one.nodeid) in rank}
        items[:] = [kept[test] for test in sorted(kept, key=rank.get)]

    def pytest_runtest_logstart(self, nodeid, location):
        self.tell("begins", _short(nodeid))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.tell("fails", _short(report.nodeid), str(getattr(report.longrepr, "reprcrash", ""))[:300])
        elif report.skipped:
            self.tell("skips", _short(report.nodeid))
        elif report.when == "call":
            self.tell("passes", _short(report.nodeid), report.duration)

    def pytest_collectreport(self, report):
        if report.failed:
            self.tell("fails", _short(report.nodeid) or "import", str(report.longrepr)[-300:])


@functools.cache
def _constants(path: Path) -> dict[str, set[str]]:
    """Return the names that stand in the value of each constant of a file of tests, such as a function under jit."""
    found = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            parts = list(ast.walk(node.value))
            found[node.targets[0].id] = {part.id for part in parts if isinstance(part, ast.Name)} | {
                part.attr for part in parts if isinstance(part, ast.Attribute)
            }
    return found


def _short(nodeid: str) -> str:
    """Return the id of a test without folders but `accelerated/tests`, whose names are those of others too."""
    path, colon, rest = nodeid.partition("::")
    kept = ("tests/" if "accelerated/tests/" in path else "") + path.rpartition("/")[2]
    return kept + colon + rest


def path_of(test: str) -> Path:
    name = test.partition("::")[0]
    suite = Path(__file__).parents[1] / "suite"
    return mutants.folder() / name if name.startswith("tests/") else suite / name


def run_tests(files: list[Path], pipe: int, order: list[str] | None, first: bool, slow: bool) -> int:
    """Run pytest in this process: `order` None collects only."""
    import hypothesis
    import pytest

    from routelaws.conformance.engine import plugin

    # What fails is enough: to look for a smaller example would take minutes.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "quick", hypothesis.settings.get_profile("quick"), phases=phases, database=None, report_multiple_bugs=False
    )
    arguments = [
        "-c",
        os.devnull,
        f"--rootdir={mutants.folder().parent}",
        "--import-mode=importlib",
        "-p",
        plugin.NAME,
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--tb=line",
        "--no-header",
        "-W",
        "ignore",
        "--routelaws-profile=quick",
    ]
    arguments += ["-x"] if first else []
    arguments += ["--collect-only"] if order is None else []
    arguments += [] if slow or order is None else ["-m", "not slow"]
    return int(pytest.main([*arguments, *map(str, files)], plugins=[Watch(pipe, order)]))


def _words(function, seen: set) -> tuple[set[str], set[str]]:
    """Return the names, and the texts, in a function and in what it calls in its own file or other files of tests."""
    code = getattr(function, "__code__", None)
    if code is None or function in seen:
        return set(), set()
    seen.add(function)
    names, texts, codes = set(), set(), [code]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
        texts |= {constant for constant in code.co_consts if isinstance(constant, str)}
    for name in names & set(function.__globals__):
        value = function.__globals__[name]
        texts |= {part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, str)}
        of_tests = getattr(value, "__name__", "").startswith(TESTS)  # a module, asked for `check_...`
        parts = [vars(value).get(part) for part in names] if of_tests else [value]
        for part in parts:
            home = getattr(part, "__module__", None) or ""
            if home == function.__module__ or home.startswith(TESTS):
                more_names, more_texts = _words(part, seen)
                names, texts = names | more_names, texts | more_texts
    return names, texts


def words_of(item) -> tuple[set[str], set[str]]:
    """Return the names that a test speaks of, and its texts, with those among its parameters."""
    function = getattr(item, "function", None)
    names, texts = _words(getattr(getattr(function, "hypothesis", None), "inner_test", function), set())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return names, texts | {value for value in parameters.values() if isinstance(value, str)}
