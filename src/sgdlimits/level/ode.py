"""The deterministic limit: the drift as an ordinary differential equation, and its flow."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sgdlimits.domain import Positive, Statistics, Times, Tolerance, checked
from sgdlimits.errors import BadInput, shorten, is_traced
from sgdlimits.level.base import Clock, Engine, Level
from sgdlimits.level.solver import SHARED_TOLERANCE, Solver, vector_field
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import check_schedules
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.trees import take_run

MAX_STEPS = 2**16
"""Steps of `flow`; the loop's checkpoints are laid out for so many, 16 to the power of 4."""


@checked
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
    Radau with the exact Jacobian from where it proves stiff. Its steps do not depend on the times to save, which lie on its
    polynomials. `flow` is the same map, differentiable.
    """

    name: ClassVar[str] = "ode"
    shared_batch: ClassVar[int | None] = 16
    corrector: bool = eqx.field(static=True, default=True)
    rtol: Tolerance | None = eqx.field(static=True, default=None)
    atol: Positive | None = eqx.field(static=True, default=None)

    def view(self, problem):
        return problem.limit

    def bind(self, problem, start, first):
        problem = problem.limit.numerics.refined(
            first, self.rtol if self.rtol and self.rtol < problem.numerics.tolerance else None
        )
        rtol = self.rtol or problem.numerics.tolerance
        return SolverEngine(ODE(self.corrector, rtol, self.atol or rtol / 100), problem, shared_or_alone(rtol))


def shared_or_alone(rtol: float) -> int:
    """Runs that are one system share its steps, which shows where the tolerance is large: then each run is its own."""
    return 4096 if rtol <= SHARED_TOLERANCE else 1


class SolverEngine(Engine):
    """An engine that solves the drift's equation for all runs of a batch at once."""

    level: Any
    problem: Problem
    max_batch: int

    def snap(self, times):
        return Clock(times, np.full(times.size, np.nan))

    def stepper(self, starts, request, state=None):
        return Solver(self, starts, request, state)


@checked
def flow(
    problem: Problem,
    stats: Statistics,
    t: Times,
    *,
    corrector: bool = True,
    rtol: Tolerance | None = None,
    atol: Positive | None = None,
) -> PyTree:
    """The statistics at time `t` of the ODE's solution that starts from `stats`, differentiable in all of them.

    Parameters
    ----------
    problem : any problem; its numbers may be traced, so that `jax.grad` with respect to the learning rate works
    stats : statistics of one run, without a batch axis (use `jax.vmap` for many)
    t : time in samples per dimension: one number, or increasing numbers, which put an axis of times in front
    corrector : as for `ODE`
    rtol, atol : tolerances of the solver, as for `ODE`: None takes what the problem's expectations are worth

    Notes
    -----
    Derivatives, `jax.grad` as well as `jax.jvp`, are those of the solver's steps. Tolerances bound the error of the statistics,
    not that of derivatives, which may be far larger with respect to a time at which a rate has a kink, such as the end of a
    warmup: compare with a smaller `rtol` there.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> start = sl.Overlaps([1.0], [[0.1]], [[1.0]])
    >>> overlap = lambda lr: sl.flow(sl.presets.phase_retrieval(lr=lr), start, 20.0).M[0, 0]
    >>> bool(overlap(0.05) > 0.1)               # and jax.grad(overlap)(0.05) is its slope
    True
    """
    import diffrax

    problem.limit.coordinates.check_one(stats)
    t = jnp.asarray(t, float)
    times = jnp.atleast_1d(t)
    rtol = problem.numerics.tolerance if rtol is None else rtol
    if not is_traced(times):
        check_schedules(problem, float(times.max()))
    if times.ndim > 1 or (not is_traced(times) and (np.diff(times) <= 0).any()):
        raise BadInput(f"t must be a number or an increasing array; got {shorten(np.asarray(t).tolist())}. Sort them.")
    controller: Any = diffrax.PIDController(rtol=rtol, atol=rtol / 100 if atol is None else atol)
    if (knots := knots_of(problem)).size:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=knots)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: vector_field(problem, corrector, t)(y)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=stats,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=controller,
        max_steps=MAX_STEPS,
        adjoint=diffrax.DirectAdjoint(),  # the one that has both modes of differentiation
        throw=False,
    )
    lost = solution.result != diffrax.RESULTS.successful
    remedy = "Give a larger rtol or a shorter t, or use ODE(), which has an implicit solver for stiff problems."
    ys = eqx.error_if(solution.ys, lost, f"flow needs more than {MAX_STEPS} steps, or its solution diverges. {remedy}")
    return ys if t.ndim else take_run(ys)
