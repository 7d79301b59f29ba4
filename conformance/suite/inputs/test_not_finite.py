"""Inputs that cannot be routed: logits of NaN or +∞, and too few available experts, for every router.

The reference raises an error. Under jit the fast twin cannot, so it returns NaN gates and losses.
"""

import itertools

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.compare import assert_same
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.suite.inputs.test_unavailable import CALLS, E, T, ask, values_of

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
    "sparsemixer": ("gate",),
    "choice, {'capacity_factor': 0.75, 'score': 'softmax'}": ("gate",),
    "choice, {'capacity_factor': 0.75, 'score': 'sigmoid'}": ("gate",),
    "mixing": ("",),
    "one-hot": ("",),
    "emitted": ("",),
    "mean, softmax": ("",),
    "mean, sigmoid": ("",),
    "loss, tokens": ("loss",),
    "z": ("",),
}
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
    """The test changes one entry of one token, and a whole column."""
    values = values_of(4, np.arange(E))
    for row, bad in itertools.product((2, slice(None)), (np.nan, np.inf)):
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
@pytest.mark.parametrize("path, name", [(CALLS[n].path, n) for n in ROUTERS if n not in ("mixing", "one-hot")])
def test_too_few_available_experts(backend, path, name):
    """The reference raises an error. The fast twin returns NaN for this token, or for all if they share a result."""
    values, needed = values_of(4, np.arange(E)), CALLS[name].options.get("k", 2 if "gshard" in name else 1)
    needed = 2 if name in ("gshard", "probability", "terms") or path.endswith("sparsemixer_router") else needed
    z = values["logits"].copy()
    z[2, needed - 1 :] = -np.inf
    values |= {"logits": z, "scores": z}
    assert f"token 2 has {needed - 1} available experts" in refusal(name, values)
    nan = nan_in(backend, name, values)[0]
    assert (nan[2] if nan.ndim and len(nan) == T else nan).all(), f"{path}, {name}: {nan}"


@pytest.mark.asks("routers.sinkhorn.sinkhorn_router")
@pytest.mark.twin
def test_a_held_choice_that_is_not_available(backend):
    """The reference raises. The fast twin returns NaN gates for this token alone."""
    values, name = values_of(6, np.arange(E)), "sinkhorn, training False"
    held = reference.routers.sinkhorn.sinkhorn_router(values["logits"], 2, training=False)
    values["logits"] = np.where(np.arange(E) == 3, -np.inf, values["logits"])
    assert refusal(name, values, held=held).startswith("held: an expert is chosen whose entry of logits is -inf")
    routing = ask(backend, name, values, "float32", held=backend.notation.Routing(*held))
    assert_same(np.isnan(routing.gate).all(axis=1), (held.expert == 3).any(axis=1), what="gates of a held choice")
