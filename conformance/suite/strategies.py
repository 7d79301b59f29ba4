"""Inputs of tests: generated in a few shapes, because every new shape is compiled; and released tables.

Tests compare indices only for `lattice` and `tied` rows; for other families they compare admissible sets.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from routelaws.conformance.engine.harness import PRECISIONS
from routelaws.reference import transformer
from routelaws.reference.routers.records import EXAMPLES

SHAPES = ((1, 1), (5, 1), (8, 2), (13, 3), (6, 8), (14, 4))
"""(T, E): one token, one expert, fewer tokens than experts, and more. E divides T only for one or two experts."""

CHOICES = {1: (1,), 2: (1, 2), 3: (1, 2), 4: (1, 3), 8: (2, 3)}
"""The values of k for a number of experts E: at most two, because each one is compiled."""

FAMILIES = ("lattice", "tied", "free", "skewed", "extreme")

seeds = st.integers(0, 2**32 - 1)
precisions = st.sampled_from(PRECISIONS)


class Logits(NamedTuple):
    values: np.ndarray  # [T, E], exact in float32
    family: str
    k: int


def lattice(random: np.random.Generator, num_tokens: int, num_experts: int) -> np.ndarray:
    """Return rows that are permutations of 0 … E-1 plus an offset, times 1/8: exact in bfloat16, no ties in a row."""
    rows = np.array([random.permutation(num_experts) for _ in range(num_tokens)])
    return (rows + random.integers(-20, 20, (num_tokens, 1))) / 8


def tied(random: np.random.Generator, num_tokens: int, num_experts: int) -> np.ndarray:
    """Return rows of two or three different values. Zeros of both signs are among them."""
    values = random.choice([-0.5, -0.0, 0.0, 0.5], (num_tokens, num_experts))
    values[random.random(num_tokens) < 0.3] = -0.0
    return values


@st.composite
def logits(draw, families=FAMILIES, shapes=SHAPES) -> Logits:
    num_tokens, num_experts = draw(st.sampled_from(shapes))
    family = draw(st.sampled_from(families))
    random = np.random.default_rng(draw(seeds))
    if family == "lattice":
        values = lattice(random, num_tokens, num_experts)
    elif family == "tied":
        values = tied(random, num_tokens, num_experts)
    elif family == "free":
        entries = st.floats(-8, 8, width=32, allow_subnormal=False)
        values = draw(numpy_strategies.arrays(np.float64, (num_tokens, num_experts), elements=entries))
    else:
        values = random.standard_normal((num_tokens, num_experts))
        if family == "skewed":
            values = values + 3 * np.arange(num_experts) - 1.5 * num_experts
        else:
            values = values * draw(st.sampled_from([30.0, 100.0]))
    k = draw(st.sampled_from(CHOICES[num_experts]))
    return Logits(values.astype(np.float32).astype(np.float64), family, k)


LOADS = ("random", "one expert", "half the experts", "balanced")


class Selection(NamedTuple):
    expert: np.ndarray  # [T, k], distinct within a row
    num_experts: int
    loads: str
    seed: int  # for other random numbers of the test


@st.composite
def selections(draw, shapes=((1, 1), (7, 1), (9, 4), (4, 8), (16, 3))) -> Selection:
    """Draw selections with very uneven loads; k as in `CHOICES`."""
    num_tokens, num_experts = draw(st.sampled_from(shapes))
    k = draw(st.sampled_from(CHOICES[num_experts]))
    loads = draw(st.sampled_from(LOADS))
    seed = draw(seeds)
    random = np.random.default_rng(seed)
    rows = np.array([random.permutation(num_experts) for _ in range(num_tokens)])
    if loads == "one expert":
        rows = np.broadcast_to(rows[0], rows.shape)
    elif loads == "half the experts":
        few = max(k, num_experts // 2)
        rows = np.array([random.permutation(few) for _ in range(num_tokens)])
    elif loads == "balanced":
        rows = (np.arange(num_tokens)[:, None] + np.arange(num_experts)) % num_experts
    return Selection(np.ascontiguousarray(rows[:, :k]), num_experts, loads, seed)


SMALL = dict(vocab_size=13, d_model=8, heads=2, kqv_size=3)

MODELS = {
    "dense": dict(blocks=3, **SMALL),
    "hash": dict(blocks=4, router="hash", experts=3, **SMALL),
    "hash that drops": dict(blocks=1, router="hash", experts=4, routing_frequency=1.0, capacity_factor=0.75,
                            **SMALL),
    "sinkhorn": dict(blocks=4, router="sinkhorn", experts=4, **SMALL),
    "sinkhorn, k = 3, sigmoid, drops": dict(blocks=4, router="sinkhorn", experts=8, k=3, gate="sigmoid",
                                            routing_frequency=0.25, capacity_factor=0.6, **SMALL),
    "sinkhorn, k = 2, no limit": dict(blocks=3, router="sinkhorn", experts=3, k=2, routing_frequency=1 / 3,
                                      capacity_factor=float("inf"), **SMALL),
    "base": dict(blocks=2, router="base", experts=4, **SMALL),
    "top_k": dict(blocks=2, router="top_k", experts=4, z_weight=0.02, **SMALL),
    "top_k, k = 2, sigmoid, drops": dict(blocks=2, router="top_k", experts=4, k=2, gate="sigmoid",
                                         balance_weight=0.3, capacity_factor=0.7, **SMALL),
    "sinkhorn, one expert": dict(blocks=2, router="sinkhorn", experts=1, routing_frequency=1.0, **SMALL),
}  # fmt: skip
"""Small models: every router, R of 1, 1/2, 1/3 and 1/4, k of 1, 2 and 3, capacities with and without drops."""


def missing_routers(models: dict[str, dict]) -> dict[str, dict]:
    lists = [fields.get("router", "dense").split(",") for fields in models.values()]
    found = {entry.partition(":")[0] for entries in lists for entry in entries}
    return {name: fields for name, fields in EXAMPLES.items() if name not in found}


BATCH, LENGTH = 3, 5
"""b and S of every small model."""


class Case(NamedTuple):
    name: str
    config: transformer.ModelConfig
    params: dict
    tokens: np.ndarray  # [b, S + 1]
    seed: int

    def __repr__(self):
        return f"case({self.name!r}, {self.seed})"


def weights(random: np.random.Generator, node):
    """Return weights for a tree of (shape, deviation). They are far from trivial values of attention, norms and
    gates."""
    if isinstance(node, dict):
        return {child: weights(random, node[child]) for child in sorted(node)}
    shape, deviation = node
    return random.standard_normal(shape) * np.where(deviation == 0, 0.3, 1.5 * deviation) + (deviation == 0)


def case(name: str, seed: int) -> Case:
    config = transformer.ModelConfig(**MODELS[name])
    random = np.random.default_rng(seed)
    tokens = random.integers(0, config.vocab_size, (BATCH, LENGTH + 1))
    if config.router == "base":
        # A router cannot distinguish equal tokens with equal predecessors, and rounding would decide between them.
        tokens[:, 0] = np.arange(BATCH)
        tokens[:, 1] = (tokens[:, 0] + 1 + tokens[:, 1] % (config.vocab_size - 1)) % config.vocab_size
    return Case(name, config, weights(random, transformer.parameter_shapes(config)), tokens, seed)


def cases(names=tuple(MODELS)) -> st.SearchStrategy[Case]:
    return st.builds(case, st.sampled_from(names), seeds)


def released_file(name: str) -> Path:
    """Return the path of a released table of a paper.

    Skip the test if ROUTELAWS_DATA is not set. If it is set, a missing file is a failure.
    """
    folder = os.environ.get("ROUTELAWS_DATA")
    if not folder:
        pytest.skip(f"ROUTELAWS_DATA is not set; set it to the folder of {name}")
    path = Path(folder) / name
    if not path.is_file():
        pytest.fail(f"ROUTELAWS_DATA is {folder}, which has no {name}")
    return path
