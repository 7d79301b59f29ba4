"""The paper's recommendations, each with the evidence of a table and a verdict.

The verdicts are "supported", "supported in part", "open" (the interval includes zero), "not supported" and "cannot be
judged" (the table lacks the runs). Their rules are our choice. A report prints the rule next to each verdict.
"""

from ..results.comparisons.ablations import LEAST_FREQUENCY
from ..results.reproduction import paper
from .routers import recommended

LARGEST = 1.35e9
"""Parameters: a bound above "about 1.3B"."""

LOW_EXPERTS, HIGH_EXPERTS = 64, 128
MOST_OF_THE_FALL = 200 / 3  # percent
CANNOT = "cannot be judged"


def advice(results: dict) -> list[dict]:
    """Check each recommendation of the paper: return {"key", "words", "checked", "verdict", "evidence"} for each.

    Args:
        results: result of `findings.gather`, with laws, pairs, doublings and ablations filled.
    """
    return [entry._asdict() | _JUDGES[entry.key](results) for entry in paper.ADVICE]


def _size(results: dict) -> dict:
    """Judge "use routing for models of up to about 1.3B parameters" by the gain of the largest E at these sizes."""
    gains = [
        gain | {"router": law["router"]}
        for law in results["laws"]
        if law["missing"] is None
        for gain in law["gains"]
        if gain["N"] <= LARGEST
    ]
    if not gains:
        return _said(CANNOT, {})
    shown = [{key: gain[key] for key in ("router", "N", "E", "value", "percent")} for gain in gains]
    below, above = sum(gain["high"] < 0 for gain in gains), sum(gain["low"] > 0 for gain in gains)
    top = max(gain["N"] for gain in gains)
    evidence = {
        "gains": shown,
        "below": below,
        "above": above,
        "of": len(gains),
        "largest_size": top,
        "near": top >= LARGEST / 2,
        "least": max(shown, key=lambda gain: gain["value"]),
    }
    if below == len(gains):
        return _said("supported" if evidence["near"] else "supported in part", evidence)
    if above:
        return _said("not supported", evidence)
    return _said("supported in part" if below else "open", evidence)


def _experts(results: dict) -> dict:
    """Judge "64 to 128 experts" by the share of the fall in loss that they reach, and by the gain of more experts."""
    evidence = []
    for entry in results["doublings"]:
        inside = [point for point in entry["reached"] if LOW_EXPERTS <= point["E"] <= HIGH_EXPERTS]
        beyond = [step for step in entry["steps"] if step["from"] >= HIGH_EXPERTS]
        below = [step for step in entry["steps"] if step["to"] <= HIGH_EXPERTS]
        if not inside or not beyond or not below:
            continue
        helps = any(step["percent"]["high"] is not None and step["percent"]["high"] < 0 for step in beyond)
        best = min(step["per_doubling"] for step in below)
        fades = all(step["per_doubling"] > best for step in beyond)
        verdict = "supported"
        if helps:
            most = inside[-1]["percent"] >= MOST_OF_THE_FALL and fades
            verdict = "supported in part" if most else "not supported"
        evidence.append(
            {"router": entry["router"], "reached": inside, "beyond": beyond, "best_doubling": best, "verdict": verdict}
        )
    if not evidence:
        return _said(CANNOT, {})
    at = sorted({entry["reached"][-1]["E"] for entry in evidence})
    return _said(_together([entry["verdict"] for entry in evidence]), {"routers": evidence, "at": at})


def _k(results: dict) -> dict:
    """Judge "one expert per token" by the gain per FLOPs of k above 1, compared with a larger model."""
    versus = results["experts_per_token"]["versus_growth"]
    if not versus:
        return _said(CANNOT, {})
    known = [entry for entry in versus.values() if entry["low"] is not None]
    verdict = "open"
    if known and len(known) == len(versus):
        if all(entry["low"] > 0 for entry in known):
            verdict = "supported"
        elif all(entry["high"] < 0 for entry in known):
            verdict = "not supported"
        elif any(entry["low"] > 0 for entry in known) and not any(entry["high"] < 0 for entry in known):
            verdict = "supported in part"
    beside = results["experts_per_token"]["versus_dense"]
    return _said(verdict, {"versus_growth": versus, "versus_dense": beside})


def _router(results: dict) -> dict:
    """Judge the recommended router by the differences of its losses from other routers."""
    return _said(*(recommended(results["pairs"]) or (CANNOT, {})))


def _frequency(results: dict) -> dict:
    """Judge "half of the blocks routed" by the changes in loss with fewer routed blocks."""
    ablation = results["routing_frequency"]
    below = ablation["below_half"]
    if not below or ablation["usual"] < LEAST_FREQUENCY:
        return _said(CANNOT, {})
    ends = [(entry["percent"]["low"], entry["percent"]["high"]) for entry in below]
    known = [(low, high) for low, high in ends if low is not None]
    verdict = "open"
    if any(high < 0 for _, high in known):
        verdict = "not supported"
    elif any(low > 0 for low, _ in known):
        verdict = "supported" if all(low is not None and low > 0 for low, _ in ends) else "supported in part"
    evidence = {
        "usual": ablation["usual"],
        "below_half": [entry | {"higher": entry["cells"] - entry["lower"]} for entry in below],
        "changes": ablation["changes"],
        "above": [change for change in ablation["changes"] if change["R"] > ablation["usual"]],
    }
    return _said(verdict, evidence)


_JUDGES = {"size": _size, "experts": _experts, "k": _k, "router": _router, "frequency": _frequency}


def _said(verdict: str, evidence: dict | str) -> dict:
    return {"verdict": verdict, "evidence": evidence}


def _together(verdicts: list[str]) -> str:
    """Return the verdict that all routers share; otherwise "supported in part" if one router has "supported", else "not
    supported".
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "supported in part" if any(verdict.startswith("supported") for verdict in verdicts) else "not supported"
