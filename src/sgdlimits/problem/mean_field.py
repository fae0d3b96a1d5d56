"""Projection problems in the limit of infinite width."""

from __future__ import annotations

from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from sgdlimits.algorithm.limit import step_rates
from sgdlimits.algorithm.needs import is_linear
from sgdlimits.errors import BadInput
from sgdlimits.expectation.base import freeze_zero_units
from sgdlimits.expectation.particles import ParticleExpectation, ParticleMoments, choose_particle_expectation
from sgdlimits.inputs import Blocks
from sgdlimits.inputs.base import refuse_noise
from sgdlimits.model.network import TwoLayer
from sgdlimits.problem.base import Problem
from sgdlimits.problem.coordinates import Coordinates, check_arrays
from sgdlimits.problem.numerics import Numerics
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.particles import Particles

MAX_IMPLICIT_SOLVER_ENTRIES = 256
"""Maximum number of entries of a state for the implicit solver, whose Jacobian is dense."""
EXISTENCE_TOLERANCE = 1e-9
"""Tolerance with which it is decided whether weights with given statistics exist."""


class MeanFieldProblem(Problem):
    r"""Limit of a projection problem as its width p goes to infinity, with fixed range of the time :math:`(\text{lr}/p)\,t`.

    The p units of the problem are the atoms of the measure of units: each represents infinitely many units with the same second
    layer :math:`a_i`, overlaps :math:`m_i` with the fixed directions and squared norm :math:`q_i`, whose components orthogonal
    to the fixed directions are independent. So two units, even of the same atom, have the overlap :math:`Q_{il} = m_i^\top
    P^{-1} m_l`, with the Gram matrix P of the fixed directions. With the student fields :math:`\lambda_i`, the fixed fields
    :math:`\lambda^*`, the loss l and :math:`G_i = \partial l/\partial\lambda_i`

    .. math::
        \dot m_i &= -\text{lr}\,(E[G_i\lambda^*] + \text{ridge}\, m_i), \\
        \dot q_i &= -2\,\text{lr}\,(E[G_i\lambda_i] + \text{ridge}\, q_i), \\
        \dot a_i &= -\text{lr}_2\,(E[\partial_{a_i} l] + \text{ridge}\, a_i),

    in t. The term quadratic in the learning rate (corrector), lr/p times smaller than the other terms, is absent. On the sphere
    the change of each norm is projected out.

    Parameters
    ----------
    problem : the problem at finite width
    expectation : how expectations over particles are computed; None chooses automatically
    outside : number of dimensions orthogonal to the fixed directions, as for `MeanField`

    >>> import sgdlimits as sl
    >>> limit = MeanFieldProblem(sl.presets.committee(width=3, teachers=2))
    >>> limit.drift(sl.Particles([1.0, 1.0, 1.0], [[0.1, 0.0], [0.0, 0.1], [0.1, 0.1]], [1.0, 1.0, 1.0])).M.shape
    (3, 2)
    """

    problem: ProjectionProblem
    expectation: ParticleExpectation

    def __init__(self, problem: Problem, expectation: ParticleExpectation | None = None, outside: int | None = None) -> None:
        if not isinstance(problem, ProjectionProblem):
            raise BadInput(f"MeanField does not support {type(problem).__name__}. Use ODE(), or Chain(d).")
        if not (isinstance(problem.network, TwoLayer) and problem.network.plain):
            raise BadInput(
                f"MeanField needs TwoLayer with one output, no bias and no dropout; the network of {problem.name} differs. "
                "Use ODE(), or Chain(d)."
            )
        refuse_noise(problem.data, "MeanField")
        if isinstance(problem.data, Blocks):
            raise BadInput(
                "MeanField does not support variances by block or class: its particles have one norm, not one for each block. "
                "Use ODE(), or Chain(d)."
            )
        if not problem.network.mean:
            raise BadInput(
                f"MeanField needs a network that is the mean of its units; that of {problem.name} is their sum. Use "
                f"ODE() or Chain(d)."
            )
        self.problem = problem.limit  # d grows before p does
        algorithm = self.problem.algorithm
        if not is_linear(algorithm, problem.network.width) or len(algorithm.names) > 1:
            raise BadInput(f"MeanField does not support {type(algorithm).__name__}. Use ODE(), or Chain(d).")
        self.expectation = choose_particle_expectation(problem.model, outside) if expectation is None else expectation

    def at(self, t):
        now = self.problem.at(t)
        return self if now is self.problem else MeanFieldProblem(now, self.expectation)

    def _drift_parts(self, stats: Particles) -> tuple[Particles, Particles]:
        moments = freeze_zero_units(self.problem.model, stats.q, self.expectation.moments(self.problem.model, stats))
        population = self._population_drift(stats, moments)
        return population, jax.tree.map(jnp.zeros_like, population)

    def _risk(self, stats: Particles):
        return self.expectation.loss(self.problem.model, stats)

    def observables(self, stats):
        model = self.problem.model
        return {"accuracy": self.expectation.accuracy(model, stats)} if model.loss.classifies else {}

    def _covariance(self, stats: Particles):
        raise BadInput("the mean-field limit has no noise. Use the covariance of the problem at finite width.")

    @property
    def floor(self):
        return self.problem.floor

    @property
    def rate(self):
        return self.problem.rate

    @property
    def directions(self):
        return self.problem.directions

    @property
    def coordinates(self):
        return ParticleCoordinates(self)

    @property
    def numerics(self):
        return ParticleNumerics(self)

    def _population_drift(self, stats: Particles, moments: ParticleMoments) -> Particles:
        """Return the drift of the units from their expectations; on the sphere the change of norms is projected out."""
        rate, trained = step_rates(self.problem.algorithm, self.problem.t), self.problem.trains_second
        M = rate.old_coefficients[0, 0] * stats.M + rate.gradient[0] * moments.gradient_fixed
        q = 2 * (rate.old_coefficients[0, 0] * stats.q + rate.gradient[0] * moments.gradient_field)
        a = (
            rate.second_layer_coefficients[0, 0] * stats.a + rate.second_layer_coefficients[0, 1] * moments.gradient_second
            if trained
            else jnp.zeros_like(stats.a)
        )
        # on the sphere q = 1, and the change of norms is projected out
        return Particles(a, M - stats.M * (q / 2)[:, None], q - stats.q * q) if rate.unit[0] else Particles(a, M, q)


class ParticleNumerics(Numerics):
    """Numerical properties of a problem in the mean-field limit, where runs are computed one at a time.

    The units of one run alone keep all processor cores busy.
    """

    @cached_property
    def runs_at_once(self) -> int:
        return 1

    @cached_property
    def size(self) -> int:
        problem = self.problem.problem
        return problem.network.width * (problem.target.teachers + 2)

    @cached_property
    def tolerance(self) -> float:
        return self.problem.expectation.tolerance

    @cached_property
    def implicit(self) -> bool:
        return self.size <= MAX_IMPLICIT_SOLVER_ENTRIES


class ParticleCoordinates(Coordinates):
    """Vectors, names and checks of mean-field statistics: second layer, overlaps with fixed directions, squared norms."""

    def check(self, stats: Particles) -> None:
        problem = self.problem.problem
        p, k = problem.network.width, problem.target.teachers
        values = {name: np.asarray(getattr(stats, name)) for name in Particles.dims}
        check_arrays(values, {"a": (p,), "M": (p, k), "q": (p,)}, p, k, "particles")
        q, m = values["q"], np.linalg.solve(np.asarray(problem.frame), np.swapaxes(values["M"], -1, -2))
        outside = q - (m**2).sum(-2)  # squared norm orthogonal to the fixed directions
        if (outside < -EXISTENCE_TOLERANCE * np.maximum(q, 1.0)).any():
            raise BadInput(
                f"no weights have these particles: q - M P^-1 M^T is {outside.min():.3g} for one of them. "
                "Make q larger or M smaller."
            )
        if problem.algorithm.sphere and not np.allclose(q, 1.0, atol=EXISTENCE_TOLERANCE):
            raise BadInput(
                f"sphere=True keeps every norm at 1, but the start has q = {q.ravel()[np.argmax(abs(q - 1))]:.6g}. "
                "Give q of ones, or sphere=False."
            )
