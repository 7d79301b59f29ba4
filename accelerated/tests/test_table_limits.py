"""Limits on a table: the largest number of each column, and the size of unpacked text."""

import gzip
import math
import re

import numpy as np
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.laws import compute
from routelaws.accelerated.results.planning.options import _at_experts, _at_sizes
from routelaws.accelerated.tables import reading
from routelaws.accelerated.tables.schema import RANGES, limited
from routelaws.accelerated.tables.table import _read, read_table
from routelaws.reference.laws import compute as reference_compute

ROW = {
    "hyper_id": 0, "step": 0, "router_type": "Mine", "num_experts": 8, "dense_parameter_count": 1e7,
    "total_parameter_count": 1e9, "loss_validation": 3.0,
}  # fmt: skip
"""A row at step 0, before training, so that redundant columns agree."""
RAISABLE = [name for name, allowed in RANGES.items() if math.isfinite(allowed.limit)]
FIXED = {
    "hyper_id": 2**53, "step": 2**53, "seed": 2.0**64, "routing_frequency": 1, "dropped_fraction": 1, "idle_experts": 1,
    "router_agreement": 1, "router_entropy": 1, "router_information": 20, "counted_embeddings": 2,
}  # fmt: skip


def write(path, **cells):
    row = ROW | cells
    path.write_text(f"{','.join(row)}\n" + ",".join(map(str, row.values())) + "\n")
    return path


def test_every_column_has_a_range():
    assert set(RAISABLE) | set(FIXED) | {"capacity_factor"} == set(RANGES)  # infinite if no token is dropped


@pytest.mark.parametrize("name", RAISABLE)
def test_a_number_beyond_the_limit_of_its_column_is_named(tmp_path, name):
    limit = RANGES[name].limit
    both = {"dense_parameter_count": 1e18, "total_parameter_count": 1e18, "router_type": "Dense", "num_experts": 1}
    more = {"num_experts": 2**20} if name == "k" else both if name in [*both][:2] else {}
    kind = {"router_type": "Dense", "num_experts": 1, "total_parameter_count": 1e7} if name == "flop_increase" else {}
    read_table(write(tmp_path / "t.csv", **more | kind | {name: repr(limit)}))
    for value in (repr(2 * limit), "1e308", str(2**256)):
        path = write(tmp_path / "t.csv", **more | kind | {name: value})
        for careful in (True, False):
            with pytest.raises(InputError) as said:
                _read(path, careful=careful)
            line = str(said.value).partition(f"row 1, column {name}: ")[2].splitlines()[0]
            number = f"{limit:,.0f}" if limit < 1e10 else f"{limit:g}"
            needed = f"needed: at most {number} (to allow more: routelaws --limit {name}=NUMBER ...)"
            assert line.startswith(f"'{value[:37]}") and line.endswith(needed)


@pytest.mark.parametrize("name", FIXED)
def test_a_number_beyond_the_range_of_its_column_is_named(tmp_path, name):
    read_table(write(tmp_path / "t.csv", **{name: FIXED[name]}))
    for value in ("1e20", "1e308"):
        with pytest.raises(InputError, match=f"row 1, column {name}: '{value}'; needed: "):
            read_table(write(tmp_path / "t.csv", **{name: value}))


LOWEST = dict.fromkeys(
    ("hyper_id", "step", "tokens", "initial_tokens", "learning_rate", "dropped_fraction", "idle_experts", "epochs",
     "router_agreement", "router_entropy", "standard_error", "wall_seconds", "training_flops"), 0,
) | dict.fromkeys(
    ("k", "sequence_length", "batch_size", "vocab_size", "evaluation_tokens", "evaluation_documents", "unique_tokens",
     "flops_per_step"), 1,
) | {"router_information": -20, "seed": -(2.0**64)}  # fmt: skip


@pytest.mark.parametrize("name", LOWEST)
def test_the_least_number_of_a_column_is_allowed_and_less_is_named(tmp_path, name):
    read_table(write(tmp_path / "t.csv", **{name: LOWEST[name]}))
    less = 2 * LOWEST[name] if name == "seed" else LOWEST[name] - 1
    with pytest.raises(InputError, match=f"row 1, column {name}: '{re.escape(str(less))}'; needed: "):
        read_table(write(tmp_path / "t.csv", **{name: less}))


def test_the_load_of_a_balanced_expert_may_be_a_rounding_below_1(tmp_path):
    """Our runs write a mean of float32 shares."""
    for load in (str(float(np.nextafter(np.float32(1), np.float32(0)))), "1"):
        read_table(write(tmp_path / "t.csv", max_load=load))
    with pytest.raises(InputError, match="row 1, column max_load: '0.99'; needed: 1 or more"):
        read_table(write(tmp_path / "t.csv", max_load="0.99"))


def packed(path, text: str):
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_what_a_packed_file_unpacks_to_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SMALL", 5000)
    header = write(tmp_path / "t.csv").read_text()
    for text in (header + "\n" * 10**6, "\n" * 10**6 + header, header + "0" * 10**6, header * 10**4):
        path = packed(tmp_path / "t.csv.gz", text)
        most = max(5000, 100 * path.stat().st_size)
        with pytest.raises(InputError, match=f"t.csv.gz: unpacks to more than the limit of {most:,.0f} .*--limit un"):
            read_table(path)
    with limited({"unpacked": 2e6}):
        assert len(read_table(packed(path, header + "\n" * 10**6))) == 1
    assert len(read_table(packed(path, header + "\n" * 1000))) == 1


def test_blank_lines_cost_no_time(tmp_path):
    header, row = write(tmp_path / "t.csv").read_text().splitlines()
    blank = "\n" * 10**6
    for text in (blank + header + blank + row, f'"hyper_id"{header[8:]}\n{row}{blank}'):
        (tmp_path / "t.csv").write_text(text)
        assert len(read_table(tmp_path / "t.csv")) == 1


ACCURACIES = "params,tokens,acc_a\n" + "".join(f"{1e7 * 2**i:g},{1e9 * 2**i:g},{0.3 + i / 20}\n" for i in range(8))


@pytest.mark.parametrize(
    ("column", "value", "needed"), [("params", "1e300", "from 1 to 1e+18"), ("tokens", "1e-300", "from 1 to 1e+18")]
)
def test_numbers_of_a_table_of_accuracies_have_limits_too(tmp_path, capsys, column, value, needed):
    old = {"params": "1e+07", "tokens": "1e+09"}[column]
    (tmp_path / "a.csv").write_text(ACCURACIES.replace(old, value, 1))
    assert main(["fit", str(tmp_path / "a.csv"), "--law", "direct"]) == 2
    assert f"row 1, column {column}: '{value}'; needed: a number {needed}\n" in capsys.readouterr().err


def test_a_line_of_costs_that_falls_to_0_says_nothing():
    """P at E = 1 cannot follow from runs with E = 8 and 9 that grow by more than P per expert."""
    sizes, experts, totals = np.full(2, 1e7), np.array([8.0, 9.0]), np.array([1e8, 2e8])
    known = _at_sizes(sizes, experts, totals)
    assert _at_experts(known, 8.5) == {1e7: 1.5e8} and _at_experts(known, 1.0) == {}


@pytest.mark.parametrize("twin", [reference_compute, compute])
def test_an_interval_that_has_no_end_is_infinite(twin):
    """The half width of ln A exceeds the exponent of float64, with compute far from 1 and losses that only scatter."""
    flops, loss = np.array([1e30, 1.01e30, 1.02e30]), np.array([1e-12, 1e9, 1e-12])
    found = twin.fit_compute(flops, loss)
    [of_level, _] = twin.compute_intervals(found, (flops,), loss)
    assert (of_level.low, of_level.high) == (0.0, math.inf)
