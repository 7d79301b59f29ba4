"""The scoreboard: `make wild` judges routers of other libraries and writes docs/wild/results.json and README.md.

Each library has its own folder in the cache (`ROUTELAWS_WILD`, ~/.cache/routelaws-wild), with the versions of pins.txt,
and its own process. `python tools/wild fairscale attnax` judges some libraries and keeps other rows; `python tools/wild
--page` writes only the page, and `--compare OLD NEW` prints what changed between two results.json (or two files of
ask.py), such as those of two releases of a library. This needs a network and 2 GB of disk, so no CI runs it.
"""

import argparse
import json
import sys
from pathlib import Path

import scoreboard
from folders import HERE, answer, pins
from pairs import RUNTIMES

RESULTS = HERE.parents[1] / "docs" / "wild" / "results.json"
LIMIT = 3600
"""Seconds for one library."""


def merged(old: dict, answers: dict[str, list[dict]]) -> dict:
    """Return the results, with the rows and changes of answered libraries replaced."""
    rows = [row for row in old["rows"] if not answers.get(row["library"])]
    changes = dict(old["changes"])
    for library, found in answers.items():
        if found:
            rows += found
            changes[library] = scoreboard.changes([row for row in old["rows"] if row["library"] == library], found)
    return {
        "changes": {library: lines for library, lines in sorted(changes.items()) if lines},
        "rows": sorted(rows, key=lambda row: (row["library"], row["function"])),
    }


def compared(*files: Path) -> list[str]:
    """Return the changes between two files, a line for each function."""
    both = [json.loads(file.read_text("utf-8")) for file in files]
    old, new = (one["rows"] if isinstance(one, dict) else one for one in both)
    libraries = sorted({row["library"] for row in old + new})
    parts = {name: [[row for row in rows if row["library"] == name] for rows in (old, new)] for name in libraries}
    return [f"{name} {line}" for name, rows in parts.items() for line in scoreboard.changes(*rows)]


def main() -> int:
    every = ["transformers", *(set(pins()) - {"torch", *RUNTIMES})]
    parser = argparse.ArgumentParser(prog="python tools/wild", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "libraries", nargs="*", metavar="LIBRARY", help=f"one of {', '.join(sorted(every))} (default: all)"
    )
    parser.add_argument("--page", action="store_true", help="judge no library; only write README.md from results.json")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("OLD", "NEW"),
        help="judge no library; print what changed between two results.json, or two files of ask.py",
    )  # fmt: skip
    flags = parser.parse_args()
    if flags.compare:
        print("\n".join(compared(*flags.compare)) or "nothing changed")
        return 0
    libraries = [] if flags.page else flags.libraries or every
    answers = {library: answer("ask.py", [library], [library], LIMIT) or [] for library in libraries}
    results = merged(json.loads(RESULTS.read_text("utf-8")), answers)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    scoreboard.write(results)
    return 0 if all(answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
