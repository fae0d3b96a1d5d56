"""Compiled steps of DOP853: those of SciPy's solver, and what happens where a drift is not finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import DOP853

import sgdlimits as sl
from sgdlimits.level.dop853 import CompiledSolver, Interval, make_steps

RTOL = 1e-9


def oscillate(t, rows):
    """Two coupled nonlinear oscillators in each row, driven in time."""
    x, v = rows[:, :2], rows[:, 2:]
    return jnp.concatenate([v, -x - 0.3 * x[:, ::-1] ** 3 + 0.1 * jnp.sin(2 * t)], axis=1)


def solver(drift, t, rows, end, runs, size=np.nan, rtol=RTOL):
    within = Interval(end, np.inf, rtol, rtol / 100, rtol, rtol / 100, runs, 1, True)
    call = jax.jit(lambda *arguments: make_steps(drift, 8, *arguments))
    return CompiledSolver(call, 8, t, rows, size, within)


@pytest.mark.parametrize("size", [np.nan, 0.05])
def test_steps_are_those_of_scipy(size):
    """Sizes, states and polynomials, with two rows of padding that do not count for the error."""
    rows = np.random.default_rng(0).normal(size=(3, 4))
    padded = np.concatenate([rows, [rows[-1]] * 2])
    ours = solver(oscillate, 0.3, padded, 9.0, 3, size)
    flat = lambda t, y: np.asarray(oscillate(t, jnp.asarray(y.reshape(3, 4)))).ravel()
    more = {} if np.isnan(size) else {"first_step": size}
    scipy = DOP853(flat, 0.3, rows.ravel(), 9.0, rtol=RTOL, atol=RTOL / 100, **more)
    while scipy.status == "running":
        ours.step()
        scipy.step()
        np.testing.assert_allclose(ours.t, scipy.t, rtol=1e-5)  # rounding changes error estimates
        times = np.linspace(scipy.t_old, scipy.t, 4)
        np.testing.assert_allclose(ours.dense_output()(times), scipy.dense_output()(times), atol=1e-8)
        np.testing.assert_allclose(ours.y, scipy.dense_output()(ours.t), atol=1e-8)
    assert ours.status == scipy.status == "finished"
    assert ours.t == 9.0


def test_a_polynomial_is_accurate_where_it_satisfies_the_equation():
    """A decay that limits the step by stability has polynomials that are wrong between the steps, which are marked."""
    smooth = solver(oscillate, 0.0, np.ones((1, 4)), 5.0, 1)
    stiff = solver(lambda t, y: -400.0 * (y - jnp.cos(t)), 0.0, np.ones((1, 1)), 2.0, 1, rtol=1e-4)
    found = []
    for each in (smooth, stiff):
        marks = []
        while each.status == "running":
            each.step()
            marks.append(each.dense_output().accurate)
        found.append(np.mean(marks[1:]))
    assert found[0] > 0.9
    assert found[1] < 0.9


def test_steps_come_close_to_where_a_drift_ends_and_then_fail():
    ours = solver(lambda t, y: jnp.where(t < 0.7, y, jnp.nan), 0.0, np.ones((1, 1)), 2.0, 1)
    for _ in range(1000):
        ours.step()
        if ours.status != "running":
            break
    assert ours.status == "failed"
    assert 0.6999 < ours.t <= 0.7
    np.testing.assert_allclose(ours.y, np.exp(ours.t), rtol=1e-8)


def test_a_drift_that_is_never_finite_fails_at_the_start():
    ours = solver(lambda t, y: jnp.nan * y, 0.0, np.ones((1, 1)), 2.0, 1)
    ours.step()
    assert (ours.status, ours.t) == ("failed", 0.0)


def test_ode_is_the_flow():
    """The level and the differentiable flow, two implementations of one solution."""
    problem = sl.presets.committee(2, 1, "erf", lr=0.7, noise=0.1)
    start = sl.RandomInit(100).one(problem)
    data = sl.simulate(problem, sl.ODE(), start, t_max=20, save=5, progress=False)
    flow = sl.flow(problem, start, data.t.values[1:])
    np.testing.assert_allclose(data.Q[0, 1:], flow.Q, atol=1e-8)
