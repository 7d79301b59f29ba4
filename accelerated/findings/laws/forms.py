"""Which form of law predicts runs that it has not seen? Forms of law are compared on held-out runs.

A form is fitted again without one run, or without all runs of one size, and predicts the excluded runs. Excluding a run
tests interpolation within a grid. Excluding a size tests extrapolation.
"""

import math

import numpy as np
import pandas

from routelaws.reference.laws.held_out import _scores as scores_of

from ...laws.catalogue import LAWS
from ...results.blocks import Block, figure, log_percent
from ...results.fit import Fit, fit_form
from ...results.rows import BOUNDED
from ..finding import Finding, Report, bullets, router_name, table
from ..runs import TableRun
from ..style import colour_of, dots, panel_grid, shared_legend

FORMS = ("per-size", "separable", "bilinear")
"""The (N, E) laws of the paper before its final law."""

FLOORED = "routed-bounded-floor"
SCORES = ["rmsle", "percent", "predicted", "verdict"]
COLUMNS = ["router", "law", "formula", "rows", "missing", "status", "rmsle"]
COLUMNS += [f"{left_out}_{score}" for left_out in ("run", "size") for score in SCORES]


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Compare the held-out errors of each form for each router, on the rows of the law.

    Returns:
        "forms": router, law, formula, rows, missing (the reason for no fit, or None), status, rmsle (of the fit), and
        for one run left out and for one size left out: `run_` and `size_` with rmsle, percent (the RMSLE in percent of
        the loss), predicted (rows) and verdict (see `held_out.compare_forms`).
    """
    rows = []
    for selection, bounded in source.fits():
        fits = {name: fit_form(name, selection, source.loss_column) for name in FORMS} | {BOUNDED: bounded}
        floored = bounded if isinstance(bounded, str) else bounded.floored
        fits[FLOORED] = floored or fit_form(FLOORED, selection, source.loss_column)
        rows += [[selection.router, *row] for row in scored(fits, len(selection.frame))]
    return {"forms": pandas.DataFrame(rows, columns=COLUMNS)}


def scored(forms: dict[str, Fit | str], rows: int):
    """Yield the cells of each form, from `law` on."""
    fits, scores = {name: fit for name, fit in forms.items() if isinstance(fit, Fit)}, []
    for known in list(fits.values())[:1]:
        for held_out, groups in (
            ("held_out", np.arange(known.rows.measured.size)),
            ("held_out_size", known.rows.columns[0]),
        ):
            found = scores_of(list(fits), [getattr(fit, held_out) for fit in fits.values()], groups)
            scores.append({score.name: score for score in found})
    for name, form in forms.items():
        head = [name, LAWS[name].formula, rows]
        if isinstance(form, str):
            yield [*head, form, None, None, *[None] * 2 * len(SCORES)]
            continue
        errors = [scores_of_kind[name] for scores_of_kind in scores]
        cells = []
        for each in errors:
            rmsle = each.held_out.rmsle if math.isfinite(each.held_out.rmsle) else None
            cells += [rmsle, log_percent(rmsle), each.held_out.predicted, each.verdict]
        yield [*head, None, form.status, form.rmsle, *cells]


def best_of(results: dict) -> str | None:
    """Return the form that predicts left-out sizes best for every router that has a law; None if there is none."""
    best = results.forms[results.forms["size_verdict"] == "best"]["law"]
    fitted = sum(law.missing is None for law in results.laws)
    return best.iloc[0] if len(best) == fitted and best.nunique() == 1 else None


def section(report: Report) -> list[Block]:
    frame = report.results.forms
    fitted = frame[frame["missing"].isna()]
    if fitted.empty:
        return []
    lines = [
        f"**{name}**: {formula.partition(', 1/')[0]}{', with Ê as above' if 'Ê' in formula else ''}"
        for name, formula in fitted.drop_duplicates("law")[["law", "formula"]].itertuples(index=False)
    ]
    best = " The form per-size fits one line for each N, so it cannot predict another size."
    if (form := best_of(report.results)) in (BOUNDED, FLOORED):
        best += f" The law {form} predicts best: its slope in E changes with N, and its curve flattens at both ends"
        best += ". Its loss falls towards a floor." if form == FLOORED else "."
    columns = {
        "router": lambda row: router_name(row.router),
        "form": lambda row: row.law,
        "RMSLE of the fit": lambda row: figure(row.rmsle, ".5f"),
        "one run left out": lambda row: figure(row.run_rmsle, ".5f"),
        "runs: compared with the best form": lambda row: row.run_verdict,
        "one size left out": lambda row: figure(row.size_rmsle, ".5f"),
        "sizes: compared with the best form": lambda row: row.size_verdict,
    }
    unfitted = " A form without a row could not be fitted to the runs of that router." * (len(fitted) < len(frame))
    return [
        "Each run, and then each whole size, is left out in turn. Each form is fitted to the rest and predicts the "
        "left-out runs. These are the forms, from simple to general:",
        *bullets(lines),
        *report.figure("forms", "Held-out errors, one circle for each router", f"Further left is better.{best}"),
        table(fitted, columns, keys=2),
        "*Worse*: the squared errors are larger than the errors of the best form, by more than one standard error of "
        "the paired differences. This is an indication, not a test. All errors are the RMSLE of the left-out rows, "
        f"in log10.{unfitted}",
    ]


def draw(results: dict, runs: list[TableRun]):
    from matplotlib.ticker import MaxNLocator

    fitted = results.forms[results.forms["missing"].isna()]
    if fitted.empty:
        return None
    routers, names = fitted["router"].unique(), list(fitted["law"].unique())[::-1]
    figure, panels = panel_grid(2, 1.5 + max(0.5, 0.11 * len(routers)) * len(names))
    for panel, error, title in zip(
        panels, ("run_rmsle", "size_rmsle"), ("One run left out at a time", "One size left out at a time"), strict=True
    ):
        known = fitted.dropna(subset=error)
        for i, router in enumerate(routers):
            rows = known[known["router"] == router]
            offset = min(0.16, 0.7 / len(routers)) * (i - (len(routers) - 1) / 2)
            heights = [names.index(law) - offset for law in rows["law"]]
            dots(panel, rows[error], heights, colour_of(results, router), label=router_name(router), size=7)
        panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
        panel.set(title=title, xlabel="RMSLE of the runs left out (log10)", ylim=(-0.6, len(names) - 0.4))
        panel.set_xlim(0, None)
        panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        for name in sorted(set(names) - set(known["law"]), key=names.index):
            look = {"va": "center", "fontsize": 9.5, "color": "#777777", "transform": panel.get_yaxis_transform()}
            look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            panel.text(0.02, names.index(name), "cannot predict another size", **look)
    shared_legend(figure, panels)
    return figure


FINDING = Finding("forms", "Which form of law", find, section, figures={"forms": draw})
