"""Generated tables of runs for the tests of the laws, and the released table."""

import csv
import gzip
from typing import NamedTuple

import numpy as np
from hypothesis import Phase
from hypothesis import strategies as st

from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

SIZES = (16_527_360.0, 27_279_360.0, 57_369_600.0, 132_163_584.0, 368_123_904.0, 1_308_819_456.0)
EXPERTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

NO_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes where an example takes a second

TABLE_3 = {
    "S-Base": RoutedCoefficients(-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "RL-R": RoutedCoefficients(-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    "Hash": RoutedCoefficients(-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
}
"""The paper's Table 3, as printed."""


LAW = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
"""A law near those of Table 3."""


class Runs(NamedTuple):
    dense_parameters: np.ndarray
    num_experts: np.ndarray
    loss: np.ndarray


def grid(noise: float, seed: int, law=LAW, sizes=SIZES, experts=EXPERTS) -> Runs:
    """Return a full grid of a law, with normal noise in log10 L."""
    size, count = (v.ravel() for v in np.meshgrid(sizes, experts))
    scatter = np.random.default_rng(seed).normal(0, noise, size.size)
    return Runs(size, count, predict_loss(size, count, law) * 10**scatter)


def near_linear(noise: float) -> Runs:
    """Return rows that are linear in E, so that the data do not determine the scale of Ê."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    log_loss = 1.1 - 0.08 * np.log10(size) - 0.05 * (experts - 1) / 511
    return Runs(size, experts, 10 ** (log_loss + np.random.default_rng(3).normal(0, noise, size.size)))


def linear_design(name: str, size: np.ndarray, experts: np.ndarray, sizes: np.ndarray | None = None) -> np.ndarray:
    """Return [n, p], the columns of a linear law. Per-size lines have first b of every size, then d of every size."""
    x, e, one = np.log10(size), np.log10(experts), np.ones(size.size)
    if name == "per-size":
        here = size[:, None] == (np.unique(size) if sizes is None else sizes)
        return np.concatenate([here * e[:, None], here * one[:, None]], axis=1)
    return np.stack({"dense": [-x, one], "separable": [x, e, one], "bilinear": [x, e, x * e, one]}[name], axis=1)


@st.composite
def laws(draw) -> RoutedCoefficients:
    """Draw coefficients in and around the fitted range. Edges of the domain are included."""
    E_start = draw(st.sampled_from([1.0, 1.3, 2.0, 4.2, 9.0]))
    E_max = draw(st.sampled_from([20.0, 120.0, 470.0, 5e4, float("inf")]))
    a, b, c = draw(st.floats(-0.12, -0.06)), draw(st.floats(-0.2, -0.05)), draw(st.floats(-0.004, 0.013))
    return RoutedCoefficients(a, b, c, draw(st.floats(0.9, 1.3)), E_start, E_max)


@st.composite
def grids(draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw sizes and expert counts: a full grid, a grid with holes, with repeated rows, or with every E once."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=6, unique=True))
    experts = draw(st.lists(st.sampled_from(EXPERTS), min_size=5, max_size=9, unique=True))
    cells = [(size, count) for size in sorted(sizes) for count in sorted(experts)]
    kind = draw(st.sampled_from(["full", "holes", "repeats", "scattered"]))
    if kind == "holes" and len(cells) >= 20:
        cells = [cell for i, cell in enumerate(cells) if i % 7 != 3]
    if kind == "repeats":
        cells = cells + cells[::3]
    size, count = np.array(cells).T
    if kind == "scattered":  # each row has another factor on E - 1, up to 4/3
        count = 1 + (count - 1) * (1 + np.arange(count.size) / (3 * count.size))
    return size, count


@st.composite
def exact_tables(draw) -> tuple[Runs, RoutedCoefficients]:
    law = draw(laws())
    sizes = draw(st.sampled_from([SIZES, SIZES[::2], SIZES[:3]]))
    size, count = (v.ravel() for v in np.meshgrid(sizes, draw(st.sampled_from([EXPERTS, EXPERTS[::2] + (512.0,)]))))
    return Runs(size, count, predict_loss(size, count, law)), law


@st.composite
def noisy_tables(draw) -> Runs:
    """Draw rows of a law with noise, sometimes with an outlier, sometimes with losses that follow no law."""
    size, count = draw(grids())
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=size.size)
    kind = draw(st.sampled_from(["quiet", "loud", "outlier", "lawless"]))
    log_loss = np.log10(predict_loss(size, count, draw(laws())))
    if kind == "lawless":
        log_loss = log_loss.mean() + 0.0 * log_loss
    log_loss = log_loss + noise * {"quiet": 3e-4, "loud": 1e-2, "outlier": 3e-3, "lawless": 3e-2}[kind]
    if kind == "outlier":
        log_loss[size.size // 2] += 0.1
    return Runs(size, count, 10.0**log_loss)


def released_last_rows() -> list[dict]:
    """Return the last evaluation of every run of the released table, as text; see `released_file`.

    The standard library reads the table, so this does not depend on the reader under test.
    """
    last: dict[str, dict] = {}
    with gzip.open(released_file("curves.csv.gz"), "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["hyper_id"] not in last or int(row["step"]) >= int(last[row["hyper_id"]]["step"]):
                last[row["hyper_id"]] = row
    return list(last.values())


def released_runs(router: str, loss_column: str = "loss_validation", seeds: tuple[str, ...] = ("42",)) -> Runs:
    """Return the rows of the paper's fits (seed 42), without runs that lack this loss at the last step."""
    rows = [
        row
        for row in released_last_rows()
        if row["routing_frequency"] == "0.5"
        and row["k"] == "1"
        and row["seed"] in seeds
        and row["router_type"] in (router, "Dense")
        and row[loss_column]
    ]
    columns = ("dense_parameter_count", "num_experts", loss_column)
    return Runs(*(np.array([float(row[name]) for row in rows]) for name in columns))
