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
