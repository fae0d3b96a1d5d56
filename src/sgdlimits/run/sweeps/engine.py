"""Engines that compute the work units of a sweep (some runs at one point): the interface, and the engine in this process."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sgdlimits.jaxtools import GROUP_SIZE_MULTIPLE
from sgdlimits.kernel.choose import is_gpu_available
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.run.sweeps.worker import FAILED, UnitOutcome, attempt_units

MAX_RETRIES = 2
"""Number of times that a work unit is tried again after it has failed on its own."""
MAX_RUNS_PER_TASK = 64
"""Maximum total number of runs in the work units of one task on a CPU. They fill several SIMD vectors."""
MAX_RUNS_PER_GPU_TASK = 2**16
"""Maximum total number of runs in the work units of one task on a GPU, which needs many threads."""


class EngineTask(NamedTuple):
    """Work units of a sweep that are computed in shared batches; for a single unit, also the number of earlier attempts."""

    units: list[Unit]
    attempt_count: int = 0

    def final_outcomes(self, outcomes: Iterable[UnitOutcome], retry: Callable[[EngineTask], Any]) -> Iterator[UnitOutcome]:
        """Yield the outcomes that are final, and pass failed units that may be tried again to `retry`, each in its own task."""
        for outcome in outcomes:
            alone = len(self.units) == 1  # in a larger task another unit may have caused the failure, so it does not count
            if outcome.status != FAILED or (alone and self.attempt_count == MAX_RETRIES):
                yield outcome
            else:
                retry(EngineTask([outcome.unit], self.attempt_count + alone))


def make_tasks(recipe: Recipe, units: list[Unit], workers: int = 1) -> deque[EngineTask]:
    """Group consecutive work units with few runs into tasks that share batches, such that all workers get tasks."""
    runs = [unit.last - unit.first for unit in units]
    # No task has more than a worker's share of all runs, but each fills a vector.
    share = max(GROUP_SIZE_MULTIPLE, -(-sum(runs) // workers))
    max_runs = 0 if not recipe.batchable else min(share, MAX_RUNS_PER_GPU_TASK if is_gpu_available() else MAX_RUNS_PER_TASK)
    tasks: deque[EngineTask] = deque()
    capacity = 0
    for unit, count in zip(units, runs, strict=True):
        capacity -= count
        if capacity >= 0:
            tasks[-1].units.append(unit)
        else:
            tasks.append(EngineTask([unit]))
            capacity = max_runs - count
    return tasks


class SweepEngine(abc.ABC):
    """Interface of engines, which compute sweeps: in this process, in a pool of worker processes, or on a cluster."""

    @abc.abstractmethod
    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[UnitOutcome]:
        """Compute work units of a sweep in any order, with retries after failures, and yield the final outcome of each."""


class InProcessEngine(SweepEngine):
    """Engine that computes all work units of a sweep in this process."""

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[UnitOutcome]:
        todo = make_tasks(recipe, units)
        while todo:
            task = todo.popleft()
            yield from task.final_outcomes(attempt_units(recipe, folder, task.units), todo.appendleft)
