"""One-pass SGD, the plain optimiser."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from sgdlimits.algorithm.base import Descent, Wrapper
from sgdlimits.domain import NotNegativeInTime, Rate, Rates, Size, checked


@checked
class OnePassSGD(Descent):
    r"""One-pass SGD: one step with each batch of fresh samples.

    For samples i of inputs :math:`x_i` and losses :math:`l_i`, with the derivative :math:`G_{ij} = \partial
    l_i/\partial\lambda_{ij}` in the field of unit j, weights :math:`u_j`, second layer a, and batches of b samples, one by
    default,

    .. math:: u_j \leftarrow (1 - \text{lr}\,\text{ridge}/d)\, u_j - \frac{\text{lr}}{d}\,\frac1b\sum_i G_{ij} x_i, \qquad
              a \leftarrow a - \frac{\text{lr}_2}{d}\Big(\frac1b\sum_i \partial_a l_i + \text{ridge}\, a\Big),

    then, on the sphere, :math:`u_j \leftarrow u_j/|u_j|`. A step advances the time t, which counts samples, by b/d.

    Parameters
    ----------
    lr : learning rate of the first layer
    lr_second : learning rate of the second layer; for a network with named scalars, one rate for all or a dictionary with a
        rate for each name; None keeps them fixed, as do names without a rate
    ridge : strength of the ridge penalty on both layers
    sphere : whether the weights of each unit are normalised to norm 1 after each step
    batch : b, the number of samples per step, over which the gradient is averaged

    Notes
    -----
    As d grows, a batch is equivalent to steps of one sample at the rates lr/b and lr_second/b. Drift, covariance and `rate` are
    those of these steps.
    """

    linear: ClassVar[bool] = True

    def __init__(
        self, lr: Rate, lr_second: Rates | None = None, ridge: NotNegativeInTime = 0.0, sphere: bool = False, batch: Size = 1
    ) -> None:
        self.lr, self.lr_second, self.ridge, self.sphere, self.batch = lr, lr_second, ridge, sphere, batch

    def step(self, now):
        return {"student": self.normalise_on_sphere(now.student + self.gradient_step(now))}


def inherit_arguments(plain: OnePassSGD, cls: type, batch: int | None = None) -> tuple[tuple, dict[str, Any]]:
    """Return constructor arguments for an algorithm that replaces plain SGD and inherits its learning rates and options.

    The argument of a wrapper is SGD itself; the arguments of other algorithms are the fields of SGD.

    Parameters
    ----------
    plain : the SGD that is replaced
    cls : class of the new algorithm
    batch : batch size of the new algorithm; None takes that of `plain`
    """
    numbers = {field.name: getattr(plain, field.name) for field in dataclasses.fields(Descent)}
    numbers |= {} if batch is None else {"batch": batch}
    return ((OnePassSGD(**numbers),), {}) if issubclass(cls, Wrapper) else ((), numbers)
