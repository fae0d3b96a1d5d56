"""The interface of a level of description: it binds to a problem and a start, and what it gives can be followed."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, PyTree

from sgdlimits.jaxtools import GROUP_ALIGNMENT
from sgdlimits.kernel.random import Stream
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observe
from sgdlimits.part import Part
from sgdlimits.problem.base import Problem
from sgdlimits.start import Start

FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"


class Clock(NamedTuple):
    """Times to save at, the first of which is where the runs are; and their numbers of SGD steps (NaN without d)."""

    t: np.ndarray
    step: np.ndarray


class Request(NamedTuple):
    """What an engine is asked for: runs by number with their seed, times to save at, when to stop, what to look at, and how.

    The first time is where runs set out; unless it is `begin_shown`, what is seen there may be left out.
    """

    seed: int
    runs: np.ndarray
    clock: Clock
    until: Condition | None = None
    observe: Observe = Observe()
    kernel: str | None = None
    begin_shown: bool = True


class Snapshot(NamedTuple):
    """How far a stepper has come, as a share of its time, and what it shows where that is a saved time.

    Statistics and observables are arrays, runs first. A run that has ended keeps its last state.
    """

    share: float
    stats: PyTree = None
    observed: dict[str, np.ndarray] | None = None


class RunStatus(NamedTuple):
    """How each run stands, and when it ended or, where it has not, how far it has come."""

    status: np.ndarray
    t: np.ndarray


class Stepper(abc.ABC):
    """A batch of runs under way. Iterate over it, and ask at any time, after an interruption too, how the runs stand."""

    request: Request
    kernel: str | None = None
    """The name of what makes its steps, where it makes any."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Snapshot]:
        """Ticks: at the first saved time, and at least at each of the others."""

    @abc.abstractmethod
    def ends(self) -> RunStatus:
        """How each run stands."""

    def in_full(self, first: Snapshot) -> Snapshot:
        """The first snapshot with what it left out since nobody had asked for it."""
        return first

    @abc.abstractmethod
    def now(self) -> Snapshot:
        """What the runs show where they are, between saved times too."""

    @abc.abstractmethod
    def state(self) -> Float[np.ndarray, "runs numbers"]:
        """All that it takes to go on from the last saved time, or later, bit by bit as if nothing had stopped."""


class Engine(eqx.Module):
    """A level bound to a problem and a start: everything is chosen.

    Parameters
    ----------
    level : with the parameters it chose for itself
    problem : in this level's own statistics
    most : how many runs to hold at once
    vector : batches are filled up to multiples of so many runs
    """

    level: eqx.AbstractVar[Level]
    problem: eqx.AbstractVar[Problem]
    most: eqx.AbstractVar[int]

    @property
    def vector(self) -> int:
        return GROUP_ALIGNMENT

    @property
    def numbers(self) -> int:
        """About how many numbers the steps of one run take."""
        return 0

    def starts(self, start: Start, stream: Stream) -> PyTree:
        """The statistics in which the stream's runs start, runs first, checked."""
        starts = self.level.first(self.problem, start, stream)
        self.problem.coordinates.check(starts)
        return starts

    @abc.abstractmethod
    def snap(self, times: np.ndarray) -> Clock:
        """The times that this level can save at nearest to those asked for."""

    @abc.abstractmethod
    def stepper(self, starts: PyTree, request: Request, state: Float[np.ndarray, "runs numbers"] | None = None) -> Stepper:
        """Set out with a batch of runs from their statistics (runs first), or from the state in which a stepper left them.

        `starts` may hold more runs than the request: the last is repeated up to one of a few sizes.
        """


class Level(Part):
    """How a problem's SGD is described: its parameters, and `bind`."""

    name: ClassVar[str]
    batchable: ClassVar[bool] = False
    """Whether the steps of simulations that differ in numbers can be made together."""

    @abc.abstractmethod
    def bind(self, problem: Problem, start: Start, first: PyTree) -> Engine:
        """The engine for one problem and start; `first` are the statistics of its first run."""

    def first(self, problem: Problem, start: Start, stream: Stream) -> PyTree:
        """The statistics of the stream's runs, runs first, before anything is chosen too."""
        return start.batch(self.view(problem), stream)

    def view(self, problem: Problem) -> Problem:
        """The problem in the statistics of this level."""
        return problem


def _flat(vector: int) -> int:
    """Up to how many runs a batch costs about the same."""
    return 64 if vector == GROUP_ALIGNMENT else vector


@lru_cache(maxsize=64)
def ladder(vector: int, most: int) -> tuple[int, ...]:
    """The sizes that batches have: few, and multiples of a vector.

    Compiled code treats the numbers of whole vectors alike, so that those of a run do not depend on the batch it is in.

    >>> ladder(16, 1000), ladder(1, 7)
    ((16, 64, 128, 256, 512, 1008), (1, 2, 4, 7))
    """
    most = -(-most // vector) * vector
    sizes = [size for size in sorted({vector, _flat(vector)}) if size <= most]
    while 2 * sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return tuple(sizes) if sizes[-1] == most else (*sizes, most)


def batches(runs: int, vector: int, most: int) -> list[tuple[int, int]]:
    """(runs, size) of each batch: sizes of the ladder, of which at most a quarter is filling where that costs.

    >>> batches(48, 16, 8192), batches(300, 16, 8192), batches(10, 1, 4), batches(10, 16, 7), batches(5, 4, 100)
    ([(48, 64)], [(256, 256), (44, 64)], [(4, 4), (4, 4), (2, 2)], [(7, 16), (3, 16)], [(4, 4), (1, 4)])
    """
    sizes, plan, left, flat = ladder(vector, most), [], runs, _flat(vector)
    while left:
        above = next((size for size in sizes if size >= left), sizes[-1])
        full = max((size for size in sizes if size <= left), default=above)
        size = above if left >= 0.75 * above or above <= flat else full
        plan.append((min(left, size, most), size))
        left -= plan[-1][0]
    return plan
