r"""Triangular factors of Gram matrices that change, one for each run, the runs on the last axis.

`T[j, i]` is entry (i, j) of a factor T: columns lie together. No Gram matrix is formed, so that rows of any length are as exact
as their own length allows.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

ROUNDING = 2.0**-46
"""A pivot of the triangular factor is zero below this share of its row, some 64 units of rounding.

Velocities that begin at zero are parallel after one sample. What is then left of a row is rounding, and along it would lie an
axis of the path that each kernel rounds, and so chooses, otherwise. The Gram matrix changes by no more than by rounding.
"""


def rests(A: Float[Array, "r r runs"], C: Float[Array, "n b runs"]) -> Float[Array, "r n runs"]:
    r"""The columns of K: what a step adds to the directions outside of them, for Bartlett's factor A of the rests.

    Given C, what the rests add are n Gaussian vectors with covariance :math:`CC^\top`. Where C does not depend on the rests and
    :math:`CC^\top = RR^\top` for an R of r < b columns, their Gram matrix is :math:`KK^\top`, K = RA, with Bartlett's
    triangular factor A of r vectors.
    """
    each = jnp.swapaxes(C, 0, 1)
    R = each if len(A) == len(each) else gram_schmidt(each)
    return contract(A[:, :, None], R[:, None])


def bartlett(squares: Float[Array, "r *runs"], below: Float[Array, "n *runs"]) -> Float[Array, "r r *runs"]:
    """The triangular factor with this diagonal, squared, and these entries below it, row by row."""
    r = squares.shape[0]
    A = jnp.zeros((r, *squares.shape)).at[np.diag_indices(r)].set(jnp.sqrt(squares))
    return A.at[np.tril_indices(r, -1)].set(below)


def gram_schmidt(X: Float[Array, "n p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """The columns of the triangular factor of a matrix with p rows and columns X, by Gram-Schmidt on the rows.

    Each row is as exact as its own length allows, however long the others are. What is left of a row, if it is shorter than
    `rounding` times the row, is taken as zero.
    """
    rows, least = jnp.arange(X.shape[1]), rounding**2 * contract(X, X) if rounding else None

    def column(X, step):
        j, least = step
        row = X[:, j, None]
        products = contract(X, row)
        square = products[j]
        some = square > (0 if least is None else least)
        inverse = jnp.where(some, lax.rsqrt(jnp.where(some, square, 1.0)), 0.0)
        T_j = jnp.where(rows[:, None] >= j, products * inverse, 0.0)
        return X - row * inverse * T_j, T_j

    return lax.scan(column, X, (rows, least))[1]


def contract(left: Float[Array, "n ..."], right: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The sum over the first axis of the product, term by term: compilers are slow at the sum of one large array."""
    shape = jnp.broadcast_shapes(left.shape[1:], right.shape[1:])
    return lax.scan(lambda total, term: (total + term[0] * term[1], None), jnp.zeros(shape), (left, right))[0]


class Turned(NamedTuple):
    """T with one input's coordinates turned onto one axis, what T is along it, and the squared length of the input."""

    T: Float[Array, "n n runs"]
    Th: Float[Array, "n runs"]
    rest: Float[Array, " runs"]


def rotate(T: Float[Array, "p p runs"], h: Float[Array, "p runs"], outside: Float[Array, " runs"]) -> Turned:
    r"""Rotate the vector :math:`(h, \chi)` onto one axis, from its end on: T stays triangular, plus one dense column.

    With :math:`\sigma_j^2 = \chi^2 + \sum_{i\ge j} h_i^2` and :math:`w_j = \sum_{i\ge j} T_i h_i` over columns, column j
    becomes :math:`(\sigma_{j+1} T_j - h_j w_{j+1}/\sigma_{j+1})/\sigma_j`, and the dense column is :math:`w_0/\sigma_0`.
    """

    def column(carry, row):
        w, rest = carry
        T_j, h_j = row
        more = rest + h_j * h_j
        product = more * rest
        scale = jnp.where(product > 0, lax.rsqrt(jnp.where(product > 0, product, 1.0)), 0.0)
        cosine = jnp.where(more > 0, rest * scale, 1.0)
        return (w + T_j * h_j, more), T_j * cosine - w * (h_j * scale)

    (Th, rest), turned = lax.scan(column, (jnp.zeros_like(h), outside), (T, h), reverse=True)
    return Turned(turned, Th, rest)


def append(T: Float[Array, "p p runs"], v: Float[Array, "p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """The triangular factor of [T, v], by one rotation a column: its Gram matrix is T T^T + v v^T. Zeros stay exact.

    A pivot that is smaller than `rounding` times its row is zero.
    """
    rows = jnp.arange(T.shape[0])[:, None]
    least = rounding * jnp.sqrt(contract(T, T) + v * v) if rounding else None

    def column(v, row):
        j, T_j, least = row
        head, tail = T_j[j], v[j]
        if least is not None:
            none = head * head + tail * tail <= least * least
            head, tail = jnp.where(none, 0.0, head), jnp.where(none, 0.0, tail)
            T_j, v = (jnp.where((rows == j) & none, 0.0, part) for part in (T_j, v))
        length = jnp.sqrt(head * head + tail * tail)
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
        cosine, sine = jnp.where(length > 0, head * inverse, 1.0), tail * inverse
        return jnp.where(rows > j, cosine * v - sine * T_j, 0.0), cosine * T_j + sine * v

    return lax.scan(column, v, (jnp.arange(T.shape[0]), T, least))[1]
