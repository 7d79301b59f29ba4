"""All figures of a report, drawn only from the numbers, as PNG and SVG.

They use matplotlib's object interface and temporary settings, so importing this file changes no backend or style.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ..files import make_folder
from .gather import FINDINGS
from .runs import TableRun
from .style import save_figure, styled
from .sweeps.curves import load_figure, training_figure

if TYPE_CHECKING:  # reports of tables must not import the training code
    from .sweeps.folder import Sweep

FIGURES = {name: draw for finding in FINDINGS for name, draw in finding.figures.items()}

OF_A_SWEEP = {"training": training_figure, "load": load_figure}
"""Figures that need the runs of a sweep."""


def draw_all(
    folder: Path, results: dict, runs: list[TableRun], sweep: "Sweep | None" = None, found=None, tell=None
) -> list[str]:
    """Draw every figure for which the results have data.

    Args:
        folder: folder of NAME.png and NAME.svg; made if missing. Old figures without data in these results are removed.
        sweep, found: results of `read_sweep` and `comparisons.find`; None for a table.

    Returns:
        The names of the drawn figures, in the order of FIGURES and OF_A_SWEEP.
    """
    make_folder(folder)
    drawn = []
    for name in (*FIGURES, *OF_A_SWEEP):
        with styled():
            figure = None
            if name in FIGURES:
                figure = FIGURES[name](results, runs)
            elif sweep is not None:
                figure = OF_A_SWEEP[name](results, sweep, found)
            if figure is not None:
                if tell is not None:
                    tell(f"figure {name}")
                save_figure(figure, folder / name)
                drawn.append(name)
        if figure is None:
            for ending in (".png", ".svg"):
                (folder / (name + ending)).unlink(missing_ok=True)
    return drawn
