"""Redundant columns that disagree: a remark with both numbers, or an error."""

import numpy as np
import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.conformance.suite.strategies import released_file
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
            kind |= dict(shared_experts=64, latent_width=64, router_bias=True) if shared else {}
            of = count(*shape[:4], router, experts, k, granularity=granularity, **kind)
            model = dict(zip(("d_model", "num_blocks", "num_heads", "kqv_size"), shape, strict=False))
            rows.append(
                model | {
                    "hyper_id": len(rows), "step": 100, "router_type": router, "num_experts": experts, "k": k,
                    "routing_frequency": 0.5, "granularity": granularity, "model_options": options,
                    "routing_options": "upper shared-64 latent-64 router-bias" if shared else "upper",
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
)  # fmt: skip


@pytest.mark.parametrize("columns", RIGHT, ids=str)
def test_nothing_is_said_of_what_agrees(tmp_path, columns):
    assert remarks(runs(**columns), tmp_path) == []


def test_an_n_that_counts_all_experts_is_remarked_on(tmp_path):
    experts = np.repeat([1, 8, 64], 2)
    frame = pandas.concat([runs(), runs()], ignore_index=True).iloc[:6]
    frame = frame.assign(hyper_id=range(6), num_experts=experts, router_type=np.where(experts > 1, "Mine", "Dense"))
    frame = frame.assign(k=1, dense_parameter_count=np.tile([2e7, 8e7], 3)).drop(columns="total_parameter_count")
    assert remarks(frame, tmp_path) == []
    active = frame["dense_parameter_count"] * (1 + experts / 100)  # with the weights of the router
    assert remarks(frame.assign(dense_parameter_count=active), tmp_path) == []
    total = frame["dense_parameter_count"] * (0.4 + 0.6 * experts)
    assert remarks(frame.assign(dense_parameter_count=total), tmp_path) == [
        "dense_parameter_count: grows with num_experts (smallest N: 20,000,000 for E = 1, 104,000,000 for E = 8, "
        "776,000,000 for E = 64); N counts one expert, and total_parameter_count all experts"
    ]


def test_nothing_is_said_of_runs_of_our_own(tmp_path):
    frame = shaped()
    assert remarks(frame, tmp_path) == []
    assert remarks(frame.drop(columns=["num_blocks"]), tmp_path) == []  # without the shape, by N


def test_nothing_is_said_of_the_largest_models(tmp_path):
    large = {DENSE: [7e9, 1.1e12, 1.8e12, 4e11], TOTAL: "", "tokens": 4e13, "batch_size": ""}
    assert remarks(runs(**large), tmp_path) == []


@pytest.mark.released
def test_nothing_is_said_of_the_released_table():
    assert read_table(released_file("curves.csv.gz")).attrs["remarks"] == []


STEP_FLOPS = 2 * N * BATCH * LENGTH
DENSE, TOTAL, STEP, TRAINING = "dense_parameter_count", "total_parameter_count", "flops_per_step", "training_flops"
FAR_OFF = (
    {"tokens": TOKENS * 34}, {"tokens": TOKENS / 128}, {STEP: 3 * STEP_FLOPS}, {STEP: STEP_FLOPS / BATCH},
    {TRAINING: 2 * N * TOKENS}, {TRAINING: 6 * N * TOKENS * 30}, {STEP: STEP_FLOPS * 30},
    {TOTAL: N * 30},
)  # fmt: skip
"""Remarks name both numbers and a cause."""
IMPLAUSIBLE = (
    {DENSE: N / 1e6, TOTAL: "", "tokens": "", "batch_size": ""},
    {"tokens": TOKENS / 1e9, "batch_size": ""}, {"tokens": TOKENS * 1e6, "batch_size": ""},
    {DENSE: N * 1e6, TOTAL: "", "tokens": "", "batch_size": ""},
    {DENSE: N * 1e6, TOTAL: "", "batch_size": "", "tokens": TOKENS * 1e3},
    {DENSE: N * [1, 1, 1e4, 1], TOTAL: "", "batch_size": ""},
    {DENSE: N / 1e3, TOTAL: "", "tokens": 260, "batch_size": ""}, {"tokens": [1e9, 2e4, 1e9, 1e9], "batch_size": ""},
    {DENSE: N * [1, 1, 1e-7, 1], TOTAL: "", "tokens": "", "batch_size": ""},
    {TRAINING: 18.5, "tokens": "", "batch_size": ""}, {"batch_size": BATCH * LENGTH, "tokens": ""},
)  # fmt: skip
"""No language model has these numbers."""
APART = (
    {"tokens": TOKENS / 1e9}, {"tokens": TOKENS / STEPS}, {"tokens": TOKENS / LENGTH}, {"batch_size": BATCH * LENGTH},
    {"tokens": TOKENS * 7e3}, {STEP: 6 * N * TOKENS}, {STEP: 6 * N * TOKENS, "batch_size": ""}, {STEP: 2 * N * TOKENS},
    {STEP: 2 * N}, {STEP: STEP_FLOPS / 1e12}, {STEP: STEP_FLOPS * 2e4},
    {TRAINING: 6 * N * TOKENS / 8.64e19}, {TRAINING: 6 * N * TOKENS / STEPS}, {TRAINING: 6 * N * TOKENS / 1e18},
    {TRAINING: 6 * N * TOKENS / 1e15}, {TRAINING: 6 * N * TOKENS * 2e4}, {TOTAL: N * 1e6},
)  # fmt: skip
"""A thousandfold difference is an error."""
OWN = shaped()
EMBEDDING = 32_000 * OWN["d_model"]
FAR_OFF_OWN = (
    *({name: OWN[name] + times * EMBEDDING for name in (DENSE, TOTAL)} for times in (1, 2)),
    {STEP: OWN[STEP] * 3}, {STEP: OWN[STEP] * 40}, {TOTAL: OWN[TOTAL] * 2.5},
    {TOTAL: OWN[TOTAL] * 40},
)  # fmt: skip


def said_of(frame, tmp_path) -> list[str]:
    try:
        return remarks(frame, tmp_path)
    except InputError as error:
        lines = str(error).splitlines()
        assert all(line.isprintable() for line in lines)
        return ["error: " + line.replace(f"{tmp_path}/", "") for line in lines]


def test_each_number_that_disagrees_has_its_approved_remark(tmp_path, approved):
    lines = []
    for made, cases in ((runs, FAR_OFF + IMPLAUSIBLE + APART), (shaped, FAR_OFF_OWN)):
        for columns in cases:
            lines += [f"# {', '.join(columns)}", *said_of(made(**columns), tmp_path)]
    approved("disagreements.txt", "\n".join(lines) + "\n")


def test_experts_that_are_counted_as_narrow_ones(tmp_path):
    """P of the log is more than half of the P for these numbers of experts."""
    frame = OWN[OWN["granularity"] == 4].reset_index(drop=True).assign(hyper_id=range(len(SIZES)), k=1, num_experts=8)
    wide, narrow = (
        np.array([count(*shape[:4], "Top-K", E, granularity=2).total_parameters for shape in SIZES.values()])
        for E in (8, 4)
    )
    assert (narrow > wide / 2).all()
    frame = frame.assign(granularity=2, routing_options="", flops_per_step="", total_parameter_count=narrow)
    [said] = remarks(frame, tmp_path)
    assert "differs in 6 of 6 rows" in said and "(convert --columns narrow_experts=... narrow_k=..." in said
    assert remarks(frame.assign(total_parameter_count=wide), tmp_path) == []


def test_one_run_that_is_far_off_is_named(tmp_path):
    """The row of a later run among many. Rows of step 0 and 1 have no tokens to compare."""
    tokens = [TOKENS, TOKENS * 3, TOKENS, TOKENS]
    [said] = remarks(runs(tokens=tokens), tmp_path)
    assert said.startswith("tokens: differs in 1 of 4 rows (row 2: 7,864,320,000, but 2,621,440,000 by ")
    assert remarks(runs(step=[0, 1, 0, 1], tokens=[0, 7e9, 0, 9e9]), tmp_path) == []


def test_a_refusal_names_the_row_that_is_a_thousandfold_off(tmp_path):
    frame = runs(tokens=[TOKENS * 10.0, TOKENS, TOKENS * 1e4, TOKENS])
    with pytest.raises(InputError, match=f"row 3, column tokens: '{TOKENS * 10_000}'"):
        remarks(frame, tmp_path)
