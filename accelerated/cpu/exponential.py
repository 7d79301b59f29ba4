"""e^v of float32 numbers, for loops that the compiler can vectorise (`compile.jit_fused`)."""

import numpy as np

from ..kernels.compile import jit_within
from .memory import power_of_two

MOST, PER_LN_2 = np.float32(87.0), np.float32(1.0 / np.log(2.0))
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(np.log(2.0) - 0.693359375)  # the first has zeros at its end
C2, C3, C4, C5, C6, C7 = (np.float32(c) for c in (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040))


@jit_within
def power_of_e(v):
    """Return e^v of a float32, v clipped to [-87, 87]; NaN for NaN.

    e^v = 2^k e^r with |r| <= ln 2 / 2, and e^r is a polynomial.
    """
    one = np.float32(1.0)
    v = MOST if v > MOST else v
    v = -MOST if v < -MOST else v
    k = np.floor(v * PER_LN_2 + np.float32(0.5))
    r = (v - k * LN_2_HIGH) - k * LN_2_LOW
    e = one + r * (one + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * C7))))))
    return e * power_of_two(k)
