"""Markov chains of statistics, and the loop that runs them."""

from __future__ import annotations

import abc
import math
import time
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.level.base import DIVERGED, FINISHED, LIMIT, STOPPED, Job, Level, Track
from sgdlimits.level.condition import Condition
from sgdlimits.problem.base import Problem
from sgdlimits.random import Stream

CALL_SECONDS = 0.3
"""How long one call of the compiled loop should take: progress, Ctrl-C and dropping ended runs happen between calls."""
COMPILE_SECONDS = 3.0
"""What compiling the loop for another number of runs takes at least."""


class Process(eqx.Module):
    """A Markov chain on the states of many runs at once, one step a call.

    `draw` makes the random numbers of several steps, on which `step` then depends; splitting the two lets the compiler
    vectorise the generator and keep the step small. Numbers are keyed by the run and the step, so nothing depends on batches.
    """

    runs_axis: ClassVar[int] = -1
    problem: eqx.AbstractVar[Problem]
    block: eqx.AbstractVar[int]
    """Steps drawn at once. Divergence is checked after each block, and a diverged run returns to the block's start."""

    @abc.abstractmethod
    def start(self, stats: PyTree) -> PyTree:
        """The states of runs with these statistics (runs first)."""

    @abc.abstractmethod
    def draw(self, stream: Stream) -> PyTree:
        """The random numbers of the stream's steps: a pytree of arrays with the steps first."""

    @abc.abstractmethod
    def step(self, state: PyTree, numbers: PyTree, size: Float[Array, ""]) -> PyTree:
        """The states after one step with one step's random numbers; `size` is the step in t, for levels that choose it."""

    @abc.abstractmethod
    def statistics(self, state: PyTree) -> PyTree:
        """The statistics of the states, runs first."""

    @abc.abstractmethod
    def risk(self, state: PyTree) -> Float[Array, " runs"]:
        """The population risk of the states."""


class Carry(eqx.Module):
    """States, which runs still move, at which step each run ended (-1 while it moves), and what `until` remembers of it."""

    state: PyTree
    moving: Bool[Array, " runs"]
    stopped: Bool[Array, " runs"]
    end: Int[Array, " runs"]
    memory: PyTree


class SteppingLevel(Level):
    """A level at a finite dimension, whose clock ticks once a step of SGD: its parameters and its process."""

    d: eqx.AbstractVar[int]

    @abc.abstractmethod
    def process(self, problem: Problem) -> Process:
        """The chain that this level runs."""

    def segments(self, problem: Problem, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Between neighbouring times, the number of steps and the size of each in t."""
        counts = np.diff(self._steps(problem, times))
        return counts, np.full(counts.size, problem.samples_per_step / self.d)

    def run(self, problem, starts, job):
        return march(self.process(problem), starts, job, *self.segments(problem, job.times))

    def snap(self, problem, times):
        steps, samples = np.unique(self._steps(problem, times)), problem.samples_per_step
        if steps[-1] < 1:
            raise BadInput(
                f"t_max must be at least one step, {samples}/d = {samples / self.d:g}; got {times[-1]:g}. Give a larger t_max."
            )
        return steps * samples / self.d, steps

    def _steps(self, problem: Problem, times: np.ndarray) -> np.ndarray:
        """The numbers of SGD steps nearest to the times."""
        return np.rint(times * self.d / problem.samples_per_step).astype(np.int64)


def march(process: Process, starts: PyTree, job: Job, counts: np.ndarray, sizes: np.ndarray) -> Track:
    """Run a process from `starts` through segments of `counts` steps of `sizes`, saving at the start and after each."""
    stream = Stream.of(job.seed, job.runs)
    seed, runs = stream.seed, stream.runs
    here = np.arange(len(job.runs))
    carry = _begin(process, job.until, process.start(starts))
    shown = _observe(process, carry.state)
    saved = [shown]
    ended = _Ended(len(job.runs))
    pace = _Pace(process.block)
    first, total = 0, max(1, int(counts.sum()))
    try:
        for count, size in zip(counts, sizes, strict=True):
            left = int(count)
            while left and ended.update(carry, here):
                few = _few(np.asarray(carry.moving)) if pace.seconds > pace.compiling else None
                if few is not None:
                    shown = _scatter(shown, _observe(process, carry.state), here)
                    carry, runs, here = _keep(process, carry, few), runs[few], here[few]
                    pace.restart()
                now = min(left, pace.steps)
                span = np.asarray([first, now])
                begin = time.perf_counter()
                carry = jax.block_until_ready(advance(process, job.until, carry, seed, runs, span, np.asarray(size)))
                pace.note(now, time.perf_counter() - begin)
                first, left = first + now, left - now
                job.report(now / total)
            first += left
            job.report(left / total)
            shown = _scatter(shown, _observe(process, carry.state), here)
            saved.append(shown)
            ended.update(carry, here)
    except KeyboardInterrupt:
        pass  # fewer saved times than asked for say so
    stats, risk = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *saved)
    steps = np.concatenate([[0], np.cumsum(counts)])
    t_end = np.interp(np.where(ended.step >= 0, ended.step, first), steps, job.times)
    return Track(stats, risk, ended.status(), t_end, len(saved))


@eqx.filter_jit
def advance(process: Process, until: Condition | None, carry: Carry, seed, runs, span, size) -> Carry:
    """More steps: `span` holds the number of the first and how many."""
    first, count = span

    def step(carry: Carry, numbers, number) -> Carry:
        state = process.step(carry.state, numbers, size)
        if until is None:
            return eqx.tree_at(lambda c: c.state, carry, state)
        state = _select(process, carry.moving, state, carry.state)
        hit = carry.moving & until.stop_runs(process.problem, process.statistics(state), carry.memory)
        end = jnp.where(hit, number + 1, carry.end)
        return Carry(state, carry.moving & ~hit, carry.stopped | hit, end, carry.memory)

    def block(index, carry: Carry) -> Carry:
        begin = index * process.block
        numbers = process.draw(Stream(seed, runs, (first + begin).astype(jnp.uint64), process.block))
        one = lambda j, c: step(c, jax.tree.map(lambda leaf: leaf[j], numbers), first + begin + j)
        after = lax.fori_loop(0, jnp.minimum(process.block, count - begin), one, carry)
        bounded = _bounded(process, after.state)
        broken = carry.moving & ~bounded
        return Carry(
            state=_select(process, carry.moving & bounded, after.state, carry.state),
            moving=after.moving & bounded,
            stopped=after.stopped & ~broken,
            end=jnp.where(broken, first + begin, after.end),
            memory=carry.memory,
        )

    return lax.fori_loop(0, -(-count // process.block), block, carry)


@eqx.filter_jit
def _begin(process: Process, until: Condition | None, state: PyTree) -> Carry:
    state = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), state)  # weak types would compile twice
    stats = process.statistics(state)
    memory, stopped = (), jnp.zeros(jax.tree.leaves(stats)[0].shape[0], bool)
    if until is not None:
        memory = until.begin_runs(process.problem, stats)
        stopped = until.stop_runs(process.problem, stats, memory)
    return Carry(state, ~stopped, stopped, jnp.where(stopped, 0, -1).astype(jnp.int64), memory)


@eqx.filter_jit
def _observe_compiled(process: Process, state: PyTree):
    return process.statistics(state), process.risk(state)


def _observe(process: Process, state: PyTree):
    return jax.tree.map(np.asarray, _observe_compiled(process, state))


def _bounded(process: Process, state: PyTree) -> Bool[Array, " runs"]:
    def inside(leaf):
        rows = jnp.moveaxis(leaf, process.runs_axis, 0).reshape(leaf.shape[process.runs_axis], -1)
        return (jnp.abs(rows) <= LIMIT).all(1)

    return jnp.stack([inside(leaf) for leaf in jax.tree.leaves(state)]).all(0)


def _select(process: Process, choose: Bool[Array, " runs"], yes: PyTree, no: PyTree) -> PyTree:
    def pick(a, b):
        shape = [1] * a.ndim
        shape[process.runs_axis] = -1
        return jnp.where(choose.reshape(shape), a, b)

    return jax.tree.map(pick, yes, no)


def _few(moving: np.ndarray) -> np.ndarray | None:
    """All that move among at most half of the runs, or None: a power of four, so that few sizes are compiled."""
    size = 4 ** max(2, math.ceil(math.log(max(1, int(moving.sum())), 4)))
    return np.sort(np.argsort(~moving, kind="stable")[:size]) if 2 * size <= moving.size else None


def _keep(process: Process, carry: Carry, which: np.ndarray) -> Carry:
    state = jax.tree.map(lambda leaf: jnp.take(leaf, which, axis=process.runs_axis), carry.state)
    memory = jax.tree.map(lambda leaf: leaf[which], carry.memory)
    return Carry(state, carry.moving[which], carry.stopped[which], carry.end[which], memory)


def _scatter(before, after, here: np.ndarray):
    def place(old, new):
        if len(here) == len(old):
            return new
        out = old.copy()
        out[here] = new
        return out

    return jax.tree.map(place, before, after)


class _Ended:
    """How and when each run of a batch ended, kept while ended runs are dropped from the computation."""

    def __init__(self, runs: int) -> None:
        self.step = np.full(runs, -1, np.int64)
        self.stopped = np.zeros(runs, bool)

    def update(self, carry: Carry, here: np.ndarray) -> bool:
        """Take note of the runs that have ended; whether any still moves."""
        self.step[here], self.stopped[here] = np.asarray(carry.end), np.asarray(carry.stopped)
        return bool(np.asarray(carry.moving).any())

    def status(self) -> np.ndarray:
        return np.where(self.step < 0, FINISHED, np.where(self.stopped, STOPPED, DIVERGED)).astype(object)


class _Pace:
    """How many steps to ask for at once, always whole blocks, so that a call takes about `CALL_SECONDS`.

    Runs that have ended are dropped once the steps since the last compilation have cost as much as it did (`compiling`): no
    job then takes more than about twice what it would if it were known when the runs end.
    """

    def __init__(self, block: int) -> None:
        self.block, self.steps, self.seconds, self.calls, self.compiling = block, block, 0.0, 0, COMPILE_SECONDS

    def note(self, steps: int, seconds: float) -> None:
        """Learn from a call that took so many steps and seconds; the first one compiled."""
        self.calls += 1
        if self.calls == 1:
            self.compiling = max(self.compiling, seconds)
            return
        self.seconds += seconds
        wanted = min(steps * CALL_SECONDS / max(seconds, 1e-6), 8.0 * self.steps, 2.0**40)
        self.steps = max(1, int(wanted) // self.block) * self.block

    def restart(self) -> None:
        """The next call compiles again."""
        self.calls, self.seconds = 0, 0.0
