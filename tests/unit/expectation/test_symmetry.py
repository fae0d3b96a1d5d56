"""States that are invariant by symmetry stay so, whatever computes the drift."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.expectation.gaussian.base import square_root
from sgdlimits.expectation.symmetries import model_symmetries

ROUNDING = 1e-12


def absolute(x):
    """The absolute value as a user's function, whose expectations are sums over nodes."""
    return jnp.abs(x)


def product(x):
    return x[0] * x[1]


def staircase(x):
    return jnp.sign(x[0]) + 0.3 * x[1] * x[2]


def problem(activation, readout, width, teachers, rule=None, noise=0.1):
    target = sl.Target(readout, teachers, noise=noise)
    return sl.ProjectionProblem(
        target, sl.TwoLayer(width, activation), sl.SquaredLoss(), sl.OnePassSGD(lr=0.5), expectation=rule
    )


def random_gram(p, seed=0):
    weights = np.random.default_rng(seed).normal(size=(p, p + 2)) / np.sqrt(p + 2)
    return weights @ weights.T


EVEN = {
    "sobol": lambda: problem(absolute, product, 3, 2, sl.Sobol(log2_points=6, scrambles=4)),
    "grid": lambda: problem(jnp.cos, lambda x: x[0] ** 2, 1, 1, sl.GaussHermite(12)),
    "field_integrals": lambda: sl.presets.committee(2, 2, "abs", lr=0.5),
    "squares": lambda: sl.presets.committee(3, 2, "square", lr=0.5),
    "class_integrals": lambda: sl.presets.gaussian_mixture([[-1.0], [1.0]], [1, 1], snr=4.0, width=2, activation="tanh"),
}


@pytest.mark.parametrize("name", EVEN)
def test_no_overlap_stays_no_overlap_where_the_problem_is_even(name):
    here = EVEN[name]()
    p, k = here.network.width, here.target.teachers
    stats = sl.Overlaps(np.linspace(0.5, 1.0, p), np.zeros((p, k)), random_gram(p))
    drift = here.drift(stats)
    assert np.abs(drift.M).max() < ROUNDING
    assert np.abs(drift.Q).max() > 1e-3


def test_directions_that_the_target_is_even_in_stay_unseen():
    """sign(x1) + 0.3 x2 x3: with M along x1 only, x2 and x3 are not found; and units that are alike stay alike."""
    here = problem(jax.nn.softplus, staircase, 3, 3, sl.Sobol(log2_points=6, scrambles=4))
    M = np.array([[0.4, 0.0, 0.0], [0.4, 0.0, 0.0], [-0.2, 0.0, 0.0]])
    outside = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.3], [0.3, 0.3, 0.7]])
    drift = here.drift(sl.Overlaps(np.ones(3), M, M @ M.T + outside))
    assert np.abs(drift.M[:, 1:]).max() < ROUNDING
    assert np.abs(drift.M[0] - drift.M[1]).max() < ROUNDING
    assert abs(drift.Q[0, 0] - drift.Q[1, 1]) + abs(drift.Q[0, 2] - drift.Q[1, 2]) < ROUNDING
    assert np.abs(drift.M[:, 0]).min() > 1e-3


def test_units_that_coincide_move_together():
    """S is singular there, and the root of a matrix with a repeated row is made from repeated rows."""
    here = problem(absolute, product, 3, 2, sl.Sobol(log2_points=6, scrambles=4))
    W = np.array([[0.3, 0.2, 0.9, 0.1], [0.3, 0.2, 0.9, 0.1], [0.1, -0.4, 0.2, 0.8]])
    drift = here.drift(sl.Overlaps(np.ones(3), W[:, :2], W @ W.T))
    assert np.abs(drift.M[0] - drift.M[1]).max() < ROUNDING
    assert np.ptp(np.asarray(drift.Q[:2, :2])) < ROUNDING


@pytest.mark.parametrize(
    ("activation", "readout", "width", "teachers", "count"),
    [
        (absolute, product, 2, 2, 2 * 2 * 2),  # units change places, both signs, teachers change places
        (jax.nn.softplus, staircase, 3, 3, 6 * 2),
        (jnp.tanh, product, 1, 2, 4 * 2),  # also one sign, with those of the units and of the noise
        (jax.nn.softplus, lambda x: jnp.exp(x[0]), 1, 1, 1),
        (jax.nn.softplus, lambda x: jnp.exp(x[0]), 6, 1, 12),  # a circle and its mirror image
    ],
)
def test_the_group_is_that_of_the_model(activation, readout, width, teachers, count):
    assert len(model_symmetries(problem(activation, readout, width, teachers).model)) == count


def test_nodes_have_the_moments_that_their_symmetry_gives():
    here = problem(absolute, product, 3, 2)
    points, weights = sl.Sobol(log2_points=6, scrambles=2).nodes(6, model_symmetries(here.model))
    assert np.abs(points[:2] @ weights).max() < 1e-14
    np.testing.assert_allclose(points[2:5] @ weights, (points[2:5] @ weights).mean(), atol=1e-14)
    one = sl.Sobol(log2_points=6, scrambles=2).nodes(3)
    assert np.abs(one.points @ one.weights).max() < 1e-14


def test_root_has_a_slope_where_eigenvalues_are_equal_or_zero():
    """Along S(t) = X(t)^2 the slope of the root is that of X, if X keeps its null space."""
    X = np.diag([1.0, 1.0, 0.0])
    dX = np.array([[0.3, 0.2, 0.0], [0.2, -0.1, 0.0], [0.0, 0.0, 0.0]])
    root, slope = jax.jvp(square_root, (jnp.asarray(X @ X),), (jnp.asarray(X @ dX + dX @ X),))
    np.testing.assert_allclose(root, X, atol=1e-14)
    np.testing.assert_allclose(slope, dX, atol=1e-14)


def erf_unit(x):
    """erf(x / sqrt 2) as a user's function, whose expectations are sums over nodes."""
    return jax.scipy.special.erf(x / np.sqrt(2))


def erf_teachers(x):
    return (erf_unit(x[0]) + erf_unit(x[1])) / 2


def test_a_large_group_costs_the_risk_no_accuracy():
    """Four units, two teachers, M = 0, Q = 1: (1/4 + 1/2)/3 times the weight 1/2 of the loss, by arcsin(1/2)."""
    stats = sl.Overlaps(np.ones(4), np.zeros((4, 2)), np.eye(4))
    for rule, bound in ((None, 1e-4), (sl.Sobol(10), 1e-3)):
        here = problem(erf_unit, erf_teachers, 4, 2, rule, noise=0.0)
        assert len(model_symmetries(here.model)) == 48
        assert float(here.risk(stats)) == pytest.approx(0.125, rel=bound)
    value, error = here.moments(stats)
    assert float(value.loss) == pytest.approx(0.125, rel=1e-2)  # by symmetric nodes, orbits of 2^7 points
    assert float(error.loss) < 1e-2 * float(value.loss)


def test_risk_depends_on_the_overlaps_and_not_on_their_factor():
    """A chain has a triangular factor, SGD overlaps: at 128 points both write the same risk."""
    here = problem(absolute, product, 3, 2, sl.Sobol(log2_points=7))
    data = sl.simulate(here, sl.Chain(40), sl.RandomInit(40), t_max=1.0, runs=3, save=2, progress=False)
    risk = jax.jit(jax.vmap(here.risk))(sl.Overlaps(np.ones((3, 3)), data.M.values[:, -1], data.Q.values[:, -1]))
    np.testing.assert_allclose(data.risk.values[:, -1], risk, rtol=1e-12)
