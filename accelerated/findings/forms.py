"""The forms of law held against each other by the runs that they did not see.

A form is fitted again without one run, or without all runs of one size, and predicts what was left out. The first asks
how well it fills in a grid, the second whether it can be carried to a size that was not trained.
"""

import math

import numpy as np

from ..laws.catalogue import LAWS
from ..laws.held_out import Score, compare_forms
from ..results.estimates import percent
from .rows import BOUNDED, Table, columns_of

FORMS = ("per-size", "separable", "bilinear", BOUNDED)
"""The laws in (N, E), from the one that says least about other sizes to the paper's final one."""


def constants(law: dict) -> dict:
    """Return the constants of a bounded law in the results, N_cutoff with them, by name."""
    return law["coefficients"] | {"N_cutoff": law["derived"]["N_cutoff"]}


def compare(table: Table) -> list[dict]:
    """Return the held-out errors of each form for each router, on the rows of the law.

    Returns:
        [{"router", "law", "formula", "rows", "missing", "status", "rmsle" (of the fit), "leave_one_out",
        "leave_one_size_out"}]; each of the two last is {"rmsle", "rmsle_percent", "predicted" (rows), "verdict"} or
        None. `verdict` is that of `held_out.compare_forms` against the best form. "missing" says why a form cannot be
        fitted; then the rest is None.
    """
    return [
        {"router": selection.router} | entry
        for selection in table.law_rows()
        for entry in _forms(*columns_of(selection, table.loss_column))
    ]


def _forms(size: np.ndarray, experts: np.ndarray, loss: np.ndarray) -> list[dict]:
    """Return the entries of one router, without its name: each form of law on its rows, [n] each."""
    fits, missing = {}, {}
    for name in FORMS:
        try:
            fits[name] = LAWS[name].fit(size, experts, loss)
        except ValueError as error:
            missing[name] = str(error)
    columns = {"dense_parameters": size, "num_experts": experts}
    both = compare_forms([LAWS[name] for name in fits], columns, loss, size) if fits else ([], [])
    scores = [{score.name: _score(score) for score in part} for part in both]
    return [
        {
            "law": name,
            "formula": LAWS[name].formula,
            "rows": loss.size,
            "missing": missing.get(name),
            "status": fit and fit.status,
            "rmsle": fit and fit.rmsle,
            "leave_one_out": fit and scores[0][name],
            "leave_one_size_out": fit and scores[1][name],
        }
        for name, fit in ((name, fits.get(name)) for name in FORMS)
    ]


def _score(score: Score) -> dict:
    known = math.isfinite(score.held_out.rmsle)
    rmsle = float(score.held_out.rmsle) if known else None
    return {
        "rmsle": rmsle,
        "rmsle_percent": percent(rmsle),
        "predicted": score.held_out.predicted,
        "verdict": score.verdict,
    }
