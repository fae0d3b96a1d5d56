"""Markov chains of statistics, and the loop that runs them."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import Carry, Moment, Span
from sgdlimits.kernel.choose import kernel_for
from sgdlimits.kernel.compiled import compiled
from sgdlimits.kernel.groups import VECTOR, in_groups
from sgdlimits.level.base import (
    DIVERGED,
    FINISHED,
    STOPPED,
    Clock,
    Ends,
    Engine,
    Job,
    Journey,
    Level,
    Tick,
    ladder,
)
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observe
from sgdlimits.problem.base import Problem
from sgdlimits.random import Stream
from sgdlimits.statistics.trees import one_of

CALL_SECONDS = 0.3
"""How long one call of the compiled loop should take: progress, Ctrl-C and dropping ended runs happen between calls."""
MOST_STEPS = 2.0**53
"""Steps are counted by doubles in places, and nobody waits for so many."""
COMPILE_SECONDS = 3.0
"""What compiling the loop for another number of runs takes at least."""


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
        """The random numbers of the stream's steps: a pytree of arrays with the steps first."""

    @abc.abstractmethod
    def step(self, state: PyTree, numbers: PyTree, now: Moment) -> PyTree:
        """The states after one step with one step's random numbers."""

    @abc.abstractmethod
    def statistics(self, state: PyTree) -> PyTree:
        """The statistics of the states, runs first."""

    def risk(self, state: PyTree, stats: PyTree) -> Float[Array, " runs"]:
        """The population risk of the states, which have these statistics."""
        return self.problem.over_runs(self.problem.risk, stats)

    @property
    def together(self) -> int | None:
        """How many runs are computed together, group after group, where these have the runs first; None for all."""
        return None

    @property
    def numbers(self) -> int:
        """About how many numbers the steps of one run take."""
        return 0

    @property
    def small(self) -> bool:
        """Whether a step is so little work that compiling it quickly matters more."""
        return False

    @property
    def patience(self) -> Float[Array, ""] | int:
        """After how many steps at most divergence is looked for: a diverged run returns to where it was then."""
        return self.block


class Stepping(Engine):
    """An engine at a finite dimension, which saves after whole steps of SGD."""

    d: eqx.AbstractVar[int]

    @property
    def tick(self) -> float:
        """One step of SGD, in t."""
        return self.problem.samples_per_step / self.d

    def snap(self, times):
        samples = self.problem.samples_per_step
        if times[-1] > MOST_STEPS * self.tick:
            raise BadInput(f"t_max = {times[-1]:g} is more steps of {self.tick:g} than can be made. Use a smaller t_max.")
        steps = np.unique(np.rint(times * self.d / samples).astype(np.int64))
        if steps[-1] < 1:
            raise BadInput(
                f"t_max must be at least one step, {samples}/d = {self.tick:g}; got {times[-1]:g}. Give a larger t_max."
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
    def between(cls, times: np.ndarray, counts: np.ndarray) -> Segments:
        """Equal steps that end at each time."""
        gaps = np.diff(times)
        return cls(counts, gaps / counts, times[:-1], np.zeros(gaps.size))

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


class Marching(Stepping):
    """An engine that makes steps of a process: SGD's own, or such of `dt`."""

    level: Level
    problem: Problem
    most: int
    d: int
    process: Process
    dt: float | None = None

    @property
    def vector(self):
        """Of groups as few as memory holds; otherwise as all have, since a group of filling is not computed."""
        few = self.most < VECTOR and self.process.together
        return few or VECTOR

    @property
    def numbers(self):
        return self.process.numbers

    def segments(self, clock: Clock) -> Segments:
        if self.dt is None:
            counts = np.diff(clock.step)
            return Segments(counts, np.full(counts.size, self.tick), clock.t[:-1], np.zeros(counts.size))
        if clock.t[-1] > MOST_STEPS * self.dt:
            raise BadInput(f"dt = {self.dt:g} is more steps than can be made before t = {clock.t[-1]:g}. Use a larger dt.")
        return Segments.on_grid(clock.t, self.dt)

    def follow(self, starts, job, state=None):
        return March(self.process, starts, job, self.segments(job.clock), state)


class March(Journey):
    """A process from `starts` through segments of steps, shown at the start and after each.

    Runs that have ended are dropped from the computation once that pays; `whole` keeps what they were, and `here` says which
    are left.
    """

    def __init__(self, process: Process, starts: PyTree, job: Job, segments: Segments, state=None) -> None:
        self.process, self.job, self.segments, self.total = process, job, segments, int(segments.counts.sum())
        self.carry, self.base, self.first = _set_out(process, job.until, process.start(starts)), 0, 0
        size = self.carry.moving.shape[0]
        self.runs = job.runs[np.minimum(np.arange(size), len(job.runs) - 1)].astype(np.uint32)
        self.here = np.arange(size)
        if state is not None:
            self.carry, self.base, self.first = self._restored(state)
        if process.together is not None:  # groups in which nothing moves cost nothing
            wanted = np.asarray(self.carry.moving) & (self.here < len(job.runs))
            self.carry = eqx.tree_at(lambda carry: carry.moving, self.carry, wanted)
        self.origin, self.whole, self.outset = self.base, self.carry, None if job.begin_shown else self.carry
        self.stepping = kernel_for(process, job.until, self.carry, job.kernel)
        self.kernel = self.stepping.name

    def __iter__(self):
        seed, pace = Stream.of(self.job.seed, self.runs).seed, Pace(self.process.block)
        shown = self._observed() if self.job.begin_shown else None
        yield Tick(self._share, (), {}) if shown is None else self._tick(shown)
        for count, size, t, rest in zip(*self.segments, strict=True):
            end = self.base + int(count)
            while self.first < end and np.asarray(self.carry.moving).any():
                late = self.stepping.costly and pace.seconds > pace.compiling
                few = _few(np.asarray(self.carry.moving)) if late else None
                if few is not None:
                    shown = _scatter(shown, self._observed(), self.here)
                    self._drop(few)
                    pace.restart()
                now = min(end - self.first, pace.steps)
                span = Span(*(np.asarray(number) for number in (self.first, now, t + (self.first - self.base) * size, size)))
                clock = time.perf_counter()
                carry = self.stepping.advance(self.carry, seed, self.runs[self.here], span)
                self.carry, self.first = carry, self.first + now  # together: Ctrl-C comes between calls
                pace.note(now, time.perf_counter() - clock)
                yield Tick(self._share)
            ahead = Span(*(np.asarray(number) for number in (end, 1, t + count * size, rest)))
            there = self.stepping.advance(self.carry, seed, self.runs[self.here], ahead) if rest else self.carry
            shown = _scatter(shown, self._observed(there), self.here)
            self.base = self.first = end
            yield self._tick(shown)

    def ends(self):
        """A run that had ended before this journey set out ended at its beginning, as far as it knows."""
        carry = self._all()
        end, stopped = (np.asarray(leaf)[: len(self.job.runs)] for leaf in (carry.end, carry.stopped))
        status = np.where(end < 0, FINISHED, np.where(stopped, STOPPED, DIVERGED)).astype(object)
        done = self.first - self.origin
        reached = self.job.clock.t[-1] if done == self.total else self.segments.when(np.asarray(done))
        return Ends(status, np.where(end < 0, reached, self.segments.when(end - self.origin)))

    def in_full(self, first):
        return first if self.outset is None else self._tick(self._observed(self.outset))

    def now(self):
        return self._tick(self._observed(self._all()))

    def state(self):
        """With the numbers of steps up to the last saved time and up to now, between which nothing is lost."""
        carry, count = self._all(), len(self.job.runs)
        rows = [np.moveaxis(np.asarray(leaf), axis, 0)[:count].reshape(count, -1) for leaf, axis in self._leaves(carry)]
        return np.concatenate([np.tile([self.base, self.first], (count, 1)), *rows], axis=1, dtype=float)

    def _restored(self, state: np.ndarray) -> tuple[Carry, int, int]:
        rows = state[np.minimum(np.arange(self.here.size), len(state) - 1), 2:]
        leaves = []
        for like, axis in self._leaves(self.carry):
            shape = np.moveaxis(np.empty(like.shape), axis, 0).shape
            numbers, rows = np.split(rows, [int(np.prod(shape[1:]))], axis=1)
            leaves.append(jnp.asarray(np.moveaxis(numbers.reshape(shape), 0, axis), like.dtype))
        return jax.tree.unflatten(jax.tree.structure(self.carry), leaves), int(state[0, 0]), int(state[0, 1])

    def _leaves(self, carry: Carry) -> Iterator[tuple[Array, int]]:
        """The arrays of a carry, and where each has its axis of runs."""
        yield from ((leaf, self.process.runs_axis) for leaf in jax.tree.leaves(carry.state))
        yield from ((leaf, 0) for leaf in jax.tree.leaves((carry.moving, carry.stopped, carry.end, carry.memory)))

    def _all(self) -> Carry:
        """The carry of all runs, those that were dropped included."""
        if self.here.size == self.runs.size:
            return self.carry
        leaves = []
        for (old, axis), (new, _) in zip(self._leaves(self.whole), self._leaves(self.carry), strict=True):
            rows = np.moveaxis(np.array(old), axis, 0)
            rows[self.here] = np.moveaxis(np.asarray(new), axis, 0)
            leaves.append(np.moveaxis(rows, 0, axis))
        return jax.tree.unflatten(jax.tree.structure(self.carry), leaves)

    def _drop(self, few: np.ndarray) -> None:
        """Go on with a few of the runs."""
        whole, leaves = self._all(), [jnp.take(leaf, few, axis=axis) for leaf, axis in self._leaves(self.carry)]
        carry, here = jax.tree.unflatten(jax.tree.structure(self.carry), leaves), self.here[few]
        self.whole, self.carry, self.here = whole, carry, here

    @cached_property
    def _look(self):
        return compiled(_observe, self.process, self.job.observe, quick=True)

    def _observed(self, carry: Carry | None = None):
        return jax.tree.map(np.asarray, self._look((carry or self.carry).state, np.array(len(self.job.runs))))

    @property
    def _share(self) -> float:
        return (self.first - self.origin) / max(1, self.total)

    def _tick(self, shown) -> Tick:
        return Tick(self._share, *one_of(shown, np.s_[: len(self.job.runs)]))


def _set_out(process: Process, until: Condition | None, state: PyTree) -> Carry:
    """All runs at their first step; those that stop there have ended. Without a condition nothing is compiled."""
    strong = lambda leaf: lax.convert_element_type(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf
    state = jax.tree.map(strong, state)  # weak types would compile twice
    runs = jax.tree.leaves(state)[0].shape[process.runs_axis]
    if until is None:
        return Carry(state, np.ones(runs, bool), np.zeros(runs, bool), np.full(runs, -1, np.int64), ())
    memory, stopped = compiled(_begin, process, until, quick=True)(state, np.array(runs))
    return Carry(state, ~stopped, stopped, jnp.where(stopped, 0, -1).astype(jnp.int64), memory)


def _begin(process: Process, until: Condition, state: PyTree, wanted: Array) -> tuple[PyTree, Bool[Array, " runs"]]:
    def begin(state: PyTree):
        stats = process.statistics(state)
        memory = until.begin_runs(process.problem, stats)
        return memory, until.stop_runs(process.problem, stats, memory)

    return in_groups(begin, process.together, wanted, state)


def _observe(process: Process, observe: Observe, state: PyTree, wanted: Array) -> tuple[PyTree, dict[str, Array]]:
    def look(state: PyTree):
        stats = process.statistics(state)
        more = process.problem.over_runs(process.problem.observables, stats)
        return stats, {"risk": process.risk(state, stats), **more, **observe.of_runs(process.problem, stats)}

    return in_groups(look, process.together, wanted, state)


def _few(moving: np.ndarray) -> np.ndarray | None:
    """All that move among at most half of the runs, or None: of the ladder's sizes, so that few are compiled."""
    sizes = [size for size in ladder(VECTOR, moving.size) if max(16, moving.sum()) <= size <= moving.size / 2]
    return np.sort(np.argsort(~moving, kind="stable")[: sizes[0]]) if sizes else None


def _scatter(before, after, here: np.ndarray):
    """What is shown of all runs, with the newest of those that are left; before any was shown, all are."""
    if before is None:
        return after

    def place(old, new):
        if len(here) == len(old):
            return new
        out = old.copy()
        out[here] = new
        return out

    return jax.tree.map(place, before, after)


class Pace:
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
