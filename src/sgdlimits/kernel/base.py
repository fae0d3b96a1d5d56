"""Interface of a kernel, which executes the steps of a process such as SGD, the Markov chain of the overlaps or the SDE."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from sgdlimits.kernel.random import Stream

MAX_COORDINATE = 1e6
"""A run has diverged if a coordinate of its state, of order 1 by convention, exceeds this value or is not finite."""


class StepTime(NamedTuple):
    """Time at the beginning of a step, and length of the step, both in samples per dimension."""

    t: Float[Array, ""]
    size: Float[Array, ""]


class Carry(eqx.Module):
    """State of a batch of runs between two calls of a kernel: the coordinates, and which runs have ended, when and why.

    `moving` marks the active runs, `stopped` those that the stop condition ended, `end` is the step at which a run ended (-1
    while it is active), and `memory` has the values that the stop condition stored at the start of each run.
    """

    state: PyTree
    moving: Bool[Array | np.ndarray, " runs"]
    stopped: Bool[Array | np.ndarray, " runs"]
    end: Int[Array | np.ndarray, " runs"]
    memory: PyTree


class StepRange(NamedTuple):
    """Range of consecutive steps: index of the first, number of steps, time at the first, and length of each."""

    first_step: Any
    steps: Any
    t: Any
    size: Any


class ProcessLike(Protocol):
    """Interface that a process, such as `sgdlimits.level.process.Process`, must offer to kernels."""

    runs_axis: ClassVar[int]

    @property
    def problem(self) -> Any:
        """Learning problem that the process describes."""

    @property
    def block(self) -> int:
        """Number of steps whose random variates are drawn together."""

    @property
    def group_size(self) -> int | None:
        """Number of runs per group if runs are processed in groups of fixed size, else None."""

    def draw(self, stream: Stream) -> PyTree:
        """Draw the random variates for the steps of a stream of random numbers."""

    def step(self, state: PyTree, variates: PyTree, now: StepTime) -> PyTree:
        """Return the states of runs after one step, given the random variates of that step."""

    def statistics(self, state: PyTree) -> PyTree:
        """Compute the summary statistics of the states of a batch of runs, with the runs on the first axis."""

    @property
    def fast_compile(self) -> bool:
        """Whether compilation time matters more than the speed of the code."""

    @property
    def check_interval(self) -> Any:
        """Maximum number of steps between two checks for divergence."""


class StopCondition(Protocol):
    """Interface that a stop condition, such as `sgdlimits.level.condition.Condition`, must offer to kernels."""

    def stop_runs(self, problem: Any, stats: PyTree, memory: PyTree, t: Any) -> Bool[Array, " runs"]:
        """Return for each run whether it stops, given its statistics, the time t, and the `memory` stored at its start."""


class Kernel(abc.ABC):
    """Base class of kernels, which make the steps of a process and check for divergence and for the stop condition."""

    name: str
    recompiles: bool
    """Whether a different number of runs needs another compilation."""

    @property
    def key(self) -> Any:
        """Key of the compiled code: kernels with equal keys share it, and `advance_many` can batch their runs."""
        return id(self)

    @abc.abstractmethod
    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        """Make the steps of `span` for the runs with indices `runs`, and return their new carry."""

    def advance_many(self, batches: Sequence[RunBatch], span: StepRange) -> list[Carry]:
        """Make the steps of `span` for several batches, whose kernels have equal keys; return the new carry of each batch."""
        return [batch.kernel.advance(batch.carry, batch.seed, batch.runs, span) for batch in batches]

    def advance_through(self, batch: RunBatch, spans: Sequence[StepRange]) -> tuple[Carry, list[RunStates]]:
        """Make the steps of several consecutive spans; return the carry after the last, and the states after each of them."""
        carry, states = batch.carry, []
        for span in spans:
            carry = self.advance(carry, batch.seed, batch.runs, span)
            states.append(RunStates(carry.state, carry.end))
        return carry, states


class RunStates(NamedTuple):
    """States of a batch of runs, and the step at which each run ended (-1 while it is active)."""

    state: PyTree
    end: Int[Array | np.ndarray, " runs"]


class RunBatch(NamedTuple):
    """Batch of runs for one call of a kernel: the kernel, the runs' present state, their seed and their indices."""

    kernel: Any
    carry: Carry
    seed: Any
    runs: Any
