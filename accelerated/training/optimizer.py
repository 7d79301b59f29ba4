"""AdamW with clipping, as a transformation of optax; and the learning rate."""

import functools
import os

import jax
import jax.numpy as jnp
import optax

from routelaws.reference.schedules import FINAL_RATE, learning_rates

from ..errors import InputError
from .configuration import TrainConfig

BETAS = (0.9, 0.95)
"""Decay rates of AdamW's two moments."""

EPSILON = 1e-8
"""Epsilon, added to the root of the second moment."""

NOT_DECAYED = ("scale", "offset", "bias", "out", "log_temperature", "router_bias")
"""Parameters without weight decay: all that are not matrices, and the last layer of RL-R's baseline."""


def optimizer(
    config: TrainConfig, rate: jax.Array | None = None, norm: jax.Array | None = None
) -> optax.GradientTransformation:
    """Return AdamW with clipping and the schedule of the run. Only matrices have weight decay.

    Args:
        rate: the learning rate of this step if it is an input of a compiled program; None for the run's schedule.
        norm: norm of the whole gradient, if known; None to compute it.

    Routers learn at a lower rate (our choice). At the full rate of a small model, the raw logits of one expert become
    larger than all other logits. The balanced plan hides this in training, but the argmax of evaluation then sends most
    tokens to that expert.
    """
    schedule = _schedule(*_shape(config)) if rate is None else lambda _: rate

    def decayed(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NOT_DECAYED, params)

    def clipped(gradient, _):
        # Multiply by a factor: optax.clip_by_global_norm divides each entry, and XLA then stores a second gradient.
        total = optax.tree.norm(gradient) if norm is None else norm
        share = jnp.where(total < config.gradient_clip, 1, config.gradient_clip / total)
        return jax.tree.map(lambda leaf: leaf * share.astype(leaf.dtype), gradient)

    def slowed(updates, _):
        factors = {"router": config.router_rate, "router_bias": config.router_rate}
        return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * factors.get(path[-1].key, 1.0), updates)

    return optax.chain(
        optax.stateless(clipped),
        optax.adamw(schedule, *BETAS, eps=EPSILON, weight_decay=config.weight_decay, mask=decayed),
        optax.stateless(slowed),
    )


def rates_of_steps(config: TrainConfig) -> jax.Array:
    """Return [steps], the learning rate of each step of a run."""
    return _rates(_shape(config), config.steps)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rates(shape: tuple, steps: int) -> jax.Array:
    return jax.lax.map(_schedule(*shape), jnp.arange(steps))


def _shape(config: TrainConfig) -> tuple:
    """Return the arguments of `_schedule`."""
    rise = config.warmup if config.schedule == "cosine" else config.warmup_steps
    return config.schedule, config.peak_learning_rate(), config.steps, rise, config.decay, config.decay_shape


def _schedule(schedule: str, peak: float, steps: int, rise: float, decay: float, decay_shape: str) -> optax.Schedule:
    if schedule != "cosine":
        rates = jnp.asarray(peak * learning_rates(schedule, steps, rise, decay, decay_shape))
        return lambda step: rates[step]
    return learning_rate_schedule(peak, max(1, round(rise * steps)), steps)


def learning_rate_schedule(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
    """Return the cosine learning rate of each step (see `reference.schedules`), with the rounding of earlier versions.

    The first step has the rate peak / warmup_steps, not 0.
    """
    up = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    down = optax.cosine_decay_schedule(peak, max(1, steps - warmup_steps), FINAL_RATE)
    return optax.join_schedules([up, down], [warmup_steps])


def check_memory(config: TrainConfig) -> None:
    """Raise `InputError` if the weights and moments of a model on one CPU exceed its memory."""
    if jax.default_backend() != "cpu" or not hasattr(os, "sysconf"):
        return
    needed = 3 * 4 * config.accounting().total_parameters  # AdamW has two moments of each weight
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise InputError(
            f"the model has {needed / 12:.3g} parameters, with the optimizer's moments {needed / 1e9:,.0f} GB; this "
            f"machine has {memory / 1e9:,.0f} GB; choose a smaller model"
        )
