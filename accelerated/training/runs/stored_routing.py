"""A stored routing for a run: a file from `routelaws inspect --out` or another program.

The flag `--routing` replays the routing of the training batches of some steps. The file has one row for each input
token of these steps, batch by batch. Its column `step` is the number of the step, from 1. Without this column, the file
begins with the first token of step 1. The run uses the experts and the gates of the file. It also computes its own
gates for these experts and uses the gradient of its own gates, so the router learns. If the file has no gates, the run
uses its own gates.
"""

from pathlib import Path

import jax
import numpy as np

from ...errors import InputError
from ...files import opened, read_bytes
from ...notation import Routing
from ...routed_block import Replay
from ..configuration import TrainConfig
from ..text.batches import TrainingBatches
from .record import digest

NO_GATES = (
    "has experts but no gates; the run computes its own gates, so its losses differ from those of the recorded run"
)


def read_routing(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file from `routelaws inspect --out`, or of another file with `token` and `expert`.

    Raises:
        InputError: the file cannot be read, or lacks `token` or `expert`.
    """
    try:
        with opened(path) as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # NumPy's reader and zipfile raise many types
        raise InputError(f"{path}: is not an .npz file; write one with routelaws inspect --out") from error
    missing = [name for name in ("token", "expert") if name not in arrays]
    if missing:
        raise InputError(f"{path}: has no array {missing[0]!r}; write one with routelaws inspect --out")
    return arrays


def check_routing(path: Path, stored: dict[str, np.ndarray], config: TrainConfig) -> None:
    """Raise `InputError` if a stored routing does not fit a run."""
    model, token, expert = config.model, stored["token"], stored["expert"]
    if model.record.grouped or model.objective != "causal" or not model.num_routed:
        raise InputError("--routing is for causal models whose tokens choose experts; leave it out for this run")
    if model.sample_second and "gate" not in stored:
        raise InputError(f"{path}: has no gates, so the sampled second experts are unknown; use a file with gates")
    shape = (model.num_routed, len(token), model.choices)
    if token.ndim != 1 or len(token) < 2 or expert.shape != shape or stored.get("gate", expert).shape != shape:
        raise InputError(
            f"{path}: has experts of shape {expert.shape}; the run needs {shape}; use the file of a run with this shape"
        )
    for name, values, count in (("token", token, model.vocab_size), ("expert", expert, model.expert_count)):
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= count:
            raise InputError(
                f"{path}: {name} is out of range; the run has 0 to {count - 1}; use the file of a run with this shape"
            )
    wanted = np.arange(len(token)) % config.sequence_length
    if not np.array_equal(stored.get("position", wanted), wanted):
        raise InputError(f"{path}: its windows do not match; the run has {config.sequence_length} tokens per window")


def held_routing(config: TrainConfig, expert: np.ndarray, gate: np.ndarray | None, shape: tuple) -> Routing:
    """Return a stored routing in batches, NumPy arrays [n, n_r, T, ...], without plan and residual."""
    n, b, length = shape
    routed, tokens, choices = expert.shape

    def batched(values, fill):
        padded = np.broadcast_to(fill, (routed, n * b * length, choices)).copy()
        padded[:, :tokens] = values
        return np.moveaxis(padded.reshape(routed, n, b * length, choices), 1, 0)

    experts = config.model.expert_count
    chosen = batched(expert, np.arange(choices, dtype=np.int32))
    gates = batched(0 if gate is None else gate, np.zeros(choices, np.float32))
    counts = np.array([[np.bincount(block.ravel(), minlength=experts) for block in batch] for batch in chosen])
    zeros = np.broadcast_to(np.float32(0), (n, routed, b * length, experts))
    load = np.float32(counts.reshape(n, routed, experts) / (b * length * choices))
    return Routing(chosen, gates, load, zeros, np.zeros((n, routed), np.float32))


class StepsRouting:
    """The routing of the batches of the steps first, ..., last of a run.

    Attributes:
        first, last: steps, from 1
    """

    def __init__(self, path: Path, config: TrainConfig, batches: TrainingBatches):
        """Read a file.

        Raises:
            InputError: the file cannot be read, does not fit the run, or has other tokens than the batches.
        """
        stored = read_routing(path)
        check_routing(path, stored, config)
        per_step = config.batch_size * config.sequence_length
        step = stored.get("step", 1 + np.arange(len(stored["token"])) // per_step)
        self.first, self.last, self.digest = int(step[0]), int(step[-1]), digest(read_bytes(path))
        self.gates = "gate" in stored
        if not np.array_equal(step, np.repeat(np.arange(self.first, self.last + 1), per_step)) or self.first < 1:
            raise InputError(f"{path}: needs {per_step} tokens for each step of this run, in the order of the steps")
        if self.last > config.steps:
            raise InputError(f"{path}: ends with step {self.last}; the run has {config.steps}; use --steps {self.last}")
        _check_tokens(path, stored["token"], self.first, self.last, batches)
        shape = self.last - self.first + 1, config.batch_size, config.sequence_length
        self._held = held_routing(config, stored["expert"], stored.get("gate"), shape)

    def after(self, step: int, n: int) -> Routing | Replay | None:
        """Return the routing of the n steps after a step, [n, n_r, T, ...]; None if the file has no such steps."""
        if not self.first - 1 <= step < self.last:
            return None
        held = jax.tree.map(lambda leaf: leaf[step + 1 - self.first :][:n], self._held)
        return Replay(held) if self.gates else held


def _check_tokens(path: Path, token: np.ndarray, first: int, last: int, batches: TrainingBatches) -> None:
    position = batches.get_state()
    batches.set_state(position | {"next_batch": first - 1})
    windows = batches.stacked(last - first + 1)
    batches.set_state(position)
    wrong = np.flatnonzero((windows[..., :-1].reshape(len(windows), -1) != token.reshape(len(windows), -1)).any(axis=1))
    if wrong.size:
        raise InputError(
            f"{path}: has other tokens than the run in step {first + wrong[0]}; use the text, tokenizer, --seed, "
            "--batch-size and --sequence-length of the recorded run"
        )
