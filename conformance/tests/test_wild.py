"""docs/wild: the page matches its results, and every reproduction is a separate short program."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "wild"
pytestmark = pytest.mark.skipif(not (ROOT / "tools" / "wild").exists(), reason="an installed package has no tools")


@pytest.fixture(scope="module")
def tool():
    """The modules `__main__` and `scoreboard` of tools/wild."""
    folder = ROOT / "tools" / "wild"
    spec = importlib.util.spec_from_file_location("wild_main", folder / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    spec.loader.exec_module(module)
    sys.path.remove(str(folder))
    return module


def test_the_page_is_what_the_results_give(tool, monkeypatch, tmp_path):
    """What is between the marks comes from results.json and the reproductions alone."""
    wanted = (FOLDER / "README.md").read_text("utf-8")
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")
    head, tail = wanted.partition(tool.scoreboard.MARKS[0])[0], wanted.partition(tool.scoreboard.MARKS[1])[2]
    (tmp_path / "README.md").write_text(f"{head}{tool.scoreboard.MARKS[0]}{tool.scoreboard.MARKS[1]}{tail}", "utf-8")
    monkeypatch.setattr(tool.scoreboard, "FOLDER", tmp_path)
    tool.scoreboard.write(json.loads((FOLDER / "results.json").read_text("utf-8")))
    assert (tmp_path / "README.md").read_text("utf-8") == wanted, "run python tools/wild --page"


def test_routers_of_transformers_have_a_share_in_bfloat16():
    """`ask.py` leaves a cell empty if its measurement raises, so a fault of the tool empties the column."""
    rows = json.loads((FOLDER / "results.json").read_text("utf-8"))["rows"]
    empty = [one["function"] for one in rows if one["library"] == "transformers" and one.get("bfloat16", 0) is None]
    assert set(empty) <= {"Inkling2LoopTopKRouter", "Inkling2TopKRouter", "DeepseekV4HashRouter"}


def test_the_page_of_pairs_is_what_their_results_give(tool, monkeypatch, tmp_path):
    pairs, text = sys.modules["pairs"], (FOLDER / "parity.md").read_text("utf-8")
    (tmp_path / "parity.md").write_text(
        text.partition("| A |")[0] + "".join(text.partition(pairs.MARKS[1])[1:]), "utf-8"
    )
    monkeypatch.setattr(pairs, "FOLDER", tmp_path)
    pairs.page(json.loads((FOLDER / "parity.json").read_text("utf-8")))
    assert (tmp_path / "parity.md").read_text("utf-8") == text, "run python tools/wild/pairs.py --page"


def test_each_cell_of_the_scoreboard_is_that_of_its_field(tool):
    found = {"verdict": "right", "dialect": "softmax", "facts": {"ties": "lower index"}}
    one = {"library": "a", "version": "a 1", "function": "f", "top_k_router": found, "balance": {"1": 1.5, "2": 2.25},
           "padding": 1.375, "bfloat16": 0.875, "repeats": 1, "experts_trained": 7}  # fmt: skip
    head, _, cells = ([cell.strip() for cell in line.strip("|").split("|")]
                      for line in tool.scoreboard.scoreboard([one]).splitlines()[2:])  # fmt: skip
    shown = dict(zip(head, cells, strict=True))
    assert (shown["library"], shown["function"], shown["verdict"]) == ("a 1", "`f`", "right")
    assert (shown["ties"], shown["loss at balance"]) == ("lower index", "1.5 / 2.25")
    assert (shown["padding in the loss"], shown["bfloat16"]) == ("counts, 1.38 times", "87.5 %")
    assert (shown["same twice"], shown["experts trained"]) == ("all", "7 of 8")
    *_, weights = tool.scoreboard.coefficients([one]).splitlines()
    assert [cell.strip() for cell in weights.strip("|").split("|")] == ["a 1", "`f`", "0.00667", "0.00444", ""]


def row(library: str, version: str, verdict: str) -> dict:
    return {"library": library, "version": version, "function": "f", "top_k_router": {"verdict": verdict}}


def test_changes_are_kept_until_the_library_runs_again(tool):
    first = tool.merged({"changes": {"b": ["`g`: y"]}, "rows": []}, {"a": [row("a", "a 1", "defect")], "b": []})
    assert first["changes"] == {"a": ["`f`: new, defect in a 1"], "b": ["`g`: y"]}
    second = tool.merged(first, {"a": [row("a", "a 2", "right")]})
    assert second["changes"] == {"a": ["`f`: defect in a 1; right in a 2"], "b": ["`g`: y"]}
    assert [one["version"] for one in second["rows"]] == ["a 2"]
    assert tool.merged(second, {"a": second["rows"]})["changes"] == {"b": ["`g`: y"]}
    assert tool.scoreboard.changes(second["rows"], []) == ["`f`: gone, right in a 2"]


def test_two_files_of_results_are_compared_column_by_column(tool, tmp_path, monkeypatch, capsys):
    """A version alone is no change. The numbers that a router returns as its logits are one."""
    old = row("a", "a 1", "right") | {"returns": "their softmax", "balance": {"2": 1.5}, "bfloat16": 0.5, "repeats": 1}
    new = old | {"version": "a 2", "returns": "logits", "bfloat16": 0.25}
    same = row("a", "a 1", "right") | {"function": "g"}
    (tmp_path / "old.json").write_text(json.dumps({"rows": [old, same], "changes": {}}))
    (tmp_path / "new.json").write_text(json.dumps([new, same | {"version": "a 2"}]))
    monkeypatch.setattr(sys, "argv", ["wild", "--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    assert tool.main() == 0
    line = "right in a 1; right in a 2; bfloat16 was 50.0 %, now 25.0 %; returned logits was their softmax, now logits"
    assert capsys.readouterr().out == f"a `f`: {line}\n"
    monkeypatch.setattr(sys, "argv", ["wild", "--compare", *[str(tmp_path / "new.json")] * 2])
    assert tool.main() == 0 and capsys.readouterr().out == "nothing changed\n"


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
