"""The compiled runs of docs/pods.csv: the memory that `plan-mesh` plans, and the FLOPs that formulas count."""

import pytest

from benchmarks import pods
from routelaws.accelerated.operations.attention import parts_of
from routelaws.accelerated.training.devices.mesh_plan import parse_mesh, plan_device, sent_rows

ROWS = pods.read()


def name(row):
    return f"{row['slice']} {row['run']} {row['mesh']}".replace(" ", ",")


def test_the_plan_agrees_with_the_compiler_of_tpus():
    """The formulas come from rows with the use "fit"; the others were compiled later."""
    for row in ROWS:
        config = pods.config_of(row)
        shape = config.batch_size, config.sequence_length, config.dtype
        plan = plan_device(config.model, parse_mesh(row["mesh"]), *shape)
        state = plan.parameters + plan.optimizer
        assert state < int(row["arguments"]) < 1.08 * state, "the state, a batch and the rates"
    fit, check = ([pods.ratio(row) for row in ROWS if row["use"] == use] for use in ("fit", "check"))
    assert 0.92 < min(fit) and max(fit) < 1.6 and sum(each < 1.15 for each in fit) > 0.8 * len(fit)
    assert 0.92 < min(check) and max(check) < 1.3 and sum(each < 1.15 for each in check) > 0.7 * len(check)


def test_the_page_has_the_rows():
    text = (pods.TABLE.parent / "scale.md").read_text(encoding="utf-8")
    assert "\n".join(pods.page(ROWS)) in text


def products(config, mesh) -> float:
    """Return the FLOPs of matrix products for a token of a device in a training step."""
    model, length = config.model, config.sequence_length
    d, a = model.d_model, model.heads * model.kqv_size // mesh.model
    tokens = config.batch_size * length // mesh.shards()
    again = config.rematerialise  # the forward pass of the blocks runs twice, but its last product once
    loop = (model.num_routed or model.blocks) > 4 and not again  # two of attention's three products run again
    parts = parts_of(length, causal=True)
    projections, attention = 8 * d * a, 3 * 2 * length * a * (parts + 1) / (2 * parts)
    distances = 2 * d * a * length / tokens  # once for all sequences, and they need no gradient
    block = (3 + again) * (projections + attention) + loop * attention * 2 / 3 + (2 + again) * distances
    ffn = 16 * d * d / mesh.model
    dense = (3 + again / 2) * ffn
    # Between devices, experts are counted with all slots, and their last product runs again, too.
    routed = (sent_rows(model, tokens) / tokens * (3 + again) * ffn) if mesh.expert > 1 else model.k * dense
    routed += (3 + again) * 2 * d * model.expert_count
    total = model.blocks * block + (model.blocks - model.num_routed) * dense + model.num_routed * routed
    return total + 3 * 2 * model.vocab_size * d


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_formulas_count_the_flops_of_the_compiler(row):
    config, mesh = pods.config_of(row), parse_mesh(row["mesh"])
    tokens = config.batch_size * config.sequence_length // mesh.shards()
    assert int(row["flops"]) == pytest.approx(tokens * products(config, mesh), rel=0.025)
