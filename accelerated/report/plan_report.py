"""A plan as files: plan.md, plan.json, and the figure of the frontier, the least loss at other numbers of FLOPs."""

from itertools import cycle
from pathlib import Path

from ..files import write_atomically
from ..results.blocks import Heading, markdown
from ..results.encoding import dumps
from ..results.planning.plan import Plan, plan_blocks
from .figures.style import COLOURS, MORE_COLOURS, STYLE, save_figure

FIGURE = "frontier"

FRONTIER = (
    "The least loss of each router's options at other numbers of FLOPs, the rest of the budget as above. Dashed: the "
    "option lies beyond the runs of its law. The upright line is the budget."
)


def write_plan(plan: Plan, folder: Path) -> None:
    """Write plan.md, plan.json and frontier.png/.svg into a folder; made if missing."""
    import matplotlib
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    routers = dict.fromkeys(line.model.router for ranking in plan.rankings for line in ranking.lines)
    others = [router for router in routers if router not in COLOURS]
    with matplotlib.rc_context(STYLE):
        figure = plan.plot(COLOURS | dict(zip(others, cycle(MORE_COLOURS), strict=False)))
        save_figure(figure, folder / FIGURE)
        pyplot.close(figure)
    image = f"![The least loss against FLOPs, a panel for each data set]({FIGURE}.png)"
    blocks = [Heading("Which model to train", 1), *plan_blocks(plan, None), Heading("Frontier"), image, FRONTIER]
    write_atomically(folder / "plan.md", markdown(blocks))
    write_atomically(folder / "plan.json", dumps(plan.to_dict(), indent=1) + "\n")
