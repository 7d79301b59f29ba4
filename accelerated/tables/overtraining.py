"""The over-training runs of Gadre et al. 2024 (arXiv 2403.08540) as one table, and the tasks that they were scored on.

The authors' repository holds two JSON files for each of 104 dense models: the run with its losses on eight texts, and
its accuracies on 46 tasks. What is made of them has one row for each run, in the order of training set, size and
tokens, with the columns

    run, training_set, params, params_no_embed, tokens, chinchilla_multiplier, loss_TEXT..., acc_TASK...

and one row for each task: task, task_type, num_examples, random_accuracy. Numbers are copied as they stand. That what
is made is what was meant is checked by the SHA-256 of the finished table (`released.py`), not by that of the archive,
which a server may pack anew.
"""

import csv
import io
import json
import posixpath
import tarfile
from pathlib import Path

from ..errors import InputError

_RUN = ("params", "params_no_embed", "tokens", "chinchilla_multiplier")


def overtraining_runs(archive: Path) -> bytes:
    """Return the table of runs, made of an archive (.tar.gz) of the repository.

    Raises:
        InputError: the archive cannot be read, or a file or an entry of it is missing.
    """
    rows, tasks = [], {}
    with _Archive(archive) as files:
        for path in files.matching("exp_data/models/", ".json"):
            run = files.json(path)
            name = _entry(path, run, "name")
            scores_path = f"exp_data/evals/evaluation_{name}_heavy.json"
            scores = _entry(scores_path, files.json(scores_path), "eval_metrics", "icl")
            tasks |= dict.fromkeys(scores)
            losses = {f"loss_{_text_of(result)}": result["loss"] for result in _entry(path, run, "results")}
            given = {key: _entry(path, run, "hyperparameters", key) for key in _RUN}
            row = {"run": name, "training_set": _entry(path, run, "dataset_name")} | given | losses
            rows.append(row | {f"acc_{task}": score for task, score in scores.items()})
    rows.sort(key=lambda row: (row["training_set"], row["params"], row["tokens"]))
    losses = sorted({column for row in rows for column in row if column.startswith("loss_")})
    return _packed(("run", "training_set", *_RUN, *losses, *(f"acc_{task}" for task in tasks)), rows)


def downstream_tasks(archive: Path) -> bytes:
    """Return the table of tasks, made of the same archive; a random baseline in per cent becomes an accuracy.

    Raises:
        InputError: as `overtraining_runs`.
    """
    with _Archive(archive) as files:
        path = "exp_data/eval_metadata.csv"
        given = list(csv.DictReader(io.StringIO(files.text(path))))
    rows = [
        {
            "task": _entry(path, row, "Eval Task"),
            "task_type": _entry(path, row, "Task Type"),
            "num_examples": _entry(path, row, "#datapoints"),
            "random_accuracy": float(_entry(path, row, "Random baseline")) / 100,
        }
        for row in given
    ]
    return _packed(("task", "task_type", "num_examples", "random_accuracy"), rows)


class _Archive:
    """The files of a repository in an archive, whose paths all begin with a folder of its own."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self):
        try:
            self.tar = tarfile.open(self.path)
            self.members = {member.name.partition("/")[2]: member for member in self.tar if member.isfile()}
        except (OSError, tarfile.TarError, EOFError) as error:
            raise InputError(f"{self.path}: is no archive that can be read ({error})") from None
        return self

    def __exit__(self, *error):
        self.tar.close()

    def matching(self, folder: str, ending: str) -> list[str]:
        found = sorted(name for name in self.members if name.startswith(folder) and name.endswith(ending))
        if not found:
            raise InputError(f"{self.path}: holds no {folder}*{ending}")
        return found

    def text(self, name: str) -> str:
        if name not in self.members:
            raise InputError(f"{self.path}: holds no {name}")
        return self.tar.extractfile(self.members[name]).read().decode("utf-8")

    def json(self, name: str) -> dict:
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise InputError(f"{self.path}: {name}: is no JSON ({error})") from None


def _entry(path: str, record: dict, *keys: str):
    """Return an entry of a nested record; InputError where it is missing."""
    for key in keys:
        if not isinstance(record, dict) or key not in record:
            raise InputError(f"{path}: has no entry {'.'.join(keys)}")
        record = record[key]
    return record


def _text_of(result: dict) -> str:
    """Return the name of the text that a loss is of: the folder of its shards."""
    return posixpath.basename(posixpath.dirname(result["val_data"][0]))


def _packed(columns: tuple[str, ...], rows: list[dict]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(column, "") for column in columns] for row in rows)
    return text.getvalue().encode()
