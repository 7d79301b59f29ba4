"""HASH: each token id always goes to the same expert; nothing is learned.

Roller et al. 2021, "Hash Layers For Large Sparse Models" (arXiv 2106.04426); HASH in Clark et al. 2022.

    1. SELECT   expert(t) = id(t) mod E                       `hash_layer`
    2. COMBINE  hₜ ← FFN_{expert(t)}(hₜ), without a gate       the gate is the constant 1

Vocabularies are ordered roughly by frequency, so neighbouring ids are about equally frequent and the remainder
spreads them over the experts. Balance is a matter of luck all the same: the most frequent token alone can hold a
tenth of all tokens, and it has one expert.

Ours and theirs: Roller et al. compare several hashes; Clark et al. name only "HASH". The remainder is our choice.

Causal: the expert of a token depends on that token alone, in training as in evaluation.
"""

import numpy as np

from ..notation import Routing, one_hot


def hash_layer(token_ids: np.ndarray, num_experts: int) -> Routing:
    """Route every token by the remainder of its id.

    Args:
        token_ids: [T] integers >= 0.
        num_experts: E >= 1.

    Returns:
        `Routing` with k = 1 and gate 1. `plan` holds 1/T at each token's expert.

    Raises:
        ValueError: E < 1, ids that are not integers, or a negative id.

    Example:
        >>> hash_layer(np.array([0, 1, 5, 7]), 4).expert.ravel().tolist()
        [0, 1, 1, 3]
    """
    token_ids = np.asarray(token_ids)
    if num_experts < 1:
        raise ValueError(f"num_experts is {num_experts}; at least 1 is needed")
    if not np.issubdtype(token_ids.dtype, np.integer) or (token_ids.size and token_ids.min() < 0):
        raise ValueError("token_ids have to be integers of at least 0")
    # SELECT
    expert = token_ids % num_experts  # [T]
    plan = one_hot(expert, num_experts) / len(token_ids)  # [T, E]
    load = plan.sum(axis=0)  # [E]
    # COMBINE
    gate = np.ones((len(token_ids), 1))
    return Routing(expert[:, None], gate, load, plan, np.abs(load * num_experts - 1).max())
