"""Loops that are compiled while a sweep begins and trains, so that neither its runs nor its report need wait for them.

numba compiles them once on a machine: those of the experts in some 7 seconds of one core, those that fit the law in 14.
A process of the lowest priority does that in time that nobody else asks for: one core is idle while the text becomes
tokens, and now and then between two runs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..laws.fitting import fit_routed
from ..laws.uncertainty import Quantity, profile_intervals
from ..loops import CALLS, loops_run


@contextmanager
def compiled_ahead() -> Iterator[subprocess.Popen]:
    """Compile the loops of the law in a process beside what is done inside, which ends with it at the latest.

    Whoever needs a loop that this process is at work on waits for it, as among any processes (`kernels/compile.py`).
    """
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # No accelerator: a process that only imports JAX must not take memory of one.
    alone = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-P", "-m", __name__], env=alone, **quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compile_loops() -> None:
    """Compile the loops of training; then fit the law to a small table and take an interval of it, which compiles
    all that a report of a sweep compiles."""
    for call in CALLS:
        loops_run(call, np.float32)
    size, experts = (values.ravel() for values in np.meshgrid([1e4, 1e5, 1e6], [1.0, 2.0, 4.0, 8.0]))
    loss = (size / 1e3) ** -0.1 * experts**-0.03 * (1.0 + 1e-3 * np.cos(np.arange(size.size)))
    fit_routed(size, experts, loss)
    profile_intervals(size, experts, loss, [Quantity("slope", N=1e5)])


if __name__ == "__main__":
    if hasattr(os, "nice"):  # Windows has none
        os.nice(19)
    compile_loops()
