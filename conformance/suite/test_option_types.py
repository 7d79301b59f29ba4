"""Types and shapes of what routers return under every option, in float64 too: nothing is computed, only traced.

The tests of each router compare values in both precisions; whether an index is 32 bits wide where 64 are allowed, and a
gate no wider than its logits, no value shows.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

T, E, K = 7, 4, 2
INTEGERS = ("expert", "token", "experts_per_token")


def calls(backend):
    """Return {name: (function of logits, a mask, uniforms and a bias; shapes of what comes back)}."""
    routers, record = backend.routers, {"expert": (T, K), "gate": (T, K), "load": (E,), "plan": (T, E), "residual": ()}
    assignment = {"expert": (T, K), "objective": (), "prices": (E,), "gap": ()}
    choice = {"token": (E, 4), "gate": (E, 4), "experts_per_token": (T,)}
    found = {
        "quantile": (lambda z, m, u, b: routers.quantile.quantile_router(z, b, K, mask=m), record),
        "gshard": (lambda z, m, u, b: routers.top_k.gshard_router(z, u, mask=m), record),
        "top_k": (lambda z, m, u, b: routers.top_k.top_k_router(z, K, bias=b, mask=m), record),
        "expert_choice": (lambda z, m, u, b: routers.expert_choice.expert_choice_router(z, 2.0, mask=m), choice),
    }
    for training in (True, False):
        for name, router in (("sinkhorn", routers.sinkhorn.sinkhorn_router), ("base", routers.base.base_router)):
            router = functools.partial(router, training=training)
            found[f"{name}, training {training}"] = (lambda z, m, u, b, router=router: router(z, K, mask=m), record)
    for method in ("host", "auction"):
        assign = functools.partial(routers.base.balanced_assignment, method=method)
        found[f"assignment by {method}"] = (lambda z, m, u, b, assign=assign: assign(z, K, mask=m), assignment)
    return found


@pytest.mark.asks(
    "routers.base.balanced_assignment",
    "routers.base.base_router",
    "routers.expert_choice.expert_choice_router",
    "routers.quantile.quantile_router",
    "routers.sinkhorn.sinkhorn_router",
    "routers.top_k.top_k_router",
    "routers.top_k.gshard_router",
)
@pytest.mark.twin
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("masked", [True, False])
def test_types_and_shapes_of_each_router(backend, dtype, masked):
    with jax.enable_x64(dtype == "float64"):
        logits, uniforms = jax.ShapeDtypeStruct((T, E), dtype), jax.ShapeDtypeStruct((T,), dtype)
        mask, bias = jax.ShapeDtypeStruct((T,), bool) if masked else None, jax.ShapeDtypeStruct((E,), dtype)
        for name, (call, shapes) in calls(backend).items():
            found = jax.eval_shape(call, logits, mask, uniforms, bias)._asdict()
            assert {field: leaf.shape for field, leaf in found.items()} == shapes, name
            wanted = {field: jnp.dtype(jnp.int32 if field in INTEGERS else dtype) for field in shapes}
            assert {field: leaf.dtype for field, leaf in found.items()} == wanted, name
