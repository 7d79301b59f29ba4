"""Approved outputs and files of a run that is stopped and resumed, with a fake clock."""

import io
import itertools
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from routelaws.accelerated.commands import progress
from routelaws.accelerated.training import loop
from routelaws.accelerated.training.configuration import from_mapping

from .small_runs import ran, words_of

FIELDS = {
    "router": "top_k", "experts": 4, "k": 2, "capacity_factor": 1.25, "steps": 12, "steps_per_call": 2,
    "evaluations": 3, "checkpoint_every": 6,
}  # fmt: skip
SHARE = 2e-3
"""Allowed relative difference of losses of one seed between machines and compilers."""


def clock(seconds: float):
    return map(lambda looks: looks * seconds, itertools.count(1000)).__next__


class AtOnce:
    """A thread that has ended when it has started, so that the clock is read in one order."""

    def __init__(self, target, args, daemon):
        self.start = lambda: target(*args)

    def is_alive(self) -> bool:
        return False

    def join(self) -> None: ...


@pytest.fixture(scope="module")
def story(small_fields, tmp_path_factory):
    """Return the folder of a run that stopped before its fifth call and resumed, and its messages."""
    folder = tmp_path_factory.mktemp("approved")
    text = small_fields["corpus"][0]
    flags = words_of(small_fields | FIELDS)

    def run(*words: str) -> str:
        code, out, err = ran(*words)
        said = f"$ routelaws {' '.join(words)}\n{out}[standard error]\n{err}[exit code {code}]\n"
        return said.replace(text, "lines.txt")

    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ROUTELAWS_CACHE", str(folder / "cache"))  # the text is not encoded yet
        patch.setattr(loop, "time", SimpleNamespace(perf_counter=clock(0.25)))
        patch.setattr(progress, "time", SimpleNamespace(monotonic=clock(12.0), thread_time=clock(1e3)))
        patch.setattr(progress, "threading", SimpleNamespace(Thread=AtOnce))
        with pytest.MonkeyPatch.context() as stopped:
            calls = itertools.chain([False] * 4, itertools.repeat(True))
            stopped.setattr(loop.stopping, "asked", lambda: next(calls))
            said["stopped"] = run("train", "--out", "run", *flags)
        for name in ("goes on", "is finished"):
            said[name] = run("train", "--out", "run", *flags)
        said["another"] = run("train", "--out", "run", *flags, "--steps", "16")
    return folder / "run", said


def test_what_a_run_says(story, approved):
    approved("train.txt", "\n".join(story[1][name] for name in ("stopped", "goes on", "is finished", "another")), SHARE)


def test_what_a_run_leaves(story, approved):
    folder, _ = story
    table = re.sub(r"cpu,[^,\n]*$", "cpu,COMMIT", (folder / "results.csv").read_text(), flags=re.MULTILINE)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    files = sorted(str(path.relative_to(folder)) for path in folder.iterdir())
    approved("train-table.txt", table, SHARE)
    approved("train-log.json", {"files": files, "log": log}, SHARE)


def test_what_is_said_of_several_runs(monkeypatch, approved):
    """One run is finished, one resumes at half of its steps, and one fails."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    fields = {"heads": 1, "blocks": 2, "vocab_size": 300, "steps": 100, "steps_per_call": 10}
    runs = [from_mapping(fields | {"d_model": width, "router": "hash", "experts": 4}) for width in (8, 16, 32, 64)]
    console = Console(file=io.StringIO(), width=80)

    def tell(watch, kind, seconds=0.0, **event):
        now[0] += seconds
        watch(kind, **event)

    with progress.Progress(runs, console=console) as watch:
        tell(watch, "say", line="4 runs")
        tell(watch, "finished", run=0)
        for run in (1, 2, 3):
            tell(watch, "start", 1, run=run)
        tell(watch, "step", 20, run=1, step=60, loss=5.0, tokens_per_second=900.0)
        tell(watch, "step", 20, run=2, step=10, loss=5.5, tokens_per_second=12345.0)
        tell(watch, "evaluation", 1, run=1, step=100, loss=4.25)
        tell(watch, "finished", 30, run=1)
        tell(watch, "failed", 2, run=3, line="runs/3: the loss is NaN at step 11")
        tell(watch, "step", 60, run=2, step=100, loss=5.0, tokens_per_second=12345.0)
        tell(watch, "evaluation", 3600, run=2, step=100, loss=4.125)
        tell(watch, "finished", 1, run=2)
    with progress.Progress(runs[3:], console=console) as watch:
        tell(watch, "start", 5)
        tell(watch, "step", 20, step=10, loss=5.5, tokens_per_second=50.0)  # with compilation, so not shown
        tell(watch, "evaluation", 5, step=10, loss=5.75)
        tell(watch, "step", 20, step=20, loss=5.25, tokens_per_second=9949.0)
        tell(watch, "evaluation", 5, step=20, loss=5.25)
        tell(watch, "step", 20, step=35, loss=5.0, tokens_per_second=60.0)  # another number of steps compiles again
        tell(watch, "step", 20, step=45, loss=4.5, tokens_per_second=9951.0)
        tell(watch, "evaluation", 5, step=45, loss=4.75)
    approved("progress.txt", console.file.getvalue())
