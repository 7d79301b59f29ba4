"""How fast the bounded law is fitted, beside the method of the notebook that was released with Clark et al. 2022.

    python -m routelaws.accelerated.benchmarks.law_fit [--bootstraps 1000] [--restarts 20] [--repeats 5] [--seed 0]

Three things are measured in turns, so that a machine that slows down slows all of them, and medians are printed:

1. Restarts as in the notebook: L-BFGS-B (SciPy) on all six coefficients, with a jitted JAX value and gradient, E_start
   and E_max as powers of two, each start an initial point times standard normal numbers (the point is our choice). One
   restart counts as one fit, whether or not it ends at the optimum; how many do is a column of its own.
2. A bootstrap: `fit_weighted` on resampled rows of each router. How many of its fits end at the optimum is judged by a
   much denser search of the same resamples.
3. Single fits: `fit_routed`, by least squares and by Huber's criterion.

The tables are the released ones where ROUTELAWS_DATA names their folder. Elsewhere they are drawn from a stated law
with stated noise, on the released sizes and expert counts. Times are of one process after warm-up.
"""

import argparse
import csv
import gzip
import math
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..laws.fitting import fit_routed, fit_weighted
from ..laws.routed import RoutedCoefficients, predict_loss

SIZES = (16_527_360, 27_279_360, 57_369_600, 132_163_584, 368_123_904, 1_308_819_456)
EXPERTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LAWS = {
    "S-Base": RoutedCoefficients(-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "RL-R": RoutedCoefficients(-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    "Hash": RoutedCoefficients(-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
}
"""Clark et al. 2022, Table 3: the laws of the drawn tables."""

NOISE = 0.0032  # log10, of the drawn tables: the root mean square residual of the released ones
INITIAL = np.array([-0.1, -0.1, 0.01, 1.0, 1.0, 8.0])  # a, b, c, d, log2 E_start, log2 E_max; our choice
REACHED = 1e-8  # relative excess over the least objective up to which a fit counts as having reached it
DENSE = {"scan": 40, "starts": 10, "careful": True}  # the search that fits of the bootstrap are judged by
DELTA = 1e-3  # log10, of the Huber fits

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


class Result(NamedTuple):
    """One line of the table."""

    method: str
    fits: int  # in each repeat
    seconds: float  # median over the repeats, for all these fits
    reached: float  # share of the fits within REACHED of the optimum

    @property
    def rate(self) -> float:
        return self.fits / self.seconds


def tables(seed: int) -> tuple[str, dict[str, Columns]]:
    """Return where the tables are from, and N, E and loss of each router."""
    folder = os.environ.get("ROUTELAWS_DATA")
    path = Path(folder, "curves.csv.gz") if folder else None
    if path is not None and path.is_file():
        return "the released table", {router: released(path, router) for router in LAWS}
    random = np.random.default_rng(seed)
    size, experts = (v.ravel().astype(float) for v in np.meshgrid(SIZES, EXPERTS))
    drawn = {
        router: (size, experts, predict_loss(size, experts, law) * 10 ** random.normal(0, NOISE, size.size))
        for router, law in LAWS.items()
    }
    return f"drawn from Table 3 with noise {NOISE:g} in log10 (ROUTELAWS_DATA is not set)", drawn


def released(path: Path, router: str) -> Columns:
    """Return the rows that the notebook fits: routing frequency 0.5, k 1, seed 42, with the dense rows, at the end."""
    last: dict[str, dict] = {}
    with gzip.open(path, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            wanted = (row["routing_frequency"], row["k"], row["seed"]) == ("0.5", "1", "42")
            if wanted and row["router_type"] in (router, "Dense"):
                if row["hyper_id"] not in last or int(row["step"]) >= int(last[row["hyper_id"]]["step"]):
                    last[row["hyper_id"]] = row
    size, experts, loss = (
        np.array([float(row[name]) for row in last.values()])
        for name in ("dense_parameter_count", "num_experts", "loss_validation")
    )
    return size, experts, loss


def notebook(columns: Columns):
    """Return a function that runs one restart of the notebook's method from a start [6] and gives its objective."""
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize

    with jax.enable_x64(True):
        log_size, experts, log_loss = (jnp.asarray(v) for v in (np.log10(columns[0]), columns[1], np.log10(columns[2])))

        @jax.jit
        @jax.value_and_grad
        def objective(x):
            a, b, c, d, start, end = x
            E_start, E_max = 2.0**start, 2.0**end
            effective = 1 / (1 / (experts - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max)
            log_experts = jnp.log10(effective)
            predicted = a * log_size + b * log_experts + c * log_size * log_experts + d
            return jnp.mean((predicted - log_loss) ** 2)

        def from_numpy(x):
            value, slope = objective(x)
            return float(value), np.asarray(slope)

        def restart(start: np.ndarray) -> float:
            with jax.enable_x64(True):
                return float(minimize(from_numpy, start, jac=True, method="L-BFGS-B").fun)

    return restart


def resamples(rows: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return weights [count, rows]: how often each row is drawn when as many are drawn as there are."""
    drawn = random.integers(0, rows, (count, rows))
    return np.array([np.bincount(line, minlength=rows) for line in drawn], dtype=float)


def reached(objectives, optima) -> float:
    """Return the share of objectives within REACHED of their optimum; NaN (no fit) beside NaN counts as reached."""
    objectives, optima = np.asarray(objectives), np.asarray(optima)
    same = (objectives <= optima * (1 + REACHED)) | (np.isnan(objectives) & np.isnan(optima))
    return float(np.mean(same))


def measure(bootstraps: int, restarts: int, repeats: int, seed: int) -> tuple[str, list[Result]]:
    """Run everything in turns; returns where the tables are from, and the lines of the table."""
    random = np.random.default_rng(seed)
    source, columns = tables(seed)
    weights = {router: resamples(v[0].size, bootstraps, random) for router, v in columns.items()}
    starts = random.normal(size=(len(columns) * restarts, INITIAL.size)) * INITIAL
    runs = {router: notebook(v) for router, v in columns.items()}
    jobs = [(router, start) for router, start in zip(list(columns) * restarts, starts, strict=True)]
    methods = {
        "L-BFGS-B restarts, JAX gradient": lambda: [runs[router](start) for router, start in jobs],
        "fit_weighted, bootstrap": lambda: [fit_weighted(*v, weights[name]).objective for name, v in columns.items()],
        "fit_routed, least squares": lambda: [fit_routed(*v).objective for v in columns.values()],
        f"fit_routed, Huber {DELTA:g}": lambda: [fit_routed(*v, DELTA).objective for v in columns.values()],
    }
    for start, run in zip(starts, runs.values(), strict=False):  # compiles
        run(start)
    for method in list(methods.values())[1:]:
        method()
    seconds, found = {name: [] for name in methods}, {}
    for _ in range(repeats):
        for name, method in methods.items():
            begin = time.perf_counter()
            found[name] = np.concatenate([np.atleast_1d(part) for part in method()])
            seconds[name].append(time.perf_counter() - begin)
    best = optima(columns, weights, jobs)
    lines = [
        Result(name, found[name].size, statistics.median(seconds[name]), reached(found[name], optimum))
        for name, optimum in zip(methods, best, strict=True)
    ]
    return source, lines


def optima(columns: dict[str, Columns], weights: dict[str, np.ndarray], jobs: list) -> list[np.ndarray]:
    """Return the least objectives that a dense search finds, for the fits of each method in their order."""
    scan = {"scan": DENSE["scan"], "starts": DENSE["starts"]}
    squares = {router: fit_routed(*v, **scan).objective for router, v in columns.items()}
    dense = [fit_weighted(*v, weights[router], **DENSE).objective for router, v in columns.items()]
    return [
        np.array([squares[router] for router, _ in jobs]),
        np.concatenate(dense),
        np.array(list(squares.values())),
        np.array([fit_routed(*v, DELTA, **scan).objective for v in columns.values()]),
    ]


def report(source: str, lines: list[Result]) -> str:
    """Return the table as text."""
    text = [f"tables: {source}", f"{'method':34}{'fits':>7}{'seconds':>10}{'fits/s':>12}{'at the optimum':>16}"]
    text += [f"{x.method:34}{x.fits:>7}{x.seconds:>10.4f}{x.rate:>12.0f}{100 * x.reached:>14.2f} %" for x in lines]
    if all(math.isfinite(x.rate) for x in lines[:2]):
        text.append(f"fits per second, bootstrap over restarts: {lines[1].rate / lines[0].rate:.0f}")
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Times of the fits of the bounded law.")
    parser.add_argument("--bootstraps", type=int, default=1000, help="resamples of each router (%(default)s)")
    parser.add_argument("--restarts", type=int, default=20, help="restarts for each router (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the median (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the starts, resamples and noise (%(default)s)")
    given = parser.parse_args(arguments)
    for name in ("bootstraps", "restarts", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}; needed: at least 1")
    if given.seed < 0:
        parser.error(f"--seed is {given.seed}; needed: at least 0")
    print(report(*measure(given.bootstraps, given.restarts, given.repeats, given.seed)))


if __name__ == "__main__":
    main()
