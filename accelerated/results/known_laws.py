"""The law that a user asks for: by its name, or from a file of the user's own that registers it."""

import functools
import runpy
from pathlib import Path

from ..errors import InputError
from ..laws.catalogue import LAWS, Law


def law_of(text: str, command: str | None = None) -> Law:
    """Return a law.

    Args:
        text: its name; or FILE.py:NAME, where the file calls `routelaws.accelerated.laws.register` for a law NAME. The
            file is run once, as Python code.
        command: that takes laws of the loss alone; any law will do if None.

    Raises:
        InputError: no such law, or the file cannot be run; or the law is not of the loss where it has to be.
    """
    path, _, name = text.rpartition(":")
    if path:
        _run(Path(path).absolute())
    if name not in LAWS:
        where = f" after {path} was run (by register of routelaws.accelerated.laws?)" if path else ""
        raise InputError(f"law {name!r} is not known{where}; allowed: {', '.join(LAWS)}")
    law = LAWS[name]
    if command is not None and law.measured != "loss":
        raise InputError(f"the law {name} is of {law.measured}; {command} takes laws of the loss")
    return law


def rows_of_released(law: Law, rows: str | None) -> str | None:
    """Return which rows of the released table a law is fitted to: those that are chosen, or else the paper's own.

    A law in compute takes every share of routed blocks and every k, which the paper's rows leave out.
    """
    return "clark" if rows is None and law.axes != "compute" else rows


@functools.cache  # a law can be registered once
def _run(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file; needed: a Python file that registers a law")
    try:
        runpy.run_path(str(path))
    except Exception as error:  # whatever a file of the user's own does
        raise InputError(f"{path}: {type(error).__name__}: {error}") from None
