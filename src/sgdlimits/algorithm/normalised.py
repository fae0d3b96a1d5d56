"""Algorithms whose step length adapts to the norm of the gradient: normalised SGD and AdaGrad-norm."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from sgdlimits.algorithm.base import Descent
from sgdlimits.domain import PositiveInTime, checked
from sgdlimits.statistics.trees import as_floats


@checked
class Normalised(Descent):
    r"""Normalised SGD: steps of fixed length along the gradient.

    :math:`u \leftarrow u - \frac{\text{lr}}{\sqrt d}\, g/|g|`, with the weights u, the mean gradient g of the batch and the
    norm of all layers together.

    Parameters
    ----------
    lr : length of a step, times :math:`\sqrt d`, so that lr is comparable to the learning rate of SGD
    lr_second, ridge, sphere, batch : as for `OnePassSGD`; the ridge is not normalised
    """

    def step(self, now):
        size = now.gradient().size
        # the inner where keeps the derivative finite where the gradient vanishes
        factor = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1.0), 0.0)
        normalised = now.with_gradients(lambda at: jax.tree.map(lambda leaf: factor * leaf, now.sample_gradients(at)))
        return {"student": self.normalise_on_sphere(now.student + self.gradient_step(normalised))}


@checked
class AdaGradNorm(Descent):
    r"""AdaGrad-norm: the learning rate falls with the sum of squared gradient norms.

    .. math:: s \leftarrow s + \frac{|g|^2}{d^2}, \qquad
              u \leftarrow u - \frac{\text{lr}}{\sqrt{\text{offset} + s}}\,\frac gd ,

    with the weights u, the mean gradient g of the batch and the stored sum s.

    Parameters
    ----------
    lr : learning rate of the first layer when s + offset = 1
    offset : added to the sum s, which begins at zero
    lr_second, ridge, sphere, batch : as for `OnePassSGD`; s sums over all layers, without the ridge

    Notes
    -----
    The usual :math:`\eta\, g/\sqrt{b_0^2 + \sum|g|^2}` has :math:`\eta` = lr and :math:`b_0^2` = offset :math:`d^2`.
    """

    offset: PositiveInTime = eqx.field(converter=as_floats, default=1.0)
    numbers: ClassVar[dict[str, float]] = {"sum": 0.0}

    def step(self, now):
        total = now["sum"] + now.inv_d * now.gradient().size ** 2
        return {
            "student": self.normalise_on_sphere(now.student + self.gradient_step(now) * (1 / jnp.sqrt(self.offset + total))),
            "sum": total,
        }
