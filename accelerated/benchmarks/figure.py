"""What a figure of the benchmark is: a name, a goal, and how it is measured."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple


class Goal(NamedTuple):
    """A limit that a figure should keep.

    Attributes:
        limit: the number
        least: whether the figure has to be at least as large, not at most
    """

    limit: float
    least: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a value keeps the limit; NaN does not."""
        return value >= self.limit if self.least else value <= self.limit

    def __str__(self):
        return f"{'at least' if self.least else 'at most'} {self.limit:g}"


class Side(NamedTuple):
    """One of the things that a comparison times.

    Attributes:
        job: `module:function`, see `worker`
        options: of that function
        library: whose process runs it
        per: what the seconds of a call are divided by, such as the steps that it takes
    """

    job: str
    options: dict
    library: str = "jax"
    per: float = 1.0


@dataclasses.dataclass
class Outcome:
    """What was measured of a figure.

    Attributes:
        value: the figure
        spread: its quartiles over the rounds
        seconds: median of each side
        threads: of all sides
        rounds: how many were kept
        repeated: how many more were taken because some were disturbed
        disturbed: how many of those that were kept were disturbed; None where the load is not known
        floor_seconds: the least that our side could take on this machine, where that can be counted
        over_floor: our seconds over it
        facts: what else a reader needs
    """

    value: float
    spread: list[float]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    threads: int | None = None
    rounds: int = 1
    repeated: int = 0
    disturbed: int | None = None
    floor_seconds: float | None = None
    over_floor: float | None = None
    facts: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure: `measure` takes a `bench.Bench` and returns an `Outcome`.

    Attributes:
        name: of the family and of the figure in it, with hyphens
        what: what the number is, in words
        goal: None where none is set
        measure: see above
        unit: "x" for ratios
        backends: on which it makes sense
        threads: least number of cores that it needs
    """

    name: str
    what: str
    goal: Goal | None
    measure: Callable[..., Outcome]
    unit: str = "x"
    backends: tuple[str, ...] = ("cpu", "gpu", "tpu")
    threads: int = 1
