"""Each hostile input ends with a true answer, or with exit code 2 and a printable line. A seed draws the input.

    ROUTELAWS_FUZZ=3000-13000 pytest accelerated/tests/test_fuzz.py      the inputs of these seeds; 17-18 is one input

`make test` draws the seeds 0 to 299, in about 10 seconds, and `make test-all` the seeds up to 2,999. Each input runs a
command in this process (`cli.main`), in an empty folder. If a table follows a law exactly, the expected coefficients
are known.
"""

import contextlib
import csv
import functools
import gzip
import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import jax
import pytest
from numba.core import event

from routelaws.accelerated import cli
from routelaws.accelerated.commands.models import export, sweep
from routelaws.accelerated.training import loop
from routelaws.accelerated.training.step import initial_state

SECONDS = 30.0
"""CPU seconds of this process after which an input is a hang, without the time for compiling loops. They are seconds in
user mode (SIGVTALRM): libtpu sends SIGPROF to every thread, 100 times a second."""

LONGEST = 1000
"""Largest number of characters of a line on standard error."""

SHOWN = (RuntimeWarning, UserWarning, FutureWarning, SyntaxWarning)
"""Warnings that Python shows on the terminal."""


class Case(NamedTuple):
    arguments: list  # of the command
    judge: Callable[[str, str], str] = lambda out, err: ""  # the fault in the outputs of exit code 0


class Hang(BaseException):
    """Raised in a command that computes for too long. No handler of errors catches it."""


def _hang(*_):
    raise Hang


class Uncounted(event.Listener):
    """Stops the clock while numba compiles: on a new machine, the first fit of some laws compiles for a minute."""

    depth, left = 0, 0.0

    def on_start(self, event):
        if self.depth == 0:
            self.left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.depth += 1

    def on_end(self, event):
        self.depth -= 1
        if self.depth == 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, self.left)


def ended(arguments: list) -> tuple[int | None, str, str, str]:
    """Return the exit code of a command, its two outputs, and any fault that does not depend on the input."""
    out, err, code, wrong = io.StringIO(), io.StringIO(), None, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = signal.signal(signal.SIGVTALRM, _hang)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            with event.install_listener("numba:compiler_lock", Uncounted()):
                code = cli.main([str(argument) for argument in arguments])
        except (Exception, Hang) as error:
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/accelerated/" in frame.filename]
            place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
            wrong = f"{type(error).__name__} in {place}: {str(error)[:100]!r}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    for each in told:
        if issubclass(each.category, SHOWN):
            wrong = wrong or f"warns {Path(each.filename).name}:{each.lineno}: {str(each.message)[:100]!r}"
    return code, out.getvalue(), err.getvalue(), wrong


def fault(case: Case) -> str:
    """Return the fault of the result of an input; "" if there is none."""
    code, out, err, wrong = ended(case.arguments)
    raw = next((line for line in [*out.split("\n"), *err.split("\n")] if not line.isprintable()), "")
    long = next((line for line in err.split("\n") if len(line) > LONGEST), "")
    if wrong or raw or long:
        return wrong or (f"prints {raw[:80]!r}" if raw else f"says {len(long)} characters: {long[:60]!r}")
    if code == 0:
        try:
            return case.judge(out, err)
        except (ValueError, KeyError, ZeroDivisionError) as error:
            return f"{error!r} of {out[:100]!r}"
    said = [line for line in err.splitlines() if line.startswith("routelaws: ")]
    if code != 2 or len(said) != 1 or out:
        return f"exit code {code}, {len(said)} lines, {len(out)} characters of results: {err[-150:]!r}"
    after = err.splitlines()[err.splitlines().index(said[0]) + 1 :]  # more problems of the table, or more routers
    if len(after) > 21 or not all(line.startswith(("  ", "/")) for line in after):
        return f"{len(after)} lines more: {after[0][:80]!r}"
    return ""


# WHAT IS HOSTILE

CELLS = (
    "", " ", "nan", "NaN", "inf", "-inf", "1e308", "1e400", "-1", "0", "-0", "1e-320", "1_000", "１２３", "٣", "½", "∞",
    "0x10", "1,5", "1e6 ", "\t7", "9" * 400, "18446744073709551616", "9007199254740993", "=1+1", "@x", "\x1b[31mred",
    "a\nb", "\r", "\u202e1", "NULL", "None", "true", "'1'", '"', "x" * 10_000, "1M", "370M", "1.5B", "4e6 tokens",
    "1\u00a0000", "1.2.3", "--1", "1e", "+5", ".5", "5.", "{}", "[]", "{'a': 1}", "\0", "#N/A", "1e-300", "1;2",
    "\ufeff1", "[red]x[/red]", "[/]", "%s", "\\", "Infinity", "1d6", "1e0_6", "4294967296", "3.0000000001", "1e15",
)  # fmt: skip
NAMES = (
    "x" * 300, "x" * 20_000, "a\nb", "\x1b[31mred\x1b[0m", "=cmd|' /C calc'!A0", "@SUM(1)", "\u202eabc", "..", "../x",
    "a/b", " ", "nan", "Dense ", "dense", "é" * 200, "\x7f", "\u2028", "[bold]x[/bold]", "[/]", "%s{}", "$(x)", "`",
    "'", '"', "\\", "😀", "\udcff", "-", "--", "a=b", "a,b", "a:b", "NaN", "<b>x</b>", "|", "\r", "~", "*", "?",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "3", "-1", "1.5", "nan", "inf", "-inf", "1e308", "1e400", "2147483648", "9223372036854775808",
    "9" * 44, "1_0", "３", "0x10", "", " ", "x", "1e-320", "0.5", "1e6", "370M", "1.3B", "2^63", "True", "1,000",
)  # fmt: skip
JSON = (
    "null", "[]", "{}", "1", '"x"', "true", "NaN", "[" * 100_000, '{"a":' * 50_000, "[null]", "[[]]", "[{}]", "", "{",
    "\0", '[{"started": "x"}]', '{"name": 1, "runs": {}}', '{"runs": [null], "name": "x"}', "9" * 5000, "[1e999]",
)  # fmt: skip
TOML = (
    "0", "-1", str(2**63), "1e308", str(10**9), "nan", "inf", '"x"', "true", "[]", "{a = 1}", "[[1]]", '[["x"]]',
    "[1, 1]", str(list(range(200))), "1979-05-27", '"""a\nb"""', '"\\u001b[31m"', "x = " + "[" * 5000,
)  # fmt: skip
PLAIN = re.compile(r"\s*\+?(\d{1,15}\.?\d*|\.\d+)([eE]\+?\d{1,2})?\s*[KMBT]?( tokens)?\s*", re.ASCII)
"""Plausible numbers of a cell; any result of a law with these is no fault."""


def pick(draw: Random, *pools):
    return draw.choice(draw.choice(pools))


def mutated(draw: Random, content: bytes) -> bytes:
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        more = (b"\0", b"\xff", b"\n", b'"', b",", b";", b"\x1b[31m", b"\r", b"{", b"9" * 400, b"e400", b"-")
        flipped = bytes(byte ^ (1 << draw.randrange(8)) for byte in content[at : at + 1])
        content = draw.choice((
            content[:at] + flipped + content[at + 1 :], content[:at], content[:at] + content[end:],
            content[:at] + draw.choice(more) + content[at:], content[:end] + content[at:],
        ))  # fmt: skip
    return content


# TABLES THAT FOLLOW A LAW

LAW = {"bilinear": ("a", "b", "c", "d"), "separable": ("a", "b", "d")}
LAWS = (
    "dense", "per-size", "separable", "bilinear", "compute", "hoffmann", "kaplan", "joint", "sparsity", "fine-grained",
    "routed-bounded", "routed-utilisation", "leverage", "direct", "nothing",
)  # fmt: skip


class Runs(NamedTuple):
    law: str
    truth: dict[str, float]
    rows: list[dict]  # the last evaluation of each run


def runs_of(draw: Random) -> Runs:
    law = draw.choice(list(LAW))
    drawn = {"a": (-0.09, -0.05), "b": (-0.05, -0.02), "c": (0.001, 0.003), "d": (0.9, 0.9)}
    truth = {name: draw.uniform(*drawn[name]) for name in LAW[law]}
    sizes = [round(draw.uniform(1, 2) * 1e6) * 4**i for i in range(draw.randint(3, 5))]
    counts, rows = [1, *sorted(draw.sample((2, 4, 8, 16, 64, 256), draw.randint(2, 4)))], []
    for size, experts in itertools.product(sizes, counts):
        rows.append({
            "hyper_id": len(rows), "step": 1000, "router_type": "Dense" if experts == 1 else "Hash", "k": 1, "seed": 42,
            "num_experts": experts, "dense_parameter_count": size, "total_parameter_count": size * (1 + experts) // 2,
            "loss_validation": loss_of(truth, size, experts),
        })  # fmt: skip
    return Runs(law, truth, rows)


def loss_of(truth: dict[str, float], size: float, experts: float) -> float:
    n, e = math.log10(size), math.log10(experts)
    return 10 ** (truth["a"] * n + truth["b"] * e + truth.get("c", 0.0) * n * e + truth["d"])


def csv_text(rows: list[dict], names=None, **dialect) -> str:
    text, names = io.StringIO(), names or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, "", **({"lineterminator": "\n"} | dialect))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def written(path: Path, content: str | bytes) -> Path:
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def fitted(path: Path, runs: Runs, more=()) -> Case:
    """Return a fit of a table that must give the law's coefficients, unless there is a remark or an outlier."""

    def judge(out: str, err: str) -> str:
        said = json.loads(out, parse_constant=lambda text: 1 / 0)
        for fit in said["fits"]:
            remarks = said["remarks"] + fit["cautions"] + fit["misfit"]["outliers"] + said["not_fitted"]
            found = {name: float(each["value"]) for name, each in fit["coefficients"].items() if each["determined"]}
            off = [name for name, value in runs.truth.items() if abs(found.get(name, math.inf) - value) > 1e-6]
            if off and not remarks:
                return f"silent: {off[0]} is {found.get(off[0])}, not {runs.truth[off[0]]}"
        return ""

    return Case(["fit", path, "--law", runs.law, "--json", *more], judge)


def of_a_table(draw: Random, path: Path, folder: Path) -> Case:
    law = draw.choice(LAWS)
    if draw.random() < 0.01:
        return Case(["reproduce", path, "--out", folder / "out"])
    return Case(draw.choice((
        ["fit", path, "--law", law], ["fit", path, "--law", law, "--json"], ["downstream", path, "--cut", "1e20"],
        ["predict", path, "--law", law, "--n", "1e8", "--experts", "8"], ["convert", path, "--out", folder / "o.csv"],
        ["plan", path, "--law", "bilinear", "--flops", "1e18", "--memory", "80GB", "--resamples", "20"],
        ["plan", path, "--law", "bilinear", "--next", "slope"],
    )))  # fmt: skip


def cells(draw: Random, world: "World", folder: Path) -> Case:
    """Return a table with hostile cells: the fit is right, or a cell has an error or a remark."""
    runs, plain = runs_of(draw), False
    rows = [dict(row) for row in runs.rows]
    names, some = [*rows[0], "loss_validation", "run", "tokens", "d_model"], draw.choice((1, 1, 1, 1, len(rows)))
    for _ in range(draw.choice((1, 1, 2, 3))):
        name, cell = draw.choice(names), pick(draw, CELLS, NAMES)
        plain |= bool(PLAIN.fullmatch(cell)) or name == "step"
        for row in draw.sample(rows, some):
            row[name] = cell
    as_json = draw.random() < 0.2
    text = "".join(json.dumps(row) + "\n" for row in rows) if as_json else csv_text(rows)
    path = written(folder / ("t.jsonl" if as_json else "t.csv"), text)
    if plain or draw.random() < 0.4:
        return of_a_table(draw, path, folder)
    good = written(folder / "good.csv", csv_text([row | {"k": 1} for row in runs.rows]))
    return fitted(path, runs, [good] * (draw.random() < 0.3))


def files(draw: Random, world: "World", folder: Path) -> Case:
    """Return a table file with flipped, removed or inserted bytes or another separator, or another file."""
    rows = runs_of(draw).rows
    text = csv_text(rows, delimiter=draw.choice(",,,,,,,;\t| "))
    text = "".join(json.dumps(row) + "\n" for row in rows) if draw.random() < 0.3 else text
    content, name = mutated(draw, text.encode()), draw.choice(("t.csv", "t.csv", "t.jsonl", "t.csv.gz", "t"))
    others = (pick(draw, JSON).encode(), b"\xff\xfe" + text.encode("utf-16-le"))
    path = written(folder / name, draw.choice((content, content, content, *others)))
    if name == "t.csv.gz" and draw.random() < 0.5:
        path.write_bytes(mutated(draw, path.read_bytes()))
    return of_a_table(draw, path, folder)


# FLAGS


IDLE = {"--distributed", "--coordinator", "--processes", "--process-id", "--mesh", "--help", "--out", "--corpus"}


@functools.cache
def flags_of(command: str) -> dict[str, bool]:
    """Return {flag: whether its value is a number}, without flags that need other flags."""
    found = re.findall(r"^[│ ] (--[a-z][\w-]*)(.*)", ended([command, "--help"])[1], re.MULTILINE)
    return {flag: bool(re.search("INT|FLOAT", rest)) for flag, rest in found if flag not in IDLE}


def flags(draw: Random, world: "World", folder: Path) -> Case:
    """Return a command with hostile values of some flags. Text that is not a number must not count as a number."""
    out, bilinear = ["--out", folder / "out.csv", "--corpus", world.text], ["--law", "bilinear"]
    command, *arguments = draw.choice((
        ["train", *out], ["sweep", "smoke", *out], ["fit", world.table], ["predict", world.table, *bilinear],
        ["plan", world.table, *bilinear, "--resamples", "0"], ["plan-mesh", "--devices", "8", "--memory", "16GB"],
        ["convert", world.table, *out[:2]], ["export", *out[:2]],
    ))  # fmt: skip
    there, no_number = flags_of(command), False
    paths = [folder, world.table, folder / ("x" * 300), folder / "a\x1bb", "/dev/null"]
    pool = draw.choice((("0", "1", "2", "3", "0.5", "2147483648", "9" * 44), NUMBERS, [*NAMES, *paths]))
    for flag in draw.sample(list(there), min(len(there), draw.choice((1, 1, 2, 3)))):
        value = draw.choice(pool)
        no_number |= there[flag] and value in ("1_0", "３", "0x10", " ", "x")
        arguments += draw.choice(([flag, value], [f"{flag}={value}"], [flag, value, flag, value]))
    if draw.random() < 0.2:
        arguments[draw.randrange(len(arguments))] = pick(draw, NAMES, NUMBERS, paths)
    arguments = [command, *(str(argument).replace("\0", "") for argument in arguments)]
    return Case(arguments, lambda out, err: "takes it for a number" if no_number else "")


# LOGS

SOURCES = {
    "hyper_id": "run", "step": "it", "num_experts": "E", "dense_parameter_count": "N", "loss_validation": "val/loss",
    "router_type": "kind",
}  # fmt: skip
UNITS = {"nats": float, "bits": lambda loss: loss / math.log(2), "perplexity": math.exp}


def logs(draw: Random, world: "World", folder: Path) -> Case:
    """Return a log with other column names, and a specification that makes a table of it. One of the two is hostile."""
    runs, unit, plain = runs_of(draw), draw.choice(list(UNITS)), False
    rows = [{SOURCES[name]: row[name] for name in SOURCES} for row in runs.rows]
    for row in rows:
        row |= {"run": f"run {row['run']}", "val/loss": UNITS[unit](row["val/loss"])}
    flags = {"--columns": [f"{name}={source}" for name, source in SOURCES.items()], "--out": [folder / "out.csv"],
             "--map": ["router_type:Hash=Mine"], "--set": ["k=1"], "--loss-unit": [unit],
             "--unit": ["dense_parameter_count=1"]}  # fmt: skip
    if draw.random() < 0.6:
        name, cell = draw.choice(list(rows[0])), pick(draw, CELLS, NAMES)
        draw.choice(rows)[name], plain = cell, bool(PLAIN.fullmatch(cell))
    else:
        text = draw.choice(("{0}", "{0}={0}", "={0}", "{0}=", "loss_x={0}", "k={0}", "{0}:{0}={0}", "router_type:={0}"))
        text = text.format(pick(draw, NAMES, [*SOURCES, *SOURCES.values()])).replace("\0", "")
        flag = draw.choice((*flags, "--keep", "--config"))
        flags[flag] = draw.choice(([text], [*flags.get(flag, []), text]))

    def judge(out: str, err: str) -> str:
        table = Path(flags["--out"][-1])
        text = "" if table.suffix == ".gz" else table.read_text("utf-8", "replace")
        if run := re.search(r'(?:^|,)"?[=+@-](?![\d.]|inf\b)', text, re.MULTILINE):  # -inf is a number
            return f"writes a cell that a spreadsheet runs: {run[0]!r}"
        return "" if plain else fault(fitted(table, runs))

    path = written(folder / "log.csv", csv_text(rows))
    return Case(["convert", path, *(word for flag in flags for word in (flag, *flags[flag]))], judge)


# GRIDS

AXES = {
    "d_model": (8, 16, 24), "blocks": (2, 4), "seed": (1, 2, 3, 4), "steps": (1, 5), "learning_rate": (0.001, 0.01),
    "batch_size": (2, 4), "dtype": ('"float32"', '"bfloat16"'), "experts": (2, 4), "vocab_size": (300, 512),
}  # fmt: skip


def grids(draw: Random, world: "World", folder: Path) -> Case:
    """Return a grid with every combination of the values in its lists, or a hostile configuration for another
    command.
    """
    table, number, good = {"router": '"hash"', "heads": "1", "experts": "2"}, 1, draw.random() < 0.3
    for name in draw.sample(list(AXES), draw.randint(0, 4)):
        values = draw.sample(AXES[name], draw.randint(1, len(AXES[name])))
        number *= len(values)
        table[name] = f"[{', '.join(map(str, values))}]"
    names = (*AXES, "size", "corpus", "eval", "router", "k", "mesh", "nothing", '"\\u001b"')
    table |= {draw.choice(names): draw.choice(TOML) for _ in range(0 if good else draw.choice((1, 1, 2, 4)))}
    text = "[[runs]]\n" + "".join(f"{name} = {value}\n" for name, value in table.items())
    if not good and draw.random() < 0.4:
        flipped = mutated(draw, text.encode()).decode("utf-8", "replace")
        others = (text[1:].replace("]]", "]"), text + "[sizes]\na = 1\n", "base = 1\n" + text, "a." * 2000 + "b = 1")
        text = draw.choice((flipped, flipped, pick(draw, NAMES), *others))
    path, out = folder / "grid.toml", ["--out", folder / "out", "--corpus", world.text]
    if not good and draw.random() < 0.4:
        plan = ["plan-mesh", "--devices", "4", "--memory", "16GB"]
        written(path, text.replace("[[runs]]", ""))
        return Case([*draw.choice((["train", *out], plan, ["export", *out[:2]])), "--config", path])
    command = ["sweep", written(path, text), *out, "--index", "0", "--of", "1"]
    return Case(command, lambda out, err: f"{number} runs: {out}" if good and f" {number} of " not in out else "")


# FOLDERS


def folders(draw: Random, world: "World", folder: Path) -> Case:
    """Return a finished sweep with damaged, exchanged or missing files, which no reader may change."""
    place = Path(shutil.copytree(world.sweep, folder / "sweep"))
    there = sorted(path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
    for path in draw.sample(there, draw.choice((1, 1, 2))):
        damaged(draw, path, draw.choice(there))
    left = {path: path.read_bytes() for path in there if path.is_file()}
    runs, to = sorted((place / "runs").iterdir()), ["--out", folder / "out.csv"]
    command = draw.choice((
        ["report", place], ["report", *runs], ["convert", runs[0], *to], ["fit", runs[0], "--law", "dense"],
        ["fit", place / "results.csv", "--law", "dense"], ["evaluate", runs[0]], ["generate", runs[0]],
    ))  # fmt: skip

    def judge(out: str, err: str) -> str:
        changed = [path.name for path, content in left.items() if not path.is_file() or path.read_bytes() != content]
        return f"rewrites {changed[0]}" if changed else ""

    return Case(command, judge)


def damaged(draw: Random, path: Path, other: Path) -> None:
    content, values = path.read_bytes(), ("null", "[]", "0", "-1", "1e308", '"x"', "true", "8", "{}", "nan", "9" * 30)
    places = [*re.finditer(rb"(?<=: )[^,\n}]+|(?<=,)[^,\n]+", content)]
    path.unlink()
    way = draw.choice(("mutated", "mutated", "value", "value", "value", "json", "other", "link", "folder", "gone"))
    if way == "link":
        path.symlink_to(draw.choice((path, path.with_name("nowhere"))))
    elif way == "folder":
        path.mkdir()
    elif way == "value" and places:
        at = draw.choice(places)
        path.write_bytes(content[: at.start()] + draw.choice(values).encode() + content[at.end() :])
    elif way != "gone":
        hostile = {"json": pick(draw, JSON).encode(), "other": other.read_bytes() if other.is_file() else b""}
        path.write_bytes(hostile.get(way, mutated(draw, content)))


# WHAT INPUTS SHARE


class World(NamedTuple):
    """Files that inputs share and do not change."""

    text: Path
    table: Path
    sweep: Path


@pytest.fixture
def world(tmp_path, text_file, sweep):
    return World(text_file, written(tmp_path / "table.csv", csv_text(runs_of(Random(0)).rows)), sweep)


@contextlib.contextmanager
def untrained():
    def stop(run):
        jax.eval_shape(lambda: initial_state(run.config, run.layout))
        return [{"step": 1, "loss_validation": 1.0}]

    def shapes(config, platforms):
        config.check()
        jax.eval_shape(lambda: initial_state(config))
        return b"x"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "train", stop)
        patch.setattr(export, "export_train_step", shapes)
        patch.setattr(sweep, "run_sweep", lambda grid, *_, **__: [{"hyper_id": i} for i in range(len(grid.runs))])
        patch.setattr(sweep, "write_report", lambda folder: "")
        patch.setattr(sweep, "register", lambda folder: "")
        yield


KINDS = {cells: 6, files: 4, flags: 3, logs: 3, grids: 3, folders: 1}
"""Number of inputs of each kind among 20 inputs."""

QUICK = os.environ.get("ROUTELAWS_PROFILE", "quick") == "quick"
FIRST, END = map(int, os.environ.get("ROUTELAWS_FUZZ", "0-300" if QUICK else "0-10000").split("-"))
BATCH = 100


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.slow] * (first > FIRST)) for first in range(FIRST, END, BATCH)]
)
def test_a_true_answer_or_one_line(world, tmp_path, first):
    wrong, folder = [], tmp_path / "here"
    for seed in range(first, min(first + BATCH, END)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        draw = Random(seed)
        case = draw.choices(list(KINDS), KINDS.values())[0](draw, world, folder)
        with untrained(), contextlib.chdir(folder):
            said = fault(case)
        wrong += [f"{seed}: {said} {[str(word)[:60] for word in case.arguments]}"] if said else []
    assert not wrong, "\n".join(wrong[:10])
