"""Operations on rows of float32, for compiled loops (`compile`)."""

import numpy as np

from ..kernels.compile import jit, jit_sum


@jit_sum
def dot(x, y):
    total = np.float32(0.0)
    for j in range(x.size):
        total += x[j] * y[j]
    return total


@jit
def scale_row(x, factor):
    for j in range(x.size):
        x[j] *= factor


@jit
def write_scaled(to, factor, x):
    for j in range(to.size):
        to[j] = factor * x[j]
