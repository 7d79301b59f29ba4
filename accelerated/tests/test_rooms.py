"""Rules for imports: only from lower folders, and without cycles."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from routelaws import accelerated

FOLDER = Path(accelerated.__file__).parent
ROOMS = ("tables", "training", "results", "findings", "inspection", "conversion", "commands")
"""Folders from the lowest to the highest; twins and kernels are below, and cli is above."""


def imports(path: Path) -> set[str]:
    """Return the files of `accelerated` that a file imports anywhere, as paths below it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            candidates = [base.with_suffix(".py")] if node.module else []
            candidates += [base / f"{alias.name}.py" for alias in node.names]
            found |= {str(file.relative_to(FOLDER)) for file in candidates if file.is_file()}
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    files = [path for path in FOLDER.rglob("*.py") if "tests" not in path.parts]
    return {str(path.relative_to(FOLDER)): imports(path) for path in files}


def height(file: str) -> int:
    room = Path(file).parts[0]
    if room in ("cli.py", "__main__.py"):
        return len(ROOMS)
    return ROOMS.index(room) if room in ROOMS else -1


def test_the_graph_is_read(graph):
    assert "tables/schema.py" in graph["tables/table.py"] and "laws/catalogue.py" in graph["results/fit.py"]


def test_no_file_imports_from_a_higher_room(graph):
    wrong = [(file, other) for file, others in graph.items() for other in others if height(other) > height(file)]
    assert not wrong


def test_results_know_of_no_training_and_of_no_findings(graph):
    """`fit` and notebooks read a table without importing the model. Reports of a table do not, either."""
    above = [(file, other) for file, others in graph.items() for other in others if file.startswith("results/")]
    assert above and not [pair for pair in above if pair[1].startswith(("training/", "findings/"))]
    entering = {file for file, others in graph.items() if any(other.startswith("training/") for other in others)}
    inside = {file for file in entering if file.startswith("findings/")}
    assert inside and {Path(file).parts[1] for file in inside} == {"sweeps"}


def test_compiled_loops_of_training_have_two_doors(graph):
    """Only a few files import the folder, and only through its `__init__`."""
    inside = {(file, other) for file, others in graph.items() for other in others if other.startswith("cpu/")}
    assert inside and not [(file, other) for file, other in inside if not file.startswith("cpu/")]
    entry = re.compile(r"^\s*from \.+( import .*\bcpu\b|cpu import)", re.MULTILINE)
    entering = {file for file in graph if entry.search((FOLDER / file).read_text(encoding="utf-8"))}
    assert entering == {"experts.py", "transformer.py", "training/runs/export.py"}


def test_no_import_goes_in_a_circle(graph):
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle
