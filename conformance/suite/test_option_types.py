"""Types and shapes of what routers return under every option, in float64 too: nothing is computed, only traced.

The tests of each router compare values in both precisions; whether an index is 32 bits wide where 64 are allowed, and a
gate no wider than its logits, no value shows.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.conformance.engine.names import defaults_of, functions_of_scores, options_of, public_functions

T, E, K = 7, 4, 2


def calls() -> dict[str, tuple[str, dict]]:
    """Return {name: (path, options)} of every function that returns a record for the scores of a group."""
    found = {path: (path, {"k": K} if "k" in options_of(path) else {}) for path in functions_of_scores()}
    found |= {
        f"{path} in evaluation": (path, options | {"training": False})
        for path, options in found.values()
        if "training" in options_of(path)
    }
    found["an auction"] = "routers.base.balanced_assignment", {"k": K, "method": "auction"}
    return found | {path: (path, {"k": K}) for path in ("routers.quantile.quantile_router",)}


@pytest.mark.asks(*functions_of_scores(), "routers.quantile.quantile_router")
@pytest.mark.twin
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("masked", [True, False])
def test_types_and_shapes_of_each_router(backend, dtype, masked):
    """The shapes are the reference's."""
    random, mask = np.random.default_rng(0), np.arange(T) != 2 if masked else None
    numbers = {"logits": random.random((T, E)), "uniforms": random.random(T), "bias": random.random(E), "mask": mask}
    numbers["scores"] = numbers["logits"]
    with jax.enable_x64(dtype == "float64"):
        for name, (path, options) in calls().items():
            arrays = {part: numbers[part] for part in defaults_of(path) if part in numbers}
            wanted = public_functions()[path](**arrays, **{k: v for k, v in options.items() if k != "method"})
            shaped = {part: array if part == "mask" else np.asarray(array, dtype) for part, array in arrays.items()}
            found = jax.eval_shape(functools.partial(operator.attrgetter(path)(backend), **options), **shaped)
            for field, leaf in found._asdict().items() if hasattr(found, "_fields") else {"": found}.items():
                right = np.asarray(getattr(wanted, field) if field else wanted)
                kind = {"i": jnp.int32, "b": bool}.get(right.dtype.kind, dtype)
                assert (leaf.shape, leaf.dtype) == (right.shape, jnp.dtype(kind)), f"{name}: {field}"
