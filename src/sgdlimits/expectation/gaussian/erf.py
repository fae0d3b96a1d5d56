r"""Units :math:`\mathrm{erf}(x/\sqrt2)`, any scale: the integrals of Saad and Solla in closed form.

A slope :math:`g'(x) = \sqrt{2/\pi}\, e^{-x^2/2}` tilts the Gaussian: with two of them the other fields stay Gaussian, with the
covariance left when each of the two fields is observed with noise of variance 1,

.. math:: E[g'_j g'_l\, g_m g_n] = \frac{4}{\pi^2 \sqrt{\det(1 + C_{jl})}}\,
          \arcsin\frac{\tilde C_{mn}}{\sqrt{(1+\tilde C_{mm})(1+\tilde C_{nn})}}, \qquad
          \tilde C = C - C_{\cdot\, jl}\, (1 + C_{jl})^{-1}\, C_{jl\, \cdot}\,.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.expectation.gaussian.units import PAIRS_AT_ONCE, Pairs, UnitIntegrals, arcsine, map_pairs


class Scaled(NamedTuple):
    """A field's gain, and 1 + its variance times the gain squared."""

    gain: Float[Array, " n"]
    spread: Float[Array, " n"]


class ErfIntegrals(UnitIntegrals):
    r"""Units :math:`\mathrm{erf}(\text{gain}\, x/\sqrt2)` with a gain for each field, `students` of them trained.

    >>> import jax.numpy as jnp
    >>> both = ErfIntegrals(students=1, gains=jnp.ones(2)).all_pairs(jnp.eye(2))
    >>> round(float(both.value[0, 0]), 12)                      # E[erf(z/sqrt 2)^2]
    0.333333333333
    """

    students: int = eqx.field(static=True)
    gains: Float[Array, " n"] = eqx.field(converter=jnp.asarray)

    def features(self, variances):
        return Scaled(self.gains, 1 + self.gains**2 * variances)

    def pairs(self, rows, columns, C):
        gains = rows.gain[:, None] * columns.gain
        overlap, product = gains * C, rows.spread[:, None] * columns.spread
        root = jnp.sqrt(product - overlap**2)
        value = jnp.arcsin(overlap / jnp.sqrt(product))
        slope, curvature = gains / root, -(rows.gain[:, None] ** 2) * overlap / (rows.spread[:, None] * root)
        return Pairs(*(2 / np.pi * part for part in (value, slope, curvature)))

    @property
    def numbers_at_once(self):
        return PAIRS_AT_ONCE * self.gains.size**2

    def corrector(self, C, c):
        R = self.gains[:, None] * C * self.gains
        row, column = np.triu_indices(c.size)
        weights, between, own = c[row] * c[column] * np.where(row == column, 1.0, 2.0), R[row, column], 1 + jnp.diagonal(R)

        def four(j, l):
            a, mixed = own[j], R[j, l]
            rest = own[l] - mixed**2 / a
            v = R[j] / jnp.sqrt(a)
            w = (R[l] - mixed / a * R[j]) / jnp.sqrt(rest)
            scale = 1 / jnp.sqrt(own - v * v - w * w)
            v, w = v * scale, w * scale
            cosine = between * scale[row] * scale[column] - v[row] * v[column] - w[row] * w[column]
            return self.gains[j] * self.gains[l] * (weights @ arcsine(cosine)) / jnp.sqrt(a * rest)

        return 4 / np.pi**2 * map_pairs(four, self.students)
