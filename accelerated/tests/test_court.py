"""The court of laws: what a law misses, where, and at what regret; and whether it finds the law behind a table."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from routelaws.accelerated.commands.laws import court as command
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.results import court
from routelaws.accelerated.results.blocks import percent
from routelaws.accelerated.results.court import Candidate, CourtTable, calibration, judge, regret, told_apart
from routelaws.accelerated.results.verdicts import VERDICTS, verdict_line
from routelaws.conformance.suite.strategies import released_file

from .small_runs import ran
from .small_tables import frame_of, write

HOFFMANN, BOUNDED = LAWS["hoffmann"], LAWS["routed-bounded"]
PRINTED = Candidate(HOFFMANN, "besiroglu", HOFFMANN.published["besiroglu"], "chinchilla")


def table(sizes=(1e8, 4e8, 1.6e9), tokens=(2e9, 1e10, 5e10), experts=(1.0,), factor=1.0) -> CourtTable:
    """Return runs on the printed law of Besiroglu, of a grid in N, D and E."""
    size, data, count = (axis.ravel() for axis in np.meshgrid(sizes, tokens, experts, indexing="ij"))
    columns = {"dense_parameters": size, "tokens": data, "num_experts": count, "flops": 6 * size * data}
    columns |= {"active_parameters": size, "total_parameters": size * (1 + 0.5 * (count - 1))}
    loss = HOFFMANN.predict(HOFFMANN.published["besiroglu"], size, data)
    return CourtTable("grid", "made up", columns | {"sparsity": 1 - 1 / count}, factor * loss)


def test_a_factor_costs_nothing_and_an_error_has_its_direction():
    """Runs on the law times 3; then times N^-0.01, for sizes that differ by a factor of 16."""
    [exact] = judge([table(factor=3.0)], [PRINTED])
    assert exact.miss < 1e-12 and not exact.fails and exact.tied and exact.regret == exact.worst_regret == 0
    grid = table()
    off = grid._replace(loss=grid.loss * grid.columns["dense_parameters"] ** -0.01)
    [score] = judge([off], [PRINTED])
    wanted = 0.01 * math.log(16)
    assert np.allclose([score.errors["N"], score.errors["D"]], [wanted, 0], atol=1e-12)
    assert score.miss == pytest.approx(0.01 * np.log(grid.columns["dense_parameters"]).std())
    assert set(score.ratios) == {"N", "D"} and score.ratios["D"][1] < 1 < score.ratios["N"][0]


def test_the_regret_by_hand():
    """Three runs of cost 1, 2 and 4 units; the law prefers the larger run, whose loss is higher at the second cost."""
    columns = {"dense_parameters": np.array([1e8, 2e8, 4e8]), "flops": np.array([1e18, 2e18, 4e18])}
    runs = CourtTable("three", "", columns, np.array([3.0, 3.3, 2.7]))
    assert np.allclose(regret(runs, np.log([3.0, 2.9, 2.8])), [0, math.log(1.1), 0])


def test_laws_that_ignore_the_tokens_get_a_factor_for_each():
    """Runs on the law of table 3, times a factor for each D: no miss. The law is not compared with laws that use D."""
    grid = table(experts=(1.0, 8.0, 64.0))
    laws = [Candidate(BOUNDED, "S-Base", BOUNDED.published["S-Base"], "clark"), PRINTED]
    logs = laws[0].logs(grid)
    runs = grid._replace(loss=np.exp(logs) * grid.columns["tokens"] ** -0.1)
    scores = {score.candidate.name: score for score in judge([runs], laws)}
    assert scores["S-Base"].miss < 1e-12 and scores["S-Base"].ignored == "D" and scores["besiroglu"].ignored == "E"
    assert all(score.tied for score in scores.values()), "each is the best of its kind"


def test_a_law_is_fitted_and_judged_only_where_it_may_be():
    """A dense law is not fitted to mixtures; no law is judged on the family of its own runs."""
    dense = table()._replace(family="dense", name="dense")
    mixed = table(experts=(1.0, 8.0))._replace(family="mixed", name="mixed")
    laws = court.candidates([mixed, dense])
    fitted = {(each.law.name, each.family) for each in laws if each.name.startswith("fitted")}
    assert ("hoffmann", "dense") in fitted and ("hoffmann", "mixed") not in fitted
    own = table()._replace(family="chinchilla")
    assert {score.candidate.family for score in judge([dense, own], laws)} >= {"chinchilla", ""}
    assert all(score.candidate.family != score.table.family for score in judge([dense, mixed, own], laws))
    mixtures = [score for score in judge([dense], laws) if score.candidate.law.name == "fine-grained"]
    assert not mixtures, "its coefficients are for mixtures"


@pytest.mark.parametrize(("noise", "apart"), [(0.002, True), (0.1, False)])
def test_a_law_and_its_floored_form_are_told_apart_if_the_runs_allow_it(noise, apart):
    """100 tables of each on a grid of four decades of N: with small errors the right form wins at least 95."""
    design = table(np.geomspace(1e7, 1e11, 5), (1e11,), (1.0, 4.0, 16.0, 64.0, 256.0))
    law, floored = BOUNDED.published["S-Base"], LAWS["routed-bounded-floor"]
    loss = 1.5 + 0.4 * BOUNDED.predict(law, design.columns["dense_parameters"], design.columns["num_experts"])
    columns = [design.columns[name] for name in floored.columns]
    laws = [Candidate(form, "fitted", form.fit(*columns, loss), "") for form in (BOUNDED, floored)]
    results = calibration(design, laws, noise)
    assert len(results) == 2 and all(each.apart == apart and each.named >= 95 for each in results.values())
    assert all(each.wins >= 95 for each in results.values()) == apart


def test_two_laws_at_the_limit_of_the_noise():
    """By hand: √4 · 0.1 is less than 2 · 2.326 · 0.05, and more than 2 · 2.326 · 0.04."""
    difference = np.array([0.1, -0.1, 0.1, -0.1])
    assert [told_apart(difference, np.zeros(4), noise) for noise in (0.05, 0.04)] == [False, True]


@pytest.fixture
def released(monkeypatch):
    """Use made-up tables instead of the released ones."""
    monkeypatch.setattr(command, "released_tables", lambda: [table()._replace(name=command.CLOSE)])


def test_a_table_of_ones_own_is_a_judge(released, tmp_path):
    runs = table((1e8, 2e8, 4e8, 1.6e9), (1e9, 2e9, 1e10, 5e10))
    steps = {"tokens": runs.columns["tokens"], "seed": np.arange(16) % 2, "loss_c4": runs.loss**2}
    path = write(frame_of(runs.columns["dense_parameters"], np.ones(16), runs.loss, **steps), tmp_path)
    code, out, err = ran("court", path, "--json")
    assert code == 0, err
    found = json.loads(out)
    mine = {each["coefficients"]: each for each in found["scores"] if each["table"] == f"{path}, Dense, validation"}
    assert mine["besiroglu"]["miss"] < 1e-9 and not mine["besiroglu"]["fails"] and mine["besiroglu"]["rows"] == 16
    assert f"fitted to {path}, Dense, validation" in {each["coefficients"] for each in found["scores"]}
    squared = json.loads(ran("court", path, "--json", "--loss", "loss_c4")[1])["scores"]
    assert any(each["table"].endswith("Dense, c4") and each["miss"] > 0.01 for each in squared)
    half = json.loads(ran("court", path, "--json", "--rows", "seed == 1")[1])["scores"]
    assert {each["rows"] for each in half if each["table"].startswith(str(path))} == {8}
    said = ran("court", path, "--top", "2", "--out", tmp_path / "page")[1]
    assert "laws are shown; --top shows more" in said and "calibration: each law made 100 tables" in said
    page = (tmp_path / "page" / "court.md").read_text()
    assert page.count("| hoffmann | besiroglu |") == 3, "the verdicts, and both tables"
    assert {each.name for each in (tmp_path / "page").iterdir()} == {"court.md", "court.png"}
    assert ran("court", path, "--top", "0")[0] == 2
    code, _, err = ran("court", path, "--out", path / "page")
    assert code == 2 and err.endswith(f"--out {path / 'page'}: Not a directory; name another folder\n")


def test_a_plan_quotes_verdicts():
    line = verdict_line("joint", "joint")
    assert line.startswith("on 12 released tables that it has not seen, joint by its printed coefficients misses ")
    assert "it ignores D" in verdict_line("routed-bounded", "fitted") and verdict_line("own", "fitted") is None


@pytest.mark.released
def test_verdicts_on_released_tables():
    """The misses and ratios of the routed table were computed by a script without the court."""
    for name in ("steplaw_moe.csv", "steplaw_dense.csv", "chinchilla_points.csv", "overtraining_runs.csv"):
        released_file(name)
    tables = court.released_tables()
    laws = court.candidates(tables)
    scores = judge(tables, laws)
    routed = {score.candidate.name: score for score in scores if score.table.name == command.CLOSE}
    wanted = {
        "joint": (1.2, (0.870, 0.885), (1.046, 1.059)), "abnar, S = 1 - N/P": (3.2, (0.783, 0.790), (1.033, 1.042)),
        "abnar, S = 1 - k/E": (3.8, (0.784, 0.804), (1.10, 1.13)),
    }  # fmt: skip
    for name, (miss, of_tokens, of_size) in wanted.items():
        assert 100 * routed[name].miss == pytest.approx(miss, abs=0.05)
        assert np.allclose([*routed[name].ratios["D"], *routed[name].ratios["N"]], [*of_tokens, *of_size], atol=2e-3)
    measured = court.ratios(routed["joint"].table.columns, routed["joint"].table.loss)
    assert np.allclose([*measured["D"], *measured["N"]], [0.850, 0.863, 1.040, 1.056], atol=5e-4)
    page = (Path(__file__).parents[2] / "docs" / "court.md").read_text(encoding="utf-8")
    with open(VERDICTS, newline="", encoding="utf-8") as lines:
        stored = {(row["law"], row["coefficients"]): row for row in csv.DictReader(lines)}
    for row in court.verdicts(scores):
        kept = stored.pop((row["law"], row["coefficients"]))
        assert (int(kept["tables"]), kept["ignored"]) == (row["tables"], row["ignored"])
        assert f"| {row['law']} | {row['coefficients']} | {row['tables']} | {percent(row['fails'], '.0f')} |" in page
        assert float(kept["median_miss"]) == pytest.approx(row["median_miss"], abs=1e-3)
    assert not stored, "python -m routelaws.accelerated.results.court writes the verdicts"
    results = [each for design in tables for each in calibration(design, laws, command.NOISE).values()]
    assert min(each.named for each in results) >= 95 and min(each.wins for each in results if each.apart) >= 95
