r"""The limit of large d for inputs with variances by block or class.

Given the class c, the fields :math:`\lambda_b` of all directions within block b have the means :math:`\mu_b` and the covariance
:math:`v_{cb}\Omega_b`, with the variance :math:`v_{cb}` of the inputs and the Gram matrix :math:`\Omega_b` of the directions.
The sums of the fields over blocks, the total fields :math:`\lambda`, have the mean :math:`\mu` and the covariance :math:`C_c =
\sum_b v_{cb}\Omega_b`. The gradient G depends on the total fields only, so that Gaussian conditioning gives its products with
the fields of each block,

.. math:: E[G\lambda_b^\top] = E[G]\mu_b^\top + E[G(\lambda - \mu)^\top]\, C_c^+\, v_{cb}\Omega_b ,

from the moments of a problem without blocks. A step adds :math:`\text{lr}^2 s_b v_{cb} E[GG^\top]` to the Gram matrix of
block b, which has the share :math:`s_b` of the dimensions.

With input noise of variance :math:`\tau^2` a step sees the fields of the noisy input, and the label the fixed fields of the
clean one. Then :math:`v_{cb} + \tau^2` replaces :math:`v_{cb}` in the covariances among the fields that the step sees, but not
in those with the fields that the label sees.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.limit import free_step_increments, project_out_norms, step_rates
from sgdlimits.inputs.blocks import Blocks
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of
from sgdlimits.statistics.products import Moments


class BlockMoments(NamedTuple):
    """Coefficients that convert moments of a class's total fields (sums over blocks of coordinates) to those in each block.

    Parameters
    ----------
    variance : variance of the inputs of the class in each block, with input noise
    shares : fraction of the dimensions in each block
    coefficients : regression coefficients of the fields in each block, trained directions first, on the centred total fields
    rest : covariance of the fields in the blocks given the total fields
    means : means of the fields of all directions in each block, and of the total fields; None if all means are zero
    """

    variance: Float[Array, " blocks"]
    shares: Float[np.ndarray, " blocks"]
    coefficients: Float[Array, "blocks n+k p+k"]
    rest: Float[Array, "blocks n+k blocks n+k"]
    means: tuple[Float[Array, "blocks n+k"], Float[Array, " p+k"]] | None

    @classmethod
    def for_class(cls, inputs: Blocks, stats: Overlaps, gram: Float[Array, "blocks k k"], i: int | None) -> BlockMoments:
        """Compute the `BlockMoments` of class i, or of all classes if i is None, from statistics with an axis of blocks.

        `gram` is the Gram matrix of the fixed directions in each block.
        """
        n, p, v = stats.M.shape[1], stats.width, inputs.variances(i)
        across = jnp.swapaxes(stats.M, 1, 2)
        omega = jnp.concatenate([jnp.concatenate([stats.Q, stats.M], axis=2), jnp.concatenate([across, gram], axis=2)], axis=1)
        at = np.r_[np.arange(n)[rows_of(stats.names, STUDENT, p)], np.arange(n, n + gram.shape[-1])]
        # Labels are those of clean inputs: of the total fields, only those of students contain the input noise.
        noisy, of_student = v + inputs.noise_variance, np.arange(len(at)) < p
        own = noisy[:, None, None] * omega
        cross = jnp.where(of_student, noisy[:, None], v[:, None])[:, None] * omega[:, :, at]
        both = jnp.where(of_student[:, None] & of_student, noisy[:, None, None], v[:, None, None])
        total = (both * omega[:, at][:, :, at]).sum(0)
        # The pseudo-inverse, since students may coincide: the fields of a block vary only where the total ones do.
        coefficients = cross @ jnp.linalg.pinv(total, hermitian=True)
        explained = jnp.einsum("bim,cjm->bicj", coefficients, cross)
        same = jnp.eye(len(own))[:, None, :, None]
        means = None
        if inputs.means is not None and i is not None:
            each = jnp.concatenate([stats.M, gram], axis=1) @ inputs.means[i]
            means = each, each[:, at].sum(0)
        return cls(noisy, np.asarray(inputs.shares), coefficients, same * own[:, :, None] - explained, means)

    def split_by_block(self, moments: Moments, mean_gradient: Any) -> Moments:
        """Convert products of gradients and total fields to products with the fields in each block, on a new first axis.

        Products of gradients are multiplied by the variance and the share of each block. `mean_gradient`, the
        mean of the gradient in the total fields, multiplies the mean fields; trailing axes of samples are kept.
        """
        with_fields = jnp.concatenate([moments.gradient_field, moments.gradient_fixed], axis=1)
        if self.means is not None:
            each, total = self.means
            with_fields = with_fields - jnp.einsum("j...,m->jm...", mean_gradient, total)
        by_block = jnp.einsum("jm...,bim->bji...", with_fields, self.coefficients)
        if self.means is not None:
            by_block = by_block + jnp.einsum("j...,bi->bji...", mean_gradient, each)
        n = by_block.shape[2] - moments.gradient_fixed.shape[1]
        length = self.variance * self.shares
        both = length.reshape(-1, *(1 for _ in moments.gradient_gradient.shape)) * moments.gradient_gradient
        return moments._replace(gradient_fixed=by_block[:, :, n:], gradient_field=by_block[:, :, :n], gradient_gradient=both)


def with_block_axis(stats: Overlaps) -> Overlaps:
    """Return the overlaps with an axis of blocks of coordinates; overlaps of a single block get an axis of length one."""
    return stats if stats.has_blocks else Overlaps(stats.a, stats.M[None], stats.Q[None], stats.kept, stats.names)


def without_block_axis(stats: Overlaps) -> Overlaps:
    """Return overlaps of a single block of coordinates without the axis of blocks."""
    return Overlaps(stats.a, stats.M[0], stats.Q[0], stats.kept, stats.names)


def block_increments(
    algorithm: Algorithm, t: Any, stats: Overlaps, sums: Moments, total: Any = 1.0
) -> tuple[Overlaps, Overlaps]:
    """Compute the changes of the statistics by a step that is linear in the gradient, for all blocks.

    Returns two parts: the population part, and the term quadratic in the learning rate (corrector).

    Parameters
    ----------
    stats : overlaps with an axis of blocks
    sums : weighted sums over samples of products of gradients, with the fields in each block (see
    `BlockMoments.split_by_block`) total : sum of the weights of the samples; trailing axes broadcast
    """
    rate = step_rates(algorithm, t)

    def in_block(M, Q, gradient_fixed, gradient_field, gradient_gradient):
        own = sums._replace(gradient_fixed=gradient_fixed, gradient_field=gradient_field, gradient_gradient=gradient_gradient)
        at = Overlaps(stats.a, M, Q, stats.kept, stats.names)
        return free_step_increments(algorithm, rate, 1.0, at, own, total)

    parts = jax.vmap(in_block)(stats.M, stats.Q, sums.gradient_fixed, sums.gradient_field, sums.gradient_gradient)
    population, corrector = (project_out_norms(rate.unit, stats, _change_of_all_blocks(part)) for part in parts)
    return population, corrector


def _change_of_all_blocks(part: Overlaps) -> Overlaps:
    """Return the changes of the overlaps in all blocks, and the change of the scalars, which all blocks have in common."""
    a, kept = jax.tree.map(lambda leaf: leaf[0], (part.a, part.kept))
    return Overlaps(a, part.M, part.Q, kept, part.names)
