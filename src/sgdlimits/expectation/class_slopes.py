r"""The Hessian of the risk of classes that units with a kink learn: a grid split at the kinks, and the inputs on each kink.

With :math:`f = \sum_jb_js(\lambda_j)` and slopes :math:`s' = \alpha` below zero and :math:`\beta` above,

.. math:: l_{ji} = l''(f)\,b_jb_i\,s'(\lambda_j)s'(\lambda_i) + \delta_{ji}\,l'(f)\,b_j\,(\beta - \alpha)\,\delta(\lambda_j).

The first term has jumps, where the grid of `class_inputs` is split. The second is a mean over the inputs with
:math:`\lambda_j = 0`, times the density of that field there. Given the fields of the units, the input has the mean
:math:`\bar x + S^+(\lambda - S\bar x)` and, off the span of the units, the variance :math:`\sigma^2`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.expectation.class_inputs import Inputs, at_means, on_grid
from sgdlimits.gaussian import split_line
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import cholesky_columns
from sgdlimits.statistics.overlaps import Overlaps

SAME_DIRECTION = 1e-7
FAR = 1e3


def kinked_class_hessian(model: Model, a: np.ndarray, S: Float[np.ndarray, "p n"], order: int) -> tuple[np.ndarray, np.ndarray]:
    """The Hessian within the frame, shape (p, n, p, n), and along each direction outside, shape (p, p)."""
    inverse = np.linalg.pinv(S, rcond=SAME_DIRECTION)
    span, outside = _hessian(model, jnp.asarray(a), jnp.asarray(S), jnp.asarray(inverse), order)
    return np.asarray(span), np.asarray(outside)


@eqx.filter_jit
def _hessian(model: Model, a: Array, S: Array, inverse: Array, order: int) -> tuple[Array, Array]:
    unit: Any = model.network.activation
    k, p, variance = model.teachers, len(a), model.data.sigma**2
    stats = Overlaps(a, S[:, :k] @ model.frame.T, S @ S.T)
    means = model.data.centre(model.frame, jnp.arange(model.data.classes))
    centres = jnp.zeros((S.shape[1], model.data.classes)).at[:k].set(means)
    rest = variance * (jnp.eye(S.shape[1]) - inverse @ S)

    def spread(weights: Float[Array, "m n"], inputs: Inputs) -> Float[Array, "m s t"]:
        """The mean of x x^T with these weights."""
        centre = centres[:, inputs.c]
        x = centre + inverse @ (inputs.fields - S @ centre)
        return jnp.einsum("mn,sn,tn->mst", weights, x, x) + weights.sum(1)[:, None, None] * rest

    def at_kink(j):
        inputs = _on_kink(model, stats, order, j)
        weights = (inputs.weights * inputs.slope(model, a))[None]
        return spread(weights, inputs)[0], weights.sum()

    inputs = on_grid(model, stats, order)
    loss = lambda fields, fixed, c: model.sample_loss(fields, fixed, a, 0.0, c)
    second = inputs.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(inputs.fields, inputs.fixed, inputs.c)
    span = spread(second.reshape(p * p, -1), inputs).reshape(p, p, *rest.shape)
    blocks, means = jax.lax.map(at_kink, jnp.arange(p))
    step, own = model.network.factor * a * (unit.right - unit.left), jnp.arange(p)
    span = span.at[own, own].add(step[:, None, None] * blocks)
    return jnp.swapaxes(span, 1, 2), variance * (second.sum(2) + jnp.diag(step * means))


def _on_kink(model: Model, stats: Overlaps, order: int, j: Int[Array, ""]) -> Inputs:
    """Inputs with the field of unit j at zero. Their weights sum to the density of that field there."""
    p, centre = len(stats.a), at_means(model, stats.M)
    turn = (jnp.arange(p) + j) % p
    root = model.data.sigma * cholesky_columns(stats.Q[turn][:, turn][..., None])[:, :, 0].T
    z = -centre.fields[j] / root[0, 0]
    rows = centre.fields[turn] + root[:, :1] * z
    weights = centre.weights * jax.scipy.stats.norm.pdf(z) / root[0, 0]
    for i in range(1, p):
        moves = root[i, i] > 0
        kink = jnp.where(moves, -rows[i] / jnp.where(moves, root[i, i], 1.0), jnp.where(rows[i] > 0, -FAR, FAR))
        points, more = split_line(kink, order)
        rows = (rows[:, None] + root[:, i, None, None] * points).reshape(p, -1)
        weights = (more * weights).ravel()
    fields = jnp.zeros_like(rows).at[turn].set(rows)
    copies = weights.size // centre.c.size
    return Inputs(fields, jnp.tile(centre.fixed, copies), weights, jnp.tile(centre.c, copies))
