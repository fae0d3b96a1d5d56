r"""Gaussian fields of any means on the sides of zero where they are positive, in closed form and by one smooth integral."""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float
from numpy.polynomial.legendre import leggauss

from sgdlimits.gaussian.units import safe_inverse_root

ANGLES = 32
LARGEST = 40.0


def positive_means(
    mean: Float[Array, " p"], variance: Float[Array, " p"], others: Float[Array, " n"], cross: Float[Array, "p n"]
) -> Float[Array, "p n"]:
    r"""E[x_l; x_j > 0] for fields x_j of these means and variances and fields x_l of means `others` and covariances `cross`.

    With :math:`h = \bar x_j/s_j` it is :math:`\bar x_l\Phi(h) + C_{jl}\,\varphi(h)/s_j`.
    """
    h = _height(mean, variance)
    density = jnp.exp(-(h**2) / 2) / jnp.sqrt(2 * jnp.pi) * safe_inverse_root(variance)
    return ndtr(h)[:, None] * others + density[:, None] * cross


def both_positive(mean: Float[Array, " p"], C: Float[Array, "p p"]) -> Float[Array, "p p"]:
    r"""P(x_i > 0, x_j > 0) of fields with these means and covariances C.

    Plackett's integral over the correlation :math:`\rho`: with :math:`h = \bar x_i/s_i`, :math:`k = \bar x_j/s_j`,

    .. math:: \Phi(h)\Phi(k) + \frac1{2\pi}\int_0^{\arcsin\rho} \exp\Big(-\frac{h^2 - 2hk\sin\theta + k^2}{2\cos^2\theta}\Big)
              d\theta.
    """
    variance = jnp.diagonal(C)
    h, inverse = _height(mean, variance), safe_inverse_root(variance)
    same = jnp.eye(mean.size, dtype=bool)
    angle = jnp.arcsin(jnp.where(same, 0.0, jnp.clip(C * inverse[:, None] * inverse, -1 + 1e-12, 1 - 1e-12)))
    nodes, lengths = leggauss(ANGLES)
    theta = angle[..., None] * (nodes + 1) / 2
    distance = (h[:, None] ** 2 + h**2)[..., None] - 2 * (h[:, None] * h)[..., None] * jnp.sin(theta)
    swept = angle / (4 * jnp.pi) * (jnp.exp(-distance / (2 * jnp.cos(theta) ** 2)) @ lengths)
    return jnp.where(same, ndtr(h), ndtr(h)[:, None] * ndtr(h) + swept)


def _height(mean, variance):
    """Means in standard deviations, up to where the normal law is empty; that far by their signs where nothing varies."""
    inverse = safe_inverse_root(variance)
    height = jnp.where(inverse > 0, mean * inverse, LARGEST * jnp.sign(mean))
    return jnp.clip(height, -LARGEST, LARGEST)
