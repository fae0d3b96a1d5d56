r"""Conditions of the limit theorem for a user's loss and sampler: exponents of d, fitted over a family of dimensions.

The theorem is that of Ben Arous, Gheissari and Jagannath (Definition 2.1). The statistics have equal values at every d: weights
are drawn and moved until they have the statistics of the weights at the smallest d. Operator norms of derivatives by the n
weights are computed by power iteration, without arrays of size n x n.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.optimize import least_squares

from sgdlimits.analysis.localizability import Growth, Localizability, Requirement
from sgdlimits.analysis.sampled.lift import find_weights_near
from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import SAMPLE_GROUPS, SampleMoments, moments
from sgdlimits.jaxtools import jit_bound
from sgdlimits.text import format_table

POWER_ITERATION_COUNT = 40
POWER_ITERATION_STARTS = 3
"""Number of random starts of each power iteration, of whose results the largest is taken."""
MAX_MISFIT_ERRORS = 2.5
"""Number of standard errors by which a power law in d may miss a value before a constant is added to the power law."""
MIN_DETECTION_ERRORS = 4
"""Number of standard errors from zero below which a value at the largest d counts as zero."""
MAX_ZERO_VALUE = 1e-12
FOURTH_MOMENT_NAME, SECOND_ORDER_VARIANCE_NAME = (
    "3. fourth moment of the first-order term",
    "3. variance of the second-order term",
)
RATE_NAMES = ("drift", "corrector", "volatility")
NONNEGATIVE_NAMES = (FOURTH_MOMENT_NAME, SECOND_ORDER_VARIANCE_NAME, "volatility")
"""Names of the measured quantities that are averages of squares, and so vanish only if every sample vanishes."""


@dataclass(frozen=True, repr=False)
class SampledLocalizability(Localizability):
    r"""Conditions of the limit theorem with fitted exponents of d and their errors, and the limit that exists as d grows.

    Parameters
    ----------
    value_errors : standard errors of `values`
    slowed : power of d by which time is slowed: a unit of time is d^(s + slowed) samples at the step size lr d^-s
    """

    value_errors: np.ndarray
    slowed: float = 0.0

    @property
    def allowed(self) -> tuple[float, float]:
        """Exponents of d, in the slowed unit of time, at which the drift and at which the noise are of order one."""
        return -self.slowed or 0.0, self.exponent - self.slowed

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Names of conditions on moments with heavy tails, which may be infinite and which the samples hardly determine."""
        parts = zip(self.conditions, self.values, self.value_errors, strict=False)
        return tuple(
            each.name
            for each, value, error in parts
            if each.name in NONNEGATIVE_NAMES and (error > np.abs(value) / MIN_DETECTION_ERRORS).any()
        )

    def __repr__(self) -> str:
        verdict = {True: "passed", False: "FAILED"}
        rows = [("condition", "measured", "allowed", "", "worst")]
        for each in self.conditions:
            rows.append(
                (
                    each.name,
                    repr(Growth(each.measured, each.error)),
                    f"{each.allowed_exponent:.2f}",
                    verdict[each.passed],
                    each.worst,
                )
            )
        of_drift, most = self.allowed
        parts = (("drift", self.drift, of_drift), ("corrector", self.corrector, most), ("noise", self.volatility, most))
        rows += [(f"limit of the {name}", repr(growth), f"{most:.2f}", "", "") for name, growth, most in parts]
        note = ""
        if self.uncertain:
            names = " and ".join(name.partition(" ")[2] for name in self.uncertain)
            note = f"\nThe samples hardly determine the {names}: with tails as heavy it may be infinite. Give more samples."
        return (
            f"Localizability at step size lr d^-{self.exponent:g}: {verdict[self.passed]}; critical exponent "
            f"{self.critical_exponent:.2f}; limit: {self.limit}\n{format_table(rows, '<>><')}{note}"
        )


@dataclass(frozen=True)
class MeasuredValues:
    """Values and standard errors of a quantity, one row per state and one column per statistic."""

    value: np.ndarray
    error: np.ndarray

    @property
    def largest(self) -> tuple[np.ndarray, np.ndarray]:
        """Largest value of each statistic over the states, and the standard error of the largest value."""
        at = self.value.argmax(0), np.arange(self.value.shape[1])
        return self.value[at], self.error[at]


def family_report(
    users: list[UserLoss], drawn: list[np.ndarray], exponent: float, slowed: float, samples: int, seed: int
) -> SampledLocalizability:
    """Measure the conditions of the limit theorem for a user's loss at increasing dimensions.

    `users` has the user's functions at each dimension, and `drawn` an array of weights at each dimension, one row per state.
    """
    dimensions = tuple(user.d for user in users)
    at_all = []
    targets = np.asarray(jax.vmap(users[0].u)(drawn[0]))
    for user, rows in zip(users, drawn, strict=True):
        moved, found = find_weights_near(user, rows, targets)
        rows = np.where(found[:, None], moved, rows)
        at_all.append(_measure_quantities(user, rows, moments(user, rows, samples, jax.random.key(seed))))
    names, d = users[0].names, np.array(dimensions, float)
    allowed = {
        "1. second derivatives of the statistics": exponent / 2,
        "1. third derivatives of the statistics": 0.0,
        "2. gradient of the population loss": 0.0,
        FOURTH_MOMENT_NAME: 2 * exponent,
        SECOND_ORDER_VARIANCE_NAME: 3 * exponent,
    }
    fits, values, errors, worst = {}, [], [], {}
    for part in at_all[0]:
        value, error = (np.stack(each) for each in zip(*(here[part].largest for here in at_all), strict=True))
        each = [fit_growth(d, value[:, i], error[:, i], part in NONNEGATIVE_NAMES) for i in range(value.shape[1])]
        top = int(np.argmax([growth.exponent for growth in each])) if part in RATE_NAMES else int(value[-1].argmax())
        fits[part] = each[top]
        worst[part] = names[top] if value.shape[1] == len(names) and each[top].exponent > -np.inf else ""
        values.append(value[:, top])
        errors.append(error[:, top])
    conditions = tuple(
        Requirement(name, fits[name].exponent, most, worst[name], fits[name].error) for name, most in allowed.items()
    )
    corrector, volatility = fits["corrector"], fits["volatility"]
    return SampledLocalizability(
        conditions=conditions,
        critical_exponent=max(corrector.exponent, volatility.exponent) + slowed,
        exponent=exponent,
        dimensions=dimensions,
        values=np.stack(values),
        drift=fits["drift"],
        corrector=corrector,
        volatility=volatility,
        value_errors=np.stack(errors),
        slowed=slowed,
    )


def _measure_quantities(user: UserLoss, rows: np.ndarray, measured: SampleMoments) -> dict[str, MeasuredValues]:
    """Return, by name, the quantities that the conditions bound, drift, corrector and volatility at rows of weights."""
    n = measured.samples
    second, third = (np.asarray(each) for each in jit_bound(_estimate_norms, user, fast_compile=True)(rows, jax.random.key(0)))
    centred = measured.first_derivatives - measured.first_derivatives.mean(0)
    bends = measured.second_order_terms
    exact = lambda value: MeasuredValues(value, np.zeros_like(value))
    mean = lambda samples: MeasuredValues(np.abs(samples.mean(0)), samples.std(0, ddof=1) / np.sqrt(n))
    return {
        "1. second derivatives of the statistics": exact(second),
        "1. third derivatives of the statistics": exact(third),
        "2. gradient of the population loss": _gradient_norm(measured.gradients),
        FOURTH_MOMENT_NAME: mean(centred**4),
        SECOND_ORDER_VARIANCE_NAME: mean((bends - bends.mean(0)) ** 2),
        "drift": mean(measured.first_derivatives),
        "corrector": mean(bends / 2),
        "volatility": mean(centred**2),
    }


def _gradient_norm(gradients: np.ndarray) -> MeasuredValues:
    """Return the norm of the mean gradient at each point, from products of the means of two groups, which are unbiased."""
    sums = gradients.sum(0)
    square = ((sums**2).sum(-1) - (gradients**2).sum((0, 2))) / (SAMPLE_GROUPS * (SAMPLE_GROUPS - 1))
    without = []
    for group in range(SAMPLE_GROUPS):
        left = np.delete(gradients, group, axis=0)
        without.append(((left.sum(0) ** 2).sum(-1) - (left**2).sum((0, 2))) / ((SAMPLE_GROUPS - 1) * (SAMPLE_GROUPS - 2)))
    error = np.sqrt((SAMPLE_GROUPS - 1) * np.var(without, axis=0))
    norm = np.sqrt(np.maximum(square, 0.0))
    return MeasuredValues(norm[:, None], (error / np.where(norm > 0, 2 * norm, 1.0))[:, None])


def _estimate_norms(user: UserLoss, rows, key):
    """Return operator norms of the second and the third derivatives of k statistics at P rows of weights, shapes (P, k)."""
    starts = jax.random.normal(key, (POWER_ITERATION_STARTS, user.size))
    unit = lambda v: v / jnp.where((size := jnp.linalg.norm(v)) > 0, size, 1.0)

    def at(w, i):
        of_one = lambda w: user.u(w)[i]
        twice = lambda v: jax.jvp(jax.grad(of_one), (w,), (v,))[1]
        bend = lambda w, v: jax.jvp(lambda w: jax.jvp(of_one, (w,), (v,))[1], (w,), (v,))[1]
        thrice = lambda v: jax.grad(bend)(w, v)

        def largest(apply, value):
            def climb(v):
                v = lax.fori_loop(0, POWER_ITERATION_COUNT, lambda _, v: unit(apply(v)), unit(v))
                return jnp.abs(value(v))

            return jax.vmap(climb)(starts).max()

        return largest(lambda v: twice(twice(v)), lambda v: v @ twice(v)), largest(thrice, lambda v: v @ thrice(v))

    return jax.vmap(lambda w: lax.map(lambda i: at(w, i), jnp.arange(len(user.names))))(rows)


def fit_growth(d: np.ndarray, value: np.ndarray, error: np.ndarray, positive: bool = False) -> Growth:
    """Fit a power of d to values with standard errors, or a power of d plus a constant if a power alone does not fit.

    A value at the largest d within its errors of zero counts as zero, unless all values are known to be positive.

    >>> d = np.array([50.0, 100.0, 200.0, 400.0])
    >>> fit_growth(d, 3 * d**1.5, 0.01 * d**1.5)
    1.50 ± 0.00
    >>> fit_growth(d, 100 + d, 0.001 * d)
    1.00 ± 0.00
    """
    if value[-1] <= max(0.0 if positive else MIN_DETECTION_ERRORS * error[-1], MAX_ZERO_VALUE) or (value <= 0).any():
        return Growth(-np.inf, 0.0)
    spread = np.maximum(error, 1e-4 * value)
    x, y, weight = np.log(d / d[-1]), np.log(value), value / spread
    design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    solution = np.linalg.lstsq(design, y * weight, rcond=None)[0]
    line_error = float(np.sqrt(np.linalg.inv(design.T @ design)[1, 1]))
    power = Growth(float(solution[1]), line_error if error.any() else 0.0)
    if np.abs((y - solution[0] - solution[1] * x) * weight).max() < MAX_MISFIT_ERRORS or len(d) < 4 or not error.any():
        return power
    model = lambda p: (p[0] + p[1] * np.log1p(p[2] * d[0] / d) + p[1] * x - y) * weight
    found = least_squares(model, [*solution, 0.0], bounds=([-np.inf, -np.inf, -0.9], np.inf))
    try:
        covariance = np.linalg.inv(found.jac.T @ found.jac)
    except np.linalg.LinAlgError:
        return power
    better = found.cost < np.sum(((y - solution[0] - solution[1] * x) * weight) ** 2) / 2
    return Growth(float(found.x[1]), float(np.sqrt(covariance[1, 1]))) if better else power
