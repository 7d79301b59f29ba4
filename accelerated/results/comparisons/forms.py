"""Compare forms of law on held-out runs.

A form is fitted again without one run, or without all runs of one size, and predicts the excluded runs. Excluding a run
tests interpolation within a grid. Excluding a size tests extrapolation.
"""

import math

import numpy as np

from routelaws.reference.laws.held_out import Score
from routelaws.reference.laws.held_out import _scores as scores_of

from ...laws.catalogue import LAWS
from ...tables.selection import RouterRows
from ..blocks import log_percent
from ..fit import Fit
from ..rows import rows_of_runs

FORMS = ("per-size", "separable", "bilinear")
"""The (N, E) laws of the paper before its final law."""

BOUNDED, FLOORED = "routed-bounded", "routed-bounded-floor"
"""The paper's final law, and the same law with a floor."""


def fit_form(law: str, selection: RouterRows, loss_column: str) -> Fit | str:
    try:
        return Fit(rows_of_runs(selection, LAWS[law], loss_column), law)
    except ValueError as error:
        return str(error)


def compare(fits: list[tuple[RouterRows, Fit | str]], loss_column: str) -> list[dict]:
    """Return the held-out errors of each form for each router, on the rows of the law.

    Args:
        fits: the rows of each router, with their fit of the bounded law or the reason for no fit.

    Returns:
        [{"router", "law", "formula", "rows", "missing", "status", "rmsle" (of the fit), "leave_one_out",
        "leave_one_size_out"}]; the last two are {"rmsle", "rmsle_percent", "predicted" (rows), "verdict"} or None.
        `verdict` is from `held_out.compare_forms`, which compares each form with the best form. "missing" is the reason
        for no fit. In this case the results are None.
    """
    entries = []
    for selection, bounded in fits:
        forms = {name: fit_form(name, selection, loss_column) for name in FORMS} | {BOUNDED: bounded}
        forms[FLOORED] = (
            bounded if isinstance(bounded, str) else bounded.floored or fit_form(FLOORED, selection, loss_column)
        )
        entries += [{"router": selection.router} | entry for entry in _scored(forms, len(selection.frame))]
    return entries


def _scored(forms: dict[str, Fit | str], rows: int) -> list[dict]:
    fits = {name: fit for name, fit in forms.items() if isinstance(fit, Fit)}
    scores = [{}, {}]
    if fits:
        known = next(iter(fits.values())).rows
        for i, groups in enumerate((np.arange(known.measured.size), known.columns[0])):
            errors = [(fit.held_out, fit.held_out_size)[i] for fit in fits.values()]
            scores[i] = {score.name: _score(score) for score in scores_of(list(fits), errors, groups)}
    return [
        {
            "law": name,
            "formula": LAWS[name].formula,
            "rows": rows,
            "missing": None if name in fits else reason,
            "status": fits[name].status if name in fits else None,
            "rmsle": fits[name].rmsle if name in fits else None,
            "leave_one_out": scores[0].get(name),
            "leave_one_size_out": scores[1].get(name),
        }
        for name, reason in forms.items()
    ]


def _score(score: Score) -> dict:
    known = math.isfinite(score.held_out.rmsle)
    rmsle = float(score.held_out.rmsle) if known else None
    return {
        "rmsle": rmsle,
        "rmsle_percent": log_percent(rmsle),
        "predicted": score.held_out.predicted,
        "verdict": score.verdict,
    }
