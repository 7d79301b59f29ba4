"""Run the benchmarks, all or some, one after the other in one process.

    python -m routelaws.accelerated.benchmarks [NAME ...] [--list] [--full]

Every module of this folder with a function `main` is one. By default each runs in a short form (`SHORT`), which takes
seconds to a minute; `--full` gives it its own defaults. For all options of one: `python -m
routelaws.accelerated.benchmarks.NAME --help`.
"""

import argparse
import ast
import importlib
import time
from pathlib import Path

SHORT = {
    "additive_fit": ["--restarts", "5", "--repeats", "3"],
    "assignment": ["--sizes", "1024x16", "4096x64", "--repeats", "3"],
    "balanced": ["--size", "512x16", "--inputs", "random", "tied", "--repeats", "1"],
    "hash_loads": ["--sizes", "1024x16x1x1", "1024x16x4x1", "1024x4x4x2"],
    "law_fit": ["--bootstraps", "100", "--restarts", "3", "--repeats", "3"],
    "policy_gradient": ["--layouts", "r", "ra", "--steps", "0", "--seeds", "1"],
}
"""Options of the short forms; a benchmark that is not here runs with its defaults."""


def discover(folder: Path = Path(__file__).parent) -> dict[str, str]:
    """Return {name: first line of the docstring} of the modules in a folder that have a `main`; imports none."""
    found = {}
    for path in sorted(folder.glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run(name: str, arguments: list[str] | None) -> None:
    """Run one benchmark, or say in a line what it lacks."""
    try:
        importlib.import_module(f"{__package__}.{name}").main(arguments)
    except ModuleNotFoundError as error:
        print(f"skipped: {error.name} is not installed; pip install 'routelaws[bench]' brings what benchmarks need")


def main(arguments: list[str] | None = None) -> None:
    """List or run."""
    available = discover()
    parser = argparse.ArgumentParser(prog="python -m routelaws.accelerated.benchmarks", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which; all by default ({', '.join(available)})")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    parser.add_argument("--full", action="store_true", help="with the defaults of each, not its short form; minutes")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in available:
            parser.error(f"there is no benchmark {name!r}; allowed: {', '.join(available)}")
    for name in given.names or available:
        if given.list:
            print(f"{name:18}{available[name]}")
            continue
        options = [] if given.full else SHORT.get(name, [])
        print(f"== {name} {' '.join(options)}".rstrip(), available[name], sep="\n", flush=True)
        begin = time.perf_counter()
        run(name, options)
        print(f"({time.perf_counter() - begin:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
