"""Times of several things that are measured in turns, and how much of the machine others had meanwhile.

A ratio of two times means something only if both were taken under the same conditions. So the sides of a comparison
are measured in rounds: each round runs a block of every side, the next one in the opposite order, and gives one ratio.
What is reported is the median of the ratios, and their quartiles as the spread.

A round is disturbed where other processes, or the host of a virtual machine, had more than `DISTURBED` of the cores
meanwhile, and where the host had put two cores apart (`handover`). It is taken again, a bounded number of times. Of all
rounds those with the least foreign load are kept, first of all those with the cores together, and the result says how
many of these were disturbed all the same.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .handover import Handover

DISTURBED = 0.05
"""Share of all cores that others may have in a round. An idle Linux machine has about 0.01; the clock of the kernel
counts in hundredths of a second, which is as much again in a round of a second."""

APART = 2.0
"""Times of the shortest handover from which two cores are apart; where a host moves them it is three to eight."""

_STOLEN_AND_BUSY = (0, 1, 2, 5, 6, 7)
"""Of a line `cpu` in /proc/stat: user, nice, system, irq, softirq and stolen; idle and waiting for a disk are not."""


class Round(NamedTuple):
    """One block of every side.

    Attributes:
        seconds: by side, the median of its block
        foreign: share of all cores that others had; None where that is not known
        handover: the longest between its blocks, seconds; None where that is not known
    """

    seconds: dict[str, float]
    foreign: float | None
    handover: float | None = None

    def is_apart(self, least: float | None) -> bool:
        """Return whether the cores were apart, beside the shortest handover of all."""
        return self.handover is not None and least is not None and self.handover > APART * least

    def is_disturbed(self, least: float | None = None) -> bool:
        """Return whether the cores were apart, or others had more of them than is allowed; what is not known is not
        held against a round."""
        return self.is_apart(least) or (self.foreign is not None and self.foreign > DISTURBED)


class Rounds(NamedTuple):
    """The rounds that are kept.

    Attributes:
        kept: in the order in which they were taken
        repeated: how many more were taken
        disturbed: how many of those that are kept were disturbed; None where the load is not known
    """

    kept: list[Round]
    repeated: int
    disturbed: int | None

    def seconds(self) -> dict[str, float]:
        """Return the median over the rounds, by side."""
        return {side: statistics.median(each.seconds[side] for each in self.kept) for side in self.kept[0].seconds}

    def spread(self, ratio: Callable[[dict], float]) -> tuple[float, list[float]]:
        """Return the median of what `ratio` makes of the seconds of each round, and the quartiles."""
        return median_and_quartiles([ratio(each.seconds) for each in self.kept])


class Load:
    """How much of the machine others have.

    Args:
        machine: CPU seconds that the machine has spent so far, on whatever; None where that is not known.
        own: CPU seconds that this process and those that it started have spent so far.
        wall: seconds so far, of a clock on the wall.
        cores: how many there are.
    """

    def __init__(
        self,
        own: Callable[[], float],
        machine: Callable[[], float | None] | None = None,
        wall: Callable[[], float] = time.monotonic,
        cores: int | None = None,
    ):
        self.own, self.machine, self.wall = own, machine or machine_seconds, wall
        self.cores = cores or os.cpu_count() or 1
        self.start()

    def start(self) -> None:
        """Count from here."""
        self.began = self.machine(), self.own(), self.wall()

    def foreign(self) -> float | None:
        """Return the share of all cores that others have had since `start`; None where that is not known."""
        machine, own, wall = self.machine(), self.own(), self.wall()
        if machine is None or self.began[0] is None or wall <= self.began[2]:
            return None
        theirs = (machine - self.began[0]) - (own - self.began[1])
        return max(0.0, theirs) / ((wall - self.began[2]) * self.cores)


def interleave(
    sides: dict[str, Callable[[], Sequence[float]]],
    rounds: int,
    load: Load,
    more: int,
    pause: float = 0.0,
    handover: Handover | None = None,
) -> Rounds:
    """Measure the sides in turns.

    Args:
        sides: by name, what runs a block and returns the seconds of its calls.
        rounds: how many to keep.
        load: the load of the machine.
        more: how many rounds may be taken beside these, where some are disturbed.
        pause: seconds before each block, in which the threads of the block before it go to sleep.
        handover: measured before each block and after the last, for sides that compute on two cores.

    Returns:
        `Rounds`.
    """
    taken: list[Round] = []
    least = lambda: None if handover is None else handover.least  # noqa: E731
    while sum(not each.is_disturbed(least()) for each in taken) < rounds and len(taken) < rounds + more:
        order = list(sides) if len(taken) % 2 == 0 else list(sides)[::-1]
        taken.append(_round(sides, order, load, pause, handover or (lambda: None)))
    together = lambda i: (taken[i].is_apart(least()), taken[i].foreign or 0.0, i)  # noqa: E731
    kept = [taken[i] for i in sorted(sorted(range(len(taken)), key=together)[:rounds])]
    known = all(each.foreign is not None for each in kept)
    disturbed = sum(each.is_disturbed(least()) for each in kept) if known else None
    return Rounds(kept, len(taken) - len(kept), disturbed)


def _round(
    sides: dict[str, Callable], order: list[str], load: Load, pause: float, handover: Callable[[], float | None]
) -> Round:
    """Run a block of each side, in this order."""
    load.start()
    seconds, handovers = {}, []
    for side in order:
        time.sleep(pause)
        handovers.append(handover())
        seconds[side] = statistics.median(sides[side]())
    time.sleep(pause)
    known = [each for each in (*handovers, handover()) if each is not None]
    return Round({side: seconds[side] for side in sides}, load.foreign(), max(known, default=None))


def median_and_quartiles(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the median and [first quartile, third quartile], both by linear interpolation between the values."""
    if len(values) == 1:
        return values[0], [values[0], values[0]]
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return middle, [first, third]


def machine_seconds(path: Path = Path("/proc/stat")) -> float | None:
    """Return the CPU seconds that all processes have spent since the machine started; None where it does not say."""
    try:
        fields = path.read_text(encoding="ascii").partition("\n")[0].split()
        return sum(int(fields[1 + i]) for i in _STOLEN_AND_BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def process_seconds(pid: int | str = "self") -> float:
    """Return the CPU seconds that a process and its children that have ended have spent; 0 where Linux does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
