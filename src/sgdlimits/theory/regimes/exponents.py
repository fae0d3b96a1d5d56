"""The regime of two exponents, by formula, and the sizes behind it for one problem."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput, check_number
from sgdlimits.problem import ProjectionProblem
from sgdlimits.start import RandomInit
from sgdlimits.statistics import Overlaps
from sgdlimits.text import table

REGIMES = ("gradient flow", "high-dimensional", "noise-dominated", "no limit")
GRADIENT_FLOW, HIGH_DIMENSIONAL, NOISE_DOMINATED, NO_LIMIT = REGIMES
ON_THE_LINE = 1e-12
"""Sums of exponents nearer than this to a line are on it: 0.1 + 0.2 - 0.3 is."""


class Regime(NamedTuple):
    r"""The limit at p = d^kappa, lr = d^-delta, and the exponents of d behind it.

    Parameters
    ----------
    name : "gradient flow", "high-dimensional", "noise-dominated" or "no limit"
    mean_field : whether the width grows and the noise term vanishes, so that overlaps between students follow from the other
        statistics
    level : the level to use, as it is written; None where only `Chain` and `SGD` are right. `ODE()` holds where noise dominates
        too: its population term is then the small one. `ODE(corrector=False)` holds beside `MeanField()`
    corrector : of :math:`\gamma/p`, the noise term beside the population term
    step : of :math:`\gamma/(dp)`, one step in the paper's time
    fluctuation : of the bound :math:`\sqrt{\delta t}` on the distance between SGD and the ODE, where :math:`\delta t` is
        the larger of :math:`\gamma/(dp)` and :math:`\gamma^2/(dp^2)`, after a time of order 1 on that clock
    samples : of :math:`dp/\gamma`, the samples in a unit of the paper's time
    """

    name: str
    mean_field: bool
    level: str | None
    corrector: float
    step: float
    fluctuation: float
    samples: float

    def __str__(self) -> str:
        more = " or ODE(corrector=False)" if self.mean_field else ""
        more = ", whose corrector is the larger part" if self.name == NOISE_DOMINATED else more
        powers = {
            "corrector / population": self.corrector,
            "step in the paper's time": self.step,
            "fluctuations": self.fluctuation,
            "samples in a unit of it": self.samples,
        }
        rows = table([(words, f"d^{power:.4g}") for words, power in powers.items()], indent="  ")
        return f"{self.name}: {self.level or 'Chain(d) or SGD(d)'}{more}\n{rows}"


class Sizes(NamedTuple):
    r"""How large the terms of the limit are for one problem in one dimension.

    Parameters
    ----------
    corrector : :math:`\gamma/p`, the order of the noise term beside the population term
    ratio : the ratio of these terms at a random start, the largest entries compared
    step : :math:`\gamma/(dp)`, one step in the paper's time
    fluctuation : :math:`\sqrt{\delta t}` as in `Regime`
    samples : :math:`dp/\gamma`, the samples in a unit of the paper's time
    """

    corrector: float
    ratio: float
    step: float
    fluctuation: float
    samples: float

    def __str__(self) -> str:
        words = ("lr / p", "corrector / population", "step in the paper's time", "fluctuations", "samples in a unit of it")
        return table((name, f"{value:.4g}") for name, value in zip(words, self, strict=True))


def regime(kappa: float, delta: float) -> Regime:
    r"""The regime of p = d^kappa units at the learning rate d^-delta.

    Parameters
    ----------
    kappa : :math:`\kappa \ge 0`, zero at constant width
    delta : :math:`\delta`, zero at a constant learning rate

    See Also
    --------
    of : the sizes behind it for one problem
    phase_diagram : the same, computed

    Examples
    --------
    >>> print(regime(kappa=0, delta=0))
    high-dimensional: ODE()
      corrector / population    d^0
      step in the paper's time  d^-1
      fluctuations              d^-0.5
      samples in a unit of it   d^1
    >>> regime(kappa=0.5, delta=-0.75).name
    'noise-dominated'
    """
    check_number("kappa", kappa, at_least=0)
    check_number("delta", delta)
    total = float(kappa) + float(delta)
    total = 0.0 if abs(total) <= ON_THE_LINE else total
    mean_field = kappa > 0 and total > 0
    level: str | None
    if total > 0:
        name, level = GRADIENT_FLOW, "MeanField()" if mean_field else "ODE(corrector=False)"
    elif total == 0:
        name, level = HIGH_DIMENSIONAL, "ODE()"
    elif total > -1 / 2 + ON_THE_LINE:
        name, level = NOISE_DOMINATED, "ODE()"
    else:
        name, level = NO_LIMIT, None
    fluctuation = (-1 - min(total, 2 * total)) / 2
    return Regime(name, mean_field, level, 0.0 - total, -1 - total, fluctuation, 1 + total)


def of(problem: ProjectionProblem, d: int, *, seed: int = 0) -> Sizes:
    """The sizes of the terms for one problem in d dimensions, the ratio of the drift's parts measured at a random start.

    Parameters
    ----------
    problem : any projection problem
    d : dimension
    seed : of the start

    Examples
    --------
    >>> import sgdlimits as sl
    >>> sizes = of(sl.presets.phase_retrieval(width=4, lr=0.2, noise=0.1), d=1000)
    >>> round(sizes.corrector, 6), round(sizes.samples)
    (0.05, 20000)
    """
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(
            f"problem must be a projection problem, which has a width; got {type(problem).__name__}. Give such a one."
        )
    start = RandomInit(d)
    d, (population, corrector) = start.d, map(largest, problem.drift_parts(start.one(problem, seed=seed)))
    per_unit = float(problem.algorithm.lr_sample) / problem.network.width
    return Sizes(
        corrector=per_unit,
        ratio=float(corrector / population),
        step=per_unit / d,
        fluctuation=float(np.sqrt(per_unit * max(1.0, per_unit) / d)),
        samples=d / per_unit,
    )


def classify(population: float, corrector: float, fluctuation: float, tolerance: float = 0.0) -> str:
    r"""The regime from the exponents of d of three sizes in the paper's time: both parts of the drift, and the noise.

    The larger part of the drift, of size v, sets the clock. It is v times as fast as the paper's, and in a unit of it the
    noise is smaller by :math:`\sqrt v`. An ODE needs that to vanish; which one it is, the two parts decide. Exponents that
    differ by at most `tolerance` count as equal.

    >>> classify(population=0.0, corrector=-0.5, fluctuation=-0.75)
    'gradient flow'
    """
    if fluctuation - max(population, corrector) / 2 >= -tolerance:
        return NO_LIMIT
    if abs(corrector - population) <= tolerance:
        return HIGH_DIMENSIONAL
    return GRADIENT_FLOW if corrector < population else NOISE_DOMINATED


def largest(stats: Overlaps) -> Float[Array, ""]:
    """The largest absolute value among all statistics."""
    return jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(stats)]))
