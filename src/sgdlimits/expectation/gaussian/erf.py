r"""Integrals of units :math:`\mathrm{erf}(x/\sqrt2)` of any scale, in the closed form of Saad and Solla.

A slope :math:`g'(x) = \sqrt{2/\pi}\, e^{-x^2/2}` of a unit g tilts the Gaussian measure of the fields, of covariance C. Under
two slopes, of units j and l, the fields stay Gaussian, with the posterior covariance :math:`\tilde C` after each of the two
fields is observed with noise of variance 1,

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

from sgdlimits.expectation.gaussian.units import UNIT_PAIRS_PER_CALL, PairIntegrals, UnitIntegrals, arcsine, map_pairs


class ErfFeatures(NamedTuple):
    """Precomputed features of erf units: the gain of each, and 1 + gain^2 times the variance of its field."""

    gain: Float[Array, " n"]
    spread: Float[Array, " n"]


class ErfIntegrals(UnitIntegrals):
    r"""Gaussian integrals for units :math:`\mathrm{erf}(\text{gain}\, x/\sqrt2)`, of which the first `students` are trained.

    Parameters
    ----------
    students : p, the number of trained units
    gains : gain of each unit, shape (n,)

    >>> import jax.numpy as jnp
    >>> both = ErfIntegrals(students=1, gains=jnp.ones(2)).all_pairs(jnp.eye(2))
    >>> round(float(both.value[0, 0]), 12)                      # E[erf(z/sqrt 2)^2]
    0.333333333333
    """

    students: int = eqx.field(static=True)
    gains: Float[Array, " n"] = eqx.field(converter=jnp.asarray)

    def features(self, variances):
        return ErfFeatures(self.gains, 1 + self.gains**2 * variances)

    def pairs(self, rows, columns, C):
        gains = rows.gain[:, None] * columns.gain
        overlap, product = gains * C, rows.spread[:, None] * columns.spread
        root = jnp.sqrt(product - overlap**2)
        value = jnp.arcsin(overlap / jnp.sqrt(product))
        slope = gains / root
        curvature = -(rows.gain[:, None] ** 2) * overlap / (rows.spread[:, None] * root)
        return PairIntegrals(*(2 / np.pi * part for part in (value, slope, curvature)))

    @property
    def floats_at_once(self):
        return UNIT_PAIRS_PER_CALL * self.gains.size**2

    def corrector(self, C, c):
        R = self.gains[:, None] * C * self.gains
        row, column = np.triu_indices(c.size)
        # Sums over pairs (m, n) run over the upper triangle, with weight 2 off the diagonal.
        weights = c[row] * c[column] * np.where(row == column, 1.0, 2.0)
        between, own = R[row, column], 1 + jnp.diagonal(R)

        def corrector_entry(j, l):
            a, mixed = own[j], R[j, l]
            rest = own[l] - mixed**2 / a
            v = R[j] / jnp.sqrt(a)
            w = (R[l] - mixed / a * R[j]) / jnp.sqrt(rest)
            scale = 1 / jnp.sqrt(own - v * v - w * w)
            v, w = v * scale, w * scale
            cosine = between * scale[row] * scale[column] - v[row] * v[column] - w[row] * w[column]
            return self.gains[j] * self.gains[l] * (weights @ arcsine(cosine)) / jnp.sqrt(a * rest)

        return 4 / np.pi**2 * map_pairs(corrector_entry, self.students)
