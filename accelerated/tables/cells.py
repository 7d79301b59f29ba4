"""The cells of a new table, as text: find and fill blank cells."""

import numpy as np

from ..errors import printable
from .schema import BLANK, to_numbers
from .units import UNITS_OF


class Cells:
    """The cells of the new table, as text; filling blank cells adds a remark."""

    def __init__(self, runs, cells: dict[str, list[str]], constants: dict[str, str]):
        self.runs, self.cells, self.constants, self.remarks = runs, cells, constants, []
        self.names: list[str] = []  # names of the runs, from a column without a place in the table
        self.dropped: dict[str, list[str]] = {}  # columns without a place in the table
        self.rows = len(next(iter(cells.values()), []))
        self.at: list[str] = []  # the name of each row in messages
        self.headers: dict[str, str] = {}  # {column of the table: column of the user's file}

    def column(self, name: str) -> list[str]:
        """Return a column. Add a blank column if missing."""
        return self.cells.setdefault(name, [""] * self.rows)

    def blank(self, name: str) -> list[int]:
        """Return the rows without a value in a column."""
        return [i for i, cell in enumerate(self.cells.get(name, [""] * self.rows)) if cell.strip() in BLANK]

    def fill(self, name: str, values: dict[int, str], how: str) -> None:
        if values:
            column = self.column(name)
            for i, value in values.items():
                column[i] = value
            self.remarks.append(f"{name}: {how}{in_rows(len(values), self.rows)}")

    def number(self, name: str) -> np.ndarray:
        """Return a column as numbers, NaN for blanks: [rows] float64."""
        return to_numbers(self.cells.get(name, [""] * self.rows), UNITS_OF.get(name))[0]


FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""First characters of cells that a spreadsheet may run as a formula."""


def harmless(cells: list[str]) -> list[str]:
    """Return cells of text, with an apostrophe before texts that a spreadsheet may run. Numbers stay unchanged.

    Example:
        >>> harmless(["=1+1", "-0.5", "-0.5 %", "S-Base"])
        ["'=1+1", '-0.5', "'-0.5 %", 'S-Base']
    """
    wrong = to_numbers(cells)[1]
    return [f"'{cell}" if cell.startswith(FORMULA) and bad else cell for cell, bad in zip(cells, wrong, strict=True)]


def printable_cells(cells: list[str]) -> list[str]:
    """Return cells of text, with escapes for characters that are not printable."""
    return [cell if cell.isprintable() else printable(cell.strip()) for cell in cells]


def in_rows(count: int, rows: int) -> str:
    """Return ", in n rows"; empty if n is all rows."""
    return "" if count == rows else f", in {count} of {rows} rows"
