r"""Elementary functions, composed of arithmetic operations that every back end has.

Functions of a C library take one scalar at a time. The functions here consist of an argument reduction and a polynomial, which
vectorise over replicas and give the same results on every back end. They are JAX functions of one double, which are
flattened into a program like any other. `docs/kernels.md` has their errors, which `tests/unit/kernel` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from sgdlimits.kernel.compiler.bits import split_log

LOG2_HIGH, LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""High and low part of log 2; the high part ends in zero bits, so that integer multiples of it are exact."""
HALF_PI_PARTS = (1.5707963109016418, 1.5893254712295857e-08, 6.123233932053594e-17)
"""Three parts of pi/2: the first two have few enough bits that integer multiples of them are exact."""
ROUNDING_SHIFT = 6755399441055744.0
"""1.5·2^52: added to a double of moderate size, it rounds the double to an integer, held in the last bits of the sum."""
ERFC_ZERO_BEYOND = 28.0
"""Argument beyond which erfc underflows to zero in double precision."""

Scalar = Float[Array, ""]


def _evaluate_polynomial(coefficients: Sequence[float], x: Scalar) -> Scalar:
    """Evaluate a polynomial in x by Horner's scheme, with coefficients in ascending order."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + float(coefficient)
    return value


@lru_cache(maxsize=8)
def _fit_polynomial(function: Callable, low: float, high: float, degree: int) -> tuple[float, ...]:
    """Fit a polynomial to a function on [low, high] at Chebyshev nodes, in a variable from -1 to 1 over the interval."""
    s = np.cos(np.pi * (np.arange(256) + 0.5) / 256)
    values = function((s + 1) / 2 * (high - low) + low)
    return tuple(np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(s, values, degree)).tolist())


def _power_of_two(n: Scalar) -> Scalar:
    """Return 2^n for an integer n, by setting the exponent bits of a double."""
    bits = lax.bitcast_convert_type(n + ROUNDING_SHIFT, jnp.int64)  # the last bits are n; the shift to 52 drops the others
    return lax.bitcast_convert_type((bits + 1023) << 52, jnp.float64)


def _reduce_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """Split x into an integer n and a small remainder r, x = n log 2 + r; x is clipped to finite exponentials."""
    x = jnp.minimum(jnp.maximum(x, -708.0), 709.0)  # beyond, the result would be subnormal or infinite
    n = jnp.round(x * (1 / math.log(2)))
    return n, (x - n * LOG2_HIGH) - n * LOG2_LOW


# Taylor coefficients of (e^r - 1)/r; those of e^r are 1 and the same ones, shifted.
_EXPM1_SERIES = [1 / math.factorial(n + 1) for n in range(13)]


def exp(x: Scalar) -> Scalar:
    """Return e^x, for |x| up to about 700; larger arguments are clipped."""
    n, r = _reduce_exponent(x)
    return _evaluate_polynomial([1.0, *_EXPM1_SERIES[:-1]], r) * _power_of_two(n)


def expm1(x: Scalar) -> Scalar:
    """Return e^x - 1, accurate for small x too."""
    n, r = _reduce_exponent(x)
    scale = _power_of_two(n)
    # 2^n (e^r - 1) + (2^n - 1): for small x, where n = 0, no digits cancel.
    return scale * (r * _evaluate_polynomial(_EXPM1_SERIES, r)) + (scale - 1)


def log(x: Scalar) -> Scalar:
    """Return log x for zero, infinite and normal positive x, NaN for negative x; subnormal numbers are not supported."""
    exponent, rest = split_log(x)
    value = exponent * LOG2_HIGH + (exponent * LOG2_LOW + rest)
    return jnp.where(x > 0, jnp.where(x < jnp.inf, value, jnp.inf), jnp.where(x == 0, -jnp.inf, jnp.nan))


def log1p(x: Scalar) -> Scalar:
    """Return log(1 + x), accurate for small x too."""
    # Kahan's correction: log(u) x/(u - 1) with the rounded u = 1 + x, whose error cancels in the quotient.
    u = 1 + x
    exact = u == 1
    return jnp.where(exact, x, log(u) * (x / jnp.where(exact, 1.0, u - 1)))


def tanh(x: Scalar) -> Scalar:
    """Return tanh x by e^(-2|x|) - 1, which neither overflows nor cancels."""
    m = expm1(-2 * jnp.abs(x))
    return jnp.where(x < 0, m, -m) / (2 + m)


def logistic(x: Scalar) -> Scalar:
    """Return 1/(1 + e^-x)."""
    return 1 / (1 + exp(-x))


def sinh(x: Scalar) -> Scalar:
    """Return sinh x by e^|x| - 1, accurate for small x too."""
    m = expm1(jnp.abs(x))
    value = (m + m / (m + 1)) / 2
    return jnp.where(x < 0, -value, value)


def cosh(x: Scalar) -> Scalar:
    """Return cosh x."""
    e = exp(jnp.abs(x))
    return (e + 1 / e) / 2


def _scaled_erfc(t: np.ndarray) -> np.ndarray:
    """Return e^(x^2) erfc(x) as a function of t = 2/(2 + x)."""
    from scipy.special import erfcx

    return erfcx(2 / t - 2)


ERF_NUMERATOR = [
    1.1283791670955126, 0.22050697990443274, 0.06618023598192302, 0.006907708192464432, 0.00085728091561898,
    5.714720361397779e-05, 3.9111980879434374e-06, 1.7018346953379957e-07, 6.7792206314233936e-09,
    1.725766852332863e-10, 3.332295973944636e-12, 2.210892770807802e-14, 1.553159586649263e-17,
]  # fmt: skip
ERF_DENOMINATOR = [
    1.0, 0.5287525561749091, 0.13490155911833723, 0.02202325155795194, 0.002570390317415613, 0.00022670614684945102,
    1.5547282625509715e-05, 8.379110218940705e-07, 3.5280393849122596e-08, 1.1281484795524028e-09,
    2.5541366181010586e-11, 3.30444605982273e-13, 8.766865781019762e-16,
]  # fmt: skip
"""Numerator and denominator of erf(x)/x in powers of x^2 for |x| <= 5.95: a minimax quotient without negative coefficients, so
that no digits cancel."""


def erf(x: Scalar) -> Scalar:
    """Return erf x."""
    x = jnp.minimum(jnp.maximum(x, -5.95), 5.95)
    return x * (_evaluate_polynomial(ERF_NUMERATOR, x * x) / _evaluate_polynomial(ERF_DENOMINATOR, x * x))


_MAX_ERF_SERIES_ARGUMENT = 0.25
_ERF_SERIES = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(9)]


def erfc(x: Scalar) -> Scalar:
    """Return erfc x: e^(-x^2) times a polynomial in 1/(2 + |x|), and a power series for small x.

    The derivative of erfc has the same exponential, which is then computed once.
    """
    low = 2 / (2 + ERFC_ZERO_BEYOND)
    t = jnp.maximum(2 / (2 + jnp.abs(x)), low)
    s = t * (2 / (1 - low)) - (1 + low) / (1 - low)
    tail = exp(-(x * x)) * _evaluate_polynomial(_fit_polynomial(_scaled_erfc, low, 1.0, 22), s)
    return jnp.where(
        jnp.abs(x) < _MAX_ERF_SERIES_ARGUMENT,
        1 - x * _evaluate_polynomial(_ERF_SERIES, x * x),
        jnp.where(x < 0, 2 - tail, tail),
    )


def _sine_cosine(x: Scalar) -> tuple[Scalar, Scalar]:
    """Return sin x and cos x by reduction modulo pi/2 and Taylor polynomials."""
    n = jnp.round(x * (2 / math.pi))
    r = ((x - n * HALF_PI_PARTS[0]) - n * HALF_PI_PARTS[1]) - n * HALF_PI_PARTS[2]
    z, quadrant = r * r, lax.bitcast_convert_type(n + ROUNDING_SHIFT, jnp.int64)
    sine = r * _evaluate_polynomial([(-1) ** i / math.factorial(2 * i + 1) for i in range(9)], z)
    cosine = _evaluate_polynomial([(-1) ** i / math.factorial(2 * i) for i in range(9)], z)
    odd = (quadrant & 1) == 1
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    return jnp.where((quadrant & 2) == 2, -sine, sine), jnp.where(((quadrant + 1) & 2) == 2, -cosine, cosine)


def sin(x: Scalar) -> Scalar:
    """Return sin x."""
    return _sine_cosine(x)[0]


def cos(x: Scalar) -> Scalar:
    """Return cos x."""
    return _sine_cosine(x)[1]


def tan(x: Scalar) -> Scalar:
    """Return tan x."""
    sine, cosine = _sine_cosine(x)
    return sine / cosine


def _arcsine_of_root(z: np.ndarray) -> np.ndarray:
    """Return asin(y)/y as a function of z = y^2."""
    root = np.sqrt(z)
    return np.arcsin(root) / root


def asin(x: Scalar) -> Scalar:
    """Return asin x; for |x| > 1/2 by the half angle, asin x = pi/2 - 2 asin sqrt((1 - x)/2)."""
    size = jnp.abs(x)
    far = size > 0.5
    z = jnp.where(far, (1 - size) / 2, size * size)
    root = jnp.where(far, jnp.sqrt(z), size)
    angle = root * _evaluate_polynomial(_fit_polynomial(_arcsine_of_root, 0.0, 0.25, 12), z * 8 - 1)
    value = jnp.where(far, (math.pi / 2 - angle) - angle, angle)
    return jnp.where(x < 0, -value, value)


def acos(x: Scalar) -> Scalar:
    """Return acos x."""
    return math.pi / 2 - asin(x)


def atan(x: Scalar) -> Scalar:
    """Return atan x; for |x| > 1 by the reciprocal, atan x = pi/2 - atan 1/x."""
    size = jnp.abs(x)
    far = size > 1
    y = jnp.where(far, 1 / jnp.where(far, size, 1.0), size)
    angle = asin(y / jnp.sqrt(1 + y * y))
    value = jnp.where(far, math.pi / 2 - angle, angle)
    return jnp.where(x < 0, -value, value)


def exp2(x: Scalar) -> Scalar:
    """Return 2^x."""
    x = jnp.minimum(jnp.maximum(x, -1022.0), 1023.0)
    n = jnp.round(x)
    return _evaluate_polynomial([1.0, *_EXPM1_SERIES[:-1]], (x - n) * math.log(2)) * _power_of_two(n)


def pow(x: Scalar, y: Scalar) -> Scalar:
    """Return x^y for positive x."""
    return exp(y * log(x))


ELEMENTARY: dict[str, Callable[..., Scalar]] = {
    function.__name__: function
    for function in (exp, expm1, exp2, log, log1p, tanh, logistic, sinh, cosh, erf, erfc, sin, cos, tan, asin, acos, atan, pow)
}
