"""`optimise`: gradients beside finite differences, optima known in closed form, certificates, and the exact chain."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import sgdlimits as sl
from sgdlimits.analysis.control_path import ControlSchedule, Discretisation, interval_ends, value_and_gradient
from sgdlimits.analysis.controls import FeasibleSet
from sgdlimits.analysis.objective import as_objective
from sgdlimits.jaxtools import jit_bound

NOISE, T, PIECES = 0.5, 6.0, 6
CONTROL = {"lr": sl.Control(pieces=PIECES, low=0.0, high=1.5)}
START = sl.FixedInit(0.0)


def linear(lr):
    """Make the problem of a linear unit that learns a linear unit, whose error obeys a linear equation."""
    return sl.presets.single_index("linear", lr=lr, noise=NOISE, sphere=False)


def find(make=linear, start=START, t_max=T, controls=CONTROL, objective=None, **more):
    return sl.optimise(make, start, t_max, controls, objective, progress=False, **more)


@pytest.fixture(scope="module")
def linear_optimum():
    return find()


def after_piece(lr, error, time=T / PIECES):
    """Return |u - e|^2 after a time at a constant rate, where d|u - e|^2/dt = -lr (2 - lr) |u - e|^2 + lr^2 noise."""
    decay = lr * (2 - lr)
    limit = lr * NOISE / (2 - lr)
    return limit + (error - limit) * np.exp(-decay * time)


def greedy_optimum():
    """Return the best rates and the error at the end: the error is one number, so that each piece may minimise its own end."""
    error, rates = 2.0, []
    for _ in range(PIECES):
        best = minimize_scalar(after_piece, args=(error,), bounds=(0.0, 1.5), method="bounded", options={"xatol": 1e-10})
        rates.append(best.x)
        error = best.fun
    return np.array(rates), error


def test_rates_of_a_linear_unit_are_the_closed_form(linear_optimum):
    rates, error = greedy_optimum()
    np.testing.assert_allclose(linear_optimum.controls["lr"].values, rates, atol=1e-4)
    np.testing.assert_allclose(linear_optimum.value, (error + NOISE) / 2, rtol=1e-9)
    constant = minimize_scalar(after_piece, args=(2.0, T), bounds=(0.0, 1.5), method="bounded", options={"xatol": 1e-10})
    np.testing.assert_allclose(linear_optimum.constants["lr"], constant.x, atol=1e-4)
    np.testing.assert_allclose(linear_optimum.baseline, (constant.fun + NOISE) / 2, rtol=1e-9)


@pytest.mark.full
def test_many_pieces_approach_the_rate_that_is_best_at_each_time():
    # lr = r/(r + noise) minimises dr/dt, which is then -r^2/(r + noise): t = log(r0/r) + noise (1/r - 1/r0)
    found = find(controls={"lr": sl.Control(pieces=60, low=0.0, high=1.5)})
    time = lambda r: np.log(2 / r) + NOISE * (1 / r - 0.5)
    exact = minimize_scalar(lambda r: (time(r) - T) ** 2, bounds=(0.01, 2), method="bounded", options={"xatol": 1e-12}).x
    np.testing.assert_allclose(2 * found.value - NOISE, exact, rtol=1e-3)
    assert 2 * found.value - NOISE > exact  # fewer schedules are admitted
    middle = (np.arange(60) + 0.5) * T / 60
    error = np.interp(middle, found.dataset.t, 2 * found.dataset.risk.values[0] - NOISE)
    np.testing.assert_allclose(found.controls["lr"].values, error / (error + NOISE), atol=0.01)


def test_evidence_of_an_optimum(linear_optimum):
    assert linear_optimum.value < linear_optimum.baseline
    assert linear_optimum.certificate < 1e-4 * linear_optimum.certificate_of_constants
    assert len(linear_optimum.values) == 3
    assert linear_optimum.spread < 1e-9
    assert linear_optimum.error < 1e-9
    assert linear_optimum.complete
    assert linear_optimum.evaluations <= 200
    np.testing.assert_allclose(linear_optimum.dataset.risk.values[0, -1], linear_optimum.value, rtol=1e-8)
    for words in ("final risk", "best constants lr", "spread", "projected gradient", "6 pieces"):
        assert words in " ".join(repr(linear_optimum).split())


def test_costate_is_the_derivative_of_the_final_risk_by_the_statistics(linear_optimum):
    # the risk depends on r alone, whose factor over the remaining pieces is known
    rates = np.asarray(linear_optimum.controls["lr"].values)
    left = np.exp(-np.cumsum((rates * (2 - rates))[::-1])[::-1] * T / PIECES)
    np.testing.assert_allclose(linear_optimum.costate.Q[:, 0, 0], left / 2, rtol=1e-6)
    np.testing.assert_allclose(linear_optimum.costate.M[:, 0, 0], -left, rtol=1e-6)


def test_chain_confirms_the_gain(linear_optimum):
    # two standard errors: 5% of seeds would fail
    check = linear_optimum.check(1000, 200, seed=1, progress=False)
    assert check.confirmed
    low, high = check.interval
    assert low < check.gain < high
    assert low > 0
    assert check is linear_optimum.checks[-1]
    assert "within two standard errors" in repr(linear_optimum)


def discretised(make, controls, start, t_max):
    feasible = FeasibleSet(controls, (), t_max)
    knobs = {name: ControlSchedule(name, feasible.times(name), feasible.low[a:b] + 0.1) for name, a, b in feasible.slices}
    problem = make(**knobs)
    return Discretisation(problem, start, interval_ends(problem, t_max), feasible.slices)


def differences(f, x, step=1e-5):
    """Return central differences of fourth order."""
    each = lambda e: (8 * (f(x + e) - f(x - e)) - (f(x + 2 * e) - f(x - 2 * e))) / (12 * step)
    return np.array([each(step * e) for e in np.eye(len(x))])


def delayed(lr, noise):
    """Make a problem whose rate is delayed and multiplied by another schedule, with knots of its own."""
    return sl.presets.phase_retrieval(lr=lr.shift(0.3) * sl.Linear([0.0, 2.5], [0.5, 1.0]), noise=noise)


def gradient_of_delayed(objective):
    """Return the value and gradient of an objective of two controls with different pieces, where to take it, and zero kicks."""
    controls = {"lr": sl.Control(3, 0.0, 1.0), "noise": sl.Control(2, 0.0, 1.0)}
    discretisation = discretised(delayed, controls, sl.FixedInit(0.4).one(delayed(sl.Steps([], [0.1]), 0.1)), 20.0)
    both = jit_bound(value_and_gradient, discretisation, as_objective("objective", objective), 4, fast_compile=True)
    kicks = np.zeros(
        (len(discretisation.interval_ends) - 1, sum(np.size(leaf) for leaf in jax.tree.leaves(discretisation.start)))
    )
    return both, jnp.array([0.06, 0.09, 0.07, 0.3, 0.2]), kicks


@pytest.mark.parametrize("objective", [None, sl.exits(0.3)])
def test_gradients_are_finite_differences(objective):
    both, x, kicks = gradient_of_delayed(objective)
    value, (gradient, costate) = both(x, kicks)
    assert 0 < value < 20
    tolerance = 1e-6 * np.abs(gradient).max()
    np.testing.assert_allclose(gradient, differences(lambda x: both(x, kicks)[0], x), rtol=1e-6, atol=tolerance)
    moved = lambda e: both(x, np.eye(1, kicks.size, 1).reshape(kicks.shape) * e[0])[0]
    np.testing.assert_allclose(costate.ravel()[1], differences(moved, np.zeros(1))[0], rtol=1e-6)


def test_gradients_are_finite_where_a_plateau_is_not_left():
    make = lambda lr: sl.presets.phase_retrieval(lr=lr, noise=1.0)
    discretisation = discretised(make, {"lr": sl.Control(40, 0.0, 0.15)}, sl.FixedInit(0.003).one(make(0.1)), 400.0)
    both = jit_bound(value_and_gradient, discretisation, as_objective("objective", sl.exits(0.99)), 4, fast_compile=True)
    kicks = np.zeros((40, sum(np.size(leaf) for leaf in jax.tree.leaves(discretisation.start))))
    for lr in (0.0045, 0.02):
        value, (gradient, costate) = both(jnp.full(40, lr), kicks)
        assert value > 400
        assert np.isfinite(gradient).all()
        assert np.isfinite(costate).all()


def test_values_are_those_of_the_ode():
    both, x, kicks = gradient_of_delayed(None)
    problem = delayed(sl.Steps([20 / 3, 40 / 3], x[:3]), sl.Steps([10.0], x[3:]))
    run = sl.simulate(problem, sl.ODE(rtol=1e-11), sl.FixedInit(0.4), t_max=20, progress=False)
    np.testing.assert_allclose(both(x, kicks)[0], run.risk.values[0, -1], rtol=1e-8)


@pytest.mark.full  # diffrax takes long to compile
def test_gradients_are_those_of_flow():
    both, x, kicks = gradient_of_delayed(None)
    start = sl.FixedInit(0.4).one(delayed(sl.Steps([], [0.1]), 0.1))

    def end(x):
        problem = delayed(sl.Steps([20 / 3, 40 / 3], x[:3]), sl.Steps([10.0], x[3:]))
        return problem.risk(sl.flow(problem, start, 20.0, rtol=1e-10), 20.0)

    value, slope = jax.value_and_grad(end)(x)
    found, (gradient, _) = both(x, kicks)
    np.testing.assert_allclose(found, value, rtol=1e-8)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-6 * np.abs(slope).max())


def test_budget_is_kept_and_spent():
    budget = 1.0
    found = find(constraints=[sl.Budget("lr", budget)])
    rates = np.asarray(found.controls["lr"].values)
    np.testing.assert_allclose(rates.mean() * T, budget, rtol=1e-8)
    assert found.value <= found.baseline
    assert found.certificate < 1e-3
    np.testing.assert_allclose(found.constants["lr"], budget / T, rtol=1e-6)


def test_projection_is_the_nearest_feasible_point():
    feasible = FeasibleSet({"lr": sl.Control(4, 0.0, 1.0)}, (sl.Budget("lr", 1.0),), 4.0)
    z = np.array([0.9, 0.5, -0.2, 2.0])
    nearest = feasible.project(z)
    assert nearest.mean() <= 0.25 + 1e-12
    # the variational inequality of a projection, at random feasible points
    others = [feasible.project(point) for point in np.random.default_rng(0).uniform(-1, 2, (100, 4))]
    assert max((z - nearest) @ (other - nearest) for other in others) < 1e-9


def test_objectives_of_users():
    last = find(objective=lambda problem, stats: stats.Q[0, 0] - 2 * stats.M[0, 0] + 1, starts=1)
    np.testing.assert_allclose(last.value, greedy_optimum()[1], rtol=1e-8)
    area = find(objective=lambda problem, path, t: jnp.trapezoid(path.Q[:, 0, 0] - 2 * path.M[:, 0, 0], t), starts=1)
    assert area.value < area.baseline
    assert area.check(100, 20, progress=False).runs == 20


def test_time_to_leave_a_plateau():
    make = lambda lr: sl.presets.phase_retrieval(lr=lr, noise=0.5)
    found = find(make, sl.FixedInit(0.05), 60.0, {"lr": sl.Control(10, 0.0, 0.3)}, "exit", starts=2)
    run = sl.simulate(found.problem, sl.ODE(), found.start, t_max=60, until=sl.exits(0.5), progress=False)
    np.testing.assert_allclose(found.value, float(run.t_end[0]), rtol=1e-6)
    assert found.value <= found.baseline < 60
    assert found.check(1000, 50, progress=False).interval[1] > 0
    with pytest.raises(sl.BadInput, match="no constant controls leave the plateau"):
        find(make, sl.FixedInit(0.05), 0.01, {"lr": sl.Control(10, 0.0, 0.3)}, "exit")


def test_interruption_keeps_the_best_so_far(monkeypatch):
    from sgdlimits.analysis import optimise

    evaluate, calls = optimise._Search.evaluate_objective, []

    def interrupted(self, z):
        calls.append(z)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return evaluate(self, z)

    monkeypatch.setattr(optimise._Search, "evaluate_objective", interrupted)
    found = find()
    assert found.interrupted
    assert not found.complete
    assert found.value < found.baseline


def test_gradients_are_limited():
    found = find(gradients=20)
    assert not found.complete
    assert found.evaluations <= 20
    assert "had not ended" in repr(found)


REFUSED = {
    "unknown": (dict(controls={"rate": sl.Control(3, 0.0, 1.0)}), "make cannot be called with the controls rate"),
    "domain": (dict(controls={"lr": sl.Control(3, -1.0, 1.0)}), "with every control at its lower bound: lr must be"),
    "none": (dict(controls={}), "controls= is empty"),
    "no control": (dict(controls={"lr": 0.1}), "must be a Control; got 0.1"),
    "ignored": (dict(make=lambda lr: linear(0.1)), "does not depend on lr"),
    "no problem": (dict(make=lambda lr: 3), "make must return a problem; got 3"),
    "objective": (dict(objective=3), "objective must be None, 'exit'"),
    "array": (dict(objective=lambda problem, stats: stats.M), "objective must return one number"),
    "budget": (dict(constraints=sl.Budget("lr", -1.0)), "below the smallest possible integral"),
    "budget of none": (dict(constraints=sl.Budget("l", 1.0)), "Did you mean lr?"),
    "no budget": (dict(constraints=[3]), "constraints must be a Budget"),
    "infinite": (dict(t_max=np.inf), "t_max must be a finite number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    arguments, words = REFUSED[case]
    with pytest.raises(sl.BadInput, match=words):
        find(**arguments)


@pytest.mark.parametrize("arguments", [(0, 0.0, 1.0), (2.5, 0.0, 1.0), (3, 1.0, 1.0), (3, 0.0, np.inf), (3, np.nan, 1.0)])
def test_refused_controls(arguments):
    with pytest.raises(sl.BadInput):
        sl.Control(*arguments)
