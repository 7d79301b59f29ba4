"""The rows of a results table that a law is fitted to, router by router, and why the other runs are left out.

1. CHOOSE    `_chosen`       the evaluations that the user, or the preset clark, lets through
2. LAST      `last_evaluations`  the last of them of each run
3. LEAVE     `_reasons`      runs that the law cannot describe, each with the first reason that holds
4. ROUTERS   `_rows_of`      what is left of each router, with the dense runs as E = 1
"""

from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from ..wording import in_short
from .conditions import names_in, row_mask
from .schema import DENSE, OBJECTIVES, run_names

CLARK_COLUMNS = ("routing_frequency", "k", "seed")
Axes = Literal["experts", "compute", "dense", "every", "one E", "one kind"]


class RouterRows(NamedTuple):
    """The rows of one router, with the dense runs added as E = 1."""

    router: str
    frame: "pandas.DataFrame"  # noqa: F821  # the last evaluation of each run that is used
    left_out: list[dict]  # [{"hyper_id": int, "reason": str}], in the order of hyper_id; with "run", its name, if any
    cut: dict[int, int] = {}  # {hyper_id: its last step in the table} of runs that are taken at an earlier one


def of_router(selections: list[RouterRows], router: str | None) -> list[RouterRows]:
    """Return those of one router, however its name is spelled; all of them where none is asked for.

    Raises:
        InputError: the table has no such router_type.
    """
    if router is None:
        return selections
    found = [selection for selection in selections if selection.router.lower() == router.lower()]
    if not found:
        there = ", ".join(selection.router for selection in selections)
        raise InputError(f"--router {router}: no such router_type in the table; there: {there}")
    return found


def select_rows(
    frame, rows: str | None = None, loss_column: str = "loss_validation", *, axes: Axes = "experts"
) -> list[RouterRows]:
    """Choose the rows to fit, router by router: the last evaluation (by step) of each run that `rows` lets through.

    A law needs models that differ in N and E only. What each value of `rows` keeps:

    * "clark": the rows of the paper's laws: routing_frequency 0.5, k 1, seed 42.
    * None: every seed; k 1; of the routed runs those with the commonest routing_frequency among them (the larger one
      of a tie) and the commonest granularity (the smaller one). Runs that this drops are listed as left out. A column
      that the table lacks is not asked about.
    * Anything else: a condition on the columns, such as "seed == 42 and step <= 100000" (see `conditions.py`); it
      applies to the evaluations before the last one is taken, and nothing else is dropped.

    Losses of the causal and of the masked objective are never mixed, unless a condition names that column: the commoner
    one of what is left is kept (causal of a tie, and where the column is blank).

    Dense runs (router_type Dense) are added to every router as E = 1. A dense run with flop_increase above 1 is wider
    than its N says and is not used. A run whose last evaluation has no loss is left out: an earlier one would be a
    model that trained for less.

    What `axes` changes:

    * "compute", for a law in FLOPs and parameters per FLOP: every k, routing_frequency and flop_increase is kept; a run
      without flops_per_step or total_parameter_count is left out.
    * "every", for a law that has what runs differ in among its columns: every k, routing_frequency and granularity is
      kept.
    * "one E", for a law that holds for one number of experts: as "every", of the runs with the commonest num_experts of
      their router (the larger one of a tie). Others, and dense runs, are left out unless a condition names num_experts.
    * "one kind", for a law that knows of nothing but compute: as "every", but dense runs are an entry of their own and
      not added to the routers.
    * "dense", for a law of dense models: one entry, Dense, that holds those alone.

    Args:
        frame: of `read_table`.
        rows: see above.
        loss_column: which loss is fitted.
        axes: what the law is a function of, see above.

    Returns:
        One entry for each router_type, sorted by name; none for Dense unless `axes` says so.

    Raises:
        InputError: the loss column is missing; a column that "clark" needs is missing; the condition is none;
            no run is left of the kind that the law needs.
    """
    if loss_column not in frame:
        present = ", ".join(name for name in frame.columns if name.startswith("loss_"))
        raise InputError(f"loss column {loss_column} is not in the table; there: {present}")
    chosen = _chosen(frame, rows)
    if not chosen.any() and len(frame):
        raise InputError(none_chosen(frame, rows))
    last = last_evaluations(frame, chosen)
    reasons = _reasons(last, rows, loss_column, axes)
    names, ends = run_names(last), frame.groupby("hyper_id")["step"].max()
    apart = axes == "one kind"
    return [_rows_of(router, last, reasons, names, ends, apart) for router in _routers(last, axes)]


def _routers(last, axes: Axes) -> list[str]:
    """Return the routers that a law of these axes is fitted to; raises InputError as `select_rows`."""
    there = sorted(set(last["router_type"]))
    if axes == "dense" and DENSE not in there:
        raise InputError(
            f"no dense run is left (router_type Dense; there: {', '.join(there)}); a law of dense models needs some. If"
            " one of these is dense: routelaws convert --map router_type:NAME=Dense"
        )
    if axes == "one kind":
        return there
    routers = [DENSE] if axes == "dense" else [router for router in there if router != DENSE]
    if not routers:
        raise InputError(
            "no routed run is left (router_type other than Dense); a routed law needs some, --law dense none"
        )
    return routers


def _rows_of(router: str, last, reasons, names: dict, ends, apart: bool) -> RouterRows:
    """Return the runs of one router, with the dense ones unless `apart`, and those that are left out, with reasons."""
    own = last["router_type"].isin([router] if apart else [router, DENSE])
    left_out = [
        {"hyper_id": int(run), "reason": reason} | ({"run": names[run]} if run in names else {})
        for run, reason in zip(last["hyper_id"][own], reasons[own], strict=True)
        if reason
    ]
    used = last[own & (reasons == "")]
    ended = used["hyper_id"].map(ends)
    cut = used["step"] < ended
    return RouterRows(router, used, left_out, dict(zip(used["hyper_id"][cut], ended[cut], strict=True)))


def none_chosen(frame, rows: str) -> str:
    """Return in words that a choice keeps no row, with the values of the columns of text that it names.

    For clark, lists what it keeps, and the values of all three columns.
    """
    said, names = f"rows {rows!r}", sorted(names_in(rows))
    if rows == "clark":
        said, names = f"{said} (routing_frequency 0.5, k 1, seed 42)", CLARK_COLUMNS
    said += f": no row matches; the table has {len(frame)} rows"
    for name in names:
        numbers = frame[name].dtype.kind in "iuf"
        if not numbers or rows == "clark":
            values = dict.fromkeys(map("{:g}".format if numbers else str, frame[name].dropna()))
            said += f"; {name} is {in_short(values) or 'blank'}"
    return said


def last_evaluations(frame, chosen: np.ndarray | None = None):
    """Return the last evaluation of every run among the chosen rows, or among all, by hyper_id.

    Of two rows at the same step the later one in the frame is the last.
    """
    at = np.arange(len(frame)) if chosen is None else np.flatnonzero(chosen)
    run, step = frame["hyper_id"].to_numpy()[at], frame["step"].to_numpy()[at]
    order = np.lexsort((step, run))
    ends = np.append(run[order][1:] != run[order][:-1], True) if len(at) else np.zeros(0, dtype=bool)
    return frame.iloc[at[order][ends]]


def _chosen(frame, rows: str | None) -> np.ndarray:
    """Return the mask of the evaluations that `rows` lets through; None lets all through here (see `_reasons`)."""
    if rows is None:
        return np.ones(len(frame), dtype=bool)
    if rows == "clark":
        missing = [name for name in CLARK_COLUMNS if name not in frame]
        if missing:
            raise InputError(f"rows clark: column {missing[0]} is missing; needed: {', '.join(CLARK_COLUMNS)}")
        return ((frame["routing_frequency"] == 0.5) & (frame["k"] == 1) & (frame["seed"] == 42)).to_numpy()
    return row_mask(frame, rows)


def _reasons(last, rows: str | None, loss_column: str, axes: Axes):
    """Return, for each run, why it is left out, the first reason of several; "" where it is used."""
    import pandas

    named = set() if rows is None else names_in(rows)
    dense = last["router_type"] == DENSE
    dropped = []
    if "objective" in last and "objective" not in named:
        dropped += _of_other_objective(last)
    dropped += _without_costs(last) if axes == "compute" else _too_wide(last, dense)
    if axes == "one E" and "num_experts" not in named:
        dropped += _of_other_experts(last, dense)
    if rows is None and axes in ("experts", "dense"):
        dropped += _of_uncommon_kind(last, dense)
    dropped.append((last[loss_column].isna(), f"{loss_column} is blank at the run's last evaluation"))

    reasons = pandas.Series("", index=last.index)
    for where, reason in dropped:
        reasons[where & (reasons == "")] = reason
    return reasons


def _commonest(values, of_a_tie):
    """Return the value that stands most often in a column, of a tie the one that `of_a_tie` picks; None of none."""
    counts = values.value_counts()
    return of_a_tie(counts[counts == counts.max()].index, default=None)


def _of_other_objective(last) -> list[tuple]:
    """Return the runs of the rarer objective, as [(where, reason)]."""
    objective = last["objective"].where(last["objective"].isin(OBJECTIVES), OBJECTIVES[0])
    common = _commonest(objective, min)
    return [(objective != common, f"objective is not the most common, {common}")]


def _without_costs(last) -> list[tuple]:
    """Return the runs without what a law in compute is a function of, as [(where, reason)]."""
    return [
        (last[name].isna() if name in last else last["step"] >= 0, f"{name} is not known")
        for name in ("flops_per_step", "total_parameter_count")
    ]


def _too_wide(last, dense) -> list[tuple]:
    """Return the dense runs that have more FLOPs than their N says, as [(where, reason)]."""
    if "flop_increase" not in last:
        return []
    wide = last["flop_increase"].fillna(1) != 1
    return [(dense & wide, "dense with flop_increase above 1: wider than its N says")]


def _of_other_experts(last, dense) -> list[tuple]:
    """Return what a law for one number of experts does not hold for, router by router, as [(where, reason)]."""
    dropped = [(dense, "dense, and the law holds for one number of experts")]
    for router in set(last["router_type"][~dense]):
        own = last["router_type"] == router
        common = _commonest(last["num_experts"][own], max)
        other = own & (last["num_experts"] != common)
        dropped.append((other, f"num_experts is not the most common of {router}, {common:g}"))
    return dropped


def _of_uncommon_kind(last, dense) -> list[tuple]:
    """Return the runs that differ from most in k, routing frequency or granularity, as [(where, reason)]."""
    dropped = []
    if "k" in last:
        dropped.append((last["k"].fillna(1) != 1, "k is not 1"))
    kinds = {}
    if "routing_frequency" in last:
        kinds["routing_frequency"] = last["routing_frequency"], max
    if "granularity" in last:
        kinds["granularity"] = last["granularity"].fillna(1), min
    for name, (values, of_a_tie) in kinds.items():
        if values[~dense].nunique() > 1:
            common = _commonest(values[~dense], of_a_tie)
            dropped.append((~dense & (values != common), f"{name} is not the most common, {common:g}"))
    return dropped
