"""Effective dynamics: the limit of the summary statistics of SGD at a step size that shrinks with the dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import jax
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.localizability import Localizability, measure_localizability
from sgdlimits.checks import either, function, integer, problem as a_problem
from sgdlimits.domain import Count, Positive, Seed, Statistics, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import add

CRITICAL_REGIME, SUBCRITICAL_REGIME, SUPERCRITICAL_REGIME = "critical", "sub-critical", "super-critical"


PROBLEM_CHECK = either("a Problem, or a function of d that gives one", "Take one from sgdlimits.presets.", a_problem, function)


@checked
@dataclass(frozen=True, repr=False)
class EffectiveDynamics:
    r"""Limit of the statistics u of SGD at the step size :math:`\delta = \text{lr}\,d^{-s}`, with time in :math:`d^s` samples.

    .. math:: \dot u = h(u), \quad h = -f + g, \qquad f = \lim\langle\nabla\Phi, \nabla u\rangle, \quad
              g = \lim\tfrac\delta2\sum_{ij} V_{ij}\,\partial_i\partial_j u,

    where d is the dimension, lr the learning rate, s the exponent, :math:`\Phi` the population loss and V the covariance of one
    sample's gradient. A factor lr that the paper has in its unit of time is in f, g and the diffusion matrix :math:`\Sigma`
    here. `effective_dynamics` returns objects of this class.
    """

    problem: Annotated[Problem | Callable[[int], Problem], PROBLEM_CHECK]
    exponent: Positive = 1.0

    def __repr__(self) -> str:
        name = getattr(self.problem, "name", type(self.problem).__name__) if isinstance(self.problem, Problem) else "a family"
        return f"EffectiveDynamics of {name} at step size lr d^-{self.exponent:g}: {self.regime}"

    @property
    def regime(self) -> str:
        """Regime of the step size lr d^-s: "critical" at s = 1, "sub-critical" for s > 1, "super-critical" for s < 1.

        The corrector g and the diffusion matrix Sigma vanish in the sub-critical regime; no limit exists in the super-critical.
        """
        if self.exponent == 1:
            return CRITICAL_REGIME
        return SUBCRITICAL_REGIME if self.exponent > 1 else SUPERCRITICAL_REGIME

    def at(self, d: int) -> EffectiveDynamics:
        """Return the dynamics at dimension `d` of a family of problems; for a single problem, return the dynamics itself."""
        return EffectiveDynamics(self._problem_at_dimension(check_count("d", d)), self.exponent)

    def f(self, stats: PyTree) -> PyTree:
        """Return the term f of h = -f + g: -f is the drift of the statistics under population gradient descent."""
        return jax.tree.map(lambda leaf: -leaf, self._single_problem().drift_parts(stats)[0])

    def g(self, stats: PyTree) -> PyTree:
        """Return the corrector g, the term of the drift that is quadratic in the learning rate.

        It is zero below the critical step size; above it `BadInput` is raised.
        """
        self._need_limit("g")
        return jax.tree.map(
            lambda leaf: float(self.regime == CRITICAL_REGIME) * leaf, self._single_problem().drift_parts(stats)[1]
        )

    def h(self, stats: PyTree) -> PyTree:
        """Return the drift h = -f + g of the statistics, where f and g are what the methods `f` and `g` return.

        Raise `BadInput` above the critical step size.
        """
        return add(self.g(stats), self.f(stats), -1.0)

    def Sigma(self, stats: PyTree) -> Float[Array, "n n"]:
        r"""Return the diffusion matrix of :math:`\sqrt d\,(u - u^*)`, for statistics u near a fixed point u* (`local_limit`).

        The diffusion matrix of u itself is smaller by the factor 1/d and vanishes as d grows, so that the limit of u is
        deterministic (ballistic). `Sigma` is zero below the critical step size; above it `BadInput` is raised.
        """
        self._need_limit("Sigma")
        return float(self.regime == CRITICAL_REGIME) * self._single_problem().covariance(stats)

    @checked
    def localizability(
        self,
        dimensions: tuple[int, ...] = (100, 1000, 10**4, 10**5),
        states: Count = 8,
        samples: Annotated[int, integer(at_least=16)] = 4096,
        seed: Seed = 0,
        magnify: float | Mapping[str, float] = 0.0,
        around: Statistics | None = None,
    ) -> Localizability:
        r"""Measure the conditions under which the limit exists (Definition 2.1 of Ben Arous, Gheissari and Jagannath [2]_).

        With the step size :math:`\delta`, the last condition is taken as :math:`O(\delta^{-3})`, not as the printed
        :math:`o(\delta^{-1})`, which the paper's own examples do not meet: in the proof :math:`\delta^4` times the variance of
        this condition is summed over :math:`\delta^{-1}` steps. At exactly :math:`\delta^{-3}`, which the overlaps Q multiplied
        by :math:`d^{1/2}` reach, the second-order term is part of the noise, as it is in `problem.covariance`.

        Parameters
        ----------
        dimensions : at least three dimensions, increasing; exponents are fitted to the three largest
        states : number of random states, which represent a compact set
        samples : number of samples drawn at each state
        seed : seed of states and samples
        magnify : power of d by which deviations are multiplied: the conditions are measured for
            :math:`d^\text{magnify}(u - u^*)`. Give 1/2 for diffusive limits, or a dictionary of powers for kinds of statistics
            such as {"M": 0.5}, zero for the others
        around : statistics u*, near which the magnified deviations are of order one; the limit of the magnified statistics is
            then measured too. None takes states u of order one
        """
        return measure_localizability(
            self._problem_at_dimension, self.exponent, dimensions, states, samples, seed, magnify, around
        )

    def _problem_at_dimension(self, d: int) -> Problem:
        if isinstance(self.problem, Problem):
            return self.problem
        try:
            return a_problem("problem(d)", self.problem(d))
        except TypeError as reason:
            raise BadInput(f"problem({d}) fails: {str(reason).rstrip('.')}. Give a function of the dimension d.") from reason

    def _single_problem(self) -> Problem:
        if not isinstance(self.problem, Problem):
            raise BadInput("problem= is a function of d, but no d is given. Choose d, for instance dynamics.at(1000).f.")
        return self.problem

    def _need_limit(self, name: str) -> None:
        if self.regime == SUPERCRITICAL_REGIME:
            raise BadInput(
                f"{name} has no limit at the exponent {self.exponent:g}: the effect of the step size grows as "
                f"d^{1 - self.exponent:g}. Take exponent=1 with any lr."
            )
