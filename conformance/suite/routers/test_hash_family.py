"""The hash family: exact tables, and checks of each table's promise without the reference."""

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import run, run_varied
from routelaws.conformance.suite.strategies import precisions, seeds
from routelaws.reference.experts import gelu
from routelaws.reference.routers import hash_layer as reference
from routelaws.reference.routers import top_k

TABLE, FIXED, HASH, BIGRAM = (
    f"routers.hash_layer.{name}" for name in ("table_router", "fixed_router", "hash_layer", "bigram_experts")
)
SIZES = ((1, 1), (24, 5), (7, 8), (40, 4))
"""(V, E)."""


@st.composite
def sizes(draw):
    """Draw V, E and k from 1 to E, at most 4."""
    vocab_size, num_experts = draw(st.sampled_from(SIZES))
    return vocab_size, num_experts, draw(st.integers(1, min(num_experts, 4)))


def check_table(found, wanted, num_experts: int, what: str) -> None:
    for name, table in ((what, found), (f"reference, {what}", wanted)):
        assert isinstance(table, np.ndarray) and table.dtype == np.int32, f"{name}: {type(table)}"
        assert table.size == 0 or (0 <= table.min() and table.max() < num_experts), f"{name}: out of range"
        assert all(len(set(row)) == len(row) for row in table.tolist()), f"{name}: an expert twice in a row"
    assert_same(found, wanted, what=what)


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.modulo_table")
@given(size=sizes())
def test_modulo_table(backend, size):
    """The first choice is the remainder. In each run of E ids, each choice is the first one shifted cyclically."""
    vocab_size, num_experts, k = size
    found = backend.routers.hash_layer.modulo_table(vocab_size, num_experts, k)
    what = f"modulo_table, V {vocab_size}, E {num_experts}, k {k}"
    check_table(found, reference.modulo_table(vocab_size, num_experts, k), num_experts, what)
    assert_same(found[:, 0], np.arange(vocab_size) % num_experts, what=f"{what}: first choices")
    turned = (found - found[:, :1]) % num_experts
    for first in range(0, vocab_size, num_experts):
        run = turned[first : first + num_experts]
        assert_same(run, np.broadcast_to(run[0], run.shape), what=f"{what}: distances in the run of id {first}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.modulo_table")
def test_steps_by_hand(backend):
    """Five experts with two choices allow all steps, from (5 - 1) / 2 on.

    Eight experts with three choices do not allow 4, because 2 · 4 = 0 modulo 8.
    """
    for module in (backend.routers.hash_layer, reference):
        for num_experts, k, steps in ((5, 2, [2, 3, 4, 1]), (8, 3, [2, 3, 5, 6, 7, 1]), (4, 4, [1, 3]), (2, 2, [1])):
            found = module.modulo_table(2 * num_experts * len(steps), num_experts, k)[::num_experts]
            by_hand = [[j * step % num_experts for j in range(k)] for step in steps * 2]
            assert_same(found, by_hand, what=f"modulo_table at the ids of expert 0, E {num_experts}, k {k}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.random_table")
@given(size=sizes(), seed=seeds)
def test_random_table(backend, size, seed):
    vocab_size, num_experts, k = size
    uniforms = np.random.default_rng(seed).random((vocab_size, k))
    uniforms[0] = 1 - 2.0**-53  # the largest float64 below 1
    found = backend.routers.hash_layer.random_table(uniforms, num_experts)
    check_table(found, reference.random_table(uniforms, num_experts), num_experts, f"random_table, {size}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.random_table")
def test_evenly_spread_uniforms_give_every_choice_equally_often(backend):
    """Use a grid of 4 x 3 midpoints: each of the 12 ordered pairs of four experts occurs once."""
    grid = np.stack(np.meshgrid((np.arange(4) + 0.5) / 4, (np.arange(3) + 0.5) / 3), axis=-1).reshape(-1, 2)
    found = backend.routers.hash_layer.random_table(grid, 4)
    assert set(Counter(map(tuple, found.tolist())).values()) == {1} and len(found) == 12


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.balanced_table")
@given(size=sizes(), seed=seeds, most=st.sampled_from([0, 2, 10**6]))
def test_balanced_table(backend, size, seed, most):
    """Check the table and its promise: loads differ at most by the largest count, or twice it if k > 1."""
    vocab_size, num_experts, k = size
    counts = np.random.default_rng(seed).integers(0, most, vocab_size, endpoint=True)
    found = backend.routers.hash_layer.balanced_table(counts, num_experts, k)
    what = f"balanced_table, counts {counts.tolist()}, E {num_experts}, k {k}"
    check_table(found, reference.balanced_table(counts, num_experts, k), num_experts, what)
    load = np.zeros(num_experts)
    np.add.at(load, found, np.broadcast_to(counts[:, None], found.shape))
    assert load.max() - load.min() <= counts.max() * min(k, 2), f"{what}: loads {load}"
    fewest, most = (f(np.bincount(found.ravel(), minlength=num_experts)) for f in (np.min, np.max))
    if len(set(counts.tolist())) == 1:  # equal counts: the experts take tokens in turn
        assert most - fewest <= 1, f"{what}: tokens per expert from {fewest} to {most}"


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.balanced_table")
def test_balanced_table_by_hand(backend):
    """9 goes to expert 0, 5 and 4 to 1 (5 < 9); at the tie of 9 and 9, 0 has fewer tokens; unseen tokens spread."""
    counts = np.array([0, 4, 9, 0, 5, 1])
    for module in (backend.routers.hash_layer, reference):
        assert module.balanced_table(counts, 2).ravel().tolist() == [1, 1, 0, 1, 1, 0]
        assert module.balanced_table(np.zeros(5, int), 3).ravel().tolist() == [0, 1, 2, 0, 1]


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.balanced_table")
def test_two_balanced_choices_by_hand(backend):
    """9 goes to experts 0 and 1. 6 starts from 2; a step of 3 leads to 1 and 0, which are too full, and to 3.

    5 starts from 2 and steps to 3. 4 starts from 0, with load 9; a step of 3 leads to expert 3, whose load 11 exceeds 9
    by less than 4. The last count is 0: no expert is near enough, so the two emptiest take it, 1 with 9 and 2 with 11.
    """
    for module in (backend.routers.hash_layer, reference):
        found = module.balanced_table(np.array([0, 9, 6, 5, 4]), 4, 2)
        assert found.tolist() == [[1, 2], [0, 1], [2, 3], [2, 3], [0, 3]]


@pytest.mark.asks(
    "routers.hash_layer.hash_layer", "routers.hash_layer.modulo_table", "routers.hash_layer.balanced_table"
)
def test_a_balanced_table_balances_what_the_remainder_does_not(backend):
    """Use Zipf's law without its first ten tokens, for 4000 tokens and 32 experts."""
    counts = (1e7 / (10 + np.arange(4000))).astype(int)
    module = backend.routers.hash_layer
    worst = {}
    for name, table in (("balanced", module.balanced_table(counts, 32)), ("modulo", module.modulo_table(4000, 32))):
        load = np.bincount(table[:, 0], counts, minlength=32)
        worst[name] = load.max() / load.mean()
    assert worst["balanced"] < 1.01 and worst["modulo"] > 1.2, worst


def blobs(seed: int):
    """Return embeddings [40, 3] in four distant groups, and an initial centre in each."""
    random = np.random.default_rng(seed)
    group = random.permutation(np.arange(40) % 4)
    embeddings = random.standard_normal((40, 3)) + 30 * np.eye(4)[group][:, :3]
    return group, embeddings, embeddings[[np.flatnonzero(group == g)[0] for g in range(4)]]


def check_clusters(backend, embeddings, centres, max_rounds: int) -> None:
    module = backend.routers.hash_layer
    found = module.cluster_tokens(embeddings, centres, max_rounds=max_rounds)
    wanted = reference.cluster_tokens(embeddings, centres, max_rounds=max_rounds)
    what = f"cluster_tokens, {len(embeddings)} tokens, {len(centres)} centres, {max_rounds} rounds"
    assert_same(found.cluster, wanted.cluster, what=f"{what}: cluster")
    assert (found.rounds, found.converged) == (wanted.rounds, wanted.converged), what
    scale = max(1, np.abs(embeddings).max(initial=0), np.abs(centres).max())
    assert_close_bounded("hash.centres", found.centres, wanted.centres, scale, what=f"{what}: centres")
    for k in (1, len(centres)):
        tables = [m.clustered_table(c, embeddings, k) for m, c in ((module, found), (reference, wanted))]
        check_table(*tables, len(centres), f"clustered_table, k {k}, {what}")
        assert_same(tables[0][:, 0], found.cluster, what=f"{what}: first choices")


@pytest.mark.asks(
    "routers.hash_layer.hash_layer", "routers.hash_layer.cluster_tokens", "routers.hash_layer.clustered_table"
)
@given(seed=seeds, max_rounds=st.sampled_from([0, 1, 100]))
def test_clusters(backend, seed, max_rounds):
    """Random numbers have no ties."""
    random = np.random.default_rng(seed)
    check_clusters(backend, random.standard_normal((30, 3)), random.standard_normal((4, 3)), max_rounds)


@pytest.mark.asks(
    "routers.hash_layer.hash_layer", "routers.hash_layer.cluster_tokens", "routers.hash_layer.clustered_table"
)
def test_clusters_are_found(backend):
    for seed in range(3):
        group, embeddings, centres = blobs(seed)
        check_clusters(backend, embeddings, centres, 100)
        found = backend.routers.hash_layer.cluster_tokens(embeddings, centres)
        assert_same(found.cluster, group, what="cluster_tokens of groups far apart")
        assert found.converged


@pytest.mark.asks(
    "routers.hash_layer.hash_layer", "routers.hash_layer.cluster_tokens", "routers.hash_layer.clustered_table"
)
def test_cluster_ties(backend):
    """Integer distances are exact: the lower of two equal centres wins, and the other does not move."""
    embeddings, centres = np.array([[0.0, 0], [2, 0], [1, 0]]), np.array([[0.0, 0], [2, 0], [2, 0], [9, 9]])
    check_clusters(backend, embeddings, centres, 1)
    found = backend.routers.hash_layer.cluster_tokens(embeddings, centres, max_rounds=1)
    assert found.cluster.tolist() == [0, 1, 0] and found.centres.tolist() == [[0.5, 0], [2, 0], [2, 0], [9, 9]]


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.dispersed_table")
@given(size=sizes(), clusters=st.sampled_from([1, 3]), seed=seeds)
def test_dispersed_table(backend, size, clusters, seed):
    """For each choice, the counts of experts differ by at most one over all tokens, and by at most two in a cluster."""
    vocab_size, num_experts, k = size
    cluster = np.random.default_rng(seed).integers(0, clusters, vocab_size)
    found = backend.routers.hash_layer.dispersed_table(cluster, num_experts, k)
    what = f"dispersed_table, {cluster.tolist()}, E {num_experts}, k {k}"
    check_table(found, reference.dispersed_table(cluster, num_experts, k), num_experts, what)
    for choice in range(k):
        for chosen in (slice(None), *(cluster == c for c in np.unique(cluster))):
            tokens = np.bincount(found[chosen, choice], minlength=num_experts)
            most = 1 if choice == 0 or isinstance(chosen, slice) else 2
            assert tokens.max() - tokens.min() <= most, f"{what}: tokens per expert by choice {choice}: {tokens}"


@pytest.mark.asks("routers.hash_layer.learned_gates", "routers.hash_layer.fixed_router")
@pytest.mark.parametrize("score", top_k.SCORES)
@pytest.mark.parametrize("normalisation", ("none", "sum"))
def test_learned_gates(backend, score, normalisation):
    """The gates of a table are those of top-k at the same experts, whichever these are; padding has gate 0."""
    random = np.random.default_rng(3)
    z = random.integers(-40, 41, (7, 5)) / 8
    z[0], z[1] = -60 - np.arange(5), 50 * np.arange(5)
    expert, mask = np.array([random.permutation(5)[:2] for _ in z]), np.arange(7) != 4
    for module, precision in ((backend, "float32"), (backend, "float64"), (None, "float64")):
        options = dict(score=score, normalisation=normalisation, gate_scale=1.5)
        name = "reference" if module is None else precision
        if module is None:
            routing = reference.fixed_router(expert, 5, mask=mask)
            found = reference.learned_gates(routing, np.where(mask[:, None], z, np.nan), mask=mask, **options)
        else:
            routing = run(backend, FIXED, precision, expert, num_experts=5)
            traced = {"mask": mask}
            found = run(backend, "routers.hash_layer.learned_gates", precision, routing, z, traced=traced, **options)
        scores = {
            "softmax": lambda z: (
                np.exp(z - z.max(axis=1, keepdims=True))
                / np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
            ),
            "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
            "sqrtsoftplus": lambda z: np.sqrt(np.log1p(np.exp(z))),
        }[score](z)
        wanted = np.take_along_axis(scores, expert, axis=1)
        wanted = 1.5 * wanted / (wanted.sum(axis=1, keepdims=True) if normalisation == "sum" else 1) * mask[:, None]
        unit = UNIT[precision] * (4 + 3 * np.abs(z).max(axis=1, keepdims=True))
        scale = unit * wanted + np.finfo(precision).tiny
        assert_close_bounded("top_k.gate", found.gate, wanted, scale, what=f"learned_gates, {options}, {name}")


@pytest.mark.asks("routers.hash_layer.table_router", "routers.hash_layer.random_table")
@given(precision=precisions, gate=st.sampled_from(reference.HASH_GATES), seed=seeds)
def test_table_router(backend, precision, gate, seed):
    k = 2
    random = np.random.default_rng(seed)
    ids, table = random.integers(0, 24, 12), reference.random_table(random.random((24, k)), 5)
    found = run_varied(backend, TABLE, precision, ids, table, num_experts=5, gate=gate)
    wanted = reference.table_router(ids, table, 5, gate=gate)
    what = f"table_router, k {k}, {gate}, {precision}"
    assert_same(found.expert, table[ids], what=f"{what}: expert")
    assert_same(wanted.expert, table[ids], what=f"reference, {what}: expert")
    gates = np.full((12, k), 1 / k if gate == "mean" else 1.0)
    assert_same(found.gate, gates.astype(precision), what=f"{what}: gate")
    assert_same(wanted.gate, gates, what=f"reference, {what}: gate")
    load = np.bincount(table[ids].ravel(), minlength=5) / (12 * k)
    unit = UNIT[precision] * 12 * k
    for name, routing in ((what, found), (f"reference, {what}", wanted)):
        assert_close_bounded("hash.load", routing.load, load, unit * load, what=f"{name}: load")
        mass = np.asarray(routing.plan, float).sum(axis=0)
        assert_close_bounded("hash.load", mass, load, unit * load, what=f"{name}: plan")
        residual = np.abs(5 * load - 1).max()
        scale = unit * (residual + 2)
        assert_close_bounded("hash.residual", routing.residual, residual, scale, what=f"{name}: residual")


def check_padded(found, alone, mask, scale, precision: str, what: str) -> None:
    """The routing of a padded group equals that of its real tokens. Padding has gate 0 and no mass."""
    expert, gate, plan = (np.asarray(field) for field in (found.expert, found.gate, found.plan))
    num_padded, k = np.sum(~mask), expert.shape[1]
    assert_same(expert[~mask], np.tile(np.arange(k), (num_padded, 1)), what=f"{what}: experts of padding")
    assert_same(gate[~mask], np.zeros((num_padded, k)), what=f"{what}: gates of padding")
    assert_same(plan[~mask], np.zeros((num_padded, plan.shape[1])), what=f"{what}: plan of padding")
    assert_same(expert[mask], alone.expert, what=f"{what}: expert")
    assert_close_bounded("top_k.gate", gate[mask], alone.gate, scale, what=f"{what}: gate")
    unit = UNIT[precision] * alone.expert.size
    assert_close_bounded("top_k.load", plan[mask], alone.plan, UNIT[precision] * alone.plan, what=f"{what}: plan")
    assert_close_bounded("top_k.load", found.load, alone.load, unit * alone.load, what=f"{what}: load")
    scale = unit * (1 + alone.residual)
    assert_close_bounded("top_k.load", found.residual, alone.residual, scale, what=f"{what}: residual")


@pytest.mark.asks(
    "routers.hash_layer.hash_layer",
    "routers.hash_layer.table_router",
    "routers.hash_layer.fixed_router",
    "routers.hash_layer.random_table",
)
@given(precision=precisions, gate=st.sampled_from(reference.HASH_GATES), seed=seeds)
def test_padding(backend, precision, gate, seed):
    """Eight tokens of twelve are real. The padding has invalid ids."""
    random = np.random.default_rng(seed)
    mask, table = random.permutation(12) < 8, reference.random_table(random.random((24, 2)), 5)
    ids = np.where(mask, random.integers(0, 24, 12), random.choice([-1, 999], 12))
    expert = np.where(mask[:, None], table[np.where(mask, ids, 0)], -7)
    for path, arrays, options in (
        (HASH, (ids,), {}),
        (TABLE, (ids, table), dict(gate=gate)),
        (FIXED, (expert,), dict(gate=gate)),
    ):
        router = getattr(reference, path.rpartition(".")[2])
        alone = router(arrays[0][mask], *arrays[1:], 5, **options)
        what = f"{path} with 8 of 12 real, {options}, {precision}"
        check_padded(router(*arrays, 5, mask=mask, **options), alone, mask, 0, "float64", f"reference, {what}")
        found = run_varied(backend, path, precision, *arrays, traced={"mask": mask}, num_experts=5, **options)
        check_padded(found, alone, mask, 0, precision, what)


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.table_router", "routers.hash_layer.modulo_table")
def test_hash_layer_is_the_table_of_remainders(backend):
    ids = np.array([0, 7, 3, 23, 11, 4])
    table = backend.routers.hash_layer.modulo_table(24, 5)
    found = run(backend, TABLE, "float32", ids, table, num_experts=5)
    wanted = run(backend, HASH, "float32", ids, num_experts=5)
    for name, field in found._asdict().items():
        assert_same(field, getattr(wanted, name), what=f"table_router of remainders: {name}")
    for field, wanted in zip(reference.table_router(ids, table, 5), reference.hash_layer(ids, 5), strict=True):
        assert_same(field, wanted, what="reference, table_router of remainders")


@pytest.mark.asks(
    "experts.gelu",
    "experts.routed_ffn",
    "routers.hash_layer.hash_layer",
    "routers.hash_layer.table_router",
    "routers.hash_layer.multi_hash",
)
@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_multi_hash(backend, precision):
    """k narrow experts from a bank equal GELU of the joined [B_h1 x, ..., B_hk x], times the joined [C_h1, ...]."""
    num_experts, k, d, f = 3, 2, 4, 6
    random = np.random.default_rng(0)
    up, down, x, ids = (
        random.standard_normal((num_experts, d, f)),
        random.standard_normal((num_experts, f, d)),
        random.standard_normal((8, d)),
        random.integers(0, 24, 8),
    )
    up, down, x = (part.astype(precision).astype(float) for part in (up, down, x))
    table = random.integers(0, num_experts, (24, k)).astype(np.int32)  # some rows repeat an expert
    found = backend.routers.hash_layer.multi_hash(table, num_experts)
    check_table(found, reference.multi_hash(table, num_experts), k * num_experts, "multi_hash")

    segments = [slice(j * f // k, (j + 1) * f // k) for j in range(k)]
    bank = {
        "up": np.concatenate([up[:, :, segment] for segment in segments]),
        "down": np.concatenate([down[:, segment] for segment in segments]),
    }
    routing = run_varied(backend, TABLE, precision, ids, found, num_experts=k * num_experts, gate="sum")
    output = run(backend, "experts.routed_ffn", precision, bank, x, routing.expert, routing.gate).output
    wanted, scale = np.zeros_like(x), np.zeros_like(x)
    for t, chosen in enumerate(table[ids]):
        hidden = np.concatenate([x[t] @ up[e][:, segment] for e, segment in zip(chosen, segments, strict=True)])
        back = np.concatenate([down[e][segment] for e, segment in zip(chosen, segments, strict=True)])
        wanted[t] = gelu(hidden) @ back
        scale[t] = np.abs(x[t]) @ np.abs(up).max(axis=0) @ np.abs(down).max(axis=0)
    scale *= UNIT[precision]
    assert_close_bounded("hash.multi", output, wanted, scale, what=f"MultiHash through routed_ffn, {precision}")


@pytest.mark.asks("routers.hash_layer.fixed_router", "routers.hash_layer.bigram_experts")
@given(seed=seeds)
def test_bigram(backend, seed):
    random = np.random.default_rng(seed)
    ids, previous, tables = random.integers(0, 6, 12), random.integers(0, 6, 12), random.integers(0, 5, (2, 6))
    found = run_varied(backend, BIGRAM, "float32", ids, previous, tables, num_experts=5)
    assert_same(found, reference.bigram_experts(ids, previous, tables, 5), what="bigram_experts")
    by_hand = [[(tables[0][before] + tables[1][now]) % 5] for before, now in zip(previous, ids, strict=True)]
    assert_same(found, by_hand, what="bigram_experts by hand")
    routing = run_varied(backend, FIXED, "float32", found, num_experts=5)
    assert_same(routing.expert, by_hand, what="fixed_router of bigrams")


@pytest.mark.asks("routers.hash_layer.position_ids")
def test_position_ids(backend):
    for module in (backend.routers.hash_layer, reference):
        ids = np.zeros((2, 3), int) if module is reference else jnp.zeros((2, 3), int)
        assert_same(module.position_ids(ids), [[0, 1, 2], [0, 1, 2]], what="position_ids")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.previous_tokens")
def test_neighbours(backend):
    """Sequences are independent, and the hash of the previous token ignores the current token."""
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    for module in (backend.routers.hash_layer, reference):
        given_ids = ids if module is reference else jnp.asarray(ids)
        for found, wanted, what in (
            (module.previous_tokens(given_ids, start=9), [[9, 3, 4], [9, 6, 7]], "previous_tokens"),
            (module.previous_tokens(given_ids[0]), [0, 3, 4], "previous_tokens of one sequence"),
        ):
            assert_same(found, wanted, what=what)


@pytest.mark.asks(
    "routers.hash_layer.table_router",
    "routers.hash_layer.fixed_router",
    "routers.hash_layer.modulo_table",
    "routers.hash_layer.bigram_experts",
)
@pytest.mark.twin
def test_an_id_that_is_not_in_the_table_is_not_lost(backend):
    table = reference.modulo_table(4, 2)
    for bad in (4, -1):
        ids = np.array([0, 1, bad])
        found = run(backend, TABLE, "float32", ids, table, num_experts=2)
        assert np.isnan(found.gate).ravel().tolist() == [False, False, True]
        for pair in ((ids, np.zeros(3, int)), (np.zeros(3, int), ids)):
            experts = run(backend, BIGRAM, "float32", *pair, table.T.repeat(2, 0), num_experts=2)
            assert (np.asarray(experts) == -1).ravel().tolist() == [False, False, True]
        with pytest.raises(ValueError, match="allowed: 0 to 3"):
            reference.table_router(ids, table, 2)
        expert = np.array([[0, 1], [3, 2], [2, bad]])
        found = run(backend, FIXED, "float32", expert, num_experts=4)
        assert_same(np.isnan(found.gate), [[False, False], [False, False], [False, True]], what=f"expert {bad} of 4")
        with pytest.raises(ValueError, match="previous range from .*allowed: 0 to 3"):
            reference.bigram_experts(np.zeros(3, int), ids, table.T.repeat(2, 0), 2)
