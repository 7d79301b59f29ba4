"""S-BASE: assign tokens to experts by an entropy-regularised transport plan.

Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169): BASE (Lewis et al. 2021) with
the exact assignment replaced by Sinkhorn's algorithm.

    1. SCORE    zₜₑ = xₜ · wₑ                                                            (the caller)
    2. PLAN     Π = argmax ⟨Π, z⟩ + entropy(Π)  with  Σₑ Πₜₑ = 1/T  and  Σₜ Πₜₑ = 1/E    `sinkhorn_plan`
    3. SELECT   training:   the k experts with the largest Πₜₑ, that is, zₜₑ + gₑ        `sinkhorn_router`
                evaluation: the k experts with the largest zₜₑ
    4. PLACE    with a capacity, if the caller sets one                                 (`experts`)
    5. COMBINE  gate = softmax(z)ₜₑ of each chosen expert                                `gate_values`

**The problem.** A plan divides each token between the experts. Every token has mass 1/T to give, and every expert takes
mass 1/E. The best plan has the largest ⟨Π, z⟩ + entropy(Π) = Σₜₑ Πₜₑ (zₜₑ − log Πₜₑ): mass goes to large logits, and
the entropy spreads the mass. The best plan has the form Πₜₑ = exp(zₜₑ + aₜ + gₑ).

**The sweep.** Sinkhorn's algorithm finds the potentials a and g by correcting rows and columns in turn:

    aₜ ← −log T − log Σₑ exp(zₜₑ + gₑ)          each token has mass 1/T      `_row_step`
    gₑ ← −log E − log Σₜ exp(zₜₑ + aₜ)          each expert has mass 1/E     `_sweep`

**The stop.** The algorithm always ends on a row step, so rows are exact and only the columns have an error:
residual = maxₑ |E Σₜ Πₜₑ − 1|. It stops when the residual is at most the tolerance. A constant added to a row of z, or
to all of z, changes nothing.

**Hard logits.** Larger logits and fewer tokens per expert need more sweeps (see the examples of `sinkhorn_plan`). After
`max_sweeps` sweeps Newton's method continues from their result (`_newton`; skip it on a first reading). The program
returns the better of the two plans, with its `residual` and `converged`.

The plan depends on every token of the group, including later tokens: a training step leaks the future into the choice
of experts. Evaluation uses only the logits and is causal. No gradient flows through the plan.

**The size of the output.** A gate scales the output of an expert down, and softmax gates shrink as E grows. For a token
with equal logits, each softmax gate is 1/E and k gates sum to k/E. Each sigmoid gate is 1/2 and k gates sum to k/2.
Output size of a routed FFN at initialisation, relative to a dense FFN:

    gate             E = 4    E = 16    E = 64    E = 256
    softmax, k = 1    0.5      0.23      0.1       0.04
    softmax, k = 4    0.6      0.31      0.13      0.05
    sigmoid, k = 1    0.71     0.82      0.88      0.92
    sigmoid, k = 4    1.07     1.47      1.68      1.79

The numbers assume uncorrelated outputs of different experts (the example of `gate_values`).

**Ties.** If all logits are equal, all entries of the plan are equal. By the tie rule every token of a training step
then goes to expert 0. The plan is balanced, but the choice is not. So initialise the router with random weights.

Our choices, where the paper's main text gives no detail (docs/choices.md): the kernel is exp of the raw logits (entropy
weight 1); the stopping rule (residual at most 1e-3, 100 sweeps at most, then Newton's method); the softmax gate, not
divided by its sum over the chosen experts (the sigmoid is an option); argmax of the logits in evaluation; k > 1.
"""

import math
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..notation import (
    Routing,
    _among_all,
    _available_experts,
    _check_group,
    _check_k,
    _check_logits,
    _real_tokens,
    _route_available,
    _route_real_tokens,
    log_sum_exp,
    one_hot,
    softmax,
    top_k_indices,
)
from ._newton import newton

GATES = ("softmax", "sigmoid")
"""Names of the functions that turn the logit of a chosen expert into its gate."""


class SinkhornPlan(NamedTuple):
    """The plan and its quality."""

    plan: np.ndarray  # [T, E], rows sum to 1/T exactly (padded rows to 0), columns to 1/E within residual / E
    column_potential: np.ndarray  # [E], the potentials g; only their differences matter
    residual: float  # max over e of |E * (column sum) - 1|
    sweeps: int  # column steps taken
    converged: bool  # residual <= tolerance
    newton_steps: int  # steps taken after the sweeps


def sinkhorn_plan(
    logits: np.ndarray,
    *,
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
    max_newton: int = 200,
    num_sweeps: int | None = None,
    mask: np.ndarray | None = None,
) -> SinkhornPlan:
    """Return the transport plan of T tokens to E experts, each token with mass 1/T and each expert with mass 1/E.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        tolerance: stop when the residual, max over e of |E * (mass of expert e) - 1|, is at most this.
        max_sweeps: switch to Newton's method after this many column steps.
        max_newton: stop after this many Newton steps; 0 for sweeps alone.
        num_sweeps: take exactly this many column steps, for any residual, and ignore the three arguments above.
        mask: [T] bool, True for a real token; T is then the number of real tokens.

    Returns:
        `SinkhornPlan`. Rows sum to 1/T up to rounding, at any scale of the logits.

    Raises:
        ValueError: a logit of a real token is NaN or +∞, a token has no available expert, or a mask has the wrong shape
            or is all False.

    Example:
        Two tokens that both prefer expert 0, the first one more strongly. Each expert gets half of the mass:

        >>> result = sinkhorn_plan(np.log([[8.0, 1.0], [2.0, 1.0]]), tolerance=1e-9)
        >>> np.round(result.plan, 4).tolist()
        [[0.3333, 0.1667], [0.1667, 0.3333]]

        Preferences a thousand times as strong. Sweeps converge slowly here, but Newton's method converges:

        >>> z = np.array([[2000.0, 0.0], [1000.0, 0.0], [990.0, 0.0], [0.0, 0.0]])
        >>> round(sinkhorn_plan(z, max_newton=0).residual, 4)
        0.5
        >>> result = sinkhorn_plan(z)
        >>> np.round(result.plan, 4).tolist(), result.converged
        ([[0.25, 0.0], [0.2483, 0.0017], [0.0017, 0.2483], [0.0, 0.25]], True)

        The number of sweeps for normal logits without Newton's method, three draws each; then, for larger logits, the
        number of Newton steps after the default 100 sweeps:

        >>> def draws(deviation, *shape):
        ...     return [deviation * np.random.default_rng(seed).standard_normal(shape) for seed in range(3)]
        >>> for drawn in (draws(10, 256, 8), draws(10, 64, 32), draws(30, 256, 8)):
        ...     print([sinkhorn_plan(z, max_sweeps=200, max_newton=0).sweeps for z in drawn])
        [33, 39, 34]
        [71, 140, 75]
        [97, 125, 106]
        >>> for drawn in (draws(100, 256, 8), draws(100, 64, 32)):
        ...     print([sinkhorn_plan(z).newton_steps for z in drawn])
        [9, 11, 10]
        [14, 19, 17]
    """
    _check_group("logits", logits)
    options = dict(tolerance=tolerance, max_sweeps=max_sweeps, max_newton=max_newton, num_sweeps=num_sweeps)
    if mask is not None:
        real = _real_tokens(mask, len(logits))
        solved = sinkhorn_plan(np.asarray(logits)[real], **options)
        plan = np.zeros(np.shape(logits))
        plan[real] = solved.plan
        return solved._replace(plan=plan)
    logits = _check_logits("logits", logits)
    available = _available_experts(logits)
    if available is not None:
        solved = sinkhorn_plan(logits[:, available], **options)
        plan, potential = (_among_all(values, available, logits.shape[1]) for values in solved[:2])
        return solved._replace(plan=plan, column_potential=potential)
    if num_sweeps is None:
        g, sweeps = _sweep(logits, tolerance, max_sweeps)
    else:
        g, sweeps = _sweep(logits, -math.inf, num_sweeps)  # no residual is this small, so the sweeps do not end early
    log_plan, _, residual = _row_step(logits, g)
    newton_steps = 0
    if num_sweeps is None and residual > tolerance and max_newton > 0:
        newton_g, newton_steps = newton(_row_step, logits, g, tolerance, max_newton)
        newton_log_plan, _, newton_residual = _row_step(logits, newton_g)
        if newton_residual < residual:
            g, log_plan, residual = newton_g, newton_log_plan, newton_residual
    return SinkhornPlan(np.exp(log_plan), g, float(residual), sweeps, bool(residual <= tolerance), newton_steps)


def _sweep(logits: np.ndarray, tolerance: float, max_sweeps: int) -> tuple[np.ndarray, int]:
    """Return the potentials g [E] and the number of column steps, from g = 0 until the residual is small."""
    num_experts = logits.shape[1]
    g = np.zeros(num_experts)
    for sweeps in range(max_sweeps):
        _, log_mass, residual = _row_step(logits, g)
        if residual <= tolerance:
            return g, sweeps
        g = g - np.log(num_experts) - log_mass  # the column step: log_mass is gₑ + log Σₜ exp(zₜₑ + aₜ)
    return g, max_sweeps


def _row_step(logits: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return log plan [T, E] after a row step, the log of the mass of each expert [E], and the residual."""
    num_tokens, num_experts = logits.shape
    values = logits + g
    # Shifting a row changes nothing. With its maximum at 0, large logits do not add rounding errors to the sums.
    values = values - values.max(axis=1, keepdims=True)
    log_plan = values - log_sum_exp(values, axis=1)[:, None] - np.log(num_tokens)
    log_mass = log_sum_exp(log_plan, axis=0)
    return log_plan, log_mass, np.abs(num_experts * np.exp(log_mass) - 1).max()


def sinkhorn_router(
    logits: np.ndarray,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "softmax",
    num_sweeps: int | None = None,
    mask: np.ndarray | None = None,
    held: Routing | None = None,
) -> Routing:
    """Route a group of tokens by S-BASE.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        training: True selects by the balanced plan (not causal), False by the logits (causal, any group).
        gate: "softmax" or "sigmoid" of the logits.
        num_sweeps: see `sinkhorn_plan`.
        mask: [T] bool, True for a real token. Padded tokens get experts 0 … k−1 with gate 0, and count nowhere.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.

    Returns:
        `Routing`; `plan` is the transport plan in training, and holds 1/(T k) at each chosen expert in evaluation.

    Raises:
        ValueError: an argument is out of its range, no token is real, or fewer than k experts are available.

    Discontinuity: the selection jumps where two entries of a row of the plan (training) or of the logits
    (evaluation) are equal; ties go to the lower index.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> sinkhorn_router(z).expert.ravel().tolist(), sinkhorn_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    _check_group("logits", logits)
    options = dict(k=k, training=training, gate=gate, num_sweeps=num_sweeps)
    if mask is not None:
        return _route_real_tokens(sinkhorn_router, mask, logits, held=held, **options)
    num_tokens, num_experts = logits.shape
    _check_k(k, num_experts)
    logits = _check_logits("logits", logits, k, held=held)
    available = _available_experts(logits)
    if available is not None:
        return _route_available(sinkhorn_router, available, logits, held=held, **options)
    # SELECT
    if held is None:
        if training:
            solved = sinkhorn_plan(logits, num_sweeps=num_sweeps)
            plan, residual = solved.plan, solved.residual
            # aₜ is constant in a row, so z + g has the same order of experts as the plan, and does not underflow.
            expert = top_k_indices(logits + solved.column_potential, k)  # [T, k]
        else:
            expert = top_k_indices(logits, k)
            plan = one_hot(expert, num_experts).sum(axis=1) / (num_tokens * k)
            residual = np.abs(num_experts * plan.sum(axis=0) - 1).max()
        load = one_hot(expert, num_experts).sum(axis=(0, 1)) / (num_tokens * k)  # [E]
        held = Routing(expert, None, load, plan, residual)
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def gate_values(logits: np.ndarray, expert: np.ndarray, gate: str) -> np.ndarray:
    """Return the gate of each chosen expert, [T, k], from logits [T, E] and expert [T, k].

    Raises:
        ValueError: the gate is neither "softmax" nor "sigmoid".

    Example:
        At initialisation, logits of normalised tokens are normal with deviation 0.88 (`transformer.TRUNCATION`). The
        size (root mean square) of the gated sum of uncorrelated outputs is √(Σ gate²) times the size of one output. For
        each E: k = 1, 2, 4 for the softmax, then for the sigmoid:

        >>> for num_experts in (4, 16, 64, 256):
        ...     z = 0.88 * np.random.default_rng(0).standard_normal((4000, num_experts))
        ...     gates = [gate_values(z, top_k_indices(z, k), gate) for gate in GATES for k in (1, 2, 4)]
        ...     print(num_experts, [round(float(np.sqrt((each**2).sum(axis=1).mean())), 2) for each in gates])
        4 [0.5, 0.57, 0.6, 0.71, 0.91, 1.07]
        16 [0.23, 0.27, 0.31, 0.82, 1.11, 1.47]
        64 [0.1, 0.11, 0.13, 0.88, 1.22, 1.68]
        256 [0.04, 0.04, 0.05, 0.92, 1.29, 1.79]
    """
    if gate not in GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    if gate == "softmax":
        activated = softmax(logits)
    else:
        small = np.exp(-np.abs(logits))  # 1 / (1 + exp(-z)) would overflow for z below -709
        activated = np.where(logits >= 0, 1, small) / (1 + small)
    return np.take_along_axis(activated, expert, axis=1)
