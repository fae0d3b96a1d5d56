r"""Transformations of random words to normal, uniform and chi-square variates.

The transcendental functions are short polynomials after an exact reduction on the words' bits. They are accurate to the last
bits of a double, vectorise on every back end, and are the same everywhere, so that streams agree between kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from sgdlimits.kernel.compiler.bits import evaluate_polynomial, reinterpret_bits, split_log

_SINE_COEFFICIENTS = [
    1.0, -0.1666666666666666557, 0.0083333333333331943072, -0.00019841269841209219366, 2.75573192111372959e-6,
    -2.5052106872803657225e-8, 1.6058939705949783443e-10, -7.6429914903628877715e-13, 2.7211749711571910864e-15,
]  # fmt: skip
_SINGLE_SINE_COEFFICIENTS = [0.99999999468602, -0.16666656684022, 0.0083330251392183, -0.00019807418741313, 2.601903092036e-6]
"""Coefficients of sin x / x in powers of x^2 for |x| <= pi/2: minimax polynomials, with a relative error below rounding."""
_GOLDEN_RATIO_MULTIPLIER, _RIGHT_ANGLE = np.uint32(0x9E3779B1), np.uint32(1 << 30)
_SINGLE_LOG_COEFFICIENTS = [
    3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1,
    -1.2420140846e-1, 1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2,
]  # fmt: skip
"""Coefficients of (log(1 + x) - x + x^2/2)/x^3 in powers of x, in single precision, from Moshier's library Cephes."""


def array_module(array: Any) -> Any:
    """Return the module that computes with an array: NumPy for a NumPy array, which saves compilation, else `jax.numpy`."""
    return np if isinstance(array, np.ndarray) else jnp


def jit_unless_host(function: Callable) -> Callable:
    """Decorate a function of arrays so that NumPy arrays are computed at once, and all others by `jax.jit`.

    JAX then traces the function once for each shape, however many places of a program call it.
    """
    inside = jax.jit(function, static_argnames=tuple(function.__kwdefaults__ or ()))

    @wraps(function)
    def call_or_jit(*args, **options):
        host = all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in jax.tree.leaves(args))
        return function(*args, **options) if host else inside(*args, **options)

    return call_or_jit


def uniform(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Convert 64 random bits, in two words, to a uniform variate in (0, 1]: at least 2^-65, with resolution 2^-53."""
    return (high.astype(float) + (low.astype(float) + 0.5) * 2.0**-32) * 2.0**-32


@jit_unless_host
def normal_pair(
    first: UInt32[Array, "..."], second: UInt32[Array, "..."], *, single: bool = False
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Transform two random words to two independent standard normal variates, by Box and Muller's method.

    :math:`z = \sqrt{-2\log u}\,(\cos 2\pi\theta, \sin 2\pi\theta)`. The second word is the angle, and a multiple of it extends
    the first below 2^-32, so that the tail reaches 9.5 standard deviations rather than 6.8. `single` computes the same variates
    in single precision, to about 1e-7 where the radius is of order 1, and returns them as doubles.
    """
    root, low = array_module(first).sqrt, second * _GOLDEN_RATIO_MULTIPLIER
    if not single:
        exponent, rest = split_log(uniform(first, low))
        radius = root(-2 * (exponent * math.log(2) + rest))
        cosine = radius * _cosine(second, np.float64, _SINE_COEFFICIENTS)
        return cosine, radius * _cosine(second - _RIGHT_ANGLE, np.float64, _SINE_COEFFICIENTS)
    radius, parts = root(-2 * _log_single(first, low)), (second, second - _RIGHT_ANGLE)
    cosine, sine = ((radius * _cosine(angle, np.float32, _SINGLE_SINE_COEFFICIENTS)).astype(float) for angle in parts)
    return cosine, sine


@jit_unless_host
def marsaglia_tsang(
    z: Float[Array, "..."], dof: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    r"""Propose a chi-square variate with `dof >= 2` degrees of freedom from a normal variate `z`, for rejection sampling [8]_.

    With :math:`\delta = \mathrm{dof}/2 - 1/3` and :math:`x = z/\sqrt{9\delta}` the proposal :math:`2\delta(1+x)^3` is exact
    once it is accepted with probability :math:`e^h`, :math:`h = z^2/2 + \delta(1 - (1+x)^3 + 3\log(1+x))`. The series of the
    logarithm gives :math:`e^h \ge 1 - \tfrac34\delta x^4(1 + 2|x|)` for :math:`|x| \le \tfrac12`, which settles all but about
    one in `18 dof` proposals without a logarithm or a quotient.

    Returns the proposal, the bound below :math:`e^h` (negative where it does not hold), and :math:`h`.

    .. [8] Marsaglia, Tsang, *A simple method for generating gamma variables*, ACM TOMS 26 (2000).
    """
    xp, delta = array_module(z), dof / 2 - 1 / 3
    x = z * (1 / xp.sqrt(9 * delta))  # one quotient for each dof, not for each variate
    positive = x > -1
    one_plus = xp.where(positive, 1 + x, 1.0)  # a safe argument of the logarithm where the proposal is negative
    cube = one_plus**3
    sure = xp.where(abs(x) <= 0.5, 1 - 0.75 * delta * x**4 * (1 + 2 * abs(x)), -1.0)
    h = xp.where(positive, z**2 / 2 + delta * (1 - cube + 3 * xp.log(one_plus)), -np.inf)
    return 2 * delta * cube, sure, h


def _log_single(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Any:
    """Return the logarithm of the variate of `uniform`, computed in single precision.

    The exponent is read off the bits; the mantissa, in [sqrt(1/2), sqrt 2), goes into a polynomial.
    """
    f32 = np.float32
    bits = reinterpret_bits((high.astype(f32) + (low.astype(f32) + f32(0.5)) * f32(2.0**-32)) * f32(2.0**-32), np.int32)
    place = bits - np.int32(0x3F3504F3)  # the bits of the root of 1/2
    x = reinterpret_bits(bits - (place & np.int32(-(1 << 23))), f32) - f32(1)
    exponent = (place >> np.int32(23)).astype(f32)
    return x + (x * x) * (x * evaluate_polynomial(_SINGLE_LOG_COEFFICIENTS, x) - f32(0.5)) + exponent * f32(math.log(2))


def _cosine(angle: UInt32[Array, "..."], kind: type, sines: list[float]) -> Any:
    """Return the cosine of the angle 2 pi `angle` / 2^32, computed as the sine of a right angle minus that angle.

    For the sine of an angle, pass the angle minus a right angle. Integers make the reduction exact.
    """
    rest = (np.int32(1 << 30) - abs(reinterpret_bits(angle, np.int32))).astype(kind) * kind(2 * np.pi / 2**32)
    return rest * evaluate_polynomial(sines, rest * rest)
