"""Letters, the tie rule and input checks, shared by every file of the reference.

Letters (docstrings, shape strings, einsum subscripts and prose use the same letters):

    T  tokens in a group            d  model width                    N  dense (active) parameters
    E  experts                      f  hidden width of an expert      P  total parameters
    k  experts per token            L  blocks                         F  forward FLOPs per token
    C  capacity: slots per expert   H  attention heads                B  P / F, the parameter utilisation ratio
    R  routing frequency            S  sequence length                D  training tokens
    b  sequences in a batch         V  vocabulary size                G  granularity

Four exceptions. In `laws/`, L is the loss. The vector of a token in the residual stream is h. In einsums h runs over
heads, c over the width of one head, and m over distances. Coefficients of laws keep their names from the papers (a, b,
c, d, E_start, B_max, …). The (F, B) law measures F in TeraFLOPs per sequence of 2048 tokens (`laws/utilisation.py`).

A *group* is the set of tokens over which a router balances its experts. Functions take one group `[T, ...]`; the caller
forms the groups. A `mask` [T] marks the real tokens. Real tokens get the same result as without padding. Padded tokens
get experts 0 … k−1 with gate 0 and count in no load.

A logit of −∞ means that the expert is *not available* for this token: for example, it is pruned, or on another device.
A token never chooses such an expert. The gate, the probability and the share of the plan are exactly 0, and the
gradient of this logit is 0 and finite. Every real token needs k available experts. If an expert is available for no
real token, the result is the same as for a layer without it, but expert numbers still refer to the whole layer. In
every formula, T counts real tokens, and E counts experts that are available for a real token. Only capacities count all
experts, since memory for their slots is reserved. NaN and +∞ are errors.

Ties: among equal scores, the lower index wins. -0.0 equals +0.0. Functions that take scores or logits from the caller
reject NaN (`check_finite`, `_check_logits`). `top_k_indices` and the other helpers below do not check.

Shapes are in brackets. [T, E] is an array with a row for each token and a column for each expert, and [] is a scalar.

Gradients: the reference computes none. No gradient flows through "a constant for the gradient" in a training program,
such as the fast twin. With `held` the choice of experts is fixed. The gate and all later results are then
differentiable functions of the logits.
"""

from typing import NamedTuple

import numpy as np

from .errors import InputError


class Routing(NamedTuple):
    """The decision of a router for one group of tokens.

    All fields except `gate` are constants for the gradient. You can pass a routing back to the same router, or to the
    whole model, as `held`: the router then reuses `expert`, `load`, `plan` and `residual`, and recomputes only `gate`.
    """

    expert: np.ndarray  # [T, k] integers, the experts of each token, first choice first; distinct within a row
    gate: np.ndarray  # [T, k], the factor of each chosen expert's output
    load: np.ndarray  # [E], share of the T*k assignments that each expert received; sums to 1
    plan: np.ndarray  # [T, E], the share of each token at each expert; sums to 1. S-BASE in training: the transport
    # plan; RL-R: the policy divided by T; others: equal shares of the chosen experts
    residual: np.ndarray  # [], max over e of |E * (column sum e of plan) - 1|: the distance of the plan from balance


class ExpertChoice(NamedTuple):
    """The decision of a router for one group in which the experts choose their tokens.

    This is not a `Routing`: a token has from 0 to E experts, and each expert has C tokens. All fields except `gate` are
    constants for the gradient. You can pass the choice back as `held`.
    """

    token: np.ndarray  # [E, C] integers, the tokens of each expert, highest score first; distinct except for padding
    gate: np.ndarray  # [E, C], the factor of the expert's output for each of its tokens
    experts_per_token: np.ndarray  # [T] integers, the number of experts that took each token


def _route_real_tokens(router, mask, values, *, held=None, per_token=None, **options) -> Routing:
    """Return the routing of a group with padding: the router sees only the real tokens.

    Padded tokens get the first k experts with gate 0, have no mass in the plan, and count in no load.

    Args:
        mask: [T] bool, True for a real token.
        values: [T, ...]; its rows of real tokens are the first argument of the router.
        held: a `Routing` of the group or None; the router gets the rows of the real tokens.
        per_token: {name: [T, ...] or None}, more arguments with a row for each token.
    """
    mask = _real_tokens(mask, len(values))
    for name, rows in (per_token or {}).items():
        options[name] = None if rows is None else np.asarray(rows)[mask]
    if held is not None:
        options["held"] = held._replace(expert=held.expert[mask], plan=held.plan[mask])
    routing = router(np.asarray(values)[mask], **options)
    num_tokens, k = len(mask), routing.expert.shape[1]
    expert = np.tile(np.arange(k), (num_tokens, 1))
    gate, plan = np.zeros((num_tokens, k)), np.zeros((num_tokens, routing.plan.shape[1]))
    expert[mask], gate[mask], plan[mask] = routing.expert, routing.gate, routing.plan
    return routing._replace(expert=expert, gate=gate, plan=plan)


def _available_experts(logits: np.ndarray) -> np.ndarray | None:
    """Return [E'] integers, the experts that are available for at least one token; None if all are."""
    available = np.flatnonzero((logits > -np.inf).any(axis=0))
    return None if len(available) == logits.shape[1] else available


def _route_available(router, available, logits, *, held=None, per_expert=None, **options) -> Routing:
    """Return the routing of a group in which some experts are not available: the router sees only the other columns.

    Args:
        available: [E'] integers, from `_available_experts`.
        logits: [T, E]; its columns of available experts are the first argument of the router.
        held: a `Routing` of the group or None; the router gets the columns of the available experts.
        per_expert: {name: [..., E] or None}, more arguments with a column for each expert.
    """
    for name, columns in (per_expert or {}).items():
        options[name] = None if columns is None else np.asarray(columns)[..., available]
    if held is not None:
        columns = {"load": held.load[available], "plan": held.plan[:, available]}
        options["held"] = held._replace(expert=np.searchsorted(available, held.expert), **columns)
    routing = router(logits[:, available], **options)
    load, plan = (_among_all(values, available, logits.shape[1]) for values in (routing.load, routing.plan))
    return routing._replace(expert=available[routing.expert], load=load, plan=plan)


def _among_all(values: np.ndarray, available: np.ndarray, num_experts: int) -> np.ndarray:
    """Return [..., E] from the columns of the available experts, [..., E'], with 0 in the others."""
    whole = np.zeros((*np.shape(values)[:-1], num_experts), dtype=np.asarray(values).dtype)
    whole[..., available] = values
    return whole


def _as_bool(mask: np.ndarray) -> np.ndarray:
    """Return a mask as bool. A mask of floats is an error."""
    mask = np.asarray(mask)
    if mask.dtype.kind not in "bui":
        raise InputError(f"mask is {mask.dtype}; bool is needed, True for a real token")
    return mask.astype(bool)


def _real_tokens(mask: np.ndarray, num_tokens: int) -> np.ndarray:
    """Return the mask as [T] bool."""
    mask = _as_bool(mask)
    if mask.shape != (num_tokens,) or not mask.any():
        raise InputError(
            f"mask has shape {mask.shape} and {mask.sum()} real tokens; [{num_tokens}] with at least one real token "
            "is needed"
        )
    return mask


def _check_group(name: str, values: np.ndarray) -> None:
    if np.ndim(values) != 2:
        raise InputError(
            f"{name} has shape {np.shape(values)}; [T, E] is needed, one group of tokens: reshape a batch to "
            "[b S, E], or loop over its groups"
        )
    if 0 in np.shape(values):
        raise InputError(
            f"{name} has shape {np.shape(values)}; [T, E] with at least one token and one expert is needed"
        )


def _check_bias(bias: np.ndarray, num_experts: int) -> None:
    if np.shape(bias) != (num_experts,):
        raise InputError(f"bias has shape {np.shape(bias)}; {(num_experts,)} is needed")


def _check_k(k: int, num_experts: int) -> None:
    if not 1 <= k <= num_experts:
        raise InputError(f"k is {k}; it has to be between 1 and the number of experts, {num_experts}")


def canonical_zero(values: np.ndarray) -> np.ndarray:
    """Return `values` with every -0.0 replaced by +0.0, so that no sort can tell them apart."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(values == 0, 0.0, values)


def check_finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return `values` as float64.

    Raises:
        ValueError: an entry is NaN or infinite.
    """
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InputError(f"{name}: entry {where} is {values[where]}; every entry has to be finite")
    return values


def _check_logits(name: str, values: np.ndarray, k: int = 1, *, held: Routing | None = None) -> np.ndarray:
    """Return the logits [T, E] as float64; −∞ means that an expert is not available.

    Args:
        k: the number of available experts that each token needs.
        held: a routing; each of its experts has to be available.

    Raises:
        ValueError: an entry is NaN or +∞, or a token has too few available experts.
    """
    values = np.asarray(values, dtype=np.float64)
    check_finite(name, np.where(np.isneginf(values), 0, values))
    number = (values > -np.inf).sum(axis=1)
    if number.min() < k:
        t = int(number.argmin())
        raise InputError(
            f"{name}: token {t} has {number[t]} available experts, with entries above -inf; {k} or more are needed"
        )
    if held is not None and np.isneginf(np.take_along_axis(values, held.expert, axis=1)).any():
        raise InputError(f"held: an expert is chosen whose entry of {name} is -inf; choose only available experts")
    return values


def top_k_indices(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k largest entries of each row, largest first, ties to the lower index.

    Args:
        scores: [T, E], finite.
        k: number of indices, 1 <= k <= E.

    Returns:
        [T, k] integers; the entries of a row are distinct.

    Example:
        >>> top_k_indices(np.array([[1.0, 3.0, 3.0], [0.0, -0.0, -1.0]]), 2)
        array([[1, 2],
               [0, 1]])
    """
    scores = canonical_zero(scores)
    # A stable sort of the negated scores leaves equal entries in the order of their indices.
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return exp(z) / Σ exp(z) over the last axis, shifted by the maximum to avoid overflow."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def log_sum_exp(logits: np.ndarray, axis: int) -> np.ndarray:
    """Return log Σ exp(z) over `axis`, shifted by the maximum to avoid overflow."""
    top = logits.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(logits - top).sum(axis=axis))


def _equal_shares(expert: np.ndarray, num_experts: int, kept: np.ndarray | None = None) -> Routing:
    """Return a routing without gates, in which every assignment has the same share of the plan.

    Args:
        expert: [T, k] integers, distinct within a row.
        kept: [T, k] bool, the assignments that count; all of them if None.
    """
    kept = np.ones(expert.shape, dtype=bool) if kept is None else kept
    plan = (one_hot(expert, num_experts) * kept[:, :, None]).sum(axis=1) / kept.sum()  # [T, E]
    load = plan.sum(axis=0)  # [E]
    return Routing(expert, None, load, plan, np.abs(num_experts * load - 1).max())


def one_hot(indices: np.ndarray, size: int) -> np.ndarray:
    """Return [..., size] float64 with a 1 at each index."""
    return np.eye(size)[indices]  # row i of the identity matrix has its 1 in column i
