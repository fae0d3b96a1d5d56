r"""Means over Gaussian fields at quadrature nodes, with the derivative of the expectation instead of that of the sum.

The fields are :math:`\lambda = \mu + Ax + Rz` with standard normal x and z and :math:`R^2 = S`. The derivative of a sum over
nodes of a function f of the fields misses contributions concentrated at a kink, and R is not differentiable where S is
singular: where units coincide, or at perfect recovery. The derivative of :math:`E f(\lambda)` has neither problem. For a change
of :math:`\mu`, A and S it is, for smooth f (Price's theorem),

.. math:: \sum_j \dot\mu_j\, E[\partial_j f] + \sum_{jr} \dot A_{jr}\, E[\partial_j f\, x_r]
          + \frac12 \sum_{jl} \dot S_{jl}\, E[\partial_j\partial_l f],

and for any f, integrating by parts, with :math:`w = R^{-1}z`,

.. math:: \sum_j \dot\mu_j\, E[f\, w_j] + \sum_{jr} \dot A_{jr}\, E[f\, w_j x_r]
          + \frac12 \sum_{jl} \dot S_{jl}\, E[f\,(w_jw_l - S^{-1}_{jl})].

The second form is computed along the eigenvectors of S, with differences of f at nodes and at their mirror images in place of
f. This leaves the mean unchanged and removes most of the variance, however small an eigenvalue is. Eigenvalues below 1e-4 of
the largest variance of a field are raised to that value: the derivative is then that of the mean over a window of this size.

Everything but the law of the fields, such as the second layer and parameters of the model, is differentiated node by node.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.expectation.gaussian.base import square_root

# A smaller one resolves kinks better, but differences over the window are divided by it, and the noise of the nodes grows.
MIN_RELATIVE_EIGENVALUE = 1e-4


class FieldNodes(eqx.Module):
    """Quadrature nodes of two independent standard normal vectors x and z, one node per column, and their weights."""

    x: Float[Array, "k n"]
    z: Float[Array, "p n"]
    weights: Float[Array, " n"]

    def fields(self, mean: Float[Array, " p"], A: Float[Array, "p k"], R: Float[Array, "p p"]) -> Float[Array, "p n"]:
        """Compute the Gaussian fields mean + A x + R z at the quadrature nodes (x, z)."""
        return mean[:, None] + A @ self.x + R @ self.z

    def mean(self, values: PyTree, *factors: Float[Array, "..."]) -> PyTree:
        """Average the values at the nodes (last axis of each array in a pytree), times optional factors of shape (n,)."""
        weights = self.weights
        for factor in factors:
            weights = weights * factor
        return jax.tree.map(lambda leaf: leaf @ weights, values)

    def average_with_x(self, values: PyTree) -> PyTree:
        """Average the values at the nodes times 1 and times each coordinate of x, stacked on a new first axis of each array."""
        x = jnp.concatenate([jnp.ones_like(self.x, shape=(1, self.x.shape[1])), self.x])
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf @ (self.weights * x).T, -1, 0), values)


@eqx.filter_custom_jvp
def field_mean(
    f: Callable, mean: Float[Array, " p"], A: Float[Array, "p k"], S: Float[Array, "p p"], nodes: FieldNodes, *, smooth: bool
) -> PyTree:
    """Average a function over Gaussian fields at quadrature nodes; derivatives are those of the expectation, not of the sum.

    The fields are mean + A x + R z with R R^T = S and standard normal x and z.

    Parameters
    ----------
    f : a pytree and a function from fields, shape (p, n), to a pytree of arrays (..., n)
    mean, A, S : the law of the fields; derivatives with respect to these come from Price's theorem or integration by parts
    smooth : whether f is smooth, so that Price's theorem applies
    """
    return nodes.mean(f(nodes.fields(mean, A, square_root(S))))


@field_mean.def_jvp
def _(primals, tangents, *, smooth):
    f, mean, A, S, nodes = primals
    df, d_mean, dA, dS, d_nodes = tangents
    R = square_root(S)
    value = field_mean(f, mean, A, S, nodes, smooth=smooth)
    change = jax.tree.map(jnp.zeros_like, value)
    # Parameters in f and the nodes are differentiated along the sum; the law of the fields below, as an expectation.
    if jax.tree.leaves((df, d_nodes)):
        pathwise = lambda f, nodes: nodes.mean(f(nodes.fields(mean, A, R)))
        along = eqx.filter_jvp(pathwise, (f, nodes), (df, d_nodes))[1]
        change = jax.tree.map(lambda new, zero: zero if new is None else new, along, change, is_leaf=lambda leaf: leaf is None)
    if d_mean is None and dA is None and dS is None:
        return value, change
    first, second = (_differentiate_by_price if smooth else _differentiate_by_parts)(f, mean, A, S, nodes)
    in_mean, in_A = (jax.tree.map(lambda leaf, at=at: leaf[:, at], first) for at in (np.s_[:1], np.s_[1:]))
    columns = None if d_mean is None else d_mean[:, None]
    for tangent, slope in ((columns, in_mean), (dA, in_A), (dS, second)):
        if tangent is not None:
            change = jax.tree.map(lambda leaf, slope, dt=tangent: leaf + jnp.tensordot(dt, slope, 2), change, slope)
    return value, change


def _differentiate_by_price(f: Callable, mean: Array, A: Array, S: Array, nodes: FieldNodes) -> tuple[PyTree, PyTree]:
    """Differentiate the mean of a smooth function over Gaussian fields in their mean and covariance, by Price's theorem.

    Returns the derivatives in (mean, A) and in S; the axes of mean, A and S come first in each array.
    """
    p = len(S)
    fields = nodes.fields(mean, A, square_root(S))
    along = lambda j: jnp.zeros_like(fields).at[j].set(1.0)

    def derivatives_along_pair(pair):
        j, l = pair
        once, twice = jax.jvp(lambda fields: jax.jvp(f, (fields,), (along(j),))[1], (fields,), (along(l),))
        return nodes.average_with_x(once), nodes.mean(twice)

    # One pair of units at a time: all p^2 second derivatives at every node would not fit into memory.
    first, second = lax.map(derivatives_along_pair, _triangle_indices(p))
    own = np.flatnonzero(np.equal(*np.triu_indices(p)))
    return jax.tree.map(lambda leaf: leaf[own], first), jax.tree.map(lambda leaf: _fill_symmetric(leaf, p) / 2, second)


def _differentiate_by_parts(f: Callable, mean: Array, A: Array, S: Array, nodes: FieldNodes) -> tuple[PyTree, PyTree]:
    """Differentiate the mean of any function over Gaussian fields in their mean and covariance, by integrating by parts.

    Returns the derivatives in (mean, A) and in S; the axes of mean, A and S come first in each array.
    """
    p = len(S)
    values, vectors = jnp.linalg.eigh(S)
    largest = jnp.diagonal(S + A @ A.T).max()
    h = jnp.sqrt(jnp.maximum(values, MIN_RELATIVE_EIGENVALUE * jnp.where(largest > 0, largest, 1.0)))
    u = vectors.T @ nodes.z
    centre = mean[:, None] + A @ nodes.x
    at = lambda scale: f(centre + vectors @ ((h * scale)[:, None] * u))
    one, unit = jnp.ones(p), jnp.eye(p)
    here = at(one)

    def derivatives_along_axis(i):
        # Odd and even differences under z_i -> -z_i: control variates without bias, since u_i and u_i^2 - 1 have mean zero.
        mirrored, without = at(one - 2 * unit[i]), at(one - unit[i])
        odd = jax.tree.map(lambda plus, minus: (plus - minus) * u[i] / (2 * h[i]), here, mirrored)
        even = jax.tree.map(lambda plus, minus, zero: (plus + minus) / 2 - zero, here, mirrored, without)
        return nodes.average_with_x(odd), nodes.mean(even, (u[i] ** 2 - 1) / (2 * h[i] ** 2))

    def derivatives_along_axes(pair):
        i, l = pair
        others = (at(one - 2 * unit[i]), at(one - 2 * unit[l]), at(one - 2 * unit[i] - 2 * unit[l]))
        mixed = jax.tree.map(lambda pp, mp, pm, mm: (pp - mp - pm + mm) / 4, here, *others)
        return nodes.mean(mixed, u[i] * u[l] / (2 * h[i] * h[l]))

    first, own = lax.map(derivatives_along_axis, jnp.arange(p))
    pairs, diagonal = lax.map(derivatives_along_axes, _triangle_indices(p, 1)), np.arange(p)
    second = jax.tree.map(lambda pair, own: _fill_symmetric(pair, p, 1).at[diagonal, diagonal].set(own), pairs, own)
    back = lambda leaf: jnp.tensordot(vectors, jnp.tensordot(vectors, leaf, (1, 1)), (1, 1))
    return jax.tree.map(lambda leaf: jnp.tensordot(vectors, leaf, 1), first), jax.tree.map(back, second)


def _triangle_indices(p: int, above: int = 0) -> tuple[Array, Array]:
    """Return the row and column indices of the upper triangle of a p-by-p matrix, from the diagonal `above` on."""
    row, column = np.triu_indices(p, above)
    return jnp.asarray(row), jnp.asarray(column)


def _fill_symmetric(values: Float[Array, "pairs ..."], p: int, above: int = 0) -> Float[Array, "p p ..."]:
    """Fill a symmetric p-by-p matrix from the entries of its upper triangle, row by row, from the diagonal `above` on."""
    row, column = np.triu_indices(p, above)
    return jnp.zeros((p, p, *values.shape[1:])).at[row, column].set(values).at[column, row].set(values)
