"""The sections on runs held against runs: routers, experts per token, routing frequency, compute, other texts."""

from ...findings.utilisation import MAIN
from ...findings.words import figure, joined, listed, loss_name, plural, router_name, share, shown, span, status, table
from ...laws.routed import RoutedCoefficients


def routers(results: dict, drawn: list[str]) -> str:
    """Return the paired differences of the routers."""
    pairs = results["pairs"]
    if not pairs:
        return "The table has no two routers at the same N and E, so none can be held against another."
    labels = results["size_labels"]
    overall = [
        (
            f"{router_name(p['first'])} less {router_name(p['second'])}",
            p["overall"]["values"],
            f"{figure(p['overall']['mean'], '+.2f')} %",
            _percents(p["overall"]),
            *_ratio(p["overall_size_ratio"]),
        )
        for p in pairs
    ]
    by_size = [
        (
            f"{router_name(p['first'])} less {router_name(p['second'])}",
            labels[str(e["N"])],
            e["percent"]["values"],
            f"{figure(e['percent']['mean'], '+.2f')} %",
            _percents(e["percent"]),
            *_ratio(e["size_ratio"]),
        )
        for p in pairs
        for e in p["sizes"]
    ]
    head = (
        "pair",
        "cells",
        "difference of the loss",
        "95 % interval",
        "ratio of dense sizes of equal loss",
        "95 % interval",
    )
    text = (
        "Two routers are compared where both have a run of the same N and E: what the two share drops out of the"
        " difference. Below zero the first has the lower loss. The ratio says the same in model size: the dense size of"
        " equal loss (by the power law of the dense runs) of the first over that of the second; 0.8 means that the"
        " second is worth a model a quarter larger. It is extrapolated for the largest models."
    )
    figures = joined(
        shown(
            "routers",
            "Loss against the number of experts, one panel for each size N. Colours are the routers, the"
            " dashed line is the dense model. The axes of the panels differ.",
            drawn,
        ),
        shown(
            "pairs",
            "Differences of the routers, in percent of the loss, one line for each size N. Above zero the"
            " second router of the title has the lower loss." + _band(results),
            drawn,
        ),
    )
    return joined(
        text,
        figures,
        "Over all shared N and E, each size counted once:",
        table(head, overall),
        "Size by size; the interval is over the E of that size:",
        table((head[0], "N", *head[1:]), by_size),
        _extremes(results),
        "Every shared N and E is under [Every pair of runs](#every-pair-of-runs).",
    )


def _band(results: dict) -> str:
    if results["seed_scatter"] is None:
        return ""
    reach = results["pairs"][0]["cells"][0]["percent_reach"]
    return (
        f" The grey band, ±{figure(reach, '.2f')} %, is what two runs of one kind differ by chance (95 %), if all"
        " scatter as those that were repeated."
    )


def _percents(interval: dict) -> str:
    return "not known" if interval["low"] is None else f"{span(interval['low'], interval['high'], '+.2f')} %"


def _ratio(interval: dict | None) -> tuple[str, str]:
    if interval is None:
        return "not known", "not known"
    return figure(interval["mean"], ".3f"), span(interval["low"], interval["high"], ".3f")


def _extremes(results: dict) -> str:
    """Return the cells in which the sign of a pair is not that of its mean."""
    labels, said = results["size_labels"], []
    for pair in results["pairs"]:
        turned = pair["turned"]
        if turned["cells"]:
            said.append(
                f"{router_name(pair['first'])} and {router_name(pair['second'])} change places in {turned['cells']} of"
                f" {plural(len(pair['cells']), 'cell')}, most at N = {labels[str(turned['N'])]}, E = {turned['E']}"
                f" ({figure(turned['percent'], '+.2f')} %)."
            )
        else:
            said.append(f"{router_name(pair['first'])} and {router_name(pair['second'])} never change places.")
    return " ".join(said)


def every_pair(results: dict) -> str:
    """Return every shared (N, E) of two routers, in loss and in dense sizes of equal loss; "" if there is none."""
    rows = []
    for pair in results["pairs"]:
        for cell in pair["cells"]:
            reach = "not known" if cell["nats_reach"] is None else f"± {figure(cell['nats_reach'], '.4f')}"
            rows.append(
                (
                    f"{router_name(pair['first'])} less {router_name(pair['second'])}",
                    results["size_labels"][str(cell["N"])],
                    cell["E"],
                    figure(cell["first_loss"], ".4f"),
                    figure(cell["second_loss"], ".4f"),
                    figure(cell["nats"], "+.4f"),
                    reach,
                    figure(cell["size_ratio"], ".3f"),
                )
            )
    head = ("pair", "N", "E", "first", "second", "difference (nats)", "95 % by seeds alone", "ratio of dense sizes")
    said = (
        "The interval of one cell is from the scatter over seeds, which was measured at"
        f" {plural(len(results['seed_scatter']['points']), 'point')}."
        if results["seed_scatter"]
        else "No seed was repeated, so a single cell has no interval."
    )
    return joined(f"Two routers at every N and E that both have. {said}", table(head, rows)) if rows else ""


def per_token(results: dict, drawn: list[str]) -> str:
    """Return the ablation of k."""
    ablation = results["experts_per_token"]
    if not ablation["cells"]:
        return "The table has no runs that differ in k alone, so nothing can be said about more experts per token."
    labels, rows = results["size_labels"], []
    for cell in ablation["cells"]:
        for point in cell["points"]:
            rows.append(
                (
                    f"{router_name(cell['router'])}, E = {cell['E']}",
                    labels[str(cell["N"])],
                    f"k = {point['k']}",
                    *_bought(point),
                    figure(cell["growth"], ".4f"),
                )
            )
    for entry in ablation["dense"]:
        for point in entry["points"]:
            rows.append(("dense", labels[str(entry["N"])], f"FFN ×{point['flop_increase']:g}", *_bought(point), ""))
    head = (
        "model",
        "N",
        "what changes",
        "loss",
        "change",
        "TeraFLOPs",
        "log10 L per tenfold FLOPs",
        "same, next larger N",
    )
    text = (
        "A token that passes through k experts instead of one costs more: each adds a feed-forward network to its path"
        " in every routed block. So the fall of the loss is divided by what it costs, as the change of log10 L per"
        " tenfold forward FLOPs (more negative is better), and set beside two other ways to spend FLOPs: a dense model"
        " whose feed-forward layers are 2 or 4 times as wide in half of the blocks (×2, ×4), and the next larger model"
        " with the same E and k = 1."
    )
    caption = (
        "Loss against the cost of a forward pass, at k = 1, 2 and more, and for dense models with wider feed-forward"
        " layers (×2, ×4). The steeper the line, the more the FLOPs buy."
    )
    versus = [
        (name, f"k = {k}", e["values"], e["less"], figure(e["mean"], "+.4f"), span(e["low"], e["high"], "+.4f"))
        for name, entries in (
            ("the next larger model", ablation["versus_growth"]),
            ("wider dense layers", ablation["versus_dense"]),
        )
        for k, e in entries.items()
    ]
    closing = (
        joined(
            "k less the other way, in change of log10 L per tenfold FLOPs (above zero: k buys less). The interval takes"
            " the cells as independent, which a few cells at few sizes are not quite:",
            table(("against", "", "cells", "k buys less in", "mean difference", "95 % interval"), versus),
        )
        if versus
        else "No other way to spend FLOPs is in the table to compare k with."
    )
    return joined(text, shown("k", caption, drawn), table(head, rows), closing)


def _bought(point: dict) -> tuple[str, ...]:
    change = "" if point["per_decade"] is None and point["percent"] == 0 else f"{figure(point['percent'], '+.2f')} %"
    return (
        figure(point["loss"], ".3f"),
        change,
        figure(point["flops"], ".3f"),
        "" if point["per_decade"] is None else figure(point["per_decade"], ".4f"),
    )


def frequency(results: dict, drawn: list[str]) -> str:
    """Return the ablation of R."""
    ablation = results["routing_frequency"]
    if not ablation["cells"]:
        return "The table has no runs that differ in the share of routed blocks alone."
    labels = results["size_labels"]
    values = sorted({point["R"] for cell in ablation["cells"] for point in cell["points"]})
    rows = []
    for cell in ablation["cells"]:
        losses = {point["R"]: point["loss"] for point in cell["points"]}
        rows.append(
            (
                router_name(cell["router"]),
                labels[str(cell["N"])],
                cell["E"],
                *(figure(losses[value], ".3f") if value in losses else "" for value in values),
            )
        )
    changes = [
        (
            router_name(e["router"]),
            share(e["R"]),
            f"{figure(e['percent']['mean'], '+.2f')} %",
            _percents(e["percent"]),
            e["cells"],
            e["lower"],
        )
        for e in ablation["changes"]
    ]
    caption = (
        "Loss against the share of the blocks that are routed, one line for each router and E. Runs whose labels cannot"
        " be right are left out, so some lines are short."
        if results["rows"]["suspect"]
        else "Loss against the share of the blocks that are routed, one line for each router and E."
    )
    return joined(
        f"R is the share of the blocks that are routed; the main runs have R = {share(ablation['usual'])}. More routed"
        " blocks cost almost no FLOPs and many parameters. Losses at k = 1:",
        shown("frequency", caption, drawn),
        table(("router", "N", "E", *(f"R = {share(value)}" for value in values)), rows),
        f"Against R = {share(ablation['usual'])}, mean over the cells (N and E), which the interval takes as"
        " independent:",
        table(("router", "R", "change of the loss", "95 % interval", "cells", "loss lower in"), changes),
    )


def utilisation(results: dict, drawn: list[str]) -> str:
    """Return the law in (F, B)."""
    entries = results["utilisation"]
    if not entries:
        return "There is no routed run in the table."
    missing = " ".join(
        f"There is no such law for {router_name(e['router'])}: {e['missing']}." for e in entries if e["missing"]
    )
    fitted = [entry for entry in entries if not entry["missing"]]
    if not fitted:
        return missing
    others = any(kind["kind"] != MAIN and not kind["kind"] == "dense" for e in fitted for kind in e["kinds"])
    text = (
        "Runs with another k, another R or wider dense layers are no points of a law in N and E. The paper's second"
        " form has two other axes: the compute F (TeraFLOPs of a forward pass of 2,048 tokens) and the parameters per"
        " unit of compute B = P/F. In these every run of a router, whatever its k and R, should lie on one surface:\n\n"
        "```\nlog10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d\n"
        "    1/B̂ = 1/(B − B_min + (1/B_start − 1/B_max)⁻¹) + 1/B_max\n```\n\n"
        "B_min is the least B of the runs. The units of F and B are our reading, and the paper's own constants for this"
        " form are not known to us, so there is nothing to set beside ours."
    )
    names = ("a", "b", "c", "d", "B_start", "B_max", "B_min")
    rows = [(name, *(_with_interval(entry["coefficients"][name]) for entry in fitted)) for name in names] + [
        ("RMSLE", *(figure(entry["rmsle"], ".5f") for entry in fitted)),
        ("RMSLE, one run left out", *(figure(entry["leave_one_out"], ".5f") for entry in fitted)),
        ("runs", *(entry["rows"] for entry in fitted)),
        ("where the optimum lies", *(entry["status"] for entry in fitted)),
    ]
    kinds = [
        (
            router_name(entry["router"]),
            kind["kind"],
            kind["rows"],
            figure(kind["rmsle"], ".5f"),
            f"{figure(kind['percent'], '+.2f')} %",
        )
        for entry in fitted
        for kind in entry["kinds"]
    ]
    caption = (
        "Measured loss against the compute that each run is worth, the F at which the law gives the same loss to a"
        " model of the least B (line). Open marks are runs with another k, R or width than the main grid"
        + ("; where they lie on the line, one law holds them all." if others else ", of which this table has none.")
    )
    return joined(
        text,
        missing,
        shown("utilisation", caption, drawn),
        table(("", *(router_name(entry["router"]) for entry in fitted)), rows),
        "In brackets 95 % intervals, profile likelihood; those of a and d, which move with the unit of B, are rough"
        " ones from the curvature at the optimum. B_min is given, not fitted.",
        f"How far the law misses each kind of run. {_missed(fitted)}",
        table(("router", "kind", "runs", "RMSLE", "measured over fitted, mean"), kinds),
    )


def _missed(fitted: list[dict]) -> str:
    """Return the kinds of runs whose mean miss is larger than the law's misses are as a whole."""
    said = [
        f"{router_name(entry['router'])}, {kind['kind']} ({figure(kind['percent'], '+.2f')} %)"
        for entry in fitted
        for kind in entry["kinds"]
        if abs(kind["percent"]) > entry["rmsle_percent"]
    ]
    if not said:
        return "No kind is missed in the mean by more than single runs are:"
    return f"Missed in the mean by more than single runs are, so not quite held by this law: {listed(said)}."


def _with_interval(entry: dict) -> str:
    value = figure(entry["value"], ".4g") if entry["determined"] else "open"
    return value if entry["low"] is None else f"{value} ({span(entry['low'], entry['high'], '.3g')})"


def transfer(results: dict, drawn: list[str]) -> str:
    """Return the bounded law for every loss column, with what the runs do not determine said instead of a number."""
    if len(results["table"]["loss_columns"]) < 2:
        return "The table has one loss column, so there is nothing on other texts."
    fits = [entry for entry in results["transfer"] if entry["missing"] is None]
    missing = [entry for entry in results["transfer"] if entry["missing"] is not None]
    rows = [
        (
            loss_name(e["loss"]),
            router_name(e["router"]),
            e["rows"],
            *(_known(e, name) for name in RoutedCoefficients._fields),
            figure(e["rmsle"], ".4f"),
            status(e),
        )
        for e in fits
    ]
    gains = [
        (
            loss_name(e["loss"]),
            router_name(e["router"]),
            *(
                f"{figure(gain['percent'][0], '+.1f')} % ({span(gain['percent'][1], gain['percent'][2], '+.1f')})"
                for gain in (e["gains"][0], e["gains"][-1])
            ),
        )
        for e in fits
    ]
    said = " ".join(
        f"{loss_name(e['loss'])}{' with ' + router_name(e['router']) if e['router'] else ''}: {e['missing']}."
        for e in missing
    )
    caption = (
        "The change of the loss from a dense model to the largest E by the law, one panel for each text, with profile"
        " intervals. The further below zero, the more routing helps on that text."
    )
    ends = [results["size_labels"][str(results["table"]["sizes"][i])] for i in (0, -1)]
    blank = listed([str(run["hyper_id"]) for run in results["rows"]["blank"]])
    return joined(
        "The same law, fitted to each loss that the table has: how well do the gains carry over to texts that were not"
        " trained on? *Open* means that the runs do not determine a constant: the fit is at the edge of what is allowed"
        " or an end of its 95 % interval is open, and no number is given for it.",
        said,
        table(("text", "router", "runs", *RoutedCoefficients._fields, "RMSLE", "where the optimum lies"), rows),
        shown("transfer", caption, drawn),
        f"The gain from a dense model to the largest E, at the smallest and the largest size ({ends[0]} and {ends[1]})."
        " It is known even where the constants are not:",
        table(("text", "router", "smallest N", "largest N"), gains),
        f"Runs with a blank loss at the last evaluation: {blank}. They are left out of that loss alone."
        if results["rows"]["blank"]
        else "",
    )


def _known(entry: dict, name: str) -> str:
    """Return a coefficient, or "open" where the runs do not determine it."""
    if not entry["determined"][name]:
        return "open"
    return figure(entry["coefficients"][name], ".4g" if name.startswith("E") else ".4f")
