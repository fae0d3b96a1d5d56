"""Points of one standard normal number, and Gauss-Hermite quadrature on a tensor grid: for few dimensions, smooth functions."""

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

MOST_NODES = 2**22
MOST_ORDER = 24


class Line(NamedTuple):
    """Points of a standard normal number and their weights, which sum to 1."""

    points: np.ndarray
    weights: np.ndarray

    def grid(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """The product rule: points of shape (dim, n), and their weights."""
        points, weights = (np.stack(np.meshgrid(*[part] * dim, indexing="ij")).reshape(dim, -1) for part in self)
        return points, weights.prod(0)


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> Line:
    """Exact for polynomials of degree 2 count - 1."""
    points, weights = scipy.special.roots_hermitenorm(count)
    return Line(points, weights / weights.sum())


@lru_cache(maxsize=64)
def trapezoid(count: int, reach: float) -> Line:
    """Equally spaced points from -reach to reach: with a Gaussian weight the error is exponentially small in their number.

    The rate is the distance to the nearest pole of the function, which makes it better than Gauss-Hermite for tanh.
    """
    points = np.linspace(-reach, reach, count)
    weights = np.exp(-(points**2) / 2)
    return Line(points, weights / weights.sum())


@lru_cache(maxsize=64)
def overlap_rule(d: int, nodes: int = 160) -> tuple[np.ndarray, np.ndarray]:
    r"""Gauss nodes and weights for the overlap m of two uniform directions, of density :math:`\propto (1-m^2)^{(d-3)/2}`.

    The polynomials are Gegenbauer's; as d grows, :math:`\sqrt d` times the nodes tends to Gauss-Hermite's.

    >>> m, weights = overlap_rule(7)
    >>> round(float(weights @ m**4), 12) == round(3 / (7 * 9), 12)
    True
    """
    n, alpha = np.arange(2, nodes), (d - 2) / 2
    squares = np.concatenate([[1 / d], n * (n + 2 * alpha - 1) / (4 * (n + alpha) * (n + alpha - 1))])
    m, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(nodes), np.sqrt(squares))
    return m, vectors[0] ** 2


@lru_cache(maxsize=64)
def radius_rule(n: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Gauss nodes and weights for the length of n standard normal numbers: those of Laguerre for its square.

    >>> length, weights = radius_rule(5, 8)
    >>> round(float(weights @ length**4), 9)
    35.0
    """
    i, alpha = np.arange(nodes), n / 2 - 1
    halves, vectors = scipy.linalg.eigh_tridiagonal(2 * i + 1 + alpha, np.sqrt(i[1:] * (i[1:] + alpha)))
    return np.sqrt(2 * np.maximum(halves, 0)), vectors[0] ** 2


@checked
class GaussHermite(Rule):
    """The product rule with `order` points a dimension: exact for polynomials of degree 2 order - 1 in each variable.

    The error estimate is the difference to the rule of three quarters of the order: pessimistic for smooth functions. A kink
    (relu, absolute value) makes convergence slow; prefer `Sobol` there. The grid has all symmetries.

    >>> GaussHermite(5).nodes(2).points.shape
    (2, 25)
    """

    tolerance: ClassVar[float] = 1e-8
    accuracy: ClassVar[float] = 1e-4
    order: Annotated[int, integer(below=MOST_NODES)] = eqx.field(static=True, default=24)

    @property
    def remedy(self):
        return f"Give the problem expectation=GaussHermite(order={2 * self.order}), or Sobol() where the functions have kinks."

    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        if self.order ** check_count("dim", dim) > MOST_NODES:
            need = f"GaussHermite(order={self.order}) in {dim} dimensions needs {self.order}^{dim} points"
            raise BadInput(f"{need}. Give a smaller order, or use Sobol().")
        points, weights = _grid(self.order, dim)
        return Nodes(jnp.asarray(points), jnp.asarray(weights))

    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        coarse = GaussHermite(max(1, self.order - max(1, self.order // 4)))
        return jax.tree.map(lambda fine, rough: jnp.abs(fine - rough), self.average(f, dim), weighted_sum(f, coarse.nodes(dim)))

    def finer(self):
        return GaussHermite(2 * self.order) if self.order <= MOST_ORDER else None


@lru_cache(maxsize=16)
def _grid(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    return gauss_hermite(order).grid(dim)
