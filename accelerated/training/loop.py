"""One run from its first step, or from its last checkpoint, to its end.

    run folder/
        config.json        the resolved configuration
        tokenizer.model    the tokenizer of this model
        hash_table.npy     for a hash: the experts of each token id
        log.jsonl          one line per compiled call and per evaluation
        results.csv        one row per evaluation
        validation_windows.csv   the last evaluation, window by window: see `window_losses`
        record.json        digests of these files, written after them: see `record`
        checkpoints/       the last two, or the choice of `keep_last` and `keep_every`

Small checkpoints are written during training. The last row is written after the last checkpoint is complete. A killed
run resumes from its last complete checkpoint: weights, optimizer state and position in the text. It drops rows and log
lines after this checkpoint and writes them again. So a resumed run differs from an uninterrupted run only in its times.
Earlier rows and lines must be unchanged. If the loss or gradient of a batch is not finite, no weight changes: the run
stops, or skips the batch if allowed.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from ..errors import InputError
from ..files import locked, make_folder, remove_left, storage_errors, write_atomically
from . import stopping
from .configuration import TrainConfig
from .devices import hosts
from .diagnosis import failing_layer, what_is_wrong
from .optimizer import check_memory
from .router_report import report_routing
from .runs.checkpoints import Checkpoints, Restored
from .runs.record import Record, digest, digest_of_table, read_record, record_in, write_record
from .runs.result_rows import as_text, result_row, write_rows
from .runs.run_folder import (
    WINDOWS,
    Kept,
    LogWriter,
    check_files,
    check_folder,
    check_untrained,
    claim_folder,
    keep_hash_table,
    keep_tokenizer,
    kept_files,
    read_results,
)
from .runs.trunk import Trunk, begin, check_growth, check_trunk
from .runs.weights import check_lender, check_params, lent
from .step import (
    StepMetrics,
    TrainState,
    attention_of,
    compile_first_call,
    initial_state,
    make_evaluate,
    make_train_steps,
    open_layout,
    state_shapes,
    wait_for,
)
from .sweeps.workers import separate_memory
from .text.hashing import table_of_run
from .text.texts import check_text, open_text
from .text.tokens import TokenFiles
from .watch import Watch, silent
from .window_losses import WindowRows, as_csv, mean_loss

ANOTHER_OUT = "choose another --out to train on the new one"

GRACE = 5.0
"""Seconds to wait for another process that trains the same run; a worker of a killed sweep ends sooner."""


class DivergedError(InputError):
    """Raised if a loss or gradient is not finite, or the loss has exploded. It names the layer and the remedy."""


class Run:
    """One training run in its folder.

    Args:
        checkpoints: folder of the checkpoints if several processes share it (see `hosts`); None for one process.
        trunk: the step of another run at which this run begins; None for step 0.
        keep: steps with checkpoints that are never removed, because other runs begin there.

    Raises:
        InputError: the folder holds a run with another configuration, the text is too small, several processes have no
            mesh, or the run does not fit its trunk.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        tokens: TokenFiles,
        hyper_id: int = 0,
        watch: Watch = silent,
        checkpoints: Path | None = None,
        trunk: Trunk | None = None,
        keep: Sequence[int] = (),
    ):
        config.check()
        before = check_folder(folder, config)
        self.layout = open_layout(config)
        if self.layout is None:
            check_memory(config)
        self.config, self.hyper_id, self.watch = config, hyper_id, watch
        self.checkpoints = Path(folder) / "checkpoints" if checkpoints is None else checkpoints
        self.evaluation_steps, saved = _stops(config)
        self.checkpoint_steps = saved | set(keep)
        self.keep, self.trunk, self.branched_off = keep, trunk, ""  # the last is the cell of the table
        if before is not None and before.steps != config.steps:
            check_growth(folder, before, config, self._saved().steps())
        self._open_texts(folder, tokens)
        self.table = table_of_run(config, tokens, folder, trained=bool(self._saved().steps()))
        self._check_origins(tokens.tokenizer)
        self._claim(folder, tokens.tokenizer)
        self.digests = digest(tokens.tokenizer.read_bytes()), digest_of_table(self.table)
        self.log = LogWriter(self.folder / "log.jsonl")
        self.rows: list[dict[str, str]] = []
        self.windows: list[str] = []  # digests, see `record`
        self.window_rows: dict[str, WindowRows] = {}
        self.seconds = 0.0
        self.initial_tokens = 0  # training tokens of the initial weights
        self.skipped = 0  # batches
        self.dropped = (0.0, 0)  # sum and number of steps since the last evaluation

    def _open_texts(self, folder: Path, tokens: TokenFiles) -> None:
        note = attention_of(self.config).note
        if note:
            self._tell(f"{folder}: {note}")
        self.own_rows, self.unique_tokens = self._own_rows(), tokens.train_tokens
        self.batches, self.evaluation_sets = open_text(self.config, tokens, self.own_rows)
        recorded = self._recorded_texts(folder)
        self.texts = check_text(folder, recorded, tokens, self.evaluation_sets, self.config, ANOTHER_OUT)

    def _check_origins(self, tokenizer: Path) -> None:
        if self.trunk is not None and not self._saved().steps():
            check_trunk(self.trunk, self.config)
            check_lender(self.trunk.folder, tokenizer, self.table)
        if self.config.init_from is not None:
            check_params(self.config)
            check_lender(Path(self.config.init_from), tokenizer, self.table)

    def _claim(self, folder: Path, tokenizer: Path) -> None:
        """Make the folder and write the files that do not change."""
        self.folder = make_folder(folder)
        with storage_errors(self.folder):
            claim_folder(self.folder, self.config)
            keep_tokenizer(tokenizer, self.folder)
            keep_hash_table(self.table, self.folder)

    def train(self) -> list[dict]:
        """Train to the end and return the rows of the results table.

        Raises:
            DivergedError: a loss or gradient is not finite, or the loss exploded.
            InputError: every checkpoint is damaged, or another process trains this run.
            StorageError: the disk is full, the folder is read-only, or a file is missing.
            Resumable: the process was asked to stop and has saved a checkpoint.
        """
        running = locked(self.folder, wait=GRACE, holder="another training of this run")
        with storage_errors(self.folder), running:
            claim_folder(self.folder, self.config)
            remove_left(self.folder)
            checkpoints = self._saved()
            try:
                step, state = self._start(checkpoints)
                if step < self.config.steps or self._row_is_missing(step):
                    with stopping.held():
                        self._train_from(step, state, checkpoints)
            finally:
                self.log.close()
                checkpoints.close()
        return read_results(self.folder)[0]

    @separate_memory()
    def _start(self, checkpoints: Checkpoints) -> tuple[int, TrainState]:
        """Return the step and the state to resume from, after cutting log and table back to that step."""
        like, state = state_shapes(self.config, self.layout)._asdict(), None
        if not checkpoints.steps() and self.trunk is None:  # two states at once would be the peak of a resumed run
            if self.layout is None:
                compile_first_call(self.config, self.table, self._steps_of_call(0))
            if self.config.init_from is None:
                state = initial_state(self.config, self.layout)
            else:
                state, self.initial_tokens = lent(self.config, self.layout, self.watch)
        restored = checkpoints.restore(like, self._check_saved)
        begun = restored or (self.trunk and begin(self.trunk, self.config, like, self._tell))
        step = begun.step if begun else 0
        if begun:
            state = TrainState(**begun.state)
            self._go_on(begun, "resumes at" if restored else f"branches off {self.trunk.folder} at")
        kept = self._kept(step, record_in(restored.extra) if restored else None)
        self.rows, self.windows = list(kept.rows), list(kept.windows)
        self.log = LogWriter(self.folder / "log.jsonl", kept.log)
        self._write_table()
        self.log.begin()  # last: a log may have more lines than the record
        gc.collect()  # JAX keeps the arrays of NumPy that it copied until a collection
        return step, state

    def _go_on(self, begun: Restored, how: str) -> None:
        step, steps = begun.step, self.config.steps
        if "position" not in begun.extra:
            folder = self.trunk.folder if self.trunk else self.folder
            raise InputError(
                f"{folder}: has converted weights and no training to resume; use --init-from {folder} and another --out"
            )
        self._tell(f"{self.folder}: {how if step < steps else 'is finished, at'} step {step:,} of {steps:,}")
        self.batches.set_state(begun.extra["position"])
        self.seconds = begun.extra["wall_seconds"]
        self.dropped = tuple(begun.extra["dropped"])
        self.skipped = begun.extra["skipped"]
        self.branched_off = begun.extra["trunk"]
        self.initial_tokens = begun.extra["initial_tokens"]

    def _check_saved(self, step: int, extra: dict) -> None:
        check_files(self.folder, self.config, record_in(extra), f"the checkpoint of step {step:,}")

    def _kept(self, step: int, record: Record | None) -> Kept:
        if record is not None:
            return kept_files(self.folder, record, step, self.config.steps, self._tell)
        check_untrained(self.folder, self.config.steps, {stop for stop in self.checkpoint_steps if stop > step})
        if (self.folder / "log.jsonl").exists():
            self._tell(f"{self.folder}: the run stopped before its first checkpoint; it starts from step {step:,}")
        return Kept([], [], b"")

    def _record(self) -> Record:
        static = self.config.plain(), *self.digests, self.texts
        rows, windows = list(self.rows), list(self.windows)  # a checkpoint is written while these grow
        return Record(*static, rows, windows, self.log.mark())

    def _row_is_missing(self, step: int) -> bool:
        return step in self.evaluation_steps and not any(int(row["step"]) == step for row in self.rows)

    def _train_from(self, step: int, state: TrainState, checkpoints: Checkpoints) -> None:
        config = self.config
        train_steps = make_train_steps(config, self.table, self.layout)
        evaluate = make_evaluate(config, self.table, layout=self.layout)
        evaluation_steps, checkpoint_steps = self.evaluation_steps, self.checkpoint_steps
        before, started, saved = self.seconds, time.perf_counter(), step
        if self._row_is_missing(step):
            self._evaluate(step, evaluate, state.params, checkpoints)
        while step < config.steps:
            if hosts.asked_anywhere(stopping.asked()):
                self._stop(step, saved, state, checkpoints)
            n = self._steps_of_call(step)
            state = self._take(n, step, state, train_steps, checkpoints)
            step += n
            self.seconds = before + time.perf_counter() - started
            if step in evaluation_steps:
                self._evaluate(step, evaluate, state.params, checkpoints)
                if step < config.steps:
                    self._publish()
            self.seconds = before + time.perf_counter() - started
            if step in checkpoint_steps:
                saved = self._save(step, state, checkpoints)
        checkpoints.wait()  # the last row marks the run as finished, so its weights must be complete
        self._publish()

    def _steps_of_call(self, step: int) -> int:
        stop = min(s for s in self.evaluation_steps | self.checkpoint_steps if s > step)
        return min(self.config.steps_per_call, stop - step)

    def _take(self, n: int, step: int, state: TrainState, train_steps: Callable, checkpoints: Checkpoints):
        started = time.perf_counter()
        batches = self._batches(n)
        left = self.config.skip_bad_batches - self.skipped
        state, metrics = train_steps(state, batches, step, left)
        if step + n < self.config.steps:
            self.batches.read_ahead(self.config.steps_per_call)  # do this while the devices compute
        wait_for(metrics, started)
        self._look_for_bad(step, batches, metrics, state.params, checkpoints)
        self._record_steps(step + n, n, metrics, started)
        return state

    def _saved(self) -> Checkpoints:
        config = self.config
        kept = {"keep_last": config.keep_last, "keep_every": config.keep_every, "keep": self.keep}
        return Checkpoints(self.checkpoints, self._tell, **kept)

    def _recorded_texts(self, folder: Path) -> dict[str, str]:
        """Return the recorded digests of the run's texts; {} for a new run."""
        saved = self._saved().beside()
        if saved is not None:
            return record_in(saved).texts
        record = read_record(folder)
        return record.texts if record else {}

    def _own_rows(self) -> np.ndarray | None:
        """Return which sequences of a batch this process reads; None for all."""
        if jax.process_count() == 1:
            return None
        if self.layout is None:
            raise InputError(
                f"mesh is not given; {jax.process_count()} processes need one, such as data={jax.device_count()}"
            )
        return hosts.own_rows(self.layout.rows(), self._shape_of_batches(1))

    def _shape_of_batches(self, n: int) -> tuple[int, int, int]:
        return n, self.config.batch_size, self.config.sequence_length + 1

    def _batches(self, n: int):
        rows = self.batches.stacked(n)
        if self.own_rows is None:
            return rows
        return hosts.batch_of_all(rows, self.own_rows, self.layout.rows(), self._shape_of_batches(n))

    def _stop(self, step: int, saved: int, state: TrainState, checkpoints: Checkpoints) -> None:
        if step > saved:
            self._save(step, state, checkpoints)
        checkpoints.wait()
        raise stopping.Resumable(
            f"{self.folder}: stopped after step {step:,} of {self.config.steps:,}; repeat the command to resume"
        )

    @separate_memory()
    def _save(self, step: int, state: TrainState, checkpoints: Checkpoints) -> int:
        checkpoints.save(step, state._asdict(), self._extra())
        return step

    def _extra(self) -> dict:
        position = self.batches.get_state()
        counted = {"dropped": list(self.dropped), "skipped": self.skipped, "trunk": self.branched_off}
        counted["initial_tokens"] = self.initial_tokens
        return {"position": position, "wall_seconds": self.seconds, **counted, "record": self._record().plain()}

    def _look_for_bad(
        self, step: int, batches: np.ndarray, metrics: StepMetrics, params: dict, checkpoints: Checkpoints
    ) -> None:
        """Count and report the skipped batches.

        Raises:
            DivergedError: more batches than allowed are bad; the message names the step and the layer.
        """
        bad = np.flatnonzero(np.asarray(metrics.bad))
        allowed = self.config.skip_bad_batches
        for place in map(int, bad):
            numbers = (float(np.asarray(leaf)[place]) for leaf in metrics[:3])
            wrong = what_is_wrong(*numbers, step + 1 + place, self.config)
            if self.skipped == allowed:
                layer = self._failing_layer(params, batches[place], step + place)
                raise DivergedError(self._diverged(f"{wrong}; {layer}", checkpoints))
            self.skipped += 1
            self.log.write(kind="skipped", step=step + 1 + place, reason=wrong)
            self._tell(f"{self.folder}: {wrong}; the batch is skipped, {self.skipped} of at most {allowed}")

    def _failing_layer(self, params: dict, windows: np.ndarray, number: int) -> str:
        try:
            return failing_layer(self.config, self.table, params, windows, number)
        except Exception as error:  # such as too little memory for a pass without the step's fusions
            return f"the layer could not be found ({type(error).__name__})"

    def _diverged(self, what: str, checkpoints: Checkpoints) -> str:
        checkpoints.wait()
        left = next((f"the last good checkpoint is at step {step:,}" for step in checkpoints.steps()), None)
        rate = f"the learning rate {self.config.peak_learning_rate():.3g} may be too high: use a lower one"
        more = f"or skip the batch with --skip-bad-batches {self.skipped + 1} of routelaws train"
        return f"{self.folder}: {what}; {left or 'there is no checkpoint yet'}; {rate} and another --out, {more}"

    def _record_steps(self, step: int, n: int, metrics: StepMetrics, call_started: float) -> None:
        taken = ~np.asarray(metrics.bad)
        losses, added, norms, dropped = (np.asarray(leaf, np.float64)[taken] for leaf in metrics[:4])
        seconds = time.perf_counter() - call_started
        if not len(losses):
            return
        self.dropped = (self.dropped[0] + float(dropped.sum()), self.dropped[1] + len(dropped))
        tokens = n * self.config.batch_size * self.config.sequence_length
        rate = tokens / seconds
        self.log.write(
            kind="train",
            step=step,
            loss=float(losses.mean()),
            auxiliary=float(added.mean()),
            gradient_norm=float(norms.mean()),
            dropped_fraction=float(dropped.mean()),
            tokens_per_second=round(rate),
        )
        self.watch("step", step=step, loss=float(losses[-1]), tokens_per_second=rate)

    @separate_memory()
    def _evaluate(self, step: int, evaluate, params: dict, checkpoints: Checkpoints) -> None:
        evaluations = {name: hosts.whole(evaluate(params, text.tokens)) for name, text in self.evaluation_sets.items()}
        by_window = {
            name: self._rows_of(name, result.counted).sums(result.loss) for name, result in evaluations.items()
        }
        losses = {name: mean_loss(result) for name, result in by_window.items()}
        if not math.isfinite(losses["validation"]):
            what = f"the validation loss is {losses['validation']} at step {step:,}"
            raise DivergedError(self._diverged(what, checkpoints))
        load = np.asarray(evaluations["validation"].load, np.float64)
        last = step == self.config.steps
        learned = self._report_routing(evaluate, params, losses["validation"]) if last else None
        more = {"learned": learned, "unique_tokens": self.unique_tokens, "trunk": self.branched_off}
        more["initial_tokens"] = self.initial_tokens
        dropped, self.dropped = self.dropped[0] / max(1, self.dropped[1]), (0.0, 0)
        self.log.write(kind="evaluation", step=step, **{f"loss_{k}": v for k, v in losses.items()}, load=load.tolist())
        loss_of = losses, by_window["validation"]
        row = result_row(self.config, self.hyper_id, step, *loss_of, dropped, load, self.seconds, **more)
        windows = as_csv(by_window["validation"])
        self.rows.append(as_text(row))
        self.windows.append(digest(windows.encode()))
        write_atomically(self.folder / WINDOWS, windows)

    @separate_memory()
    def _report_routing(self, evaluate, params: dict, loss: float) -> dict[str, float] | None:
        """Log the diagnostics of the routers and return them by column. Report routers that have not learned.

        Return None for a dense model or a run on a mesh.
        """
        if self.layout is not None or not self.config.model.num_routed:
            return None
        text = self.evaluation_sets["validation"]

        @separate_memory()
        def loss_ratio(changed: dict) -> float:
            result = evaluate(changed, text.tokens)
            return mean_loss(self._rows_of("validation", result.counted).sums(result.loss)) / loss

        report = report_routing(self.config, params, self.table, text.tokens, loss_ratio)
        self.log.write(kind="routing", step=self.config.steps, **report._asdict())
        if verdict := report.verdict():
            self._tell(f"{self.folder}: {verdict}")
        return report.columns()

    def _write_table(self) -> None:
        write_rows(self.folder / "results.csv", self.rows)
        write_record(self.folder, self._record())  # after the files that it describes

    def _publish(self) -> None:
        self._write_table()
        last = self.rows[-1]
        self.watch("evaluation", step=int(last["step"]), loss=float(last["loss_validation"]))

    def _rows_of(self, name: str, counted: np.ndarray) -> WindowRows:
        """Return the `WindowRows` of a text. Reuse the rows of the previous evaluation if they match."""
        rows = self.window_rows.get(name)
        if rows is None or not rows.fit(counted):
            rows = self.window_rows[name] = WindowRows(self.evaluation_sets[name], counted, self.config.model.objective)
        return rows

    def _tell(self, line: str) -> None:
        self.watch("say", line=line)


def _stops(config: TrainConfig) -> tuple[set[int], set[int]]:
    """Return the steps with an evaluation and the steps with a checkpoint; both include the last step.

    Evaluations fall on multiples of `steps_per_call`, so that they do not shorten a call. A shorter call would need
    another compiled program.
    """
    call, steps = config.steps_per_call, config.steps
    times = min(config.evaluations, steps)  # further evaluations would fall on the same steps
    calls = (math.floor(i * steps / times / call + 0.5) for i in range(1, times))
    evaluations = {max(1, number) * call for number in calls}
    evaluations = {step for step in evaluations if step < steps} | {steps}
    if config.checkpoint_every is None:
        return evaluations, evaluations
    return evaluations, set(range(config.checkpoint_every, steps, config.checkpoint_every)) | {steps}
