"""Runs the suite on mutants of `routelaws.accelerated`, each in a process of its own. See `mutants.py`.

A parent that has imported the libraries, but nothing of `accelerated` and no backend of JAX, forks a child for each
mutant. The child finds the changed file through an import hook, so that every user of it sees the change and no other
process does, and runs the tests that reach the changed function, the cheap and near ones first, until one fails.

Compiled programs are kept between children: JAX's are found by what they compute; numba's are found by file and line,
so a child gets a copy without those of the changed function and of all that call it.
"""

import argparse
import fnmatch
import hashlib
import json
import math
import os
import random
import selectors
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from routelaws.conformance.meta import mutants
from routelaws.conformance.meta.mutant_child import path_of, plant, run_tests
from routelaws.conformance.meta.mutant_tests import callers, tests_for
from routelaws.conformance.meta.mutants import Mutant

LISTED = Path(__file__).with_name("survivors.toml")
OWN_TESTS = ("test_assignment.py", "test_auction.py", "test_fit.py", "test_law_*.py")
"""Tests of what the fast twin alone has: an auction, fits of many weightings and their loops. Not in a wheel."""
PATIENCE = 60.0
"""Seconds that a test may take beyond ten times its usual ones; a mutant that takes longer is killed, as "hangs"."""


def warm(work: Path) -> None:
    """Import what every child needs and set where compiled programs are kept; JAX's backend is not started."""
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(work / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": str(work / "numba"),
        "ROUTELAWS_PROFILE": "quick",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(work / "hypothesis"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "NUMBA_OPT": "1",  # most of the time is the compilers'
    }
    import hypothesis.extra.numpy  # noqa: F401
    import jax.numpy  # noqa: F401
    import numba  # noqa: F401
    import scipy.stats  # noqa: F401

    from routelaws.conformance.suite import strategies  # noqa: F401


def _own_numba_cache(mutant: Mutant, work: Path, own: Path) -> None:
    """Fill a folder with what numba has compiled, less the functions that hold the change."""
    stale = {name for _, name in callers(mutant)}
    for path in (work / "numba").rglob("*.nb[ic]"):
        if path.name.split(".")[1].rpartition("-")[0] not in stale:
            target = own / path.relative_to(work / "numba")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)


class _Child:
    """A process that runs tests; `told` fills with what it says."""

    def __init__(
        self,
        work: Path,
        order: list[str] | None,
        mutant: Mutant | None = None,
        *,
        files=None,
        first: bool = True,
        slow: bool = False,
    ):
        self.told, self.buffer, self.mutant, self.started = [], b"", mutant, time.monotonic()
        self.heard = self.started
        self.own = Path(tempfile.mkdtemp(prefix="mutant-", dir=work))
        files = files or sorted({path_of(test) for test in order})
        self.read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                os.close(self.read)
                code = self._live(work, files, write, order, first, slow)
            finally:
                os._exit(code)
        os.close(write)

    def _live(self, work, files, write, order, first, slow) -> int:
        log = os.open(self.own / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            if self.mutant is not None:
                plant(self.mutant)
                if self.mutant.file.startswith("kernels/"):
                    import numba

                    _own_numba_cache(self.mutant, work, self.own / "numba")
                    numba.config.CACHE_DIR = str(self.own / "numba")
            return run_tests(files, write, order, first, slow)
        except BaseException as error:
            os.write(write, (json.dumps(["fails", "import", f"{type(error).__name__}: {error}"[:300]]) + "\n").encode())
            raise

    def listen(self) -> bool:
        """Take what the child has said; return whether it lives."""
        data = os.read(self.read, 1 << 16)
        self.heard, self.buffer = time.monotonic(), self.buffer + data
        *lines, self.buffer = self.buffer.split(b"\n")
        self.told += [json.loads(line) for line in lines]
        return bool(data)

    def silent(self) -> float:
        """Return for how many seconds the child has said nothing."""
        return time.monotonic() - self.heard

    def test(self) -> str:
        """Return the test that began last, "" before the first."""
        return next((told[1] for told in reversed(self.told) if told[0] == "begins"), "")

    def end(self) -> int:
        """End the process and all that it started; return how it ended."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.read)
        shutil.rmtree(self.own, ignore_errors=True)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def result(self, tests: dict, hangs: bool) -> dict:
        """Return what became of the mutant."""
        fails = [told for told in self.told if told[0] == "fails"]
        passed, skipped = (sum(told[0] == word for told in self.told) for word in ("passes", "skips"))
        begun = sum(told[0] == "begins" for told in self.told)
        status = "killed" if fails else "hangs" if hangs else "survives"
        by = fails[0][1] if fails else self.test() if hangs else ""
        if not fails and not hangs and passed + skipped < begun:
            status, by = "killed", self.test()  # it took the process with it
        why = fails[0][2] if fails else ""
        return {
            "id": self.mutant.id,
            "change": self.mutant.change,
            "status": status,
            "by": by,
            "why": why,
            "tests": passed,
            "seconds": round(time.monotonic() - self.started, 1),
        }


def _hear(child: _Child) -> list[list]:
    """Return all that a child has said, once it has ended."""
    while child.listen():
        pass
    child.end()
    return child.told


def _learn_file(work: Path, file: Path) -> dict:
    """Return {test: {"words", "seconds", "slow"}} of a file of tests.

    Raises:
        RuntimeError: a test fails as it is, or there is none.
    """
    told = [one for one in _hear(_Child(work, None, files=[file])) if one[0] == "words"]
    tests = {test: {"words": words, "seconds": 10.0, "slow": slow} for _, test, words, slow in told}
    quick = [test for test in tests if not tests[test]["slow"]]
    for kind, test, detail in (one for one in _hear(_Child(work, quick, files=[file], first=False)) if len(one) == 3):
        if kind == "fails":
            raise RuntimeError(f"{test} fails without a change: {detail}")
        tests[test]["seconds"] = detail
    if not tests:
        raise RuntimeError(f"{file.name} has no tests, or cannot be imported")
    return tests


def learn(work: Path, files: list[Path], tell=print) -> dict:
    """Return {test: {"words", "seconds", "slow"}} of the unchanged package; files that were learned before are read.

    Args:
        work: the folder where that is kept, as tests.json.
        files: of tests.
        tell: called with a line for each file that is run.

    Raises:
        RuntimeError: a test fails as it is, or a file has none.
    """
    path, found = work / "tests.json", {}
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for file in files:
        stamp = hashlib.sha256(file.read_bytes()).hexdigest()
        if kept.get(file.name, {}).get("stamp") != stamp:
            tell(f"as it is: {file.name}")
            kept[file.name] = {"stamp": stamp, "tests": _learn_file(work, file)}
            path.write_text(json.dumps(kept, indent=0), encoding="utf-8")
        found |= kept[file.name]["tests"]
    return found


def run(
    chosen: list[Mutant],
    work: Path,
    tests: dict,
    *,
    jobs: int = 1,
    budget: float = math.inf,
    slow: bool = False,
    tell=lambda result: None,
) -> list[dict]:
    """Run the tests on each mutant and return what became of it.

    Args:
        chosen: the mutants.
        work: a folder for what is compiled.
        tests: of `learn`.
        jobs: how many at once.
        budget: seconds that the tests of one may usually take together.
        slow: run the slow tests too, after the others.
        tell: called with each result as it comes.
    """
    waiting, living, found = list(reversed(chosen)), {}, []
    quick = {test: known for test, known in tests.items() if slow or not known["slow"]}
    with selectors.DefaultSelector() as selector:
        while waiting or living:
            while waiting and len(living) < jobs:
                mutant = waiting.pop()
                child = _Child(work, tests_for(mutant, quick, budget) or list(quick), mutant, slow=slow)
                living[child.read] = child
                selector.register(child.read, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(timeout=1.0)}
            for read, child in list(living.items()):
                alive = child.listen() if read in ready else True
                hangs = child.silent() > PATIENCE + 10 * tests.get(child.test(), {"seconds": 0.0})["seconds"]
                if not alive or hangs or any(told[0] == "fails" for told in child.told):
                    selector.unregister(read)
                    del living[read]
                    child.end()
                    found.append(child.result(tests, hangs))
                    tell(found[-1])
    return found


# What is asked for, and what comes of it


def sample(every: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return `size` mutants, from each file and operator in proportion: every so-many-th of a list sorted by them."""
    draw = random.Random(seed)
    ordered = sorted(every, key=lambda one: (one.file, one.operator, draw.random()))
    step = len(ordered) / min(size, len(ordered))
    start = draw.random() * step
    chosen = [ordered[int(start + i * step)] for i in range(min(size, len(ordered)))]
    return sorted(chosen, key=lambda one: draw.random())


def wilson(killed: int, run: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    if not run:
        return 0.0, 1.0
    share, extra = killed / run, z * z / run
    reach = z * math.sqrt(share * (1 - share) / run + extra / (4 * run))
    return (share + extra / 2 - reach) / (1 + extra), (share + extra / 2 + reach) / (1 + extra)


def survivors() -> dict[str, dict]:
    """Return the survivors that were looked at, by id: their change, and why they live."""
    import tomllib

    return {one["id"]: one for one in tomllib.loads(LISTED.read_text("utf-8"))["survivor"]}


def summary(results: list[dict]) -> list[str]:
    """Return lines: counts by file, the score with its interval, and survivors that are not listed."""
    listed, lines = survivors(), []
    by_file = defaultdict(list)
    for one in results:
        by_file[one["id"].partition(":")[0]].append(one)
    for file, found in sorted(by_file.items()):
        dead = sum(one["status"] != "survives" for one in found)
        lines.append(f"{file:32} {len(found):5} run {dead:5} killed {100 * dead / len(found):6.1f} %")
    alive = [one for one in results if one["status"] == "survives"]
    dead, hung = len(results) - len(alive), sum(one["status"] == "hangs" for one in results)
    low, high = wilson(dead, len(results))
    lines.append(
        f"{len(results)} run, {dead} killed ({hung} of them hang): {100 * dead / max(len(results), 1):.1f} %, "
        f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
    )
    lines += [
        f"survives, {'listed' if one['id'] in listed else 'NOT LISTED'}: {one['id']}  {one['change']}" for one in alive
    ]
    return lines


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m routelaws.conformance.meta.mutants",
        description="Run the suite on changed copies of accelerated.",
    )
    add = found.add_argument
    add("--file", action="append", metavar="PATTERN", help="mutants of these files, such as 'laws/*'; repeatable")
    add("--id", action="append", metavar="ID", help="this mutant; repeatable")
    add("--sample", type=int, metavar="N", help="so many, in proportion from each file and operator")
    add("--seed", type=int, default=0, help="of the sample")
    add("--jobs", type=int, default=1, metavar="N", help="processes at once")
    add("--budget", type=float, default=120.0, metavar="SECONDS", help="of tests for one mutant; the nearest are run")
    add("--tests", action="append", metavar="FILE", help="run these tests alone, such as test_experts.py; repeatable")
    add("--slow", action="store_true", help="run the slow tests too")
    add("--list", action="store_true", help="print the mutants and stop")
    add("--again", action="store_true", help="run those too that have a result")
    add(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "routelaws-mutants",
        metavar="FOLDER",
        help="for what is compiled, and for results.jsonl, from which a run goes on",
    )
    return found


def _chosen(options) -> list[Mutant]:
    """Return the mutants that were asked for; only the files that these are of are read.

    Raises:
        SystemExit: there is no such file or mutant.
    """
    patterns = options.file or [one.partition(":")[0] for one in options.id or ()] or ["*"]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(mutants.files(), pattern)]
    fits = sorted({file for pattern in patterns for file in fnmatch.filter(mutants.files(), pattern)})
    chosen = {one.id: one for file in fits for one in mutants.mutants_of(file)}
    unknown += [one for one in options.id or () if one not in chosen]
    if unknown:
        raise SystemExit(f"{unknown[0]} is no file or mutant; --list prints the ids, which begin with the files")
    found = [chosen[one] for one in dict.fromkeys(options.id)] if options.id else list(chosen.values())
    return sample(found, options.sample, options.seed) if options.sample else found


def _test_files(names) -> list[Path]:
    """Return the files of tests that are run: those of the suite, and of what the reference has not."""
    suite, own = Path(__file__).parents[1] / "suite", mutants.folder() / "tests"
    found = [*sorted(suite.glob("test_*.py")), *(file for name in OWN_TESTS for file in sorted(own.glob(name)))]
    unknown = set(names or ()) - {file.name for file in found}
    if unknown:
        raise SystemExit(f"{unknown.pop()} is no file of tests; allowed: {', '.join(file.name for file in found)}")
    return [file for file in found if not names or file.name in names]


def _run_and_keep(left: list[Mutant], options, kept: Path) -> list[dict]:
    """Run the mutants that are left; print each result, and add it to the file."""
    warm(options.work)
    tests, count = learn(options.work, _test_files(options.tests)), 0
    with kept.open("a", encoding="utf-8") as file:

        def tell(result):
            nonlocal count
            count += 1
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(
                f"{count}/{len(left)} {result['seconds']:6.1f} s  {result['status']:8} {result['id']}"
                f"  {result['change']}  {result['by']}",
                flush=True,
            )

        return run(left, options.work, tests, jobs=options.jobs, budget=options.budget, slow=options.slow, tell=tell)


def main(arguments=None) -> int:
    """Run what is asked for. Exit code 1 where a mutant lives that is not listed."""
    options = parser().parse_args(arguments)
    chosen = _chosen(options)
    if options.list:
        print("\n".join(f"{one.id}  {one.change}" for one in chosen))
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / "results.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    known = {one["id"]: one for one in map(json.loads, lines)}
    done = (
        {}
        if options.again
        else {one.id: known[one.id] for one in chosen if one.id in known and known[one.id]["change"] == one.change}
    )
    left = [one for one in chosen if one.id not in done]
    left.sort(key=lambda one: one.file.startswith("kernels/"))  # the slow ones last: numba compiles them anew
    results = [*done.values(), *(_run_and_keep(left, options, kept) if left else [])]
    print("\n".join(summary(results)))
    listed = survivors()
    return int(any(one["status"] == "survives" and one["id"] not in listed for one in results))
