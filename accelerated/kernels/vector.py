"""Vectorised exponential and logarithm of an array.

numba's `math.exp` calls the C library for each number. The compiler can vectorise the loops below. Both functions use
textbook series (Muller 2016, Elementary Functions, chapter 11), exact to two units in the last place.
"""

import math

import numpy as np

from .compile import jit

LEAST, MOST = -700.0, 700.0
PER_LN_2 = 1.0 / math.log(2.0)
LN_2_HIGH, LN_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has zeros at its end
EXPONENT, BIAS = 52, 1023  # the first bit of a float64's exponent, and its bias
MANTISSA = (1 << EXPONENT) - 1
ROOT_HALF = math.sqrt(0.5)
_, _, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (1.0 / math.factorial(n) for n in range(14))
D3, D5, D7, D9, D11, D13, D15, D17, D19, D21 = (1.0 / n for n in range(3, 22, 2))


@jit
def exp(values, whole):
    """Replace values v by their exponentials, e^v = 2^k e^r with |r| <= ln 2 / 2.

    Args:
        values: [n], overwritten. Clipped to `LEAST` and `MOST`; NaN stays.
        whole: [n], scratch.
    """
    if values.itemsize != 8 or whole.size < values.size:
        raise ValueError("values have to be float64, and whole as long")
    for i in range(values.size):
        v = LEAST if values[i] < LEAST else values[i]
        v = MOST if v > MOST else v
        k = math.floor(v * PER_LN_2 + 0.5)
        r = (v - k * LN_2_HIGH) - k * LN_2_LOW
        values[i] = C9 + r * (C10 + r * (C11 + r * (C12 + r * C13)))
        values[i] = 1.0 + r * (
            1.0 + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * (C7 + r * (C8 + r * values[i])))))))
        )
        whole[i] = k
    bits = values.view(np.int64)
    for i in range(values.size):
        bits[i] += np.int64(whole[i]) << EXPONENT


@jit
def log(values, whole):
    """Replace values v = 2^k m, √½ <= m <= √2, by their logarithms, k ln 2 + 2 artanh((m - 1)/(m + 1)).

    Args:
        values: [n], overwritten; above 0 and not below 2^-1022 (unchecked). NaN stays.
        whole: [n], scratch.
    """
    if values.itemsize != 8 or whole.size < values.size:
        raise ValueError("values have to be float64, and whole as long")
    bits = values.view(np.int64)
    for i in range(values.size):
        whole[i] = (bits[i] >> EXPONENT) - (BIAS - 1) + 0.0 * values[i]
    for i in range(values.size):
        bits[i] = (bits[i] & MANTISSA) | ((BIAS - 1) << EXPONENT)
    for i in range(values.size):
        small = values[i] < ROOT_HALF
        m, k = 2.0 * values[i] if small else values[i], whole[i] - 1.0 if small else whole[i]
        s = (m - 1.0) / (m + 1.0)
        q = s * s
        t = D9 + q * (D11 + q * (D13 + q * (D15 + q * (D17 + q * (D19 + q * D21)))))
        values[i] = k * LN_2_HIGH + (k * LN_2_LOW + 2.0 * s * (1.0 + q * (D3 + q * (D5 + q * (D7 + q * t)))))
