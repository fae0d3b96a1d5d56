"""The interface of a kernel: how the steps of a process are made, apart from what they are."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from sgdlimits.kernel.random import Stream

LIMIT = 1e6
"""A run has diverged when a coordinate of its state, of order 1 by convention, is above this or not finite."""


class Moment(NamedTuple):
    """When a step is made, and how long it is, in t."""

    t: Float[Array, ""]
    size: Float[Array, ""]


class Carry(eqx.Module):
    """States, which runs still move, at which step each run ended (-1 while it moves), and what `until` remembers of it."""

    state: PyTree
    moving: Bool[Array | np.ndarray, " runs"]
    stopped: Bool[Array | np.ndarray, " runs"]
    end: Int[Array | np.ndarray, " runs"]
    memory: PyTree


class Span(NamedTuple):
    """Steps to make: the number of the first and how many, when the first is made, and how long each is."""

    first: Any
    steps: Any
    t: Any
    size: Any


class Steps(Protocol):
    """What a kernel needs to know of a process: `sgdlimits.level.process.Process` says what each of them is."""

    runs_axis: ClassVar[int]

    @property
    def problem(self) -> Any: ...

    @property
    def block(self) -> int: ...

    @property
    def together(self) -> int | None: ...

    def draw(self, stream: Stream) -> PyTree: ...

    def step(self, state: PyTree, numbers: PyTree, now: Moment) -> PyTree: ...

    def statistics(self, state: PyTree) -> PyTree: ...

    @property
    def small(self) -> bool: ...

    @property
    def patience(self) -> Any: ...


class Ending(Protocol):
    """What a kernel needs to know of when runs stop: `sgdlimits.level.condition.Condition`."""

    def stop_runs(self, problem: Any, stats: PyTree, memory: PyTree, t: Any) -> Bool[Array, " runs"]: ...

    def guard(self, process: Any, state: PyTree, memory: PyTree, closed: bool = False) -> Any: ...


class Kernel(abc.ABC):
    """Makes the steps of one process, until runs stop."""

    name: str
    costly: bool
    """Whether another number of runs has to be compiled again."""

    @property
    def key(self) -> Any:
        """Kernels that have the same one make their steps `together`."""
        return id(self)

    @abc.abstractmethod
    def advance(self, carry: Carry, seed: Any, runs: Any, span: Span) -> Carry:
        """More steps of runs by number."""

    def together(self, lots: Sequence[Lot], span: Span) -> list[Carry]:
        """More steps of all lots, whose kernels have the key of this one."""
        return [lot.kernel.advance(lot.carry, lot.seed, lot.runs, span) for lot in lots]


class Lot(NamedTuple):
    """Runs by number with their seed, which a kernel makes steps of."""

    kernel: Any
    carry: Carry
    seed: Any
    runs: Any
