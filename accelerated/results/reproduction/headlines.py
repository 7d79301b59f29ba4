"""The facts of a report's first page: counts, and keys for the direction of each finding.

The rules are our choice. The constants below have the thresholds. The report has the text for each key.
"""

import math

from ..encoding import constants
from ..misfit import CLEAR
from .table import BOUNDED

BAD, EXACT = 5.0, 1e-6
"""In percent of the loss: a law fits badly above the first number, and exactly below the second."""

CHANCE = 2.0
"""In a good fit, a residual is at most this multiple of the scatter over seeds."""

ALIKE = 1.01
"""Two laws count as equally good if their RMSLEs differ by at most this factor."""


def headlines(results: dict) -> dict:
    """Return the results that the first page of the report states.

    Args:
        results: result of `findings.gather`, complete except for this entry.

    Returns:
        {"gains", "fading", "misfit", "printed", "open"}, each None if the table has no data for it:
        gains       {"below", "points", "experts"}: the number of (router, N) where the gain's interval is below 0
        fading      "less", "more" or "open": whether routing helps larger models less or more, for every router
        misfit      {"worst", "kind" (chance, bad, good, exact), "by_law", "unseen", "bent"}: residuals of laws, in
                    percent; how much of them the laws cause (most, part, none; None without repeated runs); and the
                    routers whose residuals are curved in log N
        printed     {"inside", "of", "outside", "rounding"}: printed constants inside and outside the intervals,
                    and whether rounding alone makes the printed laws worse
        open        {"fits", "some", "nothing"}: number of fits to other texts, with some open constant, with all open
        and lists or flags: "jackknife" (intervals of N_cutoff for residuals that are correlated within a size),
        "slopes_fade" (every measured slope is below 0 and rises from the smallest size to the largest).
    """
    laws = [law for law in results["laws"] if law["missing"] is None]
    return {
        "gains": _gains(laws),
        "fading": _fading([law for law in laws if len(law["sizes"]) > 1 and law["status"] != "linear limit"]),
        "misfit": _misfit(laws, results["seed_scatter"], results["forms"]),
        "printed": _printed([law for law in laws if "printed" in law]),
        "open": _open(results["transfer"], results["table"]["loss_column"]),
        "jackknife": [
            {"router": entry["router"], "low": each["jackknife"][0], "high": each["jackknife"][1]}
            for entry in results["other_intervals"]
            for each in entry["quantities"]
            if each["name"] == "N_cutoff" and all(map(math.isfinite, each["jackknife"]))
        ],
        "slopes_fade": _slopes_fade([law["measured_slopes"] for law in results["laws"]]),
    }


def _slopes_fade(measured: list[list[dict]]) -> bool:
    ends = [(slopes[0]["slope"], slopes[-1]["slope"]) for slopes in measured if len(slopes) > 1]
    return bool(ends) and all(first < last < 0 for first, last in ends)


def _gains(laws: list[dict]) -> dict | None:
    gains = [gain for law in laws for gain in law["gains"]]
    if not gains:
        return None
    return {
        "below": sum(gain["high"] < 0 for gain in gains),
        "points": len(gains),
        "experts": sorted({gain["E"] for gain in gains}),
    }


def _fading(laws: list[dict]) -> str | None:
    if not laws:
        return None
    if all(law["coefficients"]["c"]["low"] > 0 for law in laws):
        return "less"
    return "more" if all(law["coefficients"]["c"]["high"] < 0 for law in laws) else "open"


def _misfit(laws: list[dict], scatter: dict | None, forms) -> dict | None:
    if not laws:
        return None
    worst = max(law["rmsle_percent"] for law in laws)
    by_law = _by_law(worst, laws, scatter)
    kind = "chance" if by_law == "none" else "bad" if worst > BAD else "good" if worst > EXACT else "exact"
    unseen = forms[forms["law"] == BOUNDED]["size_percent"].max()
    bent = [law["router"] for law in laws if law["misfit"]["bend"] and law["misfit"]["bend"]["p"] < CLEAR]
    unseen = None if unseen != unseen else unseen
    return {"worst": worst, "kind": kind, "by_law": by_law, "unseen": unseen, "bent": bent}


def _by_law(worst: float, laws: list[dict], scatter: dict | None) -> str | None:
    if scatter is None:
        return None
    if worst > CHANCE * scatter["percent"]:
        return "most"
    tests = [law["misfit"]["beyond_seeds"] for law in laws]
    return "part" if any(test and test["p"] < CLEAR for test in tests) else "none"


def _printed(laws: list[dict]) -> dict | None:
    if not laws:
        return None
    inside = [(law["router"], *entry) for law in laws for entry in law["printed"]["inside"].items()]
    outside = [{"router": router, "name": name} for router, name, held in inside if not held]
    rounding = all(law["printed"]["best_in_box"] <= ALIKE * law["rmsle"] for law in laws)
    facts = {"inside": len(inside) - len(outside), "of": len(inside)}
    return facts | {"outside": outside, "rounding": rounding}


def _open(transfer: list[dict], main: str) -> dict | None:
    fits = [entry for entry in transfer if entry["missing"] is None and entry["loss"] != main]
    if not fits:
        return None
    known = [[each["determined"] for each in constants(entry).values()] for entry in fits]
    return {
        "fits": len(fits),
        "some": sum(not all(each) for each in known),
        "nothing": [
            {"loss": entry["loss"], "router": entry["router"]}
            for entry, each in zip(fits, known, strict=True)
            if not any(each)
        ],
    }
