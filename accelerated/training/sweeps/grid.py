"""A sweep's file: the runs of a grid.

    name = "my grid"

    [base]                      # fields of a run: the flags of `routelaws train` without dashes
    steps = 600
    vocab_size = 512

    [sizes.small]               # named groups of fields
    d_model = 16
    heads = 2

    [[runs]]                    # any field may be a list: the grid has all combinations
    router = ["hash", "sinkhorn"]
    experts = [4, 16]
    size = ["small", "large"]

Fields in [[runs]] override fields of the size, which override [base]. All runs must have the same objective.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...json_files import misfit, shown
from ..configuration import TrainConfig, from_mapping, read_toml

FORM = {"name?": str, "base?": dict, "sizes?": {"*": dict}, "runs?": [dict]}
"""The form of a sweep's file; the fields of each run have their own checks."""

MOST_RUNS = 1000
"""Default limit on the runs of a grid; a larger grid is usually a mistake in its lists."""


class Grid(NamedTuple):
    """A named list of runs. The index in the list is the run's hyper_id."""

    name: str
    runs: tuple[TrainConfig, ...]


def presets() -> dict[str, Path]:
    """Return the files of the package's grids, by name."""
    return {path.stem: path for path in (Path(__file__).parent / "presets").glob("*.toml")}


def read_grid(preset_or_file: str, overrides: dict | None = None, most: int = MOST_RUNS) -> Grid:
    """Return the grid of a preset or of a TOML file.

    Args:
        preset_or_file: a name of `presets`, or a path that ends in .toml.
        overrides: fields that override the file, such as the corpus.

    Raises:
        InputError: there is no such preset or file, it has too many runs, or a run is invalid; the message names the
            run.
    """
    path = _file_of(preset_or_file)
    content = read_toml(path)
    unknown = set(content) - {"name", "base", "sizes", "runs"}
    if unknown:
        raise InputError(f"{path}: unknown section {shown(min(unknown))}; allowed: name, base, sizes, runs")
    if wrong := misfit(content, FORM):
        raise InputError(f"{path}: {wrong}")
    tables = [_axes(table) for table in content.get("runs", [])]
    empty = [name for axes in tables for name, values in axes.items() if not values]
    if empty:
        raise InputError(f"{path}: the list of {shown(empty[0])} is empty, so its [[runs]] has no run; add a value")
    number = sum(math.prod(map(len, axes.values())) for axes in tables)
    if number > most:
        count = f"{number:,}" if number < 10**15 else "more than 10^15"
        raise InputError(f"{path}: the grid has {count} runs; allowed: {most:,}; --most-runs allows more")
    runs = {}
    for number, fields in enumerate(_expand(content, tables, overrides or {}, str(path))):
        run = from_mapping(fields, f"{path}: run {number}")
        where = f"{path}: run {number} ({run.name()})"
        try:
            run.check()
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if run in runs:
            raise InputError(f"{where} is the same as run {runs[run]}; remove one of them")
        runs[run] = number
        objective, first = run.model.objective, next(iter(runs)).model.objective
        if objective != first:
            raise InputError(
                f"{where} has the objective {objective}, but run 0 has {first}; their losses cannot be compared, so "
                "use one objective per sweep"
            )
    if not runs:
        raise InputError(f"{path}: has no [[runs]]; add at least one")
    used = [size for axes in tables for size in axes.get("size", [])]
    if unused := [size for size in content.get("sizes", {}) if size not in used]:
        raise InputError(f"{path}: no run has the size {shown(unused[0])}; remove the size, or add it to [[runs]]")
    return Grid(str(content.get("name", path.stem)), tuple(runs))


def _file_of(preset_or_file: str) -> Path:
    path = Path(preset_or_file)
    if path.suffix == ".toml":
        return path
    known = presets()
    if preset_or_file not in known:
        raise InputError(
            f"sweep {preset_or_file!r}: no such preset; allowed: {', '.join(sorted(known))}, or a .toml file"
        )
    return known[preset_or_file]


def _axes(table: dict) -> dict[str, list]:
    """Return {field: values} of a [[runs]] table. A field whose type is a list has one value."""
    lists = ("corpus", "eval")
    return {name: value if isinstance(value, list) and name not in lists else [value] for name, value in table.items()}


def _expand(content: dict, tables: list[dict[str, list]], overrides: dict, where: str) -> Iterator[dict]:
    base, sizes = content.get("base", {}), content.get("sizes", {})
    for axes in tables:
        for values in itertools.product(*axes.values()):
            fields = dict(zip(axes, values, strict=True))
            size = fields.pop("size", None)
            if size is not None and (not isinstance(size, str) or size not in sizes):
                raise InputError(f"{where}: unknown size {shown(size)}; there are {', '.join(sizes) or 'none'}")
            yield {**base, **sizes.get(size, {}), **fields, **overrides}
