"""The joint law of dense and routed models: how the loss depends on active parameters, tokens and experts together.

Step by step, with sources and examples: `routelaws.reference.laws.joint`.

    L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c
    1/Ê = 1 / (E - 1 + (1/E_start - 1/E_max)⁻¹) + 1/E_max

with N the active parameters, D the tokens, and E the number of experts.

What differs here: the fit, as `additive.py` says.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import _smooth
from ._columns import check_range, log_growth
from .additive import AdditiveFit, AdditiveInterval, Published

_COLUMNS = ("active_parameters", "tokens", "num_experts")

VOCABULARY = 50_257
"""V of the models of the paper, the tokenizer of GPT-2."""

WIDTH_PER_BLOCK = 64
"""d over the number of blocks, and over the number of heads, of the models of the paper."""


class JointCoefficients(NamedTuple):
    """The eleven coefficients of the law.

    Attributes:
        a: nats, the first term at N = 1 and Ê = 1
        alpha: power of N at Ê = 1, below 0
        delta: power of Ê in the first term at N = 1
        gamma: how much the power of N changes with ln Ê
        b: nats, the second term at D = 1 and Ê = 1
        beta: power of D at Ê = 1, below 0
        omega: power of Ê in the second term at D = 1
        zeta: how much the power of D changes with ln Ê
        E_start: Ê of a dense model
        E_max: limit of Ê; may be math.inf
        c: nats, the floor
    """

    a: float
    alpha: float
    delta: float
    gamma: float
    b: float
    beta: float
    omega: float
    zeta: float
    E_start: float
    E_max: float
    c: float


class AtExperts(NamedTuple):
    """The law at one E: L = m N^mu + n D^nu + c.

    Attributes:
        m: nats, the first term at N = 1
        mu: power of N
        n: nats, the second term at D = 1
        nu: power of D
        c: nats, the floor
    """

    m: float
    mu: float
    n: float
    nu: float
    c: float


PUBLISHED = {
    "joint": Published(
        JointCoefficients(
            35.91, -0.1889, -0.2285, 0.0098, 35.98, -0.1775, 0.5529, -0.0259, 2.0732, 290.4521, 1.3637
        ),
        "Ludziejewski et al. 2025, arXiv 2502.05172, table 3",
        "read in the paper, four digits; its table 4 follows from it within 0.3 %",
    )
}  # fmt: skip
"""Printed coefficients."""


def at_experts(num_experts: float, coefficients: JointCoefficients) -> AtExperts:
    """Return the law at one number of experts.

    Args:
        num_experts: E, at least 1.
        coefficients: the law.
    """
    log = float(_log_effective(num_experts, coefficients))
    return AtExperts(
        coefficients.a * math.exp(coefficients.delta * log),
        coefficients.alpha + coefficients.gamma * log,
        coefficients.b * math.exp(coefficients.omega * log),
        coefficients.beta + coefficients.zeta * log,
        coefficients.c,
    )


def predict_joint(
    active_parameters: np.ndarray, tokens: np.ndarray, num_experts: np.ndarray, coefficients: JointCoefficients
) -> np.ndarray:
    """Return the loss L of the law.

    Args:
        active_parameters: N, with embedding and unembedding, above 0.
        tokens: D, above 0.
        num_experts: E, at least 1; the three are broadcast against each other.
        coefficients: the law.

    Returns:
        L, nats per token, the broadcast shape.

    Raises:
        ValueError: an entry is out of its range, or E_max is not above E_start.
    """
    log_size = np.log(check_range("active_parameters", active_parameters, above=0.0))
    log_data = np.log(check_range("tokens", tokens, above=0.0))
    log = _log_effective(num_experts, coefficients)
    a, alpha, delta, gamma, b, beta, omega, zeta, _, _, c = coefficients
    with np.errstate(over="ignore", invalid="ignore"):  # inf times 0, of a factor that ran away: no number, NaN
        of_size = a * np.exp(delta * log + (alpha + gamma * log) * log_size)
        return of_size + b * np.exp(omega * log + (beta + zeta * log) * log_data) + c


def fit_joint(
    active_parameters: np.ndarray,
    tokens: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """Fit the law to a table of dense and routed runs; see `additive.fit_additive`.

    The paper's own fit has δ = 0.01, a small weight decay, and a weighting of runs that it does not print.

    Args:
        active_parameters, tokens, num_experts, loss: [n] each: N, D, E and L.
        huber: δ in natural logarithms, or None for least squares.
        starts: [s, 11], coefficients to begin from, E_max finite; None for our own.

    Returns:
        The fit. Where no row is far enough up to tell E_max from infinity, E_max is inf, and the status says so.
        E_start may be below 1, unlike in `fitting.py`.

    Raises:
        ValueError: as `additive.fit_additive`, or fewer than 4 different E.

    Differs from the reference: compiled loops, which threads share out; the first fit on a machine compiles them.
    """
    columns, loss = _checked(active_parameters, tokens, num_experts, loss)
    return AdditiveFit(*_smooth.fitted(_joint(), JointCoefficients, columns, loss, huber, starts))


def joint_intervals(
    active_parameters: np.ndarray,
    tokens: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, or of L at the points `at` = (N [m], D [m], E [m]).

    See `additive.additive_intervals`.

    Differs from the reference: compiled loops look for both ends of all intervals together, by false position.
    """
    columns, loss = _checked(active_parameters, tokens, num_experts, loss)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_joint(), columns, loss, huber, level, points)]


def joint_total(d_model: np.ndarray, num_experts: float, vocab_size: int = VOCABULARY) -> np.ndarray:
    """Return all parameters of a model, 2 d V + (4 + 9E) d² · d/64: embeddings, attention, experts of 9 d² each.

    Args:
        d_model: d, above 0; any number, though models have multiples of 64.
        num_experts: E, at least 1.
        vocab_size: V.
    """
    d = check_range("d_model", d_model, above=0.0)
    experts = check_range("num_experts", num_experts, least=1.0)
    return d * (2 * vocab_size + (4 + 9 * experts) / WIDTH_PER_BLOCK * d * d)


def joint_active(d_model: np.ndarray, vocab_size: int = VOCABULARY) -> np.ndarray:
    """Return the active parameters N of a model, which are all parameters of the dense one, 2 d V + 13 d² · d/64."""
    return joint_total(d_model, 1.0, vocab_size)


def joint_cache(d_model: np.ndarray, cached_tokens: float) -> np.ndarray:
    """Return the numbers that the key-value cache holds, 2 T d · d/64 for T tokens: multi-head attention, no
    sharing.
    """
    d = check_range("d_model", d_model, above=0.0)
    return 2 * cached_tokens / WIDTH_PER_BLOCK * d * d


def _log_effective(num_experts: np.ndarray, coefficients: JointCoefficients) -> np.ndarray:
    """Return ln Ê."""
    E_start, E_max = coefficients.E_start, coefficients.E_max
    if not 0 < E_start < E_max:
        raise ValueError(f"E_start is {E_start} and E_max is {E_max}; needed: 0 < E_start < E_max")
    extra = check_range("num_experts", num_experts, least=1.0) - 1.0
    return math.log(E_start) + log_growth(extra, E_start, E_max)


def _checked(active_parameters, tokens, num_experts, loss) -> tuple[tuple, np.ndarray]:
    values = dict(zip(_COLUMNS, (active_parameters, tokens, num_experts), strict=True))
    columns, loss = _smooth.check_table("joint", values, loss, 11)
    if (count := np.unique(columns[2]).size) < 4:
        raise ValueError(f"{count} different num_experts; E_start and E_max cannot be told apart with fewer than 4")
    return columns, loss


@functools.cache
def _joint():
    """Return the form of the law. A row's third log is E - 1 itself, counted from 0."""
    from ..kernels.law_terms import JOINT
    from . import _descent

    return _descent.Form(
        JointCoefficients._fields,
        (True, False, False, False, True, False, False, False, True, True, True),
        (0.0, *[math.nan] * 3, 0.0, *[math.nan] * 4, math.inf, 0.0),
        _descent.law_of(JOINT),
        _internal,
        lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0]),
        lambda logs: np.array([*logs[:2].mean(axis=1), 0.0]),
        _starts,
    )


def _internal(values, centres: np.ndarray) -> np.ndarray:
    """Return θ of coefficients; see `_natural` of the reference."""
    E_start, E_max, c = values[8:]
    rest = 1 - E_start / E_max
    s, found = math.log(E_start), []
    for first in (0, 4):
        multiplier, power, gain, turn = values[first : first + 4]
        centre = centres[first // 4]
        log = math.log(multiplier) + power * centre + (gain + turn * centre) * s
        found += [log, power + turn * s, gain + turn * centre, turn]
    return np.array([*found, math.log(rest**2 / E_start), math.log(rest / E_max), math.log(c)])


def _starts(logs: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return the 48 starts of the reference, [48, 11]."""
    from ._descent import ABSENT

    low = math.log(1.0 / logs[2].max())
    return np.array(
        [
            [shares[0], power, -0.2, 0.0, shares[1], power, 0.0, 0.0, math.log(0.5), bend, shares[2]]
            for shares in _smooth.share_out(3, True, log_loss)
            for power in (-0.15, -0.4)
            for bend in (low, ABSENT)
        ]
    )
