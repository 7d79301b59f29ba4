"""Measure the speed figures, print a table, and write bench.json: `make bench` or `python -m benchmarks`."""

import argparse
import datetime
import json
import statistics
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from routelaws.accelerated.training.sweeps.workers import available_cores

from . import fits, layers, memory, plans, rounds, steps, worker
from .figure import Figure

FIGURES = {figure.name: figure for family in (steps, memory, layers, plans, fits) for figure in family.FIGURES}
BLOCK_SECONDS, PAUSE = 0.4, 0.05


class Bench:
    """The processes of a benchmark; a context manager that ends them."""

    def __init__(self, count: int = 5, quick: bool = False):
        self.rounds, self.quick = count, quick
        self.workers: dict[tuple[str, int], worker.Worker] = {}
        self.load = rounds.Load(own=self._own_seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        for each in self.workers.values():
            each.close()
        self.workers.clear()

    def _own_seconds(self) -> float:
        return rounds.process_seconds() + sum(rounds.process_seconds(each.pid) for each in self.workers.values())

    def process(self, library: str, threads: int) -> worker.Worker:
        """Return the process of a library with this number of threads. Start it if needed."""
        if (library, threads) not in self.workers:
            self.workers[library, threads] = worker.Worker(library, threads)
        return self.workers[library, threads]

    def measure(self, figure: Figure) -> dict:
        """Return the entry of a figure in bench.json. Its status explains a missing value."""
        entry = {"name": figure.name, "what": figure.what, "goal": figure.goal, "value": None, "holds": None}
        try:
            backend = self.process("jax", available_cores()).ask(worker.describe)["backend"]
            if figure.backend not in ("", backend):
                return entry | {"status": f"needs the backend {figure.backend}; this one is {backend}"}
            if (figure.threads or 1) > available_cores():
                return entry | {"status": f"needs {figure.threads} cores"}
            return entry | {"status": "measured"} | self._measured(figure)
        except ModuleNotFoundError as error:
            return entry | {"status": f"{error.name} is not installed: pip install 'routelaws[bench]'"}
        except BrokenProcessPool as error:  # a process was killed; the next figure starts new processes
            self.close()
            return entry | {"status": f"failed: {error}"}
        except Exception as error:  # any library may raise; other figures continue
            return entry | {"status": f"failed: {type(error).__name__}: {error}"}

    def _measured(self, figure: Figure) -> dict:
        threads = figure.threads or min(2, available_cores())
        running = {name: self.process(side.library, threads) for name, side in figure.sides.items()}
        blocks = {name: self._block(running[name], name, side.per) for name, side in figure.sides.items()}
        try:
            for name, side in figure.sides.items():
                options = side.options | ({"quick": True} if self.quick else {})
                running[name].ask(worker.build, name, side._replace(options=options))
            taken = rounds.interleave(blocks, self.rounds, self.load, 0 if self.quick else 2 * self.rounds, PAUSE)
            facts = {name: running[name].ask(worker.facts, name) for name in figure.sides}
        finally:
            for name in figure.sides:
                running[name].ask(worker.drop, name)
        value, spread = rounds.median_and_quartiles([figure.value(each.seconds) for each in taken])
        disturbed = sum(each.is_disturbed() for each in taken)
        judged = not self.quick and 2 * disturbed <= len(taken)
        seconds = {name: statistics.median(each.seconds[name] for each in taken) for name in figure.sides}
        return {
            "value": value, "spread": spread, "holds": figure.holds(value) if judged else None, "seconds": seconds,
            "threads": threads, "rounds": len(taken), "disturbed_rounds": disturbed, "facts": facts,
        }  # fmt: skip

    def _block(self, process: worker.Worker, name: str, per: float):
        seconds = 0.0 if self.quick else BLOCK_SECONDS
        return lambda: [took / per for took in process.ask(worker.block, name, seconds)]


def chosen(names: list[str]) -> list[Figure]:
    """Return the figures whose names begin with one of these names; all figures without names.

    Raises:
        ValueError: no figure matches a name.
    """
    for name in names:
        if not any(figure.startswith(name) for figure in FIGURES):
            raise ValueError(f"--only {name}: no figure has such a name; --list shows the names")
    return [figure for name, figure in FIGURES.items() if not names or name.startswith(tuple(names))]


def goal_of(goal: tuple[str, float] | None) -> str:
    return "" if goal is None else f"{goal[0]} {goal[1]:g}"


def line(entry: dict) -> str:
    """Return a figure as a row of a Markdown table: name, value, quartiles, goal, and whether the value meets the
    goal.
    """
    goal = goal_of(entry["goal"])
    if entry["value"] is None:
        return f"| `{entry['name']}` | {entry['status']} | | {goal} | |"
    spread = " to ".join(f"{end:.3g}" for end in entry["spread"])
    holds = {True: "yes", False: "no", None: "disturbed" if entry["disturbed_rounds"] else ""}[entry["holds"]]
    return f"| `{entry['name']}` | {entry['value']:.3g} | {spread} | {goal} | {holds} |"


def main(arguments: list[str] | None = None) -> int:
    """Measure and return the exit code: 1 if a figure failed, 2 if a flag is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="measure only figures whose names begin with NAME"
    )
    parser.add_argument("--list", action="store_true", help="print the name, meaning and goal of each figure")
    parser.add_argument(
        "--quick", action="store_true", help="use small sizes and one round; do not compare results with goals"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench.json"), help="file for the results (default: %(default)s)"
    )
    flags = parser.parse_args(arguments)
    try:
        figures = chosen(flags.only)
    except ValueError as error:
        parser.error(str(error))
    if flags.rounds < 1:
        parser.error(f"--rounds {flags.rounds} is out of range; use 1 or more")
    if flags.list:
        for figure in figures:
            print(f"{figure.name:24} {goal_of(figure.goal):14} {figure.what}")
        return 0
    entries = []
    with Bench(1 if flags.quick else flags.rounds, flags.quick) as bench:
        machine = bench.process("jax", available_cores()).ask(worker.describe)
        print("| figure | value | quartiles | goal | holds |\n| --- | ---: | --- | --- | --- |")
        for figure in figures:
            entries.append(bench.measure(figure))
            print(line(entries[-1]), flush=True)
            moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            record = {"figures": entries, "machine": machine, "quick": flags.quick, "measured_at": moment}
            flags.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(entry["status"].startswith("failed") for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
