"""Decay of the weights apart from the gradient."""

from __future__ import annotations

import equinox as eqx

from sgdlimits.algorithm.base import Wrapper, of_base
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.statistics.trees import as_floats


@checked
class Decayed(Wrapper):
    r"""Another algorithm, with decay of the weights apart from the gradient.

    Each step also takes :math:`(\text{decay}/d)\, u` from the weights.

    Parameters
    ----------
    base : the algorithm
    decay : how fast weights shrink, over d in a step; velocities and averages do not
    """

    decay: NotNegativeInTime = eqx.field(converter=as_floats)

    uses_gram = of_base("uses_gram")
    linear = of_base("linear")

    def __check_init__(self) -> None:
        if self.base.sphere:
            raise BadInput("weights on the sphere do not decay. Give a base with sphere=False.")

    def step(self, now):
        step = dict(self.base.step(now))
        return {**step, "student": step["student"] - (self.decay * now.inv_d) * now.student}
