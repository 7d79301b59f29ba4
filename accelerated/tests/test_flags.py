"""Every flag of the commands that read tables has an effect.

With a flag, `fit`, `predict` and `plan` print the result of `results` for the matching argument; without the flag they
print another result. A flag without an entry fails, and so does an entry without a flag. `test_flags_of_runs.py` has
the flags of training commands, and `test_commands_truth.py` checks the numbers.
"""

import csv
import functools
import json
import math
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.commands.laws import downstream as downstream_command
from routelaws.accelerated.commands.laws.fit import FitFlags
from routelaws.accelerated.commands.laws.predict import PointFlags, predict
from routelaws.accelerated.findings import report
from routelaws.accelerated.findings.laws import downstream as downstream_laws
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.encoding import dumps
from routelaws.accelerated.results.prediction import INPUTS, point_of, predict_all
from routelaws.accelerated.results.rows import RowChoice
from routelaws.accelerated.results.runs import fit_table, read

from .small_runs import ran
from .small_tables import BATCH, EXPERTS, LAW, LENGTH, SIZES, STEPS, save

TOKENS = BATCH * LENGTH * STEPS
WIDTH, BLOCKS, HEADS, HEAD, VOCABULARY = 256, 16, 2, 32, 512


def runs() -> list[dict]:
    """Return dense runs and runs of two routers. Seed 1 is near a law. One of the two runs of seed 2 is far from it."""
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
    """Return models with a task on a direct law (except for one model), and two tasks without an exact law."""
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
                 "acc_two": 0.3 + 0.03 * math.log10(flops / 1e18), "guess_exact": 0, "guess_one": 0,
                 "guess_two": 0}
            )  # fmt: skip
    return rows


DIRECT = (0.8 * 1e19**0.2, 0.2)
"""A and alpha of the task `exact`, whose guess rate is 0.25."""


ROWS, ACCURACIES = runs(), accuracies()
MORE = [row | {"num_experts": 64, "loss_validation": 0.99 * row["loss_validation"]} for row in ROWS[4:8]]
"""Rows of a second table."""

CHECKS: dict[tuple[str, str], list] = {}
"""{(command, flag): functions that take `said`}."""


def of(command: str, *flags: str):
    """Register a check of some flags of a command."""

    def enter(function):
        for name in flags:
            CHECKS.setdefault((command, name), []).append(function)
        return function

    return enter


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Run a command once in a folder with tables. Return its output, as an object with --json."""
    folder, before = tmp_path_factory.mktemp("flags"), os.getcwd()
    tables = {"table": ROWS, "more": MORE, "accuracies": ACCURACIES, "own": OWN, "runs": OWN_RUNS}
    for name, rows in (tables | {"rates": RATES}).items():
        save(folder / f"{name}.csv", rows)

    @functools.cache
    def run(*words: str):
        code, out, err = ran(*words)
        assert code == 0, (words, err)
        return json.loads(out) if "--json" in words else out + err

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        yield run
    assert os.getcwd() == before


# fit, predict, plan


FLOPS = [6 * row["params"] * row["tokens"] for row in ACCURACIES]


def near(found, wanted, share: float = 1e-6) -> bool:
    return bool(np.allclose(found, wanted, rtol=share, atol=0))


def rows_of(router: str = "Hash") -> list[dict]:
    return [row for row in ROWS if row["router_type"] in (router, "Dense")]


def fits(law="separable", tables=("table.csv",), level=0.95, huber=None, router=None, at=None, **choice):
    chosen = fit_table(LAWS[law], [Path(table) for table in tables], RowChoice(**choice), level, huber, router)
    return chosen if at is None else predict_all(chosen, point_of(LAWS[law], POINT | at), level)


POINT = dict.fromkeys(("dense_parameters", "num_experts", "teraflops", "utilisation"))
AT = {"dense_parameters": 1e8, "num_experts": 16}
DENSE_AT = {"dense_parameters": 1e8}
BUDGET = Budget(1e16)


def plans(
    budget=BUDGET, tables="table.csv", rows=None, loss="loss_validation", law="separable", embeddings=None, **more
):
    runs = read(tables).counting_embeddings(embeddings).where(rows).of_loss(loss)
    return runs.plan(budget, law=law, **{"resamples": 0, "published": False} | more)


def next_runs(number="prediction", n=1e9, experts=64, router="S-Base", rows=None, loss="loss_validation", **more):
    return (
        read("table.csv").where(rows).of_loss(loss).next_run(number, n, experts, router, **{"law": "separable"} | more)
    )


TASKS = {"law": "direct", "tables": ("accuracies.csv",)}
FIT, FIT_TASKS = "fit table.csv --law dense", "fit accuracies.csv --law direct"
PREDICT = "predict table.csv --law separable --n 100M --experts 16"
PREDICT_DENSE = "predict table.csv --law dense --n 100M"
PREDICT_TASKS = "predict accuracies.csv --law direct --at flops=1e21"
PLAN = "plan table.csv --law separable --flops 1e16 --resamples 0 --no-published"
NEXT = "plan table.csv --law separable --next prediction --n 1e9 --experts 64 --router s-base"
FEW = "seed == 1 and num_experts < 100 and dense_parameter_count > 2e7"

SAME = {
    FIT: lambda: fits("dense"),
    "fit table.csv more.csv --huber 0.001": lambda: fits("routed-bounded", ("table.csv", "more.csv"), huber=0.001),
    f"{FIT} --loss loss_c4": lambda: fits("dense", loss="loss_c4"),
    f"{FIT} --rows '{FEW}'": lambda: fits("dense", rows=FEW),
    "fit table.csv --huber 0.001": lambda: fits("routed-bounded", huber=0.001),
    "fit table.csv --law compute --floor 1.5": lambda: fits("compute", options={"floor": 1.5}),
    "fit table.csv --law compute": lambda: fits("compute"),
    f"{FIT} --count-embeddings 1": lambda: fits("dense", embeddings=1),
    f"{FIT} --intervals hc3": lambda: fits("dense", intervals="hc3"),
    FIT_TASKS: lambda: fits(**TASKS),
    f"{FIT_TASKS} --task two one": lambda: fits(**TASKS, task=("two", "one")),
    f"{FIT_TASKS} --guess-rate 0.2": lambda: fits(**TASKS, guess_rate=0.2),
    f"{FIT_TASKS} --tasks rates.csv": lambda: fits(**TASKS, tasks=Path("rates.csv")),
    "fit accuracies.csv --law two-stage-linear --loss books": lambda: fits(
        "two-stage-linear", ("accuracies.csv",), loss="books"
    ),
    "fit accuracies.csv --law two-stage-linear": lambda: fits("two-stage-linear", ("accuracies.csv",)),
    PREDICT: lambda: fits(at=AT),
    "predict table.csv more.csv --law bilinear --n 3e9 --experts 5": lambda: fits(
        "bilinear", ("table.csv", "more.csv"), at={"dense_parameters": 3e9, "num_experts": 5}
    ),
    f"{PREDICT} --router s-base": lambda: fits(router="S-Base", at=AT),
    PREDICT_DENSE: lambda: fits("dense", at=DENSE_AT),
    f"{PREDICT_DENSE} --loss loss_c4": lambda: fits("dense", loss="loss_c4", at=DENSE_AT),
    f"{PREDICT_DENSE} --rows '{FEW}'": lambda: fits("dense", rows=FEW, at=DENSE_AT),
    f"{PREDICT_DENSE} --level 0.8": lambda: fits("dense", level=0.8, at=DENSE_AT),
    "predict table.csv --huber 0.001 --n 1e8 --experts 16": lambda: fits("routed-bounded", huber=0.001, at=AT),
    "predict table.csv --law routed-utilisation --teraflops 0.5 --utilisation 3": lambda: fits(
        "routed-utilisation", at={"teraflops": 0.5, "utilisation": 3.0}
    ),
    "predict table.csv --law compute --floor 1.5 --at flops=1e18": lambda: fits(
        "compute", at={"flops": 1e18}, options={"floor": 1.5}
    ),
    f"{PREDICT_DENSE} --count-embeddings 2": lambda: fits("dense", embeddings=2, at=DENSE_AT),
    f"{PREDICT_DENSE} --intervals hc3": lambda: fits("dense", intervals="hc3", at=DENSE_AT),
    PREDICT_TASKS: lambda: fits(**TASKS, at={"flops": 1e21}),
    f"{PREDICT_TASKS} --task two": lambda: fits(**TASKS, at={"flops": 1e21}, task=("two",)),
    f"{PREDICT_TASKS} --guess-rate 0.2": lambda: fits(**TASKS, at={"flops": 1e21}, guess_rate=0.2),
    f"{PREDICT_TASKS} --tasks rates.csv": lambda: fits(**TASKS, at={"flops": 1e21}, tasks=Path("rates.csv")),
    PLAN: lambda: plans(),
    PLAN.replace("table.csv", "table.csv more.csv"): lambda: plans(tables=["table.csv", "more.csv"]),
    f"{PLAN} --flops 4e16": lambda: plans(Budget(4e16)),
    f"{PLAN} --inference-tokens 1e8": lambda: plans(Budget(1e16, inference_tokens=1e8)),
    f"{PLAN} --tokens 32M": lambda: plans(tokens=3.2e7),
    f"{PLAN} --memory 100MB": lambda: plans(Budget(1e16, 1e8)),
    f"{PLAN} --dtype fp32": lambda: plans(Budget(1e16, bytes_per_number=4.0)),
    f"{PLAN} --cached-tokens 1e6": lambda: plans(Budget(1e16, cached_tokens=1e6)),
    f"{PLAN} --law bilinear": lambda: plans(law="bilinear"),
    f"{PLAN} --loss loss_c4": lambda: plans(loss="loss_c4"),
    f"{PLAN} --rows '{FEW}'": lambda: plans(rows=FEW),
    f"{PLAN} --level 0.8": lambda: plans(level=0.8),
    f"{PLAN} --count-embeddings 1": lambda: plans(embeddings=1),
    f"{PLAN} --within 0.05": lambda: plans(within=0.05),
    "plan table.csv --huber 0.001 --law routed-bounded --flops 1e16 --resamples 0 --no-published": lambda: plans(
        law="routed-bounded", huber=0.001
    ),
    f"{PLAN} --resamples 7": lambda: plans(resamples=7),
    f"{PLAN} --recipe tian": lambda: plans()._replace(recipe="tian"),
    f"{PLAN} --published": lambda: plans(published=True),
    NEXT: lambda: next_runs(),
    "plan table.csv --law separable --next b --router hash": lambda: next_runs("b", None, None, "Hash"),
    f"{NEXT} --law bilinear": lambda: next_runs(law="bilinear"),
    f"{NEXT} --loss loss_c4": lambda: next_runs(loss="loss_c4"),
    f"{NEXT} --rows 'dense_parameter_count > 2e7'": lambda: next_runs(rows="dense_parameter_count > 2e7"),
    f"{NEXT} --level 0.8": lambda: next_runs(level=0.8),
    f"{NEXT} --flops 1e16": lambda: next_runs(flops=1e16),
}
"""Commands, and the equal calls of `results`; the last value of a repeated flag counts."""


@pytest.mark.parametrize("words", SAME)
def test_a_command_prints_what_its_flags_ask_for(words, said):
    assert said(*shlex.split(words), "--json") == json.loads(dumps(SAME[words]().to_dict()))


def test_each_flag_changes_what_is_printed(said):
    found = [json.dumps(said(*shlex.split(words), "--json")) for words in SAME]
    assert len(set(found)) == len(found)


@of("predict", "--published")
def predict_takes_printed_coefficients(said):
    """Hoffmann et al. 2022 and Besiroglu et al. 2024 printed the coefficients."""
    printed = {
        "hoffmann": (1.6934, 406.4, 410.7, 0.3392, 0.2849),
        "besiroglu": (1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    }
    for name, (floor, A, B, alpha, beta) in printed.items():
        flags = ("predict", "--law", "hoffmann", "--n", "1e9", "--at", "tokens=2e10", "--published", name)
        wanted = floor + A / 1e9**alpha + B / 2e10**beta
        assert near(said(*flags, "--json")["value"], wanted, 1e-3) and f"{wanted:.2f}" in said(*flags)


@of("plan", "--inference-tokens", "--memory", "--dtype", "--cached-tokens")
def plan_counts_inference_and_memory(said):
    """Inference costs 2 N FLOPs per token. Memory counts P, the embedding, and for each cached token a key and a value
    of each head.
    """
    lines = {more: lines_of(said(*shlex.split(f"{PLAN} {more}"), "--json")) for more in (
        "", "--inference-tokens 1e8", "--dtype fp32", "--cached-tokens 1e6", "--memory 100MB"
    )}  # fmt: skip
    assert all(near(option["N"], 1e16 / (6 * TOKENS + 2e8)) for option in lines["--inference-tokens 1e8"])
    numbers = {option["num_experts"]: option["P"] + VOCABULARY * WIDTH for option in lines[""]}
    cache = 2 * BLOCKS * HEADS * HEAD
    for more, size, cached in (("", 2, 0), ("--dtype fp32", 4, 0), ("--cached-tokens 1e6", 2, 1e6)):
        for option in lines[more]:
            assert near(option["memory"], size * (numbers[option["num_experts"]] + cached * cache)), more
    limited = [option["memory"] for option in lines["--memory 100MB"]]
    assert limited and max(limited) <= 1.0001e8 < max(option["memory"] for option in lines[""])


def lines_of(found: dict) -> list[dict]:
    [ranking] = [ranking for ranking in found["rankings"] if ranking["kind"] == "table"]
    return ranking["options"]


@of("plan", "--top")
def plan_shows_so_many(said):
    for words in (PLAN, NEXT):
        for top in (2, 3):
            lines = [line.split() for line in said(*shlex.split(words), "--top", str(top)).splitlines()]
            places = [line[0] for line in lines if len(line) > 5 and line[0].isdigit() and line[1] != "of"]
            assert places == [str(i + 1) for i in range(top)]


@of("fit", "--out")
def fit_writes_files(said):
    """The figure has a line for each N of each router, solid and, with a floor, dashed."""
    found, folder = said(*"fit table.csv --law separable --json --out fit".split()), Path("fit")
    names = ["fit.html", "fit.json", "fit.md", "law.png", "law.svg"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert json.loads((folder / "fit.json").read_text()) == found
    drawn = (folder / "law.svg").read_text()
    assert drawn.count("stroke-dasharray") >= len(SIZES) and "mathdefault" not in drawn
    assert '<img src="data:image/svg+xml;base64,' in (folder / "fit.html").read_text()


@of("plan", "--out")
def plan_writes_files(said):
    found, folder = said(*shlex.split(PLAN), "--json", "--out", "plan"), Path("plan")
    assert sorted(path.name for path in folder.iterdir()) == [
        "frontier.png", "frontier.svg", "plan.html", "plan.json", "plan.md"
    ]  # fmt: skip
    assert json.loads((folder / "plan.json").read_text()) == found
    rows = [line for line in (folder / "plan.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(lines_of(found))


@of("recipe", "--n", "--tokens", "--active", "--experts", "--width", "--embeddings", "--json")
def recipe_takes_the_sizes_of_a_model(said):
    """Each size changes the recipes that use it, and only these."""
    sizes = {"n": "2e9", "active": "400M", "tokens": "1e11", "experts": "64", "width": "1024", "embeddings": "1e8"}
    others = {"n": "1e9", "active": "2e8", "tokens": "5e10", "experts": "8", "width": "768", "embeddings": "2e8"}
    users = {
        "n": {"step-law"}, "active": {"ours", "tian", "joint"}, "tokens": {"step-law", "tian", "marin"},
        "experts": {"joint"}, "width": {"marin"}, "embeddings": {"joint"},
    }  # fmt: skip

    def rates(values):
        words = [word for name, value in values.items() for word in (f"--{name}", value)]
        return {each["name"]: each["rate"] for each in said("recipe", *words, "--json")["recipes"]}

    usual = rates(sizes)
    assert usual["ours"] == 0.011 * (4e8 / 60_000) ** -0.37
    for name, value in others.items():
        changed = rates(sizes | {name: value})
        assert {recipe for recipe in usual if changed[recipe] != usual[recipe]} == users[name], name
    assert "step-law holds" in said("recipe", "--n", "2e9", "--tokens", "1e11")


# convert

OWN = [
    {"name": name, "it": it, "bits": loss + (it == 100) * 0.1, "kind": kind, "lr": 0.001, "set": "web", "D": it / 4}
    for name, kind, loss in (("a", "none", 4.5), ("b", "hash", 4.25), ("c", "hash", 4.0))
    for it in (100, 200)
]
OWN_RUNS = [
    {"Name": name, "E": experts, "d_model": 64, "num_blocks": 4, "num_heads": 2, "kqv_size": 32}
    for name, experts in (("a", 1), ("b", 4), ("c", 16))
]
COLUMNS = "hyper_id=name,step=it,loss_validation=bits,num_experts=E,router_type=kind,tokens=D".split(",")


@functools.cache
def converted(said) -> tuple[list[dict], str]:
    words = ("--columns", *COLUMNS, "--set", "k=1", "seed=5", "routing_frequency=0.5", "--config", "runs.csv")
    words += ("--loss-unit", "bits", "--keep", "set,lr", "--map", "router_type:none=Dense", "router_type:hash=Hash")
    words += ("--unit", "tokens=M")
    text = said("convert", "own.csv", "--out", "new.csv", *words)
    with open("new.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file)), text


@of("convert", "positional", "--out", "--columns", "--set", "--keep", "--map", "--config", "--loss-unit", "--unit")
def convert_does_what_its_flags_say(said):
    rows, text = converted(said)
    assert "new.csv: 6 rows of 3 runs; " in text and "num_experts 1 to 16, tokens 2.5e+07 to 5e+07, loss" in text
    assert [row["tokens"] for row in rows] == ["25000000", "50000000"] * 3
    assert [int(row["step"]) for row in rows] == [100, 200] * 3
    assert near([float(row["loss_validation"]) for row in rows], [row["bits"] * math.log(2) for row in OWN])
    assert [row["router_type"] for row in rows] == ["Dense"] * 2 + ["Hash"] * 4
    assert [int(row["num_experts"]) for row in rows] == [1, 1, 4, 4, 16, 16] and rows[0]["d_model"] == "64"
    assert {(row["k"], row["seed"]) for row in rows} == {("1", "5")}
    assert {(row["set"], float(row["lr"])) for row in rows} == {("web", 0.001)}


# report, reproduce, downstream

ELSEWHERE = {
    ("report", "positional"): "test_run_pairs.py", ("report", "--full"): "test_report.py",
    ("report", "--out"): "test_run_pairs.py",
    ("plan", "--floor"): "test_wrong_commands.py",
    ("plan", "--hours"): "test_hours.py", ("plan", "--throughput"): "test_hours.py",
    **{("recipe", flag): "test_recipes.py" for flag in ("--fit", "--loss", "--level")},
    **{("court", flag): "test_court.py" for flag in ("positional", "--loss", "--rows", "--top", "--out", "--json")},
}  # fmt: skip
"""Flags with tests elsewhere, and the files of these tests."""


@of("reproduce", "positional", "--out", "--rows", "--loss", "--huber", "--full")
def reproduce_takes_rows_loss_and_delta(said):
    """One of the selected runs is wrong. Huber's criterion recovers the law of the others."""
    words = ("--rows", "dense_parameter_count < 3e8", "--loss", "loss_c4", "--huber", "0.001")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_all", lambda *_, **__: [])
        said("reproduce", "table.csv", "more.csv", "--out", "report", *words, "--full")
    found = json.loads(Path("report/results.json").read_text())
    text = Path("report/report.md").read_text()
    chosen = {r: [row for row in rows_of(r) if row["dense_parameter_count"] < 3e8] for r in ("Hash", "S-Base", "Dense")}
    dense = [np.log10([row[name] for row in chosen["Dense"]]) for name in ("dense_parameter_count", "loss_c4")]
    law = next(law for law in found["laws"] if law["router"] == "Hash")
    assert (found["table"]["row_choice"], found["table"]["loss_column"]) == (words[1], "loss_c4")
    assert near(-found["dense"]["coefficients"]["alpha"]["value"], np.polyfit(*dense, 1)[0])
    more = sum(row["dense_parameter_count"] < 3e8 for row in MORE)
    rows = {law["router"]: law["rows"] for law in found["laws"]}
    assert rows == {"Hash": len(chosen["Hash"]) + more, "S-Base": len(chosen["S-Base"])}
    assert found["huber"] == 0.001 and "delta = 0.001" in text and "C4 losses" in text
    huber = next(fit for fit in found["refits"] if (fit["router"], fit["choice"]) == ("Hash", "Huber"))
    robust = np.array([huber[name] for name in "ab"])
    least = np.array([law["coefficients"][name]["value"] for name in "ab"])
    assert (np.abs(robust - [LAW.a, LAW.b]) < 0.5 * np.abs(least - [LAW.a, LAW.b])).all(), (robust, least)


@of("downstream", "positional", "--cut", "--tasks", "--loss", "--ratio", "--least-gain", "--json")
def downstream_takes_what_it_is_told(said):
    """A law that predicts the guess rate plus the least gain shows both in its error."""
    laws = {"direct": lambda below, above, rate, gain: np.full(len(above.flops), rate + gain)}
    chosen = [row for row in ACCURACIES if row["tokens"] == 20 * row["params"]]
    above = [row for row in chosen if 6 * row["params"] * row["tokens"] > 1e20]
    flags = ("--cut", "1e20", "--tasks", "rates.csv", "--loss", "books", "--ratio", "20", "--least-gain", "0.125")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downstream_laws, "_PREDICTORS", laws)
        found, plain = (said("downstream", "accuracies.csv", "--json", *more) for more in (flags, ("--cut", "1e21")))
    assert (found["cut"], found["loss"], plain["loss"]) == (1e20, "books", "web")
    assert (found["scored_runs"], found["fitted_runs"]) == (len(above), len(chosen) - len(above))
    wanted = {task: np.mean([abs(rate + 0.125 - row[f"acc_{task}"]) for row in above])
              for task, rate in (("exact", 0.25), ("one", 0.0), ("two", 0.125))}  # fmt: skip
    assert {row["task"]: row["error"] for row in found["errors"]} == pytest.approx(wanted)
    assert {row["task"]: row["error"] for row in plain["errors"]}["two"] == pytest.approx(
        np.mean([abs(0.05 - row["acc_two"]) for row, flops in zip(ACCURACIES, FLOPS, strict=True) if flops > 1e21])
    )


RATES = [{"task": "two", "random_accuracy": 0.125}, {"task": "exact", "random_accuracy": 0.25}]


def test_every_flag_has_a_check(flags_of):
    wanted = {(command, flag) for command in cli.COMMANDS if command not in cli.NEEDED for flag in flags_of(command)}
    same = {(command, name) for command, *words in map(shlex.split, SAME) for name in words if name.startswith("--")}
    same |= {(command, name) for command in ("fit", "predict", "plan") for name in ("positional", "--json")}
    assert wanted == {*CHECKS, *ELSEWHERE} | (same - {("plan", "--no-published")})


@pytest.mark.parametrize(
    "check", dict.fromkeys(f for found in CHECKS.values() for f in found), ids=lambda f: f.__name__
)
def test_a_flag(check, said):
    check(said)


def test_a_flag_with_several_values_may_be_given_several_times(said):
    """A repeated flag with several values takes all of them; another repeated flag takes the last value."""
    law = ("predict", "--law", "hoffmann", "--n", "1e8", "--published", "besiroglu", "--json")
    once = said(*law, "--n", "1e9", "--at", "tokens=2e10")
    assert said(*law, "--n=1e9", "--at", "tokens=2e10") == once != said(*law, "--at", "tokens=2e10")
    fit = ("accuracies.csv", "--law", "direct", "--rows", "params > 2e8")
    wanted = said("fit", *fit, "--task", "two", "exact", "--json")
    assert said("fit", "--task=two", *fit, "--task", "exact", "--json") == wanted
    assert said("fit", *fit, "--task", "exact", "--json") != wanted


def test_downstream_takes_the_released_runs_where_no_table_is_given(said, monkeypatch):
    """The validation loss of these runs is not the first loss of the table."""
    save(Path("overtraining_runs.csv"), [row | {"loss_c4_val": row["loss_books"]} for row in ACCURACIES])
    save(Path("downstream_tasks.csv"), RATES)
    monkeypatch.setattr(downstream_command, "released_table", Path)
    laws = {"direct": lambda below, above, rate, gain: np.full(len(above.flops), rate)}
    monkeypatch.setattr(downstream_laws, "_PREDICTORS", laws)
    found = said("downstream", "--cut", "1e20", "--json")
    missed = [abs(0.125 - row["acc_two"]) for row, flops in zip(ACCURACIES, FLOPS, strict=True) if flops > 1e20]
    assert found["loss"] == "c4_val" and {row["task"]: row["error"] for row in found["errors"]}["two"] == pytest.approx(
        np.mean(missed)
    )


def names_in(text: str) -> list[str]:
    return re.findall(r'"[^"]+"|[\w=-]+', text)


def test_help_names_the_laws_their_columns_and_their_printed_coefficients():
    """The help must name every entry of the catalogue, also new laws."""
    flags, point = FitFlags.__doc__, PointFlags.__doc__
    assert {*LAWS} <= {*names_in(" ".join(flags.partition("law: ")[2].partition("FILE.py:NAME")[0].split()))}
    taking = " ".join(flags.partition("huber: ")[2].partition("task: ")[0].split())
    assert {name for name in names_in(taking) if name in LAWS} == {law.name for law in LAWS.values() if law.takes_huber}
    at = point.partition("at: ")[2]
    columns = {column for law in LAWS.values() for column in law.columns} - {*INPUTS}
    assert columns <= {*names_in(at)}
    printed = " ".join(predict.__doc__.partition("Names for each law: ")[2].partition("level: ")[0].split())
    for law in LAWS.values():
        named = re.search(rf"(?:^| ){law.name}: (.*?)\.(?: |$)", printed)
        found = [] if named is None else names_in(named[1])
        assert [name.strip('"') for name in found if name != "or"] == [*law.published], law.name
