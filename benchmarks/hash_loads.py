"""Measure how evenly each hash loads the experts if a few tokens make up most of the text.

    python -m benchmarks.hash_loads [1024x16x4x1 ...]        # prints the table of docs/hash_loads.md

A size is V x E x G x k: tokens, experts, granularity and experts per token. So k G of E G experts work on a token.
Tokens follow Zipf's law: the share of token i is proportional to 1/(i + 1). Loads are expected values, without
sampling.

Each line has the largest load over the mean, for all choices together and for the most uneven choice (a column of the
table). It also has the least possible value for all choices, and the number of different sets of experts.

The least possible value is the larger of 1 and the largest token share times E/k (G cancels). The seed fixes the
uniforms of random, multi and bigram, and the normal embeddings [V, 8] of clustered and dispersed. The counts of
balanced are the shares times ten million. All positions are equally frequent. The two tokens of a bigram are
independent. Some sizes lack a hash: multi needs k = 1 and G > 1, and bigram needs k = G = 1. The clusters of the larger
sizes take half a minute each.
"""

import sys
from typing import NamedTuple

import numpy as np

from routelaws.accelerated.results.blocks import Table, markdown

SIZES = ("1024x16x1x1", "1024x16x4x1", "32000x4x4x1", "32000x16x1x2", "32000x16x4x1", "32000x64x4x1", "32000x64x4x2")

DIMENSION = 8
"""Width of the embeddings."""

POSITIONS, SEED = 1024, 0
"""Positions of the position hash; seed of tables and embeddings."""

COUNTED = 10_000_000
"""Tokens of the text that the balanced table counts."""


class Result(NamedTuple):
    """One line of the table."""

    size: str
    hash: str
    largest: float  # largest over mean load, all choices together
    choice: float  # largest over mean load of the worst choice
    least: float  # lower limit of `largest` for any table
    sets: int  # different sets of experts


def zipf(vocab_size: int) -> np.ndarray:
    """Return the shares of the tokens, [V], the most frequent first."""
    shares = 1 / np.arange(1, vocab_size + 1)
    return shares / shares.sum()


def build(config, shares: np.ndarray, seed: int) -> np.ndarray:
    from routelaws.accelerated.routed_block import hash_table

    random, shape = np.random.default_rng(seed), (config.vocab_size, config.choices)
    numbers = {
        "random": lambda: {"uniforms": random.random(shape)},
        "multi": lambda: {"uniforms": random.random(shape)},
        "bigram": lambda: {"uniforms": random.random((2, config.vocab_size))},
        "balanced": lambda: {"counts": np.rint(shares * COUNTED).astype(np.int64)},
        "clustered": lambda: {"embeddings": random.standard_normal((config.vocab_size, DIMENSION))},
        "dispersed": lambda: {"embeddings": random.standard_normal((config.vocab_size, DIMENSION))},
    }.get(config.hash, dict)()
    return np.asarray(hash_table(config, **numbers))


def loads_of(table: np.ndarray, shares: np.ndarray, num_experts: int) -> np.ndarray:
    """Return the load of each expert by each choice, [k, E], as shares of the tokens."""
    return np.array([np.bincount(column, shares, num_experts) for column in table.T])


def measure(config, positions: int, seed: int) -> Result:
    from routelaws.accelerated.routers.hash_layer import modulo_table

    shares, experts, choices = zipf(config.vocab_size), config.expert_count, config.choices
    size = f"{config.vocab_size}x{config.experts}x{config.granularity}x{config.k}"
    if config.hash == "position":
        shares = np.full(positions, 1 / positions)
        table = modulo_table(positions, experts, choices)
    else:
        table = build(config, shares, seed)
    if config.hash == "bigram":  # an expert is the sum of two modulo E, so its shares are a cyclic convolution
        first, second = loads_of(table.T, shares, experts)
        load = experts * max(first @ second[(expert - np.arange(experts)) % experts] for expert in range(experts))
        return Result(size, config.hash, load, load, max(1.0, shares[0] ** 2 * experts), experts)
    loads = loads_of(table, shares, experts)
    reached = config.experts if config.hash == "multi" else experts  # each choice of "multi" has own experts
    sets, least = len(np.unique(np.sort(table, axis=1), axis=0)), max(1.0, shares[0] * experts / choices)
    return Result(size, config.hash, loads.sum(axis=0).max() * experts / choices, loads.max() * reached, least, sets)


HEADS = ["V x E x G x k", "hash", "largest / mean", "of one choice", "least possible", "sets"]


def cells(line: Result) -> list[str]:
    return [line.size, line.hash, f"{line.largest:.2f}", f"{line.choice:.2f}", f"{line.least:.2f}", f"{line.sets:,}"]


def table(lines: list[Result]) -> str:
    return markdown([Table(HEADS, [cells(line) for line in lines])])


def lines_of(size: str) -> list[Result]:
    """Return the lines of a size, one for each hash that the size can have."""
    from routelaws.reference.configuration import HASHES, ModelConfig

    V, E, G, k = map(int, size.split("x"))
    fields = dict(vocab_size=V, experts=E, granularity=G, k=k, d_model=2 * G, heads=1, router="hash")
    possible = {"multi": k == 1 and G > 1, "bigram": k * G == 1}
    return [measure(ModelConfig(**fields, hash=kind), POSITIONS, SEED) for kind in HASHES if possible.get(kind, True)]


if __name__ == "__main__":
    print(table([line for size in sys.argv[1:] or SIZES for line in lines_of(size)]), end="")
