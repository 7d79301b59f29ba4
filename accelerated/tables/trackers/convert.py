"""Convert a user's runs to a results table: rename columns, convert losses to nats, fill derived columns.

A remark names every change. These blank cells are derived (`deriving.py`, `agreement.py`):

    router_type            sinkhorn and other values of --router become S-Base and other names of the table;
                           if `constants` has a router_type, blank rows with one expert become Dense
    num_experts            1 in Dense rows
    hyper_id               a number for each name of a run or, without names, for each configuration
    step                   from tokens; without tokens, 1 if every run has one row
    kqv_size               d_model / num_heads
    dense_parameter_count, total_parameter_count, flops_per_step       by `accounting.count`

These rules are our choice. Columns that a results table does not have are dropped unless `keep` names them. The names
of runs are kept as `run`, for messages. Kept columns can be used in `--rows`. They are also used for warnings about
differences that a law ignores.

Pieces of a log (`log.py`) are joined by run and step. Rows without a loss are excluded. NaN counts as a loss;
otherwise a diverged run would keep its last finite loss. Several tables are converted separately, and their runs get
new numbers. The column `source` names the table of each row.
"""

import csv
import gzip
import io
import operator
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...files import write_atomically
from ...wording import in_short, near, once, plural
from ..agreement import training_tokens
from ..cells import Cells, harmless
from ..schema import BLANK, NAN, TABLE_COLUMNS, bounds_of, name_column
from ..table import CONVERTED, SOURCE, listed, numbered, ranges, read_table
from ..units import SIZES
from .deriving import derive, replace_cells, to_nats
from .headers import apply_units, check_headers
from .identity import BY_ROW
from .log import RUN
from .sources import Source, check_names, configured, sources_of, with_loss

LOSS_UNITS = ("nats", "bits", "perplexity")
"""Units of a loss: nats or bits per token, or perplexity."""

_NEXT_PAIR = re.compile(r",(?=[^,=]*=)")


class Converted(NamedTuple):
    """The result of `convert_runs`."""

    rows: int
    runs: int  # different hyper_id
    remarks: list[str]  # sentences on derived, dropped and excluded values
    ranges: str  # of N, E, tokens and losses


def convert_runs(
    runs,
    out,
    columns: dict[str, str] | None = None,
    constants: dict[str, str] | None = None,
    loss_unit: str | None = None,
    keep: tuple[str, ...] = (),
    config=None,
    values: dict[str, str] | None = None,
    units: dict[str, str] | None = None,
) -> Converted:
    """Write a user's runs as a results table for `read_table`.

    Args:
        runs: one or several files: CSV or JSON lines (see `read_table`), exports of Weights & Biases and TensorBoard,
            or folders of event files (see `kinds.py`). Nested JSON objects have columns such as `config.experts`.
        out: the table, `.csv` or `.csv.gz`; there must be no such file.
        columns: {column of the table: column of `runs`}; columns with the same name need no entry. Allowed are the
            columns of TABLE_COLUMNS, and `loss_` with any name. If there are several tables, each table uses the
            entries for its columns. In a log, hyper_id is the column `run` by default.
        constants: {column of the table: value} for blank cells of `runs`.
        loss_unit: unit of every loss, one of LOSS_UNITS; None means nats, unless a header seems to name another unit.
        keep: more columns of `runs` to keep, with unchanged names; commas separate names.
        config: a table with one row per run; its columns are added to every row of the run. The column `run` or `Name`,
            or else the first column, matches the source column of hyper_id. If there are several tables, it is joined
            to each table that has one of its runs.
        values: {"COLUMN:OLD": NEW}, such as {"router_type:none": "Dense"}: cells OLD of this column become NEW before
            the function derives cells. If OLD is a text of BLANK, such as "", blank cells are replaced.
        units: {column of the table: unit}, such as {"tokens": "B"}, for the plain numbers of a column of sizes. Needed
            if its header looks like a unit (see `headers.py`).

    Raises:
        InputError: `runs` or `config` cannot be read, a name is not allowed or missing, `out` exists, or the result is
            not a valid results table. Row numbers in the message refer to `runs`. No file is written.
    """
    out, constants, columns = Path(out), constants or {}, columns or {}
    values, units = values or {}, units or {}
    _check_request(out, columns, constants, loss_unit)
    sources = [with_loss(source, columns) for source in sources_of(listed(runs), columns)]
    sources = configured(sources, config, columns)
    there = {name for source in sources for name in source.cells}
    keep = [name for item in keep for name in ([item] if item in there else item.split(","))]
    check_names(sources, columns, keep)
    sizes = [name for name in TABLE_COLUMNS if name in SIZES and name in {*columns, *there}]
    if wrong := next((name for name in units if name not in sizes), None):
        raise InputError(f"--unit {wrong}: not a column of sizes in the runs; allowed: {', '.join(sizes) or 'none'}")
    if item := next((item for item in values if ":" not in item), None):
        raise InputError(
            f"--map {item}={values[item]} has no COLUMN; give COLUMN:OLD=NEW, such as router_type:none=Dense"
        )
    unused = dict(values)
    converted = [
        _converted(source, out, columns, constants, loss_unit, keep, values, unused, units) for source in sources
    ]
    if unused:
        name, _, old = next(iter(unused)).partition(":")
        raise InputError(f"--map {name}:{old}={unused[f'{name}:{old}']}: no cell of column {name} is {old or 'blank'}")
    if len(sources) == 1:
        cells, remarks, frame = converted[0]
    else:
        names = [source.name for source in sources]
        told = once((name, source_remarks) for name, (_, source_remarks, _) in zip(names, converted, strict=True))
        remarks = [
            f"{'every table' if len(set(names_of)) == len(names) else in_short(names_of)}: {remark}"
            for remark, names_of in told.items()
        ]
        cells, renumbered = _joined(names, [cells for cells, *_ in converted])
        cells, frame = _checked(", ".join(names), out, cells)
        remarks += renumbered
    cells, changed = _harmless(cells)
    _write(out, cells)
    remarks += changed
    for name in (name for name in cells if name.startswith("loss_")):
        if rows := [f"row {row}" for row, cell in enumerate(cells[name], 1) if cell.strip() in NAN]:
            remarks.append(f"{name}: NaN in {in_short(rows)} of the table; laws leave out a run whose last loss is NaN")
    return Converted(len(cells["hyper_id"]), len(set(cells["hyper_id"])), remarks, _ranges(frame))


def _ranges(frame) -> str:
    """Return the smallest and the largest N, E, tokens and losses of a results table in words."""
    frame = frame.assign(tokens=training_tokens(frame))
    names = ("dense_parameter_count", "num_experts", "tokens", *frame.filter(regex="^loss_"))
    return ranges({name: frame[name].to_numpy() for name in names})


def parse_pairs(items, flag: str) -> dict[str, str]:
    """Return {name: value} from NAME=VALUE items. An item may have several pairs, separated by commas.

    A comma that no other pair follows belongs to the value, as in loss_validation=word_perplexity,none.

    Raises:
        InputError: an item has another form, or a name appears twice.
    """
    pairs = {}
    for item in (pair for pairs_of_item in map(_NEXT_PAIR.split, items) for pair in pairs_of_item):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise InputError(f"{flag} {item} is not of the form NAME=VALUE; give a name and a value")
        if name in pairs:
            raise InputError(f"{flag}: {name} is given twice; give it once")
        pairs[name] = value
    return pairs


def _check_request(out: Path, columns: dict, constants: dict, loss_unit: str | None) -> None:
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: already exists and is not overwritten; choose another --out")
    if not out.name.endswith((".csv", ".csv.gz")):
        raise InputError(f"{out}: has the wrong ending; needed: .csv or .csv.gz")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    if loss_unit not in (None, *LOSS_UNITS):
        raise InputError(f"loss unit {loss_unit!r} is not known; allowed: {', '.join(LOSS_UNITS)}")
    for flag, names in (("--columns", columns), ("--set", constants)):
        for name in names:
            if name not in TABLE_COLUMNS and not name.startswith("loss_"):
                raise InputError(f"{flag} {name}: not in docs/columns.md; {near(name, ['loss_NAME', *TABLE_COLUMNS])}")


def _converted(
    source: Source, out: Path, columns, constants, loss_unit: str, keep, values: dict, unused: dict, units
) -> tuple:
    """Return the cells of a source as a results table, remarks, and the table as read.

    `unused` is a copy of `values`, and the function removes the entries that match a cell.
    """
    columns = {name: column for name, column in columns.items() if column in source.cells}
    if source.is_log:
        columns = {"hyper_id": RUN} | columns
    keep = [name for name in keep if name in source.cells]
    cells, dropped = _renamed(source.cells, columns, keep)
    if not cells:
        there = f"available: {', '.join(dropped)}; map some with --columns"
        raise InputError(f"{source.name}: has no column of a results table; {there}")
    remarks, table = [*source.remarks], Cells(source.name, cells, constants)
    table.at, table.headers = source.at, columns
    table.dropped = {name: source.cells[name] for name in dropped}
    name = name_column(dropped)
    table.names = source.cells.get(name, [])
    replaced = [f"{each} (by {columns[each]})" for each in dropped if each in columns]
    remarks += [f"replaced, by --columns: {in_short(replaced)}"] * bool(replaced)
    dropped = [each for each in dropped if each != name and each not in columns]
    gone = f"dropped, because a results table has no such column: {in_short(dropped, 12)} (--keep keeps some)"
    remarks += [gone] * bool(dropped)
    remarks += check_headers(source.name, {name: columns.get(name, name) for name in cells}, dropped, loss_unit)
    try:
        replace_cells(table, values, unused)
        apply_units(table, units)
        derive(table)
        to_nats(table, loss_unit)
        cells, frame = _checked(source.name, out, table.cells)
    except InputError as error:
        raise InputError(*_located(str(error), table.at).split("\n")) from None
    told = [_located(text, table.at) for text in frame.attrs["remarks"]]
    return cells, remarks + table.remarks + told, frame


def _located(message: str, at: list[str]) -> str:
    """Return a message with the names of rows in the source: the row in its file or, for a log, run and step."""
    return re.sub(r"\brow (\d+)\b", lambda match: at[int(match[1]) - 1], message)


def _renamed(cells: dict[str, list[str]], columns: dict[str, str], keep) -> tuple[dict, list[str]]:
    same_name = [name for name in TABLE_COLUMNS if name in cells and name not in columns]
    table = {name: list(cells[source]) for name, source in columns.items()}
    table |= {name: list(cells[name]) for name in (*same_name, *keep) if name not in table}
    return table, [name for name in cells if name not in {*columns.values(), *same_name, *keep}]


def _joined(names: list[str], tables: list[dict[str, list[str]]]) -> tuple[dict, list[str]]:
    joined, remarks, first, rows = {SOURCE: []}, [], 0, 0
    for name, cells in zip(names, tables, strict=True):
        ids, codes = np.unique([int(float(cell)) for cell in cells["hyper_id"]], return_inverse=True)
        remarks.append(f"{name}: {numbered(ids, first)}")
        cells = cells | {"hyper_id": [str(first + code) for code in codes], SOURCE: [name] * len(codes)}
        for column in dict.fromkeys((*joined, *cells)):
            joined.setdefault(column, [""] * rows).extend(cells.get(column, [""] * len(codes)))
        first, rows = first + len(ids), rows + len(codes)
    return joined, remarks


def _checked(name: str, out: Path, cells: dict[str, list[str]]) -> tuple:
    """Return the cells of a valid results table without repeated rows, and the frame of `read_table`."""
    used = [column for column in cells if any(cell.strip() not in BLANK for cell in cells[column])]
    order = [name for name in TABLE_COLUMNS if name in used] + [name for name in used if name not in TABLE_COLUMNS]
    rows = list(zip(*(cells[column] for column in order), strict=True))
    try:
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder, "table.csv.gz" if out.suffix == ".gz" else "table.csv")
            write_atomically(temporary, _packed(order, rows, out))
            frame = read_table(temporary)
    except InputError as error:
        told = str(error).replace(str(temporary), name)
        lacks = re.search(r"columns? (\w+).* (?:is|are) missing; needed", told)
        blank = re.search(r"column router_type: '[^']*'; needed: a value", told)
        dense = dict.fromkeys(re.findall(r"column (num_experts|k): '(0|)'; needed", told))
        diverged = re.search(r"column (\w+): '([^'\d\s]+)'; needed: .*, or NaN if the run diverged", told)
        told = told.replace(CONVERTED, "")
        told += f"; name yours by --columns {lacks[1]}=YOURS, or use --set or --config" if lacks else ""
        told += "; see --set router_type=NAME and --map router_type:=NAME" * bool(blank)
        told += f"\n  if these runs diverged, add --map {diverged[1]}:{diverged[2]}=NaN" if diverged else ""
        maps = " ".join(f"{column}:{old}=1" for column, old in dense)
        told += f"\n  if these runs are dense, add --map {maps}" * bool(dense)
        told += f"\n  if rows of one name are different runs, {BY_ROW}" * ("which has the same hyper_id" in told)
        raise InputError(*told.split("\n")) from None
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    if frame.attrs["remarks"]:
        rows = list(dict.fromkeys(rows))
    return {column: list(values) for column, values in zip(order, zip(*rows, strict=True), strict=True)}, frame


def _harmless(cells: dict[str, list[str]]) -> tuple[dict[str, list[str]], list[str]]:
    safe = {name: column if bounds_of(name) else harmless(column) for name, column in cells.items()}
    counts = {name: sum(map(operator.ne, column, safe[name])) for name, column in cells.items()}
    remarks = [
        f"{name}: {plural(count, 'cell')} would run as a formula in a spreadsheet, so they now begin with an apostrophe"
        for name, count in counts.items()
        if count
    ]
    names = harmless(list(cells))
    remarks += [f"column {old} is now {new}" for old, new in zip(cells, names, strict=True) if old != new]
    return dict(zip(names, safe.values(), strict=True)), remarks


def _write(out: Path, cells: dict[str, list[str]]) -> None:
    try:
        write_atomically(out, _packed(list(cells), zip(*cells.values(), strict=True), out))
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None


def _packed(names, rows, out: Path) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    content = text.getvalue().encode()
    return gzip.compress(content, mtime=0) if out.name.endswith(".gz") else content
