"""How fast Hoffmann's law is fitted from 300 starts at once, beside SciPy's L-BFGS-B, one start after the other.

    python -m routelaws.accelerated.benchmarks.additive_fit [--starts 300] [--restarts 20] [--repeats 5] [--seed 0]

Both begin from starts drawn from the 4,500 of Hoffmann et al. and minimise the sum of Huber terms (delta 1e-3 in ln L).
L-BFGS-B has the analytic gradient of the log-sum-exp form, in NumPy, and stops where its own tight tolerances say. The
two are measured in turns, after one run of each, and medians are printed; `restarts` of the starts are given to SciPy,
and its time is per start. "At the optimum" is within a millionth of the least sum that any of them found.

The table is that of the 240 released points where ROUTELAWS_DATA names their folder. Elsewhere it is drawn from a
stated law with stated noise, on a grid of sizes and tokens.
"""

import argparse
import os
import statistics
import time
from typing import NamedTuple

import numpy as np

from ..laws import hoffmann
from ..laws._smooth import check_table
from ..tables.released import TIDY_POINTS, data_folder, hoffmann_points

LAW = hoffmann.HoffmannCoefficients(480.0, 0.348, 2085.0, 0.366, 1.817)
NOISE = 8e-3  # of ln L, of the drawn table: the root mean square residual of the released points
DELTA = 1e-3
REACHED = 1e-6


class Result(NamedTuple):
    """One line of the table."""

    method: str
    starts: int  # in each repeat
    seconds: float  # median over the repeats
    reached: float  # share of the starts that end at the least sum

    @property
    def rate(self) -> float:
        return self.starts / self.seconds


def table(seed: int) -> tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return where the table is from, and N, D and loss."""
    if os.environ.get("ROUTELAWS_DATA") and (data_folder() / TIDY_POINTS[0]).is_file():
        return "the 240 released points", tuple(hoffmann_points())
    size, tokens = (v.ravel() for v in np.meshgrid(np.geomspace(6e7, 1.6e10, 15), np.geomspace(5e8, 3e11, 16)))
    noise = np.exp(np.random.default_rng(seed).normal(0, NOISE, size.size))
    return f"drawn, noise {NOISE:g} of ln L", (size, tokens, hoffmann.predict_hoffmann(size, tokens, LAW) * noise)


def scipy_restart(columns: tuple, loss: np.ndarray, start: np.ndarray) -> float:
    """Return the sum of Huber terms at which one start of L-BFGS-B ends."""
    from scipy.optimize import minimize

    log_size, log_tokens, log_loss = np.log(columns[0]), np.log(columns[1]), np.log(loss)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        a, alpha, b, beta, c = theta
        terms = np.stack([a - alpha * log_size, b - beta * log_tokens, np.full(log_loss.size, c)])
        top = terms.max(axis=0)
        parts = np.exp(terms - top)
        total = parts.sum(axis=0)
        shares = parts / total
        residual = top + np.log(total) - log_loss
        pull = np.clip(residual, -DELTA, DELTA)
        by_size, by_tokens = pull * shares[0], pull * shares[1]
        slopes = [by_size.sum(), -by_size @ log_size, by_tokens.sum(), -by_tokens @ log_tokens, pull @ shares[2]]
        return float(np.sum(pull * (residual - pull / 2))), np.array(slopes)

    multipliers = [0, 2, 4]
    theta = np.array(start)
    theta[multipliers] = np.log(theta[multipliers])
    tight = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}
    return float(minimize(objective, theta, jac=True, method="L-BFGS-B", options=tight).fun)


def measure(starts: int, restarts: int, repeats: int, seed: int) -> tuple[str, list[Result]]:
    """Run both in turns; returns where the table is from, and the lines of the report."""
    source, (size, tokens, loss) = table(seed)
    columns, loss = check_table("hoffmann", {"dense_parameters": size, "tokens": tokens}, loss, 5)
    grid = hoffmann.published_starts()
    drawn = grid[np.random.default_rng(seed).choice(len(grid), starts, replace=False)]

    def ours():
        return hoffmann.fit_hoffmann(*columns, loss, DELTA, drawn)

    fit = ours()  # compiles
    seconds: tuple[list, list] = ([], [])
    for _ in range(repeats):
        begin = time.perf_counter()
        fit = ours()
        middle = time.perf_counter()
        ends = np.array([scipy_restart(columns, loss, start) for start in drawn[:restarts]])
        for list_, value in zip(seconds, (middle - begin, time.perf_counter() - middle), strict=True):
            list_.append(value)
    least = min(fit.objective, float(ends.min()))
    share = fit.reached / starts if fit.objective <= least * (1 + REACHED) else 0.0
    return source, [
        Result("fit_hoffmann, all starts at once", starts, statistics.median(seconds[0]), share),
        Result(
            "L-BFGS-B, start by start",
            restarts,
            statistics.median(seconds[1]),
            float(np.mean(ends <= least * (1 + REACHED))),
        ),
    ]


def report(source: str, lines: list[Result]) -> str:
    """Return the table as text."""
    text = [f"table: {source}", f"{'method':34}{'starts':>7}{'seconds':>10}{'starts/s':>12}{'at the optimum':>16}"]
    text += [f"{x.method:34}{x.starts:>7}{x.seconds:>10.4f}{x.rate:>12.0f}{100 * x.reached:>14.1f} %" for x in lines]
    return "\n".join([*text, f"starts per second, ours over SciPy's: {lines[0].rate / lines[1].rate:.0f}"])


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Times of the fit of Hoffmann's law.")
    parser.add_argument("--starts", type=int, default=300, help="starts of ours (%(default)s)")
    parser.add_argument("--restarts", type=int, default=20, help="of these, given to SciPy (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the median (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the starts and the noise (%(default)s)")
    given = parser.parse_args(arguments)
    for name in ("starts", "restarts", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}; needed: at least 1")
    if given.starts > 4500:
        parser.error(f"--starts is {given.starts}; needed: at most 4500, those there are")
    print(report(*measure(given.starts, min(given.restarts, given.starts), given.repeats, given.seed)))


if __name__ == "__main__":
    main()
