r"""Units with a kink at zero, :math:`s(x) = \alpha x + \beta|x|`: relu, absolute value, leaky relu.

Two fields: arc-cosine kernels, in closed form. Four fields: what contains at most three signs is closed too, and what is left
is :math:`E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, |x_m||x_n|]` of four different fields. For fields of variance 1 and
correlations r Stein's lemma gives

.. math:: E[\mathrm{sgn}_j\mathrm{sgn}_l|x_m||x_n|] = r_{mn}\,S + \sum_{a<b}\frac{4}{\pi^2}
          \frac{r_{ma}r_{nb} + r_{mb}r_{na} - r_{ab}(r_{ma}r_{na} + r_{mb}r_{nb})}{\sqrt{1 - r_{ab}^2}}\,
          \arcsin\rho_{cd|ab}

with the sum over the pairs of the four, (c, d) the other two, :math:`\rho_{cd|ab}` their correlation where both of (a, b) are
zero, and S the mean of the product of all four signs. S and the arcsines know nothing of who is j: each set of four fields is
looked at once, for all six pairs in it.

With the correlations between two pairs of the four multiplied by t, S(0) is a product of arcsines, and by Price's theorem
(Plackett's for orthants) the slope in t is a sum over the four correlations,
:math:`(4/\pi^2)\, r_{ab}\arcsin\rho_{cd|ab}(t)/\sqrt{1 - t^2r_{ab}^2}`. One integral over t remains. Pairs are formed so that
strong correlations are within them, and nodes lie densely near t = 1, where fields that nearly coincide make the slope vary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.polynomial.legendre import leggauss

from sgdlimits.expectation.gaussian.units import Pairs, UnitIntegrals, safe_inverse_root, safe_root, sine_and_angle

NODES, DENSER = 24, 3
FOURS_AT_ONCE = 2048
PAIR = np.triu_indices(4, 1)
REST = PAIR[0][::-1], PAIR[1][::-1]
"""The six pairs (a, b) of four, and the other two of each, (c, d)."""


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
        own = np.eye(*C.shape) > 0 if rows is columns else None
        root, angle = _root_and_angle(C, left * right, own)
        value = odd * C + even * (root + C * angle)
        return Pairs(value, odd + even * angle, even * root * safe_inverse_root(left**2) ** 2)

    @property
    def numbers_at_once(self):
        return 16 * FOURS_AT_ONCE

    def corrector(self, C, c):
        p, odd, even = self.students, self.odd[: self.students], self.even[: self.students]
        b, e = c * self.odd, c * self.even
        deviation = safe_root(jnp.diagonal(C))
        root, angle = _root_and_angle(C, deviation[:, None] * deviation)
        absolute = e @ (2 / np.pi * (root + C * angle)) @ e
        linear, x = b @ C @ b, b @ C
        inverse = safe_inverse_root(jnp.diagonal(C)) ** 2
        mixed = 4 / np.pi * (x * inverse * (root @ e) + angle @ (x * e))[:p] * even
        signs = _signs_and_products(C, root, angle, jnp.outer(x, x), linear)[:p, :p]
        signs += _signs_and_absolutes(C, e, root, angle, inverse, p)
        signs = jnp.where(np.eye(p, dtype=bool), linear + absolute, signs)
        return (
            jnp.outer(odd, odd) * (linear + absolute)
            + jnp.outer(even, even) * signs
            + odd * mixed[:, None]
            + odd[:, None] * mixed
        )


def _signs_and_products(C, root, angle, outer, square):
    r""":math:`E[\mathrm{sgn}_j \mathrm{sgn}_l\, D]` for quadratic D, from its covariances with :math:`x_jx_l` and its mean."""
    own = jnp.diagonal(outer) * safe_inverse_root(jnp.diagonal(C)) ** 2
    return 2 / np.pi * (square * angle + (2 * outer - C * (own[:, None] + own)) * safe_inverse_root(root**2))


def _signs_and_absolutes(C, e, root, angle, inverse, p):
    r"""The sum over m, n of :math:`e_m e_n E[\mathrm{sgn}_j \mathrm{sgn}_l\, |x_m||x_n|]` for students j and l that differ."""
    equal = _signs_and_products(C, root, angle, (C * e**2) @ C, e**2 @ jnp.diagonal(C))
    # one of m, n is j or l: E[sgn_l x_j |x_n|], the sum over all n but j and l
    over = 2 / np.pi * (inverse[:, None] * C * (root @ e)[:, None] + (angle * e) @ C)
    its = 2 / np.pi * (inverse[:, None] * C * root + angle * jnp.diagonal(C))
    one = e * (over - e * its - e[:, None] * C)
    deviation, scale = safe_root(jnp.diagonal(C)), safe_inverse_root(jnp.diagonal(C))
    four = _fours(C * scale[:, None] * scale, e * deviation)
    return (equal + 2 * (one + one.T + jnp.outer(e, e) * C + four))[:p, :p]


def _fours(r: Float[Array, "n n"], e: Float[Array, " n"]) -> Float[Array, "n n"]:
    r"""The sum over m < n of :math:`e_m e_n E[\mathrm{sgn}_j \mathrm{sgn}_l\, |x_m||x_n|]`, all four different, variances 1."""
    n = len(e)
    count = math.comb(n, 4)
    if count == 0:
        return jnp.zeros_like(r)

    def some(total, first):
        rank = first + np.arange(min(count, FOURS_AT_ONCE))
        which = _four_of(jnp.minimum(rank, count - 1), n)
        parts = _sign_absolute_moments(r[which[:, None], which]) * jnp.where(rank < count, e[which[REST[0]]] * e[which[REST[1]]], 0.0)
        return total.at[which[PAIR[0]], which[PAIR[1]]].add(parts), None

    firsts = jnp.arange(0, count, FOURS_AT_ONCE)
    upper = jax.lax.scan(some, jnp.zeros_like(r), firsts)[0]
    return upper + upper.T


def _four_of(rank: Int[Array, " m"], n: int) -> Int[Array, "4 m"]:
    """The sets of four of n by their number, each in order: the last index decides first."""
    found: list = []
    for size in (4, 3, 2, 1):
        below = jnp.asarray([math.comb(i, size) for i in range(n)])
        index = jnp.searchsorted(below, rank, side="right") - 1
        rank = rank - below[index]
        found.insert(0, index)
    return jnp.stack(found)


def _sign_absolute_moments(r: Float[Array, "4 4 m"]) -> Float[Array, "6 m"]:
    """E[sgn sgn |x| |x|] with the signs of each of the six pairs, from the correlations."""
    own, rest, cross = r[PAIR], r[REST], [r[one, other] for one in PAIR for other in REST]
    slopes = 4 / np.pi**2 * _partial(own, rest, *cross) * _inverse_sine(own)
    slopes, signs = jax.lax.optimization_barrier((slopes, _four_signs(r)))
    ma, mb, na, nb = (r[one[:, None], other] for one in REST for other in PAIR)
    both = ma * nb + mb * na - own * (ma * na + mb * nb)
    return rest * signs + (both * slopes).sum(1)


def _inverse_sine(cosine):
    return safe_inverse_root((1 - cosine) * (1 + cosine))


def _partial(ab, cd, ac, ad, bc, bd):
    """The arcsine of the correlation of c and d where a and b are zero."""
    c, d = (1 - ab**2 - x**2 - y**2 + 2 * ab * x * y for x, y in ((ac, bc), (ad, bd)))
    mixed = (1 - ab**2) * cd - ac * ad - bc * bd + ab * (ac * bd + bc * ad)
    return sine_and_angle(mixed * safe_inverse_root(c) * safe_inverse_root(d))[1]


def _four_signs(r: Float[Array, "4 4 m"]) -> Float[Array, " m"]:
    """The mean of the product of four signs."""
    ways = jnp.stack([r[np.ix_(order, order)] for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1))])
    best = jnp.argmin(jnp.abs(ways[:, :2, 2:]).max((1, 2)), axis=0)
    r = jnp.where(best == 0, ways[0], jnp.where(best == 1, ways[1], ways[2]))
    cross, first, second = r[:2, 2:], r[0, 1], r[2, 3]

    def node(total, place):
        t, length = place
        here = t * cross
        angles = _partial(here, here[::-1, ::-1], first, here[:, ::-1], here[::-1], second)
        return total + length * (cross * _inverse_sine(here) * angles).sum((0, 1)), None

    u, lengths = leggauss(NODES)
    theta = np.pi / 2 * (1 - ((u + 1) / 2) ** DENSER)
    lengths = lengths * np.pi / 4 * DENSER * ((u + 1) / 2) ** (DENSER - 1) * np.cos(theta)
    start = sine_and_angle(first)[1] * sine_and_angle(second)[1]
    return 4 / np.pi**2 * jax.lax.scan(node, start, (jnp.asarray(np.sin(theta)), jnp.asarray(lengths)))[0]


def _root_and_angle(C, product, own=None):
    """Return the root of product^2 - C^2, and the arcsine of C / product, which is 1 where `own` marks a field with itself."""
    cosine = C * safe_inverse_root(product**2)
    if own is not None:  # exactly 1, so that a bound of its square root near 0 does not become infinite
        cosine = jnp.where(own, jnp.where(C > 0, 1.0, 0.0), cosine)
    sine, angle = sine_and_angle(cosine)
    return product * sine, angle
