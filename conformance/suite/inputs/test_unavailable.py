"""Logits of −∞: an expert that is available for no token is not there, and a token never gets an unavailable expert.

The result for columns of −∞ equals that of the other columns alone, with expert numbers of the whole layer.
"""

import operator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routelaws import reference
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import gradient, precisions_of, run
from routelaws.conformance.engine.names import options_of, public_functions
from routelaws.conformance.suite.strategies import seeds
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.routers.sinkhorn import sinkhorn_plan

T, E, WIDTH = 7, 6, 3
REAL = np.array([1, 1, 0, 1, 1, 0, 1], bool)
BITS = np.array([1, 0, 1, 1, 0, 1], bool)
COLUMNS = ("logits", "scores", "bias", "gumbel", "counts")
"""Arguments with a column for each expert."""

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
    """Return every function with logits in each of its forms."""
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
        "sparsemixer": Call("routers.sparsemixer.sparsemixer_router", only),
        "z": Call("balance.z_loss", only),
        "sequence": Call("balance.sequence_loss", ("logits", "expert"), {"sequence_length": T}),
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
    return found


CALLS = calls()
ASKED = [pytest.param(c.path, name, marks=() if c.quick else pytest.mark.slow) for name, c in CALLS.items()]
masks = st.sampled_from([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]])
"""Masks of some experts, of none, of all but k, and of the first."""


def values_of(seed: int, available: np.ndarray) -> dict:
    """Return the arrays of a call by name, exact in float32. The chosen experts are available."""
    random = np.random.default_rng(seed)
    shapes = {"value": (T,), "reward": (T,), "bias": (E,), "gumbel": (T, E), "logits": (T, E)}
    drawn = {name: random.integers(-512, 512, shape) / 256 for name, shape in shapes.items()}
    drawn["logits"] += random.random((T, E)).astype(np.float32)
    drawn["scores"], drawn["uniforms"] = drawn["logits"], random.choice([0.0, 0.999], T)
    drawn["expert"] = np.array([random.permutation(available)[:2] for _ in range(T)])
    drawn["counts"] = random.integers(0, 9, E)
    return drawn


def alone(name: str, value, available: np.ndarray):
    if name == "expert":
        return np.searchsorted(available, value)
    return value[..., available] if name in COLUMNS else value


def spoilt(path: str, values: dict, bits: np.ndarray) -> dict:
    """Return the values with −∞ for unavailable experts: in logits and scores, or in the bias if there are none."""
    names = ("bias",) if path.endswith("update_bias") else ("logits", "scores")
    return values | {name: np.where(bits, values[name], -np.inf) for name in names}


def few(options: dict, number: int) -> dict:
    """Return the options of a layer of that many of the E experts: a capacity counts all experts."""
    factor = options.get("capacity_factor")
    return options if factor is None else options | {"capacity_factor": factor * number / E}


def scattered(values, available: np.ndarray, rest=0):
    found = np.full((*np.shape(values)[:-1], E), rest, np.asarray(values).dtype)
    found[..., available] = values
    return found


def in_the_whole_layer(path: str, found, available: np.ndarray, bias: np.ndarray, real: np.ndarray):
    """Return the result of a layer of the available experts, numbered as in the whole layer, 0 elsewhere."""
    if path.endswith("bias"):
        whole = scattered(found, available, -np.inf)
        return whole if path.endswith("update_bias") else np.where(np.isin(np.arange(E), available), whole, bias)
    if path.endswith("log_policy"):
        return scattered(found, available, -np.inf)
    if not hasattr(found, "_fields"):
        return scattered(found, available) if np.shape(found)[-1:] == (len(available),) else found
    if path.endswith("expert_choice_router"):
        rows = {name: scattered(getattr(found, name).T, available).T for name in ("token", "gate")}
        return found._replace(**rows)
    fields = {name: scattered(v, available) for name, v in found._asdict().items() if name in FIELDS}
    if hasattr(found, "expert"):
        first = np.arange(found.expert.shape[1])
        fields["expert"] = np.where(real[:, None], available[found.expert], first)
    return found._replace(**fields)


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
        assert_close_bounded("unavailable.value", got, value, scale, what=told)


def ask(backend, name: str, values: dict, precision: str, **more):
    call, options = CALLS[name], options_of(CALLS[name].path)
    arrays = [values[part] for part in call.arrays if part not in options]
    traced = {part: values[part] for part in call.arrays if part in options} | more
    return run(backend, call.path, precision, *arrays, traced=traced, **call.options)


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize("path, name", ASKED)
@given(seed=seeds, bits=masks, padded=st.booleans())
def test_columns_of_unavailable_experts_are_not_there(backend, path, name, seed, bits, padded):
    """Check the function's own choice and, if possible, the same choice held."""
    bits = np.array(bits, bool)
    assume(is_clear(name, seed, bits))
    precision = precisions_of(backend)[-1]
    call, available = CALLS[name], np.flatnonzero(bits)
    values, options = values_of(seed, available), options_of(call.path)
    mask = {"mask": REAL} if padded and "mask" in options else {}
    own = {part: alone(part, values[part], available) for part in call.arrays}
    wanted = public_functions()[call.path](**own, **mask, **few(call.options, len(available)))
    wanted = in_the_whole_layer(call.path, wanted, available, values["bias"], mask.get("mask", np.ones(T, bool)))
    values = spoilt(call.path, values, bits)
    what = f"{call.path}, {call.options}, available {available.tolist()}, padded {padded}, {precision}"
    found = ask(backend, name, values, precision, **mask)
    compare(found, wanted, precision, what)
    if "held" in options:
        record = getattr(backend.balance if "balance" in call.path else backend.notation, type(wanted).__name__)
        found = ask(backend, name, values, precision, **mask, held=record(*wanted))
        compare(found, wanted, precision, f"{what}, held")


TOKENS = ("logits", "scores", "expert", "gumbel", "uniforms", "value", "reward")
"""Arguments with a row for each token."""

PADDED = [
    pytest.param(call.path, name, marks=() if call.quick else pytest.mark.slow)
    for name, call in CALLS.items()
    if "mask" in options_of(call.path)
    if not call.path.endswith(("expert_choice_router", "sequence_loss"))
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


def some_unavailable(seed: int, k: int) -> np.ndarray:
    """Return [T, E] bool, where an expert is available: expert 4 for no token, k or more experts for each token."""
    order = np.random.default_rng(seed).random((T, E)).argsort(axis=1)
    return (order < np.maximum(k + 1, order[:, :1])) & (np.arange(E) != 4)


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.parametrize("path, name", [a for a in ASKED if "update" not in a.values[0]])
@given(seed=seeds, padded=st.booleans())
def test_a_token_never_gets_an_unavailable_expert(backend, path, name, seed, padded):
    """Each token lacks other experts. The result equals the reference's, and is 0 where an expert is not available."""
    values, call = values_of(seed, np.arange(E)), CALLS[name]
    bits = some_unavailable(seed, 2)
    values["expert"] = np.argsort(~bits, axis=1, kind="stable")[:, :2]
    values |= {part: np.where(bits, values[part], -np.inf) for part in ("logits", "scores")}
    mask = {"mask": REAL} if padded and "mask" in options_of(path) else {}
    try:
        wanted = public_functions()[path](**{part: values[part] for part in call.arrays}, **mask, **call.options)
    except ValueError as error:  # for example, no balanced assignment is possible
        assume("no assignment" not in str(error))
        raise
    if name.startswith("sinkhorn, training True"):
        potential = sinkhorn_plan(values["logits"], num_sweeps=20, **mask).column_potential
        ordered = np.sort(np.where(bits, values["logits"], -99 - np.arange(E)) + potential, axis=1)
        assume(np.diff(ordered, axis=1).min() > 1e-2)
    if hasattr(wanted, "plan"):
        real = REAL if mask else np.ones(T, bool)
        assert not wanted.plan[real][~bits[real]].any()
        if hasattr(wanted, "expert"):
            assert np.take_along_axis(bits, wanted.expert, axis=1)[real].all()
    precision = precisions_of(backend)[-1]
    compare(ask(backend, name, values, precision, **mask), wanted, precision, f"{path}, {call.options}, pairs")


@pytest.mark.asks("routers.base.balanced_assignment")
@pytest.mark.twin
@pytest.mark.parametrize("method", ["host", "auction"])
def test_an_assignment_that_cannot_be_balanced(backend, method):
    """The reference raises. The fast twin returns NaN, also if the pairs leave only one way."""
    z = np.zeros((4, 2))
    z[:3, 1] = -np.inf
    with pytest.raises(ValueError, match="scores: no assignment gives each expert at most 2 tokens"):
        reference.routers.base.balanced_assignment(z)
    found = run(backend, "routers.base.balanced_assignment", "float32", z, method=method)
    assert np.isnan(found.objective) and np.isnan(found.gap)
    z[1] = 0, 1 - 2**-9
    z[2] = -np.inf, -9
    found = run(backend, "routers.base.balanced_assignment", "float32", z, method=method)
    assert_same(found.expert.ravel(), [0, 1, 1, 0], what="the only balanced assignment")
    wanted = reference.routers.base.balanced_assignment(z)
    assert found.objective == wanted.objective == 1 - 2**-9 - 9


GRADIENTS = {
    "sinkhorn, training True": "gate",
    "terms": "loss",
    "top_k, sigmoid, bias": "gate",
    "base, training True": "gate",
    "quantile": "gate",
    "gshard": "gate",
    "switch": "gate",
    "probability": "",
    "entropy": "",
    "loss, tokens": "loss",
    "z": "",
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
def test_no_gradient_reaches_unavailable_experts(backend, path, name):
    """The other gradients equal those of a layer without the experts."""
    call, function = CALLS[name], operator.attrgetter(path)(backend)
    available = np.flatnonzero(BITS)
    values = values_of(1, available)
    shape = {"gate": (T, 1 if name == "switch" else 2), "": () if name == "z" else T}
    weights = np.random.default_rng(1).standard_normal(shape.get(GRADIENTS[name], ()))
    own = {part: alone(part, values[part], available) for part in call.arrays}
    whole = {part: spoilt(path, values, BITS)[part] for part in call.arrays}
    function(**whole, **call.options)  # skips the test of a function that does not read −∞
    options = {"function": function, "field": GRADIENTS[name], "options": tuple(sorted(call.options.items()))}
    found, wanted = (
        gradient(weighed, {"logits": arguments.pop("logits")}, np.asarray(weights), arguments, **options)["logits"]
        for arguments in (whole, own)
    )
    scale = 1 + np.abs(wanted).max()
    assert_close_bounded("unavailable.gradient", found[:, BITS], wanted, scale, what=f"{path}: gradient by logits")
    assert_same(found[:, ~BITS], np.zeros((T, 2)), what=f"{path}: gradient by logits of unavailable experts")


BLOCKS = {
    "top_k": dict(router="top_k", k=2, bias_rate=0.25, gate="sigmoid"),
    "gshard": dict(router="top_k", k=2, normalisation="softmax", sample_second=True),
}
"""Routed blocks, by the options of their models."""


@pytest.mark.asks("routed_block.routed_block")
@pytest.mark.twin
@pytest.mark.parametrize("name", [n if n == "top_k" else pytest.param(n, marks=pytest.mark.slow) for n in BLOCKS])
def test_a_router_bias_takes_experts_out_of_a_block(backend, name):
    """A block with a router bias of −∞ equals a block of the other experts."""
    random, available = np.random.default_rng(5), np.flatnonzero(BITS)
    sizes = dict(blocks=1, vocab_size=13, d_model=8, heads=2, kqv_size=4, routing_frequency=1.0, router_bias=True)
    sizes["capacity_factor"] = float("inf")  # a capacity counts all experts
    config, less = (ModelConfig(**sizes, experts=number, **BLOCKS[name]) for number in (E, len(available)))
    shapes = {"router": (8, E), "up": (E, 8, 32), "down": (E, 32, 8), "bias": (E,)}
    params = {part: random.standard_normal(shape) for part, shape in shapes.items()}
    params["router_bias"] = np.where(BITS, random.standard_normal(E), -np.inf)
    x, tokens = random.standard_normal((3, 4, 8)), random.integers(0, 13, (3, 4))
    mask = np.arange(4) < np.array([[4], [3], [2]])
    own = {part: v[available] if part in ("up", "down") else v[..., available] for part, v in params.items()}
    path, static = "routed_block.routed_block", {"config": config, "training": True}
    traced = {"mask": mask} | ({"noise": random.random(12)} if name == "gshard" else {})
    wanted = reference.routed_block.routed_block(own, x, tokens, less, training=True, **traced)
    by_reference = reference.routed_block.routed_block(params, x, tokens, **static, **traced)
    for found in (by_reference, run(backend, path, "float32", params, x, tokens, traced=traced, **static)):
        for field in ("output", "dropped_fraction", "auxiliary"):
            value = np.asarray(getattr(wanted, field), float)
            compare(np.asarray(getattr(found, field), float), value, "float32", f"block of {name}: {field}")
        if wanted.bias is not None:
            compare(np.asarray(found.bias)[available], wanted.bias, "float32", f"block of {name}: bias")
            compare(np.asarray(found.bias)[~BITS], params["bias"][~BITS], "float32", "bias of unavailable experts")
