"""Sentences on the evidence and the rule for the verdict on each recommendation of the paper."""

from ..results.blocks import Block, Table, count, figure, span
from .outline import listed, names, router_name

CANNOT = "cannot be said"

LACKING = {
    "size": "no router has a law at a size up to 1.3B",
    "experts": "no router has runs between E = 64 and 128 and beyond",
    "k": "no runs with known FLOPs differ only in k and have a larger model with k = 1",
    "router": "S-BASE and another router have no run of the same N and E",
    "frequency": "no runs differ only in R, with one R below 0.5 and one at 0.5 or more",
}
"""The missing runs for each recommendation without a verdict."""

RULES = {
    "size": "supported if the gain at the largest E is certain at every trained N up to 1.3B",
    "experts": "supported if no step beyond E = 128 has a certain gain; in part if one has, but E = 128 reaches at "
    "least two thirds of the fall of log L, and each later doubling gains less than the best earlier one; else not",
    "k": "compares the gain per tenfold FLOPs of more experts per token with that of the next larger model with k = 1; "
    "supported if it is certainly smaller at every k; not supported if certainly larger at every k; in part if "
    "certainly smaller at one k and certainly larger at none",
    "router": "compares the mean loss of S-BASE over the shared (N, E) with each other router (each size counts once); "
    "supported if S-BASE is certainly lower than all; in part if lower than some and higher than none; not supported "
    "if certainly higher than one",
    "frequency": "supported if, for every router, R below 0.5 certainly has a higher mean loss than the usual R; not "
    "supported if certainly lower for one",
}
"""The rules, which are our choice; "certain" means that the whole interval agrees."""


def because(entry: dict) -> str:
    """Return the reason for the verdict on a recommendation, an entry of `advice`."""
    if entry["verdict"] == CANNOT:
        return LACKING[entry["key"]]
    return _BECAUSE[entry["key"]](entry["evidence"])


def judged(results: dict) -> list[dict]:
    """Return the recommendations that the runs can judge."""
    return [entry for entry in results["advice"] if entry["verdict"] != CANNOT]


def verdict_table(entries: list[dict]) -> list[Block]:
    """Return recommendations with their verdicts and reasons."""
    rows = [[entry["words"], f"**{entry['verdict']}**", because(entry)] for entry in entries]
    return [Table(["recommendation", "these runs", "because"], rows, words=(0, 1, 2))]


def _size(evidence: dict) -> str:
    least = evidence["least"]
    reason = (
        f"by the law E = {least['E']} lowers the loss with its interval at {evidence['below']} of {evidence['of']} "
        f"points (router and size), least for {router_name(least['router'])} at N = {count(least['N'])}: "
        f"{figure(least['percent'][0], '+.1f')} %"
    )
    if evidence["above"]:
        return f"{reason}, and above 0 at {evidence['above']}"
    return (
        f"{reason}, none of them near 1.3B" if evidence["below"] == evidence["of"] and not evidence["near"] else reason
    )


def _experts(evidence: dict) -> str:
    routers = evidence["routers"]
    shares = listed(f"{figure(r['reached'][-1]['percent'], '.0f')} % ({router_name(r['router'])})" for r in routers)
    still = [r["router"] for r in routers if r["verdict"] != "supported"]
    return (
        f"E = {listed(evidence['at'])} brings {shares} of the fall of log L to the largest E; going on from there "
        f"lowers the loss with its interval for {names(still)}"
    )


def _k(evidence: dict) -> str:
    growth, dense = evidence["versus_growth"], evidence["versus_dense"]
    reasons = [
        f"k = {k} buys less per FLOP than a larger model in {e['less']} of {e['values']} cells"
        for k, e in growth.items()
    ]
    if dense:
        wider = ", ".join(f"{e['less']} of {e['values']} (k = {k})" for k, e in dense.items())
        reasons.append(f"than wider dense layers in {wider}")
    return "; ".join(reasons)


def _against(entry: dict) -> str:
    ends = "" if entry["low"] is None else f" ({span(entry, '+.2f')})"
    sizes = f" and with its interval at {entry['lower_sizes']} of {entry['sizes']} sizes" if entry["sizes"] else ""
    return (
        f"S-BASE against {router_name(entry['other'])}: {figure(entry['mean'], '+.2f')} % in the mean{ends}, lower in "
        f"{entry['lower_in']} of {entry['cells']} cells{sizes}"
    )


def _frequency(evidence: dict) -> str:
    reasons = [
        f"{router_name(e['router'])}: the loss is higher with R below 0.5 in {e['higher']} of {e['cells']} cells"
        for e in evidence["below_half"]
    ]
    reasons += [
        f"{router_name(e['router'])} with R = {e['R']:.3g} is lower than with R = {evidence['usual']:.3g} in "
        f"{e['lower']} of {e['cells']}"
        for e in evidence["above"]
    ]
    return "; ".join(reasons)


_BECAUSE = {
    "size": _size,
    "experts": _experts,
    "k": _k,
    "router": lambda evidence: "; ".join(map(_against, evidence["against"])),
    "frequency": _frequency,
}
