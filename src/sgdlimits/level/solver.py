"""Solution of the drift's equation for a batch of runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
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

from sgdlimits.jaxtools import GROUP_ALIGNMENT, Layout, compiled
from sgdlimits.kernel.base import MAX_COORDINATE
from sgdlimits.level.base import DIVERGED, FINISHED, STOPPED, Engine, Request, RunStatus, Snapshot, Stepper, ladder
from sgdlimits.level.condition import Condition
from sgdlimits.level.observe import Observe
from sgdlimits.problem.base import Problem
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.frame import in_cone, triangular
from sgdlimits.statistics.trees import one_of

SHARED_TOLERANCE = 1e-7
STEPS_A_LEG, STEPS_BEFORE_STIFF_TEST = 60, 300
STIFF_PRODUCT = 4.0
NODES = chebpts2(8)
"""Where the solver's polynomials are taken, of degree 7 in a step from -1 to 1."""
MIDDLE = np.linalg.inv(np.vander(NODES, increasing=True))[:2]
"""Value and slope in the middle from the values of a polynomial at its nodes."""
MOST_DEFECT = 8.0
"""How far, in tolerances, the slope of the solver's polynomials may be off over half a step."""
HALVINGS = 6
"""How often a step is halved at most for better polynomials."""
STATES_AT_ONCE = 64
WAIT_SECONDS = 0.1
"""How long a state waits for others that are looked at with it."""
BETWEEN_STEPS = 10
"""How many times a small tolerance is divided for the solver, since its polynomials are worse than its steps."""


def vector_field(problem: Problem, corrector: bool, t: Any = 0.0):
    """The drift of one state at a time, or its population part."""
    return lambda stats: problem.drift(stats, t) if corrector else problem.drift_parts(stats, t)[0]


def _slopes(problem: Problem, corrector: bool, layout: Layout, t: Any, rows: Any) -> Array:
    slopes = problem.numerics.over_runs(vector_field(problem, corrector, t), layout.values(rows))
    return jnp.concatenate([leaf.reshape(len(rows), -1) for leaf in jax.tree.leaves(slopes)], axis=1)


@eqx.filter_jit
def _jacobians(problem: Problem, corrector: bool, t: Float[np.ndarray, ""], stats: PyTree) -> Float[Array, "runs n n"]:
    """The Jacobian of the drift at the statistics of each run, all of their entries in one vector."""
    slope = vector_field(problem, corrector, t)

    def jacobian(one: PyTree):
        flat, rebuild = ravel_pytree(one)
        return jax.jacfwd(lambda y: ravel_pytree(slope(rebuild(y)))[0])(flat)

    return problem.numerics.over_runs(jacobian, stats)


def _memories(problem: Problem, until: Condition, layout: Layout, t: Any, rows: Any):
    return until.begin_runs(problem.at(t), layout.values(rows))


def _stops(problem: Problem, until: Condition, layout: Layout, rows: Any, memory: PyTree, t: Any):
    return until.stop_runs(problem, layout.values(rows), memory, t)


def _look(problem: Problem, observe: Observe, layout: Layout, count: Any, times: Any, rows: Any) -> dict[str, Array]:
    """What is seen in the first `count` of several states of all runs, each at its time, one state after the other."""

    @partial(jax.jit, inline=True)  # traced once, for its shapes and for the loop
    def seen(t, y):
        stats = layout.values(y)

        def shown(one):
            now, own = problem.at(one[1]), one[0]
            return {"risk": now.risk(own), **now.observables(own)}

        return {**problem.numerics.over_runs(shown, (stats, t)), **observe.of_runs(stats)}

    empty = lambda like: jnp.zeros((len(rows), *like.shape), like.dtype)
    put = lambda i, all_seen: jax.tree.map(lambda leaf, one: leaf.at[i].set(one), all_seen, seen(times[i], rows[i]))
    return jax.lax.fori_loop(0, count, put, jax.tree.map(empty, jax.eval_shape(seen, times[0], rows[0])))


METHODS = ("DOP853", "Radau")
STATUSES = (FINISHED, STOPPED, DIVERGED)


class Solver(Stepper):
    """One integration of a batch of runs: rows of `y` are runs, and runs leave as they stop or diverge.

    Saved times lie on the solver's polynomials between its steps, which know nothing of them; where a polynomial is not good
    enough, they lie on those of half a step, and so on. The solver starts anew after some steps and where runs leave. What it
    starts from is the state to resume from: steps made since then are made again.
    """

    def __init__(self, engine: Engine, starts: PyTree, request: Request, state: np.ndarray | None) -> None:
        self.level: Any = engine.level
        self.problem, self.request = engine.problem, request
        self.corrector = getattr(engine.level, "corrector", True)
        count = len(request.runs)
        leaves, tree = jax.tree.flatten(starts)
        self.layout = Layout(tree, tuple(np.shape(leaf)[1:] for leaf in leaves))
        self.y = np.concatenate([np.asarray(leaf, float)[:count].reshape(count, -1) for leaf in leaves], axis=1)
        self.ended, self.t_end = np.zeros(count, int), np.full(count, np.nan)
        self.slopes = compiled(_slopes, self.problem, self.corrector, self.layout)
        self.look = compiled(_look, self.problem, request.observe, self.layout, fast_compile=True)
        self.stops, memory = None, ()
        if request.until is not None:
            self.stops = compiled(_stops, self.problem, request.until, self.layout, fast_compile=True)
            begin = compiled(_memories, self.problem, request.until, self.layout, fast_compile=True)
            memory = begin(np.asarray(request.clock.t[0], float), self.y[_padded(count)])
        self.memory = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], memory)
        self.t, self.saved, self.steps, self.stride, self.method = request.clock.t[0], 0, 0, np.nan, 0
        self.knots, self.just_before = knots_of(self.problem), np.inf
        self.waiting: list[np.ndarray] = []
        self.looked = time.perf_counter()
        if state is None:
            self._drop(self._hits(self.y, self.active, self.t), STOPPED, self.t, self.y)
        else:
            self._restore(state)
        self._keep()

    @property
    def active(self) -> np.ndarray:
        """The runs that go on."""
        return np.flatnonzero(self.ended == 0)

    def __iter__(self):
        clock = self.request.clock.t
        self.waiting = [self.y]
        yield from self._shown()
        while self.t < clock[-1] and self.active.size:
            yield from self._leg()
            yield from self._shown()
            self._keep()
        self.waiting = [self.y] * (clock.size - self.saved)
        yield from self._shown()

    def ends(self):
        far = max(self.t, self.request.clock.t[max(self.saved - 1, 0)])
        return RunStatus(np.array(STATUSES, object)[self.ended], np.where(self.ended == 0, far, self.t_end))

    def now(self):
        self.waiting = [self.y]
        (snapshot,) = self._shown(times=np.array([self.t]))
        self.saved -= 1  # it is none of the times to save
        return snapshot

    def state(self):
        return self.kept

    def _keep(self) -> None:
        """Take note of all that a solver starts from here. Rows of: end, its time, time, method, steps, stride, y, memory."""
        rows = lambda leaf: np.asarray(leaf, float).reshape(len(self.y), -1)
        shared = np.tile([self.t, self.method, self.steps, self.stride], (len(self.y), 1))
        memory = [rows(leaf) for leaf in jax.tree.leaves(self.memory)]
        self.kept = np.concatenate([rows(self.ended), rows(self.t_end), shared, self.y, *memory], axis=1)

    def _restore(self, state: np.ndarray) -> None:
        self.ended, self.t_end = state[:, 0].astype(int), state[:, 1].copy()
        self.t, self.method, self.steps, self.stride = state[0, 2], int(state[0, 3]), int(state[0, 4]), state[0, 5]
        y, rest = np.split(state[:, 6:], [self.layout.size], axis=1)
        memory = Layout.of(one_of(self.memory)).values(rest)
        self.y, self.memory = y.copy(), jax.tree.map(lambda new, old: new.astype(old.dtype), memory, self.memory)

    def _share(self, t: float) -> float:
        begin, end = float(self.request.clock.t[0]), float(self.request.clock.t[-1])
        return max(0.0, (t - begin) / (end - begin))

    def _shown(self, least: int = 1, times: np.ndarray | None = None) -> Iterator[Snapshot]:
        """What the runs show in the states that wait, at the next saved times, as long as there are `least` of them.

        A run that has ended shows what it did then.
        """
        while len(self.waiting) >= least:
            now, self.waiting, self.looked = self.waiting[:STATES_AT_ONCE], self.waiting[STATES_AT_ONCE:], time.perf_counter()
            y = self._in_cone(np.stack(now))
            filled = np.concatenate([y, np.repeat(y[-1:], STATES_AT_ONCE - len(now), axis=0)])[:, _padded(len(self.y))]
            when = (self.request.clock.t[self.saved :] if times is None else times)[: len(now)]
            when = np.concatenate([when, np.repeat(when[-1:], STATES_AT_ONCE - len(now))])
            until = np.where(self.ended == 0, np.inf, self.t_end)
            each = np.minimum(when[:, None], until)[:, _padded(len(self.y))]
            seen = {name: np.asarray(values)[:, : len(self.y)] for name, values in self.look(len(now), each, filled).items()}
            leaves, tree = jax.tree.flatten(self.layout.values(y))
            for i in range(len(now)):
                self.saved += 1
                stats = jax.tree.unflatten(tree, [leaf[i] for leaf in leaves])
                observed = {name: values[i] for name, values in seen.items()}
                yield Snapshot(self._share(self.request.clock.t[self.saved - 1]), stats, observed)

    def _in_cone(self, y: np.ndarray) -> np.ndarray:
        """What is shown are statistics that weights can have, however the solver's errors fall; it goes on from its own."""
        stats = self.layout.values(y)
        near = in_cone(stats, self._frame)
        leaves = [np.reshape(leaf, (*y.shape[:2], -1)) for leaf in jax.tree.leaves(near)]
        return y if near is stats else np.concatenate(leaves, axis=-1)

    @cached_property
    def _frame(self) -> np.ndarray:
        return triangular(np.asarray(self.problem.directions.gram))

    def _leg(self) -> Iterator[Snapshot]:
        """Solve until runs leave, a schedule has a knot, or for some steps, after which the method may change."""
        active, end = self.active, self.request.clock.t[-1]
        knot = next((knot for knot in self.knots if self.t < knot < end), None)
        self.just_before = np.inf if knot is None else np.nextafter(knot, -np.inf)  # a leg that ends there looks no further
        solver = self._solver(self.t, self.y[active].ravel(), end if knot is None else knot, self.stride)
        while solver.status == "running":
            before, y_before = solver.t, solver.y.reshape(active.size, -1)
            with np.errstate(all="ignore"):
                solver.step()
            y = solver.y.reshape(active.size, -1)
            broken = ~(np.abs(y) <= MAX_COORDINATE).all(1)
            if solver.status == "failed":
                broken |= np.abs(y).max(1) >= np.abs(y).max()
            if broken.any():
                self.y[active], self.t = y_before, before
                return self._drop(broken, DIVERGED, before, y_before)
            self.steps, self.stride = self.steps + 1, solver.h_abs
            hits = self._hits(y, active, solver.t)
            self._within(solver, before, active, hits)
            yield from self._shown(STATES_AT_ONCE if time.perf_counter() - self.looked < WAIT_SECONDS else 1)
            on = self.ended[active] == 0
            self.y[active[on]], self.t = y[on], solver.t
            yield Snapshot(self._share(self.t))
            if hits.any():
                return None
            if self.steps % STEPS_A_LEG == 0:
                long = METHODS[self.method] == "DOP853" and self.steps % STEPS_BEFORE_STIFF_TEST == 0
                self.method = METHODS.index("Radau") if long and self._stiff(solver) else self.method
                return None
        self.stride = self.stride if knot is None else np.nan  # chosen anew for what lies behind a knot
        return None

    def _within(self, solver: scipy.integrate.OdeSolver, low: float, active: np.ndarray, hits: np.ndarray) -> None:
        """The states at saved times within a step that begins at `low`. Runs end where they hit, in the order of time."""
        times, high = self.request.clock.t[self.saved + len(self.waiting) :], solver.t
        times = times[times <= high]
        dense = solver.dense_output() if hits.any() or (times < high).any() else None
        inside = self._path(dense, low, high, times[times < high], HALVINGS)
        stops = self._stop(hits, dense, low, high) if hits.any() else None
        there = np.concatenate([inside, solver.y[None]])[: times.size].reshape(-1, active.size, self.y.shape[1])
        if stops is None and active.size == len(self.y):
            return self.waiting.extend(there)
        states = np.repeat(self.y[None], times.size, axis=0)
        if stops is None:
            states[:, active] = there
        for i in range(times.size if stops is not None else 0):
            self._leave(stops, times[i])
            on = self.ended[active] == 0
            states[i], states[i, active[on]] = self.y, there[i, on]
        self.waiting.extend(states)
        self._leave(stops, high)

    def _smooth(self, path: np.ndarray, middle: float, half: float) -> bool:
        """Whether the polynomial of a step solves the equation in the middle: not where stability alone holds the step."""
        y, slope = path @ MIDDLE[0], path @ MIDDLE[1] / half
        defect = half * np.abs(self._slope(middle, y) - slope)
        return bool((defect <= MOST_DEFECT * (self.level.atol + self.level.rtol * np.abs(y))).all())

    def _path(self, dense, low: float, high: float, times: np.ndarray, halvings: int) -> np.ndarray:
        """The states at times within a step: on its polynomial, or on those of its halves where that is not good enough."""
        if not times.size:
            return np.zeros((0, self.active.size * self.y.shape[1]))
        middle, half = (low + high) / 2, (high - low) / 2
        there = dense(np.concatenate([middle + half * NODES, times]))
        if halvings == 0 or self._smooth(there[:, : NODES.size], middle, half):
            return there[:, NODES.size :].T
        states: list[np.ndarray] = []
        y = dense(low)
        for begin, end in ((low, middle), (middle, high)):
            solver = self._solver(begin, y, end, end - begin)
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
        """The Jacobian of the drift of each active run."""
        rows, t = _padded(len(y)), min(t, self.just_before)
        return np.asarray(_jacobians(self.problem, self.corrector, np.asarray(t, float), self.layout.values(y[rows])))[: len(y)]

    def _solver(self, t: float, flat: np.ndarray, end: float, stride: float) -> scipy.integrate.OdeSolver:
        method, (rtol, atol) = METHODS[self.method], (self.level.rtol, self.level.atol)
        more: dict = {"jac": self._jacobian} if method == "Radau" else {}
        if not np.isnan(stride):
            more["first_step"] = min(stride, end - t)
        strict = 1 if rtol > SHARED_TOLERANCE else BETWEEN_STEPS
        solver = getattr(scipy.integrate, method)
        return solver(self._slope, t, flat, end, rtol=rtol / strict, atol=atol / strict, **more)

    def _stiff(self, solver: scipy.integrate.OdeSolver) -> bool:
        """Whether stability, not accuracy, limits the step: the fastest decay rate times the step is near DOP853's bound."""
        if not self.problem.numerics.implicit:
            return False
        rates = -np.linalg.eigvals(self._blocks(self.t, self.y[self.active])).real
        return bool((rates * solver.step_size > STIFF_PRODUCT).any())

    def _hits(self, y: np.ndarray, runs: np.ndarray, t: Any) -> np.ndarray:
        """Whether `until` holds for these runs in the states `y` at time t, one for all or one for each."""
        if self.stops is None:
            return np.zeros(runs.size, bool)
        rows = _padded(runs.size)
        times = np.broadcast_to(t, runs.shape).astype(float)[rows]
        return np.asarray(self.stops(y[rows], one_of(self.memory, runs[rows]), times))[: runs.size]

    def _stop(self, hits: np.ndarray, dense, low: float, high: float) -> Stops:
        """Where within a step each hit happens, by bisection of the dense output, a polynomial of degree 7."""
        runs = self.active[hits]
        path = dense((low + high) / 2 + NODES * (high - low) / 2).reshape(hits.size, -1, NODES.size)[hits]
        states = lambda x: np.einsum("rsn,rn->rs", path, _lagrange(NODES, x))
        left, right = np.full(runs.size, -1.0), np.ones(runs.size)
        for _ in range(52):
            middle = (left + right) / 2
            inside = self._hits(states(middle), runs, (low + high) / 2 + middle * (high - low) / 2)
            left, right = np.where(inside, left, middle), np.where(inside, middle, right)
        return Stops(runs, (low + high) / 2 + right * (high - low) / 2, states(right))

    def _leave(self, stops: Stops | None, t: float) -> None:
        """End the runs that have stopped by the time t."""
        if stops is not None:
            gone = stops.t <= t
            runs = stops.runs[gone]
            self.y[runs], self.t_end[runs], self.ended[runs] = stops.y[gone], stops.t[gone], STATUSES.index(STOPPED)

    def _drop(self, which: np.ndarray, status: str, t: float, y: np.ndarray) -> None:
        """Take runs out of the system, with their state `y` at `t` as their last."""
        leaving = self.active[which]
        self.y[leaving], self.ended[leaving], self.t_end[leaving] = y[which], STATUSES.index(status), t


class Stops(NamedTuple):
    """Runs that stop within a step, when, and in which states."""

    runs: np.ndarray
    t: np.ndarray
    y: np.ndarray


@lru_cache(maxsize=256)
def _padded(count: int) -> np.ndarray:
    """Indices of `count` rows, the last repeated up to one of a few sizes: each size is compiled once as runs leave."""
    size = next(size for size in (1, *ladder(GROUP_ALIGNMENT, 2**40)) if size >= count)
    return np.minimum(np.arange(size), count - 1)


def _lagrange(nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The Lagrange polynomials of the nodes at each x, shape (x, nodes)."""
    apart = nodes[:, None] - nodes + np.eye(nodes.size)
    others = np.where(np.eye(nodes.size, dtype=bool), 1.0, (x[:, None, None] - nodes) / apart)
    return others.prod(-1)
