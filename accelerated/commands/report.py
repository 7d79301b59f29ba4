"""What `routelaws report` does: write the report of a sweep again."""

from pathlib import Path

import tyro

from ..report.sweep_report import write_report
from . import flags


def report(folder: tyro.conf.Positional[Path]) -> None:
    """Write the report of a sweep again.

    Args:
        folder: Folder of the sweep.
    """
    print(write_report(folder))


def main(arguments: list[str]) -> None:
    """Run `routelaws report`."""
    flags.run(report, "report", arguments)
