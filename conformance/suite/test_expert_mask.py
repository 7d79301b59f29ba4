"""`expert_mask`: the result equals that of the admitted columns alone, with expert numbers of the whole layer.

The columns of masked experts hold NaN or infinity, which must reach no result and no gradient.
"""

import functools
import operator
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routelaws import reference
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import gradient, precisions_of, run
from routelaws.conformance.engine.names import defaults_of, options_of, public_functions
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.routers.records import ROUTERS
from routelaws.reference.routers.sinkhorn import sinkhorn_plan

T, E, WIDTH = 7, 6, 3
REAL = np.array([1, 1, 0, 1, 1, 0, 1], bool)
BITS = np.array([1, 0, 1, 1, 0, 1], bool)
BAD = np.array([np.nan, np.inf, -np.inf, np.nan, 1e38, -np.inf])
"""The values in the columns of masked experts."""

COLUMNS, ROWS = ("logits", "scores", "bias", "gumbel", "counts", "load", "router"), ("up", "down")
"""Arguments with a column for each expert, and with a row."""

FIELDS = ("load", "plan", "column_potential", "prices", "share", "probability", "weights")
"""Fields of results with a column for each expert."""

NOT_UNIQUE = ("prices", "gap", "column_potential", "sweeps", "newton_steps", "converged")


class Call(NamedTuple):
    """One way to call a function. The quick profile runs only some of them."""

    path: str
    arrays: tuple
    options: dict = {}
    quick: bool = True


def calls() -> dict[str, Call]:
    """Return every function of `MASKED` in each of its forms, and other functions in one form."""
    only, k, sweeps = ("logits",), {"k": 2}, {"num_sweeps": 20}
    found = {
        "plan": Call("routers.sinkhorn.sinkhorn_plan", only, sweeps, False),
        "assignment": Call("routers.base.balanced_assignment", ("scores",), k),
        "quantile": Call("routers.quantile.quantile_router", ("logits", "bias"), k),
        "step": Call("routers.quantile.quantile_bias", ("scores", "bias"), k | {"num_steps": 2}),
        "switch": Call("routers.top_k.switch_router", only),
        "gshard": Call("routers.top_k.gshard_router", ("logits", "uniforms")),
        "draws": Call("routers.reinforce.reinforce_router", ("logits", "gumbel"), k | {"nucleus": 0.7}),
        "greedy": Call("routers.reinforce.reinforce_router", only, k, False),
        "policy": Call("routers.reinforce.log_policy", only, k | {"nucleus": 0.7}),
        "probability": Call("routers.reinforce.log_probability", ("logits", "expert")),
        "entropy": Call("routers.reinforce.policy_entropy", only, k),
        "terms": Call("routers.reinforce.policy_terms", ("logits", "expert", "value", "reward")),
        "mixing": Call("routers.mixture_of_tokens.mixing_weights", only, {"temperature": 0.5}),
        "one-hot": Call("routers.mixture_of_tokens.mixing_weights", only, {"one_hot": True}, False),
        "emitted": Call("routers.mixture_of_tokens.emit_weights", only, {"emit": "experts", "temperature": 0.5}),
        "mixture": Call("routers.mixture_of_tokens.mixture_of_tokens", ("params", "x"), {"emit": "experts"}),
        "same weights": Call("routers.mixture_of_tokens.mixture_of_tokens", ("params", "x"), {}, False),
        "sparsemixer": Call("routers.sparsemixer.sparsemixer_router", only),
        "z": Call("balance.z_loss", only),
        "sequence": Call("balance.sequence_loss", ("logits", "expert"), {"sequence_length": T}),
        "statistics": Call("balance.load_statistics", ("load",)),
    }
    for training in (True, False):
        found[f"sinkhorn, training {training}"] = Call(
            "routers.sinkhorn.sinkhorn_router", only, k | sweeps | {"training": training}
        )
        found[f"base, training {training}"] = Call("routers.base.base_router", only, k | {"training": training})
    for score in ("softmax", "sigmoid"):
        quick = score == "softmax"
        biased = k | {"score": score, "normalisation": "sum"}
        found |= {
            f"top_k, {score}": Call("routers.top_k.top_k_router", only, k | {"score": score}, not quick),
            f"top_k, {score}, bias": Call("routers.top_k.top_k_router", ("logits", "bias"), biased, quick),
            f"mean, {score}": Call("balance.mean_probability", only, {"score": score}, not quick),
        }
        for factor in (0.75, 1.5):
            options = {"capacity_factor": factor, "score": score}
            path = "routers.expert_choice.expert_choice_router"
            found[f"choice, {options}"] = Call(path, only, options, quick and factor < 1)
    for dialect in reference.balance.DIALECTS:
        options = {"dialect": dialect}
        found[f"loss, {dialect}"] = Call("balance.auxiliary_loss", ("logits", "expert"), options, dialect == "gshard")
    for recentre in reference.balance.RECENTRE:
        options = {"rate": 0.25, "recentre": recentre}
        found[f"bias, {recentre}"] = Call("balance.update_bias", ("bias", "counts"), options, recentre == "bias")
    for factor in (0.5, 1.0, float("inf")):
        layer, options = ("params", "x", "expert", "gate"), {"capacity_factor": factor}
        found[f"experts, {factor}"] = Call("experts.routed_ffn", layer, options, factor == 1)
    listed = {call.path for call in found.values()}.union(LATER)
    for path in sorted(MASKED - listed):
        options = options_of(path)
        needed = tuple(name for name in defaults_of(path) if name not in options)
        found[path] = Call(path, needed, k if "k" in options else {})
    return found


LATER = (
    "routers.hash_layer.hash_layer",
    "routers.hash_layer.table_router",
    "routers.hash_layer.fixed_router",
    "routers.expert_choice.expert_choice_ffn",
    "routed_block.routed_block",
    "routed_block.decide",
)
"""Tested functions with an `expert_mask`."""

MASKED = {path for path in public_functions() if "expert_mask" in options_of(path)}

CALLS = calls()
ASKED = [pytest.param(c.path, name, marks=() if c.quick else pytest.mark.slow) for name, c in CALLS.items()]
masks = st.sampled_from([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]])
"""Masks of some experts, of none, of all but k, and of the first."""

seeds = st.integers(0, 2**32 - 1)


def values_of(seed: int, admitted: np.ndarray) -> dict:
    """Return the arrays of a call by name, exact in float32. The mask admits the chosen experts."""
    random = np.random.default_rng(seed)
    shapes = {"x": (T, WIDTH), "gate": (T, 2), "value": (T,), "reward": (T,), "bias": (E,), "gumbel": (T, E)}
    shapes |= {"logits": (T, E), "router": (WIDTH, E), "up": (E, WIDTH, 4), "down": (E, 4, WIDTH)}
    drawn = {name: random.integers(-512, 512, shape) / 256 for name, shape in shapes.items()}
    drawn["logits"] += random.random((T, E)).astype(np.float32)
    drawn["scores"], drawn["uniforms"] = drawn["logits"], random.choice([0.0, 0.999], T)
    drawn["expert"] = np.array([random.permutation(admitted)[:2] for _ in range(T)])
    drawn["counts"] = random.integers(0, 9, E)
    drawn["load"] = drawn["counts"] + 1
    return drawn | {"params": {name: drawn.pop(name) for name in ("router", "up", "down")}}


def alone(name: str, value, admitted: np.ndarray):
    if isinstance(value, dict):
        return {part: alone(part, inside, admitted) for part, inside in value.items()}
    if name == "expert":
        return np.searchsorted(admitted, value)
    return value[..., admitted] if name in COLUMNS else value[admitted] if name in ROWS else value


def spoilt(name: str, value, bits: np.ndarray):
    """Return an argument with NaN or infinity at the masked experts. Integers are unchanged."""
    if isinstance(value, dict):
        return {part: spoilt(part, inside, bits) for part, inside in value.items()}
    if name in ROWS:
        return np.where(bits[:, None, None], value, np.nan)
    return np.where(bits, value, BAD) if name in COLUMNS and value.dtype.kind == "f" else value


def scattered(values, admitted: np.ndarray, rest=0):
    found = np.full((*np.shape(values)[:-1], E), rest, np.asarray(values).dtype)
    found[..., admitted] = values
    return found


def in_the_whole_layer(path: str, found, admitted: np.ndarray, bias: np.ndarray):
    """Return the result of a layer of the admitted experts, numbered as in the whole layer, 0 elsewhere."""
    if path.endswith("bias"):
        return np.where(np.isin(np.arange(E), admitted), scattered(found, admitted), bias)
    if path.endswith("log_policy"):
        return scattered(found, admitted, -np.inf)
    if not hasattr(found, "_fields"):
        return scattered(found, admitted) if np.shape(found)[-1:] == (len(admitted),) else found
    if path.endswith("expert_choice_router"):
        rows = {name: scattered(getattr(found, name).T, admitted).T for name in ("token", "gate")}
        return found._replace(**rows)
    fields = {name: scattered(v, admitted) for name, v in found._asdict().items() if name in FIELDS}
    return found._replace(**fields | ({"expert": admitted[found.expert]} if hasattr(found, "expert") else {}))


def is_clear(name: str, seed: int, bits: np.ndarray) -> bool:
    """Return whether rounding cannot change a choice of S-BASE."""
    if not name.startswith("sinkhorn, training True"):
        return True
    z = alone("logits", values_of(seed, np.flatnonzero(bits))["logits"], np.flatnonzero(bits))
    ordered = np.sort(z + sinkhorn_plan(z, num_sweeps=20).column_potential, axis=1)
    return np.diff(ordered, axis=1).min() > 1e-2


def compare(found, wanted, precision: str, what: str) -> None:
    """Compare all unique values: indices, zeros and −∞ exactly; other numbers up to rounding."""
    for name, value in (wanted._asdict() if hasattr(wanted, "_fields") else {"": wanted}).items():
        if name in NOT_UNIQUE:
            continue
        got, value, told = np.asarray(getattr(found, name) if name else found), np.asarray(value), f"{what}: {name}"
        if value.dtype.kind in "iub":
            assert_same(got, value, what=told)
            continue
        assert_same(np.isneginf(got), np.isneginf(value), what=f"{told}, where it is -inf")
        got, value = (np.where(np.isneginf(part), 0, part) for part in (got, value))
        scale = UNIT[precision] * np.abs(value).max(initial=1) * ((value != 0) if value.ndim else 1)
        assert_close_bounded("expert_mask.value", got, value, scale, what=told)


def ask(backend, name: str, values: dict, precision: str, **more):
    """Compile the call with the mask as an argument. Expert choice needs a known mask, which sets the shape of its
    result."""
    call, options = CALLS[name], options_of(CALLS[name].path)
    arrays = [values[part] for part in call.arrays if part not in options]
    traced = {part: values[part] for part in call.arrays if part in options} | more
    jit = not call.path.endswith("expert_choice_router")
    return run(backend, call.path, precision, *arrays, traced=traced, jit=jit, **call.options)


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize("path, name", ASKED)
@given(seed=seeds, bits=masks, padded=st.booleans())
def test_masked_experts_are_not_there(backend, path, name, seed, bits, padded):
    """Check the function's own choice and, if possible, the same choice held."""
    bits = np.array(bits, bool)
    assume(is_clear(name, seed, bits))
    precision = precisions_of(backend)[-1]
    call, admitted = CALLS[name], np.flatnonzero(bits)
    values, options = values_of(seed, admitted), options_of(call.path)
    mask = {"mask": REAL} if padded and "mask" in options else {}
    own = {part: alone(part, values[part], admitted) for part in call.arrays}
    wanted = public_functions()[call.path](**own, **mask, **call.options)
    wanted = in_the_whole_layer(call.path, wanted, admitted, values["bias"])
    kept = ("bias",) if call.path.endswith("bias") else ()  # the bias of a masked expert is returned unchanged
    values |= {part: spoilt(part, values[part], bits) for part in call.arrays if part not in kept}
    what = f"{call.path}, {call.options}, admitted {admitted.tolist()}, padded {padded}, {precision}"
    found = ask(backend, name, values, precision, **mask, expert_mask=bits)
    compare(found, wanted, precision, what)
    if "held" in options:
        record = getattr(backend.balance if "balance" in call.path else backend.notation, type(wanted).__name__)
        found = ask(backend, name, values, precision, **mask, expert_mask=bits, held=record(*wanted))
        compare(found, wanted, precision, f"{what}, held")


TOKENS = ("logits", "scores", "expert", "gate", "gumbel", "uniforms", "value", "reward", "x")
"""Arguments with a row for each token."""

PADDED = [
    pytest.param(call.path, name, marks=() if call.quick else pytest.mark.slow)
    for name, call in CALLS.items()
    if "mask" in options_of(call.path)
    if not call.path.endswith(("expert_choice_router", "sequence_loss", "routed_ffn"))
]
"""Calls with a mask of tokens. Functions with a capacity are in `test_expert_choice.py` and `test_dispatch.py`."""


def among_padding(found):
    """Return the results of real tokens at their positions. Padding has the first experts and zeros."""
    if hasattr(found, "_fields"):
        found = found._replace(**{name: among_padding(value) for name, value in found._asdict().items()})
        if hasattr(found, "expert"):
            first = np.arange(found.expert.shape[1])
            found = found._replace(expert=np.where(REAL[:, None], found.expert, first))
        return found
    if np.shape(found)[:1] != (REAL.sum(),):
        return found
    whole = np.zeros((T, *np.shape(found)[1:]), np.asarray(found).dtype)
    whole[REAL] = found
    return whole


def check_padded(backend, name: str, seed: int, precision: str) -> None:
    """Real tokens get the results without padding, also with the choice held."""
    call, values = CALLS[name], values_of(seed, np.arange(E))
    alone = {part: values[part][REAL] if part in TOKENS else values[part] for part in call.arrays}
    wanted = among_padding(public_functions()[call.path](**alone, **call.options))
    for part in set(call.arrays) & set(TOKENS):
        real = REAL.reshape((T,) + (1,) * (values[part].ndim - 1))
        values[part] = np.where(real, values[part], -7 if values[part].dtype.kind == "i" else np.nan)
    what = f"{call.path}, {call.options}, {REAL.sum()} of {T} real, {precision}"
    compare(ask(backend, name, values, precision, mask=REAL), wanted, precision, what)
    if "held" in options_of(call.path):
        record = getattr(backend.balance if "balance" in call.path else backend.notation, type(wanted).__name__)
        found = ask(backend, name, values, precision, mask=REAL, held=record(*wanted))
        compare(found, wanted, precision, f"{what}, held")


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize("path, name", PADDED)
@given(seed=seeds)
def test_padding_is_not_there(backend, path, name, seed):
    assume(is_clear(name, seed, np.ones(E, bool)))
    check_padded(backend, name, seed, precisions_of(backend)[-1])


@pytest.mark.asks("routers.quantile.quantile_bias", "balance.update_bias")
@pytest.mark.parametrize("name", ["step", *(f"bias, {recentre}" for recentre in reference.balance.RECENTRE)])
@pytest.mark.parametrize("pruned", [-np.inf, np.nan])
def test_the_bias_of_a_pruned_expert_moves_no_other(backend, name, pruned):
    """Its bias is returned unchanged. The others equal the bias of a layer without the expert."""
    call, admitted = CALLS[name], np.flatnonzero(BITS)
    values = values_of(2, admitted)
    own = {part: alone(part, values[part], admitted) for part in call.arrays}
    wanted, precision = public_functions()[call.path](**own, **call.options), precisions_of(backend)[-1]
    found = np.asarray(
        ask(backend, name, values | {"bias": np.where(BITS, values["bias"], pruned)}, precision, expert_mask=BITS)
    )
    compare(found[BITS], wanted, precision, f"{call.path}, {call.options}, bias {pruned} of masked experts")
    np.testing.assert_array_equal(found[~BITS], pruned)


@pytest.mark.asks("routers.expert_choice.expert_choice_router")
@pytest.mark.twin
@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.3, 0.75, 1.5, float("inf")])
def test_a_traced_mask_leaves_empty_places(backend, factor):
    """There are as many slots as for one expert. The first slots equal those of a known mask."""
    z, choose = values_of(2, np.arange(E))["logits"], reference.routers.expert_choice.expert_choice_router
    wanted = choose(z, factor, mask=REAL, expert_mask=BITS)
    traced, path = {"mask": REAL, "expert_mask": BITS}, "routers.expert_choice.expert_choice_router"
    found = run(backend, path, "float32", z, traced=traced, capacity_factor=factor)
    columns = wanted.token.shape[1]
    assert found.gate.shape[1] == choose(z[:, :1], factor).gate.shape[1] and not found.gate[:, columns:].any()
    same = found._replace(token=found.token[:, :columns], gate=found.gate[:, :columns])
    compare(same, wanted, "float32", f"expert_choice_router of a traced mask, capacity {factor}")


GRADIENTS = {
    "sinkhorn, training True": "gate",
    "terms": "loss",
    "top_k, sigmoid, bias": "gate",
    "experts, 1.0": "output",
    "base, training True": "gate",
    "quantile": "gate",
    "gshard": "gate",
    "switch": "gate",
    "probability": "",
    "entropy": "",
    "loss, tokens": "loss",
    "z": "",
    "mixture": "output",
    "top_k, softmax": "gate",
}
"""The fields with compared gradients, by call; all except the first two are slow."""


def weighed(point, weights, more, function, field, options):
    found = function(**point, **more, **dict(options))
    return ((getattr(found, field) if field else found) * weights).sum()


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize(
    "path, name",
    [pytest.param(CALLS[name].path, name, marks=pytest.mark.slow if i > 1 else ()) for i, name in enumerate(GRADIENTS)],
)
def test_no_gradient_reaches_masked_experts(backend, path, name):
    call, bits, function = CALLS[name], BITS, operator.attrgetter(CALLS[name].path)(backend)
    admitted, masked = np.flatnonzero(bits), np.flatnonzero(~bits)
    values, learnt = values_of(1, admitted), "params" if "params" in call.arrays else "logits"
    shape = {"gate": (T, 1 if name == "switch" else 2), "output": (T, WIDTH), "": () if name == "z" else T}
    weights = np.random.default_rng(1).standard_normal(shape.get(GRADIENTS[name], ()))
    own = {part: alone(part, values[part], admitted) for part in call.arrays}
    whole = {part: spoilt(part, values[part], bits) if learnt == "logits" else values[part] for part in call.arrays}
    options = {"function": function, "field": GRADIENTS[name], "options": tuple(sorted(call.options.items()))}
    found, wanted = (
        gradient(weighed, {learnt: arguments.pop(learnt)}, np.asarray(weights), arguments | more, **options)[learnt]
        for arguments, more in ((whole, {"expert_mask": bits}), (own, {}))
    )
    same, none = (alone(learnt, found, experts) for experts in (admitted, masked))
    for got, right, rest in zip(*map(jax.tree.leaves, (same, wanted, none)), strict=True):
        scale = 1 + np.abs(right).max()
        assert_close_bounded("expert_mask.gradient", got, right, scale, what=f"{call.path}: gradient by {learnt}")
        assert_same(rest, np.zeros(rest.shape), what=f"{call.path}: gradient by {learnt} of masked experts")


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize("path", [path for path in LATER if "hash" in path])
def test_a_masked_expert_of_a_hash_gives_way_to_the_next(backend, path):
    """Of experts 0 to 5, 1 and 5 are masked. 2 replaces 1, or 3 if the token has 2; 0 replaces 5, or 2 if it has 0."""
    bits, name = np.array([1, 0, 1, 1, 1, 0], bool), path.rpartition(".")[2]
    table = np.array([[0, 1], [1, 2], [5, 0], [5, 1], [4, 3], [1, 5]])
    wanted = np.array([[0, 2], [3, 2], [2, 0], [0, 2], [4, 3], [2, 0]])
    ids = np.array([4, 1, 0, 5, 3, 2, 1])
    arrays, options, experts = {
        "hash_layer": ((ids,), {}, np.array([0, 2, 2, 3, 4, 0])[:, None]),
        "table_router": ((ids, table), {}, wanted),
        "fixed_router": ((table[ids],), {"gate": "sum"}, wanted),
    }[name]
    for mask in (None, REAL):
        traced = {"expert_mask": bits} | ({} if mask is None else {"mask": mask})
        found = run(backend, path, "float32", *arrays, traced=traced, num_experts=E, **options)
        expert = experts[ids] if mask is None else np.where(mask[:, None], experts[ids], [0, 2][: experts.shape[1]])
        right = reference.routers.hash_layer.fixed_router(expert, E, mask=mask, **options)
        right = right._replace(expert=expert, residual=np.abs(4 * right.load[bits] - 1).max())
        compare(found, right, "float32", f"{path}, padded {mask is not None}")


@pytest.mark.asks("routers.expert_choice.expert_choice_ffn")
def test_experts_that_are_not_there_choose_nothing(backend):
    experts, admitted = reference.routers.expert_choice, np.flatnonzero(BITS)
    values = values_of(3, admitted)
    choice = experts.expert_choice_router(values["logits"], 1.0, expert_mask=BITS)
    own = choice._replace(token=choice.token[admitted], gate=choice.gate[admitted])
    wanted = experts.expert_choice_ffn(alone("params", values["params"], admitted), values["x"], own)
    arrays = spoilt("params", values["params"], BITS), values["x"], backend.notation.ExpertChoice(*choice)
    found = run(backend, LATER[3], precisions_of(backend)[-1], *arrays, traced={"expert_mask": BITS})
    compare(found, wanted, precisions_of(backend)[-1], "expert_choice_ffn with masked experts")


BLOCKS = {name: {"router": name} for name in ROUTERS if name != "dense"} | {
    "sinkhorn": dict(router="sinkhorn", capacity_factor=0.75),
    "quantile": dict(router="quantile", k=2),
    "top_k": dict(router="top_k", k=2, bias_rate=0.25, gate="sigmoid", capacity_factor=0.75),
    "gshard": dict(router="top_k", k=2, normalisation="softmax", sample_second=True),
    "expert_choice": dict(router="expert_choice", k=4, group_size=3),
    "mixture_of_tokens": dict(router="mixture_of_tokens", group_size=3),
}
"""Routed blocks, by the options of their models."""


@pytest.mark.asks("routed_block.routed_block")
@pytest.mark.twin
@pytest.mark.parametrize("name", [n if n == "top_k" else pytest.param(n, marks=pytest.mark.slow) for n in BLOCKS])
def test_a_block_is_one_of_the_admitted_experts(backend, name):
    random, admitted = np.random.default_rng(5), np.flatnonzero(BITS)
    sizes = dict(blocks=1, vocab_size=13, d_model=8, heads=2, kqv_size=4, routing_frequency=1.0)
    config, less = (ModelConfig(**sizes, experts=number, **BLOCKS[name]) for number in (E, len(admitted)))
    shapes = {"router": (8, E), "up": (E, 8, 32), "down": (E, 32, 8), "bias": (E,), "hidden": (8, 1), "out": (1,)}
    params = {part: random.standard_normal(shape) for part, shape in shapes.items()}
    params["baseline"] = {part: params.pop(part) for part in ("hidden", "out")}
    x, tokens = random.standard_normal((3, 4, 8)), random.integers(0, 13, (3, 4))
    mask = np.arange(4) < np.array([[4], [3], [2]])
    draws = {"reinforce": {"gumbel": random.gumbel(size=(12, E))}, "gshard": {"noise": random.random(12)}}
    draws["hash"] = {"expert": admitted[random.integers(0, 4, (13, 1))]}
    drawn = {"gumbel": "noise", "expert": "table"}
    given_, own = (
        {drawn.get(part, part): change(part, value) for part, value in draws.get(name, {}).items()}
        for change in (lambda part, value: value, functools.partial(alone, admitted=admitted))
    )
    less_params = alone("params", params, admitted)
    wanted = reference.routed_block.routed_block(less_params, x, tokens, less, training=True, mask=mask, **own)
    path, traced = "routed_block.routed_block", given_ | {"mask": mask, "expert_mask": BITS}
    static = {"config": config, "training": True}
    by_reference = reference.routed_block.routed_block(params, x, tokens, **static, **traced)
    for found in (by_reference, run(backend, path, "float32", params, x, tokens, traced=traced, **static)):
        for field in ("output", "dropped_fraction", "auxiliary"):
            value = np.asarray(getattr(wanted, field), float)
            compare(np.asarray(getattr(found, field), float), value, "float32", f"block of {name}: {field}")
        if wanted.bias is not None:
            compare(np.asarray(found.bias)[admitted], wanted.bias, "float32", f"block of {name}: bias")
