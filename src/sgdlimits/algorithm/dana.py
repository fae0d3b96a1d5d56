"""Momentum adapted to the dimension (DANA)."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx

from sgdlimits.algorithm.average import MIN_ELAPSED_TIME
from sgdlimits.algorithm.base import Descent
from sgdlimits.domain import NotNegative, Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats


@checked
class DANA(Descent):
    r"""Dimension-adapted momentum: a long memory of gradients, whose weight shrinks with the dimension or with time [22]_.

    With weights u, the mean gradient g of the batch and the number n of steps so far,

    .. math::
        v &\leftarrow \Big(1 - \frac\delta{\delta + n}\Big)\, v - \frac{\text{lr}}d\, g, \\
        u &\leftarrow u - \frac{\text{lr}}d\, g + \gamma_n v, \qquad
        \gamma_n = \text{gain}\,\frac bd \ \text{ or }\ \text{gain}\,(1 + n)^{-\text{decay}} .

    Without `decay` this is DANA-constant, and with it DANA-decaying. Ferbach et al. take gain 1, which is their
    :math:`\gamma_3 = \gamma_2/d` or :math:`\gamma_3 = \gamma_2 (1+t)^{-\kappa_3}`, and for eigenvalues :math:`j^{-2\alpha}` the
    decay :math:`\kappa_3 = 1/(2\alpha)`; their learning rate :math:`\gamma_2` is our lr/d.

    Parameters
    ----------
    lr : learning rate of the first layer
    delta : :math:`\delta`; the memory reaches back over a fraction of about 1/delta of the time since the start
    gain : weight of the memory in a step, relative to b/d for batches of b samples, or to :math:`(1 + n)^{-\text{decay}}`
    decay : exponent of the decay of the weight with the number of steps; None keeps it constant
    lr_second, ridge, batch : as for `OnePassSGD`

    Notes
    -----
    DANA-constant acts on the time scale of SGD, samples per dimension: as d grows, :math:`\dot v = -\delta v/t - \text{lr}\, g`
    and :math:`\dot u = \text{gain}\, v - \text{lr}\, g`. The decaying weight does not scale with d, so that the algorithm has
    no such limit: simulate it at finite d.
    """

    delta: Positive = eqx.field(converter=as_floats, default=8.0)
    gain: NotNegative = eqx.field(converter=as_floats, default=1.0, kw_only=True)
    decay: Positive | None = eqx.field(converter=as_floats, default=None, kw_only=True)
    elapsed: Any = eqx.field(init=False, default_factory=Time)
    """Time since the start, from which the memory follows: a schedule, which `at(t)` replaces by a number."""

    memory: ClassVar[dict[str, str]] = {"velocity": "zero"}
    linear: ClassVar[bool] = True

    def __check_init__(self) -> None:
        super().__check_init__()
        if self.sphere:
            raise BadInput("DANA does not support the sphere. Give sphere=False.")

    def step(self, now):
        one, t = self.batch * now.inv_d, value_at(self.elapsed, now.t)  # duration of a step, and the time
        slope = self.gradient_step(now)
        keep = 1 - self.delta * one / (t + self.delta * one + MIN_ELAPSED_TIME * (one == 0))
        velocity = keep * now["velocity"] + slope
        weight = self.gain * one if self.decay is None else self.gain * (1 + t / one) ** -self.decay
        return {"velocity": velocity, "student": now.student + slope + weight * velocity}

    @property
    def limit(self):
        if self.decay is not None:
            raise BadInput(
                "DANA with a decay has no limit of large d, as its momentum does not scale with d. "
                "Use Chain(d) or SecondMoments(d), or leave out decay."
            )
        return self
