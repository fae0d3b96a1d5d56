"""The interface of quadrature rules for Gaussian vectors, and the symmetries of their nodes.

An average over nodes preserves a symmetry of the averaged function, a signed permutation of coordinates, if the set of nodes
has that symmetry. A set with a group of symmetries is a union of orbits, each with as many points as the group. The error is
determined by the number of orbits, so the group should not be larger than the averaged function needs: a risk, a scalar, needs
no symmetry.
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

RANK_TOLERANCE = 16 * float(np.finfo(float).eps)
"""Eigenvalues below this fraction of the largest one count as zero."""
SignedPermutation = tuple[int, ...]
"""A permutation t of coordinates with signs: new coordinate i is the old coordinate |t_i| - 1, with the sign of t_i."""
Group = tuple[SignedPermutation, ...]


class Estimate(NamedTuple):
    """An expectation and an estimate of its absolute error, pytrees like the values of the averaged function."""

    value: PyTree
    error: PyTree


class Nodes(NamedTuple):
    """Quadrature nodes for a standard normal vector, one per column, and their weights, which sum to 1."""

    points: Float[Array, "dim n"]
    weights: Float[Array, " n"]


class Rule(Part):
    """A quadrature rule for standard normal vectors of any dimension, with an error estimate.

    A subclass implements `nodes`, whose weighted sum is the expectation, and `error`. `tolerance` is the default relative
    tolerance of ODE solvers for drifts computed with the rule; `accuracy` is the relative error above which users are warned.
    The nodes have the symmetries of a `group`: by default the change of all signs at once.
    """

    tolerance: ClassVar[float]
    accuracy: ClassVar[float]

    @property
    @abc.abstractmethod
    def remedy(self) -> str:
        """The sentence that tells users how to make the average more accurate."""

    @abc.abstractmethod
    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        """Return the nodes and weights in `dim` dimensions; `group`, if given, is a symmetry group that the nodes must have."""

    @abc.abstractmethod
    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        """Estimate the absolute error of the average of `f`, which maps points (dim, n) to a pytree of arrays (..., n)."""

    def with_more_nodes(self) -> Rule | None:
        """Return the rule with more nodes, or None if it already has the maximum."""
        return None

    def average(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        """Average `f` over the nodes; `f` maps points of shape (dim, n) to a pytree of arrays (..., n)."""
        return weighted_sum(f, self.nodes(dim, group))

    def estimate(self, f: Callable, dim: int, group: Group | None = None) -> Estimate:
        """Average `f` over the nodes, with an error estimate."""
        return Estimate(self.average(f, dim, group), self.error(f, dim, group))

    def expect(self, f: Callable, mean: Float[Array, " dim"], covariance: Float[Array, "dim dim"]) -> Estimate:
        r"""Compute E f(v) for v ~ N(mean, covariance), with an error estimate.

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
        array(ndim=1)("mean", mean)
        array(ndim=2)("covariance", covariance)
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
        of_standard_normal = lambda points: over_points(mean[:, None] + root @ points)
        return self.estimate(of_standard_normal, mean.size)


def weighted_sum(f: Callable, nodes: Nodes) -> PyTree:
    """Sum the values of `f` at the nodes with their weights."""
    return jax.tree.map(lambda values: (values * nodes.weights).sum(-1), f(nodes.points))


@jax.custom_jvp
def square_root(covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""Compute the symmetric square root of a positive semi-definite matrix, differentiable also where it is singular.

    With the root X of the covariance S and any orthogonal D, :math:`DSD^\top` has the root :math:`DXD^\top`. Eigenvalues that
    are zero up to rounding count as zero. The derivative solves :math:`X\dot X + \dot XX = \dot S`; in the eigenbasis of S,
    with eigenvalues :math:`l_i`, it is :math:`\dot S_{ij}/(\sqrt{l_i} + \sqrt{l_j})`, and zero where both eigenvalues are zero.
    """
    roots, vectors = _eigen_roots(covariance)
    return (vectors * roots) @ vectors.T


@square_root.defjvp
def _(primals, tangents):
    roots, vectors = _eigen_roots(*primals)
    sums = roots[:, None] + roots
    # The derivative of eigh divides by differences of eigenvalues; this one by sums of roots, finite for equal eigenvalues.
    change = jnp.where(sums > 0, vectors.T @ tangents[0] @ vectors / jnp.where(sums > 0, sums, 1.0), 0.0)
    return (vectors * roots) @ vectors.T, vectors @ change @ vectors.T


def _eigen_roots(S: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Return the square roots of the eigenvalues of S, zero where these are zero up to rounding, and the eigenvectors."""
    values, vectors = jnp.linalg.eigh(S)
    positive = values > RANK_TOLERANCE * values[-1]
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0), vectors


def trivial_group(dim: int) -> Group:
    """Return the group of signed permutations of `dim` coordinates that contains the identity only."""
    return (tuple(range(1, dim + 1)),)


def sign_group(dim: int) -> Group:
    """Return the group of two signed permutations of `dim` coordinates: the identity and the reversal of all signs."""
    return tuple(range(1, dim + 1)), tuple(range(-1, -dim - 1, -1))


def enlarge_group(group: Group, generators: Iterable[SignedPermutation], max_size: int) -> Group:
    """Add generators to a group of signed permutations, skipping each that would make it larger than `max_size`.

    >>> enlarge_group(sign_group(2), [(2, 1), (-1, 2)], max_size=4)             # (-1, 2) would make it eight
    ((2, 1), (1, 2), (-1, -2), (-2, -1))
    """
    for generator in generators:
        elements, new = set(group), {generator} - set(group)
        # Multiply new elements from the left until the set is closed; a finite set closed under products is a group.
        while new and len(elements) <= max_size:
            elements |= new
            new = {_compose_permutations(g, h) for g in (*group, generator) for h in new} - elements
        group = tuple(sorted(elements, reverse=True)) if len(elements) <= max_size else group
    return group


def _compose_permutations(g: SignedPermutation, h: SignedPermutation) -> SignedPermutation:
    """Return the product of two signed permutations: first h is applied, then g."""
    return tuple(int(np.sign(i)) * h[abs(i) - 1] for i in g)


def compute_orbits(points: Float[np.ndarray, "dim n"], group: Group) -> Float[np.ndarray, "dim m"]:
    """Return the images of points (columns) under all signed permutations of a group, one permutation after the other."""
    elements = np.asarray(group)
    return np.concatenate([np.sign(signed)[:, None] * points[np.abs(signed) - 1] for signed in elements], axis=1)
