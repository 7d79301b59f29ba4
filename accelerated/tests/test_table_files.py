"""Files of tables: unchanged cells, numbered rows, and bounded memory."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables import reading as table_files
from routelaws.accelerated.tables.reading import is_json, read_text, take_apart
from routelaws.accelerated.tables.schema import Problems

cell = st.text(st.sampled_from('ab1,"\n \u00e9\U0001f600'), max_size=8)
line_end = st.sampled_from(["\n", "\r\n", "\r"])


def read(path, chunk=table_files.CHUNK):
    problems, before = Problems(path), table_files.CHUNK
    table_files.CHUNK = chunk
    try:
        parts = list(take_apart(read_text(path), problems))
    finally:
        table_files.CHUNK = before
    problems.raise_if_any()
    assert all(len(part.rows) <= chunk for part in parts)
    rows = [row for part in parts for row in zip(*part.columns.values(), strict=True)]
    return rows, [row for part in parts for row in part.rows]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rows=st.lists(st.tuples(cell, cell, cell), max_size=12), chunk=st.integers(1, 6), end=line_end)
def test_cells_are_those_that_were_written(tmp_path_factory, rows, chunk, end):
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        quoting = csv.QUOTE_ALL if end == "\r" else csv.QUOTE_MINIMAL  # the other mode would not quote a \n
        csv.writer(file, lineterminator=end, quoting=quoting).writerows([("x", "y", "z"), *rows])
    found, numbers = read(path, chunk)
    expected = [row for row in rows if row != ("x", "y", "z")]
    assert found == expected
    assert numbers == list(range(1, len(rows) + 1))


def test_blank_lines_have_no_number(tmp_path):
    (tmp_path / "t.csv").write_text("\n\nx,y\n\n1,2\n\n\n3,4\n\n5\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 3: 1 cell; needed: 2, as in the header"):
        read(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "cut"),
    [("x,y\n1,2.25\n2,2.5\n3,2", True), ("x,y\n1,2.25\n2,2.5\n3,2\n", False), ("x,y\n1,2.25\n2,2.5\n3,2.4", False),
     ("x,y\r\n1,2.25\r\n2,2.5\r\n3,2", True), ("x\ny", False)],
)  # fmt: skip
def test_a_file_cut_within_its_last_number_has_a_remark(tmp_path, text, cut):
    (tmp_path / "t.csv").write_text(text, newline="")
    said = (
        "t.csv: the last line has no line break, and its last cell '2' is shorter than the others; if the file was cut"
    )
    assert [remark.partition("t.csv")[2] for remark in table_files.cut_short(tmp_path / "t.csv")] == (
        [f"{said}, delete this line".removeprefix("t.csv")] * cut
    )


def test_a_line_before_the_header_is_one_error(tmp_path):
    (tmp_path / "t.csv").write_text("# of 2026-01-02\nx,y\n1,2\n3,4\n", encoding="utf-8")
    said = "1 name in the header '# of 2026-01-02', but rows of 2 cells; needed: a header with a name for each cell"
    with pytest.raises(InputError, match=said):
        read(tmp_path / "t.csv")
    for line in ("number of parameters: 10.65M", "step 0: train loss 4.2874, val loss 4.2823", r"\begin{tabular}{lr}"):
        (tmp_path / "t.csv").write_text(f"{line}\nstep 1: train loss 4.1, val loss 4.2\n")
        with pytest.raises(InputError, match="is one of a text log or of LaTeX; write its numbers"):
            read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("N,E=1,E=16\n1e8,3.5,3.25\n")
    assert read(tmp_path / "t.csv")[0] == [("1e8", "3.5", "3.25")]  # a wide table


@pytest.mark.parametrize(("rows", "reason"), [(5, "unexpected end of data"), (50_000, "field larger than field limit")])
def test_a_quote_that_is_never_closed_is_named(tmp_path, rows, reason):
    (tmp_path / "t.csv").write_text('x,y\n"1,2\n' + "3,4\n" * rows, encoding="utf-8")
    with pytest.raises(InputError, match=rf"t.csv: is not a CSV table \({reason}"):
        read(tmp_path / "t.csv")


def test_names_of_files():
    assert all(map(is_json, ("a.jsonl", "a.jsonl.gz", "a.ndjson")))
    assert not any(map(is_json, ("a.csv", "a.csv.gz", "jsonl", "a.gz")))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_named(tmp_path, separator):
    path = tmp_path / "t.csv"
    path.write_text(separator.join(["hyper_id", "step", "loss_c4, nats"]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="separated by (semicolons|tabs|bars); needed: a CSV file with commas"):
        read(path)


def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(InputError, match="cannot be read"):
        read(path)


MEGABYTES = 600
"""Memory for a million rows of 10 columns: 80 for numbers, 150 for text, 150 for positions of commas, 70 for Python."""


@pytest.mark.slow
def test_a_million_rows_in_bounded_memory(tmp_path):
    path, count, draw = tmp_path / "million.csv", 1_000_000, np.random.default_rng(0)
    with open(path, "w", encoding="utf-8") as file:
        file.write("hyper_id,step,loss_c4,loss_validation,num_experts,k,router_type,seed,routing_frequency,")
        file.write("dense_parameter_count\n")
        for run in range(count // 100):
            losses, experts = draw.uniform(2, 4, (100, 2)).tolist(), 2 ** (run % 8)
            router = "Dense" if experts == 1 else "S-Base"
            file.writelines(
                f"{run},{i},{x!r},{y!r},{experts},1,{router},42,0.5,{1e7 * (1 + run % 6)}\n"
                for i, (x, y) in enumerate(losses)
            )
    script = (
        "import pathlib, resource, sys\nfrom routelaws.accelerated.tables.table import read_table\n"
        "from routelaws.accelerated.tables.selection import select_rows\n"
        "frame = read_table(sys.argv[1])\nselection = select_rows(frame, 'clark')[0].frame\n"
        # On Linux, ru_maxrss of a new process can be the value of its large parent.
        "status = pathlib.Path('/proc/self/status')\n"
        "lines = status.read_text().splitlines() if status.exists() else []\n"
        "peak = next((int(line.split()[1]) for line in lines if line.startswith('VmHWM')), None)\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak\n"
        "print(len(frame), len(selection), peak)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True, timeout=300)
    rows, selected, peak = map(int, done.stdout.split())
    assert (rows, selected) == (count, count // 100)
    assert peak * (1 if sys.platform == "darwin" else 1024) < MEGABYTES * 1e6
