"""The frame carries inputs of other kinds: blocks of variances, tokens, samples that recur. Each against SGD in R^d."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdlimits.statistics.frame import Frame, StepCoordinates, overlaps_of

ONE = (lambda rows, axis=0: rows, True, True)
"""A step that adds inputs to the directions, one of which are outside of all."""


def framed(W, E, X):
    """Weights, fixed directions and inputs of one block of R^d as (m, T, B) and (inside, along, outside, below)."""
    k, V = len(E), np.concatenate([E, W])
    basis, upper = np.linalg.qr(V.T)
    sign = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    rows, x = upper.T * sign, X @ (basis * sign)
    rest = X - x @ (basis * sign).T
    A = np.linalg.cholesky(rest @ rest.T)
    inputs = x[:, :k].T, x[:, k:].T, np.diagonal(A) ** 2, A[np.tril_indices(len(A), -1)]
    return (rows[k:, :k], rows[k:, k:].T, rows[:k, :k]), inputs


def stacked(parts):
    """Arrays of each block with the blocks first and one run last; those of one block have no axis for it."""
    return [np.stack(each)[..., None] if len(each) > 1 else each[0][..., None] for each in zip(*parts, strict=True)]


def push(fields, fixed):
    """Minus the gradient of a loss that couples all inputs of a step, as attention couples tokens."""
    mix = lambda own: (jax.nn.softmax(own.sum(0)) * jnp.tanh(own)).sum()
    return -jax.grad(lambda fields: (mix(fields) - mix(fixed)) ** 2)(fields)


@pytest.mark.parametrize(("sizes", "variances", "tokens"), [((40,), (1.0,), 3), ((12, 30, 25), (2.0, 0.5, 0.1), 1)])
def test_frame_follows_sgd_in_r_d_with_tokens_and_with_blocks(sizes, variances, tokens):
    rng, (p, k, d) = np.random.default_rng(0), (3, 2, sum(sizes))
    where = [slice(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    W, E = rng.normal(size=(p, d)), rng.normal(size=(k, d))
    for _ in range(4):
        X = rng.normal(size=(tokens, d)) * np.sqrt(np.repeat(variances, sizes))
        directions, inputs = zip(*(framed(W[:, s], E[:, s], X[:, s]) for s in where), strict=True)
        m, T, B = stacked(directions)
        x = StepCoordinates(*stacked(inputs), z=np.zeros((1, 1)), c=np.zeros((1, 1), int))
        frame = Frame(np.ones((p, 1)), m, T)
        projected = frame.project(x, B)
        np.testing.assert_allclose(projected.fields[:, :, 0], W @ X.T, atol=1e-12 * d)
        C = push(projected.fields[:, :, 0], projected.fixed[:, :, 0])
        m, T = projected.update(ONE[0], C[:, :, None] / d, *ONE[1:])
        W = W + C / d @ X
        m, T = (leaf[..., 0] if len(sizes) > 1 else leaf[None, ..., 0] for leaf in (m, T))
        for s, m_b, T_b in zip(where, m, T, strict=True):
            np.testing.assert_allclose(m_b @ m_b.T + T_b.T @ T_b, W[:, s] @ W[:, s].T, atol=1e-12 * d)


def test_frame_follows_sgd_on_samples_that_recur_at_a_cost_without_d():
    """The samples are further fixed directions of each run: their rows of a factor, drawn once, are the inputs."""
    (p, k, n, d, runs), rng = (2, 1, 6, 300, 2), np.random.default_rng(1)
    W, E, X = (rng.normal(size=(runs, rows, d)) for rows in (p, k, n))
    V = np.concatenate([E, X, W], axis=1)
    rows = np.moveaxis(np.linalg.cholesky(V @ V.swapaxes(1, 2)), 0, -1)
    B, m, T = rows[: k + n, : k + n], rows[k + n :, : k + n], rows[k + n :, k + n :].swapaxes(0, 1)
    frame = Frame(np.ones((p, runs)), m, T)
    for step in range(3 * n):
        i = step % n
        x = StepCoordinates(B[k + i][:, None], *(np.zeros((size, runs)) for size in (0, 0, 0)), np.zeros((1, runs)), 0)
        x = x._replace(frame_coordinates=np.zeros((p, 1, runs)), squared_diagonal=np.zeros((1, runs)))
        projected = frame.project(x, B[:k])
        C = jax.vmap(push, -1, -1)(projected.fields, projected.fixed)
        frame = Frame(frame.a, *projected.update(ONE[0], 40 * C / d, True, False))
        for run in range(runs):
            x_i = X[run, i]
            W[run] += 40 / d * np.asarray(push((W[run] @ x_i)[:, None], (E[run] @ x_i)[:, None])) @ x_i[None]
    back = overlaps_of(frame, np.eye(k + n))
    np.testing.assert_allclose(np.moveaxis(back.Q, -1, 0), W @ W.swapaxes(1, 2), rtol=1e-10)
