"""Types and shapes of the results of routers under every option, in float64 too, by tracing.

Tests of values cannot show whether an index has 32 bits where 64 are allowed, or a gate is wider than its logits.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.conformance.suite.inputs.test_records import ROUTERS, cases, is_array


def traced(value, dtype: str):
    def shape(leaf):
        kind = {"f": dtype, "i": "int32"}.get(np.asarray(leaf).dtype.kind, "bool")
        return jax.ShapeDtypeStruct(np.shape(leaf), kind)

    return jax.tree.map(shape, value)


@pytest.mark.asks(because="its parameter names the router")
@pytest.mark.twin
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("path", ROUTERS)
def test_types_and_shapes_of_each_router(backend, path, dtype):
    router = operator.attrgetter(path)(backend)
    with jax.enable_x64(dtype == "float64"):
        for case in (case for case in cases(path) if case.changed <= 1):
            given = {name: value for name, value in case.arguments.items() if value is not None}
            arrays = {n: v for n, v in given.items() if is_array(v) or n == "held"}
            call = functools.partial(router, **{n: v for n, v in given.items() if n not in arrays})
            found = jax.eval_shape(call, **{n: traced(v, dtype) for n, v in arrays.items()})
            for name, wanted in case.wanted._asdict().items():
                field, what = getattr(found, name), f"{path}, {case}, {dtype}: {name}"
                assert field.shape == np.shape(wanted), what
                assert field.dtype == jnp.dtype(jnp.int32 if np.asarray(wanted).dtype.kind == "i" else dtype), what
