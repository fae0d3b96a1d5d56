"""The deterministic limit: the drift as an ordinary differential equation, and its flow."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from scipy.integrate import DOP853, OdeSolver, Radau
from scipy.sparse import block_diag

from sgdlimits.errors import check_number
from sgdlimits.level.base import DIVERGED, FINISHED, LIMIT, STOPPED, Job, Level, Track
from sgdlimits.problem.base import Problem

SHARED_TOLERANCE = 1e-7
STEPS_BEFORE_STIFF_TEST = 300
STIFF_PRODUCT = 4.0


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
        rtol = self.rtol or problem.tolerance
        return ODE(self.corrector, rtol, self.atol or rtol / 100)

    def snap(self, times):
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
    return jax.vmap(lambda one: drift_jacobian(problem, corrector, one))(stats)


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
        self.until = None if job.until is None else jax.jit(jax.vmap(job.until))
        self.t, self.steps = job.times[0], 0
        self.stride: float | None = None
        self.method: type[OdeSolver] = DOP853

    def run(self) -> Track:
        times, saved = self.job.times, [self.y.copy()]
        self._drop(self._hits(self.y), STOPPED, times[0], self.y)
        try:
            for goal in times[1:]:
                while self.t < goal and self.active.size:
                    self._advance(goal)
                saved.append(self.y.copy())
        except KeyboardInterrupt:
            self.t_end = np.minimum(self.t_end, times[len(saved) - 1])
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
            hits = self._hits(y)
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
        slope = _slopes(self.problem, self.level.corrector, self._stats(flat.reshape(self.active.size, -1)))
        rows = [np.asarray(leaf).reshape(self.active.size, -1) for leaf in jax.tree.leaves(slope)]
        return np.concatenate(rows, axis=1).ravel()

    def _jacobian(self, t: float, flat: np.ndarray):
        blocks = _jacobians(self.problem, self.level.corrector, self._stats(flat.reshape(self.active.size, -1)))
        return block_diag(list(np.asarray(blocks)), format="csc")

    def _solver(self, goal: float) -> OdeSolver:
        """A solver that lands on the next saved time, where interpolation would be worse than the tolerance."""
        more: dict = {"jac": self._jacobian} if self.method is Radau else {}
        if self.stride is not None:
            more["first_step"] = min(self.stride, goal - self.t)
        flat = self.y[self.active].ravel()
        return self.method(self._slope, self.t, flat, goal, rtol=self.level.rtol, atol=self.level.atol, **more)

    def _stiff(self, solver: OdeSolver) -> bool:
        """Whether stability, not accuracy, limits the step: the fastest decay rate times the step is near DOP853's bound."""
        blocks = _jacobians(self.problem, self.level.corrector, self._stats(self.y[self.active]))
        return bool((-np.linalg.eigvals(np.asarray(blocks)).real * solver.step_size > STIFF_PRODUCT).any())

    def _hits(self, y: np.ndarray) -> np.ndarray:
        if self.until is None:
            return np.zeros(y.shape[0], bool)
        return np.asarray(self.until(self._stats(y)))

    def _stop(self, hits: np.ndarray, dense, low: float, high: float) -> None:
        """Stop runs where within a step each hit happens, by bisection of the dense output."""
        state = lambda t: dense(t).reshape(hits.size, -1)  # noqa: E731
        for index in np.flatnonzero(hits):
            left, right = low, high
            for _ in range(52):
                middle = (left + right) / 2
                inside = self._hits(state(middle)[index : index + 1])[0]
                left, right = (left, middle) if inside else (middle, right)
            run = self.active[index]
            self.y[run], self.t_end[run], self.status[run] = state(right)[index], right, STOPPED
        self.active = self.active[~hits]

    def _drop(self, which: np.ndarray, status: str, t: float, y: np.ndarray) -> None:
        """Take runs out of the system, with their state `y` at `t` as their last."""
        leaving = self.active[which]
        self.y[leaving], self.status[leaving], self.t_end[leaving] = y[which], status, t
        self.active = self.active[~which]


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
