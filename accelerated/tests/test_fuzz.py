"""Hostile inputs, drawn from seeds: each ends with a true answer, or with exit code 2 and one line that can be printed.

    make test                                            some 150 inputs; make test-all: 20 times as many
    python accelerated/tests/test_fuzz.py cells 17       input 17 of the kind `cells` again, with its output
    python accelerated/tests/test_fuzz.py all 0 500      the inputs 0 to 499 of every kind, counted by how they end

Every input runs a command in this process (`cli.main`), in an empty folder of its own. The truth is known where a table
follows a law exactly (any part of its runs gives the same coefficients), where a run is damaged that was whole, and
where a condition, a grid or an amount is computed here as well, by other means.
"""

import collections
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
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import jax
import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.commands import export, sweep
from routelaws.accelerated.training import loop
from routelaws.accelerated.training.step import initial_state

SECONDS = 30.0
"""Of this process, after which an input counts as a hang."""

LONGEST = 1000
"""Characters of a line on standard error."""

SHOWN = (RuntimeWarning, UserWarning, FutureWarning, SyntaxWarning)
"""Warnings that Python shows on the terminal."""


class Case(NamedTuple):
    """One input."""

    arguments: list  # of the command
    judge: Callable[[str, str], str] = lambda out, err: ""  # what is untrue of the outputs of exit code 0
    must: bool = False  # it is a good input: exit code 0


class Hang(BaseException):
    """Raised in a command that computes for too long; no handler of errors catches it."""


def _hang(*_):
    raise Hang


def ended(arguments: list) -> tuple[int | None, str, str, str]:
    """Run a command and return its exit code, its two outputs, and what is wrong whatever they say."""
    out, err, code, wrong = io.StringIO(), io.StringIO(), None, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = signal.signal(signal.SIGPROF, _hang)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = exit_.code or 0
        except (Exception, Hang) as error:
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/accelerated/" in frame.filename]
            place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
            wrong = f"{type(error).__name__} in {place}: {str(error)[:100]!r}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    for each in told:
        if issubclass(each.category, SHOWN):
            wrong = wrong or f"warns {Path(each.filename).name}:{each.lineno}: {str(each.message)[:100]!r}"
    return code, out.getvalue(), err.getvalue(), wrong


def fault(case: Case) -> tuple[int | None, str]:
    """Return the exit code of an input, and what is wrong with how it ended; "" for nothing."""
    code, out, err, wrong = ended(case.arguments)
    results = "" if case.arguments[0] == "generate" else out  # a model may say what it likes
    lines = [*results.split("\n"), *err.split("\n")]
    raw = next((line for line in lines if not line.isprintable()), "")
    long = next((line for line in err.split("\n") if len(line) > LONGEST), "")
    if wrong or raw or long:
        return code, wrong or (f"prints {raw[:80]!r}" if raw else f"says {len(long)} characters: {long[:60]!r}")
    if code == 0:
        try:
            return code, case.judge(out, err)
        except (ValueError, KeyError, ZeroDivisionError) as error:
            return code, f"{error!r} of {out[:100]!r}"
    said = [line for line in err.splitlines() if line.startswith("routelaws: ")]
    if code != 2 or len(said) != 1 or out:
        return code, f"exit code {code}, {len(said)} lines, {len(out)} characters of results: {err[-150:]!r}"
    after = err.splitlines()[err.splitlines().index(said[0]) + 1 :]  # more problems of one table, or routers of it
    if len(after) > 21 or not all(line.startswith(("  ", "/")) for line in after):
        return code, f"{len(after)} lines more: {after[0][:80]!r}"
    return code, f"refuses a good input: {said[0]!r}" if case.must else ""


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
EXPRESSIONS = (
    "(" * 3000, "k == 1 or " * 2000 + "k == 1", "__import__('os')", "k == '\x1b[31m'", "k ==", "clark", "k == 9**9**9",
    "k == 1 & seed == 42", "\ud800 == 1", "`k` == 1", "k = 1", "k == ½", "router_type == Hash", "None", "''", "not k",
    "k in 1", "k in [k]", "1e400 > k", "k == 1 # x", "k == 1;", "k\n== 1", "x" * 9000, "router_type < 1", "~(k == 1)",
)  # fmt: skip
TOML = (
    "0", "-1", str(2**63), "1e308", str(10**9), "nan", "inf", '"x"', "true", "[]", "{a = 1}", "[[1]]", '[["x"]]',
    "[1, 1]", str(list(range(200))), "1979-05-27", '"""a\nb"""', '"\\u001b[31m"', "x = " + "[" * 5000,
)  # fmt: skip
VALUES = (
    "null", "[]", "1", "0", "-1", "1e308", "1e9", '"x"', "true", "8", "2.5", "{}", "x", "nan", "9" * 30, '"\\u001b"',
)  # fmt: skip
PLAIN = re.compile(r"\s*\+?(\d{1,15}\.?\d*|\.\d+)([eE]\+?\d{1,2})?\s*[KMBT]?( tokens)?\s*", re.ASCII)
"""Numbers that a cell may well hold: what a law makes of one of them is no fault."""


def pick(draw: Random, *pools):
    """Return one of all that some pools hold."""
    return draw.choice(draw.choice(pools))


def mutated(draw: Random, content: bytes) -> bytes:
    """Return bytes with a few flipped, cut off, put in or said twice."""
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
    """Runs whose losses follow a law exactly."""

    law: str
    truth: dict[str, float]
    rows: list[dict]  # the last evaluation of each run


def runs_of(draw: Random) -> Runs:
    """Return runs of three to five sizes and as many numbers of experts."""
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
    """Return the loss of a model by a law."""
    n, e = math.log10(size), math.log10(experts)
    return 10 ** (truth["a"] * n + truth["b"] * e + truth.get("c", 0.0) * n * e + truth["d"])


def csv_text(rows: list[dict], names=None, **dialect) -> str:
    """Return rows as CSV."""
    text, names = io.StringIO(), names or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, "", **({"lineterminator": "\n"} | dialect))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def written(path: Path, content: str | bytes) -> Path:
    """Write a file, packed where its name says so; return its path."""
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def fitted(path: Path, runs: Runs, count: int | None = None, told: bool = False, must: bool = False, more=()) -> Case:
    """Return a fit of a table, whose coefficients have to be those of the law, from `count` rows.

    Where `told`, they may be others if a remark, a warning or an outlier is said.
    """

    def judge(out: str, err: str) -> str:
        said = json.loads(out, parse_constant=lambda text: 1 / 0)
        for fit in said["fits"]:
            remarks = said["remarks"] + fit["cautions"] + fit["misfit"]["outliers"] + said["not_fitted"]
            found = {name: float(each["value"]) for name, each in fit["coefficients"].items() if each["determined"]}
            off = [name for name, value in runs.truth.items() if abs(found.get(name, math.inf) - value) > 1e-6]
            if off and not (told and remarks):
                return f"silent: {off[0]} is {found.get(off[0])}, not {runs.truth[off[0]]}"
            if count is not None and fit["rows"] != count:
                return f"{fit['rows']} rows were fitted, not {count}"
        return ""

    return Case(["fit", path, "--law", runs.law, "--json", *more], judge, must)


def forms(draw: Random, world: "World", folder: Path) -> Case:
    """A table in another form that says the same: the law comes out."""
    runs = runs_of(draw)
    rows, names = [dict(row) for row in runs.rows], list(runs.rows[0])
    if draw.random() < 0.5:
        rows += [row | {"step": 10, "loss_validation": row["loss_validation"] + 1} for row in draw.sample(rows, 3)]
    rows += [dict(row) for row in draw.sample(rows, draw.choice((0, 0, 2)))]
    cells = ("{:.0f}", "{:.0f}.0", "{:.9e}", "+{:.0f}", " {:.0f} ", "{:.9E}", "0{:.0f}")
    for row in rows if draw.random() < 0.5 else ():
        row["dense_parameter_count"] = draw.choice(cells).format(row["dense_parameter_count"])
    if draw.random() < 0.3:
        names.append("note")
        rows = [row | {"note": NAMES[row["hyper_id"] % len(NAMES)].replace("\udcff", "")} for row in rows]
    draw.shuffle(rows)
    draw.shuffle(names)
    if draw.random() < 0.3:
        lines = [json.dumps({name: row[name] for name in names}) for row in rows]
        path = written(folder / draw.choice(("t.jsonl", "t.jsonl.gz", "t.ndjson")), "\n".join(lines) + "\n")
    else:
        text = csv_text(rows, names, quoting=draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)))
        text = text if "note" in names else text.replace("\n", draw.choice(("\n", "\r\n", "\n\n")))
        text = draw.choice(("", "\ufeff", "\n\n")) + text + draw.choice(("", "\n\n"))
        path = written(folder / draw.choice(("t.csv", "t.csv.gz", "table", "é t.CSV")), text)
    return fitted(path, runs, len(runs.rows), must=True)


def units(draw: Random, world: "World", folder: Path) -> Case:
    """Sizes with a unit, in the cells of a table or in the header of a log: the law comes out."""
    runs, column, out = runs_of(draw), "dense_parameter_count", folder / "out.csv"
    unit, word, scale = draw.choice((("K", "thousands", 1e3), ("M", "millions", 1e6), ("B", "billions", 1e9)))
    if draw.random() < 0.5:
        cell = "{:.12g}" + draw.choice(("", " ")) + unit
        rows = [row | {column: cell.format(row[column] / scale)} for row in runs.rows]
        return fitted(written(folder / "t.csv", csv_text(rows)), runs, len(runs.rows), must=True)
    head = draw.choice(("N ({})", "params_{}", "size [{}]", "N in {}", "{}")).format(draw.choice((unit, word)))
    rows = [{name: row[name] for name in row if name != column} | {head: row[column] / scale} for row in runs.rows]
    path = written(folder / "t.csv", csv_text(rows))
    name = not re.search(r"[([]|_[MB]|ons", head)  # without its unit N has a few digits, which is remarked on
    return Case(
        ["convert", path, "--columns", f"{column}={head}", "--out", out],
        lambda said, err: fault(fitted(out, runs, len(rows), told=name, must=not name))[1],
    )


def twice(draw: Random, world: "World", folder: Path) -> Case:
    """Tokens that are not steps times those of a step: remarked on; a thousandfold apart they are refused."""
    runs, factor = runs_of(draw), draw.choice((1, 1, 30, 0.02, 1e3, 1e-3, 1e6, 1e-9))
    batch, length = draw.choice((8, 512)), draw.choice((128, 2048))
    more = {"batch_size": batch, "sequence_length": length, "tokens": factor * 1000 * batch * length}
    case = fitted(written(folder / "t.csv", csv_text([row | more for row in runs.rows])), runs, len(runs.rows))

    def judge(out: str, err: str) -> str:
        told = any(remark.startswith("tokens:") for remark in json.loads(out)["remarks"])
        right = told == (factor != 1) and 1e-3 < factor < 1e3
        return case.judge(out, err) or ("" if right else f"tokens are {factor} of steps: {out[:200]}")

    return case._replace(judge=judge, must=0.01 < factor < 100)


def of_a_table(draw: Random, path: Path, folder: Path) -> Case:
    """Return a command that reads a table."""
    law = draw.choice(LAWS)
    if draw.random() < 0.03:
        return Case(["reproduce", path, "--out", folder / "out"])
    return Case(draw.choice((
        ["fit", path, "--law", law], ["fit", path, "--law", law, "--json"], ["downstream", path, "--cut", "1e20"],
        ["predict", path, "--law", law, "--n", "1e8", "--experts", "8"], ["convert", path, "--out", folder / "o.csv"],
        ["plan", path, "--law", "bilinear", "--flops", "1e18", "--memory", "80GB", "--resamples", "20"],
        ["plan", path, "--law", "bilinear", "--next", "slope"],
    )))  # fmt: skip


def cells(draw: Random, world: "World", folder: Path) -> Case:
    """A table with hostile cells: a fit is true, or a cell is refused or remarked on."""
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
    return fitted(path, runs, told=True, more=[good] * (draw.random() < 0.3))


def files(draw: Random, world: "World", folder: Path) -> Case:
    """A file of a table with bytes flipped, cut or put in, of another separator, or that is no table at all."""
    rows = runs_of(draw).rows
    text = csv_text(rows, delimiter=draw.choice(",,,,,,,;\t| "))
    text = "".join(json.dumps(row) + "\n" for row in rows) if draw.random() < 0.3 else text
    content, name = mutated(draw, text.encode()), draw.choice(("t.csv", "t.csv", "t.jsonl", "t.csv.gz", "t"))
    others = (pick(draw, JSON).encode(), b"\xff\xfe" + text.encode("utf-16-le"))
    path = written(folder / name, draw.choice((content, content, content, *others)))
    if name == "t.csv.gz" and draw.random() < 0.5:
        path.write_bytes(mutated(draw, path.read_bytes()))
    return of_a_table(draw, path, folder)


# CONDITIONS


def condition(draw: Random, deep: int = 3) -> str:
    """Return a condition in the grammar of `--rows` that Python reads in the same way."""
    if deep and draw.random() < 0.5:
        parts = [f"({condition(draw, deep - 1)})" for _ in range(2)]
        return draw.choice(("not {0}", "{0} and {1}", "{0} or {1}")).format(*parts)
    columns = ("k", "seed", "num_experts", "dense_parameter_count", "hyper_id", "loss_validation", "step", "tokens")
    numbers = ("1", "42", "16", "4", "1e7", "2.5", "0", "-3", "1000", "3e6")
    comparisons = ("==", "!=", "<", "<=", ">", ">=")
    left = draw.choice(("{}", "{}", "{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "-{}"))
    left = left.format(draw.choice(columns), pick(draw, columns, numbers))
    return draw.choice((
        f"router_type {draw.choice(comparisons[:4])} '{draw.choice(('Hash', 'Dense', 'E'))}'",
        f"{left} {draw.choice(('in', 'not in'))} [{', '.join(draw.choices(numbers, k=3))}]",
        *(f"{left} {draw.choice(comparisons)} {pick(draw, columns, numbers)}{more}" for more in ("", "", " < 1e6")),
    ))  # fmt: skip


def conditions(draw: Random, world: "World", folder: Path) -> Case:
    """A condition: the rows that it keeps are those that Python keeps, or it is refused."""
    runs = runs_of(draw)
    rows = [row | {"tokens": draw.choice((1e6, 5e7, math.nan)), "seed": draw.choice((1, 2, 42))} for row in runs.rows]
    path = written(folder / "t.csv", csv_text(rows).replace("nan", ""))
    text = condition(draw)
    if draw.random() < 0.3:
        text = draw.choice((draw.choice(EXPRESSIONS), mutated(draw, text.encode()).decode("utf-8", "replace")))
        return Case(["fit", path, "--law", runs.law, "--rows=" + text.replace("\0", "")])
    floats = [{name: float(v) if isinstance(v, int) else v for name, v in row.items()} for row in rows]
    try:
        kept = [row for row in floats if eval(text, {}, row)]
    except (ArithmeticError, TypeError):
        return Case(["fit", path, "--law", runs.law, "--rows=" + text])
    logs = [(1, math.log10(row["dense_parameter_count"]), math.log10(row["num_experts"])) for row in kept]
    decided = len(kept) > 6 and np.linalg.matrix_rank([(*log, log[1] * log[2]) for log in logs]) == 4
    return fitted(path, runs, len(kept), must=bool(decided), more=["--rows=" + text])


# CONVERT

SOURCES = {
    "hyper_id": "run", "step": "it", "num_experts": "E", "dense_parameter_count": "N", "loss_validation": "val/loss",
    "router_type": "kind",
}  # fmt: skip
UNITS = {"nats": float, "bits": lambda loss: loss / math.log(2), "perplexity": math.exp}


def conversions(draw: Random, world: "World", folder: Path) -> Case:
    """A log under other names, or a panel, and the flags that make a table of it; good, or hostile cells or flags."""
    runs, unit, plain = runs_of(draw), draw.choice(list(UNITS)), False
    kind = draw.choice(("good", "cells", "cells", "flags"))
    rows = [{SOURCES[name]: row[name] for name in SOURCES} for row in runs.rows]
    for row in rows:
        row |= {"run": f"run {row['run']}", "kind": row["kind"].replace("Dense", "none")}
        row["val/loss"] = UNITS[unit](row["val/loss"])
    flags = {"--columns": [f"{name}={source}" for name, source in SOURCES.items()], "--out": [folder / "out.csv"],
             "--map": ["router_type:none=Dense"], "--set": ["k=1"], "--loss-unit": [unit]}  # fmt: skip
    for row in draw.sample(rows, draw.choice((1, 1, 2))) if kind == "cells" else ():
        name, cell = draw.choice(list(row)), pick(draw, CELLS, NAMES)
        row[name] = cell
        plain |= bool(PLAIN.fullmatch(cell))
    if kind == "flags":
        text = draw.choice(("{0}", "{0}={0}", "={0}", "{0}=", "loss_x={0}", "k={0}", "{0}:{0}={0}", "router_type:={0}"))
        text = text.format(pick(draw, NAMES, [*SOURCES, *SOURCES.values()]))
        flag = draw.choice((*flags, "--keep", "--config"))
        flags[flag] = draw.choice(([text], [*flags.get(flag, []), text]))
    path = written(folder / "log.csv", csv_text(rows))
    if draw.random() < 0.3:
        config = csv_text([{name: row[name] for name in ("run", "E", "N", "kind")} for row in rows])
        panel = [{"Step": step} | {f"{row['run']} - val/loss": row["val/loss"] for row in rows} for step in (500, 1000)]
        path = written(folder / "panel.csv", csv_text(panel))
        flags.setdefault("--config", [written(folder / "config.csv", config)])
        flags["--columns"] = [pair for pair in flags["--columns"] if pair not in ("hyper_id=run", "step=it")]

    def judge(said: str, err: str) -> str:
        table, good = Path(flags["--out"][-1]), kind == "good"
        text = "" if table.suffix == ".gz" else table.read_text("utf-8", "replace")
        if bad := re.search(r'(?:^|,)"?[=+@-](?![\d.]|inf\b)', text, re.MULTILINE):  # -inf is a number
            return f"writes a cell that a spreadsheet runs: {bad[0]!r}"
        _, wrong = fault(fitted(table, runs, len(rows) if good else None, not good, good))
        return "" if plain else wrong

    return Case(["convert", path, *(word for flag in flags for word in (flag, *flags[flag]))], judge, kind == "good")


# GRIDS, AMOUNTS, FLAGS

AXES = {
    "d_model": (8, 16, 24), "blocks": (2, 4), "seed": (1, 2, 3, 4), "steps": (1, 5), "learning_rate": (0.001, 0.01),
    "batch_size": (2, 4), "dtype": ('"float32"', '"bfloat16"'), "experts": (2, 4), "vocab_size": (300, 512),
}  # fmt: skip


def grids(draw: Random, world: "World", folder: Path) -> Case:
    """A grid of runs: as many as its lists multiply to, or refused; and files of hostile fields for other commands."""
    table, number, good = {"router": '"hash"', "heads": "1", "experts": "2"}, 1, draw.random() < 0.4
    for name in draw.sample(list(AXES), draw.randint(0, 4)):
        values = draw.sample(AXES[name], draw.randint(1, len(AXES[name])))
        number *= len(values)
        table[name] = f"[{', '.join(map(str, values))}]" if len(values) > 1 or draw.random() < 0.5 else str(values[0])
    names = (*AXES, "size", "corpus", "eval", "router", "k", "mesh", "nothing", '"\\u001b"')
    table |= {draw.choice(names): draw.choice(TOML) for _ in range(0 if good else draw.choice((1, 1, 2, 4)))}
    text = "[[runs]]\n" + "".join(f"{name} = {value}\n" for name, value in table.items())
    if not good and draw.random() < 0.4:
        flipped = mutated(draw, text.encode()).decode("utf-8", "replace")
        others = (text[1:].replace("]]", "]"), text + "[sizes]\na = 1\n", "base = 1\n" + text, "a." * 2000 + "b = 1")
        text = draw.choice((flipped, flipped, pick(draw, NAMES), *others))
    path = written(folder / "grid.toml", text if good or draw.random() < 0.7 else text.replace("[[runs]]", ""))
    if not good and draw.random() < 0.4:
        out = ["--out", folder / "out", "--corpus", world.text]
        plan = ["plan-mesh", "--devices", "4", "--memory", "16GB"]
        return Case([*draw.choice((["train", *out], plan, ["export", *out[:2]])), "--config", path])
    command = ["sweep", path, "--out", folder / "out", "--corpus", world.text, "--index", "0", "--of", "1"]
    return Case(command, lambda out, err: f"{number} runs: {out}" if good and f" {number} of " not in out else "", good)


LETTERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
AMOUNTS = [
    *(("--flops", *pair) for pair in {"": 1.0, "E": 1e18, "Z": 1e21, " FLOPs": 1.0, "ZFLOPs": 1e21}.items()),
    *(("--memory", *pair) for pair in {"GB": 1e9, "GiB": 2.0**30, "TB": 1e12, "kB": 1e3, "": math.nan}.items()),
    *((flag, *pair) for flag in ("--inference-tokens", "--n") for pair in LETTERS.items()),
]


def amounts(draw: Random, world: "World", folder: Path) -> Case:
    """An amount with a unit: the number that it stands for comes back, or it is refused."""
    (flag, unit, scale), good = draw.choice(AMOUNTS), draw.random() < 0.6
    number = draw.choice(("1", "2.5", "370", "1e3", "1E+2", ".5", "5.", "007", "1e18", "3e-2", "1e20"))
    text = number + unit if good else draw.choice((number, "-", "")) + pick(draw, NUMBERS, CELLS, NAMES, [f" {unit}"])
    command = ["plan", "--law", "bilinear", "--resamples", "0", *(["--flops", "1e18"] * (flag != "--flops"))]
    command = ["predict", "--law", world.runs.law, "--experts", "4"] if flag == "--n" else command

    def judge(out: str, err: str) -> str:
        said = json.loads(out, parse_constant=lambda text: 1 / 0)
        found = said["at"]["dense_parameters"] if flag == "--n" else said["budget"][flag[2:].replace("-", "_")]
        if good and not math.isclose(found, float(number) * scale):
            return f"{text} is taken as {found}"
        losses = [each["value"] for each in said.get("predictions", ()) if found < 1e15]
        return "" if np.allclose(losses, loss_of(world.runs.truth, found, 4), rtol=1e-6) else f"{losses} at {found}"

    return Case([*command, world.table, "--json", f"{flag}={text}".replace("\0", "")], judge)


IDLE = {"--distributed", "--coordinator", "--processes", "--process-id", "--mesh", "--help", "--out", "--corpus"}


@functools.cache
def flags_of(command: str) -> dict[str, bool]:
    """Return the flags of a command, and whether their values are numbers; without those that wait for others."""
    found = re.findall(r"^[│ ] (--[a-z][\w-]*)(.*)", ended([command, "--help"])[1], re.MULTILINE)
    return {flag: bool(re.search("INT|FLOAT", rest)) for flag, rest in found if flag not in IDLE}


def flags(draw: Random, world: "World", folder: Path) -> Case:
    """A command with some of its flags, and values that are hostile: what is no number is not taken for one."""
    out, bilinear = ["--out", folder / "out.csv", "--corpus", world.text], ["--law", "bilinear"]
    command, *arguments = draw.choice((
        ["train", *out], ["sweep", "smoke", *out], ["fit", world.table], ["predict", world.table, *bilinear],
        ["plan", world.table, *bilinear, "--resamples", "0"], ["plan-mesh", "--devices", "8", "--memory", "16GB"],
        ["convert", world.table, *out[:2]], ["report", world.run], ["downstream", world.accuracies, "--cut", "1e20"],
        ["evaluate", world.run], ["generate", world.run, "--tokens", "2"], ["export", *out[:2]],
    ))  # fmt: skip
    there, no_number = flags_of(command), False
    paths = [folder, world.table, world.run, folder / ("x" * 300), folder / "a\x1bb", "/dev/null"]
    pool = draw.choice((("0", "1", "2", "3", "0.5", "2147483648", "9" * 44), NUMBERS, [*NAMES, *paths]))
    for flag in draw.sample(list(there), min(len(there), draw.choice((1, 1, 2, 3)))):
        value = draw.choice(pool)
        no_number |= there[flag] and value in ("1_0", "３", "0x10", " ", "x")
        arguments += draw.choice(([flag, value], [f"{flag}={value}"], [flag, value, flag, value]))
    if draw.random() < 0.2:
        arguments[draw.randrange(len(arguments))] = pick(draw, NAMES, NUMBERS, paths)
    arguments = [command, *(str(argument).replace("\0", "") for argument in arguments)]
    return Case(arguments, lambda out, err: "takes it for a number" if no_number else "")


def inputs(draw: Random, world: "World", folder: Path) -> Case:
    """A hostile file in the place of questions, texts, guess rates, embeddings, a table of runs or a law."""
    evaluate, name = ["evaluate", world.run], draw.choice(("t.jsonl", "t.txt", "t.txt.gz", "t.csv", "t.npy", "t.py"))
    task = '{"context": "ba ke", "choices": [" lo", " mi"], "answer": 1}\n' * 3
    good = written(folder / "task.jsonl", task)
    train, array = ["train", "--out", folder / "new", *world.flags, "--hash", "clustered"], io.BytesIO()
    np.save(array, np.ones((RUN["vocab_size"], 4)))
    table = "run,params,tokens,acc_task\nrun,1,2,0.5\n"
    contents, commands = draw.choice((
        (task, [*evaluate, "--task"]), ("ba ke lo. " * 300, [*evaluate, "--corpus"]),
        ('{"text": "ba ke lo."}\n' * 99, [*evaluate, "--corpus"]), (table, [*evaluate, "--task", good, "--table"]),
        ("task,random_accuracy\npower,0.25\n", ["downstream", world.accuracies, "--cut", "1e20", "--tasks"]),
        ("import math\n", ["fit", world.table, "--law"]), (array.getvalue(), [*train, "--hash-embeddings"]),
    ))  # fmt: skip
    contents = contents if isinstance(contents, bytes) else contents.encode()
    hostile = mutated(draw, contents) if draw.random() < 0.7 else draw.choice(JSON).encode()
    path = written(folder / name, hostile)
    return Case([*commands, f"{path}:x" if "--law" in commands else path])


# ACCURACIES


OF_ACCURACY = ("direct", "ratio", "ceiling", "broken", "repeated", "two-stage-linear", "two-stage-logistic")


def accuracy_rows() -> list[dict]:
    """Return runs with two tasks, one of which follows a power of the FLOPs."""
    rows = []
    for params in np.geomspace(1e7, 3e9, 10):
        flops, row = 120 * params**2 / 1e19, {"run": f"r{len(rows)}", "params": params, "tokens": 20 * params}
        loss = 3.2 * flops**-0.05
        steep = 0.9 / (1 + math.exp(3 * (loss - 3.2))) + 0.05
        rows.append(row | {"loss_validation": loss, "acc_power": math.exp(-0.8 * flops**-0.2), "acc_steep": steep})
    return rows


def accuracies(draw: Random, world: "World", folder: Path) -> Case:
    """A table of accuracies with hostile cells, names of tasks and flags."""
    rows = accuracy_rows()
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        name, cell = draw.choice([*rows[0], "guess_power", "flops"]), pick(draw, CELLS, NAMES)
        for row in draw.sample(rows, draw.choice((1, 1, 1, len(rows)))):
            row[name] = cell
    if draw.random() < 0.3:
        old = draw.choice(list(rows[0]))
        new = draw.choice((f"acc_{pick(draw, NAMES)}", f"loss_{pick(draw, NAMES)}", "acc_", "loss_", "params"))
        rows = [{(new if name == old else name): cell for name, cell in row.items()} for row in rows]
    path, law = written(folder / "t.csv", csv_text(rows)), draw.choice(OF_ACCURACY)
    more = (["--task", pick(draw, NAMES, ["power", "steep"])], ["--guess-rate", draw.choice(NUMBERS)], ["--json"], [])
    return Case([*draw.choice((
        ["downstream", path, "--cut", pick(draw, NUMBERS, ["1e20", "3e19"])], ["fit", path, "--law", law],
        ["predict", path, "--law", law, "--at", f"flops={draw.choice(NUMBERS)}"],
    )), *draw.choice(more)])  # fmt: skip


# FOLDERS


def folders(draw: Random, world: "World", folder: Path) -> Case:
    """A run with files that are cut, flipped, edited, exchanged, links or gone: the answer stays, or is refused."""
    run = folder / "run"
    shutil.copytree(world.run, run)
    there = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    for _ in range(draw.choice((1, 1, 1, 2))):
        top = [path for path in there if path.parent == run]
        _hurt(draw, draw.choice(top if draw.random() < 0.7 else there), there)
    name = draw.choice(("evaluate", "evaluate", "train", "generate", "report", "fit", "convert", "init", "sweep"))
    commands = world.commands(run) | {
        "report": ["report", run, world.run], "fit": ["fit", run, "--law", "dense"],
        "convert": ["convert", draw.choice((run, run / "tensorboard")), "--out", folder / "o.csv"],
        "init": ["train", "--out", folder / "new", *world.flags, "--init-from", run], "sweep": ["report", folder],
    }  # fmt: skip
    if name == "sweep":
        config = json.loads((world.run / "config.json").read_text())
        (folder / "sweep.json").write_text(json.dumps({"name": "x", "runs": [config]}))
        (folder / "runs").mkdir()
        run.rename(folder / "runs" / f"000-{world.name}")
        if draw.random() < 0.5:
            written(folder / draw.choice(("sweep.json", "sessions.json")), draw.choice(JSON))
    kept = [path for path in run.rglob("*") if path.is_file() and not re.match("events|config", path.name)]
    before = {path: path.read_bytes() for path in kept}

    def judge(out: str, err: str) -> str:
        whole = world.answers.get(name, out).replace("RUN", str(run))
        if any(str(run) in line and "has its last checkpoint" not in line for line in err.splitlines()):
            return ""  # said
        changed = [path.name for path in before if not path.is_file() or path.read_bytes() != before[path]]
        lost = f"rewrites {changed[0]} and says nothing" if changed else ""
        return lost if out == whole else f"silent: {out[:150]!r}, of the whole run {whole[:150]!r}"

    return Case(commands[name], judge)


def _hurt(draw: Random, path: Path, there: list[Path]) -> None:
    """Damage a file."""
    if not path.is_file():
        return
    kind = draw.choice(("mutated", "mutated", "edited", "edited", "json", "other", "link", "gone"))
    content, other = path.read_bytes(), draw.choice([path for path in there if path.is_file()]).read_bytes()
    if kind == "link":
        path.unlink()
        path.symlink_to(draw.choice((path, path.with_name("nowhere"))))
    elif kind == "gone":
        path.unlink()
        path.mkdir() if draw.random() < 0.5 else None
    elif kind == "edited" and path.suffix in (".json", ".jsonl", ".csv", ""):
        text = content.decode("utf-8", "replace")
        found = [*re.finditer(r"(?<=: )[^,\n}]+|(?<=,)[^,\n]+|\d+\.?\d*", text), re.match("", text)]
        at = draw.choice(found[:-1] or found)
        path.write_text(text[: at.start()] + draw.choice(VALUES) + text[at.end() :])
    else:
        path.write_bytes({"json": draw.choice(JSON).encode(), "other": other}.get(kind, mutated(draw, content)))


# WHAT INPUTS SHARE

RUN = {
    "vocab_size": 300, "d_model": 8, "heads": 1, "blocks": 1, "routing_frequency": 1, "router": "hash", "experts": 2,
    "steps": 4, "sequence_length": 8, "batch_size": 2, "steps_per_call": 2, "evaluations": 2, "evaluation_tokens": 256,
}  # fmt: skip


class World(NamedTuple):
    """What inputs share; none of them changes it."""

    text: Path
    run: Path  # a finished run
    name: str  # of it
    runs: Runs
    table: Path  # of these
    accuracies: Path
    flags: list[str]  # of the run
    answers: dict[str, str]  # {command: what it prints of the whole run}

    def commands(self, run: Path) -> dict[str, list]:
        """Return the commands whose results are compared with those of the whole run."""
        evaluate, train = ["evaluate", run, "--json"], ["train", "--out", run, *self.flags]
        return {"evaluate": evaluate, "train": train, "generate": ["generate", run, "--tokens", "3", "--prompt", "ba"]}


def make_world(folder: Path) -> World:
    """Train a run, and write what else inputs share."""
    draw = Random(0)
    words = ["".join(draw.choices(("ba", "ke", "lo", "mi", "nu", "ra"), k=draw.randint(1, 4))) for _ in range(400)]
    text = written(folder / "lines.txt", "".join(" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(1500)))
    flags = ["--tensorboard", "--corpus", text]
    for name, value in RUN.items():
        flags += ["--" + name.replace("_", "-"), value]
    runs = runs_of(draw)
    table = written(folder / "table.csv", csv_text(runs.rows))
    rows = written(folder / "accuracies.csv", csv_text(accuracy_rows()))
    code, out, err, wrong = ended(["train", "--out", folder / "run", *flags])
    assert code == 0, err + wrong
    world = World(text, folder / "run", re.search(": (.*?),", out)[1], runs, table, rows, flags, {})
    for name, command in world.commands(world.run).items():
        world.answers[name] = ended(command)[1].replace(str(world.run), "RUN")
    return world


@contextlib.contextmanager
def untrained():
    """Let the commands that train stop where training would begin, but for copies of the run that inputs share."""
    train = loop.Run.train

    def stop(run):
        if (run.folder / "checkpoints").exists():
            return train(run)
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


KINDS = {
    forms: 10, units: 10, twice: 5, cells: 30, files: 13, conditions: 20, conversions: 15, grids: 13, amounts: 10,
    flags: 15, inputs: 5, accuracies: 7, folders: 5,
}  # fmt: skip
"""How many inputs of each kind a batch has."""

LONG = 20 * (os.environ.get("ROUTELAWS_PROFILE", "quick") != "quick")
"""Batches beyond the first one."""


def run_seed(kind: Callable, seed: int, world: World, folder: Path) -> tuple[Case, int | None, str]:
    """Run one input in an empty folder; return it, its exit code, and what is wrong, "" for nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    case = kind(Random(f"{kind.__name__} {seed}"), world, folder)
    with contextlib.chdir(folder):
        return case, *fault(case)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("batch", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, LONG))])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_true_answer_or_one_line(world, tmp_path, kind, batch):
    found, size = [], KINDS[kind]
    with untrained():
        for seed in range(batch * size, (batch + 1) * size):
            case, _, wrong = run_seed(kind, seed, world, tmp_path / "here")
            found += [f"{kind.__name__} {seed}: {wrong} {[str(word)[:60] for word in case.arguments]}"] if wrong else []
    assert not found, "\n".join(found[:10])


def main(name: str, first: str, last: str = "") -> None:
    """Run inputs again and count how they end; of a single one the command and its output are shown."""
    place, counts, faults = Path(tempfile.mkdtemp(prefix="fuzz-")), collections.Counter(), collections.defaultdict(list)
    os.environ.setdefault("ROUTELAWS_CACHE", str(place / "cache"))
    world = make_world(place)
    with untrained():
        for kind in KINDS:
            for seed in range(int(first), int(last or int(first) + 1)) if name in ("all", kind.__name__) else ():
                case, code, wrong = run_seed(kind, seed, world, place / "here")
                counts[kind.__name__, code] += 1
                if wrong:
                    faults[kind.__name__, re.sub(r"\d+", "0", wrong)[:60]].append(seed)
                    print(kind.__name__, seed, wrong, [str(word)[:60] for word in case.arguments], flush=True)
                if not last:
                    print(*map(repr, map(str, case.arguments)), *ended(case.arguments), place, sep="\n")
    for key, count in sorted(counts.items(), key=str):
        print(*key, count)
    for (kind, where), seeds in sorted(faults.items()):
        print(f"{len(seeds)} x {kind}: {where} {seeds[:5]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
