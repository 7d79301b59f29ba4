"""The sections of a report on what the fitted laws say: slopes, gains, worth, misses, forms of law, other texts."""

from ..results.blocks import Block, Heading, Table, count, counts_span, figure, span
from ..results.misfit import CLEAR, NO_FLOOR, how_far_off
from ..wording import plural
from .answer import end_heads, gains_at_ends
from .law_sections import NAMES, value_of
from .outline import Report, bullets, listed, loss_name, names, router_name, status


def slopes_section(report: Report) -> list[Block]:
    """Return the slope in E at each size, measured and by the law, and the gains at each size."""
    if not any(law["measured_slopes"] for law in report.laws):
        return []
    fitted = report.fitted
    heads = ["router", "N", "measured slope in E", "95 % interval"]
    heads += ["law, same runs", "law's slope in Ê", "95 % interval", "negative, with its interval?"] if fitted else []
    rows = [_slope_row(report, law, each) for law in report.laws for each in law["measured_slopes"]]
    by_law = (
        " *Law, same runs* is the same line through what the law says for them. The law's own slope, b + c log10 N, is "
        "per tenfold *effective* experts, of which there are fewer, so it is steeper."
        if fitted
        else ""
    )
    fade = " All are below zero and come closer to it as N grows." if report.results["headlines"]["slopes_fade"] else ""
    panels = " and by the law (lines). Right: the law's b + c log10 N with its profile interval." if fitted else "."
    return [
        Heading("Slopes and gains"),
        "A slope is the change of log10 L per tenfold experts: -0.03 means that ten times the experts lower the loss "
        f"by 7 %. *Measured* is a straight line in log10 E through the runs of one size, dense included.{by_law}",
        Table(heads, rows, keys=2),
        *report.figure(
            "slopes",
            "Slopes against model size",
            f"{'Left: measured' if fitted else 'Measured'} at each size (circles, with the interval of a straight line)"
            f"{panels}{fade}",
        ),
        *_gain_table(report),
    ]


def _slope_row(report: Report, law: dict, measured: dict) -> list[str]:
    cells = [router_name(law["router"]), report.size(measured["N"])]
    cells += [figure(measured["slope"], ".4f"), span(measured, ".4f")]
    if not report.fitted:
        return cells
    own = next((each for each in law.get("derived", {}).get("slopes", []) if each["N"] == measured["N"]), None)
    by_law = ["not found", "not known", ""]
    if own:
        by_law = [figure(own["value"], ".4f"), span(own, ".4f"), own["negative"]]
    return [*cells, figure(measured["law"], ".4f"), *by_law]


def _gain_table(report: Report) -> list[Block]:
    rows = [
        [router_name(law["router"]), report.size(gain["N"]), f"1 → {gain['E']}", figure(gain["value"], ".4f")]
        + [f"{figure(gain['percent'][0], '+.1f')} %", f"{span(gain['percent'][1:], '+.1f')} %", gain["verdict"] or ""]
        for law in report.fitted
        for gain in law["gains"]
    ]
    heads = ["router", "N", "experts", "change of log10 L", "change of the loss", "95 % interval", "how well known"]
    words = "The gain, from a dense model to the largest E, is nearer to what was measured than any slope:"
    return [words, Table(heads, rows, keys=2)] if rows else []


def worth_section(report: Report) -> list[Block]:
    """Return the dense size that each routed model is worth, by the law and by the power law of the dense runs."""
    if not any(law["worth"] for law in report.fitted):
        return []
    rising = [law for law in report.fitted if law["misfit"]["rise"] is not None]
    rows = [
        [router_name(law["router"]), report.size(each["N"]), str(each["E"]), figure(each["loss"], ".4f")]
        + [count(each["value"]), counts_span(each), figure(each["times"], ".1f")]
        + [count(each["measured"]), figure(each["measured_times"], ".1f")]
        for law in report.fitted
        if law not in rising
        for each in law["worth"]
    ]
    found: list[Block] = [
        Heading("What a routed model is worth"),
        "A routed model is worth the dense model of the same loss, its *effective parameter count*: by the law, and by "
        "the power law of the dense runs at the loss that was measured.",
    ]
    if rising:
        found.append(
            f"By the law of {names(law['router'] for law in rising)} larger dense models are no better, so that no "
            "dense size stands for a loss."
        )
    if not rows:
        return found
    if report.results["dense"]["sizes"]:
        found.append(
            f"Beyond {report.size(report.results['dense']['sizes'][-1])}, the largest dense model, both extrapolate."
        )
    heads = ["router", "N", "E", "measured loss", "worth a dense model of, by the law", "95 % interval", "times N"]
    caption = (
        "That is the size of the dense model to which the law gives the same loss. If the law holds, dense (squares) "
        "and routed models (circles) of every N and E fall on one line. It is dashed where no dense model was trained."
    )
    found += report.figure("effective_size", "Loss against effective parameter count", caption)
    return [*found, Table([*heads, "by the measured loss", "times N"], rows, keys=3)]


def dense_section(report: Report) -> list[Block]:
    """Return the power law of the dense runs."""
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
        ["N_c", count(size["value"]), counts_span(size)],
        ["RMSLE", figure(dense["rmsle"], ".5f"), ""],
    ]
    if printed:
        shown = [figure(printed["alpha"], ".3f"), count(printed["N_c"]), figure(printed["rmsle"], ".5f")]
        rows = [[*row, cell] for row, cell in zip(rows, shown, strict=True)]
    return [
        head,
        f"L = (N_c/N)^alpha, from {plural(dense['rows'], 'run')} at {plural(len(dense['sizes']), 'size')}. N_c is "
        "where the line would reach a loss of 1 nat, far outside the data, so it is known only to a factor.",
        Table(["", "fitted", "rough 95 % interval", *(["printed"] if printed else [])], rows),
    ]


def _law_name(law: dict) -> str:
    return "dense power law" if law["router"] == "Dense" else router_name(law["router"])


def misses_section(report: Report) -> list[Block]:
    """Return where the laws miss, by size, and whether the misses bend or are beyond chance."""
    dense, sizes = report.results["dense"], report.table["sizes"]
    laws = report.fitted + ([dense] if "misses" in dense else [])
    if not laws:
        return []
    rows = []
    for law in laws:
        by_size = {each["N"]: f"{figure(each['percent'], '+.2f')} %" for each in law["misses"]["sizes"]}
        rows.append([_law_name(law), *(by_size.get(size, "") for size in sizes)])
    found: list[Block] = [
        Heading("Where the laws miss"),
        "Measured loss over the law's, mean of the runs at each size; above zero the law is too low there:",
        Table(["law", *map(report.size, sizes)], rows),
    ]
    if any(law["misfit"]["bend"] or law["misfit"]["largest_size"] for law in laws):
        heads = ["law", "do the misses bend with log N?", "do points miss by more than seeds scatter?"]
        found += [
            Table([*heads, "the largest size, by the law of the others"], [_test_row(law) for law in laws]),
            "A law whose misses bend with log N keeps missing beyond the smallest and the largest sizes.",
        ]
    return found + ([NO_FLOOR] if any(law["misfit"]["rise"] is None for law in laws) else [])


def _test_row(law: dict) -> list[str]:
    misfit = law["misfit"]
    bend, seeds, largest = misfit["bend"], misfit["beyond_seeds"], misfit["largest_size"]
    cells = ["cannot be said", "cannot be said", "not predicted"]
    if bend:
        cells[0] = f"{_clear(bend)} (p = {figure(bend['p'], '.2g')})"
    if seeds:
        cells[1] = f"{_clear(seeds)} (F = {figure(seeds['F'], '.3g')}, p = {figure(seeds['p'], '.2g')})"
    if largest:
        cells[2] = f"predicted {how_far_off(largest['log10'])}"
    return [_law_name(law), *cells]


def _clear(test: dict) -> str:
    return "yes" if test["p"] < CLEAR else "no sign of it"


def forms_section(report: Report) -> list[Block]:
    """Return the forms of law, judged by runs that they have not seen."""
    forms = [each for each in report.results["forms"] if each["missing"] is None]
    if not forms:
        return []
    formulas = {each["law"]: each["formula"] for each in forms}
    lines = [
        f"**{name}**: {formula.partition(', 1/')[0]}{', with Ê as above' if 'Ê' in formula else ''}"
        for name, formula in formulas.items()
    ]
    best = (
        " Lines per size fill in a grid well and say nothing about another size; among forms that do, the slope in E "
        "has to change with N, and the bounded law adds the flattening at both ends."
        if report.results["headlines"]["bounded_best"]
        else " Lines per size say nothing about another size."
    )
    rows = [
        [router_name(each["router"]), each["law"], figure(each["rmsle"], ".5f")]
        + [
            cell
            for out in ("leave_one_out", "leave_one_size_out")
            for cell in (figure(each[out]["rmsle"], ".5f"), each[out]["verdict"])
        ]
        for each in forms
    ]
    heads = ["router", "form", "RMSLE of the fit", "one run left out", "against the best", "one size left out"]
    unfitted = (
        " A form without a row could not be fitted to the runs of that router."
        if len(forms) < len(report.results["forms"])
        else ""
    )
    return [
        Heading("Which form of law"),
        "Each run, and then each size as a whole, is left out in turn; the form is fitted to the rest and predicts "
        "what was left out. The forms, each a step further:",
        *bullets(lines),
        *report.figure("forms", "Held-out errors, one circle for each router", f"Further left is better.{best}"),
        Table([*heads, "against the best"], rows, keys=2),
        "*Worse* means by more than one standard error of the paired difference of squared errors; it is an "
        f"indication, no test. All errors are RMSLE of the rows left out, in log10.{unfitted}",
    ]


def texts_section(report: Report) -> list[Block]:
    """Return the same law fitted to each loss that the table has."""
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
        + [value_of(own, name) for name, own in each["coefficients"].items()]
        + [figure(each["rmsle"], ".4f"), status(each)]
        for each in fits
    ]
    gains = [
        [loss_name(each["loss"]), router_name(each["router"]), *gains_at_ends(report, each["gains"])] for each in fits
    ]
    blank = [str(run["hyper_id"]) for run in report.results["rows"]["blank"]]
    return [
        Heading("Other texts"),
        "The same law, fitted to each loss that the table has: do the gains carry over to texts that were not trained "
        "on? *Open* is a constant that the runs do not determine.",
        *lacking,
        Table(["text", "router", "runs", *NAMES[:-1], "RMSLE", "where the optimum lies"], rows, keys=2),
        *report.figure(
            "transfer",
            "The change of the loss from a dense model to the largest E by the law",
            "One panel for each text, with profile intervals. The further below zero, the more routing helps on that "
            "text.",
        ),
        "The gain from a dense model to the largest E is known even where the constants are not:",
        Table(["text", "router", *end_heads(report)], gains, keys=2),
        *([f"Runs {listed(blank)} have a blank loss and are left out of that loss alone."] if blank else []),
    ]
