"""The stepper of levels that make steps: it lets a kernel advance a process from one saved time to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import GROUP_SIZE_MULTIPLE, jit_bound, map_groups
from sgdlimits.kernel.base import Carry, RunBatch, RunStates, StepRange
from sgdlimits.kernel.choose import choose_kernel
from sgdlimits.kernel.random import Stream
from sgdlimits.level import stopping  # noqa: F401  (it registers the bounds that kernels look up)
from sgdlimits.level.base import (
    RUN_DIVERGED,
    RUN_FINISHED,
    RUN_STOPPED,
    Clock,
    Level,
    Request,
    RunStatus,
    Snapshot,
    Stepper,
    compiled_batch_sizes,
)
from sgdlimits.level.condition import Condition
from sgdlimits.level.observer import SavedState, StateObserver
from sgdlimits.level.pace import CallPace
from sgdlimits.level.process import MAX_STEPS, Process, SteppingEngine, reports_problem_risk
from sgdlimits.level.segments import Segments
from sgdlimits.problem.base import Problem
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.trees import select_run

MIN_REDUCED_BATCH = 16
"""Minimum batch size after the removal of ended runs; smaller batches would take as long per step."""


class ProcessEngine(SteppingEngine):
    """A level bound to a problem that is simulated by steps of a Markov chain (a `Process`).

    A step is one SGD step, or of length `dt` in t.
    """

    level: Level
    problem: Problem
    max_batch: int
    d: int
    process: Process
    dt: float | None = None

    @property
    def batch_multiple(self):
        """Number of runs of which every batch size is a multiple: the group size if memory holds only few runs."""
        # where memory holds few runs, batches are multiples of the group; larger ones need not be, since padding is skipped
        few = self.max_batch < GROUP_SIZE_MULTIPLE and self.process.group_size
        return self.process.fixed_batch or few or GROUP_SIZE_MULTIPLE

    @property
    def floats_per_run(self):
        return self.process.floats_per_run

    def draw_starts(self, start, stream):
        starts = self.level.draw_initial_statistics(self.problem, start, stream)
        self.process.check_start(starts)
        return starts

    def segments(self, clock: Clock) -> Segments:
        """Return the steps to make between neighbouring saved times; steps of length `dt` end at the knots of schedules."""
        if self.dt is None:
            counts = np.diff(clock.step)
            return Segments.from_whole_steps(counts, np.full(counts.size, self.step_time), clock.t[:-1])
        if clock.t[-1] > MAX_STEPS * self.dt:
            raise BadInput(f"dt = {self.dt:g} needs more than 2^53 steps up to t = {clock.t[-1]:g}. Use a larger dt.")
        return Segments.on_time_grid(clock.t, self.dt, knots_of(self.problem))

    def stepper(self, starts, request, state=None):
        return ProcessStepper(self.process, starts, request, self.segments(request.clock), state)


class ProcessStepper(Stepper):
    """Stepper that advances a batch of runs by steps of a Markov chain (a `Process`), executed by a kernel.

    States at saved times wait in `waiting` until several of them are observed in one compiled call; `ready` has snapshots that
    were observed early, because ended runs were dropped.

    `carry` holds the runs that are still computed, `kept` their indices in the batch, and `full_carry` all runs as they were
    when ended runs were last dropped. `done` counts the steps made, `base` those up to the last saved time, and `first` those
    up to the present segment, which may begin at a knot.
    """

    def __init__(self, process: Process, starts: PyTree, request: Request, segments: Segments, state=None) -> None:
        if state is not None:  # the state may belong to a later time than the first of the clock
            request = request._replace(save_start=False)
        self.process, self.request, self.segments = process, request, segments
        begin = strengthen_types(process.start(starts))
        self.size = jax.tree.leaves(begin)[0].shape[process.runs_axis]
        # padding repeats the last run
        self.indices = request.runs[np.minimum(np.arange(self.size), len(request.runs) - 1)].astype(np.uint32)
        self.kept = np.arange(self.size)
        self.dataset = process.draw_dataset(Stream.from_seed(request.seed, self.indices))
        self.t0 = float(segments.begin_times[0]) if segments.begin_times.size else float(request.clock.t[0])
        self.begin_state = begin
        self.observer = StateObserver(process, request.observe, len(request.runs), begin, self.dataset)
        self.waiting: list[SavedState] = []
        self.ready: list[Snapshot] = []
        self.observed_at = time.perf_counter()
        self.shown: tuple[PyTree, dict] | None = self._initial_observation if request.save_start else None
        # conditions on the risk reuse the risk of the first snapshot if both are the same
        known_risk = self.shown[1]["risk"] if self.shown is not None and reports_problem_risk(process) else None
        carry = initial_carry(process, request.until, begin, known_risk, self.t0)
        self.base, self.done = 0, 0
        if state is not None:
            carry, self.base, self.done = self._restore_carry(carry, state)
        self.first = self.base
        # padding runs are inactive
        active = np.asarray(carry.moving) & (self.kept < len(request.runs))
        self.carry: Carry = replace(carry, moving=active, dataset=self.dataset)
        self.full_carry, self.origin = self.carry, self.base
        self.segment, self.total = 0, int(segments.step_counts.sum())
        self._pass_knots()
        self.stepping = choose_kernel(process, request.until, self.carry, request.kernel)
        self.kernel, self.seed, self.pace = (
            self.stepping.name,
            Stream.from_seed(request.seed, self.indices).seed,
            CallPace(process.block),
        )

    @property
    def finished(self):
        return self.segment == self.segments.step_counts.size

    @property
    def completed_fraction(self):
        return (self.done - self.origin) / max(1, self.total)

    @property
    def batch_key(self):
        return self.stepping.key, self.next_steps

    @property
    def next_steps(self) -> StepRange | None:
        """Steps up to the next saved time, or the last fraction of a step before it; None if no run needs a step."""
        if self.finished or not np.asarray(self.carry.moving).any():
            return None
        count, size, t, remainder, _ = (part[self.segment] for part in self.segments)
        end = self.first + int(count)
        if self.done < end:
            return StepRange(self.done, end - self.done, t + (self.done - self.first) * size, size)
        return StepRange(end, 1, t + count * size, remainder) if remainder else None

    def _pass_knots(self) -> None:
        """Advance to the next segment of time where this one ends at a schedule's knot and no run has steps left."""
        still = not np.asarray(self.carry.moving).any()
        while not self.finished and not self.segments.saved[self.segment]:
            end = self.first + int(self.segments.step_counts[self.segment])
            if self.done < end and not still:
                return
            self.segment, self.first, self.done = self.segment + 1, end, max(end, self.done)

    def advance(self):
        spans = self._spans_to_saves()
        if len(spans) < 2:
            return self.advance_many([self])[0]
        begin = time.perf_counter()
        carry, states = self.stepping.advance_through(self.kernel_batch, spans)
        seconds = time.perf_counter() - begin
        saved = [
            SavedState(each.state, self._run_times(each, t)) for each, t in zip(states, self._times_of_saves(), strict=False)
        ]
        end = int(spans[-1].first_step + spans[-1].steps)
        # one statement, so that Ctrl-C leaves them consistent
        self.carry, self.waiting, self.segment, self.base, self.first, self.done = (
            carry, [*self.waiting, *saved], self.segment + len(spans), end, end, end,
        )  # fmt: skip
        self.pace.record_call(sum(int(span.steps) for span in spans), seconds)
        self._pass_knots()
        return self._due_snapshots()

    def _times_of_saves(self) -> np.ndarray:
        """Return the saved times: the ends of the present segment of steps and of all later segments."""
        counts, sizes, begins, remainders, _ = (part[self.segment :] for part in self.segments)
        return begins + counts * sizes + remainders

    def _spans_to_saves(self) -> list[StepRange]:
        """Return the steps up to each of the next saved times that one kernel call reaches at the present pace."""
        spans: list[StepRange] = []
        if self.next_steps is None or self.done > self.first or not self.request.max_wait:
            return spans
        counts, sizes, begins, remainders, saved = (part[self.segment :] for part in self.segments)
        whole = (counts > 0) & (remainders == 0) & saved & (np.cumsum(counts) <= self.pace.steps)
        first = self.first
        for i in range(min(self.observer.states_per_call, whole.size if whole.all() else int(np.argmin(whole)))):
            spans.append(StepRange(*(np.asarray(number) for number in (first, counts[i], begins[i], sizes[i]))))
            first += int(counts[i])
        return spans

    @classmethod
    def advance_many(cls, steppers: Sequence[Any]) -> list[list[Snapshot]]:
        """Advance several steppers in one kernel call, by the smallest number of steps that any of them can make."""
        wanted = steppers[0].next_steps
        if wanted is None:
            return [stepper._save_state(stepper.carry) for stepper in steppers]
        steps, begin = min(wanted.steps, *(stepper.pace.steps for stepper in steppers)), time.perf_counter()
        span = StepRange(*(np.asarray(number) for number in wanted._replace(steps=steps)))
        carries = steppers[0].stepping.advance_many([stepper.kernel_batch for stepper in steppers], span)
        seconds = time.perf_counter() - begin
        return [stepper._accept_steps(carry, wanted, steps, seconds) for stepper, carry in zip(steppers, carries, strict=True)]

    def _accept_steps(self, carry: Carry, wanted: StepRange, steps: int, seconds: float) -> list[Snapshot]:
        """Store the state that a kernel call returned, and return a snapshot if it is at the next saved time."""
        end = self.first + int(self.segments.step_counts[self.segment])
        if wanted.first_step == end:  # a fraction of a step is only observed: the next segment begins with the whole step
            return self._save_state(carry)
        self.carry, self.done = carry, self.done + steps  # one statement, so that Ctrl-C leaves the two consistent
        self.pace.record_call(steps, seconds)
        self._pass_knots()
        return self._save_state(carry) if self.next_steps is None else self._take_ready()

    def _save_state(self, carry: Carry | RunStates) -> list[Snapshot]:
        """Store the state at the next saved time, advance to the segment of steps after it, and return the snapshots due."""
        self._pass_knots()
        saved = SavedState(carry.state, self._run_times(carry, self._times_of_saves()[0]))
        end = self.first + int(self.segments.step_counts[self.segment])
        # one statement, so that Ctrl-C leaves them consistent
        self.waiting, self.segment, self.base, self.first, self.done = [*self.waiting, saved], self.segment + 1, end, end, end
        self._pass_knots()
        return self._due_snapshots()

    def _due_snapshots(self) -> list[Snapshot]:
        """Return the snapshots of waiting states if there are enough of them, if one has waited too long, or at the end."""
        late = time.perf_counter() - self.observed_at >= self.request.max_wait
        full = len(self.waiting) >= self.observer.states_per_call or late or self.finished
        return self.observe_waiting() if full else self._take_ready()

    def observe_waiting(self):
        snapshots = self._take_ready()
        self.observed_at = time.perf_counter()
        if self.waiting:
            snapshots += self._observe_states(self.waiting)
            self.waiting = []
        return snapshots

    def _take_ready(self) -> list[Snapshot]:
        """Remove the snapshots that were observed before they could be returned, and return them."""
        ready, self.ready = self.ready, []
        return ready

    def _observe_states(self, saved: list[SavedState]) -> list[Snapshot]:
        """Return snapshots of states of the runs that are still computed; ended runs keep what they showed last."""
        snapshots = []
        for observed in self.observer.observe(saved):
            self.shown = _replace_runs(self.shown, observed, self.kept)
            snapshots.append(self._to_snapshot(self.shown))
        return snapshots

    @property
    def kernel_batch(self) -> RunBatch:
        """The states, random keys and indices of the runs that are still computed, as the argument of a kernel."""
        return RunBatch(self.stepping, self.carry, self.seed, self.indices[self.kept])

    def drop_ended(self):
        """Remove ended runs from the batch once the steps since the last compilation have cost as much as another one."""
        active = np.asarray(self.carry.moving)
        if self.finished or not active.any() or self.dataset != ():  # batches of runs with datasets are small
            return
        if not self.stepping.recompiles or self.pace.seconds <= self.pace.compiling:
            return
        few = _positions_to_keep(active)
        if few is None:
            return
        self.ready = self.observe_waiting()
        t = self.segments.times_after_steps(np.asarray(self.done - self.origin))
        self._observe_states([SavedState(self.carry.state, self._run_times(self.carry, t))])
        self._drop(few)
        self.pace.discard_durations()

    def run_status(self):
        """Return the status of each run and the time it has reached.

        A run that ended before this stepper resumed has the first time of the stepper.
        """
        carry = self._carry_of_all_runs()
        end, stopped = (np.asarray(leaf)[: len(self.request.runs)] for leaf in (carry.end, carry.stopped))
        status = np.where(end < 0, RUN_FINISHED, np.where(stopped, RUN_STOPPED, RUN_DIVERGED)).astype(object)
        done = self.done - self.origin
        reached = self.request.clock.t[-1] if done == self.total else self.segments.times_after_steps(np.asarray(done))
        return RunStatus(status, np.where(end < 0, reached, self.segments.times_after_steps(end - self.origin)))

    @property
    def initial_snapshot(self):
        return self._to_snapshot(self._initial_observation)

    @cached_property
    def _initial_observation(self) -> tuple[PyTree, dict]:
        """Statistics and observables of all runs of the batch, padding included, at the start."""
        return self.observer.observe([SavedState(self.begin_state, np.full(self.size, self.t0))])[0]

    def current_snapshot(self):
        carry = self._carry_of_all_runs()
        t = self.segments.times_after_steps(np.asarray(self.done - self.origin))
        return self._to_snapshot(self.observer.observe([SavedState(carry.state, self._run_times(carry, t))])[0])

    def resume_state(self):
        """Return the state from which a new stepper resumes the runs, as one row of floats per run.

        Columns: steps up to the last saved time, steps made, and the arrays of the carry.
        """
        carry, count = self._carry_of_all_runs(), len(self.request.runs)
        rows = [np.moveaxis(np.asarray(leaf), axis, 0)[:count].reshape(count, -1) for leaf, axis in self._carry_leaves(carry)]
        return np.concatenate([np.tile([self.base, self.done], (count, 1)), *rows], axis=1, dtype=float)

    def _restore_carry(self, carry: Carry, state: np.ndarray) -> tuple[Carry, int, int]:
        """Return the kernel's carry and both step counts (`base`, `done`) from the rows that `state` returned.

        `carry` gives shapes and types.
        """
        rows = state[np.minimum(np.arange(self.size), len(state) - 1), 2:]
        leaves = []
        for like, axis in self._carry_leaves(carry):  # in the order in which `state` has written them
            shape = np.moveaxis(np.empty(like.shape), axis, 0).shape
            values, rows = np.split(rows, [int(np.prod(shape[1:]))], axis=1)
            leaves.append(jnp.asarray(np.moveaxis(values.reshape(shape), 0, axis), like.dtype))
        return jax.tree.unflatten(jax.tree.structure(carry), leaves), int(state[0, 0]), int(state[0, 1])

    def _carry_leaves(self, carry: Carry) -> Iterator[tuple[Array, int]]:
        """Yield the arrays of a kernel's carry, each with the number of its axis of runs."""
        yield from ((leaf, self.process.runs_axis) for leaf in jax.tree.leaves(carry.state))
        yield from ((leaf, 0) for leaf in jax.tree.leaves((carry.moving, carry.stopped, carry.end, carry.memory)))

    def _carry_of_all_runs(self) -> Carry:
        """Return the kernel's carry for all runs of the batch, including runs that were removed."""
        if self.kept.size == self.size:
            return self.carry
        leaves = []
        for (old, axis), (new, _) in zip(self._carry_leaves(self.full_carry), self._carry_leaves(self.carry), strict=True):
            rows = np.moveaxis(np.array(old), axis, 0)
            rows[self.kept] = np.moveaxis(np.asarray(new), axis, 0)
            leaves.append(np.moveaxis(rows, 0, axis))
        return jax.tree.unflatten(jax.tree.structure(self.carry), leaves)

    def _drop(self, few: np.ndarray) -> None:
        """Remove all runs from the computation except those at the positions `few` in the present batch."""
        everything = self._carry_of_all_runs()
        leaves = [jnp.take(leaf, few, axis=axis) for leaf, axis in self._carry_leaves(self.carry)]
        carry = jax.tree.unflatten(jax.tree.structure(self.carry), leaves)
        # one statement, so that Ctrl-C leaves the three consistent
        self.full_carry, self.carry, self.kept = everything, carry, self.kept[few]

    def _run_times(self, carry: Carry | RunStates, t: Any) -> np.ndarray:
        """Return the time of each run in a kernel's carry: t, or the time at which the run ended if that is earlier."""
        end = np.asarray(carry.end)
        if (end < 0).all():
            return np.full(end.shape, float(t))
        return np.where(end < 0, float(t), self.segments.times_after_steps(end - self.origin))

    def _to_snapshot(self, shown: tuple[PyTree, dict]) -> Snapshot:
        """Return statistics and observables of a padded batch as a snapshot of the requested runs."""
        return Snapshot(*select_run(shown, np.s_[: len(self.request.runs)]))


def strengthen_types(state: PyTree) -> PyTree:
    """Convert arrays of JAX's weak types to strong types, so that the kernel is not compiled again for its own output."""
    return jax.tree.map(
        lambda leaf: lax.convert_element_type(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf, state
    )


def initial_carry(
    process: Process, until: Condition | None, state: PyTree, risk: np.ndarray | None = None, t: float = 0.0
) -> Carry:
    """Return the carry of a kernel before the first step; runs whose stop condition holds at time `t` are stopped in it.

    The initial `risk` may be given if it is known. Without a stop condition nothing is compiled.
    """
    state = strengthen_types(state)
    runs = jax.tree.leaves(state)[0].shape[process.runs_axis]
    if until is None:
        return Carry(state, np.ones(runs, bool), np.zeros(runs, bool), np.full(runs, -1, np.int64), ())
    memory, stopped = jit_bound(_begin_condition, process, until, fast_compile=True)(state, risk, np.array(t), np.array(runs))
    return Carry(state, ~stopped, stopped, jnp.where(stopped, 0, -1).astype(jnp.int64), memory)


def _begin_condition(
    process: Process, until: Condition, state: PyTree, risk: Any, t: Array, wanted: Array
) -> tuple[PyTree, Bool[Array, " runs"]]:
    """Return the values that the stop condition stores for each run at the start, and whether the run stops there."""

    def begin_group(start: tuple[PyTree, Any]):
        state, risk = start
        problem = process.problem.at(t)
        return until.over_runs(problem, lambda one: until.evaluate_start(problem, *one), (process.statistics(state), risk))

    return map_groups(begin_group, process.group_size, wanted, (state, risk))


def _positions_to_keep(active: np.ndarray) -> np.ndarray | None:
    """Return the positions of the active runs in a batch, padded to a smaller batch size for which code is compiled.

    The result is None if that size is over half of the batch.
    """
    least = max(MIN_REDUCED_BATCH, active.sum())
    sizes = [size for size in compiled_batch_sizes(GROUP_SIZE_MULTIPLE, active.size) if least <= size <= active.size / 2]
    return np.sort(np.argsort(~active, kind="stable")[: sizes[0]]) if sizes else None


def _replace_runs(before, after, kept: np.ndarray):
    """Return a copy of the arrays `before`, runs first, with the runs numbered `kept` replaced by `after`.

    On the first call `before` is None, and `after` has all runs."""
    if before is None or len(kept) == len(jax.tree.leaves(before)[0]):
        return after

    def replace_rows(old, new):
        out = old.copy()
        out[kept] = new
        return out

    return jax.tree.map(replace_rows, before, after)
