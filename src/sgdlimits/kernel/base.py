"""Interface of a kernel: it executes the steps of a process, whose law a level defines."""

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
    """State of runs between two calls of a kernel.

    `moving` marks the active runs, `stopped` those that the stop condition ended, `end` is the step at which a run ended (-1
    while it is active), and `memory` is what the stop condition remembers of its start.
    """

    state: PyTree
    moving: Bool[Array | np.ndarray, " runs"]
    stopped: Bool[Array | np.ndarray, " runs"]
    end: Int[Array | np.ndarray, " runs"]
    memory: PyTree


class StepRange(NamedTuple):
    """Consecutive steps: number of the first, their count, time of the first, and length of each."""

    first: Any
    steps: Any
    t: Any
    size: Any


class ProcessLike(Protocol):
    """Members of `sgdlimits.level.process.Process` that kernels use."""

    runs_axis: ClassVar[int]

    @property
    def problem(self) -> Any: ...

    @property
    def block(self) -> int: ...

    @property
    def group_size(self) -> int | None: ...

    def draw(self, stream: Stream) -> PyTree: ...

    def step(self, state: PyTree, numbers: PyTree, now: StepTime) -> PyTree: ...

    def statistics(self, state: PyTree) -> PyTree: ...

    @property
    def fast_compile(self) -> bool: ...

    @property
    def check_interval(self) -> Any: ...


class StopCondition(Protocol):
    """Members of `sgdlimits.level.condition.Condition` that kernels use."""

    def stop_runs(self, problem: Any, stats: PyTree, memory: PyTree, t: Any) -> Bool[Array, " runs"]: ...


class Kernel(abc.ABC):
    """Implementation of the steps of one process, including the checks for divergence and for the stop condition."""

    name: str
    recompiles: bool
    """Whether a different number of runs needs another compilation."""

    @property
    def key(self) -> Any:
        """Key of the compiled code: kernels with equal keys share it, and `advance_many` can batch their runs."""
        return id(self)

    @abc.abstractmethod
    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        """Make the steps of `span` for the runs with indices `runs`, and return the new carry."""

    def advance_many(self, batches: Sequence[RunBatch], span: StepRange) -> list[Carry]:
        """Make the steps of `span` for several batches, whose kernels have the same key; return the new carry of each."""
        return [batch.kernel.advance(batch.carry, batch.seed, batch.runs, span) for batch in batches]


class RunBatch(NamedTuple):
    """Runs of one call of a kernel: their indices, seed, present state and kernel."""

    kernel: Any
    carry: Carry
    seed: Any
    runs: Any
