"""Columns of a table of measurements, read as text or numbers. A single message names every wrong cell."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from .reading import read_cells
from .schema import Problems, to_numbers
from .units import SIZES, UNITS_OF


class CheckedColumns:
    """The cells of a table, and their problems.

    Args:
        cells: {column: [n] texts}.
        rows: [n], the number of each row in the file.
    """

    def __init__(self, path, cells: dict[str, list[str]], rows: list[int]):
        self.path, self.cells, self.rows, self.problems = Path(path), cells, rows, Problems(path)

    def raise_if_any(self) -> None:
        """Raise `InputError` if cells are wrong. The message gives the row and the column of each."""
        self.problems.raise_if_any()

    def text(self, name: str) -> np.ndarray:
        """Return a column as texts [n] without outer spaces; all empty if missing."""
        return np.array([cell.strip() for cell in self.cells.get(name, [""] * len(self.rows))])

    def number(self, name: str, least=-np.inf, above=-np.inf, most=np.inf, blank=False, where=None, needed=""):
        """Return a column as numbers [n], NaN for blanks, with a problem for every cell out of range.

        Args:
            name: name of the column; all blank if missing.
            least, above, most: a number must be at least `least`, above `above` and at most `most`.
            blank: whether a cell may be blank.
            where: [n] bool, the rows to check; None for all.
            needed: words on the range for messages; made from the range if empty.
        """
        cells = self.cells.get(name, [""] * len(self.rows))
        values, wrong = to_numbers(cells, UNITS_OF.get(name))
        missing = np.isnan(values) & ~wrong
        bad = wrong | (~missing & ~((values >= least) & (values > above) & (values <= most) & np.isfinite(values)))
        bad = bad | (missing & (not blank))
        low, high = (1.0, SIZES[name].most) if name in SIZES else (1e-12, 1e9)
        slip = ~bad & (above == 0) & ((values < low) | (values > high))
        bad, slip = (bad, slip) if where is None else (bad & where, slip & where)
        limits = [f"above {above:g}"] * (above > -np.inf) + [f"at least {least:g}"] * (least > -np.inf)
        limits += [f"at most {most:g}"] * (most < np.inf)
        needed = needed or ", ".join(["a number", *[" and ".join(limits)] * bool(limits), *["or blank"] * blank])
        self.problems.add_each(bad, self.rows, name, lambda i: cells[i], needed)
        self.problems.add_each(slip, self.rows, name, lambda i: cells[i], f"a number from {low:g} to {high:g}")
        return np.where(bad | slip, np.nan, values)

    def share(self, name: str, where=None) -> np.ndarray:
        """Return a column of shares as numbers, NaN for blanks, with a problem for every other cell."""
        needed = "a share from 0 to 1 (a percentage divided by 100), or blank"
        return self.number(name, least=0, most=1, blank=True, where=where, needed=needed)


NEEDED = ("activation", "tian_granularity", "flops", "leverage")


class Leverages(NamedTuple):
    """The rows of a table, [n] each."""

    activation: np.ndarray
    tian_granularity: np.ndarray
    flops: np.ndarray
    leverage: np.ndarray


def read_leverages(path) -> Leverages | None:
    """Read a table of leverages. Return None if it has no column leverage.

    Raises:
        InputError: the file cannot be read, a column is missing, or a cell is not a number above 0.
    """
    rows, cells = read_cells(path)
    if "leverage" not in cells:
        return None
    columns = CheckedColumns(path, cells, rows)
    leverages = Leverages(*(columns.number(name, above=0.0) for name in NEEDED))
    columns.raise_if_any()
    return leverages
