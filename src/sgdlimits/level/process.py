"""Markov chains of statistics, and their steps in time."""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import Clock, Engine
from sgdlimits.problem.base import Problem

MAX_STEPS = 2.0**53
"""Steps are counted by doubles in places, and nobody waits for so many."""


class Process(eqx.Module):
    """A Markov chain on the states of many runs at once, one step a call.

    `draw` makes the random numbers of several steps, on which `step` then depends; splitting the two lets the compiler
    vectorise the generator and keep the step small. Numbers are keyed by the run and the step, so nothing depends on batches.
    How steps are made is up to a kernel (see `sgdlimits.kernel`).
    """

    runs_axis: ClassVar[int] = -1
    problem: eqx.AbstractVar[Problem]
    block: eqx.AbstractVar[int]
    """Steps drawn at once."""

    @abc.abstractmethod
    def start(self, stats: PyTree) -> PyTree:
        """The states of runs with these statistics (runs first)."""

    @abc.abstractmethod
    def draw(self, stream: Stream) -> PyTree:
        """The random numbers of the stream's steps: a pytree of arrays with the steps first.

        Where their law changes with time, `draw_by_step` draws those of each step from the problem at its time.
        """

    @abc.abstractmethod
    def step(self, state: PyTree, numbers: PyTree, now: StepTime) -> PyTree:
        """The states after one step with one step's random numbers."""

    @abc.abstractmethod
    def statistics(self, state: PyTree) -> PyTree:
        """The statistics of the states, runs first."""

    def risk(self, state: PyTree, stats: PyTree, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        """The population risk of the states, which have these statistics, at a time for each run."""
        return self.problem.numerics.over_runs(lambda one: self.problem.at(one[1]).risk(one[0]), (stats, t))

    @property
    def group_size(self) -> int | None:
        """Number of runs per group when runs are processed in groups of fixed size; None processes all runs at once."""
        return None

    @property
    def floats_per_run(self) -> int:
        """About how many numbers the steps of one run take."""
        return 0

    @property
    def fast_compile(self) -> bool:
        """Whether a step is so cheap that compilation time matters more than speed."""
        return False

    @property
    def check_interval(self) -> Float[Array, ""] | int:
        """Maximum number of steps between two checks for divergence; a diverged run is reset to its state at the last check."""
        return self.block


def reports_problem_risk(process: Process) -> bool:
    """Return whether the risk that a process reports is that of its problem at the statistics, which conditions evaluate."""
    return type(process).risk is Process.risk


def draw_by_step(process: Process, stream: Stream) -> PyTree:
    """The numbers of a stream's steps where their law changes with time: of each step from the problem at its time."""
    t = jnp.zeros(stream.steps) if stream.t is None else stream.t
    there = lambda i: eqx.tree_at(lambda process: process.problem, process, process.problem.at(t[i])).draw(stream.step(i))
    if stream.steps == 1:
        return there(0)
    return jax.tree.map(lambda leaf: leaf[:, 0], lax.map(there, jnp.arange(stream.steps)))


class SteppingEngine(Engine):
    """An engine at a finite dimension, which saves after whole steps of SGD."""

    d: eqx.AbstractVar[int]

    @property
    def step_time(self) -> float:
        """One step of SGD, in t."""
        return self.problem.numerics.samples_per_step / self.d

    def snap(self, times):
        samples = self.problem.numerics.samples_per_step
        if times[-1] > MAX_STEPS * self.step_time:
            raise BadInput(f"t_max = {times[-1]:g} is more steps of {self.step_time:g} than can be made. Use a smaller t_max.")
        steps = np.unique(np.rint(times * self.d / samples).astype(np.int64))
        if steps[-1] < 1:
            raise BadInput(
                f"t_max must be at least one step, {samples}/d = {self.step_time:g}; got {times[-1]:g}. Give a larger t_max."
            )
        return Clock(steps * samples / self.d, steps)


class Segments(NamedTuple):
    """The steps between neighbouring times to show: how many, the size of each in t, and where the first begins.

    What is shown may lie a part of a step behind the last one, by `rests`.
    """

    counts: np.ndarray
    sizes: np.ndarray
    begins: np.ndarray
    rests: np.ndarray

    @classmethod
    def on_grid(cls, times: np.ndarray, size: float) -> Segments:
        """Steps of one size from t = 0 on, whatever the times."""
        steps = np.floor(times / size + 1e-9)
        rests = np.where(times - steps * size > 1e-9 * size, times - steps * size, 0.0)
        return cls(np.diff(steps).astype(np.int64), np.full(steps.size - 1, size), steps[:-1] * size, rests[1:])

    def when(self, steps: np.ndarray) -> np.ndarray:
        """The times of numbers of steps since the first segment began."""
        ends = self.begins[-1:] + self.counts[-1:] * self.sizes[-1:]
        return np.interp(steps, np.concatenate([[0], np.cumsum(self.counts)]), np.concatenate([self.begins, ends]))
