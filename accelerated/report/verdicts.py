"""Why the verdict on a recommendation of the paper is what it is, and by which rule: sentences from its evidence."""

from ..results.blocks import Block, Table, count, figure, span
from .outline import listed, names, router_name

CANNOT = "cannot be said"

LACKING = {
    "size": "no router has a law at a size up to 1.3B",
    "experts": "no router has runs between E = 64 and 128 and beyond",
    "k": "no runs with known FLOPs differ in k alone beside a larger model with k = 1",
    "router": "S-BASE is not there beside another router at the same N and E",
    "frequency": "no runs differ in R alone, below 0.5 beside 0.5 or more",
}
"""What is missing where a recommendation cannot be judged."""

RULES = {
    "size": "supported if at every trained N up to 1.3B the gain of the law at the largest E is below 0 with its "
    "interval",
    "experts": "supported if no step beyond E = 128 lowers the loss with its interval; in part if one does, but E = "
    "128 brings at least two thirds of the fall of log L to the largest E, and every doubling beyond it less than the "
    "best doubling below it; else not",
    "k": "supported if more experts per token lower the loss by less per tenfold FLOPs than the next larger model with "
    "k = 1 does, with the interval of the mean difference, at every k; not supported if by more at every k; in part if "
    "by less at one k and at none by more",
    "router": "supported if the mean loss of S-BASE over the shared (N, E) is below that of every other router with "
    "its interval (each size counted once); in part if below some and above none; not supported if above one",
    "frequency": "supported if for every router the loss with R below 0.5 is above that with the usual R, with the "
    "interval of the mean difference over the cells; not supported if it is below for one",
}
"""The rules, which are our choice."""


def because(entry: dict) -> str:
    """Return why the verdict on a recommendation, an entry of `advice`, is what it is."""
    if entry["verdict"] == CANNOT:
        return LACKING[entry["key"]]
    return _BECAUSE[entry["key"]](entry["evidence"])


def judged(results: dict) -> list[dict]:
    """Return the recommendations on which the runs say something."""
    return [entry for entry in results["advice"] if entry["verdict"] != CANNOT]


def verdict_table(entries: list[dict]) -> list[Block]:
    """Return recommendations with their verdicts and reasons."""
    rows = [[entry["words"], f"**{entry['verdict']}**", because(entry)] for entry in entries]
    return [Table(["recommendation", "these runs", "because"], rows, words=(0, 1, 2))]


def _size(evidence: dict) -> str:
    least = evidence["least"]
    said = (
        f"by the law E = {least['E']} lowers the loss with its interval at {evidence['below']} of {evidence['of']} "
        f"points (router and size), least for {router_name(least['router'])} at N = {count(least['N'])}: "
        f"{figure(least['percent'][0], '+.1f')} %"
    )
    if evidence["above"]:
        return f"{said}, and above 0 at {evidence['above']}"
    return f"{said}, none of them near 1.3B" if evidence["below"] == evidence["of"] and not evidence["near"] else said


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
    said = [
        f"k = {k} buys less per FLOP than a larger model in {e['less']} of {e['values']} cells"
        for k, e in growth.items()
    ]
    if dense:
        wider = ", ".join(f"{e['less']} of {e['values']} (k = {k})" for k, e in dense.items())
        said.append(f"than wider dense layers in {wider}")
    return "; ".join(said)


def _against(entry: dict) -> str:
    ends = "" if entry["low"] is None else f" ({span(entry, '+.2f')})"
    sizes = f" and with its interval at {entry['lower_sizes']} of {entry['sizes']} sizes" if entry["sizes"] else ""
    return (
        f"S-BASE against {router_name(entry['other'])}: {figure(entry['mean'], '+.2f')} % in the mean{ends}, lower in "
        f"{entry['lower_in']} of {entry['cells']} cells{sizes}"
    )


def _frequency(evidence: dict) -> str:
    said = [
        f"{router_name(e['router'])}: the loss is higher with R below 0.5 in {e['higher']} of {e['cells']} cells"
        for e in evidence["below_half"]
    ]
    said += [
        f"{router_name(e['router'])} with R = {e['R']:.3g} is lower than with R = {evidence['usual']:.3g} in "
        f"{e['lower']} of {e['cells']}"
        for e in evidence["above"]
    ]
    return "; ".join(said)


_BECAUSE = {
    "size": _size,
    "experts": _experts,
    "k": _k,
    "router": lambda evidence: "; ".join(map(_against, evidence["against"])),
    "frequency": _frequency,
}
