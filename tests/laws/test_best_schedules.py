"""The best protocols: the best rate of phase retrieval in closed form, and a schedule between two algorithms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import sgdlimits as sl
from sgdlimits.papers.new_results.figures import schedule_escape as escape
from sgdlimits.papers.new_results.figures.schedule_muon import MixedSteps

K, D, BATCH, T, CHANGE = 2, 50, 4, 4.0, 2.0
FIRST, SECOND = sl.Muon(0.4, batch=BATCH), sl.OnePassSGD(3.0, batch=BATCH)


def overlap_drift(lr, m):
    """Return dm/dt of the ODE."""
    stats = sl.Overlaps(np.ones(1), np.full((1, 1), m), np.ones((1, 1)))
    return float(escape.problem(float(lr)).drift(stats).M[0, 0])


@pytest.mark.parametrize("m", [0.01, 0.5, 0.9, 0.999])
def test_best_rate_maximises_the_drift(m):
    best = escape.find_best_rate(2 * (1 - m**2))
    # the drift is a parabola without a constant in the rate
    half, whole = overlap_drift(best / 2, m), overlap_drift(best, m)
    np.testing.assert_allclose(half, 0.75 * whole, rtol=1e-9)
    assert whole > 0


def test_least_time_is_that_of_the_best_rate_at_every_state():
    m, end = 0.02, 0.99
    slope = lambda t, y: [overlap_drift(escape.find_best_rate(2 * (1 - y[0] ** 2)), y[0])]
    reached = lambda t, y: y[0] - end
    reached.terminal = True
    solved = solve_ivp(slope, (0.0, 200.0), [m], events=reached, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(solved.t_events[0][0], escape.find_least_time(m, end), rtol=1e-6)


def test_optimised_schedule_takes_the_least_time():
    """Between the least time and a half per cent above, which 40 pieces cost."""
    m = 0.02
    _, found = escape.optimise_schedule(m, 2.4 * escape.find_least_time(m), pieces=40)
    assert escape.find_least_time(m) <= found.value <= 1.005 * escape.find_least_time(m)
    assert found.spread < 1e-3 * found.value


def simulate(algorithm):
    """Simulate weights in R^d, where all algorithms see the same samples."""
    problem = sl.presets.committee(K, K, algorithm=algorithm)
    return sl.simulate(problem, sl.SGD(D), sl.RandomInit(D, scale=0.5), t_max=T, runs=4, seed=1, save=9, progress=False)


@pytest.mark.parametrize(("share", "algorithm"), [(1.0, FIRST), (0.0, SECOND)])
def test_relay_with_a_whole_share_is_one_of_its_algorithms(share, algorithm):
    np.testing.assert_allclose(simulate(MixedSteps(FIRST, SECOND, share)).Q, simulate(algorithm).Q, rtol=1e-10, atol=1e-12)


def test_relay_changes_its_algorithm_on_the_right_sample():
    changed, first = simulate(MixedSteps(FIRST, SECOND, sl.Steps([CHANGE], [1.0, 0.0]))), simulate(FIRST)
    before = first.t.values <= CHANGE
    np.testing.assert_allclose(changed.Q[:, before], first.Q[:, before], rtol=1e-10, atol=1e-12)
    assert np.all(np.abs(changed.Q[:, ~before] - first.Q[:, ~before]).max(["student", "student_other"]) > 1e-6)


def test_relay_is_exact_in_the_chain():
    """Beside SGD in R^d, by means within five standard errors."""
    algorithm = MixedSteps(FIRST, SECOND, sl.Linear([0.0, T], [1.0, 0.0]))
    problem = sl.presets.committee(K, K, algorithm=algorithm)
    how = dict(t_max=T, runs=200, save=2, progress=False)
    chain, space = (
        sl.simulate(problem, level, sl.RandomInit(D, scale=0.5), seed=seed, **how)
        for seed, level in enumerate((sl.Chain(D), sl.SGD(D)))
    )
    for name in ("M", "Q"):
        a, b = chain[name].isel(t=-1).values, space[name].isel(t=-1).values
        error = np.sqrt((a.var(0) + b.var(0)) / 200)
        assert np.all(np.abs(a.mean(0) - b.mean(0)) < 5 * error)
