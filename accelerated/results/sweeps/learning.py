"""Which routers of a sweep have learned: the diagnostics of each routed run, from the columns of its last row."""

import math
from typing import NamedTuple

from routelaws.reference.diagnostics import not_learned

from ...wording import plural
from .folder import Sweep, SweepRun


class Learning(NamedTuple):
    """What the routers of one run have learned; None where it was not measured."""

    hyper_id: int
    router: str
    size: int
    experts: int
    seed: int
    chance: float  # agreement of two routings at random
    agreement: float | None  # of the routings in training and in evaluation
    information: float | None  # bits that the expert says about the token's id
    entropy: float | None  # of the policy, over ln(E G)
    exchange: float | None  # loss with experts exchanged at random, over the loss
    reasons: list[str]  # to say that the router has not learned; empty for one that has


COLUMNS = ("router_agreement", "router_information", "router_entropy", "expert_exchange")


def learning(sweep: Sweep) -> list[Learning]:
    """Return the diagnostics of each finished routed run that has some, by hyper_id."""
    routed = [run for run in sweep.runs if run.config.model.num_routed]
    entries = [_of_run(run) for run in routed]
    return [entry for entry in entries if entry.exchange is not None]


def _of_run(run: SweepRun) -> Learning:
    model = run.config.model
    cells = [float(run.row.get(name, math.nan)) for name in COLUMNS]
    agreement, information, entropy, exchange = (None if math.isnan(cell) else cell for cell in cells)
    chance = model.choices / model.expert_count
    reasons = not_learned(chance, agreement, exchange)
    named = run.hyper_id, run.router, run.size, run.experts, run.config.seed
    return Learning(*named, chance, agreement, information, entropy, exchange, reasons)


def not_learned_sentence(entries: list[Learning]) -> str | None:
    """Return one sentence that names the runs whose routers have not learned; None where all have."""
    kinds: dict[str, dict[int, list[int]]] = {}
    for entry in entries:
        if entry.reasons:
            kinds.setdefault(entry.router, {}).setdefault(entry.experts, []).append(entry.hyper_id)
    if not kinds:
        return None
    words = [
        f"{router} with E = {experts} (run{'s' * (len(runs) > 1)} {', '.join(map(str, runs))})"
        for router, by_experts in kinds.items()
        for experts, runs in sorted(by_experts.items())
    ]
    number = sum(bool(entry.reasons) for entry in entries)
    return f"the routers of {number} of {plural(len(entries), 'routed run')} have not learned: {'; '.join(words)}"
