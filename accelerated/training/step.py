"""One training step, several of them in one compiled call, and the evaluation."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from routelaws.reference.configuration import ModelConfig

from ..notation import ExpertChoice
from ..operations.attention_kernels import AttentionShape, KernelChoice, choose
from ..transformer import carry_bias, draw_noise, hidden_positions, init, loss, owned, token_losses
from .configuration import TrainConfig
from .devices.mesh import Layout
from .optimizer import optimizer, rates_of_steps
from .sweeps.workers import computes_where_called

FREED, LONGEST_WAIT = 1 / 300, 0.05
"""`wait_for` sleeps for the share FREED of the call's time, but at most LONGEST_WAIT seconds. On a busy machine, a call
and the freeing of its buffers both take longer."""

NOISE_STREAM, HIDDEN_STREAM = 1, 2
"""Numbers folded into the seed: for the routers' random draws, and for the tokens that the masked objective hides."""

EVALUATION_SEED = 0
"""Seed of the tokens hidden in evaluation, the same in every evaluation of every run."""


class TrainState(NamedTuple):
    params: dict
    optimizer: optax.OptState


class StepMetrics(NamedTuple):
    loss: jax.Array  # cross-entropy in training, nats per token, without router losses
    auxiliary: jax.Array  # the router losses, which are added to `loss`
    gradient_norm: jax.Array  # before clipping
    dropped_fraction: jax.Array  # mean over routed blocks; 0 for a dense model
    bad: jax.Array  # bool: a loss or gradient that is not finite, or a loss that exploded; the batch changed nothing


class Evaluation(NamedTuple):
    """The results of a model on evaluation windows, routed as in evaluation."""

    loss: jax.Array  # [n, b, S] cross-entropy of each predicted token, nats
    counted: jax.Array  # [n, b, S] bool, the predicted tokens: all of them, or the hidden ones
    load: jax.Array  # [n_r, E G + Z], share of the assignments that each expert received; [0, 0] for a dense model


class BatchNumbers(NamedTuple):
    """The numbers that a step computes for a batch, besides the gradient."""

    cross_entropy: jax.Array  # [] nats per token
    auxiliary: jax.Array  # [n_r] what each router adds
    dropped_fraction: jax.Array  # [n_r]
    bias: jax.Array | None  # [n_r, E G], for the next batch


class RunInputs(NamedTuple):
    """The inputs of a compiled program that differ between runs of the same shapes."""

    rates: jax.Array  # [steps] learning rate of each step
    noise_key: jax.Array
    hidden_key: jax.Array
    table: jax.Array | None  # of a hash


def initial_state(config: TrainConfig, layout: Layout | None = None) -> TrainState:
    """Return random initial weights from the run's seed, and their initial optimizer state."""

    def start(key):
        params = init(key, config.model)
        return TrainState(params, optimizer(config).init(params))

    key = jax.random.key(config.seed)
    if layout is not None:
        return jax.jit(start, out_shardings=state_shardings(config, layout))(key)
    if isinstance(key, jax.core.Tracer):  # of `jax.eval_shape`
        return start(key)
    # This is not compiled for a single model. The whole optimizer state starts from zeros.
    shapes = jax.eval_shape(start, key)
    params = init(key, config.model)
    return TrainState(params, jax.tree.map(lambda leaf: owned(np.zeros(leaf.shape, leaf.dtype)), shapes.optimizer))


def open_layout(config: TrainConfig, devices: Sequence[jax.Device] | None = None) -> Layout | None:
    """Return the placement of a run's arrays on its mesh; None if it has no mesh.

    Args:
        devices: see `mesh.open_mesh`.

    Raises:
        InputError: there are more or fewer devices than places in the mesh.
    """
    if config.mesh is None:
        return None
    return Layout(config.model, config.mesh, config.balancing_group, state_shapes(config).params, devices)


def state_shardings(config: TrainConfig, layout: Layout) -> TrainState:
    """Return the sharding of each array of a run's state.

    Each device has the weights that it uses, a part of the moments, and all other arrays.
    """
    state = state_shapes(config).optimizer
    moments, everywhere = layout.sharding(layout.moments), jax.NamedSharding(layout.mesh, jax.P())
    state = optax.tree.map_params(
        optimizer(config), lambda _, sharding: sharding, state, moments, transform_non_params=lambda _: everywhere
    )
    return TrainState(layout.sharding(layout.params), state)


def state_shapes(config: TrainConfig, layout: Layout | None = None) -> TrainState:
    """Return the shape and dtype of each array of a run's state, and its placement on a mesh."""
    state = jax.eval_shape(lambda: initial_state(config))
    if layout is None:
        return state
    shardings = state_shardings(config, layout)
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), state, shardings)


def make_train_steps(config: TrainConfig, table: np.ndarray | None = None, layout: Layout | None = None):
    """Return a jitted function (state, batches [n, b, S + 1], first_step, left=0) -> (state, `StepMetrics` of [n]).

    `lax.scan` runs the n steps, so all steps share one call from Python and one set of buffers. Small models then spend
    less time on memory allocation. The input state is donated.

    A bad batch does not change the state. `left` bad batches are skipped. After one more bad batch the state never
    changes again, so it can be used to diagnose the error.

    Args:
        table: the hash table (see `hashing.hash_table_of`); None for other routers.
    """
    inputs = run_inputs(config, table)
    if layout is None:
        train_steps = _shared_steps(_in_steps(config), attention_of(config).kernel)
        return lambda state, batches, first_step, left=0: train_steps(
            state, batches, first_step, np.int32(left), inputs
        )
    train_steps, shardings = compiled_steps(config, layout=layout), state_shardings(config, layout)

    def run(state, batches, first_step, left=0):
        state, batches = _put(state, shardings), _put(batches, layout.rows())
        return train_steps(state, batches, first_step, np.int32(left), inputs)

    return run


def compile_first_call(config: TrainConfig, table: np.ndarray | None, n: int) -> None:
    """Compile `make_train_steps` for n steps on one device, before there is a state: a compiler needs much memory, too.

    JAX keeps the program for the first call.
    """
    steps, state = _shared_steps(_in_steps(config), attention_of(config).kernel), state_shapes(config)
    windows = jax.ShapeDtypeStruct((n, config.batch_size, config.sequence_length + 1), np.int32)
    steps.lower(state, windows, 0, np.int32(0), run_inputs(config, table)).compile()


NOT_IN_PROGRAMS = (
    "seed", "learning_rate", "corpus", "eval", "init_from", "init_noise", "init_redraw", "init_optimizer",
)  # fmt: skip
"""Fields that do not change the compiled programs of a run. Runs that differ only in these fields share programs."""

NOT_IN_STEPS = (
    *NOT_IN_PROGRAMS, "hash_embeddings", "steps", "schedule", "warmup", "warmup_steps", "decay", "decay_shape",
    "evaluations", "evaluation_tokens", "steps_per_call", "checkpoint_every", "keep_last", "keep_every",
    "skip_bad_batches",
)  # fmt: skip
"""Fields that the program of a training step does not depend on. They reach it as arrays, or not at all."""


def _in_steps(config: TrainConfig) -> TrainConfig:
    """Return the configuration with defaults for `NOT_IN_STEPS`."""
    names = (field.name for field in dataclasses.fields(config) if field.name not in NOT_IN_STEPS)
    return TrainConfig(**{name: getattr(config, name) for name in names})


@functools.lru_cache(maxsize=4)
def _shared_steps(config: TrainConfig, kernel: str):
    """Return `compiled_steps` on one device. Runs that differ only in other fields, such as the seed, share it.

    Args:
        kernel: the attention kernel of the run, on which the program also depends.
    """
    return compiled_steps(config)


def compiled_steps(config: TrainConfig, base_method: str = "host", layout: Layout | None = None):
    """Return a jitted function (state, batches, first_step, left, `RunInputs`) -> (state, `StepMetrics`).

    Args:
        config: the run. Call the function with the result of `run_inputs` for this run.
        base_method: method of BASE (see `routers.base.balanced_assignment`).
    """
    differentiate = _differentiate(config, base_method, layout)
    shardings = None if layout is None else state_shardings(config, layout)
    change = functools.partial(_changed, config=config, layout=layout, shardings=shardings)

    def guarded(carry, now, given: RunInputs):
        state, left = carry  # bad batches that may still be skipped; below 0 the state stops changing
        metrics, *operands = _look(state, now, given, config, differentiate)
        left = jnp.where((left >= 0) & metrics.bad, left - 1, left)
        taken, operands = ~metrics.bad & (left >= 0), (state, *operands, given.rates[now[1]], metrics.gradient_norm)
        if layout is None:  # `cond` saves a copy of the state that `where` needs
            state = jax.lax.cond(taken, change, lambda state, *_: state, *operands)
        else:  # no `cond`: a collective inside it would wait forever if devices took different branches
            state = change(*operands, taken=taken)
        return (state, left), metrics

    @functools.partial(jax.jit, donate_argnames="state")
    def train_steps(state, batches, first_step, left, given):
        each_step = batches, first_step + jnp.arange(len(batches))
        carry, metrics = jax.lax.scan(functools.partial(guarded, given=given), (state, left), each_step)
        return carry[0], metrics

    return train_steps


def _differentiate(config: TrainConfig, base_method: str, layout: Layout | None) -> Callable:
    """Return a function (params, tokens, noise, hidden, table) -> (`BatchNumbers`, gradient) (see `compiled_steps`)."""
    model, dtype, attention = config.model, compute_dtype(config), attention_of(config).kernel

    def objective(params, tokens, noise, hidden, table, spread=None):
        options = {"noise": noise, "table": table, "hidden": hidden, "compute_dtype": dtype}
        options |= {"rematerialise": config.rematerialise, "attention": attention, "spread": spread}
        result = loss(params, tokens, model, training=True, base_method=base_method, **options)
        output = result.output
        return result.total, BatchNumbers(result.cross_entropy, output.auxiliary, output.dropped_fraction, output.bias)

    def on_one_device(params, *given):
        (_, numbers), gradient = jax.value_and_grad(objective, has_aux=True)(params, *given)
        return numbers, gradient

    return on_one_device if layout is None else layout.differentiate(objective)


def _look(state: TrainState, now: tuple, given: RunInputs, config: TrainConfig, differentiate: Callable) -> tuple:
    """Return (`StepMetrics`, `BatchNumbers`, gradient) of a batch. `now` is (windows [b, S + 1], step)."""
    windows, number = now
    tokens, noise, hidden = drawn(config, windows, number, given)
    numbers, gradient = differentiate(state.params, tokens, noise, hidden, given.table)
    dropped = numbers.dropped_fraction
    dropped = dropped.mean() if dropped.size else jnp.zeros(())
    value, added, norm = numbers.cross_entropy, numbers.auxiliary.sum(), optax.tree.norm(gradient)
    bad = ~jnp.isfinite(value + added + norm) | (value > highest_loss(config))
    return StepMetrics(value, added, norm, dropped, bad), numbers, gradient


def _changed(
    state: TrainState, numbers: BatchNumbers, gradient, rate, norm, *, config, layout, shardings, taken=True
) -> TrainState:
    """Return the state after a batch. On a mesh, a batch that is not `taken` changes nothing."""
    updates, opt_state = optimizer(config, rate, norm).update(gradient, state.optimizer, state.params)
    if layout is None:
        return TrainState(carry_bias(optax.apply_updates(state.params, updates), numbers), opt_state)
    # This chooses parts of updates. A choice of whole weights would need the old weights beside the new ones.
    updates = jax.tree.map(lambda update: jnp.where(taken, update, -0.0), updates)  # x + -0.0 is x, also if x is -0.0
    params = optax.apply_updates(state.params, updates)
    params = jax.lax.with_sharding_constraint(params, layout.sharding(layout.moments))
    chosen = functools.partial(jax.tree.map, lambda new, old: new if new is old else jnp.where(taken, new, old))
    opt_state = jax.lax.with_sharding_constraint(chosen(opt_state, state.optimizer), shardings.optimizer)
    return TrainState(layout.join(chosen(carry_bias(params, numbers), params), state.params), opt_state)


def wait_for(metrics: StepMetrics, begun: float) -> None:
    """Wait until a call that began at `begun` (`time.perf_counter`) ends and its buffers are freed.

    If XLA's own threads run a call (see `workers.compute_where_called`), they report the results before they free the
    temporary buffers. A new call before the buffers are free allocates a second set of buffers, and the process keeps
    both sets. XLA does not report when the buffers are free, so the function sleeps.
    """
    jax.block_until_ready(metrics)
    if jax.default_backend() == "cpu" and not computes_where_called():
        time.sleep(min(FREED * (time.perf_counter() - begun), LONGEST_WAIT))


def _put(tree, shardings):
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, shardings)


def highest_loss(config: TrainConfig) -> float:
    """Return the limit above which a training loss has exploded, nats per token."""
    return config.loss_limit * math.log(config.model.vocab_size)


def run_inputs(config: TrainConfig, table: np.ndarray | None) -> RunInputs:
    """Return the rates, keys and table of a run. The keys are independent of the initial weights' key."""
    rates = rates_of_steps(config)
    keys = (jax.random.fold_in(jax.random.key(config.seed), stream) for stream in (NOISE_STREAM, HIDDEN_STREAM))
    return RunInputs(rates, *keys, None if table is None else jnp.asarray(table))


def make_evaluate(
    config: TrainConfig,
    table: np.ndarray | None = None,
    model: ModelConfig | None = None,
    layout: Layout | None = None,
):
    """Return a jitted function (params, batches [n, b, S + 1]) -> `Evaluation`.

    Args:
        model: a model for these weights, such as the run's model with other groups; None for the run's model.
    """
    model = model or config.model
    attention = attention_of(config).kernel
    evaluate = compiled_evaluate(model, compute_dtype(config), attention, layout)

    def run(params, batches):
        if layout is not None:
            params, batches = _put(params, layout.sharding(layout.params)), _put(batches, layout.rows())
        return evaluate(params, batches, table)

    return run


@functools.lru_cache(maxsize=4)
def compiled_evaluate(model: ModelConfig, dtype, attention: str, layout: Layout | None):
    """Return a jitted function (params, batches, table) -> `Evaluation`."""
    hidden_key = jax.random.key(EVALUATION_SEED)
    of_batch = functools.partial(_of_batch, model=model, dtype=dtype, attention=attention)
    of_batch = of_batch if layout is None else layout.evaluate(of_batch)

    @jax.jit
    def evaluate(params, batches, table):
        def one(_, now):
            windows, number = now
            tokens, hidden = task_of(windows, model, jax.random.fold_in(hidden_key, number))
            losses, load = of_batch(params, tokens, hidden, table)
            counted = jnp.ones(losses.shape, bool) if hidden is None else hidden
            return None, Evaluation(losses, counted, load)

        _, parts = jax.lax.scan(one, None, (batches, jnp.arange(len(batches))))
        return parts._replace(load=parts.load.mean(axis=0))

    return evaluate


def _of_batch(
    params, tokens, hidden, table, spread=None, *, model: ModelConfig, dtype, attention: str
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of each token [b, S] and the load of each expert, with routing as in evaluation."""
    options = {"table": table, "hidden": hidden, "compute_dtype": dtype, "attention": attention}
    losses, output = token_losses(params, tokens, model, spread=spread, **options)
    return losses, _load(output.routing, model)


def drawn(config: TrainConfig, windows: jax.Array, number: jax.Array, given: RunInputs) -> tuple:
    """Return (tokens, noise, hidden) for `loss` of the training step `number`, from its windows [b, S + 1]."""
    tokens, hidden = task_of(windows, config.model, jax.random.fold_in(given.hidden_key, number))
    key = jax.random.fold_in(given.noise_key, number)
    return tokens, draw_noise(key, config.model, config.batch_size, config.sequence_length), hidden


def attention_of(config: TrainConfig) -> KernelChoice:
    """Return the attention implementation of this process for a run; on a mesh, always our own.

    Raises:
        InputError: the run asks for Tokamax, which has no kernel here or fails its test.
    """
    model = config.model
    shape = (model.heads, model.kqv_size, config.sequence_length, model.objective == "causal")
    attention = config.attention if config.mesh is None else "own"
    return choose(attention, AttentionShape(*shape, model.positions == "relative", config.dtype))


def compute_dtype(config: TrainConfig) -> jnp.dtype | None:
    """Return `compute_dtype` of `transformer.apply`; None for the parameters' own type."""
    return None if config.dtype == "float32" else jnp.dtype(config.dtype)


def task_of(windows: jax.Array, model: ModelConfig, key: jax.Array):
    """Return (tokens, hidden) for `loss` from windows [b, S + 1]: a masked model reads and predicts the first S."""
    if model.objective == "causal":
        return windows, None
    tokens = windows[:, :-1]
    return tokens, hidden_positions(jax.random.uniform(key, tokens.shape), model.mask_rate)


def _load(routing, model) -> jax.Array:
    """Return the load [n_r, E G]. All loads are equal if experts choose or process mixtures."""
    if routing is None or isinstance(routing, ExpertChoice):
        return jnp.full((model.num_routed, model.expert_count if model.num_routed else 0), 1 / model.expert_count)
    return routing.load
