"""Does one law describe every kind of run? The (F, B) law, with one curve for every k, R and width of a router.

F is the compute of a model (TeraFLOPs of the forward pass of 2,048 tokens), and B its parameters per FLOP of a token. A
run with k = 4, or with every block routed, has another F and another B. So one law can describe all runs. The result
has the error of the law for each kind of run.
"""

import numpy as np
import pandas

from ...laws.utilisation import effective_teraflops, predict_loss
from ...results.blocks import NOT_DETERMINED, Block, Table, figure, log_percent, span
from ...results.encoding import Constant, coefficients_of, constant_of, unknown
from ...results.fit import Fit, fit_form
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ..finding import Finding, Report, change, missing, router_name, table
from ..runs import REACH, TableRun, usual_frequency
from ..style import INK, colour_of, loss_axis, panel_grid, plain_ticks, shared_legend

MAIN, PLAIN = "main grid", "dense"
NAMES = ("a", "b", "c", "d", "B_start", "B_max", "B_min")
NO_COMPUTE = "the table has no flops_per_step or total_parameter_count"


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Fit the (F, B) law of each router to its trusted runs and the dense runs with known F and B.

    Returns:
        "utilisation": router, rows, without_compute, missing (why there is no law, or None), status, rmsle,
        rmsle_percent, leave_one_out. "utilisation_constants": router, name, value, low, high, verdict, determined.
        "utilisation_runs": router, hyper_id, kind, F, B, loss, fitted, effective, predicted. `effective` is the F at
        which a model with the smallest B has the fitted loss, and `predicted` the loss of this model; both are NaN in
        the linear limit of the law, and if size hardly changes the loss. "kinds": see `kinds_of`.
    """
    laws, constants, points, usual = [], [], [], usual_frequency(source.good)
    for router in sorted({run.router for run in source.good} - {DENSE}):
        runs = [run for run in source.good if run.router in (router, DENSE)]
        used = [run for run in runs if run.flops and run.total_parameters]
        frame = source.last[source.last["hyper_id"].isin([run.hyper_id for run in used])]
        selection = RouterRows(router, frame, [])
        fit = fit_form("routed-utilisation", selection, source.loss_column) if used else NO_COMPUTE
        law = {"router": router, "rows": len(used), "without_compute": len(runs) - len(used)}
        if isinstance(fit, str):
            laws.append(law | {"missing": fit})
            continue
        errors = {"rmsle_percent": log_percent(fit.rmsle), "leave_one_out": float(fit.held_out.rmsle)}
        laws.append(law | {"missing": None, "status": fit.status, "rmsle": fit.rmsle} | errors)
        known = coefficients_of(fit) | {"B_min": constant_of(unknown("B_min", fit.best.coefficients.B_min), True)}
        constants += [(router, name, *each) for name, each in known.items()]
        points.append(_points(router, used, [kind_of(run, usual) for run in used], fit))
    columns = ["router", "rows", "without_compute", "missing", "status", "rmsle", "rmsle_percent", "leave_one_out"]
    none = pandas.DataFrame(columns=["router", "hyper_id", "kind", "loss", "fitted", "effective", "predicted"])
    points = pandas.concat(points, ignore_index=True) if points else none
    return {
        "utilisation": pandas.DataFrame(laws, columns=columns),
        "utilisation_constants": pandas.DataFrame(constants, columns=["router", "name", *Constant._fields]),
        "utilisation_runs": points,
        "kinds": kinds_of(points),
    }


def kind_of(run: TableRun, usual: float | None) -> str:
    """Describe how a run differs from the main grid."""
    if run.router == DENSE:
        return PLAIN if run.flop_increase == 1 else f"dense, FFN ×{run.flop_increase:g}"
    differs = [f"k = {run.k}"] if run.k != 1 else []
    if run.frequency not in (usual, None):
        over = round(1 / run.frequency)
        fraction = over > 1 and abs(over * run.frequency - 1) < 1e-3
        differs.append(f"R = 1/{over}" if fraction else f"R = {run.frequency:g}")
    return ", ".join(differs) or MAIN


def _points(router: str, runs: list[TableRun], kinds: list[str], fit: Fit) -> pandas.DataFrame:
    (flops, used), law = fit.rows.columns, fit.best.coefficients
    fitted = fit.law.predict(fit.best, flops, used)
    known = {"F": flops, "B": used, "loss": fit.rows.measured, "fitted": fitted}
    frame = pandas.DataFrame({"router": router, "hyper_id": [run.hyper_id for run in runs], "kind": kinds} | known)
    try:
        effective = effective_teraflops(flops, used, law)
    except ValueError:  # the law does not depend on size
        effective = np.full(flops.size, np.nan)
    if not (flops.min() / REACH < effective.min() and effective.max() < flops.max() * REACH):  # NaN, or nearly flat
        return frame.assign(effective=np.nan, predicted=np.nan)
    return frame.assign(effective=effective, predicted=predict_loss(effective, law.B_min, law))


def kinds_of(points: pandas.DataFrame) -> pandas.DataFrame:
    """Return the error of the law for each kind of run.

    Returns:
        router, kind, rows, rmsle, percent. `percent` is the mean of the measured loss over the fitted loss, minus 1.
    """
    miss = np.log10((points["loss"] / points["fitted"]).astype(float))
    groups = points.assign(miss=miss, square=miss**2).groupby(["router", "kind"], as_index=False)
    frame = groups.agg(rows=("miss", "size"), rmsle=("square", "mean"), percent=("miss", "mean"))
    frame = frame.assign(rmsle=np.sqrt(frame["rmsle"]), percent=frame["percent"].map(log_percent))
    return frame.sort_values(["router", "kind"], key=lambda names: names.map(_order), ignore_index=True)


def _order(kind: str) -> tuple:
    return kind != MAIN, kind != PLAIN, kind.startswith(PLAIN), kind


def only_usual_kinds(results: dict) -> bool:
    """Return whether there is a law, and no run outside the main grid for it."""
    kinds = results["kinds"]["kind"]
    return len(kinds) > 0 and kinds.isin([MAIN, PLAIN]).all()


def without_law(report: Report) -> list[Block]:
    """Return why routers have no law in F and B, without the reasons that their law in N and E shares."""
    laws = report.results["utilisation"].dropna(subset="missing")
    laws = laws[~laws["missing"].isin([law.missing for law in report.results.laws])]
    return missing(laws.itertuples(), "law that uses F and B")


LAW = """```
log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d
    1/B̂ = 1/(B − B_min + (1/B_start − 1/B_max)⁻¹) + 1/B_max
```"""


def section(report: Report) -> list[Block]:
    if only_usual_kinds(report.results):
        return []
    columns = {
        "router": lambda row: router_name(row.router),
        "kind": lambda row: row.kind,
        "runs": lambda row: str(row.rows),
        "RMSLE": lambda row: figure(row.rmsle, ".5f"),
        "mean of measured loss / fitted loss": change,
    }
    return [
        "A law that uses N and E does not cover runs with another k, another R or wider dense layers. The paper's "
        "second form uses two other variables: the compute F (TeraFLOPs of a forward pass of 2,048 tokens) and the "
        "parameters per unit of compute, B = P/F. This form should describe every run of a router:",
        LAW,
        "B_min is the smallest B of the runs. The units of F and B are our choice; we do not know the paper's "
        "constants for this form.",
        *report.figure(
            "utilisation",
            "Measured loss against the equivalent compute of each run",
            "The equivalent compute of a run is the F of a model with B = B_min and the same loss by the law (line). "
            "Open marks are runs with another k, R or width than the main grid; if they lie on the line, one law "
            "describes all runs.",
        ),
        _constants(report.results),
        "Brackets hold 95 % intervals. B_min is not fitted.",
        _off(report.results),
        table(report.results["kinds"], columns, keys=2),
    ]


def _constants(results: dict) -> Table:
    """Return a table with a column for each router."""
    laws = list(results["utilisation"].dropna(subset="status").itertuples())
    cells = {(row.router, row.name): _constant(row) for row in results["utilisation_constants"].itertuples()}
    rows = [[name, *(cells[law.router, name] for law in laws)] for name in NAMES]
    rows += [
        ["RMSLE", *(figure(law.rmsle, ".5f") for law in laws)],
        ["RMSLE, one run left out", *(figure(law.leave_one_out, ".5f") for law in laws)],
        ["runs", *(str(law.rows) for law in laws)],
        ["where the optimum lies", *(law.status for law in laws)],
    ]
    return Table(["", *(router_name(law.router) for law in laws)], rows)


def _constant(row) -> str:
    value = figure(row.value, ".4g") if row.determined else NOT_DETERMINED
    return value if row.low != row.low else f"{value} ({span(row, '.3g')})"


def _off(results: dict) -> str:
    """Return a sentence on the kinds whose mean residual is larger than the residual of a single run."""
    kinds = results["kinds"].merge(results["utilisation"][["router", "rmsle_percent"]], on="router")
    off = kinds[kinds["percent"].abs() > kinds["rmsle_percent"]]
    if off.empty:
        return "The mean residual of each kind is no larger than the residuals of single runs:"
    shown = [f"{router_name(row.router)}, {row.kind} ({change(row)})" for row in off.itertuples()]
    return (
        "The law does not quite hold for some kinds, because their mean residual is larger than the residuals of "
        f"single runs: {'; '.join(shown)}."
    )


def draw(results: dict, runs: list[TableRun]):
    """Return the loss of every run against its equivalent FLOPs by the (F, B) law, one panel per router."""
    points = results["utilisation_runs"].dropna(subset="effective")
    if points.empty or only_usual_kinds(results):
        return None
    routers, marks = points.groupby("router"), _marks(points["kind"])
    figure, panels = panel_grid(len(routers), 4.2)
    reach = points["effective"].min() / 1.35, points["effective"].max() * 1.35
    for panel, (router, rows) in zip(panels, routers, strict=True):
        _draw_kinds(panel, rows, marks, colour_of(results, router))
        panel.set(title=router_name(router), xlabel="effective TeraFLOPs of 2,048 tokens", xlim=reach)
        plain_ticks(panel, *reach)
    for kind, (marker, filled) in marks.items():  # only for the legend, because the main grid has a colour per panel
        panels[0].plot([], [], marker, markersize=6, label=kind, **_look(kind, filled, "#b0b0b0"))
    loss_axis(panels, points["loss"], results)
    shared_legend(figure, panels, columns=5)
    return figure


def _draw_kinds(panel, points: pandas.DataFrame, marks: dict, colour) -> None:
    for kind, (marker, filled) in marks.items():
        rows, look = points[points["kind"] == kind], _look(kind, filled, colour) | {"zorder": 3 if filled else 4}
        panel.plot(rows["effective"], rows["loss"], marker, markersize=5.5 if filled else 6.5, label=None, **look)
    line = points.sort_values("effective")
    panel.plot(line["effective"], line["predicted"], color=INK, linewidth=1.1, zorder=2)


def _look(kind: str, filled: bool, colour) -> dict:
    """Return the style of a mark. Dense is hollow with a black edge."""
    return {
        "linestyle": "none",
        "markerfacecolor": INK if kind.startswith("dense") else colour if filled else "white",
        "markeredgecolor": "white" if filled else INK,
        "markeredgewidth": 0.7 if filled else 1.1,
    }


def _marks(kinds) -> dict[str, tuple[str, bool]]:
    """Return marker and filling for each kind of run: filled for the main grid, open for others."""
    shapes, open_shapes = {PLAIN: ("s", True), MAIN: ("o", True)}, iter("D^v<>ph*XP" * 4)
    order = sorted(set(kinds), key=lambda kind: (kind not in shapes, kind.startswith(PLAIN), kind))
    return {kind: shapes.get(kind) or (next(open_shapes), False) for kind in order}


FINDING = Finding("kinds", "One law for every kind of run", find, section, figures={"utilisation": draw})
