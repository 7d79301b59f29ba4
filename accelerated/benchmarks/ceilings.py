"""What the machine can do at most: the rate of its matrix products, and how fast it moves memory.

A floor is counted with these: FLOPs over the one, bytes over the other. Both are measured with JAX, in float32; torch's
own rate is a figure beside, since a library that multiplies half as fast starts with half the machine.
"""

import functools
import os
import platform
from importlib.metadata import PackageNotFoundError, version

from .figure import Figure, Side
from .worker import Job

PEERS = ("torch", "transformers", "POT", "ott-jax", "ortools", "scipy")
"""Distributions that we are compared with."""

SIDE = 2048
"""Rows and columns of the matrices; 8192 where the processor is a GPU or a TPU."""

BYTES = 256 << 20
"""Of the array that is read and written; far more than any cache holds."""

BACKENDS = {1: ("cpu",), 2: ("cpu", "gpu", "tpu")}
"""Where figures with one thread and with two make sense: the threads of a GPU are not counted."""


def describe() -> Job:
    """Return a job whose facts are the machine and the versions of what runs on it."""
    import jax

    def installed(name):
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    own = ("routelaws", "jax", "jaxlib", "numpy", "numba")
    facts = {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in (*own, *PEERS)},
    }
    return Job(lambda: None, lambda: facts)


def _processor() -> str:
    """Return the model of the processor, as Linux names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        found = []
    return found[0] if found else platform.machine()


def product(quick: bool = False, dtype: str = "float32") -> Job:
    """Return a job that multiplies two square matrices with JAX."""
    import jax
    import jax.numpy as jnp

    side = 256 if quick else SIDE if jax.default_backend() == "cpu" else 4 * SIDE
    a, b = (jax.random.normal(jax.random.key(i), (side, side), jnp.dtype(dtype)) for i in range(2))
    multiply = jax.jit(jnp.matmul)
    return Job(lambda: wait(multiply(a, b)), lambda: {"flops": 2 * side**3})


def wait(arrays) -> None:
    """Wait until arrays of JAX are there."""
    import jax

    jax.block_until_ready(arrays)


def bandwidth(quick: bool = False) -> Job:
    """Return a job that reads an array and writes it back, in place."""
    import jax
    import jax.numpy as jnp

    size = (1 << 20 if quick else BYTES) // 4
    held = [jnp.zeros(size, jnp.float32)]
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def run():
        held[0] = jax.block_until_ready(add(held[0]))

    return Job(run, lambda: {"bytes": 8 * size})


def product_over_torch(bench, threads: int):
    """Measure torch's time of a matrix product over that of JAX."""
    threads = bench.threads(threads)
    options = {"quick": bench.settings.quick}
    sides = {
        "ours": Side("ceilings:product", options),
        "torch": Side("torch_peers:product", options, "torch"),
    }
    return bench.compare(sides, lambda s: s["torch"] / s["ours"], threads)


def _figure(threads: int) -> Figure:
    what = f"a matrix product of {SIDE} x {SIDE} x {SIDE}: torch's time over that of JAX, threads: {threads}"
    measure = functools.partial(product_over_torch, threads=threads)
    return Figure(f"product-t{threads}", what, None, measure, backends=BACKENDS[threads], threads=threads)


FIGURES = (_figure(1), _figure(2))
