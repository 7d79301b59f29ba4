"""Derive cells of a table from other cells: router, experts, run and step of a row, and losses in nats.

Derived values fill only blank cells. Three things change other cells: `--map`, the spelling of routers, and the unit of
losses. Each change has a remark. `agreement.py` counts N, P and the FLOPs of a training step.
"""

import collections
import math
import re

import numpy as np

from routelaws.reference.accounting import ROUTER_TYPES

from ...errors import InputError
from ...wording import plural
from ..agreement import INPUTS, SHAPE, WORDS, count_of, lacking, routing_options_of
from ..cells import Cells, in_rows
from ..schema import BLANK, DENSE, TABLE_COLUMNS, dense_cells, shorten, spellings, to_numbers
from ..units import UNITS_OF, written_out
from .identity import step_like

_LARGEST_ID = 2.0**53
_SHAPES = {
    "FFN width": r"(?<![a-z])([dn]_?(ffn?|inner)|d_?(expert|mlp|moe)|dim_?feed_?forward|(ffw?n?|feed_?forward|mlp"
    r"|intermediate|inner|expert)_?(hidden_?)?(dim|size|width|channels|ratio|mult|factor))(?![a-z])",
    "shared experts": "shared?_?expert",
    "dense layers": "first_?k_?dense|dense_?(layers|blocks)",
    "routing interval": "moe_?(layer_?)?(freq(uency)?|every|interval|step)|sparse_?step",
    "num_heads": "kv_?heads|key_?value_?heads|query_?groups",
    "kqv_size": "head_?(dim|size)|d_?head|kv_?channels",
}
"""{fact of a shape: header of a column that may contradict what counts assume}."""
_OF_EXPERTS = ("shared experts", "dense layers", "routing interval")
_ACTIVATION = r"^model_options$|act(ivation)?([ _]?(fn|func(tion)?))?$|(ffn?|mlp)[ _]?(type|kind)$"
_WIDTH = 0.15
"""Tolerated relative deviation of a width. A width of 8/3 d_model instead of 3 d_model deviates by 0.11."""
COUNTED = ("dense_parameter_count", "total_parameter_count", "flops_per_step")
"""The columns that `agreement.count_of` counts."""


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
    _widen_experts(table)
    _router(table)
    blank = [i for i in table.blank("num_experts") if table.cells["router_type"][i] == DENSE]
    table.fill("num_experts", dict.fromkeys(blank, "1"), "1, since router_type is Dense")
    _check_dense(table)
    _runs(table)
    _drop_schedule(table)
    _steps(table)
    _fill_counts(table)
    header = table.headers.get("dense_parameter_count", "")
    if re.search("activ", header, re.IGNORECASE) and (table.number("k") > 1).any():
        table.remarks.append(
            f"dense_parameter_count: {shorten(header)} seems to count k experts; needed: parameters with one expert"
        )
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
    blank, one_expert = table.blank("router_type"), table.number("num_experts") == 1
    if (router := table.constants.get("router_type")) is not None:
        router = spellings([router]).get(router, router)
        table.fill("router_type", {i: router for i in blank if not one_expert[i]}, f"{router}, by --set")
    if router is not None or len(blank) < table.rows or one_expert.all():  # else the whole column is missing
        table.fill("router_type", {i: DENSE for i in blank if one_expert[i]}, f"{DENSE}, since num_experts is 1")
    column = [cell.strip() for cell in table.column("router_type")]
    spelled = spellings(dict.fromkeys(column))
    table.cells["router_type"] = [spelled.get(cell, cell) for cell in column]
    if spelled:
        table.remarks.append("router_type: " + ", ".join(f"{old} becomes {new}" for old, new in spelled.items()))


def _check_dense(table: Cells) -> None:
    """Remark on names of routers that may mean dense.

    Raises:
        InputError: another column says that a row with several experts is dense.
    """
    experts, routers = table.number("num_experts"), table.cells["router_type"]
    for name, cells in ({"router_type": routers} | table.dropped).items():
        means = dense_cells(name)
        for i in np.flatnonzero(experts > 1):
            if cells[i].strip().casefold() in means and routers[i] != DENSE:
                raise InputError(
                    f"{table.runs}: row {i + 1}: {name} is {cells[i]}, but num_experts is {experts[i]:g}; a dense run"
                    f" has 1 expert; correct num_experts, or delete the column {name} if the run is routed"
                )
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
    ids, texts = to_numbers(names)[0], [name.strip().removesuffix(".0") for name in names]
    whole = ((ids % 1 == 0) & (ids >= 0) & (ids <= _LARGEST_ID)).all()
    if (blank and names is not table.names) or (whole and len({*texts}) == len({*ids})):  # 1 and 001 are two names
        return table.cells.update(hyper_id=texts)
    table.names = [name.strip() for name in names]
    numbers = {name: str(i) for i, name in enumerate(dict.fromkeys(table.names))}
    table.cells["hyper_id"] = [numbers[name] for name in table.names]
    table.remarks.append(f"hyper_id: {plural(len(numbers), 'run')}, numbered by name in the order of the rows")
    return None


def _drop_schedule(table: Cells) -> None:
    """Drop a learning rate that changes within a run: the column has the highest rate of the run.

    A single rate beside rows without one may be any rate of a schedule.
    """
    name, rates = "learning_rate", collections.defaultdict(list)
    for run, rate in zip(table.cells["hyper_id"], table.cells.get(name, ()), strict=False):
        rates[run].append("" if rate.strip() in BLANK else rate)
    if any(len({*of_run} - {""}) > 1 or 1 == len(of_run) - of_run.count("") < len(of_run) for of_run in rates.values()):
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


# COUNTS FROM SHAPES


def _widen_experts(table: Cells) -> None:
    """Replace narrow_experts and narrow_k by num_experts and k, which count experts of the dense width.

    Raises:
        InputError: the number of experts of the dense width is not whole, or a token uses less than one.
    """
    narrow, granularity = table.number("narrow_experts"), table.number("granularity")
    for name, source in (("num_experts", "narrow_experts"), ("k", "narrow_k")):
        if source not in table.cells:
            continue
        wide = np.where(narrow == 1, 1, table.number(source) / granularity)
        if (bad := np.flatnonzero((wide % 1 > 0) if name == "num_experts" else wide < 1)).size:
            row, cell = bad[0], table.cells[source][bad[0]]
            needed = f"{'a multiple of' if name == 'num_experts' else 'at least'} granularity ({granularity[row]:g})"
            raise InputError(f"{table.runs}: row {row + 1}, column {source}: {cell}; needed: {needed}")
        values = {int(i): written_out(float(wide[i])) for i in np.flatnonzero(np.isfinite(wide))}
        table.fill(name, values, f"{source} / granularity")


def _fill_counts(table: Cells) -> None:
    """Fill in N, P and the FLOPs of a step if the shape of the model gives them."""
    narrow = [table.cells.pop(name, None) for name in ("narrow_experts", "narrow_k")]
    width, heads = table.number("d_model"), table.number("num_heads")
    split = [i for i in table.blank("kqv_size") if width[i] % heads[i] == 0]
    table.fill("kqv_size", {i: str(int(width[i] / heads[i])) for i in split}, "d_model / num_heads")
    numbers = {name: [None if math.isnan(x) else x for x in table.number(name).tolist()] for name in INPUTS}
    for name in WORDS:
        numbers[name] = [text.casefold() for text in table.cells.get(name, [""] * table.rows)]
    _fill_sizes_of_dense(table, numbers)
    of_n, of_all = _not_counted(table, numbers)
    sizes = table.number("dense_parameter_count").tolist()
    for name in COUNTED:
        blank, other = table.blank(name), of_n if name == COUNTED[0] else of_all
        counted = {i: None if i in other else _counted(table, name, i, numbers, sizes[i]) for i in blank}
        values = {i: repr(value) for i, value in counted.items() if value is not None}
        if other is of_n and (row := next((i for i in blank if i in other), None)) is not None:
            raise InputError(f"{table.runs}: row {row + 1}: {other[row]}; name your N by --columns {name}=YOURS")
        how = "counted from the shape of the model, with FFNs of width 4 d_model (3 d_model with swiglu)"
        table.fill(name, values, how)
        # `read_table` reports a missing N; a table without shapes cannot be counted
        told = name == "dense_parameter_count" or "d_model" not in table.cells
        if len(values) < len(blank) and not told:
            row = next(i for i in blank if i not in values)
            known = {n: v[row] for n, v in numbers.items()}
            causes = other.get(row) or lacking(name, table.cells["router_type"][row], known)
            missing = in_rows(len(blank) - len(values), table.rows)
            table.remarks.append(
                f"{name}: cannot be counted from the shape{missing}, so it is blank; {causes} (row {row + 1})"
            )
    if narrow == [None, None]:
        _tell_of_narrow(table, numbers)


def _not_counted(table: Cells, numbers: dict[str, list]) -> tuple[dict[int, str], dict[int, str]]:
    """Return {row: why its shape is not counted} for N, and for P and FLOPs: a column that counts have no place for.

    Raises:
        InputError: routed rows without granularity have experts of several widths.
    """
    of_n, of_all, assumed = {}, {}, {name: numbers[name] for name in ("num_heads", "kqv_size")}
    assumed["shared experts"] = [routing_options_of(text)["shared_experts"] for text in numbers["routing_options"]]
    assumed["dense layers"] = [0] * table.rows
    assumed["routing interval"] = [share and 1 / share for share in numbers["routing_frequency"]]
    assumed["FFN width"] = [
        (3 if "swiglu" in options else 4) * (width or math.nan)
        for options, width in zip(numbers["model_options"], numbers["d_model"], strict=True)
    ]
    for name, cells in (table.cells | table.dropped).items():
        fact = next((fact for fact, header in _SHAPES.items() if re.search(header, name, re.IGNORECASE)), None)
        for i, text in enumerate(cells) if re.search(_ACTIVATION, name, re.IGNORECASE) else ():
            if re.search("glu|silu|swish", text, re.IGNORECASE) and "swiglu" not in numbers["model_options"][i]:
                of_n[i] = f"{name} is {text}, but counts assume gelu; --set model_options=swiglu counts three matrices"
        shares, of_dense = dict[float, int](), dict[float, int]()
        for i in np.flatnonzero(to_numbers(cells)[0] > 0) if fact and name not in TABLE_COLUMNS else ():
            value, expected = float(cells[i]), assumed[fact][i]
            width, granularity = numbers["d_model"][i], numbers["granularity"][i]
            if re.search("ratio|mult|factor", name, re.IGNORECASE):
                value *= width or math.nan
            if fact == "routing interval":  # some tables have the share of routed blocks
                value = max(value, 1 / value)
            routed, of_experts = table.cells["router_type"][i] != DENSE, fact in _OF_EXPERTS
            if fact == "FFN width" and width and not granularity:
                (shares if routed else of_dense)[value / width] = i
            narrow = (granularity or 1) if fact == "FFN width" else 1  # some tables have the width of a narrow expert
            off = expected is not None and all(abs(value * n - expected) > _WIDTH * expected for n in (1, narrow))
            if off and (routed or not of_experts):
                why = f"{name} is {cells[i]}, but counts assume {expected:g} ({fact}; see docs/columns.md)"
                if fact == "FFN width" and value < expected and not granularity:
                    why += "; for narrow experts, state granularity, narrow_experts and narrow_k"
                (of_all if of_experts else of_n)[i] = why
        if shares and max(shares) > (1 + 2 * _WIDTH) * min(shares):
            raise InputError(
                f"{table.runs}: {name} is {min(shares):g} d_model in row {shares[min(shares)] + 1} and {max(shares):g} "
                f"d_model in row {shares[max(shares)] + 1}, so experts are of several widths; state granularity, "
                "narrow_experts and narrow_k"
            )
        widest = max(shares, default=0.0)
        usual = min([assumed[fact][shares[widest]] / numbers["d_model"][shares[widest]], *of_dense]) if shares else 0
        if usual > 1.6 * widest:
            table.remarks.append(
                f"{name}: experts have the width {widest:g} d_model, and dense FFNs {usual:g} d_model; if num_experts "
                "and k count narrow experts, state granularity, narrow_experts and narrow_k"
            )
    return of_n, of_all | of_n


def _fill_sizes_of_dense(table: Cells, numbers: dict[str, list]) -> None:
    """Fill in N with the P of a dense model of the same shape, since both counts have to agree.

    P counts as N only up to 1.1 times the count of the shape: a larger P may count the embedding.
    """
    total, sizes = table.number("total_parameter_count"), {}
    columns = [numbers[name] for name in (*SHAPE, *WORDS[:1], "counted_embeddings")]
    shapes = [shape if None not in shape[: len(SHAPE)] else None for shape in zip(*columns, strict=True)]
    for i, shape in enumerate(shapes):
        if shape and table.cells["router_type"][i] == DENSE and numbers["flop_increase"][i] in (None, 1):
            counted = count_of("dense_parameter_count", DENSE, {name: cells[i] for name, cells in numbers.items()})
            if counted is not None and total[i] <= 1.1 * counted:
                sizes[shape] = table.cells["total_parameter_count"][i]
    blank = {i: sizes[shapes[i]] for i in table.blank("dense_parameter_count") if shapes[i] in sizes}
    table.fill("dense_parameter_count", blank, "total_parameter_count of the dense model of this shape")


def _tell_of_narrow(table: Cells, numbers: dict[str, list]) -> None:
    routed = [
        i
        for i, G in enumerate(numbers["granularity"])
        if G not in (None, 1) and table.cells["router_type"][i] != DENSE and numbers["num_experts"][i]
    ]
    if routed:
        row, G = routed[0], numbers["granularity"][routed[0]]
        experts, k = G * numbers["num_experts"][row], G * (numbers["k"][row] or 1)
        table.remarks.append(
            f"granularity: num_experts and k count experts of the dense width, so a block of row {row + 1} has "
            f"{experts:g} experts of 1/{G:g} of the width, and {k:g} for each token; if your columns count narrow "
            "experts, use --columns narrow_experts=YOURS narrow_k=YOURS"
        )


def _counted(table: Cells, name: str, i: int, numbers: dict[str, list], given: float) -> float | None:
    """Return a count of a row from the shape of its model; None if the shape is unknown.

    `given` is the user's N of the row, or NaN. For a dense model, N is also P.
    """
    router = table.cells["router_type"][i]
    try:
        value = count_of(name, router, {n: v[i] for n, v in numbers.items()})
    except InputError as error:
        raise InputError(f"{table.runs}: row {i + 1}: {error}") from None
    if value is None or name != "total_parameter_count" or router != DENSE:
        return value
    return given if numbers["flop_increase"][i] in (None, 1) and math.isfinite(given) else value


# LOSSES


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
