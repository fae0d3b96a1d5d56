r"""The Gaussian integrals over units of two-layer networks that drift and risk need for a squared loss.

The residual of a student with p units and a teacher with k units is :math:`D = \sum_n c_n s_n(x_n) + \epsilon`, with label
noise :math:`\epsilon`, coefficients :math:`c_n` and activations :math:`s_n` of p + k Gaussian fields :math:`x_n` with
covariance C. Drift and risk are sums of integrals over two fields and one over four:

.. math:: E[s_i s_n], \qquad E[s_i' s_n'], \qquad E[s_i'' s_n], \qquad E[s_i' s_l' D^2],

since Stein's lemma reduces the integrals over three fields to those over two, for any field y:

.. math:: E[s_i'(x_i)\, y\, s_n(x_n)] = \mathrm{Cov}(y, x_i)\, E[s_i'' s_n] + \mathrm{Cov}(y, x_n)\, E[s_i' s_n'].
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.polynomial import chebyshev

# Pairs of students whose correctors are computed in one vectorised step: bounds the memory of wide networks.
UNIT_PAIRS_PER_CALL = 64


class PairIntegrals(NamedTuple):
    """The expectations E[s_i s_n], E[s_i' s_n'] and E[s_i'' s_n] of activations s, for units i in rows and n in columns."""

    value: Float[Array, "rows n"]
    slope: Float[Array, "rows n"]
    curvature: Float[Array, "rows n"]


class UnitIntegrals(eqx.Module):
    """Gaussian integrals over the fields of two and of four units with given activations, the students first.

    Each subclass computes them for a class of activations, in closed form or by quadrature.
    """

    students: eqx.AbstractVar[int]

    @property
    def is_exact(self) -> bool:
        """Whether the Gaussian integrals over the fields of units are exact up to rounding."""
        return True

    @property
    @abc.abstractmethod
    def floats_at_once(self) -> int:
        """Approximate number of floats that the integrals over four fields hold in memory at a time."""

    def with_fewer_nodes(self) -> UnitIntegrals:
        """Return a cheaper version, for an estimate of the error by the difference; exact integrals return themselves."""
        return self

    @abc.abstractmethod
    def features(self, variances: Float[Array, " n"]) -> PyTree:
        """Precompute what integrals over pairs of units need from the variance of each unit's field, with units on axis 0."""

    @abc.abstractmethod
    def pairs(self, rows: PyTree, columns: PyTree, C: Float[Array, "rows n"]) -> PairIntegrals:
        """Compute the Gaussian integrals over pairs of fields with covariances C, from the `features` of both units."""

    @abc.abstractmethod
    def corrector(self, C: Float[Array, "n n"], c: Float[Array, " n"]) -> Float[Array, "p p"]:
        """Compute E[s_j' s_l' D²] for students j and l with activation s: integrals over four fields, for the residual D.

        The residual D is the sum of the units with coefficients c; C is the covariance of all fields.
        """

    def all_pairs(self, C: Float[Array, "n n"]) -> PairIntegrals:
        """Compute the integrals over two fields for all pairs of fields, which have the covariance matrix C."""
        features = self.features(jnp.diagonal(C))
        return self.pairs(features, features, C)


def map_pairs(f: Callable, p: int, at_once: int = UNIT_PAIRS_PER_CALL) -> Float[Array, "p p"]:
    """Return the symmetric p-by-p matrix of f(j, l), computed for `at_once` index pairs at a time."""
    row, column = np.triu_indices(p)
    # A map in batches: all pairs at once would need p^2 times the memory of one.
    values = jax.lax.map(lambda pair: f(*pair), (jnp.asarray(row), jnp.asarray(column)), batch_size=at_once)
    upper = jnp.zeros((p, p)).at[row, column].set(values)
    return upper + jnp.triu(upper, 1).T


def condition_on_pair(C: Float[Array, "n n"], j: Int[Array, ""], l: Int[Array, ""]):
    """Condition Gaussian fields with covariance C on two of them, x_j and x_l, by two steps of a Cholesky factorisation.

    Returns v and w with x = v z1 + w z2 + remainder for standard normal z1 and z2, where x_j is a multiple of z1 and x_l a
    combination of both, and the covariance of the remainder.
    """
    v = C[:, j] * safe_inverse_root(C[j, j])
    left = C[:, l] - v[l] * v
    w = left * safe_inverse_root(jnp.where(j == l, 0.0, left[l]))  # rounding of a zero pivot must not be amplified
    return v, w, C - v[:, None] * v - w[:, None] * w


ROUNDING_TOLERANCE = 64 * float(np.finfo(float).eps)
"""Size below which a variance, or the squared sine of an angle between fields, counts as zero."""


def safe_root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the square root, with value and derivative zero where the argument is not positive."""
    positive = x > 0
    # `where` twice: a root of zero in the unused branch would still make the derivative NaN.
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_inverse_root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return one over the square root, zero where the argument is zero up to rounding."""
    positive = x > ROUNDING_TOLERANCE
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, x, 1.0)), 0.0)


def sine_and_angle(cosine: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the sine of the angle between two fields, and the arcsine of the cosine of this angle.

    If the cosine is 1 or -1 up to rounding, the fields coincide: the derivatives, which are infinite, are then set to zero.
    """
    square = (1 - cosine) * (1 + cosine)  # 1 - cosine**2 would lose digits near 1
    apart = square > ROUNDING_TOLERANCE
    inside = jnp.where(apart, cosine, 0.0)
    angle = jnp.where(apart, arcsine(inside), jnp.sign(cosine) * np.pi / 2)
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0), angle


def _arcsine_series(degree: int) -> np.ndarray:
    """Fit the arcsine near zero by a polynomial, and return its coefficients, highest power first.

    The fitted function is (arcsin(x)/x - 1)/x^2 as a polynomial of 8 x^2 - 1, for x^2 from 0 to 1/4.
    """
    # Interpolation at Chebyshev points is within a small factor of the best polynomial of this degree.
    nodes = (chebyshev.chebpts1(degree + 1) + 1) / 8
    k = np.arange(1, 60)
    terms = np.cumprod((2 * k - 1) / (2 * k)) / (2 * k + 1)
    values = (terms * nodes[:, None] ** (k - 1)).sum(1)
    return chebyshev.cheb2poly(chebyshev.chebfit(8 * nodes - 1, values, degree))[::-1]


ARCSINE_COEFFICIENTS = _arcsine_series(13)


@jax.custom_jvp
def arcsine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the arcsine, accurate to rounding and several times faster than XLA's, which calls a two-argument arctangent."""
    # Above 1/2: arcsin(x) = pi/2 - 2 arcsin(sqrt((1 - x)/2)), so the polynomial is needed up to 1/2 only.
    size = jnp.abs(x)
    large = size > 0.5
    square = jnp.where(large, (1 - size) / 2, size * size)
    root = jnp.where(large, jnp.sqrt(square), size)
    series, place = ARCSINE_COEFFICIENTS[0], 8 * square - 1
    for coefficient in ARCSINE_COEFFICIENTS[1:]:
        series = series * place + coefficient
    small = root + root * square * series
    return jnp.sign(x) * jnp.where(large, np.pi / 2 - 2 * small, small)


@arcsine.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return arcsine(x), dx * jax.lax.rsqrt((1 - x) * (1 + x))
