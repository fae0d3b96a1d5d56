"""The stepper of levels without noise: it solves the differential equation of the drift for a batch of runs."""

from __future__ import annotations

import time
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from numpy.polynomial.chebyshev import chebpts2

from sgdlimits.jaxtools import GROUP_SIZE_MULTIPLE, TreeLayout, jit_bound
from sgdlimits.kernel.base import MAX_COORDINATE
from sgdlimits.level.base import (
    RUN_DIVERGED,
    RUN_FINISHED,
    RUN_STOPPED,
    STATES_PER_CALL,
    Engine,
    Request,
    RunStatus,
    Snapshot,
    Stepper,
    compiled_batch_sizes,
)
from sgdlimits.level.condition import Condition
from sgdlimits.level.dop853 import MAX_DEFECT, CompiledSolver, Interval, SolverSteps, buffered_steps, make_steps
from sgdlimits.level.observe import Observables
from sgdlimits.problem.base import Problem
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.blocks import block_factor, cone_by_block
from sgdlimits.statistics.trees import select_run

SOLVER_METHODS = ("DOP853", "Radau")
SOLVER_STATUSES = (RUN_FINISHED, RUN_STOPPED, RUN_DIVERGED)
SHARED_TOLERANCE = 1e-7
"""Maximum relative tolerance for solving runs as one system: above it the error of a run visibly depends on the other runs."""
STEPS_PER_INTERVAL_CHECK = 60
"""Number of solver steps between restarts; runs resume from the state at a restart, and restarting loses no accuracy."""
STEPS_PER_STIFFNESS_TEST = 300
"""Number of steps of the solver DOP853 between tests for stiffness, which cost a Jacobian and its eigenvalues."""
STIFF_PRODUCT = 4.0
"""Step size times decay rate above which a system counts as stiff. DOP853 is stable up to about 6 on the real axis."""
CHEBYSHEV_NODES = chebpts2(8)
"""Chebyshev nodes, in a step rescaled to [-1, 1], at which the interpolating polynomials of degree 7 are evaluated."""
MIDPOINT_WEIGHTS = np.linalg.inv(np.vander(CHEBYSHEV_NODES, increasing=True))[:2]
"""Weights of the values at the nodes that give the value and the slope of a polynomial in the middle of a step."""
MAX_HALVINGS = 6
"""Maximum number of times a step is halved to make its interpolating polynomial accurate."""
TOLERANCE_DIVISOR = 10
"""Divisor of small requested tolerances, since interpolation within a step is less accurate than the step."""


def vector_field(problem: Problem, corrector: bool, t: Any = 0.0):
    """Return the drift of the statistics at time t as a function of one run's statistics.

    If `corrector` is false, the term quadratic in the learning rate is left out, which gives gradient flow on the risk.
    """
    return lambda stats: problem.drift(stats, t) if corrector else problem.drift_parts(stats, t)[0]


def _drifts(problem: Problem, corrector: bool, layout: TreeLayout, t: Any, rows: Any) -> Array:
    """Return the drift of each run at time t, from an array with one run's state in each row."""
    slopes = problem.numerics.over_runs(vector_field(problem, corrector, t), layout.values(rows))
    return jnp.concatenate([leaf.reshape(len(rows), -1) for leaf in jax.tree.leaves(slopes)], axis=1)


def _make_steps(
    problem: Problem, corrector: bool, layout: TreeLayout, buffer: int, t: Any, rows: Any, size: Any, within: Any
) -> SolverSteps:
    """Make steps of DOP853 for a batch of runs, from an array with one run's state in each row."""
    return make_steps(lambda t, rows: _drifts(problem, corrector, layout, t, rows), buffer, t, rows, size, within)


@eqx.filter_jit
def _jacobians(problem: Problem, corrector: bool, t: Float[np.ndarray, ""], stats: PyTree) -> Float[Array, "runs n n"]:
    """Return the Jacobian of the drift at the statistics of each run, with respect to all entries of the statistics."""
    slope = vector_field(problem, corrector, t)

    def jacobian_of_run(one: PyTree):
        flat, rebuild = ravel_pytree(one)
        return jax.jacfwd(lambda y: ravel_pytree(slope(rebuild(y)))[0])(flat)

    return problem.numerics.over_runs(jacobian_of_run, stats)


def _condition_memories(problem: Problem, until: Condition, layout: TreeLayout, t: Any, rows: Any):
    """Return the memory of a stop condition at the start of each run, from an array with one run's state in each row."""
    return until.begin_runs(problem.at(t), layout.values(rows))


def _should_stop(problem: Problem, until: Condition, layout: TreeLayout, rows: Any, memory: PyTree, t: Any):
    """Return whether each run should stop, from an array with one run's state in each row."""
    return until.stop_runs(problem, layout.values(rows), memory, t)


def _observe_states(
    problem: Problem, observe: Observables, layout: TreeLayout, count: Any, times: Any, rows: Any
) -> dict[str, Array]:
    """Return risk and observables in the first `count` of several states of all runs, each state at its own time."""

    @partial(jax.jit, inline=True)  # so that it is traced once, both for its output shapes and for the loop
    def observe_state(t, y):
        stats = layout.values(y)

        def observe_run(pair):
            now, own = problem.at(pair[1]), pair[0]
            return {"risk": now.risk(own), **now.observables(own)}

        return {**problem.numerics.over_runs(observe_run, (stats, t)), **observe.evaluate_runs(stats)}

    empty = lambda like: jnp.zeros((len(rows), *like.shape), like.dtype)

    def store_observed(i, seen):
        return jax.tree.map(lambda leaf, one: leaf.at[i].set(one), seen, observe_state(times[i], rows[i]))

    # the loop has a traced length: padding states are not computed, and their number compiles nothing
    return jax.lax.fori_loop(0, count, store_observed, jax.tree.map(empty, jax.eval_shape(observe_state, times[0], rows[0])))


class StoppedRuns(NamedTuple):
    """Indices of the runs that stop within one step of the solver, with their stopping times and states."""

    runs: np.ndarray
    t: np.ndarray
    y: np.ndarray


class Solver(Stepper):
    """Stepper that solves the ODE of a batch of runs as one system; each row of `y` is the state of one run.

    Runs leave the system when they stop or diverge. The steps of the solver do not depend on the saved times, at which the
    interpolating polynomial of a step is evaluated; if it is not accurate enough, the step is solved again in two halves, and
    so on. The solver is restarted after `STEPS_PER_INTERVAL_CHECK` steps, and when runs leave. Runs that are resumed continue
    from the last restart.
    """

    def __init__(self, engine: Engine, starts: PyTree, request: Request, state: np.ndarray | None) -> None:
        self.level: Any = engine.level
        self.problem, self.request = engine.problem, request
        self.corrector = getattr(engine.level, "corrector", True)
        count = len(request.runs)
        leaves, tree = jax.tree.flatten(starts)
        self.layout = TreeLayout(tree, tuple(np.shape(leaf)[1:] for leaf in leaves))
        self.y = np.concatenate([np.asarray(leaf, float)[:count].reshape(count, -1) for leaf in leaves], axis=1)
        self.y0 = self.y.copy()
        self.ended = np.zeros(count, int)  # index into STATUSES; 0 is an active run
        self.t_end = np.full(count, np.nan)
        self.slopes = jit_bound(_drifts, self.problem, self.corrector, self.layout)
        self.buffer = buffered_steps(len(_padded_indices(count)), self.layout.size)
        self.make_steps = jit_bound(_make_steps, self.problem, self.corrector, self.layout, self.buffer)
        self.observe = jit_bound(_observe_states, self.problem, request.observe, self.layout, fast_compile=True)
        self.stops, memory = None, ()
        if request.until is not None:
            self.stops = jit_bound(_should_stop, self.problem, request.until, self.layout, fast_compile=True)
            begin = jit_bound(_condition_memories, self.problem, request.until, self.layout, fast_compile=True)
            memory = begin(np.asarray(request.clock.t[0], float), self.y[_padded_indices(count)])
        self.memory = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], memory)
        self.t, self.steps, self.stride, self.method = request.clock.t[0], 0, np.nan, 0
        self.knots, self.reduce_below_jump = knots_of(self.problem), np.inf
        self.saved = 1
        """Number of saved times whose snapshots have been returned, the initial one included."""
        self.waiting: list[np.ndarray] = []
        """Solved states at the next saved times whose risk and observables are not evaluated yet."""
        self.observed_at = time.perf_counter()
        self.solver: scipy.integrate.OdeSolver | CompiledSolver | None = None
        """The solver within a leg; None between legs."""
        if state is None:
            self._end_runs(self._check_condition(self.y, self.active, self.t), RUN_STOPPED, self.t, self.y)
        else:
            self._restore_state(state)
        self.leg_start = self._resume_rows()

    @property
    def active(self) -> np.ndarray:
        """Indices of the runs that have not ended."""
        return np.flatnonzero(self.ended == 0)

    @property
    def initial_snapshot(self):
        return self._snapshots([self.y0], self.request.clock.t[:1])[0]

    @property
    def finished(self):
        return self.saved == self.request.clock.t.size

    @property
    def completed_fraction(self):
        begin, end = float(self.request.clock.t[0]), float(self.request.clock.t[-1])
        return max(0.0, (self.t - begin) / (end - begin))

    def advance(self):
        clock = self.request.clock.t
        if self.solver is None:
            self.leg_start = self._resume_rows()
            if self.t < clock[-1] and self.active.size:
                self._start_interval()
        if self.solver is None:  # nothing is left to solve: all remaining snapshots show the last states
            self.waiting = [self.y] * (clock.size - self.saved)
            return self.observe_waiting()
        found = self._make_step(self.solver)
        return found if self.solver is not None else found + self.observe_waiting()

    def run_status(self):
        return RunStatus(np.array(SOLVER_STATUSES, object)[self.ended], np.where(self.ended == 0, self.t, self.t_end))

    def current_snapshot(self):
        return self._snapshots([self.y], np.array([self.t]))[0]

    def resume_state(self):
        return self.leg_start

    def _resume_rows(self) -> np.ndarray:
        """Return the state from which the runs can be resumed, as one row of floats per run.

        Columns: status, end time, t, method, steps, step size, y, memory.
        """
        rows = lambda leaf: np.asarray(leaf, float).reshape(len(self.y), -1)
        shared = np.tile([self.t, self.method, self.steps, self.stride], (len(self.y), 1))
        memory = [rows(leaf) for leaf in jax.tree.leaves(self.memory)]
        return np.concatenate([rows(self.ended), rows(self.t_end), shared, self.y, *memory], axis=1)

    def _restore_state(self, state: np.ndarray) -> None:
        """Restore the state from the rows that `_resume_rows` returned."""
        self.ended, self.t_end = state[:, 0].astype(int), state[:, 1].copy()
        self.t, self.method, self.steps, self.stride = state[0, 2], int(state[0, 3]), int(state[0, 4]), state[0, 5]
        y, rest = np.split(state[:, 6:], [self.layout.size], axis=1)
        memory = TreeLayout.from_tree(select_run(self.memory)).values(rest)
        self.y, self.memory = y.copy(), jax.tree.map(lambda new, old: new.astype(old.dtype), memory, self.memory)

    def observe_waiting(self, least=1):
        """Return snapshots of the waiting states, evaluated in groups, until fewer than `least` states are left."""
        found: list[Snapshot] = []
        while len(self.waiting) >= least:
            now, self.observed_at = self.waiting[:STATES_PER_CALL], time.perf_counter()
            found += self._snapshots(now, self.request.clock.t[self.saved :])
            self.waiting, self.saved = self.waiting[STATES_PER_CALL:], self.saved + len(now)
        return found

    def _snapshots(self, states: list[np.ndarray], times: np.ndarray) -> list[Snapshot]:
        """Return snapshots of at most `STATES_PER_CALL` states of all runs; ended runs are evaluated at their end time."""
        y = self._project_to_cone(np.stack(states))
        # padded to one size, so that the observables are compiled once
        padding = STATES_PER_CALL - len(states)
        padded = np.concatenate([y, np.repeat(y[-1:], padding, axis=0)])[:, _padded_indices(len(self.y))]
        t = times[: len(states)]
        t = np.concatenate([t, np.repeat(t[-1:], padding)])
        end = np.where(self.ended == 0, np.inf, self.t_end)
        t_of_runs = np.minimum(t[:, None], end)[:, _padded_indices(len(self.y))]
        seen = self.observe(len(states), t_of_runs, padded)
        observed = {name: np.asarray(values)[:, : len(self.y)] for name, values in seen.items()}
        leaves, tree = jax.tree.flatten(self.layout.values(y))
        return [
            Snapshot(
                jax.tree.unflatten(tree, [leaf[i] for leaf in leaves]), {name: values[i] for name, values in observed.items()}
            )
            for i in range(len(states))
        ]

    def _project_to_cone(self, y: np.ndarray) -> np.ndarray:
        """Project states to the nearest statistics that some weights have, for snapshots only.

        Errors of the solver may make overlaps slightly indefinite.
        """
        stats = self.layout.values(y)
        near = cone_by_block(stats, self._frame_matrix)
        leaves = [np.reshape(leaf, (*y.shape[:2], -1)) for leaf in jax.tree.leaves(near)]
        return y if near is stats else np.concatenate(leaves, axis=-1)

    @cached_property
    def _frame_matrix(self) -> np.ndarray:
        """Matrix B whose rows are the fixed directions' coordinates in an orthonormal basis of their span."""
        return block_factor(np.asarray(self.problem.directions.gram))

    def _start_interval(self) -> None:
        """Start a solver for the active runs, which ends at the next knot of a schedule or the last saved time."""
        end = self.request.clock.t[-1]
        knot = next((knot for knot in self.knots if self.t < knot < end), None)
        # a leg that ends at a knot evaluates the schedule only before it, where the schedule is smooth
        self.reduce_below_jump = np.inf if knot is None else np.nextafter(knot, -np.inf)
        self.solver = self._new_solver(self.t, self.y[self.active].ravel(), end if knot is None else knot, self.stride)

    def _make_step(self, solver: scipy.integrate.OdeSolver | CompiledSolver) -> list[Snapshot]:
        """Make one step of the solver and return the snapshots that are ready.

        The solver is restarted if runs stop or diverge, at a knot of a schedule, and after `STEPS_PER_INTERVAL_CHECK` steps.
        """
        active = self.active
        before, y_before = solver.t, solver.y.reshape(active.size, -1)
        with np.errstate(all="ignore"):
            solver.step()
        y = solver.y.reshape(active.size, -1)
        broken = ~(np.abs(y) <= MAX_COORDINATE).all(1)
        if solver.status == "failed":  # assume that the run with the largest state is the cause
            broken |= np.abs(y).max(1) >= np.abs(y).max()
        if broken.any():
            self.y[active], self.t = y_before, before
            self._end_runs(broken, RUN_DIVERGED, before, y_before)
            self.solver = None
            return []
        self.steps, self.stride = self.steps + 1, solver.h_abs
        hits = self._check_condition(y, active, solver.t)
        self._queue_saved_states(solver, before, active, hits)
        found = self.observe_waiting(STATES_PER_CALL if time.perf_counter() - self.observed_at < self.request.max_wait else 1)
        on = self.ended[active] == 0
        self.y[active[on]], self.t = y[on], solver.t
        if hits.any():
            self.solver = None
        elif self.steps % STEPS_PER_INTERVAL_CHECK == 0:
            long = SOLVER_METHODS[self.method] == "DOP853" and self.steps % STEPS_PER_STIFFNESS_TEST == 0
            self.method = SOLVER_METHODS.index("Radau") if long and self._is_stiff(solver) else self.method
            self.solver = None
        elif solver.status != "running":
            # after a knot the solver chooses its step size anew
            self.stride = self.stride if np.isinf(self.reduce_below_jump) else np.nan
            self.solver = None
        return found

    def _queue_saved_states(
        self, solver: scipy.integrate.OdeSolver | CompiledSolver, low: float, active: np.ndarray, hits: np.ndarray
    ) -> None:
        """Queue the states at saved times within the last step, which began at time `low`, and end the runs that stop in it."""
        times, high = self.request.clock.t[self.saved + len(self.waiting) :], solver.t
        times = times[times <= high]
        dense = solver.dense_output() if hits.any() or (times < high).any() else None
        inside = self._states_within_step(dense, low, high, times[times < high], MAX_HALVINGS)
        stops = self._locate_stops(hits, dense, low, high) if hits.any() else None
        y_at_times = np.concatenate([inside, solver.y[None]])[: times.size].reshape(-1, active.size, self.y.shape[1])
        if stops is None and active.size == len(self.y):
            return self.waiting.extend(y_at_times)
        states = np.repeat(self.y[None], times.size, axis=0)
        if stops is None:
            states[:, active] = y_at_times
        for i in range(times.size if stops is not None else 0):
            self._end_stopped_runs(stops, times[i])
            on = self.ended[active] == 0
            states[i], states[i, active[on]] = self.y, y_at_times[i, on]
        self.waiting.extend(states)
        self._end_stopped_runs(stops, high)

    def _is_accurate(self, path: np.ndarray, middle: float, half: float) -> bool:
        """Return whether the interpolating polynomial of a step satisfies the ODE in the middle of the step.

        The polynomial does, up to the tolerance, unless stability rather than accuracy limits the step.
        """
        y, slope = path @ MIDPOINT_WEIGHTS[0], path @ MIDPOINT_WEIGHTS[1] / half
        defect = half * np.abs(self._slope(middle, y) - slope)
        return bool((defect <= MAX_DEFECT * (self.level.atol + self.level.rtol * np.abs(y))).all())

    def _states_within_step(self, dense, low: float, high: float, times: np.ndarray, halvings: int) -> np.ndarray:
        """Return the states at times within a step, from its interpolating polynomial.

        If the polynomial is inaccurate, the two halves of the step are solved instead, at most `halvings` times in a row.
        """
        if not times.size:
            return np.zeros((0, self.active.size * self.y.shape[1]))
        middle, half = (low + high) / 2, (high - low) / 2
        values = dense(np.concatenate([middle + half * CHEBYSHEV_NODES, times]))
        # the polynomial's values at its nodes, then at the times
        known = getattr(dense, "accurate", None)  # compiled steps come with the answer
        if halvings == 0 or (self._is_accurate(values[:, : CHEBYSHEV_NODES.size], middle, half) if known is None else known):
            return values[:, CHEBYSHEV_NODES.size :].T
        states: list[np.ndarray] = []
        y = dense(low)
        for begin, end in ((low, middle), (middle, high)):
            solver = self._new_solver(begin, y, end, end - begin)
            while solver.status == "running" and len(states) < times.size:
                before = solver.t
                solver.step()
                here = times[len(states) :]
                states.extend(
                    self._states_within_step(solver.dense_output(), before, solver.t, here[here <= solver.t], halvings - 1)
                )
            y = solver.y
        return np.array(states + [y] * (times.size - len(states)))

    def _slope(self, t: float, flat: np.ndarray) -> np.ndarray:
        """Return the drift of all active runs as one vector, in the form that SciPy's solvers take."""
        rows = flat.reshape(-1, self.y.shape[1])
        return np.asarray(self.slopes(min(t, self.reduce_below_jump), rows[_padded_indices(len(rows))]))[: len(rows)].ravel()

    def _system_jacobian(self, t: float, flat: np.ndarray):
        """Return the sparse Jacobian of the drift of all active runs, which is block diagonal since runs do not interact."""
        return scipy.sparse.block_diag(list(self._run_jacobians(t, flat.reshape(-1, self.y.shape[1]))), format="csc")

    def _run_jacobians(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the Jacobian of the drift of each active run: the diagonal blocks of the system's Jacobian."""
        rows, t = _padded_indices(len(y)), min(t, self.reduce_below_jump)
        return np.asarray(_jacobians(self.problem, self.corrector, np.asarray(t, float), self.layout.values(y[rows])))[: len(y)]

    def _new_solver(self, t: float, flat: np.ndarray, end: float, stride: float) -> scipy.integrate.OdeSolver | CompiledSolver:
        """Return a solver from time t to `end` with the first step size `stride`; for NaN the solver chooses it."""
        rtol, atol = self.level.rtol, self.level.atol
        strict = 1 if rtol > SHARED_TOLERANCE else TOLERANCE_DIVISOR
        if SOLVER_METHODS[self.method] == "Radau":
            more: dict = {} if np.isnan(stride) else {"first_step": min(stride, end - t)}
            tolerances = {"rtol": rtol / strict, "atol": atol / strict}
            return scipy.integrate.Radau(self._slope, t, flat, end, jac=self._system_jacobian, **tolerances, **more)
        rows = flat.reshape(-1, self.y.shape[1])
        padded = rows[_padded_indices(len(rows))]
        times = self.request.clock.t[self.saved :]
        dense = self.stops is not None or bool(((times > t) & (times < end)).any())
        within = Interval(end, self.reduce_below_jump, rtol / strict, atol / strict, rtol, atol, len(rows), 1, dense)
        return CompiledSolver(self.make_steps, self.buffer, t, padded, stride, within)

    def _is_stiff(self, solver: scipy.integrate.OdeSolver | CompiledSolver) -> bool:
        """Return whether the system is stiff: stability rather than accuracy limits the step of DOP853."""
        if not self.problem.numerics.implicit:
            return False
        # only decaying modes make an explicit method unstable; growing ones are limited by accuracy
        rates = -np.linalg.eigvals(self._run_jacobians(self.t, self.y[self.active])).real
        return bool((rates * solver.step_size > STIFF_PRODUCT).any())

    def _check_condition(self, y: np.ndarray, runs: np.ndarray, t: Any) -> np.ndarray:
        """Return whether the stop condition of each of the given runs holds in the states `y`, at one time or one per run."""
        if self.stops is None:
            return np.zeros(runs.size, bool)
        rows = _padded_indices(runs.size)
        times = np.broadcast_to(t, runs.shape).astype(float)[rows]
        return np.asarray(self.stops(y[rows], select_run(self.memory, runs[rows]), times))[: runs.size]

    def _locate_stops(self, hits: np.ndarray, dense, low: float, high: float) -> StoppedRuns:
        """Locate the time at which each run stops within a step, by bisection on the interpolating polynomial."""
        runs = self.active[hits]
        path = dense((low + high) / 2 + CHEBYSHEV_NODES * (high - low) / 2).reshape(hits.size, -1, CHEBYSHEV_NODES.size)[hits]
        states = lambda x: np.einsum("rsn,rn->rs", path, _lagrange_polynomials(CHEBYSHEV_NODES, x))
        left, right = np.full(runs.size, -1.0), np.ones(runs.size)
        for _ in range(52):  # bits of a double
            middle = (left + right) / 2
            inside = self._check_condition(states(middle), runs, (low + high) / 2 + middle * (high - low) / 2)
            left, right = np.where(inside, left, middle), np.where(inside, middle, right)
        return StoppedRuns(runs, (low + high) / 2 + right * (high - low) / 2, states(right))

    def _end_stopped_runs(self, stops: StoppedRuns | None, t: float) -> None:
        """Mark the runs that stop by time t as ended, with the times and states at which they stop."""
        if stops is not None:
            gone = stops.t <= t
            runs = stops.runs[gone]
            self.y[runs], self.t_end[runs], self.ended[runs] = stops.y[gone], stops.t[gone], SOLVER_STATUSES.index(RUN_STOPPED)

    def _end_runs(self, which: np.ndarray, status: str, t: float, y: np.ndarray) -> None:
        """Remove the active runs in the mask `which` from the system, with a status, an end time and their last states."""
        leaving = self.active[which]
        self.y[leaving], self.ended[leaving], self.t_end[leaving] = y[which], SOLVER_STATUSES.index(status), t


@lru_cache(maxsize=256)
def _padded_indices(count: int) -> np.ndarray:
    """Return the indices 0 to `count` - 1, with the last one repeated up to a batch size for which code is compiled.

    Thus the code need not be compiled again when runs leave the system.
    """
    size = next(size for size in (1, *compiled_batch_sizes(GROUP_SIZE_MULTIPLE, 2**40)) if size >= count)
    return np.minimum(np.arange(size), count - 1)


def _lagrange_polynomials(nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the values at each x of the Lagrange basis polynomials of the nodes, with shape (x, nodes)."""
    apart = nodes[:, None] - nodes + np.eye(nodes.size)
    others = np.where(np.eye(nodes.size, dtype=bool), 1.0, (x[:, None, None] - nodes) / apart)
    return others.prod(-1)
