"""The (N, E) laws for each router, with intervals and the paper's printed constants.

bounded law    `router_laws`     coefficients, N_cutoff, slopes, gains, equivalent dense sizes, residuals
other rows     `other_rows`      the same law for other choices of the seeds
other losses   `transfer`        the same law for every loss column
dense          `dense_law`       the power law of the models without routing
"""

import math

import numpy as np

from routelaws.reference.laws.intervals import Range, range_of
from routelaws.reference.laws.routed import RoutedCoefficients, cutoff, effective_experts

from ...laws.fitting import RoutedFit, predict_curve
from ...laws.uncertainty import Quantity, profile_intervals, student_quantile
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ..blocks import log_percent, ten_to, undetermined
from ..comparisons.runs import LEVEL, Run, line, usual
from ..encoding import coefficient, fit_constants, fit_dict, interval, misfit_dict, values_of
from ..fit import Fit
from ..misfit import warnings
from ..row_differences import differences, row_doubts, shorter_runs
from . import paper
from .table import BOUNDED, Table, columns_of, fit_form

COEFFICIENTS = RoutedCoefficients._fields
FOUND = "interior"  # status of a law whose coefficients are all inside the domain
SHOWN_EXPERTS = (8, 64, 128, 512)
"""The report shows the equivalent dense size at these values of E, and at the largest E of the table."""

ONE_SEED = "routing_frequency == 0.5 and k == 1 and (seed == 42 or (router_type == 'Dense' and seed == 1))"
"""A condition: the paper's rows, and a run of the one dense size that has no run with the paper's seed."""


def router_laws(table: Table, dense: dict, huber: float | None = None) -> list[dict]:
    """Return an entry for each router: its bounded law, fitted to the main rows of the table, and numbers from it.

    Args:
        dense: result of `dense_law`.
        huber: delta in log10 units; adds a fit by the sum of Huber terms.

    Returns:
        A list of dicts. Each has these keys:

            router                its name
            rows, dense_rows      number of rows of the law, and of the dense rows among them
            sizes, experts        the values of N and E in these rows
            left_out              the excluded runs, with reasons
            differences, shorter  see `row_differences`
            missing               the reason why there is no law, or None
            measured_slopes       slope of log10 L over log10 E at each size, measured and by the law at the same E
            cautions              warnings about the rows and, with a law, about its residuals

        An entry with a law also has the keys of `Fit.to_dict` and:

            derived                       N_cutoff and the slope at each size; a slope has "negative" (a phrase) and
                                          "endless" (whether its interval has an infinite end)
            N_cutoff_times                N_cutoff divided by the largest size
            rmsle_percent                 the RMSLE in percent of the loss
            curve                         the coefficients of `predict_curve`
            spare                         rows minus coefficients
            coefficients_95_rough         half the width of the rough 95 % interval of each coefficient
            reached                       fall of log L at the largest E, in percent of the fall at infinite E
            gains                         gain from dense to the largest E, at each size
            worth                         equivalent dense size of some models, by the law and by their measured loss
            misses                        mean residual of each size in percent; of the largest also when left out
            huber                         if requested: the law with Huber's criterion
            printed                       for the released runs: see `paper.beside_paper`
    """
    return [_law(table, selection, fit, dense, huber) for selection, fit in table.fits()]


def _law(table: Table, selection: RouterRows, fit: Fit | str, dense: dict, huber: float | None) -> dict:
    size, experts, loss = columns_of(selection, table.loss_column)
    entry = _rows(selection, size, experts, table.loss_column)
    if isinstance(fit, str):
        return entry | {"missing": fit, "measured_slopes": _measured_slopes(size, experts, loss, None)}
    entry |= {"missing": None} | fit_dict(fit) | _beyond_the_fit(table, selection, fit, dense)
    if huber is not None:
        entry["huber"] = described(Fit(fit.rows, BOUNDED, huber=huber).best) | {"delta": huber}
    if table.released and selection.router in paper.PRINTED and table.loss_column == "loss_validation":
        entry["printed"] = paper.beside_paper(selection.router, (size, experts, loss), entry)
    return entry


def _rows(selection, size: np.ndarray, experts: np.ndarray, loss_column: str) -> dict:
    return {
        "router": selection.router,
        "rows": size.size,
        "dense_rows": int((selection.frame["router_type"] == DENSE).sum()),
        "sizes": [int(n) for n in np.unique(size)],
        "experts": [int(e) for e in np.unique(experts)],
        "left_out": selection.left_out,
    } | _doubts(selection, loss_column)


def _doubts(selection: RouterRows, loss_column: str) -> dict:
    differing = differences(selection.frame) + row_doubts(selection, loss_column)
    shorter = shorter_runs(selection.frame)
    return {"differences": differing, "shorter": shorter, "cautions": warnings(differing, shorter, None, None)}


def _beyond_the_fit(table: Table, selection: RouterRows, fit: Fit, dense: dict) -> dict:
    size, experts, loss = fit.rows.columns[0], fit.rows.columns[1], fit.rows.measured
    sizes, top = np.unique(size), float(experts.max())
    cells = _shown_cells(size, experts)
    gain_quantities = [Quantity("gain", N=float(n), E=top) for n in sizes]
    gain_quantities += [Quantity("effective_parameters", N=float(n), E=e) for n, e in cells]
    intervals = [interval(range_of(each)) for each in profile_intervals(size, experts, loss, gain_quantities, LEVEL)]
    gains, effective = intervals[: sizes.size], intervals[sizes.size :]
    return {
        "rmsle_percent": log_percent(fit.rmsle),
        "curve": fit.best.curve._asdict(),
        "derived": {"N_cutoff": fit_constants(fit)["derived"]["N_cutoff"], "slopes": _slopes(fit)},
        "N_cutoff_times": fit.interval("N_cutoff").value / float(sizes[-1]),
        "spare": fit.best.rows - len(COEFFICIENTS),
        "coefficients_95_rough": rough_reach(fit.best),
        "reached": _reached(fit.best.coefficients, top),
        "gains": _gains(sizes, top, gains),
        "measured_slopes": _measured_slopes(size, experts, loss, fit.best),
        "worth": [_worth(table, selection, n, e, worth, dense) for (n, e), worth in zip(cells, effective, strict=True)],
        "misses": _misses(fit),
    }


def _slopes(fit: Fit) -> list[dict]:
    slopes = [{"N": int(item.at)} | interval(item) for item in fit.slopes]
    return [
        slope | {"negative": negative(slope), "endless": not all(map(math.isfinite, (slope["low"], slope["high"])))}
        for slope in slopes
    ]


def _gains(sizes: np.ndarray, top: float, intervals: list[dict]) -> list[dict]:
    """Return the gain from dense to E = `top` at each N, with its interval, also in percent of the loss."""
    return [
        {"N": int(n), "E": int(top)} | interval | {"percent": [log_percent(interval[end]) for end in _ENDS]}
        for n, interval in zip(sizes, intervals, strict=True)
    ]


def _shown_cells(size: np.ndarray, experts: np.ndarray) -> list[tuple]:
    counts = np.unique(experts)
    shown = [float(e) for e in counts if e in (*SHOWN_EXPERTS, counts[-1])]
    return [(n, e) for n in np.unique(size) for e in shown if np.any((size == n) & (experts == e))]


_ENDS = ("value", "low", "high")


def _misses(fit: Fit) -> dict:
    """Return, in percent, the mean residual of each size, and of the largest size by the law of the smaller sizes."""
    sizes, largest = (
        [{"N": int(entry.size), "percent": log_percent(entry.miss)} for entry in entries if entry is not None]
        for entries in (fit.misfit.sizes, [fit.misfit.largest])
    )
    return {"sizes": sizes, "largest": largest[0] if largest else None}


def rough_reach(fit: RoutedFit) -> dict[str, float]:
    """Return half the width of the rough 95 % interval of each coefficient, from the curvature at the optimum."""
    half = student_quantile(LEVEL, fit.rows - 6) * np.sqrt(np.diag(fit.covariance))
    return dict(zip(COEFFICIENTS, map(float, half), strict=True))


def _reached(coefficients: RoutedCoefficients, experts: float) -> float | None:
    """Return the fall of log L at E, in percent of the fall at infinite E."""
    start, top = coefficients.E_start, coefficients.E_max
    if not start < top < math.inf:
        return None
    return 100 * math.log(effective_experts(experts, start, top) / start) / math.log(top / start)


def negative(slope: dict) -> str:
    """Return whether a slope and its whole interval are negative."""
    if slope["high"] < 0:
        return "yes" if math.isfinite(slope["value"]) else "negative, but no finite value"
    return "no, it is positive" if slope["low"] > 0 else "no, the interval includes 0"


def described(fit: RoutedFit) -> dict:
    """Return status, coefficients and scores of a fit, without intervals. Undetermined coefficients are NaN."""
    return {
        "status": fit.status,
        "rmsle": fit.rmsle,
        "rmsle_percent": log_percent(fit.rmsle),
        "objective": fit.objective,
        "coefficients": values_of(fit.coefficients._asdict()),
        "derived": values_of({"N_cutoff": cutoff(fit.coefficients)}),
    }


def _measured_slopes(size: np.ndarray, experts: np.ndarray, loss: np.ndarray, fit: RoutedFit | None) -> list[dict]:
    """Return the straight-line slope of log10 L over log10 E at each size, measured and by the law at the same E."""
    slopes = []
    for n in np.unique(size):
        here = size == n
        measured = line(np.log10(experts[here]), np.log10(loss[here]))
        if measured is None:
            continue
        by_law = None
        if fit is not None:
            fitted = predict_curve(fit.curve, size[here], experts[here])
            by_law = line(np.log10(experts[here]), np.log10(fitted))["slope"]
        slopes.append({"N": int(n)} | measured | {"law": by_law})
    return slopes


def _worth(table: Table, selection, size: float, experts: float, interval: dict, dense: dict) -> dict:
    frame = selection.frame
    here = (frame["dense_parameter_count"] == size) & (frame["num_experts"] == experts)
    loss = float(frame[table.loss_column][here].mean())
    measured = None
    if dense.get("status") == FOUND:
        measured = equal_dense_size(loss, dense["line"])
    times = None if measured is None else measured / size
    return {
        "N": int(size),
        "E": int(experts),
        "loss": loss,
        "times": interval["value"] / size,
        "measured": measured,
        "measured_times": times,
    } | interval


def equal_dense_size(loss: float, line: dict) -> float:
    """Return the size of the dense model with this loss, by the dense power law.

    Args:
        loss: nats per token, above 0.
        line: {"intercept", "slope"} of log10 L = intercept + slope · log10 N, with a slope below 0. The form
            (N_c/N)^alpha is not used, because N_c can exceed the largest float.
    """
    return ten_to((math.log10(loss) - line["intercept"]) / line["slope"])


def dense_law(table: Table, runs: list[Run]) -> dict:
    """Return the power law L = (N_c/N)^alpha of the dense runs of all seeds, with rough intervals.

    Returns:
        {"router", "rows", "sizes", "missing"}, and "differences" and "shorter" as in `router_laws`. With a law, also
        "status", "rmsle", "rmsle_percent", "coefficients" (the interval of N_c is symmetric in log N_c), "line",
        "misfit", "misses" and "cautions". For loss_validation of the released runs, "printed" has the paper's values.
    """
    dense = [run for run in usual(runs) if run.router == DENSE]
    frame = table.last[table.last["hyper_id"].isin([run.hyper_id for run in dense])]
    selection = RouterRows(DENSE, frame, [])
    entry = {"router": DENSE, "rows": len(dense), "sizes": sorted({run.size for run in dense})}
    entry |= _doubts(selection, table.loss_column)
    fit = fit_form("dense", selection, table.loss_column)
    if isinstance(fit, str):
        return entry | {"missing": fit}
    entry |= {
        "missing": None,
        "status": fit.status,
        "line": fit.best.line._asdict(),
        "rmsle": fit.rmsle,
        "rmsle_percent": log_percent(fit.rmsle),
        "coefficients": dense_coefficients(fit.best),
        "misfit": misfit_dict(fit.misfit),
        "misses": _misses(fit),
        "cautions": fit.cautions,
    }
    if table.released and table.loss_column == "loss_validation":
        entry["printed"] = paper.dense_of_paper(fit.rows.columns[0], fit.rows.measured)
    return entry


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
    found = fit.status == FOUND
    return {item.name: coefficient(item, found and not undetermined(item.low, item.high)) for item in ranges}


def other_rows(table: Table) -> list[dict]:
    """Return the law of each router for other choices of seeds; [] if these choices give the same rows.

    Returns:
        [{"router", "choice", "rows", "status", "coefficients", "N_cutoff", "rmsle", "objective"}], the table's own
        choice first.
    """
    choices = [("own", None)] + ([("one dense seed more", ONE_SEED)] if table.released else []) + [("all seeds", "all")]
    entries: dict = {}
    for choice, rows in choices:
        for selection, fit in table.fits(rows=rows):
            used = tuple(selection.frame["hyper_id"])
            if (selection.router, used) in entries or isinstance(fit, str):
                continue
            head = {"router": selection.router, "choice": choice, "rows": len(used)}
            entries[selection.router, used] = head | described(fit.best)
    several = {router for router, _ in entries if sum(other == router for other, _ in entries) > 1}
    return sorted((entry for entry in entries.values() if entry["router"] in several), key=lambda e: e["router"])


def transfer(table: Table) -> list[dict]:
    """Return the bounded law of each router for every loss column.

    Returns:
        [{"loss", "router", "rows", "left_out", "missing", "status", "rmsle", "objective", "coefficients", "derived",
        "gains"}]. Do not use a coefficient that is not "determined": the fit is at an edge of the domain, an end of the
        interval is open, or the rows do not determine the law.
    """
    entries = []
    for column in table.loss_columns:
        try:
            fits = table.fits(column)
        except ValueError as error:
            entries.append({"loss": column, "router": None, "missing": str(error)})
            continue
        entries += [_transferred(selection, column, fit) for selection, fit in fits]
    return entries


def _transferred(selection: RouterRows, column: str, fit: Fit | str) -> dict:
    size, experts, loss = columns_of(selection, column)
    entry = {
        "loss": column,
        "router": selection.router,
        "rows": size.size,
        "left_out": [run["hyper_id"] for run in selection.left_out],
    }
    if isinstance(fit, str):
        return entry | {"missing": fit}
    sizes, top = np.unique(size), float(experts.max())
    gain_quantities = [Quantity("gain", N=float(n), E=top) for n in sizes]
    gains = [interval(range_of(each)) for each in profile_intervals(size, experts, loss, gain_quantities, LEVEL)]
    return entry | {"missing": None} | described(fit.best) | fit_constants(fit) | {"gains": _gains(sizes, top, gains)}
