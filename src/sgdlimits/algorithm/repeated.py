"""The same batch several times."""

from __future__ import annotations

from typing import Annotated, ClassVar

import equinox as eqx

from sgdlimits.algorithm.base import Algorithm, Wrapper
from sgdlimits.checks import integer
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput


@checked
class Repeated(Wrapper):
    """Another algorithm, with several steps for each batch.

    The time t counts samples, so each batch once.

    Parameters
    ----------
    base : the algorithm
    times : steps for each batch
    """

    times: Annotated[int, integer(below=1001)] = eqx.field(static=True)

    uses_gram: ClassVar[bool] = True
    reuses: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.base.uses_noise:
            raise BadInput("Repeated would use the same noise several times. Give a base without noise.")
        if "copy" in self.base.memory.values():
            raise BadInput("Repeated would count a batch several times in an average. Give Averaged(Repeated(...)).")

    @property
    def limit(self) -> Algorithm:
        """The algorithm itself: a batch meets the velocity that its own first steps have made, however fast that forgets."""
        return self

    def step(self, now):
        for _ in range(self.times):
            now = now.after(self.base.step(now))
        return {**now.weights, **now.kept}
