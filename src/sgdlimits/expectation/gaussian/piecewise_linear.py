r"""Integrals of units with a kink at zero, :math:`s(x) = \alpha x + \beta|x|`: relu, absolute value, leaky relu.

Integrals over two fields are arc-cosine kernels, in closed form. Over four fields, terms with at most three signs are closed
too. The remaining one is :math:`E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, |x_m||x_n|]` of four different fields. For fields of
variance 1 and correlations r Stein's lemma gives

.. math:: E[\mathrm{sgn}_j\mathrm{sgn}_l|x_m||x_n|] = r_{mn}\,S + \sum_{a<b}\frac{4}{\pi^2}
          \frac{r_{ma}r_{nb} + r_{mb}r_{na} - r_{ab}(r_{ma}r_{na} + r_{mb}r_{nb})}{\sqrt{1 - r_{ab}^2}}\,
          \arcsin\rho_{cd|ab}

with the sum over the pairs (a, b) of the four, (c, d) the other two, :math:`\rho_{cd|ab}` their correlation given that the
fields a and b are zero, and S the mean of the product of all four signs. S and the arcsines are symmetric in the four fields,
so each set of four is processed once, for all six pairs in it.

With the correlations between two pairs of the four multiplied by t, S(0) is a product of arcsines, and by Price's theorem
(Plackett's for orthants) the slope in t is a sum over these four correlations,
:math:`(4/\pi^2)\, r_{ab}\arcsin\rho_{cd|ab}(t)/\sqrt{1 - t^2r_{ab}^2}`. One integral over t remains. Pairs are chosen
so that strong correlations are within them, and nodes are dense near t = 1, where the slope varies fast if fields nearly
coincide.
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

from sgdlimits.expectation.gaussian.units import PairIntegrals, UnitIntegrals, safe_inverse_root, safe_root, sine_and_angle

ANGLE_NODES = 24
NODE_DENSITY_POWER = 3
"""Power of the substitution that concentrates nodes near t = 1."""
# Bounds the memory: about 16 intermediate arrays have this length.
UNIT_QUADRUPLES_PER_CALL = 2048
PAIR_INDICES = np.triu_indices(4, 1)
COMPLEMENT_INDICES = PAIR_INDICES[0][::-1], PAIR_INDICES[1][::-1]
"""The complement (c, d) of each of the six pairs (a, b) of four fields, `PAIR_INDICES`."""


class KinkedFeatures(NamedTuple):
    """Precomputed features of piecewise linear units: odd and even coefficient, and standard deviation of the field."""

    odd: Float[Array, " n"]
    even: Float[Array, " n"]
    deviation: Float[Array, " n"]


class PiecewiseLinearIntegrals(UnitIntegrals):
    r"""Gaussian integrals for units :math:`\text{odd}\,x + \text{even}\,|x|`, of which the first `students` are trained.

    Parameters
    ----------
    students : p, the number of trained units
    odd, even : coefficients of each unit, shape (n,)

    >>> import jax.numpy as jnp
    >>> relu = PiecewiseLinearIntegrals(students=1, odd=jnp.full(2, 0.5), even=jnp.full(2, 0.5))
    >>> round(float(relu.all_pairs(jnp.eye(2)).value[0, 0]), 12)                      # E[max(z, 0)^2]
    0.5
    """

    students: int = eqx.field(static=True)
    odd: Float[Array, " n"] = eqx.field(converter=jnp.asarray)
    even: Float[Array, " n"] = eqx.field(converter=jnp.asarray)

    def features(self, variances):
        return KinkedFeatures(self.odd, self.even, safe_root(variances))

    def pairs(self, rows, columns, C):
        odd = rows.odd[:, None] * columns.odd
        even = 2 / np.pi * rows.even[:, None] * columns.even
        left, right = rows.deviation[:, None], columns.deviation
        own = np.eye(*C.shape) > 0 if rows is columns else None
        root, angle = _root_and_angle(C, left * right, own)
        value = odd * C + even * (root + C * angle)
        return PairIntegrals(value, odd + even * angle, even * root * safe_inverse_root(left**2) ** 2)

    @property
    def floats_at_once(self):
        return 16 * UNIT_QUADRUPLES_PER_CALL

    def corrector(self, C, c):
        p, odd, even = self.students, self.odd[: self.students], self.even[: self.students]
        # D is split into its odd part b x and its even part e |x|, and each slope into odd + even sgn(x).
        b, e = c * self.odd, c * self.even
        deviation = safe_root(jnp.diagonal(C))
        root, angle = _root_and_angle(C, deviation[:, None] * deviation)
        absolute = e @ (2 / np.pi * (root + C * angle)) @ e
        linear, x = b @ C @ b, b @ C
        inverse = safe_inverse_root(jnp.diagonal(C)) ** 2
        mixed = 4 / np.pi * (x * inverse * (root @ e) + angle @ (x * e))[:p] * even
        signs = _mean_signs_times_form(C, root, angle, jnp.outer(x, x), linear)[:p, :p]
        signs += _mean_signs_times_absolutes(C, e, root, angle, inverse, p)
        signs = jnp.where(np.eye(p, dtype=bool), linear + absolute, signs)
        return (
            jnp.outer(odd, odd) * (linear + absolute)
            + jnp.outer(even, even) * signs
            + odd * mixed[:, None]
            + odd[:, None] * mixed
        )


def _mean_signs_times_form(C, root, angle, outer, square):
    r"""Compute the mean of the signs of two Gaussian fields times a quadratic form of all fields, for every pair.

    The result is :math:`E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, D]` for the fields :math:`x_j, x_l` and the quadratic form D.

    Parameters
    ----------
    C : covariance of the fields
    root, angle : results of `_root_and_angle` for C and the products of the fields' standard deviations
    outer : half the covariance of D with x_j x_l, shape (n, n)
    square : mean of D
    """
    own = jnp.diagonal(outer) * safe_inverse_root(jnp.diagonal(C)) ** 2
    return 2 / np.pi * (square * angle + (2 * outer - C * (own[:, None] + own)) * safe_inverse_root(root**2))


def _mean_signs_times_absolutes(C, e, root, angle, inverse, p):
    r"""Compute the mean of the signs of two fields times :math:`(\sum_m e_m |x_m|)^2`, for all pairs of students that differ.

    The result is the sum over m and n of :math:`e_m e_n E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, |x_m||x_n|]`, for fields x of
    covariance C and coefficients e, with the p students first.
    """
    # m = n: the absolute values make a square, a quadratic form
    equal = _mean_signs_times_form(C, root, angle, (C * e**2) @ C, e**2 @ jnp.diagonal(C))
    # one of m, n is j or l: E[sgn_l x_j |x_n|], summed over all n but j and l
    over = 2 / np.pi * (inverse[:, None] * C * (root @ e)[:, None] + (angle * e) @ C)
    its = 2 / np.pi * (inverse[:, None] * C * root + angle * jnp.diagonal(C))
    one = e * (over - e * its - e[:, None] * C)
    deviation, scale = safe_root(jnp.diagonal(C)), safe_inverse_root(jnp.diagonal(C))
    four = _sum_over_quadruples(C * scale[:, None] * scale, e * deviation)
    return (equal + 2 * (one + one.T + jnp.outer(e, e) * C + four))[:p, :p]


def _sum_over_quadruples(r: Float[Array, "n n"], e: Float[Array, " n"]) -> Float[Array, "n n"]:
    r"""Sum the weighted means of two signs times two absolute values over all sets of four distinct Gaussian fields.

    The fields x have variance 1 and correlations r, and e are the weights of the absolute values. The result has
    :math:`\sum_{m<n} e_m e_n E[\mathrm{sgn}(x_j)\, \mathrm{sgn}(x_l)\, |x_m||x_n|]` for each pair (j, l).
    """
    n = len(e)
    count = math.comb(n, 4)
    if count == 0:
        return jnp.zeros_like(r)

    def add_block(total, first_rank):
        # The last block is padded with the last set of four, at weight zero.
        rank = first_rank + np.arange(min(count, UNIT_QUADRUPLES_PER_CALL))
        which = _unrank_quadruples(jnp.minimum(rank, count - 1), n)
        parts = _sign_absolute_moments(r[which[:, None], which]) * jnp.where(
            rank < count, e[which[COMPLEMENT_INDICES[0]]] * e[which[COMPLEMENT_INDICES[1]]], 0.0
        )
        return total.at[which[PAIR_INDICES[0]], which[PAIR_INDICES[1]]].add(parts), None

    firsts = jnp.arange(0, count, UNIT_QUADRUPLES_PER_CALL)
    upper = jax.lax.scan(add_block, jnp.zeros_like(r), firsts)[0]
    return upper + upper.T


def _unrank_quadruples(rank: Int[Array, " m"], n: int) -> Int[Array, "4 m"]:
    """Return the four-element subsets of range(n) with the given ranks in colexicographic order, each in increasing order."""
    # Combinatorial number system: the largest index i of a set of rank r has comb(i, 4) <= r, and so on for the remainder.
    indices: list = []
    for size in (4, 3, 2, 1):
        below = jnp.asarray([math.comb(i, size) for i in range(n)])
        index = jnp.searchsorted(below, rank, side="right") - 1
        rank = rank - below[index]
        indices.insert(0, index)
    return jnp.stack(indices)


def _sign_absolute_moments(r: Float[Array, "4 4 m"]) -> Float[Array, "6 m"]:
    """Compute E[sgn(x_j) sgn(x_l) |x_m| |x_n|] for the six pairs (j, l) among four fields, from their correlations."""
    own, rest = r[PAIR_INDICES], r[COMPLEMENT_INDICES]
    cross = [r[one, other] for one in PAIR_INDICES for other in COMPLEMENT_INDICES]
    slopes = 4 / np.pi**2 * _partial_angle(own, rest, *cross) * _inverse_sine(own)
    # The barrier keeps XLA from fusing the arcsines into each of their uses, where they would be evaluated again.
    slopes, signs = jax.lax.optimization_barrier((slopes, _mean_of_four_signs(r)))
    ma, mb, na, nb = (r[one[:, None], other] for one in COMPLEMENT_INDICES for other in PAIR_INDICES)
    both = ma * nb + mb * na - own * (ma * na + mb * nb)
    return rest * signs + (both * slopes).sum(1)


def _inverse_sine(cosine):
    """Return one over the sine of the angle with the given cosine; zero where the sine is zero."""
    return safe_inverse_root((1 - cosine) * (1 + cosine))


def _partial_angle(ab, cd, ac, ad, bc, bd):
    """Compute the arcsine of the partial correlation of Gaussian variates c and d given a and b, from all correlations."""
    c, d = (1 - ab**2 - x**2 - y**2 + 2 * ab * x * y for x, y in ((ac, bc), (ad, bd)))
    mixed = (1 - ab**2) * cd - ac * ad - bc * bd + ab * (ac * bd + bc * ad)
    return sine_and_angle(mixed * safe_inverse_root(c) * safe_inverse_root(d))[1]


def _mean_of_four_signs(r: Float[Array, "4 4 m"]) -> Float[Array, " m"]:
    """Compute the mean product of the signs of four Gaussian fields, by integrating over correlations between two pairs."""
    # Of the three ways to form two pairs, take the one with the weakest correlations between them: the integrand is smoothest.
    pairings = jnp.stack([r[np.ix_(order, order)] for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1))])
    best = jnp.argmin(jnp.abs(pairings[:, :2, 2:]).max((1, 2)), axis=0)
    r = jnp.where(best == 0, pairings[0], jnp.where(best == 1, pairings[1], pairings[2]))
    cross, first, second = r[:2, 2:], r[0, 1], r[2, 3]

    def add_node(total, place):
        t, length = place
        here = t * cross
        angles = _partial_angle(here, here[::-1, ::-1], first, here[:, ::-1], here[::-1], second)
        return total + length * (cross * _inverse_sine(here) * angles).sum((0, 1)), None

    u, lengths = leggauss(ANGLE_NODES)
    theta = np.pi / 2 * (1 - ((u + 1) / 2) ** NODE_DENSITY_POWER)
    lengths = lengths * np.pi / 4 * NODE_DENSITY_POWER * ((u + 1) / 2) ** (NODE_DENSITY_POWER - 1) * np.cos(theta)
    start = sine_and_angle(first)[1] * sine_and_angle(second)[1]
    return 4 / np.pi**2 * jax.lax.scan(add_node, start, (jnp.asarray(np.sin(theta)), jnp.asarray(lengths)))[0]


def _root_and_angle(C, product, own=None):
    """Return sqrt(product^2 - C^2) and arcsin(C / product), for covariances C and products of standard deviations.

    `own` marks pairs of a field with itself.
    """
    cosine = C * safe_inverse_root(product**2)
    if own is not None:  # exactly 1, so that a bound of its square root near 0 does not become infinite
        cosine = jnp.where(own, jnp.where(C > 0, 1.0, 0.0), cosine)
    sine, angle = sine_and_angle(cosine)
    return product * sine, angle
