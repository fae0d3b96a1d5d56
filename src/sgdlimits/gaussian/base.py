"""Expectations of functions of Gaussian vectors: the interface of the rules."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Estimate(NamedTuple):
    """An expectation and an estimate of its error, both shaped as the function's value."""

    value: PyTree
    error: PyTree


class Nodes(NamedTuple):
    """Points of a standard normal vector, one a column, and their weights, which sum to 1."""

    points: Float[Array, "dim n"]
    weights: Float[Array, " n"]


class Rule(eqx.Module):
    """A way to average over a standard normal vector of any dimension, with an error estimate.

    A rule implements `nodes`, whose weighted sum is the expectation, and `error`. Its `tolerance` is the relative tolerance
    worth asking of a solver whose right-hand side it computes; `accuracy` is the relative error above which a warning is due.
    """

    tolerance: ClassVar[float]
    accuracy: ClassVar[float]

    @property
    @abc.abstractmethod
    def remedy(self) -> str:
        """What makes the average more accurate, in a sentence."""

    @abc.abstractmethod
    def nodes(self, dim: int) -> Nodes:
        """The rule's points in `dim` dimensions."""

    @abc.abstractmethod
    def error(self, f: Callable, dim: int) -> PyTree:
        """An estimate of the error of the average of `f`, where `f` maps points (dim, n) to values (..., n)."""

    def average(self, f: Callable, dim: int) -> PyTree:
        """The average of `f` over the nodes; `f` maps points of shape (dim, n) to a pytree of arrays (..., n)."""
        return weighted_sum(f, self.nodes(dim))

    def expect(self, f: Callable, mean: Float[Array, " dim"], covariance: Float[Array, "dim dim"]) -> Estimate:
        r"""E f(v) for v ~ N(mean, covariance), with its error estimate.

        Parameters
        ----------
        f : a function of one vector of shape (dim,) that JAX can trace
        mean, covariance : of shapes (dim,) and (dim, dim); the covariance may be singular

        >>> import jax.numpy as jnp
        >>> from sgdlimits.gaussian import GaussHermite
        >>> value, error = GaussHermite(8).expect(lambda v: v[0]**2 * v[1]**2, jnp.zeros(2), jnp.array([[1., .5], [.5, 1.]]))
        >>> float(value).__round__(12)
        1.5
        """
        mean, root = jnp.asarray(mean, float), square_root(jnp.asarray(covariance, float))
        over_points = jax.vmap(f, in_axes=-1, out_axes=-1)
        placed = lambda points: over_points(mean[:, None] + root @ points)
        return Estimate(self.average(placed, mean.size), self.error(placed, mean.size))


def weighted_sum(f: Callable, nodes: Nodes) -> PyTree:
    return jax.tree.map(lambda values: (values * nodes.weights).sum(-1), f(nodes.points))


def square_root(covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric root of a positive semi-definite matrix; eigenvalues that rounding made negative count as zero."""
    values, vectors = jnp.linalg.eigh(covariance)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T
