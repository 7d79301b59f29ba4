"""The README and other pages: examples run, links work, commands exist."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import routelaws.accelerated as accelerated
from routelaws.accelerated import cli
from routelaws.accelerated.tables.schema import NEEDED_COLUMNS, TABLE_COLUMNS
from routelaws.accelerated.training.sweeps.grid import presets
from routelaws.reference.accounting import ROUTER_TYPES

from .test_foreign_models import MIXTRAL

ROOT = Path(accelerated.__file__).parents[1]
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        *(
            f"docs/{page}.md"
            for page in ("routers", "training", "inspect", "scale", "laws", "downstream", "columns", "own_layer")
        ),
        "docs/site/index.md",
        "reference/README.md",
    )
}
COMMANDS = [
    line for text in PAGES.values() for line in re.findall(r"^    (routelaws .*?)(?:  +#.*)?$", text, re.MULTILINE)
]


def example(page: str) -> str:
    return re.search(r"```python\n(.*?)```", PAGES[page], re.DOTALL)[1]


def said(code: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    return output.getvalue()


def test_the_example_of_the_landing_page_prints_what_its_comments_say():
    promised = re.findall(r"# (\[[\d ]+\])", example("docs/site/index.md"))
    assert len(promised) == 3 and said(example("docs/site/index.md")).split("\n")[:3] == promised


def test_the_reading_example_prints_what_its_comments_say():
    promised = re.findall(r"# (?:training|evaluation): (\[[\d ]+\])", example("README.md"))
    assert len(promised) == 2 and said(example("README.md")).split("\n")[:2] == promised


@pytest.mark.slow
def test_the_training_example_learns():
    first, last = map(float, re.search(r"([\d.]+) -> ([\d.]+) nats", said(example("docs/training.md"))).groups())
    assert last < first


def test_the_reading_order_of_the_reference_has_every_file():
    folder, page = ROOT / "reference", PAGES["reference/README.md"]
    paths = (path for path in folder.rglob("*.py") if path.name != "__init__.py")
    files = {path.relative_to(folder).as_posix() for path in paths if path.parent.name != "tests"}
    assert set(re.findall(r"\]\(([\w/]+\.py)\)", page)) == files


def test_rules_of_the_reading_order_name_what_is_there():
    named = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:,\s| and )?)+)", PAGES["reference/README.md"])
    assert len(named) > 15
    for path, names in named:
        text = (ROOT / "reference" / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"^ *(def|class) {part}\b", text, re.MULTILINE), f"{path}: {name}"


def test_the_plans_of_meshes_are_what_the_page_shows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    shown = re.findall(
        r"^    routelaws (plan-mesh [^\n]*)\n\n```text\n(.*?)```", PAGES["docs/scale.md"], re.MULTILINE | re.DOTALL
    )
    assert len(shown) == 2
    for line, text in shown:
        assert cli.main(line.split()) == 0
        assert capsys.readouterr().out == text


@pytest.mark.slow
def test_the_example_of_an_exported_step_runs():
    first, second = map(float, re.findall(r"[\d.]+", said(example("docs/scale.md"))))
    assert 5 < first < 7 and 5 < second < 7 and second != first, "ln 256 = 5.5"


def test_the_law_example_gives_intervals_that_hold_its_value():
    lines = re.findall(r"(-?[\d.]+), (-?[\d.]+) to (-?[\d.]+)", said(example("docs/laws.md")))
    assert len(lines) == 2 and all(float(low) < float(value) < float(high) for value, low, high in lines)


def test_the_example_of_all_laws_gives_each_coefficient_with_its_interval():
    first, second = re.findall(r"```python\n(.*?)```", PAGES["docs/laws.md"], re.DOTALL)[:2]
    lines = re.findall(r"(\w+): (\S+), (\S+) to (\S+)", said(first + second).split("\n", 2)[2])
    assert [name for name, *_ in lines] == ["a", "b", "c", "d", "N_cutoff"]
    assert all(float(low) <= float(value) <= float(high) for _, value, low, high in lines)


@pytest.mark.slow
def test_the_example_of_laws_with_tokens_gives_back_the_law_that_made_the_table():
    [block] = [
        each for each in re.findall(r"```python\n(.*?)```", PAGES["docs/laws.md"], re.DOTALL) if "tokens" in each
    ]
    text = said(block)
    truth = {"a": 482.01, "alpha": 0.3478, "b": 2085.43, "beta": 0.3658, "c": 1.8172}
    lines = re.findall(r"(\w+): (\S+), (\S+) to (\S+)", text)
    assert [name for name, *_ in lines] == list(truth) and text.startswith("interior")
    assert all(float(low) < float(value) < float(high) for _, value, low, high in lines)
    assert all(float(low) < truth[name] < float(high) for name, _, low, high in lines)
    size, tokens = map(float, re.search(r"N = (\S+), D = (\S+):", text).groups())
    assert 0.98 < 6 * size * tokens / 1e21 < 1.02


def test_every_column_is_explained_and_no_other():
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGES["docs/columns.md"], re.MULTILINE)
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(explained) == sorted(TABLE_COLUMNS)
    routers = re.findall(r"^\| `(\w+)`[^|]*\| `([\w-]+)` \|", PAGES["docs/routers.md"], re.MULTILINE)
    assert dict(routers) == ROUTER_TYPES
    needed = PAGES["docs/columns.md"].partition("**Needed** in every table are ")[2].partition(" and at least")[0]
    assert tuple(re.findall(r"`(\w+)`", needed)) == NEEDED_COLUMNS


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/columns.md"])
def test_every_link_leads_to_a_file(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGES[page]) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_exists(line, capsys):
    words = line.replace("--limit ", "--limit=").split()
    words = [word for word in words if not word.startswith("--limit=")]
    assert words[1] in cli.COMMANDS
    if words[1] == "sweep" and not words[2].endswith(".toml"):
        assert words[2] in presets()
    flags = {word for word in words if word.startswith("--")}
    model = words[2:4] if words[1] == "plan-mesh" and words[2] == "--model" else []  # it has other flags
    assert cli.main([words[1], *model, "--help"]) == 0
    assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_the_list_of_findings_has_whole_sentences():
    """README lists line 2 of each script."""
    lines = {path.name: path.read_text(encoding="utf-8").splitlines()[1] for path in (ROOT / "findings").glob("*.sh")}
    assert lines and not [name for name, line in lines.items() if not re.fullmatch(r"# .*\.", line)]


def test_nothing_is_left_to_fill_in():
    assert not [page for page, text in PAGES.items() if "@@" in text]
