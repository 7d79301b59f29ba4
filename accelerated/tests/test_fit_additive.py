"""The columns of the additive laws, read from a results table."""

import numpy as np
import pandas as pd
import pytest

from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.results.rows import COLUMNS, law_columns
from routelaws.accelerated.tables.selection import RouterRows, select_rows


def columns_of(law: str, **columns) -> list[list[float]]:
    frame = pd.DataFrame(columns | {"loss_validation": [3.0] * len(columns["step"])})
    found, _ = law_columns(RouterRows("Hash", frame, []), LAWS[law], "loss_validation")
    return [column.tolist() for column in found]


def test_tokens_are_those_of_the_table_or_steps_of_its_batches():
    size = {"step": [10, 20], "dense_parameter_count": [1e8, 1e8]}
    own = {"batch_size": [4, 8], "sequence_length": [100, 100]}
    assert columns_of("hoffmann", **size, **own) == [[1e8, 1e8], [4000, 16000]]
    assert columns_of("hoffmann", **size, **own, tokens=[777, np.nan])[1] == [777, 16000]


def test_each_column_of_a_law_follows_from_its_row():
    """The table has a dense run without k and G, a run with two of 8 experts, and a run with four of 64 narrow experts
    (G = 4).
    """
    frame = pd.DataFrame(
        {
            "step": [10, 20, 30], "dense_parameter_count": [1e8, 1e8, 3e8], "num_experts": [1, 8, 64],
            "k": [np.nan, 2, 4], "granularity": [np.nan, 1, 4], "total_parameter_count": [1e8, 5e8, 4e9],
            "d_model": [512, 512, 1024], "vocab_size": 1000, "batch_size": 4, "sequence_length": 100,
            "flops_per_step": [8e10, 9e10, 2e11], "loss_validation": 3.0,
        }
    )  # fmt: skip
    wanted = {
        "dense_parameters": [1e8, 1e8, 3e8],
        "num_experts": [1, 8, 64],
        "tokens": [4e3, 8e3, 12e3],
        "total_parameters": [1e8, 5e8, 4e9],
        "active_parameters": [1e8 + 1.024e6, 1e8 + 1.024e6, 3e8 + 2.048e6],
        "granularity": [1, 1, 4],
        "sparsity": [0, 0.75, 0.9375],
        "flops": [3 * 8e10 * 10, 3 * 9e10 * 20, 3 * 2e11 * 30],
        "teraflops": [8e10 / 400 * 2048e-12, 9e10 / 400 * 2048e-12, 2e11 / 400 * 2048e-12],
        "utilisation": [1e8 * 400 / 8e10, 5e8 * 400 / 9e10, 4e9 * 400 / 2e11],
    }
    law = LAWS["sparsity"]._replace(columns=tuple(wanted))
    found, _ = law_columns(RouterRows("Hash", frame, []), law, "loss_validation")
    for (name, values), column in zip(wanted.items(), found, strict=True):
        assert column.tolist() == pytest.approx(values, rel=1e-12), name
    assert set(wanted) == {*COLUMNS, "num_experts"}, "a column is missing here"


def test_a_law_of_one_number_of_experts_takes_the_commonest_of_them():
    """Dense runs and runs with other E have other coefficients. A condition on num_experts overrides the rule. Of two
    equally common E, the larger is taken."""
    rows = {"router_type": ["Dense", *["Top-K"] * 5, "Hash", "Hash"], "num_experts": [1, 8, 8, 8, 4, 4, 16, 2]}
    frame = pd.DataFrame(rows | {"hyper_id": range(8), "step": 1, "loss_validation": 3.0, "granularity": 1})
    axes = LAWS["fine-grained"].axes
    fine, other = sorted(select_rows(frame, axes=axes), key=lambda selection: -len(selection.frame))
    assert (fine.router, fine.frame["num_experts"].tolist()) == ("Top-K", [8, 8, 8])
    assert (other.router, other.frame["num_experts"].tolist()) == ("Hash", [16])
    assert [each["reason"] for each in fine.left_out] == [
        "dense, but the law is for one number of experts", *["num_experts is not the most common of Top-K, 8"] * 2
    ]  # fmt: skip
    named = select_rows(frame, "num_experts in (1, 4)", axes=axes)
    assert [each.frame["num_experts"].tolist() for each in named] == [[1, 4, 4]]
