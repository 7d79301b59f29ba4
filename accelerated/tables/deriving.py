"""Derive cells of a table from other cells: router, experts, run and step of a row, and losses in nats.

Derived values fill only blank cells. Three things change other cells: `--map`, the spelling of routers, and the unit of
losses. Each change has a remark. N, P and the FLOPs of a training step are in `counting.py`.
"""

import math

import numpy as np

from routelaws.reference.accounting import ROUTER_TYPES

from ..errors import InputError
from ..wording import plural
from .cells import Cells, in_rows
from .counting import fill_counts, widen_experts
from .identity import step_like
from .schema import BLANK, DENSE, spellings, to_numbers
from .units import UNITS_OF, written_out

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
    _runs(table)
    _drop_schedule(table)
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
    blank = table.blank("router_type")
    if "router_type" in table.constants and blank:
        router = table.constants["router_type"]
        router = spellings([router]).get(router, router)
        one_expert = set(np.flatnonzero(table.number("num_experts") == 1))
        table.fill("router_type", {i: router for i in blank if i not in one_expert}, f"{router}, by --set")
        table.fill("router_type", {i: DENSE for i in blank if i in one_expert}, f"{DENSE}, since num_experts is 1")
    elif len(blank) == table.rows and (table.number("num_experts") == 1).all():
        table.fill("router_type", dict.fromkeys(blank, DENSE), f"{DENSE}, since num_experts is 1")
    column = [cell.strip() for cell in table.column("router_type")]
    spelled = spellings(dict.fromkeys(column))
    table.cells["router_type"] = [spelled.get(cell, cell) for cell in column]
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


def _runs(table: Cells) -> None:
    """Number the runs by their names. If hyper_id is blank in some rows only, `read_table` reports it."""
    blank = table.blank("hyper_id")
    if blank and len(blank) == table.rows and not table.names:
        how = "one run, because no column names runs (--columns hyper_id=row makes each row a run)"
        return table.fill("hyper_id", dict.fromkeys(blank, "0"), how)
    names = table.names if len(blank) == table.rows else table.column("hyper_id")
    ids = to_numbers(names)[0]
    if (blank and names is not table.names) or ((ids % 1 == 0) & (ids >= 0) & (ids <= _LARGEST_ID)).all():
        return table.cells.update(hyper_id=list(names))
    table.names = [name.strip() for name in names]
    numbers = {name: str(i) for i, name in enumerate(dict.fromkeys(table.names))}
    table.cells["hyper_id"] = [numbers[name] for name in table.names]
    table.remarks.append(f"hyper_id: {plural(len(numbers), 'run')}, numbered by name in the order of the rows")
    return None


def _drop_schedule(table: Cells) -> None:
    """Drop a learning rate that changes within a run: the column has the highest rate of the run."""
    name, ids = "learning_rate", table.cells["hyper_id"]
    rates = {
        (run, rate) for run, rate in zip(ids, table.cells.get(name, ()), strict=False) if rate.strip() not in BLANK
    }
    if len(rates) > len({run for run, _ in rates}):
        del table.cells[name]
        table.remarks.append(f"{name}: dropped, because it changes within a run; --config can give the highest rate")


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
        raise InputError(
            f"{table.runs}: row {row}, column step: is blank; needed: step, or tokens, in every row, as by --columns"
            f" step={step_like(table.dropped)}"
        )


def to_nats(table: Cells, unit: str | None) -> None:
    """Convert every loss, and the standard error of the validation loss, to nats per token."""
    if unit in (None, "nats"):
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
