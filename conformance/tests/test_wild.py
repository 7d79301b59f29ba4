"""docs/wild: the page matches its results, and every reproduction is a separate short program."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "wild"
pytestmark = pytest.mark.skipif(not (ROOT / "tools" / "wild").exists(), reason="an installed package has no tools")


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("wild_page", ROOT / "tools" / "wild" / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> list[dict]:
    return json.loads((FOLDER / "results.json").read_text("utf-8"))


def test_the_page_is_what_the_results_give(page, monkeypatch, tmp_path):
    wanted = (FOLDER / "README.md").read_text("utf-8")
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    page.write(rows())
    assert (tmp_path / "README.md").read_text("utf-8") == wanted, "run python tools/wild --page"


def test_a_changed_verdict_is_listed(page):
    old = [{"library": "a", "version": "a 1", "function": "f", "top_k_router": {"verdict": "defect"}}]
    new = [{"library": "a", "version": "a 2", "function": "f", "top_k_router": {"verdict": "right"}}]
    assert page.changes(old, new) == ["a `f`: defect in a 1; right in a 2"] and page.changes(old, old) == []
    assert page.changes([], new) == ["a `f`: new, right in a 2"] and page.changes(new, []) == [
        "a `f`: gone, right in a 2"
    ]


def test_changes_of_other_libraries_are_kept(page, monkeypatch, tmp_path):
    (tmp_path / "README.md").write_text(
        "\n".join([page.MARKS[0], page.HEAD, "* a `f`: x", "* b `g`: y", page.MARKS[1]])
    )
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    page.write([], ["b `h`: z"], ["b"])
    lines = (tmp_path / "README.md").read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("* ")] == ["* a `f`: x", "* b `h`: z"]


def test_a_measurement_of_many_tokens_counts_above_a_few_probes(page):
    row = {"function": "f", "top_k_router": {"verdict": "right"}, "repeats": 0.99}
    assert page.verdict(row) == "defect" and page.verdict(row | {"repeats": 1.0}) == "right"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_reproduction_needs_its_library_alone(path):
    tree = ast.parse(path.read_text("utf-8"))
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in ast.walk(tree)
               if isinstance(node, ast.Import | ast.ImportFrom)}  # fmt: skip
    assert not any(name.startswith("routelaws") for name in modules)
    assert len(ast.get_docstring(tree).splitlines()) >= 3 and len(tree.body) <= 12


def test_names_that_were_read_and_not_run_say_so():
    from routelaws.conformance.dialects.table import NOT_RUN, SUBJECTS, speakers

    dialects = {one.name: one for subject in SUBJECTS.values() for one in subject.dialects}
    assert speakers(dialects["tokens"]).startswith("Mixtral and OLMoE in transformers, attnax, MaxText")
    assert speakers(dialects["tokens"]).endswith("(read, not run)") and speakers(dialects["megatron"]) == "Megatron"
    names = [name for one in dialects.values() for name in one.spoken_by]
    assert all(any(name.startswith(prefix) for name in names) for prefix in NOT_RUN)
