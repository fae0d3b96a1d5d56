"""The stepper of levels that make steps: it lets a kernel advance a process from one saved time to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import GROUP_ALIGNMENT, jit_bound, map_groups
from sgdlimits.kernel.base import Carry, RunBatch, StepRange
from sgdlimits.kernel.choose import kernel_for
from sgdlimits.kernel.random import Stream
from sgdlimits.level import stopping  # noqa: F401  (it registers the bounds that kernels look up)
from sgdlimits.level.base import (
    DIVERGED,
    FINISHED,
    STOPPED,
    Clock,
    Level,
    Request,
    RunStatus,
    Snapshot,
    Stepper,
    compiled_batch_sizes,
)
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observables
from sgdlimits.level.process import MAX_STEPS, Process, Segments, SteppingEngine, reports_problem_risk
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import take_run

CALL_SECONDS = 0.1
"""Target duration of one kernel call. Progress, Ctrl-C and the removal of ended runs happen between calls."""
COMPILE_SECONDS = 3.0
"""Assumed minimum time to compile the loop for another batch size: ended runs are not dropped before they cost as much."""
MIN_REDUCED_BATCH = 16
"""Minimum batch size after dropping ended runs: smaller batches cost as much."""


class ProcessEngine(SteppingEngine):
    """An engine that makes steps of a process; a step takes 1/d of t per sample, unless `dt` is given."""

    level: Level
    problem: Problem
    max_batch: int
    d: int
    process: Process
    dt: float | None = None

    @property
    def batch_multiple(self):
        """Number that divides all batch sizes: the group size if memory holds only few runs."""
        # where memory holds few runs, batches are multiples of the group; larger ones need not be, since padding is skipped
        few = self.max_batch < GROUP_ALIGNMENT and self.process.group_size
        return few or GROUP_ALIGNMENT

    @property
    def floats_per_run(self):
        return self.process.floats_per_run

    def starts(self, start, stream):
        starts = self.level.first(self.problem, start, stream)
        self.process.check_start(starts)
        return starts

    def segments(self, clock: Clock) -> Segments:
        """Return the steps between neighbouring saved times."""
        if self.dt is None:
            counts = np.diff(clock.step)
            return Segments(counts, np.full(counts.size, self.step_time), clock.t[:-1], np.zeros(counts.size))
        if clock.t[-1] > MAX_STEPS * self.dt:
            raise BadInput(f"dt = {self.dt:g} needs more than 2^53 steps up to t = {clock.t[-1]:g}. Use a larger dt.")
        return Segments.on_grid(clock.t, self.dt)

    def stepper(self, starts, request, state=None):
        return ProcessStepper(self.process, starts, request, self.segments(request.clock), state)


class ProcessStepper(Stepper):
    """Stepper of a batch of runs of a process.

    `carry` holds the runs that are still computed, `kept` their indices in the batch, and `full_carry` all runs as they were
    when ended runs were last dropped. `done` counts the steps made, and `base` those up to the last saved time.
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
        self.t0 = float(segments.begins[0]) if segments.begins.size else float(request.clock.t[0])
        self.begin_state = begin
        self.shown: tuple[PyTree, dict] | None = self._initial if request.save_start else None
        # conditions on the risk reuse the risk of the first snapshot if both are the same
        known_risk = self.shown[1]["risk"] if self.shown is not None and reports_problem_risk(process) else None
        carry = initial_carry(process, request.until, begin, known_risk, self.t0)
        self.base, self.done = 0, 0
        if state is not None:
            carry, self.base, self.done = self._restored(carry, state)
        # padding runs are inactive
        active = np.asarray(carry.moving) & (self.kept < len(request.runs))
        self.carry: Carry = eqx.tree_at(lambda carry: carry.moving, carry, active)
        self.full_carry, self.origin = self.carry, self.base
        self.segment, self.total = 0, int(segments.counts.sum())
        self.stepping = kernel_for(process, request.until, self.carry, request.kernel)
        self.kernel, self.seed, self.pace = self.stepping.name, Stream.of(request.seed, self.indices).seed, Pace(process.block)

    @property
    def finished(self):
        return self.segment == self.segments.counts.size

    @property
    def completed_fraction(self):
        return (self.done - self.origin) / max(1, self.total)

    @property
    def batch_key(self):
        return self.stepping.key, self.next_steps

    @property
    def next_steps(self) -> StepRange | None:
        """Steps up to the next saved time, or the fraction of a step before it; None if no run needs a step."""
        if self.finished or not np.asarray(self.carry.moving).any():
            return None
        count, size, t, remainder = (part[self.segment] for part in self.segments)
        end = self.base + int(count)
        if self.done < end:
            return StepRange(self.done, end - self.done, t + (self.done - self.base) * size, size)
        return StepRange(end, 1, t + count * size, remainder) if remainder else None

    def advance(self):
        return self.advance_many([self])[0]

    @classmethod
    def advance_many(cls, steppers: Sequence[Any]) -> list[list[Snapshot]]:
        """Make the next steps of several steppers in one kernel call: as many as each needs and its pace allows."""
        wanted = steppers[0].next_steps
        if wanted is None:
            return [[stepper._save(stepper.carry)] for stepper in steppers]
        steps, begin = min(wanted.steps, *(stepper.pace.steps for stepper in steppers)), time.perf_counter()
        span = StepRange(*(np.asarray(number) for number in wanted._replace(steps=steps)))
        carries = steppers[0].stepping.advance_many([stepper.run_batch for stepper in steppers], span)
        seconds = time.perf_counter() - begin
        return [stepper._accept(carry, wanted, steps, seconds) for stepper, carry in zip(steppers, carries, strict=True)]

    def _accept(self, carry: Carry, wanted: StepRange, steps: int, seconds: float) -> list[Snapshot]:
        """Accept the carry after `steps` of the wanted steps, and return a snapshot if the next saved time is reached."""
        end = self.base + int(self.segments.counts[self.segment])
        if wanted.first == end:  # a fraction of a step is only observed: the next segment begins with the whole step
            return [self._save(carry)]
        self.carry, self.done = carry, self.done + steps  # one statement, so that Ctrl-C leaves the two consistent
        self.pace.note(steps, seconds)
        return [self._save(carry)] if self.next_steps is None else []

    def _save(self, carry: Carry) -> Snapshot:
        """Return the snapshot at the next saved time, and begin the segment after it."""
        count, size, t, remainder = (part[self.segment] for part in self.segments)
        observed = self._observed(carry.state, self._times(carry, t + count * size + remainder))
        self.shown = _scatter(self.shown, observed, self.kept)
        snapshot = self._snapshot(self.shown)
        end = self.base + int(count)
        self.segment, self.base, self.done = self.segment + 1, end, end
        return snapshot

    @property
    def run_batch(self) -> RunBatch:
        """The runs that are still computed, as the argument of a kernel."""
        return RunBatch(self.stepping, self.carry, self.seed, self.indices[self.kept])

    def drop_ended(self):
        """Continue with a smaller batch once the steps since the last compilation have cost as much as another compilation."""
        active = np.asarray(self.carry.moving)
        if self.finished or not active.any() or not self.stepping.recompiles or self.pace.seconds <= self.pace.compiling:
            return
        few = _positions_to_keep(active)
        if few is None:
            return
        t = self.segments.time_after(np.asarray(self.done - self.origin))
        self.shown = _scatter(self.shown, self._observed(self.carry.state, self._times(self.carry, t)), self.kept)
        self._drop(few)
        self.pace.restart()

    def run_status(self):
        """Return the status of each run. A run that ended before this stepper resumed has the first time of the stepper."""
        carry = self._all_runs()
        end, stopped = (np.asarray(leaf)[: len(self.request.runs)] for leaf in (carry.end, carry.stopped))
        status = np.where(end < 0, FINISHED, np.where(stopped, STOPPED, DIVERGED)).astype(object)
        done = self.done - self.origin
        reached = self.request.clock.t[-1] if done == self.total else self.segments.time_after(np.asarray(done))
        return RunStatus(status, np.where(end < 0, reached, self.segments.time_after(end - self.origin)))

    @property
    def initial(self):
        return self._snapshot(self._initial)

    @cached_property
    def _initial(self) -> tuple[PyTree, dict]:
        """Statistics and observables of all runs of the batch at the start."""
        return self._observed(self.begin_state, np.full(self.size, self.t0))

    def now(self):
        carry = self._all_runs()
        t = self.segments.time_after(np.asarray(self.done - self.origin))
        return self._snapshot(self._observed(carry.state, self._times(carry, t)))

    def state(self):
        """Return a row for each run: steps up to the last saved time, steps made, and the carry."""
        carry, count = self._all_runs(), len(self.request.runs)
        rows = [np.moveaxis(np.asarray(leaf), axis, 0)[:count].reshape(count, -1) for leaf, axis in self._leaves(carry)]
        return np.concatenate([np.tile([self.base, self.done], (count, 1)), *rows], axis=1, dtype=float)

    def _restored(self, carry: Carry, state: np.ndarray) -> tuple[Carry, int, int]:
        """Return the carry, `base` and `done` that the rows of `state` encode; `carry` gives shapes and types."""
        rows = state[np.minimum(np.arange(self.size), len(state) - 1), 2:]
        leaves = []
        for like, axis in self._leaves(carry):  # in the order in which `state` has written them
            shape = np.moveaxis(np.empty(like.shape), axis, 0).shape
            values, rows = np.split(rows, [int(np.prod(shape[1:]))], axis=1)
            leaves.append(jnp.asarray(np.moveaxis(values.reshape(shape), 0, axis), like.dtype))
        return jax.tree.unflatten(jax.tree.structure(carry), leaves), int(state[0, 0]), int(state[0, 1])

    def _leaves(self, carry: Carry) -> Iterator[tuple[Array, int]]:
        """Yield the arrays of a carry, each with its axis of runs."""
        yield from ((leaf, self.process.runs_axis) for leaf in jax.tree.leaves(carry.state))
        yield from ((leaf, 0) for leaf in jax.tree.leaves((carry.moving, carry.stopped, carry.end, carry.memory)))

    def _all_runs(self) -> Carry:
        """Return the carry of all runs, including dropped ones."""
        if self.kept.size == self.size:
            return self.carry
        leaves = []
        for (old, axis), (new, _) in zip(self._leaves(self.full_carry), self._leaves(self.carry), strict=True):
            rows = np.moveaxis(np.array(old), axis, 0)
            rows[self.kept] = np.moveaxis(np.asarray(new), axis, 0)
            leaves.append(np.moveaxis(rows, 0, axis))
        return jax.tree.unflatten(jax.tree.structure(self.carry), leaves)

    def _drop(self, few: np.ndarray) -> None:
        """Continue with only the runs at the positions `few` of the carry."""
        everything = self._all_runs()
        leaves = [jnp.take(leaf, few, axis=axis) for leaf, axis in self._leaves(self.carry)]
        carry = jax.tree.unflatten(jax.tree.structure(self.carry), leaves)
        # one statement, so that Ctrl-C leaves the three consistent
        self.full_carry, self.carry, self.kept = everything, carry, self.kept[few]

    @cached_property
    def _compiled_observe(self):
        """Compiled function of states and times that returns statistics and observables."""
        return jit_bound(_observe, self.process, self.request.observe, fast_compile=True)

    def _observed(self, state: PyTree, t: np.ndarray) -> tuple[PyTree, dict]:
        """Return statistics and observables of the states, as arrays on the host."""
        return jax.tree.map(np.asarray, self._compiled_observe(state, t, np.array(len(self.request.runs))))

    def _times(self, carry: Carry, t: Any) -> np.ndarray:
        """Return the time of each run: t, or the time at which the run ended if that is earlier."""
        end = np.asarray(carry.end)
        return np.where(end < 0, float(t), self.segments.time_after(end - self.origin))

    def _snapshot(self, shown: tuple[PyTree, dict]) -> Snapshot:
        """Return statistics and observables as a snapshot, without the padding runs."""
        return Snapshot(*take_run(shown, np.s_[: len(self.request.runs)]))


def strengthen_types(state: PyTree) -> PyTree:
    """Convert arrays of weak type to strong types: otherwise the kernel would be compiled a second time, for its own output."""
    return jax.tree.map(
        lambda leaf: lax.convert_element_type(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf, state
    )


def initial_carry(
    process: Process, until: Condition | None, state: PyTree, risk: np.ndarray | None = None, t: float = 0.0
) -> Carry:
    """Return the carry of runs before their first step, at time `t`; some runs may satisfy the stop condition already.

    The initial `risk` may be given if it is known. Without a stop condition nothing is compiled.
    """
    state = strengthen_types(state)
    runs = jax.tree.leaves(state)[0].shape[process.runs_axis]
    if until is None:
        return Carry(state, np.ones(runs, bool), np.zeros(runs, bool), np.full(runs, -1, np.int64), ())
    memory, stopped = jit_bound(_begin, process, until, fast_compile=True)(state, risk, np.array(t), np.array(runs))
    return Carry(state, ~stopped, stopped, jnp.where(stopped, 0, -1).astype(jnp.int64), memory)


def _begin(
    process: Process, until: Condition, state: PyTree, risk: Any, t: Array, wanted: Array
) -> tuple[PyTree, Bool[Array, " runs"]]:
    """Return the memory of the condition, and whether it holds, in the initial states."""

    def begin(start: tuple[PyTree, Any]):
        state, risk = start
        problem = process.problem.at(t)
        return until.over_runs(problem, lambda one: until.evaluate_start(problem, *one), (process.statistics(state), risk))

    return map_groups(begin, process.group_size, wanted, (state, risk))


def _observe(process: Process, observe: Observables, state: PyTree, t: Array, wanted: Array) -> tuple[PyTree, dict[str, Array]]:
    """Return statistics, risk and observables of each run, each at its own time."""

    def observe_group(both: tuple[PyTree, Array]):
        state, t = both
        stats, problem = process.statistics(state), process.problem
        more = problem.numerics.over_runs(lambda one: problem.at(one[1]).observables(one[0]), (stats, t))
        return stats, {"risk": process.risk(state, stats, t), **more, **observe.of_runs(stats)}

    return map_groups(observe_group, process.group_size, wanted, (state, t))


def _positions_to_keep(active: np.ndarray) -> np.ndarray | None:
    """Return the positions of the active runs, padded to a compiled batch size, or None if that is over half of the batch."""
    least = max(MIN_REDUCED_BATCH, active.sum())
    sizes = [size for size in compiled_batch_sizes(GROUP_ALIGNMENT, active.size) if least <= size <= active.size / 2]
    return np.sort(np.argsort(~active, kind="stable")[: sizes[0]]) if sizes else None


def _scatter(before, after, kept: np.ndarray):
    """Return the arrays `before` of all runs with the rows `kept` replaced by `after`; `before` is None on the first call."""
    if before is None:
        return after

    def place(old, new):
        if len(kept) == len(old):
            return new
        out = old.copy()
        out[kept] = new
        return out

    return jax.tree.map(place, before, after)


class Pace:
    """Number of steps per kernel call: whole blocks, chosen so that a call takes about `CALL_SECONDS`.

    Ended runs are dropped once the steps since the last compilation have taken as long as it did (`compiling`): a simulation
    then takes at most about twice the time it would take if the end of each run were known in advance.
    """

    def __init__(self, block: int) -> None:
        self.block, self.steps = block, block
        self.calls, self.seconds = 0, 0.0
        self.compiling = COMPILE_SECONDS

    def note(self, steps: int, seconds: float) -> None:
        """Adapt to the duration of a call of `steps` steps; the first call contains the compilation."""
        self.calls += 1
        if self.calls == 1:
            self.compiling = max(self.compiling, seconds)
            return
        self.seconds += seconds
        # growth is limited, in case one call happened to be fast
        wanted = min(steps * CALL_SECONDS / max(seconds, 1e-6), 8.0 * self.steps, 2.0**40)
        self.steps = max(1, int(wanted) // self.block) * self.block

    def restart(self) -> None:
        """Reset the measurements: the next call will contain a compilation."""
        self.calls, self.seconds = 0, 0.0
