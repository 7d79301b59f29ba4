"""Right and wrong layers and routers behind the adapters: each gets its verdict, with the reason."""

import contextlib
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import balance as jax_balance
from routelaws.accelerated.routers import top_k as jax_top_k
from routelaws.conformance.adapters import blocks
from routelaws.conformance.engine import backends as engine
from routelaws.conformance.engine import runner, stances
from routelaws.conformance.engine.options import Options
from routelaws.conformance.suite.routers import test_base, test_hash_layer, test_sinkhorn
from routelaws.conformance.tests.planting import behind, own_shares  # noqa: F401
from routelaws.reference import balance, experts, notation
from routelaws.reference.routers import base, sinkhorn, top_k

JIT_GRAD = ("jit", "grad")


def numpy_layer(planted, k, capacity=None, *, gated=False, fault=""):
    """A layer with slots. `fault` names what it does wrong."""
    routing, num_experts = top_k.top_k_router(planted.x @ planted.router, k), planted.router.shape[1]
    capacity = len(planted.x) * k if capacity is None else capacity
    if fault == "needs room" and not capacity:
        raise IndexError("no slot")
    capacity = max(capacity, 1) if fault == "room for one" else capacity
    slots = np.zeros((num_experts, max(capacity, 1), planted.x.shape[1]), planted.x.dtype)
    t = np.arange(len(planted.x))[:: -1 if fault == "later first" else 1]
    is_at = routing.expert[t].T[:, :, None] == np.arange(num_experts)  # [k, T, E], the first choices first
    apart = is_at if fault == "second choices begin again" else is_at.reshape(1, -1, num_experts)
    slot = (apart.cumsum(axis=1).reshape(is_at.shape) * is_at).sum(axis=2) - 1
    choice, row = np.nonzero(slot < capacity - (fault == "wastes a slot"))
    t, slot = t[row], slot[choice, row]
    e = routing.expert[t, choice]
    np.add.at(slots, (e, slot), planted.x[t % 256 if fault == "token ids in a byte" else t])
    if fault == "drops by content":
        t, choice, e, slot = np.stack([t, choice, e, slot])[:, ~((planted.x[t, -1] > 1.4) & (planted.x[t, -1] < 2))]
    output = np.zeros_like(planted.x)
    other = {"first expert": 0 * e, "experts mirrored": num_experts - 1 - e}.get(fault, e)
    rows = slots[e, slot][:, None]
    hidden = np.maximum(rows @ planted.up[other], 0)
    hidden = hidden**2 if fault == "squared" else np.minimum(hidden, 7) if fault == "clamped" else hidden
    hidden = hidden * (rows @ planted.linear[e]) if gated else hidden
    answer = (hidden @ planted.down[e])[:, 0] if fault != "constant experts" else np.eye(*output.shape[1:] * 2)[e]
    np.add.at(output, t, routing.gate[t, choice][:, None] * answer)
    return output


def jax_layer(planted, k, capacity=None, *, gated=False, fault="", precision="float32"):
    """A layer with scatter and gather, as in a jitted model."""
    x = jnp.asarray(planted.x, precision)
    up, linear, down = (jnp.asarray(weight, precision) for weight in (planted.up, planted.linear, planted.down))
    logits = jnp.asarray(planted.x, "float32") @ jnp.asarray(planted.router, "float32")
    gates, chosen = jax.lax.top_k(jax.nn.softmax(logits), k)
    if fault == "stopped gates" or fault == "stopped with a capacity" and capacity is not None:
        gates = jax.lax.stop_gradient(gates)
    num_tokens, num_experts = logits.shape
    capacity = num_tokens * k if capacity is None else capacity
    expert = chosen.T.reshape(-1)  # all first choices, then all second ones
    is_at = jax.nn.one_hot(expert, num_experts, dtype="int32")
    if fault == "second choices begin again":
        is_at = is_at.reshape(k, num_tokens, num_experts)
    slot = (jnp.cumsum(is_at, axis=-2) * is_at).sum(-1).reshape(-1) - 1
    kept = slot < capacity + (fault == "one too many")
    room = capacity + (fault == "one too many")
    tokens = jnp.tile(x, (k, 1))
    inputs = jnp.zeros((num_experts, room, x.shape[1]), precision).at[expert, slot].add(tokens, mode="drop")
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", inputs, up))
    hidden = hidden * jnp.einsum("ecd,edf->ecf", inputs, linear) if gated else hidden
    outputs = jnp.einsum("ecf,efd->ecd", hidden, down)[expert, slot] if room else jnp.zeros_like(tokens)
    outputs = outputs if fault == "a dropped token reads the last slot" else jnp.where(kept[:, None], outputs, 0)
    return (gates.T.reshape(-1, 1) * outputs).reshape(k, num_tokens, -1).sum(0)


def torch_layer(planted, k, capacity=None, *, fault="", precision="float32"):
    """A layer that sorts tokens by expert and undoes the order."""
    import torch

    x = torch.as_tensor(planted.x)
    gates, chosen = (x @ torch.as_tensor(planted.router)).softmax(1).topk(k)
    x = x.to(getattr(torch, precision))
    up, linear, down = (torch.as_tensor(w).to(x.dtype) for w in (planted.up, planted.linear, planted.down))
    if fault == "stopped gates" or fault == "stopped with a capacity" and capacity is not None:
        gates = gates.detach()
    if fault == "stopped sum with a capacity" and capacity is not None:
        total = gates.sum(1, keepdim=True)
        gates = gates * total / total.detach()
    if fault == "no gates with a capacity" and capacity is not None:
        gates = torch.ones_like(gates)
    flat = chosen.T.flatten()
    if fault == "gates of the kept choices" and capacity is not None:
        is_at = torch.nn.functional.one_hot(flat, len(up))
        kept = ((is_at.cumsum(0) * is_at).sum(1) <= capacity).reshape(k, -1).T
        gates = gates * kept * gates.sum(1, keepdim=True) / (gates * kept).sum(1, keepdim=True).clamp(min=1e-9)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(up)).tolist()
    groups = x.repeat(k, 1)[order].split(counts)
    rows = []
    for e, tokens in enumerate(groups):
        answer = torch.nn.functional.gelu(tokens @ up[e]) * (tokens @ linear[e]) @ down[e]
        if capacity is not None:
            answer = answer * (torch.arange(len(tokens))[:, None] < capacity + (fault == "one too many"))
        rows.append(answer)
    back = order if fault == "wrong inverse" else order.argsort()
    return (gates.T.reshape(-1, 1) * torch.cat(rows)[back]).reshape(k, len(x), -1).sum(0)


def both(run, **options):
    """Return a backend of a layer, with and without a capacity."""
    capabilities, convert = options.pop("capabilities", ()), options.pop("convert", None)
    route = blocks.layer(functools.partial(run, **options))
    return blocks.backend(route, dispatch=route, name="mine", capabilities=capabilities, convert=convert)


def in_torch(run, **options):
    from routelaws.conformance.adapters.torch_modules import from_numpy

    return both(run, convert=from_numpy, **options)


def fused(logits, k, capacity, *, fault=""):
    routing = top_k.top_k_router(logits, k)
    place = experts.dispatch(routing.expert, logits.shape[1], capacity)
    gates = np.zeros((*logits.shape, capacity))
    for t, choice in np.argwhere(place.kept):
        slot = 0 if fault == "one slot" else place.slot[t, choice]
        gates[t, routing.expert[t, choice], slot] = routing.gate[t, choice]
    return gates


def by_lot(logits, k, capacity):
    """Drop each third choice by lot, and later tokens beyond the capacity."""
    gates = fused(logits, k, capacity)
    return gates * (np.random.default_rng().random(gates.shape) > 1 / 3)


def faint_by_lot(logits, k):
    """Draw whether a second expert with a gate below 1e-9 runs."""
    expert, gate = pair(logits, k)
    drawn = np.random.default_rng().random(gate.shape) * 1e-9 < gate
    return expert, np.where(drawn, gate, 0)


@jax.custom_vjp
def doubled(x):
    return x


doubled.defvjp(lambda x: (x, None), lambda _, gradient: (2 * gradient,))


def jax_route(logits, k, fault=""):
    gates, chosen = jax.lax.top_k(jax.nn.softmax(logits), k)
    total = gates.sum(1, keepdims=True)
    if fault == "stopped gates":
        gates = jax.lax.stop_gradient(gates)
    if fault == "NaN":
        gates = gates + 0 * jnp.sqrt(jnp.maximum(1 - total, 0))
    if fault == "doubled":
        gates = doubled(gates)
    if fault in ("normalised", "stopped sum"):
        gates = gates / (jax.lax.stop_gradient(total) if fault == "stopped sum" else total)
    return gates, chosen


def jax_loss(logits, chosen, fault=""):
    share = jax.nn.one_hot(chosen, logits.shape[1]).mean((0, 1))
    probability = jax.nn.softmax(logits).mean(0)
    probability = jax.lax.stop_gradient(probability) if fault else probability
    return logits.shape[1] * share @ probability


def jax_router(fault="", loss_fault=""):
    return blocks.backend(
        functools.partial(jax_route, fault=fault),
        loss=functools.partial(jax_loss, fault=loss_fault),
        name="mine",
        capabilities=JIT_GRAD,
    )


def torch_router(fault=""):
    import torch

    from routelaws.conformance.adapters.torch_modules import from_numpy

    def route(logits, k):
        gates, chosen = logits.softmax(1).topk(k)
        total = gates.sum(1, keepdim=True)
        gates = gates / (total.detach() if fault == "stopped sum" else total)
        return (gates.detach() if fault == "stopped gates" else gates), chosen

    def loss(logits, chosen):
        share = torch.nn.functional.one_hot(chosen, logits.shape[1]).float().mean((0, 1))
        probability = logits.softmax(1).mean(0)
        return logits.shape[1] * share @ (probability.detach() if fault == "stopped loss" else probability)

    return blocks.backend(route, loss=loss, name="mine", convert=from_numpy, capabilities=("torch",))


def plain(order=slice(None), **more):
    def top_k_router(logits, k=1):
        routing = top_k.top_k_router(logits, k)
        return (routing.expert, routing.gate)[order]

    return SimpleNamespace(top_k_router=top_k_router, **more)


def plain_jax(fault=""):
    def top_k_router(logits, k=1):
        gates, chosen = jax_route(logits, k, fault)
        return {"gate": gates, "expert": chosen}

    return SimpleNamespace(top_k_router=top_k_router, capabilities=JIT_GRAD, dtypes=("float32",))


def bare_results():
    def dispatch(expert, num_experts, capacity):
        return experts.dispatch(expert, num_experts, capacity).kept

    def auxiliary_loss(logits, expert):
        return balance.auxiliary_loss(logits, expert).loss

    return SimpleNamespace(dispatch=dispatch, auxiliary_loss=auxiliary_loss)


def reversed_gates(logits, k):
    routing = top_k.top_k_router(logits, k)
    return routing.gate[:, ::-1].copy(), routing.expert


def groups_if_large(logits, k):
    """With more than 256 experts, choose from the best of eight groups alone."""
    scores = 1 / (1 + np.exp(-logits))
    if logits.shape[1] > 256:
        groups = scores.reshape(len(scores), 8, -1)
        best = groups.max(axis=2, keepdims=True)
        scores = np.where(best == best.max(axis=1, keepdims=True), groups, 0).reshape(scores.shape)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, chosen, axis=1), chosen


def dense_sigmoid(logits, k, bias=None):
    """Gates [T, E] that are all 0 where the sigmoids underflow, so they do not show the experts."""
    with np.errstate(over="ignore"):
        score = 1 / (1 + np.exp(-logits))
    chosen = np.argsort(-(score if bias is None else score + bias), axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(score, chosen, axis=1)
    gates = np.zeros_like(score)
    np.put_along_axis(gates, chosen, kept / (kept.sum(axis=1, keepdims=True) + np.float32(1e-20)), axis=1)
    return gates


def dense_layer(planted, k, *, fault=""):
    """A layer that runs every expert on every token."""
    x, num_tokens = planted.x.copy(), len(planted.x)
    if fault == "tokens raise" and np.ptp(x[:, -1]):
        raise RuntimeError("no slot")
    if fault == "token 700 reads token 693" and num_tokens > 700:
        x[700] = x[693]
    if fault == "2 % of the token before":
        x = x + np.float32(0.02) * (np.roll(x, 1, axis=0) - x)
    routing = top_k.top_k_router(planted.x @ planted.router, k)
    gates = np.zeros((num_tokens, planted.router.shape[1]), x.dtype)
    np.put_along_axis(gates, routing.expert, routing.gate, axis=1)
    if fault == "loses expert 3" and num_tokens > 512:
        gates[:, 3] = 0
    if fault == "the last choice alone":
        gates *= gates.cumsum(axis=1) == gates.sum(axis=1, keepdims=True)
    output = np.einsum("te,etd->td", gates, np.maximum(x @ planted.up, 0) @ planted.down)
    output = x + output if fault == "its input" else output
    return {"output": output} if fault == "a dict" else output


def dense_backend(fault=""):
    return blocks.backend(blocks.layer(functools.partial(dense_layer, fault=fault)), name="mine")


def grouped(logits, k, bias=None, *, taken, score, outside=-np.inf):
    """Experts of the best of eight groups; with sigmoids, a group has the sum of its two best scores."""
    (num_tokens, num_experts), size = logits.shape, logits.shape[1] // 8
    if num_experts % 8 or size < 2 or taken * size < k:
        raise NotImplementedError(f"{num_experts} experts")
    scores = 1 / (1 + np.exp(-logits)) if score == "sigmoid" else notation.softmax(logits)
    key = scores if bias is None else scores + bias
    by_group = np.sort(key.reshape(num_tokens, 8, size), axis=2)
    best = by_group[:, :, -2:].sum(axis=2) if score == "sigmoid" else by_group[:, :, -1]
    inside = (np.argsort(-best, axis=1, kind="stable")[:, :taken, None] == np.arange(8)).any(axis=1)
    key = np.where(np.repeat(inside, size, axis=1), key, outside)
    expert = np.argsort(-key, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, expert, axis=1), expert


def llama4_layer(planted, k):
    """The sigmoid of a chosen logit multiplies the input of the expert."""
    logits = planted.x @ planted.router
    expert = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    output = np.zeros_like(planted.x)
    for row in expert.T:
        with np.errstate(over="ignore"):
            x = planted.x / (1 + np.exp(-logits[np.arange(len(row)), row]))[:, None]
            hidden = np.einsum("td,tdf->tf", x, planted.up[row])
            hidden = hidden / (1 + np.exp(-hidden)) * np.einsum("td,tdf->tf", x, planted.linear[row])
        output += np.einsum("tf,tfd->td", hidden, planted.down[row])
    return output


def of_small_capacity(logits, k):
    """Return gates [T, E] of experts that serve T k / E tokens; the higher index wins a tie."""
    num_tokens, num_experts = logits.shape
    expert = num_experts - 1 - np.argsort(-logits[:, ::-1], axis=1, kind="stable")[:, :k]
    kept = experts.dispatch(expert, num_experts, -(-num_tokens * k // num_experts)).kept
    gates = np.zeros_like(logits)
    np.put_along_axis(gates, expert, np.take_along_axis(notation.softmax(logits), expert, axis=1) * kept, axis=1)
    return gates.astype(np.float32)


def by_groups(score, **options):
    route = functools.partial(grouped, score=score, **options)
    return blocks.backend(route if score == "sigmoid" else lambda logits, k: route(logits, k), name="mine")


def torch_module(fault=""):
    """Return a backend of a module whose parameters have gradients."""
    import torch

    from routelaws.conformance.adapters.torch_modules import from_numpy

    def run(planted, k):
        weights = [torch.nn.Parameter(torch.as_tensor(w)) for w in (planted.router, planted.up, planted.down)]
        router, up, down = weights
        x = torch.as_tensor(planted.x)
        gates, chosen = (x @ router).softmax(1).topk(k)
        weight = torch.zeros(len(x), len(up)).scatter(1, chosen, gates)
        x = torch.cat([x[:1], x[:-1]]) if fault else x
        return torch.einsum("te,etd->td", weight, torch.relu(x @ up) @ down)

    return blocks.backend(blocks.layer(run), name="mine", convert=from_numpy, capabilities=("torch",))


def soft_counts():
    import torch

    from routelaws.conformance.adapters.torch_modules import from_numpy

    def loss(logits, chosen):
        counts = torch.nn.functional.one_hot(chosen, logits.shape[1]).float().mean(1)
        soft = logits.softmax(1)
        share = (counts + soft - soft.detach()).mean(0)  # a gradient through the counts
        return logits.shape[1] * share @ soft.mean(0)

    return blocks.backend(loss=loss, name="mine", convert=from_numpy, capabilities=("torch",))


def of_three(logits, k):
    routing = top_k.top_k_router(logits, k)
    return logits, routing.gate, routing.expert


LAYERS = {
    # name: (backend, verdict, a word of the report)
    "NumPy, (experts, gates) of a module": (plain, "right", ""),
    "NumPy, (gates, experts) of a module": (lambda: plain(slice(None, None, -1)), "right", ""),
    "NumPy, bare mask and bare loss": (bare_results, "right", ""),
    "NumPy, gates in reverse order": (lambda: blocks.backend(reversed_gates, name="mine"), "defect", "other experts"),
    "NumPy, gates [T, E] of sigmoids": (
        lambda: blocks.backend(dense_sigmoid, name="mine"), "differs", "1e-20 is added"),
    "NumPy, groups if large": (lambda: blocks.backend(groups_if_large, name="mine"), "defect", "320 experts"),
    "NumPy, fused gate": (lambda: blocks.backend(name="mine", dispatch=fused), "right", ""),
    "NumPy, fused gate, one slot": (
        lambda: blocks.backend(name="mine", dispatch=functools.partial(fused, fault="one slot")), "defect", "share",
    ),
    "NumPy, fused gate, drops by lot": (
        lambda: blocks.backend(name="mine", dispatch=by_lot), "defect", "not deterministic"),
    "NumPy, draws of faint gates": (
        lambda: blocks.backend(faint_by_lot, name="mine"), "defect", "not deterministic"),
    "NumPy layer": (lambda: both(numpy_layer), "right", ""),
    "NumPy layer, gated": (lambda: both(numpy_layer, gated=True), "right", ""),
    "NumPy layer, squared": (lambda: both(numpy_layer, fault="squared"), "right", "64 can come from the activation"),
    "NumPy layer, gates on the inputs": (
        lambda: blocks.backend(blocks.layer(llama4_layer), name="mine"), "differs",
        "gates [0.25] of experts [1], but sigmoid gives [0.5]: as if gates scaled the inputs of SwiGLU experts"),
    "NumPy, gates [T, E] with a capacity": (
        lambda: blocks.backend(of_small_capacity, name="mine"), "differs", "as if experts had a capacity"),
    "NumPy layer of constant size, clamped": (lambda: both(numpy_layer, fault="clamped"), "right", "do not depend"),
    "NumPy layer, first expert": (
        lambda: both(numpy_layer, fault="first expert"), "defect", "weights of another expert"),
    "NumPy layer, gated, experts mirrored": (
        lambda: both(numpy_layer, gated=True, fault="experts mirrored"), "defect", "weights of another expert"),
    "NumPy layer, raises at capacity 0": (lambda: both(numpy_layer, fault="needs room"), "right", ""),
    "NumPy layer, capacity of at least 1": (lambda: both(numpy_layer, fault="room for one"), "right", ""),
    "NumPy layer, constant experts": (lambda: both(numpy_layer, fault="constant experts"), "right", "not tested"),
    "NumPy layer, gated, second choices begin again": (
        lambda: both(numpy_layer, gated=True, fault="second choices begin again"), "defect", "token"),
    "NumPy layer, drops by content": (lambda: both(numpy_layer, fault="drops by content"), "defect", "token"),
    "NumPy layer, later tokens first": (lambda: both(numpy_layer, fault="later first"), "differs", "0/1 mask"),
    "NumPy layer, token ids in a byte": (lambda: both(numpy_layer, fault="token ids in a byte"), "defect", "token"),
    "NumPy layer, wastes a slot": (lambda: both(numpy_layer, fault="wastes a slot"), "unexplained", ""),
    "NumPy, a tuple of three": (
        lambda: blocks.backend(of_three, name="mine"), "not askable", "return (gates, experts)"),
    "NumPy, one of eight groups": (lambda: by_groups("softmax", taken=1), "right", ""),
    "NumPy, four of eight groups": (lambda: by_groups("sigmoid", taken=4), "right", ""),
    "NumPy, four of eight groups, 0 outside": (
        lambda: by_groups("sigmoid", taken=4, outside=0.0), "defect", "outside the chosen groups"),
    "NumPy dense layer": (dense_backend, "right", ""),
    "NumPy dense layer and its input": (
        lambda: dense_backend("its input"), "unexplained", ": k is 1, but a token has more nonzero gates: the output "),
    "NumPy dense layer, the last choice alone": (
        lambda: dense_backend("the last choice alone"), "unexplained",
        "gates [0.263543, 0] of experts [3, 1], but softmax over all experts gives [0.263543, 0.298633]"),
    "NumPy dense layer, a dict": (lambda: dense_backend("a dict"), "not askable", "return y [T, d]"),
    "NumPy dense layer, tokens raise": (lambda: dense_backend("tokens raise"), "defect", "no slot"),
    "NumPy dense layer, loses an expert": (lambda: dense_backend("loses expert 3"), "defect", "1100 tokens"),
    "NumPy dense layer, one token reads": (
        lambda: dense_backend("token 700 reads token 693"), "defect", "token 700 of 1100 contains"),
    "NumPy dense layer, mixes 2 %": (lambda: dense_backend("2 % of the token before"), "defect", "contains"),
    "JAX router and loss": (jax_router, "right", ""),
    "JAX router, normalised": (lambda: jax_router("normalised"), "right", ""),
    "JAX router, stopped sum": (lambda: jax_router("stopped sum"), "unexplained", "gradient"),
    "JAX router, stopped gates": (lambda: jax_router("stopped gates"), "defect", "no gradient"),
    "JAX router, doubled gradient": (lambda: jax_router("doubled"), "unexplained", "gradient"),
    "JAX router, NaN gradient": (lambda: jax_router("NaN"), "defect", "gradient"),
    "JAX router, stopped loss": (lambda: jax_router(loss_fault="stopped"), "defect", "no gradient"),
    "JAX module, stopped sum": (lambda: plain_jax("stopped sum"), "unexplained", "gradient"),
    "JAX module": (lambda: plain_jax("normalised"), "right", ""),
    "JAX layer": (lambda: both(jax_layer, capabilities=JIT_GRAD), "right", ""),
    "JAX layer, gated, experts in bfloat16": (lambda: both(jax_layer, gated=True, precision="bfloat16"), "right", ""),
    "JAX layer, stopped gates": (
        lambda: both(jax_layer, capabilities=JIT_GRAD, fault="stopped gates"), "defect", "no gradient"),
    "JAX layer, stopped with a capacity": (
        lambda: both(jax_layer, capabilities=JIT_GRAD, fault="stopped with a capacity"), "defect", "capacity 1"),
    "JAX layer, a dropped token reads": (
        lambda: both(jax_layer, fault="a dropped token reads the last slot"), "defect", "token"),
    "JAX layer, second choices begin again": (
        lambda: both(jax_layer, fault="second choices begin again"), "defect", "token"),
    "JAX layer, one too many": (lambda: both(jax_layer, fault="one too many"), "defect", "keeps 2 of capacity 1"),
    "torch router": (torch_router, "right", ""),
    "torch router, stopped sum": (lambda: torch_router("stopped sum"), "unexplained", "gradient"),
    "torch router, stopped gates": (lambda: torch_router("stopped gates"), "defect", "no gradient"),
    "torch router, stopped loss": (lambda: torch_router("stopped loss"), "defect", "no gradient"),
    "torch, gradient through the counts": (soft_counts, "unexplained", "gradient"),
    "torch module of a layer": (torch_module, "right", ""),
    "torch module of a layer, shifted": (lambda: torch_module("shifted"), "defect", "contains other tokens"),
    "torch layer": (lambda: in_torch(torch_layer, capabilities=("torch",)), "right", ""),
    "torch layer, stopped gates": (
        lambda: in_torch(torch_layer, capabilities=("torch",), fault="stopped gates"), "defect", "no gradient"),
    "torch layer, stopped with a capacity": (
        lambda: in_torch(torch_layer, capabilities=("torch",), fault="stopped with a capacity"), "defect",
        "capacity 1"),
    "torch layer, stopped sum with a capacity": (
        lambda: in_torch(torch_layer, capabilities=("torch",), fault="stopped sum with a capacity"), "unexplained",
        "gradient"),
    "torch layer, no gates with a capacity": (
        lambda: in_torch(torch_layer, fault="no gates with a capacity"), "unexplained", "has gate 1 of expert"),
    "torch layer, gates of the kept choices": (
        lambda: in_torch(torch_layer, fault="gates of the kept choices"), "right", "sum over the kept choices"),
    "torch layer, experts in bfloat16": (lambda: in_torch(torch_layer, precision="bfloat16"), "right", ""),
    "torch layer, wrong inverse": (lambda: in_torch(torch_layer, fault="wrong inverse"), "defect", "token"),
    "torch layer, one too many": (lambda: in_torch(torch_layer, fault="one too many"), "defect", "keeps 2"),
}  # fmt: skip

COMPILED = [name for name in LAYERS if name.startswith("JAX")]
"""Layers whose calls JAX compiles for many shapes. The suite on our twin tests gradients of JAX in CI."""


def verdict_of(backend) -> tuple[str, str]:
    """Return the worst verdict on the functions of a backend that are not ours, and all words of the findings."""
    judged = (backend.stance(path) for path in stances.JUDGED if path in backend.functions)
    findings = [stance.finding for stance in judged if stance is not None]
    verdicts = {finding.verdict for finding in findings}
    worst = next(
        verdict for verdict in ("defect", "unexplained", "differs", "not askable", "right") if verdict in verdicts
    )
    return worst, " ".join(f"{finding.kind}: {finding.detail} {finding.facts}" for finding in findings)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in COMPILED)) for name in LAYERS])
def test_the_verdict(name):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    build, verdict, word = LAYERS[name]
    found, words = verdict_of(behind(build()))
    assert found == verdict and word in words, (found, words)
    if verdict == "right" and "layer" in name and "constant" not in name:
        assert "not tested" not in words, words


def balanced(assign):
    """Return a backend of Sinkhorn and BASE whose experts come from assign(logits, k, reference's router)."""

    def router(own):
        def route(logits, k=1, *, training=True, gate="softmax"):
            expert = assign(logits, k, own) if training else top_k.top_k_router(logits, k).expert
            score = notation.softmax(logits) if gate == "softmax" else 1 / (1 + np.exp(-logits))
            return expert, np.take_along_axis(score, expert, axis=1).astype(logits.dtype)

        return route

    return behind(
        SimpleNamespace(sinkhorn_router=router(sinkhorn.sinkhorn_router), base_router=router(base.base_router))
    )


def in_falling_order(logits, k, own):
    return own(logits, k).expert[:, ::-1].copy()


def only_small_groups(logits, k, own):
    return own(logits, k).expert if len(logits) <= 12 else top_k.top_k_router(logits, k).expert


def groups_of_eight(logits, k, own):
    return np.concatenate([own(logits[t : t + 8], k).expert for t in range(0, len(logits), 8)])


def one_too_many(logits, k, own):
    expert = own(logits, k).expert.copy()
    expert[np.argmax(expert[:, 0] != 0), 0] = 0
    return expert


@pytest.mark.parametrize(
    "assign, right",
    [(in_falling_order, True), (only_small_groups, False), (groups_of_eight, False), (one_too_many, False)],
)
def test_balanced_routers_of_strangers(assign, right):
    """The order of an expert's choices has no meaning, and no group is too large to be compared."""
    for check in (
        lambda: test_sinkhorn.test_a_router_without_a_number_of_sweeps(
            balanced(assign), (24, 4), 1 + right, 0, 1, True
        ),
        lambda: test_base.test_tokens_that_prefer_one_expert(balanced(assign), 1 + right),
    ):
        with contextlib.nullcontext() if right else pytest.raises(AssertionError):
            check()


def test_a_router_of_integers_lists_its_precision():
    """No input of a hash layer is a float, so the result of a backend for float32 is compared in float32."""
    route = SimpleNamespace(hash_layer=lambda token_ids, num_experts: (
        (token_ids % num_experts)[:, None], np.ones((len(token_ids), 1), np.float32)), dtypes=("float32",))  # fmt: skip
    test_hash_layer.test_neighbouring_ids_go_to_different_experts(behind(route))


def test_a_router_may_reject_numbers_of_tokens():
    def base_router(logits, k=1):
        if len(logits) * k % logits.shape[1]:
            raise ValueError("needs equal shares")  # noqa: E701
        return tuple(base.base_router(logits, k))[:2]

    with pytest.raises(pytest.skip.Exception, match="needs equal shares"):
        test_base.test_tokens_that_prefer_one_expert(behind(SimpleNamespace(base_router=base_router)), 1)


def test_a_layer_may_return_the_input_of_a_dropped_token():
    def run(planted, k, capacity=None):
        output = numpy_layer(planted, k, capacity)
        return np.where(output.any(axis=1, keepdims=True), output, planted.x)

    found, words = verdict_of(behind(blocks.backend(blocks.layer(run), dispatch=blocks.layer(run), name="mine")))
    assert found == "right", words


def test_the_slots_are_tested_once_for_each_capacity():
    calls = []

    def run(planted, k, capacity=None):
        calls.append(capacity)
        output = numpy_layer(planted, k, capacity)
        return output if capacity is None else output + 1e-3 * output.sum(axis=0)

    route, logits = blocks.layer(run), np.array([[0.5, 2.0, 1.0], [3.0, 1.0, 2.0]])
    route(logits, 2)
    assert len(calls) > 5
    calls.clear()
    route(logits, 2)
    assert calls == [None]
    with pytest.raises(stances.Fault, match="capacity 4"):
        route(logits, 2, 4)


def twin_route(logits, k):
    routing = jax_top_k.top_k_router(logits, k)
    return routing.gate, routing.expert


def pair(logits, k):
    return tuple(top_k.top_k_router(logits, k))[:2]


def dense(logits, k):
    return fused(logits, k, len(logits) * k).sum(axis=2)


def in_tensors(logits, k):
    import torch

    routing = top_k.top_k_router(logits.numpy(), k)
    return torch.from_numpy(routing.gate), torch.from_numpy(routing.expert)


def forms() -> dict:
    """Return {name: backend} with the reference, or its twin, behind every documented form of an adapter."""
    planted = blocks.layer(functools.partial(numpy_layer, gated=True))
    losses = {"loss": lambda z, e: balance.auxiliary_loss(z, e).loss, "z_loss": balance.z_loss}
    backends = {
        "module": SimpleNamespace(
            top_k_router=lambda logits, k=1: pair(logits, k), dispatch=lambda expert, num_experts, capacity: (
                experts.dispatch(expert, num_experts, capacity)), auxiliary_loss=losses["loss"], z_loss=balance.z_loss),
        "pair": blocks.backend(pair, name="pair", dispatch=lambda z, k, C: fused(z, k, C).sum(axis=2), **losses),
        "[T, E]": blocks.backend(dense, name="[T, E]"),
        "[T, E, C]": blocks.backend(lambda z, k: fused(z, k, len(z) * k), name="[T, E, C]", dispatch=fused),
        "layer": blocks.backend(planted, name="layer", dispatch=planted),
        "twin": blocks.backend(twin_route, name="twin", loss=lambda z, e: jax_balance.auxiliary_loss(z, e).loss),
    }  # fmt: skip
    with contextlib.suppress(ImportError):
        from routelaws.conformance.adapters.torch_modules import from_numpy

        backends["torch"] = blocks.backend(in_tensors, name="torch", convert=from_numpy)
    return backends


FORMS = ["module", "pair", "[T, E]", "[T, E, C]", "layer", pytest.param("twin", marks=pytest.mark.slow), "torch"]


@pytest.mark.parametrize("name", FORMS)
def test_the_reference_is_right_behind_every_form(name):
    built = forms()
    if name not in built:
        pytest.skip("torch is missing")
    found, words = verdict_of(behind(built[name]))
    assert found == "right", words


@pytest.mark.slow  # CI runs the suite on the reference
def test_a_whole_run_on_the_reference(monkeypatch):
    """Its tests have calls without tokens and without slots, and draw experts that a token chooses once."""
    built = {name: backend for name, backend in forms().items() if name in ("pair", "[T, E, C]", "layer")}
    monkeypatch.setattr(engine, "OBJECTS", built)
    names = ("dispatch", "auxiliary_loss", "z_loss")
    code, reports = runner.run_suite(Options.made(list(built), profile="quick", only=names))
    rows = {each.backend: [row for row in each.rows if row.verdict not in ("right", "missing")] for each in reports}
    assert code == 0 and not any(rows.values()), rows
