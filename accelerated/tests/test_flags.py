"""Every flag of the commands that read tables does what its name says, with an entry for each flag that the parser has.

A check runs a command with a value of the flag that is not its default, and compares what is said with a number that
is computed here: by least squares, by Student's t, by a formula that is printed, or by counting rows. A flag without an
entry fails, and so does an entry without its flag. Flags of commands that train are in `test_flags_of_runs.py`.
"""

import contextlib
import csv
import functools
import io
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from routelaws.accelerated import cli
from routelaws.accelerated.commands import downstream as downstream_command
from routelaws.accelerated.commands.fit import FitFlags
from routelaws.accelerated.commands.predict import PointFlags, predict
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.report import engine
from routelaws.accelerated.results.comparisons import downstream as downstream_laws
from routelaws.accelerated.results.prediction import INPUTS
from routelaws.accelerated.results.runs import read
from routelaws.conformance.plain.laws import Bounded
from routelaws.reference.laws import utilisation

LAW = Bounded(-0.083, -0.118, 0.0099, 1.1136, 2.075, 238.7)
SIZES, EXPERTS = (12_000_000, 40_000_000, 130_000_000, 400_000_000), (2, 8, 32, 128)
BATCH, LENGTH, STEPS = 64, 512, 1000
TOKENS = BATCH * LENGTH * STEPS
WIDTH, BLOCKS, HEADS, HEAD, VOCABULARY = 256, 16, 2, 32, 512


def pair(found: dict, name: str) -> list:
    """Return both ends of an interval of a prediction."""
    return [found["intervals"][name]["low"], found["intervals"][name]["high"]]


def runs() -> list[dict]:
    """Return dense runs and runs of two routers, those of seed 1 near a law and two of seed 2, one of them far away."""
    cells = [("Dense", n, 1, 1, 1.0) for n in SIZES]
    cells += [("Hash", n, e, 1, 1.0) for n in SIZES for e in EXPERTS]
    cells += [("S-Base", n, e, 1, 0.98) for n in SIZES for e in EXPERTS[:2]]
    cells += [("Hash", SIZES[1], 32, 2, 1.25), ("Hash", SIZES[2], 8, 2, 1.01)]
    rows = []
    for number, (router, size, experts, seed, factor) in enumerate(cells):
        loss = LAW.loss(size, experts) * factor * 10 ** (0.002 * math.sin(7 * number))
        rows.append(
            {
                "hyper_id": number, "step": STEPS, "router_type": router, "num_experts": experts, "k": 1, "seed": seed,
                "routing_frequency": "" if experts == 1 else 0.5, "dense_parameter_count": size,
                "total_parameter_count": size * (1 + 0.3 * (experts - 1)), "flops_per_step": 2 * size * BATCH * LENGTH,
                "batch_size": BATCH, "sequence_length": LENGTH, "d_model": WIDTH, "num_blocks": BLOCKS,
                "num_heads": HEADS, "kqv_size": HEAD, "vocab_size": VOCABULARY, "loss_validation": loss,
                "loss_c4": 1.1 * loss * 10 ** (0.002 * math.cos(5 * number)),
            }
        )  # fmt: skip
    return rows


def accuracies() -> list[dict]:
    """Return models with one task that follows a direct law, but for one model, and two that follow nothing exactly."""
    rows = []
    for size in (1e8, 3e8, 1e9, 3e9):
        for ratio in (5, 20, 80):
            flops, number = 6 * ratio * size**2, len(rows)
            web, books = 60 * flops**-0.07, 40 * flops**-0.06 * (1 + 0.03 * math.sin(5 * number))
            exact = 0.25 + 0.75 * math.exp(-(DIRECT[0] / flops ** DIRECT[1])) - 0.1 * (number == 7)
            wave = 0.01 * math.sin(3 * number)
            rows.append(
                {"run": f"m{number}", "params": size, "tokens": ratio * size, "loss_web": web, "loss_books": books,
                 "acc_exact": exact, "acc_one": 0.9 - 0.15 * web + wave,
                 "acc_two": 0.3 + 0.03 * math.log10(flops / 1e18)}
            )  # fmt: skip
    return rows


DIRECT = (0.8 * 1e19**0.2, 0.2)
"""A and alpha of the task `exact`, whose guess rate is 0.25."""


def save(path, rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


ROWS, ACCURACIES = runs(), accuracies()
MORE = [row | {"num_experts": 64, "loss_validation": 0.99 * row["loss_validation"]} for row in ROWS[4:8]]
"""Rows of a second table."""

CHECKS: dict[tuple[str, str], list] = {}
"""{(command, flag): functions that take `said`}."""


def of(command: str, *flags: str):
    """Enter a check of some flags of a command."""

    def enter(function):
        for name in flags:
            CHECKS.setdefault((command, name), []).append(function)
        return function

    return enter


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Run a command in a folder with tables; return what it prints, as an object with --json. Each is run once."""
    folder, before = tmp_path_factory.mktemp("flags"), os.getcwd()
    tables = {"table": ROWS, "more": MORE, "accuracies": ACCURACIES, "own": OWN, "runs": OWN_RUNS}
    for name, rows in (tables | {"rates": RATES, "leverages": LEVERAGES}).items():
        save(folder / f"{name}.csv", rows)

    @functools.cache
    def run(*words: str):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(list(words))
        assert code == 0, (words, err.getvalue())
        return json.loads(out.getvalue()) if "--json" in words else out.getvalue() + err.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        yield run
    assert os.getcwd() == before


# What least squares say, by hand.


def near(found, wanted, share: float = 1e-6) -> bool:
    return bool(np.allclose(found, wanted, rtol=share, atol=0))


def rows_of(router: str = "Hash", rows=None, **wanted) -> list[dict]:
    """Return the rows of a router and the dense ones, of those that have some values."""
    rows = ROWS if rows is None else rows
    return [r for r in rows if r["router_type"] in (router, "Dense") and wanted.items() <= r.items()]


class Line:
    """A law that is linear in logarithms, fitted to rows by least squares, with Student's intervals."""

    def __init__(self, rows: list[dict], law: str = "separable", loss: str = "loss_validation"):
        self.law = law
        self.design = np.array([self.point(r["dense_parameter_count"], r["num_experts"]) for r in rows])
        target = np.log10([r[loss] for r in rows])
        self.coefficients, (rss,), *_ = np.linalg.lstsq(self.design, target, rcond=None)
        self.freedom = len(rows) - self.design.shape[1]
        self.variance = rss / self.freedom

    def point(self, n: float, e: float) -> list[float]:
        x, y = math.log10(n), math.log10(e)
        return {"dense": [x, 1], "separable": [x, y, 1], "bilinear": [x, y, x * y, 1]}[self.law]

    def loss(self, n: float, e: float) -> float:
        return 10 ** (np.array(self.point(n, e)) @ self.coefficients)

    def interval(self, n: float, e: float, level: float = 0.95, run: bool = False) -> tuple[float, float]:
        """Return the interval of the law's own value, or of the loss of one more run."""
        at = np.array(self.point(n, e))
        spread = math.sqrt(self.variance * (at @ np.linalg.inv(self.design.T @ self.design) @ at + run))
        half = stats.t.ppf((1 + level) / 2, self.freedom) * spread
        return self.loss(n, e) * 10**-half, self.loss(n, e) * 10**half


def power(flops, values) -> tuple[float, float]:
    """Return A and alpha of values = A / flops^alpha, by least squares of the logarithms."""
    slope, offset = np.polyfit(np.log(flops), np.log(values), 1)
    return math.exp(offset), -slope


FLOPS = np.array([6 * row["params"] * row["tokens"] for row in ACCURACIES])


def column(name: str) -> np.ndarray:
    return np.array([row[name] for row in ACCURACIES])


def direct(task: str, guess: float, keep=slice(None)) -> tuple[float, float]:
    """Return A and alpha of -ln Q' = A / C^alpha, where Q' is the accuracy above guessing as a share."""
    return power(FLOPS[keep], -np.log((column(f"acc_{task}")[keep] - guess) / (1 - guess)))


def of_group(found: dict, group: str) -> dict:
    entries = found["predictions"] if "at" in found else found["fits"]
    [fit] = [fit for fit in entries if fit["task"] == group]
    return fit


# fit

FIT = ("fit", "table.csv", "--law", "separable", "--json")


def of_router(found: dict, router: str = "Hash") -> dict:
    [fit] = [fit for fit in found["fits"] if fit["router"] == router]
    return fit


def values(fit: dict) -> list[float]:
    return [each["value"] for each in fit["coefficients"].values()]


@of("fit", "positional", "--law", "--json")
def fit_takes_the_tables_and_the_law(said):
    for law in ("separable", "bilinear"):
        wanted = Line(rows_of(), law)
        assert near(values(of_router(said("fit", "table.csv", "--law", law, "--json"))), wanted.coefficients)
    fit = of_router(said("fit", "table.csv", "more.csv", "--law", "separable", "--json"))
    assert fit["rows"] == len(rows_of()) + len(MORE)
    assert near(values(fit), Line(rows_of() + MORE).coefficients)


@of("fit", "--loss")
def fit_takes_the_loss(said):
    found = said(*FIT, "--loss", "loss_c4")
    assert found["loss_column"] == "loss_c4"
    assert near(values(of_router(found)), Line(rows_of(), loss="loss_c4").coefficients)
    slope, offset = np.polyfit(column("loss_books"), column("acc_one"), 1)
    fit = of_group(said("fit", "accuracies.csv", "--law", "two-stage-linear", "--loss", "books", "--json"), "one")
    assert near(sorted(values(fit))[:1], [min(slope, offset)], 1e-4) and near(max(values(fit)[2:]), offset, 1e-4)


@of("fit", "--rows")
def fit_takes_the_rows(said):
    fit = of_router(said(*FIT, "--rows", "seed == 1 and num_experts < 100"))
    wanted = [row for row in rows_of(seed=1) if row["num_experts"] < 100]
    assert fit["rows"] == len(wanted) and near(values(fit), Line(wanted).coefficients)
    found = said("fit", "accuracies.csv", "--law", "direct", "--guess-rate", "0.1", "--rows", "params > 2e8", "--json")
    fit = of_group(found, "one")
    assert fit["rows"] == 9 and near(values(fit), direct("one", 0.1, column("params") > 2e8))


@of("fit", "--huber")
def fit_takes_the_delta(said):
    """A large delta is least squares; with a small one the wrong runs count for little: the law that made them."""
    rows = "router_type != 'S-Base'"
    large, small = (
        of_router(said("fit", "table.csv", "--rows", rows, "--huber", d, "--json")) for d in ("100", "0.001")
    )
    plain = large["least_squares"]["coefficients"]
    assert "Huber" in large["criterion"] and large["coefficients"]["a"]["low"] is None
    assert near(
        [large["coefficients"][name]["value"] for name in "abcd"], [plain[name]["value"] for name in "abcd"], 1e-3
    )
    truth = LAW.a, LAW.b, LAW.c, LAW.d
    misses = [
        np.abs(np.array([fit[name]["value"] for name in "abcd"]) - truth) for fit in (small["coefficients"], plain)
    ]
    assert (misses[0] < 0.5 * misses[1]).all(), misses
    flags = ("fit", "accuracies.csv", "--law", "ceiling", "--guess-rate", "0.25", "--task", "exact", "--json")
    least, small = (of_group(said(*flags, *more), "exact")["coefficients"] for more in ((), ("--huber", "1e-4")))
    assert abs(small["alpha"]["value"] / DIRECT[1] - 1) < 0.02 < abs(least["alpha"]["value"] / DIRECT[1] - 1)


@of("fit", "--task")
def fit_takes_the_task(said):
    flags = ("fit", "accuracies.csv", "--law", "direct", "--guess-rate", "0.1", "--json", "--task")
    assert [fit["task"] for fit in said(*flags, "two", "one")["fits"]] == ["two", "one"]
    assert near(values(of_group(said(*flags, "two", "one"), "two")), direct("two", 0.1))


@of("fit", "--guess-rate", "--tasks")
def fit_takes_the_guess_rate(said):
    flags = ("fit", "accuracies.csv", "--law", "direct", "--json")
    for more, rate in ((("--guess-rate", "0.2"), 0.2), (("--tasks", "rates.csv"), 0.125), ((), 0.0)):
        fit = of_group(said(*flags, *more), "two")
        assert fit["options"] == {"guess_rate": rate} and near(values(fit), direct("two", rate))


@of("fit", "--floor")
def fit_takes_the_floor(said):
    runs = [row for row in rows_of(seed=1) if row["router_type"] == "Hash"]
    flops = np.array([3 * row["flops_per_step"] * STEPS for row in runs])
    loss = np.array([row["loss_validation"] for row in runs])
    for more, floor in ((("--floor", "1.5"), 1.5), ((), 0.0)):
        found = of_router(said("fit", "table.csv", "--law", "compute", "--rows", "seed == 1", "--json", *more))
        assert near([found["coefficients"][name]["value"] for name in ("A", "alpha")], power(flops, loss - floor), 1e-5)


# predict

PREDICT = ("predict", "table.csv", "--law", "separable", "--json", "--n", "1e8", "--experts", "16")


def of_prediction(found: dict, router: str = "Hash") -> dict:
    [prediction] = [entry for entry in found["predictions"] if entry["router"] == router]
    return prediction


def says(found: dict, wanted: Line, n: float, e: float, level: float = 0.95, router: str = "Hash") -> bool:
    """Return whether a prediction and both of its intervals are those of a line."""
    one = of_prediction(found, router)
    ends = [*wanted.interval(n, e, level), *wanted.interval(n, e, level, run=True)]
    return near([one["value"], *pair(one, "law"), *pair(one, "run")], [wanted.loss(n, e), *ends])


@of("predict", "positional", "--law", "--n", "--experts", "--json")
def predict_takes_the_point_and_the_law(said):
    assert says(said(*PREDICT), Line(rows_of()), 1e8, 16)
    assert says(said(*PREDICT[:-4], "--n", "3e9", "--experts", "5"), Line(rows_of()), 3e9, 5)
    found = said("predict", "table.csv", "more.csv", "--law", "bilinear", "--json", "--n", "2e8", "--experts", "3")
    assert says(found, Line(rows_of() + MORE, "bilinear"), 2e8, 3)


@of("predict", "--router")
def predict_takes_the_router(said):
    found = said(*PREDICT, "--router", "s-base")
    assert len(found["predictions"]) == 1 and says(found, Line(rows_of("S-Base")), 1e8, 16, router="S-Base")
    assert len(said(*PREDICT)["predictions"]) == 2


@of("predict", "--loss")
def predict_takes_the_loss(said):
    assert says(said(*PREDICT, "--loss", "loss_c4"), Line(rows_of(), loss="loss_c4"), 1e8, 16)
    flags = ("predict", "accuracies.csv", "--law", "two-stage-linear", "--at", "flops=1e21", "--json")
    for loss in ("web", "books"):
        A, alpha = power(FLOPS, column(f"loss_{loss}"))
        slope, offset = np.polyfit(column(f"loss_{loss}"), column("acc_one"), 1)
        fit = of_group(said(*flags, "--loss", loss), "one")
        assert near(fit["value"], slope * A / 1e21**alpha + offset, 1e-5)


@of("predict", "--rows")
def predict_takes_the_rows(said):
    assert says(said(*PREDICT, "--rows", "seed == 1"), Line(rows_of(seed=1)), 1e8, 16)

    found = said(
        "predict", "accuracies.csv", "--law", "direct", "--guess-rate", "0.1", "--rows", "params > 2e8", "--at",
        "flops=1e21", "--json",
    )  # fmt: skip
    A, alpha = direct("one", 0.1, column("params") > 2e8)
    assert near(of_group(found, "one")["value"], 0.1 + 0.9 * math.exp(-A / 1e21**alpha), 1e-5)


@of("predict", "--level")
def predict_takes_the_level(said):
    found = said(*PREDICT, "--level", "0.8")
    assert found["level"] == 0.8 and says(found, Line(rows_of()), 1e8, 16, 0.8)
    flags = ("predict", "accuracies.csv", "--law", "direct", "--guess-rate", "0.1", "--at", "flops=1e21", "--json")
    wide, narrow = (of_group(said(*flags, "--level", level), "one") for level in ("0.95", "0.8"))
    for name in ("law", "run"):
        outer, inner = pair(wide, name), pair(narrow, name)
        assert outer[0] < inner[0] < wide["value"] < inner[1] < outer[1]


@of("predict", "--huber")
def predict_takes_the_delta(said):
    """The wrong runs pull least squares up, and Huber's sum with a small delta not."""
    flags = ("predict", "table.csv", "--router", "hash", "--n", "4e7", "--experts", "32", "--json", "--huber")
    large, small = (of_prediction(said(*flags, delta)) for delta in ("100", "0.001"))
    truth = LAW.loss(4e7, 32)
    assert near(large["value"], large["least_squares"], 1e-4)
    assert abs(small["value"] / truth - 1) < 0.005 < 0.01 < large["value"] / truth - 1
    flags = ("predict", "accuracies.csv", "--law", "ceiling", "--guess-rate", "0.25", "--at", "flops=1e22", "--json")
    exact = 0.25 + 0.75 * math.exp(-DIRECT[0] / 1e22 ** DIRECT[1])
    least, small = (
        of_group(said(*flags, "--task", "exact", *more), "exact")["value"] for more in ((), ("--huber", "1e-4"))
    )
    assert abs(small - exact) < 0.003 < abs(least - exact)


@of("predict", "--teraflops", "--utilisation")
def predict_takes_teraflops_and_utilisation(said):
    """The point of the law in compute, whose coefficients `fit` gives."""
    rows = "router_type != 'S-Base' and seed == 1"
    found = said(*COMPUTE, "--rows", rows, "--teraflops", "0.5", "--utilisation", "3", "--json")
    [fitted] = read("table.csv").where(rows).fit("routed-utilisation").fits
    wanted = utilisation.predict_loss(np.array([0.5]), np.array([3.0]), fitted.best.coefficients)
    assert near(of_prediction(found)["value"], wanted)


COMPUTE = ("predict", "table.csv", "--law", "routed-utilisation")


@of("predict", "--at", "--floor")
def predict_takes_other_columns_and_the_floor(said):
    runs = [row for row in rows_of(seed=1) if row["router_type"] == "Hash"]
    flops = np.array([3 * row["flops_per_step"] * STEPS for row in runs])
    loss = np.array([row["loss_validation"] for row in runs])
    for more, floor in ((("--floor", "1.5"), 1.5), ((), 0.0)):
        A, alpha = power(flops, loss - floor)
        flags = ("--law", "compute", "--rows", "seed == 1", "--at", "flops=1e18", "--router", "hash", "--json")
        found = of_prediction(said("predict", "table.csv", *flags, *more))
        assert near(found["value"], floor + A / 1e18**alpha, 1e-5)


@of("predict", "--published")
def predict_takes_printed_coefficients(said):
    """Of Hoffmann et al. 2022 and of Besiroglu et al. 2024, as they are printed there."""
    printed = {
        "hoffmann": (1.6934, 406.4, 410.7, 0.3392, 0.2849),
        "besiroglu": (1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    }
    for name, (floor, A, B, alpha, beta) in printed.items():
        flags = ("predict", "--law", "hoffmann", "--n", "1e9", "--at", "tokens=2e10", "--published", name)
        wanted = floor + A / 1e9**alpha + B / 2e10**beta
        assert near(said(*flags, "--json")["value"], wanted, 1e-3) and f"{wanted:.2f}" in said(*flags)


@of("predict", "--task", "--guess-rate", "--tasks")
def predict_takes_the_task_and_its_guess_rate(said):
    flags = ("predict", "accuracies.csv", "--law", "direct", "--task", "two", "--at", "flops=1e21", "--json")
    for more, rate in ((("--guess-rate", "0.2"), 0.2), (("--tasks", "rates.csv"), 0.125), ((), 0.0)):
        found = said(*flags, *more)
        A, alpha = direct("two", rate)
        assert [fit["task"] for fit in found["predictions"]] == ["two"]
        wanted = rate + (1 - rate) * math.exp(-A / 1e21**alpha)
        assert near(found["predictions"][0]["value"], wanted, 1e-5)


PRINTED = ("predict", "--law", "hoffmann", "--n", "1e9", "--at", "tokens=2e10", "--published", "besiroglu")


# plan

PLAN = ("plan", "table.csv", "--law", "separable", "--no-published", "--json", "--flops", "1e16")
QUICK = ("--resamples", "0")


def lines_of(found: dict) -> list[dict]:
    """Return the options of the ranking of a table."""
    [ranking] = [ranking for ranking in found["rankings"] if ranking["kind"] == "table"]
    return ranking["options"]


def line_is(option: dict, rows, level: float = 0.95, law: str = "separable", loss: str = "loss_validation") -> bool:
    """Return whether the loss of an option and its intervals are those of a law at its size."""
    law = "dense" if option["router"] == "Dense" else law
    wanted, at = Line(rows, law, loss), (option["N"], option["num_experts"])
    ends = [*wanted.interval(*at, level), *wanted.interval(*at, level, run=True)]
    return near([option["value"], *pair(option, "law"), *pair(option, "run")], [wanted.loss(*at), *ends])


@of("plan", "positional", "--table", "--flops", "--json")
def plan_takes_the_table_and_the_budget(said):
    """A dense model of N parameters takes 2 N FLOPs a token forwards, and three times that to train."""
    for flops in (1e16, 4e16):
        for option in lines_of(said(*PLAN[:-1], str(flops), *QUICK)):
            assert near(option["flops"], flops) and near(option["N"], flops / (6 * TOKENS)), option
            assert line_is(option, rows_of(option["router"]))
    named = said("plan", "--table", "table.csv", *PLAN[2:], *QUICK)
    assert lines_of(named) == lines_of(said(*PLAN, *QUICK))
    both = said("plan", "table.csv", "--table", "more.csv", *PLAN[2:], *QUICK)
    assert both["rankings"][0]["rows"]["Hash"] == len(rows_of()) + len(MORE)


@of("plan", "--inference-tokens")
def plan_pays_for_inference(said):
    for option in lines_of(said(*PLAN, *QUICK, "--inference-tokens", "1e8")):
        assert near(option["N"], 1e16 / (6 * TOKENS + 2 * 1e8))


@of("plan", "--tokens")
def plan_takes_the_tokens(said):
    tokens = 0.96 * TOKENS  # a law that does not know of tokens takes those of its runs alone
    for option in lines_of(said(*PLAN, *QUICK, "--tokens", str(tokens))):
        assert near(option["tokens"], tokens) and near(option["N"], 1e16 / (6 * tokens))
    found = said(*(word for word in PLAN if word != "--no-published"), *QUICK, "--tokens", str(tokens))
    printed = [option for ranking in found["rankings"][1:] for option in ranking["options"]]
    assert printed and all(near(option["tokens"], tokens) for option in printed)


@of("plan", "--memory", "--dtype", "--cached-tokens")
def plan_keeps_within_the_memory(said):
    """P and the embedding, and of each cached token a key and a value in every head of every block."""
    numbers = {option["num_experts"]: option["P"] + VOCABULARY * WIDTH for option in lines_of(said(*PLAN, *QUICK))}
    cache = 2 * BLOCKS * HEADS * HEAD
    for more, size, cached in (((), 2, 0), (("--dtype", "fp32"), 4, 0), (("--cached-tokens", "1e6"), 2, 1e6)):
        for option in lines_of(said(*PLAN, *QUICK, *more)):
            assert near(option["memory"], size * (numbers[option["num_experts"]] + cached * cache)), more
    limit = 1e8
    found = lines_of(said(*PLAN, *QUICK, "--memory", "100MB"))
    assert found and all(option["memory"] <= 1.0001 * limit for option in found)
    assert max(option["memory"] for option in lines_of(said(*PLAN, *QUICK))) > limit


@of("plan", "--law")
def plan_takes_the_law(said):
    for option in lines_of(said("plan", "table.csv", "--law", "bilinear", *PLAN[4:], *QUICK)):
        assert line_is(option, rows_of(option["router"]), law="bilinear")


@of("plan", "--loss")
def plan_takes_the_loss(said):
    found = said(*PLAN, *QUICK, "--loss", "loss_c4")
    assert "loss_c4" in found["rankings"][0]["data"]
    assert all(line_is(option, rows_of(option["router"]), loss="loss_c4") for option in lines_of(found))


@of("plan", "--rows")
def plan_takes_the_rows(said):
    found = said(*PLAN, *QUICK, "--rows", "seed == 1")
    assert all(line_is(option, rows_of(option["router"], seed=1)) for option in lines_of(found))


@of("plan", "--published")
def plan_ranks_printed_laws(said):
    kinds = [ranking["kind"] for ranking in said(*(w for w in PLAN if w != "--no-published"), *QUICK)["rankings"]]
    assert kinds[0] == "table" and kinds.count("printed") > 2
    assert [ranking["kind"] for ranking in said(*PLAN, *QUICK)["rankings"]] == ["table"]


@of("plan", "--level")
def plan_takes_the_level(said):
    found = said(*PLAN, *QUICK, "--level", "0.8")
    assert found["level"] == 0.8
    assert all(line_is(option, rows_of(option["router"]), 0.8) for option in lines_of(found))


@of("plan", "--resamples")
def plan_draws_so_many_resamples(said):
    [ranking] = said(*PLAN, "--resamples", "7")["rankings"]
    shares = np.array([option["wins"] for option in ranking["options"]]) * ranking["resamples"]
    assert 0 < ranking["resamples"] <= 7 and near(shares.sum(), ranking["resamples"])
    [ranking] = said(*PLAN, *QUICK)["rankings"]
    assert {option["wins"] for option in ranking["options"]} == {None}


@of("plan", "--top")
def plan_shows_so_many(said):
    words = [word for word in PLAN if word != "--json"]
    for top in (2, 3):
        lines = [line.split() for line in said(*words, *QUICK, "--top", str(top)).splitlines()]
        places = [line[0] for line in lines if len(line) > 5 and line[0].isdigit() and line[1] != "of"]
        assert places == [str(i + 1) for i in range(top)]
    lines = [line.split() for line in said("plan", *NEXT, "--top", "2").splitlines()]
    assert [line[0] for line in lines if len(line) > 5 and line[0].isdigit() and line[1] != "of"] == ["1", "2"]


@of("plan", "--out")
def plan_writes_files(said):
    """What is written has what was asked for: the level, the loss and the budget in its heads, each option in a row."""
    flags = ("--level", "0.8", "--loss", "loss_c4", "--inference-tokens", "1e8", "--tokens", "3.2e7", "--out", "plan")
    found, folder = said(*PLAN, *QUICK, *flags), Path("plan")
    assert sorted(path.name for path in folder.iterdir()) == ["frontier.png", "frontier.svg", "plan.json", "plan.md"]
    assert json.loads((folder / "plan.json").read_text()) == found
    written = (folder / "plan.md").read_text()
    assert "loss_c4" in written and "budget: 1e16 FLOPs, 100M tokens of inference, 32M training tokens" in written
    rows = [line.split(" | ") for line in written.splitlines() if line.startswith("|")]
    assert "80 %" in rows[0] and len(rows) == 2 + len(lines_of(found))
    for row, option in zip(rows[2:], lines_of(found), strict=True):
        ends = " to ".join(f"{end:.3f}" for end in pair(option, "law"))
        assert row[1] == option["router"] and f"{option['value']:.4f}" in row and ends in row


NEXT = (
    "table.csv",
    "--next",
    "prediction",
    "--n",
    "1e9",
    "--experts",
    "64",
    "--router",
    "s-base",
    "--law",
    "separable",
)


def now_is(found: dict, wanted: Line, n: float, e: float, level: float = 0.95) -> bool:
    ends = wanted.interval(n, e, level)
    return near([found["now"]["low"], found["now"]["high"], found["now"]["width"]], [*ends, ends[1] - ends[0]])


@of("plan", "--next", "--n", "--experts", "--router")
def plan_next_asks_for_one_number(said):
    found = said("plan", *NEXT, "--json")
    assert found["asked"] == {"name": "prediction", "at": [1e9, 64.0]} and found["router"] == "S-Base"
    assert now_is(found, Line(rows_of("S-Base")), 1e9, 64)
    best = found["runs"][0]
    at = best["at"]["dense_parameters"], best["at"]["num_experts"]
    line = Line(rows_of("S-Base"))
    added = {"dense_parameter_count": at[0], "num_experts": at[1], "loss_validation": line.loss(*at)}
    ends = Line([*rows_of("S-Base"), added]).interval(1e9, 64)
    assert near([best["low"], best["high"]], ends) and best["width"] == min(run["width"] for run in found["runs"])
    found = said("plan", "table.csv", "--next", "b", "--router", "hash", "--law", "separable", "--json")
    ends = of_router(said(*FIT))["coefficients"]["b"]
    assert near([found["now"]["low"], found["now"]["high"]], [ends["low"], ends["high"]])


@of("plan", "--law", "--loss", "--rows", "--level", "--flops")
def plan_next_takes_what_a_fit_takes(said):
    words = ("plan", *NEXT, "--json")
    assert now_is(said(*words, "--level", "0.8"), Line(rows_of("S-Base")), 1e9, 64, 0.8)
    assert now_is(said(*words, "--loss", "loss_c4"), Line(rows_of("S-Base"), loss="loss_c4"), 1e9, 64)
    chosen = [row for row in rows_of("S-Base") if row["dense_parameter_count"] > 2e7]
    assert now_is(said(*words, "--rows", "dense_parameter_count > 2e7"), Line(chosen), 1e9, 64)
    assert now_is(said("plan", *NEXT[:-1], "bilinear", "--json"), Line(rows_of("S-Base"), "bilinear"), 1e9, 64)
    found, free = said(*words, "--flops", "1e16"), said(*words)
    dear = [run for run in free["runs"] if 6 * TOKENS * run["at"]["dense_parameters"] > 1e16]
    assert found["too_dear"] == len(dear) > 0 and len(found["runs"]) == len(free["runs"]) - len(dear)
    assert all(near(run["flops"], 6 * TOKENS * run["at"]["dense_parameters"]) for run in free["runs"])


# convert

OWN = [
    {"name": name, "it": it, "bits": loss + (it == 100) * 0.1, "kind": kind, "lr": 0.001, "set": "web"}
    for name, kind, loss in (("a", "none", 4.5), ("b", "hash", 4.25), ("c", "hash", 4.0))
    for it in (100, 200)
]
OWN_RUNS = [
    {"Name": name, "E": experts, "d_model": 64, "num_blocks": 4, "num_heads": 2, "kqv_size": 32}
    for name, experts in (("a", 1), ("b", 4), ("c", 16))
]
COLUMNS = "hyper_id=name,step=it,loss_validation=bits,num_experts=E,router_type=kind".split(",")


@functools.cache
def converted(said) -> tuple[list[dict], str]:
    words = ("--columns", *COLUMNS, "--set", "k=1", "seed=5", "routing_frequency=0.5", "--config", "runs.csv")
    words += ("--loss-unit", "bits", "--keep", "set,lr", "--map", "router_type:none=Dense", "router_type:hash=Hash")
    text = said("convert", "own.csv", "--out", "new.csv", *words)
    with open("new.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file)), text


@of("convert", "positional", "--out", "--columns", "--set", "--keep", "--map", "--config", "--loss-unit")
def convert_does_what_its_flags_say(said):
    rows, text = converted(said)
    assert "new.csv: 6 rows of 3 runs" in text
    assert [int(row["step"]) for row in rows] == [100, 200] * 3
    assert near([float(row["loss_validation"]) for row in rows], [row["bits"] * math.log(2) for row in OWN])
    assert [row["router_type"] for row in rows] == ["Dense"] * 2 + ["Hash"] * 4
    assert [int(row["num_experts"]) for row in rows] == [1, 1, 4, 4, 16, 16] and rows[0]["d_model"] == "64"
    assert {(row["k"], row["seed"]) for row in rows} == {("1", "5")}
    assert {(row["set"], float(row["lr"])) for row in rows} == {("web", 0.001)}


# report, reproduce, downstream

ELSEWHERE = {
    ("report", "positional"): "test_run_pairs.py",
    ("report", "--full"): "test_report.py",
}
"""Flags whose meaning has tests of its own: they are named there."""


@of("reproduce", "positional", "--out", "--rows", "--loss", "--huber", "--full")
def reproduce_takes_rows_loss_and_delta(said):
    """Of the runs that are left one is wrong: Huber's sum gives the law that made the others."""
    words = ("--rows", "dense_parameter_count < 3e8", "--loss", "loss_c4", "--huber", "0.001")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "draw_all", lambda *_, **__: [])
        said("reproduce", "table.csv", "more.csv", "--out", "report", *words, "--full")
    found = json.loads(Path("report/results.json").read_text())
    text = Path("report/report.md").read_text()
    chosen = {r: [row for row in rows_of(r) if row["dense_parameter_count"] < 3e8] for r in ("Hash", "S-Base", "Dense")}
    law = next(law for law in found["laws"] if law["router"] == "Hash")
    assert (found["table"]["row_choice"], found["table"]["loss_column"]) == (words[1], "loss_c4")
    assert near(
        -found["dense"]["coefficients"]["alpha"]["value"], Line(chosen["Dense"], "dense", "loss_c4").coefficients[0]
    )
    more = sum(row["dense_parameter_count"] < 3e8 for row in MORE)
    assert found["rows"]["routers"] == {"Hash": len(chosen["Hash"]) + more, "S-Base": len(chosen["S-Base"])}
    assert law["huber"]["delta"] == 0.001 and "delta = 0.001" in text and "C4 losses" in text
    robust, least = (np.array([fit["coefficients"][name]["value"] for name in "ab"]) for fit in (law["huber"], law))
    assert (np.abs(robust - [LAW.a, LAW.b]) < 0.5 * np.abs(least - [LAW.a, LAW.b])).all(), (robust, least)


@of("downstream", "positional", "--cut", "--tasks", "--loss", "--ratio", "--least-gain", "--json")
def downstream_takes_what_it_is_told(said):
    """With a law that predicts the rate of guessing and the least gain above it, and says so as its error."""
    laws = lambda gain: {"direct": lambda below, above, rate: np.full(len(above.flops), rate + gain)}  # noqa: E731
    chosen = [row for row in ACCURACIES if row["tokens"] == 20 * row["params"]]
    above = [row for row in chosen if 6 * row["params"] * row["tokens"] > 1e20]
    flags = ("--cut", "1e20", "--tasks", "rates.csv", "--loss", "books", "--ratio", "20", "--least-gain", "0.125")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downstream_laws, "_laws", laws)
        found, plain = (said("downstream", "accuracies.csv", "--json", *more) for more in (flags, ("--cut", "1e21")))
    assert (found["cut"], found["loss"], plain["loss"]) == (1e20, "books", "web")
    assert (found["scored_runs"], found["fitted_runs"]) == (len(above), len(chosen) - len(above))
    wanted = {task: np.mean([abs(rate + 0.125 - row[f"acc_{task}"]) for row in above])
              for task, rate in (("exact", 0.25), ("one", 0.0), ("two", 0.125))}  # fmt: skip
    assert found["errors"]["direct"] == pytest.approx(wanted)
    assert plain["errors"]["direct"]["two"] == pytest.approx(
        np.mean([abs(0.05 - row["acc_two"]) for row, flops in zip(ACCURACIES, FLOPS, strict=True) if flops > 1e21])
    )


RATES = [{"task": "two", "random_accuracy": 0.125}, {"task": "exact", "random_accuracy": 0.25}]
LEVERAGES = [{"activation": 0.1, "tian_granularity": 2, "flops": 1e20, "leverage": 2.0}]


def test_every_flag_has_a_check(flags_of):
    wanted = {(command, flag) for command in cli.COMMANDS if command not in cli.NEEDED for flag in flags_of(command)}
    assert wanted == {*CHECKS, *ELSEWHERE}


@pytest.mark.parametrize(
    "check", dict.fromkeys(f for found in CHECKS.values() for f in found), ids=lambda f: f.__name__
)
def test_a_flag(check, said):
    check(said)


def test_a_flag_with_several_values_may_be_given_several_times(said):
    """All of its values count, as behind one flag; of other flags the last time counts, as everywhere."""
    law = ("predict", "--law", "hoffmann", "--n", "1e8", "--published", "besiroglu", "--json")
    once = said(*law, "--n", "1e9", "--at", "tokens=2e10")
    assert said(*law, "--n=1e9", "--at", "tokens=2e10") == once != said(*law, "--at", "tokens=2e10")
    fit = ("accuracies.csv", "--law", "direct", "--rows", "params > 2e8")
    wanted = said("fit", *fit, "--task", "two", "exact", "--json")
    assert said("fit", "--task=two", *fit, "--task", "exact", "--json") == wanted
    assert said("fit", *fit, "--task", "exact", "--json") != wanted


def test_downstream_takes_the_released_runs_where_no_table_is_given(said, monkeypatch):
    """Their tasks' guess rates and their validation text, though that is not the first of the table."""
    save(Path("overtraining_runs.csv"), [row | {"loss_c4_val": row["loss_books"]} for row in ACCURACIES])
    save(Path("downstream_tasks.csv"), RATES)
    monkeypatch.setattr(downstream_command, "released_table", Path)
    laws = {"direct": lambda below, above, rate: np.full(len(above.flops), rate)}
    monkeypatch.setattr(downstream_laws, "_laws", lambda gain: laws)
    found = said("downstream", "--cut", "1e20", "--json")
    missed = [abs(0.125 - row["acc_two"]) for row, flops in zip(ACCURACIES, FLOPS, strict=True) if flops > 1e20]
    assert found["loss"] == "c4_val" and found["errors"]["direct"]["two"] == pytest.approx(np.mean(missed))


def names_in(text: str) -> list[str]:
    return re.findall(r'"[^"]+"|[\w=-]+', text)


def test_help_names_the_laws_their_columns_and_their_printed_coefficients():
    """As the catalogue has them, so that a law that is added is named, too."""
    flags, point = FitFlags.__doc__, PointFlags.__doc__
    assert {*LAWS} <= {*names_in(" ".join(flags.partition("law: ")[2].partition("FILE.py:NAME")[0].split()))}
    taking = " ".join(flags.partition("huber: ")[2].partition("task: ")[0].split())
    assert {name for name in names_in(taking) if name in LAWS} == {law.name for law in LAWS.values() if law.takes_huber}
    at = point.partition("at: ")[2]
    columns = {column for law in LAWS.values() for column in law.columns} - {*INPUTS}
    assert columns <= {*names_in(at)}
    printed = " ".join(predict.__doc__.partition("by this name: ")[2].partition("level: ")[0].split())
    for law in LAWS.values():
        named = re.search(rf"(?:^|[;,] ){law.name} (.*?)(?:[;.]|, (?:{'|'.join(LAWS)}) |$)", printed)
        found = [] if named is None else names_in(named[1])
        assert [name.strip('"') for name in found if name != "or"] == [*law.published], law.name


IDLE = {
    "--level 0.8: published coefficients have no runs and no interval; leave it out": PRINTED + ("--level", "0.8"),
    "--rows k == 1: published coefficients": PRINTED + ("--rows", "k == 1"),
    "--loss loss_c4: published coefficients": PRINTED + ("--loss", "loss_c4"),
    "--router Hash: published coefficients": PRINTED + ("--router", "Hash"),
    "--huber 0.001: published coefficients": PRINTED + ("--huber", "1e-3"),
    "--floor 1.5: published coefficients": PRINTED + ("--floor", "1.5"),
    "--resamples 7: --next does not take it": ("plan", *NEXT, "--resamples", "7"),
    "--dtype fp8: --next does not take it": ("plan", *NEXT, "--dtype", "fp8"),
    "--out x: --next does not take it": ("plan", *NEXT, "--out", "x"),
    "--no-published: --next uses only the table; leave it out": ("plan", *NEXT, "--no-published"),
    "--n 1e9: it works only with --next": (*PLAN, "--n", "1e9"),
    "--loss books: the law direct goes through no loss": (
        "fit",
        "accuracies.csv",
        "--law",
        "direct",
        "--loss",
        "books",
    ),
    "--loss c4: a table of leverages has no loss": ("fit", "leverages.csv", "--law", "leverage", "--loss", "c4"),
}
"""Flags that another flag makes idle: refused, not passed over."""


@pytest.mark.parametrize("message", IDLE)
def test_a_flag_that_would_be_idle_is_refused(message, said, capsys):
    assert cli.main([*IDLE[message]]) == 2
    assert message in capsys.readouterr().err
