"""Tables of measured leverages: one row for each mixture of experts, with the columns of NEEDED.

A is the share of the experts that a token uses, G = 2 d_model / d_expert, C the training FLOPs of the mixture, and the
leverage the training FLOPs of a dense model of equal loss over C.
"""

from typing import NamedTuple

import numpy as np

from .columns import CheckedColumns
from .reading import read_cells

NEEDED = ("activation", "tian_granularity", "flops", "leverage")


class Leverages(NamedTuple):
    """The rows of a table, [n] each."""

    activation: np.ndarray
    tian_granularity: np.ndarray
    flops: np.ndarray
    leverage: np.ndarray


def read_leverages(path) -> Leverages | None:
    """Read a table of leverages; None where the table has no column leverage.

    Raises:
        InputError: the file cannot be read, a column is missing, or a cell is no number above 0.
    """
    rows, cells = read_cells(path)
    if "leverage" not in cells:
        return None
    columns = CheckedColumns(path, cells, rows)
    found = Leverages(*(columns.number(name, above=0.0) for name in NEEDED))
    columns.raise_if_any()
    return found
