"""isoFLOP profiles: a parabola by hand, laws with a known minimum, and the reason for another minimum of a parabola."""

import json
import math

import numpy as np
import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.findings.report import FIGURES, gather, markdown
from routelaws.accelerated.findings.source import open_runs
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.planning import isoflop
from routelaws.accelerated.results.runs import read
from routelaws.reference.laws import (
    HoffmannCoefficients,
    Minimum,
    MinimumDifference,
    hoffmann_optimum,
    isoflop_budgets,
    law_minimum,
    parabola,
)

LAW = HoffmannCoefficients(400.0, 0.34, 2000.0, 0.37, 1.8)
BUDGETS = (1e18, 1e19, 1e20)


def by_law(sizes, flops):
    return LAW.a * sizes**-LAW.alpha + LAW.b * (flops / 6 / sizes) ** -LAW.beta + LAW.c


def table(lean=4.0, kinds=(("Dense", 1, 0.0),), spread=1.0) -> pandas.DataFrame:
    """Return runs of seven sizes at each budget. They reach `lean` times as far above the best size as below it.

    The last number of a kind is added to its losses. `spread` is the ratio of the FLOPs of runs of a budget.
    """
    rows = []
    for router, experts, more in kinds:
        for flops in BUDGETS:
            best = hoffmann_optimum(flops, LAW).parameters
            for i, size in enumerate(best * np.geomspace(0.5, 2 * lean, 7)):
                spent = flops * spread ** ((i % 3 - 1) / 2)
                rows.append(
                    {"hyper_id": len(rows), "step": 1, "router_type": router, "num_experts": experts, "k": 1}
                    | {"dense_parameter_count": size, "tokens": spent / 6 / size, "training_flops": spent}
                    | {"loss_validation": by_law(size, spent) + more}
                )
    return pandas.DataFrame(rows)


def profiles_of(frame, path):
    frame.to_csv(path, index=False)
    [fit] = read(path).fit("hoffmann")
    return isoflop.isoflop_profiles(fit)


def test_a_parabola_by_hand():
    """Losses 5, 2, 3 at x = -1, 0, 1 (ln N from ln 10): p = 2, q = -1, r = 2, so x* = 1/4 and L* = 2 - 1/8."""
    found = parabola(10 * np.exp([-1.0, 0.0, 1.0]), np.array([5.0, 2.0, 3.0]))
    assert found[:3] == pytest.approx((10 * math.exp(0.25), 1.875, 2.0)) and math.isnan(found.error)


def test_losses_that_do_not_bend_upwards_have_no_minimum():
    found = parabola(np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 2.9, 2.7, 2.4]))
    assert math.isnan(found.size) and found.curvature < 0
    with pytest.raises(InputError, match="2 different values; a parabola needs at least 3"):
        parabola(np.array([1.0, 1.0, 2.0]), np.ones(3))


def test_the_minimum_of_a_law_is_that_of_its_formula():
    best = hoffmann_optimum(1e20, LAW)
    found = law_minimum(lambda sizes: by_law(sizes, 1e20), best.parameters * np.array([0.1, 0.3, 1.0]))
    assert (found.size, found.loss) == pytest.approx((best.parameters, best.loss), rel=1e-6)
    bend = LAW.alpha**2 * LAW.a * best.parameters**-LAW.alpha + LAW.beta**2 * LAW.b * best.tokens**-LAW.beta
    assert found.curvature == pytest.approx(bend / 2, rel=1e-3)
    assert math.isnan(law_minimum(lambda sizes: sizes**-0.1, np.array([1.0, 2.0])).size)


def test_budgets_are_the_densest_windows():
    flops = np.array([1.0, 1.1, 1.2, 1.24, 1.3, 9.0, 10.0, 10.5, 11.0, 11.2, 50.0])
    sizes = np.arange(1.0, 12)
    assert [found.tolist() for found in isoflop_budgets(flops, sizes)] == [[0, 1, 2, 3], [5, 6, 7, 8, 9]]
    assert [found.tolist() for found in isoflop_budgets(flops, np.ones(11))] == []
    assert [found.tolist() for found in isoflop_budgets(flops, sizes, window=1.3)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_run_is_in_one_budget():
    """The densest window begins above other runs, whose own windows reach into it."""
    flops, sizes = np.array([1.0, 1.02, 1.05, 1.1, 1.12, 1.2, 1.27, 1.28, 1.3, 1.31]), np.arange(1.0, 11)
    assert [found.tolist() for found in isoflop_budgets(flops, sizes)] == [[2, 3, 4, 5, 6, 7, 8, 9]]
    random = np.random.default_rng(0)
    for _ in range(50):
        runs = np.concatenate(isoflop_budgets(np.exp(random.random(40)), np.arange(1.0, 41)))
        assert len(set(runs)) == len(runs)


def test_a_planted_law_leaves_its_shape_alone(tmp_path):
    """Without noise the whole difference is due to the shape, and runs on one side make it large."""
    for spread in (1.0, 1.1):
        for each, flops in zip(profiles_of(table(spread=spread), tmp_path / "t.csv"), BUDGETS, strict=True):
            best = hoffmann_optimum(each.flops, LAW)
            assert each.name == "Dense" and each.flops == pytest.approx(flops, rel=0.1) and len(each.sizes) == 7
            assert each.law.size == pytest.approx(best.parameters, rel=0.02)
            assert each.losses == pytest.approx(by_law(each.sizes, each.flops), abs=2e-4)
            assert abs(each.difference.runs) < 1e-4 < 0.004 < abs(each.difference.shape) and each.moved < 0.03
            assert sum(each.difference) == pytest.approx(math.log(each.parabola.size / each.law.size))
    leaning = [abs(each.difference.shape) for each in profiles_of(table(lean=40.0), tmp_path / "t.csv")]
    assert min(leaning) > 0.1


@pytest.mark.parametrize(
    ("measured", "error", "law", "apart", "why"),
    [
        (math.nan, math.nan, 10.0, (math.nan, math.nan), "no minimum: the parabola opens downwards"),
        (10.0, 0.1, math.nan, (math.nan, math.nan), "the law has no minimum"),
        (100.0, 0.1, 100.0, (1.0, -1.0), "they agree"),
        (101.0, 9.0, 10.0, (1.0, 1.0), "the parabola's minimum is outside the runs"),
        (0.9, 9.0, 10.0, (1.0, 1.0), "the parabola's minimum is outside the runs"),
        (100.0, 0.5, 10.0, (0.5, 0.5), "within twice the error of the parabola"),
        (100.0, 0.499, 10.0, (-0.5, -0.5), "the law's profile is not a parabola"),
        (100.0, math.nan, 10.0, (0.5, 0.51), "the runs miss the law"),
    ],
)
def test_each_reason_why_minima_differ(measured, error, law, apart, why):
    minima = Minimum(measured, 2.0, 1.0, error), Minimum(law, 2.0, 1.0, math.nan)
    assert isoflop._why(np.array([1.0, 100.0]), *minima, MinimumDifference(*apart)) == why


def test_why_says_what_is_so(tmp_path):
    whys = {each.why for each in profiles_of(table(lean=100.0), tmp_path / "t.csv")}
    assert whys == {"the law's profile is not a parabola"}
    frame = table(lean=1.0)
    assert {each.why for each in profiles_of(frame, tmp_path / "t.csv")} == {"they agree"}
    middle = frame["training_flops"] == BUDGETS[1]
    frame.loc[middle, "loss_validation"] += 0.02 * np.linspace(1, -1, 7)
    assert [each.why for each in profiles_of(frame, tmp_path / "t.csv")][1] == "the runs miss the law"
    frame.loc[middle, "loss_validation"] += np.linspace(0.5, -1, 7)
    why = [each.why for each in profiles_of(frame, tmp_path / "t.csv")][1]
    assert why in ("the parabola's minimum is outside the runs", "no minimum: the parabola opens downwards")


def test_how_the_best_size_grows(tmp_path):
    """With symmetric sizes, both powers are β/(α + β)."""
    [line] = isoflop._growth(profiles_of(table(lean=1.0), tmp_path / "t.csv"))
    by_parabola, by_law_ = (float(words.split()[0].strip(",")) for words in line.split("FLOPs^")[1:])
    assert (by_parabola, by_law_) == pytest.approx([0.37 / 0.71] * 2, abs=2e-3)


def test_each_kind_of_model_has_its_own_profiles(tmp_path):
    kinds = (("Dense", 1, 0.0), ("Top-K", 8, -0.1), ("Top-K", 64, -0.2))
    path = tmp_path / "t.csv"
    table(kinds=kinds).to_csv(path, index=False)
    found = isoflop.kinds_profiles(read(path).selections("one kind"), "loss_validation")
    names = ["Dense"] * 3 + ["Top-K, E 8"] * 3 + ["Top-K, E 64"] * 3
    assert sorted(each.name for each in found) == sorted(names)
    losses = {each.name: each.law.loss for each in found if each.flops == pytest.approx(1e19)}
    assert losses["Dense"] - losses["Top-K, E 64"] == pytest.approx(0.2, abs=1e-3)


def test_a_law_that_knows_no_tokens_has_no_profiles(tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "t.csv", index=False)
    [fit] = read(tmp_path / "t.csv").fit("compute", floor=1.6)
    assert isoflop.isoflop_profiles(fit) == [] and isoflop.profile_blocks([]) == []
    [without] = (
        read(tmp_path / "t.csv")
        .where("training_flops < 2e18")
        .plan(Budget(1e20), law=LAWS["dense"], published=False, resamples=0)
        .rankings
    )
    assert without.profiles == []


def test_plan_and_reports_show_the_profiles(tmp_path, capsys, few_resamples):
    path = tmp_path / "iso.csv"
    table().to_csv(path, index=False)
    flags = ["--law", "hoffmann", "--flops", "1e20", "--no-published", "--resamples", "0"]
    assert main(["plan", str(path), *flags, "--out", str(tmp_path / "plan")]) == 0
    assert isoflop.ISOFLOP_HEAD in capsys.readouterr().out and (tmp_path / "plan" / "isoflop.png").exists()
    [ranking] = json.loads((tmp_path / "plan" / "plan.json").read_text())["rankings"]
    assert [len(each["sizes"]) for each in ranking["isoflop"]] == [7, 7, 7]
    results, runs = gather(open_runs(path))
    said = markdown(results, ["isoflop"], full=True)
    assert f"## {isoflop.ISOFLOP_HEAD}" in said and "figures/isoflop.svg" in said
    assert FIGURES["isoflop"](results, runs).axes
    assert [each.law.size for each in results["isoflop"]] == pytest.approx(
        [each["law"]["size"] for each in ranking["isoflop"]]
    )
