"""The limit of infinite width: each unit moves in the field of all the others."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx

from sgdlimits.domain import Count, Positive, Tolerance, checked
from sgdlimits.errors import check_count
from sgdlimits.level.base import Level
from sgdlimits.level.ode import SolverEngine, shared_or_alone
from sgdlimits.problem.mean_field import MeanFieldProblem

NUMBERS_AT_ONCE = 2**20


@checked
class MeanField(Level):
    r"""The limit :math:`d\to\infty`, then :math:`p\to\infty` at fixed time :math:`(\text{lr}/p)\,t`.

    The p units of the problem become the atoms of a measure, and every pair of them overlaps by what it has in common with the
    fixed directions, :math:`Q_{il} = m_i^\top P^{-1} m_l` [5]_. The state is `Particles(a, M, q)`, p (k + 2) numbers. The ODE
    at width p from the same units differs from it by a term of order 1/p.

    Parameters
    ----------
    rtol, atol : tolerances of the solver; None takes what the problem's expectations are worth, and a hundredth of that as the
        absolute one
    outside : how many dimensions there are outside the fixed directions, d - k, for the limit :math:`p\to\infty` at that d:
        units' directions are then uniform on the sphere of dimension d - k - 1. None for infinitely many

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
    shared_batch: ClassVar[int | None] = 16
    rtol: Tolerance | None = eqx.field(static=True, default=None)
    atol: Positive | None = eqx.field(static=True, default=None)
    outside: Count | None = eqx.field(static=True, default=None)

    def view(self, problem):
        """The units of the problem as atoms; what is in this limit already stays as it is."""
        if isinstance(problem, MeanFieldProblem):
            return problem
        return MeanFieldProblem(problem, outside=None if self.outside is None else check_count("outside", self.outside))

    def first(self, problem, start, stream):
        return start.particles(self.view(problem).problem, stream)

    def bind(self, problem, start, first):
        view = self.view(problem)
        rtol = self.rtol or view.numerics.tolerance
        most = min(shared_or_alone(rtol), max(1, NUMBERS_AT_ONCE // view.numerics.size))
        return SolverEngine(MeanField(rtol, self.atol or rtol / 100, self.outside), view, most)
