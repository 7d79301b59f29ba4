"""Derive cells of a table from other cells: router, experts, run and step of a row, and losses in nats.

Rows of one run and step are joined: a trainer often logs training and validation in separate rows. Derived values fill
only blank cells. Three things change other cells: `--map`, the spelling of routers, and the unit of losses. Each change
has a remark. N, P and the FLOPs of a training step are in `counting.py`.
"""

import math
import re

import numpy as np

from routelaws.reference.accounting import ROUTER_TYPES

from ..errors import InputError
from ..wording import in_short, plural
from .cells import Cells, in_rows
from .counting import fill_counts, widen_experts
from .identity import check_ids, check_rows, marks_of, shown, told_apart
from .log import abandoned, restart_remarks
from .schema import ABSENT, BLANK, CONFIGURATION_COLUMNS, DENSE, TIME_COLUMNS, shorten, to_numbers
from .units import UNITS_OF, written_out

_RECIPE = ("capacity_factor", "batch_size", "sequence_length", "vocab_size", "learning_rate")
"""Columns that can distinguish runs without names, unless their values change along a run, as in a schedule."""
_LARGEST_ID = 2.0**53


def replace_cells(table: Cells, values: dict[str, str], unused: dict) -> None:
    """Replace the values of --map; remove entries that matched a cell from `unused`."""
    before = {name: list(cells) for name, cells in table.cells.items()}
    for item, new in values.items():
        name, _, old = item.partition(":")
        rows = [i for i, cell in enumerate(before.get(name, [])) if cell.strip() == old]
        rows = table.blank(name) if old in BLANK and name in before else rows
        for i in rows:
            table.cells[name][i] = new
        if rows:
            unused.pop(item, None)
            table.remarks.append(f"{name}: {old or 'blank'} becomes {new}{in_rows(len(rows), table.rows)}, by --map")


def derive(table: Cells) -> None:
    for name, value in table.constants.items():
        if not (blank := table.blank(name)):
            table.remarks.append(f"{name}: not set to {value}, because no cell is blank")
        elif name != "router_type":
            table.fill(name, dict.fromkeys(blank, value), f"{value}, by --set")
    _write_out_sizes(table)
    widen_experts(table)
    _router(table)
    blank = [i for i in table.blank("num_experts") if table.cells["router_type"][i] == DENSE]
    table.fill("num_experts", dict.fromkeys(blank, "1"), "1, since router_type is Dense")
    _tell_of_dense(table)
    _drop_abandoned(table)
    _join_rows(table)
    _runs(table)
    _steps(table)
    fill_counts(table)
    if table.names and "run" not in table.cells:
        table.cells["run"] = [name.strip() for name in table.names]


def _write_out_sizes(table: Cells) -> None:
    """Write sizes such as 4.6M as numbers, for other programs."""
    for name in (name for name in UNITS_OF if name in table.cells):
        numbers, cells = table.number(name), table.cells[name]
        rows = np.flatnonzero(to_numbers(cells)[1] & np.isfinite(numbers))
        if rows.size:
            first = cells[rows[0]].strip()
            for i in rows:
                cells[i] = written_out(float(numbers[i]))
            count = in_rows(len(rows), table.rows)
            table.remarks.append(f"{name}: sizes are written out, such as {first} as {cells[rows[0]]}{count}")


def _router(table: Cells) -> None:
    known = {name.casefold(): name for name in ROUTER_TYPES.values()} | ROUTER_TYPES
    blank = table.blank("router_type")
    if "router_type" in table.constants and blank:
        router = known.get(table.constants["router_type"].casefold(), table.constants["router_type"])
        one_expert = set(np.flatnonzero(table.number("num_experts") == 1))
        table.fill("router_type", {i: router for i in blank if i not in one_expert}, f"{router}, by --set")
        table.fill("router_type", {i: DENSE for i in blank if i in one_expert}, f"{DENSE}, since num_experts is 1")
    elif len(blank) == table.rows and (table.number("num_experts") == 1).all():
        table.fill("router_type", dict.fromkeys(blank, DENSE), f"{DENSE}, since num_experts is 1")
    column, spelled = table.column("router_type"), {}
    for i, cell in enumerate(column):
        column[i] = known.get(cell.strip().casefold(), cell.strip())
        if column[i] != cell.strip():
            spelled[cell.strip()] = column[i]
    if spelled:
        table.remarks.append("router_type: " + ", ".join(f"{old} becomes {new}" for old, new in spelled.items()))


def _tell_of_dense(table: Cells) -> None:
    experts, routers = table.number("num_experts"), table.cells["router_type"]
    for router in dict.fromkeys(routers):
        counts = [experts[i] for i, cell in enumerate(routers) if cell == router]
        if router not in (*BLANK, *ROUTER_TYPES.values()) and all(number == 1 for number in counts):
            table.remarks.append(
                f"router_type: {router} has one expert in all of its {len(counts)} rows; if it means dense,"
                f" add --map router_type:{router}={DENSE}"
            )


def _rows_of_runs(table: Cells) -> tuple[dict[tuple, list[int]], np.ndarray]:
    """Return {run: its rows with a step}, and the step of each row, or its tokens: [rows] float64."""
    columns = [table.names] * bool(table.names) + [table.marks[name] for name in marks_of(table.marks)]
    columns += [table.cells[name] for name in ("hyper_id", *CONFIGURATION_COLUMNS) if name in table.cells]
    steps = np.where(np.isnan(table.number("step")), table.number("tokens"), table.number("step"))
    runs: dict[tuple, list[int]] = {}
    for i in np.flatnonzero(np.isfinite(steps)):
        runs.setdefault(tuple(cells[i].strip() for cells in columns), []).append(int(i))
    return runs, steps


def _drop_abandoned(table: Cells) -> None:
    """Drop the losses that a restart of a run replaced: the earlier ones at or after the step of the restart."""
    runs, steps = _rows_of_runs(table)
    restarts = {}
    for rows in runs.values():
        columns = _logged(table, rows)
        often = max((logged for _, logged in columns), key=len, default=[])
        for cells, logged in columns:
            (own, step), (others, last) = (abandoned(logged, shown_by, steps) for shown_by in (logged, often))
            if own | others:
                name = (table.names or table.cells.get("hyper_id") or [""])[rows[0]].strip() or "a run without a name"
                restarts[name] = step if own else last, len(own | others)
            for i in own | others:
                cells[i] = ""
    if restarts:
        table.remarks += restart_remarks(table.runs, restarts)
        table.keep(sorted({i for _, rows in _logged(table, range(table.rows)) for i in rows}))


def _logged(table: Cells, rows) -> list[tuple[list[str], list[int]]]:
    """Return the cells of each column of losses, and those of the rows that have a loss in it."""
    losses = [cells for name, cells in table.cells.items() if name.startswith("loss_")]
    return [(cells, [i for i in rows if cells[i].strip() not in ABSENT]) for cells in losses]


def _join_rows(table: Cells) -> None:
    """Make one row of the rows of a run and step. In each column, the last value counts.

    If the values differ and the rows may be several runs, they stay, and `read_table` reports them.
    """
    runs, steps = _rows_of_runs(table)
    again, dropped = [], set()
    for rows in runs.values():
        groups: dict[float, list[int]] = {}
        for i in rows:
            groups.setdefault(float(steps[i]), []).append(i)
        joined = {step: _values(table.cells, group) for step, group in groups.items() if len(group) > 1}
        twice = [step for step, values in joined.items() if any(len(set(cells)) > 1 for cells in values.values())]
        back = any((np.diff(steps[logged]) < 0).any() for _, logged in _logged(table, rows))
        if twice and (back or _may_be_several(table, groups, twice)):
            joined = {step: values for step, values in joined.items() if step not in twice}
            twice = []
        again += [f"{step:.0f}" for step in twice]
        for step, values in joined.items():
            for name, cells in values.items():
                table.cells[name][groups[step][0]] = cells[-1] if cells else ""
            dropped.update(groups[step][1:])
    if dropped:
        later = f"; at step {in_short(again)}, the later value counts (name two runs by --columns hyper_id=NAME)"
        rows = f"{table.rows} rows become {table.rows - len(dropped)}"
        table.remarks.append(f"joined: rows of one run and step, so {rows}" + later * bool(again))
        table.keep([i for i in range(table.rows) if i not in dropped])


def _values(columns: dict[str, list[str]], rows: list[int]) -> dict[str, list[str]]:
    """Return the values of each column in some rows, in order; of times, only the last."""
    values = {name: [cell for i in rows if (cell := cells[i].strip()) not in ABSENT] for name, cells in columns.items()}
    return values | {name: values[name][-1:] for name in TIME_COLUMNS if name in values}


def _may_be_several(table: Cells, groups: dict[float, list[int]], twice: list[float]) -> bool:
    """Return whether rows of one name may be several runs, since they have two values at some steps.

    So they may, if every step has two values, or if rows of a step differ in the recipe or in a text such as c4 or pile
    (a text that no two rows share is a time).
    """
    texts = {name: cells for name, cells in table.marks.items() if to_numbers(cells)[1].any()}
    texts = {name: cells for name, cells in texts.items() if len(set(cells)) < table.rows}
    told = texts | {name: table.cells[name] for name in ("tokens", *_RECIPE) if name in table.cells}
    differ = any(len(set(cells)) > 1 for step in twice for cells in _values(told, groups[step]).values())
    return differ or len(twice) == len(groups)


def _runs(table: Cells) -> None:
    """Number the runs by their names and ids. If these are blank in every row, number them by their configurations."""
    names, blank = [cell.strip() for cell in table.column("hyper_id")], table.blank("hyper_id")
    if len(blank) == table.rows:
        return _number_configurations(table)
    marks = marks_of(table.marks)
    keys, column, several = told_apart(names, table.marks, marks)
    ids = table.number("hyper_id")
    whole = bool(((ids % 1 == 0) & (ids >= 0) & (ids <= _LARGEST_ID)).all())
    if blank or (whole and not column):
        return None
    if column:
        check_ids(table, keys, column, marks)
    if not (table.is_log or whole):
        check_rows(table, keys, shown, marks)
    numbers = {key: str(i) for i, key in enumerate(dict.fromkeys(keys))}
    table.cells["hyper_id"], table.names = [numbers[key] for key in keys], names
    how = f"{plural(len(numbers), 'run')}, numbered by name in the order of the rows"
    if column:
        shared = in_short(
            f"{shorten(name)} is the name of {len(ids_of_name)} runs" for name, ids_of_name in several.items()
        )
        how = f"{len(numbers)} runs, distinguished by the column {column}, because {shared}"
    table.remarks.append(f"hyper_id: {how}")
    return None


def _number_configurations(table: Cells) -> None:
    told = [name for name in CONFIGURATION_COLUMNS if name in table.cells]
    if not table.names:
        told = _with_recipe(table, told)
    columns, marks = {name: table.cells[name] for name in told}, marks_of(table.marks)
    if table.names:
        columns = {"name": [name.strip() for name in table.names]} | columns
    id_columns = [name for name, kind in marks.items() if kind == "id"][:1]
    columns = {name: table.marks[name] for name in id_columns} or columns
    keys = list(zip(*columns.values(), strict=True))
    if not id_columns:
        keys, column, _ = told_apart(keys, table.marks, marks)
        columns |= {column: []} if column else {}
        called = (lambda key: shown(key[0])) if table.names else (lambda key: "a run without a name")
        check_rows(table, keys, called, marks)
    numbers = {key: str(i) for i, key in enumerate(dict.fromkeys(keys))}
    how = f"{plural(len(numbers), 'run')}, numbered by " + ", ".join(columns)
    if not (id_columns or table.names):
        how = "one run, because no column names runs, and all rows have one configuration"
        if len(numbers) > 1:
            how = f"a number for each of {len(numbers)} configurations, because no column names the runs;"
            how += f" configurations differ in {', '.join(columns)}"
    table.fill("hyper_id", {i: numbers[key] for i, key in enumerate(keys)}, how)


def _with_recipe(table: Cells, told: list[str]) -> list[str]:
    """Return `told` with the columns of the recipe that distinguish runs: two values share a step.

    A column with another value at each step is dropped if all rows have one configuration.

    Raises:
        InputError: a column has other values, so that rows may be one run or several.
    """
    steps = table.cells.get("step", table.cells.get("tokens", [""] * table.rows))
    for name in (name for name in _RECIPE if name in table.cells):
        columns = [table.cells[each] for each in told]
        at_step, of_run = {}, {}  # {configuration and step: values}, {configuration: {value: steps}}
        for i, cell in enumerate(table.cells[name]):
            if cell.strip() not in BLANK:
                run = tuple(cells[i] for cells in columns)
                at_step.setdefault((run, steps[i]), set()).add(cell)
                of_run.setdefault(run, {}).setdefault(cell, set()).add(steps[i])
        shared = [
            any(len(at_step[run, step]) > 1 for step in steps_of_value)
            for run, values in of_run.items()
            for steps_of_value in values.values()
            if len(values) > 1
        ]
        header = table.headers.get(name, name)
        if shared and all(shared):
            told = [*told, name]
        elif shared and (any(shared) or len(of_run) > 1):
            raise InputError(
                f"{table.runs}: {header} has several values for one configuration, so it is not clear which rows are"
                f" one run; name the runs, as in --columns hyper_id={header}, or delete the column"
            )
        elif shared:
            del table.cells[name]
            table.remarks.append(
                f"{name}: dropped, because it changes from step to step, so it is a schedule and does not distinguish"
                f" runs; if each value is a run, add --columns hyper_id={header}"
            )
    return told


def _steps(table: Cells) -> None:
    blank = table.blank("step")
    if not blank:
        return
    tokens = table.number("tokens")
    steps = tokens / (table.number("batch_size") * table.number("sequence_length"))
    whole = [i for i in blank if steps[i] % 1 == 0]
    if len(whole) == len(blank):
        table.fill("step", {i: str(int(steps[i])) for i in blank}, "tokens / (batch_size * sequence_length)")
    elif np.isfinite(tokens[blank]).all() and len(blank) == table.rows:
        table.fill("step", {i: str(round(tokens[i])) for i in blank}, "the tokens, which also order a run's rows")
    elif len(blank) == table.rows and len(set(table.cells["hyper_id"])) == table.rows:
        table.fill("step", dict.fromkeys(blank, "1"), "1, since every run has one row")
    else:
        row = blank[0] + 1
        other = next((name for name in table.marks if re.search("step|epoch|iter", name, re.IGNORECASE)), "NAME")
        raise InputError(
            f"{table.runs}: row {row}, column step: is blank; needed: step, or tokens, in every row, as by --columns"
            f" step={other}"
        )


def to_nats(table: Cells, unit: str) -> None:
    """Convert every loss, and the standard error of the validation loss, to nats per token."""
    if unit == "nats":
        return
    _error_to_nats(table, unit)
    for name in (name for name in table.cells if name.startswith("loss_")):
        values, cells = table.number(name), table.cells[name]
        for i in np.flatnonzero(np.isfinite(values) & (values > 0)):  # `read_table` reports other values
            cells[i] = repr(float(values[i]) * math.log(2) if unit == "bits" else math.log(values[i]))
        table.remarks.append(f"{name}: from {unit} to nats")


def _error_to_nats(table: Cells, unit: str) -> None:
    """Convert standard_error to nats. For a perplexity p, divide by p, because the loss is log p."""
    errors, losses = table.number("standard_error"), table.number("loss_validation")
    scale = np.full(table.rows, math.log(2)) if unit == "bits" else 1 / np.where(losses > 0, losses, np.nan)
    known = np.flatnonzero(np.isfinite(errors * scale))
    for i in known:
        table.cells["standard_error"][i] = repr(float(errors[i] * scale[i]))
    if known.size:
        table.remarks.append(f"standard_error: from {unit} to nats")
