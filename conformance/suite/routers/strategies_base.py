"""Scores for balanced assignments, and three checks of optimality: the bound of the prices, SciPy, and exhaustive
search."""

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.suite.strategies import lattice, seeds, tied

SHAPES = ((1, 1), (5, 1), (1, 4), (6, 8), (13, 3), (14, 4))
"""(T, E): one token, one expert, fewer tokens than experts, E that divides T, and E that does not."""

FAMILIES = ("random", "lattice", "tied", "integer", "anisotropic", "all alike", "one token decides")
SCALES = (0.1, 1.0, 100.0, 1e4)


class Scores(NamedTuple):
    values: np.ndarray  # [T, E], exact in float32
    family: str


def draw_scores(family: str, shape: tuple[int, int], scale: float, seed: int) -> Scores:
    """Return scores of a family. Scaling keeps ties and integers."""
    random = np.random.default_rng(seed)
    values = {
        "random": lambda: random.standard_normal(shape),
        "lattice": lambda: lattice(random, *shape),
        "tied": lambda: tied(random, *shape),
        "integer": lambda: random.integers(-3, 4, shape).astype(float),
        "anisotropic": lambda: (random.standard_normal((shape[0], 6)) + 2) @ random.standard_normal((6, shape[1])),
        "all alike": lambda: np.full(shape, random.choice([0.0, -0.0, 0.1, -1.0])),
        "one token decides": lambda: np.vstack([[1e4], np.ones((shape[0] - 1, 1))]) * random.standard_normal(shape),
    }[family]()
    return Scores((values * scale).astype(np.float32).astype(np.float64), family)


def scores(families=FAMILIES, shapes=SHAPES, scales=SCALES) -> st.SearchStrategy[Scores]:
    return st.builds(draw_scores, *(st.sampled_from(menu) for menu in (families, shapes, scales)), seeds)


def gates_of(values: np.ndarray, gate: str) -> np.ndarray:
    """Return [T, E], the softmax or the sigmoid of each logit."""
    with np.errstate(over="ignore"):  # exp overflows for a large logit; its sigmoid is 0
        e = np.exp(values - values.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True) if gate == "softmax" else 1 / (1 + np.exp(-values))


def check_gates(name: str, routing, values: np.ndarray, gate: str, precision: str, what: str) -> None:
    """Compare the gates of a routing with those of the logits at its experts."""
    gates = np.take_along_axis(gates_of(values, gate), np.asarray(routing.expert), axis=1)
    spread = 2 + np.ptp(values, axis=1, keepdims=True) + np.abs(values).max()
    scale = UNIT[precision] * spread * gates + np.finfo(precision).tiny
    assert_close_bounded(name, routing.gate, gates, scale, what=f"{what}: gate")


def bound_of(values: np.ndarray, prices: np.ndarray, k: int = 1) -> float:
    """Return the upper bound of these prices on every balanced assignment, term by term."""
    num_tokens, num_experts = values.shape
    everyone, more = divmod(num_tokens * k, num_experts)
    total = sum(sum(sorted(row - prices)[-k:]) for row in values)
    total += sum(everyone * price for price in prices)
    return total + sum(sorted(prices, reverse=True)[:more])


def scipy_optimum(values: np.ndarray, k: int = 1) -> float:
    """Return the best objective, as an assignment of pairs (token, expert) to places.

    Every expert has floor(T k / E) places and one more. E - T k mod E dummy rows fill the extra places. Every token has
    E - k places for pairs that are not chosen. At k = 1 one row for each token is enough.
    """
    num_tokens, num_experts = values.shape
    everyone, more = divmod(num_tokens * k, num_experts)
    places = np.repeat(np.arange(num_experts), everyone + (more > 0))
    if k == 1:
        worth = values[:, places]
    else:
        token, expert = (index.ravel() for index in np.indices(values.shape))
        worth = np.where(expert[:, None] == places, values.ravel()[:, None], -np.inf)
        left_out = np.repeat(np.arange(num_tokens), num_experts - k)
        worth = np.hstack([worth, np.where(token[:, None] == left_out, 0.0, -np.inf)])
    if more:
        additional = np.append(places[1:] != places[:-1], True)  # the last place of each expert
        nobody = np.full((num_experts - more, worth.shape[1]), -np.inf)
        nobody[:, np.flatnonzero(additional)] = 0
        worth = np.vstack([worth, nobody])
    row, column = linear_sum_assignment(worth, maximize=True)
    chosen = column[: values.size if k > 1 else num_tokens]
    return worth[row[: len(chosen)], chosen].sum()


def first_optimum(values: np.ndarray, k: int = 1) -> list[tuple]:
    """Return the lexicographically first best balanced assignment, by exhaustive search."""
    num_tokens, num_experts = values.shape
    best, found = -np.inf, None
    for expert in itertools.product(itertools.combinations(range(num_experts), k), repeat=num_tokens):
        load = np.bincount(np.ravel(expert), minlength=num_experts)
        if load.max() - load.min() <= 1:
            total = sum(values[t, e] for t in range(num_tokens) for e in expert[t])
            if total > best:
                best, found = total, list(expert)
    return found
