"""Optimisers with gradient clipping, and differentially private SGD."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Wrapper
from sgdlimits.algorithm.weights import StepContext, WeightCombination
from sgdlimits.domain import NotNegativeInTime, PositiveInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.statistics.trees import as_floats


@checked
class Clipped(Wrapper):
    r"""A wrapper that clips the gradients of another algorithm: larger ones are scaled down to a given norm.

    The norm is that of the mean gradient of the batch, all layers together, over :math:`\sqrt d`. For one sample with input x
    and gradient G in the fields, the gradient :math:`G x^\top` has the norm :math:`|G||x|/\sqrt d`, which is of order one.

    Parameters
    ----------
    base : the algorithm that uses the clipped gradients
    norm : the maximum norm, in units of :math:`\sqrt d`
    each : whether the gradient of each sample is clipped before the mean over the batch is taken
    """

    norm: PositiveInTime = eqx.field(converter=as_floats)
    each: bool = eqx.field(static=True, default=False)

    def step(self, now):
        def clipped_gradients(at: WeightCombination):
            G, slopes = now.sample_gradients(at)
            size = gradient_norms(now, G, slopes) if self.each else now.mean_gradient(G, slopes).size
            # safe where the gradient vanishes, in value and in derivative
            factor = jnp.minimum(1.0, self.norm / jnp.where(size > 0, size, 1.0))
            return jax.tree.map(lambda leaf: leaf * factor, (G, slopes))

        return self.base.step(now.with_gradients(clipped_gradients))


@checked
class Private(Wrapper):
    r"""Differentially private SGD: each sample's gradient is clipped, and noise is added to the mean.

    Parameters
    ----------
    base : the algorithm that uses the noisy gradients; it may not train the second layer
    norm : norm to which the gradient of each sample is clipped, in units of :math:`\sqrt d`
    noise : standard deviation of the noise on each coordinate of the sum over the batch, divided by `norm`; the usual noise
        multiplier is :math:`\sigma = \text{noise}/\sqrt d`, for which noise and gradients are of the same order
    """

    norm: PositiveInTime = eqx.field(converter=as_floats)
    noise: NotNegativeInTime = eqx.field(converter=as_floats)

    def __check_init__(self) -> None:
        if self.base.trains_second:
            raise BadInput(
                "Private adds noise to the first layer only; got a base that trains the second. Leave "
                "out lr_second in the base."
            )

    def step(self, now):
        # noise is added to the mean of the batch, hence the division by its size
        spread = (self.noise * self.norm / self.batch) * now.noise()
        clipped = Clipped(self.base, self.norm, each=True)
        noisy = now.with_gradients(now.sample_gradients, spread)
        return clipped.step(noisy)


def gradient_norms(now: StepContext, G: Float[Array, "p b"], slopes: Any) -> Float[Array, " b"]:
    """Return the norm of the gradient of each sample, all layers together, over the square root of d."""
    lengths = jnp.diagonal(now.inputs_gram)[: now.batch]  # |x|^2/d of the samples
    scalars = sum((leaf**2).reshape(-1, now.batch).sum(0) for leaf in jax.tree.leaves(slopes))
    return jnp.sqrt((G**2).sum(0) * lengths + now.inv_d * scalars)
