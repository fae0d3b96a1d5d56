r"""Integrals of units whose slope is an even bump, such as tanh: fits of the slope by sums of Gaussians.

With heights :math:`w_r` and inverse widths :math:`g_r` of the Gaussians,

.. math:: s'(x) \approx \sum_r w_r\, e^{-g_r^2x^2/2}, \qquad s(x) \approx s(0) + \sum_r \omega_r\,\mathrm{erf}(g_rx/\sqrt2).

Two slopes tilt the Gaussian measure, as for erf, and under the tilted measure the residual is again a sum of error functions,
whose products average to arcsines. These are summed over r and r' as a series in the covariances :math:`C_{mn}` of the fields
of units m and n,

.. math:: E[s_ms_n] - s_m(0)s_n(0) = \frac2\pi\sum_k b_k\, C_{mn}^{2k+1} H_{mk}H_{nk}, \qquad
          H_{mk} = \sum_r \omega_r\Big(\frac{g_r}{\sqrt{1 + g_r^2C_{mm}}}\Big)^{2k+1},

with the coefficients :math:`b_k` of the arcsine; for m = n the arcsines themselves are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.expectation.gaussian.units import arcsine, map_pairs

SLOPE_FIT_RANGE, SLOPE_FIT_POINTS = 14.0, 120
# Widths of the narrowest and the widest Gaussian tried in a fit, in units of the width of the bump.
NARROW_BUMP_WIDTHS = np.linspace(0.25, 0.9, 14)
WIDE_BUMP_WIDTHS = np.geomspace(1.0, 3.0, 12)
# Fewer pairs than for other units: each holds a series of n-by-n matrices for every pair of Gaussians.
UNIT_PAIRS_PER_CALL = 4


class GaussianSlope(NamedTuple):
    """An activation whose derivative is a sum of Gaussians: its value at 0, and the Gaussians' heights and inverse widths."""

    value_at_zero: float
    heights: Float[np.ndarray, " r"]
    gains: Float[np.ndarray, " r"]

    @property
    def weights(self) -> Float[np.ndarray, " r"]:
        """Coefficients of the error functions that add up to the activation."""
        return self.heights / self.gains * np.sqrt(np.pi / 2)


@lru_cache(maxsize=64)
def fit_gaussian_slope(fn: Callable, count: int) -> GaussianSlope | None:
    """Fit the derivative of an activation by a sum of `count` Gaussians with geometrically spaced widths.

    Returns None if the slope is not an even bump of width about 1, if the fit misses it by more than the required accuracy, or
    if the function depends on traced values.
    """
    x = SLOPE_FIT_RANGE * np.linspace(0, 1, SLOPE_FIT_POINTS) ** 1.5  # denser near zero, where the slope varies
    with jax.ensure_compile_time_eval():
        value, slope = jax.jvp(fn, (jnp.concatenate([-x, x]),), (jnp.ones(2 * SLOPE_FIT_POINTS),))
    if isinstance(value, jax.core.Tracer):
        return None
    mirrored, slope = np.split(np.asarray(slope), 2)
    middle = float(np.asarray(value)[0])
    height = abs(slope[0])
    width = np.trapezoid(slope, x) / slope[0] if height > 0 else 0.0
    tolerance = 4.0 ** -(count + 2) * height
    if not (0.3 < width < 3.0) or np.abs(mirrored - slope).max() > tolerance or abs(slope[-1]) > tolerance:
        return None
    # Heights follow from least squares; only the narrowest and the widest gain are searched for.
    best, fit = np.inf, None
    for narrow, wide in np.stack(np.meshgrid(NARROW_BUMP_WIDTHS, WIDE_BUMP_WIDTHS), axis=-1).reshape(-1, 2):
        gains = 1 / (width * np.geomspace(narrow, wide, count))
        table = np.exp(-((x[:, None] * gains) ** 2) / 2)
        heights = np.linalg.lstsq(table, slope, rcond=None)[0]
        error = np.abs(table @ heights - slope).max()
        if error < best:
            best, fit = error, GaussianSlope(middle, heights, gains)
    return fit if best <= tolerance else None


def bump_corrector(
    student: GaussianSlope, teacher: GaussianSlope, C: Float[Array, "n n"], c: Float[Array, " n"], p: int, terms: int
) -> Float[Array, "p p"]:
    """Compute the matrix E[s_j' s_l' D^2] over students j and l, for units s and the residual D = sum_n c_n s_n.

    Parameters
    ----------
    student, teacher : the fits of both activations
    C : covariance of all fields, the p students first
    terms : number of terms of the arcsine series
    """
    n, k = c.size, np.arange(terms)
    kinds = np.arange(n) < p
    gains = np.where(kinds, student.gains[:, None], teacher.gains[:, None])
    weights = c * np.where(kinds, student.weights[:, None], teacher.weights[:, None])
    middle = c @ np.where(kinds, student.value_at_zero, teacher.value_at_zero)
    series = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])])) / (2 * k + 1)
    first, second = (axis.ravel() for axis in np.meshgrid(student.gains, student.gains))
    heights = np.outer(student.heights, student.heights).ravel()

    def corrector_entry(j, l):
        a = 1 + first**2 * C[j, j]
        v = (first / jnp.sqrt(a))[:, None] * C[j]
        left = C[l] - v[:, l, None] * v
        b = 1 + second**2 * left[:, l]
        w = (second / jnp.sqrt(b))[:, None] * left
        # Covariance of the fields under the two tilts, eliminated one after the other as in a Cholesky factorisation.
        tilted = C - v[:, :, None] * v[:, None] - w[:, :, None] * w[:, None]
        variance = jnp.diagonal(C) - v * v - w * w
        ratio = gains[:, None] * jax.lax.rsqrt(1 + (gains**2)[:, None] * variance)
        weighted_sum = lambda parts: sum(weight * part for weight, part in zip(weights, parts, strict=True))
        H = jax.lax.scan(lambda power, _: (power * ratio**2, weighted_sum(power)), ratio, length=terms)[1]
        # Horner's scheme in the squared covariance; on the diagonal the series converges slowly, and its exact sum replaces it.
        square, total, own = tilted**2, 0.0, 0.0
        for coefficient, here in zip(series[::-1], H[::-1], strict=True):
            total = total * square + coefficient * here[:, :, None] * here[:, None]
            own = own * variance**2 + coefficient * here**2
        own = weighted_sum(weighted_sum(arcsine(variance * ratio * ratio[:, None]))) - own * variance
        mean = (total * tilted).reshape(-1, n * n) @ np.ones(n * n) + own @ np.ones(n)
        return (heights / jnp.sqrt(a * b)) @ (middle**2 + 2 / np.pi * mean)

    return map_pairs(corrector_entry, p, UNIT_PAIRS_PER_CALL)
