r"""From random words to normal, uniform and chi-square numbers.

The transcendental functions are short polynomials after an exact reduction on the words' bits. They are accurate to the last
bits of a double, they vectorise on every back end, and they are the same everywhere, so that streams agree across engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32

_SINE = [(-1) ** n / math.factorial(2 * n + 1) for n in range(8)]
_COSINE = [(-1) ** n / math.factorial(2 * n) for n in range(9)]
_ATANH = [2 / (2 * n + 1) for n in range(11)]
_GOLDEN = 0x9E3779B1
_SINE_SINGLE = [1.0, -1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4]
_COSINE_SINGLE = [1.0, -0.5, 4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5]
_LOG_SINGLE = [
    3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1,
    -1.2420140846e-1, 1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2,
]  # fmt: skip
"""Polynomials for single precision, of Moshier's library Cephes: sin x / x and cos x by x^2, (log(1 + x) - x + x^2/2)/x^3."""


def numpy_of(array: Any) -> Any:
    """The module whose functions an array is for: NumPy on the host, where nothing is compiled for it, JAX's otherwise."""
    return np if isinstance(array, np.ndarray) else jnp


def traced_once(function: Callable) -> Callable:
    """A function of arrays that JAX traces once for each shape, however many places draw by it; plain on the host."""
    inside = jax.jit(function, static_argnames=tuple(function.__kwdefaults__ or ()))

    @wraps(function)
    def either(*args, **options):
        host = all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in jax.tree.leaves(args))
        return function(*args, **options) if host else inside(*args, **options)

    return either


def uniform(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """A uniform number in (0, 1] from 64 random bits: at least 2^-65, resolution 2^-53."""
    return (high.astype(float) + (low.astype(float) + 0.5) * 2.0**-32) * 2.0**-32


@traced_once
def normal_pair(
    first: UInt32[Array, "..."], second: UInt32[Array, "..."], *, single: bool = False
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Two independent standard normals from two words (Box and Muller).

    :math:`z = \sqrt{-2\log u}\,(\cos 2\pi\theta, \sin 2\pi\theta)`. The second word is the angle, and a multiple of it extends
    the first below 2^-32, so that the tail reaches 9.5 standard deviations rather than 6.8. `single` computes the same two
    in single precision, to about 1e-7 where the radius is of order 1, and returns them as doubles.
    """
    root, low = numpy_of(first).sqrt, second * np.uint32(_GOLDEN)
    if not single:
        radius, (sine, cosine) = root(-2 * _log(uniform(first, low))), _sine_cosine(second, np.float64, _SINE, _COSINE)
        return radius * cosine, radius * sine
    radius, (sine, cosine) = root(-2 * _log_single(first, low)), _sine_cosine(second, np.float32, _SINE_SINGLE, _COSINE_SINGLE)
    return (radius * cosine).astype(float), (radius * sine).astype(float)


@traced_once
def marsaglia_tsang(
    z: Float[Array, "..."], dof: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    r"""Proposal for a chi-square number of `dof >= 2` degrees of freedom, from a normal number [8]_.

    With :math:`\delta = \mathrm{dof}/2 - 1/3` and :math:`x = z/\sqrt{9\delta}` the proposal :math:`2\delta(1+x)^3` is exact
    once it is accepted with probability :math:`e^h`, :math:`h = z^2/2 + \delta(1 - (1+x)^3 + 3\log(1+x))`. The series of the
    logarithm gives :math:`e^h \ge 1 - \tfrac34\delta x^4/(1 - |x|)` for :math:`|x| < 1`, which settles all but about one in
    `18 dof` proposals without a logarithm.

    Returns the proposal, the bound below :math:`e^h` (negative where it does not hold), and :math:`h`.

    .. [8] Marsaglia, Tsang, *A simple method for generating gamma variables*, ACM TOMS 26 (2000).
    """
    xp, delta = numpy_of(z), dof / 2 - 1 / 3
    x = z / xp.sqrt(9 * delta)
    positive = x > -1
    one_plus = xp.where(positive, 1 + x, 1.0)
    cube = one_plus**3
    small = abs(x) < 1
    sure = xp.where(small, 1 - 0.75 * delta * x**4 / xp.where(small, 1 - abs(x), 1.0), -1.0)
    h = xp.where(positive, z**2 / 2 + delta * (1 - cube + 3 * xp.log(one_plus)), -np.inf)
    return 2 * delta * cube, sure, h


def _bits(array: Any, kind: type) -> Any:
    """The bits of an array as numbers of another kind."""
    return array.view(kind) if isinstance(array, np.ndarray) else lax.bitcast_convert_type(array, kind)


def _log(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """log u for a positive normal number: exponent from the bits, mantissa in [sqrt(1/2), sqrt 2) by the series of atanh."""
    xp, bits = numpy_of(u), _bits(u, np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int32) - 1022
    mantissa = _bits((bits & np.uint64(2**52 - 1)) | np.uint64(1022 << 52), np.float64)
    small = mantissa < math.sqrt(0.5)
    mantissa = xp.where(small, 2 * mantissa, mantissa)
    exponent = xp.where(small, exponent - 1, exponent).astype(float)
    s = (mantissa - 1) / (mantissa + 1)
    return exponent * math.log(2) + s * _polynomial(_ATANH, s * s)


def _log_single(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Any:
    """log of `uniform` in single precision: exponent from the bits, mantissa in [sqrt(1/2), sqrt 2) by a polynomial."""
    f32 = np.float32
    bits = _bits((high.astype(f32) + (low.astype(f32) + f32(0.5)) * f32(2.0**-32)) * f32(2.0**-32), np.int32)
    place = bits - np.int32(0x3F3504F3)  # the bits of the root of 1/2
    x = _bits(bits - (place & np.int32(-(1 << 23))), f32) - f32(1)
    exponent = (place >> np.int32(23)).astype(f32)
    return x + (x * x) * (x * _polynomial(_LOG_SINGLE, x) - f32(0.5)) + exponent * f32(math.log(2))


def _sine_cosine(angle: UInt32[Array, "..."], kind: type, sines: list[float], cosines: list[float]) -> tuple[Any, Any]:
    """sin and cos of 2 pi angle / 2^32: the quadrant from the two upper bits, the rest within pi/4 by polynomials."""
    xp, quadrant = numpy_of(angle), (angle + np.uint32(1 << 29)) >> np.uint32(30)
    rest = (angle - (quadrant << np.uint32(30))).astype(np.int32).astype(kind) * (2 * np.pi / 2**32)
    sine, cosine = rest * _polynomial(sines, rest * rest), _polynomial(cosines, rest * rest)
    turned = (quadrant & np.uint32(1)) == 1
    sine, cosine = xp.where(turned, cosine, sine), xp.where(turned, sine, cosine)
    flip_sine, flip_cosine = quadrant >= 2, (quadrant == 1) | (quadrant == 2)
    return xp.where(flip_sine, -sine, sine), xp.where(flip_cosine, -cosine, cosine)


def _polynomial(coefficients: list[float], x: Float[Array, "..."]) -> Float[Array, "..."]:
    value = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
