"""What a benchmark leaves: one mapping for every figure, the machine, and bench.json."""

import datetime
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..files import write_atomically
from .bench import Bench
from .figure import Figure, Outcome
from .measure import APART, DISTURBED
from .worker import MissingError, NotHereError

NOT_INSTALLED = "peer not installed: pip install 'routelaws[bench]'"


def run_figures(figures: Sequence[Figure], bench: Bench, tell: Callable[[dict], None]) -> dict:
    """Measure figures one after the other.

    Args:
        figures: what to measure.
        bench: what to measure with.
        tell: called after each figure with the record so far.

    Returns:
        The record: what bench.json holds, see `record_of`.
    """
    entries, record = [], {}
    for figure in figures:
        entries.append(measured(figure, bench))
        record = record_of(entries, bench)
        tell(record)
    return record


def record_of(entries: list[dict], bench: Bench) -> dict:
    """Return what bench.json holds.

    Returns:
        "figures", a list of `entry`; "ceilings", a list of {"threads", "gflops", "gbytes", "disturbed"}, for each
        number of threads that a floor was counted with; "handover_seconds", the shortest between two cores, or None;
        "machine"; "settings"; "measured_at".
    """
    settings = bench.settings
    return {
        "figures": list(entries),
        "ceilings": plain(bench.measured_ceilings()),
        "handover_seconds": bench.handover.least,
        "machine": bench.machine(),
        "settings": {
            "quick": settings.quick,
            "rounds": settings.rounds,
            "more_rounds_at_most": settings.more,
            "block_seconds": settings.block_seconds,
            "disturbed_above": DISTURBED,
            "apart_above": APART,
        },
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def measured(figure: Figure, bench: Bench) -> dict:
    """Measure a figure; what cannot be measured here says why in its status."""
    begin = time.perf_counter()
    try:
        if bench.threads(figure.threads) < figure.threads:
            raise NotHereError(f"not on this machine: it has fewer than {figure.threads} cores")
        bench.need_backend(*figure.backends)
        found, status = figure.measure(bench), "measured"
    except MissingError as error:
        found, status = None, f"{NOT_INSTALLED} ({error} is missing)"
    except NotHereError as error:
        found, status = None, str(error)
    except RuntimeError as error:
        found, status = None, f"failed: {error}"
    return entry(figure, found, status, bench.settings.quick) | {"took_seconds": round(time.perf_counter() - begin, 1)}


def entry(figure: Figure, found: Outcome | None, status: str = "measured", quick: bool = False) -> dict:
    """Return a figure as JSON has it.

    Returns:
        {"name", "what", "unit", "goal": {"at_most" or "at_least": limit} or None, "status", "value", "holds", "spread":
        [first quartile, third quartile], ...}. Without a value, without a goal, at small sizes and where most rounds
        were disturbed "holds" is None.
    """
    goal = None if figure.goal is None else {"at_least" if figure.goal.least else "at_most": figure.goal.limit}
    named = {"name": figure.name, "what": figure.what, "unit": figure.unit, "goal": goal, "status": status}
    if found is None:
        return named | {"value": None, "holds": None, "spread": None}
    judged = goal is not None and not quick and not mostly_disturbed(found)
    return named | {
        "value": plain(found.value),
        "holds": figure.goal.holds(found.value) if judged else None,
        "spread": plain(found.spread),
        "seconds": plain(found.seconds),
        "threads": found.threads,
        "rounds": found.rounds,
        "repeated_rounds": found.repeated,
        "disturbed_rounds": found.disturbed,
        "floor_seconds": plain(found.floor_seconds),
        "over_floor": plain(found.over_floor),
        "facts": plain(found.facts),
    }


def mostly_disturbed(found: Outcome) -> bool:
    """Return whether others had the machine in more than half of the rounds: then the figure says little."""
    return 2 * (found.disturbed or 0) > found.rounds


def markdown(record: dict) -> str:
    """Return the figures of a record as a table in Markdown."""
    lines = [
        "| figure | value | quartiles | goal | holds | over its floor |",
        "| --- | ---: | ---: | --- | --- | ---: |",
    ]
    for each in record["figures"]:
        goal, value, spread, over = goal_words(each["goal"]), each["status"], "", ""
        if each["value"] is not None:
            value, spread = number(each["value"]), " to ".join(map(number, each["spread"]))
            over = "" if each["over_floor"] is None else number(each["over_floor"])
        lines.append(f"| `{each['name']}` | {value} | {spread} | {goal} | {holds_words(each)} | {over} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def goal_words(goal: dict | None) -> str:
    """Return a goal in words."""
    if goal is None:
        return "none set"
    [(kind, limit)] = goal.items()
    return f"{kind.replace('_', ' ')} {limit:g}"


def holds_words(entry: dict) -> str:
    """Return whether a figure keeps its goal: yes, NO, "disturbed" where that cannot be said, or nothing."""
    if entry["holds"] is None and entry["value"] is not None and entry["goal"] is not None:
        return "disturbed" if entry["disturbed_rounds"] else ""
    return {True: "yes", False: "NO", None: ""}[entry["holds"]]


def plain(value):
    """Return a value as JSON has it: numbers with six digits, and None for what is no number."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def write_record(record: dict, path: Path) -> None:
    """Write bench.json."""
    write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
