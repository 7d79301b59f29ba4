"""How long one core takes to hand a line of memory over to another.

Two cores below one cache take some 25 nanoseconds, cores with caches of their own several times as long. The host of a
virtual machine moves its cores about, and says so nowhere: within seconds a training step on two threads, which wait
for each other after every operation, takes a sixth longer, a small one two thirds. Matrix products are as fast as
before.
"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..kernels.compile import jit_free
from ..kernels.memory import add_atomically, wait_until

WARM, PASSES, TAKINGS = 20, 200, 5
"""Handovers there and back: before the clock starts, and under it; and how often that is done. The least counts, since
threads of a library that have just computed still look for work."""


@jit_free
def _pass_on(place, first, passes):
    """Add one to the number at a place whenever it is first, first + 2, and so on."""
    for i in range(passes):
        wait_until(place, first + 2 * i)
        add_atomically(place, np.int64(1))


def handover_seconds(cores: list[int]) -> float:
    """Return the seconds that a handover takes between two cores.

    Args:
        cores: numbers of the two, as in `os.sched_getaffinity`.

    Raises:
        OSError or threading.BrokenBarrierError: a thread may not be kept to one of them.
    """
    counter, both = np.zeros(8, np.int64), threading.Barrier(2)
    place = np.int64(counter.ctypes.data)

    def there():
        _keep_to(cores[0], both)
        _pass_on(place, 1, TAKINGS * (WARM + PASSES))

    def back():
        _keep_to(cores[1], both)
        return [_timed(place, i * 2 * (WARM + PASSES)) for i in range(TAKINGS)]

    _pass_on(place, 0, 0)  # compiled before a thread waits for it
    with ThreadPoolExecutor(2) as threads:
        waiting, taken = threads.submit(there), threads.submit(back)
        waiting.result()
        return min(taken.result())


def _keep_to(core: int, both: threading.Barrier) -> None:
    """Keep this thread to a core, and wait for the other one; neither begins where one of them may not."""
    try:
        os.sched_setaffinity(0, {core})  # of this thread alone
    except OSError:
        both.abort()
        raise
    both.wait()


def _timed(place: np.int64, first: int) -> float:
    """Return the seconds of a handover, the mean of `PASSES` there and back after `WARM`."""
    _pass_on(place, first, WARM)
    begin = time.perf_counter()
    _pass_on(place, first + 2 * WARM, PASSES)
    return (time.perf_counter() - begin) / (2 * PASSES)


class Handover:
    """The handover between the first two cores of a process; called, it measures, and returns the seconds.

    It returns None where there is one core, and where a thread cannot be kept to one.
    """

    def __init__(self):
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores = cores[:2]
        self.least: float | None = None
        """Of all that were measured."""

    def __call__(self) -> float | None:
        if len(self._cores) < 2:
            return None
        try:
            seconds = handover_seconds(self._cores)
        except (OSError, threading.BrokenBarrierError):
            return None
        self.least = seconds if self.least is None else min(self.least, seconds)
        return seconds
