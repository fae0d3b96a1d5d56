r"""Gaussian integrals of sums of units: all that a squared loss needs of two-layer networks.

The residual of a student with p units and a teacher with k is :math:`D = \sum_n c_n s_n(x_n) + \epsilon`, a sum over n = p + k
Gaussian fields with covariance C. Drift and risk are made of integrals over two fields and one over four:

.. math:: E[s_i s_n], \qquad E[s_i' s_n'], \qquad E[s_i'' s_n], \qquad E[s_i' s_l' D^2],

since Stein's lemma reduces the integrals over three fields to the first ones, for any field y:

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

PAIRS_AT_ONCE = 64


class Pairs(NamedTuple):
    """E[s s], E[s' s'] and E[s'' s] for fields in rows and columns; the derivatives are of the row's unit first."""

    value: Float[Array, "rows n"]
    slope: Float[Array, "rows n"]
    curvature: Float[Array, "rows n"]


class UnitIntegrals(eqx.Module):
    """Integrals of units of given activations, the students first. One subclass for each way to compute them."""

    students: eqx.AbstractVar[int]

    @property
    def exact(self) -> bool:
        """Whether only rounding makes errors."""
        return True

    @property
    @abc.abstractmethod
    def numbers_at_once(self) -> int:
        """About how many numbers the integrals over four fields hold at a time."""

    def coarser(self) -> UnitIntegrals:
        """A cheaper version whose difference to this one estimates the error; itself where there is none."""
        return self

    @abc.abstractmethod
    def features(self, variances: Float[Array, " n"]) -> PyTree:
        """What `pairs` needs to know of each field, from their variances: a pytree with the fields first."""

    @abc.abstractmethod
    def pairs(self, rows: PyTree, columns: PyTree, C: Float[Array, "rows n"]) -> Pairs:
        """The integrals over two fields with covariances C, for features of rows and of columns."""

    @abc.abstractmethod
    def corrector(self, C: Float[Array, "n n"], c: Float[Array, " n"]) -> Float[Array, "p p"]:
        """E[s_j' s_l' D^2] without noise, for all pairs of students."""

    def all_pairs(self, C: Float[Array, "n n"]) -> Pairs:
        """The integrals over two fields for all of them."""
        features = self.features(jnp.diagonal(C))
        return self.pairs(features, features, C)


def map_pairs(f: Callable, p: int, at_once: int = PAIRS_AT_ONCE) -> Float[Array, "p p"]:
    """The symmetric matrix of f(j, l), a few pairs at a time."""
    row, column = np.triu_indices(p)
    values = jax.lax.map(lambda pair: f(*pair), (jnp.asarray(row), jnp.asarray(column)), batch_size=at_once)
    upper = jnp.zeros((p, p)).at[row, column].set(values)
    return upper + jnp.triu(upper, 1).T


def condition_on(C: Float[Array, "n n"], j: Int[Array, ""], l: Int[Array, ""]):
    """Columns v, w with fields x = v z1 + w z2 + rest, x_j a multiple of z1 and x_l of both, and the covariance of the rest."""
    v = C[:, j] * safe_inverse_root(C[j, j])
    left = C[:, l] - v[l] * v
    w = left * safe_inverse_root(jnp.where(j == l, 0.0, left[l]))
    return v, w, C - v[:, None] * v - w[:, None] * w


TINY = 64 * float(np.finfo(float).eps)


def safe_root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The square root, zero with slope zero where x is not positive."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_inverse_root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One over the square root; zero where x is zero up to rounding."""
    positive = x > TINY
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, x, 1.0)), 0.0)


def sine_and_angle(cosine: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """For the cosine of two fields the sine, and the arcsine of the cosine.

    A cosine that is 1 or -1 up to rounding belongs to fields that coincide: there the slopes, which are not finite, are zero.
    """
    square = (1 - cosine) * (1 + cosine)
    apart = square > TINY
    inside = jnp.where(apart, cosine, 0.0)
    angle = jnp.where(apart, arcsine(inside), jnp.sign(cosine) * np.pi / 2)
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0), angle


def _arcsine_series(degree: int) -> np.ndarray:
    """Coefficients of (arcsin(x)/x - 1)/x^2 as a polynomial of x^2 between 0 and 1/4, the highest first."""
    nodes = (chebyshev.chebpts1(degree + 1) + 1) / 8
    k = np.arange(1, 60)
    terms = np.cumprod((2 * k - 1) / (2 * k)) / (2 * k + 1)
    values = (terms * nodes[:, None] ** (k - 1)).sum(1)
    return chebyshev.cheb2poly(chebyshev.chebfit(8 * nodes - 1, values, degree))[::-1]


ARCSINE = _arcsine_series(13)


@jax.custom_jvp
def arcsine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The arcsine to rounding, several times faster than XLA's, which goes through arctangents of two numbers."""
    size = jnp.abs(x)
    large = size > 0.5
    square = jnp.where(large, (1 - size) / 2, size * size)
    root = jnp.where(large, jnp.sqrt(square), size)
    series, place = ARCSINE[0], 8 * square - 1
    for coefficient in ARCSINE[1:]:
        series = series * place + coefficient
    small = root + root * square * series
    return jnp.sign(x) * jnp.where(large, np.pi / 2 - 2 * small, small)


@arcsine.defjvp
def _(primals, tangents):
    (x,), (along,) = primals, tangents
    return arcsine(x), along * jax.lax.rsqrt((1 - x) * (1 + x))
