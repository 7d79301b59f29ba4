"""A plan as files: plan.md and the figure of the frontier, the least loss at other numbers of FLOPs."""

from pathlib import Path

from ..files import write_atomically
from ..findings.ranking import Ranking, frontier
from .plan_words import NOT_COMPARABLE, budget_words, cells, heading, memory_words, notes, titles
from .style import COLOURS, MORE_COLOURS, STYLE, panel_grid, save_figure

FIGURE = "frontier"


def write_plan(
    folder: Path, rankings: list[Ranking], budget, tokens, table: str, loss_column: str, level: float
) -> None:
    """Write plan.md and frontier.png/.svg into a folder; made if missing."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    shown = [ranking for ranking in rankings if ranking.lines]
    with matplotlib.rc_context(STYLE):
        save_figure(frontier_figure(shown, budget), folder / FIGURE)
    write_atomically(folder / "plan.md", plan_text(rankings, budget, tokens, table, loss_column, level))


def plan_text(rankings: list[Ranking], budget, tokens, table: str, loss_column: str, level: float) -> str:
    """Return plan.md."""
    lines = ["# Which model to train", "", f"Budget: {budget_words(budget, tokens)}.", ""]
    lines += [f"{memory_words(budget).capitalize()}.", "", NOT_COMPARABLE, ""]
    for ranking in rankings:
        lines += [f"## {heading(ranking, table, loss_column)}", ""]
        if ranking.lines:
            head = titles(ranking, level)
            lines += [_row(head), "|" + "---|" * len(head)]
            lines += [_row(cells(ranking, i + 1, line)) for i, line in enumerate(ranking.lines)]
            lines.append("")
        lines += [f"- {note}" for note in notes(ranking)]
        lines.append("")
    lines += [
        "## Frontier",
        "",
        f"![The least loss against FLOPs, a panel for each data set]({FIGURE}.png)",
        "",
        "The least loss of each router's options at other numbers of FLOPs, the rest of the budget as above. Dashed: "
        "the option lies beyond the runs of its law. The upright line is the budget.",
        "",
    ]
    return "\n".join(lines)


def _row(values: list[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def frontier_figure(rankings: list[Ranking], budget):
    """Return a figure with a panel for each ranking: the least loss of each router against FLOPs."""
    figure, panels = panel_grid(len(rankings), 3.4, most=2)
    for panel, ranking in zip(panels, rankings, strict=True):
        found = frontier(ranking, budget)
        others = [router for router in found if router not in COLOURS]
        for router, points in found.items():
            colour = COLOURS.get(router) or MORE_COLOURS[others.index(router) % len(MORE_COLOURS)]
            _draw(panel, router, colour, points)
        panel.axvline(budget.flops, color="#888888", linewidth=1, zorder=1)
        panel.set_xscale("log")
        panel.set_title(f"{ranking.law}, {'own fit' if ranking.rows else 'printed coefficients'}")
        panel.set_xlabel("FLOPs")
        panel.set_ylabel("least loss (nats per token)")
        panel.legend(fontsize=9)
    return figure


def _draw(panel, router: str, colour: str, points: list[tuple[float, float, bool]]) -> None:
    """Draw one router's line, dashed where an end of a piece lies beyond the runs."""
    labelled = False
    for (x, y, out), (next_x, next_y, next_out) in zip(points, points[1:], strict=False):
        style = "--" if out or next_out else "-"
        panel.plot([x, next_x], [y, next_y], style, color=colour, label=None if labelled else router)
        labelled = True
    if len(points) == 1:
        panel.plot(points[0][0], points[0][1], "o", color=colour, label=router)
