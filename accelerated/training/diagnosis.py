"""Find the first layer whose output is not finite, by running the failing batch block by block.

All weights after the first m blocks are set to 0. The residual stream then passes the later blocks unchanged, so the
logits are those of a model with m blocks. The smallest m with logits that are not finite is the number of the failing
block. If all logits are finite, the gradient is checked from the last block to the first.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from routelaws.reference.configuration import ModelConfig

from ..transformer import Loss, loss
from .configuration import TrainConfig
from .step import RunInputs, compute_dtype, drawn, highest_loss, run_inputs


def failing_layer(config: TrainConfig, table: np.ndarray | None, params: dict, windows: np.ndarray, number: int) -> str:
    """Describe the first part of the model whose activations or gradients are not finite.

    Args:
        table: the hash table; None for other routers.
        windows: [b, S + 1], the failing batch.
        number: number of the step, from 0.
    """
    wrong = _first_bad(params)
    if wrong:
        return f"before this step the weights {wrong} were not finite"
    forward = functools.partial(_forward, config, windows=windows, number=number, given=run_inputs(config, table))
    return _bad_activations(config.model, params, forward) or _bad_gradient(config.model, params, forward)


def _bad_activations(model: ModelConfig, params: dict, forward: Callable) -> str | None:
    @jax.jit
    def finite(params, blocks):
        return jnp.isfinite(forward(first_blocks(params, model, blocks)).output.logits).all()

    for blocks in range(model.blocks + 1):
        if not finite(params, blocks):
            return f"the first non-finite activations are in {_name(blocks, model)}"
    return None


def _bad_gradient(model: ModelConfig, params: dict, forward: Callable) -> str:
    def total_and_result(params):
        result = forward(params)
        return result.total, result

    (total, result), gradient = jax.jit(jax.value_and_grad(total_and_result, has_aux=True))(params)
    of_routers = np.flatnonzero(~np.isfinite(np.asarray(result.output.auxiliary)))
    if len(of_routers):
        return f"the router loss of block {special_blocks(model)[of_routers[0]] + 1} is not finite"
    norms = _norms_of_blocks(gradient, model)
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        return f"in the backward pass, the first non-finite gradient is in {_name(bad[-1], model)}"
    wrong = _first_bad(gradient)
    if wrong:
        return f"the gradient of {wrong} is not finite"
    if not np.isfinite(total):
        return "all activations are finite, but the loss is not"
    largest = int(np.argmax(norms))
    return f"everything is finite; the largest gradient is in {_name(largest, model)}, norm {norms[largest]:.3g}"


def _forward(config: TrainConfig, params: dict, *, windows: np.ndarray, number: int, given: RunInputs) -> Loss:
    tokens, noise, hidden = drawn(config, windows, number, given)
    options = {"noise": noise, "table": given.table, "hidden": hidden, "compute_dtype": compute_dtype(config)}
    return loss(params, tokens, config.model, training=True, **options)


def special_blocks(model: ModelConfig) -> np.ndarray:
    """Return the indices of the routed (or wide) blocks, from 0."""
    return np.flatnonzero([model.is_routed(block) or model.is_wide(block) for block in range(model.blocks)])


def _blocks_of(model: ModelConfig) -> dict[str, np.ndarray]:
    """Return {part: block of each entry} for the parts of the parameter tree that are stacked by block."""
    special, everyone = special_blocks(model), np.arange(model.blocks)
    parts = {"blocks": everyone, "routed_ffn": special, "wide_ffn": special}
    return parts | {"dense_ffn": np.setdiff1d(everyone, special)}


def first_blocks(params: dict, model: ModelConfig, blocks) -> dict:
    """Return the parameters with 0 for all weights beyond the first `blocks` blocks. `blocks` may be traced."""
    cut = dict(params)
    for name, of in _blocks_of(model).items():
        if name in params:
            kept = jnp.asarray(of) < blocks

            def put(leaf, kept=kept):
                return jnp.where(kept.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))

            cut[name] = jax.tree.map(put, params[name])
    return cut


def _norms_of_blocks(gradient: dict, model: ModelConfig) -> np.ndarray:
    """Return the norms [L + 1] of the gradient. Entry 0 is for the weights outside the blocks, entry m for block m."""
    squares = np.zeros(model.blocks + 1)
    for name, part in gradient.items():
        if name not in _blocks_of(model):
            squares[0] += float(optax.tree.norm(part)) ** 2
            continue
        for leaf in jax.tree.leaves(part):
            by_entry = np.asarray(leaf, np.float64).reshape(len(leaf), -1)
            np.add.at(squares, _blocks_of(model)[name] + 1, (by_entry**2).sum(axis=1))
    return np.sqrt(squares)


def _first_bad(tree: dict) -> str | None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not bool(jnp.isfinite(leaf).all()):
            return "/".join(str(part.key) for part in path)
    return None


def _name(block: int, model: ModelConfig) -> str:
    return f"block {block} of {model.blocks}" if block else "the embedding"


def what_is_wrong(loss: float, added: float, norm: float, number: int, config: TrainConfig) -> str:
    at = f"at step {number:,}"
    if not math.isfinite(loss):
        return f"the training loss is {loss} {at}"
    if not math.isfinite(added):
        return f"the router loss is {added} {at}"
    if not math.isfinite(norm):
        return f"the norm of the gradient is {norm} {at}"
    return f"the training loss is {loss:.4g} {at}, above {highest_loss(config):.4g}, {config.loss_limit:g} ln V"
