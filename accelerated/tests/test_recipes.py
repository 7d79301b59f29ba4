"""Recipes: the rules on released runs, and the fit of a rule to runs of a known rule."""

import json
import math

import numpy as np
import pandas
import pytest

from routelaws.accelerated.results.planning.recipe_fits import fitted
from routelaws.accelerated.results.planning.recipes import beyond_words
from routelaws.accelerated.results.prediction import Beyond, extrapolation
from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.recipes import RECIPES, Setting, excess, fit_recipe, holding

from .small_runs import ran
from .small_tables import frame_of, write

RULE = {"rate": (0.5, -0.3, 0.2), "batch": (20.0, -0.1, 0.45)}
"""Factor, power of N and power of D of the best rate and batch."""


def best(name: str, size, tokens):
    factor, of_size, of_tokens = RULE[name]
    return factor * size**of_size * tokens**of_tokens


def grid(sizes=(1e7, 4e7, 1.6e8), tokens=(1e9, 4e9, 1.6e10)) -> dict[str, np.ndarray]:
    """Return runs around the rule: ln L is a tilted parabola in ln rate and ln batch, with another level per group."""
    axes = np.meshgrid(sizes, tokens, np.linspace(-2, 2, 9), np.linspace(-1, 1, 5), indexing="ij")
    size, data, off_rate, off_batch = (axis.ravel() for axis in axes)
    rate, batch = (np.exp(off) * best(name, size, data) for name, off in (("rate", off_rate), ("batch", off_batch)))
    bowl = 0.004 * off_rate**2 + 0.003 * off_rate * off_batch + 0.006 * off_batch**2
    loss = (2 + 30 / data**0.2) * np.exp(bowl)
    return {"rates": rate, "batches": batch, "active": size, "tokens": data, "losses": loss}


def test_a_fit_finds_the_rule_behind_the_runs():
    rule, left_out = fit_recipe(**grid())
    for name, (factor, of_size, of_tokens) in RULE.items():
        assert np.allclose(rule.powers[name], (math.log(factor), of_tokens, of_size), atol=1e-9), name
    assert len(left_out) == rule.groups == 9 and max(each.excess for each in left_out) == 0
    assert np.isclose(rule.at("rate", 1e9, 1e11), best("rate", 1e9, 1e11))


def test_models_of_one_size_are_different_groups():
    """Mixtures of the same N and D have other losses, so one group of both would see one kind alone."""
    runs, others = grid(), grid()
    others["losses"] = 0.98 * others["losses"]
    both = {name: np.concatenate([runs[name], others[name]]) for name in runs}
    rule, left_out = fit_recipe(**both, kind=np.repeat([0, 1], 405))
    assert rule.groups == len(left_out) == 18 and np.allclose(rule.powers["rate"][1:], (0.2, -0.3), atol=1e-9)


def test_the_powers_of_noisy_runs_lie_in_their_intervals():
    """95 % of 100 tables; a binomial count falls below 87 with a probability of 0.1 %."""
    runs, generator = grid(), np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        noise = np.exp(generator.normal(0, 5e-4, runs["losses"].size))
        ranges = {each.name: each for each in fit_recipe(**runs | {"losses": runs["losses"] * noise})[0].intervals}
        inside += ranges["rate D"].low <= RULE["rate"][2] <= ranges["rate D"].high
    assert inside >= 87


def test_runs_of_one_batch_give_a_rule_for_the_rate_alone():
    runs = grid(tokens=(1e9,))
    middle = np.isclose(runs["batches"], best("batch", runs["active"], 1e9))
    runs = {name: values[middle] for name, values in runs.items()}
    rule, _ = fit_recipe(**runs | {"batches": np.full(27, 1024.0)})
    assert list(rule.powers) == ["rate"] and math.isnan(rule.at("batch", 1e7, 1e9))
    assert np.allclose(rule.powers["rate"][1:], (0, -0.3))


def test_runs_without_a_minimum_are_refused():
    runs = grid()
    hills = (2 + 30 / runs["tokens"] ** 0.2) ** 1.3 / runs["losses"] ** 0.3
    with pytest.raises(ValueError, match="no minimum in rate and batch: add runs"):
        fit_recipe(**runs | {"losses": hills})
    alone = {name: values[:45] for name, values in runs.items()}
    assert fit_recipe(**alone)[1] == [], "one group cannot be judged"


def test_the_nearest_run_says_what_a_choice_costs():
    """By hand: 3e-3 is nearer to 4e-3 than to 2e-3 in ratio, and 9e-3 is more than half a step of 2 beyond 4e-3."""
    rates, losses = np.array([1e-3, 2e-3, 4e-3]), np.array([2.1, 2.0, 2.2])
    assert excess(rates, np.ones(3), losses, 3e-3, 1.0) == (pytest.approx(0.1), False)
    assert excess(rates, np.ones(3), losses, 9e-3, math.nan) == (pytest.approx(0.1), True)


def test_recipes_by_hand():
    """The joint law's authors print 2^-8 for their model of 30M; Marin's run at 1e20 FLOPs has a width of 1,536."""
    assert RECIPES["joint"].rate(Setting(3.4e6, 3.4e6, 1e9, embeddings=25.7e6)) == pytest.approx(2**-8, rel=0.03)
    assert RECIPES["tian"].batch(Setting(1e9, 1e9, 1e12)) == pytest.approx(0.0694 * 6e21**0.3644)
    run = Setting(1e10, 5e8, 3.05e10, 64, 1536)
    sequences = 3.05e10 / 2**14 / 4096
    assert RECIPES["marin"].rate(run) == pytest.approx(1.63 * 3.05e10**-0.2813 * 1536**-0.3678 * sequences**0.5)
    assert RECIPES["step-law"].beyond(Setting(4.4e9, 1e9, 1e9)) == {"total": 2.0, "tokens": 0.5}
    assert math.isnan(RECIPES["marin"].beyond(Setting(1e9, 1e9, 2e10))["width"])


@pytest.mark.parametrize(("ratio", "words"), [(1.00004, "1.00004"), (0.9996, "0.9996"), (1.03, "1.03"), (250.4, "250")])
def test_a_ratio_out_of_range_never_reads_one(ratio, words):
    recipe = RECIPES["tian"]
    low, high = recipe.ranges["flops"]
    flops = ratio * (high if ratio > 1 else low)
    assert beyond_words(recipe, Setting(total=1.0, active=flops / 6, tokens=1.0)) == f"C {words}x"
    assert extrapolation([Beyond("N", ratio, 1.0)], None)[0].startswith(f"N = {ratio:g} is {words} times the")


def test_a_sweep_has_one_recipe():
    small, large = Setting(1e5, 1e5, 1e8), Setting(1e9, 1e9, 2e10)
    assert [holding(runs).name for runs in ([small], [large], [small, small, large])] == ["ours", "step-law", "ours"]


def test_a_table_of_runs_is_fitted(tmp_path):
    """Whole steps of each batch give tokens that differ by 1 %, which are one group."""
    runs = grid()
    about = runs["tokens"] * np.random.default_rng(0).uniform(1, 1.01, runs["tokens"].size)
    columns = {"learning_rate": runs["rates"], "batch_size": np.round(runs["batches"]), "sequence_length": 1}
    columns |= {"tokens": about, "total_parameter_count": runs["active"], "loss_c4": runs["losses"] + 1}
    path = write(frame_of(runs["active"], np.ones(405), runs["losses"], **columns), tmp_path)
    code, out, err = ran("recipe", "--fit", path, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["groups"] == 9 and found["cost"]["fitted"]["worst"] < 1e-3
    values = {name: each["value"] for name, each in found["powers"].items()}
    assert values["rate N"] == pytest.approx(-0.3, abs=0.01) and values["batch D"] == pytest.approx(0.45, abs=0.01)
    routed = frame_of(runs["active"], np.full(405, 8.0), 0.9 * runs["losses"], **columns)
    routed["hyper_id"] += 405
    routed["total_parameter_count"] *= 4
    pandas.concat([pandas.read_csv(path), routed]).to_csv(tmp_path / "both.csv", index=False)
    assert json.loads(ran("recipe", "--fit", tmp_path / "both.csv", "--json")[1])["groups"] == 18
    other, narrow = (json.loads(ran("recipe", "--fit", path, *more, "--json")[1]) for more in (
        ("--loss", "loss_c4"), ("--level", "0.5")
    ))  # fmt: skip
    assert other["powers"] != found["powers"] and narrow["powers"]["rate D"]["high"] < found["powers"]["rate D"]["high"]
    code, _, err = ran("recipe", "--fit", path, "--loss", "loss_pile")
    assert code == 2 and "column loss_pile is missing" in err


MEASURED = {
    "steplaw-moe": {
        "step-law": (0.16, 0.51), "ours": (0.33, 1.45), "joint": (0.72, 2.25), "step-law, N for P": (1.00, 2.24),
        "tian": (1.71, 3.33),
    },
    "steplaw-dense": {"step-law": (0.10, 0.31), "ours": (1.33, 1.71)},
}  # fmt: skip
"""Mean and worst cost in per cent, computed by a script that does not use this project."""


@pytest.mark.released
@pytest.mark.parametrize("table", MEASURED)
def test_what_recipes_cost_on_released_runs(table):
    released_file(f"{table.replace('-', '_')}.csv")
    found = fitted(table, "loss_validation", 0.95)
    for name, wanted in MEASURED[table].items():
        cost = found["cost"][name]
        assert np.allclose((100 * cost["mean"], 100 * cost["worst"]), wanted, atol=0.0101), name
    assert found["cost"]["joint"]["beyond"] == (4 if table == "steplaw-moe" else 1)
    assert found["cost"]["fitted"]["mean"] < 0.0015 and found["cost"]["fitted"]["worst"] < 0.005
    assert found["groups"] == (16 if table == "steplaw-moe" else 17)
