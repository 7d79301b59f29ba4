"""Do the gains carry over to other texts? The law of each router, fitted to every loss column."""

import numpy as np
import pandas

from ...results.blocks import NOT_DETERMINED, Block, Table, constant, figure, log_percent
from ...results.encoding import Constant, constants
from ..finding import CONSTANTS, LEGEND, Finding, Report, listed, loss_name, names, router_name, status
from ..runs import TableRun
from ..style import colour_of, label_rows, panel_grid, shared_legend, size_axis
from ..used_runs import blank
from .slopes import at_ends, end_heads

COLUMNS = ["loss", "router", "rows", "left_out", "missing", "status", "rmsle", "rmsle_percent", "objective"]
KEY = ["loss", "router"]


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Return the bounded law of each router for every loss column; `gains` has the gains.

    Do not use a constant that is not determined: the fit is at an edge of the domain, an end of the interval is open,
    or the rows do not determine the law.

    Returns:
        "texts": loss, router (None if no router has rows with this loss), rows, left_out (runs), missing (the reason
        for no law, or None), status, rmsle, rmsle_percent, objective. "text_constants": loss, router, name, value, low,
        high, verdict, determined.
    """
    texts, known = [], []
    for column in source.loss_columns:
        try:
            fits = source.fits(column)
        except ValueError as error:
            texts.append({"loss": column, "missing": str(error)})
            continue
        for selection, fit in fits:
            text = {"loss": column, "router": selection.router, "rows": len(selection.frame)}
            texts.append(text | {"left_out": [run["hyper_id"] for run in selection.left_out], "missing": fit})
            if isinstance(fit, str):
                continue
            scores = {"status": fit.status, "rmsle": fit.rmsle, "rmsle_percent": log_percent(fit.rmsle)}
            texts[-1] |= {"missing": None, "objective": fit.best.objective} | scores
            known += [(column, selection.router, name, *each) for name, each in constants(fit).items()]
    known = pandas.DataFrame(known, columns=[*KEY, "name", *Constant._fields])
    return {
        "texts": pandas.DataFrame(texts, columns=COLUMNS).astype({"rows": "Int64"}),
        "text_constants": known.astype({"determined": bool}),
    }


def undetermined(report: Report) -> dict[tuple[str, str], list[str]]:
    """Return the constants of each fit, by loss and router, that the runs do not determine."""
    known = report.results["text_constants"]
    unknown = known.assign(name=known["name"].where(~known["determined"]))
    return {key: rows.dropna().tolist() for key, rows in unknown.groupby(KEY, sort=False)["name"]}


def sentence(report: Report) -> str | None:
    """Return sentences on E_max of each router and on fits to other texts that the runs do not determine."""
    if not report.fitted:
        return None
    unknown = [law.router for law in report.fitted if not law.constants["E_max"].determined]
    unknown = [router for router in unknown if router not in report.without_constants]
    fits = {key: left for key, left in undetermined(report).items() if key[0] != report.results.table.loss_column}
    sentences = []
    if unknown:
        sentences.append(f"E_max, above which more experts do not help, is not determined for {names(unknown)}.")
    if any(fits.values()):
        nothing = [_text(*key) for key, left in fits.items() if len(left) == len(CONSTANTS)]
        sentences.append(
            f"In {sum(map(bool, fits.values()))} of {len(fits)} fits to other texts, the runs do not determine every "
            f"constant{'; no constant is determined for ' * bool(nothing)}{', '.join(nothing)}."
        )
    return f"**The runs do not determine some constants.** {' '.join(sentences)}" if sentences else None


def _text(loss: str, router: str) -> str:
    return f"{loss_name(loss)} with {router_name(router)}"


def section(report: Report) -> list[Block]:
    texts, gains = report.results["texts"], report.results.gains.groupby(KEY)
    fits = texts[texts["missing"].isna()]
    if len(report.results.table.loss_columns) < 2 or fits.empty:
        return []
    lacking = [
        f"{loss_name(row.loss) if pandas.isna(row.router) else _text(row.loss, row.router)}: {row.missing}."
        for row in texts.dropna(subset="missing").itertuples()
    ]
    known, rows = report.results["text_constants"].groupby(KEY), []
    for row in fits.itertuples():
        group = known.get_group((row.loss, row.router))
        cells = [constant(each.value, each.name) if each.determined else NOT_DETERMINED for each in group.itertuples()]
        rows.append(
            [loss_name(row.loss), router_name(row.router), str(row.rows), *cells[:-1], figure(row.rmsle, ".4f")]
            + [status(row.status, group["determined"])]
        )
    at = [
        [loss_name(row.loss), router_name(row.router), *at_ends(report, gains.get_group((row.loss, row.router)))]
        for row in fits.itertuples()
    ]
    lost = blank(report.results)
    return [
        "The same law is fitted to each loss of the table. This shows whether the gains carry over to texts that were "
        f"not in the training data. {LEGEND}",
        *lacking,
        Table(["text", "router", "runs", *CONSTANTS[:-1], "RMSLE", "where the optimum lies"], rows, keys=2),
        *report.figure(
            "transfer",
            "The change of the loss from a dense model to the largest E by the law",
            "One panel for each text, with profile intervals. Routing helps more where the change is further below "
            "zero.",
        ),
        "The gain from a dense model to the largest E is known even if the constants are not:",
        Table(["text", "router", *end_heads(report)], at, keys=2),
        *[f"Runs {listed(lost)} have a blank loss; only the fit to this loss leaves them out."] * bool(lost),
    ]


def draw(results: dict, runs: list[TableRun]):
    """Return, per loss column, the gain from dense to the largest E against N, with profile intervals."""
    gains = results.gains
    texts, low, high = gains.groupby("loss", sort=False), gains["N"].min() / 1.3, gains["N"].max() * 1.3
    if len(texts) < 2:
        return None
    figure, panels = panel_grid(len(texts), 3.3)
    ends = (low, high) if gains["N"].nunique() > 1 else (low * 1.3 / 3, high / 1.3 * 3)
    for panel, (column, rows) in zip(panels, texts, strict=True):
        routers = rows.groupby("router", sort=False)
        spread = np.linspace(-1, 1, len(routers)) * 0.03 if len(routers) > 1 else [0.0]
        for shift, (router, entries) in zip(spread, routers, strict=True):
            at, colour = entries["N"] * 10**shift, colour_of(results, router)
            panel.vlines(at, entries["percent_low"], entries["percent_high"], color=colour, linewidth=1.6)
            panel.plot(
                at, entries["percent"], "o-", color=colour, markersize=4.5, linewidth=1.1, label=router_name(router)
            )
        panel.axhline(0, color="#bbbbbb", linewidth=1.0)
        size_axis(panel, *ends)
        panel.set(title=loss_name(column), xlim=ends, xlabel="dense parameters N")
    label_rows(panels, "change of the loss, %")
    shared_legend(figure, panels)
    return figure


FINDING = Finding("texts", "Other texts", find, section, sentence, figures={"transfer": draw})
