"""The command `routelaws court`: judge printed and fitted laws of the loss on tables that they have not seen."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...results.blocks import Block, Heading, Notes, Table, markdown, percent, show
from ...results.court import (
    FAILS,
    Calibrated,
    CourtScore,
    CourtTable,
    calibration,
    candidates,
    judge,
    ratios,
    released_tables,
    tables_of_runs,
    verdicts,
)
from ...results.encoding import dumps
from ...results.runs import LOSS, read
from ..flags import check_counts
from ..output import output_folder
from ..terminal import Working

NOISE = 0.005
"""Standard deviation of ln L in simulated tables."""

CLOSE = "steplaw-moe, best runs"
"""The table that the page shows in full: the only released routed runs with several sizes and numbers of tokens."""


def court(
    tables: tuple[Path, ...] = (),
    /,
    *,
    loss: str = LOSS,
    rows: str | None = None,
    top: int = 10,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Judge printed and fitted laws of the loss on tables that they have not seen.

    Args:
        tables: Results tables of your own, or folders of runs or sweeps. They judge the laws beside the released
            tables, and every law that they determine is fitted to them and judged on the released tables.
        loss: Column of the loss of your tables.
        rows: Condition on the rows of your tables, see `routelaws fit`.
        top: Number of laws to show for each of your tables. Files and JSON hold all laws.
        out: Folder for court.md and its figure, court.png.
        json: Print only one JSON object.
    """
    check_counts({"top": top})
    own = [each for path in tables for each in tables_of_runs(read(path).where(rows).of_loss(loss), str(path))]
    with Working("fitting the laws to released tables and to yours"):
        judges = [*released_tables(), *own]
        laws = candidates(judges)
        scores = judge(judges, laws)
        calibrated = [each for table in judges for each in calibration(table, laws, NOISE).values()]
    blocks = [*verdict_blocks(scores), calibration_words(calibrated)]
    if out is not None:
        shown = [table for table in judges if table.name == CLOSE] + own
        write_court([*blocks, *(block for table in shown for block in table_blocks(table, scores))], scores, out)
    if json:
        print(
            dumps(
                {"verdicts": verdicts(scores), "scores": [each.to_dict() for each in scores], "calibration": calibrated}
            )
        )
    else:
        show([*blocks, *(block for table in own for block in table_blocks(table, scores, top))])


def calibration_words(results: Sequence[Calibrated]) -> str:
    wins = [each.wins for each in results if each.apart]
    return (
        f"calibration: each law made 100 tables on each design where it applies, with errors of {percent(NOISE)} "
        f"({len(results)} pairs of law and design). In {len(wins)} pairs the design tells the law from every other "
        f"one, and it wins at least {min(wins, default=0)} of 100. In the other pairs the design does not, and the "
        "court says so: it names the law, or one not told apart from it, in at least "
        f"{min(each.named for each in results)} of 100"
    )


def verdict_blocks(scores: Sequence[CourtScore]) -> list[Block]:
    heads = ["law", "coefficients", "tables", "fails", "median miss", "worst", "on", "regret", "ignores"]
    rows = verdicts(scores)
    lines = [
        [
            row["law"], row["coefficients"], str(row["tables"]), percent(row["fails"], ".0f"),
            *(percent(row[name], ".1f") for name in ("median_miss", "worst_miss")), row["worst_table"],
            percent(row["regret"], ".1f"), ", ".join(row["ignored"]),
        ]
        for row in rows
    ]  # fmt: skip
    condemned: dict[str, list[str]] = {}
    for row in rows:
        if row["fails"] > 0.5:
            condemned.setdefault(row["ignored"], []).append(f"{row['law']} ({row['coefficients']})")
    words = "; ".join(", ".join(names) + f", which ignore {at}" * bool(at) for at, names in condemned.items())
    return [
        Table(heads, lines, keys=2, words=(6,)),
        Notes(
            [
                "miss: root mean square of ln L̂ - ln L after one free factor for each table, because tables differ in "
                "tokenizer and text; no law is judged on runs of its own authors or of its fit",
                "fails: the share of tables on which the miss is more than half of the spread of ln L",
                "regret: loss of the run that the law chooses at the cost of each run, above the lowest loss; mean",
                "ignores: N (active parameters), D (tokens) or E (experts), where they vary in a table and the law "
                "does not use them; without D, a law gets one factor for each D that a table repeats",
                f"condemned, because they fail on more than half of their tables: {words or 'none'}",
            ]
        ),
    ]


def table_blocks(table: CourtTable, scores: Sequence[CourtScore], top: int | None = None) -> list[Block]:
    """Return how each law does on one table, with the errors by direction and the ratios of a grid."""
    of_table = [score for score in scores if score.table is table]
    grid, directions = ratios(table.columns, table.loss), list(table.directions)
    heads = ["law", "coefficients", "miss", "of spread", *(f"error in {name}" for name in directions), "regret"]
    heads += [*(GRID[name] for name in grid), "ignores", "verdict"]
    lines = [["measured", "", "", "", *[""] * len(directions), "", *map(_span, grid.values())]]
    for score in of_table[:top]:
        words = ("best", "not told apart from the best")[
            score.miss > min(s.miss for s in of_table if s.ignored == score.ignored)
        ]
        lines.append(
            [
                score.candidate.law.name, score.candidate.name, percent(score.miss, ".2f"),
                f"{score.miss / score.spread:.2f}", *(percent(score.errors[name], "+.1f") for name in directions),
                percent(score.regret, ".1f"), *(_span(score.ratios[name]) for name in grid), ", ".join(score.ignored),
                "; ".join(["fails"] * score.fails + [words] * score.tied),
            ]
        )  # fmt: skip
    notes = [
        "error in a direction: change of ln L̂ - ln L from the smallest to the largest value, by least squares",
        "the best: the law with the smallest miss among those that ignore the same directions",
    ]
    if top is not None and len(of_table) > top:
        notes.append(f"{top} of {len(of_table)} laws are shown; --top shows more")
    head = f"{table.name}: {table.loss.size} runs, spread of ln L {percent(np.log(table.loss).std(), '.1f')}"
    return [Heading(head), Table(heads, lines, keys=2, words=(len(heads) - 1,)), Notes(notes)]


GRID = {"D": "most over fewest tokens", "N": "smallest over largest N"}
"""Headings of ratios of losses; see `court.ratios`."""


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:.3f} to {ends[1]:.3f}"


def write_court(blocks: list[Block], scores: Sequence[CourtScore], folder: Path) -> None:
    """Write court.md and the figure into a folder.

    Raises:
        InputError: see `output_folder`.
    """
    from matplotlib import pyplot

    from ...files import write_atomically
    from ...findings.style import image

    head = [
        Heading("Which law of the loss holds on runs of other people?", 1),
        "The command `routelaws court` wrote this page. It judges every printed and fitted law of the loss on tables "
        "that the law has not seen, and `plan` quotes its verdicts. Your own table can be one of the judges:",
        "    routelaws court --out docs\n    routelaws court table.csv --top 5",
        "![Miss of each law on each table, as a share of the spread of the losses](court.png)",
        "Each dot is a table, or a table and a fit; a law fails right of the line. The released tables: six texts of "
        "Clark et al. 2022 (dense and S-BASE runs), the best runs of Step Law's grids, the over-training runs of Gadre "
        "et al. 2024 with three training sets, and the points of Hoffmann et al. 2022 ([sources](recipes.md), "
        "[data](laws.md#released-data)). The method is in [`court.py`](../accelerated/results/court.py).",
    ]
    with output_folder(folder):
        figure = draw_misses(scores)
        write_atomically(folder / "court.png", image(figure, "png"))
        pyplot.close(figure)
        write_atomically(folder / "court.md", markdown([*head, *blocks]))


def draw_misses(scores: Sequence[CourtScore]):
    """Draw the misses as shares of the spread, a line for each law. Return the matplotlib figure."""
    from matplotlib import pyplot

    from ...findings.style import COLOURS, MORE_COLOURS

    names = [f"{row['law']}, {row['coefficients']}" for row in verdicts(scores)][::-1]
    families = dict.fromkeys(score.table.family for score in scores)
    colours = dict(zip(families, [*list(COLOURS.values())[1:], *MORE_COLOURS] * len(families), strict=False))
    figure, panel = pyplot.subplots(figsize=(9.2, 0.28 * len(names) + 1.2), layout="constrained")
    for family in families:
        here = [score for score in scores if score.table.family == family]
        rows = [names.index(f"{each.candidate.law.name}, {each.candidate.name.partition(' to ')[0]}") for each in here]
        panel.plot(
            [each.miss / each.spread for each in here], rows, "o", ms=4, alpha=0.7, color=colours[family], label=family
        )
    panel.axvline(FAILS, color="#888888", lw=1)
    panel.set_xscale("log")
    panel.set_xticks(ticks := [0.1, 0.2, 0.5, 1, 2], [f"{tick:g}" for tick in ticks], minor=False)
    panel.set_xticks([], minor=True)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_xlabel("miss / spread of ln L")
    panel.legend(title="runs of", fontsize=8)
    return figure
