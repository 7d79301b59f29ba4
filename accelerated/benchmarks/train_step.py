"""Figures of the training step: the dense one beside a GPT in torch, and the routed one beside the dense one.

The sizes are L = 4, 16 sequences of 128 tokens, V = 1024, heads of 32 numbers, float32; ours is what `routelaws train`
runs, with its defaults (eight steps in a call). Tokens are drawn by Zipf's law. Both sides clip the gradient, apply
AdamW and tie the embedding with the output; torch's has learned positions, ours relative ones.
"""

import functools
import math

import numpy as np

from .ceilings import BACKENDS
from .figure import Figure, Goal, Side
from .worker import Job

WIDTHS = (64, 128, 256)

STEPS = 8
"""Of one call, as in `routelaws train`."""

SIZES = {"blocks": 4, "vocab_size": 1024, "length": 128, "batch": 16}
QUICK = {"blocks": 2, "vocab_size": 64, "length": 16, "batch": 2}


def draw_tokens(seed: int, shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Return token ids [shape] whose shares are proportional to 1 / (i + 1)."""
    shares = 1 / np.arange(1, vocab_size + 1)
    return np.random.default_rng(seed).choice(vocab_size, shape, p=shares / shares.sum()).astype(np.int32)


def run_config(
    d_model, heads, blocks, vocab_size, length, batch,
    router="dense", experts=1, dtype="float32", rematerialise=False, dropless=False,
):  # fmt: skip
    """Return the `TrainConfig` of a run with these sizes, without a limit of slots where `dropless`, and every other
    field at its default."""
    from routelaws.reference.configuration import ModelConfig

    from ..training.configuration import TrainConfig

    sizes = {"vocab_size": vocab_size, "d_model": d_model, "blocks": blocks, "heads": heads}
    model = ModelConfig(**sizes, router=router, experts=experts, capacity_factor=math.inf if dropless else None)
    how = {"steps_per_call": STEPS, "dtype": dtype, "rematerialise": rematerialise}
    return TrainConfig(model, sequence_length=length, batch_size=batch, **how)


def our_step(**sizes) -> Job:
    """Return a job that takes `STEPS` steps in one call; its facts are the last loss and what was dropped."""
    import jax

    from ..training.step import initial_state, make_train_steps

    config = run_config(**sizes)
    steps, state = make_train_steps(config), initial_state(config)
    shape = (STEPS, config.batch_size, config.sequence_length + 1)
    batches = jax.numpy.asarray(draw_tokens(0, shape, config.model.vocab_size))
    held = {"state": state, "at": 0}

    def run():
        at = held["at"] % (config.steps - STEPS + 1)
        held["state"], held["metrics"] = steps(held["state"], batches, at)
        held["at"] = at + STEPS
        jax.block_until_ready(held["metrics"])

    def facts():
        said = {"loss": round(float(held["metrics"].loss[-1]), 4)}
        if config.model.router != "dense":
            said["dropped_fraction"] = round(float(held["metrics"].dropped_fraction.mean()), 5)
        return said

    return Job(run, facts)


def sizes_of(bench, d_model: int) -> dict:
    """Return the sizes of a step; small ones for a smoke test."""
    if bench.settings.quick:
        return QUICK | {"d_model": 16, "heads": 1}
    return SIZES | {"d_model": d_model, "heads": d_model // 32}


def step_flops(sizes: dict) -> float:
    """Return the FLOPs of the matrix products of a dense training step, three times those of the forward pass.

    For each token: 24 d² of projections and FFN in each block, 2 d V of the output, and in each block three products
    (keys, distances, values) with the S/2 tokens that it sees on average; and the projection of S distances.
    """
    d, length, blocks, vocab_size = (sizes[name] for name in ("d_model", "length", "blocks", "vocab_size"))
    by_token = blocks * (24 * d**2 + 3 * 2 * d * length / 2) + 2 * d * vocab_size
    return 3.0 * (by_token * length * sizes["batch"] + blocks * 2 * length * d**2)


def over_torch(bench, d_model: int, threads: int, relative: bool):
    """Measure the dense step over that of torch's GPT."""
    threads, sizes = bench.threads(threads), sizes_of(bench, d_model)
    theirs = sizes | {"relative": relative, "gpu": bench.machine()["backend"] == "gpu"}
    sides = {
        "ours": Side("train_step:our_step", sizes, per=STEPS),
        "torch": Side("torch_peers:gpt_step", theirs, "torch"),
    }
    floor = "ours", bench.floor(threads, step_flops(sizes))
    return bench.compare(sides, lambda s: s["ours"] / s["torch"], threads, floor)


def over_dense(
    bench, d_model: int, experts: int, dtype: str = "float32", sizes: dict | None = None, dropless: bool = False
):
    """Measure the step of S-BASE over the dense one."""
    threads, sizes = bench.threads(), (sizes or sizes_of(bench, d_model)) | {"dtype": dtype}
    experts = min(experts, 4) if bench.settings.quick else experts
    routed = sizes | {"router": "sinkhorn", "experts": experts, "dropless": dropless}
    sides = {
        "routed": Side("train_step:our_step", routed, per=STEPS),
        "dense": Side("train_step:our_step", sizes, per=STEPS),
    }
    return bench.compare(sides, lambda s: s["routed"] / s["dense"], threads)


LARGE = {"blocks": 24, "vocab_size": 32_000, "length": 1024, "batch": 16, "d_model": 1024, "heads": 16}
"""About 370 million parameters, for a GPU."""


def utilisation(bench):
    """Measure the share of the rate of matrix products that a dense step of 370M in bfloat16 reaches on a GPU."""
    bench.need_backend("gpu")
    sizes = QUICK | {"d_model": 16, "heads": 1} if bench.settings.quick else LARGE
    sides = {
        "step": Side("train_step:our_step", sizes | {"dtype": "bfloat16"}, per=STEPS),
        "product": Side("ceilings:product", {"quick": bench.settings.quick, "dtype": "bfloat16"}),
    }
    flops, product = step_flops(sizes), 2 * (256 if bench.settings.quick else 8192) ** 3
    return bench.compare(sides, lambda s: (flops / s["step"]) / (product / s["product"]))


def routed_on_gpu(bench):
    """Measure the step of S-BASE with 32 experts over the dense one, in bfloat16 on a GPU."""
    bench.need_backend("gpu")
    sizes = {"blocks": 12, "vocab_size": 32_000, "length": 1024, "batch": 16, "d_model": 768, "heads": 12}
    return over_dense(bench, 0, 32, "bfloat16", None if bench.settings.quick else sizes)


def _dense_figure(d_model: int, threads: int) -> Figure:
    what = f"our dense training step over that of torch's GPT, d = {d_model}, threads: {threads}"
    name = f"dense-step-d{d_model}-t{threads}"
    measure = functools.partial(over_torch, d_model=d_model, threads=threads, relative=False)
    return Figure(name, what, Goal(1.15), measure, backends=BACKENDS[threads], threads=threads)


def _relative_figure(d_model: int, threads: int) -> Figure:
    what = f"our dense training step over torch with the same relative positions, d = {d_model}, threads: {threads}"
    name = f"relative-step-d{d_model}-t{threads}"
    measure = functools.partial(over_torch, d_model=d_model, threads=threads, relative=True)
    return Figure(name, what, Goal(0.8), measure, backends=BACKENDS[threads], threads=threads)


def _routed_figure(d_model: int, experts: int, dropless: bool = False) -> Figure:
    slots = ", nothing dropped" if dropless else ""
    what = f"S-BASE training step over the dense one, d = {d_model}, E = {experts}{slots}"
    name = f"sbase-step-d{d_model}-e{experts}{'-dropless' if dropless else ''}"
    measure = functools.partial(over_dense, d_model=d_model, experts=experts, dropless=dropless)
    return Figure(name, what, Goal({8: 1.05, 32: 1.25}[experts]), measure)


FIGURES = (
    *(_dense_figure(d, threads) for d in WIDTHS for threads in (1, 2)),
    *(_relative_figure(d, threads) for d in WIDTHS for threads in (1, 2)),
    *(_routed_figure(d, experts) for d in WIDTHS for experts in (8, 32)),
    *(_routed_figure(d, 32, dropless=True) for d in WIDTHS),
    Figure(
        "gpu-utilisation",
        "share of the rate of matrix products that a dense step of 370M reaches, bfloat16",
        Goal(0.5, least=True), utilisation, unit="of the rate",
    ),
    Figure(
        "gpu-sbase-step-e32", "S-BASE training step over the dense one, E = 32, bfloat16", Goal(1.15), routed_on_gpu
    ),
)  # fmt: skip
