"""What figures are measured with: processes, rounds, the load of the machine, and its ceilings."""

import dataclasses
import math
from collections.abc import Callable

from ..cores import available_cores
from .figure import Outcome, Side
from .handover import Handover
from .measure import Load, interleave, process_seconds
from .worker import NotHereError, Worker

MOST_CALLS = 200
"""In a block."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        rounds: of each comparison
        more: rounds that may be taken beside these where some are disturbed
        block_seconds: how long a block should take, as far as its calls are not longer
        pause: seconds between two blocks
        quick: small sizes; no goal is judged
    """

    rounds: int = 5
    more: int = 10
    block_seconds: float = 0.4
    pause: float = 0.05
    quick: bool = False


QUICK = Settings(rounds=1, more=0, block_seconds=0.0, pause=0.0, quick=True)
"""For a smoke test: one round of one call."""


class Bench:
    """The processes of a benchmark and what they share; a context manager that ends them.

    Args:
        settings: how much is measured.
    """

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or Settings()
        self.workers: dict[tuple[str, int], Worker] = {}
        self.load, self.handover = Load(own=self._own_seconds), Handover()
        self._ceilings: dict[int, dict] = {}
        self._machine: dict | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            worker.close()

    def _own_seconds(self) -> float:
        return process_seconds() + sum(process_seconds(worker.pid) for worker in self.workers.values())

    def worker(self, library: str, threads: int) -> Worker:
        """Return the process of a library with so many threads; it is started where there is none, or none lives."""
        known = self.workers.get((library, threads))
        if known is None or known.process.poll() is not None:
            if known is not None:
                known.close()
            self.workers[library, threads] = Worker(threads, library)
        return self.workers[library, threads]

    def machine(self) -> dict:
        """Return backend, device, cores and versions, as a process of ours sees them."""
        if self._machine is None:
            worker = self.worker("jax", self.threads())
            worker.build("machine", "ceilings:describe", {})
            self._machine = worker.facts("machine")
            worker.drop("machine")
        return self._machine

    def threads(self, wanted: int = 2) -> int:
        """Return the number of threads for a figure that wants so many, which is no more than there are cores."""
        return max(1, min(wanted, available_cores()))

    def ceilings(self, threads: int | None = None) -> dict:
        """Return what the machine can do with so many threads: GFLOP/s and GB/s; measured once."""
        threads = threads or self.threads()
        if threads not in self._ceilings:
            options = {"quick": self.settings.quick}
            outcome = self.compare({"product": Side("ceilings:product", options)}, "product", threads)
            bandwidth = self.compare({"copy": Side("ceilings:bandwidth", options)}, "copy", threads)
            self._ceilings[threads] = {
                "threads": threads,
                "gflops": outcome.facts["product"]["flops"] / outcome.seconds["product"] / 1e9,
                "gbytes": bandwidth.facts["copy"]["bytes"] / bandwidth.seconds["copy"] / 1e9,
                "disturbed": (outcome.disturbed or 0) + (bandwidth.disturbed or 0),
            }
        return self._ceilings[threads]

    def measured_ceilings(self) -> list[dict]:
        """Return the ceilings that some figure has needed."""
        return [self._ceilings[threads] for threads in sorted(self._ceilings)]

    def floor(self, threads: int, flops: float = 0.0, traffic: float = 0.0) -> float:
        """Return the seconds that so many FLOPs and then so many bytes take at the ceilings of the machine."""
        ceilings = self.ceilings(threads)
        return flops / (1e9 * ceilings["gflops"]) + traffic / (1e9 * ceilings["gbytes"])

    def compare(
        self,
        sides: dict[str, Side],
        value: Callable[[dict], float] | str,
        threads: int = 2,
        floor: tuple[str, float] | None = None,
        rounds: int | None = None,
    ) -> Outcome:
        """Measure sides in turns.

        Args:
            sides: by name.
            value: makes the figure of the seconds of one round; or the side whose seconds are the figure.
            threads: of each process.
            floor: a side and the seconds of its floor.
            rounds: how many, where not as many as the settings say.

        Returns:
            `Outcome`, with what each job says of itself as its facts.
        """
        running = {name: self.worker(side.library, threads) for name, side in sides.items()}
        built = []
        try:
            calls = {}
            for name, side in sides.items():
                took = running[name].build(name, side.job, side.options)
                built.append(name)
                calls[name] = _calls(self.settings.block_seconds, took)
            blocks = {name: _block(running[name], name, side.per, calls[name]) for name, side in sides.items()}
            wanted = min(rounds or self.settings.rounds, self.settings.rounds)
            handover = None if threads < 2 or self.settings.quick else self.handover
            taken = interleave(blocks, wanted, self.load, self.settings.more, self.settings.pause, handover)
            facts = {name: found for name in sides if (found := running[name].facts(name))}
        finally:
            for name in built:
                if running[name].process.poll() is None:
                    running[name].drop(name)
        ratio = value if callable(value) else lambda seconds: seconds[value]
        middle, spread = taken.spread(ratio)
        found = Outcome(middle, spread, taken.seconds(), threads, len(taken.kept), taken.repeated, taken.disturbed)
        found.facts = facts
        if floor is not None:
            found.floor_seconds, found.over_floor = floor[1], found.seconds[floor[0]] / floor[1]
        return found

    def need_backend(self, *backends: str) -> None:
        """Raise NotHereError unless JAX runs on one of these backends."""
        here = self.machine()["backend"]
        if here not in backends:
            raise NotHereError(f"not on this backend ({here}); on {' or '.join(backends)}")


def _calls(block_seconds: float, seconds: float) -> int:
    """Return how many calls make a block."""
    return max(1, min(MOST_CALLS, math.ceil(block_seconds / max(seconds, 1e-9))))


def _block(worker: Worker, key: str, per: float, calls: int) -> Callable[[], list[float]]:
    """Return what runs a block."""
    return lambda: [seconds / per for seconds in worker.run(key, calls)]
