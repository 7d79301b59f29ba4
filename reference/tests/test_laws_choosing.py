"""Choosing a model: the best size equals the best of a fine grid for every budget, and shares are exact."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.reference.laws import choosing, fine_grained, hoffmann, joint, planning
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import LAW

HOFFMANN = hoffmann.PUBLISHED["besiroglu"].coefficients
JOINT = joint.PUBLISHED["joint"].coefficients
FINE_GRAINED = fine_grained.PUBLISHED["E=64"].coefficients
KNOTS = np.array([1.5e7, 5.5e7, 1.3e8, 1.3e9])
"""Sizes of a table with known costs."""


def nothing(size):
    return 0.0 * size


def by_size(law=HOFFMANN) -> choosing.Option:
    """Return Hoffmann's law with 6 N FLOPs of training and 2 N of inference for each token, and no cache."""
    return choosing.Option(
        lambda N, D: hoffmann.predict_hoffmann(N, D, law),
        lambda N: 6 * N, lambda N: 2 * N, lambda N: N, nothing, 1e6, 1e13,
    )  # fmt: skip


def by_width(experts: float) -> choosing.Option:
    return choosing.Option(
        lambda d, D: joint.predict_joint(joint.joint_active(d), D, experts, JOINT),
        lambda d: 6 * joint.joint_active(d),
        lambda d: 2 * joint.joint_active(d),
        lambda d: joint.joint_total(d, experts),
        lambda d: joint.joint_cache(d, 1.0),
        64.0,
        1e6,
        "width d",
    )


def by_granularity(granularity: float) -> choosing.Option:
    return choosing.Option(
        lambda d, D: fine_grained.predict_fine_grained(
            fine_grained.fine_grained_parameters(d, 64.0), D, granularity, FINE_GRAINED
        ),
        lambda d: fine_grained.fine_grained_flops(d, 64.0, granularity),
        lambda d: fine_grained.fine_grained_flops(d, 64.0, granularity) / 3,
        lambda d: fine_grained.fine_grained_parameters(d, 64.0),
        nothing,
        64.0,
        1e6,
        "width d",
    )


def of_a_table(experts: float) -> choosing.Option:
    """Return a law without D, with costs interpolated between the sizes of a table."""

    def between(values):
        return lambda N: np.exp(np.interp(np.log(N), np.log(KNOTS), np.log(values)))

    return choosing.Option(
        lambda N, D: predict_loss(N, experts, LAW),
        between(7 * KNOTS), between(3 * KNOTS), between(KNOTS * (1 + 0.3 * (experts - 1))),
        between([1e4, 2e4, 4e4, 9e4]),
        KNOTS[0], KNOTS[-1],
    )  # fmt: skip


OPTIONS = {
    "dense": by_size(), "joint, dense": by_width(1.0), "joint, 8 experts": by_width(8.0),
    "fine-grained": by_granularity(8.0),
    "table, dense": of_a_table(1.0), "table, 64 experts": of_a_table(64.0),
}  # fmt: skip


@st.composite
def budgets(draw) -> planning.Budget:
    memory = draw(st.one_of(st.just(math.inf), st.floats(7, 13).map(lambda log: 10.0**log)))
    inference = draw(st.one_of(st.just(0.0), st.floats(8, 13).map(lambda log: 10.0**log)))
    cached = draw(st.sampled_from([0.0, 1e3, 1e6]))
    return planning.Budget(
        10.0 ** draw(st.floats(15, 26)), memory, cached, inference, draw(st.sampled_from([0.5, 2.0, 4.0]))
    )


@pytest.mark.parametrize("name", OPTIONS)
@given(budget=budgets(), tokens=st.one_of(st.none(), st.floats(8, 13).map(lambda log: 10.0**log)))
def test_no_size_of_a_grid_is_better(name, budget, tokens):
    """The choice has the stated costs, within the budget."""
    option, sizes = OPTIONS[name], np.geomspace(OPTIONS[name].least, OPTIONS[name].most, 300)
    spent = option.serve(sizes) * budget.inference_tokens
    data = (budget.flops - spent) / option.train(sizes) if tokens is None else np.full(300, tokens)
    memory = budget.bytes_per_number * (option.held(sizes) + budget.cached_tokens * option.cache(sizes))
    fits = (data >= 1) & (option.train(sizes) * data + spent <= budget.flops * (1 + 1e-12)) & (memory <= budget.memory)
    try:
        best = choosing.best_choice(option, budget, tokens)
    except ValueError:
        assert not fits[0]
        return
    losses = np.where(fits, option.loss(sizes, np.maximum(data, 1.0)), np.inf)
    check("laws.choosing.loss", max(best.loss / losses.min() - 1, 0.0))
    size = np.array([best.size])
    flops = option.train(size) * best.tokens + option.serve(size) * budget.inference_tokens
    held = option.held(size) + budget.cached_tokens * option.cache(size)
    for claimed, own in (
        (best.flops, flops[0]),
        (best.memory, budget.bytes_per_number * held[0]),
        (best.loss, float(option.loss(size, best.tokens)[0])),
    ):
        check("laws.choosing.cost", abs(claimed / own - 1))
    check("laws.choosing.cost", max(best.flops / budget.flops, best.memory / budget.memory) - 1)
    assert tokens is None or best.tokens == tokens


@given(flops=st.floats(18, 26), experts=st.sampled_from([1.0, 4.0, 32.0]), memory=st.sampled_from([math.inf, 1e11]))
def test_best_choice_is_the_optimum_of_one_law(flops, experts, memory):
    budget = planning.Budget(10.0**flops, memory, cached_tokens=1e3, inference_tokens=1e9)
    best, own = choosing.best_choice(by_width(experts), budget), planning.joint_optimum(budget, experts, JOINT)
    check("laws.choosing.loss", abs(best.loss / own.loss - 1))
    plain = choosing.best_choice(by_size(), planning.Budget(10.0**flops))
    check("laws.choosing.loss", abs(plain.loss / planning.hoffmann_optimum(10.0**flops, HOFFMANN).loss - 1))


def test_best_choice_by_hand():
    best_choice, Budget = choosing.best_choice, planning.Budget
    # With 2 bytes for each parameter, 4e9 bytes hold 2e9 parameters, fewer than the optimum for 1e22 FLOPs.
    found = best_choice(by_size(), Budget(1e22, memory=4e9))
    assert f"{found.size:.6g} {found.tokens:.6g} {found.memory:.6g}" == "2e+09 8.33333e+11 4e+09"
    # For a given D, the largest model within the FLOPs: 6 · N · 1e10 = 6e19.
    found = best_choice(by_size(), Budget(6e19), 1e10)
    assert f"{found.size:.6g} {found.flops:.6g}" == "1e+09 6e+19"
    # Three tokens of inference cost as much as one token of training: 6 · N · 1e10 + 2 · N · 3e10 = 6e19.
    found = best_choice(by_size(), Budget(6e19, inference_tokens=3e10), 1e10)
    assert f"{found.size:.6g} {found.flops:.6g}" == "5e+08 6e+19"
    # Twenty tokens for each parameter: 6 · N · 20 N = 1.2e20.
    found = best_choice(by_size(), Budget(1.2e20), lambda N: 20 * N)
    assert f"{found.size:.6g} {found.tokens:.6g}" == "1e+09 2e+10"


@given(st.lists(st.lists(st.sampled_from([2.0, 2.5, 3.0, math.nan, math.inf]), min_size=3, max_size=3), min_size=1))
def test_win_shares(losses):
    shares, counted = choosing.win_shares(np.array(losses))
    assert counted == sum(all(map(math.isfinite, line)) for line in losses)
    wins = [line.index(min(line)) for line in losses if all(map(math.isfinite, line))]
    assert not wins or (shares * counted).round().tolist() == [wins.count(i) for i in range(3)]
