"""The sections of a report that compare kinds of runs."""

from ..findings.finding import Report, router_name
from ..results.blocks import NOT_DETERMINED, Block, Heading, Table, figure, span

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
