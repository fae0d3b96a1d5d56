"""How well the expectations of a problem are known, and more nodes where that is not enough."""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sgdlimits.algorithm.limit import extended, linear_changes
from sgdlimits.errors import AccuracyWarning, check_number
from sgdlimits.expectation.base import linearise_increment
from sgdlimits.expectation.gaussian import Estimate
from sgdlimits.statistics.overlaps import STUDENT, Overlaps
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add

SMALL_SIGNAL = 5e-2
RISK = 1e-3
TINY, ROUNDING = float(np.finfo(float).tiny), 1e-12


def moments(problem: Any, stats: Overlaps, tolerance: float | None) -> Estimate:
    """The moments of a projection problem with their error estimates, or a warning where these are above a tolerance."""
    estimate = Estimate(*_estimate(problem, stats))
    if tolerance is not None:
        check_number("tolerance", tolerance, above=0)
        _warn(problem, _relative(estimate), tolerance, stacklevel=4)
    return estimate


def refined(problem: Any, stats: Overlaps, tolerance: float | None) -> Any:
    """A projection problem with more nodes where its expectations need them at statistics of one run, or a warning.

    The moments should have the usual accuracy of the expectation, or `tolerance`, relative to the largest. And small signals
    should be seen: the drift of M should be known to five per cent along each fixed direction (see `_unsure`). The risk should
    be known to a thousandth, unless the expectation was given, which is kept; so are the nodes of steps that are not linear in
    the gradient.
    """
    usual = problem.expectation.accuracy(problem.model)
    if usual is None or not problem.algorithm.linear:
        return problem
    better, finer = problem, None if problem.asked is not None else problem.expectation.finer()
    wanted = np.array([tolerance or usual, SMALL_SIGNAL, RISK if problem.asked is None else np.inf])
    reached = np.array(_unsure(problem, stats))
    while not (reached <= wanted).all() and finer is not None:
        better, finer = problem.with_expectation(finer), finer.finer()
        reached = np.array(_unsure(better, stats))
    worst = int(np.argmax(reached / wanted))
    _warn(better, reached[worst], wanted[worst], stacklevel=7, what=("expectations", "small overlaps", "risks")[worst])
    return better


@eqx.filter_jit
def _of_risk(problem: Any, stats: Overlaps) -> tuple[Array, Array]:
    own = stats.of(STUDENT)
    return problem.risk(stats), problem.expectation.risk_error(problem.model, own.a, problem.model.law(own))


def _warn(problem: Any, reached: float, tolerance: float, stacklevel: int, what: str = "expectations") -> None:
    if not reached <= tolerance:
        warnings.warn(
            f"the {what} of this problem have a relative error of about {reached:.1e}, and {tolerance:.1e} was asked for. "
            f"{problem.expectation.remedy}",
            AccuracyWarning,
            stacklevel=stacklevel,
        )


@eqx.filter_jit
def _estimate(problem: Any, stats: Overlaps) -> tuple[Moments, Moments]:
    own = stats.of(STUDENT)
    return problem.expectation.estimate(problem.model, own.a, problem.model.law(own))


def _relative(estimate: Estimate) -> float:
    """The largest error relative to the largest moment."""
    largest = lambda moments: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(moments))
    return largest(estimate.error) / max(largest(estimate.value), np.finfo(float).tiny)


def _unsure(problem: Any, stats: Overlaps) -> tuple[float, float, float]:
    r"""Relative errors: of the moments to the largest of them, of the drift of M to the smallest signal, and of the risk.

    The signal along a fixed direction is the largest entry of the drift in its column of M, so that overlaps of order
    :math:`1/\sqrt d` count as much as large ones. It counts as no less than a tenth of
    :math:`|M|\,\text{lr}\sqrt{E[G^2]/Q}`, the overlap itself times the rate of a unit's steps: a drift that happens to vanish
    is no alarm. Nor is rounding, which is all the error where a drift is zero by symmetry.
    """
    value, error = _estimate(problem, stats)
    *numbers, gross = (np.abs(leaf) for leaf in _reach(problem, stats, value, error))
    drift, wrong = (leaf[: stats.M.size].reshape(stats.M.shape) for leaf in numbers)
    own = stats.of(STUDENT)
    steps = float(problem.algorithm.lr_sample) * np.sqrt(np.diagonal(value.gradient_gradient) / np.diagonal(own.Q).clip(TINY))
    signal = np.concatenate([drift, 0.1 * np.abs(own.M) * steps[:, None]]).max(0)
    wrong = np.where(wrong > ROUNDING * gross.max(), wrong, 0.0).max(0)
    risk, spread = (float(part) for part in _of_risk(problem, stats))
    return _relative(Estimate(value, error)), float((wrong / signal.clip(TINY)).max()), spread / max(abs(risk), TINY)


@eqx.filter_jit
def _reach(problem: Any, stats: Overlaps, value: Moments, error: Moments) -> tuple[Array, ...]:
    """The drift, how far the errors of the moments can move it, and how far the moments themselves."""
    column, own = jax.tree.map(lambda leaf: leaf[..., None], stats), stats.of(STUDENT)
    all_fields = lambda products: extended(problem.model, own, stats, products)[0]
    increment = lambda products: problem.vector(
        add(*linear_changes(problem.algorithm, problem.t, problem.data.squared_length, column, all_fields(products)))
    )
    slope = jax.tree.leaves(linearise_increment(increment, own.a, own.M.shape))
    part = lambda rows, moment: jnp.tensordot(jnp.abs(rows), jnp.abs(moment), jnp.ndim(moment))
    reach = lambda moments: jnp.stack([part(*pair) for pair in zip(slope, jax.tree.leaves(moments), strict=True)]).sum(0)
    return increment(jax.tree.map(lambda leaf: leaf[..., None], value))[:, 0], reach(error), reach(value)
