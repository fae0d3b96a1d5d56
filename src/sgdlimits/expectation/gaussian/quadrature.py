"""Quadrature for one standard normal variate, and Gauss-Hermite product rules for smooth functions in few dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import PyTree

from sgdlimits.checks import integer
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.gaussian.base import Group, Nodes, Rule, weighted_sum

MAX_NODES = 2**22
MAX_ORDER_TO_REFINE = 24
"""Largest order of a Gauss-Hermite rule that `GaussHermite.with_more_nodes` doubles."""


class LineRule(NamedTuple):
    """Quadrature nodes for a standard normal variate, and their weights, which sum to 1."""

    points: np.ndarray
    weights: np.ndarray

    def grid(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the product rule in `dim` dimensions: points of shape (dim, n), and their weights."""
        points, weights = (np.stack(np.meshgrid(*[part] * dim, indexing="ij")).reshape(dim, -1) for part in self)
        return points, weights.prod(0)


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> LineRule:
    """Return the Gauss-Hermite rule of `count` nodes, exact for polynomials of degree 2 count - 1."""
    points, weights = scipy.special.roots_hermitenorm(count)
    return LineRule(points, weights / weights.sum())  # normalised to the probability density


@lru_cache(maxsize=64)
def trapezoid(count: int, reach: float) -> LineRule:
    """Return the trapezoidal rule with the normal density, on `count` equally spaced nodes from -reach to reach.

    Its error is exponentially small in the number of nodes, at a rate set by the distance of the function's nearest pole from
    the real line. For functions with poles, such as tanh, it converges faster than Gauss-Hermite.
    """
    points = np.linspace(-reach, reach, count)
    weights = np.exp(-(points**2) / 2)
    return LineRule(points, weights / weights.sum())


@lru_cache(maxsize=64)
def overlap_rule(d: int, nodes: int = 160) -> tuple[np.ndarray, np.ndarray]:
    r"""Return Gauss nodes and weights for the scalar product of two uniformly random directions in dimension d.

    The density of the scalar product m is :math:`\propto (1-m^2)^{(d-3)/2}`, with Gegenbauer's orthogonal polynomials; as d
    grows, :math:`\sqrt d` times the nodes tends to the nodes of Gauss-Hermite.

    >>> m, weights = overlap_rule(7)
    >>> round(float(weights @ m**4), 12) == round(3 / (7 * 9), 12)
    True
    """
    n, alpha = np.arange(2, nodes), (d - 2) / 2
    # Golub and Welsch: nodes are the eigenvalues of the Jacobi matrix, weights the squared first entries of its eigenvectors.
    squares = np.concatenate([[1 / d], n * (n + 2 * alpha - 1) / (4 * (n + alpha) * (n + alpha - 1))])
    m, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(nodes), np.sqrt(squares))
    return m, vectors[0] ** 2


@lru_cache(maxsize=64)
def radius_rule(n: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss nodes and weights for the Euclidean norm of n standard normal variates.

    The rule comes from the Gauss-Laguerre rule for the square of the norm.

    >>> length, weights = radius_rule(5, 8)
    >>> round(float(weights @ length**4), 9)
    35.0
    """
    i, alpha = np.arange(nodes), n / 2 - 1
    # Half the squared length has a gamma law of shape n/2, the weight of generalised Laguerre polynomials.
    halves, vectors = scipy.linalg.eigh_tridiagonal(2 * i + 1 + alpha, np.sqrt(i[1:] * (i[1:] + alpha)))
    return np.sqrt(2 * np.maximum(halves, 0)), vectors[0] ** 2  # rounding may make the smallest eigenvalue negative


@checked
class GaussHermite(Rule):
    """Gauss-Hermite product rule, exact for polynomials of degree 2 order - 1 in each variable.

    The error estimate, the difference to the rule of three quarters of the order, is pessimistic for smooth functions.
    Convergence is slow for functions with a kink (relu, absolute value); prefer `Sobol` for these. The grid has all symmetries
    of the coordinates.

    Parameters
    ----------
    order : number of nodes per dimension

    >>> GaussHermite(5).nodes(2).points.shape
    (2, 25)
    """

    tolerance: ClassVar[float] = 1e-8
    accuracy: ClassVar[float] = 1e-4
    order: Annotated[int, integer(below=MAX_NODES)] = eqx.field(static=True, default=24)

    @property
    def remedy(self):
        return f"Give the problem expectation=GaussHermite(order={2 * self.order}), or Sobol() where the functions have kinks."

    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        if self.order ** check_count("dim", dim) > MAX_NODES:
            need = f"GaussHermite(order={self.order}) in {dim} dimensions needs {self.order}^{dim} points"
            raise BadInput(f"{need}. Give a smaller order, or use Sobol().")
        points, weights = _product_grid(self.order, dim)
        return Nodes(jnp.asarray(points), jnp.asarray(weights))

    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        coarse = GaussHermite(max(1, self.order - max(1, self.order // 4)))
        return jax.tree.map(lambda fine, rough: jnp.abs(fine - rough), self.average(f, dim), weighted_sum(f, coarse.nodes(dim)))

    def with_more_nodes(self):
        return GaussHermite(2 * self.order) if self.order <= MAX_ORDER_TO_REFINE else None


@lru_cache(maxsize=16)
def _product_grid(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points, shape (dim, n), and the weights of the Gauss-Hermite product rule of `order` nodes per dimension."""
    return gauss_hermite(order).grid(dim)
