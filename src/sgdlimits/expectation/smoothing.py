r"""Activations averaged over a Gaussian part of their field.

Given the fixed fields, a unit's field is :math:`x = \mu + \sqrt v\,\xi` with :math:`\xi \sim N(0, 1)`. The mean-field limit
needs :math:`E\,s(x)`, :math:`E\,s'(x)` and :math:`E[s'(x)\,x]`, where the averages are over :math:`\xi`: in closed form for the
error function, exactly for polynomials, and by the trapezoidal rule for other smooth functions.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.gaussian.quadrature import Line, gauss_hermite, trapezoid
from sgdlimits.gaussian.units import safe_root
from sgdlimits.model.activation import Activation, Erf, Polynomial

NODES, REACH = 64, 9.0


class Smoothed(NamedTuple):
    """E s(x), E s'(x) and E[s'(x) x]."""

    value: Float[Array, "..."]
    slope: Float[Array, "..."]
    product: Float[Array, "..."]


def inner_line(activation: Activation) -> Line:
    """The points over which an activation is averaged; a single one where the average is in closed form."""
    if isinstance(activation, Erf):
        return Line(np.zeros(1), np.ones(1))
    if isinstance(activation, Polynomial):
        return gauss_hermite(activation.degree // 2 + 1)
    return trapezoid(NODES, REACH)


@singledispatch
def smoothed(activation: Activation, mean: Float[Array, "..."], variance: Float[Array, "..."]) -> Smoothed:
    """The averages for fields of this mean and variance, by a rule on a line."""
    points, weights = inner_line(activation)
    x = mean[..., None] + safe_root(variance)[..., None] * points
    value, slope = jax.jvp(activation, (x,), (jnp.ones_like(x),))
    return Smoothed(value @ weights, slope @ weights, (slope * x) @ weights)


@smoothed.register
def _(activation: Erf, mean, variance) -> Smoothed:
    """The average of erf(c x) is erf(c mu / sqrt(1 + 2 c^2 v))."""
    c = activation.scale
    inverse = jax.lax.rsqrt(1 + 2 * c**2 * variance)
    y = c * mean * inverse
    slope = 2 * c / np.sqrt(np.pi) * inverse * jnp.exp(-y * y)
    return Smoothed(jax.scipy.special.erf(y), slope, mean * inverse**2 * slope)
