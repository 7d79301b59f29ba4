"""Runs beside each other, in words: a table of losses and differences, and the settings in which the runs differ."""

from ..results.sweeps.run_pairs import RunsBeside
from .rendering import render


def run_table(found: RunsBeside) -> str:
    """Return what `routelaws report RUN RUN ...` prints."""
    return render("runs_beside.md.j2", found._asdict()).rstrip()
