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
import posixpath
import tarfile
from pathlib import Path

from ..errors import InputError
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
    """Return the table of runs, made of an archive (.tar.gz) of the repository.

    Raises:
        InputError: the archive cannot be read, or a file or an entry of it is missing.
    """
    rows, tasks = [], {}
    with _Archive(archive) as files:
        for path in files.matching("exp_data/models/", ".json"):
            run = files.json(path, RUN)
            scores = files.json(f"exp_data/evals/evaluation_{run['name']}_heavy.json", SCORES)["eval_metrics"]["icl"]
            tasks |= dict.fromkeys(scores)
            losses = {f"loss_{_text_of(result)}": result["loss"] for result in run["results"]}
            given = {key: run["hyperparameters"][key] for key in _RUN}
            row = {"run": run["name"], "training_set": run["dataset_name"]} | given | losses
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

    def json(self, name: str, form: dict) -> dict:
        try:
            content = parse_json(self.text(name), infinite=True)
        except ValueError as error:
            raise InputError(f"{self.path}: {name}: is no JSON ({error})") from None
        if wrong := misfit(content, form):
            raise InputError(f"{self.path}: {name}: {wrong}")
        return content


def _entry(path: str, row: dict, key: str):
    """Return an entry of a row; InputError where it is missing."""
    if row.get(key) is None:
        raise InputError(f"{path}: has no entry {key}")
    return row[key]


def _text_of(result: dict) -> str:
    """Return the name of the text that a loss is of: the folder of its shards."""
    return posixpath.basename(posixpath.dirname("".join(result["val_data"][:1])))


def _packed(columns: tuple[str, ...], rows: list[dict]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(column, "") for column in columns] for row in rows)
    return text.getvalue().encode()
