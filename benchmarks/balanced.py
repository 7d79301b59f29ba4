"""A linear program, solved in four ways: S-BASE, BASE and quantile balancing on the same scores.

    python -m benchmarks.balanced        # prints the table of docs/balanced_assignment.md

The program assigns T tokens to E experts, T/E each, and maximises the sum of the scores. The methods are:

1. exact: `base.balanced_assignment`, the optimum, with prices that prove it.
2. auction: `method="auction"`, optimal up to its increment.
3. entropy 1 ... 0.001: `sinkhorn.sinkhorn_plan` of scores / entropy. In "argmax", each token goes to the largest entry
   of its row, so the loads may differ. In "plan", the objective is T times the mean score under the plan.
4. quantile: `quantile.quantile_bias` after 1, 10 and 100 steps. Each token goes to the expert with the largest score
   minus bias.

Each line has

- the objective;
- the dual bound of the final prices. Sinkhorn's prices are minus its potentials times the entropy, and quantile's
  prices are its biases;
- the gap (bound minus objective) and "missing" (optimum minus objective), both divided by the optimum's gain over a
  cyclic assignment that ignores the scores;
- the largest load divided by the mean;
- the time divided by the time of the first method. Both run under jit, interleaved.

An unbalanced choice can exceed the optimum, and "missing" is then negative. The benchmark stops if a bound is below the
optimum.
"""

import statistics
import time
from typing import NamedTuple

import numpy as np

from routelaws.accelerated.results.blocks import Table, markdown

SIZE, REPEATS, SEED = (1024, 16), 3, 0

INPUTS = ("random", "skewed", "anisotropic", "tied", "integer")

ENTROPIES = (1.0, 0.1, 0.01, 0.001)

STEPS = (1, 10, 100)


class Result(NamedTuple):
    """One line of the table."""

    inputs: str
    method: str
    objective: float
    bound: float
    gap: float  # share of the optimum's gain over the cyclic assignment
    missing: float  # share of the optimum's gain over the cyclic assignment
    imbalance: float  # largest load over mean load; 1 is balance
    ratio: float  # time divided by the time of the first method, median over the repeats
    note: str


class Outcome(NamedTuple):
    expert: np.ndarray | None  # [T]
    plan: np.ndarray | None  # [T, E], a plan instead of experts
    prices: np.ndarray  # [E]
    note: str = ""


def draw(kind: str, num_tokens: int, num_experts: int, seed: int) -> np.ndarray:
    """Return scores [T, E] in float32."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((num_tokens, num_experts))
    values = {
        "random": lambda: noise,
        "skewed": lambda: noise + np.linspace(0, 2, num_experts),
        "anisotropic": lambda: (
            (random.standard_normal((num_tokens, 32)) + 2 * random.standard_normal(32))
            @ random.standard_normal((32, num_experts))
            / np.sqrt(32)
        ),
        "tied": lambda: random.choice([-0.5, 0.0, 0.5], (num_tokens, num_experts)),
        "integer": lambda: random.integers(-3, 4, (num_tokens, num_experts)),
    }[kind]()
    return values.astype(np.float32)


def methods() -> dict:
    """Return {name: function of scores [T, E] -> Outcome}. Each call repeats the compiled work."""
    import jax
    import jax.numpy as jnp

    from routelaws.accelerated.routers.base import balanced_assignment
    from routelaws.accelerated.routers.quantile import quantile_bias
    from routelaws.accelerated.routers.sinkhorn import sinkhorn_plan

    def assigned(method):
        solve = jax.jit(lambda scores: balanced_assignment(scores, method=method))

        def run(scores):
            runs = solve(scores)
            return Outcome(np.asarray(runs.expert).reshape(len(scores), -1)[:, 0], None, np.asarray(runs.prices))

        return run

    solve_plan = jax.jit(lambda scores, entropy: sinkhorn_plan(scores / entropy))

    def by_entropy(entropy, rounded):
        def run(scores):
            runs = solve_plan(scores, entropy)
            prices = -entropy * np.asarray(runs.column_potential)
            note = f"{int(runs.sweeps)} sweeps" + (f", {runs.newton_steps} steps" if runs.newton_steps else "")
            plan = np.asarray(runs.plan)
            return Outcome(plan.argmax(axis=1), None, prices, note) if rounded else Outcome(None, plan, prices, note)

        return run

    def by_quantiles(steps):
        solve = jax.jit(lambda scores: quantile_bias(scores, jnp.zeros(scores.shape[1]), num_steps=steps))

        def run(scores):
            bias = np.asarray(solve(scores))
            return Outcome((scores - bias).argmax(axis=1), None, bias)

        return run

    runs = {"exact": assigned("host"), "auction": assigned("auction")}
    for entropy in ENTROPIES:
        runs[f"entropy {entropy:g}, argmax"] = by_entropy(entropy, True)
        runs[f"entropy {entropy:g}, plan"] = by_entropy(entropy, False)
    return runs | {f"quantile, {steps} steps": by_quantiles(steps) for steps in STEPS}


def dual_bound(scores: np.ndarray, prices: np.ndarray) -> float:
    """Return the dual bound of prices in float64 (`reference.routers.base.dual_bound` at k = 1)."""
    scores, prices = scores.astype(np.float64), prices.astype(np.float64)
    everyone, more = divmod(*scores.shape)
    dearest = np.sort(prices)[::-1][:more]
    return float((scores - prices).max(axis=1).sum() + everyone * prices.sum() + dearest.sum())


def judge(scores: np.ndarray, outcome: Outcome) -> tuple[float, float, float]:
    num_tokens, num_experts = scores.shape
    if outcome.expert is None:
        plan = outcome.plan.astype(np.float64)
        load, objective = plan.sum(axis=0), num_tokens * (plan * scores).sum()
    else:
        load = np.bincount(outcome.expert, minlength=num_experts) / num_tokens
        objective = scores[np.arange(num_tokens), outcome.expert].sum(dtype=np.float64)
    return float(objective), dual_bound(scores, outcome.prices), float(load.max() * num_experts)


def measure(kind: str, num_tokens: int, num_experts: int, repeats: int, seed: int) -> list[Result]:
    """Run every method on a kind of scores, in turns.

    Raises:
        RuntimeError: a dual bound is below the optimum.
    """
    scores, available = draw(kind, num_tokens, num_experts, seed), methods()
    outcomes = {name: method(scores) for name, method in available.items()}  # compiles
    seconds = {name: [] for name in available}
    for _ in range(repeats):
        for name, method in available.items():
            begin = time.perf_counter()
            method(scores)
            seconds[name].append(time.perf_counter() - begin)
    optimum = judge(scores, outcomes["exact"])[0]
    cyclic = scores[np.arange(num_tokens), np.arange(num_tokens) % num_experts].sum(dtype=np.float64)
    lead, lines = max(optimum - cyclic, np.finfo(np.float32).tiny), []
    for name, outcome in outcomes.items():
        objective, bound, imbalance = judge(scores, outcome)
        rounding = np.finfo(np.float32).eps * np.abs(scores).max() * num_tokens
        if bound < optimum - rounding:
            raise RuntimeError(f"{kind}, {name}: dual bound {bound} is below the optimum {optimum}")
        ratio = statistics.median(t / first for t, first in zip(seconds[name], seconds["exact"], strict=True))
        shares = (bound - objective) / lead, (optimum - objective) / lead
        lines.append(Result(kind, name, objective, bound, *shares, imbalance, ratio, outcome.note))
    return lines


HEADS = ["scores", "method", "objective", "dual bound", "gap", "missing", "imbalance", "time ratio", ""]


def cells(line: Result) -> list[str]:
    numbers = [f"{line.objective:.3f}", f"{line.bound:.3f}", f"{line.gap:.1e}", f"{line.missing:.1e}"]
    return [line.inputs, line.method, *numbers, f"{line.imbalance:.3f}", f"{line.ratio:.2g}", line.note]


def table(lines: list[Result]) -> str:
    return markdown([Table(HEADS, [cells(line) for line in lines])])


if __name__ == "__main__":
    print(table([line for kind in INPUTS for line in measure(kind, *SIZE, REPEATS, SEED)]), end="")
