"""The stepper of levels without noise: solves the drift's differential equation for a batch of runs."""

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

from sgdlimits.jaxtools import GROUP_ALIGNMENT, Layout, jit_bound
from sgdlimits.kernel.base import MAX_COORDINATE
from sgdlimits.level.base import DIVERGED, FINISHED, STOPPED, Engine, Request, RunStatus, Snapshot, Stepper, compiled_batch_sizes
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observe
from sgdlimits.problem.base import Problem
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.frame import project_to_cone, cholesky_factor
from sgdlimits.statistics.trees import take_run

METHODS = ("DOP853", "Radau")
STATUSES = (FINISHED, STOPPED, DIVERGED)
SHARED_TOLERANCE = 1e-7
"""Largest relative tolerance at which runs are solved as one system: beyond it a run's error would depend on the other runs."""
STEPS_PER_LEG = 60
"""Steps between restarts of the solver. A restart is the state from which runs resume; restarting loses no accuracy."""
STEPS_PER_STIFFNESS_TEST = 300
"""Steps of DOP853 between tests for stiffness, each of which costs a Jacobian and its eigenvalues."""
STIFF_PRODUCT = 4.0
"""Step size times the fastest decay rate from which stability limits DOP853, whose bound on the real axis is about 6."""
NODES = chebpts2(8)
"""Nodes, in a step from -1 to 1, at which the solver's polynomials, of degree 7, are evaluated."""
MIDPOINT = np.linalg.inv(np.vander(NODES, increasing=True))[:2]
"""Value and slope of a polynomial in the middle of a step, from its values at the nodes."""
MAX_DEFECT = 8.0
"""Largest error of the slope of the solver's polynomials, over half a step and in tolerances, at which they are used."""
MAX_HALVINGS = 6
"""Number of times a step may be halved for better polynomials."""
STATES_PER_CALL = 64
"""States that are observed in one compiled call."""
WAIT_SECONDS = 0.1
"""Time for which a state may wait to be observed together with later ones."""
STRICTER = 10
"""Factor by which a small tolerance is divided for the solver, since its polynomials are less accurate than its steps."""


def vector_field(problem: Problem, corrector: bool, t: Any = 0.0):
    """Return the drift as a function of the statistics of one run, or its population part."""
    return lambda stats: problem.drift(stats, t) if corrector else problem.drift_parts(stats, t)[0]


def _slopes(problem: Problem, corrector: bool, layout: Layout, t: Any, rows: Any) -> Array:
    """Evaluate the drift of each run, in rows."""
    slopes = problem.numerics.over_runs(vector_field(problem, corrector, t), layout.values(rows))
    return jnp.concatenate([leaf.reshape(len(rows), -1) for leaf in jax.tree.leaves(slopes)], axis=1)


@eqx.filter_jit
def _jacobians(problem: Problem, corrector: bool, t: Float[np.ndarray, ""], stats: PyTree) -> Float[Array, "runs n n"]:
    """Evaluate the Jacobian of the drift at the statistics of each run, with all entries of the statistics in one vector."""
    slope = vector_field(problem, corrector, t)

    def jacobian(one: PyTree):
        flat, rebuild = ravel_pytree(one)
        return jax.jacfwd(lambda y: ravel_pytree(slope(rebuild(y)))[0])(flat)

    return problem.numerics.over_runs(jacobian, stats)


def _memories(problem: Problem, until: Condition, layout: Layout, t: Any, rows: Any):
    return until.begin_runs(problem.at(t), layout.values(rows))


def _stops(problem: Problem, until: Condition, layout: Layout, rows: Any, memory: PyTree, t: Any):
    return until.stop_runs(problem, layout.values(rows), memory, t)


def _observe(problem: Problem, observe: Observe, layout: Layout, count: Any, times: Any, rows: Any) -> dict[str, Array]:
    """Evaluate risk and observables in the first `count` of several states of all runs, each at its time."""

    @partial(jax.jit, inline=True)  # traced once, for its shapes and for the loop
    def look(t, y):
        stats = layout.values(y)

        def one(pair):
            now, own = problem.at(pair[1]), pair[0]
            return {"risk": now.risk(own), **now.observables(own)}

        return {**problem.numerics.over_runs(one, (stats, t)), **observe.of_runs(stats)}

    empty = lambda like: jnp.zeros((len(rows), *like.shape), like.dtype)
    put = lambda i, seen: jax.tree.map(lambda leaf, one: leaf.at[i].set(one), seen, look(times[i], rows[i]))
    return jax.lax.fori_loop(0, count, put, jax.tree.map(empty, jax.eval_shape(look, times[0], rows[0])))


class Stops(NamedTuple):
    """Runs that stop within a step, the times at which they stop, and their states then."""

    runs: np.ndarray
    t: np.ndarray
    y: np.ndarray


class Solver(Stepper):
    """A batch of runs solved as one system: rows of `y` are runs, and runs leave the system as they stop or diverge.

    The solver's steps do not depend on the saved times, which lie on its polynomials; where a polynomial is not accurate
    enough, on those of half a step, and so on. The solver is restarted after `STEPS_PER_LEG` steps and where runs leave: such
    a leg is solved again when runs resume within it.
    """

    def __init__(self, engine: Engine, starts: PyTree, request: Request, state: np.ndarray | None) -> None:
        self.level: Any = engine.level
        self.problem, self.request = engine.problem, request
        self.corrector = getattr(engine.level, "corrector", True)
        count = len(request.runs)
        leaves, tree = jax.tree.flatten(starts)
        self.layout = Layout(tree, tuple(np.shape(leaf)[1:] for leaf in leaves))
        self.y = np.concatenate([np.asarray(leaf, float)[:count].reshape(count, -1) for leaf in leaves], axis=1)
        self.y0 = self.y.copy()
        self.ended, self.t_end = np.zeros(count, int), np.full(count, np.nan)
        self.slopes = jit_bound(_slopes, self.problem, self.corrector, self.layout)
        self.observe = jit_bound(_observe, self.problem, request.observe, self.layout, fast_compile=True)
        self.stops, memory = None, ()
        if request.until is not None:
            self.stops = jit_bound(_stops, self.problem, request.until, self.layout, fast_compile=True)
            begin = jit_bound(_memories, self.problem, request.until, self.layout, fast_compile=True)
            memory = begin(np.asarray(request.clock.t[0], float), self.y[_padded(count)])
        self.memory = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], memory)
        self.t, self.steps, self.stride, self.method = request.clock.t[0], 0, np.nan, 0
        self.knots, self.just_before = knots_of(self.problem), np.inf
        self.saved = 1
        """Number of saved times whose snapshots have been returned; the first is `initial`."""
        self.waiting: list[np.ndarray] = []
        """States at the saved times after these, still to be observed."""
        self.observed_at = time.perf_counter()
        self.solver: scipy.integrate.OdeSolver | None = None
        """SciPy's solver within a leg; None between legs."""
        if state is None:
            self._end(self._hits(self.y, self.active, self.t), STOPPED, self.t, self.y)
        else:
            self._restore(state)
        self.leg_start = self._row_per_run()

    @property
    def active(self) -> np.ndarray:
        """Indices of the runs that have not ended."""
        return np.flatnonzero(self.ended == 0)

    @property
    def initial(self):
        return self._snapshots([self.y0], self.request.clock.t[:1])[0]

    @property
    def finished(self):
        return self.saved == self.request.clock.t.size

    @property
    def share(self):
        begin, end = float(self.request.clock.t[0]), float(self.request.clock.t[-1])
        return max(0.0, (self.t - begin) / (end - begin))

    def advance(self):
        clock = self.request.clock.t
        if self.solver is None:
            self.leg_start = self._row_per_run()
            if self.t < clock[-1] and self.active.size:
                self._begin_leg()
        if self.solver is None:  # all is solved: what is still to be saved are the last states
            self.waiting = [self.y] * (clock.size - self.saved)
            return self._observe_waiting()
        found = self._step(self.solver)
        return found if self.solver is not None else found + self._observe_waiting()

    def run_status(self):
        return RunStatus(np.array(STATUSES, object)[self.ended], np.where(self.ended == 0, self.t, self.t_end))

    def now(self):
        return self._snapshots([self.y], np.array([self.t]))[0]

    def state(self):
        return self.leg_start

    def _row_per_run(self) -> np.ndarray:
        """Return everything from which a leg begins. Columns: end, its time, t, method, steps, stride, y, memory."""
        rows = lambda leaf: np.asarray(leaf, float).reshape(len(self.y), -1)
        shared = np.tile([self.t, self.method, self.steps, self.stride], (len(self.y), 1))
        memory = [rows(leaf) for leaf in jax.tree.leaves(self.memory)]
        return np.concatenate([rows(self.ended), rows(self.t_end), shared, self.y, *memory], axis=1)

    def _restore(self, state: np.ndarray) -> None:
        self.ended, self.t_end = state[:, 0].astype(int), state[:, 1].copy()
        self.t, self.method, self.steps, self.stride = state[0, 2], int(state[0, 3]), int(state[0, 4]), state[0, 5]
        y, rest = np.split(state[:, 6:], [self.layout.size], axis=1)
        memory = Layout.of(take_run(self.memory)).values(rest)
        self.y, self.memory = y.copy(), jax.tree.map(lambda new, old: new.astype(old.dtype), memory, self.memory)

    def _observe_waiting(self, least: int = 1) -> list[Snapshot]:
        """Observe the states that wait, as long as there are at least `least`, at the next saved times."""
        found: list[Snapshot] = []
        while len(self.waiting) >= least:
            now, self.observed_at = self.waiting[:STATES_PER_CALL], time.perf_counter()
            found += self._snapshots(now, self.request.clock.t[self.saved :])
            self.waiting, self.saved = self.waiting[STATES_PER_CALL:], self.saved + len(now)
        return found

    def _snapshots(self, states: list[np.ndarray], times: np.ndarray) -> list[Snapshot]:
        """Observe the runs in at most `STATES_PER_CALL` states at these times. A run that has ended is observed at its end."""
        y = self._in_cone(np.stack(states))
        # filled up to one size, so that the observables are compiled once
        filling = STATES_PER_CALL - len(states)
        filled = np.concatenate([y, np.repeat(y[-1:], filling, axis=0)])[:, _padded(len(self.y))]
        when = times[: len(states)]
        when = np.concatenate([when, np.repeat(when[-1:], filling)])
        until = np.where(self.ended == 0, np.inf, self.t_end)
        each = np.minimum(when[:, None], until)[:, _padded(len(self.y))]
        seen = self.observe(len(states), each, filled)
        observed = {name: np.asarray(values)[:, : len(self.y)] for name, values in seen.items()}
        leaves, tree = jax.tree.flatten(self.layout.values(y))
        return [
            Snapshot(
                jax.tree.unflatten(tree, [leaf[i] for leaf in leaves]), {name: values[i] for name, values in observed.items()}
            )
            for i in range(len(states))
        ]

    def _in_cone(self, y: np.ndarray) -> np.ndarray:
        """Project states onto statistics that weights can have, which the solver's errors may leave, for snapshots only."""
        stats = self.layout.values(y)
        near = project_to_cone(stats, self._frame)
        leaves = [np.reshape(leaf, (*y.shape[:2], -1)) for leaf in jax.tree.leaves(near)]
        return y if near is stats else np.concatenate(leaves, axis=-1)

    @cached_property
    def _frame(self) -> np.ndarray:
        return cholesky_factor(np.asarray(self.problem.directions.gram))

    def _begin_leg(self) -> None:
        """Restart the solver, for the active runs, up to the next knot of a schedule or the last saved time."""
        end = self.request.clock.t[-1]
        knot = next((knot for knot in self.knots if self.t < knot < end), None)
        # a leg that ends at a knot evaluates the schedule before it only
        self.just_before = np.inf if knot is None else np.nextafter(knot, -np.inf)
        self.solver = self._new_solver(self.t, self.y[self.active].ravel(), end if knot is None else knot, self.stride)

    def _step(self, solver: scipy.integrate.OdeSolver) -> list[Snapshot]:
        """Make one step of the solver, and end the leg where runs leave, at a knot and after `STEPS_PER_LEG` steps."""
        active = self.active
        before, y_before = solver.t, solver.y.reshape(active.size, -1)
        with np.errstate(all="ignore"):
            solver.step()
        y = solver.y.reshape(active.size, -1)
        broken = ~(np.abs(y) <= MAX_COORDINATE).all(1)
        if solver.status == "failed":  # the largest run is taken for the cause
            broken |= np.abs(y).max(1) >= np.abs(y).max()
        if broken.any():
            self.y[active], self.t = y_before, before
            self._end(broken, DIVERGED, before, y_before)
            self.solver = None
            return []
        self.steps, self.stride = self.steps + 1, solver.h_abs
        hits = self._hits(y, active, solver.t)
        self._queue(solver, before, active, hits)
        found = self._observe_waiting(STATES_PER_CALL if time.perf_counter() - self.observed_at < WAIT_SECONDS else 1)
        on = self.ended[active] == 0
        self.y[active[on]], self.t = y[on], solver.t
        if hits.any():
            self.solver = None
        elif self.steps % STEPS_PER_LEG == 0:
            long = METHODS[self.method] == "DOP853" and self.steps % STEPS_PER_STIFFNESS_TEST == 0
            self.method = METHODS.index("Radau") if long and self._stiff(solver) else self.method
            self.solver = None
        elif solver.status != "running":
            # the first step behind a knot is chosen anew
            self.stride = self.stride if np.isinf(self.just_before) else np.nan
            self.solver = None
        return found

    def _queue(self, solver: scipy.integrate.OdeSolver, low: float, active: np.ndarray, hits: np.ndarray) -> None:
        """Queue the states at saved times within the step from `low`. Runs that stop end there, in the order of time."""
        times, high = self.request.clock.t[self.saved + len(self.waiting) :], solver.t
        times = times[times <= high]
        dense = solver.dense_output() if hits.any() or (times < high).any() else None
        inside = self._path(dense, low, high, times[times < high], MAX_HALVINGS)
        stops = self._locate(hits, dense, low, high) if hits.any() else None
        there = np.concatenate([inside, solver.y[None]])[: times.size].reshape(-1, active.size, self.y.shape[1])
        if stops is None and active.size == len(self.y):
            return self.waiting.extend(there)
        states = np.repeat(self.y[None], times.size, axis=0)
        if stops is None:
            states[:, active] = there
        for i in range(times.size if stops is not None else 0):
            self._stop(stops, times[i])
            on = self.ended[active] == 0
            states[i], states[i, active[on]] = self.y, there[i, on]
        self.waiting.extend(states)
        self._stop(stops, high)

    def _accurate(self, path: np.ndarray, middle: float, half: float) -> bool:
        """Whether the polynomial of a step solves the equation in the middle, as it does unless stability limits the step."""
        y, slope = path @ MIDPOINT[0], path @ MIDPOINT[1] / half
        defect = half * np.abs(self._slope(middle, y) - slope)
        return bool((defect <= MAX_DEFECT * (self.level.atol + self.level.rtol * np.abs(y))).all())

    def _path(self, dense, low: float, high: float, times: np.ndarray, halvings: int) -> np.ndarray:
        """Evaluate the states at times within a step on its polynomial, or on those of its halves where that is inaccurate."""
        if not times.size:
            return np.zeros((0, self.active.size * self.y.shape[1]))
        middle, half = (low + high) / 2, (high - low) / 2
        there = dense(np.concatenate([middle + half * NODES, times]))
        if halvings == 0 or self._accurate(there[:, : NODES.size], middle, half):
            return there[:, NODES.size :].T
        states: list[np.ndarray] = []
        y = dense(low)
        for begin, end in ((low, middle), (middle, high)):
            solver = self._new_solver(begin, y, end, end - begin)
            while solver.status == "running" and len(states) < times.size:
                before = solver.t
                solver.step()
                here = times[len(states) :]
                states.extend(self._path(solver.dense_output(), before, solver.t, here[here <= solver.t], halvings - 1))
            y = solver.y
        return np.array(states + [y] * (times.size - len(states)))

    def _slope(self, t: float, flat: np.ndarray) -> np.ndarray:
        rows = flat.reshape(-1, self.y.shape[1])
        return np.asarray(self.slopes(min(t, self.just_before), rows[_padded(len(rows))]))[: len(rows)].ravel()

    def _jacobian(self, t: float, flat: np.ndarray):
        return scipy.sparse.block_diag(list(self._blocks(t, flat.reshape(-1, self.y.shape[1]))), format="csc")

    def _blocks(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the Jacobian of the drift of each active run."""
        rows, t = _padded(len(y)), min(t, self.just_before)
        return np.asarray(_jacobians(self.problem, self.corrector, np.asarray(t, float), self.layout.values(y[rows])))[: len(y)]

    def _new_solver(self, t: float, flat: np.ndarray, end: float, stride: float) -> scipy.integrate.OdeSolver:
        method, (rtol, atol) = METHODS[self.method], (self.level.rtol, self.level.atol)
        more: dict = {"jac": self._jacobian} if method == "Radau" else {}
        if not np.isnan(stride):
            more["first_step"] = min(stride, end - t)
        strict = 1 if rtol > SHARED_TOLERANCE else STRICTER
        solver = getattr(scipy.integrate, method)
        return solver(self._slope, t, flat, end, rtol=rtol / strict, atol=atol / strict, **more)

    def _stiff(self, solver: scipy.integrate.OdeSolver) -> bool:
        """Whether stability, not accuracy, limits the step: the fastest decay rate times the step is near DOP853's bound."""
        if not self.problem.numerics.implicit:
            return False
        rates = -np.linalg.eigvals(self._blocks(self.t, self.y[self.active])).real
        return bool((rates * solver.step_size > STIFF_PRODUCT).any())

    def _hits(self, y: np.ndarray, runs: np.ndarray, t: Any) -> np.ndarray:
        """Evaluate the stop condition of these runs in the states `y` at time t, one for all or one for each."""
        if self.stops is None:
            return np.zeros(runs.size, bool)
        rows = _padded(runs.size)
        times = np.broadcast_to(t, runs.shape).astype(float)[rows]
        return np.asarray(self.stops(y[rows], take_run(self.memory, runs[rows]), times))[: runs.size]

    def _locate(self, hits: np.ndarray, dense, low: float, high: float) -> Stops:
        """Locate each stop within a step, by bisection on the solver's polynomial of degree 7."""
        runs = self.active[hits]
        path = dense((low + high) / 2 + NODES * (high - low) / 2).reshape(hits.size, -1, NODES.size)[hits]
        states = lambda x: np.einsum("rsn,rn->rs", path, _lagrange(NODES, x))
        left, right = np.full(runs.size, -1.0), np.ones(runs.size)
        for _ in range(52):  # bits of a double
            middle = (left + right) / 2
            inside = self._hits(states(middle), runs, (low + high) / 2 + middle * (high - low) / 2)
            left, right = np.where(inside, left, middle), np.where(inside, middle, right)
        return Stops(runs, (low + high) / 2 + right * (high - low) / 2, states(right))

    def _stop(self, stops: Stops | None, t: float) -> None:
        """End the runs that have stopped by the time t."""
        if stops is not None:
            gone = stops.t <= t
            runs = stops.runs[gone]
            self.y[runs], self.t_end[runs], self.ended[runs] = stops.y[gone], stops.t[gone], STATUSES.index(STOPPED)

    def _end(self, which: np.ndarray, status: str, t: float, y: np.ndarray) -> None:
        """Take active runs out of the system, with their states `y` at `t` as their last."""
        leaving = self.active[which]
        self.y[leaving], self.ended[leaving], self.t_end[leaving] = y[which], STATUSES.index(status), t


@lru_cache(maxsize=256)
def _padded(count: int) -> np.ndarray:
    """Return indices of `count` rows, the last repeated up to a size that is compiled once as runs leave."""
    size = next(size for size in (1, *ladder(GROUP_ALIGNMENT, 2**40)) if size >= count)
    return np.minimum(np.arange(size), count - 1)


def _lagrange(nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Evaluate the Lagrange polynomials of the nodes at each x, shape (x, nodes)."""
    apart = nodes[:, None] - nodes + np.eye(nodes.size)
    others = np.where(np.eye(nodes.size, dtype=bool), 1.0, (x[:, None, None] - nodes) / apart)
    return others.prod(-1)
