"""The loss of a run with the experts and gates, or only the experts, of a stored routing."""

from pathlib import Path

import jax
import numpy as np

from ..routed_block import Replay
from ..training.runs.stored_routing import NO_GATES, check_routing, held_routing, read_routing
from ..training.runs.weights import SavedRun, load_run
from ..training.step import compute_dtype
from ..training.watch import telling
from ..transformer import loss
from .own_run import windows_of


def replay(folder: Path, path: Path, tell=print) -> dict:
    """Return the loss of the last checkpoint of a run on the tokens of a stored routing.

    Args:
        path: a file from `routelaws inspect --out`, for this run or another run with the same tokens and shapes.

    Returns:
        {"loss": with the stored routing, "loss_own": with the run's own routing, both nats per token; "tokens": number
        of predicted tokens; "gates": whether the file has gates}.

    Raises:
        InputError: the folder has no run, or the routing does not fit the run.
    """
    run, stored = load_run(folder, telling(tell)), read_routing(path)
    check_routing(path, stored, run.config)
    if "gate" not in stored:
        tell(f"{path}: {NO_GATES}")
    return {**replayed(run, stored["token"], stored["expert"], stored.get("gate")), "gates": "gate" in stored}


def replayed(run: SavedRun, token: np.ndarray, expert: np.ndarray, gate: np.ndarray | None) -> dict:
    """Return the losses of a run on T tokens. `expert` and `gate` are [n_r, T, k]. `gate` may be None."""
    windows, counted = windows_of(run.config, token, targets=True)
    held = held_routing(run.config, expert, gate, counted.shape)

    @jax.jit
    def both(params, table, tokens, mask, held):
        options = {"training": False, "table": table, "mask": mask, "compute_dtype": compute_dtype(run.config)}
        routing = held if gate is None else Replay(held)
        return [loss(params, tokens, run.config.model, held=of, **options).cross_entropy for of in (routing, None)]

    sums = np.zeros(2)
    for i, mask in enumerate(counted):
        losses = both(run.params, run.table, windows[i], mask, jax.tree.map(lambda leaf, i=i: leaf[i], held))
        sums += np.array(losses, np.float64) * mask.sum()
    return {"loss": sums[0] / counted.sum(), "loss_own": sums[1] / counted.sum(), "tokens": int(counted.sum())}
