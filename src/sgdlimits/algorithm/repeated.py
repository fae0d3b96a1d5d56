"""Wrapper of optimisers that makes several steps with each batch."""

from __future__ import annotations

from typing import Annotated

import equinox as eqx

from sgdlimits.algorithm.base import Algorithm, Wrapper
from sgdlimits.checks import integer
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput


@checked
class Repeated(Wrapper):
    """A wrapper that makes several steps of another algorithm with each batch.

    The time t counts each batch once, since it counts samples.

    Parameters
    ----------
    base : the algorithm whose steps are repeated
    times : number of steps with each batch
    """

    times: Annotated[int, integer(below=1001)] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if "copy" in self.base.memory.values():
            raise BadInput("Repeated(Averaged(...)) would average over a batch several times. Give Averaged(Repeated(...)).")

    @property
    def limit(self) -> Algorithm:
        """Limit of the algorithm as d grows: itself, as a step depends on the velocity from steps with the same batch."""
        return self

    def step(self, now):
        for _ in range(self.times):
            now = now.repeat_after(self.base.step(now))
        return {**now.weights, **now.kept}
