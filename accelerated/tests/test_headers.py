"""Units of columns: stated, or an error if a header looks like a unit."""

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs

N, P, D, STEP, RUN = (
    "dense_parameter_count", "total_parameter_count", "tokens", "flops_per_step", "training_flops"
)  # fmt: skip
CELLS = {N: "1e7", D: "1e9"}

STATED = [
    (N, "params (M)", "53.3", "M", 53_300_000), (N, "params", "20", "M", 2e7), (N, "params (M)", "2e7", "1", 2e7),
    (N, "params (k)", "512", "1e3", 512_000), (N, "params (M)", "3;4.6B", "M", 4.6e9), (P, "P in M", "30", "m", 3e7),
    (D, "tokens (B)", "+10.870", "B", 10_870_000_000), (D, D, "3", "B tokens", 3e9),
    (STEP, "forward GFLOPs", "3e4", "GFLOPs", 3e13), (RUN, "PF-days", "1e-3", "PF-days", 8.64e16),
    (RUN, "flops (E)", "0.06", "E", 6e16),
]  # fmt: skip


def converted(tmp_path, name: str, header: str, cell: str, unit: str = ""):
    """Convert runs with these cells, separated by ;, below this header. Other columns agree with nearly any number."""
    cells = {"num_experts": "1", "step": "1", "loss": "3"} | {key: CELLS[key] for key in CELLS if key != name}
    if name == P:
        cells |= {"num_experts": "8", "router_type": "Mine"}
    rows = [cells | {"run": f"r{i}", header: each} for i, each in enumerate(cell.split(";"))]
    lines = [rows[0], *(row.values() for row in rows)]
    (tmp_path / "own.csv").write_text("\n".join(",".join(f'"{text}"' for text in line) for line in lines))
    columns = {"hyper_id": "run", "loss_validation": "loss"} | ({name: header} if header != name else {})
    units = {name: unit} if unit else {}
    return convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", columns, units=units).remarks


USUAL = {
    "run": "a", "num_experts": "1", N: "1e7", D: "1e9", "loss_validation": "3", "batch_size": "8", "step": "9",
    "sequence_length": "9",
}  # fmt: skip
NEEDED = ("run", "num_experts", N, D, "loss_validation")


def test_each_header_has_its_approved_remarks(tmp_path, approved):
    """A case is COLUMN=HEADER, and perhaps other cells. After an error, the unit is stated: as nats, or in the cell."""

    def answer(case: str) -> str:
        (column, header), *others = (part.split("=") for part in case.split(" | "))
        cells = {header if name == column else name: USUAL[name] for name in dict.fromkeys((*NEEDED, column))}
        columns, cells = {"hyper_id": "run", column: header}, cells | dict(others)

        def said(cells: dict[str, str], unit: str | None = None) -> list[str]:
            rows = zip(*cells.items(), strict=True)
            (tmp_path / "own.csv").write_text("\n".join(",".join(f'"{text}"' for text in row) for row in rows))
            try:
                remarks = convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", columns, loss_unit=unit).remarks
            except InputError as error:
                assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]
                return [f"error: {error}".replace(f"{tmp_path}/", "")]
            (tmp_path / "t.csv").unlink()
            words = header, "multiplied", "per byte"
            return [line for line in remarks if any(word in line for word in words)] or ["no remark"]

        lines = said(cells)
        if lines[0].startswith("error"):
            lines += said(cells, "nats") if column == "loss_validation" else said(cells | {header: "1B"})
        return "\n".join(lines)

    approved.cases("headers.txt", answer)


@pytest.mark.parametrize(("name", "header", "cell", "unit", "number"), STATED)
def test_a_stated_unit_is_applied_and_said(tmp_path, name, header, cell, unit, number):
    said = converted(tmp_path, name, header, cell, unit)
    assert read_table(tmp_path / "t.csv")[name].tolist()[-1] == number
    first = cell.partition(";")[0]
    times = [remark for remark in said if remark.startswith(f"{name}: multiplied by ")]
    assert len(times) == (unit != "1") and all(f", the stated unit, such as {first} as " in text for text in times)


def test_all_headers_and_the_ranges_are_in_one_line(tmp_path):
    (tmp_path / "own.csv").write_text("size (M),tokens (B),loss_validation,run\n20,1,3,a\n80,4,2.5,b\n")
    columns, out = {N: "size (M)", D: "tokens (B)", "hyper_id": "run"}, tmp_path / "t.csv"
    with pytest.raises(
        InputError, match=r"'size \(M\)' and 'tokens \(B\)': .* --unit dense_parameter_count=UNIT tokens=UNIT"
    ):
        convert_runs(tmp_path / "own.csv", out, columns, {"num_experts": "1"})
    done = convert_runs(tmp_path / "own.csv", out, columns, {"num_experts": "1"}, units={N: "M", D: "B"})
    assert done.ranges == (
        "dense_parameter_count 2e+07 to 8e+07, num_experts 1, tokens 1e+09 to 4e+09, loss_validation 2.5 to 3"
    )


@pytest.mark.parametrize("header", ["D/N", "tokens_per_param", "tpp", "tokens / parameter", "D per N"])
def test_tokens_per_parameter_become_tokens(tmp_path, header):
    (tmp_path / "own.csv").write_text(
        f"run,num_experts,N (M),{header},loss_validation\na,1,100,20,3\nb,1,400,2.5,2.8\n"
    )
    columns, out = {"hyper_id": "run", N: "N (M)", D: header}, tmp_path / "t.csv"
    with pytest.raises(InputError, match=f"{header}.* N for tokens per parameter"):
        convert_runs(tmp_path / "own.csv", out, columns, units={N: "M"})
    done = convert_runs(tmp_path / "own.csv", out, columns, units={N: "M", D: "N"})
    assert read_table(out)[D].tolist() == [2e9, 1e9]
    assert "tokens: multiplied by dense_parameter_count, the stated unit, such as 20 as 2000000000" in done.remarks


def test_tokens_per_parameter_need_the_parameters(tmp_path):
    (tmp_path / "own.csv").write_text("run,num_experts,tokens,loss_validation\na,1,20,3\n")
    with pytest.raises(InputError, match="row 1: dense_parameter_count is blank; --unit tokens=N needs it"):
        convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", {"hyper_id": "run"}, units={D: "N"})
