"""The deterministic limit: the drift as an ordinary differential equation, and its flow."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.polynomial.chebyshev import chebpts2
from scipy.integrate import DOP853, OdeSolver, Radau
from scipy.sparse import block_diag

from sgdlimits.errors import check_number
from sgdlimits.level.base import DIVERGED, FINISHED, LIMIT, STOPPED, Job, Level, Track
from sgdlimits.level.condition import Condition
from sgdlimits.problem.base import Problem

SHARED_TOLERANCE = 1e-7
STEPS_BEFORE_STIFF_TEST = 300
STIFF_PRODUCT = 4.0
DENSE_NODES = 8


class ODE(Level):
    r"""The limit :math:`d\to\infty`: :math:`\dot X = b(X)`.

    Parameters
    ----------
    corrector : whether the drift contains the effect of the step size; without it this is gradient flow on the population risk
    rtol, atol : tolerances of the solver; None takes what the problem's expectations are worth, 1e-9 in closed form and 1e-4
        by Sobol points, and a hundredth of that as the absolute one

    Notes
    -----
    The runs are one system where tolerances are at most 1e-7, and one system each otherwise. It is solved by DOP853, and by
    Radau with the exact Jacobian from where it proves stiff. `flow` is the same map, differentiable.
    """

    name: ClassVar[str] = "ode"
    corrector: bool = eqx.field(static=True, default=True)
    rtol: float | None = eqx.field(static=True, default=None)
    atol: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        for name in ("rtol", "atol"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)

    def prepared(self, problem, start):
        asked = self.rtol if self.rtol and self.rtol < problem.tolerance else None
        problem.refined(start, asked)
        rtol = self.rtol or problem.tolerance
        return ODE(self.corrector, rtol, self.atol or rtol / 100)

    def snap(self, problem, times):
        return times, np.full(times.size, np.nan)

    def batch(self, problem):
        """Runs that are one system share its steps, which shows where the tolerance is large: then each run is its own."""
        return 4096 if (self.rtol or problem.tolerance) <= SHARED_TOLERANCE else 1

    def run(self, problem, starts, job):
        return _Solve(self, problem, starts, job).run()


def vector_field(problem: Problem, corrector: bool):
    """The drift of one state, or its population part."""
    return problem.drift if corrector else lambda stats: problem.drift_parts(stats)[0]


@eqx.filter_jit
def _slopes(problem: Problem, corrector: bool, stats: PyTree) -> PyTree:
    return problem.over_runs(vector_field(problem, corrector), stats)


@eqx.filter_jit
def drift_jacobian(problem: Problem, corrector: bool, stats: PyTree):
    """The Jacobian of the drift at the statistics of one run, all of their entries in one vector."""
    flat, rebuild = jax.flatten_util.ravel_pytree(stats)
    slope = vector_field(problem, corrector)
    return jax.jacfwd(lambda y: jax.flatten_util.ravel_pytree(slope(rebuild(y)))[0])(flat)


@eqx.filter_jit
def _jacobians(problem: Problem, corrector: bool, stats: PyTree):
    return problem.over_runs(lambda one: drift_jacobian(problem, corrector, one), stats)


@eqx.filter_jit
def _memories(problem: Problem, until: Condition, stats: PyTree):
    return until.begin_runs(problem, stats)


@eqx.filter_jit
def _stops(problem: Problem, until: Condition, stats: PyTree, memory: PyTree):
    return until.stop_runs(problem, stats, memory)


@eqx.filter_jit
def _risks(problem: Problem, stats: PyTree):
    return problem.over_runs(problem.risk, stats)


class _Solve:
    """One integration of a batch of runs: rows of `y` are runs, and runs leave as they stop or diverge."""

    def __init__(self, level: ODE, problem: Problem, starts: PyTree, job: Job) -> None:
        self.level, self.problem, self.job = level, problem, job
        leaves, self.tree = jax.tree.flatten(starts)
        self.shapes = [np.shape(leaf)[1:] for leaf in leaves]
        self.y = np.concatenate([np.asarray(leaf, float).reshape(len(job.runs), -1) for leaf in leaves], axis=1)
        self.active = np.arange(len(job.runs))
        self.status = np.full(len(job.runs), FINISHED, object)
        self.t_end = np.full(len(job.runs), job.times[-1])
        memory = () if job.until is None else _memories(problem, job.until, starts)
        self.memory = jax.tree.map(np.asarray, memory)
        self.t, self.steps = job.times[0], 0
        self.stride: float | None = None
        self.method: type[OdeSolver] = DOP853

    def run(self) -> Track:
        times, saved = self.job.times, [self.y.copy()]
        self._drop(self._hits(self.y, self.active), STOPPED, times[0], self.y)
        try:
            for goal in times[1:]:
                while self.t < goal and self.active.size:
                    self._advance(goal)
                saved.append(self.y.copy())
        except KeyboardInterrupt:
            self.t_end[self.active] = self.t
        risk = np.stack([np.asarray(_risks(self.problem, self._stats(y))) for y in saved], axis=1)
        stats = jax.tree.map(np.asarray, self._stats(np.stack(saved, axis=1)))
        return Track(stats, risk, self.status, self.t_end, len(saved))

    def _advance(self, goal: float) -> None:
        """Solve up to the goal, or to where runs leave the system or the method changes."""
        solver = self._solver(goal)
        while solver.status == "running":
            before, y_before = solver.t, solver.y.reshape(self.active.size, -1)
            with np.errstate(all="ignore"):
                solver.step()
            self.steps += 1
            y = solver.y.reshape(self.active.size, -1)
            broken = ~(np.abs(y) <= LIMIT).all(1)
            if solver.status == "failed":
                broken |= np.abs(y).max(1) >= np.abs(y).max()
            if broken.any():
                self.y[self.active], self.t = y_before, before
                self._drop(broken, DIVERGED, before, y_before)
                return
            self.job.report((solver.t - before) / (self.job.times[-1] - self.job.times[0]))
            self.y[self.active], self.t = y, solver.t
            if solver.status == "running":
                self.stride = solver.h_abs
            hits = self._hits(y, self.active)
            if hits.any():
                self._stop(hits, solver.dense_output(), before, solver.t)
                return
            if self.method is DOP853 and self.steps % STEPS_BEFORE_STIFF_TEST == 0 and self._stiff(solver):
                self.method = Radau
                return

    def _stats(self, y: np.ndarray) -> PyTree:
        """Rows of numbers as statistics, leading axes kept."""
        splits = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        parts = np.split(y, splits, axis=-1)
        leaves = [part.reshape(*y.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, [jnp.asarray(leaf) for leaf in leaves])

    def _slope(self, t: float, flat: np.ndarray) -> np.ndarray:
        rows = self._padded(self.active.size)
        slope = _slopes(self.problem, self.level.corrector, self._stats(flat.reshape(self.active.size, -1)[rows]))
        parts = [np.asarray(leaf).reshape(rows.size, -1) for leaf in jax.tree.leaves(slope)]
        return np.concatenate(parts, axis=1)[: self.active.size].ravel()

    def _jacobian(self, t: float, flat: np.ndarray):
        return block_diag(list(self._blocks(flat.reshape(self.active.size, -1))), format="csc")

    def _blocks(self, y: np.ndarray) -> np.ndarray:
        """The Jacobian of the drift of each active run."""
        rows = self._padded(self.active.size)
        return np.asarray(_jacobians(self.problem, self.level.corrector, self._stats(y[rows])))[: self.active.size]

    def _solver(self, goal: float) -> OdeSolver:
        """A solver that lands on the next saved time, where interpolation would be worse than the tolerance."""
        more: dict = {"jac": self._jacobian} if self.method is Radau else {}
        if self.stride is not None:
            more["first_step"] = min(self.stride, goal - self.t)
        flat = self.y[self.active].ravel()
        return self.method(self._slope, self.t, flat, goal, rtol=self.level.rtol, atol=self.level.atol, **more)

    def _stiff(self, solver: OdeSolver) -> bool:
        """Whether stability, not accuracy, limits the step: the fastest decay rate times the step is near DOP853's bound."""
        if not self.problem.implicit:
            return False
        return bool((-np.linalg.eigvals(self._blocks(self.y[self.active])).real * solver.step_size > STIFF_PRODUCT).any())

    def _hits(self, y: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Whether `until` holds for these runs in the states `y`."""
        if self.job.until is None:
            return np.zeros(runs.size, bool)
        rows = self._padded(runs.size)
        memory = jax.tree.map(lambda leaf: leaf[runs[rows]], self.memory)
        return np.asarray(_stops(self.problem, self.job.until, self._stats(y[rows]), memory))[: runs.size]

    def _stop(self, hits: np.ndarray, dense, low: float, high: float) -> None:
        """Stop runs where within a step each hit happens, by bisection of the dense output, a polynomial of degree 7."""
        runs = self.active[hits]
        nodes = chebpts2(DENSE_NODES)
        path = dense((low + high) / 2 + nodes * (high - low) / 2).reshape(hits.size, -1, DENSE_NODES)[hits]
        states = lambda x: np.einsum("rsn,rn->rs", path, _lagrange(nodes, x))
        left, right = np.full(runs.size, -1.0), np.ones(runs.size)
        for _ in range(52):
            middle = (left + right) / 2
            inside = self._hits(states(middle), runs)
            left, right = np.where(inside, left, middle), np.where(inside, middle, right)
        self.y[runs], self.t_end[runs], self.status[runs] = states(right), (low + high) / 2 + right * (high - low) / 2, STOPPED
        self.active = self.active[~hits]

    def _padded(self, count: int) -> np.ndarray:
        """Indices of `count` rows, the last repeated up to one of a few sizes: each size is compiled once as runs leave."""
        size = len(self.job.runs)
        while size // 4 >= count:
            size //= 4
        return np.minimum(np.arange(size), count - 1)

    def _drop(self, which: np.ndarray, status: str, t: float, y: np.ndarray) -> None:
        """Take runs out of the system, with their state `y` at `t` as their last."""
        leaving = self.active[which]
        self.y[leaving], self.status[leaving], self.t_end[leaving] = y[which], status, t
        self.active = self.active[~which]


def _lagrange(nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The Lagrange polynomials of the nodes at each x, shape (x, nodes)."""
    apart = nodes[:, None] - nodes + np.eye(nodes.size)
    others = np.where(np.eye(nodes.size, dtype=bool), 1.0, (x[:, None, None] - nodes) / apart)
    return others.prod(-1)


def flow(problem: Problem, stats: PyTree, t, *, corrector: bool = True, rtol: float = 1e-9, atol: float = 1e-11) -> PyTree:
    """The statistics at time `t` of the ODE's solution that starts from `stats`, differentiable in all of them.

    Parameters
    ----------
    problem : any problem; its numbers may be traced, so that `jax.grad` with respect to the learning rate works
    stats : statistics of one run, without a batch axis (use `jax.vmap` for many)
    t : time in samples per dimension: one number, or increasing numbers, which put an axis of times in front

    Examples
    --------
    >>> import sgdlimits as sl
    >>> start = sl.Overlaps([1.0], [[0.1]], [[1.0]])
    >>> overlap = lambda lr: sl.flow(sl.presets.phase_retrieval(lr=lr), start, 20.0).M[0, 0]
    >>> bool(overlap(0.05) > 0.1)               # and jax.grad(overlap)(0.05) is its slope
    True
    """
    import diffrax

    t = jnp.asarray(t, float)
    times = jnp.atleast_1d(t)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: vector_field(problem, corrector)(y)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=stats,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        max_steps=100_000,
    )
    return solution.ys if t.ndim else jax.tree.map(lambda leaf: leaf[0], solution.ys)
