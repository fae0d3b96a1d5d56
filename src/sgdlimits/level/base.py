"""Interface of levels of description: a level binds to a problem and a start, as an engine that creates steppers of runs."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, PyTree

from sgdlimits.jaxtools import GROUP_SIZE_MULTIPLE
from sgdlimits.kernel.random import Stream
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observables
from sgdlimits.part import Part
from sgdlimits.problem.base import Problem
from sgdlimits.renamed import LEVEL_MEMBERS, adopt_renamed_methods, find_renamed_attribute
from sgdlimits.start import Start

RUN_FINISHED, RUN_STOPPED, RUN_DIVERGED = "finished", "stopped", "diverged"
CONSTANT_COST_BATCH = 64
"""Batch size up to which a call of a cheap process takes about constant time; smaller sizes only add compilations."""

STATES_PER_CALL = 64
"""Maximum number of saved states whose risk and observables one compiled call evaluates."""


class Clock(NamedTuple):
    """Times at which a simulation saves, the initial time first, and the number of SGD steps made by each of them.

    The number of steps, `step`, is NaN at levels without a dimension d, such as the ODE.
    """

    t: np.ndarray
    step: np.ndarray


class Request(NamedTuple):
    """Arguments for a stepper: the seed, the runs, the times to save, the stop condition, observables and the kernel.

    `save_start` is false if the first time of the clock needs no snapshot, because it is not saved or was saved before. A state
    at a saved time may wait `max_wait` seconds for later ones, to be observed together with them in one compiled call.
    """

    seed: int
    runs: np.ndarray
    clock: Clock
    until: Condition | None = None
    observe: Observables = Observables()
    kernel: str | None = None
    save_start: bool = True
    max_wait: float = 0.0


class Snapshot(NamedTuple):
    """Statistics and observables of a batch of runs at one saved time; arrays have the runs on their first axis.

    A run that has ended keeps its last state.
    """

    stats: PyTree
    observed: dict[str, np.ndarray]


class RunStatus(NamedTuple):
    """Status of each run (finished, stopped or diverged), and the time at which it ended.

    A run that is still active has the time that it has reached.
    """

    status: np.ndarray
    t: np.ndarray


class Stepper(abc.ABC):
    """Simulation of one batch of runs, advanced in short calls from one saved time to the next.

    An exception inside a call, such as Ctrl-C, leaves the runs where the last complete call or step left them: `now`,
    `run_status` and `state` remain valid.
    """

    request: Request
    kernel: str | None = None
    """Name of the kernel that executes the steps; None for an ODE solver."""

    @property
    @abc.abstractmethod
    def initial_snapshot(self) -> Snapshot:
        """Snapshot of the runs at the first saved time; not available for resumed runs."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether the snapshots of all saved times have been returned."""

    @property
    @abc.abstractmethod
    def completed_fraction(self) -> float:
        """Simulated fraction of the time between the first and the last saved time."""

    @abc.abstractmethod
    def advance(self) -> list[Snapshot]:
        """Advance all runs by one short call and return the snapshots of the saved times reached, usually none or one."""

    @property
    def batch_key(self) -> Hashable:
        """Key of the next kernel call: steppers with equal keys may be passed to `advance_many` together."""
        return id(self)

    @classmethod
    def advance_many(cls, steppers: Sequence[Stepper]) -> list[list[Snapshot]]:
        """Advance several steppers with equal `batch_key`, in one kernel call if the level supports it."""
        return [stepper.advance() for stepper in steppers]

    def observe_waiting(self) -> list[Snapshot]:
        """Return the snapshots of saved times that have been reached, and that `advance` has not returned yet."""
        return []

    def drop_ended(self) -> None:
        """Remove ended runs from the computation if that saves time; snapshots continue to contain their last state."""
        return None

    @abc.abstractmethod
    def run_status(self) -> RunStatus:
        """Return the status of each run and the time it has reached."""

    @abc.abstractmethod
    def current_snapshot(self) -> Snapshot:
        """Return a snapshot of the runs at the time they have reached, which may lie between saved times."""

    @abc.abstractmethod
    def resume_state(self) -> Float[np.ndarray, "runs floats"]:
        """Return the state from which a new stepper resumes the runs bit for bit, as one row of floats per run.

        The state is at the last saved time or later.
        """

    def __iter__(self) -> Iterator[Snapshot]:
        """Advance to the end and yield a snapshot at each saved time.

        The first saved time is left out unless the request has `save_start`.
        """
        if self.request.save_start:
            yield self.initial_snapshot
        while not self.finished:
            yield from self.advance()


class Engine(eqx.Module):
    """Simulator of one problem at one level from one start, for which step sizes, quadrature nodes and batch sizes are chosen.

    Parameters
    ----------
    level : the level, with defaults such as step sizes and tolerances filled in
    problem : the problem, with the statistics that describe it at this level
    max_batch : maximum number of runs in one batch
    """

    level: eqx.AbstractVar[Level]
    problem: eqx.AbstractVar[Problem]
    max_batch: eqx.AbstractVar[int]

    @property
    def batch_multiple(self) -> int:
        """Number of runs of which every batch size is a multiple."""
        return GROUP_SIZE_MULTIPLE

    @property
    def floats_per_run(self) -> int:
        """Approximate number of floats in memory for one run during a step."""
        return 0

    def draw_starts(self, start: Start, stream: Stream) -> PyTree:
        """Draw the initial statistics of each run from its random stream, and check that some weights have them.

        Arrays have the runs on their first axis.
        """
        starts = self.level.draw_initial_statistics(self.problem, start, stream)
        self.problem.coordinates.check(starts)
        return starts

    @abc.abstractmethod
    def round_to_steps(self, times: np.ndarray) -> Clock:
        """Round the requested times to the nearest times at which this level can save."""

    @abc.abstractmethod
    def stepper(self, starts: PyTree, request: Request, state: Float[np.ndarray, "runs floats"] | None = None) -> Stepper:
        """Create the stepper that simulates one batch of runs of this problem and level.

        Parameters
        ----------
        starts : initial statistics, runs on the first axis; rows beyond the runs of the request are padding
        request : what to simulate: seed, runs, saved times, stop condition
        state : `state()` of an earlier stepper, to resume from it; None begins at `draw_starts`
        """


class Level(Part):
    """Base class of levels of description of SGD, such as `Chain` or `ODE`: parameters, and the engine of a problem.

    A new level subclasses this and implements `make_engine`. The class variables declare its properties to the rest of the
    package.
    """

    name: ClassVar[str]
    batchable: ClassVar[bool] = False
    """Whether simulations that differ only in parameter values can be advanced together by one kernel call."""
    shared_batch: ClassVar[int | None] = None
    """Fixed batch size of `simulate_runs` if rounding in a run depends on the other runs of its batch; otherwise None."""
    leaves_cone: ClassVar[bool] = False
    """Whether discretised noise may give overlaps that no weights have (a matrix that is not positive semi-definite)."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Take a method that a subclass defines under its former name for the present one, with a deprecation warning."""
        super().__init_subclass__(**options)
        adopt_renamed_methods(cls, LEVEL_MEMBERS)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method under its former name, with a deprecation warning."""
            return find_renamed_attribute(self, name, renamed=LEVEL_MEMBERS)

    @abc.abstractmethod
    def make_engine(self, problem: Problem, start: Start, first: PyTree) -> Engine:
        """Return the engine that simulates a problem from a start at this level, given the initial statistics of run 0."""

    def draw_initial_statistics(self, problem: Problem, start: Start, stream: Stream) -> PyTree:
        """Draw the initial statistics of each run from its random stream; arrays have the runs on their first axis.

        `problem` need not be converted by `adapt_problem`.
        """
        return start.batch(self.adapt_problem(problem), stream)

    def adapt_problem(self, problem: Problem) -> Problem:
        """Convert a problem to the statistics with which this level describes it, such as those of large d."""
        return problem


def _constant_cost_batch(multiple: int) -> int:
    """Return the batch size up to which a kernel call takes about the same time, for batch sizes divisible by `multiple`."""
    return CONSTANT_COST_BATCH if multiple == GROUP_SIZE_MULTIPLE else multiple


@lru_cache(maxsize=64)
def compiled_batch_sizes(multiple: int, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes for which code is compiled: multiples of `multiple` that about double, up to `max_batch`.

    Compiled code treats all floats of complete SIMD vectors alike, so that the results of a run do not depend on the size of
    its batch.

    >>> compiled_batch_sizes(16, 1000), compiled_batch_sizes(1, 7)
    ((16, 64, 128, 256, 512, 1008), (1, 2, 4, 7))
    """
    largest = -(-max_batch // multiple) * multiple  # rounded up
    sizes = [size for size in sorted({multiple, _constant_cost_batch(multiple)}) if size <= largest]
    while 2 * sizes[-1] < largest:  # doubling keeps the number of compilations logarithmic
        sizes.append(2 * sizes[-1])
    return tuple(sizes) if sizes[-1] == largest else (*sizes, largest)


def split_runs(runs: int, multiple: int, max_batch: int) -> list[tuple[int, int]]:
    """Split runs into batches of compiled sizes, and return (number of runs, batch size) of each.

    A batch is filled up by padding runs: at most a quarter of it, unless its size is in the range of constant cost.

    >>> split_runs(48, 16, 8192), split_runs(300, 16, 8192), split_runs(10, 1, 4), split_runs(10, 16, 7), split_runs(5, 4, 100)
    ([(48, 64)], [(256, 256), (44, 64)], [(4, 4), (4, 4), (2, 2)], [(7, 16), (3, 16)], [(4, 4), (1, 4)])
    """
    sizes = compiled_batch_sizes(multiple, max_batch)
    constant_cost = _constant_cost_batch(multiple)
    split: list[tuple[int, int]] = []
    left = runs
    while left:
        above = next((size for size in sizes if size >= left), sizes[-1])
        full = max((size for size in sizes if size <= left), default=above)
        size = above if left >= 0.75 * above or above <= constant_cost else full
        split.append((min(left, size, max_batch), size))
        left -= split[-1][0]
    return split
