"""The verb `effective_dynamics`: the limit of statistics of SGD, of a problem or of nothing but a loss."""

from __future__ import annotations

from collections.abc import Callable

from sgdlimits.analysis.chain_rule import ChosenDynamics
from sgdlimits.analysis.dynamics import EffectiveDynamics
from sgdlimits.domain import Count, Function, Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.problem.base import Problem


@checked
def effective_dynamics(
    problem: Problem | Callable[[int], Problem],
    exponent: Positive = 1.0,
    *,
    statistics: Function | None = None,
    d: Count | None = None,
) -> EffectiveDynamics:
    r"""The limit of the statistics of SGD at the step size :math:`\text{lr}\,d^{-\text{exponent}}` [2]_.

    After Ben Arous, Gheissari and Jagannath; `local_limit` is the diffusive limit near a fixed point.

    Parameters
    ----------
    problem : what is learnt; or a function of d that gives it, for a problem that changes with the dimension
    exponent : s; 1 is critical, above it only the population drift is left, below it there is no limit
    statistics : a JAX function of the problem's statistics, whose dynamics follow by the chain rule; of them and of d where it
        magnifies with the dimension. It returns a number, an array, or a dictionary of these
    d : with `statistics`, the dimension of the second-order term of the chain rule; None leaves out what vanishes as d grows

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5, sphere=False)
    >>> dynamics = sl.effective_dynamics(problem)
    >>> u = sl.Overlaps(a=[1.0], M=[[0.5]], Q=[[1.0]])
    >>> bool(dynamics.h(u).Q == problem.drift(u).Q), float(dynamics.g(u).M[0, 0])
    (True, 0.0)
    >>> dynamics.regime, sl.effective_dynamics(problem, exponent=1.5).regime
    ('critical', 'sub-critical')

    The cosine alone is no statistic with a drift of its own: that also changes with the length.

    >>> cosine = lambda u: {"cosine": u.M[0, 0] / u.Q[0, 0] ** 0.5}
    >>> chosen = sl.effective_dynamics(problem, statistics=cosine)
    >>> round(float(chosen.h(u)["cosine"]), 4), chosen.closure().closed
    (0.055, False)
    """
    if not callable(problem) and not isinstance(problem, Problem):
        raise BadInput(f"problem must be a Problem or a function of d; got {type(problem).__name__}. Take one from presets.")
    if statistics is None:
        if d is not None:
            raise BadInput(f"d = {d} is that of statistics of your own. Leave it out, or give statistics=.")
        return EffectiveDynamics(problem, float(exponent))
    return ChosenDynamics(problem, float(exponent), statistics, d)
