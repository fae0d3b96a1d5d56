"""Wrapper of optimisers with decoupled weight decay."""

from __future__ import annotations

import equinox as eqx

from sgdlimits.algorithm.base import Wrapper, delegate_to_base
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.statistics.trees import as_floats


@checked
class Decayed(Wrapper):
    r"""A wrapper with decoupled weight decay: each step also subtracts :math:`(\text{decay}/d)\, u` from the weights u.

    Parameters
    ----------
    base : the algorithm whose weights decay
    decay : d times the fraction of the weights that a step subtracts; velocities and averages do not decay
    """

    decay: NotNegativeInTime = eqx.field(converter=as_floats)

    linear = delegate_to_base("linear")

    def __check_init__(self) -> None:
        if self.base.sphere:
            raise BadInput(
                "weight decay has no effect on the sphere, where norms stay 1; got a base with "
                "sphere=True. Give the base sphere=False."
            )

    def step(self, now):
        step = dict(self.base.step(now))
        return {**step, "student": step["student"] - (self.decay * now.inv_d) * now.student}
