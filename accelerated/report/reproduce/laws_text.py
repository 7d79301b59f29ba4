"""The sections on the laws in N and E."""

import math

from ...findings.forms import FINAL
from ...findings.words import (
    count,
    counts_span,
    experts,
    figure,
    joined,
    plural,
    router_name,
    shown,
    span,
    status,
    table,
)
from ...laws.routed import RoutedCoefficients

FORMULA = (
    "```\nlog10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d\n"
    "    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max\n```"
)
HOW = {
    "profile": "profile likelihood, misses independent",
    "jackknife": "jackknife: one size left out at a time",
    "runs": "bootstrap of runs",
    "sizes": "bootstrap of sizes",
}


def _fitted(results: dict) -> list[dict]:
    return [law for law in results["laws"] if law["missing"] is None]


def _form(name: str) -> str:
    return ".4g" if name in ("E_start", "E_max") else ".4f"


def figure_one(results: dict, drawn: list[str]) -> str:
    """Return the law and the three panels of the paper's Figure 1, router by router."""
    if not results["laws"]:
        return "There is no routed run in the table."
    missing = "\n\n".join(
        f"There is no law for {router_name(law['router'])}: {law['missing']}."
        for law in results["laws"]
        if law["missing"]
    )
    text = (
        "The law that the paper settles on says how the loss L falls with the dense size N and the number of experts E:"
        f"\n\n{FORMULA}\n\nIn words: a power law in N, and one in the *effective* experts Ê, whose slope b + c log10 N"
        " changes with size. Ê is E_start for a dense model, rises with E and never passes E_max. The six constants are"
        " fitted for each router to its own runs and the dense ones, which count as E = 1. The figures below are the"
        " panels of the paper's Figure 1 as we understand them, as far as these runs have data for them."
    )
    loss = (
        "Loss against the number of experts. Points are trained models, dark grey the dense ones; lines are the fitted"
        " law, one for each size N, labelled on the right. The lines fall with E and flatten at both ends: the first"
        " experts and the last ones count for less."
    )
    levels = (
        "Models of equal loss. Along a line the law's loss is the same (nats per token); points are the trained models,"
        " darker for a lower loss. Going up a line buys the same loss with more experts and a smaller dense size; where"
        " the lines stand upright, more experts buy nothing."
    )
    worth = (
        "Loss against effective parameter count, the size of the dense model to which the law gives the same loss. If"
        " the law holds, dense (squares) and routed models (circles) of every N and E fall on one line. It is dashed"
        " where no dense model was trained."
    )
    return joined(
        text, missing, shown("loss", loss, drawn), shown("levels", levels, drawn), shown("effective_size", worth, drawn)
    )


def coefficients(results: dict, drawn: list[str]) -> str:
    """Return the six constants of each router with intervals, and the printed ones."""
    laws = _fitted(results)
    if not laws:
        return "No router has a law, so there are no coefficients."
    names = (*RoutedCoefficients._fields, "N_cutoff")
    rows = []
    for law in laws:
        for name in names:
            interval = law["intervals"][name]
            if name == "N_cutoff":
                value, ends = count(interval["value"]), counts_span(interval["low"], interval["high"])
            else:
                value = figure(interval["value"], _form(name))
                ends = span(interval["low"], interval["high"], _form(name))
            value = value if law["determined"][name] else "open"
            row = (router_name(law["router"]), name, value, ends, interval["verdict"])
            rows.append(row + _printed(law, name) if any("printed" in each for each in laws) else row)
    head = ("router", "constant", "fitted", "95 % interval", "how well known")
    if any("printed" in law for law in laws):
        head += ("printed", "fitted less printed", "printed one inside?")
    scores = [
        (
            router_name(law["router"]),
            law["rows"],
            figure(law["rmsle"], ".5f"),
            f"{figure(law['rmsle_percent'], '.2f')} %",
            status(law),
        )
        for law in laws
    ]
    caption = (
        "The constants with their 95 % intervals. Circles are the fits"
        + (", diamonds what the paper prints" if any("printed" in law for law in laws) else "")
        + ". An arrow means that the interval goes on. The intervals are wide because the constants can make"
        " up for each other; what they say together, the loss, is known far better."
    )
    return joined(
        table(head, rows),
        shown("coefficients", caption, drawn),
        table(("router", "runs", "RMSLE", "of the loss", "where the optimum lies"), scores),
        "a, b, c and d are slopes and a level per tenfold N and Ê; b and d are values at N = 1, seven decades below any"
        " language model, so they mean little alone. *Soft* is an interval wider than half of its value (for E_start,"
        " E_max and N_cutoff, wider than a factor of two), *loose* one whose ends are more than a factor of ten apart;"
        " *extrapolated* means that the statement is about sizes or"
        " experts outside the table; a constant that is *open* is not determined by the runs, and no number is given.",
        _choices(results),
        _other_intervals(results),
    )


def _printed(law: dict, name: str) -> tuple[str, ...]:
    if "printed" not in law:
        return "", "", ""
    printed = law["printed"]
    inside = "yes" if printed["inside"][name] else "no"
    if name == "N_cutoff":
        difference = printed["difference"][name]
        return count(printed["N_cutoff"]), ("-" if difference < 0 else "+") + count(abs(difference)), inside
    form = ".3f"
    return (
        figure(printed["coefficients"][name], form),
        figure(printed["difference"][name], "+.4g" if name.startswith("E") else "+.4f"),
        inside,
    )


def _choices(results: dict) -> str:
    """Return the same fit on other choices of rows."""
    if not results["other_rows"]:
        return ""
    names = {"own": "as above", "one dense seed more": "and the dense 130M run of seed 1", "all seeds": "every seed"}
    rows = [
        (
            router_name(e["router"]),
            names[e["choice"]],
            e["rows"],
            *(figure(e["coefficients"][name], _form(name)) for name in RoutedCoefficients._fields),
            count(e["N_cutoff"]),
            figure(e["rmsle"], ".5f"),
        )
        for e in results["other_rows"]
    ]
    return joined(
        "**The same law on other rows.** Which seeds of the dense runs are taken moves the constants within their"
        " intervals, N_cutoff by much more than the losses:",
        table(("router", "rows", "runs", *RoutedCoefficients._fields, "N_cutoff", "RMSLE"), rows),
    )


def _other_intervals(results: dict) -> str:
    """Return how far the intervals depend on how they are made."""
    if not results["other_intervals"]:
        return ""
    rows = []
    for entry in results["other_intervals"]:
        for each in entry["quantities"]:
            if each["name"] == "N_cutoff":
                cells = [counts_span(*each[how]) for how in HOW]
            else:
                cells = [
                    _experts_span(*each[how]) if each["name"].startswith("E_") else span(*each[how], ".4f")
                    for how in HOW
                ]
            where = "" if math.isnan(each["N"]) else f" at N = {results['size_labels'][str(int(each['N']))]}"
            rows.append((router_name(entry["router"]), each["name"] + where, *cells))
    first = results["other_intervals"][0]
    lost = sum(entry["undetermined_sizes"] + entry["undetermined_runs"] for entry in results["other_intervals"])
    unbounded = [
        f"{router_name(e['router'])} {e['unbounded_runs']} of {e['resamples']:,}"
        for e in results["other_intervals"]
        if e["unbounded_runs"]
    ]
    text = (
        f"Bootstraps draw {first['resamples']:,} times, from seed {first['seed']}."
        + (f" In {lost:,} of the draws the rows do not determine the law; they are not counted." if lost else "")
        + (f" E_max has no limit in so many bootstraps of runs: {'; '.join(unbounded)}." if unbounded else "")
        + " With a handful of sizes a bootstrap of sizes is known to be too narrow; the jackknife's Student interval is"
        " the one that allows for a law that is a little wrong at each size."
    )
    return joined(
        "**The same intervals by other means.** The first takes the misses of the law as independent. If the law is a"
        " little wrong at some sizes, runs of one size err together, and the intervals that leave out or draw whole"
        " sizes show it:",
        table(("router", "quantity", *HOW.values()), rows),
        text,
    )


def _experts_span(low: float, high: float) -> str:
    return "not known" if math.isnan(low) or math.isnan(high) else f"{experts(low)} to {experts(high)}"


def slopes(results: dict, drawn: list[str]) -> str:
    """Return the slopes at each size, measured and of the law, and the gains."""
    rows = []
    for law in results["laws"]:
        by_law = {entry["N"]: entry for entry in law.get("slopes", [])}
        for entry in law["measured_slopes"]:
            other = by_law.get(entry["N"])
            rows.append(
                (
                    router_name(law["router"]),
                    results["size_labels"][str(entry["N"])],
                    entry["rows"],
                    figure(entry["slope"], ".4f"),
                    span(entry["low"], entry["high"], ".4f"),
                    figure(entry["law"], ".4f"),
                    figure(other["value"], ".4f") if other else "not found",
                    span(other["low"], other["high"], ".4f") if other else "not known",
                )
            )
    if not rows:
        return "No size has runs at two values of E, so there are no slopes."
    head = (
        "router",
        "N",
        "runs",
        "measured slope in E",
        "95 % interval",
        "law, same runs",
        "law's slope in Ê",
        "95 % interval",
    )
    text = (
        "A slope is the change of log10 L per tenfold experts: -0.03 means that ten times the experts lower the loss by"
        " 7 %. *Measured* is a straight line of log10 L in log10 E through the runs of one size, dense included; *law,"
        " same runs* the same line through what the law says for them. The law's own slope, b + c log10 N, is per"
        " tenfold *effective* experts, of which there are fewer, so it is steeper."
    )
    caption = (
        "Slopes against model size. Left: measured at each size (circles, with the interval of a straight line) and by"
        " the law (lines). Right: the law's b + c log10 N with its profile interval. All are below zero and come closer"
        " to it as N grows."
        if _all_fading(results)
        else "Slopes against model size. Left: measured at each size (circles, with the interval of a straight line)"
        " and by the law (lines). Right: the law's b + c log10 N with its profile interval."
    )
    return joined(text, table(head, rows), shown("slopes", caption, drawn), _gains(results))


def _all_fading(results: dict) -> bool:
    entries = [law["measured_slopes"] for law in results["laws"]]
    ends = [(slopes[0]["slope"], slopes[-1]["slope"]) for slopes in entries if len(slopes) > 1]
    return bool(ends) and all(first < last < 0 for first, last in ends)


def _gains(results: dict) -> str:
    rows = [
        (
            router_name(law["router"]),
            results["size_labels"][str(gain["N"])],
            f"1 → {gain['E']}",
            figure(gain["value"], ".4f"),
            f"{figure(gain['percent'][0], '+.1f')} %",
            f"{span(gain['percent'][1], gain['percent'][2], '+.1f')} %",
            gain["verdict"],
        )
        for law in _fitted(results)
        for gain in law["gains"]
    ]
    if not rows:
        return ""
    head = ("router", "N", "experts", "change of log10 L", "change of the loss", "95 % interval", "how well known")
    return joined(
        "The gain, from a dense model to the largest E, is nearer to what was measured than any slope:",
        table(head, rows),
    )


def worth(results: dict) -> str:
    """Return the dense size that routed models are worth."""
    laws = [law for law in _fitted(results) if law["worth"]]
    if not laws:
        return "No router has a law, so no dense size can be given for a routed model."
    rows = [
        (
            router_name(law["router"]),
            results["size_labels"][str(e["N"])],
            e["E"],
            figure(e["loss"], ".4f"),
            count(e["value"]),
            counts_span(e["low"], e["high"]),
            figure(e["times"], ".1f"),
            count(e["measured"]),
            figure(e["measured_times"], ".1f"),
        )
        for law in laws
        for e in law["worth"]
    ]
    head = (
        "router",
        "N",
        "E",
        "measured loss",
        "worth a dense model of, by the law",
        "95 % interval",
        "times N",
        "by the measured loss",
        "times N",
    )
    largest = results["size_labels"][str(max(results["dense"]["sizes"]))] if results["dense"]["sizes"] else "none"
    return joined(
        "A routed model is worth the dense model of the same loss, its *effective parameter count*. The law gives one;"
        " so does the power law of the dense runs, at the loss that was measured. Both say how many times the cost per"
        f" token routing saves at this loss. Dense models end at {largest}: beyond it both are extrapolated.",
        table(head, rows),
        _dense(results),
    )


def _dense(results: dict) -> str:
    dense = results["dense"]
    if dense["missing"] is not None:
        return f"There is no dense power law: {dense['missing']}."
    if dense["status"] != "interior":
        return "The dense runs have no power law: their loss does not fall with size."
    rows = [
        ("alpha", figure(dense["alpha"]["value"], ".4f"), span(dense["alpha"]["low"], dense["alpha"]["high"], ".4f")),
        ("N_c", count(dense["N_c"]["value"]), counts_span(dense["N_c"]["low"], dense["N_c"]["high"])),
        ("RMSLE", figure(dense["rmsle"], ".5f"), ""),
    ]
    head = ("", "fitted", "rough 95 % interval")
    if "printed" in dense:
        head += ("printed",)
        printed = dense["printed"]
        cells = figure(printed["alpha"], ".3f"), count(printed["N_c"]), figure(printed["rmsle"], ".5f")
        rows = [row + (cell,) for row, cell in zip(rows, cells, strict=True)]
    return joined(
        f"**The dense power law**, L = (N_c/N)^alpha, from {plural(dense['rows'], 'run')} at"
        f" {plural(len(dense['sizes']), 'size')}. N_c is where the line would reach a loss of 1 nat, far outside the"
        " data, so it is known only to a factor.",
        table(head, rows),
    )


def forms(results: dict, drawn: list[str]) -> str:
    """Return the forms of law by their held-out errors."""
    entries = results["forms"]
    if not entries:
        return "There are no routed runs to compare forms of law on."
    formulas = dict.fromkeys((entry["law"], entry["formula"]) for entry in entries)
    rows = []
    for entry in entries:
        if entry["missing"] is not None:
            rows.append((router_name(entry["router"]), entry["law"], "none", "none", entry["missing"], "", ""))
            continue
        one, size = entry["leave_one_out"], entry["leave_one_size_out"]
        errors = [figure(value, ".5f") for value in (entry["rmsle"], one["rmsle"], size["rmsle"])]
        rows.append(
            (router_name(entry["router"]), entry["law"], *errors[:2], one["verdict"], errors[2], size["verdict"])
        )
    text = (
        "A form of law is judged by runs that it has not seen. One at a time, each run, and then each size as a whole,"
        " is left out, the form is fitted to the rest and predicts what was left out. The forms, each a step"
        " further:\n\n"
        + "\n".join(
            f"- **{name}**: {formula.partition(', 1/')[0]}" + (", with Ê as above" if name == FINAL else "")
            for name, formula in formulas
        )
    )
    caption = (
        "Held-out errors, one circle for each router: further left is better. Lines per size fill in a grid well, and"
        " say nothing about another size; among forms that do, the slope in E has to change with N, and the bounded law"
        " adds the flattening at both ends."
        if _bounded_best(results)
        else "Held-out errors, one circle for each router: further left is better. Lines per size say nothing about"
        " another size."
    )
    return joined(
        text,
        shown("forms", caption, drawn),
        table(
            (
                "router",
                "form",
                "RMSLE of the fit",
                "one run left out",
                "against the best",
                "one size left out",
                "against the best",
            ),
            rows,
        ),
        "*Worse* means by more than one standard error of the paired difference of squared errors; it is an indication,"
        " no test: the folds share most of their runs, and a few sizes say little about the spread between sizes. All"
        " errors are RMSLE of the rows left out, in log10.",
    )


def _bounded_best(results: dict) -> bool:
    entries = [entry for entry in results["forms"] if entry["law"] == FINAL]
    return all(e["missing"] is None and e["leave_one_size_out"]["verdict"] == "best" for e in entries)
