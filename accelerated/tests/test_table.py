"""Reading a results table and choosing rows: kept rows, excluded rows, and one-line errors."""

import numpy as np
import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables import schema as table_schema
from routelaws.accelerated.tables.cells import printable_cells
from routelaws.accelerated.tables.schema import NEEDED_COLUMNS, OWN_COLUMNS, RELEASED_COLUMNS
from routelaws.accelerated.tables.selection import select_rows
from routelaws.accelerated.tables.table import read_table, read_tables
from routelaws.reference import configuration


def make_frame() -> pandas.DataFrame:
    """Return two evaluations of each of 16 runs: 4 dense, 12 routed (S-Base), with columns of the released table."""
    rows = []
    for size in (1e7, 1e8):
        for experts in (1, 1, 2, 4, 8, 16, 32, 64):
            run = len(rows) // 2
            for step in (1000, 2000):
                router = "Dense" if experts == 1 else "S-Base"
                rows.append((run, step, router, experts, size, 3.0 - step / 1e4))
    frame = pandas.DataFrame(rows, columns=[*NEEDED_COLUMNS, "loss_validation"])
    return frame.assign(loss_c4=3.1, seed=42, k=1, routing_frequency=0.5, flop_increase=1.0)


@pytest.fixture
def save(tmp_path):
    def write(frame, name="table.csv"):
        frame.to_csv(tmp_path / name, index=False)
        return tmp_path / name

    return write


def test_columns_are_the_released_ones_in_order():
    assert (
        len(RELEASED_COLUMNS) == 22
        and RELEASED_COLUMNS[0] == "hyper_id"
        and RELEASED_COLUMNS[-2:] == ("flops_per_step", "model_size_label")
    )
    assert not set(OWN_COLUMNS) & set(RELEASED_COLUMNS)


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_comes_back_as_numbers(save, name):
    frame = make_frame()
    frame["device"], frame["loss_c4"] = "cpu", frame["loss_c4"].where(frame["hyper_id"] != 3)
    read = read_table(save(frame, name))
    pandas.testing.assert_frame_equal(read, frame, check_dtype=False)
    assert read["hyper_id"].dtype == read["step"].dtype == "int64" and read["num_experts"].dtype == "float64"
    assert read["loss_c4"].isna().sum() == 2


def test_a_minimal_table_is_enough(save):
    read = read_table(save(make_frame()[[*NEEDED_COLUMNS, "loss_validation"]]))
    (selection,) = select_rows(read)
    assert (selection.router, len(selection.frame), selection.left_out) == ("S-Base", 16, [])


@pytest.mark.parametrize(
    ("column", "usual"), [("k", 1), ("granularity", 1), ("flop_increase", 1.0), ("objective", "causal")]
)
@pytest.mark.parametrize("blank", ["the dense runs", "some routed runs", "all but one"])
def test_a_blank_cell_means_the_usual(save, column, usual, blank):
    """Users' tables omit the usual values. A blank cell excludes no run."""
    frame = make_frame().assign(**{column: pandas.Series([usual] * 32, dtype=object)})
    rows = {
        "the dense runs": frame["router_type"] == "Dense",
        "some routed runs": frame["hyper_id"].isin([3, 5]),
        "all but one": frame["hyper_id"] != 4,
    }[blank]
    frame.loc[rows, column] = ""
    [selection] = select_rows(read_table(save(frame)))
    assert (len(selection.frame), selection.left_out) == (16, [])


def test_the_last_evaluation_by_step_is_used_whatever_the_order():
    frame = make_frame().sort_values("step", ascending=False)
    (selection,) = select_rows(frame, "clark")
    assert (selection.frame["step"] == 2000).all() and len(selection.frame) == 16
    assert sorted(selection.frame["num_experts"]) == sorted([1, 1, 2, 4, 8, 16, 32, 64] * 2)


def test_a_nan_at_the_last_evaluation_leaves_the_run_out(save):
    """The loss of run 7 is empty at its last step, so its last evaluation is the one before."""
    frame = make_frame().astype({"loss_validation": object})
    for run, step, cell in ((5, 2000, "NaN"), (6, 1000, "NaN"), (7, 2000, "")):
        frame.loc[(frame["hyper_id"] == run) & (frame["step"] == step), "loss_validation"] = cell
    frame = read_table(save(frame))
    for rows in ("clark", None, "seed == 42"):
        (selection,) = select_rows(frame, rows)
        assert [run["hyper_id"] for run in selection.left_out] == [5]
        assert "loss_validation is blank or NaN" in selection.left_out[0]["reason"]
        assert set(selection.frame["hyper_id"]) == set(range(16)) - {5} and selection.cut == {}
        assert dict(zip(selection.frame["hyper_id"], selection.frame["step"], strict=True))[7] == 1000


def test_clark_takes_its_rows_only():
    frame = make_frame()
    for run, column, value in ((2, "seed", 1), (3, "k", 2), (4, "routing_frequency", 0.25)):
        frame.loc[frame["hyper_id"] == run, column] = value
    (selection,) = select_rows(frame, "clark")
    assert set(selection.frame["hyper_id"]) == set(range(16)) - {2, 3, 4} and selection.left_out == []


def test_the_default_keeps_all_seeds_and_says_what_it_drops():
    frame = make_frame()
    for run, column, value in (
        (2, "seed", 1),
        (3, "k", 2),
        (4, "routing_frequency", 0.25),
        (8, "flop_increase", 2),
        (9, "routing_frequency", 1.0),
        (10, "granularity", 4),
    ):
        frame.loc[frame["hyper_id"] == run, column] = value
    (selection,) = select_rows(frame)
    reasons = {run["hyper_id"]: run["reason"] for run in selection.left_out}
    assert set(reasons) == {3, 4, 8, 10}  # 9 is dense, so it has no routing frequency
    assert "granularity is not the most common, 1" in reasons[10]
    assert "k is not 1" in reasons[3] and "the most common, 0.5" in reasons[4] and "flop_increase" in reasons[8]
    assert set(selection.frame["hyper_id"]) == set(range(16)) - {3, 4, 8, 10}


def test_a_router_without_k_1_has_its_most_common_k_and_dense_runs_stay():
    frame = make_frame()
    routed = frame["router_type"] != "Dense"
    frame["k"] = np.where(routed, 2.0, 1.0)
    frame.loc[frame["hyper_id"] == 3, "k"] = 4
    (selection,) = select_rows(frame)
    assert [(run["hyper_id"], run["reason"]) for run in selection.left_out] == [(3, "k is not 2")]
    assert set(selection.frame["hyper_id"]) == set(range(16)) - {3}
    frame.loc[routed, "k"] = frame["hyper_id"].mod(2).map({0: 4.0, 1: 2.0})  # a tie
    (selection,) = select_rows(frame)
    assert {run["reason"] for run in selection.left_out} == {"k is not 2"}
    frame["k"] = np.where(frame["hyper_id"] == 3, 4.0, 2.0)  # a log may give every row its k
    (selection,) = select_rows(frame)
    assert set(selection.frame["hyper_id"]) == set(range(16)) - {3}


def test_objectives_are_not_mixed():
    """The fit takes the more common objective. Blank means causal. A condition can select other objectives."""
    assert table_schema.OBJECTIVES == configuration.OBJECTIVES
    frame = make_frame()
    frame["objective"] = ""
    frame.loc[frame["hyper_id"] == 3, "objective"] = "causal"
    frame.loc[frame["hyper_id"] >= 5, "objective"] = "masked"
    for rows in (None, "clark"):
        (selection,) = select_rows(frame, rows)
        assert set(selection.frame["hyper_id"]) == set(range(5, 16))
        assert {run["reason"] for run in selection.left_out} == {"objective is not the most common, masked"}
    (selection,) = select_rows(frame, "objective != 'masked'")
    assert set(selection.frame["hyper_id"]) == set(range(5)) and selection.left_out == []
    (selection,) = select_rows(frame, "step >= 0")  # a condition without objectives
    assert set(selection.frame["hyper_id"]) == set(range(5, 16))
    (selection,) = select_rows(frame, "step >= 0\nand k == 1")  # a condition may have several lines
    assert set(selection.frame["hyper_id"]) == set(range(5, 16))
    (selection,) = select_rows(frame, "objective in (None, 'causal', 'masked')")
    assert len(selection.frame) == 16


@pytest.mark.parametrize(
    ("column", "values", "axes", "kept"),
    [("routing_frequency", (0.25, 1.0), "experts", 1.0), ("granularity", (8, 2), "experts", 2),
     ("objective", ("masked", "causal"), "experts", "causal"), ("num_experts", None, "one E", 64)],
)  # fmt: skip
def test_a_tie_of_two_kinds_has_the_choice_of_the_docs(column, values, axes, kept):
    frame = make_frame()
    if values:
        frame[column] = frame["hyper_id"].mod(2).map(dict(enumerate(values)))
    (selection,) = select_rows(frame, axes=axes)
    assert set(selection.frame[column][selection.frame["router_type"] == "S-Base"]) == {kept}
    assert sum(f"{column} is not the most common" in run["reason"] for run in selection.left_out) > 5


def test_dense_runs_join_every_router():
    frame = make_frame()
    frame.loc[frame["num_experts"] > 8, "router_type"] = "Hash"
    selections = select_rows(frame)
    assert [selection.router for selection in selections] == ["Hash", "S-Base"]
    assert [(selection.frame["router_type"] == "Dense").sum() for selection in selections] == [4, 4]
    assert set(selections[0].frame["num_experts"]) == {1, 16, 32, 64}


def test_a_query_is_applied_before_the_last_evaluation():
    (selection,) = select_rows(make_frame(), "step <= 1000 and num_experts < 64")
    assert (selection.frame["step"] == 1000).all() and len(selection.frame) == 14


def test_clark_of_a_table_that_has_no_such_run_is_one_line():
    """For runs with other seeds, the error names the column that differs."""
    frame = make_frame().assign(seed=lambda f: 1 + f["hyper_id"] % 2)
    with pytest.raises(InputError) as caught:
        select_rows(frame, "clark")
    assert str(caught.value) == (
        "rows 'clark' (routing_frequency 0.5, k 1, seed 42): no row matches; the table has 32 rows; "
        "routing_frequency is 0.5; k is 1; seed is 1, 2"
    )


def test_several_tables_are_one_and_their_runs_numbered_anew(save, tmp_path):
    whole = make_frame()
    first, second = whole[whole["hyper_id"] < 3], whole[whole["hyper_id"] >= 3].assign(training_set="pile")
    folder = tmp_path / "run"
    folder.mkdir()
    paths = [save(first, "first.csv"), folder]
    second.to_csv(folder / "results.csv", index=False)
    joined = read_tables(paths)
    assert joined["loss_validation"].tolist() == [*first["loss_validation"], *second["loss_validation"]]
    runs = first["hyper_id"].nunique()
    assert joined["hyper_id"].tolist() == [
        *first["hyper_id"].factorize(sort=True)[0],
        *(runs + second["hyper_id"].factorize(sort=True)[0]),
    ]
    assert joined["source"].tolist() == [str(paths[0])] * len(first) + [str(folder)] * len(second)
    assert joined["training_set"].tolist() == [""] * len(first) + ["pile"] * len(second)
    assert joined.attrs["remarks"][-2] == f"{folder}: its runs have hyper_id 3 to 15"
    other = save(first.assign(router_type="Mine"), "other.csv")
    save(first.assign(router_type="mine"), "again.csv")
    with pytest.raises(InputError, match=r"other.csv: router_type Mine; needed: mine, in this spelling"):
        read_tables([tmp_path / "again.csv", other])
    assert "source" not in read_tables(paths[0]) and "source" not in read_tables([folder])


def test_cells_that_cannot_be_printed_are_escaped():
    assert printable_cells([" a b ", " a\x1b[31m "]) == [" a b ", r"a\x1b[31m"]
