"""The released tables of Clark et al. 2022 and of other papers, fetched once and checked by their SHA-256.

No table is part of this project: each is downloaded from the repository of its authors, at a fixed commit, into the
folder that ROUTELAWS_DATA names, or else `routelaws/data` in the user's cache folder. A file that is there already is
used without a network, if it is the right one. Where a repository holds many small files the table is made of these.
"""

import csv
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..caches import user_cache
from ..errors import InputError
from ..files import write_atomically
from .overtraining import downstream_tasks, overtraining_runs


class Released(NamedTuple):
    """Where a released table comes from."""

    url: str  # the file, or the archive that the table is made of, at a fixed commit
    sha256: str  # of the table
    licence: str
    make: Callable[[Path], bytes] | None = None  # from the archive; None where the file itself is the table


_OVERTRAINING = "https://codeload.github.com/mlfoundations/scaling/tar.gz/a003c4913793ac2ae7ef87b28ecb562955d026d5"

TABLES = {
    "curves.csv.gz": Released(
        "https://raw.githubusercontent.com/deepmind/scaling_laws_for_routing/"
        "42da0c392b127df2c01fa7b705f72396050d05e5/data/curves.csv.gz",
        "c03e7531add85e594f368d33bac4a0220280be858a7ed12d147cf73af6a3819f",
        "CC-BY 4.0",
    ),
    "overtraining_runs.csv": Released(
        _OVERTRAINING,
        "2bcb5d4632c7b133c3757ac545fd1a9bce369e22fca1b795eebdf4412ac666f6",
        "MIT",
        overtraining_runs,
    ),
    "downstream_tasks.csv": Released(
        _OVERTRAINING,
        "f4887508cb9d7d9a5b51543a5d100cd43681c1bd495f146f31d613476d37740d",
        "MIT",
        downstream_tasks,
    ),
    "svg_extracted_data.csv": Released(
        "https://raw.githubusercontent.com/epoch-research/analyzing-chinchilla/"
        "92258837425e1b5f2851d624287f0120583a3d0e/data/svg_extracted_data.csv",
        "193478df4e90f040016431996c45682659306840ecdadf83cfb9cd5ca0aa1b30",
        "none is stated: to be read, not passed on",
    ),
}
"""The tables that can be fetched, by the name of their file: 5,799 evaluations of the 223 runs of Clark et al.; losses
and accuracies of 104 dense runs of Gadre et al., and the tasks of these accuracies; 245 dense runs of Hoffmann et al.,
read from a figure by Besiroglu et al. (`hoffmann_points`)."""

POINTS = "svg_extracted_data.csv"
TIDY_POINTS = "chinchilla_points.csv", "3366fa12e6a7261f563b7650bf32405547569764c74cce9af9752f6e00475281"
"""The three columns of POINTS that are used, under names without spaces: a file that is taken in its place."""

COLUMNS_OF_POINTS = (("params", "Model Size"), ("training_flops", "Training FLOP"), ("loss", "loss"))


class Points(NamedTuple):
    """Dense runs as points of a law in N and D, the largest losses last."""

    dense_parameters: np.ndarray  # [n] N, embeddings counted
    tokens: np.ndarray  # [n] D = FLOPs / 6N
    loss: np.ndarray  # [n] nats per token


def released_table(name: str = "curves.csv.gz") -> Path:
    """Return the path of a released table; it is downloaded if it is not there yet.

    Args:
        name: one of TABLES.

    Returns:
        The file, with the right SHA-256.

    Raises:
        InputError: no such table; a file of that name is there and has other content (it is left as it is); or it
            cannot be downloaded, in which case the message says from where and to where.
    """
    if name not in TABLES:
        raise InputError(f"released table {name!r} is not known; allowed: {', '.join(TABLES)}")
    path = data_folder() / name
    try:
        if path.exists():
            _check_content(path, TABLES[name].sha256)
        else:
            _download(path, TABLES[name])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; ROUTELAWS_DATA can name another folder") from None
    return path


def hoffmann_points(leave_out: int = 5) -> Points:
    """Return the runs of Hoffmann et al. that Besiroglu et al. read from a figure.

    Args:
        leave_out: so many of the largest losses are left out, 5 in the fit of Besiroglu et al.

    Raises:
        InputError: as `released_table`, or the file lacks a column.
    """
    path = data_folder() / TIDY_POINTS[0]
    if path.exists():
        _check_content(path, TIDY_POINTS[1])
    else:
        path = released_table(POINTS)
    with open(path, newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = [ours if ours in rows[0] else theirs for ours, theirs in COLUMNS_OF_POINTS]
    if missing := [name for name in names if name not in rows[0]]:
        raise InputError(f"{path}: column {missing[0]} is missing; needed: {', '.join(names)}")
    values = np.array([[float(row[name]) for name in names] for row in rows if all(row[name] for name in names)])
    size, flops, loss = values[np.argsort(values[:, 2], kind="stable")[: len(values) - leave_out]].T
    return Points(size, flops / (6 * size), loss)


def data_folder() -> Path:
    """Return the folder of tables: ROUTELAWS_DATA, XDG_CACHE_HOME/routelaws/data or ~/.cache/routelaws/data."""
    if named := os.environ.get("ROUTELAWS_DATA"):
        return Path(named)
    return user_cache() / "data"


def _check_content(path: Path, sha256: str) -> None:
    """Raise InputError if a file is not the one that is meant."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise InputError(
            f"{path}: is not the released table (its SHA-256 begins with {found[:12]}, needed: {sha256[:12]}); move it "
            "away and the table is downloaded anew, or name another folder with ROUTELAWS_DATA"
        )


def _download(path: Path, table: Released) -> None:
    """Fetch a table to its place; what has another SHA-256 never gets there."""
    import pooch
    import requests

    advice = f"download it by other means to {path}, or set ROUTELAWS_DATA to a folder that holds it"
    try:
        if table.make is None:
            pooch.retrieve(table.url, f"sha256:{table.sha256}", fname=path.name, path=path.parent, progressbar=False)
            return
        with tempfile.TemporaryDirectory() as folder:
            archive = pooch.retrieve(table.url, None, fname="archive.tar.gz", path=folder, progressbar=False)
            content = table.make(Path(archive))
    except requests.exceptions.RequestException as error:
        reason = f"HTTP {error.response.status_code}" if error.response is not None else type(error).__name__
        raise InputError(f"{path.name} could not be downloaded from {table.url} ({reason}): {advice}") from None
    except ValueError as error:
        if "hash" not in str(error).lower():
            raise
        raise InputError(f"{table.url} gave a file with another SHA-256, which was not kept: {advice}") from None
    if hashlib.sha256(content).hexdigest() != table.sha256:
        raise InputError(f"{table.url} holds files that make another {path.name}, which was not kept: {advice}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
