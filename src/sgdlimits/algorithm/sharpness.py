"""Gradients taken elsewhere: sharpness-aware minimisation and extragradient."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from sgdlimits.algorithm.base import Descent, Wrapper
from sgdlimits.algorithm.weights import Weights
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.statistics.trees import as_floats


@checked
class SAM(Wrapper):
    r"""Sharpness-aware: another algorithm, with gradients taken uphill.

    They are those at :math:`u + \frac{\text{radius}}{\sqrt d}\, g/|g|`, on the same batch.

    Parameters
    ----------
    base : the algorithm
    radius : how far uphill the gradient is taken, in units of :math:`1/\sqrt d`: then fields change by order one
    """

    radius: NotNegativeInTime = eqx.field(converter=as_floats)

    uses_gram: ClassVar[bool] = True

    def step(self, now):
        def samples(at: Weights):
            slope = now.mean_gradient(*now.sample_gradients(at))
            size = slope.size
            return now.sample_gradients(at + jnp.where(size > 0, self.radius / jnp.where(size > 0, size, 1.0), 0.0) * slope)

        return self.base.step(now.steered(samples))


@checked
class Extragradient(Descent):
    r"""Extragradient: the gradient at where a step of plain SGD would lead, on the same batch.

    On the sphere that place is not scaled to norm 1.

    Parameters
    ----------
    lr : learning rate of the first layer, for both
    lr_second, ridge, sphere, batch : as for `OnePassSGD`
    """

    uses_gram: ClassVar[bool] = True
    reuses: ClassVar[bool] = True

    def step(self, now):
        ahead = now.student + self.gradient_step(now)
        return {"student": self.normalise_on_sphere(now.student + self.gradient_step(now, ahead))}
