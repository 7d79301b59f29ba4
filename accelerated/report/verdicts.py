"""Sentences on the evidence and the rule for the verdict on each recommendation of the paper."""

from ..findings.advice import CANNOT
from ..findings.finding import listed, names, router_name
from ..results.blocks import Block, Table, count, figure

LACKING = {
    "size": "no router has a law and runs of a size up to 1.3B",
    "experts": "no router has runs with E from 64 to 128 and also with a larger E",
    "k": "the table lacks runs with known FLOPs that differ only in k, or a larger model with k = 1",
    "router": "S-BASE shares no N and E with another router",
    "frequency": "no two runs differ only in R, where one R is below 0.5 and the other is at least 0.5",
}
"""The missing runs for each recommendation without a verdict."""

RULES = {
    "size": (
        "supported if the gain at the largest E is certain at every trained N up to 1.3B, and one of these N is at "
        "least 0.675B. Not supported if the largest E certainly raises the loss at some N. Otherwise supported in "
        "part if the gain is certain at some N"
    ),
    "experts": "supported if no step beyond E = 128 has a certain gain. Supported in part if such a step has a certain "
    "gain, but E = 128 reaches at least two thirds of the fall of log L and each later doubling gains less than the "
    "best earlier one. Otherwise not supported. If the routers differ, supported in part",
    "k": "two changes are compared by their gain, the fall of log L per tenfold FLOPs: more experts per token (k), and "
    "the next larger model with k = 1. Supported if more experts certainly gain less at every k. Supported in part if "
    "they certainly gain less at some k and certainly more at no k. Not supported if they certainly gain more at "
    "every k",
    "router": "S-BASE is compared with each other router by the mean loss over the shared (N, E); each size counts "
    "once. Supported if S-BASE is certainly lower than every other router. Supported in part if S-BASE is certainly "
    "lower than some and certainly higher than none. Not supported if S-BASE is certainly higher than at least one",
    "frequency": "supported if, for every router, the mean loss at R below 0.5 is certainly higher than at the usual "
    "R. Supported in part if it is certainly higher for some routers and certainly lower for none. Not supported if "
    "it is certainly lower for at least one router",
}
"""The rules, which are our choice; "certain" means that the whole interval agrees."""


def because(entry: dict) -> str:
    if entry["verdict"] == CANNOT:
        return LACKING[entry["key"]]
    return _BECAUSE[entry["key"]](entry["evidence"])


def judged(results: dict) -> list[dict]:
    return [entry for entry in results["advice"] if entry["verdict"] != CANNOT]


def verdict_table(entries: list[dict]) -> list[Block]:
    rows = [[entry["words"], f"**{entry['verdict']}**", because(entry)] for entry in entries]
    return [Table(["recommendation", "these runs", "because"], rows, words=(0, 1, 2))]


def _size(evidence: dict) -> str:
    least = evidence["least"]
    at = f"{router_name(least['router'])}, N = {count(least['N'])}, E = {least['E']}"
    reason = (
        f"by the law, the largest E certainly lowers the loss at {evidence['below']} of {evidence['of']} points "
        f"(router and size); the smallest gain is {figure(least['percent'][0], '+.1f')} % ({at})"
    )
    if evidence["above"]:
        return f"{reason}; the largest E certainly raises the loss at {evidence['above']} points"
    far = evidence["below"] == evidence["of"] and not evidence["near"]
    return f"{reason}; no size is near 1.3B" if far else reason


def _experts(evidence: dict) -> str:
    routers = evidence["routers"]
    shares = listed(f"{figure(r['reached'][-1]['percent'], '.0f')} % ({router_name(r['router'])})" for r in routers)
    still = [r["router"] for r in routers if r["verdict"] != "supported"]
    return (
        f"at E = {listed(evidence['at'])}, log L has fallen by {shares} of its fall from dense to the largest E; a "
        f"larger E certainly lowers the loss further for {names(still) if still else 'no router'}"
    )


def _k(evidence: dict) -> str:
    others = {"the next larger model": evidence["versus_growth"], "wider dense layers": evidence["versus_dense"]}
    return "; ".join(
        f"k = {k} gains less per FLOP than {other} in {e['less']} of {e['values']} cells"
        for other, versus in others.items()
        for k, e in versus.items()
    )


def _frequency(evidence: dict) -> str:
    reasons = [
        f"{router_name(e['router'])}: the loss is higher with R below 0.5 in {e['higher']} of {e['cells']} cells"
        for e in evidence["below_half"]
    ]
    reasons += [
        f"{router_name(e['router'])}: the loss is lower with R = {e['R']:.3g} than with R = {evidence['usual']:.3g} in "
        f"{e['lower']} of {e['cells']} cells"
        for e in evidence["above"]
    ]
    return "; ".join(reasons)


_BECAUSE = {
    "size": _size,
    "experts": _experts,
    "k": _k,
    "router": str,
    "frequency": _frequency,
}
