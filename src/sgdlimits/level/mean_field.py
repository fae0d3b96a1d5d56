"""The mean-field limit of infinite width, in which each unit moves in the mean field of all units."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx

from sgdlimits.domain import Count, Positive, Tolerance, checked
from sgdlimits.errors import check_count
from sgdlimits.level.base import Level
from sgdlimits.level.ode import SolverEngine, max_runs_per_system
from sgdlimits.problem.mean_field import MeanFieldProblem

MAX_FLOATS_PER_BATCH = 2**20
"""Maximum number of floats in the states of one batch of runs; bounds memory."""


@checked
class MeanField(Level):
    r"""The limit of large dimension, then of infinite width p, at fixed time :math:`(\text{lr}/p)\,t`.

    The p units of the problem become the atoms of a measure. The overlap of two units comes from their components along the k
    fixed directions alone, :math:`Q_{il} = m_i^\top P^{-1} m_l` [5]_, with the overlaps :math:`m_i` of unit i with the fixed
    directions and the Gram matrix P of these. The state is `Particles(a, M, q)`: second layer, overlaps and squared norms of
    the p units, p (k + 2) entries in all. The ODE at width p from the same units differs from this limit by a term of order
    1/p.

    Parameters
    ----------
    rtol, atol : relative and absolute tolerance of the solver; None matches rtol to the accuracy of the problem's expectations,
        and takes rtol / 100 for atol
    outside : number of dimensions orthogonal to the fixed directions, d - k, for the limit :math:`p\to\infty` at finite d: the
        orthogonal components of units are then uniform on the sphere of dimension d - k - 1. None takes :math:`d\to\infty`

    Notes ----- There is no corrector (term quadratic in the learning rate): the effect of the step size is lr/p times smaller
    than the drift. The solver is that of `ODE`, which may switch to the implicit method for states of at most 256 entries. With
    one fixed direction and smooth functions, a drift costs p times the number of nodes of a grid over the fixed fields.
    Otherwise it costs p squared, in bounded memory.

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

    def adapt_problem(self, problem):
        """Return the mean-field limit of a projection problem; a `MeanFieldProblem` is returned unchanged."""
        if isinstance(problem, MeanFieldProblem):
            return problem
        return MeanFieldProblem(problem, outside=None if self.outside is None else check_count("outside", self.outside))

    def draw_initial_statistics(self, problem, start, stream):
        return start.particles(self.adapt_problem(problem).problem, stream)  # overlaps of pairs of units are not drawn

    def make_engine(self, problem, start, first):
        view = self.adapt_problem(problem)
        rtol = self.rtol or view.numerics.tolerance
        # the tolerance decides whether runs may share a system, and memory how many
        max_batch = min(max_runs_per_system(rtol), max(1, MAX_FLOATS_PER_BATCH // view.numerics.size))
        return SolverEngine(MeanField(rtol, self.atol or rtol / 100, self.outside), view, max_batch)
