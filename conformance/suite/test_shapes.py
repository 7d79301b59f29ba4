"""Arrays of another rank or size than a function takes give one clear error in both twins.

A batch [b, S, E] would broadcast as a group [T, E] and give wrong experts.
"""

import operator

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.engine.names import functions_of_scores, options_of

BATCH, GROUP = np.zeros((2, 3, 4), np.float32), np.zeros((6, 4), np.float32)
EXPERT, GATE = np.zeros((6, 1), np.int32), np.ones((6, 1), np.float32)
X = np.ones((6, 8), np.float32)
PARAMS = {"up": np.ones((4, 8, 16), np.float32), "down": np.ones((4, 16, 8), np.float32)}
SWAPPED = {"up": PARAMS["down"], "down": PARAMS["down"]}

GROUPS = dict.fromkeys(functions_of_scores(), ()) | {
    "routers.quantile.quantile_bias": (np.zeros(4, np.float32),),
    "routers.quantile.quantile_router": (np.zeros(4, np.float32),),
}
"""Functions of a group of tokens, and their arguments after the logits."""

LAYERS = {
    "other names": (SWAPPED, X, EXPERT, GATE, "up has shape .4, 16, 8. and down .4, 16, 8.; .E, d, f. and"),
    "no down": ({"up": 1, "w2": 1}, X, EXPERT, GATE, "params has the keys up, w2; up .* and down .* are needed"),
    "a batch": (PARAMS, X.reshape(2, 3, 8), EXPERT, GATE, "x has shape .2, 3, 8.; .T, d. with d = 8 is needed"),
    "another width": (PARAMS, X[:, :7], EXPERT, GATE, "x has shape .6, 7.; .T, d. with d = 8 is needed"),
    "fewer tokens": (PARAMS, X[:5], EXPERT, GATE, "expert has shape .6, 1.; .T, k. with T = 5 is needed"),
    "no axis of k": (PARAMS, X, EXPERT[:, 0], GATE[:, 0], "expert has shape .6,.; .T, k. with T = 6 is needed"),
    "more gates": (PARAMS, X, EXPERT, np.ones((6, 2)), "gate has shape .6, 2.; .6, 1. is needed, the shape of expert"),
}  # fmt: skip


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize("path", GROUPS)
def test_a_batch_is_no_group(backend, path):
    for library in (backend, reference):
        with pytest.raises(ValueError, match=r"has shape \(2, 3, 4\); \[T, E\] is needed, one group of tokens"):
            operator.attrgetter(path)(library)(BATCH, *GROUPS[path])


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize("path", [path for path in GROUPS if "mask" in options_of(path)])
def test_a_mask_of_floats_is_refused(backend, path):
    """An additive mask is 0 for a real token, where our mask is True, so it would be inverted."""
    added = np.where(np.arange(6) < 4, 0.0, -1e9).astype(np.float32)
    for library in (backend, reference):
        with pytest.raises(ValueError, match="mask is float32; bool is needed, True for a real token"):
            operator.attrgetter(path)(library)(GROUP, *GROUPS[path], mask=added)


@pytest.mark.asks("balance.expert_counts", "experts.routed_ffn")
@pytest.mark.twin
def test_a_layer_and_a_load_refuse_a_mask_of_floats(backend):
    for library in (backend, reference):
        for call in (library.experts.routed_ffn, library.balance.expert_counts):
            given = (PARAMS, X, EXPERT, GATE) if call.__name__ == "routed_ffn" else (EXPERT, 4)
            with pytest.raises(ValueError, match="mask is float32; bool is needed"):
                call(*given, mask=np.ones(6, np.float32))


@pytest.mark.asks("routers.top_k.top_k_router")
@pytest.mark.twin
@pytest.mark.parametrize("name", ["quantile_bias", "quantile_router", "top_k_router"])
def test_a_bias_is_one_number_for_each_expert(backend, name):
    for library in (backend, reference):
        file = library.routers.top_k if name == "top_k_router" else library.routers.quantile
        with pytest.raises(ValueError, match=r"bias has shape \(3,\); \(4,\) is needed"):
            getattr(file, name)(GROUP, bias=np.zeros(3, np.float32))


@pytest.mark.asks("experts.routed_ffn")
@pytest.mark.twin
@pytest.mark.parametrize("case", LAYERS)
def test_what_does_not_fit_into_a_layer_is_named(backend, case):
    *arguments, message = LAYERS[case]
    for library in (backend, reference):
        with pytest.raises(ValueError, match=message):
            library.experts.routed_ffn(*arguments)
