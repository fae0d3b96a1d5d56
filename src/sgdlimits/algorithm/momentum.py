"""Optimisers with momentum: heavy ball and Nesterov."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax

from sgdlimits.algorithm.base import Algorithm, Descent
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.algorithm.weights import StepContext, WeightCombination
from sgdlimits.domain import MomentumInTime, PositiveInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.part import is_schedule
from sgdlimits.statistics.trees import as_floats


@checked
class HeavyBall(Descent):
    r"""Heavy-ball momentum: gradients change a velocity of the weights.

    With weights u, velocity v and the mean gradient g of the loss over the batch, including the ridge penalty,

    .. math:: v \leftarrow \beta v - \frac{\text{lr}}d\, g, \qquad u \leftarrow u + v .

    The algorithm stores `velocity`, :math:`d\,v`: the change of the weights per unit of t. The second layer has its own
    velocity.

    Parameters
    ----------
    lr : learning rate of the first layer
    beta : momentum coefficient, from 0 to below 1
    friction : c, an alternative to beta, for :math:`\beta = 1 - c/d` and steps of :math:`(c/d)\,\text{lr}/d`
    lr_second, ridge, sphere, batch : as for `OnePassSGD`

    Notes
    -----
    With beta fixed, the velocity relaxes in a time of order 1/d: as d grows this is `OnePassSGD` at the learning rate
    :math:`\text{lr}/(1-\beta)`. With friction c the velocity :math:`w = d\,v` changes as slowly as the weights u, and the limit
    has both: :math:`\dot u = w`, :math:`\dot w = -c\,(w + \text{lr}\, g)`.

    >>> float(HeavyBall(0.1, 0.9).limit.lr.round(12))
    1.0
    """

    beta: MomentumInTime | None = eqx.field(converter=as_floats, default=None)
    friction: PositiveInTime | None = eqx.field(converter=as_floats, default=None, kw_only=True)

    memory: ClassVar[dict[str, str]] = {"velocity": "zero"}
    linear: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if (self.beta is None) == (self.friction is None):
            raise BadInput(f"{type(self).__name__} takes one of beta and friction. Give, for instance, beta=0.9 alone.")

    def step(self, now):
        # the stored velocity is d v, so the gradient step, which is over d, has the factor d; with friction d times c/d
        gain = 1 / now.inv_d if self.friction is None else self.friction
        keep = self.beta if self.friction is None else 1 - self.friction * now.inv_d
        velocity = keep * now["velocity"] + gain * self.gradient_step(now, self.gradient_point(now, keep))
        return {"velocity": velocity, "student": self.normalise_on_sphere(now.student + now.inv_d * velocity)}

    def gradient_point(self, now: StepContext, keep: Any) -> WeightCombination:
        """Return the weights at which the gradient is evaluated: the current weights, unless a subclass looks ahead.

        `keep` is the factor of the velocity in a step.
        """
        return now.student

    @property
    def limit(self) -> Algorithm:
        if self.beta is None:  # friction: the velocity is as slow as the weights
            return self
        gain = 1 / (1 - self.beta)
        second = jax.tree.map(lambda rate: rate * gain, self.lr_second, is_leaf=is_schedule)
        return OnePassSGD(self.lr * gain, lr_second=second, ridge=self.ridge, sphere=self.sphere, batch=self.batch)


@checked
class Nesterov(HeavyBall):
    r"""Nesterov momentum: `HeavyBall` with the gradient evaluated ahead, at :math:`u + \beta v`.

    As d grows, the limit is that of `HeavyBall`. Here u are the weights, v their velocity and :math:`\beta` its coefficient.
    Optax and PyTorch use :math:`u + \beta v` as their iterates, at which they evaluate the gradient.

    Parameters
    ----------
    lr : learning rate of the first layer
    beta : momentum coefficient, from 0 to below 1
    friction : c, an alternative to beta, for :math:`\beta = 1 - c/d` and steps of :math:`(c/d)\,\text{lr}/d`
    lr_second, ridge, sphere, batch : as for `OnePassSGD`
    """

    def gradient_point(self, now, keep):
        return now.student + (keep * now.inv_d) * now["velocity"]
