"""Bases of functions of a few numbers: polynomials of a total degree, and cubic splines on a grid."""

from __future__ import annotations

import abc
import itertools
from functools import reduce

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.part import Part
from sgdlimits.statistics.trees import as_floats


class Basis(Part):
    """Set of functions of k numbers, whose linear combinations are fitted to data."""

    @abc.abstractmethod
    def features(self, u: Float[Array, " k"]) -> Float[Array, " terms"]:
        """Evaluate each function of the basis at the k numbers u."""


class Polynomials(Basis):
    """Products of powers of the k numbers u/size, up to a total degree.

    Parameters
    ----------
    degree : the largest total degree
    size : divisor of each number, which keeps the products of order one, shape (k,)

    >>> Polynomials(2, [1.0, 2.0]).powers.tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    >>> Polynomials(2, [1.0, 2.0]).features(jnp.array([3.0, 4.0])).tolist()
    [1.0, 3.0, 2.0, 9.0, 6.0, 4.0]
    """

    degree: int = eqx.field(static=True)
    size: Float[Array, " k"] = eqx.field(converter=as_floats)

    @property
    def powers(self) -> np.ndarray:
        """Exponents of the k numbers in each product, shape (terms, k)."""
        k = self.size.shape[0]
        chosen = [each for n in range(self.degree + 1) for each in itertools.combinations_with_replacement(range(k), n)]
        return np.array([np.bincount(each, minlength=k) if each else np.zeros(k, int) for each in chosen])

    def features(self, u):
        ladder = [jnp.ones_like(u)]
        for _ in range(self.degree):
            ladder.append(ladder[-1] * u / self.size)
        return jnp.stack(ladder)[self.powers, jnp.arange(u.size)].prod(1)


class GridSplines(Basis):
    """Products of cubic splines in one variable each; every product is 1 at one point of a grid and 0 at all other points.

    Parameters
    ----------
    axes : grid points along each number, at least four, in increasing order
    """

    axes: tuple[tuple[float, ...], ...] = eqx.field(
        static=True, converter=lambda axes: tuple(tuple(map(float, axis)) for axis in axes)
    )

    @property
    def cubic_coefficients(self) -> tuple[np.ndarray, ...]:
        """Coefficients of the cubic pieces of the splines along each axis, shape (4, intervals, points)."""
        from scipy.interpolate import CubicSpline  # imports much that problems without a grid do not need

        return tuple(CubicSpline(axis, np.eye(len(axis))).c for axis in self.axes)

    def features(self, u):
        rows = []
        for i, (axis, cubics) in enumerate(zip(self.axes, self.cubic_coefficients, strict=True)):
            at = jnp.clip(jnp.searchsorted(jnp.asarray(axis), u[i]) - 1, 0, len(axis) - 2)
            t = u[i] - jnp.asarray(axis)[at]
            rows.append(reduce(lambda value, c: value * t + c, jnp.asarray(cubics)[:, at]))
        return reduce(lambda one, other: jnp.outer(one, other).ravel(), rows)
