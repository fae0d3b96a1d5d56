r"""Statistics as coordinates in an orthonormal frame: the stable form of the overlaps.

The k fixed directions have Gram matrix :math:`P = BB^\top` and span an orthonormal frame in which they are the rows of B.
The trained directions have coordinates `m` in that frame and T along min(p, d - k) further directions, with T lower
triangular:

.. math:: M = m B^\top, \qquad Q = m m^\top + T T^\top, \qquad
          (\lambda, \lambda^*) = F y, \quad F = \begin{pmatrix} m & T \\ B & 0 \end{pmatrix}, \quad y \sim N(0, 1).

T is never formed from Q during a run, so that it goes on to 1e-16, and the risk to 1e-32, at perfect recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.kernel.random.transform import array_module
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars
from sgdlimits.statistics.triangular import ROUNDING, Turned, append, bartlett, contract, gram_schmidt, rests, rotate

PSD_TOLERANCE = 1e-9
ZERO = 16 * np.finfo(float).eps
BEYOND_ROUNDING = 1e-13


class Coordinates(NamedTuple):
    """The b inputs of one step in the frame: coordinates, rests, label noise, classes.

    Of the rests r combinations matter: all b where the algorithm asks for products of inputs or has noise, otherwise min(b, n),
    with n directions that move. `outside` is the diagonal, squared, of the triangular factor of their Gram matrix, and `below`
    what is below the diagonal, row by row (Bartlett). An algorithm's own noise is further inputs after the samples. Inputs of
    several blocks have them on the first axis, but for label noise and classes.
    """

    inside: Float[Array, "*block k b runs"]
    along: Float[Array, "*block n b runs"]
    outside: Float[Array, "*block r runs"]
    below: Float[Array, "*block n runs"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]

    def gram(self) -> Float[Array, "b b"]:
        """Return the Gram matrix of the inputs of one run; needs a rest for each input."""
        return sum_blocks(self._gram(*self[:4]) if self.inside.ndim == 2 else jax.vmap(self._gram)(*self[:4]), 2)

    @staticmethod
    def _gram(inside, along, outside, below) -> Float[Array, "b b"]:
        A = bartlett(outside, below)
        return inside.T @ inside + along.T @ along + A @ A.T


class Frame(eqx.Module):
    """Coordinates of a batch of runs, the runs on the last axis. `T[j, i]` is entry (i, j) of T: columns lie together.

    Inputs of several blocks have a frame in each, on the first axis of m and T. A step is the same in all of them: fields are
    sums over blocks, and each block moves by the same coefficients.
    """

    a: Scalars
    m: Float[Array, "*block n k runs"]
    T: Float[Array, "*block n n runs"]
    kept: dict[str, Any] = eqx.field(default_factory=dict)
    names: tuple[str, ...] = eqx.field(static=True, default=(STUDENT,))

    @property
    def blocks(self) -> int | None:
        """The number of blocks of a batch of runs; None for one block, which has no axis."""
        return len(self.m) if self.m.ndim == 4 else None

    def each(self, f: Callable, *trees: PyTree) -> PyTree:
        """Apply `f(m, T, *trees)` to each block; the trees have the axis of blocks that m and T have."""
        return f(self.m, self.T, *trees) if self.blocks is None else jax.vmap(f)(self.m, self.T, *trees)

    def gram(self, rows: slice, others: slice) -> Float[Array, "p q"]:
        """Compute the products of some directions of one run with others."""
        inside = self.m[..., rows, :] @ jnp.swapaxes(self.m[..., others, :], -1, -2)
        return sum_blocks(inside + jnp.swapaxes(self.T[..., rows], -1, -2) @ self.T[..., others], 2)

    def project(self, x: Coordinates, B: Float[Array, "*block k s runs"]) -> Projected:
        """Compute the fields of inputs along the directions and the fixed ones, the rows of B, which each run may have."""
        fields, turned = self.each(_fields, x.inside, x.along, x.outside)
        fixed = (B[..., None, :] * x.inside[..., None, :, :, :]).sum(-3)
        return Projected(self, x, sum_blocks(fields, 3), sum_blocks(fixed, 3), turned)


def sum_blocks(leaf: Float[Array, "..."], ndim: int) -> Float[Array, "..."]:
    """The sum over the axis of blocks of an array that has `ndim` axes without it."""
    return leaf if leaf.ndim == ndim else leaf.sum(0)


def _fields(m, T, inside, along, outside) -> tuple[Float[Array, "n b runs"], Turned | None]:
    """The fields of the inputs in one block; for a single input also T rotated with it onto one axis."""
    turned = rotate(T, along[:, 0], outside[0]) if along.shape[1] == 1 < len(m) else None
    outer = contract(T[:, :, None], along[:, None]) if turned is None else turned.Th[:, None]
    return (m[:, :, None] * inside[None]).sum(1) + outer, turned


class Projected(NamedTuple):
    """The directions, the inputs of one step and their fields; for a single input also T rotated with it onto one axis."""

    frame: Frame
    x: Coordinates
    fields: Float[Array, "n b runs"]
    fixed: Float[Array, "k b runs"]
    turned: Turned | None

    def update(
        self,
        past: Callable,
        C: Float[Array, "n b runs"],
        lower: bool,
        outside: bool | Float[Array, " block"],
        unit: Float[np.ndarray, " n"] | None = None,
    ) -> tuple[Float[Array, "*block n k runs"], Float[Array, "*block n n runs"]]:
        r"""Return m and T of the directions :math:`AW + CX`, in every block.

        Parameters
        ----------
        past : past(rows, axis) multiplies rows by A; the directions are on that axis
        C : the coefficients of the inputs
        lower : whether A is lower triangular
        outside : whether inputs have a part outside the span of all directions, or of which blocks; where not, T spans all that
            the dimension leaves
        unit : 1 for directions that are then scaled to length 1, and 0 for the others; None scales none
        """
        n, alike = len(C), isinstance(outside, bool)
        rounding = ROUNDING if len(self.frame.names) > 1 and n > len(self.frame.names) else 0.0

        def one(m, T, inside, along, rests, below, turned, outside):
            m = past(m) + (C[:, None] * inside[None]).sum(2)
            if alike and not outside:
                return m, _added(past, C, T, along)
            factor = _factor(past, C, lower, T, along, rests, below, turned, rounding)
            return m, factor if alike else jnp.where(outside, factor, _added(past, C, T, along))

        if alike:
            m, T = self.frame.each(partial(one, outside=outside), *self.x[:4], self.turned)
        else:
            m, T = self.frame.each(one, *self.x[:4], self.turned, outside)
        if unit is None:
            return m, T
        square = sum_blocks(Frame(self.frame.a, m, T).each(lambda m, T: (m**2).sum(1) + contract(T, T)), 2)
        inverse = lax.rsqrt(jnp.where(unit[:, None] > 0, square, 1.0))
        return m * inverse[:, None], T * inverse


def _factor(past, C, lower: bool, T, along, outside, below, turned: Turned | None, rounding: float) -> Float[Array, "n n runs"]:
    """T of one block after a step of inputs that have a part outside the span of all directions."""
    if C.shape[0] == C.shape[1] == 1:  # T is a length
        return jnp.sqrt((past(T, 1) + C * along) ** 2 + C**2 * outside)
    if turned is not None and lower:
        length, some = jnp.sqrt(turned.rest), turned.rest > 0
        inverse = jnp.where(some, 1 / jnp.where(some, length, 1.0), 0.0)
        return append(past(turned.T, 1), past(turned.Th) * inverse + C[:, 0] * length, rounding)
    return gram_schmidt(jnp.concatenate([_added(past, C, T, along), rests(bartlett(outside, below), C)]), rounding)


def _added(past: Callable, C, T, along) -> Float[Array, "n n runs"]:
    """The directions AW + CX of one block along the axes of T."""
    return past(T, 1) + contract(jnp.swapaxes(along, 0, 1)[:, :, None], jnp.swapaxes(C, 0, 1)[:, None])


class FieldFactor(NamedTuple):
    """The matrix F, which turns standard normal coordinates into fields: its rows of students and of fixed directions."""

    student: Float[Array, "p n"]
    fixed: Float[Array, "k n"]


def triangular(gram: Any) -> Any:
    """The Cholesky factor of a Gram matrix, on the host where the matrix is there."""
    return array_module(gram).linalg.cholesky(gram)


def pad_frame(B: Float[Array, "k k"], n: int) -> Float[np.ndarray, "k n"]:
    """The fixed directions in a frame of n directions: B and zeros."""
    return np.pad(np.asarray(B), ((0, 0), (0, n - len(B))))


def overlaps_from_coordinates(a: Scalars, S: Float[Array, "p n"], B: Float[Array, "k k"]) -> Overlaps:
    """Return the statistics of one run from coordinates S of its units; the first k axes are the frame of B."""
    return Overlaps(a, S[:, : len(B)] @ B.T, S @ S.T)


def overlaps_of(frame: Frame, B: Float[Array, "k k"]) -> Overlaps:
    """The statistics of a frame, the runs still on the last axis."""
    M = jnp.einsum("jsR,rs->jrR", frame.m, B)
    Q = _with_columns((frame.m[:, None] * frame.m[None]).sum(2), frame.T)
    return Overlaps(frame.a, M, Q, frame.kept, frame.names)


def _with_columns(Q: Float[Array, "p p runs"], T: Float[Array, "p p runs"]) -> Float[Array, "p p runs"]:
    """Q + T T^T for T given by its columns."""
    return lax.scan(lambda Q, column: (Q + column[:, None] * column[None], None), Q, T)[0]


def frame_of(stats: Overlaps, B: Float[Array, "k k"], room: int) -> Frame:
    """Factor the statistics of a batch of runs (runs first) where only `room` directions lie outside the fixed ones.

    Raises `BadInput` where Omega is not positive semi-definite or does not fit into the room.
    """
    M, Q = (np.asarray(leaf, float) for leaf in (stats.M, stats.Q))
    p, scale = Q.shape[-1], np.maximum(np.abs(Q).max(axis=(-2, -1)), 1.0)[:, None]
    m = np.linalg.solve(np.asarray(B), np.swapaxes(M, -1, -2)).swapaxes(-1, -2)
    with np.errstate(over="ignore", invalid="ignore"):
        outside = Q - m @ m.swapaxes(-1, -2)
    if not np.isfinite(outside).all():
        raise BadInput(f"the start has overlaps of {np.abs(M).max():.3g}, whose squares are no numbers. Make M smaller.")
    values, vectors = np.linalg.eigh(outside)
    if (values < -PSD_TOLERANCE * scale).any():
        raise BadInput(
            f"the start is not positive semi-definite: Q - M P^-1 M^T has the eigenvalue {values.min():.3g}. "
            "Make Q larger or M smaller, so that weights with these overlaps exist."
        )
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]
    if room < p and (values[:, room:] > PSD_TOLERANCE * scale).any():
        raise BadInput(
            f"the start needs {p} directions outside the span of the fixed ones, but d leaves {room}. "
            f"Use a larger d, or a start whose Q - M P^-1 M^T has rank {room}."
        )
    values = np.where(values > ZERO * scale, values, 0.0)
    values[:, room:] = 0.0
    root = vectors * np.sqrt(values)[:, None, :]
    upper = np.asarray(np.linalg.qr(root.swapaxes(-1, -2), mode="r"))
    T = upper * np.where(np.diagonal(upper, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[:, :, None]
    last = lambda tree: jax.tree.map(lambda leaf: np.ascontiguousarray(np.moveaxis(np.asarray(leaf, float), 0, -1)), tree)
    a, m, T, kept = last((stats.a, m, T, stats.kept))
    return Frame(a, m, T, kept, stats.names)


@singledispatch
def project_to_cone(stats: PyTree, B: Float[np.ndarray, "k k"]) -> PyTree:
    """Statistics of weights that are near to these, of any number of leading axes: all are, unless their kind is registered."""
    return stats


@project_to_cone.register
def _(stats: Overlaps, B):
    r"""The overlaps that are nearest, with the same norms.

    Where :math:`Q - mm^\top` has negative eigenvalues beyond rounding, as after a solver's errors, they are set to zero.
    """
    M, Q = np.asarray(stats.M), np.asarray(stats.Q)
    m = M @ np.linalg.inv(B).T
    inside = m @ m.swapaxes(-1, -2)
    least = (np.linalg.eigvalsh(Q - inside) if Q.shape[-1] > 1 else (Q - inside)[..., 0])[..., 0]
    out = (least < -BEYOND_ROUNDING * np.maximum(np.abs(Q).max((-2, -1)), 1.0))[..., None, None]
    if not out.any():
        return stats
    values, vectors = np.linalg.eigh(Q - inside)
    near = inside + (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)
    norm, new = (np.maximum(np.diagonal(each, axis1=-2, axis2=-1), 0.0) for each in (Q, near))
    scale = np.sqrt(np.divide(norm, new, out=np.zeros_like(new), where=new > 0))[..., None]
    M, Q = np.where(out, scale * M, M), np.where(out, scale * near * scale.swapaxes(-1, -2), Q)
    return eqx.tree_at(lambda stats: (stats.M, stats.Q), stats, (M, Q))


def split_by_frame(
    M: Float[Array, "p k *n"], Q: Float[Array, "p p *n"], B: Float[Array, "k k"]
) -> tuple[Float[Array, "p k *n"], Float[Array, "p p *n"]]:
    """The coordinates m in the frame, M = m B^T, and S = Q - m m^T, the Gram matrix of what lies outside it."""
    p, k, *batch = M.shape
    m = solve_triangular(B, jnp.moveaxis(M, 1, 0).reshape(k, -1), lower=True).reshape(k, p, *batch)
    m = jnp.moveaxis(m, 0, 1)
    return m, Q - (m[:, None] * m[None]).sum(2)


def factor_fields(stats: Overlaps, B: Float[Array, "k k"]) -> FieldFactor:
    """F for statistics with any trailing axes, differentiable, and safe where Omega is singular or barely indefinite."""
    p, k, *batch = stats.M.shape
    m, S = split_by_frame(stats.M.reshape(p, k, -1), stats.Q.reshape(p, p, -1), B)
    T = cholesky_columns(S)
    student = jnp.concatenate([m, jnp.swapaxes(T, 0, 1)], axis=1).reshape(p, k + p, *batch)
    fixed = jnp.concatenate([B, jnp.zeros((k, p))], axis=1).reshape(k, k + p, *(1 for _ in batch))
    return FieldFactor(student, jnp.broadcast_to(fixed, (k, k + p, *batch)))


def admissible(stats: Overlaps, B: Float[Array, "k k"], unit: int = 0) -> Overlaps:
    """Overlaps that real vectors have, the first `unit` of them of norm 1: of such (runs last), the same to rounding.

    Of others, what lies outside the frame loses what makes it indefinite.
    """
    _, S = split_by_frame(stats.M, stats.Q, B)
    M, Q = stats.M, _with_columns(stats.Q - S, cholesky_columns(S, jnp.diagonal(stats.Q, axis1=0, axis2=1).T))
    if unit:
        norms = jnp.sqrt(jnp.diagonal(Q, axis1=0, axis2=1).T).at[unit:].set(1.0)
        M, Q = M / norms[:, None], Q / (norms[:, None] * norms[None])
    return Overlaps(stats.a, M, Q, stats.kept, stats.names)


def cholesky_columns(S: Float[Array, "p p n"], scale: Float[Array, "p n"] | float = 1.0) -> Float[Array, "p p n"]:
    """Columns of the Cholesky factor of each S[:, :, i], column j in entry j.

    For semi-definite matrices: a pivot that is rounding beside the `scale` of its row, or below zero, gives a column of zeros,
    and an entry is held to what Cauchy and Schwarz allow, so that rounding or discretisation below zero does not blow up.
    """
    zero = jnp.broadcast_to(ZERO * jnp.asarray(scale), S.shape[1:])

    def eliminate(S, row):
        j, zero = row
        pivot = lax.dynamic_index_in_dim(S, j, 0, keepdims=False)
        head = lax.dynamic_index_in_dim(pivot, j, 0, keepdims=False)
        alive = head > zero
        inverse = jnp.where(alive, lax.rsqrt(jnp.where(alive, head, 1.0)), 0.0)
        diagonal = jnp.diagonal(S, axis1=0, axis2=1).T
        positive = diagonal > 0
        cap = jnp.where(positive, jnp.sqrt(jnp.where(positive, diagonal, 1.0)), 0.0)
        column = jnp.clip(pivot * inverse, -cap, cap)
        return S - column[:, None] * column[None], column

    return lax.scan(eliminate, S, (jnp.arange(S.shape[0]), zero))[1]
