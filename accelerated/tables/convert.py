"""A user's own runs as a results table: columns renamed, losses in nats, and what can be derived filled in.

Everything that is not simply copied is said in a remark. What is derived, and only in cells that are blank:

    router_type            names of this project's flags become the table's (sinkhorn: S-Base); if it is given by
                           `constants`, rows with one expert are Dense
    num_experts            1 in Dense rows
    hyper_id               names of runs are numbered; without any, so are the configurations
    step                   from tokens; without either, 1 where every run has one row
    kqv_size               d_model / num_heads
    dense_parameter_count, total_parameter_count, flops_per_step       by `accounting.count`

All of this is our choice. Columns without a place in the table are dropped unless they are asked for, but for two
kinds: the names of runs are kept as `run`, for messages; and columns that begin with `loss_` are kept where every cell
is a loss, which is said, since a law is fitted to one of them only where `--loss` names it. What is kept, such as the
name of a text, is there for `--rows`, and for warnings of rows that a law takes as alike.

Files that are given together: pieces of a log (`exports.py`) are put together by run and step, and rows of a log at
which no loss was logged are left out (NaN is a loss that was logged: an earlier row must not stand for a run that
diverged). Tables stay apart: each is converted by itself, its runs are numbered anew, and the column `source` says
which table a row is from, as where `fit` is given several.
"""

import csv
import gzip
import io
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..accounting import ROUTER_TYPES, count
from ..errors import InputError
from ..wording import in_short
from .log import RUN
from .schema import BLANK, CONFIGURATION_COLUMNS, DENSE, NAME_COLUMNS, OWN_COLUMNS, RELEASED_COLUMNS, to_numbers
from .several import SOURCE, listed, span
from .sources import Source, check_names, configured, sources_of, with_loss
from .table import CONVERTED, read_table

LOSS_UNITS = ("nats", "bits", "perplexity")
"""What a loss may be given in: nats or bits per token, or their perplexity."""

_COLUMNS = (*RELEASED_COLUMNS, *OWN_COLUMNS)
_SHAPE = ("d_model", "num_blocks", "num_heads", "kqv_size")
_COUNTED = ("dense_parameter_count", "total_parameter_count", "flops_per_step")
_RECIPE = ("capacity_factor", "learning_rate", "batch_size", "sequence_length", "vocab_size")
_LARGEST_ID = 2.0**53
_CALLED = {
    "bits per byte": r"bpb|bpc|per[ _/-]?(byte|char)",
    "bits": r"(?<![a-z])bits?(?![a-z])|(?<![a-z])bpt(?![a-z])",
    "perplexity": r"(?<![a-z])(ppl|perplexity)(?![a-z])",
}
"""How columns of losses in other units are called, by the unit."""
_LEAVES_OUT = r"(no|non|not|without|w/?o|excl\w*)[ _./-]*(token[ _./-]*)?emb"
FAR_OFF = 0.1
"""By which share a given N may differ from that of the model's shape before a remark is made: norms, biases, counts."""


class Converted(NamedTuple):
    """What `convert_runs` wrote."""

    rows: int
    runs: int  # different hyper_id
    remarks: list[str]  # what was derived, dropped and left out, in words


def convert_runs(
    runs,
    out,
    columns: dict[str, str] | None = None,
    constants: dict[str, str] | None = None,
    loss_unit: str = "nats",
    keep: tuple[str, ...] = (),
    config=None,
    values: dict[str, str] | None = None,
) -> Converted:
    """Write a user's own runs as a results table that `read_table` reads.

    Args:
        runs: a file or several: CSV or JSON lines, see `read_table`, exports of Weights & Biases and TensorBoard, or
            folders of event files, see `exports.py`. Nested JSON objects have columns such as `config.experts`.
        out: the table, `.csv` or `.csv.gz`; there must be no such file.
        columns: {column of the table: column of `runs`}; a column that already has the table's name needs no entry.
            Allowed are the columns of the released table and our own, and `loss_` with any name. Of several tables
            each takes those that it has. In a log hyper_id is the column `run` unless another one is named.
        constants: {column of the table: value} for cells that `runs` leaves blank.
        loss_unit: one of LOSS_UNITS, for every loss.
        keep: columns of `runs` that the table gets besides, under their own names.
        config: a table with a row for each run, whose columns every row of the run gets. Its column `run` or `Name`, or
            else the first one, holds what is in the column that hyper_id is from. Of several tables it is joined to
            those that have one of its runs.
        values: {"COLUMN:OLD": NEW}, such as {"router_type:none": "Dense"}: cells of a column of the table that hold OLD
            (blank ones, where OLD is "" or one of BLANK) become NEW before anything is derived.

    Raises:
        InputError: `runs` or `config` cannot be read, a name is not allowed or not there, `out` exists, or what comes
            out is no results table; row numbers are those of `runs`. Nothing is written then.
    """
    out, constants, columns, values = Path(out), constants or {}, columns or {}, values or {}
    _check_request(out, columns, constants, loss_unit)
    sources = [with_loss(source, columns) for source in sources_of(listed(runs))]
    sources = configured(sources, config, columns)
    check_names(sources, columns, keep)
    if item := next((item for item in values if ":" not in item), None):
        raise InputError(f"--map {item}={values[item]}: needed: COLUMN:OLD=NEW, such as router_type:none=Dense")
    unused = dict(values)
    converted = [_converted(source, out, columns, constants, loss_unit, keep, values, unused) for source in sources]
    if unused:
        name, _, old = next(iter(unused)).partition(":")
        raise InputError(
            f"--map {name}:{old}={unused[f'{name}:{old}']}: no cell of a column {name} is {old or 'blank'}"
        )
    if len(sources) == 1:
        cells, remarks = converted[0]
    else:
        names = [source.name for source in sources]
        remarks = [f"{name}: {remark}" for name, (_, said) in zip(names, converted, strict=True) for remark in said]
        cells, numbered = _joined(names, [cells for cells, _ in converted])
        cells, _ = _checked(", ".join(names), out, cells)
        remarks += numbered
    _write(out, cells)
    return Converted(len(cells["hyper_id"]), len(set(cells["hyper_id"])), remarks)


def parse_pairs(items, flag: str) -> dict[str, str]:
    """Return {name: value} of NAME=VALUE items, each of which may hold several with commas between.

    Raises:
        InputError: an item is not of this form, or a name is there twice.
    """
    pairs = {}
    for item in ",".join(items).split(",") if items else []:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise InputError(f"{flag} {item}: NAME=VALUE is needed")
        if name in pairs:
            raise InputError(f"{flag}: {name} is given twice")
        pairs[name] = value
    return pairs


def _check_request(out: Path, columns: dict, constants: dict, loss_unit: str) -> None:
    """Raise InputError for what can be seen to be wrong before a file is read."""
    if out.exists():
        raise InputError(f"{out}: is there already and is not overwritten; choose another --out")
    if not out.name.endswith((".csv", ".csv.gz")):
        raise InputError(f"{out}: has the wrong ending; needed: .csv or .csv.gz")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    if loss_unit not in LOSS_UNITS:
        raise InputError(f"loss unit {loss_unit!r} is not known; allowed: {', '.join(LOSS_UNITS)}")
    for flag, names in (("--columns", columns), ("--set", constants)):
        for name in names:
            if name not in _COLUMNS and not name.startswith("loss_"):
                raise InputError(f"{flag} {name}: not a column of the table; allowed: {', '.join(_COLUMNS)}, loss_NAME")


def _converted(
    source: Source, out: Path, columns, constants, loss_unit: str, keep, values: dict, unused: dict
) -> tuple[dict, list[str]]:
    """Return the cells of a source as a results table, and what was done, in words.

    Of `unused`, a copy of `values`, those are taken out that met a cell.
    """
    columns = {name: column for name, column in columns.items() if column in source.cells}
    if source.at is not None:
        columns = {"hyper_id": RUN} | columns
    keep = [name for name in keep if name in source.cells]
    losses = _losses(source.cells, {*columns.values(), *_COLUMNS, *keep}, loss_unit)
    cells, dropped = _renamed(source.cells, columns, [*keep, *losses])
    if not cells:
        there = ", ".join(dropped)
        raise InputError(f"{source.name}: none of its columns is one of the table's; there: {there}; see --columns")
    at, remarks, table = source.at, [*source.remarks], _Table(source.name, cells, constants)
    if name := next((name for name in NAME_COLUMNS if name in dropped), None):
        table.names = source.cells[name]
        dropped.remove(name)
    if dropped:
        remarks.append(f"dropped, since the table has no such column: {in_short(dropped, 12)} (--keep keeps some)")
    remarks += _units_by_name(columns, cells, loss_unit) + _size_by_name(columns, source.cells)
    if losses:
        remarks.append(f"kept besides: {', '.join(losses)}; a law is fitted to one of these only by --loss")
    try:
        table.replace(values, unused)
        table.derive()
        table.to_nats(loss_unit)
        cells, remark = _checked(source.name, out, table.cells)
    except InputError as error:
        raise InputError(_located(str(error), at)) from None
    return cells, remarks + table.remarks + [_located(text, at) for text in remark]


def _units_by_name(columns: dict[str, str], cells, unit: str) -> list[str]:
    """Return a remark on each loss whose column is called by another unit than the one that is taken."""
    remarks = []
    for name in (name for name in cells if name.startswith("loss_")):
        called = columns.get(name, name)
        for other, pattern in _CALLED.items():
            if other != unit and re.search(pattern, called, re.IGNORECASE):
                hint = "such a loss cannot be compared" if other == "bits per byte" else f"if so: --loss-unit {other}"
                remarks.append(f"{name}: taken as {unit}, though the column {called} may be in {other}; {hint}")
                break
    return remarks


def _size_by_name(columns: dict[str, str], cells) -> list[str]:
    """Return a remark where N is from one column and the name of another one says that it leaves the embedding out."""
    given = columns.get("dense_parameter_count")
    other = next((name for name in cells if re.search(_LEAVES_OUT, name, re.IGNORECASE)), None)
    if given is None or other is None or re.search(_LEAVES_OUT, given, re.IGNORECASE):
        return []
    return [f"dense_parameter_count: from {given}; N has to leave the embedding out, as the column {other} may do"]


def _located(message: str, at: list[str] | None) -> str:
    """Return a message in which the rows of a log are called by run and step."""
    if at is None:
        return message
    return re.sub(r"\brow (\d+)\b", lambda match: at[int(match[1]) - 1], message)


def _renamed(cells: dict[str, list[str]], columns: dict[str, str], keep) -> tuple[dict, list[str]]:
    """Return the cells under the table's names, those that are kept besides, and the columns that have no place."""
    own = [name for name in _COLUMNS if name in cells and name not in columns]
    table = {name: list(cells[source]) for name, source in columns.items()}
    table |= {name: list(cells[name]) for name in (*own, *keep) if name not in table}
    return table, [name for name in cells if name not in {*columns.values(), *own, *keep}]


def _losses(cells: dict[str, list[str]], known, unit: str) -> list[str]:
    """Return the columns called `loss_` without a place in the table whose cells are losses, blank ones apart."""
    found = []
    for name in (name for name in cells if name.startswith("loss_") and name not in known):
        values, wrong = to_numbers(cells[name])
        there = values[~np.isnan(values)]
        least = 1.0 if unit == "perplexity" else 0.0
        if there.size and not wrong.any() and np.isfinite(there).all() and (there > least).all():
            found.append(name)
    return found


def _joined(names: list[str], tables: list[dict[str, list[str]]]) -> tuple[dict, list[str]]:
    """Return several tables as one, with their runs numbered anew, and what was done, in words."""
    joined, remarks, first, rows = {SOURCE: []}, [], 0, 0
    for name, cells in zip(names, tables, strict=True):
        ids, codes = np.unique([int(float(cell)) for cell in cells["hyper_id"]], return_inverse=True)
        remarks.append(f"{name}: hyper_id {span(*ids[[0, -1]])} is numbered {span(first, first + len(ids) - 1)}")
        cells = cells | {"hyper_id": [str(first + code) for code in codes], SOURCE: [name] * len(codes)}
        for column in dict.fromkeys((*joined, *cells)):
            joined.setdefault(column, [""] * rows).extend(cells.get(column, [""] * len(codes)))
        first, rows = first + len(ids), rows + len(codes)
    return joined, remarks


def _checked(name: str, out: Path, cells: dict[str, list[str]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return cells that are a results table, without rows that are there twice, and the remarks of `read_table`."""
    used = [column for column in cells if any(cell.strip() not in BLANK for cell in cells[column])]
    order = [column for column in _COLUMNS if column in used] + [column for column in used if column not in _COLUMNS]
    rows = list(zip(*(cells[column] for column in order), strict=True))
    temporary = out.with_name(f".{os.getpid()}.{out.name}")
    try:
        temporary.write_bytes(_packed(order, rows, temporary))
        remarks = read_table(temporary).attrs["remarks"]
    except InputError as error:
        told = str(error).replace(str(temporary), name)
        lacks = re.search(r"columns? .* (is|are) missing; needed", told)
        blank = re.search(r"column router_type: '[^']*'; needed: a value", told)
        told = told.replace(CONVERTED, "") + "; see --columns, --set and --config" * bool(lacks)
        raise InputError(told + "; see --set router_type=NAME and --map router_type:=NAME" * bool(blank)) from None
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)
    if remarks:
        rows = list(dict.fromkeys(rows))
    return {column: list(values) for column, values in zip(order, zip(*rows, strict=True), strict=True)}, remarks


def _write(out: Path, cells: dict[str, list[str]]) -> None:
    """Write cells as a file, which is there whole or not at all."""
    temporary = out.with_name(f".{os.getpid()}.{out.name}")
    try:
        temporary.write_bytes(_packed(list(cells), zip(*cells.values(), strict=True), out))
        os.replace(temporary, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


def _packed(names, rows, out: Path) -> bytes:
    """Return a table as the bytes of its file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    content = text.getvalue().encode()
    return gzip.compress(content, mtime=0) if out.name.endswith(".gz") else content


def _in_rows(count: int, rows: int) -> str:
    return "" if count == rows else f", in {count} of {rows} rows"


class _Table:
    """The cells of the table to be, as text; each step fills blank cells and says so."""

    def __init__(self, runs, cells: dict[str, list[str]], constants: dict[str, str]):
        self.runs, self.cells, self.constants, self.remarks = runs, cells, constants, []
        self.names: list[str] = []  # of the run of each row, where a column has them that has no place in the table
        self.rows = len(next(iter(cells.values()), []))

    def column(self, name: str) -> list[str]:
        """Return a column, made of blanks if it was not there."""
        return self.cells.setdefault(name, [""] * self.rows)

    def blank(self, name: str) -> list[int]:
        """Return the rows without a value in a column."""
        return [i for i, cell in enumerate(self.cells.get(name, [""] * self.rows)) if cell.strip() in BLANK]

    def fill(self, name: str, values: dict[int, str], how: str) -> None:
        """Put values into rows of a column."""
        if values:
            column = self.column(name)
            for i, value in values.items():
                column[i] = value
            self.remarks.append(f"{name}: {how}{_in_rows(len(values), self.rows)}")

    def number(self, name: str) -> np.ndarray:
        """Return a column as numbers, NaN where there is none: [rows] float64."""
        return to_numbers(self.cells.get(name, [""] * self.rows))[0]

    def replace(self, values: dict[str, str], unused: dict) -> None:
        """Put other values into the cells that hold those of --map; what met a cell is taken out of `unused`."""
        before = {name: list(cells) for name, cells in self.cells.items()}
        for item, new in values.items():
            name, _, old = item.partition(":")
            rows = [i for i, cell in enumerate(before.get(name, [])) if cell.strip() == old]
            rows = self.blank(name) if old in BLANK and name in before else rows
            for i in rows:
                self.cells[name][i] = new
            if rows:
                unused.pop(item, None)
                self.remarks.append(f"{name}: {old or 'blank'} is {new}{_in_rows(len(rows), self.rows)}, as mapped")

    def derive(self) -> None:
        """Fill in what can be derived."""
        for name, value in self.constants.items():
            if not (blank := self.blank(name)):
                self.remarks.append(f"{name}: not set to {value}, since no cell is blank")
            elif name != "router_type":
                self.fill(name, dict.fromkeys(blank, value), f"{value}, as set")
        self._router()
        blank = [i for i in self.blank("num_experts") if self.cells["router_type"][i] == DENSE]
        self.fill("num_experts", dict.fromkeys(blank, "1"), "1, since router_type is Dense")
        self._tell_of_dense()
        self._runs()
        self._steps()
        self._counts()
        if self.names and "run" not in self.cells:
            self.cells["run"] = [name.strip() for name in self.names]

    def to_nats(self, unit: str) -> None:
        """Turn every loss, and the standard error of the validation loss, into nats per token."""
        if unit == "nats":
            return
        self._error_to_nats(unit)
        for name in (name for name in self.cells if name.startswith("loss_")):
            values, cells = self.number(name), self.cells[name]
            for i in np.flatnonzero(np.isfinite(values) & (values > 0)):  # of the others `read_table` will tell
                cells[i] = repr(float(values[i]) * math.log(2) if unit == "bits" else math.log(values[i]))
            self.remarks.append(f"{name}: from {unit} to nats")

    def _error_to_nats(self, unit: str) -> None:
        """Turn standard_error into nats: of a perplexity p, where log p is the loss, it is smaller by the factor p."""
        errors, losses = self.number("standard_error"), self.number("loss_validation")
        scale = np.full(self.rows, math.log(2)) if unit == "bits" else 1 / np.where(losses > 0, losses, np.nan)
        known = np.flatnonzero(np.isfinite(errors * scale))
        for i in known:
            self.cells["standard_error"][i] = repr(float(errors[i] * scale[i]))
        if known.size:
            self.remarks.append(f"standard_error: from {unit} to nats")

    def _router(self) -> None:
        """Fill in router_type, in the table's spelling."""
        known = {name.casefold(): name for name in ROUTER_TYPES.values()} | ROUTER_TYPES
        blank = self.blank("router_type")
        if "router_type" in self.constants and blank:
            given = known.get(self.constants["router_type"].casefold(), self.constants["router_type"])
            one = set(np.flatnonzero(self.number("num_experts") == 1))
            self.fill("router_type", {i: given for i in blank if i not in one}, f"{given}, as set")
            self.fill("router_type", {i: DENSE for i in blank if i in one}, f"{DENSE}, since num_experts is 1")
        elif len(blank) == self.rows and (self.number("num_experts") == 1).all():
            self.fill("router_type", dict.fromkeys(blank, DENSE), f"{DENSE}, since num_experts is 1")
        column, spelled = self.column("router_type"), {}
        for i, cell in enumerate(column):
            column[i] = known.get(cell.strip().casefold(), cell.strip())
            if column[i] != cell.strip():
                spelled[cell.strip()] = column[i]
        if spelled:
            self.remarks.append("router_type: " + ", ".join(f"{old} is {new}" for old, new in spelled.items()))

    def _tell_of_dense(self) -> None:
        """Remark on a router that we do not know and that has one expert wherever it stands: a name for dense."""
        experts, routers = self.number("num_experts"), self.cells["router_type"]
        for router in dict.fromkeys(routers):
            own = [experts[i] for i, cell in enumerate(routers) if cell == router]
            if router not in (*BLANK, *ROUTER_TYPES.values()) and all(number == 1 for number in own):
                self.remarks.append(
                    f"router_type: {router} has one expert in all of its {len(own)} rows; if it means dense:"
                    f" --map router_type:{router}={DENSE}"
                )

    def _runs(self) -> None:
        """Number the runs by their names or, where these are blank in every row, by their configurations."""
        names, blank = [cell.strip() for cell in self.column("hyper_id")], self.blank("hyper_id")
        if len(blank) < self.rows:
            ids = self.number("hyper_id")
            if not blank and not ((ids % 1 == 0) & (ids >= 0) & (ids <= _LARGEST_ID)).all():
                numbers = {name: str(i) for i, name in enumerate(dict.fromkeys(names))}
                self.cells["hyper_id"], self.names = [numbers[name] for name in names], names
                self.remarks.append(f"hyper_id: the names of {len(numbers)} runs, numbered in the order of the rows")
            return
        told = [name for name in (*CONFIGURATION_COLUMNS, *_RECIPE) if name in self.cells]
        keys = list(zip(*(self.cells[name] for name in told), strict=True))
        numbers = {key: str(i) for i, key in enumerate(dict.fromkeys(keys))}
        how = f"one for each of {len(numbers)} configurations (no column names the runs), told apart by "
        self.fill("hyper_id", {i: numbers[key] for i, key in enumerate(keys)}, how + ", ".join(told))

    def _steps(self) -> None:
        """Fill in step from tokens; if there are none either, every run has to have one row."""
        blank = self.blank("step")
        if not blank:
            return
        tokens = self.number("tokens")
        steps = tokens / (self.number("batch_size") * self.number("sequence_length"))
        whole = [i for i in blank if steps[i] % 1 == 0]
        if len(whole) == len(blank):
            self.fill("step", {i: str(int(steps[i])) for i in blank}, "tokens / (batch_size * sequence_length)")
        elif np.isfinite(tokens[blank]).all() and len(blank) == self.rows:
            self.fill("step", {i: str(round(tokens[i])) for i in blank}, "the tokens, which order a run's rows too")
        elif len(blank) == self.rows and len(set(self.cells["hyper_id"])) == self.rows:
            self.fill("step", dict.fromkeys(blank, "1"), "1, since every run has one row")
        else:
            row = blank[0] + 1
            raise InputError(f"{self.runs}: row {row}, column step: is blank; needed: step, or tokens, in every row")

    def _counts(self) -> None:
        """Fill in N, P and the FLOPs of a step where the shape of the model gives them."""
        width, heads = self.number("d_model"), self.number("num_heads")
        split = [i for i in self.blank("kqv_size") if width[i] % heads[i] == 0]
        self.fill("kqv_size", {i: str(int(width[i] / heads[i])) for i in split}, "d_model / num_heads")
        names = (*_SHAPE, "num_experts", "k", "routing_frequency", "flop_increase", "granularity", *_RECIPE[2:])
        numbers = {name: [None if math.isnan(x) else x for x in self.number(name).tolist()] for name in names}
        self._check_size(numbers)
        given = self.number("dense_parameter_count").tolist()
        for name in _COUNTED:
            blank = self.blank(name)
            counted = {i: self._counted(name, i, numbers, given[i]) for i in blank}
            values = {i: repr(value) for i, value in counted.items() if value is not None}
            self.fill(name, values, "counted from the shape of the model")
            told = name == "dense_parameter_count" or "d_model" not in self.cells  # by `read_table`, or no shape at all
            if len(values) < len(blank) and not told:
                row = next(i for i in blank if i not in values)
                causes = _lacking(name, self.cells["router_type"][row], {n: v[row] for n, v in numbers.items()})
                missing = _in_rows(len(blank) - len(values), self.rows)
                self.remarks.append(
                    f"{name}: blank{missing}, since it is counted from the shape; {causes} (row {row + 1})"
                )

    def _counted(self, name: str, i: int, numbers: dict[str, list], given: float) -> float | None:
        """Return a count of a row that follows from the shape of its model; None where the shape is not known.

        Args:
            name: of the count.
            i: the row.
            numbers: {column: [rows]} of the shape.
            given: N of the row as the user gives it, NaN if not. A dense model has no parameters but these.

        Raises:
            InputError: there is no model of this shape.
        """
        router = self.cells["router_type"][i]
        try:
            value = _count(name, router, {n: v[i] for n, v in numbers.items()})
        except InputError as error:
            raise InputError(f"{self.runs}: row {i + 1}: {error}") from None
        if value is None or name != "total_parameter_count" or router != DENSE:
            return value
        return given if numbers["flop_increase"][i] in (None, 1) and math.isfinite(given) else value

    def _check_size(self, numbers: dict[str, list]) -> None:
        """Remark on a given N that is far from that of the model's shape, as one that counts the embedding is."""
        given, far = self.number("dense_parameter_count"), []
        for i in np.flatnonzero(np.isfinite(given)):
            known = {name: values[i] for name, values in numbers.items()}
            try:
                counted = _count("dense_parameter_count", self.cells["router_type"][i], known)
            except InputError:  # a shape of somebody else's model, which we do not count
                continue
            if counted is not None and abs(given[i] / counted - 1) > FAR_OFF:
                far.append((i, counted, known["vocab_size"]))
        if far:
            i, counted, vocabulary = far[0]
            embedding = f"; vocab_size times d_model is {vocabulary * numbers['d_model'][i]:,.0f}" if vocabulary else ""
            self.remarks.append(
                f"dense_parameter_count: in {len(far)} of {self.rows} rows far from what the model's shape gives "
                f"(row {i + 1}: {given[i]:,.0f}, by shape {counted:,.0f}{embedding}); does it count the embedding?"
            )


def _needed(name: str, router: str, wide: float) -> tuple[str, ...]:
    """Return the columns that N, P or FLOPs of a row are counted from."""
    if name == "dense_parameter_count":
        return _SHAPE
    routed = () if router == DENSE else ("num_experts", "k")
    share = () if router == DENSE and wide == 1 else ("routing_frequency",)
    return (*_SHAPE, *share, *routed, *(_RECIPE[2:] if name == "flops_per_step" else ()))


def _lacking(name: str, router: str, known: dict[str, float | None]) -> str:
    """Return in words why N, P or FLOPs of a row cannot be counted."""
    absent = [column for column in _needed(name, router, known["flop_increase"] or 1) if known[column] is None]
    if absent:
        return f"not known: {', '.join(absent)}"
    if router not in ROUTER_TYPES.values():
        return f"router_type {router!r} is none that is counted: {', '.join(ROUTER_TYPES.values())}"
    return "a number of the shape is not whole"


def _count(name: str, router: str, known: dict[str, float | None]) -> float | None:
    """Return N, P or FLOPs of one row, None if something that it is counted from is not known.

    Where N alone is asked for the router does not matter: routed or not, N is that of the dense model.
    """
    values = {n: int(x) if x is not None and math.isfinite(x) and x % 1 == 0 else None for n, x in known.items()}
    shape = [values[n] for n in _SHAPE]
    if any(size is None or size < 1 for size in shape):
        return None
    if name == "dense_parameter_count":
        return float(count(*shape).dense_parameters)
    wide, (batch, length, vocabulary) = known["flop_increase"] or 1, (values[n] for n in _RECIPE[2:])
    needed = [(known if column == "routing_frequency" else values)[column] for column in _needed(name, router, wide)]
    if router not in ROUTER_TYPES.values() or None in needed or wide % 1:
        return None
    counted = count(
        *shape,
        router,
        values["num_experts"] or 1,
        values["k"] or 1,
        known["routing_frequency"] or 0.5,
        int(wide),
        granularity=values["granularity"] or 1,
        vocab_size=vocabulary or 1,
        sequence_length=length or 1,
    )
    per_step = batch * length if name == "flops_per_step" else 0
    return float(counted.flops_per_token * per_step or counted.total_parameters)
