"""The (F, B) law: one curve for every k, routing frequency and flop_increase of a router.

F is the compute of a model (TeraFLOPs of the forward pass of 2,048 tokens), and B its parameters per FLOP of a token. A
run with k = 4, or with every block routed, has another F and another B. So one law can describe all runs. The result
has the error of the law for each kind of run.
"""

import math

import numpy as np

from ...laws.catalogue import LAWS
from ...laws.utilisation import effective_teraflops, predict_loss
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ..blocks import log_percent
from ..encoding import coefficient, fit_constants, unknown
from ..fit import Fit
from ..rows import rows_of_runs
from .runs import REACH, Run, usual_frequency

MAIN, PLAIN = "main grid", "dense"
LAW = LAWS["routed-utilisation"]


def utilisation_laws(runs: list[Run], last, loss_column: str) -> list[dict]:
    """Return the (F, B) law for each router, fitted to all runs of the router and all dense runs.

    Args:
        runs: trusted runs; runs without FLOPs or a parameter count are excluded.
        last: a pandas DataFrame with the last evaluation of each run.

    Returns:
        [{"router", "rows", "without_compute", "missing", "kinds": [{"kind", "rows", "rmsle", "percent"}], "status",
        "rmsle", "leave_one_out", "coefficients": {name: coefficient}, "points": [{"hyper_id", "kind", "F", "B", "loss",
        "fitted", "effective", "predicted"}]}]. `percent` is the mean difference of measured and fitted loss, in
        percent. Intervals are profile intervals. `effective` is the F at which a model with the smallest B has the
        run's fitted loss. `predicted` is the loss of this model. `points` is empty in the linear limit of the law, and
        if size hardly changes the loss.
    """
    usual = usual_frequency(runs)
    entries = []
    for router in sorted({run.router for run in runs} - {DENSE}):
        router_runs = [run for run in runs if run.router in (router, DENSE)]
        used = [run for run in router_runs if run.flops and run.total_parameters]
        entry = {"router": router, "rows": len(used), "without_compute": len(router_runs) - len(used)}
        frame = last[last["hyper_id"].isin([run.hyper_id for run in used])]
        entries.append(entry | _fitted(RouterRows(router, frame, []), used, loss_column, usual))
    return entries


def kind_of(run: Run, usual: float | None) -> str:
    """Describe how a run differs from the main grid."""
    if run.router == DENSE:
        return PLAIN if run.flop_increase == 1 else f"dense, FFN ×{run.flop_increase:g}"
    differs = [f"k = {run.k}"] if run.k != 1 else []
    if run.frequency not in (usual, None):
        over = round(1 / run.frequency)
        fraction = over > 1 and abs(over * run.frequency - 1) < 1e-3
        differs.append(f"R = 1/{over}" if fraction else f"R = {run.frequency:g}")
    return ", ".join(differs) or MAIN


def _fitted(selection: RouterRows, runs: list[Run], loss_column: str, usual: float | None) -> dict:
    if not runs:
        return {"missing": "the table has no flops_per_step or total_parameter_count", "kinds": [], "points": []}
    try:
        fit = Fit(rows_of_runs(selection, LAW, loss_column), LAW)
    except ValueError as error:
        return {"missing": str(error), "kinds": [], "points": []}
    fitted = LAW.predict(fit.best, *fit.rows.columns)
    kinds = [kind_of(run, usual) for run in runs]
    least = {"B_min": coefficient(unknown("B_min", fit.best.coefficients.B_min), True)}
    return {
        "missing": None,
        "status": fit.status,
        "coefficients": fit_constants(fit)["coefficients"] | least,
        "leave_one_out": float(fit.held_out.rmsle),
        "rmsle": fit.rmsle,
        "rmsle_percent": log_percent(fit.rmsle),
        "kinds": _by_kind(kinds, np.log10(fit.rows.measured) - np.log10(fitted)),
        "points": _points(runs, kinds, fit, fitted),
    }


def _by_kind(kinds: list[str], misses: np.ndarray) -> list[dict]:
    order = sorted(set(kinds), key=lambda kind: (kind != MAIN, kind != PLAIN, kind.startswith(PLAIN), kind))
    entries = []
    for kind in order:
        kind_misses = misses[[other == kind for other in kinds]]
        entries.append(
            {
                "kind": kind,
                "rows": kind_misses.size,
                "rmsle": float(np.sqrt(np.mean(kind_misses**2))),
                "percent": log_percent(float(kind_misses.mean())),
            }
        )
    return entries


def _points(runs: list[Run], kinds: list[str], fit: Fit, fitted: np.ndarray) -> list[dict]:
    (flops, utilisation), coefficients = fit.rows.columns, fit.best.coefficients
    if math.isnan(coefficients.a):
        return []
    try:
        effective = effective_teraflops(flops, utilisation, coefficients)
    except ValueError:  # the law does not depend on size
        return []
    if not (flops.min() / REACH < effective.min() and effective.max() < flops.max() * REACH):  # nearly flat
        return []
    predicted = predict_loss(effective, coefficients.B_min, coefficients)
    return [
        {
            "hyper_id": run.hyper_id,
            "kind": kind,
            "F": run.flops,
            "B": run.utilisation,
            "loss": run.loss,
            "fitted": float(fitted_loss),
            "effective": float(worth),
            "predicted": float(line),
        }
        for run, kind, fitted_loss, worth, line in zip(runs, kinds, fitted, effective, predicted, strict=True)
    ]
