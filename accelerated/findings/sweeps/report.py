"""Write the report of a sweep into its folder: the sections for tables, and the sections for sweeps."""

import time
from pathlib import Path

from ...results.runs import Runs
from ..draw import draw_all
from ..gather import gather
from ..report import markdown, write_files
from ..runs import TableRun
from ..source import with_main_loss
from .chance import Seconds, find
from .folder import Sweep, read_sweep, same_but_seed


def gather_sweep(sweep: Sweep) -> tuple[dict, list[TableRun]]:
    runs = with_main_loss(Runs(sweep.frame, sweep.folder))
    return gather(runs, point=lambda run: same_but_seed(sweep.planned[run.hyper_id]), name=sweep.name)


def write_report(folder: Path, full: bool = False) -> Path:
    """Write report.md, report.html, report.json and figures/ into the folder of a sweep.

    Args:
        full: True adds every table to the answer, its figures and the cautions.

    Returns:
        The path of report.md.

    Raises:
        InputError: the folder has no sweep, or no run is finished.
    """
    folder, started = Path(folder), time.perf_counter()
    sweep = read_sweep(folder)
    results, runs = gather_sweep(sweep)
    facts = find(sweep, results["seed_scatter"])
    fitted = time.perf_counter()
    drawn = draw_all(folder / "figures", results, runs, sweep, facts)
    facts = facts._replace(seconds=Seconds(sweep.seconds(), fitted - started, time.perf_counter() - fitted))
    text = markdown(results, drawn, facts, "report.json", full)
    numbers = results | {
        name: getattr(facts, name) for name in ("name", "sessions", "learning", "registered", "runs", "seconds")
    }
    numbers |= {"runs_planned": facts.planned, "runs_finished": len(sweep.runs)}
    numbers |= {"does_routing_help": facts.comparisons, "load": facts.loads}
    return write_files(folder, "report.json", numbers, text)
