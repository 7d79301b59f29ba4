"""Time several sides in turns, and measure the CPU share of other processes.

Each round runs a block of every side and gives a ratio. Successive rounds have opposite orders. The figure is the
median of the ratios. The tool pyperf finishes a benchmark before it starts the next, so its ratios compare different
minutes of the machine.

A round is disturbed if other processes, or the host of a virtual machine, used more than `DISTURBED` of the cores. The
benchmark repeats such rounds up to a limit, and then uses the least disturbed rounds.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

DISTURBED = 0.05
"""Share of all cores; an idle Linux machine uses about 0.01."""

_BUSY = (0, 1, 2, 5, 6, 7)
"""Fields of the line `cpu` in /proc/stat: user, nice, system, irq, softirq and stolen; not idle or waiting."""


class Round(NamedTuple):
    """A block of every side.

    Attributes:
        seconds: median of the block, by side
        foreign: share of all cores that other processes used; None if unknown
    """

    seconds: dict[str, float]
    foreign: float | None

    def is_disturbed(self) -> bool:
        """Return whether other processes used too much CPU; False for an unknown load."""
        return self.foreign is not None and self.foreign > DISTURBED


class Load:
    """The share of the cores that other processes use.

    Args:
        own: a function that returns the CPU seconds of the benchmark's processes.
        machine: a function that returns the CPU seconds of the whole machine; None if unknown.
    """

    def __init__(self, own: Callable, machine: Callable | None = None, wall: Callable = time.monotonic, cores: int = 0):
        self.own, self.machine, self.wall = own, machine or machine_seconds, wall
        self.cores = cores or os.cpu_count() or 1

    def start(self) -> None:
        self.began = self.machine(), self.own(), self.wall()

    def foreign(self) -> float | None:
        """Return the share of all cores that other processes used since `start`; None if unknown."""
        machine, own, wall = self.machine(), self.own(), self.wall()
        if machine is None or self.began[0] is None or wall <= self.began[2]:
            return None
        others = (machine - self.began[0]) - (own - self.began[1])
        return max(0.0, others) / ((wall - self.began[2]) * self.cores)


def interleave(
    sides: dict[str, Callable[[], Sequence[float]]], rounds: int, load: Load, more: int = 0, pause: float = 0.0
) -> list[Round]:
    """Measure sides in turns.

    Args:
        sides: functions by name; each runs a block and returns the seconds of its calls.
        more: largest number of additional rounds to replace disturbed rounds.
        pause: seconds before each block, so that threads of the previous block go to sleep.

    Returns:
        The least disturbed rounds, in the order of measurement.
    """
    taken: list[Round] = []
    while sum(not each.is_disturbed() for each in taken) < rounds and len(taken) < rounds + more:
        load.start()
        seconds = {}
        for side in list(sides) if len(taken) % 2 == 0 else list(sides)[::-1]:
            time.sleep(pause)
            seconds[side] = statistics.median(sides[side]())
        taken.append(Round(seconds, load.foreign()))
    calmest = sorted(range(len(taken)), key=lambda i: taken[i].foreign or 0.0)[:rounds]
    return [taken[i] for i in sorted(calmest)]


def median_and_quartiles(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the median and [first quartile, third quartile], interpolated linearly."""
    first, middle, third = np.percentile(values, (25, 50, 75)).tolist()
    return middle, [first, third]


def machine_seconds(path: Path = Path("/proc/stat")) -> float | None:
    """Return the CPU seconds of all processes since boot; None if Linux does not report them."""
    try:
        fields = path.read_text(encoding="ascii").partition("\n")[0].split()
        return sum(int(fields[1 + i]) for i in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def process_seconds(pid: int | str = "self") -> float:
    """Return the CPU seconds of a process and its ended children; 0 if Linux does not report them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
