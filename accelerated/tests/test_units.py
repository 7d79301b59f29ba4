"""Amounts with units: a common reader for tables, flags and points, and one-line errors."""

import re

import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs
from routelaws.accelerated.tables.units import (
    NUMBERS,
    bytes_of,
    flops_of,
    number_bytes_of,
    parameters_of,
    size_label,
    tokens_of,
)


@pytest.mark.parametrize(
    "read, text, value",
    [
        (flops_of, "1e21", 1e21), (flops_of, "1E21 FLOPs", 1e21), (flops_of, "3ZFLOPs", 3e21),
        (flops_of, "2.5 Z", 2.5e21), (flops_of, "10 PF-days", 8.64e20), (flops_of, "1 PF-day", 8.64e19),
        (flops_of, ".5e3", 500.0), (flops_of, "1e35", 1e35),
        (flops_of, "5E", 5e18), (flops_of, "5E3", 5e3), (flops_of, "0.3B", 3e8), (flops_of, "6 GFLOPs", 6e9),
        (bytes_of, "80GB", 80e9), (bytes_of, "24GiB", 24 * 2**30), (bytes_of, "80 gb", 80e9),
        (bytes_of, "1.5TB", 1.5e12), (bytes_of, "512MiB", 2**29), (bytes_of, "1e10B", 1e10), (bytes_of, " 7kB ", 7e3),
        (tokens_of, "300B", 3e11), (tokens_of, "1.5T tokens", 1.5e12), (tokens_of, "2e10", 2e10),
        (tokens_of, "7M", 7e6), (tokens_of, "512k", 512e3), (tokens_of, "10.870B", 10_870_000_000),
        (parameters_of, "370M", 370e6), (parameters_of, "53.3m", 53_300_000), (parameters_of, "7b params", 7e9),
        (parameters_of, "4.6M", 4_600_000), (parameters_of, "1.1e3 M", 1.1e9), (parameters_of, "0.29B", 290_000_000),
        (number_bytes_of, "bf16", 2.0), (number_bytes_of, "int4", 0.5), (number_bytes_of, "fp32", 4.0),
        (number_bytes_of, "3", 3.0),
    ],
)  # fmt: skip
def test_amounts(read, text, value):
    assert (read(text, "--tokens") if read is tokens_of else read(text)) == value


def test_every_letter_of_an_amount():
    assert tokens_of("0", "--cached-tokens", 0.0) == 0
    for i, letter in enumerate("KMBT", 1):
        for each in (letter, letter.lower()):
            amounts = parameters_of(f"2{each}"), tokens_of(f"2 {each} tokens", "--tokens"), flops_of(f"2{each}")
            assert amounts == (2.0 * 1000**i,) * 3
    for i, letter in enumerate("GPEZY"):
        assert flops_of(f"2{letter}FLOPs") == 2.0 * 10 ** (9, 15, 18, 21, 24)[i]
    for i, letter in enumerate("KMGTP", 1):
        for each in (f"{letter}B", f"{letter}B".lower()):
            assert bytes_of(f"2{each}") == 2.0 * 1000**i
        for each in (f"{letter}iB", f"{letter}iB".lower()):
            assert bytes_of(f"2{each}") == 2.0 * 1024**i


@pytest.mark.parametrize("name", NUMBERS)
def test_a_type_of_numbers_has_the_bits_of_its_name(name):
    bits = int(re.search("[0-9]+$", name)[0])
    assert number_bytes_of(name) == bits / 8


HEADER = "run,step,num_experts,dense_parameter_count,tokens,flops_per_step,loss_validation\n"


def test_sizes_in_cells(tmp_path):
    """A table is read with suffixes. A converted table has plain numbers."""
    sizes, tokens = ["4.6M", "512k", " 1.2B", "3e6"], ["10.870B", "1.2T", "7e9", "20m tokens"]
    cells = sizes, tokens, ["1.5e12", "2T", "3P", "4GFLOPs"]
    numbers = [4_600_000, 512_000, 1.2e9, 3e6], [10.87e9, 1.2e12, 7e9, 2e7], [1.5e12, 2e12, 3e15, 4e9]
    lines = [f"r{i},1,1,{n},{d},{c},3.5\n" for i, (n, d, c) in enumerate(zip(*cells, strict=True))]
    (tmp_path / "own.csv").write_text(HEADER + "".join(lines))
    names = HEADER.split(",")[3:6]
    done = convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", {"hyper_id": "run"})
    assert [read_table(tmp_path / "t.csv")[name].tolist() for name in names] == list(numbers)
    assert "M" not in (tmp_path / "t.csv").read_text()
    assert "dense_parameter_count: sizes are written out, such as 4.6M as 4600000, in 3 of 4 rows" in done.remarks
    samples = (
        "run,num_experts,dense_parameter_count,consumed_samples,loss_validation\na,1,1e8,5M,3.4\nb,1,1e8,7e6,3.3\n"
    )
    (tmp_path / "samples.csv").write_text(samples)
    columns, units = {"hyper_id": "run", "tokens": "consumed_samples"}, {"tokens": "2048"}
    with pytest.raises(InputError, match="'consumed_samples': the header seems to name a unit"):
        convert_runs(tmp_path / "samples.csv", tmp_path / "s.csv", columns)
    convert_runs(tmp_path / "samples.csv", tmp_path / "s.csv", columns, units=units)
    assert read_table(tmp_path / "s.csv")["tokens"].tolist() == [5e6 * 2048, 7e6 * 2048]
    lines = [f"{i},{line.split(',', 1)[1].strip()},Dense\n" for i, line in enumerate(lines)]
    (tmp_path / "as_is.csv").write_text(HEADER.strip().replace("run", "hyper_id") + ",router_type\n" + "".join(lines))
    assert [read_table(tmp_path / "as_is.csv")[name].tolist() for name in names] == list(numbers)


@pytest.mark.parametrize("flags", [("--n", "{}"), ("--n", "1e9", "--at", "tokens={}")])
def test_sizes_in_flags(flags, capsys):
    law = ["predict", "--law", "hoffmann", "--published", "besiroglu", "--json"]
    rest = [] if "--at" in flags else ["--at", "tokens=2e10"]

    def said(size: str) -> str:
        code = main([*law, *(flag.format(size) for flag in flags), *rest])
        output = capsys.readouterr()
        return output.out if code == 0 else output.err

    assert said("370M") == said("3.7e8") and '"value": ' in said("370M")
    for wrong in ("370MM", "3_7", "\uff13", "1,5B", "nan"):
        assert said(wrong).startswith(f"routelaws: {flags[-2]} ") and said(wrong).count("\n") == 1


@pytest.mark.parametrize(
    ("parameters", "label"),
    [(999, "999"), (1000, "1.0K"), (9_949, "9.9K"), (9_950, "10K"), (999_499, "999K"), (999_500, "1.0M"),
     (1_300_000, "1.3M"), (999_499_999, "999M"), (999_500_000, "1.0B"), (12e9, "12B")],
)  # fmt: skip
def test_a_label_of_a_size_has_two_or_three_digits(parameters, label):
    assert size_label(parameters) == label
