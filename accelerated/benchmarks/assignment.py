"""How fast tokens are assigned to experts exactly, beside general solvers of the same problem.

    python -m routelaws.accelerated.benchmarks.assignment [--sizes 1024x16 4096x64 16384x64] [--k 1] [--repeats 5]
                                                          [--seed 0]

Measured in turns, so that a machine that slows down slows all of them; times and ratios are medians over the repeats:

1. `kernels.assignment.assign`, the compiled loops behind `routers.base` (one thread).
2. The same through jit and the callback to the host.
3. The auction on the device (`method="auction"`), which is exact up to its increment; only up to `--auction` tokens,
   since on CPU its many sorts take seconds.
4. SciPy's `linear_sum_assignment`, with one column for each of the T places; at k = 1 and up to `--scipy` tokens.
5. OR-tools' minimum-cost flow, where it is installed, on costs rounded to 1e-6 of the largest score.

What is left out is named below the table.

Scores: "skew" is normal with a trend over the experts, "aniso" has a direction that all tokens share, so that they
prefer the same experts. `missing` is the largest shortfall from our optimum, as a share of its objective.
"""

import argparse
import importlib.util
import re
import statistics
import time
from typing import NamedTuple

import numpy as np

from ..kernels.assignment import assign

INPUTS = ("skew", "aniso")


class Result(NamedTuple):
    """One line of the table."""

    size: str
    inputs: str
    method: str
    milliseconds: float  # median
    ratio: float  # median over the repeats of its time over that of the first method
    missing: float  # share of the optimum


def draw(kind: str, num_tokens: int, num_experts: int, seed: int) -> np.ndarray:
    """Return scores [T, E] in float32."""
    random = np.random.default_rng(seed)
    if kind == "skew":
        values = random.standard_normal((num_tokens, num_experts)) + np.linspace(0, 2, num_experts)
    else:
        tokens = random.standard_normal((num_tokens, 32)) + 2 * random.standard_normal(32)
        values = tokens @ random.standard_normal((32, num_experts)) / np.sqrt(32)
    return values.astype(np.float32)


def through_jit(**options):
    """Return a function that assigns scores under jit and waits for the experts."""
    import jax

    from ..routers.base import balanced_assignment

    compiled = jax.jit(lambda scores: balanced_assignment(scores, **options).expert)
    return lambda scores: np.asarray(compiled(scores))


def by_scipy(scores: np.ndarray) -> np.ndarray:
    """Return experts by SciPy's solver; E has to divide T."""
    from scipy.optimize import linear_sum_assignment

    places = np.repeat(np.arange(scores.shape[1]), len(scores) // scores.shape[1])
    return places[linear_sum_assignment(scores[:, places], maximize=True)[1]]


def by_ortools(scores: np.ndarray, k: int) -> np.ndarray:
    """Return experts [T, k] by OR-tools' minimum-cost flow; E has to divide T."""
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    num_tokens, num_experts = scores.shape
    token, expert = (index.ravel() for index in np.indices(scores.shape))
    cost = np.rint(-scores.ravel().astype(float) * (1e6 / np.abs(scores).max())).astype(np.int64)
    flow = SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(token, num_tokens + expert, np.ones_like(cost), cost)
    supply = np.append(np.full(num_tokens, k), np.full(num_experts, -num_tokens * k // num_experts))
    flow.set_nodes_supplies(np.arange(num_tokens + num_experts), supply)
    if flow.solve() != flow.OPTIMAL:
        raise RuntimeError("OR-tools found no optimum")
    return expert[flow.flows(arcs).astype(bool)].reshape(num_tokens, k)  # arcs are in the order of the tokens


def methods(num_tokens: int, k: int, auction_tokens: int, scipy_tokens: int) -> tuple[dict, list[str]]:
    """Return {name: function of scores} of what is there and not too slow, and a line on each that is left out."""
    found, left_out = {"assign": lambda scores: assign(scores, k).expert, "assign under jit": through_jit(k=k)}, []
    if num_tokens <= auction_tokens:
        found["auction under jit"] = through_jit(k=k, method="auction")
    else:
        left_out.append(f"auction under jit: left out above {auction_tokens} tokens (--auction)")
    if k > 1:
        left_out.append("SciPy, T columns: left out for k > 1, where a token could be at one expert twice")
    elif num_tokens <= scipy_tokens:
        found["SciPy, T columns"] = by_scipy
    else:
        left_out.append(f"SciPy, T columns: left out above {scipy_tokens} tokens (--scipy)")
    if importlib.util.find_spec("ortools"):
        found["OR-tools flow"] = lambda scores: by_ortools(scores, k)
    else:
        left_out.append("OR-tools flow: skipped, not installed (pip install 'routelaws[bench]')")
    return found, left_out


def measure(num_tokens: int, num_experts: int, k: int, repeats: int, seed: int, available: dict) -> list[Result]:
    """Run every method in turns on both kinds of scores."""
    lines = []
    for kind in INPUTS:
        scores = draw(kind, num_tokens, num_experts, seed)
        for name, method in available.items():
            if name not in ("SciPy, T columns", "OR-tools flow"):
                method(scores)  # compiles
        seconds, reached = {name: [] for name in available}, {}
        for _ in range(repeats):
            for name, method in available.items():
                begin = time.perf_counter()
                expert = method(scores)
                seconds[name].append(time.perf_counter() - begin)
                expert = expert.reshape(num_tokens, k)
                load = np.bincount(expert.ravel(), minlength=num_experts)
                if load.max() - load.min() > 1:
                    raise RuntimeError(f"{name}: loads {load.tolist()} are not balanced")
                reached[name] = np.take_along_axis(scores, expert, axis=1).sum(dtype=np.float64)
        optimum = reached["assign"]
        for name, times in seconds.items():
            ratio = statistics.median(theirs / ours for theirs, ours in zip(times, seconds["assign"], strict=True))
            missing = (optimum - reached[name]) / abs(optimum)
            size = f"{num_tokens}x{num_experts}"
            lines.append(Result(size, kind, name, 1e3 * statistics.median(times), ratio, missing))
    return lines


def report(lines: list[Result]) -> str:
    """Return the table as text."""
    text = [f"{'tokens x experts':18}{'scores':8}{'method':20}{'ms':>10}{'ratio':>9}{'missing':>10}"]
    text += [
        f"{x.size:18}{x.inputs:8}{x.method:20}{x.milliseconds:>10.2f}{x.ratio:>9.1f}{x.missing:>10.1e}" for x in lines
    ]
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Times of the exact balanced assignment.")
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["1024x16", "4096x64", "16384x64"],
        metavar="TxE",
        help="tokens x experts; E has to divide T (%(default)s)",
    )
    parser.add_argument("--k", type=int, default=1, help="experts per token (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the median (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the scores (%(default)s)")
    parser.add_argument("--scipy", type=int, default=1024, metavar="T", help="most tokens for SciPy (%(default)s)")
    parser.add_argument("--auction", type=int, default=4096, metavar="T", help="most tokens for it (%(default)s)")
    given = parser.parse_args(arguments)
    sizes = []
    for size in given.sizes:
        shape = [int(part) for part in size.split("x")] if re.fullmatch(r"[1-9]\d*x[1-9]\d*", size) else [1, 2]
        if shape[0] % shape[1]:
            parser.error(f"--sizes has {size}; needed: tokens x experts, such as 1024x16, where experts divide tokens")
        sizes.append(shape)
    for name, least in (("repeats", 1), ("seed", 0), ("k", 1)):
        if getattr(given, name) < least:
            parser.error(f"--{name} is {getattr(given, name)}; needed: at least {least}")
    if given.k > min(shape[1] for shape in sizes):
        parser.error(f"--k is {given.k}; needed: at most the experts of every size")
    lines, notes = [], {}
    for size in sizes:
        available, left_out = methods(size[0], given.k, given.auction, given.scipy)
        notes |= dict.fromkeys(left_out)
        lines += measure(*size, given.k, given.repeats, given.seed, available)
    print("\n".join([report(lines), *notes]))


if __name__ == "__main__":
    main()
