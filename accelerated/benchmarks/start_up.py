"""Figures of what is not the step: compiling, starting, and the loop around the step in `routelaws train`.

The middle model of the demo: d = 24, two blocks, V = 512, 16 sequences of 64 tokens, on the default text. Programs and
tokens are kept in a folder of the benchmark's own, so that the user's cache neither helps nor is filled.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..files import write_atomically
from .figure import Figure, Goal, Outcome, Side
from .measure import interleave
from .train_step import QUICK, SIZES, run_config
from .worker import Job, WorkerError

DEPTHS = (4, 24)
MODEL = {"d_model": 24, "heads": 2, "blocks": 2, "vocab_size": 512}
RUN = {"sequence_length": 64, "batch_size": 16, "steps": 2000, "evaluations": 10, "steps_per_call": 16}
SMOKE = {"sequence_length": 16, "batch_size": 4, "steps": 64, "evaluations": 4, "steps_per_call": 4}
PATIENCE = 600.0
"""Seconds after which a start has failed."""


def compiling(blocks: int, d_model: int, length: int, batch: int, vocab_size: int, heads: int) -> Job:
    """Return a job whose time is the first call of a training step in a process that has compiled nothing, less a
    later call."""
    import jax

    from ..training.step import initial_state, make_train_steps
    from .train_step import draw_tokens

    config = run_config(d_model, heads, blocks, vocab_size, length, batch)
    batches = draw_tokens(0, (1, batch, length + 1), vocab_size)

    def timed(steps, state):
        begin = time.perf_counter()
        state = jax.block_until_ready(steps(state, batches, 0))[0]
        return state, time.perf_counter() - begin

    def run():
        jax.clear_caches()
        state, steps = jax.block_until_ready(initial_state(config)), make_train_steps(config)
        state, first = timed(steps, state)
        _, later = timed(steps, state)
        return first - later

    return Job(run)


def compile_growth(bench):
    """Measure the compile time of a deep model over that of a shallow one."""
    sizes = QUICK | {"d_model": 16, "heads": 1} if bench.settings.quick else SIZES | {"d_model": 64, "heads": 2}
    depths = (2, 4) if bench.settings.quick else DEPTHS
    sides = {f"L = {depth}": Side("start_up:compiling", sizes | {"blocks": depth}) for depth in depths}
    shallow, deep = sides
    return bench.compare(sides, lambda s: s[deep] / s[shallow], bench.threads(), rounds=3)


def second_start(bench) -> Outcome:
    """Measure the seconds from starting `routelaws train` to the end of its first call, with a warm program cache."""
    quick, rounds = bench.settings.quick, min(3, bench.settings.rounds)
    with tempfile.TemporaryDirectory() as folder:
        flags, numbers = _flags(quick, folder), itertools.count()

        def start():
            return [_start(Path(folder), f"run{next(numbers)}", flags)]

        [first] = start()
        taken = interleave({"second start": start}, rounds, bench.load, min(3, bench.settings.more))
    middle, spread = taken.spread(lambda seconds: seconds["second start"])
    counts = len(taken.kept), taken.repeated, taken.disturbed
    return Outcome(middle, spread, taken.seconds(), os.cpu_count(), *counts, facts={"first_start_seconds": first})


def _flags(quick: bool, folder: str) -> list[str]:
    fields = {"router": "sinkhorn", "experts": 16} | MODEL | (SMOKE if quick else RUN)
    flags = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return flags + (["--corpus", _short_text(folder)] if quick else [])


def _short_text(folder: str) -> str:
    """Write texts of our own source into a folder, for a smoke test, and return its path."""
    texts = Path(folder, "text")
    texts.mkdir(exist_ok=True)
    for path in sorted(Path(__file__).parents[1].rglob("*.py"))[:60]:
        write_atomically(texts / f"{path.parent.name}-{path.stem}.txt", path.read_bytes())
    return str(texts)


def _start(folder: Path, run: str, flags: list[str]) -> float:
    """Return the seconds until a run has written the line of its first call; the run is ended then."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "routelaws.accelerated", "train", *flags, "--out", str(folder / run)]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env=named | {"ROUTELAWS_CACHE": str(folder / "cache")}, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            while not _has_stepped(folder / run / "log.jsonl"):
                if process.poll() is not None or time.perf_counter() - begin > PATIENCE:
                    said.seek(0)
                    raise WorkerError(f"routelaws train did not start: {said.read().strip()[-200:]}")
                time.sleep(0.01)
            return time.perf_counter() - begin
        finally:
            process.kill()
            process.wait()


def _has_stepped(log: Path) -> bool:
    return log.is_file() and log.stat().st_size > 0


def training_loop(quick: bool, folder: str) -> Job:
    """Return a job whose time is what a run of `training.loop` takes beside its steps and evaluations, as a share.

    The run is watched from its second evaluation on, when everything is compiled. What its calls and evaluations take
    by themselves is measured in between: the same programs, called from the run's own log.
    """
    from routelaws.reference.configuration import ModelConfig

    from ..training.configuration import TrainConfig
    from ..training.corpus import read_corpus
    from ..training.loop import Run
    from ..training.tokens import prepare_tokens

    config = TrainConfig(ModelConfig(**MODEL), **(SMOKE if quick else RUN))
    tokens = prepare_tokens(read_corpus([_short_text(folder)] if quick else None), 512, folder, tell=lambda line: None)
    number, held = itertools.count(), {}

    def run():
        beside = _Beside(config, tokens)
        Run(config, Path(folder, f"run{next(number)}"), tokens, watch=beside).train()
        held.update(beside.seconds())
        return (held["wall"] - held["steps"] - held["evaluations"]) / held["wall"]

    return Job(run, lambda: {f"{name}_seconds": value for name, value in held.items()})


class _Beside:
    """Watches a run from its second evaluation on, and takes calls and evaluations of its own in between.

    A call of its own follows each call of the run but the first two after an evaluation, beside which a checkpoint is
    written; an evaluation of its own follows each of the run's. So both meet the same moods of the machine.

    Args:
        config: of the run.
        tokens: its text.
    """

    WRITING = 2
    """Calls after an evaluation in which a checkpoint may be under way."""

    def __init__(self, config, tokens):
        from ..training.loop import open_text
        from ..training.step import initial_state, make_evaluate, make_train_steps

        batches, texts = open_text(config, tokens)
        self._steps, self._state = make_train_steps(config), initial_state(config)
        self._evaluate = make_evaluate(config)
        self._windows, self._text = batches.stacked(config.steps_per_call), texts["validation"].tokens
        self._own = {"call": [], "evaluation": []}
        self._seen = {"calls": 0, "evaluations": 0, "last": 0}
        for _ in range(2):  # compiled, then once more
            self._call()
            self._evaluation()

    def __call__(self, kind: str, **_) -> None:
        """Take what belongs after an event of the run."""
        now, seen = time.perf_counter(), self._seen
        if kind == "evaluation":
            seen["evaluations"], seen["last"] = seen["evaluations"] + 1, seen["calls"]
            if seen["evaluations"] == 2:
                self._begin, self._calls_before = now, seen["calls"]
            elif seen["evaluations"] > 2:
                self._take("evaluation", self._evaluation)
        elif kind == "step":
            seen["calls"] += 1
            if seen["evaluations"] >= 2 and seen["calls"] > seen["last"] + self.WRITING:
                self._take("call", self._call)

    def _take(self, kind: str, work) -> None:
        begin = time.perf_counter()
        work()
        self._own[kind].append(time.perf_counter() - begin)

    def _call(self) -> None:
        import jax

        self._state, _ = jax.block_until_ready(self._steps(self._state, self._windows, 0))

    def _evaluation(self) -> None:
        import jax

        jax.block_until_ready(self._evaluate(self._state.params, self._text))

    def seconds(self) -> dict[str, float]:
        """Return the seconds since the second evaluation, without what was taken here, and those of the calls and the
        evaluations in them, at the mean of those that were taken here."""
        wall = time.perf_counter() - self._begin - sum(map(sum, self._own.values()))
        calls, evaluations = self._seen["calls"] - self._calls_before, self._seen["evaluations"] - 2
        means = {kind: statistics.fmean(taken) for kind, taken in self._own.items()}
        return {"wall": wall, "steps": calls * means["call"], "evaluations": evaluations * means["evaluation"]}


def outside_the_step(bench):
    """Measure the share of wall time of a run that is neither step nor forward time of an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"quick": bench.settings.quick, "folder": folder}
        side = {"loop": Side("start_up:training_loop", options)}
        return bench.compare(side, "loop", bench.threads(), rounds=3)


FIGURES = (
    Figure("compile-depth", "compile time of a training step, L = 24 over L = 4, d = 64", Goal(1.3), compile_growth),
    Figure(
        "second-start",
        "seconds of a second `routelaws train` to the end of its first call",
        Goal(3.0), second_start, unit="s",
    ),
    Figure(
        "outside-step",
        "share of wall time in `routelaws train` that is neither step nor evaluation, 2,000 steps",
        Goal(0.03), outside_the_step, unit="of the time",
    ),
)  # fmt: skip
