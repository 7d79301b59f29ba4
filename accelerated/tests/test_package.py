"""The installed package: types, addresses, and the packages of its extras."""

import ast
import doctest
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from routelaws.accelerated import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORTED_AS = {
    "orbax-checkpoint": "orbax", "markdown-it-py": "markdown_it", "griffelib": "griffe", "ott-jax": "ott", "POT": "ot",
    "pytest-xdist": "xdist",
}  # fmt: skip
USED_BY_OTHERS = {
    "flatbuffers": "jax.export", "ipykernel": "nbclient", "pytest-rerunfailures": "pytest", "ruff": "the Makefile",
}  # fmt: skip


@pytest.mark.parametrize("extra", cli.EXTRAS)
def test_the_message_of_a_missing_extra_knows_its_packages(extra):
    listed = [re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["optional-dependencies"][extra]]
    assert sorted(cli.EXTRAS[extra]) == sorted(IMPORTED_AS.get(name, name) for name in listed)


def test_the_wheel_has_every_package_and_nothing_of_the_repository_alone():
    settings = PROJECT["tool"]["setuptools"]
    folders = {name: ROOT / folder for name, folder in settings["package-dir"].items()}
    wanted = {
        ".".join([name, *path.parent.relative_to(folder).parts])
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
        if "tests" not in path.relative_to(ROOT).parts
    }
    assert all(folders[".".join(n.split(".")[:2])].joinpath(*n.split(".")[2:], "__init__.py").is_file() for n in wanted)
    assert set(settings["packages"]) == wanted and len(wanted) == len(settings["packages"])
    assert not {"benchmarks", "tools", "tests"} & {part for name in wanted for part in name.split(".")}
    for package, patterns in settings["package-data"].items():
        room = ".".join(package.split(".")[:2])
        folder = folders.get(room, ROOT / "reference").joinpath(*package.split(".")[2:])
        assert all(list(folder.glob(pattern)) for pattern in patterns), package


POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}


def test_no_module_exists_on_posix_alone():
    """The modules must exist on Windows, where we do not test."""
    imported = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(POSIX)})\b", re.MULTILINE)
    for path in (ROOT / "accelerated").rglob("*.py"):
        if "tests" not in path.relative_to(ROOT).parts:
            assert not imported.search(path.read_text(encoding="utf-8")), path


def test_scripts_import_only_what_the_files_beside_them_have():
    """No test runs the scripts of `make wild`, because they install libraries."""
    lacking = []
    for path in (path for folder in ("tools", "docs", "tutorials") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (beside := path.parent / f"{node.module}.py").exists():
                tree = ast.parse(beside.read_text(encoding="utf-8"))
                known = {name for each in tree.body for name in names_of(each)}
                lacking += [f"{path.name}: {node.module}.{each.name}" for each in node.names if each.name not in known]
    assert lacking == []


def names_of(node) -> set[str]:
    """Return the names that a statement at the top of a file defines or imports."""
    if hasattr(node, "name"):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in node.names}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def test_types_are_part_of_every_room():
    """PEP 561: without this file, type checkers ignore the annotations."""
    settings = PROJECT["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"]["*"]
    for name, folder in settings["package-dir"].items():
        assert (ROOT / folder / "py.typed").read_bytes() == b"", f"{name} has no py.typed"


def test_addresses_are_those_that_the_project_names_elsewhere():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert PROJECT["project"]["urls"] and all(f"({url})" in readme for url in PROJECT["project"]["urls"].values())


def test_every_package_has_a_version_that_was_tried():
    pinned = {
        re.match(r"[\w-]+", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and line[0] != "#"
    }
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["project"]["dependencies"]]
    needed += [line for extra in ("train", "laws", "conformance", "tutorials") for line in extras[extra]]
    assert {re.match(r"[\w-]+", line)[0].lower() for line in needed} - {"routelaws"} <= pinned


def test_every_package_is_used():
    """A package that no file imports costs every user time and space."""
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("reference", "accelerated", "conformance", "tutorials", "benchmarks", "docs", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    )
    pages = (ROOT / "docs/site/conf.py").read_text(encoding="utf-8")  # it names extensions and the theme
    used = {*re.findall(r"^ *(?:import|from) (\w+)|find_spec\(\"(\w+)\"\)", source, re.MULTILINE)}
    used = {name for names in used for name in names} | set(re.findall(r"\"(\w+)\"", pages))
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    named = {re.match(r"[\w-]+", line)[0] for line in lines} - {"routelaws", *USED_BY_OTHERS}
    assert {name for name in named if IMPORTED_AS.get(name, name.replace("-", "_")) not in used} == set()


WITH_EXAMPLES = (
    "wording",
    "tables.cells",
    "results.blocks",
    "results.encoding",
    "results.misfit",
    "results.planning.step_time",
)


@pytest.mark.parametrize("name", [*WITH_EXAMPLES, "findings.laws.downstream", "inspection.statistics"])
def test_examples_of_what_has_no_twin(name):
    result = doctest.testmod(importlib.import_module(f"routelaws.accelerated.{name}"))
    assert result.attempted and not result.failed
