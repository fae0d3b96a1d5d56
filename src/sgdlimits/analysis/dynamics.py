"""Effective dynamics: the limit of SGD's statistics at a step size that shrinks with the dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import jax
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.localizability import Localizability, measure
from sgdlimits.checks import either, function, integer, problem as a_problem
from sgdlimits.domain import Count, Positive, Seed, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import add

CRITICAL, SUB_CRITICAL, SUPER_CRITICAL = "critical", "sub-critical", "super-critical"


PROBLEM_CHECK = either("a Problem, or a function of d that gives one", "Take one from sgdlimits.presets.", a_problem, function)


@checked
@dataclass(frozen=True, repr=False)
class EffectiveDynamics:
    r"""Limit of the statistics u of SGD at the step size :math:`\delta = \text{lr}\,d^{-s}`, with time in :math:`d^s` samples.

    .. math:: \dot u = h(u), \quad h = -f + g, \qquad f = \lim\langle\nabla\Phi, \nabla u\rangle, \quad
              g = \lim\tfrac\delta2\sum_{ij} V_{ij}\,\partial_i\partial_j u,

    where :math:`\Phi` is the population loss and V the covariance of one sample's gradient. The clock is that of the package:
    the factor lr of the paper's time is in f, g and :math:`\Sigma`. `effective_dynamics` returns objects of this class.
    """

    problem: Annotated[Problem | Callable[[int], Problem], PROBLEM_CHECK]
    exponent: Positive = 1.0

    def __repr__(self) -> str:
        name = getattr(self.problem, "name", type(self.problem).__name__) if isinstance(self.problem, Problem) else "a family"
        return f"EffectiveDynamics of {name} at step size lr d^-{self.exponent:g}: {self.regime}"

    @property
    def regime(self) -> str:
        """Regime of the exponent s: "critical" at 1, "sub-critical" above (g and Sigma vanish), "super-critical" below."""
        if self.exponent == 1:
            return CRITICAL
        return SUB_CRITICAL if self.exponent > 1 else SUPER_CRITICAL

    def at(self, d: int) -> EffectiveDynamics:
        """Return the dynamics at dimension `d` of a family of problems; for a single problem, return the dynamics itself."""
        return EffectiveDynamics(self._at(check_count("d", d)), self.exponent)

    def f(self, stats: PyTree) -> PyTree:
        """Return the population drift f, which does not depend on s: gradient descent on the population loss follows -f."""
        return jax.tree.map(lambda leaf: -leaf, self._one().drift_parts(stats)[0])

    def g(self, stats: PyTree) -> PyTree:
        """Return the corrector g, the effect of the step size: zero below the critical step size, `BadInput` above it."""
        self._need_limit("g")
        return jax.tree.map(lambda leaf: float(self.regime == CRITICAL) * leaf, self._one().drift_parts(stats)[1])

    def h(self, stats: PyTree) -> PyTree:
        """Return the drift h = -f + g; raise `BadInput` above the critical step size."""
        return add(self.g(stats), self.f(stats), -1.0)

    def Sigma(self, stats: PyTree) -> Float[Array, "n n"]:
        r"""Return the diffusion matrix of :math:`\sqrt d\,(u - u^*)` around a fixed point u*, as in `local_limit`.

        The diffusion matrix of the statistics u is 1/d times this and vanishes: the limit is ballistic. The result is zero
        below the critical step size; above it `BadInput` is raised.
        """
        self._need_limit("Sigma")
        return float(self.regime == CRITICAL) * self._one().covariance(stats)

    @checked
    def localizability(
        self,
        dimensions: tuple[int, ...] = (100, 1000, 10**4, 10**5),
        states: Count = 8,
        samples: Annotated[int, integer(at_least=16)] = 4096,
        seed: Seed = 0,
        magnify: float | Mapping[str, float] = 0.0,
    ) -> Localizability:
        r"""Measure the conditions under which the limit holds (Definition 2.1 of Ben Arous, Gheissari and Jagannath [2]_).

        The last condition is taken as :math:`O(\delta^{-3})`, not :math:`o(\delta^{-1})` as printed, which the paper's own
        examples do not meet: in its proof :math:`\delta^4` times this variance is summed over :math:`\delta^{-1}` steps. At
        exactly :math:`\delta^{-3}`, which Q magnified by 1/2 reaches, the second-order term is part of the noise, as it is in
        `problem.covariance`.

        Parameters
        ----------
        dimensions : at least three, increasing; exponents are those of the largest
        states : how many random states stand for a compact set
        samples : how many samples are drawn at each state
        seed : a whole number
        magnify : the conditions are those of :math:`d^\text{magnify}(u - u^*)`: 1/2 for diffusive limits; or such a power for
            each kind of statistic, {"M": 0.5}, zero for the others
        """
        return measure(self._at, self.exponent, dimensions, states, samples, seed, magnify)

    def _at(self, d: int) -> Problem:
        if isinstance(self.problem, Problem):
            return self.problem
        try:
            return a_problem("problem(d)", self.problem(d))
        except TypeError as reason:
            raise BadInput(f"problem= fails on d = {d}: {str(reason).rstrip('.')}. Give a function of d.") from reason

    def _one(self) -> Problem:
        if not isinstance(self.problem, Problem):
            raise BadInput("problem= is a function of d, and no d is given. Take at(d), for instance dynamics.at(1000).f.")
        return self.problem

    def _need_limit(self, name: str) -> None:
        if self.regime == SUPER_CRITICAL:
            raise BadInput(
                f"{name} has no limit at the exponent {self.exponent:g}: the effect of the step size grows as "
                f"d^{1 - self.exponent:g}. Take exponent=1 with any lr."
            )
