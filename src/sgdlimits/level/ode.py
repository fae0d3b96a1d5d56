"""The deterministic limit: the drift as an ordinary differential equation."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from sgdlimits.domain import checked
from sgdlimits.level.base import Clock, Engine, Level
from sgdlimits.level.solve import SHARED_TOLERANCE, Solve
from sgdlimits.problem.base import Problem


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
    corrector: bool = eqx.field(static=True, default=True)
    rtol: float | None = eqx.field(static=True, default=None)
    atol: float | None = eqx.field(static=True, default=None)

    def view(self, problem):
        return problem.limit

    def bind(self, problem, start, first):
        problem = problem.limit.refined(first, self.rtol if self.rtol and self.rtol < problem.tolerance else None)
        rtol = self.rtol or problem.tolerance
        return Solving(ODE(self.corrector, rtol, self.atol or rtol / 100), problem, shared_or_alone(rtol))


def shared_or_alone(rtol: float) -> int:
    """Runs that are one system share its steps, which shows where the tolerance is large: then each run is its own."""
    return 4096 if rtol <= SHARED_TOLERANCE else 1


class Solving(Engine):
    """An engine that solves the drift's equation for all runs of a batch at once."""

    level: Any
    problem: Problem
    most: int

    def snap(self, times):
        return Clock(times, np.full(times.size, np.nan))

    def follow(self, starts, job, state=None):
        return Solve(self, starts, job, state)
