"""See `routelaws.reference.laws.joint`.

What differs here: the fit, as `additive.py` says, with derivatives by forward mode.
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

WIDTH_PER_BLOCK = 64


class JointCoefficients(NamedTuple):
    """See reference."""

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
    """See reference."""

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


def at_experts(num_experts: float, coefficients: JointCoefficients) -> AtExperts:
    """See reference."""
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
    """See reference."""
    log_size = np.log(check_range("active_parameters", active_parameters, above=0.0))
    log_data = np.log(check_range("tokens", tokens, above=0.0))
    log = _log_effective(num_experts, coefficients)
    a, alpha, delta, gamma, b, beta, omega, zeta, _, _, c = coefficients
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
    """See reference."""
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
    """See reference."""
    columns, loss = _checked(active_parameters, tokens, num_experts, loss)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_joint(), columns, loss, huber, level, points)]


def joint_total(d_model: np.ndarray, num_experts: float, vocab_size: int = VOCABULARY) -> np.ndarray:
    """See reference."""
    d = check_range("d_model", d_model, above=0.0)
    experts = check_range("num_experts", num_experts, least=1.0)
    return d * (2 * vocab_size + (4 + 9 * experts) / WIDTH_PER_BLOCK * d * d)


def joint_active(d_model: np.ndarray, vocab_size: int = VOCABULARY) -> np.ndarray:
    """See reference."""
    return joint_total(d_model, 1.0, vocab_size)


def joint_cache(d_model: np.ndarray, cached_tokens: float) -> np.ndarray:
    """See reference."""
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
    """Return the form of the law. A row's third log is E - 1 itself, and its centre is not used."""
    import jax.numpy as jnp

    from . import _descent

    def value(theta, logs, centres):
        n, d, x = logs[:, 0] - centres[0], logs[:, 1] - centres[1], logs[:, 2]
        rise, bend = jnp.exp(theta[8:10])
        psi = jnp.log1p(rise * x / (1 + bend * x))
        of_size = theta[0] + theta[1] * n + (theta[2] + theta[3] * n) * psi
        of_data = theta[4] + theta[5] * d + (theta[6] + theta[7] * d) * psi
        return jnp.logaddexp(jnp.logaddexp(of_size, of_data), theta[10])

    def natural(theta, centres):
        rise, bend = jnp.exp(theta[8:10])
        both = rise + bend
        s = theta[8] - 2 * jnp.log(both)
        found = []
        for first in (0, 4):
            level, power, gain, turn = theta[first : first + 4]
            centre = centres[first // 4]
            log = level - gain * s - (power - turn * s) * centre
            found += [jnp.exp(log), power - turn * s, gain - turn * centre, turn]
        return jnp.stack([*found, jnp.exp(s), jnp.exp(theta[8] - jnp.log(both) - theta[9]), jnp.exp(theta[10])])

    def internal(values, centres):
        E_start, E_max, c = values[8:]
        rest = 1 - E_start / E_max
        s, found = math.log(E_start), []
        for first in (0, 4):
            multiplier, power, gain, turn = values[first : first + 4]
            centre = centres[first // 4]
            log = math.log(multiplier) + power * centre + (gain + turn * centre) * s
            found += [log, power + turn * s, gain + turn * centre, turn]
        return np.array([*found, math.log(rest**2 / E_start), math.log(rest / E_max), math.log(c)])

    def starts(logs, centres, log_loss):
        low = math.log(1.0 / logs[:, 2].max())
        return np.array(
            [
                [shares[0], power, -0.2, 0.0, shares[1], power, 0.0, 0.0, math.log(0.5), bend, shares[2]]
                for shares in _smooth.share_out(3, True, log_loss)
                for power in (-0.15, -0.4)
                for bend in (low, _descent.ABSENT)
            ]
        )

    return _descent.Form(
        JointCoefficients._fields,
        (True, False, False, False, True, False, False, False, True, True, True),
        (0.0, *[math.nan] * 3, 0.0, *[math.nan] * 4, math.inf, 0.0),
        _descent.with_derivatives(value),
        natural,
        internal,
        lambda values: np.stack([np.log(values[0]), np.log(values[1]), values[2] - 1.0], axis=1),
        starts,
    )
