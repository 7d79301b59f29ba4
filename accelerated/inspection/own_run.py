"""The routing of a text by a trained run: in evaluation with its logits, and again as in training.

The model returns no router logits, so this file computes them: logits are the product of the router's input and its
weights. To get the input of block m's router, remove the FFN of block m and all later blocks. Replace the final norm by
the norm that comes before the removed FFN. The last vectors of the model are then the input of the router.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.configuration import ModelConfig

from ..errors import InputError
from ..notation import ExpertChoice
from ..routed_block import CallOptions, _groups, _logits
from ..routers.mixture_of_tokens import mixing_weights
from ..training.configuration import TrainConfig
from ..training.diagnosis import first_blocks, special_blocks
from ..training.router_report import QUICK_COMPILE
from ..training.runs.weights import SavedRun, load_run
from ..training.step import EVALUATION_SEED, attention_of, compute_dtype, drawn, run_inputs
from ..training.text.batches import training_batches
from ..training.text.corpus import read_corpus
from ..training.text.texts import check_text
from ..training.text.tokenizer import END_OF_DOCUMENT
from ..training.text.tokens import TokenFiles, load_tokens, prepare_tokens
from ..training.watch import telling
from ..transformer import _run, apply, draw_noise, loss
from .trace import Trace, at_most, piece_of, read_text


def trace_folder(folder: Path, text: Path | None = None, *, tokens: int, tell=print) -> Trace:
    """Return the routing of a text by the last checkpoint of a run.

    Args:
        text: a file; None for the start of the run's validation text.
        tokens: largest number of tokens to route.

    Raises:
        InputError: the folder has no run or a dense run, or the text cannot be read or has changed since training.
    """
    run = load_run(folder, telling(tell))
    if not run.config.model.num_routed:
        raise InputError(f"{folder}: the model is dense and has no router; inspect a routed run")
    if text is not None:
        ids = [END_OF_DOCUMENT, *run.tokenizer.encode(read_text(text))]
        return trace_run(run, np.array(ids[:tokens], np.int32), str(folder))
    files = _tokens_of_run(folder, run, tell)
    start = np.array(load_tokens(files.validation, files.dtype)[:tokens], np.int32)
    return trace_run(run, start, str(folder))


def _tokens_of_run(folder: Path, run: SavedRun, tell) -> TokenFiles:
    files = prepare_tokens(read_corpus(run.config.corpus or None), run.config.model.vocab_size, tell=tell)
    check_text(folder, run.texts, files, {}, run.config, "inspect another with --text")
    return files


def _pieces_of(run: SavedRun, ids: np.ndarray) -> np.ndarray:
    pieces = {i: piece_of(run.tokenizer.content(i)) for i in np.unique(ids).tolist()}
    return np.array([pieces[i] for i in ids.tolist()])


def trace_run(run: SavedRun, ids: np.ndarray, name: str) -> Trace:
    """Return the routing of T token ids by a run.

    Args:
        ids: [T] integers, at least one.
    """
    model = run.config.model
    windows, real = windows_of(run.config, ids)
    batches = (windows, real, np.arange(len(windows)))
    results = _compiled(model, compute_dtype(run.config), bool(real.all()))(run.params, batches, run.table)
    expert, gate, logits, trained, dropped = (None if leaf is None else np.asarray(leaf) for leaf in results)
    shape = (*windows.shape, model.num_routed)
    kept = functools.partial(_of_tokens, shape=shape, real=real)
    sequence, position = np.divmod(np.flatnonzero(real), real.shape[2])
    expert, gate = at_most(kept(expert), kept(gate)) if model.router == "expert_choice" else (kept(expert), kept(gate))
    return Trace(
        name=f"{name} (router {model.router}, {model.choosable} experts)",
        token=ids,
        piece=_pieces_of(run, ids),
        sequence=sequence,
        position=position,
        block=special_blocks(model) + 1,
        expert=expert,
        gate=gate,
        experts=model.choosable,
        logits=None if logits is None else kept(logits),
        trained=None if trained is None else kept(trained),
        dropped=None if model.router == "mixture_of_tokens" else dropped.mean(axis=0),
        mixes=model.router == "mixture_of_tokens",
    )


def trace_steps(folder: Path, first: int, last: int, tell=print) -> Trace:
    """Return the routing of a run's training batches from step `first` to step `last`, by its last checkpoint.

    Steps count from 1. All batches are routed with the same weights, in training mode, and with the noise of their
    steps.

    Raises:
        InputError: `trace_folder` raises this error, the model is not causal, or its tokens do not choose their
            experts.
    """
    run = load_run(folder, telling(tell))
    config, model = run.config, run.config.model
    if not model.num_routed or model.record.grouped or model.objective != "causal":
        raise InputError(f"{folder}: --split train is for causal models whose tokens choose experts; leave it out")
    if last > config.steps:
        raise InputError(f"--steps {first}:{last}: the run has {config.steps} steps; use steps from 1 to this number")
    files = _tokens_of_run(folder, run, tell)
    sizes = {"sequence_length": config.sequence_length, "batch_size": config.batch_size}
    batches = training_batches(files, **sizes, seed=config.seed)
    batches.set_state(batches.get_state() | {"next_batch": first - 1})
    return trace_batches(run, batches.stacked(last - first + 1), first, str(folder))


def trace_batches(run: SavedRun, windows: np.ndarray, first: int, name: str) -> Trace:
    """Return the routing of batches [n, b, S + 1] of the steps from `first` on (see `trace_steps`)."""
    model, ids = run.config.model, windows[..., :-1].reshape(-1)
    count, size, length = len(windows), windows[0, :, :-1].size, run.config.sequence_length
    numbers = np.arange(first - 1, first - 1 + count)
    found = _compiled_steps(run.config)(run.params, (windows, numbers), run_inputs(run.config, run.table))
    expert, gate, dropped = map(np.asarray, found)
    sequence, position = np.divmod(np.arange(len(ids)), length)
    return Trace(
        name=f"{name} (router {model.router}, {model.choosable} experts), steps {first} to {first + count - 1}",
        token=ids,
        piece=_pieces_of(run, ids),
        sequence=sequence,
        position=position,
        block=special_blocks(model) + 1,
        expert=np.moveaxis(expert, 1, 0).reshape(model.num_routed, len(ids), -1),
        gate=np.moveaxis(gate, 1, 0).reshape(model.num_routed, len(ids), -1),
        experts=model.choosable,
        dropped=dropped.mean(axis=0),
        step=np.repeat(numbers + 1, size),
    )


@functools.lru_cache(maxsize=4)
def _compiled_steps(config: TrainConfig):
    """Return a jitted function (params, (windows, numbers), `RunInputs`) -> experts, gates [n, n_r, T, k], dropped."""
    options = {"compute_dtype": compute_dtype(config), "attention": attention_of(config).kernel}

    @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
    def over_batches(params, batches, given):
        def route(_, now):
            tokens, noise, _ = drawn(config, *now, given)
            output = loss(params, tokens, config.model, training=True, noise=noise, table=given.table, **options).output
            return None, (output.routing.expert, output.routing.gate, output.dropped_fraction)

        return jax.lax.scan(route, None, batches)[1]

    return over_batches


def windows_of(config: TrainConfig, ids: np.ndarray, *, targets: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the text as batches of windows [n, b, S], and the mask of real tokens (the last batch has padding).

    With `targets` the windows are [n, b, S + 1], and a token is real if the next token is known.
    """
    length = config.sequence_length
    count = -(-len(ids) // length)
    rows = min(config.batch_size, count)
    if config.model.record.grouped:
        rows = -(-rows // config.model.group_size) * config.model.group_size
    batches = -(-count // rows)
    padded = np.zeros(batches * rows * length + 1, np.int32)
    padded[: len(ids)] = ids
    places = np.arange(batches * rows * length).reshape(batches, rows, length)
    real = places < len(ids) - targets
    if targets:
        places = np.concatenate([places, places[..., -1:] + 1], axis=-1)
    return padded[places], real


def _of_tokens(values: np.ndarray, *, shape: tuple, real: np.ndarray) -> np.ndarray:
    """Return the values [n_r, T, ...] of the real tokens, from [n, n_r, b S, ...]."""
    n, b, length, routed = shape
    return np.moveaxis(values, 1, 0).reshape(routed, n * b * length, *values.shape[3:])[:, real.ravel()]


@functools.lru_cache(maxsize=16)
def _compiled(model: ModelConfig, dtype, whole: bool):
    """Return a jitted function (params, (windows, real, number), table) -> stacked over batches, with T = b S:

    experts and gates [n, n_r, T, k], logits [n, n_r, T, E] or None, experts in training or None, dropped [n, n_r].
    """

    def route(params, table, tokens, real, number):
        given = {"table": table, "mask": None if whole else real, "compute_dtype": dtype}
        inputs = functools.partial(_router_logits, params, tokens, model, CallOptions(training=False, **given))
        blocks = jnp.asarray(special_blocks(model)), jnp.arange(model.num_routed)
        logits = None if any(part.router == "hash" for part, _ in model.parts) else jax.lax.map(inputs, blocks)
        noise = draw_noise(jax.random.fold_in(jax.random.key(EVALUATION_SEED), number), model, *tokens.shape)
        trained = apply(params, tokens, model, training=True, noise=noise, **given)
        routing = apply(params, tokens, model, **given).routing
        if model.router == "mixture_of_tokens":
            return *_largest_share(logits, params, tokens.shape, real, model), logits, None, trained.dropped_fraction
        if isinstance(routing, ExpertChoice):
            return *_chosen(routing, tokens.shape, model), logits, None, trained.dropped_fraction
        return routing.expert, routing.gate, logits, trained.routing.expert, trained.dropped_fraction

    @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
    def over_batches(params, batches, table):
        return jax.lax.scan(lambda _, now: (None, route(params, table, *now)), None, batches)[1]

    return over_batches


def _router_logits(params: dict, tokens, model: ModelConfig, call: CallOptions, place: tuple) -> jax.Array:
    """Return the logits [T, E] of a routed block. `place` has its number and its index. See the top of this file."""
    block, index = place
    norm = jax.tree.map(lambda leaf: leaf[block], params["blocks"]["ffn_norm"])
    routed = jax.tree.map(lambda leaf: leaf[index], params["routed_ffn"])
    attention = first_blocks(params, model, block + 1)["blocks"]
    changed = first_blocks(params, model, block) | {"blocks": attention, "final_norm": norm}
    return _logits(routed, _run(changed, tokens, model, call)[1]).reshape(tokens.size, -1)


def _largest_share(logits, params: dict, shape: tuple, real, model: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """Return the expert with the largest mixing weight for each token, and this weight, both [n_r, T, 1]."""

    def of_block(logits, log_temperature):
        groups, present, ungroup = _groups(logits.reshape(*shape, -1), real, model, False)
        mix = functools.partial(mixing_weights, temperature=model.temperature * jnp.exp(log_temperature))
        weights = ungroup(jax.vmap(lambda z, m: mix(z, mask=m))(groups, present)).reshape(logits.shape)
        expert = jnp.argmax(weights, axis=-1, keepdims=True)
        return expert, jnp.take_along_axis(weights, expert, axis=-1)

    learned = params["routed_ffn"].get("log_temperature")
    return jax.vmap(of_block)(logits, jnp.zeros(len(logits)) if learned is None else learned[:, 0])


def _chosen(choice: ExpertChoice, shape: tuple, model: ModelConfig) -> tuple[jax.Array, jax.Array]:
    places = _groups(jnp.arange(shape[0] * shape[1]).reshape(*shape, 1), None, model, False)[0][..., 0]

    def of_block(token, gate):
        flat = jax.vmap(lambda place, of: place[of])(places, token)  # [groups, E, C]
        expert = jnp.broadcast_to(jnp.arange(model.expert_count)[:, None], flat.shape)
        gates = jnp.zeros((shape[0] * shape[1], model.expert_count)).at[flat, expert].add(gate)
        return gates != 0, gates

    return jax.vmap(of_block)(choice.token, choice.gate)
