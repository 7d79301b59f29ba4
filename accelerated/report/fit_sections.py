"""The sections of a report on the fitted laws: slopes, gains, equivalent sizes, residuals, forms, other texts."""

from ..findings.finding import Report, listed, loss_name, names, router_name, status
from ..results.blocks import NOT_DETERMINED, Block, Heading, Table, count, counts_span, figure, span, undetermined
from ..results.misfit import CLEAR, NO_FLOOR, how_far_off
from ..wording import plural
from .answer import end_heads, gains_at_ends
from .law_sections import LEGEND, NAMES, value_of


def slopes_section(report: Report) -> list[Block]:
    """Return the slope of the loss against E at each size, measured and by the law, and the gains at each size."""
    if not any(law["measured_slopes"] for law in report.laws):
        return []
    fitted = report.fitted
    heads = ["router", "N", "measured slope in E", "95 % interval"]
    heads += ["law, same runs", "law's slope in Ê", "95 % interval", "interval negative?"] if fitted else []
    rows = [_slope_row(report, law, each) for law in report.laws for each in law["measured_slopes"]]
    by_law = (
        " *Law, same runs*: the slope of a straight line through the losses that the law gives for these runs. *Law's "
        "slope in Ê*: b + c log10 N. This slope is steeper, because it counts *effective* experts Ê, and Ê varies less "
        "than E."
        if fitted
        else ""
    )
    fade = " All are negative and approach zero as N grows." if report.results["headlines"]["slopes_fade"] else ""
    panels = " and by the law (lines). Right: the law's b + c log10 N with its profile interval." if fitted else "."
    return [
        Heading("Slopes and gains"),
        "A slope is the change of log10 L per tenfold experts: -0.03 means that ten times the experts lower the loss "
        "by 7 %. *Measured slope*: the slope of a straight line in log10 E through the runs of one size, dense "
        f"included.{by_law}",
        Table(heads, rows, keys=2),
        *report.figure(
            "slopes",
            "Slopes against model size",
            f"{'Left: slopes measured' if fitted else 'Measured'} at each size (circles, with the interval of a "
            f"straight line){panels}{fade}",
        ),
        *_gain_table(report),
    ]


def _slope_row(report: Report, law: dict, measured: dict) -> list[str]:
    cells = [router_name(law["router"]), report.size(measured["N"])]
    cells += [figure(measured["slope"], ".4f"), span(measured, ".4f")]
    if not report.fitted:
        return cells
    slope = next((each for each in law.get("derived", {}).get("slopes", []) if each["N"] == measured["N"]), None)
    by_law = ["not found", "not known", ""]
    if slope:
        by_law = [figure(slope["value"], ".4f"), span(slope, ".4f"), slope["negative"]]
    return [*cells, figure(measured["law"], ".4f"), *by_law]


def _gain_table(report: Report) -> list[Block]:
    rows = [
        [router_name(law["router"]), report.size(gain["N"]), f"1 → {gain['E']}", figure(gain["value"], ".4f")]
        + [f"{figure(gain['percent'][0], '+.1f')} %", f"{span(gain['percent'][1:], '+.1f')} %", gain["verdict"] or ""]
        for law in report.fitted
        for gain in law["gains"]
    ]
    heads = ["router", "N", "experts", "change of log10 L", "change of the loss", "95 % interval", "precision"]
    words = "The gain from a dense model to the largest E depends less on the form of the law than a slope does:"
    return [words, Table(heads, rows, keys=2)] if rows else []


def worth_section(report: Report) -> list[Block]:
    """Return the equivalent dense size of each routed model, by the law and by the power law of the dense runs."""
    if not any(law["worth"] for law in report.fitted):
        return []
    rising = [law for law in report.fitted if law["misfit"]["rise"] is not None]
    rows = [
        [router_name(law["router"]), report.size(each["N"]), str(each["E"]), figure(each["loss"], ".4f")]
        + _worth(each)
        + [count(each["measured"]), figure(each["measured_times"], ".1f")]
        for law in report.fitted
        if law not in rising
        for each in law["worth"]
    ]
    blocks: list[Block] = [
        Heading("What a routed model is worth"),
        "The *effective parameter count* of a routed model is the size of the dense model with the same loss. The "
        "table has two estimates: one from the loss by the law, and one from the measured loss. The second uses the "
        "power law of the dense runs.",
    ]
    if rising:
        blocks.append(
            f"By the law of {names(law['router'] for law in rising)}, larger dense models are no better, so no dense "
            "size corresponds to a loss."
        )
    if not rows:
        return blocks
    if report.results["dense"]["sizes"]:
        top = report.size(report.results["dense"]["sizes"][-1])
        blocks.append(f"Above {top}, the largest dense model, both sizes are extrapolated.")
    heads = ["router", "N", "E", "measured loss", "equivalent dense size by the law", "95 % interval", "times N"]
    caption = (
        "The x-axis is the size of the dense model with the same loss by the law. If the law holds, dense (squares) "
        "and routed models (circles) of every N and E lie on one line. The line is dashed where no dense model was "
        "trained."
    )
    blocks += report.figure("effective_size", "Loss against effective parameter count", caption)
    return [*blocks, Table([*heads, "equivalent dense size by the measured loss", "times N"], rows, keys=3)]


def _worth(each: dict) -> list[str]:
    if undetermined(each["low"], each["high"]):
        return [NOT_DETERMINED] * 3
    return [count(each["value"]), counts_span(each), figure(each["times"], ".1f")]


def dense_section(report: Report) -> list[Block]:
    dense = report.results["dense"]
    if dense["rows"] < 2:
        return []
    head = Heading("The dense power law")
    if dense["missing"] is not None:
        return [head, f"There is no dense power law: {dense['missing']}."]
    if dense["status"] != "interior":
        return [head, "The dense runs have no power law: their loss does not fall with size."]
    alpha, size, printed = dense["coefficients"]["alpha"], dense["coefficients"]["N_c"], dense.get("printed")
    rows = [
        ["alpha", figure(alpha["value"], ".4f"), span(alpha, ".4f")],
        ["N_c", count(size["value"]) if size["determined"] else NOT_DETERMINED, counts_span(size)],
        ["RMSLE", figure(dense["rmsle"], ".5f"), ""],
    ]
    if printed:
        shown = [figure(printed["alpha"], ".3f"), count(printed["N_c"]), figure(printed["rmsle"], ".5f")]
        rows = [[*row, cell] for row, cell in zip(rows, shown, strict=True)]
    return [
        head,
        f"L = (N_c/N)^alpha, from {plural(dense['rows'], 'run')} at {plural(len(dense['sizes']), 'size')}. At N_c "
        "the line reaches a loss of 1 nat, far outside the data, so N_c is known only roughly.",
        Table(["", "fitted", "rough 95 % interval", *(["printed"] if printed else [])], rows),
    ]


def _law_name(law: dict) -> str:
    return "dense power law" if law["router"] == "Dense" else router_name(law["router"])


def misses_section(report: Report) -> list[Block]:
    """Return the residuals of the laws by size, and tests for a bend and for chance."""
    dense, sizes = report.results["dense"], report.table["sizes"]
    laws = report.fitted + ([dense] if "misses" in dense else [])
    if not laws:
        return []
    rows = []
    for law in laws:
        by_size = {each["N"]: f"{figure(each['percent'], '+.2f')} %" for each in law["misses"]["sizes"]}
        rows.append([_law_name(law), *(by_size.get(size, "") for size in sizes)])
    blocks: list[Block] = [
        Heading("Where the laws miss"),
        "The next table shows how far the measured loss is above the law, as a mean over the runs of each size. "
        "Where the value is above zero, the law predicts too low a loss.",
        Table(["law", *map(report.size, sizes)], rows),
    ]
    if any(law["misfit"]["bend"] or law["misfit"]["largest_size"] for law in laws):
        heads = ["law", "are the residuals curved in log N?", "are the residuals larger than the scatter of seeds?"]
        blocks += [
            Table(
                [*heads, "law fitted without the largest size: error at this size"],
                [_test_row(law) for law in laws],
            ),
            "If the residuals are curved in log N, the law is also wrong beyond the smallest and the largest size.",
        ]
    return blocks + ([NO_FLOOR] if any(law["misfit"]["rise"] is None for law in laws) else [])


def _test_row(law: dict) -> list[str]:
    misfit = law["misfit"]
    bend, seeds, largest = misfit["bend"], misfit["beyond_seeds"], misfit["largest_size"]
    cells = ["not known", "not known", "not predicted"]
    if bend:
        cells[0] = f"{_clear(bend)} (p = {figure(bend['p'], '.2g')})"
    if seeds:
        size = f"N = {seeds['N']:,.0f}, " if seeds["N"] else ""
        cells[1] = f"{_clear(seeds)} ({size}F = {figure(seeds['F'], '.3g')}, p = {figure(seeds['p'], '.2g')})"
    if largest:
        cells[2] = f"predicted {how_far_off(largest['log10'])}"
    return [_law_name(law), *cells]


def _clear(test: dict) -> str:
    return "yes" if test["p"] < CLEAR else "no evidence"


def texts_section(report: Report) -> list[Block]:
    transfer = report.results["transfer"]
    fits = [each for each in transfer if each["missing"] is None]
    if len(report.table["loss_columns"]) < 2 or not fits:
        return []
    lacking = [
        f"{loss_name(each['loss'])}{' with ' + router_name(each['router']) if each['router'] else ''}: "
        f"{each['missing']}."
        for each in transfer
        if each["missing"]
    ]
    rows = [
        [loss_name(each["loss"]), router_name(each["router"]), str(each["rows"])]
        + [value_of(coefficient, name) for name, coefficient in each["coefficients"].items()]
        + [figure(each["rmsle"], ".4f"), status(each)]
        for each in fits
    ]
    gains = [
        [loss_name(each["loss"]), router_name(each["router"]), *gains_at_ends(report, each["gains"])] for each in fits
    ]
    blank = [str(run["hyper_id"]) for run in report.results["rows"]["blank"]]
    return [
        Heading("Other texts"),
        "The same law is fitted to each loss of the table. This shows whether the gains carry over to texts that were "
        f"not in the training data. {LEGEND}",
        *lacking,
        Table(["text", "router", "runs", *NAMES[:-1], "RMSLE", "where the optimum lies"], rows, keys=2),
        *report.figure(
            "transfer",
            "The change of the loss from a dense model to the largest E by the law",
            "One panel for each text, with profile intervals. Routing helps more where the change is further below "
            "zero.",
        ),
        "The gain from a dense model to the largest E is known even if the constants are not:",
        Table(["text", "router", *end_heads(report)], gains, keys=2),
        *([f"Runs {listed(blank)} have a blank loss; only the fit to this loss leaves them out."] if blank else []),
    ]
