"""Training FLOPs of a table: given, counted from a step, or estimated."""

import json

import numpy as np
import pandas
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.findings.source import Source, open_runs
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.results.planning.options import costs_by_experts, law_point
from routelaws.accelerated.results.rows import ESTIMATED, PIECES, TAKEN, column_remarks, law_columns
from routelaws.accelerated.tables.selection import select_rows
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs

SIZES, BUDGETS, PER_STEP = (2e7, 4e7, 8e7, 1.6e8), (1e18, 3e18, 1e19, 3e19), 524_288
FLOOR, A, ALPHA = 1.6, 96.0, 0.094


def isoflop(router: str = "Top-K", factor: float = 1.0) -> pandas.DataFrame:
    """Return runs on a law in compute: each budget at each size, with C/(6 N) tokens."""
    size, budget = (axis.ravel() for axis in np.meshgrid(SIZES, BUDGETS, indexing="ij"))
    tokens, experts = budget / (6 * size), 1 if router == "Dense" else 64
    frame = pandas.DataFrame({"hyper_id": range(size.size), "router_type": router, "num_experts": experts})
    frame = frame.assign(dense_parameter_count=size, total_parameter_count=size * (1 if experts == 1 else 12))
    frame = frame.assign(step=(tokens / PER_STEP).round(), tokens=tokens, training_flops=budget)
    return frame.assign(loss_validation=FLOOR + A * (factor * budget) ** -ALPHA)


def said(capsys, frame, folder, *words) -> dict:
    frame.to_csv(folder / "table.csv", index=False)
    assert cli.main([words[0], str(folder / "table.csv"), *words[1:], "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def other_ways(frame) -> dict:
    """Return the table with its training FLOPs in other columns, and whether they are an estimate."""
    bare = frame.drop(columns="training_flops")
    whole = frame["step"] * PER_STEP  # tokens of whole steps
    return {
        "stated": (frame, False),
        "kept as flops": (bare.assign(flops=frame["training_flops"]), False),
        "stated before flops": (frame.assign(flops=1e30), False),
        "of a step": (bare.assign(flops_per_step=frame["training_flops"] / (3 * frame["step"])), False),
        "6 N D": (bare, True),
        "6 N D by steps": (bare.drop(columns="tokens").assign(batch_size=128, sequence_length=4096, scale=whole), True),
        "flops in part": (bare.assign(flops=frame["training_flops"].where(frame.index % 2 == 0)), True),
        "in part": (frame.assign(training_flops=frame["training_flops"].where(frame.index % 2 == 0)), True),
        "in part, of a step elsewhere": (
            frame.assign(
                training_flops=frame["training_flops"].where(frame.index % 2 == 0),
                flops_per_step=frame["training_flops"] / (3 * frame["step"]),
            ),
            False,
        ),
    }


@pytest.mark.parametrize("router", ["Dense", "Top-K"])
@pytest.mark.parametrize("way", other_ways(isoflop()))
def test_compute_takes_dense_and_routed_runs_however_their_flops_are_said(tmp_path, capsys, router, way):
    frame, estimated = other_ways(isoflop(router))[way]
    [fit] = said(capsys, frame, tmp_path, "fit", "--law", "compute", "--floor", "1.6")["fits"]
    found = {name: each["value"] for name, each in fit["coefficients"].items()}
    assert (fit["router"], found["A"], found["alpha"]) == (router, pytest.approx(A, 1e-2), pytest.approx(ALPHA, 1e-3))
    report = said(capsys, frame, tmp_path, "predict", "--law", "compute", "--at", "flops=1e21", "--floor", "1.6")
    assert report["predictions"][0]["value"] == pytest.approx(2.62, abs=0.005)
    assert report["remarks"] == [ESTIMATED] * estimated
    assert cli.main(["fit", str(tmp_path / "table.csv"), "--law", "compute"]) == 0
    assert capsys.readouterr().out.count(ESTIMATED) == estimated


@pytest.mark.parametrize("step", ["1, since every run has one row", "the tokens"])
def test_a_step_that_convert_made_up_counts_no_flops(tmp_path, capsys, step):
    """The FLOPs of a step are not the FLOPs of a run. With tokens the default is 6 N D, else there are none."""
    runs = isoflop().assign(flops_per_step=lambda frame: 2 * frame["dense_parameter_count"] * PER_STEP)
    runs = runs.drop(columns=["training_flops", "step", *(["tokens"] if step[0] == "1" else [])])
    runs.to_csv(tmp_path / "runs.csv", index=False)
    done = convert_runs(tmp_path / "runs.csv", tmp_path / "table.csv")
    assert any(remark.startswith(f"step: {step}") for remark in done.remarks)
    flags = ("--law", "compute", "--floor", "1.6", "--json")
    assert cli.main(["fit", str(tmp_path / "table.csv"), *flags]) == (2 if step[0] == "1" else 0)
    out, err = capsys.readouterr()
    if step[0] == "1":
        assert "the training FLOPs of 16 of 16 rows are not known" in err
    else:
        assert json.loads(out)["fits"][0]["coefficients"]["A"]["value"] == pytest.approx(A, 1e-2)


@pytest.mark.parametrize(
    ("columns", "remarks"),
    [({"batch_size": 32, "sequence_length": 2048}, []), ({"tokens": 65_536 * 20_000}, []), ({}, [TAKEN])],
)
def test_the_flops_of_a_step_are_those_of_its_own_tokens(tmp_path, columns, remarks):
    """F for 2,048 tokens follows from the batch, from tokens / step, or else from the released steps."""
    frame = isoflop().drop(columns=["tokens", "training_flops"]).assign(step=20_000, note="ours", **columns)
    frame["flops_per_step"] = 2.6 * frame["dense_parameter_count"] * 65_536
    frame.to_csv(tmp_path / "table.csv", index=False)
    [selection], law = select_rows(read_table(tmp_path / "table.csv"), axes="every"), LAWS["routed-utilisation"]
    [flops, used], _ = law_columns(selection, law, "loss_validation")
    share = 65_536 / 524_288 if remarks else 1
    np.testing.assert_allclose(flops, share * 2.6e-12 * 2048 * frame["dense_parameter_count"])
    np.testing.assert_allclose(used, 12 / 2.6 / share)
    runs = Source(open_runs(tmp_path / "table.csv")).runs
    np.testing.assert_allclose([run.flops for run in runs], flops)
    assert column_remarks([selection], law) == remarks


@pytest.mark.parametrize(("columns", "remarks"), [({"vocab_size": 5000.0}, []), ({}, [PIECES])])
def test_a_vocabulary_that_is_taken_is_said(columns, remarks):
    own = isoflop().assign(d_model=512.0, **columns)
    [selection] = select_rows(own, axes="every")
    [active], _ = law_columns(selection, LAWS["joint"]._replace(columns=("active_parameters",)), "loss_validation")
    np.testing.assert_array_equal(active - own["dense_parameter_count"], 2 * 512 * columns.get("vocab_size", 32_000))
    assert column_remarks([selection], LAWS["joint"]) == remarks


def test_an_n_with_embeddings_needs_no_width():
    law = LAWS["joint"]._replace(columns=("active_parameters",))
    [selection] = select_rows(isoflop(), axes="every")
    with pytest.raises(ValueError, match="d_model is not known in 16 of 16 rows; .* --set counted_embeddings=2 "):
        law_columns(selection, law, "loss_validation")
    [selection] = select_rows(isoflop().assign(counted_embeddings=2.0), axes="every")
    [active], _ = law_columns(selection, law, "loss_validation")
    np.testing.assert_array_equal(active, selection.frame["dense_parameter_count"])
    assert column_remarks([selection], law) == []
    costs = costs_by_experts(selection.frame)(64.0)
    assert law_point(law, costs, (64, 1, 1), 1e8, 1e9)["active_parameters"] == [1e8]


def test_a_plan_does_not_make_up_the_training_tokens(tmp_path, capsys):
    """Runs without steps and tokens have no known budget, so the user must give the tokens."""
    frame = isoflop("Dense").assign(step=1).drop(columns=["tokens", "training_flops"])
    frame["loss_validation"] = 20 * frame["dense_parameter_count"] ** -0.1
    frame.to_csv(tmp_path / "table.csv", index=False)
    flags = ["plan", str(tmp_path / "table.csv"), "--law", "dense", "--flops", "1e20", "--no-published"]
    assert cli.main([*flags, "--resamples", "0"]) == 2
    assert "the training tokens of the runs are not known; add a column " in capsys.readouterr().err
    assert cli.main([*flags, "--resamples", "0", "--tokens", "1e11", "--json"]) == 0
    [ranking] = json.loads(capsys.readouterr().out)["rankings"]
    [option] = ranking["options"]
    assert option["N"] * option["tokens"] == pytest.approx(1e20 / 6, rel=1e-3) and option["tokens"] == 1e11


def test_compute_does_not_mix_dense_and_routed_runs(tmp_path, capsys):
    """Routed runs need half of the compute for the same loss."""
    routed = isoflop().assign(hyper_id=lambda frame: frame["hyper_id"] + 100)
    both = pandas.concat([isoflop("Dense", 0.5), routed])
    fits = said(capsys, both, tmp_path, "fit", "--law", "compute", "--floor", "1.6")["fits"]
    levels = {fit["router"]: fit["coefficients"]["A"]["value"] for fit in fits}
    assert levels == {"Dense": pytest.approx(A * 0.5**-ALPHA), "Top-K": pytest.approx(A)}


@pytest.mark.parametrize("way", ["stated", "6 N D"])
def test_leverage_and_plan_go_by_training_flops(tmp_path, capsys, way):
    """Without a floor, dense runs need twice the FLOPs for each loss, so the leverage is 2."""
    power = {"loss_validation": lambda frame: 60 * frame["training_flops"] ** -0.07}
    half = {"loss_validation": lambda frame: 60 * (0.5 * frame["training_flops"]) ** -0.07}
    routed = isoflop().assign(hyper_id=lambda f: f["hyper_id"] + 100, k=4, granularity=1, **power)
    frame, estimated = other_ways(pandas.concat([isoflop("Dense").assign(**half), routed], ignore_index=True))[way]
    frame.to_csv(tmp_path / "table.csv", index=False)
    from routelaws.accelerated.results.accuracy_rows import leverage_of_runs
    from routelaws.accelerated.tables.selection import select_rows

    [selection] = select_rows(read_table(tmp_path / "table.csv"), axes="every")
    group = leverage_of_runs(selection, "loss_validation")
    assert group.measured == pytest.approx(2.0) and (ESTIMATED in group.remarks) == estimated


def test_a_plan_pays_by_the_training_flops_of_the_table(tmp_path, capsys):
    """With runs of 12 N D, the same budget allows half of the tokens, and there is no note on 6 N."""
    frame, tokens = isoflop("Dense"), []
    frame["loss_validation"] = 1.7 + 480 * frame["dense_parameter_count"] ** -0.34 + 1900 * frame["tokens"] ** -0.37
    for factor, stated in ((1, False), (1, True), (2, True)):
        own = frame.assign(training_flops=factor * frame["training_flops"])
        own = own if stated else own.drop(columns="training_flops")
        flags = ("plan", "--law", "hoffmann", "--flops", "1e20", "--no-published", "--resamples", "0")
        [ranking] = said(capsys, own, tmp_path, *flags)["rankings"]
        [option] = ranking["options"]
        tokens.append(option["N"] * option["tokens"])
        assert any("without training_flops" in note for note in ranking["notes"]) != stated
    assert tokens == pytest.approx([1e20 / 6, 1e20 / 6, 1e20 / 12], rel=1e-3)


def test_training_flops_are_a_column_of_convert(tmp_path):
    frame = isoflop().rename(columns={"training_flops": "achieved", "loss_validation": "val"})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    columns = {"training_flops": "achieved", "loss_validation": "val"}
    convert_runs(tmp_path / "runs.csv", tmp_path / "table.csv", columns)
    assert read_table(tmp_path / "table.csv")["training_flops"].tolist() == isoflop()["training_flops"].tolist()
