"""Figures of the balanced plan: its time beside POT and ott-jax at the same load error, and what it guarantees.

Scores are normal with deviation 2 and a trend over the experts. All of them give the whole plan [T, E]. The load error
is the largest relative distance of an expert's mass from 1/E. Ours stops at 1e-3 by its own rule; each peer is given
the least number of sweeps with which it is no further off, and no check in between, which is the best it could do.
"""

import functools

import numpy as np

from .figure import Figure, Goal, Side
from .worker import Job

ERROR = 1e-3
SHAPES = ((8192, 64), (65536, 128))
SCALES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
MOST_SWEEPS = 64


def draw_scores(num_tokens: int, num_experts: int, scale: float = 2.0, seed: int = 0) -> np.ndarray:
    """Return scores [T, E] in float32."""
    noise = np.random.default_rng(seed).standard_normal((num_tokens, num_experts))
    return (scale * noise + np.linspace(0, scale, num_experts)).astype(np.float32)


def load_error(plan: np.ndarray) -> float:
    """Return the largest |E · mass − 1| over the experts of a plan [T, E]."""
    return float(np.abs(plan.sum(axis=0, dtype=np.float64) * plan.shape[1] - 1).max())


def our_plan(num_tokens: int, num_experts: int, scale: float = 2.0) -> Job:
    """Return a job that makes the plan with the defaults of the library."""
    import jax

    from ..routers.sinkhorn import sinkhorn_plan

    scores = jax.numpy.asarray(draw_scores(num_tokens, num_experts, scale))
    plan, held = jax.jit(sinkhorn_plan), {}

    def run():
        held["plan"] = jax.block_until_ready(plan(scores))

    def facts():
        found = held["plan"]
        steps = {"sweeps": int(found.sweeps), "newton_steps": int(found.newton_steps)}
        return steps | {"load_error": load_error(np.asarray(found.plan)), "converged": bool(found.converged)}

    return Job(run, facts)


def peer_plan(kind: str, num_tokens: int, num_experts: int) -> Job:
    """Return a job of a peer: "POT", its `sinkhorn`; "ott-jax", or "ott-jax lse" with logarithms."""
    make = _pot(num_tokens, num_experts) if kind == "POT" else _ott(num_tokens, num_experts, kind.endswith("lse"))
    sweeps = next((n for n in range(1, MOST_SWEEPS) if load_error(np.asarray(make(n))) <= ERROR), MOST_SWEEPS)
    held = {}

    def run():
        held["plan"] = make(sweeps)

    return Job(run, lambda: {"sweeps": sweeps, "load_error": load_error(np.asarray(held["plan"]))})


def _pot(num_tokens, num_experts):
    """Return a function of the sweeps that gives the plan of POT, whose sweeps end with the tokens or the experts."""
    import ot

    cost = -draw_scores(num_tokens, num_experts)
    masses = [np.full(n, 1 / n, np.float32) for n in cost.shape]
    return lambda sweeps: ot.sinkhorn(*masses, cost, 1.0, numItermax=sweeps, stopThr=0.0, warn=False)


def _ott(num_tokens, num_experts, lse_mode):
    """Return a function of the sweeps that gives the plan of ott-jax."""
    import jax
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    cost = jax.numpy.asarray(-draw_scores(num_tokens, num_experts))

    @functools.partial(jax.jit, static_argnums=1)
    def plan(cost, sweeps):
        limits = {"threshold": 0.0, "min_iterations": sweeps, "max_iterations": sweeps, "inner_iterations": sweeps}
        solver = Sinkhorn(lse_mode=lse_mode, **limits)
        return solver(LinearProblem(Geometry(cost, epsilon=1.0))).matrix

    return lambda sweeps: jax.block_until_ready(plan(cost, sweeps))


def over_peers(bench, num_tokens: int, num_experts: int):
    """Measure our time over that of the fastest peer."""
    if bench.settings.quick:
        num_tokens, num_experts = 256, 8
    shape = {"num_tokens": num_tokens, "num_experts": num_experts}
    threads, peers = bench.threads(), ("POT", "ott-jax", "ott-jax lse")
    sides = {"ours": Side("sinkhorn:our_plan", shape)}
    sides |= {kind: Side("sinkhorn:peer_plan", shape | {"kind": kind}) for kind in peers}
    reads = 4.0 * num_tokens * num_experts
    found = bench.compare(sides, lambda s: s["ours"] / min(s[kind] for kind in peers), threads)
    sweeps = found.facts["ours"]["sweeps"]
    found.floor_seconds = bench.floor(
        threads, traffic=reads * (sweeps + 2)
    )  # each sweep reads it; read, write at the end
    found.over_floor = found.seconds["ours"] / found.floor_seconds
    return found


def guarantee(bench):
    """Measure the largest load error that the plan leaves for scores of scale 0.1 to 10,000."""
    shape = {"num_tokens": 256, "num_experts": 8} if bench.settings.quick else {"num_tokens": 8192, "num_experts": 64}
    sides = {f"scale {scale:g}": Side("sinkhorn:our_plan", shape | {"scale": scale}) for scale in SCALES}
    found = bench.compare(sides, lambda s: max(s.values()), bench.threads(), rounds=1)
    found.value = max(facts["load_error"] for facts in found.facts.values())
    found.spread = [found.value, found.value]
    found.repeated, found.disturbed = 0, None  # it is no time
    return found


FIGURES = (
    *(
        Figure(
            f"sinkhorn-{tokens}x{experts}",
            f"our balanced plan's time over the better of POT and ott-jax at the same load error, {tokens} x {experts}",
            Goal(0.5),
            functools.partial(over_peers, num_tokens=tokens, num_experts=experts),
        )
        for tokens, experts in SHAPES
    ),
    Figure(
        "sinkhorn-guarantee",
        "largest load error of the plan for scores of scale 0.1 to 10,000",
        Goal(1.05 * ERROR),
        guarantee,
        unit="",
    ),
)
