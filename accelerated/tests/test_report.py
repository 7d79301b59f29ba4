"""The report of a sweep: numbers compared with independent numbers, verdicts for reversed data, figures."""

import dataclasses
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.files import write_atomically
from routelaws.accelerated.findings import report as table_report
from routelaws.accelerated.findings.finding import Report
from routelaws.accelerated.findings.laws.slopes import sign
from routelaws.accelerated.findings.sweeps import registered
from routelaws.accelerated.findings.sweeps import report as sweep_report
from routelaws.accelerated.findings.sweeps.chance import evaluation_words, spread_for, verdict
from routelaws.accelerated.findings.sweeps.folder import Sweep, SweepRun, read_sweep
from routelaws.accelerated.findings.sweeps.report import preset_of, runs_of, write_report
from routelaws.accelerated.results import encoding
from routelaws.accelerated.results.blocks import markdown as as_markdown
from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.runs.result_rows import read_rows, result_row, write_rows
from routelaws.accelerated.training.sweeps.grid import Grid, read_grid
from routelaws.accelerated.training.sweeps.sweep_folder import claim_sweep_folder, folder_of_run, keep_had, read_plan
from routelaws.accelerated.training.window_losses import FILE, WindowLosses, as_csv
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

from .small_tables import strict_json

pytestmark = pytest.mark.usefixtures("few_resamples")

LAWS = {
    "dense": RoutedCoefficients(-0.06, -0.05, 0.004, 0.78, 1.5, 60.0),
    "hash": RoutedCoefficients(-0.06, -0.05, 0.004, 0.78, 1.5, 60.0),
    "sinkhorn": RoutedCoefficients(-0.06, -0.08, 0.006, 0.78, 1.5, 90.0),
}
TIME = r"(?:\d+ min )?[\d.]+ s"  # the machine may be slow
STEPS = 400


def grid(widths=(16, 32, 64), experts=(2, 4, 8, 16, 32), more_seeds=(("hash", 8, (1, 2)),)) -> list[TrainConfig]:
    """Return a grid of dense, hash and sinkhorn runs, with more seeds at some points of the middle size."""
    base = {"blocks": 4, "heads": 2, "vocab_size": 512, "steps": STEPS}
    runs = [from_mapping(base | {"d_model": width}) for width in widths]
    for router in ("hash", "sinkhorn"):
        own = base | {"router": router}
        runs += [from_mapping(own | {"experts": e, "d_model": width}) for width in widths for e in experts]
    for router, count, seeds in more_seeds:
        fields = base | {"d_model": widths[len(widths) // 2], "router": router, "experts": count}
        runs += [from_mapping(fields | {"seed": other}) for other in seeds]
    return runs


def make_sweep(folder, noise=0.002, runs=None, finished=None, collect=True, logs=True, apart=0.001):
    """Write the folder of a sweep with losses on laws, as the trainer does. Return the folder.

    The documents of a model with E experts have losses E times `apart` above and below its loss.
    """
    runs = grid() if runs is None else runs
    claim_sweep_folder(folder, Grid("made up", tuple(runs)))
    random, table = np.random.default_rng(0), []
    for i, config in enumerate(runs):
        size = config.accounting().dense_parameters
        predicted = float(predict_loss(size, config.model.experts, LAWS[config.model.router]))
        final = predicted * 10 ** random.normal(0, noise)
        done = finished is None or i in finished
        rows = []
        for step in (STEPS // 2, STEPS) if done else (STEPS // 2,):
            loss = final + (0 if step == STEPS else 0.3)
            dropped = 0.01 if config.model.router == "sinkhorn" else 0.0
            load = np.full((config.model.num_routed, config.model.experts), 1 / config.model.experts)
            windows = window_losses_about(loss, apart * config.model.experts)
            learned = learned_by(config) if step == STEPS and config.model.num_routed else None
            losses = {"validation": loss}
            rows.append(result_row(config, i, step, losses, windows, dropped, load, step / 10, learned=learned))
        path = folder_of_run(folder, i, config)
        path.mkdir(parents=True)
        (path / FILE).write_text(as_csv(windows), encoding="utf-8")
        write_rows(path / "results.csv", rows)
        if logs:
            write_atomically(path / "log.jsonl", make_log(config, final, random))
        table += rows if done else []
    if collect:
        write_rows(folder / "results.csv", table)
    sessions = [{"started": 1000.0, "last": 1600.0, "jobs": 2}, {"started": 9000.0, "last": 9065.0, "jobs": 2}]
    write_atomically(folder / "sessions.json", json.dumps(sessions))
    return folder


def learned_by(config) -> dict[str, float]:
    experts = config.model.experts
    if (config.model.router, experts) == ("sinkhorn", 32):
        return {"router_agreement": 1.1 / experts, "router_information": 0.0, "expert_exchange": 1.0002}
    return {"router_agreement": 0.9, "router_information": np.log2(experts) / 2, "expert_exchange": 1.25}


def window_losses_about(loss: float, apart: float) -> WindowLosses:
    """Return 40 windows of 50 tokens in 20 documents with mean `loss` and standard error apart / sqrt(19).

    The two windows of a document lie 0.6 above and below its mean, which cancels in the document. Successive documents
    lie `apart` above and below the mean.
    """
    window = np.arange(40)
    document = window // 2
    return WindowLosses(
        window, document, np.full(40, 50), 50 * (loss + 0.6 * (-1.0) ** window + apart * (-1.0) ** document)
    )


def make_log(config, final, random) -> str:
    lines = []
    for step in range(8, STEPS + 1, 8):
        loss = final + 3 * (step**-0.6 - STEPS**-0.6) + random.normal(0, 0.03)
        lines.append({"kind": "train", "step": step, "loss": loss, "dropped_fraction": 0.0, "tokens_per_second": 9})
        if step % (STEPS // 2) == 0:
            evenness = np.full(config.model.experts, 6.0 if step == STEPS else 0.5)
            load = [] if config.model.router == "dense" else random.dirichlet(evenness, 2).tolist()
            loss = final + (0 if step == STEPS else 0.3)
            lines.append({"kind": "evaluation", "step": step, "loss_validation": loss, "load": load})
    return "".join(json.dumps(line) + "\n" for line in lines)


def numbers(folder) -> dict:
    return strict_json(folder / "report.json")


@pytest.fixture
def without_figures(monkeypatch):
    """Omit the figures, which take most of the time."""
    monkeypatch.setattr(sweep_report, "draw_all", lambda *_: [])


def test_it_says_what_is_predicted_and_what_evaluation_sees():
    def words(**fields):
        config = from_mapping(fields)
        row = {"router_type": config.model.record.router_type, "dense_parameter_count": 1, "num_experts": 1}
        row |= dict.fromkeys(("total_parameter_count", "tokens", "loss_validation", "learning_rate"), 1)
        row |= dict.fromkeys(("dropped_fraction", "wall_seconds", "device", "commit"), 0)
        return evaluation_words(runs_of([SweepRun(0, config, row, [], None)]))

    mixture = {"router": "mixture_of_tokens", "experts": 4}
    assert words() == "In evaluation, routers draw no expert at random, use no later token and drop no token."
    assert words(**mixture).endswith(
        "With MoT, a router groups the tokens at the same position of several sequences, also in evaluation. So the"
        " loss of a sequence depends on the other sequences of its group, but not on any later position."
    )
    masked = words(objective="masked", mask_rate=0.2)
    assert "hidden tokens, 20 % of each sequence" in masked and "no later token" not in masked
    assert words(**mixture, objective="masked").endswith("depends on the other sequences of its group.")
    assert "depends" not in words(**mixture, objective="masked", grouping="sequence")


@pytest.fixture(autouse=True)
def both_reports(render_both):
    return render_both(sweep_report)


@pytest.fixture
def first_figures(monkeypatch):
    """Draw only the first figure and the figures of sweeps. Tests of `reproduce` draw the others."""
    monkeypatch.setattr(table_report, "FIGURES", {"loss": table_report.FIGURES["loss"]})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, few_resamples):
    folder = make_sweep(tmp_path_factory.mktemp("whole") / "sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_report, "FIGURES", {"loss": table_report.FIGURES["loss"]})
        assert write_report(folder, full=True) == folder / "report.md"
    return folder


def test_the_report_is_the_approved_one(whole, approved):
    text = (whole / "report.md").read_text(encoding="utf-8")
    approved("sweep.md", re.sub(rf"fits took {TIME}|figures {TIME}|commit \w+", "MASKED", text), 1e-3)
    found = json.loads(re.sub(r'"commit": "\w+"', '"commit": "MASKED"', json.dumps(numbers(whole))))
    assert set(found.pop("seconds")) == {"training", "fitting", "figures"}
    of_any_table = strict_json(Path(__file__).parent / "approved" / "reproduce.json")
    approved("sweep.json", {name: found[name] for name in found if name not in of_any_table}, 1e-3)


def test_without_a_run_that_has_learned_the_dense_runs_are_reported_or_nothing(tmp_path, without_figures):
    """Sinkhorn with E = 32 has not learned: with dense runs the report is on these, alone it is an error."""
    runs = [run for run in grid(more_seeds=()) if run.model.experts == 32 and run.model.router == "sinkhorn"]
    with pytest.raises(InputError, match="no router of the finished runs has learned; nothing to report"):
        write_report(make_sweep(tmp_path / "alone", runs=runs, logs=False))
    write_report(make_sweep(tmp_path / "dense", runs=grid()[:3] + runs, logs=False))
    text = (tmp_path / "dense" / "report.md").read_text(encoding="utf-8")
    assert "dense and routed by S-BASE with E = 32" in text and "The routers of 3 of 3 routed runs" in text
    assert "There is no routed run that has learned yet" in text and "**The dense models follow a power law**" in text


@pytest.mark.parametrize(
    ("difference", "spread", "error", "said"),
    [(-0.3, 0.1, 0.1, "yes"), (-0.3, None, 0.1, "lower, spread not measured"), (0.3, None, None, "not lower"),
     (-0.3, 0.3, 0.0, "no, within the spread"), (-0.3, 0.1, 0.16, "no, other documents could reverse it"),
     (-0.3, 0.1, None, "yes"), (0.3, 0.1, 0.1, "no, routing hurts")],
)  # fmt: skip
def test_a_gain_is_one_beyond_the_spread_of_seeds_and_the_error_over_documents(difference, spread, error, said):
    assert verdict(difference, spread, error).startswith(said)


def test_a_router_is_held_against_its_own_spread_and_that_of_dense():
    def spread(router, width):
        return SimpleNamespace(router=router, range=width)

    dense, own, other = spread("Dense", 0.02), spread("Hash", 0.01), spread("S-Base", 0.5)
    assert spread_for("Hash", [own, other]) == (0.01, False)
    assert spread_for("Hash", [dense, own, other]) == (0.02, False)
    assert spread_for("RL-R", [dense, own, other]) == (0.5, True)
    assert spread_for("Hash", []) == (None, False)


def test_a_slope_is_negative_only_with_the_whole_of_its_interval():
    ends = [(-0.3, -0.2, -0.1), (-0.3, -0.2, 0.1), (-0.3, 0.1, 0.2), (0.1, 0.2, 0.3), (-math.inf, -math.inf, -0.1)]
    unsure = "no, the interval includes 0"
    expected = ["yes", unsure, unsure, "no, it is positive", "negative, but no finite value"]
    assert [sign(SimpleNamespace(low=low, value=slope, high=high)) for low, slope, high in ends] == expected


@pytest.mark.parametrize("preset", ["smoke", "fine_grained"])
def test_a_sweep_of_a_preset_is_repeated_by_its_name(tmp_path, preset):
    given = read_grid(preset, {"corpus": ["notes"]})
    claim_sweep_folder(tmp_path, given)
    sweep = Sweep(tmp_path, *read_plan(tmp_path), [], [], [], None)
    assert preset_of(sweep) == preset
    *rest, last = given.runs
    assert preset_of(sweep._replace(planned=(*rest, dataclasses.replace(last, seed=9)))) is None
    assert preset_of(sweep._replace(name="my own")) is None


def test_an_unfinished_sweep_says_how_much_is_in(tmp_path, without_figures):
    folder = make_sweep(tmp_path / "sweep", finished=range(11), collect=False)
    write_report(folder, full=True)
    text, result = (folder / "report.md").read_text(encoding="utf-8"), numbers(folder)
    assert "**Not finished: 11 of 35 runs are complete.**" in text.splitlines()[2]
    assert (result["runs_finished"], result["runs_planned"]) == (11, 35)
    assert [law["router"] for law in result["laws"]] == [
        "Hash"
    ] and "**Missing runs:** 11 (hash-E16-d32-L4-s42)" in text


@pytest.mark.slow
def test_a_sweep_too_small_for_the_law_gets_everything_else(tmp_path, first_figures, both_reports):
    """By itself, `report` writes the answer, its figures and the next steps. `--full` adds every table.

    Runs that differ in their seed and in their learning rate are no replicates.
    """
    runs = grid(experts=(4, 16), more_seeds=())
    runs += [from_mapping({**runs[0].fields(), "seed": 7, "learning_rate": 0.001})]
    folder = make_sweep(tmp_path / "sweep", runs=runs)
    assert main(["report", str(folder)]) == 0
    text, short, result = both_reports[True], (folder / "report.md").read_text(encoding="utf-8"), numbers(folder)
    assert short == both_reports[False] and short.count("\n") <= 80 and short.count("![") == 2
    assert all((folder / link).is_file() for link in re.findall(r"\]\(([\w/.-]+)\)", short))
    for table in re.findall(r"(?:^\|.*\n)+", short, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    assert all("cannot be determined with fewer than 4" in law["missing"] for law in result["laws"])
    reason = result["laws"][0]["missing"]
    assert text.count(reason) == 1 and f"no law for HASH and S-BASE: {reason}." in text  # said once, for both
    assert "dotted lines join them" in text
    assert result["seed_scatter"] is None and "Chance alone might cause this" in text
    assert {entry["verdict"] for entry in result["does_routing_help"]} == {"lower, spread not measured"}


@pytest.mark.slow
def test_in_the_linear_limit_slopes_have_a_sign_only(tmp_path, without_figures, monkeypatch):
    def straight(size, experts, _):
        return 10 ** (0.78 - 0.06 * np.log10(size) - 0.0005 * (experts - 1))

    monkeypatch.setitem(globals(), "predict_loss", straight)
    folder = make_sweep(tmp_path / "sweep", noise=0.0, logs=False)
    write_report(folder, full=True)
    found, text = numbers(folder), (folder / "report.md").read_text(encoding="utf-8")
    law = found["laws"][0]
    assert law["status"] == "linear limit" and {each["value"] for each in law["coefficients"].values()} == {None}
    assert {slope["sign"] for slope in found["slopes"]} == {"negative, but no finite value"}
    assert found["gains"][0]["percent"] == pytest.approx(100 * (10 ** (-0.0005 * 31) - 1), rel=1e-3)
    assert "The best fit is the linear limit" in text and "| negative, but no finite value |" in text


def test_a_sweep_without_a_finished_run_and_no_folder_at_all(tmp_path):
    folder = make_sweep(tmp_path / "sweep", finished=(), collect=False, logs=False)
    with pytest.raises(InputError, match="none of the 35 runs of this sweep is finished"):
        write_report(folder, full=True)
    with pytest.raises(InputError, match="nowhere: no such folder"):
        write_report(tmp_path / "nowhere")
    (folder / "sweep.json").unlink()
    with pytest.raises(InputError, match="holds no sweep"):
        write_report(folder, full=True)


def section_on(score: registered.RegisteredScore) -> str:
    return as_markdown(registered.section(Report({}, [], SimpleNamespace(registered=score))))


def test_what_was_predicted_of_the_largest_model_is_scored(tmp_path):
    """Losses follow laws, so the smaller sizes predict the largest. Written predictions stay unchanged."""
    runs = grid(widths=(16, 24, 32, 64), more_seeds=())
    held = registered.held_out(runs)
    assert {runs[i].model.d_model for i in held} == {64}
    rest = [i for i in range(len(runs)) if i not in held]
    small = make_sweep(tmp_path / "small", noise=1e-4, runs=runs, finished=rest)
    for i in held:  # like runs that have not begun
        (folder_of_run(small, i, runs[i]) / "results.csv").unlink()
    path = registered.register(small)
    written = path.read_bytes()
    said = json.loads(written)
    learned = [i for i in rest if learned_by(runs[i])["router_agreement"] > 0.5]
    assert said["held_out"] == held and said["fitted_to"] == learned and len(said["predictions"]) == len(held)
    before = registered.score(read_sweep(small))
    assert before.scored == 0 and "None of these runs is finished yet" in section_on(before)
    by_cell = {(entry["router"], entry["E"]): entry for entry in said["predictions"]}
    for i in held:
        size, model = runs[i].accounting().dense_parameters, runs[i].model
        entry = by_cell[{"dense": "Dense", "hash": "Hash", "sinkhorn": "S-Base"}[model.router], float(model.experts)]
        assert entry["loss"] == pytest.approx(float(predict_loss(size, model.experts, LAWS[model.router])), rel=5e-3)
        assert entry["run_interval"][0] < entry["loss"] < entry["run_interval"][1]
    # The largest runs are now trained; the predictions stay, and the report compares each run with them.
    full = make_sweep(tmp_path / "full", noise=1e-4, runs=runs)
    (full / registered.FILE).write_bytes(written)
    assert registered.register(full).read_bytes() == written
    scored = registered.score(read_sweep(full))
    assert scored.scored == len(held) and scored.hits >= 0.7 * len(held)
    text = section_on(scored)
    assert f"{scored.hits} of {scored.scored} measured losses lie within the 95 % prediction interval" in text
    off = scored.predictions.iloc[-1]
    low, high = off["run_interval"]
    inside = sum(low <= loss <= high for loss in off["measured"])
    assert off["inside"] == inside and off["error"] == pytest.approx(off["measured"][0] / off["loss"] - 1)
    said["predictions"][0]["run_interval"] = [0.1, 0.2]
    (full / registered.FILE).write_text(encoding.dumps(said))
    missed = registered.score(read_sweep(full))
    assert missed.hits == missed.predictions["inside"].sum() < missed.scored == len(held)


def test_measured_losses_of_the_largest_model_are_not_predicted(tmp_path):
    """Losses of the largest runs may be in runs/, or in the table of `sweep --have`."""
    runs = grid(widths=(16, 24, 32, 64), more_seeds=())
    held = registered.held_out(runs)
    folder = make_sweep(tmp_path / "sweep", runs=runs, finished=[i for i in range(len(runs)) if i not in held])
    with pytest.raises(InputError, match="already has results, so its loss can no longer be predicted"):
        registered.check_untouched(folder)
    rows = {i: read_rows(folder_of_run(folder, i, runs[i]) / "results.csv") for i in held}
    for i in held:
        (folder_of_run(folder, i, runs[i]) / "results.csv").unlink()
    registered.check_untouched(folder)
    keep_had(folder, rows[held[-1]])
    with pytest.raises(InputError, match=f"{held[-1]:03d}-.* already has results"):
        registered.check_untouched(folder)


def test_a_run_of_another_kind_than_the_law_is_not_predicted(tmp_path):
    """The law of a router is for k = 1, so a run with k = 2 has no prediction and no score."""
    runs = list(grid(widths=(16, 24, 32, 64), more_seeds=()))
    more = {"blocks": 4, "heads": 2, "vocab_size": 512, "steps": STEPS, "router": "sinkhorn", "experts": 8, "k": 2}
    runs += [from_mapping(more | {"d_model": width}) for width in (16, 24, 32, 64)]
    runs += [dataclasses.replace(run, seed=run.seed + 1) for run in runs if run.model.d_model == 64]
    held = registered.held_out(runs)
    entries = registered.predictions(read_sweep(make_sweep(tmp_path / "sweep", noise=1e-4, runs=runs)), held)
    (other,) = [entry for entry in entries if runs[entry["runs"][0]].model.k == 2]
    assert other["loss"] is None and other["reason"] == "k is 2, but the law was fitted with 1"
    assert sorted(i for entry in entries for i in entry["runs"]) == held
    for entry in entries:  # two seeds each
        assert len({dataclasses.replace(runs[i], seed=0) for i in entry["runs"]}) == 1 and len(entry["runs"]) == 2
    (same,) = [entry for entry in entries if (entry["router"], entry["E"]) == ("S-Base", 8) and entry is not other]
    made = [SimpleNamespace(hyper_id=i, router="S-Base", experts=8, loss=2.0) for i in same["runs"] + other["runs"]]
    assert len(registered._against(same, made)["measured"]) == 2
    said = {"written": "today", "held_out": held, "predictions": entries}
    (tmp_path / "sweep" / registered.FILE).write_text(encoding.dumps(said))
    assert registered.score(read_sweep(tmp_path / "sweep")).scored == len(held) - 2


def test_a_run_is_a_hit_inside_the_interval_of_one_more_run():
    entry = {"router": "Hash", "E": 4.0, "loss": 2.0, "law_interval": [1.9, 2.1], "run_interval": [1.8, 2.2]}
    runs = [
        SimpleNamespace(hyper_id=i, router="Hash", experts=4, loss=x) for i, x in enumerate((1.85, 2.05, 2.15, 2.25))
    ]
    other = SimpleNamespace(hyper_id=4, router="Hash", experts=8, loss=2.0)
    found = registered._against(entry, [*runs, other])
    assert found["measured"] == [1.85, 2.05, 2.15, 2.25] and found["inside"] == 3
    assert registered._against(entry | {"runs": [0, 3]}, [*runs, other])["measured"] == [1.85, 2.25]
    assert registered._against(entry | {"run_interval": [1.8, None]}, runs)["inside"] == 0


def test_a_prediction_after_the_fact_is_refused(tmp_path):
    runs = grid(widths=(16, 24, 32), experts=(2, 8), more_seeds=())
    with pytest.raises(InputError, match="already has results, so it"):
        registered.register(make_sweep(tmp_path / "done", runs=runs))
    assert not (tmp_path / "done" / registered.FILE).exists()
    with pytest.raises(InputError, match="the grid has 2 sizes; needed: at least 3"):
        registered.held_out(grid(widths=(16, 32)))
