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
    used_runs,
    worth,
)
from .finding import TableFacts
from .runs import LEVEL, TableRun, point_of, seed_scatter, usual_frequency
from .source import Source, seeds_chosen, size_labels

FINDINGS = (
    slopes.FINDING,
    law.FINDING,
    law.FLOOR,
    refits.FINDING,
    isoflop.FINDING,
    dense.FINDING,
    worth.FINDING,
    misses.FINDING,
    forms.FINDING,
    routers.FINDING,
    experts.FINDING,
    experts_per_token.FINDING,
    routing_frequency.FINDING,
    compute.FINDING,
    texts.FINDING,
    advice.FINDING,
    printed.FINDING,
    used_runs.FINDING,
)
"""The findings in their order in the report, each after those whose numbers it uses."""

ABOUT = (
    "Every number of report.md. Losses are in nats per token, logarithms decimal, N and N_cutoff in parameters,"
    ' intervals at 95 %. null: not found or not known. "inf" and "-inf": an infinite value or an open end of an'
    " interval."
)


def gather(
    source: Runs, tell=lambda line: None, huber: float | None = None, point=point_of, name: str = ""
) -> tuple[dict, list[TableRun]]:
    """Return the results of a table and its trusted runs.

    Args:
        huber: delta in log10 units of an additional fit by a sum of Huber terms; None for no additional fit.
        point: function of a run, equal for runs that differ only in their seed (see `runs.seed_scatter`).
        name: printed name of the table; "" for the names of its files.

    Raises:
        InputError: `Source` or `Source.law_rows` raises this error.
    """
    table = Source(source, name, huber)
    runs, good = table.runs, table.good
    results = {
        "about": ABOUT,
        "level": LEVEL,
        "huber": huber,
        "table": _facts(table, runs),
        "size_labels": {str(size): label for size, label in size_labels(table).items()},
        "seed_scatter": seed_scatter(runs if seeds_chosen(table) else good, point),
    }
    for finding in FINDINGS:
        tell(finding.title)
        results |= finding.find(results, table)
    return results, good


def _facts(table: Source, runs: list[TableRun]) -> TableFacts:
    routed = [run for run in runs if run.router != DENSE]
    return TableFacts(
        table.name, len(table.frame), len(runs), table.released, table.rows or "every seed", table.has_condition,
        table.loss_column, table.loss_columns,
        routers=sorted({run.router for run in routed}),
        sizes=sorted({run.size for run in runs}),
        experts=sorted({run.experts for run in routed}),
        ks=sorted({run.k for run in routed}),
        usual_frequency=usual_frequency(runs),
        frequencies=sorted({run.frequency for run in routed if run.frequency is not None}),
        seeds=sorted({run.seed for run in runs}) if "seed" in table.last else [],
        remarks=table.remarks,
        last_steps=[int(table.last["step"].min()), int(table.last["step"].max())],
    )  # fmt: skip
