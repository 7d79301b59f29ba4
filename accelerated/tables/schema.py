"""The schema of a results table: its columns, their ranges, and consistency between rows.

A problem has a row (the first row below the header is 1) and a column. `Problems` counts all problems, so that a user
can correct a table in one pass. `check_runs` finds problems between cells: rows that contradict their router_type, and
runs whose rows contradict each other.
"""

import contextlib
import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from routelaws.reference.routers.records import DENSE, ROUTER_TYPES

from ..errors import InputError
from .units import MOST_FLOPS, MOST_PARAMETERS, MOST_TOKENS, amount

RELEASED_COLUMNS = (
    "hyper_id", "step", "loss_c4", "loss_curation_corpus", "loss_lambada", "loss_pile", "loss_validation",
    "loss_wikitext103", "num_experts", "d_model", "num_blocks", "num_heads", "kqv_size", "flop_increase", "k",
    "router_type", "seed", "routing_frequency", "total_parameter_count", "dense_parameter_count", "flops_per_step",
    "model_size_label",
)  # fmt: skip
"""The columns of the released table, in order."""

OWN_COLUMNS = (
    "granularity", "capacity_factor", "tokens", "initial_tokens", "unique_tokens", "epochs", "sequence_length",
    "batch_size", "vocab_size", "objective", "model_options", "routing_options", "learning_rate", "schedule", "trunk",
    "dropped_fraction", "max_load", "idle_experts", "real_experts", "router_agreement", "router_information",
    "router_entropy", "expert_exchange", "evaluation_tokens", "evaluation_documents", "standard_error",
    "wall_seconds", "device", "commit",
)  # fmt: skip
"""The columns that our training adds after the released columns."""

TIME_COLUMNS = ("wall_seconds",)
"""Columns with times, which differ between equal runs."""

MORE_COLUMNS = ("training_flops", "counted_embeddings", "narrow_experts", "narrow_k")
"""The columns that only users' tables have."""

TABLE_COLUMNS = (*RELEASED_COLUMNS, *OWN_COLUMNS, *MORE_COLUMNS)
"""Every known column."""

NEEDED_COLUMNS = ("hyper_id", "step", "router_type", "num_experts", "dense_parameter_count")
"""The required columns, besides at least one column whose name starts with `loss_`."""

CONFIGURATION_COLUMNS = (
    "router_type", "num_experts", "k", "seed", "routing_frequency", "flop_increase", "d_model", "num_blocks",
    "num_heads", "kqv_size", "dense_parameter_count", "total_parameter_count", "flops_per_step", "granularity",
    "objective",
)  # fmt: skip
"""The configuration of a run, equal in all rows. Columns of options are not listed, because old rows of a resumed run
may not have them."""

TEXT_COLUMNS = (
    "router_type", "model_size_label", "objective", "model_options", "routing_options", "schedule", "trunk", "device",
    "commit",
)  # fmt: skip
NAME_COLUMNS = ("run", "run_name", "name", "Name")
"""Text columns with the names of runs in users' tables; messages show the first existing column."""
YES_AND_NO = (("true", "false"), ("t", "f"), ("yes", "no"), ("y", "n"), ("1", "0"), ("1.0", "0.0"))
"""How cells of users' tables answer yes and no, in lower case."""
_YES, _NO = zip(*YES_AND_NO, strict=True)
_DENSE = {
    r"((is|use|has)_?)?(moe|routed|sparse)|router_type": (*_NO, "none"),
    "(is_?)?dense": _YES,
    "((model|arch(itecture)?|ffn|mlp)_?)?(type|kind|variant)|arch(itecture)?|model": ("dense",),
}
"""{header of a column in users' tables: its cells, in lower case, that mean dense}."""
TEXTS_OF_LOSSES = (
    r"(.*[./])?((eval|val(id(ation)?)?|test|dev)[ _-]?(data[ _-]?)?(set|corpus|text|domain|source)|tokeni[sz]er)"
)
"""The header of a column with the text of a loss, or with its tokenizer, in users' tables."""

OBJECTIVES = ("causal", "masked")
"""The values of `configuration.OBJECTIVES`, repeated here to read tables without JAX."""
ABSENT = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "None", "-", "–", "—")
"""The texts of cells without a value. A loss of this kind means that the row is no evaluation."""
NAN = ("nan", "NaN")
"""The texts of cells that are NaN. A loss of this kind may mean that the run diverged."""
BLANK = (*ABSENT, *NAN)
"""The texts of blank cells."""

SHOWN = 20
"""Largest number of listed problems; further problems are only counted."""

_WHOLE_LIMIT = 2.0**53  # float64 cannot distinguish larger whole numbers, so two runs could become one
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE | re.ASCII)


_CHANGED: dict[str, float] = {}


def limit_of(name: str, default: float) -> float:
    """Return the limit with a name: a column of a results table, or one of `reading.LIMITS`."""
    return _CHANGED.get(name, default)


@contextlib.contextmanager
def limited(limits: dict[str, float]) -> Iterator[None]:
    """Change the named limits during a `with` block."""
    before = dict(_CHANGED)
    _CHANGED.update(limits)
    try:
        yield
    finally:
        _CHANGED.clear()
        _CHANGED.update(before)


class Bounds(NamedTuple):
    """The allowed numbers of a column."""

    needed: str  # as text
    low: float
    above: bool = False  # whether the range excludes `low`
    high: float = math.inf
    whole: bool = False
    infinite: bool = False  # whether the range includes infinity
    limit: float = math.inf  # larger numbers are probably errors; see `limit_of`


def _count(limit: float, needed: str = "1 or more", whole: bool = True) -> Bounds:
    return Bounds(needed, 1, whole=whole, limit=limit)


_LABEL = Bounds("a whole number from 0 to 2^53", 0, high=_WHOLE_LIMIT, whole=True)
_LOSS = Bounds("a loss above 1e-12", 1e-12, above=True, limit=1e9)
_SHARE = Bounds("a share from 0 to 1", 0, high=1)


def _from_0(limit: float) -> Bounds:
    return Bounds("0 or more", 0, limit=limit)


RANGES = {
    "hyper_id": _LABEL,
    "step": _LABEL,
    **{name: _LOSS for name in RELEASED_COLUMNS if name.startswith("loss_")},
    "num_experts": _count(2**20, "1 (dense) or more"),
    "k": _count(2**20, whole=False),  # a fraction if G narrow experts count as one
    **dict.fromkeys(("narrow_experts", "narrow_k"), _count(2**20)),
    "counted_embeddings": Bounds("0, 1 or 2", 0, high=2, whole=True),
    **dict.fromkeys(("d_model", "num_blocks", "num_heads", "kqv_size"), _count(2**24)),
    "flop_increase": _count(2**20, whole=False),
    "seed": Bounds("a whole number from -2^64 to 2^64", -(2.0**64), high=2.0**64, whole=True),
    "routing_frequency": _SHARE,
    **dict.fromkeys(("total_parameter_count", "dense_parameter_count"), _count(MOST_PARAMETERS, whole=False)),
    "flops_per_step": _count(MOST_FLOPS, whole=False),
    "granularity": Bounds("a number above 1e-6", 1e-6, above=True, limit=2**20),
    "capacity_factor": Bounds("a number above 0", 0, above=True, infinite=True),  # infinite if no token is dropped
    **dict.fromkeys(("tokens", "initial_tokens"), _from_0(MOST_TOKENS)),
    **dict.fromkeys(("sequence_length", "batch_size", "vocab_size"), _count(2**31)),
    "learning_rate": _from_0(1e6),
    "dropped_fraction": _SHARE,
    "max_load": Bounds("1 or more", 1 - 1e-6, limit=1e9),  # load of the busiest expert, in fair shares; a float32 mean
    "idle_experts": _SHARE,
    "real_experts": _from_0(2**20),  # mean number of experts with an FFN per token
    **dict.fromkeys(("router_agreement", "router_entropy"), _SHARE),
    "router_information": Bounds("a number of bits", -20, high=20),  # may be negative, because a baseline is subtracted
    "expert_exchange": Bounds("a ratio above 0", 0, above=True, limit=1e9),
    **dict.fromkeys(("evaluation_tokens", "evaluation_documents"), _count(MOST_TOKENS)),
    "standard_error": _from_0(1e9),  # error of loss_validation over documents, nats per token
    "wall_seconds": _from_0(1e12),
    "training_flops": _from_0(MOST_FLOPS),  # 0 at step 0
    "epochs": _from_0(1e9),
    "unique_tokens": _count(MOST_TOKENS, whole=False),
}
"""The range of every numeric column; any other `loss_...` column has the range of a loss."""


def bounds_of(name: str) -> Bounds | None:
    """Return the range of a column, None if its cells are text."""
    return RANGES.get(name, _LOSS if name.startswith("loss_") else None)


def with_numbers(frame):
    """Return a table with unknown columns converted to float64 if every cell is a number.

    Blank cells do not count, and names of runs stay text. A column with numbers of 2^53 or more stays text, because
    float64 cannot distinguish such numbers.
    """
    known, columns = (*TABLE_COLUMNS, *NAME_COLUMNS), {}
    for name in (name for name in frame.columns if name not in known and not bounds_of(name)):
        texts = [str(text) for text in frame[name].unique()]
        if to_numbers(texts[:100])[1].any():
            continue
        values, wrong = to_numbers(texts)
        there = values[~np.isnan(values)]
        if there.size and not wrong.any() and (np.abs(there) < _WHOLE_LIMIT).all():
            columns[name] = frame[name].map(dict(zip(frame[name].unique(), values, strict=True))).astype(np.float64)
    changed = frame.assign(**columns) if columns else frame
    changed.attrs = frame.attrs
    return changed


def name_column(columns) -> str | None:
    """Return the column with the names of runs: the first of NAME_COLUMNS; None without such a column."""
    return next((name for name in NAME_COLUMNS if name in columns), None)


def run_names(frame) -> dict[int, str]:
    """Return the names of the runs of a table, by hyper_id; {} without names in the columns of NAME_COLUMNS."""
    column = name_column(frame)
    if column is None:
        return {}
    cells = frame[column].astype(str).str.strip()
    return {int(run): cell for run, cell in zip(frame["hyper_id"], cells, strict=True) if cell not in BLANK}


def called(run: int, name: str | None = "") -> str:
    """Return the number of a run and its name, if any, for messages."""
    return f"{run} {shorten(name)}" if name else str(run)


class Problems:
    """The problems of a table: a list of the first problems, and the number of all problems."""

    def __init__(self, where):
        self.where, self.count, self._listed = where, 0, []

    def add(self, row: int, column: str | None, value: str, needed: str) -> None:
        """Add a problem: the row (from 1), the column (None for the whole row), the cell, and what is needed."""
        self.count += 1
        at = f"row {row}" if column is None else f"row {row}, column {column}"
        there = value if column is None else shorten(value)
        self._listed.append((row, f"{at}: {there}; needed: {needed}"))
        if len(self._listed) > 50 * SHOWN:
            self._listed = self._first()

    def add_each(self, mask: np.ndarray, rows, column: str, text, needed: str) -> None:
        """Add a problem for every row where `mask` holds, in the order of `rows`; `text(i)` is the cell of row i."""
        at = np.flatnonzero(mask)
        for i in at[:SHOWN]:
            self.add(int(rows[i]), column, text(i), needed)
        self.count += len(at[SHOWN:])  # later problems are never listed

    def lines(self) -> list[str]:
        return [line for _, line in self._first()]

    def _first(self) -> list[tuple[int, str]]:
        return sorted(self._listed, key=lambda entry: entry[0])[:SHOWN]

    def raise_if_any(self) -> None:
        """Raise `InputError` with all problems: one line for one problem, or a first line and a list."""
        if self.count == 1:
            raise InputError(f"{self.where}: {self.lines()[0]}")
        if self.count:
            lines = [f"{self.where}: {self.count} problems; nothing was read", *(f"  {line}" for line in self.lines())]
            if self.count > SHOWN:
                lines.append(f"  ... and {self.count - SHOWN} more")
            raise InputError(*lines)


def shorten(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:37] + "...")


def to_numbers(cells: list[str], units: dict[str, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers in text cells, and the mask of cells that are not numbers. A blank cell is NaN.

    A number has ASCII digits, a decimal point and an exponent, or is infinity. It becomes the nearest float64. Other
    forms that Python's float() accepts (1_000, digits of other scripts) are errors.

    Args:
        units: allowed units of a number, such as UNITS_OF["tokens"] for 300B; None if no unit is allowed.

    Returns:
        [n] float64, and [n] bool.
    """
    values, wrong = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    for i, cell in enumerate(cells):
        cell = cell.strip()
        if _NUMBER.fullmatch(cell):
            values[i] = float(cell)
        elif cell not in BLANK:
            try:
                values[i] = amount(cell, units or {})
            except ValueError:
                wrong[i] = True
    return values, wrong


def or_diverged(name: str) -> str:
    """Return how a loss says that its run diverged, for messages; "" for other columns."""
    return ", or NaN if the run diverged" if name.startswith("loss_") else ""


def outside(name: str, values: np.ndarray) -> list[tuple[np.ndarray, str]]:
    """Return the masks of numbers out of range: [(mask [n], the range)]; each cell is in at most one mask.

    Args:
        values: [n] float64, NaN for blank.
    """
    allowed = bounds_of(name)
    checks = []
    if name in NEEDED_COLUMNS:
        checks.append((np.isnan(values), "a value (it is blank)"))
    if not allowed.infinite:
        checks.append((np.isinf(values), f"a finite number{or_diverged(name)}"))
    if allowed.whole:
        with np.errstate(invalid="ignore"):
            checks.append((values % 1 > 0, "a whole number"))
    low = values <= allowed.low if allowed.above else values < allowed.low
    checks.append((low | (values > allowed.high), allowed.needed))
    limit = limit_of(name, allowed.limit)
    at_most = f"at most {limit:,.0f}" if limit < 1e10 else f"at most {limit:g}"
    checks.append((values > limit, f"{at_most} (to allow more: routelaws --limit {name}=NUMBER ...)"))
    named = np.zeros(len(values), dtype=bool)
    for i, (mask, needed) in enumerate(checks):
        checks[i] = (mask & ~named, needed)
        named |= mask
    return checks


def check_runs(frame, rows: np.ndarray, problems: Problems):
    """Check the consistency of rows, and return the mask [n] of rows that repeat an earlier row.

    * The columns of CONFIGURATION_COLUMNS are constant within a hyper_id; otherwise two runs share a number.
    * Two rows with the same hyper_id and step are one evaluation. If all their cells are equal, the later row is a
      repetition. Otherwise it contradicts the earlier row.
    * Dense has one expert, because a law reads a dense run as E = 1, and so has a run that a column such as `is_moe`
      calls dense. A routed run has k at most E, a share of routed blocks above 0, and no flop_increase (an option of
      dense models).
    * P counts all parameters and N a part of them, so P is at least N, and above N if a token does not use all experts.

    Args:
        rows: [n] the number of each row in the file.
    """
    _check_kinds(frame, rows, problems)
    run, first = groups_of(frame["hyper_id"].to_numpy())
    for name in CONFIGURATION_COLUMNS:
        if name in frame:
            _check_constant(frame, name, run, first, rows, problems)
    return _check_repeated(frame, rows, problems)


def column_or_nan(frame, name: str) -> np.ndarray:
    return frame[name].to_numpy(dtype=np.float64) if name in frame else np.full(len(frame), np.nan)


def groups_of(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the group of each row, and the first position of each group."""
    import pandas

    group, unique = pandas.factorize(keys)
    first = np.empty(len(unique), dtype=np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]  # in reverse order, the last assignment is the first position
    return group, first


def _check_kinds(frame, rows: np.ndarray, problems: Problems) -> None:
    _check_names(frame, rows, problems)
    kind = frame["router_type"]
    dense = kind.isin([name for name in kind.unique() if name.casefold() == DENSE.casefold()]).to_numpy()

    column = functools.partial(column_or_nan, frame)
    experts, narrow = column("num_experts"), column("k") * np.nan_to_num(column("granularity"), nan=1.0)
    more = column("total_parameter_count") - column("dense_parameter_count")
    routed = ~dense & (experts > 1) & (column("k") != experts)
    checks = [
        ("num_experts", dense & (experts != 1), "1, since router_type is Dense"),
        ("k", ~dense & (column("k") > experts), "at most num_experts"),
        ("k", np.abs(narrow - np.round(narrow)) > 1e-6, "a whole number, or a multiple of 1/granularity"),
        ("routing_frequency", ~dense & (column("routing_frequency") == 0), "above 0, since the run is routed"),
        ("flop_increase", ~dense & (column("flop_increase") > 1), "1, since the run is routed"),
        ("total_parameter_count", more < 0, "at least dense_parameter_count"),
        ("total_parameter_count", routed & (more == 0), "above dense_parameter_count, since the run is routed"),
    ]
    for name in filter(dense_cells, frame):
        means = dense_cells(name)
        says = [cell for cell in frame[name].unique() if str(cell).strip().casefold() in means]
        mask = ~dense & (experts > 1) & frame[name].isin(says).to_numpy()
        checks.append((name, mask, "a routed run, since num_experts is above 1; a dense run has 1"))
    for name, mask, needed in checks:
        _name(frame, name, mask, needed, rows, problems)


def dense_cells(header: str) -> tuple[str, ...]:
    """Return the cells of a column of a user's table, in lower case, that mean dense."""
    end = re.split("[./]", header)[-1]
    return next((cells for each, cells in _DENSE.items() if re.fullmatch(each, end, re.IGNORECASE)), ())


def spellings(names) -> dict[str, str]:
    """Return {name of a router: its spelling in a table} of the names that are spelled in another way.

    Names that differ only in capitals, spaces, hyphens and underscores are one router. The spelling of a router that is
    not in ROUTER_TYPES is the first one.
    """
    known = {_bare(router): router for router in ROUTER_TYPES.values()}
    known |= {_bare(name): router for name, router in ROUTER_TYPES.items()}
    return {name: router for name in names if (router := known.setdefault(_bare(name), name)) != name}


def _bare(name: str) -> str:
    return re.sub("[ _-]", "", name.casefold())


def _check_names(frame, rows: np.ndarray, problems: Problems) -> None:
    kind = frame["router_type"]
    for spelled, router in spellings(kind.unique()).items():
        _name(frame, "router_type", (kind == spelled).to_numpy(), f"{router}, in this spelling", rows, problems)
    if "objective" in frame:
        unknown = ~frame["objective"].isin((*OBJECTIVES, *BLANK)).to_numpy()
        _name(frame, "objective", unknown, f"{' or '.join(OBJECTIVES)}, or nothing", rows, problems)


def _check_constant(frame, name: str, run, first, rows: np.ndarray, problems: Problems) -> None:
    import pandas

    values = pandas.factorize(frame[name])[0]  # blanks become -1, so they are equal
    differs = np.flatnonzero(values != values[first][run])
    _, earliest = np.unique(run[differs], return_index=True)
    for at in differs[earliest]:
        other = first[run[at]]
        needed = f"{_shown(frame, name, other)} as in row {rows[other]}, which has the same hyper_id"
        problems.add(int(rows[at]), name, cell_text(frame, name, at), f"{needed} {_called(frame, at)}")


def _check_repeated(frame, rows: np.ndarray, problems: Problems) -> np.ndarray:
    import pandas

    keys = ["hyper_id", "step"]
    repeated = frame.duplicated(keys).to_numpy()
    if not repeated.any():
        return repeated
    several = np.flatnonzero(frame.duplicated(keys, keep=False).to_numpy())
    part = frame.iloc[several]
    group, first = groups_of(part.groupby(keys).ngroup().to_numpy())
    told = np.zeros(len(part), dtype=bool)
    for name in (column for column in frame.columns if column not in (*keys, *CONFIGURATION_COLUMNS)):
        values = pandas.factorize(part[name])[0]
        differs = (values != values[first][group]) & ~told
        told |= differs
        for i in np.flatnonzero(differs):
            at, other = several[i], several[first[group[i]]]
            which = f"hyper_id {_called(frame, at)} and step {frame['step'].iat[at]}"
            needed = f"{_shown(frame, name, other)} as in row {rows[other]}, which has the same {which}"
            problems.add(int(rows[at]), name, cell_text(frame, name, at), needed)
    return repeated


def _called(frame, at: int) -> str:
    names = name_column(frame)
    return called(frame["hyper_id"].iat[at], names and str(frame[names].iat[at]).strip())


def _name(frame, name: str, mask: np.ndarray, needed: str, rows: np.ndarray, problems: Problems) -> None:
    problems.add_each(mask, rows, name, lambda at: cell_text(frame, name, at), needed)


def cell_text(frame, name: str, at: int) -> str:
    """Return a cell of a frame as text: whole numbers without a decimal point, a blank as ""."""
    value = frame[name].iat[at]
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else repr(int(value)) if value % 1 == 0 else repr(float(value))
    return str(value)


def _shown(frame, name: str, at: int) -> str:
    return shorten(cell_text(frame, name, at))
