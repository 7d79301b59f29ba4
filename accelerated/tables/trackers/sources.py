"""The inputs of `convert` before columns are renamed: tables, and the joined pieces of a log.

A table with more fields per run (`config`) is joined by the name of the run.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import InputError
from ...wording import in_short, near
from ..reading import cut_short, read_cells
from ..schema import ABSENT, BLANK, NEEDED_COLUMNS, TABLE_COLUMNS, TEXTS_OF_LOSSES, YES_AND_NO, name_column
from ..table import SOURCE, check_once, named
from .identity import check_single, name_of_runs, on_one_branch, steps_of
from .kinds import read_piece
from .log import (
    FOLDER,
    PART,
    PARTS,
    ROW,
    RUN,
    STEP,
    Log,
    Source,
    as_cells,
    by_number,
    continues,
    parts_joined,
    put_together,
)

_OF_PART = re.compile(f"(.+)[/_ .-]({PART.pattern})", re.IGNORECASE)
"""The name of a part of a run: moe8/train, moe8_val."""
_SUMMARY = r"(grand[ _-])?(total|sum|mean|average|avg|median|std|stdev|min|max|summary)s?\W*"
_TEXTS = "data[ _-]?set|corpus|domain|subset|task|benchmark"
"""The header of a column with the text of a loss, if it changes within a run, or with the training text."""


def sources_of(paths: list, columns: dict[str, str]) -> list[Source]:
    """Return the inputs of the conversion in the given order. All pieces of a log form one input."""
    if not paths:
        raise InputError("nothing to convert is given; needed: a table, an export, or a folder of event files")
    check_once(paths)
    pieces = [(path, read_piece(path, columns)) for path in paths]
    logs = [(path, piece) for path, piece in pieces if isinstance(piece, Log)]
    sources, names = [], [path for path, _ in logs]
    called = named(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
    for path, piece in pieces:
        if not isinstance(piece, Log):
            at = [f"row {i + 1}" for i in range(len(next(iter(piece.values()))))]
            if columns.get("hyper_id") == ROW:
                piece.setdefault(ROW, [str(i) for i in range(len(at))])
            sources.append(Source(str(path), piece, at, _unfinished(piece), False))
        elif path == logs[0][0]:
            sources.append(_as_source(put_together(*zip(*logs, strict=True)), called, columns))
    apart = [source for source in sources if not source.is_log and FOLDER not in source.cells]
    unnamed = [source for source in apart if not name_of_runs(source.cells, columns)]
    for loss in (column for name, column in columns.items() if name.startswith("loss_")):
        named_files = (source.name.partition(".csv")[0] for source in unnamed if loss in source.cells)
        if (found := _parts(named_files)) is not None:
            raise InputError(f"{loss} is in {found[0]}; give one of these files, or rename them")
    if columns.get("hyper_id") == FOLDER and apart:
        return [source for source in sources if source not in apart] + [_by_folder(apart)]
    sources[-1].remarks.extend(_continued(sources, columns) + [text for path in paths for text in cut_short(path)])
    return sources


def _as_source(log: Log, name: str, columns: dict[str, str]) -> Source:
    cells = as_cells(parts_joined(log, columns))
    if "_step" in columns.values():
        cells.setdefault("_step", cells[log.axis])
    at = [f"run {run}, {log.axis} {value}" for run, value in zip(cells[RUN], cells[log.axis], strict=True)]
    return Source(name, cells, at, log.remarks, True)


def _folder_of(source: Source, sources: list[Source]) -> Path:
    """Return the folder of a table or, if several tables have one file name, of the folder of the table."""
    path = Path(source.name).resolve()
    alike = [other for other in sources if Path(other.name).name == path.name]
    return path.parent.parent if len(alike) > 1 else path.parent


def _continued(sources: list[Source], columns: dict[str, str]) -> list[str]:
    """Return a remark on tables of one run that may continue another table of the same folder."""
    starts: dict[tuple[Path, str], list[tuple[str, float]]] = {}
    for source in sources:
        steps = steps_of(source.cells, columns)
        if steps and not (source.is_log or name_of_runs(source.cells, columns)):
            key = _folder_of(source, sources), Path(source.name).name
            starts.setdefault(key, []).append((source.name, steps[0]))
    return continues(starts)


def _by_folder(sources: list[Source]) -> Source:
    """Join the tables of each folder as one run (see `_folder_of`)."""
    cells: dict[str, list[str]] = {FOLDER: []}
    sources = sorted(sources, key=lambda source: by_number(source.name))
    folders = [_folder_of(source, sources) for source in sources]
    short = len({folder.name for folder in folders}) == len(set(folders))
    for source, path in zip(sources, folders, strict=True):
        before, folder = len(cells[FOLDER]), path.name if short else str(path)
        for name in dict.fromkeys((*cells, *source.cells)):
            cells.setdefault(name, [""] * before)
            cells[name] += source.cells.get(name, [folder if name == FOLDER else ""] * len(source.at))
    at = [f"{source.name}, {row}" for source in sources for row in source.at]
    remarks = [text for source in sources for text in source.remarks]
    return Source(in_short(source.name for source in sources), cells, at, remarks, True)


def _unfinished(cells: dict[str, list[str]]) -> list[str]:
    pairs = zip(cells.get("Name", ()), cells.get("State", ()), strict=False)
    states = in_short([f"{name} ({state})" for name, state in pairs if state != "finished"], 11)
    return [f"not finished, by the column State: {states}; their rows are kept like all others"] * bool(states)


def with_loss(source: Source, columns: dict[str, str]) -> Source:
    """Return the rows with a loss. NaN counts as a loss; an empty cell or NA means that the row is no evaluation.

    Raises:
        InputError: no row has a loss, or no column of a log is known as a loss.
    """
    cells = source.cells
    mapped = [column for name, column in columns.items() if name.startswith("loss_")]
    losses = [name for name in mapped if name in cells]
    losses += [name for name in TABLE_COLUMNS if name.startswith("loss_") and name in cells and name not in columns]
    if not (losses or mapped):
        metrics = ", ".join(name for name in cells if name not in (RUN, STEP))
        raise InputError(
            f"{source.name}: no column is known as a loss; name one with --columns loss_validation=NAME; available: "
            f"{metrics}"
        )
    if not losses:  # a later error names the missing column
        return source
    for at, name in zip(source.at, cells.get(name_of_runs(cells, columns), ()), strict=False):
        if re.fullmatch(_SUMMARY, name.strip(), re.IGNORECASE):
            raise InputError(
                f"{source.name}: {at}: {name.strip()} seems to summarise rows; delete it, or rename this run"
            )
    _check_parts(source, columns, losses)
    source = on_one_branch(source, columns, losses)
    cells = source.cells
    rows = [i for i in range(len(source.at)) if any(cells[name][i].strip() not in ABSENT for name in losses)]
    if not rows:
        raise InputError(f"{source.name}: no row has a loss; blank in every row: {', '.join(losses)}")
    check_single(source.of_rows(rows), columns)
    if len(rows) == len(source.at):
        return source
    names = cells.get(name_of_runs(cells, columns), [""] * len(source.at))
    remark = f"left out: {len(source.at) - len(rows)} of {len(source.at)} rows, which have no loss"
    for name in NEEDED_COLUMNS:
        texts = [cell.strip() for cell in cells.get(columns.get(name, name), ())]
        there = [i for i, text in enumerate(texts) if text not in BLANK]
        if there and not set(there) & set(rows):
            raise InputError(
                f"{source.name}: column {columns.get(name, name)} has a value only in rows without a loss "
                f"({source.at[there[0]]}); state it for all runs, as by --set {name}={texts[there[0]]}, or use --config"
            )
    if gone := set(names) - {names[i] for i in rows} - {""}:
        remark += f"; no row is left of {in_short(sorted(gone))}"
    return source.of_rows(rows, remark)


def _parts(names: Iterable[str]) -> tuple[str, str] | None:
    """Return words on names such as moe8/train and moe8/val, and the part of validation; None without such names."""
    runs: dict[str, dict[str, str]] = {}
    for name in names:
        match = _OF_PART.fullmatch(name)
        runs.setdefault(match[1] if match else name, {})[name] = match[2] if match else ""
    for run, parts in runs.items():
        if len(parts) > 1 and (all(parts.values()) or any(name.startswith(f"{run}/") for name in parts)):
            part = max(filter(None, parts.values()), key=lambda part: (part.startswith("v"), part[0] != "t"))
            return f"the runs {in_short(parts)}, which seem to be parts of one run", part
    return None


def _check_parts(source: Source, columns: dict[str, str], losses: list[str]) -> None:
    """Take losses of training out of loss_validation, and add remarks on losses of several texts.

    Raises:
        InputError: names of runs or another column say that a loss is of training and of validation.
    """
    runs = source.cells.get(name_of_runs(source.cells, columns), ())
    for loss in losses:
        pairs = zip(runs, source.cells[loss], strict=False)
        if (found := _parts(run.strip() for run, cell in pairs if cell.strip() not in ABSENT)) is not None:
            how = f"name its loss by the part, as in --columns loss_validation={found[1]}/{loss}"
            how = how if source.is_log else "delete the rows of all but one"
            raise InputError(f"{source.name}: {loss} is in {found[0]}; {how}, or rename the runs")
    for name in (name for name in source.cells if name not in columns.values() and not (source.is_log and name == RUN)):
        for loss in losses:
            pairs = list(zip(source.cells[name], source.cells[loss], strict=True))
            texts = dict.fromkeys(text.strip() for text, cell in pairs if cell.strip() not in ABSENT)
            parts = [[text for text in texts if re.fullmatch(part, text, re.IGNORECASE)] for part in PARTS]
            if all(parts) and len(parts[1]) == 1 and loss == columns.get("loss_validation", "loss_validation"):
                source.cells[loss] = ["" if text.strip() in parts[0] else cell for text, cell in pairs]
                source.remarks.append(f"{loss}: left out in rows of {in_short(parts[0])}, by the column {name}")
                continue
            changes = re.fullmatch(_TEXTS, name, re.IGNORECASE) and _varies(source.cells, name, columns)
            if len(texts) > 1 and (changes or re.fullmatch(TEXTS_OF_LOSSES, name, re.IGNORECASE)):
                source.remarks.append(
                    f"{loss}: of several {name} ({in_short(texts)}), so losses cannot be compared; --keep {name} and"
                    " choose one by --rows"
                )
            named = any(re.fullmatch(f"(is[ _-]?)?({part})", name, re.IGNORECASE) for part in PARTS)
            is_answer = {text.casefold() for text in texts} in map(set, YES_AND_NO)
            if named and is_answer and _varies(source.cells, name, columns):
                parts = [["rows with " + text] for text in texts]
            if all(parts):
                kinds = f"{parts[0][0]} and of {parts[1][0]}, by the column {name}"
                raise InputError(f"{source.name}: column {loss} has losses of {kinds}; delete the rows of all but one")


def _varies(cells: dict[str, list[str]], name: str, columns: dict[str, str]) -> bool:
    """Return whether a column has two values in one run. Otherwise it is a setting of the runs."""
    runs = cells.get(name_of_runs(cells, columns), [""] * len(cells[name]))
    return len({*zip(runs, cells[name], strict=True)}) > len({*runs})


def configured(sources: list[Source], config, columns: dict[str, str]) -> list[Source]:
    """Return sources with the columns of `config` joined to the rows of each run.

    Sources without a run of `config` stay unchanged.
    """
    if config is None:
        return sources
    table, found = read_cells(config).columns, set()
    first = next((name for name in (RUN, "Name") if name in table), next(iter(table)))
    joined = [_configured(source, config, table, first, columns, len(sources) == 1, found) for source in sources]
    where = in_short(dict.fromkeys(source.name for source in sources))
    if all(new is old for new, old in zip(joined, sources, strict=True)):
        raise InputError(f"{config}: has no run of {where}")
    if unused := [name.strip() for name in table[first] if name.strip() not in found]:
        remarks = [*joined[-1].remarks, f"{config}: these runs are not in {where}: {', '.join(unused)}"]
        joined[-1] = joined[-1]._replace(remarks=remarks)
    return joined


def _configured(source: Source, config, table, first: str, columns: dict[str, str], alone: bool, found: set) -> Source:
    """Join the columns of `table` to a source, and add its runs to `found`."""
    key = columns.get("hyper_id", RUN if source.is_log else "hyper_id")
    names = [name.strip() for name in table[first]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{config}: {first} {twice} is in {names.count(twice)} rows; needed: one row for each run")
    row = {name: i for i, name in enumerate(names)}
    if key in source.cells:
        runs = [name.strip() for name in source.cells[key]]
        if source.is_log:
            rows_of = {run: _row_of(run, names) or run for run in dict.fromkeys(runs)}
            runs = [rows_of[run] for run in runs]
    elif not name_column(source.cells) and (
        name := _row_of(str(Path(source.name.removesuffix(".gz")).resolve().with_suffix("")), names)
    ):
        runs = [name] * len(source.at)  # a table without names of runs is a run, named by its file or folder
        source = source._replace(cells={RUN: runs} | source.cells)
    elif alone:
        raise InputError(
            f"{source.name}: has no column {key}, which joins it to the rows of {config}; for a table of one run, give"
            f" its row in {config} the name of the file or of its folder"
        )
    else:
        return source
    if not alone and not set(runs) & set(names):
        return source
    if missing := dict.fromkeys(name for name in runs if name not in row):
        raise InputError(f"{config}: has no row for {', '.join(missing)}; needed: one for each {key} of {source.name}")
    known = [name for name in table if name in source.cells and name != first]
    more = {name: [cells[row[run]] for run in runs] for name, cells in table.items() if name not in (first, *known)}
    remarks = [*source.remarks]
    if known:
        remarks.append(f"not taken from {config}, because {source.name} has such a column: {', '.join(known)}")
    found.update(runs)
    return source._replace(name=f"{source.name} with {config}", cells=source.cells | more, remarks=remarks)


def _row_of(run: str, names: list[str]) -> str | None:
    """Return the name of a run or, if the run is a path, of its innermost folders, such as moe8 for moe8/version_0."""
    path = f"/{run}/"
    ends = {name: path.rfind(f"/{name}/") + len(name) for name in names if f"/{name}/" in path}
    return max(ends, key=lambda name: (ends[name], len(name)), default=None)


def check_names(sources: list[Source], columns: dict[str, str], keep) -> None:
    """Raise `InputError` for a requested column that no source has."""
    there = list(dict.fromkeys(name for source in sources for name in source.cells))
    names = in_short(source.name for source in sources)
    for name in keep:
        if name not in there:
            raise InputError(f"--keep {name}: {names} has no such column; {near(name, there)}")
        if name == SOURCE and len(sources) > 1:
            raise InputError(f"--keep {name}: this name is reserved for the source table of a row")
    for name, source in columns.items():
        if source not in there:
            more = "; needed: one line of names above the rows" * ("Unnamed: 1" in there)
            raise InputError(f"--columns {name}={source}: {names} has no column {source}; {near(source, there)}{more}")
