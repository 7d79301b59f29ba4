"""The figures of the report, drawn from the numbers of `results.json` alone, as PNG and SVG.

Style, colours and the way to write a file are those of the sweep report: one colour per router, darker for larger
models. The same numbers give the same bytes.
"""

from pathlib import Path

from ...files import make_folder
from ...findings.rows import Run
from ..style import STYLE, save_figure
from .law_figures import (
    coefficients_figure,
    effective_figure,
    forms_figure,
    level_figure,
    loss_figure,
    slopes_figure,
)
from .run_figures import (
    frequency_figure,
    k_figure,
    pairs_figure,
    routers_figure,
    transfer_figure,
    utilisation_figure,
)

FIGURES = {
    "loss": loss_figure, "levels": level_figure, "effective_size": effective_figure, "routers": routers_figure,
    "pairs": pairs_figure, "slopes": slopes_figure, "coefficients": coefficients_figure, "forms": forms_figure,
    "utilisation": utilisation_figure, "transfer": transfer_figure, "k": k_figure, "frequency": frequency_figure,
}  # fmt: skip
"""By name, in the order in which the report shows them."""


def draw_all(folder: Path, results: dict, runs: list[Run], say=lambda line: None) -> list[str]:
    """Draw every figure that the results have data for.

    Args:
        folder: where to put NAME.png and NAME.svg; made if missing. Figures of an earlier report that these results
            have no data for are removed.
        results: of `reproduction.gather`.
        runs: the trusted ones.
        say: takes a line of progress.

    Returns:
        The names that were drawn, in the order of FIGURES.
    """
    import matplotlib

    make_folder(folder)
    drawn = []
    for name, draw in FIGURES.items():
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # a reader's own style would change the bytes
            matplotlib.rcParams.update(STYLE)
            figure = draw(results, runs)
            if figure is not None:
                say(f"figure {name}")
                save_figure(figure, folder / name)
                drawn.append(name)
        if figure is None:
            for ending in (".png", ".svg"):
                (folder / (name + ending)).unlink(missing_ok=True)
    return drawn
