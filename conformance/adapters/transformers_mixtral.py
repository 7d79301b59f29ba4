"""The Mixtral layer of transformers as a backend: `--backend routelaws.conformance.adapters.transformers_mixtral`.

    of the library              asked as
    MixtralTopKRouter           top_k_router; top_k_indices, by its choice
    MixtralExperts              routed_ffn without a capacity, expert_ffn with one expert, gelu by its act_fn
    load_balancing_loss_func    auxiliary_loss

The router is given the logits as hidden states and the identity as its weight (-0.0 becomes 0.0 in that product). Its
experts are gated, act(x V) · (x W), and here GELU(x U) is wanted: they get one more coordinate that is 1, and a W that
reads it alone.

Counted here: load, plan and residual; share and probability. The router computes in float32 whatever it is given, so
float32 is the only precision that is asked.
"""

import math

import torch
import transformers
from transformers.models.mixtral import MixtralConfig
from transformers.models.mixtral import modeling_mixtral as library

from routelaws.conformance.adapters import torch_arrays
from routelaws.conformance.adapters.counted import OWN_CHOICE, allow, decline
from routelaws.conformance.adapters.torch_arrays import from_numpy, to_numpy, with_weights  # noqa: F401

__version__ = f"transformers {transformers.__version__}, torch {torch.__version__}"
dtypes = ("float32",)
capabilities = ()


def _config(**options) -> MixtralConfig:
    """Return a configuration that is small where nothing is said."""
    sizes = dict(hidden_size=1, intermediate_size=1, num_local_experts=1, num_experts_per_tok=1)
    return MixtralConfig(**{**sizes, **options})


def _route(logits, k: int):
    """Return (gate [T, k], expert [T, k])."""
    num_experts = logits.shape[1]
    config = _config(hidden_size=num_experts, num_local_experts=num_experts, num_experts_per_tok=k)
    _, gate, expert = with_weights(library.MixtralTopKRouter(config), weight=torch.eye(num_experts))(logits)
    return gate, expert


@torch.no_grad()
def top_k_indices(scores, k):
    """See the reference; scores are logits here."""
    return _route(scores, k)[1]


@torch.no_grad()
def top_k_router(
    logits, k=1, *, score="softmax", normalisation=None, bias=None, allow_constant_gate=False, held=None, mask=None
):
    """See the reference; without a normalisation, the library's."""
    allow("score", score, "softmax")
    allow("normalisation", normalisation, "sum", "softmax")  # the same for softmax scores
    decline(bias=bias, held=held, mask=mask)
    gate, expert = _route(logits, k)
    return torch_arrays.routing(expert, gate, logits.shape[1])


@torch.no_grad()
def auxiliary_loss(logits, expert, *, dialect=None, score="softmax", held=None, mask=None):
    """See the reference; without a dialect, the library's."""
    k = expert.shape[1]
    same = ("assignments", "first_choice") if k == 1 else ()
    allow("dialect", dialect, "tokens", *same)
    allow("score", score, "softmax")
    decline(held=held)
    real = slice(None) if mask is None else mask
    if not torch.equal(_route(logits, k)[1].sort().values[real], expert.sort().values[real]):
        raise NotImplementedError(OWN_CHOICE)
    padding = None if mask is None else mask[None].long()
    loss = library.load_balancing_loss_func((logits,), logits.shape[1], k, padding)
    return torch_arrays.balance(loss, logits[real], expert[real])


@torch.no_grad()
def gelu(x):
    """See the reference; the function that the experts get by the name of their activation."""
    return library.MixtralExperts(_config(hidden_act="gelu_new")).act_fn(x)


@torch.no_grad()
def expert_ffn(up, down, x):
    """See the reference."""
    rows = x.reshape(-1, x.shape[-1])
    nowhere = torch.zeros((len(rows), 1), dtype=torch.long)
    found = routed_ffn({"up": up[None], "down": down[None]}, rows, nowhere, torch.ones_like(rows[:, :1]))
    return found["output"].reshape(*x.shape[:-1], -1)


@torch.no_grad()
def routed_ffn(params, x, expert, gate, capacity_factor=math.inf, *, order="choice", priority=None, mask=None):
    """See the reference."""
    allow("capacity_factor", capacity_factor, math.inf)
    decline(mask=mask)  # the order makes no difference to what drops nothing
    num_experts, d_model, d_ff = params["up"].shape
    config = _config(
        hidden_size=d_model + 1,
        intermediate_size=d_ff,
        num_local_experts=num_experts,
        hidden_act="gelu_new",
        experts_implementation="eager",
    )
    gated = torch.zeros(num_experts, 2 * d_ff, d_model + 1)
    gated[:, :d_ff, :d_model] = params["up"].transpose(1, 2)
    gated[:, d_ff:, d_model] = 1
    down = torch.nn.functional.pad(params["down"].transpose(1, 2), (0, 0, 0, 1))  # nothing for the coordinate of ones
    experts = with_weights(library.MixtralExperts(config), gate_up_proj=gated, down_proj=down)
    output = experts(torch.nn.functional.pad(x, (0, 1), value=1.0), expert, gate)[:, :d_model]
    return {"output": output, "dropped_fraction": torch.zeros((), dtype=x.dtype)}
