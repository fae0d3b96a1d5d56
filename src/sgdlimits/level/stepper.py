"""The loop that runs a process: alone, or side by side with others whose steps have the same code."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import GROUP_ALIGNMENT, compiled, in_groups
from sgdlimits.kernel.base import Carry, RunBatch, StepRange
from sgdlimits.kernel.choose import kernel_for
from sgdlimits.kernel.random import Stream
from sgdlimits.level import stopping  # noqa: F401  (it registers the bounds that kernels look up)
from sgdlimits.level.base import DIVERGED, FINISHED, STOPPED, Clock, Level, Request, RunStatus, Snapshot, Stepper, ladder
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observe
from sgdlimits.level.process import MOST_STEPS, Process, Segments, SteppingEngine, reports_problem_risk
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import one_of

CALL_SECONDS = 0.1
"""How long one call of the compiled loop should take: progress, Ctrl-C and dropping ended runs happen between calls."""
COMPILE_SECONDS = 3.0
"""What compiling the loop for another number of runs takes at least."""


class Made(NamedTuple):
    """What came of steps, how many these were, and how long they took."""

    carry: Carry
    steps: int
    seconds: float


Legs = Generator[Snapshot | StepRange, Made, None]
"""What a stepper shows, and the steps that it wants."""


class ProcessEngine(SteppingEngine):
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
        few = self.most < GROUP_ALIGNMENT and self.process.group_size
        return few or GROUP_ALIGNMENT

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

    def stepper(self, starts, request, state=None):
        return ProcessStepper(self.process, starts, request, self.segments(request.clock), state)


class ProcessStepper(Stepper):
    """A process from `starts` through segments of steps, shown at the start and after each.

    Runs that have ended are dropped from the computation once that pays; `whole` keeps what they were, and `here` says which
    are left.
    """

    def __init__(self, process: Process, starts: PyTree, request: Request, segments: Segments, state=None) -> None:
        self.process, self.request, self.segments, self.total = process, request, segments, int(segments.counts.sum())
        begin = strong(process.start(starts))
        self.t0 = float(segments.begins[0]) if segments.begins.size else float(request.clock.t[0])
        size = jax.tree.leaves(begin)[0].shape[process.runs_axis]
        self.shown = self._observed(begin, np.full(size, self.t0)) if request.begin_shown else None
        risk = self.shown[1]["risk"] if self.shown is not None and reports_problem_risk(process) else None
        self.carry, self.base, self.first = set_out(process, request.until, begin, risk, self.t0), 0, 0
        self.runs = request.runs[np.minimum(np.arange(size), len(request.runs) - 1)].astype(np.uint32)
        self.here = np.arange(size)
        if state is not None:
            self.carry, self.base, self.first = self._restored(state)
        wanted = np.asarray(self.carry.moving) & (self.here < len(request.runs))  # who fills up a batch stands still
        self.carry = eqx.tree_at(lambda carry: carry.moving, self.carry, wanted)
        self.origin, self.whole, self.outset = self.base, self.carry, None if request.begin_shown else self.carry
        self.stepping = kernel_for(process, request.until, self.carry, request.kernel)
        self.kernel, self.seed, self.pace = self.stepping.name, Stream.of(request.seed, self.runs).seed, Pace(process.block)

    def __iter__(self):
        return (snapshot for _, snapshot in interleaved([self]))

    def legs(self) -> Legs:
        """Ticks, and the steps that it wants next. For these it is sent what was `Made`."""
        shown = self.shown
        yield Snapshot(self._share, (), {}) if shown is None else self._snapshot(shown)
        for count, size, t, rest in zip(*self.segments, strict=True):
            end = self.base + int(count)
            while self.first < end and np.asarray(self.carry.moving).any():
                late = self.stepping.recompiles and self.pace.seconds > self.pace.compiling
                few = _few(np.asarray(self.carry.moving)) if late else None
                if few is not None:
                    now = self._times(self.carry, t + (self.first - self.base) * size)
                    shown = _scatter(shown, self._observed(self.carry.state, now), self.here)
                    self._drop(few)
                    self.pace.restart()
                made = yield StepRange(self.first, end - self.first, t + (self.first - self.base) * size, size)
                self.carry, self.first = made.carry, self.first + made.steps  # together: Ctrl-C comes between calls
                self.pace.note(made.steps, made.seconds)
                yield Snapshot(self._share)
            there = (yield StepRange(end, 1, t + count * size, rest)).carry if rest else self.carry
            shown = _scatter(shown, self._observed(there.state, self._times(there, t + count * size + rest)), self.here)
            self.base = self.first = end
            yield self._snapshot(shown)

    @property
    def run_batch(self) -> RunBatch:
        """The runs that are left, for the kernel that makes their steps."""
        return RunBatch(self.stepping, self.carry, self.seed, self.runs[self.here])

    def ends(self):
        """A run that had ended before this stepper set out ended at its beginning, as far as it knows."""
        carry = self._all()
        end, stopped = (np.asarray(leaf)[: len(self.request.runs)] for leaf in (carry.end, carry.stopped))
        status = np.where(end < 0, FINISHED, np.where(stopped, STOPPED, DIVERGED)).astype(object)
        done = self.first - self.origin
        reached = self.request.clock.t[-1] if done == self.total else self.segments.when(np.asarray(done))
        return RunStatus(status, np.where(end < 0, reached, self.segments.when(end - self.origin)))

    def in_full(self, first):
        return (
            first
            if self.outset is None
            else self._snapshot(self._observed(self.outset.state, np.full(self.runs.size, self.t0)))
        )

    def now(self):
        carry = self._all()
        t = self.segments.when(np.asarray(self.first - self.origin))
        return self._snapshot(self._observed(carry.state, self._times(carry, t)))

    def state(self):
        """With the numbers of steps up to the last saved time and up to now, between which nothing is lost."""
        carry, count = self._all(), len(self.request.runs)
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
        return compiled(_observe, self.process, self.request.observe, fast_compile=True)

    def _observed(self, state: PyTree, t: np.ndarray):
        return jax.tree.map(np.asarray, self._look(state, t, np.array(len(self.request.runs))))

    def _times(self, carry: Carry, t: Any) -> np.ndarray:
        """The time of each run: t, or that at which it ended, if that is earlier."""
        end = np.asarray(carry.end)
        return np.where(end < 0, float(t), self.segments.when(end - self.origin))

    @property
    def _share(self) -> float:
        return (self.first - self.origin) / max(1, self.total)

    def _snapshot(self, shown) -> Snapshot:
        return Snapshot(self._share, *one_of(shown, np.s_[: len(self.request.runs)]))


def interleaved(steppers: Sequence[Stepper]) -> Iterator[tuple[Stepper, Snapshot]]:
    """Ticks of all, each with whose it is. Steps of steppers whose kernels share their code are made together."""
    alike: dict[Any, list[ProcessStepper]] = {}
    for stepper in steppers:
        if isinstance(stepper, ProcessStepper):
            alike.setdefault(stepper.stepping.key, []).append(stepper)
        else:
            yield from ((stepper, snapshot) for snapshot in stepper)
    for some in alike.values():
        asked: list[tuple[ProcessStepper, Legs, Any]] = [(stepper, stepper.legs(), None) for stepper in some]
        while asked:
            wanted: dict[StepRange, list[tuple[ProcessStepper, Legs]]] = {}
            for stepper, legs, told in asked:
                for said in _heard(legs, told):
                    if isinstance(said, Snapshot):
                        yield stepper, said
                    else:
                        wanted.setdefault(said, []).append((stepper, legs))
            asked = [
                (stepper, legs, answer)
                for span, group in wanted.items()
                for (stepper, legs), answer in zip(group, _made([stepper for stepper, _ in group], span), strict=True)
            ]


def _heard(legs: Legs, told: Any) -> Iterator[Snapshot | StepRange]:
    """What comes up to the next steps that are wanted, or the end."""
    try:
        said = legs.send(told)
        while isinstance(said, Snapshot):
            yield said
            said = next(legs)
        yield said
    except StopIteration:
        return


def _made(steppers: list[ProcessStepper], span: StepRange) -> list[Made]:
    """What comes of steps, of as many as the pace allows."""
    steps, begin = min(span.steps, *(stepper.pace.steps for stepper in steppers)), time.perf_counter()
    now = StepRange(*(np.asarray(number) for number in span._replace(steps=steps)))
    carries = steppers[0].stepping.advance_many([stepper.run_batch for stepper in steppers], now)
    seconds = time.perf_counter() - begin
    return [Made(carry, steps, seconds) for carry in carries]


def strong(state: PyTree) -> PyTree:
    """Arrays of types that are not weak, with which all would be compiled twice."""
    return jax.tree.map(
        lambda leaf: lax.convert_element_type(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf, state
    )


def set_out(process: Process, until: Condition | None, state: PyTree, risk: np.ndarray | None = None, t: float = 0.0) -> Carry:
    """All runs at their first step, at time t; those that stop there have ended. Their risk, where it is known, saves time.

    Without a condition nothing is compiled.
    """
    state = strong(state)
    runs = jax.tree.leaves(state)[0].shape[process.runs_axis]
    if until is None:
        return Carry(state, np.ones(runs, bool), np.zeros(runs, bool), np.full(runs, -1, np.int64), ())
    memory, stopped = compiled(_begin, process, until, fast_compile=True)(state, risk, np.array(t), np.array(runs))
    return Carry(state, ~stopped, stopped, jnp.where(stopped, 0, -1).astype(jnp.int64), memory)


def _begin(
    process: Process, until: Condition, state: PyTree, risk: Any, t: Array, wanted: Array
) -> tuple[PyTree, Bool[Array, " runs"]]:
    def begin(start: tuple[PyTree, Any]):
        state, risk = start
        problem = process.problem.at(t)
        return until.over_runs(problem, lambda one: until.set_out(problem, *one), (process.statistics(state), risk))

    return in_groups(begin, process.group_size, wanted, (state, risk))


def _observe(process: Process, observe: Observe, state: PyTree, t: Array, wanted: Array) -> tuple[PyTree, dict[str, Array]]:
    def look(both: tuple[PyTree, Array]):
        state, t = both
        stats, problem = process.statistics(state), process.problem
        more = problem.numerics.over_runs(lambda one: problem.at(one[1]).observables(one[0]), (stats, t))
        return stats, {"risk": process.risk(state, stats, t), **more, **observe.of_runs(stats)}

    return in_groups(look, process.group_size, wanted, (state, t))


def _few(moving: np.ndarray) -> np.ndarray | None:
    """All that move among at most half of the runs, or None: of the ladder's sizes, so that few are compiled."""
    sizes = [size for size in ladder(GROUP_ALIGNMENT, moving.size) if max(16, moving.sum()) <= size <= moving.size / 2]
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
    request then takes more than about twice what it would if it were known when the runs end.
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
