"""The paper's recommendations, each with what a table says of it and a verdict that follows from those numbers alone.

The rules are our choice and stand beside every verdict. Words: "supported", "supported in part", "open" (the runs point
neither way with their interval), "not supported", "cannot be said" (the runs for it are not there).
"""

from . import paper
from .ablations import LEAST_FREQUENCY
from .words import count, listed
from .words import router_name as _name

LARGEST = 1.35e9
"""Parameters; "about 1.3B" with a little room."""

LOW_EXPERTS, HIGH_EXPERTS = 64, 128
MOST_OF_THE_FALL = 200 / 3  # percent
DEFAULT_ROUTER = "S-Base"
CANNOT = "cannot be said"


def advice(results: dict) -> list[dict]:
    """Return, for each recommendation, {"key", "words", "checked", "rule", "verdict", "because", "evidence"}.

    Args:
        results: of `reproduction.gather`, as far as it is filled: laws, pairs, doublings and the ablations.
    """
    return [entry._asdict() | _JUDGES[entry.key](results) for entry in paper.ADVICE]


def _size(results: dict) -> dict:
    rule = (
        "supported if at every trained N up to 1.3B the gain of the law at the largest E is below 0 with its interval"
    )
    gains = [
        gain | {"router": law["router"]}
        for law in results["laws"]
        if law["missing"] is None
        for gain in law["gains"]
        if gain["N"] <= LARGEST
    ]
    if not gains:
        return _said(rule, CANNOT, "no router has a law at a size up to 1.3B", {})
    good = [gain for gain in gains if gain["high"] < 0]
    bad = [gain for gain in gains if gain["low"] > 0]
    top = max(gain["N"] for gain in gains)
    evidence = {
        "gains": [{key: gain[key] for key in ("router", "N", "E", "percent")} for gain in gains],
        "below": len(good),
        "of": len(gains),
        "largest_size": top,
    }
    least = max(gains, key=lambda gain: gain["value"])
    because = (
        f"by the law E = {least['E']} lowers the loss with its interval at {len(good)} of {len(gains)} points"
        f" (router and size), least for {_name(least['router'])} at N = {count(least['N'])}:"
        f" {least['percent'][0]:+.1f} %"
    )
    if len(good) == len(gains):
        reach = "supported" if top >= LARGEST / 2 else "supported in part"
        return _said(rule, reach, because + ("" if top >= LARGEST / 2 else ", none of them near 1.3B"), evidence)
    if bad:
        return _said(rule, "not supported", because + f" and above 0 at {len(bad)}", evidence)
    return _said(rule, "supported in part" if good else "open", because, evidence)


def _experts(results: dict) -> dict:
    rule = (
        "supported if no step beyond E = 128 lowers the loss with its interval; in part if one does, but E = 128"
        " brings at least two thirds of the fall of log L to the largest E, and every doubling beyond it less than"
        " the best doubling below it; else not"
    )
    verdicts, evidence = [], []
    for entry in results["doublings"]:
        inside = [point for point in entry["reached"] if LOW_EXPERTS <= point["E"] <= HIGH_EXPERTS]
        beyond = [step for step in entry["steps"] if step["from"] >= HIGH_EXPERTS]
        below = [step for step in entry["steps"] if step["to"] <= HIGH_EXPERTS]
        if not inside or not beyond or not below:
            continue
        share = inside[-1]
        helps = any(step["percent"]["high"] is not None and step["percent"]["high"] < 0 for step in beyond)
        best = min(step["per_doubling"] for step in below)
        fades = all(step["per_doubling"] > best for step in beyond)
        verdict = (
            "supported"
            if not helps
            else "supported in part"
            if (share["percent"] >= MOST_OF_THE_FALL and fades)
            else "not supported"
        )
        verdicts.append(verdict)
        evidence.append(
            {"router": entry["router"], "reached": inside, "beyond": beyond, "best_doubling": best, "verdict": verdict}
        )
    if not verdicts:
        return _said(rule, CANNOT, "no router has runs between E = 64 and 128 and beyond", {})
    shares = listed([f"{e['reached'][-1]['percent']:.0f} % ({_name(e['router'])})" for e in evidence])
    more = [_name(e["router"]) for e in evidence if e["verdict"] != "supported"]
    because = (
        f"E = {listed(sorted({str(e['reached'][-1]['E']) for e in evidence}))} brings {shares} of the fall of log L to"
        f" the largest E; going on from there lowers the loss with its interval for {listed(more)}"
    )
    return _said(rule, _together(verdicts), because, {"routers": evidence})


def _k(results: dict) -> dict:
    rule = (
        "supported if more experts per token lower the loss by less per tenfold FLOPs than the next larger model"
        " with k = 1 does, with the interval of the mean difference, at every k; not supported if by more at every"
        " k; in part if by less at one k and at none by more"
    )
    versus = results["experts_per_token"]["versus_growth"]
    if not versus:
        return _said(rule, CANNOT, "no runs with known FLOPs differ in k alone beside a larger model with k = 1", {})
    known = [entry for entry in versus.values() if entry["low"] is not None]
    verdict = "open"
    if known and len(known) == len(versus):
        if all(entry["low"] > 0 for entry in known):
            verdict = "supported"
        elif all(entry["high"] < 0 for entry in known):
            verdict = "not supported"
        elif any(entry["low"] > 0 for entry in known) and not any(entry["high"] < 0 for entry in known):
            verdict = "supported in part"
    because = "; ".join(
        f"k = {k} buys less per FLOP than a larger model in {entry['less']} of {entry['values']} cells"
        for k, entry in versus.items()
    )
    beside = results["experts_per_token"]["versus_dense"]
    if beside:
        because += "; than wider dense layers in " + ", ".join(
            f"{entry['less']} of {entry['values']} (k = {k})" for k, entry in beside.items()
        )
    return _said(rule, verdict, because, {"versus_growth": versus, "versus_dense": beside})


def _router(results: dict) -> dict:
    rule = (
        "supported if the mean loss of S-BASE over the shared (N, E) is below that of every other router with its"
        " interval (each size counted once); in part if below some and above none; not supported if above"
        " one"
    )
    pairs = [pair for pair in results["pairs"] if DEFAULT_ROUTER in (pair["first"], pair["second"])]
    if not pairs:
        return _said(rule, CANNOT, "S-BASE is not there beside another router at the same N and E", {})
    evidence = []
    for pair in pairs:
        first = pair["first"] == DEFAULT_ROUTER
        other, sign = (pair["second"], 1) if first else (pair["first"], -1)
        ends = [pair["overall"][end] for end in ("low", "high")]
        low, high = (None, None) if ends[0] is None else sorted(sign * end for end in ends)
        way = "open" if low is None or low <= 0 <= high else "lower" if high < 0 else "higher"
        cells = [sign * cell["percent"] for cell in pair["cells"]]
        sizes = [
            sign * entry["percent"]["low" if sign < 0 else "high"]
            for entry in pair["sizes"]
            if entry["percent"]["high"] is not None
        ]
        evidence.append(
            {
                "other": other,
                "mean": sign * pair["overall"]["mean"],
                "low": low,
                "high": high,
                "way": way,
                "lower_in": sum(value < 0 for value in cells),
                "cells": len(cells),
                "lower_sizes": sum(value < 0 for value in sizes),
                "sizes": len(sizes),
            }
        )
    ways = [entry["way"] for entry in evidence]
    verdict = (
        "not supported"
        if "higher" in ways
        else "supported"
        if set(ways) == {"lower"}
        else "supported in part"
        if "lower" in ways
        else "open"
    )
    because = "; ".join(
        f"S-BASE against {_name(e['other'])}: {e['mean']:+.2f} % in the mean"
        + ("" if e["low"] is None else f" ({e['low']:+.2f} to {e['high']:+.2f})")
        + f", lower in {e['lower_in']} of {e['cells']} cells"
        + (f" and with its interval at {e['lower_sizes']} of {e['sizes']} sizes" if e["sizes"] else "")
        for e in evidence
    )
    return _said(rule, verdict, because, {"against": evidence})


def _frequency(results: dict) -> dict:
    rule = (
        "supported if for every router the loss with R below 0.5 is above that with the usual R, with the interval"
        " of the mean difference over the cells; not supported if it is below for one"
    )
    ablation = results["routing_frequency"]
    below = ablation["below_half"]
    if not below or ablation["usual"] < LEAST_FREQUENCY:
        return _said(rule, CANNOT, "no runs differ in R alone, below 0.5 beside 0.5 or more", {})
    ends = [(entry["percent"]["low"], entry["percent"]["high"]) for entry in below]
    known = [(low, high) for low, high in ends if low is not None]
    verdict = "open"
    if any(high < 0 for _, high in known):
        verdict = "not supported"
    elif any(low > 0 for low, _ in known):
        verdict = "supported" if all(low is not None and low > 0 for low, _ in ends) else "supported in part"
    because = "; ".join(
        f"{_name(entry['router'])}: the loss is higher with R below 0.5 in"
        f" {entry['cells'] - entry['lower']} of {entry['cells']} cells"
        for entry in below
    )
    for change in ablation["changes"]:
        if change["R"] > ablation["usual"]:
            because += (
                f"; {_name(change['router'])} with R = {change['R']:g} is lower than with R ="
                f" {ablation['usual']:g} in {change['lower']} of {change['cells']}"
            )
    return _said(rule, verdict, because, {"below_half": below, "changes": ablation["changes"]})


_JUDGES = {"size": _size, "experts": _experts, "k": _k, "router": _router, "frequency": _frequency}


def _said(rule: str, verdict: str, because: str, evidence: dict) -> dict:
    return {"rule": rule, "verdict": verdict, "because": because, "evidence": evidence}


def _together(verdicts: list[str]) -> str:
    """Return one verdict for several routers: theirs if they agree, in part if one supports, else the worst."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "supported in part" if any(verdict.startswith("supported") for verdict in verdicts) else "not supported"
