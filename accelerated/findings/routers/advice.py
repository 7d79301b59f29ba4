"""Do the paper's recommendations hold? Each has a verdict from the runs, with the reason and the rule.

The verdicts are "supported", "supported in part", "open" (the interval includes zero), "not supported" and "cannot be
judged" (the table lacks the runs). Their rules are our choice.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas

from ...results.blocks import Block, count, figure
from ...wording import plural
from ..finding import Finding, Report, bullets, capital, listed, main_gains, names, router_name, table
from .experts_per_token import LARGER
from .pairs import recommended
from .routing_frequency import LEAST

LARGEST = 1.35e9
"""Parameters: a bound above "about 1.3B"."""

LOW_EXPERTS, HIGH_EXPERTS = 64, 128
MOST_OF_THE_FALL = 200 / 3  # percent
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


Judged = tuple[str, str] | None
"""A verdict and its reason; None if the table lacks the runs."""


class Advice(NamedTuple):
    """A recommendation of the paper."""

    key: str
    words: str
    checked: bool  # whether the published text has these words; otherwise they are only the usual quotation
    judge: Callable[[dict], Judged]
    lacking: str  # the missing runs if there is no verdict
    rule: str


def _size(results: dict) -> Judged:
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


def _experts(results: dict) -> Judged:
    """Judge "64 to 128 experts" by the share of the fall in loss that they reach, and by the gain of more experts."""
    verdicts, reached = {}, {}
    for router, rows in results["doublings"].groupby("router"):
        inside = rows[rows["E"].between(LOW_EXPERTS, HIGH_EXPERTS) & rows["reached"].notna()]
        steps = rows[rows["sizes"] > 0]
        beyond, below = steps[steps["before"] >= HIGH_EXPERTS], steps[steps["E"] <= HIGH_EXPERTS]
        if inside.empty or beyond.empty or below.empty:
            continue
        reached[router], helps = inside.iloc[-1], (beyond["high"] < 0).any()
        fades = (beyond["per_doubling"] > below["per_doubling"].min()).all()
        most = fades and reached[router]["reached"] >= MOST_OF_THE_FALL
        verdicts[router] = "supported in part" if helps and most else "not supported" if helps else "supported"
    if not verdicts:
        return None
    shares = listed(f"{figure(row['reached'], '.0f')} % ({router_name(name)})" for name, row in reached.items())
    still = [router for router, verdict in verdicts.items() if verdict != "supported"]
    different = set(verdicts.values())
    verdict = different.pop() if len(different) == 1 else "supported in part"
    return verdict, (
        f"at E = {listed(sorted({row['E'] for row in reached.values()}))}, log L has fallen by {shares} of its fall "
        f"from dense to the largest E; a larger E certainly lowers the loss further for "
        f"{names(still) if still else 'no router'}"
    )


def _k(results: dict) -> Judged:
    """Judge "one expert per token" by the gain per FLOPs of k above 1, compared with a larger model."""
    frame, verdict = results["gains_per_flop"], "open"
    growth = frame[frame["against"] == LARGER]
    if growth.empty:
        return None
    if (growth["low"] > 0).all():
        verdict = "supported"
    elif (growth["high"] < 0).all():
        verdict = "not supported"
    elif growth["low"].notna().all() and (growth["low"] > 0).any() and not (growth["high"] < 0).any():
        verdict = "supported in part"
    return verdict, "; ".join(
        f"k = {row.k} gains less per FLOP than {row.against} in {row.less} of {row.cells} cells"
        for row in frame.itertuples()
    )


def _frequency(results: dict) -> Judged:
    """Judge "half of the blocks routed" by the changes in loss with fewer routed blocks."""
    frame = results["routing_frequency"]
    means = frame[frame["N"].isna()]
    below, more = means[means["R"].isna()], means[means["R"] > means["usual"]]
    if below.empty or below["usual"].iloc[0] < LEAST:
        return None
    verdict, higher = "open", below["low"] > 0
    if (below["high"] < 0).any():
        verdict = "not supported"
    elif higher.any():
        verdict = "supported" if higher.all() else "supported in part"
    reasons = [
        f"{router_name(row.router)}: the loss is higher with R below 0.5 in {row.cells - row.lower} of {row.cells} "
        "cells"
        for row in below.itertuples()
    ]
    reasons += [
        f"{router_name(row.router)}: the loss is lower with R = {row.R:.3g} than with R = {row.usual:.3g} in "
        f"{row.lower} of {row.cells} cells"
        for row in more.itertuples()
    ]
    return verdict, "; ".join(reasons)


ADVICE = (
    Advice(
        "size", "Use routing for models of up to about 1.3B parameters (N).", False, _size,
        lacking="no router has a law and runs of a size up to 1.3B",
        rule="supported if the gain at the largest E is certain at every trained N up to 1.3B, and one of these N is "
        "at least 0.675B. Not supported if the largest E certainly raises the loss at some N. Otherwise supported in "
        "part if the gain is certain at some N",
    ),
    Advice(
        "experts", "Use E = 64 to 128 experts.", False, _experts,
        lacking="no router has runs with E from 64 to 128 and also with a larger E",
        rule="supported if no step beyond E = 128 has a certain gain. Supported in part if such a step has a certain "
        "gain, but E = 128 reaches at least two thirds of the fall of log L and each later doubling gains less than "
        "the best earlier one. Otherwise not supported. If the routers differ, supported in part",
    ),
    Advice(
        "k", "Send each token to one expert (k = 1).", False, _k,
        lacking="the table lacks runs with known FLOPs that differ only in k, or a larger model with k = 1",
        rule="two changes are compared by their gain, the fall of log L per tenfold FLOPs: more experts per token (k), "
        "and the next larger model with k = 1. Supported if more experts certainly gain less at every k. Supported in "
        "part if they certainly gain less at some k and certainly more at no k. Not supported if they certainly gain "
        "more at every k",
    ),
    Advice(
        "router", "Use S-BASE as the default router.", False, lambda results: recommended(results["pairs"]),
        lacking="S-BASE shares no N and E with another router",
        rule="S-BASE is compared with each other router by the mean loss over the shared (N, E); each size counts "
        "once. Supported if S-BASE is certainly lower than every other router. Supported in part if S-BASE is "
        "certainly lower than some and certainly higher than none. Not supported if S-BASE is certainly higher than at "
        "least one",
    ),
    Advice(
        "frequency", "Route half of the blocks or more (R from 0.5 to 1).", True, _frequency,
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
