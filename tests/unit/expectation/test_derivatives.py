"""Derivatives of the drift are those of the expectation: through kinks and jumps, and where units coincide."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import sgdlimits as sl


def jacobian(problem, stats):
    along = lambda vector: problem.vector(problem.drift(problem.from_vector(vector, stats)))
    return np.asarray(jax.jit(jax.jacfwd(along))(problem.vector(stats)))


def one_unit(activation, **more):
    algorithm = sl.OnePassSGD(lr=1.0, lr_second=1.0)
    return sl.ProjectionProblem(sl.Target(lambda x: x[0]), sl.TwoLayer(1, activation), sl.SquaredLoss(), algorithm, **more)


@pytest.mark.parametrize(("name", "width"), [("relu", 2), ("abs", 1)])
def test_jacobian_at_nodes_agrees_with_that_of_the_closed_form(name, width):
    """Within 2 per cent of its largest entry, about five standard errors of the nodes."""
    closed = sl.presets.committee(width, 1, name, lr=0.5, noise=0.1)
    W = np.random.default_rng(1).normal(size=(width, width + 3)) / 1.5
    stats = sl.Overlaps(np.full(width, 0.8), W[:, :1], W @ W.T)
    exact, nodes = (jacobian(problem, stats) for problem in (closed, closed.with_expectation(sl.Sobol(log2_points=13))))
    assert np.abs(nodes - exact).max() < 0.02 * np.abs(exact).max()


def pair_mean(f, s):
    """Compute E f(x, y) for standard normal y and x = M y + sqrt(S) z, by adaptive quadrature over x."""
    M, Q = s
    weight = lambda x: np.exp(-(x**2) / (2 * Q)) / np.sqrt(2 * np.pi * Q)
    return sum(quad(lambda x: f(x, M * x / Q, 1 - M**2 / Q) * weight(x), *ends, limit=200)[0] for ends in PIECES)


PIECES = [(-12.0, -1.0), (-1.0, 0.0), (0.0, 1.0), (1.0, 12.0)]


def hard(x):
    return jnp.clip(x, -1.0, 1.0)


def step(x):
    return jnp.where(x > 0, 1.0, 0.0)


def hard_tanh_drift(s):
    """Compute the drift of (M, Q, a) for the unit clip(x, -1, 1) that learns y, with G = (s(x) - y) s'(x)."""
    inside, value = lambda x: float(abs(x) < 1), lambda x: np.clip(x, -1, 1)
    M = pair_mean(lambda x, y, v: inside(x) * (x * y - y**2 - v), s)
    Q = pair_mean(lambda x, y, v: inside(x) * (x - y) * x, s)
    square = pair_mean(lambda x, y, v: inside(x) * ((x - y) ** 2 + v), s)
    a = pair_mean(lambda x, y, v: (value(x) - y) * value(x), s)
    return np.array([-M, -2 * Q + square, -a])


def step_drift(s):
    """Compute the drift of a step unit, which has no slope: only the second layer learns, by E[(s - y) s]."""
    return np.array([0.0, 0.0, -pair_mean(lambda x, y, v: float(x > 0) * (1 - y), s)])


@pytest.mark.parametrize(("activation", "exact"), [(hard, hard_tanh_drift), (step, step_drift)])
def test_jacobian_sees_kinks_and_jumps_of_a_users_function(activation, exact):
    """Against central differences of integrals over a line, at a state inside and at one with little outside M."""
    problem, h = one_unit(activation, expectation=sl.Sobol(log2_points=13)), 1e-4
    for M, Q in ((0.4, 0.9), (0.9, 0.82)):
        sides = ((M + h, Q), (M - h, Q)), ((M, Q + h), (M, Q - h))
        expected = np.stack([(exact(plus) - exact(minus)) / (2 * h) for plus, minus in sides], axis=1)
        got = jacobian(problem, sl.Overlaps([1.0], [[M]], [[Q]]))[:, :2]
        np.testing.assert_allclose(got, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.full
def test_jacobian_of_smooth_units_is_exact_where_they_coincide():
    """Along directions that weights can move in, against differences, up to the error of the grid; for M of a committee too."""
    W = np.array([[0.4, 0.86], [0.4, 0.86]])
    state = lambda W: sl.Overlaps([1.0, 1.0], W[:, :1], W @ W.T)
    tanh = sl.presets.committee(2, 1, "tanh", lr=0.5, noise=0.1)
    grid = tanh.with_expectation(sl.GaussHermite(16))
    J, f = jacobian(grid, state(W)), jax.jit(lambda s: grid.vector(grid.drift(s)))
    turn = np.random.default_rng(0).normal(size=W.shape)
    moved = lambda h: state(W + h * turn)
    along = (grid.vector(moved(1e-5)) - grid.vector(moved(-1e-5))) / 2e-5
    np.testing.assert_allclose(J @ along, (f(moved(1e-4)) - f(moved(-1e-4))) / 2e-4, atol=1e-5)
    np.testing.assert_allclose(jacobian(tanh, state(W))[:2], J[:2], atol=1e-4)


@pytest.mark.full
def test_jacobian_of_classes_is_exact_where_units_coincide():
    """Two tanh units and three classes: the state where fixed_points called an attracting point unstable."""
    problem = sl.presets.gaussian_mixture(
        [[-1.0], [0.0], [1.0]], [0, 1, 0], [0.3, 0.4, 0.3], snr=20.0, width=2, activation="tanh"
    )
    W = np.array([[0.7, 0.5], [0.7, 0.5]])
    state = lambda W: sl.Overlaps([0.6, 0.6], W[:, :1], W @ W.T)
    J, f = jacobian(problem, state(W)), jax.jit(lambda s: problem.vector(problem.drift(s)))
    turn = np.random.default_rng(0).normal(size=W.shape)
    moved = lambda h: state(W + h * turn)
    along = (problem.vector(moved(1e-5)) - problem.vector(moved(-1e-5))) / 2e-5
    np.testing.assert_allclose(J @ along, (f(moved(1e-4)) - f(moved(-1e-4))) / 2e-4, atol=1e-7)


def test_slopes_pass_backwards():
    """jax.grad through a node sum is its forward derivative, in the statistics and in the learning rate."""

    target, unit = sl.Target(lambda x: x[0] ** 2), sl.TwoLayer(1, lambda x: jnp.abs(x))

    def overlap(lr, m):
        algorithm = sl.OnePassSGD(lr=lr)
        problem = sl.ProjectionProblem(target, unit, sl.SquaredLoss(), algorithm, expectation=sl.Sobol(5, 2))
        return problem.drift(sl.Overlaps([1.0], jnp.full((1, 1), m), [[1.0]])).Q[0, 0]

    for argument in (0, 1):
        back, forth = (jax.jit(way(overlap, argument))(0.3, 0.4) for way in (jax.grad, jax.jacfwd))
        np.testing.assert_allclose(back, forth, rtol=1e-10)
        assert abs(back) > 1e-3
