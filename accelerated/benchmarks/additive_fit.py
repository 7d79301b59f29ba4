"""The figure of how fast Hoffmann's law is fitted from 300 starts at once, beside SciPy's L-BFGS-B, start after start.

Both begin from starts drawn from the 4,500 of Hoffmann et al. and minimise the sum of Huber terms (delta 1e-3 in ln L).
L-BFGS-B has the analytic gradient of the log-sum-exp form, in NumPy, and stops where its own tight tolerances say. "At
the least" is within a millionth of the least sum that the same side found.

The table is that of the 240 released points where ROUTELAWS_DATA names their folder. Elsewhere it is drawn from a
stated law with stated noise, on a grid of sizes and tokens.
"""

import os

import numpy as np

from .figure import Figure, Side
from .worker import Job

LAW = (480.0, 0.348, 2085.0, 0.366, 1.817)
"""A, alpha, B, beta and C of the drawn table."""

NOISE = 8e-3  # of ln L, of the drawn table: the root mean square residual of the released points
DELTA = 1e-3
REACHED = 1e-6


def table(seed: int) -> tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return where the table is from, and N, D and loss."""
    from ..laws.hoffmann import HoffmannCoefficients, predict_hoffmann
    from ..tables.released import TIDY_POINTS, data_folder, hoffmann_points

    if os.environ.get("ROUTELAWS_DATA") and (data_folder() / TIDY_POINTS[0]).is_file():
        return "the 240 released points", tuple(hoffmann_points())
    size, tokens = (v.ravel() for v in np.meshgrid(np.geomspace(6e7, 1.6e10, 15), np.geomspace(5e8, 3e11, 16)))
    noise = np.exp(np.random.default_rng(seed).normal(0, NOISE, size.size))
    return f"drawn, noise {NOISE:g} of ln L", (
        size,
        tokens,
        predict_hoffmann(size, tokens, HoffmannCoefficients(*LAW)) * noise,
    )


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


def drawn(count: int, seed: int = 0) -> tuple[str, tuple, np.ndarray, np.ndarray]:
    """Return where the table is from, its columns, its losses, and so many starts of the published grid."""
    from ..laws import hoffmann
    from ..laws._smooth import check_table

    source, (size, tokens, loss) = table(seed)
    columns, loss = check_table("hoffmann", {"dense_parameters": size, "tokens": tokens}, loss, 5)
    grid = hoffmann.published_starts()
    return source, columns, loss, grid[np.random.default_rng(seed).choice(len(grid), count, replace=False)]


def ours(count: int, seed: int = 0) -> Job:
    """Return a job that fits from so many starts at once."""
    from ..laws.hoffmann import fit_hoffmann

    source, columns, loss, starts = drawn(count, seed)
    held = {}

    def run():
        held["fit"] = fit_hoffmann(*columns, loss, DELTA, starts)

    def facts():
        share = held["fit"].reached / count
        return {"starts": count, "least": held["fit"].objective, "at_the_least": share, "table": source}

    return Job(run, facts)


def by_scipy(count: int, of: int, seed: int = 0) -> Job:
    """Return a job that runs L-BFGS-B from the first `count` of the starts that `ours` has of `of`."""
    _, columns, loss, starts = drawn(of, seed)
    held = {}

    def run():
        held["ends"] = [scipy_restart(columns, loss, start) for start in starts[:count]]

    def facts():
        least = min(held["ends"])
        return {
            "starts": count,
            "least": least,
            "at_the_least": sum(x <= least * (1 + REACHED) for x in held["ends"]) / count,
        }

    return Job(run, facts)


def over_scipy(bench):
    """Measure the starts per second of ours over those of SciPy."""
    many, few = (20, 1) if bench.settings.quick else (300, 20)
    sides = {
        "ours": Side("additive_fit:ours", {"count": many}, per=many),
        "scipy": Side("additive_fit:by_scipy", {"count": few, "of": many}, per=few),
    }
    return bench.compare(sides, lambda s: s["scipy"] / s["ours"], bench.threads())


FIGURES = (
    Figure("additive-fits", "starts per second of the fit of Hoffmann's law over those of L-BFGS-B", None, over_scipy),
)
