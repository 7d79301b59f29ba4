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


def calls() -> list:
    """Return (path, options) of every function that needs the scores of a group, and of the router with a bias."""
    paths = (*functions_of_scores(), "routers.quantile.quantile_router")
    calls = [(path, {"k": K} if "k" in options_of(path) else {}) for path in paths]
    calls += [(path, {**options, "training": False}) for path, options in calls if "training" in options_of(path)]
    return [*calls, ("routers.base.balanced_assignment", {"k": K, "method": "auction"})]


@pytest.mark.asks(because="its parameter names the function")
@pytest.mark.twin
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("path", "options"), calls())
def test_types_and_shapes_of_each_router(backend, path, options, dtype, masked):
    """The shapes are the reference's."""
    random, mask = np.random.default_rng(0), np.arange(T) != 2 if masked else None
    numbers = {"logits": random.random((T, E)), "uniforms": random.random(T), "bias": random.random(E), "mask": mask}
    numbers["scores"] = numbers["logits"]
    arrays = {part: numbers[part] for part in defaults_of(path) if part in numbers}
    wanted = public_functions()[path](**arrays, **{name: options[name] for name in options if name != "method"})
    with jax.enable_x64(dtype == "float64"):
        shaped = {part: array if part == "mask" else np.asarray(array, dtype) for part, array in arrays.items()}
        found = jax.eval_shape(functools.partial(operator.attrgetter(path)(backend), **options), **shaped)
        for field, leaf in found._asdict().items() if hasattr(found, "_fields") else {"": found}.items():
            right = np.asarray(getattr(wanted, field) if field else wanted)
            kind = {"i": jnp.int32, "b": bool}.get(right.dtype.kind, dtype)
            assert (leaf.shape, leaf.dtype) == (right.shape, jnp.dtype(kind)), field
