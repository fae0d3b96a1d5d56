"""Logarithms from the bits of floats, with the same operations and results in NumPy and in traced code."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jaxtyping import Array, Float

_ATANH_COEFFICIENTS = [
    2.0, 0.6666666666666734155, 0.39999999999416374848, 0.28571428742014901087, 0.22222198610841650195,
    0.18183562402359379824, 0.15314098900460141542, 0.14795474564432865705,
]  # fmt: skip
"""Coefficients of 2 atanh(s)/s in powers of s^2 for |s| <= (sqrt 2 - 1)/(sqrt 2 + 1): a minimax polynomial."""


def reinterpret_bits(array: Any, kind: type) -> Any:
    """Reinterpret the bits of an array as another number type of the same size."""
    return array.view(kind) if isinstance(array, np.ndarray) else lax.bitcast_convert_type(array, kind)


def split_log(u: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Split log u = n log 2 + r for a positive normal float, with an integer n and |r| <= log(2)/2.

    u = 2^n m with the mantissa m in [sqrt(1/2), sqrt 2), whose logarithm is r.
    """
    bits = reinterpret_bits(u, np.int64)
    place = bits - np.int64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2): the mantissa is centred about 1, where log is small
    mantissa = reinterpret_bits(bits - (place & np.int64(-(1 << 52))), np.float64)
    s = (mantissa - 1) / (mantissa + 1)
    return (place >> np.int64(52)).astype(float), s * evaluate_polynomial(_ATANH_COEFFICIENTS, s * s)


def evaluate_polynomial(coefficients: list[float], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Evaluate a polynomial in x by Horner's scheme, with coefficients in ascending order."""
    value = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
