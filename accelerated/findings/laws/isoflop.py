"""Which size is best for a budget? Runs of several sizes with about the same training FLOPs."""

from ...results.blocks import Block
from ...results.planning.isoflop import ISOFLOP_CAPTION, ISOFLOP_HEAD, profile_blocks
from ...results.plotting import plot_profiles
from ..finding import Finding, Report


def section(report: Report) -> list[Block]:
    """Return the best sizes at each budget, by parabolas and by a law that uses size and tokens."""
    return [
        "Runs of several sizes used about the same training FLOPs. The law L = a/N^alpha + b/D^beta + c is fitted "
        "separately to each kind of model.",
        *report.figure("isoflop", "Losses at equal FLOPs", ISOFLOP_CAPTION),
        *profile_blocks(report.results["isoflop"]),
    ]


FINDING = Finding(
    "isoflop",
    ISOFLOP_HEAD,
    lambda results, source: {"isoflop": source.profiles()},
    section,
    figures={"isoflop": lambda results, runs: plot_profiles(results["isoflop"]) if results["isoflop"] else None},
    short=True,
)
