"""The results table: reading one, checking it, and choosing the rows that a law is fitted to.

One row is one evaluation of one training run. The released table of Clark et al. 2022 has the 22 columns of
RELEASED_COLUMNS; our own training writes those and then OWN_COLUMNS, so that both kinds concatenate. A table of a
user's own needs only NEEDED_COLUMNS and a loss column.
"""

import gzip
import zlib
from pathlib import Path
from typing import NamedTuple

from .errors import InputError

RELEASED_COLUMNS = (
    "hyper_id", "step", "loss_c4", "loss_curation_corpus", "loss_lambada", "loss_pile", "loss_validation",
    "loss_wikitext103", "num_experts", "d_model", "num_blocks", "num_heads", "kqv_size", "flop_increase", "k",
    "router_type", "seed", "routing_frequency", "total_parameter_count", "dense_parameter_count", "flops_per_step",
    "model_size_label",
)  # fmt: skip
"""The columns of the released table, in its order."""

OWN_COLUMNS = (
    "granularity", "capacity_factor", "tokens", "sequence_length", "batch_size", "vocab_size", "learning_rate",
    "dropped_fraction", "wall_seconds", "device", "commit",
)  # fmt: skip
"""The columns that our own training adds, after the released ones."""

NEEDED_COLUMNS = ("hyper_id", "step", "router_type", "num_experts", "dense_parameter_count")
"""What every table has to have, besides at least one column whose name starts with `loss_`."""

TEXT_COLUMNS = ("router_type", "model_size_label", "device", "commit")
CLARK_COLUMNS = ("routing_frequency", "k", "seed")
DENSE = "Dense"
_BLANK = ("", "nan", "NaN", "NA", "null", "None")


class RouterRows(NamedTuple):
    """The rows of one router, with the dense runs added as E = 1."""

    router: str
    frame: "pandas.DataFrame"  # noqa: F821  # the last evaluation of each run that is used
    left_out: list[dict]  # [{"hyper_id": int, "reason": str}], in the order of hyper_id


def read_table(path):
    """Read a results table (CSV, or CSV compressed with gzip and named `.gz`) and check every value in it.

    Args:
        path: the file.

    Returns:
        A pandas DataFrame: numbers as float64 (blank is NaN), `hyper_id` and `step` as int64, text as str.

    Raises:
        InputError: the file is missing, a folder, or no such table; a needed column is missing; a value is not a number
            where one belongs, or is out of its range. The message names the data row (the first one is 1) and column.
    """
    text = _read_text(Path(path))
    missing = [name for name in NEEDED_COLUMNS if name not in text.columns]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; needed: {', '.join(NEEDED_COLUMNS)}")
    losses = [name for name in text.columns if name.startswith("loss_")]
    if not losses:
        raise InputError(f"{path}: no column starts with loss_; needed: at least one, such as loss_validation")
    if not len(text):
        raise InputError(f"{path}: no rows below the header")
    frame = text.copy()
    numbers = [name for name in (*RELEASED_COLUMNS, *OWN_COLUMNS) if name in frame and name not in TEXT_COLUMNS]
    for name in dict.fromkeys([*numbers, *losses]):
        frame[name] = _numbers(path, name, text[name])
    for name in NEEDED_COLUMNS:
        _refuse(path, name, text[name], frame[name].isna() | (text[name].str.strip() == ""), "a value (it is blank)")
    for name in losses:
        _refuse(path, name, text[name], frame[name] <= 0, "a loss above 0")
    _refuse(path, "num_experts", text["num_experts"], frame["num_experts"] < 1, "1 (dense) or more")
    _refuse(path, "dense_parameter_count", text["dense_parameter_count"], frame["dense_parameter_count"] <= 0,
            "a count above 0")  # fmt: skip
    for name in ("hyper_id", "step"):
        _refuse(path, name, text[name], frame[name] % 1 != 0, "a whole number")
        frame[name] = frame[name].astype("int64")
    frame["router_type"] = frame["router_type"].str.strip()
    return frame


def select_rows(frame, rows: str | None = None, loss_column: str = "loss_validation") -> list[RouterRows]:
    """Choose the rows to fit, router by router: the last evaluation (by step) of each run that `rows` lets through.

    A law needs models that differ in N and E only. What each value of `rows` keeps:

    * "clark": the rows of the paper's laws: routing_frequency 0.5, k 1, seed 42.
    * None: every seed; k 1; of the routed runs those with the commonest routing_frequency among them (the larger one
      of a tie). Runs that this drops are listed as left out. A column that the table lacks is not asked about.
    * Anything else: a pandas query over the table's columns, such as "seed == 42 and step <= 100000"; it is applied to
      the evaluations before the last one is taken, and nothing else is dropped.

    Dense runs (router_type Dense) are added to every router as E = 1. A dense run with flop_increase above 1 is wider
    than its N says and is never used. A run whose last evaluation has no loss is left out: an earlier one would be a
    model that trained for less.

    Args:
        frame: of `read_table`.
        rows: see above.
        loss_column: which loss is fitted.

    Returns:
        One entry for each router_type but Dense, sorted by name.

    Raises:
        InputError: the loss column is missing; a column that "clark" needs is missing; the query cannot be evaluated;
            or no routed run is left.
    """
    if loss_column not in frame:
        present = ", ".join(name for name in frame.columns if name.startswith("loss_"))
        raise InputError(f"loss column {loss_column} is not in the table; there: {present}")
    chosen = _chosen(frame, rows)
    # A stable sort: of two rows at the same step the later one in the file is the last.
    last = chosen.sort_values("step", kind="stable").groupby("hyper_id", sort=True).tail(1).sort_values("hyper_id")
    reasons = _reasons(last, rows, loss_column)
    routers = sorted(set(last["router_type"]) - {DENSE})
    if not routers:
        raise InputError("no routed run is left (router_type other than Dense); a routed law needs some")
    selection = []
    for router in routers:
        own = last["router_type"].isin([router, DENSE])
        left_out = [
            {"hyper_id": int(run), "reason": reason}
            for run, reason in zip(last["hyper_id"][own], reasons[own], strict=True) if reason
        ]  # fmt: skip
        selection.append(RouterRows(router, last[own & (reasons == "")], left_out))
    return selection


def _read_text(path: Path):
    """Return the table with every cell as text."""
    import pandas

    if path.is_dir():
        raise InputError(f"{path}: is a folder; needed: a CSV file")
    try:
        return pandas.read_csv(path, dtype=str, keep_default_na=False, index_col=False).fillna("")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except pandas.errors.EmptyDataError:
        raise InputError(f"{path}: is empty; needed: a CSV file with a header") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: cannot be unpacked ({error}); the file is cut short or is not gzip") from None
    except (pandas.errors.ParserError, UnicodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: is not a CSV table ({reason})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _numbers(path, name: str, text):
    """Return a column as float64; InputError at the first text that is neither a finite number nor blank.

    An infinite capacity factor is a number like others: nothing was dropped.
    """
    import pandas

    text = text.str.strip()
    blank = text.isin(_BLANK)
    values = pandas.to_numeric(text.mask(blank), errors="coerce").astype("float64")
    _refuse(path, name, text, values.isna() & ~blank, "a number")
    if name != "capacity_factor":
        _refuse(path, name, text, values.abs() == float("inf"), "a finite number")
    return values


def _refuse(path, name: str, text, bad, needed: str) -> None:
    """Raise InputError at the first row where `bad` holds."""
    bad = bad.to_numpy()
    if bad.any():
        row = int(bad.argmax())
        value = text.iloc[row]
        shown = value if len(value) <= 40 else value[:37] + "..."
        raise InputError(f"{path}: row {row + 1}, column {name}: {shown!r}; needed: {needed}")


def _chosen(frame, rows: str | None):
    """Return the evaluations that `rows` lets through; None lets all through here (see `_reasons`)."""
    if rows is None:
        return frame
    if rows == "clark":
        missing = [name for name in CLARK_COLUMNS if name not in frame]
        if missing:
            raise InputError(f"rows clark: column {missing[0]} is missing; needed: {', '.join(CLARK_COLUMNS)}")
        return frame[(frame["routing_frequency"] == 0.5) & (frame["k"] == 1) & (frame["seed"] == 42)]
    import pandas

    try:
        mask = frame.eval(rows)
    except Exception as error:  # pandas raises many kinds here, SyntaxError and NotImplementedError among them
        reason = " ".join(str(error).split())
        raise InputError(f"rows {rows!r}: not a condition on the table's columns ({reason}); or: clark") from None
    if not (isinstance(mask, pandas.Series) and mask.dtype == bool):
        raise InputError(f"rows {rows!r}: gives no true or false for each row; needed: such as seed == 42")
    return frame[mask]


def _reasons(last, rows: str | None, loss_column: str):
    """Return, for each run, why it is left out; "" where it is used."""
    import pandas

    reasons = pandas.Series("", index=last.index)
    dense = last["router_type"] == DENSE

    def drop(where, reason):
        reasons[where & (reasons == "")] = reason

    if "flop_increase" in last:
        drop(dense & (last["flop_increase"].fillna(1) != 1), "dense with flop_increase above 1: wider than its N says")
    if rows is None and "k" in last:
        drop(last["k"].fillna(1) != 1, "k is not 1")
    if rows is None and "routing_frequency" in last:
        counts = last["routing_frequency"][~dense].value_counts()
        if len(counts) > 1:
            common = max(counts[counts == counts.max()].index)
            drop(~dense & (last["routing_frequency"] != common), f"routing_frequency is not the commonest, {common:g}")
    drop(last[loss_column].isna(), f"{loss_column} is blank at the run's last evaluation")
    return reasons
