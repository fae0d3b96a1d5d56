r"""The limit of SGD when the width and the learning rate are powers of the dimension [5]_.

With :math:`p = d^\kappa` units and the learning rate :math:`\gamma = d^{-\delta}` one step of SGD changes the statistics by

.. math:: \Delta\Omega = \frac{\gamma}{dp}\,\psi_{\rm GF} + \frac{\gamma^2}{dp^2}\,\psi_{\rm noise},

where both :math:`\psi` are of order 1. A step takes :math:`\gamma/(dp)` of the paper's time, and only
:math:`\gamma/p = d^{-(\kappa+\delta)}` matters:

- :math:`\kappa+\delta > 0`: the noise term vanishes relative to the other, and gradient flow on the population risk remains;
- :math:`\kappa+\delta = 0`: both terms remain (Saad and Solla);
- :math:`-\frac12 < \kappa+\delta < 0`: the noise term is the larger one. On its time scale, :math:`\gamma^2/(dp^2)` a step,
  it has an ODE, in which the norms grow and nothing is learnt;
- :math:`\kappa+\delta \le -\frac12`: a step does not become small even on that time scale, and there is no ODE.

Where :math:`\kappa > 0` as well as :math:`\kappa+\delta > 0`, the overlaps between students follow from the other statistics
up to :math:`p^{-1/2} + d^{-1/2}` (mean field). On the line they do not: the noise term correlates students.

.. [5] Loureiro, *Dimension-free limits of SGD for two-layers neural networks*, slides, with the theorems of Veiga, Stephan,
   Loureiro, Krzakala, Zdeborová (2022) and of Arnaboldi, Stephan, Krzakala, Loureiro (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sgdlimits.checks import check_each, integer
from sgdlimits.domain import Count, NotNegative, NotNegativeInTime, RealArray, Seed, Teachers, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.gaussian import Sobol
from sgdlimits.problem import ProjectionProblem, presets
from sgdlimits.problem.projection import linear_increments
from sgdlimits.renamed import names_of
from sgdlimits.size import check_memory
from sgdlimits.start import FixedInit, RandomInit
from sgdlimits.statistics import Overlaps
from sgdlimits.statistics.trees import add, repeat_for_samples
from sgdlimits.text import format_table

__getattr__ = names_of("sgdlimits.theory.regimes")

# by falling kappa + delta
REGIMES = ("gradient flow", "high-dimensional", "noise-dominated", "no limit")
GRADIENT_FLOW, HIGH_DIMENSIONAL, NOISE_DOMINATED, NO_LIMIT = REGIMES
LINE_TOLERANCE = 1e-12
"""Distance of a sum of exponents from a line below which it lies on the line: 0.1 + 0.2 - 0.3 is not exactly zero."""
INCREMENT_SAMPLES = Sobol(log2_points=9)
"""Quadrature rule for the standard deviation of the one-sample increments."""


class Regime(NamedTuple):
    r"""Limit of SGD at width d^kappa and learning rate d^-delta.

    It has a name and the exponents of d that decide it. Here p is the width and :math:`\gamma` the learning rate.

    Parameters
    ----------
    name : "gradient flow", "high-dimensional", "noise-dominated" or "no limit"
    mean_field : whether the width grows and the noise term vanishes, so that overlaps between students follow from the other
        statistics
    level : constructor of the level to use; None if only `Chain` and `SGD` are right. `ODE()` is right also where noise
        dominates: its population term is then the small one. `ODE(corrector=False)` is an alternative to `MeanField()`
    corrector : exponent of :math:`\gamma/p`, the noise term relative to the population term
    step : exponent of :math:`\gamma/(dp)`, one step in the paper's time
    fluctuation : exponent of the bound :math:`\sqrt{\delta t}` on the distance between SGD and the ODE, where
        :math:`\delta t` is the larger of :math:`\gamma/(dp)` and :math:`\gamma^2/(dp^2)`, after a time of order 1 in its units
    samples : exponent of :math:`dp/\gamma`, the samples in a unit of the paper's time
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
        rows = format_table([(words, f"d^{power:.4g}") for words, power in powers.items()], indent="  ")
        return f"{self.name}: {self.level or 'Chain(d) or SGD(d)'}{more}\n{rows}"


class Sizes(NamedTuple):
    r"""Sizes of corrector, step and fluctuations for one problem in dimension d, on which the limit of SGD depends.

    Here p is the width and :math:`\gamma` the learning rate; the corrector is the part of the drift quadratic in
    :math:`\gamma`.

    Parameters
    ----------
    corrector : :math:`\gamma/p`, the order of the noise term relative to the population term
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
        return format_table((name, f"{value:.4g}") for name, value in zip(words, self, strict=True))


@checked
def regime(kappa: NotNegative, delta: float) -> Regime:
    r"""Return the limit of SGD by formula, for d^kappa units at the learning rate d^-delta.

    `phase_diagram` measures the limit instead.

    Parameters
    ----------
    kappa : :math:`\kappa \ge 0`, zero at constant width
    delta : :math:`\delta`, zero at a constant learning rate

    >>> print(regime(kappa=0, delta=0))
    high-dimensional: ODE()
      corrector / population    d^0
      step in the paper's time  d^-1
      fluctuations              d^-0.5
      samples in a unit of it   d^1
    >>> regime(kappa=0.5, delta=-0.75).name
    'noise-dominated'
    """
    total = float(kappa) + float(delta)
    total = 0.0 if abs(total) <= LINE_TOLERANCE else total
    mean_field = kappa > 0 and total > 0
    level: str | None
    if total > 0:
        name, level = GRADIENT_FLOW, "MeanField()" if mean_field else "ODE(corrector=False)"
    elif total == 0:
        name, level = HIGH_DIMENSIONAL, "ODE()"
    elif total > -1 / 2 + LINE_TOLERANCE:
        name, level = NOISE_DOMINATED, "ODE()"
    else:
        name, level = NO_LIMIT, None
    # the larger of gamma/(dp) and gamma^2/(dp^2), under the root
    fluctuation = (-1 - min(total, 2 * total)) / 2
    return Regime(name, mean_field, level, 0.0 - total, -1 - total, fluctuation, 1 + total)


@checked
def term_sizes(problem: ProjectionProblem, d: Count, *, seed: Seed = 0) -> Sizes:
    """Return the `Sizes` of one problem in dimension d.

    The ratio of corrector to population drift is taken at a random start.

    >>> import sgdlimits as sl
    >>> sizes = term_sizes(sl.presets.phase_retrieval(width=4, lr=0.2, noise=0.1), d=1000)
    >>> round(sizes.corrector, 6), round(sizes.samples)
    (0.05, 20000)
    """
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(
            f"problem must be a ProjectionProblem; got {type(problem).__name__}. Use, for instance, presets.committee."
        )
    start = RandomInit(d)
    d, (population, corrector) = start.d, map(largest_entry, problem.drift_parts(start.one(problem, seed=seed)))
    per_unit = float(problem.algorithm.lr_sample) / problem.network.width
    return Sizes(
        corrector=per_unit,
        ratio=float(corrector / population),
        step=per_unit / d,
        fluctuation=float(np.sqrt(per_unit * max(1.0, per_unit) / d)),
        samples=d / per_unit,
    )


@checked
def classify(population: float, corrector: float, fluctuation: float, tolerance: NotNegative = 0.0) -> str:
    r"""Return the name of a regime, given the exponents of d of population drift, corrector and noise in the paper's time.

    The larger part of the drift, of size v, sets the time scale, v times as fast as the paper's; in its unit the noise is
    smaller by :math:`\sqrt v`. An ODE exists if that vanishes, and the two parts decide which one. Exponents that differ by at
    most `tolerance` count as equal.

    >>> classify(population=0.0, corrector=-0.5, fluctuation=-0.75)
    'gradient flow'
    """
    if fluctuation - max(population, corrector) / 2 >= -tolerance:
        return NO_LIMIT
    if abs(corrector - population) <= tolerance:
        return HIGH_DIMENSIONAL
    return GRADIENT_FLOW if corrector < population else NOISE_DOMINATED


@checked
def largest_entry(stats: Overlaps) -> Float[Array, ""]:
    """Return the largest absolute value among all entries of the overlaps."""
    return jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(stats)]))


@checked
def phase_diagram(
    kappas: RealArray,
    deltas: RealArray,
    *,
    widths: Annotated[Sequence[int], check_each(integer())] = (4, 8, 16),
    teachers: Teachers = 2,
    noise: NotNegativeInTime = 1.0,
    overlap: RealArray = 0.1,
    tolerance: NotNegative = 0.1,
) -> xr.Dataset:
    r"""Compute the regimes over a grid of exponents, from the drift and the one-sample increments of erf committees.

    Here :math:`\kappa` and :math:`\delta` are the exponents of the width and of the inverse learning rate, and p is the width.

    At each :math:`\kappa` the networks have the given widths in :math:`d = p^{1/\kappa}` dimensions; at :math:`\kappa = 0` all
    have the first width, and d is :math:`10^4, 10^6, \dots` At each :math:`\delta` their learning rate is :math:`d^{-\delta}`.
    Three sizes are taken in a unit of the paper's time: the largest entries of the population drift and of the corrector, and
    the largest standard deviation of the sum of all increments. A fit of each gives its exponent of d, and `classify` the
    regime; :math:`\kappa` and :math:`\delta` enter through the problems alone. The dataset over (kappa, delta) has `regime` and
    the exponents `population`, `corrector` and `fluctuation`.

    Parameters
    ----------
    kappas, deltas : the grid
    widths : at least two, increasing; wider ones cost more and have exponents nearer to their limits
    teachers, noise : number of teachers and label noise of the committee
    overlap : overlap of every student with every teacher, at the state where the sizes are measured (`FixedInit`)
    tolerance : largest difference at which exponents count as equal

    >>> found = phase_diagram(kappas=[0.0], deltas=[-0.75, -0.25, 0.0, 0.5], widths=(1, 2))
    >>> found.regime.values[0].tolist()
    ['no limit', 'noise-dominated', 'high-dimensional', 'gradient flow']
    """
    kappa, delta = _check_exponents("kappas", kappas), _check_exponents("deltas", deltas)
    if (kappa < 0).any():
        raise BadInput(f"kappas must be at least 0; got {kappa.min():g}. Give exponents of at least 0.")
    checked = np.array([check_count("widths", width) for width in widths])
    if checked.size < 2 or (np.diff(checked) <= 0).any():
        raise BadInput(f"widths must be at least two increasing widths; got {list(widths)}. Give, for instance, (4, 8, 16).")
    memory = [("kappas", kappa.size), ("deltas", delta.size), ("widths", checked.size), ("numbers", 8)]
    check_memory(memory, "Take a coarser grid.")
    p = np.where(kappa[:, None] > 0, checked, checked[0])
    # at kappa = 0 the width is constant, and d grows by factors of 100
    d = np.where(
        kappa[:, None] > 0, p ** (1 / np.where(kappa > 0, kappa, 1.0))[:, None], 10.0 ** (4 + 2 * np.arange(p.shape[1]))
    )
    lr = d[:, None, :] ** -delta[:, None]
    sizes = np.empty((3, *lr.shape))
    for width in np.unique(p):
        problem = presets.committee(int(width), teachers, noise=noise)
        here = np.broadcast_to((p == width)[:, None], lr.shape)
        start = FixedInit(jnp.asarray(overlap)).one(problem)
        sizes[:, here] = np.stack(_measure_sizes(problem, start, jnp.asarray(lr[here])))
    # fluctuations of a sum of d increments of size 1/d
    sizes[2] /= np.sqrt(d)[:, None]
    # least-squares slopes of log size against log d
    x = (np.log(d) - np.log(d).mean(-1, keepdims=True))[:, None]
    slopes = (x * np.log(sizes)).sum(-1) / (x**2).sum(-1)
    grid = ("kappa", "delta")
    return xr.Dataset(
        {"regime": (grid, np.vectorize(classify)(*slopes, tolerance))}
        | {name: (grid, slope) for name, slope in zip(("population", "corrector", "fluctuation"), slopes, strict=True)},
        coords={"kappa": kappa, "delta": delta},
        attrs={"widths": list(widths), "teachers": teachers, "noise": noise, "overlap": overlap, "tolerance": tolerance},
    )


@eqx.filter_jit
def _measure_sizes(problem: ProjectionProblem, stats: Overlaps, lr: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
    """Return at each learning rate the sizes of population drift, corrector and noise, the last times sqrt(d)."""

    def sizes_at(lr):
        """Return the sizes of drift, corrector and noise at one learning rate, in the paper's time."""
        # the rate is traced: one compilation for all exponents
        other = eqx.tree_at(lambda problem: problem.algorithm.lr, problem, lr)
        population, corrector = map(largest_entry, other.drift_parts(stats))
        return (
            population / other.rate,
            corrector / other.rate,
            largest_entry(_increment_deviation(other, stats)) / jnp.sqrt(other.rate),
        )

    return jax.lax.map(sizes_at, lr)


def _increment_deviation(problem: ProjectionProblem, stats: Overlaps) -> Overlaps:
    """Return the standard deviation of d times the one-sample increment of the overlaps, entry by entry."""
    law, column, c = problem.model.law(stats), jax.tree.map(lambda leaf: leaf[..., None], stats), jnp.asarray(0)
    F = law.triangular_factor()

    def increment_and_square(points):
        """Return the increment and its square at each quadrature point."""
        fields, fixed, z = law.fields_at(F, points, c)
        products = problem.model.products(fields, fixed, repeat_for_samples(stats.a, fields.shape[1]), z, c)
        each = add(*linear_increments(problem, column, products))
        return each, jax.tree.map(jnp.square, each)

    mean, square = INCREMENT_SAMPLES.average(increment_and_square, problem.network.width + problem.target.teachers + 1)
    return jax.tree.map(lambda mean, square: jnp.sqrt(square - mean**2), mean, square)


def _check_exponents(name: str, values: ArrayLike) -> np.ndarray:
    """Convert exponents to a one-dimensional array, or raise `BadInput` unless they are finite numbers."""
    try:
        exponents = np.array(values, float, ndmin=1)
    except (TypeError, ValueError):
        exponents = np.array([np.nan])
    if exponents.ndim != 1 or not exponents.size or not np.isfinite(exponents).all():
        raise BadInput(f"{name} must be finite numbers; got {values!r}. Give, for instance, [0.0, 0.5, 1.0].")
    return exponents
