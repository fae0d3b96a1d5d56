"""Gradients taken elsewhere: sharpness-aware minimisation and extragradient."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from sgdlimits.algorithm.base import Descent, Wrapper
from sgdlimits.algorithm.weights import Weights
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.statistics.trees import number_array


@checked
class SAM(Wrapper):
    r"""Sharpness-aware: another algorithm, with gradients taken uphill.

    They are those at :math:`u + \frac{\text{radius}}{\sqrt d}\, g/|g|`, on the same batch.

    Parameters
    ----------
    base : the algorithm
    radius : how far uphill the gradient is taken, in units of :math:`1/\sqrt d`: then fields change by order one
    """

    radius: NotNegativeInTime = eqx.field(converter=number_array)

    def step(self, now):
        def samples(at: Weights):
            slope = now.mean(*now.samples(at))
            size = slope.size
            return now.samples(at + jnp.where(size > 0, self.radius / jnp.where(size > 0, size, 1.0), 0.0) * slope)

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

    def step(self, now):
        ahead = now.student + self.push(now)
        return {"student": self.held(now.student + self.push(now, ahead))}
