"""SparseMixer in evaluation: two experts per token, each with a softmax gate over the experts near it (Phi-3.5-MoE).

Liu et al. 2024, "GRIN: GRadient-INformed MoE" (arXiv 2409.12136), as in the released code of PhiMoE:

    1. SELECT   first = argmax zₜ; second = argmax of the others
    2. NEAR     near a choice c are the remaining experts e with z_c − zₑ ≤ 2 ε max(|zₑ|, z_c)
    3. COMBINE  gate of c = exp z_c / (sum of exp zₑ over those near c)

The second choice and its gate ignore the first expert. So the two gates do not sum to 1. A gate is 1 if no other expert
is near the choice, and 1/2 if one expert with the same logit is near.

Not in this file: training. In training SparseMixer draws the choices from these gates. A custom backward pass estimates
the router's gradient by Heun's method. This estimate differs from the gradient of the formula above. This project
trains no model with SparseMixer.
"""

import numpy as np

from ..errors import InputError
from ..notation import (
    Routing,
    _available_experts,
    _check_group,
    _check_logits,
    _equal_shares,
    _route_available,
    _route_real_tokens,
    softmax,
    top_k_indices,
)


def sparsemixer_router(
    logits: np.ndarray,
    *,
    jitter: float = 0.01,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Give each token its two best experts, with the gates of SparseMixer in evaluation.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available, E >= 2; the raw router logits z.
        jitter: ε >= 0; an expert is near the best expert if their logits differ by at most 2ε, relative to the larger
            logit.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing` with k = 2; `plan` holds 1/(2 T) at each chosen expert.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, E < 2, the jitter is negative, a mask
            has the wrong shape, or no token is real.

    Discontinuity: the choice jumps where two logits are equal. A gate jumps where another expert comes near.

    Example:
        At ε = 0.01 the logits 5 and 4.95 are near each other, and 4 is near neither:

        >>> found = sparsemixer_router(np.array([[5.0, 4.0, 4.95]]))
        >>> found.expert.tolist(), np.round(found.gate, 4).tolist()
        ([[0, 2]], [[0.5125, 1.0]])
    """
    _check_group("logits", logits)
    if not jitter >= 0:
        raise InputError(f"jitter is {jitter}; it has to be at least 0")
    options = dict(jitter=jitter)
    if mask is not None:
        return _route_real_tokens(sparsemixer_router, mask, logits, held=held, **options)
    num_tokens, num_experts = logits.shape
    if num_experts < 2:
        raise InputError(f"num_experts is {num_experts}; two experts per token need at least 2")
    logits = _check_logits("logits", logits, 2, held=held)
    available = _available_experts(logits)
    if available is not None:
        return _route_available(sparsemixer_router, available, logits, held=held, **options)
    # SELECT
    if held is None:
        held = _equal_shares(top_k_indices(logits, 2), num_experts)
    # COMBINE
    first, second = held.expert.T
    left = logits.copy()
    left[np.arange(num_tokens), first] = -np.inf
    gates = _gates_among_near(logits, logits, first, jitter), _gates_among_near(left, logits, second, jitter)
    return held._replace(gate=np.stack(gates, axis=1))


def _gates_among_near(left, logits, chosen, jitter):
    """Return [T], the softmax probability of the chosen expert among the remaining experts near the best one.

    Args:
        left: [T, E], logits with -inf for experts already taken.
    """
    best, known = left.max(axis=1, keepdims=True), np.where(left > -np.inf, logits, 0)
    near = (left > -np.inf) & (best - known <= 2 * jitter * np.maximum(np.abs(known), best))
    gates = softmax(np.where(near, left, -np.inf))
    return np.take_along_axis(gates, chosen[:, None], axis=1)[:, 0]
