"""Approved outputs of the commands that read tables. Other tests check the numbers."""

import json
import math
from pathlib import Path

import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.findings import style
from routelaws.accelerated.findings.laws import downstream

from .small_runs import ran
from .small_tables import BATCH, EXPERTS, LAW, LENGTH, SIZES, STEPS, save


def runs() -> list[dict]:
    """Return one dense and four HASH runs of each size, and a few other runs. Each run has two evaluations."""
    cells = [("Dense" if e == 1 else "Hash", n, e, {}) for n in SIZES for e in (1, *EXPERTS)]
    cells += [
        ("Hash", SIZES[1], 8, {"seed": 2}),
        ("Dense", SIZES[1], 1, {"seed": 2}),
        ("Hash", SIZES[2], 32, {"k": 2}),
        ("Hash", SIZES[2], 8, {"routing_frequency": 0.25}),
        ("Hash", SIZES[3], 64, {"last": 600, "seed": 2}),
        ("Hash", SIZES[1], 32, {"factor": 1.2, "seed": 3}),
        ("Hash", SIZES[2], 2, {"loss_validation": "", "seed": 3}),
        ("S-Base", SIZES[0], 8, {}),
        ("S-Base", SIZES[2], 8, {}),
    ]
    rows = []
    for number, (router, size, experts, more) in enumerate(cells):
        given = {"k": 1, "routing_frequency": "" if experts == 1 else 0.5, "seed": 1, "last": STEPS, "factor": 1} | more
        last, factor = given.pop("last"), given.pop("factor")
        loss = LAW.loss(size, experts) * factor * 10 ** (0.001 * math.sin(7 * number))
        for step in (last // 2, last):
            rows.append(
                {
                    "hyper_id": number, "run": f"{router.lower()}-{number}", "step": step, "router_type": router,
                    "num_experts": experts, "dense_parameter_count": size,
                    "total_parameter_count": size * (1 + 0.6 * (given["routing_frequency"] or 0) * (experts - 1)),
                    "flops_per_step": 2 * size * (1 + 0.3 * (given["k"] - 1)) * BATCH * LENGTH,
                    "batch_size": BATCH, "sequence_length": LENGTH,
                    "tokens": step * BATCH * LENGTH, "loss_validation": loss + 0.2 * (step != last),
                    "loss_c4": 1.1 * loss,
                }
                | given
            )  # fmt: skip
    return rows


@pytest.fixture
def said(tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    save("table.csv", runs())

    def run(*words: str) -> str | dict:
        code, out, err = ran(*words)
        if "--json" in words:
            assert (code, err) == (0, "")
            return {"command": " ".join(words)} | json.loads(out)
        return f"$ routelaws {' '.join(words)}\n{out}[standard error]\n{err}[exit code {code}]\n"

    return run


FEW = "seed != 3"
"""All runs except the run far from the law; with a condition, k and R are not checked."""

FITS = {
    "fit-a-wrong-run.txt": ["fit", "table.csv", "--law", "bilinear"],
    "fit.txt": ["fit", "table.csv", "--rows", FEW],
    "fit.json": ["fit", "table.csv", "--rows", FEW, "--json"],
    "fit-dense.txt": ["fit", "table.csv", "--law", "dense"],
    "fit-separable.txt": ["fit", "table.csv", "--law", "separable", "--loss", "loss_c4", "--rows", "k == 1"],
    "fit-per-size.txt": ["fit", "table.csv", "--law", "per-size", "--rows", "step < 600"],
    "fit-compute.txt": ["fit", "table.csv", "--law", "compute", "--floor", "1.5", "--rows", FEW],
    "fit-utilisation.txt": ["fit", "table.csv", "--law", "routed-utilisation"],
    "fit-huber.txt": ["fit", "table.csv", "--huber", "0.002", "--rows", "router_type != 'S-Base'"],
    "predict.txt": ["predict", "table.csv", "--n", "1e9", "--experts", "300", "--rows", FEW],
    "predict.json": ["predict", "table.csv", "--n", "1e8", "--experts", "16", "--level", "0.8", "--json"],
    "predict-below.txt": [
        "predict", "table.csv", "--n", "2e6", "--experts", "1", "--router", "hash", "--law", "bilinear",
    ],
    "predict-compute.txt": ["predict", "table.csv", "--law", "compute", "--at", "flops=1e18", "--rows", FEW],
    "predict-huber.txt": [
        "predict", "table.csv", "--n", "2e8", "--experts", "16", "--huber", "0.002", "--rows",
        "router_type != 'S-Base'",
    ],
    "plan.txt": ["plan", "table.csv", "--flops", "1e16", "--top", "4", "--resamples", "9", "--rows", "seed == 1"],
    "plan.json": [
        "plan", "table.csv", "--flops", "2e16", "--memory", "1GB", "--inference-tokens", "1e8", "--dtype", "fp32",
        "--no-published", "--law", "separable", "--resamples", "9", "--rows", "seed == 1", "--json",
    ],
    "plan-files.txt": [
        "plan", "table.csv", "--flops", "1e16", "--memory", "2GB", "--law", "bilinear", "--loss",
        "loss_c4", "--rows", FEW, "--level", "0.8", "--resamples", "5", "--no-published", "--top", "1", "--out", "plan",
    ],
    "plan-next.txt": [
        "plan", "table.csv", "--next", "c", "--router", "Hash", "--law", "bilinear", "--top", "3", "--rows", FEW,
    ],
    "plan-next.json": [
        "plan", "table.csv", "--next", "prediction", "--n", "1e9", "--experts", "64", "--router", "s-base", "--law",
        "separable", "--rows", "k == 1", "--flops", "1e16", "--level", "0.8", "--json",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FITS)
def test_laws_of_a_table(approved, said, name, monkeypatch):
    monkeypatch.setattr(
        style, "save_figure", lambda _, path: path.with_suffix(".svg").touch()
    )  # `test_flags.py` tests the figure
    text = said(*FITS[name])
    if "--out" in FITS[name]:
        text += f"[plan.md]\n{Path('plan/plan.md').read_text(encoding='utf-8')}"
    approved(name, text, 1e-3)


OWN = ["--columns", "loss_validation=val,num_experts=E,hyper_id=Name,step=it", "--set", "k=1", "router_type=Hash"]
MESH = [
    "--d-model", "32", "--heads", "2", "--blocks", "4", "--vocab-size", "512", "--batch-size", "8",
    "--sequence-length", "64", "--router", "hash", "--experts", "8",
]  # fmt: skip
OTHERS = {
    "usage.txt": ["--help"],
    "convert.txt": ["convert", "own.csv", "--out", "new.csv", *OWN, "--map", "router_type:none=Dense"],
    "convert-two.txt": [
        "convert", "own.csv", "more.csv", "--out", "new.csv", *OWN, "--keep", "training_set", "--loss-unit", "bits",
    ],
    "plan-mesh-too-small.txt": ["plan-mesh", "--devices", "4", "--memory", "1MB", *MESH],
    "plan-mesh-rematerialised.txt": ["plan-mesh", "--devices", "4", "--memory", "2.1MB", *MESH],
    "plan-mesh-of-the-paper.txt": [
        "plan-mesh", "--devices", "64", "--memory", "80GB", "--size", "1.3B", "--router", "sinkhorn", "--experts", "64",
        "--dtype", "bfloat16", "--top", "5",
    ],
    "plan-mesh.json": [
        "plan-mesh", "--devices", "4", "--memory", "20MB", "--mesh", "expert=2,model=2", *MESH, "--json",
    ],
    "published.txt": ["predict", "--law", "hoffmann", "--published", "besiroglu", "--n", "1e9", "--at", "tokens=2e10"],
    "published.json": [
        "predict", "--law", "leverage", "--published", "tian", "--at", "flops=1e20", "activation=0.05",
        "tian_granularity=12", "--json",
    ],
    "accuracy-fit.txt": ["fit", "accuracies.csv", "--law", "direct", "--guess-rate", "0.25"],
    "accuracy-fit.json": ["fit", "accuracies.csv", "--law", "direct", "--task", "two", "--json"],
    "accuracy-huber.txt": ["fit", "accuracies.csv", "--law", "ratio", "--huber", "0.01", "--rows", "params > 2e8"],
    "downstream.txt": [
        "downstream", "accuracies.csv", "--cut", "1e21", "--tasks", "rates.csv", "--loss", "c4", "--least-gain", "0.12",
    ],
    "fit-hoffmann.txt": ["fit", "tokens.csv", "--law", "hoffmann"],
    "predict-hoffmann.txt": [
        "predict", "tokens.csv", "--law", "hoffmann", "--n", "1e9", "--at", "tokens=2e10", "--huber", "0.001",
    ],
    "accuracy-predict.txt": ["predict", "accuracies.csv", "--law", "two-stage-linear", "--at", "flops=1e22"],
}  # fmt: skip


def own_log(suffix: str = "", less: float = 0.0) -> list[dict]:
    """Return two evaluations of three runs, with a user's column names."""
    return [
        {"Name": name + suffix, "router_type": router, "E": experts, "d_model": 64, "num_blocks": 4, "num_heads": 2,
         "kqv_size": 32, "it": it, "val": loss - less + 0.1 * (it == 100), "training_set": "web", "lr": 1e-3}
        for name, router, experts, loss in (("a", "none", 1, 3.1), ("b", "hash", 4, 3.0), ("c", "sbase", 16, 2.9))
        for it in (100, 200)
    ]  # fmt: skip


def accuracies() -> list[dict]:
    """Return the accuracies of twelve models on two tasks. They fall with the loss."""
    rows = []
    for size in (1e8, 3e8, 1e9, 3e9):
        for ratio in (5, 20, 80):
            loss, number = 1.7 + 400 / size**0.34 + 410 / (ratio * size) ** 0.28, len(rows)
            one, two = (1 / (1 + math.exp(slope * (loss - 2.6))) for slope in (4, 3))
            wave = 0.005 * math.sin(3 * number)
            rows.append(
                {"run": f"m{number}", "params": size, "tokens": ratio * size, "loss_c4": loss,
                 "acc_one": 0.25 + 0.75 * one + wave, "acc_two": 0.5 + 0.5 * two - wave, "guess_one": 0, "guess_two": 0}
            )  # fmt: skip
    return rows


def with_tokens() -> list[dict]:
    cells = [(size, tokens) for size in SIZES for tokens in (1e8, 1e9, 1e10)]
    losses = [1.7 + 400 / n**0.34 + 410 / d**0.28 + 0.004 * math.sin(5 * i) for i, (n, d) in enumerate(cells)]
    return [
        {"hyper_id": i, "step": round(d / (BATCH * LENGTH)), "router_type": "Dense", "num_experts": 1, "tokens": d,
         "dense_parameter_count": n, "loss_validation": losses[i]}
        for i, (n, d) in enumerate(cells)
    ]  # fmt: skip


QUICK_LAWS = ("direct", "two-stage linear", "no change")
"""The laws that `downstream` compares here, all in closed form."""

SEARCHED = ("fit-hoffmann.txt", "predict-hoffmann.txt", "accuracy-huber.txt")
"""Fits that take seconds to compile."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SEARCHED else ()) for name in OTHERS]
)
def test_other_commands(approved, said, name, monkeypatch):
    monkeypatch.setattr(downstream, "_PREDICTORS", {law: downstream._PREDICTORS[law] for law in QUICK_LAWS})
    save("own.csv", own_log())
    save("more.csv", own_log("2", 0.02))
    save("accuracies.csv", accuracies())
    save("rates.csv", [{"task": "one", "random_accuracy": 0.25}])
    save("tokens.csv", with_tokens())
    text = said(*OTHERS[name])
    if name.startswith("convert"):
        with open("new.csv", encoding="utf-8") as file:
            text += f"[new.csv]\n{file.read()}"
    approved(name, text, 1e-3)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_help_says(approved, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "120")
    _, said, _ = ran(command, "--help")
    if command in ("compile", "export", "plan-mesh"):  # the flags of a run are the flags of `train`
        said = said.partition("╭─ The model")[0]
    approved(f"help-{command}.txt", said)


@pytest.mark.parametrize(
    ("wanted", "said", "same"),
    [
        ("3 rows of 1,024", "3 rows  of 1,024", True),
        ("3 rows", "4 rows", False),
        ("3 rows", "3 runs", False),
        ("loss 2.4770 │ 99B", "│ loss 2.4771 ┃ 98B", True),
        ("loss 2.4770", "loss 2.4772", False),
        ("1.2T", "1.2B", False),
        ("-1e-05", "1e-05", False),
        ("14.5 s", "14.5", False),
        ("a\nb", "a", False),
    ],
)
def test_what_counts_as_a_difference(approved, wanted, said, same):
    assert (approved.differing(wanted, said, 1e-6) == []) == same
