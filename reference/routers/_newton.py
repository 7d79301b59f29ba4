"""Newton's method for `sinkhorn`, for logits that need too many sweeps. Skip this file on a first reading.

The unknowns are the E potentials g; a follows from g. The solution g minimises the convex function

    Φ(g) = 1/T Σₜ log Σₑ exp(zₜₑ + gₑ) − 1/E Σₑ gₑ        gradient  mₑ − 1/E,  with the masses mₑ = Σₜ Πₜₑ
                                                          Hessian   diag(m) − T Πᵀ Π

(log T + Φ is an upper bound: no plan with the right row and column sums has a larger ⟨Π, z⟩ + entropy(Π).)

**The step.** A step v solves Hessian · v = −gradient. Rows of Π sum to 1/T, so each row of the Hessian sums to 0: the
Hessian is the Laplacian of a graph. Tokens undecided between experts e and j link the two with weight wₑⱼ = T Σₜ Πₜₑ
Πₜⱼ. So v solves

    Σⱼ wₑⱼ (vₑ − vⱼ) = 1/E − mₑ          for each expert e

The solver eliminates one expert after the other and adds only positive numbers (`_solve_graph`), so that weak links
keep all their digits. An expert that shares no token with others has no link. To keep v finite, each expert also has a
tiny link to a ground, where v is 0. The weight of this link is about a rounding error.

**The step length.** Let ρ = max v − min v. Along v, the second derivative of Φ is the mean over tokens of the variance
of v. The third derivative is a mean of third central moments, which are at most ρ times the variance. So the curvature
grows at most by the factor exp(ρ s) over a length s, and Φ decreases up to s = log(1 + ρ) / ρ. The program takes this
length. It does not evaluate Φ, because rounding errors would hide the decrease.

**Annealing.** Far from the solution ρ is large and the steps are short. So the program first divides z and g by a
temperature τ at which each row of z + g spans at most 16. It halves τ, down to 1, whenever ρ ≤ 1 or the plan at this τ
is within the tolerance. Each temperature starts with the potentials of the previous one and needs one or two steps.

**The stop.** The program stops when the residual of the plan before the last step is within the tolerance, or after
`max_newton` steps. The fast twin computes in 32 bits, so the rounding error of z + g is about δ = 2⁻²⁴ max |z + g|. The
error of the residual is 2 δ maxₑ E Σₜ Πₜₑ (1 − T Πₜₑ): 2 δ times the share of undecided mass. With many tokens per
expert this share falls in inverse proportion to the scale of the logits, so the residual can reach about 1e-6 at any
scale. With hardly more tokens than experts the limit is 2 δ. It exceeds 1e-3 at scales near 1e4; then `converged` may
be False.

All this is our choice.
"""

import numpy as np

_WARM = 16.0  # span of the rows at the first temperature
_CLOSE = 1.0  # the next temperature starts if the reach of a step is below this
_GROUND = 16.0  # weight of the links to the ground, in units of the rounding error of a mass


def newton(row_step, logits: np.ndarray, g: np.ndarray, tolerance: float, max_newton: int) -> tuple[np.ndarray, int]:
    """Return the potentials [E] after Newton's method, and the number of steps.

    Args:
        row_step: `sinkhorn._row_step`, which turns logits and potentials into log plan, log masses and residual.
        logits: [T, E], z.
        g: [E], the potentials after the sweeps.
        tolerance: the residual to reach.
        max_newton: the largest number of steps.
    """
    num_tokens, num_experts = logits.shape
    ground = np.full(num_experts, _GROUND * np.finfo(np.float64).eps / num_experts)
    values = logits + g
    spread = (values.max(axis=1) - values.min(axis=1, where=np.isfinite(values), initial=np.inf)).max()
    temperature = max(1.0, spread / _WARM)
    done, steps = False, 0
    while not done and steps < max_newton:
        log_plan, _, residual = row_step(logits / temperature, g / temperature)
        plan = np.exp(log_plan)
        weights = num_tokens * plan.T @ plan  # [E, E]
        v = _solve_graph(weights, 1 / num_experts - plan.sum(axis=0), ground)
        reach = np.ptp(v)  # ρ
        length = np.log1p(reach) / reach if reach > 0 else 1.0  # s
        g = g + temperature * length * v  # v is a step of g / temperature
        g = g - g.mean()
        done = temperature == 1 and residual <= tolerance
        if reach <= _CLOSE or residual <= tolerance:
            temperature = max(1.0, temperature / 2)
        steps += 1
    return g, steps


def _solve_graph(weights: np.ndarray, excess: np.ndarray, ground: np.ndarray) -> np.ndarray:
    """Return the solution v [E] of Σⱼ wₑⱼ (vₑ − vⱼ) + groundₑ vₑ = excessₑ.

    This is Gaussian elimination on a graph. The value at node e is the weighted mean of its neighbours plus its excess
    divided by the sum of its links. After the removal of e, its neighbours get links to each other, and share its
    excess and its link to the ground. The function never forms the diagonal of the Laplacian and subtracts nothing from
    the weights, so no digits cancel.

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
