"""The interface of a level of description."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.errors import BadInput, check_count
from sgdlimits.level.condition import Condition
from sgdlimits.problem.base import Problem
from sgdlimits.random import Stream

if TYPE_CHECKING:
    from sgdlimits.start import Start

FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"
LIMIT = 1e6
"""A run has diverged when a coordinate of its state, of order 1 by convention, is above this or not finite."""


class Track(NamedTuple):
    """What a level brings back for a batch of runs: statistics and risk at the saved times, and how each run ended.

    A run that stopped or diverged keeps its last state at the times after its end. `saved` counts the times reached by all
    runs, which is fewer than asked for only after an interruption.
    """

    stats: PyTree
    risk: np.ndarray
    status: np.ndarray
    t_end: np.ndarray
    saved: int

    def of_runs(self, count: int) -> Track:
        """The first `count` runs: all batches have the same size, so the last may repeat a run."""
        stats = jax.tree.map(lambda leaf: leaf[:count], self.stats)
        return Track(stats, self.risk[:count], self.status[:count], self.t_end[:count], self.saved)


@dataclass
class Job:
    """What a level is asked for: the times to save at, the runs with their seed, when to stop, whom to tell."""

    times: np.ndarray
    seed: int
    runs: np.ndarray
    until: Condition | None = None
    report: Callable[[float], object] = field(default=lambda share: None)


class Level(eqx.Module):
    """How a problem's SGD is described. A level is its parameters and `run`."""

    name: ClassVar[str]

    @abc.abstractmethod
    def run(self, problem: Problem, starts: PyTree, job: Job) -> Track:
        """Follow a batch of runs from their statistics (runs first) through `job.times`."""

    @abc.abstractmethod
    def snap(self, problem: Problem, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The times that this level can save at nearest to those asked for, and their numbers of SGD steps (NaN without d)."""

    def for_start(self, start: Start) -> Level:
        """This level with the parameters that it takes from the start."""
        return self

    def view(self, problem: Problem) -> Problem:
        """The problem in the statistics of this level."""
        return problem

    def starts(self, problem: Problem, start: Start, stream: Stream) -> PyTree:
        """The statistics in which the stream's runs start, runs first."""
        return start.batch(problem, stream)

    def prepared(self, problem: Problem, start: PyTree) -> Level:
        """This level with the parameters it chooses for itself, given the statistics of the first run."""
        return self

    def batch(self, problem: Problem) -> int:
        """How many runs to hold at once."""
        return 4096


def check_dimension(d, teachers: int | None = None) -> int:
    """d as an int, or `BadInput` where it is no dimension or too small for the fixed directions."""
    d = check_count("d", d)
    if teachers is not None and d < teachers:
        raise BadInput(f"d must be at least the number of fixed directions, {teachers}; got {d}. Use a larger d.")
    return d
