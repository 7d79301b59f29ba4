"""One run from its first step, or from its last checkpoint, to its end.

    run folder/
        config.json        the resolved configuration
        tokenizer.model    what turns text into this model's tokens
        hash_table.npy     of a hash: from token id to experts
        log.jsonl          one line per compiled call and per evaluation
        results.csv        one row per evaluation
        validation_windows.csv   the last evaluation, window by window: see `window_losses`
        checkpoints/       the last two

A run that was killed goes on from its last whole checkpoint: weights, optimizer and position in the text. Rows and log
lines that were written after that checkpoint are dropped and written anew, so that nothing tells the two runs apart
but the time they took.
"""

import json
import math
import shutil
import time
from pathlib import Path

import jax
import numpy as np

from ..errors import InputError
from ..files import locked, make_folder, write_atomically
from .batches import TrainingBatches, training_batches, validation_batches, windows_of_text
from .checkpoints import Checkpoints
from .config import TrainConfig
from .hashing import hash_table_of
from .result_rows import read_rows, result_row, write_rows
from .run_folder import claim_folder, keep_hash_table, read_hash_table, read_log
from .step import TrainState, initial_state, make_evaluate, make_train_steps, open_layout
from .tokens import TokenFiles
from .watch import Watch, silent
from .weights import check_lender, check_params, load_params
from .window_losses import EvaluationText, mean_loss, window_losses, write_window_losses


class DivergedError(InputError):
    """The loss stopped being a finite number; the message says where and what to change."""


class Run:
    """One training run in a folder of its own.

    Args:
        config: what to train.
        folder: where it is kept; made if missing.
        tokens: the corpus, as tokens.
        hyper_id: number of the run in its sweep.
        watch: told what happens.

    Raises:
        InputError: the folder holds a run with another configuration, or the text is too small.
    """

    def __init__(self, config: TrainConfig, folder: Path, tokens: TokenFiles, hyper_id: int = 0, watch: Watch = silent):
        config.check()
        self.layout = open_layout(config)
        self.config, self.hyper_id, self.watch = config, hyper_id, watch
        self.batches, self.evaluation_sets = open_text(config, tokens)
        # A table that was built once stays: the experts were trained by it.
        kept = read_hash_table(folder)
        self.table = hash_table_of(config, tokens, tokens.tokenizer) if kept is None else kept
        if config.init_from is not None:
            check_params(config.init_from, jax.eval_shape(lambda: initial_state(config)).params)
            check_lender(Path(config.init_from), tokens.tokenizer, self.table)
        self.folder = make_folder(folder)
        claim_folder(self.folder, config)
        if not (self.folder / "tokenizer.model").exists():
            shutil.copyfile(tokens.tokenizer, self.folder / "tokenizer.model")
        if kept is None:
            keep_hash_table(self.table, self.folder)
        self.seconds = 0.0
        self.dropped = (0.0, 0)  # sum and number of steps since the last evaluation

    def train(self) -> list[dict]:
        """Train to the end and return the rows of the results table.

        Raises:
            DivergedError: the loss is no longer finite.
            InputError: every checkpoint is damaged.
        """
        with locked(self.folder, wait=True, holder="this run"):
            checkpoints = Checkpoints(self.folder / "checkpoints", lambda line: self.watch("say", line=line))
            try:
                step, state = self._start(checkpoints)
                if step < self.config.steps:
                    self._train_from(step, state, checkpoints)
            finally:
                checkpoints.close()
        return read_rows(self.folder / "results.csv")

    def _start(self, checkpoints: Checkpoints) -> tuple[int, TrainState]:
        """Return the step and the state to go on from, with log and table cut back to them."""
        state = initial_state(self.config, self.layout)
        if self.config.init_from is not None:
            state = state._replace(params=load_params(self.config.init_from, state.params, self.watch))
        restored = checkpoints.restore(state._asdict())
        step = 0
        if restored is not None:
            step, state = restored.step, TrainState(**restored.state)
            self.watch("say", line=f"{self.folder}: goes on at step {step:,} of {self.config.steps:,}")
            self.batches.set_state(restored.extra["position"])
            self.seconds = restored.extra["wall_seconds"]
            self.dropped = tuple(restored.extra["dropped"])
        self.rows = [row for row in read_rows(self.folder / "results.csv") if int(row["step"]) <= step]
        write_rows(self.folder / "results.csv", self.rows)
        lines = [line for line in read_log(self.folder / "log.jsonl") if line["step"] <= step]
        write_atomically(self.folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        return step, state

    def _train_from(self, step: int, state: TrainState, checkpoints: Checkpoints) -> None:
        config = self.config
        train_steps = make_train_steps(config, self.table, self.layout)
        evaluate = make_evaluate(config, self.table, layout=self.layout)
        evaluation_steps, checkpoint_steps = _stops(config)
        stops = sorted(evaluation_steps | checkpoint_steps)
        before, started = self.seconds, time.perf_counter()
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as self._log:
            while step < config.steps:
                stop = next(s for s in stops if s > step)
                n = min(config.steps_per_call, stop - step)
                call_started = time.perf_counter()
                state, metrics = train_steps(state, self.batches.stacked(n), step)
                step += n
                self._record_steps(step, n, metrics, call_started)
                self.seconds = before + time.perf_counter() - started
                if step in evaluation_steps:
                    self._record_evaluation(step, evaluate, state.params)
                if step in checkpoint_steps:
                    self.seconds = before + time.perf_counter() - started
                    checkpoints.save(step, state._asdict(), self._extra())

    def _extra(self) -> dict:
        """Return what a checkpoint has to hold beside the arrays."""
        position = self.batches.get_state()
        return {"position": position, "wall_seconds": self.seconds, "dropped": list(self.dropped)}

    def _record_steps(self, step: int, n: int, metrics, call_started: float) -> None:
        losses, added, norms, dropped = (np.asarray(leaf, np.float64) for leaf in metrics)  # waits for the call to end
        seconds = time.perf_counter() - call_started
        bad = np.flatnonzero(~np.isfinite(losses + added))
        if len(bad):
            first = step - n + 1 + int(bad[0])
            raise DivergedError(
                f"{self.folder}: the training loss is {(losses + added)[bad[0]]} at step {first}; "
                f"the learning rate {self.config.peak_learning_rate():.3g} may be too high"
            )
        self.dropped = (self.dropped[0] + float(dropped.sum()), self.dropped[1] + n)
        tokens = n * self.config.batch_size * self.config.sequence_length
        rate = tokens / seconds
        self._write_log(
            kind="train",
            step=step,
            loss=float(losses.mean()),
            auxiliary=float(added.mean()),
            gradient_norm=float(norms.mean()),
            dropped_fraction=float(dropped.mean()),
            tokens_per_second=round(rate),
        )
        self.watch("step", step=step, loss=float(losses[-1]), tokens_per_second=rate)

    def _record_evaluation(self, step: int, evaluate, params: dict) -> None:
        texts, objective = self.evaluation_sets, self.config.model.objective
        found = {name: evaluate(params, text.tokens) for name, text in texts.items()}
        by_window = {
            name: window_losses(texts[name], result.loss, result.counted, objective) for name, result in found.items()
        }
        losses = {name: mean_loss(result) for name, result in by_window.items()}
        if not math.isfinite(losses["validation"]):
            raise DivergedError(f"{self.folder}: the validation loss is {losses['validation']} at step {step}")
        load = np.asarray(found["validation"].load, np.float64)
        dropped = self.dropped[0] / max(1, self.dropped[1])
        self.dropped = (0.0, 0)
        self._write_log(kind="evaluation", step=step, **{f"loss_{k}": v for k, v in losses.items()}, load=load.tolist())
        validation = by_window["validation"]
        self.rows.append(result_row(self.config, self.hyper_id, step, losses, validation, dropped, load, self.seconds))
        write_window_losses(self.folder, validation)
        write_rows(self.folder / "results.csv", self.rows)
        self.watch("evaluation", step=step, loss=losses["validation"])

    def _write_log(self, **fields) -> None:
        self._log.write(json.dumps(fields) + "\n")
        self._log.flush()


def open_text(config: TrainConfig, tokens: TokenFiles) -> tuple[TrainingBatches, dict[str, EvaluationText]]:
    """Return the training batches of a run, and {name: windows} of what it is evaluated on.

    Raises:
        InputError: a text is missing or too small for the run.
    """
    sizes = {"sequence_length": config.sequence_length, "batch_size": config.batch_size}
    wanted = max(1, config.evaluation_tokens // (config.batch_size * config.sequence_length))
    batches = training_batches(tokens, **sizes, seed=config.seed)
    sets = {"validation": validation_batches(tokens, **sizes, num_batches=wanted)}
    for name, path in config.evaluation_sets().items():
        sets[name] = windows_of_text(path, tokens, **sizes, num_batches=wanted)
    return batches, sets


def _stops(config: TrainConfig) -> tuple[set[int], set[int]]:
    """Return the steps after which to evaluate, and those after which to save; the last step is in both.

    Evaluations fall on multiples of `steps_per_call`, so that every call but the last compiles to the same program.
    """
    call, steps = config.steps_per_call, config.steps
    calls = (math.floor(i * steps / config.evaluations / call + 0.5) for i in range(1, config.evaluations))
    evaluations = {max(1, number) * call for number in calls}
    evaluations = {step for step in evaluations if step < steps} | {steps}
    if config.checkpoint_every is None:
        return evaluations, evaluations
    return evaluations, set(range(config.checkpoint_every, steps, config.checkpoint_every)) | {steps}
