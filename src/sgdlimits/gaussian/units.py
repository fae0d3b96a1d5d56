r"""Gaussian integrals of sums of units: all that a squared loss needs of two-layer networks.

The residual of a student with p units and a teacher with k is :math:`D = \sum_n c_n s_n(x_n) + \epsilon`, a sum over n = p + k
Gaussian fields with covariance C. Drift and risk are made of integrals over two fields and one over four:

.. math:: E[s_i s_n], \qquad E[s_i' s_n'], \qquad E[s_i'' s_n], \qquad E[s_i' s_l' D^2],

since Stein's lemma reduces the integrals over three fields to the first ones, for any field y:

.. math:: E[s_i'(x_i)\, y\, s_n(x_n)] = \mathrm{Cov}(y, x_i)\, E[s_i'' s_n] + \mathrm{Cov}(y, x_n)\, E[s_i' s_n'].
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

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
    def numbers_a_pair(self) -> int:
        """How many numbers a field needs in the integral over four of them, if more than the number of fields."""
        return 1

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
    def four(self, C: Float[Array, "n n"], c: Float[Array, " n"], j: Int[Array, ""], l: Int[Array, ""]) -> Float[Array, ""]:
        """E[s_j' s_l' D^2] without noise, for one pair of students."""

    def all_pairs(self, C: Float[Array, "n n"]) -> Pairs:
        """The integrals over two fields for all of them."""
        features = self.features(jnp.diagonal(C))
        return self.pairs(features, features, C)

    def corrector(self, C: Float[Array, "n n"], c: Float[Array, " n"]) -> Float[Array, "p p"]:
        """E[s_j' s_l' D^2] without noise, for all pairs of students."""
        p = self.students
        row, column = np.triu_indices(p)
        one = lambda pair: self.four(C, c, *pair)
        values = jax.lax.map(one, (jnp.asarray(row), jnp.asarray(column)), batch_size=PAIRS_AT_ONCE)
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
    angle = jnp.where(apart, jnp.arcsin(inside), jnp.sign(cosine) * np.pi / 2)
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0), angle
