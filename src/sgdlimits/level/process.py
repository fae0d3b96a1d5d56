"""Interface of levels that make steps: a Markov chain on states of many runs, and its steps between saved times."""

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
"""Maximum number of steps: step counts are stored as doubles in places, which are exact up to this number."""


class Process(eqx.Module):
    """A Markov chain on the states of a batch of runs, advanced by one step per call.

    `draw` generates the random variates of several steps, and `step` makes one step from them. The split lets the compiler
    vectorise the generator and keeps the code of a step small. Variates are keyed by run and step, so that results do not
    depend on how runs are split into batches. A kernel (see `sgdlimits.kernel`) decides how steps are executed.
    """

    runs_axis: ClassVar[int] = -1
    problem: eqx.AbstractVar[Problem]
    block: eqx.AbstractVar[int]
    """Number of steps whose random variates are drawn together."""

    @abc.abstractmethod
    def start(self, stats: PyTree) -> PyTree:
        """Return the states of runs with the given statistics (runs first)."""

    def check_start(self, stats: PyTree) -> None:
        """Raise `BadInput` unless runs can start with the given statistics; `start` may make part of the checks itself."""
        self.problem.coordinates.check(stats)

    @abc.abstractmethod
    def draw(self, stream: Stream) -> PyTree:
        """Draw the random variates of the steps of a stream: a pytree of arrays, steps first.

        If their law changes with time, use `draw_by_step`, which draws each step from the problem at its time.
        """

    @abc.abstractmethod
    def step(self, state: PyTree, numbers: PyTree, now: StepTime) -> PyTree:
        """Return the states after one step, from the random variates of that step."""

    @abc.abstractmethod
    def statistics(self, state: PyTree) -> PyTree:
        """Compute the statistics of the states, runs first."""

    def risk(self, state: PyTree, stats: PyTree, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        """Compute the population risk of the states, whose statistics are `stats`, with a time `t` for each run."""
        return self.problem.numerics.over_runs(lambda one: self.problem.at(one[1]).risk(one[0]), (stats, t))

    @property
    def group_size(self) -> int | None:
        """Number of runs per group if runs are processed in groups of fixed size; None processes all runs at once."""
        return None

    @property
    def floats_per_run(self) -> int:
        """Approximate memory per run during a step, in floats."""
        return 0

    @property
    def fast_compile(self) -> bool:
        """Whether a step is cheap enough that compilation time matters more than the speed of the code."""
        return False

    @property
    def check_interval(self) -> Float[Array, ""] | int:
        """Maximum number of steps between two checks for divergence; a diverged run is reset to its state at the last check."""
        return self.block


def reports_problem_risk(process: Process) -> bool:
    """Return whether a process reports the risk of its problem at the statistics, the risk that stop conditions evaluate."""
    return type(process).risk is Process.risk


def draw_by_step(process: Process, stream: Stream) -> PyTree:
    """Draw the random variates of a stream's steps one step after the other, each from the problem at its time.

    For processes whose variates have a law that changes with time.
    """
    t = jnp.zeros(stream.steps) if stream.t is None else stream.t

    def draw(i):
        return eqx.tree_at(lambda process: process.problem, process, process.problem.at(t[i])).draw(stream.step(i))

    if stream.steps == 1:
        return draw(0)
    # lax.map, not vmap: one step's variates are generated at a time, by code that is compiled once
    return jax.tree.map(lambda leaf: leaf[:, 0], lax.map(draw, jnp.arange(stream.steps)))


class SteppingEngine(Engine):
    """An engine at finite dimension, whose saved times are whole numbers of SGD steps."""

    d: eqx.AbstractVar[int]

    @property
    def step_time(self) -> float:
        """Duration of one step of SGD, in t."""
        return self.problem.numerics.samples_per_step / self.d

    def snap(self, times):
        samples = self.problem.numerics.samples_per_step
        if times[-1] > MAX_STEPS * self.step_time:
            raise BadInput(f"t_max = {times[-1]:g} needs more than 2^53 steps of {self.step_time:g}. Use a smaller t_max.")
        # two times in the same step are saved once
        steps = np.unique(np.rint(times * self.d / samples).astype(np.int64))
        if steps[-1] < 1:
            raise BadInput(
                f"t_max must be at least one step, {samples}/d = {self.step_time:g}; got {times[-1]:g}. Give a larger t_max."
            )
        return Clock(steps * samples / self.d, steps)


class Segments(NamedTuple):
    """Steps between neighbouring saved times: their number, their size in t, and the time at which the first begins.

    A saved time may lie a fraction of a step after the last whole step of its segment: `remainders` has that time, or zero.
    """

    counts: np.ndarray
    sizes: np.ndarray
    begins: np.ndarray
    remainders: np.ndarray

    @classmethod
    def on_grid(cls, times: np.ndarray, size: float) -> Segments:
        """Return the segments between `times` of steps that lie on the grid 0, size, 2 size, ..."""
        steps = np.floor(times / size + 1e-9)  # times on the grid up to rounding count as on it
        remainders = np.where(times - steps * size > 1e-9 * size, times - steps * size, 0.0)
        return cls(np.diff(steps).astype(np.int64), np.full(steps.size - 1, size), steps[:-1] * size, remainders[1:])

    def time_after(self, steps: np.ndarray) -> np.ndarray:
        """Return the times after numbers of steps, counted from the beginning of the first segment."""
        ends = self.begins[-1:] + self.counts[-1:] * self.sizes[-1:]
        return np.interp(steps, np.concatenate([[0], np.cumsum(self.counts)]), np.concatenate([self.begins, ends]))
