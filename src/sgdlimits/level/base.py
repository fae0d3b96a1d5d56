"""Interface of a level: it binds to a problem and a start, and the resulting engine makes steppers of batches of runs."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator, Sequence
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
FLAT_BATCH = 64
"""Up to this size a batch of fast steps costs about the same, so that smaller sizes would only compile more often."""


class Clock(NamedTuple):
    """Saved times, the first of which is that of the runs' first state, and their numbers of SGD steps (NaN without d)."""

    t: np.ndarray
    step: np.ndarray


class Request(NamedTuple):
    """Arguments of a stepper: seed, indices of the runs, saved times, stop condition, observables and kernel.

    Without `save_start` the state at the first time of the clock need not be observed: it is not saved, or was saved before.
    """

    seed: int
    runs: np.ndarray
    clock: Clock
    until: Condition | None = None
    observe: Observe = Observe()
    kernel: str | None = None
    save_start: bool = True


class Snapshot(NamedTuple):
    """Statistics and observables of a batch at one time, runs first. A run that has ended keeps its last state."""

    stats: PyTree
    observed: dict[str, np.ndarray]


class RunStatus(NamedTuple):
    """Status of each run, and the time at which it ended or, for an active run, which it has reached."""

    status: np.ndarray
    t: np.ndarray


class Stepper(abc.ABC):
    """A batch of runs, advanced in short calls from one saved time to the next.

    An exception inside a call, such as Ctrl-C, leaves the runs where the last complete call or step left them: `now`,
    `run_status` and `state` remain valid.
    """

    request: Request
    kernel: str | None = None
    """Name of the kernel that makes the steps; None for a solver."""

    @property
    @abc.abstractmethod
    def initial(self) -> Snapshot:
        """Snapshot at the first time of the clock, for runs that were not resumed."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether the snapshots of all saved times have been returned."""

    @property
    @abc.abstractmethod
    def share(self) -> float:
        """Share of the time from the first to the last saved time that the runs have covered."""

    @abc.abstractmethod
    def advance(self) -> list[Snapshot]:
        """Advance the runs by one short call, and return the snapshots of the saved times reached, mostly none or one."""

    @property
    def batch_key(self) -> Hashable:
        """Key of the next call: `advance_many` may take steppers with equal keys."""
        return id(self)

    @classmethod
    def advance_many(cls, steppers: Sequence[Stepper]) -> list[list[Snapshot]]:
        """Call `advance` on steppers with equal keys, as one batch where the level can."""
        return [stepper.advance() for stepper in steppers]

    def drop_ended(self) -> None:
        """Stop computing runs that have ended where that pays; their last state stays in all snapshots."""
        return None

    @abc.abstractmethod
    def run_status(self) -> RunStatus:
        """Return the status of each run."""

    @abc.abstractmethod
    def now(self) -> Snapshot:
        """Observe the runs at their present time, which may lie between saved times."""

    @abc.abstractmethod
    def state(self) -> Float[np.ndarray, "runs floats"]:
        """Return the rows from which a stepper resumes, bit for bit, at the last saved time returned, or after it."""

    def __iter__(self) -> Iterator[Snapshot]:
        """Advance to the end, and yield a snapshot at each saved time; at the first one if the request has `save_start`."""
        if self.request.save_start:
            yield self.initial
        while not self.finished:
            yield from self.advance()


class Engine(eqx.Module):
    """A level bound to a problem and a start: step sizes, quadrature nodes and batch sizes are fixed.

    Parameters
    ----------
    level : with the parameters it chose for itself
    problem : in this level's own statistics
    max_batch : number of runs to hold at once
    """

    level: eqx.AbstractVar[Level]
    problem: eqx.AbstractVar[Problem]
    max_batch: eqx.AbstractVar[int]

    @property
    def batch_multiple(self) -> int:
        """Number of runs whose multiples are the sizes of batches."""
        return GROUP_ALIGNMENT

    @property
    def floats_per_run(self) -> int:
        """Approximate number of floats in memory per run while steps are made."""
        return 0

    def starts(self, start: Start, stream: Stream) -> PyTree:
        """Draw the initial statistics of the stream's runs, runs first, and check them."""
        starts = self.level.first(self.problem, start, stream)
        self.problem.coordinates.check(starts)
        return starts

    @abc.abstractmethod
    def snap(self, times: np.ndarray) -> Clock:
        """Round the requested times to the nearest times at which this level can save."""

    @abc.abstractmethod
    def stepper(self, starts: PyTree, request: Request, state: Float[np.ndarray, "runs floats"] | None = None) -> Stepper:
        """Make the stepper of a batch of runs from their statistics (runs first), or from the `state` of an earlier stepper.

        `starts` may hold more runs than the request: the last run is repeated to fill the batch.
        """


class Level(Part):
    """A description of a problem's SGD: its parameters, and `bind`.

    A new level subclasses this and implements `bind`; the class variables tell the rest of the package what it needs to know.
    """

    name: ClassVar[str]
    batchable: ClassVar[bool] = False
    """Whether steps of simulations that differ only in parameter values can be made in one call."""
    shared_batch: ClassVar[int | None] = None
    """Size of the batches of `simulate_runs` where the rounding of a run depends on the other runs of its batch; None else."""
    leaves_cone: ClassVar[bool] = False
    """Whether discretised noise may give statistics that no weights have: Q - M P^-1 M^T with negative eigenvalues."""

    @abc.abstractmethod
    def bind(self, problem: Problem, start: Start, first: PyTree) -> Engine:
        """Return the engine for one problem and start; `first` holds the initial statistics of run 0."""

    def first(self, problem: Problem, start: Start, stream: Stream) -> PyTree:
        """Draw the initial statistics of the stream's runs, runs first, from the problem before it is bound, too."""
        return start.batch(self.view(problem), stream)

    def view(self, problem: Problem) -> Problem:
        """Return the problem in the statistics of this level."""
        return problem


def _smallest(multiple: int) -> int:
    """Return the size below which a batch costs about the same."""
    return FLAT_BATCH if multiple == GROUP_ALIGNMENT else multiple


@lru_cache(maxsize=64)
def compiled_batch_sizes(multiple: int, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes that are compiled: few, and multiples of `multiple`.

    Compiled code treats the floats of complete vectors alike, so that those of a run do not depend on the size of its batch.

    >>> compiled_batch_sizes(16, 1000), compiled_batch_sizes(1, 7)
    ((16, 64, 128, 256, 512, 1008), (1, 2, 4, 7))
    """
    largest = -(-max_batch // multiple) * multiple
    sizes = [size for size in sorted({multiple, _smallest(multiple)}) if size <= largest]
    while 2 * sizes[-1] < largest:
        sizes.append(2 * sizes[-1])
    return tuple(sizes) if sizes[-1] == largest else (*sizes, largest)


def split_runs(runs: int, multiple: int, max_batch: int) -> list[tuple[int, int]]:
    """Split runs into batches, (runs, size) each: sizes of the ladder, padded by at most a quarter where padding costs.

    >>> batches(48, 16, 8192), batches(300, 16, 8192), batches(10, 1, 4), batches(10, 16, 7), batches(5, 4, 100)
    ([(48, 64)], [(256, 256), (44, 64)], [(4, 4), (4, 4), (2, 2)], [(7, 16), (3, 16)], [(4, 4), (1, 4)])
    """
    sizes, flat = compiled_batch_sizes(multiple, max_batch), _smallest(multiple)
    split: list[tuple[int, int]] = []
    left = runs
    while left:
        above = next((size for size in sizes if size >= left), sizes[-1])
        full = max((size for size in sizes if size <= left), default=above)
        size = above if left >= 0.75 * above or above <= flat else full
        split.append((min(left, size, max_batch), size))
        left -= split[-1][0]
    return split
