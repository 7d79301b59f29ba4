"""A lint for prose: `make lint` checks Markdown, docstrings, comments and messages.

Vale downloads a program at installation, and proselint has no project dictionary, so this file replaces both. Each
entry of WORDS and PAGES is a pattern and its replacement. A line that needs the word ends with "prose: ok, REASON" in a
comment of its language. `python tools/prose.py --count` prints words and matches by file.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS = {
    r"\b(no|some)body\b": "say who: the program, the reader, no run",
    r"\b(is|are|was|were) (said|told)\b": "the program prints, reports or names it",
    r"\bstands? beside\b": "is next to, is listed with",
    r"\b(is|are|be) held (to|against)\b": "is compared with, is tested against",
    r"\b(say|says|said) in words\b": "explains, or print the sentence itself",
    r"\bwithout a word\b": "silently",
    r"\b(whence|wherein|thereof|whereof|therein)\b": "use plain words",
    r"\bmeans nothing\b": "is undefined, is not comparable",
    r"\bunwritten memory\b|\bmemory to which nothing\b": "uninitialised memory",
    r"\bthe least sum\b|\blowest point of its whole domain\b": "global optimum, the best objective found",
    r"\bsay whether\b": "return whether, check whether",
    r"\bin the place of\b": "instead of",
    r"\bfore(tell|told)": "predict",
    r"\b(dealt|shared|gives?|given) out (in|among|evenly|to)\b": "assigned, divided, distributed",
    r"\bmoods?\b": "load, state",
    r"\bstrangers?\b": "another library, a user",
    r"\bwith (him|her)\b": "name the function or the caller",
}
PAGES = {
    r"\bin place of\b": "instead of",
    r"\bat hand\b": "available",
    r"\bwho(so)?ever\b": "a user who",
    r"\bas (it|they) stands?\b": "unchanged, current",
    r"\bin words\b": "explain, or print the sentence itself",
    r"\bknows? nothing (of|about)\b": "ignores",
    r"\bless (the|those|these)\b": "minus",
    r"\bone at least\b": "at least one",
    r"\bof which\b.*\bof which\b": "repeat the noun",
    r"\bto which nothing\b|\bwithout which\b": "repeat the noun",
}
"""Further patterns for pages: Markdown and templates."""
SKIPPED = {"CHANGELOG.md", "prose.py", "tests", "suite"}
ALLOWED = re.compile(r"prose: ok, \w+")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of the prose of a Markdown page: no code blocks, no code spans."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "`code`", line)


def python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of comments, docstrings and messages: strings of three words or more."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            for offset, line in enumerate(node.value.split("\n")):
                yield min(node.lineno + offset, node.end_lineno), line


READERS = {".md": markdown, ".j2": markdown, ".py": python}


def matches(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    lines = text.split("\n")
    words = WORDS if path.suffix == ".py" else WORDS | PAGES
    lines_found = []
    for number, line in READERS[path.suffix](text):
        if ALLOWED.search(lines[number - 1]):
            continue
        for pattern, instead in words.items():
            lines_found += [
                f"{path}:{number}: {match[0]!r}: {instead}" for match in re.finditer(pattern, line, re.IGNORECASE)
            ]
    return lines_found


def files(names: list[str]) -> list[Path]:
    """Return the named files, or all files of git except tests and past versions."""
    tracked = names or subprocess.check_output(["git", "ls-files"], text=True).splitlines()
    return [path for path in map(Path, tracked) if path.suffix in READERS and not set(path.parts) & SKIPPED]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", action="store_true", help="print words and matches of each file; do not fail")
    parser.add_argument("files", nargs="*", help="files to check (default: all that git tracks, without tests)")
    options = parser.parse_args()
    matches_of = {path: matches(path) for path in files(options.files)}
    if options.count:
        for path, lines in matches_of.items():
            words = sum(len(line.split()) for _, line in READERS[path.suffix](path.read_text("utf-8")))
            print(f"{words:7} words {len(lines):5} matches  {path}")
        return 0
    print("\n".join(line for lines in matches_of.values() for line in lines), end="")
    return any(matches_of.values())


if __name__ == "__main__":
    sys.exit(main())
