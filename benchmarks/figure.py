"""A figure of the benchmark: sides, timed in turns, and the ratio of their times."""

from collections.abc import Callable
from typing import NamedTuple


class Job(NamedTuple):
    """A timed job: `run` does the job once and waits for its end; `facts` describes the job.

    If `measures` is True, `run` returns the number to use in place of the seconds, such as GB.
    """

    run: Callable[[], object]
    facts: Callable[[], dict] = dict
    measures: bool = False


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        job: `file:function` of this folder; the function takes `options` and returns a `Job`
        options: keyword arguments; `--quick` adds quick=True
        library: the library whose process runs the job, a key of `worker.LIBRARIES`
        per: number by which to divide the seconds of a call, such as its number of steps
    """

    job: str
    options: dict
    library: str = "jax"
    per: float = 1.0


class Figure(NamedTuple):
    """A figure and its goal.

    Attributes:
        name: family and variant, with hyphens
        value: function from the seconds of a round, by side, to the figure
        goal: ("at most" or "at least", limit), or None
        threads: threads of each process; None for two, or one on a single core
        backend: "cpu" or "gpu"; "" for any
    """

    name: str
    what: str
    sides: dict[str, Side]
    value: Callable[[dict[str, float]], float]
    goal: tuple[str, float] | None = None
    threads: int | None = None
    backend: str = ""

    def holds(self, value: float) -> bool | None:
        """Return whether a value meets the goal; None without a goal."""
        if self.goal is None:
            return None
        return value <= self.goal[1] if self.goal[0] == "at most" else value >= self.goal[1]


def over(first: str, *others: str) -> Callable[[dict[str, float]], float]:
    """Return a function that divides the seconds of a side by the seconds of the fastest other side."""
    return lambda seconds: seconds[first] / min(seconds[other] for other in others)
