"""Expectations of functions of Gaussian vectors: the interface of the rules, and the symmetries of their nodes.

An average over nodes keeps a symmetry of what it averages, where coordinates change places and signs, if the set of nodes has
that symmetry. A set that has a group of them is a union of orbits, and each orbit has as many points as the group. So the error
is that of the number of orbits, and a group should not be larger than what is averaged asks for: a risk, one number, asks
for none.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import array, function
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part

ZERO = 16 * float(np.finfo(float).eps)
Turn = tuple[int, ...]
"""Coordinate i becomes coordinate |t_i| - 1, with the sign of t_i."""
Group = tuple[Turn, ...]


class Estimate(NamedTuple):
    """An expectation and an estimate of its error, both shaped as the function's value."""

    value: PyTree
    error: PyTree


class Nodes(NamedTuple):
    """Points of a standard normal vector, one a column, and their weights, which sum to 1."""

    points: Float[Array, "dim n"]
    weights: Float[Array, " n"]


class Rule(Part):
    """A way to average over a standard normal vector of any dimension, with an error estimate.

    A rule implements `nodes`, whose weighted sum is the expectation, and `error`. Its `tolerance` is the relative tolerance
    worth asking of a solver whose right-hand side it computes; `accuracy` is the relative error above which a warning is due.
    The nodes have the symmetries of a `group`, which is that of all signs at once unless given.
    """

    tolerance: ClassVar[float]
    accuracy: ClassVar[float]

    @property
    @abc.abstractmethod
    def remedy(self) -> str:
        """What makes the average more accurate, in a sentence."""

    @abc.abstractmethod
    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        """The rule's points in `dim` dimensions."""

    @abc.abstractmethod
    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        """An estimate of the error of the average of `f`, where `f` maps points (dim, n) to values (..., n)."""

    def finer(self) -> Rule | None:
        """The rule with more nodes; None where there would be too many."""
        return None

    def average(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        """The average of `f` over the nodes; `f` maps points of shape (dim, n) to a pytree of arrays (..., n)."""
        return weighted_sum(f, self.nodes(dim, group))

    def estimate(self, f: Callable, dim: int, group: Group | None = None) -> Estimate:
        """The average of `f` with its error estimate."""
        return Estimate(self.average(f, dim, group), self.error(f, dim, group))

    def expect(self, f: Callable, mean: Float[Array, " dim"], covariance: Float[Array, "dim dim"]) -> Estimate:
        r"""E f(v) for v ~ N(mean, covariance), with its error estimate.

        Parameters
        ----------
        f : a function of one vector of shape (dim,) that JAX can trace
        mean, covariance : of shapes (dim,) and (dim, dim); the covariance may be singular

        >>> import jax.numpy as jnp
        >>> from sgdlimits.expectation.gaussian import GaussHermite
        >>> value, error = GaussHermite(8).expect(lambda v: v[0]**2 * v[1]**2, jnp.zeros(2), jnp.array([[1., .5], [.5, 1.]]))
        >>> float(value).__round__(12)
        1.5
        """
        function("f", f)
        array(ndim=1)("mean", mean), array(ndim=2)("covariance", covariance)
        mean, covariance = jnp.asarray(mean, float), jnp.asarray(covariance, float)
        if covariance.shape != (mean.size, mean.size):
            raise BadInput(
                f"covariance must have shape ({mean.size}, {mean.size}); got {covariance.shape}. Give such a matrix."
            )
        if not is_traced(covariance):
            least, most = np.linalg.eigvalsh(covariance)[[0, -1]]
            if least < -1e-9 * max(most, 0.0) or not np.allclose(covariance, covariance.T):
                raise BadInput(
                    "covariance must be symmetric and positive semi-definite. Give the covariance of a random vector."
                )
        root = square_root(covariance)
        over_points = jax.vmap(f, in_axes=-1, out_axes=-1)
        placed = lambda points: over_points(mean[:, None] + root @ points)
        return self.estimate(placed, mean.size)


def weighted_sum(f: Callable, nodes: Nodes) -> PyTree:
    return jax.tree.map(lambda values: (values * nodes.weights).sum(-1), f(nodes.points))


@jax.custom_jvp
def square_root(covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""The symmetric root X of a positive semi-definite matrix S, which turns as S does: D S D has the root D X D.

    Eigenvalues that are zero up to rounding count as zero. The derivative solves :math:`X\dot X + \dot XX = \dot S`; in the
    eigenbasis it is :math:`\dot S_{ij}/(\sqrt{l_i} + \sqrt{l_j})`, and zero where both eigenvalues are.
    """
    roots, vectors = _eigen_roots(covariance)
    return (vectors * roots) @ vectors.T


@square_root.defjvp
def _(primals, tangents):
    roots, vectors = _eigen_roots(*primals)
    sums = roots[:, None] + roots
    change = jnp.where(sums > 0, vectors.T @ tangents[0] @ vectors / jnp.where(sums > 0, sums, 1.0), 0.0)
    return (vectors * roots) @ vectors.T, vectors @ change @ vectors.T


def _eigen_roots(S: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    values, vectors = jnp.linalg.eigh(S)
    positive = values > ZERO * values[-1]
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0), vectors


def no_turns(dim: int) -> Group:
    """The group of one element."""
    return (tuple(range(1, dim + 1)),)


def parity(dim: int) -> Group:
    """All signs at once, or none."""
    return tuple(range(1, dim + 1)), tuple(range(-1, -dim - 1, -1))


def enlarged(group: Group, turns: Iterable[Turn], most: int) -> Group:
    """The group with further turns, each taken in its order where the group then has at most `most` elements.

    >>> enlarged(parity(2), [(2, 1), (-1, 2)], most=4)                          # (-1, 2) would make it eight
    ((2, 1), (1, 2), (-1, -2), (-2, -1))
    """
    for turn in turns:
        found, new = set(group), {turn} - set(group)
        while new and len(found) <= most:
            found |= new
            new = {tuple(int(np.sign(i)) * h[abs(i) - 1] for i in g) for g in (*group, turn) for h in new} - found
        group = tuple(sorted(found, reverse=True)) if len(found) <= most else group
    return group


def orbits(points: Float[np.ndarray, "dim n"], group: Group) -> Float[np.ndarray, "dim m"]:
    """The points in all their turns."""
    turns = np.asarray(group)
    return np.concatenate([np.sign(turn)[:, None] * points[np.abs(turn) - 1] for turn in turns], axis=1)
