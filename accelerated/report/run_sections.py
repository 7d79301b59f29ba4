"""The sections of a report that compare runs: routers, experts per token, routed blocks, compute."""

from ..findings.finding import Report, router_name
from ..results.blocks import NOT_DETERMINED, Block, Heading, Table, figure, share, span


def _change(interval: dict) -> list[str]:
    ends = "not known" if interval["low"] is None else f"{span(interval, '+.2f')} %"
    return [f"{figure(interval['mean'], '+.2f')} %", ends]


def experts_per_token_section(report: Report) -> list[Block]:
    """Return the gain per FLOPs of more experts per token, compared with other uses of FLOPs."""
    ablation = report.results["experts_per_token"]
    if not ablation["cells"]:
        return []
    rows = [
        [
            f"{router_name(cell['router'])}, E = {cell['E']}",
            report.size(cell["N"]),
            f"k = {point['k']}",
            *_bought(point),
        ]
        + [figure(cell["growth"], ".4f", "")]
        for cell in ablation["cells"]
        for point in cell["points"]
    ]
    rows += [
        ["dense", report.size(entry["N"]), f"FFN ×{point['flop_increase']:.3g}", *_bought(point), ""]
        for entry in ablation["dense"]
        for point in entry["points"]
    ]
    heads = ["model", "N", "what changes", "loss", "change", "TeraFLOPs", "log10 L per tenfold FLOPs"]
    return [
        Heading("Experts per token"),
        "More experts per token cost more FLOPs. So the table gives the gain per cost: the change of log10 L per "
        "tenfold forward FLOPs (more negative is better). It also shows two other ways to spend FLOPs: a dense model "
        "with wider feed-forward layers in half of its blocks (×2, ×4), and the next larger model with the same E and "
        "k = 1.",
        *report.figure(
            "k",
            "Loss against the cost of a forward pass",
            "At k = 1, 2 and more, and for dense models with wider feed-forward layers (×2, ×4). A steeper line "
            "means a larger gain per FLOP.",
        ),
        Table([*heads, "next larger N: log10 L per tenfold FLOPs"], rows, keys=3),
        *_versus(ablation),
    ]


def _bought(point: dict) -> list[str]:
    first = point["per_decade"] is None and not point["percent"]
    return [
        figure(point["loss"], ".3f"),
        "" if first else f"{figure(point['percent'], '+.2f')} %",
        figure(point["flops"], ".3f"),
        figure(point["per_decade"], ".4f", ""),
    ]


def _versus(ablation: dict) -> list[Block]:
    others = {"the next larger model": ablation["versus_growth"], "wider dense layers": ablation["versus_dense"]}
    rows = [
        [name, f"k = {k}", str(e["values"]), str(e["less"]), figure(e["mean"], "+.4f"), span(e, "+.4f")]
        for name, versus in others.items()
        for k, e in versus.items()
    ]
    if not rows:
        return [
            "The table has no larger model with k = 1 and no wider dense model, so a larger k cannot be compared "
            "with them."
        ]
    return [
        "The next table compares a larger k with the other ways, in log10 L per tenfold FLOPs. Where the difference "
        "is above zero, the larger k gains less. Each size counts once.",
        Table(["against", "k", "cells", "k gains less in", "mean difference", "95 % interval"], rows, keys=2),
    ]


def frequency_section(report: Report) -> list[Block]:
    ablation = report.results["routing_frequency"]
    if not ablation["cells"]:
        return []
    shares = sorted({point["R"] for cell in ablation["cells"] for point in cell["points"]})
    rows = []
    for cell in ablation["cells"]:
        losses = {point["R"]: figure(point["loss"], ".3f") for point in cell["points"]}
        first = [router_name(cell["router"]), report.size(cell["N"]), str(cell["E"])]
        rows.append([*first, *(losses.get(value, "") for value in shares)])
    changes = [
        [router_name(e["router"]), share(e["R"]), *_change(e["percent"]), str(e["cells"]), str(e["lower"])]
        for e in ablation["changes"]
    ]
    short = " Runs with impossible labels are excluded, so some lines are short."
    suspect = short if report.results["rows"]["suspect"] else ""
    usual = share(ablation["usual"])
    return [
        Heading("Routing frequency"),
        f"R is the share of the blocks that are routed; the main runs have R = {usual}. More routed blocks add almost "
        "no FLOPs but many parameters. Losses at k = 1:",
        *report.figure(
            "frequency",
            "Loss against the share of the blocks that are routed",
            f"One line for each router and E.{suspect}",
        ),
        Table(["router", "N", "E", *(f"R = {share(value)}" for value in shares)], rows, keys=3),
        f"The next table compares each R with R = {usual}. The change is a mean over the pairs of N and E; its "
        "interval assumes that the pairs are independent:",
        Table(["router", "R", "change of the loss", "95 % interval", "cells", "loss lower in"], changes, keys=2),
    ]


COMPUTE_LAW = """```
log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d
    1/B̂ = 1/(B − B_min + (1/B_start − 1/B_max)⁻¹) + 1/B_max
```"""


def compute_section(report: Report) -> list[Block]:
    """Return the (F, B) law, which covers every kind of run."""
    held = [entry for entry in report.results["utilisation"] if entry["missing"] is None]
    if not held or not report.results["headlines"]["other_kinds"]:
        return []
    columns = [[_constant_of(entry, name) for name in COMPUTE_NAMES] for entry in held]
    for column, entry in zip(columns, held, strict=True):
        column += [figure(entry["rmsle"], ".5f"), figure(entry["leave_one_out"], ".5f"), str(entry["rows"])]
        column.append(entry["status"])
    labels = [*COMPUTE_NAMES, "RMSLE", "RMSLE, one run left out", "runs", "where the optimum lies"]
    rows = [[label, *(column[i] for column in columns)] for i, label in enumerate(labels)]
    kinds = [
        [router_name(entry["router"]), kind["kind"], str(kind["rows"]), figure(kind["rmsle"], ".5f")]
        + [f"{figure(kind['percent'], '+.2f')} %"]
        for entry in held
        for kind in entry["kinds"]
    ]
    return [
        Heading("One law for every kind of run"),
        "A law that uses N and E does not cover runs with another k, another R or wider dense layers. The paper's "
        "second form uses two other variables: the compute F (TeraFLOPs of a forward pass of 2,048 tokens) and the "
        "parameters per unit of compute, B = P/F. This form should describe every run of a router:",
        COMPUTE_LAW,
        "B_min is the smallest B of the runs. The units of F and B are our choice; we do not know the paper's "
        "constants for this form.",
        *report.figure(
            "utilisation",
            "Measured loss against the equivalent compute of each run",
            "The equivalent compute of a run is the F of a model with B = B_min and the same loss by the law (line). "
            "Open marks are runs with another k, R or width than the main grid; if they lie on the line, one law "
            "describes all runs.",
        ),
        Table(["", *(router_name(entry["router"]) for entry in held)], rows),
        "Brackets hold 95 % profile likelihood intervals. B_min is not fitted.",
        _kinds_off(report.results["headlines"]["kinds_off"]),
        Table(["router", "kind", "runs", "RMSLE", "mean of measured loss / fitted loss"], kinds, keys=2),
    ]


COMPUTE_NAMES = ("a", "b", "c", "d", "B_start", "B_max", "B_min")


def _constant_of(entry: dict, name: str) -> str:
    coefficient = entry["coefficients"][name]
    value = figure(coefficient["value"], ".4g") if coefficient["determined"] else NOT_DETERMINED
    return value if coefficient["low"] != coefficient["low"] else f"{value} ({span(coefficient, '.3g')})"


def _kinds_off(kinds: list[dict]) -> str:
    if not kinds:
        return "The mean residual of each kind is no larger than the residuals of single runs:"
    shown = [f"{router_name(e['router'])}, {e['kind']} ({figure(e['percent'], '+.2f')} %)" for e in kinds]
    return (
        "The law does not quite hold for some kinds, because their mean residual is larger than the residuals of "
        f"single runs: {'; '.join(shown)}."
    )
