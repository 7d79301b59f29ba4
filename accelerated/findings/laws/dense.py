"""How does the loss of dense models fall with size? The power law of the dense runs of all seeds."""

import math

import numpy as np

from routelaws.reference.laws import Range

from ...laws.uncertainty import student_quantile
from ...results.blocks import NOT_DETERMINED, Block, Table, count, counts_span, figure, span, two_digits, undetermined
from ...results.encoding import Constant, constant_of, misfit_dict
from ...results.fit import fit_form
from ...results.misfit import how_far_off
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ...wording import plural
from ..finding import Finding, Report
from ..runs import LEVEL, usual
from .law import RouterLaw
from .printed import rmsle_of


class DenseLaw(RouterLaw):
    """The power law L = (N_c/N)^alpha of dense runs; `constants` are alpha and N_c with rough intervals.

    The interval of N_c is symmetric in log N_c.
    """

    def __init__(self, selection, loss_column: str, fit):
        super().__init__(selection, loss_column, fit)
        self.constants = self.fit and dense_coefficients(fit.best)

    @property
    def found(self) -> bool:
        """Whether the loss falls with size by a power law."""
        return self.fit is not None and self.fit.status == "interior"

    def _asdict(self) -> dict:
        names = ("router", "rows", "sizes", "differences", "shorter", "cautions", "missing")
        entry = {name: getattr(self, name) for name in names}
        if self.fit is None:
            return entry
        law = {"status": self.fit.status, "line": self.fit.best.line, "rmsle": self.fit.rmsle}
        law |= {"rmsle_percent": self.percent, "coefficients": self.constants}
        return entry | law | {"misfit": misfit_dict(self.fit.misfit)}


def find(results: dict, source) -> dict[str, DenseLaw]:
    """Return the power law of the dense runs of all seeds as "dense"."""
    table, dense = source.part, [run.hyper_id for run in usual(source.good) if run.router == DENSE]
    rows = RouterRows(DENSE, table.last[table.last["hyper_id"].isin(dense)], [])
    return {"dense": DenseLaw(rows, table.loss_column, fit_form("dense", rows, table.loss_column))}


def dense_coefficients(fit) -> dict[str, Constant]:
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
    return {item.name: constant_of(item, found and not undetermined(item.low, item.high)) for item in ranges}


def sentence(report: Report) -> str | None:
    dense = report.results.dense
    if report.results.laws or dense.missing is not None:
        return None
    alpha, largest = dense.constants["alpha"], dense.fit.misfit.largest
    beyond = "."
    if largest is not None:
        beyond = (
            f"; fitted without the largest size, the law predicts the loss at this size {how_far_off(largest.miss)}."
        )
    return (
        f"**The dense models follow a power law**, L = (N_c/N)^alpha, with alpha {figure(alpha.value, '.4f')} "
        f"({span(alpha, '.4f')}). Its error is {two_digits(dense.percent)} % of the loss (root mean "
        f"square){beyond}"
    )


def section(report: Report) -> list[Block]:
    dense = report.results.dense
    if dense.rows < 2:
        return []
    if dense.missing is not None:
        return [f"There is no dense power law: {dense.missing}."]
    if not dense.found:
        return ["The dense runs have no power law: their loss does not fall with size."]
    alpha, size = dense.constants.values()
    printed = report.results.printed.query("router == @DENSE")["printed"]
    rows = [
        ["alpha", figure(alpha.value, ".4f"), span(alpha, ".4f")],
        ["N_c", count(size.value) if size.determined else NOT_DETERMINED, counts_span(size)],
        ["RMSLE", figure(dense.fit.rmsle, ".5f"), ""],
    ]
    if len(printed):
        rmsle = rmsle_of(report.results)[DENSE]
        shown = [figure(printed.iloc[0], ".3f"), count(printed.iloc[1]), figure(rmsle, ".5f")]
        rows = [[*row, cell] for row, cell in zip(rows, shown, strict=True)]
    return [
        f"L = (N_c/N)^alpha, from {plural(dense.rows, 'run')} at {plural(len(dense.sizes), 'size')}. At N_c "
        "the line reaches a loss of 1 nat, far outside the data, so N_c is known only roughly.",
        Table(["", "fitted", "rough 95 % interval", *["printed"] * bool(len(printed))], rows),
    ]


FINDING = Finding(None, "The dense power law", find, section, sentence)
