"""Errors name the row and the column of each bad cell, in every kind of file and by both readers."""

import csv
import gzip
import json
import re

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables import reading as table_files
from routelaws.accelerated.tables.table import _read, read_table

from .small_runs import ran

HEADER = (
    "hyper_id step router_type num_experts dense_parameter_count loss_validation loss_c4 k seed routing_frequency "
    "flop_increase total_parameter_count note"
).split()

BAD = {
    "hyper_id": ["", "x", "-1", "1.5", "inf", "1e17"],
    "step": ["", "-5", "2.5", "NaN", "last"],
    "router_type": ["", "  ", "nan"],
    "num_experts": ["", "0", "-4", "2.5", "many", "infinity", "4; 8"],
    "dense_parameter_count": ["0", " ", "1e400", "-1e7", "10 X", "1_000", "1,2B"],
    "loss_validation": ["0", "-2.5", "inf", "-inf", "diverged", "0x1p3", "3,1", "\u0663", "2.5.1"],
    "loss_c4": ["0", "+", "e5", "true", '"'],
    "k": ["0", "0.5", "two"],
    "seed": ["1.5", "a"],
    "routing_frequency": ["2", "-0.5", "half", "1/2"],
    "flop_increase": ["0.5", "x"],
}
"""Wrong cells of each column, for any rest of the row."""


def make_rows() -> list[list[str]]:
    rows = []
    for size in (1e7, 1e8, 1e9):
        for experts in (1, 2, 4, 16, 64, 256):
            run = len(rows) // 2
            for step in (1000, 2000):
                loss = 12.0 * size**-0.08 * (1 + experts) ** (-0.06 + 0.005 * run / 18) * (1 + 1 / step)
                router = "Dense" if experts == 1 else "S-Base"
                numbers = [size, loss, loss * 1.1, 1, 42, 0.5, 1.0, size * (1 + experts) / 2]
                rows.append([str(run), str(step), router, str(experts), *map(repr, numbers), "a note"])
    return rows


def write(path, rows, header=HEADER):
    """Write cells as CSV or JSON lines, plain or packed, by the name of the file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        if ".jsonl" in path.name:
            file.writelines(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
        else:
            csv.writer(file).writerows([header, *rows])
    return path


def problems(path, **careful) -> list[str]:
    with pytest.raises(InputError) as caught:
        _read(path, **careful)
    first, *others = str(caught.value).removeprefix(f"{path}: ").split("\n")
    return [line.strip() for line in others] if others else [first]


def cells_named(lines: list[str]) -> set[tuple[int, str]]:
    return {(int(row), column) for row, column in re.findall(r"^row (\d+), column (\w+):", "\n".join(lines), re.M)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


wrong_cells = st.dictionaries(
    st.tuples(st.integers(0, 35), st.sampled_from(sorted(BAD))), st.integers(0, 99), min_size=1, max_size=12
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(wrong=wrong_cells, name=st.sampled_from(["t.csv", "t.csv.gz", "t.jsonl"]), chunk=st.sampled_from([5, 1 << 16]))
def test_the_cells_that_are_wrong_are_those_named(folder, wrong, name, chunk):
    rows = make_rows()
    for (row, column), choice in wrong.items():
        rows[row][HEADER.index(column)] = BAD[column][choice % len(BAD[column])]
    path, before = write(folder / name, rows), table_files.CHUNK
    table_files.CHUNK = chunk
    try:
        lines = problems(path)
        assert lines == problems(path, careful=True)
    finally:
        table_files.CHUNK = before
    assert cells_named(lines) == {(row + 1, column) for row, column in wrong}
    assert len(lines) == len(wrong)
    for (row, column), choice in wrong.items():
        value = BAD[column][choice % len(BAD[column])]
        assert any(f"row {row + 1}, column {column}: {value!r}; needed: " in line for line in lines)


odd_cells = st.sampled_from([
    "1", " 2.5", "3 ", "1e3", "+4", ".5", "7.", "-0", "0.1", "2.2250738585072014e-308", "0.30000000000000004", "nan",
    "NA", "", "Infinity", "-inf", "1e999", "1,5", "0x10", "1_0", "True", "1e", "\u00a05", "5\t", "1d5", "--1", "1 2",
    '"', "None", "null", "N/A", "179769313486231580793e289", "0.1234567890123456789012345", "4.35",
    "9007199254740993",
])  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    cells=st.lists(
        st.tuples(st.integers(0, 35), st.sampled_from(["loss_c4", "seed", "capacity_factor", "note"]), odd_cells),
        max_size=6,
    ),
    chunk=st.sampled_from([5, 1 << 16]),
)
def test_fast_and_careful_reading_agree(folder, cells, chunk):
    header, rows = [*HEADER, "capacity_factor"], [[*row, "inf"] for row in make_rows()]
    for row, column, cell in cells:
        rows[row][header.index(column)] = cell
    path, before, outcomes = write(folder / "odd.csv", rows, header), table_files.CHUNK, []
    table_files.CHUNK = chunk
    try:
        for careful in (False, True):
            try:
                outcomes.append(_read(path, careful=careful))
            except InputError as error:
                outcomes.append(str(error))
    finally:
        table_files.CHUNK = before
    if isinstance(outcomes[0], str) or isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        pandas.testing.assert_frame_equal(*outcomes, check_exact=True)


@pytest.mark.parametrize("yes", ["True", "true", "TRUE", "False"])
def test_a_column_of_truth_values_is_no_column_of_numbers(folder, yes):
    rows = make_rows()
    for row in rows:
        row[HEADER.index("routing_frequency")] = yes
    assert f"row 1, column routing_frequency: '{yes}'; needed: a number" in problems(write(folder / "truth.csv", rows))


def test_numbers_are_the_nearest_ones(folder):
    draw = np.random.default_rng(0)
    rows = make_rows() * 30
    losses = 10 ** draw.uniform(-3, 3, len(rows))
    for i, row in enumerate(rows):
        row = rows[i] = row.copy()
        row[0], row[5] = str(i), repr(float(losses[i]))
    for careful in (False, True):
        assert (_read(write(folder / "exact.csv", rows), careful=careful)["loss_validation"] == losses).all()


def test_more_problems_than_are_shown(folder):
    rows = make_rows()
    for row in rows[5:30]:
        row[HEADER.index("loss_c4")] = "diverged"
    rows[2][HEADER.index("k")] = "0"
    path = write(folder / "many.csv", rows)
    with pytest.raises(InputError) as caught:
        read_table(path)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"{path}: 26 problems; nothing was read" and len(lines) == 22
    assert lines[1] == "  row 3, column k: '0'; needed: 1 or more"
    assert lines[20] == "  row 24, column loss_c4: 'diverged'; needed: a number, or NaN if the run diverged"
    assert lines[21] == "  ... and 6 more"


def test_json_lines_are_the_same_table_as_csv(folder):
    rows = make_rows()
    as_csv, as_json = (read_table(write(folder / name, rows)) for name in ("same.csv", "same.jsonl.gz"))
    pandas.testing.assert_frame_equal(as_csv, as_json, check_exact=True)
    assert as_json["note"].tolist() == ["a note"] * 36


@pytest.mark.parametrize(("column", "dense", "routed"), [("is_moe", "False", "True"), ("cfg/arch", "dense", "moe"),
                                                        ("dense", "1", "0"), ("use_moe", "0", "1")])  # fmt: skip
def test_a_dense_run_with_several_experts(folder, column, dense, routed):
    experts = HEADER.index("num_experts")
    rows = [[*row, dense if row[experts] == "1" else routed] for row in make_rows()]
    read_table(write(folder / "right.csv", rows, [*HEADER, column]))
    rows[4][-1] = dense
    [line] = problems(write(folder / "wrong.csv", rows, [*HEADER, column]))
    assert f"row 5, column {column}: '{dense}'; needed: a routed run, since num_experts is above 1" in line


@pytest.mark.parametrize("name", ["twice.csv", "twice.jsonl"])
def test_a_row_that_is_there_twice_counts_once_and_that_is_said(folder, name):
    rows = make_rows()
    frame = read_table(write(folder / f"once-{name}", rows))
    again = read_table(write(folder / name, [*rows, rows[4], rows[20], rows[4]]))
    pandas.testing.assert_frame_equal(again, frame)
    assert frame.attrs["remarks"] == []
    assert again.attrs["remarks"] == ["left out: 3 rows, because each equals an earlier row in every cell: 37, 38, 39"]
    (remark,) = read_table(write(folder / name, [*rows, rows[4]])).attrs["remarks"]
    assert remark == "left out: row 37, which equals an earlier row in every cell"
    (remark,) = read_table(write(folder / name, [*rows, *rows[:11]])).attrs["remarks"]
    first = ", ".join(map(str, range(37, 47)))
    assert remark == f"left out: 11 rows, because each equals an earlier row in every cell: {first}, ..."
    rows[4][HEADER.index("note")] = ""  # two blanks are equal
    assert len(read_table(write(folder / name, [*rows, rows[4]]))) == 36


# THE SAME THROUGH THE COMMAND


def bad_tables(folder):
    """Yield (name, path, a piece of the message) for tables without a fit. `test_wrong_commands.py` has others."""
    good, at = make_rows(), HEADER.index

    def column(name, value):
        return [row[: at(name)] + [value] + row[at(name) + 1 :] for row in good]

    def text(name, content):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    plain = write(folder / "plain.csv", good).read_text()
    packed = gzip.compress(plain.encode(), mtime=0)
    for name, value, message in [
        ("loss_validation", "NaN", "router S-Base: "),
        ("step", "last", "36 problems"),
        ("loss_validation", "3.0", "loss_validation is 3 in all 18 rows; a law needs rows with different losses"),
        ("dense_parameter_count", "1e7", "router S-Base: "),
        ("router_type", "Dense", "30 problems"),
        ("hyper_id", "0", "problems"),
        ("step", "1000", "18 problems"),
    ]:
        yield f"{name} is {value!r}", write(folder / f"all-{name}-{value}.csv", column(name, value)), message
    yield "one run", write(folder / "run.jsonl", good[4:6]), "router S-Base: 1 row"
    yield "empty json", text("empty.jsonl", ""), "is empty"
    yield "cut gzip", text("cut.csv.gz", packed[:-300]), "cannot be unpacked"
    yield "damaged gzip", text("hurt.csv.gz", packed[:200] + b"\x55" * 90 + packed[290:]), "cannot be unpacked"
    yield "gzip in disguise", text("packed.csv", packed), "is not a CSV table (not text in UTF-8"
    yield "utf-16", text("wide.csv", plain.encode("utf-16")), "is not a CSV table (not text in UTF-8"
    yield "csv in json", text("table.jsonl", plain), "37 problems"


def test_bad_tables_end_with_a_clear_message(folder):
    for name, path, message in bad_tables(folder):
        code, out, said = ran("fit", path)
        assert code == 2 and out == "", (name, out)
        assert said.startswith("routelaws: ") and message in said and "Traceback" not in said, (name, said)
        assert len(said.splitlines()) <= 22 and str(path) in said, (name, said)


@pytest.mark.parametrize(("cell", "left_out"), [("", []), ("NA", []), ("NaN", [17])])
def test_a_run_that_ends_with_nan_is_left_out_and_an_empty_loss_is_no_evaluation(folder, cell, left_out):
    rows = make_rows()
    rows[35][HEADER.index("loss_validation")] = cell
    code, out, said = ran("fit", write(folder / "said.csv", rows), "--law", "separable", "--json")
    fitted = json.loads(out)
    assert code == 0 and said == "" and [run["hyper_id"] for run in fitted["fits"][0]["left_out"]] == left_out
    remark = "blank in 1 of 36 rows; the last row with a loss counts in 1 run whose last row is blank"
    assert fitted["remarks"] == ([] if left_out else [f"loss_validation: {remark}"])


@pytest.mark.parametrize("words", [
    ["fit", "--law", "separable"],
    ["predict", "--law", "separable", "--n", "1e8", "--experts", "16"],
    ["plan", "--law", "separable", "--no-published", "--flops", "1e18", "--resamples", "0"],
])  # fmt: skip
def test_every_command_says_what_was_left_out_of_each_table(monkeypatch, folder, words):
    """For several tables, the output also has the new numbers of the runs of each table."""
    monkeypatch.setenv("COLUMNS", "1000")  # no path is broken
    rows, (command, *flags) = make_rows(), words
    one, other = write(folder / "one.csv", [*rows, rows[7]]), write(folder / "other.csv", [*rows, rows[3], rows[5]])
    of_one = "left out: row 37, which equals an earlier row in every cell"
    of_other = "left out: 2 rows, because each equals an earlier row in every cell: 37, 38"
    numbered = ("its runs have hyper_id 0 to 17", "its runs have hyper_id 18 to 35 (before: 0 to 17)")
    of_both = [f"{one}: {of_one}", f"{one}: {numbered[0]}", f"{other}: {of_other}", f"{other}: {numbered[1]}"]
    of_both.append("equal runs: hyper_id 0 and 18, 1 and 19, 2 and 20 and 15 more; if they are one run, keep one")
    for paths, wanted in (([one], [of_one]), ([one, other], of_both)):
        assert json.loads(ran(command, *paths, *flags, "--json")[1])["remarks"] == wanted
        shown = ran(command, *paths, *flags)[1].splitlines()
        assert [line.strip() for line in shown if re.search("in every cell|its runs|equal runs", line)] == wanted


def test_harmless_oddities_change_nothing(folder):
    plain = write(folder / "plain.csv", make_rows())
    expected = read_table(plain)
    content = plain.read_bytes()
    lines = content.split(b"\r\n")
    for name, odd in {
        "mark": b"\xef\xbb\xbf" + content,
        "unix": content.replace(b"\r\n", b"\n"),
        "no end": content.rstrip(),
        "old mac": content.replace(b"\r\n", b"\r"),
        "blank lines": b"\r\n" + b"\r\n\r\n".join(lines) + b"\r\n",
        "quotes": content.replace(b"a note", b'"a note"').replace(b"S-Base", b'"S-Base"'),
        "spaces": content.replace(b"Dense", b" Dense ").replace(b",0.5,", b", 0.5 ,").replace(b",step,", b", step ,"),
    }.items():
        path = folder / "odd.csv"
        path.write_bytes(odd)
        pandas.testing.assert_frame_equal(read_table(path), expected, check_exact=True, obj=name)
    lines_in_a_cell = content.replace(b"a note", b'"a\nnote, and ""more"""')
    path.write_bytes(lines_in_a_cell)
    assert set(read_table(path)["note"]) == {'a\nnote, and "more"'}
