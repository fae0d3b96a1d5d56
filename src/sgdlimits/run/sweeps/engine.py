"""Where units are computed: the interface, and this process."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sgdlimits.jaxtools import GROUP_ALIGNMENT
from sgdlimits.kernel.choose import gpu_present
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.run.sweeps.worker import FAILED, Outcome, attempts

RETRIES = 2
"""How often a unit is tried again."""
TOGETHER = 64
"""Units are computed together until they have so many runs: four vectors of a processor."""
TOGETHER_ON_GPU = 2**16


class Task(NamedTuple):
    """Units that are computed together, and how often they were tried before."""

    units: list[Unit]
    tries: int = 0

    def settled(self, outcomes: Iterable[Outcome], again: Callable[[Task], Any]) -> Iterator[Outcome]:
        """Outcomes of its units that are final. One that failed is tried `again`: alone, unless it was often enough."""
        for outcome in outcomes:
            alone = len(self.units) == 1  # otherwise another one may be to blame
            if outcome.what != FAILED or (alone and self.tries == RETRIES):
                yield outcome
            else:
                again(Task([outcome.unit], self.tries + alone))


def tasks(recipe: Recipe, units: list[Unit], workers: int = 1) -> deque[Task]:
    """Neighbouring units of few runs together, where their steps can be, with something to do for all workers."""
    runs = [unit.last - unit.first for unit in units]
    share = max(GROUP_ALIGNMENT, -(-sum(runs) // workers))
    most = 0 if not recipe.batchable else min(share, TOGETHER_ON_GPU if gpu_present() else TOGETHER)
    found: deque[Task] = deque()
    room = 0
    for unit, count in zip(units, runs, strict=True):
        room -= count
        if room >= 0:
            found[-1].units.append(unit)
        else:
            found.append(Task([unit]))
            room = most - count
    return found


class SweepEngine(abc.ABC):
    """Where units are computed."""

    @abc.abstractmethod
    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        """Compute units, in any order, each tried again where it failed, and say what became of each."""


class Here(SweepEngine):
    """This process."""

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        todo = tasks(recipe, units)
        while todo:
            task = todo.popleft()
            yield from task.settled(attempts(recipe, folder, task.units), todo.appendleft)
