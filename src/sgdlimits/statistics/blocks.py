r"""Overlaps of inputs with blocks of variances: coordinates, factors and checks, with blocks on the first axis of a run.

In block b the fixed directions have the Gram matrix :math:`P_b = B_bB_b^\top`, which is singular where they have no
components. They are combinations, with coefficients :math:`B_b`, of k orthonormal axes of the block, along which the trained
directions have coordinates m with :math:`M_b = mB_b^\top`. Axes along which no fixed direction has a part are arbitrary.

A matrix B of two axes stands for statistics without a block axis, to which each function applies as well.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.kernel.random.transform import array_module
from sgdlimits.statistics.frame import (
    FieldFactor,
    Frame,
    cholesky_factor,
    factor_fields,
    frame_of,
    make_admissible,
    overlaps_of,
    project_to_cone,
)
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import as_floats

MIN_SHARE = 1e-12
"""Relative size below which eigenvalues of a Gram matrix count as zero, in each block."""


def block_factor(gram: Any) -> Any:
    """Return B with `gram` = B Bᵀ: the Cholesky factor of one matrix, or a possibly singular root for each block."""
    if np.ndim(gram) == 2:
        return cholesky_factor(gram)
    values, vectors = array_module(gram).linalg.eigh(gram)
    return vectors * array_module(gram).sqrt(values.clip(0.0))[:, None, :]


def inverse_factor(B: Any) -> Any:
    """Compute the pseudo-inverse of the factor B of the Gram matrix P = B Bᵀ of each block."""
    return array_module(B).linalg.pinv(B, MIN_SHARE**0.5)


def _to_axes(stats: Overlaps, B: Any, move_runs_first: bool) -> Overlaps:
    """Convert overlaps with fixed directions to coordinates along orthonormal axes in each block."""
    indices = "...bnr,bsr->...bns" if move_runs_first else "bnr...,bsr->bns..."
    return _replace_overlaps(stats, array_module(stats.M).einsum(indices, stats.M, inverse_factor(B)), stats.Q)


def _from_axes(stats: Overlaps, B: Any, move_runs_first: bool) -> Overlaps:
    """Convert coordinates along orthonormal axes in each block to overlaps with fixed directions; invert `_to_axes`."""
    indices = "...bns,brs->...bnr" if move_runs_first else "bns...,brs->bnr..."
    return _replace_overlaps(stats, array_module(stats.M).einsum(indices, stats.M, B), stats.Q)


def _replace_overlaps(stats: Overlaps, M: Any, Q: Any) -> Overlaps:
    """Return a copy of statistics whose overlaps are replaced by M and Q."""
    return Overlaps(stats.a, M, Q, stats.kept, stats.names)


def frame_by_block(stats: Overlaps, B: Float[Array, "*blocks k k"], max_ranks: Any) -> Frame:
    """Factor overlaps of a batch of runs into coordinates of the trained directions in an orthonormal basis of each block.

    In each block, B has the coordinates of the fixed directions, and `max_ranks` is the number of dimensions outside their
    span. Raises `BadInput` if no weights have these overlaps.
    """
    if np.ndim(B) == 2:
        return frame_of(stats, B, max_ranks)
    inside, k = _to_axes(jax.tree.map(np.asarray, stats), np.asarray(B), move_runs_first=True), B.shape[-1]
    back = _from_axes(inside, np.asarray(B), move_runs_first=True).M
    if not np.allclose(back, stats.M, atol=1e-9 * max(1.0, float(np.abs(stats.M).max()))):
        raise BadInput(
            "the start has nonzero overlaps M in a block of coordinates in which the fixed directions are zero. "
            "Set M to zero in this block, or give another gram=."
        )
    one: Any = np.eye(k)
    frames = [
        frame_of(
            _replace_overlaps(stats, _use_free_axes(inside.M[:, b], inside.Q[:, b], B[b], rank), inside.Q[:, b]), one, rank
        )
        for b, rank in enumerate(np.ravel(max_ranks))
    ]
    m, T = (np.stack([np.asarray(getattr(each, name)) for each in frames]) for name in ("m", "T"))
    return Frame(frames[0].a, as_floats(m), as_floats(T), frames[0].kept, stats.names)


def _use_free_axes(m: Any, Q: Any, B: Float[Array, "k k"], max_rank: int) -> Float[np.ndarray, "runs n k"]:
    """Return coordinates m of which those along axes without fixed directions hold what the rest of a small block cannot.

    In a block of few dimensions the trained directions need these axes, too: their remainder Q - m m^T may have a rank of up to
    `max_rank`, the number of dimensions outside the k axes.
    """
    squares = np.square(np.asarray(B)).sum(0)
    free = np.flatnonzero(squares <= MIN_SHARE * max(squares.max(), np.finfo(float).tiny))
    if max_rank >= m.shape[1] or not free.size:
        return m
    values, vectors = np.linalg.eigh(Q - m @ m.swapaxes(-1, -2))
    used = free[-min(free.size, m.shape[1]) :]
    m = m.copy()
    m[:, :, used] = (vectors * np.sqrt(values.clip(0.0))[:, None, :])[:, :, -used.size :]
    return m


def overlaps_by_block(frame: Frame, B: Float[Array, "*blocks k k"]) -> Overlaps:
    """Compute the overlaps in each block of coordinates from factors of trained directions (`frame`) and fixed ones (B)."""
    if frame.blocks is None:
        return overlaps_of(frame, B)
    M, Q = frame.map_blocks(lambda m, T, B: (lambda o: (o.M, o.Q))(overlaps_of(Frame(frame.a, m, T, {}, frame.names), B)), B)
    return Overlaps(frame.a, M, Q, frame.kept, frame.names)


def admissible_by_block(stats: Overlaps, B: Float[Array, "*blocks k k"], unit: int = 0) -> Overlaps:
    """Replace overlaps that no weights have by overlaps that some have, with norm 1 for the first `unit` trained directions.

    The runs are on the last axis, and B has the coordinates of the fixed directions in each block.
    """
    if jnp.ndim(B) == 2:
        return make_admissible(stats, B, unit)
    inside, one = _to_axes(stats, B, move_runs_first=False), jnp.eye(B.shape[-1])
    each = jax.vmap(lambda M, Q: (lambda o: (o.M, o.Q))(make_admissible(_replace_overlaps(stats, M, Q), one)))
    M, Q = each(inside.M, inside.Q)
    if unit:
        norms = jnp.sqrt(jnp.einsum("bjj...->j...", Q)).at[unit:].set(1.0)
        M, Q = M / norms[:, None], Q / (norms[:, None] * norms[None])
    return _from_axes(_replace_overlaps(stats, M, Q), B, move_runs_first=False)


def block_field_factors(stats: Overlaps, B: Float[Array, "blocks k k"]) -> FieldFactor:
    """Factor the Gram matrix of all directions in each block, with the runs on the last axis."""
    inside, one = _to_axes(stats, B, move_runs_first=False), jnp.eye(B.shape[-1])
    student = jax.vmap(lambda M, Q: factor_fields(_replace_overlaps(stats, M, Q), one).student)(inside.M, inside.Q)
    fixed = jnp.pad(B, ((0, 0), (0, 0), (0, student.shape[2] - B.shape[2])))
    return FieldFactor(student, jnp.broadcast_to(fixed[..., None], (*fixed.shape, student.shape[-1])))


@singledispatch
def cone_by_block(stats: PyTree, B: Float[np.ndarray, "*blocks k k"]) -> PyTree:
    """Project statistics, block by block, to the nearest statistics that some weights have; other types are unchanged."""
    return project_to_cone(stats, B)


@cone_by_block.register
def _(stats: Overlaps, B):
    if np.ndim(B) == 2:
        return project_to_cone(stats, B)
    one, inside = np.eye(B.shape[-1]), _to_axes(jax.tree.map(np.asarray, stats), B, move_runs_first=True)
    given = [_replace_overlaps(stats, inside.M[..., b, :, :], inside.Q[..., b, :, :]) for b in range(len(B))]
    near = [project_to_cone(each, one) for each in given]
    if all(new is old for new, old in zip(near, given, strict=True)):
        return stats
    M, Q = (np.stack([np.asarray(getattr(each, name)) for each in near], axis=-3) for name in "MQ")
    return _from_axes(_replace_overlaps(stats, M, Q), B, move_runs_first=True)
