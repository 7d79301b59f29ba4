"""The released tables of Clark et al. 2022 and other papers.

The package contains the last evaluation of each run of Clark et al. (`released_runs`). Whole tables are downloaded once
from their authors' repositories at a fixed commit, and checked by SHA-256. The target is the folder ROUTELAWS_DATA, or
else `routelaws/data` in the user's cache folder. An existing file with the right content needs no network. Some tables
are built from other files of a repository.
"""

import csv
import gzip
import hashlib
import io
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..caches import user_cache
from ..errors import InputError
from ..files import write_atomically
from ..json_files import NUMBER, misfit, parse_json

_RUN = ("params", "params_no_embed", "tokens", "chinchilla_multiplier")

RUN = {
    "name": str,
    "dataset_name": str,
    "hyperparameters": dict.fromkeys(_RUN, NUMBER),
    "results": [{"loss": NUMBER, "val_data": [str]}],
}
SCORES = {"eval_metrics": {"icl": {"*": NUMBER}}}
"""The forms of the two files of a model."""


def overtraining_runs(archive: Path) -> bytes:
    """Return the table of the runs of Gadre et al. 2024, built from an archive (.tar.gz) of their repository.

    Raises:
        InputError: the archive cannot be read, or a file or an entry is missing.
    """
    rows, tasks, files, folder = [], {}, _Archive(archive), "exp_data/models/"
    names = sorted(name for name in files if name.startswith(folder) and name.endswith(".json"))
    for name in names or [f"{folder}*.json"]:
        run = files.json(name, RUN)
        scores = files.json(f"exp_data/evals/evaluation_{run['name']}_heavy.json", SCORES)["eval_metrics"]["icl"]
        tasks |= dict.fromkeys(scores)
        texts = (posixpath.basename(posixpath.dirname("".join(result["val_data"][:1]))) for result in run["results"])
        losses = {f"loss_{text}": result["loss"] for text, result in zip(texts, run["results"], strict=True)}
        hyperparameters = {key: run["hyperparameters"][key] for key in _RUN}
        row = {"run": run["name"], "training_set": run["dataset_name"]} | hyperparameters | losses
        rows.append(row | {f"acc_{task}": score for task, score in scores.items()})
    rows.sort(key=lambda row: (row["training_set"], row["params"], row["tokens"]))
    losses = sorted({column for row in rows for column in row if column.startswith("loss_")})
    return _packed(("run", "training_set", *_RUN, *losses, *(f"acc_{task}" for task in tasks)), rows)


def downstream_tasks(archive: Path) -> bytes:
    """Return the table of tasks from the same archive. Random baselines in percent become shares.

    Raises:
        InputError: `overtraining_runs` raises this error.
    """
    path = "exp_data/eval_metadata.csv"
    rows = [
        {
            "task": _entry(path, row, "Eval Task"),
            "task_type": _entry(path, row, "Task Type"),
            "num_examples": _entry(path, row, "#datapoints"),
            "random_accuracy": float(_entry(path, row, "Random baseline")) / 100,
        }
        for row in csv.DictReader(io.StringIO(_Archive(archive)[path]))
    ]
    return _packed(("task", "task_type", "num_examples", "random_accuracy"), rows)


class _Archive(dict):
    """The files below exp_data of an archive: {name: content}."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with tarfile.open(path) as tar:
                for member in tar:
                    if member.isfile() and "/exp_data/" in member.name:
                        self[member.name.partition("/")[2]] = tar.extractfile(member).read().decode("utf-8")
        except (OSError, tarfile.TarError, EOFError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read as an archive ({error})") from None

    def __missing__(self, name: str):
        raise InputError(f"{self.path}: holds no {name}")

    def json(self, name: str, form: dict) -> dict:
        try:
            content = parse_json(self[name], infinite=True)
        except ValueError as error:
            raise InputError(f"{self.path}: {name}: is not valid JSON ({error})") from None
        if wrong := misfit(content, form):
            raise InputError(f"{self.path}: {name}: {wrong}")
        return content


def chinchilla_points(file: Path) -> bytes:
    """Return the table of the points of Hoffmann et al. 2022, figure 4, from the file of Epoch AI.

    Raises:
        InputError: the file lacks a column.
    """
    names = {"params": "Model Size", "training_flops": "Training FLOP", "loss": "loss"}
    with open(file, newline="", encoding="utf-8") as lines:
        rows = [
            {name: _entry(str(file), row, theirs) for name, theirs in names.items()} for row in csv.DictReader(lines)
        ]
    return _packed(tuple(names), rows)


def _entry(path: str, row: dict, key: str):
    if row.get(key) is None:
        raise InputError(f"{path}: has no entry {key}")
    return row[key]


def _packed(columns: tuple[str, ...], rows: list[dict]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(column, "") for column in columns] for row in rows)
    return text.getvalue().encode()


class Released(NamedTuple):
    url: str  # URL of the file or of the archive with the table, at a fixed commit
    sha256: str  # digest of the table
    licence: str
    make: Callable[[Path], bytes] | None = None  # makes the table from the archive; None if the file is the table


_STEP_LAW = "https://raw.githubusercontent.com/step-law/steplaw/32a8f4cc50247695fb56cc6c9117abdf67c97763/data/"
_OVERTRAINING = "https://codeload.github.com/mlfoundations/scaling/tar.gz/a003c4913793ac2ae7ef87b28ecb562955d026d5"

TABLES = {
    "curves.csv.gz": Released(
        "https://raw.githubusercontent.com/deepmind/scaling_laws_for_routing/"
        "42da0c392b127df2c01fa7b705f72396050d05e5/data/curves.csv.gz",
        "c03e7531add85e594f368d33bac4a0220280be858a7ed12d147cf73af6a3819f", "CC-BY 4.0",
    ),
    "overtraining_runs.csv": Released(
        _OVERTRAINING, "2bcb5d4632c7b133c3757ac545fd1a9bce369e22fca1b795eebdf4412ac666f6", "MIT", overtraining_runs
    ),
    "downstream_tasks.csv": Released(
        _OVERTRAINING, "f4887508cb9d7d9a5b51543a5d100cd43681c1bd495f146f31d613476d37740d", "MIT", downstream_tasks
    ),
    "steplaw_moe.csv": Released(
        _STEP_LAW + "moe_lr_bs_loss.csv", "653d585244a7b227423007e8b796bc16d76f6d24eb87b1919b8f048a91897b92",
        "not stated",
    ),
    "steplaw_dense.csv": Released(
        _STEP_LAW + "dense_lr_bs_loss.csv", "9e46181076c04d450294d75dfe6f72adc416e231e154a07b337e378f9410002c",
        "not stated",
    ),
    "chinchilla_points.csv": Released(
        "https://raw.githubusercontent.com/epoch-research/analyzing-chinchilla/"
        "92258837425e1b5f2851d624287f0120583a3d0e/data/svg_extracted_data.csv",
        "3366fa12e6a7261f563b7650bf32405547569764c74cce9af9752f6e00475281", "not stated", chinchilla_points,
    ),
}  # fmt: skip
"""The available tables by file name: 5,799 evaluations of the 223 runs of Clark et al.; losses and accuracies of 104
dense runs of Gadre et al., and the tasks of these accuracies; 708 routed and 1,911 dense runs of Li et al. 2025 (Step
Law); 245 points of Hoffmann et al. 2022, read from a figure by Epoch AI. Tables without a stated licence are read, and
never contained."""


_LAST = Path(__file__).with_name("released_runs.csv")
_KNOWN = {
    336608: TABLES["curves.csv.gz"].sha256,
    45355: "007c04385bd21343555ffc8e402b9a3d8c28ab3ab08bde48c45f8ffa2e4c4e1d",
}
"""{size in bytes: SHA-256} of the whole table of Clark et al. and of `released_runs`."""


def released_runs(rows: str | None = None) -> Path:
    """Return the path of the paper's runs: the last evaluation of each of the 223 runs, which the package contains.

    Source: DeepMind Technologies Limited, CC BY 4.0; see `released_runs.txt` next to the table.

    Args:
        rows: choice of rows (see `selection.select_rows`). A condition on the step needs all evaluations. Its result is
            the whole table, downloaded if missing.

    Raises:
        InputError: the condition is invalid, or `released_table` raises this error.
    """
    from .conditions import names_in

    return _LAST if rows is None or "step" not in names_in(rows) else released_table()


def last_evaluations_csv(table: Path) -> bytes:
    """Return the content of `released_runs`, from the whole table: for each run the row with the largest step."""
    with gzip.open(table, "rt", newline="") as lines:
        reader = csv.DictReader(lines)
        last = {row["hyper_id"]: row for row in sorted(reader, key=lambda row: int(row["step"]))}
    rows = sorted(last.values(), key=lambda row: int(row["hyper_id"]))
    return _packed(tuple(reader.fieldnames), rows).replace(b"\r\n", b"\n")


def released_table(name: str = "curves.csv.gz") -> Path:
    """Return the path of a released table, downloaded if missing.

    Returns:
        The file, with the right SHA-256.

    Raises:
        InputError: the table is unknown, the download fails, or there is a file of this name with other content. This
            file stays unchanged.
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


STEP_LAW = ("steplaw-moe", "steplaw-dense")

_COLUMNS = {
    "N": "total_parameter_count", "Na": "dense_parameter_count", "D": "tokens", "lr": "learning_rate",
    "bs": "batch_size", "nume": "num_experts", "topk": "k", "seq_len": "sequence_length",
    "smooth loss": "loss_validation", "params": "dense_parameter_count", "loss_c4_val": "loss_validation",
}  # fmt: skip


def runs_of_paper(name: str):
    """Return released runs of another paper as a results table: one row per run, a pandas DataFrame.

    Args:
        name: steplaw-moe, steplaw-dense: every run of Step Law's grids of rate and batch (Li et al. 2025);
            overtraining: the 104 dense runs of Gadre et al. 2024, with their losses on C4;
            chinchilla: 240 points of Hoffmann et al. 2022: without the 5 largest losses, as in its refit.

    Returns:
        The table. `dense_parameter_count` is the number of active parameters, as each source counts them: Step Law
        excludes the embedding, the other two include it.

    Raises:
        InputError: `released_table` raises this error.
    """
    import pandas as pd

    file = {"overtraining": "overtraining_runs", "chinchilla": "chinchilla_points"}.get(name, name.replace("-", "_"))
    table = pd.read_csv(released_table(f"{file}.csv"))
    if name == "chinchilla":
        table = table.assign(D=table["training_flops"] / (6 * table["params"]))
        table = table.nsmallest(len(table) - 5, "loss").sort_index().rename(columns={"loss": "smooth loss"})
    if name == "steplaw-dense":
        table = table.assign(Na=table["N"], seq_len=2048)
    table = table.rename(columns=_COLUMNS)
    if name != "steplaw-moe":
        table = table.assign(total_parameter_count=table["dense_parameter_count"], num_experts=1, k=1)
    counts = ["dense_parameter_count", "total_parameter_count", "tokens", "num_experts", "k"]
    return table.astype(dict.fromkeys(counts, float)).reset_index(drop=True)


def data_folder() -> Path:
    """Return the folder of tables: ROUTELAWS_DATA, XDG_CACHE_HOME/routelaws/data or ~/.cache/routelaws/data."""
    if named := os.environ.get("ROUTELAWS_DATA"):
        return Path(named)
    return user_cache() / "data"


def is_released(path) -> bool:
    """Return whether a file is the table of Clark et al. or `released_runs`, whose numbers are known to agree."""
    return Path(path).stat().st_size in _KNOWN and _digest(path) == _KNOWN[Path(path).stat().st_size]


def _digest(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_content(path: Path, sha256: str) -> None:
    if (digest := _digest(path)) != sha256:
        raise InputError(
            f"{path}: is not the released table (its SHA-256 begins with {digest[:12]}, needed: {sha256[:12]}); move "
            "it away to download the table again, or name another folder with ROUTELAWS_DATA"
        )


def _download(path: Path, table: Released) -> None:
    """Download a table. A file with another SHA-256 is deleted."""
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
        raise InputError(f"{table.url} sent a file with another SHA-256, which was deleted: {advice}") from None
    if hashlib.sha256(content).hexdigest() != table.sha256:
        raise InputError(f"{table.url} has files that give another {path.name}, which was deleted: {advice}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


if __name__ == "__main__":  # python -m routelaws.accelerated.tables.released writes the file of `released_runs`
    write_atomically(_LAST, last_evaluations_csv(released_table()))
