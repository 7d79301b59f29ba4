"""All results of a report as a dictionary, `results.json`. Text and figures take their numbers from it."""

from ..results.runs import Runs
from ..tables.schema import DENSE
from . import (
    advice,
    compute,
    dense,
    experts,
    experts_per_token,
    forms,
    isoflop,
    law,
    misses,
    printed,
    refits,
    routers,
    routing_frequency,
    slopes,
    texts,
    worth,
)
from .runs import LEVEL, Run, point_of, seed_scatter, twice, usual, usual_frequency
from .source import Table, seeds_chosen, size_labels

FINDINGS = (
    slopes.FINDING,
    law.FINDING,
    dense.FINDING,
    worth.FINDING,
    refits.FINDING,
    forms.FINDING,
    misses.FINDING,
    isoflop.FINDING,
    routers.FINDING,
    experts.FINDING,
    experts_per_token.FINDING,
    routing_frequency.FINDING,
    compute.FINDING,
    printed.FINDING,
    texts.FINDING,
    advice.FINDING,
)
"""The findings, each after those whose numbers it uses."""

ABOUT = (
    "Every number of report.md. Losses are in nats per token, logarithms decimal, N and N_cutoff in parameters,"
    ' intervals at 95 %. null: not found or not known. "inf" and "-inf": an infinite value or an open end of an'
    " interval."
)


def gather(
    source: Runs, tell=lambda line: None, huber: float | None = None, point=point_of, name: str = ""
) -> tuple[dict, list[Run]]:
    """Return the results of a table and its trusted runs.

    Args:
        huber: delta in log10 units of an additional fit by a sum of Huber terms; None for no additional fit.
        point: function of a run, equal for runs that differ only in their seed (see `runs.seed_scatter`).
        name: printed name of the table; "" for the names of its files.

    Raises:
        InputError: `Table` or `Table.law_rows` raises this error.
    """
    table = Table(source, name, huber)
    runs, good = table.runs, table.good
    results = {
        "about": ABOUT,
        "level": LEVEL,
        "huber": huber,
        "table": _table(table, runs),
        "size_labels": {str(size): label for size, label in size_labels(table).items()},
        "rows": used_rows(table, runs),
        "seed_scatter": seed_scatter(runs if seeds_chosen(table) else good, point),
    }
    for finding in FINDINGS:
        tell(finding.title)
        results |= finding.find(results, table)
    results["runs"] = [run._asdict() for run in runs]
    return results, good


def _table(table: Table, runs: list[Run]) -> dict:
    routed = [run for run in runs if run.router != DENSE]
    return {
        "name": table.name,
        "rows": len(table.frame),
        "runs": len(runs),
        "released": table.released,
        "row_choice": table.rows or "every seed",
        "condition": table.has_condition,
        "loss_column": table.loss_column,
        "loss_columns": table.loss_columns,
        "routers": sorted({run.router for run in routed}),
        "sizes": sorted({run.size for run in runs}),
        "experts": sorted({run.experts for run in routed}),
        "ks": sorted({run.k for run in routed}),
        "usual_frequency": usual_frequency(runs),
        "frequencies": sorted({run.frequency for run in routed if run.frequency is not None}),
        "seeds": sorted({run.seed for run in runs}) if "seed" in table.last else [],
        "remarks": table.remarks,
        "last_steps": [int(table.last["step"].min()), int(table.last["step"].max())],
    }


def used_rows(table: Table, runs: list[Run]) -> dict:
    """Return the runs used for the (N, E) laws, and the runs excluded from each analysis."""
    used = {selection.router: {int(i) for i in selection.frame["hyper_id"]} for selection in table.law_rows()}
    anywhere = set().union(*used.values()) if used else set()
    plain = [run for run in runs if run.hyper_id not in anywhere]
    groups = twice(runs)
    return {
        "routers": {router: len(ids) for router, ids in used.items()},
        "not_in_laws": _why_not(table, plain),
        "suspect": [_suspect(run) for run in runs if run.suspect],
        "twice": [_repeated(group) for group in groups],
        "kept": [
            run.hyper_id
            for group in groups
            if any(member.suspect for member in group)
            for run in group
            if not run.suspect
        ],
        "blank": [
            {"hyper_id": run.hyper_id, "losses": [name for name, loss in run.losses.items() if loss is None]}
            for run in runs
            if None in run.losses.values()
        ],
        "cells_missing": _cells_missing(runs),
    }


def _suspect(run: Run) -> dict:
    cell = {"hyper_id": run.hyper_id, "router": run.router, "N": run.size, "E": run.experts, "R": run.frequency}
    return cell | {"loss": run.loss, "reason": run.suspect}


def _repeated(group: list[Run]) -> dict:
    first_run = group[0]
    ids, losses = [run.hyper_id for run in group], [run.loss for run in group]
    cell = {
        "router": first_run.router,
        "N": first_run.size,
        "E": first_run.experts,
        "k": first_run.k,
        "R": first_run.frequency,
        "seed": first_run.seed,
    }
    return {"hyper_ids": ids, "losses": losses} | cell


def _why_not(table: Table, runs: list[Run]) -> list[dict]:
    every, reasons = table.runs, {}
    usual = usual_frequency(every)
    for run in runs:
        if run.loss is None:
            reason = f"{table.loss_column} is blank at the last evaluation"
        elif run.router == DENSE and run.flop_increase != 1:
            reason = "dense with wider feed-forward layers (flop_increase above 1)"
        elif not any(other.router != DENSE for other in every):
            reason = "dense, and there is no routed run to fit with"
        elif run.k != 1:
            reason = "more than one expert per token (k above 1)"
        elif run.frequency not in (usual, None):
            reason = f"a share of routed blocks other than {usual:g}"
        elif table.rows == "clark" and run.seed != 42:
            reason = "a seed other than 42"
        elif table.rows:
            reason = f"not chosen by {table.rows}"
        else:
            reason = "its k, routing frequency or granularity is not the most common one"
        reasons.setdefault(reason, []).append(run.hyper_id)
    return [{"reason": reason, "runs": len(ids), "hyper_ids": ids} for reason, ids in reasons.items()]


def _cells_missing(runs: list[Run]) -> list[dict]:
    """Return the gaps of the main grid: each missing (router, N, E) that other routers or sizes have."""
    main = usual([run for run in runs if run.loss is not None])
    there = {(run.router, run.size, run.experts) for run in main}
    sizes, counts = sorted({run.size for run in main}), sorted({run.experts for run in main if run.router != DENSE})
    routers = sorted({run.router for run in main} - {DENSE})
    wanted = [(router, n, e) for router in routers for n in sizes for e in counts]
    wanted += [(DENSE, n, 1) for n in sizes]
    return [{"router": r, "N": n, "E": e} for r, n, e in wanted if (r, n, e) not in there]
