"""Arrays of another rank or size than a function takes give one clear error in both twins.

A batch [b, S, E] would broadcast as a group [T, E] and give wrong experts.
"""

import operator

import numpy as np
import pytest

from routelaws import reference
from routelaws.conformance.engine.names import functions_of_scores, options_of

BATCH, GROUP = np.zeros((2, 3, 4), np.float32), np.zeros((6, 4), np.float32)

GROUPS = dict.fromkeys(functions_of_scores(), ()) | {
    "routers.quantile.quantile_bias": (np.zeros(4, np.float32),),
    "routers.quantile.quantile_router": (np.zeros(4, np.float32),),
}
"""Functions of a group of tokens, and their arguments after the logits."""


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
