"""S-BASE: tokens are shared out among the experts by an entropy-regularised transport plan.

Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169): BASE (Lewis et al. 2021) with
the exact assignment replaced by Sinkhorn's algorithm.

    1. SCORE    zₜₑ = xₜ · wₑ                                                            (the caller)
    2. PLAN     Π = argmax ⟨Π, z⟩ + entropy(Π)  with  Σₑ Πₜₑ = 1/T  and  Σₜ Πₜₑ = 1/E    `sinkhorn_plan`
    3. SELECT   training:   the k experts with the largest Πₜₑ, that is, zₜₑ + gₑ        `sinkhorn_router`
                evaluation: the k experts with the largest zₜₑ
    4. COMBINE  gate = softmax(z)ₜₑ of each chosen expert

The plan has the form Πₜₑ = exp(zₜₑ + aₜ + gₑ). Sinkhorn alternates between making the rows and the columns right:

    aₜ ← −log T − log Σₑ exp(zₜₑ + gₑ)          each token has mass 1/T
    gₑ ← −log E − log Σₜ exp(zₜₑ + aₜ)          each expert has mass 1/E

It always ends on a row step, so token rows are exact and what is left of the error is in the columns:
residual = maxₑ |E Σₜ Πₜₑ − 1|. Adding a constant to a row of z, or to all of z, changes nothing.

**Hard logits.** Sweeps need the more rounds the larger the logits and the fewer tokens there are to an expert: the
examples of `sinkhorn_plan` count them for normal logits: 33 to 39 with deviation 10 where 256 tokens share 8 experts,
71 to 140 where 64 tokens share 32; 97 to 125 with deviation 30 and 256 tokens. After `max_sweeps` of them Newton's
method goes on, on the E numbers g. With the best a put in, they minimise the convex

    Φ(g) = 1/T Σₜ log Σₑ exp(zₜₑ + gₑ) − 1/E Σₑ gₑ        gradient  mₑ − 1/E,  mₑ = Σₜ Πₜₑ
                                                          Hessian   diag(m) − T Πᵀ Π

(log T + Φ is the dual: no plan with these marginals has a larger ⟨Π, z⟩ + entropy(Π).) Rows of Π sum to 1/T, so each
row of the Hessian sums to 0: it is the Laplacian of a graph in which experts e and j are linked with weight
wₑⱼ = T Σₜ Πₜₑ Πₜⱼ, by the tokens undecided between them. The step v solves Σⱼ wₑⱼ (vₑ − vⱼ) = 1/E − mₑ. Removing one
expert after the other adds positive numbers only (`_solve_graph`), so that weak links keep all their digits. An
expert that shares no token with others has no link; a tiny link of each to the ground, of the size of rounding, keeps v
finite.

*How far.* Let ρ = max v − min v. Along v the second derivative of Φ is a mean over tokens of variances of v, and the
third one of third central moments, at most ρ times as large; so the curvature grows at most by the factor exp(ρ s)
over a length s, and Φ falls all the way up to s = log(1 + ρ) / ρ. That is the length taken. No value of Φ is needed,
whose digits would not suffice.

*Warm to cold.* Far from the solution ρ is large and the steps are short. So z and g are first divided by a temperature
τ at which the rows span 16, and τ is halved, down to 1, whenever ρ ≤ 1. With the potentials taken along each
temperature needs a step or two: in the examples of `sinkhorn_plan` 9 to 19 in all where the logits have deviation 100.

*Where it ends.* When the residual of the plan before the last step is within the tolerance, or after `max_newton`
steps. The plan is then the better of this one and that of the sweeps, and `residual` and `converged` are true of it.
In float32 the sum z + g is known to about δ = 2⁻²⁴ max |z + g| only, and since ∂Πₜₑ = Πₜₑ (1 − T Πₜₑ) ∂z at most, the
residual to 2 δ maxₑ E Σₜ Πₜₑ (1 − T Πₜₑ): the share of undecided mass. With many tokens to an expert that share is of
order 1 / scale, and the floor some 1e-6 at any scale. With hardly more tokens than experts, all of which are undecided,
it is 2 δ, which passes 1e-3 at scales near 1e4: such a plan may say that it did not converge.

The plan depends on every token of the group, later ones included: a training step leaks the future into the choice of
experts. Evaluation chooses by the logits alone and is causal. No gradient flows through the plan.

**The size of the output.** A gate makes the output of an expert smaller, and the softmax gate the more so the more
experts there are. Where all logits of a token are equal, each softmax gate is 1/E, and those of k experts add up to
k/E; a sigmoid is 1/2, and k of them add up to k/2. A fresh router is a little better off, since the experts that are
chosen have the largest logits: with E = 4, 16, 64 and 256 and k = 1 a routed FFN starts with an output 0.5, 0.23, 0.1
and 0.04 times as large as that of a dense FFN, with k = 4 0.6, 0.31, 0.13 and 0.05 times (outputs that have nothing to
do with each other add up to one √k times as large, not k times). With the sigmoid it is 0.71 to 0.92 times at k = 1 and
1.07 to 1.79 times at k = 4. The example of `gate_values` computes these numbers. What the experts learn from is scaled
by the gate as well. Nothing here divides by the sum of the gates, as `top_k` can.

**Ties.** Where all logits are equal, so are all entries of the plan, and by the tie rule every token of a training step
goes to expert 0: balanced is the plan, not the choice. A router has to start from random weights.

Our choices; the paper's appendix was not at hand: the kernel is exp of the raw logits (entropy weight 1); the stopping
rule (residual at most 1e-3, 100 sweeps at most, then Newton's method); the softmax gate, and that it is not divided by
its sum over the chosen experts (the sigmoid is an option); argmax of the logits in evaluation; k > 1.

What this file does not do: capacity and dispatch (`experts`).
"""

from typing import NamedTuple

import numpy as np

from ..notation import (
    Routing,
    _real_tokens,
    _restore_padding,
    check_finite,
    log_sum_exp,
    one_hot,
    softmax,
    top_k_indices,
)

GATES = ("softmax", "sigmoid")
"""Names of the functions that turn the logit of a chosen expert into its gate."""

_WARM = 16.0  # what the rows span at the first temperature
_CLOSE = 1.0  # the reach of a Newton step at which the next temperature is due
_GROUND = 16.0  # weight of the links to the ground, in units of the rounding error of a mass


class SinkhornPlan(NamedTuple):
    """The plan and how good it is."""

    plan: np.ndarray  # [T, E], rows sum to 1/T exactly (padded ones to 0), columns to 1/E within residual / E
    column_potential: np.ndarray  # [E], the g of the module docstring; only differences mean anything
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
    """Share T tokens out among E experts, each token with mass 1/T and each expert with mass 1/E.

    Args:
        logits: [T, E], finite; the raw router logits z.
        tolerance: stop when every expert's mass is within this factor of 1/E.
        max_sweeps: leave it to Newton's method after this many column steps.
        max_newton: give up after this many of its steps; 0 for sweeps alone.
        num_sweeps: take exactly this many column steps, whatever the residual (overrides the three above).
        mask: [T] bool, True for a real token; T is then the number of real ones.

    Returns:
        `SinkhornPlan`. Rows sum to 1/T up to rounding, at any scale of the logits, because a token's row is shifted by
        its maximum and divided by its sum last; exp(z + a + g) as it stands keeps the rounding error of terms as large
        as the logits in each row.

    Raises:
        ValueError: a logit of a real token is not finite, or there is no real token.

    Example:
        Two tokens that both prefer expert 0, the first one more strongly. Each expert gets half of the mass:

        >>> result = sinkhorn_plan(np.log([[8.0, 1.0], [2.0, 1.0]]), tolerance=1e-9)
        >>> np.round(result.plan, 4).tolist()
        [[0.3333, 0.1667], [0.1667, 0.3333]]

        Preferences a thousand times as strong. For sweeps that is a long way, for Newton's method it is not:

        >>> z = np.array([[2000.0, 0.0], [1000.0, 0.0], [990.0, 0.0], [0.0, 0.0]])
        >>> round(sinkhorn_plan(z, max_newton=0).residual, 4)
        0.5
        >>> result = sinkhorn_plan(z)
        >>> np.round(result.plan, 4).tolist(), result.converged
        ([[0.25, 0.0], [0.2483, 0.0017], [0.0017, 0.2483], [0.0, 0.25]], True)

        How many sweeps normal logits take by themselves, three draws each, and how many Newton steps after the usual
        100 sweeps where the logits are larger:

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
    if mask is not None:
        real = _real_tokens(mask, len(logits))
        options = dict(tolerance=tolerance, max_sweeps=max_sweeps, max_newton=max_newton, num_sweeps=num_sweeps)
        solved = sinkhorn_plan(np.asarray(logits)[real], **options)
        plan = np.zeros(np.shape(logits))
        plan[real] = solved.plan
        return solved._replace(plan=plan)
    logits = check_finite("logits", logits)
    num_experts = logits.shape[1]
    limit = max_sweeps if num_sweeps is None else num_sweeps
    g = np.zeros(num_experts)
    for sweep in range(limit + 1):
        log_plan, log_mass, residual = _row_step(logits, g)
        if sweep == limit or (num_sweeps is None and residual <= tolerance):
            break
        g = g - np.log(num_experts) - log_mass
    steps = 0
    if num_sweeps is None and residual > tolerance and max_newton > 0:
        potential, steps = _newton(logits, g, tolerance, max_newton)
        found = _row_step(logits, potential)
        if found[2] < residual:
            g, log_plan, residual = potential, found[0], found[2]
    return SinkhornPlan(np.exp(log_plan), g, float(residual), sweep, bool(residual <= tolerance), steps)


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
        logits: [T, E], finite; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        training: select from the balanced plan (not causal); otherwise from the logits (causal, any group).
        gate: "softmax" or "sigmoid" of the logits.
        num_sweeps: see `sinkhorn_plan`.
        mask: [T] bool, True for a real token. The others get experts 0 … k−1 with gate 0, and count for nothing.
        held: a routing of the same group whose selection is used instead of a new one.

    Returns:
        `Routing`; in evaluation `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: a logit of a real token is not finite, k is out of range, the gate is unknown, or no token is real.

    Discontinuity: the selection jumps where two entries of a row of the plan (training) or of the logits
    (evaluation) are equal; ties go to the lower index.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> sinkhorn_router(z).expert.ravel().tolist(), sinkhorn_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    if mask is not None:
        real = _real_tokens(mask, len(logits))
        if held is not None:
            held = held._replace(expert=held.expert[real], plan=held.plan[real])
        options = dict(training=training, gate=gate, num_sweeps=num_sweeps, held=held)
        return _restore_padding(sinkhorn_router(np.asarray(logits)[real], k, **options), real)
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

    Example:
        A fresh router on normalised tokens has logits that are normal with deviation 0.88 (`transformer.TRUNCATION`).
        If the outputs of the experts have nothing to do with each other, their sum is √(Σ gate²) times as large as one
        of them, in the root mean square. By E, with k = 1, 2, 4 for the softmax and then for the sigmoid:

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
        raise ValueError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    if gate == "softmax":
        activated = softmax(logits)
    else:
        small = np.exp(-np.abs(logits))  # 1 / (1 + exp(-z)) would overflow where z is below -709
        activated = np.where(logits >= 0, 1, small) / (1 + small)
    return np.take_along_axis(activated, expert, axis=1)


def _row_step(logits: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the logarithms of plan [T, E] and mass of each expert [E] after a row step, and the residual."""
    num_tokens, num_experts = logits.shape
    values = logits + g
    values = values - values.max(axis=1, keepdims=True)  # a part of a, first, lest large logits round the rows
    log_plan = values - log_sum_exp(values, axis=1)[:, None] - np.log(num_tokens)
    log_mass = log_sum_exp(log_plan, axis=0)
    return log_plan, log_mass, np.abs(num_experts * np.exp(log_mass) - 1).max()


def _newton(logits: np.ndarray, g: np.ndarray, tolerance: float, max_newton: int) -> tuple[np.ndarray, int]:
    """Return potentials [E] and the number of steps: Newton's method, warm to cold, from the potentials g."""
    num_tokens, num_experts = logits.shape
    ground = np.full(num_experts, _GROUND * np.finfo(np.float64).eps / num_experts)
    temperature = max(1.0, np.ptp(logits + g, axis=1).max() / _WARM)
    done, steps = False, 0
    while not done and steps < max_newton:
        log_plan, _, residual = _row_step(logits / temperature, g / temperature)
        plan = np.exp(log_plan)
        weights = num_tokens * plan.T @ plan  # [E, E]
        v = _solve_graph(weights, 1 / num_experts - plan.sum(axis=0), ground)
        reach = np.ptp(v)
        length = np.log1p(reach) / reach if reach > 0 else 1.0
        g = g + temperature * length * v
        g = g - g.mean()
        done = temperature == 1 and residual <= tolerance
        if reach <= _CLOSE or residual <= tolerance:
            temperature = max(1.0, temperature / 2)
        steps += 1
    return g, steps


def _solve_graph(weights: np.ndarray, excess: np.ndarray, ground: np.ndarray) -> np.ndarray:
    """Return the v [E] of Σⱼ wₑⱼ (vₑ − vⱼ) + groundₑ vₑ = excessₑ.

    Gaussian elimination of a graph. Node e is the weighted mean of its neighbours plus its excess over the sum of its
    links; once it is removed, its neighbours are linked among themselves in proportion, and take over its excess and
    its link to the ground. All weights stay positive and nothing is subtracted from them; the diagonal of the
    Laplacian, in which digits would cancel, is never formed.

    Args:
        weights: [E, E], symmetric, at least 0; the diagonal does not count.
        excess: [E].
        ground: [E], above 0.
    """
    weights, excess, ground = weights.copy(), excess.copy(), ground.copy()
    for e in range(len(excess)):
        later = slice(e + 1, None)
        share = weights[e, later] / (weights[e, later].sum() + ground[e])
        weights[later, later] += np.outer(share, weights[e, later])
        excess[later] += share * excess[e]
        ground[later] += share * ground[e]
    v = np.zeros(len(excess))
    for e in reversed(range(len(excess))):
        later = slice(e + 1, None)
        v[e] = (excess[e] + weights[e, later] @ v[later]) / (weights[e, later].sum() + ground[e])
    return v
