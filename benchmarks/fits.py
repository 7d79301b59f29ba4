"""Figures of the fits: our fits per second, divided by the fits per second of SciPy's L-BFGS-B.

Law of routing: the notebook of Clark et al. 2022 runs L-BFGS-B on all six coefficients (log2 of E_start and E_max) with
a jitted gradient. Each start is an initial point (our choice) times normal numbers, and counts as a fit. Our side fits
resampled tables to their optimum (`fit_weighted`).

Hoffmann's law: both sides minimise the sum of Huber terms from starts of the published grid. L-BFGS-B has the analytic
gradient of the log-sum-exp form, in NumPy. Tables are drawn from printed coefficients with noise. Each side reports the
share of its fits within `REACHED` of its best objective.

First fit: a new process with empty caches reads the law of routing's table and fits it, with imports. SciPy's process
runs `least_squares` from nine starts, with differences of the residuals as derivatives. Both are CPU seconds.
"""

import os
import resource
import subprocess
import sys
import tempfile

import numpy as np

from .figure import Figure, Job, Side, over

SIZES = (16_527_360, 27_279_360, 57_369_600, 132_163_584, 368_123_904, 1_308_819_456)
EXPERTS = 2.0 ** np.arange(10)
ROUTED = (-0.082, -0.108, 0.009, 1.104, 1.847, 314.478)
"""Clark et al. 2022, Table 3, S-BASE: a, b, c, d, E_start and E_max."""

INITIAL = np.array([-0.1, -0.1, 0.01, 1.0, 1.0, 8.0])  # a, b, c, d, log2 E_start, log2 E_max; our choice
HOFFMANN = (480.0, 0.348, 2085.0, 0.366, 1.817)  # A, alpha, B, beta, C
NOISE = {"routed": 0.0032, "hoffmann": 8e-3}  # deviation of log10 L and of ln L, as in the released tables
DELTA = 1e-3
TIGHT = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}
REACHED = 1e-6
SHARE = 20  # a quick run divides the counts of both sides by this number
COUNTS = {"bootstrap": 1000, "restarts": 20, "starts": 300, "scipy starts": 20}


def routed_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N, E and losses of 60 runs."""
    from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

    size, experts = (values.ravel() for values in np.meshgrid(np.array(SIZES, float), EXPERTS))
    noise = np.random.default_rng(0).normal(0, NOISE["routed"], size.size)
    return size, experts, predict_loss(size, experts, RoutedCoefficients(*ROUTED)) * 10**noise


def bootstrap(quick: bool = False) -> Job:
    """Return a job that fits the law of routing to resampled rows."""
    from routelaws.accelerated.laws.fitting import fit_weighted

    columns, count = routed_table(), COUNTS["bootstrap"] // (SHARE if quick else 1)
    rows = columns[0].size
    drawn = np.random.default_rng(0).integers(0, rows, (count, rows))
    weights = np.array([np.bincount(line, minlength=rows) for line in drawn], dtype=float)
    return Job(lambda: fit_weighted(*columns, weights))


def restarts(quick: bool = False) -> Job:
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize

    size, experts, loss = routed_table()
    count, ends = COUNTS["restarts"] // (SHARE if quick else 1), []
    starts = np.random.default_rng(0).normal(size=(count, INITIAL.size)) * INITIAL

    @jax.jit
    @jax.value_and_grad
    def objective(x):
        a, b, c, d, start, end = x
        E_start, E_max = 2.0**start, 2.0**end
        effective = 1 / (1 / (experts - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max)
        log_size, log_experts = jnp.log10(size), jnp.log10(effective)
        predicted = a * log_size + b * log_experts + c * log_size * log_experts + d
        return jnp.mean((predicted - jnp.log10(loss)) ** 2)

    def run():
        with jax.enable_x64(True):
            objectives = [minimize(objective, start, jac=True, method="L-BFGS-B").fun for start in starts]
        ends[:] = map(float, objectives)

    return Job(run, lambda: _reached(ends))


def starts_at_once(quick: bool = False) -> Job:
    from routelaws.accelerated.laws.hoffmann import fit_hoffmann

    columns, starts = hoffmann_table(), hoffmann_starts(COUNTS["starts"] // (SHARE if quick else 1))
    held = {}

    def run():
        held["fit"] = fit_hoffmann(*columns, DELTA, starts)

    return Job(run, lambda: {"least": held["fit"].objective, "at_the_least": held["fit"].reached / len(starts)})


def scipy_starts(quick: bool = False) -> Job:
    """Return a job that fits Hoffmann's law by L-BFGS-B from some of these starts."""
    columns, ends = hoffmann_table(), []
    starts = hoffmann_starts(COUNTS["starts"])[: COUNTS["scipy starts"] // (SHARE if quick else 1)]

    def run():
        ends[:] = [scipy_end(*columns, start) for start in starts]

    return Job(run, lambda: _reached(ends))


def hoffmann_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N, D and losses of 240 runs."""
    from routelaws.accelerated.laws.hoffmann import HoffmannCoefficients, predict_hoffmann

    size, tokens = (
        values.ravel() for values in np.meshgrid(np.geomspace(6e7, 1.6e10, 15), np.geomspace(5e8, 3e11, 16))
    )
    noise = np.random.default_rng(0).normal(0, NOISE["hoffmann"], size.size)
    return size, tokens, predict_hoffmann(size, tokens, HoffmannCoefficients(*HOFFMANN)) * np.exp(noise)


def hoffmann_starts(count: int) -> np.ndarray:
    from routelaws.accelerated.laws.hoffmann import published_starts

    grid = published_starts()
    return grid[np.random.default_rng(0).choice(len(grid), count, replace=False)]


def scipy_end(size: np.ndarray, tokens: np.ndarray, loss: np.ndarray, start: np.ndarray) -> float:
    """Return the final sum of Huber terms of L-BFGS-B from a start A, alpha, B, beta, C."""
    from scipy.optimize import minimize

    log_size, log_tokens, log_loss = np.log(size), np.log(tokens), np.log(loss)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        a, alpha, b, beta, c = theta
        terms = np.stack([a - alpha * log_size, b - beta * log_tokens, np.full(log_loss.size, c)])
        top = terms.max(axis=0)
        parts = np.exp(terms - top)
        shares = parts / parts.sum(axis=0)
        residual = top + np.log(parts.sum(axis=0)) - log_loss
        pull = np.clip(residual, -DELTA, DELTA)
        by_size, by_tokens = pull * shares[0], pull * shares[1]
        slopes = [by_size.sum(), -by_size @ log_size, by_tokens.sum(), -by_tokens @ log_tokens, pull @ shares[2]]
        return float(np.sum(pull * (residual - pull / 2))), np.array(slopes)

    theta = np.array(start)
    theta[[0, 2, 4]] = np.log(theta[[0, 2, 4]])
    return float(minimize(objective, theta, jac=True, method="L-BFGS-B", options=TIGHT).fun)


OURS = """
from routelaws.accelerated.laws.fitting import fit_routed
print(fit_routed(*np.load(sys.argv[1]), float(sys.argv[2]) or None).objective)
"""

SCIPY = """
from scipy.optimize import least_squares
size, experts, loss = np.load(sys.argv[1])
huber = float(sys.argv[2])
log_size, log_loss = np.log10(size), np.log10(loss)

def miss(x):
    a, b, c, d, start, end = x
    E_start, E_max = 1 + np.exp(start), (1 + np.exp(start)) * (1 + np.exp(end))
    log_experts = -np.log10(1 / (experts - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max)
    return a * log_size + b * log_experts + c * log_size * log_experts + d - log_loss

starts = [(-0.1, -0.1, 0.01, 1.0, start, end) for start in (-3, -1, 1) for end in (2, 4, 6)]
options = {"loss": "huber", "f_scale": huber} if huber else {}
least = min(least_squares(miss, x, xtol=1e-15, ftol=1e-15, gtol=1e-15, **options).cost for x in starts)
print(least if huber else 2 * least / loss.size)
"""


PROGRAMS = {"ours": OURS, "scipy": SCIPY}


def first_fit(program: str, huber: float = 0.0, quick: bool = False) -> Job:
    """Return a job that measures the CPU seconds of a new process, which prints its objective.

    Args:
        huber: delta of the Huber terms in log10 units; 0 for least squares.
    """
    objectives = []

    def seconds() -> float:
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/table.npy", np.array(routed_table()))
            caches = dict.fromkeys(("NUMBA_CACHE_DIR", "ROUTELAWS_CACHE", "JAX_COMPILATION_CACHE_DIR"), folder)
            command = [sys.executable, "-c", "import sys, numpy as np" + program, f"{folder}/table.npy", str(huber)]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        objectives.append(float(done.stdout))
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return Job(seconds, lambda: {"objective": objectives[-1]}, measures=True)


def _reached(ends: list[float]) -> dict:
    least = min(ends)
    return {"least": least, "at_the_least": sum(end <= least * (1 + REACHED) for end in ends) / len(ends)}


def _figure(name: str, what: str, ours: str, theirs: str, counts: tuple[str, str], least: float) -> Figure:
    sides = {"ours": Side(ours, {}, per=COUNTS[counts[0]]), "scipy": Side(theirs, {}, per=COUNTS[counts[1]])}
    return Figure(name, what, sides, over("scipy", "ours"), ("at least", least))


def _first_fit(name: str, what: str, **options) -> Figure:
    sides = {side: Side("fits:first_fit", {"program": text} | options) for side, text in PROGRAMS.items()}
    what = f"CPU seconds of a new process that fits the routed law{what}, over a process that fits it by SciPy"
    return Figure(name, what, sides, over("ours", "scipy"), ("at most", 2.0))


FIGURES = (
    _figure(
        "law-fits", "time of one L-BFGS-B restart divided by the time of one bootstrap fit of the routed law",
        "fits:bootstrap", "fits:restarts", ("bootstrap", "restarts"), 3.0,
    ),
    _first_fit("first-fit", ""),
    _first_fit("first-fit-huber", " by Huber terms", huber=DELTA),
    _figure(
        "additive-fits", "time of one L-BFGS-B start divided by the time of one of our starts, Hoffmann's law",
        "fits:starts_at_once", "fits:scipy_starts", ("starts", "scipy starts"), 3.0,
    ),
)  # fmt: skip
