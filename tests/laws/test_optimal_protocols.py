"""Problems, objectives and optima of the figures on optimal dropout and optimal replay, against independent routes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import sgdlimits as sl
from sgdlimits.papers.new_results.figures import optimal_dropout, optimal_replay

POINT = sl.Overlaps(np.ones(2), np.array([[0.4], [0.1]]), np.array([[0.5, 0.2], [0.2, 0.3]]))


def product(overlap, first, second):
    """E[erf(u/sqrt 2) erf(v/sqrt 2)] of two Gaussian variables with the given overlap and variances."""
    return 2 / np.pi * np.arcsin(overlap / np.sqrt((1 + first) * (1 + second)))


def excess(factor, m, q):
    """Excess risk of a factor times the sum of two units with the overlaps m and q."""
    q = np.asarray(q)
    lengths = np.diag(q)
    return (
        product(1.0, 1.0, 1.0)
        - 2 * factor * product(m, lengths, 1.0).sum()
        + factor**2 * product(q, lengths[:, None], lengths).sum()
    ) / 2


def rescaled(lr, dropout):
    """The problem with the package's dropout, whose kept units count 1/(1 - dropout) times."""
    own = optimal_dropout.problem(lr, dropout)
    return sl.ProjectionProblem(
        own.target, sl.TwoLayer(2, "erf", mean=False, dropout=dropout), sl.SquaredLoss(), sl.OnePassSGD(lr)
    )


def test_units_that_count_once_are_rescaled_units_with_a_smaller_second_layer():
    """The drift, and the chain path by path: a = 1 and a kept unit that counts once, or a = 1 - dropout."""
    once, other = optimal_dropout.problem(0.7, 0.3), rescaled(0.7, 0.3)
    smaller = sl.Overlaps(np.full(2, 0.7), POINT.M, POINT.Q)
    for name in ("M", "Q"):
        np.testing.assert_allclose(getattr(once.drift(POINT), name), getattr(other.drift(smaller), name), atol=1e-12)
    how = dict(t_max=0.5, runs=3, seed=2, save=3, progress=False)
    paths = [sl.simulate(each, sl.Chain(30), start, **how) for each, start in ((once, POINT), (other, smaller))]
    for name in ("M", "Q"):
        np.testing.assert_allclose(paths[0][name], paths[1][name], rtol=1e-10, atol=1e-12)


def test_excess_risk_is_that_of_the_best_factor():
    """Against the arcsine formula, minimised over the factor."""
    own = optimal_dropout.problem(1.0, 0.0)
    m, q = POINT.M[:, 0], POINT.Q
    best = minimize_scalar(lambda factor: excess(factor, m, q))
    np.testing.assert_allclose(optimal_dropout.excess_risk(own, POINT), best.fun, atol=1e-12)
    np.testing.assert_allclose(optimal_dropout.best_factor(own, POINT), best.x, rtol=1e-6)


def test_equal_units_without_dropout_stay_above_the_floor():
    """The floor by the arcsine formula; the ODE from zero weights keeps units equal."""
    sums = lambda c: (np.full(2, c), np.full((2, 2), c * c))
    best = minimize_scalar(lambda c: excess(1.0, *sums(c)), bounds=(0.1, 1.0), method="bounded", options={"xatol": 1e-10})
    floor = minimize_scalar(lambda factor: excess(factor, *sums(best.x))).fun
    np.testing.assert_allclose(optimal_dropout.floor_without_dropout(), floor, atol=1e-10)
    own = optimal_dropout.problem(0.1, 0.0)
    last = optimal_dropout.final_statistics(
        sl.simulate(own, sl.ODE(), optimal_dropout.zero_weights(), t_max=30.0, save=2, progress=False)
    )
    assert np.ptp(last.Q) < 1e-9
    assert optimal_dropout.excess_risk(own, last) > floor


def test_drift_is_linear_in_the_share_of_the_first_task():
    stats = sl.Overlaps({"a": [[0.5, 0.1], [0.2, 0.4]]}, [[0.3, 0.1], [0.1, 0.4]], [[1.0, 0.2], [0.2, 1.0]])
    first, second, mixed = (optimal_replay.problem(0.6, share).drift(stats) for share in (1.0, 0.0, 0.3))
    expected = jax.tree.map(lambda one, other: 0.3 * one + 0.7 * other, first, second)
    for leaf, other in zip(jax.tree.leaves(mixed), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, atol=1e-12)


@pytest.mark.full
def test_dropout_survives_a_fixed_learning_rate_and_not_a_free_one():
    """At five samples per dimension, with few pieces."""
    size = optimal_dropout.QUICK_SIZE.with_changes(pieces=5, gradients=150)
    fixed = optimal_dropout.search(optimal_dropout.SPAN, size, 0, lr=1.0)
    free = optimal_dropout.search(optimal_dropout.SPAN, size, 0)
    alone = optimal_dropout.search(optimal_dropout.SPAN, size, 0, dropout=0.0)
    assert fixed.controls["dropout"].values[-1] > 0.4
    assert free.controls["dropout"].values.max() < 1e-2
    # the search over both may stop earlier than that over one
    assert abs(free.value - alone.value) < 1e-5
    assert free.value < fixed.value
