"""Do the paper's recommendations hold? Each has a verdict from the runs, with the reason and the rule.

The verdicts are "supported", "supported in part", "open" (the interval includes zero), "not supported" and "cannot be
judged" (the table lacks the runs). Their rules are our choice.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas

from ...results.blocks import Block, count, figure
from ...wording import plural
from ..finding import Finding, Report, bullets, capital, main_gains, router_name, table
from . import experts, experts_per_token, pairs, routing_frequency

LARGEST = 1.35e9
"""Parameters: a bound above "about 1.3B"."""

CANNOT = "cannot be judged"

CERTAIN = (
    "*Certain* means that the whole 95 % interval is on one side of zero; *open* means that the interval includes zero."
)


def judge(results: dict) -> pandas.DataFrame:
    """Check each recommendation of the paper.

    Returns:
        key, words, checked, rule (see `Advice`), verdict, because; no rows if nothing can be judged.
    """
    rows = []
    for entry in ADVICE:
        rows.append((*entry[:3], *(entry.judge(results) or (CANNOT, entry.lacking)), entry.rule))
    frame = pandas.DataFrame(rows, columns=["key", "words", "checked", "verdict", "because", "rule"])
    return frame if (frame["verdict"] != CANNOT).any() else frame.iloc[:0]


class Advice(NamedTuple):
    """A recommendation of the paper."""

    key: str
    words: str
    checked: bool  # whether the published text has these words; otherwise they are only the usual quotation
    judge: Callable[[dict], tuple[str, str] | None]  # the verdict and its reason; None if the table lacks the runs
    lacking: str  # the missing runs if there is no verdict
    rule: str


def _size(results: dict) -> tuple[str, str] | None:
    """Judge "use routing for models of up to about 1.3B parameters" by the gain of the largest E at these sizes."""
    gains = main_gains(results).query("N <= @LARGEST")
    if gains.empty:
        return None
    below, above, least = (gains["high"] < 0).sum(), (gains["low"] > 0).sum(), gains.loc[gains["value"].idxmax()]
    reason = (
        f"by the law, the largest E certainly lowers the loss at {below} of {len(gains)} points (router and size); the "
        f"smallest gain is {figure(least['percent'], '+.1f')} % ({router_name(least['router'])}, "
        f"N = {count(least['N'])}, E = {least['E']})"
    )
    if below == len(gains):
        near = gains["N"].max() >= LARGEST / 2
        return ("supported", reason) if near else ("supported in part", f"{reason}; no size is near 1.3B")
    if above:
        return "not supported", f"{reason}; the largest E certainly raises the loss at {plural(above, 'point')}"
    return "supported in part" if below else "open", reason


ADVICE = (
    Advice(
        "size", "Use routing for models of up to about 1.3B parameters (N).", False, _size,
        lacking="no router has a law and runs of a size up to 1.3B",
        rule="supported if the gain at the largest E is certain at every trained N up to 1.3B, and one of these N is "
        "at least 0.675B. Not supported if the largest E certainly raises the loss at some N. Otherwise supported in "
        "part if the gain is certain at some N",
    ),
    Advice(
        "experts", "Use E = 64 to 128 experts.", False, experts.recommended,
        lacking="no router has runs with E from 64 to 128 and also with a larger E",
        rule="supported if no step beyond E = 128 has a certain gain. Supported in part if such a step has a certain "
        "gain, but E = 128 reaches at least two thirds of the fall of log L and each later doubling gains less than "
        "the best earlier one. Otherwise not supported. If the routers differ, supported in part",
    ),
    Advice(
        "k", "Send each token to one expert (k = 1).", False, experts_per_token.recommended,
        lacking="the table lacks runs with known FLOPs that differ only in k, or a larger model with k = 1",
        rule="two changes are compared by their gain, the fall of log L per tenfold FLOPs: more experts per token (k), "
        "and the next larger model with k = 1. Supported if more experts certainly gain less at every k. Supported in "
        "part if they certainly gain less at some k and certainly more at no k. Not supported if they certainly gain "
        "more at every k",
    ),
    Advice(
        "router", "Use S-BASE as the default router.", False, pairs.recommended,
        lacking="S-BASE shares no N and E with another router",
        rule="S-BASE is compared with each other router by the mean loss over the shared (N, E); each size counts "
        "once. Supported if S-BASE is certainly lower than every other router. Supported in part if S-BASE is "
        "certainly lower than some and certainly higher than none. Not supported if S-BASE is certainly higher than at "
        "least one",
    ),
    Advice(
        "frequency", "Route half of the blocks or more (R from 0.5 to 1).", True, routing_frequency.recommended,
        lacking="no two runs differ only in R, where one R is below 0.5 and the other is at least 0.5",
        rule="supported if, for every router, the mean loss at R below 0.5 is certainly higher than at the usual R. "
        "Supported in part if it is certainly higher for some routers and certainly lower for none. Not supported if "
        "it is certainly lower for at least one router",
    ),
)  # fmt: skip
"""The recommendations of the paper. The rules are our choice; "certain" means that the whole interval agrees."""


def section(report: Report) -> list[Block]:
    """Return the recommendations with verdicts, and in the full report the rules."""
    frame = report.results["advice"]
    judged = frame[frame["verdict"] != CANNOT]
    columns = {
        "recommendation": lambda row: row.words,
        "these runs": lambda row: f"**{row.verdict}**",
        "because": lambda row: row.because,
    }
    if not report.full:
        return [CERTAIN, table(judged, columns)._replace(words=(0, 1, 2))]
    return [
        f"The verdicts follow from the numbers by the rules below; the rules are our choice. {CERTAIN} Only the "
        "recommendation on routed blocks was checked against the published text.",
        table(frame, columns)._replace(words=(0, 1, 2)),
        "The rules:",
        *bullets(f"{row.words} {capital(row.rule)}." for row in judged.itertuples()),
    ]


FINDING = Finding(
    "advice", "The recommendations", lambda results, source: {"advice": judge(results)}, section, short=True
)
