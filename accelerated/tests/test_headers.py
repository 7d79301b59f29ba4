"""Units in headers: applied with a remark, or an error if unclear."""

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables import headers
from routelaws.accelerated.tables.convert import convert_runs
from routelaws.accelerated.tables.table import read_table

N, P, D, STEP, RUN = (
    "dense_parameter_count", "total_parameter_count", "tokens", "flops_per_step", "training_flops"
)  # fmt: skip
CELLS = {N: "1e7", D: "1e9"}

APPLIED = [
    (N, "params (M)", "53.3", 53_300_000), (N, "params [B]", "0.29", 290_000_000), (N, "params (in M)", "20", 2e7),
    (N, "parameters, millions", "20", 2e7), (N, "size in billions", "7", 7e9), (N, "params_M", "370", 3.7e8),
    (N, "params_b", "7", 7e9), (N, "n_params_m", "20", 2e7), (N, "Mparams", "20", 2e7), (N, "params (10^6)", "20", 2e7),
    (N, "N / 1e6", "20", 2e7), (N, "params (k)", "512", 512_000), (N, "params (M)", "4.6B", 4.6e9),
    (P, "P in M", "30", 3e7),
    (N, "params", "20e6", 2e7), (N, "params_m", "2e12", 2e12), (N, "non-embedding params (N)", "1e7", 1e7),
    (N, "params_m", "5000;2e8", 2e8),
    (D, "tokens (B)", "10.870", 10_870_000_000), (D, "D [B tokens]", "2", 2e9), (D, "tokens (T)", "0.3", 3e11),
    (D, "tokens (T)", "3e11", 3e11), (D, "Btok", "+3", 3e9), (D, "tokens_t", "1e9", 1e9),
    (D, "million tokens", "9", 9e6),
    (D, "tokens x 1e9", "3", 3e9), (D, "tokens seen", "1e9", 1e9), (D, "in G tokens (G)", "3", 3e9),
    (STEP, "forward GFLOPs", "3e4", 3e13), (STEP, "flops_per_step", "3e13", 3e13), (STEP, "tera-flops", "30", 3e13),
    (RUN, "train EFLOPs", "0.06", 6e16), (RUN, "PF-days", "1e-3", 8.64e16),
    (RUN, "compute (PFLOP/s-days)", "1e-3", 8.64e16),
    (RUN, "petaflops", "60", 6e16), (RUN, "flops (E)", "0.06", 6e16), (RUN, "achieved_flops", "6e16", 6e16),
]  # fmt: skip
REFUSED = [
    (N, "params (M)", "20000000", "'params (M)': its unit is not clear: would 2e+07 be 2e+13?"),
    (N, "params_m", "20000", "'params_m': its unit is not clear: would 20000 be 20000 or 2e+10?"),
    (N, "params (10e6)", "2", "its unit is not clear: would 2 be 2 or 2e+06 or 2e+07?"),
    (D, "tokens (B), in millions", "2", "its unit is not clear: would 2 be 2e+06 or 2e+09?"),
    (N, "params (MB)", "20", "is a rate, a time or bytes, but dense_parameter_count is a count; needed"),
    (RUN, "PFLOP/s", "20", "is a rate, a time or bytes"),
    (RUN, "flops_per_sec", "20", "is a rate, a time or bytes"),
    (RUN, "TFLOP-hours", "20", "is a rate, a time or bytes"),
]  # fmt: skip


def converted(tmp_path, name: str, header: str, cell: str):
    """Convert runs with these cells, separated by ;, below this header. Other columns agree with nearly any number."""
    cells = {"num_experts": "1", "step": "1", "loss": "3"} | {key: CELLS[key] for key in CELLS if key != name}
    if name == P:
        cells |= {"num_experts": "8", "router_type": "Mine"}
    rows = [cells | {"run": f"r{i}", header: each} for i, each in enumerate(cell.split(";"))]
    lines = [rows[0], *(row.values() for row in rows)]
    (tmp_path / "own.csv").write_text("\n".join(",".join(f'"{text}"' for text in line) for line in lines))
    columns = {"hyper_id": "run", "loss_validation": "loss"} | ({name: header} if header != name else {})
    return convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", columns).remarks


@pytest.mark.parametrize(("name", "header", "cell", "number"), APPLIED)
def test_a_unit_in_a_header_is_applied_and_said(tmp_path, name, header, cell, number):
    said = converted(tmp_path, name, header, cell)
    assert read_table(tmp_path / "t.csv")[name].tolist()[-1] == number
    scaled = "e" not in cell.lower() and cell[-1] not in "BM" or cell == "3e4" or cell == "1e-3"
    times = [remark for remark in said if remark.startswith(f"{name}: multiplied by ")]
    assert len(times) == scaled and all(
        f", because of the header {header!r}, such as {cell} as " in remark for remark in times
    )


@pytest.mark.parametrize(("name", "header", "cell", "said"), REFUSED)
def test_a_header_that_is_not_clear_is_one_line(tmp_path, name, header, cell, said):
    with pytest.raises(InputError) as caught:
        converted(tmp_path, name, header, cell)
    assert f"column {header!r}: " in str(caught.value) and said in str(caught.value) and str(caught.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


def test_every_word_and_every_prefix():
    words = {"thousand": 3, "million": 6, "mln": 6, "billion": 9, "bn": 9, "trillion": 12}
    prefixes = {"kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15, "exa": 18, "zetta": 21}
    prefixes |= {name[0]: power for name, power in prefixes.items()}
    for word, power in words.items():
        assert headers._units_in(f"tokens in {word}s", False, True) == ({10.0**power}, set()), word
    for prefix, power in prefixes.items():
        assert headers._units_in(f"train {prefix}FLOPs", True, False) == ({10.0**power}, set()), prefix
    assert words.keys() == headers._WORDS.keys() and headers._SI.keys() <= prefixes.keys()
