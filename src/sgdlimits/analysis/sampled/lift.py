"""Search for weights with given statistics near other weights, by damped Gauss-Newton steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.jaxtools import jit_bound

MAX_STEPS = 60
"""Largest number of Gauss-Newton steps."""
TRIAL_STEP_FRACTIONS = 0.5 ** np.arange(8)
"""Fractions of a Gauss-Newton step that are tried, the largest first."""
TARGET_TOLERANCE = 1e-9
"""Largest error, relative to 1 plus the size of the statistics, at which given statistics count as reached."""
RANK_TOLERANCE = 1e-12
"""Fraction of the largest singular value up to which singular values count as zero."""


def find_weights_near(user: UserLoss, points: Any, targets: Any) -> tuple[Float[np.ndarray, "P n"], Bool[np.ndarray, " P"]]:
    """Move rows of weights until they have given statistics; return the moved rows, and a mask of rows that succeeded.

    `points` has the P rows of n weights, shape (P, n); `targets` has the k statistics for each, shape (P, k).
    """
    rows, errors = jit_bound(_find_all_weights, user, fast_compile=True)(
        jnp.asarray(points, float), jnp.asarray(targets, float)
    )
    return np.asarray(rows), np.asarray(errors) < TARGET_TOLERANCE


def _find_all_weights(user: UserLoss, points: Any, targets: Any):
    return jax.vmap(lambda w, target: _find_weights_of_target(user, w, target))(points, targets)


def find_weights_differentiably(user: UserLoss, w: Float[Array, " n"], target: Float[Array, " k"]) -> Float[Array, " n"]:
    """Return weights with the statistics `target`, found by a search from w, differentiable in `target`; NaN if it fails."""
    w, error = _find_weights_of_target(user, w, lax.stop_gradient(target))
    w = lax.stop_gradient(w)
    J = jax.jacrev(user.u)(w)
    return jnp.where(error < TARGET_TOLERANCE, w + jnp.linalg.pinv(J, rtol=RANK_TOLERANCE) @ (target - user.u(w)), jnp.nan)


def _find_weights_of_target(user: UserLoss, w: Float[Array, " n"], target: Float[Array, " k"]):
    scale = 1 + jnp.abs(target)
    missing = lambda w: (target - user.u(w)) / scale
    size = lambda w: jnp.nan_to_num(jnp.abs(missing(w)).max(), nan=jnp.inf, posinf=jnp.inf)

    def step(carry):
        w, error, count = carry
        J = jax.jacrev(lambda w: user.u(w) / scale)(w)
        gram = J @ J.T
        move = J.T @ (jnp.linalg.pinv(gram, rtol=RANK_TOLERANCE, hermitian=True) @ missing(w))
        tried = w + jnp.asarray(TRIAL_STEP_FRACTIONS)[:, None] * move
        errors = jax.vmap(size)(tried)
        best = jnp.argmin(errors)
        better = errors[best] < error
        return (
            jnp.where(better, tried[best], w),
            jnp.where(better, errors[best], error),
            jnp.where(better, count + 1, MAX_STEPS),
        )

    w, error, _ = lax.while_loop(lambda c: (c[1] > TARGET_TOLERANCE / 100) & (c[2] < MAX_STEPS), step, (w, size(w), 0))
    return w, error
