"""Redundant columns that disagree: a remark with both numbers, or an error."""

import re

import numpy as np
import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.conformance.engine.data_folder import released_file
from routelaws.reference.accounting import SIZES, count

STEPS, BATCH, LENGTH = 5000, 128, 4096
TOKENS = STEPS * BATCH * LENGTH


def runs(**columns) -> pandas.DataFrame:
    """Return three runs of an unknown router and shape with E = 16 and k = 2, and a dense run."""
    size = np.array([2e7, 2e8, 2e9, 2e7])
    experts = np.array([16, 16, 16, 1])
    return pandas.DataFrame(
        {
            "hyper_id": range(4), "step": STEPS, "router_type": ["Mine"] * 3 + ["Dense"], "num_experts": experts,
            "k": [2, 2, 2, 1], "dense_parameter_count": size, "total_parameter_count": size * (experts * 0.6 + 0.4),
            "tokens": TOKENS, "batch_size": BATCH, "sequence_length": LENGTH, "loss_validation": 3.0,
        }
    ).assign(**columns)  # fmt: skip


def shaped(**columns) -> pandas.DataFrame:
    """Return runs of every size of the paper, as a sweep writes them."""
    rows = []
    for label, shape in SIZES.items():
        for router, experts, k, granularity, options in (
            ("Dense", 1, 1, 1, "gelu relative"), ("S-Base", 512, 1, 1, "gelu relative"),
            ("Top-K", 8, 4, 8, "swiglu rotary"), ("Expert-Choice", 4, 1, 1, "gelu rotary"),
            ("MoT", 64, 1, 1, "swiglu relative"), ("Top-K", 2, 1, 4, "gelu relative"),
        ):  # fmt: skip
            kind = dict(zip(("activation", "positions"), options.split(), strict=True))
            shared = (router, experts) == ("Top-K", 2)  # 64 shared experts; without them P would be a third
            kind |= dict(shared_experts=64, router_bias=True) if shared else {}
            of = count(*shape[:4], router, experts, k, granularity=granularity, **kind)
            model = dict(zip(("d_model", "num_blocks", "num_heads", "kqv_size"), shape, strict=False))
            rows.append(
                model | {
                    "hyper_id": len(rows), "step": 100, "router_type": router, "num_experts": experts, "k": k,
                    "routing_frequency": 0.5, "granularity": granularity, "model_options": options,
                    "routing_options": "upper shared-64 router-bias" if shared else "upper",
                    "dense_parameter_count": of.dense_parameters, "total_parameter_count": of.total_parameters,
                    "flops_per_step": of.flops_per_token * 256 * 2048, "tokens": 100 * 256 * 2048, "batch_size": 256,
                    "sequence_length": 2048, "vocab_size": 32_000, "model_size_label": label, "loss_validation": 3.0,
                }
            )  # fmt: skip
    return pandas.DataFrame(rows).assign(**columns)


def remarks(frame, tmp_path) -> list[str]:
    frame.to_csv(tmp_path / "t.csv", index=False)
    return read_table(tmp_path / "t.csv").attrs["remarks"]


N = runs()["dense_parameter_count"]
RIGHT = (
    {}, {"tokens": ""}, {"step": 1}, {"step": TOKENS}, {"flops_per_step": 2 * N * BATCH * LENGTH},
    {"flops_per_step": 5 * N * BATCH * LENGTH * 2}, {"training_flops": 6 * N * TOKENS}, {"tokens": TOKENS * 1.05},
    {"training_flops": 6 * N * TOKENS, "batch_size": "", "sequence_length": ""},
    {"unique_tokens": TOKENS / 4, "epochs": 4}, {"model_size_label": ["20M", "0.2b", "32B", "tiny"]},
)  # fmt: skip


@pytest.mark.parametrize("columns", RIGHT, ids=str)
def test_nothing_is_said_of_what_agrees(tmp_path, columns):
    assert remarks(runs(**columns), tmp_path) == []


def test_nothing_is_said_of_runs_of_our_own(tmp_path):
    frame = shaped()
    assert remarks(frame, tmp_path) == []
    assert remarks(frame.drop(columns=["num_blocks"]), tmp_path) == []  # without the shape, by N


@pytest.mark.released
def test_nothing_is_said_of_the_released_table():
    assert read_table(released_file("curves.csv.gz")).attrs["remarks"] == []


STEP_FLOPS = 2 * N * BATCH * LENGTH
DENSE, TOTAL, STEP, TRAINING = "dense_parameter_count", "total_parameter_count", "flops_per_step", "training_flops"
FAR_OFF = [  # changed columns; the wrong column, its first number and the number by other columns, the cause
    ({"tokens": TOKENS * 34}, "tokens", "89,128,960,000, but 2,621,440,000 by step * batch", "is batch_size the siz"),
    ({"tokens": TOKENS / 128}, "tokens", "20,480,000, but 2,621,440,000 by step", "is batch_size the size on one dev"),
    ({STEP: 3 * STEP_FLOPS}, STEP, "6.291e+13, but 2.097e+13 by N and", "does it include the backward pass?"),
    ({STEP: STEP_FLOPS / BATCH}, STEP, "163,840,000,000, but 2.097e+13 to", "is it the FLOPs of one sequence?"),
    ({TRAINING: 2 * N * TOKENS}, TRAINING, "1.049e+17, but 3.146e+17 to", "is it the forward pass alone?"),
    ({"unique_tokens": TOKENS / 2, "epochs": 4}, "epochs", "4, but 2 by tokens / unique_tokens", "is one of the thr"),
    ({TOTAL: N * 30}, TOTAL, "600,000,000, but 20,000,000 to 320,000,000 by dense", "does it count the embedding, or "),
    ({"model_size_label": "6M"}, DENSE, "20,000,000, but 375,000 to 6,000,000 by model_size", "which of the two is ri"),
]  # fmt: skip
OWN = shaped()
EMBEDDED = {name: OWN[name] + 32_000 * OWN["d_model"] for name in (DENSE, TOTAL)}
FAR_OFF_OWN = [
    (
        EMBEDDED,
        DENSE,
        "32,911,360, but 16,527,360 by the shape of the",
        "does it count the embedding, vocab",
    ),
    ({STEP: OWN[STEP] * 3}, STEP, "1.337e+14, but 4.456e+13 by the shape of", "does it include the backward pass?"),
    (
        {TOTAL: OWN[TOTAL] * 2.5},
        TOTAL,
        "41,318,400, but 16,527,360 by the shape",
        "does it count the embedding and",
    ),
]
IMPLAUSIBLE = [
    ({TOTAL: N}, "dense_parameter_count: as large as total_parameter_count in 3 of 4 rows with several experts"),
    (
        {DENSE: N / 1e6, TOTAL: "", "tokens": "", "batch_size": ""},
        "dense_parameter_count: the median is 110;",
    ),
    ({"tokens": TOKENS / 1e9, "batch_size": ""}, "tokens: at most 1.31e-07 for each parameter; are tokens in mill"),
    ({"tokens": TOKENS * 1e6, "batch_size": ""}, "tokens: in the middle 7.21e+07 for each parameter; is dense_p"),
]
APART = [
    ({"tokens": TOKENS / 1e9}, "tokens", "2,621,440,000 by step * batch_size *", "is tokens in billions?"),
    ({"tokens": TOKENS / STEPS}, "tokens", "2,621,440,000 by", "does tokens count one step only?"),
    ({"batch_size": BATCH * LENGTH}, "tokens", "1.074e+13 by", "does batch_size count tokens?"),
    ({STEP: 6 * N * TOKENS}, STEP, "2.097e+13 to", "is it the training FLOPs of the whole run, which"),
    ({STEP: 6 * N * TOKENS, "batch_size": ""}, STEP, "2.097e+13 to", "is it the training FLOPs of the whole"),
    ({STEP: 2 * N}, STEP, "2.097e+13 to", "is it the FLOPs of one token?"),
    ({STEP: STEP_FLOPS / 1e12}, STEP, "2.097e+13 to", "is flops_per_step in trillions?"),
    ({TRAINING: 6 * N * TOKENS / 8.64e19}, TRAINING, "3.146e+17 to", "is it in PF-days?"),
    ({TRAINING: 6 * N * TOKENS / STEPS}, TRAINING, "3.146e+17 to", "is it the FLOPs of one step?"),
    ({TOTAL: N * 1e6}, TOTAL, "20,000,000 to", "is dense_parameter_count in millions?"),
    ({"unique_tokens": 2.62, "epochs": 1}, "epochs", "1,000,549,618 by tokens", "is unique_tokens in billions?"),
    ({DENSE: N / 1e6, TOTAL: "", "model_size_label": "20M"}, DENSE, "1,250,000 to 20,000,000 by model_size_label",
     "is dense_parameter_count in millions?"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "column", "numbers", "cause"),
    [(runs(**columns), *said) for columns, *said in FAR_OFF]
    + [(shaped(**columns), *said) for columns, *said in FAR_OFF_OWN],
)
def test_what_is_far_off_is_remarked_on_with_both_numbers_and_a_cause(tmp_path, frame, column, numbers, cause):
    [said] = [each for each in remarks(frame, tmp_path) if each.startswith(f"{column}: far off in ")]
    assert f" of {len(frame)} rows (row 1: {numbers}" in said and f"); {cause}" in said, said


@pytest.mark.parametrize(("columns", "said"), IMPLAUSIBLE)
def test_what_no_language_model_has_is_remarked_on(tmp_path, columns, said):
    assert any(each.startswith(said) for each in remarks(runs(**columns), tmp_path))


@pytest.mark.parametrize(("columns", "column", "needed", "cause"), APART)
def test_what_is_a_thousandfold_apart_is_one_line(tmp_path, columns, column, needed, cause):
    with pytest.raises(InputError) as caught:
        remarks(runs(**columns), tmp_path)
    said = str(caught.value)
    assert re.search(rf": row 1, column {column}: '[^']+'; needed: {re.escape(needed)}.* rows\); {cause}", said), said
    assert said.isprintable()


def test_one_run_that_is_far_off_is_named(tmp_path):
    """The row of a later run among many. Rows of step 0 and 1 have no tokens to compare."""
    tokens = [TOKENS, TOKENS * 3, TOKENS, TOKENS]
    [said] = remarks(runs(tokens=tokens), tmp_path)
    assert said.startswith("tokens: far off in 1 of 4 rows (row 2: 7,864,320,000, but 2,621,440,000 by ")
    assert remarks(runs(step=[0, 1, 0, 1], tokens=[0, 7, 0, 9e9]), tmp_path) == []


def test_a_refusal_names_the_row_that_is_a_thousandfold_off(tmp_path):
    frame = runs(tokens=[TOKENS * 10.0, TOKENS, TOKENS * 1e4, TOKENS])
    with pytest.raises(InputError, match=f"row 3, column tokens: '{TOKENS * 10_000}'"):
        remarks(frame, tmp_path)
