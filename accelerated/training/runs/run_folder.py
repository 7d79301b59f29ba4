"""The files of a run folder except checkpoints. Readers check the form of each file and the run's record.

config.json        the resolved configuration            `claim_folder`, `read_config`
tokenizer.model    the tokenizer                         `read_tokenizer`
hash_table.npy     for a hash: experts of each token id  `keep_hash_table`, `read_hash_table`
log.jsonl          one line per compiled call            `read_log`, `LogWriter`
results.csv, validation_windows.csv                      `read_results`
record.json        digests of these files                see `record`
"""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.reference.configuration import ModelConfig

from ...errors import InputError
from ...files import append_to, exists, read_bytes, read_npy, write_atomically
from ...json_files import NUMBER, misfit, parse_json, read_json
from ..configuration import TrainConfig, from_mapping
from ..text.tokenizer import Tokenizer
from ..window_losses import FILE as WINDOWS
from ..window_losses import WindowLosses, read_window_losses
from .record import (
    A_NEW_LOG,
    FILE,
    WRITTEN_ANEW,
    Record,
    check_config,
    check_log,
    check_rows,
    digest,
    digest_of_table,
    read_record,
)
from .result_rows import read_rows

HASH_TABLE = "hash_table.npy"
"""File name of the hash table in a run folder."""

LOG_LINE = {
    "kind": str,
    "step": int,
    "reason?": str,
    "load?": [[NUMBER]],
    **dict.fromkeys(
        ("loss?", "loss_validation?", "auxiliary?", "gradient_norm?", "dropped_fraction?", "tokens_per_second?"), NUMBER
    ),
}
"""The form of a line of the log."""


# CONFIGURATION


def check_folder(folder: Path, config: TrainConfig) -> TrainConfig | None:
    """Return the configuration of the run in a folder, None without a run.

    Raises:
        InputError: a field differs that is not in `TrainConfig.changeable`; the message names the first such field.
    """
    if not exists(Path(folder) / "config.json"):
        return None
    saved = read_config(folder)
    if different := config.difference(saved, config.changeable(saved)):
        name, ours, theirs = different
        raise InputError(f"{folder}: holds a run with {name} {theirs!r}, not {ours!r}; choose another --out")
    return saved


def claim_folder(folder: Path, config: TrainConfig) -> None:
    """Write the configuration into a new folder, or check that the folder has the same run (see `check_folder`).

    Raises:
        InputError: the folder holds another run.
    """
    if check_folder(folder, config) != config:
        write_atomically(Path(folder) / "config.json", config.to_json())


def read_config(folder: Path) -> TrainConfig:
    """Return the configuration of the run in a folder.

    Raises:
        InputError: the configuration is missing, cannot be read, or differs from the record.
    """
    path = Path(folder) / "config.json"
    try:
        config = from_mapping(read_json(path, dict), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        there = "holds no run (no config.json)" if os.path.isdir(folder) else "no such folder"
        raise InputError(f"{folder}: {there}") from error
    record = read_record(folder)
    if record is not None:
        check_config(path, config, record)
    return config


# TOKENIZER, HASH TABLE


def read_tokenizer(folder: Path, record: Record | None = None, by: str = "") -> Tokenizer:
    """Return the tokenizer of the run in a folder.

    Raises:
        InputError: the tokenizer is missing, cannot be read, or differs from the record.
    """
    path = Path(folder) / "tokenizer.model"
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {WRITTEN_ANEW}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if record is not None and digest(content) != record.tokenizer:
        raise InputError(f"{path}: is not the tokenizer of {by}; {WRITTEN_ANEW}")
    try:
        return Tokenizer(content)
    except RuntimeError:
        raise InputError(f"{path}: is not a SentencePiece model; {WRITTEN_ANEW}") from None


def keep_tokenizer(source: Path, folder: Path) -> None:
    """Write the tokenizer of a text into the folder of a run, or check that the folder has the same tokenizer.

    Raises:
        InputError: the folder has another tokenizer.
    """
    path, content = Path(folder) / "tokenizer.model", Path(source).read_bytes()
    if not os.path.exists(path):
        write_atomically(path, content)
    elif read_bytes(path) != content:
        raise InputError(f"{path}: is not the tokenizer of the run's text; {WRITTEN_ANEW}")


def keep_hash_table(table: np.ndarray | None, folder: Path) -> None:
    """Write the table into the folder of a run, unless the folder has a table."""
    if table is not None and not os.path.exists(Path(folder) / HASH_TABLE):
        content = io.BytesIO()
        np.save(content, table, allow_pickle=False)
        write_atomically(folder / HASH_TABLE, content.getvalue())


def table_shape(model: ModelConfig) -> tuple[int, int] | None:
    """Return the shape of the hash table of a model, None for a model without one."""
    if not model.has_table:
        return None
    return (2, model.vocab_size) if model.hash == "bigram" else (model.vocab_size, model.choices)


def read_hash_table(folder: Path, model: ModelConfig) -> np.ndarray | None:
    """Return the saved table of a run; None if the model or the folder has no table.

    Raises:
        InputError: the file cannot be read, or is not a table for this model.
    """
    path, shape = Path(folder) / HASH_TABLE, table_shape(model)
    if shape is None or not os.path.exists(path):
        return None
    try:
        table = read_npy(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {WRITTEN_ANEW}") from error
    if table.dtype != np.int32 or table.shape != shape:
        raise InputError(f"{path}: holds {table.dtype} {table.shape}; int32 {shape} is needed; {WRITTEN_ANEW}")
    if table.min() < 0 or table.max() >= model.expert_count:
        raise InputError(
            f"{path}: has experts from {table.min()} to {table.max()}; the model has 0 to {model.expert_count - 1}; "
            f"{WRITTEN_ANEW}"
        )
    return table


def check_files(folder: Path, config: TrainConfig, record: Record, by: str) -> tuple[np.ndarray | None, Tokenizer]:
    """Return the hash table and the tokenizer of a run.

    Args:
        config: the configuration, from config.json or the flags.
        record: the record in the checkpoint.
        by: name of the checkpoint in messages.

    Raises:
        InputError: a file is damaged, or differs from the record.
    """
    check_config(folder / "config.json", config, record, by)
    table, tokenizer = read_hash_table(folder, config.model), read_tokenizer(folder, record, by)
    if digest_of_table(table) != record.hash_table:
        raise InputError(f"{folder / HASH_TABLE}: is not the hash table of {by}; {WRITTEN_ANEW}")
    if tokenizer.vocab_size != config.model.vocab_size:
        raise InputError(
            f"{folder / 'tokenizer.model'}: has {tokenizer.vocab_size} pieces; the model has "
            f"{config.model.vocab_size}; {WRITTEN_ANEW}"
        )
    return table, tokenizer


# LOG


class LogWriter:
    """The log of a run during training, written line by line, with a digest of all its lines."""

    def __init__(self, path: Path, content: bytes = b""):
        self.path, self._file, self._content = Path(path), None, content
        self._bytes, self._hash = len(content), blake2b(content, digest_size=16)

    def begin(self) -> None:
        """Write the file again with the existing lines."""
        write_atomically(self.path, self._content)
        self._content = b""

    def write(self, **fields) -> None:
        """Append a line. A number that is not finite becomes null, because JSON has no such numbers."""
        fields = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}
        line = json.dumps(fields) + "\n"
        self._file = self._file or append_to(self.path)
        self._file.write(line)
        self._file.flush()
        self._bytes += len(line.encode())
        self._hash.update(line.encode())

    def mark(self) -> dict:
        """Flush the log to disk. Return the number of bytes and their digest for a record."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return {"bytes": self._bytes, "digest": self._hash.hexdigest()}

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # every line was flushed
                self._file.close()
            self._file = None


def read_log(path: Path) -> list[dict]:
    """Return the lines of a log, without an incomplete last line.

    Raises:
        InputError: a line is damaged, or the file cannot be read.
    """
    try:
        *lines, _cut = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return [parse_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def parse_line(line: bytes, where: str) -> dict:
    """Return the fields of a line of the log. Raise `InputError` if it is damaged."""
    try:
        fields = parse_json(line.decode("utf-8"))
        wrong = misfit(fields, LOG_LINE)
    except ValueError as error:
        wrong = f"is not valid JSON: {error}"
    if wrong:
        raise InputError(f"{where}: {wrong}; {A_NEW_LOG}")
    return fields


# RESULTS, CHECKED AGAINST THE RECORD


def read_results(folder: Path) -> tuple[list[dict], WindowLosses | None]:
    """Return the recorded rows of a run's table, and the window losses of the last one (None if there are none).

    Raises:
        InputError: a file is damaged, or differs from the record.
    """
    path = Path(folder) / "results.csv"
    record = read_record(folder)  # first: a run that is training may add a row to table and record in between
    if record is None:
        return read_rows(path), read_window_losses(folder)
    steps = from_mapping(record.config, FILE).steps
    rows = _rows_up_to(int(record.rows[-1]["step"]) if record.rows else 0, steps, path, record, FILE)
    try:
        content = read_bytes(Path(folder) / WINDOWS)
    except FileNotFoundError:
        return rows, None
    if rows and record.windows[len(rows) - 1] == digest(content):
        return rows, read_window_losses(folder)
    if rows and int(rows[-1]["step"]) == steps:
        raise InputError(f"{Path(folder) / WINDOWS}: was changed after the run wrote it; restore it, or delete it")
    return rows, None  # a stopped run may have written the windows of the next row


def _rows_up_to(step: int, steps: int, path: Path, record: Record, by: str) -> list[dict]:
    """Return the rows of a table up to a step, without the rows that the run will write again.

    Raises:
        InputError: a row is damaged or differs from the record, or is of no step that is left.
    """
    rows = [row for row in read_rows(path) if not step < int(row["step"]) <= steps]
    check_rows(path, rows, record, by)
    return rows


def read_own_log(folder: Path) -> list[dict]:
    """Return the lines of a run's log.

    Raises:
        InputError: the log is damaged, or differs from the record.
    """
    path, record = Path(folder) / "log.jsonl", read_record(folder)
    lines = read_log(path)
    if record is not None and os.path.exists(path):
        check_log(path, read_bytes(path), record)
    return lines


# RESUME


class Kept(NamedTuple):
    """The log and table with which a run resumes."""

    rows: list[dict[str, str]]
    windows: list[str]  # see `record.Record`
    log: bytes


def kept_files(folder: Path, record: Record, step: int, steps: int, tell: Callable[[str], None]) -> Kept:
    """Return the table and the log of a run up to a checkpoint.

    Missing rows are restored from the record. A missing log begins again. Later rows and lines are dropped, because the
    run writes them again.

    Args:
        step: the step of the checkpoint.
        steps: the last step of the run.
        tell: called with a line for each missing file or row.

    Raises:
        InputError: a row or a line up to this step differs from the record, or the run would not write a later row or
            line again.
    """
    table, log, by = folder / "results.csv", folder / "log.jsonl", f"the checkpoint of step {step:,}"
    rows = _rows_up_to(step, steps, table, record, by)
    if len(rows) < len(record.rows):
        tell(f"{table}: has {len(rows)} of the {len(record.rows)} rows of {by}; the other rows are restored")
    if not os.path.exists(log):
        tell(f"{log}: is missing; a new log begins at step {step:,}")
        return Kept(record.rows, record.windows, b"")
    content = read_bytes(log)
    try:
        check_log(log, content, record, by)
    except InputError:
        read_log(log)  # raises an error that names a broken line
        raise
    ours, later = content[: record.log["bytes"]], content[record.log["bytes"] :]
    _check_later(log, ours.count(b"\n"), later, range(step + 1, steps + 1))
    return Kept(record.rows, record.windows, ours)


def _check_later(path: Path, before: int, later: bytes, steps: range) -> None:
    """Raise `InputError` if the run would not write a later line of the log again.

    Args:
        before: number of earlier lines.
        later: the later lines. A kill may have cut the last one, unless the run is finished.
        steps: the remaining steps.
    """
    *lines, cut = later.split(b"\n")
    lines += [cut] if cut and not steps else []
    for number, line in enumerate(lines, before + 1):
        step = parse_line(line, f"{path}, line {number}")["step"]
        if step not in steps:
            left = f"steps {steps[0]} to {steps[-1]} are left" if steps else "no step is left"
            raise InputError(f"{path}, line {number}: is of step {step}, but {left}; {A_NEW_LOG}")


def check_untrained(folder: Path, steps: int, checkpoints: set[int]) -> None:
    """Raise `InputError` if a run has no checkpoint, but its table or log proves that it had one.

    A run begins its second checkpoint only after the first is complete, and writes its last row after the last
    checkpoint.
    """
    rows = [int(row["step"]) for row in read_rows(folder / "results.csv")]
    reached = max([0, *rows, *(line["step"] for line in read_log(folder / "log.jsonl"))])
    if steps in rows or reached > sorted(checkpoints)[:2][-1]:
        raise InputError(
            f"{folder}: was trained up to step {reached:,} but has no checkpoint; restore its checkpoints, or delete "
            "the folder to train this run again"
        )
