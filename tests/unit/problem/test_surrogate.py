"""A problem of fitted functions: what it computes, where it ends, what it refuses, and that files keep it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.problem import GridSplines, Polynomials, Surrogate


def growing() -> Surrogate:
    """x and y grow as exp t, with noise of covariance 0.1."""
    slopes = np.eye(3, 2, -1)
    noise = np.array([[0.1, 0, 0.1], [0, 0, 0], [0, 0, 0]])
    return Surrogate(("x", "y"), Polynomials(1, np.ones(2)), slopes, 0 * slopes, noise, np.zeros(3), [-1, -1], [1, 1])


def test_fitted_functions_are_the_drift_and_the_covariance():
    problem = growing()
    state = problem.state(x=0.5, y=0.2)
    np.testing.assert_allclose(problem.drift(state).u, [0.5, 0.2])
    np.testing.assert_allclose(problem.covariance(state), 0.1 * np.eye(2))
    assert sl.linearise(problem, problem.state(x=0.0, y=0.0)).rates == pytest.approx([1.0, 1.0])


def test_runs_end_where_the_functions_were_not_fitted():
    problem = growing()
    with pytest.warns(UserWarning, match="diverged"):
        data = sl.simulate(problem, sl.ODE(), problem.state(x=0.5, y=0.2), t_max=3, save=7)
    assert data.status.values.tolist() == ["diverged"]
    assert float(data.t_end[0]) == pytest.approx(np.log(1.2 / 0.5), abs=0.01)
    assert float(data.x.max()) <= 1.2 + 1e-9


def test_files_keep_a_fitted_problem(tmp_path):
    problem = growing()
    data = sl.simulate(problem, sl.ODE(), problem.state(x=0.5, y=0.2), t_max=0.5, save=3)
    sl.save(data, tmp_path / "fitted.nc")
    again = sl.rerun(sl.load(tmp_path / "fitted.nc"))
    np.testing.assert_allclose(again.u, data.u, rtol=1e-12)


def test_splines_interpolate_on_their_grid_and_are_exact_for_cubics():
    x, y = np.linspace(-1, 2, 6), np.linspace(0, 1, 4)
    basis = GridSplines((x, y))
    f = lambda x, y: 1 + x**3 - 2 * x * y**2
    table = f(*np.meshgrid(x, y, indexing="ij")).ravel()
    for point in ([-1.0, 0.0], [2.0, 1.0], [0.37, 0.81]):
        assert float(basis.features(jnp.array(point)) @ table) == pytest.approx(f(*point), abs=1e-12)
    slope = jax.grad(lambda u: basis.features(u) @ table)(jnp.array([0.37, 0.81]))
    np.testing.assert_allclose(slope, [3 * 0.37**2 - 2 * 0.81**2, -4 * 0.37 * 0.81], atol=1e-10)


def test_what_is_no_state_is_refused():
    problem = growing()
    go = lambda start: sl.simulate(problem, sl.ODE(), start, t_max=1)
    for wrong, words in (
        (lambda: problem.drift(problem.state(x=5.0, y=0.0)), "x must be from -1 to 1, where the functions were fitted; got 5"),
        (lambda: go(problem.state(x=0.0, y=-3.0)), "y must be from -1 to 1"),
        (lambda: problem.state(z=1.0), "the statistics are x, y; got z"),
        (lambda: problem.drift(sl.Values([1.0])), r"got Values of shape \(1,\)"),
        (lambda: go(sl.Spike(0.1, 0.1)), "got Spike"),
        (lambda: go(sl.Values([0.1, 0.1, 0.1])), r"got Values of shape \(3,\)"),
        (lambda: sl.simulate(problem, sl.Chain(d=10), problem.state(x=0.0, y=0.0), t_max=1), "no exact chain"),
    ):
        with pytest.raises(sl.BadInput, match=words):
            wrong()
