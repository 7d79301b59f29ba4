"""Which runs were used, and which runs does the table lack?"""

import pandas

from ..results.blocks import Block, Table, figure, range_of
from ..tables.schema import DENSE
from ..wording import plural
from .finding import Finding, Report, listed, loss_name, router_name, table
from .runs import TableRun, usual, usual_frequency

SAME = ["router", "size", "experts", "k", "frequency", "flop_increase", "seed"]
"""Runs that are equal in these columns were trained more than once."""

MANY_GAPS, MANY_TWICE = 12, 6
"""The report names up to this many gaps of the grid and this many repeated runs, and only counts more."""


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Return the runs of the table, and the gaps of its main grid.

    Returns:
        "runs": the fields of `TableRun`, and unused (the first reason why no law that uses N and E has the run; "" if
        one has). "gaps": the missing router, N, E that other routers or sizes have.
    """
    used = {i for rows in source.law_rows() for i in rows.frame["hyper_id"]}
    unused = ["" if run.hyper_id in used else _reason(source, run) for run in source.runs]
    runs = pandas.DataFrame(source.runs, columns=TableRun._fields).assign(unused=unused)
    return {"runs": runs, "gaps": pandas.DataFrame(_gaps(source.runs), columns=["router", "N", "E"])}


def _reason(source, run: TableRun) -> str:
    frequency = usual_frequency(source.runs)
    if run.loss is None:
        return f"{source.loss_column} is blank at the last evaluation"
    if run.router == DENSE and run.flop_increase != 1:
        return "dense with wider feed-forward layers (flop_increase above 1)"
    if all(other.router == DENSE for other in source.runs):
        return "dense, and there is no routed run to fit with"
    if run.k != 1:
        return "more than one expert per token (k above 1)"
    if run.frequency not in (frequency, None):
        return f"a share of routed blocks other than {frequency:g}"
    if source.rows == "clark" and run.seed != 42:
        return "a seed other than 42"
    if source.rows:
        return f"not chosen by {source.rows}"
    return "its k, routing frequency or granularity is not the most common one"


def _gaps(runs: list[TableRun]) -> list[tuple]:
    main = usual([run for run in runs if run.loss is not None])
    there = {(run.router, run.size, run.experts) for run in main}
    sizes, counts = sorted({run.size for run in main}), sorted({run.experts for run in main if run.router != DENSE})
    routers = sorted({run.router for run in main} - {DENSE})
    wanted = [(router, n, e) for router in routers for n in sizes for e in counts]
    return [cell for cell in wanted + [(DENSE, n, 1) for n in sizes] if cell not in there]


def suspects(report: Report) -> pandas.DataFrame:
    """Return the runs with impossible labels."""
    return report.results["runs"].query("suspect != ''")


def blank(results: dict) -> dict[int, list[str]]:
    """Return {run: losses without a value}."""
    runs = results["runs"]
    names = {row.hyper_id: [name for name, loss in row.losses.items() if loss is None] for row in runs.itertuples()}
    return {run: losses for run, losses in names.items() if losses}


def unused(report: Report) -> dict[str, list[int]]:
    """Return {reason: runs} of the runs that no law uses."""
    runs = report.results["runs"]
    return {
        reason: ids.tolist() for reason, ids in runs[runs["unused"] != ""].groupby("unused", sort=False)["hyper_id"]
    }


CHOICES = {
    "clark": "the rows of the paper (routing frequency 0.5, k = 1, seed 42)",
    "every seed": "the runs of all seeds with k = 1 and the most common routing frequency and granularity",
}


def section(report: Report) -> list[Block]:
    known = report.results.table
    blocks: list[Block] = [f"The last evaluation of each run is used (step {range_of(sorted(set(known.last_steps)))})."]
    if report.results.laws:
        chosen = CHOICES.get(known.row_choice, f"`{known.row_choice}`")
        counts = listed(f"{router_name(law.router)} {law.rows}" for law in report.results.laws)
        part = f" that `{known.row_choice}` chooses" if known.condition else ""
        blocks.append(
            f"The laws that use N and E are fitted to {chosen}; each router's law also uses the dense runs. Number of "
            f"runs: {counts}. The law that uses F and B, and the ablations, use every run{part} except the suspect "
            "runs. The pairs use the runs with k = 1 and the most common routing frequency."
        )
    elif known.condition:
        blocks.append(f"The law uses the rows `{known.row_choice}`.")
    if (reasons := unused(report)) and known.routers:
        rows = [[reason, str(len(ids)), ", ".join(map(str, ids))] for reason, ids in reasons.items()]
        blocks += [
            "No law that uses N and E is fitted to these runs; the table gives the first reason that applies:",
            Table(["reason", "runs", "hyper_id"], rows),
        ]
    return [*blocks, *_suspects(report), *known.remarks, *_odd_runs(report)]


def _suspects(report: Report) -> list[Block]:
    runs = report.results["runs"]
    odd, others = suspects(report), runs[runs["suspect"] == ""]
    columns = {
        "hyper_id": lambda row: str(row.hyper_id),
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "E": lambda row: str(row.experts),
        "R": lambda row: figure(row.frequency, "g"),
        "loss": lambda row: figure(row.loss, ".4f"),
        "why": lambda row: row.suspect,
    }
    if odd.empty:
        return []
    kept = listed(others.merge(odd[SAME].drop_duplicates())["hyper_id"])
    words = f"These runs are used: {kept}. They have the same configuration as a suspect run, but agree with their"
    return [
        "These suspect runs are not used anywhere, because their labels are impossible:",
        table(odd, columns),
        *[f"{words} neighbours."] * (kept != "none"),
    ]


def _odd_runs(report: Report) -> list[Block]:
    runs, gaps, sentences = report.results["runs"], report.results["gaps"], []
    groups = runs[runs.duplicated(SAME, keep=False)].groupby(SAME, dropna=False, sort=False)
    twice = [_alike(report, group) for _, group in groups if not group["suspect"].any()]
    if twice:
        sentences.append(f"Some runs have the same router, N, E, k, R and seed: {'; '.join(twice)}. All are used.")
    if report.sweep and report.sweep.not_learned:  # such runs are no gaps
        gaps = gaps[:0]
    if len(gaps) > MANY_GAPS:
        sentences.append(f"The grid has {plural(len(gaps), 'gap')}.")
    elif len(gaps):
        cells = (
            f"{router_name(row.router)} {report.size(row.N)}" + f" with E = {row.E}" * (row.router != DENSE)
            for row in gaps.itertuples()
        )
        sentences.append(f"The grid lacks {listed(cells)}.")
    if report.results.table.released:
        sentences.append(
            "The dense 130M model was trained with seeds 1, 2 and 3, but not with seed 42. So the paper's choice of "
            "rows, seed 42, has no dense model of this size."
        )
    lost = "; ".join(f"{run} ({listed(map(loss_name, losses))})" for run, losses in blank(report.results).items())
    return sentences + [f"These runs have a blank loss at the last evaluation: {lost}."] * bool(lost)


def _alike(report: Report, group: pandas.DataFrame) -> str:
    ids, losses = group["hyper_id"], [figure(loss, ".4f") for loss in sorted(group["loss"])]
    many, run = len(ids) > MANY_TWICE, group.iloc[0]
    who = plural(len(ids), "run") if many else f"runs {listed(ids)}"
    shown = f"{losses[0]} to {losses[-1]}" if many else listed(losses)
    return f"{who} ({router_name(run['router'])}, N = {report.size(run['size'])}, E = {run['experts']}): losses {shown}"


FINDING = Finding("runs", "Which runs were used", find, section)
