r"""Updates of triangular factors of Gram matrices, one for each run, with the runs on the last axis.

`T[j, i]` is entry (i, j) of a factor T, so that columns are contiguous. No Gram matrix is formed, so every row is accurate
relative to its own length.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

PIVOT_ROUNDING = 2.0**-46
"""Pivots below this fraction of their row, 64 units of rounding, are set to zero.

Velocities (of momentum methods) that start at zero are parallel after one sample. The remainder of a row is then rounding
error, which differs between kernels and would choose a different axis in each. The Gram matrix changes by rounding only.
"""


def orthogonal_increments(A: Float[Array, "r r runs"], C: Float[Array, "n b runs"]) -> Float[Array, "r n runs"]:
    r"""Return a factor K, by columns, of the Gram matrix K K^T of the parts of n increments outside the old span.

    The increments are combinations of b inputs with coefficients C. The components of the inputs outside the span of the old
    directions have Bartlett's triangular factor A. Given C, the parts of the increments are n Gaussian vectors with covariance
    :math:`CC^\top`. If C does not depend on these components and :math:`CC^\top = RR^\top` for an R of r < b columns, the Gram
    matrix of the parts is :math:`KK^\top` with K = RA.
    """
    each = jnp.swapaxes(C, 0, 1)
    # Fewer rows than inputs: the law of the increments is that of r vectors combined by a factor R of C C^T.
    R = each if len(A) == len(each) else gram_schmidt(each)
    return sum_products(A[:, :, None], R[:, None])


def bartlett_factor(squares: Float[Array, "r *runs"], below: Float[Array, "n *runs"]) -> Float[Array, "r r *runs"]:
    """Assemble a triangular factor from its squared diagonal (`squares`) and its entries `below` the diagonal, row by row."""
    r = squares.shape[0]
    A = jnp.zeros((r, *squares.shape)).at[np.diag_indices(r)].set(jnp.sqrt(squares))
    return A.at[np.tril_indices(r, -1)].set(below)


def gram_schmidt(X: Float[Array, "n p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """Compute the lower triangular L with L L^T = Y Y^T by Gram-Schmidt on the p rows of a matrix Y.

    `X[i]` is column i of Y, and entry j of the result is column j of L.

    Each row is accurate relative to its own length, whatever the lengths of other rows. A remainder shorter than `rounding`
    times its row is set to zero.
    """
    rows = jnp.arange(X.shape[1])
    min_square = rounding**2 * sum_products(X, X) if rounding else None

    def normalise_row(X, step):
        j, min_square = step
        row = X[:, j, None]
        products = sum_products(X, row)
        square = products[j]
        nonzero = square > (0 if min_square is None else min_square)
        inverse = jnp.where(nonzero, lax.rsqrt(jnp.where(nonzero, square, 1.0)), 0.0)
        T_j = jnp.where(rows[:, None] >= j, products * inverse, 0.0)
        # Modified Gram-Schmidt: the row is projected out of all rows before the next one is taken.
        return X - row * inverse * T_j, T_j

    return lax.scan(normalise_row, X, (rows, min_square))[1]


def sum_products(left: Float[Array, "n ..."], right: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """Sum the product of two arrays over their first axis, term by term."""
    # A scan rather than a sum of one large array, on which compilers are slow; the order of summation is fixed, too.
    shape = jnp.broadcast_shapes(left.shape[1:], right.shape[1:])
    return lax.scan(lambda total, term: (total + term[0] * term[1], None), jnp.zeros(shape), (left, right))[0]


class RotatedFactor(NamedTuple):
    """A triangular factor in coordinates rotated so that one axis points along an input.

    Parameters
    ----------
    T : the triangular part, on the other axes
    Th : the dense column times the length of the input, which is the field of the input along each direction
    rest : squared length of the input on the axes of T and beyond
    """

    T: Float[Array, "n n runs"]
    Th: Float[Array, "n runs"]
    rest: Float[Array, " runs"]


def rotate_factor(T: Float[Array, "p p runs"], h: Float[Array, "p runs"], outside: Float[Array, " runs"]) -> RotatedFactor:
    r"""Rotate the coordinates of a triangular factor T so that one axis points along a given vector.

    The vector is :math:`(h, \chi)` with :math:`\chi^2` = `outside`. T stays triangular, plus a dense column on that axis. With
    :math:`\sigma_j^2 = \chi^2 + \sum_{i\ge j} h_i^2` and :math:`w_j = \sum_{i\ge j} T_i h_i` over columns, column j becomes
    :math:`(\sigma_{j+1} T_j - h_j w_{j+1}/\sigma_{j+1})/\sigma_j`, and the dense column is :math:`w_0/\sigma_0`.
    """

    def rotate_column(carry, row):
        w, rest = carry
        T_j, h_j = row
        more = rest + h_j * h_j
        product = more * rest
        # One reciprocal root of the product serves both quotients by sigma_j and sigma_(j+1).
        scale = jnp.where(product > 0, lax.rsqrt(jnp.where(product > 0, product, 1.0)), 0.0)
        cosine = jnp.where(more > 0, rest * scale, 1.0)
        return (w + T_j * h_j, more), T_j * cosine - w * (h_j * scale)

    # From the last column on, so that each rotation fills in only entries below the diagonal.
    (Th, rest), rotated = lax.scan(rotate_column, (jnp.zeros_like(h), outside), (T, h), reverse=True)
    return RotatedFactor(rotated, Th, rest)


def append_row(T: Float[Array, "p p runs"], v: Float[Array, "p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """Return the triangular factor of T T^T + v v^T for a triangular factor T and a vector v, by one rotation per column.

    Exact zeros stay zero. A pivot smaller than `rounding` times its row is set to zero.
    """
    rows = jnp.arange(T.shape[0])[:, None]
    least = rounding * jnp.sqrt(sum_products(T, T) + v * v) if rounding else None

    def update_column(v, row):
        j, T_j, least = row
        head, tail = T_j[j], v[j]
        if least is not None:
            none = head * head + tail * tail <= least * least
            head, tail = jnp.where(none, 0.0, head), jnp.where(none, 0.0, tail)
            T_j, v = (jnp.where((rows == j) & none, 0.0, part) for part in (T_j, v))
        # A Givens rotation moves entry j of v onto the diagonal.
        length = jnp.sqrt(head * head + tail * tail)
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
        cosine, sine = jnp.where(length > 0, head * inverse, 1.0), tail * inverse
        return jnp.where(rows > j, cosine * v - sine * T_j, 0.0), cosine * T_j + sine * v

    return lax.scan(update_column, v, (jnp.arange(T.shape[0]), T, least))[1]
