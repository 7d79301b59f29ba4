"""Units of columns: stated, or an error if a header looks like a unit."""

from contextlib import nullcontext

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs

N, P, D, STEP, RUN = (
    "dense_parameter_count", "total_parameter_count", "tokens", "flops_per_step", "training_flops"
)  # fmt: skip
CELLS = {N: "1e7", D: "1e9"}

UNITS = [
    "params (M)", "params [B]", "params (in M)", "parameters, millions", "size in billions", "params_M", "params_b",
    "n_params_m", "Mparams", "M params", "params (10^6)", "N / 1e6", "params (10e6)", "tokens (T)", "D [B tokens]",
    "Btok", "million tokens", "tokens ×10⁹", "PF", "gpu hours", "pfdays", "tokens x 1e9", "in G tokens (G)",
    "forward GFLOPs", "tera-flops", "train EFLOPs", "PF-days", "compute (PFLOP/s-days)", "petaflops", "flops (E)",
    "tokens in trillions", "tokens, mln", "tokens (bn)", "exa flops", "params (MB)", "PFLOP/s", "flops_per_sec",
    "TFLOP-hours", "tokens (B), in millions", "consumed_samples", "seen batches", "MACs", "flops_per_token",
]  # fmt: skip
NO_UNITS = [
    "params", "non-embedding params (N)", "tokens seen", "achieved_flops", "T", "B", "stage1_tokens", "model.n_params",
    "train/total tokens", "flops per step", "size (emb. excluded)", "time/token", "sample_tokens",
    "big_model_params", "n_params_by_layer",
]  # fmt: skip
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


@pytest.mark.parametrize("header", UNITS)
def test_a_header_that_looks_like_a_unit_is_one_line_with_the_flag(tmp_path, header):
    with pytest.raises(InputError) as caught:
        converted(tmp_path, D, header, "1e9")
    assert f"{header!r}: the header seems to name a unit" in str(caught.value) and "--unit tokens=UNIT: " in str(
        caught.value
    )
    assert str(caught.value).isprintable() and [path.name for path in tmp_path.iterdir()] == ["own.csv"]
    with pytest.raises(InputError) if header in ("consumed_samples", "seen batches") else nullcontext():
        converted(tmp_path, D, header, "1B")  # a cell with a unit is clear, if it does not count samples


@pytest.mark.parametrize("header", NO_UNITS)
def test_another_header_needs_no_unit(tmp_path, header):
    assert not any("multiplied" in remark for remark in converted(tmp_path, D, header, "1e9"))
    assert read_table(tmp_path / "t.csv")[D].tolist() == [1e9]


@pytest.mark.parametrize(("name", "header", "cell", "unit", "number"), STATED)
def test_a_stated_unit_is_applied_and_said(tmp_path, name, header, cell, unit, number):
    said = converted(tmp_path, name, header, cell, unit)
    assert read_table(tmp_path / "t.csv")[name].tolist()[-1] == number
    first = cell.partition(";")[0]
    times = [remark for remark in said if remark.startswith(f"{name}: multiplied by ")]
    assert len(times) == (unit != "1") and all(f", the stated unit, such as {first} as " in text for text in times)


@pytest.mark.parametrize(
    ("name", "header", "said"),
    [(N, "total_params", "parameters with one expert"), (N, "small_model_params", ""), (N, "log10_N", "parameters"),
     (N, "All parameters", "parameters with one"), ("loss", "train/loss", "held-out"), ("loss", "strained", ""),
     ("loss", "loss.training", "held-out"), ("num_experts", "log2_experts", "of a layer on all devices"),
     ("num_experts", "experts_per_gpu", "of a layer"), ("num_experts", "num_local_experts", ""),
     ("num_experts", "experts_per_layer", ""), ("num_experts", "total experts", "of a layer"),
     ("batch_size", "per_device_train_batch_size", "sequences of a step"), ("batch_size", "global_batch_size", ""),
     ("batch_size", "micro_batch", "sequences of a step"), ("batch_size", "batch_tokens", "sequences of a step"),
     ("batch_size", "batch (M)", "sequences of a step"), ("step", "steps (k)", "single steps"),
     ("step", "k_steps", "single steps"), ("step", "trainer/global_step", ""),
     ("sequence_length", "context (k)", "single tokens"),
     (N, "active params (incl. embeddings)", "or counted_embeddings"), (N, "N_with_emb", "or counted_embeddings"),
     (N, "N_non_embedding", ""), ("num_experts", "E/k", "of a layer"), ("num_experts", "expansion_rate", ""),
     ("num_experts", "sparsity (E / top_k)", "of a layer")],
)  # fmt: skip
def test_a_header_of_another_quantity_has_a_remark(tmp_path, name, header, said):
    cells = {"run": "a", "num_experts": "1", N: "1e7", "loss": "3", "batch_size": "8", "step": "9"}
    cells["sequence_length"] = "9"
    names = [header if key == name else key for key in cells]
    (tmp_path / "own.csv").write_text("\n".join(map(",".join, (names, cells.values()))))
    columns = {"hyper_id": "run", "loss_validation": "loss"} | {"loss_validation" if name == "loss" else name: header}
    remarks = convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", columns).remarks
    assert [said in remark for remark in remarks if "another quantity" in remark] == [True] * bool(said)


@pytest.mark.parametrize(
    ("header", "other", "said"),
    [("loss", "eval_loss", True), ("lm loss", "lm loss validation", True), ("val_loss", "test_loss", False),
     ("loss", "evaluate_lossless", False)],
)  # fmt: skip
def test_a_loss_beside_a_loss_on_held_out_text_has_a_remark(tmp_path, header, other, said):
    (tmp_path / "own.csv").write_text(f"run,num_experts,{N},{header},{other}\na,1,1e7,3,3.1\n")
    remarks = convert_runs(
        tmp_path / "own.csv", tmp_path / "t.csv", {"hyper_id": "run", "loss_validation": header}
    ).remarks
    assert (f"loss_validation: is the column '{header}', although there is also '{other}'" in remarks) == said


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


@pytest.mark.parametrize(("header", "k", "said"), [("active params", 2, 1), ("active params", 1, 0), ("params", 2, 0)])
def test_active_parameters_of_several_experts_have_a_remark(tmp_path, header, k, said):
    (tmp_path / "own.csv").write_text(f"run,num_experts,k,{header},loss_validation\na,8,{k},1e7,3\nb,1,1,1e7,3.2\n")
    columns = {"hyper_id": "run", N: header}
    done = convert_runs(tmp_path / "own.csv", tmp_path / "t.csv", columns, {"router_type": "Top-K"})
    assert sum("seems to count k experts; needed: parameters with one expert" in each for each in done.remarks) == said
