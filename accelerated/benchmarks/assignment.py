"""Figures of the exact balanced assignment, beside general solvers of the same problem.

Ours is `kernels.assignment.assign`, the compiled loops behind `routers.base`, on one thread. OR-tools' minimum-cost
flow has costs rounded to 1e-6 of the largest score; SciPy's `linear_sum_assignment` has one column for each of the T
places.

Scores: "skew" is normal with a trend over the experts, "aniso" has a direction that all tokens share, so that they
prefer the same experts. `missing` is the largest shortfall from our optimum, as a share of its objective.
"""

import functools

import numpy as np

from .figure import Figure, Goal, Side
from .worker import Job

INPUTS = ("skew", "aniso")


def draw(kind: str, num_tokens: int, num_experts: int, seed: int = 0) -> np.ndarray:
    """Return scores [T, E] in float32."""
    random = np.random.default_rng(seed)
    if kind == "skew":
        values = random.standard_normal((num_tokens, num_experts)) + np.linspace(0, 2, num_experts)
    else:
        tokens = random.standard_normal((num_tokens, 32)) + 2 * random.standard_normal(32)
        values = tokens @ random.standard_normal((32, num_experts)) / np.sqrt(32)
    return values.astype(np.float32)


def solve(method: str, kind: str, num_tokens: int, num_experts: int) -> Job:
    """Return a job that assigns drawn scores; its facts are the objective, and whether the loads are equal."""
    solver = {"ours": _by_kernel, "OR-tools": _by_ortools, "scipy": _by_scipy}[method]()
    scores, held = draw(kind, num_tokens, num_experts), {}

    def run():
        held["expert"] = solver(scores)

    def facts():
        expert = np.asarray(held["expert"]).reshape(-1)
        load = np.bincount(expert, minlength=num_experts)
        objective = scores[np.arange(num_tokens), expert].sum(dtype=np.float64)
        return {"objective": float(objective), "balanced": bool(load.max() - load.min() <= 1)}

    return Job(run, facts)


def _by_kernel():
    from ..kernels.assignment import assign

    return lambda scores: assign(scores, 1).expert


def _by_scipy():
    from scipy.optimize import linear_sum_assignment

    def solver(scores):
        places = np.repeat(np.arange(scores.shape[1]), len(scores) // scores.shape[1])
        return places[linear_sum_assignment(scores[:, places], maximize=True)[1]]

    return solver


def _by_ortools():
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    def solver(scores):
        num_tokens, num_experts = scores.shape
        token, expert = (index.ravel() for index in np.indices(scores.shape))
        cost = np.rint(-scores.ravel().astype(float) * (1e6 / np.abs(scores).max())).astype(np.int64)
        flow = SimpleMinCostFlow()
        arcs = flow.add_arcs_with_capacity_and_unit_cost(token, num_tokens + expert, np.ones_like(cost), cost)
        supply = np.append(np.ones(num_tokens, int), np.full(num_experts, -num_tokens // num_experts))
        flow.set_nodes_supplies(np.arange(num_tokens + num_experts), supply)
        if flow.solve() != flow.OPTIMAL:
            raise RuntimeError("OR-tools found no optimum")
        return expert[flow.flows(arcs).astype(bool)]  # arcs are in the order of the tokens

    return solver


def over_ours(bench, method: str, kinds: tuple[str, ...] = INPUTS, rounds: int | None = None):
    """Measure how many times longer a solver takes than ours: the least over the kinds of scores."""
    shape = {"num_tokens": 256, "num_experts": 8} if bench.settings.quick else {"num_tokens": 4096, "num_experts": 64}

    def side(who, kind):
        return Side("assignment:solve", shape | {"method": who, "kind": kind})

    sides = {f"{who} {kind}": side(who, kind) for kind in kinds for who in ("ours", method)}

    def ratio(seconds):
        return min(seconds[f"{method} {kind}"] / seconds[f"ours {kind}"] for kind in kinds)

    found = bench.compare(sides, ratio, bench.threads(), rounds=rounds)
    for kind in kinds:
        best, theirs = (found.facts[f"{who} {kind}"]["objective"] for who in ("ours", method))
        found.facts[f"missing {kind}"] = (best - theirs) / abs(best)
    _check(found)
    return found


def large(bench):
    """Measure the seconds that 65,536 tokens take; an absolute time, of this machine."""
    shape = {"num_tokens": 512, "num_experts": 8} if bench.settings.quick else {"num_tokens": 65536, "num_experts": 128}
    options = shape | {"method": "ours"}
    sides = {kind: Side("assignment:solve", options | {"kind": kind}) for kind in INPUTS}
    threads, reads = bench.threads(), 4.0 * shape["num_tokens"] * shape["num_experts"]
    found = bench.compare(sides, lambda s: max(s.values()), threads)
    found.floor_seconds = bench.floor(threads, traffic=reads)  # every score is read once
    found.over_floor = max(found.seconds.values()) / found.floor_seconds
    _check(found)
    return found


def _check(found) -> None:
    """Raise RuntimeError where loads are not equal."""
    wrong = [side for side, facts in found.facts.items() if isinstance(facts, dict) and not facts["balanced"]]
    if wrong:
        raise RuntimeError(f"{', '.join(wrong)}: the loads are not balanced")


FIGURES = (
    Figure(
        "assignment-ortools",
        "time of OR-tools' minimum-cost flow over our exact assignment, 4096 x 64",
        Goal(12, least=True),
        functools.partial(over_ours, method="OR-tools"),
    ),
    Figure(
        "assignment-scipy",
        "time of SciPy's linear_sum_assignment over our exact assignment, 4096 x 64",
        Goal(1000, least=True),
        functools.partial(over_ours, method="scipy", kinds=("skew",), rounds=3),
    ),
    Figure(
        "assignment-65536x128", "seconds of our exact assignment, 65536 x 128 (absolute)", Goal(1.0), large, unit="s"
    ),
)
