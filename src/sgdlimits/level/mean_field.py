"""The limit of infinite width: each unit moves in the field of all the others."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import numpy as np

from sgdlimits.errors import check_number
from sgdlimits.level.base import Level
from sgdlimits.level.ode import ODE
from sgdlimits.problem.mean_field import MeanFieldProblem

NUMBERS_AT_ONCE = 2**20


class MeanField(Level):
    r"""The limit :math:`d\to\infty`, then :math:`p\to\infty` at fixed time :math:`(\text{lr}/p)\,t`.

    The p units of the problem become the atoms of a measure, and every pair of them overlaps by what it has in common with the
    fixed directions, :math:`Q_{il} = m_i^\top P^{-1} m_l` [5]_. The state is `Particles(a, M, q)`, p (k + 2) numbers. The ODE
    at width p from the same units differs from it by a term of order 1/p.

    Parameters
    ----------
    rtol, atol : tolerances of the solver; None takes what the problem's expectations are worth, and a hundredth of that as the
        absolute one

    Notes
    -----
    There is no corrector: the effect of the step size is lr/p times smaller than the drift. The flow is solved as `ODE` solves
    it, by the implicit method for at most 256 numbers. A drift costs p times the nodes of a grid over the fixed fields for one
    fixed direction and smooth functions, and p times p in bounded memory otherwise.

    See Also
    --------
    sgdlimits.ODE : the limit of large d at the problem's own width

    References
    ----------
    .. [5] Loureiro, *Dimension-free limits of SGD for two-layers neural networks*, slides.
    """

    name: ClassVar[str] = "mean-field"
    rtol: float | None = eqx.field(static=True, default=None)
    atol: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        for name in ("rtol", "atol"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)

    def view(self, problem):
        return MeanFieldProblem(problem)

    def starts(self, problem, start, stream):
        return start.particles(problem, stream)

    def prepared(self, problem, start):
        rtol = self.rtol or self.view(problem).tolerance
        return MeanField(rtol, self.atol or rtol / 100)

    def snap(self, problem, times):
        return times, np.full(times.size, np.nan)

    def batch(self, problem):
        view = self.view(problem)
        return min(ODE(rtol=self.rtol).batch(view), max(1, NUMBERS_AT_ONCE // view.size))

    def run(self, problem, starts, job):
        return ODE(True, self.rtol, self.atol).run(self.view(problem), starts, job)
