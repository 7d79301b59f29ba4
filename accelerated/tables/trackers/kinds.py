"""Exports of Weights & Biases and TensorBoard, as rows for `convert`.

The header of a file determines its kind:

    Step, "RUN - METRIC", "RUN - METRIC__MIN", ...    a panel of Weights & Biases: a column for each run and metric
    Wall time, Step, Value                            a metric of a run, downloaded from TensorBoard
    _step, in JSON lines, or with _timestamp          the history of runs, from the API of Weights & Biases
    metric (or key, tag) and value                    a long table: each metric becomes a column
    anything else                                     a table, such as the table of runs in Weights & Biases

Event files have known names. All kinds but the last are pieces of a log, with columns `run` and `step` and a
column for each metric. Several pieces, such as a panel for each metric or a file for each run, are joined by run and
step. If a run restarted from an earlier step, its old rows from this step on are dropped.
"""

from ..reading import read_cells
from ..table import table_path
from .events import event_files, read_events
from .log import Log
from .long_tables import long_columns, read_long
from .tensorboard import SCALARS, read_scalars
from .wandb import PANEL, is_history, read_history, read_panel, unfolded


def read_piece(path, columns: dict[str, str]) -> Log | dict[str, list[str]]:
    """Return a file or a folder of event files as a piece of a log, or the cells of a table.

    Args:
        columns: {column of the results table: column of the file}, by the user.

    Raises:
        InputError: the file cannot be read, or a cell of a log is not a number.
    """
    if files := event_files(path):
        return read_events(path, files, columns)
    path = table_path(path)
    cells = read_cells(path).columns
    if list(cells) == SCALARS:
        return read_scalars(path, cells)
    matches = [PANEL.fullmatch(name) for name in list(cells)[1:]]
    if matches and all(matches):
        return read_panel(path, cells, matches)
    if is_history(path, cells):
        return read_history(path, cells, columns)
    if found := long_columns(cells, columns):
        return read_long(path, cells, *found, columns)
    return unfolded(path, cells)
