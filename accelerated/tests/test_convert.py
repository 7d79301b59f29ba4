"""A user's runs become a results table. Columns get new names, losses are in nats, and derived cells have remarks."""

import csv
import gzip
import json
import math
import re

import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.results.rows import COLUMNS
from routelaws.accelerated.tables.schema import OWN_COLUMNS, RELEASED_COLUMNS
from routelaws.accelerated.tables.selection import select_rows
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs
from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.accounting import SIZES, count

MAP = {"hyper_id": "run", "step": "iteration", "num_experts": "E", "dense_parameter_count": "N"}
MAP |= {"loss_validation": "val_loss"}


def make_runs() -> list[dict]:
    rows = []
    for size in (1e7, 1e8, 1e9):
        for experts in (1, 2, 4, 16, 64, 256):
            for step in (500, 1000):
                loss = 12 * size**-0.08 * (1 + experts) ** -0.05 * (1 + 1 / step)
                names = {"run": f"E{experts}-{size:.0e}", "iteration": step, "E": experts, "N": size}
                rows.append(names | {"val_loss": loss, "lr": 1e-3, "loss_balance": 0.0})
    return rows


@pytest.fixture
def save(tmp_path):
    def write(rows, name="runs.csv"):
        path = tmp_path / name
        if ".jsonl" in name:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        else:
            pandas.DataFrame(rows).to_csv(path, index=False)
        return path

    return write


@pytest.fixture
def converted(save, tmp_path):
    def convert(rows, columns=None, constants=None, loss_unit=None, name="runs.csv", out="table.csv"):
        done = convert_runs(save(rows, name), tmp_path / out, columns, constants, loss_unit)
        frame = read_table(tmp_path / out)
        (tmp_path / out).unlink()
        assert (done.rows, done.runs) == (len(frame), frame["hyper_id"].nunique())
        return frame, done.remarks

    return convert


@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz", "runs.jsonl", "runs.jsonl.gz"])
@pytest.mark.parametrize("out", ["table.csv", "table.csv.gz"])
def test_columns_are_renamed_and_numbers_kept(converted, name, out):
    rows = make_runs()
    frame, remarks = converted(rows, MAP, {"router_type": "my-router", "k": "1"}, name=name, out=out)
    known = [name for name in (*RELEASED_COLUMNS, *OWN_COLUMNS) if name in {*MAP, "k", "router_type"}]
    assert list(frame) == [*known, "run"] and frame["run"].tolist() == [row["run"] for row in rows]
    for column, source in MAP.items():
        if column != "hyper_id":
            assert frame[column].tolist() == [row[source] for row in rows]
    assert frame["hyper_id"].tolist() == [i // 2 for i in range(36)]
    assert frame["router_type"].tolist() == ["Dense" if row["E"] == 1 else "my-router" for row in rows]
    assert remarks == [
        "dropped, because a results table has no such column: lr, loss_balance (--keep keeps some)",
        "k: 1, by --set",
        "router_type: my-router, by --set, in 30 of 36 rows",
        "router_type: Dense, since num_experts is 1, in 6 of 36 rows",
        "hyper_id: 18 runs, numbered by name in the order of the rows",
    ]


def test_losses_of_other_units(converted):
    rows = make_runs()
    expected = [row["val_loss"] for row in rows]
    for unit, change in (("bits", lambda loss: loss / math.log(2)), ("perplexity", math.exp)):
        # A standard error of 1e-7 nats, small enough for a perplexity to change by its derivative.
        losses = [
            {"val_loss": change(loss), "standard_error": change(loss + 1e-7) - change(loss), "mine": change(loss + 1)}
            for loss in expected
        ]
        other = [row | own for row, own in zip(rows, losses, strict=True)]
        frame, remarks = converted(other, MAP | {"loss_mine": "mine"}, {"router_type": "Hash"}, unit)
        assert frame["loss_mine"].tolist() == pytest.approx([loss + 1 for loss in expected], rel=1e-14)
        assert frame["loss_validation"].tolist() == pytest.approx(expected, rel=1e-14)
        assert frame["standard_error"].tolist() == pytest.approx([1e-7] * len(rows), rel=1e-5)
        assert f"loss_validation: from {unit} to nats" in remarks and f"standard_error: from {unit} to nats" in remarks


def test_a_loss_that_names_no_perplexity_is_not_converted_with_one_that_does(save, tmp_path):
    rows = [row | {"c4_ppl": 20.0} for row in make_runs()]
    with pytest.raises(InputError, match="--loss-unit perplexity is for all losses, but 'val_loss' names none"):
        convert_runs(save(rows), tmp_path / "t.csv", MAP | {"loss_c4": "c4_ppl"}, {"router_type": "Hash"}, "perplexity")


def test_a_column_that_is_named_goes_before_one_that_has_the_name(converted):
    rows = [row | {"loss_validation": 9.0} for row in make_runs()]
    frame, _ = converted(rows, MAP, {"router_type": "Hash"})
    assert frame["loss_validation"].tolist() == pytest.approx([row["val_loss"] for row in rows], rel=1e-14)


def test_a_namesake_of_a_column_that_is_named_is_replaced_and_dense_runs_have_no_idle_experts(converted):
    rows = [row | {"num_experts": 7, "k": 2} for row in make_runs() if row["E"] != 2]
    frame, remarks = converted(rows, MAP, {"router_type": "Hash"})
    sparsity = COLUMNS["sparsity"](frame)
    assert (
        set(sparsity[frame["router_type"] == "Dense"]) == {0} and sparsity.max() == 1 - 2 / frame["num_experts"].max()
    )
    assert "replaced, by --columns: num_experts (by E)" in remarks


def test_perplexity_of_one_or_less_is_no_loss(save, tmp_path):
    rows = make_runs()
    rows[4]["val_loss"], rows[9]["val_loss"] = 1.0, "nan?"
    with pytest.raises(InputError) as caught:
        convert_runs(save(rows), tmp_path / "t.csv", MAP, {"router_type": "Hash"}, "perplexity")
    first, *others = str(caught.value).splitlines()
    assert first == f"{tmp_path / 'runs.csv'}: 2 problems; nothing was read"
    assert others[0] == "  row 5, column loss_validation: '0.0'; needed: a loss above 1e-12"
    assert others[1] == "  row 10, column loss_validation: 'nan?'; needed: a number, or NaN if the run diverged"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.csv"]


def without(rows: list[dict], *names: str, **more) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in names} | more for row in rows]


def mapped(*names: str, **more) -> dict:
    return {name: source for name, source in MAP.items() if name not in names} | more


def test_steps_come_from_tokens(converted, save, tmp_path):
    rows = without(make_runs(), "iteration")
    tokens = [row | {"tokens": 512 * (i % 2 + 1)} for i, row in enumerate(rows)]
    frame, remarks = converted(tokens, mapped("step"), {"router_type": "Hash"})
    assert frame["step"].tolist() == [512, 1024] * 18 and "step: the tokens, which also order a run's rows" in remarks
    sized = [row | {"batch_size": 4, "sequence_length": 16} for row in tokens]
    frame, remarks = converted(sized, mapped("step"), {"router_type": "Hash"})
    assert frame["step"].tolist() == [8, 16] * 18 and "step: tokens / (batch_size * sequence_length)" in remarks
    frame, remarks = converted(rows[::2], mapped("step"), {"router_type": "Hash"})
    assert set(frame["step"]) == {1} and "step: 1, since every run has one row" in remarks
    for more, name in (({}, "NAME"), ({"epoch": 1}, "epoch")):
        several = r"run 'E1-1e\+07' is in row 1, row 2, but no column has the step or the tokens of every row"
        with pytest.raises(InputError, match=f"{several} \\(--columns step={name}\\); give each run its own name"):
            columns = mapped("step")
            convert_runs(save([row | more for row in rows]), tmp_path / "t.csv", columns, {"router_type": "Hash"})
    once = rows[::2]
    again, remarks = converted([*once, once[4]], mapped("step"), {"router_type": "Hash"})
    assert "left out, because each equals an earlier row in every cell: row 19" in remarks and again.equals(frame)


def shaped(**more) -> list[dict]:
    width = SIZES["25M"].d_model
    shape = {"d_model": width, "num_blocks": 8, "num_heads": 8, "kqv_size": 64, "vocab_size": 32000}
    shape |= {"step": 1, "k": 1, "loss_c4": 3.0, "sequence_length": 2048, "batch_size": 256}
    return [
        {"name": f"{router}-{experts}-{frequency}", "router_type": router, "num_experts": experts}
        | {"routing_frequency": frequency}
        | shape
        | more
        for router, experts, frequency in [("dense", 1, ""), ("sinkhorn", 8, 0.5), ("RL-R", 16, 0.25), ("hash", 4, 1)]
    ]


def test_counts_come_from_the_shape(converted):
    frame, remarks = converted(shaped(), {"hyper_id": "name"})
    assert frame["router_type"].tolist() == ["Dense", "S-Base", "RL-R", "Hash"]
    assert "router_type: dense becomes Dense, sinkhorn becomes S-Base, hash becomes Hash" in remarks
    assert set(frame["dense_parameter_count"]) == {SIZES["25M"].dense_parameters}
    for row in frame.to_dict("records"):
        frequency = 0.5 if math.isnan(row["routing_frequency"]) else row["routing_frequency"]
        counted = count(512, 8, 8, 64, row["router_type"], int(row["num_experts"]), 1, frequency)
        assert row["total_parameter_count"] == counted.total_parameters
        assert row["flops_per_step"] == counted.flops_per_token * 256 * 2048
    for name in ("dense_parameter_count", "total_parameter_count", "flops_per_step"):
        how = "counted from the shape of the model, with FFNs of width 4 d_model (3 d_model with swiglu)"
        assert f"{name}: {how}" in remarks


def test_what_is_not_known_is_left_blank_and_said(converted):
    names = ("batch_size", "routing_frequency", "kqv_size")
    frame, remarks = converted(without(shaped(), *names), {"hyper_id": "name"})
    assert set(frame["kqv_size"]) == {64} and "kqv_size: d_model / num_heads" in remarks
    assert set(frame["dense_parameter_count"]) == {SIZES["25M"].dense_parameters}
    assert frame["total_parameter_count"].isna().tolist() == [False, True, True, True]
    assert "flops_per_step" not in frame
    assert {
        "total_parameter_count: cannot be counted from the shape, in 3 of 4 rows, so it is blank;"
        " not known: routing_frequency (row 2)",
        "flops_per_step: cannot be counted from the shape, so it is blank; not known: batch_size (row 1)",
    } <= set(remarks)


def test_a_router_that_is_not_counted_is_the_cause(converted):
    rows = [row | {"router_type": "mine"} for row in shaped()[::-1]]
    _, remarks = converted(rows, {"hyper_id": "name"})
    assert not any("if it means dense" in remark for remark in remarks), "only one of its rows has one expert"
    (said,) = [remark for remark in remarks if remark.startswith("total_parameter_count")]
    assert "parameters of router_type 'mine' cannot be counted; supported: Dense, " in said


def test_spellings_of_one_router_are_one_router(converted):
    names = ["topk", "Top K", "top_k", "Switch", "switch", "SWITCH", "sbase", "sinkhorn", "Base", "top-1"]
    row = {"num_experts": 8, "k": 1, "step": 1, "dense_parameter_count": 1e7, "loss_c4": 3.0}
    frame, remarks = converted([row | {"name": f"r{i}", "router_type": name} for i, name in enumerate(names)], {})
    assert frame["router_type"].tolist() == ["Top-K"] * 3 + ["Switch"] * 3 + ["S-Base"] * 2 + ["Base", "top-1"]
    assert any("switch becomes Switch, SWITCH becomes Switch, sbase becomes S-Base" in remark for remark in remarks)


def test_values_are_mapped_before_anything_is_derived(converted, save, tmp_path):
    """`none` in a user's router column means dense, and so does a blank cell."""
    rows = [row | {"router": "none" if row["E"] == 1 else "top2"} for row in without(make_runs(), "loss_balance")]
    columns = MAP | {"router_type": "router"}
    frame, remarks = converted(rows, columns)
    assert (
        "router_type: none has one expert in all of its 6 rows; if it means dense, add --map router_type:none=Dense"
        in remarks
    )
    mapped_to = {"router_type:none": "Dense", "router_type:top2": "Top-K"}
    done = convert_runs(save(rows), tmp_path / "mapped.csv", columns, values=mapped_to)
    assert set(read_table(tmp_path / "mapped.csv")["router_type"]) == {"Dense", "Top-K"}
    assert "router_type: none becomes Dense, in 6 of 36 rows, by --map" in done.remarks
    assert not any("if it means dense" in remark for remark in done.remarks)
    blank = [row | {"router": "None" if row["E"] == 1 else "top2"} for row in rows]
    for values in ({}, {"router_type:": "Dense"}):
        filled = tmp_path / f"blank_{len(values)}.csv"
        convert_runs(save(blank), filled, columns, values=values)
        assert set(read_table(filled)["router_type"]) == {"Dense", "top2"}
    swapped = {"router_type:none": "Hash", "router_type:Hash": "Dense"}  # no cell is mapped twice
    few = [row | {"router": "none" if row["E"] > 1 else "Hash"} for row in rows]
    convert_runs(save(few), tmp_path / "swapped.csv", columns, values=swapped)
    frame = read_table(tmp_path / "swapped.csv")
    assert set(frame["router_type"][frame["num_experts"] > 1]) == {"Hash"} and set(frame["router_type"]) == {
        "Hash",
        "Dense",
    }
    for item, problem in (
        ("router_type:no", ": no cell of column router_type is no"),
        ("none", " has no COLUMN; give COLUMN:OLD=NEW"),
    ):
        with pytest.raises(InputError, match=f"--map {item}=Dense{problem}"):
            convert_runs(save(rows), tmp_path / "t.csv", columns, values={item: "Dense"})


def test_a_blank_router_of_one_expert_is_dense(converted):
    rows = [row | {"router": "-" if row["E"] == 1 else "my-router"} for row in make_runs()]
    frame, remarks = converted(rows, MAP | {"router_type": "router"})
    assert frame["router_type"].tolist() == ["Dense" if row["E"] == 1 else "my-router" for row in rows]
    assert "router_type: Dense, since num_experts is 1, in 6 of 36 rows" in remarks


def test_dense_runs_without_a_number_of_experts_have_a_remedy(save, tmp_path):
    for text in ("", "0"):
        rows = [row | {"E": text if row["E"] == 1 else str(row["E"])} for row in make_runs()]
        if text:
            none = [row | {"k": int(row["E"] > 1)} for row in make_runs()]
            with pytest.raises(InputError, match="\n  if these runs are dense, add --map k:0=1$"):
                convert_runs(save(none), tmp_path / "table.csv", MAP, {"router_type": "Top-K"})
        with pytest.raises(InputError, match=f"\n  if these runs are dense, add --map num_experts:{text}=1$"):
            convert_runs(save(rows), tmp_path / "table.csv", MAP, {"router_type": "Top-K"})
    both = [row | ({"E": 0, "k": 0} if row["E"] == 1 else {"k": 1}) for row in make_runs()]
    with pytest.raises(InputError, match="\n  if these runs are dense, add --map num_experts:0=1 k:0=1$"):
        convert_runs(save(both), tmp_path / "table.csv", MAP, {"router_type": "Top-K"})


def test_runs_that_may_be_in_the_table_twice_and_losses_that_are_nan_are_remarked_on(converted, save, tmp_path):
    rows = [row for row in make_runs() if row["iteration"] == 1000]
    rows = [*rows, rows[3], rows[4] | {"val_loss": "nan"}]
    by_row = MAP | {"hyper_id": "row"}
    frame, remarks = converted(rows, by_row, {"router_type": "Top-K"})
    assert any("equal runs: hyper_id 3 'E16-1e+07' and 18 'E16-1e+07'; if they are one" in text for text in remarks)
    assert "loss_validation: NaN in row 20 of the table; laws leave out a run whose last loss is NaN" in remarks
    assert len(frame) == 20
    names = [row | {"run": f"r{i}"} for i, row in enumerate(rows)]
    assert any(
        "equal runs: hyper_id 3 'r3' and 18 'r18'" in remark
        for remark in converted(names, MAP, {"router_type": "Hash"})[1]
    )
    assert not any("equal runs" in remark for remark in converted(rows[:18], by_row, {"router_type": "Top-K"})[1])
    seeds = [row | {"seed": seed} for row in rows[:3] for seed in (0, 1)]
    with pytest.raises(InputError, match="if rows of one name are different runs, --columns hyper_id=row makes"):
        convert_runs(save(seeds), tmp_path / "table.csv", MAP, {"router_type": "Top-K"})


def test_a_needed_value_in_a_row_without_a_loss_is_not_lost_silently(save, tmp_path):
    rows = [row for row in make_runs() if row["iteration"] == 1000]
    first = {"router": "sinkhorn", "batch": 256}
    with pytest.raises(
        InputError,
        match=r"column router has a value only in rows without a loss \(row 1\); .* --set router_type=sinkhorn",
    ):
        convert_runs(save([first, *rows], "runs.jsonl"), tmp_path / "table.csv", MAP | {"router_type": "router"})


def test_names_are_kept_without_being_asked_for_and_other_columns_by_a_flag(save, tmp_path):
    rows = [
        row | {"loss_books": 4.5, "name": f"model {i}", "hyper_id": i, "size": "4.0"}
        for i, row in enumerate(without(make_runs(), "run"))
    ]
    columns = mapped("hyper_id", loss_books="loss_books")
    done = convert_runs(save(rows), tmp_path / "t.csv", columns, {"router_type": "Hash"}, keep=("size",))
    frame = read_table(tmp_path / "t.csv")
    assert frame["run"].tolist() == [f"model {i}" for i in range(36)] and set(frame["loss_books"]) == {4.5}
    assert done.remarks[0].startswith("dropped, because a results table has no such column: lr, loss_balance (--keep")
    assert select_rows(frame, "size == 4 and num_experts in (1, 2)")[0].router == "Hash", "a number, whatever its form"


def test_a_dense_model_that_is_counted_otherwise_has_no_parameters_but_its_n(converted):
    """P of the dense rows is the given N, and not a count from the shape."""
    frame, _ = converted(shaped(dense_parameter_count=5e6), {"hyper_id": "name"})
    dense = frame["router_type"] == "Dense"
    assert dense.any() and set(frame["total_parameter_count"][dense]) == {5e6}
    wide = [row | {"flop_increase": 2, "routing_frequency": 0.5} for row in shaped(dense_parameter_count=5e6)[:1]]
    frame, _ = converted(wide, {"hyper_id": "name"})  # more than N
    counted = count(512, 8, 8, 64, "Dense", flop_increase=2, routing_frequency=0.5)
    assert frame["total_parameter_count"].tolist() == [counted.total_parameters]


@pytest.mark.parametrize(
    ("column", "widths", "refused"),
    [("d_expert", (2048, 512, 2048, 2048), True), ("n_inner", (2048, 512, 2048, 2048), True),
     ("d_ff", (2048, 1024, 2048, 2048), False),
     ("n_expert", (2048, 512, 2048, 2048), False), ("config.moe_intermediate_size", ("", 1024, "", ""), False),
     ("mlp_ratio", (4, 4, 4, 4), False), ("d_ff", (2048, 1408, 2048, 2048), True), ("mlp_ratio", (4, 8, 4, 4), True),
     ("expert_capacity_factor", (2, 2, 2, 2), False), ("n_shared_experts", (0, 2, 0, 0), None),
     ("first_k_dense_replace", ("", 1, "", ""), None), ("decoder_sparse_step", (2, 1, 4, 1), None),
     ("moe_freq", (0.5, 2, 0.25, 1), False), ("num_kv_heads", (8, 2, 8, 8), True),
     ("kv_heads", (8, 8, 8, 8), False), ("head_dim", (64, 128, 64, 64), True)],
)  # fmt: skip
def test_a_shape_with_another_fact_is_not_counted(converted, save, tmp_path, column, widths, refused):
    rows = [
        row | {column: width, "granularity": G} for row, width, G in zip(shaped(), widths, (1, 2, 1, 1), strict=True)
    ]
    if refused is False:
        frame, _ = converted(rows, {"hyper_id": "name"})
        assert set(frame["dense_parameter_count"]) == {SIZES["25M"].dense_parameters}
        return
    if refused:
        with pytest.raises(InputError, match=f"row 2: {column} is {widths[1]}, but counts assume .* N"):
            convert_runs(save(rows), tmp_path / "t.csv", {"hyper_id": "name"})
    frame, remarks = converted([row | {"dense_parameter_count": 5e6} for row in rows], {"hyper_id": "name"})
    assert frame["total_parameter_count"].isna().tolist() == [False, True, False, False]
    assert any(f"total_parameter_count: cannot be counted from the shape, in 1 of 4 rows, so it is blank; {column}" in
               remark for remark in remarks)  # fmt: skip


def test_experts_of_several_widths_without_a_granularity_are_refused(converted, save, tmp_path):
    rows = [row | {"d_ff": width, "dense_parameter_count": 5e6, "total_parameter_count": 5e7}
            for row, width in zip(shaped(), (2048, 2048, 512, 2048), strict=True)]  # fmt: skip
    with pytest.raises(InputError, match="d_ff is 1 d_model in row 3 and 4 d_model in row 4, .*; state granularity"):
        convert_runs(save(rows), tmp_path / "t.csv", {"hyper_id": "name"})
    rows = [row | {"granularity": 2048 / row["d_ff"]} for row in rows]
    assert convert_runs(save(rows), tmp_path / "t.csv", {"hyper_id": "name"}).rows == 4

    rows = shaped(dense_parameter_count=5e6)
    said = "d_ff: experts have the width 1 d_model, and dense FFNs 4 d_model; if num_experts"
    for dense, there in ((2048, True), (512, False)):
        rows = [row | {"d_ff": dense if row["num_experts"] == 1 else 512} for row in rows]
        assert any(said in remark for remark in converted(rows, {"hyper_id": "name"})[1]) == there


@pytest.mark.parametrize(
    "header, cell", [("activation", "SwiGLU"), ("config.hidden_act", "silu"), ("mlp_type", "geglu")]
)
def test_three_matrices_of_an_ffn_are_stated(converted, save, tmp_path, header, cell):
    rows = [row | {header: cell} for row in shaped()]
    with pytest.raises(
        InputError, match=f"row 1: {header} is {cell}, but counts assume gelu; --set model_options=swig"
    ):
        convert_runs(save(rows), tmp_path / "t.csv", {"hyper_id": "name"})
    frame, _ = converted(rows, {"hyper_id": "name"}, {"model_options": "SwiGLU"})
    assert set(frame["dense_parameter_count"]) == {count(512, 8, 8, 64, activation="swiglu").dense_parameters}
    rows = [row | {header: "GELU"} for row in shaped()]
    assert set(converted(rows, {"hyper_id": "name"})[0]["dense_parameter_count"]) == {SIZES["25M"].dense_parameters}


@pytest.mark.parametrize(
    ("header", "cell", "refused"),
    [("is_moe", False, True), ("config/use_moe", 0, True), ("moe", "True", False), ("model_type", "dense", True),
     ("attention_type", "dense", False), ("is_dense", "yes", True), ("router_type", "False", True)],
)  # fmt: skip
def test_a_dense_run_with_several_experts_is_refused(converted, save, tmp_path, header, cell, refused):
    rows = [row | {header: cell} if row["E"] == 4 else row | {header: "Top-K"} for row in make_runs()]
    constants = {} if header == "router_type" else {"router_type": "Top-K"}
    if not refused:
        assert (converted(rows, MAP, constants)[0]["router_type"] == "Dense").sum() == 6
        return
    with pytest.raises(InputError, match=f"row 5: {header} is {cell}, but num_experts is 4; a dense run has 1 expert"):
        convert_runs(save(rows), tmp_path / "t.csv", MAP, constants)


def test_losses_of_several_texts_are_remarked_on(converted):
    for header, texts, said in (("eval_set", "c4 pile wiki", True), ("dataset", "c4 pile wiki", False),
                                ("tokenizer", "gpt2 gpt2 llama", True),
                                ("val_dataset", "c4 c4 c4", False), ("notes", "a b c", False)):  # fmt: skip
        rows = [row | {header: texts.split()[min(row["E"], 3) - 1]} for row in make_runs()]
        remarks = converted(rows, MAP, {"router_type": "Hash"})[1]
        assert any(f"val_loss: of several {header} (" in remark for remark in remarks) == said
    rows = [row | {"dataset": ("c4", "pile")[row["iteration"] == 1000]} for row in make_runs()]
    assert "val_loss: of several dataset (c4, pile), so losses" in "; ".join(
        converted(rows, MAP, {"router_type": "Hash"})[1]
    )


def narrow(**more) -> list[dict]:
    """Return a layer of 128 experts of half the width, its twin of 64 experts, and the dense model."""
    kinds = {"r0": ("top_k", 128, 8, 2), "r1": ("top_k", 64, 4, 1), "r2": ("dense", 1, 1, 1)}
    shape = {"d_model": 256, "num_blocks": 6, "num_heads": 8, "vocab_size": 32000, "routing_frequency": 1}
    shape |= {"step": 100, "sequence_length": 2048, "batch_size": 64, "loss_c4": 3.0}
    return [
        {"name": name, "router_type": router, "E": experts, "K": k, "granularity": granularity} | shape | more
        for name, (router, experts, k, granularity) in kinds.items()
    ]


NARROW = {"hyper_id": "name", "narrow_experts": "E", "narrow_k": "K"}


def test_narrow_experts_become_experts_of_the_dense_width(converted, save, tmp_path):
    frame, remarks = converted(narrow(), NARROW)
    assert frame[["num_experts", "k", "granularity"]].to_numpy().tolist() == [[64, 4, 2], [64, 4, 1], [1, 1, 1]]
    assert not {"narrow_experts", "narrow_k"} & set(frame)
    for name in ("total_parameter_count", "flops_per_step"):
        assert frame[name][0] == pytest.approx(frame[name][1], rel=0.005)  # they differ in the weights of the router
    assert frame["total_parameter_count"][0] == pytest.approx(203.3e6, rel=0.002)
    assert not any(remark.startswith("granularity") for remark in remarks)
    frame, remarks = converted(narrow(), {"hyper_id": "name", "num_experts": "E", "k": "K"})
    [said] = [remark for remark in remarks if remark.startswith("granularity")]
    assert "has 256 experts of 1/2 of the width, and 16 for each token" in said and "narrow_experts=YOURS" in said
    frame, _ = converted(without(narrow()[::2], "granularity"), NARROW, {"granularity": "2"})  # also in the dense row
    assert frame[["num_experts", "k"]].to_numpy().tolist() == [[64, 4], [1, 1]]
    frame, _ = converted([row | {"K": 3 * row["granularity"] // 2} for row in narrow()[:1]], NARROW)
    assert frame["k"].tolist() == [1.5]
    assert (
        frame["flops_per_step"][0]
        == count(256, 6, 8, 32, "Top-K", 64, 1.5, 1, granularity=2).flops_per_token * 64 * 2048
    )
    for column, value, needed in (("K", 1, "at least"), ("E", 127, "a multiple of")):
        with pytest.raises(InputError, match=f"row 1, column narrow_.*: {value}; needed: {needed} granularity \\(2\\)"):
            convert_runs(save([row | {column: value} for row in narrow()[:1]]), tmp_path / "o.csv", NARROW)


def test_n_is_the_p_of_the_dense_model_of_the_same_shape(converted):
    """The log counts 12 L d²: less than our count, which has the norms and the positions."""
    ours, log = count(256, 6, 8, 32).dense_parameters, 12 * 6 * 256**2
    rows = [
        row | {"total_parameter_count": P} for row, P in zip(narrow(), (203_096_064, 202_997_760, log), strict=True)
    ]
    frame, remarks = converted(rows, NARROW)
    assert ours > log and set(frame["dense_parameter_count"]) == {log}
    assert "dense_parameter_count: total_parameter_count of the dense model of this shape" in remarks
    with_embedding = [rows[0], rows[2] | {"total_parameter_count": log + 32000 * 256}]
    frame, remarks = converted(with_embedding, NARROW)
    assert set(frame["dense_parameter_count"]) == {ours} and "convert --set counted_embeddings=1" in remarks[-1]
    frame, _ = converted([rows[0], rows[2] | {"total_parameter_count": 1.2 * ours}], NARROW)
    assert set(frame["dense_parameter_count"]) == {ours}, "a P that much larger counts something else"


def test_stated_embeddings_are_in_each_count(converted):
    for matrices in (1, 2):
        frame, remarks = converted(narrow(), NARROW, {"counted_embeddings": str(matrices)})
        without, _ = converted(narrow(), NARROW)
        for name in ("dense_parameter_count", "total_parameter_count"):
            assert (frame[name] - without[name]).tolist() == [matrices * 32000 * 256] * 3
        assert frame["flops_per_step"].tolist() == without["flops_per_step"].tolist()
    rows = [
        {key: value for key, value in row.items() if key != "vocab_size"} for row in narrow(dense_parameter_count=1e7)
    ]
    frame, remarks = converted(rows, NARROW, {"counted_embeddings": "1"})
    assert any("total_parameter_count: cannot be counted" in r and "not known: vocab_size" in r for r in remarks)


def test_a_shape_that_is_no_model(save, tmp_path):
    rows = shaped()
    rows[2]["routing_frequency"] = 0.3
    with pytest.raises(InputError, match="runs.csv: row 3: routing_frequency 0.3 times blocks 8 is 2.4"):
        convert_runs(save(rows), tmp_path / "t.csv", {"hyper_id": "name"})


def test_constants_fill_blanks_only(converted):
    rows = [row | {"seed": 1 if i < 4 else ""} for i, row in enumerate(make_runs())]
    frame, remarks = converted(rows, MAP, {"router_type": "Hash", "seed": "42", "num_experts": "2"})
    assert frame["seed"].tolist() == [1] * 4 + [42] * 32 and "seed: 42, by --set, in 32 of 36 rows" in remarks
    assert "num_experts: not set to 2, because no cell is blank" in remarks


def test_nested_objects_have_columns_with_dots(converted):
    rows = [
        {
            "name": row["run"],
            "eval": {"step": row["iteration"], "loss": {"c4": row["val_loss"]}},
            "config": {"E": row["E"], "N": row["N"], "tags": [1, 2], "sweep": None, "ema": True},
        }
        for row in make_runs()
    ]
    columns = {"hyper_id": "name", "step": "eval.step", "loss_c4": "eval.loss.c4", "num_experts": "config.E"}
    columns |= {"dense_parameter_count": "config.N"}
    frame, remarks = converted(rows, columns, {"router_type": "Hash"}, name="runs.jsonl")
    assert frame["loss_c4"].tolist() == [row["val_loss"] for row in make_runs()]
    dropped = "config.tags, config.sweep, config.ema (--keep keeps some)"
    assert remarks[0] == f"dropped, because a results table has no such column: {dropped}"


@pytest.mark.parametrize(
    ("columns", "message"),
    [(mapped(seed="val_loss"), "runs.csv: 36 problems; nothing was read"),
     (mapped("hyper_id", hyper_id="loss_balance"), "the same hyper_id 0")],
)  # fmt: skip
def test_what_cannot_be_converted_leaves_nothing(save, tmp_path, columns, message):
    """`test_wrong_commands.py` has wrong flags."""
    runs = save(make_runs())
    before = runs.read_bytes()
    with pytest.raises(InputError, match=message):
        convert_runs(runs, tmp_path / "t.csv", columns, {"router_type": "Hash"})
    assert runs.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


@pytest.mark.released
def test_the_released_table_converts_into_itself(tmp_path):
    path, slim, out = released_file("curves.csv.gz"), tmp_path / "slim.csv", tmp_path / "table.csv"
    frame = read_table(path)
    counted = ["dense_parameter_count", "total_parameter_count", "flops_per_step"]
    plain = frame.drop(columns=counted).assign(vocab_size=32000, sequence_length=2048, batch_size=256)
    plain.to_csv(slim, index=False, quoting=csv.QUOTE_MINIMAL)
    done = convert_runs(slim, out)
    assert [remark.split(":")[0] for remark in done.remarks] == counted
    again = read_table(out)
    pandas.testing.assert_frame_equal(again[list(frame)], frame, check_exact=True)


def test_a_size_that_counts_the_embedding_is_remarked_on(save, tmp_path):
    shape = {"d_model": 128, "num_blocks": 4, "num_heads": 4, "vocab_size": 32_000, "router_type": "Hash"}
    rows = [row | shape | {"N": 786_432 + 32_000 * 128} for row in make_runs()[:4]]
    remarks = convert_runs(save(rows), tmp_path / "own.csv", columns=MAP).remarks
    (said,) = [remark for remark in remarks if "embedding" in remark]
    needed = "854,016 by the shape of the model); N excludes the embedding and counts one expert (routelaws convert"
    needed += " --set counted_embeddings=1 states it)"
    assert said == f"dense_parameter_count: differs in 4 of 4 rows (row 1: 4,882,432, but {needed}"
    counted = count(128, 4, 4, 32).dense_parameters
    thousands = [row | {"N": counted / 1000} for row in rows]
    needed = f"'854.016'; needed: {counted:,} by the shape of the model (so in 4 of 4 rows); .* --unit dense"
    with pytest.raises(InputError, match=re.escape(needed).replace(r"\.\*", ".*")):
        convert_runs(save(thousands, "small.csv"), tmp_path / "small_own.csv", columns=MAP)
    rows = [row | {"N": counted} for row in rows]
    remarks = convert_runs(save(rows, "right.csv"), tmp_path / "right_own.csv", columns=MAP).remarks
    assert not any("embedding" in remark for remark in remarks)
