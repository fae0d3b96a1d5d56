r"""Correction in 1/d to the drift, for inputs with variances by block or class, and mean zero.

In a step of one sample, the Gram matrix of the trained directions within block b grows in proportion to
:math:`E[GG^\top|x_b|^2]`. Its limit has :math:`d_bv_b` in place of the squared length :math:`|x_b|^2`. As the latter is a sum
of :math:`d_b` squares of normal variates of variance :math:`v_b`, the difference is a derivative in that variance,

.. math:: E[GG^\top(|x_b|^2 - d_bv_b)] = 2v_b^2\,\frac{\partial}{\partial v_b}E[GG^\top] .
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm import OnePassSGD
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Blocks
from sgdlimits.problem.blocks import class_parts
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps


def check_expansion(problem: ProjectionProblem) -> None:
    """Raise `BadInput` if the inputs have several variances and the expansion in 1/d does not support the problem."""
    if not isinstance(problem.data, Blocks):
        return
    if not problem.data.centred or problem.network.mask_rate is not None:
        raise BadInput("the expansion in 1/d with variances by block or class needs mean zero and no dropout. Use Chain(d).")
    if problem.algorithm.sphere:
        raise BadInput(
            "the expansion in 1/d with variances by block or class does not support weights on the sphere. Use Chain(d)."
        )


def block_drift_correction(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, " n"]:
    """Return the 1/d correction to the drift of one-pass SGD on inputs with variances by block or class."""
    sgd = problem.algorithm
    assert isinstance(sgd, OnePassSGD)
    n, lr, ridge = sgd.batch, sgd.lr, sgd.lr * sgd.ridge
    parts = class_parts(problem.model, problem.expectation, stats)
    spread = [(weight, block.split_by_block(moments, mean)) for weight, (block, moments, mean) in parts]
    field, fixed = (
        sum(weight * getattr(each, name) for weight, each in spread) for name in ("gradient_field", "gradient_fixed")
    )
    full = stats if stats.has_blocks else Overlaps(stats.a, stats.M[None], stats.Q[None])
    gram = jnp.reshape(problem.model.gram, (len(full.M), problem.model.teachers, problem.model.teachers))
    across = jnp.swapaxes(full.M, 1, 2)
    omega = jnp.concatenate([jnp.concatenate([full.Q, full.M], 2), jnp.concatenate([across, gram], 2)], 1)
    both = jnp.concatenate([field, fixed], axis=2)
    # the squared norm of the mean gradient in a block; omega is singular where directions are dependent
    square = both @ jnp.linalg.pinv(omega, hermitian=True) @ jnp.swapaxes(both, 1, 2)
    push = field + jnp.swapaxes(field, 1, 2)
    change = (lr / n) ** 2 * (_excess_length(problem, stats) + (n - 1) * square)
    change = change + ridge**2 / n * full.Q + ridge * lr / n * push
    Q = change if stats.has_blocks else change[0]
    zeros = jax.tree.map(jnp.zeros_like, stats)
    return problem.vector(Overlaps(zeros.a, zeros.M, Q, zeros.kept, stats.names))


def _excess_length(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, "blocks p p"]:
    """Return, by block, the gradients' second moment weighted by the excess of the squared length of the input in the block."""
    model, data = problem.model, problem.data
    assert isinstance(data, Blocks)

    def second_moment(variance):
        own = eqx.tree_at(lambda model: model.data.variance, model, variance)
        parts: Any = class_parts(own, problem.expectation, stats)
        return sum(weight * moments.gradient_gradient for weight, (_, moments, _) in parts)

    variance = jnp.asarray(data.variance)
    rates = 2 * variance**2
    along = lambda b: jax.jvp(second_moment, (variance,), (rates * (jnp.arange(variance.shape[1]) == b),))[1]
    return jax.vmap(along)(jnp.arange(variance.shape[1]))
