"""How does the loss of dense models fall with size? The power law of the dense runs of all seeds."""

import math

import numpy as np

from routelaws.reference.laws.intervals import Range

from ..laws.uncertainty import student_quantile
from ..results.blocks import (
    NOT_DETERMINED,
    Block,
    Table,
    count,
    counts_span,
    figure,
    log_percent,
    span,
    two_digits,
    undetermined,
)
from ..results.encoding import coefficient, misfit_dict
from ..results.misfit import how_far_off
from ..tables.schema import DENSE
from ..tables.selection import RouterRows
from ..wording import plural
from .finding import Finding, Report
from .law import doubts
from .runs import LEVEL, usual
from .source import fit_form


def find(results: dict, source) -> dict[str, dict]:
    """Return the power law L = (N_c/N)^alpha of the dense runs of all seeds, with rough intervals.

    Returns:
        {"router", "rows", "sizes", "missing"}, and "differences" and "shorter" as in `router_laws`. With a law, also
        "status", "rmsle", "rmsle_percent", "coefficients" (the interval of N_c is symmetric in log N_c), "line",
        "misfit", "misses" and "cautions". For loss_validation of the released runs, "printed" has the paper's values.
    """
    table, dense = source.part, [run for run in usual(source.good) if run.router == DENSE]
    frame = table.last[table.last["hyper_id"].isin([run.hyper_id for run in dense])]
    selection = RouterRows(DENSE, frame, [])
    entry = {"router": DENSE, "rows": len(dense), "sizes": sorted({run.size for run in dense})}
    entry |= doubts(selection, table.loss_column)
    fit = fit_form("dense", selection, table.loss_column)
    if isinstance(fit, str):
        return {"dense": entry | {"missing": fit}}
    entry |= {
        "missing": None,
        "status": fit.status,
        "line": fit.best.line._asdict(),
        "rmsle": fit.rmsle,
        "rmsle_percent": log_percent(fit.rmsle),
        "coefficients": dense_coefficients(fit.best),
        "misfit": misfit_dict(fit.misfit),
        "cautions": fit.cautions,
    }
    return {"dense": entry}


def dense_coefficients(fit) -> dict:
    """Return alpha and N_c of the fit of a dense law with rough intervals, from the curvature at the optimum."""
    reach = student_quantile(LEVEL, fit.rows - 2) * np.sqrt(np.diag(fit.covariance))
    alpha, critical = fit.coefficients
    with np.errstate(over="ignore", invalid="ignore"):
        spread = math.inf if not critical > 0 else float(10 ** (reach[1] / critical / math.log(10)))
    ranges = (
        Range("alpha", None, alpha, alpha - reach[0], alpha + reach[0], ""),
        Range("N_c", None, critical, critical / spread, critical * spread, ""),
    )
    found = fit.status == "interior"
    return {item.name: coefficient(item, found and not undetermined(item.low, item.high)) for item in ranges}


def sentence(report: Report) -> str | None:
    dense = report.results["dense"]
    if report.laws or dense["missing"] is not None:
        return None
    alpha, largest = dense["coefficients"]["alpha"], dense["misfit"]["largest_size"]
    beyond = "."
    if largest is not None:
        beyond = (
            "; fitted without the largest size, the law predicts the loss at this size "
            f"{how_far_off(largest['log10'])}."
        )
    return (
        f"**The dense models follow a power law**, L = (N_c/N)^alpha, with alpha {figure(alpha['value'], '.4f')} "
        f"({span(alpha, '.4f')}). Its error is {two_digits(dense['rmsle_percent'])} % of the loss (root mean "
        f"square){beyond}"
    )


def section(report: Report) -> list[Block]:
    dense = report.results["dense"]
    if dense["rows"] < 2:
        return []
    if dense["missing"] is not None:
        return [f"There is no dense power law: {dense['missing']}."]
    if dense["status"] != "interior":
        return ["The dense runs have no power law: their loss does not fall with size."]
    (alpha, size), printed = (
        dense["coefficients"].values(),
        report.results["printed"].query("router == @DENSE")["printed"],
    )
    rows = [
        ["alpha", figure(alpha["value"], ".4f"), span(alpha, ".4f")],
        ["N_c", count(size["value"]) if size["determined"] else NOT_DETERMINED, counts_span(size)],
        ["RMSLE", figure(dense["rmsle"], ".5f"), ""],
    ]
    if len(printed):
        rmsle = report.results["printed_laws"].set_index("router")["rmsle"][DENSE]
        shown = [figure(printed.iloc[0], ".3f"), count(printed.iloc[1]), figure(rmsle, ".5f")]
        rows = [[*row, cell] for row, cell in zip(rows, shown, strict=True)]
    return [
        f"L = (N_c/N)^alpha, from {plural(dense['rows'], 'run')} at {plural(len(dense['sizes']), 'size')}. At N_c "
        "the line reaches a loss of 1 nat, far outside the data, so N_c is known only roughly.",
        Table(["", "fitted", "rough 95 % interval", *["printed"] * bool(len(printed))], rows),
    ]


FINDING = Finding("dense", "The dense power law", find, section, sentence)
