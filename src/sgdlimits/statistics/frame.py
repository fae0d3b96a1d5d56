r"""Statistics as coordinates in an orthonormal frame: the stable form of the overlaps.

The k fixed directions have Gram matrix :math:`P = BB^\top` and span an orthonormal frame in which they are the rows of B.
The p trained directions in R^d have coordinates `m` in that frame and T along min(p, d - k) further directions, with T lower
triangular. Their overlaps M with the fixed directions and Q with each other, and the fields of an input along trained
directions (:math:`\lambda`) and fixed ones (:math:`\lambda^*`), are

.. math:: M = m B^\top, \qquad Q = m m^\top + T T^\top, \qquad
          (\lambda, \lambda^*) = F y, \quad F = \begin{pmatrix} m & T \\ B & 0 \end{pmatrix}, \quad y \sim N(0, 1).

T is never formed from Q during a run, so that it can decrease to 1e-16, and the risk to 1e-32, at perfect recovery.
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
from sgdlimits.statistics.triangular import (
    PIVOT_ROUNDING,
    RotatedFactor,
    append_row,
    bartlett_factor,
    gram_schmidt,
    orthogonal_increments,
    rotate_factor,
    sum_products,
)

PSD_TOLERANCE = 1e-9
"""Relative size up to which negative eigenvalues of a start's Gram matrix are accepted, as rounding in a user's computation."""
RANK_TOLERANCE = 16 * np.finfo(float).eps
"""Relative size below which eigenvalues and pivots count as zero."""
PROJECTION_TOLERANCE = 1e-13
"""Relative size of negative eigenvalues from which on `project_to_cone` changes the overlaps."""


class StepCoordinates(NamedTuple):
    """The inputs of one step in the frame of all directions: coordinates, orthogonal components, label noise and classes.

    The components of the b inputs orthogonal to the frame enter through r linear combinations only: r = b if the algorithm
    needs products of inputs or has noise of its own, otherwise r = min(b, n), with n trained directions. The Gram matrix of
    these combinations has a triangular factor, whose law is Bartlett's. An algorithm's noise adds inputs after the samples.
    If inputs have several blocks, all arrays but label noise and classes have the block on the first axis.

    Parameters
    ----------
    inside, along : coordinates along the fixed directions, and along the n further directions of the frame
    outside, below : squared diagonal of the triangular factor, and its entries below the diagonal, row by row
    z, c : label noise and class of each input
    """

    fixed_coordinates: Float[Array, "*block k b runs"]
    frame_coordinates: Float[Array, "*block n b runs"]
    squared_diagonal: Float[Array, "*block r runs"]
    below_diagonal: Float[Array, "*block n runs"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]

    def gram(self) -> Float[Array, "b b"]:
        """Compute the Gram matrix of the inputs of one run; there must be as many orthogonal components as inputs."""
        return sum_blocks(
            self._block_gram(*self[:4]) if self.fixed_coordinates.ndim == 2 else jax.vmap(self._block_gram)(*self[:4]), 2
        )

    @staticmethod
    def _block_gram(inside, along, outside, below) -> Float[Array, "b b"]:
        """Compute the Gram matrix of the inputs in one block."""
        A = bartlett_factor(outside, below)
        return inside.T @ inside + along.T @ along + A @ A.T


class Frame(eqx.Module):
    """Coordinates of the trained directions of a batch of runs in an orthonormal frame, with the runs on the last axis.

    If the inputs have several blocks of variances, there is a frame in each block, on the first axis of m and T. A step is the
    same in all blocks: fields are sums over blocks, and all blocks are updated with the same coefficients.

    Parameters
    ----------
    a : network scalars
    m : coordinates along the fixed directions
    T : triangular factor in the further directions; `T[j, i]` is entry (i, j), so that columns are contiguous
    kept : memory of the algorithm other than directions, by name
    names : names of the groups of n rows in m and T, the students first
    """

    a: Scalars
    m: Float[Array, "*block n k runs"]
    T: Float[Array, "*block n n runs"]
    kept: dict[str, Any] = eqx.field(default_factory=dict)
    names: tuple[str, ...] = eqx.field(static=True, default=(STUDENT,))

    @property
    def blocks(self) -> int | None:
        """The number of covariance blocks of the inputs, the length of the first axis of m; None for one block without axis."""
        return len(self.m) if self.m.ndim == 4 else None

    def map_blocks(self, f: Callable, *trees: PyTree) -> PyTree:
        """Apply `f(m, T, *trees)` to the coordinates in each block of inputs; leaves of `trees` have the same block axis."""
        return f(self.m, self.T, *trees) if self.blocks is None else jax.vmap(f)(self.m, self.T, *trees)

    def gram(self, rows: slice, others: slice) -> Float[Array, "p q"]:
        """Compute the scalar products between two slices of the trained directions of one run."""
        inside = self.m[..., rows, :] @ jnp.swapaxes(self.m[..., others, :], -1, -2)
        return sum_blocks(inside + jnp.swapaxes(self.T[..., rows], -1, -2) @ self.T[..., others], 2)

    def project(self, x: StepCoordinates, B: Float[Array, "*block k s runs"]) -> ProjectedFrame:
        """Compute the fields of inputs along the trained directions, and along fixed ones with coordinates B."""
        fields, rotated = self.map_blocks(_fields_in_block, x.fixed_coordinates, x.frame_coordinates, x.squared_diagonal)
        fixed = (B[..., None, :] * x.fixed_coordinates[..., None, :, :, :]).sum(-3)
        return ProjectedFrame(self, x, sum_blocks(fields, 3), sum_blocks(fixed, 3), rotated)


def sum_blocks(leaf: Float[Array, "..."], ndim: int) -> Float[Array, "..."]:
    """Sum an array over the first axis, the blocks, if it has more than `ndim` axes; otherwise return it unchanged."""
    return leaf if leaf.ndim == ndim else leaf.sum(0)


def _fields_in_block(m, T, inside, along, outside) -> tuple[Float[Array, "n b runs"], RotatedFactor | None]:
    """Compute the fields of the inputs in one block, and the rotated factor if there is a single input."""
    # For a single input the rotation gives the fields as a by-product, and the update then needs one sweep only.
    rotated = rotate_factor(T, along[:, 0], outside[0]) if along.shape[1] == 1 < len(m) else None
    outer = sum_products(T[:, :, None], along[:, None]) if rotated is None else rotated.Th[:, None]
    return (m[:, :, None] * inside[None]).sum(1) + outer, rotated


class ProjectedFrame(NamedTuple):
    """A frame together with the inputs of one step and their fields along trained and fixed directions.

    For a single input it also has T, rotated so that one axis is along the input.
    """

    frame: Frame
    x: StepCoordinates
    fields: Float[Array, "n b runs"]
    fixed: Float[Array, "k b runs"]
    rotated: RotatedFactor | None

    def update(
        self,
        past: Callable,
        C: Float[Array, "n b runs"],
        lower: bool,
        outside: bool | Float[Array, " block"],
        unit: Float[np.ndarray, " n"] | None = None,
    ) -> tuple[Float[Array, "*block n k runs"], Float[Array, "*block n n runs"]]:
        """Compute the coordinates of the trained directions after a step, combinations of old directions and inputs.

        The new directions are :math:`AW + CX` with old directions W and inputs X; returns m and T, in every block.

        Parameters
        ----------
        past : past(rows, axis) multiplies rows by A, with the directions on that axis
        C : coefficients of the inputs
        lower : whether A is lower triangular
        outside : whether inputs have components outside the span of all directions, for all blocks or for each; if not, T spans
            all dimensions that the fixed directions leave
        unit : 1 for directions to be normalised to length 1, 0 for the others; None normalises none
        """
        n, alike = len(C), isinstance(outside, bool)
        # Only velocities can be parallel to rounding: see `PIVOT_ROUNDING`.
        rounding = PIVOT_ROUNDING if len(self.frame.names) > 1 and n > len(self.frame.names) else 0.0

        def update_block(m, T, inside, along, squares, below, rotated, outside):
            m = past(m) + (C[:, None] * inside[None]).sum(2)
            if alike and not outside:
                return m, _update_within_span(past, C, T, along)
            factor = _update_factor(past, C, lower, T, along, squares, below, rotated, rounding)
            return m, factor if alike else jnp.where(outside, factor, _update_within_span(past, C, T, along))

        if alike:  # `squared_diagonal` is static here, and selects code rather than values
            m, T = self.frame.map_blocks(partial(update_block, outside=outside), *self.x[:4], self.rotated)
        else:
            m, T = self.frame.map_blocks(update_block, *self.x[:4], self.rotated, outside)
        if unit is None:
            return m, T
        square = sum_blocks(Frame(self.frame.a, m, T).map_blocks(lambda m, T: (m**2).sum(1) + sum_products(T, T)), 2)
        # Rescaling a row of the factor keeps it triangular.
        inverse = lax.rsqrt(jnp.where(unit[:, None] > 0, square, 1.0))
        return m * inverse[:, None], T * inverse


def _update_factor(
    past, C, lower: bool, T, along, outside, below, rotated: RotatedFactor | None, rounding: float
) -> Float[Array, "n n runs"]:
    """Compute the triangular factor of a block after a step whose inputs have components outside the span of all directions."""
    if C.shape[0] == C.shape[1] == 1:  # T is a length
        return jnp.sqrt((past(T, 1) + C * along) ** 2 + C**2 * outside)
    if rotated is not None and lower:
        # A keeps T triangular, so the new directions are triangular but for the axis along the input: one column to append.
        length, nonzero = jnp.sqrt(rotated.rest), rotated.rest > 0
        inverse = jnp.where(nonzero, 1 / jnp.where(nonzero, length, 1.0), 0.0)
        return append_row(past(rotated.T, 1), past(rotated.Th) * inverse + C[:, 0] * length, rounding)
    within = _update_within_span(past, C, T, along)
    orthogonal = orthogonal_increments(bartlett_factor(outside, below), C)
    return gram_schmidt(jnp.concatenate([within, orthogonal]), rounding)


def _update_within_span(past: Callable, C, T, along) -> Float[Array, "n n runs"]:
    """Compute the part of the updated directions along the old axes of the triangular factor, in one block.

    The new directions are AW + CX with old directions W and inputs X.
    """
    # The sum over inputs as a scan, whose order of summation is the same in all kernels.
    return past(T, 1) + sum_products(jnp.swapaxes(along, 0, 1)[:, :, None], jnp.swapaxes(C, 0, 1)[:, None])


class FieldFactor(NamedTuple):
    """A factor F of the covariance F F^T of the fields: it maps standard normal coordinates to student and fixed fields."""

    student: Float[Array, "p n"]
    fixed: Float[Array, "k n"]


def cholesky_factor(gram: Any) -> Any:
    """Compute the Cholesky factor of a Gram matrix: by NumPy for a NumPy array, by JAX for a JAX array."""
    return array_module(gram).linalg.cholesky(gram)


def pad_frame(B: Float[Array, "k k"], n: int) -> Float[np.ndarray, "k n"]:
    """Pad the coordinates B of the fixed directions with zeros to n dimensions."""
    return np.pad(np.asarray(B), ((0, 0), (0, n - len(B))))


def overlaps_from_coordinates(a: Scalars, S: Float[Array, "p n"], B: Float[Array, "k k"]) -> Overlaps:
    """Compute the overlaps of one run from its scalars a and the coordinates S of its units and B of the fixed directions.

    The fixed directions are zero in all but the first k of the n coordinates.
    """
    return Overlaps(a, S[:, : len(B)] @ B.T, S @ S.T)


def overlaps_of(frame: Frame, B: Float[Array, "k k"]) -> Overlaps:
    """Compute the overlaps of the trained directions from their coordinates in a frame, with the runs on the last axis."""
    M = jnp.einsum("jsR,rs->jrR", frame.m, B)
    Q = _add_outer_products((frame.m[:, None] * frame.m[None]).sum(2), frame.T)
    return Overlaps(frame.a, M, Q, frame.kept, frame.names)


def _add_outer_products(Q: Float[Array, "p p runs"], T: Float[Array, "p p runs"]) -> Float[Array, "p p runs"]:
    """Add T T^T to Q, as the sum of the outer products of the columns of T."""
    # One outer product per column: no array of shape (p, p, p, runs) is formed.
    return lax.scan(lambda Q, column: (Q + column[:, None] * column[None], None), Q, T)[0]


def frame_of(stats: Overlaps, B: Float[Array, "k k"], max_rank: int) -> Frame:
    """Factor the overlaps of a batch of runs, runs first, into coordinates of the trained directions in a frame.

    The rows of B are the fixed directions, with the Gram matrix P = B B^T; M and Q are the overlaps. Raises `BadInput` if
    Q - M P^-1 M^T is not positive semi-definite or has a rank above `max_rank`, the number of dimensions outside the span of
    the fixed directions.
    """
    M, Q = (np.asarray(leaf, float) for leaf in (stats.M, stats.Q))
    p = Q.shape[-1]
    scale = np.maximum(np.abs(Q).max(axis=(-2, -1)), 1.0)[:, None]
    m = np.linalg.solve(np.asarray(B), np.swapaxes(M, -1, -2)).swapaxes(-1, -2)
    with np.errstate(over="ignore", invalid="ignore"):
        outside = Q - m @ m.swapaxes(-1, -2)
    if not np.isfinite(outside).all():
        raise BadInput(f"the start has overlaps of {np.abs(M).max():.3g}, whose squares overflow. Make M smaller.")
    values, vectors = np.linalg.eigh(outside)
    if (values < -PSD_TOLERANCE * scale).any():
        raise BadInput(
            f"the start is not positive semi-definite: Q - M P^-1 M^T has the eigenvalue {values.min():.3g}. "
            "Make Q larger or M smaller, so that weights with these overlaps exist."
        )
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]  # largest first
    if max_rank < p and (values[:, max_rank:] > PSD_TOLERANCE * scale).any():
        raise BadInput(
            f"the start needs {p} directions outside the span of the fixed ones, but d has only {max_rank}. "
            f"Use a larger d, or a start whose Q - M P^-1 M^T has rank {max_rank}."
        )
    values = np.where(values > RANK_TOLERANCE * scale, values, 0.0)
    values[:, max_rank:] = 0.0
    # QR of the root instead of a Cholesky factorisation: it also works for singular matrices.
    root = vectors * np.sqrt(values)[:, None, :]
    upper = np.asarray(np.linalg.qr(root.swapaxes(-1, -2), mode="r"))
    # QR leaves the signs of rows open; a positive diagonal makes the factor unique.
    T = upper * np.where(np.diagonal(upper, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[:, :, None]
    move_runs_last = lambda tree: jax.tree.map(
        lambda leaf: np.ascontiguousarray(np.moveaxis(np.asarray(leaf, float), 0, -1)), tree
    )
    a, m, T, kept = move_runs_last((stats.a, m, T, stats.kept))
    return Frame(a, m, T, kept, stats.names)


@singledispatch
def project_to_cone(stats: PyTree, B: Float[np.ndarray, "k k"]) -> PyTree:
    """Project statistics to the nearest ones that some weight vectors have; types without such constraints are unchanged."""
    return stats


@project_to_cone.register
def _(stats: Overlaps, B):
    r"""Project overlaps to the nearest admissible ones with the same norms.

    Negative eigenvalues of :math:`Q - mm^\top` beyond rounding, such as from errors of an ODE solver, are set to zero; here m
    has the coordinates of the trained directions in an orthonormal frame of the fixed ones, which are the rows of B.
    """
    M, Q = np.asarray(stats.M), np.asarray(stats.Q)
    m = M @ np.linalg.inv(B).T
    inside = m @ m.swapaxes(-1, -2)
    smallest = (np.linalg.eigvalsh(Q - inside) if Q.shape[-1] > 1 else (Q - inside)[..., 0])[..., 0]
    out = (smallest < -PROJECTION_TOLERANCE * np.maximum(np.abs(Q).max((-2, -1)), 1.0))[..., None, None]
    if not out.any():
        return stats
    values, vectors = np.linalg.eigh(Q - inside)
    near = inside + (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)
    # Setting eigenvalues to zero makes units longer; rescaling restores the diagonal of Q.
    norm, new = (np.maximum(np.diagonal(each, axis1=-2, axis2=-1), 0.0) for each in (Q, near))
    scale = np.sqrt(np.divide(norm, new, out=np.zeros_like(new), where=new > 0))[..., None]
    M = np.where(out, scale * M, M)
    Q = np.where(out, scale * near * scale.swapaxes(-1, -2), Q)
    return eqx.tree_at(lambda stats: (stats.M, stats.Q), stats, (M, Q))


def split_by_frame(
    M: Float[Array, "p k *n"], Q: Float[Array, "p p *n"], B: Float[Array, "k k"]
) -> tuple[Float[Array, "p k *n"], Float[Array, "p p *n"]]:
    """Split overlaps into coordinates along the fixed directions and the Gram matrix of the orthogonal components.

    The coordinates m satisfy M = m B^T, where the rows of B are the fixed directions; the Gram matrix is S = Q - m m^T.
    """
    p, k, *batch = M.shape
    m = solve_triangular(B, jnp.moveaxis(M, 1, 0).reshape(k, -1), lower=True).reshape(k, p, *batch)
    m = jnp.moveaxis(m, 0, 1)
    return m, Q - (m[:, None] * m[None]).sum(2)


def factor_fields(stats: Overlaps, B: Float[Array, "k k"]) -> FieldFactor:
    """Factor the Gram matrix of all directions, differentiably, also if it is singular or slightly indefinite.

    The overlaps may have any trailing axes.
    """
    p, k, *batch = stats.M.shape
    m, S = split_by_frame(stats.M.reshape(p, k, -1), stats.Q.reshape(p, p, -1), B)
    T = cholesky_columns(S)
    student = jnp.concatenate([m, jnp.swapaxes(T, 0, 1)], axis=1).reshape(p, k + p, *batch)
    fixed = jnp.concatenate([B, jnp.zeros((k, p))], axis=1).reshape(k, k + p, *(1 for _ in batch))
    return FieldFactor(student, jnp.broadcast_to(fixed, (k, k + p, *batch)))


def make_admissible(stats: Overlaps, B: Float[Array, "k k"], unit: int = 0) -> Overlaps:
    """Replace overlaps that no weight vectors have by admissible ones, with norm 1 for the first `unit` trained directions.

    Runs are on the last axis. Admissible overlaps are unchanged up to rounding. For others, negative pivots of Q - m m^T are
    set to zero, where m has the coordinates of the trained directions along those of the fixed ones (rows of B).
    """
    _, S = split_by_frame(stats.M, stats.Q, B)
    # Q - S is the part inside the frame; its complement is rebuilt from a factor, and so positive semi-definite.
    M = stats.M
    Q = _add_outer_products(stats.Q - S, cholesky_columns(S, jnp.diagonal(stats.Q, axis1=0, axis2=1).T))
    if unit:
        norms = jnp.sqrt(jnp.diagonal(Q, axis1=0, axis2=1).T).at[unit:].set(1.0)
        M, Q = M / norms[:, None], Q / (norms[:, None] * norms[None])
    return Overlaps(stats.a, M, Q, stats.kept, stats.names)


def cholesky_columns(S: Float[Array, "p p n"], scale: Float[Array, "p n"] | float = 1.0) -> Float[Array, "p p n"]:
    """Compute the Cholesky factors, by columns, of positive semi-definite matrices S[:, :, i].

    A pivot that is negative, or rounding relative to the `scale` of its row, gives a column of zeros. Entries are clipped to
    the Cauchy-Schwarz bound, so that slightly indefinite matrices, by rounding or discretisation, have bounded factors.
    """
    tolerance = jnp.broadcast_to(RANK_TOLERANCE * jnp.asarray(scale), S.shape[1:])

    def eliminate_column(S, row):
        j, tolerance = row
        pivot = lax.dynamic_index_in_dim(S, j, 0, keepdims=False)
        head = lax.dynamic_index_in_dim(pivot, j, 0, keepdims=False)
        nonzero = head > tolerance
        inverse = jnp.where(nonzero, lax.rsqrt(jnp.where(nonzero, head, 1.0)), 0.0)
        # |S_ij|^2 <= S_ii S_jj bounds entry i of the column by the square root of what is left of the diagonal.
        diagonal = jnp.diagonal(S, axis1=0, axis2=1).T
        positive = diagonal > 0
        bound = jnp.where(positive, jnp.sqrt(jnp.where(positive, diagonal, 1.0)), 0.0)
        column = jnp.clip(pivot * inverse, -bound, bound)
        return S - column[:, None] * column[None], column

    return lax.scan(eliminate_column, S, (jnp.arange(S.shape[0]), tolerance))[1]
