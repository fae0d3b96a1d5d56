r"""Conditions of the limit theorem for the statistics of SGD, measured at growing dimension.

The conditions of Definition 2.1 of Ben Arous, Gheissari and Jagannath bound, on compact sets of the statistics, how fast
derivatives of the statistics and moments of one sample's gradient may grow as the step size :math:`\delta = \text{lr}\,d^{-s}`
shrinks. The bounded quantities are measured at random states for several d, and their exponents in d are compared with the
exponents that the conditions allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy.optimize import brentq

from sgdlimits.analysis.one_sample import SampleDraws, SampleLaw, sample_law_of
from sgdlimits.errors import BadInput, check_count, check_number
from sgdlimits.kernel.random import Stream
from sgdlimits.problem.base import Problem
from sgdlimits.size import check_memory
from sgdlimits.start import RandomInit
from sgdlimits.statistics.trees import select_run
from sgdlimits.text import format_table

EXPONENT_SLACK = 0.1
"""Largest excess of a measured exponent over the exponent that a condition allows at which the condition still holds."""
MAX_STANDARD_ERRORS = 2
"""Number of standard errors by which a measured exponent may exceed the exponent that a condition allows."""
MAX_CONSTANT_CHANGE = 1e-3
"""Relative change of a quantity over the largest dimensions up to which the quantity counts as constant."""
FAR_NORM, FARTHEST_NORM = 14.0, 20.0
"""Norms of normal vectors: vectors longer than the first do not occur in samples, and a moment that depends on vectors with
norms between the two counts as infinite."""
MAX_FAR_SHARE = 1e-3
MAX_EXPONENT = 40.0


@dataclass(frozen=True)
class Requirement:
    """Condition of the limit theorem: measured and allowed exponent of d, and the statistic `worst` with the largest value.

    The measured exponent is -inf for a quantity that is zero, and inf for an infinite moment. `error` is the standard error of
    the measured exponent, zero if the exponent is not an estimate.
    """

    name: str
    measured: float
    allowed_exponent: float
    worst: str
    error: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the measured exponent is at most the allowed one, up to a slack of 0.1 and two standard errors."""
        return self.measured - MAX_STANDARD_ERRORS * self.error <= self.allowed_exponent + EXPONENT_SLACK


@dataclass(frozen=True)
class Growth:
    """Power of d with which a quantity grows, -inf if the quantity is zero, and the standard error of this exponent."""

    exponent: float
    error: float = 0.0

    def above(self, exponent: float) -> bool:
        """Return whether this growth exceeds an exponent by more than a slack of 0.1 and two standard errors."""
        return self.exponent - MAX_STANDARD_ERRORS * self.error > exponent + EXPONENT_SLACK

    def reaches(self, exponent: float) -> bool:
        """Return whether this growth is at least an exponent, up to a slack of 0.1 and two standard errors."""
        return self.exponent + MAX_STANDARD_ERRORS * self.error > exponent - EXPONENT_SLACK

    def __repr__(self) -> str:
        return "zero" if self.exponent == -np.inf else f"{self.exponent:.2f} ± {self.error:.2f}"


@dataclass(frozen=True, repr=False)
class Localizability:
    r"""Measured conditions of the limit theorem with their exponents of d, the critical exponent, and the terms that remain.

    Parameters
    ----------
    conditions : conditions of Definition 2.1, in its order
    critical_exponent : the exponent s for which :math:`\frac12\sum V_{ij}\partial_i\partial_j u` grows as d^s, so that the term
        quadratic in the learning rate (corrector) is of order one at the step size lr d^-s; for unmagnified statistics u and
        the covariance V of one sample's gradient
    exponent : exponent s of the step size lr d^-s
    dimensions : dimensions at which the conditions were measured
    values : measured value of each condition at each dimension, shape (conditions, dimensions)
    drift, corrector, volatility : growth with d of :math:`\langle\nabla\Phi,\nabla u\rangle` for the population loss
        :math:`\Phi`, of :math:`\frac12\sum V_{ij}\partial_i\partial_j u`, and of :math:`JVJ^\top` for the Jacobian J of u, each
        for the statistic with the fastest growth. None if statistics are magnified, but not around a point
    """

    conditions: tuple[Requirement, ...]
    critical_exponent: float
    exponent: float
    dimensions: tuple[int, ...]
    values: np.ndarray
    drift: Growth | None
    corrector: Growth | None
    volatility: Growth | None

    @property
    def allowed(self) -> tuple[float, float]:
        """Pair of exponents of d: that at which the drift is of order one, and that at which corrector and noise are."""
        return 0.0, self.exponent

    @property
    def limit(self) -> str | None:
        """Limit at this step size: "ballistic" or "diffusive", with the remark that the corrector vanishes if so, or "none".

        The value is None if statistics are magnified, but not around a point.
        """
        if self.drift is None or self.corrector is None or self.volatility is None:
            return None
        of_drift, most = self.allowed
        if not self.passed or self.drift.above(of_drift) or self.corrector.above(most) or self.volatility.above(most):
            return "none"
        kind = "diffusive" if self.volatility.reaches(most) else "ballistic"
        return kind if self.corrector.reaches(most) else f"{kind}, without corrector"

    @property
    def passed(self) -> bool:
        """Whether every condition of the limit theorem holds."""
        return all(condition.passed for condition in self.conditions)

    def __repr__(self) -> str:
        verdict = {True: "passed", False: "FAILED"}
        rows = [("condition", "measured", "allowed", "", "worst")]
        for each in self.conditions:
            measured = {-np.inf: "zero", np.inf: "infinite"}.get(each.measured, f"{each.measured:.2f}")
            rows.append((each.name, measured, f"{each.allowed_exponent:.2f}", verdict[each.passed], each.worst))
        limit = f"; limit: {self.limit}" if self.limit else ""
        return (
            f"Localizability at step size lr d^-{self.exponent:g}: {verdict[self.passed]}; "
            f"critical exponent {self.critical_exponent:.2f}{limit}\n{format_table(rows, '<>><')}"
        )


class MomentSizes(NamedTuple):
    """Quantities that the conditions of the limit theorem bound, for each state at one dimension d."""

    hessian: Float[Array, "states n"]
    third_derivatives: Float[Array, "states n"]
    gradient: Float[Array, "states 1"]
    fourth_moment: Float[Array, "states n"]
    second_order_term_variance: Float[Array, "states n"]
    curvature: Float[Array, "states n"]
    far_moments: Float[Array, "states 2"]
    drift: Float[Array, "states n"]
    volatility: Float[Array, "states n"]


def measure_localizability(
    family: Callable[[int], Problem],
    exponent: float,
    dimensions: tuple[int, ...],
    states: int,
    samples: int,
    seed: int,
    magnify: float | Mapping[str, float],
    around: PyTree | None = None,
) -> Localizability:
    """Measure the conditions of the limit theorem at the step size lr d^-exponent; see `EffectiveDynamics.localizability`.

    The states, which represent a compact set, are statistics of random weights of norm about 1 in twice as many dimensions as
    there are directions. Around a point the deviations of the states are divided by the powers of d that magnify them, so that
    the magnified statistics are in a compact set.
    """
    given, dimensions = dimensions, tuple(sorted({check_count("d", d) for d in dimensions}))
    if len(dimensions) < 3:
        raise BadInput(f"dimensions= must have three or more entries; got {list(given)}. Give, say, (100, 1000, 10**4).")
    check_memory([("states", states), ("samples", samples)], "Take fewer samples or states.")
    laws = [sample_law_of(family(d)) for d in dimensions]
    if dimensions[0] < laws[0].span_dimension:
        raise BadInput(
            f"dimensions must be at least {laws[0].span_dimension}, the number of directions; got {dimensions[0]}. Give "
            f"larger dimensions."
        )
    points = RandomInit(2 * laws[0].span_dimension, scale=1.0).sample(laws[0].problem, runs=states, seed=seed)
    stream = Stream.from_seed(seed, np.arange(-(-samples // 2)))
    names = laws[0].problem.coordinates.names(select_run(points))
    powers = _fit_powers(magnify, names)
    at = lambda law, d: points if around is None else _shrink_if_infinite(law.problem, points, around, float(d) ** -powers)
    sizes = [
        _compute_moment_sizes(law, at(law, d), law.draw(stream, jnp.asarray(float(d))))
        for law, d in zip(laws, dimensions, strict=True)
    ]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *sizes)
    found = _compare_exponents(together, dimensions, names, powers, exponent)
    return replace(found, drift=None, corrector=None, volatility=None) if powers.any() and around is None else found


def _shrink_if_infinite(problem: Problem, points: PyTree, around: PyTree, scale: np.ndarray) -> PyTree:
    """Return the states `points` with their deviations from the state `around` scaled by one factor for each statistic."""
    problem.coordinates.fits(around)
    middle = problem.vector(around)
    return jax.vmap(lambda one: problem.from_vector(middle + scale * (problem.vector(one) - middle), one))(points)


def _compare_exponents(
    sizes: MomentSizes, dimensions: tuple[int, ...], names: tuple[str, ...], powers: np.ndarray, s: float
) -> Localizability:
    """Compare measured sizes (dimensions first) of statistics times d^powers with what the conditions allow."""
    d = np.asarray(dimensions, float)
    magnified = d[:, None, None] ** powers
    is_finite = np.asarray(sizes.far_moments).max((0, 1)) < MAX_FAR_SHARE
    rows = [
        ("1. second derivatives of the statistics", sizes.hessian * magnified, s / 2, True),
        ("1. third derivatives of the statistics", sizes.third_derivatives * magnified, 0.0, True),
        ("2. gradient of the population loss", sizes.gradient, 0.0, True),
        ("3. fourth moment of the first-order term", sizes.fourth_moment * magnified**4, 2 * s, is_finite[0]),
        ("3. variance of the second-order term", sizes.second_order_term_variance * magnified**2, 3 * s, is_finite[1]),
    ]
    conditions, values = [], []
    for name, value, allowed, finite in rows:
        largest = np.asarray(value).max(1)
        measured = estimate_growth_exponent(d, largest.max(1)) if finite else np.inf
        worst = names[int(largest[-1].argmax())] if measured > -np.inf and largest.shape[1] == len(names) else ""
        conditions.append(Requirement(name, measured, allowed, worst))
        values.append(largest.max(1))
    critical = estimate_growth_exponent(d, np.asarray(sizes.curvature).max((1, 2)))
    fastest = lambda value: Growth(max(estimate_growth_exponent(d, each) for each in np.asarray(value).max(1).T))
    parts = (sizes.drift * magnified, sizes.curvature * magnified, sizes.volatility * magnified**2)
    return Localizability(tuple(conditions), critical, s, dimensions, np.stack(values), *map(fastest, parts))


def estimate_growth_exponent(d: np.ndarray, value: np.ndarray) -> float:
    r"""Return the exponent c of values that grow as :math:`A + B d^c`, from the values at the three largest d.

    The constant A is needed because the squared length of inputs has a part of order one along the class means, besides
    :math:`\sigma^2 d` orthogonal to them. Values that do not increase are compared with a power law :math:`B d^c` instead.

    >>> estimate_growth_exponent(np.array([10.0, 100.0, 1000.0]), np.array([7.0, 25.0, 205.0])).__round__(6)
    1.0
    """
    if not np.isfinite(value).all():
        return np.inf
    if value[-1] <= 0:
        return -np.inf
    low, middle, high = value[-3:]
    if np.ptp(value[-3:]) <= MAX_CONSTANT_CHANGE * value.max():
        return 0.0
    d1, d2, d3 = d[-3:]
    line = float(np.log(high / middle) / np.log(d3 / d2)) if middle > 0 else np.inf
    if not high > middle > low:
        return line
    ratio = lambda c: np.expm1(c * np.log(d3 / d2)) / -np.expm1(-c * np.log(d2 / d1))
    excess = lambda c: ratio(c) - (high - middle) / (middle - low)
    return float(brentq(excess, 1e-6, MAX_EXPONENT)) if excess(1e-6) < 0 < excess(MAX_EXPONENT) else line


@eqx.filter_jit
def _compute_moment_sizes(sample: SampleLaw, points: PyTree, near: SampleDraws) -> MomentSizes:
    far, weights, outer = _far_draws(near)
    draws = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-1), near, far)
    count = weights.size

    def one(stats):
        terms = sample.terms(stats, draws)
        first, second = terms.first_order_terms[:, :count], 2 * terms.second_order_terms[:, :count]
        gradient = jnp.sqrt((terms.gradient[:, :count].mean(1) ** 2).sum())[None]
        fourth = ((first - first.mean(1, keepdims=True)) ** 4).mean(1)
        far = [
            _compute_far_share(terms.first_order_terms[:, count:] ** 4, weights, outer),
            _compute_far_share(terms.second_order_terms[:, count:] ** 2, weights, outer),
        ]
        problem = sample.problem
        return MomentSizes(
            *sample.derivatives(stats), gradient, fourth, second.var(1), jnp.abs(second.mean(1)) / 2, jnp.stack(far),
            jnp.abs(problem.vector(problem.drift_parts(stats)[0])), first.var(1),
        )  # fmt: skip

    return jax.vmap(one)(points)


def _far_draws(draws: SampleDraws) -> tuple[SampleDraws, Float[Array, " samples"], Float[Array, " samples"]]:
    """Return draws rescaled to norms up to `FARTHEST_NORM`, their importance weights, and a mask of norms above `FAR_NORM`."""
    rows, count = draws.points.shape
    length = FARTHEST_NORM * (jnp.arange(count) + 0.5) / count
    points = draws.points * (length / jnp.sqrt((draws.points**2).sum(0)))
    return draws._replace(points=points), jnp.exp((rows - 1) * jnp.log(length) - length**2 / 2), length > FAR_NORM


def _compute_far_share(values: Float[Array, "n samples"], weights, outer) -> Float[Array, ""]:
    """Return the share of a weighted mean of values that the samples in the mask `outer` contribute, the largest over rows."""
    parts = values * weights
    total = parts.sum(1)
    return jnp.nan_to_num((parts * outer).sum(1) / jnp.where(total == 0, 1.0, total), nan=1.0).max()


def _fit_powers(magnify: float | Mapping[str, float], names: tuple[str, ...]) -> np.ndarray:
    """Return, for each statistic, the exponent e of the factor d^e by which the statistic is multiplied."""
    if not isinstance(magnify, Mapping):
        check_number("magnify", magnify, at_least=0)
        return np.full(len(names), float(magnify))
    kinds = [name.split("[")[0] for name in names]
    for kind, power in magnify.items():
        if kind not in kinds:
            known = ", ".join(sorted(set(kinds)))
            raise BadInput(f"magnify= names {kind!r}, which is not a statistic of the problem. The statistics are {known}.")
        check_number(f"magnify[{kind!r}]", power, at_least=0)
    return np.array([float(magnify.get(kind, 0.0)) for kind in kinds])
