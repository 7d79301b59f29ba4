"""Time training steps of a few models, for plans in hours (`results/planning/hours.py`).

The models differ in width, depth and experts, so that each cost of `results/planning/step_time.py` varies by itself. A
row of the table is one model, trained on random tokens: `wall_seconds` is the median time of a step times the steps,
without compilation, and `loss_training` is the loss of the last step.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from ..errors import InputError
from .configuration import TrainConfig
from .runs.result_rows import run_columns
from .step import initial_state, make_train_steps

HEAD = 32
"""Width of a head. Widths are multiples of it."""

SECONDS, CALLS = 1.5, 5
"""A model trains at least this long, in at least so many calls, after the call that compiles."""


def probed_runs(config: TrainConfig, widths: Sequence[int], depths: Sequence[int]) -> list[TrainConfig]:
    """Return the runs of a probe: dense models, and models of the run's router with its E and with fewer experts.

    Args:
        config: a run; its width, depth, heads and schedule do not count.
        widths, depths: the smallest and the largest d and L.

    Raises:
        InputError: a width is no multiple of `HEAD`, the ends are equal, or a router does not fit.
    """
    for flag, (low, high), unit in (("widths", widths, HEAD), ("depths", depths, 1)):
        if not 0 < low < high or low % unit or high % unit:
            raise InputError(
                f"--{flag} {low} {high} is wrong; use two different multiples of {unit}, the smaller first"
            )
    (narrow, wide), (shallow, deep) = widths, depths
    dense = [(narrow, shallow, 1), (narrow, deep, 1), (wide, shallow, 1), (wide, deep, 1)]
    few, many = max(2, config.model.k, round(math.sqrt(config.model.experts))), config.model.experts
    routed = [(narrow, shallow, few), (narrow, deep, many), (wide, shallow, many), (wide, deep, few)]
    routed = [] if config.model.router == "dense" else routed
    return [_sized(config, *shape) for shape in dense + routed]


def _sized(config: TrainConfig, width: int, depth: int, experts: int) -> TrainConfig:
    shape = {"d_model": width, "blocks": depth, "heads": width // HEAD, "kqv_size": HEAD, "experts": experts}
    if experts == 1:  # without the options of a router
        names = ("vocab_size", "positions", "activation", "norm", "objective", "mask_rate", "mask_token")
        model = type(config.model)(**{name: getattr(config.model, name) for name in names} | shape)
    else:
        model = dataclasses.replace(config.model, **shape)
    run = dataclasses.replace(config, model=model)
    run.check()
    return run


def timed_rows(runs: Sequence[TrainConfig]) -> Iterator[dict]:
    """Yield a row of the results table for each run."""
    for i, config in enumerate(runs):
        steps, calls = config.steps_per_call, []
        train, state, random = make_train_steps(config), initial_state(config), np.random.default_rng(0)
        shape = steps, config.batch_size, config.sequence_length + 1
        windows = random.integers(0, config.model.vocab_size, shape, dtype=np.int32)
        state, metrics = jax.block_until_ready(train(state, windows, 0))
        while len(calls) < CALLS or sum(calls) < SECONDS:
            begun = time.perf_counter()
            state, metrics = jax.block_until_ready(train(state, windows, 0))
            calls.append(time.perf_counter() - begun)
        done = steps * (1 + len(calls))
        yield {
            "hyper_id": i, "step": done, "tokens": done * config.batch_size * config.sequence_length,
            "loss_training": float(metrics.loss[-1]), "wall_seconds": statistics.median(calls) / steps * done,
            "device": jax.devices()[0].device_kind, **run_columns(config),
        }  # fmt: skip
