"""Kill many commands by SIGKILL, and repeat each. It must end with the table of an undisturbed run.

    python tools/campaign.py --runs 200 --seed 0 --json campaign.json      (`make campaign`)

    kill at a moment    at a random time: in a step, in the compiler, in the writing of a checkpoint
    kill at a file      just before a random operation on a file of the run: a checkpoint, the table, the log
    kill in the text    while the text is tokenized
    job array           one of three parallel tasks of a sweep

A run is the real command, in a fork of a process that has imported all modules but has started no JAX devices. The fork
saves the time of the imports. Compiled programs are cached between runs. A command that is not killed must end with
exit code 0 or 2, without a traceback. The campaign compares results.csv (without times), the losses by window and the
log (without speeds), byte by byte.
"""

import argparse
import collections
import csv
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from routelaws.accelerated.tables.schema import TIME_COLUMNS

FIELDS = {
    "vocab_size": 300, "d_model": 8, "heads": 1, "sequence_length": 16, "batch_size": 4, "steps": 24,
    "steps_per_call": 4, "evaluations": 3, "evaluation_tokens": 256, "checkpoint_every": 4,
}  # fmt: skip
MODELS = {
    "dense": {"router": "dense", "blocks": 1},
    "sinkhorn": {"router": "sinkhorn", "blocks": 2, "experts": 4, "capacity_factor": 1.25},
}
GRID = """
[base]
{base}
[[runs]]
router = "dense"
blocks = 1
seed = [1, 2, 3]
"""
WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.listdir")
"""Python's audit events of file operations; a fault may kill the process just before such an operation."""


class Ended(NamedTuple):
    code: int  # the exit code, or minus the signal
    said: str  # its standard error


# ONE COMMAND, IN A FORK


def start(arguments: list[str], said: Path, prepare=lambda: None, cache: Path | None = None) -> int:
    """Start a command in a fork of this process, and return its id; `prepare` sets up the fault in the fork."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(said, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 2)
            os.dup2(file.fileno(), 1)
        if cache is not None:
            os.environ["ROUTELAWS_CACHE"] = str(cache)
        from routelaws.accelerated import cli
        from routelaws.accelerated.training.sweeps import sweep

        # Workers are separate processes and import all modules again. So this process trains, as on an accelerator.
        sweep._train_in_workers = lambda todo, jobs, watch: sweep._train_here(todo, watch)
        prepare()
        code = cli.main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end(pid: int, said: Path) -> Ended:
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8", errors="replace"))


def run(arguments: list[str], said: Path, prepare=lambda: None, cache: Path | None = None) -> Ended:
    said.unlink(missing_ok=True)
    return end(start(arguments, said, prepare, cache), said)


def run_until(arguments: list[str], said: Path, seconds: float) -> Ended:
    """Run a command and kill it after some seconds, if it still runs."""
    said.unlink(missing_ok=True)
    pid, until = start(arguments, said), time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)  # an ended process exists until `end` collects it
    return end(pid, said)


# FAULTS INSIDE A COMMAND


def count_operations(below: Path, counts: Path):
    """Return a `prepare` that writes the path of each file operation below a folder, one per line."""

    def prepare():
        log = open(counts, "a", encoding="utf-8", buffering=1)
        _audit(below, lambda event, path: log.write(f"{event} {path}\n"))

    return prepare


def kill_before(below: Path, place: int):
    """Return a `prepare` that kills the process before the file operation with this number below a folder."""

    def prepare():
        left = [place]

        def count(event, path):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        _audit(below, count)

    return prepare


def _audit(below: Path, called) -> None:
    prefix = str(below)

    def hook(event, arguments):
        if event in WATCHED and arguments and isinstance(arguments[0], str | os.PathLike):
            if os.fspath(arguments[0]).startswith(prefix):
                called(event, os.fspath(arguments[0]))

    sys.addaudithook(hook)


# WHAT IS COMPARED


def table(folder: Path, name: str = "results.csv") -> list[dict]:
    """Return the rows of a table without times."""
    with open(folder / name, newline="", encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key not in TIME_COLUMNS} for row in csv.DictReader(file)]


def log(folder: Path) -> list[dict]:
    """Return the lines of a log without speeds."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


def difference(found: Path, wanted: Path) -> str | None:
    """Return the first difference between two folders of runs, or None."""
    if table(found) != table(wanted):
        return "results.csv"
    windows = "validation_windows.csv"
    if (wanted / windows).exists() and (found / windows).read_bytes() != (wanted / windows).read_bytes():
        return windows
    return "log.jsonl" if (wanted / "log.jsonl").exists() and log(found) != log(wanted) else None


class Campaign:
    """The undisturbed runs, and the faults.

    Args:
        folder: an empty folder for all files.
    """

    def __init__(self, folder: Path, seed: int):
        self.folder, self.draw = folder, random.Random(seed)
        self.text, self.said = folder / "lines.txt", folder / "said.txt"
        draw = random.Random(0)
        syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "so", "ti", "vu", "ze"]
        words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
        self.text.write_text(
            "".join(" ".join(draw.choices(words, k=draw.randint(3, 12))) + ".\n" for _ in range(2200)), encoding="utf-8"
        )
        self.grid = folder / "grid.toml"
        fields = {**FIELDS, "corpus": [str(self.text)]}
        self.grid.write_text(GRID.format(base="\n".join(f"{k} = {json.dumps(v)}" for k, v in fields.items())))
        self.whole: dict[str, Path] = {}
        self.seconds: dict[str, float] = {}
        self.operations: dict[str, int] = {}
        self.hits = collections.Counter()  # kills at file operations, by kind

    def command(self, model: str, out: Path) -> list[str]:
        fields = FIELDS | MODELS[model]
        flags = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        return ["train", *flags, "--corpus", str(self.text), "--out", str(out)]

    def task(self, index: int, of: int, out: Path) -> list[str]:
        return ["sweep", str(self.grid), "--index", str(index), "--of", str(of), "--out", str(out)]

    def train_undisturbed(self, models: list[str]) -> None:
        """Train each model once for its programs, and once for its table, its time and its file operations."""
        for model in models:
            run(self.command(model, self.folder / f"first-{model}"), self.said)
            out, counts = self.folder / f"whole-{model}", self.folder / f"operations-{model}"
            began = time.monotonic()
            ended = run(self.command(model, out), self.said, count_operations(out, counts))
            self.seconds[model] = time.monotonic() - began
            assert ended.code == 0, ended.said
            self.whole[model] = out
            self.operations[model] = len(counts.read_text().splitlines())
            assert difference(self.folder / f"first-{model}", out) is None, "two undisturbed runs differ"

    def train_undisturbed_sweep(self) -> None:
        out = self.folder / "whole-sweep"
        for index in range(3):
            ended = run(self.task(index, 3, out), self.said)
            assert ended.code == 0, ended.said
        assert len(table(out)) == 3 * FIELDS["evaluations"]
        self.whole["sweep"] = out

    # FAULTS: each takes a model and a fresh folder, and returns how the disturbed commands ended

    def kill_at_a_moment(self, model: str, out: Path) -> list[Ended]:
        wait = self.draw.uniform(0.02, 1.05) * self.seconds[model]
        return [run_until(self.command(model, out), self.said, wait)]

    def kill_at_a_file(self, model: str, out: Path) -> list[Ended]:
        place = self.draw.randrange(self.operations[model])
        lines = (self.folder / f"operations-{model}").read_text().splitlines()
        path = Path(lines[place].partition(" ")[2]).relative_to(self.whole[model])
        kind = path.parts[0] if path.parts else "the folder"
        self.hits["checkpoint" if kind == "checkpoints" else kind.split(".")[1] if kind[0] == "." else kind] += 1
        return [run(self.command(model, out), self.said, kill_before(out, place))]

    def kill_in_the_text(self, model: str, out: Path) -> list[Ended]:
        cache = self.folder / "fresh-cache"
        shutil.rmtree(cache, ignore_errors=True)
        kill = kill_before(cache, self.draw.randrange(16))
        ended = [run(self.command(model, out), self.said, kill, cache) for _ in range(2)]
        return [*ended, run(self.command(model, out), self.said, cache=cache)]

    def job_array(self, model: str, out: Path) -> list[Ended]:
        """Run both tasks of a sweep and a repetition of one in parallel. Kill one."""
        del model
        indices = [0, 1, self.draw.randrange(2)]
        outputs = [self.folder / f"said-{i}.txt" for i in range(3)]
        pids = []
        for index, path in zip(indices, outputs, strict=True):
            path.unlink(missing_ok=True)
            pids.append(start(self.task(index, 2, out), path))
        time.sleep(self.draw.uniform(0.1, 1.0) * 2 * self.seconds["dense"])
        os.kill(self.draw.choice(pids), signal.SIGKILL)
        return [end(pid, path) for pid, path in zip(pids, outputs, strict=True)]

    def one(self, kind: str, number: int) -> str | None:
        """Do a run with a fault, then repeat the command until it ends. Return the error, or None."""
        sweep = kind == "job array"
        model = "sweep" if sweep else self.draw.choice([name for name in self.whole if name != "sweep"])
        out = self.folder / f"run-{number}"
        ended = getattr(self, kind.replace(" ", "_").lower())(model, out)
        commands = [self.task(i, 2, out) for i in range(2)] if sweep else [self.command(model, out)]
        ended += [run(arguments, self.said) for arguments in commands]
        for one in ended:
            if one.code not in (-signal.SIGKILL, 0, 2) or "Traceback" in one.said:
                return f"exit code {one.code}: {one.said[-600:]}"
        if any(one.code for one in ended[-len(commands) :]):
            return f"the last command failed: {ended[-1].said[-600:]}"
        wrong = difference(out, self.whole[model])
        if wrong is None:
            shutil.rmtree(out)
        return wrong and f"{wrong} differs"


KINDS = {"kill at a moment": 7, "kill at a file": 7, "kill in the text": 2, "job array": 1}
"""{kind of kill: number of its runs among 17 runs}."""


def order(kinds: list[str], runs: int, draw: random.Random) -> list[str]:
    """Return the fault of each run, in the shares of `KINDS`. Every kind comes once before any repetition."""
    whole = [kind for kind in kinds for _ in range(KINDS[kind])]
    draw.shuffle(whole)
    first = draw.sample(kinds, len(kinds))
    return (first + whole * (runs // len(whole) + 1))[:runs]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    flags.add_argument("--runs", type=int, default=200, help="number of disturbed runs (default: %(default)s)")
    flags.add_argument("--seed", type=int, default=0, help="seed of the faults (default: %(default)s)")
    flags.add_argument("--json", type=Path, help="write the counts to this file")
    for flag, metavar, what, choices in (("--kinds", "KIND", "faults", KINDS), ("--models", "MODEL", "models", MODELS)):
        help_text = f"{what} (default: all): {', '.join(choices)}"
        flags.add_argument(flag, nargs="+", choices=choices, default=list(choices), metavar=metavar, help=help_text)
    flags.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this many minutes")
    options = flags.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="routelaws-campaign-"))
    prepare_environment(folder)
    began, campaign = time.monotonic(), Campaign(folder, options.seed)
    campaign.train_undisturbed(options.models)
    if "job array" in options.kinds:
        campaign.train_undisturbed_sweep()
    print(f"undisturbed runs: {time.monotonic() - began:.0f} s", flush=True)
    done, failed = collections.Counter(), []
    for number, kind in enumerate(order(options.kinds, options.runs, campaign.draw)):
        if time.monotonic() - began > 60 * options.minutes:
            break
        wrong = campaign.one(kind, number)
        done[kind] += 1
        if wrong:
            failed.append({"run": number, "kind": kind, "folder": str(folder / f"run-{number}"), "wrong": wrong})
        print(f"{number + 1:4}/{options.runs}  {kind:20} {wrong or 'the same'}", flush=True)
    report(done, failed, campaign, options, time.monotonic() - began)
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


def prepare_environment(folder: Path) -> None:
    """Set one thread, a token cache and a folder of programs for all commands. Import their modules."""
    from routelaws.accelerated.training.sweeps.workers import thread_environment

    os.environ |= {**thread_environment(1), "ROUTELAWS_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "programs"))
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    import routelaws.accelerated.commands.models.sweep
    import routelaws.accelerated.commands.models.train  # noqa: F401
    from routelaws.accelerated.training.runs.result_rows import commit

    commit()  # cached, because a commit during the campaign would change the rows


def report(done: dict, failed: list[dict], campaign: Campaign, given: argparse.Namespace, seconds: float) -> None:
    print(f"\n{'fault':22}{'runs':>6}{'same table':>12}")
    for kind in done:
        bad = sum(failure["kind"] == kind for failure in failed)
        print(f"{kind:22}{done[kind]:6}{done[kind] - bad:12}")
    print(f"{'all':22}{sum(done.values()):6}{sum(done.values()) - len(failed):12}")
    print(f"kills at file operations, by file: {dict(campaign.hits)}; {seconds:.0f} s")
    for failure in failed:
        print(f"run {failure['run']} ({failure['kind']}), kept in {failure['folder']}: {failure['wrong']}")
    if given.json:
        content = {"seed": given.seed, "runs": sum(done.values()), "by_kind": done, "failed": failed}
        content |= {"killed_at": campaign.hits, "seconds": round(seconds)}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
