"""The figures of how fast the laws that add terms are fitted from all starts at once, beside SciPy's L-BFGS-B.

SciPy goes start after start. For Hoffmann's law both begin from starts drawn from the 4,500 of Hoffmann et al. and
minimise the sum of Huber terms (delta 1e-3 in ln L). L-BFGS-B has the analytic gradient of the log-sum-exp form, in
NumPy, and stops where its own tight tolerances say. "At the least" is within a millionth of the least sum that the same
side found.

The table is that of the 240 released points where ROUTELAWS_DATA names their folder. Elsewhere it is drawn from a
stated law with stated noise, on a grid of sizes and tokens. The other laws (`LAWS`) are fitted to tables drawn from
their printed coefficients, from starts of their own; L-BFGS-B has the same unknowns, counted from the middle of the
table.
"""

import os

import numpy as np

from .figure import Figure, Goal, Side
from .worker import Job

LAW = (480.0, 0.348, 2085.0, 0.366, 1.817)
"""A, alpha, B, beta and C of the drawn table."""

NOISE = 8e-3  # of ln L, of the drawn table: the root mean square residual of the released points
NOISE_OF_OTHERS = 2e-3  # of ln L, of the tables of the other laws
DELTA = 1e-3
TIGHT = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}  # of L-BFGS-B
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
    return float(minimize(objective, theta, jac=True, method="L-BFGS-B", options=TIGHT).fun)


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


def fine_grained_table():
    """Return the law, its terms, N, D and G of 100 runs in the manner of its paper, and printed coefficients."""
    from ..laws import fine_grained

    axes = fine_grained.fine_grained_parameters(np.array([256.0, 384, 512, 640, 768]), 64), _TOKENS, [1.0, 2, 4, 8, 16]
    return fine_grained.FINE_GRAINED, _grid(*axes), fine_grained.PUBLISHED["E=64"].coefficients


def sparsity_table():
    """Return the same of the law of sparsity: P, D and 1 - S of 60 runs."""
    from ..laws import sparsity

    axes = [1e8, 5e8, 2e9, 1e10], [1e9, 1e10, 1e11], [1.0, 0.5, 0.25, 0.1, 0.05]
    return sparsity.SPARSITY, _grid(*axes), sparsity.PUBLISHED


_TOKENS = [1.6e10, 3.3e10, 6.6e10, 1.3e11]
LAWS = {"fine-grained": fine_grained_table, "sparsity": sparsity_table}
"""The laws beside Hoffmann's, by name: functions that give the law, the columns of a table and the truth."""


def _grid(*axes) -> tuple[np.ndarray, ...]:
    return tuple(axis.ravel() for axis in np.meshgrid(*axes))


def of_law(name: str, seed: int = 0) -> tuple:
    """Return the law, its columns, losses with an error, and its own starts as unknowns and as coefficients."""
    from ..laws import _descent, additive

    law, columns, truth = LAWS[name]()
    loss = additive.predict_additive(law, truth, columns)
    loss = loss * np.exp(np.random.default_rng(seed).normal(0, NOISE_OF_OTHERS, loss.size))
    form = additive._form(law)
    problem = _descent.problem_of(form, columns, loss, DELTA)
    starts = form.starts(problem.logs, problem.log_loss)
    return law, columns, loss, starts, [_descent.coefficients(form, start, problem.centres)[0] for start in starts]


def law_at_once(name: str, seed: int = 0) -> Job:
    """Return a job that fits a law from all of its own starts at once."""
    from ..laws.additive import fit_additive

    law, columns, loss, starts, coefficients = of_law(name, seed)
    held = {}

    def run():
        held["fit"] = fit_additive(law, columns, loss, DELTA, coefficients)

    def facts():
        fit = held["fit"]
        return {"starts": len(starts), "least": fit.objective, "at_the_least": fit.reached / len(starts)}

    return Job(run, facts)


def law_by_scipy(name: str, count: int, seed: int = 0) -> Job:
    """Return a job that runs L-BFGS-B from `count` of the starts that `law_at_once` has, evenly apart."""
    law, columns, loss, starts, _ = of_law(name, seed)
    objective = scipy_objective(law, columns, loss)
    held = {}

    def run():
        from scipy.optimize import minimize

        chosen = starts[np.linspace(0, len(starts) - 1, count).astype(int)]
        held["ends"] = [
            float(minimize(objective, start, jac=True, method="L-BFGS-B", options=TIGHT).fun) for start in chosen
        ]

    def facts():
        return {"starts": count, "least": min(held["ends"])}

    return Job(run, facts)


def scipy_objective(law, columns: tuple, loss: np.ndarray):
    """Return θ -> the sum of Huber terms of a law and its slopes, by the log-sum-exp form in NumPy."""
    names, logs = law.coefficients._fields, [np.log(column) - np.log(column).mean() for column in columns]
    design = np.zeros((loss.size, len(law.terms), len(names)))
    for t, (multiplier, exponents) in enumerate(law.terms):
        design[:, t, names.index(multiplier)] = 1.0
        for exponent, column in exponents.items():
            design[:, t, names.index(exponent)] = -logs[law.columns.index(column)]
    log_loss, flat = np.log(loss), design.reshape(-1, len(names))

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        terms = (flat @ theta).reshape(log_loss.size, -1)
        top = terms.max(axis=1, keepdims=True)
        parts = np.exp(terms - top)
        total = parts.sum(axis=1, keepdims=True)
        residual = (top + np.log(total))[:, 0] - log_loss
        pull = np.clip(residual, -DELTA, DELTA)
        return float(np.sum(pull * (residual - pull / 2))), (pull[:, None] * parts / total).ravel() @ flat

    return objective


def law_over_scipy(name: str):
    """Return what measures the starts per second of a law of `LAWS` over those of SciPy."""

    def measure(bench):
        many, few = len(of_law(name)[3]), 1 if bench.settings.quick else 8
        sides = {
            "ours": Side("additive_fit:law_at_once", {"name": name}, per=many),
            "scipy": Side("additive_fit:law_by_scipy", {"name": name, "count": few}, per=few),
        }
        return bench.compare(sides, lambda s: s["scipy"] / s["ours"], bench.threads())

    return measure


def seconds(bench):
    """Measure the seconds of one fit of Hoffmann's law from 300 starts."""
    sides = {"ours": Side("additive_fit:ours", {"count": 20 if bench.settings.quick else 300})}
    return bench.compare(sides, "ours", bench.threads())


def over_scipy(bench):
    """Measure the starts per second of ours over those of SciPy."""
    many, few = (20, 1) if bench.settings.quick else (300, 20)
    sides = {
        "ours": Side("additive_fit:ours", {"count": many}, per=many),
        "scipy": Side("additive_fit:by_scipy", {"count": few, "of": many}, per=few),
    }
    return bench.compare(sides, lambda s: s["scipy"] / s["ours"], bench.threads())


FIGURES = (
    Figure(
        "additive-fits",
        "starts per second of the fit of Hoffmann's law over those of L-BFGS-B",
        Goal(30, least=True),
        over_scipy,
    ),
    *(
        Figure(
            f"additive-fits-{name}",
            f"the same of the law {name}, from its own starts",
            Goal(30, least=True),
            law_over_scipy(name),
        )
        for name in LAWS
    ),
    Figure("additive-seconds", "seconds of a fit of Hoffmann's law from 300 starts", Goal(1.0), seconds, unit="s"),
)
