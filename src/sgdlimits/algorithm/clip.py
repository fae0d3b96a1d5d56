"""Clipped gradients, and clipped gradients with noise."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Wrapper
from sgdlimits.algorithm.weights import Now, Weights
from sgdlimits.domain import NotNegativeInTime, PositiveInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.statistics.trees import as_floats


@checked
class Clipped(Wrapper):
    r"""Another algorithm, with gradients scaled down to a norm where they are larger.

    The norm is that of the mean gradient of the batch, all layers together, over :math:`\sqrt d`: the gradient
    :math:`G x^\top` of one sample has the norm :math:`|G||x|/\sqrt d`, which is of order one.

    Parameters
    ----------
    base : the algorithm
    norm : the largest norm, in units of :math:`\sqrt d`
    each : whether the gradient of each sample is clipped, before the mean is taken
    """

    norm: PositiveInTime = eqx.field(converter=as_floats)
    each: bool = eqx.field(static=True, default=False)

    uses_gram: ClassVar[bool] = True

    def step(self, now):
        def samples(at: Weights):
            G, slopes = now.sample_gradients(at)
            size = sizes(now, G, slopes) if self.each else now.mean_gradient(G, slopes).size
            factor = jnp.minimum(1.0, self.norm / jnp.where(size > 0, size, 1.0))
            return jax.tree.map(lambda leaf: leaf * factor, (G, slopes))

        return self.base.step(now.steered(samples))


@checked
class Private(Wrapper):
    r"""Differentially private SGD: each sample's gradient is clipped, and noise is added to the mean.

    Parameters
    ----------
    base : the algorithm; it may not train the second layer
    norm : to which the gradient of each sample is clipped, in units of :math:`\sqrt d`
    noise : the noise on each coordinate of the sum over the batch has the standard deviation noise times norm; that is the
        usual multiplier :math:`\sigma = \text{noise}/\sqrt d`, at which noise and gradients are of one size
    """

    norm: PositiveInTime = eqx.field(converter=as_floats)
    noise: NotNegativeInTime = eqx.field(converter=as_floats)

    uses_gram: ClassVar[bool] = True
    uses_noise: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.base.reuses:
            raise BadInput("Private has one noise a batch, and the base takes several gradients of it. Give another base.")
        if self.base.trains_second:
            raise BadInput("Private adds noise to the first layer only. Give a base that does not train the second layer.")

    def step(self, now):
        spread = (self.noise * self.norm / self.batch) * now.noise()
        clipped = Clipped(self.base, self.norm, each=True)
        loud = now.steered(now.samples, spread)
        return clipped.step(loud)


def sizes(now: Now, G: Float[Array, "p b"], slopes: Any) -> Float[Array, " b"]:
    """The norm of each sample's gradient, over the root of d."""
    lengths = jnp.diagonal(now.inputs_gram)[: now.batch]
    scalars = sum((leaf**2).reshape(-1, now.batch).sum(0) for leaf in jax.tree.leaves(slopes))
    return jnp.sqrt((G**2).sum(0) * lengths + now.inv_d * scalars)
