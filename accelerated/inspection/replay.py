"""The loss of a run on a text with a stored routing: its experts and its gates, or its experts alone."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InputError
from ..notation import Routing
from ..routed_block import Replay
from ..training.configuration import TrainConfig
from ..training.runs.weights import SavedRun, load_run
from ..training.step import compute_dtype
from ..training.watch import telling
from ..transformer import loss
from .own_run import windows_of
from .trace import read_trace


def replay(folder: Path, path: Path, tell=print) -> dict:
    """Return the loss of the last checkpoint of a run on the tokens of a stored routing.

    Args:
        folder: a run folder.
        path: of a file of `routelaws inspect --out`, of this run or of another with the same tokens and shapes.
        tell: called with a line on what is being done.

    Returns:
        {"loss": with the stored routing, "loss_own": with the run's own, both nats per token; "tokens": that were
        predicted; "gates": whether the file has gates}.

    Raises:
        InputError: no run there, or a routing that does not fit it.
    """
    run, stored = load_run(folder, telling(tell)), read_trace(path)
    _check(path, stored, run.config)
    if "gate" not in stored:
        tell(
            f"{path}: has experts and no gates; the run computes the gates, so its losses are not those of that routing"
        )
    return {**replayed(run, stored["token"], stored["expert"], stored.get("gate")), "gates": "gate" in stored}


def _check(path: Path, stored: dict[str, np.ndarray], config: TrainConfig) -> None:
    """Raise `InputError` where a stored routing does not fit a run."""
    model, token, expert = config.model, stored["token"], stored["expert"]
    if model.record.grouped or model.objective != "causal" or not model.num_routed:
        raise InputError("--routing is for causal models whose tokens choose experts; evaluate this run without it")
    shape = (model.num_routed, len(token), model.choices)
    if token.ndim != 1 or len(token) < 2 or expert.shape != shape or stored.get("gate", expert).shape != shape:
        raise InputError(
            f"{path}: has experts of shape {expert.shape}; the run needs {shape}; inspect a run of its shape"
        )
    for name, values, count in (("token", token, model.vocab_size), ("expert", expert, model.expert_count)):
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= count:
            raise InputError(
                f"{path}: {name} is out of range; the run has 0 to {count - 1}; inspect a run of its shape"
            )
    wanted = np.arange(len(token)) % config.sequence_length
    if not np.array_equal(stored.get("position", wanted), wanted):
        raise InputError(f"{path}: has other windows; the run has {config.sequence_length} tokens in a window")


def replayed(run: SavedRun, token: np.ndarray, expert: np.ndarray, gate: np.ndarray | None) -> dict:
    """Return the losses of a run on T tokens, see `replay`; `expert` and `gate` are [n_r, T, k], no gates if None."""
    windows, counted = windows_of(run.config, token, targets=True)
    held = _held(run.config, expert, gate, counted.shape)

    @jax.jit
    def both(params, table, tokens, mask, held):
        options = {"training": False, "table": table, "mask": mask, "compute_dtype": compute_dtype(run.config)}
        given = held if gate is None else Replay(held)
        return [loss(params, tokens, run.config.model, held=of, **options).cross_entropy for of in (given, None)]

    sums = np.zeros(2)
    for i, mask in enumerate(counted):
        losses = both(run.params, run.table, windows[i], mask, jax.tree.map(lambda leaf, i=i: leaf[i], held))
        sums += np.array(losses, np.float64) * mask.sum()
    return {"loss": sums[0] / counted.sum(), "loss_own": sums[1] / counted.sum(), "tokens": int(counted.sum())}


def _held(config: TrainConfig, expert: np.ndarray, gate: np.ndarray | None, shape: tuple) -> Routing:
    """Return a stored routing in batches, each field with axes [n, n_r, T, ...]; only experts and gates are used."""
    n, b, length = shape
    routed, tokens, choices = expert.shape

    def batched(values, fill):
        padded = np.broadcast_to(fill, (routed, n * b * length, choices)).copy()
        padded[:, :tokens] = values
        return jnp.asarray(np.moveaxis(padded.reshape(routed, n, b * length, choices), 1, 0))

    experts = config.model.expert_count
    chosen = batched(expert, np.arange(choices, dtype=np.int32))
    gates = batched(0 if gate is None else gate, np.zeros(choices, np.float32))
    zeros = jnp.zeros((n, routed, b * length, experts), np.float32)
    return Routing(chosen, gates, jnp.full((n, routed, experts), 1 / experts), zeros, jnp.zeros((n, routed)))
