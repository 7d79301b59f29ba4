"""The lessons run, their pages match their scripts, and the pages print the numbers of their text."""

import ast
import functools
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import jupytext
import pytest

import routelaws.accelerated
import routelaws.conformance
import routelaws.reference
from routelaws.conformance.bounds import BOUNDS

FOLDER = Path(__file__).resolve().parents[1]
LESSONS = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))
SECTIONS_BY_NUMPY = {name: 6 for name in LESSONS if name < "09"} | {"11_fitting_the_law": 9, "18_a_budget_game": 6}
ANSWERS_THAT_STOP = [name for name in LESSONS if name[:2] in ("10", "12", "16", "17")]
STOP = "The rest of this lesson needs more packages: pip install "
CODE_LINES, WIDTH = 18, 88
PICTURE_BYTES = 100_000


def script(name: str):
    return jupytext.read(FOLDER / f"{name}.py")


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def code_cells(name: str) -> list:
    return [cell for cell in script(name).cells if cell.cell_type == "code"]


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def said(*command, **variables) -> str:
    """Return what a script prints. Fail if it fails or warns."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", **variables)
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=FOLDER)
    complaints = [line for line in ended.stderr.splitlines() if "Downloading data" not in line]  # the released table
    assert ended.returncode == 0 and not complaints, ended.stderr
    return ended.stdout


def link(folder: Path, packages: list[str]) -> None:
    """Fill a folder with links to installed packages and to all packages that they require."""
    for name in (wanted := [*packages]):
        try:
            found = distribution(name)
        except PackageNotFoundError:  # it is for another system
            continue
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
        named = [re.match(r"[\w.-]+", line)[0] for line in found.requires or () if "extra ==" not in line]
        wanted += [each for each in named if each not in wanted]


@pytest.fixture(scope="module")
def run_with(tmp_path_factory):
    """Return a function that runs a script with this package and only some of the packages that are installed here.

    It is like `pip install PACKAGES && pip install --no-deps -e .` in a new environment, but needs no network.
    """

    @functools.cache
    def made(packages: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("packages")
        link(folder, list(packages))
        (folder / "routelaws").mkdir()
        (folder / "routelaws/__init__.py").symlink_to(routelaws.__file__)
        for room in (routelaws.reference, routelaws.accelerated, routelaws.conformance):
            (folder / "routelaws" / room.__name__.partition(".")[2]).symlink_to(Path(room.__file__).parent)
        (folder / "routelaws.dist-info").mkdir()
        needed = "".join(f"Requires-Dist: {line}\n" for line in requires("routelaws"))
        (folder / "routelaws.dist-info/METADATA").write_text(f"Name: routelaws\nVersion: 0\n{needed}")
        return folder

    def run(packages: list[str], *command) -> str:
        return said("-S", *command, PYTHONPATH=str(made(tuple(packages))))  # -S: without site-packages

    return run


class TestEveryLesson:
    @pytest.mark.parametrize("name", LESSONS)
    def test_is_in_the_index_and_has_answers(self, name):
        assert f"({name}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")
        assert f"(answers/{name}.py)" in page(name).partition("## Exercises")[2]
        answers = (FOLDER / "answers" / f"{name}.py").read_text(encoding="utf-8")
        exercises = re.findall(r"(?m)^(\d+)\. ", page(name).partition("## Exercises")[2])
        assert "assert" in answers and re.findall(r"(?m)^# (\d+)\. ", answers) == exercises

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_its_minutes_in_the_index(self, name):
        """The index counts 200 words a minute and five seconds for a line of code, to the nearest five minutes."""
        shown = re.sub(r"(?s)<details>.*?</details>|<!--.*?-->|\]\([^)]*\)", "", page(name))
        lines = re.findall(r"(?m)^.*\S", "".join(re.findall(r"(?s)```python\n(.*?)```", shown)))
        words = re.findall(r"\w[\w'’-]*", re.sub(r"(?s)```.*?```", "", shown))
        row = re.search(rf"\({name}\.md\).*\| (\d+) \|", (FOLDER / "README.md").read_text(encoding="utf-8"))
        assert int(row[1]) == 5 * round((len(words) / 200 + len(lines) / 12) / 5)

    @pytest.mark.parametrize("name", LESSONS)
    def test_says_first_what_it_is_about(self, name):
        words = ["# Lesson ", "**You will**", "**You need**", "**Files**", "## 1. "]
        found = [page(name).find(word) for word in words]
        assert -1 not in found and found == sorted(found)

    @pytest.mark.parametrize("name", LESSONS)
    def test_says_last_what_to_remember(self, name):
        remembered = page(name).partition("\n## What to remember\n")[2].partition("\n## Exercises\n")[0]
        assert 3 <= remembered.count("\n- ") <= 5 and len(remembered.split()) < 110

    @pytest.mark.parametrize("name", LESSONS)
    def test_names_bounds_that_there_are(self, name):
        named = re.findall(
            r'same\([^\n]*?"([a-z_]+\.[a-z_.0-9]+)"', "\n".join(cell.source for cell in code_cells(name))
        )
        assert set(named) <= set(BOUNDS)

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_short_cells(self, name):
        for cell in code_cells(name):
            lines = [line for line in cell.source.splitlines() if line.strip() and not line.strip().startswith("#")]
            assert len(lines) <= CODE_LINES, cell.source

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_narrow_lines(self, name):
        shown = re.findall(r"^```(?:python|text)\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)
        answers = (FOLDER / "answers" / f"{name}.py").read_text(encoding="utf-8")
        lines = "\n".join([*shown, answers]).splitlines()
        assert not [line for line in lines if len(line) > WIDTH]

    @pytest.mark.parametrize("name", LESSONS)
    def test_asserts_in_every_section(self, name):
        sections, text = [], ""
        for cell in script(name).cells:
            if cell.cell_type == "markdown" and "\n## " in f"\n{cell.source}":
                sections, text = [*sections, text], ""
            text += (
                f"{cell.source}\n" if cell.cell_type == "code" and not {"picture", "volatile"} & {*tags(cell)} else ""
            )
        for section in [*sections, text]:
            assert not section or re.search(r"\bassert |\bsame\(", section), section

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_pictures_that_are_small_and_are_there(self, name):
        named = re.findall(r"!\[.+\]\((.+)\)\n+\*.+\*\n", page(name))  # each with a text in its place and a caption
        assert named and len(named) == page(name).count("](images/")
        assert sorted(named) == sorted(f"images/{path.name}" for path in (FOLDER / "images").glob(f"{name}_*"))
        assert all((FOLDER / path).stat().st_size < PICTURE_BYTES for path in named)

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_a_page_with_its_captions(self, name):
        """Captions without numbers of a run are the same in the script and the page."""
        calls = [
            call
            for cell in code_cells(name)
            for call in ast.walk(ast.parse(cell.source))
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "figure"
        ]
        captions = [call.args[1].value for call in calls if is_text(call.args[1])]
        assert captions and all(f"\n*{words}*\n" in page(name) for words in captions)

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_a_page_with_its_words_and_its_code(self, name):
        """These parts show an outdated page without running its script."""
        rest = page(name)
        for cell in script(name).cells:
            source = "\n".join(line.rstrip() for line in cell.source.splitlines())
            before, found, rest = rest.partition(source)
            assert found, f"`make tutorials LESSONS={name}` is due: the page lacks {source!r}"

    @pytest.mark.parametrize("name", [*LESSONS, "README"])
    def test_leads_to_what_is_there(self, name):
        assert not wrong_links(page(name), FOLDER)

    @pytest.mark.parametrize("name", LESSONS)
    def test_has_formulas_that_survive_markdown(self, name):
        """Markdown removes a backslash before a punctuation mark, which TeX needs."""
        formulas = re.findall(
            r"\$\$.*?\$\$|\$[^$\n]+\$", re.sub(r"```.*?```|`[^`]*`", "", page(name), flags=re.DOTALL), re.DOTALL
        )
        assert not [formula for formula in formulas if re.search(r"\\[^a-zA-Z\s]", formula)]

    @pytest.mark.parametrize("name", LESSONS)
    def test_says_no_number_that_it_did_not_compute(self, name):
        assert not unsupported_numbers(page(name))


def stops(printed: str) -> bool:
    """Return whether a script ended with one line that names missing packages."""
    lines = printed.splitlines()
    assert sum(STOP in line for line in lines) == lines[-1].startswith(STOP)
    return lines[-1].startswith(STOP)


def wrong_links(text: str, folder: Path) -> list[str]:
    """Return the links without a file, and links named after a function that the file does not define."""
    faults = []
    for label, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)\)", text):
        if "://" in target:
            continue
        path, name = (folder / target.partition("?")[0], label.strip("`"))  # a page of the lab reads a query
        if not path.exists():
            faults.append(target)
        elif path.suffix == ".py" and name.isidentifier() and name not in defined(path):
            faults.append(f"{name} in {target}")
    return faults


def defined(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= {target.id} if isinstance(target, ast.Name) else set()
    return names


NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
NOT_RESULTS = re.compile(
    r"<!--.*?-->|\]\([^)]*\)|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$"
    r"|\b(?:19|20)\d\d\b|arXiv:?\s*[\d.]+|^#+ .*$|^ *\d+\. |Lessons? [\d, and]+",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
"""Comments, links, code, formulas, years, headings, numbers of lists and lessons: none of them is a result."""


def unsupported_numbers(text: str) -> list[str]:
    """Return the numbers of two digits or more in the prose of a page that no code or output above them has."""
    known, faults = set(), []
    for i, part in enumerate(re.split(r"^```(?:python|text)?$", text, flags=re.MULTILINE)):
        if i % 2:
            known |= set(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", part.replace("_", "")))
            continue
        found = NUMBER.findall(NOT_RESULTS.sub(" ", part))
        faults += [number for number in found if len(number) > 1 and number not in known]
    return faults


class TestLessonsRun:
    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] * (name[:2] in ("00", "11", "12"))) for name in LESSONS]
    )
    def test_with_numpy_alone_and_headings(self, name, run_with):
        printed = run_with(["numpy"], "lesson.py", name)
        headings = re.findall(r"^## (\d+\. .+)$", page(name), re.MULTILINE)[: SECTIONS_BY_NUMPY.get(name, 1)]
        places = [printed.find(f"\n{heading}\n") for heading in headings]
        assert places == sorted(places) and -1 not in places
        assert stops(printed) == (name[:2] not in ("00", "14", "18"))

    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] * (name[:2] in ("00", "11", "18"))) for name in LESSONS]
    )
    def test_answers_with_numpy_alone(self, name, run_with):
        printed = run_with(["numpy"], f"answers/{name}.py")
        assert stops(printed) == (name in ANSWERS_THAT_STOP)

    @pytest.mark.parametrize(
        "script",
        ["07_top_k.py", *(pytest.param(f"answers/{name}.py", marks=pytest.mark.slow) for name in ANSWERS_THAT_STOP)],
    )
    def test_what_a_stop_names_is_enough(self, script, run_with):
        printed = run_with(["numpy"], script)
        named = printed.rpartition(STOP)[2].split()
        needed = {re.match(r"[\w-]+", line)[0] for line in requires("routelaws") if "extra ==" not in line}
        assert needed <= {"numpy", *named}, "this lesson may not need them all"
        assert stops(printed) and not stops(run_with(["numpy", *named], script))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", LESSONS[::4])  # the others run as notebooks below
    def test_as_plain_python(self, name):
        assert not stops(said(f"{name}.py"))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", LESSONS[9:])
    def test_answers(self, name):
        assert said(f"answers/{name}.py")

    @pytest.mark.slow
    @pytest.mark.parametrize("name", LESSONS)
    def test_pages_are_what_scripts_give_now(self, name):
        ended = subprocess.run(
            [sys.executable, "build.py", "--check", name], capture_output=True, text=True, cwd=FOLDER, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


class TestTheseTests:
    @pytest.mark.parametrize(
        ("text", "faults"),
        [
            ("[`softmax`](../reference/notation.py) and [`E`](../reference/README.md)", []),
            ("[`softmax`](../reference/no_such_file.py)", ["../reference/no_such_file.py"]),
            ("[`soft_max`](../reference/notation.py)", ["soft_max in ../reference/notation.py"]),
            ("[`ExpertChoice`](../reference/notation.py), [`SIZES`](../reference/accounting.py)", []),
        ],
    )
    def test_links(self, text, faults):
        assert wrong_links(text, FOLDER) == faults

    def test_numbers(self):
        above = "It is 1,234 and 0.982.\n```python\nprint(1.5, 10_000)\n```\n```text\n0.982 in 25%\n```\n"
        text = (
            above
            + "In 2022 $x = 77$ `78` [a](80.md) <!-- 81 --> Lesson 12: 0.982, 25 %, 10000, 1.5; 3 experts; 0.98 or 26 %"
        )
        assert unsupported_numbers(text) == ["1,234", "0.982", "0.98", "26"]
