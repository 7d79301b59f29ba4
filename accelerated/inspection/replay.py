"""The loss of a run with the experts and gates, or only the experts, of a stored routing.

The routing is a file from `routelaws inspect --out` or another program.
"""

import functools
from pathlib import Path

import jax
import numpy as np

from ..errors import InputError
from ..files import opened
from ..notation import Routing
from ..routed_block import Replay
from ..training.configuration import TrainConfig
from ..training.runs.weights import SavedRun, load_run
from ..training.step import compute_dtype
from ..training.watch import telling
from ..transformer import loss
from .own_run import windows_of

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
    shape, gate = (model.num_routed, token.size, model.choices), stored.get("gate", np.zeros(expert.shape))
    if token.ndim != 1 or token.size < 2 or expert.shape != shape or gate.shape != shape:
        raise InputError(
            f"{path}: has tokens, experts and gates of shapes {token.shape}, {expert.shape} and {gate.shape}; the run "
            f"needs two or more tokens, and experts and gates {shape}; use the file of a run with this shape"
        )
    for name, values, count in (("token", token, model.vocab_size), ("expert", expert, model.choosable)):
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= count:
            raise InputError(
                f"{path}: {name} has other {values.dtype} values than the run, which has 0 to {count - 1}; use the "
                "file of a run with this shape"
            )
    if gate.dtype.kind not in "fiu" or not np.isfinite(gate).all():
        raise InputError(f"{path}: a gate is not finite; record the routing again")
    if not np.diff(np.sort(expert, axis=2), axis=2).all():
        raise InputError(f"{path}: a token has an expert twice; record the routing again")
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


def replay(folder: Path, path: Path, tell=print) -> dict:
    """Return the loss of the last checkpoint of a run on the tokens of a stored routing.

    Args:
        path: a file from `routelaws inspect --out`, for this run or another run with the same tokens and shapes. Its
            last token may have no route.

    Returns:
        {"loss": with the stored routing, "loss_own": with the run's own routing, both nats per token; "tokens": number
        of predicted tokens; "gates": whether the file has gates}.

    Raises:
        InputError: the folder has no run, or the routing does not fit the run.
    """
    run, stored = load_run(folder, telling(tell)), read_routing(path)
    for name in ("expert", "gate"):
        if name in stored and stored[name].ndim == 3 and stored[name].shape[1] == stored["token"].size - 1:
            # A generated last token was never routed. It is only a target here, so any row will do.
            stored[name] = np.concatenate([stored[name], stored[name][:, :1]], axis=1)
    check_routing(path, stored, run.config)
    if "gate" not in stored:
        tell(f"{path}: {NO_GATES}")
    return {**replayed(run, stored["token"], stored["expert"], stored.get("gate")), "gates": "gate" in stored}


def replayed(run: SavedRun, token: np.ndarray, expert: np.ndarray, gate: np.ndarray | None) -> dict:
    """Return the losses of a run on T tokens. `expert` and `gate` are [n_r, T, k]. `gate` may be None."""
    windows, counted = windows_of(run.config, token, targets=True)
    held = held_routing(run.config, expert, gate, counted.shape)
    held, sums = held if gate is None else Replay(held), np.zeros(2)
    for i, mask in enumerate(counted):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], held)
        losses = _losses(run.config, run.params, run.table, windows[i], mask, own)
        sums += np.array(losses, np.float64) * mask.sum()
    return {"loss": sums[0] / counted.sum(), "loss_own": sums[1] / counted.sum(), "tokens": int(counted.sum())}


@functools.partial(jax.jit, static_argnums=0)
def _losses(config: TrainConfig, params, table, tokens, mask, held) -> list[jax.Array]:
    """Return the losses of a batch with the held routing, and with the run's own."""
    options = {"training": False, "table": table, "mask": mask, "compute_dtype": compute_dtype(config)}
    return [loss(params, tokens, config.model, held=of, **options).cross_entropy for of in (held, None)]
