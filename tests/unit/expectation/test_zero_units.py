"""Units of norm exactly zero: relu's rest at every level, since relu'(0) = 0 in SGD; leaky ones leave, as SGD does."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl

STATE = sl.Overlaps([1.0, 0.5], [[0.0], [0.3]], [[0.0, 0.0], [0.0, 0.5]])
LEAKY = sl.PiecewiseLinear(left=0.3)


def mixture(**more):
    return sl.presets.gaussian_mixture([[1.0], [-1.0]], [1, 0], activation="relu", **more)


PROBLEMS = {
    "pairs of units": lambda: sl.presets.committee(width=2, teachers=1, activation="relu"),
    "noisy classes": lambda: mixture(snr=1.0),
    "classes without noise": lambda: mixture(snr=np.inf),
}


@pytest.mark.parametrize("name", ["pairs of units", *(pytest.param(n, marks=pytest.mark.full) for n in list(PROBLEMS)[1:])])
def test_relu_units_of_norm_zero_rest_whatever_the_rule(name):
    drift = PROBLEMS[name]().drift(STATE)
    assert not np.asarray(drift.M)[0].any()
    assert not np.asarray(drift.Q)[0].any()
    assert np.asarray(drift.M)[1].any()
    assert np.isfinite(np.asarray(drift.Q)).all()


def test_relu_units_of_norm_zero_rest_in_the_mean_field():
    limit = sl.MeanField().adapt_problem(PROBLEMS["pairs of units"]())
    drift = limit.drift(sl.Particles(STATE.a, STATE.M, np.diagonal(STATE.Q)))
    assert not np.asarray(drift.M)[0].any()
    assert float(drift.q[0]) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("level", [sl.SGD(50), sl.Chain(50), sl.SDE(50), sl.ODE()], ids=lambda level: level.name)
def test_relu_units_of_norm_zero_stay_there_at_every_level(level):
    data = sl.simulate(PROBLEMS["pairs of units"](), level, STATE, t_max=0.5, runs=2, save=2, progress=False)
    assert not data.M.values[:, :, 0].any()
    assert not data.Q.values[:, :, 0].any()


@pytest.mark.full
def test_leaky_units_leave_zero_as_their_limit_does():
    """The first step takes the slope on the left, all others the mean of both: the ODE has that. Five standard errors."""
    problem = sl.presets.committee(width=2, teachers=1, activation=LEAKY, lr=0.2)
    chain = sl.simulate(problem, sl.Chain(10_000), STATE, t_max=1, runs=64, save=2, progress=False).M.values[:, -1, 0, 0]
    ode = float(sl.simulate(problem, sl.ODE(), STATE, t_max=1, save=2, progress=False).M[0, -1, 0, 0])
    assert abs(chain.mean() - ode) < 5 * chain.std() / 8
    assert ode > 0.01
