r"""Units with a kink at zero, :math:`s(x) = \alpha x + \beta|x|`: relu, absolute value, leaky relu.

Two fields: arc-cosine kernels, in closed form. Four fields: the integrals with an odd number of signs are closed too; what is
left is

.. math:: T(1) = E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, |x_m||x_n|],

with T(t) the same under the covariance whose entries between (j, l) and (m, n) are multiplied by t. T(0) is a product of
integrals over two fields, and by Price's theorem the slope in t is a sum of four integrals in which one sign has become a
delta function: expectations of two signs and an absolute value given that a field is zero, which are closed. One integral over
t remains: with :math:`t = \sin\theta` a Gauss-Legendre rule converges fast on it, also where fields coincide.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial.legendre import leggauss

from sgdlimits.gaussian.units import Pairs, UnitIntegrals, safe_inverse_root, safe_root, sine_and_angle

NODES = 40


class Kinked(NamedTuple):
    """A field's odd and even part, and its standard deviation."""

    odd: Float[Array, " n"]
    even: Float[Array, " n"]
    deviation: Float[Array, " n"]


class PiecewiseLinearIntegrals(UnitIntegrals):
    r"""Units :math:`\text{odd}\,x + \text{even}\,|x|`, with both numbers for each field, `students` of them trained.

    >>> import jax.numpy as jnp
    >>> relu = PiecewiseLinearIntegrals(students=1, odd=jnp.full(2, 0.5), even=jnp.full(2, 0.5))
    >>> round(float(relu.all_pairs(jnp.eye(2)).value[0, 0]), 12)                      # E[max(z, 0)^2]
    0.5
    """

    students: int = eqx.field(static=True)
    odd: Float[Array, " n"] = eqx.field(converter=jnp.asarray)
    even: Float[Array, " n"] = eqx.field(converter=jnp.asarray)

    def features(self, variances):
        return Kinked(self.odd, self.even, safe_root(variances))

    def pairs(self, rows, columns, C):
        odd, even = rows.odd[:, None] * columns.odd, 2 / np.pi * rows.even[:, None] * columns.even
        left, right = rows.deviation[:, None], columns.deviation
        root, angle = _root_and_angle(C, left * right)
        value = odd * C + even * (root + C * angle)
        return Pairs(value, odd + even * angle, even * root * safe_inverse_root(left**2) ** 2)

    def four(self, C, c, j, l):
        odd, even, variance = self.odd, self.even, jnp.diagonal(C)
        b, e = c * odd, c * even
        deviation = safe_root(variance)
        root, angle = _root_and_angle(C, deviation[:, None] * deviation)
        products = 2 / np.pi * (root + C * angle)
        linear, absolute = b @ C @ b, e @ products @ e
        signs = jnp.where(j == l, linear, self._signs_linear(C, b, j, l)) * even[j] * even[l]
        both = jnp.where(j == l, absolute, self._signs_absolute(C, e, j, l)) * even[j] * even[l]
        mixed = odd[l] * even[j] * self._sign_mixed(C, b, e, j) + odd[j] * even[l] * self._sign_mixed(C, b, e, l)
        return odd[j] * odd[l] * (linear + absolute) + signs + both + mixed

    @staticmethod
    def _sign_mixed(C, b, e, j):
        r"""The sum over m, n of :math:`2 b_m e_n E[\mathrm{sgn}_j\, x_m |x_n|]`."""
        deviation = safe_root(jnp.diagonal(C))
        root, angle = _root_and_angle(C[j], deviation[j] * deviation)
        inverse = safe_inverse_root(C[j, j]) ** 2
        return 4 / np.pi * ((b @ C[j]) * inverse * (e @ root) + (b @ C) @ (e * angle))

    @staticmethod
    def _signs_linear(C, b, j, l):
        r"""The sum over m, n of :math:`b_m b_n E[\mathrm{sgn}_j \mathrm{sgn}_l\, x_m x_n]`."""
        x, y, full = b @ C[j], b @ C[l], b @ C @ b
        root, angle = _root_and_angle(C[j, l], safe_root(C[j, j] * C[l, l]))
        inverse = safe_inverse_root(root**2)
        given_j = y - C[j, l] * x * safe_inverse_root(C[j, j]) ** 2
        given_l = x - C[j, l] * y * safe_inverse_root(C[l, l]) ** 2
        return 2 / np.pi * (full * angle + (x * given_j + y * given_l) * inverse)

    @staticmethod
    def _signs_absolute(C, e, j, l):
        r"""The sum over m, n of :math:`e_m e_n E[\mathrm{sgn}_j \mathrm{sgn}_l\, |x_m||x_n|]`, by the path in t."""
        m, n = np.triu_indices(e.size)
        weight = e[m] * e[n] * np.where(m == n, 1.0, 2.0)
        _, angle = _root_and_angle(C[j, l], safe_root(C[j, j] * C[l, l]))
        root, other = _root_and_angle(C[m, n], safe_root(C[m, m] * C[n, n]))
        nodes, weights = leggauss(NODES)
        theta = jnp.asarray((nodes + 1) * np.pi / 4)[:, None]
        zero, sign = jnp.stack([j, j, l, l]), jnp.stack([l, l, j, j])
        first, second = np.stack([m, n, m, n]), np.stack([n, m, n, m])
        slope = _slope(C, zero[:, None, None], sign[:, None, None], first[:, None], second[:, None], jnp.sin(theta)).sum(0)
        path = (jnp.asarray(weights * np.pi / 4)[:, None] * jnp.cos(theta) * slope).sum(0)
        return 4 / np.pi**2 * (weight * (angle * (root + C[m, n] * other) + path)).sum()


def _root_and_angle(C, product):
    """The root of product^2 - C^2, and the arcsine of C / product: the angle between two fields."""
    sine, angle = sine_and_angle(C * safe_inverse_root(product**2))
    return product * sine, angle


def _slope(C, i, o, a, b, t):
    r"""The part of dT/dt from the delta of field i and the sign of field a, up to :math:`4/\pi^2`.

    It is :math:`C_{ia}/\sqrt{C_{ii}}` times the expectation of the signs of o and a and of :math:`|x_b|` given :math:`x_i = 0`.
    """
    inverse = safe_inverse_root(C[i, i])
    along_o, along_a, along_b = C[i, o] * inverse, C[i, a] * inverse, C[i, b] * inverse
    three = _signs_and_absolute(
        xx=C[o, o] - along_o**2,
        yy=C[a, a] - (t * along_a) ** 2,
        zz=C[b, b] - (t * along_b) ** 2,
        xy=t * (C[o, a] - along_o * along_a),
        xz=t * (C[o, b] - along_o * along_b),
        yz=C[a, b] - t**2 * along_a * along_b,
    )
    return along_a * three


def _signs_and_absolute(xx, yy, zz, xy, xz, yz):
    r""":math:`E[\mathrm{sgn}\,x\ \mathrm{sgn}\,y\ |z|]` of three fields, up to :math:`(2/\pi)^{3/2}`."""
    d_xy, d_xz, d_yz = xx * yy - xy**2, xx * zz - xz**2, yy * zz - yz**2
    r_xy, r_xz, r_yz = safe_inverse_root(d_xy), safe_inverse_root(d_xz), safe_inverse_root(d_yz)
    _, given_z = sine_and_angle((xy * zz - xz * yz) * r_xz * r_yz)
    _, given_x = sine_and_angle((yz * xx - xy * xz) * r_xy * r_xz)
    _, given_y = sine_and_angle((xz * yy - xy * yz) * r_xy * r_yz)
    return safe_root(zz) * given_z + xz * safe_inverse_root(xx) * given_x + yz * safe_inverse_root(yy) * given_y
