"""The record of a run's files, in `record.json` and inside each checkpoint.

    config            the fields of the configuration
    tokenizer         digest of tokenizer.model
    hash_table        digest of the table in hash_table.npy, for a hash
    texts             digest of the corpus and of each evaluation text
    rows, windows     every row of results.csv, and the digest of validation_windows.csv at that row
    log               number of bytes of log.jsonl, and their digest

The digest of a checkpoint also covers the record of its step, so files of another run do not match. `record.json` has
the record of the last evaluation, for readers that need no weights. A run writes it after the files that it describes,
so after a kill, log, windows and table may be newer than the record. Readers ignore a row that the record lacks, if the
run will write it again, and windows of such a row.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...files import write_atomically
from ...json_files import misfit, read_json, shown
from ..configuration import PLACES, TrainConfig, from_mapping

FILE = "record.json"
"""File name of the record in a run folder; a checkpoint has the record as the entry `record`."""

FORM = {
    "config": dict,
    "tokenizer": str,
    "hash_table?": str,
    "texts": {"*": str},
    "rows": [{"*": str}],
    "windows": [str],
    "log": {"bytes": int, "digest": str},
}
"""The form of a record in JSON."""

WRITTEN_ANEW = "restore it, or delete it and repeat the training command"
"""Remedy if a file differs from the file that the run wrote."""


A_NEW_LOG = "restore it, or move it away to start a new log"
"""Remedy if the log differs from the log that the run wrote."""


class Record(NamedTuple):
    """The record of the files of a run at some step; see above."""

    config: dict
    tokenizer: str
    hash_table: str | None
    texts: dict[str, str]
    rows: list[dict[str, str]]  # without blank cells
    windows: list[str]
    log: dict  # bytes, digest

    def plain(self) -> dict:
        return {name: value for name, value in self._asdict().items() if value is not None}


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def digest_of_json(value) -> str:
    """Return the digest of a JSON value, independent of the order of its keys."""
    return digest(json.dumps(value, sort_keys=True).encode())


def digest_of_table(table: np.ndarray | None) -> str | None:
    """Return the digest of a hash table, None for a run without a table."""
    if table is None:
        return None
    return digest(f"{table.dtype.str} {table.shape}".encode() + np.ascontiguousarray(table).tobytes())


# READ AND WRITE


def write_record(folder: Path, record: Record) -> None:
    content = {"record": record.plain(), "digest": digest_of_json(record.plain())}
    write_atomically(Path(folder) / FILE, json.dumps(content, indent=1) + "\n")


def read_record(folder: Path) -> Record | None:
    """Return the record in the folder of a run, None if there is none.

    Raises:
        InputError: the record differs from its digest, or has another form.
    """
    path = Path(folder) / FILE
    try:
        content = read_json(path, {"record": FORM, "digest": str})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except InputError as error:
        raise InputError(f"{error}; {WRITTEN_ANEW}") from None
    record = _record(content["record"])
    if digest_of_json(content["record"]) != content["digest"] or len(record.rows) != len(record.windows):
        raise InputError(f"{path}: was changed after the run wrote it; {WRITTEN_ANEW}")
    return record


def record_in(extra: dict) -> Record:
    """Return the record in the fields of a checkpoint. Raise `ValueError` if it has another form."""
    if wrong := misfit(extra["record"], FORM, "record"):
        raise ValueError(wrong)
    return _record(extra["record"])


def _record(plain: dict) -> Record:
    return Record(**{name: plain.get(name) for name in Record._fields})


# COMPARE; `by` names the place of the record, such as "the checkpoint of step 24"


def check_config(path: Path, config: TrainConfig, record: Record, by: str = FILE) -> None:
    """Raise `InputError` if a configuration differs from the record. Paths of texts and runs may differ."""
    before = from_mapping(record.config, by)
    different = config.difference(before, (*config.changeable(before), *PLACES))
    if different:
        name, here, recorded = different
        raise InputError(f"{path}: {name} is {shown(here)}, but {shown(recorded)} in {by}; {WRITTEN_ANEW}")


def check_rows(path: Path, rows: list[dict], record: Record, by: str = FILE) -> None:
    """Raise `InputError` if rows of results.csv differ from the record. The last rows may be missing."""
    for row, recorded in zip(rows, record.rows, strict=False):
        here = {name: cell for name, cell in row.items() if cell}
        names = ("step", *recorded, *here)
        wrong = next((name for name in names if here.get(name) != recorded.get(name)), None)
        if wrong == "step":
            raise InputError(f"{path}: has no row of step {recorded.get(wrong)}, but {by} has this row; {WRITTEN_ANEW}")
        if wrong is not None:
            raise InputError(
                f"{path}: {wrong} at step {here['step']} is {shown(here.get(wrong, ''))}, but "
                f"{shown(recorded.get(wrong, ''))} in {by}; {WRITTEN_ANEW}"
            )
    if len(rows) > len(record.rows):
        raise InputError(f"{path}: has {len(rows)} rows, but {by} has {len(record.rows)}; {WRITTEN_ANEW}")


def check_log(path: Path, content: bytes, record: Record, by: str = FILE) -> None:
    """Raise `InputError` if a log does not begin with the recorded lines; more lines may follow."""
    size = record.log["bytes"]
    if len(content) < size or digest(content[:size]) != record.log["digest"]:
        how = f"has {len(content):,} of the {size:,} bytes" if len(content) < size else "differs from the lines"
        raise InputError(f"{path}: {how} that the run wrote up to {by}; {A_NEW_LOG}")
