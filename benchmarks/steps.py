"""Figures of the training step.

They compare dense with a GPT in torch, S-BASE with dense, and compiled loops with plain JAX.

L = 4, 16 sequences of 128 tokens, V = 1024, heads of 32 numbers, float32, tokens from Zipf's law. Our side is the step
of `routelaws train` with its defaults, eight steps in a call. Both sides clip the gradient, apply AdamW and tie the
embedding with the output. The model of torch has learned positions. Ours has relative positions.
"""

import numpy as np

from .figure import Figure, Job, Side, over

WIDTHS = (64, 128, 256)
STEPS = 8
SIZES = {"blocks": 4, "vocab_size": 1024, "length": 128, "batch": 16}
QUICK = {"d_model": 16, "blocks": 2, "vocab_size": 64, "length": 16, "batch": 2}
LARGE = {"d_model": 1024, "blocks": 24, "vocab_size": 32_000, "length": 1024, "batch": 16, "dtype": "bfloat16"}
"""About 370 million parameters, for a GPU."""

PRODUCT = 2048
"""Rows and columns of the matrices of `product`; 8192 on a GPU."""


def draw_tokens(seed: int, shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Return token ids [shape] with the shares of Zipf's law."""
    shares = 1 / np.arange(1, vocab_size + 1)
    return np.random.default_rng(seed).choice(vocab_size, shape, p=shares / shares.sum()).astype(np.int32)


def our_step(
    d_model, blocks, vocab_size, length, batch, router="dense", experts=1, dtype="float32", quick=False
) -> Job:
    """Return a job that takes `STEPS` steps in one call. Its facts are the last loss and the dropped fraction."""
    import jax

    from routelaws.accelerated.training.configuration import TrainConfig
    from routelaws.accelerated.training.step import initial_state, make_train_steps
    from routelaws.reference.configuration import ModelConfig

    if quick:
        d_model, blocks, vocab_size, length, batch = QUICK.values()
    heads = max(1, d_model // (32 if d_model < 1024 else 64))
    sizes = {"vocab_size": vocab_size, "d_model": d_model, "blocks": blocks, "heads": heads}
    model = ModelConfig(**sizes, router=router, experts=experts)
    config = TrainConfig(model, sequence_length=length, batch_size=batch, steps_per_call=STEPS, dtype=dtype)
    steps, batches = make_train_steps(config), draw_tokens(0, (STEPS, batch, length + 1), vocab_size)
    held = {"state": initial_state(config), "at": 0}

    def run():
        held["state"], held["metrics"] = jax.block_until_ready(steps(held["state"], batches, held["at"]))
        held["at"] = (held["at"] + STEPS) % (config.steps - STEPS + 1)

    def facts():
        loss, dropped = held["metrics"].loss[-1], held["metrics"].dropped_fraction
        return {"loss": round(float(loss), 4), "dropped_fraction": round(float(np.mean(dropped)), 5)}

    return Job(run, facts)


def step_flops(d_model: int, blocks: int, vocab_size: int, length: int, batch: int, **_) -> float:
    """Return the FLOPs of the matrix products of a dense training step, three times the forward pass.

    The forward FLOPs of a token are 24 d² for projections and FFN in each block, and 2 d V for the output. Each block
    also has three products (keys, distances, values) with the S/2 tokens that a token sees on average, and the
    projection of S distances.
    """
    by_token = blocks * (24 * d_model**2 + 3 * 2 * d_model * length / 2) + 2 * d_model * vocab_size
    return 3.0 * (by_token * length * batch + blocks * 2 * length * d_model**2)


def product(dtype: str = "float32", side: int = PRODUCT, quick: bool = False) -> Job:
    import jax

    side = 256 if quick else side
    a, b = (jax.random.normal(jax.random.key(i), (side, side), dtype) for i in range(2))
    multiply = jax.jit(jax.numpy.matmul)
    return Job(lambda: jax.block_until_ready(multiply(a, b)))


def _step(library: str = "jax", **options) -> Side:
    return Side("steps:our_step", SIZES | options, library, STEPS)


def _dense(d: int, threads: int) -> Figure:
    sides = {"ours": _step(d_model=d), "torch": Side("torch_peers:gpt_step", SIZES | {"d_model": d}, "torch")}
    what = f"time of our dense training step divided by torch's GPT, d = {d}, threads: {threads}"
    return Figure(f"dense-step-d{d}-t{threads}", what, sides, over("ours", "torch"), ("at most", 0.9), threads)


def _routed(d: int, experts: int) -> Figure:
    sides = {"routed": _step(d_model=d, router="sinkhorn", experts=experts), "dense": _step(d_model=d)}
    what = f"time of an S-BASE training step divided by a dense step, d = {d}, E = {experts}"
    goal = "at most", {8: 1.1, 32: 1.2}[experts]
    return Figure(f"sbase-step-d{d}-e{experts}", what, sides, over("routed", "dense"), goal)


def _loops(d: int, router: str, experts: int) -> Figure:
    options = {"d_model": d, "router": router, "experts": experts}
    sides = {"with": _step(**options), "without": _step("jax without loops", **options)}
    what = (
        f"time of a training step with the compiled loops divided by a step without, {router}, d = {d}, E = {experts}"
    )
    return Figure(
        f"loops-{router}-d{d}-e{experts}", what, sides, over("with", "without"), ("at most", 0.9), backend="cpu"
    )


def _utilisation(seconds: dict[str, float]) -> float:
    return (step_flops(**LARGE) / seconds["step"]) / (2 * 8192**3 / seconds["product"])


_ON_GPU = LARGE | {"d_model": 768, "blocks": 12}

FIGURES = (
    Figure(
        "product",
        f"torch's time of a matrix product divided by JAX's, {PRODUCT} x {PRODUCT}; a factor in ratios to torch",
        {"ours": Side("steps:product", {}), "torch": Side("torch_peers:product", {}, "torch")}, over("torch", "ours"),
    ),
    *(_dense(d, threads) for d in WIDTHS for threads in (1, 2)),
    *(_routed(d, experts) for d in WIDTHS for experts in (8, 32)),
    *(_loops(d, *router) for d in WIDTHS for router in (("dense", 1), ("sinkhorn", 32))),
    Figure(
        "gpu-utilisation", "speed of a dense step of 370M as a share of the speed of a matrix product, bfloat16",
        {"step": Side("steps:our_step", LARGE, per=STEPS),
         "product": Side("steps:product", {"dtype": "bfloat16", "side": 8192})},
        _utilisation, ("at least", 0.5), backend="gpu",
    ),
    Figure(
        "gpu-sbase-step-e32",
        "time of an S-BASE training step divided by a dense step, 12 blocks, d = 768, E = 32, bfloat16",
        {"routed": _step(**_ON_GPU, router="sinkhorn", experts=32), "dense": _step(**_ON_GPU)},
        over("routed", "dense"), ("at most", 1.15), backend="gpu",
    ),
)  # fmt: skip
