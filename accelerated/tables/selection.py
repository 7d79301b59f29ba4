"""Select the rows of a results table for a law, by router, with reasons for excluded runs.

1. CHOOSE    `_chosen`       the evaluations that match the user's condition or the preset clark
2. LAST      `last_evaluations`  the last matching evaluation of each run
3. EXCLUDE   `_reasons`      runs that the law cannot describe, each with the first reason
4. ROUTERS   `_rows_of`      the remaining runs of each router, with the dense runs as E = 1
"""

from typing import Literal, NamedTuple

import numpy as np

from routelaws.reference.diagnostics import not_learned

from ..errors import InputError
from ..wording import in_short, plural
from .conditions import names_in, row_mask
from .schema import DENSE, OBJECTIVES, column_or_nan, run_names

CLARK_COLUMNS = ("routing_frequency", "k", "seed")
CLARK = "routing_frequency == 0.5 and k == 1 and seed == 42"
UNLEARNED = "its router has not learned; --rows with router_agreement or expert_exchange keeps it"
Axes = Literal["experts", "compute", "dense", "every", "one E", "one kind"]


class RouterRows(NamedTuple):
    """The rows of one router, with the dense runs added as E = 1."""

    router: str
    frame: "pandas.DataFrame"  # noqa: F821  # the last evaluation of each used run
    left_out: list[dict]  # [{"hyper_id": int, "reason": str}], by hyper_id; also "run" if the run has a name
    cut: dict[int, int] = {}  # {hyper_id: last step in the table} of runs that are used at an earlier step

    def columns(self, loss_column: str) -> list[np.ndarray]:
        """Return N, E and the losses of the rows."""
        names = ("dense_parameter_count", "num_experts", loss_column)
        return [self.frame[name].to_numpy(dtype=np.float64) for name in names]


def of_router(selections: list[RouterRows], router: str | None) -> list[RouterRows]:
    """Return the entries of one router, in any spelling; all entries for None.

    Raises:
        InputError: the table has no such router_type.
    """
    if router is None:
        return selections
    matches = [selection for selection in selections if selection.router.lower() == router.lower()]
    if not matches:
        there = ", ".join(selection.router for selection in selections)
        raise InputError(f"--router {router}: no such router_type in the table; available: {there}")
    return matches


def select_rows(
    frame, rows: str | None = None, loss_column: str = "loss_validation", *, axes: Axes = "experts"
) -> list[RouterRows]:
    """Return, by router, the rows to fit: for each run the last evaluation (by step) that matches `rows`.

    A law needs models that differ only in N and E. Each value of `rows` keeps:

    * "clark": the rows of the paper's laws: routing_frequency 0.5, k 1, seed 42.
    * None: every seed; routed runs with k 1, or, if a router has none, with its most common k (a tie gives the
      smaller), with the most common routing_frequency (a tie gives the larger) and with the most common granularity (a
      tie gives the smaller). Other runs are listed as excluded. A missing column is not checked.
    * Anything else: a condition on the columns, such as "seed == 42 and step <= 100000" (see `conditions.py`). The last
      evaluation is then the last matching evaluation. Seed, k, routing_frequency and granularity may differ.

    Losses of the causal and the masked objective are not mixed. The more common objective is kept (causal for a tie or
    a blank column). A condition that names this column overrides this rule.

    Dense runs (router_type Dense) are added to every router as E = 1. A dense run with flop_increase above 1 is
    excluded, because it is wider than its N implies. A run whose last evaluation is NaN is excluded, because it may
    have diverged, and an earlier evaluation has less training. A row with an empty loss is no evaluation. A run whose
    router has not learned is excluded, unless a condition names router_agreement or expert_exchange.

    What `axes` changes:

    * "compute", for a law that uses FLOPs and parameters per FLOP: every k, routing_frequency and flop_increase is
      kept. A run without flops_per_step or total_parameter_count is excluded.
    * "every", for a law whose columns cover these differences: every k, routing_frequency and granularity is
      kept.
    * "one E", for a law with a fixed number of experts: as "every", but only runs with the most common num_experts of
      their router (a tie gives the larger). Other runs and dense runs are excluded unless a condition names
      num_experts.
    * "one kind", for a law that uses compute alone: as "every", but dense runs form a separate entry and are not added
      to routers.
    * "dense", for a law of dense models: a single entry, Dense, with the dense runs.

    Args:
        rows: choice of rows, see above.
        axes: the variables of the law, see above.

    Returns:
        An entry for each router_type, sorted by name; Dense has an entry only for "one kind" and "dense".

    Raises:
        InputError: the loss column or a column of "clark" is missing, the condition is invalid, or no run remains for
            the law.
    """
    if loss_column not in frame:
        present = ", ".join(name for name in frame.columns if name.startswith("loss_"))
        raise InputError(f"loss column {loss_column} is not in the table; available: {present}")
    chosen = _chosen(frame, rows)
    if not chosen.any() and len(frame):
        raise InputError(none_chosen(frame, rows))
    last = last_evaluations(frame, chosen, loss_column)
    reasons = _reasons(last, rows, loss_column, axes)
    names, ends = run_names(last), last_evaluations(frame, None, loss_column).set_index("hyper_id")["step"]
    apart = axes == "one kind"
    return [_rows_of(router, last, reasons, names, ends, apart) for router in _routers(last, axes)]


def _routers(last, axes: Axes) -> list[str]:
    there = sorted(set(last["router_type"]))
    if axes == "dense" and DENSE not in there:
        raise InputError(
            f"no dense run is left (router_type Dense; the table has: {', '.join(there)}), but a dense law needs one. "
            "If one of these routers is dense, rename it: routelaws convert --map router_type:NAME=Dense"
        )
    if axes == "one kind":
        return there
    routers = [DENSE] if axes == "dense" else [router for router in there if router != DENSE]
    if not routers:
        raise InputError(
            "no routed run is left (router_type other than Dense); a routed law needs one; for dense runs alone, use "
            "--law dense"
        )
    return routers


def _rows_of(router: str, last, reasons, names: dict, ends, apart: bool) -> RouterRows:
    router_rows = last["router_type"].isin([router] if apart else [router, DENSE])
    left_out = [
        {"hyper_id": int(run), "reason": reason} | ({"run": names[run]} if run in names else {})
        for run, reason in zip(last["hyper_id"][router_rows], reasons[router_rows], strict=True)
        if reason
    ]
    used = last[router_rows & (reasons == "")]
    ended = used["hyper_id"].map(ends)
    cut = used["step"] < ended
    return RouterRows(router, used, left_out, dict(zip(used["hyper_id"][cut], ended[cut], strict=True)))


def none_chosen(frame, rows: str) -> str:
    """Return the error message for a condition that matches no row, with the values of its text columns.

    For clark, the error has the condition and the values of all three columns.
    """
    message, names = f"rows {rows!r}", sorted(names_in(rows))
    if rows == "clark":
        message, names = f"{message} (routing_frequency 0.5, k 1, seed 42)", CLARK_COLUMNS
    message += f": no row matches; the table has {len(frame)} rows"
    for name in names:
        numbers = frame[name].dtype.kind in "iuf"
        if not numbers or rows == "clark":
            values = dict.fromkeys(map("{:g}".format if numbers else str, frame[name].dropna()))
            message += f"; {name} is {in_short(values) or 'blank'}"
    return message


def last_evaluations(frame, chosen: np.ndarray | None = None, loss_column: str | None = None):
    """Return the last evaluation of every run among the chosen rows, or among all rows, by hyper_id.

    If two rows have the same step, the later row is used. With a loss column, the last row of a run with this loss is
    used (see `evaluated`), or its last row if no row has the loss.
    """
    at = np.arange(len(frame)) if chosen is None else np.flatnonzero(chosen)
    run, step = frame["hyper_id"].to_numpy()[at], frame["step"].to_numpy()[at]
    order = np.lexsort((step, evaluated(frame, loss_column)[at], run))
    ends = np.append(run[order][1:] != run[order][:-1], True) if len(at) else np.zeros(0, dtype=bool)
    return frame.iloc[at[order][ends]]


def evaluated(frame, loss_column: str | None) -> np.ndarray:
    """Return the mask of rows with a loss, which includes NaN in the file (see `table.read_table`)."""
    if loss_column not in frame:
        return np.ones(len(frame), dtype=bool)
    mask = frame[loss_column].notna().to_numpy(copy=True)
    if diverged := frame.attrs.get("diverged", {}).get(loss_column):
        blank = np.flatnonzero(~mask)
        keys = zip(frame["hyper_id"].to_numpy()[blank], frame["step"].to_numpy()[blank], strict=True)
        mask[blank] = [key in diverged for key in keys]
    return mask


def remarks_of_blanks(frame, loss_column: str) -> list[str]:
    """Return a remark on runs whose last rows have no loss, so that an earlier row is their last evaluation."""
    there = evaluated(frame, loss_column)
    ends = last_evaluations(frame)
    blank = ends["hyper_id"][~evaluated(ends, loss_column)]
    runs = plural(len(set(blank) & set(frame["hyper_id"][there])), "run")
    if runs.startswith("0 "):
        return []
    rows = f"{len(frame) - there.sum()} of {plural(len(frame), 'row')}"
    return [f"{loss_column}: blank in {rows}; the last row with a loss counts in {runs} whose last row is blank"]


def _chosen(frame, rows: str | None) -> np.ndarray:
    if rows is None:
        return np.ones(len(frame), dtype=bool)
    if rows == "clark":
        missing = [name for name in CLARK_COLUMNS if name not in frame]
        if missing:
            raise InputError(f"rows clark: column {missing[0]} is missing; needed: {', '.join(CLARK_COLUMNS)}")
        rows = CLARK
    return row_mask(frame, rows)


def _reasons(last, rows: str | None, loss_column: str, axes: Axes):
    import pandas

    named = set() if rows is None else names_in(rows)
    dense = last["router_type"] == DENSE
    dropped = []
    if "objective" in last and "objective" not in named:
        objective = last["objective"].where(last["objective"].isin(OBJECTIVES), OBJECTIVES[0])
        common = _commonest(objective, min)
        dropped.append((objective != common, f"objective is not the most common, {common}"))
    for name in ("flops_per_step", "total_parameter_count") if axes == "compute" else ():
        dropped.append((np.isnan(column_or_nan(last, name)), f"{name} is not known"))
    if "flop_increase" in last and axes != "compute":
        wide = dense & (last["flop_increase"].fillna(1) != 1)
        dropped.append((wide, "dense with flop_increase above 1, so wider than N implies"))
    dropped.append((~learned(last, rows), UNLEARNED))
    if axes == "one E" and "num_experts" not in named:
        dropped += _of_other_experts(last, dense)
    if rows is None and axes in ("experts", "dense"):
        dropped += _of_uncommon_kind(last, dense)
    dropped.append((last[loss_column].isna(), f"{loss_column} is blank or NaN at the run's last evaluation"))

    reasons = pandas.Series("", index=last.index)
    for where, reason in dropped:
        reasons[where & (reasons == "")] = reason
    return reasons


def _commonest(values, of_a_tie):
    counts = values.value_counts()
    return of_a_tie(counts[counts == counts.max()].index, default=None)


def _of_other_experts(last, dense) -> list[tuple]:
    dropped = [(dense, "dense, but the law is for one number of experts")]
    for router in set(last["router_type"][~dense]):
        router_rows = last["router_type"] == router
        common = _commonest(last["num_experts"][router_rows], max)
        other = router_rows & (last["num_experts"] != common)
        dropped.append((other, f"num_experts is not the most common of {router}, {common:g}"))
    return dropped


def learned(last, rows: str | None) -> np.ndarray:
    """Return the mask of runs whose routers have learned, [n] bool; all if `rows` names a diagnostic."""
    if rows is not None and names_in(rows) & {"router_agreement", "expert_exchange"}:
        return np.ones(len(last), dtype=bool)
    cells = [column_or_nan(last, name) for name in ("num_experts", "k", "router_agreement", "expert_exchange")]
    return np.array([
        not not_learned(np.nan_to_num(k, nan=1.0) / E, *(None if np.isnan(cell) else cell for cell in diagnostics))
        for E, k, *diagnostics in zip(*cells, strict=True)
    ], dtype=bool)  # fmt: skip


def _of_uncommon_kind(last, dense) -> list[tuple]:
    dropped, k = [], last["k"].fillna(1) if "k" in last else None
    for router in set(last["router_type"][~dense]) if k is not None else ():
        here = last["router_type"] == router
        kept = 1 if (k[here] == 1).any() else _commonest(k[here], min)
        dropped.append((here & (k != kept), f"k is not {kept:g}"))
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
