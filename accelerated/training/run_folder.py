"""What the folder of a run holds beside its weights: whose it is, its log and its hash table.

config.json        the resolved configuration            `claim_folder`, `read_config`
log.jsonl          one line per compiled call            `read_log`, `write_log`
hash_table.npy     of a hash: from token id to experts   `keep_hash_table`, `read_hash_table`
"""

import io
import json
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files import write_atomically
from .configuration import CHANGEABLE, TrainConfig, from_mapping

HASH_TABLE = "hash_table.npy"
"""Where a run keeps its table."""


def claim_folder(folder: Path, config: TrainConfig) -> None:
    """Write the configuration into a fresh folder, or find the same one there; `CHANGEABLE` fields may differ.

    Raises:
        InputError: the folder holds a run with another configuration; the message names the first difference.
    """
    path = folder / "config.json"
    if not path.exists():
        write_atomically(path, config.to_json())
        return
    found = read_config(folder).fields()
    for name, ours in config.fields().items():
        theirs = found[name]
        if ours != theirs and name not in CHANGEABLE:
            raise InputError(f"{folder}: holds a run with {name} {theirs!r}, not {ours!r}; choose another --out")
    if found != config.fields():
        write_atomically(path, config.to_json())


def read_config(folder: Path) -> TrainConfig:
    """Return the configuration of the run in a folder.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = Path(folder) / "config.json"
    try:
        return from_mapping(json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError as error:
        there = "holds no run (no config.json)" if Path(folder).is_dir() else "no such folder"
        raise InputError(f"{folder}: {there}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_log(path: Path) -> list[dict]:
    """Return the lines of a log; a last line that a kill cut short is left out."""
    if not Path(path).exists():
        return []
    lines = []
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def write_log(path: Path, lines: list[dict]) -> None:
    """Write a log anew, whole or not at all."""
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def keep_hash_table(table: np.ndarray | None, folder: Path) -> None:
    """Write the table into the folder of a run."""
    if table is not None:
        content = io.BytesIO()
        np.save(content, table, allow_pickle=False)
        write_atomically(folder / HASH_TABLE, content.getvalue())


def read_hash_table(folder: Path) -> np.ndarray | None:
    """Return the table that a run keeps; None if it has none.

    Raises:
        InputError: it cannot be read.
    """
    path = Path(folder) / HASH_TABLE
    if not path.exists():
        return None
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
