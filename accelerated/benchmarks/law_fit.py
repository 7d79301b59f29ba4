"""The figure of how fast the bounded law is fitted, beside the method of the notebook released with Clark et al. 2022.

Two things are measured in turns:

1. Restarts as in the notebook: L-BFGS-B (SciPy) on all six coefficients, with a jitted JAX value and gradient, E_start
   and E_max as powers of two, each start an initial point times standard normal numbers (the point is our choice). One
   restart counts as one fit, whether or not it ends at the optimum; how many do is a fact beside the figure.
2. A bootstrap: `fit_weighted` on resampled rows of each router. How many of its fits end at the optimum is judged by a
   much denser search of the same resamples.

The tables are the released ones where ROUTELAWS_DATA names their folder. Elsewhere they are drawn from a stated law
with stated noise, on the released sizes and expert counts.
"""

import csv
import gzip
import os
from pathlib import Path

import numpy as np

from .figure import Figure, Side
from .worker import Job

SIZES = (16_527_360, 27_279_360, 57_369_600, 132_163_584, 368_123_904, 1_308_819_456)
EXPERTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LAWS = {
    "S-Base": (-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "RL-R": (-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    "Hash": (-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
}
"""Clark et al. 2022, Table 3, a, b, c, d, E_start and E_max: the laws of the drawn tables."""

NOISE = 0.0032  # log10, of the drawn tables: the root mean square residual of the released ones
INITIAL = np.array([-0.1, -0.1, 0.01, 1.0, 1.0, 8.0])  # a, b, c, d, log2 E_start, log2 E_max; our choice
REACHED = 1e-8  # relative excess over the least objective up to which a fit counts as having reached it
DENSE = {"scan": 40, "starts": 10, "careful": True}  # the search that fits of the bootstrap are judged by

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def tables(seed: int) -> tuple[str, dict[str, Columns]]:
    """Return where the tables are from, and N, E and loss of each router."""
    from ..laws.routed import RoutedCoefficients, predict_loss

    folder = os.environ.get("ROUTELAWS_DATA")
    path = Path(folder, "curves.csv.gz") if folder else None
    if path is not None and path.is_file():
        return "the released table", {router: released(path, router) for router in LAWS}
    random = np.random.default_rng(seed)
    size, experts = (v.ravel().astype(float) for v in np.meshgrid(SIZES, EXPERTS))
    drawn = {
        router: (
            size,
            experts,
            predict_loss(size, experts, RoutedCoefficients(*law)) * 10 ** random.normal(0, NOISE, size.size),
        )
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


def restarts(count: int, seed: int = 0) -> Job:
    """Return a job that runs so many restarts for each router, as in the notebook."""
    from ..laws.fitting import fit_routed

    columns = tables(seed)[1]
    starts = np.random.default_rng(seed).normal(size=(len(columns) * count, INITIAL.size)) * INITIAL
    runs = {router: notebook(v) for router, v in columns.items()}
    jobs = [(router, start) for router, start in zip(list(columns) * count, starts, strict=True)]
    held = {}

    def run():
        held["found"] = [runs[router](start) for router, start in jobs]

    def facts():
        best = {
            router: fit_routed(*v, scan=DENSE["scan"], starts=DENSE["starts"]).objective
            for router, v in columns.items()
        }
        return {"fits": len(jobs), "at_the_optimum": reached(held["found"], [best[router] for router, _ in jobs])}

    return Job(run, facts)


def bootstrap(count: int, seed: int = 0) -> Job:
    """Return a job that fits so many resamples of the rows of each router."""
    from ..laws.fitting import fit_weighted

    source, columns = tables(seed)
    random = np.random.default_rng(seed)
    weights = {router: resamples(v[0].size, count, random) for router, v in columns.items()}
    held = {}

    def run():
        held["found"] = [fit_weighted(*v, weights[router]).objective for router, v in columns.items()]

    def facts():
        best = [fit_weighted(*v, weights[router], **DENSE).objective for router, v in columns.items()]
        share = reached(np.concatenate(held["found"]), np.concatenate(best))
        return {"fits": count * len(columns), "at_the_optimum": share, "tables": source}

    return Job(run, facts)


def over_restarts(bench):
    """Measure the fits per second of a bootstrap over those of restarts."""
    many, few = (50, 1) if bench.settings.quick else (1000, 20)
    sides = {
        "restarts": Side("law_fit:restarts", {"count": few}, per=few * len(LAWS)),
        "bootstrap": Side("law_fit:bootstrap", {"count": many}, per=many * len(LAWS)),
    }
    return bench.compare(sides, lambda s: s["restarts"] / s["bootstrap"], bench.threads())


FIGURES = (
    Figure(
        "law-fits", "fits of the law per second in a bootstrap over those of restarts of L-BFGS-B", None, over_restarts
    ),
)
