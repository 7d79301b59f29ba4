"""Expert choice: each expert takes the C tokens it scores highest. Balance is perfect, but some tokens get no expert.

Step by step, with sources and examples: `routelaws.reference.routers.expert_choice`.

Differences from the reference: logits of lower precision than float32 are converted to float32; the selection passes
through `stop_gradient`; all experts run as one batched matrix product. A logit of NaN or +∞ raises no error: all gates
of its group are NaN, because each expert compares this token with all others.
"""

import jax
import jax.numpy as jnp

from routelaws.reference.routers.expert_choice import SCORES, group_by_position, ungroup_by_position  # noqa: F401 - for users

from .._docstrings import describe_twins
from ..errors import InputError
from ..experts import _capacity_of_real, _matrices, expert_capacity, expert_ffn
from ..notation import (
    ExpertChoice,
    _check_group,
    _or_nan,
    _prepared,
    _real_tokens,
    softmax,
    top_k_indices,
)
from ..operations.shapes import sizes_of
from ..parallel import run_experts


def expert_choice_router(
    logits: jax.Array,
    capacity_factor: float = 2.0,
    *,
    score: str = "softmax",
    held: ExpertChoice | None = None,
    mask: jax.Array | None = None,
) -> ExpertChoice:
    """Give each expert the C tokens of the group that it scores highest.

    Raises:
        ValueError: the logits are not [T, E], c <= 0, the score is unknown, or a mask has the wrong shape.

    Differs from the reference: logits of lower precision than float32 are converted to float32. A logit of NaN or +∞
    raises no error: all gates are NaN. A mask does not change shapes: [E, C] has the C of T real tokens. With a traced
    expert mask, it has the C of a single available expert.
    """
    _check_group("logits", logits)
    logits, valid, available = _prepared(logits, 1, mask)
    num_tokens, num_experts = logits.shape
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    columns = expert_capacity(num_tokens, num_experts, 1, capacity_factor)
    columns = columns if held is None else held.token.shape[1]
    compared, taken = selection_scores(jax.lax.stop_gradient(logits), score), jnp.ones((num_experts, columns), bool)
    num_real = num_tokens
    if mask is not None:
        mask = _real_tokens(mask, num_tokens)
        compared, num_real = jnp.where(mask[:, None], compared, -jnp.inf), mask.sum(dtype=jnp.int32)
        taken &= jnp.arange(columns) < _capacity_of_real(num_real, num_tokens, num_experts, 1, capacity_factor)
    number = (compared > -jnp.inf).sum(axis=0)[:, None]  # [E, 1], tokens for which an expert is available
    taken &= jnp.arange(columns) < number
    # SELECT
    if held is None:
        token = top_k_indices(compared.T, columns)  # [E, C]
        token = jnp.where(taken, token, jnp.where(number > 0, token[:, :1], 0))
        experts_per_token = jnp.zeros(num_tokens, jnp.int32).at[token].add(taken.astype(jnp.int32))
        held = ExpertChoice(token, token, experts_per_token)
    # COMBINE
    scores = softmax(logits) if score == "softmax" else jax.nn.sigmoid(logits)
    gate = jnp.where(taken, jnp.take_along_axis(scores.T, held.token, axis=1), 0)
    return held._replace(gate=_or_nan(gate, valid.all()))


def selection_scores(logits: jax.Array, score: str) -> jax.Array:
    """Return [T, E], the values that an expert compares: log softmax(z), or z for the sigmoid (same order)."""
    return logits if score == "sigmoid" else jax.nn.log_softmax(logits, axis=1)


def expert_choice_ffn(
    params: dict,
    x: jax.Array,
    choice: ExpertChoice,
    *,
    activation: str = "gelu",
    axis_name: str | None = None,
) -> jax.Array:
    """Run each expert on the tokens that it chose, and add up the outputs of each token.

    Args:
        axis_name: a mapped axis over which the experts are sharded: `params` has this member's experts. The members
            exchange tokens (see `parallel.run_experts`). None without sharding.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    x = jnp.asarray(x)
    chosen = {"token [E, C]": choice.token, "gate [E, C]": choice.gate}
    sizes_of("expert_choice_ffn", chosen | {"x [T, d]": x}, ())
    rows = x[choice.token]  # [E, C, d]
    if axis_name is None:
        outputs = expert_ffn(**_matrices(params), x=rows, activation=activation)
    else:
        outputs = run_experts(params, rows, activation=activation, axis_name=axis_name)
    outputs = choice.gate[..., None] * outputs
    # Sum in the precision of the gates, which is at least float32.
    return jnp.zeros(x.shape, outputs.dtype).at[choice.token].add(outputs).astype(x.dtype)


describe_twins(__name__)
