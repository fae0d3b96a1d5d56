"""Accuracy of the expectations of a problem: error estimates, refinement of the quadrature nodes, and warnings."""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sgdlimits.algorithm.limit import extend_moments, linear_step_increments
from sgdlimits.algorithm.needs import is_linear
from sgdlimits.errors import AccuracyWarning, check_number
from sgdlimits.expectation.base import linearise_increment
from sgdlimits.expectation.gaussian import Estimate
from sgdlimits.inputs import Blocks
from sgdlimits.statistics.overlaps import STUDENT, Overlaps
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add

MAX_SIGNAL_ERROR = 5e-2
"""Maximum relative error of the drift of small overlaps before the quadrature nodes are refined."""
MAX_RISK_ERROR = 1e-3
"""Maximum relative error of the risk before the quadrature nodes are refined."""
MIN_NORMAL_FLOAT = float(np.finfo(float).tiny)
"""Lower bound on divisors, so that 0/0 is 0."""
RELATIVE_ROUNDING = 1e-12
"""Relative error below which an error estimate is attributed to rounding."""


def estimate_moments(problem: Any, stats: Overlaps, tolerance: float | None) -> Estimate:
    """Return the expectations that give a projection problem's drift and risk, with error estimates.

    An `AccuracyWarning` reports a relative error above `tolerance`.
    """
    estimate = Estimate(*_estimate_expectations(problem, stats))
    if tolerance is not None:
        check_number("tolerance", tolerance, above=0)
        _warn_if_inaccurate(problem, _relative_error(estimate), tolerance, stacklevel=4)
    return estimate


def refine_expectation(problem: Any, stats: Overlaps, tolerance: float | None) -> Any:
    """Return a projection problem with enough quadrature nodes for accurate expectations at the given statistics.

    The moments must have the default accuracy of the expectation, or `tolerance`, relative to the largest moment. The drift of
    the overlaps along each fixed direction must have an error of at most five per cent, so that small signals are resolved (see
    `_relative_errors`), and the risk an error of at most 0.1 per cent. An expectation that the user gave is not refined, and
    its risk is not checked. Algorithms that are not linear in the gradient keep their nodes. A warning reports accuracy not
    reached.
    """
    usual = problem.expectation.accuracy(problem.model)
    if usual is None or not is_linear(problem.algorithm, problem.network.width):
        return problem
    better, with_more_nodes = problem, None if problem.asked is not None else problem.expectation.with_more_nodes()
    wanted = np.array([tolerance or usual, MAX_SIGNAL_ERROR, MAX_RISK_ERROR if problem.asked is None else np.inf])
    reached = np.array(_relative_errors(problem, stats))
    while not (reached <= wanted).all() and with_more_nodes is not None:  # also while an error is NaN
        better, with_more_nodes = problem.with_expectation(with_more_nodes), with_more_nodes.with_more_nodes()
        reached = np.array(_relative_errors(better, stats))
    worst = int(np.argmax(reached / wanted))
    _warn_if_inaccurate(
        better, reached[worst], wanted[worst], stacklevel=7, what=("expectations", "small overlaps", "risks")[worst]
    )
    return better


@eqx.filter_jit
def _risk_and_error(problem: Any, stats: Overlaps) -> tuple[Array, Array]:
    """Return the risk at the statistics of one run and an estimate of its quadrature error."""
    students = stats.of(STUDENT)
    return problem.risk(stats), problem.expectation.risk_error(problem.model, students.a, problem.model.law(students))


def _warn_if_inaccurate(problem: Any, reached: float, tolerance: float, stacklevel: int, what: str = "expectations") -> None:
    """Warn that the expectations of a problem are inaccurate if their relative error is above the tolerance or NaN."""
    if not reached <= tolerance:
        warnings.warn(
            f"the {what} of this problem have a relative error of about {reached:.1e}, and {tolerance:.1e} was asked for. "
            f"{problem.expectation.remedy}",
            AccuracyWarning,
            stacklevel=stacklevel,
        )


@eqx.filter_jit
def _estimate_expectations(problem: Any, stats: Overlaps) -> tuple[Moments, Moments]:
    """Return the expectations that give a problem's drift and risk, and their error estimates, at given statistics."""
    students = stats.of(STUDENT)
    return problem.expectation.estimate(problem.model, students.a, problem.model.law(students))


def _relative_error(estimate: Estimate) -> float:
    """Return the largest error of an estimate of expectations, divided by the largest expectation."""
    largest = lambda moments: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(moments))
    return largest(estimate.error) / max(largest(estimate.value), np.finfo(float).tiny)


def _relative_errors(problem: Any, stats: Overlaps) -> tuple[float, float, float]:
    r"""Return the relative errors of a problem's expectations, of the drift of its overlaps M, and of its risk.

    The errors are divided by the largest expectation, the smallest signal, and the risk, respectively.

    The signal along a fixed direction is the largest entry of the drift in its column of M, so that overlaps of order
    :math:`1/\sqrt d` count as much as large ones. It is taken to be at least a tenth of :math:`|M|\,\text{lr}\sqrt{E[G^2]/Q}`,
    the overlap itself times the rate of a unit's steps, with the gradient G in its field and its squared norm Q: a drift that
    happens to vanish causes no refinement. Errors within rounding count as zero: a drift that vanishes by symmetry has only
    these.
    """
    value, error = _estimate_expectations(problem, stats)
    risk, risk_error = (float(part) for part in _risk_and_error(problem, stats))
    of_risk = risk_error / max(abs(risk), MIN_NORMAL_FLOAT)
    if isinstance(problem.data, Blocks):  # the drift is linear in the expectations of each class, not in these sums
        return _relative_error(Estimate(value, error)), 0.0, of_risk
    *drift_and_error, terms = (np.abs(leaf) for leaf in _drift_and_bounds(problem, stats, value, error))
    drift, drift_error = (leaf[: stats.M.size].reshape(stats.M.shape) for leaf in drift_and_error)
    students = stats.of(STUDENT)
    norms = np.diagonal(students.Q).clip(MIN_NORMAL_FLOAT)
    step_rates = float(problem.algorithm.lr_sample) * np.sqrt(np.diagonal(value.gradient_gradient) / norms)
    signal = np.concatenate([drift, 0.1 * np.abs(students.M) * step_rates[:, None]]).max(0)
    drift_error = np.where(drift_error > RELATIVE_ROUNDING * terms.max(), drift_error, 0.0).max(0)
    return (
        _relative_error(Estimate(value, error)),
        float((drift_error / signal.clip(MIN_NORMAL_FLOAT)).max()),
        of_risk,
    )


@eqx.filter_jit
def _drift_and_bounds(problem: Any, stats: Overlaps, value: Moments, error: Moments) -> tuple[Array, ...]:
    """Return the drift, an upper bound on its quadrature error, and the sum of the absolute values of its terms.

    `value` and `error` are the expectations that give the drift and their estimated errors.
    """
    column, students = jax.tree.map(lambda leaf: leaf[..., None], stats), stats.of(STUDENT)

    def increment_of(products: Moments) -> Array:
        products = extend_moments(problem.model, students, stats, products)[0]
        length = problem.data.squared_length
        return problem.vector(add(*linear_step_increments(problem.algorithm, problem.t, length, column, products)))

    # the drift is linear in the moments: its error is at most the sum of the moments' errors times the sizes of coefficients
    slope = jax.tree.leaves(linearise_increment(increment_of, students.a, students.M.shape))
    part = lambda rows, moment: jnp.tensordot(jnp.abs(rows), jnp.abs(moment), jnp.ndim(moment))
    bound = lambda moments: jnp.stack([part(*pair) for pair in zip(slope, jax.tree.leaves(moments), strict=True)]).sum(0)
    return increment_of(jax.tree.map(lambda leaf: leaf[..., None], value))[:, 0], bound(error), bound(value)
