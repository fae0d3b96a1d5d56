"""The frame: overlaps there and back, and the update of the triangular factor."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as some

import sgdlimits as sl
from sgdlimits.statistics import frame
from sgdlimits.statistics.frame import cholesky_columns
from sgdlimits.statistics.trees import move_runs_first, move_runs_last
from sgdlimits.statistics.triangular import append_row, rotate_factor

# Each shape is compiled as one function, not operation by operation.
factor_fields, rotate_factor, append_row = (
    eqx.filter_jit(function) for function in (frame.factor_fields, rotate_factor, append_row)
)
overlaps_of = eqx.filter_jit(lambda one, B: move_runs_first(frame.overlaps_of(one, B)))

shapes = some.tuples(some.integers(1, 6), some.integers(1, 3), some.integers(0, 8), some.integers(0, 10**6))


def weights_of(p, k, extra, seed):
    """Random weights in R^(k + extra), so that Q - M P^-1 M^T has rank min(p, extra), and a random frame B."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(k, k))
    return rng.normal(size=(p, k + extra)), np.linalg.cholesky(A @ A.T + 0.1 * np.eye(k))


@given(shapes)
@settings(max_examples=12, deadline=None)
def test_frame_gives_the_overlaps_back_also_where_they_are_singular(shape):
    p, k, extra, _seed = shape
    W, B = weights_of(*shape)
    stats = sl.Overlaps(np.ones((1, p)), (W[:, :k] @ B.T)[None], (W @ W.T)[None])
    framed = frame.frame_of(stats, B, min(p, extra))
    back = overlaps_of(framed, B)
    np.testing.assert_allclose(back.M, stats.M, atol=1e-9 * max(1, np.abs(stats.M).max()))
    np.testing.assert_allclose(back.Q, stats.Q, atol=1e-9 * max(1, np.abs(stats.Q).max()))
    T = np.asarray(framed.T)[:, :, 0].T
    assert (np.triu(T, 1) == 0).all()
    assert (np.diagonal(T) >= 0).all()
    assert (T[:, min(p, extra) :] == 0).all()


@given(shapes)
@settings(max_examples=12, deadline=None)
def test_two_sweeps_make_the_triangular_factor_of_the_updated_weights(shape):
    p, _, extra, seed = shape
    rng = np.random.default_rng(seed)
    T = np.tril(rng.normal(size=(p, p)))
    T[:, min(p, extra + 1) :] = 0.0
    h, c, outside = rng.normal(size=p), rng.normal(size=p), float(rng.chisquare(3)) * (seed % 3 > 0)
    h[min(p, extra + 1) :] = 0.0
    turned, Th, rest = rotate_factor(T.T[:, :, None], h[:, None], np.array([outside]))
    np.testing.assert_allclose(Th[:, 0], T @ h, atol=1e-12)
    length = float(np.sqrt(rest[0]))
    new = append_row(turned, np.asarray(Th) / length + c[:, None] * length) if length else turned
    factor = np.asarray(new)[:, :, 0].T
    wide = np.concatenate([T + np.outer(c, h), np.sqrt(outside) * c[:, None]], axis=1)
    np.testing.assert_allclose(factor @ factor.T, wide @ wide.T, atol=1e-11 * max(1, np.abs(wide).max() ** 2))
    assert np.abs(np.triu(factor, 1)).max(initial=0) < 1e-12


@given(shapes)
@settings(max_examples=12, deadline=None)
def test_loading_is_a_root_of_omega_and_safe_where_rounding_made_it_indefinite(shape):
    p, k, _extra, _seed = shape
    W, B = weights_of(*shape)
    stats = sl.Overlaps(np.ones(p), W[:, :k] @ B.T, W @ W.T - 1e-15 * np.eye(p))
    student, fixed = factor_fields(stats, B)
    F = np.concatenate([student, fixed])
    omega = np.block([[stats.Q, stats.M], [stats.M.T, B @ B.T]])
    np.testing.assert_allclose(F @ F.T, omega, atol=1e-6 * max(1, np.abs(omega).max()))
    assert np.isfinite(F).all()


def test_cholesky_of_an_indefinite_matrix_stays_bounded():
    S = jnp.asarray([[1e-18, 1e-3], [1e-3, 1.0]])[:, :, None]
    assert np.abs(cholesky_columns(S)).max() <= 1.0


@pytest.mark.parametrize("seed", range(3))
def test_batches_move_their_axis_there_and_back(seed):
    rng = np.random.default_rng(seed)
    stats = sl.Overlaps(rng.normal(size=(5, 2)), rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 2)))
    back = move_runs_first(move_runs_last(stats))
    for name in ("a", "M", "Q"):
        np.testing.assert_array_equal(getattr(back, name), getattr(stats, name))
