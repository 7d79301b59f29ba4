"""How many experts are enough? The gain of each step from one E to the next, at the same router and N."""

import math

import numpy as np
import pandas

from ...results.blocks import Block, figure, span
from ...tables.schema import DENSE
from ..finding import Finding, Report, change, ends, listed, names, router_name, table
from ..runs import TableRun, frame_of, in_percent, means, usual

COLUMNS = ["router", "before", "E", "sizes", "percent", "low", "high", "per_doubling"]
REACHED = ["reached", "reached_low", "reached_high", "reached_sizes"]

LOW_EXPERTS, HIGH_EXPERTS = 64, 128
MOST_OF_THE_FALL = 200 / 3  # percent


def steps(runs: list[TableRun]) -> pandas.DataFrame:
    """Return the gain of each step in E for each router, as a mean over the sizes with both E.

    Returns:
        router, before (E before the step; 1 is dense), E, sizes, percent, low, high, per_doubling, reached,
        reached_low, reached_high, reached_sizes. `percent` is the change of the loss with its Student interval, and
        `per_doubling` the mean change of log10 L divided by log2 of the step. `reached` is the fall of log10 L from
        dense to E, in percent of the fall from dense to the largest E: the mean and the range over the sizes that have
        these three models and gain at the largest E.
    """
    table, frames = frame_of(usual(runs)), [pandas.DataFrame(columns=[*COLUMNS, *REACHED])]
    for router in sorted({*table["router"]} - {DENSE}):
        rows = table[table["router"].isin([router, DENSE])].astype({"E": int})
        logs = np.log10(rows.pivot_table(index="N", columns="E", values="loss"))
        falls = logs.sub(logs[1] if 1 in logs else math.nan, axis=0)
        shares = 100 * falls.div(falls.iloc[:, -1].where(falls.iloc[:, -1] < 0), axis=0)
        changes = logs.diff(axis=1).melt(value_name="change").dropna().assign(sizes=1)
        frame = shares.agg(["mean", "min", "max", "count"]).T.set_axis(REACHED, axis=1)
        frame = frame.join(in_percent(means(changes, ["E"], ("sizes",))).set_index("E")).reset_index()
        frame = frame.assign(router=router, before=frame["E"].shift(), sizes=frame["sizes"].fillna(0)).iloc[1:]
        frame["per_doubling"] = frame["change"] / np.log2(frame["E"] / frame["before"])
        frames.append(frame[(frame["sizes"] > 0) | (frame["reached_sizes"] > 0)])
    whole = {"before": int, "E": int, "sizes": int, "reached_sizes": int}
    return pandas.concat(frames, join="inner", ignore_index=True).astype(whole | {"low": float, "high": float})


def section(report: Report) -> list[Block]:
    columns = {
        "router": lambda row: router_name(row.router),
        "experts": lambda row: f"{row.before} → {row.E}",
        "sizes": lambda row: str(row.sizes),
        "change of the loss": change,
        "95 % interval over sizes": ends,
        "of the whole fall": lambda row: f"{figure(row.reached, '.0f')} %" * bool(row.reached_sizes),
        "range over sizes": lambda row: (
            f"{span((row.reached_low, row.reached_high), '.0f')} %" * bool(row.reached_sizes)
        ),
    }
    return [
        "Each row is the gain of a step in E, as a mean over the sizes with both values of E. *Of the whole fall*: the "
        "fall of log L from dense to the E after the step, as a share of its fall from dense to the largest E.",
        table(report.results["doublings"], columns, keys=2),
    ]


def recommended(results: dict) -> tuple[str, str] | None:
    """Judge the paper's "64 to 128 experts" by their share of the fall in loss, and by the gain of more experts."""
    verdicts, reached = {}, {}
    for router, rows in results["doublings"].groupby("router"):
        inside = rows[rows["E"].between(LOW_EXPERTS, HIGH_EXPERTS) & rows["reached"].notna()]
        steps = rows[rows["sizes"] > 0]
        beyond, below = steps[steps["before"] >= HIGH_EXPERTS], steps[steps["E"] <= HIGH_EXPERTS]
        if inside.empty or beyond.empty or below.empty:
            continue
        reached[router], helps = inside.iloc[-1], (beyond["high"] < 0).any()
        fades = (beyond["per_doubling"] > below["per_doubling"].min()).all()
        most = fades and reached[router]["reached"] >= MOST_OF_THE_FALL
        verdicts[router] = "supported in part" if helps and most else "not supported" if helps else "supported"
    if not verdicts:
        return None
    shares = listed(f"{figure(row['reached'], '.0f')} % ({router_name(name)})" for name, row in reached.items())
    still = [router for router, verdict in verdicts.items() if verdict != "supported"]
    different = set(verdicts.values())
    verdict = different.pop() if len(different) == 1 else "supported in part"
    return verdict, (
        f"at E = {listed(sorted({row['E'] for row in reached.values()}))}, log L has fallen by {shares} of its fall "
        f"from dense to the largest E; a larger E certainly lowers the loss further for "
        f"{names(still) if still else 'no router'}"
    )


FINDING = Finding(
    "doublings", "The gain of each step in E", lambda results, source: {"doublings": steps(source.good)}, section
)
