import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.reference.laws import fine_grained, hoffmann, joint, planning
from routelaws.reference.tests.strategies_additive import CASES

FINE_GRAINED = fine_grained.PUBLISHED["E=64"].coefficients
JOINT = joint.PUBLISHED["joint"].coefficients

COMPUTE_OPTIMAL = (
    # Krajewski et al. 2024, table 2, E = 64: active parameters, D, G, FLOPs, loss; then our D, FLOPs and loss from
    # their rounded coefficients.
    (100e6, 4.37e9, 8, 2.95e18, 3.133, "4.18e+09", "2.82e+18", "3.119"),
    (1e9, 28.94e9, 16, 1.93e20, 2.491, "2.78e+10", "1.86e+20", "2.479"),
    (3e9, 72.90e9, 16, 1.41e21, 2.245, "7.03e+10", "1.37e+21", "2.233"),
    (7e9, 137.60e9, 32, 6.46e21, 2.076, "1.33e+11", "6.24e+21", "2.065"),
    (70e9, 941.07e9, 32, 4.16e23, 1.694, "9.13e+11", "4.05e+23", "1.685"),
    (300e9, 2.96e12, 64, 5.69e24, 1.503, "2.87e+12", "5.52e+24", "1.494"),
    (1e12, 7.94e12, 64, 4.97e25, 1.367, "7.72e+12", "4.84e+25", "1.359"),
)

OPTIMA = {
    # Ludziejewski et al. 2025, table 1: N and D in billions, E = 1, 2, 4, 8, 16, 32; then our losses.
    1e20: ([1.7, 1.5, 1.2, 0.99, 0.81, 0.669], [9.7, 11.4, 13.9, 17, 20.7, 24.9]),
    1e21: ([5.7, 5, 4.4, 3.8, 3.3, 2.85], [29.3, 33, 38, 44.3, 51.2, 58.4]),
    1e22: ([18.8, 17.4, 15.8, 14.4, 13.2, 12.2], [88.6, 96, 105.4, 115.8, 126.5, 136.9]),
}
LOSSES = {
    1e20: [2.5897, 2.5745, 2.5540, 2.5291, 2.5013, 2.4724],
    1e21: [2.3502, 2.3354, 2.3164, 2.2945, 2.2713, 2.2483],
    1e22: [2.1575, 2.1434, 2.1262, 2.1071, 2.0878, 2.0694],
}

PER_EXPERTS = {
    # Table 4: m, mu, n, nu.
    1: (30.3640, -0.1817, 53.9838, -0.1965),
    2: (27.7982, -0.1780, 66.8401, -0.2065),
    4: (24.8462, -0.1731, 87.7022, -0.2192),
    8: (21.8330, -0.1676, 119.9126, -0.2338),
    16: (19.0159, -0.1617, 167.5073, -0.2494),
    32: (16.5424, -0.1557, 234.6726, -0.2652),
}

BEST_EXPERTS = {
    # Table 2: the best E at 24, 80 and 640 GB, with a cache of 16k tokens; 32 stands for "32 or more".
    1e21: (16, 32, 32),
    1e22: (4, 16, 32),
    1e23: (1, 8, 32),
    1e24: (1, 1, 16),
}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row[0]:.0e}", marks=[pytest.mark.slow] * (0 < i < len(COMPUTE_OPTIMAL) - 1))
        for i, row in enumerate(COMPUTE_OPTIMAL)
    ],
)
def test_the_compute_optimal_table_of_fine_grained_experts(row):
    """G equals the G of the table. D, FLOPs and loss differ within the rounding of the printed coefficients."""
    active, tokens, granularity, flops, loss, *ours = row
    best = planning.fine_grained_for_active(active, 64, FINE_GRAINED)
    assert best.granularity == granularity
    check("laws.planning.active", abs(best.active_parameters / active - 1))
    check("laws.planning.fine_grained", abs(best.tokens / tokens - 1))
    check("laws.planning.fine_grained", abs(best.flops / flops - 1))
    check("laws.planning.fine_grained_loss", abs(best.loss - loss))
    assert [f"{best.tokens:.2e}", f"{best.flops:.2e}", f"{best.loss:.3f}"] == ours


def test_all_optima_of_the_joint_table():
    for flops, (sizes, tokens) in OPTIMA.items():
        found = [planning.joint_optimum(planning.Budget(flops), E, JOINT) for E in planning.EXPERT_COUNTS]
        for best, size, data in zip(found, sizes, tokens, strict=True):
            check("laws.planning.joint_size", abs(best.active_parameters / (size * 1e9) - 1))
            check("laws.planning.joint_tokens", abs(best.tokens / (data * 1e9) - 1))
            check("laws.planning.spent", abs(6 * best.active_parameters * best.tokens / flops - 1))
        assert [round(best.loss, 4) for best in found] == LOSSES[flops]


@pytest.mark.parametrize("experts", PER_EXPERTS)
def test_the_joint_law_at_one_number_of_experts(experts):
    m, mu, n, nu = PER_EXPERTS[experts]
    found = joint.at_experts(experts, JOINT)
    assert found.c == JOINT.c
    check("laws.planning.per_experts", max(abs(found.m / m - 1), abs(found.n / n - 1)))
    check("laws.planning.per_experts", max(abs(found.mu / mu - 1), abs(found.nu / nu - 1)))
    one = found.m * 1e9**found.mu + found.n * 2e10**found.nu + found.c
    check("laws.additive.value", abs(joint.predict_joint(1e9, 2e10, experts, JOINT) / one - 1))


def test_the_best_number_of_experts():
    """E is within a factor of two of the E in the printed table, and the losses of both E are nearly equal."""
    same = 0
    for flops, row in BEST_EXPERTS.items():
        for gigabytes, printed in zip((24, 80, 640), row, strict=True):
            budget = planning.Budget(flops, memory=gigabytes * 1e9, cached_tokens=16_384)
            found = planning.joint_optima(budget, JOINT)
            assert [each.loss for each in found] == sorted(each.loss for each in found)
            assert all(each.memory <= budget.memory * (1 + 1e-9) for each in found)
            theirs = next(each for each in found if each.num_experts == printed)
            assert printed / 2 <= found[0].num_experts <= 2 * printed
            check("laws.planning.best_experts", theirs.loss - found[0].loss)
            same += found[0].num_experts == printed
    assert same == 9


def test_the_printed_formula_is_the_inverse_of_the_right_one():
    """ERRATUM: the printed G uses the same FLOPs for a model of another size, with a far higher loss."""
    for flops, (sizes, _) in OPTIMA.items():
        for experts, size in zip(planning.EXPERT_COUNTS, sizes, strict=True):
            printed_size, printed_tokens = planning.printed_joint_optimum(flops, experts, JOINT)
            best = planning.joint_optimum(planning.Budget(flops), experts, JOINT)
            check("laws.planning.spent", abs(6 * printed_size * printed_tokens / flops - 1))
            assert printed_size > 25 * size * 1e9
            assert joint.predict_joint(printed_size, printed_tokens, experts, JOINT) > best.loss + 0.1
            # Up to (flops/6)^(nu/(mu + nu)), each G is the inverse of the other.
            law = joint.at_experts(experts, JOINT)
            middle = (flops / 6) ** (law.nu / (law.mu + law.nu))
            check("laws.planning.inverse", abs(printed_size * best.active_parameters / middle**2 - 1))


BUDGETS = st.builds(
    planning.Budget,
    flops=st.floats(20, 25).map(lambda power: 10.0**power),
    memory=st.sampled_from([math.inf, 8e9, 24e9, 640e9]),
    cached_tokens=st.sampled_from([0.0, 16_384.0, 1e6]),
    inference_tokens=st.sampled_from([0.0, 1e10, 1e12]),
    bytes_per_number=st.sampled_from([1.0, 2.0]),
)


@given(law=CASES["joint"].laws, budget=BUDGETS, experts=st.sampled_from([1, 4, 32]))
def test_no_joint_model_on_a_grid_is_better(law, budget, experts):
    """The limits are FLOPs, memory, memory with a cache, and inference tokens, separately and together."""
    best = planning.joint_optimum(budget, experts, law)
    d = np.geomspace(64, 3e5, 2000)
    active = 2 * d * 50_257 + 13 * d**3 / 64
    total = 2 * d * 50_257 + (4 + 9 * experts) * d**3 / 64
    memory = budget.bytes_per_number * (total + 2 * budget.cached_tokens * d**2 / 64)
    tokens = (budget.flops - 2 * active * budget.inference_tokens) / (6 * active)
    fits = (memory <= budget.memory) & (tokens >= 1)
    losses = joint.predict_joint(active[fits], tokens[fits], experts, law)
    assert best.loss <= losses.min() * (1 + 1e-12)
    assert best.memory <= budget.memory * (1 + 1e-9)
    spent = best.active_parameters * (6 * best.tokens + 2 * budget.inference_tokens)
    check("laws.planning.spent", abs(spent / budget.flops - 1))
    again = joint.predict_joint(best.active_parameters, best.tokens, experts, law)
    check("laws.additive.value", abs(again / best.loss - 1))


@given(law=CASES["hoffmann"].laws, flops=st.floats(18, 26).map(lambda power: 10.0**power))
def test_hoffmann_s_optimum(law, flops):
    """The derivative of the loss is 0 at the N of the formula. The optimum uses all FLOPs."""
    best = planning.hoffmann_optimum(flops, law)
    ratio = law.alpha * law.a / (law.beta * law.b)
    size = (ratio * (flops / 6) ** law.beta) ** (1 / (law.alpha + law.beta))
    check("laws.planning.location", abs(math.log(best.parameters / size)))
    check("laws.additive.value", abs(best.loss / hoffmann.predict_hoffmann(size, flops / 6 / size, law) - 1))
    check("laws.planning.spent", abs(6 * best.parameters * best.tokens / flops - 1))


@given(law=CASES["fine-grained"].laws, flops=st.floats(17, 26).map(lambda power: 10.0**power))
def test_no_fine_grained_model_on_a_grid_is_better(law, flops):
    best = planning.fine_grained_optimum(flops, 64, law)
    d = np.geomspace(64, flops ** (1 / 3), 500)[:, None]
    every = np.array(planning.GRANULARITIES)
    tokens = flops / fine_grained.fine_grained_flops(d, 64, every)
    size = fine_grained.fine_grained_parameters(d, 64)
    assert best.loss <= fine_grained.predict_fine_grained(size, tokens, every, law).min() * (1 + 1e-12)
    spent = (72 * best.d_model**2 + 14 * best.d_model * 64 * best.granularity) * best.d_model / 64 * best.tokens
    check("laws.planning.spent", abs(spent / flops - 1))
    check("laws.planning.spent", abs(best.total_parameters / (best.active_parameters * (8 * 64 + 4) / 12) - 1))


def test_the_narrowest_model_is_tried():
    """With FLOPs for little more than one token, the best model is the narrowest."""
    flops = 3 * float(fine_grained.fine_grained_flops(planning.LEAST_WIDTH, 64, 1))
    assert planning.fine_grained_optimum(flops, 64, FINE_GRAINED).d_model == planning.LEAST_WIDTH
