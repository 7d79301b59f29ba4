"""The results table: reading one, checking it, and choosing the rows that a law is fitted to.

One row is one evaluation of one training run. The released table of Clark et al. 2022 has the 22 columns of
RELEASED_COLUMNS; our own training writes those and then OWN_COLUMNS, so that both kinds concatenate. A table of a
user's own needs only NEEDED_COLUMNS and a loss column.
"""

import io
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from ..files import in_short
from .conditions import names_in, row_mask
from .reading import Block, Cells, is_json, read_blocks, take_apart
from .schema import (
    BLANK,
    DENSE,
    NEEDED_COLUMNS,
    OBJECTIVES,
    OWN_COLUMNS,
    RELEASED_COLUMNS,
    TEXT_COLUMNS,
    Problems,
    check_runs,
    outside,
    range_of,
    run_names,
    to_numbers,
    with_numbers,
)

__all__ = [
    "DENSE", "NEEDED_COLUMNS", "OWN_COLUMNS", "RELEASED_COLUMNS", "TEXT_COLUMNS", "RouterRows", "read_table",
    "select_rows",
]  # fmt: skip

CLARK_COLUMNS = ("routing_frequency", "k", "seed")
Axes = Literal["experts", "compute", "dense", "every", "one E"]


class RouterRows(NamedTuple):
    """The rows of one router, with the dense runs added as E = 1."""

    router: str
    frame: "pandas.DataFrame"  # noqa: F821  # the last evaluation of each run that is used
    left_out: list[dict]  # [{"hyper_id": int, "reason": str}], in the order of hyper_id; with "run", its name, if any


class _Part(NamedTuple):
    """Some rows that were read."""

    rows: np.ndarray  # number of each row in the file, from 1
    columns: dict  # {name: [rows] values}


def read_table(path):
    """Read a results table and check every value in it.

    Args:
        path: the file: CSV, or JSON lines if it is named `.jsonl`; packed with gzip if it is named `.gz` besides. It is
            read block by block: ten million rows of ten columns took 17 seconds and 2.5 GB.

    Returns:
        A pandas DataFrame: numbers as float64 (blank is NaN), `hyper_id` and `step` as int64, text as str. Columns that
        the schema does not know are numbers where every cell is one, else text. `attrs["remarks"]` lists, in words,
        what was left out.

    Raises:
        InputError: the file is missing, a folder, or no such table; a needed column is missing; values are wrong, out
            of range or contradict each other. Each is named by its data row (the first one is 1) and column: one line
            for one problem; a first line with their number, and the first 20 below it, for more.
    """
    return _read(path)


def _read(path, *, careful: bool = False):
    """Read a table; where `careful` is on, every block is taken cell by cell, with the same result."""
    problems, parts, names = Problems(path), [], {}

    def take(block: Block) -> int:
        if block.names and not parts:
            _check_columns(path, block.names)
        part, count = None if careful else _fast_part(block), 0
        if part is None:
            cells, count = take_apart(block, problems)
            names.update(cells.columns)
            part = _careful_part(cells, problems)
        parts.append(part)
        return count or len(part.rows)

    read_blocks(path, take)
    if is_json(path) and names:
        _check_columns(path, names)
    rows = np.concatenate([part.rows for part in parts])
    if not len(rows) and not problems.count:
        raise InputError(f"{path}: no rows below the header")
    if not len(rows):
        problems.raise_if_any()
    frame = _joined(parts)
    repeated = check_runs(frame, rows, problems)
    problems.raise_if_any()
    frame.attrs["remarks"] = []
    if repeated.any():
        frame.attrs["remarks"] = [_repeats(rows[repeated])]
        frame = frame[~repeated].reset_index(drop=True)
    return with_numbers(frame)


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
    * "dense", for a law of dense models: one entry, Dense, that holds those alone.

    Args:
        frame: of `read_table`.
        rows: see above.
        loss_column: which loss is fitted.
        axes: what the law is a function of, see above.

    Returns:
        One entry for each router_type but Dense, sorted by name.

    Raises:
        InputError: the loss column is missing; a column that "clark" needs is missing; the condition is none;
            no routed run is left, or for "dense" no dense one.
    """
    if loss_column not in frame:
        present = ", ".join(name for name in frame.columns if name.startswith("loss_"))
        raise InputError(f"loss column {loss_column} is not in the table; there: {present}")
    chosen = _chosen(frame, rows)
    if not chosen.any() and len(frame):
        raise InputError(none_chosen(frame, rows))
    last = _last(frame, chosen)
    reasons = _reasons(last, rows, loss_column, axes)
    routers = [DENSE] if axes == "dense" else sorted(set(last["router_type"]) - {DENSE})
    if axes == "dense" and not (last["router_type"] == DENSE).any():
        there = ", ".join(sorted(set(last["router_type"])))
        raise InputError(
            f"no dense run is left (router_type Dense; there: {there}); a law of dense models needs some. If one of"
            " these is dense: routelaws convert --map router_type:NAME=Dense"
        )
    if not routers:
        raise InputError(
            "no routed run is left (router_type other than Dense); a routed law needs some, --law dense none"
        )
    selection, names = [], run_names(last)
    for router in routers:
        own = last["router_type"].isin([router, DENSE])
        left_out = [
            {"hyper_id": int(run), "reason": reason} | ({"run": names[run]} if run in names else {})
            for run, reason in zip(last["hyper_id"][own], reasons[own], strict=True)
            if reason
        ]
        selection.append(RouterRows(router, last[own & (reasons == "")], left_out))
    return selection


CONVERTED = "; routelaws convert makes such a table of your own log"
"""What is said beside the columns that a table lacks."""


def none_chosen(frame, rows: str) -> str:
    """Return in words that a condition chooses no row, with the values of the columns of text that it names."""
    said = f"rows {rows!r}: no row of the table is so; {len(frame)} rows are there"
    for name in sorted(names_in(rows)):
        if frame[name].dtype.kind not in "iuf":
            said += f"; {name} is {in_short(dict.fromkeys(map(str, frame[name])))}"
    return said


def _check_columns(path, names) -> None:
    """Raise InputError where a column is missing that every table has."""
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if missing:
        said = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
        raise InputError(f"{path}: {said} missing; needed: {', '.join(NEEDED_COLUMNS)}{CONVERTED}")
    if not any(name.startswith("loss_") for name in names):
        raise InputError(f"{path}: no column starts with loss_; needed: at least one, such as loss_validation")


def _fast_part(block: Block) -> _Part | None:
    """Return the rows and columns of a block read by pandas' parser; None if anything in it asks for a closer look."""
    data, width = block.text.encode(), len(block.names)
    if not block.names or b'"' in data or not _even(np.frombuffer(data, np.uint8), width):
        return None
    import pandas

    numbers = [name for name in block.names if range_of(name)]
    recent = tuple(map(int, pandas.__version__.split(".")[:2])) >= (3, 1)
    exact = {} if recent else {"float_precision": "round_trip"}  # later ones always give the nearest float64
    try:
        frame = pandas.read_csv(
            io.BytesIO(data),
            header=None,
            names=block.names,
            index_col=False,
            low_memory=False,
            keep_default_na=False,
            dtype={name: "float64" if name in numbers else str for name in block.names},
            na_values={name: list(BLANK) for name in numbers},
            **exact,
        )
    except ValueError:
        return None
    columns = {name: frame.pop(name).array for name in block.names}
    for name in numbers:
        columns[name] = np.array(columns[name])
        if any(mask.any() for mask, _ in outside(name, columns[name])):
            return None
    if any(router != router.strip() or router in BLANK for router in pandas.unique(columns["router_type"])):
        return None
    return _Part(np.arange(block.first, block.first + len(frame)), _with_whole(columns))


def _even(data: np.ndarray, width: int) -> bool:
    """Return whether every line of the text has `width` cells and, if one, is not blank."""
    ends, commas = np.flatnonzero(data == ord("\n")), np.flatnonzero(data == ord(","))
    if width < 2 or not len(ends) or len(commas) != (width - 1) * len(ends):
        return False
    commas = commas.reshape(len(ends), width - 1)
    return bool((commas[:, -1] < ends).all() and (commas[1:, 0] > ends[:-1]).all())


def _careful_part(cells: Cells, problems: Problems) -> _Part:
    """Return the rows and columns of cells, without the rows that have a problem; every problem is noted."""
    rows, columns = np.array(cells.rows, dtype=np.int64), {}
    good = np.ones(len(rows), dtype=bool)
    absent = {name: [""] * len(rows) for name in NEEDED_COLUMNS if name not in cells.columns}  # of these JSON lines
    for name, texts in (cells.columns | absent).items():
        raw = texts
        if range_of(name):
            columns[name], wrong = to_numbers(texts)
            checks = [(mask & ~wrong, needed) for mask, needed in outside(name, columns[name])]
            checks.append((wrong, "a number"))
        elif name == "router_type":
            texts = [text.strip() for text in texts]
            columns[name] = np.array(texts, dtype=object)
            checks = [(np.isin(columns[name], BLANK), "a value (it is blank)")]
        else:
            columns[name], checks = np.array(texts, dtype=object), []
        for mask, needed in checks:
            problems.add_each(mask, rows, name, raw.__getitem__, needed)
            good &= ~mask
    columns = {name: values[good] if range_of(name) else _texts(values[good]) for name, values in columns.items()}
    return _Part(rows[good], _with_whole(columns))


def _texts(values):
    """Return text as pandas holds it."""
    import pandas

    return pandas.Series(values, dtype=str).array


def _with_whole(columns: dict) -> dict:
    """Return the columns with hyper_id and step as int64."""
    return columns | {name: columns[name].astype(np.int64) for name in ("hyper_id", "step") if name in columns}


def _joined(parts: list[_Part]):
    """Return the columns of all parts as one frame; each part lets go of a column as soon as it is in the frame."""
    import pandas

    def missing(name, rows):
        return np.full(len(rows), np.nan) if range_of(name) else _texts(np.full(len(rows), "", dtype=object))

    joined = {}
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        pieces = [p.columns.pop(name) if name in p.columns else missing(name, p.rows) for p in parts]
        joined[name] = pandas.concat([pandas.Series(piece, copy=False) for piece in pieces], ignore_index=True)
    return pandas.DataFrame(joined, copy=False)


def _repeats(rows: np.ndarray) -> str:
    """Return the remark about rows that were left out since they repeat an earlier one."""
    listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    if len(rows) == 1:
        return f"left out: row {listed}, which repeats an earlier row cell by cell"
    return f"left out: {len(rows)} rows that each repeat an earlier row cell by cell: {listed}"


def _last(frame, chosen: np.ndarray):
    """Return the last evaluation of every run among the chosen rows, by hyper_id.

    Of two rows at the same step the later one in the frame is the last.
    """
    at = np.flatnonzero(chosen)
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
    """Return, for each run, why it is left out; "" where it is used."""
    import pandas

    reasons = pandas.Series("", index=last.index)
    dense = last["router_type"] == DENSE

    def drop(where, reason):
        reasons[where & (reasons == "")] = reason

    if "objective" in last and (rows is None or "objective" not in names_in(rows)):
        objective = last["objective"].where(last["objective"].isin(OBJECTIVES), OBJECTIVES[0])
        counts = objective.value_counts()
        common = min(counts[counts == counts.max()].index, default=None)
        drop(objective != common, f"objective is not the commonest, {common}")
    if axes == "compute":
        for name in ("flops_per_step", "total_parameter_count"):
            drop(last[name].isna() if name in last else last["step"] >= 0, f"{name} is not known")
    elif "flop_increase" in last:
        drop(dense & (last["flop_increase"].fillna(1) != 1), "dense with flop_increase above 1: wider than its N says")
    if axes == "one E" and (rows is None or "num_experts" not in names_in(rows)):
        drop(dense, "dense, and the law holds for one number of experts")
        for router in set(last["router_type"][~dense]):
            own = last["router_type"] == router
            counts = last["num_experts"][own].value_counts()
            common = max(counts[counts == counts.max()].index)
            drop(own & (last["num_experts"] != common), f"num_experts is not the commonest of {router}, {common:g}")
    if axes in ("compute", "every", "one E"):
        rows = "all"
    if rows is None and "k" in last:
        drop(last["k"].fillna(1) != 1, "k is not 1")
    if rows is None and "routing_frequency" in last:
        counts = last["routing_frequency"][~dense].value_counts()
        if len(counts) > 1:
            common = max(counts[counts == counts.max()].index)
            drop(~dense & (last["routing_frequency"] != common), f"routing_frequency is not the commonest, {common:g}")
    if rows is None and "granularity" in last:
        granularity = last["granularity"].fillna(1)
        counts = granularity[~dense].value_counts()
        if len(counts) > 1:
            common = min(counts[counts == counts.max()].index)
            drop(~dense & (granularity != common), f"granularity is not the commonest, {common:g}")
    drop(last[loss_column].isna(), f"{loss_column} is blank at the run's last evaluation")
    return reasons
