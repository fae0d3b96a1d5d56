"""Schedule-free SGD: an average of the iterates takes the place of a decaying learning rate."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx

from sgdlimits.algorithm.average import MIN_ELAPSED_TIME
from sgdlimits.algorithm.base import Descent
from sgdlimits.domain import MomentumInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats


@checked
class ScheduleFree(Descent):
    r"""Schedule-free SGD: gradients are taken between the iterates z of SGD and their average x [23]_.

    With the mean gradient g of the batch at :math:`y = (1 - \beta) z + \beta x`, step n = 0, 1, ... is

    .. math::
        z \leftarrow z - \frac{\text{lr}}d\, g, \qquad x \leftarrow x + \frac{z - x}{n + 1} .

    The students are y. The algorithm stores x as `average`, the weights that one would use; datasets have their risk as
    `risk_average`. The iterates z follow from both.

    Parameters
    ----------
    lr : learning rate of the first layer
    beta : :math:`\beta`, from 0 to below 1; 0 is SGD with the mean of its weights (Polyak and Ruppert)
    lr_second, ridge, batch : as for `OnePassSGD`; the ridge acts at y

    Notes
    -----
    As d grows, :math:`\dot z = -\text{lr}\, g` and :math:`\dot x = (z - x)/t`.
    """

    beta: MomentumInTime = eqx.field(converter=as_floats, default=0.9)
    elapsed: Any = eqx.field(init=False, default_factory=Time)
    """Time since the start, used for the average: a schedule, which `at(t)` replaces by a number."""

    memory: ClassVar[dict[str, str]] = {"average": "copy"}
    linear: ClassVar[bool] = True

    def __check_init__(self) -> None:
        super().__check_init__()
        if self.sphere:
            raise BadInput("ScheduleFree does not support the sphere. Give sphere=False.")

    def step(self, now):
        one = self.batch * now.inv_d  # duration of a step
        weight = one / (value_at(self.elapsed, now.t) + one + MIN_ELAPSED_TIME * (one == 0))
        iterate = (1 / (1 - self.beta)) * (now.student - self.beta * now["average"]) + self.gradient_step(now)
        average = now["average"] + weight * (iterate - now["average"])
        return {"student": (1 - self.beta) * iterate + self.beta * average, "average": average}
