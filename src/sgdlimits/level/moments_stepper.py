"""The stepper of expected second moments: powers of the affine recursion, or single steps where rates change."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sgdlimits.algorithm.affine import affine_step
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Blocks
from sgdlimits.jaxtools import jit_bound
from sgdlimits.level.affine import AffinePower, GramMoments, RecursionCoefficients, RecursionSizes, scan_steps
from sgdlimits.level.base import RUN_DIVERGED, RUN_FINISHED, RUN_STOPPED, Request, RunStatus, Snapshot, Stepper
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.schedule import FunctionOfTime, knots_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps

STEPS_PER_CALL = 2**14
"""Number of steps in one compiled call if every step has its own coefficients."""
MAX_STEPS = 2**31
"""Maximum number of steps with their own coefficients in one piece; about an hour, for few directions and blocks."""
PROBES = np.array([0.0, 0.137, 0.281, 0.419, 0.5, 0.613, 0.752, 0.893, 1.0])
"""Places in a piece at which coefficients are compared to see whether they change."""
MAX_GROWTH = 1e100
"""Value above which a run counts as diverged."""
CHECKS_PER_OCTAVE = 4
"""Number of checks of a stop condition while the number of steps since the last saved time doubles."""
SOLVER_STATUSES = (RUN_FINISHED, RUN_STOPPED, RUN_DIVERGED)


class LinearModel(NamedTuple):
    """The law of a sample of least squares: inputs in blocks, and the weights of the fixed directions in the label."""

    problem: ProjectionProblem
    teacher: np.ndarray

    def dimensions(self, d: int) -> np.ndarray:
        """Return the number of dimensions of each block, not rounded."""
        return d * np.asarray(self.problem.data.shares) if isinstance(self.problem.data, Blocks) else np.array([float(d)])


def _coefficients(problem: ProjectionProblem, d: int, a: Any, times: Any) -> RecursionCoefficients:
    """Return the coefficients of the recursion at several times, in the coordinates of weights with the teacher last.

    `a` is the second layer, one number.
    """

    def at_time(t):
        now = problem.at(t)
        step, n, data = affine_step(now.algorithm, t, 1 / d), len(now.algorithm.names), now.data
        slope = now.network.factor * a
        past = jnp.eye(n + 1).at[:n, :n].set(step.old_coefficients)
        gradient = jnp.append(2 * now.loss.weight * slope * step.gradient, 0.0)
        variance = data.variance[0] if isinstance(data, Blocks) else jnp.reshape(data.squared_length, 1)
        return RecursionCoefficients(
            past, gradient, jnp.append(slope * step.point, -1.0), variance, jnp.asarray(now.target.noise, float)
        )

    return jax.vmap(at_time)(times)


class MomentsStepper(Stepper):
    """Stepper of the level `SecondMoments`, for a batch of runs with different initial second moments."""

    def __init__(self, engine: Any, starts: PyTree, request: Request, state: np.ndarray | None) -> None:
        self.level: Any = engine.level
        self.request, self.problem = request, engine.problem
        self.model: LinearModel = engine.model
        data, count = engine.problem.data, len(request.runs)
        self.starts = jax.tree.map(lambda leaf: np.asarray(leaf, float)[:count], starts)
        self.sizes = RecursionSizes(engine.d, engine.problem.algorithm.batch, self.model.dimensions(engine.d))
        second = np.asarray(self.starts.a)[:, 0]
        if np.ptp(second) > 0:
            raise BadInput("SecondMoments needs the same second layer in all runs. Give a start with one second layer.")
        self.slope = float(engine.problem.network.factor * second[0])
        self.has_blocks = data.blocks is not None
        gram = np.asarray(engine.problem.model.gram, float)
        self.gram = np.moveaxis(gram, 0, -1) if self.has_blocks else gram[..., None]  # k, k, blocks
        self.coefficients = jit_bound(_coefficients, engine.problem, engine.d, float(second[0]), fast_compile=True)
        self.scan = jit_bound(scan_steps, self.sizes)
        self.shift = self._find_shift()
        self.powers: tuple[bytes, AffinePower] | None = None
        self.ended, self.t_end = np.zeros(count, int), np.full(count, np.nan)
        self.moments = self._moments_of(self.starts)
        self.step, self.saved, self.memory = int(request.clock.step[0]), 1, ()
        if request.until is not None:
            self.memory = request.until.begin_runs(self.problem.at(0.0), self._statistics(self.moments))
        if state is None:
            self._stop(self._holds(self.moments, self.step), self.step, self.moments)
        else:
            self._restore(state)

    @cached_property
    def _knots(self) -> np.ndarray:
        """Index of the first step after each jump or kink of a schedule."""
        knots = np.asarray(knots_of(self.problem)) * self.sizes.d / self.sizes.batch
        return np.unique(np.ceil(knots[knots < 2.0**53]).astype(np.int64))

    @cached_property
    def _has_functions(self) -> bool:
        """Whether a user's function of time may change between the times at which it is probed."""
        leaves = jax.tree.leaves(self.problem, is_leaf=lambda leaf: isinstance(leaf, FunctionOfTime))
        return any(isinstance(leaf, FunctionOfTime) for leaf in leaves)

    def _times(self, steps: Any) -> np.ndarray:
        """Return the times t at which the steps with given indices begin."""
        return np.asarray(steps, float) * self.sizes.batch / self.sizes.d

    def _find_shift(self) -> np.ndarray | None:
        """Return the multiples of the teacher whose removal from all directions leaves a recursion without the teacher.

        These are the fixed points of noiseless training: the teacher for weights and zero for velocities. With weight decay
        there are none, and the teacher stays in the recursion.
        """
        algorithm = self.problem.algorithm
        zero = [algorithm.memory.get(name) == "zero" for name in algorithm.names]
        shift = np.append(np.where(zero, 0.0, 1 / self.slope) if self.slope else np.zeros(len(zero)), 1.0)
        times = np.concatenate(
            [[0.0], np.geomspace(1 / self.sizes.d, max(self.request.clock.t[-1], 1.0), 20), self.request.clock.t]
        )
        A, c, v, _, _ = self._coefficients_at(times)
        still = np.abs(A @ shift - shift).max() < 1e-13 and np.abs((v @ shift)[np.abs(c).max(1) > 0]).max(initial=0.0) < 1e-13
        return shift[:-1] if still else None

    def _coefficients_at(self, times: np.ndarray) -> RecursionCoefficients:
        """Return the affine recursion's coefficients at several times, padded to a power of two to compile few sizes."""
        size = 1 << int(times.size - 1).bit_length()
        found = self.coefficients(np.concatenate([times, np.repeat(times[-1:], size - times.size)]))
        return RecursionCoefficients(*(np.asarray(leaf)[: times.size] for leaf in found))

    def _reduce(self, each: RecursionCoefficients) -> RecursionCoefficients:
        """Remove the teacher from the coefficients if the recursion does not need it."""
        if self.shift is None:
            return each
        return each._replace(
            old_coefficients=each.old_coefficients[..., :-1, :-1], gradient=each.gradient[..., :-1], point=each.point[..., :-1]
        )

    def _moments_of(self, stats: Overlaps) -> GramMoments:
        """Convert statistics, runs first, to moments of the affine recursion."""
        last = lambda leaf: np.moveaxis(leaf if self.has_blocks else leaf[:, None], (0, 1), (-1, -2))
        Q, M, r = last(np.asarray(stats.Q)), last(np.asarray(stats.M)), self.model.teacher
        along, fixed, norm = np.einsum("ikbr,k->ibr", M, r), np.einsum("klb,k->lb", self.gram, r), self._teacher_norm
        if self.shift is None:
            top = np.concatenate([Q, along[:, None]], axis=1)
            corner = np.broadcast_to(norm[:, None], along.shape[1:])[None, None]
            bottom = np.concatenate([along[None], corner], axis=1)
            each = np.broadcast_to(fixed[None, :, :, None], (1, *M.shape[1:]))
            return GramMoments(np.concatenate([top, bottom]), np.concatenate([M, each]))
        s = self.shift
        cross = np.einsum("i,jbr->ijbr", s, along)
        gram = Q - cross - np.swapaxes(cross, 0, 1) + np.outer(s, s)[:, :, None, None] * norm[:, None]
        return GramMoments(gram, M - s[:, None, None, None] * fixed[..., None])

    @cached_property
    def _teacher_norm(self) -> np.ndarray:
        """Squared norm of the teacher's component in each block of coordinates."""
        return np.einsum("k,klb,l->b", self.model.teacher, self.gram, self.model.teacher)

    def _statistics(self, moments: GramMoments) -> Overlaps:
        """Convert moments of the affine recursion to statistics, with the runs first."""
        gram, M = np.asarray(moments.gram), np.asarray(moments.fixed)
        if self.shift is None:
            Q, M = gram[:-1, :-1], M[:-1]
        else:
            s, r = self.shift, self.model.teacher
            cross = np.einsum("i,jkbr,k->ijbr", s, M, r)
            Q = gram + cross + np.swapaxes(cross, 0, 1) + np.outer(s, s)[:, :, None, None] * self._teacher_norm[:, None]
            M = M + s[:, None, None, None] * np.einsum("klb,k->lb", self.gram, r)[..., None]
        first = lambda leaf: np.moveaxis(leaf, (-1, -2), (0, 1)) if self.has_blocks else np.moveaxis(leaf, -1, 0)[..., 0]
        return Overlaps(self.starts.a, first(M), first(Q), self.starts.kept, self.starts.names)

    def _risks(self, moments: GramMoments, times: np.ndarray) -> dict[str, np.ndarray]:
        """Return each run's mean risk at the run's time, and the mean risks of averaged weights that the algorithm stores."""
        names, memory = self.problem.algorithm.names, self.problem.algorithm.memory
        each = self._coefficients_at(times)
        found = {}
        for name in (STUDENT, *(name for name in names if memory.get(name) == "copy")):
            v = np.zeros(len(names) + (self.shift is None))
            v[names.index(name)] = self.slope
            if self.shift is None:
                v[-1] = -1.0
            square = np.einsum("i,ijbr,j->br", v, np.asarray(moments.gram), v)
            risk = self.problem.loss.weight * ((each.variance.T * square).sum(0) + each.noise)
            found["risk" if name == STUDENT else f"risk_{name}"] = risk
        return found

    def _snapshot(self, moments: GramMoments, step: int) -> Snapshot:
        """Return the snapshot of all runs after a step; ended runs are evaluated at their end times."""
        stats, t = self._statistics(moments), float(self._times(step))
        times = np.where(self.ended == 0, t, np.fmin(self.t_end, t))
        observed = {name: np.asarray(value) for name, value in self.request.observe.evaluate_runs(stats).items()}
        return Snapshot(stats, {**self._risks(moments, times), **observed})

    @property
    def initial_snapshot(self):
        return self._snapshot(self._moments_of(self.starts), int(self.request.clock.step[0]))

    @property
    def finished(self):
        return self.saved == self.request.clock.t.size

    @property
    def completed_fraction(self):
        first, last = self.request.clock.step[[0, -1]]
        return max(0.0, (self.step - first) / (last - first))

    def run_status(self):
        return RunStatus(
            np.array(SOLVER_STATUSES, object)[self.ended], np.where(self.ended == 0, self._times(self.step), self.t_end)
        )

    def current_snapshot(self):
        return self._snapshot(self.moments, self.step)

    def advance(self):
        end = int(self.request.clock.step[self.saved])
        if (self.ended == 0).any():
            for stop in (*self._knots[(self._knots > self.step) & (self._knots < end)], end):
                self._advance_piece(int(stop))
        self.step, self.saved = end, self.saved + 1
        return [self._snapshot(self.moments, end)]

    def _advance_piece(self, end: int) -> None:
        """Advance to the step `end`, within a piece in which no schedule has a jump or kink."""
        first, steps = self.step, self.step + np.rint(PROBES * (end - 1 - self.step)).astype(np.int64)
        probed = self._reduce(self._coefficients_at(self._times(np.unique(steps))))
        same = all((leaf == leaf[:1]).all() for leaf in probed) and not (self._has_functions and end - first > 1)
        if same:
            return self._advance_constant(end, jax.tree.map(lambda leaf: leaf[0], probed))
        if self.level.pieces is None:
            if end - first > MAX_STEPS:
                raise BadInput(
                    f"rates that change with time need each of {end - first:.3g} steps. Give SecondMoments(d, pieces=30), "
                    "which holds rates constant within pieces of a decade, or rates in steps, Steps(times, values)."
                )
            return self._advance_each(end)
        ratio = 10 ** (1 / self.level.pieces)
        while self.step < end:
            stop = min(end, max(self.step + 1, int(self.step * ratio)))
            middle = self._reduce(self._coefficients_at(self._times([(self.step + stop - 1) / 2])))
            self._advance_constant(stop, jax.tree.map(lambda leaf: leaf[0], middle))

    def _advance_constant(self, end: int, one: RecursionCoefficients) -> None:
        """Make steps up to the step `end` while the coefficients are constant, by powers of the affine map."""
        key = b"".join(leaf.tobytes() for leaf in one)
        if self.powers is None or self.powers[0] != key:
            self.powers = key, AffinePower(self.sizes, one)
        power, count = self.powers[1], end - self.step
        if self.request.until is None:
            self._accept(power.apply(self.moments, count), end)
            return
        done, before = 0, self.moments
        while done < count:
            stride = min(count - done, max(1, done // CHECKS_PER_OCTAVE))
            after = power.apply(before, stride)
            hits = self._holds(after, self.step + stride)
            if hits.any() and stride > 1:  # the first step at which a run stops, by bisection
                low, high = 0, stride
                while high - low > 1:
                    middle = (low + high) // 2
                    found = self._holds(power.apply(before, middle), self.step + middle).any()
                    low, high = (low, middle) if found else (middle, high)
                stride, after = high, power.apply(before, high)
                hits = self._holds(after, self.step + stride)
            self._accept(after, self.step + stride)
            self._stop(hits, self.step, self.moments)
            done, before = done + stride, self.moments

    def _advance_each(self, end: int) -> None:
        """Make steps up to the step `end` while coefficients change, each step with the coefficients at its time."""
        chunk = 1 if self.request.until is not None else STEPS_PER_CALL
        while self.step < end:
            count = min(chunk, end - self.step)
            times = self._times(self.step + np.minimum(np.arange(chunk), count - 1))
            each = self._reduce(RecursionCoefficients(*self.coefficients(times)))
            self._accept(GramMoments(*map(np.asarray, self.scan(self.moments, each, count))), self.step + count)
            if self.request.until is not None:
                self._stop(self._holds(self.moments, self.step), self.step, self.moments)

    def _accept(self, after: GramMoments, step: int) -> None:
        """Take the moments after some steps for the runs that have not ended; runs that diverge keep their last moments."""
        active = self.ended == 0
        broken = active & ~(np.abs(after.gram).max((0, 1, 2)) < MAX_GROWTH)
        self.ended[broken], self.t_end[broken] = SOLVER_STATUSES.index(RUN_DIVERGED), self._times(self.step)
        on = active & ~broken
        self.moments = jax.tree.map(lambda new, old: np.where(on, new, old), after, self.moments)
        self.step = step

    def _holds(self, moments: GramMoments, step: int) -> np.ndarray:
        """Return whether the stop condition holds in each run that has not ended."""
        if self.request.until is None:
            return np.zeros(self.ended.size, bool)
        times = np.full(self.ended.size, self._times(step))
        return np.asarray(self._stops(self._statistics(moments), self.memory, times)) & (self.ended == 0)

    @cached_property
    def _stops(self) -> Any:
        """Compiled function that evaluates the stop condition for the statistics of all runs."""
        return jit_bound(_stop_runs, self.problem, self.request.until, fast_compile=True)

    def _stop(self, hits: np.ndarray, step: int, moments: GramMoments) -> None:
        """Record that the runs in the mask `hits` end at a given step."""
        self.ended[hits], self.t_end[hits] = SOLVER_STATUSES.index(RUN_STOPPED), self._times(step)

    def resume_state(self):
        flat = [np.moveaxis(leaf, -1, 0).reshape(self.ended.size, -1) for leaf in self.moments]
        memory = [np.asarray(leaf, float).reshape(self.ended.size, -1) for leaf in jax.tree.leaves(self.memory)]
        step = np.full(self.ended.size, float(self.step))
        return np.concatenate([np.stack([self.ended, self.t_end, step], axis=1), *flat, *memory], axis=1)

    def _restore(self, state: np.ndarray) -> None:
        """Restore the runs from the rows that `state` returned."""
        self.ended, self.t_end, self.step = state[:, 0].astype(int), state[:, 1].copy(), int(state[0, 2])
        leaves, tree = jax.tree.flatten((tuple(self.moments), self.memory))
        axes = [-1, -1, *(0 for _ in leaves[2:])]
        new, at = [], 3
        for leaf, axis in zip(leaves, axes, strict=True):
            shape = np.moveaxis(leaf, axis, 0).shape
            size = int(np.prod(shape[1:]))
            new.append(np.moveaxis(state[:, at : at + size].reshape(shape), 0, axis).astype(np.asarray(leaf).dtype))
            at += size
        moments, self.memory = jax.tree.unflatten(tree, new)
        self.moments = GramMoments(*moments)


def _stop_runs(problem: Problem, until: Any, stats: PyTree, memory: PyTree, t: Any) -> Any:
    """Return whether the stop condition holds, for each run of a batch."""
    return until.stop_runs(problem, stats, memory, t)
