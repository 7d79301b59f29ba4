"""Encode results as JSON: an infinite number is "inf" or "-inf", and an unknown value is null.

Every interval is {"value", "low", "high", "verdict"}; "verdict" is null if there is no verdict. A coefficient also has
"determined": whether the rows determine it.
"""

import json
import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range

from .blocks import verdict


def plain(value):
    """Return a value for JSON: records as objects, frames as records, NaN as None, infinities as "inf" or "-inf".

    Example:
        >>> plain({"E_max": math.inf, "rows": np.int64(3), "p": np.array([0.5, np.nan])})
        {'E_max': 'inf', 'rows': 3, 'p': [0.5, None]}
    """
    if isinstance(value, Range):
        return plain(interval(value))
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if hasattr(value, "itertuples"):  # a frame of pandas, which is not imported here
        value = value.astype(object).where(value.notna(), None).to_dict("records")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (np.bool_, bool)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            return None
        return float(value) if math.isfinite(value) else "inf" if value > 0 else "-inf"
    return value


def dumps(value, **options) -> str:
    return json.dumps(plain(value), allow_nan=False, **options)


def interval(item: Range) -> dict:
    return {"value": item.value, "low": item.low, "high": item.high, "verdict": verdict(item) or None}


class Constant(NamedTuple):
    """A coefficient or a derived number of a law, with its interval; NaN for ends that are not known."""

    value: float
    low: float
    high: float
    verdict: str | None
    determined: bool | None  # None without an interval


def constant_of(item: Range, determined: bool | None) -> Constant:
    return Constant(*interval(item).values(), determined)


def unknown(name: str, value: float) -> Range:
    """Return a number as a `Range` without an interval."""
    return Range(name, None, float(value), math.nan, math.nan, "")


def named(fit) -> dict:
    rows, counts = fit.rows, {"rows": fit.best.rows, "left_out": fit.rows.left_out}
    if fit.law.measured != "accuracy":
        return {"router": rows.name} | counts
    taken = {"blank": rows.blank, "not_taken": int(rows.measured.size - fit.best.rows), "options": rows.options}
    return {"task": rows.name, "training_set": rows.part or None} | counts | taken


def head_of(fits, not_fitted: dict[str, str]) -> dict:
    of = "task" if fits.law.measured == "accuracy" else "router"
    reasons = [{of: name, "reason": reason} for name, reason in not_fitted.items()]
    head = {"law": fits.law.name, "measured": fits.law.measured, "loss_column": fits.loss or None}
    return head | {"remarks": fits.remarks, "not_fitted": reasons}


def fit_dict(fit) -> dict:
    slopes = [{"N": item.at} | interval(item) for item in fit.slopes]
    entries = named(fit) | {
        "status": fit.status,
        "criterion": fit.best.criterion,
        "objective": fit.best.objective,
        "rmsle": fit.rmsle,
        "determined": fit.determined,
        "coefficients": coefficients_of(fit),
        "derived": _cutoff(fit) | ({"slopes": slopes} if slopes else {}),
        "method": method_of(fit),
        "held_out": _errors_left_out(fit),
        "with_floor": {"better": fit.floor_helps, "forms": fit.forms} if fit.forms else None,
        "misfit": None if fit.misfit is None else misfit_dict(fit.misfit),
        "cautions": fit.cautions,
    }
    if hasattr(fit.best, "rmse"):
        entries["rmse"] = fit.best.rmse
    if fit.least_squares is not None:
        values = fit.least_squares.coefficients._asdict().items()
        known = {name: constant_of(unknown(name, value), None) for name, value in values}
        entries["least_squares"] = {"coefficients": known, "rmsle": fit.least_squares.rmsle}
    return entries


def method_of(fit) -> dict | None:
    """Return the method of the intervals, and the reason from the residuals for the default method."""
    if fit.errors is None:
        return None
    name = fit.errors.method if fit.method in (None, "all") else fit.method
    return {"name": name, "reason": fit.errors.reason}


def constants(fit) -> dict[str, Constant]:
    """Return the coefficients and the cut-off of the law of a `Fit`, by name."""
    return coefficients_of(fit) | _cutoff(fit)


def coefficients_of(fit) -> dict:
    """Return the coefficients with their intervals by name. A law with lines per size has a list for each name."""
    entries = {}
    for name, value in fit.coefficients.items():
        if np.ndim(value) == 0:
            entries[name] = _constant(fit, name, float(value))
        elif lines := [item for item in fit.intervals if item.name == name]:
            entries[name] = [{"N": item.at} | interval(item) | {"determined": fit.determined} for item in lines]
    return entries


def _cutoff(fit) -> dict[str, Constant]:
    return {} if fit.cutoff is None else {fit.cutoff[0]: _constant(fit, *fit.cutoff)}


def _constant(fit, name: str, value: float) -> Constant:
    item = fit.interval(name) or unknown(name, value)
    return constant_of(item._replace(value=float(value)), fit.is_known(name, value))


def _errors_left_out(fit) -> dict:
    if fit.rows.runs is None:
        kinds = {fit.law.columns[0]: fit.held_out}
    else:
        kinds = {"row": fit.held_out, "size": fit.held_out_size}
    return {name: None if held_out is None else held_out.rmsle for name, held_out in kinds.items()}


def misfit_dict(found) -> dict:
    largest = found.largest
    return {
        "sizes": [{"N": size, "rows": rows, "log10": miss} for size, rows, miss in found.sizes],
        "bend": None if found.bend is None else {"value": found.bend.value} | _test(found.bend.test),
        "beyond_seeds": None if found.seeds is None else _test(found.seeds) | {"N": found.seeds.size},
        "largest_size": None if largest is None else {"N": largest.size, "log10": largest.miss},
        "outliers": found.outliers,
        "rmsle_without_outliers": found.without,
        "rise": found.rise,
    }


def _test(found) -> dict:
    return {"F": found.statistic, "freedom": found.freedom, "p": found.p}
