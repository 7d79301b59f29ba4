"""Products by group for TPUs; they run here on CPU, and the kernel in Pallas' interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated import experts
from routelaws.accelerated.operations.grouped import grouped_product, matrix_gradient
from routelaws.accelerated.operations.target import traced_for

SIZES = [0, 290, 0, 300, 7]  # of 600 rows: empty groups, more than a tile, rows without a group


def of_groups(product) -> np.ndarray:
    ends = np.cumsum(SIZES)
    return np.stack([product(e, slice(end - SIZES[e], end)) for e, end in enumerate(ends)])


def test_the_gradient_of_the_matrices_by_both_programs():
    rng = np.random.default_rng(0)
    rows, gradient, matrices = (np.float32(rng.normal(size=size)) for size in ((600, 8), (600, 24), (5, 8, 24)))
    wanted = of_groups(lambda e, group: rows[group].T @ gradient[group])
    sizes = jnp.asarray(SIZES, jnp.int32)
    kernel = matrix_gradient(jnp.asarray(rows), jnp.asarray(gradient), sizes, interpret=True)
    weighted = lambda matrices: (grouped_product(rows, matrices, sizes)[: sum(SIZES)] * gradient[: sum(SIZES)]).sum()  # noqa: E731
    for found in (kernel, jax.grad(weighted)(matrices)):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(("activation", "factor"), [("gelu", 0.7), ("swiglu", np.inf)])
def test_experts_on_a_tpu_return_what_they_return_elsewhere(activation, factor, monkeypatch):
    """Rows without an expert are NaN here, in outputs and gradients. On a TPU they are arbitrary."""
    monkeypatch.setattr(experts, "grouped_product", spoiled_product)
    rng = np.random.default_rng(1)
    shapes = {"up": (4, 8, 6), "down": (4, 6, 8)} | ({"linear": (4, 8, 6)} if activation == "swiglu" else {})
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    expert = np.argsort(rng.normal(size=(40, 4)) + [2, 0, 0, 0])[:, :2]
    mask = rng.uniform(size=40) < 0.8

    def total(params, x, gate):
        done = experts.routed_ffn(params, x, expert, gate, factor, mask=mask, activation=activation)
        return jnp.sin(done.output).sum(), done

    agree_on_a_tpu(total, params, rng.normal(size=(40, 8)), rng.uniform(size=(40, 2)))


@jax.custom_vjp
def spoiled_product(rows, matrices, sizes):
    return spoiled(grouped_product(rows, matrices, sizes), sizes)


def spoiled(rows, sizes, value=jnp.nan):
    return jnp.where(jnp.arange(len(rows))[:, None] < sizes.sum(), rows, value)


def spoiled_backward(given, gradient):
    rows, matrices, sizes = given
    _, pull = jax.vjp(grouped_product, spoiled(rows, sizes, 0), matrices, sizes)
    of_rows, of_matrices, _ = pull(spoiled(gradient, sizes, 0))
    return spoiled(of_rows, sizes), of_matrices, None


spoiled_product.defvjp(lambda *given: (spoiled_product(*given), given), spoiled_backward)


def agree_on_a_tpu(total, *given):
    """Check that a program for TPU returns the same result and gradients as the one for this machine."""
    differentiate = jax.grad(total, argnums=(0, 1, 2), has_aux=True)
    given = jax.tree.map(np.float32, given)
    with traced_for("tpu"):
        found = jax.jit(differentiate)(*given)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(differentiate(*given)), strict=True):
        assert np.abs(one - other).max() <= 1e-4 * np.abs(other).max()
