"""Small runs, and commands in this process, for tests of several parts."""

import contextlib
import io
from pathlib import Path

from routelaws.accelerated import cli
from routelaws.accelerated.tables.schema import TIME_COLUMNS
from routelaws.accelerated.training import loop, step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.checkpoints import Checkpoints
from routelaws.accelerated.training.runs.result_rows import read_rows
from routelaws.accelerated.training.text.corpus import read_corpus
from routelaws.accelerated.training.text.tokens import prepare_tokens


def ran(*words) -> tuple[int, str, str]:
    """Run a command. Return its exit code and its two outputs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def words_of(fields: dict) -> list[str]:
    """Return the flags of a run."""
    words = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else [value])]
    return words


def tokens_of(config):
    return prepare_tokens(read_corpus(config.corpus), config.model.vocab_size, tell=lambda line: None)


def make_run(fields, folder, watch=lambda *_, **__: None, hyper_id=0, *, trunk=None, keep=(), **changes) -> loop.Run:
    config = from_mapping({**fields, **changes}, "test")
    return loop.Run(config, folder, tokens_of(config), hyper_id, watch, trunk=trunk, keep=keep)


def saved_run(fields, folder, change=lambda state: state, at: int = 1) -> Path:
    """Return the folder of an untrained run with a checkpoint of its changed initial state."""
    run = make_run(fields, folder)
    kept = Checkpoints(run.checkpoints, print)
    kept.save(at, change(step.initial_state(run.config))._asdict(), run._extra())
    kept.close()
    return folder


def denied(of_system, is_denied):
    """Return a function of the system that has no right to some paths, because root has all rights."""

    def call(path, *args, **kwargs):
        if is_denied(str(path)):
            raise PermissionError(13, "Permission denied", str(path))
        return of_system(path, *args, **kwargs)

    return call


class Cut(Exception): ...


def cut_at(step: int):
    """Return a watch that ends a run at a step with `Cut`."""

    def watch(kind, **fields):
        if kind == "step" and fields["step"] == step:
            raise Cut

    return watch


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def untimed_rows(folder: Path) -> list[dict]:
    """Return the rows of a run or sweep without its times."""
    return [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in read_rows(folder / "results.csv")]
