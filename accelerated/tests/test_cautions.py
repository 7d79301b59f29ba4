"""Warnings: tables with one defect each, and the warning that names the defect."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import scipy.stats

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.findings import report
from routelaws.accelerated.findings.report import gather, markdown
from routelaws.accelerated.findings.source import Source, open_runs
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results import misfit
from routelaws.accelerated.results.misfit import (
    Bend,
    Misfit,
    Outlier,
    Rise,
    SizeMiss,
    bend_in_size,
    beyond_seeds,
    by_size,
    equal_variances,
    how_far_off,
    largest_size,
    misfit_lines,
    warnings,
)
from routelaws.accelerated.results.row_differences import (
    Shorter,
    budgets,
    cut_runs,
    differences,
    differing,
    embedding_doubts,
    impossible_losses,
    left_out_lines,
    proportional,
    proportional_tokens,
    rates_of_models,
    repeated_runs,
    row_doubts,
    same_budgets,
    shorter_runs,
)
from routelaws.accelerated.results.runs import Runs, read
from routelaws.accelerated.tables.selection import select_rows
from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.laws.confidence.far_rows import far_rows
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

from .small_tables import LAW, frame_of

pytestmark = pytest.mark.usefixtures("few_resamples")

SIZES = (1e7, 3e7, 1e8, 3e8, 1e9)
EXPERTS = (1.0, 4.0, 16.0, 64.0, 256.0)


def make_table(seed: int, noise: float = 1e-3) -> pandas.DataFrame:
    size, experts = (axis.ravel() for axis in np.meshgrid(SIZES, EXPERTS, indexing="ij"))
    log_loss = [LAW.log_loss(n, e) for n, e in zip(size, experts, strict=True)]
    log_loss = log_loss + np.random.default_rng(seed).normal(0, noise, size.size)
    routed = {"routing_frequency": np.where(experts == 1, np.nan, 0.5), "granularity": 1, "k": 1}
    recipe = {"tokens": 1e9, "vocab_size": 32_000, "sequence_length": 2048, "objective": "causal", "corpus": "c4"}
    return frame_of(size, experts, 10**log_loss, "Hash", **recipe, **routed)


MIXED = {
    "mixed budget": ("tokens", 1e9, 4e9, "training tokens, which this law ignores (N = "),
    "two vocabularies": ("vocab_size", 32_000, 50_257, "vocab_size, which this law ignores (32000"),
    "two activations": ("model_options", "gelu relative", "swiglu rotary", "model_options, which this law ignores ("),
    "two schedules": ("schedule", "cosine", "wsd linear 0.2", "schedule, which this law ignores (cosine"),
    "two lengths": ("sequence_length", 2048, 512, "sequence_length, which this law ignores"),
}
"""Columns with another value in a third of the rows: the column, the two values, and the warning."""


def append(frame: pandas.DataFrame, more: pandas.DataFrame) -> None:
    for values in more.to_numpy():
        frame.loc[len(frame)] = values


def spoil(frame: pandas.DataFrame, defect: str, rng) -> str:
    """Give a table one defect, in place, and return the text that a warning must contain."""
    some = rng.choice(len(frame), len(frame) // 3, replace=False)
    routed = np.flatnonzero(frame["router_type"] != "Dense")
    one = int(rng.choice(routed))
    if defect in MIXED:
        column, usual, other, words = MIXED[defect]
        frame[column] = usual
        frame.loc[some, column] = other
        return words
    if defect == "tokens by size":
        frame["tokens"] = frame["dense_parameter_count"] ** 0.5 * 1e5
        return "neither training tokens nor tokens per parameter are constant across sizes"
    if defect == "mixed corpus":
        twice = frame.copy()
        twice["hyper_id"] += 100
        twice["corpus"], twice["loss_validation"] = "pile", twice["loss_validation"] * 0.9
        append(frame, twice)
        return f"corpus, which this law ignores (c4 in {len(twice)} rows; pile in {len(twice)} rows)"
    if defect == "cut short":
        frame.loc[one, ["step", "tokens"]] = 500, 5e8
        frame.loc[one, "loss_validation"] *= 1.15
        return f"hyper_id {one} (step 500 of 1,000)"
    if defect == "diverged":
        frame.loc[one, "loss_validation"] = 9.5
        return f"hyper_id {one}: loss 9.5"
    if defect == "loss in bits":
        frame.loc[one, "loss_validation"] /= np.log(2)
        return f"hyper_id {one}: loss"
    if defect == "two layouts":
        frame["routing_options"] = np.where(frame["router_type"] == "Dense", "", "spread")
        frame.loc[one, "routing_options"] = "upper"
        return "routing_options, which this law ignores (spread"
    if defect == "two objectives":
        frame.loc[some[:5], "objective"] = "masked"
        return "objective is not the most common, causal"
    if defect == "a loss that is NaN":
        frame.loc[one, "loss_validation"] = np.nan
        return f"hyper_id {one}: loss_validation is blank"
    if defect == "dense called none":
        more = frame[frame["router_type"] == "Dense"].assign(router_type="none", hyper_id=lambda f: f["hyper_id"] + 100)
        append(frame, more)
        return "none: "
    if defect == "two stages":
        twice = frame.assign(hyper_id=frame["hyper_id"] + 100, stage=2)
        frame["stage"] = 1
        append(frame, twice)
        return f"stage, which this law ignores (1 in {len(twice)} rows; 2 in {len(twice)} rows)"
    if defect == "a floor":
        size = frame["dense_parameter_count"].to_numpy()
        frame["loss_validation"] = 1.7 + 300 * size**-0.34 * frame["num_experts"].to_numpy() ** -0.05
        return "bend"
    if defect == "a perplexity":
        frame["loss_validation"] = np.exp(frame["loss_validation"])
        return "loss_validation is not a loss in nats per token (the median is 1"
    if defect == "scaled losses":
        frame["loss_validation"] *= 1e-6
        return "loss_validation is too small for a loss in nats per token (the median is 2."
    if defect == "large models fail":  # for example by a learning rate that is too high for them
        frame["loss_validation"] *= (frame["dense_parameter_count"] / 1e7) ** 0.1
        losses = frame[frame["num_experts"] == 1]["loss_validation"]
        return f"no gain from larger models (at E = 1 its loss goes from {losses.min():.2f}"
    if defect == "embeddings counted":
        frame["dense_parameter_count"] += 32_000 * 8 * frame["dense_parameter_count"] ** (1 / 3)
        return "bend"
    raise AssertionError(defect)


DEFECTS = (
    *MIXED, "tokens by size", "mixed corpus", "cut short", "diverged", "loss in bits", "two layouts", "a floor",
    "embeddings counted", "large models fail", "two objectives", "a loss that is NaN", "dense called none",
    "two stages", "a perplexity", "scaled losses",
)  # fmt: skip


def said(frame, folder) -> str:
    frame.to_csv(folder / "table.csv", index=False)
    fits = read(folder / "table.csv").fit()
    [fit] = fits
    bent = ["bend"] if fit.misfit.bend.test.p < 1e-3 else []
    left = [f"{router}: {reason}" for router, reason in fits.not_fitted.items()]
    return "\n".join([*fit.cautions, *bent, *left, *left_out_lines(fit.rows.left_out)])


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_defect_is_named(tmp_path, defect, seed):
    frame = make_table(seed)
    name = spoil(frame, defect, np.random.default_rng(seed + 10))
    assert name in said(frame, tmp_path)


def values(fit: dict) -> dict:
    return {name: each["value"] for name, each in fit["coefficients"].items()}


def reproduced(frame, folder) -> str:
    frame.to_csv(folder / "table.csv", index=False)
    results, _ = gather(open_runs(folder / "table.csv"))
    text = markdown(results, [], full=True)
    cautions = text[: text.index("## What came out")]
    assert markdown(results, []).startswith(cautions)  # the short report also has the cautions
    return text


@pytest.mark.slow
def test_no_dense_size_stands_for_a_loss_where_large_models_fail(tmp_path, capsys):
    """A law that rises with N has no dense size and no remark on a floor. A law that falls has both."""
    for frame, falls in ((make_table(0), True), (make_table(0), False)):
        if not falls:
            spoil(frame, "large models fail", np.random.default_rng(0))
        text = reproduced(frame, tmp_path)
        assert ("| times N |" in text) == falls == ("so no dense size corresponds to a loss" not in text)
        assert ("no irreducible loss" in text) == falls
        assert ("careful" not in text and "residuals are curved in log N, so" not in text) or not falls
        path = tmp_path / "table.csv"
        for command in (["fit", str(path)], ["predict", str(path), "--n", "1e8", "--experts", "16"]):
            assert main(command) == 0
            printed = " ".join(capsys.readouterr().out.split())
            of_a_floor = "no irreducible loss" in printed or "L0 is not the entropy of the text" in printed
            assert of_a_floor == falls == ("no gain from larger models" not in printed)
            if command[0] == "predict":
                assert ("same loss as a dense model" in printed) == falls
        assert main(["predict", str(path), "--n", "1e8", "--experts", "16", "--json"]) == 0
        [found] = json.loads(capsys.readouterr().out)["predictions"]
        assert (found["intervals"]["dense_equivalent"] is not None) == falls
        rise = read(path).fit()[0].misfit.rise
        assert (rise is None) == falls
    assert rise.experts == 1 and tuple(rise.sizes) == (SIZES[0], SIZES[-1])
    ends = [10 ** LAW.log_loss(n, 1) * (n / 1e7) ** 0.1 for n in rise.sizes]
    assert rise.losses == pytest.approx(ends, rel=2e-3)


def test_cautions_of_dense_runs_alone(tmp_path):
    frame = make_table(0)
    frame = frame[frame["router_type"] == "Dense"].reset_index(drop=True)
    frame.loc[2, "vocab_size"] = 50_257
    text = reproduced(frame, tmp_path)
    assert "vocab_size, which this law ignores (32000" in text[: text.index("## What came out")]


@pytest.mark.slow
def test_a_caution_names_its_router_where_it_does_not_hold_for_all(tmp_path, capsys, monkeypatch):
    frame = make_table(0)
    more = frame[frame["router_type"] == "Hash"].assign(router_type="S-Base", hyper_id=lambda f: f["hyper_id"] + 100)
    frame = pandas.concat([frame, more], ignore_index=True)
    frame.loc[frame["num_experts"] > 4, "vocab_size"] = 50_257
    frame.loc[len(frame) - 1, "loss_validation"] = 2.5
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    monkeypatch.setattr(report, "draw_all", lambda *_, **__: [])
    assert main(["reproduce", str(path), "--huber", "0.001", "--full", "--out", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("caution")]
    assert [line.partition(":")[0] for line in said] == ["caution (Hash, S-Base)", "caution (S-Base)"]
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "\n- Rows differ in vocab_size, which this law ignores" in text
    assert re.search(r"\n- \*\*S-BASE:\*\* .* far from the law \(hyper_id 124: loss 2.5", text)
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    [law] = [law for law in results["laws"] if law["router"] == "S-Base"]
    by_hand = read(path).fit(huber=0.001)["S-Base"]
    [huber] = [fit for fit in results["refits"] if (fit["router"], fit["choice"]) == ("S-Base", "Huber")]
    assert {name: huber[name] for name in by_hand.coefficients} == pytest.approx(by_hand.coefficients)
    least_squares = by_hand.least_squares.coefficients  # the diverged run has changed these coefficients
    assert values(law) == pytest.approx(least_squares._asdict())
    assert abs(huber["a"] - LAW.a) < 0.005 < abs(values(law)["a"] - LAW.a)
    for name, a in (("as above", values(law)["a"]), ("as above, by Huber's sum", huber["a"])):
        assert f"| S-BASE | {name} | {law['rows']} | {a:.4f} |" in text


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_said_of_a_table_without_a_defect(tmp_path, seed):
    assert said(make_table(seed), tmp_path) == ""


def isoflop(sizes=SIZES[:4], budgets=(1e18, 1e19, 1e20)) -> pandas.DataFrame:
    """Return dense runs on a sum of two powers and a floor: every size at every budget, C = 6 N D."""
    size, budget = (axis.ravel() for axis in np.meshgrid(sizes, budgets, indexing="ij"))
    tokens = budget / (6 * size)
    frame = pandas.DataFrame({"hyper_id": range(size.size), "step": 1000, "router_type": "Dense", "num_experts": 1})
    noise = np.random.default_rng(0).normal(0, 1e-3, size.size)
    loss = (1.7 + 480 * size**-0.34 + 1900 * tokens**-0.37) * np.exp(noise)
    return frame.assign(dense_parameter_count=size, tokens=tokens, training_flops=budget, loss_validation=loss)


def warned(frame, folder, law: str, rows: str | None = None) -> list[str]:
    frame.to_csv(folder / "table.csv", index=False)
    [fit] = read(folder / "table.csv").where(rows).fit(law)
    return fit.cautions


@pytest.mark.parametrize(("law", "power"), [("hoffmann", 1.0), ("hoffmann", 0.7), ("kaplan", 1.0)])
def test_tokens_that_follow_from_the_size_are_named(tmp_path, law, power):
    frame = isoflop(np.geomspace(1e7, 1e9, 9), (1e20,))
    size = frame["dense_parameter_count"]
    frame["tokens"] = 20 * 1e8 ** (1 - power) * size**power * (1 + 0.05 * (size.index % 2))
    frame["loss_validation"] = 1.7 + 480 * size**-0.34 + 1900 * frame["tokens"] ** -0.28
    [said] = [text for text in warned(frame, tmp_path, law) if "ill-conditioned" in text]
    start = "tokens are proportional to N in all 9 rows (20 to 21 per parameter)" if power == 1 else "tokens grow as"
    assert said.startswith(start) and said.endswith("add runs of one size with different token counts")
    assert ("condition number about 1/(alpha - " in said) == (law == "hoffmann")


@pytest.mark.parametrize(("power", "condition"), [(1.0, 1 / 0.06**2), (0.5, 1 / 0.2**2)])
def test_the_condition_number_is_that_of_two_powers_of_the_size(power, condition):
    """With D = N^p the loss is a sum of N^-alpha and N^-(p beta)."""
    size, coefficients = np.geomspace(1e7, 1e9, 5), SimpleNamespace(alpha=0.34, beta=0.28)
    [found] = proportional_tokens(("dense_parameters", "tokens"), (size, 1e4 * size**power), coefficients)
    assert f"² = {condition:.2g})" in found.words


@pytest.mark.parametrize("budgets", [(1e20,), (1e18, 1e19, 1e20)])
def test_tokens_that_do_not_follow_from_the_size_or_fall_with_it_are_no_caution(tmp_path, budgets):
    """At a single budget D falls as N rises: the two powers have opposite signs, so a fit distinguishes them."""
    frame = isoflop(np.geomspace(1e7, 1e9, 9), budgets)
    frame["tokens"] *= 1 + 0.03 * (frame.index % 2)  # exactly proportional tokens are an error
    assert warned(frame, tmp_path, "hoffmann") == []


def test_an_isoflop_table_is_no_table_of_best_runs(tmp_path):
    frame = isoflop()
    best = frame.loc[frame.groupby("training_flops")["loss_validation"].idxmin(), "hyper_id"].tolist()
    [said] = warned(frame, tmp_path, "compute")
    assert read(tmp_path / "table.csv").fit("compute")[0].misfit.seeds is None
    assert said.startswith("models of several sizes have the same budget (1e+18 FLOPs: losses ")
    rows = re.search(r'select the best with --rows "(.*)"$', said)[1]
    assert rows == f"hyper_id in ({', '.join(map(str, best))})"
    assert warned(frame, tmp_path, "compute", rows) == []
    assert warned(frame.assign(seed=frame.index), tmp_path, "hoffmann") == []


def test_a_search_for_the_learning_rate_is_named_and_keeps_repeated_runs_at_the_best_rate():
    """The best rate of N = 1e7 has the least mean loss, not the luckiest run."""
    frame = pandas.DataFrame({
        "hyper_id": range(8), "step": 1000, "router_type": ["Hash"] * 7 + ["Dense"],
        "dense_parameter_count": [1e7] * 4 + [1e8] * 3 + [1e7], "num_experts": [4] * 7 + [1],
        "learning_rate": [0.01, 0.01, 0.02, 0.02, 0.01, 0.02, 0.02, 0.04],
        "loss_validation": [3.0, 3.2, 2.95, 3.5, 3.0, 2.9, 2.8, 3.5],
    })  # fmt: skip
    [selection] = select_rows(frame, None, "loss_validation")
    [said] = [entry.words for entry in row_doubts(selection, "loss_validation")]
    models = "N = 10,000,000, E = 4: 0.01 to 0.02; N = 100,000,000, E = 4: 0.01 to 0.02"
    rows = "hyper_id not in (2, 3, 4)"
    assert said.startswith(f"runs of one model have several learning rates ({models})") and rows in said
    [selection] = select_rows(frame, rows, "loss_validation")
    assert row_doubts(selection, "loss_validation") == []
    [selection] = select_rows(frame.drop(columns="learning_rate"), None, "loss_validation")
    assert row_doubts(selection, "loss_validation") == []


def test_two_runs_of_one_size_and_budget_are_no_isoflop_table():
    flops, losses = np.full(2, 1e18), np.array([3.0, 3.1])
    for sizes, entries in (([1e8, 1e8], 0), ([1e8, 2e8], 1)):
        frame = pandas.DataFrame({"hyper_id": [0, 1], "dense_parameter_count": sizes})
        assert len(budgets(frame, flops, losses)) == entries


@pytest.mark.parametrize(("kind", "most"), [("Dense", 8), ("Hash", 4)])
@pytest.mark.parametrize("column", ["epochs", "unique_tokens"])
def test_runs_that_saw_their_text_too_often_are_named(tmp_path, kind, most, column):
    frame = make_table(0)
    own, tokens = frame.index[frame["router_type"] == kind], frame["tokens"]
    passes = pandas.Series(np.where(frame["router_type"] == "Dense", 8.0, 4.0), index=frame.index)
    for over in (0, 1):  # the harmless number of epochs, and once more for two runs
        passes[own[:2]] = most + over
        frame[column] = passes if column == "epochs" else tokens / passes
        if column == "unique_tokens":  # tokens that follow from steps, batch and length
            frame = frame.assign(tokens=np.nan, step=1000, batch_size=tokens / 1e6, sequence_length=1000)
        said = warned(frame, tmp_path, "separable")
        start = f"2 {kind.lower().replace('hash', 'routed')} runs have more than {most} passes over the text (hyper_id"
        wanted = f"{start} {own[0]}: {most + 1}; {own[1]}: {most + 1}): repeated text"
        assert [text.startswith(wanted) for text in said] == [True] * over


@pytest.mark.parametrize(("rows", "cut"), [("step <= 500", 25), ("step <= 500 and hyper_id < 20", 20), ("k == 1", 0)])
def test_runs_that_a_condition_cuts_in_the_middle_are_named(tmp_path, rows, cut):
    """Each run has an evaluation at half of its steps. A condition on steps selects it. Other conditions select the
    last.
    """
    half = make_table(0).assign(step=500, loss_validation=lambda frame: frame["loss_validation"] * 1.05)
    frame = pandas.concat([half, make_table(0)], ignore_index=True)
    frame["run"] = "r" + frame["hyper_id"].astype(str)
    said = [text for text in warned(frame, tmp_path, "separable", rows) if "middle of training" in text]
    start = f"{cut} runs are taken in the middle of training (hyper_id 0 'r0': step 500 of 1,000; 1 'r1': "
    assert [text.startswith(start) for text in said] == [True] * bool(cut)


@pytest.mark.released
def test_released_runs_are_warned_of_what_is_so_alone(tmp_path):
    curves = released_file("curves.csv.gz")
    assert [fit.cautions for fit in read(curves).where("clark").fit("separable")] == [[], [], []]
    points = pandas.read_csv(released_file("chinchilla_points.csv")).sort_values("loss", ignore_index=True)
    sizes, flops, losses = points[["params", "training_flops", "loss"]].to_numpy().T
    frame = pandas.DataFrame({"hyper_id": range(245), "step": 1, "router_type": "Dense", "num_experts": 1})
    frame = frame.assign(dense_parameter_count=sizes, tokens=flops / (6 * sizes), loss_validation=losses)
    frame.to_csv(tmp_path / "points.csv", index=False)
    [fit] = read(tmp_path / "points.csv").fit("hoffmann")
    assert sorted(run.hyper_id for run in fit.misfit.outliers) == [240, 241, 242, 243, 244]  # of the published choice
    assert any("5 runs are far from the law (hyper_id 243" in text for text in fit.cautions)
    law, columns = LAWS["hoffmann"], (sizes, flops / (6 * sizes))
    assert far_rows(law, law.fit(*columns, losses, huber=1e-3), columns, losses, sizes).far.sum() == 5
    columns = [column[:240] for column in columns]
    assert not far_rows(law, law.fit(*columns, losses[:240]), columns, losses[:240], sizes[:240]).far.any()


def dense_twice(other: dict) -> pandas.DataFrame:
    frame = make_table(0).query("router_type == 'Dense'").assign(seed=1)
    again = frame.assign(hyper_id=frame["hyper_id"] + 100, loss_validation=frame["loss_validation"] * 1.002, **other)
    return pandas.concat([frame, again], ignore_index=True)


def test_a_run_that_rows_leaves_out_is_in_no_section_of_a_report(tmp_path):
    frame = dense_twice({"seed": 2})
    frame.loc[7, "loss_validation"] = 9.5
    frame.to_csv(tmp_path / "table.csv", index=False)
    for rows, runs, scatter in ((None, 10, (10, 100)), ("loss_validation < 9", 9, (0.01, 0.5))):
        results, _ = gather(open_runs(tmp_path / "table.csv", rows))
        dense, seeds = results["dense"], results["seed_scatter"]
        assert dense.rows == runs and seeds.runs == runs - (runs == 9)
        low, high = scatter
        assert low < seeds.percent < high and low < dense.percent < high
        assert ("The law uses the rows `loss_validation < 9`" in markdown(results, [], full=True)) == (rows is not None)
    results, _ = gather(open_runs(tmp_path / "table.csv", "seed == 1"))
    assert results["dense"].rows == 5 and results["seed_scatter"].runs == 10


@pytest.mark.parametrize(("other", "tested"), [({"seed": 2}, True), ({"tokens": 4e9}, False), ({"corpus": "x"}, False)])
def test_runs_that_differ_in_more_than_their_seed_are_no_scale_of_chance(tmp_path, other, tested):
    dense_twice(other).to_csv(tmp_path / "table.csv", index=False)
    [fit] = read(tmp_path / "table.csv").fit("dense")
    assert (fit.misfit.seeds is not None) == tested and bool(fit.cautions) != tested


def test_huber_is_not_recommended_to_one_who_uses_it(tmp_path):
    frame = make_table(0)
    frame.loc[8, "loss_validation"] = 9.5
    frame.to_csv(tmp_path / "table.csv", index=False)
    [said] = read(tmp_path / "table.csv").fit(huber=0.001)[0].cautions
    assert "hyper_id 8: loss 9.5" in said and "--huber" not in said and "decides" not in said


def small_models(**columns) -> pandas.DataFrame:
    """Return runs whose loss is a law in all parameters, embedding included; N excludes it."""
    width, ratio = (axis.ravel() for axis in np.meshgrid([64, 96, 128, 192, 256, 384], [5, 20, 80, 320]))
    blocks = width // 32 + 1
    count = 12 * blocks * width**2 + 32_000 * width
    loss = (1.8172 + 482.01 / count**0.3478 + 2085.43 / (ratio * count) ** 0.3658) * np.exp(
        np.random.default_rng(2).normal(0, 0.002, width.size)
    )
    shape = {"d_model": width, "num_blocks": blocks, "num_heads": width // 32, "vocab_size": 32_000}
    return frame_of(count - 32_000 * width, 0 * width + 1, loss, **shape, tokens=ratio * count).assign(**columns)


def read_frame(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    return read(tmp_path / "t.csv")


def embedding_of(runs, law) -> list[str]:
    [selection] = runs.selections("dense")
    return [entry.words for entry in embedding_doubts(LAWS[law], selection.frame)]


def test_an_embedding_larger_than_n_is_remarked_on_and_counted_on_request(tmp_path):
    runs = read_frame(small_models(), tmp_path)
    assert runs.remarks == []
    [fit] = runs.fit("hoffmann")
    assert fit.coefficients["alpha"] < 0.15
    [said] = [caution for caution in fit.cautions if "embedding" in caution]
    assert "(0.53 to 14 times the other" in said and "compare with --count-embeddings 1. If N counts it, state" in said
    assert "6 N FLOPs leave out the output layer" in said
    assert all("N in doubt" in item.words and "pinned" not in item.words for item in fit.intervals)
    counting = runs.counting_embeddings(1)
    [fit] = counting.fit("hoffmann")
    assert fit.interval("alpha").words == "pinned down"
    assert fit.coefficients["alpha"] == pytest.approx(0.348, abs=0.02)
    assert fit.coefficients["c"] == pytest.approx(1.817, abs=0.08)
    assert not any("embedding" in caution for caution in fit.cautions)
    assert embedding_of(runs, "dense") == embedding_of(runs, "kaplan") == []
    [said] = embedding_of(counting, "kaplan")
    assert said.startswith("N counts the embedding") and said.endswith("compare with --count-embeddings 0")
    again = counting.counting_embeddings(0)
    assert again.frame["dense_parameter_count"].tolist() == runs.frame["dense_parameter_count"].tolist()


def test_a_table_that_says_that_n_counts_the_embedding_is_right(tmp_path):
    frame = small_models()
    frame["dense_parameter_count"] += 32_000 * frame["d_model"]
    runs = read_frame(frame, tmp_path)
    [said] = runs.remarks
    assert "N excludes the embedding and counts one expert (routelaws convert --set counted_embeddings=1" in said
    assert embedding_of(runs, "hoffmann") == []  # the shape shows that N counts it
    with pytest.raises(InputError, match="N is larger than the shape .* counts the embedding already, routelaws conv"):
        runs.counting_embeddings(1)
    stated = read_frame(frame.assign(counted_embeddings=1), tmp_path)
    assert stated.remarks == [] and embedding_of(stated, "hoffmann") == []
    with pytest.raises(InputError, match="--count-embeddings 3 is out of range; use 0, 1 or 2"):
        stated.counting_embeddings(3)
    with pytest.raises(InputError, match="needs vocab_size and d_model, which are blank in 24 of 24 rows"):
        read_frame(frame.drop(columns="vocab_size"), tmp_path).counting_embeddings(2)


def test_the_same_runs_have_one_plan_whatever_n_counts_and_whether_convert_counted_flops(tmp_path):
    frame = small_models()
    flops = 9.0 * (frame["dense_parameter_count"] + 32_000 * frame["d_model"]) * 2**16  # attention, by the shape
    counted = frame.assign(flops_per_step=flops, step=frame["tokens"] / 2**16, batch_size=64, sequence_length=1024)
    stated = counted.assign(counted_embeddings=1)
    stated["dense_parameter_count"] += 32_000 * frame["d_model"]
    choices = []
    for table in (frame, counted.round({"step": 0}), stated.round({"step": 0})):
        runs = read_frame(table, tmp_path).counting_embeddings(1)
        [ranking] = runs.plan(Budget(1e19), None, "hoffmann", resamples=0, published=False).rankings
        choices.append(ranking.lines[0].choice)
    assert choices[0].loss == pytest.approx(2.927, abs=0.01)
    assert [each.loss for each in choices[1:]] == pytest.approx([choices[0].loss] * 2, rel=1e-6)


def test_runs_whose_routers_have_not_learned_are_left_out_and_named():
    experts = np.array([1, 4, 8, 16])
    frame = frame_of([1e6] * 4, experts, [3.0, 2.9, 2.8, 2.7])
    frame = frame.assign(router_agreement=[np.nan, 0.9, 1 / 8, 0.9], expert_exchange=[np.nan, 1.5, 1.5, 1.0])
    [selection] = select_rows(frame)
    assert selection.frame["hyper_id"].tolist() == [0, 1]
    assert [run["hyper_id"] for run in selection.left_out] == [2, 3]
    assert all("its router has not learned" in run["reason"] for run in selection.left_out)
    [selection] = select_rows(frame, "num_experts == 1 or router_agreement >= 0")
    assert len(selection.frame) == len(Source(Runs(frame, "t.csv", "router_agreement != 2")).runs) == 4
    runs = Runs(frame, "t.csv")
    assert [run.hyper_id for run in Source(runs).runs] == [0, 1]
    with pytest.raises(InputError, match="left out: hyper_id 2, 3: its router has not learned"):
        runs.fit()


def test_an_embedding_below_a_tenth_of_n_is_not_remarked_on(tmp_path):
    frame = small_models(vocab_size=[200] * 24)
    assert embedding_of(read_frame(frame, tmp_path), "hoffmann") == []
    assert len(embedding_of(read_frame(frame.drop(columns="vocab_size"), tmp_path), "hoffmann")) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("loss_bpb", 1), ("loss_bits_per_byte", 1), ("loss_word", 1), ("loss_c4", 0), ("loss_keywords", 0)],
)
def test_a_loss_that_is_called_per_byte_or_word_is_remarked_on(name, said):
    [selection] = select_rows(make_table(0).assign(**{name: 2.0}), "step == 1000", name)
    found = [entry.words for entry in row_doubts(selection, name)]
    assert len(found) == said and all("for each byte, character or word" in words for words in found)


def test_the_same_tokens_per_parameter_are_one_recipe():
    frame = make_table(0)
    frame["tokens"] = 20 * frame["dense_parameter_count"]
    assert differences(frame) == []


@pytest.mark.parametrize(
    ("vocabularies", "loss", "bound"),
    [
        ([256, 50_257, np.nan], 6.0, None),  # above ln 256 = 5.5, below ln 50,257 = 10.8
        ([256, 256, np.nan], 6.0, "less than 5.55"),
        ([np.nan] * 3, 8.9, None),
        ([np.nan] * 3, 9.1, "less than 9"),
        ([50_257] * 3, 9.1, "less than 9"),
    ],
)
def test_a_loss_is_compared_with_what_frequencies_of_tokens_give(vocabularies, loss, bound):
    found = impossible_losses(pandas.DataFrame({"loss": [loss] * 3, "vocab_size": vocabularies}), "loss")
    assert [entry.where for entry in found] == ["units"] * (bound is not None)
    assert bound is None or found[0].groups[0][0].endswith(bound)


def test_a_column_by_which_a_law_is_a_function_is_no_difference():
    frame = make_table(0)
    frame.loc[frame["num_experts"] > 4, "k"] = 2
    [found] = differences(frame)
    assert (found.column, found.groups) == ("k", [("2", 15), ("1", 5)])
    assert differences(frame, compute=True) == []


def test_names_of_runs_sizes_and_measurements_are_no_groups():
    frame = make_table(0)
    frame["run"] = [f"run {i}" for i in range(len(frame))]
    frame["size"] = frame["dense_parameter_count"].astype(str)
    frame["accuracy"] = (0.25 + 0.125 * (frame.index % 2)).astype(str)
    assert differences(frame) == []
    for name, texts in (("model_family", "a b"), ("eval_set", "c4 pile"), ("data.tokenizer", "gpt2 llama")):
        first, other = texts.split()
        found = differences(frame.assign(**{name: np.where(frame["num_experts"] == 1, first, other)}))
        assert [entry.column for entry in found] == [name] * (name != "model_family")  # one text for each E


def test_a_run_that_ends_early_is_held_against_its_own_size():
    """Most runs end at 900 steps.

    If the runs of a size end at 5000 steps, a run of 2000 is short. If all runs of a size end at 300, none is short.
    The only run of a size is compared with 900.
    """
    steps = [900, 900, 900, 400, *[900] * 7, 5000, 5000, 5000, 2000, 300, 300, 300, 300]
    sizes = [1e6] * 11 + [1e7] * 4 + [1e8] * 3 + [1e9]
    frame = pandas.DataFrame({"hyper_id": range(19), "step": steps, "dense_parameter_count": sizes})
    assert shorter_runs(frame) == [(3, 400, 900, ""), (14, 2000, 5000, ""), (18, 300, 900, "")]
    named = frame.assign(run=[f"model {i}" for i in range(19)])
    assert shorter_runs(named)[0] == (3, 400, 900, "model 3")
    assert "hyper_id 3 'model 3' (step 400 of 900)" in warnings([], shorter_runs(named), None, None)[0]


@pytest.mark.parametrize(
    ("steps", "short"),
    [
        ([400, 900], []),
        ([400, 900, 900], [0]),
        ([400, 900, 900, 1000], []),
        ([400, 400, 900, 900, 900], [0, 1]),
        ([890, 900, 900], []),
    ],
)
def test_most_runs_are_more_than_half_of_at_least_three(steps, short):
    frame = pandas.DataFrame({"hyper_id": range(len(steps)), "step": steps, "dense_parameter_count": 1e6})
    assert [run.hyper_id for run in shorter_runs(frame)] == short


def test_the_bend_by_hand():
    """Residuals (1, -2, 1)·h at three sizes, one decade apart, are a parabola with coefficient 3 h / 2.

    With residuals ±e in each pair, the rest of the fit has the sum of squares 6 e² and 6 - 2 - 1 degrees of freedom.
    """
    h, e = 1e-2, 1e-3
    size = np.repeat([1e7, 1e8, 1e9], 2)
    miss = np.repeat([h, -2 * h, h], 2) + np.tile([e, -e], 3)
    design = np.stack([np.ones(6), np.log10(size)], axis=1)
    found = bend_in_size(size, miss, design, 2)
    assert found.value == pytest.approx(3 * h)
    assert found.test.freedom == (1, 3)
    # A parabola through the three means explains 12 h² and leaves the sum 6 e².
    assert found.test.statistic == pytest.approx(12 * h**2 / (6 * e**2 / 3))
    assert bend_in_size(size[:4], miss[:4], design[:4], 2) is None


def test_residuals_of_many_sizes_are_printed_for_bins_of_equal_ratios():
    """Nine decades in 8 bins, of which only the first and the last have runs."""
    many = [SizeMiss(10.0**power, 1 + (power == 8), 0.01) for power in np.linspace(8, 9, 12)]
    sizes = [*many, SizeMiss(1e17, 3, -0.01)]
    [line] = misfit_lines(Misfit(sizes, None, None, None, [], None))
    assert line.endswith("mean in bins of N: 100M to 1B (13 runs): +2.3 %, 1.00e+17 (3 runs): -2.3 %")
    [line] = misfit_lines(Misfit(sizes[1:], None, None, None, [], None))
    assert "mean at each N: " in line and line.count("%") == 12


@pytest.mark.parametrize(("off", "clear"), [(0.01, True), (0.001, False)])
def test_a_scatter_that_differs_by_size_is_compared_at_its_own_size(off, clear):
    """One size scatters by 0.1 and three by 0.001. At N = 2e7 the law is wrong by `off`: 0.01 is far more than chance.

    The common scatter hides this. By hand: F = 5 · off² / 1 / (5 · 1e-6 / 4), and p counts four tests.
    """
    size, scatter = np.repeat([1e7, 2e7, 3e7, 4e7], 5), np.repeat([0.1, 0.001, 0.001, 0.001], 5)
    miss = scatter * np.tile([1.0, -1.0, 1.0, -1.0, 0.0], 4) + off * (size == 2e7)
    found = beyond_seeds(size, [size], miss, 2)
    _, line = misfit_lines(Misfit(by_size(size, miss), None, found, None, [], None))
    said = "at each N, the residuals are no larger than this scatter (smallest p = 0.4)"
    if clear:
        assert (found.size, found.freedom) == (2e7, (1, 4)) and found.statistic == pytest.approx(5 * off**2 / 1e-6)
        assert found.p == pytest.approx(4 * scipy.stats.f.sf(found.statistic, 1, 4))
        said = "at N = 20,000,000, the residuals are larger than this scatter (F = 500, p = 9e-05)"
        said += ": the form of the law causes part of the error"
    assert line == f"the scatter of repeated runs is not the same at each N; {said}"


@pytest.mark.parametrize("terms, freedom", [(1, 1), (1, 7000), (2, 9), (5, 300), (300, 4000)])
def test_the_tails_are_those_of_a_library(terms, freedom):
    for statistic in (0.0, 1e-3, 0.5, 1.0, 1.3, 4.0, math.inf):
        wanted = scipy.stats.f.sf(statistic, terms, freedom)
        assert misfit._f_above(statistic, terms, freedom) == pytest.approx(wanted, rel=1e-9, abs=1e-300)
        if math.isinf(statistic):
            continue
        wanted = scipy.stats.chi2.sf(statistic * terms, terms)
        assert misfit._chi_squared_above(statistic * terms, terms) == pytest.approx(wanted, rel=1e-9, abs=1e-300)


def test_equal_variances_are_those_of_a_library():
    samples = [np.random.default_rng(i).normal(0, spread, 4 + i) for i, spread in enumerate((1.0, 1.0, 3.0))]
    squares = [((each - each.mean()) ** 2).sum() for each in samples]
    degrees = [each.size - 1 for each in samples]
    assert equal_variances(squares, degrees) == pytest.approx(scipy.stats.bartlett(*samples).pvalue)
    assert equal_variances(squares[:1], degrees[:1]) == equal_variances([0, 0], [2, 2]) == 1
    assert equal_variances([0, 1], [2, 2]) == 0


POINTS = [v.ravel() for v in np.meshgrid(np.geomspace(2e7, 2e9, 4), [1.0, 4.0, 16.0, 64.0], [5e9, 2e10, 8e10])]
"""N, E and D of 48 runs."""


LONG = ("sparsity", "fine-grained", "kaplan")  # their fits take a second each


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in LONG))
        for name, law in LAWS.items() if law.measured == "loss"
    ],
)  # fmt: skip
def test_wrong_runs_are_named_for_each_law_and_none_without_them(name):
    law, (size, experts, tokens) = LAWS[name], POINTS
    held = {
        "dense_parameters": size, "num_experts": experts, "tokens": tokens, "active_parameters": size + 3e7,
        "granularity": np.resize([1.0, 2.0, 4.0, 8.0, 16.0], 48), "total_parameters": size * (0.4 + 0.6 * experts),
        "teraflops": size * 4.096e-9, "utilisation": 244 * (0.4 + 0.6 * experts), "flops": 6 * size * tokens,
        "sparsity": 1 - 1 / experts,
    }  # fmt: skip
    rows = experts > 1 if "sparsity" in law.columns else experts > 0
    columns, size = [held[column][rows] for column in law.columns], size[rows]
    smooth = (1.5 + 300 * POINTS[0] ** -0.34 * experts**-0.08 + 900 * tokens**-0.36)[rows]
    given, wrong = law.given(*columns), [3, 10, 11, 17]
    exact = law.predict(law.fit(*columns, smooth, **given), *columns)
    loss = exact * 10 ** np.random.default_rng(1).normal(0, 1e-3, size.size)
    assert not far_rows(law, law.fit(*columns, loss, **given), columns, loss, size).far.any()
    loss[wrong] *= 1.5, 1.2, 1.3, 0.8
    found = far_rows(law, law.fit(*columns, loss, **given), columns, loss, size)
    assert np.flatnonzero(found.far).tolist() == wrong
    assert found.predicted == pytest.approx(exact, rel=0.02)


def few_rows(seed: int, wrong: float = 0.0) -> dict:
    """Return twelve runs of three sizes on a bounded law. The sixth has an error of `wrong` in log10."""
    law = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
    size, experts = (column.ravel() for column in np.meshgrid([1e7, 1e8, 1e9], [1.0, 4.0, 16.0, 64.0]))
    loss = predict_loss(size, experts, law) * 10 ** np.random.default_rng(seed).normal(0, 4e-3, 12)
    loss[5] *= 10**wrong
    return {"size": size, "experts": experts, "loss": loss}


def test_a_wrong_run_among_few_rows_is_named_though_the_law_has_run_after_it(tmp_path, capsys, monkeypatch):
    """By least squares the residual of the wrong run is 5 deviations. The law of the other runs predicts 2.7."""
    rows = few_rows(0, wrong=0.5)
    names = {"size": "dense_parameter_count", "experts": "num_experts", "loss": "loss_validation"}
    frame = pandas.DataFrame(rows).rename(columns=names).assign(hyper_id=range(12), step=1000, router_type="S-Base")
    frame.loc[frame["num_experts"] == 1, "router_type"] = "Dense"
    frame.to_csv(tmp_path / "few.csv", index=False)
    [run] = read(tmp_path / "few.csv").fit()[0].misfit.outliers
    law = predict_loss(rows["size"][5], rows["experts"][5], RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0))
    assert run.hyper_id == 5 and run.law == pytest.approx(float(law), rel=0.05)
    monkeypatch.setattr(report, "draw_all", lambda *_, **__: [])
    assert main(["reproduce", str(tmp_path / "few.csv"), "--out", str(tmp_path / "report")]) == 0
    said = f"hyper_id 5: loss {rows['loss'][5]:.4g}, predicted {run.law:.4g}"
    assert said in capsys.readouterr().err and said in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_a_law_is_too_low_for_a_size_that_it_predicts_below_what_was_measured():
    """An error is the predicted minus the measured log10 loss."""
    size = np.array([1e7, 1e8, 1e9, 1e9])
    for off, words in ((-0.01, "2.3 % too low"), (0.01, "2.3 % too high")):
        found = largest_size(size, np.array([0.5, 0.5, off, off]))
        assert (found.size, found.rows) == (1e9, 2) and how_far_off(found.miss) == words


def test_predict_carries_the_warnings_and_doubts_a_bent_law(tmp_path):
    frame = make_table(0)
    spoil(frame, "a floor", np.random.default_rng(0))
    frame.loc[0, "tokens"] = 4e9
    frame.to_csv(tmp_path / "table.csv", index=False)
    at = {"dense_parameters": 1e10, "num_experts": 16.0}
    [prediction] = read(tmp_path / "table.csv").fit().predict(**at).predictions
    text = "\n".join(prediction.cautions)
    assert "training tokens, which this law ignores (N = " in text
    assert "the residuals of the law are curved in log N; the law fitted without the largest size (N = " in text
    truth = 1.7 + 300 * 1e10**-0.34 * 16**-0.05
    assert prediction.law.high < truth  # the interval assumes the law, so the warning is needed
    [inside] = read(tmp_path / "table.csv").fit().predict(**(at | {"dense_parameters": 1e8})).predictions
    assert "are curved" not in "\n".join(inside.cautions)


def test_of_many_runs_that_are_left_out_the_first_are_named():
    runs = [{"hyper_id": i, "reason": "wide"} for i in range(7)] + [{"hyper_id": 9, "reason": "blank", "run": "mine"}]
    assert left_out_lines([*runs[:6], runs[7]]) == [
        "left out: hyper_id 0, 1, 2, 3, 4, 5: wide",
        "left out: hyper_id 9 'mine': blank",
    ]
    assert left_out_lines(runs)[0] == "left out: hyper_id 0, 1, 2, 3, 4, 5, ...: wide"


DIFFERENCES = [
    differing("tokens", [("N = 9: 1 to 4 tokens", 2)], "runs of one size"),
    differing("tokens", [("N = 9: 1 tokens, 0.1 per parameter", 2)], "sizes"),
    differing("k", [("1", 9), ("2", 1)], "rows"),
    *(impossible_losses(pandas.DataFrame({"loss_c4": [loss]}), "loss_c4")[0] for loss in (19.0, 0.01)),
    cut_runs([("3: step 5 of 10", 1)]),
    repeated_runs("routed", [("3: 9", 1)]),
    repeated_runs("dense", [("3: 9", 1), ("4: 10", 1)]),
    same_budgets([("1e+18 FLOPs", 3), ("2e+18 FLOPs", 3)], [4, 7]),
    same_budgets([("1e+18 FLOPs", 3)], [4, 7, 9]),
    rates_of_models([("N = 9, E = 4: 0.001 to 0.01", 3)], [7, 9]),
    proportional("20 to 21", 9, 1.0, 123.4),
    proportional("20 to 40", 9, 0.75, None),
    proportional("20 to 40", 9, 0.75, 4.0),
]
SHORTER = [Shorter(3, 400, 1900, ""), Shorter(4, 500, 900, "a run")]
FAR = [Outlier(3, 9.5, 2.25, 40.0), Outlier(4, 8.0, 2.5, 30.0, "a run")]
SIZE_MISSES = [SizeMiss(1e7, 2, 0.01), SizeMiss(1e9, 2, -0.001)]
CLEAR, UNCLEAR = misfit.Test(7.5, (1, 3), 0.04), misfit.Test(1.5, (1, 3), 0.06)


def test_the_sentences_are_the_approved_ones(approved):
    empty = Misfit([], None, None, None, [], None)
    far = empty._replace(outliers=FAR)
    rises = [empty._replace(rise=Rise(experts, (1e7, 1e9), (2.25, 2.5))) for experts in (None, 1.0)]
    lines = [entry.words for entry in DIFFERENCES]
    lines += warnings([], SHORTER, None, None) + warnings([], SHORTER[:1], None, None)
    for each in (far, far._replace(without=0.05), far._replace(without=0.04), *rises):
        lines += warnings([], [], each, 0.1)
    lines += warnings([], [], far._replace(without=0.04), 0.1, huber=True)
    lines += warnings([], [], far._replace(outliers=FAR[:1], without=0.04), 0.1, takes_huber=False)
    lines += misfit_lines(Misfit(SIZE_MISSES, Bend(-0.1, CLEAR), CLEAR, SIZE_MISSES[0], [], None))
    lines += misfit_lines(Misfit(SIZE_MISSES, Bend(0.1, UNCLEAR), UNCLEAR, SIZE_MISSES[1], [], None))
    lines += misfit_lines(empty._replace(bend=Bend(0.1, CLEAR)))
    approved("cautions.txt", "\n".join(lines) + "\n", 0)
