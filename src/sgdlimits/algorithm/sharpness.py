"""Algorithms with gradients at displaced weights: sharpness-aware minimisation and extragradient."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from sgdlimits.algorithm.base import Descent, Wrapper
from sgdlimits.algorithm.weights import WeightCombination
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.statistics.trees import as_floats


@checked
class SAM(Wrapper):
    r"""Sharpness-aware minimisation: a wrapper whose gradients are taken at weights displaced uphill along the gradient.

    For weights u with the mean gradient g of the batch, gradients are taken at
    :math:`u + \frac{\text{radius}}{\sqrt d}\, g/|g|`, on the same batch.

    Parameters
    ----------
    base : the algorithm that uses these gradients
    radius : distance of the displacement, in units of :math:`1/\sqrt d`, for which fields change by order one
    """

    radius: NotNegativeInTime = eqx.field(converter=as_floats)

    def step(self, now):
        def gradients_uphill(at: WeightCombination):
            slope = now.mean_gradient(*now.sample_gradients(at))
            size = slope.size
            return now.sample_gradients(at + jnp.where(size > 0, self.radius / jnp.where(size > 0, size, 1.0), 0.0) * slope)

        return self.base.step(now.with_gradients(gradients_uphill))


@checked
class Extragradient(Descent):
    r"""Extragradient: a step with the gradient at the weights that a step of SGD would reach, on the same batch.

    On the sphere the intermediate weights are not normalised.

    Parameters
    ----------
    lr : learning rate of the first layer, for both steps
    lr_second, ridge, sphere, batch : as for `OnePassSGD`
    """

    def step(self, now):
        ahead = now.student + self.gradient_step(now)
        return {"student": self.normalise_on_sphere(now.student + self.gradient_step(now, ahead))}
