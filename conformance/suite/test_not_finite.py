"""Inputs that cannot be routed: non-finite logits and invalid expert masks, for every router.

The reference raises an error. Under jit the fast twin cannot, so it returns NaN gates and losses.
"""

import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.compare import assert_same
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.suite.test_expert_mask import CALLS, E, T, ask, values_of

ROUTERS = {
    "sinkhorn, training True": ("gate", "residual"),
    "sinkhorn, training False": ("gate",),
    "base, training True": ("gate", "residual"),
    "base, training False": ("gate",),
    "assignment": ("objective", "gap"),
    "quantile": ("gate",),
    "step": ("",),
    "switch": ("gate",),
    "top_k, softmax": ("gate",),
    "top_k, sigmoid, bias": ("gate",),
    "gshard": ("gate",),
    "draws": ("gate",),
    "policy": ("",),
    "probability": ("",),
    "entropy": ("",),
    "terms": ("loss",),
    "choice, {'capacity_factor': 0.75, 'score': 'softmax'}": ("gate",),
    "choice, {'capacity_factor': 0.75, 'score': 'sigmoid'}": ("gate",),
    "mixing": ("",),
    "one-hot": ("",),
    "emitted": ("",),
    "mean, softmax": ("",),
    "mean, sigmoid": ("",),
    "loss, tokens": ("loss",),
    "z": ("",),
} | {name: ("gate",) for name, call in CALLS.items() if name == call.path and "logits" in call.arrays}
"""The fields that are NaN for a NaN logit, by call."""


def nan_in(backend, name: str, values: dict, **more) -> list[np.ndarray]:
    found = ask(backend, name, values, "float32", **more)
    return [np.isnan(getattr(found, field) if field else found) for field in ROUTERS[name]]


def refusal(name: str, values: dict, **more) -> str:
    with pytest.raises(ValueError) as error:
        public_functions()[CALLS[name].path](
            **{part: values[part] for part in CALLS[name].arrays}, **CALLS[name].options, **more
        )
    return str(error.value)


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize("path, name", [(CALLS[name].path, name) for name in ROUTERS])
def test_what_is_not_finite_is_nan_in_the_gates(backend, path, name):
    """The test changes one entry of one token, and a whole column (as of an expert masked by −∞)."""
    values = values_of(4, np.arange(E))
    for row, bad in itertools.product((2, slice(None)), (np.nan, np.inf, -np.inf)):
        z = values["logits"].copy()
        z[row, 3] = bad
        given_ = values | {"logits": z, "scores": z}
        assert refusal(name, given_).startswith(("logits: entry (", "scores: entry ("))
        for nan in nan_in(backend, name, given_):
            nan = nan[row] if nan.ndim and len(nan) == T else nan
            nan = nan[..., 3] if name in ("mixing", "one-hot") else nan
            assert nan.all(), f"{path}, {name}: {bad} in row {row}: {nan}"


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize(
    "path, name",
    [
        pytest.param(CALLS[name].path, name, marks=() if CALLS[name].quick else pytest.mark.slow)
        for name in ROUTERS
        if "expert" not in CALLS[name].arrays
    ],
)
def test_too_few_experts(backend, path, name):
    """A known mask gives one clear error, a traced mask NaN."""
    values, needed = values_of(4, np.arange(E)), CALLS[name].options.get("k", 2 if name == "gshard" else 1)
    bits = np.arange(E) < needed - 1
    message = refusal(name, values, expert_mask=bits)
    assert message == f"{needed - 1} of {E} experts may be chosen; {needed} or more are needed"
    function = functools.partial(operator.attrgetter(path)(backend), **CALLS[name].options)
    arrays = {part: jnp.asarray(values[part]) for part in CALLS[name].arrays}
    with pytest.raises(ValueError, match=message):
        function(**arrays, expert_mask=bits)
    found = jax.jit(function)(**arrays, expert_mask=bits) if "choice" in name else None
    nan = np.isnan(found.gate[:, 0]) if found else nan_in(backend, name, values, expert_mask=bits)[0]
    assert nan.all(), f"{path}, {name}: {nan}"


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router", "experts.routed_ffn")
@pytest.mark.twin
def test_a_choice_that_the_mask_leaves_out(backend):
    """The reference raises. The fast twin returns a NaN gate and output for this token alone."""
    values, bits, name = values_of(6, np.arange(E)), np.arange(E) != 3, "sinkhorn, training False"
    held = reference.routers.sinkhorn.sinkhorn_router(values["logits"], 2, training=False)
    wrong, message = (held.expert == 3).any(axis=1), "expert 3 is chosen; only [0, 1, 2, 4, 5] may be chosen"
    assert refusal(name, values, held=held, expert_mask=bits) == message
    routing = ask(backend, name, values, "float32", held=backend.notation.Routing(*held), expert_mask=bits)
    assert_same(np.isnan(routing.gate), held.expert == 3, what="gates of a held choice that is masked")
    values["expert"] = held.expert
    assert refusal("experts, 1.0", values, expert_mask=bits) == message
    output = ask(backend, "experts, 1.0", values, "float32", expert_mask=bits).output
    assert_same(np.isnan(output).all(axis=1), wrong, what="outputs of tokens with a masked expert")
