"""Results of a sweep that need its folders: whether routing gains more than chance, and whether loads are even.

    1. COMPARE  `compare`    dense and the largest E, at every size of every router, with the error due to chance
    2. LOAD     `loads`      the loads of the experts at the largest E
    3. RUNS     `find`       the models, the text, the time, and the command that repeats the sweep

`findings.gather` gives all other results. The report has the text.
"""

import math
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ...training.sweeps.grid import presets, read_grid
from ...training.window_losses import few_documents, loss_difference, shown_error
from ...wording import plural
from .folder import Sweep, SweepRun
from .registered import score

CHANCE = 1.96
"""Half a 95 % interval, in standard errors over documents."""


class Comparison(NamedTuple):
    """The comparison of a router's largest E with dense at one size. Losses are means over the seeds."""

    router: str
    size: int
    experts: int
    dense_loss: float
    routed_loss: float
    difference: float  # routed minus dense, nats per token: negative if routing helps
    percent: float  # the same in percent of the dense loss
    spread: float | None  # range of losses over seeds; None if not measured
    borrowed: bool  # whether the spread is from other routers, because this router has only one seed per point
    error: float | None  # standard error of the difference over documents; None if the windows differ
    verdict: str  # "yes", "no, within the spread", "no, routing hurts", "lower, spread not measured", ...


class Load(NamedTuple):
    router: str
    size: int
    experts: int
    seed: int
    shares: list[list[float]]  # [blocks, E G] share times E G, in falling order; all are 1 at balance
    busiest: float  # the largest of these
    idle: int  # experts without a validation token, over all routed blocks
    dropped_fraction: float  # dropped share of the training assignments since the second last evaluation

    @property
    def dropped(self) -> float:
        """The dropped share in percent."""
        return 100 * self.dropped_fraction


def find(sweep: Sweep, results: dict) -> dict:
    """Return the results of a sweep that are not fits: comparisons, loads, diagnostics, and how it was trained.

    Returns:
        "comparisons" and "loads", from the functions of this file; "learning" and "not_learned" (see `learning`);
        "outcomes", summaries of the comparisons (see `outcome`); "registered", from `registered.score`; and the models,
        the text, the time and the code.
    """
    spreads = [] if results["seed_scatter"] is None else results["seed_scatter"]["points"]
    comparisons = [entry for selection in sweep.selections for entry in compare(sweep, selection, spreads)]
    finished, learned = {run.hyper_id for run in sweep.runs}, learning(sweep)
    return {
        "name": sweep.name,
        "planned": len(sweep.planned),
        "finished": len(sweep.runs),
        "waiting": {i: config.name() for i, config in enumerate(sweep.planned) if i not in finished},
        "registered": score(sweep),
        "left_out": {run["hyper_id"]: run["reason"] for rows in sweep.selections for run in rows.left_out},
        "spreads": spreads,
        "comparisons": comparisons,
        "outcomes": [outcome(selection.router, comparisons) for selection in sweep.selections],
        "loads": loads(sweep),
        "learning": learned,
        "not_learned": not_learned_sentence(learned),
        "runs": [_numbers(run) for run in sweep.runs],
        **_trained(sweep),
        **evaluation(sweep.runs),
        **_evaluated(sweep),
        **_done_how(sweep),
    }


def _trained(sweep: Sweep) -> dict:
    configs, routed = [run.config for run in sweep.runs], [run.config for run in sweep.runs if run.router != DENSE]
    return {
        "corpora": list(dict.fromkeys(config.corpus for config in configs)),
        "tokens": _ends(run.row["tokens"] for run in sweep.runs),
        "vocabularies": _values(config.model.vocab_size for config in configs),
        "dense": len(routed) < len(configs),
        "routers": _values(run.router for run in sweep.runs if run.router != DENSE),
        "experts": _values(run.experts for run in sweep.runs if run.router != DENSE),
        "shares": _values(100 * config.model.routing_frequency for config in routed),
        "ks": _values(config.model.k for config in routed),
    }


def _evaluated(sweep: Sweep) -> dict:
    known = [run for run in sweep.runs if math.isfinite(run.standard_error)]
    return {
        "errors": _ends(run.standard_error for run in known),
        "few_documents": few_documents(*(run.documents for run in sweep.runs)),
        "evaluation_tokens": _ends(run.row["evaluation_tokens"] for run in known),
        "evaluation_documents": _ends(run.row["evaluation_documents"] for run in known),
    }


def _done_how(sweep: Sweep) -> dict:
    return {
        "sessions": len(sweep.sessions),
        "jobs": _values(session.get("jobs", 1) for session in sweep.sessions),
        "seeds": _values(run.config.seed for run in sweep.runs),
        "devices": _values(str(run.row["device"]) for run in sweep.runs),
        "commits": _values(str(run.row["commit"]) for run in sweep.runs),
        "preset": preset_of(sweep),
        "corpus": list(sweep.planned[0].corpus) if len({config.corpus for config in sweep.planned}) == 1 else [],
    }


def _values(values) -> list:
    return sorted(set(values))


def _ends(values) -> list:
    """Return the smallest and the largest of some numbers, or their common value. Whole numbers are int."""
    numbers = sorted({int(value) if float(value).is_integer() else float(value) for value in values})
    return numbers if len(numbers) < 2 else [numbers[0], numbers[-1]]


def evaluation(runs: list[SweepRun]) -> dict:
    """Return which tokens affect a loss, besides the earlier tokens of its sequence.

    Returns:
        {"masked": percent of hidden (and predicted) tokens, "grouped": routers whose experts see one position of a
        group of sequences}.
    """
    masked = [run.config for run in runs if run.config.model.objective == "masked"]
    by_position = [run for run in runs if not masked or run.config.model.grouping == "position"]
    return {
        "masked": _values(100 * config.model.mask_rate for config in masked),
        "grouped": _values(run.router for run in by_position if run.config.model.record.grouped),
    }


def preset_of(sweep: Sweep) -> str | None:
    """Return the name of the preset that has the runs of a sweep; None if there is none."""
    for preset in presets():
        try:
            grid = read_grid(preset, {"corpus": list(sweep.planned[0].corpus)})
        except InputError:  # the preset does not allow this corpus
            continue
        if grid == (sweep.name, sweep.planned):
            return preset
    return None


def _numbers(run: SweepRun) -> dict:
    row = run.row
    return {
        "hyper_id": run.hyper_id,
        "name": run.config.name(),
        "router": run.router,
        "experts": run.experts,
        "N": run.size,
        "P": int(row["total_parameter_count"]),
        "seed": run.config.seed,
        "learning_rate": row["learning_rate"],
        "tokens": int(row["tokens"]),
        "loss": run.loss,
        "standard_error": run.standard_error,
        "dropped_fraction": row["dropped_fraction"],
        "wall_seconds": row["wall_seconds"],
        "device": row["device"],
        "commit": row["commit"],
    }


def spread_for(router: str, spreads: list[dict]) -> tuple[float | None, bool]:
    """Return the seed spread for a router, and whether it is borrowed from other routers.

    The spread is the largest range over seeds among the points of the router and of dense, because both have an error.
    If the router has no such point, the spread is the largest range of the sweep.
    """
    router_spreads = [spread for spread in spreads if spread["router"] == router]
    candidates = router_spreads + [s for s in spreads if s["router"] == DENSE] if router_spreads else spreads
    return (max(s["range"] for s in candidates) if candidates else None), bool(candidates) and not router_spreads


def compare(sweep: Sweep, selection: RouterRows, spreads: list[dict]) -> list[Comparison]:
    """Compare the largest E of a router with dense, at each size that has both."""
    runs, comparisons = sweep.of(selection), []
    spread, borrowed = spread_for(selection.router, spreads)
    for size in sorted({run.size for run in runs}):
        dense = [run for run in runs if run.size == size and run.router == DENSE]
        routed = [run for run in runs if run.size == size and run.router != DENSE]
        if not dense or not routed:
            continue
        experts = max(run.experts for run in routed)
        largest = [run for run in routed if run.experts == experts]
        dense_loss, routed_loss = (float(np.mean([run.loss for run in group])) for group in (dense, largest))
        gap, error = routed_loss - dense_loss, difference_error(largest, dense)
        losses = (dense_loss, routed_loss, gap, 100 * gap / dense_loss)
        chance = (spread, borrowed, error, verdict(gap, spread, error))
        comparisons.append(Comparison(selection.router, size, experts, *losses, *chance))
    return comparisons


def outcome(router: str, comparisons: list[Comparison]) -> dict:
    """Return the number of sizes where a router's loss is below the dense loss by more than chance, and the gains.

    Returns:
        {"router", "experts", "sizes", "spread", "borrowed", "lower" (number of sizes where the router's loss is lower
        by more than chance; if no spread is known, where it is lower), "nats" and "percent" (largest and smallest gain
        at these sizes), "rest" (the other comparisons)}.
    """
    entries = [entry for entry in comparisons if entry.router == router]
    measured = any(entry.spread is not None for entry in entries)
    good = [entry for entry in entries if (entry.verdict == "yes" if measured else entry.difference < 0)]
    return {
        "router": router,
        "experts": _values(entry.experts for entry in entries),
        "sizes": len(entries),
        "spread": entries[0].spread if entries else None,
        "borrowed": bool(entries) and entries[0].borrowed,
        "lower": len(good),
        "nats": _ends(-entry.difference for entry in good)[::-1],
        "percent": _ends(-entry.percent for entry in good)[::-1],
        "rest": [entry for entry in entries if entry not in good],
    }


def difference_error(first: list[SweepRun], second: list[SweepRun]) -> float | None:
    """Return the standard error over documents of the difference of two groups' mean losses.

    Losses are compared window by window. Return None if a run has no windows, the windows differ, or there are too few
    documents (see `shown_error`).
    """
    if any(run.windows is None for run in (*first, *second)):
        return None
    apart = loss_difference([run.windows for run in first], [run.windows for run in second])
    error = math.nan if apart is None else shown_error(apart)
    return None if math.isnan(error) else error


def verdict(difference: float, spread: float | None, error: float | None) -> str:
    """Return a verdict on a loss: whether it is below the dense loss by more than chance.

    The difference must exceed both the range over seeds and CHANCE standard errors over documents.
    """
    if spread is None:
        return ("lower" if difference < 0 else "not lower") + ", spread not measured"
    if abs(difference) <= spread:
        return "no, within the spread"
    if error is not None and abs(difference) <= CHANCE * error:
        return "no, other documents could reverse it"
    return "yes" if difference < 0 else "no, routing hurts"


def loads(sweep: Sweep) -> list[Load]:
    """Return the loads of the run with the largest E, at each size of each router. Only the first seed counts."""
    entries = []
    for selection in sweep.selections:
        runs = [run for run in sweep.of(selection) if run.router != DENSE and run.load]
        for size in sorted({run.size for run in runs}):
            run = max((run for run in runs if run.size == size), key=lambda run: (run.experts, -run.hyper_id))
            entries.append(load_of(run))
    return entries


def load_of(run: SweepRun) -> Load:
    shares = [sorted((len(block) * share for share in block), reverse=True) for block in run.load]
    busiest, idle = max(map(max, shares)), sum(share == 0 for block in shares for share in block)
    dropped = float(run.row["dropped_fraction"])
    return Load(run.router, run.size, run.experts, run.config.seed, shares, busiest, idle, dropped)


def report_dict(sweep: Sweep, results: dict, found: dict, seconds: dict[str, float]) -> dict:
    spreads = [
        {"router": e["router"], "size": e["N"], "experts": e["E"]} | {name: e[name] for name in _OF_A_SPREAD}
        for e in found["spreads"]
    ]
    scatter = results["seed_scatter"]
    return results | {
        "name": sweep.name,
        "runs_planned": found["planned"],
        "runs_finished": found["finished"],
        "seconds": seconds,
        "sessions": sweep.sessions,
        "seed_spread": spreads,
        "seed_scatter_log10": None if scatter is None else scatter["deviation"],
        "does_routing_help": found["comparisons"],
        "load": found["loads"],
        "learning": found["learning"],
        "registered": found["registered"],
        "runs": found["runs"],
    }


_OF_A_SPREAD = ("seeds", "losses", "range", "deviation")


class Learning(NamedTuple):
    """The diagnostics of the routers of a run; None if not measured."""

    hyper_id: int
    router: str
    size: int
    experts: int
    seed: int
    chance: float  # agreement of two routings at random
    agreement: float | None  # share of common choices of training and evaluation
    information: float | None  # mutual information of expert and token id, in bits
    entropy: float | None  # entropy of the policy divided by ln(E G)
    exchange: float | None  # loss with randomly exchanged experts, divided by the loss
    reasons: list[str]  # reasons why the router has not learned; empty if it has learned


COLUMNS = ("router_agreement", "router_information", "router_entropy", "expert_exchange")


def learning(sweep: Sweep) -> list[Learning]:
    """Return the diagnostics of the finished routed runs that have them, by hyper_id."""
    routed = [run for run in sweep.runs if run.config.model.num_routed]
    entries = [learning_of(run) for run in routed]
    return [entry for entry in entries if entry.exchange is not None]


def learning_of(run: SweepRun) -> Learning:
    model = run.config.model
    cells = [float(run.row.get(name, math.nan)) for name in COLUMNS]
    agreement, information, entropy, exchange = (None if math.isnan(cell) else cell for cell in cells)
    chance = model.choices / model.expert_count
    named = run.hyper_id, run.router, run.size, run.experts, run.config.seed
    return Learning(*named, chance, agreement, information, entropy, exchange, run.not_learned)


def not_learned_sentence(entries: list[Learning]) -> str | None:
    """Return a sentence that names the runs whose routers have not learned; None if all have learned."""
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
