"""A law without and with a floor: their errors, and what the floor changes for large models.

FORM     `form_of`           the errors of one form, its cut-off, and the gain of routing at large sizes
TABLE    `forms_table`       both forms, one column each
CHOICE   `forms_left_out`    the errors on left-out sizes by which `predict` and `plan` choose the form
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range

from ..laws.held_out import leave_one_group_out
from .blocks import NOT_DETERMINED, Table, count, counts_span, figure, span, undetermined
from .misfit import SizeMiss, how_far_off, largest_size, rise, sizes_of

USUAL_EXPERTS = 64.0
"""The gain of routing is for this E, or for the largest E of the rows if that is smaller."""


ALIKE = 1e-3
"""A relative difference of two errors below this number is no difference: with a floor of 0, both forms are one law."""


class Gain(NamedTuple):
    """What E experts gain at a size, by one form of the law."""

    N: float
    E: float
    nats: float  # loss of the dense model minus loss of the routed model
    dense: Range | None  # size of the dense model with the loss of the routed model


class FormErrors(NamedTuple):
    """One form of a law, fitted to the rows of one router.

    Attributes:
        aicc: Akaike's criterion with the correction for few rows; NaN with too few rows
        size_out, experts_out: RMSLE of each left-out size, and of the left-out rows with the largest E
        largest: residual of the largest size by a fit to all smaller sizes
        gains: at three powers of ten, from the one below the largest N on
    """

    law: str
    rmsle: float
    aicc: float
    size_out: float
    experts_out: float
    largest: SizeMiss | None
    L0: Range | None
    cutoff: Range | None
    gains: list[Gain]


def form_of(fit) -> FormErrors:
    """Return the errors and the main numbers of a `Fit` of the loss."""
    law, columns, loss = fit.law, fit.rows.columns, fit.rows.measured
    rows, unknowns = loss.size, law.coefficient_count(columns) + 1  # the variance is one of them
    spare = rows - unknowns - 1
    aicc = math.nan
    if spare > 0 and fit.rmsle > 0:
        aicc = 2 * rows * math.log(fit.rmsle) + 2 * unknowns * rows / spare
    largest = largest_size(sizes_of(fit.rows.runs), fit.held_out_size.errors)
    cutoff = None if fit.cutoff is None else fit.interval(fit.cutoff[0])
    gains = []
    if law.columns[1] == "num_experts":
        gains = _gains(fit, [10.0 ** (math.floor(math.log10(columns[0].max())) + i) for i in range(3)])
    return FormErrors(
        law.name, fit.rmsle, aicc, fit.held_out_size.rmsle, fit.experts_out, largest, fit.interval("L0"), cutoff, gains
    )


def _gains(fit, sizes: Sequence[float]) -> list[Gain]:
    law, top = fit.law, min(USUAL_EXPERTS, float(fit.rows.columns[1].max()))
    dense, routed = law.predict(fit.best, np.array(sizes), np.array([[1.0], [top]]))
    same = [None] * len(sizes)
    # If larger models are worse, no dense size corresponds to a loss.
    if law.dense_equivalents is not None and rise(law, fit.best, fit.rows.columns) is None:
        same = fit.dense_equivalents([(size, top) for size in sizes], fit.level)
    return [Gain(size, top, *more) for size, *more in zip(sizes, (dense - routed).tolist(), same, strict=True)]


def forms_table(forms: Sequence[FormErrors], name: str) -> Table:
    """Return both forms of the law of one router side by side."""

    rows = [
        ["RMSLE", *(figure(form.rmsle, ".5f") for form in forms)],
        ["AICc", *(figure(form.aicc, ".1f") for form in forms)],
        ["RMSLE, one size left out", *(figure(form.size_out, ".5f") for form in forms)],
    ]
    if any(form.gains for form in forms):
        rows.append(["RMSLE, largest E left out", *(figure(form.experts_out, ".5f") for form in forms)])
    if largest := next((form.largest for form in forms if form.largest), None):
        cells = (form.largest and how_far_off(form.largest.miss) or "not found" for form in forms)
        rows.append([f"N = {count(largest.size)} by smaller sizes", *cells])
    rows.append(["L0, nats", *("0" if form.L0 is None else _with_ends(form.L0, figure, span) for form in forms)])
    if cutoff := next((form.cutoff for form in forms if form.cutoff), None):
        rows.append([cutoff.name, *(cutoff_cell(form.cutoff) for form in forms)])
    if all(form.gains for form in forms):
        rows.append(["E of the rows below", *(f"{form.gains[0].E:g}" for form in forms)])
    for gains in zip(*(form.gains for form in forms), strict=True):
        at = f"at N = {gains[0].N:.0e}".replace("e+", "e").replace("e0", "e")
        rows.append([f"gain {at}, nats", *(figure(gain.nats, "+.3f") for gain in gains)])
        if all(gain.dense for gain in gains):
            rows.append([f"equal dense N {at}", *(_with_ends(gain.dense, count, counts_span) for gain in gains)])
    return Table(["", *(form.law for form in forms)], rows, f"{name}: without and with a floor L0")


def _with_ends(item: Range, number, ends) -> str:
    return NOT_DETERMINED if undetermined(item.low, item.high) else f"{number(item.value)} ({ends(item)})"


def cutoff_cell(item: Range | None) -> str:
    """Return the cut-off, or its lower end if the rows do not bound it from above."""
    if item is None or math.isnan(item.low):
        return NOT_DETERMINED
    if item.low < math.inf and (math.isinf(item.high) or undetermined(item.low, item.high)):
        return f"above {count(item.low)}" if item.low > 1 else NOT_DETERMINED
    return _with_ends(item, count, counts_span) if item.low < math.inf else counts_span(item)


def forms_left_out(fit) -> list[np.ndarray]:
    """Return the errors [n] of left-out sizes without and with a floor, over the rows of a `Fit` that has both forms.

    Runs far from the law are left out of the fits and of the errors. If the other runs are too few for a fit, the
    errors are NaN. The smallest size does not count, because plans are for models above the runs, and a fit without
    this size predicts below them.
    """
    size, near, forms = sizes_of(fit.rows.runs), ~fit.far, (fit, fit.floored)
    above = size[near] > size.min()
    near_rows = [column[near] for column in fit.rows.columns], fit.rows.measured[near], size[near]
    try:
        errors = [each.held_out_size if near.all() else leave_one_group_out(each.law, *near_rows) for each in forms]
    except ValueError:  # the other runs do not determine the law
        return [np.full(int(above.sum()), np.nan)] * 2
    return [each.errors[above] for each in errors]


def left_out_errors(fits: Sequence) -> tuple[float, float] | None:
    """Return the RMSLE of `forms_left_out` over the rows of all fits that both forms predict.

    None if a fit has no law with a floor, or if no row can be predicted: a floor needs four sizes to be tested.
    """
    if not fits or any(fit.floored is None for fit in fits):
        return None
    errors = np.concatenate([fit.forms_left_out for fit in fits], axis=1)
    errors = errors[:, np.isfinite(errors).all(axis=0)]
    if not errors.size:
        return None
    without, with_floor = np.sqrt(np.mean(errors**2, axis=1)).tolist()
    return without, without if abs(with_floor - without) < ALIKE * without else with_floor


def choice_words(fits: Sequence) -> str:
    """Return text on the form that predicts left-out sizes better, for fits of either form; "" if it is not known."""
    without = [fit.unfloored or fit for fit in fits]
    if (errors := left_out_errors(without)) is None:
        return ""
    pairs = zip(errors, (without[0].law.name, without[0].floored.law.name), strict=True)
    (least, better), (most, worse) = sorted(pairs)
    relation = "better than" if least < most else "as well as"
    digits = ".5f" if round(least, 5) != round(most, 5) else ".4g"
    figures = f"{least:.5f}" if least == most else f"{least:{digits}} against {most:{digits}}"
    words = f"{better} predicts left-out sizes {relation} {worse}"
    far = ", and without runs far from the law" * any(fit.far.any() for fit in without)
    return f"{words} (RMSLE {figures}, without the smallest{far})"
