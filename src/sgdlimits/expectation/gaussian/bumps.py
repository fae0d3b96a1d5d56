r"""Units whose slope is an even bump, such as tanh: sums of Gaussians, as accurate as asked.

.. math:: s'(x) \approx \sum_r w_r\, e^{-g_r^2x^2/2}, \qquad s(x) \approx s(0) + \sum_r \omega_r\,\mathrm{erf}(g_rx/\sqrt2).

Two slopes tilt the Gaussian, as for erf, and given them the residual is again a sum of error functions, whose products average
to arcsines. These are summed over r and r' as a series,

.. math:: E[s_ms_n] - s_m(0)s_n(0) = \frac2\pi\sum_k b_k\, C_{mn}^{2k+1} H_{mk}H_{nk}, \qquad
          H_{mk} = \sum_r \omega_r\Big(\frac{g_r}{\sqrt{1 + g_r^2C_{mm}}}\Big)^{2k+1},

with the coefficients :math:`b_k` of the arcsine; for m = n the arcsines themselves are taken.
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

REACH, POINTS = 14.0, 120
NARROW, WIDE = np.linspace(0.25, 0.9, 14), np.geomspace(1.0, 3.0, 12)
PAIRS_AT_ONCE = 4


class Bumps(NamedTuple):
    """A unit's value at zero, and the heights and gains of the Gaussians in its slope."""

    middle: float
    heights: Float[np.ndarray, " r"]
    gains: Float[np.ndarray, " r"]

    @property
    def weights(self) -> Float[np.ndarray, " r"]:
        """Of the error functions in the unit."""
        return self.heights / self.gains * np.sqrt(np.pi / 2)


@lru_cache(maxsize=64)
def bumps_of(fn: Callable, count: int) -> Bumps | None:
    """The best sum of `count` Gaussians for the slope of a function; None where it is no bump or has traced numbers."""
    x = REACH * np.linspace(0, 1, POINTS) ** 1.5
    with jax.ensure_compile_time_eval():
        value, slope = jax.jvp(fn, (jnp.concatenate([-x, x]),), (jnp.ones(2 * POINTS),))
    if isinstance(value, jax.core.Tracer):
        return None
    (before, slope), middle = np.split(np.asarray(slope), 2), float(np.asarray(value)[0])
    top = abs(slope[0])
    width = np.trapezoid(slope, x) / slope[0] if top > 0 else 0.0
    wanted = 4.0 ** -(count + 2) * top
    if not (0.3 < width < 3.0) or np.abs(before - slope).max() > wanted or abs(slope[-1]) > wanted:
        return None
    best, found = np.inf, None
    for narrow, wide in np.stack(np.meshgrid(NARROW, WIDE), axis=-1).reshape(-1, 2):
        gains = 1 / (width * np.geomspace(narrow, wide, count))
        table = np.exp(-((x[:, None] * gains) ** 2) / 2)
        heights = np.linalg.lstsq(table, slope, rcond=None)[0]
        error = np.abs(table @ heights - slope).max()
        if error < best:
            best, found = error, Bumps(middle, heights, gains)
    return found if best <= wanted else None


def bump_corrector(
    student: Bumps, teacher: Bumps, C: Float[Array, "n n"], c: Float[Array, " n"], p: int, terms: int
) -> Float[Array, "p p"]:
    """E[s_j' s_l' D^2] for p students and the other units teachers, D the sum of all with coefficients c."""
    n, k = c.size, np.arange(terms)
    kinds = np.arange(n) < p
    gains = np.where(kinds, student.gains[:, None], teacher.gains[:, None])
    weights = c * np.where(kinds, student.weights[:, None], teacher.weights[:, None])
    middle = c @ np.where(kinds, student.middle, teacher.middle)
    series = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])])) / (2 * k + 1)
    first, second = (axis.ravel() for axis in np.meshgrid(student.gains, student.gains))
    heights = np.outer(student.heights, student.heights).ravel()

    def four(j, l):
        a = 1 + first**2 * C[j, j]
        v = (first / jnp.sqrt(a))[:, None] * C[j]
        left = C[l] - v[:, l, None] * v
        b = 1 + second**2 * left[:, l]
        w = (second / jnp.sqrt(b))[:, None] * left
        tilted = C - v[:, :, None] * v[:, None] - w[:, :, None] * w[:, None]
        variance = jnp.diagonal(C) - v * v - w * w
        slim = gains[:, None] * jax.lax.rsqrt(1 + (gains**2)[:, None] * variance)
        mixed = lambda parts: sum(weight * part for weight, part in zip(weights, parts, strict=True))
        H = jax.lax.scan(lambda power, _: (power * slim**2, mixed(power)), slim, length=terms)[1]
        square, total, own = tilted**2, 0.0, 0.0
        for coefficient, here in zip(series[::-1], H[::-1], strict=True):
            total = total * square + coefficient * here[:, :, None] * here[:, None]
            own = own * variance**2 + coefficient * here**2
        own = mixed(mixed(arcsine(variance * slim * slim[:, None]))) - own * variance
        mean = (total * tilted).reshape(-1, n * n) @ np.ones(n * n) + own @ np.ones(n)
        return (heights / jnp.sqrt(a * b)) @ (middle**2 + 2 / np.pi * mean)

    return map_pairs(four, p, PAIRS_AT_ONCE)
