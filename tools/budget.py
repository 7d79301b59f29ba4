"""The size of the code, compared with `budget.toml`: `make lint` fails if a number has risen.

    python tools/budget.py                                 # compare the numbers that need no run
    python tools/budget.py --traced                        # also count the files that four commands enter (minutes)
    python tools/budget.py [--traced] --write ["REASON"]   # write the numbers; a rise needs a reason

Code lines are lines with a token of Python: no docstrings, comments or blank lines. Definitions are functions and
classes at the top of a product file. `called_once` counts private functions of at most 8 lines with one use in their
file, and `subscripts` the subscripts with a string in `findings` and `results`. `chain` is the longest chain
of imports in `accelerated`.
"""

import argparse
import ast
import collections
import graphlib
import io
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "budget.toml"
ROOMS = ("reference", "accelerated", "conformance")
EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COMMANDS = {
    "fit": "fit ROOT/docs/study/results.csv", "reproduce": "reproduce --out OUT/paper",
    "train": "train --router sinkhorn --experts 4 --d-model 16 --blocks 2 --steps 6 --vocab-size 300 "
    "--evaluation-tokens 512 --out OUT/run",
    "suite": "--backend routelaws.conformance.plain.routing --only top_k_router --profile quick",
}  # fmt: skip
"""Commands whose entered files are counted. OUT is a temporary folder."""


def code_lines(text: str, tree: ast.Module) -> int:
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    prose = {line for node in strings for line in range(node.lineno, node.end_lineno + 1)}
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in EMPTY)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - prose)


def called_once(text: str, tree: ast.Module) -> int:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name)]
    short = [node.name for node in functions if node.end_lineno - node.lineno < 8]
    return sum(len(re.findall(rf"\b{name}\b", text)) == 2 for name in short)


def chain(trees: dict[Path, ast.Module]) -> int:
    graph, depth = {}, {}
    for path, tree in trees.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
        bases = [(path.parents[node.level - 1].joinpath(*(node.module or "").split(".")), node) for node in nodes]
        names = [name for base, node in bases for name in (f"{base}.py", *(f"{base}/{a.name}.py" for a in node.names))]
        graph[path] = trees.keys() & {Path(name) for name in names}
    for path in graphlib.TopologicalSorter(graph).static_order():
        depth[path] = 1 + max((depth[other] for other in graph[path]), default=0)
    return max(depth.values())


def measured() -> dict[str, dict[str, int]]:
    """Return {measure: {name: number}} of the tracked Python files."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {Path(name): (ROOT / name).read_text("utf-8") for name in names.split() if (ROOT / name).exists()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    product = {path for path in texts if path.parts[0] in ROOMS and not {"tests", "suite"} & {*path.parts}}
    lines, files, counts = collections.Counter(), collections.Counter(), collections.Counter()
    for path, tree in trees.items():
        lines["/".join(path.parts[:-1][:2])] += code_lines(texts[path], tree)
        files[str(path.parent)] += 1
        counts["definitions"] += path in product and sum(hasattr(node, "decorator_list") for node in tree.body)
        counts["called_once"] += path in product and called_once(texts[path], tree)
        if {"findings", "results"} & {*path.parts}:
            keys = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
            counts["subscripts"] += sum(isinstance(getattr(key, "value", None), str) for key in keys)
    counts["chain"] = chain({path: trees[path] for path in product if path.parts[0] == "accelerated"})
    return {"code_lines": dict(lines), "files": dict(files), "counts": dict(counts)}


def enter(command: str, folder: str) -> int:
    """Run a command, and return the number of our files whose functions it enters."""
    from routelaws.accelerated import cli
    from routelaws.conformance import __main__ as suite

    entered, ours = set(), tuple(str(ROOT / room) for room in ROOMS)

    def look(frame, event, _):
        code = frame.f_code  # bit 1 of the flags: not the body of a module or class
        if event == "call" and code.co_flags & 1 and code.co_name[0] != "<":  # a comprehension may run at import
            entered.add(code.co_filename)

    threading.setprofile(look)
    sys.setprofile(look)
    (suite if command == "suite" else cli).main(
        COMMANDS[command].replace("OUT", folder).replace("ROOT", str(ROOT)).split()
    )
    sys.setprofile(None)
    return sum(name.startswith(ours) and "/tests/" not in name for name in entered)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--traced", action="store_true", help="also count the files that four commands enter")
    parser.add_argument("--write", nargs="?", const="", metavar="REASON", help="write the numbers to budget.toml")
    parser.add_argument("--enter", choices=COMMANDS, help="run one of the four commands and count its files")
    options = parser.parse_args()
    if options.enter:
        with tempfile.TemporaryDirectory() as folder:
            print(enter(options.enter, folder))
        return 0
    allowed, numbers = tomllib.loads(BUDGET.read_text("utf-8")), measured()
    if options.traced:
        runs = {name: [sys.executable, __file__, "--enter", name] for name in COMMANDS}
        outputs = {name: subprocess.run(run, check=True, capture_output=True).stdout for name, run in runs.items()}
        numbers["files_entered"] = {name: int(output.split()[-1]) for name, output in outputs.items()}
    risen = [
        f"{measure} of {name}: {number}, before {before}"
        for measure, entries in numbers.items()
        for name, number in entries.items()
        if number > (before := allowed.get(measure, {}).get(name, 0))
    ]
    if options.write is None or risen and not options.write:
        print("\n".join([*risen, *["delete code, or add --write 'what a user gets for it'"] * bool(risen)]), end="")
        return bool(risen)
    lines = [
        "# Numbers of tools/budget.py. They may fall freely. Each rise has a line that says what a user got for it."
    ]
    lines += ["rises = [", *(f"    {rise!r}," for rise in allowed.get("rises", []))]
    lines += [f"    {options.write!r},"] * bool(risen) + ["]"]
    for measure, entries in ({name: allowed[name] for name in allowed if name != "rises"} | numbers).items():
        lines += ["", f"[{measure}]", *(f'"{name}" = {number}' for name, number in sorted(entries.items()))]
    BUDGET.write_text("\n".join(lines) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
