"""The Switch layer of transformers as a backend: `--backend routelaws.conformance.adapters.transformers_switch`.

    of the library                          asked as
    SwitchTransformersTop1Router            switch_router, top_k_router with k = 1; dispatch, by its mask
    SwitchTransformersExperts               routed_ffn with k = 1
    SwitchTransformersDenseActDense         expert_ffn
    ACT2FN["gelu_new"]                      gelu
    load_balancing_loss_func                auxiliary_loss
    router_z_loss_func                      z_loss

The router is given the logits as hidden states and the identity as its weight, so that what it computes from is what
the reference computes from (-0.0 becomes 0.0 in that product). For `dispatch` its logits are 1 at the expert of each
token. Modules are in evaluation: in training the router multiplies its input by noise, in place.

The library takes a number of slots, not a factor: `routed_ffn` turns one into the other with the reference's formula.
Counted here: load, plan and residual; slot and token, from who was kept; share and probability.

The routers compute in float32 whatever they are given, so float32 is the only precision that is asked.
"""

import math

import torch
import transformers
from transformers.activations import ACT2FN
from transformers.models.switch_transformers import SwitchTransformersConfig
from transformers.models.switch_transformers import modeling_switch_transformers as library

from routelaws.conformance.adapters import torch_arrays
from routelaws.conformance.adapters.counted import allow, decline
from routelaws.conformance.adapters.torch_arrays import from_numpy, to_numpy, with_weights  # noqa: F401
from routelaws.reference.experts import expert_capacity as _slots

__version__ = f"transformers {transformers.__version__}, torch {torch.__version__}"
dtypes = ("float32",)
capabilities = ()


def _config(**sizes) -> SwitchTransformersConfig:
    return SwitchTransformersConfig(dense_act_fn="gelu_new", dropout_rate=0.0, router_jitter_noise=0.0, **sizes)


def _route(logits, capacity: int):
    """Return (mask [T, E] of who is kept, probability [T] of the choice) of one sequence of logits."""
    num_experts = logits.shape[1]
    config = _config(d_model=num_experts, num_experts=num_experts, expert_capacity=capacity)
    router = with_weights(library.SwitchTransformersTop1Router(config), classifier__weight=torch.eye(num_experts))
    mask, probability, _ = router(logits[None])
    return mask[0], probability[0, :, 0]


@torch.no_grad()
def switch_router(logits, *, held=None, mask=None):
    """See the reference."""
    decline(held=held, mask=mask)
    chosen, gate = _route(logits, len(logits))
    return torch_arrays.routing(chosen.argmax(1)[:, None], gate[:, None], logits.shape[1])


def top_k_router(
    logits, k=1, *, score="softmax", normalisation="none", bias=None, allow_constant_gate=False, held=None, mask=None
):
    """See the reference; the router is for k = 1 alone."""
    allow("k", k, 1)
    allow("score", score, "softmax")
    allow("normalisation", normalisation, "none")
    decline(bias=bias)
    return switch_router(logits, held=held, mask=mask)


@torch.no_grad()
def auxiliary_loss(logits, expert, *, dialect=None, score="softmax", held=None, mask=None):
    """See the reference; without a dialect, the library's."""
    allow("k", expert.shape[1], 1)
    allow("dialect", dialect, "assignments", "tokens", "first_choice")  # the same at k = 1
    allow("score", score, "softmax")
    decline(held=held, mask=mask)
    loss = library.load_balancing_loss_func(logits.softmax(1)[None], expert[None])
    return torch_arrays.balance(loss, logits, expert)


@torch.no_grad()
def z_loss(logits, *, mask=None):
    """See the reference."""
    decline(mask=mask)
    return library.router_z_loss_func(logits[None])


def _kept(expert, num_experts: int, capacity: int, order: str, priority, mask):
    """Return [T, E], 1 where a token has a slot of its one expert."""
    allow("k", expert.shape[1], 1)
    allow("order", order, "choice", "token")  # the same at k = 1
    decline(priority=priority, mask=mask)
    return _route(torch.nn.functional.one_hot(expert[:, 0], num_experts).float(), capacity)[0]


@torch.no_grad()
def dispatch(expert, num_experts, capacity, *, order="choice", priority=None, mask=None):
    """See the reference."""
    found = _kept(expert, num_experts, capacity, order, priority, mask)
    queue = torch.nn.functional.one_hot(expert[:, 0], num_experts).cumsum(0) - 1
    token = torch.full((num_experts, capacity), len(expert))
    for e in range(num_experts):
        having = found[:, e].nonzero()[:capacity, 0]
        token[e, : len(having)] = having
    return {"slot": queue.gather(1, expert), "kept": found.sum(1, keepdim=True) > 0, "token": token}


@torch.no_grad()
def gelu(x):
    """See the reference."""
    return ACT2FN["gelu_new"](x)


@torch.no_grad()
def expert_ffn(up, down, x):
    """See the reference."""
    config = _config(d_model=up.shape[0], d_ff=up.shape[1])
    return with_weights(library.SwitchTransformersDenseActDense(config), wi__weight=up.T, wo__weight=down.T)(x)


@torch.no_grad()
def routed_ffn(params, x, expert, gate, capacity_factor=math.inf, *, order="choice", priority=None, mask=None):
    """See the reference."""
    num_experts, d_model, d_ff = params["up"].shape
    slots = _slots(len(x), num_experts, 1, capacity_factor)
    chosen = _kept(expert, num_experts, slots, order, priority, mask)
    weights = {}
    for e in range(num_experts):
        weights[f"expert_{e}__wi__weight"] = params["up"][e].T
        weights[f"expert_{e}__wo__weight"] = params["down"][e].T
    experts = library.SwitchTransformersExperts(_config(d_model=d_model, d_ff=d_ff, num_experts=num_experts))
    output = with_weights(experts, **weights)(x, chosen[:, None], gate)
    return {"output": output, "dropped_fraction": (chosen.sum(1) == 0).to(x.dtype).mean()}
