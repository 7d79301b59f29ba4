"""Our routers against the code of Megatron-LM (the package megatron-core), on a CPU in one process.

Megatron's top-k gates pass through float32 whatever they are given, and its Sinkhorn adds 1e-8 to what it divides by:
that is the size of the differences; indices, loads and places are the same. Where the installed version has not
something yet (quantile balancing, the score "sqrtsoftplus"), its test is skipped. So is the file without the package.
"""

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.dialects.classifier import classify, describe
from routelaws.conformance.engine.harness import UNIT
from routelaws.reference import balance, experts
from routelaws.reference.notation import one_hot, softmax
from routelaws.reference.routers import quantile, sinkhorn, top_k

pytestmark = pytest.mark.library("megatron.core")

REASON = "megatron-core is not installed, which this compares with"


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed, which megatron-core needs")


@pytest.fixture(scope="module")
def megatron(torch):
    """The module with all of its functions of routing."""
    return pytest.importorskip("megatron.core.transformer.moe.moe_utils", reason=REASON, exc_type=ImportError)


def logits(seed: int, num_tokens: int = 12, num_experts: int = 4) -> np.ndarray:
    """Return logits that float32 holds exactly."""
    random = np.random.default_rng(seed)
    return (2 * random.standard_normal((num_tokens, num_experts))).astype(np.float32).astype(float)


def gates_of(megatron, torch, z, expert, **options) -> np.ndarray:
    """Return Megatron's gates of our choice [T, k]; 0 where it has chosen another expert."""
    dense, _ = megatron.topk_routing_with_score_function(torch.tensor(z), expert.shape[1], **options)
    return np.take_along_axis(dense.numpy(), expert, axis=1)


GATES = [
    # Megatron's options, our options, the dialect
    (dict(use_pre_softmax=True), dict(), "softmax"),
    (dict(), dict(normalisation="softmax", allow_constant_gate=True), "softmax over chosen"),
    (dict(score_function="sigmoid"), dict(score="sigmoid", normalisation="sum"), "sigmoid, sum over chosen if k > 1"),
    (dict(score_function="sqrtsoftplus"), None, "root of softplus, sum over chosen if k > 1"),
]


@pytest.mark.parametrize(("theirs", "ours", "dialect"), GATES, ids=[case[2] for case in GATES])
class TestGates:
    def needs(self, megatron, torch, options) -> None:
        try:
            megatron.topk_routing_with_score_function(torch.zeros(1, 2), 1, **options)
        except ValueError as unknown:
            pytest.skip(f"this version of megatron-core has it not: {unknown}")

    def test_the_dialect_is_named(self, megatron, torch, theirs, ours, dialect):
        self.needs(megatron, torch, theirs)
        verdict = classify("gates", lambda z, e: gates_of(megatron, torch, z, e, **theirs))
        assert dialect in verdict.matches, describe(verdict)

    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_the_router_is_ours(self, megatron, torch, theirs, ours, dialect, k):
        if ours is None:
            pytest.skip("we have no such router")
        if k == 1 and theirs.get("score_function") == "sigmoid":
            ours = dict(score="sigmoid")
        z = logits(k)
        found = top_k.top_k_router(z, k, **ours)
        dense, chosen = megatron.topk_routing_with_score_function(torch.tensor(z), k, **theirs)
        assert_same(one_hot(found.expert, 4).sum(axis=1), chosen.numpy(), what="chosen experts")
        wanted = np.take_along_axis(dense.numpy(), found.expert, axis=1)
        scale = UNIT["float32"] * (1 + np.abs(z).max()) * wanted
        assert_close_bounded("libraries.float32", found.gate, wanted, scale, what=f"top_k_router, {theirs}, k {k}")


def test_a_bias_in_the_choice(megatron, torch):
    z, bias = logits(7), np.array([0.5, 0.0, -0.25, 0.125])
    found = top_k.top_k_router(z, 2, score="sigmoid", normalisation="sum", bias=bias)
    options = dict(score_function="sigmoid", expert_bias=torch.tensor(bias))
    wanted = gates_of(megatron, torch, z, found.expert, **options)
    assert not np.array_equal(found.expert, top_k.top_k_router(z, 2).expert), "the bias has to decide something"
    assert_close_bounded(
        "libraries.float32",
        found.gate,
        wanted,
        UNIT["float32"] * (1 + np.abs(z).max()) * wanted,
        what="top_k_router with a bias",
    )


def test_the_step_of_the_bias(megatron, torch, monkeypatch):
    """One process has nothing to reduce over; the rate is one that float32 holds."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(megatron.parallel_state, "get_tensor_and_data_parallel_group", lambda **_: None)
    bias, counts = np.array([0.5, 0.0, -0.25, 0.125]), np.array([5, 3, 0, 4])
    wanted = megatron.get_updated_expert_bias(torch.tensor(counts), torch.tensor(bias), 2**-10)
    assert_same(balance.update_bias(bias, counts, rate=2**-10), wanted.numpy(), what="update_bias")


@pytest.mark.parametrize("k", [1, 2, 3])
def test_losses(megatron, torch, k):
    z = logits(10 + k)
    expert = top_k.top_k_router(z, k).expert
    counts = torch.tensor(balance.expert_counts(expert, 4))

    def of_megatron(z, e):
        counted = torch.tensor(balance.expert_counts(e, z.shape[1]))
        return megatron.switch_load_balancing_loss_func(
            torch.tensor(softmax(z)), counted, len(e), e.shape[1], z.shape[1], 1.0
        )

    assert classify("balance loss", of_megatron).matches == ("assignments",)
    z_loss = megatron.z_loss_func(torch.tensor(z), 1.0).item()
    for what, found, wanted in (
        ("auxiliary_loss", balance.auxiliary_loss(z, expert).loss, of_megatron(z, expert).item()),
        ("z_loss", balance.z_loss(z), z_loss),
        ("expert_counts", balance.expert_counts(expert, 4).sum(), counts.sum().item()),
    ):
        message = f"{what}, k {k}: {found}, Megatron {wanted}"
        check("libraries.balance", abs(found - wanted), UNIT["float64"] * wanted, message=message)


def test_the_dialect_of_capacity(megatron):
    def capacity(T, E, k, c):
        return megatron.get_capacity(T * k, E, c)

    assert classify("capacity", capacity).matches == ("megatron",)


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.0])
def test_who_is_dropped(megatron, torch, factor):
    """Who has the largest gates keeps a place."""
    routing = top_k.top_k_router(logits(20), 2)
    capacity = experts.expert_capacity(12, 4, 2, factor)
    dense = torch.zeros(12, 4, dtype=torch.float64).scatter(1, torch.tensor(routing.expert), torch.tensor(routing.gate))
    _, kept = megatron.apply_router_token_dropping(dense, dense > 0, 2, factor, drop_policy="probs")
    found = experts.dispatch(routing.expert, 4, capacity, order="priority", priority=routing.gate)
    wanted = np.take_along_axis(kept.numpy(), routing.expert, axis=1)
    assert not wanted.all(), "somebody has to be dropped"
    assert_same(found.kept, wanted, what=f"dispatch, order 'priority', factor {factor}")


@pytest.mark.parametrize("scale", [0.25, 0.5])
def test_sinkhorn(megatron, torch, scale):
    """The plan, and the choice by it. Its stop is an absolute change of a factor: one of 1e-8 did not come."""
    z = scale * logits(30, 24)
    wanted = megatron.sinkhorn(torch.tensor(z), tol=1e-6).numpy()
    found = sinkhorn.sinkhorn_plan(z, tolerance=1e-12)
    assert_close_bounded("libraries.sinkhorn", 24 * found.plan, 24 * wanted, what=f"sinkhorn_plan, logits of {scale}")
    assert_same(sinkhorn.sinkhorn_router(z).expert[:, 0], wanted.argmax(axis=1), what="sinkhorn_router")


def test_quantile_steps(megatron, torch):
    """To the ends of the intervals, and by the scores alone where nothing is balanced yet."""
    if not hasattr(megatron, "qb_dual_update"):
        pytest.skip("this version of megatron-core has no quantile balancing")

    def step(scores, bias, k):
        return megatron.qb_dual_update(torch.tensor(scores), k, torch.tensor(bias))[1]

    verdict = classify("quantile step", step)
    assert verdict.matches == ("ends",), describe(verdict)
    z, bias = logits(40), np.array([0.5, 0.0, -0.25, 0.125])
    chosen, _ = megatron.qb_dual_update(torch.tensor(z), 2, torch.tensor(bias))
    assert_same(quantile.quantile_router(z, bias, 2).expert, chosen.numpy(), what="quantile_router")
