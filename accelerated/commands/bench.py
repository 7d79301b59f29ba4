"""What `routelaws bench` does: measure figures in turns with other libraries, show them, and write bench.json."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..benchmarks.bench import QUICK, Bench, Settings
from ..benchmarks.catalogue import FIGURES, chosen
from ..benchmarks.record import goal_words, holds_words, markdown, number, run_figures, write_record
from ..errors import InputError
from ..files import write_atomically

for _package in ("grain", "optax", "orbax", "sentencepiece"):  # said before half an hour of work
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)


def bench(
    *,
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")] = (),
    list: bool = False,
    out: Path = Path("bench.json"),
    quick: bool = False,
    rounds: int = Settings.rounds,
    markdown_to: Annotated[Path | None, tyro.conf.arg(name="markdown")] = None,
) -> None:
    """Measure how fast this is, as ratios to other libraries in one run.

    Every figure is the median of the ratios of several rounds; a round runs both sides in turns. Rounds in which other
    processes had more than a twentieth of the machine, or its host moved two cores apart, are taken again, a bounded
    number of times.

    Args:
        only: A figure, or how the names of several begin, such as dense-step; can be given again. All if not given.
        list: List the figures with their goals, and stop.
        out: The file of the results.
        quick: Small sizes and one round: whether it runs, not how fast; no goal is judged.
        rounds: Rounds of each comparison.
        markdown_to: A file for the table in Markdown as well.
    """
    figures = chosen(only)
    if rounds < 1:
        raise InputError(f"--rounds {rounds}: has to be at least 1")
    if quick and rounds != Settings.rounds:
        raise InputError(f"--rounds {rounds}: --quick takes one round")
    if list:
        return print_list(figures)
    _check_file("--out", out)
    if markdown_to is not None:
        _check_file("--markdown", markdown_to)
    record = _measure(figures, QUICK if quick else Settings(rounds=rounds, more=2 * rounds), out)
    if markdown_to is not None:
        write_atomically(markdown_to, markdown(record))
    print_record(record)
    print(f"written to {out}")
    failed = [entry["name"] for entry in record["figures"] if entry["status"].startswith("failed")]
    if failed:
        print(f"routelaws: figures that failed: {', '.join(failed)}", file=sys.stderr)
        raise SystemExit(1)


def _measure(figures, settings: Settings, out: Path) -> dict:
    """Measure with progress on standard error, and return the record; what there is is written after each figure."""
    console = Console(stderr=True)
    with Bench(settings) as measuring, _bars(console) as bars:
        task = bars.add_task("measuring", total=len(figures), note=figures[0].name)

        def tell(record):
            done = len(record["figures"])
            bars.update(task, completed=done, note=figures[done].name if done < len(figures) else "")
            _say(console, record["figures"][-1])
            write_record(record, out)  # what was measured is kept if the rest is interrupted

        return run_figures(figures, measuring, tell)


def _check_file(flag: str, path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"{flag} {path}: has to be a file in a folder that is there")


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.fields[note]}"), console=console, transient=True, disable=not console.is_terminal
    )


def _say(console: Console, entry: dict) -> None:
    """Say what one figure is, as soon as it is there."""
    said = entry["status"] if entry["value"] is None else f"{number(entry['value'])} {entry['unit']}"
    console.print(f"{entry['name']}: {said}", markup=False, highlight=False, soft_wrap=True)


def print_list(figures) -> None:
    """Print the names of figures, their goals and what they are."""
    width = max(map(len, FIGURES))
    for figure in figures:
        goal = "no goal" if figure.goal is None else str(figure.goal)
        print(f"{figure.name:{width}}  {goal:14}  {figure.what}")


def print_record(record: dict, console: Console | None = None) -> None:
    """Print the table of a record.

    Args:
        record: what bench.json holds.
        console: a rich Console; a new one on standard output if None.
    """
    console = console or Console(width=None if sys.stdout.isatty() else 200)
    heads = ("figure", "value", "quartiles", "goal", "holds", "over its floor", "remarks")
    table = Table(*heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for entry in record["figures"]:
        if entry["value"] is None:
            table.add_row(entry["name"], "", "", goal_words(entry["goal"]), "", "", escape(entry["status"]))
            continue
        value = f"{number(entry['value'])} {entry['unit']}"
        spread = " to ".join(number(end) for end in entry["spread"])
        over = "" if entry["over_floor"] is None else f"{number(entry['over_floor'])} x"
        remarks = escape("; ".join(remarks_of(entry)))
        table.add_row(entry["name"], value, spread, goal_words(entry["goal"]), holds_words(entry), over, remarks)
    console.print(table)
    for line in closing_lines(record):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def remarks_of(entry: dict) -> list[str]:
    """Return what a reader has to know of a figure: disturbed rounds, and what routing dropped."""
    remarks = []
    if entry["disturbed_rounds"]:
        remarks.append(f"disturbed: {entry['disturbed_rounds']} of {entry['rounds']} rounds")
    elif entry["repeated_rounds"]:
        remarks.append(f"{entry['repeated_rounds']} disturbed rounds taken again")
    for side in entry["facts"].values():
        if isinstance(side, dict) and "dropped_fraction" in side:
            remarks.append(f"dropped {100 * side['dropped_fraction']:.2g} %")
    return remarks


def closing_lines(record: dict) -> list[str]:
    """Return the machine, its ceilings, and how many goals hold."""
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    lines = [f"{machine['processor']}, {machine['cores']} cores, backend {machine['backend']}; {versions}"]
    for each in record["ceilings"]:
        lines.append(f"ceilings, threads {each['threads']}: {each['gflops']:.0f} GFLOP/s, {each['gbytes']:.1f} GB/s")
    if record.get("handover_seconds"):
        lines.append(f"a line of memory from core to core, at best: {1e9 * record['handover_seconds']:.0f} ns")
    judged = [entry["holds"] for entry in record["figures"] if entry["holds"] is not None]
    if record["settings"]["quick"]:
        lines.append("small sizes: no goal is judged")
    else:
        lines.append(f"goals that hold: {sum(judged)} of {len(judged)}")
    disturbed = sum(bool(entry.get("disturbed_rounds")) for entry in record["figures"])
    if disturbed:
        what = "others had the machine, or its cores were apart"
        lines.append(f"figures with disturbed rounds, in which {what}: {disturbed}; measure these again")
    return lines
