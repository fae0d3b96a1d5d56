"""Wrapper of optimisers that stores an average of the weights over the trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from sgdlimits.algorithm.base import Algorithm, Wrapper, delegate_to_base
from sgdlimits.domain import MomentumInTime, PositiveInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats

MIN_ELAPSED_TIME = 1e-9
"""Small number added to the elapsed time, so that the average at the start is the initial value instead of 0/0."""


@checked
class Averaged(Wrapper):
    r"""A wrapper that runs another algorithm unchanged and also stores an average of the weights.

    Datasets contain the `average` and its risk, `risk_average`.

    Parameters
    ----------
    base : the algorithm whose weights are averaged
    decay : decay of the exponential average, :math:`\bar u \leftarrow \text{decay}\,\bar u + (1-\text{decay})\, u`; None takes
        the mean of all weights since the start (Polyak and Ruppert)
    rate : alternative to decay, for :math:`\text{decay} = 1 - \text{rate}\,b/d` with batches of b samples: averages over a
        time of about 1/rate

    Notes
    -----
    As d grows, an average :math:`\bar u` with a fixed decay equals the weights u. With `rate` the average obeys
    :math:`\dot{\bar u} = (u - \bar u)\,\text{rate}`; the mean of all weights obeys :math:`\dot{\bar u} = (u - \bar u)/t`.
    """

    decay: MomentumInTime | None = eqx.field(converter=as_floats, default=None)
    rate: PositiveInTime | None = eqx.field(converter=as_floats, default=None, kw_only=True)
    elapsed: Any = eqx.field(init=False, default_factory=Time)
    """Time since the start, as needed for the mean of all weights: a schedule, which `at(t)` replaces by a number."""

    linear = delegate_to_base("linear")

    def __check_init__(self) -> None:
        if "average" in self.base.memory:
            raise BadInput("Averaged cannot wrap an algorithm that contains Averaged. Give a base without Averaged.")
        if self.decay is not None and self.rate is not None:
            raise BadInput(
                "Averaged takes decay or rate, not both. Leave out one of the two, or both for the plain mean over time."
            )

    @property
    def memory(self) -> Mapping[str, str]:  # type: ignore[override]
        """Stored arrays of weights by name, with their initial value: `average` starts as a copy of the students' weights."""
        return {**self.base.memory, "average": "copy"}

    def step(self, now):
        step = dict(self.base.step(now))
        one = self.batch * now.inv_d  # duration of a step
        weight = one / (value_at(self.elapsed, now.t) + 2 * one + MIN_ELAPSED_TIME) if self.rate is None else self.rate * one
        weight = weight if self.decay is None else 1 - self.decay

        return {**step, "average": now["average"] + weight * (step["student"] - now["average"])}

    @property
    def limit(self) -> Algorithm:
        base = self.base.limit
        if self.decay is not None:  # it averages over a time of order 1/d only
            return base
        return self if base is self.base else eqx.tree_at(lambda own: own.base, self, base)
