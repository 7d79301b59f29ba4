"""Figures of balancing. They compare Sinkhorn's plan with POT and ott-jax, and exact assignment with general solvers.

Plan: scores are normal with deviation 2 and a trend over the experts. The load error is the largest relative distance
of an expert's mass from 1/E. Our side stops at 1e-3. Each peer runs the smallest number of sweeps that reaches this
accuracy. It does not check the error, so this is its best case.

Assignment: our side is `kernels.assignment.assign`, the compiled loops of `routers.base`. OR-tools' minimum-cost flow
has costs rounded to 1e-6 of the largest score. SciPy's `linear_sum_assignment` has a column for each of the T slots.
"""

import functools

import numpy as np

from .figure import Figure, Job, Side, over

ERROR = 1e-3
MOST_SWEEPS = 64
SIZES = {"plan": (8192, 64), "assignment": (4096, 64), "quick": (256, 8)}


def draw(num_tokens: int, num_experts: int, deviation: float = 1.0) -> np.ndarray:
    """Return scores [T, E] in float32, normal with a trend over the experts."""
    noise = np.random.default_rng(0).standard_normal((num_tokens, num_experts))
    return (deviation * noise + np.linspace(0, 2, num_experts)).astype(np.float32)


def load_error(plan: np.ndarray) -> float:
    """Return the largest |E · mass − 1| over the experts of a plan [T, E]."""
    return float(np.abs(plan.sum(axis=0, dtype=np.float64) * plan.shape[1] - 1).max())


def our_plan(quick: bool = False) -> Job:
    """Return a job that makes the plan with the defaults of the library."""
    import jax

    from routelaws.accelerated.routers.sinkhorn import sinkhorn_plan

    scores, plan, held = draw(*SIZES["quick" if quick else "plan"], deviation=2.0), jax.jit(sinkhorn_plan), {}

    def run():
        held["plan"] = jax.block_until_ready(plan(scores))

    return Job(run, lambda: _of_plan(int(held["plan"].sweeps), held["plan"].plan))


def peer_plan(peer: str, quick: bool = False) -> Job:
    make = {"POT": _pot, "ott-jax": _ott}[peer](-draw(*SIZES["quick" if quick else "plan"], deviation=2.0))
    sweeps = next((n for n in range(1, MOST_SWEEPS) if load_error(np.asarray(make(n))) <= ERROR), MOST_SWEEPS)
    held = {}

    def run():
        held["plan"] = make(sweeps)

    return Job(run, lambda: _of_plan(sweeps, held["plan"]))


def _of_plan(sweeps: int, plan) -> dict:
    return {"sweeps": sweeps, "load_error": load_error(np.asarray(plan))}


def _pot(cost):
    import ot

    masses = [np.full(n, 1 / n, np.float32) for n in cost.shape]
    return lambda sweeps: ot.sinkhorn(*masses, cost, 1.0, numItermax=sweeps, stopThr=0.0, warn=False)


def _ott(cost):
    import jax
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    @functools.partial(jax.jit, static_argnums=1)
    def plan(cost, sweeps):
        limits = {"threshold": 0.0, "min_iterations": sweeps, "max_iterations": sweeps, "inner_iterations": sweeps}
        return Sinkhorn(lse_mode=False, **limits)(LinearProblem(Geometry(cost, epsilon=1.0))).matrix

    return lambda sweeps: jax.block_until_ready(plan(cost, sweeps))


def assign(solver: str, quick: bool = False) -> Job:
    """Return a job that assigns tokens to experts. Its facts are the objective, and whether the loads are equal."""
    solve = {"ours": _by_kernel, "OR-tools": _by_ortools, "scipy": _by_scipy}[solver]()
    scores, held = draw(*SIZES["quick" if quick else "assignment"]), {}

    def run():
        held["expert"] = np.asarray(solve(scores)).reshape(-1)

    def facts():
        load = np.bincount(held["expert"], minlength=scores.shape[1])
        objective = scores[np.arange(len(scores)), held["expert"]].sum(dtype=np.float64)
        return {"objective": float(objective), "balanced": bool(load.max() - load.min() <= 1)}

    return Job(run, facts)


def _by_kernel():
    from routelaws.accelerated.kernels.assignment import assign

    return lambda scores: assign(scores, 1).expert


def _by_scipy():
    from scipy.optimize import linear_sum_assignment

    def solve(scores):
        places = np.repeat(np.arange(scores.shape[1]), len(scores) // scores.shape[1])
        return places[linear_sum_assignment(scores[:, places], maximize=True)[1]]

    return solve


def _by_ortools():
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    def solve(scores):
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

    return solve


def _assignment(solver: str, least: float) -> Figure:
    sides = {who: Side("plans:assign", {"solver": who}) for who in ("ours", solver)}
    what = f"time of {solver} divided by our exact assignment, 4096 x 64"
    return Figure(f"assignment-{solver.lower()}", what, sides, over(solver, "ours"), ("at least", least))


_PEERS = ("POT", "ott-jax")

FIGURES = (
    Figure(
        "sinkhorn",
        "time of our balanced plan divided by the faster of POT and ott-jax, at the same load error, 8192 x 64",
        {"ours": Side("plans:our_plan", {})} | {peer: Side("plans:peer_plan", {"peer": peer}) for peer in _PEERS},
        over("ours", *_PEERS), ("at most", 0.5),
    ),
    _assignment("OR-tools", 3.0),
    _assignment("scipy", 3.0),
)  # fmt: skip
