"""Loads of the hashes for Zipf's law, in which a few tokens are most of the text. The tests do not use the reference.

A table's loads are sums of token shares, so only the uniforms of random tables are random. Their seeds are fixed.
"""

import math

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_same

GRID = ((1024, 16, 1), (1024, 64, 4), (1024, 64, 8), (1000, 12, 4), (300, 16, 2), (300, 16, 9), (300, 5, 4), (40, 6, 6))
"""(V, E, k): tokens, experts of a block, choices of a token. With granularity the last two are E G and k G."""


def zipf(vocab_size: int) -> np.ndarray:
    """Return the shares of the tokens, the most frequent first."""
    shares = 1 / np.arange(1, vocab_size + 1)
    return shares / shares.sum()


def loads_of(table, shares, num_experts: int) -> np.ndarray:
    """Return the load of every expert for every choice, [k, E], relative to the mean."""
    assert len(table) == len(shares)
    return np.array([np.bincount(column, shares, num_experts) for column in np.asarray(table).T]) * num_experts


def least(shares, num_experts: int, k: int) -> float:
    """Return the lower bound of the largest load over the mean: some expert has the most frequent token."""
    return max(1.0, shares[0] * num_experts / k)


def check_choices(table, num_experts: int, what: str) -> None:
    table = np.asarray(table)
    assert table.min() >= 0 and table.max() < num_experts, what
    assert (np.diff(np.sort(table, axis=1), axis=1) > 0).all(), f"{what}: an expert twice in a row"


def sets_of(table) -> set[frozenset]:
    return {frozenset(row) for row in np.asarray(table).tolist()}


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.modulo_table")
@pytest.mark.parametrize("size", GRID)
def test_every_choice_of_the_remainder_is_as_even_as_the_first(backend, size):
    """Each choice is as even as the first, for Zipf's law and for equal tokens. All k together are more even."""
    vocab_size, num_experts, k = size
    table = backend.routers.hash_layer.modulo_table(vocab_size, num_experts, k)
    what = f"modulo_table, V {vocab_size}, E {num_experts}, k {k}"
    check_choices(table, num_experts, what)
    assert_same(np.asarray(table)[:, 0], np.arange(vocab_size) % num_experts, what=f"{what}: first choices")
    numbers = np.array([np.bincount(column, minlength=num_experts) for column in np.asarray(table).T])
    assert np.ptp(numbers, axis=1).max() <= 1, f"{what}: tokens per expert by each choice {numbers}"
    shares = zipf(vocab_size)
    loads = loads_of(table, shares, num_experts)
    check("hash.turned", loads.max(), loads[0].max(), message=f"{what}: largest by each choice {loads.max(axis=1)}")
    if k == num_experts:
        return
    apart = (num_experts - 1) // k
    scale = (shares[0] + shares[:num_experts].sum() / apart) * num_experts / k + 1
    check("hash.remainder", loads.mean(axis=0).max(), scale, message=f"{what}: loads {loads.mean(axis=0)}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.modulo_table")
def test_tokens_with_the_same_remainder_have_other_experts(backend):
    """The steps give the number of different sets of experts, and each token of the first run has its own set.

    Otherwise granularity would change nothing.
    """
    for num_experts, k in ((5, 2), (12, 4), (16, 2), (9, 3)):
        table = backend.routers.hash_layer.modulo_table(num_experts**2, num_experts, k)
        circle = [
            [(e + j * step) % num_experts for j in range(k)]
            for e in range(num_experts)
            for step in range(1, num_experts)
        ]
        assert sets_of(table) == {frozenset(chosen) for chosen in circle if len(set(chosen)) == k}, (num_experts, k)
        assert len(sets_of(np.asarray(table)[:num_experts])) == num_experts, (num_experts, k)


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.balanced_table")
@pytest.mark.parametrize("size", [size for size in GRID if size[0] >= 300])
def test_a_balanced_table_is_as_even_as_can_be(backend, size):
    """The loads are as even as possible for any table, and experts do not form fixed groups."""
    vocab_size, num_experts, k = size
    shares = zipf(vocab_size)
    table = backend.routers.hash_layer.balanced_table(np.rint(1e7 * shares).astype(int), num_experts, k)
    what = f"balanced_table, V {vocab_size}, E {num_experts}, k {k}"
    check_choices(table, num_experts, what)
    loads = loads_of(table, shares, num_experts)
    even = least(shares, num_experts, k)
    check("hash.balanced", loads.mean(axis=0).max(), even, message=f"{what}: loads {loads.mean(axis=0)}")
    if 1 < k < num_experts - 1:
        assert len(sets_of(table)) >= 2 * num_experts, f"{what}: {len(sets_of(table))} sets of experts"


def check_drawn(loads, shares, num_experts: int, k: int, what: str) -> None:
    """The largest load exceeds the mean only as much as chance explains."""
    rest = shares[1:]
    deviation = math.sqrt((rest**2).sum() * (num_experts / k - 1))
    above = loads.mean(axis=0).max() - 1 - shares[0] * num_experts / k
    check("hash.drawn", max(above, 0.0), deviation, message=f"{what}: loads {loads.mean(axis=0)}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.random_table")
@pytest.mark.parametrize("size", [size for size in GRID if size[2] < size[1]])
def test_a_random_table_is_even_but_for_chance(backend, size):
    vocab_size, num_experts, k = size
    shares = zipf(vocab_size)
    for seed in range(3):
        uniforms = np.random.default_rng(seed).random((vocab_size, k))
        table = backend.routers.hash_layer.random_table(uniforms, num_experts)
        check_choices(table, num_experts, f"random_table {size}")
        check_drawn(loads_of(table, shares, num_experts), shares, num_experts, k, f"random_table {size}, seed {seed}")


@pytest.mark.asks("routers.hash_layer.hash_layer", "routers.hash_layer.dispersed_table")
@pytest.mark.parametrize("size", [size for size in GRID if size[2] < size[1]])
def test_a_dispersed_table_is_even_by_every_choice(backend, size):
    """Numbers of ids are even for every choice. Loads under Zipf's law are like those of a random table."""
    clusters = size[1]
    vocab_size, num_experts, k = size
    shares, what = zipf(vocab_size), f"dispersed_table {size}, {clusters} clusters"
    cluster = np.random.default_rng(clusters).integers(0, clusters, vocab_size)
    table = np.asarray(backend.routers.hash_layer.dispersed_table(cluster, num_experts, k))
    check_choices(table, num_experts, what)
    numbers = np.array([np.bincount(column, minlength=num_experts) for column in table.T])
    assert np.ptp(numbers, axis=1).max() <= 1, f"{what}: tokens per expert by each choice {numbers}"
    check_drawn(loads_of(table, shares, num_experts), shares, num_experts, k, what)
