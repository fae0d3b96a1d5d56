"""The deterministic limit of large d: the ordinary differential equation of the drift, and its differentiable flow."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sgdlimits.domain import Positive, Statistics, Times, Tolerance, checked
from sgdlimits.errors import BadInput, is_traced, shorten
from sgdlimits.level.base import Clock, Engine, Level
from sgdlimits.level.solver import SHARED_TOLERANCE, Solver, vector_field
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import check_schedules
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.trees import select_run

MAX_STEPS = 2**16
"""Maximum number of solver steps in `flow`; diffrax lays out its checkpointed loop for this number, 16 to the power of 4."""


@checked
class ODE(Level):
    r"""The limit of large dimension, :math:`d\to\infty`: the statistics X follow the ODE :math:`\dot X = b(X)` with drift b.

    Parameters
    ----------
    corrector : whether the drift contains the term quadratic in the learning rate; if false, gradient flow on the risk
    rtol, atol : relative and absolute tolerance of the solver; None matches the accuracy of the problem's expectations: rtol is
        1e-9 for closed forms and 1e-4 for Sobol points, and atol is rtol / 100

    Notes
    -----
    All runs are solved as one system if rtol is at most 1e-7, and separately otherwise. The solver is DOP853, and Radau with
    the exact Jacobian once the system proves stiff. The solver's steps do not depend on the saved times, at which interpolating
    polynomials are evaluated. `flow` is a differentiable version of the same map from start to final statistics.
    """

    name: ClassVar[str] = "ode"
    shared_batch: ClassVar[int | None] = 16
    corrector: bool = eqx.field(static=True, default=True)
    rtol: Tolerance | None = eqx.field(static=True, default=None)
    atol: Positive | None = eqx.field(static=True, default=None)

    def adapt_problem(self, problem):
        return problem.limit

    def make_engine(self, problem, start, first):
        problem = problem.limit.numerics.refined(
            first, self.rtol if self.rtol and self.rtol < problem.numerics.tolerance else None
        )
        rtol = self.rtol or problem.numerics.tolerance
        return SolverEngine(ODE(self.corrector, rtol, self.atol or rtol / 100), problem, max_runs_per_system(rtol))


def max_runs_per_system(rtol: float) -> int:
    """Return the number of runs that may be solved as one system of ODEs: many at small tolerances, otherwise one.

    Runs in one system share its step sizes. At large tolerances the error of a run would visibly depend on the other runs.
    """
    return 4096 if rtol <= SHARED_TOLERANCE else 1


class SolverEngine(Engine):
    """The level `ODE` or `MeanField` bound to a problem: it solves the ODE of all runs of a batch as one system."""

    level: Any
    problem: Problem
    max_batch: int

    def round_to_steps(self, times):
        return Clock(times, np.full(times.size, np.nan))  # any time can be saved; there is no d to count steps with

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
    """Solve the ODE from `stats` and return the statistics at time `t`, differentiable with respect to all arguments.

    Parameters
    ----------
    problem : any problem; its parameters may be traced, so that `jax.grad` with respect to the learning rate works
    stats : statistics of one run, without a batch axis (use `jax.vmap` for many)
    t : time in samples per dimension: a number, or an increasing array, in which case the result has a first axis of times
    corrector : as for `ODE`
    rtol, atol : tolerances of the solver, as for `ODE`: None matches the accuracy of the problem's expectations

    Notes
    -----
    `jax.grad` and `jax.jvp` differentiate the steps of the solver. Tolerances bound the error of the statistics, not that of
    derivatives. The latter may be far larger for a derivative with respect to a time at which a rate has a kink, such as the
    end of a warmup: compare with a smaller `rtol` there.

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
        raise BadInput(f"t must be a number or an increasing array; got {shorten(np.asarray(t).tolist())}. Sort the times.")
    controller: Any = diffrax.PIDController(rtol=rtol, atol=rtol / 100 if atol is None else atol)
    if (knots := knots_of(problem)).size:  # steps end at the kinks of schedules, so that the solver keeps its order
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
        adjoint=diffrax.DirectAdjoint(),  # supports both forward and reverse mode
        throw=False,
    )
    failed = solution.result != diffrax.RESULTS.successful
    remedy = "Give a larger rtol or a shorter t, or use ODE(), which has an implicit solver for stiff problems."
    ys = eqx.error_if(solution.ys, failed, f"flow needs more than {MAX_STEPS} steps, or its solution diverges. {remedy}")
    return ys if t.ndim else select_run(ys)
