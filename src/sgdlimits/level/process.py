"""Interface of levels that make steps: a Markov chain on states of many runs, and its steps between saved times."""

from __future__ import annotations

import abc
from typing import ClassVar

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
"""Maximum number of steps: doubles, in which some step counts are stored, are exact integers up to this number."""


class Process(eqx.Module):
    """A Markov chain on the states of a batch of runs, whose `step` advances all runs by one step.

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
        """Return the states of runs that begin with the given statistics, which have the runs on their first axis."""

    def check_start(self, stats: PyTree) -> None:
        """Raise `BadInput` unless runs can begin with the given statistics; `start` may do some of the checks itself."""
        self.problem.coordinates.check(stats)

    @abc.abstractmethod
    def draw(self, stream: Stream) -> PyTree:
        """Draw the random variates of all runs and steps of a random stream: a pytree of arrays with the steps first.

        If their law changes with time, use `draw_by_step`, which draws each step from the problem at its time.
        """

    @abc.abstractmethod
    def step(self, state: PyTree, variates: PyTree, now: StepTime) -> PyTree:
        """Return the states after one step; `variates` holds the random variates of the step."""

    @abc.abstractmethod
    def statistics(self, state: PyTree) -> PyTree:
        """Compute the statistics of the states, such as overlaps, with the runs on the first axis."""

    def risk(self, state: PyTree, stats: PyTree, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        """Compute the population risk of each run from its state, its statistics and its time."""
        return self.problem.numerics.over_runs(lambda one: self.problem.at(one[1]).risk(one[0]), (stats, t))

    @property
    def group_size(self) -> int | None:
        """Number of runs per group if runs are processed in groups of fixed size; None processes all runs at once."""
        return None

    @property
    def floats_per_run(self) -> int:
        """Approximate number of floats in memory for one run during a step."""
        return 0

    @property
    def fast_compile(self) -> bool:
        """Whether a step is so cheap that compilation time matters more than the speed of the compiled code."""
        return False

    @property
    def check_interval(self) -> Float[Array, ""] | int:
        """Maximum number of steps between two checks for divergence.

        A diverged run is reset to its state at the last check.
        """
        return self.block


def reports_problem_risk(process: Process) -> bool:
    """Return whether the risk that a process reports is `problem.risk` of its statistics, as stop conditions evaluate it."""
    return type(process).risk is Process.risk


def draw_by_step(process: Process, stream: Stream) -> PyTree:
    """Draw the random variates of a stream's steps one step at a time, each with the problem's parameters at its time.

    A process whose variates have a law that changes with time uses this as its `draw`.
    """
    t = jnp.zeros(stream.steps) if stream.t is None else stream.t

    def draw_step(i):
        return eqx.tree_at(lambda process: process.problem, process, process.problem.at(t[i])).draw(stream.step(i))

    if stream.steps == 1:
        return draw_step(0)
    # lax.map, not vmap: one step's variates are generated at a time, by code that is compiled once
    return jax.tree.map(lambda leaf: leaf[:, 0], lax.map(draw_step, jnp.arange(stream.steps)))


class SteppingEngine(Engine):
    """A level bound to a problem that makes SGD steps at finite dimension d, and saves after whole steps."""

    d: eqx.AbstractVar[int]

    @property
    def step_time(self) -> float:
        """Duration of one step of SGD in units of t: the batch size divided by d."""
        return self.problem.numerics.samples_per_step / self.d

    def round_to_steps(self, times):
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
