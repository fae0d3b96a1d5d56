r"""Single-index models of any information exponent: how the learning rate must scale with d, and how many samples it takes.

If p students of norm 1 have the same overlap m with one teacher, and are otherwise independent, m obeys the ODE

.. math:: \dot m = \gamma\,\phi(m) - \gamma^2\,\psi(m), \qquad
          \phi(m) = \frac ap(1-m^2)\Big[\sum_k \frac{s_k g_k}{(k-1)!}\, m^{k-1}
                    - a\,\frac{p-1}{p}\,m \sum_k \frac{s_k^2}{(k-1)!}\, m^{2(k-1)}\Big], \qquad
          \psi(m) = \frac m2\, E[G^2],

where :math:`\gamma` is the learning rate, :math:`s_k` and :math:`g_k` are the Hermite coefficients of activation and target, a
is the second layer, G the derivative of the loss :math:`\frac12(y-f)^2` with respect to a student's field, y the label and f
the output. For one unit and the smallest n with :math:`s_n g_n \ne 0`, near zero overlap

.. math:: \dot m \approx \gamma\,\frac{s_n g_n}{(n-1)!}\,m^{n-1} - \frac{\gamma^2}{2} E[G^2]\, m .

Random starts have :math:`m \sim 1/\sqrt d`. For n = 1, 2 the first term dominates there at a constant learning rate; for
:math:`n \ge 3` only if :math:`\gamma \sim d^{-(n-2)/2}`, where learning takes :math:`d^{n-1}` samples [15]_. For every
:math:`n \ge 2` the noise of SGD adds to m a variance of order 1/d before m has grown, as large as the variance of the start.

.. [15] Ben Arous, Gheissari, Jagannath, *Online stochastic gradient descent on non-convex losses from high-dimensional
   inference*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev, polynomial
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.special import betaincinv

from sgdlimits.checks import array, integer
from sgdlimits.domain import Count, Fraction, checked
from sgdlimits.errors import BadInput, check_count, check_number, check_share, is_traced
from sgdlimits.inputs import Blocks
from sgdlimits.inputs.base import refuse_noise
from sgdlimits.model.activation import Activation, FunctionActivation
from sgdlimits.model.expansion import MAX_HERMITE_ORDER, expand_in_hermite, target_function
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps

GRID_POINTS = 65
"""Number of overlaps between start and end at which the sign of the drift is checked and the best learning rate computed."""
MAX_SERIES_OVERLAP = 0.5
"""Overlap below which the population drift is summed from Hermite coefficients, which is accurate however small the overlap."""
ZERO_COEFFICIENT = 1e-8
"""Size of a Hermite coefficient, relative to the norm of the function, below which it counts as zero."""
MIN_RELATIVE_DRIFT = 1e-9
"""Total drift, relative to the population drift, below which the total drift counts as zero and the overlap does not grow."""
INTERPOLATION_DEGREE, INTEGRATION_CELLS = 32, 4000
"""Degree of the interpolation in the overlap, and number of cells in the integrals for the exit time with SGD's noise."""


def _check_cosines(name: str, value: Any) -> Any:
    """Check that a value is a one-dimensional array of floats from -1 to 1."""
    array(ndim=1)(name, value)
    if not is_traced(value) and (np.abs(value) > 1 + 1e-12).any():
        raise BadInput(f"{name} must be cosines, from -1 to 1; got {np.max(np.abs(value)):g}. Divide overlaps by norms.")
    return np.asarray(value, float) if isinstance(value, (list, tuple)) else value


@checked
def samples(exponent: Count, d: Count | ArrayLike) -> np.ndarray | float:
    r"""Return the order of the number of samples to learn at information exponent n = 1, 2, more: d, d log d, :math:`d^{n-1}`.

    >>> samples(3, 1000.0)
    1000000.0
    """
    x = np.asarray(d, float)
    grown = x if exponent == 1 else x * np.log(x) if exponent == 2 else x ** (exponent - 1)
    return grown if grown.ndim else float(grown)


@checked
def start_quantile(d: Annotated[int, integer(at_least=2)], share: Fraction = 0.5) -> float:
    r"""Return the quantile for `share` of the absolute overlap m of random starts in dimension d; :math:`m^2` has a beta law.

    The median exit time of the ODE over random starts (of the sign that learns) is the exit time from the quantile 1/2.

    >>> round(start_quantile(10**6) * 1000, 4)          # that of a normal number
    0.6745
    """
    return float(np.sqrt(betaincinv(0.5, (d - 1) / 2, share)))


@checked
def recommended_lr(problem: ProjectionProblem, d: Annotated[int, integer(at_least=2)], overlap: Fraction = 0.5) -> float:
    r"""Return a learning rate with which one-pass SGD reaches an overlap with one teacher after about the fewest samples.

    At the overlap m the drift :math:`\gamma\phi - \gamma^2\psi`, population drift and corrector, is largest at the learning
    rate :math:`\gamma = \phi/2\psi`. The recommended learning rate is the smallest of these rates along the path,

    .. math:: \gamma = \min_{1/\sqrt d \,\le\, m \,\le\, \text{overlap}} \frac{\phi(m)}{2\,\psi(m)},

    the largest rate at which the corrector nowhere exceeds half of the population drift. It tends to a constant as d grows
    for information exponents 1 and 2, and falls as :math:`d^{-(n-2)/2}` for an exponent :math:`n \ge 3`.

    Students start with equal norms, second-layer weights and overlaps. Off the sphere m is the cosine with the teacher, at the
    norms of the start; a trained second layer is taken at its start. Two effects are neglected. First, SGD's own noise: for
    :math:`n \ge 3` it carries runs over the corrector's barrier, and rates a few times larger need still fewer samples, by a
    factor independent of d (computed by `theory.single_index.exit_time` with ``noise=True``). Second, learning beyond
    `overlap`: with label noise the final risk is smaller at smaller rates, and wide networks may learn at smaller rates only
    (`theory.mediocrity.usable_lr`).

    For phase retrieval by one unit with label noise of variance :math:`\Delta` the result is
    :math:`1/(12 + \Delta/(1-\text{overlap}^2))`: 1/12 without noise, and `theory.mediocrity.optimal_lr` for small `overlap`.

    Parameters
    ----------
    problem : one teacher, any width, activation, target and noise; its own learning rate does not matter
    d : dimension, which sets the typical overlap :math:`1/\sqrt d` of a random start
    overlap : final overlap, between :math:`1/\sqrt d` and 1; `BadInput` is raised if no rate reaches it

    >>> import sgdlimits as sl
    >>> round(1 / recommended_lr(sl.presets.phase_retrieval(), d=1000), 9)
    12.0
    >>> cubic = sl.presets.single_index("he3")
    >>> round(recommended_lr(cubic, d=100) / recommended_lr(cubic, d=10_000), 2)
    9.88
    """
    _check_problem(problem)
    if overlap**2 * d <= 1:
        raise BadInput(
            f"overlap must be above that of a random start, 1/sqrt(d) = {d**-0.5:.3g}; got {overlap:g}. Give a larger overlap."
        )
    drift = _EqualOverlapsDrift.from_problem(problem, overlap)
    sign, way = _find_growing_sign(drift, d**-0.5), np.geomspace(d**-0.5, overlap, GRID_POINTS)
    population, corrector = (sign * part for part in drift.population_and_corrector(sign * way))
    if (population <= 0).any():
        raise BadInput(
            f"the overlap does not grow beyond {way[population <= 0][0]:.3g} at any learning rate, so that it never reaches "
            f"{overlap:g}. Give a smaller overlap, or a student with the target's activation."
        )
    return float(problem.algorithm.lr_sample * problem.algorithm.batch) * float((population / (-2 * corrector)).min())


@checked
def exit_time(
    problem: ProjectionProblem,
    d: Annotated[float, integer(at_least=2)] | ArrayLike,
    overlap: Fraction | ArrayLike,
    start: float | ArrayLike | None = None,
    noise: bool = False,
):
    r"""Return the time in which one unit's overlap grows from its start to a given value, in samples per dimension.

    For the ODE of the overlap m, with learning rate :math:`\gamma`, population drift :math:`\phi`, corrector :math:`\psi` and
    start :math:`m_0`, the time is

    .. math:: t = \int_{m_0}^{\text{overlap}} \frac{dm}{\gamma\phi(m) - \gamma^2\psi(m)} .

    With SGD's noise it is the mean first-passage time of :math:`dm = b\,dt + \sqrt{a/d}\,dB` (the SDE), which solves

    .. math:: \frac{a}{2d}\,\theta'' + b\,\theta' = -1, \qquad \theta(\pm\text{overlap}) = 0, \qquad \theta(m_0) = E\,t .

    The time is an array if an argument is an array, and infinite if the ODE does not reach the overlap. For information
    exponents of 2 and more the noise is of the order of the initial overlap, and never negligible. For odd exponents some runs
    lose their initial overlap to noise and exit late, so that the mean is well above the median. `theory.mediocrity.exit_time`
    has the time for phase retrieval at any width, averaged over random starts.

    Parameters
    ----------
    problem : one unit and one teacher, on the sphere, its second layer fixed
    d : dimension
    overlap : final overlap, in absolute value, between 0 and 1
    start : initial overlap; by default the typical :math:`1/\sqrt d`, with the sign that learns
    noise : whether to include SGD's own noise

    >>> import sgdlimits as sl
    >>> problem = sl.presets.single_index("he2", lr=1 / 12)
    >>> round(exit_time(problem, d=1000, overlap=0.5), 4)                         # 3 log(m^2 (1-m0^2)/m0^2 (1-m^2))
    17.4244
    >>> round(exit_time(problem, d=1000, overlap=0.5, noise=True), 3)
    18.648
    """
    _check_problem(problem)
    if problem.network.width > 1 or not problem.sphere or problem.trains_second:
        raise BadInput(
            "exit_time needs one unit on the sphere with a fixed second layer, where the overlap is the whole state. "
            "Use simulate with ODE() and until= for other problems."
        )
    end = max(check_share("overlap", each) for each in np.ravel(overlap))
    drift = _EqualOverlapsDrift.from_problem(problem, end)
    variance = _interpolate(increment_variance(problem, jnp.asarray(_interpolation_nodes(end))), end) if noise else None

    def time_at(d, overlap, start):
        """Return the exit time for one dimension d, one final overlap and one initial overlap."""
        d = check_count("d", d, at_least=2)
        if start is None:
            start = _find_growing_sign(drift, d**-0.5) * d**-0.5
        check_number("start", start, above=-1, below=1)
        # already there
        if abs(start) >= overlap:
            return 0.0
        if variance is None:
            return _compute_ode_time(drift, start, overlap)
        return _compute_mean_passage(drift, variance, d, start, overlap)

    # drift and variance are tabulated once, outside of the loop over points
    times = np.vectorize(time_at, otypes=[float])(d, overlap, start)
    return times if times.ndim else float(times)


class _PopulationSeries(NamedTuple):
    r"""Population drift of the overlap as a power series, from the Hermite coefficients of student and target.

    `joint_coefficients` = :math:`s_k g_k/k!` and `own_coefficients` = :math:`s_k^2/k!`, for the coefficients :math:`s_k` of the
    student and :math:`g_k` of the target.
    """

    joint_coefficients: np.ndarray
    own_coefficients: np.ndarray
    factor: float
    norm_weight: float

    @classmethod
    def from_problem(cls, problem: ProjectionProblem) -> _PopulationSeries | None:
        """Return the power series of the overlap's drift for a problem with squared loss; None for other losses."""
        target, law = target_function(problem.target, problem.data), problem.initial
        p, unit = problem.network.width, problem.network.activation
        if not isinstance(problem.loss, SquaredLoss):
            return None
        # fields of units of another norm: expand s(norm z)
        norm = law.scale * float(problem.data.squared_length) ** 0.5
        student = unit if norm == 1 else FunctionActivation(lambda field: unit(norm * jnp.asarray(field)), smooth=False)
        s, g = _normalised_coefficients(student), _normalised_coefficients(target)
        lr = 2 * problem.loss.weight * float(problem.algorithm.lr_sample)
        return cls(s * g, s * s, lr * law.second / (p * float(law.scale) ** 2), law.second * (p - 1) / p)

    def __call__(self, m: np.ndarray) -> np.ndarray:
        slope = lambda c, x: polynomial.polyval(x, polynomial.polyder(c))
        return (
            self.factor
            * (1 - m**2)
            * (slope(self.joint_coefficients, m) - self.norm_weight * m * slope(self.own_coefficients, m**2))
        )


class _EqualOverlapsDrift(NamedTuple):
    """Drift of the overlap m with the teacher, which is the same for all students, interpolated on [-end, end]."""

    population: Callable[[np.ndarray], np.ndarray]
    corrector: Callable[[np.ndarray], np.ndarray]
    series: _PopulationSeries | None

    @classmethod
    def from_problem(cls, problem: ProjectionProblem, end: float) -> _EqualOverlapsDrift:
        """Evaluate the drift of a problem at interpolation nodes in [-end, end]."""
        refuse_noise(problem.data, "the drift of one overlap")
        if isinstance(problem.data, Blocks):
            raise BadInput(
                "the drift of one overlap is not available for inputs with variances by block or class. Use problem.drift."
            )
        population, corrector = drift_parts(problem, jnp.asarray(_interpolation_nodes(end)))
        return cls(_interpolate(population, end), _interpolate(corrector, end), _PopulationSeries.from_problem(problem))

    def __call__(self, m: np.ndarray) -> np.ndarray:
        population, corrector = self.population_and_corrector(m)
        return population + corrector

    def population_and_corrector(self, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return population drift and corrector at overlaps m, at the problem's own learning rate."""
        population = self.population(m)
        if self.series is not None:
            # quadrature loses the drift of order m^(n-1) at tiny overlaps; the series does not
            population = np.where(np.abs(m) <= MAX_SERIES_OVERLAP, self.series(m), population)
        return population, self.corrector(m)


def _normalised_coefficients(activation: Activation) -> np.ndarray:
    r"""Return the Hermite coefficients of an activation, the k-th over :math:`\sqrt{k!}`, with rounding errors set to zero."""
    strengths, size = expand_in_hermite(activation, MAX_HERMITE_ORDER)
    return np.where(np.abs(strengths) > ZERO_COEFFICIENT * size, strengths, 0.0)


@checked
@eqx.filter_jit
def drift_parts(
    problem: ProjectionProblem, m: Annotated[Float[Array, " n"], _check_cosines]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return two parts of the drift of the cosine m between equal students and the teacher: population drift and corrector."""
    law, p, norm = problem.initial, problem.network.width, jnp.sqrt(problem.target.gram[0, 0])

    def parts_at(m):
        # equal students: cosine m with the teacher, and m^2 with each other
        Q = law.scale**2 * (m**2 + (1 - m**2) * jnp.eye(p))
        stats = Overlaps(jnp.full(p, law.second), jnp.full((p, 1), m * law.scale * norm), Q)
        return tuple(
            (change.M[:, 0] / (law.scale * norm) - m * jnp.diagonal(change.Q) / (2 * law.scale**2)).mean()
            for change in problem.drift_parts(stats)
        )

    return problem.numerics.over_runs(parts_at, m)


@checked
@eqx.filter_jit
def increment_variance(problem: ProjectionProblem, m: Annotated[Float[Array, " n"], _check_cosines]) -> Float[Array, " n"]:
    """Return d times the variance of the increment by one sample of one unit's overlap with the teacher, at each overlap m."""
    P = problem.target.gram

    def variance_at(m):
        stats = Overlaps(jnp.full(1, problem.initial.second), m * jnp.sqrt(P), jnp.ones((1, 1)))
        return problem.covariance(stats)[0, 0] / P[0, 0]

    return jax.lax.map(variance_at, m)


def _interpolation_nodes(end: float) -> np.ndarray:
    """Return Chebyshev points in the angle of the overlap m on [-end, end]; in the angle drifts of relu units are smooth."""
    return np.sin(np.arcsin(end) * chebyshev.chebpts1(INTERPOLATION_DEGREE + 1))


def _interpolate(values: Array, end: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function of the overlap that interpolates values at `_interpolation_nodes(end)`."""
    # fit in the angle, as `_nodes`
    reach = np.arcsin(end)
    fit = chebyshev.chebfit(chebyshev.chebpts1(INTERPOLATION_DEGREE + 1), np.asarray(values), INTERPOLATION_DEGREE)
    return lambda m: chebyshev.chebval(np.arcsin(m) / reach, fit)


def _find_growing_sign(drift: _EqualOverlapsDrift, start: float) -> int:
    """Return the sign with which overlaps grow from the start, 1 if both signs grow; raise `BadInput` if neither grows."""
    for sign in (1, -1):
        if sign * drift.population_and_corrector(np.asarray(sign * start))[0] > 0:
            return sign
    raise BadInput(
        f"the overlap does not grow from {start:.3g} at any learning rate: {_explain_no_growth(drift.series)}. "
        "Give the student another activation, or change the sign of its second layer."
    )


def _explain_no_growth(series: _PopulationSeries | None) -> str:
    """Return a clause for an error message that explains why no overlap grows from the start."""
    if series is None:
        return "the population drift points towards zero there"
    if not series.joint_coefficients[1:].any():
        return f"student and target have no Hermite coefficient in common up to order {MAX_HERMITE_ORDER}"
    first = int(np.flatnonzero(series.joint_coefficients[1:])[0]) + 1
    if first % 2 == 0 and series.factor * series.joint_coefficients[first] < 0:
        return f"the Hermite coefficients of order {first} of student and target have opposite signs"
    return "the students push each other away from it"


def _check_problem(problem: Any) -> None:
    """Raise `BadInput` unless the problem is a projection problem with a plain network."""
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(f"problem must be a projection problem; got {problem!r}. Give, say, presets.single_index('he3').")
    if not problem.network.plain:
        raise BadInput("problem must have a network with one output and no bias. Give, say, presets.single_index('he3').")


def _compute_ode_time(drift: _EqualOverlapsDrift, start: float, end: float) -> float:
    """Return the time in which the ODE carries the overlap from start to end; infinite if it does not reach the end."""
    sign, way = np.sign(start), np.geomspace(abs(start) or 1e-300, end, GRID_POINTS)
    population, corrector = (sign * part for part in drift.population_and_corrector(sign * way))
    if not sign or (population + corrector <= MIN_RELATIVE_DRIFT * population).any():
        return np.inf
    # in x = log m, as the time is logarithmic in the start
    slowness = lambda x: np.exp(x) / (sign * drift(sign * np.exp(x)))
    return float(quad(slowness, np.log(way[0]), np.log(end), epsabs=0, epsrel=1e-8, limit=500)[0])


@np.errstate(over="ignore")
def _compute_mean_passage(drift: _EqualOverlapsDrift, variance: Callable, d: int, start: float, end: float) -> float:
    r"""Return the mean time after which the overlap, as a diffusion at dimension d, leaves the interval (-end, end).

    Each side of the start gives an equation :math:`-\theta' = G\theta - g` for the slope of the mean time :math:`\theta` away
    from the start; the two slopes add up to zero.
    """
    sides = [_slope_coefficients(drift, variance, d, start, each) for each in (-end, end)]
    conductance, source = np.sum(sides, axis=0)
    return float(source / conductance) if conductance else np.inf


def _slope_coefficients(
    drift: _EqualOverlapsDrift, variance: Callable, d: int, start: float, end: float
) -> tuple[float, float]:
    r"""Return G and g in :math:`-\theta' = G\theta - g` at m = `start`, for the mean exit time :math:`\theta(m)`.

    G and g follow by recursion from the end inwards. In a cell of the width h, in which the drift b and the noise variance a
    are constant, :math:`w = -\theta'` becomes :math:`\kappa w + \mu` and :math:`\theta` decreases by :math:`e w + f`, with
    :math:`v = 2bh/a`, :math:`\kappa = e^{-v}` and coefficients :math:`\mu`, e and f. For v < 0 all coefficients are multiplied
    by :math:`e^v`, so that none is large.
    """
    # cells of the size of the noise near zero, growing geometrically beyond
    y = d**-0.5 * np.sinh(np.linspace(np.arcsinh(start * d**0.5), np.arcsinh(end * d**0.5), INTEGRATION_CELLS + 1))
    middle, h = (y[1:] + y[:-1]) / 2, np.abs(np.diff(y))
    b, a = np.sign(end - start) * drift(middle), variance(middle) / d
    v = 2 * b * h / a
    u = np.abs(v)
    # (1 - exp(-u))/u cancels for small u: a series there, and a safe argument elsewhere
    small, safe = u < 1e-3, np.maximum(u, 1e-3)
    once = np.where(small, 1 - u / 2, -np.expm1(-safe) / safe)
    twice = np.where(v > 0, 1 - once, once - np.exp(-u)) / np.where(small, 1.0, safe)
    twice = np.where(small, 0.5 - np.where(v > 0, u / 6, u / 3), twice)
    kappa, e, mu, f = np.exp(-np.maximum(v, 0)), h * once, 2 * h / a * once, 2 * h**2 / a * twice
    G, g = 1 / e[-1], f[-1] / e[-1]
    # a recursion from the end, where the time is zero
    for i in range(INTEGRATION_CELLS - 2, -1, -1):
        below = kappa[i] + G * e[i]
        G, g = np.exp(min(v[i], 0.0)) * G / below, (G * f[i] + np.exp(min(v[i], 0.0)) * g + mu[i]) / below
    return G, g
