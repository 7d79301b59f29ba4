"""Tables of the study's grid with planted losses."""

import numpy as np
import pytest

from routelaws.accelerated.training.runs.result_rows import result_row, write_rows
from routelaws.accelerated.training.sweeps.grid import read_grid
from routelaws.accelerated.training.window_losses import WindowLosses


@pytest.fixture(scope="session")
def write_study():
    """Return a function that writes the last row of each run of a grid, with `loss_of(run, hyper_id)`."""
    windows = WindowLosses(np.arange(2), np.arange(2), np.full(2, 16), np.full(2, 48.0))

    def write(path, loss_of, with_largest: bool = True, preset_or_file: str = "study"):
        rows, grid = [], read_grid(preset_or_file)
        largest = max(run.accounting().dense_parameters for run in grid.runs)
        for i, run in enumerate(grid.runs):
            if with_largest or run.accounting().dense_parameters < largest:
                loss = {"validation": loss_of(run, i)}
                rows.append(result_row(run, i, run.steps, loss, windows, 0.0, np.zeros((0, 0)), 1.0))
        write_rows(path, rows)
        return path

    return write
