"""S-BASE: tokens are shared out among the experts by an entropy-regularised transport plan.

Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169): BASE (Lewis et al. 2021) with
the exact assignment replaced by Sinkhorn's algorithm.

    1. SCORE    zₜₑ = xₜ · wₑ                                                            (the caller)
    2. PLAN     Π = argmax ⟨Π, z⟩ + H(Π)  with  Σₑ Πₜₑ = 1/T  and  Σₜ Πₜₑ = 1/E          `sinkhorn_plan`
    3. SELECT   training:   the k experts with the largest Πₜₑ, that is, zₜₑ + gₑ        `sinkhorn_router`
                evaluation: the k experts with the largest zₜₑ
    4. COMBINE  gate = softmax(z)ₜₑ of each chosen expert

The plan has the form Πₜₑ = exp(zₜₑ + fₜ + gₑ). Sinkhorn alternates between making the rows and the columns right:

    fₜ ← −log T − log Σₑ exp(zₜₑ + gₑ)          each token has mass 1/T
    gₑ ← −log E − log Σₜ exp(zₜₑ + fₜ)          each expert has mass 1/E

It always ends on a row step, so token rows are exact and what is left of the error is in the columns:
residual = maxₑ |E Σₜ Πₜₑ − 1|. Adding a constant to a row of z, or to all of z, changes nothing.

The plan depends on every token of the group, later ones included: a training step leaks the future into the choice of
experts. Evaluation chooses by the logits alone and is causal. No gradient flows through the plan.

Our choices, where the paper is silent: the kernel is exp of the raw logits (entropy weight 1); the stopping rule
(residual at most 1e-3, 100 sweeps at most); the softmax gate (the sigmoid is an option). Plain sweeps need about 36
rounds for logits of scale 10 and 500 for scale 100; beyond `max_sweeps` the residual says how far the plan is from
balanced.

What this file does not do: capacity and dispatch (`experts`).
"""

from typing import NamedTuple

import numpy as np

from ..notation import Routing, check_finite, log_sum_exp, one_hot, softmax, top_k_indices

GATES = ("softmax", "sigmoid")
"""Names of the functions that turn the logit of a chosen expert into its gate."""


class SinkhornPlan(NamedTuple):
    """The plan and how good it is."""

    plan: np.ndarray  # [T, E], rows sum to 1/T exactly, columns to 1/E within residual / E
    column_potential: np.ndarray  # [E], the g of the module docstring; only differences mean anything
    residual: float  # max over e of |E * (column sum) - 1|
    sweeps: int  # column steps taken
    converged: bool  # residual <= tolerance


def sinkhorn_plan(
    logits: np.ndarray, *, tolerance: float = 1e-3, max_sweeps: int = 100, num_sweeps: int | None = None
) -> SinkhornPlan:
    """Share T tokens out among E experts, each token with mass 1/T and each expert with mass 1/E.

    Args:
        logits: [T, E], finite; the raw router logits z.
        tolerance: stop when every expert's mass is within this factor of 1/E.
        max_sweeps: give up after this many column steps.
        num_sweeps: take exactly this many column steps, whatever the residual (overrides the two above).

    Returns:
        `SinkhornPlan`.

    Raises:
        ValueError: a logit is not finite.

    Example:
        Two tokens that both prefer expert 0, the first one more strongly. Each expert gets half of the mass:

        >>> result = sinkhorn_plan(np.log([[8.0, 1.0], [2.0, 1.0]]), tolerance=1e-9)
        >>> np.round(result.plan, 4).tolist()
        [[0.3333, 0.1667], [0.1667, 0.3333]]
    """
    logits = check_finite("logits", logits)
    num_tokens, num_experts = logits.shape
    limit = max_sweeps if num_sweeps is None else num_sweeps
    g = np.zeros(num_experts)
    for sweep in range(limit + 1):
        f = -np.log(num_tokens) - log_sum_exp(logits + g, axis=1)  # [T]
        log_plan = logits + f[:, None] + g  # [T, E]
        log_mass = log_sum_exp(log_plan, axis=0)  # [E]
        residual = np.abs(num_experts * np.exp(log_mass) - 1).max()
        if sweep == limit or (num_sweeps is None and residual <= tolerance):
            break
        g = g - np.log(num_experts) - log_mass
    return SinkhornPlan(np.exp(log_plan), g, float(residual), sweep, bool(residual <= tolerance))


def sinkhorn_router(
    logits: np.ndarray,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "softmax",
    num_sweeps: int | None = None,
    held: Routing | None = None,
) -> Routing:
    """Route a group of tokens by S-BASE.

    Args:
        logits: [T, E], finite; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        training: select from the balanced plan (not causal); otherwise from the logits (causal, any group).
        gate: "softmax" or "sigmoid" of the logits.
        num_sweeps: see `sinkhorn_plan`.
        held: a routing of the same group whose selection is used instead of a new one.

    Returns:
        `Routing`; in evaluation `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: a logit is not finite, k is out of range, or the gate is unknown.

    Discontinuity: the selection jumps where two entries of a row of the plan (training) or of the logits
    (evaluation) are equal; ties go to the lower index.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> sinkhorn_router(z).expert.ravel().tolist(), sinkhorn_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    logits = check_finite("logits", logits)
    num_tokens, num_experts = logits.shape
    if not 1 <= k <= num_experts:
        raise ValueError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")
    # SELECT
    if held is None:
        if training:
            solved = sinkhorn_plan(logits, num_sweeps=num_sweeps)
            plan, residual = solved.plan, solved.residual
            # f is the same for a whole row, so z + g orders its experts as the plan does, and does not underflow.
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
        ValueError: the gate is none of `GATES`.
    """
    if gate not in GATES:
        raise ValueError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    activated = softmax(logits) if gate == "softmax" else 1 / (1 + np.exp(-logits))
    return np.take_along_axis(activated, expert, axis=1)
