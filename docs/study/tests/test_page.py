"""The tables of the study's page, from rows of known laws."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import copying  # noqa: E402
import page  # noqa: E402

from routelaws.accelerated import results  # noqa: E402

PAGES = "".join((page.HERE / name).read_text() for name in page.PAGES)


def runs_of(losses: dict[tuple[str, int], list[float]]):
    rows = [
        {"hyper_id": 0, "dense_parameter_count": 15168, "router_type": router, "num_experts": e, "seed": 42 + i}
        | {"k": 1, "routing_frequency": 0.5, "loss_validation": loss, "device": "cpu"}
        for (router, e), group in losses.items()
        for i, loss in enumerate(group)
    ]
    return pd.DataFrame(rows)


def test_the_interval_of_a_difference_is_that_of_the_pooled_t_test():
    dense, routed = [3.5, 3.52, 3.48], [3.41, 3.40, 3.45]
    line = page.order(runs_of({("Dense", 1): dense, ("Hash", 16): routed})).splitlines()[-1]
    bounds = stats.ttest_ind(routed, dense).confidence_interval(0.95)
    half = (bounds.high - bounds.low) / 2
    assert f"| 15K | 3.500 |  | {np.mean(routed) - 3.5:+.3f} ± {half:.3f} |" in line


def test_the_slope_of_the_dense_loss_is_that_of_a_power_law():
    frame = runs_of({("Dense", 1): [3.0], ("Hash", 16): [2.9]})
    wide = frame.assign(dense_parameter_count=1516800, loss_validation=3.0 * 100**-0.11)
    assert "| 1.5M | 1.808 | -0.110 |" in page.order(pd.concat([frame, wide]))


def test_the_page_shows_the_predicted_losses_until_there_is_a_score(tmp_path):
    laws = {"routed-bounded": {"loss": 1.5}, "routed-bounded from 164K": {"reason": "few runs"}}
    points = [{"router": "Hash", "E": e, "laws": laws} for e in (4.0, 2.0)]
    points.append({"router": "Dense", "E": 1.0, "laws": {"dense": {"loss": 1.6}}})
    (tmp_path / "prediction.json").write_text(json.dumps({"points": points}))
    assert page.prediction(tmp_path).splitlines()[-1] == "| Hash | routed-bounded | 1.500 | 1.500 |"
    score = {"laws": {"dense": {"points": 2, "mean_percent": 1.25, "inside": 0.5}, "bilinear": {"points": 0}}}
    score["points"] = [points[0] | {"measured": [1.25, 1.75]}, points[2] | {"measured": [1.625]}]
    (tmp_path / "score.json").write_text(json.dumps(score))
    lines = page.prediction(tmp_path).splitlines()
    assert lines[2:4] == ["| Hash | measured |  | 1.500 |", "| Hash | routed-bounded | 1.500 | 1.500 |"]
    assert lines[-1] == "| dense | 2 | 1.25 % | 50% |"


def test_a_difference_without_seeds_has_no_interval():
    table = page.order(runs_of({("Dense", 1): [3.5], ("S-Base", 16): [3.4]}))
    assert "| -0.100 |" in table and "±" not in table


def test_runs_at_another_rate_or_k_are_in_no_mean():
    runs = list(enumerate(page.GRID.runs))
    rate = next(i for i, run in runs if run.learning_rate is not None)
    k = next(i for i, run in runs if run.model.k == 2)
    frequency = next(i for i, run in runs if run.model.routing_frequency == 1)
    frame = runs_of({("Dense", 1): [3.5, 9.0, 9.0, 9.0]})
    frame["hyper_id"] = [0, rate, k, frequency]
    assert page.with_rule(frame)["loss_validation"].tolist() == [3.5]


def test_a_run_with_the_usual_rate_shows_its_copy_gain():
    frame = runs_of({("Dense", 1): [3.0, 2.9, 9.0], ("Hash", 16): [2.7]}).assign(copy_gain=[0.01, 0.8, 0.1, 0.5])
    frame.loc[2, ["hyper_id", "seed"]] = next(iter(page.OTHER_K_R)), 42  # no run of the law
    lines = page.copying(frame).splitlines()
    assert lines[2:] == ["| 15K | Dense | 1 | 3.000 (0.01) | 2.900 (0.80) |", "| 15K | Hash | 16 | 2.700 (0.50) |  |"]


def test_the_copy_gain_compares_the_two_halves_of_a_repetition():
    """A model that knows nothing gains 0. A model that only copies pays ln V in the first half and 0 in the second."""
    windows = copying.repeated(500)
    assert (windows[:, copying.HALF :] == windows[:, : copying.HALF + 1]).all()
    losses = np.full((copying.SEQUENCES, 2 * copying.HALF), np.log(500))
    assert copying.gain(losses) == pytest.approx(0, abs=1e-9)
    losses[:, copying.HALF :] = 0
    assert copying.gain(losses) == pytest.approx(np.log(500))


def test_losses_at_other_rates_stand_beside_the_rule():
    frame = runs_of({("Dense", 1): [3.5, 3.6, 3.7]})
    slow, fast = (i for i, run in enumerate(page.GRID.runs[:147]) if run.learning_rate is not None)
    frame["hyper_id"], frame["seed"], frame["learning_rate"] = [slow, 0, fast], 42, [0.01, 0.02, 0.04]
    assert page.rates(frame).splitlines()[-1] == "| 15K | Dense | 1 | 3.500 | 3.600 | 3.700 |"
    assert page.rates(frame[:1]).startswith("No run")


def test_dense_losses_of_each_budget_have_the_slope_of_a_power_law():
    small = runs_of({("Dense", 1): [3.0, 9.0], ("Hash", 16): [2.9]}).assign(tokens=2e6)
    wide = small.assign(dense_parameter_count=1516800, loss_validation=3.0 * 100**-0.11)
    short = pd.concat([small, wide])[lambda rows: (rows["router_type"] == "Dense") & (rows["seed"] == 42)]
    short = short.assign(tokens=1e6, loss_validation=short["loss_validation"] + 1)
    lines = page.budgets(pd.concat([small, wide]), short).splitlines()
    assert lines[0] == "| N | 1.0M tokens | 2.0M tokens |" and lines[2] == "| 15K | 4.000 | 3.000 |"
    assert lines[3] == "| 1.5M | 2.808 (-0.077) | 1.808 (-0.110) |"


def test_runs_with_other_k_and_r_are_predicted_by_the_others(tmp_path, write_study):
    """Two of the runs lie 10 % above a law in (F, B); a fit to the other runs must not follow them."""
    table = write_study(tmp_path / "first.csv", lambda run, i: 3 + i / 1000)
    rows = results.read(table).fit("routed-utilisation", router="S-Base")[0].rows
    flops, b = (dict(zip(rows.runs.frame["hyper_id"], column, strict=True)) for column in rows.columns)
    above = page.OTHER_K_R[:2]

    def planted(run, i: int) -> float:
        law = 2.0 * flops.get(i, 1.0) ** -0.06 * b.get(i, 1.0) ** -0.04
        return law * (1.1 if i in above else 1) * 10 ** np.random.default_rng(i).normal(0, 1e-4)

    text = page.utilisation(results.read(write_study(tmp_path / "second.csv", planted)))
    errors = [float(line.split("|")[-2].strip(" %")) for line in text.splitlines() if "%" in line]
    assert len(errors) == 8 and sum(abs(error - 10) < 1 for error in errors) == 2
    assert sum(abs(error) < 1 for error in errors) == 6
    assert "Without" not in text and page.utilisation(
        results.read(page.HERE / "results.csv").where("k == 1 and routing_frequency == 0.5")
    ) == (page.markdown(["No run with another k or R is finished."]))


def test_the_law_of_the_sizes_that_copy_has_rows_of_its_own(tmp_path, write_study):
    """Small sizes lie 5 % above a law of the larger sizes, which have little noise."""

    def planted(run, i: int) -> float:
        size = run.accounting().dense_parameters
        law = 10 * size**-0.1 * run.model.experts**-0.05 * (1.05 if size < 1e5 else 1)
        return law * 10 ** np.random.default_rng(i).normal(0, 1e-4)

    runs = results.read(write_study(tmp_path / "runs.csv", planted)).where("router_type in ('Hash', 'Dense')")
    rows = [line.split("|")[1:] for line in page.laws(runs).splitlines() if "Hash" in line]
    laws = ["routed-bounded", "routed-bounded-floor"]
    assert [[cell.strip() for cell in row[1:3]] for row in rows] == [
        [s, law] for s in ("all", "from 164K") for law in laws
    ]
    assert float(rows[0][4]) > 10 * float(rows[2][4]) and "too" in rows[0][6]
    assert not rows[0][7].strip() and abs(float(rows[3][7])) < 0.2  # the law that made the rows has no floor


def test_gains_on_a_text_are_means_over_sizes(tmp_path, monkeypatch):
    rows = runs_of({("Dense", 1): [3.0, 9.0], ("Hash", 4): [2.9], ("Hash", 16): [2.8], ("Hash", 32): [2.5]})
    wide = rows.assign(dense_parameter_count=50688, loss_validation=rows["loss_validation"] - 1)
    wide.loc[wide["num_experts"] == 32, "loss_validation"] = 1.9
    frame = pd.concat([rows, wide]).assign(step=1)
    monkeypatch.setattr(page, "TEXTS", {"Verse": "verse.csv"})
    monkeypatch.setattr(page.results, "read", lambda path: type("Runs", (), {"last": frame}))
    assert page.texts(tmp_path).splitlines()[-1] == "| Verse | Hash | -0.100 | -0.200 | -0.300 |"


def test_a_part_that_differs_is_found_and_written_anew(tmp_path, capsys):
    (tmp_path / "README.md").write_text("The same.")
    (tmp_path / "details.md").write_text("Before.\n<!-- progress -->\nold\n<!-- end -->\nAfter.\n")
    (tmp_path / "results.csv").write_bytes((page.HERE / "results.csv").read_bytes())
    assert page.main([str(tmp_path), "--check"]) == 1 and "differs from results.csv" in capsys.readouterr().err
    assert page.main([str(tmp_path)]) == 0 and page.main([str(tmp_path), "--check"]) == 0
    written = (tmp_path / "details.md").read_text()
    finished = results.read(tmp_path / "results.csv").last["dense_parameter_count"]
    assert written.startswith("Before.\n") and written.endswith("After.\n") and "old" not in written
    assert f"| 15K | {(finished == 15168).sum()} of 37 |" in written


@pytest.mark.parametrize("name", ["progress", "losses", "order", "copying", "rates", "budgets", "prediction", "texts"])
def test_the_page_is_what_its_table_gives(name):
    """The laws are excluded, because the last digit of a fit may differ between processors."""
    made = page.parts(page.HERE)[name]()
    assert f"<!-- {name} -->\n{made}<!-- end -->" in PAGES, "run docs/study/page.py"


def test_the_page_has_every_part():
    assert sorted(name for _, name, _ in page.PART.findall(PAGES)) == sorted(page.parts(page.HERE))
