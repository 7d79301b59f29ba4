"""A product of rows with the matrix of their group, for TPUs: each group costs only its rows.

XLA has a kernel for this product on TPU, but computes the gradient of the matrices with E times the FLOPs. So this
gradient uses JAX's Pallas kernel `tgmm`.
"""

import jax
import jax.numpy as jnp

from .target import platform

TILE = (256, 512, 1024)
"""Rows, and numbers of both factors, in a tile of `tgmm`. The tiles fit the small memory (16 MiB) of a TPU's core."""

_OVER_ROWS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


_OVER_COLUMNS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def groups_run(rows: jax.Array) -> bool:
    """Return whether the program runs on TPU, with a type of rows that the kernels take."""
    return platform() == "tpu" and rows.dtype in (jnp.bfloat16, jnp.float32)


def _precision(rows: jax.Array) -> str | None:
    """Return the precision of products for a type of rows: JAX's setting, but the default for bfloat16.

    Products of bfloat16 are exact in float32, and the kernels do not compile for them with a higher precision.
    """
    return "default" if rows.dtype == jnp.bfloat16 else jax.config.jax_default_matmul_precision


@jax.custom_vjp
def grouped_product(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return rows · matrices[e] for the rows of each group e.

    Args:
        rows: [n, m], the rows of group 0 first.
        matrices: [E, m, p].
        sizes: [E] int32, the number of rows of each group. Their sum is at most n.

    Returns:
        [n, p], arbitrary for rows without a group.
    """
    return jax.lax.ragged_dot(rows, matrices, sizes, precision=_precision(rows))


def _forward(rows, matrices, sizes):
    return grouped_product(rows, matrices, sizes), (rows, matrices, sizes)


def _backward(kept, gradient):
    rows, matrices, sizes = kept
    of_matrices = jax.lax.platform_dependent(rows, gradient, sizes, tpu=matrix_gradient, default=_by_xla)
    of_rows = jax.lax.ragged_dot_general(gradient, matrices, sizes, _OVER_COLUMNS, precision=_precision(gradient))
    return of_rows, of_matrices.astype(matrices.dtype), None


grouped_product.defvjp(_forward, _backward)


def matrix_gradient(rows: jax.Array, gradient: jax.Array, sizes: jax.Array, interpret: bool = False) -> jax.Array:
    """Return rowsᵀ · gradient over the rows of each group, [E, m, p]."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    if rest := -len(rows) % TILE[0]:
        rows, gradient = (jnp.pad(array, ((0, rest), (0, 0))) for array in (rows, gradient))
    with jax.default_matmul_precision(_precision(rows)):
        return tgmm(rows.T, gradient, sizes, rows.dtype, TILE, interpret=interpret)


def _by_xla(rows, gradient, sizes):
    return jax.lax.ragged_dot_general(rows, gradient, sizes, _OVER_ROWS, precision=_precision(rows))
