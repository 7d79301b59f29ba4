"""The command `routelaws train`: train one model, or resume a stopped run."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from ...errors import InputError
from ...files import exists
from ...results.planning.recipes import recipe_line, recipe_of
from ...training.configuration import TrainConfig
from ...training.devices import hosts
from ...training.devices.mesh import open_mesh, parse_mesh
from ...training.loop import Run
from ...training.runs.run_folder import read_config
from ...training.runs.trunk import Trunk
from ...training.sweeps.board import Board
from ...training.sweeps.workers import compute_where_called, keep_freed_memory
from ...training.text.corpus import read_corpus
from ...training.text.tokens import prepare_tokens
from ...training.watch import silent
from .. import flags
from ..flags import fields
from ..progress import LivePage, Progress
from ..run_flags import run_flags
from ..terminal import say


def main(arguments: list[str]) -> None:
    """Run `routelaws train`. The values of a --config file are the defaults of the other flags."""
    keep_freed_memory()
    branch = flags.value_of("--decay-from", arguments)
    Flags = run_flags(arguments, None if branch is None else fields_of_decay(Path(branch)))

    def train(
        *,
        out: Path,
        config: Path | None = None,
        decay_from: Path | None = None,
        at: int | None = None,
        tensorboard: bool = False,
        wandb: str | None = None,
        distributed: Literal["auto"] | None = None,
        coordinator: str | None = None,
        processes: int | None = None,
        process_id: int | None = None,
        recipe: str | None = None,
        run: Annotated[Flags, fields(Flags)] = Flags(),  # noqa: B008
    ) -> None:
        """Train one model.

        Args:
            out: Folder of the run. If it holds a stopped run, that run resumes. After 10 seconds of training,
                OUT/report.html shows the run and loads itself again (with the extra laws).
            config: TOML file with fields of the run, or the name of a design: deepseek-v3, deepseek-v4, gpt-oss,
                longcat-flash, mixtral, nemotron-3, olmoe or qwen3. Other flags override it.
            decay_from: Folder of another run (the trunk) with schedule constant or wsd. This run starts from the
                trunk's checkpoint of step --at, and its learning rate decays from there. The schedule becomes wsd, and
                --steps is chosen so that the decay starts at step --at. All other settings are the trunk's. Other flags
                override these settings.
            at: With --decay-from: the step of the trunk's checkpoint.
            tensorboard: Also write the log for TensorBoard, in OUT/tensorboard.
            wandb: Also send the log to this project of Weights & Biases, by its package.
            distributed: Train one run on many hosts. The launcher (SLURM, Open MPI, a TPU pod) numbers the processes.
            coordinator: Without a launcher: HOST:PORT of process 0.
            processes: Without a launcher: the number of processes.
            process_id: Without a launcher: the number of this process, from 0.
            recipe: Recipe of the peak learning rate without --learning-rate: step-law, ours, tian, joint or marin. If
                not given: the recipe whose range holds the run or is nearest, see `routelaws recipe`.
            run: The run.
        """
        trunk = _trunk(decay_from, at)
        if trunk is not None and flags.value_of("--steps", arguments) is None:
            run = dataclasses.replace(run, steps=math.ceil(round(trunk.step / max(1 - run.decay, 1e-9), 6)))
        chosen, lines = run.run(), ()
        if recipe is None and chosen.learning_rate is None and exists(out / "config.json"):  # a resumed run
            chosen = dataclasses.replace(chosen, learning_rate=read_config(out).learning_rate)
        elif trunk is None or recipe is not None:  # a decay goes on at the rate of its trunk
            [chosen], lines = with_rates([chosen], recipe)
        others = hosts.hosts_of(distributed, coordinator, processes, process_id)
        if chosen.mesh is None:
            compute_where_called()
        with hosts.joined(others):
            run_of(chosen, out, boards_of(tensorboard, wandb), trunk, lines)

    flags.run(train, "train", arguments)


def with_rates(runs: Sequence[TrainConfig], name: str | None) -> tuple[list[TrainConfig], tuple[str, ...]]:
    """Return runs with the peak learning rate of one recipe where they state none, and lines that say which.

    Runs by the recipe `ours` stay as they are, because it is the default of a run in files and in Python.

    Args:
        runs: the runs of one command.
        name: a recipe; None for the recipe that holds for these runs.

    Raises:
        InputError: the recipe is unknown, or every run states its rate.
    """
    open_runs = [run for run in runs if run.learning_rate is None]
    if not open_runs:
        flags.refuse({"recipe": name}, "every run has a learning rate; leave one of them out")
        return list(runs), ()
    settings = [run.setting() for run in open_runs]
    recipe, ends = recipe_of(name, settings), dict.fromkeys([min(settings), max(settings)])
    lines = tuple(recipe_line(recipe, setting) for setting in ends)
    if recipe.name == "ours":
        return list(runs), lines
    rated = (
        dataclasses.replace(run, learning_rate=recipe.rate(run.setting())) if run.learning_rate is None else run
        for run in runs
    )
    return list(rated), lines


def fields_of_decay(folder: Path) -> dict:
    """Return the fields of a run that decays from a trunk, except steps.

    Raises:
        InputError: the folder has no run, or its run has no stable phase.
    """
    trunk = read_config(folder)
    if trunk.schedule == "cosine":
        raise InputError(f"--decay-from {folder}: its schedule is cosine; name a run with --schedule constant or wsd")
    return trunk.fields() | {"schedule": "wsd"}


def _trunk(decay_from: Path | None, at: int | None) -> Trunk | None:
    if (decay_from is None) != (at is None):
        flag, missing = ("--at", "--decay-from RUN") if decay_from is None else ("--decay-from", "--at STEP")
        raise InputError(f"{flag}: {missing} is missing")
    if at is not None and at < 1:
        raise InputError(f"--at {at} is out of range; use the step of a checkpoint of --decay-from")
    return None if decay_from is None else Trunk(decay_from, at)


def boards_of(tensorboard: bool, wandb: str | None) -> list[str | None]:
    """Return the projects of Weights & Biases that get the log; None stands for TensorBoard."""
    return [None] * tensorboard + [wandb] * (wandb is not None and hosts.is_writer())


def run_of(
    config: TrainConfig, out: Path, boards: Sequence = (), trunk: Trunk | None = None, lines: tuple[str, ...] = ()
) -> None:
    """Train one model in the folder `out`, with progress and `lines` on standard error, and print its final loss.

    Args:
        boards: where else to write the log (see `boards_of`).
    """
    if config.mesh is not None:  # print this before reading the text
        open_mesh(parse_mesh(config.mesh), config.mesh)
    corpus = read_corpus(config.corpus or None)

    def write(blocks: list, runs: list, refresh: float | None) -> None:
        from ...inspection.run_page import write_live_page

        write_live_page(out, {out: config}, blocks, refresh)

    with Progress([config], page=LivePage(write)) as shown, hosts.own_folder(out) as folder:
        watch = shown if hosts.is_writer() else silent
        for project in boards:
            watch = Board(watch, {0: (folder, config)}, project)
        for line in (*lines, corpus.summary()):
            watch("say", line=line)
        with hosts.writer_first("tokens"):
            tokens = prepare_tokens(corpus, config.model.vocab_size, tell=lambda line: watch("say", line=line))
        tell = lambda kind, **rest: watch(kind, run=0, **rest)  # noqa: E731
        run = Run(config, folder, tokens, watch=tell, checkpoints=out / "checkpoints", trunk=trunk)
        watch("start", run=0)
        rows = run.train()
        watch("finished", run=0)
    if not hosts.is_writer():
        return
    last = rows[-1]
    loss = float(last["loss_validation"])
    say(f"{out}: {config.name()}, step {last['step']}: validation loss {loss:.4f} nats per token")
