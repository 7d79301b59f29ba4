"""What `routelaws fit` does: read a table, choose rows, fit the law to each router, and say it as JSON or as text."""

import math
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..laws.fitting import RoutedFit, fit_routed
from ..laws.routed import RoutedCoefficients, cutoff
from ..laws.uncertainty import SlopeInterval, slope_interval
from ..table import RouterRows, read_table, select_rows

LAWS = ("routed-bounded",)
"""The laws that can be fitted from the command line."""


class RouterFit(NamedTuple):
    """One router: its rows and the law fitted to them."""

    selection: RouterRows
    fit: RoutedFit


class FitReport(NamedTuple):
    """All fits of one table; `fit_table` and `print_fit` are two ways to say it."""

    law: str
    loss_column: str
    fits: list[RouterFit]


def fit_report(
    path, law: str = "routed-bounded", loss_column: str = "loss_validation", rows: str | None = None
) -> FitReport:
    """Fit `law` to each router of the table at `path`.

    Args:
        path: a table, see `read_table`.
        law: one of LAWS.
        loss_column: which loss.
        rows: which rows, see `select_rows`.

    Raises:
        InputError: one line that says what is wrong with the table, the choice of rows, or the name of the law.
    """
    if law not in LAWS:
        raise InputError(f"law {law!r} is not known; allowed: {', '.join(LAWS)}")
    fits = []
    for selection in select_rows(read_table(path), rows, loss_column):
        try:
            fits.append(RouterFit(selection, fit_routed(*_columns(selection, loss_column))))
        except ValueError as error:
            left_out = f" ({len(selection.left_out)} runs left out)" if selection.left_out else ""
            raise InputError(f"{path}: router {selection.router}: {error}{left_out}") from None
    return FitReport(law, loss_column, fits)


def fit_table(
    path, law: str = "routed-bounded", loss_column: str = "loss_validation", rows: str | None = None
) -> dict:
    """Fit as `fit_report` and return what `routelaws fit --json` prints.

    Returns:
        {"law", "loss_column", "fits": [{"router", "rows", "left_out": [{"hyper_id", "reason"}], "coefficients":
        {"a", "b", "c", "d", "E_start", "E_max"}, "rmsle", "status", "derived": {"N_cutoff"}}]}. Strict JSON: what is
        infinite or was not found is None, and `status` says which.

    Raises:
        InputError: as `fit_report`.
    """
    return as_dict(fit_report(path, law, loss_column, rows))


def as_dict(report: FitReport) -> dict:
    """Return a report as `fit_table` does."""
    return {"law": report.law, "loss_column": report.loss_column, "fits": [_as_dict(entry) for entry in report.fits]}


def print_fit(report: FitReport, console=None) -> None:
    """Print the fits for a reader: coefficients, and the slope b + c log10 N with its 95 % interval at trained sizes.

    Args:
        report: of `fit_report`.
        console: a rich Console; a new one on standard output if None.
    """
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    console.print(f"law {report.law}, loss column {report.loss_column}")
    table = Table("", *(selection.router for selection, _ in report.fits))
    fits = [fit for _, fit in report.fits]
    table.add_row("rows", *(str(fit.rows) for fit in fits))
    for name in RoutedCoefficients._fields:
        table.add_row(name, *(_shown(getattr(fit.coefficients, name), ".4g") for fit in fits))
    table.add_row("RMSLE", *(f"{fit.rmsle:.5f}" for fit in fits))
    table.add_row("N_cutoff", *(_shown(cutoff(fit.coefficients), ".2e") for fit in fits))
    table.add_row("optimum", *(fit.status for fit in fits))
    console.print(table)
    console.print("b and d are values at N = 1, far below every model: judge routing by its slope at trained sizes.")
    for selection, _ in report.fits:
        console.print(_slopes(selection, report.loss_column))
        for run in selection.left_out:
            console.print(f"  left out: hyper_id {run['hyper_id']}: {run['reason']}", markup=False)


def _columns(selection: RouterRows, loss_column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    names = ("dense_parameter_count", "num_experts", loss_column)
    size, experts, loss = (selection.frame[name].to_numpy(dtype=np.float64) for name in names)
    return size, experts, loss


def _as_dict(entry: RouterFit) -> dict:
    selection, fit = entry
    return {
        "router": selection.router,
        "rows": fit.rows,
        "left_out": selection.left_out,
        "coefficients": {name: _finite(value) for name, value in fit.coefficients._asdict().items()},
        "rmsle": fit.rmsle,
        "status": fit.status,
        "derived": {"N_cutoff": _finite(cutoff(fit.coefficients))},
    }


def _slopes(selection: RouterRows, loss_column: str):
    """Return a table of the slopes at the sizes of the rows."""
    from rich.table import Table

    size, experts, loss = _columns(selection, loss_column)
    interval: SlopeInterval = slope_interval(size, experts, loss, np.unique(size))
    table = Table("N", "b + c log10 N", "95 % interval", title=f"{selection.router}: change of log10 L per decade of Ê")
    for at, slope, low, high in zip(*interval[:4], strict=True):
        table.add_row(f"{at:,.0f}", _shown(slope, ".4f"), f"{_shown(low, '.4f')} to {_shown(high, '.4f')}")
    return table


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _shown(value: float, form: str) -> str:
    if math.isnan(value):
        return "not found"
    return format(value, form) if math.isfinite(value) else ("∞" if value > 0 else "-∞")
