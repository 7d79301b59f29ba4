"""The Mixture-of-Experts layer of attnax (JAX, flax) as a backend: routelaws.conformance.adapters.attnax_moe.

The library has one thing, the layer `MixtureOfExperts`: tokens in, outputs and a balance loss out. The router inside is
seen by giving the layer experts that answer with their own number: the output of a token is then its row of gates.

    asked as                        weights of the layer
    top_k_router, top_k_indices     router: the identity; the answer of expert e: 1 in coordinate e
    auxiliary_loss                  router: the identity; the loss does not depend on the experts
    expert_ffn, gelu                one expert of one, with GELU

One more coordinate of the input, which is 1, makes the answers of the experts the same for every token. Experts whose
gate is 0 cannot be told apart in the output; they are given in the order in which `jax.lax.top_k` takes equal ones.

Counted here: load, plan and residual; share and probability.
"""

import functools
from importlib import metadata

import attnax
import jax
import jax.numpy as jnp
from flax import nnx

from routelaws.conformance.adapters import counted
from routelaws.conformance.adapters.counted import OWN_CHOICE, allow, decline

__version__ = f"attnax {metadata.version('attnax')}, flax {metadata.version('flax')}"
capabilities = ("jit", "grad")


def _layer(router, first, second, k: int, activation: str):
    """Return the layer with router [d, E], experts [E, d, f] and [E, f, d]; x V, of gated experts, is not used."""
    num_experts, d_model, d_ff = first.shape
    sizes = dict(d_model=d_model, d_ff=d_ff, num_experts=num_experts, top_k=k)
    layer = nnx.eval_shape(lambda: attnax.MixtureOfExperts(nnx.Rngs(0), ff_activation=activation, **sizes))
    layer.router, layer.gate_proj, layer.down_proj = (nnx.Param(weights) for weights in (router, first, second))
    layer.up_proj = nnx.Param(jnp.zeros_like(first))
    return layer


@functools.partial(jax.jit, static_argnames=("k",))
def _ask(logits, k: int):
    """Return (gates [T, E], 0 where an expert was not chosen; the balance loss)."""
    num_tokens, num_experts = logits.shape
    unit = jnp.eye(num_experts + 1, dtype=logits.dtype)
    first = jnp.tile(unit[-1][None, :, None], (num_experts, 1, 1))  # reads the coordinate of ones
    layer = _layer(unit[:, :-1], first, unit[:-1, None, :], k, "relu")
    x = jnp.concatenate([logits, jnp.ones_like(logits[:, :1])], axis=1)
    output, extra = layer(x[None], deterministic=True)
    return output[0, :, :-1], extra["load_balance_loss"]


def _route(logits, k: int):
    """Return (gate [T, k], expert [T, k]), the largest gate first."""
    gates, _ = _ask(logits, k)
    expert = jnp.argsort(-gates, axis=1, stable=True)[:, :k]
    return jnp.take_along_axis(gates, expert, axis=1), expert


def top_k_indices(scores, k):
    """See the reference; scores are logits here."""
    return _route(scores, k)[1]


def top_k_router(
    logits, k=1, *, score="softmax", normalisation=None, bias=None, allow_constant_gate=False, held=None, mask=None
):
    """See the reference; without a normalisation, the library's."""
    allow("score", score, "softmax")
    allow("normalisation", normalisation, "sum", "softmax")  # the same for softmax scores
    decline(bias=bias, held=held, mask=mask)
    gate, expert = _route(logits, k)
    return counted.routing(expert, gate, jax.nn.one_hot(expert, logits.shape[1], dtype=logits.dtype).sum(1))


def auxiliary_loss(logits, expert, *, dialect=None, score="softmax", held=None, mask=None):
    """See the reference; without a dialect, the library's. While JAX traces, `expert` is taken to be its choice."""
    k = expert.shape[1]
    same = ("assignments", "first_choice") if k == 1 else ()
    allow("dialect", dialect, "tokens", *same)
    allow("score", score, "softmax")
    decline(held=held, mask=mask)
    own = jnp.array_equal(jnp.sort(_route(logits, k)[1], axis=1), jnp.sort(expert, axis=1))
    if not isinstance(own, jax.core.Tracer) and not own:
        raise NotImplementedError(OWN_CHOICE)
    share = jax.nn.one_hot(expert, logits.shape[1], dtype=logits.dtype).sum(1).mean(0)
    return {"loss": _ask(logits, k)[1], "share": share, "probability": jax.nn.softmax(logits).mean(0)}


def gelu(x):
    """See the reference; an expert whose two weights are 1."""
    one = jnp.ones((1, 1), dtype=x.dtype)
    return expert_ffn(one, one, x[..., None])[..., 0]


@jax.jit
def expert_ffn(up, down, x):
    """See the reference."""
    layer = _layer(jnp.zeros_like(up[:, :1]), up[None], down[None], 1, "gelu")
    return layer(x.reshape(1, -1, x.shape[-1]), deterministic=True)[0].reshape(*x.shape[:-1], -1)
