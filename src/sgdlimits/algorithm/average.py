"""Averages of the weights along the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import equinox as eqx
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm, Wrapper, of_base
from sgdlimits.checks import number
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats

MIN_ELAPSED = 1e-9
"""A time that counts as none, so that the mean of nothing is what is there."""


@checked
class Averaged(Wrapper):
    r"""Another algorithm, with the average of its weights beside them.

    The `average` is part of datasets, and its risk is their `risk_average`.

    Parameters
    ----------
    base : the algorithm
    decay : for :math:`\bar u \leftarrow \text{decay}\,\bar u + (1-\text{decay})\, u`; None is the mean of all weights since the
        start (Polyak and Ruppert)
    rate : instead of decay, for :math:`\text{decay} = 1 - \text{rate}\,b/d`: the mean over about 1/rate of the time t

    Notes
    -----
    As d grows, an average with a fixed decay is the weights themselves. The others have
    :math:`\dot{\bar u} = (u - \bar u)\,\text{rate}`, or :math:`(u - \bar u)/t`.
    """

    decay: Annotated[Float[Array, ""] | float, number(at_least=0, below=1)] | None = eqx.field(
        converter=as_floats, default=None
    )
    rate: Positive | None = eqx.field(converter=as_floats, default=None, kw_only=True)
    elapsed: Any = eqx.field(init=False, default_factory=Time)
    """The time since the start, for the mean of all weights: a schedule, and a number where the algorithm stands at a time."""

    linear = of_base("linear")

    def __check_init__(self) -> None:
        if "average" in self.base.memory:
            raise BadInput("Averaged has one average. Give a base without one.")
        if self.decay is not None and self.rate is not None:
            raise BadInput("Averaged takes decay or rate, not both. Give one of them, or none for the mean.")

    @property
    def memory(self) -> Mapping[str, str]:  # type: ignore[override]
        """What is remembered beside the students, and how it begins."""
        return {**self.base.memory, "average": "copy"}

    @property
    def uses_gram(self) -> bool:  # type: ignore[override]
        return self.base.uses_gram or self.base.sphere

    def step(self, now):
        step = dict(self.base.step(now))
        one = self.batch * now.inv_d
        weight = one / (value_at(self.elapsed, now.t) + 2 * one + MIN_ELAPSED) if self.rate is None else self.rate * one
        weight = weight if self.decay is None else 1 - self.decay
        return {**step, "average": now["average"] + weight * (step["student"] - now["average"])}

    @property
    def limit(self) -> Algorithm:
        base = self.base.limit
        if self.decay is not None:
            return base
        return self if base is self.base else eqx.tree_at(lambda own: own.base, self, base)
