"""Figures of the memory of a training step, over what has to be there, counted by hand.

Counted: parameters, their gradients, AdamW's two moments, the batch, and what the backward pass reads of the forward
pass. That is, for each token and block, 16 d numbers: the residual stream (d), its norm (d), query, key and value
(3 d), what attention gives (d), the residual stream after it (d), its norm (d), and the FFN's products before and after
its activation (8 d); and 2 d for the embedding and the last norm. Not counted: attention weights and logits of the
vocabulary, which can be computed in parts and again.

Two numbers are held against the count, and the larger one is the figure: what the compiler reserves (arguments,
results that are no arguments, and temporary buffers), and by how much the resident size of a process rises from before
its parameters to its peak in three steps (on a GPU: the peak of the device's own counter).
"""

import gc
import time
from pathlib import Path

import numpy as np

from .figure import Figure, Goal, Outcome
from .train_step import STEPS, draw_tokens, run_config, sizes_of
from .worker import Job

WIDTHS = (64, 256)

DEEP = {"blocks": 8}
"""Of the figures that compare a step with one that computes its blocks again."""


def counted_bytes(sizes: dict, parameters: int) -> float:
    """Return the bytes that have to be there in a dense step, float32."""
    tokens = sizes["batch"] * sizes["length"]
    activations = tokens * sizes["d_model"] * (16 * sizes["blocks"] + 2)
    return 4.0 * (4 * parameters + activations + sizes["batch"] * (sizes["length"] + 1))


def step_memory(**sizes) -> Job:
    """Return a job whose facts are the bytes of a step: counted, reserved and resident."""
    import jax

    from ..training.step import initial_state, wait_for

    config, facts = run_config(**sizes), {}
    windows = draw_tokens(0, (STEPS, config.batch_size, config.sequence_length + 1), config.model.vocab_size)

    def run():
        begin = time.perf_counter()
        steps, parameters = compiled_steps(config, windows)
        facts["compile_seconds"] = time.perf_counter() - begin
        facts["counted"], facts["reserved"] = counted_bytes(sizes, parameters), reserved_bytes(steps)
        state = jax.tree.map(np.asarray, initial_state(config))  # compiled and drawn before anything is counted
        facts["resident"] = _resident(jax, state, steps, windows, wait_for)

    return Job(run, lambda: facts)


def compiled_steps(config, windows) -> tuple:
    """Return the compiled function of the steps of a run on windows [n, b, S + 1], and its number of parameters."""
    import jax

    from ..training.step import initial_state, make_train_steps

    shapes = jax.eval_shape(lambda: initial_state(config))
    steps = jax.jit(make_train_steps(config), donate_argnums=0).lower(shapes, windows, 0).compile()
    return steps, sum(leaf.size for leaf in jax.tree.leaves(shapes.params))


def reserved_bytes(compiled) -> float:
    """Return the bytes that the compiler counts."""
    analysis = compiled.memory_analysis()
    own = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return float(analysis.argument_size_in_bytes + own + analysis.temp_size_in_bytes)


def _resident(jax, state, steps, windows, wait_for) -> float | None:
    """Return the bytes by which a process grows for its state and three calls; None where the system does not say.

    A call goes before, since the first one also reads the code that it runs from disk into memory. Between calls it
    waits as `routelaws train` does.
    """

    def take(calls):
        given = jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), state)
        for _ in range(calls):
            begun = time.perf_counter()
            given, metrics = steps(given, windows, 0)
            wait_for(metrics, begun)

    take(1)
    gc.collect()
    before = _status("VmRSS") if _forget_peak() else None
    take(3)
    if jax.default_backend() != "cpu":
        return float(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    return None if before is None else float(_status("VmHWM") - before)


def _forget_peak() -> bool:
    """Give freed memory back, and let the peak of the resident size begin from here; False where that cannot be."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError):
        return False
    return True


def _status(field: str) -> int:
    """Return a size from /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def over_count(bench, d_model: int, **other) -> Outcome:
    """Measure the memory of a step over the count, in a process of its own; `other` are fields of `run_config`."""
    sizes, threads = sizes_of(bench, d_model) | other, bench.threads()
    worker = bench.worker("memory", threads)
    worker.build("memory", "memory:step_memory", sizes)
    facts = worker.facts("memory")
    worker.drop("memory")
    value = max(facts["reserved"], facts["resident"] or 0.0) / facts["counted"]
    return Outcome(value, [value, value], {}, threads, facts=facts)


def _figure(d_model: int) -> Figure:
    what = f"memory of a dense training step over parameters, moments, gradients and activations, d = {d_model}"
    return Figure(f"memory-d{d_model}", what, Goal(1.3), lambda bench: over_count(bench, d_model))


def _deep_figure(rematerialise: bool) -> Figure:
    name, how = ("-rematerialised", ", every block computed again") if rematerialise else ("", "")
    what = f"memory of a dense training step over the count of all activations, d = 256, L = 8{how}"
    other = DEEP | {"rematerialise": rematerialise}
    return Figure(f"memory-d256-l8{name}", what, None, lambda bench: over_count(bench, 256, **other))


FIGURES = (*map(_figure, WIDTHS), *map(_deep_figure, (False, True)))
