"""The joint law of dense and routed models: the loss as a function of active parameters, training tokens and experts
per layer.

After Ludziejewski et al. 2025, "Joint MoE Scaling Laws" (arXiv 2502.05172):

    L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c

where  L  loss at the end of training, nats per token
       N  active parameters, including embedding and unembedding; a token uses one expert
       D  training tokens
       E  experts per layer; E = 1 is the dense model
       Ê  effective experts, by the equation of `routed.py`: E_start at E = 1, never above E_max

α and β are below 0 here; in `hoffmann.py` they are above 0. At one E this is the law of Hoffmann et al. with
coefficients that depend on E,

    L = m N^μ + n D^ν + c,   m = a Ê^δ,  μ = α + γ ln Ê,  n = b Ê^ω,  ν = β + ζ ln Ê           (`at_experts`)

so it has a compute-optimal N and D at each E (`planning.py`).

The fit. Write x = E - 1 and, as in `fitting.py`, Ê = E_start · (1 + rise·x/(1 + bend·x)). Let ψ(x) be the ln of the
bracket, so ln Ê = ln E_start + ψ. Then ln of the first term is

    (ln a + δ s) + δ ψ + (α + γ s) ln N + γ ψ ln N,   s = ln E_start

At a given ψ this is linear in four unknowns: the first bracket, δ, (α + γ s) and γ. The second term has the same form.
The fit subtracts from ln N and ln D their means, as in `additive.py`. It has eleven unknowns: four for each term, ln c,
ln bend, and ln u with rise = u + 0.1 bend. If a few experts give the whole gain, the best E_start and E_max are nearly
equal, and the other coefficients grow without end although the predictions hardly change. So E_max = E_start (1 +
rise/bend) exceeds E_start by at least 10 % (our choice). The derivatives of ψ are

    ∂ψ/∂ln rise = rise·x / (1 + bend·x + rise·x)
    ∂ψ/∂ln bend = -rise·bend·x² / ((1 + bend·x)(1 + bend·x + rise·x))

Compare predicted losses, not coefficients: only μ and ν at an E of the table are well-conditioned. E_start and E_max
are ill-conditioned if no run has more than 32 experts. This is so in the paper.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..numerics import _smooth
from ..numerics._columns import effective, log_sum
from ..numerics._descent import ABSENT, Form
from ..numerics._projection import check_range
from .additive import AdditiveFit, AdditiveInterval, Published

_COLUMNS = ("active_parameters", "tokens", "num_experts")
_LEAST_EXPERT_COUNTS = 4  # two values fix the scale of ψ, and two more fix rise and bend

LEAST_RISE = 0.1
"""E_max exceeds E_start by at least this share. At less, a and b may exceed float64."""

VOCABULARY = 50_257
"""V of the models of the paper, the tokenizer of GPT-2."""

WIDTH_PER_BLOCK = 64
"""The width d divided by the number of blocks, or of heads, in the models of the paper."""


class JointCoefficients(NamedTuple):
    """The eleven coefficients of the joint law.

    Attributes:
        a: nats, the first term at N = 1 and Ê = 1
        alpha: power of N at Ê = 1, below 0
        delta: power of Ê in the first term at N = 1
        gamma: change of the power of N per unit of ln Ê
        b: nats, the second term at D = 1 and Ê = 1
        beta: power of D at Ê = 1, below 0
        omega: power of Ê in the second term at D = 1
        zeta: change of the power of D per unit of ln Ê
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
    """The joint law at one number of experts: L = m N^mu + n D^nu + c.

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


def _from_billions(law: JointCoefficients) -> JointCoefficients:
    """Convert a law whose N and D are in billions to a law whose N and D are plain numbers.

    The first term has (N/1e9)^μ = 1e9^-α Ê^(-γ ln 1e9) N^μ. The second has the same form.
    """
    unit = math.log(1e9)
    return law._replace(
        a=law.a * math.exp(-law.alpha * unit),
        delta=law.delta - law.gamma * unit,
        b=law.b * math.exp(-law.beta * unit),
        omega=law.omega - law.zeta * unit,
    )


PUBLISHED = {
    "joint": Published(
        JointCoefficients(
            35.91, -0.1889, -0.2285, 0.0098, 35.98, -0.1775, 0.5529, -0.0259, 2.0732, 290.4521, 1.3637
        ),
        "Ludziejewski et al. 2025, arXiv 2502.05172, table 3",
        "read in the paper (four digits); the law gives its table 4 within 0.3 %",
    ),
    "looped": Published(
        _from_billions(
            JointCoefficients(
                0.8085, -0.1951, -0.1935, -0.0137, 3.4291, -0.7548, -0.2056, 0.0881, 1.3174, 57.12, 1.3555
            )
        ),
        "the law of looped MoE models (Meta 2026) without loops; E is experts over k",
        "read in the source's text, which does not print the unit of N and D; we infer billions from its numbers "
        "(the law then gives 1.968 at N = 1e9, D = 5e11, E = 8)",
    ),
}  # fmt: skip
"""Printed coefficients."""


def at_experts(num_experts: float, coefficients: JointCoefficients) -> AtExperts:
    """Return the joint law at one number of experts.

    Args:
        num_experts: E, at least 1.
        coefficients: the law.

    Raises:
        ValueError: E is below 1, or m or n is beyond the range of float64.

    Example:
        Ê = 2 at E = 1, so m = 3 · 2⁻¹ and n = 5 · 2².

        >>> law = JointCoefficients(3.0, -0.2, -1.0, 0.0, 5.0, -0.3, 2.0, 0.0, 2.0, math.inf, 1.5)
        >>> at_experts(1, law)
        AtExperts(m=1.5, mu=-0.2, n=20.0, nu=-0.3, c=1.5)
    """
    count = np.float64(_effective(num_experts, coefficients))
    log = math.log(count)
    with np.errstate(over="ignore"):
        m, n = float(coefficients.a * count**coefficients.delta), float(coefficients.b * count**coefficients.omega)
    if not (math.isfinite(m) and math.isfinite(n)):
        raise InputError(f"at {num_experts:g} experts the terms of N and D are {m:g} and {n:g}; needed: finite numbers")
    return AtExperts(
        m,
        coefficients.alpha + coefficients.gamma * log,
        n,
        coefficients.beta + coefficients.zeta * log,
        coefficients.c,
    )


def predict_joint(
    active_parameters: np.ndarray, tokens: np.ndarray, num_experts: np.ndarray, coefficients: JointCoefficients
) -> np.ndarray:
    """Return the loss L that the joint law predicts.

    Args:
        active_parameters: N, with embedding and unembedding, above 0.
        tokens: D, above 0.
        num_experts: E, at least 1; the three broadcast against each other.
        coefficients: the law.

    Returns:
        L in nats per token, with the broadcast shape. A term whose factor is 0 is 0, whatever its exponents.

    Raises:
        ValueError: an entry is out of its range, or E_max is not above E_start.

    Example:
        >>> law = JointCoefficients(3.0, -1.0, -1.0, 0.0, 5.0, -1.0, 2.0, 0.0, 2.0, math.inf, 1.5)
        >>> float(predict_joint(1.5, 20.0, 1, law))  # 1.5/1.5 + 20/20 + 1.5
        3.5
    """
    size = check_range("active_parameters", active_parameters, above=0.0)
    data = check_range("tokens", tokens, above=0.0)
    a, alpha, delta, gamma, b, beta, omega, zeta, _, _, c = coefficients
    count = _effective(num_experts, coefficients)
    log = np.log(count)
    total = np.full(np.broadcast_shapes(size.shape, data.shape, count.shape), c)
    with np.errstate(over="ignore", invalid="ignore"):  # inf times 0, from a diverged factor, is NaN
        if a:
            total = total + a * count**delta * size ** (alpha + gamma * log)
        if b:
            total = total + b * count**omega * data ** (beta + zeta * log)
    return total


def fit_joint(
    active_parameters: np.ndarray,
    tokens: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit the joint law to a table of dense and routed runs; see `additive.fit_additive`.

    The paper's own fit has δ = 0.01, a small weight decay, and weights of runs that the paper does not print.

    Args:
        active_parameters, tokens, num_experts, loss: [n] each: N, D, E and L.
        huber: δ in natural logarithms, or None for least squares.
        starts: [s, 11], starting coefficients, E_max finite; None for the default starts.

    Returns:
        The fit. E_max is inf, and the status reports it, if the rows cannot separate E_max from infinity. E_start may
        be below 1, unlike in `fitting.py`.

    Raises:
        ValueError: `additive.fit_additive` raises this error, there are fewer than 4 different E, or the best fit does
            not change with some coefficients that it needs.
    """
    columns, loss = _checked(active_parameters, tokens, num_experts, loss)
    fit = AdditiveFit(*search(_JOINT, columns, loss, huber, starts))
    error = np.log10(predict_joint(*columns, fit.coefficients) / loss)
    if not np.sqrt(np.mean(error**2)) <= 1.01 * fit.rmsle + 1e-9:  # NaN, or a limit that gives another law
        names = [name for name, value in fit.coefficients._asdict().items() if math.isnan(value)]
        names = ", ".join(names or ("E_start", "E_max"))
        raise InputError(
            f"these rows do not determine the law: its best fit is the same for any {names}; add rows with other "
            "sizes, tokens or num_experts"
        )
    return fit


def joint_intervals(
    active_parameters: np.ndarray,
    tokens: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, or of L at the points `at` = (N [m], D [m], E [m]).

    See `additive.additive_intervals`.
    """
    columns, loss = _checked(active_parameters, tokens, num_experts, loss)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in search(_JOINT, columns, loss, huber, level, points)]


def joint_total(d_model: np.ndarray, num_experts: float, vocab_size: int = VOCABULARY) -> np.ndarray:
    """Return the number of all parameters, 2 d V + (4 + 9E) d² · d/64: embeddings, attention, and 9 d² for each expert.

    Args:
        d_model: d, above 0; it need not be a multiple of 64.
        num_experts: E, at least 1.
        vocab_size: V.

    Example:
        >>> float(joint_total(64, 2, vocab_size=100))  # 2 · 64 · 100 + 22 · 64²
        102912.0
    """
    d = check_range("d_model", d_model, above=0.0)
    experts = check_range("num_experts", num_experts, least=1.0)
    return 2 * d * vocab_size + (4 + 9 * experts) * d**3 / WIDTH_PER_BLOCK


def joint_active(d_model: np.ndarray, vocab_size: int = VOCABULARY) -> np.ndarray:
    """Return the active parameters N of a model, 2 d V + 13 d² · d/64: all parameters of the dense model.

    Example:
        >>> float(joint_active(64, vocab_size=100))
        66048.0
    """
    return joint_total(d_model, 1.0, vocab_size)


def joint_cache(d_model: np.ndarray, cached_tokens: float) -> np.ndarray:
    """Return how many numbers the key-value cache of T tokens has with multi-head attention, 2 T d · d/64.

    Example:
        >>> float(joint_cache(128, 10))
        5120.0
    """
    return 2 * cached_tokens * check_range("d_model", d_model, above=0.0) ** 2 / WIDTH_PER_BLOCK


def _effective(num_experts: np.ndarray, coefficients: JointCoefficients) -> np.ndarray:
    """Return Ê for any E_start above 0. `routed.effective_experts` needs an E_start of 1 or more."""
    E_start, E_max = coefficients.E_start, coefficients.E_max
    if E_start <= 0 or E_start >= E_max:  # NaN, of a fit without an effect of E, gives NaN
        raise InputError(f"E_start is {E_start} and E_max is {E_max}; needed: 0 < E_start < E_max")
    return effective(check_range("num_experts", num_experts, least=1.0) - 1.0, E_start, E_max)


def _checked(active_parameters, tokens, num_experts, loss) -> tuple[tuple, np.ndarray]:
    """Return the table after the checks of `fit_joint`."""
    values = dict(zip(_COLUMNS, (active_parameters, tokens, num_experts), strict=True))
    columns, loss = _smooth.check_table("joint", values, loss, 11)
    count = np.unique(columns[2]).size
    if count < _LEAST_EXPERT_COUNTS:
        raise InputError(
            f"{count} different num_experts; E_start and E_max cannot be determined with fewer than "
            f"{_LEAST_EXPERT_COUNTS}"
        )
    return columns, loss


def _bind(columns: tuple, centres: np.ndarray):
    """Return the function of θ that gives ln L̂ and J. `_natural` gives the order of θ."""
    n, d = (np.log(column) - centre for column, centre in zip(columns[:2], centres, strict=True))
    x, ones = columns[2] - 1.0, np.ones(n.size)

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, second, (log_u, log_bend, log_c) = theta[:4], theta[4:8], theta[8:]
        bend = math.exp(min(log_bend, 700.0))
        rise = math.exp(min(log_u, 700.0)) + LEAST_RISE * bend
        psi = np.log1p(rise * x / (1 + bend * x))
        by_rise = rise * x / (1 + bend * x + rise * x)
        fixed = LEAST_RISE * bend / rise  # the share of rise that grows with bend
        by_bend = by_rise * (fixed - bend * x / (1 + bend * x))
        in_size = np.stack([ones, n, psi, psi * n], axis=1)  # the factors of (ln a, α, δ, γ)
        in_data = np.stack([ones, d, psi, psi * d], axis=1)
        predicted, shares = log_sum(np.stack([in_size @ first, in_data @ second, log_c * ones], axis=1))
        # The two terms change with ψ by δ + γ n and by ω + ζ d.
        with_psi = shares[:, 0] * (first[2] + first[3] * n) + shares[:, 1] * (second[2] + second[3] * d)
        by_shape = with_psi[:, None] * np.stack([by_rise * (1 - fixed), by_bend], axis=1)
        return predicted, np.hstack([shares[:, :1] * in_size, shares[:, 1:2] * in_data, by_shape, shares[:, 2:]])

    return model


def _natural(theta: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the coefficients from θ = (four of the first term, four of the second, ln u, ln bend, ln c).

    With s = ln E_start, ψ = ln Ê - s, and sizes relative to n̄,

        ln a = θ₀ - δ' s - α' n̄ + γ s n̄,  α = α' - γ s,  δ = δ' - γ n̄     for θ = (θ₀, α', δ', γ)
    """
    rise, bend = np.exp(theta[8:10])
    rise += LEAST_RISE * bend
    both = rise + bend  # 1/E_start - 1/E_max
    E_start = rise / both**2
    s, coefficients = np.log(E_start), []
    for (level, power, gain, turn), centre in zip((theta[:4], theta[4:8]), centres, strict=True):
        log = level - gain * s - power * centre + turn * s * centre
        coefficients += [np.exp(log), power - turn * s, gain - turn * centre, turn]
    with np.errstate(over="ignore", divide="ignore"):  # a vanished E_max
        E_max = rise / (both * bend)
    return np.array([*coefficients, E_start, E_max, np.exp(theta[10])])


def _internal(coefficients: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return θ from the coefficients, the inverse of `_natural`."""
    E_start, E_max, c = coefficients[8:]
    rest = 1 - E_start / E_max
    s, theta = math.log(E_start), []
    for (multiplier, power, gain, turn), centre in zip((coefficients[:4], coefficients[4:8]), centres, strict=True):
        power, gain = power + turn * s, gain + turn * centre
        theta += [math.log(multiplier) + gain * s + power * centre - turn * s * centre, power, gain, turn]
    rise, bend = rest**2 / E_start, rest / E_max
    own = max(rise - LEAST_RISE * bend, math.exp(ABSENT))
    return np.array([*theta, math.log(own), math.log(bend), math.log(c)])


def _starts(columns: tuple, centres: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return 48 starts: shares of the loss, powers of N and D below 0, and two values of bend.

    The search stays at the edge E_max = ∞ if ln bend is `ABSENT`.
    """
    top = (columns[2] - 1.0).max()
    starts = []
    for shares in _smooth.share_out(3, True, log_loss):
        for power, bend in itertools.product((-0.15, -0.4), (math.log(1.0 / top), ABSENT)):
            shape = [math.log(0.5), bend]
            starts.append([shares[0], power, -0.2, 0.0, shares[1], power, 0.0, 0.0, *shape, shares[2]])
    return np.array(starts)


_LIMITS = {"a": 0.0, "b": 0.0, "E_start": None, "E_max": math.inf, "c": 0.0}
"""The value of a coefficient that has vanished from the law; None keeps its value, and others are then NaN."""

_JOINT = Form(
    kind=JointCoefficients,
    positive=tuple(name in ("a", "b", "E_start", "E_max", "c") for name in JointCoefficients._fields),
    limits=tuple(_LIMITS.get(name, math.nan) for name in JointCoefficients._fields),
    bind=_bind,
    natural=_natural,
    internal=_internal,
    centres=lambda columns: np.array([np.log(column).mean() for column in columns[:2]]),
    starts=_starts,
)
"""The law in the interface of `_descent.py`."""


# What this file does not do: the best model for a budget (`planning.py`).
