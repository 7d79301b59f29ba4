"""Diagnostics of routers on known routings, and a run's report on its router."""

import dataclasses
import json
from itertools import permutations

import numpy as np
import pytest
import scipy.stats

from routelaws.accelerated.inspection import statistics
from routelaws.accelerated.training import router_report
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.router_report import RouterReport
from routelaws.reference import diagnostics

from .small_runs import make_run

TOKENS, EXPERTS = 4096, 8


@pytest.fixture
def random():
    return np.random.default_rng(0)


def shuffles(random, count=TOKENS):
    return np.stack([random.permutation(count) for _ in range(6)])


def test_random_routings_agree_by_chance(random):
    first, second = (np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :2] for _ in range(2))
    assert diagnostics.agreement(first, first[:, ::-1]) == 1
    assert abs(diagnostics.agreement(first, second) - 2 / EXPERTS) < 0.02
    mask = (first == second).all(axis=1)
    assert diagnostics.agreement(first, second, mask=mask) == 1


def test_routings_that_differ_in_the_numbers_of_experts_match(random):
    """Every expert finds its partner, for any order of a token's experts. Moved tokens do not agree."""
    first = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :2]
    order = random.permutation(EXPERTS)
    second = order[first][:, ::-1]
    found = diagnostics.matched_agreement(first, second, EXPERTS, shuffles(random))
    assert found.agreement == 1 and (found.partner == order).all() and found.common.sum() == 2 * TOKENS
    moved = second.copy()
    moved[: TOKENS // 4] = order[(first[: TOKENS // 4] + 4) % EXPERTS]
    kept = diagnostics.matched_agreement(first, moved, EXPERTS, shuffles(random))
    renamed = np.argsort(order)[moved]
    assert kept.agreement == pytest.approx(diagnostics.agreement(first, renamed), abs=1e-12) and kept.agreement < 0.9


@pytest.mark.parametrize("skewed", [False, True])
def test_random_routings_match_as_shuffled_tokens_do(random, skewed):
    """With few tokens the best matching is well above k/E. Uneven loads raise the agreement further."""
    share = np.r_[0.65, np.full(EXPERTS - 1, 0.05)] if skewed else np.full(EXPERTS, 1 / EXPERTS)
    first, second = (random.choice(EXPERTS, (200, 1), p=share) for _ in range(2))
    found = diagnostics.matched_agreement(first, second, EXPERTS, shuffles(random, 200))
    assert abs(found.agreement - found.baseline) < 5 * found.spread and found.baseline > 1 / EXPERTS + 0.05


def test_the_best_matching_is_the_best_of_all_permutations(random):
    for size in (2, 3, 4, 5):
        count = random.integers(0, 9, (size, size))
        sums = [sum(count[e, other] for e, other in enumerate(order)) for order in permutations(range(size))]
        assert count[np.arange(size), diagnostics.best_matching(count)].sum() == max(sums)
        assert count[np.arange(size), statistics.best_matching(count)].sum() == max(sums)


def test_experts_that_choose_their_tokens_match_too():
    """If a token may have any number of experts, agreement is common choices divided by the mean number of choices."""
    first, second = np.array([[0, 1], [-1, -1], [1, -1]]), np.array([[1], [-1], [0]])
    found = diagnostics.matched_agreement(first, second, 2, np.array([[0, 1, 2]]))
    assert found.agreement == pytest.approx(2 / 2.5) and found.partner.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"shapes \(3, 2\) and \(2, 1\)"):
        diagnostics.matched_agreement(first, second[:2], 2, np.array([[0, 1, 2]]))
    with pytest.raises(ValueError, match="experts are .* in 2.5 choices; needed: 0 to 0, or -1"):
        diagnostics.matched_agreement(first, second, 1, np.array([[0, 1, 2]]))


@pytest.mark.parametrize("choices", [1, 2])
def test_information_is_that_of_entropies(random, choices):
    """I(label; expert) = H(label) + H(expert) - H(label, expert), by SciPy, for experts that often follow the label."""
    label = random.integers(0, 40, TOKENS)
    expert = np.stack([(label + choice + (random.random(TOKENS) < 0.4)) % EXPERTS for choice in range(choices)], axis=1)
    found = diagnostics.information(label, expert, EXPERTS, shuffles(random))
    pairs = np.zeros((40, EXPERTS))
    np.add.at(pairs, (np.repeat(label, choices), expert.ravel()), 1)
    h = [scipy.stats.entropy(counts.ravel(), base=2) for counts in (pairs.sum(axis=1), pairs.sum(axis=0), pairs)]
    assert found.bits == pytest.approx(h[0] + h[1] - h[2], rel=1e-9)


def test_what_the_expert_says_about_the_token(random):
    label = random.integers(0, 4 * EXPERTS, TOKENS)
    fixed = diagnostics.information(label, (label % EXPERTS)[:, None], EXPERTS, shuffles(random))
    assert fixed.bits == pytest.approx(np.log2(EXPERTS), abs=0.01) and fixed.baseline < 0.1
    expert, orders = random.integers(0, EXPERTS, (TOKENS, 1)), shuffles(random)
    chance = diagnostics.information(label, expert, EXPERTS, orders)
    moved = [diagnostics.information(label[order], expert, EXPERTS, orders[:1]).bits for order in orders]
    assert chance[1:] == pytest.approx((np.mean(moved), np.std(moved)), rel=1e-9)
    assert abs(chance.bits - chance.baseline) < 6 * chance.spread and chance.bits > 0.01
    one = diagnostics.information(label, np.zeros((TOKENS, 1), int), EXPERTS, shuffles(random))
    assert one == (0, 0, 0)


def test_entropy_is_that_of_scipy(random):
    probability = random.dirichlet(np.full(EXPERTS, 0.3), TOKENS)
    assert diagnostics.entropy(probability) == pytest.approx(scipy.stats.entropy(probability, axis=1).mean(), rel=1e-9)
    with pytest.raises(ValueError, match="sums of rows range from 2 to 2"):
        diagnostics.entropy(np.ones((3, 2)))


def test_an_excess_is_what_a_share_does_not_explain():
    """Label 1 occurs four times, three at expert 0, which has 4/6 of all choices: the excess is 3 - 4 * 4/6."""
    labels, more = diagnostics.excess(np.array([1, 1, 1, 1, 8, 8]), np.array([[0], [0], [0], [1], [0], [1]]), 2)
    assert labels.tolist() == [1, 8] and more[0, 0] == pytest.approx(3 - 4 * 4 / 6)
    assert np.abs(more.sum(axis=0)).max() < 1e-12 and np.abs(more.sum(axis=1)).max() < 1e-12
    with pytest.raises(ValueError, match=r"needed: \[T\] and \[T, k\]"):
        diagnostics.excess(np.array([1]), np.array([0]), 2)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_function_of_the_label_gives_the_most_information(random, choices):
    label = random.integers(0, EXPERTS, TOKENS)
    expert = np.stack([(label + choice) % EXPERTS for choice in range(choices)], axis=1)
    counts = np.bincount(expert.ravel(), minlength=EXPERTS)
    bits = diagnostics.information(label, expert, EXPERTS, shuffles(random)).bits
    assert diagnostics.most_information(counts, choices) == pytest.approx(bits, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "k", "entropy", "dead", "collapsed", "uniform"),
    [
        ([99, 1, 0], 1, None, [2], [0], False),
        ([98, 2, 0], 1, None, [2], [], False),
        ([15, 14, 0], 1, None, [], [], False),  # fewer than 10 tokens per expert
        ([0, 50, 50], 2, 0.1, [0], [1, 2], False),
        ([50, 50], 2, 0.1, [], [], False),  # no choice
        ([30, 30, 40], 1, 0.995 * np.log(3), [], [], True),
        ([0, 0, 0], 1, 0.0, [], [], False),
    ],
)
def test_faults_are_named_at_their_limits(counts, k, entropy, dead, collapsed, uniform):
    assert diagnostics.faults(np.array(counts), k, entropy) == diagnostics.Faults(dead, collapsed, uniform)


@pytest.mark.parametrize("wrong", [[[0, 1, 2]], [[0, 0]], [[0, 1], [1, 0]]])
def test_an_exchange_is_a_permutation(wrong):
    params = {"routed_ffn": {"up": np.zeros((1, 2, 3, 4)), "down": np.zeros((1, 2, 4, 3))}}
    with pytest.raises(ValueError, match="needed: a permutation of 0 to 1 in 1 rows"):
        diagnostics.exchange_experts(params, np.array(wrong))


def report(**changes):
    learned = RouterReport(4, 0.25, [0.9, 0.3], [1.5, 0.2], [], 1.2)
    return learned._replace(**changes)


def test_a_verdict_names_what_was_not_learned():
    assert report().verdict() is None
    assert report(agreement=[]).verdict() is None  # experts choose
    said = report(agreement=[0.25, 0.26]).verdict()
    assert said == (
        "the router has not learned: training and evaluation choose the same expert for 25.5% of the tokens"
        " (by chance 25.0%)"
    )
    assert report(exchange=1.0002).verdict().endswith("exchanging its experts multiplies the loss by 1.0002")
    assert (
        report(exchange=1.0, entropy=[1.3])
        .verdict()
        .endswith("; start the policy of RL-R sharper, by a larger --router-scale of routelaws train")
    )


def test_a_report_is_of_the_choices_of_narrow_experts(monkeypatch):
    """Two of eight narrow experts per token, in two blocks. RL-R has one policy for each block."""
    config = from_mapping({"router": "top_k", "experts": 4, "granularity": 2, "blocks": 2, "routing_frequency": 1.0})
    first, second = np.array([[0, 1], [2, 3], [4, 5], [6, 7]]), np.array([[1, 0], [2, 4], [0, 1], [6, 7]])
    evaluated, trained = np.stack([first, first])[None], np.stack([first, second])[None]
    policy = np.stack([np.full((4, 8), 1 / 8), np.eye(8)[:4]])[None]
    routings = np.array([[5, 6, 7, 8]]), evaluated, trained, policy
    sizes = []
    monkeypatch.setattr(
        router_report, "_compiled", lambda *_: lambda params, batches, table: sizes.append(len(batches)) or routings
    )
    monkeypatch.setattr(router_report, "information", lambda *_: diagnostics.Information(2.0, 0.5, 0.0))
    monkeypatch.setattr(router_report, "exchange_experts", lambda params, order: order)
    found = router_report.report_routing(config, {}, None, np.zeros((9, 16, 129)), lambda order: order.shape)
    wide = dataclasses.replace(config, batch_size=256)
    router_report.report_routing(wide, {}, None, np.zeros((9, 256, 129)), lambda order: order.shape)
    assert sizes == [8, 1] and found.information == [1.5, 1.5]
    assert (found.experts, found.chance, found.exchange) == (8, 2 / 8, (2, 8))
    assert found.agreement == [1.0, (1 + 0.5 + 0 + 1) / 4] and found.entropy == pytest.approx([np.log(8), 0])
    assert found.columns()["router_entropy"] == pytest.approx(0.5) and found.columns()["router_agreement"] == 0.8125


def logged(run):
    lines = map(json.loads, (run.folder / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "routing"]


@pytest.mark.slow
def test_a_run_reports_what_its_router_learned(small_fields, tmp_path):
    """HASH routes equally in training and evaluation. After a few steps, the experts of RL-R are still equal."""
    fields = {**small_fields, "steps": 8, "evaluations": 1, "experts": 4, "blocks": 2}
    said = []
    hashed = make_run(fields, tmp_path / "hash", router="hash")
    hashed.train()
    (line,) = logged(hashed)
    assert line["step"] == 8 and line["agreement"] == [1.0] and line["information"][0] > 1
    policy = {"router": "reinforce", "router_scale": 1.0}
    chance = make_run(fields, tmp_path / "reinforce", lambda kind, line="", **_: said.append(line), **policy)
    chance.train()
    (line,) = logged(chance)
    assert 0.5 * np.log(4) < line["entropy"][0] < np.log(4) and 0.25 < line["agreement"][0] < 0.75
    assert any("the router has not learned" in line for line in said)


@pytest.mark.slow
def test_where_experts_choose_only_the_exchange_is_reported(small_fields, tmp_path):
    fields = {**small_fields, "steps": 4, "evaluations": 1}
    run = make_run(fields, tmp_path / "run", router="expert_choice", experts=4, group_size=4)
    run.train()
    (line,) = logged(run)
    assert line["agreement"] == line["information"] == [] and line["exchange"] > 0
